"""Names with any characters, as bytes on the wire, at a running server: `/api/handles/…`, `/…` and `/hdl/…`.

Every encoding of a character means the same name, nothing is normalized, and responses can be used in requests. Names
that a path cannot contain are refused with a reason.
"""

import json
from urllib.parse import quote

import pytest

from tests.server.http.contexts import basic
from tests.server.http.raw import Raw, connected, places_of, request, see_sound
from tests.server.installations import PREFIX, SECRET
from tests.server.running import Serving

API = "/api/handles/"
AS_IT_IS = [octet for octet in range(0x21, 0x7F) if octet not in b"#%?"]
"""Octets that may stand in a path as they are; behind `#` and `?` no path goes on, and `%` begins an escape."""

BEYOND = [
    "ü",
    "ß/ẞ",
    "Ω ≠ Ω",
    "日本語",
    "עברית/مرحبا",
    "e\N{COMBINING ACUTE ACCENT}",
    "\N{NO-BREAK SPACE}x",
    "\N{FULLWIDTH SOLIDUS}",
]
DOTTED = ["x", "x/", "/x", "//x", "x//y", ".", "..", "../x", "x/..", "x/../y", "./x", "a/./b", "x.", "x/."]


def put(client: Raw, name: str, url: str, written: str | None = None) -> None:
    """Create a record with a URL under a name, which the path encodes in some way."""
    body = json.dumps([{"index": 1, "type": "URL", "data": url}]).encode()
    headers = basic() | {"Content-Type": "application/json"}
    path = API + (written or quote(name, safe=""))
    answer = client.ask(request("PUT", path, headers, body))
    assert answer.status in (200, 201), answer
    assert answer.json["handle"] == name
    if answer.status == 201:
        assert client.get(answer.header("location") or "").json["handle"] == name


def leads(client: Raw, written: str | bytes, url: str) -> None:
    """Check that an encoded name resolves to its record at every interface."""
    octets = written.encode("latin-1") if isinstance(written, str) else written
    for before in (b"/", b"/hdl/"):
        answer = client.get(before + octets)
        assert (answer.status, answer.header("location")) == (302, url), (before, octets, answer)
        see_sound(answer, before + octets)
    answer = client.get(API.encode() + octets)
    assert answer.status == 200, (octets, answer)
    assert answer.json["values"][0]["data"]["value"] == url
    see_sound(answer, API.encode() + octets)


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_every_ascii_character_in_every_encoding(wired: Serving, secure: bool) -> None:
    with connected(places_of(wired)["IPv6" if secure else "IPv4"], secure=secure) as client:
        for octet in range(0x20, 0x7F):
            name = f"{PREFIX}/ascii-{secure}-{octet}-{chr(octet)}."
            stem, url = name[:-2], f"https://example.org/{secure}/{octet}"
            put(client, name, url)
            assert client.get(API + quote(name, safe="")).json["handle"] == name
            leads(client, f"{stem}%{octet:02x}.", url)
            if octet in AS_IT_IS:
                leads(client, name, url)
            if not secure:
                leads(client, f"{quote(stem, safe='')}%{octet:02X}%2e", url)


def test_forbidden_characters_are_refused(wired: Serving) -> None:
    """Control characters, and characters that deployed servers cannot distinguish (H3)."""
    with connected(places_of(wired)["IPv4"]) as client:
        for octet in (*range(0x20), 0x7F, 0x80, 0x9F, 0x1F600):
            encoded = quote(chr(octet))
            headers = basic() | {"Content-Type": "application/json"}
            answer = client.ask(request("PUT", f"{API}{PREFIX}/c{encoded}.", headers, b"[]"))
            assert answer.status == 400, answer
            assert answer.json["responseCode"] in (4, 102)
            see_sound(answer, API.encode())
            for path in (f"{API}{PREFIX}/c{encoded}.", f"/{PREFIX}/c{encoded}.", f"/hdl/{PREFIX}/c{encoded}."):
                answer = client.get(path)
                assert answer.status == (404 if octet else 400), (path, answer)
                see_sound(answer, path.encode())


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_non_ascii_characters_encoded_and_raw(wired: Serving, family: str) -> None:
    with connected(places_of(wired)[family]) as client:
        for number, suffix in enumerate(BEYOND):
            name, url = f"{PREFIX}/beyond-{family}-{suffix}", f"https://example.org/beyond/{number}"
            put(client, name, url)
            leads(client, quote(name), url)
            leads(client, quote(name).lower().replace(family.lower(), family), url)
            leads(client, quote(name, safe=""), url)
            if " " not in suffix:
                leads(client, name.encode(), url)
            answer = client.get(API + quote(name))
            assert answer.json["handle"] == name
            assert suffix.encode() in answer.body, "as UTF-8, and not escaped"


def test_nothing_is_normalized(wired: Serving) -> None:
    """Each of these is a different name, at the API and at the resolver, whether slashes are encoded or not."""
    with connected(places_of(wired)["IPv4"]) as client:
        names = [f"{PREFIX}/{suffix}" for suffix in DOTTED]
        for number, name in enumerate(names):
            put(client, name, f"https://example.org/dots/{number}", written=name if number % 2 else None)
        for number, name in enumerate(names):
            url = f"https://example.org/dots/{number}"
            assert client.get(API + name).json["handle"] == name
            leads(client, name, url)
            leads(client, name.replace("/", "%2F"), url)
            leads(client, name.replace("/", "%2f").replace(".", "%2E"), url)


OTHERS = [
    (f"{API}/{PREFIX}/n1", 400, 301),  # the name is /12345/n1
    (f"/api//handles/{PREFIX}/n1", 404, 4),
    (f"/API/handles/{PREFIX}/n1", 400, None),  # a name of the prefix API, which is not here
    (f"/api/handles/../handles/{PREFIX}/n1", 400, 301),
    (f"/api/../{PREFIX}/n1", 404, 4),
    (f"/api/{PREFIX}/n1", 404, 4),
    (f"{API}hdl:{PREFIX}/n1", 400, 301),
    (f"{API}{PREFIX}/n1;jsessionid=1", 404, 100),
    (f"{API}{PREFIX}/n1/", 404, 100),
    (f"{API}{PREFIX}/n1%", 404, 100),  # at the very end, as old clients write it
    (f"{API}{PREFIX}/n1%2", 400, 4),
    (f"{API}{PREFIX}/n%zz1", 400, 4),
    (f"{API}{PREFIX}/n1%00", 400, 4),
    (f"{API}{PREFIX}/%FF", 404, 100),
    (f"{API}{PREFIX}%2Fn1%2F", 404, 100),
    (f"{API}", 400, 102),
    ("/api/handles", 400, 102),
    (f"/{PREFIX}/n1/", 404, None),
    (f"/{PREFIX}/n1%2", 400, None),
    (f"/{PREFIX}/n1%00", 400, None),
    (f"/{PREFIX}/..%2f..%2fetc/passwd", 404, None),
    ("/static/../service.py", 404, None),
    ("/static/%2e%2e/service.py", 404, None),
    ("/static/..%2fpages.py", 404, None),
    ("/static//etc/passwd", 404, None),
    ("/static/perseid.css/", 404, None),
    ("/static/", 404, None),
]


def test_other_names_and_invalid_names(wired: Serving) -> None:
    with connected(places_of(wired)["IPv4"]) as client:
        for path, status, code in OTHERS:
            answer = client.get(path, "Accept: application/json")
            assert answer.status == status, (path, answer)
            assert code is None or answer.json["responseCode"] == code, (path, answer)
            see_sound(answer, path.encode(), SECRET.encode())


def test_resolver_drops_leading_slashes(wired: Serving) -> None:
    with connected(places_of(wired)["IPv4"]) as client:
        for path in (
            f"//{PREFIX}/n1",
            f"/%2F{PREFIX}/n1",
            f"/hdl//{PREFIX}/n1",
            f"/hdl:{PREFIX}/n1",
            f"/%20{PREFIX}/n1",
        ):
            assert client.get(path).header("location") == "https://example.org/1", path


def test_fragment_and_query_are_not_part_of_name(wired: Serving) -> None:
    with connected(places_of(wired)["IPv4"]) as client:
        for behind in ("#part", "?", "?x=y", "?/../..", "?%", "?%zz", "?a#b", "#?noredirect"):
            answer = client.get(f"/{PREFIX}/n1{behind}")
            assert (answer.status, answer.header("location")) == (302, "https://example.org/1"), behind
            assert client.get(f"{API}{PREFIX}/n1{behind}").json["handle"] == f"{PREFIX}/n1"

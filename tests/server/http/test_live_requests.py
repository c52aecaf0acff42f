"""HTTP features as bytes on the wire, at a running server: conditions, Accept, HEAD, OPTIONS, HTTP/1.0, absolute-form
targets and pipelining. Over HTTP and HTTPS, IPv4 and IPv6.
"""

import json
from collections.abc import Iterator
from itertools import cycle

import pytest

from tests.server.http.contexts import basic
from tests.server.http.raw import Answer, Raw, connected, places_of, request, see_sound
from tests.server.installations import NAMES, PREFIX
from tests.server.running import Serving

HTML = "text/html;charset=utf-8"
JSON = "application/json;charset=utf-8"
RECORD = f"/{PREFIX}/n1?noredirect"
REDIRECTION = f"/{PREFIX}/n1"
API = f"/api/handles/{PREFIX}/n1"
PATHS = [
    "/",
    "/help.html",
    "/robots.txt",
    "/favicon.ico",
    "/resolver.json",
    "/static/perseid.css",
    "/static/perseid.svg",
    "/healthz",
    "/readyz",
    "/hrls/ping",
    REDIRECTION,
    f"/hdl/{PREFIX}/n1",
    RECORD,
    f"/{PREFIX}/n1?action=showurls",
    f"/{PREFIX}/n1?action=explain",
    f"/{PREFIX}/n1?action=api",
    f"/{PREFIX}/absent",
    "/999/elsewhere",
    "/api",
    API,
    f"/api/handles/{PREFIX}/absent",
    f"/api/handles/{PREFIX}/long",
    "/api/handles/999/x",
    f"/api/handles?prefix={PREFIX}",
    "/api/site",
    "/api/prefixes",
    "/api/nothing",
    f"/api/verifications/300:0.NA/{PREFIX}",
    "/api/v1/nothing",
    f"/api/v1/handles/{PREFIX}%2Fn1",
]
GUESSED = (f"/{PREFIX}/absent", "/999/elsewhere")
"""What may have been meant by these is looked for only so often, so that answers may differ."""
BY_ADMINISTRATOR = {
    "index": 100,
    "type": "HS_ADMIN",
    "data": {"format": "admin", "value": {"handle": f"0.NA/{PREFIX}", "index": 300, "permissions": "011111110011"}},
}
WAYS = [("IPv4", False), ("IPv4", True), ("IPv6", False), ("IPv6", True)]


@pytest.fixture(params=WAYS, ids=["http", "https", "http-IPv6", "https-IPv6"])
def client(request: pytest.FixtureRequest, wired: Serving) -> Iterator[Raw]:
    """A connected client."""
    family, secure = request.param
    with connected(places_of(wired)[family], secure=secure) as made:
        yield made


@pytest.fixture
def plain(wired: Serving) -> Iterator[Raw]:
    with connected(places_of(wired)["IPv4"]) as made:
        yield made


# HEAD and OPTIONS


def test_head_equals_get_without_body(client: Raw) -> None:
    for path in PATHS:
        for accept in ("Accept: */*", "Accept: text/html", "Accept: application/json"):
            got, head = client.get(path, accept), client.get(path, accept, method="HEAD")
            assert head.body == b""
            assert without_what_passes(head) == without_what_passes(got), path
            assert got.header("content-length") == str(len(got.body)), path
            if path not in GUESSED:
                assert head.header("content-length") == got.header("content-length"), path
            see_sound(got, path.encode())
            see_sound(head, path.encode())


def without_what_passes(answer: Answer) -> tuple[int, dict[str, str]]:
    """Status and headers, without times, nonces and the length."""
    passing = ("date", "expires", "www-authenticate", "content-length")
    return answer.status, {name: value for name, value in answer.headers if name not in passing}


def test_options_lists_methods(client: Raw) -> None:
    for path in ("*", *PATHS):
        answer = client.get(path, method="OPTIONS")
        assert answer.status in (200, 204, 404), (path, answer)
        assert answer.body == b"" or answer.status == 404, path
        see_sound(answer, path.encode())
        if answer.status == 404:
            continue
        methods = [method.strip() for method in (answer.header("allow") or "").split(",")]
        assert "TRACE" not in methods
        assert "OPTIONS" in methods, (path, answer)
        for method in ("PUT", "DELETE", "POST"):
            refused = client.get(path, "X-Requested-With: XMLHttpRequest", method=method) if path != "*" else None
            if refused is not None and method not in methods:
                assert refused.status in (404, 405), (method, path, refused)
                see_sound(refused, path.encode())


def test_unsupported_methods(client: Raw) -> None:
    methods = ("TRACE", "PATCH", "get", "PROPFIND", "GETS", "M-SEARCH", "!#$%&'*+-.^_`|~")
    for path, method in zip(PATHS, cycle(methods), strict=False):
        answer = client.get(path, "X-Secret: told-to-nobody", method=method)
        assert answer.status in (404, 405, 501), (path, answer)
        assert b"told-to-nobody" not in answer.body
        see_sound(answer, path.encode())


# Conditions


def test_unchanged_response_is_304(client: Raw) -> None:
    for path in ("/", "/help.html", RECORD, API, f"/api/handles/{PREFIX}/long", "/resolver.json"):
        first = client.get(path)
        assert first.status == 200, (path, first)
        tag = first.header("etag")
        assert tag is not None, path
        for condition in (tag, f"W/{tag}", f'"other", {tag}', "*", f'  {tag},"x"', f'W/"x" , W/{tag}'):
            for method in ("GET", "HEAD"):
                again = client.get(path, f"If-None-Match: {condition}", method=method)
                assert (again.status, again.body) == (304, b""), (path, condition)
                assert again.header("etag") == tag
                assert again.header("content-length") in (None, first.header("content-length"))
                for name in ("cache-control", "vary"):
                    assert again.header(name) == first.header(name), (path, name)
        for condition in ('"other"', f'"{tag}"', tag.strip('"'), tag.upper().replace('"', "'"), "", '"', "W/", ","):
            again = client.get(path, f"If-None-Match: {condition}")
            assert (again.status, again.body) == (200, first.body), (path, condition)
        other = client.get(path, "If-None-Match: " + '"x"', f"If-None-Match: {tag}")
        assert other.status == 304, "two headers are one list"


def test_tag_depends_on_representation(plain: Raw) -> None:
    page = plain.get(RECORD, "Accept: text/html").header("etag")
    as_json = plain.get(RECORD, "Accept: application/json").header("etag")
    assert plain.get(RECORD, "Accept: application/json", f"If-None-Match: {page}").status == 200
    assert page != as_json
    other = plain.get(f"/api/handles/{PREFIX}/n2").header("etag")
    assert plain.get(API, f"If-None-Match: {other}").status == 200


def test_conditional_change(plain: Raw) -> None:
    path, headers = f"/api/handles/{PREFIX}/conditional", basic() | {"Content-Type": "application/json"}

    def put(number: int, **conditions: str) -> Answer:
        body = json.dumps(
            [{"index": 1, "type": "URL", "data": f"https://example.org/{number}"}, BY_ADMINISTRATOR]
        ).encode()
        more = {name.replace("_", "-"): value for name, value in conditions.items()}
        return plain.ask(request("PUT", path, headers | more, body))

    assert put(0, If_Match='"none"').status == 412
    assert put(1, If_None_Match="*").status == 201
    assert put(2, If_None_Match="*").status == 412
    first = plain.get(path).header("etag") or ""
    assert put(3, If_Match=first).status == 200
    assert put(4, If_Match=first).status == 412
    assert plain.get(path, f"If-None-Match: {first}").json["values"][0]["data"]["value"] == "https://example.org/3"
    assert plain.ask(request("DELETE", path, headers | {"If-Match": first})).status == 412
    second = plain.get(path).header("etag") or ""
    assert plain.ask(request("DELETE", path, headers | {"If-Match": second})).status == 200
    assert plain.get(path, f"If-None-Match: {second}").status == 404


def test_ranges_are_ignored(client: Raw) -> None:
    """The whole response is sent, as HTTP allows."""
    for path in ("/", RECORD, API, "/static/perseid.css"):
        whole = client.get(path)
        for wanted in ("bytes=0-1", "bytes=-5", "bytes=5-", "bytes=9999999-", "bytes=0-0,2-3", "lines=1-2", "x"):
            part = client.get(path, f"Range: {wanted}", f"If-Range: {whole.header('etag') or chr(34) * 2}")
            assert (part.status, part.body) == (200, whole.body), (path, wanted)


# Accept


LIKED: list[tuple[str | None, int | None, str | None]] = [
    (None, 302, HTML),
    ("*/*", 302, HTML),
    ("", 302, HTML),
    ("text/html", 302, HTML),
    ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", 302, HTML),
    ("application/json", 200, JSON),
    ("APPLICATION/JSON", 200, JSON),
    ("application/json;q=0.1", 200, JSON),
    ("application/json; q=1.000", 200, JSON),
    ("application/json;charset=utf-8", 200, JSON),
    ("application/json, */*", 302, HTML),
    ("application/json, */*;q=0.5", 200, JSON),
    ("application/json, text/html", 302, HTML),
    ("application/json, text/html;q=0.5", 200, JSON),
    ("application/json;q=0.5, text/html", 302, HTML),
    ("text/html;q=0.2, application/json;q=0.3", 200, JSON),
    ("text/*, application/json;q=0.9", 302, HTML),
    ("application/*", 302, HTML),
    ("application/json;q=0, */*", 302, HTML),
    ("application/json;q=0", 302, HTML),
    ("text/html;q=0, application/json", 200, JSON),
    ("application/json;q=2", None, None),
    ("application/json;q=-1", None, None),
    ("application/json;q=x", None, None),
    (",,,", 302, HTML),
    ("nonsense", 302, HTML),
    ("text/turtle", 302, HTML),
    ("*/json", None, None),
    ("application/json" + ",text/x;q=0.1" * 300, None, None),
]
"""What is accepted, the status where a name leads somewhere, and the form of what is shown; None where any will do."""


def test_content_negotiation(wired: Serving) -> None:
    with connected(places_of(wired)["IPv4"]) as client:
        for accept, leading, showing in LIKED:
            headers = [] if accept is None else [f"Accept: {accept}"]
            led, shown = client.get(REDIRECTION, *headers), client.get(RECORD, *headers)
            missing = client.get(f"/{PREFIX}/absent", *headers)
            for answer in (led, shown, missing):
                see_sound(answer, b"/")
                assert "Accept" in (answer.header("vary") or ""), answer
                assert answer.header("content-type") in (HTML, JSON)
            assert leading is None or led.status == leading, accept
            assert (led.header("location") is not None) is (led.status == 302)
            assert shown.status == 200
            assert showing is None or shown.header("content-type") == showing, accept
            assert missing.status == 404
            assert showing is None or missing.header("content-type") == showing, accept
            api = client.get(API, *headers)
            assert (api.status, api.header("content-type")) == (200, JSON), "the API speaks JSON whatever is liked"


def test_several_accept_headers_are_joined(plain: Raw) -> None:
    assert plain.get(REDIRECTION, "Accept: text/html;q=0.5", "Accept: application/json").status == 200
    assert plain.get(REDIRECTION, "Accept: text/html", "Accept: application/json;q=0.5").status == 302


# Versions and target forms


def test_http_1_0(client: Raw, wired: Serving) -> None:
    keep = "Connection: keep-alive"
    for path, status in ((REDIRECTION, 302), (API, 200), (f"/{PREFIX}/absent", 404), ("/", 200)):
        answer = client.ask(request("GET", path, [keep], version="1.0"))
        assert answer.status == status
        assert (answer.header("connection") or "").lower() == "keep-alive"
        assert answer.header("transfer-encoding") is None
        assert answer.header("content-length") == str(len(answer.body))
        see_sound(answer, path.encode())
    answer = client.ask(b"GET " + API.encode() + b" HTTP/1.0\r\n\r\n")  # without Host
    assert answer.status == 200
    assert client.end() == b"", "the connection ends with it"
    with connected(wired.http if wired.http[0] != "::" else places_of(wired)["IPv4"]) as old:
        old.send(b"GET /\r\n")
        assert old.read().status == 505
        assert old.end() == b""


def test_http_1_1_connection_close(client: Raw) -> None:
    for path in (REDIRECTION, API, RECORD):
        assert client.get(path).header("connection") is None
    answer = client.get(API, "Connection: close")
    assert answer.header("connection") == "close"
    assert client.end() == b""


def test_host_is_required_but_ignored(wired: Serving) -> None:
    """URLs are built from the settings, never from what a client says."""
    for host in ("evil.example", "evil.example:80", "[::1]:8000", "", "x" * 200):
        with connected(places_of(wired)["IPv4"]) as client:
            for path in ("/", "/resolver.json", RECORD, REDIRECTION, API, "/api", f"/{PREFIX}/absent"):
                answer = client.get(
                    path, f"Host: {host}", "X-Forwarded-Host: evil.example", "Forwarded: host=evil.example"
                )
                assert answer.status in (200, 302, 404)
                assert b"evil" not in answer.body + repr(answer.headers).encode()
    for lines in (
        b"",
        b"Host: a\r\nHost: b\r\n",
        b"Host: a b\r\n",
        b"Host: a/b\r\n",
        b"Host: a@b\r\n",
        b"Host: a,b\r\n",
    ):
        with connected(places_of(wired)["IPv4"]) as client:
            answer = client.ask(b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
            assert answer.status == 400, lines
            see_sound(answer, b"/")
            assert client.end() == b""


def test_absolute_form_target(client: Raw) -> None:
    for before in ("http://localhost", "https://localhost:8000", "HTTP://evil.example", "http://[::1]:9"):
        assert client.get(before + REDIRECTION).header("location") == "https://example.org/1"
        assert client.get(before + API).json["handle"] == f"{PREFIX}/n1"
        assert client.get(before).status == 200
        assert client.get(f"{before}?x=y").status == 200


def test_other_targets_are_refused(wired: Serving) -> None:
    for target in ("localhost:80", "ftp://localhost/", "//", "x", "?", "http://", "http://a@b/", "\\"):
        with connected(places_of(wired)["IPv4"]) as client:
            answer = client.get(target)
            assert answer.status == (200 if target == "//" else 400), answer
            see_sound(answer, b"/")


# Pipelining


def test_pipelined_requests_are_answered_in_order(client: Raw) -> None:
    """Fast and slow ones, with and without a body, valid and invalid."""
    headers = basic() | {"Content-Type": "application/json"}
    sent: list[tuple[str, bytes, int, str]] = []
    for number in range(NAMES):
        name = f"{PREFIX}/n{number}"
        body = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/"}]).encode()
        sent += [
            ("GET", request("GET", f"/{name}"), 302, f"https://example.org/{number}"),
            ("GET", request("GET", f"/api/handles/{name}"), 200, f'"handle":"{name}"'),
            ("HEAD", request("HEAD", f"/{name}"), 302, f"https://example.org/{number}"),
            ("GET", request("GET", f"/{name}?noredirect"), 200, f"{PREFIX}/<wbr>n{number}</bdi>"),
            ("PUT", request("PUT", f"/api/handles/{name}?overwrite=false", headers, body), 409, f'"handle":"{name}"'),
            ("POST", request("POST", f"/api/handles/{name}", body=b""), 200, f'"handle":"{name}"'),
            ("GET", request("GET", f"/{PREFIX}/absent-{number}"), 404, f"absent-{number}</bdi>"),
            ("OPTIONS", request("OPTIONS", "*"), 200, ""),
        ]
    client.send(b"".join([octets for _, octets, _, _ in sent]))
    for method, octets, status, text in sent:
        answer = client.read(method)
        assert answer.status == status, (octets, answer)
        assert text in answer.body.decode() + (answer.header("location") or ""), (octets, answer)


def test_requests_byte_by_byte(client: Raw) -> None:
    octets = request("GET", REDIRECTION) + request("GET", API)
    for at in range(len(octets)):
        client.send(octets[at : at + 1])
    assert client.read().header("location") == "https://example.org/1"
    assert client.read().json["handle"] == f"{PREFIX}/n1"


def test_chunked_body_and_expect(client: Raw) -> None:
    path, auth = f"/api/handles/{PREFIX}/n1?overwrite=false", basic()["Authorization"]
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {auth}\r\nContent-Type: application/json\r\n"
    body = b'[{"index":1,"type":"URL","data":"x"}]'
    chunked = b"".join([b"1;a=b\r\n" + body[at : at + 1] + b"\r\n" for at in range(len(body))])
    answer = client.ask(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked + b"0\r\nTrailer: x\r\n\r\n")
    assert (answer.status, answer.json["responseCode"]) == (409, 101)
    client.send(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    assert client.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    answer = client.ask(body)
    assert (answer.status, answer.json["responseCode"]) == (409, 101)

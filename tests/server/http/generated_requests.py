"""Generated requests to every route of the server: methods, paths, parameters, headers and bodies.

Routes come from the tables of the server, so that new ones are included automatically. Most parts of a request are
valid, which gets further than noise.
"""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, quote_from_bytes, unquote

from hypothesis import strategies as st

from perseid.server.http.resolver.paths import PAGES
from perseid.server.http.v1.routes import SECTIONS
from perseid.server.http.v1.routing import BASE
from perseid.wire.framing import MEDIA_TYPE
from tests.server.http.contexts import basic
from tests.server.http.generated_bodies import altered, bodies, fitting, octets_of, sound_records
from tests.server.http.generated_text import NEW, PARAMETERS, SAID, SPOKEN
from tests.server.installations import PREFIX

PAGES_AND_FILES: Final = [
    *(f"/{path}" for path in sorted(PAGES)),
    *("/docs", "/openapi.json", "/static/perseid.css", "/static/perseid.svg", "/static/{name}", "/healthz", "/readyz"),
    *("/hrls/ping", "/hrls/handles/", "/timemap/link/{name}", "/timemap/json/{name}"),
]
RESOLVING: Final = ["/{name}", "/hdl/{name}", "/hdl:{name}", "/{name}/"]
COMPATIBLE: Final = [
    *("/api", "/api/handles", "/api/handles/", "/api/site", "/api/site/", "/api/prefixes", "/api/prefixes/{name}"),
    *(
        "/api/verifications/300:{name}",
        "/api/verifications/{name}",
        "/api/sessions",
        "/api/sessions/this",
        "/api/{name}",
    ),
]
RECORDS: Final = ["/api/handles/{name}"]
OWN: Final = [route for section in SECTIONS for route in section.routes]
GROUPS: Final = (PAGES_AND_FILES, RESOLVING, COMPATIBLE, RECORDS)
ALL_PATHS: Final = sorted({path for group in GROUPS for path in group} | {BASE + route.path for route in OWN})

_MAKING: Final = frozenset([BASE + route.path for route in OWN if route.method == "POST" and "{" not in route.path])
"""Where something is made, of which the body says what it is called."""

METHODS: Final = ["GET"] * 6 + [
    "HEAD",
    "POST",
    "POST",
    "PUT",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "FOO",
    "get",
]


@st.composite
def written(draw: st.DrawFn, text: str) -> str:
    """A text in a path or query, mostly with valid escapes."""
    octets = text.encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 9)):
        case 0:
            return "".join([f"%{octet:02x}" for octet in octets])
        case 1:
            return "".join(
                [chr(octet) if 0x21 <= octet <= 0x7E and octet not in b"#?%" else f"%{octet:02X}" for octet in octets]
            )
        case 2:
            return quote_from_bytes(octets + draw(st.binary(max_size=4)))
        case 3:
            return "".join([chr(octet) if 0x21 <= octet != 0x7F else "%20" for octet in octets])  # raw, a % too
        case _:
            return quote(text, safe=draw(st.sampled_from(["", "/", "/:;+$"])), errors="surrogatepass")


def filled(draw: st.DrawFn, path: str) -> str:
    """A path with its placeholders replaced."""
    while "{" in path:
        before, _, rest = path.partition("{")
        step, _, behind = rest.partition("}")
        path = before + draw(SPOKEN.flatmap(written) if step != "handle" else SPOKEN.map(_one_step)) + behind
    if draw(st.integers(0, 19)) == 0:
        path += draw(st.sampled_from(["/", "//", "/..", "/.", "%2F", "%", "%00", ";x", "/x"]))
    return path


def _one_step(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def queried(draw: st.DrawFn, path: str, pairs: list[tuple[str, str]]) -> str:
    """A path with parameters."""
    if not pairs:
        return path
    separator = draw(st.sampled_from("&&&&&&&;"))
    return f"{path}?{separator.join([f'{name}={draw(written(said))}' for name, said in pairs])}"


# Headers


def _tags() -> st.SearchStrategy[str]:
    return st.sampled_from(["*", '"x"', 'W/"x"', '"' + "0" * 32 + '"', "x", '"', ",", '"a", "b"'])


_HEADERS: Final[dict[str, st.SearchStrategy[str]]] = {
    "Accept": st.sampled_from(
        [
            *(
                "*/*",
                "text/html",
                "application/json",
                "application/json;q=0.1, text/html;q=0.9",
                "text/turtle",
                "q=",
                ";;,",
            ),
            *(
                "application/ld+json",
                "application/linkset+json",
                "application/problem+json",
                "text/plain",
                "image/svg+xml",
            ),
            *(MEDIA_TYPE, "application/vnd.citationstyles.csl+json", "application/x-bibtex", "text/x;q=" + "9" * 50),
        ]
    ),
    "Accept-Language": st.sampled_from(["de", "en;q=0.5, fr", "*", "x" * 500, ";q=1", ","]),
    "Accept-Datetime": st.sampled_from(
        ["Sun, 01 Nov 2026 00:00:00 GMT", "Thu, 31 May 2007 20:35:00 GMT", "yesterday", ""]
    ),
    "Accept-Encoding": st.just("gzip, br"),
    "Authorization": st.sampled_from(
        [
            basic(secret="wrong")["Authorization"],
            basic(identity="301:0.NA/12345")["Authorization"],
            basic(identity=f"300:{PREFIX}/nobody")["Authorization"],
            *(
                "Basic",
                "Basic !!!",
                "Basic " + b64encode(b"no colon").decode(),
                "Bearer x",
                "Bearer " + "a" * 300,
                "Digest x=y",
            ),
            *(
                'Handle sessionId="x"',
                "Handle",
                'Handle clientCert="true"',
                'Handle id="300:0.NA/12345", type="HS_SECKEY"',
            ),
            'Handle sessionId="x", id="300:0.NA/12345", type="HS_SECKEY", cnonce="AAAA", alg="SHA1", signature="AAAA"',
            'Handle version="0", cnonce="AAAAAAAAAAAAAAAAAAAAAA=="',
        ]
    ),
    "Content-Type": st.sampled_from(
        [
            *(
                "application/json",
                "application/json; charset=utf-8",
                "application/json;charset=utf-16",
                "text/plain",
                "",
            ),
            *(
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
                MEDIA_TYPE,
                "application/json;charset=x",
            ),
            *("application/merge-patch+json", 'application/JSON ; CHARSET="UTF-8"'),
        ]
    ),
    "Origin": st.sampled_from(["null", "https://evil.example", "http://localhost", "x"]),
    "Sec-Fetch-Site": st.sampled_from(["cross-site", "same-origin", "none", "x"]),
    "Access-Control-Request-Method": st.sampled_from(["PUT", "PATCH", "x y"]),
    "Access-Control-Request-Headers": st.sampled_from(["authorization", "x-other", ", ,"]),
    "If-None-Match": _tags(),
    "If-Match": _tags(),
    "If-Modified-Since": st.sampled_from(["Sun, 01 Nov 2026 00:00:00 GMT", "x"]),
    "If-Unmodified-Since": st.sampled_from(["Sun, 01 Nov 2006 00:00:00 GMT", "x"]),
    "Range": st.sampled_from(["bytes=0-1", "bytes=-1", "x"]),
    "Idempotency-Key": st.sampled_from(["one", "two", "x" * 300, "", '"quoted"']),
    "Prefer": st.sampled_from(["return=minimal", "x"]),
    "Expect": st.sampled_from(["100-continue", "100-continue", "x"]),
    "Content-Encoding": st.sampled_from(["identity", "gzip"]),
    "X-Requested-With": st.just("XMLHttpRequest"),
    "X-Forwarded-For": st.sampled_from(["192.0.2.1", "unknown", "::1, 10.0.0.1"]),
    "X-Forwarded-Proto": st.sampled_from(["https", "x"]),
    "X-Forwarded-Host": st.just("evil.example"),
    "X-HTTP-Method-Override": st.just("DELETE"),
    "Cookie": st.just("session=x"),
    "User-Agent": st.sampled_from(["Mozilla/5.0", "curl/8", ""]),
    "Connection": st.sampled_from(["close", "keep-alive", "upgrade", "Authorization, close"]),
    "Upgrade": st.sampled_from(["websocket", "h2c"]),
    "X-Odd": st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=40),
}
_OFTEN = ["Accept", "Authorization", "Content-Type", "Origin", "If-None-Match", "If-Match", "Idempotency-Key"]


@st.composite
def headers(draw: st.DrawFn) -> list[str]:
    names = draw(st.lists(st.sampled_from(_OFTEN) | st.sampled_from(sorted(_HEADERS)), max_size=5))
    return [f"{name}: {draw(_HEADERS[name])}" for name in names]


@st.composite
def _own_requests(draw: st.DrawFn) -> tuple[str, str, bytes | None]:
    """A request to a route of our own API."""
    route = draw(st.sampled_from(OWN))
    said = draw(fitting(route.query))
    pairs = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in said.items()]
    if draw(st.integers(0, 9)) == 0:
        pairs.append((draw(PARAMETERS), draw(SAID | SPOKEN)))
    target = queried(draw, filled(draw, BASE + route.path), pairs)
    body: bytes | None = None
    if route.body is not None:
        document = draw(fitting(route.body))
        body = octets_of(draw(altered(document)) if draw(st.integers(0, 2)) == 0 else document)
    return route.method, target, body


# Requests


@dataclass(frozen=True)
class Made:
    """A generated request."""

    method: str
    target: str
    headers: tuple[str, ...]
    body: bytes | None

    @property
    def path(self) -> bytes:
        return self.target.encode("latin-1").partition(b"?")[0].partition(b"#")[0]


@st.composite
def made_up(draw: st.DrawFn) -> Made:
    """A request; some are authenticated as administrator."""
    if draw(st.integers(0, 7)) == 0:  # so that there is something of which all others may be
        mine = f"Authorization: {basic()['Authorization']}"
        headers_ = (mine, "Content-Type: application/json")
        return Made("PUT", f"/api/handles/{draw(NEW)}", headers_, octets_of(draw(sound_records())))
    if draw(st.integers(0, 2)) == 0:
        method, target, body = draw(_own_requests())
    else:
        pairs = draw(st.lists(st.tuples(PARAMETERS, SAID | SPOKEN), max_size=3))
        target = queried(draw, filled(draw, draw(st.sampled_from(draw(st.sampled_from(GROUPS))))), pairs)
        method = draw(st.sampled_from(METHODS if target.startswith("/api/") else ["GET", "GET", "POST", "HEAD"]))
        body = draw(bodies()) if method in ("PUT", "POST") else None
    if draw(st.integers(0, 9)) == 0:
        method, body = draw(st.sampled_from(METHODS)), draw(bodies())
    said = draw(headers())
    if body is not None and draw(st.integers(0, 3)):
        said = ["Content-Type: application/json", *(line for line in said if not line.startswith("Content-Type"))]
    if draw(st.booleans()) and _is_for_administrators(method, target):
        mine = f"Authorization: {basic()['Authorization']}"
        said = [mine, *(line for line in said if not line.startswith("Authorization"))]
    return Made(method, target, tuple(said), body)


def _is_for_administrators(method: str, target: str) -> bool:
    """Whether a request may be authenticated: not if it could remove what all others use."""
    path = unquote(target.partition("?")[0], errors="replace").lower()
    if (
        "0.na" in path
        or "prefixes" in path
        or "policy" in path
        or f"{PREFIX}/" not in f"{path} ".replace(f"{PREFIX}/ ", "")
    ):
        return path in _MAKING and method == "POST"
    return True

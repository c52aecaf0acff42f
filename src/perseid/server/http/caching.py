"""Entity tags in headers: which states of a record a request is about (RFC 9110, 8.8.3 and 13.1).

How long an answer may be kept, and whether the one that a client has is still good.

A value says how long it may be kept (its TTL). An answer may be kept as long as the value that says least, for two days
at most, as deployed proxies do. `Expires` says it to old caches and `Cache-Control` to all others.

What was after an entry of the past never changes but for what is hidden or erased later, which has to be gone from
caches in bearable time too. So it may be kept for the same two days, whatever TTL its values had, and need not be asked
for again meanwhile.

A page has a tag that follows from its octets. A client that shows the tag again is told that nothing has changed
(304). Redirections have none: by the rules of HTTP their conditions do not count.

What scripts of other sites may do (http-api reference, 3.6): read what everybody may read, and ask for changes.

No cookie and no remembered password goes with that: `Access-Control-Allow-Credentials` is never sent, so the origin
does not matter and `*` serves all of them, and every cache.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from typing import Final

from perseid.records.value import TtlType, Value
from perseid.registry.commands.conditions import Condition

from .messages import OPTIONS, SAFE_METHODS, HeaderList, Request, Response
from .targets import BadRequest

ANY: Final = "*"

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_LIST: Final = re.compile(rf"\s*(?:{_TAG.pattern}\s*)?(?:,\s*(?:{_TAG.pattern}\s*)?)*")


def etag_header(tag: str) -> tuple[str, str]:
    """The header that says which state an answer shows."""
    return "ETag", f'"{tag}"'


def matches_if_none_match(request: Request, tag: str) -> bool:
    """Whether whoever asks has this state already, so that nothing needs to be sent."""
    text = request.get_joined("if-none-match")
    return text.strip() == ANY or tag in _TAG.findall(text)


def parse_condition(request: Request) -> Condition | None:
    """Under which condition a change is to be made; None for none. Raises `Malformed`."""
    wanted, unwanted = request.get_joined("if-match").strip(), request.get_joined("if-none-match").strip()
    if not wanted and not unwanted:
        return None
    exists = True if wanted == ANY else False if unwanted == ANY else None
    return Condition(
        any_of=_parse_tags("If-Match", wanted) if wanted not in ("", ANY) else None,
        none_of=_parse_tags("If-None-Match", unwanted) if unwanted not in ("", ANY) else (),
        exists=exists,
    )


def _parse_tags(name: str, text: str) -> tuple[str, ...]:
    if _LIST.fullmatch(text) is None:
        raise BadRequest(f'the header {name} should hold * or tags in quotation marks, as in "abc", "def"')
    return tuple(_TAG.findall(text))


MAX_AGE: Final = 172_800
"""Seconds that an answer is kept at most: two days. Whoever moves a thing cannot wait longer."""

PAGE_AGE: Final = 300
"""Seconds that a page of the server's own is kept, which changes with its settings."""

STATIC_AGE: Final = 86_400
"""Seconds that a file is kept which comes with the program."""

_TAG_DIGITS: Final = 32
_NOT_MODIFIED_HEADERS: Final = frozenset(
    ("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary")
)


def min_ttl(values: Iterable[Value], now: float) -> int | None:
    """For how many seconds what was made of these values may be kept; None if nothing says."""
    times = [_remaining(value, int(now)) for value in values]
    return max(0, min((*times, MAX_AGE))) if times else None


def cache_headers(
    seconds: int | None, now: float, *, shared: bool = True, no_cache: bool = False, fixed: bool = False
) -> HeaderList:
    """What tells caches how long to keep an answer.

    One that is meant for where the client is may not be `shared` with others. `again`: each time it has to be asked
    for again, as the client did who wanted it from the source. `fixed`: it is about an entry of the past.
    """
    if no_cache or (seconds is None and not fixed):
        return (("Cache-Control", "no-cache"),)
    if seconds is None or fixed:
        seconds = MAX_AGE
    scope = "public" if shared else "private"
    return (
        ("Expires", formatdate(int(now) + seconds, usegmt=True)),
        ("Cache-Control", f"{scope}, max-age={seconds}{', immutable' if fixed else ''}"),
    )


def with_etag(request: Request, response: Response, tag: str = "") -> Response:
    """The answer with a tag; or the word that the client's is still good, if it showed the same.

    `tag` is what follows from its octets, where that is known already. Of a long answer it is made by `long_answers`.
    """
    if not needs_etag(response):
        return response
    tag = tag or compute_etag(next(response.values("content-type"), ""), response.body)
    if request.method in SAFE_METHODS and matches_if_none_match(request, tag):
        kept = tuple([each for each in response.headers if each[0].lower() in _NOT_MODIFIED_HEADERS])
        return Response(
            304, (*kept, etag_header(tag)), code=response.code, name=response.name, identity=response.identity
        )
    return response.with_headers(etag_header(tag))


def needs_etag(response: Response) -> bool:
    """Whether an answer gets the tag of its octets: conditions count where all is well only, and some have another."""
    return response.status == 200 and next(response.values("etag"), None) is None


def compute_etag(type_: str, data: bytes) -> str:
    """The tag of an answer: of its octets and their type."""
    digest = hashlib.sha256(type_.encode("latin-1") + b"\0")
    digest.update(data)
    return digest.hexdigest()[:_TAG_DIGITS]


def _remaining(value: Value, now: int) -> int:
    """Seconds for which a value may be kept; none, if nobody knows how its TTL counts."""
    ends = {TtlType.RELATIVE: value.ttl, TtlType.ABSOLUTE: value.ttl - now}
    return ends.get(value.ttl_type, 0)


ALLOWED_METHODS: Final = ("GET", "POST", "HEAD", "PUT", "DELETE")
ALLOWED_HEADERS: Final = (
    "X-Requested-With",
    "Authorization",
    "Origin",
    "Accept",
    "Content-Type",
    "If-Match",
    "If-None-Match",
    "Idempotency-Key",
    "Accept-Datetime",
)
"""What scripts may send: what deployed servers allow; and conditions for changes, keys of requests and times, which
these do not know."""

PREFLIGHT_MAX_AGE: Final = 86_400
"""Seconds for which browsers may keep the answer: a day, as deployed servers say."""

ALLOW_ANY_ORIGIN: Final = ("Access-Control-Allow-Origin", "*")

_SIMPLE_HEADERS: Final = frozenset(
    ("cache-control", "content-language", "content-type", "expires", "last-modified", "pragma", "content-length")
)
_UNEXPOSED_HEADERS: Final = frozenset(("vary", "allow"))
_LOWER_HEADERS: Final = frozenset(name.lower() for name in ALLOWED_HEADERS)
_REQUEST_METHOD: Final = "access-control-request-method"


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what it may ask."""
    return (
        request.method == OPTIONS
        and request.header("origin") is not None
        and request.header(_REQUEST_METHOD) is not None
    )


def preflight_response(request: Request) -> Response:
    """What a browser may ask; nothing is said about what is not on the lists."""
    wanted = [name.strip().lower() for name in request.get_joined("access-control-request-headers").split(",")]
    if request.header(_REQUEST_METHOD) not in ALLOWED_METHODS or not _LOWER_HEADERS.issuperset(filter(None, wanted)):
        return Response(200, (("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers"),))
    return Response(
        200,
        (
            ALLOW_ANY_ORIGIN,
            ("Access-Control-Allow-Methods", ",".join(ALLOWED_METHODS)),
            ("Access-Control-Allow-Headers", ",".join(ALLOWED_HEADERS)),
            ("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE)),
        ),
    )


def cors_headers(request: Request, response: Response, *, exposes: bool) -> HeaderList:
    """What an answer says about scripts; `exposes` whether they may read headers that are not simple ones."""
    if is_preflight(request):
        return ()
    if not exposes or request.header("origin") is None:
        return (ALLOW_ANY_ORIGIN,)
    names = dict.fromkeys([*_exposed_headers(response), "Content-Length"])
    return (ALLOW_ANY_ORIGIN, ("Access-Control-Expose-Headers", ",".join(names)))


def _exposed_headers(response: Response) -> Iterator[str]:
    return (name for name, _ in response.headers if name.lower() not in _SIMPLE_HEADERS | _UNEXPOSED_HEADERS)

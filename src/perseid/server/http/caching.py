"""Caching headers, conditional requests and CORS.

Conditions use entity tags (RFC 9110, 8.8.3 and 13.1). The tag of a page is computed from its bytes; a client that
sends it again gets 304. Redirects have no tag, because HTTP ignores conditions on them.

How long a response may be cached follows from its values (`registry.policy.resolution`). `Expires` is for old
caches, `Cache-Control` for all others. The state after an earlier ledger entry never changes, except when
data is hidden or redacted later, and that must disappear from caches too. It is cached for the same two days,
whatever its TTLs, without revalidation.

CORS (http-api reference, 3.6): scripts of other sites may read public data and request changes. No cookie or
remembered password is involved, as `Access-Control-Allow-Credentials` is never sent. So the origin does not matter,
and `*` works for all sites and caches.
"""

import hashlib
import re
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final

from perseid.registry.commands.conditions import Condition
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME
from perseid.server.native.steps import WorkKind

from .context import RequestContext
from .messages import OPTIONS, SAFE_METHODS, BadRequest, HeaderList, Request, Response

ANY: Final = "*"

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_LIST: Final = re.compile(rf"\s*(?:{_TAG.pattern}\s*)?(?:,\s*(?:{_TAG.pattern}\s*)?)*")


def etag_header(tag: str) -> tuple[str, str]:
    """The `ETag` header for a tag."""
    return "ETag", f'"{tag}"'


def matches_if_none_match(request: Request, tag: str) -> bool:
    """Whether `If-None-Match` names this tag, so that 304 can be returned."""
    text = request.get_joined("if-none-match")
    return text.strip() == ANY or tag in _TAG.findall(text)


def parse_condition(request: Request) -> Condition | None:
    """Parse the precondition of a change; None if there is none. Raises `BadRequest`."""
    if_match, if_none_match = request.get_joined("if-match").strip(), request.get_joined("if-none-match").strip()
    if not if_match and not if_none_match:
        return None
    exists = True if if_match == ANY else False if if_none_match == ANY else None
    return Condition(
        any_of=_parse_tags("If-Match", if_match) if if_match not in ("", ANY) else None,
        none_of=_parse_tags("If-None-Match", if_none_match) if if_none_match not in ("", ANY) else (),
        exists=exists,
    )


def _parse_tags(name: str, text: str) -> tuple[str, ...]:
    if _LIST.fullmatch(text) is None:
        raise BadRequest(f'the header {name} is invalid; it must be * or quoted tags, such as "abc", "def"')
    return tuple(_TAG.findall(text))


PAGE_AGE: Final = 300
"""Seconds for which the server's own pages are cached; they change with the settings."""

STATIC_AGE: Final = 86_400
"""Seconds for which static files are cached."""

_TAG_DIGITS: Final = 32
_NOT_MODIFIED_HEADERS: Final = frozenset(
    ("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary")
)


def cache_headers(
    seconds: int | None, now: float, *, shared: bool = True, no_cache: bool = False, fixed: bool = False
) -> HeaderList:
    """Caching headers for a response that may be cached for some seconds.

    `shared` is False for a response that depends on the client. `no_cache` requires revalidation each time, for
    clients that bypass caches. `fixed` is for an earlier state, which does not change.
    """
    if no_cache or (seconds is None and not fixed):
        return (("Cache-Control", "no-cache"),)
    if seconds is None or fixed:
        seconds = MAX_CACHE_LIFETIME
    scope = "public" if shared else "private"
    return (
        ("Expires", formatdate(int(now) + seconds, usegmt=True)),
        ("Cache-Control", f"{scope}, max-age={seconds}{', immutable' if fixed else ''}"),
    )


def with_etag(request: Request, response: Response, tag: str = "") -> Response:
    """Add a tag to a response, or return 304 if the client has the same tag.

    `tag` is the tag if it is already known. For long responses use `with_etag_in_pool`.
    """
    if not needs_etag(response):
        return response
    tag = tag or compute_etag(next(response.values("content-type"), ""), response.body)
    if request.method in SAFE_METHODS and matches_if_none_match(request, tag):
        headers = tuple([each for each in response.headers if each[0].lower() in _NOT_MODIFIED_HEADERS])
        return Response(
            304, (*headers, etag_header(tag)), code=response.code, name=response.name, identity=response.identity
        )
    return response.with_headers(etag_header(tag))


def needs_etag(response: Response) -> bool:
    """Whether a response gets the tag of its bytes: conditions apply to status 200 only, and some have another tag."""
    return response.status == 200 and next(response.values("etag"), None) is None


def compute_etag(type_: str, data: bytes) -> str:
    """Compute the tag of a response from its bytes and media type."""
    digest = hashlib.sha256(type_.encode("latin-1") + b"\0")
    digest.update(data)
    return digest.hexdigest()[:_TAG_DIGITS]


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
"""Headers that scripts may send: those of deployed servers, plus conditions, idempotency keys and `Accept-Datetime`."""

PREFLIGHT_MAX_AGE: Final = 86_400
"""Seconds for which browsers may cache the preflight response: a day, as in deployed servers."""

ALLOW_ANY_ORIGIN: Final = ("Access-Control-Allow-Origin", "*")

_SIMPLE_HEADERS: Final = frozenset(
    ("cache-control", "content-language", "content-type", "expires", "last-modified", "pragma", "content-length")
)
_UNEXPOSED_HEADERS: Final = frozenset(("vary", "allow"))
_LOWER_HEADERS: Final = frozenset(name.lower() for name in ALLOWED_HEADERS)
_REQUEST_METHOD: Final = "access-control-request-method"


def is_preflight(request: Request) -> bool:
    """Whether a request is a CORS preflight."""
    return (
        request.method == OPTIONS
        and request.header("origin") is not None
        and request.header(_REQUEST_METHOD) is not None
    )


def preflight_response(request: Request) -> Response:
    """Answer a preflight; the response grants nothing if a method or header is not allowed."""
    requested = [name.strip().lower() for name in request.get_joined("access-control-request-headers").split(",")]
    if request.header(_REQUEST_METHOD) not in ALLOWED_METHODS or not _LOWER_HEADERS.issuperset(filter(None, requested)):
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
    """CORS headers of a response; `exposes`: whether scripts may read headers that are not CORS-safelisted."""
    if is_preflight(request):
        return ()
    if not exposes or request.header("origin") is None:
        return (ALLOW_ANY_ORIGIN,)
    names = dict.fromkeys([*_exposed_headers(response), "Content-Length"])
    return (ALLOW_ANY_ORIGIN, ("Access-Control-Expose-Headers", ",".join(names)))


def _exposed_headers(response: Response) -> Iterator[str]:
    return (name for name, _ in response.headers if name.lower() not in _SIMPLE_HEADERS | _UNEXPOSED_HEADERS)


LONG_BODY_BYTES: Final = 65_536
"""Bytes of a body above which its tag is not computed in the event loop; that takes tenths of a millisecond."""


async def with_etag_in_pool(request_context: RequestContext, response: Response, tag: str = "") -> Response:
    """Add a tag to a response, or return 304; see `with_etag`."""
    if tag or len(response.body) <= LONG_BODY_BYTES or not needs_etag(response):
        return with_etag(request_context.request, response, tag)
    return await request_context.do(WorkKind.READ, lambda: with_etag(request_context.request, response))

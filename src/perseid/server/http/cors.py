"""What scripts of other sites may do (http-api reference, 3.6): read what everybody may read, and ask for changes.

No cookie and no remembered password goes with that: `Access-Control-Allow-Credentials` is never sent, so the origin
does not matter and `*` serves all of them, and every cache.
"""

from collections.abc import Iterator
from typing import Final

from .messages import HeaderList, Request, Response
from .methods import OPTIONS

METHODS: Final = ("GET", "POST", "HEAD", "PUT", "DELETE")
HEADERS: Final = (
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

MAX_AGE: Final = 86_400
"""Seconds for which browsers may keep the answer: a day, as deployed servers say."""

EVERYBODY: Final = ("Access-Control-Allow-Origin", "*")

_SIMPLE: Final = frozenset(
    ("cache-control", "content-language", "content-type", "expires", "last-modified", "pragma", "content-length")
)
_NOT_FOR_SCRIPTS: Final = frozenset(("vary", "allow"))
_LOWER_HEADERS: Final = frozenset(name.lower() for name in HEADERS)
_REQUEST_METHOD: Final = "access-control-request-method"


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what it may ask."""
    return (
        request.method == OPTIONS
        and request.header("origin") is not None
        and request.header(_REQUEST_METHOD) is not None
    )


def preflight(request: Request) -> Response:
    """What a browser may ask; nothing is said about what is not on the lists."""
    wanted = [name.strip().lower() for name in request.joined("access-control-request-headers").split(",")]
    if request.header(_REQUEST_METHOD) not in METHODS or not _LOWER_HEADERS.issuperset(filter(None, wanted)):
        return Response(200, (("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers"),))
    return Response(
        200,
        (
            EVERYBODY,
            ("Access-Control-Allow-Methods", ",".join(METHODS)),
            ("Access-Control-Allow-Headers", ",".join(HEADERS)),
            ("Access-Control-Max-Age", str(MAX_AGE)),
        ),
    )


def headers(request: Request, response: Response, *, exposes: bool) -> HeaderList:
    """What an answer says about scripts; `exposes` whether they may read headers that are not simple ones."""
    if is_preflight(request):
        return ()
    if not exposes or request.header("origin") is None:
        return (EVERYBODY,)
    names = dict.fromkeys([*_told(response), "Content-Length"])
    return (EVERYBODY, ("Access-Control-Expose-Headers", ",".join(names)))


def _told(response: Response) -> Iterator[str]:
    return (name for name, _ in response.headers if name.lower() not in _SIMPLE | _NOT_FOR_SCRIPTS)

"""Reverse lookup: finding handles by their values, as an add-on to deployed servers does (http-api reference, 13).

    GET /hrls/handles/?URL=*example.org*&CHECKSUM=abc     ["12345/a", "12345/b"]
    GET /hrls/ping                                        OK

Each parameter is a type and a pattern for its value, with `*` for any characters; a record must match all of them. The
registry decides who can find what (`registry.queries.find`): users who can list the handles of a namespace, and for
private values those who can read them. If an anonymous caller finds nothing, the response is a challenge.

Results are limited. If there may be more, a `Link` header has the URL of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.records.types import URL
from perseid.registry.access import permissions
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.results import Refused
from perseid.server.http import responses
from perseid.server.http.auth.authentication import authenticate
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import BadRequest, Parameters, Response
from perseid.server.http.responses import DEFAULT_FORMAT, NO_STORE, NOT_FOUND
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from .call import Call

HANDLES: Final = b"/hrls/handles"
PING: Final = b"/hrls/ping"

MAX_RESULTS: Final = 10_000
"""Handles in one response: about a megabyte."""

MAX_INLINE_NAMES: Final = 100
"""Handles that are encoded in the event loop; longer lists may take milliseconds, and use a thread."""

MAX_STEPS: Final = 30
"""Registry pages that one request reads: some are empty, and each may take a second."""

MAX_TERMS: Final = 8
"""Terms in one query; each compares every record found by the first."""

WILDCARD: Final = "*"

_RESERVED_PARAMETERS: Final = frozenset(("after", "limit", "page", "prefix"))
"""Parameters that are not types."""


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on one value of a record."""

    type: str
    pattern: str

    @property
    def is_exact(self) -> bool:
        """Whether it has no wildcard."""
        return WILDCARD not in self.pattern

    @property
    def search(self) -> Search:
        """The search for records that may match."""
        if fold(self.type) == URL:
            return Search(url=self.pattern, type=self.type)
        return Search(type=self.type, value=self.pattern.encode("utf-8") if self.is_exact else None)

    def matches_value(self, value: Value) -> bool:
        """Whether a value matches."""
        return fold(value.type) == fold(self.type) and matches(self.pattern, value.data.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class ReverseQuery:
    """A parsed reverse lookup."""

    terms: tuple[Term, ...]
    """The first is searched, the others are compared."""
    prefix: str | None
    after: str | None
    limit: int

    @classmethod
    def of(cls, parameters: Parameters) -> "ReverseQuery":
        """Parse the parameters; raises `BadRequest`."""
        terms = [
            Term(type_, pattern) for type_, pattern in parameters.pairs if type_ and type_ not in _RESERVED_PARAMETERS
        ]
        if not 1 <= len(terms) <= MAX_TERMS:
            raise BadRequest(f"send 1 to {MAX_TERMS} search terms as TYPE=VALUE")
        # An exact value matches the fewest records, a URL pattern some, and a type alone very many.
        terms.sort(key=lambda term: (not term.is_exact, fold(term.type) != URL))
        limit = parameters.number("limit")
        if limit is not None and limit <= 0:
            raise BadRequest("the parameter limit must be a positive number")
        return cls(
            tuple(terms), parameters.first("prefix"), parameters.first("after"), min(limit or MAX_RESULTS, MAX_RESULTS)
        )


async def handle_request(request_context: RequestContext) -> Response:
    """Handle a reverse lookup."""
    path = request_context.request.path.rstrip(b"/")
    if path == PING:
        return Response(200, (("Content-Type", "text/plain;charset=utf-8"), NO_STORE), b"OK")
    call = Call(
        request_context,
        await authenticate(request_context),
        Parameters.parse(request_context.request.query),
        DEFAULT_FORMAT,
    )
    return await call.catching_errors(None, _handle_request(call, path))


async def _handle_request(call: Call, path: bytes) -> Response:
    if call.auth.problem is not None:
        return call.authentication_failed(None)
    if path != HANDLES:
        raise BadRequest("not found; use /hrls/handles/ or /hrls/ping", NOT_FOUND)
    query = ReverseQuery.of(call.parameters)
    results: dict[str, None] = {}
    after = query.after
    for _ in range(MAX_STEPS):
        names, after = await _find_page(call, query, after)
        results |= dict.fromkeys(names)
        if after is None or len(results) >= query.limit:
            break
    if not results and call.is_anonymous:
        reason = "no public results"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, AdviceKind.AUTHENTICATE_TO_SEARCH())
    names = list(results)
    if len(names) <= MAX_INLINE_NAMES:
        body = responses.encode_json(names)
    else:
        body = await call.request_context.do(WorkKind.READ, lambda: responses.encode_json(names))
    more = () if after is None else (("Link", f'<{_next_url(call.parameters, after)}>; rel="next"'),)
    return Response(
        200, (DEFAULT_FORMAT.content_type, NO_STORE, *more), body, code=int(ResponseCode.SUCCESS), identity=call.named
    )


async def _find_page(call: Call, query: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    return await call.read(lambda context: _find_names(context, query, after))


def _find_names(context: Context, query: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    """Find a page of handles, and the cursor of the next; None at the end."""
    first, *others = query.terms
    search = replace(first.search, prefix=query.prefix)
    page = find(context.snapshot, context.identity, search, after, min(query.limit, MAX_PAGE))
    terms = others if first.is_exact or fold(first.type) == URL else query.terms
    names = [item.handle for item in page.items if not terms or _matches_terms(context, item.handle, terms)]
    return names, page.following


def _matches_terms(context: Context, name: str, terms: Sequence[Term]) -> bool:
    """Whether values of a record that the caller can read match all terms."""
    handle = Handle.parse_lenient(name)
    values = context.snapshot.stored(handle).values
    public = [value for value in values if value.is_public]
    missing = [term for term in terms if not any(map(term.matches_value, public))]
    if not missing:
        return True
    private = [value for value in values if not value.is_public and Permission.ADMIN_READ in value.permissions]
    if not all(any(map(term.matches_value, private)) for term in missing):
        return False
    return context.is_allowed(permissions.read(handle))


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with `*` for any characters; in linear time."""
    first, *parts = pattern.split(WILDCARD)
    if not parts:
        return text == first
    *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    start, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def _next_url(parameters: Parameters, after: str) -> str:
    pairs = [pair for pair in parameters.pairs if pair[0] != "after"]
    return f"{HANDLES.decode()}/?{urlencode([*pairs, ('after', after)])}"

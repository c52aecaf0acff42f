"""Finding names by what their records hold, as an add-on to deployed servers does (http-api reference, 13).

    GET /hrls/handles/?URL=*example.org*&CHECKSUM=abc     ["12345/a", "12345/b"]
    GET /hrls/ping                                        OK

Each parameter is a type and what a value of that type is, with `*` for any characters; all of them have to hold of a
record. Who may find what is the registry's to say (`registry.finding`): whoever may list the names of a namespace, and
of values that are not public whoever may read them. Where that is nobody in particular, and there is nothing to find
for everybody, whoever asks is asked who they are.

What is found is given up to a limit. If there may be more, a `Link` header says where the rest is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.types import URL
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.context import Context
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.history import MAX_PAGE
from perseid.registry.results import Refused
from perseid.server.http import responses
from perseid.server.http.auth.authentication import authenticate
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import Response
from perseid.server.http.responses import DEFAULT_FORMAT, NO_STORE, NOT_FOUND
from perseid.server.http.targets import BadRequest, Parameters
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from .call import Call

HANDLES: Final = b"/hrls/handles"
PING: Final = b"/hrls/ping"

MAX_RESULTS: Final = 10_000
"""Names in one answer: about a megabyte."""

MAX_INLINE_NAMES: Final = 100
"""Names that are written in the event loop; more may take milliseconds, and are written in a thread."""

MAX_STEPS: Final = 30
"""Pages of the registry that one request goes through: some are empty, and each may take a second."""

MAX_TERMS: Final = 8
"""Types in one question; each costs a look at every record that is found by the first."""

WILDCARD: Final = "*"

_RESERVED_PARAMETERS: Final = frozenset(("after", "limit", "page", "prefix"))
"""Parameters that are about the answer, and no types."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one value of a record has to be."""

    type: str
    pattern: str

    @property
    def is_exact(self) -> bool:
        """Whether there is nothing open in it."""
        return WILDCARD not in self.pattern

    @property
    def search(self) -> Search:
        """What finds the records that it may hold of."""
        if fold(self.type) == URL:
            return Search(url=self.pattern, type=self.type)
        return Search(type=self.type, value=self.pattern.encode("utf-8") if self.is_exact else None)

    def matches_value(self, value: Value) -> bool:
        """Whether a value is so."""
        return fold(value.type) == fold(self.type) and matches(self.pattern, value.data.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class ReverseQuery:
    """What somebody wants to find."""

    terms: tuple[Term, ...]
    """The first is looked up, the others are compared."""
    prefix: str | None
    after: str | None
    limit: int

    @classmethod
    def of(cls, parameters: Parameters) -> "ReverseQuery":
        """The question that parameters ask; raises `Malformed`."""
        terms = [
            Term(type_, pattern) for type_, pattern in parameters.pairs if type_ and type_ not in _RESERVED_PARAMETERS
        ]
        if not 1 <= len(terms) <= MAX_TERMS:
            raise BadRequest(f"name what is looked for as TYPE=VALUE, from once to {MAX_TERMS} times")
        # An exact value leads to the fewest records, a URL to some, and a type alone to very many.
        terms.sort(key=lambda term: (not term.is_exact, fold(term.type) != URL))
        limit = parameters.number("limit")
        if limit is not None and limit <= 0:
            raise BadRequest("the parameter limit should be a positive number")
        return cls(
            tuple(terms), parameters.first("prefix"), parameters.first("after"), min(limit or MAX_RESULTS, MAX_RESULTS)
        )


async def handle_request(request_context: RequestContext) -> Response:
    """Answer what is asked about names."""
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
        raise BadRequest("there are /hrls/handles/ and /hrls/ping here", NOT_FOUND)
    question = ReverseQuery.of(call.parameters)
    found: dict[str, None] = {}
    after = question.after
    for _ in range(MAX_STEPS):
        names, after = await _find_page(call, question, after)
        found |= dict.fromkeys(names)
        if after is None or len(found) >= question.limit:
            break
    if not found and call.is_anonymous:
        reason = "nothing is found that everybody may find"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "say who you are: your administrators may find more")
    names = list(found)
    if len(names) <= MAX_INLINE_NAMES:
        body = responses.encode_json(names)
    else:
        body = await call.request_context.do(WorkKind.READ, lambda: responses.encode_json(names))
    more = () if after is None else (("Link", f'<{_next_url(call.parameters, after)}>; rel="next"'),)
    return Response(
        200, (DEFAULT_FORMAT.content_type, NO_STORE, *more), body, code=int(ResponseCode.SUCCESS), identity=call.named
    )


async def _find_page(call: Call, question: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    return await call.read(lambda context: _find_names(context, question, after))


def _find_names(context: Context, question: ReverseQuery, after: str | None) -> tuple[list[str], str | None]:
    """Some of the names, and where to go on; None at the end."""
    first, *others = question.terms
    search = replace(first.search, prefix=question.prefix)
    page = find(context.snapshot, context.identity, search, after, min(question.limit, MAX_PAGE))
    needed = others if first.is_exact or fold(first.type) == URL else question.terms
    names = [found.handle for found in page.items if not needed or _matches_terms(context, found.handle, needed)]
    return names, page.following


def _matches_terms(context: Context, name: str, terms: Sequence[Term]) -> bool:
    """Whether all terms hold of values of a record that whoever asks may read."""
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
    """Whether a text is as a pattern says, with `*` for any characters; in time that grows with the text alone."""
    first, *parts = pattern.split(WILDCARD)
    if not parts:
        return text == first
    *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _next_url(parameters: Parameters, after: str) -> str:
    kept = [pair for pair in parameters.pairs if pair[0] != "after"]
    return f"{HANDLES.decode()}/?{urlencode([*kept, ('after', after)])}"

"""One call of the HTTP API: a Starlette request with its identity and execution, and helpers for routes.

Execution is shared with the compatible API (`compat.call.Call`): every call is a registry command, reads included,
decided under the guard of the identity. `ApiCall` adds pages (`after`, `page`) and idempotency keys (`create`, `once`).
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request as StarletteRequest
from starlette.types import Receive, Scope, Send

from perseid.ledger.log.requests import StoredResponse
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, Resolver, parse_user_input
from perseid.records.data_types import check_data_length, data_from_text
from perseid.records.encoding import json_type_name
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.record import ValueRef, ref_from_text
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.composition import Conditional
from perseid.registry.commands.records import PartialValue, Ttl, require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.idempotency import Executed, IdempotencyKeys, InProgress, KeyReused, NewClaim, Replayed
from perseid.registry.identity import Identity
from perseid.registry.queries.history import keep_history_note
from perseid.registry.registry import Registry
from perseid.registry.responses import to_changed
from perseid.registry.results import ChangeResult
from perseid.registry.snapshot import Snapshot
from perseid.schema.common import AlreadyDone
from perseid.schema.records import CreatedRecord, Data, RecordChanged, ValueInput, WarningInfo
from perseid.server.http import negotiation
from perseid.server.http.compat.call import Call
from perseid.server.http.context import INTERFACE, HttpSettings, RequestContext
from perseid.server.http.messages import HeaderList, Parameters, Request
from perseid.server.http.resolver.paths import absolute_url, get_resolvers
from perseid.server.http.responses import RETRY_SECONDS
from perseid.server.native.work import WorkKind

from .problems import ApiError
from .routing import BASE, EmptyQuery, Reply, Route
from .validation import InvalidParameter, decode_segment, locate_name_error

KEY_HEADER: Final = "idempotency-key"
"""Header with the idempotency key. The response is stored for 24 hours and replayed for the same key."""

REPLAYED_HEADER: Final = ("Idempotency-Replayed", "true")
"""Header of a replayed response."""

LARGE_BODY: Final = 8_192
"""Bytes. Larger bodies are parsed in a pool: 200 values take some milliseconds."""

T = TypeVar("T")
B = TypeVar("B")
P = TypeVar("P", bound="Page")

Outcome = Executed | Replayed | KeyReused | InProgress
Replay = Callable[[Snapshot, int, int], Reply[B] | None]

CURSOR_PARAMETER: Final = "cursor"
_SAFE_CHARACTERS: Final = "/%!$&'()*+,;=:@~"  # not escaped again in the URL of the next page


class Page(Protocol):
    """The body of a page."""

    @property
    def next(self) -> str | None:
        """The cursor of the next page."""


class _StoredReply(msgspec.Struct, array_like=True, frozen=True):
    """A response as stored with its idempotency key. A positional array: do not reorder the fields."""

    headers: tuple[tuple[str, str], ...]
    media_type: str
    name: str
    body: bytes


class ApiCall(StarletteRequest):
    """One call of the API."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        """Raise `BadRequest` if a path parameter cannot be decoded."""
        super().__init__(scope, receive, send)
        self.route = route
        self.call: Call = scope["state"]["call"]
        self.names = {name: decode_segment(text.encode("latin-1")) for name, text in self.path_params.items()}
        """The path parameters, decoded."""
        self.query: msgspec.Struct = EmptyQuery()

    # The request

    @property
    def request_context(self) -> RequestContext:
        return self.call.request_context

    @property
    def request(self) -> Request:
        """The request of the front."""
        return self.call.request_context.request

    @property
    def registry(self) -> Registry:
        """For use inside `do` only; everything else goes through `read` and `change`."""
        return self.call.request_context.server.registry

    @property
    def identity(self) -> Identity:
        return self.call.identity

    @property
    def settings(self) -> HttpSettings:
        return self.call.request_context.server.settings

    @property
    def resolvers(self) -> list[Resolver]:
        """The resolvers whose URLs are accepted."""
        return [*get_resolvers(self.settings), *KNOWN_RESOLVERS]

    def now(self) -> int:
        """Microseconds since 1970, by the ledger's clock."""
        return self.registry.ledger.log.clock.now()

    def handle(self, parameter: str = "handle", *, new: bool = False) -> Handle:
        """Parse the handle in a path parameter; raises as `parse_handle` does."""
        return self.parse_handle(self.names[parameter], parameter, new=new)

    def parse_handle(self, text: str, where: str = "$.handle", *, new: bool = False) -> Handle:
        """Parse a handle of the request; raises `InvalidNameParameter`.

        With `new` it must be a handle that can be registered. Otherwise a handle that is too long is not found (H9).
        """
        with locate_name_error(where, text, new=new):
            return Handle.parse(text) if new else Handle.parse_lenient(text)

    def parse_reference(self, text: str, where: str, *, legal: bool = False) -> Handle:
        """Parse a handle that will be stored in a record, in any form; raises `InvalidNameParameter`.

        Another service may host it, so it is not looked up. A query or fragment is refused, because it would be stored
        permanently. With `legal` it must be a handle that can be registered here.
        """
        with locate_name_error(where, text, new=legal):
            reference = parse_user_input(text, self.resolvers, for_lookup=not legal)
        if reference.tail:
            message = f"{quote_text(reference.tail)} is a query or fragment and cannot be stored"
            raise InvalidParameter(message, where, f"Use {display_name(reference.handle)}")
        return reference.handle

    # Execution

    async def read(self, read: Callable[[Context], T], about: object = "", *, public: bool = False) -> T:
        """Read in one state of the ledger; `about` is the handle concerned.

        The reply is built there too, because encoding a large record takes time. `public` means that it is the same for
        all callers: anonymous ones get it from the answers view, also without the database.
        """
        return await self.call.read(read, str(about), public=public and self.call.is_anonymous)

    async def change(self, command: Command[T], about: object = "", note: str = "") -> T:
        """Execute a command that may change records."""
        return await self.call.change(lambda _: command, str(about), note)

    async def do(self, kind: WorkKind, work: Callable[[], T]) -> T:
        """Run work in a pool that needs no permissions, or checks them itself."""
        return await self.request_context.do(kind, work)

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """Process the body; a large one in a pool, so that it does not block the event loop."""
        return await self.do(WorkKind.READ, work) if len(self.request.body) > LARGE_BODY else work()

    async def create(
        self,
        make: Callable[[int | None], Command[T]],
        respond: Callable[[T], Reply[B]],
        about: object = "",
        note: str = "",
        replay: Replay[B] | None = None,
    ) -> Reply[B]:
        """Execute a command of one commit that creates something: once per idempotency key.

        `make` builds the command; its argument is the time to wait for, as in `native.decisions`, or None. `respond`
        builds the response, also to a repeated request. `replay` builds it again from the snapshot, the first entry and
        the number of entries, if the stored result was dropped.
        """
        key = self._key()
        if key is None:
            return respond(await self.call.change(make, str(about), note))
        keys, identity, digest = self._keys, self.identity, self._digest()

        def to_stored(result: T) -> StoredResponse:
            return _store_reply(respond(result))

        def once(command: Command[T]) -> Outcome:
            with keys.claim(identity, key, digest, to_stored) as claim:
                if isinstance(claim, NewClaim):
                    return keys.execute(claim, command, identity, INTERFACE, to_stored, note)
                return claim

        async def once_in_loop(command: Command[T]) -> Outcome:
            with keys.claim(identity, key, digest, to_stored) as claim:
                if isinstance(claim, NewClaim):
                    return await keys.execute_in_loop(claim, command, identity, INTERFACE, to_stored, note)
                return claim

        outcome = await self.call.execute_with(make, str(about), once, once_in_loop)
        if replay is not None and isinstance(outcome, Replayed) and outcome.body is None and outcome.count:
            repeated = await self._replay(replay, outcome.seq, outcome.count)
            if repeated is not None:
                repeated.add_headers(REPLAYED_HEADER)
                return repeated
        return _outcome_reply(outcome)

    async def _replay(self, replay: Replay[B], seq: int, count: int) -> Reply[B] | None:
        registry = self.registry

        def read() -> Reply[B] | None:
            with registry.snapshot() as snapshot:
                return replay(snapshot, seq, count)

        return await self.do(WorkKind.READ, read)

    async def once(self, work: Callable[[], Awaitable[Reply[B]]]) -> Reply[B]:
        """Run work of several commits: once per idempotency key, unless it is interrupted.

        An interruption releases the key, so the work must be safe to repeat.
        """
        key = self._key()
        if key is None:
            return await work()
        self.call.check_can_change()
        keys, identity, digest = self._keys, self.identity, self._digest()
        with ExitStack() as stack:
            claim = await self.do(WorkKind.READ, lambda: stack.enter_context(keys.claim(identity, key, digest)))
            if not isinstance(claim, NewClaim):
                return _outcome_reply(claim)
            stored = _store_reply(await work())
            return _outcome_reply(await self.do(WorkKind.WRITE, lambda: keys.keep(claim, stored)))

    @property
    def _keys(self) -> IdempotencyKeys:
        return self.request_context.server.api.keys(self.registry)

    def _key(self) -> bytes | None:
        """Return the idempotency key of the request; None if it has none."""
        values = self.request.all(KEY_HEADER)
        if not self.route.creates or not values:
            return None
        text = values[0].strip()
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]  # the form of the IETF draft
        if len(values) > 1 or not text:
            advice = "Send one Idempotency-Key header with a random key, such as a UUID"
            raise InvalidParameter("Idempotency-Key must be one non-empty string", "Idempotency-Key", advice)
        return text.encode("latin-1", "replace")

    def _digest(self) -> bytes:
        request = self.request
        parts = (request.method.encode(), request.target, request.body)
        return hashlib.sha256(b"".join([hashlib.sha256(part).digest() for part in parts])).digest()

    # Pages

    def after(self, type_: type[T]) -> T | None:
        """Decrypt the cursor of the query; None on the first page. Raises `InvalidCursor`. May wait for the ledger."""
        cursor = getattr(self.query, CURSOR_PARAMETER)
        if not cursor:
            return None
        return self.request_context.server.api.cursors(self.registry).open(cursor, self._cursor_context(), type_)

    def seal(self, position: object) -> str | None:
        """Encrypt the position of the next page; None if there is none. May wait for the ledger."""
        if position is None:
            return None
        return self.request_context.server.api.cursors(self.registry).seal(position, self._cursor_context())

    def page(self, content: P, about: object = "") -> Reply[P]:
        """Build the reply of a page, with the URL of the next one."""
        reply = Reply(content, name=str(about))
        self.add_next_page(reply, content.next)
        return reply

    def add_next_page(self, reply: Reply[Any], cursor: str | None) -> None:
        """Add the URL of the next page, if there is one."""
        if cursor is None:
            return
        pairs = [each for each in Parameters.parse(self.request.query).pairs if each[0] != CURSOR_PARAMETER]
        path = quote(self.request.path, safe=_SAFE_CHARACTERS)
        url = f"{path}?{urlencode([*pairs, (CURSOR_PARAMETER, cursor)])}"
        reply.add_headers(("Link", f'<{absolute_url(url, self.settings)}>; rel="next"'))

    def _cursor_context(self) -> bytes:
        """A cursor is bound to the route, the path and query parameters, and the identity."""
        query = msgspec.to_builtins(self.query)
        criteria = {name: value for name, value in query.items() if name not in ("cursor", "limit")}
        return msgspec.msgpack.encode((self.route.operation, dict(self.names), criteria, str(self.identity)))


def _store_reply(reply: Reply[Any]) -> StoredResponse:
    stored = _StoredReply(reply.fields, str(reply.media_type), reply.name, bytes(reply.body))
    return StoredResponse(reply.status_code, msgspec.msgpack.encode(stored))


def _outcome_reply(outcome: Outcome) -> Reply[Any]:
    match outcome:
        case Executed():
            return _load_reply(outcome.answer.status, outcome.answer.body)
        case Replayed(body=None):
            return Reply(AlreadyDone(outcome.seq, outcome.count), outcome.status, (REPLAYED_HEADER,))
        case Replayed():
            return _load_reply(outcome.status, outcome.body or b"", REPLAYED_HEADER)
        case KeyReused():
            advice = "Use a new key for every new request; repeat a request with its own key"
            raise ApiError("idempotency-key-reused", "A different request used this Idempotency-Key", advice)
        case InProgress():
            retry = (("Retry-After", str(RETRY_SECONDS)),)
            detail, advice = "A request with this Idempotency-Key is in progress", f"Retry in {RETRY_SECONDS} s"
            raise ApiError("in-progress", detail, advice, headers=retry)


def _load_reply(status: int, data: bytes, *more: tuple[str, str]) -> Reply[Any]:
    stored = msgspec.msgpack.decode(data, type=_StoredReply)
    headers: HeaderList = (*stored.headers, *more)
    return Reply(stored.body, status, headers, stored.media_type, name=stored.name)


CREATED: Final = 201


@dataclass(frozen=True, slots=True)
class RequireIdentity(Generic[T]):
    """A command that requires an identity before it reveals whether a handle is free."""

    command: Command[T]
    action: str

    def decide(self, context: Context) -> Plan[T]:
        require_identity(context, self.action)
        return context.decide(self.command)


def with_condition(call: ApiCall, command: Command[T], handle: Handle) -> Command[T]:
    """Add the `If-Match` or `If-None-Match` condition of the request to a command; raises `BadRequest`."""
    condition = negotiation.parse_condition(call.request)
    return command if condition is None else Conditional(command, handle, condition)


async def change_record(
    call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str, *, keep_history: bool = False
) -> Reply[RecordChanged]:
    """Change a record under the conditions of the request, and build the reply."""
    note = keep_history_note(note) if keep_history else note
    return to_reply(await call.change(with_condition(call, command, handle), handle, note))


def to_reply(result: ChangeResult) -> Reply[RecordChanged]:
    """Build the reply to a change."""
    return changed_reply(to_changed(result))


def changed_reply(changed: RecordChanged) -> Reply[RecordChanged]:
    """Build the reply to a change from its response."""
    return Reply(changed, name=changed.handle)


def location_header(handle: str) -> tuple[str, str]:
    """Build the `Location` header of a new record."""
    # `quote` is much faster for a text in which nothing has to be escaped, as in most parts of a handle.
    return "Location", f"{BASE}/handles/{'%2F'.join([quote(part, safe='') for part in handle.split('/')])}"


def replay_handles(respond: Callable[[Sequence[str], int], Reply[B]]) -> Replay[B]:
    """Build a reply again from the handles of the entries and the first entry."""

    def replay(snapshot: Snapshot, seq: int, count: int) -> Reply[B]:
        return respond([snapshot.reader.entry(number).handle for number in range(seq, seq + count)], seq)

    return replay


async def execute_create(
    call: ApiCall, command: Command[ChangeResult], handle: Handle, note: str
) -> Reply[CreatedRecord]:
    """Create a record, once per idempotency key, and build the reply."""

    def respond(name: str, seq: int, warnings: tuple[WarningInfo, ...] = ()) -> Reply[CreatedRecord]:
        return Reply(CreatedRecord(name, seq, warnings), CREATED, (location_header(name),), name=name)

    guarded = RequireIdentity(command, f"create {display_name(handle)}")
    return await call.create(
        lambda _: guarded,
        lambda created: respond(str(created.handle), created.seq, created.warnings),
        handle,
        note,
        replay_handles(lambda handles, seq: respond(handles[0], seq)),
    )


# Requests


_TEXT_FORMATS: Final = frozenset(("string", "base64", "hex"))
"""Formats whose value is a string."""


def parse_resolver(text: str) -> Resolver:
    """Parse the parameter `resolver`; raises `InvalidParameter`."""
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        advice = "Use a URL such as http://example.org/hdl"
        raise InvalidParameter(problem.message, "resolver", advice) from problem


def parse_value_ref(text: str, where: str) -> ValueRef:
    """Parse a key or group, `INDEX:HANDLE`; raises `InvalidParameter`."""
    try:
        reference = ref_from_text(text)
        Handle.parse(reference.handle)
    except (InvalidData, InvalidName) as problem:
        raise InvalidParameter(str(problem), where, "Use INDEX:HANDLE, as in 300:0.NA/12345") from problem
    return reference


def parse_values(
    values: Iterable[ValueInput], where: str = "$.values", *, with_timestamps: bool = False
) -> tuple[PartialValue, ...]:
    """Parse the values of a request; raises `InvalidParameter` with their path."""
    return tuple([_parse_value(value, f"{where}[{number}]", with_timestamps) for number, value in enumerate(values)])


def _check_data(data: str | Data, where: str) -> None:
    """Refuse non-string data in a string format: its meaning would be a guess."""
    if isinstance(data, Data) and data.format.lower() in _TEXT_FORMATS and not isinstance(data.value, str):
        message = f"Data in the format {data.format} must be a string, not {json_type_name(data.value)}"
        raise InvalidParameter(message, f"{where}.data.value", "Write it as a string, in quotes")


def _parse_value(item: ValueInput, where: str, with_timestamp: bool) -> PartialValue:
    _check_data(item.data, where)
    plain = {name: member for name, member in msgspec.to_builtins(item).items() if member is not None}
    try:
        if item.references is not None:
            plain["references"] = [*plain["references"]]
        data = None
        if isinstance(item.data, str):
            data, plain["data"] = check_data_length(data_from_text(item.type, item.data)), ""
        if not with_timestamp:
            plain.pop("timestamp", None)
        value = value_from_json({"index": 1, **plain})
    except InvalidData as problem:
        advice = "See /docs/schemas#ValueInput"
        raise InvalidParameter(f"Invalid value: {problem}", where, advice) from problem
    return PartialValue(
        value.type,
        value.data if data is None else data,
        item.index,
        None if item.permissions is None else value.permissions,
        None if item.ttl is None else Ttl(value.ttl, value.ttl_type),
        None if item.references is None else value.references,
        value.timestamp,
    )

"""One call of our own API: who asks, what for, and how it is carried out.

Carrying out is that of the compatible API (`api_call.Call`): every call is an operation of the registry, reading ones
too, decided under the guard of whoever asks. What is new here is that a request says all it says in types (`taking`),
that lists have pages (`after`, `cursor`), that what is read is also written out where it was read (`tell`), and that
creating calls may carry a key by which they are done once (`create`, `once`).
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import msgspec

from perseid.ledger.log.requests import StoredResponse
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, parse_user_input
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Command, Context
from perseid.registry.idempotency import Executed, IdempotencyKeys, InProgress, KeyReused, NewClaim, Replayed
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.server.http.auth.authentication import AuthResult
from perseid.server.http.caching import compute_etag
from perseid.server.http.compat.call import Call
from perseid.server.http.context import INTERFACE, HttpSettings, RequestContext
from perseid.server.http.messages import HeaderList, Request
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.responses import DEFAULT_FORMAT, RETRY_SECONDS
from perseid.server.http.targets import Parameters
from perseid.server.native.decisions import ReadCommand
from perseid.server.native.operations import check_partition
from perseid.server.native.steps import WorkKind

from .problems import ApiError
from .routing import Reply, Route
from .structures import AlreadyDone, Paging
from .validation import InvalidParameter, locate_name_error

KEY_HEADER: Final = "idempotency-key"
"""The header with the key of a request, which is kept for a day: who repeats it gets the same answer."""

REPLAYED_HEADER: Final = ("Idempotency-Replayed", "true")
"""What the answer says then."""

LARGE_BODY: Final = 8_192
"""Octets of a body from which on making something of it takes so long that it is not done in the event loop: of two
hundred values, say, some milliseconds."""

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
R = TypeVar("R")

Outcome = Executed | Replayed | KeyReused | InProgress


class _StoredReply(msgspec.Struct, array_like=True, frozen=True):
    """An answer as it is kept with its key."""

    headers: tuple[tuple[str, str], ...]
    media_type: str
    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A call of the API."""

    call: Call
    route: Route
    names: Mapping[str, str]
    """The parameters of the path, decoded."""
    query: msgspec.Struct
    body: object

    # What was asked

    @property
    def request_context(self) -> RequestContext:
        return self.call.request_context

    @property
    def request(self) -> Request:
        return self.call.request_context.request

    @property
    def registry(self) -> Registry:
        """For what is handed to `do`; everything else goes through `read`, `look` and `change`."""
        return self.call.request_context.place.registry

    @property
    def identity(self) -> Identity:
        return self.call.identity

    @property
    def settings(self) -> HttpSettings:
        return self.call.request_context.place.settings

    def asked(self, type_: type[S]) -> S:
        """The parameters of the query, as the structure that the route names."""
        assert isinstance(self.query, type_)  # noqa: S101 - a route of ours names another type than its function
        return self.query

    def payload(self, type_: type[T]) -> T:
        """The body, as the type that the route names."""
        assert isinstance(self.body, type_)  # noqa: S101 - as above
        return self.body

    def handle(self, parameter: str = "handle", *, new: bool = False) -> Handle:
        """The handle that a parameter of the path is; raises as `named` does. A `new` one has to be legal here."""
        return self.parse_handle(self.names[parameter], parameter, new=new)

    def parse_handle(self, text: str, where: str = "$.handle", *, new: bool = False) -> Handle:
        """A handle that stands somewhere else in the request; raises `Misnamed`, or `Refused` on another server.

        One that is too long for any server to have is not found (H9), unless it is to be made.
        """
        with locate_name_error(where, text, new=new):
            handle = Handle.parse(text) if new else Handle.parse_lenient(text)
        check_partition(handle.to_bytes(), self.request_context.place)
        return handle

    def parse_reference(self, text: str, where: str, *, legal: bool = False) -> Handle:
        """A name that is written down in a record, in any form in which people write names; raises `Misnamed`.

        It may be another service's, and then nobody looks it up here: what is no part of it would stay there for ever.
        A `legal` one could be registered here.
        """
        resolvers = [*get_resolvers(self.settings), *KNOWN_RESOLVERS]
        with locate_name_error(where, text, new=legal):
            found = parse_user_input(text, resolvers, for_lookup=not legal)
        if found.tail:
            message = f"{quote_text(found.tail)} is a query or fragment, which belongs to a look-up"
            raise InvalidParameter(message, where, f"name {display_name(found.handle)} alone")
        return found.handle

    # Doing

    async def read(self, read: Callable[[Context], T], about: object = "") -> T:
        """Read something for whoever asks, in one state of the ledger; `about` is the name that it is about."""
        return await self.call.read(read, str(about))

    async def respond(self, read: Callable[[Context], T], respond: Callable[[T], Reply], about: object = "") -> Reply:
        """Answer with something that is read for whoever asks.

        `tell` makes the answer of it, in the thread in which it was read, and there it is written out. Records may be
        large: that takes long, and the event loop has others to serve.
        """
        return await self.call.told(ReadCommand(read), str(about), lambda found: encode_reply(respond(found)))

    async def run_read(self, operation: Command[T], about: object = "") -> T:
        """Carry out an operation that changes nothing."""
        return await self.call.run_read(operation, str(about))

    async def change(self, operation: Command[T], about: object = "", note: str = "") -> T:
        """Carry out an operation that may change something."""
        return await self.call.change(lambda _: operation, str(about), note)

    async def change_when(self, make: Callable[[int | None], Command[T]], about: object = "", note: str = "") -> T:
        """The same, where a name may not be made yet; `make` is as in `carry_out` of `native_deciding`."""
        return await self.call.change(make, str(about), note)

    async def do(self, kind: WorkKind, work: Callable[[], T]) -> T:
        """Have something else done in a pool: what needs no rights, or looks after them itself."""
        return await self.request_context.do(kind, work)

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """What is made of a body: of a long one in a pool, so that nobody else waits for it."""
        return await self.do(WorkKind.READ, work) if len(self.request.body) > LARGE_BODY else work()

    async def create(
        self,
        make: Callable[[int | None], Command[T]],
        respond: Callable[[T], Reply],
        about: object = "",
        note: str = "",
        again: Callable[[int, int], Reply] | None = None,
    ) -> Reply:
        """Carry out an operation of one commit that makes something new: once, if the request carries a key.

        `make` is as in `carry_out` of `native_deciding`; where there is no waiting, `lambda _: operation`. `tell` makes
        the answer of the result, while others cannot write, so it should be quick. `again` makes it of the first entry
        and the number of entries, where a long answer was not kept.
        """
        key = self._key()
        if key is None:
            return respond(await self.call.change(make, str(about), note))
        keys, identity, digest = self._keys, self.identity, self._digest()

        def told(result: T) -> StoredResponse:
            return _store_reply(respond(result))

        def once(operation: Command[T]) -> Outcome:
            with keys.claim(identity, key, digest) as claim:
                if isinstance(claim, NewClaim):
                    return keys.execute(claim, operation, identity, INTERFACE, told, note)
                return claim

        return _outcome_reply(await self.call.execute_with(make, str(about), once), again)

    async def once(self, work: Callable[[], Awaitable[Reply]]) -> Reply:
        """Do something that takes several commits: once, if the request carries a key and is not interrupted.

        Whoever is interrupted leaves the key free, so it should bear to be asked for again.
        """
        key = self._key()
        if key is None:
            return await work()
        self.call.check_can_change()
        keys, identity, digest = self._keys, self.identity, self._digest()
        with ExitStack() as stack:
            claim = await self.do(WorkKind.READ, lambda: stack.enter_context(keys.claim(identity, key, digest)))
            if not isinstance(claim, NewClaim):
                return _outcome_reply(claim, None)
            stored = _store_reply(await work())
            return _outcome_reply(await self.do(WorkKind.WRITE, lambda: keys.keep(claim, stored)), None)

    @property
    def _keys(self) -> IdempotencyKeys:
        return self.request_context.place.api.keys(self.registry)

    def _key(self) -> bytes | None:
        """The key of a creating request; None if it has none."""
        values = self.request.all(KEY_HEADER)
        if not self.route.creates or not values:
            return None
        text = values[0].strip()
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]  # as the draft of the IETF writes it
        if len(values) > 1 or not text:
            raise InvalidParameter("Idempotency-Key is one text that is not empty, such as a UUID", "Idempotency-Key")
        return text.encode("latin-1", "replace")

    def _digest(self) -> bytes:
        request = self.request
        parts = (request.method.encode(), request.target, request.body)
        return hashlib.sha256(b"".join([hashlib.sha256(part).digest() for part in parts])).digest()

    # Pages

    async def after(self, type_: type[T]) -> T | None:
        """The place that the cursor of the query stands for; None at the first page. Raises `InvalidCursor`."""
        cursor = self.asked(Paging).cursor
        if not cursor:
            return None
        seal = await self.do(WorkKind.READ, lambda: self.request_context.place.api.cursors(self.registry))
        return seal.open(cursor, self._list(), type_)

    async def cursor(self, place: object) -> str | None:
        """The cursor for where the next page begins, a plain object; None if there is none. For `Reply.next` too."""
        return None if place is None else await self.do(WorkKind.READ, lambda: self.seal(place))

    def seal(self, place: object) -> str | None:
        """The same for what is done in a pool already: it may wait for the ledger."""
        if place is None:
            return None
        return self.request_context.place.api.cursors(self.registry).seal(place, self._list())

    def _list(self) -> bytes:
        """What a cursor belongs to: a path, what was asked for there, and who asked."""
        asked = msgspec.to_builtins(self.query)
        wanted = {name: value for name, value in asked.items() if name not in ("cursor", "limit")}
        return msgspec.msgpack.encode((self.route.operation, dict(self.names), wanted, str(self.identity)))


def make_call(request_context: RequestContext, auth: AuthResult) -> Call:
    """What carries out calls for whoever asks."""
    return Call(request_context, auth, Parameters(), DEFAULT_FORMAT)


def encode_body(reply: Reply) -> bytes:
    """The body of an answer."""
    if isinstance(reply.body, bytes):
        return reply.body
    return b"" if reply.body is None else msgspec.json.encode(reply.body)


def encode_reply(reply: Reply) -> Reply:
    """An answer as octets, with their tag unless it has one that follows from something else."""
    if reply.body is None:
        return reply
    data = encode_body(reply)
    is_tagged = any(name.lower() == "etag" for name, _ in reply.headers)
    return replace(reply, body=data, tag="" if is_tagged else compute_etag(reply.media_type, data))


def _store_reply(reply: Reply) -> StoredResponse:
    stored = _StoredReply(reply.headers, reply.media_type, reply.name, encode_body(reply))
    return StoredResponse(reply.status, msgspec.msgpack.encode(stored))


def _outcome_reply(outcome: Outcome, again: Callable[[int, int], Reply] | None) -> Reply:
    """The answer to a request that carries a key."""
    match outcome:
        case Executed():
            return _load_reply(outcome.answer.status, outcome.answer.body)
        case Replayed(body=None):
            if again is not None:
                return again(outcome.seq, outcome.count)
            return Reply(AlreadyDone(outcome.seq, outcome.count), outcome.status, (REPLAYED_HEADER,))
        case Replayed():
            return _load_reply(outcome.status, outcome.body or b"", REPLAYED_HEADER)
        case KeyReused():
            raise ApiError("key-reused", "another request with this Idempotency-Key was carried out before")
        case InProgress():
            retry = (("Retry-After", str(RETRY_SECONDS)),)
            raise ApiError("in-progress", "a request with this Idempotency-Key is being carried out", headers=retry)


def _load_reply(status: int, data: bytes, *more: tuple[str, str]) -> Reply:
    stored = msgspec.msgpack.decode(data, type=_StoredReply)
    headers: HeaderList = (*stored.headers, *more)
    return Reply(stored.body, status, headers, stored.media_type, stored.name)

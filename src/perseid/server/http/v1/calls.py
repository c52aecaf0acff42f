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

from perseid.ledger.log.requests import Answer
from perseid.names.errors import quoted
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, parse_human
from perseid.registry.access.permissions import shown
from perseid.registry.context import Context, Operation
from perseid.registry.idempotency import Differs, Done, Fresh, IdempotencyKeys, Known, Pending
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.server.http.auth.authentication import Identified
from perseid.server.http.caching import tag_of
from perseid.server.http.compat.call import Call
from perseid.server.http.context import DOOR, Asking, HttpSettings
from perseid.server.http.messages import HeaderList, Request
from perseid.server.http.resolver.paths import resolvers_of
from perseid.server.http.responses import PLAIN, RETRY_SECONDS
from perseid.server.http.targets import Parameters
from perseid.server.native.decisions import Read
from perseid.server.native.operations import check_share
from perseid.server.native.steps import Kind

from .problems import Wrong
from .routing import Reply, Route
from .structures import DoneBefore, Paging
from .validation import Unfitting, naming

KEY_HEADER: Final = "idempotency-key"
"""The header with the key of a request, which is kept for a day: who repeats it gets the same answer."""

REPLAYED: Final = ("Idempotency-Replayed", "true")
"""What the answer says then."""

LONG_BODY: Final = 8_192
"""Octets of a body from which on making something of it takes so long that it is not done in the event loop: of two
hundred values, say, some milliseconds."""

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
R = TypeVar("R")

Outcome = Done | Known | Differs | Pending


class _Kept(msgspec.Struct, array_like=True, frozen=True):
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
    def asking(self) -> Asking:
        return self.call.asking

    @property
    def request(self) -> Request:
        return self.call.asking.request

    @property
    def registry(self) -> Registry:
        """For what is handed to `do`; everything else goes through `read`, `look` and `change`."""
        return self.call.asking.place.registry

    @property
    def who(self) -> Identity:
        return self.call.who

    @property
    def settings(self) -> HttpSettings:
        return self.call.asking.place.settings

    def asked(self, type_: type[S]) -> S:
        """The parameters of the query, as the structure that the route names."""
        assert isinstance(self.query, type_)  # noqa: S101 - a route of ours names another type than its function
        return self.query

    def given(self, type_: type[T]) -> T:
        """The body, as the type that the route names."""
        assert isinstance(self.body, type_)  # noqa: S101 - as above
        return self.body

    def handle(self, parameter: str = "handle", *, new: bool = False) -> Handle:
        """The handle that a parameter of the path is; raises as `named` does. A `new` one has to be legal here."""
        return self.named(self.names[parameter], parameter, new=new)

    def named(self, text: str, where: str = "$.handle", *, new: bool = False) -> Handle:
        """A handle that stands somewhere else in the request; raises `Misnamed`, or `Refused` on another server.

        One that is too long for any server to have is not found (H9), unless it is to be made.
        """
        with naming(where, text, new=new):
            handle = Handle.parse(text) if new else Handle.keepable(text)
        check_share(handle.to_octets(), self.asking.place)
        return handle

    def meant(self, text: str, where: str, *, legal: bool = False) -> Handle:
        """A name that is written down in a record, in any form in which people write names; raises `Misnamed`.

        It may be another service's, and then nobody looks it up here: what is no part of it would stay there for ever.
        A `legal` one could be registered here.
        """
        resolvers = [*resolvers_of(self.settings), *KNOWN_RESOLVERS]
        with naming(where, text, new=legal):
            found = parse_human(text, resolvers, for_lookup=not legal)
        if found.tail:
            message = f"{quoted(found.tail)} is a query or fragment, which belongs to a look-up"
            raise Unfitting(message, where, f"name {shown(found.handle)} alone")
        return found.handle

    # Doing

    async def read(self, read: Callable[[Context], T], about: object = "") -> T:
        """Read something for whoever asks, in one state of the ledger; `about` is the name that it is about."""
        return await self.call.read(read, str(about))

    async def tell(self, read: Callable[[Context], T], tell: Callable[[T], Reply], about: object = "") -> Reply:
        """Answer with something that is read for whoever asks.

        `tell` makes the answer of it, in the thread in which it was read, and there it is written out. Records may be
        large: that takes long, and the event loop has others to serve.
        """
        return await self.call.told(Read(read), str(about), lambda found: written(tell(found)))

    async def look(self, operation: Operation[T], about: object = "") -> T:
        """Carry out an operation that changes nothing."""
        return await self.call.look(operation, str(about))

    async def change(self, operation: Operation[T], about: object = "", note: str = "") -> T:
        """Carry out an operation that may change something."""
        return await self.call.change(lambda _: operation, str(about), note)

    async def change_when(self, make: Callable[[int | None], Operation[T]], about: object = "", note: str = "") -> T:
        """The same, where a name may not be made yet; `make` is as in `carry_out` of `native_deciding`."""
        return await self.call.change(make, str(about), note)

    async def do(self, kind: Kind, work: Callable[[], T]) -> T:
        """Have something else done in a pool: what needs no rights, or looks after them itself."""
        return await self.asking.do(kind, work)

    async def worked_out(self, work: Callable[[], T]) -> T:
        """What is made of a body: of a long one in a pool, so that nobody else waits for it."""
        return await self.do(Kind.READ, work) if len(self.request.body) > LONG_BODY else work()

    async def create(
        self,
        make: Callable[[int | None], Operation[T]],
        tell: Callable[[T], Reply],
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
            return tell(await self.call.change(make, str(about), note))
        keys, who, digest = self._keys, self.who, self._digest()

        def told(result: T) -> Answer:
            return _kept(tell(result))

        def once(operation: Operation[T]) -> Outcome:
            with keys.claim(who, key, digest) as claim:
                if isinstance(claim, Fresh):
                    return keys.carry_out(claim, operation, who, DOOR, told, note)
                return claim

        return _answered(await self.call.carried(make, str(about), once), again)

    async def once(self, work: Callable[[], Awaitable[Reply]]) -> Reply:
        """Do something that takes several commits: once, if the request carries a key and is not interrupted.

        Whoever is interrupted leaves the key free, so it should bear to be asked for again.
        """
        key = self._key()
        if key is None:
            return await work()
        self.call.check_changing()
        keys, who, digest = self._keys, self.who, self._digest()
        with ExitStack() as stack:
            claim = await self.do(Kind.READ, lambda: stack.enter_context(keys.claim(who, key, digest)))
            if not isinstance(claim, Fresh):
                return _answered(claim, None)
            kept = _kept(await work())
            return _answered(await self.do(Kind.WRITE, lambda: keys.keep(claim, kept)), None)

    @property
    def _keys(self) -> IdempotencyKeys:
        return self.asking.place.api.keys(self.registry)

    def _key(self) -> bytes | None:
        """The key of a creating request; None if it has none."""
        values = self.request.all(KEY_HEADER)
        if not self.route.creates or not values:
            return None
        text = values[0].strip()
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]  # as the draft of the IETF writes it
        if len(values) > 1 or not text:
            raise Unfitting("Idempotency-Key is one text that is not empty, such as a UUID", "Idempotency-Key")
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
        sealed = await self.do(Kind.READ, lambda: self.asking.place.api.cursors(self.registry))
        return sealed.open(cursor, self._list(), type_)

    async def cursor(self, place: object) -> str | None:
        """The cursor for where the next page begins, a plain object; None if there is none. For `Reply.next` too."""
        return None if place is None else await self.do(Kind.READ, lambda: self.sealed(place))

    def sealed(self, place: object) -> str | None:
        """The same for what is done in a pool already: it may wait for the ledger."""
        if place is None:
            return None
        return self.asking.place.api.cursors(self.registry).seal(place, self._list())

    def _list(self) -> bytes:
        """What a cursor belongs to: a path, what was asked for there, and who asked."""
        asked = msgspec.to_builtins(self.query)
        wanted = {name: value for name, value in asked.items() if name not in ("cursor", "limit")}
        return msgspec.msgpack.encode((self.route.operation, dict(self.names), wanted, str(self.who)))


def calling(asking: Asking, identified: Identified) -> Call:
    """What carries out calls for whoever asks."""
    return Call(asking, identified, Parameters(), PLAIN)


def octets_of(reply: Reply) -> bytes:
    """The body of an answer."""
    if isinstance(reply.body, bytes):
        return reply.body
    return b"" if reply.body is None else msgspec.json.encode(reply.body)


def written(reply: Reply) -> Reply:
    """An answer as octets, with their tag unless it has one that follows from something else."""
    if reply.body is None:
        return reply
    octets = octets_of(reply)
    is_tagged = any(name.lower() == "etag" for name, _ in reply.headers)
    return replace(reply, body=octets, tag="" if is_tagged else tag_of(reply.media_type, octets))


def _kept(reply: Reply) -> Answer:
    kept = _Kept(reply.headers, reply.media_type, reply.name, octets_of(reply))
    return Answer(reply.status, msgspec.msgpack.encode(kept))


def _answered(outcome: Outcome, again: Callable[[int, int], Reply] | None) -> Reply:
    """The answer to a request that carries a key."""
    match outcome:
        case Done():
            return _reply(outcome.answer.status, outcome.answer.body)
        case Known(body=None):
            if again is not None:
                return again(outcome.seq, outcome.count)
            return Reply(DoneBefore(outcome.seq, outcome.count), outcome.status, (REPLAYED,))
        case Known():
            return _reply(outcome.status, outcome.body or b"", REPLAYED)
        case Differs():
            raise Wrong("key-reused", "another request with this Idempotency-Key was carried out before")
        case Pending():
            retry = (("Retry-After", str(RETRY_SECONDS)),)
            raise Wrong("in-progress", "a request with this Idempotency-Key is being carried out", headers=retry)


def _reply(status: int, octets: bytes, *more: tuple[str, str]) -> Reply:
    kept = msgspec.msgpack.decode(octets, type=_Kept)
    headers: HeaderList = (*kept.headers, *more)
    return Reply(kept.body, status, headers, kept.media_type, kept.name)

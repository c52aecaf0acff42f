"""Shared helpers for the native protocol: a registry in the recorded state, a server, and a client."""

import atexit
import random
import shutil
import tempfile
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.log import Log
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.names.handle import Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.records.site import Site, Transport
from perseid.registry.access.authorization import Settings
from perseid.registry.commands.records import Create, Home
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.native.server import NativeServer
from perseid.server.native.work import NativeResponse, RunWork, Work
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import CURRENT_VERSION, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.fragments import Reassembler, split
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Message
from perseid.wire.requests import RequestBody
from perseid.wire.responses import Failure
from perseid.wire.server import Server, ServerSettings
from perseid.wire.sessions import Identity, Session
from tests.ledger.ledgers import Machine
from tests.registry.registries import OPERATOR, registry_on
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY
from tests.wire.recorded import fed, key_file

MADE: Final = 1_794_724_098
"""When the records of the recorded state were made: their timestamps say so."""

NOW: Final = 1_794_724_100.0
PREFIX: Final = "20.500.99999"
ADMIN: Final = f"0.NA/{PREFIX}"
RSA, SEC, DSA = (Identity(ADMIN.encode(), index) for index in (300, 301, 302))
PROOFS: Final[dict[Identity, PrivateKey | bytes]] = {RSA: RSA_KEY, SEC: SECRET, DSA: DSA_KEY}
"""Who there is, and how they prove it."""

SITE: Final = Site.from_bytes(key_file("siteinfo.bin"))
SERVER_ADMINS: Final = tuple(ValueRef(index, ADMIN) for index in (300, 301, 302))
HIDDEN: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
BY_ADMINS: Final = Value(100, "HS_ADMIN", Admin(ValueRef(200, ADMIN)).to_bytes())
STD: Final = f"{PREFIX}/vec-std"
NOTE: Final = Value(50, "NOTE", b"admins only", permissions=HIDDEN)
URL: Final = Value.text(1, "URL", "https://example.org/new")
NEW: Final = f"{PREFIX}/new".encode()
"""A value, and the name of a record that is not there yet."""

_REFERENCES = (ValueRef(7, f"{PREFIX}/ref1"), ValueRef(300, ADMIN))
_DESC = Value(6, "DESC", b"with references", 1_893_456_000, TtlType.ABSOLUTE, Permission(0x0A), 0, _REFERENCES)

RECORDS: Final[dict[str, tuple[Value, ...]]] = {
    ADMIN: (
        Value(1, "HS_SITE", SITE.to_bytes()),
        BY_ADMINS,
        Value(200, "HS_VLIST", ValueList(SERVER_ADMINS).to_bytes()),
        Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes()),
        Value(301, "HS_SECKEY", SECRET, permissions=HIDDEN),
        Value(302, "HS_PUBKEY", DSA_KEY.public.to_bytes()),
    ),
    STD: (
        Value.text(1, "URL", "https://example.org/a"),
        Value.text(2, "URL.us", "https://us.example.org/a"),
        Value.text(4, "EMAIL", "a@example.org"),
        _DESC,
        NOTE,
        BY_ADMINS,
    ),
    f"{PREFIX}/vec-big": (Value(1, "DATA", bytes(octet % 256 for octet in range(1_200))), BY_ADMINS),
    f"{PREFIX}/vec-üñí-日本": (Value.text(1, "URL", "https://example.org/日本"),),
}
"""The state in which the exchanges were recorded."""


T = TypeVar("T")


class Clock(Machine):
    """A machine whose clock is set to the time of the exchange."""

    def show(self, seconds: float) -> None:
        self.run(int(seconds * SECOND) - self.wall)


@cache
def recorded_folder() -> Path:
    """A folder with a ledger in the recorded state, created once: copying it is much faster."""
    folder = Path(tempfile.mkdtemp(prefix="perseid-native-door-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    machine = Clock()
    machine.show(MADE)
    with registry_on(store, folder, machine) as registry:
        registry.do(Home(ADMIN), OPERATOR, "cli")
        for name, values in RECORDS.items():
            registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")
    return folder


@contextmanager
def recorded_registry(machine: Clock | None = None, *, listing: bool = True, **settings: Any) -> Iterator[Registry]:
    """A registry in the recorded state."""
    rules = Rules(Settings(server_admins=SERVER_ADMINS, **settings), listing_allowed=listing)
    if machine is None:
        machine = Clock()
        machine.show(NOW)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(recorded_folder(), folder, dirs_exist_ok=True)
        log = Log(Store.sqlite(Path(folder) / "ledger.db"), machine.clock(), random.Random(2).randbytes)
        with Ledger(log, Answers(Path(folder) / "answers")) as ledger:
            yield Registry(ledger, rules)


def make_server(settings: ServerSettings | None = None, seed: int = 1) -> Server:
    return Server(settings or ServerSettings(SERVER_KEY), random.Random(seed).randbytes)


def receive(
    native_server: NativeServer, frame: Frame, source: str, now: float, transport: Transport
) -> list[NativeResponse]:
    """The responses to a message, without an event loop unless something has to wait."""
    return drive(_collect(native_server.handle(frame, source, now, transport)))


async def _collect(responses: AsyncIterable[NativeResponse]) -> list[NativeResponse]:
    return [response async for response in responses]


def drive(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waits for something")


def run_with(do: Callable[[Work], object]) -> RunWork:
    """Do work with a plain function."""

    async def run(work: Work, _source: str, _transport: Transport) -> object:
        return do(work)

    return run


class StartedRequest:
    """A message that is handled step by step: it stops before all work, so that others come in between."""

    def __init__(self, visitor: "Visitor", frame: Frame) -> None:
        native_server = visitor.native_server
        self._steps = _collect(native_server.handle(frame, visitor.source, visitor.now, visitor.transport))
        self.response: NativeResponse | None = None
        self._is_running = False
        self._run = native_server._run
        native_server._run = self._pause
        self.step()

    def step(self) -> None:
        """Do the work that it waits for, up to the next work or the response."""
        if self.response is not None:
            return
        self._is_running = True
        try:
            self._steps.send(None)
        except StopIteration as stop:
            (self.response,) = stop.value
        finally:
            self._is_running = False

    def finish(self) -> NativeResponse:
        while self.response is None:
            self.step()
        return self.response

    def abort(self) -> None:
        self._steps.close()

    async def _pause(self, work: Work, source: str, transport: Transport) -> object:
        if self._is_running:
            await _Suspend()
        return await self._run(work, source, transport)


class _Suspend:
    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class Visitor:
    """A client of a native server over one transport, without sockets."""

    native_server: NativeServer
    transport: Transport = Transport.TCP
    version: Version = CURRENT_VERSION
    now: float = NOW
    source: str = "192.0.2.1"
    served: list[NativeResponse] = field(default_factory=list)
    seed: int = 2

    def __post_init__(self) -> None:
        self.client = Client(random.Random(self.seed).randbytes, self.version)

    # One way

    def carry(self, frame: Frame) -> list[Frame]:
        """Take a message to the door and bring back what it says, as octets."""
        if self.transport == Transport.UDP:
            return self._over_udp(frame)
        (request,) = fed(FrameReader(), frame.envelope.to_bytes() + frame.payload)
        served = receive(self.native_server, request, self.source, self.now, self.transport)
        self.served += served
        return fed(FrameReader(), b"".join(one.reply.to_stream() for one in served))

    def _over_udp(self, frame: Frame) -> list[Frame]:
        packets = split(frame.envelope, frame.payload, request=True)
        there, back = Reassembler(), Reassembler()
        whole: tuple[Envelope, bytes] | None = (Envelope.from_bytes(packets[0]), packets[0][ENVELOPE_LENGTH:])
        if len(packets) > 1:
            *_, whole = [there.receive(self.source, packet, self.now) for packet in packets]
        assert whole is not None
        served = receive(self.native_server, Frame(*whole), self.source, self.now, self.transport)
        self.served += served
        found = [back.receive("server", packet, self.now) for one in served for packet in one.reply.to_packets()]
        return [Frame(*one) for one in found if one is not None]

    # Requests

    def request(
        self, opcode: OpCode, body: RequestBody, *, flags: OpFlag | None = None, session: Session | None = None
    ) -> Message:
        return self.client.request(opcode, body, self.now, flags=flags, peer_version=self.version, session=session)

    def all(
        self, request: Message, session: Session | None = None, about: Message | None = None
    ) -> list[VerifiedResponse]:
        """All messages of the answer to a request."""
        frames = self.carry(self.client.pack(request, session))
        key = SERVER_KEY.public
        return [
            self.client.read(frame, request, self.now, server_key=key, session=session, about=about) for frame in frames
        ]

    def ask(self, request: Message, session: Session | None = None, about: Message | None = None) -> VerifiedResponse:
        """The answer to a request, which is one message."""
        (answer,) = self.all(request, session, about)
        return answer

    def answer(
        self, challenge: VerifiedResponse, request: Message, identity: Identity, proof: PrivateKey | bytes | None = None
    ) -> Message:
        """The answer to a challenge."""
        proof = PROOFS[identity] if proof is None else proof
        return self.client.answer_challenge(challenge, request, identity, proof, self.now)

    def all_as(self, identity: Identity, request: Message, session: Session | None = None) -> list[VerifiedResponse]:
        """Ask, be challenged unless the session is proved, prove, and get all messages of the answer."""
        first = self.all(request, session)
        if first[0].code is not ResponseCode.AUTHENTICATION_NEEDED:
            return first
        return self.all(self.answer(first[0], request, identity), session, about=request)

    def ask_as(self, identity: Identity, request: Message, session: Session | None = None) -> VerifiedResponse:
        (answer,) = self.all_as(identity, request, session)
        return answer

    def begin_session(self, identity: Identity | None = SEC) -> Session:
        wish = self.client.begin_session(identity, self.now, peer_version=self.version)
        return self.client.finish_session(wish, self.ask(wish.request))


def without_timestamps(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(replace(value, timestamp=0) for value in values)


def text_of(answer: VerifiedResponse) -> str:
    """The text of a refusal."""
    assert isinstance(answer.body, Failure), (answer.code, answer.body)
    return answer.body.sentence

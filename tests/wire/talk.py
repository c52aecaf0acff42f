"""A client and a server in memory, without sockets; the test controls clock and randomness.

`Host` is a server with a minimal application; `Conversation` is a client that talks to it over one of three lines.
A line carries bytes like the real transport; the UDP line can lose, duplicate and reorder packets.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import h11

from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Permission, Value
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.fragments import Reassembler, split
from perseid.wire.framing import (
    Frame,
    FrameReader,
    HttpResponseReader,
    http_request,
    is_native,
    unwrap_http_body,
)
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Message
from perseid.wire.requests import HandleRequest, RequestBody, Resolve, SessionSetup, ValuesRequest
from perseid.wire.responses import (
    HANDLES_PER_MESSAGE,
    Challenge,
    CreationResult,
    Empty,
    Failure,
    HandleList,
    ResolutionResult,
)
from perseid.wire.server import ChallengeProof, Reply, Request, Server, ServerSettings
from perseid.wire.sessions import Identity, Session, SessionTable
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.recorded import fed, native_headers

NOW: Final = 1_794_724_100.0
HANDLE: Final = b"1/record"
PRIVATE_TEXT: Final = b"for administrators only"
SECRET: Final = b"a secret of the tests"
ADMIN: Final = b"0.NA/1"
RSA, SEC, DSA = Identity(ADMIN, 300), Identity(ADMIN, 301), Identity(ADMIN, 302)
PROOFS: Final[dict[Identity, PrivateKey | bytes]] = {RSA: RSA_KEY, SEC: SECRET, DSA: DSA_KEY}
"""The identities and their secrets."""

KEYS: Final[dict[int, PublicKey | bytes]] = {300: RSA_KEY.public, 301: SECRET, 302: DSA_KEY.public}
"""The keys that verify their proofs, by index."""

PUBLIC: Final = Value.text(1, "URL", "https://example.org/")
PRIVATE: Final = Value(50, "NOTE", PRIVATE_TEXT, permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)
FLAGS_TO_READ_ALL: Final = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY


def set_last_id(server: Server, last: int) -> None:
    """Let the next session or challenge have the id after this one."""
    assert isinstance(server.sessions, SessionTable)
    server.sessions.last_id = last


def start_session(server: Server, request: Request, now: float) -> Reply:
    """Agree on a key and start the session, or refuse it."""
    try:
        return server.begin_session(request, server.agree(request), now)
    except InvalidData as problem:
        return server.refuse_session(request, problem, now)


@dataclass
class Host:
    """A server with records and an application that permits everything to known administrators."""

    settings: ServerSettings = field(default_factory=lambda: ServerSettings(SERVER_KEY))
    seed: int = 1

    def __post_init__(self) -> None:
        self.server = Server(self.settings, random.Random(self.seed).randbytes)
        self.records: dict[bytes, tuple[Value, ...]] = {HANDLE: (PUBLIC, PRIVATE)}
        self.keys = dict(KEYS)
        self.executed: list[tuple[OpCode, Identity | None]] = []

    def receive(self, frame: Frame, now: float, *, private_transport: bool = False) -> Reply:
        received = self.server.receive(frame, now, private_transport=private_transport)
        if isinstance(received, ChallengeProof):
            received = self.check_proof(received, now)
        if isinstance(received, Request):
            received = self.execute(received, now)
        return self.server.sign(received)

    def check_proof(self, proof: ChallengeProof, now: float) -> Request | Reply:
        key = self.keys.get(proof.identity.index)
        valid = proof.check_secret(key) if isinstance(key, bytes) else key is not None and proof.check_key(key)
        if not valid:
            return self.server.respond(proof.request, ResponseCode.AUTHENTICATION_FAILED, Failure(), now)
        return self.server.accept(proof, replace(proof.identity, key_index=proof.identity.index), now)

    def execute(self, request: Request, now: float) -> Reply:
        if isinstance(request.body, SessionSetup):
            return start_session(self.server, request, now)
        identity: Identity | None = None
        if self.needs_identity(request):
            found = self.server.identify(request, now)
            if isinstance(found, Reply):
                return found
            identity = found
        self.executed.append((request.opcode, identity))
        return self.answer(request, now)

    def needs_identity(self, request: Request) -> bool:
        if not isinstance(request.body, Resolve):
            return request.opcode != OpCode.GET_SITE_INFO
        if OpFlag.PUBLIC_ONLY in request.flags:
            return False
        return request.session is not None or not all(one.is_public for one in self.records[request.body.handle])

    def answer(self, request: Request, now: float) -> Reply:
        reply = self.server.sign(self.respond(request, now))
        self.server.record_reply(request, reply, more=len(reply.frames) > 1)
        return reply

    def respond(self, request: Request, now: float) -> Reply:
        body, respond = request.body, self.server.respond
        match body:
            case Resolve():
                values = self.records.get(body.handle)
                if values is None:
                    return respond(request, ResponseCode.HANDLE_NOT_FOUND, Failure(), now)
                if OpFlag.PUBLIC_ONLY in request.flags:
                    values = tuple(value for value in values if value.is_public)
                return respond(request, ResponseCode.SUCCESS, ResolutionResult(body.handle, values), now)
            case ValuesRequest():
                self.records[body.handle] = body.values
                created = CreationResult(body.handle) if request.opcode == OpCode.CREATE_HANDLE else Empty()
                return respond(request, ResponseCode.SUCCESS, created, now)
            case HandleRequest() if request.opcode == OpCode.LIST_HANDLES:
                names = sorted(self.records)
                pages = [names[at : at + HANDLES_PER_MESSAGE] for at in range(0, len(names), HANDLES_PER_MESSAGE)]
                replies = [
                    respond(request, ResponseCode.SUCCESS, HandleList(tuple(page)), now, more=number + 1 < len(pages))
                    for number, page in enumerate(pages)
                ]
                return Reply(tuple(frame for reply in replies for frame in reply.frames))
            case HandleRequest():
                self.records.pop(body.handle, None)
                return respond(request, ResponseCode.SUCCESS, Empty(), now)
        return respond(request, ResponseCode.OPERATION_NOT_SUPPORTED, Failure(), now)


class Line(Protocol):
    """A connection from a client to a host."""

    def carry(self, frame: Frame, host: Host, now: float) -> list[Frame]: ...


class Tcp:
    """A stream in both directions, in pieces of `size` bytes."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.seen: list[Frame] = []

    def carry(self, frame: Frame, host: Host, now: float) -> list[Frame]:
        (request,) = self._feed(frame.envelope.to_bytes() + frame.payload)
        self.seen.append(request)
        frames = self._feed(host.receive(request, now).to_stream())
        self.seen += frames
        return frames

    def _feed(self, stream: bytes) -> list[Frame]:
        reader, frames = FrameReader(), []
        for start in range(0, len(stream), self.size):
            frames += fed(reader, stream[start : start + self.size])
        assert reader.is_idle
        return frames


class Udp:
    """Packets that are lost, duplicated and reordered in both directions."""

    def __init__(self, seed: int = 0, loss: float = 0.0, doubling: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        self.doubling = doubling
        self.reassembler = Reassembler()
        self.deliveries = 0

    def carry(self, frame: Frame, host: Host, now: float) -> list[Frame]:
        frames: list[Frame] = []
        back = Reassembler()  # a client has a new one for each attempt
        for packet in self._mistreat(split(frame.envelope, frame.payload, request=True)):
            if not Envelope.from_bytes(packet).truncated:
                whole: tuple[Envelope, bytes] | None = (Envelope.from_bytes(packet), packet[ENVELOPE_LENGTH:])
            else:
                whole = self.reassembler.receive("client", packet, now)
            if whole is None:
                continue
            self.deliveries += 1
            reply = host.receive(Frame(*whole), now).to_packets()
            for answer in self._mistreat(reply):
                complete = back.receive("server", answer, now)
                if complete is not None:
                    frames.append(Frame(*complete))
        return frames[:1]

    def _mistreat(self, packets: list[bytes]) -> list[bytes]:
        if not self.loss:
            return packets
        delivered = [packet for packet in packets if self.chance.random() >= self.loss]
        delivered += [packet for packet in packets if self.chance.random() < self.doubling]
        self.chance.shuffle(delivered)
        return delivered


class Http:
    """A POST request and its response; deployed servers send a single message."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private

    def carry(self, frame: Frame, host: Host, now: float) -> list[Frame]:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(http_request(frame.envelope.to_bytes() + frame.payload, HANDLE, "localhost"))
        head = connection.next_event()
        assert isinstance(head, h11.Request)
        headers = {name.decode(): value.decode() for name, value in head.headers}
        assert is_native(headers["accept"], headers["content-type"])
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
        (request,) = fed(FrameReader(), unwrap_http_body(b"\n" + body))
        answer = host.receive(request, now, private_transport=self.private).to_stream()
        response = h11.Response(status_code=200, headers=native_headers(len(answer)))
        pieces = [connection.send(event) for event in (response, h11.Data(data=answer), h11.EndOfMessage())]
        reader, frames = HttpResponseReader(), []
        for byte in b"".join(piece or b"" for piece in pieces):
            frames += reader.feed(bytes((byte,)))
        assert reader.is_finished
        return frames


def lines() -> dict[str, Line]:
    """A new line of every type, by name."""
    bad = Udp(seed=5, loss=0.3, doubling=0.2)
    return {"tcp": Tcp(), "udp": Udp(), "bad udp": bad, "http": Http()}


class Conversation:
    """A client and a host, connected by a line."""

    def __init__(
        self, host: Host | None = None, line: Line | None = None, version: Version = CURRENT_VERSION, now: float = NOW
    ) -> None:
        self.host = host or Host()
        self.line = line or Tcp(4096)
        self.client = Client(random.Random(2).randbytes, version)
        self.version = version
        self.now = now

    def request(
        self, opcode: OpCode, body: RequestBody, *, flags: OpFlag = DEFAULT_FLAGS, session: Session | None = None
    ) -> Message:
        return self.client.request(opcode, body, self.now, flags=flags, peer_version=CURRENT_VERSION, session=session)

    def resolve(self, *, flags: OpFlag = DEFAULT_FLAGS, session: Session | None = None) -> Message:
        return self.request(OpCode.RESOLUTION, Resolve(HANDLE), flags=flags, session=session)

    def create(
        self,
        name: bytes = b"1/new",
        values: tuple[Value, ...] = (PUBLIC,),
        *,
        flags: OpFlag = DEFAULT_FLAGS,
        session: Session | None = None,
    ) -> Message:
        return self.request(OpCode.CREATE_HANDLE, ValuesRequest(name, values), flags=flags, session=session)

    def send(self, message: Message, session: Session | None = None) -> list[Frame]:
        """Send a message once and return the frames of the response."""
        return self.line.carry(self.client.pack(message, session), self.host, self.now)

    def read(
        self, frame: Frame, request: Message, session: Session | None = None, about: Message | None = None
    ) -> VerifiedResponse:
        key = SERVER_KEY.public
        return self.client.read(frame, request, self.now, server_key=key, session=session, about=about)

    def ask(self, request: Message, session: Session | None = None, about: Message | None = None) -> VerifiedResponse:
        """Send a request until there is exactly one answer."""
        message = request
        for attempt in range(60):
            if attempt:
                message = self.client.repeat(request, session)
            frames = self.send(message, session)
            if frames:
                (frame,) = frames
                return self.read(frame, message, session, about)
        raise AssertionError("nothing came back in 60 attempts")

    def prove(
        self, challenge: VerifiedResponse, request: Message, identity: Identity, session: Session | None = None
    ) -> VerifiedResponse:
        """Answer a challenge."""
        answer = self.client.answer_challenge(challenge, request, identity, PROOFS[identity], self.now)
        return self.ask(answer, session, about=request)

    def ask_as(self, identity: Identity, request: Message, session: Session | None = None) -> VerifiedResponse:
        """Send a request, answer the challenge, and return the response."""
        challenge = self.ask(request, session)
        assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
        assert isinstance(challenge.body, Challenge)
        return self.prove(challenge, request, identity, session)

    def begin_session(self, identity: Identity | None = SEC, timeout: int = 3600) -> Session:
        setup = self.client.begin_session(identity, self.now, peer_version=CURRENT_VERSION, timeout=timeout)
        return self.client.finish_session(setup, self.ask(setup.request))

    def begin_authenticated_session(self, identity: Identity = SEC, timeout: int = 3600) -> Session:
        """Begin a session and authenticate the client."""
        session = self.begin_session(identity, timeout)
        answer = self.ask_as(identity, self.create(b"1/first", session=session), session)
        assert answer.code is ResponseCode.SUCCESS
        return session


def read_code(reply: Reply, session: Session | None = None) -> ResponseCode:
    """The response code of a reply with one message."""
    return read_message(reply, session).header.response_code


def read_message(reply: Reply, session: Session | None = None) -> Message:
    """The message of a reply with one message."""
    (frame,) = reply.frames
    payload = session.open(frame.payload) if frame.envelope.encrypted and session else frame.payload
    return Message.from_bytes(frame.envelope, payload, int(NOW))


def frame_of(message: Message) -> Frame:
    """A message as received from the transport."""
    return Frame(message.envelope, message.payload())


def without_credential(message: Message) -> Message:
    """The same message without its MAC."""
    bare = replace(message, credential=None)
    return replace(bare, envelope=bare.envelope.with_length(len(bare.payload())))

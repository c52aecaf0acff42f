"""A small blocking client of the native protocol, for tests and benchmarks.

    with serving(directory) as server, NativeClient(server.native) as client:
        assert client.resolve("12345/abc").code is ResponseCode.SUCCESS
        client.act_as("300:0.NA/12345", secret)
        client.begin_session()
        assert client.create("12345/new", (Value.text(1, "URL", "https://example.org/"),)).code is ResponseCode.SUCCESS

Every response of the server is returned as a `VerifiedResponse` with its code; a missing or invalid response is an
exception (`NoAnswer`, `ConnectionError`, `RemoteProtocolError`). Like every deployed client it answers challenges, as
the identity of `act_as`.
"""

import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from enum import Enum
from typing import Final, Self

from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.site import Site
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import CURRENT_VERSION, OpCode, OpFlag, ResponseCode, Version, default_flags
from perseid.wire.fragments import MAX_PACKET, Reassembler, packet_count, split
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import ENVELOPE_LENGTH, UNKNOWN_REQUEST_ID, Envelope, Message
from perseid.wire.requests import HandleRequest, RemoveValues, RequestBody, Resolve, ValuesRequest
from perseid.wire.responses import HandleList, SiteInfo
from perseid.wire.sessions import Identity, Session
from tests.server.running import Address, Serving, serving

__all__ = ["Address", "NativeClient", "NoAnswer", "Serving", "Via", "serving"]

Frames = Generator[Frame, None, None]
"""Messages as they arrive. Closing the iterator releases a kept connection."""

NO_FLAGS: Final = OpFlag(0)
POLL_SECONDS: Final = 0.1
RECEIVED: Final = 65_536
"""Bytes read from a stream at a time."""


class Via(Enum):
    """Transports."""

    UDP = "udp"
    TCP = "tcp"
    """A connection for each request, as deployed clients do."""
    KEPT = "kept"
    """One kept connection for all requests."""


class NoAnswer(Exception):
    """No attempt over UDP got a response."""


class NativeClient:
    """A client of one server. Not thread-safe; create one for each thread."""

    def __init__(
        self,
        address: Address,
        via: Via = Via.TCP,
        *,
        version: Version = CURRENT_VERSION,
        timeout: float = 30.0,
        attempts: int = 4,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = secrets.token_bytes,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.address = address
        self.via = via
        self.version = version
        self.timeout = timeout
        """Seconds until a connection is considered dead; over UDP, until all attempts have failed."""
        self.attempts = attempts
        self.clock = clock
        self._gives_up = gives_up  # asked now and then while a response over UDP is awaited
        self.client = Client(random, version)
        self.connections = 0
        """Number of connections opened."""
        self.session: Session | None = None
        """The session of all requests, once there is one."""
        self.identity: Identity | None = None
        self._proof: PrivateKey | bytes = b""
        self._server_key: PublicKey | None = None
        self._stream: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close a kept connection. The session continues: it does not belong to a connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # Who asks

    def act_as(self, identity: str, proof: PrivateKey | bytes | str) -> None:
        """Answer challenges as `300:0.NA/12345` with this private key or secret."""
        reference = ValueRef.parse(identity)
        self.identity = Identity(reference.handle.encode(), reference.index)
        self._proof = proof.encode() if isinstance(proof, str) else proof

    @property
    def server_key(self) -> PublicKey:
        """What the server signs with, by its own account: asked for once, when first needed."""
        if self._server_key is None:
            self._server_key = self.site().servers[0].key
        assert self._server_key is not None, "the site record has no key that can be read"
        return self._server_key

    def begin_session(self) -> Session:
        """Start a session, as the identity or anonymously, and use it for all requests."""
        self.end_session()
        wish = self.client.begin_session(self.identity, self.clock(), peer_version=self.version)
        self.session = self.client.finish_session(wish, self.ask(self._kept(wish.request)))
        return self.session

    def end_session(self) -> VerifiedResponse | None:
        """End the session, if there is one."""
        if self.session is None:
            return None
        ended = self.do(OpCode.SESSION_TERMINATE, HandleRequest())
        self.session = None
        return ended

    # What is asked for

    def resolve(
        self,
        handle: str | bytes,
        *,
        indexes: tuple[int, ...] = (),
        types: tuple[str, ...] = (),
        flags: OpFlag | None = None,
    ) -> VerifiedResponse:
        return self.do(OpCode.RESOLUTION, Resolve(_octets(handle), indexes, types), flags=flags)

    def create(self, handle: str | bytes, values: tuple[Value, ...], more_flags: OpFlag = NO_FLAGS) -> VerifiedResponse:
        """Create; `more_flags` may be OVERWRITE or MINT_SUFFIX."""
        flags = default_flags(OpCode.CREATE_HANDLE) | more_flags
        return self.do(OpCode.CREATE_HANDLE, ValuesRequest(_octets(handle), values), flags=flags)

    def delete(self, handle: str | bytes) -> VerifiedResponse:
        return self.do(OpCode.DELETE_HANDLE, HandleRequest(_octets(handle)))

    def add(self, handle: str | bytes, *values: Value) -> VerifiedResponse:
        return self.do(OpCode.ADD_VALUE, ValuesRequest(_octets(handle), values))

    def modify(self, handle: str | bytes, *values: Value) -> VerifiedResponse:
        return self.do(OpCode.MODIFY_VALUE, ValuesRequest(_octets(handle), values))

    def remove(self, handle: str | bytes, *indexes: int) -> VerifiedResponse:
        return self.do(OpCode.REMOVE_VALUE, RemoveValues(_octets(handle), indexes))

    def list_handles(self, prefix: str) -> tuple[bytes, ...]:
        """All handles under `0.NA/<prefix>`; over TCP only."""
        answers = self.do_all(OpCode.LIST_HANDLES, HandleRequest(_octets(prefix)))
        assert answers[0].code is ResponseCode.SUCCESS, answers[0].body
        return tuple(name for one in answers if isinstance(one.body, HandleList) for name in one.body.handles)

    def site(self) -> Site:
        """What the server says about itself."""
        body = self.ask(self.request(OpCode.GET_SITE_INFO, HandleRequest())).body
        assert isinstance(body, SiteInfo), body
        return Site.from_bytes(body.site)

    def do(self, opcode: OpCode, body: RequestBody, *, flags: OpFlag | None = None) -> VerifiedResponse:
        """Any operation that is answered with one message; a challenge to it is answered."""
        (answer,) = self.do_all(opcode, body, flags=flags)
        return answer

    def do_all(self, opcode: OpCode, body: RequestBody, *, flags: OpFlag | None = None) -> list[VerifiedResponse]:
        """Any operation, and all messages of its answer."""
        request = self.request(opcode, body, flags=flags, session=self.session)
        first = self.ask_all(request, self.session)
        if first[0].code is not ResponseCode.AUTHENTICATION_NEEDED or self.identity is None:
            return first
        return self.ask_all(self.answer(first[0], request), self.session, about=request)

    # Step by step

    def request(
        self, opcode: OpCode, body: RequestBody, *, flags: OpFlag | None = None, session: Session | None = None
    ) -> Message:
        """A request, which is not sent."""
        if flags is None:
            flags = default_flags(opcode)
        if self.via is Via.KEPT:
            flags |= OpFlag.KEEP_CONNECTION
        now = self.clock()
        return self.client.request(opcode, body, now, flags=flags, peer_version=self.version, session=session)

    def answer(self, challenge: VerifiedResponse, request: Message) -> Message:
        """The answer to a challenge, by whom `act_as` named; it is not sent."""
        assert self.identity is not None, "nobody is named who could answer a challenge"
        answer = self.client.answer_challenge(challenge, request, self.identity, self._proof, self.clock())
        return self._kept(answer)

    def ask(self, request: Message, session: Session | None = None, about: Message | None = None) -> VerifiedResponse:
        """Send a message, and judge the one that answers it; `about` is the request whose challenge it answers."""
        (answer,) = self.ask_all(request, session, about)
        return answer

    def ask_all(
        self, request: Message, session: Session | None = None, about: Message | None = None
    ) -> list[VerifiedResponse]:
        """The same for an answer of several messages."""
        asked = about or request
        key = self.server_key if OpFlag.CERTIFY in asked.header.flags and session is None else None
        answers: list[VerifiedResponse] = []
        with closing(self.exchange(request, session)) as frames:
            for frame in frames:
                now = self.clock()
                answers.append(self.client.read(frame, request, now, server_key=key, session=session, about=about))
                if not answers[-1].more_follows:
                    return answers
        raise ConnectionError("the connection ended before the answer did")

    def exchange(self, request: Message, session: Session | None = None) -> Frames:
        """Send a message, and give what comes back, message by message, unjudged."""
        if self.via is Via.UDP:
            yield self._over_udp(request, session)
        else:
            yield from self._over_tcp(self.client.pack(request, session))

    # How it travels

    def _kept(self, message: Message) -> Message:
        """The same message without a credential, with the wish that the connection be kept, if it is one of those."""
        if self.via is not Via.KEPT:
            return message
        header = replace(message.header, flags=message.header.flags | OpFlag.KEEP_CONNECTION)
        return Message.build(message.envelope, header, message.body)

    def _over_udp(self, request: Message, session: Session | None) -> Frame:
        """Every attempt waits twice as long as the one before; one in a session has a counter of its own."""
        whole = Reassembler()
        wanted = (request.envelope.request_id, UNKNOWN_REQUEST_ID)
        patience = self.timeout / (2**self.attempts - 1)
        with _datagrams(self.address) as sending:
            for attempt in range(self.attempts):
                repeated = request if attempt == 0 else self.client.repeat(request, session)
                frame = self.client.pack(repeated, session)
                for packet in split(frame.envelope, frame.payload, request=True):
                    sending.send(packet)
                end = time.monotonic() + patience * 2**attempt
                while (left := end - time.monotonic()) > 0 and not self._gives_up():
                    sending.settimeout(min(left, POLL_SECONDS))
                    try:
                        packet = sending.recv(RECEIVED)
                    except TimeoutError:
                        continue
                    if (found := _whole_message(whole, packet)) is not None and found.envelope.request_id in wanted:
                        return found
        raise NoAnswer(f"{self.attempts} attempts over UDP, no answer")

    def _over_tcp(self, frame: Frame) -> Frames:
        stream = self._connected()
        kept = False
        try:
            stream.sendall(frame.envelope.to_bytes() + frame.payload)
            reader = FrameReader()
            while raw := stream.recv(RECEIVED):
                reader.feed(raw)
                for found in reader.frames():
                    # Whoever asks no more has had all of the answer, and the connection is free for the next request.
                    kept = self.via is Via.KEPT
                    yield found
                    kept = False
        finally:
            if kept:
                self._stream = stream
            else:
                stream.close()

    def _connected(self) -> socket.socket:
        """The kept connection if it still stands, or else a new one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            if not _has_ended(stream):
                return stream
            stream.close()
        stream = socket.create_connection(self.address, self.timeout)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections += 1
        return stream


@contextmanager
def _datagrams(address: Address) -> Iterator[socket.socket]:
    """A socket connected to the server."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.connect(address)
        yield made


def _whole_message(unfinished: Reassembler, packet: bytes) -> Frame | None:
    """The message, once all its packets have arrived. One longer than deployed clients read is an error."""
    assert len(packet) <= MAX_PACKET, f"a packet of {len(packet)} bytes"
    envelope = Envelope.from_bytes(packet)
    if packet_count(envelope.length) == 1:
        return Frame(envelope, packet[ENVELOPE_LENGTH:])
    found = unfinished.receive("server", packet, time.monotonic())
    return None if found is None else Frame(*found)


def _has_ended(stream: socket.socket) -> bool:
    """Whether the server has closed an idle connection."""
    patience = stream.gettimeout()
    stream.setblocking(False)
    try:
        return stream.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        stream.settimeout(patience)


def _octets(handle: str | bytes) -> bytes:
    return handle.encode() if isinstance(handle, str) else handle

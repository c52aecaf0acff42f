"""Operations side by side over connections that break, without sockets, and the recorded exchanges."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest

from perseid.client import native_exchange as exchange_module
from perseid.client import native_operations as operations
from perseid.client.errors import ClientError, ProtocolError, Refused, UnknownOutcome, Unreachable
from perseid.client.native_exchange import ANSWERS_IN_HTTP, WINDOW, Connection, Exchange, Flow, NativeProtocol, Outgoing
from perseid.client.native_operations import Operation
from perseid.records.admin import Admin
from perseid.records.keys import DhPublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.site import Transport
from perseid.registry.registry import Registry
from perseid.server.native.server import NativeServer
from perseid.wire import client as client_module
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag, default_flags
from perseid.wire.fragments import split
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import MESSAGE_LIFETIME, Envelope, Message
from perseid.wire.requests import REQUEST_DECODERS, ChallengeResponse, SessionSetup
from perseid.wire.responses import SiteInfo
from perseid.wire.sessions import DhKeyPair
from tests.server.native.native_servers import ADMIN, HIDDEN, NOW, PREFIX, SITE, make_server, receive, recorded_registry
from tests.wire import recorded
from tests.wire.key_material import RSA_KEY, SECRET, SERVER_KEY
from tests.wire.recorded import conversations, frames_of

SIGNED_SESSION = "session:session-dh-auth.tcp"
URL = Value.text(1, "URL", "https://example.org/")


class MemoryNetwork:
    """A server and the connections to it. `on_reply` can lose replies or close connections."""

    def __init__(self, registry: Registry) -> None:
        self.server = NativeServer(registry, make_server(), SITE)
        self.protocol = NativeProtocol(f"301:{ADMIN}", SECRET, clock=lambda: NOW, random=random.Random(3).randbytes)
        self.exchange = Exchange(self.protocol, connect=self.connect, write=self.write, close=lambda _: None)
        self.sent: deque[tuple[Connection, bytes]] = deque()
        self.opcodes: list[OpCode] = []
        self.opened = 0
        self.most_in_flight = 0
        self.on_reply: Callable[[Connection, OpCode, bytes], bytes | None] = lambda _connection, _opcode, reply: reply
        self.results: list[Any] = []

    def connect(self, connection: Connection) -> None:
        self.opened += 1
        connection.is_open = True

    def write(self, connection: Connection) -> None:
        reader = FrameReader()
        reader.feed(connection.take())
        self.sent += [(connection, frame.envelope.to_bytes() + frame.payload) for frame in reader.frames()]

    def do(self, *wanted: Operation[Any]) -> list[Any]:
        """Perform operations, and return their results in the order of their end."""
        self.results = []
        for operation in wanted:
            self.exchange.submit(operation, self.results.append)
        while self.sent:
            self.most_in_flight = max(self.most_in_flight, len(self.sent))
            connection, data = self.sent.popleft()
            self.deliver(connection, data)
        assert not self.exchange.in_progress
        return self.results

    def deliver(self, connection: Connection, data: bytes) -> None:
        if connection not in self.exchange.connections:
            return
        reader = FrameReader()
        reader.feed(data)
        (frame,) = reader.frames()
        served = receive(self.server, frame, "192.0.2.1", NOW, Transport.TCP)
        self.opcodes.append(served[0].opcode)
        reply = self.on_reply(connection, served[0].opcode, b"".join(one.reply.to_stream() for one in served))
        if reply is None:
            self.exchange.lost(connection, "cut")
        else:
            self.exchange.received(connection, reply, 0.0)


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with recorded_registry() as registry:
        yield MemoryNetwork(registry)


def create(name: str) -> Operation[str]:
    return operations.create(f"{PREFIX}/{name}", [URL])


def test_many_operations_share_one_session_and_a_few_connections(network: MemoryNetwork) -> None:
    names = [f"many-{number}" for number in range(100)]
    assert sorted(network.do(*map(create, names))) == sorted(f"{PREFIX}/{name}" for name in names)
    assert network.opcodes.count(OpCode.SESSION_SETUP) == 1
    assert 1 < network.opened <= exchange_module.CONNECTIONS
    assert 1 < network.most_in_flight <= WINDOW


def test_a_lost_response_to_a_change_is_an_unknown_outcome_and_never_sent_twice(network: MemoryNetwork) -> None:
    network.do(create("before"))
    network.on_reply = lambda _connection, opcode, reply: None if opcode is OpCode.CREATE_HANDLE else reply
    (result,) = network.do(create("lost"))
    assert isinstance(result, UnknownOutcome)
    assert network.opcodes.count(OpCode.CREATE_HANDLE) == 3  # the first one was challenged
    network.on_reply = lambda _connection, _opcode, reply: reply
    ((value,),) = network.do(operations.resolve(f"{PREFIX}/lost"))
    assert value.data == URL.data, "it had been made"


@pytest.mark.parametrize(
    "value", [Value(1, "DESC", bytes(400_000)), Value(1 << 40, "DESC", b"x")], ids=["too large", "index"]
)
def test_a_request_that_cannot_be_encoded_fails_alone(network: MemoryNetwork, value: Value) -> None:
    network.do(create("before"))
    (result,) = network.do(operations.create(f"{PREFIX}/never", [value]))
    assert type(result) is ClientError
    assert result.detail.startswith("The request cannot be sent: ")
    assert network.do(create("after")) == [f"{PREFIX}/after"]


def test_only_what_was_sent_has_an_unknown_outcome(network: MemoryNetwork) -> None:
    """The rest waits and is done over another connection."""
    network.do(create("before"))
    connection = network.exchange.connections[0]
    network.results.clear()
    network.exchange.submit(create("sent"), network.results.append)
    network.sent.clear()
    connection.is_open = False  # so the next one is only queued
    network.exchange._limit = 1
    network.exchange.submit(create("queued"), network.results.append)
    connection.is_open = True
    network.exchange.lost(connection, "cut")
    while network.sent:
        network.deliver(*network.sent.popleft())
    assert [type(result) for result in network.results] == [UnknownOutcome, str]


def test_a_read_is_repeated_over_a_new_connection(network: MemoryNetwork) -> None:
    network.do(create("read"))
    cuts = iter([True])
    network.on_reply = lambda _connection, _opcode, reply: None if next(cuts, False) else reply
    ((value,),) = network.do(operations.resolve(f"{PREFIX}/read"))
    assert value.data == URL.data


def test_a_server_that_closes_every_connection_gets_one_for_each_message(network: MemoryNetwork) -> None:
    """Deployed servers do."""
    closed: list[Connection] = []

    def close(connection: Connection, _opcode: OpCode, reply: bytes) -> bytes | None:
        if connection in closed:
            return None
        closed.append(connection)
        return reply

    network.on_reply = close
    names = [f"deployed-{number}" for number in range(5)]
    assert sorted(network.do(*map(create, names))) == [f"{PREFIX}/{name}" for name in names]
    assert network.opened == len(closed)


def test_an_ended_session_is_renewed_and_nothing_is_done_twice(network: MemoryNetwork) -> None:
    network.do(create("first"))
    assert network.protocol.session is not None
    network.protocol.session.id += 1_000
    names = [f"renewed-{number}" for number in range(10)]
    assert sorted(network.do(*map(create, names))) == [f"{PREFIX}/{name}" for name in names]
    assert network.opcodes.count(OpCode.SESSION_SETUP) == 2


def test_a_server_that_ends_every_session_is_not_asked_forever(network: MemoryNetwork) -> None:
    network.do(create("first"))

    def forget(_connection: Connection, opcode: OpCode, reply: bytes) -> bytes:
        if opcode is OpCode.SESSION_SETUP:
            network.server.server.sessions._sessions.clear()  # type: ignore[attr-defined]
        return reply

    assert network.protocol.session is not None
    network.protocol.session.id += 1_000
    network.on_reply = forget
    (result,) = network.do(create("never"))
    assert isinstance(result, Refused)
    assert network.opcodes.count(OpCode.SESSION_SETUP) == 2


def test_private_values_are_encrypted(network: MemoryNetwork) -> None:
    secret = Value(5, "NOTE", b"only for us", permissions=HIDDEN)
    seen: list[bytes] = []
    deliver = network.deliver
    network.deliver = lambda connection, data: (seen.append(data), deliver(connection, data))[1]  # type: ignore[method-assign, func-returns-value]
    network.do(operations.create(f"{PREFIX}/private", [URL, secret]))
    (values,) = network.do(operations.resolve(f"{PREFIX}/private", private=False))
    assert [value.index for value in values] == [1]
    assert not any(secret.data in data for data in seen)
    anonymous = NativeProtocol(None, None)
    anonymous.site = SITE
    with pytest.raises(ProtocolError, match="only in a session"):
        next(anonymous.perform(operations.add(f"{PREFIX}/private", [secret])))


@pytest.mark.parametrize(("version", "is_requested"), [((2, 11), False), ((2, 7), True), ((2, 1), True)])
def test_private_values_are_read_encrypted_from_old_servers_too(
    network: MemoryNetwork, version: tuple[int, int], is_requested: bool
) -> None:
    admin = Value(100, "HS_ADMIN", Admin(ValueRef(301, ADMIN)).to_bytes())
    secret = Value(5, "NOTE", b"only for us", permissions=HIDDEN)
    network.do(operations.create(f"{PREFIX}/private", [URL, secret, admin]))
    network.protocol.session = None
    network.protocol.site = replace(SITE, protocol_version=version)
    sent: list[bool] = []
    replies: list[bytes] = []
    deliver = network.deliver

    def keep(_connection: Connection, _opcode: OpCode, reply: bytes) -> bytes:
        replies.append(reply)
        return reply

    def look(connection: Connection, data: bytes) -> None:
        sent.append(Envelope.from_bytes(data).encrypted)
        deliver(connection, data)

    network.do(operations.resolve(f"{PREFIX}/private"))
    network.deliver = look  # type: ignore[method-assign]
    network.on_reply = keep
    (values,) = network.do(operations.resolve(f"{PREFIX}/private", private=True))
    assert secret.data in [value.data for value in values]
    assert not any(secret.data in reply for reply in replies)
    assert sent[0] is is_requested, "newer servers encrypt by themselves"


@pytest.mark.parametrize("key", [RSA_KEY, SERVER_KEY], ids=["another key", "the key"])
def test_the_pinned_key_must_be_that_of_the_server(network: MemoryNetwork, key: PrivateKey) -> None:
    network.protocol.server_key = key.public
    (result,) = network.do(operations.site_information())
    if key is SERVER_KEY:
        assert result == SITE
    else:
        assert isinstance(result, ProtocolError)
        assert result.detail == "The server does not have the expected key"


def test_a_site_without_servers_is_refused() -> None:
    """No server could be asked, so lists would be empty, and changes would seem to be made."""
    with pytest.raises(ProtocolError, match="has no servers"):
        operations.read_site(SiteInfo(replace(SITE, servers=()).to_bytes()))


def test_a_changed_response_is_refused(network: MemoryNetwork) -> None:
    network.do(create("first"))

    def change(_connection: Connection, _opcode: OpCode, reply: bytes) -> bytes:
        return reply[:-1] + bytes([reply[-1] ^ 1])

    network.on_reply = change
    (result,) = network.do(operations.resolve(f"{PREFIX}/first"))
    assert isinstance(result, ProtocolError)
    (result,) = network.do(create("second"))
    assert isinstance(result, ProtocolError)
    assert "may have been made" in result.advice


def test_only_lists_have_several_messages(network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are in memory, and many are in progress: a server could send messages without an end."""
    network.do(create("first"))
    monkeypatch.setattr(VerifiedResponse, "more_follows", True)
    (result,) = network.do(operations.resolve(f"{PREFIX}/first"))
    assert isinstance(result, ProtocolError)
    assert "only a list" in result.detail


def test_without_an_answer_a_connection_is_given_up(network: MemoryNetwork) -> None:
    network.exchange.submit(operations.site_information(), network.results.append)
    network.exchange.expire(float("inf"), "no answer")
    (result,) = network.results
    assert isinstance(result, Unreachable)
    assert not network.exchange.connections


def test_the_port_of_the_http_api_is_recognized(network: MemoryNetwork) -> None:
    network.on_reply = lambda _connection, _opcode, _reply: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    (result,) = network.do(operations.site_information())
    assert isinstance(result, Unreachable)
    assert result.detail == ANSWERS_IN_HTTP


def test_an_answer_to_another_request_ends_the_connection(network: MemoryNetwork) -> None:
    network.exchange.submit(operations.site_information(), network.results.append)
    (connection, data) = network.sent.popleft()
    (frame,) = frames_of((data,), "tcp")
    other = replace(frame.envelope, request_id=frame.envelope.request_id + 1)
    network.exchange.received(connection, other.to_bytes() + frame.payload, 0.0)
    (result,) = network.results
    assert isinstance(result, Unreachable)
    assert "was not sent" in result.detail


# Recorded exchanges

KEYS: dict[int, PrivateKey | bytes] = {300: RSA_KEY, 301: SECRET}
CONVERSATIONS = {
    name: vectors
    for name, vectors in conversations(
        "admin-rsa.json", "admin-sec.json", "lists.json", "mint.json", "prefixes.json", "session.json", "siteinfo.json"
    ).items()
    if ".tcp" in name and (not name.startswith("session:") or name in ("session:session-dh-plain.tcp", SIGNED_SESSION))
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_client_sends_exactly_the_recorded_messages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deployed clients do not demand certified responses or ask to keep the connection; everything else is the same."""
    monkeypatch.setattr(exchange_module, "_DEMANDED_FLAGS", OpFlag(0))
    identity: str | None = None
    randomness: deque[bytes] = deque()
    performed: list[Operation[Any]] = []
    sent_at = 0
    for vector in CONVERSATIONS[name]:
        (frame,) = frames_of(vector.request, vector.transport)
        message = Message.from_bytes(frame.envelope, frame.payload, recorded.NOW)
        body = REQUEST_DECODERS[message.header.opcode](message.body_reader(), message.version, recorded.NOW)
        if isinstance(body, ChallengeResponse):
            identity = f"{body.index}:{body.handle.decode()}"
            randomness += [body.answer[5:21]] if body.auth_type == "HS_SECKEY" else []
        elif isinstance(body, SessionSetup):
            pair = DhKeyPair(DhPublicKey.from_bytes(body.public_key), int(vector.keys["dh_client_x"], 16))
            monkeypatch.setattr(client_module, "generate_key_pair", lambda _group, _random, pair=pair: pair)
            monkeypatch.setattr(Client, "begin_session", partialmethod(Client.begin_session, timeout=body.timeout))
        else:
            usual, flags = default_flags(message.header.opcode), message.header.flags
            performed.append(Operation(message.header.opcode, body, list, flags & ~usual, usual & ~flags))
        sent_at = message.header.expires - MESSAGE_LIFETIME
        randomness.append((message.envelope.request_id - 1).to_bytes(4, "big"))
    protocol = NativeProtocol(
        identity,
        None if identity is None else KEYS[int(identity.partition(":")[0])],
        server_key=SERVER_KEY.public,
        sessions=name.startswith("session:"),
        clock=lambda: sent_at,
        random=lambda _: randomness.popleft(),
    )
    protocol.site = SITE

    def perform_all() -> Flow[None]:
        for operation in performed:
            with suppress(ClientError):
                yield from protocol.perform(operation)

    flow = perform_all()
    message_to_send: Outgoing | None = next(flow)
    for vector in CONVERSATIONS[name]:
        assert message_to_send is not None
        (frame,) = frames_of((message_to_send.data,), "tcp")
        is_datagram = vector.transport == "udp"  # setups were recorded over UDP
        assert (split(frame.envelope, frame.payload, request=True) if is_datagram else [message_to_send.data]) == list(
            vector.request
        )
        for frame in frames_of(vector.response, vector.transport):
            message_to_send = next(_send(flow, frame))
    assert message_to_send is None
    assert not randomness


def _send(flow: Flow[None], frame: Frame) -> Iterator[Outgoing | None]:
    """What follows a frame; None at the end."""
    try:
        yield flow.send(frame)
    except StopIteration:
        yield None

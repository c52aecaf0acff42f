"""The client of the tests, against a server with plain sockets."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.server.native.server import NativeServer
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import Envelope, Header
from perseid.wire.requests import HandleRequest, Resolve
from perseid.wire.responses import ResolutionResult
from tests.server.native.native_client import Address, NativeClient, NoAnswer, Via
from tests.server.native.native_servers import (
    ADMIN,
    BY_ADMINS,
    NOW,
    PREFIX,
    PROOFS,
    RSA,
    SEC,
    SITE,
    STD,
    make_server,
    receive,
    recorded_registry,
)

URL = Value.text(1, "URL", "https://example.org/new")


class _PlainServer:
    """The server that both handlers share, one thread at a time."""

    def __init__(self, native_server: NativeServer) -> None:
        self.native_server = native_server
        self.reassembler = Reassembler()

    def answer(self, frame: Frame, transport: Transport) -> list[Any]:
        return [one.reply for one in receive(self.native_server, frame, "127.0.0.1", NOW, transport)]


def _tcp(native_server: _PlainServer) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            reader = FrameReader()
            while raw := self.request.recv(65_536):
                reader.feed(raw)
                for frame in reader.frames():
                    for reply in native_server.answer(frame, Transport.TCP):
                        self.request.sendall(reply.to_stream())
                    header, _ = Header.from_bytes(frame.payload, frame.envelope.version, 0)
                    if OpFlag.KEEP_CONNECTION not in header.flags:
                        return

    return Handler


def _udp(native_server: _PlainServer) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            packet, back = self.request
            envelope = Envelope.from_bytes(packet)
            whole: tuple[Envelope, bytes] | None = (envelope, packet[20:])
            if envelope.truncated:
                whole = native_server.reassembler.receive("client", packet, NOW)
            for reply in native_server.answer(Frame(*whole), Transport.UDP) if whole else []:
                for piece in reply.to_packets():
                    back.sendto(piece, self.client_address)

    return Handler


def _servers(native_server: "_PlainServer") -> tuple[socketserver.TCPServer, socketserver.UDPServer]:
    """TCP and UDP servers at one port; retries if another test has the port over UDP."""
    while True:
        streams = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _tcp(native_server))
        try:
            return streams, socketserver.UDPServer(streams.server_address[:2], _udp(native_server))
        except OSError:
            streams.server_close()


@contextmanager
def _listening() -> Iterator[Address]:
    """A server at one port, over UDP and TCP."""
    with recorded_registry() as registry:
        native_server = _PlainServer(NativeServer(registry, make_server(), SITE))
        streams, datagrams = _servers(native_server)
        with streams, datagrams:
            servers: tuple[socketserver.BaseServer, ...] = (streams, datagrams)
            threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
            for thread in threads:
                thread.start()
            try:
                yield "127.0.0.1", streams.server_address[1]
            finally:
                for server in servers:
                    server.shutdown()
                for thread in threads:
                    thread.join()


@pytest.fixture
def address() -> Iterator[Address]:
    with _listening() as found:
        yield found


def _client(address: Address, via: Via) -> NativeClient:
    return NativeClient(address, via, clock=lambda: NOW)


@pytest.mark.parametrize("via", Via)
def test_client_resolves_over_every_transport(address: Address, via: Via) -> None:
    with _client(address, via) as client:
        found = [client.resolve(name) for name in (STD, f"{PREFIX}/vec-big", f"{PREFIX}/none")]
        assert [one.code for one in found] == [
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
            ResponseCode.HANDLE_NOT_FOUND,
        ]
        assert isinstance(found[1].body, ResolutionResult)
        assert len(found[1].body.values[0].data) == 1_200
        assert client.resolve(STD, flags=OpFlag.CERTIFY | OpFlag.PUBLIC_ONLY).is_certified
        assert client.connections == {Via.UDP: 0, Via.TCP: 5, Via.KEPT: 1}[via]


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("identity", [RSA, SEC], ids=["RSA", "secret"])
@pytest.mark.parametrize("via", Via)
def test_client_administers(address: Address, via: Via, identity: Any, in_session: bool) -> None:
    name = f"{PREFIX}/made"
    with _client(address, via) as client:
        client.act_as(f"{identity.index}:{identity.handle.decode()}", PROOFS[identity])
        if in_session:
            client.begin_session()
        done = [
            client.create(name, (URL, BY_ADMINS)),
            client.create(name, (URL, BY_ADMINS)),
            client.create(name, (URL, BY_ADMINS), OpFlag.OVERWRITE),
            client.add(name, Value.text(2, "EMAIL", "a@example.org")),
            client.modify(name, Value.text(2, "EMAIL", "b@example.org")),
            client.remove(name, 2),
        ]
        if via is not Via.UDP:
            assert name.upper().encode() in [found.upper() for found in client.list_handles(ADMIN)]
        done.append(client.delete(name))
        ended = client.end_session()
        assert ended is None or ended.code is ResponseCode.SUCCESS
        assert client.connections == 1 or via is not Via.KEPT
    codes = [answer.code for answer in done]
    assert codes[1] is ResponseCode.HANDLE_ALREADY_EXISTS
    assert {*codes[:1], *codes[2:]} == {ResponseCode.SUCCESS}


def test_anonymous_client_gets_the_challenge(address: Address) -> None:
    with _client(address, Via.TCP) as client:
        assert client.create(f"{PREFIX}/made", (URL,)).code is ResponseCode.AUTHENTICATION_NEEDED
        client.begin_session()
        assert client.do(OpCode.SESSION_TERMINATE, HandleRequest()).code is ResponseCode.SUCCESS


def test_closed_connection_is_reopened(address: Address) -> None:
    with _client(address, Via.KEPT) as client:
        assert client.resolve(STD).code is ResponseCode.SUCCESS
        resolve = Resolve(STD.encode())
        client.ask(client.client.request(OpCode.RESOLUTION, resolve, NOW, flags=OpFlag.PUBLIC_ONLY))
        assert client._stream is not None
        client._stream.settimeout(10)
        assert client._stream.recv(1, socket.MSG_PEEK) == b""  # the request did not ask that the connection be kept
        assert client.resolve(STD).code is ResponseCode.SUCCESS
        assert client.connections == 2


def test_missing_response_is_an_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        with NativeClient(deaf.getsockname(), Via.UDP, timeout=0.07) as client, pytest.raises(NoAnswer):
            client.resolve(STD)
        assert len({deaf.recv(512)[8:12] for _ in range(3)}) == 1


def test_truncated_response_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as native_server:

        def close() -> None:
            native_server.accept()[0].close()

        thread = threading.Thread(target=close)
        thread.start()
        with NativeClient(native_server.getsockname()[:2]) as client, pytest.raises(ConnectionError):
            client.resolve(STD)
        thread.join()

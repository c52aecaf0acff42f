"""Pipelined messages over TCP: other connections have their turn in between."""

import asyncio
from typing import Any

from perseid.registry.installation.settings import Config
from perseid.server.limits.budgets import Connections
from perseid.server.native.tcp import MAX_MESSAGES_PER_TURN, Connection
from perseid.wire.codes import DEFAULT_FLAGS, OpFlag
from tests.server.native.resolution_states import RequestFields

KEPT = RequestFields(b"10.1/x", flags=int(DEFAULT_FLAGS | OpFlag.KEEP_CONNECTION)).to_bytes()
HOST = "127.0.0.1"


class Service:
    """What a connection needs of its service: every message is a public resolution."""

    def __init__(self) -> None:
        self.connections = Connections(Config.parse("", {}))
        self.open: set[Connection] = set()
        self.draining = False
        self.waiting = self.answered = 0

    def now(self) -> float:
        return 0.0

    def try_fast_path(self, data: bytes, host: str) -> bytes | None:
        assert host == HOST
        if data != KEPT:  # several at once
            return None
        self.answered += 1
        return b"a response"


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written, self.is_reading, self.is_closed = b"", True, False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def connect(service: Service) -> tuple[Connection, Transport]:
    transport: Any = Transport()
    made: Any = service
    assert made.connections.admit(HOST)
    connection = Connection(made, HOST)
    connection.connection_made(transport)
    return connection, transport


async def pass_turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_connections_share_an_iteration() -> None:
    """So another client waits for one message of each, and not for 32."""

    async def run() -> None:
        service = Service()
        pairs = [connect(service) for _ in range(40)]
        for connection, transport in pairs:
            connection.data_received(KEPT * 64)
            assert not transport.is_reading
        for _ in range(8):
            before = service.answered
            await asyncio.sleep(0)
            assert 0 < service.answered - before <= 40
        await pass_turns()
        assert (service.answered, service.waiting) == (40 * 64, 0)
        for connection, transport in pairs:
            assert transport.written == b"a response" * 64
            assert transport.is_reading
            connection.data_received(KEPT)
            assert transport.written == b"a response" * 65

    asyncio.run(run())


def test_one_connection_takes_a_few_messages_at_a_time() -> None:
    async def run() -> None:
        service = Service()
        connection, transport = connect(service)
        connection.data_received(KEPT * MAX_MESSAGES_PER_TURN)
        assert service.answered == MAX_MESSAGES_PER_TURN
        assert transport.is_reading, "there is nothing left"
        connection.data_received(KEPT * (2 * MAX_MESSAGES_PER_TURN) + KEPT[:30])
        assert service.answered == 2 * MAX_MESSAGES_PER_TURN
        await pass_turns()
        assert (service.answered, transport.is_reading) == (3 * MAX_MESSAGES_PER_TURN, True)
        connection.data_received(KEPT[30:])
        assert service.answered == 3 * MAX_MESSAGES_PER_TURN + 1

    asyncio.run(run())


def test_messages_that_wait_are_answered_after_the_end_of_the_stream() -> None:
    async def run() -> None:
        service = Service()
        connection, transport = connect(service)
        connection.data_received(KEPT * 100)
        assert connection.eof_received()
        await pass_turns()
        assert (service.answered, transport.is_closed, service.waiting) == (100, True, 0)

    asyncio.run(run())


def test_messages_wait_while_the_client_does_not_read() -> None:
    async def run() -> None:
        service = Service()
        connection, transport = connect(service)
        connection.data_received(KEPT * 100)
        connection.pause_writing()
        await pass_turns()
        assert (service.answered, service.waiting, transport.is_reading) == (MAX_MESSAGES_PER_TURN, 0, False)
        connection.resume_writing()
        await pass_turns()
        assert (service.answered, transport.is_reading) == (100, True)

    asyncio.run(run())


def test_lost_connection_waits_for_no_turn() -> None:
    async def run() -> None:
        service = Service()
        connection, _ = connect(service)
        connection.data_received(KEPT * 100)
        assert service.waiting == 1
        connection.connection_lost(None)
        await pass_turns()
        assert (service.answered, service.waiting) == (MAX_MESSAGES_PER_TURN, 0)
        assert len(service.connections) == 0

    asyncio.run(run())

"""Administration of one server over the native protocol, with asyncio. See `native`.

    async with AsyncNativeClient("id.example.org", identity="300:0.NA/12345", key=private_key) as client:
        await client.create("12345/x", [Value.text(1, "URL", "https://example.org/")])

Operations that run at the same time share the connections and the session.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.site import Site

from . import native_operations as operations
from .connections import look_up_async
from .errors import ClientError
from .native import CLOSE_SECONDS, DEFAULT_PORT, DEFAULT_TIMEOUT, Address, describe, describe_silence
from .native_exchange import CONNECTIONS, REFILL, WINDOW, Connection, Exchange, NativeProtocol
from .native_operations import Operation

T = TypeVar("T")


class AsyncNativeClient:
    """Administers one server in an event loop, like `NativeClient`: its methods are awaited, also `server_key`."""

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        identity: str | ValueRef | None = None,
        key: PrivateKey | Path | bytes | str | None = None,
        server_key: PublicKey | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        connections: int = CONNECTIONS,
    ) -> None:
        self.address: Address = (host, port)
        self.timeout = timeout
        self._protocol = NativeProtocol(identity, key, server_key=server_key)
        self._exchange = Exchange(
            self._protocol, connect=self._connect, write=_write, close=_close, connections=connections
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session and close the connections. Operations that still run end with an error."""
        if self._protocol.session is not None and self._exchange.connections:
            ended = asyncio.Event()
            self._exchange.cancel(operations.end_session(), lambda _: ended.set())
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await ended.wait()
            self._protocol.session = None
        self._exchange.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await asyncio.sleep(0)  # the transports then close their sockets

    async def server_key(self) -> PublicKey:
        """Return the key of the server: the pinned one, or the one it has shown."""
        if self._protocol.server_key is None:
            await self.site()
        return cast("PublicKey", self._protocol.server_key)

    async def do(self, operation: Operation[T]) -> T:
        """Perform one operation. If the caller is canceled, an operation that was sent still takes effect."""
        result = await self._submit_many((operation,))[0]
        if isinstance(result, ClientError):
            raise result
        return result

    async def do_many(self, operations: Iterable[Operation[T]]) -> AsyncIterator[T | ClientError]:
        """Perform operations side by side; yield a result or the error for each, in their order."""
        pending = iter(operations)
        running: deque[asyncio.Future[T | ClientError]] = deque()
        while True:
            if len(running) <= REFILL:
                running += self._submit_many(islice(pending, WINDOW - len(running)))
            if not running:
                return
            yield await running.popleft()

    async def create(self, handle: str, values: Iterable[Value], *, overwrite: bool = False, mint: bool = False) -> str:
        """Create a handle, and return its name; with `mint` the server completes the name."""
        return await self.do(operations.create(handle, values, overwrite=overwrite, mint=mint))

    async def add(self, handle: str, values: Iterable[Value], *, overwrite: bool = False) -> None:
        """Add values to a record; with `overwrite` they replace those with the same index."""
        await self.do(operations.add(handle, values, overwrite=overwrite))

    async def modify(self, handle: str, values: Iterable[Value]) -> None:
        """Replace the values that have these indexes."""
        await self.do(operations.modify(handle, values))

    async def remove(self, handle: str, indexes: Iterable[int]) -> None:
        """Remove values from a record."""
        await self.do(operations.remove(handle, indexes))

    async def delete(self, handle: str) -> None:
        """Delete a record."""
        await self.do(operations.delete(handle))

    async def resolve(
        self, handle: str, *, types: Sequence[str] = (), indexes: Sequence[int] = (), private: bool = False
    ) -> tuple[Value, ...]:
        """Return the values of a handle; with `private` those too that only administrators can read."""
        return await self.do(operations.resolve(handle, types=types, indexes=indexes, private=private))

    async def list_handles(self, prefix: str) -> list[str]:
        """List the handles under a prefix."""
        return await self.do(operations.list_handles(prefix))

    async def visit_handles(self, prefix: str, visit: Callable[[str], None]) -> None:
        """Call a function with each handle under a prefix, as they arrive: for lists of any length."""
        await self.do(operations.visit_handles(prefix, visit))

    async def list_prefixes(self) -> list[str]:
        """List the prefixes that the server hosts, as prefix handles."""
        return await self.do(operations.list_prefixes())

    async def home(self, prefix: str) -> None:
        """Have the server host a prefix."""
        await self.do(operations.home(prefix))

    async def unhome(self, prefix: str) -> None:
        """Have the server no longer host a prefix; its handles stay stored."""
        await self.do(operations.unhome(prefix))

    async def site(self) -> Site:
        """Return what the server says about its site."""
        return await self.do(operations.site_information())

    # Transports

    def _submit_many(self, wanted: Iterable[Operation[T]]) -> "list[asyncio.Future[T | ClientError]]":
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = []
        submitted = []
        for operation in wanted:
            future: asyncio.Future[Any] = loop.create_future()
            futures.append(future)
            submitted.append((operation, partial(_finish, future)))
        self._exchange.submit_many(submitted)
        self._watch()
        return futures

    def _watch(self) -> None:
        """Look now and then for connections where nothing arrives, while something is in progress."""
        if self._timer is None and self._exchange.in_progress:
            self._timer = asyncio.get_running_loop().call_later(self.timeout / 4, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._exchange.expire(time.monotonic() - self.timeout, describe_silence(self.address, self.timeout))
        self._watch()

    def _connect(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(self._open(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, connection: Connection) -> None:
        host, port = self.address
        try:
            async with asyncio.timeout(self.timeout):
                await self._open_at(await look_up_async(host, self.timeout), connection)
        except OSError as error:
            self._exchange.lost(connection, f"Cannot connect to {host}:{port}: {describe(error)}")

    async def _open_at(self, addresses: tuple[str, ...], connection: Connection) -> None:
        """Connect to the first of some addresses where the server listens."""
        loop, (_, port) = asyncio.get_running_loop(), self.address
        for number, address in enumerate(addresses, 1):
            try:
                await loop.create_connection(lambda: _Protocol(self._exchange, connection), address, port)
            except OSError:
                if number == len(addresses):
                    raise
            else:
                return


def _finish(future: "asyncio.Future[Any]", result: object) -> None:
    if not future.done():  # the caller may be gone
        future.set_result(result)


class _Protocol(asyncio.Protocol):
    def __init__(self, exchange: Exchange, connection: Connection) -> None:
        self._exchange, self._connection = exchange, connection

    def connection_made(self, transport: Any) -> None:
        self._connection.channel = transport
        if self._connection in self._exchange.connections:
            self._exchange.opened(self._connection)
        else:  # given up while it was opened
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._exchange.received(self._connection, data, time.monotonic())

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection in self._exchange.connections:
            reason = describe(error) if isinstance(error, OSError) else "the server closed the connection"
            self._exchange.lost(self._connection, reason)


def _write(connection: Connection) -> None:
    connection.channel.write(connection.take())


def _close(connection: Connection) -> None:
    if connection.channel is not None:
        connection.channel.abort()

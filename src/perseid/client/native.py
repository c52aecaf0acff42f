"""Administration of one server over the native protocol: create, change, delete and list handles.

    with NativeClient("id.example.org", identity="300:0.NA/12345", key=private_key) as client:
        client.create("12345/x", [Value.text(1, "URL", "https://example.org/")])
        for result in client.do_many(operations.create(f"12345/{n}", values) for n in range(10_000)):
            ...

Everything happens in a session (Diffie–Hellman), which starts with the first operation and is renewed when the server
has ended it. Every response must be certified: signed by the key of the server, or with the MAC of the session. The key
is the one that the caller pins; without one, that of the server's site information, which `server_key` then shows.

`native_async` has the same client for asyncio.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar, cast

from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.site import Site

from . import native_operations as operations
from .connections import open_stream
from .errors import ClientError
from .native_exchange import CLOSED, CONNECTIONS, REFILL, WINDOW, Connection, Exchange, NativeProtocol
from .native_operations import Operation

DEFAULT_PORT: Final = 2641
"""The registered port of the protocol."""

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds without a byte from the server until a connection counts as lost, as in deployed clients."""

CLOSE_SECONDS: Final = 5.0
"""Seconds to wait at the end until the server has ended the session: it ends by itself when it is not used."""

RECEIVE_SIZE: Final = 65_536
"""Bytes read at a time."""

T = TypeVar("T")
Address: TypeAlias = tuple[str, int]


class NativeClient:
    """Administers one server. Use it in one thread at a time, and in a `with` statement; any thread can close it.

    `identity` names the key, as `300:0.NA/12345`; `key` is the private key, the `Path` of its file, or the secret as
    text or bytes. `server_key` is the expected key of the server. `timeout` is in seconds, for a connection and for
    each wait for data. `connections` is how many `do_many` uses.
    """

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
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._is_closing = False
        self._exchange = Exchange(
            self._protocol, connect=self._connect, write=self._write, close=self._close, connections=connections
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session and close the connections. Operations that still run end with an error."""
        self._is_closing = True
        for connection in list(self._exchange.connections):  # so that another thread no longer waits for them
            if connection.waiting and isinstance(connection.channel, _Stream):
                with suppress(OSError):
                    connection.channel.socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if self._protocol.session is not None and self._exchange.connections:
                self.timeout = min(self.timeout, CLOSE_SECONDS)
                ended: list[object] = []
                self._exchange.cancel(operations.end_session(), ended.append)
                while not ended:
                    self._wait()
                self._protocol.session = None
            self._exchange.close()
            self._selector.close()

    @property
    def server_key(self) -> PublicKey:
        """The key of the server: the pinned one, or the one it has shown."""
        if self._protocol.server_key is None:
            self.site()
        return cast("PublicKey", self._protocol.server_key)

    def do(self, operation: Operation[T]) -> T:
        """Perform one operation of `native_operations`, and return its result; raises `ClientError`."""
        (result,) = self.do_many((operation,))
        if isinstance(result, ClientError):
            raise result
        return result

    def do_many(self, operations: Iterable[Operation[T]]) -> Iterator[T | ClientError]:
        """Perform operations side by side; yield a result or the error for each, in their order."""
        with self._lock:
            for connection in list(self._exchange.connections):  # closed ones, before anything is sent on them
                self._receive(connection, time.monotonic())
        results: dict[int, T | ClientError] = {}
        pending = iter(operations)
        submitted = yielded = 0
        while True:
            if submitted - yielded <= REFILL:
                batch = list(islice(pending, WINDOW - (submitted - yielded)))
                with self._lock:
                    self._exchange.submit_many(
                        [(each, partial(results.__setitem__, number)) for number, each in enumerate(batch, submitted)]
                    )
                submitted += len(batch)
            if yielded == submitted:
                return
            with self._lock:
                while yielded not in results:
                    self._step()
            yield results.pop(yielded)
            yielded += 1

    def create(self, handle: str, values: Iterable[Value], *, overwrite: bool = False, mint: bool = False) -> str:
        """Create a handle, and return its name; with `mint` the server completes the name."""
        return self.do(operations.create(handle, values, overwrite=overwrite, mint=mint))

    def add(self, handle: str, values: Iterable[Value], *, overwrite: bool = False) -> None:
        """Add values to a record; with `overwrite` they replace those with the same index."""
        self.do(operations.add(handle, values, overwrite=overwrite))

    def modify(self, handle: str, values: Iterable[Value]) -> None:
        """Replace the values that have these indexes."""
        self.do(operations.modify(handle, values))

    def remove(self, handle: str, indexes: Iterable[int]) -> None:
        """Remove values from a record."""
        self.do(operations.remove(handle, indexes))

    def delete(self, handle: str) -> None:
        """Delete a record."""
        self.do(operations.delete(handle))

    def resolve(
        self, handle: str, *, types: Sequence[str] = (), indexes: Sequence[int] = (), private: bool = False
    ) -> tuple[Value, ...]:
        """Return the values of a handle; with `private` those too that only administrators can read."""
        return self.do(operations.resolve(handle, types=types, indexes=indexes, private=private))

    def list_handles(self, prefix: str) -> list[str]:
        """List the handles under a prefix."""
        return self.do(operations.list_handles(prefix))

    def visit_handles(self, prefix: str, visit: Callable[[str], None]) -> None:
        """Call a function with each handle under a prefix, as they arrive: for lists of any length."""
        self.do(operations.visit_handles(prefix, visit))

    def list_prefixes(self) -> list[str]:
        """List the prefixes that the server hosts, as prefix handles."""
        return self.do(operations.list_prefixes())

    def home(self, prefix: str) -> None:
        """Have the server host a prefix."""
        self.do(operations.home(prefix))

    def unhome(self, prefix: str) -> None:
        """Have the server no longer host a prefix; its handles stay stored."""
        self.do(operations.unhome(prefix))

    def site(self) -> Site:
        """Return what the server says about its site."""
        return self.do(operations.site_information())

    # Sockets

    def _connect(self, connection: Connection) -> None:
        try:
            stream = open_stream(*self.address, self.timeout)
        except OSError as error:
            connection.channel = error
            return
        stream.setblocking(False)
        connection.channel = _Stream(stream)
        connection.is_open = True
        self._selector.register(stream, selectors.EVENT_READ, connection)

    def _write(self, connection: Connection) -> None:
        stream: _Stream = connection.channel
        stream.unsent += connection.take()
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        stream: _Stream = connection.channel
        try:
            sent = stream.socket.send(stream.unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._exchange.lost(connection, describe(error))
            return
        del stream.unsent[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.unsent else 0)
        self._selector.modify(stream.socket, events, connection)

    def _close(self, connection: Connection) -> None:
        if isinstance(connection.channel, _Stream):
            self._selector.unregister(connection.channel.socket)
            connection.channel.socket.close()

    def _step(self) -> None:
        """Wait until something has happened, and handle it, or end everything if the client is being closed."""
        if not self._is_closing:
            self._wait()
        if self._is_closing:
            self._exchange.cancel()

    def _wait(self) -> None:
        failed = [each for each in self._exchange.connections if isinstance(each.channel, OSError)]
        for connection in failed:
            host, port = self.address
            self._exchange.lost(connection, f"Cannot connect to {host}:{port}: {describe(connection.channel)}")
        if failed:
            return
        ready = self._selector.select(self.timeout)
        now = time.monotonic()
        for key, events in ready:
            connection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ and connection in self._exchange.connections:
                self._receive(connection, now)
        self._exchange.expire(now - self.timeout, describe_silence(self.address, self.timeout))

    def _receive(self, connection: Connection, now: float) -> None:
        try:
            data = connection.channel.socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._exchange.lost(connection, describe(error))
            return
        if data:
            self._exchange.received(connection, data, now)
        else:
            self._exchange.lost(connection, CLOSED if self._is_closing else "the server closed the connection")


@dataclass(slots=True)
class _Stream:
    socket: socket.socket
    unsent: bytearray = field(default_factory=bytearray)


def describe_silence(address: Address, timeout: float) -> str:
    """Return the reason for giving up a server that does not answer."""
    return f"no answer from {address[0]}:{address[1]} within {timeout:g} s"


def describe(error: OSError) -> str:
    """Return the reason in words."""
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    return error.strerror or str(error) or type(error).__name__

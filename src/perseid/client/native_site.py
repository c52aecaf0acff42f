"""Administration of a site over the native protocol: each operation goes to the server that has the handle.

    with SiteClient("id.example.org", identity="300:0.NA/12345", key=private_key) as client:
        client.create("12345/x", [Value.text(1, "URL", "https://example.org/")])

The first server says what its site consists of, certified with its key; so the keys of the others are as trustworthy as
that one. With one server, which nearly all sites have, this is a `NativeClient`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

from perseid.records.keys import PublicKey
from perseid.records.partition import find_server_index
from perseid.records.private_keys import PrivateKey
from perseid.records.record import ValueRef
from perseid.records.site import Purpose, Site, Transport
from perseid.wire.codes import OpFlag

from . import native_operations as operations
from .errors import ClientError, Unreachable
from .native import DEFAULT_PORT, DEFAULT_TIMEOUT, NativeClient
from .native_exchange import CONNECTIONS, WINDOW
from .native_operations import Operation

_NO_ADDRESS = bytes(16)

T = TypeVar("T")


class SiteClient(NativeClient):
    """Administers the servers of a site, of which one is named, with the parameters and methods of `NativeClient`.

    Operations about one handle go to its server; lists, `home` and `unhome` to all servers.
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
        super().__init__(
            host,
            port,
            identity=identity,
            key=key,
            server_key=server_key,
            timeout=timeout,
            connections=connections,
        )
        self._credentials = identity, key
        self._connections = connections
        self._known: Site | None = None
        self._others: dict[int, NativeClient] = {}

    def close(self) -> None:
        """End all sessions and close all connections."""
        super().close()  # first, so that no other one is opened meanwhile
        for other in list(self._others.values()):
            other.close()

    def do_many(self, operations: Iterable[Operation[T]]) -> Iterator[T | ClientError]:
        """Perform operations, those of each server side by side; yield a result or the error for each, in order."""
        try:
            is_alone = len(self._site().servers) == 1
        except ClientError as error:
            yield from (error for _ in operations)
            return
        if is_alone:
            yield from super().do_many(operations)
            return
        pending = iter(operations)
        while batch := list(islice(pending, WINDOW)):
            results: dict[int, T | ClientError] = {}
            by_server: dict[int, list[int]] = {}
            for number, operation in enumerate(batch):
                by_server.setdefault(self._find(operation), []).append(number)
            for position, numbers in by_server.items():
                wanted = [batch[number] for number in numbers]
                try:
                    done = list(self._perform(position, wanted))
                except ClientError as error:
                    done = [error] * len(wanted)
                results.update(zip(numbers, done, strict=True))
            yield from [results[number] for number in range(len(batch))]

    def list_handles(self, prefix: str) -> list[str]:
        """List the handles under a prefix, of all servers."""
        return [name for names in self._ask_all(operations.list_handles(prefix)) for name in names]

    def visit_handles(self, prefix: str, visit: Callable[[str], None]) -> None:
        """Call a function with each handle under a prefix, server by server."""
        self._ask_all(operations.visit_handles(prefix, visit))

    def list_prefixes(self) -> list[str]:
        """List the prefixes that the servers host, each once."""
        return list(dict.fromkeys(name for names in self._ask_all(operations.list_prefixes()) for name in names))

    def home(self, prefix: str) -> None:
        """Have all servers host a prefix."""
        self._ask_all(operations.home(prefix))

    def unhome(self, prefix: str) -> None:
        """Have no server host a prefix any longer; its handles stay stored."""
        self._ask_all(operations.unhome(prefix))

    def site(self) -> Site:
        """Return what the named server says about its site."""
        (result,) = super().do_many((operations.site_information(),))
        if isinstance(result, ClientError):
            raise result
        return result

    def _site(self) -> Site:
        if self._known is None:
            self._known = self.site()
        return self._known

    def _find(self, operation: Operation[object]) -> int:
        """The position of the server for an operation. Each server can mint, and tell about the site."""
        site = self._site()
        handle = cast("bytes", getattr(operation.body, "handle", b""))
        if not handle or OpFlag.MINT_SUFFIX in operation.flags:
            return self._own_position()
        name = handle if b"/" in handle else b"0.NA/" + handle
        return find_server_index(name, site.hash_option, len(site.servers))

    def _own_position(self) -> int:
        """The position of the server that was named: the one with the key it has shown."""
        return next((n for n, server in enumerate(self._site().servers) if server.key == self.server_key), 0)

    def _ask_all(self, operation: Operation[T]) -> list[T]:
        results = []
        for position in range(len(self._site().servers)):
            (result,) = self._perform(position, [operation])
            if isinstance(result, ClientError):
                raise result
            results.append(result)
        return results

    def _perform(self, position: int, wanted: Sequence[Operation[T]]) -> Iterator[T | ClientError]:
        """Perform operations at one server."""
        site = self._site()
        if len(site.servers) == 1 or position == self._own_position():
            return super().do_many(wanted)
        if position not in self._others:
            self._others[position] = self._connect_to(site, position)
        if self._is_closing:  # also if it was opened at the same time
            self._others[position].close()
        return self._others[position].do_many(wanted)

    def _connect_to(self, site: Site, position: int) -> NativeClient:
        server = site.servers[position]
        interface = server.interface(Transport.TCP, Purpose.ADMIN) or server.interface(Transport.TCP, Purpose.QUERY)
        domain = site.attribute(f"domain.{position}") or site.attribute("domain")
        host = domain if domain and server.address == _NO_ADDRESS else str(server.ip)
        if interface is None or server.key is None:
            raise Unreachable(f"Server {position + 1} of the site, {host}, has no TCP interface and key for changes")
        identity, key = self._credentials
        return NativeClient(
            host,
            interface.port,
            identity=identity,
            key=key,
            server_key=server.key,
            timeout=self.timeout,
            connections=self._connections,
        )

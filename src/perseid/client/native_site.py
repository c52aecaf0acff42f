"""Administration of a site over the native protocol: each operation goes to the server that has the handle.

    with SiteClient("id.example.org", identity="300:0.NA/12345", key=private_key) as client:
        client.create("12345/x", [Value.text(1, "URL", "https://example.org/")])

The first server says what its site consists of, certified with its key; so the keys of the others are as trustworthy as
that one. With one server, which nearly all sites have, this is a `NativeClient`; also if a server whose key is pinned
does not say what its site consists of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
from .errors import ClientError, UnexpectedKey, Unreachable
from .native import DEFAULT_PORT, DEFAULT_TIMEOUT, NativeClient
from .native_exchange import CONNECTIONS, WINDOW
from .native_operations import Operation

_NO_ADDRESS = bytes(16)

T = TypeVar("T")


class SiteClient(NativeClient):
    """Administers the servers of a site, of which one is named, with the parameters and methods of `NativeClient`.

    Operations about one handle go to its server; lists, `home` and `unhome` to all servers. Their errors name the
    server, and those of `home` and `unhome` the servers that were changed before.
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
        self._is_pinned = server_key is not None
        self._is_alone = False
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
            site = self._site()
        except ClientError as error:
            yield from (error for _ in operations)
            return
        if site is None:
            yield from super().do_many(operations)
            return
        pending = iter(operations)
        while batch := list(islice(pending, WINDOW)):
            results: dict[int, T | ClientError] = {}
            by_server: dict[int, list[int]] = {}
            for number, operation in enumerate(batch):
                by_server.setdefault(self._find(operation, site), []).append(number)
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
        found: list[str] = []
        self.visit_handles(prefix, found.append)
        return found

    def visit_handles(self, prefix: str, visit: Callable[[str], None]) -> None:
        """Call a function with each handle under a prefix, server by server.

        Copies of handles that belong to another server, which administrators of the server see, are left out.
        """
        site = self._site()
        for position in range(1 if site is None else len(site.servers)):
            self._ask(position, operations.visit_handles(prefix, partial(_visit_own, site, position, visit)))

    def list_prefixes(self) -> list[str]:
        """List the prefixes that the servers host, each once."""
        return list(dict.fromkeys(name for names in self._ask_all(operations.list_prefixes()) for name in names))

    def home(self, prefix: str) -> None:
        """Have all servers host a prefix."""
        self._ask_all(operations.home(prefix), changes=True)

    def unhome(self, prefix: str) -> None:
        """Have no server host a prefix any longer; its handles stay stored."""
        self._ask_all(operations.unhome(prefix), changes=True)

    def site(self) -> Site:
        """Return what the named server says about its site."""
        (result,) = super().do_many((operations.site_information(),))
        if isinstance(result, ClientError):
            raise result
        return result

    def _site(self) -> Site | None:
        """The site if it has several servers; None if there is only the named one, as far as is known."""
        if self._known is None and not self._is_alone:
            try:
                found = self.site()
            except (Unreachable, UnexpectedKey):
                raise
            except ClientError:
                if not self._is_pinned:
                    raise
                self._is_alone = True
                return None
            self._is_alone = len(found.servers) == 1
            self._known = None if self._is_alone else found
        return self._known

    def _find(self, operation: Operation[object], site: Site) -> int:
        """The position of the server for an operation. Each server can mint, and tell about the site."""
        handle = cast("bytes", getattr(operation.body, "handle", b""))
        if not handle or OpFlag.MINT_SUFFIX in operation.flags:
            return self._own_position(site)
        name = handle if b"/" in handle else b"0.NA/" + handle
        return find_server_index(name, site.hash_option, len(site.servers))

    def _own_position(self, site: Site) -> int:
        """The position of the server that was named: the one with the key it has shown."""
        return next((n for n, server in enumerate(site.servers) if server.key == self.server_key), 0)

    def _ask_all(self, operation: Operation[T], *, changes: bool = False) -> list[T]:
        site = self._site()
        return [self._ask(n, operation, changes=changes) for n in range(1 if site is None else len(site.servers))]

    def _ask(self, position: int, operation: Operation[T], *, changes: bool = False) -> T:
        """Perform an operation at one server after the others; an error names it, and what was changed before."""
        site = self._site()
        try:
            (result,) = self._perform(position, [operation])
        except ClientError as error:
            result = error
        if not isinstance(result, ClientError):
            return result
        if site is not None:
            before = ", ".join(str(each + 1) for each in range(position)) or "none"
            changed = f"; servers changed before: {before}" if changes else ""
            result.detail = f"Server {position + 1} of the site, {_host(site, position)}: {result.detail}{changed}"
        raise result

    def _perform(self, position: int, wanted: Sequence[Operation[T]]) -> Iterator[T | ClientError]:
        """Perform operations at one server."""
        site = self._site()
        if site is None or position == self._own_position(site):
            return super().do_many(wanted)
        if position not in self._others:
            self._others[position] = self._connect_to(site, position)
        if self._is_closing:  # also if it was opened at the same time
            self._others[position].close()
        return self._others[position].do_many(wanted)

    def _connect_to(self, site: Site, position: int) -> NativeClient:
        server = site.servers[position]
        interface = server.interface(Transport.TCP, Purpose.ADMIN) or server.interface(Transport.TCP, Purpose.QUERY)
        host = _host(site, position)
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


def _host(site: Site, position: int) -> str:
    server = site.servers[position]
    domain = site.attribute(f"domain.{position}") or site.attribute("domain")
    return domain if domain and server.address == _NO_ADDRESS else str(server.ip)


def _visit_own(site: Site | None, position: int, visit: Callable[[str], None], name: str) -> None:
    """Visit a handle that a server has listed, if it belongs to that server."""
    if (
        site is None
        or find_server_index(name.encode("utf-8", "surrogateescape"), site.hash_option, len(site.servers)) == position
    ):
        visit(name)

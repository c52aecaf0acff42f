"""HTTP requests and responses, independent of any connection.

The target is kept as the bytes received: names can contain anything, and only the handler knows how to decode them.
Header names are lowercase; header values have no surrounding whitespace.

An unknown method gets 501; a method that the resource lacks gets 405 with `Allow`. TRACE is known but never served: it
would show a client's headers to any script that can send it.
"""

import ipaddress
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_HEAD: Final = 8_192
"""Bytes of the request line and all headers, as in deployed servers: a percent-encoded handle of 2,048 bytes fits."""

MAX_BODY: Final = 1 << 20
"""Bytes of a body: a record of 1,000 URLs has about 100,000."""

HeaderList = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Client:
    """The other end, as far as the connection shows."""

    host: str
    """The address of the client; with a trusted proxy, the one that the proxy reports."""
    secure: bool = False
    """Whether the connection is encrypted: TLS up to here, or up to a trusted proxy that reports it."""
    local: bool = False
    """Whether the client is on this machine and the request was not forwarded."""
    trusted: bool = False
    """Whether the peer is a trusted proxy."""
    certificate: bytes | None = None
    """The certificate whose key the client has proved to hold, in DER; its owner is not checked yet."""

    @property
    def private(self) -> bool:
        """Whether secrets may be exchanged."""
        return self.secure or self.local


@dataclass(slots=True)
class Request:
    """An HTTP request."""

    method: str
    """As received, case-sensitive."""
    target: bytes
    """As received, percent-encoded, without fragment; an absolute form without scheme and authority."""
    headers: list[tuple[str, str]] = field(default_factory=list, repr=False)
    """As received; bytes beyond ASCII are decoded as Latin-1."""
    body: bytes = field(default=b"", repr=False)
    client: Client = field(default_factory=lambda: Client("127.0.0.1"))
    version: str = "1.1"

    @property
    def path(self) -> bytes:
        """The target before the question mark."""
        return self.target.partition(b"?")[0]

    @property
    def query(self) -> bytes:
        """The target after the question mark."""
        return self.target.partition(b"?")[2]

    def header(self, name: str) -> str | None:
        """Return the first header with a lowercase name; None if there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: str) -> list[str]:
        """Return all headers with a lowercase name."""
        return [value for key, value in self.headers if key == name]

    def get_joined(self, name: str) -> str:
        """Return all headers of a name, joined with commas."""
        return ", ".join(self.all(name))


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response. `Date`, `Content-Length` and connection headers are added when it is sent."""

    status: int
    headers: HeaderList = ()
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    """A body of unknown length that is generated while it is sent."""
    close: bool = False
    """Whether the connection is closed afterwards."""
    code: int = 0
    """The Handle System response code, for counters and the log; 0 for none."""
    name: str = ""
    """The handle, for the log."""
    identity: str = ""
    """The authenticated identity, for the log."""

    def __post_init__(self) -> None:
        for name, value in self.headers:
            if not is_header_text(value):
                raise ValueError(f"the header {name} has a control character, or one beyond Latin-1")

    def values(self, name: str) -> Iterator[str]:
        """Iterate over the headers of a name, in any case."""
        return (value for key, value in self.headers if key.lower() == name.lower())

    def with_headers(self, *more: tuple[str, str]) -> "Response":
        """Return a copy with headers appended."""
        return Response(
            self.status,
            (*self.headers, *more),
            self.body,
            self.stream,
            self.close,
            self.code,
            self.name,
            self.identity,
        )


def is_header_text(value: str) -> bool:
    """Whether text is allowed in a header: printable ASCII and Latin-1, no line ends."""
    return value.isprintable() and (value.isascii() or max(value) <= "\xff")


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


OPTIONS: Final = "OPTIONS"

KNOWN_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", OPTIONS, "TRACE"))
"""Case-sensitive: `get` is unknown."""

SAFE_METHODS: Final = ("GET", "HEAD")


def allow_header(methods: Iterable[str]) -> tuple[str, str]:
    """The `Allow` header for a resource; every resource has OPTIONS."""
    return "Allow", ", ".join((*methods, OPTIONS))

"""A request as it came and an answer as it goes, without any connection.

The target is kept in the octets that came, for names may hold anything and only the part that answers knows how to
read them. Names of headers are lower case; their values have no blanks around them.

Which methods there are, and what an answer says about those that a resource has.

A method that nobody knows is 501, one that the resource lacks is 405 with those that it has. TRACE is known and served
nowhere: it would show a client's headers to whatever script can send it.
"""

import ipaddress
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_HEAD: Final = 8_192
"""Octets of the request line and all headers, as in deployed servers: 2,048 of a handle, percent-encoded, fit."""

MAX_BODY: Final = 1 << 20
"""Octets of a body: a record of 1,000 URLs has about 100,000."""

HeaderList = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end, as far as the connection tells."""

    host: str
    """The address of the client; behind a trusted proxy the one that the proxy names."""
    secure: bool = False
    """Whether nobody on the way can read along: TLS up to here, or up to a trusted proxy that says so."""
    local: bool = False
    """Whether it is on this machine, and asks for itself: no header says that the request was passed on."""
    trusted: bool = False
    """Whether the peer is a trusted proxy, which is believed what it says about the client."""
    certificate: bytes | None = None
    """The certificate that the client has proved to hold the key of, in DER; nobody has looked whose it is."""

    @property
    def private(self) -> bool:
        """Whether secrets may be told."""
        return self.secure or self.local


@dataclass(slots=True)
class Request:
    """A request."""

    method: str
    """As it came, letters as they are."""
    target: bytes
    """As it came, percent signs and all, without a fragment; in absolute form without scheme and authority."""
    headers: list[tuple[str, str]] = field(default_factory=list, repr=False)
    """As they came; octets beyond ASCII as the characters of the same numbers (Latin 1)."""
    body: bytes = field(default=b"", repr=False)
    client: Client = field(default_factory=lambda: Client("127.0.0.1"))
    version: str = "1.1"

    @property
    def path(self) -> bytes:
        """The target up to the question mark."""
        return self.target.partition(b"?")[0]

    @property
    def query(self) -> bytes:
        """The target behind the question mark."""
        return self.target.partition(b"?")[2]

    def header(self, name: str) -> str | None:
        """The first header of a name, in lower case; None if there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: str) -> list[str]:
        """All headers of a name, in lower case."""
        return [value for key, value in self.headers if key == name]

    def get_joined(self, name: str) -> str:
        """What all headers of a name say together, as a list with commas."""
        return ", ".join(self.all(name))


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `Date`, `Content-Length` and what concerns the connection are added where it is sent."""

    status: int
    headers: HeaderList = ()
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    """A body that is made while it is sent, of unknown length."""
    close: bool = False
    """Whether the connection ends with it."""
    code: int = 0
    """The code of the Handle System that it stands for, for counters and the log; 0 for none."""
    name: str = ""
    """The handle that it was about, for the log."""
    identity: str = ""
    """Who asked, as far as they have proved it, for the log."""

    def __post_init__(self) -> None:
        for name, value in self.headers:
            if not is_header_text(value):
                raise ValueError(f"the header {name} would hold a control character, or one beyond Latin 1")

    def values(self, name: str) -> Iterator[str]:
        """What headers of a name say; the name in any case."""
        return (value for key, value in self.headers if key.lower() == name.lower())

    def with_headers(self, *more: tuple[str, str]) -> "Response":
        """The same with further headers behind those that are there."""
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
    """Whether text may stand in a header: printable ASCII and Latin 1, and nothing that ends a line."""
    return value.isprintable() and (value.isascii() or max(value) <= "\xff")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


OPTIONS: Final = "OPTIONS"

KNOWN_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", OPTIONS, "TRACE"))
"""Letters as they stand here; `get` is another method, and unknown."""

SAFE_METHODS: Final = ("GET", "HEAD")


def allow_header(methods: Iterable[str]) -> tuple[str, str]:
    """The header that says which methods a resource has; OPTIONS is one of every resource."""
    return "Allow", ", ".join((*methods, OPTIONS))

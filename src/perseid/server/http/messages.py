"""HTTP requests and responses, independent of any connection.

The target is kept as the bytes received: names can contain anything, and only the handler knows how to decode them.
Header names are lowercase; header values have no surrounding whitespace.

The path is percent-decoded once, as UTF-8, and the rest of it is the name: slashes, dots, semicolons and plus signs
are ordinary characters, and nothing is normalized (http-api reference, 3.1). Old clients send a bare percent sign at
the very end; any other invalid escape is refused, and so is NUL, which no name can contain. In parameters a plus sign
is a space, and only `&` separates (3.2). An invalid escape is kept as it is.

An unknown method gets 501; a method that the resource lacks gets 405 with `Allow`. TRACE is known but never served: it
would show a client's headers to any script that can send it.
"""

import ipaddress
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import quote

from perseid.names.errors import quote_text
from perseid.wire.codes import ResponseCode

MAX_HEAD: Final = 8_192
"""Bytes of the request line and all headers, as in deployed servers: a percent-encoded handle of 2,048 bytes fits."""

MAX_BODY: Final = 1 << 20
"""Bytes of a body: a record of 1,000 URLs has about 100,000. Uploaded files are streamed, and not limited by it."""

HeaderList = tuple[tuple[str, str], ...]

# What is printable in Latin-1; faster than `isprintable`, and every response is checked several times.
_HEADER_TEXT: Final = re.compile("[\x20-\x7e\xa1-\xac\xae-\xff]*")


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
    stream: AsyncIterator[bytes] | None = field(default=None, repr=False)
    """A large body that arrives while the request is handled; `body` is then empty. Raises `BadRequest`."""

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

    async def read_parts(self) -> AsyncIterator[bytes]:
        """Iterate over the parts of the body, which may still arrive; raises `BadRequest`."""
        if self.stream is None:
            yield self.body
            return
        async for part in self.stream:
            yield part

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
        if not is_header_text("".join([value for _, value in self.headers])):  # faster than one by one
            wrong = next(name for name, value in self.headers if not is_header_text(value))
            raise ValueError(f"the header {wrong} has a control character, or one beyond Latin-1")

    def values(self, name: str) -> Iterator[str]:
        """Iterate over the headers of a name, in any case."""
        name = name.lower()
        return (value for key, value in self.headers if key.lower() == name)

    def with_headers(self, *more: tuple[str, str]) -> "Response":
        """Return a copy with headers appended."""
        return self._copy(more, self.code, self.name)

    def with_name(self, code: int, name: str) -> "Response":
        """Return a copy with a response code and a handle."""
        return self._copy((), code, name)

    def _copy(self, more: HeaderList, code: int, name: str) -> "Response":
        copy = Response(self.status, more, self.body, self.stream, self.close, code, name, self.identity)
        object.__setattr__(copy, "headers", (*self.headers, *more))  # the others have been checked
        return copy


def is_header_text(value: str) -> bool:
    """Whether text is allowed in a header: printable ASCII and Latin-1, no line ends."""
    is_usual = value.isascii() and value.isprintable()  # found out faster
    return is_usual or _HEADER_TEXT.fullmatch(value) is not None


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


# Targets

MAX_PARAMETERS: Final = 10_000
"""Parameters of one request: a head of 8 KiB has room for 4,096, and a body does not need many more."""

API_PATH: Final = b"/api"
"""Everything below it is JSON."""

CONSOLE_PATH: Final = b"/console"

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_INVALID_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_SAFE_CHARACTERS: Final = "!$'()*,:@;=+"  # allowed in a path as they are
_INT32: Final = range(-0x8000_0000, 0x8000_0000)
_TRUE: Final = ("", "true", "yes")


class BadRequest(Exception):
    """An invalid request; nothing was done."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: ResponseCode = ResponseCode.PROTOCOL_ERROR,
        *,
        advice: str = "",
        echo_name: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong; and how to fix it, unless that is `advice`."""
        self.advice = advice
        self.status = status
        self.code = code
        self.echo_name = echo_name
        """Whether the response contains the handle."""


def is_api(path: bytes) -> bool:
    """Whether a path belongs to an API."""
    return path == API_PATH or path.startswith(API_PATH + b"/")


def is_console(path: bytes) -> bool:
    """Whether a path belongs to the web console."""
    return path == CONSOLE_PATH or path.startswith(CONSOLE_PATH + b"/")


@dataclass(frozen=True, slots=True)
class Name:
    """A name as written in a request."""

    text: str
    """The text; bytes that are not UTF-8 are U+FFFD."""
    is_text: bool = True
    """Whether all of it is UTF-8."""


def percent_decode(data: bytes) -> bytes:
    """Decode escapes once; invalid escapes stay as they are."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), data) if b"%" in data else data


def parse_name(data: bytes) -> Name:
    """Decode the name in a path; raises `BadRequest`."""
    for match in _INVALID_ESCAPE.finditer(data):
        if match.start() < len(data) - 1:
            escape = quote_text(data[match.start() : match.start() + 3].decode("latin-1"))
            message = f"{escape} in the path is not a valid escape; write a percent sign of the name as %25"
            raise BadRequest(message)
    decoded = percent_decode(data)
    if b"\0" in decoded:
        raise BadRequest("the path contains NUL (%00), which is not allowed in names")
    try:
        return Name(decoded.decode("utf-8"))
    except UnicodeDecodeError:
        return Name(decoded.decode("utf-8", "replace"), is_text=False)


def encode_path(name: str) -> str:
    """Encode a name for a path so that clients and proxies leave it alone.

    If a segment would be empty or all dots, which some of them normalize, slashes are escaped as well.
    """
    is_plain = not {"", ".", ".."} & set(name.split("/"))
    return quote(name, safe=_SAFE_CHARACTERS + "/" if is_plain else _SAFE_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters in order; names are case-sensitive and may repeat."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, query: bytes) -> Self:
        """Parse a query or a form body; raises `BadRequest`."""
        parts = query.split(b"&", MAX_PARAMETERS)
        if len(parts) > MAX_PARAMETERS:
            raise BadRequest(f"too many parameters; the maximum is {MAX_PARAMETERS:,}")
        return cls(tuple([_parse_pair(part) for part in parts if part]))

    def plus(self, more: Iterable[tuple[str, str]]) -> Self:
        """Return a copy with more parameters appended."""
        return type(self)((*self.pairs, *more))

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)

    def all(self, name: str) -> list[str]:
        """All values of a parameter."""
        return [value for key, value in self.pairs if key == name]

    def first(self, name: str) -> str | None:
        """The first value of a parameter; None if it is absent."""
        return next((value for key, value in self.pairs if key == name), None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether a parameter is present and empty, `true` or `yes`, in any case."""
        value = self.first(name)
        return default if value is None else value.lower() in _TRUE

    def numbers(self, name: str) -> list[int]:
        """All values of a parameter as 32-bit integers; raises `BadRequest`."""
        return [_parse_number(name, value) for value in self.all(name)]

    def number(self, name: str) -> int | None:
        """The first value of a parameter as 32-bit integer; None if it is absent. Raises `BadRequest`."""
        value = self.first(name)
        return None if value is None else _parse_number(name, value)


def _parse_pair(part: bytes) -> tuple[str, str]:
    key, _, value = part.replace(b"+", b" ").partition(b"=")
    return percent_decode(key).decode("utf-8", "replace"), percent_decode(value).decode("utf-8", "replace")


def _parse_number(name: str, value: str) -> int:
    if _NUMBER.fullmatch(value) is None or int(value) not in _INT32:
        raise BadRequest(f"the parameter {name} must be a 32-bit integer; it is {quote_text(value)}")
    return int(value)

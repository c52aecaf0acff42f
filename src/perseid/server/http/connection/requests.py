"""Request parsing: heads, and bodies with a length or in chunks (RFC 9112, 7.1).

A head is parsed when it is complete. Request smuggling exploits two parsers that read the same bytes differently, so
nothing is guessed, everything ambiguous is refused, and each part is parsed once, by one parser:

- The request line has its own rule (RFC 9112, 3). That of llhttp accepts two spaces, HTTP/2.0 and RTSP, and refuses
  unknown methods and bytes beyond ASCII, which some clients send in names; so llhttp gets a substitute line.
- llhttp parses the headers, in its strict setting: no bare LF or CR, no space before the colon, no folded line, no
  control characters, no name that is not a token, no length that is not a number, no second Content-Length, none with
  Transfer-Encoding. Stricter rules apply when it calls back: see `HeaderFields`.
- Bodies are framed here: llhttp's binding tells neither the size of a chunk before it arrives nor where a body ends.

Clients nearly always repeat the same headers on a connection. Those of the last request without a body are kept with
everything derived from them; if the bytes are the same, so is the rest.

Bodies consume bytes until they are complete and return where they end; what follows is the next request. The framing of
chunks is limited too: otherwise a body of one byte could have gigabytes of it. A large one is not collected: it is
passed on while it arrives (`BodyStream`).
"""

import asyncio
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol

import httptools

from perseid.server.http.clients import FORWARDING_HEADERS, Peer
from perseid.server.http.messages import MAX_BODY, MAX_HEAD, BadRequest, Request

MAX_CHUNK_LINE: Final = 256
"""Bytes of the line before a chunk, without CR LF: a size has at most 16, and nobody uses extensions."""

MAX_FRAMING_BYTES: Final = 1 << 16
"""Bytes of all framing of chunks, including trailers: enough for the largest body in chunks of 128. A streamed body can
have as much more for each `MAX_BODY` bytes."""

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")


class Body(Protocol):
    """A body that is being received."""

    data: bytearray
    """The bytes received; those of a streamed body are removed when they are passed on."""
    received: int
    """How many bytes were received."""
    whole: bool
    """Whether it is complete."""

    def take(self, data: bytes, start: int) -> int:
        """Consume data from an offset; return the offset after the body's part. Raises `ProtocolError`."""


class SizedBody:
    """A body with Content-Length."""

    __slots__ = ("_length", "data", "received", "whole")

    def __init__(self, length: int) -> None:
        self._length = length
        self.data = bytearray()
        self.received = 0
        self.whole = False

    def take(self, data: bytes, start: int) -> int:
        """Consume what is missing, if it is there."""
        end = min(len(data), start + self._length - self.received)
        self.data += memoryview(data)[start:end]
        self.received += end - start
        self.whole = self.received == self._length
        return end


class _Line(Enum):
    """The next line of a chunked body."""

    SIZE = auto()
    END_OF_CHUNK = auto()
    TRAILER = auto()


class ChunkedBody:
    """A chunked body. Extensions and trailers must be valid, and are ignored."""

    __slots__ = ("_framing", "_is_streamed", "_line", "_next", "_remaining", "data", "received", "whole")

    def __init__(self, *, is_streamed: bool = False) -> None:
        """The size of a streamed body is not limited here."""
        self.data = bytearray()
        self.received = 0
        self.whole = False
        self._is_streamed = is_streamed
        self._line = b""  # the start of an incomplete line
        self._remaining = 0  # bytes of the chunk that have not arrived
        self._framing = 0
        self._next = _Line.SIZE

    def take(self, data: bytes, start: int) -> int:
        """Consume lines and chunks up to the empty line at the end."""
        at = start
        while at < len(data) and not self.whole:
            if self._remaining:
                end = min(len(data), at + self._remaining)
                self.data += memoryview(data)[at:end]
                self._remaining -= end - at
                self.received += end - at
                at = end
            else:
                at = self._take_line(data, at)
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        """Consume a line, or the part of it that has arrived."""
        buffered = len(self._line)
        part = data[at : at + MAX_CHUNK_LINE + 2 - buffered]
        line = self._line + part
        end = line.find(b"\r\n")
        self._framing += len(part) if end < 0 else end + 2 - buffered
        limit = MAX_FRAMING_BYTES * (1 + self.received // MAX_BODY if self._is_streamed else 1)
        if self._framing > limit:
            raise ProtocolError(400, f"the framing of the chunked body has more than {limit} bytes")
        if end < 0:
            if len(line) == MAX_CHUNK_LINE + 2:
                raise ProtocolError(400, f"a line in the chunked body is longer than {MAX_CHUNK_LINE} bytes")
            self._line = line
            return at + len(part)
        self._line = b""
        self._parse_line(line[:end])
        return at + end + 2 - buffered

    def _parse_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._remaining = self._parse_size(line)
            self._next = _Line.END_OF_CHUNK if self._remaining else _Line.TRAILER
        elif self._next is _Line.END_OF_CHUNK:
            if line:
                raise ProtocolError(400, "a chunk of the body is not followed by CR LF; check its size")
            self._next = _Line.SIZE
        elif not line:
            self.whole = True
        else:
            _check_trailer(line)

    def _parse_size(self, line: bytes) -> int:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError(400, "a chunk of the body does not start with its size in hexadecimal digits and CR LF")
        size = int(match[1], 16)
        if size + self.received > MAX_BODY and not self._is_streamed:
            raise body_too_large()
        return size


def _check_trailer(line: bytes) -> None:
    """Refuse a malformed trailer, or one that belongs into the head (RFC 9110, 6.5.1)."""
    match = _TRAILER.fullmatch(line)
    if match is None:
        raise ProtocolError(400, "a trailer of the chunked body is malformed")
    name = match[1].decode().lower().replace("_", "-")
    if name in SENSITIVE_HEADERS:
        raise ProtocolError(400, f"the header {name} is not allowed after the body; send it before")


MAX_HEADERS: Final = 100
"""Headers of a request: browsers send about twenty, with proxies about thirty."""

MAX_LENGTH_DIGITS: Final = 20
"""Digits of a Content-Length, leading zeros included: enough for 64 bits. Python does not convert more than 4,300."""

END_OF_HEAD: Final = b"\r\n\r\n"
"""The end of a head."""

CHUNKED: Final = -1
"""The length of a chunked body."""

_REQUEST_LINE = re.compile(  # RFC 9112, 3; plus bytes beyond ASCII
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e\x80-\xff]+) HTTP/([0-9]\.[0-9])\r\n"
)
_COMMON_REQUEST_LINE = re.compile(rb"GET (/[\x21\x22\x24-\x7e\x80-\xff]*) HTTP/1\.1\r\n")  # without a fragment
_PARTIAL_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (/[\x21\x22\x24-\x3e\x40-\x7e\x80-\xff]*)")
_HTTP09_LINE = re.compile(rb"[A-Z]+ (/[\x21-\x7e\x80-\xff]*)\r\n")
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?#@]+([/?].*|)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"[0-9A-Za-z\-._~%!$&'()*+;=:\[\]]*")  # RFC 3986, 3.2.2 and 3.2.3, without the comma of lists
_BARE_LF = re.compile(rb"(?<!\r)\n")

_RequestLine = tuple[str, bytes, str, int]  # method, target, version, and the end of the line with its CR LF

_VERSIONS: Final = {b"1.1": "1.1", b"1.0": "1.0"}
_LINE_FOR_LLHTTP: Final = b"GET / HTTP/1.1"

_UNIQUE_HEADERS: Final = frozenset(("host", "content-length", "transfer-encoding", "content-encoding", "expect"))
_SIGNIFICANT_HEADERS: Final = _UNIQUE_HEADERS | FORWARDING_HEADERS | {"connection"}
SENSITIVE_HEADERS: Final = _SIGNIFICANT_HEADERS | {
    "authorization",
    "content-type",
    "cookie",
    "origin",
    "proxy-connection",
}
"""Headers that decide something; a name that resembles one is refused, as a proxy may have read it as such."""

_TOO_LARGE_MESSAGE: Final = f"the request line and the headers together are larger than {MAX_HEAD} bytes"
_BARE_LF_MESSAGE: Final = "a line of the request ends with LF only; end lines with CR LF"
_MALFORMED_MESSAGE: Final = (
    "the headers of the request are malformed or ambiguous; each is one line, Name: value, "
    "and a body has either one Content-Length or Transfer-Encoding: chunked"
)


class ProtocolError(Exception):
    """Input that is not a valid or supported request; the connection ends after the response."""

    def __init__(self, status: int, problem: str, path: bytes = b"", method: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        """What is wrong and what to do, in a sentence."""
        self.path = path
        """The requested path, as far as it is known."""
        self.method = method


def body_too_large() -> ProtocolError:
    """The error for a body that is larger than `MAX_BODY` and not streamed."""
    return ProtocolError(413, f"the body is larger than {MAX_BODY} bytes")


class BodyStream:
    """The body of a request that is handled while the body arrives: an asynchronous iterator over its parts.

    The connection reads only while somebody waits for the next part, so that no more than one is in memory.
    """

    __slots__ = ("_data", "_error", "_is_whole", "_receive", "_waiter")

    def __init__(self, receive: Callable[[], None]) -> None:
        """`receive` makes the connection `feed` the next part, now or later."""
        self._receive = receive
        self._data = b""
        self._is_whole = False
        self._error: BadRequest | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> "BodyStream":
        return self

    async def __anext__(self) -> bytes:
        """Return the next part; raises `BadRequest` if the body is invalid or incomplete."""
        if not self._data and not self._is_whole and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                self._receive()
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        if not self._data:
            raise StopAsyncIteration
        data, self._data = self._data, b""
        return data

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for the next part."""
        return self._waiter is not None

    def feed(self, data: bytes, *, is_last: bool) -> None:
        """Pass on a part."""
        self._data, self._is_whole = data, is_last
        self._wake()

    def fail(self, error: "ProtocolError") -> None:
        """Report that the rest of the body will not arrive."""
        if not self._is_whole and self._error is None:
            self._error = BadRequest(error.problem, error.status)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HeaderFields:
    """The headers of a request, and what they imply for its body and the connection.

    llhttp calls `on_header` and `on_headers_complete`, which raise `ProtocolError` for headers that are ambiguous.
    """

    __slots__ = (
        "_connection",
        "_is_complete",
        "_is_forwarded",
        "_unique",
        "_version",
        "client",
        "expects",
        "headers",
        "keep",
        "length",
        "noted",
        "raw",
    )

    def __init__(self, raw: bytes, version: str, peer: Peer) -> None:
        """Parse headers; raises `ProtocolError`."""
        self.raw = raw
        """As received, from the CR LF of the request line to the empty line."""
        self.headers: list[tuple[str, str]] = []
        """All headers, with lowercase names and without whitespace around values."""
        self.client = peer.alone
        self.keep = True
        """Whether the client wants to keep the connection open."""
        self.length = 0
        """Bytes of the body, or `CHUNKED`."""
        self.expects = False
        """Whether the client waits for 100 Continue."""
        self.noted: object = None
        """What the service has derived from them, if it stores it here: the next request may have the same headers."""
        self._version = version
        self._connection: list[str] = []
        self._unique: dict[str, str] = {}
        self._is_complete = self._is_forwarded = False
        try:
            # A parser for each head: what it keeps of a request, as a body or an upgrade, must not affect the next one.
            httptools.HttpRequestParser(self).feed_data(_LINE_FOR_LLHTTP + raw)
        except httptools.HttpParserUpgrade:
            pass  # an ordinary request here: no other protocol is supported
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except httptools.HttpParserError:
            raise ProtocolError(400, _BARE_LF_MESSAGE if _BARE_LF.search(raw) else _MALFORMED_MESSAGE) from None
        if not self._is_complete:
            raise ProtocolError(400, "the headers of the request are incomplete")
        if self._is_forwarded:
            self.client = peer.client(self.headers)

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """Receive a well-formed header."""
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        self.headers.append((name, value))
        if name in _SIGNIFICANT_HEADERS:
            if name == "connection":
                self._connection += (part.strip(" \t") for part in value.lower().split(","))
            elif name in FORWARDING_HEADERS:
                self._is_forwarded = True
            elif name in self._unique:
                raise ProtocolError(400, f"the request has more than one header {name}")
            else:
                self._unique[name] = value
        elif "_" in name and (standard := name.replace("_", "-")) in SENSITIVE_HEADERS:
            raise ProtocolError(400, f"the header {name} is not allowed; use {standard} or remove it")

    def on_headers_complete(self) -> None:
        """Decide on the connection and the body, before llhttp does."""
        self._is_complete = True
        if len(self.headers) > MAX_HEADERS:
            raise ProtocolError(431, f"the request has more than {MAX_HEADERS} headers")
        options = self._connection
        self.keep = "close" not in options and (self._version == "1.1" or "keep-alive" in options)
        host = self._unique.get("host")
        if host is None:
            if self._version == "1.1":
                raise ProtocolError(400, "the request has no Host header")
        elif not _HOST.fullmatch(host):
            raise ProtocolError(400, "the Host header is not a valid host and port")
        if len(self._unique) > (host is not None):
            self.length, self.expects = self._find_length(), self._find_expectation()

    def _find_length(self) -> int:
        if self._unique.get("content-encoding", "identity").lower() != "identity":
            raise ProtocolError(415, "Content-Encoding is not supported; send the body uncompressed")
        coding = self._unique.get("transfer-encoding")
        if coding is not None:
            if self._version != "1.1":
                raise ProtocolError(400, "Transfer-Encoding requires HTTP/1.1")
            if coding.lower() != "chunked":
                raise ProtocolError(501, "the only supported Transfer-Encoding is chunked")
            return CHUNKED
        digits = self._unique.get("content-length", "0")  # llhttp accepts digits only, and no second one
        if len(digits) > MAX_LENGTH_DIGITS:
            raise ProtocolError(400, f"the Content-Length has more than {MAX_LENGTH_DIGITS} digits; omit leading zeros")
        return int(digits)

    def _find_expectation(self) -> bool:
        expected = self._unique.get("expect")
        if expected is None or self._version != "1.1":
            return False
        if expected.lower() != "100-continue":
            raise ProtocolError(417, "the only supported expectation is 100-continue")
        return True


class ParsedRequest(Request):
    """A parsed request. Headers and fields are shared with other requests and must not be changed."""

    __slots__ = ("fields", "keep")

    def __init__(self, method: str, target: bytes, version: str, fields: HeaderFields) -> None:
        self.method = method
        self.target = target
        self.headers = fields.headers
        self.body = b""
        self.stream = None
        self.client = fields.client
        self.version = version
        self.fields = fields
        self.keep = fields.keep
        """Whether the connection stays open after the response."""


class HeadParser:
    """Parses the heads of one connection."""

    __slots__ = ("_last", "_line", "_peer")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._last: HeaderFields | None = None
        self._line: _RequestLine | None = None  # that of the head of which a part has arrived

    def parse_repeated(self, raw: bytes) -> ParsedRequest | None:
        """Parse a whole request without a body that has the same headers as the last one; None if it is not."""
        last = self._last
        if last is None or last.length:
            return None
        line = _COMMON_REQUEST_LINE.match(raw)
        if line is None or raw[line.end() - 2 :] != last.raw or len(raw) > MAX_HEAD:
            return None
        return ParsedRequest("GET", line[1], "1.1", last)

    def read(self, head: bytes) -> ParsedRequest:
        """Parse a whole head, from the request line to the empty line. Raises `ProtocolError`."""
        method, target, version, end = self._line or _parse_request_line(head)
        self._line = None
        fields, raw = self._last, head[end - 2 :]
        if fields is None or version != "1.1" or fields.raw != raw:
            try:
                fields = HeaderFields(raw, version, self._peer)
            except ProtocolError as problem:
                problem.path, problem.method = target.partition(b"?")[0], method
                raise
            self._last = fields if version == "1.1" and fields.keep else None
        return ParsedRequest(method, target, version, fields)

    def check_partial(self, raw: bytes) -> None:
        """Refuse bytes that cannot be the start of a head; raises `ProtocolError`.

        Otherwise clients that send an HTTP/0.9 request line, or end lines with LF only, would wait in vain.
        """
        start = raw[:MAX_HEAD]
        if self._line is None and b"\n" in start:
            self._line = _parse_request_line(start)
        if _BARE_LF.search(start):
            raise ProtocolError(400, _BARE_LF_MESSAGE, *guess_target(start))
        if len(raw) > MAX_HEAD:
            raise ProtocolError(431, _TOO_LARGE_MESSAGE, *guess_target(start))


def guess_target(raw: bytes) -> tuple[bytes, str]:
    """The path and the method of an incomplete request; empty if they are not known."""
    match = _PARTIAL_REQUEST_LINE.match(raw)
    return (b"", "") if match is None else (match[2], match[1].decode())


def _parse_request_line(raw: bytes) -> _RequestLine:
    line = _REQUEST_LINE.match(raw)
    if line is None:
        old = _HTTP09_LINE.match(raw)
        if old is not None:
            raise ProtocolError(505, "HTTP/0.9 is not supported; use HTTP/1.1", old[1].partition(b"?")[0])
        raise ProtocolError(400, "the request line is invalid; the format is: method, space, target, space, HTTP/1.1")
    name, target, number = line.groups()
    version = _VERSIONS.get(number)
    if version is None:
        path = target.partition(b"?")[0]
        raise ProtocolError(505, f"HTTP/{number.decode()} is not supported; use HTTP/1.1", path)
    method = name.decode()
    return method, _to_origin_form(method, target), version, line.end()


def _to_origin_form(method: str, target: bytes) -> bytes:
    """The path and query of a target in any form (RFC 9112, 3.2), without a fragment."""
    if method == "CONNECT":
        raise ProtocolError(501, "CONNECT is not supported; this server is not a proxy", method=method)
    target = target.partition(b"#")[0]
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None:
        raise ProtocolError(400, "the request target must be a path or an http or https URL", method=method)
    rest = absolute[1]
    return rest if rest.startswith(b"/") else b"/" + rest

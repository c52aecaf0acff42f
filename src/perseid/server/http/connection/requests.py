"""Bodies of requests while they come: one of a length that was said before, or one in chunks (RFC 9112, 7.1).

Both take octets until the body is whole and say how many of them belonged to it, so that what follows is the next
request's. Neither has a clock or a socket. What chunks have around them is limited too: a body of one octet could have
gigabytes of it otherwise.

The head of a request, from its first octet to the empty line, as a `Request`; or the reason why it is none.

A head is looked at when it is whole. Requests are smuggled past a proxy where two readers understand the same octets
differently, so nothing is guessed here, and whatever could be understood differently is refused:

- The request line has a rule of its own (RFC 9112, 3). That of llhttp takes two spaces, HTTP/2.0 and RTSP, and refuses
  octets beyond ASCII, which some clients send in names; so llhttp gets another line in its place.
- The lines of headers are judged by llhttp, in its strict setting: no bare LF or CR, no blank before the colon, no
  folded line, no control characters, no name that is not a token, no second Content-Length, none with
  Transfer-Encoding.
- What frames the body is read here, and only from headers in their plain form: see `_Said`.

Clients that go on asking over a connection nearly always send the same headers again. Those of the last request without
a body are kept, with all that was found out about them; if the octets are the same, so is the rest.
"""

import re
from enum import Enum, auto
from types import SimpleNamespace
from typing import Final, NoReturn, Protocol

import httptools

from perseid.server.http.clients import FORWARDING_HEADERS, Peer
from perseid.server.http.messages import MAX_BODY, MAX_HEAD, Client, Request

MAX_CHUNK_LINE: Final = 256
"""Octets of the line before a chunk, without its CR LF: a size has 16 at most, extensions are used by nobody."""

MAX_FRAMING_BYTES: Final = 1 << 16
"""Octets of all that stands around chunks, trailers too: enough for a body of the largest size in chunks of 128."""

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")


class Body(Protocol):
    """A body that comes."""

    octets: bytearray
    """What has come of it."""
    whole: bool
    """Whether it has come to its end."""

    def take(self, data: bytes, start: int) -> int:
        """Take octets from a place on; answers where those that belong to it end. Raises `Unreadable`."""


class SizedBody:
    """A body that has as many octets as Content-Length says."""

    __slots__ = ("_length", "octets", "whole")

    def __init__(self, length: int) -> None:
        self._length = length
        self.octets = bytearray()
        self.whole = False

    def take(self, data: bytes, start: int) -> int:
        """Take what is missing, if it is there."""
        end = min(len(data), start + self._length - len(self.octets))
        self.octets += memoryview(data)[start:end]
        self.whole = len(self.octets) == self._length
        return end


class _Line(Enum):
    """Which line of a chunked body comes next."""

    SIZE = auto()
    END_OF_CHUNK = auto()
    TRAILER = auto()


class ChunkedBody:
    """A body in chunks. Extensions and trailers are seen to be well formed, and mean nothing here."""

    __slots__ = ("_framing", "_left", "_line", "_next", "octets", "whole")

    def __init__(self) -> None:
        self.octets = bytearray()
        self.whole = False
        self._line = b""  # the beginning of a line of which the end has not come
        self._left = 0  # octets of the chunk that have not come
        self._framing = 0
        self._next = _Line.SIZE

    def take(self, data: bytes, start: int) -> int:
        """Take lines and chunks up to the empty line at the end."""
        at = start
        while at < len(data) and not self.whole:
            if self._left:
                end = min(len(data), at + self._left)
                self.octets += memoryview(data)[at:end]
                self._left -= end - at
                at = end
            else:
                at = self._take_line(data, at)
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        """Take a line, or as much of it as has come, and what it says."""
        kept = len(self._line)
        part = data[at : at + MAX_CHUNK_LINE + 2 - kept]
        line = self._line + part
        end = line.find(b"\r\n")
        self._framing += len(part) if end < 0 else end + 2 - kept
        if self._framing > MAX_FRAMING_BYTES:
            raise ProtocolError(400, f"the chunks of the body have more than {MAX_FRAMING_BYTES} octets around them")
        if end < 0:
            if len(line) == MAX_CHUNK_LINE + 2:
                raise ProtocolError(400, f"a line in the chunked body is longer than {MAX_CHUNK_LINE} octets")
            self._line = line
            return at + len(part)
        self._line = b""
        self._parse_line(line[:end])
        return at + end + 2 - kept

    def _parse_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._left = self._parse_size(line)
            self._next = _Line.END_OF_CHUNK if self._left else _Line.TRAILER
        elif self._next is _Line.END_OF_CHUNK:
            if line:
                raise ProtocolError(400, "a chunk of the body is not followed by CR LF; is its size wrong?")
            self._next = _Line.SIZE
        elif not line:
            self.whole = True
        else:
            _check_trailer(line)

    def _parse_size(self, line: bytes) -> int:
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise ProtocolError(400, "a chunk of the body does not begin with its size in hexadecimal digits and CR LF")
        size = int(found[1], 16)
        if size + len(self.octets) > MAX_BODY:
            raise ProtocolError(413, f"the body is larger than {MAX_BODY} octets")
        return size


def _check_trailer(line: bytes) -> None:
    """See that a trailer is one, and nothing that belongs into the head (RFC 9110, 6.5.1)."""
    found = _TRAILER.fullmatch(line)
    if found is None:
        raise ProtocolError(400, "a trailer of the chunked body is not well formed")
    name = found[1].decode().lower().replace("_", "-")
    if name in SENSITIVE_HEADERS:
        raise ProtocolError(400, f"{name} stands behind the body; it belongs before it")


MAX_HEADERS: Final = 100
"""Headers of a request: browsers send some twenty, with proxies on the way some thirty."""

END_OF_HEAD: Final = b"\r\n\r\n"
"""What ends a head."""

CHUNKED: Final = -1
"""The length of a body that says itself where it ends."""

_REQUEST_LINE = re.compile(  # RFC 9112, 3; and octets beyond ASCII, which stand for themselves
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e\x80-\xff]+) HTTP/([0-9]\.[0-9])\r\n"
)
_COMMON_REQUEST_LINE = re.compile(rb"GET (/[\x21\x22\x24-\x7e\x80-\xff]*) HTTP/1\.1\r\n")  # that, without a fragment
_PARTIAL_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (/[\x21\x22\x24-\x3e\x40-\x7e\x80-\xff]*)")
_HTTP09_LINE = re.compile(rb"[A-Z]+ (/[\x21-\x7e\x80-\xff]*)\r\n")
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?#@]+([/?].*|)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"[0-9A-Za-z\-._~%!$&'()*+;=:\[\]]*")  # RFC 3986, 3.2.2 and 3.2.3, without the comma of lists
_LENGTH = re.compile(r"[0-9]+")
_BARE_LF = re.compile(rb"(?<!\r)\n")

_VERSIONS: Final = {b"1.1": "1.1", b"1.0": "1.0"}
_LINE_FOR_LLHTTP: Final = b"GET / HTTP/1.1"

_HOST_ONLY: Final = frozenset(("host",))
_FRAMING: Final = frozenset(("content-length", "transfer-encoding"))
_UNIQUE_HEADERS: Final = frozenset(("host", "content-length", "transfer-encoding", "content-encoding", "expect"))
_SIGNIFICANT_HEADERS: Final = _UNIQUE_HEADERS | FORWARDING_HEADERS | {"connection", "proxy-connection"}
SENSITIVE_HEADERS: Final = _SIGNIFICANT_HEADERS | {"authorization", "content-type", "cookie", "origin"}
"""Headers that decide about something; one that resembles them is refused, for others may have taken it for them."""

_TOO_LARGE_MESSAGE: Final = f"the request line and the headers are larger than {MAX_HEAD} octets together"
_BARE_LF_MESSAGE: Final = "a line of the request ends with LF alone; lines end with CR LF"


class ProtocolError(Exception):
    """What came is no request, or none that is answered here; the connection ends with the answer to it."""

    def __init__(self, status: int, problem: str, path: bytes = b"", method: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        """What was wrong and what to do, in a sentence."""
        self.path = path
        """Where it was meant to go, as far as that can be seen."""
        self.method = method


class HeaderFields:
    """The headers of a request, and what they say about its body and the connection."""

    __slots__ = ("client", "expects", "headers", "keep", "length", "noted", "octets")

    def __init__(self, octets: bytes, headers: list[tuple[str, str]], client: Client) -> None:
        self.octets = octets
        """As they came, from the CR LF of the request line to the empty line."""
        self.headers = headers
        self.client = client
        self.keep = True
        """Whether the client wants to go on asking over the same connection."""
        self.length = 0
        """Octets of the body that follows, or `CHUNKED`."""
        self.expects = False
        """Whether the client waits to be told to send the body."""
        self.noted: object = None
        """What the service has found out from them, if it keeps that here: the next request may have the same."""


class ParsedRequest(Request):
    """A request that has come. Its headers and fields are those of other requests too: nobody changes them."""

    __slots__ = ("fields", "keep")

    def __init__(self, method: str, target: bytes, version: str, fields: HeaderFields) -> None:
        self.method = method
        self.target = target
        self.headers = fields.headers
        self.body = b""
        self.client = fields.client
        self.version = version
        self.fields = fields
        self.keep = fields.keep
        """Whether the connection goes on after the answer."""


class HeadParser:
    """Reads the heads of one connection."""

    __slots__ = ("_awaited", "_last", "_parser", "_peer")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._last: HeaderFields | None = None
        self._awaited: list[None] = []
        self._parser: httptools.HttpRequestParser | None = None

    def parse_repeated(self, octets: bytes) -> ParsedRequest | None:
        """A whole request without a body, if it has the same headers as the last one, and is usual; None if not."""
        last = self._last
        if last is None:
            return None
        line = _COMMON_REQUEST_LINE.match(octets)
        if line is None or octets[line.end() - 2 :] != last.octets or len(octets) > MAX_HEAD:
            return None
        return ParsedRequest("GET", line[1], "1.1", last)

    def read(self, head: bytes) -> ParsedRequest:
        """A whole head, from the first octet of the request line to the empty line. Raises `Unreadable`."""
        line = _COMMON_REQUEST_LINE.match(head)
        if line is None:
            method, target, version, end = _parse_request_line(head)
        else:
            method, target, version, end = "GET", line[1], "1.1", line.end()
        try:
            fields = self._parse_fields(head[end - 2 :], version)
        except ProtocolError as problem:
            problem.path, problem.method = target.partition(b"?")[0], method
            raise
        self._last = fields if version == "1.1" and fields.keep and fields.length == 0 else None
        return ParsedRequest(method, target, version, fields)

    def _parse_fields(self, octets: bytes, version: str) -> HeaderFields:
        self._validate(octets)
        said = _HeaderParser(octets, version)
        fields = HeaderFields(
            octets, said.headers, self._peer.client(said.headers) if said.forwarded else self._peer.alone
        )
        fields.keep = said.keep
        if said.once.keys() - _HOST_ONLY:
            fields.length, fields.expects = said.length(), said.expects()
        if fields.length or said.changes:
            self._parser = None  # it waits for a body or for the end of the connection, or has changed over
        return fields

    def _validate(self, octets: bytes) -> None:
        """Have llhttp see that headers are well formed, and that there is one head in the octets."""
        if self._parser is None:
            # No method of this object: the parser keeps what it calls, and the two would keep each other in memory.
            self._parser = httptools.HttpRequestParser(SimpleNamespace(on_headers_complete=self._awaited.clear))
        self._awaited.append(None)
        try:
            self._parser.feed_data(_LINE_FOR_LLHTTP + octets)
        except httptools.HttpParserUpgrade:
            pass  # an ordinary request for us, who speak nothing else
        except httptools.HttpParserError as error:
            self._parser = None
            _reject_headers(octets, str(error))
        if self._awaited:
            self._parser = None
            raise ProtocolError(400, "the headers of the request have no end")


def _split_lines(octets: bytes) -> list[str]:
    """The lines of headers: what is between the CR LF of the request line and the empty line."""
    return octets[2:-4].decode("latin-1").split("\r\n") if len(octets) > len(END_OF_HEAD) else []


class _HeaderParser:
    """What headers say about the body and the connection. Raises `Unreadable` if that is not clear."""

    __slots__ = ("_version", "changes", "forwarded", "headers", "keep", "once")

    def __init__(self, octets: bytes, version: str) -> None:
        """Read headers that are well formed."""
        self._version = version
        self.headers: list[tuple[str, str]] = []
        """All, with names in lower case and no blanks around values."""
        self.once: dict[str, str] = {}
        """Those of which there must not be more than one."""
        self.forwarded = False
        """Whether any says that the request was passed on."""
        self.changes = False
        """Whether any says that the connection does not simply go on."""
        connection: list[str] = []
        for line in _split_lines(octets):
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            self.headers.append((name, value))
            if name in _SIGNIFICANT_HEADERS:
                if name == "connection":
                    connection += (part.strip(" \t") for part in value.lower().split(","))
                else:
                    self._note(name, value)
            elif "_" in name and (meant := name.replace("_", "-")) in SENSITIVE_HEADERS:
                raise ProtocolError(400, f"a header is called {name}; call it {meant}, or leave it out")
        if len(self.headers) > MAX_HEADERS:
            raise ProtocolError(431, f"the request has more than {MAX_HEADERS} headers")
        self.keep = "close" not in connection and (version == "1.1" or "keep-alive" in connection)
        self.changes |= not self.keep or "upgrade" in connection
        self._check_host()

    def _note(self, name: str, value: str) -> None:
        if name in FORWARDING_HEADERS:
            self.forwarded = True
        elif name == "proxy-connection":  # means nothing here, but something to llhttp
            self.changes = True
        elif name in self.once:
            raise ProtocolError(400, f"the request has more than one header {name}")
        else:
            self.once[name] = value

    def _check_host(self) -> None:
        host = self.once.get("host")
        if host is None:
            if self._version == "1.1":
                raise ProtocolError(400, "the request has no header Host")
        elif not _HOST.fullmatch(host):
            raise ProtocolError(400, "the header Host holds something else than a name or an address, and a port")

    def length(self) -> int:
        """How long the body is."""
        if self.once.get("content-encoding", "identity").lower() != "identity":
            raise ProtocolError(415, "bodies are taken without Content-Encoding only")
        coding, length = self.once.get("transfer-encoding"), self.once.get("content-length")
        if coding is not None:
            if length is not None:
                raise ProtocolError(
                    400, "the request has Content-Length and Transfer-Encoding; it may have one of them"
                )
            if self._version != "1.1":
                raise ProtocolError(400, "Transfer-Encoding is for HTTP/1.1")
            if coding.lower() != "chunked":
                _reject_coding(coding.lower())
            return CHUNKED
        if length is None:
            return 0
        if not _LENGTH.fullmatch(length):
            raise ProtocolError(400, "Content-Length is not a number")
        if int(length) > MAX_BODY:
            raise ProtocolError(413, f"the body is larger than {MAX_BODY} octets")
        return int(length)

    def expects(self) -> bool:
        """Whether the client waits before it sends the body."""
        expected = self.once.get("expect")
        if expected is None or self._version != "1.1":
            return False
        if expected.lower() != "100-continue":
            raise ProtocolError(417, "the only expectation that is understood here is 100-continue")
        return True


def check_partial_head(octets: bytes) -> None:
    """See that octets can be the beginning of a head; raises `Unreadable` as soon as they cannot.

    Who sends the request line of HTTP/0.9, or ends lines with LF alone, would wait in vain for an answer otherwise.
    """
    beginning = octets[:MAX_HEAD]
    path, method = guess_target(beginning)
    if b"\n" in beginning:
        method, target, _, _ = _parse_request_line(beginning)
        path = target.partition(b"?")[0]
        if _BARE_LF.search(beginning):
            raise ProtocolError(400, _BARE_LF_MESSAGE, path, method)
    if len(octets) > MAX_HEAD:
        raise ProtocolError(431, _TOO_LARGE_MESSAGE, path, method)


def guess_target(octets: bytes) -> tuple[bytes, str]:
    """The path and the method of a request of which not everything has come; empty as far as they are not known."""
    found = _PARTIAL_REQUEST_LINE.match(octets)
    return (b"", "") if found is None else (found[2], found[1].decode())


def _parse_request_line(octets: bytes) -> tuple[str, bytes, str, int]:
    """Method, target and version, and where the line ends with its CR LF."""
    line = _REQUEST_LINE.match(octets)
    if line is None:
        old = _HTTP09_LINE.match(octets)
        if old is not None:
            raise ProtocolError(505, "HTTP/0.9 is not spoken here; use HTTP/1.1", old[1].partition(b"?")[0])
        raise ProtocolError(400, "the request line is not of the form: method, blank, target, blank, HTTP/1.1, CR LF")
    name, target, number = line.groups()
    version = _VERSIONS.get(number)
    if version is None:
        path = target.partition(b"?")[0]
        raise ProtocolError(505, f"HTTP/{number.decode()} is not spoken here; use HTTP/1.1", path)
    method = name.decode()
    return method, _to_origin_form(method, target), version, line.end()


def _to_origin_form(method: str, target: bytes) -> bytes:
    """The path and query of a target in whatever form (RFC 9112, 3.2), without a fragment."""
    if method == "CONNECT":
        raise ProtocolError(501, "CONNECT is for proxies, and this is none", method=method)
    target = target.partition(b"#")[0]
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None:
        raise ProtocolError(400, "the target of the request is neither a path nor an http or https URL", method=method)
    rest = absolute[1]
    return rest if rest.startswith(b"/") else b"/" + rest


def _reject_headers(octets: bytes, reason: str) -> NoReturn:
    """Say what is wrong with headers that llhttp does not take."""
    if _BARE_LF.search(octets):
        raise ProtocolError(400, _BARE_LF_MESSAGE)
    pairs = (line.lower().partition(":") for line in _split_lines(octets))
    framing = [(name, value.strip(" \t")) for name, _, value in pairs if name in _FRAMING]
    if len(framing) == 1 and framing[0][0] == "transfer-encoding":
        coding = framing[0][1]
        if coding != "chunked" and coding.isprintable():
            _reject_coding(coding)
    raise ProtocolError(400, f"the headers of the request are not well formed: {reason}")


def _reject_coding(coding: str) -> NoReturn:
    """Say what is wrong with a Transfer-Encoding, in lower case, that is not the one that is understood."""
    *before, _ = (part.strip(" \t") for part in coding.split(","))
    if "chunked" in before:  # RFC 9112, 6.1: only once, and last
        raise ProtocolError(400, "Transfer-Encoding has something behind chunked")
    raise ProtocolError(501, "the only Transfer-Encoding that is understood here is chunked")

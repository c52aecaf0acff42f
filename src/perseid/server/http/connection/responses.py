"""Sending of responses: the head with connection headers, the body or its chunks, and errors.

Length, framing and connection headers are decided here, once, so that no response can contradict itself; handlers
cannot set them. A response is sent as fast as the client receives it, and an interrupted one never looks complete.
"""

import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from secrets import token_hex
from typing import Final, Protocol

from perseid.server.http.messages import Request, Response
from perseid.server.native.decisions import internal_error

from .requests import ParsedRequest, ProtocolError

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""The response to `Expect: 100-continue`."""

LAST_CHUNK: Final = b"0\r\n\r\n"
"""The end of a chunked body."""

CONNECTION_HEADERS: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade")
)
"""Headers that only this module writes."""

_NO_BODY: Final = frozenset((204, 304))
_STATUSES: Final = range(200, 600)  # lower ones are interim responses
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.1


def has_body(status: int, method: str) -> bool:
    """Whether a body follows the head of a response (RFC 9112, 6.3)."""
    return method != "HEAD" and status not in _NO_BODY


def encode_head(response: Response, *, version: str, keep: bool, seconds: float) -> bytes:
    """Encode the head of a response, up to the empty line, for a client that uses HTTP/`version`.

    It is the same for HEAD as for GET. A stream is chunked, or ends with the connection for HTTP/1.0; then `keep` must
    be false.
    """
    lines = [_status_line(response.status)]
    for name, value in response.headers:
        if _is_sent(name):
            lines.append(f"{name}: {value}")
    lines.append(f"Date: {format_date(int(seconds))}")
    if response.status in _NO_BODY:
        pass
    elif response.stream is None:
        lines.append(f"Content-Length: {len(response.body)}")
    elif version == "1.1":
        lines.append("Transfer-Encoding: chunked")
    if not keep:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1")


def encode_chunk(data: bytes) -> bytes:
    """Encode data, at least one byte, as a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=256)
def _is_sent(name: str) -> bool:
    """Whether handlers decide about a header; raises ValueError for an invalid name. `Response` checks the value."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid header")
    return name.lower() not in CONNECTION_HEADERS


@lru_cache(maxsize=2)
def format_date(second: int) -> str:
    """The `Date` header at a second since 1970, cached for the current second."""
    return formatdate(second, usegmt=True)


@lru_cache(maxsize=128)
def _status_line(status: int) -> str:
    if status not in _STATUSES:
        raise ValueError(f"{status} is not a valid status of a response")
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}"


WRITE_SIZE: Final = 1 << 16
"""Bytes of a large response that are written at a time; the client must receive each part in time."""


class Service(Protocol):
    """Handles requests."""

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        """Return the bytes of a response to a request without a body, or None if that would take time.

        It is called in the event loop for every such request before anything else, so it must not wait. It may store
        what it derives from the headers in `request.fields.noted`: requests of a connection with the same headers
        share their fields.

        The bytes are sent unchanged. They are one response with status line, Date and exact Content-Length, without a
        body for HEAD, 204 and 304, and with `Connection: close` if `request.keep` is false, after which the connection
        ends. For HTTP/1.0 with `request.keep` they have `Connection: keep-alive`. To avoid these cases, return None
        unless `request.keep` is true and the version is 1.1.
        """

    def is_streamed(self, request: ParsedRequest) -> bool:
        """Whether a request is handled while its body arrives, as `request.stream`, which can then be of any size."""

    async def handle(self, request: Request) -> Response:
        """Handle a request. It should not raise; if it does, the client gets 500."""

    def reject(self, status: int, problem: str, path: bytes) -> Response:
        """Create the response for invalid input; the path is empty if it is not known."""


class ResponseWriter(Protocol):
    """The destination of a response."""

    def write(self, data: bytes) -> None:
        """Send data, unless the client has gone."""

    async def drain(self) -> bool:
        """Wait until the client has received what was sent; return whether it is still connected."""


async def send(writer: ResponseWriter, head: bytes, body: bytes) -> None:
    """Send a response; a large one in parts, each after the client has received the one before."""
    writer.write(head + body[:WRITE_SIZE])
    for at in range(WRITE_SIZE, len(body), WRITE_SIZE):
        if not await writer.drain():
            return
        writer.write(body[at : at + WRITE_SIZE])


async def send_stream(
    writer: ResponseWriter, head: bytes, stream: AsyncIterator[bytes], *, with_body: bool, chunked: bool
) -> None:
    """Send a response while it is generated, or only its head without `with_body`; always closes the stream."""
    writer.write(head)
    try:
        if with_body:
            async for data in stream:
                if data:
                    writer.write(encode_chunk(data) if chunked else data)
                if not await writer.drain():
                    return
            if chunked:
                writer.write(LAST_CHUNK)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def encode_error(service: Service, problem: ProtocolError, seconds: float) -> bytes:
    """Encode the response for invalid input, at a second since 1970."""
    try:
        response = service.reject(problem.status, problem.problem, problem.path)
        head = encode_head(response, version="1.1", keep=False, seconds=seconds)
    except Exception as error:  # noqa: BLE001 - at least the status can be sent
        internal_error(error, token_hex(4))
        response = Response(problem.status)
        head = encode_head(response, version="1.1", keep=False, seconds=seconds)
    return head + response.body if has_body(response.status, problem.method) else head


def to_protocol_error(error: Exception, path: bytes, method: str) -> ProtocolError:
    """Convert an unexpected exception; it is logged under a number."""
    return ProtocolError(500, internal_error(error, token_hex(4)), path, method)

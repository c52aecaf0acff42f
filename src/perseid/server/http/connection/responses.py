"""Answers as octets: the status line, the headers that belong to the sending, and the body or its chunks.

Whoever makes an answer says nothing about its length, its framing or the connection. That is decided here, once, so
that no answer can contradict itself; such headers of an answer are left out.

Who answers requests, and how an answer goes out: as fast as the client takes it, and never as if it were whole.
"""

import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from secrets import token_hex
from typing import Final, Protocol

from perseid.server.http.messages import Request, Response, is_header_text
from perseid.server.native.decisions import internal_error

from .requests import ParsedRequest, ProtocolError

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What a client waits for that asks before it sends a body."""

LAST_CHUNK: Final = b"0\r\n\r\n"
"""The end of a body in chunks."""

CONNECTION_HEADERS: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade")
)
"""Headers that are written here and nowhere else."""

_NO_BODY: Final = frozenset((204, 304))
_STATUSES: Final = range(200, 600)  # those below are no answers, but say that one will follow
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.1


def has_body(status: int, method: str) -> bool:
    """Whether octets follow the head of an answer (RFC 9112, 6.3)."""
    return method != "HEAD" and status not in _NO_BODY


def encode_head(response: Response, *, version: str, keep: bool, seconds: float) -> bytes:
    """The head of an answer, up to the empty line, for a client that speaks HTTP/`version`.

    It is the same for HEAD as for GET. What is streamed has chunks, or ends with the connection where the client knows
    none; then `keep` must be false.
    """
    lines = [_status_line(response.status)]
    for name, value in response.headers:
        if not _HEADER_NAME.fullmatch(name) or not is_header_text(value):
            raise ValueError(f"{name!r} is no header")
        if name.lower() not in CONNECTION_HEADERS:
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
    """Octets, at least one, as a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=2)
def format_date(second: int) -> str:
    """The header Date at a second since 1970; asked for many times in the same second, it is made once."""
    return formatdate(second, usegmt=True)


@lru_cache(maxsize=128)
def _status_line(status: int) -> str:
    if status not in _STATUSES:
        raise ValueError(f"{status} is no status of an answer")
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}"


WRITE_SIZE: Final = 1 << 16
"""Octets of a large answer that are handed to the system at a time; the client must take each in time."""


class Service(Protocol):
    """Who answers requests."""

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        """The whole answer to a request without a body, as octets, or None if that would take time.

        It is called in the event loop for every such request and before anything else is done with it, so it waits for
        nothing. What it finds out from the headers it may keep in `request.fields.noted`: requests of a connection that
        have the same headers have the same fields.

        The octets are sent as they are. They are one answer with status line, Date and exact Content-Length, nothing
        behind the head for HEAD, 204 and 304, and `Connection: close` if `request.keep` is false, after which the
        connection ends. For HTTP/1.0 with `request.keep` they have `Connection: keep-alive`. Who would rather not know
        about that answers None unless `request.keep` and the version is 1.1.
        """

    async def answer(self, request: Request) -> Response:
        """The answer to a request. It raises nothing; if it does, the client gets 500."""

    def refused(self, status: int, problem: str, path: bytes) -> Response:
        """What is said about something that is no request: what was wrong, for a path, empty if it is not known."""


class ResponseWriter(Protocol):
    """Where an answer goes."""

    def write(self, data: bytes) -> None:
        """Send something, unless the client has gone."""

    async def drain(self) -> bool:
        """Wait until the client has taken what was sent; whether it is still there."""


async def send(writer: ResponseWriter, head: bytes, body: bytes) -> None:
    """Send an answer; a large one in pieces, each when the client has taken the one before."""
    writer.write(head + body[:WRITE_SIZE])
    for at in range(WRITE_SIZE, len(body), WRITE_SIZE):
        if not await writer.drain():
            return
        writer.write(body[at : at + WRITE_SIZE])


async def send_stream(
    writer: ResponseWriter, head: bytes, stream: AsyncIterator[bytes], *, with_body: bool, chunked: bool
) -> None:
    """Send an answer while it is made, or its head alone if no body `follows`; the stream is closed in any case."""
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
    """What is sent, at a second since 1970, about something that is not answered."""
    try:
        response = service.refused(problem.status, problem.problem, problem.path)
        head = encode_head(response, version="1.1", keep=False, seconds=seconds)
    except Exception as error:  # noqa: BLE001 - whatever it was, the status can be told
        internal_error(error, token_hex(4))
        response = Response(problem.status)
        head = encode_head(response, version="1.1", keep=False, seconds=seconds)
    return head + response.body if has_body(response.status, problem.method) else head


def to_protocol_error(error: Exception, request: Request) -> ProtocolError:
    """What is said when something went wrong that nobody expected; the log has the rest, under a number."""
    return ProtocolError(500, internal_error(error, token_hex(4)), request.path, request.method)

"""Answers as octets: the status line, the headers that belong to the sending, and the body or its chunks.

Whoever makes an answer says nothing about its length, its framing or the connection. That is decided here, once, so
that no answer can contradict itself; such headers of an answer are left out.
"""

import re
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from .messages import Response, is_header_text

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What a client waits for that asks before it sends a body."""

LAST_CHUNK: Final = b"0\r\n\r\n"
"""The end of a body in chunks."""

OURS: Final = frozenset(("connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"))
"""Headers that are written here and nowhere else."""

_NO_BODY: Final = frozenset((204, 304))
_STATUSES: Final = range(200, 600)  # those below are no answers, but say that one will follow
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.1


def has_body(status: int, method: str) -> bool:
    """Whether octets follow the head of an answer (RFC 9112, 6.3)."""
    return method != "HEAD" and status not in _NO_BODY


def head_of(response: Response, *, version: str, keep: bool, seconds: float) -> bytes:
    """The head of an answer, up to the empty line, for a client that speaks HTTP/`version`.

    It is the same for HEAD as for GET. What is streamed has chunks, or ends with the connection where the client knows
    none; then `keep` must be false.
    """
    lines = [_status_line(response.status)]
    for name, value in response.headers:
        if not _NAME.fullmatch(name) or not is_header_text(value):
            raise ValueError(f"{name!r} is no header")
        if name.lower() not in OURS:
            lines.append(f"{name}: {value}")
    lines.append(f"Date: {date_of(int(seconds))}")
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


def chunk_of(octets: bytes) -> bytes:
    """Octets, at least one, as a chunk."""
    return b"%x\r\n%b\r\n" % (len(octets), octets)


@lru_cache(maxsize=2)
def date_of(second: int) -> str:
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

"""Bodies of requests while they come: one of a length that was said before, or one in chunks (RFC 9112, 7.1).

Both take octets until the body is whole and say how many of them belonged to it, so that what follows is the next
request's. Neither has a clock or a socket. What chunks have around them is limited too: a body of one octet could have
gigabytes of it otherwise.
"""

import re
from enum import Enum, auto
from typing import Final, Protocol

from perseid.server.http.connection.requests import DECIDING, Unreadable

from .messages import MAX_BODY

MAX_CHUNK_LINE: Final = 256
"""Octets of the line before a chunk, without its CR LF: a size has 16 at most, extensions are used by nobody."""

MAX_FRAMING: Final = 1 << 16
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
        if self._framing > MAX_FRAMING:
            raise Unreadable(400, f"the chunks of the body have more than {MAX_FRAMING} octets around them")
        if end < 0:
            if len(line) == MAX_CHUNK_LINE + 2:
                raise Unreadable(400, f"a line in the chunked body is longer than {MAX_CHUNK_LINE} octets")
            self._line = line
            return at + len(part)
        self._line = b""
        self._understand(line[:end])
        return at + end + 2 - kept

    def _understand(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._left = self._size(line)
            self._next = _Line.END_OF_CHUNK if self._left else _Line.TRAILER
        elif self._next is _Line.END_OF_CHUNK:
            if line:
                raise Unreadable(400, "a chunk of the body is not followed by CR LF; is its size wrong?")
            self._next = _Line.SIZE
        elif not line:
            self.whole = True
        else:
            _refuse_trailer(line)

    def _size(self, line: bytes) -> int:
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise Unreadable(400, "a chunk of the body does not begin with its size in hexadecimal digits and CR LF")
        size = int(found[1], 16)
        if size + len(self.octets) > MAX_BODY:
            raise Unreadable(413, f"the body is larger than {MAX_BODY} octets")
        return size


def _refuse_trailer(line: bytes) -> None:
    """See that a trailer is one, and nothing that belongs into the head (RFC 9110, 6.5.1)."""
    found = _TRAILER.fullmatch(line)
    if found is None:
        raise Unreadable(400, "a trailer of the chunked body is not well formed")
    name = found[1].decode().lower().replace("_", "-")
    if name in DECIDING:
        raise Unreadable(400, f"{name} stands behind the body; it belongs before it")

"""Messages in a TCP stream, and in the body of an HTTP request or response.

On TCP a message is an envelope and as many bytes as it announces; nothing else separates messages. Over HTTP
the same bytes are the body of a POST and of its answer, marked by their media type.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import h11

from . import message as envelope_module
from .codes import ResponseCode
from .errors import RemoteProtocolError
from .message import MAX_MESSAGE, Envelope

MEDIA_TYPE: Final = "application/x-hdl-message"
"""Marks a native message in Accept and Content-Type."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An envelope and what followed it, perhaps still encrypted."""

    envelope: Envelope
    payload: bytes = field(repr=False)


class FrameReader:
    """Takes a stream in pieces of any size and gives whole messages, one at a time.

    What follows a message is looked at only when the next one is asked for: it may be a stream that is not made of
    messages (`take_rest`), or what makes the conversation end (a bad length).
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._envelope: Envelope | None = None

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._buffer += data

    def frames(self) -> Iterator[Frame]:
        """The messages that are whole, as long as the caller goes on asking. A bad length ends the conversation."""
        while (frame := self._next()) is not None:
            yield frame

    @property
    def is_idle(self) -> bool:
        """Whether the stream may end here: between messages."""
        return self._envelope is None and not self._buffer

    @property
    def buffered(self) -> int:
        """How many bytes have come that are not given out."""
        return len(self._buffer)

    def take_buffered(self) -> bytes:
        """What came behind the last message: the beginning of a stream that is not made of messages."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _next(self) -> Frame | None:
        if self._envelope is None:
            if len(self._buffer) < envelope_module.ENVELOPE_LENGTH:
                return None
            envelope = Envelope.from_bytes(bytes(self._buffer[: envelope_module.ENVELOPE_LENGTH]))
            if not envelope.has_valid_length:
                message = f"a message of {envelope.length} bytes is announced; {MAX_MESSAGE} are the most"
                raise RemoteProtocolError(message, ResponseCode.ERROR)
            del self._buffer[: envelope_module.ENVELOPE_LENGTH]
            self._envelope = envelope
        envelope = self._envelope
        if len(self._buffer) < envelope.length:
            return None
        payload = bytes(self._buffer[: envelope.length])
        del self._buffer[: envelope.length]
        self._envelope = None
        return Frame(envelope, payload)


def is_native(accept: str, content_type: str) -> bool:
    """Whether an HTTP request carries a native message: both headers must say so."""
    return MEDIA_TYPE in accept.lower() and MEDIA_TYPE in content_type.lower()


def unwrap_http_body(body: bytes) -> bytes:
    """The message in an HTTP body; one stray CR or LF before it is skipped, as deployed servers do."""
    return body[1:] if body[:1] in (b"\r", b"\n") else body


def http_request(message: bytes, handle: bytes, host: str, path: str = "") -> bytes:
    """The HTTP request that carries a message (envelope included); `path` is the site's path prefix, if it has one."""
    # Path and host come from a site record, which is a stranger's.
    prefix = quote("/" + path.strip("/"), safe="/%").rstrip("/")
    target = f"{prefix}/{quote(handle, safe='')}"
    connection = h11.Connection(h11.CLIENT)
    try:
        request = h11.Request(
            method="POST",
            target=target,
            headers=[
                ("Host", host),
                ("Accept", MEDIA_TYPE),
                ("User-Agent", "perseid"),
                ("Content-Type", MEDIA_TYPE),
                ("Content-Length", str(len(message))),
            ],
        )
    except (h11.LocalProtocolError, UnicodeEncodeError):
        raise RemoteProtocolError("the site's domain or path cannot stand in an HTTP request") from None
    return _join(connection.send(request), connection.send(h11.Data(data=message)), connection.send(h11.EndOfMessage()))


def http_response_headers(length: int) -> list[tuple[str, str]]:
    """The headers of the answer to a native message; deployed clients cannot read a chunked one."""
    return [("Content-Type", MEDIA_TYPE), ("Content-Length", str(length))]


class HttpResponseReader:
    """Takes the answer to `http_request` in pieces and answers the messages in its body, chunked or not."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        self._connection.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._connection.send(h11.EndOfMessage())
        self._frames = FrameReader()
        self.is_finished = False
        """Whether the whole answer has come."""

    def feed(self, data: bytes) -> list[Frame]:
        """Take what came; `b""` says that the connection was closed."""
        frames: list[Frame] = []
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Data):
                    self._frames.feed(bytes(event.data))
                    frames += self._frames.frames()
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    self.is_finished = True
                    break
        except h11.RemoteProtocolError as error:
            raise RemoteProtocolError(f"the answer is not HTTP: {error}") from error
        return frames


def _join(*parts: bytes | None) -> bytes:
    return b"".join(part for part in parts if part)

"""Framing of messages in TCP streams and in HTTP bodies.

On TCP a message is an envelope and the number of bytes stated in it, without separators. Over HTTP the same bytes are
the body of a POST and of its response, with their own media type.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import h11

from . import message as envelope_module
from .codes import RemoteProtocolError, ResponseCode
from .message import MAX_MESSAGE, Envelope

MEDIA_TYPE: Final = "application/x-hdl-message"
"""Media type of native messages."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An envelope and its payload, which may be encrypted."""

    envelope: Envelope
    payload: bytes = field(repr=False)


class FrameReader:
    """Splits a stream into messages.

    Data after a message is parsed only when the next message is requested: it may have an invalid length.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._envelope: Envelope | None = None

    def feed(self, data: bytes) -> None:
        """Add received data."""
        self._buffer += data

    def frames(self) -> Iterator[Frame]:
        """Iterate over complete messages; raises RemoteProtocolError for an invalid length."""
        while (frame := self.next()) is not None:
            yield frame

    @property
    def is_idle(self) -> bool:
        """Whether the stream is between messages."""
        return self._envelope is None and not self._buffer

    @property
    def buffered(self) -> int:
        """Number of received bytes that are not consumed."""
        return len(self._buffer)

    def next(self) -> Frame | None:
        """Return the next complete message; None if there is none yet. Raises as `frames` does."""
        if self._envelope is None:
            if len(self._buffer) < envelope_module.ENVELOPE_LENGTH:
                return None
            envelope = Envelope.from_bytes(bytes(self._buffer[: envelope_module.ENVELOPE_LENGTH]))
            if not envelope.has_valid_length:
                message = f"the message has {envelope.length:,} bytes; the maximum is {MAX_MESSAGE:,}"
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
    """Whether an HTTP request carries a native message, according to both headers."""
    return MEDIA_TYPE in accept.lower() and MEDIA_TYPE in content_type.lower()


def unwrap_http_body(body: bytes) -> bytes:
    """The message in an HTTP body; one stray CR or LF before it is skipped, as deployed servers do."""
    return body[1:] if body[:1] in (b"\r", b"\n") else body


def http_request(message: bytes, handle: bytes, host: str, path: str = "") -> bytes:
    """The HTTP request that carries a message (envelope included); `path` is the site's path prefix, if it has one."""
    # Path and host come from an untrusted site record.
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
        raise RemoteProtocolError("the site's domain or path is not valid in an HTTP request") from None
    return _join(connection.send(request), connection.send(h11.Data(data=message)), connection.send(h11.EndOfMessage()))


class HttpResponseReader:
    """Parses the response to `http_request`, chunked or not, into messages."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        self._connection.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._connection.send(h11.EndOfMessage())
        self._frames = FrameReader()
        self.is_finished = False
        """Whether the response is complete."""

    def feed(self, data: bytes) -> list[Frame]:
        """Add received data; `b""` means that the connection was closed."""
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
            raise RemoteProtocolError(f"the response is not valid HTTP: {error}") from error
        return frames


def _join(*parts: bytes | None) -> bytes:
    return b"".join(part for part in parts if part)

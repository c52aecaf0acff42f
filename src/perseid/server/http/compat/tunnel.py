"""Native messages in HTTP requests: the body of a POST is a message in its envelope, and so is that of the answer.

Whoever can reach nothing but HTTP speaks the native protocol so. Both `Accept` and `Content-Type` say that it is meant;
the path is for proxies on the way and says nothing here. What is wrong with a message is told in a native message, for
deployed clients look at neither the status nor the headers: they read on at once, so an answer must never be in chunks
or compressed. A list of names has several messages; they follow each other in one body, as they do on TCP.
"""

from contextlib import aclosing
from typing import Final

from perseid.records.site import Transport
from perseid.server.http.context import Asking, Native
from perseid.server.http.messages import HeaderList, Request, Response
from perseid.wire import message
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import MEDIA_TYPE, Frame, is_native, unwrap_http_body
from perseid.wire.message import Envelope
from perseid.wire.server import INVALID_LENGTH

NATIVE_TYPE: Final = MEDIA_TYPE
"""The media type of native messages."""

MAX_ANSWER: Final = 16 << 20
"""Octets of the longest answer: lists of some 400,000 names. They are put together before they are sent, since their
length goes before them; who has more names lists them over TCP."""

_HEADERS: HeaderList = (("Content-Type", NATIVE_TYPE), ("Cache-Control", "no-store"))
_TOO_LONG = "The list is too long for HTTP; ask over TCP"


def is_message(request: Request) -> bool:
    """Whether a request carries a native message: both headers must say so."""
    return request.method == "POST" and is_native(request.joined("accept"), request.joined("content-type"))


async def answer(asking: Asking) -> Response:
    """The answer to a native message: 200, whatever it says."""
    native = asking.place.native
    if native is None:
        return Response(404, (("Content-Type", "text/plain;charset=utf-8"),), b"no native messages are taken here\n")
    frame = _frame(asking.request.body)
    if frame is None:
        return Response(200, _HEADERS, native.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH).to_stream())
    return Response(200, _HEADERS, await _served(native, frame, asking))


def _frame(body: bytes) -> Frame | None:
    """The message in a body; None if there is none, or not all of it. What is behind it is nobody's."""
    octets = unwrap_http_body(body)
    if len(octets) < message.ENVELOPE_LENGTH:
        return None
    found = Envelope.from_bytes(octets[: message.ENVELOPE_LENGTH])
    end = message.ENVELOPE_LENGTH + found.length
    if not found.has_valid_length or len(octets) < end:
        return None
    return Frame(found, octets[message.ENVELOPE_LENGTH : end])


async def _served(native: Native, frame: Frame, asking: Asking) -> bytes:
    """All messages of the answer."""
    client = asking.request.client
    transport = Transport.HTTPS if client.secure else Transport.HTTP
    parts, length = [], 0
    async with aclosing(native.served(frame, client.host, transport)) as answers:
        async for served in answers:
            octets = served.reply.to_stream()
            length += len(octets)
            if length > MAX_ANSWER:
                # Nothing of it was sent, so this is the whole answer, and no list that ends too early.
                return native.early_failure(ResponseCode.ERROR, _TOO_LONG).to_stream()
            parts.append(octets)
    return b"".join(parts)

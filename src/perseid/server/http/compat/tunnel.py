"""Native messages in HTTP requests: the body of a POST is a message in its envelope, and so is that of the answer.

Whoever can reach nothing but HTTP speaks the native protocol so. Both `Accept` and `Content-Type` say that it is meant;
the path is for proxies on the way and says nothing here. What is wrong with a message is told in a native message, for
deployed clients look at neither the status nor the headers: they read on at once, so an answer must never be in chunks
or compressed. A list of names has several messages; they follow each other in one body, as they do on TCP.
"""

from contextlib import aclosing
from typing import Final

from perseid.records.site import Transport
from perseid.server.http.context import NativeProtocol, RequestContext
from perseid.server.http.messages import HeaderList, Request, Response
from perseid.wire import message
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import MEDIA_TYPE, Frame, is_native, unwrap_http_body
from perseid.wire.message import Envelope
from perseid.wire.server import INVALID_LENGTH_TEXT

NATIVE_TYPE: Final = MEDIA_TYPE
"""The media type of native messages."""

MAX_RESPONSE_BYTES: Final = 16 << 20
"""Octets of the longest answer: lists of some 400,000 names. They are put together before they are sent, since their
length goes before them; who has more names lists them over TCP."""

_HEADERS: HeaderList = (("Content-Type", NATIVE_TYPE), ("Cache-Control", "no-store"))
_TOO_LONG = "The list is too long for HTTP; ask over TCP"


def is_message(request: Request) -> bool:
    """Whether a request carries a native message: both headers must say so."""
    return request.method == "POST" and is_native(request.get_joined("accept"), request.get_joined("content-type"))


async def handle_request(request_context: RequestContext) -> Response:
    """The answer to a native message: 200, whatever it says."""
    native = request_context.place.native
    if native is None:
        return Response(404, (("Content-Type", "text/plain;charset=utf-8"),), b"no native messages are taken here\n")
    frame = _parse_frame(request_context.request.body)
    if frame is None:
        return Response(
            200, _HEADERS, native.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT).to_stream()
        )
    return Response(200, _HEADERS, await _run_message(native, frame, request_context))


def _parse_frame(body: bytes) -> Frame | None:
    """The message in a body; None if there is none, or not all of it. What is behind it is nobody's."""
    data = unwrap_http_body(body)
    if len(data) < message.ENVELOPE_LENGTH:
        return None
    found = Envelope.from_bytes(data[: message.ENVELOPE_LENGTH])
    end = message.ENVELOPE_LENGTH + found.length
    if not found.has_valid_length or len(data) < end:
        return None
    return Frame(found, data[message.ENVELOPE_LENGTH : end])


async def _run_message(native: NativeProtocol, frame: Frame, request_context: RequestContext) -> bytes:
    """All messages of the answer."""
    client = request_context.request.client
    transport = Transport.HTTPS if client.secure else Transport.HTTP
    parts, length = [], 0
    async with aclosing(native.served(frame, client.host, transport)) as answers:
        async for served in answers:
            data = served.reply.to_stream()
            length += len(data)
            if length > MAX_RESPONSE_BYTES:
                # Nothing of it was sent, so this is the whole answer, and no list that ends too early.
                return native.early_failure(ResponseCode.ERROR, _TOO_LONG).to_stream()
            parts.append(data)
    return b"".join(parts)

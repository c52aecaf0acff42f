"""Native messages in HTTP requests: the body of a POST is a message with its envelope, and so is the response.

For clients that can reach only HTTP. `Accept` and `Content-Type` identify such a request; the path is ignored. Errors
are native messages too, as deployed clients look at neither status nor headers: they read the body at once, so a
response must never be chunked or compressed. A list has several messages, concatenated in one body as on TCP.
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
"""Bytes of the longest response: lists of about 400,000 handles. They are built before they are sent, since the length
comes first; longer lists need TCP."""

_HEADERS: HeaderList = (("Content-Type", NATIVE_TYPE), ("Cache-Control", "no-store"))
_TOO_LONG = "The list is too long for HTTP; ask over TCP"


def is_message(request: Request) -> bool:
    """Whether a request contains a native message: both headers must say so."""
    return request.method == "POST" and is_native(request.get_joined("accept"), request.get_joined("content-type"))


async def handle_request(request_context: RequestContext) -> Response:
    """Handle a native message; the status is always 200."""
    native = request_context.server.native
    if native is None:
        return Response(404, (("Content-Type", "text/plain;charset=utf-8"),), b"native messages are not supported\n")
    frame = _parse_frame(request_context.request.body)
    if frame is None:
        return Response(
            200, _HEADERS, native.early_failure(ResponseCode.PROTOCOL_ERROR, INVALID_LENGTH_TEXT).to_stream()
        )
    return Response(200, _HEADERS, await _run_message(native, frame, request_context))


def _parse_frame(body: bytes) -> Frame | None:
    """Parse the message in a body; None if it is missing or incomplete. Bytes after it are ignored."""
    data = unwrap_http_body(body)
    if len(data) < message.ENVELOPE_LENGTH:
        return None
    envelope = Envelope.from_bytes(data[: message.ENVELOPE_LENGTH])
    end = message.ENVELOPE_LENGTH + envelope.length
    if not envelope.has_valid_length or len(data) < end:
        return None
    return Frame(envelope, data[message.ENVELOPE_LENGTH : end])


async def _run_message(native: NativeProtocol, frame: Frame, request_context: RequestContext) -> bytes:
    """Run a message and join all messages of the response."""
    client = request_context.request.client
    transport = Transport.HTTPS if client.secure else Transport.HTTP
    parts, length = [], 0
    async with aclosing(native.served(frame, client.host, transport)) as native_responses:
        async for native_response in native_responses:
            data = native_response.reply.to_stream()
            length += len(data)
            if length > MAX_RESPONSE_BYTES:
                # Nothing was sent yet, so this is the whole response, and not a truncated list.
                return native.early_failure(ResponseCode.ERROR, _TOO_LONG).to_stream()
            parts.append(data)
    return b"".join(parts)

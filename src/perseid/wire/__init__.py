"""The native protocol without sockets: octets in, messages out.

Nothing here opens a connection, reads a clock or draws a random number: time and randomness are arguments. `Server`
and `Client` hold the two sides of every conversation; below them stand the codecs, each reading and writing one
structure. docs/reference/protocol.md says what is implemented and where deployment and RFC differ.
"""

from typing import TYPE_CHECKING

from perseid._lazy import lazily

if TYPE_CHECKING:
    from .cipher import Cipher
    from .client import Answer, Client, SessionWish
    from .codes import ASSUMED, CURRENT, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version, common_version
    from .digest import RequestDigest
    from .envelope import MAX_MESSAGE, Envelope
    from .errors import LocalProtocolError, ProtocolError, RemoteProtocolError
    from .fragments import MAX_PACKET, Reassembler, split
    from .framing import MEDIA_TYPE, Frame, FrameReader, HttpResponseReader, http_request, is_native, unwrap_http_body
    from .header import Header
    from .message import Credential, Message
    from .partition import partition_hash, server_for
    from .server import Proof, Received, Reply, Request, Server, ServerSettings
    from .sessions import Identity, Session
else:
    __getattr__ = lazily(
        __name__,
        {
            "cipher": ("Cipher",),
            "client": ("Answer", "Client", "SessionWish"),
            "codes": (
                "ASSUMED",
                "CURRENT",
                "DEFAULT_FLAGS",
                "OpCode",
                "OpFlag",
                "ResponseCode",
                "Version",
                "common_version",
            ),
            "digest": ("RequestDigest",),
            "envelope": ("MAX_MESSAGE", "Envelope"),
            "errors": ("LocalProtocolError", "ProtocolError", "RemoteProtocolError"),
            "fragments": ("MAX_PACKET", "Reassembler", "split"),
            "framing": (
                "MEDIA_TYPE",
                "Frame",
                "FrameReader",
                "HttpResponseReader",
                "http_request",
                "is_native",
                "unwrap_http_body",
            ),
            "header": ("Header",),
            "message": ("Credential", "Message"),
            "partition": ("partition_hash", "server_for"),
            "server": ("Proof", "Received", "Reply", "Request", "Server", "ServerSettings"),
            "sessions": ("Identity", "Session"),
        },
    )

__all__ = [
    "ASSUMED",
    "CURRENT",
    "DEFAULT_FLAGS",
    "MAX_MESSAGE",
    "MAX_PACKET",
    "MEDIA_TYPE",
    "Answer",
    "Cipher",
    "Client",
    "Credential",
    "Envelope",
    "Frame",
    "FrameReader",
    "Header",
    "HttpResponseReader",
    "Identity",
    "LocalProtocolError",
    "Message",
    "OpCode",
    "OpFlag",
    "Proof",
    "ProtocolError",
    "Reassembler",
    "Received",
    "RemoteProtocolError",
    "Reply",
    "Request",
    "RequestDigest",
    "ResponseCode",
    "Server",
    "ServerSettings",
    "Session",
    "SessionWish",
    "Version",
    "common_version",
    "http_request",
    "is_native",
    "partition_hash",
    "server_for",
    "split",
    "unwrap_http_body",
]

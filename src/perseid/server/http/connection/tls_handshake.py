"""TLS handshakes, independent of any connection: the context, and one step at a time.

The server requests a client certificate in the first handshake; it is optional. Every certificate is accepted if the
handshake proves possession of its key: RSA, elliptic curves, and with TLS 1.2 also DSA, which TLS 1.3 lacks. A client
with a DSA key that offers both versions sends no certificate; it must offer TLS 1.2 only.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cryptography.x509 import Certificate
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate

CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: ciphers with forward secrecy and authenticated encryption. All of TLS 1.3 have both."""

PROTOCOL: Final = b"http/1.1"
"""The ALPN protocol."""

MAX_RECORD: Final = 16_384
"""Bytes of the longest record, decrypted."""

BIO_CHUNK: Final = MAX_RECORD + 512
"""Bytes exchanged with OpenSSL at a time: an encrypted record is longer, and buffers stay small."""

_TEXT = 2  # position of the message in an OpenSSL error


class HandshakeFailure(StrEnum):
    """Why a handshake failed, for counters."""

    GONE = "gone"
    """The client disconnected."""
    SLOW = "slow"
    """It was not complete in time."""
    TOO_LONG = "too long"
    """The client sent more than any handshake needs."""
    BUSY = "busy"
    """The server was overloaded."""
    ALERT = "alert"
    """The client refused, most often because it does not trust the certificate."""
    REFUSED = "refused"
    """The server refused a version, a cipher or an invalid proof of the client."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The result of a handshake step."""

    raw: bytes
    """The bytes to send."""
    done: bool = False
    failure: HandshakeFailure | None = None
    reason: str = ""


def make_server_context(chain: Iterable[Certificate], key: Any, *, request_certificate: bool = True) -> SSL.Context:
    """Create the context for a certificate with its chain and private key.

    The key is one of `cryptography`, and the caller has checked that it belongs to the certificate.
    `request_certificate`: whether clients are asked for a certificate.
    """
    leaf, *others = chain
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(CIPHERS)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # most connections are idle most of the time
    # Without tickets and cache nothing can be resumed. (OpenSSL still sends a session id to TLS 1.3 clients, which has
    # no effect.)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"perseid")
    if request_certificate:
        context.set_verify(SSL.VERIFY_PEER, _accept_any_certificate)
        # Chains are not verified, so no time is spent on them: untrusted clients might send long ones.
        context.set_verify_depth(0)
    context.set_alpn_select_callback(_choose_protocol)
    context.use_certificate(leaf)
    for each in others:
        context.add_extra_chain_cert(each)
    context.use_privatekey(key)
    context.check_privatekey()
    return context


def _accept_any_certificate(*_: object) -> bool:
    """Accept any certificate; the proof of possession is checked separately, by its signature."""
    return True


def _choose_protocol(_: SSL.Connection, offered: list[bytes]) -> Any:
    """Choose HTTP/1.1 if the client offers it; otherwise no protocol is selected."""
    return PROTOCOL if PROTOCOL in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def advance(connection: SSL.Connection, raw: bytes) -> Flight:
    """Run a step of a handshake; in any thread, but only one at a time."""
    done, failure, reason = False, None, ""
    try:
        if raw:
            connection.bio_write(raw)
        connection.do_handshake()
        done = True
    except SSL.WantReadError:
        pass
    except SSL.Error as error:
        failure, reason = _classify_error(error)
    output = bytearray()
    with suppress(SSL.Error):
        while True:
            output += connection.bio_read(BIO_CHUNK)
    return Flight(bytes(output), done, failure, reason)


def _classify_error(error: SSL.Error) -> tuple[HandshakeFailure, str]:
    """Classify an OpenSSL error, with its message; that never contains data of the client."""
    if isinstance(error, SSL.ZeroReturnError | SSL.SysCallError):
        return HandshakeFailure.GONE, "the client disconnected"
    messages = [entry[_TEXT] for entry in error.args[0]] if error.args else []
    message = messages[-1] if messages else type(error).__name__  # the earlier ones are its causes
    return (HandshakeFailure.ALERT if "alert" in message else HandshakeFailure.REFUSED), message


def peer_certificate(connection: SSL.Connection) -> bytes | None:
    """The certificate whose key the client has proved to hold, in DER."""
    certificate = connection.get_peer_certificate()
    return None if certificate is None else dump_certificate(FILETYPE_ASN1, certificate)

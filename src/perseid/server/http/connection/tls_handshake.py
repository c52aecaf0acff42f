"""How TLS handshakes are made, without any connection: what is offered and accepted, and one step at a time.

A client is asked for a certificate in the first handshake, and may send none. Whatever it sends is accepted if the
handshake proves that the client has the key: RSA, elliptic curves, and with TLS 1.2 also DSA, which TLS 1.3 does not
have. A client with such a key that offers both versions comes without a certificate; it has to offer the older alone.
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
"""For TLS 1.2: those with forward secrecy and authenticated encryption. Those of TLS 1.3 are all so."""

PROTOCOL: Final = b"http/1.1"
"""What is spoken inside, as ALPN names it."""

MAX_RECORD: Final = 16_384
"""Octets of the longest record, inside."""

BIO_CHUNK: Final = MAX_RECORD + 512
"""Octets that are given to OpenSSL and taken from it at once: a record is longer outside, and buffers stay small."""

_TEXT = 2  # where in an error of OpenSSL its words are


class HandshakeFailure(StrEnum):
    """Why a handshake came to nothing, as a word for counters."""

    GONE = "gone"
    """The client went away."""
    SLOW = "slow"
    """It was not done in time."""
    TOO_LONG = "too long"
    """The client sent more than any handshake needs."""
    BUSY = "busy"
    """There was too much to do."""
    ALERT = "alert"
    """The client has refused what it was shown: most often it does not trust the certificate."""
    REFUSED = "refused"
    """What the client wants or shows is refused here: a version, a cipher, a proof that is wrong."""


@dataclass(frozen=True, slots=True)
class Flight:
    """What came of a step of a handshake."""

    raw: bytes
    """To be sent."""
    done: bool = False
    failure: HandshakeFailure | None = None
    reason: str = ""


def make_server_context(chain: Iterable[Certificate], key: Any, *, request_certificate: bool = True) -> SSL.Context:
    """How handshakes are made with a certificate, those that it chains to, and its private key.

    The key is one of `cryptography`; whoever calls has seen that it belongs to the certificate. Clients are asked for a
    certificate of theirs if it `asks`.
    """
    leaf, *others = chain
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(CIPHERS)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # most connections wait most of the time
    # Without tickets and without a cache nothing can be resumed. (To clients of TLS 1.3 OpenSSL still gives a number,
    # which leads to nothing.)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"perseid")
    if request_certificate:
        context.set_verify(SSL.VERIFY_PEER, _accept_any_certificate)
        # Nobody looks at what a certificate chains to, so no time is spent on it: strangers might send long chains.
        context.set_verify_depth(0)
    context.set_alpn_select_callback(_choose_protocol)
    context.use_certificate(leaf)
    for each in others:
        context.add_extra_chain_cert(each)
    context.use_privatekey(key)
    context.check_privatekey()
    return context


def _accept_any_certificate(*_: object) -> bool:
    """Any certificate will do; that the client has its key is checked apart from this, by its signature."""
    return True


def _choose_protocol(_: SSL.Connection, offered: list[bytes]) -> Any:
    """HTTP/1.1 if the client names it; one that names others only is told nothing, and finds out."""
    return PROTOCOL if PROTOCOL in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def advance(connection: SSL.Connection, raw: bytes) -> Flight:
    """Make a step of a handshake; in any thread, and in no two at a time."""
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
    """What an error of OpenSSL says, in its words; they never hold what came."""
    if isinstance(error, SSL.ZeroReturnError | SSL.SysCallError):
        return HandshakeFailure.GONE, "the client went away"
    found = [entry[_TEXT] for entry in error.args[0]] if error.args else []
    words = found[-1] if found else type(error).__name__  # what led to it stands before
    return (HandshakeFailure.ALERT if "alert" in words else HandshakeFailure.REFUSED), words


def peer_certificate(connection: SSL.Connection) -> bytes | None:
    """The certificate of which the client has proved to have the key, in DER."""
    found = connection.get_peer_certificate()
    return None if found is None else dump_certificate(FILETYPE_ASN1, found)

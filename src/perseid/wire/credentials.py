"""Signatures and MACs of messages, in every version, and the identifiers of their algorithms (native protocol §5).

Hashes and MACs are identified in several spellings (§5.4); case and punctuation are ignored in all names:

    string, written     SHA1   SHA-256   MD5   HMAC-SHA1   HMAC-SHA256
    string, accepted    SHA-1   SHA256
    one byte            1 MD5   2 SHA-1   3 SHA-256   12 HMAC-SHA1   13 HMAC-SHA256   22 PBKDF2-HMAC-SHA1

With HB = header and body, V = version and S = suggested version in the envelope, sid and rid = session and request id,
ctr = counter in the credential:

    signature input, HS_SIGNED             MAC, HS_MAC, with the session's key K
    2.8 and later   V S sid rid ctr HB     2.8 and later   HMAC-SHA-256(K, V S sid rid ctr HB)
    2.7             V sid rid ctr HB       2.7             HMAC-SHA-256(K, V sid rid ctr HB)
    2.6             14 bytes, HB           2.5 and 2.6     SHA-1(K[0:4] HB K zeros), as many zeros as K has bytes + 10
    before          HB                     before          SHA-1(K HB K)

Two of these are bugs that became the protocol. The 2.6 prefix is 14 zero bytes with V at 0-1, sid at 2-5, rid at 4-7
and then ctr at 4-7. The MAC of 2.5 and 2.6 was meant to cover the envelope, but because of an offset bug it protects
only the message itself.

The verifier uses the algorithm and counter in the credential and the version in the envelope. From 2.7 on a MAC must be
an HMAC, before it must not.
"""

import hmac
import re
from struct import Struct
from typing import Final

from perseid.records.encoding import OpenEnum
from perseid.records.errors import RecordMisuse
from perseid.records.keys import PublicKey
from perseid.records.private_keys import DsaPrivateKey, PrivateKey

from .codes import LocalProtocolError, Version
from .message import Credential, DigestAlgorithm, Message, hash_bytes

MAX_IDENTIFIER: Final = 32
"""Maximum length of an identifier in bytes; the longest known, PBKDF2-HMAC-SHA1, has 16."""


class Algorithm(OpenEnum):
    """Hashes and MACs by their code."""

    MD5 = 0x01
    SHA1 = 0x02
    SHA256 = 0x03
    HMAC_SHA1 = 0x12
    HMAC_SHA256 = 0x13
    PBKDF2_HMAC_SHA1 = 0x22

    @property
    def spelling(self) -> str:
        """The name in the protocol."""
        return _SPELLINGS[self]


HASHES: Final = frozenset((Algorithm.MD5, Algorithm.SHA1, Algorithm.SHA256))
"""Algorithms without a key."""

HMACS: Final = frozenset((Algorithm.HMAC_SHA1, Algorithm.HMAC_SHA256))
"""HMACs that use the key directly."""

_SPELLINGS = {
    Algorithm.MD5: "MD5",
    Algorithm.SHA1: "SHA1",
    Algorithm.SHA256: "SHA-256",
    Algorithm.HMAC_SHA1: "HMAC-SHA1",
    Algorithm.HMAC_SHA256: "HMAC-SHA256",
    Algorithm.PBKDF2_HMAC_SHA1: "PBKDF2-HMAC-SHA1",
}
_PUNCTUATION = re.compile(rb"[^A-Z0-9]")
_HMAC_HASHES = {Algorithm.HMAC_SHA1: "sha1", Algorithm.HMAC_SHA256: "sha256"}


def _strip_punctuation(identifier: bytes) -> bytes:
    return _PUNCTUATION.sub(b"", identifier.upper())


_BY_NAME = {_strip_punctuation(name.encode("ascii")): algorithm for algorithm, name in _SPELLINGS.items()}
_BY_CODE = {bytes((algorithm.value,)): algorithm for algorithm in _SPELLINGS}


def find_algorithm(identifier: bytes) -> Algorithm | None:
    """Find an algorithm by its code (one byte) or its name in any spelling; None if unknown."""
    if len(identifier) > MAX_IDENTIFIER:
        return None
    return _BY_CODE.get(identifier) or _BY_NAME.get(_strip_punctuation(identifier))


def signature_hash(key: PrivateKey, version: Version) -> Algorithm:
    """The hash of new signatures: SHA-256 with RSA from 2.7 on, with DSA from 2.11 on; SHA-1 before."""
    since = 11 if isinstance(key, DsaPrivateKey) else 7
    return Algorithm.SHA256 if version.at_least(since) else Algorithm.SHA1


def mac(algorithm: Algorithm, key: bytes, data: bytes) -> bytes:
    """Compute a MAC: an HMAC, or for a plain hash the hash of key, data and key."""
    if algorithm in HMACS:
        return hmac.digest(key, data, _HMAC_HASHES[algorithm])
    if algorithm in HASHES:
        return hash_bytes(DigestAlgorithm(algorithm), key + data + key)
    raise RecordMisuse(f"algorithm {algorithm.value} requires more than a key")


HS_SIGNED: Final = "HS_SIGNED"
"""The type of a credential made with a private key."""

HS_MAC: Final = "HS_MAC"
"""The type of a credential made with a session's key."""

_SIGNATURE_TYPES = frozenset((HS_SIGNED, "HS_DSAPUBKEY"))  # the second is an old spelling
_IDS = Struct(">iii")
_COUNTER = Struct(">i")
_MAX_COUNTER = 0x7FFF_FFFF
_SUGGESTED_MAJOR = 0x03  # the bits that the major version has in the envelope
_KEY_PREFIX_LENGTH = 4  # bytes of the key at the front of the buffer
_LOST_LENGTH = 10  # bytes of version, ids and counter that were meant to be in it


def signature_input(message: Message, counter: int) -> bytes:
    """The bytes that a signature covers."""
    if message.version.at_least(7):
        return _protected_bytes(message, counter)
    if message.version.at_least(6):
        prefix = bytearray(14)
        prefix[0:2] = bytes(message.version)
        prefix[2:6] = message.envelope.session_id.to_bytes(4, "big", signed=True)
        prefix[4:8] = _COUNTER.pack(counter)
        return bytes(prefix) + message.raw
    return message.raw


def sign(message: Message, key: PrivateKey, counter: int = 0) -> Message:
    """Sign a message; its envelope must be final."""
    _check_counter(counter)
    algorithm = signature_hash(key, message.version).spelling
    signature = key.sign(algorithm, signature_input(message, counter))
    return message.with_credential(Credential(HS_SIGNED, algorithm.encode("ascii"), signature, counter))


def verify_signature(message: Message, key: PublicKey) -> bool:
    """Whether the message has a valid signature of the key."""
    credential = message.credential
    if credential is None or credential.type not in _SIGNATURE_TYPES:
        return False
    algorithm = find_algorithm(credential.algorithm)
    if algorithm not in HASHES:
        return False
    return key.verify(algorithm.spelling, credential.signature, signature_input(message, credential.counter))


def add_mac(message: Message, session_key: bytes, counter: int) -> Message:
    """Add a MAC to a message; its envelope must be final."""
    _check_counter(counter)
    version = message.version
    algorithm = Algorithm.HMAC_SHA256 if version.at_least(7) else Algorithm.SHA1
    identifier = algorithm.spelling.encode("ascii") if version.at_least(6) else bytes((algorithm,))
    signature = _mac(message, session_key, algorithm, counter)
    return message.with_credential(Credential(HS_MAC, identifier, signature, counter))


def verify_mac(message: Message, session_key: bytes) -> bool:
    """Whether the message has a valid MAC of the session key. The caller checks the counter."""
    credential = message.credential
    if credential is None or credential.type != HS_MAC:
        return False
    algorithm = find_algorithm(credential.algorithm)
    if algorithm not in _mac_algorithms(message.version):
        return False
    expected = _mac(message, session_key, algorithm, credential.counter)
    return hmac.compare_digest(expected, credential.signature)


def _mac(message: Message, key: bytes, algorithm: Algorithm, counter: int) -> bytes:
    version, content = message.version, message.raw
    if version.at_least(7):
        return mac(algorithm, key, _protected_bytes(message, counter))
    if version.at_least(5):
        # mac() would add the key on both sides; this buffer has it elsewhere.
        return mac(algorithm, b"", key[:_KEY_PREFIX_LENGTH] + content + key + bytes(len(key) + _LOST_LENGTH))
    return mac(algorithm, key, content)


def _mac_algorithms(version: Version) -> frozenset[Algorithm]:
    return HMACS if version.at_least(7) else HASHES


def _protected_bytes(message: Message, counter: int) -> bytes:
    """The protected fields of the envelope (from 2.7 on), then header and body."""
    envelope = message.envelope
    versions = bytes(envelope.version)
    if envelope.version.at_least(8):
        versions += bytes((envelope.suggested.major & _SUGGESTED_MAJOR, envelope.suggested.minor))
    return versions + _IDS.pack(envelope.session_id, envelope.request_id, counter) + message.raw


def _check_counter(counter: int) -> None:
    if not 0 <= counter <= _MAX_COUNTER:
        raise LocalProtocolError(f"a session counter must be between 0 and {_MAX_COUNTER}, not {counter}")

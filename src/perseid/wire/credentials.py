"""Hashes and MACs by their identifiers, in all spellings that are met (native protocol, 5.4).

    string, written     SHA1   SHA-256   MD5   HMAC-SHA1   HMAC-SHA256
    string, accepted    SHA-1   SHA256
    one octet           1 MD5   2 SHA-1   3 SHA-256   12 HMAC-SHA1   13 HMAC-SHA256   22 PBKDF2-HMAC-SHA1

"Algorithm names are compared ignoring case and punctuation for the HMAC names"; we are as tolerant with the others.

The digest of a request, which a response carries at its very front when it was asked to (RD).

It is taken over the request's header and body exactly as received. The algorithm follows the response's version:
SHA-256 from 2.7 on, SHA-1 from 2.1 on, MD5 before.

Signatures and MACs of messages, in every version (native protocol, 5).

With HB = header and body, V = the message's version, S = the suggested version, all of the message's own envelope, and
ctr = the counter in the credential:

    signature input, HS_SIGNED             MAC, HS_MAC, with the session's key K
    2.8 and later   V S sid rid ctr HB     2.8 and later   HMAC-SHA-256(K, V S sid rid ctr HB)
    2.7             V sid rid ctr HB       2.7             HMAC-SHA-256(K, V sid rid ctr HB)
    2.6             14 octets, HB          2.5 and 2.6     SHA-1(K[0:4] HB K zeros), as many zeros as K has octets + 10
    before          HB                     before          SHA-1(K HB K)

Two of these are bugs that became the protocol. "The 2.6 prefix: take 14 zero octets, put V at 0-1, sid at 2-5, then
overwrite 4-7 with rid and then 4-7 again with ctr." And the MAC of 2.5 and 2.6, meant to cover the envelope, "was
spoilt by an offset bug": version, ids and counter do not survive, so nothing but the message itself is protected.

"The verifier uses the algorithm named in the credential, the version in the received envelope, and the counter in the
credential." Of the named algorithm only the hash is free: from 2.7 on a MAC must be an HMAC, before it must not.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.records.errors import RecordMisuse
from perseid.records.private_keys import DsaPrivateKey, PrivateKey
from perseid.records.public_keys import PublicKey

from .codes import Version
from .errors import LocalProtocolError
from .message import Credential, Message

MAX_IDENTIFIER: Final = 32
"""Octets of the longest identifier; the longest known one, PBKDF2-HMAC-SHA1, has 16."""


class Algorithm(OpenEnum):
    """Hashes and MACs, by the octet that stands for them."""

    MD5 = 0x01
    SHA1 = 0x02
    SHA256 = 0x03
    HMAC_SHA1 = 0x12
    HMAC_SHA256 = 0x13
    PBKDF2_HMAC_SHA1 = 0x22

    @property
    def spelling(self) -> str:
        """How the protocol writes it as a string."""
        return _SPELLINGS[self]


HASHES: Final = frozenset((Algorithm.MD5, Algorithm.SHA1, Algorithm.SHA256))
"""The algorithms that need no key."""

HMACS: Final = frozenset((Algorithm.HMAC_SHA1, Algorithm.HMAC_SHA256))
"""The algorithms that are HMACs with the key as it is."""

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


def _bare(identifier: bytes) -> bytes:
    return _PUNCTUATION.sub(b"", identifier.upper())


_BY_BARE_NAME = {_bare(name.encode("ascii")): algorithm for algorithm, name in _SPELLINGS.items()}
_BY_OCTET = {bytes((algorithm.value,)): algorithm for algorithm in _SPELLINGS}


def algorithm_named(identifier: bytes) -> Algorithm | None:
    """The algorithm that an identifier means: one octet, or a name in any spelling. None if there is none."""
    if len(identifier) > MAX_IDENTIFIER:
        return None
    return _BY_OCTET.get(identifier) or _BY_BARE_NAME.get(_bare(identifier))


def signature_hash(key: PrivateKey, version: Version) -> Algorithm:
    """The hash of new signatures: SHA-256 with RSA from 2.7 on, with DSA from 2.11 on; SHA-1 before."""
    since = 11 if isinstance(key, DsaPrivateKey) else 7
    return Algorithm.SHA256 if version.at_least(since) else Algorithm.SHA1


def mac(algorithm: Algorithm, key: bytes, data: bytes) -> bytes:
    """The MAC of some data: HMAC by name, or for a plain hash its value over key, data and key."""
    if algorithm in HMACS:
        return hmac.digest(key, data, _HMAC_HASHES[algorithm])
    if algorithm in HASHES:
        return hash_octets(DigestAlgorithm(algorithm), key + data + key)
    raise RecordMisuse(f"a MAC with the algorithm {algorithm.value} needs more than a key")


class DigestAlgorithm(OpenEnum):
    """Hashes, by the octet that stands for them."""

    MD5 = 1
    SHA1 = 2
    SHA256 = 3


DIGEST_LENGTHS: Final = {1: 16, 2: 20, 3: 32}
"""Octets of a digest, by algorithm."""

_NAMES = {DigestAlgorithm.MD5: "md5", DigestAlgorithm.SHA1: "sha1", DigestAlgorithm.SHA256: "sha256"}


def hash_octets(algorithm: DigestAlgorithm, octets: bytes) -> bytes:
    """The hash of some octets; the protocol prescribes which one."""
    return hashlib.new(_NAMES[algorithm], octets, usedforsecurity=False).digest()


def algorithm_for(version: Version) -> DigestAlgorithm:
    """The algorithm that a response of this version uses."""
    if version.at_least(7):
        return DigestAlgorithm.SHA256
    return DigestAlgorithm.SHA1 if version.at_least(1) else DigestAlgorithm.MD5


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """A digest and how it was made."""

    algorithm: DigestAlgorithm
    digest: bytes

    @classmethod
    def of(cls, request_octets: bytes, version: Version) -> Self:
        """The digest that a response of this version carries for a request (header and body)."""
        algorithm = algorithm_for(version)
        return cls(algorithm, hash_octets(algorithm, request_octets))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take a digest: algorithm octet and bare octets, or the older form, which is an octet string (MD5)."""
        if reader.peek() == 0:
            return cls(DigestAlgorithm.MD5, reader.bytes_(DIGEST_LENGTHS[1]))
        algorithm = DigestAlgorithm(reader.u8())
        if algorithm not in DIGEST_LENGTHS:
            raise reader.problem(f"the digest algorithm {algorithm.value} is not known")
        return cls(algorithm, reader.octets(DIGEST_LENGTHS[algorithm]))

    def write(self, writer: Writer) -> None:
        """Add algorithm octet and digest."""
        writer.u8(self.algorithm).octets(self.digest)

    def matches(self, request_octets: bytes) -> bool:
        """Whether this is the digest of that request."""
        return hmac.compare_digest(hash_octets(self.algorithm, request_octets), self.digest)


SIGNED: Final = "HS_SIGNED"
"""The type of a credential made with a private key."""

MACED: Final = "HS_MAC"
"""The type of a credential made with a session's key."""

_SIGNED_TYPES = frozenset((SIGNED, "HS_DSAPUBKEY"))  # the second is an old spelling
_IDS = Struct(">iii")
_COUNTER = Struct(">i")
_MAX_COUNTER = 0x7FFF_FFFF
_SUGGESTED_MAJOR = 0x03  # the bits that the major version has in the envelope
_SURVIVING_KEY = 4  # octets of the key at the front of the spoilt buffer
_SPOILT = 10  # octets of version, ids and counter that were meant to be in it


def signature_input(message: Message, counter: int) -> bytes:
    """What a signature over a message covers."""
    if message.version.at_least(7):
        return _covered(message, counter)
    if message.version.at_least(6):
        prefix = bytearray(14)
        prefix[0:2] = bytes(message.version)
        prefix[2:6] = message.envelope.session_id.to_bytes(4, "big", signed=True)
        prefix[4:8] = _COUNTER.pack(counter)
        return bytes(prefix) + message.octets
    return message.octets


def sign(message: Message, key: PrivateKey, counter: int = 0) -> Message:
    """The message with a signature; its envelope must be final."""
    _check_counter(counter)
    algorithm = signature_hash(key, message.version).spelling
    signature = key.sign(algorithm, signature_input(message, counter))
    return message.with_credential(Credential(SIGNED, algorithm.encode("ascii"), signature, counter))


def verify_signature(message: Message, key: PublicKey) -> bool:
    """Whether the message carries a signature, and it is that of the key's owner."""
    credential = message.credential
    if credential is None or credential.type not in _SIGNED_TYPES:
        return False
    algorithm = algorithm_named(credential.algorithm)
    if algorithm not in HASHES:
        return False
    return key.verify(algorithm.spelling, credential.signature, signature_input(message, credential.counter))


def add_mac(message: Message, session_key: bytes, counter: int) -> Message:
    """The message with a MAC; its envelope must be final."""
    _check_counter(counter)
    version = message.version
    algorithm = Algorithm.HMAC_SHA256 if version.at_least(7) else Algorithm.SHA1
    identifier = algorithm.spelling.encode("ascii") if version.at_least(6) else bytes((algorithm,))
    signature = _mac(message, session_key, algorithm, counter)
    return message.with_credential(Credential(MACED, identifier, signature, counter))


def verify_mac(message: Message, session_key: bytes) -> bool:
    """Whether the message carries a MAC, and it was made with the session's key. The counter is for the caller."""
    credential = message.credential
    if credential is None or credential.type != MACED:
        return False
    algorithm = algorithm_named(credential.algorithm)
    if algorithm not in _mac_algorithms(message.version):
        return False
    expected = _mac(message, session_key, algorithm, credential.counter)
    return hmac.compare_digest(expected, credential.signature)


def _mac(message: Message, key: bytes, algorithm: Algorithm, counter: int) -> bytes:
    version, content = message.version, message.octets
    if version.at_least(7):
        return mac(algorithm, key, _covered(message, counter))
    if version.at_least(5):
        # mac() adds the key on both sides, and this buffer has it elsewhere.
        return mac(algorithm, b"", key[:_SURVIVING_KEY] + content + key + bytes(len(key) + _SPOILT))
    return mac(algorithm, key, content)


def _mac_algorithms(version: Version) -> frozenset[Algorithm]:
    return HMACS if version.at_least(7) else HASHES


def _covered(message: Message, counter: int) -> bytes:
    """The fields of the envelope that are protected from 2.7 on, then header and body."""
    envelope = message.envelope
    versions = bytes(envelope.version)
    if envelope.version.at_least(8):
        versions += bytes((envelope.suggested.major & _SUGGESTED_MAJOR, envelope.suggested.minor))
    return versions + _IDS.pack(envelope.session_id, envelope.request_id, counter) + message.octets


def _check_counter(counter: int) -> None:
    if not 0 <= counter <= _MAX_COUNTER:
        raise LocalProtocolError(f"a session counter is between 0 and {_MAX_COUNTER}, not {counter}")

"""Hashes and MACs by their identifiers, in all spellings that are met (native protocol, 5.4)."""

import hmac
import re
from typing import Final

from perseid.records.encoding import OpenEnum
from perseid.records.errors import RecordMisuse
from perseid.records.private_keys import DsaPrivateKey, PrivateKey
from perseid.wire.codes import Version
from perseid.wire.digests import DigestAlgorithm, hash_bytes

MAX_IDENTIFIER: Final = 32
"""Bytes of the longest identifier; the longest known one, PBKDF2-HMAC-SHA1, has 16."""


class Algorithm(OpenEnum):
    """Hashes and MACs, by the byte that stands for them."""

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


def _strip_punctuation(identifier: bytes) -> bytes:
    return _PUNCTUATION.sub(b"", identifier.upper())


_BY_NAME = {_strip_punctuation(name.encode("ascii")): algorithm for algorithm, name in _SPELLINGS.items()}
_BY_CODE = {bytes((algorithm.value,)): algorithm for algorithm in _SPELLINGS}


def find_algorithm(identifier: bytes) -> Algorithm | None:
    """The algorithm that an identifier means: one byte, or a name in any spelling. None if there is none."""
    if len(identifier) > MAX_IDENTIFIER:
        return None
    return _BY_CODE.get(identifier) or _BY_NAME.get(_strip_punctuation(identifier))


def signature_hash(key: PrivateKey, version: Version) -> Algorithm:
    """The hash of new signatures: SHA-256 with RSA from 2.7 on, with DSA from 2.11 on; SHA-1 before."""
    since = 11 if isinstance(key, DsaPrivateKey) else 7
    return Algorithm.SHA256 if version.at_least(since) else Algorithm.SHA1


def mac(algorithm: Algorithm, key: bytes, data: bytes) -> bytes:
    """The MAC of some data: HMAC by name, or for a plain hash its value over key, data and key."""
    if algorithm in HMACS:
        return hmac.digest(key, data, _HMAC_HASHES[algorithm])
    if algorithm in HASHES:
        return hash_bytes(DigestAlgorithm(algorithm), key + data + key)
    raise RecordMisuse(f"a MAC with the algorithm {algorithm.value} needs more than a key")

"""Hashes and MACs by their identifiers, in all known spellings (native protocol §5.4).

    string, written     SHA1   SHA-256   MD5   HMAC-SHA1   HMAC-SHA256
    string, accepted    SHA-1   SHA256
    one byte            1 MD5   2 SHA-1   3 SHA-256   12 HMAC-SHA1   13 HMAC-SHA256   22 PBKDF2-HMAC-SHA1

Case and punctuation are ignored in all names.
"""

import hmac
import re
from typing import Final

from perseid.records.encoding import OpenEnum
from perseid.records.errors import RecordMisuse
from perseid.records.private_keys import DsaPrivateKey, PrivateKey
from perseid.wire.codes import Version
from perseid.wire.digests import DigestAlgorithm, hash_bytes

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

"""The digest of a request, at the front of a response with the RD flag.

It covers the request's header and body as received. The algorithm depends on the version of the response: SHA-256 from
2.7 on, SHA-1 from 2.1 on, MD5 before.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Self

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.wire.codes import Version


class DigestAlgorithm(OpenEnum):
    """Hash algorithms by their code."""

    MD5 = 1
    SHA1 = 2
    SHA256 = 3


DIGEST_LENGTHS: Final = {1: 16, 2: 20, 3: 32}
"""Size of a digest in bytes, by algorithm."""

_HASH_NAMES = {DigestAlgorithm.MD5: "md5", DigestAlgorithm.SHA1: "sha1", DigestAlgorithm.SHA256: "sha256"}


def hash_bytes(algorithm: DigestAlgorithm, data: bytes) -> bytes:
    """Compute a hash."""
    return hashlib.new(_HASH_NAMES[algorithm], data, usedforsecurity=False).digest()


def digest_algorithm_for(version: Version) -> DigestAlgorithm:
    """The algorithm for responses of a version."""
    if version.at_least(7):
        return DigestAlgorithm.SHA256
    return DigestAlgorithm.SHA1 if version.at_least(1) else DigestAlgorithm.MD5


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """A digest and its algorithm."""

    algorithm: DigestAlgorithm
    digest: bytes

    @classmethod
    def of(cls, request_bytes: bytes, version: Version) -> Self:
        """Compute the digest of a request (header and body) for a response of a version."""
        algorithm = digest_algorithm_for(version)
        return cls(algorithm, hash_bytes(algorithm, request_bytes))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read a digest: algorithm and bytes, or the older form, a byte string (MD5)."""
        if reader.peek() == 0:
            return cls(DigestAlgorithm.MD5, reader.bytes_(DIGEST_LENGTHS[1]))
        algorithm = DigestAlgorithm(reader.u8())
        if algorithm not in DIGEST_LENGTHS:
            raise reader.problem(f"unknown digest algorithm {algorithm.value}")
        return cls(algorithm, reader.raw(DIGEST_LENGTHS[algorithm]))

    def write(self, writer: Writer) -> None:
        """Write algorithm and digest."""
        writer.u8(self.algorithm).raw(self.digest)

    def matches(self, request_bytes: bytes) -> bool:
        """Whether this is the digest of a request."""
        return hmac.compare_digest(hash_bytes(self.algorithm, request_bytes), self.digest)

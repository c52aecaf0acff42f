"""The digest of a request, at the front of a response to a request that asked for it (RD)."""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Self

from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.wire.codes import Version


class DigestAlgorithm(OpenEnum):
    """Hashes, by the byte that stands for them."""

    MD5 = 1
    SHA1 = 2
    SHA256 = 3


DIGEST_LENGTHS: Final = {1: 16, 2: 20, 3: 32}
"""Bytes of a digest, by algorithm."""

_HASH_NAMES = {DigestAlgorithm.MD5: "md5", DigestAlgorithm.SHA1: "sha1", DigestAlgorithm.SHA256: "sha256"}


def hash_bytes(algorithm: DigestAlgorithm, data: bytes) -> bytes:
    """The hash of some bytes; the protocol prescribes which one."""
    return hashlib.new(_HASH_NAMES[algorithm], data, usedforsecurity=False).digest()


def digest_algorithm_for(version: Version) -> DigestAlgorithm:
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
    def of(cls, request_bytes: bytes, version: Version) -> Self:
        """The digest that a response of this version carries for a request (header and body)."""
        algorithm = digest_algorithm_for(version)
        return cls(algorithm, hash_bytes(algorithm, request_bytes))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take a digest: algorithm byte and bare bytes, or the older form, which is a byte string (MD5)."""
        if reader.peek() == 0:
            return cls(DigestAlgorithm.MD5, reader.bytes_(DIGEST_LENGTHS[1]))
        algorithm = DigestAlgorithm(reader.u8())
        if algorithm not in DIGEST_LENGTHS:
            raise reader.problem(f"the digest algorithm {algorithm.value} is not known")
        return cls(algorithm, reader.raw(DIGEST_LENGTHS[algorithm]))

    def write(self, writer: Writer) -> None:
        """Add algorithm byte and digest."""
        writer.u8(self.algorithm).raw(self.digest)

    def matches(self, request_bytes: bytes) -> bool:
        """Whether this is the digest of that request."""
        return hmac.compare_digest(hash_bytes(self.algorithm, request_bytes), self.digest)

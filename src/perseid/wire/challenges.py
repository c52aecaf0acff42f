"""Challenge responses, with a private key or a secret, and the table of pending challenges (native protocol §13).

X = nonce followed by digest, K = the secret. A public-key answer (§13.4) is `bytes` hash name, `bytes` signature of X,
with the hash of the challenge's version. A secret-key answer (§13.5) depends on the lower of the challenge's version
and its suggested version:

    2.7 and later   22   bytes salt   i32 iterations   i32 key bits   bytes HMAC-SHA1(PBKDF2(K, salt …), X)
    2.1 to 2.6      02   SHA-1(K X K)
    before          MD5(K X K), without the algorithm

From request version 2.1 on, the first byte of an answer selects the algorithm: 0 or 1 MD5(K X K); 2 SHA-1(K X K);
3 SHA-256(K X K); 0x12 HMAC-SHA1(K, X); 0x13 HMAC-SHA256(K, X); 0x22 PBKDF2 with the salt, iterations and key length in
the answer, within limits. The whole remainder, including parameters, is compared. Only for 0x22, K is converted with
`latin1_to_utf8`. A malformed answer is a wrong answer.

The server stores the challenged request and executes this copy when the answer is right. A challenge is used once: a
repeated answer (UDP) gets the same reply and executes nothing.
"""

import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from perseid.records.binary import Reader, Writer
from perseid.records.ciphers import DEFAULT_ITERATIONS, derive_key, latin1_to_utf8
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey

from .codes import Version
from .credentials import HASHES, HMACS, MAX_IDENTIFIER, Algorithm, find_algorithm, mac, signature_hash
from .message import Message, RequestDigest

DERIVED_KEY_BITS: Final = 160
"""Size of the derived key that deployed clients request, in bits."""

SALT_LENGTH: Final = 16
"""Size of the salt that deployed clients use, in bytes."""


def answer_with_key(key: PrivateKey, nonce: bytes, digest: bytes, version: Version) -> bytes:
    """Answer a challenge with a private key; `version` is that of the challenge."""
    algorithm = signature_hash(key, version).spelling
    return Writer().text(algorithm).bytes_(key.sign(algorithm, nonce + digest)).getvalue()


def check_key_answer(key: PublicKey, nonce: bytes, digest: bytes, answer: bytes) -> bool:
    """Whether the answer was made with the key. Any hash is accepted."""
    try:
        reader = Reader(answer)
        algorithm = find_algorithm(reader.bytes_(MAX_IDENTIFIER))
        signature = reader.bytes_()
        reader.finish()
    except InvalidData:
        return False
    return algorithm in HASHES and key.verify(algorithm.spelling, signature, nonce + digest)


def answer_with_secret(
    secret: bytes, nonce: bytes, digest: bytes, version: Version, suggested: Version, salt: bytes
) -> bytes:
    """Answer a challenge with a secret; the versions are those of the challenge, the salt is fresh (`SALT_LENGTH`)."""
    data = nonce + digest
    if version.at_least(7) and suggested.at_least(7):
        return bytes((Algorithm.PBKDF2_HMAC_SHA1,)) + pbkdf2_mac(
            secret, salt, DEFAULT_ITERATIONS, DERIVED_KEY_BITS, data
        )
    if version.at_least(1) and suggested.at_least(1):
        return bytes((Algorithm.SHA1,)) + mac(Algorithm.SHA1, secret, data)
    return mac(Algorithm.MD5, secret, data)


def check_secret_answer(secret: bytes, nonce: bytes, digest: bytes, answer: bytes, version: Version) -> bool:
    """Whether the answer was made with the secret; `version` is that of the answering message.

    An empty secret proves nothing.
    """
    if not secret or not answer:
        return False
    data = nonce + digest
    if not version.at_least(1):
        return hmac.compare_digest(mac(Algorithm.MD5, secret, data), answer)
    # 0 means MD5 only here.
    algorithm, received = Algorithm(answer[0] or Algorithm.MD5), answer[1:]
    if algorithm == Algorithm.PBKDF2_HMAC_SHA1:
        try:
            reader = Reader(received)
            expected = pbkdf2_mac(secret, reader.bytes_(), reader.i32(), reader.i32(), data)
        except InvalidData:
            return False
    elif algorithm in HASHES or algorithm in HMACS:
        expected = mac(algorithm, secret, data)
    else:
        return False
    return hmac.compare_digest(expected, received)


def pbkdf2_mac(secret: bytes, salt: bytes, iterations: int, bits: int, data: bytes) -> bytes:
    """The MAC of code 0x22 after its parameters; parameters out of bounds are rejected."""
    key = derive_key(latin1_to_utf8(secret), salt, iterations, bits)
    code = mac(Algorithm.HMAC_SHA1, key, data)
    return Writer().bytes_(salt).i32(iterations).i32(bits).bytes_(code).getvalue()


NONCE_LENGTH: Final = 16
"""Size of a nonce in bytes, as in deployed servers."""

MAX_CHALLENGES: Final = 10_000
"""Maximum number of pending challenges; the oldest is evicted."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Maximum size of all challenged requests in bytes, because anyone can cause a challenge. Small requests survive a
flood of large ones: here the largest is evicted first; the tables that workers share keep long ones apart."""

MAX_REPLY: Final = 65_536
"""Maximum size of a reply stored for repeated answers, in bytes: only UDP repeats, and long replies do not use it."""


@dataclass(slots=True, eq=False)
class PendingChallenge:
    """A challenge, and the request it protects."""

    id: int
    """The session id of the challenge: a number of its own, or the session's."""
    request: Message
    """The request to execute."""
    nonce: bytes
    digest: RequestDigest
    """The digest of the request."""
    since: float
    """Time of the challenge."""
    used_by: tuple[int, bytes] | None = None
    """The accepted answer: its request id and its proof."""
    reply: tuple[bytes, ...] = field(default=(), repr=False)
    """The reply to that answer, for repetitions; empty if it was several messages or too long."""
    is_list: bool = False
    """Whether the reply was several messages."""

    def matches_request(self, request: Message) -> bool:
        """Whether this is an open challenge for the same request, which may have been received twice (UDP)."""
        same = self.request.envelope.request_id == request.envelope.request_id
        return same and self.request.raw == request.raw and self.used_by is None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.request.payload()) + sum(map(len, self.reply))


@dataclass(frozen=True, slots=True)
class ChallengeLimits:
    """Maximum number of pending challenges, and of the bytes of their requests."""

    count: int = MAX_CHALLENGES
    size: int = MAX_PENDING_BYTES


class ChallengeTable:
    """All pending challenges of one process, oldest first."""

    def __init__(self, life: float, limits: ChallengeLimits | None = None) -> None:
        self._life = life
        self._limits = limits or ChallengeLimits()
        self._pending: OrderedDict[int, PendingChallenge] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, challenge_id: int) -> bool:
        return challenge_id in self._pending

    def add(self, pending: PendingChallenge, *, udp: bool = False) -> None:  # noqa: ARG002 - other stores use it
        """Add a challenge; one with the same id is replaced."""
        self._drop(pending.id)
        self._pending[pending.id] = pending
        self._size += pending.size
        self._evict()

    def find(self, challenge_id: int, now: float) -> PendingChallenge | None:
        """The challenge with this id, if it has not expired. It may be answered over another transport."""
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if abs(now - oldest.since) <= self._life:
                break
            self._drop(oldest.id)
        return self._pending.get(challenge_id)

    def take(self, pending: PendingChallenge, used_by: tuple[int, bytes]) -> bool:
        """Mark a challenge as used by an answer; return whether it was unused."""
        if pending.used_by is not None:
            return False
        pending.used_by = used_by
        return True

    def settle(self, pending: PendingChallenge, reply: tuple[bytes, ...]) -> None:
        """Store the reply to the accepted answer, unless it is too long."""
        if self._pending.get(pending.id) is pending and sum(map(len, reply)) <= MAX_REPLY:
            self._size -= pending.size
            pending.reply = reply
            self._size += pending.size
            self._evict()

    def _drop(self, challenge_id: int) -> None:
        pending = self._pending.pop(challenge_id, None)
        if pending is not None:
            self._size -= pending.size

    def _evict(self) -> None:
        while len(self._pending) > self._limits.count:
            self._drop(next(iter(self._pending)))
        while self._size > self._limits.size:
            self._drop(max(self._pending.values(), key=lambda pending: pending.size).id)

"""Sessions: key exchange, encryption, replay protection and the server's session table (native protocol §15).

A session belongs to a server, not to a connection. It has a claimed identity, which the first challenge answered in it
proves; from then on a MAC suffices. Client and server use the same `Session`.

Encryption of messages without envelope (§15.5):

             from 2.4 on                     before
    AES      AES-128-CBC, IV in front        AES-128-ECB
    DES      DES-CBC, IV in front            DES-ECB
    3DES     3DES-CBC, IV in front           3DES-ECB

Padding is PKCS#7, the IV is random, and the version is that of the session. MACs use all 32 bytes of the session key,
AES the first 16. The MAC is inside the encrypted message and is checked after decryption, so all decryption errors have
the same message.

Key exchange (§15.3, §15.4, §21.6) with Diffie–Hellman: the client chooses a group and sends y, p, g; the server creates
a key pair in the same group and returns its own y, p, g. Both then have the secret Z, as long as the modulus, with
leading zeros:

    AES    drop leading zero bytes of Z (while more than 32 bytes remain), take the first 32
    DES    the first 8 bytes of Z, parity bits set to odd
    3DES   the first 24 bytes of Z, parity adjusted

Nothing is hashed. The RSA modes encrypt the key itself: "i32 cipher id, key", or the key alone before 2.2.

Diffie–Hellman has two implementations. The `cryptography` library takes constant time, but tests unknown moduli for
primality: 70 ms per exchange for the 1024 bits of deployed clients, 7 s for 4096 bits chosen by an untrusted peer. So
it is used for the groups that it knows, as long as it has Diffie–Hellman (deprecated in version 50), and pow() for the
others, in 2 to 20 ms. The timing of pow() reveals little, because every exponent is used once.
"""

import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from perseid.records.ciphers import DECRYPTION_FAILED, BlockCipher, decrypt_blocks, encrypt_blocks
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, check_dh_group

from .codes import MAX_TIMEOUT, LocalProtocolError, RemoteProtocolError, ResponseCode, Version
from .credentials import add_mac, verify_mac
from .message import MAX_MESSAGE, Credential, Envelope, Message


class Cipher(OpenEnum):
    """Session ciphers; the server chooses."""

    DES = 1
    TDES = 2
    AES = 3


_CIPHERS = {
    Cipher.DES: (BlockCipher.DES, 8),
    Cipher.TDES: (BlockCipher.TDES, 24),
    Cipher.AES: (BlockCipher.AES, 16),
}
"""Each cipher and its key size in bytes; the key is the start of the session key."""


def encrypt(cipher: Cipher, key: bytes, plaintext: bytes, version: Version, random: Callable[[int], bytes]) -> bytes:
    """Encrypt a message with a session key; from 2.4 on after a random initialization vector."""
    block, used = _select_cipher(cipher, key)
    if not version.at_least(4):
        return encrypt_blocks(block, used, None, plaintext)
    iv = random(block.block)
    return iv + encrypt_blocks(block, used, iv, plaintext)


def decrypt(cipher: Cipher, key: bytes, data: bytes, version: Version) -> bytes:
    """Decrypt a message with a session key."""
    block, used = _select_cipher(cipher, key)
    if not version.at_least(4):
        return decrypt_blocks(block, used, None, data)
    if len(data) < block.block:
        raise InvalidData(DECRYPTION_FAILED)
    return decrypt_blocks(block, used, data[: block.block], data[block.block :])


def _select_cipher(cipher: Cipher, key: bytes) -> tuple[BlockCipher, bytes]:
    if cipher not in _CIPHERS:
        raise LocalProtocolError(f"unknown session cipher {cipher.value}")
    block, length = _CIPHERS[cipher]
    if len(key) < length:
        raise LocalProtocolError(f"a session key for {block} must have at least {length} bytes, not {len(key)}")
    return block, key[:length]


COUNTER_WINDOW_SIZE: Final = 200
"""Number of remembered counters, as in deployed peers, so that requests can arrive out of order."""

MAX_SESSIONS: Final = 10_000
"""Maximum number of sessions; the least recently used is evicted. Each takes about 1 kB, and deployed clients never end
theirs, so the table holds about a day's clients."""

MAX_UNAUTHENTICATED: Final = 1_000
"""Maximum number of unauthenticated sessions. Anyone can start them, so they evict only each other."""

MAX_ID: Final = 0x7FFF_FFFF
"""The largest id: the field of the envelope is signed, and 0 means no session."""

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity: a key value in a handle's record."""

    handle: bytes
    """The handle, as spelled."""
    index: int
    """The index of the key; 0 means any suitable one."""
    key_index: int | None = None
    """The index of the key that proved the identity, once authenticated."""

    def is_same_identity(self, other: "Identity") -> bool:
        """Whether handle and index are equal."""
        return self.handle == other.handle and self.index == other.index


class CounterWindow:
    """Used counters: none is accepted twice, and none older than the oldest remembered."""

    __slots__ = ("_heap", "_seen")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._heap: list[int] = []  # the same counters, the smallest first

    def is_fresh(self, counter: int) -> bool:
        """Whether a counter can be accepted. Zero always can: the sender does not count."""
        if counter == 0:
            return True
        if counter in self._seen:
            return False
        return len(self._seen) < COUNTER_WINDOW_SIZE or counter > self._heap[0]

    def record(self, counter: int) -> None:
        """Remember a counter."""
        if counter and counter not in self._seen:
            self._seen.add(counter)
            heappush(self._heap, counter)
            if len(self._seen) > COUNTER_WINDOW_SIZE:
                self._seen.remove(heappop(self._heap))


@dataclass(slots=True, eq=False)
class Session:
    """One session, in either role."""

    id: int
    """Chosen by the server; in every envelope."""
    key: bytes = field(repr=False)
    """The whole derived key; MACs use all of it."""
    cipher: Cipher
    """How messages are encrypted."""
    version: Version
    """The version of the setup response."""
    identity: Identity | None = None
    """The claimed identity; None for an anonymous session."""
    timeout: int = MAX_TIMEOUT
    """Idle timeout in seconds."""
    used: float = 0.0
    """Time of last use."""
    proved: Identity | None = None
    """The identity after authentication."""
    sent: int = 0
    """The last counter sent."""
    received: CounterWindow = field(default_factory=CounterWindow, repr=False)
    """The counters received."""

    def protect(self, message: Message) -> Message:
        """Add a MAC with this side's next counter."""
        return add_mac(message, self.key, self.next_counter())

    def authenticate(self, message: Message) -> Credential:
        """Verify the MAC of a message, without its counter."""
        if message.credential is None:
            raise RemoteProtocolError("the message has no MAC", ResponseCode.INVALID_CREDENTIAL)
        if not verify_mac(message, self.key):
            raise RemoteProtocolError("the MAC is invalid", ResponseCode.INVALID_SESSION_KEY)
        return message.credential

    def check(self, message: Message, *, allow_replay: bool = False) -> None:
        """Verify the MAC and counter of a message, and record the counter."""
        credential = self.authenticate(message)
        if credential.counter and not self.take_counter(credential.counter) and not allow_replay:
            self._reject_counter()

    def check_counter(self, message: Message) -> None:
        """Reject a counter that was used before, without recording it."""
        counter = 0 if message.credential is None else message.credential.counter
        if counter and not self.is_fresh(counter):
            self._reject_counter()

    def _reject_counter(self) -> None:
        """Versions before 2.5 have no counters."""
        if self.version.at_least(5):
            raise RemoteProtocolError("the session counter was used before", ResponseCode.SESSION_MESSAGE_REJECTED)

    # Counters; a server with several processes keeps them elsewhere.

    def next_counter(self) -> int:
        """The next counter to send."""
        self.sent += 1
        return self.sent

    def is_fresh(self, counter: int) -> bool:
        """Whether a received counter, not 0, was not used before."""
        return self.received.is_fresh(counter)

    def take_counter(self, counter: int) -> bool:
        """Record a received counter, not 0; return whether it was fresh."""
        is_fresh = self.received.is_fresh(counter)
        self.received.record(counter)
        return is_fresh

    def seal(self, message: Message, random: Random) -> tuple[Envelope, bytes]:
        """Encrypt a message; return its envelope and payload."""
        payload = encrypt(self.cipher, self.key, message.payload(), self.version, random)
        if len(payload) > MAX_MESSAGE:
            raise LocalProtocolError(
                f"the encrypted message has {len(payload):,} bytes; the maximum is {MAX_MESSAGE:,}"
            )
        return replace(message.envelope, encrypted=True, length=len(payload)), payload

    def open(self, payload: bytes) -> bytes:
        """Decrypt a payload."""
        try:
            return decrypt(self.cipher, self.key, payload, self.version)
        except InvalidData as error:
            raise RemoteProtocolError("the message cannot be decrypted", ResponseCode.SESSION_FAILED) from error


class SessionTable:
    """The sessions of a server, least recently used first."""

    def __init__(self, limit: int = MAX_SESSIONS, unproved: int = MAX_UNAUTHENTICATED) -> None:
        self._limit = limit
        self._max_unauthenticated = unproved
        self.last_id = 0
        """The last id of the sequence."""
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._unauthenticated: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def next_id(self) -> int:
        """The next id, which no session has."""
        while True:
            self.last_id = self.last_id % MAX_ID + 1
            if self.last_id not in self._sessions:
                return self.last_id

    def add(self, session: Session, now: float) -> None:
        """Add a session; evict the least recently used unauthenticated one, or any other if necessary."""
        session.used = now
        self._sessions[session.id] = session
        self._unauthenticated[session.id] = None
        if len(self._unauthenticated) > self._max_unauthenticated:
            self._forget(next(iter(self._unauthenticated)))
        while len(self._sessions) > self._limit:
            self._forget(next(iter(self._sessions)))

    def confirm(self, session: Session) -> None:
        """Mark a session as authenticated."""
        self._unauthenticated.pop(session.id, None)

    def use(self, session_id: int, now: float) -> Session | None:
        """Get a session and keep it alive; None if it does not exist or has timed out."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if now - session.used > session.timeout:
            self._forget(session_id)
            return None
        session.used = now
        self._sessions.move_to_end(session_id)
        if session_id in self._unauthenticated:
            self._unauthenticated.move_to_end(session_id)
        return session

    def end(self, session: Session) -> None:
        """Remove a session."""
        self._forget(session.id)

    def _forget(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        self._unauthenticated.pop(session_id, None)


try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        from cryptography.hazmat.primitives.asymmetric.dh import (
            DHParameterNumbers,
            DHPrivateNumbers,
            DHPublicNumbers,
        )
    LIBRARY_HAS_DH = True
except ImportError:  # pragma: no cover - a later version of the library
    LIBRARY_HAS_DH = False

DEFAULT_GROUP: Final = (
    int(
        "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd"
        "ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed"
        "ee386bfb5a899fa5ae9f24117c4b1fe649286651ece65381ffffffffffffffff",
        16,
    ),
    2,
)
"""Modulus and generator of deployed clients: Oakley group 2, 1024 bits."""

EXPONENT_LENGTH: Final = 32
"""Size of a private exponent in bytes: 256 bits give 128 bits of security."""

_NAMED_GROUPS: Final = frozenset(
    (
        "64fcc83ec403930bf18393dbc883ccaa1fbb08ac876f77f7aa99748ca945019b",  # RFC 3526, 1536 bits
        "d66436f79bbd6b2e38c0ffbd079be904d2641415e2e67140e09448be9a60890e",  # 2048
        "48cf8b092fbce4359d9871abf74f98e25b6163379eaa15cd9087e800c6d1c55c",  # 3072
        "4ee95187682bcb230ad26a95205f6920e84708f6251b3894329b09ec23919e33",  # 4096
        "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",  # RFC 7919, 2048 bits
        "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",  # 3072
        "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",  # 4096
    )
)
"""SHA-256 of the moduli that the library knows to be prime; their generator is 2."""

_ATTEMPTS = 8  # to draw an exponent; one suffices in every real group
_AES_KEY_LENGTH = 32
_DES_KEY_LENGTHS = {Cipher.DES: 8, Cipher.TDES: 24}


@dataclass(frozen=True, slots=True)
class DhKeyPair:
    """A key pair for one exchange."""

    public: DhPublicKey
    """y, p and g."""
    exponent: int = field(repr=False)
    """The secret."""


def generate_key_pair(group: tuple[int, int], random: Callable[[int], bytes]) -> DhKeyPair:
    """Generate a key pair in a group (modulus, generator), which is checked first."""
    p, g = group
    check_dh_group(p, g)
    for _ in range(_ATTEMPTS):
        exponent = int.from_bytes(random(EXPONENT_LENGTH), "big") | 1 << (8 * EXPONENT_LENGTH - 1)
        if 1 < (y := pow(g, exponent, p)) < p - 1:
            return DhKeyPair(DhPublicKey(y, p, g), exponent)
    raise InvalidData("the Diffie-Hellman generator has too small an order")


def shared_secret(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret, as long as the modulus."""
    mine = pair.public
    if (peer.p, peer.g) != (mine.p, mine.g):
        raise InvalidData("the peer's Diffie-Hellman key is in another group")
    power = exchange_with_library if LIBRARY_HAS_DH and _is_named_group(mine) else exchange_with_pow
    return power(pair, peer)


def exchange_with_library(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret with the `cryptography` library."""
    mine = pair.public
    group = DHParameterNumbers(mine.p, mine.g)
    try:
        private = DHPrivateNumbers(pair.exponent, DHPublicNumbers(mine.y, group)).private_key()
        return private.exchange(DHPublicNumbers(peer.y, group).public_key())
    except ValueError:
        raise InvalidData(_EXCHANGE_FAILED) from None


def exchange_with_pow(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret with pow()."""
    p = peer.p
    secret = pow(peer.y, pair.exponent, p)
    if not 1 < secret < p - 1:
        raise InvalidData(_EXCHANGE_FAILED)
    return secret.to_bytes((p.bit_length() + 7) // 8, "big")


def derive_session_key(cipher: Cipher, shared: bytes) -> bytes:
    """Derive the session key: MACs use all of it, the cipher its first bytes."""
    if cipher == Cipher.AES:
        while len(shared) > _AES_KEY_LENGTH and shared[0] == 0:
            shared = shared[1:]
        key = shared[:_AES_KEY_LENGTH]
    elif cipher in _DES_KEY_LENGTHS:
        key = bytes(_set_odd_parity(byte) for byte in shared[: _DES_KEY_LENGTHS[cipher]])
    else:
        raise InvalidData(f"unknown session cipher {cipher.value}")
    if len(key) < _DES_KEY_LENGTHS.get(cipher, _AES_KEY_LENGTH):
        raise InvalidData("the shared secret is too short for a session key")
    return key


def _set_odd_parity(byte: int) -> int:
    return byte & 0xFE | (1 - (byte >> 1).bit_count() % 2)


def _is_named_group(key: DhPublicKey) -> bool:
    data = key.p.to_bytes((key.p.bit_length() + 7) // 8, "big")
    return key.g == 2 and hashlib.sha256(data).hexdigest() in _NAMED_GROUPS


_EXCHANGE_FAILED = "the key exchange failed"

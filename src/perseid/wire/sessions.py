"""Sessions: encryption, MACs, replay protection and the server's session table (native protocol §15).

Encryption of messages without envelope (§15.5):

             from 2.4 on                     before
    AES      AES-128-CBC, IV in front        AES-128-ECB
    DES      DES-CBC, IV in front            DES-ECB
    3DES     3DES-CBC, IV in front           3DES-ECB

Padding is PKCS#7, the IV is random, and the version is that of the session. MACs use all 32 bytes of the session key,
AES the first 16. The MAC is inside the encrypted message and is checked after decryption, so all decryption errors have
the same message.

A session belongs to a server, not to a connection. It has a claimed identity, which the first challenge answered in it
proves; from then on a MAC suffices. Client and server use the same `Session`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from perseid.records.ciphers import DECRYPTION_FAILED, BlockCipher, decrypt_blocks, encrypt_blocks
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData

from .codes import LocalProtocolError, RemoteProtocolError, ResponseCode, Version
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

MAX_TIMEOUT: Final = 86_400
"""Maximum idle timeout in seconds."""

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
        self.sent += 1
        return add_mac(message, self.key, self.sent)

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
        if not allow_replay:
            self.check_counter(message)
        self.received.record(credential.counter)

    def check_counter(self, message: Message) -> None:
        """Reject a counter that was used before; versions before 2.5 have no counters."""
        counter = 0 if message.credential is None else message.credential.counter
        if self.version.at_least(5) and not self.received.is_fresh(counter):
            raise RemoteProtocolError("the session counter was used before", ResponseCode.SESSION_MESSAGE_REJECTED)

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
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._unauthenticated: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

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

    def purge(self, now: float) -> int:
        """Remove timed out sessions and return their number; called about once a minute."""
        dead = [session for session in self._sessions.values() if now - session.used > session.timeout]
        for session in dead:
            self.end(session)
        return len(dead)

    def _forget(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        self._unauthenticated.pop(session_id, None)

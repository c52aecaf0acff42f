"""The encryption of sessions: whole messages, envelope excluded (native protocol, 15.5).

             from 2.4 on                     before
    AES      AES-128-CBC, IV in front        AES-128-ECB
    DES      DES-CBC, IV in front            DES-ECB
    3DES     3DES-CBC, IV in front           3DES-ECB

Padding is PKCS#7 throughout, the IV is random, and the version is that of the session. "MACs use all 32 bytes; AES
uses the first 16": the session's key may be longer than the cipher's.

Encryption protects against reading only: the protocol checks the MAC inside after decryption. An undecryptable
message is therefore refused in one sentence whatever is wrong with it.

Sessions: a key that two parties share for a while, and the counters that keep old messages from being replayed.

A session belongs to a server, not to a connection. It records who the client *says* it is; the first challenge
answered in it proves that, and from then on a MAC suffices. Both roles use the same `Session`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from perseid.records.ciphers import DECRYPTION_FAILED, BlockCipher, decrypt_blocks, encrypt_blocks
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData

from .codes import ResponseCode, Version
from .credentials import add_mac, verify_mac
from .errors import LocalProtocolError, RemoteProtocolError
from .message import MAX_MESSAGE, Credential, Envelope, Message


class Cipher(OpenEnum):
    """The ciphers of sessions; the server decides which."""

    DES = 1
    TDES = 2
    AES = 3


_CIPHERS = {
    Cipher.DES: (BlockCipher.DES, 8),
    Cipher.TDES: (BlockCipher.TDES, 24),
    Cipher.AES: (BlockCipher.AES, 16),
}
"""Each cipher and the bytes of its key, which are the first of the session's."""


def encrypt(cipher: Cipher, key: bytes, plaintext: bytes, version: Version, random: Callable[[int], bytes]) -> bytes:
    """Encrypt a message under a session's key; from version 2.4 on with a fresh initialisation vector in front."""
    block, used = _select_cipher(cipher, key)
    if not version.at_least(4):
        return encrypt_blocks(block, used, None, plaintext)
    iv = random(block.block)
    return iv + encrypt_blocks(block, used, iv, plaintext)


def decrypt(cipher: Cipher, key: bytes, data: bytes, version: Version) -> bytes:
    """Decrypt a message under a session's key."""
    block, used = _select_cipher(cipher, key)
    if not version.at_least(4):
        return decrypt_blocks(block, used, None, data)
    if len(data) < block.block:
        raise InvalidData(DECRYPTION_FAILED)
    return decrypt_blocks(block, used, data[: block.block], data[block.block :])


def _select_cipher(cipher: Cipher, key: bytes) -> tuple[BlockCipher, bytes]:
    if cipher not in _CIPHERS:
        raise LocalProtocolError(f"sessions with cipher {cipher.value} are not known")
    block, length = _CIPHERS[cipher]
    if len(key) < length:
        raise LocalProtocolError(f"a session's key for {block} has at least {length} bytes, not {len(key)}")
    return block, key[:length]


COUNTER_WINDOW_SIZE: Final = 200
"""How many counters are remembered: as many as deployed peers do, so that requests may overtake each other."""

MAX_SESSIONS: Final = 10_000
"""Sessions at a time; the one unused for longest makes room. Each costs about a kilobyte, and deployed clients
never end theirs, so the table is normally as full as a day's clients are many."""

MAX_UNAUTHENTICATED: Final = 1_000
"""Sessions in which nobody has proved anything yet. Anybody can begin them, so they make room for each other and never
take the place of those in use."""

MAX_TIMEOUT: Final = 86_400
"""Seconds of idleness after which a session ends at the latest, whatever the client wished."""

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody: a key value in a handle's record."""

    handle: bytes
    """The handle, as it was spelled."""
    index: int
    """The index of the key; 0 stands for any suitable one."""
    key_index: int | None = None
    """Once proved: the index of the key that did."""

    def is_same_identity(self, other: "Identity") -> bool:
        """Whether the other claims to be exactly this one."""
        return self.handle == other.handle and self.index == other.index


class CounterWindow:
    """Which counters have been used: none twice, and none older than the oldest remembered."""

    __slots__ = ("_heap", "_seen")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._heap: list[int] = []  # the same counters, the smallest first

    def is_fresh(self, counter: int) -> bool:
        """Whether a counter may be accepted. Zero always is: it means that the sender does not count."""
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
    """Chosen by the server; it stands in every envelope."""
    key: bytes = field(repr=False)
    """The whole derived key; MACs use all of it."""
    cipher: Cipher
    """How messages are encrypted."""
    version: Version
    """That of the set-up response."""
    identity: Identity | None = None
    """Whom the client claims to be; None for an anonymous session."""
    timeout: int = MAX_TIMEOUT
    """Seconds of idleness after which the session ends."""
    used: float = 0.0
    """When it was last used."""
    proved: Identity | None = None
    """Who has answered a challenge in it, being the one it claims."""
    sent: int = 0
    """The last counter that this side used."""
    received: CounterWindow = field(default_factory=CounterWindow, repr=False)
    """The counters that the other side has used."""

    def protect(self, message: Message) -> Message:
        """Add a MAC with this side's next counter."""
        self.sent += 1
        return add_mac(message, self.key, self.sent)

    def authenticate(self, message: Message) -> Credential:
        """Verify a message's MAC; its counter is for `check`."""
        if message.credential is None:
            raise RemoteProtocolError("the message carries no MAC", ResponseCode.INVALID_CREDENTIAL)
        if not verify_mac(message, self.key):
            raise RemoteProtocolError("the MAC does not verify", ResponseCode.INVALID_SESSION_KEY)
        return message.credential

    def check(self, message: Message, *, allow_replay: bool = False) -> None:
        """Verify a message's MAC and counter and use the counter up; the error says which of the two was wrong."""
        credential = self.authenticate(message)
        if not allow_replay:
            self.check_counter(message)
        self.received.record(credential.counter)

    def check_counter(self, message: Message) -> None:
        """Refuse a message whose counter was used before; versions before 2.5 do not count."""
        counter = 0 if message.credential is None else message.credential.counter
        if self.version.at_least(5) and not self.received.is_fresh(counter):
            raise RemoteProtocolError("the counter was used before", ResponseCode.SESSION_MESSAGE_REJECTED)

    def seal(self, message: Message, random: Random) -> tuple[Envelope, bytes]:
        """Encrypt a message: its envelope and what follows it."""
        payload = encrypt(self.cipher, self.key, message.payload(), self.version, random)
        if len(payload) > MAX_MESSAGE:
            raise LocalProtocolError(f"encrypted the message has {len(payload):,} bytes; {MAX_MESSAGE:,} are the most")
        return replace(message.envelope, encrypted=True, length=len(payload)), payload

    def open(self, payload: bytes) -> bytes:
        """Decrypt what followed an envelope."""
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
        """Begin a session; the unproved one unused for longest makes room, and if need be any other."""
        session.used = now
        self._sessions[session.id] = session
        self._unauthenticated[session.id] = None
        if len(self._unauthenticated) > self._max_unauthenticated:
            self._forget(next(iter(self._unauthenticated)))
        while len(self._sessions) > self._limit:
            self._forget(next(iter(self._sessions)))

    def confirm(self, session: Session) -> None:
        """Note that the client has proved who it is."""
        self._unauthenticated.pop(session.id, None)

    def use(self, session_id: int, now: float) -> Session | None:
        """The session of that id, which this keeps alive; None if there is none or it has timed out."""
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
        """Forget a session."""
        self._forget(session.id)

    def purge(self, now: float) -> int:
        """Forget what has timed out, and say how many that were; a server does so about once a minute."""
        dead = [session for session in self._sessions.values() if now - session.used > session.timeout]
        for session in dead:
            self.end(session)
        return len(dead)

    def _forget(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        self._unauthenticated.pop(session_id, None)

"""Sessions and pending challenges in the state that all processes of a server share.

Any process serves any client, and a killed process loses no session. What a request changes is one transaction: a
counter is checked and recorded in it, and a challenge is used up. Most requests only read otherwise, so the last use of
a session is written once a minute.

Anyone can start sessions and cause challenges. Unauthenticated sessions have their own table and evict only each other;
so have challenges issued over UDP, where addresses can be forged, and challenges of long requests, so that short ones
survive a flood of them.
"""

import time
from array import array
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from perseid.server.state.state import Entry, SharedState, StateFull, Table, Transaction
from perseid.wire.challenges import MAX_REPLY, ChallengeLimits, PendingChallenge
from perseid.wire.codes import MAX_TIMEOUT, Version
from perseid.wire.message import ENVELOPE_LENGTH, DigestAlgorithm, Envelope, Message, RequestDigest
from perseid.wire.sessions import COUNTER_WINDOW_SIZE, MAX_ID, Cipher, Identity, Session

from .authentication import ProvenIdentity
from .decisions import Busy

USE_INTERVAL: Final = 60
"""Seconds after which a further use of a session is written; it may last longer by that."""

UNPROVED_SECONDS: Final = 60
"""Seconds without use after which an unauthenticated session ends, whatever the client requested: as long as a
challenge lasts. Otherwise those with the longest timeout would evict the others."""

SESSION_BYTES: Final = 2_048
"""Bytes of a session in the table, of which 800 are counters; more only if its identity has a very long handle."""

MIN_TABLE_BYTES: Final = 1 << 16
"""Bytes of a table besides its sessions: pages are never full."""

ID_BLOCK: Final = 64
"""Ids of sessions and challenges that a process takes at a time, so that most need no change of the shared state."""

LONG_REQUEST: Final = 1_024
"""Bytes from which a request is long: changes of usual records are shorter."""

LONG_DIVISOR: Final = 8
"""The part of the pending challenges that long requests can have: one divided by this."""

_VERSION = 1
_USES_PER_TIMEOUT = 30  # how often a use is written at least, if the timeout is short
_NEVER = 1e12  # seconds; an entry that does not expire
_LAST_ID_KEY = b"last"
_ID_BYTES = 4
_NO_COUNTER = -(1 << 31)
_EMPTY_WINDOW = array("i", [_NO_COUNTER] * COUNTER_WINDOW_SIZE).tobytes()

T = TypeVar("T")


class _StoredSession(msgspec.Struct, array_like=True, frozen=True):
    """A session; a change of the fields is a new version of the tables."""

    used: float
    key: bytes
    cipher: int
    version: tuple[int, int]
    identity: tuple[bytes, int] | None
    timeout: int
    proved: ProvenIdentity | None = None
    sent: int = 0
    """The last counter of a response."""
    received: bytes = _EMPTY_WINDOW
    """The largest counters received, ascending, each of four bytes."""


_encode_session = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(_StoredSession).decode


@dataclass(slots=True, eq=False)
class SharedSession(Session):
    """A session as it was when it was found; its counters are in the shared state."""

    sessions: "SharedSessions | None" = field(default=None, repr=False)

    def next_counter(self) -> int:
        return self._stored.next_counter(self)

    def is_fresh(self, counter: int) -> bool:
        return self._stored.is_fresh(self, counter)

    def take_counter(self, counter: int) -> bool:
        return self._stored.take_counter(self, counter)

    @property
    def _stored(self) -> "SharedSessions":
        assert self.sessions is not None  # noqa: S101 - set by `SharedSessions.use`
        return self.sessions


class SharedSessions:
    """The sessions of a server, for `wire.server.Server`. Raises `Busy` if the shared state is full."""

    def __init__(self, state: SharedState, limit: int, unproved: int, clock: Callable[[], float] = time.time) -> None:
        self._state = state

        def table(name: str, count: int) -> Table:
            size = MIN_TABLE_BYTES + count * SESSION_BYTES
            return state.table(name, version=_VERSION, max_entries=count, max_bytes=size, clock=clock)

        self._proved = table("native_sessions", limit)
        self._unproved = table("native_unproved_sessions", unproved)
        self._tables = (self._proved, self._unproved)
        self._ids = table("native_ids", 1)
        self._next_ids: deque[int] = deque()

    def __len__(self) -> int:
        return self._proved.size().entries + self._unproved.size().entries

    def next_id(self) -> int:
        """The next id of those that this process has taken, which no session has."""
        if not self._next_ids:
            first = _write(self._state, self._take_ids)
            self._next_ids = deque(range(first, first + ID_BLOCK))
        return self._next_ids.popleft()

    def _take_ids(self, txn: Transaction) -> int:
        """Take a block of the ids of all processes, in which no session is left from earlier; return its first.

        The first block is random: after a restart, messages of old sessions must not look forged instead of expired.
        """
        data = self._ids.read(txn, _LAST_ID_KEY, 0.0)
        last = int.from_bytes(data or self._state.key[:_ID_BYTES], "big") & MAX_ID
        while True:
            first = last + 1 if last + ID_BLOCK <= MAX_ID else 1
            last = first + ID_BLOCK - 1
            ends = _pack_id(first), _pack_id(last)
            if not any(table.has_any(txn, *ends) for table in self._tables):
                break
        self._ids.write(txn, _LAST_ID_KEY, Entry(_pack_id(last), _NEVER))
        return first

    def add(self, session: Session, now: float) -> None:
        """Add a session; evict the least recently used unauthenticated one if necessary."""
        identity = session.identity
        stored = _StoredSession(
            now,
            session.key,
            session.cipher.value,
            (session.version.major, session.version.minor),
            None if identity is None else (identity.handle, identity.index),
            session.timeout,
        )
        if not self._unproved.put(_pack_id(session.id), _session_entry(stored)):
            raise Busy

    def use(self, session_id: int, now: float) -> Session | None:
        """Get a session and keep it alive; None if it does not exist or has timed out."""
        data = self._state.find(self._tables, _pack_id(session_id), now)
        if data is None:
            return None
        stored = _decode_session(data)
        timeout = _timeout(stored)
        interval = _use_interval(timeout)
        if now - stored.used > timeout + interval:
            return None
        if abs(now - stored.used) >= interval:
            with suppress(Busy):  # the next use will be written
                # It may have been changed or ended meanwhile.
                self._change(session_id, lambda stored: (msgspec.structs.replace(stored, used=now), None))
        return self._to_session(session_id, stored)

    def confirm(self, session: Session) -> None:
        """Store that a session is authenticated, unless it has ended."""
        proved, key = session.proved, _pack_id(session.id)
        assert isinstance(proved, ProvenIdentity)  # noqa: S101 - the native server proves identities

        def run(txn: Transaction) -> bool:
            found = self._find(txn, key)
            if found is None:
                return True
            stored = msgspec.structs.replace(found[1], proved=proved)
            is_stored = self._proved.write(txn, key, _session_entry(stored))
            if is_stored:
                self._unproved.remove(txn, key)
            return is_stored

        if not _write(self._state, run):
            raise Busy

    def end(self, session: Session) -> None:
        """Remove a session."""
        key = _pack_id(session.id)
        _write(self._state, lambda txn: self._proved.remove(txn, key) or self._unproved.remove(txn, key))

    # Counters

    def next_counter(self, session: SharedSession) -> int:
        """Return the next counter of a response. Clients get consecutive ones, so they are not taken in blocks."""

        def change(stored: _StoredSession) -> tuple[_StoredSession, int]:
            return msgspec.structs.replace(stored, sent=stored.sent + 1), stored.sent + 1

        counter = None
        with suppress(Busy):  # the request may have been executed, so it gets a response
            counter = self._change(session.id, change)
        return counter or session.sent + 1  # if the session has ended, this is its last response

    def is_fresh(self, session: SharedSession, counter: int) -> bool:
        """Whether a received counter was not used before."""
        data = self._state.find(self._tables, _pack_id(session.id), 0.0)
        return data is not None and _is_fresh(_window(_decode_session(data)), counter)

    def take_counter(self, session: SharedSession, counter: int) -> bool:
        """Record a received counter; return whether it was fresh."""

        def change(stored: _StoredSession) -> tuple[_StoredSession | None, bool]:
            window = _window(stored)
            if not _is_fresh(window, counter):
                return None, False
            insort(window, counter)
            del window[0]
            return msgspec.structs.replace(stored, received=window.tobytes()), True

        return self._change(session.id, change) or False

    def _change(
        self, session_id: int, change: Callable[[_StoredSession], tuple[_StoredSession | None, T | None]]
    ) -> T | None:
        """Change a session in one transaction and return a result; None if it has ended."""
        key = _pack_id(session_id)

        def run(txn: Transaction) -> tuple[bool, T | None]:
            found = self._find(txn, key)
            if found is None:
                return True, None
            table, stored = found
            changed, result = change(stored)
            return changed is None or table.write(txn, key, _session_entry(changed)), result

        is_stored, result = _write(self._state, run)
        if not is_stored:
            raise Busy
        return result

    def _find(self, txn: Transaction, key: bytes) -> tuple[Table, _StoredSession] | None:
        for table in self._tables:
            if (data := table.read(txn, key, 0.0)) is not None:
                return table, _decode_session(data)
        return None

    def _to_session(self, session_id: int, stored: _StoredSession) -> SharedSession:
        return SharedSession(
            session_id,
            stored.key,
            Cipher(stored.cipher),
            Version(*stored.version),
            None if stored.identity is None else Identity(*stored.identity),
            stored.timeout,
            stored.used,
            stored.proved,
            stored.sent,
            sessions=self,
        )


class _StoredChallenge(msgspec.Struct, array_like=True, frozen=True):
    """A challenge; a change of the fields is a new version of the tables."""

    since: float
    request: bytes
    """The message, decrypted, with its envelope."""
    nonce: bytes
    digest_algorithm: int
    digest: bytes
    used_by: tuple[int, bytes] | None = None
    reply: tuple[bytes, ...] = ()


_encode_challenge = msgspec.msgpack.Encoder().encode
_decode_challenge = msgspec.msgpack.Decoder(_StoredChallenge).decode


class SharedChallenges:
    """The pending challenges of a server, for `wire.server.Server`. Raises `Busy` if the shared state is full."""

    def __init__(
        self,
        state: SharedState,
        life: float,
        limits: ChallengeLimits,
        udp_limits: ChallengeLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._life = life
        self._tables: dict[tuple[bool, bool], Table] = {}
        for udp, both in ((False, limits), (True, udp_limits)):
            long_count = max(1, both.count // LONG_DIVISOR)
            for is_long, count in ((False, max(1, both.count - long_count)), (True, long_count)):
                name = f"native{'_udp' * udp}{'_long' * is_long}_challenges"
                self._tables[udp, is_long] = state.table(
                    name, version=_VERSION, max_entries=count, max_bytes=both.size // 2, clock=clock
                )

    def __len__(self) -> int:
        return sum(table.size().entries for table in self._tables.values())

    def __contains__(self, challenge_id: int) -> bool:
        return self._state.find(self._tables.values(), _pack_id(challenge_id), 0.0) is not None

    def add(self, pending: PendingChallenge, *, udp: bool = False) -> None:
        """Add a challenge, issued over UDP or not; one with the same id is replaced."""
        key, request = _pack_id(pending.id), pending.request.to_bytes()
        digest = pending.digest
        stored = _StoredChallenge(pending.since, request, pending.nonce, digest.algorithm.value, digest.digest)
        added = self._tables[udp, len(request) >= LONG_REQUEST]

        def run(txn: Transaction) -> bool:
            is_stored = added.write(txn, key, self._entry(stored))
            for table in self._tables.values():
                if is_stored and table is not added:
                    table.remove(txn, key)
            return is_stored

        if not _write(self._state, run, len(request)):
            raise Busy

    def find(self, challenge_id: int, now: float) -> PendingChallenge | None:
        """The challenge with this id, if it has not expired. It may be answered over another transport."""
        data = self._state.find(self._tables.values(), _pack_id(challenge_id), now)
        if data is None:
            return None
        stored = _decode_challenge(data)
        # Also if the clock was set back.
        return self._to_pending(challenge_id, stored, now) if abs(now - stored.since) <= self._life else None

    def take(self, pending: PendingChallenge, used_by: tuple[int, bytes]) -> bool:
        """Mark a challenge as used by an answer; return whether it was unused."""

        def change(stored: _StoredChallenge) -> _StoredChallenge | None:
            return None if stored.used_by else msgspec.structs.replace(stored, used_by=used_by)

        stored = self._change(pending, change)
        if stored is None:
            return False
        pending.used_by, pending.reply = stored.used_by or used_by, stored.reply
        return stored.used_by is None

    def settle(self, pending: PendingChallenge, reply: tuple[bytes, ...]) -> None:
        """Store the reply to the accepted answer, unless it is too long or there is no room."""
        size = sum(map(len, reply))
        if size > MAX_REPLY:
            return
        with suppress(Busy):  # the request was executed, and this is its response
            self._change(pending, lambda stored: msgspec.structs.replace(stored, reply=reply), size)

    def _change(
        self,
        pending: PendingChallenge,
        change: Callable[[_StoredChallenge], _StoredChallenge | None],
        size: int = 0,
    ) -> _StoredChallenge | None:
        """Change a challenge in one transaction; return it as it was before, None if it is gone."""
        key = _pack_id(pending.id)

        def run(txn: Transaction) -> tuple[bool, _StoredChallenge | None]:
            for table in self._tables.values():
                if (data := table.read(txn, key, 0.0)) is not None:
                    stored = _decode_challenge(data)
                    if stored.nonce != pending.nonce:
                        break
                    changed = change(stored)
                    return changed is None or table.write(txn, key, self._entry(changed)), stored
            return True, None

        is_stored, stored = _write(self._state, run, size + pending.request.envelope.length)
        if not is_stored:
            raise Busy
        return stored

    def _entry(self, stored: _StoredChallenge) -> Entry:
        return Entry(_encode_challenge(stored), stored.since + self._life)

    @staticmethod
    def _to_pending(challenge_id: int, stored: _StoredChallenge, now: float) -> PendingChallenge:
        envelope, payload = Envelope.from_bytes(stored.request), stored.request[ENVELOPE_LENGTH:]
        digest = RequestDigest(DigestAlgorithm(stored.digest_algorithm), stored.digest)
        request = Message.from_bytes(envelope, payload, int(now))
        return PendingChallenge(challenge_id, request, stored.nonce, digest, stored.since, stored.used_by, stored.reply)


def _write(state: SharedState, change: Callable[[Transaction], T], size: int = 0) -> T:
    try:
        return state.write(change, size)
    except StateFull:
        raise Busy from None


def _pack_id(number: int) -> bytes:
    return number.to_bytes(_ID_BYTES, "big")


def _session_entry(stored: _StoredSession) -> Entry:
    # The least recently used one is evicted first, so clients do not choose when an authenticated one expires here.
    timeout = _timeout(stored) if stored.proved is None else MAX_TIMEOUT
    return Entry(_encode_session(stored), stored.used + timeout + _use_interval(timeout))


def _timeout(stored: _StoredSession) -> int:
    return min(stored.timeout, UNPROVED_SECONDS) if stored.proved is None else stored.timeout


def _use_interval(timeout: int) -> float:
    return min(USE_INTERVAL, timeout / _USES_PER_TIMEOUT)


def _window(stored: _StoredSession) -> "array[int]":
    window = array("i")
    window.frombytes(stored.received)
    return window


def _is_fresh(window: "array[int]", counter: int) -> bool:
    """As in `CounterWindow`."""
    return counter > window[-1] or (counter > window[0] and counter not in window)

"""Sessions of the HTTP API: proven identities under secret ids, in the shared state of all processes.

Every challenge starts a session, so anyone can start many. Unauthenticated sessions evict each other, first those of
the same address and then the oldest, and never an authenticated one. A session ends with `DELETE`, after inactivity, or
with the key that proved it; none survives the server, but all survive any of its other processes.

The id is a secret. It is stored as a hash under the random key of the shared state, so timing reveals nothing about
partial matches; and it is in no log and no `repr`.
"""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from perseid.records.encoding import to_base64
from perseid.server.limits.budgets import LEVEL_FACTORS, get_source
from perseid.server.native.authentication import ProvenIdentity
from perseid.server.state.state import Entry, SharedState, StateFull, Transaction

MAX_SESSIONS: Final = 10_000
"""Authenticated sessions; the least recently used one is evicted. Each takes about a kilobyte, and clients seldom end
theirs."""

MAX_PER_ADDRESS: Final = 1_000
"""The same per address: an institution whose users share it."""

MAX_UNPROVED: Final = 8_192
"""Unauthenticated sessions. Every 401 response starts one; clients that respond do so within a second."""

MAX_UNPROVED_PER_ADDRESS: Final = 64
"""The same per address, so that more than a hundred are needed to evict those of others."""

MAX_BYTES: Final = 16 << 20
"""Bytes of the sessions of each kind. One has some hundred, unless the identity has a very long handle."""

USE_INTERVAL: Final = 60
"""Seconds after which a further use is written, so that most requests only read; a session may last longer by that."""

TIMEOUT: Final = 1_800
"""Seconds of inactivity after which a session ends, as in deployed servers."""

ID_BYTES: Final = 24
"""Random bytes of an id: 192 bits, in 32 characters that need no quoting anywhere."""

NONCE_BYTES: Final = 16
"""The length in deployed servers."""

MAX_ID_LENGTH: Final = 128
"""Characters of an id that is looked up; valid ones have 32."""

_HIGH_BIT = 0x80
_USES_PER_TIMEOUT = 30  # how often a use is written at least, if the timeout is short
_NETWORK_BYTES = 24


@dataclass(slots=True)
class Session:
    """A session, as it was when it was found; compared by id and nonce."""

    id: str = field(repr=False)
    nonce: bytes
    """Signed by the client together with its own nonce; constant for the session."""
    proved: ProvenIdentity | None = field(default=None, compare=False)
    """The identity proved last."""
    claimed: str = field(default="", compare=False)
    """That identity as the client wrote it."""
    header: bytes = field(default=b"", repr=False, compare=False)
    """A hash of the header that proved it."""

    @property
    def nonce_text(self) -> str:
        """The nonce in base64."""
        return to_base64(self.nonce)


class _StoredSession(msgspec.Struct, array_like=True, frozen=True):
    """A session in the shared state; a change of the fields is a new version of the tables."""

    used: float
    timeout: float
    networks: tuple[bytes, ...]
    """The networks of the address that started it; see `limits.budgets.get_source`."""
    nonce: bytes
    proved: ProvenIdentity | None = None
    claimed: str = ""
    header: bytes = b""


_VERSION = 1
_encode_session = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(_StoredSession).decode


class SessionTable:
    """The sessions of a server. `prove` and `end` raise `StateFull` if there is no room for the change."""

    def __init__(
        self,
        state: SharedState,
        *,
        max_sessions: int = MAX_SESSIONS,
        per_address: int = MAX_PER_ADDRESS,
        unproved: int = MAX_UNPROVED,
        unproved_per_address: int = MAX_UNPROVED_PER_ADDRESS,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._random = random
        self._state = state
        self._key = hmac.digest(state.key, b"HTTP sessions", "sha256")
        self._proved = state.table(
            "http_sessions", version=_VERSION, max_entries=max_sessions, max_bytes=MAX_BYTES, clock=time.time
        )
        self._unproved = state.table(
            "http_unproved_sessions", version=_VERSION, max_entries=unproved, max_bytes=MAX_BYTES, clock=time.time
        )
        self._per_address, self._unproved_per_address = per_address, unproved_per_address

    def __len__(self) -> int:
        return self._unproved.size().entries + self.proved

    @property
    def proved(self) -> int:
        """The number of authenticated sessions."""
        return self._proved.size().entries

    def begin(self, host: str, now: float, timeout: float = TIMEOUT) -> Session:
        """Start a session for an address."""
        session = Session(urlsafe_b64encode(self._random(ID_BYTES)).decode("ascii"), self._nonce())
        networks = tuple(network.to_bytes(_NETWORK_BYTES, "big") for network in get_source(host))
        stored = _StoredSession(now, timeout, networks, session.nonce)
        self._unproved.put(self._hash(session.id), self._entry(stored))
        return session

    def find(self, text: str, now: float, timeout: float = TIMEOUT) -> Session | None:
        """Find a session by id and keep it alive; None if it does not exist or has timed out."""
        if not 0 < len(text) <= MAX_ID_LENGTH:
            return None
        key = self._hash(text)
        for table in (self._proved, self._unproved):
            if (data := table.get(key, now)) is None:
                continue
            stored = _decode_session(data)
            interval = _use_interval(timeout)
            if now - stored.used > timeout + interval:
                with suppress(StateFull):  # it will be swept
                    self._end(key)
                return None
            if abs(now - stored.used) >= interval:
                # It may have been changed or ended meanwhile.
                table.update(key, now, lambda data: None if data is None else self._use(data, now, timeout))
            return Session(text, stored.nonce, stored.proved, stored.claimed, stored.header)
        return None

    def prove(self, session: Session, proved: ProvenIdentity, claimed: str, header: str = "") -> None:
        """Store a proven identity in a session, replacing any earlier one, unless the session has ended."""
        key, hashed = self._hash(session.id), self._header(header)

        def run(txn: Transaction) -> bool | None:
            data = self._proved.read(txn, key, 0.0) or self._unproved.read(txn, key, 0.0)
            if data is None:
                return False
            stored = msgspec.structs.replace(_decode_session(data), proved=proved, claimed=claimed, header=hashed)
            if not self._proved.write(txn, key, self._entry(stored)):
                return None
            self._unproved.remove(txn, key)
            return True

        is_stored = self._state.write(run)
        if is_stored is None:
            raise StateFull
        if is_stored:
            session.proved, session.claimed, session.header = proved, claimed, hashed

    def is_proved_by(self, session: Session, header: str) -> bool:
        """Whether a header is exactly the one that proved the session's identity."""
        if session.proved is None or not session.header or not header:
            return False
        return hmac.compare_digest(session.header, self._header(header))

    def end(self, session: Session) -> None:
        """End a session."""
        self._end(self._hash(session.id))

    def _end(self, key: bytes) -> None:
        self._state.write(lambda txn: self._proved.remove(txn, key) or self._unproved.remove(txn, key))

    def _use(self, data: bytes, now: float, timeout: float) -> Entry:
        return self._entry(msgspec.structs.replace(_decode_session(data), used=now, timeout=timeout))

    def _entry(self, stored: _StoredSession) -> Entry:
        per_address = self._unproved_per_address if stored.proved is None else self._per_address
        limits = (per_address * factor for factor in LEVEL_FACTORS)
        expires = stored.used + stored.timeout + _use_interval(stored.timeout)
        return Entry(_encode_session(stored), expires, tuple(zip(stored.networks, limits, strict=False)))

    def _nonce(self) -> bytes:
        """A nonce that no native message and no text starts with.

        The server signs it together with bytes chosen by the client, using the key that also signs native messages;
        so no client can obtain a signature for a message this way.
        """
        nonce = self._random(NONCE_BYTES)
        return bytes((nonce[0] | _HIGH_BIT,)) + nonce[1:]

    def _hash(self, text: str) -> bytes:
        return hmac.digest(self._key, _encode(text), "sha256")

    def _header(self, header: str) -> bytes:
        """Hash a header, which may contain a secret and so is not stored."""
        return hmac.digest(self._key, hashlib.sha256(_encode(header)).digest(), "sha256") if header else b""


def _use_interval(timeout: float) -> float:
    return min(USE_INTERVAL, timeout / _USES_PER_TIMEOUT)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

"""Sessions of the HTTP API: proven identities under secret ids.

Every challenge starts a session, so anyone can start many. Unauthenticated sessions evict each other, first those of
the same address and then the oldest, and never an authenticated one. A session ends with `DELETE`, after inactivity, or
with the key that proved it; none survives the process.

The id is a secret. It is looked up by its hash under a random key of this table, so timing reveals nothing about
partial matches; and it is in no log and no `repr`.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from perseid.records.encoding import to_base64
from perseid.server.limits.budgets import LEVEL_FACTORS, get_source
from perseid.server.native.authentication import ProvenIdentity

MAX_SESSIONS: Final = 10_000
"""Authenticated sessions; the least recently used one is evicted. Each takes about a kilobyte, and clients seldom end
theirs."""

MAX_PER_ADDRESS: Final = 1_000
"""The same per address: an institution whose users share it."""

MAX_UNPROVED: Final = 8_192
"""Unauthenticated sessions. Every 401 response starts one; clients that respond do so within a second."""

MAX_UNPROVED_PER_ADDRESS: Final = 64
"""The same per address, so that more than a hundred are needed to evict those of others."""

TIMEOUT: Final = 1_800
"""Seconds of inactivity after which a session ends, as in deployed servers."""

ID_BYTES: Final = 24
"""Random bytes of an id: 192 bits, in 32 characters that need no quoting anywhere."""

NONCE_BYTES: Final = 16
"""The length in deployed servers."""

MAX_ID_LENGTH: Final = 128
"""Characters of an id that is looked up; valid ones have 32."""

_HIGH_BIT = 0x80

Random = Callable[[int], bytes]


@dataclass(slots=True, eq=False)
class Session:
    """A session."""

    id: str = field(repr=False)
    nonce: bytes
    """Signed by the client together with its own nonce; constant for the session."""
    used: float
    """Time of the last use."""
    networks: tuple[int, ...] = ()
    """The networks of the address that started it; see `limits.budgets.get_source`."""
    proved: ProvenIdentity | None = None
    """The identity proved last."""
    claimed: str = ""
    """That identity as the client wrote it."""
    header: bytes = field(default=b"", repr=False)
    """A hash of the header that proved it."""
    ended: bool = False

    @property
    def nonce_text(self) -> str:
        """The nonce in base64."""
        return to_base64(self.nonce)


class SessionTable:
    """The sessions of a server. Not thread-safe: used in the event loop only."""

    def __init__(
        self,
        *,
        max_sessions: int = MAX_SESSIONS,
        per_address: int = MAX_PER_ADDRESS,
        unproved: int = MAX_UNPROVED,
        unproved_per_address: int = MAX_UNPROVED_PER_ADDRESS,
        random: Random = secrets.token_bytes,
    ) -> None:
        self._random = random
        self._key = secrets.token_bytes(32)
        self._unauthenticated = _SessionPool(unproved, unproved_per_address)
        self._proved = _SessionPool(max_sessions, per_address)

    def __len__(self) -> int:
        return len(self._unauthenticated) + len(self._proved)

    @property
    def proved(self) -> int:
        """The number of authenticated sessions."""
        return len(self._proved)

    def begin(self, host: str, now: float, timeout: float = TIMEOUT) -> Session:
        """Start a session for an address."""
        self.purge(now, timeout)
        text = urlsafe_b64encode(self._random(ID_BYTES)).decode("ascii")
        session = Session(text, self._nonce(), now, get_source(host))
        self._unauthenticated.add(self._hash(text), session)
        return session

    def find(self, text: str, now: float, timeout: float = TIMEOUT) -> Session | None:
        """Find a session by id and keep it alive; None if it does not exist or has timed out."""
        if not 0 < len(text) <= MAX_ID_LENGTH:
            return None
        key = self._hash(text)
        for pool in (self._proved, self._unauthenticated):
            session = pool.get(key)
            if session is None or not hmac.compare_digest(_encode(session.id), _encode(text)):
                continue
            if now - session.used > timeout:
                self.end(session)
                return None
            session.used = now
            pool.touch(key)
            return session
        return None

    def prove(self, session: Session, proved: ProvenIdentity, claimed: str, header: str = "") -> None:
        """Store a proven identity in a session, replacing any earlier one."""
        if session.ended:
            return
        session.proved, session.claimed, session.header = proved, claimed, self._header(header)
        key = self._hash(session.id)
        if self._unauthenticated.get(key) is session:
            self._unauthenticated.drop(key)
            self._proved.add(key, session)

    def is_proved_by(self, session: Session, header: str) -> bool:
        """Whether a header is exactly the one that proved the session's identity."""
        if session.proved is None or not session.header or not header:
            return False
        return hmac.compare_digest(session.header, self._header(header))

    def end(self, session: Session) -> None:
        """End a session."""
        key = self._hash(session.id)
        session.ended = True
        self._proved.drop(key)
        self._unauthenticated.drop(key)

    def purge(self, now: float, timeout: float = TIMEOUT) -> None:
        """Remove sessions that have timed out; the oldest come first, so this is cheap."""
        for pool in (self._proved, self._unauthenticated):
            while (oldest := pool.oldest()) is not None and now - oldest.used > timeout:
                self.end(oldest)

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


class _SessionPool:
    """Sessions by the hashes of their ids, least recently used first, limited in total and per network."""

    def __init__(self, max_sessions: int, per_address: int) -> None:
        self._max_sessions = max_sessions
        self._per_address = per_address
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._by_network: dict[int, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: bytes) -> Session | None:
        return self._sessions.get(key)

    def oldest(self) -> Session | None:
        return next(iter(self._sessions.values()), None)

    def add(self, key: bytes, session: Session) -> None:
        """Add a session, evicting others if necessary."""
        self._sessions[key] = session
        for network in session.networks:
            self._by_network.setdefault(network, OrderedDict())[key] = None
        for evicted in list(self._find_excess(session)):
            self.drop(evicted)

    def _find_excess(self, added: Session) -> Iterator[bytes]:
        for network, factor in zip(added.networks, LEVEL_FACTORS, strict=False):
            keys = self._by_network[network]
            if len(keys) > self._per_address * factor:
                yield next(iter(keys))
        if len(self._sessions) > self._max_sessions:
            yield next(iter(self._sessions))

    def touch(self, key: bytes) -> None:
        """Mark a session as used."""
        self._sessions.move_to_end(key)
        for network in self._sessions[key].networks:
            self._by_network[network].move_to_end(key)

    def drop(self, key: bytes) -> None:
        """Remove a session if it is in this pool."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        for network in session.networks:
            keys = self._by_network[network]
            del keys[key]
            if not keys:
                del self._by_network[network]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

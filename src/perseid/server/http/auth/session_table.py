"""The sessions of the HTTP API: who has proved who they are, remembered under an id that only they know.

A session begins with every challenge, so anybody can have one kept. Those in which nobody has proved anything make room
for each other, first those of one address and then all of them, and never take the place of one in use. A session ends
with `DELETE`, after some idleness, and with the key that proved it; none survives the process.

The id is a secret that stands for an identity. It is looked up by its hash under a key of this table, so what a look-up
takes tells nothing about how much of an id is right; and it is in no log and no `repr`.
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
"""Sessions in which somebody has proved who they are; the one unused for longest makes room. Each costs about a
kilobyte, and clients seldom end theirs."""

MAX_PER_ADDRESS: Final = 1_000
"""The same of one address: an institution whose people share it."""

MAX_UNPROVED: Final = 8_192
"""Sessions in which nobody has proved anything. Every refusal for want of an identity begins one; whoever means to
answer does so within a second."""

MAX_UNPROVED_PER_ADDRESS: Final = 64
"""The same of one address, so that a hundred and more are needed to push out somebody else's."""

TIMEOUT: Final = 1_800
"""Seconds of idleness after which a session ends, as in deployed servers."""

ID_BYTES: Final = 24
"""Random octets of an id: 192 bits, in 32 characters that need no quoting anywhere."""

NONCE_BYTES: Final = 16
"""As many as deployed servers send."""

MAX_ID_LENGTH: Final = 128
"""Characters of an id that is looked up; ours have 32."""

_HIGH_BIT = 0x80

Random = Callable[[int], bytes]


@dataclass(slots=True, eq=False)
class Session:
    """One session."""

    id: str = field(repr=False)
    nonce: bytes
    """What a client signs, with a nonce of its own; the same for the life of the session."""
    used: float
    """When it was last used."""
    networks: tuple[int, ...] = ()
    """For whom it counts: the address that began it, see `budgets.source_of`."""
    proved: ProvenIdentity | None = None
    """Who has proved who they are in it, the last one if there were several."""
    claimed: str = ""
    """Who that is, as they wrote it."""
    header: bytes = field(default=b"", repr=False)
    """By what the header is recognised that proved it."""
    ended: bool = False

    @property
    def nonce_text(self) -> str:
        """The nonce as it is sent."""
        return to_base64(self.nonce)


class SessionTable:
    """The sessions of a server. Everything happens in its event loop, which is why there is no lock."""

    def __init__(
        self,
        *,
        most: int = MAX_SESSIONS,
        per_address: int = MAX_PER_ADDRESS,
        unproved: int = MAX_UNPROVED,
        unproved_per_address: int = MAX_UNPROVED_PER_ADDRESS,
        random: Random = secrets.token_bytes,
    ) -> None:
        self._random = random
        self._key = secrets.token_bytes(32)
        self._unauthenticated = _SessionPool(unproved, unproved_per_address)
        self._proved = _SessionPool(most, per_address)

    def __len__(self) -> int:
        return len(self._unauthenticated) + len(self._proved)

    @property
    def proved(self) -> int:
        """How many there are in which somebody has proved who they are."""
        return len(self._proved)

    def begin(self, host: str, now: float, timeout: float = TIMEOUT) -> Session:
        """Begin a session for somebody at an address."""
        self.purge(now, timeout)
        text = urlsafe_b64encode(self._random(ID_BYTES)).decode("ascii")
        session = Session(text, self._nonce(), now, get_source(host))
        self._unauthenticated.add(self._hash(text), session)
        return session

    def find(self, text: str, now: float, timeout: float = TIMEOUT) -> Session | None:
        """The session of that id, which this keeps alive; None if there is none, or it has timed out."""
        if not 0 < len(text) <= MAX_ID_LENGTH:
            return None
        key = self._hash(text)
        for room in (self._proved, self._unauthenticated):
            session = room.get(key)
            if session is None or not hmac.compare_digest(_encode(session.id), _encode(text)):
                continue
            if now - session.used > timeout:
                self.end(session)
                return None
            session.used = now
            room.touch(key)
            return session
        return None

    def prove(self, session: Session, proved: ProvenIdentity, claimed: str, header: str = "") -> None:
        """Note that somebody has proved in a session who they are. Who was known in it before is not any more."""
        if session.ended:
            return
        session.proved, session.claimed, session.header = proved, claimed, self._header(header)
        key = self._hash(session.id)
        if self._unauthenticated.get(key) is session:
            self._unauthenticated.drop(key)
            self._proved.add(key, session)

    def is_proved_by(self, session: Session, header: str) -> bool:
        """Whether a header is, octet by octet, the one that proved who is known in the session."""
        if session.proved is None or not session.header or not header:
            return False
        return hmac.compare_digest(session.header, self._header(header))

    def end(self, session: Session) -> None:
        """Forget a session."""
        key = self._hash(session.id)
        session.ended = True
        self._proved.drop(key)
        self._unauthenticated.drop(key)

    def purge(self, now: float, timeout: float = TIMEOUT) -> None:
        """Forget what has timed out; the oldest come first, so that costs nothing where there are none."""
        for room in (self._proved, self._unauthenticated):
            while (oldest := room.oldest()) is not None and now - oldest.used > timeout:
                self.end(oldest)

    def _nonce(self) -> bytes:
        """A nonce that no message of the native protocol, and no text, begins with.

        The server signs it together with octets of the client's choice, and with the same key it signs messages:
        nobody may get a message signed by that.
        """
        nonce = self._random(NONCE_BYTES)
        return bytes((nonce[0] | _HIGH_BIT,)) + nonce[1:]

    def _hash(self, text: str) -> bytes:
        return hmac.digest(self._key, _encode(text), "sha256")

    def _header(self, header: str) -> bytes:
        """A header may hold a secret, so it is not kept."""
        return hmac.digest(self._key, hashlib.sha256(_encode(header)).digest(), "sha256") if header else b""


class _SessionPool:
    """Sessions by the hashes of their ids, least recently used first: so many in all, and so many of one network."""

    def __init__(self, most: int, per_address: int) -> None:
        self._most = most
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
        """Add a session; others make room."""
        self._sessions[key] = session
        for network in session.networks:
            self._by_network.setdefault(network, OrderedDict())[key] = None
        for leaving in list(self._too_many(session)):
            self.drop(leaving)

    def _too_many(self, added: Session) -> Iterator[bytes]:
        for network, times in zip(added.networks, LEVEL_FACTORS, strict=False):
            here = self._by_network[network]
            if len(here) > self._per_address * times:
                yield next(iter(here))
        if len(self._sessions) > self._most:
            yield next(iter(self._sessions))

    def touch(self, key: bytes) -> None:
        """Note that a session was used."""
        self._sessions.move_to_end(key)
        for network in self._sessions[key].networks:
            self._by_network[network].move_to_end(key)

    def drop(self, key: bytes) -> None:
        """Forget a session if it is here."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        for network in session.networks:
            here = self._by_network[network]
            del here[key]
            if not here:
                del self._by_network[network]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

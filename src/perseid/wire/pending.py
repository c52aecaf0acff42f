"""Challenges that a server has given out and not yet seen answered.

The server keeps the request and executes its own copy when the answer is right, so the client never sends it
twice. An entry is used once: a repeated answer (UDP) gets the same reply again and executes nothing.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from .digest import RequestDigest
from .message import Message

NONCE_LENGTH: Final = 16
"""Octets of a nonce, as every deployed server sends it."""

MAX_CHALLENGES: Final = 10_000
"""Unanswered challenges at a time; the oldest makes room."""

MAX_OCTETS: Final = 64 << 20
"""Octets of the requests that wait for an answer: anybody can make the server keep one, so there is an end. The
largest goes first, so that small honest requests survive a flood of large ones."""

MAX_REPLY: Final = 65_536
"""Octets of the longest reply that is kept for a repeated answer: only UDP repeats, and long ones do not go there."""


@dataclass(slots=True, eq=False)
class Pending:
    """A challenge, and the request it protects."""

    id: int
    """The session id of the challenge: a number of its own, or the session's."""
    request: Message
    """What will be executed."""
    nonce: bytes
    """What has to be signed, together with the digest."""
    digest: RequestDigest
    """The digest of the request."""
    since: float
    """When the challenge was given."""
    answered_by: tuple[int, bytes] | None = None
    """The answer that used the challenge up: its request id and the proof in it, which no stranger knows."""
    reply: tuple[bytes, ...] = field(default=(), repr=False)
    """What that answer got, for the case that it comes again; nothing if it got several messages, or long ones."""
    is_list: bool = False
    """Whether it got several messages."""

    def is_for(self, request: Message) -> bool:
        """Whether it waits for the answer about this very request, which may have come twice (UDP)."""
        same = self.request.envelope.request_id == request.envelope.request_id
        return same and self.request.octets == request.octets and self.answered_by is None

    @property
    def size(self) -> int:
        """What keeping it costs."""
        return len(self.request.payload()) + sum(map(len, self.reply))


class PendingTable:
    """All pending challenges, oldest first."""

    def __init__(self, life: float, limit: int = MAX_CHALLENGES, octets: int = MAX_OCTETS) -> None:
        self._life = life
        self._limit = limit
        self._max_octets = octets
        self._pending: OrderedDict[int, Pending] = OrderedDict()
        self._octets = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, challenge_id: int) -> bool:
        return challenge_id in self._pending

    def add(self, pending: Pending) -> None:
        """Keep a challenge; an older one under the same id is replaced."""
        self._drop(pending.id)
        self._pending[pending.id] = pending
        self._octets += pending.size
        self._make_room()

    def find(self, challenge_id: int, now: float) -> Pending | None:
        """The challenge of that id, if it still lives."""
        self.purge(now)
        return self._pending.get(challenge_id)

    def settle(self, pending: Pending, reply: tuple[bytes, ...]) -> None:
        """Note what the answer that used the challenge up got, unless that is long."""
        if self._pending.get(pending.id) is pending and sum(map(len, reply)) <= MAX_REPLY:
            self._octets -= pending.size
            pending.reply = reply
            self._octets += pending.size
            self._make_room()

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if abs(now - oldest.since) <= self._life:
                return
            self._drop(oldest.id)

    def _drop(self, challenge_id: int) -> None:
        pending = self._pending.pop(challenge_id, None)
        if pending is not None:
            self._octets -= pending.size

    def _make_room(self) -> None:
        while len(self._pending) > self._limit:
            self._drop(next(iter(self._pending)))
        while self._octets > self._max_octets:
            self._drop(max(self._pending.values(), key=lambda pending: pending.size).id)

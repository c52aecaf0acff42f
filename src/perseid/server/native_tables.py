"""What a server keeps for clients between two messages, bounded by transport: challenges, sessions and unfinished
messages.

A challenge keeps the request that it is about, so anybody can have the server keep something. Over UDP that costs no
more than a forged address; so challenges given there have a table of their own, and a flood of them takes the place of
each other and never of one that was given over TCP.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from perseid.registry.installation.setting_limits import MAX_UDP_CHALLENGE_OCTETS, MAX_UDP_CHALLENGES
from perseid.registry.installation.settings import Config
from perseid.wire.challenges import MAX_CHALLENGES, MAX_OCTETS, Pending, PendingTable
from perseid.wire.sessions import MAX_SESSIONS, MAX_UNPROVED

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is kept at most."""

    challenges: int = MAX_CHALLENGES
    challenge_octets: int = MAX_OCTETS
    udp_challenges: int = MAX_UDP_CHALLENGES
    udp_challenge_octets: int = MAX_UDP_CHALLENGE_OCTETS
    sessions: int = MAX_SESSIONS
    unproved_sessions: int = MAX_UNPROVED

    @classmethod
    def of(cls, config: Config) -> Self:
        """What the settings say."""
        return cls(
            config.limits_tcp_challenges,
            config.limits_tcp_challenge_octets,
            config.limits_udp_challenges,
            config.limits_udp_challenge_octets,
            config.limits_sessions,
            config.limits_unproved_sessions,
        )


class _Table(PendingTable):
    def forget(self, challenge_id: int) -> None:
        """Forget a challenge if it is here."""
        self._drop(challenge_id)


class Challenges(_Table):
    """All pending challenges. It is itself the table of those that were not given over UDP, and has the other one."""

    def __init__(self, life: float, sizes: Sizes) -> None:
        super().__init__(life, sizes.challenges, sizes.challenge_octets)
        self.over_udp = _Table(life, sizes.udp_challenges, sizes.udp_challenge_octets)
        """Those that were given over UDP."""
        self.giving_over_udp = False
        """How the next one is given; `NativeServer.identify` says it."""

    def __len__(self) -> int:
        return super().__len__() + len(self.over_udp)

    def __contains__(self, challenge_id: int) -> bool:
        return super().__contains__(challenge_id) or challenge_id in self.over_udp

    def add(self, pending: Pending) -> None:
        """Keep a challenge; an older one under the same id is replaced, however that was given."""
        if self.giving_over_udp:
            self.forget(pending.id)
            self.over_udp.add(pending)
        else:
            self.over_udp.forget(pending.id)
            super().add(pending)

    def find(self, challenge_id: int, now: float) -> Pending | None:
        """The challenge of that id, if it still lives. It may be answered over another transport."""
        found = super().find(challenge_id, now)
        return self.over_udp.find(challenge_id, now) if found is None else found

    def settle(self, pending: Pending, reply: tuple[bytes, ...]) -> None:
        """Note what the answer that used the challenge up got, where it is kept."""
        super().settle(pending, reply)
        self.over_udp.settle(pending, reply)

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        super().purge(now)
        self.over_udp.purge(now)


class Unfinished(Generic[H]):
    """How much has come of messages that are not whole yet, over all connections together."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        """Octets in all."""
        self._octets: dict[H, int] = {}
        self.total = 0

    def note(self, holder: H, octets: int) -> list[H]:
        """Say how much somebody has now. Answers who has to go, because all have too much: whoever has the most.

        That hits those who fill the memory: most requests are so short that even among many slow ones they are never
        the longest. And who is cut frees so much that looking for them costs little for each octet that came.
        """
        self.total += octets - self._octets.pop(holder, 0)
        if octets:
            self._octets[holder] = octets
        gone: list[H] = []
        while self.total > self.limit:
            longest = max(self._octets, key=self._octets.__getitem__)
            self.total -= self._octets.pop(longest)
            gone.append(longest)
        return gone

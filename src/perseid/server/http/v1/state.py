"""How many requests somebody may make in a minute, and what answers say about it.

What work costs is limited by the budgets of the pools. This limit is one that a client can see and keep to: every
answer says how much is left (RateLimit header fields for HTTP, a draft of the IETF):

    RateLimit-Policy: "requests";q=600;w=60
    RateLimit: "requests";r=597;t=1

Whoever has proved who they are is counted wherever they come from, and everybody else by their network. A token counts
for whoever made it (`registry.identity.counted_as`), so that many tokens give no more than one.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil
from typing import Final

from perseid.server.http.messages import HeaderList

WINDOW: Final = 60
"""Seconds that a limit is about."""

MAX_KNOWN: Final = 10_000
"""Of whom it is kept how much they have left, some hundred octets each. The one who was silent for longest makes room,
and begins anew."""

NAME: Final = "requests"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What somebody may do yet."""

    allowed: bool
    limit: int
    remaining: int
    reset: int
    """Seconds until there is more than that: until the whole limit is there again, or one request if none is."""

    @property
    def headers(self) -> HeaderList:
        """What an answer says about it."""
        if not self.limit:
            return ()
        return (
            ("RateLimit-Policy", f'"{NAME}";q={self.limit};w={WINDOW}'),
            ("RateLimit", f'"{NAME}";r={self.remaining};t={self.reset}'),
        )


NO_LIMIT: Final = Allowance(allowed=True, limit=0, remaining=0, reset=0)


class Limiter:
    """Counts requests."""

    def __init__(self) -> None:
        # For each the moment at which the whole limit will be there again; who was silent for longest comes first.
        self._due: dict[Hashable, float] = {}

    def take(self, whose: Hashable, limit: int, now: float) -> Allowance:
        """Count a request of somebody who may make so many in a minute; none means that there is no limit."""
        if not limit:
            return NO_LIMIT
        cost = WINDOW / limit
        due = max(self._due.pop(whose, 0.0), now)
        allowed = due + cost - now <= WINDOW
        if allowed:
            due += cost
        self._due[whose] = due
        if len(self._due) > MAX_KNOWN:
            del self._due[next(iter(self._due))]
        remaining = max(0, int((WINDOW - (due - now)) / cost + 1e-9))
        reset = due - now if remaining else due + cost - now - WINDOW
        return Allowance(allowed, limit, remaining, max(1, ceil(reset)))

"""What all HTTP connections of the process share: how long things may take, who is open, and whether all is to end.

Time is looked at once a second for all connections together, by whoever owns this: `look_after`. Nothing here touches a
socket.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from perseid.server.native.authentication import UnfinishedMessages

if TYPE_CHECKING:
    from .connection import Connection

HEAD_TIMEOUT: Final = 10.0
"""Seconds for a whole head, from its first octet on, or for the first request of a connection: one packet, nearly
always."""

BODY_TIMEOUT: Final = 30.0
"""Seconds for a whole body: the largest one at 35 KB a second."""

BODY_GRACE: Final = 5.0
MIN_BODY_RATE: Final = 1_024
"""Octets of a body that must come in each second on the average, after so many seconds. Who sends them one by one is
not uploading anything."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds that a connection may be silent between two requests, as in deployed servers."""

WRITE_TIMEOUT: Final = 30.0
"""Seconds in which a client must take an answer, or the next `sending.PIECE` octets of it."""

LINGER_TIMEOUT: Final = 2.0
"""Seconds for a client to read a refusal and go, before the connection is cut."""

MAX_UNFINISHED_BYTES: Final = 64 << 20
"""Octets of requests that are not whole, over all connections together: sixty of the largest at once, or thousands of
those that most clients send."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things may take, in seconds; see the constants."""

    head: float = HEAD_TIMEOUT
    body: float = BODY_TIMEOUT
    idle: float = IDLE_TIMEOUT
    take: float = WRITE_TIMEOUT
    linger: float = LINGER_TIMEOUT


class ConnectionManager:
    """All HTTP connections of the process."""

    __slots__ = ("draining", "limited", "now", "open", "time", "times", "unfinished")

    def __init__(
        self,
        *,
        times: Timeouts | None = None,
        max_unfinished: int = MAX_UNFINISHED_BYTES,
        now: Callable[[], float] = monotonic,
        time: Callable[[], float] = time,
        limited: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing is open yet. `limited` is called with the kind of a limit that was enforced, for those who count."""
        self.open: set[Connection] = set()
        """Connections, for those who look after them."""
        self.draining = False
        """Whether no connection is kept after its answer, because all is to end."""
        self.times = times or Timeouts()
        self.unfinished: UnfinishedMessages[Connection] = UnfinishedMessages(max_unfinished)
        self.now = now
        self.time = time
        self.limited = limited

    def check_deadlines(self) -> None:
        """Deal with connections whose time is up; about once a second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            connection.on_timeout()

    def drain(self) -> None:
        """Keep no connection any longer: those that do nothing end now, the others with their answer."""
        self.draining = True
        for connection in list(self.open):
            connection.close_if_idle()

    def note_buffered(self, connection: "Connection", size: int) -> None:
        """Note how much of requests that are not whole a connection has; who has the most may have to go for it."""
        for longest in self.unfinished.note(connection, size):
            self.limited("unfinished_bytes")
            longest.cut()

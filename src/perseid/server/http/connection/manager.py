"""What all HTTP connections of the process share: timeouts, open connections, shutdown.

Deadlines are checked once per second for all connections together: `check_deadlines`. Nothing here touches a socket.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from perseid.server.native.authentication import UnfinishedMessages

if TYPE_CHECKING:
    from .connection import Connection

HEAD_TIMEOUT: Final = 10.0
"""Seconds for a whole head, from its first byte, or for the first request of a connection: nearly always one packet."""

BODY_TIMEOUT: Final = 30.0
"""Seconds for a whole body: the largest one at 35 KB per second."""

BODY_GRACE: Final = 5.0
MIN_BODY_RATE: Final = 1_024
"""Bytes of a body per second that a client must send on average, after the seconds of grace. A client that sends
single bytes is not uploading anything."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds that a connection may be idle between two requests, as in deployed servers."""

WRITE_TIMEOUT: Final = 30.0
"""Seconds in which a client must receive a response, or the next `responses.WRITE_SIZE` bytes of it."""

LINGER_TIMEOUT: Final = 2.0
"""Seconds for a client to read an error and leave, before the connection is cut."""

MAX_UNFINISHED_BYTES: Final = 64 << 20
"""Bytes of incomplete requests over all connections together: sixty of the largest, or thousands of typical ones."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; see the constants."""

    head: float = HEAD_TIMEOUT
    body: float = BODY_TIMEOUT
    idle: float = IDLE_TIMEOUT
    take: float = WRITE_TIMEOUT
    linger: float = LINGER_TIMEOUT


class ConnectionManager:
    """The HTTP connections of the process."""

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
        """Start without connections. `limited` is called with the name of each limit that is enforced, for counters."""
        self.open: set[Connection] = set()
        """The open connections."""
        self.draining = False
        """Whether connections are closed after their response, because the server stops."""
        self.times = times or Timeouts()
        self.unfinished: UnfinishedMessages[Connection] = UnfinishedMessages(max_unfinished)
        self.now = now
        self.time = time
        self.limited = limited

    def check_deadlines(self) -> None:
        """Handle connections whose deadline has passed; called about once per second."""
        now = self.now()
        for connection in [one for one in self.open if one.deadline < now]:
            connection.on_timeout()

    def drain(self) -> None:
        """Close idle connections now, and the others after their response."""
        self.draining = True
        for connection in list(self.open):
            connection.close_if_idle()

    def note_buffered(self, connection: "Connection", size: int) -> None:
        """Note how much incomplete data a connection buffers; above the total limit the largest is cut."""
        for longest in self.unfinished.note(connection, size):
            self.limited("unfinished_bytes")
            longest.cut()

"""A log that strangers cannot fill: so many lines a second, and how many were left out."""

import logging
from typing import Final

from perseid.server.limits.udp import Pace

PER_SECOND: Final = 5.0
AT_ONCE: Final = 50
"""Lines a second, and at once: enough for somebody who looks for the reason of a refusal, and little on a disk."""


class PacedLog:
    """Tells of what strangers can bring about as often as they like; for one thread."""

    __slots__ = ("_left_out", "_pace")

    def __init__(self) -> None:
        self._pace = Pace(PER_SECOND, AT_ONCE)
        self._left_out = 0

    def info(self, logger: logging.Logger, now: float, message: str) -> None:
        """Tell something at a time, or leave it out."""
        if not self._pace.take(now):
            self._left_out += 1
            return
        more = f" ({self._left_out} like it were not told)" if self._left_out else ""
        self._left_out = 0
        logger.info("%s%s", message, more)

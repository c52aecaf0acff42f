"""A log of events that untrusted clients can trigger at will."""

import logging
from collections.abc import Mapping
from typing import Final

from perseid.server.limits.udp import RateLimit

LINES_PER_SECOND: Final = 5.0
BURST_LINES: Final = 50
"""Log lines per second, and in a burst: enough to find the reason of a refusal, and little on a disk."""


class RateLimitedLogger:
    """Logs events that untrusted clients can trigger at will; not thread-safe."""

    __slots__ = ("_omitted", "_rate_limit")

    def __init__(self) -> None:
        self._rate_limit = RateLimit(LINES_PER_SECOND, BURST_LINES)
        self._omitted = 0

    def info(self, logger: logging.Logger, now: float, message: str, extra: Mapping[str, object] | None = None) -> None:
        """Log a message, or omit it; `extra` as in the methods of the logger."""
        self._log(logging.INFO, logger, now, message, extra)

    def warning(self, logger: logging.Logger, now: float, message: str) -> None:
        """The same with another level."""
        self._log(logging.WARNING, logger, now, message)

    def _log(
        self,
        level: int,
        logger: logging.Logger,
        now: float,
        message: str,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        if not self._rate_limit.take(now):
            self._omitted += 1
            return
        more = f" ({self._omitted} similar messages omitted)" if self._omitted else ""
        self._omitted = 0
        logger.log(level, "%s%s", message, more, extra=extra)

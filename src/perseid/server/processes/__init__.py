"""Processes of a server: supervisor, workers, writer and jobs, with their sockets and thread pools."""

import signal
from typing import Final

CHILD_SIGNALS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""Signals that a terminal sends to all processes at once. The supervisor starts children with these blocked, because a
child without handlers would be ended by them."""


def unblock_signals() -> None:
    """Deliver the signals that arrived since the process was started, now that it has handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)

"""The processes of a server: supervisor, control and resolvers, their sockets and pools."""

import signal
from typing import Final

CHILD_SIGNALS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""A terminal sends them to all processes at once, also to one that has just begun and would be ended by them. So the
supervisor starts processes with these signals blocked."""


def unblock_signals() -> None:
    """Handle signals that came since the process was started, now that it has handlers for them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)

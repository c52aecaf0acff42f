"""What the processes of a server have in common: which signals wait until a process is ready for them."""

import signal
from typing import Final

CHILD_SIGNALS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""A terminal sends them to all processes at once, also to one that has just begun and would be ended by them. So the
supervisor starts processes with these signals blocked."""


def unblock() -> None:
    """Take signals that came since the process was started, now that it has handlers for them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)

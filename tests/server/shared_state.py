"""Shared state for tests in one process."""

import tempfile
from pathlib import Path

from perseid.server.state.state import SharedState

MAP_BYTES = 64 << 20


def make_state() -> SharedState:
    """A new state without a name in the file system: it goes with the object."""
    with tempfile.TemporaryDirectory(prefix="perseid-state-") as folder:
        return SharedState(Path(folder), MAP_BYTES)

"""Shared state for tests in one process."""

from perseid.server.state.state import SharedState

MAP_BYTES = 64 << 20


def make_state() -> SharedState:
    """A new state without a name in the file system: it goes with the object."""
    return SharedState.private(MAP_BYTES)

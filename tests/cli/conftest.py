"""Commands do not check ports in tests, because tests run in parallel and perhaps next to a server."""

import sys

import pytest

from perseid.cli import _output, _ports
from perseid.server.processes.sockets import PortStatus


@pytest.fixture(autouse=True)
def _ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ports, "check_port", lambda *_, **__: PortStatus())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user types what a test sends to standard input, and sees standard output."""
    monkeypatch.setattr(_output, "is_terminal", lambda stream: stream in (sys.stdin, sys.stdout))

"""Commands do not check ports in tests, because tests run in parallel and perhaps next to a server."""

import pytest

from perseid.cli import check
from perseid.server.processes.sockets import PortStatus


@pytest.fixture(autouse=True)
def _ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "check_port", lambda *_: PortStatus())

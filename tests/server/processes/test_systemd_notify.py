"""Notifications to systemd; a missing manager is ignored."""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

import pytest

from perseid.server.processes import systemd


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of systemd."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@perseid-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def receive_state(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def test_each_message_is_one_datagram_of_assignments(manager: socket.socket) -> None:
    assert systemd.ready("3 workers at port 2641")
    assert receive_state(manager) == {"READY": "1", "STATUS": "3 workers at port 2641"}
    assert systemd.ready()
    assert receive_state(manager) == {"READY": "1"}
    assert systemd.stopping()
    assert receive_state(manager) == {"STOPPING": "1"}
    assert systemd.watchdog()
    assert receive_state(manager) == {"WATCHDOG": "1"}


def test_reloading_has_a_time(manager: socket.socket) -> None:
    before = monotonic_ns() // 1000
    assert systemd.reloading()
    told = receive_state(manager)
    assert told["RELOADING"] == "1"
    assert before <= int(told["MONOTONIC_USEC"]) <= monotonic_ns() // 1000


def test_status_cannot_forge_another_message(manager: socket.socket) -> None:
    assert systemd.ready("fine\nSTOPPING=1\x1b[31m" + "x" * 500)
    told = receive_state(manager)
    assert list(told) == ["READY", "STATUS"]
    assert told["STATUS"].startswith("fine STOPPING=1 [31mxxx")
    assert len(told["STATUS"]) == systemd.MAX_STATUS


@pytest.mark.parametrize(
    "name", [None, "", "relative", "vsock:2:1234", "/nobody/listens/here", "/zero\0octet", "/" + "x" * 300]
)
def test_missing_manager_is_ignored(name: str | None) -> None:
    environ = {} if name is None else {"NOTIFY_SOCKET": name}
    assert not systemd.notify("READY=1", environ)


def test_stopped_manager_does_not_block(manager: socket.socket) -> None:
    sent = 0
    while systemd.ready("again") and sent < 100_000:
        sent += 1
    assert sent < 100_000
    assert receive_state(manager) == {"READY": "1", "STATUS": "again"}

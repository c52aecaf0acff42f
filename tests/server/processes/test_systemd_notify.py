"""The service manager is told what it wants to know, in its own words, and nobody minds if it is not there."""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

import pytest

from perseid.server.processes import systemd


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd listens with."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@perseid-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def heard(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def test_each_message_is_one_datagram_of_assignments(manager: socket.socket) -> None:
    assert systemd.ready("3 resolvers at port 2641")
    assert heard(manager) == {"READY": "1", "STATUS": "3 resolvers at port 2641"}
    assert systemd.ready()
    assert heard(manager) == {"READY": "1"}
    assert systemd.stopping("finishing")
    assert heard(manager) == {"STOPPING": "1", "STATUS": "finishing"}
    assert systemd.watchdog()
    assert heard(manager) == {"WATCHDOG": "1"}


def test_reloading_says_since_when(manager: socket.socket) -> None:
    before = monotonic_ns() // 1000
    assert systemd.reloading()
    told = heard(manager)
    assert told["RELOADING"] == "1"
    assert before <= int(told["MONOTONIC_USEC"]) <= monotonic_ns() // 1000


def test_a_status_cannot_say_anything_else(manager: socket.socket) -> None:
    assert systemd.ready("fine\nSTOPPING=1\x1b[31m" + "x" * 500)
    told = heard(manager)
    assert list(told) == ["READY", "STATUS"]
    assert told["STATUS"].startswith("fine STOPPING=1 [31mxxx")
    assert len(told["STATUS"]) == systemd.MAX_STATUS


@pytest.mark.parametrize(
    "name", [None, "", "relative", "vsock:2:1234", "/nobody/listens/here", "/zero\0octet", "/" + "x" * 300]
)
def test_without_somebody_who_listens_nothing_happens(name: str | None) -> None:
    environ = {} if name is None else {"NOTIFY_SOCKET": name}
    assert not systemd.notify("READY=1", environ)


def test_a_manager_that_does_not_read_makes_nobody_wait(manager: socket.socket) -> None:
    sent = 0
    while systemd.ready("again") and sent < 100_000:
        sent += 1
    assert sent < 100_000
    assert heard(manager) == {"READY": "1", "STATUS": "again"}

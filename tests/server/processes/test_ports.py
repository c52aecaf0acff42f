"""Checks whether a port is free, and which process uses it."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.server.processes import sockets
from perseid.server.processes.sockets import PortStatus, check_port, wait_for_release
from tests.server.running import free_port

BOTH = pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])


@pytest.fixture
def in_use(udp: bool) -> Iterator[socket.socket]:
    """A socket of this process that uses a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as made:
        made.bind(("127.0.0.1", free_port()))  # no other process is given it, for the other transport either
        if not udp:
            made.listen(1)
        yield made


@BOTH
def test_free_port_has_no_problem(udp: bool, in_use: socket.socket) -> None:
    port = in_use.getsockname()[1]
    in_use.close()
    assert check_port("127.0.0.1", port, udp=udp) == PortStatus()
    assert check_port("localhost", port, udp=udp) == PortStatus()


@BOTH
def test_owner_of_a_port_is_found(udp: bool, in_use: socket.socket) -> None:
    looked = check_port("127.0.0.1", in_use.getsockname()[1], udp=udp)
    assert (looked.problem, looked.in_use) == ("Address already in use", True)
    (owner,) = looked.owners
    assert owner.process == os.getpid()
    assert "python" in owner.command
    assert str(owner) == f"process {os.getpid()} ({owner.command})"


def test_shared_socket_makes_a_port_in_use() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", 0))
        assert check_port("127.0.0.1", made.getsockname()[1], udp=True).in_use


@BOTH
def test_unknown_owner_is_not_reported(
    udp: bool, in_use: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sockets, "PROC", tmp_path)
    (tmp_path / "1" / "fd").mkdir(parents=True)
    (tmp_path / "1" / "fd" / "0").write_text("no link")
    (tmp_path / "2").mkdir()
    looked = check_port("127.0.0.1", in_use.getsockname()[1], udp=udp)
    assert (looked.in_use, looked.owners) == (True, ())


@BOTH
def test_port_held_by_another_check_is_free(
    udp: bool, in_use: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sockets, "PROC", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: in_use.close())
    assert check_port("127.0.0.1", in_use.getsockname()[1], udp=udp) == PortStatus()


@BOTH
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no.such.name.invalid"])
def test_foreign_address_is_a_problem(udp: bool, host: str) -> None:
    looked = check_port(host, 2641, udp=udp)
    assert looked.problem
    assert not looked.in_use


@BOTH
def test_ports_of_a_killed_server_are_waited_for(
    udp: bool, in_use: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, pauses = [in_use.getsockname()], list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            in_use.close()

    monkeypatch.setattr(time, "sleep", pause)
    wait_for_release(addresses, lambda: False)
    assert not pauses, "another program uses the port"
    wait_for_release(addresses, lambda: True)
    assert len(pauses) == 3
    assert check_port(*addresses[0], udp=udp) == PortStatus()


def test_ports_are_not_waited_for_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10))
    monkeypatch.setattr(sockets, "RELEASE_SECONDS", 3)
    monkeypatch.setattr(sockets, "_is_used", lambda *_: True)
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    wait_for_release([("127.0.0.1", 1)], lambda: True)
    assert next(times) == 4

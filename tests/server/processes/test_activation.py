"""Sockets that systemd passes: their ports are served, by all workers, and clients wait in them during a restart."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from perseid.server.processes.activation import FIRST_DESCRIPTOR, sort_sockets, take_sockets
from perseid.server.processes.sockets import StartupError
from perseid.wire.codes import ResponseCode
from tests.server.live_servers import ATTEMPTS, PATIENCE, live_installation
from tests.server.native.native_client import NativeClient, Via
from tests.server.native.native_servers import PREFIX, STD
from tests.server.running import DEFAULTS, Serving, free_port, serve_command

PASS = """
import os, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
copies = [os.dup(number) for number in numbers]
high = [os.dup2(copy, 100 + at) for at, copy in enumerate(copies)]
for at, number in enumerate(high):
    os.dup2(number, 3 + at)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Pass sockets as systemd does: from descriptor 3 on, to one process."""


@contextmanager
def running(folder: Path, command: list[str], *passed: socket.socket) -> Iterator[Serving]:
    """Run a command that serves; it need not have announced itself."""
    folder.mkdir()
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("ab") as stderr:
        process = subprocess.Popen(
            command,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | DEFAULTS | {"PERSEID_SERVER_WORKERS": "2", "RUNTIME_DIRECTORY": str(folder)},
            pass_fds=[sock.fileno() for sock in passed],
            start_new_session=True,
        )
    server = Serving(process, folder)
    try:
        yield server
        server.stop()
    except BaseException:
        server.kill()
        raise


def listener(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


@contextmanager
def native_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both at one port."""
    with listener(free_port()) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(tcp.getsockname())
        yield tcp, udp


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def get(port: int) -> int:
    """Ask for the health of the server, over HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/healthz")
    status = connection.getresponse().status
    connection.close()
    return status


def test_passed_sockets_are_served_and_survive_a_restart(tmp_path: Path) -> None:
    directory = live_installation(tmp_path)
    with native_sockets() as (native, udp), listener() as first, listener() as second:
        passed = (first, udp, second, native)
        numbers = ",".join(str(sock.fileno()) for sock in passed)
        command = [sys.executable, "-c", PASS, numbers, *serve_command(directory)]
        with running(tmp_path / "one", command, *passed) as server:
            server.wait_until_announced()
            assert server.native == ("127.0.0.1", port_of(native))
            assert server.http == ("127.0.0.1", port_of(first))
            assert [get(port_of(first)), get(port_of(second))] == [200, 200]
            for via in (Via.TCP, Via.UDP):
                with NativeClient(server.native, via, timeout=PATIENCE, attempts=ATTEMPTS) as client:
                    assert client.resolve(STD).code is ResponseCode.SUCCESS
                    assert client.resolve(f"{PREFIX}/vec-big").code is ResponseCode.SUCCESS
        with socket.create_connection(("127.0.0.1", port_of(second)), timeout=PATIENCE) as waiting:
            waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with running(tmp_path / "two", command, *passed) as server:
                assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")
                server.wait_until_announced()


@pytest.mark.parametrize("first", [Via.UDP, Via.TCP])
def test_server_starts_with_sockets_of_systemd(tmp_path: Path, first: Via) -> None:
    """Two ports of HTTP, and both sockets of the native protocol. The server is started by the first request.

    systemd-socket-activate has no way to ask for a free port, but passes on the sockets that it was passed.
    """
    activate = shutil.which("systemd-socket-activate")
    assert activate is not None
    names = (*DEFAULTS, "RUNTIME_DIRECTORY", "PATH")
    started = [activate, *(f"--setenv={name}" for name in names), *serve_command(live_installation(tmp_path))]
    with listener() as secure, listener() as web, native_sockets() as (native, udp):
        passed = (secure, web, native, udp)
        command = [sys.executable, "-c", PASS, ",".join(str(sock.fileno()) for sock in passed), *started]
        with running(tmp_path / "one", command, *passed) as server:
            for via in (first, Via.TCP, Via.UDP):
                with NativeClient(("127.0.0.1", port_of(native)), via, timeout=PATIENCE, attempts=ATTEMPTS) as client:
                    assert client.resolve(STD).code is ResponseCode.SUCCESS
            assert [get(port_of(web)), get(port_of(secure))] == [200, 200]
            server.wait_until_announced()
            assert server.http == ("127.0.0.1", port_of(secure))
            assert server.native == ("127.0.0.1", port_of(native))


def test_sockets_for_another_process_are_not_taken() -> None:
    environ = {"LISTEN_PID": str(os.getppid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "OTHER": "1"}
    passed = take_sockets(environ, 2641, 1)
    assert not any((passed.udp, passed.tcp, passed.http))
    assert environ == {"OTHER": "1"}
    assert not any((passed := take_sockets({}, 2641, 1)).http + passed.tcp + passed.udp)


def test_other_descriptors_are_refused(tmp_path: Path) -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    for opened in (socket.socket(socket.AF_UNIX), (tmp_path / "file").open("w")):
        with opened, pytest.MonkeyPatch.context() as patch:
            copy = os.dup(opened.fileno())
            patch.setattr("perseid.server.processes.activation.FIRST_DESCRIPTOR", copy)
            with pytest.raises(StartupError, match="of LISTEN_FDS is not"):
                take_sockets(dict(environ), 2641, 1)
            with suppress(OSError):  # sockets are closed
                os.close(copy)
    assert FIRST_DESCRIPTOR == 3


def test_sockets_are_sorted_by_kind_and_port() -> None:
    with listener() as native, listener() as web, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        sorted_ = sort_sockets([web, native, udp], port_of(native), 3)
        assert sorted_.udp == [udp]
        for found, sock in ((sorted_.tcp, native), (sorted_.http, web)):
            assert [each.getsockname() for each in found] == [sock.getsockname()] * 3
            assert len({each.fileno() for each in found}) == 3
            for each in found[1:]:
                each.close()

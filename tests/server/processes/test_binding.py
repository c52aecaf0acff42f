"""Sockets of a server: TCP and UDP at one port, for one server only."""

import os
import socket
from contextlib import ExitStack, suppress

import pytest

from perseid.server.processes import sockets
from perseid.server.processes.sockets import StartupError, bind, listen, require_free


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_all_sockets_have_one_port(host: str) -> None:
    udp, tcp = bind(host, 0, 2)
    with udp[0], udp[1], tcp[0], tcp[1]:
        assert len({one.getsockname() for one in (*udp, *tcp)}) == 1


def test_only_one_of_two_concurrent_servers_gets_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one never has a UDP socket there, which would get a share of the datagrams."""
    made, started = sockets._bind_udp, list[int]()

    def make(host: str, port: int) -> socket.socket:
        if not started:  # meanwhile, just before the first one has its sockets
            started.append(port)
            with pytest.raises(StartupError, match="Address already in use"):
                bind(host, port, 1)
        started.append(port)
        return made(host, port)

    monkeypatch.setattr(sockets, "_bind_udp", make)
    (udp,), (tcp,) = bind("127.0.0.1", 0, 1)
    with tcp, udp:
        assert started == [udp.getsockname()[1]] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_http_port_in_use_is_refused(host: str) -> None:
    with listen(host, 0, 1)[0] as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError) as caught:
            listen(host, port, 1)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    message = str(caught.value)
    assert message.startswith(
        f"Cannot serve HTTP at {where}: Address already in use. The port is used by process {os.getpid()} ("
    )
    assert message.endswith("). Stop it, or choose another port with --http-port PORT or the setting http.port.")


def test_owner_of_a_native_port_is_reported() -> None:
    named = rf"used by process {os.getpid()} \(.+\)\. Stop it, or choose another port with --native-port PORT or"
    with listen("127.0.0.1", 0, 1)[0] as listener, pytest.raises(StartupError, match=named):
        bind("127.0.0.1", listener.getsockname()[1], 1)


def test_all_ports_in_use_are_reported_together() -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(listen("127.0.0.1", 0, 1)[0]).getsockname()[1] for _ in range(3)]
        free = ("127.0.0.1", 0)
        native, http, metrics = [("127.0.0.1", port) for port in ports]
        with pytest.raises(StartupError) as caught:
            require_free(native, http, metrics)
        assert [f"is used by process {os.getpid()} (" in line for line in str(caught.value).splitlines()] == [True] * 3
        for line, option in zip(
            str(caught.value).splitlines(), ("--native-port", "--http-port", "--metrics-port"), strict=True
        ):
            assert f"choose another port with {option} PORT" in line
        with pytest.raises(StartupError, match=r"^Cannot serve metrics at [^\n]+$"):
            require_free(free, ("", 80), metrics)
    require_free(native, http, metrics)


def test_foreign_address_is_refused() -> None:
    with pytest.raises(StartupError, match=r"Cannot serve HTTP at 192\.0\.2\.7:80: .+\. Correct the address, or"):
        listen("192.0.2.7", 80, 1)


def test_connections_are_distributed_over_the_sockets_of_all_workers() -> None:
    sockets = listen("127.0.0.1", 0, 2)
    with ExitStack() as stack:
        for sock in sockets:
            stack.enter_context(sock)
        for _ in range(64):
            client = stack.enter_context(socket.create_connection(sockets[0].getsockname()))
            client.send(b"x")  # the kernel waits for data
        accepted = dict.fromkeys(sockets, 0)
        for sock in sockets:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    stack.enter_context(sock.accept()[0])
                    accepted[sock] += 1
        assert sum(accepted.values()) == 64
        assert min(accepted.values()) > 0

"""Sockets of a server: TCP and UDP at one port, for one server only."""

import os
import socket

import pytest

from perseid.server.processes import sockets
from perseid.server.processes.sockets import StartupError, bind, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_all_sockets_have_one_port(host: str) -> None:
    listener, udp = bind(host, 0, 3)
    with listener, udp[0], udp[1], udp[2]:
        assert {one.getsockname() for one in udp} == {listener.getsockname()}


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
    listener, (udp,) = bind("127.0.0.1", 0, 1)
    with listener, udp:
        assert started == [udp.getsockname()[1]] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_http_port_in_use_is_refused(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError) as caught:
            listen(host, port)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    message = str(caught.value)
    assert message.startswith(
        f"Cannot serve HTTP at {where}: Address already in use. The port is used by process {os.getpid()} ("
    )
    assert message.endswith("). Stop it, or choose another port with http.port.")


def test_owner_of_a_native_port_is_reported() -> None:
    named = rf"used by process {os.getpid()} \(.+\)\. Stop it, or choose another port with native\.port\."
    with listen("127.0.0.1", 0) as listener, pytest.raises(StartupError, match=named):
        bind("127.0.0.1", listener.getsockname()[1], 1)


def test_foreign_address_is_refused() -> None:
    with pytest.raises(StartupError, match=r"Cannot serve HTTP at 192\.0\.2\.7:80: .+\. Correct the address, or"):
        listen("192.0.2.7", 80)

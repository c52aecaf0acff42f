"""The sockets of a server: TCP and UDP at one port, for one server alone."""

import socket

import pytest

from perseid.serve import supervisor
from perseid.serve.supervisor import CannotServe, bind


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_all_sockets_have_one_port(host: str) -> None:
    listener, udp = bind(host, 0, 3)
    with listener, udp[0], udp[1], udp[2]:
        assert {one.getsockname() for one in udp} == {listener.getsockname()}


def test_of_two_servers_that_are_started_at_the_same_time_one_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one never has a socket for UDP there, at which it would get a share of the datagrams."""
    made, started = supervisor._udp, list[int]()

    def make(host: str, port: int) -> socket.socket:
        if not started:  # meanwhile, just before the first one has its sockets
            started.append(port)
            with pytest.raises(CannotServe, match="Address already in use"):
                bind(host, port, 1)
        started.append(port)
        return made(host, port)

    monkeypatch.setattr(supervisor, "_udp", make)
    listener, (udp,) = bind("127.0.0.1", 0, 1)
    with listener, udp:
        assert started == [udp.getsockname()[1]] * 2

"""Datagrams between a resolver and control arrive as they were."""

import socket

from hypothesis import given
from hypothesis import strategies as st

from perseid.serve.handover import MAX_DATAGRAM, MAX_PARCEL, Address, Parcel, pack, unpack

PORTS = st.integers(0, 65_535)
IPV4: st.SearchStrategy[Address] = st.tuples(st.ip_addresses(v=4).map(str), PORTS)
IPV6: st.SearchStrategy[Address] = st.tuples(
    st.ip_addresses(v=6).map(str), PORTS, st.just(0), st.integers(0, 2**32 - 1)
)


@given(st.floats(0, 2**40, allow_nan=False), st.one_of(IPV4, IPV6), st.binary(max_size=MAX_DATAGRAM + 1))
def test_what_is_packed_is_unpacked(at: float, address: Address, datagram: bytes) -> None:
    octets = pack(at, address, datagram)
    assert len(octets) <= MAX_PARCEL
    assert unpack(octets) == Parcel(at, address, datagram)


def test_the_address_is_one_that_the_socket_module_takes() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as receiver, socket.socket(family, socket.SOCK_DGRAM) as sender:
            receiver.bind((host, 0))
            receiver.settimeout(5)
            sender.sendto(b"x", unpack(pack(1.0, receiver.getsockname(), b"")).address)
            assert receiver.recv(10) == b"x"

"""A server on every address of the machine responds from the address that received the request.

Client sockets are connected, so a response from another address is lost.
"""

from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.requests import Resolve, ValuesRequest
from tests.server.faults.sources import metrics
from tests.server.live_servers import ATTEMPTS, PATIENCE, WHO, eventually, live_installation
from tests.server.native.native_client import Address, NativeClient, Serving, Via, serving
from tests.server.native.native_servers import BY_ADMINS, PREFIX, STD

URL = Value.text(1, "URL", "https://example.org/")
PLACES = {"0.0.0.0": ("127.0.0.1", "127.0.0.2"), "::": ("::1", "127.0.0.1", "127.0.0.2")}


@pytest.fixture(scope="module", params=PLACES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = live_installation(tmp_path_factory.mktemp("every-address"))
    with serving(directory, "--host", request.param) as running:
        yield running


def addresses(server: Serving) -> list[Address]:
    host, port = server.native
    return [(place, port) for place in PLACES[host]]


def client_at(address: Address) -> NativeClient:
    return NativeClient(address, Via.UDP, timeout=PATIENCE, attempts=ATTEMPTS)


def test_every_sent_byte_is_counted(server: Serving) -> None:
    """It runs first: bytes are counted with a delay, and requests of other tests would be counted here."""
    name = "perseid_udp_sent_bytes_total"
    for address in addresses(server):
        before = metrics(server)[name]
        size = 0
        with client_at(address) as client:
            for opcode, body in (
                (OpCode.RESOLUTION, Resolve(f"{PREFIX}/vec-big".encode())),
                (OpCode.CREATE_HANDLE, ValuesRequest(f"{PREFIX}/never".encode(), (URL,))),
            ):
                (frame,) = client.exchange(client.request(opcode, body))
                packets = -(-frame.envelope.length // 492)
                size += frame.envelope.length + 20 * packets
        eventually(lambda size=size, before=before: metrics(server)[name] >= before + size, "bytes")  # type: ignore[misc]
        assert metrics(server)[name] == before + size


def test_resolvers_respond_from_the_requested_address(server: Serving) -> None:
    for address in addresses(server):
        with client_at(address) as client:
            assert client.resolve(STD).code is ResponseCode.SUCCESS
            assert client.resolve(f"{PREFIX}/vec-big").code is ResponseCode.SUCCESS, "in several packets"


def test_control_responds_from_the_requested_address(server: Serving) -> None:
    for number, address in enumerate(addresses(server)):
        name = f"{PREFIX}/at-{number}"
        with client_at(address) as client:
            request = client.request(OpCode.CREATE_HANDLE, ValuesRequest(name.encode(), (URL, BY_ADMINS)))
            assert client.ask(request).code is ResponseCode.AUTHENTICATION_NEEDED
            client.act_as(*WHO["secret"])
            long = (Value(1, "DATA", bytes(2_000)), BY_ADMINS)
            assert client.create(name, long).code is ResponseCode.SUCCESS, "asked in several packets"
            client.begin_session()
            assert client.resolve(name).code is ResponseCode.SUCCESS, "in several packets"
            client.end_session()

"""The resolver against recorded exchanges, byte by byte: it sends exactly what deployed clients send.

Three kinds of recorded resolutions are not those of this resolver: requests for a digest without a signature or the
reverse (it asks for both or none), and those for private values.
"""

from dataclasses import replace

import pytest

from perseid.client.attempts import Options, Query
from perseid.client.errors import NotFound
from perseid.client.lookup import Core
from perseid.client.roots import Root
from perseid.client.transport import Exchange
from perseid.records.site import Interface, Purpose, Transport
from perseid.wire.client import Client
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import MESSAGE_LIFETIME, Message
from perseid.wire.requests import Resolve
from tests.client.worlds import make_site
from tests.wire.key_material import SERVER_KEY
from tests.wire.recorded import NOW, Vector, exchanges, frames_of

CERTIFIED = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST


def request_of(vector: Vector) -> Message:
    (frame,) = frames_of(vector.request, vector.transport)
    return Message.from_bytes(frame.envelope, frame.payload, NOW)


def is_ours(vector: Vector) -> bool:
    header = request_of(vector).header
    return header.opcode is OpCode.RESOLUTION and header.flags in (DEFAULT_FLAGS, DEFAULT_FLAGS | CERTIFIED)


VECTORS = [
    vector
    for vector in exchanges("resolve.json", "certified.json", "multipacket.json", "versions.json")
    if is_ours(vector)
]


def test_all_kinds_of_recorded_resolutions_are_covered() -> None:
    assert len(VECTORS) == 34
    assert {vector.transport for vector in VECTORS} == {"udp", "tcp"}


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_resolver_sends_the_recorded_request_and_accepts_the_response(vector: Vector) -> None:
    recorded = request_of(vector)
    transport = Transport[vector.transport.upper()]
    interfaces = (Interface(Purpose.QUERY, transport, 2641),)
    site = make_site("127.0.0.1", key=SERVER_KEY)
    site = replace(
        site,
        servers=(replace(site.servers[0], interfaces=interfaces),),
        serial=recorded.header.site_serial,
        protocol_version=(recorded.version.major, recorded.version.minor),
    )
    core = Core(Root((), resolver=(site,)), 10, [transport], None)
    core.clock = lambda: recorded.header.expires - MESSAGE_LIFETIME
    request_id = (recorded.envelope.request_id - 1).to_bytes(4, "big")
    core.wire = Client(lambda _: request_id, recorded.envelope.suggested)
    body = Resolve.read(recorded.body_reader(), recorded.version, NOW)
    query = Query(body.handle.decode(), body.types, body.indexes)
    steps = core.resolve(query, Options(certified=OpFlag.CERTIFY in recorded.header.flags))
    exchange = next(steps)
    assert isinstance(exchange, Exchange)
    assert exchange.data == vector.request
    assert [exchange.receive(piece) for piece in vector.response][-1]
    (frame,) = frames_of(vector.response, vector.transport)
    if Message.from_bytes(frame.envelope, frame.payload, NOW).header.response_code is not ResponseCode.SUCCESS:
        with pytest.raises(NotFound):
            steps.send(None)
        return
    with pytest.raises(StopIteration) as stop:
        steps.send(None)
    assert stop.value.value.values
    assert stop.value.value.is_certified is (OpFlag.CERTIFY in recorded.header.flags)

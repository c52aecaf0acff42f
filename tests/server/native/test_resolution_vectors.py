"""Every recorded resolution gets the recorded bytes from a view in the recorded state, or is left to the server.

The same messages were recorded over TCP. Only the expiration time differs from run to run, so the clock is set to the
recorded time.
"""

from collections.abc import Iterator

import pytest

from perseid.ledger.log.entry import State
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.server.native.resolution import packets
from perseid.wire.message import MESSAGE_LIFETIME, Message
from perseid.wire.responses import ResolutionResult, decode_response
from tests.server.native.resolution_states import StoredState, World, homed, world
from tests.wire.recorded import NOW, Vector, exchanges, frames_of, key_file, load

VECTOR_FILES = ("malformed.json", "multipacket.json", "prefixes.json", "resolve.json", "versions.json")

HANDED_OVER = {
    "resolve.restricted-challenge": "private values, to somebody who means to identify themselves",
    "home-prefix": "no resolution",
    "unhome-prefix": "no resolution",
    "big-create-request": "no resolution",
    "resolve.version": "to be signed",
    "malformed": "not understood, or unusual",
}
"""What the fast path leaves to the service, by how the names of the vectors begin."""

ANSWERED_ALL_THE_SAME = {"malformed.expired.udp", "malformed.expired.tcp"}
"""Nothing is wrong with these as deployed: the expiration time of a request is not looked at."""


def recorded_values(file: str, name: str) -> tuple[Value, ...]:
    """The values in a recorded response, with their recorded times."""
    vector = next(vector for vector in load(file) if vector.name == name)
    (frame,) = frames_of(vector.response, vector.transport)
    _, body = decode_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
    assert isinstance(body, ResolutionResult)
    return body.values


def state() -> Iterator[StoredState]:
    """The state that the README of the vectors describes, as far as it is resolved."""
    prefix = "20.500.99999"
    yield homed("0.NA/0.NA")
    yield homed(f"0.NA/{prefix}")
    yield StoredState(f"0.NA/{prefix}", (Value(1, "HS_SITE", key_file("siteinfo.bin")),))
    note = Value.text(50, "NOTE", "admins only")
    note = Value(50, "NOTE", note.data, permissions=Permission(0x0C))
    public = recorded_values("resolve.json", "resolve.all.udp")
    yield StoredState(f"{prefix}/vec-std", tuple(sorted((*public, note), key=lambda value: value.index)))
    yield StoredState(f"{prefix}/vec-big", recorded_values("multipacket.json", "resolve.big.udp"))
    yield StoredState(f"{prefix}/vec-üñí-日本", recorded_values("resolve.json", "resolve.utf8.udp"))


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    with world() as made:
        made.store(state())
        yield made


def test_state_matches_the_description() -> None:
    records = {record.name: record for record in state()}
    standard = records["20.500.99999/vec-std"]
    assert standard.state is State.NORMAL
    assert [value.index for value in standard.values] == [1, 2, 4, 6, 50, 100]
    described = standard.values[3]
    assert (described.ttl_type, described.ttl) == (TtlType.ABSOLUTE, 1_893_456_000)
    assert described.references == (ValueRef(7, "20.500.99999/ref1"), ValueRef(300, "0.NA/20.500.99999"))


def is_left_to_the_server(vector: Vector) -> bool:
    return vector.name.startswith(tuple(HANDED_OVER)) and vector.name not in ANSWERED_ALL_THE_SAME


@pytest.mark.parametrize("vector", exchanges(*VECTOR_FILES), ids=str)
def test_vector_gets_the_recorded_bytes_or_is_left_to_the_server(vector: Vector, here: World) -> None:
    if is_left_to_the_server(vector):
        assert all(here.answer(packet) is here.compiled_answer(packet) is None for packet in vector.request)
        return
    (request,) = vector.request
    (frame,) = frames_of(vector.response, vector.transport)
    here.now = Message.from_bytes(frame.envelope, frame.payload, NOW).header.expires - MESSAGE_LIFETIME
    answer = here.answer(request)
    assert answer is not None
    assert answer == here.compiled_answer(request)
    assert (packets(answer) if vector.transport == "udp" else [answer]) == list(vector.response)

"""The longest messages, filled with the smallest of everything: memory stays in proportion to what came."""

import tracemalloc
from collections.abc import Callable

import pytest

from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.value import MAX_VALUES, read_values
from perseid.wire.codes import CURRENT_VERSION, OpCode, ResponseCode
from perseid.wire.message import HEADER_LENGTH, MAX_MESSAGE, Envelope, Header, Message
from perseid.wire.requests import REQUEST_DECODERS
from perseid.wire.responses import decode_response

ROOM = MAX_MESSAGE - HEADER_LENGTH - 4
NAME = b"\0\0\0\3" + b"1/x"
SMALLEST_VALUE = bytes(26)

PER_OCTET = 40
"""How many bytes of memory one byte of a message may take: an empty text costs 49 + 8 and takes four."""


def counted(item: bytes, room: int) -> bytes:
    """As many items as there is room for, behind their number."""
    number = (room - 4) // len(item)
    return number.to_bytes(4, "big") + item * number


def height_of(call: Callable[[], object]) -> int:
    """The bytes allocated at the height of a call, whether it ends well or not."""
    tracemalloc.start()
    try:
        kept: object = None
        try:
            kept = call()
        except InvalidData as problem:
            kept = problem
        _, height = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return height


BODIES = {
    "indexes": (OpCode.RESOLUTION, NAME + counted(b"\0\0\0\1", ROOM - 11) + bytes(4)),
    "types": (OpCode.RESOLUTION, NAME + bytes(4) + counted(bytes(4), ROOM - 11)),
    "values": (OpCode.CREATE_HANDLE, NAME + counted(SMALLEST_VALUE, ROOM - 7)),
    "references": (
        OpCode.CREATE_HANDLE,
        NAME + b"\0\0\0\1" + SMALLEST_VALUE[:-4] + counted(bytes(8), ROOM - 7 - 4 - 22),
    ),
    "one long name": (OpCode.DELETE_HANDLE, (ROOM - 4).to_bytes(4, "big") + bytes(ROOM - 4)),
    "removed indexes": (OpCode.REMOVE_VALUE, NAME + counted(b"\0\0\0\1", ROOM - 7)),
}


@pytest.mark.parametrize(("opcode", "body"), BODIES.values(), ids=BODIES)
def test_the_longest_request_takes_memory_in_proportion_to_its_length(opcode: OpCode, body: bytes) -> None:
    message = Message.build(Envelope(), Header(opcode), body)
    payload = message.payload()
    assert len(payload) > MAX_MESSAGE - 60

    def decode() -> object:
        read = Message.from_bytes(message.envelope, payload, 0)
        return REQUEST_DECODERS[opcode](read.body_reader(), CURRENT_VERSION, 0)

    height = height_of(decode)
    print(f"{height / len(payload):.1f} bytes of memory for one of the message")
    assert height < PER_OCTET * len(payload)


ANSWERS = {
    "names": (OpCode.LIST_HANDLES, counted(bytes(4), ROOM)),
    "values": (OpCode.RESOLUTION, NAME + MAX_VALUES.to_bytes(4, "big") + SMALLEST_VALUE * MAX_VALUES),
}


@pytest.mark.parametrize(("opcode", "body"), ANSWERS.values(), ids=ANSWERS)
def test_the_longest_response_takes_memory_in_proportion_to_its_length(opcode: OpCode, body: bytes) -> None:
    message = Message.build(Envelope(), Header(opcode, ResponseCode.SUCCESS), body)
    height = height_of(lambda: decode_response(message, 0))
    print(f"{height / len(body):.1f} bytes of memory for one of the message")
    assert height < PER_OCTET * len(body)


@pytest.mark.parametrize("count", [-1, 1 << 20, (1 << 31) - 1])
def test_an_announced_number_costs_nothing_by_itself(count: int) -> None:
    data = (count & 0xFFFF_FFFF).to_bytes(4, "big")
    assert height_of(lambda: read_values(Reader(data), 0)) < 10_000

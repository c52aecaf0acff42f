"""The longest messages, filled with the smallest items: memory use is proportional to their length."""

import tracemalloc
from collections.abc import Callable

import pytest

from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.record import MAX_VALUES, read_values
from perseid.wire.codes import CURRENT_VERSION, OpCode, ResponseCode
from perseid.wire.message import HEADER_LENGTH, MAX_MESSAGE, Envelope, Header, Message
from perseid.wire.requests import REQUEST_DECODERS
from perseid.wire.responses import decode_response

ROOM = MAX_MESSAGE - HEADER_LENGTH - 4
NAME = b"\0\0\0\3" + b"1/x"
SMALLEST_VALUE = bytes(26)

PER_BYTE = 40
"""Bytes of memory per message byte: an empty text uses 49 + 8 and has four."""


def count_and_items(item: bytes, room: int) -> bytes:
    """As many items as fit, after their count."""
    number = (room - 4) // len(item)
    return number.to_bytes(4, "big") + item * number


def peak_memory(call: Callable[[], object]) -> int:
    """The peak number of bytes allocated during a call, even if it fails."""
    tracemalloc.start()
    try:
        result: object = None
        try:
            result = call()
        except InvalidData as problem:
            result = problem
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del result
    return peak


BODIES = {
    "indexes": (OpCode.RESOLUTION, NAME + count_and_items(b"\0\0\0\1", ROOM - 11) + bytes(4)),
    "types": (OpCode.RESOLUTION, NAME + bytes(4) + count_and_items(bytes(4), ROOM - 11)),
    "values": (OpCode.CREATE_HANDLE, NAME + count_and_items(SMALLEST_VALUE, ROOM - 7)),
    "references": (
        OpCode.CREATE_HANDLE,
        NAME + b"\0\0\0\1" + SMALLEST_VALUE[:-4] + count_and_items(bytes(8), ROOM - 7 - 4 - 22),
    ),
    "one long name": (OpCode.DELETE_HANDLE, (ROOM - 4).to_bytes(4, "big") + bytes(ROOM - 4)),
    "removed indexes": (OpCode.REMOVE_VALUE, NAME + count_and_items(b"\0\0\0\1", ROOM - 7)),
}


@pytest.mark.parametrize(("opcode", "body"), BODIES.values(), ids=BODIES)
def test_longest_request_uses_memory_proportional_to_its_length(opcode: OpCode, body: bytes) -> None:
    message = Message.build(Envelope(), Header(opcode), body)
    payload = message.payload()
    assert len(payload) > MAX_MESSAGE - 60

    def decode() -> object:
        read = Message.from_bytes(message.envelope, payload, 0)
        return REQUEST_DECODERS[opcode](read.body_reader(), CURRENT_VERSION, 0)

    peak = peak_memory(decode)
    print(f"{peak / len(payload):.1f} bytes of memory for one of the message")
    assert peak < PER_BYTE * len(payload)


ANSWERS = {
    "names": (OpCode.LIST_HANDLES, count_and_items(bytes(4), ROOM)),
    "values": (OpCode.RESOLUTION, NAME + MAX_VALUES.to_bytes(4, "big") + SMALLEST_VALUE * MAX_VALUES),
}


@pytest.mark.parametrize(("opcode", "body"), ANSWERS.values(), ids=ANSWERS)
def test_longest_response_uses_memory_proportional_to_its_length(opcode: OpCode, body: bytes) -> None:
    message = Message.build(Envelope(), Header(opcode, ResponseCode.SUCCESS), body)
    peak = peak_memory(lambda: decode_response(message, 0))
    print(f"{peak / len(body):.1f} bytes of memory for one of the message")
    assert peak < PER_BYTE * len(body)


@pytest.mark.parametrize("count", [-1, 1 << 20, (1 << 31) - 1])
def test_announced_count_alone_allocates_no_memory(count: int) -> None:
    data = (count & 0xFFFF_FFFF).to_bytes(4, "big")
    assert peak_memory(lambda: read_values(Reader(data), 0)) < 10_000

"""The streams of replication: both sides, every record, signed and plain."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.wire.codes import RemoteProtocolError
from perseid.wire.replication import (
    MAX_RECORD,
    ChangeDate,
    DumpedPrefix,
    DumpedRecord,
    DumpEnd,
    DumpItem,
    OtherStates,
    Payload,
    PlainPayload,
    QueueEnd,
    QueueStart,
    ServerState,
    SignedPayload,
    StreamEnd,
    StreamStatus,
    StreamWriter,
    Transaction,
    TransactionAction,
    TransactionHead,
    TransactionItem,
    read_buffer,
    read_dump,
    read_mark,
    read_transactions,
    write_dump,
    write_transactions,
)
from tests.wire.key_material import SERVER_KEY

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.lists(st.binary(max_size=40), max_size=4).map(tuple)
HANDLES = st.binary(max_size=30)
RECORD_ACTIONS = st.sampled_from([TransactionAction.CREATE, TransactionAction.UPDATE])
OTHER_ACTIONS = st.sampled_from([TransactionAction.DELETE, TransactionAction.HOME, TransactionAction.UNHOME])
TRANSACTIONS = st.one_of(
    st.builds(Transaction, I64, HANDLES, RECORD_ACTIONS, I64, VALUES),
    st.builds(Transaction, I64, HANDLES, OTHER_ACTIONS, I64),
    st.builds(QueueStart, st.text(max_size=20)),
    st.builds(QueueEnd, I64),
)
DUMPED = st.one_of(
    st.builds(OtherStates, st.text(max_size=20)),
    st.builds(ServerState, I64, I64),
    st.builds(ChangeDate, HANDLES, I64, st.integers(-5, 5), st.booleans()),
    st.builds(DumpedRecord, HANDLES, VALUES),
    st.builds(DumpedPrefix, HANDLES),
)


def write(put: Callable[[StreamWriter], None], *, signed: bool) -> bytes:
    data = bytearray()
    writer = StreamWriter(data.extend, (lambda block: SERVER_KEY.sign("SHA1", block)) if signed else None)
    if signed:
        writer.begin_signed("SHA1")
    put(writer)
    return bytes(data)


def open_payload(data: bytes, *, signed: bool) -> Payload:
    read = read_buffer(data)
    if not signed:
        return PlainPayload(read)
    assert read_mark(read) == 0
    return SignedPayload(read, SERVER_KEY.public.verify)


@given(st.lists(TRANSACTIONS, max_size=5), st.sampled_from([1, 2]), st.booleans())
def test_transactions_have_a_round_trip(items: list[TransactionItem], format_: int, signed: bool) -> None:
    head = TransactionHead(format_, StreamStatus.TRANSACTIONS)
    everything = (*items, StreamEnd(7 if format_ == 1 else None))
    data = write(lambda writer: write_transactions(writer, head, everything), signed=signed)
    found, rest = read_transactions(open_payload(data, signed=signed))
    assert (found, tuple(rest)) == (head, everything)


@given(st.lists(DUMPED, max_size=5), st.booleans())
def test_dumps_have_a_round_trip(items: list[DumpItem], signed: bool) -> None:
    everything = (*items, DumpEnd())
    data = write(lambda writer: write_dump(writer, 2, everything), signed=signed)
    format_, rest = read_dump(open_payload(data, signed=signed))
    assert (format_, tuple(rest)) == (2, everything)


def test_streams_have_the_documented_bytes() -> None:
    head = TransactionHead(1, StreamStatus.TRANSACTIONS)
    items = (Transaction(7, b"1/x", TransactionAction.UPDATE, 9, (b"v",)), StreamEnd(10))
    assert write(lambda writer: write_transactions(writer, head, items), signed=False).hex() == (
        "0000000100000002" + "01" + "0000000000000007" + "00000003312f78" + "03" + "0000000000000009"
        "00000001" + "0000000176" + "00" + "000000000000000a"
    )
    dumped = (ServerState(5, 6), DumpedRecord(b"1/x", ()), DumpedPrefix(b"0.NA/1"), DumpEnd())
    assert write(lambda writer: write_dump(writer, 2, dumped), signed=False).hex() == (
        "00000002" + "00" + "0000000000000005" + "0000000000000006" + "01" + "00000003312f78" + "00000000"
        "02" + "00000006302e4e412f31" + "ff"
    )


def test_a_dump_of_format_1_ends_with_the_state_of_the_server() -> None:
    items = (DumpedRecord(b"1/x", (b"v",)), ServerState(5, 6))
    data = write(lambda writer: write_dump(writer, 1, items), signed=False)
    assert tuple(read_dump(open_payload(data + b"more", signed=False))[1]) == items


def test_a_changed_block_is_rejected() -> None:
    data = bytearray(write(lambda writer: write_dump(writer, 2, (DumpedPrefix(b"0.NA/1"), DumpEnd())), signed=True))
    data[data.index(b"0.NA/1") + 5] = ord("2")
    _, items = read_dump(open_payload(bytes(data), signed=True))
    with pytest.raises(RemoteProtocolError, match="not signed by the server"):
        list(items)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("00000003", "unknown format"),
        ("0000000206", "unknown record 6"),
        ("00000002017fffffff", "a length of 2147483647"),
        ("000000020100000001410000ffff" + "00100000" + "00" * 64, "ends early"),
        ("00000002010000000141ffffffff", "-1 values"),
        ("00000002", "ends early"),
    ],
)
def test_invalid_dumps_are_rejected(data: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        list(read_dump(open_payload(bytes.fromhex(data), signed=False))[1])


def test_a_record_is_bounded() -> None:
    values = tuple([bytes(1 << 20)] * (MAX_RECORD >> 20))
    data = write(lambda writer: write_dump(writer, 2, (DumpedRecord(b"1/x", values), DumpEnd())), signed=False)
    with pytest.raises(RemoteProtocolError, match="more than 16,777,216 bytes"):
        list(read_dump(open_payload(data, signed=False))[1])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_stream_or_an_error(data: bytes) -> None:
    for read in (read_dump, read_transactions):
        with suppress(RemoteProtocolError):
            list(read(PlainPayload(read_buffer(data)))[1])

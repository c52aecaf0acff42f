"""Encrypted streams: everything comes back, and nothing that was changed, moved or cut off is accepted."""

import base64
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.ledger.backup import encryption
from perseid.ledger.backup.encryption import EncryptedWriter, EncryptionError, WeakPassphrase, open_encrypted

LINE = b"perseid test 1\n"
PASSPHRASE = b"correct horse battery"
HEADER = len(LINE) + 32
TAG = 16
SMALL_CHUNK = 64

RECORDED = (
    "cGVyc2VpZCB0ZXN0IDEKr4t/wixzIRW6waUaGs0/6gro2xUHU1xk9GH6kIET"
    "FkbwadC7CqPltVD6MIsLw/SnTtDZCcL0aph1UB0JmHJocktR8x5YZw8Bw6WM7g=="
)
"""A stream of the first version of the format, with the cost of scrypt that is in use."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short chunks and a cheap key."""
    monkeypatch.setattr(encryption, "CHUNK", SMALL_CHUNK)
    monkeypatch.setattr(encryption, "SCRYPT_COST", 2)


def encrypt(*parts: bytes) -> bytes:
    stream = io.BytesIO()
    writer = EncryptedWriter(stream, LINE, PASSPHRASE)
    for part in parts:
        writer.write(part)
    writer.end()
    return stream.getvalue()


def decrypt(data: bytes, passphrase: bytes = PASSPHRASE) -> bytes:
    stream = io.BytesIO(data)
    assert stream.read(len(LINE)) == LINE
    return open_encrypted(stream, "name", LINE, passphrase).read()


def refuse(data: bytes, *words: str) -> None:
    """Check that a stream is refused, and that what is read before is what was written."""
    plain = bytearray()
    with pytest.raises(EncryptionError) as raised:
        read_into(plain, data)
    assert str(raised.value).startswith("name: ")
    assert all(word in str(raised.value) for word in words), raised.value
    assert TEXT.startswith(plain)


def read_into(plain: bytearray, data: bytes) -> None:
    stream = io.BytesIO(data)
    stream.read(len(LINE))
    reader = open_encrypted(stream, "name", LINE, PASSPHRASE)
    while piece := reader.read(1):
        plain += piece


TEXT = bytes(range(256)) * 2
"""Eight chunks."""


def chunks(data: bytes) -> list[bytes]:
    step = SMALL_CHUNK + TAG
    return [data[start : start + step] for start in range(HEADER, len(data), step)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small")
@given(parts=st.lists(st.binary(max_size=200), max_size=5))
def test_what_is_written_in_pieces_is_read_again(parts: list[bytes]) -> None:
    assert decrypt(encrypt(*parts)) == b"".join(parts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small")
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EncryptionError):
        decrypt(LINE + data)
    with pytest.raises(EncryptionError):
        decrypt(encrypt()[:HEADER] + data)


@pytest.mark.usefixtures("small")
def test_every_changed_byte_is_noticed() -> None:
    data = encrypt(TEXT)
    for position in range(len(LINE), len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1
        refuse(bytes(changed), "passphrase" if position < HEADER else "modified")


@pytest.mark.usefixtures("small")
def test_every_missing_end_is_noticed() -> None:
    data = encrypt(TEXT)
    for end in range(len(LINE), len(data)):
        at_boundary = end > HEADER and (end - HEADER) % (SMALL_CHUNK + TAG) == 0
        refuse(data[:end], "incomplete: unexpected end" if at_boundary or end <= HEADER else "incomplete")


@pytest.mark.usefixtures("small")
def test_moved_repeated_removed_and_added_chunks_are_noticed() -> None:
    data = encrypt(TEXT)
    header, parts = data[:HEADER], chunks(data)
    assert len(parts) == 8
    assert header + b"".join(parts) == data
    for order in (
        [parts[1], parts[0], *parts[2:]],
        [parts[0], *parts],
        parts[1:],
        [*parts[:3], *parts[4:]],
        [*parts, b"x"],
        [*parts, parts[-1]],
    ):
        refuse(header + b"".join(order), "modified or incomplete, in chunk")
    other = encrypt(TEXT)
    refuse(header + chunks(other)[0] + b"".join(parts[1:]), "in chunk 1")


@pytest.mark.usefixtures("small")
def test_stream_without_its_end_is_refused() -> None:
    stream = io.BytesIO()
    EncryptedWriter(stream, LINE, PASSPHRASE).write(TEXT)
    refuse(stream.getvalue(), "incomplete: unexpected end")


@pytest.mark.usefixtures("small")
def test_wrong_passphrase_and_short_one_are_refused() -> None:
    with pytest.raises(EncryptionError, match="wrong passphrase"):
        decrypt(encrypt(TEXT), b"correct horse batterx")
    with pytest.raises(WeakPassphrase, match="11 bytes; use at least 12"):
        EncryptedWriter(io.BytesIO(), LINE, b"x" * 11)


@pytest.mark.usefixtures("small")
def test_no_two_streams_have_the_same_bytes() -> None:
    one, two = encrypt(TEXT), encrypt(TEXT)
    assert not set(chunks(one)) & set(chunks(two))
    assert len(set(chunks(one))) == 8


@pytest.mark.usefixtures("small")
def test_only_one_or_two_chunks_are_in_memory() -> None:
    stream = io.BytesIO()
    writer = EncryptedWriter(stream, LINE, PASSPHRASE)
    for count in range(1, 100):
        writer.write(b"x" * 10)
        assert stream.tell() - HEADER >= (10 * count // SMALL_CHUNK - 1) * (SMALL_CHUNK + TAG)
    writer.end()
    source = io.BytesIO(stream.getvalue())
    source.read(len(LINE))
    reader = open_encrypted(source, "name", LINE, PASSPHRASE)
    for count in range(1, 991):
        assert reader.read(1) == b"x"
        assert source.tell() <= HEADER + (count // SMALL_CHUNK + 3) * (SMALL_CHUNK + TAG)


def test_recorded_stream_stays_readable() -> None:
    assert decrypt(base64.b64decode(RECORDED)) == b"The end of the first version"

"""Checkpoints: an independent reader reads what we sign; changed ones are refused."""

import base64
import hashlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.merkle import Signer
from perseid.proof.verifier import (
    MAX_NOTE,
    Checkpoint,
    InvalidProof,
    LogKey,
    format_note,
    open_checkpoint,
    parse_key_rotation,
    parse_note,
)

SIGNER = Signer.generate("ledger.example.org", bytes(range(32)))
OTHER = Signer.generate("ledger.example.org", bytes(32))
ROOT = hashlib.sha256(b"root").digest()
CHECKPOINT = Checkpoint("ledger.example.org", 1234, ROOT)

names = st.text(
    st.characters(codec="utf-8", exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=30
)
checkpoints = st.builds(
    Checkpoint,
    names,
    st.integers(0, (1 << 63) - 1),
    st.binary(min_size=32, max_size=32),
    st.lists(names, max_size=2).map(tuple),
)


def read_independently(note: str, name: str, public: bytes) -> tuple[str, int, bytes]:
    """A reader of signed checkpoints written from the public description of the format."""
    body, signatures = note.split("\n\n", 1)
    text = body + "\n"
    for line in signatures.splitlines():
        dash, identity, encoded = line.split(" ")
        assert dash == "\N{EM DASH}"
        raw = base64.standard_b64decode(encoded)
        key_hash = hashlib.sha256(f"{name}\n".encode() + b"\x01" + public).digest()[:4]
        if identity == name and raw[:4] == key_hash:
            Ed25519PublicKey.from_public_bytes(public).verify(raw[4:], text.encode())
            origin, size, root = text.splitlines()[:3]
            return origin, int(size), base64.standard_b64decode(root)
    raise AssertionError("not signed by this key")


def test_independent_reader_reads_our_checkpoint() -> None:
    found = read_independently(SIGNER.sign(CHECKPOINT), SIGNER.name, SIGNER.public.public)
    assert found == ("ledger.example.org", 1234, ROOT)


def test_checkpoint_form_is_fixed() -> None:
    lines = SIGNER.sign(CHECKPOINT).splitlines()
    assert lines[:4] == ["ledger.example.org", "1234", base64.b64encode(ROOT).decode(), ""]
    assert lines[4].startswith("\N{EM DASH} ledger.example.org ")
    assert len(lines) == 5


@given(checkpoints)
def test_checkpoint_round_trips(checkpoint: Checkpoint) -> None:
    assert open_checkpoint(SIGNER.sign(checkpoint), SIGNER.public) == checkpoint
    assert Checkpoint.parse(checkpoint.text()) == checkpoint


@given(st.integers(0, 10_000), st.characters())
def test_changed_note_is_refused(position: int, character: str) -> None:
    note = SIGNER.sign(CHECKPOINT)
    position %= len(note)
    changed = note[:position] + character + note[position + 1 :]
    if changed == note:
        return
    try:
        found = open_checkpoint(changed, SIGNER.public)
    except InvalidProof:
        return
    assert found == CHECKPOINT  # unused base64 bits may differ; the content may not


@given(st.text())
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    for read in (parse_note, LogKey.parse, Checkpoint.parse):
        with suppress(InvalidProof):
            read(text)
    with pytest.raises(InvalidProof):
        open_checkpoint(text, SIGNER.public)


@pytest.mark.parametrize("read", [parse_note, LogKey.parse])
def test_text_without_a_utf8_form_is_refused(read: Callable[[str], object]) -> None:
    with pytest.raises(InvalidProof, match=r"^the text cannot be encoded in UTF-8$"):
        read("\ud800" + SIGNER.sign(CHECKPOINT))


def test_signature_of_another_key_is_ignored() -> None:
    with pytest.raises(InvalidProof, match="not signed by"):
        open_checkpoint(OTHER.sign(CHECKPOINT), SIGNER.public)


def test_one_of_several_signatures_suffices() -> None:
    text, ours = parse_note(SIGNER.sign(CHECKPOINT))
    _, theirs = parse_note(OTHER.sign(CHECKPOINT))
    note = format_note(text, [*theirs, *ours])
    assert open_checkpoint(note, SIGNER.public) == CHECKPOINT
    assert open_checkpoint(note, OTHER.public) == CHECKPOINT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x\n",
        "x\n1\n",
        "x\n01\nAA==\n",
        "x\n-1\nAA==\n",
        "x\n1\nAA==\n",
        "x\n1\n" + "A" * 44 + "\n",
        "\n1\n\n",
        "x\n²\n\n",
    ],
)
def test_invalid_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidProof):
        Checkpoint.parse(text)


@pytest.mark.parametrize("note", ["", "x", "x\n\n", "x\n\ny\n", "x\n\n\N{EM DASH} n AA==\n", "x\n\n\N{EM DASH} n !\n"])
def test_invalid_signed_note_is_refused(note: str) -> None:
    with pytest.raises(InvalidProof):
        parse_note(note)


def test_note_length_is_limited() -> None:
    note = SIGNER.sign(Checkpoint("x" * (MAX_NOTE - 300), 1, ROOT))
    assert open_checkpoint(note, SIGNER.public).size == 1
    with pytest.raises(InvalidProof, match=r"^the note has more than 16384 bytes$"):
        parse_note("x" * MAX_NOTE + note)


@given(names.filter(lambda name: "+" not in name and name.strip() == name), st.binary(min_size=32, max_size=32))
def test_public_key_round_trips(name: str, public: bytes) -> None:
    key = LogKey(name, public)
    assert LogKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "x", "x+00000000+AQ==", "x+zz+AA==", str(SIGNER.public).replace("+", "+0", 1)])
def test_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidProof):
        LogKey.parse(text)


def test_private_key_round_trips_and_is_not_shown() -> None:
    again = Signer.from_bytes(SIGNER.to_bytes())
    assert again.public == SIGNER.public
    assert bytes(range(32)).hex() not in repr(SIGNER)
    with pytest.raises(ValueError, match="seed of 32 bytes"):
        Signer.generate("x", b"short")


def test_a_verifier_follows_the_chain_of_keys() -> None:
    second = Signer.generate("ledger.example.org", hashlib.sha256(b"2").digest())
    note = SIGNER.hand_over(second.public)
    assert parse_key_rotation(note) == (SIGNER.public, second.public)
    with pytest.raises(InvalidProof, match=r"^the note is not a key rotation$"):
        parse_key_rotation(SIGNER.sign(CHECKPOINT))
    text, ((name, key_id, signature),) = parse_note(note)
    forged = format_note(text, [(name, key_id, signature[:-1] + bytes((signature[-1] ^ 1,)))])
    with pytest.raises(InvalidProof, match=r"^the key rotation is not signed by "):
        parse_key_rotation(forged)


def test_a_root_with_stray_bits_is_not_canonical() -> None:
    text = Checkpoint("x", 1, bytes(32)).text()
    assert text.endswith("A=\n")
    with pytest.raises(InvalidProof, match="not canonical base64"):
        Checkpoint.parse(text.replace("A=\n", "B=\n"))

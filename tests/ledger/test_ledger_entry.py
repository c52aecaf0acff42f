"""Entries: both forms, what they reveal and what they hide, and redaction."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import (
    FORMAT,
    MAX_RANDOM_BLOCK,
    SALT_LENGTH,
    Action,
    Draft,
    Entry,
    Kind,
    Slot,
    State,
    buffered_random,
    decode_summary,
    encode_entry,
)
from perseid.proof.verifier import InvalidProof, Leaf, leaf_hash
from perseid.records.errors import InvalidData
from perseid.records.record import Permission, Value
from tests.record_strategies import values as record_values

AT = 1_794_724_100_000_000
SECRET = Value(300, "HS_SECKEY", b"opensesame", permissions=Permission(0x0C), timestamp=AT // 1_000_000)
PUBLIC = Value(1, "URL", b"https://example.org/", timestamp=AT // 1_000_000)


class Counted:
    """Reproducible randomness that does not repeat."""

    def __init__(self, start: int) -> None:
        self.drawn = start * 1000

    def __call__(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_128(self.drawn.to_bytes(8, "big")).digest(count)


def entry(*values: Value, seq: int = 1, handle: str = "10.1/x", before: Entry | None = None) -> Entry:
    """An entry as the ledger creates it."""
    draft = Draft(Action.CREATE, State.NORMAL, handle, "cli", "local:alice", "first", values)
    contents = [value.to_bytes() for value in values]
    body, leaf = encode_entry(draft, contents, seq, AT, {} if before is None else before.salts(), Counted(seq))
    result = Entry.from_body(seq, AT, body)
    assert result.leaf_hash() == leaf
    return result


handles = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
raw = st.binary(min_size=SALT_LENGTH, max_size=SALT_LENGTH)
open_slots = st.builds(Slot.commit, st.just(Kind.VALUE), raw, st.binary(max_size=60))
slots = open_slots | open_slots.map(Slot.redacted)
numbers = st.integers(1, (1 << 63) - 1)
entries = st.builds(
    Entry,
    numbers,
    numbers,
    st.sampled_from(Action) | st.integers(0, 255).map(Action),
    st.sampled_from(State) | st.integers(0, 255).map(State),
    st.booleans(),
    handles,
    raw,
    st.builds(Slot.commit, st.just(Kind.ACTOR), raw, texts.map(str.encode)),
    st.builds(Slot.commit, st.just(Kind.NOTE), raw, texts.map(str.encode)).flatmap(
        lambda slot: st.sampled_from([slot, slot.redacted()])
    ),
    st.lists(slots, max_size=5).map(tuple),
)


@given(entries, st.data())
def test_decode_summary_agrees_with_the_full_parser(one: Entry, data: st.DataObject) -> None:
    body = one.body()
    assert decode_summary(one.seq, one.at, body) == one.summary()
    place = data.draw(st.integers(0, len(body)))
    wrong = data.draw(
        st.sampled_from([body[:place], body + b"\0", body[:place] + b"\xff" + body[place + 1 :]]), label="wrong"
    )
    try:
        found = Entry.from_body(one.seq, one.at, wrong)
    except InvalidData:
        with pytest.raises(InvalidData):
            decode_summary(one.seq, one.at, wrong)
    else:
        assert decode_summary(one.seq, one.at, wrong) == found.summary()


@pytest.mark.parametrize("actor", [b"\xff local:a", b"cli \xff"])
def test_actor_that_is_not_utf8_is_refused(actor: bytes) -> None:
    wrong = replace(entry(PUBLIC), actor=Slot.commit(Kind.ACTOR, bytes(SALT_LENGTH), actor)).body()
    for parse in (Entry.from_body, decode_summary):
        with pytest.raises(InvalidData, match="the actor is not UTF-8"):
            parse(1, 1, wrong)


@given(entries)
def test_entry_round_trips(one: Entry) -> None:
    assert Entry.from_body(one.seq, one.at, one.body()) == one


@given(entries)
def test_verifier_reads_the_entry_from_its_leaf(one: Entry) -> None:
    leaf = Leaf.parse(one.leaf())
    assert (leaf.seq, leaf.at, leaf.action, leaf.state) == (one.seq, one.at, one.action, one.state)
    assert (leaf.exact, leaf.handle) == (one.exact, one.handle)
    assert (leaf.actor, leaf.note) == (one.actor.commitment, one.note.commitment)
    assert leaf.values == tuple(slot.commitment for slot in one.values)
    assert one.leaf_hash() == leaf_hash(one.leaf())


@given(entries, st.data())
def test_truncated_or_extended_body_is_refused(one: Entry, data: st.DataObject) -> None:
    body = one.body()
    cut = data.draw(st.integers(0, len(body) - 1))
    for wrong in (body[:cut], body + b"\0"):
        with pytest.raises(InvalidData):
            Entry.from_body(one.seq, one.at, wrong)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_entry_or_refused(raw: bytes) -> None:
    try:
        found = Entry.from_body(1, AT, bytes((FORMAT,)) + raw)
    except InvalidData:
        return
    assert found.body() == bytes((FORMAT,)) + raw


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_leaf_or_refused(raw: bytes) -> None:
    try:
        leaf = Leaf.parse(raw)
    except InvalidProof:
        return
    assert len(raw) == 24 + len(leaf.handle.encode()) + SALT_LENGTH + 64 + 4 + 32 * len(leaf.values)


@given(st.lists(record_values(), max_size=4))
def test_record_of_an_entry_does_not_depend_on_the_current_year(values: list[Value]) -> None:
    now = AT // 1_000_000
    dated = [replace(value, timestamp=now, ttl_type=type(value.ttl_type).RELATIVE, ttl=60) for value in values]
    one = entry(*dated)
    # Times in a value have 32 bits; they are decoded relative to the date of the entry, not the reader's clock.
    assert one.record() == tuple(dated)


def test_a_body_of_a_newer_format_is_refused_with_its_number() -> None:
    body = bytes((FORMAT + 1,)) + entry(PUBLIC).body()[1:]
    with pytest.raises(InvalidData, match="entry 7 has format 2"):
        Entry.from_body(7, AT, body)


def test_encoded_forms_match_the_specification() -> None:
    """Composed by hand from docs/reference/ledger-format.md, without code of the ledger."""
    random = Counted(1)(64)
    nonce, actor_salt, note_salt, value_salt = (random[start : start + 16] for start in range(0, 64, 16))
    value = PUBLIC.to_bytes()

    def open_slot(salt: bytes, content: bytes) -> bytes:
        return b"\0" + salt + len(content).to_bytes(4, "big") + content

    body = b"\1\1\1\0" + b"\0\0\0\6" + b"10.1/x" + nonce
    body += open_slot(actor_salt, b"cli local:alice") + open_slot(note_salt, b"first")
    body += b"\0\0\0\1" + open_slot(value_salt, value)
    assert entry(PUBLIC).body() == body
    leaf = b"\1" + (1).to_bytes(8, "big") + AT.to_bytes(8, "big") + b"\1\1\0" + b"\0\0\0\6" + b"10.1/x" + nonce
    leaf += hashlib.sha256(b"A" + actor_salt + b"cli local:alice").digest()
    leaf += hashlib.sha256(b"N" + note_salt + b"first").digest()
    leaf += b"\0\0\0\1" + hashlib.sha256(b"V" + value_salt + value).digest()
    assert entry(PUBLIC).leaf() == leaf
    assert entry(PUBLIC).leaf_hash() == hashlib.sha256(b"\0" + leaf).digest()


def test_a_leaf_shows_name_and_time_but_neither_values_nor_actor_nor_note() -> None:
    one = entry(PUBLIC, SECRET)
    leaf = one.leaf()
    assert b"10.1/x" in leaf
    for hidden in (PUBLIC.data, SECRET.data, b"URL", b"HS_SECKEY", b"alice", b"first"):
        assert hidden not in leaf
        assert hidden in one.body()


def test_a_guess_cannot_be_confirmed_without_the_salt() -> None:
    leaf = Leaf.parse(entry(SECRET).leaf())
    with pytest.raises(InvalidProof):
        leaf.check_value(bytes(SALT_LENGTH), SECRET.to_bytes())
    with pytest.raises(InvalidProof):
        leaf.check_actor(bytes(SALT_LENGTH), b"cli local:alice")
    with pytest.raises(InvalidProof):
        leaf.check_note(bytes(SALT_LENGTH), b"first")


def test_commitment_can_be_checked_with_the_salt() -> None:
    one = entry(PUBLIC, SECRET)
    leaf = Leaf.parse(one.leaf())
    for number, slot in enumerate(one.values):
        assert slot.content is not None
        assert leaf.check_value(slot.salt, slot.content) == number
    assert one.actor.content is not None
    assert one.note.content is not None
    leaf.check_actor(one.actor.salt, one.actor.content)
    leaf.check_note(one.note.salt, one.note.content)


def test_actor_is_not_accepted_as_a_note() -> None:
    salt = bytes(SALT_LENGTH)
    kinds = {Slot.commit(kind, salt, b"same").commitment for kind in Kind}
    assert len(kinds) == len(Kind)


def test_two_entries_without_values_have_different_leaves() -> None:
    one = entry()
    assert replace(one, nonce=bytes(SALT_LENGTH)).leaf_hash() != one.leaf_hash()


def test_an_unchanged_value_keeps_its_commitment_and_a_changed_one_does_not() -> None:
    first = entry(PUBLIC, SECRET)
    changed = replace(PUBLIC, data=b"https://example.org/new")
    second = entry(changed, SECRET, seq=2, before=first)
    assert second.values[1] == first.values[1]
    assert second.values[0].commitment != first.values[0].commitment
    assert first.values[0].salt != second.values[0].salt


def test_redaction_removes_content_and_salt_but_keeps_the_leaf() -> None:
    one = entry(PUBLIC, SECRET)
    redacted = replace(one, values=(one.values[0], one.values[1].redacted()))
    assert redacted.leaf_hash() == one.leaf_hash()
    assert SECRET.data not in redacted.body()
    assert one.values[1].salt not in redacted.body()
    assert redacted.values[1].is_redacted
    assert redacted.record() == (PUBLIC,)
    assert Entry.from_body(1, AT, redacted.body()) == redacted


def test_actor_and_note_are_readable_until_redacted() -> None:
    one = entry(PUBLIC)
    assert one.origin == ("cli", "local:alice")
    assert one.why == "first"
    gone = replace(one, actor=one.actor.redacted(), note=one.note.redacted())
    assert gone.origin is None
    assert gone.why is None


def test_printed_entry_shows_no_secret() -> None:
    shown = repr(entry(SECRET))
    assert "opensesame" not in shown
    assert "alice" not in shown
    assert "10.1/x" in shown


def test_buffered_random_bytes_are_used_once() -> None:
    asked: list[int] = []
    source = iter(range(1 << 30))

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return b"".join(next(source).to_bytes(4, "big") for _ in range(count // 4))

    take = buffered_random(random_bytes)
    taken = [take(96) for _ in range(3_000)]
    assert asked[:3] == [96, 192, 384]
    assert max(asked) == MAX_RANDOM_BLOCK
    numbers = [part[at : at + 4] for part in taken for at in range(0, 96, 4)]
    assert len(set(numbers)) == 3_000 * 24
    assert take(2 * MAX_RANDOM_BLOCK)[:4] not in numbers

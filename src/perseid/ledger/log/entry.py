"""An entry of the ledger: who did what to which handle and when, and the whole record after it.

What is stored and what is proved are two things. The *body* holds everything, in the open. The *leaf*, whose hash
stands in the Merkle tree, holds handle, action, time and number in clear, but only commitments to what may be private:

    commitment = SHA-256(kind ‖ salt ‖ content)

Each value, the actor and the note have a random salt of their own, so a proof of history tells nothing about them to
whoever does not know them already, and data can be erased (redacted) from the body without touching the tree: its
commitment stays. An unchanged value keeps its salt from entry to entry, so a proof also shows what did not change. A
random nonce in every leaf keeps entries without values from being guessed.

docs/reference/ledger-format.md specifies both forms for whoever has only the file.

The chain of one record's entries: from the latest one back to any moment in a few steps.

Each entry points to the previous one of its record, and to one further back. How far is fixed by the entry's place
in the chain: write its place as a sum of numbers 2^k - 1, the largest first; the last of them is the distance. (1, 1+1,
3, 3+1, 3+1+1, 3+3, 7 …: the skew binary numbers.) So every entry needs two pointers only, and the entry that was the
latest at a given moment is found in a number of steps that grows with the logarithm of the chain's length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from struct import Struct, error
from typing import Final, Self

from perseid.proof.verifier import commitment, leaf_hash
from perseid.records.binary import Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData
from perseid.records.value import Value

from .record_keys import record_key

FORMAT: Final = 1
"""The version of the two forms described here; it is their first octet."""

SALT_LENGTH: Final = 16
"""Octets of salt and nonce: enough that nobody finds one by trying, in thirty years or ever."""

COMMITMENT_LENGTH: Final = 32

MICROSECONDS_PER_SECOND: Final = 1_000_000
"""Entries are dated in microseconds, values in seconds."""

_OPEN, _REDACTED = 0, 1
_OPEN_SLOT = bytes((_OPEN,))
_CASE_SENSITIVE = 1
_BODY = Struct(">BBBBi")  # format, action, state, case, length of the handle
_LEAF = Struct(">BqqBBBi")  # format, seq, at, action, state, case, length of the handle
_LENGTH = Struct(">i")

Random = Callable[[int], bytes]


class Action(OpenEnum):
    """What was done."""

    CREATE = 1
    """A name came to have a record."""
    UPDATE = 2
    """Its values changed."""
    DELETE = 3
    """Its record was removed; the name is not free."""
    HOME = 4
    """This server became responsible for a prefix; see `keys.homed_name` for the handle of such an entry."""
    UNHOME = 5
    """It stopped being so."""
    RESERVE = 6
    """A name was taken, without a record yet."""
    PUBLISH = 7
    UNPUBLISH = 8
    TOMBSTONE = 9
    """The thing is gone; the name says so."""
    REDACT = 10
    """Data of earlier entries of the handle was erased."""
    ROTATE_KEY = 11
    """Checkpoints are signed with another key from here on."""
    BRANCH = 12
    """The ledger was restored from before a checkpoint it had signed, and goes on under a new origin."""


class State(OpenEnum):
    """What a name is, after an entry."""

    ABSENT = 0
    """No record: deleted, or not a matter of records at all."""
    NORMAL = 1
    RESERVED = 2
    UNPUBLISHED = 3
    TOMBSTONE = 4


class Kind(OpenEnum):
    """What a commitment is about; it keeps one from passing for another."""

    VALUE = ord("V")
    ACTOR = ord("A")
    NOTE = ord("N")


@dataclass(frozen=True, slots=True)
class Slot:
    """Content under a commitment, or, where it was redacted, the commitment alone."""

    kind: Kind
    """What it is about."""
    commitment: bytes
    """What the leaf holds."""
    salt: bytes = field(default=b"", repr=False)
    """Empty when redacted: with it, a guess could be confirmed."""
    content: bytes | None = field(default=None, repr=False)
    """None when redacted."""

    @classmethod
    def commit(cls, kind: Kind, salt: bytes, content: bytes) -> Self:
        """Put content under a commitment."""
        return cls(kind, commitment(bytes((kind,)), salt, content), salt, content)

    @property
    def is_redacted(self) -> bool:
        """Whether the content is gone."""
        return self.content is None

    def redacted(self) -> Self:
        """The same without content and salt."""
        return replace(self, salt=b"", content=None)

    @classmethod
    def read(cls, reader: Reader, kind: Kind) -> Self:
        """Take a slot from a body."""
        form = reader.u8()
        if form == _REDACTED:
            return cls(kind, reader.octets(COMMITMENT_LENGTH))
        if form != _OPEN:
            raise reader.problem(f"slots of form {form} are not known")
        salt = reader.octets(SALT_LENGTH)
        return cls.commit(kind, salt, reader.bytes_())

    def write(self, writer: Writer) -> None:
        """Add the slot to a body."""
        if self.content is None:
            writer.u8(_REDACTED).octets(self.commitment)
        else:
            writer.u8(_OPEN).octets(self.salt).bytes_(self.content)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `seq` and `at` are given by the ledger while its head is locked."""

    seq: int
    """Its number, from 1, without gaps."""
    at: int
    """When it was appended, in microseconds since 1970; never before the entry in front of it."""
    action: Action
    """What was done."""
    state: State
    """What the name is after it."""
    exact: bool
    """Whether small and capital letters of the suffix are told apart; otherwise ASCII letters are one (H5)."""
    handle: str
    """The name, as it is spelled."""
    nonce: bytes = field(repr=False)
    """Random octets that make the leaf unguessable."""
    actor: Slot
    """Who did it (`door actor`), under a commitment."""
    note: Slot
    """Why, or where from; under a commitment."""
    values: tuple[Slot, ...]
    """The record after the change: each value's binary form, by ascending index."""
    _record: tuple[Value, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_body(cls, seq: int, at: int, body: bytes) -> Self:
        """Take an entry from its stored form."""
        reader = Reader(body)
        if (version := reader.u8()) != FORMAT:
            raise InvalidData(f"entry {seq} has format {version}; this version of the program knows {FORMAT}", 0)
        action, state = Action(reader.u8()), State(reader.u8())
        if (case := reader.u8()) > _CASE_SENSITIVE:
            raise reader.problem(f"case rule {case} is not known")
        handle = reader.text()
        nonce = reader.octets(SALT_LENGTH)
        actor, note = Slot.read(reader, Kind.ACTOR), Slot.read(reader, Kind.NOTE)
        values = tuple([Slot.read(reader, Kind.VALUE) for _ in range(reader.count(1 + COMMITMENT_LENGTH - 12))])
        reader.finish()
        return cls(seq, at, action, state, case == _CASE_SENSITIVE, handle, nonce, actor, note, values)

    def body(self) -> bytes:
        """The stored form."""
        writer = Writer().u8(FORMAT).u8(self.action).u8(self.state).u8(self.exact)
        writer.text(self.handle).octets(self.nonce)
        self.actor.write(writer)
        self.note.write(writer)
        writer.i32(len(self.values))
        for slot in self.values:
            slot.write(writer)
        return writer.getvalue()

    def leaf(self) -> bytes:
        """What is hashed into the tree, and shown in proofs."""
        writer = Writer().u8(FORMAT).i64(self.seq).i64(self.at).u8(self.action).u8(self.state).u8(self.exact)
        writer.text(self.handle).octets(self.nonce).octets(self.actor.commitment).octets(self.note.commitment)
        writer.i32(len(self.values))
        for slot in self.values:
            writer.octets(slot.commitment)
        return writer.getvalue()

    def leaf_hash(self) -> bytes:
        """The hash of the leaf."""
        return leaf_hash(self.leaf())

    def record(self) -> tuple[Value, ...]:
        """The values after the entry; redacted ones are left out."""
        if self._record is None:
            now = self.at // MICROSECONDS_PER_SECOND
            found = tuple([Value.from_bytes(slot.content, now) for slot in self.values if slot.content is not None])
            object.__setattr__(self, "_record", found)
            return found
        return self._record

    def salts(self) -> dict[bytes, bytes]:
        """The salts of the values by their content, for the next entry of the same record."""
        return {slot.content: slot.salt for slot in self.values if slot.content is not None}

    @property
    def key(self) -> bytes:
        """Where the record is kept."""
        return record_key(self.handle, exact=self.exact)

    def contents(self) -> list[bytes]:
        """The values in their binary form; redacted ones are left out."""
        return [slot.content for slot in self.values if slot.content is not None]

    def slots(self) -> tuple[Slot, ...]:
        """Everything under a commitment: actor, note and values."""
        return (self.actor, self.note, *self.values)

    def redacted(self, commitments: frozenset[bytes]) -> Self:
        """The same entry without what is under the given commitments."""

        def without(slot: Slot) -> Slot:
            return slot.redacted() if slot.commitment in commitments else slot

        values = tuple(without(slot) for slot in self.values)
        return replace(self, actor=without(self.actor), note=without(self.note), values=values)

    @property
    def identity(self) -> tuple[str, str] | None:
        """Door and actor; None if they were redacted."""
        if self.actor.content is None:
            return None
        interface, _, actor = self.actor.content.decode("utf-8").partition(" ")
        return interface, actor

    @property
    def why(self) -> str | None:
        """The note; None if it was redacted."""
        return None if self.note.content is None else self.note.content.decode("utf-8")


def decode_summary(seq: int, at: int, body: bytes) -> tuple[str, bool, State, list[bytes]]:
    """Handle, case rule, state and contents of an entry: what views need.

    This leaves the commitments out, which are most of what `Entry.from_body` costs. What is not as it should be is left
    to that, which says what is wrong.
    """
    try:
        version, _, state, case, length = _BODY.unpack_from(body)
        place = _BODY.size + length
        handle = body[_BODY.size : place].decode("utf-8")
        place += SALT_LENGTH
        contents: list[bytes] = []
        for _ in range(2):
            place, _content = _decode_slot(body, place)
        (count,) = _LENGTH.unpack_from(body, place)
        place += _LENGTH.size
        for _ in range(count):
            place, content = _decode_slot(body, place)
            if content is not None:
                contents.append(content)
        if version == FORMAT and case <= _CASE_SENSITIVE and length >= 0 and count >= 0 and place == len(body):
            return handle, case == _CASE_SENSITIVE, State(state), contents
    except (IndexError, error, UnicodeDecodeError, _UnknownSlotForm):
        pass
    entry = Entry.from_body(seq, at, body)
    return entry.handle, entry.exact, entry.state, entry.contents()


class _UnknownSlotForm(Exception):
    """A slot of a form that is not known here."""


def _decode_slot(body: bytes, place: int) -> tuple[int, bytes | None]:
    """Where a slot ends, and its content; None if it was redacted."""
    form = body[place]
    place += 1
    if form == _REDACTED:
        return place + COMMITMENT_LENGTH, None
    place += SALT_LENGTH
    (length,) = _LENGTH.unpack_from(body, place)
    place += _LENGTH.size
    if form != _OPEN or length < 0:
        raise _UnknownSlotForm
    return place + length, body[place : place + length]


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody wants to append, before the ledger gives it a number and a date."""

    action: Action
    """What was done."""
    state: State
    """What the name is after it."""
    handle: str
    """The name, as it is spelled."""
    interface: str
    """Where it came in: `native`, `http`, `cli` … one word."""
    actor: str = field(repr=False)
    """Who did it: `300:0.NA/12345`, `local:alice`."""
    note: str = field(default="", repr=False)
    """Why, or where from."""
    values: tuple[Value, ...] = field(default=(), repr=False)
    """The record after it, by ascending index."""
    exact: bool = False
    """Whether small and capital letters of the suffix are told apart."""

    @property
    def key(self) -> bytes:
        """Where the record is kept."""
        return record_key(self.handle, exact=self.exact)


def encode_entry(
    draft: Draft, contents: Sequence[bytes], seq: int, at: int, kept: Mapping[bytes, bytes], random: Random
) -> tuple[bytes, bytes]:
    """The body and the leaf hash of a new entry.

    `contents` are the draft's values in their binary form.

    `kept` has the salts of the record's values before, by their content: a value that did not change keeps its salt.
    This is `Entry.body` and `Entry.leaf_hash` in one go, for it is what appending mostly costs.
    """
    octets = random((3 + len(contents)) * SALT_LENGTH)  # more than needed, where values keep their salts
    nonce, actor_salt, note_salt = octets[:16], octets[16:32], octets[32:48]
    actor, note = f"{draft.interface} {draft.actor}".encode(), draft.note.encode()
    name = draft.handle.encode("utf-8")
    pack = _LENGTH.pack
    count = pack(len(contents))
    body = [
        _BODY.pack(FORMAT, draft.action, draft.state, draft.exact, len(name)),
        name,
        nonce,
        _OPEN_SLOT,
        actor_salt,
        pack(len(actor)),
        actor,
        _OPEN_SLOT,
        note_salt,
        pack(len(note)),
        note,
        count,
    ]
    leaf = [
        _LEAF.pack(FORMAT, seq, at, draft.action, draft.state, draft.exact, len(name)),
        name,
        nonce,
        sha256(b"A" + actor_salt + actor).digest(),
        sha256(b"N" + note_salt + note).digest(),
        count,
    ]
    start = 48
    for content in contents:
        salt = kept.get(content) if kept else None
        if salt is None:
            salt = octets[start : start + 16]
            start += 16
        body += (_OPEN_SLOT, salt, pack(len(content)), content)
        leaf.append(sha256(b"V" + salt + content).digest())
    return b"".join(body), leaf_hash(b"".join(leaf))


Links = Callable[[int], tuple[int, int]]
"""`links(seq)` → (previous, jump) of an entry."""


def jump_target(place: int) -> int:
    """The place in the chain, from 1, to which the entry at a place jumps; 0 is before the first."""
    rest, weight = place, 0
    while rest:
        weight = (1 << (rest + 1).bit_length() - 1) - 1
        rest -= weight
    return place - weight


def next_jump(place: int, latest: int, links: Links) -> int:
    """The jump of an entry that is put behind `latest`, to stand at a place; 0 for a first one."""
    if place == 1:
        return 0
    if jump_target(place) == place - 1:
        return latest
    # By construction it jumps to where the jump of its predecessor jumps to.
    _, middle = links(latest)
    return links(middle)[1] if middle else 0


def find_latest_until(seq: int, until: int, links: Links) -> int:
    """The last entry of a chain, whose latest is `seq`, that is not behind `until`; 0 if there is none."""
    while seq > until:
        previous, jump = links(seq)
        seq = jump if jump > until else previous
    return seq

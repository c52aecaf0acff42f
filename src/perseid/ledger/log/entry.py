"""An entry of the ledger: who did what to which handle and when, and the whole record after it.

The stored form and the proved form differ. The *body* contains everything in clear. The *leaf*, whose hash is in the
Merkle tree, contains handle, action, time and number in clear, but only commitments to what may be private:

    commitment = SHA-256(kind ‖ salt ‖ content)

Each value, the actor and the note have a random salt of their own. So a proof reveals nothing about them to a reader
who does not know them already, and content can be redacted from the body while its commitment stays in the tree. An
unchanged value keeps its salt from entry to entry, so a proof also shows what did not change. A random nonce keeps the
leaves of entries without values from being guessed. docs/reference/ledger-format.md specifies both forms.

The entries of one record form a chain: each points to the previous one, and to one further back. The distance of that
jump follows from the entry's position in the chain: write the position as a sum of numbers 2^k - 1, largest first; the
last of them is the distance (1, 1+1, 3, 3+1, 3+1+1, 3+3, 7 …: the skew binary numbers). So two pointers per entry are
enough to find the latest entry at a given time in O(log n) steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from struct import Struct, error
from typing import Final, NamedTuple, Protocol, Self

from perseid.proof.verifier import commitment, leaf_hash
from perseid.records.binary import MAX_BYTES, Reader, Writer
from perseid.records.encoding import OpenEnum
from perseid.records.errors import InvalidData
from perseid.records.record import Value

from .record_keys import record_key

FORMAT: Final = 1
"""The version of both forms; their first byte."""

SALT_LENGTH: Final = 16
"""Bytes of a salt and of a nonce: too many to guess."""

COMMITMENT_LENGTH: Final = 32

MICROSECONDS_PER_SECOND: Final = 1_000_000
"""Entries are dated in microseconds, values in seconds."""

_OPEN, _REDACTED = 0, 1
_OPEN_SLOT = bytes((_OPEN,))
_CASE_SENSITIVE = 1
_BODY = Struct(">BBBBi")  # format, action, state, case, length of the handle
_LEAF = Struct(">BqqBBBi")  # format, seq, at, action, state, case, length of the handle
_LENGTH = Struct(">i")
_SLOT = Struct(f">B{SALT_LENGTH}si")  # form, salt, length of the content

Random = Callable[[int], bytes]

MAX_RANDOM_BLOCK: Final = 1 << 16
"""Random bytes requested at a time: a system call takes as long for a few as for many."""


def buffered_random(random: Random) -> Random:
    """Wrap a random source to request larger and larger blocks. Every byte is used once."""
    block, at, size = b"", 0, 0

    def take(byte_count: int) -> bytes:
        nonlocal block, at, size
        if at + byte_count > len(block):
            block, at = random(max(size, byte_count)), 0
            size = min(2 * len(block), MAX_RANDOM_BLOCK)
        at += byte_count
        return block[at - byte_count : at]

    return take


class Action(OpenEnum):
    """What was done."""

    CREATE = 1
    """A record was created."""
    UPDATE = 2
    """Its values changed."""
    DELETE = 3
    """The record was removed; the handle is not free for reuse."""
    HOME = 4
    """This server became responsible for a prefix; `record_keys.homed_name` makes the entry's handle."""
    UNHOME = 5
    """This server is no longer responsible for a prefix."""
    RESERVE = 6
    """A handle was reserved, without a record."""
    PUBLISH = 7
    UNPUBLISH = 8
    TOMBSTONE = 9
    """The identified object is gone; the record says so."""
    REDACT = 10
    """Data of earlier entries of the handle was redacted."""
    ROTATE_KEY = 11
    """Checkpoints are signed with another key from this entry on."""
    BRANCH = 12
    """The ledger was restored from a backup and continues under a new origin."""


class State(OpenEnum):
    """The state of a handle after an entry."""

    ABSENT = 0
    """No record: deleted, or an entry that is not about a record."""
    NORMAL = 1
    RESERVED = 2
    UNPUBLISHED = 3
    TOMBSTONE = 4

    @property
    def label(self) -> str:
        """Its name at all interfaces."""
        return "published" if self is State.NORMAL else self.name.lower()


PUBLIC_STATES: Final = (State.NORMAL, State.TOMBSTONE)
"""States in which the values of a record are public."""


class Kind(OpenEnum):
    """What a commitment is about; keeps one kind from passing for another."""

    VALUE = ord("V")
    ACTOR = ord("A")
    NOTE = ord("N")


@dataclass(frozen=True, slots=True)
class Slot:
    """Content under a commitment; only the commitment where the content was redacted."""

    kind: Kind
    kept: bytes = b""
    """The commitment of redacted content; otherwise it is computed when it is needed, which is in proofs only."""
    salt: bytes = field(default=b"", repr=False)
    """Empty if redacted: with the salt, a guess could be confirmed."""
    content: bytes | None = field(default=None, repr=False)
    """None if redacted."""

    @classmethod
    def commit(cls, kind: Kind, salt: bytes, content: bytes) -> Self:
        """Put content under a commitment."""
        return cls(kind, b"", salt, content)

    @property
    def commitment(self) -> bytes:
        """The commitment, which is hashed into the tree."""
        return self.kept if self.content is None else commitment(bytes((self.kind,)), self.salt, self.content)

    @property
    def is_redacted(self) -> bool:
        return self.content is None

    def redacted(self) -> Self:
        """Return the slot without content and salt."""
        return type(self)(self.kind, self.commitment)

    @classmethod
    def read(cls, reader: Reader, kind: Kind) -> Self:
        """Parse a slot of a body."""
        form = reader.u8()
        if form == _REDACTED:
            return cls(kind, reader.raw(COMMITMENT_LENGTH))
        if form != _OPEN:
            raise reader.problem(f"unknown slot form {form}")
        salt = reader.raw(SALT_LENGTH)
        return cls.commit(kind, salt, reader.bytes_(reader.remaining))  # earlier versions stored more than `MAX_BYTES`

    def write(self, writer: Writer) -> None:
        """Append the slot to a body."""
        if self.content is None:
            writer.u8(_REDACTED).raw(self.kept)
        else:
            writer.u8(_OPEN).raw(self.salt).i32(len(self.content)).raw(self.content)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. The ledger assigns `seq` and `at` while its head is locked."""

    seq: int
    """The entry's number, from 1, without gaps."""
    at: int
    """The commit time in microseconds since 1970; never before that of the previous entry."""
    action: Action
    state: State
    """The handle's state after the entry."""
    exact: bool
    """Whether the suffix is case-sensitive; otherwise ASCII case is ignored (H5)."""
    handle: str
    """The handle as spelled."""
    nonce: bytes = field(repr=False)
    """Random bytes that make the leaf unguessable."""
    actor: Slot
    """Interface and actor, separated by a space."""
    note: Slot
    """The reason or the source of the change."""
    values: tuple[Slot, ...]
    """The record after the change: encoded values by ascending index."""
    _record: tuple[Value, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_body(cls, seq: int, at: int, body: bytes) -> Self:
        """Parse the stored form."""
        reader = Reader(body)
        if (version := reader.u8()) != FORMAT:
            raise InvalidData(f"entry {seq} has format {version}; this program version supports format {FORMAT}", 0)
        action, state = Action(reader.u8()), State(reader.u8())
        if (case := reader.u8()) > _CASE_SENSITIVE:
            raise reader.problem(f"unknown case rule {case}")
        handle = reader.text()
        nonce = reader.raw(SALT_LENGTH)
        actor, note = Slot.read(reader, Kind.ACTOR), Slot.read(reader, Kind.NOTE)
        try:
            (actor.content or b"").decode("utf-8")
        except UnicodeDecodeError:
            raise reader.problem("the actor is not UTF-8") from None
        values = tuple([Slot.read(reader, Kind.VALUE) for _ in range(reader.count(1 + COMMITMENT_LENGTH - 12))])
        reader.finish()
        return cls(seq, at, action, state, case == _CASE_SENSITIVE, handle, nonce, actor, note, values)

    def body(self) -> bytes:
        """Encode the stored form."""
        writer = Writer().u8(FORMAT).u8(self.action).u8(self.state).u8(self.exact)
        writer.text(self.handle).raw(self.nonce)
        self.actor.write(writer)
        self.note.write(writer)
        writer.i32(len(self.values))
        for slot in self.values:
            slot.write(writer)
        return writer.getvalue()

    def leaf(self) -> bytes:
        """Encode what is hashed into the tree and shown in proofs."""
        writer = Writer().u8(FORMAT).i64(self.seq).i64(self.at).u8(self.action).u8(self.state).u8(self.exact)
        writer.text(self.handle).raw(self.nonce).raw(self.actor.commitment).raw(self.note.commitment)
        writer.i32(len(self.values))
        for slot in self.values:
            writer.raw(slot.commitment)
        return writer.getvalue()

    def leaf_hash(self) -> bytes:
        return leaf_hash(self.leaf())

    def record(self) -> tuple[Value, ...]:
        """Return the values after the entry, without redacted ones."""
        if self._record is None:
            now = self.at // MICROSECONDS_PER_SECOND
            record = tuple([Value.from_bytes(slot.content, now) for slot in self.values if slot.content is not None])
            object.__setattr__(self, "_record", record)
            return record
        return self._record

    def salts(self) -> dict[bytes, bytes]:
        """Return the salts of the values by content, for the next entry of the record."""
        return {slot.content: slot.salt for slot in self.values if slot.content is not None}

    def summary(self) -> "Summary":
        """Return what views need."""
        values = [slot.commitment if slot.content is None else slot.content for slot in self.values]
        interface = "" if self.origin is None else self.origin[0]
        return Summary(self.action, self.state, self.exact, self.handle, interface, values, self.contents())

    @property
    def key(self) -> bytes:
        """The record's key."""
        return record_key(self.handle, exact=self.exact)

    def contents(self) -> list[bytes]:
        """Return the encoded values, without redacted ones."""
        return [slot.content for slot in self.values if slot.content is not None]

    def slots(self) -> tuple[Slot, ...]:
        """Return everything under a commitment: actor, note and values."""
        return (self.actor, self.note, *self.values)

    def redacted(self, commitments: frozenset[bytes]) -> Self:
        """Return the entry without the content of the given commitments."""

        def without(slot: Slot) -> Slot:
            return slot.redacted() if slot.commitment in commitments else slot

        values = tuple(without(slot) for slot in self.values)
        return replace(self, actor=without(self.actor), note=without(self.note), values=values)

    @property
    def origin(self) -> tuple[str, str] | None:
        """Interface and actor; None if redacted."""
        if self.actor.content is None:
            return None
        interface, _, actor = self.actor.content.decode("utf-8").partition(" ")
        return interface, actor

    @property
    def why(self) -> str | None:
        """The note; None if redacted."""
        return None if self.note.content is None else self.note.content.decode("utf-8")


IMPORT: Final = "import"
"""The interface of records that come from other servers, with their dates."""


class LastUpdate(OpenEnum):
    """What an entry alone tells about when the values of its record last changed (A3)."""

    UNKNOWN = 0
    """Earlier entries tell."""
    HERE = 1
    """With this entry."""
    IMPORTED = 2
    """Never in this ledger: the values were imported, with their own dates."""


# Looking up a member is several times faster than creating it.
_ACTIONS = {member.value: member for member in Action}
_STATES = {member.value: member for member in State}


class Summary(NamedTuple):
    """What views need of an entry."""

    action: Action
    state: State
    exact: bool
    handle: str
    interface: str
    """Empty if redacted."""
    values: list[bytes]
    """The encoded values; the commitments of redacted ones."""
    contents: list[bytes]
    """The encoded values, without redacted ones."""

    def last_update(self, before: "Summary | None") -> LastUpdate:
        """When the values last changed, given the previous entry of the record."""
        is_new = before is None or before.state == State.ABSENT
        if is_new and self.action != Action.CREATE:
            return LastUpdate.UNKNOWN  # the record had another key before: its case rule has changed
        if self.interface == IMPORT:
            return LastUpdate.IMPORTED if before is None else LastUpdate.UNKNOWN
        return LastUpdate.HERE if before is None or before.values != self.values else LastUpdate.UNKNOWN


def decode_summary(seq: int, at: int, body: bytes) -> Summary:
    """Decode what views need of an entry.

    Skips the commitments, which are most of the cost of `Entry.from_body`. Invalid data is left to that function, which
    reports what is wrong.
    """
    try:
        version, action, state, case, length = _BODY.unpack_from(body)
        position = _BODY.size + length
        handle = body[_BODY.size : position].decode("utf-8")
        position += SALT_LENGTH
        values: list[bytes] = []
        contents: list[bytes] = []
        position, actor = _decode_slot(body, position)
        position, _ = _decode_slot(body, position)
        (count,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        for _ in range(count):
            position, content = _decode_slot(body, position)
            if content is None:
                values.append(body[position - COMMITMENT_LENGTH : position])
            else:
                values.append(content)
                contents.append(content)
        if version == FORMAT and case <= _CASE_SENSITIVE and length >= 0 and count >= 0 and position == len(body):
            interface = "" if actor is None else actor.decode("utf-8").partition(" ")[0]
            is_exact = case == _CASE_SENSITIVE
            known = _ACTIONS[action] if action in _ACTIONS else Action(action)
            after = _STATES[state] if state in _STATES else State(state)
            return Summary(known, after, is_exact, handle, interface, values, contents)
    except (IndexError, error, UnicodeDecodeError, _UnknownSlotForm):
        pass
    return Entry.from_body(seq, at, body).summary()


def decode_head(seq: int, at: int, body: bytes) -> tuple[Action, State, str]:
    """Decode the action, the state after it and the handle of an entry, without its values."""
    try:
        version, action, state, _, length = _BODY.unpack_from(body)
        if version == FORMAT and 0 <= length <= len(body) - _BODY.size:
            return _ACTIONS[action], _STATES[state], body[_BODY.size : _BODY.size + length].decode("utf-8")
    except (error, KeyError, UnicodeDecodeError):
        pass
    entry = Entry.from_body(seq, at, body)
    return entry.action, entry.state, entry.handle


class _UnknownSlotForm(Exception):
    """A slot of an unknown form."""


def _decode_slot(body: bytes, position: int) -> tuple[int, bytes | None]:
    """Return the end of a slot and its content; None if redacted."""
    form = body[position]
    if form == _REDACTED:
        return position + 1 + COMMITMENT_LENGTH, None
    _, _, length = _SLOT.unpack_from(body, position)
    if form != _OPEN or length < 0:
        raise _UnknownSlotForm
    start = position + _SLOT.size
    return start + length, body[start : start + length]


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry before the ledger assigns its number and date."""

    action: Action
    state: State
    """The handle's state after the entry."""
    handle: str
    """The handle as spelled."""
    interface: str
    """The interface: `native`, `http`, `cli` …; one word."""
    actor: str = field(repr=False)
    """The actor, such as `300:0.NA/12345` or `local:alice`."""
    note: str = field(default="", repr=False)
    """The reason or the source of the change."""
    values: tuple[Value, ...] = field(default=(), repr=False)
    """The record after the entry, by ascending index."""
    exact: bool = False
    """Whether the suffix is case-sensitive."""
    _contents: list[bytes] | None = field(default=None, init=False, repr=False, compare=False)
    search_keys: list[bytes] | None = field(default=None, repr=False, compare=False)
    """Those of the values in the search view, if the commit need not compute them."""

    @classmethod
    def of_contents(
        cls,
        kind: tuple[Action, State, bool],
        handle: str,
        interface: str,
        actor: str,
        note: str,
        contents: list[bytes],
        search_keys: list[bytes] | None = None,
    ) -> Self:
        """A draft of values that are encoded already; `kind` is action, state and case rule."""
        draft = cls(kind[0], kind[1], handle, interface, actor, note, (), kind[2], search_keys)
        object.__setattr__(draft, "_contents", contents)
        return draft

    @property
    def key(self) -> bytes:
        """The record's key."""
        return record_key(self.handle, exact=self.exact)

    @property
    def size(self) -> int:
        """The bytes of the values, of their data if they are not encoded yet."""
        if self._contents is not None:
            return sum(map(len, self._contents))
        return sum([len(value.data) for value in self.values])

    def contents(self) -> list[bytes]:
        """Encode the values."""
        return [value.to_bytes() for value in self.values] if self._contents is None else self._contents

    def with_note(self, note: str) -> Self:
        """The same draft with another note."""
        return type(self)(
            self.action, self.state, self.handle, self.interface, self.actor, note, self.values, self.exact
        )

    def with_handle(self, handle: str) -> Self:
        """The same draft for another handle; the values are encoded once for all."""
        contents = self.contents()
        draft = type(self)(
            self.action, self.state, handle, self.interface, self.actor, self.note, self.values, self.exact
        )
        object.__setattr__(self, "_contents", contents)
        object.__setattr__(draft, "_contents", contents)
        return draft

    def summary(self, contents: list[bytes]) -> Summary:
        """Return what views need, given the encoded values."""
        return Summary(self.action, self.state, self.exact, self.handle, self.interface, contents, contents)


def find_oversized(contents: Iterable[bytes]) -> list[bytes]:
    """Encoded values that are longer than the byte strings that other programs read."""
    return [content for content in contents if len(content) > MAX_BYTES]


def encode_entry(
    draft: Draft, contents: Sequence[bytes], seq: int, at: int, salts: Mapping[bytes, bytes], random: Random
) -> tuple[bytes, bytes]:
    """Encode the body and the leaf hash of a new entry.

    `contents` are the draft's encoded values; `salts` are those of the record's previous values by content, which
    unchanged
    values keep. Equal to `Entry.body` and `Entry.leaf_hash`, but in one pass: this is the main cost of appending.
    """
    return encode_fields(
        (draft.action, draft.state, draft.exact),
        (draft.handle.encode("utf-8"), f"{draft.interface} {draft.actor}".encode(), draft.note.encode()),
        contents,
        seq,
        at,
        salts,
        random((3 + len(contents)) * SALT_LENGTH),  # more than needed where values keep their salts
    )


def encode_fields(
    kind: tuple[int, int, bool],
    texts: tuple[bytes, bytes, bytes],
    contents: Sequence[bytes],
    seq: int,
    at: int,
    salts: Mapping[bytes, bytes],
    random_bytes: bytes,
) -> tuple[bytes, bytes]:
    """The same from the parts of a draft: `kind` is action, state and case rule; `texts` are handle, actor and note."""
    action, state, exact = kind
    name, actor, note = texts
    nonce, actor_salt, note_salt = random_bytes[:16], random_bytes[16:32], random_bytes[32:48]
    pack = _LENGTH.pack
    count = pack(len(contents))
    body = [
        _BODY.pack(FORMAT, action, state, exact, len(name)),
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
        b"\0",  # see `leaf_hash`
        _LEAF.pack(FORMAT, seq, at, action, state, exact, len(name)),
        name,
        nonce,
        sha256(b"A" + actor_salt + actor).digest(),
        sha256(b"N" + note_salt + note).digest(),
        count,
    ]
    start = 48
    for content in contents:
        salt = salts.get(content) if salts else None
        if salt is None:
            salt = random_bytes[start : start + 16]
            start += 16
        body += _OPEN_SLOT, salt, pack(len(content)), content
        leaf.append(sha256(b"V" + salt + content).digest())
    return b"".join(body), sha256(b"".join(leaf)).digest()


Links = Callable[[int], tuple[int, int]]
"""`links(seq)` → (previous, jump) of an entry."""


def jump_target(position: int) -> int:
    """Return the position in the chain, from 1, that the entry at a position jumps to; 0 is before the first."""
    rest, weight = position, 0
    while rest:
        weight = (1 << (rest + 1).bit_length() - 1) - 1
        rest -= weight
    return position - weight


def next_jump(position: int, latest: int, links: Links) -> int:
    """Return the jump of a new entry that follows `latest` at a position; 0 for the first entry."""
    if position == 1:
        return 0
    if jump_target(position) == position - 1:
        return latest
    # By construction it jumps to where the jump of its predecessor jumps to.
    _, middle = links(latest)
    return links(middle)[1] if middle else 0


def find_latest_until(seq: int, until: int, links: Links) -> int:
    """Return the last entry up to and including `until` of the chain that ends at `seq`; 0 if there is none."""
    while seq > until:
        previous, jump = links(seq)
        seq = jump if jump > until else previous
    return seq


@dataclass(slots=True)  # a frozen one takes three times as long to create, and there is one per entry
class Change:
    """An entry as views use it: the record after it."""

    seq: int
    """The entry's number."""
    at: int
    """Its time in microseconds since 1970."""
    leaf: bytes
    """The leaf hash, by which a view recognizes its ledger."""
    key: bytes
    """The record's key."""
    handle: str
    """The handle as spelled."""
    exact: bool
    """Whether the suffix is case-sensitive."""
    state: State
    """The handle's state after the entry."""
    contents: list[bytes] = field(repr=False)
    """The encoded values, by ascending index, without redacted ones."""
    last_update: LastUpdate = LastUpdate.UNKNOWN
    """What the entry tells about when the values last changed."""
    last_version: tuple[int, int] | None = None
    """Entry and time of the version that this entry deleted, zeros if that was not public; None if there was none under
    this key just before. Set by `Source.current` only."""


class Source(Protocol):
    """One consistent state of a ledger, from which a view is updated or rebuilt."""

    @property
    def ledger_id(self) -> bytes:
        """The ledger's id."""

    @property
    def size(self) -> int:
        """The number of the last entry."""

    def leaf(self, seq: int) -> bytes:
        """Return the leaf hash of an entry."""

    def changes(self, after: int, limit: int) -> list[Change]:
        """Return up to `limit` entries after `after`, in order."""

    def current(self) -> Iterator[Change]:
        """Yield the latest entry of every record, by ascending key."""

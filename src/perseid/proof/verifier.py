"""Check proofs of history, offline: a whole verifier in one module.

It imports nothing else of this package, so that it can be copied, audited and run anywhere with Python and the
library `cryptography`. Four things can be checked:

- a *checkpoint*: this log said, signed, that it had so many entries with that root;
- an *inclusion proof*: that entry is in the tree of that checkpoint;
- a *consistency proof*: a later checkpoint only added entries to an earlier one;
- an *opening*: this value, actor or note is the one that the entry committed to.

docs/reference/ledger-format.md specifies all of it. The tree is RFC 6962's (section 2.1): SHA-256, with a zero byte
before a leaf and a one byte before two nodes. Checkpoints are signed notes as transparency logs write them:

    <origin>                                  the log's name
    <size>                                    entries, in decimal
    <root>                                    base64
                                              (an empty line)
    — <key name> <base64 of key id ‖ signature>

The key id is the first four bytes of SHA-256(<key name> ‖ 0A ‖ 01 ‖ Ed25519 public key).
"""

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

HASH_LENGTH: Final = 32
"""Bytes of a hash."""

MAX_NOTE: Final = 16_384
"""Bytes of the longest note that is read: a checkpoint has about two hundred."""

MAX_PROOF: Final = 128
"""The most hashes in a proof: twice the height of a tree of 2⁶⁴ leaves, the greatest that a checkpoint can name."""

_ED25519 = b"\x01"
_LEAF = struct.Struct(">BqqBBBi")  # format, seq, at, action, state, case, length of the handle
_COUNT = struct.Struct(">i")
_SALT_LENGTH = 16
_SIGNATURE_MARK = "\u2014 "


class InvalidProof(ValueError):
    """A proof, a checkpoint or a signature does not hold; the message says what is wrong."""


# The tree


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of a leaf."""
    return hashlib.sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node."""
    return hashlib.sha256(b"\1" + left + right).digest()


EMPTY_ROOT: Final = hashlib.sha256().digest()
"""The root of a tree without leaves."""


def root_from_inclusion(index: int, size: int, leaf: bytes, path: list[bytes]) -> bytes:
    """The root that an inclusion proof leads to, for the leaf hash at an index (from 0) of a tree of a size."""
    if not 0 <= index < size:
        raise InvalidProof(f"there is no leaf {index} in a tree of {size}")
    _check_path(path)
    for is_left, sibling in zip(_path_sides(index, size - 1, len(path)), path, strict=True):
        leaf = node_hash(sibling, leaf) if is_left else node_hash(leaf, sibling)
    return leaf


def check_inclusion(index: int, size: int, root: bytes, leaf: bytes, path: list[bytes]) -> None:
    """Refuse a proof that does not show the leaf hash at that index of the tree with that root."""
    if not hmac.compare_digest(root_from_inclusion(index, size, leaf, path), root):
        raise InvalidProof("the inclusion proof leads to another root")


def check_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: list[bytes]) -> None:
    """Refuse a proof that does not show that the newer tree continues the older one."""
    _check_path(path)
    if not 0 <= old_size <= new_size:
        raise InvalidProof(f"a tree of {new_size} cannot continue one of {old_size}")
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        if path or not hmac.compare_digest(old_root, expected):
            raise InvalidProof("the trees do not agree")
        return
    # RFC 9162, section 2.1.4.2. Where the older tree is a complete subtree its root begins the proof unsaid.
    hashes = [old_root, *path] if old_size.bit_count() == 1 else path
    if not hashes:
        raise InvalidProof("the proof has too few hashes")
    older = newer = hashes[0]
    rest = hashes[1:]
    height = (old_size & -old_size).bit_length() - 1  # of the subtree that ends the older tree
    sides = _path_sides((old_size - 1) >> height, (new_size - 1) >> height, len(rest))
    for is_left, sibling in zip(sides, rest, strict=True):
        if is_left:
            older, newer = node_hash(sibling, older), node_hash(sibling, newer)
        else:
            newer = node_hash(newer, sibling)
    if not (hmac.compare_digest(older, old_root) and hmac.compare_digest(newer, new_root)):
        raise InvalidProof("the consistency proof leads to other roots")


def _path_sides(position: int, last: int, count: int) -> Iterator[bool]:
    """For each of `count` hashes of a path, whether it stands to the left of what was computed so far.

    `position` is where that stands in its row, and `last` the last place of the row. The path must end at the root.
    """
    for _ in range(count):
        if last == 0:
            raise InvalidProof("the proof has too many hashes")
        is_left = bool(position & 1) or position == last
        yield is_left
        while is_left and position and not position & 1:
            position, last = position >> 1, last >> 1
        position, last = position >> 1, last >> 1
    if last:
        raise InvalidProof("the proof has too few hashes")


def _check_path(path: list[bytes]) -> None:
    if len(path) > MAX_PROOF or any(len(each) != HASH_LENGTH for each in path):
        raise InvalidProof("a proof is a short list of 32-byte hashes")


# Entries


def commitment(kind: bytes, salt: bytes, content: bytes) -> bytes:
    """What a leaf holds of content that may be private; `kind` is V for a value, A for an actor, N for a note."""
    return hashlib.sha256(kind + salt + content).digest()


@dataclass(frozen=True, slots=True)
class Leaf:
    """What an entry shows of itself: the rest is committed to, and known to those who are told."""

    seq: int
    """The entry's number, from 1."""
    at: int
    """Microseconds since 1970."""
    action: int
    state: int
    exact: bool
    """Whether small and capital letters of the suffix are told apart."""
    handle: str
    """The name, as it is spelled."""
    actor: bytes
    """The commitment to who did it."""
    note: bytes
    """The commitment to why."""
    values: tuple[bytes, ...]
    """The commitments to the record's values, by ascending index."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Take a leaf apart."""
        try:
            version, seq, at, action, state, case, length = _LEAF.unpack_from(data)
            start = _LEAF.size + length
            handle = data[_LEAF.size : start].decode("utf-8")
            start += _SALT_LENGTH
            actor, note = data[start : start + HASH_LENGTH], data[start + HASH_LENGTH : start + 2 * HASH_LENGTH]
            (count,) = _COUNT.unpack_from(data, start + 2 * HASH_LENGTH)
        except (struct.error, UnicodeDecodeError):
            raise InvalidProof("the bytes are not a leaf of a ledger") from None
        first = start + 2 * HASH_LENGTH + _COUNT.size
        if version != 1 or case > 1 or length < 0 or count < 0 or first + count * HASH_LENGTH != len(data):
            raise InvalidProof("the bytes are not a leaf of a ledger, or of a format that is not known")
        values = tuple(data[at_ : at_ + HASH_LENGTH] for at_ in range(first, len(data), HASH_LENGTH))
        return cls(seq, at, action, state, case == 1, handle, actor, note, values)

    def check_value(self, salt: bytes, content: bytes) -> int:
        """Which of the record's values this is, counted from 0; refused if it is none of them."""
        try:
            return self.values.index(commitment(b"V", salt, content))
        except ValueError:
            raise InvalidProof(f"this is no value of entry {self.seq}") from None

    def check_actor(self, salt: bytes, content: bytes) -> None:
        """Refuse an actor that is not the one of the entry."""
        if not hmac.compare_digest(self.actor, commitment(b"A", salt, content)):
            raise InvalidProof(f"this is not the actor of entry {self.seq}")

    def check_note(self, salt: bytes, content: bytes) -> None:
        """Refuse a note that is not the one of the entry."""
        if not hmac.compare_digest(self.note, commitment(b"N", salt, content)):
            raise InvalidProof(f"this is not the note of entry {self.seq}")


# Checkpoints


@dataclass(frozen=True, slots=True)
class LogKey:
    """A public key that signs checkpoints, with its name; written `name+hash+key` as transparency tools do."""

    name: str
    """The key's name: that of the log."""
    public: bytes
    """The Ed25519 key, 32 bytes."""

    @property
    def id(self) -> bytes:
        """Four bytes by which a signature names its key."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take `name+hash+key`."""
        _encode_utf8(text)
        name, plus, rest = text.strip().partition("+")
        stated, _, encoded = rest.partition("+")
        data = _decode_base64(encoded)
        if not plus or data[:1] != _ED25519 or len(data) != 1 + HASH_LENGTH:
            raise InvalidProof("a checkpoint key is written NAME+HASH+KEY, an Ed25519 key in base64")
        key = cls(name, data[1:])
        if key.id.hex() != stated:
            raise InvalidProof("the checkpoint key does not have the hash that stands beside it")
        return key

    def check(self, signature: bytes, text: bytes) -> bool:
        """Whether this key signed that text."""
        # Hashes of this module are all that a resolver process needs of it.
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log said about itself at some time."""

    origin: str
    """The log's name."""
    size: int
    """How many entries it had."""
    root: bytes
    """The root of their tree."""
    extensions: tuple[str, ...] = ()
    """Further lines, which this version does not interpret."""

    def __post_init__(self) -> None:
        lines = (self.origin, *self.extensions)
        if self.size < 0 or len(self.root) != HASH_LENGTH or not all(lines) or any("\n" in line for line in lines):
            raise InvalidProof("a checkpoint has an origin, a size and a root, one line each")

    def text(self) -> str:
        """The lines that are signed."""
        root = base64.b64encode(self.root).decode()
        return "".join(f"{line}\n" for line in (self.origin, self.size, root, *self.extensions))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take the lines that were signed."""
        origin, size, root, *extensions = [*text.split("\n"), "", ""]
        while extensions and not extensions[-1]:
            extensions.pop()
        if not (size.isascii() and size.isdecimal()) or len(size) > 20 or (size[0] == "0" and size != "0"):
            raise InvalidProof("the second line of a checkpoint is the number of entries")
        checkpoint = cls(origin, int(size), _decode_base64(root), tuple(extensions))
        if checkpoint.text() != text:
            raise InvalidProof("the checkpoint is not written canonically")
        return checkpoint


def parse_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Take a signed note apart: its text, and (name, key id, signature) of each signature line."""
    if len(_encode_utf8(note)) > MAX_NOTE:
        raise InvalidProof(f"the note has more than {MAX_NOTE} bytes")
    text, mark, block = note.rpartition("\n\n")
    if not mark or not block.endswith("\n"):
        raise InvalidProof("a signed note is a text, an empty line, and lines with signatures")
    signatures = []
    for line in block.removesuffix("\n").split("\n"):
        name, _, encoded = line.removeprefix(_SIGNATURE_MARK).partition(" ")
        data = _decode_base64(encoded)
        if not line.startswith(_SIGNATURE_MARK) or not name or len(data) <= 4:
            raise InvalidProof("a signature line is a dash, the key's name, and base64")
        signatures.append((name, data[:4], data[4:]))
    return text + "\n", signatures


def format_note(text: str, signatures: list[tuple[str, bytes, bytes]]) -> str:
    """Put a signed note together."""
    lines = (f"{_SIGNATURE_MARK}{n} {base64.b64encode(key_id + s).decode()}\n" for n, key_id, s in signatures)
    return f"{text}\n{''.join(lines)}"


def open_checkpoint(note: str, key: LogKey) -> Checkpoint:
    """The checkpoint in a note, if that key signed it."""
    text, signatures = parse_note(note)
    for name, key_id, signature in signatures:
        if name == key.name and key_id == key.id:
            if not key.check(signature, text.encode()):
                raise InvalidProof(f"the signature of {name} does not verify")
            return Checkpoint.parse(text)
    raise InvalidProof(f"the checkpoint is not signed by {key.name}")


# One key after another


ROTATION_LINE: Final = "perseid checkpoint key rotation"
"""The first line of a note with which a key hands over to the next one."""

_BRANCH_LINE = "perseid ledger branch"


def parse_key_rotation(note: str) -> tuple[LogKey, LogKey]:
    """The old key and the new one, as the old one signed it."""
    text, signatures = parse_note(note)
    lines = text.split("\n")
    if len(lines) != 4 or lines[0] != ROTATION_LINE:
        raise InvalidProof("the note does not hand over to another key")
    old, new = LogKey.parse(lines[1]), LogKey.parse(lines[2])
    for name, key_id, signature in signatures:
        if name == old.name and key_id == old.id and old.check(signature, text.encode()):
            return old, new
    raise InvalidProof(f"the hand-over is not signed by {old}")


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a restored ledger comes from. Its note has the lines of docs/reference/backup-format.md."""

    predecessor: Checkpoint
    """The old origin, how many of its entries were taken over, and the root of their tree. Nobody signed this."""
    old: LogKey
    """The key with which the old ledger signed when the backup was made."""
    new: LogKey
    """The key that signs from here on; its name is the new origin."""

    def note(self) -> str:
        """The note of the entry that says so."""
        return f"{_BRANCH_LINE}\n{self.predecessor.text()}{self.old}\n{self.new}\n"

    @classmethod
    def parse(cls, note: str) -> Self:
        """Take it from the note of an entry."""
        first, origin, size, root, old, new, *rest = [*note.split("\n"), *[""] * 6]
        if first != _BRANCH_LINE or any(rest):
            raise InvalidProof("the note does not say which ledger this one continues")
        return cls(Checkpoint.parse(f"{origin}\n{size}\n{root}\n"), LogKey.parse(old), LogKey.parse(new))


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidProof("the text has no UTF-8 form") from None


def _decode_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidProof("not base64") from None
    if base64.b64encode(data).decode("ascii") != text:
        raise InvalidProof("base64 with stray bits: there is one way to write bytes")
    return data

"""Offline verifier of ledger proofs in one module.

It imports nothing else from Perseid, so that it can be copied, audited and run anywhere with Python and the library
`cryptography`. It verifies:

- a *checkpoint*: a signed statement of the number of entries of a log and the root of their tree;
- an *inclusion proof*: an entry is in the tree of a checkpoint;
- a *consistency proof*: a later checkpoint only added entries to an earlier one;
- an *opening*: an entry committed to a value, actor or note.

See docs/reference/ledger-format.md. The tree is that of RFC 6962 §2.1: SHA-256, with a zero byte before a leaf and a
one byte before two nodes. Checkpoints are signed notes of transparency logs:

    <origin>                                  the name of the log
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
"""Size of a hash in bytes."""

MAX_NOTE: Final = 16_384
"""Maximum size of a note in bytes: a checkpoint has about two hundred."""

MAX_PROOF: Final = 128
"""Maximum number of hashes in a proof: twice the height of a tree of 2⁶⁴ leaves."""

_ED25519 = b"\x01"
_LEAF = struct.Struct(">BqqBBBi")  # format, seq, at, action, state, case, length of the handle
_COUNT = struct.Struct(">i")
_SALT_LENGTH = 16
_SIGNATURE_MARK = "\u2014 "


class InvalidProof(ValueError):
    """A proof, checkpoint or signature is invalid."""


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
    """Compute the root from an inclusion proof for a leaf hash at an index (from 0) of a tree."""
    if not 0 <= index < size:
        raise InvalidProof(f"a tree with {size} leaves has no leaf {index}")
    _check_path(path)
    for is_left, sibling in zip(_path_sides(index, size - 1, len(path)), path, strict=True):
        leaf = node_hash(sibling, leaf) if is_left else node_hash(leaf, sibling)
    return leaf


def check_inclusion(index: int, size: int, root: bytes, leaf: bytes, path: list[bytes]) -> None:
    """Verify that a leaf hash is at an index of the tree with a root."""
    if not hmac.compare_digest(root_from_inclusion(index, size, leaf, path), root):
        raise InvalidProof("the inclusion proof does not match the root")


def check_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: list[bytes]) -> None:
    """Verify that the newer tree continues the older one."""
    _check_path(path)
    if not 0 <= old_size <= new_size:
        raise InvalidProof(f"a tree with {new_size} leaves cannot continue one with {old_size}")
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        if path or not hmac.compare_digest(old_root, expected):
            raise InvalidProof("the roots do not match")
        return
    # RFC 9162 §2.1.4.2. If the older tree is a complete subtree, the proof omits its root.
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
        raise InvalidProof("the consistency proof does not match the roots")


def _path_sides(position: int, last: int, count: int) -> Iterator[bool]:
    """For each of `count` hashes of a path, whether it is to the left of the node computed so far.

    `position` is that of the node in its row, `last` the last position of the row. The path must end at the root.
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
        raise InvalidProof(f"a proof must be at most {MAX_PROOF} hashes of {HASH_LENGTH} bytes")


# Entries


def commitment(kind: bytes, salt: bytes, content: bytes) -> bytes:
    """Commitment to content that may be private; `kind` is V for a value, A for an actor, N for a note."""
    return hashlib.sha256(kind + salt + content).digest()


@dataclass(frozen=True, slots=True)
class Leaf:
    """The public part of an entry, with commitments to the rest."""

    seq: int
    """Number of the entry, from 1."""
    at: int
    """Microseconds since 1970."""
    action: int
    state: int
    exact: bool
    """Whether the suffix is case-sensitive."""
    handle: str
    """The handle, as spelled."""
    actor: bytes
    """Commitment to the actor."""
    note: bytes
    """Commitment to the note."""
    values: tuple[bytes, ...]
    """Commitments to the values, by ascending index."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse a leaf."""
        try:
            version, seq, at, action, state, case, length = _LEAF.unpack_from(data)
            start = _LEAF.size + length
            handle = data[_LEAF.size : start].decode("utf-8")
            start += _SALT_LENGTH
            actor, note = data[start : start + HASH_LENGTH], data[start + HASH_LENGTH : start + 2 * HASH_LENGTH]
            (count,) = _COUNT.unpack_from(data, start + 2 * HASH_LENGTH)
        except (struct.error, UnicodeDecodeError):
            raise InvalidProof("this is not a leaf of a ledger") from None
        first = start + 2 * HASH_LENGTH + _COUNT.size
        if version != 1 or case > 1 or length < 0 or count < 0 or first + count * HASH_LENGTH != len(data):
            raise InvalidProof("this is not a leaf of a ledger, or its format is unknown")
        values = tuple(data[at_ : at_ + HASH_LENGTH] for at_ in range(first, len(data), HASH_LENGTH))
        return cls(seq, at, action, state, case == 1, handle, actor, note, values)

    def check_value(self, salt: bytes, content: bytes) -> int:
        """Position of a value in the record, from 0; raises `InvalidProof` if it is not part of the entry."""
        try:
            return self.values.index(commitment(b"V", salt, content))
        except ValueError:
            raise InvalidProof(f"the value is not part of entry {self.seq}") from None

    def check_actor(self, salt: bytes, content: bytes) -> None:
        """Verify the actor of the entry."""
        if not hmac.compare_digest(self.actor, commitment(b"A", salt, content)):
            raise InvalidProof(f"the actor is not that of entry {self.seq}")

    def check_note(self, salt: bytes, content: bytes) -> None:
        """Verify the note of the entry."""
        if not hmac.compare_digest(self.note, commitment(b"N", salt, content)):
            raise InvalidProof(f"the note is not that of entry {self.seq}")


# Checkpoints


@dataclass(frozen=True, slots=True)
class LogKey:
    """A public key that signs checkpoints, with its name; written `name+hash+key` as in transparency tools."""

    name: str
    """The name of the key, which is that of the log."""
    public: bytes
    """The Ed25519 key, 32 bytes."""

    @property
    def id(self) -> bytes:
        """The four-byte key id in signatures."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `name+hash+key`."""
        _encode_utf8(text)
        name, plus, rest = text.strip().partition("+")
        stated, _, encoded = rest.partition("+")
        data = _decode_base64(encoded)
        if not plus or data[:1] != _ED25519 or len(data) != 1 + HASH_LENGTH:
            raise InvalidProof("a checkpoint key must have the form NAME+HASH+KEY, with an Ed25519 key in base64")
        key = cls(name, data[1:])
        if key.id.hex() != stated:
            raise InvalidProof("the checkpoint key does not match its hash")
        return key

    def check(self, signature: bytes, text: bytes) -> bool:
        """Whether this key signed that text."""
        # Imported here because most users of this module need only its hashes.
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size and root of a log at some time."""

    origin: str
    """The name of the log."""
    size: int
    """Number of entries."""
    root: bytes
    """The root of their tree."""
    extensions: tuple[str, ...] = ()
    """Further lines, which this version does not interpret."""

    def __post_init__(self) -> None:
        lines = (self.origin, *self.extensions)
        if self.size < 0 or len(self.root) != HASH_LENGTH or not all(lines) or any("\n" in line for line in lines):
            raise InvalidProof("a checkpoint must have an origin, a size and a root, one line each")

    def text(self) -> str:
        """The lines that are signed."""
        root = base64.b64encode(self.root).decode()
        return "".join(f"{line}\n" for line in (self.origin, self.size, root, *self.extensions))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the lines that were signed."""
        origin, size, root, *extensions = [*text.split("\n"), "", ""]
        while extensions and not extensions[-1]:
            extensions.pop()
        if not (size.isascii() and size.isdecimal()) or len(size) > 20 or (size[0] == "0" and size != "0"):
            raise InvalidProof("the second line of a checkpoint must be the number of entries")
        checkpoint = cls(origin, int(size), _decode_base64(root), tuple(extensions))
        if checkpoint.text() != text:
            raise InvalidProof("the checkpoint is not in canonical form")
        return checkpoint


def parse_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Parse a signed note: its text, and (name, key id, signature) of each signature line."""
    if len(_encode_utf8(note)) > MAX_NOTE:
        raise InvalidProof(f"the note has more than {MAX_NOTE} bytes")
    text, mark, block = note.rpartition("\n\n")
    if not mark or not block.endswith("\n"):
        raise InvalidProof("a signed note must be a text, an empty line, and signature lines")
    signatures = []
    for line in block.removesuffix("\n").split("\n"):
        name, _, encoded = line.removeprefix(_SIGNATURE_MARK).partition(" ")
        data = _decode_base64(encoded)
        if not line.startswith(_SIGNATURE_MARK) or not name or len(data) <= 4:
            raise InvalidProof("a signature line must be a dash, the key's name, and base64")
        signatures.append((name, data[:4], data[4:]))
    return text + "\n", signatures


def format_note(text: str, signatures: list[tuple[str, bytes, bytes]]) -> str:
    """Format a signed note."""
    lines = (f"{_SIGNATURE_MARK}{n} {base64.b64encode(key_id + s).decode()}\n" for n, key_id, s in signatures)
    return f"{text}\n{''.join(lines)}"


def open_checkpoint(note: str, key: LogKey) -> Checkpoint:
    """Verify the signature of a note and parse its checkpoint."""
    text, signatures = parse_note(note)
    for name, key_id, signature in signatures:
        if name == key.name and key_id == key.id:
            if not key.check(signature, text.encode()):
                raise InvalidProof(f"the signature of {name} is invalid")
            return Checkpoint.parse(text)
    raise InvalidProof(f"the checkpoint is not signed by {key.name}")


# Key rotation


ROTATION_LINE: Final = "perseid checkpoint key rotation"
"""The first line of the note of a key rotation."""

_BRANCH_LINE = "perseid ledger branch"


def parse_key_rotation(note: str) -> tuple[LogKey, LogKey]:
    """The old and the new key, from a note signed with the old one."""
    text, signatures = parse_note(note)
    lines = text.split("\n")
    if len(lines) != 4 or lines[0] != ROTATION_LINE:
        raise InvalidProof("the note is not a key rotation")
    old, new = LogKey.parse(lines[1]), LogKey.parse(lines[2])
    for name, key_id, signature in signatures:
        if name == old.name and key_id == old.id and old.check(signature, text.encode()):
            return old, new
    raise InvalidProof(f"the key rotation is not signed by {old}")


@dataclass(frozen=True, slots=True)
class Branch:
    """The origin of a restored ledger. For its note see docs/reference/backup-format.md."""

    predecessor: Checkpoint
    """The old origin, the number of its entries that were restored, and the root of their tree; not signed."""
    old: LogKey
    """The key of the old ledger at the time of the backup."""
    new: LogKey
    """The key of the new ledger; its name is the new origin."""

    def note(self) -> str:
        """Format the note of the branch entry."""
        return f"{_BRANCH_LINE}\n{self.predecessor.text()}{self.old}\n{self.new}\n"

    @classmethod
    def parse(cls, note: str) -> Self:
        """Parse the note of a branch entry."""
        first, origin, size, root, old, new, *rest = [*note.split("\n"), *[""] * 6]
        if first != _BRANCH_LINE or any(rest):
            raise InvalidProof("the note is not a branch note")
        return cls(Checkpoint.parse(f"{origin}\n{size}\n{root}\n"), LogKey.parse(old), LogKey.parse(new))


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidProof("the text cannot be encoded in UTF-8") from None


def _decode_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidProof("not base64") from None
    if base64.b64encode(data).decode("ascii") != text:
        raise InvalidProof("not canonical base64")
    return data

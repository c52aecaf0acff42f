"""A Merkle tree (RFC 6962): appending, proofs, and the key that signs checkpoints.

The tree of n leaves is a row of complete subtrees, one for each bit of n, largest first. The *frontier* is the list of
their roots: at most 64 hashes, and enough to append and to compute the root.

Proofs need inner nodes. Leaf hashes are stored in the log; above them only the roots of complete runs of 256, 256² …
leaves are stored. Every other node is computed from at most 256 hashes below it, so a proof costs a few hundred hashes
at any size.

The signing key is an Ed25519 key in a file of its own. A ROTATE_KEY entry replaces it: its note holds the new key,
signed with the old one, so a verifier that trusts the first key can follow the chain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from perseid.proof.verifier import (
    EMPTY_ROOT,
    HASH_LENGTH,
    ROTATION_LINE,
    Checkpoint,
    LogKey,
    format_note,
    node_hash,
)

from .errors import CorruptData

TILE_BITS: Final = 8
"""A tile has 2⁸ hashes."""

ReadHashes = Callable[[int, int, int], Sequence[bytes]]
"""`read(level, first, count)` → the hashes at a tile level: 0 are leaves, 1 roots of 256 leaves, and so on."""


class Frontier:
    """The roots of the complete subtrees, largest first: all that appending needs."""

    __slots__ = ("_hashes", "size")

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        if size.bit_count() != len(hashes):
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} complete subtrees, not {len(hashes)}")
        self.size = size
        self._hashes = list(hashes)

    @classmethod
    def from_bytes(cls, size: int, raw: bytes) -> Self:
        """Parse the stored form."""
        return cls(size, [raw[start : start + HASH_LENGTH] for start in range(0, len(raw), HASH_LENGTH)])

    def to_bytes(self) -> bytes:
        """Encode the stored form: the concatenated hashes."""
        return b"".join(self._hashes)

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The roots of the complete subtrees."""
        return tuple(self._hashes)

    def append(self, *leaves: bytes) -> list[tuple[int, int, bytes]]:
        """Add leaf hashes; return the tile nodes that they complete as (tile level, position, hash)."""
        complete = []
        hashes = self._hashes
        for size, leaf in enumerate(leaves, self.size + 1):
            node, height = leaf, 0
            while not size >> height & 1:
                node = node_hash(hashes.pop(), node)
                height += 1
                if height % TILE_BITS == 0:
                    complete.append((height // TILE_BITS, (size >> height) - 1, node))
            hashes.append(node)
        self.size += len(leaves)
        return complete

    def root(self) -> bytes:
        """The root of the whole tree."""
        if not self._hashes:
            return EMPTY_ROOT
        *others, root = self._hashes
        for left in reversed(others):
            root = node_hash(left, root)
        return root


def subtree_root(read: ReadHashes, first: int, end: int) -> bytes:
    """Compute the hash over the leaves from `first` up to, not including, `end`, split as in RFC 6962."""
    parts = [_complete_root(read, start, height) for start, height in _complete_parts(first, end)]
    root = parts.pop()
    while parts:
        root = node_hash(parts.pop(), root)
    return root


def inclusion_path(read: ReadHashes, index: int, size: int) -> list[bytes]:
    """Prove that the leaf at an index (from 0) is in the tree of a size (RFC 6962 §2.1.1)."""
    path: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        split = first + _largest_power_below(end - first)
        if index < split:
            path.append(subtree_root(read, split, end))
            end = split
        else:
            path.append(subtree_root(read, first, split))
            first = split
    return path[::-1]


def consistency_path(read: ReadHashes, old: int, new: int) -> list[bytes]:
    """Prove that the tree of size `new` extends the one of size `old` (RFC 6962 §2.1.2)."""
    if old in (0, new):
        return []
    path: list[bytes] = []
    first, end, whole = 0, new, True
    while old != end - first:
        split = _largest_power_below(end - first)
        if old <= split:
            path.append(subtree_root(read, first + split, end))
            end = first + split
        else:
            path.append(subtree_root(read, first, first + split))
            first, old, whole = first + split, old - split, False
    if not whole:
        path.append(subtree_root(read, first, end))
    return path[::-1]


def _complete_root(read: ReadHashes, start: int, height: int) -> bytes:
    """Compute the root of the complete subtree of 2^height leaves that begins at `start`."""
    level, rest = divmod(height, TILE_BITS)
    hashes = list(read(level, start >> (level * TILE_BITS), 1 << rest))
    if len(hashes) != 1 << rest:
        raise CorruptData(f"tree hashes over entry {start + 1} are missing. Run: perseid verify --all")
    while len(hashes) > 1:
        hashes = [node_hash(hashes[i], hashes[i + 1]) for i in range(0, len(hashes), 2)]
    return hashes[0]


def _complete_parts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the complete subtrees (start, height) of the leaves from `first` to `end`, left to right."""
    while first < end:
        height = (end - first).bit_length() - 1
        yield first, height
        first += 1 << height


def _largest_power_below(size: int) -> int:
    """The largest power of two below a size of at least 2."""
    return 1 << (size - 1).bit_length() - 1


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key that signs checkpoints."""

    name: str
    """The key's name, which is the log's origin."""
    _seed: bytes = field(repr=False)

    @classmethod
    def generate(cls, name: str, seed: bytes) -> Self:
        """Create a key from 32 random bytes."""
        if len(seed) != 32:
            raise ValueError("an Ed25519 key needs a seed of 32 bytes")
        return cls(name, seed)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse a key file: the seed in hexadecimal, a space, the name."""
        seed, _, name = raw.decode("utf-8").strip().partition(" ")
        return cls.generate(name, bytes.fromhex(seed))

    def to_bytes(self) -> bytes:
        """Encode the content of the key file."""
        return f"{self._seed.hex()} {self.name}\n".encode()

    @property
    def public(self) -> LogKey:
        """The public key."""
        public = self._private().public_key()
        return LogKey(self.name, public.public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, checkpoint: Checkpoint) -> str:
        """Sign a checkpoint as a note."""
        return self._note(checkpoint.text())

    def hand_over(self, successor: LogKey) -> str:
        """Sign the note that names the next key."""
        return self._note(f"{ROTATION_LINE}\n{self.public}\n{successor}\n")

    def _note(self, text: str) -> str:
        key = self.public
        return format_note(text, [(key.name, key.id, self._private().sign(text.encode()))])

    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._seed)

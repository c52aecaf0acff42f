"""The Merkle tree: roots and proofs as in RFC 6962, and nothing else verifies."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.merkle import TILE_BITS, Frontier, consistency_path, inclusion_path
from perseid.proof.verifier import (
    EMPTY_ROOT,
    InvalidProof,
    check_consistency,
    check_inclusion,
    leaf_hash,
    node_hash,
    root_from_inclusion,
)

TILE_SIZE = 1 << TILE_BITS

# The leaves and roots that certificate-transparency implementations have published for their own tests.
PUBLISHED_LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
PUBLISHED_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def defined_root(leaves: list[bytes]) -> bytes:
    """The definition of RFC 6962 §2.1, word for word."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(defined_root(leaves[:split]), defined_root(leaves[split:]))


class Grown:
    """A tree with everything that a log stores of it."""

    def __init__(self, size: int) -> None:
        self.leaves = [leaf_hash(number.to_bytes(4, "big")) for number in range(size)]
        self.nodes: dict[tuple[int, int], bytes] = {}
        self.roots = [EMPTY_ROOT]
        self.read_hashes = 0
        frontier = Frontier()
        for leaf in self.leaves:
            for level, position, node in frontier.append(leaf):
                self.nodes[level, position] = node
            self.roots.append(frontier.root())
        self.frontier = frontier

    def read(self, level: int, first: int, count: int) -> list[bytes]:
        self.read_hashes += count
        if level == 0:
            return self.leaves[first : first + count]
        return [self.nodes[level, position] for position in range(first, first + count)]


@pytest.fixture(scope="module")
def grown() -> Grown:
    return Grown(3 * TILE_SIZE + 77)


def test_published_roots_are_reproduced() -> None:
    frontier = Frontier()
    for leaf, root in zip(PUBLISHED_LEAVES, PUBLISHED_ROOTS, strict=True):
        frontier.append(leaf_hash(bytes.fromhex(leaf)))
        assert frontier.root().hex() == root


def test_the_frontier_gives_the_defined_root_at_every_size(grown: Grown) -> None:
    for size in [*range(70), TILE_SIZE - 1, TILE_SIZE, TILE_SIZE + 1, 2 * TILE_SIZE, 3 * TILE_SIZE + 77]:
        assert grown.roots[size] == defined_root(grown.leaves[:size])


def test_frontier_continues_from_its_stored_form(grown: Grown) -> None:
    again = Frontier(grown.frontier.size, grown.frontier.hashes)
    assert again.root() == grown.roots[-1]
    with pytest.raises(ValueError, match="complete subtrees"):
        Frontier(3, [grown.leaves[0]])


def test_one_node_per_complete_tile_is_stored(grown: Grown) -> None:
    assert sorted(grown.nodes) == [(1, 0), (1, 1), (1, 2)]
    assert grown.nodes[1, 1] == defined_root(grown.leaves[TILE_SIZE : 2 * TILE_SIZE])


@given(st.data())
def test_every_leaf_is_proved_in_every_tree_that_contains_it(grown: Grown, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(grown.leaves)))
    index = data.draw(st.integers(0, size - 1))
    path = inclusion_path(grown.read, index, size)
    check_inclusion(index, size, grown.roots[size], grown.leaves[index], path)


@given(st.data())
def test_every_tree_is_proved_to_continue_every_earlier_one(grown: Grown, data: st.DataObject) -> None:
    new = data.draw(st.integers(0, len(grown.leaves)))
    old = data.draw(st.integers(0, new))
    path = consistency_path(grown.read, old, new)
    check_consistency(old, grown.roots[old], new, grown.roots[new], path)


@given(st.data())
def test_inclusion_proof_is_valid_for_nothing_else(grown: Grown, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, len(grown.leaves)))
    index = data.draw(st.integers(0, size - 1))
    path = inclusion_path(grown.read, index, size)
    other = data.draw(st.integers(0, size - 1).filter(lambda number: number != index))
    with pytest.raises(InvalidProof):
        check_inclusion(index, size, grown.roots[size], grown.leaves[other], path)
    with pytest.raises(InvalidProof):
        check_inclusion(index, size, grown.roots[size - 1], grown.leaves[index], path)
    changed = [*path]
    changed[data.draw(st.integers(0, len(path) - 1))] = bytes(32)
    with pytest.raises(InvalidProof):
        check_inclusion(index, size, grown.roots[size], grown.leaves[index], changed)
    for wrong in (path[:-1], [*path, bytes(32)]):
        with pytest.raises(InvalidProof):
            check_inclusion(index, size, grown.roots[size], grown.leaves[index], wrong)


@given(st.data())
def test_a_history_that_was_changed_is_not_consistent(grown: Grown, data: st.DataObject) -> None:
    new = data.draw(st.integers(2, len(grown.leaves)))
    old = data.draw(st.integers(1, new - 1))
    path = consistency_path(grown.read, old, new)
    frontier = Frontier()
    changed = data.draw(st.integers(0, old - 1))
    for number, leaf in enumerate(grown.leaves[:old]):
        frontier.append(bytes(32) if number == changed else leaf)
    with pytest.raises(InvalidProof):
        check_consistency(old, frontier.root(), new, grown.roots[new], path)
    for wrong in (path[:-1], [*path, bytes(32)]):
        with pytest.raises(InvalidProof):
            check_consistency(old, grown.roots[old], new, grown.roots[new], wrong)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (-1, 1)])
def test_a_tree_cannot_continue_a_larger_one(old: int, new: int) -> None:
    with pytest.raises(InvalidProof):
        check_consistency(old, bytes(32), new, bytes(32), [])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (-1, 1)])
def test_missing_leaf_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(InvalidProof):
        root_from_inclusion(index, size, bytes(32), [])


def test_proof_length_is_limited() -> None:
    with pytest.raises(InvalidProof):
        root_from_inclusion(0, 1 << 200, bytes(32), [bytes(32)] * 200)
    with pytest.raises(InvalidProof):
        root_from_inclusion(0, 2, bytes(32), [b"short"])


def test_a_proof_reads_a_few_hundred_hashes_only(grown: Grown) -> None:
    grown.read_hashes = 0
    inclusion_path(grown.read, 300, len(grown.leaves))
    print("hashes read for one proof:", grown.read_hashes)
    assert grown.read_hashes <= 4 * TILE_SIZE

"""Budgets of many clients in a fixed number of words, which all processes share.

A bucket is the time at which it is full again, as in `udp`. Each has two words, chosen by a hash with a secret; its
time is the earlier one of both, so that another client that shares one of them does no harm. A client that shares both,
one in thousands while ten thousand clients use up their budgets, has less. Nothing is evicted and nothing needs
cleaning up: a time in the past is a full bucket.

Words are read and written without locks. When two processes change one at the same time, one charge may be lost.
"""

import hashlib
from array import array
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from perseid.server.state.state import SharedState

SLOTS: Final = 1 << 20
"""Words for all budgets together: 8 MiB."""

MAX_BUDGETS: Final = 32
"""Budgets, each with a number of its own; they have words for their totals."""

_PRIVATE_SLOTS = 1 << 12
_WORD_BYTES = 8
_TOTALS = 2  # words of each budget: the total, and that of unknown clients
_SECOND_SHIFT = 32
_SECRET_BYTES = 7  # what the hash of an integer keeps
_HASH_MASK = (1 << 64) - 1


class Buckets:
    """Buckets of several budgets. Times in one object are of one clock."""

    __slots__ = ("_mask", "_secret", "words")

    def __init__(self, words: "memoryview[float]", secret: bytes) -> None:
        """`words` has a power of two of them, and those for the totals."""
        self.words = words
        self._mask = len(words) - _TOTALS * MAX_BUDGETS - 1
        self._secret = int.from_bytes(secret[:_SECRET_BYTES], "big")

    @classmethod
    def shared(cls, state: "SharedState", name: str, slots: int = SLOTS) -> Self:
        """Return buckets that all processes with that state share."""
        words = state.memory(name, (slots + _TOTALS * MAX_BUDGETS) * _WORD_BYTES).cast("d")
        return cls(words, hashlib.blake2b(name.encode(), digest_size=16, key=state.key).digest())

    @classmethod
    def private(cls, slots: int = _PRIVATE_SLOTS) -> Self:
        """Return buckets of this process alone."""
        return cls(memoryview(array("d", bytes((slots + _TOTALS * MAX_BUDGETS) * _WORD_BYTES))), b"")

    def totals(self, number: int) -> tuple[int, int]:
        """Return the words of a budget's totals: of all, and of unknown clients."""
        if not 0 <= number < MAX_BUDGETS:
            raise ValueError(f"budget {number} has no words")
        return self._mask + 1 + _TOTALS * number, self._mask + 2 + _TOTALS * number

    def slots(self, number: int, client: int) -> tuple[int, int]:
        """Return the words of a client in a budget."""
        mixed = hash((self._secret, number, client)) & _HASH_MASK  # hashes of integers are the same in every process
        return mixed & self._mask, (mixed >> _SECOND_SHIFT) & self._mask

    def due(self, slots: tuple[int, int]) -> float:
        """Return when the bucket is full again."""
        first, second = self.words[slots[0]], self.words[slots[1]]
        return first if first < second else second  # noqa: FURB136 - min() takes twice as long

    def change(self, slots: tuple[int, int], old: float, new: float) -> None:
        """Change the time of a bucket from `old` to `new`; words that are later belong to others."""
        later, words = max(old, new), self.words
        for slot in slots:
            if words[slot] <= later:
                words[slot] = new

"""Enumerations that survive what they have never heard of.

A newer peer may send a code that this version does not know. It must come out as it came in: unknown values
become members without a name of their own, equal to their number.
"""

from enum import IntEnum
from typing import Self


class OpenEnum(IntEnum):
    """An IntEnum in which every 32-bit number has a place."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not -0x8000_0000 <= value <= 0xFFFF_FFFF:
            return None
        # Not kept anywhere: a peer that counts through all codes must not fill the memory.
        member = int.__new__(cls, value)
        member._name_ = f"{cls.__name__}_{value}"
        member._value_ = value
        return member

    def __str__(self) -> str:
        return self.name

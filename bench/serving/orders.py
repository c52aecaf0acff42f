"""Orders for benchmark processes, passed on the command line."""

import json
from dataclasses import asdict
from typing import Any, Self


class Order:
    """Base of dataclasses that have an `address`: host and port."""

    __slots__ = ()

    def to_json(self) -> str:
        """Encode as a command line argument."""
        plain: Any = self  # a dataclass
        return json.dumps(asdict(plain))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode it."""
        plain = json.loads(text)
        return cls(**plain | {"address": tuple(plain["address"])})

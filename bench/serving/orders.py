"""How a process of the bench is told what to do: on its command line."""

import json
from dataclasses import asdict
from typing import Any, Self


class Order:
    """What a process shall do: the base of dataclasses that have an `address`, a host and a port."""

    __slots__ = ()

    def to_json(self) -> str:
        """As an argument of the command line."""
        plain: Any = self  # which is a dataclass
        return json.dumps(asdict(plain))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it from there."""
        plain = json.loads(text)
        return cls(**plain | {"address": tuple(plain["address"])})

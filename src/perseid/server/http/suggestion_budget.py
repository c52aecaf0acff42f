"""How often names are suggested to somebody who asked for one that is not there.

Each time costs up to a thousand look-ups, ten milliseconds, and tells of a few names that are there. People who
mistype a name never notice a limit. A program that asks for one wrong name after the other soon gets the plain answer,
and learns by suggestions no more than by asking for the names themselves.
"""

from typing import Final

from perseid.server.limits.budgets import Budget, Rate

PER_ADDRESS: Final = Rate(0.5, 10)
"""Suggestions for one address: thirty a minute, ten of them at once. A person reads each."""

IN_ALL: Final = Rate(10, 50)
"""Suggestions for everybody together, at up to 10 ms each: a tenth of a core, wherever a flood comes from."""


def suggestion_budget() -> Budget:
    """A new budget, with nothing used."""
    return Budget(PER_ADDRESS, IN_ALL)

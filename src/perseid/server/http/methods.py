"""Which methods there are, and what an answer says about those that a resource has.

A method that nobody knows is 501, one that the resource lacks is 405 with those that it has. TRACE is known and served
nowhere: it would show a client's headers to whatever script can send it.
"""

from collections.abc import Iterable
from typing import Final

OPTIONS: Final = "OPTIONS"

KNOWN: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", OPTIONS, "TRACE"))
"""Letters as they stand here; `get` is another method, and unknown."""

READING: Final = ("GET", "HEAD")


def allow(methods: Iterable[str]) -> tuple[str, str]:
    """The header that says which methods a resource has; OPTIONS is one of every resource."""
    return "Allow", ", ".join((*methods, OPTIONS))

"""Perseid: persistent identifiers that are minted, kept, proved and resolved by one package."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import connect, connect_async, resolve

__all__ = ["connect", "connect_async", "resolve"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import client  # noqa: PLC0415 - most uses of the package do not need it

    return getattr(client, name)

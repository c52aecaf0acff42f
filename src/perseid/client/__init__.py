"""The client: resolve handles anywhere, and administer servers. Names are imported on first use.

Import `perseid.client` alone, or use `perseid.connect` and `perseid.resolve`. It needs neither a database nor an
installation.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import ClientError, NotFound, ProtocolError, Refused, Unreachable

__all__ = [
    "ClientError",
    "NotFound",
    "ProtocolError",
    "Refused",
    "Unreachable",
]

_MODULES = {
    "ClientError": "errors",
    "NotFound": "errors",
    "ProtocolError": "errors",
    "Refused": "errors",
    "Unreachable": "errors",
}
"""The module of each exported name."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)

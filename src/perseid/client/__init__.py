"""The client: resolve handles anywhere, and administer servers. Names are imported on first use.

Import `perseid.client` alone, or use `perseid.connect` and `perseid.resolve`. It needs neither a database nor an
installation.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import AsyncClient, Client, connect, connect_async
    from .errors import ClientError, NotFound, ProtocolError, Refused, Unreachable

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "NotFound",
    "ProtocolError",
    "Refused",
    "Unreachable",
    "connect",
    "connect_async",
]

_MODULES = {
    "AsyncClient": "api",
    "Client": "api",
    "ClientError": "errors",
    "NotFound": "errors",
    "ProtocolError": "errors",
    "Refused": "errors",
    "Unreachable": "errors",
    "connect": "api",
    "connect_async": "api",
}
"""The module of each exported name."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)

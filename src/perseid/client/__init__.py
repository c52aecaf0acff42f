"""The client: resolve handles anywhere, and administer servers. Names are imported on first use.

Import `perseid.client` alone, or use `perseid.connect` and `perseid.resolve`. It needs neither a database nor an
installation.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import Client, connect
    from .api_async import AsyncClient, connect_async
    from .errors import (
        ClientError,
        NotFound,
        ProtocolError,
        Refused,
        UnexpectedKey,
        UnknownOutcome,
        Unreachable,
        UntrustedCertificate,
    )
    from .native import NativeClient
    from .native_async import AsyncNativeClient
    from .native_site import SiteClient
    from .resolution import AsyncResolver, Resolution, Resolver, Step, resolve
    from .roots import Root

__all__ = [
    "AsyncClient",
    "AsyncNativeClient",
    "AsyncResolver",
    "Client",
    "ClientError",
    "NativeClient",
    "NotFound",
    "ProtocolError",
    "Refused",
    "Resolution",
    "Resolver",
    "Root",
    "SiteClient",
    "Step",
    "UnexpectedKey",
    "UnknownOutcome",
    "Unreachable",
    "UntrustedCertificate",
    "connect",
    "connect_async",
    "resolve",
]

_MODULES = {
    "AsyncClient": "api_async",
    "AsyncResolver": "resolution",
    "Client": "api",
    "AsyncNativeClient": "native_async",
    "ClientError": "errors",
    "NativeClient": "native",
    "NotFound": "errors",
    "ProtocolError": "errors",
    "Refused": "errors",
    "Resolution": "resolution",
    "Resolver": "resolution",
    "Root": "roots",
    "SiteClient": "native_site",
    "Step": "resolution",
    "UnexpectedKey": "errors",
    "UnknownOutcome": "errors",
    "Unreachable": "errors",
    "UntrustedCertificate": "errors",
    "connect": "api",
    "connect_async": "api_async",
    "resolve": "resolution",
}
"""The module of each exported name."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)

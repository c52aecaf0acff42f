"""Fixtures for the native protocol: a registry in the recorded state, and a client."""

from collections.abc import Iterator

import pytest

from perseid.registry.registry import Registry
from perseid.server.native.server import NativeServer
from tests.server.native.native_servers import SITE, Visitor, make_server, recorded_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry in the recorded state."""
    with recorded_registry() as made:
        yield made


@pytest.fixture
def visitor(registry: Registry) -> Visitor:
    """A client of that registry over TCP."""
    return Visitor(NativeServer(registry, make_server(), SITE))

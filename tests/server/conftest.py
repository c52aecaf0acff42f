"""Fixtures for the tests of the native door: a registry in the recorded state, and somebody who comes to its door."""

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
    """Somebody who comes to the door of that registry over TCP."""
    return Visitor(NativeServer(registry, make_server(), SITE))

"""Fixtures for the tests of HTTP."""

from collections.abc import Iterator

import pytest

from tests.server.http.contexts import Harness, harness
from tests.server.http.doorsteps import Doorstep, doorstep
from tests.server.http.raw import NO_LIMITS
from tests.server.installations import copy_to
from tests.server.running import Serving, serving


@pytest.fixture
def door() -> Iterator[Doorstep]:
    """Where somebody comes to the HTTP API, in the recorded state."""
    with doorstep() as made:
        yield made


@pytest.fixture
def server() -> Iterator[Harness]:
    """A server with the prefix 12345 and fifty names, for tests that change them."""
    with harness() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Harness]:
    """The same for all tests of a module that only read, or mind what they change."""
    with harness() as made:
        yield made


@pytest.fixture(scope="session")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server that runs, at every address of this machine, for tests that mind what they change."""
    directory = copy_to(tmp_path_factory.mktemp("wired"))
    with serving(directory, "--resolvers", "1", "--http-host", "::", **NO_LIMITS) as running:
        yield running

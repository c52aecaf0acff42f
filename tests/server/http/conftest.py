"""Fixtures of the HTTP tests."""

from collections.abc import Iterator

import pytest

from tests.server.http.auth_servers import AuthServer, auth_server_context
from tests.server.http.contexts import Harness, harness
from tests.server.http.raw import NO_LIMITS
from tests.server.installations import copy_to
from tests.server.running import Serving, serving


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    """Authentication in the recorded state, without the rest of the server."""
    with auth_server_context() as made:
        yield made


@pytest.fixture
def server() -> Iterator[Harness]:
    """A server with the prefix 12345 and fifty handles, for tests that change them."""
    with harness() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Harness]:
    """The same for all tests of a module that only read, or are careful with changes."""
    with harness() as made:
        yield made


@pytest.fixture(scope="session")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A running server on all addresses of this machine, for tests that are careful with changes."""
    directory = copy_to(tmp_path_factory.mktemp("wired"))
    with serving(directory, "--http-host", "::", **NO_LIMITS) as running:
        yield running

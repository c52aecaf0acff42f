"""The server of the console in tests, unless a file has its own, and its users."""

from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.resolver.resolver_records import create


@pytest.fixture
def server() -> Iterator[Harness]:
    """A server with the records of the test installation."""
    with harness() as made:
        yield made


@pytest.fixture
def user(server: Harness) -> ConsoleUser:
    """An administrator who has signed in."""
    return ConsoleUser(server).sign_in()


@pytest.fixture
def guest(server: Harness) -> ConsoleUser:
    """A user with a key and no permissions."""
    create(server, "12345/guest", Value(300, "HS_SECKEY", b"secret-of-a-guest"))
    return ConsoleUser(server).sign_in("300:12345/guest", "secret-of-a-guest")

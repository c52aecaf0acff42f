"""Fixtures for the tests with real browsers and real servers."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.e2e.browsers import chromium
from tests.e2e.demonstration import Demonstration, demonstration
from tests.e2e.page_watch import Visitor


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a module: to start it takes longer than a test.

    Not of a process: what drives it has an event loop running in this thread, and tests elsewhere run their own.
    """
    with chromium() as made:
        yield made


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demonstration]:
    """The demonstration, served for all tests of a process."""
    with demonstration(tmp_path_factory.mktemp("demonstration")) as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, demo: Demonstration) -> Iterator[Visitor]:
    """Somebody with a browser, who notices everything that goes wrong in it."""
    made = Visitor(browser, demo.url)
    yield made
    made.close()

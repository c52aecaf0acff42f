"""Fixtures of the tests with real browsers and servers."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.e2e.browsers import chromium
from tests.e2e.demonstration import Demonstration, demonstration
from tests.e2e.page_watch import Visitor


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module: starting it takes longer than a test.

    Not one per process: its driver runs an event loop in this thread, and other tests run their own.
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
    """A browser user who notices everything that goes wrong."""
    made = Visitor(browser, demo.url)
    yield made
    made.close()

"""A ledger in a folder of its own."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.log import Log
from perseid.ledger.store import Store
from tests.ledger.ledgers import ORIGIN, Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.sqlite(tmp_path / "ledger.db")
    opened.upgrade()
    yield opened
    opened.close()


@pytest.fixture
def log(store: Store, machine: Machine) -> Log:
    made = Log(store, machine.clock(), random.Random(1).randbytes)
    made.create(ORIGIN)
    return made

"""Fixtures for a ledger in its own folder or database: the same tests run on both back ends."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.log.log import Log
from perseid.ledger.store.store import Store
from tests.ledger.ledgers import SIGNER, Machine, open_store, postgres_with_tables, sqlite_with_tables
from tests.postgres import Cluster, postgres

__all__ = ["postgres"]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(params=["sqlite", "postgresql"])
def back_end(request: pytest.FixtureRequest) -> str:
    """Both back ends, unless a test says otherwise."""
    return str(request.param)


@pytest.fixture
def where(back_end: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, with tables if the test uses `store`."""
    with_tables = "store" in request.fixturenames
    if back_end == "sqlite":
        path = tmp_path / "ledger.db"
        if with_tables:
            sqlite_with_tables(path).close()
        return str(path)
    cluster: Cluster = request.getfixturevalue("postgres")
    return postgres_with_tables(cluster) if with_tables else cluster.database()


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    opened = open_store(where)
    yield opened
    opened.close()


@pytest.fixture
def log(store: Store, machine: Machine) -> Log:
    log = Log(store, machine.clock(), random.Random(1).randbytes)
    log.create(SIGNER)
    return log

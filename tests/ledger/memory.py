"""A log in memory, for tests that create thousands of them."""

import random
from functools import partial

from sqlalchemy import create_engine, event
from sqlalchemy.pool import StaticPool

from perseid.ledger.log.log import Log
from perseid.ledger.store import store as stores
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import metadata
from tests.ledger.ledgers import SIGNER, Machine


def memory_log(machine: Machine | None = None) -> Log:
    """A log in SQLite's memory: everything but the disk is real."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    event.listen(engine, "connect", partial(stores._configure_connection, stores._PRAGMAS))
    event.listen(engine, "begin", stores._begin)
    metadata.create_all(engine)
    log = Log(Store(engine), (machine or Machine()).clock(), random.Random(1).randbytes)
    log.create(SIGNER)
    return log

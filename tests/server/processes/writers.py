"""A writer in a process of its own, and registries that append through it."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.requests import Outcome
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.record import Value
from perseid.registry.commands.records import Home
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.processes import writer
from perseid.server.processes.remote_ledger import RemoteLedger
from perseid.server.processes.writer import WriterServer
from tests.ledger.ledgers import SIGNER, log_of_today, open_store, sqlite_with_tables
from tests.registry.registries import OPERATOR, add_namespace

URL = Value.text(1, "URL", "https://example.org/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ledger with a namespace 12345, and a runtime directory."""
    return fill(tmp_path, sqlite_with_tables(tmp_path / "ledger.db"))


def fill(tmp_path: Path, store: Store) -> Path:
    log_of_today(store).create(SIGNER)
    store.close()
    (tmp_path / "run").mkdir(0o700)
    with opened(tmp_path) as ledger:
        registry = Registry(ledger, Rules())
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "12345", "free")
    return tmp_path


def address(folder: Path) -> str:
    """The address of the store: that in a file of this name, or the file of the ledger."""
    path = folder / "database"
    return path.read_text() if path.exists() else str(folder / "ledger.db")


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    with Ledger(log_of_today(open_store(address(folder))), Answers(folder / "answers")) as ledger:
        yield ledger


def serve(folder: Path) -> None:
    """Run a writer until this process is killed."""
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        while True:
            server.step(writer.TICK_SECONDS)
            server.write_state()


@contextmanager
def writing(folder: Path) -> Iterator[list[int]]:
    """A writer in a process of its own, whose id may be replaced."""
    children = [start(folder)]
    try:
        yield children
    finally:
        kill(children[0])


def start(folder: Path) -> int:
    return fork(lambda: serve(folder))


def fork(work: Callable[[], None]) -> int:
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            work()
        os._exit(1)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@contextmanager
def remote(folder: Path) -> Iterator[Registry]:
    """A registry that appends through the writer."""
    log = log_of_today(open_store(address(folder), read_only=True))
    ledger = RemoteLedger(log, AnswersReader(folder / "answers"), folder / "run")
    try:
        yield Registry(ledger, Rules())
    finally:
        ledger.close()


def disconnect(registry: Registry) -> None:
    assert isinstance(registry.ledger, RemoteLedger)
    registry.ledger.disconnect()


def size_of(ledger: Ledger) -> int:
    with ledger.open_reader() as reader:
        return reader.size


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def as_loop_future(future: object) -> "asyncio.Future[Outcome]":
    assert isinstance(future, asyncio.Future)
    return future

"""The writer's queue: many callers, few commits, separate outcomes."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from perseid.ledger.errors import PreconditionFailed, StorageFull, TooBusy
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Outcome, Request
from perseid.ledger.log.writer import Writer
from tests.ledger.ledgers import appended, change, url, verified

DEADLINE = 30.0


@pytest.fixture
def writer(log: Log) -> Iterator[Writer]:
    opened = Writer(log.append)
    yield opened
    opened.close()


class Gate:
    """A log whose next commit waits for the test."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.entered, self.let = threading.Event(), threading.Event()
        self.groups: list[int] = []

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        self.entered.set()
        assert self.let.wait(DEADLINE)
        self.groups.append(len(group))
        return self.log.append(group)


def test_many_callers_get_separate_numbers_without_gaps(writer: Writer, log: Log) -> None:
    def work(identity: int) -> list[int]:
        requests = [change(f"{identity}-{number}", url(str(number))) for number in range(50)]
        return [appended(writer.submit(request)[0].result(DEADLINE)).seq for request in requests]

    with ThreadPoolExecutor(16) as pool:
        numbers = [number for found in pool.map(work, range(16)) for number in found]
    assert sorted(numbers) == list(range(1, 801))
    assert verified(log) == 800


def test_requests_queued_during_a_commit_share_the_next_one(log: Log) -> None:
    gate = Gate(log)
    writer = Writer(gate.append)
    first = writer.submit(change("first"))[0]
    assert gate.entered.wait(DEADLINE)
    others = [writer.submit(change(str(number)))[0] for number in range(100)]
    gate.let.set()
    assert appended(first.result(DEADLINE)).seq == 1
    assert [appended(other.result(DEADLINE)).seq for other in others] == list(range(2, 102))
    writer.close()
    assert gate.groups == [1, 100]


def test_only_one_of_many_creates_a_name(writer: Writer, log: Log) -> None:
    futures = [writer.submit(change("same", same=0))[0] for _ in range(64)]
    outcomes = [future.result(DEADLINE) for future in futures]
    assert sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes) == 63
    assert verified(log) == 1


def test_failed_commit_fails_all_its_requests_and_the_writer_continues(log: Log) -> None:
    broken = True

    def append(group: Sequence[Request]) -> list[Outcome]:
        if broken:
            raise StorageFull("no room")
        return log.append(group)

    writer = Writer(append)
    with pytest.raises(StorageFull):
        writer.submit(change("a"))[0].result(DEADLINE)
    broken = False
    assert appended(writer.submit(change("a"))[0].result(DEADLINE)).seq == 1
    writer.close()


def test_requests_wait_while_the_writer_is_locked(writer: Writer, log: Log) -> None:
    with writer.locked():
        futures = writer.submit(change("a"), change("b"))
        assert appended(log.append([change("first")])[0]).seq == 1
    assert [appended(future.result(DEADLINE)).seq for future in futures] == [2, 3]


def test_full_queue_refuses_requests_at_once(log: Log) -> None:
    gate = Gate(log)
    writer = Writer(gate.append, limit=3)
    futures: list[Future[Outcome]] = [writer.submit(change("first"))[0]]
    assert gate.entered.wait(DEADLINE)
    futures += [writer.submit(change(str(number)))[0] for number in range(3)]
    with pytest.raises(TooBusy, match=r"^too many changes are queued\. Nothing was written; retry later$"):
        writer.submit(change("late"))[0]
    gate.let.set()
    assert [appended(future.result(DEADLINE)).seq for future in futures] == [1, 2, 3, 4]
    writer.close()


def test_canceled_request_leaves_no_entry(log: Log) -> None:
    gate = Gate(log)
    writer = Writer(gate.append)
    writer.submit(change("first"))[0]
    assert gate.entered.wait(DEADLINE)
    withdrawn, other = writer.submit(change("withdrawn"))[0], writer.submit(change("other"))[0]
    assert withdrawn.cancel()
    gate.let.set()
    assert appended(other.result(DEADLINE)).seq == 2
    writer.close()
    assert verified(log) == 2


def test_closing_finishes_queued_requests_and_refuses_new_ones(log: Log) -> None:
    writer = Writer(log.append)
    futures = [writer.submit(change(str(number)))[0] for number in range(200)]
    writer.close()
    writer.close()
    assert [appended(future.result(0)).seq for future in futures] == list(range(1, 201))
    with pytest.raises(TooBusy, match=r"^the ledger is closing; nothing was written$"):
        writer.submit(change("late"))[0]

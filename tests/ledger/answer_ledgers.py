"""Helpers of the answers view tests: a ledger in memory, and functions that run in other processes."""

import hashlib
import itertools
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from perseid.ledger.errors import AnswersUnavailable
from perseid.ledger.log.entry import PUBLIC_STATES, Change, Source, State
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.record import Permission, Value

ID = bytes(range(16))
BOOT = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
SMALL = 1 << 22
"""A map that some thousand records fill."""
PRIVATE = Permission(0x0C)
TIME = 1_800_000_000_000_000
"""Microseconds since 1970, before the first entry."""


def url(data: str, index: int = 1) -> Value:
    return Value.text(index, "URL", data)


def typed(type_: str, index: int = 2, data: bytes = b"data", *, public: bool = True) -> Value:
    return Value(index, type_, data, permissions=Permission(0x0E) if public else PRIVATE)


def change(
    handle: str,
    *values: Value,
    seq: int = 1,
    state: State = State.NORMAL,
    exact: bool = False,
    history: bytes = b"",
) -> Change:
    """An entry whose leaf depends on the history."""
    contents = [value.to_bytes() for value in values]
    leaf = hashlib.sha256(b"".join([history, seq.to_bytes(8, "big"), handle.encode(), *contents])).digest()
    return Change(seq, TIME + seq, leaf, record_key(handle, exact=exact), handle, exact, state, contents)


class MemorySource:
    """One state of a ledger in memory."""

    def __init__(self, ledger_id: bytes, entries: list[Change]) -> None:
        self.ledger_id = ledger_id
        self._entries = entries

    @property
    def size(self) -> int:
        return len(self._entries)

    def leaf(self, seq: int) -> bytes:
        return self._entries[seq - 1].leaf

    def changes(self, after: int, limit: int) -> list[Change]:
        return self._entries[after : after + limit]

    def current(self) -> Iterator[Change]:
        latest = {entry.key: entry for entry in self._entries}
        previous = {entry.key: entry for entry in self._entries if entry is not latest[entry.key]}
        for key in sorted(latest):
            last, before = latest[key], previous.get(key)
            if last.state == State.ABSENT and before is not None and before.state != State.ABSENT:
                is_public = before.state in PUBLIC_STATES
                last = replace(last, last_version=(before.seq, before.at) if is_public else (0, 0))
            yield last


class MemoryLedger:
    """A ledger in memory. `meanwhile` is called before every read."""

    def __init__(self, ledger_id: bytes = ID, history: bytes = b"") -> None:
        self.ledger_id = ledger_id
        self.history = history
        self.entries: list[Change] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.lock = threading.Lock()

    def append(self, handle: str, *values: Value, state: State = State.NORMAL, exact: bool = False) -> Change:
        with self.lock:
            seq = len(self.entries) + 1
            entry = change(handle, *values, seq=seq, state=state, exact=exact, history=self.history)
            self.entries.append(entry)
        return entry

    def restored(self, size: int) -> "MemoryLedger":
        """The same ledger restored from a backup, with another history from there on."""
        copy = MemoryLedger(self.ledger_id, b"restored")
        copy.entries = self.entries[:size]
        return copy

    @contextmanager
    def look(self) -> Iterator[Source]:
        self.meanwhile()
        with self.lock:
            entries = list(self.entries)
        yield MemorySource(self.ledger_id, entries)


def numbered(number: int) -> tuple[str, Value]:
    """A change that every process can compute from its number: some forty handles, repeatedly."""
    if number % 7 == 0:
        return f"0.SITE/HOMED/0.NA/10.{number % 5}", url("homed")
    return f"10.1/name-{number * 17 % 41}", url(f"https://example.org/{number}")


def numbered_ledger(size: int) -> MemoryLedger:
    ledger = MemoryLedger()
    for number in range(1, size + 1):
        name, value = numbered(number)
        ledger.append(name, value, state=State.ABSENT if number % 11 == 0 else State.NORMAL)
    return ledger


def files_of(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files_of(folder))


# Functions for other processes, which are spawned: LMDB does not survive a fork.


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start another process with a pipe; it is killed if it is still alive at the end of the block."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(theirs, *arguments))
    child.start()
    theirs.close()
    try:
        yield child, ours
    finally:
        child.join(0.1)
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()
        child.close()


def apply_until_killed(pipe: Connection, folder: Path, size: int, group: int) -> None:
    """Apply the numbered changes in groups and report progress."""
    ledger = numbered_ledger(size)
    answers = Answers(folder)
    assert answers.catch_up(MemoryLedger().look)
    for start in range(0, size, group):
        assert answers.apply(ledger.entries[start : start + group])
        pipe.send(start + group)
    os.kill(os.getpid(), signal.SIGKILL)


def apply_everything(pipe: Connection, folder: Path, size: int, group: int) -> None:
    """Apply the numbered changes while others do the same; catch up after a gap."""
    ledger = numbered_ledger(size)
    with Answers(folder) as answers:
        for start in range(0, size, group):
            seen = MemoryLedger()
            seen.entries = ledger.entries[: start + group]
            if not answers.apply(seen.entries[start:]):
                assert answers.catch_up(seen.look)
    pipe.send("done")


def limited(pipe: Connection, folder: Path, limit: int) -> None:
    """Apply entries until a file cannot grow any more."""
    ledger = MemoryLedger()
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for number in itertools.count():
            entry = ledger.append(f"10.1/{number}", url("x" * 3000))
            if not answers.apply([entry]):
                break
        ledger.append("10.1/large", url("x" * 2 * limit))  # too large for a new view
        refused = (answers.ready, answers.rebuild(ledger.look), answers.follow(ledger.look))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        followed = answers.catch_up(ledger.look)
        pipe.send((refused, followed, answers.ready, answers.differences(ledger.look)))


def report_reads(pipe: Connection, folder: Path, name: bytes, compiled: bool = False) -> None:
    """Read one handle and prefix `10.1` repeatedly; report what a read sees that starts after a request."""
    with AnswersReader(folder, compiled=compiled) as reader:

        def seen() -> object:
            try:
                found, prefix = reader.find(name), reader.prefix(b"10.1")
            except AnswersUnavailable:
                return "unavailable"
            return found and found.values, prefix is not None and prefix.homed

        pipe.send("reading")
        while True:
            seen()
            if pipe.poll():
                if pipe.recv() == "stop":
                    break
                pipe.send(seen())


def die_reading(pipe: Connection, folder: Path) -> None:
    """Take a reader slot and die."""
    reader = AnswersReader(folder)
    reader.get(b"10.1/x")
    pipe.send("read")
    os.kill(os.getpid(), signal.SIGKILL)


def rebuild_slowly(pipe: Connection, folder: Path, size: int) -> None:
    """Rebuild while the other side appends: before every read, ask for the number of entries."""
    ledger = numbered_ledger(size)

    def ask() -> None:
        pipe.send("look")
        ledger.entries = numbered_ledger(pipe.recv()).entries

    with Answers(folder) as answers:
        ledger.meanwhile = ask
        pipe.send(answers.rebuild(ledger.look))

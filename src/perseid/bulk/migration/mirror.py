"""A running Handle server over the replication protocol: a dump of everything, then the transactions since.

This sees every value, also those that nobody can read over the protocol, and changes within seconds. The dump goes to a
temporary file first: prefixes come at its end, but decide how records are stored. What was read last is kept in a file
of the installation, so a later run continues with the transactions.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from perseid.client.errors import ClientError, Unreachable
from perseid.client.replication import ReplicationClient, TransactionBatch
from perseid.names.handle import fold
from perseid.records.binary import Writer
from perseid.registry.installation.files import replace_file
from perseid.registry.jobs.migration import MigrationProblem, Outcome, SourceRecord
from perseid.wire.codes import RemoteProtocolError
from perseid.wire.replication import (
    DumpedPrefix,
    DumpedRecord,
    DumpEnd,
    PlainPayload,
    ServerState,
    Transaction,
    TransactionAction,
    encode_dump_item,
    read_dump,
)

from .copying import Copy
from .source import (
    SourceError,
    SourceItem,
    SourceUnreachable,
    Spool,
    collect_prefixes,
    decode_name,
    decode_record,
    unreadable,
)

STATE_FOLDER: Final = "migrations"
"""The folder of the installation with the states of mirrors."""

BATCH: Final = 10_000
"""Transactions read at a time."""

_FOLDER_MODE: Final = 0o700


class MirrorState(msgspec.Struct, frozen=True):
    """The last transaction that was copied."""

    source: str
    last_id: int
    last_date: int
    """Milliseconds since 1970, by the clock of the source."""
    prefixes: tuple[str, ...] = ()
    """The prefixes that were copied; empty for all."""

    def covers(self, prefixes: tuple[str, ...]) -> bool:
        """Whether everything until the last transaction was copied of some prefixes, or of all if there are none."""
        return not self.prefixes or (bool(prefixes) and set(map(fold, prefixes)) <= set(map(fold, self.prefixes)))


class MirrorSource:
    """A server that is read as a mirror does."""

    lists_prefixes = True

    def __init__(
        self,
        client: ReplicationClient,
        folder: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is where the temporary file is created."""
        self._client, self._folder, self._clock = client, folder, clock
        self.label = self.origin = f"hdl://{client.host}:{client.port}"
        self._spool: Spool | None = None
        self._prefixes: list[str] = []
        self._is_whole = False
        self.state: MirrorState | None = None
        """Where the transactions after the dump start."""

    @property
    def is_complete(self) -> bool:
        """Whether the server has all records of its site."""
        with self._translate_errors():
            return len(self._client.site().servers) <= 1

    def prefixes(self) -> list[str]:
        """Read the dump, and return the prefixes in it."""
        self._read_dump()
        return self._prefixes

    def records(self) -> Iterator[SourceItem]:
        """Yield the records of the dump."""
        if self._spool is None:
            self._read_dump()
        spool, now = self._spool, int(self._clock())
        if spool is None:
            return
        spool.file.seek(0)
        try:
            _, items = read_dump(PlainPayload(lambda count: _read_exactly(spool.file, count)))
            for item in items:
                if isinstance(item, DumpedRecord):
                    yield decode_record(item.handle, list(item.values), now)
        finally:
            spool.close()
            self._spool = None

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def transactions(self, state: MirrorState) -> tuple[MirrorState, TransactionBatch] | None:
        """Return the transactions after a state, and the next state; None if a dump is needed."""
        with self._translate_errors():
            batch = self._client.transactions(state.last_id, state.last_date, BATCH)
        if batch.needs_dump:
            return None
        return MirrorState(self.label, batch.last_id, batch.last_date), batch

    def _read_dump(self) -> None:
        """Write the records of a dump to the temporary file, in the form of the dump."""
        self.close()
        self._spool = spool = Spool(self._folder)
        self.state, self._is_whole = None, False
        spool.write(Writer().i32(2).getvalue())
        with self._translate_errors():
            self._prefixes = collect_prefixes(self.label, self._spool_dump(spool))
        if not self._is_whole or self.state is None:
            raise SourceError(f"{self.label} sent an incomplete dump", "Run the command again")

    def _spool_dump(self, spool: Spool) -> Iterator[str]:
        """Read a dump, and yield its prefixes."""
        for item in self._client.dump():
            match item:
                case DumpedRecord():
                    spool.write(encode_dump_item(item))
                case DumpedPrefix():
                    yield decode_name(item.handle)
                case ServerState():
                    self.state = MirrorState(self.label, item.last_id, item.date)
                case DumpEnd():
                    spool.write(encode_dump_item(item))
                    self._is_whole = True

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            raise SourceUnreachable(error.detail, error.advice) from error
        except ClientError as error:
            raise SourceError(f"{self.label} refused a request: {error.detail}", error.advice) from error


def apply_transactions(source: MirrorSource, copy: Copy, state: MirrorState) -> MirrorState | None:
    """Copy the changes after a state, and return the next state; None if a dump is needed. Raises `SourceError`."""
    while True:
        found = source.transactions(state)
        if found is None:
            return None
        state, batch = found
        _apply(copy, batch.transactions)
        if not batch.has_more:
            return state


def _apply(copy: Copy, transactions: tuple[Transaction, ...]) -> None:
    """Apply transactions in their order; several records make one commit."""
    now = int(time.time())
    waiting: dict[bytes, SourceItem] = {}
    for transaction in transactions:
        name, action = decode_name(transaction.handle), int(transaction.action)
        key = transaction.handle.upper()
        is_record = action in (TransactionAction.CREATE, TransactionAction.UPDATE, TransactionAction.DELETE)
        if key in waiting or not is_record:
            copy.store(waiting.values())
            waiting = {}
        if action == TransactionAction.DELETE:
            waiting[key] = SourceRecord(name, None)
        elif is_record:
            waiting[key] = decode_record(transaction.handle, list(transaction.values or ()), now)
        elif action in (TransactionAction.HOME, TransactionAction.UNHOME) and not copy.selects_prefix(name):
            continue
        elif action == TransactionAction.HOME:
            copy.host(name)
        elif action == TransactionAction.UNHOME:
            reason = "the source no longer hosts it; it is still hosted here"
            copy.note(MigrationProblem(name, Outcome.CONFLICT, reason))
        elif action != TransactionAction.PLACEHOLDER:
            copy.note(unreadable(name, f"unknown action {action} of a transaction"))
    copy.store(waiting.values())


def load_state(directory: Path, label: str, prefixes: tuple[str, ...]) -> MirrorState | None:
    """Load the state of a mirror of some prefixes, or of all; None if everything must be read."""
    try:
        state = msgspec.json.decode(_state_path(directory, label).read_bytes(), type=MirrorState)
    except (OSError, msgspec.DecodeError):
        return None
    return state if state.source == label and state.covers(prefixes) else None


def save_state(directory: Path, state: MirrorState) -> None:
    """Keep the state of a mirror; what it says is durable in the ledger."""
    path = _state_path(directory, state.source)
    path.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    replace_file(path, msgspec.json.encode(state))


def _state_path(directory: Path, label: str) -> Path:
    return directory / STATE_FOLDER / f"{hashlib.sha256(label.encode()).hexdigest()[:16]}.json"


def _read_exactly(spool: IO[bytes], count: int) -> bytes:
    data = spool.read(count)
    if len(data) < count:
        raise RemoteProtocolError("the temporary file of the dump ends early")
    return data

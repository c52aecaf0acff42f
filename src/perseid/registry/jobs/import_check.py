"""The check of an import: every row is decided as its job will decide it, and nothing is changed.

Rows come from a reader of a format (`perseid.bulk`). Valid ones are written to the spool for the job, and a problem for
each of the others. Memory does not grow with the file: what finds duplicates among many handles is in a file as well.

A row can depend on earlier rows of the file: a batch file creates a handle and adds a value to it, or a record names a
creator that the row before it creates. So a row is decided as if the rows before it were applied; where it reads a
record that one of them changes, that row is read from the spool again and decided first.
"""

import hashlib
import mmap
import os
import secrets
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from struct import Struct
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from perseid.ledger.log.entry import Draft, Entry, State, encode_entry
from perseid.ledger.views.answers_format import is_local
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.records.types import URL, has_type
from perseid.registry.access import permissions
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import Advice, AdviceKind, advise_row, describe_advice, to_sentence
from perseid.registry.commands.minting import MintPlan, RetryLater
from perseid.registry.context import MAX_WARNINGS, Context
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import advise_url, find_url_problems
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidTimestamp, Refused, WarningKind
from perseid.registry.snapshot import Rules, Snapshot
from perseid.schema.imports import ImportRow, ImportState, RowOperation, RowOptions, RowOutcome, RowProblem
from perseid.schema.jobs import PlannedRecord
from perseid.schema.problems import slug_of_code
from perseid.schema.records import Data, ValueInput, WarningInfo
from perseid.wire.codes import ResponseCode

from .differences import plan_changes
from .import_decisions import Basis, SpooledRow, can_keep
from .import_rows import (
    InvalidCell,
    InvalidDate,
    InvalidState,
    RowPlan,
    build_mint,
    decide_row,
    normalize_handle,
    parse_value,
)
from .runner import Chunk
from .spool import SpooledImport

if TYPE_CHECKING:
    from perseid.ledger.log.reader import LogReader

ROWS_PER_SLICE: Final = 250
"""Rows checked at a time: some 20 ms, in one snapshot of the ledger."""

SAMPLE: Final = 10
"""Handles of a sample."""

_UNNAMED: Final = (RowOutcome.MINTED, RowOutcome.SKIPPED)
"""Outcomes without a handle for the sample: one that will be minted has only a prefix yet."""

_NEW: Final = (RowOutcome.CREATED, RowOutcome.MINTED)
_WITHOUT_TARGET: Final = (State.RESERVED.label, State.TOMBSTONE.label)

MAX_LINES_SHOWN: Final = 10
"""Lines that a warning names."""

MAX_CHANGES: Final = 1_000
"""Existing records whose changes are kept for the preview; all are counted."""

MAX_TRIALS: Final = 20
"""Values of a row that are left out in turn to find the one that is refused."""

MAX_RECENT: Final = 1_000
"""Records that several rows change and that are kept in memory; others are decided again."""

MAX_VALUE_SHOWN: Final = 200
"""Characters of a value in a problem: enough to find it in the file."""

_FIXES: Final = {
    ResponseCode.HANDLE_NOT_FOUND: "Correct the handle, or create its record in an operation before this one.",
    ResponseCode.VALUES_NOT_FOUND: "Use the index of a value that the record has.",
    ResponseCode.VALUE_ALREADY_EXISTS: "Use an index that no value has. To replace the value, use MODIFY.",
}
"""How to fix operations of batch files that do not fit the record; at every interface."""

_REPEATED: Final = (AdviceKind.CHOOSE_ON_EXISTING, AdviceKind.RESTORE)
"""What is advised for a row whose record exists."""

_VALUE_CODES: Final = frozenset({ResponseCode.INVALID_VALUE, ResponseCode.VALUE_ALREADY_EXISTS})
_HASH_BYTES: Final = 8
_OFFSET: Final = Struct("=Q")
_FIRST_SLOTS: Final = 1 << 13
_MAX_SLOTS_IN_MEMORY: Final = 1 << 18  # 4 MiB, for 175,000 keys
_FUTURE: Final = 1 << 62  # the number of an entry that does not exist yet
_encode_row = msgspec.json.Encoder().encode
_decode_row = msgspec.json.Decoder(ImportRow).decode


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a check reports problems."""

    handle_column: str = "handle"
    """The column with the handles, as the file names it."""
    created_column: str = "created"
    updated_column: str = ""
    """The column with the timestamps of all values of a row; empty if each has its own."""
    strict_urls: bool = True
    """Whether an invalid URL is a problem."""
    has_urls: bool = False
    """Whether the file has a column with URLs, so that new records without one are remarkable."""


DEFAULT_SETTINGS: Final = CheckSettings()


class KeyTable:
    """A number for each of many keys, by a keyed hash, so nobody can make two keys collide.

    It takes 24 to 48 bytes per key: of memory while it is small, then of an unnamed file, which the system keeps in the
    memory that nobody else needs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secret = secrets.token_bytes(16)
        self._count = 0
        self._last: tuple[bytes | None, int] = None, 0  # a key and its hash: most are looked up three times in a row
        self._open(_FIRST_SLOTS)

    def close(self) -> None:
        """Release the memory or the file."""
        self._hashes.release()
        self._numbers.release()
        self._map.close()

    def put(self, key: bytes, number: int) -> int | None:
        """Set the number of a key; return the one it had, None if it is new."""
        if self._count * 3 > len(self._hashes) * 2:
            self._grow()
        digest = self._digest(key)
        slot = self._find(digest)
        if self._hashes[slot]:
            old = self._numbers[slot]
            self._numbers[slot] = number
            return old
        self._hashes[slot], self._numbers[slot] = digest, number
        self._count += 1
        return None

    def get(self, key: bytes) -> int | None:
        """Return the number of a key; None if it has none."""
        slot = self._find(self._digest(key))
        return self._numbers[slot] if self._hashes[slot] else None

    def _digest(self, key: bytes) -> int:
        last, digest = self._last
        if key != last:
            content = hashlib.blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()
            digest = int.from_bytes(content, "big") or 1
            self._last = key, digest
        return digest

    def _find(self, digest: int) -> int:
        """Return the slot of a hash, or the free one for it."""
        hashes, mask = self._hashes, len(self._hashes) - 1
        slot = digest & mask
        while hashes[slot] and hashes[slot] != digest:
            slot = (slot + 1) & mask
        return slot

    def _open(self, slots: int) -> None:
        """Open a table without keys. Raises `OSError` if the disk is full."""
        size = 2 * slots * _HASH_BYTES
        if slots <= _MAX_SLOTS_IN_MEMORY:
            self._map = mmap.mmap(-1, size)
        else:
            with TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # now, because a write to the map could only end the process
                self._map = mmap.mmap(file.fileno(), size)
        with memoryview(self._map) as content, content.cast("Q") as numbers:
            self._hashes, self._numbers = numbers[:slots], numbers[slots:]

    def _grow(self) -> None:
        old, hashes, numbers = self._map, self._hashes, self._numbers
        self._open(2 * len(hashes))
        with old, hashes, numbers:
            for digest, number in zip(hashes, numbers, strict=True):
                if digest:
                    slot = self._find(digest)
                    self._hashes[slot], self._numbers[slot] = digest, number


class ImportCheck:
    """Checks an import in pieces, because a file can have millions of rows."""

    def __init__(
        self,
        registry: Registry,
        spooled: SpooledImport,
        rows: Iterator[ImportRow | RowProblem],
        identity: Identity,
        interface: str,
        settings: CheckSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._registry, self._spooled, self._rows = registry, spooled, rows
        self._identity, self._interface = identity, interface
        self._settings = settings
        self._options: RowOptions = spooled.record.options
        self._files = ExitStack()
        enter = self._files.enter_context
        self._out: BinaryIO = enter(spooled.create(spooled.rows))
        self._problems: BinaryIO = enter(spooled.create(spooled.problems))
        self._changes: BinaryIO = enter(spooled.create(spooled.changes))
        self._earlier = _EarlierRows(spooled.rows, self._out, self._options)
        self._files.callback(self._earlier.close)
        self._left: list[ImportRow | RowProblem] = []
        self._last_line = 0
        self.checked = self.valid = self.invalid = self.changed = 0
        self.outcomes: Counter[RowOutcome] = Counter()
        self.warnings: list[WarningInfo] = []
        self._warned: set[str] = set()
        self.sample: list[str] = []
        self._without_url: list[int] = []
        """The first lines of new records without a URL."""
        self._without_url_count = 0
        self.mints = False
        self.is_repeated = False
        """Whether a row is refused because its record exists, or is a tombstone."""
        self._size = self._position = 0  # of the file of valid rows, and of its last row
        self._mint_plan: tuple[tuple[str, str], MintPlan] | None = None
        self._basis = Basis(identity, interface)

    def advance(self) -> bool:
        """Check some more rows; return whether there may be more. Raises what the reader raises."""
        rows = [*self._left, *islice(self._rows, ROWS_PER_SLICE - len(self._left))]
        if not rows:
            return False
        self._left = rows[self._check_rows(rows) :]
        return True

    def finish(self, advice: Advice | None = None) -> None:
        """Make the result durable in the spool, with advice about all invalid rows."""
        for file in (self._out, self._problems, self._changes):
            file.flush()
            os.fsync(file.fileno())
        self.close()
        if count := self._without_url_count:
            lines = tuple(self._without_url)
            self.warnings.insert(0, WarningKind.ROWS_WITHOUT_URL(AdviceKind.ADD_URLS(), count=count, lines=lines))
        is_ready = self.valid > 0 and (not self.invalid or self._spooled.record.skip_invalid)
        state = ImportState.READY if is_ready else ImportState.INVALID
        self.save(state=state, basis=self._basis.describe(), **describe_advice(advice))

    def save(self, **fields: object) -> None:
        """Store how far the check has come."""
        self._spooled.update(
            checked=self.checked,
            valid=self.valid,
            invalid=self.invalid,
            outcomes=dict(self.outcomes),
            warnings=tuple(self.warnings),
            sample=tuple(self.sample),
            changes=self.changed,
            mint=self.mints,
            **fields,
        )

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    # Rows

    def _check_rows(self, rows: list[ImportRow | RowProblem]) -> int:
        """Check rows in one snapshot; return how many were checked before its budget was spent."""
        done = 0
        with self._registry.snapshot() as snapshot:
            overlay = _Overlay(snapshot.reader, snapshot.rules, self._earlier)
            self._basis.add_rules(overlay.rules)
            context = self._registry.context(overlay, self._identity, self._interface)
            overlay.context = context
            overlay.prefetch(row.handle for row in rows if isinstance(row, ImportRow))
            for key, group in groupby(rows, _mint_key):
                items = [*group]
                if key is not None:
                    self._check_mint(context, [row for row in items if isinstance(row, ImportRow)])
                    done += len(items)
                    continue
                chunk = Chunk(context)
                is_complete = chunk.take(items, partial(self._check_row, chunk.context, overlay))
                done += chunk.processed
                if not is_complete:
                    break
        return done

    def _check_row(self, context: Context, overlay: "_Overlay", row: ImportRow | RowProblem) -> tuple[()]:
        if isinstance(row, RowProblem):
            self._reject(row)
            return ()
        self._check_order(row)
        plan, keys = RowPlan(RowOutcome.UNCHANGED), list[bytes]()
        try:
            row = normalize_handle(row, context.snapshot.rules)
            plan = decide_row(context, row, self._options)
            keys = [draft.key for draft in plan.drafts]
            problem = self._find_duplicate(context, row, keys) if overlay.is_dependent else None
            if problem is None and plan.drafts and context.warnings:  # an invalid URL is one of them
                problem = self._find_invalid_url(context, row, plan.drafts[0])
        except InvalidName as error:
            problem = self._to_problem(context, row, error)
        except Refused as error:
            problem = self._find_duplicate(context, row, keys) or self._to_problem(context, row, error)
        if problem is not None:
            self._basis.add(overlay.take_read())
            context.warnings.clear()
            self._reject(problem)
            return ()
        self._take_warnings(context, row)
        if plan.outcome is RowOutcome.UPDATED and row.operation is RowOperation.CREATE:
            self._note_change(context, plan.drafts[0])
        is_new = plan.outcome is RowOutcome.CREATED and overlay.seen[keys[0]] is None
        self._basis.add(overlay.take_read(keys))
        if is_new and not overlay.is_dependent and can_keep(context, plan.drafts[0], self._options):
            row = SpooledRow.of(row, plan.drafts[0])
        self._accept(row, plan.outcome)
        for key, draft in zip(keys, plan.drafts, strict=True):
            self._earlier.add(key, self._position, draft)
            overlay.forget(key)
        if not keys and row.operation is RowOperation.CREATE:  # another row with the handle is a duplicate
            key = context.snapshot.stored(Handle.parse_lenient(row.handle)).key
            self._earlier.add(key, self._position)
            overlay.forget(key)
        return ()

    def _check_mint(self, context: Context, rows: list[ImportRow]) -> None:
        """Check rows to mint, each with a handle that nobody gets."""
        self.mints = True
        for row in rows:
            self._check_order(row)
            problem = None
            try:
                problem = self._find_invalid_url(context, row, self._sample(context, row))
            except RetryLater:
                pass  # having to wait is not a problem
            except (Refused, InvalidName) as error:
                problem = self._to_problem(context, row, error)
            if problem is None:
                self._take_warnings(context, row)
                self._accept(row, RowOutcome.MINTED)
            else:
                context.warnings.clear()
                self._reject(problem)

    def _sample(self, context: Context, row: ImportRow) -> Draft:
        """Decide a row to mint, with a handle that nobody gets."""
        policy = context.snapshot.policy(row.handle.partition("/")[0])
        command = build_mint(policy, [row])
        key = (row.handle, row.state)
        if self._mint_plan is None or self._mint_plan[0] != key or self._mint_plan[1].context is not context:
            self._mint_plan = key, command.plan(context)
        return command.decide_sample(context, self._mint_plan[1])

    def _check_order(self, row: ImportRow) -> None:
        if row.line <= self._last_line:
            raise ValueError(f"line {row.line} comes after line {self._last_line}")

    def _accept(self, row: ImportRow, outcome: RowOutcome) -> None:
        self.checked += 1
        self.valid += 1
        self.outcomes[outcome] += 1
        if len(self.sample) < SAMPLE and outcome not in _UNNAMED:
            self.sample.append(row.handle)
        is_new = outcome in _NEW and row.state not in _WITHOUT_TARGET
        if is_new and self._settings.has_urls and not any(has_type(value.type, URL) for value in row.values):
            self._without_url_count += 1
            self._without_url += [row.line][: MAX_LINES_SHOWN - len(self._without_url)]
        self._last_line = row.line
        self._position = self._size
        line = _encode_row(row) + b"\n"
        self._size += len(line)
        self._out.write(line)

    def _reject(self, problem: RowProblem) -> None:
        self.checked += 1
        self.invalid += 1
        self._problems.write(msgspec.json.encode(problem) + b"\n")

    def _take_warnings(self, context: Context, row: ImportRow) -> None:
        for warning in context.warnings:
            if len(self.warnings) < MAX_WARNINGS and warning.message not in self._warned:
                self._warned.add(warning.message)
                self.warnings.append(msgspec.structs.replace(warning, line=row.line))
        context.warnings.clear()

    def _note_change(self, context: Context, draft: Draft) -> None:
        """Keep the difference of an existing record, for the preview."""
        self.changed += 1
        if self.changed > MAX_CHANGES:
            return
        stored = context.snapshot.stored(Handle.parse_lenient(draft.handle))
        # The row is decided already: if the lookups of the chunk are spent, less is shown.
        can_read = Context.check(context, permissions.read(stored.handle)).allowed
        planned = PlannedRecord(draft.handle, plan_changes(stored.values, draft.values, can_read=can_read), [])
        self._changes.write(msgspec.json.encode(planned) + b"\n")

    # Problems

    def _find_duplicate(self, context: Context, row: ImportRow, keys: list[bytes]) -> RowProblem | None:
        """Find the problem of a row that creates a handle which an earlier row has."""
        if row.operation is not RowOperation.CREATE:
            return None
        key = keys[0] if keys else context.snapshot.stored(Handle.parse_lenient(row.handle)).key
        other = self._earlier.find(key)
        if other is None or other.operation is RowOperation.DELETE:
            return None
        message = f"Handle {display_name(row.handle)} is in the file twice, in lines {other.line} and {row.line}."
        if other.handle != row.handle:
            message = f"{message[:-1]}: {display_name(other.handle)} is the same handle."
        problem = RowProblem(row.line, self._settings.handle_column, _shorten(row.handle), "duplicate", message)
        return advise_row(problem, AdviceKind.REMOVE_DUPLICATE())

    def _find_invalid_url(self, context: Context, row: ImportRow, draft: Draft) -> RowProblem | None:
        if not self._settings.strict_urls or self._options.preserve_dates:
            return None
        known: tuple[Value, ...] = ()
        schemes = context.snapshot.rules.url_schemes
        if next(find_url_problems(draft.values, known, schemes), None) is None:
            return None
        if row.operation is not RowOperation.MINT:
            known = context.snapshot.stored(Handle.parse_lenient(draft.handle)).values
        for value, problem in find_url_problems(draft.values, known, schemes):
            text = value.data.decode("utf-8", "replace")
            column = next((name for name, data in _cells(row) if data == text), value.type)
            message = f"{display_name(text)} {problem.reason}."
            found = RowProblem(row.line, column, _shorten(text), "invalid-url", message)
            return advise_row(found, advise_url(problem))
        return None

    def _to_problem(self, context: Context, row: ImportRow, error: Refused | InvalidName) -> RowProblem:
        if isinstance(error, InvalidName):
            message, rule, advice, fix = str(error), error.rule, None, ""
            column, value = self._settings.handle_column, row.handle
        else:
            message, rule = error.reason, error.rule or error.problem_type or slug_of_code(error.code)
            self.is_repeated |= error.advice is not None and error.advice.kind in _REPEATED
            advice, fix = error.advice, "" if row.operation is RowOperation.CREATE else _FIXES.get(error.code, "")
            column, value = self._find_cell(context, row, error)
        return advise_row(RowProblem(row.line, column, _shorten(value), rule, to_sentence(message), fix), advice)

    def _find_cell(self, context: Context, row: ImportRow, refused: Refused) -> tuple[str, str]:
        """Find the value that was refused: without it, there is another result."""
        cells = _cells(row)
        if isinstance(refused, InvalidState):
            return "state", row.state
        if isinstance(refused, InvalidDate):
            return self._settings.created_column, row.created
        if isinstance(refused, InvalidCell | InvalidTimestamp) and refused.number < len(cells):
            value, column = row.values[refused.number], self._settings.updated_column
            is_date = column and value.timestamp and _is_dated_wrongly(refused, value)
            return (column, str(value.timestamp)) if is_date else cells[refused.number]
        if refused.code not in _VALUE_CODES or not cells:
            return ("", "") if row.operation is RowOperation.MINT else (self._settings.handle_column, row.handle)
        for number in reversed(range(len(cells))[-MAX_TRIALS:]):  # the last first: the others keep their indexes
            values = (*row.values[:number], *row.values[number + 1 :])
            without = msgspec.structs.replace(row, values=values)
            try:
                if row.operation is RowOperation.MINT:
                    self._sample(context, without)
                else:
                    decide_row(context, without, self._options)
            except InvalidName:
                continue
            except Refused as other:
                if other.reason == refused.reason:
                    continue
            return cells[number]
        return "", ""


def _is_dated_wrongly(refused: InvalidCell | InvalidTimestamp, value: ValueInput) -> bool:
    """Whether a value was refused for its timestamp: without it, it is valid."""
    if isinstance(refused, InvalidTimestamp):
        return True
    try:
        parse_value(value)
    except InvalidData:
        return False
    return True


def _mint_key(row: ImportRow | RowProblem) -> tuple[str, str] | None:
    """Rows with the same key are minted together."""
    if isinstance(row, ImportRow) and row.operation is RowOperation.MINT:
        return row.handle, row.state
    return None


def _cells(row: ImportRow) -> list[tuple[str, str]]:
    """Return the column and the text of each value."""
    columns = row.columns or tuple([value.type for value in row.values])
    return [*zip(columns, [_to_text(value.data) for value in row.values], strict=False)]


def _to_text(data: str | Data) -> str:
    """Return data as the file has it, approximately."""
    value = data if isinstance(data, str) else data.value
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE_SHOWN else f"{text[: MAX_VALUE_SHOWN - 1]}…"


class _EarlierRows:
    """The rows before the one that is checked, by the records that they change."""

    def __init__(self, path: Path, writer: BinaryIO, options: RowOptions) -> None:
        """`path` is the file of valid rows, which `writer` writes."""
        self.options = options
        self._writer = writer
        self._reader = path.open("rb")
        self._table = KeyTable(path.parent)
        self._before = KeyTable(path.parent)
        """The previous row that changes the same record, by offset."""
        self.recent: dict[bytes, Entry] = {}
        """The last entries of records that several rows have changed."""

    def close(self) -> None:
        """Close the files."""
        self._reader.close()
        self._table.close()
        self._before.close()

    def add(self, key: bytes, offset: int, draft: Draft | None = None) -> None:
        """Note that the row at an offset is about a record, which it changes if there is a draft."""
        before = self._table.put(key, offset)
        if before is not None:
            self._before.put(_OFFSET.pack(offset), before)
        if draft is None:
            return
        self.recent.pop(key, None)
        if before is not None:
            self.recent[key] = to_future_entry(draft)
            if len(self.recent) > MAX_RECENT:
                del self.recent[next(iter(self.recent))]

    def find(self, key: bytes) -> ImportRow | None:
        """Return the last row about a record; None if there is none."""
        offset = self._table.get(key)
        return None if offset is None else self._load(offset)

    def rows(self, key: bytes) -> list[ImportRow]:
        """Return the rows about a record, in their order."""
        rows: list[ImportRow] = []
        offset = self._table.get(key)
        while offset is not None:
            rows.append(self._load(offset))
            offset = self._before.get(_OFFSET.pack(offset))
        return rows[::-1]

    def _load(self, offset: int) -> ImportRow:
        self._writer.flush()
        self._reader.seek(offset)
        return _decode_row(self._reader.readline())


def to_future_entry(draft: Draft) -> Entry:
    """Return the entry that a draft will become, with a number and a time that no entry has."""
    body, _ = encode_entry(draft, draft.contents(), _FUTURE, _FUTURE, {}, secrets.token_bytes)
    return Entry.from_body(_FUTURE, _FUTURE, body)


class _Overlay(Snapshot):
    """A snapshot in which the rows before the present one are applied."""

    def __init__(self, reader: "LogReader", rules: Rules, earlier: _EarlierRows) -> None:
        super().__init__(reader, rules)
        self._earlier = earlier
        self.context: Context | None = None
        """The context in which rows are decided again."""
        self.is_dependent = False
        """Whether anything that was read depends on rows."""
        self._read: list[bytes] = []

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        if key in self._entries:
            return self._entries[key]
        recent = self._earlier.recent.get(key)
        self._entries[key] = recent or super().entry(key, new=new)
        rows = self._earlier.rows(key) if recent is None else ()
        for row in rows:
            self._apply(key, row)
        self._read.append(key)
        self.is_dependent |= bool(rows) or recent is not None
        return self._entries[key]

    def take_read(self, changed: Collection[bytes] = ()) -> list[tuple[bytes, Entry | None]]:
        """Return what was read since the last call, except for records that are changed now.

        It is complete only while nothing depends on rows.
        """
        read, self._read = self._read, []
        if self.is_dependent or read == changed:
            return []
        return [(key, self._entries[key]) for key in read if key not in changed]

    def forget(self, key: bytes) -> None:
        """Look a record up again: a row has changed it."""
        self._entries.pop(key, None)
        self._values.clear()
        if is_local(key):
            self._policies.clear()

    def _apply(self, key: bytes, row: ImportRow) -> None:
        assert self.context is not None  # noqa: S101 - set before the first row
        with suppress(Refused, InvalidName):  # it depends on what later rows have changed
            for draft in decide_row(self.context, row, self._earlier.options).drafts:
                if draft.key == key:
                    self._entries[key] = to_future_entry(draft)

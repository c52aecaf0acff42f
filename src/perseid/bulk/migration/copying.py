"""Copy the records of a source, and compare them with those of the installation, in flat memory.

Both read the source once. The keys of its records go through an external sort, which finds what the source does not
have, and handles that the source tells apart and the installation does not.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, Self

from perseid.ledger.log.entry import IMPORT, Entry
from perseid.ledger.store.jobs import Job
from perseid.ledger.store.sorting import ExternalSorter, split_batches
from perseid.names.handle import PREFIX_OF_PREFIXES, fold
from perseid.registry.access.permissions import display_name
from perseid.registry.identity import Identity
from perseid.registry.jobs import migration
from perseid.registry.jobs.import_check import KeyTable
from perseid.registry.jobs.migration import (
    CannotBeStored,
    Comparison,
    HostMigrated,
    LocalRecords,
    MigrationCounts,
    MigrationProblem,
    Outcome,
    SourceRecord,
)
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.registry import Registry
from perseid.registry.results import Refused

from .source import Source, SourceError, SourceItem

MAX_DELETED_SHARE: Final = 10
"""At most one in so many records is deleted without the caller's consent: a source that lost its table is likelier."""

MIN_DELETED: Final = 100
"""This many are deleted from a source that has any records."""

SORT_MEMORY: Final = 16 << 20
"""Bytes of keys in memory."""

MAX_PREFIXES_CHECKED: Final = 1_000
"""Prefixes of records of which somebody is told whether they are hosted here; they are in memory."""

MAX_SOURCES: Final = 100
"""Other sources whose records are counted each for itself."""

_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What is copied, and how."""

    prefixes: tuple[str, ...] = ()
    """Only records of these prefixes; empty for all."""
    policy: Policy = PROFILES["free"]
    """Of hosted prefixes that have none here."""
    overwrite: bool = False
    """Whether records that were changed here are overwritten."""
    delete_many: bool = False
    """Whether any number of records can be deleted."""
    continues: tuple[str, ...] = ()
    """Earlier sources that the source continues: records from them are deleted too if it lacks them."""
    dry_run: bool = False
    note: str = ""
    _folded: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folded", frozenset(map(fold, self.prefixes)))

    def selects(self, item: SourceItem) -> bool:
        """Whether a record is to be copied; one whose handle is not known may be."""
        is_nameless = isinstance(item, MigrationProblem) and item.is_nameless
        return not self._folded or is_nameless or fold(item.handle.partition("/")[0]) in self._folded

    def selects_prefix(self, name: str) -> bool:
        """Whether a hosted prefix is to be taken over."""
        return not self._folded or fold(bare_prefix(name)) in self._folded


@dataclass(slots=True)
class CopyResult:
    """What a copy did."""

    counts: MigrationCounts = field(default_factory=MigrationCounts)
    prefixes: list[str] = field(default_factory=list)
    """The prefixes that are new here."""
    not_hosted: list[str] = field(default_factory=list)
    """Prefixes of copied records that are not hosted here, if the source does not list its prefixes."""
    kept: Counter[str] = field(default_factory=Counter)
    """Records that a complete source lacks and that were migrated from others, by source: they are not deleted."""
    job: str = ""
    """Empty if nothing was changed."""


ReportProblem = Callable[[MigrationProblem], None]
Progress = Callable[[int], None]


def bare_prefix(name: str) -> str:
    """The prefix of an entry of the table of hosted prefixes."""
    return name.rpartition("/")[2] if fold(name).startswith(f"{PREFIX_OF_PREFIXES}/") else name


class RecordPrefixes:
    """The prefixes of the records of a source that does not list those which it hosts."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: dict[str, str] = {}

    def add(self, items: Iterable[SourceItem]) -> None:
        """Note the prefixes of some records."""
        if self._source.lists_prefixes:
            return
        for item in items:
            prefix, slash, _ = item.handle.partition("/")
            if slash and isinstance(item, SourceRecord) and len(self._names) < MAX_PREFIXES_CHECKED:
                self._names.setdefault(fold(prefix), prefix)

    def find_not_hosted(self, registry: Registry, new: Iterable[str] = ()) -> list[str]:
        """Return those that are not hosted here. `new` are names of prefixes that will be."""
        hosted = {PREFIX_OF_PREFIXES, *[fold(bare_prefix(name)) for name in new]}
        with registry.snapshot() as snapshot:
            return [
                prefix
                for folded, prefix in self._names.items()
                if folded not in hosted and not snapshot.hosts_prefix(prefix)
            ]


class SourceKeys(AbstractContextManager["SourceKeys"]):
    """The keys of the records of a source, sorted, with their names."""

    def __init__(self, folder: Path) -> None:
        self._sorter: ExternalSorter[tuple[bytes, bytes]] = ExternalSorter(tuple[bytes, bytes], folder, SORT_MEMORY)
        self._first = KeyTable(folder)
        """The digest of the name that came first, by key."""

    def __enter__(self) -> Self:
        self._sorter.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._first.close()
        self._sorter.__exit__(*exception)

    def add(self, registry: Registry, items: Iterable[SourceItem]) -> set[str]:
        """Add the names of some records, and return those that are the same handle here as one that came before.

        Those that the ledger cannot store have no key.
        """
        rows: list[tuple[bytes, bytes]] = []
        later: set[str] = set()
        with registry.snapshot() as snapshot:
            for item in items:
                try:
                    key = migration.find_key(snapshot, item.handle)
                except CannotBeStored:
                    continue
                row = key, item.handle.encode()
                rows.append(row)
                if not isinstance(item, SourceRecord):
                    continue
                if self._first.get(key) is None:
                    self._first.put(key, _digest(row[1]))
                elif not self._is_first(*row):
                    later.add(item.handle)
        self._sorter.add(rows, sum([len(key) + len(name) for key, name in rows]))
        return later

    def collisions(self) -> Iterator[MigrationProblem]:
        """Yield names that are one handle here and several at the source, without the one that came first."""
        last, kept, is_pending = (b"", b""), b"", False
        for key, name in self._sorter.sorted():
            if key != last[0]:
                kept = name if self._is_first(key, name) else b""
                is_pending = not kept
            elif name != last[1]:
                kept = name if self._is_first(key, name) else kept
                if is_pending:
                    yield _describe_collision(last[1], kept or name)
                is_pending = False
                if name != kept:
                    yield _describe_collision(name, kept or last[1])
            last = (key, name)

    def _is_first(self, key: bytes, name: bytes) -> bool:
        return self._first.get(key) == _digest(name)

    def without(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries, which are sorted by key, whose record the source does not have."""
        keys = self._sorter.sorted()
        key = next(keys, (b"", b""))[0]
        for entry in entries:
            while key and key < entry.key:
                key = next(keys, (b"", b""))[0]
            if key != entry.key:
                yield entry


def _digest(name: bytes) -> int:
    return int.from_bytes(sha256(name).digest()[:_DIGEST_BYTES], "big")


def _describe_collision(name: bytes, other: bytes) -> MigrationProblem:
    reason = f"it is the same handle here as {display_name(other.decode())}"
    return MigrationProblem(
        name.decode(), Outcome.REJECTED, f"{reason}, and only one of them was kept; use --profile exact"
    )


class Copy:
    """One pass over a source."""

    def __init__(
        self,
        registry: Registry,
        identity: Identity,
        source: Source,
        folder: Path,
        options: CopyOptions | None = None,
        report: ReportProblem = lambda _: None,
        progress: Progress = lambda _: None,
    ) -> None:
        """`folder` is where temporary files are created."""
        self._registry, self._identity, self._source, self._folder = registry, identity, source, folder
        self._options = CopyOptions() if options is None else options
        self._report, self._progress = report, progress
        self.result = CopyResult()
        self._job: Job | None = None
        self._done = 0

    def run(self) -> CopyResult:
        """Copy everything that differs. Raises `Refused` and `SourceError`; what was copied is durable.

        A repeated run continues the job of one that was interrupted.
        """
        hosted, found = self.host_prefixes(), RecordPrefixes(self._source)
        with SourceKeys(self._folder) as keys:
            for batch in self._batches():
                records = self._take(batch)
                found.add(records)
                # Always the first name is kept: otherwise each pass would store all of them in turn.
                later = keys.add(self._registry, batch)
                self._store(tuple([record for record in records if record.handle not in later]) if later else records)
            for problem in keys.collisions():
                self.note(problem)
            if self._source.is_complete:
                self._delete_missing(keys, self._options.prefixes or tuple(map(bare_prefix, hosted)))
        self.result.not_hosted = found.find_not_hosted(self._registry, self.result.prefixes)
        self.end()
        return self.result

    def host_prefixes(self) -> list[str]:
        """Host the prefixes of the source here, and return them all."""
        names = [name for name in self._source.prefixes() if self._options.selects_prefix(name)]
        for name in names:
            self.host(name)
        return names

    def selects_prefix(self, name: str) -> bool:
        """Whether a hosted prefix is to be taken over."""
        return self._options.selects_prefix(name)

    def host(self, name: str) -> None:
        """Host a prefix of the source here."""
        try:
            if self._options.dry_run:
                with self._registry.snapshot() as snapshot:
                    is_new = not snapshot.is_homed(name)
            else:
                command = HostMigrated(name, self._options.policy)
                is_new = self._registry.do(command, self._identity, IMPORT, migration.make_note(self._source.origin))
        except Refused as refused:
            self.note(MigrationProblem(name, Outcome.REJECTED, refused.reason))
            return
        if is_new:
            self.result.prefixes.append(name)

    def end(self) -> None:
        """End the job, if there is one."""
        if self._job is not None:
            migration.end(self._registry, self._job)
            self._job = None

    def store(self, items: Iterable[SourceItem]) -> None:
        """Store some records, such as those of a transaction log."""
        for batch in _split(item for item in items if self._options.selects(item)):
            self._store(self._take(batch))

    def _batches(self) -> Iterator[list[SourceItem]]:
        return _split(item for item in self._source.records() if self._options.selects(item))

    def _take(self, batch: list[SourceItem]) -> tuple[SourceRecord, ...]:
        """The readable records of a batch; the others are reported."""
        for item in batch:
            if isinstance(item, MigrationProblem):
                self.note(item)
        return tuple([item for item in batch if isinstance(item, SourceRecord)])

    def _store(self, records: tuple[SourceRecord, ...]) -> None:
        if not records:
            return
        registry, options, origin = self._registry, self._options, self._source.origin
        if options.dry_run:
            step = migration.preview_step(registry, origin, records, self._identity, overwrite=options.overwrite)
        else:
            if self._job is None:
                self._job = migration.start(registry, origin, self._identity, options.note)
                self.result.job = self._job.id
            step = migration.do_step(registry, self._job, origin, records, self._identity, overwrite=options.overwrite)
        for outcome in step.outcomes:
            self.result.counts.add(outcome)
        for problem in step.problems:
            self._report(problem)
        self._done += len(records)
        self._progress(self._done)

    def note(self, problem: MigrationProblem) -> None:
        """Count and report a record that was not migrated."""
        self.result.counts.add(problem.outcome)
        self._report(problem)

    def _delete_missing(self, keys: SourceKeys, prefixes: tuple[str, ...]) -> None:
        """Delete the records that were migrated from the source, and that it no longer has; count those of others."""
        counts, label, origin = self.result.counts, self._source.label, self._source.origin
        found = counts.unchanged + counts.created + counts.updated + counts.conflicts
        limit = max(MIN_DELETED, found // MAX_DELETED_SHARE) if found else 0
        origins = (origin, *self._options.continues)

        def find() -> Iterator[SourceRecord]:
            kept = self.result.kept = Counter()
            for entry in keys.without(LocalRecords(self._registry, prefixes)):
                if any(migration.is_migrated(entry, each) for each in origins):
                    yield SourceRecord(entry.handle, None)
                elif (other := migration.get_source(entry)) is not None:
                    kept[other if other in kept or len(kept) < MAX_SOURCES else ""] += 1

        if not self._options.delete_many and next(islice(find(), limit, None), None) is not None:
            reason = f"{label} lacks more than {limit:,} records that were migrated from it"
            if not found:
                reason = f"{label} has none of the records that were migrated from it"
            raise SourceError(f"{reason}; none was deleted here", "If they were deleted there, use --delete-many")
        missing = find()
        while batch := tuple(islice(missing, migration.STEP_SIZE)):
            self._store(batch)


@dataclass(slots=True)
class CompareResult:
    """How a source and the installation differ."""

    records: int = 0
    """Records of the source that were compared."""
    missing: int = 0
    extra: int = 0
    different: int = 0
    prefixes: list[str] = field(default_factory=list)
    """Prefixes of the source, or of its records if it does not list them, that are not hosted here."""

    @property
    def has_differences(self) -> bool:
        return bool(self.missing or self.extra or self.different or self.prefixes)


def compare(
    registry: Registry,
    source: Source,
    folder: Path,
    prefixes: tuple[str, ...] = (),
    report: Callable[[Comparison], None] = lambda _: None,
    progress: Progress = lambda _: None,
) -> CompareResult:
    """Compare all records, and report each that differs in any byte. Raises `Refused` and `SourceError`.

    Records that belong to other servers of this site are left out.
    """
    options, result = CopyOptions(prefixes), CompareResult()
    hosted = [name for name in source.prefixes() if options.selects_prefix(name)]
    with registry.snapshot() as snapshot:
        result.prefixes = [name for name in hosted if not snapshot.is_homed(name)]
    found = RecordPrefixes(source)
    with SourceKeys(folder) as keys:
        for batch in _split(item for item in source.records() if options.selects(item)):
            keys.add(registry, batch)
            found.add(batch)
            own = _select_own(registry, batch)
            for difference in _compare_batch(registry, own):
                is_missing = difference.here is None and not difference.reason
                result.missing += is_missing
                result.different += not is_missing
                report(difference)
            result.records += len(own)
            progress(result.records)
        for problem in keys.collisions():
            result.different += 1
            report(Comparison(problem.handle, None, None, problem.reason))
        if source.is_complete:
            for entry in keys.without(LocalRecords(registry, prefixes or [bare_prefix(name) for name in hosted])):
                result.extra += 1
                report(Comparison(entry.handle, None, entry.record()))
    result.prefixes += found.find_not_hosted(registry, result.prefixes)
    return result


def _select_own(registry: Registry, batch: list[SourceItem]) -> list[SourceItem]:
    """Leave out what belongs to other servers of this site."""
    if registry.rules.partition is None:
        return batch
    with registry.snapshot() as snapshot:
        return [item for item in batch if not migration.describe_other_server(snapshot, item.handle)]


def _compare_batch(registry: Registry, batch: list[SourceItem]) -> list[Comparison]:
    unreadable = [
        Comparison(item.handle, None, None, item.reason) for item in batch if isinstance(item, MigrationProblem)
    ]
    records = [item for item in batch if isinstance(item, SourceRecord)]
    with registry.snapshot() as snapshot:
        return [*unreadable, *migration.compare_records(snapshot, records)]


def _split(items: Iterable[SourceItem]) -> Iterator[list[SourceItem]]:
    """Split items into the batches of one commit each."""
    return split_batches(
        items,
        migration.STEP_SIZE,
        migration.STEP_BYTES,
        lambda item: item.size if isinstance(item, SourceRecord) else len(item.handle),
    )

"""Output of `perseid migrate`: problems, summaries and differences, as text and as JSON."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, Any, Final

from perseid.bulk.migration.copying import CopyResult
from perseid.records.record import Value, permissions_to_text
from perseid.registry.jobs.migration import Comparison, MigrationProblem
from perseid.schema.migration import (
    DifferenceKind,
    MigrationIssue,
    MigrationSummary,
    RecordDifference,
    ValueDifference,
)
from perseid.schema.records import dump_values

from ._arguments import format_data, printable
from ._output import pluralize, print_fields, print_json, print_message, print_text, to_json

MAX_SHOWN: Final = 20
"""Records shown that were not migrated; `--report` has all."""

MAX_SOURCES_NAMED: Final = 3
"""Other sources that are named."""

_REPORT_MODE: Final = 0o600  # a report shows private values


@contextmanager
def open_report(path: Path | None) -> Iterator[IO[str] | None]:
    """Open the report, which only its owner can read."""
    if path is None:
        yield None
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _REPORT_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, _REPORT_MODE)
        yield file


class Problems:
    """Reports the records that were not migrated."""

    def __init__(self, file: IO[str] | None, json: bool) -> None:
        self._file, self._json = file, json
        self._count = 0

    def __call__(self, problem: MigrationProblem) -> None:
        issue = MigrationIssue(_utf8(problem.handle), problem.outcome.value, _utf8(problem.reason))
        self._count += 1
        if self._file is not None:
            self._file.write(to_json(issue) + "\n")
        elif self._json:
            print_json(issue)
        if not self._json and self._count <= MAX_SHOWN:
            print_message(f"{issue.outcome}: {printable(issue.handle)}: {printable(issue.reason)}")

    def finish(self) -> None:
        """Say how many were not shown."""
        if not self._json and self._count > MAX_SHOWN:
            print_message(f"… and {self._count - MAX_SHOWN:,} more; --report FILE has all")


def print_summary(label: str, result: CopyResult, json: bool) -> None:
    """Print what a copy did."""
    counts = result.counts
    numbers = (
        counts.created,
        counts.updated,
        counts.deleted,
        counts.unchanged,
        counts.conflicts,
        counts.rejected,
    )
    new, not_hosted = [[_utf8(each) for each in names] for names in (result.prefixes, result.not_hosted)]
    summary = MigrationSummary(label, *numbers, new, result.job or None, not_hosted, dict(result.kept))
    if json:
        print_json(summary)
        return
    names = ("created", "updated", "deleted", "unchanged", "conflicts", "rejected")
    fields: dict[str, object] = {"source": printable(label)}
    fields |= {name: f"{number:,}" for name, number in zip(names, numbers, strict=True)}
    fields["new prefixes"] = ", ".join(map(printable, new)) or None
    fields["not hosted here"] = ", ".join(map(printable, not_hosted)) or None
    fields["job"] = (result.job or None) if result.counts.has_changes else None
    print_fields(fields)
    if not_hosted:
        print_message("The records of prefixes that are not hosted here do not resolve")
        print_message(f"To host one: perseid namespace add {quote(printable(not_hosted[0]))} --profile free")
    if result.kept:
        count, known = result.kept.total(), [source for source in result.kept if source]
        print_message(f"Kept {pluralize(count, 'record')} from another source that {printable(label)} lacks")
        options = " ".join(f"--continue {quote(printable(each))}" for each in known[:MAX_SOURCES_NAMED])
        print_message(f"If this source replaces it, and they were deleted, add: {options}")


def show_difference(found: Comparison, *, file: IO[str] | None, json: bool) -> None:
    """Print a difference, and write it to the report."""
    difference = to_difference(found)
    if file is not None:
        file.write(to_json(difference) + "\n")
    if json:
        if file is None:
            print_json(difference)
        return
    reason = f": {printable(found.reason)}" if found.reason else ""
    print_text(f"{difference.difference.value:<10}  {printable(found.name)}{reason}")
    if found.source is not None and found.here is not None:
        for old, new in _pair_values(found):
            for sign, value in (("-", old), ("+", new)):
                if value is not None:
                    print_text(f"    {sign} {_describe_value(value)}")


def _describe_value(value: Value) -> str:
    permissions = permissions_to_text(value.permissions)
    fields = f"{value.index}  {printable(value.type)}  {permissions}  TTL {value.ttl}  time {value.timestamp}"
    references = f"  {pluralize(len(value.references), 'reference')}" if value.references else ""
    return f"{fields}{references}  {format_data(value)}"


def to_difference(found: Comparison) -> RecordDifference:
    """Convert a difference for output, with all values that differ."""
    kind = DifferenceKind.DIFFERENT
    if found.reason:
        kind = DifferenceKind.UNREADABLE
    elif found.here is None:
        kind = DifferenceKind.MISSING
    elif found.source is None:
        kind = DifferenceKind.EXTRA
    values = [
        ValueDifference((old or new or Value(0, "", b"")).index, _dump(old), _dump(new))
        for old, new in _pair_values(found)
    ]
    return RecordDifference(_utf8(found.name), kind, values, _utf8(found.reason))


def _pair_values(found: Comparison) -> Iterator[tuple[Value | None, Value | None]]:
    """Yield the values of the source and of the installation that differ in any byte, by index."""
    old = {value.index: value for value in found.source or ()}
    new = {value.index: value for value in found.here or ()}
    for index in sorted(old.keys() | new.keys()):
        pair = old.get(index), new.get(index)
        encoded = [None if value is None else value.to_bytes() for value in pair]
        if encoded[0] != encoded[1]:
            yield pair


def _dump(value: Value | None) -> Any:
    return None if value is None else dump_values([value])[0]


def _utf8(text: str) -> str:
    """A text that JSON can contain."""
    return text.encode("utf-8", "backslashreplace").decode()

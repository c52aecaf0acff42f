"""The problems of the rows of a file as text: rows with the same problem are on one line."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from perseid.registry.advice import AdviceKind
from perseid.schema.imports import ImportResponse, RowProblemResponse

from ._arguments import printable
from ._output import pluralize

MAX_RANGES: Final = 10_000
"""Ranges of lines in memory; a file has more of them if its problems are spread over many rows."""

MAX_RANGES_SHOWN: Final = 8
"""Ranges of lines in one problem on a terminal; a file or pipe gets all."""

_OMITTED: Final = "…"
"""Stands for the handle where a text is about several rows."""


@dataclass(slots=True)
class RowProblems:
    """Rows with the same problem."""

    first: RowProblemResponse
    text: str
    """What is wrong with all of them, and the fix."""
    count: int = 0
    lines: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last line of each range."""

    def add(self, line: int) -> bool:
        """Add a row; return whether a range begins with it."""
        self.count += 1
        start, end = self.lines[-1] if self.lines else (0, -1)
        if line == end + 1:
            self.lines[-1] = start, line
            return False
        self.lines.append((line, line))
        return True

    def describe(self, max_ranges: int | None = None) -> str:
        """Describe the problem in one line, with at most some ranges of lines."""
        first = self.first
        column = f", {first.column}" if first.column else ""
        if self.count == 1:
            value = f" ({first.value})" if first.value and first.value not in first.message else ""
            return printable(f"line {first.line}{column}{value}: {first.message} {first.fix}".strip())
        ranges = [str(start) if start == end else f"{start}-{end}" for start, end in self.lines[:max_ranges]]
        more = f" {_OMITTED}" if len(ranges) < len(self.lines) else ""
        return printable(f"{pluralize(self.count, 'row')}{column}: {self.text} (lines {', '.join(ranges)}{more})")


def group_problems(
    problems: Iterable[RowProblemResponse], checked: ImportResponse, max_groups: int | None = None
) -> Iterator[RowProblems]:
    """Yield rows with the same problem together, in the order of their first lines.

    Problems are the same if they differ in nothing but the handle of the row. Memory is bounded: if the lines are too
    many, a problem is yielded again for later ones. After `max_groups` nothing more is read.
    """
    columns = checked.detected.get("columns", ())
    handle = next((each["header"] for each in columns if each["meaning"] == "handle"), "handle")
    groups: dict[tuple[str, str, str], RowProblems] = {}
    ranges = yielded = 0
    for problem in problems:
        if ranges == MAX_RANGES:
            yield from groups.values()
            yielded += len(groups)
            groups, ranges = {}, 0
        text = _describe(problem, checked, handle)
        key = problem.column, problem.rule, text
        if (group := groups.get(key)) is None:
            if yielded + len(groups) == max_groups:
                break
            group = groups[key] = RowProblems(problem, text)
        ranges += group.add(problem.line)
    yield from groups.values()


def _describe(problem: RowProblemResponse, checked: ImportResponse, handle: str) -> str:
    """Describe what is wrong with all rows that have the same problem."""
    is_advised = checked.advice_kind == AdviceKind.REDO_IMPORT.name and problem.advice_kind == AdviceKind.RESTORE.name
    text = problem.message if is_advised else f"{problem.message} {problem.fix}".strip()
    for name in {str(problem.advice_parameters.get("handle", "")), problem.value if problem.column == handle else ""}:
        text = text.replace(name, _OMITTED) if name else text
    return text

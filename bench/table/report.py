"""The table: its rows, the machine that they belong to, and both as Markdown and JSON."""

import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

CPU: Final = "µs CPU"
MEMORY: Final = "MiB"
TIME: Final = "s"
_COLUMNS: Final = ("measurement", "figure", "per second", "ratio", "compared with", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    figure: float
    per_second: float | None = None
    failed: int = 0
    """Requests that were lost, refused or answered wrongly."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: medians of all rounds."""

    part: str
    name: str
    unit: str
    figure: float
    per_second: float | None
    anchor: str
    """The row of the same part that it is compared with; an anchor is compared with itself."""
    ratio: float
    """The figure divided by that of the anchor in the same round."""
    failed: int
    """Of all rounds."""
    rounds: tuple[float, ...]


def row(part: str, name: str, unit: str, samples: Sequence[Sample], anchor: str, compared: Sequence[Sample]) -> Row:
    """Summarize the samples of all rounds, with those of the anchor."""
    rates = [sample.per_second for sample in samples if sample.per_second is not None]
    return Row(
        part,
        name,
        unit,
        _rounded(statistics.median(sample.figure for sample in samples)),
        _rounded(statistics.median(rates)) if rates else None,
        anchor,
        _rounded(statistics.median(one.figure / other.figure for one, other in zip(samples, compared, strict=True))),
        sum(sample.failed for sample in samples),
        tuple(_rounded(sample.figure) for sample in samples),
    )


def _rounded(figure: float) -> float:
    """Four digits, which is more than a measurement is good for."""
    return float(f"{figure:.4g}")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the programs of a run."""

    at: str
    cpu: str
    cores: int
    kernel: str
    python: str
    perseid: str
    load_average: tuple[float, ...]
    """When the run started: figures of a busy machine are worse."""
    versions: dict[str, str]

    @property
    def slug(self) -> str:
        """The name of the run: date, time and machine."""
        moment = re.sub(r"[-:]", "", self.at[:16])
        return f"{moment}-{re.sub(r'[^a-z0-9]+', '-', self.cpu.lower()).strip('-')}-{self.cores}-cores"


def describe_machine(perseid: str, versions: dict[str, str]) -> Machine:
    """Describe this machine now."""
    models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return Machine(
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        models[0] if models else platform.machine(),
        len(os.sched_getaffinity(0)),
        platform.release(),
        f"{platform.python_implementation()} {platform.python_version()}",
        perseid,
        tuple(round(load, 2) for load in os.getloadavg()),
        versions,
    )


@dataclass(frozen=True, slots=True)
class Report:
    """A run."""

    machine: Machine
    plan: dict[str, object]
    """What was measured: handles, records, seconds, rounds."""
    seconds: float
    """Duration of the run."""
    rows: tuple[Row, ...]

    @property
    def failed(self) -> int:
        """Failed requests of all rows."""
        return sum(row.failed for row in self.rows)

    def to_json(self) -> str:
        """All figures, also those of each round."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"

    def to_markdown(self) -> str:
        """The table for people."""
        machine = self.machine
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
        load = ", ".join(f"{one:.2f}" for one in machine.load_average)
        plan = ", ".join(f"{name} {value}" for name, value in self.plan.items())
        lines = [
            f"# Benchmark of {machine.at}",
            "",
            f"{machine.cpu}, {machine.cores} cores; Linux {machine.kernel}; {machine.python};",
            f"Perseid {machine.perseid}, {versions}; load average at the start {load}; {self.seconds:,.0f} s.",
            "",
            f"Plan: {plan}.",
            "",
            "Figures are medians of all rounds. CPU is that of all processes of the server for one response or record.",
            "The ratio is the median of the figure divided by that of the anchor in the same round.",
        ]
        for part in dict.fromkeys(row.part for row in self.rows):
            lines += ["", f"## {part}", "", _line(_COLUMNS), _line(("---", *("--:",) * 3, "---", "--:"))]
            lines += [_line(_cells(row)) for row in self.rows if row.part == part]
        return "\n".join(lines) + "\n"

    def save(self, folder: Path) -> Path:
        """Write both forms; return the path of the Markdown file."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.machine.slug}.json").write_text(self.to_json())
        path = folder / f"{self.machine.slug}.md"
        path.write_text(self.to_markdown())
        return path


def _cells(row: Row) -> tuple[str, ...]:
    rate = "" if row.per_second is None else f"{row.per_second:,.0f}"
    anchor = "" if row.anchor == row.name else row.anchor
    return (row.name, f"{_number(row.figure)} {row.unit}", rate, f"{_number(row.ratio)}", anchor, f"{row.failed:,}")


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:,.1f}" if figure >= 100 else f"{figure:,.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

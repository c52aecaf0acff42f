"""`perseid bench` measures a real server in a scratch installation, and leaves nothing behind."""

import shlex
from pathlib import Path

import msgspec
import pytest

from perseid.cli import _benchmark
from perseid.cli.bench import print_table
from perseid.schema.benchmark import BenchmarkReport
from tests.cli.installation import call, examples


def test_bench_measures_every_interface_and_removes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_benchmark, "WARM_UP", 0)
    monkeypatch.setattr(_benchmark, "SECONDS", 1)
    monkeypatch.chdir(tmp_path)
    (example,) = examples("bench")
    done = call(*shlex.split(example))
    assert done.code == 0, done.err
    report = msgspec.convert(done.json, BenchmarkReport)
    names = [row.name for row in report.rows]
    assert names[:3] == ["records appended in groups", _benchmark.FLOOR, "UDP resolution"]
    assert names[-3:] == ["HTTP redirect", "HTTP JSON record", "creates in one session"]
    assert all(row.per_second > 0 for row in report.rows)
    assert [row.failed for row in report.rows] == [0] * len(names)
    assert report.records == 10_000
    assert report.memory_mib > 0
    assert list(tmp_path.iterdir()) == []
    print_table(report)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["measurement", "per", "second", "CPU", "µs", "ratio", "failed"]
    assert lines[1].split()[-2:] == ["1.0", "0"], "bare sockets are the measure of the others"

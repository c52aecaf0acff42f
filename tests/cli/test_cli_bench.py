"""`perseid bench` measures a real server in a scratch installation, and leaves nothing behind."""

import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from perseid.cli import _benchmark
from perseid.cli.bench import print_table
from perseid.schema.benchmark import BenchmarkReport, BenchmarkRow
from perseid.server.benchmark import load
from perseid.server.benchmark.bare import UDP, bare
from perseid.server.benchmark.processes import children, run_together
from tests.cli.installation import call, examples, site
from tests.cli.program import ENVIRON, PERSEID


def test_bench_measures_every_interface_and_removes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_benchmark, "WARM_UP", 0)
    monkeypatch.setattr(_benchmark, "SECONDS", 1)
    monkeypatch.chdir(tmp_path)
    (example,) = examples("bench")
    other = {"PERSEID_LEDGER_DATABASE": "postgresql://127.0.0.1:1/names", "PERSEID_DIR": "names"}
    done = call(*shlex.split(example), environ=other)
    assert done.code == 0, "settings of another installation are not used: " + done.err
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
    assert lines[1].split()[-1] == "0"


def test_bench_runs_no_python_file_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "json", "asyncio", "perseid"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working directory')")
    monkeypatch.chdir(tmp_path)
    subprocess.run([*_benchmark._PROGRAM, "--version"], check=True, stdout=subprocess.DEVNULL)
    with bare(UDP) as echo:
        options = load.LoadOptions(load.UDP, echo.native, "1/%d", 100, 0.05, sockets=1, window=1)
        (report,) = run_together(echo.pid, load.__name__, [options]).reports
    assert report["answered"] > 0


@pytest.mark.parametrize(("floor", "ratio"), [(5.0, "2.0"), (0.0, "–")])
def test_bare_sockets_are_the_measure_of_the_others(
    floor: float, ratio: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a short run on a busy machine their time can be below the resolution of the clock."""
    rows = (BenchmarkRow(_benchmark.FLOOR, 1.0, floor, 0), BenchmarkRow("HTTP redirect", 1.0, 10.0, 0))
    print_table(BenchmarkReport(1, 1, 1.0, 1.0, rows))
    assert capsys.readouterr().out.splitlines()[2].split()[-2:] == [ratio, "0"]


def test_reason_is_shown_if_there_is_no_scratch_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_benchmark, "PREFIX", "12345/x")
    done = call("bench", str(tmp_path))
    assert done.code == 1
    assert "The measurement failed: the scratch installation was not created; see the messages" in done.err
    assert list(tmp_path.iterdir()) == []


def test_time_of_a_load_includes_its_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass"

    def fill(_installation: object, _records: int) -> None:
        subprocess.run([sys.executable, "-c", program], check=True)

    monkeypatch.setattr(_benchmark, "fill", fill)
    assert _benchmark._fill(site(tmp_path).directory, 1).cpu_microseconds >= 300_000


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--seconds", "inf"), "'inf' is not a whole number"),
        (("--seconds", "-1"), "'-1' is less than 1"),
        (("--seconds", "3601"), "'3601' is more than 3600"),
        (("missing",), "missing is not a folder"),
        (("/dev/null",), "/dev/null is not a folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words: tuple[str, ...], expected: str) -> None:
    done = call("bench", *words)
    assert (done.code, expected in done.err) == (2, True), done


def test_killed_bench_stops_its_processes_and_removes_its_files(tmp_path: Path) -> None:
    command = [str(PERSEID), "bench", str(tmp_path), "--records", "10", "--seconds", "3600"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRON) as process:
        assert process.stderr is not None
        assert any(_benchmark.FLOOR in line for line in process.stderr)
        deadline = time.monotonic() + 30
        while not any(_is_sending(pid) for pid in children(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        # The end of the pipe: no process has it any more.
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def _is_sending(pid: int) -> bool:
    """Whether a process is the load generator that runs for a long time, and has been told to start."""
    with suppress(OSError):
        descriptors = [path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir()]
        return b'"seconds": 450.0' in Path(f"/proc/{pid}/cmdline").read_bytes() and any(
            name.startswith("socket:") for name in descriptors
        )
    return False

"""The table of `make bench` has every row, with a ratio and the number of failed requests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import run
from bench.serving.web import Way, parse_output
from bench.table import anchors
from bench.table.probes import PARTS, Plan, paths
from bench.table.report import Report, Sample, row
from tests.server.live_servers import eventually

TINY = Plan(handles=50, records=50, seconds=0.1, rounds=1, clients=(2,))
WRK = """
  16 threads and 1 connections
     99%    2.00ms
{more}
  100 requests in 2.00s, 1.00MB read
"""


@pytest.fixture(scope="module")
def report() -> Report:
    return run(TINY)


def test_each_row_is_compared_with_an_anchor_of_the_same_part_and_nothing_failed(report: Report) -> None:
    figures = {(row.part, row.name): row.figure for row in report.rows}
    assert len(figures) == len(report.rows)
    assert min(figures.values()) > 0
    for row_ in report.rows:
        assert row_.ratio == pytest.approx(row_.figure / figures[row_.part, row_.anchor], rel=0.01)
    assert [(row_.name, row_.failed) for row_ in report.rows if row_.failed] == []
    assert report.failed == 0


def test_table_has_the_anchors_and_each_interface(report: Report) -> None:
    resolution = ("udp: found", "udp: not found", "tcp: a connection each", "tcp: kept open")
    expected = {f"{name}, {path}" for path in paths() for name in (*resolution, "memory: Perseid", "start: Perseid")}
    expected |= {"udp: echo in C", "udp: Knot, DNS", "udp: NSD, DNS", "http: nginx, return 302", "http: redirect"}
    expected |= {"http: record as JSON", "http: JSON, not found", "http: record page", "bulk: import of CSV"}
    expected |= {"creates: native, 2 clients in sessions", "creates: native, 2 clients, RSA each time"}
    expected |= {"creates: HTTP, mint, 2 clients", "creates: HTTP, PUT, with a token, 2 clients"}
    expected |= {"bulk: load into an empty ledger"}
    expected |= {"bulk: export as JSON lines", "memory: Knot", "start: Knot"}
    assert expected <= {f"{row_.part}: {row_.name}" for row_ in report.rows}
    assert {row_.part for row_ in report.rows} == set(PARTS)


def test_results_are_written_with_the_machine(report: Report, tmp_path: Path) -> None:
    path = report.save(tmp_path)
    text, plain = path.read_text(), json.loads(path.with_suffix(".json").read_text())
    assert path.name == f"{report.machine.slug}.md"
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    names = [cells[0].removeprefix("| ") for cells in lines if cells[-1] == "0 |"]
    assert names == [row_.name for row_ in report.rows]
    assert [found["rounds"] for found in plain["rows"]] == [list(row_.rounds) for row_ in report.rows]
    assert set(plain["machine"]["versions"]) == set(anchors.PACKAGES)
    assert "unknown" not in plain["machine"]["versions"].values()
    assert f"{plain['machine']['cpu']}, {len(os.sched_getaffinity(0))} cores; Linux " in text


def test_ratio_is_the_median_of_the_rounds_and_failures_are_added() -> None:
    samples = [Sample(10.0, 5.0, 1), Sample(40.0, 7.0), Sample(90.0, 6.0, 2)]
    compared = [Sample(10.0), Sample(20.0), Sample(30.0)]
    found = row("udp", "found", "s", samples, "echo", compared)
    assert (found.figure, found.per_second, found.ratio, found.failed) == (40.0, 6.0, 2.0, 3)


def test_wrong_responses_over_http_are_counted() -> None:
    refusals = "  Non-2xx or 3xx responses: 7"
    errors = "  Socket errors: connect 1, read 2, write 0, timeout 3"
    expected = ((302, "", 0), (302, refusals, 7), (404, refusals, 93), (302, errors, 6))
    for status, more, failed in expected:
        found = parse_output(WRK.format(more=more), 0.5, Way("", "", status=status))
        assert found is not None
        assert (found.cpu, found.rate, found.failed) == (5_000, 50, failed)


def test_dns_responses_without_success_are_counted(tmp_path: Path) -> None:
    with anchors.knot(tmp_path / "knot", 10) as server:
        assert server.load(0.1).failed == 0
        server.queries.write_text(f"0000001.{anchors.ZONE} TXT\nnone.{anchors.ZONE} TXT\n")
        assert server.load(0.1).failed > 0


def test_missing_program_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "find", lambda program: None if program in {"nsd", "knotd"} else program)
    with pytest.raises(SystemExit, match=r"^knotd, nsd not found\. Run: apt-get install knot nsd$"):
        run(TINY, ("udp",))


SLOW_COMPILER = """\
#!/bin/sh
[ "$1" = --version ] && exit
(while :; do number=$(((number + 1) % 100)); : > "$TMPDIR/part$number"; done) &
wait
"""


def test_interrupt_stops_all_servers_and_removes_their_files(tmp_path: Path) -> None:
    programs, files = tmp_path / "programs", tmp_path / "files"
    programs.mkdir()
    files.mkdir()
    (programs / "cc").write_text(SLOW_COMPILER)
    (programs / "cc").chmod(0o755)
    command = [sys.executable, "-m", "bench", "--only", "memory,tcp", "--handles", "10", "--seconds", "300"]
    environ = os.environ | {"TMPDIR": str(files), "PATH": f"{programs}:{os.environ['PATH']}"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        assert any(line.startswith("tcp:") for line in process.stderr)
        eventually(lambda: any(files.rglob("part*")), "the compiler writes")
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (128 + signal.SIGINT, "")
    assert list(files.iterdir()) == []
    commands, name = Path("/proc").glob, str(tmp_path).encode()
    assert not any(name in _read(path) for path in commands("[0-9]*/cmdline"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""

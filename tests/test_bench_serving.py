"""The benches of a running server ask what they are told to, and count what comes back."""

import os
import pstats
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.serving import api, client, commands, profiles
from perseid.server.benchmark.bare import TCP, UDP, bare
from perseid.server.benchmark.load import KEPT, Generator, LoadOptions
from perseid.server.benchmark.processes import CpuMeter, find_processes, memory


@pytest.mark.parametrize(("mode", "kind"), [(UDP, UDP), (TCP, TCP), (KEPT, TCP)])
def test_every_answer_is_counted_and_nothing_else(mode: str, kind: str) -> None:
    with bare(kind) as server:
        meter = CpuMeter(server.pid)
        tally = Generator(LoadOptions(mode, server.native, "1/%d", 100, 0.2, sockets=4, window=1)).run()
        wrong = Generator(LoadOptions(mode, server.native, "1/%d", 100, 0.1, code=100, sockets=4, window=1)).run()
        assert list(find_processes(server.pid)) == [server.pid]
        assert sum(meter.spent().values()) >= 0
        assert memory(server.pid).resident > memory(server.pid).own > 0
    assert tally.answered > 0
    assert (tally.wrong, tally.lost, tally.reopened) == (0, 0, 0)
    assert wrong.answered == 0
    assert wrong.wrong > 0


FORKING = """
import os, sys
from pathlib import Path

def work_of_the_parent(): pass
def work_of_the_child(): pass

work_of_the_parent()
if not (child := os.fork()):
    Path("/proc/self/comm").write_text("worker-1")
    work_of_the_child()
    sys.exit()
os.waitpid(child, 0)
"""


def test_forked_processes_have_profiles_of_their_own(tmp_path: Path) -> None:
    environ = os.environ | profiles.settings(tmp_path)
    subprocess.run([sys.executable, "-c", FORKING], check=True, env=environ)
    (child,) = tmp_path.glob("worker-*-main.prof")
    stats: dict[tuple[str, int, str], object] = vars(pstats.Stats(str(child)))["stats"]
    assert {name for *_, name in stats if name.startswith("work_of")} == {"work_of_the_child"}


def test_what_is_not_answered_is_lost() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        tally = Generator(LoadOptions(UDP, deaf.getsockname(), "1/%d", 100, 0.1, sockets=2, window=3)).run()
    assert (tally.answered, tally.lost) == (0, 6)


def test_a_connection_that_is_not_kept_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve_nobody() -> None:
            for _ in range(3):
                came, _ = door.accept()
                came.recv(65_536)
                came.close()

        thread = threading.Thread(target=serve_nobody)
        thread.start()
        tally = Generator(LoadOptions(KEPT, door.getsockname()[:2], "1/%d", 100, 0.3, sockets=1, window=1)).run()
        thread.join()
    assert tally.reopened == 3
    assert tally.answered == 0
    assert tally.lost >= 3


def test_the_bench_of_the_api_asks_for_everything_and_the_past(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["api", "--records", "30", "--clients", "2", "--seconds", "0"])
    monkeypatch.setattr(api, "MIN_CALLS", 2)
    api.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "30 records"
    names = [case.name for case in (*api.past(1, 2, ""), *api.CASES)]
    assert [line.strip().startswith(name) for name, line in zip(names, lines, strict=True)] == [True] * len(names)
    assert all(" µs CPU " in line for line in lines)
    assert {"TimeMap, 1 version", "JSON, at a time", "history", "mint"} <= set(names)


def test_the_bench_of_the_client_resolves_in_every_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["client", "--records", "30", "--seconds", "0", "--creates", "30"])
    client.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2].split("  ")[0] for line in lines] == [
        "one after the other",
        "one after the other, certified",
        "64 at a time",
        "from the cache",
        "creates in one session",
    ]


def test_the_bench_of_commands_runs_each_locally_and_remotely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["commands", "--rounds", "1"])
    commands.main()
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(line.count(" ms") == 2 for line in lines)

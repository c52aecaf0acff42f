"""The processes of a running server as the kernel sees them."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.server.running import Serving

PROC: Final = Path("/proc")
PATIENCE: Final = 60.0
"""Seconds to wait: much more than a loaded machine needs."""

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


def processes(server: Serving) -> dict[str, list[int]]:
    """The process ids of a server's children by role."""
    found: dict[str, list[int]] = {"worker": []}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                role = (folder / "comm").read_text().strip().partition("-")[0]
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[1]) == server.pid and fields[0] != "Z":
                found.setdefault(role, []).append(int(folder.name))
    return {role: sorted(pids) for role, pids in found.items()}


def started(server: Serving) -> dict[str, list[int]]:
    """The same as `processes`, once it has all workers.

    A server announces itself with the first one, which for a moment may still be a child of the process that forked it.
    """
    eventually(lambda: len(processes(server)["worker"]) == server.workers, "all workers")
    return processes(server)


def silence(pid: int, number: signal.Signals) -> None:
    """Stop or kill a process and wait until none of its threads runs: each continues until the signal reaches it."""
    os.kill(pid, number)
    eventually(lambda: not any(_runs(task) for task in _tasks(pid)), "a process without running threads")


def _tasks(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:  # it has ended
        return []


def _runs(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] not in "TtXZ"
    except OSError:
        return False


def named(server: Serving) -> dict[str, int]:
    """All processes of a server by name."""
    found = {"supervisor": server.pid}
    for role, pids in processes(server).items():
        for number, pid in enumerate(pids):
            found[f"{role}-{number}"] = pid
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process, in bytes."""

    rss: int
    """All resident pages, including files and shared ones."""
    pss: int
    """The same, with shared pages divided among their processes."""
    own: int
    """Anonymous memory: the part that grows with a leak."""


def memory(pid: int) -> Memory:
    """The current memory of a process."""
    found: dict[str, int] = {}
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * _KIB
    return Memory(found["Rss"], found["Pss"], found["Anonymous"])


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    memory: Memory
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    """What a process uses now."""
    return Usage(memory(pid), descriptors(pid), len(list((PROC / str(pid) / "task").iterdir())))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process since its start."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def descriptors(pid: int) -> int:
    """The number of open descriptors of a process."""
    return len(list((PROC / str(pid) / "fd").iterdir()))


def eventually(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait for a condition."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"not within {patience:.0f} s: {what}"
        time.sleep(0.02)

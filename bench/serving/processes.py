"""What the processes of a server take, as the kernel counts it: CPU time and memory, by the part that each plays."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUPERVISOR: Final = "supervisor"
CONTROL: Final = "control"
RESOLVER: Final = "resolver"

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
# Behind the name of the program, which may hold anything and ends with the last parenthesis: state, parent …
_PARENT, _USER, _SYSTEM = 1, 11, 12


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process has in memory, in MiB."""

    resident: float
    """All of it: what it shares with others, and every page of mapped files that it has touched."""
    shared_out: float
    """The same, with every page divided by the number of processes that have it (PSS)."""
    own: float
    """What it has for itself: without mapped files, which the system takes back freely."""


def _stat(pid: int) -> list[str]:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found = []
    for path in _PROC.iterdir():
        if path.name.isdecimal():
            try:
                if int(_stat(int(path.name))[_PARENT]) == pid:
                    found.append(int(path.name))
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
    return sorted(found)


def part_of(pid: int) -> str:
    """The part that a process plays: the last name of the module that it runs."""
    command = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return command[command.index("-m") + 1].rpartition(".")[2] if "-m" in command else "other"


def parts(supervisor: int) -> dict[int, str]:
    """All processes of a server, each with its part."""
    return {supervisor: SUPERVISOR} | {pid: part_of(pid) for pid in children(supervisor)}


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has taken, of all its threads, in user and in system mode; 0 if it is gone."""
    try:
        stat = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS


def memory(pid: int) -> Memory:
    """What a process has in memory now."""
    status = (_PROC / str(pid) / "status").read_text()
    shared_out = (_PROC / str(pid) / "smaps_rollup").read_text()
    return Memory(
        *(
            int(text.partition(f"\n{name}:")[2].split()[0]) / 1024
            for text, name in ((status, "VmRSS"), (shared_out, "Pss"), (status, "RssAnon"))
        )
    )


class Watch:
    """Counts what the processes of a server take from when it was made."""

    def __init__(self, supervisor: int) -> None:
        self._parts = parts(supervisor)
        self._before = self._now()

    def _now(self) -> Mapping[int, float]:
        return {pid: cpu_seconds(pid) for pid in self._parts}

    def spent(self) -> dict[str, float]:
        """The CPU seconds of each part since then."""
        found: dict[str, float] = {}
        for pid, now in self._now().items():
            part = self._parts[pid]
            found[part] = found.get(part, 0.0) + now - self._before[pid]
        return found

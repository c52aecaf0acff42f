"""CPU time and memory of a server's processes, as the kernel counts them, and processes that load it."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

SUPERVISOR: Final = "supervisor"
WORKER: Final = "worker"

_PROC = Path("/proc")
_PARENT = 1  # in the words after the program name, which may contain anything and ends with the last parenthesis
_CPU_CLOCK = 2  # clock_getcpuclockid(3): the lowest bits of the clock that counts all threads of a process


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process, in MiB."""

    resident: float
    """All resident pages, including shared ones and mapped files."""
    shared_out: float
    """The same, with every page divided by the number of its processes (PSS)."""
    own: float
    """Its part of anonymous and shared memory (PSS), without mapped files, which the system can reclaim."""


def _stat(pid: int) -> list[str]:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    """The running children of a process."""
    found = []
    for path in _PROC.iterdir():
        if path.name.isdecimal():
            try:
                if int(_stat(int(path.name))[_PARENT]) == pid:
                    found.append(int(path.name))
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
    return sorted(found)


def find_role(pid: int) -> str:
    """The role of a child: its name without its number."""
    return (_PROC / str(pid) / "comm").read_text().strip().partition("-")[0]


def find_processes(supervisor: int) -> dict[int, str]:
    """All processes of a server with their roles."""
    return {supervisor: SUPERVISOR} | {pid: find_role(pid) for pid in children(supervisor)}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all threads, user and system; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0


def memory(pid: int) -> Memory:
    """The current memory of a process."""
    rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    resident, shared_out, anonymous, shared_memory = (
        int(rollup.partition(f"\n{name}:")[2].split()[0]) / 1024 for name in ("Rss", "Pss", "Pss_Anon", "Pss_Shmem")
    )
    return Memory(resident, shared_out, anonymous + shared_memory)


class CpuMeter:
    """Measures CPU time of the processes of servers since its creation."""

    def __init__(self, *supervisors: int) -> None:
        self._parts = {pid: part for supervisor in supervisors for pid, part in find_processes(supervisor).items()}
        self._before = self._now()

    def _now(self) -> Mapping[int, float]:
        return {pid: cpu_seconds(pid) for pid in self._parts}

    def spent(self) -> dict[str, float]:
        """CPU seconds of each role since then."""
        found: dict[str, float] = {}
        for pid, now in self._now().items():
            part = self._parts[pid]
            found[part] = found.get(part, 0.0) + now - self._before[pid]
        return found


# Processes that load the server


class ProcessOptions:
    """Base of dataclasses with the options of a process, passed on its command line; `address` is host and port."""

    __slots__ = ()

    def to_json(self) -> str:
        """Encode as a command line argument."""
        plain: Any = self  # a dataclass
        return json.dumps(asdict(plain))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode it."""
        plain = json.loads(text)
        return cls(**plain | {"address": tuple(plain["address"])})


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Results and cost."""

    reports: tuple[dict[str, Any], ...]
    """The report of each process."""
    cpu: dict[str, float]
    """CPU seconds of each part of the server."""

    @property
    def total(self) -> float:
        """CPU seconds of the whole server."""
        return sum(self.cpu.values())


def run_together(supervisor: int, module: str, options: Sequence[ProcessOptions], *others: int) -> LoadResult:
    """Start `python -m module OPTIONS` for each of them, release all when all are ready, and wait for their end.

    `others` are other servers that work for them.
    """
    # Modules of this package never come from the working directory; those of `bench` are nowhere else.
    isolated = ["-P"] if module.startswith("perseid.") else []
    with ExitStack() as stack:
        processes = []
        for each in options:
            command = [sys.executable, *isolated, "-m", module, each.to_json()]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - modules of this program
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{module} failed to start; see its messages")
        meter = CpuMeter(supervisor, *others)
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        written = [process.communicate()[0] for process in processes]
        cpu = meter.spent()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{module} failed; see its messages")
    return LoadResult(tuple(json.loads(text) for text in written), cpu)

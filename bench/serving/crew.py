"""Processes that start at the same moment, and the CPU time of a server during their work."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.serving.installations import ROOT
from bench.serving.processes import Watch


@dataclass(frozen=True, slots=True)
class Effort:
    """Results and cost."""

    reports: tuple[dict[str, Any], ...]
    """The report of each process."""
    cpu: dict[str, float]
    """CPU seconds of each part of the server."""

    @property
    def total(self) -> float:
        """CPU seconds of the whole server."""
        return sum(self.cpu.values())


def at_work(supervisor: int, module: str, orders: Sequence[str]) -> Effort:
    """Start a process for each order, release all when all are ready, and wait for their end."""
    with ExitStack() as stack:
        crew = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", module, order],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for order in orders
        ]
        for one in crew:
            assert one.stdout is not None  # noqa: S101 - it is a pipe
            if one.stdout.readline() != "ready\n":
                raise RuntimeError(f"{module} has failed; its own words stand above")
        watch = Watch(supervisor)
        for one in crew:
            assert one.stdin is not None  # noqa: S101 - it is a pipe
            one.stdin.write("go\n")
            one.stdin.flush()
        written = [one.communicate()[0] for one in crew]
        cpu = watch.spent()
    if any(one.returncode for one in crew):
        raise RuntimeError(f"{module} has failed; its own words stand above")
    return Effort(tuple(json.loads(text) for text in written), cpu)

"""The slowest functions in a server's processes, from the profiles of `profiled/sitecustomize.py`."""

import os
import pstats
from pathlib import Path
from typing import Final

from bench.serving.profiled.sitecustomize import VARIABLE

SHOWN: Final = 25
"""Functions shown for each thread."""
LEAST: Final = 0.05
"""Minimum seconds of a thread to be shown."""


def settings(folder: Path) -> dict[str, str]:
    """Environment variables with which a server profiles itself into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = [str(Path(__file__).parent / "profiled"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: str(folder.resolve()), "PYTHONPATH": os.pathsep.join(path)}


def show(folder: Path) -> None:
    """Print the slowest functions by own time, busy threads first; threads of a pool are combined."""
    profiles: dict[str, pstats.Stats] = {}
    for path in sorted(folder.glob("*.prof")):
        process, _, _, thread = path.stem.split("-", 3)
        name = f"{process}: {thread.rstrip('-0123456789')}"
        if name in profiles:
            profiles[name].add(str(path))
        else:
            profiles[name] = pstats.Stats(str(path))
    for name, stats in sorted(profiles.items(), key=lambda one: -_total(one[1])):
        if _total(stats) >= LEAST:
            print(f"\n{name}")
            stats.strip_dirs().sort_stats("tottime").print_stats(SHOWN)


def _total(stats: pstats.Stats) -> float:
    return float(getattr(stats, "total_tt", 0.0))

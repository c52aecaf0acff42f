"""Profiles every thread of every process of a server; Python loads this by itself where it is on the path.

`python -m bench.serving --profile FOLDER` puts it there. Each thread gets a profile of its own, and a file is written
for each when the process ends. The clock on the wall is used, because asking for CPU time would take longer than most
functions do: what waits (`acquire`, `poll`, `get`, the loop's `run`) is to be left out of account. Profiling makes
calls expensive: the figures say where time goes, not how much there is of it.
"""

import atexit
import cProfile
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

VARIABLE = "PERSEID_BENCH_PROFILE"


def _process() -> str:
    """What the process is: the last name of the module that it runs."""
    command = sys.orig_argv
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else "command"
    return f"{module.rpartition('.')[2]}-{os.getpid()}"


def _profile_everything(folder: Path) -> None:
    profiles: list[tuple[str, cProfile.Profile]] = []
    run: Callable[[threading.Thread], None] = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profile = cProfile.Profile()
        profiles.append((thread.name, profile))
        profile.runcall(run, thread)

    def write() -> None:
        main.disable()
        for number, (name, profile) in enumerate(profiles):
            plain = "".join(letter if letter.isalnum() else "-" for letter in name)
            profile.dump_stats(folder / f"{_process()}-{number:02d}-{plain}.prof")

    threading.Thread.run = profiled  # type: ignore[method-assign, assignment]
    atexit.register(write)
    main = cProfile.Profile()
    profiles.append(("main", main))
    main.enable()


if os.environ.get(VARIABLE):
    _profile_everything(Path(os.environ[VARIABLE]))

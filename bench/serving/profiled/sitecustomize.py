"""Profiler for every thread of every process of a server; Python imports it automatically if it is on the path.

`python -m bench.serving --profile FOLDER` adds it. Each thread gets its own profile, and a file is written for each
when the process ends, also with `os._exit`, as forked processes do. It uses wall-clock time, because reading CPU time
would take longer than most functions; ignore functions that wait (`acquire`, `poll`, `get`, the loop's `run`).
Profiling makes calls expensive: the figures show where time goes, not how much.
"""

import atexit
import cProfile
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

VARIABLE = "PERSEID_BENCH_PROFILE"


def _process() -> str:
    """The name of the process without its number, as forked ones set it, and its id."""
    return f"{Path('/proc/self/comm').read_text().strip().partition('-')[0]}-{os.getpid()}"


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

    leave = os._exit

    def write_and_leave(status: int) -> NoReturn:
        write()
        leave(status)

    threading.Thread.run = profiled  # type: ignore[method-assign, assignment]
    atexit.register(write)
    os._exit = write_and_leave
    main = cProfile.Profile()
    profiles.append(("main", main))
    main.enable()
    os.register_at_fork(after_in_child=main.clear)  # what the fork server did is its own


if os.environ.get(VARIABLE):
    _profile_everything(Path(os.environ[VARIABLE]))

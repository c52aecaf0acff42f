"""A clock for all processes of a running server, set by a test: another date, or a stopped clock.

The product is not involved. Python imports a module `sitecustomize` before it runs a program; the one here replaces
`time.time` and `time.time_ns`. They follow a memory-mapped file, so the clock can be set while processes run. The
monotonic clock is unchanged.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

_SECOND: Final = 1_000_000_000
_FORM = Struct("=qq")  # how fast it goes, 0 or 1, and nanoseconds to add

_MODULE = '''"""Shows the time that a test has set."""

import mmap
import os
import struct
import time

_real = time.time_ns
_read = struct.Struct("=qq").unpack_from

with open(os.environ["PYTHON_CLOCK_OF_TESTS"], "rb") as _file:
    _shown = mmap.mmap(_file.fileno(), 0, access=mmap.ACCESS_READ)


def time_ns():
    pace, more = _read(_shown)
    return _real() * pace + more


time.time_ns = time_ns
time.time = lambda: time_ns() / 1_000_000_000
'''


@dataclass(frozen=True)
class OtherClock:
    """The clock of servers started in its environment."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "OtherClock":
        """Create a clock in a new folder; it shows the real time until it is set."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_MODULE, encoding="utf-8")
        clock = cls(folder)
        clock.file.write_bytes(_FORM.pack(1, 0))
        return clock

    @property
    def file(self) -> Path:
        return self.folder / "clock"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a process."""
        # Resolvers inherit variables that start with PYTHON, and few others.
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        # The compiled module has the clock of the system.
        settings = {"PYTHON_CLOCK_OF_TESTS": str(self.file), "PERSEID_NATIVE_COMPILED": "false"}
        return {"PYTHONPATH": os.pathsep.join(paths), **settings}

    def now(self) -> float:
        """The time it shows."""
        pace, more = _FORM.unpack(self.file.read_bytes())
        return float((time.time_ns() * pace + more) / _SECOND)

    def show(self, seconds: float) -> None:
        """Set the time; the clock continues from there."""
        self._set(1, int(seconds * _SECOND) - time.time_ns())

    def stop_at(self, seconds: float) -> None:
        """Set the time and stop the clock."""
        self._set(0, int(seconds * _SECOND))

    def _set(self, pace: int, more: int) -> None:
        # Overwritten, not replaced: the processes have mapped this file.
        with self.file.open("r+b") as file:
            file.write(_FORM.pack(pace, more))

"""A clock for all processes of a running server, which a test sets: another date, or one that stands still.

The product has nothing to do with it. Python looks for a module `sitecustomize` before it runs a program, and the one
that is put in its way here replaces `time.time` and `time.time_ns`. What they show follows a file that all processes
have in their memory, so it can be set while they run. The monotonic clock stays what it is.
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
    """The clock of servers that are started in its environment."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "OtherClock":
        """A clock in a new folder; it shows what all clocks show until it is set."""
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
        """What a process has to be started with."""
        # Of the environment resolvers get what begins with PYTHON, and little else.
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "PYTHON_CLOCK_OF_TESTS": str(self.file)}

    def now(self) -> float:
        """What it shows."""
        pace, more = _FORM.unpack(self.file.read_bytes())
        return float((time.time_ns() * pace + more) / _SECOND)

    def show(self, seconds: float) -> None:
        """Show this from now on, and go on from there."""
        self._set(1, int(seconds * _SECOND) - time.time_ns())

    def stop_at(self, seconds: float) -> None:
        """Show this from now on, and stand still."""
        self._set(0, int(seconds * _SECOND))

    def _set(self, pace: int, more: int) -> None:
        # Written over, not replaced: the processes have this very file in their memory.
        with self.file.open("r+b") as file:
            file.write(_FORM.pack(pace, more))

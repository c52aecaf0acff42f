"""What ps and top show of a process.

The supervisor loads this module, so it imports little.
"""

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc/self")
"""Where Linux describes this process (proc_pid_comm(5), proc_pid_stat(5))."""

_STATE = 3  # number of the first field of `stat` after the name
_ARG_START, _ARG_END = 48, 49  # numbers of the fields with the addresses of the command line


def set_title(name: str, directory: str = "") -> None:
    """Set the name, of which the kernel keeps 15 bytes, and the command line, which must fit where it was.

    The interpreter has copied its command line and does not read it again.
    """
    with suppress(OSError):  # some sandboxes forbid it
        (PROC / "comm").write_text(name, encoding="ascii")
    with suppress(OSError):
        fields = (PROC / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        start, end = (int(fields[number - _STATE]) for number in (_ARG_START, _ARG_END))
        if 0 < start < end:  # 0 if the system does not tell
            title = f"perseid: {name} {directory}".rstrip().encode("utf-8", "surrogateescape")
            ctypes.memmove(start, title[: end - start - 1].ljust(end - start, b"\0"), end - start)

"""Lines of the log on their way out of the process: whole, and without ever making it wait.

All processes of a server write to the same standard error: a pipe, a socket of the journal, a file, a terminal. Who
reads it may be slow or stopped, and a server must not stand still for that reason. So a line that cannot be written at
once waits here, up to a bound, and beyond it is lost and counted; when there is room again a line says how many were
lost. Writes have at most PIPE_BUF octets, which a pipe takes whole or not at all, so that lines of several processes do
not run into each other.
"""

import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import RLock
from time import monotonic
from typing import Final

MAX_LINE: Final = select.PIPE_BUF
"""Octets of the longest line, its end included."""

MAX_WAITING: Final = 1 << 20
"""Octets that wait for a reader: some seconds of a busy log, and nothing that a machine would notice."""


class Output:
    """Where lines go. For any number of threads."""

    def __init__(self, descriptor: int, complaint: Callable[[int], str] = "{} lines were lost".format) -> None:
        """`complaint` makes the line that says how many were lost. The descriptor stays the caller's."""
        self.lost = 0
        """Lines that nobody will ever read."""
        self._complaint = complaint
        self._complained = 0  # how many of those lost were mentioned
        self._waiting: deque[bytes] = deque()
        self._octets = 0  # of what waits
        self._lock = RLock()  # a signal may interrupt a write, and what it does may be worth a line
        self._pushing = False
        self._descriptor = descriptor
        self._own: int | None = None  # a descriptor of ours, which does not wait
        self._socket: socket.socket | None = None
        self._open()

    def _open(self) -> None:
        """Find the way not to wait: that of the descriptor itself is shared with other processes, and theirs too."""
        with suppress(OSError):
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(self._descriptor))
            elif stat.S_ISFIFO(mode):
                # Opened anew it is the same pipe; refused where the pipe is somebody else's, and then we ask first.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._own = os.open(f"/proc/self/fd/{self._descriptor}", flags)

    def write(self, lines: Iterable[str]) -> None:
        """Write lines, each with its end; what cannot be written at once waits."""
        with self._lock:
            for line in lines:
                self._put(line.encode("utf-8", "backslashreplace"))
            self._push()

    def flush(self) -> None:
        """Try again to write what waits; to be called now and then."""
        if self._waiting:
            with self._lock:
                self._push()

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for so long as that may take at most, and give up the rest."""
        deadline = monotonic() + seconds
        with self._lock:
            while not self._push() and (left := deadline - monotonic()) > 0:
                self._has_room(left)
            self.lost += sum(block.count(b"\n") for block in self._waiting)
            self._waiting.clear()
            self._octets = 0
            if self._socket is not None:
                self._socket.close()
            if self._own is not None:
                os.close(self._own)
            self._socket = self._own = None

    def _put(self, line: bytes) -> None:
        if self._octets + len(line) > MAX_WAITING:
            self.lost += 1
            return
        self._octets += len(line)
        if self._waiting and not self._pushing and len(self._waiting[-1]) + len(line) <= MAX_LINE:
            self._waiting[-1] += line
        else:
            self._waiting.append(line)

    def _push(self) -> bool:
        """Write as much as there is room for; whether that was all."""
        if self._pushing:  # interrupted in the middle of it: whoever was interrupted goes on with this too
            return True
        self._pushing = True
        try:
            while self._waiting:
                block = self._waiting[0]
                written = self._write(block)
                if written is None:
                    self.lost += block.count(b"\n")
                    written, heard = len(block), False
                else:
                    heard = True
                self._octets -= written
                if written < len(block):
                    self._waiting[0] = block[written:]
                    return False
                self._waiting.popleft()
                if heard and self.lost > self._complained and not self._waiting:
                    text, self._complained = self._complaint(self.lost - self._complained), self.lost
                    self._put(text.encode("utf-8", "backslashreplace"))
            return True
        finally:
            self._pushing = False

    def _write(self, block: bytes) -> int | None:
        """How many octets were taken; None if nobody is there to take any, or the disk is full."""
        try:
            if self._socket is not None:
                return self._socket.send(block, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._own is not None:
                return os.write(self._own, block)
            return os.write(self._descriptor, block) if self._has_room(0) else 0
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return None

    def _has_room(self, seconds: float) -> bool:
        asked = select.poll()
        asked.register(self._descriptor, select.POLLOUT)
        return bool(asked.poll(seconds * 1000))

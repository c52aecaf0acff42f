"""Fork server: a process that has loaded all modules, and from which the supervisor's other children are forked.

Loading them takes half a second, a fork some milliseconds; and what is loaded once needs memory once. It opens no file
of the installation, has no thread and no secret: children open databases and keys, and start threads and event loops,
after the fork.

Its standard input is a socket. The first message has the shared counters, where it says that it is alive, from its
start on: while it loads modules, before each of them. A request is the module and the options of a child as JSON, with
the descriptors that these name; the reply is its process id or a problem. The child becomes one of the supervisor,
which adopts orphans (PR_SET_CHILD_SUBREAPER), so it outlives the fork server. It waits for the supervisor's first news
before it does anything: one of which the supervisor does not learn, because the fork server was killed, reads the end
of that pipe and ends.

The supervisor loads this module, so it imports little.
"""

import gc
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from time import monotonic
from typing import Any, Final, NoReturn

from perseid.server.observe.counters import SharedCounters

from . import CHILD_SIGNALS, systemd
from .child import BEAT_SECONDS
from .title import set_title

PRELOADED: Final = (
    "perseid.server.processes.resolver",
    "perseid.server.processes.writer",
    "perseid.server.processes.worker",
    "perseid.server.http.dispatch",
    "perseid.server.http.v1.routes",  # these two the first worker loads when it has started
    "perseid.server.processes.jobs",
    "perseid.server.observe.collector",
    "perseid.records.xml_builder",
)
"""Modules to load before they are asked for, in the order in which children are started."""

_CHANNEL: Final = 0
_BATCH: Final = 250  # descriptors in a message; the kernel allows 253 (SCM_MAX_FD)
_MAX_MESSAGE: Final = 1 << 17
_MORE: Final = b" "


class ForkFailed(Exception):
    """A child could not be forked; the message says why."""


def fork() -> tuple[int, int]:
    """Fork a fork server from this process, which has loaded some modules already, before it executes the supervisor.

    Return its process id and the descriptor of the supervisor's end of its socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not (pid := os.fork()):
        ours.close()
        os.dup2(theirs.fileno(), _CHANNEL)
        theirs.close()
        if not sys.flags.safe_path:  # as with -P, see `spawn`
            del sys.path[0]
        try:
            run()
        except Exception:  # noqa: BLE001 - the command line, whose process this was, must not report it
            sys.excepthook(*sys.exc_info())
            sys.exit(1)
    theirs.close()
    ours.set_inheritable(True)
    return pid, ours.detach()


def spawn(environ: Mapping[str, str]) -> tuple[int, socket.socket]:
    """Start a fork server; return its process id and the supervisor's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            # -P: do not import from the working directory, which other users may be able to write.
            command = [sys.executable, "-P", "-m", "perseid.server.processes.fork_server"]
            files = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL)]
            pid = os.posix_spawn(sys.executable, command, environ, file_actions=files, setsigmask=CHILD_SIGNALS)
        except OSError:
            ours.close()
            raise
    return pid, ours


def send_counters(channel: socket.socket, descriptor: int) -> None:
    """Send the shared counters; the last slot is that of the fork server."""
    socket.send_fds(channel, [b"{}"], [descriptor])


def request(channel: socket.socket, module: str, options: Mapping[str, Any], descriptors: Sequence[str]) -> None:
    """Ask for a child. `descriptors` are the names of those options that are descriptors or lists of them."""
    numbers: list[int] = []
    for name in descriptors:
        numbers += [options[name]] if isinstance(options[name], int) else options[name]
    while len(numbers) > _BATCH:
        socket.send_fds(channel, [_MORE], numbers[:_BATCH])
        del numbers[:_BATCH]
    message = {"module": module, "options": dict(options), "descriptors": list(descriptors)}
    socket.send_fds(channel, [json.dumps(message).encode()], numbers)


def read_reply(channel: socket.socket) -> int:
    """Return the process id of the child that was asked for; 0 if the fork server has ended."""
    try:
        data = channel.recv(_MAX_MESSAGE, socket.MSG_DONTWAIT)
    except ConnectionResetError:
        data = b""
    reply = json.loads(data or b'{"pid": 0}')
    if "problem" in reply:
        raise ForkFailed(reply["problem"])
    return int(reply["pid"])


def run() -> NoReturn:
    """Serve requests until the supervisor ends. In a forked child: run it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)  # children unblock them when they have handlers
    for name in systemd.VARIABLES:  # only the supervisor notifies systemd
        os.environ.pop(name, None)
    gc.disable()  # nothing that is loaded becomes garbage
    preload = list(PRELOADED)
    with socket.socket(fileno=os.dup(_CHANNEL)) as channel:
        os.dup2(null := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), _CHANNEL)
        os.close(null)
        heartbeat = _Heartbeat(channel)
        heartbeat.beat()
        set_title("forkserver")
        sys.meta_path.insert(0, heartbeat)
        while True:
            _wait(channel, preload, heartbeat)
            received = _receive(channel)
            if received is None:
                _exit(0)
            message, numbers = received
            import_module(message["module"])
            gc.freeze()  # these objects live as long as the process, and their pages stay shared
            if _fork(channel):
                break
            for number in numbers:
                os.close(number)
    sys.meta_path.remove(heartbeat)
    gc.enable()
    options = message["options"]
    for name in message["descriptors"]:
        value = options[name]
        options[name] = numbers.pop(0) if isinstance(value, int) else [numbers.pop(0) for _ in value]
    set_title(options["name"], options.get("directory", ""))
    _exit(import_module(message["module"]).main(json.dumps(options)) if _is_known(options["news"]) else 0)


def _exit(code: int) -> NoReturn:
    """End without freeing every object on its own, which takes 0.05 s once all modules are loaded."""
    logging.shutdown()  # writes the lines that wait for a slow reader
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Heartbeat:
    """Says that this process is alive; as a finder that finds nothing, before each module that is loaded."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.counters: SharedCounters | None = None

    def beat(self) -> None:
        """Say it in the shared counters, once they have been received."""
        if self.counters is None and _is_readable(self._channel):
            received = _receive(self._channel)
            if received is None:
                sys.exit(0)
            self.counters = SharedCounters(received[1][0])
        if self.counters is not None:
            self.counters.beat(len(self.counters) - 1, monotonic())

    def find_spec(self, *_: object) -> ModuleSpec | None:
        self.beat()
        return None


def _wait(channel: socket.socket, preload: list[str], heartbeat: _Heartbeat) -> None:
    """Wait for a request. Meanwhile load modules, and say that this process is alive."""
    while not _is_readable(channel, 0 if preload else BEAT_SECONDS) or heartbeat.counters is None:
        if preload:
            import_module(preload.pop(0))
        heartbeat.beat()


def _is_readable(channel: socket.socket, seconds: float = 0) -> bool:
    return bool(select.select([channel], [], [], seconds)[0])


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request and its descriptors; None at the end of the supervisor."""
    numbers: list[int] = []
    data = _MORE
    with suppress(ConnectionResetError):
        while data == _MORE:
            data, some, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, _BATCH)
            numbers += some
        return (json.loads(data), numbers) if data else None
    return None


def _reply(channel: socket.socket, reply: Mapping[str, Any]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the supervisor has ended; `_receive` notices
        channel.send(json.dumps(reply).encode())


def _fork(channel: socket.socket) -> bool:
    """Fork a child that the supervisor adopts, because its first parent ends at once. Return whether this is it."""
    try:
        if parent := os.fork():
            _, status = os.waitpid(parent, 0)
            if status:
                _reply(channel, {"problem": "the process was killed"})
            return False
    except OSError as error:
        _reply(channel, {"problem": error.strerror})
        return False
    try:
        if not (pid := os.fork()):
            return True
        _reply(channel, {"pid": pid})
    except OSError as error:
        _reply(channel, {"problem": error.strerror})
    os._exit(0)


def _is_known(news: int) -> bool:
    """Wait for the first news; return False if the supervisor has closed the pipe instead."""
    poll = select.poll()
    poll.register(news, select.POLLIN)
    return bool(poll.poll()[0][1] & select.POLLIN)


if __name__ == "__main__":
    run()

"""The supervisor: makes the sockets, starts control and the resolvers, watches them and starts them again.

It reads nothing that came from the network, opens no database and knows no key, so that there is little that could end
it. What must survive the others belongs to it: the sockets, with the requests that wait in them; the Unix sockets
between each resolver and control; the memory with counters and buckets. A process that is started again finds all that
as it was.

Each resolver has a UDP socket of its own on the same port (SO_REUSEPORT), and the kernel spreads the clients over them.
Nobody opens one more: it would get its share of the datagrams. The TCP socket is made first and alone, so that a second
server on the port is refused and not mixed in.

Control says over a pipe when it is ready, what the resolvers are to know, and once a second that it is alive. Over
another one it hears which processes there are and how often they were started again, for its metrics.
"""

import contextlib
import fcntl
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, Self

from perseid.server.limits.udp import SLOTS, TrafficLimit
from perseid.server.observe import logs
from perseid.server.observe.counters import SharedCounters

from . import CHILD_SIGNALS, systemd
from .sockets import StartupError, bind, listen, pair

MIN_RESTART_DELAY: Final = 0.1
MAX_RESTART_DELAY: Final = 5.0
"""Seconds before a process is started again that ended just after its start: doubled each time, up to the longest."""

STABLE_SECONDS: Final = 10.0
"""Seconds after which a process counts as having been well; then it is started again at once."""

DRAIN_SECONDS: Final = 10.0
"""Seconds that processes get to finish what they have begun, when all is to end."""

STUCK_TIMEOUT: Final = 10.0
"""Seconds after which a resolver is killed that takes nothing although datagrams wait for it."""

START_TIMEOUT: Final = 600.0
"""Seconds for control to begin: it opens databases, which may be slow, and says its first word when it serves."""

SILENCE_TIMEOUT: Final = 60.0
"""Seconds without a word from control after which it is taken for stuck and killed. It says a word every second."""

SAFE_VARIABLES: Final = (
    "HOME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LANG",
    "LC_",
    "LD_",
    "PATH",
    "PYTHON",
    "TMPDIR",
    "TZ",
)
"""How variables begin that resolvers inherit: what Python and the system need, and the log."""

_PIPE_READ = 65_536
_logger = logging.getLogger(
    "perseid.server.processes.supervisor"
)  # the module is run as a program, and named otherwise then


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What is to be served, and how it is said."""

    directory: str
    host: str
    port: int
    resolvers: int
    accept_clock: bool = False
    log_format: str = "text"
    log_level: int = logging.INFO
    as_json: bool = False
    """Whether the start is told as JSON."""
    startup_lines: tuple[str, ...] = ()
    """Lines to print at the start, with {host}, {port}, {http} and {http_first} in them."""
    http_host: str = ""
    """Where HTTP is served; nowhere if it is empty."""
    http_port: int = 0
    http_schemes: tuple[str, ...] = ("http", "https")
    """What is spoken there, for the lines."""

    def to_json(self) -> str:
        """As an argument on a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it again."""
        return cls(**json.loads(text))


@dataclass(slots=True)
class ChildProcess:
    """A process that is kept running."""

    name: str
    command: Callable[[], tuple[Sequence[str], Sequence[int]]]
    """Its command line, and the descriptors that it inherits."""
    process: "subprocess.Popen[bytes] | None" = None
    exit_descriptor: int = -1
    """Can be read when the process has ended."""
    started: float = 0.0
    restart_delay: float = 0.0
    restart_at: float | None = None
    """When it is to be started again."""
    starts: int = 0
    crashes: int = 0
    """How often it ended without having been told to."""
    replaced: bool = False
    """Whether it was told to end, to make room for one with other orders."""
    kill_at: float | None = None
    """When it is killed if it has not ended by itself."""
    progress: tuple[int, float] = (0, 0.0)
    """Of a resolver: how many datagrams it had taken, and since when it was no more."""
    descriptors: list[int] = field(default_factory=list)
    """What is closed here as soon as it runs: its ends of pipes."""


class Supervisor:
    """All processes of a server."""

    def __init__(self, plan: ServerOptions) -> None:
        self._plan = plan
        self._listener, self._udp = bind(plan.host, plan.port, plan.resolvers)
        self.port: int = self._listener.getsockname()[1]
        self._http = listen(plan.http_host, plan.http_port) if plan.http_host else None
        self.http_port: int = self._http.getsockname()[1] if self._http is not None else 0
        self._pairs = [pair() for _ in self._udp]
        self._shared_counters = SharedCounters.create(plan.resolvers)
        self._traffic, self._handovers = TrafficLimit.create(SLOTS), TrafficLimit.create(SLOTS)
        self._lifeline, self._lifeline_writer = os.pipe()
        self._ready, self._ready_for_children = os.pipe()
        self._pending_resolvers = plan.resolvers  # resolvers that have yet to say that they read
        # What the system is told of this service comes from here alone.
        self._environ = {name: value for name, value in os.environ.items() if name not in systemd.VARIABLES}
        # Variables may be secrets. Resolvers, which strangers talk to first, get their settings from control.
        self._resolver_environ = {
            name: value for name, value in self._environ.items() if name.startswith(SAFE_VARIABLES)
        }
        self._selector = selectors.DefaultSelector()
        self._signals, wakeup = _signal_pipe()
        signal.set_wakeup_fd(wakeup)
        self._control = ChildProcess("control", self._control_command)
        self._resolvers: list[ChildProcess] = []
        self._status = self._news = -1
        self._last_status_at = 0.0
        self._unread = b""
        self._resolver_options: dict[str, Any] | None = None
        self._details: dict[str, Any] = {}
        self._to_replace: list[ChildProcess] = []
        self._stopping = False
        self._exit_code = 0

    # Life

    def run(self) -> int:
        """Serve until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # the pipe tells
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        self._start(self._control)
        while not self._stopping:
            for key, _ in self._selector.select(self._select_timeout()):
                # What came before it may have closed this one: the end of control closes its pipe.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data()
            if not self._stopping:
                systemd.watchdog()
                self._check_children(monotonic())
        self._stop_all()
        return self._exit_code

    def _check_children(self, now: float) -> None:
        """Start what is due, and kill what is stuck: it is started again then."""
        for child in (self._control, *self._resolvers):
            if child.restart_at is not None and now >= child.restart_at:
                self._start(child)
            if child.process is not None and child.kill_at is not None and now > child.kill_at:
                _logger.warning("%s did not end in %d s and is killed", child.name, DRAIN_SECONDS)
                self._kill(child)
        silence = now - (self._last_status_at or self._control.started)
        if self._control.process is not None and silence > (SILENCE_TIMEOUT if self._last_status_at else START_TIMEOUT):
            _logger.error("control has not been heard of for %d s and is killed", silence)
            self._kill(self._control)
        for number, child in enumerate(self._resolvers):
            if child.process is not None and self._is_stuck(number, child, now):
                _logger.error("%s has taken nothing for %d s although datagrams wait", child.name, STUCK_TIMEOUT)
                self._kill(child)

    def _is_stuck(self, number: int, child: ChildProcess, now: float) -> bool:
        """Whether datagrams wait for a resolver that has taken none for a while."""
        taken = self._shared_counters.counters(number).read().received
        waiting = array("i", [0])
        fcntl.ioctl(self._udp[number], termios.FIONREAD, waiting)
        if not waiting[0] or taken != child.progress[0]:
            child.progress = (taken, now)
        return now - max(child.progress[1], child.started) > STUCK_TIMEOUT

    def _select_timeout(self) -> float:
        """How long to sleep at most."""
        restarts_at = [child.restart_at for child in (self._control, *self._resolvers) if child.restart_at is not None]
        return max(0.0, min([1.0, *(restart_at - monotonic() for restart_at in restarts_at)]))

    def _stop_all(self) -> None:
        """Control first: it finishes what it has begun, and its answers leave through the resolvers."""
        systemd.stopping()
        for children in ([self._control], self._resolvers):
            for child in children:
                if child.process is not None:
                    child.process.terminate()
            deadline = monotonic() + DRAIN_SECONDS
            for child in children:
                if child.process is None:
                    continue
                try:
                    child.process.wait(max(0.0, deadline - monotonic()))
                except subprocess.TimeoutExpired:
                    _logger.warning("%s did not end in %d s and is killed", child.name, DRAIN_SECONDS)
                    child.process.kill()
                    child.process.wait()

    def _on_signal(self) -> None:
        for number in os.read(self._signals, 64):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stopping = True
            elif number == signal.SIGHUP and self._control.process is not None:
                systemd.reloading()
                self._control.process.send_signal(signal.SIGHUP)

    # Processes

    def _start(self, child: ChildProcess) -> None:
        child.restart_at = child.kill_at = None
        child.replaced = False
        child.started = monotonic()
        child.starts += 1
        command, descriptors = child.command()
        # What the terminal or an operator says meanwhile waits until the process has its handlers; see `processes`.
        signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)
        try:
            # Not from the working directory (-P): whoever may write there would decide what the server runs.
            child.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", *command],
                pass_fds=descriptors,
                env=self._environ if child is self._control else self._resolver_environ,
                stdin=subprocess.DEVNULL,
            )
            child.exit_descriptor = os.pidfd_open(child.process.pid)
        except OSError as error:  # no memory, or no room for processes: others may end
            _logger.error("%s cannot be started: %s", child.name, error.strerror)  # noqa: TRY400 - said in full
            if child.process is not None:
                child.process.kill()
                child.process.wait()
                child.process = None
            child.restart_at = monotonic() + MAX_RESTART_DELAY
        else:
            self._selector.register(child.exit_descriptor, selectors.EVENT_READ, partial(self._on_exit, child))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)
            while child.descriptors:
                os.close(child.descriptors.pop())
        self._send_news()

    def _kill(self, child: ChildProcess) -> None:
        child.kill_at = None
        if child.process is not None:
            child.process.kill()

    def _on_exit(self, child: ChildProcess) -> None:
        assert child.process is not None  # noqa: S101 - it was running
        code = child.process.wait()
        self._selector.unregister(child.exit_descriptor)
        os.close(child.exit_descriptor)
        child.process = None
        now = monotonic()
        if child is self._control:
            if self._status >= 0:
                self._read_status()
            self._close_status()
            if self._resolver_options is None:  # it has never been ready, and has said why
                self._stopping, self._exit_code = True, 1
                return
        if child.replaced:
            child.restart_delay, child.restart_at = 0.0, now
            return
        child.crashes += 1
        lifetime = now - child.started
        child.restart_delay = (
            0.0
            if lifetime >= STABLE_SECONDS
            else min(max(child.restart_delay * 2, MIN_RESTART_DELAY), MAX_RESTART_DELAY)
        )
        child.restart_at = now + child.restart_delay
        _logger.warning("%s ended %s and is started again", child.name, _format_exit(code))

    # Control

    def _control_command(self) -> tuple[Sequence[str], Sequence[int]]:
        status, theirs = os.pipe()
        news, mine = os.pipe()
        os.set_blocking(status, False)
        os.set_blocking(mine, False)
        if self._news >= 0:
            os.close(self._news)
        self._news = mine
        self._status, self._unread, self._last_status_at = status, b"", 0.0
        self._selector.register(status, selectors.EVENT_READ, self._read_status)
        self._control.descriptors += (theirs, news)
        pairs = [control.fileno() for control, _ in self._pairs]
        http = () if self._http is None else (self._http.fileno(),)
        first = (
            self._resolver_options is None
        )  # later the clock must stand by itself, and a port that is taken ends nothing
        options = {
            "directory": self._plan.directory,
            "accept_clock": self._plan.accept_clock and first,
            "is_first": first,
            "port": self.port,
            "listener": self._listener.fileno(),
            "http_port": self.http_port,
            "http": list(http),
            "resolvers": pairs,
            "board": self._shared_counters.descriptor,
            "traffic": self._traffic,
            "status": theirs,
            "news": news,
        }
        inherited = (
            self._listener.fileno(),
            *http,
            *pairs,
            self._shared_counters.descriptor,
            self._traffic,
            theirs,
            news,
        )
        return ("perseid.server.processes.control", json.dumps(options)), inherited

    def _send_news(self) -> None:
        """Tell control which processes there are."""
        running = {child.name: child.process.pid for child in self._resolvers if child.process is not None}
        restarts = {"control": self._control.crashes, "resolver": sum(child.crashes for child in self._resolvers)}
        news = {"processes": {"supervisor": os.getpid(), **running}, "restarts": restarts}
        with contextlib.suppress(OSError):  # it is away, and hears of it when it is back
            os.write(self._news, json.dumps(news).encode() + b"\n")

    def _read_status(self) -> None:
        """Take what control says: lines of JSON."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, _PIPE_READ):
                self._unread += data
            self._close_status()  # nobody writes there any more
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._last_status_at = monotonic()
            self._on_status(json.loads(line))

    def _close_status(self) -> None:
        if self._status >= 0:
            self._selector.unregister(self._status)
            os.close(self._status)
            self._status = -1  # the pipe for news is closed when there is another

    def _on_status(self, status_message: Mapping[str, Any]) -> None:
        options = status_message.get("resolvers")
        if options is None:
            return
        first = self._resolver_options is None
        changed, self._resolver_options = options != self._resolver_options, options
        self._details = status_message["facts"]
        if first:
            self._resolvers = [
                ChildProcess(f"resolver-{number}", partial(self._resolver_command, number))
                for number in range(self._plan.resolvers)
            ]
            self._selector.register(self._ready, selectors.EVENT_READ, self._on_ready)
            for child in self._resolvers:
                self._start(child)
            return
        if changed:
            # One after the other, so that the others go on; what waits in their sockets is read on.
            self._to_replace = list(self._resolvers)
            self._replace_next()
        systemd.ready()

    def _replace_next(self) -> None:
        """End a resolver that has old orders; when it is back with the new ones it is the next one's turn."""
        while self._to_replace:
            child = self._to_replace.pop(0)
            if child.process is not None:
                child.replaced, child.kill_at = True, monotonic() + DRAIN_SECONDS
                child.process.terminate()
                return

    def _on_ready(self) -> None:
        """A resolver says that it reads its socket; at the start the last one is waited for."""
        count = len(os.read(self._ready, _PIPE_READ))
        if self._pending_resolvers > 0:
            self._pending_resolvers -= count
            if self._pending_resolvers <= 0:
                self._print_startup()
                systemd.ready()
        else:
            self._replace_next()

    def _print_startup(self) -> None:
        details = {
            "pid": os.getpid(),
            "native": {"host": self._plan.host, "port": self.port},
            **({"http": {"host": self._plan.http_host, "port": self.http_port}} if self._http is not None else {}),
            "resolvers": self._plan.resolvers,
            **self._details,
        }
        lines = (
            (json.dumps(details),)
            if self._plan.as_json
            else [
                each.format(host=self._plan.host, port=self.port, **self._http_addresses(), **self._details)
                for each in self._plan.startup_lines
            ]
        )
        try:
            print(*lines, sep="\n", flush=True)
        except OSError as error:  # nobody reads it, which is no reason to end
            _logger.warning("standard output cannot be written: %s", error.strerror)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _http_addresses(self) -> dict[str, str]:
        """Where HTTP is served, to be clicked: at this machine, if it is everywhere."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._plan.http_host, self._plan.http_host)  # noqa: S104
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        found = [f"{scheme}://{host}:{self.http_port}/" for scheme in self._plan.http_schemes]
        return {"http": " and ".join(found), "http_first": found[0]}

    # Resolvers

    def _resolver_command(self, number: int) -> tuple[Sequence[str], Sequence[int]]:
        udp, (_, pair) = self._udp[number], self._pairs[number]
        options = {
            **(self._resolver_options or {}),
            "number": number,
            "resolvers": self._plan.resolvers,
            "udp": udp.fileno(),
            "control": pair.fileno(),
            "board": self._shared_counters.descriptor,
            "traffic": self._traffic,
            "handovers": self._handovers,
            "lifeline": self._lifeline,
            "ready": self._ready_for_children,
        }
        inherited = [
            udp.fileno(),
            pair.fileno(),
            self._shared_counters.descriptor,
            self._traffic,
            self._handovers,
            self._lifeline,
            self._ready_for_children,
        ]
        return ("perseid.server.processes.resolver", json.dumps(options)), inherited


def _signal_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


def _format_exit(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"


def main(text: str) -> int:
    """The life of the supervisor process."""
    plan = ServerOptions.from_json(text)
    logs.configure("supervisor", plan.log_format, level=plan.log_level)
    try:
        return Supervisor(plan).run()
    except StartupError as problem:
        print(f"perseid: {problem}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

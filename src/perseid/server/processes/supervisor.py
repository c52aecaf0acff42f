"""Supervisor process: creates the sockets, starts control and the resolvers, monitors and restarts them.

It reads nothing from the network, opens no database and has no key, so that little can end it. It owns what must
survive the other processes: the sockets with the requests that wait in them, the Unix sockets between each resolver and
control, the shared memory with counters and buckets, and the directory of the shared state. A restarted process finds
all of it unchanged.

Each resolver has its own UDP socket on the same port (SO_REUSEPORT), and the kernel distributes clients over them.
Nothing else opens one: it would get its share of the datagrams. The TCP socket is created first and exclusively, so
that a second server on the port fails.

Control reports over a pipe when it is ready, which options resolvers need, and once a second that it is alive. Over
another pipe it gets the list of processes and the number of restarts, for its metrics.
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
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

from perseid.server.limits.udp import SLOTS, TrafficLimit
from perseid.server.observe import logs
from perseid.server.observe.counters import SharedCounters
from perseid.server.state.runtime import NoRuntimeDirectory, RuntimeDirectory

from . import CHILD_SIGNALS, systemd
from .sockets import StartupError, bind, listen, pair

MIN_RESTART_DELAY: Final = 0.1
MAX_RESTART_DELAY: Final = 5.0
"""Seconds before a process that ended soon after its start is restarted: doubled each time, up to the maximum."""

STABLE_SECONDS: Final = 10.0
"""Seconds after which a process is considered stable; it is then restarted at once."""

DRAIN_SECONDS: Final = 10.0
"""Seconds for processes to finish started work on shutdown."""

STUCK_TIMEOUT: Final = 10.0
"""Seconds after which a resolver that reads nothing although datagrams wait is killed."""

START_TIMEOUT: Final = 600.0
"""Seconds for control to start: opening databases may be slow. Its first status message ends this."""

SILENCE_TIMEOUT: Final = 60.0
"""Seconds without a status message after which control is killed. It sends one every second."""

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
"""Prefixes of the variables that resolvers inherit: what Python, the system and the log need."""

_PIPE_READ = 65_536
_logger = logging.getLogger("perseid.server.processes.supervisor")  # run as a program, its __name__ is __main__


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What to serve, and how to report it."""

    directory: str
    host: str
    port: int
    resolvers: int
    accept_clock: bool = False
    log_format: str = "text"
    log_level: int = logging.INFO
    as_json: bool = False
    """Whether to print the startup report as JSON."""
    startup_lines: tuple[str, ...] = ()
    """Lines to print at startup, with {host}, {port}, {http} and {http_first} in them."""
    http_host: str = ""
    """Address of HTTP; empty if disabled."""
    http_port: int = 0
    http_schemes: tuple[str, ...] = ("http", "https")
    """Enabled schemes, for the startup lines."""

    def to_json(self) -> str:
        """Return the options as a command line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(slots=True)
class ChildProcess:
    """A process that is kept running."""

    name: str
    command: Callable[[], tuple[Sequence[str], Sequence[int]]]
    """Returns its command line, and the descriptors that it inherits."""
    process: "subprocess.Popen[bytes] | None" = None
    exit_descriptor: int = -1
    """Becomes readable when the process has ended."""
    started: float = 0.0
    restart_delay: float = 0.0
    restart_at: float | None = None
    """When to start it again."""
    starts: int = 0
    crashes: int = 0
    """How often it ended without having been told to."""
    replaced: bool = False
    """Whether it was told to end, to be replaced by one with new options."""
    kill_at: float | None = None
    """When to kill it if it has not ended."""
    progress: tuple[int, float] = (0, 0.0)
    """Of a resolver: datagrams read, and since when the number is unchanged."""
    descriptors: list[int] = field(default_factory=list)
    """Its ends of pipes, closed here as soon as it runs."""


class Supervisor:
    """All processes of a server."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._listener, self._udp = bind(options.host, options.port, options.resolvers)
        self.port: int = self._listener.getsockname()[1]
        self._http = listen(options.http_host, options.http_port) if options.http_host else None
        self.http_port: int = self._http.getsockname()[1] if self._http is not None else 0
        self._pairs = [pair() for _ in self._udp]
        self._shared_counters = SharedCounters.create(options.resolvers)
        self._traffic, self._forward_limit = TrafficLimit.create(SLOTS), TrafficLimit.create(SLOTS)
        self._runtime = RuntimeDirectory.create(Path(options.directory))
        self._lifeline, self._lifeline_writer = os.pipe()
        self._ready, self._ready_for_children = os.pipe()
        self._pending_resolvers = options.resolvers  # not ready yet
        # Only the supervisor notifies systemd.
        self._environ = {name: value for name, value in os.environ.items() if name not in systemd.VARIABLES}
        # Variables may be secrets. Resolvers, which are most exposed, get their settings from control.
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
        self._accept_clock = options.accept_clock
        self._details: dict[str, Any] = {}
        self._to_replace: list[ChildProcess] = []
        self._stopping = False
        self._exit_code = 0

    # Life

    def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # handled by `_on_signal`
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        self._start(self._control)
        while not self._stopping:
            for key, _ in self._selector.select(self._select_timeout()):
                # An earlier event may have closed this one: the end of control closes its pipe.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data()
            if not self._stopping:
                systemd.watchdog()
                self._check_children(monotonic())
        self._stop_all()
        self._runtime.remove()
        return self._exit_code

    def _check_children(self, now: float) -> None:
        """Start processes that are due, and kill those that are stuck, so that they are restarted."""
        for child in (self._control, *self._resolvers):
            if child.restart_at is not None and now >= child.restart_at:
                self._start(child)
            if child.process is not None and child.kill_at is not None and now > child.kill_at:
                _logger.warning("%s did not end in %d s and is killed", child.name, DRAIN_SECONDS)
                self._kill(child)
        silence = now - (self._last_status_at or self._control.started)
        if self._control.process is not None and silence > (SILENCE_TIMEOUT if self._last_status_at else START_TIMEOUT):
            _logger.error("control has been unresponsive for %d s and is killed", silence)
            self._kill(self._control)
        for number, child in enumerate(self._resolvers):
            if child.process is not None and self._is_stuck(number, child, now):
                _logger.error(
                    "%s has read no datagrams for %d s although some are waiting, and is killed",
                    child.name,
                    STUCK_TIMEOUT,
                )
                self._kill(child)

    def _is_stuck(self, number: int, child: ChildProcess, now: float) -> bool:
        taken = self._shared_counters.counters(number).read().received
        waiting = array("i", [0])
        fcntl.ioctl(self._udp[number], termios.FIONREAD, waiting)
        if not waiting[0] or taken != child.progress[0]:
            child.progress = (taken, now)
        return now - max(child.progress[1], child.started) > STUCK_TIMEOUT

    def _select_timeout(self) -> float:
        restarts_at = [child.restart_at for child in (self._control, *self._resolvers) if child.restart_at is not None]
        return max(0.0, min([1.0, *(restart_at - monotonic() for restart_at in restarts_at)]))

    def _stop_all(self) -> None:
        """Stop control first: it finishes started work, and its responses leave through the resolvers."""
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
        # Signals that arrive now wait until the process has its handlers; see `CHILD_SIGNALS`.
        signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)
        try:
            # -P: do not import from the working directory, which other users may be able to write.
            child.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", *command],
                pass_fds=descriptors,
                env=self._environ if child is self._control else self._resolver_environ,
                stdin=subprocess.DEVNULL,
            )
            child.exit_descriptor = os.pidfd_open(child.process.pid)
        except OSError as error:  # out of memory or processes; this may pass
            _logger.error("cannot start %s: %s", child.name, error.strerror)  # noqa: TRY400 - the message is complete
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
            if self._resolver_options is None:  # it was never ready, and has printed the reason
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
        _logger.warning("%s ended %s and is restarted", child.name, _format_exit(code))

    # Control

    def _control_command(self) -> tuple[Sequence[str], Sequence[int]]:
        status, status_writer = os.pipe()
        news, news_writer = os.pipe()
        os.set_blocking(status, False)
        os.set_blocking(news_writer, False)
        if self._news >= 0:
            os.close(self._news)
        self._news = news_writer
        self._status, self._unread, self._last_status_at = status, b"", 0.0
        self._selector.register(status, selectors.EVENT_READ, self._read_status)
        self._control.descriptors += (status_writer, news)
        pairs = [control.fileno() for control, _ in self._pairs]
        http = () if self._http is None else (self._http.fileno(),)
        # Only the first start may fail because a port is in use.
        first = self._resolver_options is None
        options = {
            "directory": self._options.directory,
            "accept_clock": self._accept_clock,
            "is_first": first,
            "port": self.port,
            "listener": self._listener.fileno(),
            "http_port": self.http_port,
            "http": list(http),
            "resolvers": pairs,
            "counters": self._shared_counters.descriptor,
            "traffic": self._traffic,
            "state": str(self._runtime.path),
            "status": status_writer,
            "news": news,
        }
        inherited = (
            self._listener.fileno(),
            *http,
            *pairs,
            self._shared_counters.descriptor,
            self._traffic,
            status_writer,
            news,
        )
        return ("perseid.server.processes.control", json.dumps(options)), inherited

    def _send_news(self) -> None:
        """Send control the list of processes."""
        running = {child.name: child.process.pid for child in self._resolvers if child.process is not None}
        restarts = {"control": self._control.crashes, "resolver": sum(child.crashes for child in self._resolvers)}
        news = {"processes": {"supervisor": os.getpid(), **running}, "restarts": restarts}
        with contextlib.suppress(OSError):  # control is not running; the next start sends it again
            os.write(self._news, json.dumps(news).encode() + b"\n")

    def _read_status(self) -> None:
        """Read control's lines of JSON."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, _PIPE_READ):
                self._unread += data
            self._close_status()  # closed by control
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._last_status_at = monotonic()
            self._on_status(json.loads(line))

    def _close_status(self) -> None:
        if self._status >= 0:
            self._selector.unregister(self._status)
            os.close(self._status)
            self._status = -1  # the news pipe is replaced at the next start

    def _on_status(self, status_message: Mapping[str, Any]) -> None:
        options = status_message.get("resolvers")
        if options is None:
            return
        if status_message.get("opened"):  # the clock is accepted once, when the ledger is opened first
            self._accept_clock = False
        first = self._resolver_options is None
        changed, self._resolver_options = options != self._resolver_options, options
        self._details = status_message["details"]
        if first:
            self._resolvers = [
                ChildProcess(f"resolver-{number}", partial(self._resolver_command, number))
                for number in range(self._options.resolvers)
            ]
            self._selector.register(self._ready, selectors.EVENT_READ, self._on_ready)
            for child in self._resolvers:
                self._start(child)
            return
        if changed:
            # One at a time, so that the others continue; datagrams wait in the sockets.
            self._to_replace = list(self._resolvers)
            self._replace_next()
        systemd.ready()

    def _replace_next(self) -> None:
        """Stop a resolver with old options; when its successor is ready, the next one follows."""
        while self._to_replace:
            child = self._to_replace.pop(0)
            if child.process is not None:
                child.replaced, child.kill_at = True, monotonic() + DRAIN_SECONDS
                child.process.terminate()
                return

    def _on_ready(self) -> None:
        """Handle a resolver that reads its socket; at startup, wait for the last one."""
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
            "native": {"host": self._options.host, "port": self.port},
            **({"http": {"host": self._options.http_host, "port": self.http_port}} if self._http is not None else {}),
            "resolvers": self._options.resolvers,
            **self._details,
        }
        lines = (
            (json.dumps(details),)
            if self._options.as_json
            else [
                each.format(host=self._options.host, port=self.port, **self._http_addresses(), **self._details)
                for each in self._options.startup_lines
            ]
        )
        try:
            print(*lines, sep="\n", flush=True)
        except OSError as error:  # nobody reads it; the server continues
            _logger.warning("cannot write to standard output: %s", error.strerror)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _http_addresses(self) -> dict[str, str]:
        """Clickable URLs of HTTP: on this machine, if it listens everywhere."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._options.http_host, self._options.http_host)  # noqa: S104
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        urls = [f"{scheme}://{host}:{self.http_port}/" for scheme in self._options.http_schemes]
        return {"http": " and ".join(urls), "http_first": urls[0]}

    # Resolvers

    def _resolver_command(self, number: int) -> tuple[Sequence[str], Sequence[int]]:
        udp, (_, pair) = self._udp[number], self._pairs[number]
        options = {
            **(self._resolver_options or {}),
            "number": number,
            "resolvers": self._options.resolvers,
            "udp": udp.fileno(),
            "control": pair.fileno(),
            "counters_descriptor": self._shared_counters.descriptor,
            "traffic": self._traffic,
            "forward_limit": self._forward_limit,
            "lifeline": self._lifeline,
            "ready": self._ready_for_children,
        }
        inherited = [
            udp.fileno(),
            pair.fileno(),
            self._shared_counters.descriptor,
            self._traffic,
            self._forward_limit,
            self._lifeline,
            self._ready_for_children,
        ]
        return ("perseid.server.processes.resolver", json.dumps(options)), inherited


def _signal_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _format_exit(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"


def main(text: str) -> int:
    """Run the supervisor process."""
    options = ServerOptions.from_json(text)
    logs.configure("supervisor", options.log_format, level=options.log_level)
    try:
        return Supervisor(options).run()
    except (StartupError, NoRuntimeDirectory) as problem:
        print(f"perseid: {problem}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

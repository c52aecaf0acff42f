"""Supervisor process: creates the sockets, starts the other processes, watches and restarts them.

It reads nothing from the network, opens no database and has no key, so that little can end it. It owns what must
survive the other processes: the sockets with the requests that wait in them, the shared memory with heartbeats,
counters and buckets, and the directory of the shared state. A restarted process finds all of it unchanged.

Each worker has its own sockets on the same ports (SO_REUSEPORT), and the kernel distributes clients over them. A worker
that has ended, or whose event loop has not been seen running for a moment, is *silent*: the other workers serve its
sockets too, until it is back. One that stays silent is killed and replaced.

Every child process gets, as JSON on its command line, the options of its `Child` and those of `ChildOptions`. Over a
pipe it reports, as lines of JSON, that it is `ready`, that it has `reloaded`, or the `problem` because of which the
server cannot start. Over another pipe it gets the list of processes, the number of restarts and the silent workers; the
end of that pipe is the end of the supervisor. In shared memory it says that it is alive.
"""

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

from perseid.server.limits.connections import SharedConnections
from perseid.server.limits.udp import SLOTS, TrafficLimit
from perseid.server.observe import logs
from perseid.server.observe.counters import SharedCounters
from perseid.server.state.runtime import NoRuntimeDirectory, RuntimeDirectory

from . import CHILD_SIGNALS, systemd
from .sockets import StartupError, bind, listen, listen_for_metrics

MIN_RESTART_DELAY: Final = 0.1
MAX_RESTART_DELAY: Final = 5.0
"""Seconds before a process that ended soon after its start is restarted: doubled each time, up to the maximum."""

STABLE_SECONDS: Final = 10.0
"""Seconds after which a process is considered stable; it is then restarted at once."""

DRAIN_SECONDS: Final = 10.0
"""Seconds for processes to finish started work on shutdown."""

START_TIMEOUT: Final = 600.0
"""Seconds for a process to start: opening databases may be slow. Its first heartbeat ends this."""

SILENT_SECONDS: Final = 0.2
"""Seconds without a heartbeat after which other workers serve the sockets of a worker, too."""

STUCK_SECONDS: Final = 5.0
"""Seconds without a heartbeat after which a process is killed: nothing blocks an event loop for so long, and a process
that a busy machine does not let run would be no faster after a restart."""

RESUME_SECONDS: Final = 1.0
"""Seconds for processes to show a heartbeat again after one was killed, for which they may have waited."""
LOCKED_SECONDS: Final = 1.0
"""Seconds without a heartbeat after which a process is killed if others are silent, too, and it made the last change of
the shared state: they wait for it to end its transaction, which takes microseconds."""

CHECK_SECONDS: Final = 0.1
"""Seconds between two looks at the heartbeats."""

WATCHDOG_SECONDS: Final = 1.0
"""Seconds between two messages to systemd that the server is alive."""

_PIPE_READ = 65_536
_logger = logging.getLogger("perseid.server.processes.supervisor")  # run as a program, its __name__ is __main__


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What to serve, and how to report it."""

    directory: str
    host: str
    port: int
    workers: int
    accept_clock: bool = False
    log_format: str = "text"
    log_level: int = logging.INFO
    as_json: bool = False
    """Whether to print the startup report as JSON."""
    startup_lines: tuple[str, ...] = ()
    """Lines to print at startup, with {host}, {port}, {http}, {http_first} and {metrics} in them."""
    http_host: str = ""
    """Address of HTTP; empty if disabled."""
    http_port: int = 0
    http_schemes: tuple[str, ...] = ("http", "https")
    """Enabled schemes, for the startup lines."""
    metrics_host: str = ""
    """Address of the metrics; empty if disabled."""
    metrics_port: int = 0

    def to_json(self) -> str:
        """Return the options as a command line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(slots=True)
class Child:
    """A process that is kept running, and how to start it."""

    name: str
    """A kind, or a kind and a number: `worker-0`."""
    module: str
    options: Mapping[str, Any]
    """Its own options, besides those of `ChildOptions`."""
    descriptors: Sequence[int]
    """The descriptors that it inherits."""
    number: int = 0
    """Its slot in the shared counters."""
    process: "subprocess.Popen[bytes] | None" = None
    exit_descriptor: int = -1
    """Becomes readable when the process has ended."""
    status: int = -1
    news: int = -1
    """The supervisor's ends of its pipes."""
    unread: bytes = b""
    started: float = 0.0
    restart_delay: float = 0.0
    restart_at: float | None = None
    """When to start it again."""
    is_ready: bool = False
    is_reloading: bool = False
    is_silent: bool = True
    silence: float = 0.0
    """Seconds since its last heartbeat."""
    was_ready: bool = False
    """Whether it, or an earlier process, has been ready."""
    crashes: int = 0
    """How often it ended without having been told to."""

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


class Supervisor:
    """All processes of a server."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        udp, tcp = bind(options.host, options.port, options.workers)
        self.port: int = tcp[0].getsockname()[1]
        http = listen(options.http_host, options.http_port, options.workers) if options.http_host else []
        self.http_port: int = http[0].getsockname()[1] if http else 0
        self._metrics = listen_for_metrics(options.metrics_host, options.metrics_port) if options.metrics_host else None
        self._sockets = [udp, tcp, http]
        self._traffic, self._requests = TrafficLimit.create(SLOTS), TrafficLimit.create(SLOTS)
        self._connections = SharedConnections.create(options.workers)
        self._runtime = RuntimeDirectory.create(Path(options.directory))
        # Only the supervisor notifies systemd.
        self._environ = {name: value for name, value in os.environ.items() if name not in systemd.VARIABLES}
        self._selector = selectors.DefaultSelector()
        self._signals, wakeup = _signal_pipe()
        signal.set_wakeup_fd(wakeup)
        self._workers = [self._worker(number) for number in range(options.workers)]
        writing = {"directory": options.directory, "state": str(self._runtime.path)}
        self._writer = Child("writer", "perseid.server.processes.writer", writing, ())
        self._children = [self._writer, *self._workers]
        for number, child in enumerate(self._children):
            child.number = number
        self._shared_counters = SharedCounters.create(len(self._children))
        self._problem = ""
        self._accept_clock = options.accept_clock
        self._has_started = self._stopping = False
        self._checked = monotonic()
        self._resume_deadline = 0.0
        self._watchdog_due = 0.0
        self._exit_code = 0

    def _worker(self, number: int) -> Child:
        udp, tcp, http = ([sock.fileno() for sock in sockets] for sockets in self._sockets)
        metrics = [] if self._metrics is None else [self._metrics.fileno()]
        options = {
            "directory": self._options.directory,
            "state": str(self._runtime.path),
            "worker": number,
            "port": self.port,
            "http_port": self.http_port,
            "udp": udp,
            "tcp": tcp,
            "http": http,
            "metrics": metrics,
            "traffic": self._traffic,
            "requests": self._requests,
            "connections": self._connections,
        }
        descriptors = [*udp, *tcp, *http, *metrics, self._traffic, self._requests, self._connections]
        return Child(f"worker-{number}", "perseid.server.processes.worker", options, descriptors)

    # Life

    def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # handled by `_on_signal`
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        # The first worker loads its modules and then waits for the writer, which may create files or refuse to start.
        self._start(self._writer)
        self._start(self._workers[0])
        while not self._stopping:
            for key, _ in self._selector.select(self._select_timeout()):
                # An earlier event may have closed this one: the end of a process closes its pipe.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data()
            if not self._stopping:
                self._check_children(monotonic())
        self._stop_all()
        self._runtime.remove()
        return self._exit_code

    def _check_children(self, now: float) -> None:
        """Start processes that are due; note those that are silent, and kill those that are stuck."""
        late, self._checked = now - self._checked, now  # if the supervisor was late itself, the machine stood still
        were_silent = [child.is_silent for child in self._children]
        for child in self._children:
            if child.restart_at is not None and now >= child.restart_at:
                self._start(child)
            child.silence = now - late - (self._shared_counters.last_beat(child.number) or child.started)
            child.is_silent = not child.is_ready or child.silence > SILENT_SECONDS
        if now >= self._resume_deadline and (stuck := choose_stuck(self._children, self._runtime.last_writer())):
            self._resume_deadline = now + RESUME_SECONDS
            for child in stuck:
                _logger.error("%s has been unresponsive for %.1f s and is killed", child.name, child.silence)
                if child.process is not None:
                    child.process.kill()
        if were_silent != [child.is_silent for child in self._children]:
            self._send_news()
        if now >= self._watchdog_due:
            self._watchdog_due = now + WATCHDOG_SECONDS
            systemd.watchdog()

    def _select_timeout(self) -> float:
        restarts_at = [child.restart_at for child in self._children if child.restart_at is not None]
        return max(0.0, min([CHECK_SECONDS, *(restart_at - monotonic() for restart_at in restarts_at)]))

    def _stop_all(self) -> None:
        """Stop in reverse order: workers finish started work while the processes that they need still run."""
        systemd.stopping()
        deadline = monotonic() + DRAIN_SECONDS
        kinds = list(dict.fromkeys(child.kind for child in self._children))
        for kind in reversed(kinds):
            running = [(child, child.process) for child in self._children if child.kind == kind and child.process]
            for _, process in running:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a stopped one could not end
            for child, process in running:
                try:
                    process.wait(max(0.0, deadline - monotonic()))
                except subprocess.TimeoutExpired:
                    _logger.warning("%s did not end in %d s and is killed", child.name, DRAIN_SECONDS)
                    process.kill()
                    process.wait()

    def _on_signal(self) -> None:
        for number in os.read(self._signals, 64):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stopping = True
            elif number == signal.SIGHUP:
                systemd.reloading()
                for child in self._children:
                    if child.process is not None:
                        child.is_reloading = True
                        child.process.send_signal(signal.SIGHUP)

    # Processes

    def _start(self, child: Child) -> None:
        child.restart_at = None
        child.is_ready = child.is_reloading = False
        child.started = monotonic()
        self._shared_counters.beat(child.number, 0.0)
        status, status_writer = os.pipe()
        news, news_writer = os.pipe()
        os.set_blocking(status, False)
        os.set_blocking(news_writer, False)
        # Only the first start may fail because of the settings.
        options = {
            **child.options,
            "name": child.name,
            "number": child.number,
            "is_first": not child.was_ready,
            "accept_clock": self._accept_clock,
            "counters": self._shared_counters.descriptor,
            "status": status_writer,
            "news": news,
        }
        # Signals that arrive now wait until the process has its handlers; see `CHILD_SIGNALS`.
        signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)
        try:
            # -P: do not import from the working directory, which other users may be able to write.
            child.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", child.module, json.dumps(options)],
                pass_fds=(*child.descriptors, self._shared_counters.descriptor, status_writer, news),
                env=self._environ,
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
            os.close(status)
            os.close(news_writer)
        else:
            child.status, child.news, child.unread = status, news_writer, b""
            self._selector.register(status, selectors.EVENT_READ, partial(self._read_status, child))
            self._selector.register(child.exit_descriptor, selectors.EVENT_READ, partial(self._on_exit, child))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)
            os.close(status_writer)
            os.close(news)
        self._send_news()

    def _on_exit(self, child: Child) -> None:
        assert child.process is not None  # noqa: S101 - it was running
        code = child.process.wait()
        self._selector.unregister(child.exit_descriptor)
        os.close(child.exit_descriptor)
        self._read_status(child)
        self._close_status(child)
        os.close(child.news)
        child.news = -1
        child.process = None
        if not self._has_started:  # nor can it
            if self._problem:
                print(f"perseid: {self._problem}", file=sys.stderr, flush=True)
            self._stopping, self._exit_code = True, 1
            return
        now = monotonic()
        child.is_ready, child.is_silent = False, True
        child.crashes += 1
        lifetime = now - child.started
        child.restart_delay = (
            0.0
            if lifetime >= STABLE_SECONDS
            else min(max(child.restart_delay * 2, MIN_RESTART_DELAY), MAX_RESTART_DELAY)
        )
        child.restart_at = now + child.restart_delay
        _logger.warning("%s ended %s and is restarted", child.name, _format_exit(code))
        self._note_reloaded(child)
        self._send_news()

    # Messages

    def _send_news(self) -> None:
        """Send the state of all processes to each of them."""
        restarts: dict[str, int] = {}
        for child in self._children:
            restarts[child.kind] = restarts.get(child.kind, 0) + child.crashes
        running = {child.name: child.process.pid for child in self._children if child.process is not None}
        silent = [child.options["worker"] for child in self._workers if child.is_silent]
        news = {
            "processes": {"supervisor": os.getpid(), **running},
            "restarts": restarts,
            "silent": silent,
            "has_writer": self._writer.is_ready,
        }
        for child in self._children:
            if child.process is not None:
                with contextlib.suppress(OSError):  # it has ended, or is stuck and its pipe is full
                    os.write(child.news, json.dumps(news).encode() + b"\n")

    def _read_status(self, child: Child) -> None:
        """Read a child's lines of JSON."""
        if child.status < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(child.status, _PIPE_READ):
                child.unread += data
            self._close_status(child)  # closed by the child
        *lines, child.unread = child.unread.split(b"\n")
        for line in lines:
            self._on_status(child, json.loads(line))

    def _close_status(self, child: Child) -> None:
        if child.status >= 0:
            self._selector.unregister(child.status)
            os.close(child.status)
            child.status = -1

    def _on_status(self, child: Child, message: Mapping[str, Any]) -> None:
        if "problem" in message:
            self._problem = message["problem"]
            if self._has_started:
                _logger.error("%s cannot start: %s", child.name, self._problem)
        if "reloaded" in message:
            self._note_reloaded(child)
        if "ready" not in message:
            return
        if message["ready"]:  # the clock is accepted once, when the ledger is opened first
            self._accept_clock = False
        child.is_ready = child.was_ready = True
        child.is_silent = False
        self._send_news()
        if not self._has_started and self._workers[0].is_ready:
            self._has_started = True  # it serves for all workers
            for worker in self._workers[1:]:
                self._start(worker)
            self._print_startup()
            systemd.ready()

    def _note_reloaded(self, child: Child) -> None:
        """Tell systemd when the last process has reloaded."""
        if child.is_reloading:
            child.is_reloading = False
            if not any(each.is_reloading for each in self._children):
                systemd.ready()

    def _print_startup(self) -> None:
        details = {
            "pid": os.getpid(),
            "native": {"host": self._options.host, "port": self.port},
            **({"http": {"host": self._options.http_host, "port": self.http_port}} if self._options.http_host else {}),
            "workers": self._options.workers,
            "metrics": self._metrics_url(),
        }
        lines = (
            (json.dumps(details),)
            if self._options.as_json
            else [
                each.format(
                    host=self._options.host, port=self.port, metrics=self._metrics_url(), **self._http_addresses()
                )
                for each in self._options.startup_lines
            ]
        )
        try:
            print(*lines, sep="\n", flush=True)
        except OSError as error:  # nobody reads it; the server continues
            _logger.warning("cannot write to standard output: %s", error.strerror)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _metrics_url(self) -> str | None:
        if self._metrics is None:
            return None
        host, port = self._metrics.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def _http_addresses(self) -> dict[str, str]:
        """Clickable URLs of HTTP: on this machine, if it listens everywhere."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._options.http_host, self._options.http_host)  # noqa: S104
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        urls = [f"{scheme}://{host}:{self.http_port}/" for scheme in self._options.http_schemes]
        return {"http": " and ".join(urls), "http_first": urls[0]}


def choose_stuck(children: Sequence[Child], last_writer: int) -> list[Child]:
    """Return the processes to kill: the one that others wait for, if there is one, else those that are stuck.

    A process that is stopped while it changes the shared state makes all others wait for it.
    """
    running = [child for child in children if child.process is not None]
    locked = [child for child in running if child.is_ready and child.silence > LOCKED_SECONDS]
    if len(locked) > 1:
        for child in locked:
            if child.process is not None and child.process.pid == last_writer:
                return [child]
    return [child for child in running if child.silence > (STUCK_SECONDS if child.is_ready else START_TIMEOUT)]


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

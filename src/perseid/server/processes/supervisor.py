"""Supervisor process: creates the sockets, starts the other processes, watches and restarts them.

It reads nothing from the network, opens no database and has no key, so that little can end it. It owns what must
survive the other processes: the sockets with the requests that wait in them, the shared memory with heartbeats,
counters and buckets, and the directory of the shared state. A restarted process finds all of it unchanged.

Each worker has its own sockets on the same ports (SO_REUSEPORT), and the kernel distributes clients over them; sockets
that systemd passes are shared (see `activation`). A worker that has ended, or whose event loop has not been seen
running for a moment, is *silent*: the other workers serve its sockets too, until it is back. One that stays silent is
killed and replaced.

Children are forked from the fork server, which has loaded their modules, one after the other. Each gets the options of
its `Child` and those of `ChildOptions`. Over a pipe it reports, as lines of JSON, that it is `ready`, that it has
`reloaded`, that there are `jobs` to run, or the `problem` because of which the server cannot start. Over another pipe
it gets the list of processes, the number of restarts and the silent workers; the end of that pipe is the end of the
supervisor. In shared memory it says that it is alive.
"""

import contextlib
import ctypes
import json
import logging
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

from perseid.server.limits.connections import SharedConnections
from perseid.server.limits.udp import SLOTS, TrafficLimit
from perseid.server.observe import logs
from perseid.server.observe.counters import SharedCounters
from perseid.server.state.runtime import (
    NoRuntimeDirectory,
    RuntimeDirectory,
    is_last_ending,
    lock_installation,
    read_details,
)

from . import fork_server, systemd, unblock_signals
from .activation import take_sockets
from .sockets import StartupError, bind, listen, listen_for_metrics, require_free, wait_for_release
from .title import set_title

MIN_RESTART_DELAY: Final = 0.1
MAX_RESTART_DELAY: Final = 5.0
"""Seconds before a process that ended soon after its start is restarted: doubled each time, up to the maximum."""

STABLE_SECONDS: Final = 10.0
"""Seconds after which a process is considered stable; it is then restarted at once."""

DRAIN_SECONDS: Final = 10.0
"""Seconds for processes of one kind to finish started work on shutdown."""

JOBS_DRAIN_SECONDS: Final = 2.0
"""The same for the process of jobs, for which the others wait: what it does can be resumed from its last step."""

SILENT_SECONDS: Final = 0.2
"""Seconds without a heartbeat after which other workers serve the sockets of a worker, too."""

STUCK_SECONDS: Final = 5.0
"""Seconds without a heartbeat after which a process is killed: nothing blocks an event loop for so long, and a process
that a busy machine does not let run would be no faster after a restart. It has a heartbeat from its fork on, also while
it opens databases."""

RESUME_SECONDS: Final = 1.0
"""Seconds for processes to show a heartbeat again after one was killed, for which they may have waited."""
LOCKED_SECONDS: Final = 1.0
"""Seconds without a heartbeat after which a process is killed if others are silent, too, and it made the last change of
the shared state: they wait for it to end its transaction, which takes microseconds."""

START_TIMEOUT: Final = 20.0
"""Seconds without a heartbeat after which a process is killed while the whole server is starting, or a fork server that
has none yet: it starts Python, which takes 0.1 s. The next one finds the files of this one in memory."""

CHECK_SECONDS: Final = 0.1
"""Seconds between two looks at the heartbeats."""

WATCHDOG_SECONDS: Final = 1.0
"""Seconds between two messages to systemd that the server is alive."""

_PIPE_READ = 65_536
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
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
    fork_server: tuple[int, int] = (0, -1)
    """Process id and socket of a fork server that has been started; zero if it has not."""

    def to_json(self) -> str:
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
    descriptors: Sequence[str] = ()
    """Those options that are descriptors, or lists of them."""
    number: int = 0
    """Its slot in the shared counters."""
    pid: int = 0
    """Its process id; 0 if it is not running."""
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
    max_silence: float = STUCK_SECONDS
    """Seconds without a heartbeat after which it is killed."""
    was_ready: bool = False
    """Whether it, or an earlier process, has been ready."""
    crashes: int = 0
    """How often it ended without having been told to."""
    handover: socket.socket | None = None
    """Its end of the socket pair between the resolver and the first worker, until it is forked."""

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def is_due(self, now: float) -> bool:
        """Whether to start it again now."""
        return self.restart_at is not None and now >= self.restart_at


class Supervisor:
    """All processes of a server."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        directory = Path(options.directory)
        self._lock = lock_installation(directory)
        if self._lock is None:
            raise StartupError(_describe_owner(directory))
        udp, tcp, http = _open_sockets(options, lambda: is_last_ending(directory))
        self.port: int = tcp[0].getsockname()[1]
        self.http_port: int = http[0].getsockname()[1] if http else 0
        self._metrics = listen_for_metrics(options.metrics_host, options.metrics_port) if options.metrics_host else None
        self._sockets = [udp, tcp, http]
        self._traffic, self._requests = TrafficLimit.create(SLOTS), TrafficLimit.create(SLOTS)
        self._connections = SharedConnections.create(options.workers)
        self._runtime = RuntimeDirectory.create(directory)
        self._runtime.write_details(self._details())
        self._selector = selectors.DefaultSelector()
        self._signals, wakeup = _signal_pipe()
        signal.set_wakeup_fd(wakeup)
        self._workers = [self._worker(number) for number in range(options.workers)]
        writing = {"directory": options.directory, "state": str(self._runtime.path)}
        self._writer = Child("writer", "perseid.server.processes.writer", writing)
        self._jobs = Child("jobs", "perseid.server.processes.jobs", writing)
        """Started when a worker asks for it; it ends when there are no jobs."""
        sockets = {"port": self.port, "udp": [sock.fileno() for sock in udp], "traffic": self._traffic}
        resolver = "perseid.server.processes.resolver"
        self._resolver = Child("resolver", resolver, writing | sockets, ("udp", "traffic"))
        """Answers until the first worker does; it is never restarted."""
        self._resolver.handover, self._workers[0].handover = socket.socketpair()
        self._children = [self._resolver, self._writer, *self._workers, self._jobs]
        for number, child in enumerate(self._children):
            child.number = number
        pid, channel = options.fork_server
        self._fork_server = Child("forkserver", fork_server.__name__, {}, pid=pid, started=monotonic())
        self._channel = socket.socket(fileno=channel) if pid else None
        """The socket of the fork server; None if it is not running."""
        self._forking: Child | None = None
        """The child that the fork server was asked for and has not forked yet."""
        self._ended_early: dict[int, int] = {}
        """Exit codes of processes that ended meanwhile, by process id: that child may be one of them."""
        self._fork_server.number = len(self._children)
        self._shared_counters = SharedCounters.create(len(self._children) + 1)
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
            "workers": self._options.workers,
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
        descriptors = ("udp", "tcp", "http", "metrics", "traffic", "requests", "connections")
        return Child(f"worker-{number}", "perseid.server.processes.worker", options, descriptors)

    # Life

    def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # handled by `_on_signal`
        unblock_signals()
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        if self._channel is None:
            self._start_fork_server()
        else:
            self._watch_fork_server(self._channel)
        # The first worker waits for the writer, which may create files or refuse to start.
        for child in (self._resolver, self._writer, self._workers[0]):
            child.restart_at = monotonic()
        self._check_children(monotonic())
        while not self._stopping:
            for key, _ in self._selector.select(self._select_timeout()):
                self._handle(key)
            if not self._stopping:
                self._check_children(monotonic())
        self._stop_all()
        self._runtime.remove()
        return self._exit_code

    def _handle(self, key: selectors.SelectorKey) -> None:
        """Handle an event, unless an earlier one has closed its file: the end of a process closes its pipes.

        The file is looked up by its number, because looking up a socket that is closed raises `ValueError`.
        """
        if self._selector.get_map().get(key.fd) is key:
            key.data()

    def _check_children(self, now: float) -> None:
        """Start processes that are due; note those that are silent, and kill those that are stuck."""
        if self._fork_server.is_due(now):
            self._start_fork_server()
        late, self._checked = now - self._checked, now  # if the supervisor was late itself, the machine stood still
        were_silent = [child.is_silent for child in self._children]
        for child in self._children:
            if self._channel is not None and self._forking is None and child.is_due(now):
                self._start(child)
        everyone = (*self._children, self._fork_server)
        self._fork_server.is_ready = self._shared_counters.last_beat(self._fork_server.number) > 0
        for child in everyone:
            may_be_slow = not self._has_started or (child is self._fork_server and not child.is_ready)
            child.max_silence = START_TIMEOUT if may_be_slow else STUCK_SECONDS
            child.silence = now - late - (self._shared_counters.last_beat(child.number) or child.started)
            child.is_silent = not child.is_ready or child.silence > SILENT_SECONDS
        if now >= self._resume_deadline and (
            stuck := choose_stuck(self._children, self._fork_server, self._runtime.last_writer)
        ):
            self._resume_deadline = now + RESUME_SECONDS
            for child in stuck:
                self._kill(child, child.silence)
        if were_silent != [child.is_silent for child in self._children]:
            self._send_news()
        if now >= self._watchdog_due:
            self._watchdog_due = now + WATCHDOG_SECONDS
            systemd.watchdog()

    def _select_timeout(self) -> float:
        due = [self._fork_server] if self._channel is None else [] if self._forking else self._children
        restarts_at = [child.restart_at for child in due if child.restart_at is not None]
        return max(0.0, min([CHECK_SECONDS, *(restart_at - monotonic() for restart_at in restarts_at)]))

    def _stop_all(self) -> None:
        """Stop in reverse order: workers finish started work while the processes that they need still run."""
        systemd.stopping()
        self._send_news()
        for child in (*self._children, self._fork_server):  # a stopped one could not end, and others may wait for it
            if child.pid:
                os.kill(child.pid, signal.SIGCONT)
        kinds = list(dict.fromkeys(child.kind for child in self._children))
        for kind in reversed(kinds):
            running = [child for child in self._children if child.kind == kind and child.pid]
            for child in running:
                os.kill(child.pid, signal.SIGTERM)
            self._wait_until_ended(running, JOBS_DRAIN_SECONDS if kind == self._jobs.kind else DRAIN_SECONDS)
        if self._channel is not None:
            self._channel.close()
        self._wait_until_ended([self._fork_server], DRAIN_SECONDS)

    def _wait_until_ended(self, children: Sequence[Child], seconds: float) -> None:
        deadline = monotonic() + seconds
        while running := [child for child in children if child.pid]:
            if not select.select([self._signals], [], [], max(0.0, deadline - monotonic()))[0]:
                for child in running:
                    _logger.warning("%s did not end in %d s and is killed", child.name, seconds)
                    os.kill(child.pid, signal.SIGKILL)
                deadline = monotonic() + seconds
            self._on_signal()

    def _kill(self, child: Child, silence: float) -> None:
        _logger.error("%s has been unresponsive for %.1f s and is killed", child.name, silence)
        if child.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def _on_signal(self) -> None:
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._signals, _PIPE_READ)
        if signal.SIGCHLD in numbers:
            self._reap()
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stopping = True
            elif number == signal.SIGHUP:
                systemd.reloading()
                for child in self._children:
                    if child.pid:
                        child.is_reloading = True
                        os.kill(child.pid, signal.SIGHUP)

    # Processes

    def _start_fork_server(self) -> None:
        self._fork_server.restart_at = None
        self._fork_server.started = monotonic()
        self._shared_counters.beat(self._fork_server.number, 0.0)
        try:
            self._fork_server.pid, channel = fork_server.spawn(os.environ)
        except OSError as error:  # out of memory or processes; this may pass
            _logger.error("cannot start %s: %s", self._fork_server.name, error.strerror)  # noqa: TRY400
            self._fork_server.restart_at = monotonic() + MAX_RESTART_DELAY
        else:
            self._watch_fork_server(channel)
            self._send_news()

    def _watch_fork_server(self, channel: socket.socket) -> None:
        channel.set_inheritable(False)
        self._channel = channel
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; `_on_exit` starts another
            fork_server.send_counters(channel, self._shared_counters.descriptor)
        self._selector.register(channel, selectors.EVENT_READ, self._on_fork)

    def _start(self, child: Child) -> None:
        """Ask the fork server for a process; `_on_fork` continues."""
        assert self._channel is not None  # noqa: S101 - checked by the caller
        child.restart_at = None
        child.is_ready = child.is_reloading = False
        child.started = monotonic()
        self._shared_counters.beat(child.number, 0.0)
        child.status, status_writer = os.pipe()
        news, child.news = os.pipe()
        child.unread = b""
        os.set_blocking(child.status, False)
        os.set_blocking(child.news, False)
        self._selector.register(child.status, selectors.EVENT_READ, partial(self._read_status, child))
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
            "lock": self._runtime.lock,
        }
        descriptors = (*child.descriptors, "counters", "status", "news", "lock")
        if child.handover is not None:
            options["handover"] = child.handover.fileno()
            descriptors += ("handover",)
        self._forking = child
        self._ended_early.clear()
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; `_on_exit` asks again
                fork_server.request(self._channel, child.module, options, descriptors)
        finally:
            os.close(status_writer)
            os.close(news)

    def _on_fork(self) -> None:
        """Read the reply of the fork server."""
        if self._channel is None or (child := self._forking) is None:
            self._close_channel()  # it has ended
            return
        try:
            child.pid = fork_server.read_reply(self._channel)
        except fork_server.ForkFailed as problem:  # out of memory or processes; this may pass
            _logger.error("cannot start %s: %s", child.name, problem)  # noqa: TRY400 - the message is complete
            self._close_pipes(child)
            child.restart_at = monotonic() + MAX_RESTART_DELAY
        if not child.pid and child.restart_at is None:
            self._close_channel()
            return
        self._forking = None
        if child.handover is not None:
            child.handover.close()
            child.handover = None
        if child is self._resolver and not child.pid:
            child.restart_at = None  # the first worker does not wait for it
        child.started = monotonic()
        if child.pid in self._ended_early:
            self._on_exit(child, self._ended_early[child.pid])
        else:
            self._send_news()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _reap(self) -> None:
        """Note which processes have ended.

        An unknown one is that of which the fork server's reply has not been read, or was never used: the fork server
        ended after its fork.
        """
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
                known = [child for child in (self._fork_server, *self._children) if child.pid == pid]
                if known:
                    self._on_exit(known[0], code)
                elif self._forking is not None:
                    self._ended_early[pid] = code

    def _on_exit(self, child: Child, code: int) -> None:
        child.pid = 0
        if child is self._fork_server:
            self._close_channel()
            if self._forking is not None:
                self._close_pipes(self._forking)
                self._forking.restart_at, self._forking = 0.0, None
        else:
            self._read_status(child)
            self._close_pipes(child)
        if self._stopping:
            return
        child.is_ready, child.is_silent = False, True
        self._note_reloaded(child)
        if child is self._resolver or (child is self._jobs and code == 0):  # workers answer, or there are no jobs
            self._shared_counters.beat(child.number, 0.0)
            self._send_news()
            self._check_started()
            return
        if not self._has_started:  # nor can it
            problem = self._problem or f"the server cannot start: {child.name} ended {_format_exit(code)}"
            print(f"perseid: {problem}", file=sys.stderr, flush=True)
            self._stopping, self._exit_code = True, 1
            return
        now = monotonic()
        child.crashes += 1
        lifetime = now - child.started
        child.restart_delay = (
            0.0
            if lifetime >= STABLE_SECONDS
            else min(max(child.restart_delay * 2, MIN_RESTART_DELAY), MAX_RESTART_DELAY)
        )
        child.restart_at = now + child.restart_delay
        _logger.warning("%s ended %s and is restarted", child.name, _format_exit(code))
        self._send_news()

    # Messages

    def _send_news(self) -> None:
        """Send the state of all processes to each of them."""
        restarts: dict[str, int] = {}
        for child in (*self._children, self._fork_server):
            restarts[child.kind] = restarts.get(child.kind, 0) + child.crashes
        running = {child.name: child.pid for child in (*self._children, self._fork_server) if child.pid}
        silent = [child.options["worker"] for child in self._workers if child.is_silent]
        news = {
            "processes": {"supervisor": os.getpid(), **running},
            "restarts": restarts,
            "silent": silent,
            "has_writer": self._writer.is_ready,
            "is_stopping": self._stopping,
        }
        for child in self._children:
            if child.pid:
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

    def _close_pipes(self, child: Child) -> None:
        self._close_status(child)
        os.close(child.news)
        child.news = -1

    def _on_status(self, child: Child, message: Mapping[str, Any]) -> None:
        if "problem" in message:
            self._problem = message["problem"]
            if self._has_started:
                _logger.error("%s cannot start: %s", child.name, self._problem)
        if "reloaded" in message:
            self._note_reloaded(child)
        if "jobs" in message and not self._jobs.pid and self._jobs is not self._forking:
            self._jobs.restart_at = self._jobs.restart_at or monotonic()
        if "ready" not in message:
            return
        if message["ready"]:  # the clock is accepted once, when the ledger is opened first
            self._accept_clock = False
        child.is_ready = child.was_ready = True
        child.is_silent = False
        self._send_news()
        self._check_started()

    def _check_started(self) -> None:
        """Report the start, and start the other workers, when the first worker serves and the resolver has ended."""
        if self._has_started or self._resolver.pid or not self._workers[0].is_ready:
            return
        self._has_started = True  # the first worker serves for all
        for worker in self._workers[1:]:
            worker.restart_at = 0.0
        self._print_startup()
        systemd.ready()

    def _note_reloaded(self, child: Child) -> None:
        """Tell systemd when the last process has reloaded."""
        if child.is_reloading:
            child.is_reloading = False
            if not any(each.is_reloading for each in self._children):
                systemd.ready()

    def _details(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "native": {"host": self._options.host, "port": self.port},
            **({"http": {"host": self._options.http_host, "port": self.http_port}} if self._options.http_host else {}),
            "workers": self._options.workers,
            "metrics": self._metrics_url(),
        }

    def _print_startup(self) -> None:
        lines = (
            (json.dumps(self._details()),)
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


def choose_stuck(children: Sequence[Child], fork_server: Child, last_writer: Callable[[], int]) -> list[Child]:
    """Return the processes to kill: the one that others wait for, if there is one, else those that are stuck.

    A process that is stopped while it changes the shared state makes all others wait for it,
    except the fork server, which does not use that state.
    """
    running = [child for child in (*children, fork_server) if child.pid]
    locked = [
        child for child in running if child is not fork_server and child.is_ready and child.silence > LOCKED_SECONDS
    ]
    if len(locked) > 1 and (inside := [child for child in locked if child.pid == last_writer()]):
        return inside
    return [child for child in running if child.silence > child.max_silence]


def _open_sockets(options: ServerOptions, is_ending: Callable[[], bool]) -> tuple[list[socket.socket], ...]:
    """Return the sockets of UDP, TCP and HTTP: those that systemd has passed, and the others as the settings say."""
    passed = take_sockets(os.environ, options.port, options.workers)
    if passed.http and not options.http_host:
        raise StartupError(
            "systemd passes a socket for HTTP, but http.enabled is false. Enable it, or remove the socket from the unit"
        )
    native = ("", 0) if passed.udp or passed.tcp else (options.host, options.port)
    http = ("", 0) if passed.http else (options.http_host, options.http_port)
    addresses = native, http, (options.metrics_host, options.metrics_port)
    wait_for_release([each for each in addresses if all(each)], is_ending)
    require_free(*addresses)
    udp, tcp = bind(options.host, options.port, options.workers, (passed.udp, passed.tcp))
    return udp, tcp, passed.http or (listen(*http, options.workers) if options.http_host else [])


def _describe_owner(directory: Path) -> str:
    """Say what uses an installation that cannot be locked."""
    details = read_details(directory)
    if details is None:
        return f"{directory} is in use: a server is starting there, or it is being upgraded. Retry after that"
    places = [(name, details[key]) for key, name in (("native", "native protocol"), ("http", "HTTP")) if key in details]
    ports = [f"{name} at {place['host']} port {place['port']}" for name, place in places]
    return (
        f"A server of {directory} is already running: process {details['pid']}, {', '.join(ports)}. Stop it first, for "
        f"example with `kill {details['pid']}`, or serve another installation with -d DIR"
    )


def _signal_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _format_exit(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"


def main(descriptor: int) -> int:
    """Run the supervisor process, with the options that a pipe contains: a command line is for everybody to read."""
    with open(descriptor, encoding="utf-8") as pipe:
        options = ServerOptions.from_json(pipe.read())
    set_title("supervisor", options.directory)
    logs.configure("supervisor", options.log_format, level=options.log_level)
    try:
        return Supervisor(options).run()
    except (StartupError, NoRuntimeDirectory) as problem:
        print(f"perseid: {problem}", file=sys.stderr, flush=True)
        if options.fork_server[0]:
            os.kill(options.fork_server[0], signal.SIGKILL)
        return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""The supervisor kills the process that others wait for, and not those; it stops all of them, and loses none."""

import inspect
import os
import re
import select
import selectors
import signal
import socket
from functools import partial
from math import inf
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from perseid.server.observe.counters import SharedCounters
from perseid.server.processes import supervisor as module
from perseid.server.processes.supervisor import Child, Supervisor, choose_stuck

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "serving.md"


@pytest.fixture
def supervisor() -> Supervisor:
    """A supervisor of children that it has not started."""
    made = Supervisor.__new__(Supervisor)
    made._writer, made._workers, made._jobs = (
        Child("writer", "", {}),
        [Child("worker-0", "", {})],
        Child("jobs", "", {}),
    )
    made._resolver = Child("resolver", "", {})
    made._children = [made._writer, *made._workers, made._jobs]
    made._fork_server = Child("forkserver", "", {})
    made._channel = made._forking = None
    made._ended_early = {}
    made._has_started, made._stopping = True, False
    return made


@pytest.mark.parametrize(
    ("silences", "last_writer", "killed"),
    [
        ((0.1, 4.9, 0.1), 11, []),
        ((0.1, 5.1, 0.1), 77, ["worker-1"]),
        ((1.1, 1.1, 0.1), 11, ["worker-1"]),  # the other one waits for it
        ((1.1, 1.1, 0.1), 77, []),
        ((0.1, 1.1, 0.1), 11, []),  # nobody waits for it
        ((5.1, 5.1, 5.1), 11, ["worker-1"]),
        ((5.1, 5.1, 5.1), 77, ["worker-0", "worker-1", "worker-2"]),  # nobody waits for a process that is gone
    ],
)
def test_process_inside_a_change_of_the_shared_state_is_killed_first(
    silences: tuple[float, ...], last_writer: int, killed: list[str]
) -> None:
    children = [
        Child(f"worker-{number}", "", {}, pid=10 + number, is_ready=True, silence=silence)
        for number, silence in enumerate(silences)
    ]
    children.append(Child("worker-3", "", {}, silence=100.0))  # it is not running
    children.append(Child("worker-4", "", {}, pid=14, silence=4.9))  # it is starting
    # It is silent too, which does not mean that it waits for another process.
    fork_server = Child("forkserver", "", {}, pid=20, is_ready=True, silence=2.0)
    assert [child.name for child in choose_stuck(children, fork_server, lambda: last_writer)] == killed


def test_process_without_a_first_heartbeat_is_stuck_too(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has one from its fork on. While the whole server starts, and before Python has, it has more time."""
    killed: list[tuple[str, float]] = []
    monkeypatch.setattr(supervisor, "_kill", lambda child, silence: killed.append((child.name, silence)))
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    supervisor._shared_counters = SharedCounters.create(len(supervisor._children) + 1)
    supervisor._runtime = MagicMock(last_writer=lambda: 0)
    supervisor._watchdog_due = inf
    everyone = (*supervisor._children, supervisor._fork_server)
    for number, child in enumerate(everyone):
        child.number, child.pid = number, 100 + number

    def check(now: float, *, has_started: bool) -> list[tuple[str, float]]:
        killed.clear()
        supervisor._has_started, supervisor._checked, supervisor._resume_deadline = has_started, now, 0.0
        supervisor._check_children(now)
        return killed

    assert check(4.9, has_started=True) == []
    assert check(5.1, has_started=True) == [("writer", 5.1), ("worker-0", 5.1), ("jobs", 5.1)]
    assert check(19.9, has_started=False) == []
    assert check(20.1, has_started=False) == [(child.name, 20.1) for child in everyone]
    supervisor._shared_counters.beat(3, 15.0)
    assert "forkserver" in dict(check(20.1, has_started=True))


@pytest.mark.parametrize(
    ("needed", "killed"),
    [
        ({"jobs": 1.0, "worker-0": 8.0, "writer": 9.0}, []),
        ({"jobs": inf, "worker-0": 8.0, "writer": 9.0}, ["jobs did not end in 2 s"]),
        ({"jobs": inf, "worker-0": inf, "writer": 9.0}, ["jobs did not end in 2 s", "worker-0 did not end in 10 s"]),
    ],
)
def test_process_that_does_not_end_leaves_the_others_their_time(
    supervisor: Supervisor,
    needed: dict[str, float],
    killed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    ends: dict[int, float] = {}
    continued: list[int] = []
    for pid, child in enumerate(supervisor._children, 1):
        child.pid = pid

    def kill(pid: int, number: int) -> None:
        if number == signal.SIGCONT:
            assert not ends, "others may wait for a stopped process"
            continued.append(pid)
        else:
            ends[pid] = now if number == signal.SIGKILL else now + needed[supervisor._children[pid - 1].name]

    def wait(_reading: object, _writing: object, _errors: object, timeout: float) -> tuple[bool]:
        nonlocal now
        has_ended = min(ends.values()) <= now + timeout
        now = min(ends.values()) if has_ended else now + timeout
        return (has_ended,)

    def reap() -> None:
        for child in supervisor._children:
            if ends.get(child.pid, inf) <= now:
                del ends[child.pid]
                child.pid = 0

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(select, "select", wait)
    monkeypatch.setattr(module, "monotonic", lambda: now)
    monkeypatch.setattr(supervisor, "_signals", 0, raising=False)
    monkeypatch.setattr(supervisor, "_on_signal", reap)
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    supervisor._stop_all()
    assert continued == [1, 2, 3]
    assert [message.removesuffix(" and is killed") for message in caplog.messages] == killed


@pytest.mark.parametrize("is_reaped_first", [True, False])
def test_child_that_ends_at_once_is_restarted(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_reaped_first: bool
) -> None:
    """Its end may be noticed before the reply of the fork server is read."""
    child = supervisor._forking = supervisor._workers[0]
    ended = iter([(77, 9), (78, 0), (0, 0)])  # 78 is a process that the supervisor has never asked for
    child.news = os.open(os.devnull, os.O_WRONLY)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(os, "waitpid", lambda *_: next(ended))
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    monkeypatch.setattr(supervisor, "_channel", ours)
    with ours, theirs:
        theirs.send(b'{"pid": 77}')
        steps = [supervisor._reap, supervisor._on_fork]
        for step in steps if is_reaped_first else reversed(steps):
            step()
    assert (child.pid, child.crashes, child.restart_at is None) == (0, 1, False)
    assert caplog.messages == ["worker-0 ended by signal 9 and is restarted"]


@pytest.mark.parametrize("is_noticed_first", [True, False])
def test_end_of_the_fork_server_may_be_noticed_before_that_of_its_socket(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, *, is_noticed_first: bool
) -> None:
    """Both events are in one list if the fork server and another process are killed at the same time."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(supervisor, "_selector", selectors.DefaultSelector(), raising=False)
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    monkeypatch.setattr(supervisor, "_channel", ours)
    key = supervisor._selector.register(ours, selectors.EVENT_READ, supervisor._on_fork)
    with supervisor._selector, theirs:
        steps = [partial(supervisor._on_exit, supervisor._fork_server, -9), partial(supervisor._handle, key)]
        for step in steps if is_noticed_first else reversed(steps):
            step()
    assert supervisor._channel is None
    assert supervisor._fork_server.restart_at is not None


def test_process_that_has_ended_can_be_killed(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", MagicMock(side_effect=ProcessLookupError))
    child = supervisor._workers[0]
    child.pid = 77
    supervisor._kill(child, 600.0)


def test_guide_lists_every_process() -> None:
    started = set(re.findall(r'Child\(f?"([a-z]+)', inspect.getsource(module)))
    table = GUIDE.read_text().partition("\n| process |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([a-z]+)", table, re.MULTILINE)) == started | {"supervisor"}


def test_start_is_reported_when_the_resolver_has_ended(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[bool] = []
    monkeypatch.setattr(supervisor, "_print_startup", lambda: reported.append(True))
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    monkeypatch.setattr(supervisor, "_close_pipes", lambda _child: None)
    supervisor._shared_counters = SharedCounters.create(len(supervisor._children) + 1)
    supervisor._has_started = False
    supervisor._resolver.pid = 100
    supervisor._on_status(supervisor._workers[0], {"ready": True})
    assert (reported, supervisor._has_started) == ([], False)
    supervisor._on_exit(supervisor._resolver, 0)
    assert (reported, supervisor._has_started) == ([True], True)


def test_resolver_that_cannot_be_forked_is_left_out(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker reads the end of its socket at once; a later resolver would have none."""
    monkeypatch.setattr(supervisor, "_send_news", lambda: None)
    monkeypatch.setattr(supervisor, "_close_pipes", lambda _child: None)
    ours, theirs = socket.socketpair()
    kept, worker = socket.socketpair()
    supervisor._channel, supervisor._forking = ours, supervisor._resolver
    supervisor._resolver.handover = kept
    with ours, theirs, worker:
        theirs.send(b'{"problem": "Cannot allocate memory"}')
        supervisor._on_fork()
        assert supervisor._resolver.restart_at is None
        assert worker.recv(1) == b""

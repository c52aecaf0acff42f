"""Load test: use a server in every way while its processes are killed, and check that nothing is wrong or lost.

    python -m tests.server.load --seconds 60 --seed 1
    python -m tests.server.load --soak --seconds 600            # or: make soak

Writers, in sessions and with challenges, and readers use HTTP, TCP, and UDP through a network that loses, duplicates
and reorders packets; others mint with idempotency keys; attackers send garbage; workers and the writer are killed and
restarted. Every response is compared with the possible
states between request and response. At the end every acknowledged change must be there, over
the network and in the ledger, once and in order, and nothing that was refused; the ledger must verify; the server must
stop cleanly.

A soak test kills nothing after `KILL_SECONDS` and then measures: after a warm-up, memory, descriptors and threads of
each process must stay constant. It prints them with latencies and the sizes of the stores, ten times. The seed
decides what the users do; the results also depend on the machine.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perseid.registry.installation.installation import Installation
from tests.server.faults.clients import Attacker, Reader, Scene, User, Writer, state_in
from tests.server.faults.history import Outcome, State
from tests.server.faults.http_users import HttpReader, HttpWriter, Minter
from tests.server.faults.machine import Usage, descriptors, eventually, named, processes, usage
from tests.server.faults.network import BadNetwork
from tests.server.installations import PREFIX, copy_to
from tests.server.native.native_client import NativeClient, NoAnswer, Via
from tests.server.running import Serving, serving

GROWTH: Final = 4 << 20
"""Bytes by which a process may grow from the first to the last third of the measured time. In a soak test of ten
minutes there are some ten thousand requests between them, so half a kilobyte leaked for each would show; 0.3 MiB were
measured. A test of two minutes has less time to warm up; 2 MiB were measured."""

KILL_SECONDS: Final = 300.0
"""Seconds in which a soak test kills processes, or half of its time."""

WARM_UP: Final = 90.0
"""Seconds, or a third of the remaining time: challenges and replies are kept for 60."""

MORE_DESCRIPTORS: Final = 8
"""Descriptors or threads by which a process may grow: connections and threads come and go. Each of them leaked for one
request in a thousand would show."""

SERIES: Final = 10
"""Lines of the printed series."""

SETTINGS: Final = {"PERSEID_LOG_ACCESS": "false", "PERSEID_LIMITS_API_REQUESTS": "100000"}
"""No access log, and no limit of requests."""

_SAMPLE_EVERY = 1.0
_PATIENCE = 60.0
"""A short run goes on for at most that long until everything that has to happen has happened."""
_MIB = 1 << 20

Say = Callable[[str], None]


@dataclass
class Figures:
    """Results."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    samples: list[tuple[float, dict[str, Usage]]] = field(default_factory=list)
    """Time and what each process uses, after the warm-up."""
    series: list[str] = field(default_factory=list)

    def total(self, kind: type[User] | str, what: str) -> int:
        """The sum of one count over all users of a kind."""
        kind_name = kind if isinstance(kind, str) else kind.__name__.lower()
        return sum(counts[what] for name, counts in self.counts.items() if name.startswith(kind_name))

    def table(self) -> list[str]:
        """The results as lines."""
        lines = [f"{name:34} {_listed(counts)}" for name, counts in self.counts.items()]
        if self.samples:
            lines += ["", f"{'memory, MiB':14}{'own: first':>12}{'last':>8}{'most':>8}{'pss':>8}{'rss':>8}"]
            for name, (before, after) in self.growth(lambda usage: usage.memory.own).items():
                last = self.samples[-1][1][name].memory
                most = max(sample[name].memory.own for _, sample in self.samples)
                numbers = (before, after, most, last.pss, last.rss)
                shown = "".join(f"{number / _MIB:8.1f}" for number in numbers)
                lines.append(f"{name:14}{'':4}{shown}")
        return lines

    def growth(self, number: Callable[[Usage], int]) -> dict[str, tuple[float, float]]:
        """The median of a number of each process in the first and in the last third of the time."""
        third = max(1, len(self.samples) // 3)
        found = {}
        for name in self.samples[0][1]:
            numbers = [number(sample[name]) for _, sample in self.samples]
            found[name] = statistics.median(numbers[:third]), statistics.median(numbers[-third:])
        return found


class Killer(User):
    """Ends processes of the server in every way, one at a time: a worker first, also if its time is over."""

    def __init__(self, scene: Scene, server: Serving, until: float) -> None:
        super().__init__(scene, "killer", 1.5)
        self._server = server
        self._until = until
        self._next_kill = time.monotonic() + min(3.0, (until - time.monotonic()) / 4)
        self.has_killed = False

    def act(self) -> None:
        now = time.monotonic()
        if now > self._until and self.has_killed:
            return
        if now > self._next_kill:
            self._next_kill = now + self.random.uniform(6.0, 11.0)
            role = self.random.choice(("worker", "worker", "writer")) if self.has_killed else "worker"
            self._end(role, signal.SIGTERM if self.random.random() < 0.25 else signal.SIGKILL)
        elif self.random.random() < 0.1:
            self.counts["reloads"] += 1
            os.kill(self._server.pid, signal.SIGHUP)

    def _end(self, role: str, number: signal.Signals) -> None:
        found = processes(self._server)[role]
        if found:
            self.counts[f"{role} {number.name}"] += 1
            os.kill(self.random.choice(found), number)
            self.has_killed = True


def create_users(scene: Scene, pace: float) -> list[User]:
    """All users. Their pauses keep the load at a fraction of a CPU."""
    return [
        Writer(scene, 1, Via.KEPT, 0.10 * pace, in_session=True),
        Writer(scene, 2, Via.UDP, 0.10 * pace, in_session=True),
        Writer(scene, 3, Via.TCP, 0.25 * pace, in_session=False),
        Writer(scene, 4, Via.UDP, 0.25 * pace, in_session=False),
        Reader(scene, 1, Via.UDP, 0.02 * pace),
        Reader(scene, 2, Via.UDP, 0.02 * pace),
        Reader(scene, 3, Via.TCP, 0.04 * pace),
        Reader(scene, 4, Via.KEPT, 0.04 * pace),
        Reader(scene, 5, Via.UDP, 0.20 * pace, certified=True),
        Reader(scene, 6, Via.TCP, 0.20 * pace, certified=True),
        HttpWriter(scene, 5, 0.20 * pace, kept=True),
        HttpWriter(scene, 6, 0.40 * pace, kept=False),
        HttpReader(scene, 7, 0.04 * pace, kept=True),
        HttpReader(scene, 8, 0.10 * pace, kept=False),
        Minter(scene, 1, 0.20 * pace, kept=True),
        Attacker(scene, 1, Via.UDP, 0.02 * pace),
        Attacker(scene, 2, Via.TCP, 0.20 * pace),
    ]


def run(seconds: float, seed: int, *, soak: bool = False, pace: float = 1.0, say: Say = print) -> Figures:
    """Run the test; raises `AssertionError` on any error."""
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="perseid-load-") as folder:
        directory = copy_to(Path(folder))
        with serving(directory, "--workers", "2", **SETTINGS) as server:
            opened = descriptors(server.pid)
            with BadNetwork(server.native, f"{seed}-network") as network:
                scene = Scene(server.native, network.address, server.http, seed)
                figures.counts["network"] = network.counts
                _use(scene, server, directory, seconds, figures, soak=soak, pace=pace, say=say)
            say("\n".join(figures.table()))
            eventually(lambda: _is_whole(server), "all processes, and answers from them")
            check_names(scene, server)
            assert descriptors(server.pid) <= opened, "the supervisor leaks descriptors of ended processes"
            assert "Internal Error" not in server.errors, server.errors
        check_ledger(scene, directory)
    _check_figures(figures, soak=soak)
    return figures


def _use(
    scene: Scene,
    server: Serving,
    directory: Path,
    seconds: float,
    figures: Figures,
    *,
    soak: bool,
    pace: float,
    say: Say,
) -> None:
    started = time.monotonic()
    end, quiet = started + seconds, started + (min(KILL_SECONDS, seconds / 2) if soak else seconds)
    killer = Killer(scene, server, quiet)
    users = [*create_users(scene, pace), killer]
    for user in users:
        user.start()
    warm = quiet + min(WARM_UP, (end - quiet) / 3)
    shown = warm
    for user in users:
        figures.counts[user.name] = user.counts
    latest = end + _PATIENCE
    while ((now := time.monotonic()) < end or (now < latest and _missing(figures))) and not scene.wrong:
        assert server.process.poll() is None, server.errors
        if soak and now > warm:
            figures.samples.append((now - started, {name: usage(pid) for name, pid in named(server).items()}))
            if now >= shown + (end - warm) / SERIES:
                say(_line(figures, users, shown, (directory, server.folder)))
                shown = now
        time.sleep(_SAMPLE_EVERY)
    scene.ending.set()
    for user in users:
        user.join()
    assert not scene.wrong, "\n".join((*figures.table(), *scene.wrong, server.errors))


def _line(figures: Figures, users: Sequence[User], since: float, folders: Sequence[Path]) -> str:
    """One line of the series: seconds, own memory, descriptors and threads of each process, stores, latencies."""
    seconds, sample = figures.samples[-1]
    parts = [
        f"{name} {used.memory.own / _MIB:.1f} MiB {used.descriptors} fd {used.threads} threads"
        for name, used in sample.items()
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.name in ("data.mdb", "ledger.db")]
    parts += [f"{path.parent.name}/{path.name} {path.stat().st_blocks * 512 / _MIB:.1f} MiB" for path in sorted(files)]
    for kind in ("reader", "writer", "minter"):
        waits = [
            ended - asked
            for user in users
            if user.name.startswith(kind)
            for asked, ended in user.answers
            if asked > since
        ]
        if waits:
            middle, late = statistics.median(waits), sorted(waits)[int(0.99 * len(waits))]
            parts.append(f"{kind} {len(waits)}: {middle * 1000:.1f} ms, p99 {late * 1000:.1f} ms")
    return f"{seconds:.0f} s: {'; '.join(parts)}"


def _is_whole(server: Serving) -> bool:
    """Whether every process runs and every transport responds."""
    if len(processes(server)["worker"]) != server.workers:
        return False
    try:
        for via in (Via.UDP, Via.TCP):
            with NativeClient(server.native, via, timeout=20) as client:
                client.resolve(f"{PREFIX}/n1")
    except (NoAnswer, OSError):
        return False
    return True


def check_names(scene: Scene, server: Serving) -> None:
    """Check the final state of every handle, over both transports."""
    with NativeClient(server.native, Via.KEPT, timeout=60) as kept, NativeClient(server.native, Via.UDP) as udp:
        for history in scene.book:
            asked = time.monotonic()
            for client in (kept, udp):
                state = state_in(client.resolve(history.name))
                possible = history.possible(asked, time.monotonic())
                assert state in possible, f"{history.name} is {state} in the end; possible is {possible}"


def check_ledger(scene: Scene, directory: Path) -> None:
    """Check that each acknowledged change is in the ledger once and in order, nothing else, and that it verifies."""
    entries: dict[str, list[State]] = {history.name: [] for history in scene.book}
    minted: dict[str, list[str]] = {}
    with Installation.open(directory, environ={}) as installation, installation.ledger.open_reader() as reader:
        for entry in reader.log(0):
            if entry.handle in entries:
                values = {value.index: value.data for value in entry.record()}
                entries[entry.handle].append(values[2].decode() if 2 in values else None)
            elif (found := entry.record()) and (url := found[0].data.decode("latin-1")) in scene.minted:
                minted.setdefault(url, []).append(entry.handle)
    check_minted(scene, minted)
    for history in scene.book:
        states = entries[history.name]
        assert history.accepts(states), f"{history.name} has the entries {states}; its history is {history.changes}"
    command = [sys.executable, "-c", "from perseid.cli import main; main()", "verify", "--all", "-d", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_minted(scene: Scene, found: Mapping[str, list[str]]) -> None:
    """Check that each mint request was executed once if it was answered, and at most once otherwise."""
    for url, handle in scene.minted.items():
        handles = found.get(url, [])
        assert handles == [handle] if handle else len(handles) <= 1, f"{url} has {handles}; the response was {handle}"


def _missing(figures: Figures) -> list[str]:
    """What has to happen in a run and has not happened yet."""
    missing = [
        f"{name} has changed nothing"
        for name, counts in figures.counts.items()
        if name.startswith(("writer", "minter")) and not counts[Outcome.DONE.value]
    ]
    if not any(name.startswith("worker") for name in list(figures.counts["killer"])):
        missing.append("no worker was ever killed")
    network = figures.counts["network"]
    return missing + [f"no packet was {what}" for what in ("lost", "doubled", "delayed", "late") if not network[what]]


def _check_figures(figures: Figures, *, soak: bool) -> None:
    """Check that every event happened, and that memory stayed constant."""
    assert not (missing := _missing(figures)), "\n".join(missing)
    for name, counts in figures.counts.items():
        if name.startswith("reader"):
            assert counts["answered"] * 2 > counts["asked"], f"{name}: {_listed(counts)}"
    if soak:
        for name, (before, after) in figures.growth(lambda usage: usage.memory.own).items():
            grown = after - before
            assert grown <= GROWTH, f"{name} grew by {grown / _MIB:.1f} MiB; {GROWTH / _MIB:.0f} MiB are allowed"
        for what, number in (("descriptors", _descriptors), ("threads", _threads)):
            for name, (before, after) in figures.growth(number).items():
                assert after <= before + MORE_DESCRIPTORS, f"{name} had {before:.0f} {what}, and {after:.0f} later"


def _descriptors(usage: Usage) -> int:
    return usage.descriptors


def _threads(usage: Usage) -> int:
    return usage.threads


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="use a server while its processes are killed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--soak", action="store_true", help="kill only at the beginning, and measure afterwards")
    parser.add_argument("--pace", type=float, default=1.0, help="how long everybody pauses, as a multiple")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}: repeat with --seed {options.seed}", flush=True)
    figures = run(options.seconds, options.seed, soak=options.soak, pace=options.pace)
    done = figures.total(Writer, Outcome.DONE.value)
    print(f"{done:,} acknowledged changes, none lost; {figures.total(Reader, 'answered'):,} answers, none wrong")


if __name__ == "__main__":
    main()

"""Kill processes of a server while clients use it, and check the result: `make crash`, or a few rounds in the tests.

    python -m tests.server.crash --rounds 100 --seed 1

Each round kills one or two processes with SIGKILL: workers, the writer, the supervisor. A killed supervisor ends the
server, and the command is started again. Meanwhile clients read over UDP, TCP and HTTP, write in sessions and with
challenges over TCP and with PUT over HTTP, and mint with idempotency keys. Every response is compared with the possible
states between request and response. While the supervisor lives, a datagram is lost only if it was sent before the
kill, and sessions continue. At the end every acknowledged change must be in the ledger, once and in order, each mint
request must have been executed once, and the ledger must verify.

The recovery of a round is the time from the kill to the first response to a later request, of the kind of client
that waits longest. A round is identified by its seed, which determines what is killed, but not what the clients do
until then.
"""

import argparse
import math
import os
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.server.faults.clients import Reader, Scene, User, Writer
from tests.server.faults.history import Outcome
from tests.server.faults.http_users import HttpReader, HttpWriter, Minter
from tests.server.faults.machine import eventually, processes
from tests.server.installations import copy_to
from tests.server.load import SETTINGS, check_ledger, check_names
from tests.server.native.native_client import NativeClient, Via
from tests.server.running import Serving, start

VICTIMS: Final = (
    ("worker",),
    ("writer",),
    ("worker", "writer"),
    ("supervisor",),
    ("worker", "worker"),
    ("writer", "supervisor"),
    ("worker", "supervisor"),
    ("forkserver", "writer"),
)
"""What is killed, round by round: the supervisor in between, so that the others seldom wait because they ended soon
after their start."""

RECOVERY_SECONDS: Final = 120.0
"""Seconds for all clients to be answered again: much more than a loaded machine needs."""

UDP_SECONDS: Final = 60.0
"""Seconds after which a datagram is lost: more than two workers take to be replaced on a loaded machine. Datagrams that
wait in a socket are answered late."""

READ_SECONDS: Final = 1.0
"""Seconds after a kill in which a datagram from before is answered, unless the killed process had read it."""

Say = Callable[[str], None]


@dataclass
class Figures:
    """Results."""

    recoveries: dict[str, list[float]] = field(default_factory=dict)
    """Seconds by what was killed."""
    lost: dict[str, int] = field(default_factory=dict)
    """Datagrams that were sent before the kill and got no response."""

    def table(self) -> list[str]:
        """The results as lines."""
        lines = [f"{'killed':20}{'rounds':>8}{'recovery: median':>18}{'most':>8}{'datagrams lost':>16}"]
        for name, seconds in self.recoveries.items():
            middle, most = statistics.median(seconds), max(seconds)
            lines.append(f"{name:20}{len(seconds):8}{middle:16.2f} s{most:6.2f} s{self.lost[name]:16}")
        every = sorted(each for seconds in self.recoveries.values() for each in seconds)
        parts = [f"{share} % within {every[(len(every) - 1) * share // 100]:.2f} s" for share in (50, 90, 99, 100)]
        return [*lines, f"recovery: {', '.join(parts)}; {sum(each < 1 for each in every)} of {len(every)} below 1 s"]


class UdpReader(Reader):
    """Sends each datagram once, and records when those were sent that got no response."""

    def __init__(self, scene: Scene, number: int, pause: float) -> None:
        super().__init__(scene, number, Via.UDP, pause)
        self._client = NativeClient(scene.direct, Via.UDP, timeout=UDP_SECONDS, attempts=1, gives_up=self._gives_up)
        self.asked = 0.0
        """When the latest datagram was sent; the one before was answered or given up."""
        self.lost_until = 0.0
        """Datagrams that were sent before may be lost."""
        self.lost: list[float] = []

    def _gives_up(self) -> bool:
        return self.asked < self.lost_until and time.monotonic() > self.lost_until + READ_SECONDS

    def act(self) -> None:
        self.asked, before = time.monotonic(), self.counts["unanswered"]
        super().act()
        if self.counts["unanswered"] > before:
            self.lost.append(self.asked)


@dataclass
class Server:
    """A server that is started again at the same ports."""

    directory: Path
    folder: Path
    running: Serving
    log_start: int = 0
    """Where the log of the running server starts."""

    def restart(self) -> None:
        """Start the command again; it fails if processes of the killed server use the ports for long."""
        self.running.process.wait()
        self.log_start = len(self.running.errors)
        end = time.monotonic() + RECOVERY_SECONDS
        while True:
            try:
                self.running = _start(self.directory, self.folder, self.running)
            except AssertionError:
                if time.monotonic() > end:
                    raise
            else:
                return

    def is_whole(self) -> bool:
        """Whether every worker is ready, and a writer runs."""
        log = self.running.errors[self.log_start :]
        names = [f"worker-{number}" for number in range(self.running.workers)]
        are_ready = all(log.rfind(f"{name} ready") > log.rfind(f"{name} ended") for name in names)
        return are_ready and len(processes(self.running).get("writer", [])) == 1


def _start(directory: Path, folder: Path, earlier: Serving | None = None) -> Serving:
    ports = (0, 0) if earlier is None else (earlier.native[1], earlier.http[1])
    options = ("--workers", "2", "--native-port", str(ports[0]), "--http-port", str(ports[1]))
    return start(directory, folder, *options, **SETTINGS)


@contextmanager
def _serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="perseid-crash-") as folder:
        directory = copy_to(Path(folder))
        server = Server(directory, Path(folder), _start(directory, Path(folder)))
        try:
            yield server
        except BaseException:
            server.running.kill()
            raise


def create_users(scene: Scene, pace: float) -> list[User]:
    """All users. Their pauses keep the load at a fraction of a CPU."""
    return [
        Writer(scene, 1, Via.KEPT, 0.05 * pace, in_session=True),
        Writer(scene, 2, Via.TCP, 0.05 * pace, in_session=True),
        Writer(scene, 3, Via.TCP, 0.10 * pace, in_session=False),
        HttpWriter(scene, 4, 0.05 * pace, kept=True),
        HttpWriter(scene, 5, 0.10 * pace, kept=False),
        Minter(scene, 1, 0.05 * pace, kept=True),
        Minter(scene, 2, 0.10 * pace, kept=False),
        *(UdpReader(scene, number, 0.02 * pace) for number in range(1, 5)),
        Reader(scene, 5, Via.TCP, 0.03 * pace),
        Reader(scene, 6, Via.KEPT, 0.03 * pace),
        HttpReader(scene, 7, 0.03 * pace, kept=True),
        HttpReader(scene, 8, 0.05 * pace, kept=False),
    ]


def run(rounds: int, seed: int, *, pace: float = 1.0, say: Say = print) -> Figures:
    """Run rounds; raises `AssertionError` on any error."""
    figures = Figures()
    with _serving() as server:
        eventually(server.is_whole, "all processes")
        scene = Scene(server.running.native, server.running.native, server.running.http, seed)
        users = create_users(scene, pace)
        for user in users:
            user.start()
        try:
            for number in range(rounds):
                _round(server, scene, users, figures, number, say)
        finally:
            scene.ending.set()
            for user in users:
                user.join()
        assert not scene.wrong, "\n".join((*scene.wrong, server.running.errors[-10_000:]))
        check_names(scene, server.running)
        assert "Internal Error" not in server.running.errors, server.running.errors[-10_000:]
        server.running.stop()
        check_ledger(scene, server.directory)
    done = scene.book.count(Outcome.DONE) + sum(handle is not None for handle in scene.minted.values())
    answers = sum(user.counts["answered"] for user in users)
    say("\n".join(figures.table()))
    say(f"{rounds} rounds, {done:,} acknowledged changes, none lost; {answers:,} answers, none wrong")
    return figures


def _round(server: Server, scene: Scene, users: Sequence[User], figures: Figures, number: int, say: Say) -> None:
    victims = VICTIMS[number % len(VICTIMS)]
    name = " and ".join(victims)
    chance = random.Random(f"{scene.seed}-{number}")
    time.sleep(chance.uniform(0.2, 0.6))
    sessions = {user: user.counts["sessions"] for user in users}
    killed = _kill(server, victims, chance)
    if "supervisor" in victims:
        server.restart()
    for user in users:
        if isinstance(user, UdpReader):
            user.lost_until = time.monotonic() if "supervisor" in victims else killed
    recovered = _wait_until_answered(scene, server, users, killed)
    eventually(server.is_whole, "all processes")
    time.sleep(chance.uniform(0.0, 0.4))
    _wait_for_datagrams(users)
    lost = [sent for user in users if isinstance(user, UdpReader) for sent in user.lost]
    late = [] if "supervisor" in victims else [sent - killed for sent in lost if sent > killed]
    assert not late, f"datagrams that were sent {late} s after the kill were lost"
    for user in users:
        if isinstance(user, UdpReader):
            user.lost.clear()
        elif isinstance(user, Writer) and "supervisor" not in victims:
            again = user.counts["sessions"] - sessions[user]
            assert again <= 1, f"{user.name} has started {again} sessions"
    figures.recoveries.setdefault(name, []).append(recovered)
    figures.lost[name] = figures.lost.get(name, 0) + len(lost)
    say(f"seed {scene.seed}, round {number}: killed {name}, recovered in {recovered:.2f} s, {len(lost)} datagrams lost")
    assert not scene.wrong, "\n".join((*scene.wrong, server.running.errors[-10_000:]))


def _kill(server: Server, victims: Sequence[str], chance: random.Random) -> float:
    """Kill processes at once; return when."""
    found = {role: chance.sample(pids, len(pids)) for role, pids in processes(server.running).items()}
    found["supervisor"] = [server.running.pid]
    pids = [found[role].pop() for role in victims]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def _wait_until_answered(scene: Scene, server: Server, users: Sequence[User], killed: float) -> float:
    """Wait until users of each kind have had a response to a request after the kill; return how long that took."""
    kinds = {_kind(user) for user in users}
    firsts: dict[str, float] = {}

    def all_answered() -> bool:
        for user in users:
            later = [ended - killed for asked, ended in user.answers[-100:] if asked > killed]
            if later:
                firsts[_kind(user)] = min(firsts.get(_kind(user), math.inf), *later)
        return len(firsts) == len(kinds) or bool(scene.wrong)

    try:
        eventually(all_answered, "answers for everybody", RECOVERY_SECONDS)
    except AssertionError as problem:
        raise AssertionError(f"{problem}; none for {kinds - set(firsts)}; {server.running.errors[-5000:]}") from None
    return max(firsts.values(), default=0.0)


def _wait_for_datagrams(users: Sequence[User]) -> None:
    """Wait until every datagram sent so far was answered or given up, so that no later kill excuses its loss."""
    readers, now = [user for user in users if isinstance(user, UdpReader)], time.monotonic()
    eventually(lambda: all(user.asked > now for user in readers), "new datagrams", 2 * UDP_SECONDS)


def _kind(user: User) -> str:
    """The name of a user without its number: of several over UDP, each may have lost a datagram."""
    return re.sub(r"\d+", "", user.name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="kill processes of a server that is used, and check the result")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--pace", type=float, default=1.0, help="how long everybody pauses, as a multiple")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}: repeat with --seed {options.seed}", flush=True)
    run(options.rounds, options.seed, pace=options.pace)


if __name__ == "__main__":
    main()

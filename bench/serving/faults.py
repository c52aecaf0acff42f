"""Time until a server responds: after its start, and after one of its processes is killed."""

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled
from bench.serving.resolving import WAYS, ask
from perseid.server.benchmark.installation import FORMAT
from perseid.server.benchmark.processes import WORKER, find_processes, memory
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import RemoteProtocolError, ResponseCode
from tests.server.native.native_client import Address, NativeClient, NoAnswer, Serving, Via, serving
from tests.server.running import free_port, start

PATIENCE: Final = 60.0
"""Seconds after which a server is considered dead."""
LIVED: Final = 10.5
"""Seconds that a process must have run to be restarted without delay."""

STARTS: Final = 5
"""Starts of a server; the figures are medians."""

_PROBE = 0.02  # seconds of one attempt: the precision of the figures

Figures = dict[str, float]


def first_answer(address: Address, via: Via) -> float:
    """The monotonic time of the first response. Each attempt uses a new socket."""
    patience = _PROBE if via is Via.UDP else PATIENCE  # a connection may wait to be accepted, a datagram may be lost
    end = time.monotonic() + PATIENCE
    with NativeClient(address, via, timeout=patience, attempts=1) as client:
        while time.monotonic() < end:
            try:
                answer = client.resolve(FORMAT % 0)
            except (NoAnswer, OSError, RemoteProtocolError):
                time.sleep(0.002)
                continue
            _check(answer)
            return time.monotonic()
    raise RuntimeError(f"no response over {via.value} within {PATIENCE:.0f} s")


def _check(answer: VerifiedResponse) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"unexpected response {answer.code!r}")


def start_up(directory: Path, settings: dict[str, str]) -> Figures:
    """Start a server several times, and kill its supervisor; measure the time to the first response, and memory.

    There is bytecode, as in an installed package: to compile all modules takes as long as the start.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        settings |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        time_start(directory, settings)
        rounds = [time_start(directory, settings) | _recover(directory, settings) for _ in range(STARTS)]
    return {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}


def _recover(directory: Path, settings: dict[str, str]) -> Figures:
    """Kill a supervisor and start the next one at the same port."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the other processes end by themselves
        server = start(directory, Path(folder), **settings)
        first_answer(server.native, Via.UDP)
        killed = time.monotonic()
        server.process.kill()
        server.process.wait()
        with serving(directory, "--native-port", str(server.native[1]), **settings):
            return {"kill -9 of supervisor: s until the next one is ready": time.monotonic() - killed}


def time_start(directory: Path, settings: dict[str, str]) -> Figures:
    """Start a server; measure the time to the first response, and memory."""
    address = "127.0.0.1", free_port()
    found: dict[str, float] = {}

    def watch(via: Via) -> None:
        found[via.value] = first_answer(address, via)

    started = time.monotonic()
    watching = [threading.Thread(target=watch, args=(via,), daemon=True) for via in (Via.UDP, Via.TCP)]
    for thread in watching:
        thread.start()
    with serving(directory, "--native-port", str(address[1]), **settings) as server:
        ready_at = time.monotonic()
        for thread in watching:
            thread.join()
        return {
            "start: s to the first response over UDP": found["udp"] - started,
            "start: s to the first response over TCP": found["tcp"] - started,
            "start: s until it reports that it is ready": ready_at - started,
            **resident(server, "just started"),
        }


def resident(server: Serving, when: str) -> Figures:
    """Memory of a server's processes, in MiB."""
    found: Figures = {}
    whole = own = 0.0
    for pid, part in find_processes(server.pid).items():
        taken = memory(pid)
        whole += taken.shared_out
        own += taken.own
        found[f"memory, {when}: {part}, MiB resident"] = taken.resident
        found[f"memory, {when}: {part}, MiB without mapped files"] = taken.own
    found[f"memory, {when}: all together, MiB without mapped files"] = own
    return found | {f"memory, {when}: all together, MiB": whole}


def kills(server: Serving, rounds: int) -> Figures:
    """Kill a worker repeatedly; measure the time to the next response."""
    found: Figures = {}
    for part, via in ((WORKER, Via.TCP), (WORKER, Via.UDP)):
        took = [_killed(server, part, via)]
        while len(took) < rounds:
            time.sleep(LIVED)
            took.append(_killed(server, part, via))
        name = f"kill -9 of {part}: s to the first response over {via.name}"
        found[name] = statistics.median(took)
        if rounds > 1:
            found[f"{name}, longest of {rounds}"] = max(took)
    return found


def udp_while_a_worker_dies(server: Serving, filled: Filled, generators: int) -> Figures:
    """Kill a worker during resolution over UDP: no client may notice."""
    killer = threading.Timer(0.5, os.kill, (_of_part(server, WORKER), signal.SIGKILL))
    killer.start()
    tally = ask(server, filled, WAYS[0], 2.0, generators)[0]
    first_answer(server.native, Via.TCP)
    return {"UDP while a worker is killed: lost or wrong": tally.lost + tally.wrong}


def _of_part(server: Serving, part: str) -> int:
    return next(pid for pid, found in find_processes(server.pid).items() if found == part)


def _killed(server: Serving, part: str, via: Via) -> float:
    pid = _of_part(server, part)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not _lives(pid))
    return first_answer(server.native, via) - started


def _lives(pid: int) -> bool:
    """Whether a process is running and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.0005)

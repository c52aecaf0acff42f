"""How long a server takes until it answers: from its start, and from the death of one of its processes."""

import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.serving.installations import FORMAT, Filled
from bench.serving.processes import CONTROL, RESOLVER, memory, parts
from bench.serving.resolving import WAYS, ask
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import ResponseCode
from perseid.wire.errors import RemoteProtocolError
from tests.server.native.native_client import Address, NativeClient, NoAnswer, Serving, Via, serving

PATIENCE: Final = 60.0
"""Seconds after which a server that does not answer is taken for dead."""
LIVED: Final = 10.5
"""Seconds that a process must have lived for its supervisor to start it again without a pause."""

_PROBE = 0.02  # seconds that one attempt waits: how exact the figures are at worst

Figures = dict[str, float]


def first_answer(address: Address, via: Via) -> float:
    """When a server first answers, by the monotonic clock. It is asked again and again, each time anew."""
    patience = _PROBE if via is Via.UDP else PATIENCE  # a connection may wait to be taken, a datagram may be lost
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
    raise RuntimeError(f"no answer over {via.value} within {PATIENCE:.0f} s")


def _check(answer: VerifiedResponse) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"the server answered {answer.code!r}")


def start_up(directory: Path, settings: dict[str, str]) -> Figures:
    """Start a server, and see when it answers and what it has in memory then."""
    address = "127.0.0.1", _free_port()
    found: dict[str, float] = {}

    def look(via: Via) -> None:
        found[via.value] = first_answer(address, via)

    began = time.monotonic()
    watching = [threading.Thread(target=look, args=(via,)) for via in (Via.UDP, Via.TCP)]
    for thread in watching:
        thread.start()
    with serving(directory, "--native-port", str(address[1]), **settings) as server:
        said = time.monotonic()
        for thread in watching:
            thread.join()
        return {
            "start: s to the first answer over UDP": found["udp"] - began,
            "start: s to the first answer over TCP": found["tcp"] - began,
            "start: s until it says that it serves": said - began,
            **resident(server, "just started"),
        }


def resident(server: Serving, when: str) -> Figures:
    """What the processes of a server have in memory, in MiB."""
    found: Figures = {}
    whole = 0.0
    for pid, part in parts(server.pid).items():
        taken = memory(pid)
        whole += taken.shared_out
        found[f"memory, {when}: {part}, MiB resident"] = taken.resident
        found[f"memory, {when}: {part}, MiB without mapped files"] = taken.own
    return found | {f"memory, {when}: all together, MiB": whole}


def kills(server: Serving, rounds: int) -> Figures:
    """Kill control and a resolver, each so often, and see when there is an answer again."""
    found: Figures = {}
    for part, via in ((CONTROL, Via.TCP), (RESOLVER, Via.UDP)):
        took = [_killed(server, part, via)]
        while len(took) < rounds:
            time.sleep(LIVED)
            took.append(_killed(server, part, via))
        name = f"kill -9 of {part}: s to the first answer over {via.name}"
        found[name] = statistics.median(took)
        if rounds > 1:
            found[f"{name}, longest of {rounds}"] = max(took)
    return found


def udp_while_control_dies(server: Serving, filled: Filled, generators: int) -> Figures:
    """Kill control while records are asked for over UDP: nobody who asks may notice."""
    killer = threading.Timer(0.5, os.kill, (_of_part(server, CONTROL), signal.SIGKILL))
    killer.start()
    tally = ask(server, filled, WAYS[0], 2.0, generators)[0]
    first_answer(server.native, Via.TCP)
    return {"UDP while control is killed: lost or wrong": tally.lost + tally.wrong}


def _of_part(server: Serving, part: str) -> int:
    return next(pid for pid, found in parts(server.pid).items() if found == part)


def _killed(server: Serving, part: str, via: Via) -> float:
    pid = _of_part(server, part)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not _lives(pid))
    return first_answer(server.native, via) - began


def _lives(pid: int) -> bool:
    """Whether a process is still one that could answer: not gone, and not waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.0005)


def _free_port() -> int:
    """A port at which nobody listens; somebody might take it before the server does, but hardly ever does."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

"""Creates a second over the network, by authenticated administrators."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled
from bench.serving.writing import Order, Written
from perseid.server.benchmark.processes import run_together
from perseid.wire.codes import ResponseCode
from tests.server.native.native_client import NativeClient, Serving, Via

_MICRO = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Manner:
    """How the clients of one line create records."""

    name: str
    clients: int
    in_session: bool
    proof: str
    via: Via = Via.TCP
    pipelined: bool = False


MANNERS: Final = (
    Manner("1 client, session, a connection each", 1, True, "secret"),
    Manner("8 clients, sessions, a connection each", 8, True, "secret"),
    Manner("32 clients, sessions, a connection each", 32, True, "secret"),
    Manner("1 client, session, kept open", 1, True, "secret", Via.KEPT),
    Manner("8 clients, sessions, kept open", 8, True, "secret", Via.KEPT),
    Manner("1 client, session, pipelined", 1, True, "secret", pipelined=True),
    Manner("1 client, RSA each time", 1, False, "rsa"),
    Manner("8 clients, RSA each time", 8, False, "rsa"),
    Manner("1 client, secret each time", 1, False, "secret"),
    Manner("8 clients, secret each time", 8, False, "secret"),
)


def creates(server: Serving, filled: Filled, seconds: float, say: Callable[[str], None]) -> Figures:
    """Measure every way to create records; acknowledged records must exist."""
    figures = _disk(filled.directory.parent, seconds)
    for number, manner in enumerate(MANNERS):
        say(f"creates: {manner.name}")
        figures |= _in_manner(server, filled, seconds, manner, f"n{number}")
    return figures


def _disk(folder: Path, seconds: float) -> Figures:
    """Durable small commits a second of the disk, sequentially: the limit of a single client."""
    place = folder / "disk.db"
    with closing(sqlite3.connect(place, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t (data BLOB)")
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            connection.execute("INSERT INTO t VALUES (?)", (bytes(400),))
            done += 1
        return {"disk alone, sequential: commits/s": done / (time.monotonic() - started)}


def _in_manner(server: Serving, filled: Filled, seconds: float, manner: Manner, label: str) -> Figures:
    orders = [
        Order(
            server.native,
            str(filled.directory),
            filled.secret,
            manner.proof,
            manner.in_session,
            manner.via.value,
            f"{label}-{number}",
            seconds,
            manner.pipelined,
        )
        for number in range(manner.clients)
    ]
    effort = run_together(server.pid, "bench.serving.writing", orders)
    written = [Written(**report) for report in effort.reports]
    acknowledged = sum(one.acknowledged for one in written)
    with NativeClient(server.native, Via.UDP) as client:
        for last in (one.last for one in written if one.last):
            if client.resolve(last).code != ResponseCode.SUCCESS:
                raise RuntimeError(f"{last} was acknowledged and is not there")
    return {
        f"{manner.name}: creates/s": acknowledged / max(one.seconds for one in written),
        f"{manner.name}: CPU µs of the server": effort.total / acknowledged * _MICRO,
        f"{manner.name}: CPU µs of the client": sum(one.cpu for one in written) / acknowledged * _MICRO,
        f"{manner.name}: refused": sum(one.refused for one in written),
    }

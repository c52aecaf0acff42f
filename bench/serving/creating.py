"""Creates a second over the network, by authenticated administrators."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled
from bench.serving.writing import WriteOptions, Written
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
    figures = {"disk alone, sequential: commits/s": commit_alone(filled.directory.parent, seconds).rate}
    for number, manner in enumerate(MANNERS):
        say(f"creates: {manner.name}")
        found = create(server, filled, seconds, manner, f"n{number}")
        figures |= {
            f"{manner.name}: creates/s": found.rate,
            f"{manner.name}: CPU µs of the server": found.cpu,
            f"{manner.name}: CPU µs of the client": found.client_cpu,
            f"{manner.name}: refused": found.failed,
        }
    return figures


@dataclass(frozen=True, slots=True)
class Created:
    """Results: CPU is in microseconds for a record."""

    rate: float
    cpu: float
    client_cpu: float = 0.0
    failed: int = 0


def commit_alone(folder: Path, seconds: float) -> Created:
    """Durable small commits of SQLite, sequentially: the limit of a single client."""
    place = folder / "disk.db"
    with closing(sqlite3.connect(place, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS t (data BLOB)")
        done, started, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - started < seconds:
            connection.execute("INSERT INTO t VALUES (?)", (bytes(400),))
            done += 1
        return Created(done / (time.monotonic() - started), (time.process_time() - cpu) / done * _MICRO)


def create(server: Serving, filled: Filled, seconds: float, manner: Manner, label: str) -> Created:
    """Create records; each client uses suffixes of its own that start with the label."""
    options = [
        WriteOptions(
            server.native,
            str(filled.directory),
            filled.secret,
            manner.proof,
            manner.in_session,
            manner.via.value,
            f"{label}-{number}",
            seconds,
            manner.pipelined,
            manner.clients,
        )
        for number in range(manner.clients)
    ]
    result = run_together(server.pid, "bench.serving.writing", options)
    written = [Written(**report) for report in result.reports]
    acknowledged = sum(one.acknowledged for one in written)
    with NativeClient(server.native, Via.UDP) as client:
        for last in (one.last for one in written if one.last):
            if client.resolve(last).code != ResponseCode.SUCCESS:
                raise RuntimeError(f"{last} was acknowledged and is not there")
    return Created(
        acknowledged / max(one.seconds for one in written),
        result.total / acknowledged * _MICRO,
        sum(one.cpu for one in written) / acknowledged * _MICRO,
        sum(one.refused for one in written),
    )

"""How many records a second are created over the network by administrators who prove who they are."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.crew import at_work
from bench.serving.installations import Filled
from bench.serving.writing import Order, Written
from perseid.wire.codes import ResponseCode
from tests.server.native.native_client import NativeClient, Serving, Via

_MICRO = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Manner:
    """How the clients of one line create."""

    name: str
    clients: int
    in_session: bool
    proof: str
    via: Via = Via.TCP


MANNERS: Final = (
    Manner("1 client, session, a connection each", 1, True, "secret"),
    Manner("8 clients, sessions, a connection each", 8, True, "secret"),
    Manner("1 client, session, kept open", 1, True, "secret", Via.KEPT),
    Manner("8 clients, sessions, kept open", 8, True, "secret", Via.KEPT),
    Manner("1 client, RSA each time", 1, False, "rsa"),
    Manner("8 clients, RSA each time", 8, False, "rsa"),
    Manner("1 client, secret each time", 1, False, "secret"),
    Manner("8 clients, secret each time", 8, False, "secret"),
)


def creates(server: Serving, filled: Filled, seconds: float, say: Callable[[str], None]) -> Figures:
    """Create in every manner; what was acknowledged must be there."""
    found = _disk(filled.directory.parent, seconds)
    for number, manner in enumerate(MANNERS):
        say(f"creates: {manner.name}")
        found |= _in_manner(server, filled, seconds, manner, f"n{number}")
    return found


def _disk(folder: Path, seconds: float) -> Figures:
    """How many small changes a second the disk makes durable, one after the other: no single client can have more."""
    place = folder / "disk.db"
    with closing(sqlite3.connect(place, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t (octets BLOB)")
        done, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            connection.execute("INSERT INTO t VALUES (?)", (bytes(400),))
            done += 1
        return {"disk alone, one after the other: commits/s": done / (time.monotonic() - began)}


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
        ).to_json()
        for number in range(manner.clients)
    ]
    effort = at_work(server.pid, "bench.serving.writing", orders)
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

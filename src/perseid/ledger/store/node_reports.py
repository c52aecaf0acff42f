"""Reports of the nodes that share a PostgreSQL database: the running servers, their versions, clocks and views.

A report is dated by the clock of the database, so that it does not depend on the clock of any node. A ledger in a file
has one server, which needs no reports.
"""

import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, func, select, text

from .store import Store
from .tables import head, node_reports

REPORT_SECONDS: Final = 10.0
"""Seconds between two reports of a node: often enough to be noticed within a minute, at a negligible cost."""

KEPT_SECONDS: Final = 7 * 86_400
"""Seconds after which a node that reports no more is forgotten: long enough for somebody to notice."""

_MICROSECONDS: Final = 1_000_000
_DATABASE_CLOCK = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What is known of a node."""

    name: str
    """Its host and directory."""
    version: str
    """The version of Perseid that it runs."""
    age: float
    """Seconds since it reported."""
    clock_difference: float
    """Seconds that its clock is ahead of the clock of the database; negative if it is behind."""
    behind: int
    """Entries of the ledger that its answers view had not applied."""


def save_report(store: Store, name: str, version: str, applied: int) -> None:
    """Save the report of a node whose answers view has applied the entries up to `applied`."""
    from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - only nodes need it

    with store.writing() as connection:
        before = time.time_ns()
        now = _read_clock(connection)
        clock = (before + time.time_ns()) // 2000  # in the middle of the request
        behind = func.greatest(0, select(head.c.seq).scalar_subquery() - applied)
        state = {"version": version, "seen_at": now, "clock_difference": clock - now, "behind": behind}
        new = insert(node_reports).values(name=name, **state)
        connection.execute(new.on_conflict_do_update(index_elements=["name"], set_=state))
        expired = node_reports.c.seen_at < now - KEPT_SECONDS * _MICROSECONDS
        connection.execute(delete(node_reports).where(expired))


def remove_report(store: Store, name: str) -> None:
    """Remove the report of a node that was stopped."""
    with store.writing() as connection:
        connection.execute(delete(node_reports).where(node_reports.c.name == name))


def read_reports(store: Store) -> list[NodeReport]:
    """Read the reports of all nodes by name; empty for a ledger in a file."""
    if not store.is_remote:
        return []
    with store.reading() as connection:
        rows = connection.execute(select(node_reports).order_by(node_reports.c.name)).all()
        now = _read_clock(connection)
    return [
        NodeReport(
            row.name,
            row.version,
            max(0, now - row.seen_at) / _MICROSECONDS,
            row.clock_difference / _MICROSECONDS,
            row.behind,
        )
        for row in rows
    ]


def _read_clock(connection: Connection) -> int:
    """The database's time in microseconds since 1970."""
    return int(connection.execute(_DATABASE_CLOCK).scalar_one())

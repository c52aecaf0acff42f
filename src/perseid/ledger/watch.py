"""Noticing what other processes and nodes append.

SQLite counts the commits of others (`data_version`); asking costs microseconds, so it is asked twenty times a second.
PostgreSQL sends a notification with every commit; should one be lost with its connection, the same interval of asking
finds the entries all the same.
"""

import threading
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import text

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.log import Log
from perseid.ledger.store.tables import CHANNEL

INTERVAL: Final = 0.05
"""Seconds between two looks."""


class Watch:
    """Tells when there may be new entries of others. Belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = log.store.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._listens = log.store.dialect != "sqlite"
        if self._listens:
            self._connection.execute(text(f"LISTEN {CHANNEL}"))
        self._version = self._data_version()

    def close(self) -> None:
        """End the connection; it is not given back to others, for it listens."""
        self._connection.invalidate()
        self._connection.close()

    def wait(self, stop: threading.Event) -> bool:
        """Wait one interval at most; whether others have committed something, as far as can be told."""
        if self._listens:
            driver: Any = self._connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=INTERVAL, stop_after=1))
        stop.wait(INTERVAL)
        version = self._data_version()
        moved, self._version = version != self._version, version
        return moved

    def _data_version(self) -> int:
        if self._listens:
            return 0
        cursor = self._connection.connection.cursor()
        cursor.execute("PRAGMA data_version")
        row: Any = cursor.fetchone()
        return int(row[0])


def follow(log: Log, after: int, stop: threading.Event) -> Iterator[Entry]:
    """The entries behind one, in order, and then those that are appended, as they come, until `stop` is set."""
    watch = Watch(log)
    try:
        while not stop.is_set():
            with log.reading() as reading:
                found = list(reading.log(after, after + 1_000))
            yield from found
            if found:
                after = found[-1].seq
            else:
                watch.wait(stop)
    finally:
        watch.close()

"""Detection of entries that other processes and nodes append.

SQLite counts the commits of other connections (`data_version`); reading it takes microseconds, so it is polled 20 times
per second. PostgreSQL sends a notification with every commit; if one is lost with its connection, callers find the
entries at the next poll.
"""

import threading
from typing import Any, Final

from sqlalchemy import text

from perseid.ledger.store.tables import CHANNEL

from .log import Log

INTERVAL: Final = 0.05
"""Seconds between two polls."""


class ChangeWatcher:
    """Reports when other processes may have appended entries. Belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = log.store.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._is_listening = log.store.dialect != "sqlite"
        if self._is_listening:
            self._connection.execute(text(f"LISTEN {CHANNEL}"))
        self._version = self._data_version()

    def close(self) -> None:
        """Close the connection; it is not returned to the pool, because it listens."""
        self._connection.invalidate()
        self._connection.close()

    def wait(self, stop: threading.Event) -> bool:
        """Wait for at most one interval; return whether other processes have committed."""
        if self._is_listening:
            driver: Any = self._connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=INTERVAL, stop_after=1))
        stop.wait(INTERVAL)
        version = self._data_version()
        has_changed, self._version = version != self._version, version
        return has_changed

    def _data_version(self) -> int:
        if self._is_listening:
            return 0
        cursor = self._connection.connection.cursor()
        cursor.execute("PRAGMA data_version")
        row: Any = cursor.fetchone()
        return int(row[0])

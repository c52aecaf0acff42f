"""Opening the SQL store of a ledger: connections, durability, and the version of the tables.

**SQLite** runs with a write-ahead log and `synchronous=FULL`: what was committed is on the disk. Deleted data is
overwritten (`secure_delete`). Transactions are begun by hand: a writer takes the lock at once (`BEGIN IMMEDIATE`), so
that what it reads stays true until it commits; readers see one state throughout and never wait.

**PostgreSQL** serves several nodes with one truth. Writers run READ COMMITTED and lock the head row first, so they come
one after the other; a writer that vanishes or is stopped while it holds the head loses its session after a few seconds.
Readers run REPEATABLE READ, which is one state throughout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import alembic.command
import alembic.config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from .errors import Contention, NewerFormat, OutcomeUnknown, StorageFull

BUSY_SECONDS: Final = 5
"""How long a writer waits for another one, and how long one may hold the head without doing anything. A commit takes
milliseconds, so whoever needs longer has stopped."""

KEEP_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
"""A connection whose other end has vanished is noticed after eleven seconds."""

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}",
    "PRAGMA cache_size = -65536",  # 64 MiB: the upper levels of the indexes of some million records
)
_SESSION = " ".join(
    f"-c {name}={BUSY_SECONDS}s"
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)
_FULL = ("database or disk is full", "disk I/O error")
_FULL_STATE = "53100"  # disk_full
_CONTENTION_STATES = ("40001", "40P01", "55P03", "57014")  # serialisation, deadlock, lock and statement time-outs


class Store:
    """The connections of one process to the tables of one ledger."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect = engine.dialect.name
        # Statements of the hot paths run on the driver, whose errors come as they are.
        self._driver_error: type[Exception] = engine.dialect.loaded_dbapi.Error

    @classmethod
    def sqlite(cls, path: Path) -> "Store":
        """The store in a file, which is made if it is not there."""
        path.touch(mode=0o600)  # SQLite gives the files beside it the same rights
        engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return cls(engine)

    @classmethod
    def postgres(cls, url: str) -> "Store":
        """The store in a database, given as `postgresql+psycopg://user@host/database`."""
        engine = create_engine(url, connect_args={"options": _SESSION, **KEEP_ALIVE}, pool_pre_ping=True)
        return cls(engine)

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    def upgrade(self) -> None:
        """Bring the tables to the version of this program; those of a newer one are refused, and left alone."""
        config = alembic.config.Config()
        config.set_main_option("script_location", "perseid.ledger:migrations")
        with self.writing() as connection:
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            found = MigrationContext.configure(connection).get_current_revision()
            if found is not None and found not in known:
                message = f"the ledger was written by a newer version of the program (tables {found}); upgrade this one"
                raise NewerFormat(message)
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that may write; it is committed, and on the disk, when the block ends well."""
        try:
            with self.engine.connect().execution_options(perseid_writes=True) as connection, connection.begin():
                yield connection
        except (DBAPIError, self._driver_error) as error:
            raise self._explained(error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state throughout."""
        options = {} if self.dialect == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def forget_deleted(self) -> bool:
        """Remove what was overwritten from where the database still has it: the write-ahead log, or dead rows.

        False if a reader that looks at an earlier state kept it from that; it must then be tried again.
        """
        if self.dialect != "sqlite":
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM entries, targets"))
            return True
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            row = cursor.fetchone()
        return row is not None and row[0] == 0

    def _explained(self, error: Exception) -> Exception:
        """What an error of the driver means here; itself, if it is none of those that are expected."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if self.dialect == "sqlite":
            words = str(cause)
            if any(full in words for full in _FULL):
                return StorageFull("there is no room to write; reading goes on, and writing when there is")
            return Contention("the ledger is held by another writer") if "database is locked" in words else error
        state = getattr(cause, "sqlstate", None)
        if state == _FULL_STATE:
            return StorageFull("the database has no room to write; reading goes on, and writing when there is")
        if state in _CONTENTION_STATES:
            return Contention(f"the database gave the ledger to another writer ({state})")
        lost = state is None or state.startswith(("08", "57P", "25P03"))
        return OutcomeUnknown("the connection to the database was lost") if lost else error


def _prepare(dbapi_connection: Any, _record: object) -> None:
    # The driver would begin transactions by itself, at moments of its own choice.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("perseid_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

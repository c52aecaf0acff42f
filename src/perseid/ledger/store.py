"""Opening the SQL store of a ledger: connections, durability, and the version of the tables.

SQLite runs with a write-ahead log and `synchronous=FULL`: what was committed is on the disk. Deleted data is
overwritten (`secure_delete`). Transactions are begun by hand: a writer takes the lock at once (`BEGIN IMMEDIATE`), so
that what it reads stays true until it commits; readers see one state throughout and never wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import alembic.command
import alembic.config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from .errors import NewerFormat, StorageFull

BUSY_SECONDS: Final = 5
"""How long a writer waits for another one: a commit takes milliseconds, so somebody who waits longer is told."""

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}",
    "PRAGMA cache_size = -65536",  # 64 MiB: the upper levels of the indexes of some million records
)
_FULL = ("database or disk is full", "disk I/O error")


class Store:
    """The connections of one process to the tables of one ledger."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect = engine.dialect.name
        # Statements of the hot paths run on the driver, whose errors come as they are.
        self._driver_error: type[Exception] = engine.dialect.loaded_dbapi.OperationalError

    @classmethod
    def sqlite(cls, path: Path) -> "Store":
        """The store in a file, which is made if it is not there."""
        engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
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
        options = {"perseid_writes": True}
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except (OperationalError, self._driver_error) as error:
            if any(words in str(error) for words in _FULL):
                raise StorageFull("there is no room to write; reading goes on, and writing when there is") from error
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state throughout."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def forget_deleted(self) -> bool:
        """Empty the write-ahead log, which still has what was overwritten.

        False if a reader that looks at an earlier state kept it from that; it must then be tried again.
        """
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            row = cursor.fetchone()
        return row is not None and row[0] == 0


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

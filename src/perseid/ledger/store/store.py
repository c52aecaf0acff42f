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

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from perseid.ledger.errors import (
    Contention,
    CorruptData,
    LedgerError,
    NewerFormat,
    OutcomeUnknown,
    StorageFull,
    StoreUnavailable,
    TooBusy,
)

from .sqlite import READERS, SqliteDriver, has_free_space

BUSY_SECONDS: Final = 5
"""How long a writer waits for another one, and how long one may hold the head without doing anything. A commit takes
milliseconds, so whoever needs longer has stopped."""

IDLE_SECONDS: Final = 60
"""How long a load or a restore may hold the head between two statements: whoever brings the data may be slow, but
others wait meanwhile. A statement of theirs may take as long as it needs."""

MAX_WAL_SIZE: Final = 16 << 20
"""How large SQLite's write-ahead log may stay once what is in it has been copied: four times its usual size."""

TABLES_VERSION: Final = "0005"
"""The version of the tables that this program works with: the last of the migrations, which are not loaded to learn it.
Versions are numbers of four digits, so a later one is greater."""

CONNECT_SECONDS: Final = 10
"""How long a database may take to answer. The driver alone would wait for two minutes, and nobody would know why."""

KEEP_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
"""A connection whose other end has vanished is noticed after eleven seconds."""

_BUSY_TIMEOUT = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}"
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    _BUSY_TIMEOUT,
    "PRAGMA cache_size = -65536",  # 64 MiB: the upper levels of the indexes of some million records
    f"PRAGMA journal_size_limit = {MAX_WAL_SIZE}",
)
_TIMEOUTS = "; ".join(
    f"SET LOCAL {name} = '{BUSY_SECONDS}s'"
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)  # for those who may lock the head; readers may take their time
_LONG_TIMEOUTS = (
    f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)
_DURABLE = (
    "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)  # what was acknowledged is on the disk, whatever the database is set to
# Before the state is chosen that is read: a view that has just taken the place of another one is seen, or neither is.
_LOCK_VIEWS = "LOCK TABLE records, targets IN ACCESS SHARE MODE"
_FULL_MESSAGE = "database or disk is full"
_IO_ERROR_MESSAGE = "disk I/O error"
_CORRUPT_MESSAGES = ("malformed", "file is not a database")
_NO_TABLE_STATE = "42P01"  # undefined_table
_NO_TABLE_MESSAGE = "no such table"
_FULL_STATE = "53100"  # disk_full
_CORRUPT_STATES = ("XX001", "XX002")  # data_corrupted, index_corrupted
_CONTENTION_STATES = ("40001", "40P01", "55P03", "57014")  # serialisation, deadlock, lock and statement time-outs


class Store:
    """The connections of one process to the tables of one ledger."""

    def __init__(self, engine: Engine, writing: Engine | None = None, driver: SqliteDriver | None = None) -> None:
        self.engine = engine
        self._driver = driver  # what is done for every request, where SQLAlchemy costs more than the statements
        # Writers have connections of their own: readers, however many, do not keep them from writing.
        self._writing = engine if writing is None else writing
        self.dialect = engine.dialect.name
        self._erased_at: object = None  # by the database's clock, while dead rows may be left
        # Statements of the hot paths run on the driver, whose errors come as they are.
        errors = engine.dialect.loaded_dbapi
        self._driver_error: type[Exception] = errors.Error
        self._connection_errors: tuple[type[Exception], ...] = (errors.OperationalError, errors.InterfaceError)

    @classmethod
    def sqlite(cls, path: Path) -> "Store":
        """The store in a file, which is made if it is not there."""
        path.touch(mode=0o600)
        path.chmod(0o600)  # SQLite gives the files beside it the same rights
        path = path.absolute()
        # Not written as a URL, in which some characters of a name would mean something else.
        engines = _create_engines(URL.create("sqlite", database=str(path)), {"check_same_thread": False})
        for engine in engines:
            event.listen(engine, "connect", _configure_connection)
            event.listen(engine, "begin", _begin)
        return cls(*engines, SqliteDriver(str(path), _PRAGMAS, BUSY_SECONDS))

    @classmethod
    def postgres(cls, url: str) -> "Store":
        """The store in a database, given as `postgresql://user@host/database`; ValueError if that is no such URL."""
        try:
            address = make_url(url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError):
            raise ValueError("a URL that can be understood is expected") from None
        if "connect_timeout" not in address.query:
            address = address.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})
        return cls(*_create_engines(address, dict(KEEP_ALIVE), pool_pre_ping=True))

    def close(self) -> None:
        """Give all connections back."""
        if self._driver is not None:
            self._driver.close()
        self.engine.dispose()
        self._writing.dispose()

    def connect(self) -> Connection:
        """A connection of one's own, to be kept for long; it is taken from nobody."""
        return self._writing.connect()

    def version(self) -> str | None:
        """The version of the tables; None if there is no ledger in them.

        Tables without a ledger are what is left when somebody stopped a creation in a database half-way.
        """
        found = self._query_scalar("SELECT version_num FROM alembic_version")
        if found is None or (found == TABLES_VERSION and self._query_scalar("SELECT origin FROM ledger") is None):
            return None
        return str(found)

    @property
    def is_whole(self) -> bool:
        """Whether no upgrade of the tables left a view to be computed again."""
        return not self._query_scalar("SELECT count(*) FROM views WHERE seq < 0")

    def _query_scalar(self, question: str) -> object:
        """The first field of the first row; None if there is no such table, or nothing in it."""
        with self.translate_errors():
            try:
                with self.engine.connect() as connection:
                    answer: object = connection.exec_driver_sql(question).scalar()
                    return answer
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == _NO_TABLE_STATE or _NO_TABLE_MESSAGE in str(error.orig):
                    return None
                raise

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Make `Unusable`, with a sentence, of what a database objects to."""
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(" ".join(str(cause).split())) from error

    def upgrade(self) -> None:
        """Bring the tables to the version of this program; those of a newer one are refused, and left alone."""
        # Only here, because it costs every command 80 ms that never upgrades anything.
        import alembic.command  # noqa: PLC0415
        import alembic.config  # noqa: PLC0415
        from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        config = alembic.config.Config()
        config.set_main_option("script_location", "perseid.ledger.store:migrations")
        with self.writing() as connection:
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            found = MigrationContext.configure(connection).get_current_revision()
            if found is not None and found not in known:
                message = f"the ledger was written by a newer version of the program (tables {found}); upgrade this one"
                raise NewerFormat(message)
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")

    @contextmanager
    def writing(self, *, limited: bool = True) -> Iterator[Connection]:
        """A transaction that may write; it is committed, and on the disk, when the block ends well.

        PostgreSQL ends it when it waits, works or stands still for some seconds. Unless it is `limited`, it may work as
        long as it needs, and stand still for a minute.
        """
        try:
            connection = self._writing.connect().execution_options(**self._options(writes=True))
            with connection, connection.begin():
                if self.dialect != "sqlite":
                    connection.exec_driver_sql(f"{_TIMEOUTS if limited else _LONG_TIMEOUTS}; {_DURABLE}")
                yield connection
        except (DBAPIError, self._driver_error) as error:
            raise self._translate_error(error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state throughout."""
        try:
            connection = self.engine.connect().execution_options(**self._options(writes=False))
            with connection, connection.begin():
                if self.dialect != "sqlite":
                    connection.exec_driver_sql(_LOCK_VIEWS)
                yield connection
        except PoolTimeout as error:
            raise TooBusy("too many are reading at the same time; try again shortly") from error
        except (DBAPIError, self._driver_error) as error:
            raise self.translate_read_error(error) from error

    @contextmanager
    def writing_cursor(self, *, limited: bool = True) -> Iterator[Any]:
        """The same as `writing`, for what is done often: a cursor of the driver, which runs the text of statements."""
        if self._driver is None:
            with self.writing(limited=limited) as connection:
                yield connection.connection.cursor()
            return
        try:
            with self._driver.writing() as cursor:
                yield cursor
        except self._driver_error as error:
            raise self._translate_error(error) from error

    @contextmanager
    def reading_cursor(self) -> Iterator[Any]:
        """The same as `reading`, for what is done often: a cursor of the driver, which runs the text of statements."""
        if self._driver is None:
            with self.reading() as connection:
                yield connection.connection.cursor()
            return
        try:
            with self._driver.reading() as cursor:
                yield cursor
        except self._driver_error as error:
            raise self.translate_read_error(error) from error

    def _options(self, *, writes: bool) -> dict[str, Any]:
        if self.dialect == "sqlite":
            return {"perseid_writes": writes}
        return {"isolation_level": "READ COMMITTED" if writes else "REPEATABLE READ"}

    def purge_deleted(self) -> bool:
        """Remove what was overwritten from where the database still has it: the write-ahead log, or dead rows.

        False if a reader that looks at an earlier state kept it from that; nobody waits, it is tried again later. In
        PostgreSQL this takes as long as the tables are large.
        """
        if self.dialect != "sqlite":
            return self._vacuum()
        with self._writing.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA busy_timeout = 0")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                row = cursor.fetchone()
            finally:
                cursor.execute(_BUSY_TIMEOUT)
        return row is not None and row[0] == 0

    def _vacuum(self) -> bool:
        """Remove dead rows, once nobody sees them any more."""
        with self._writing.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if self._erased_at is None:
                self._erased_at = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            older = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start <= :erased"
            )
            if connection.execute(text(older), {"erased": self._erased_at}).scalar_one():
                return False
            connection.execute(text("VACUUM entries, targets, idempotency"))
        self._erased_at = None
        return True

    def translate_read_error(self, error: Exception) -> Exception:
        """The same as for writers, but nothing was to be committed, so nothing about that is unknown."""
        found = self._translate_error(error)
        if isinstance(found, OutcomeUnknown):
            return StoreUnavailable(f"{found}; what was asked has no answer, try again")
        return found

    def _translate_error(self, error: Exception) -> Exception:
        """What an error of the driver means here; itself, if it is a mistake of this program."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if self.dialect == "sqlite":
            return self._translate_sqlite_error(str(cause)) or error
        state = getattr(cause, "sqlstate", None)
        if state == _FULL_STATE:
            return StorageFull("the database has no room to write; reading goes on, and writing when there is")
        if state in _CORRUPT_STATES:
            return CorruptData(f"the database says that what it has stored is damaged ({state}); verify the ledger")
        if state in _CONTENTION_STATES:
            return Contention(f"the database gave the ledger to another writer ({state})")
        lost = isinstance(cause, self._connection_errors) if state is None else state.startswith(("08", "57P", "25P03"))
        return OutcomeUnknown("the connection to the database was lost") if lost else error

    def _translate_sqlite_error(self, message: str) -> LedgerError | None:
        """What the words of SQLite mean; they are all that there is in every version of it."""
        path = self.engine.url.database
        # It tells a full disk apart where it writes data, but not where it makes one of its other files longer.
        if _FULL_MESSAGE in message or (_IO_ERROR_MESSAGE in message and not has_free_space(path)):
            return StorageFull("there is no room to write; reading goes on, and writing when there is")
        if _IO_ERROR_MESSAGE in message:
            return StoreUnavailable(f"the disk under {path} reports an error; look at the disk and the system's log")
        if "database is locked" in message:
            return Contention("the ledger is held by another writer")
        if any(damaged in message for damaged in _CORRUPT_MESSAGES):
            return CorruptData(f"{path} is not what was written ({message}); verify the ledger")
        if "unable to open" in message:
            return StoreUnavailable(f"{path} cannot be opened; it is gone, or too many files are open")
        return None


def _create_engines(url: str | URL, arguments: dict[str, Any], **options: Any) -> tuple[Engine, Engine]:
    """One for readers and one for writers. What is written or read never stands in an error: it may be private."""
    common = {"connect_args": arguments, "hide_parameters": True, "pool_timeout": BUSY_SECONDS, **options}
    return (
        create_engine(url, pool_size=READERS, max_overflow=0, **common),
        create_engine(url, pool_size=2, max_overflow=-1, **common),
    )


def _configure_connection(dbapi_connection: Any, _record: object) -> None:
    # The driver would begin transactions by itself, at moments of its own choice.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("perseid_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

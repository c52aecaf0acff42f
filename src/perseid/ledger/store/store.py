"""The SQL store of a ledger: connections, durability, and the version of the tables.

**SQLite** uses a write-ahead log and `synchronous=FULL`: committed data is on disk. Deleted data is overwritten
(`secure_delete`). Transactions are begun explicitly: a writer takes the lock at once (`BEGIN IMMEDIATE`), so that what
it reads stays true until it commits; readers see one state and never wait.

**PostgreSQL** serves several nodes. Writers run READ COMMITTED and lock the head row first, so they are serialized; one
that hangs while it holds the head loses its session after a few seconds. Readers run REPEATABLE READ: one state.

A process that leaves writing to another one opens the store read-only, and the database refuses every change.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
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
from perseid.names.errors import quote_text
from perseid.names.suggest import did_you_mean, nearest

from . import OLDEST_PROGRAM, TABLES_VERSION
from .sqlite import CACHE_BYTES, READERS, SqliteDriver, has_free_space, looks_full

BUSY_SECONDS: Final = 5
"""How long a writer waits for another one, and how long one may hold the head while idle; a commit takes ms."""

IDLE_SECONDS: Final = 60
"""How long a load or a restore may hold the head between two statements: its input may be slow, but others wait. A
single statement may take any time."""

MAX_WAL_SIZE: Final = 16 << 20
"""The size of SQLite's write-ahead log after its content was copied: four times its usual size."""

CONNECT_SECONDS: Final = 10
"""The connection timeout. The driver's own is two minutes."""

NEXT_HOST_SECONDS: Final = 3
"""The same for each of several hosts: another one may have taken over."""

KEEP_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
"""A dead connection is detected after eleven seconds."""

LOCKED: Final = (
    f"another transaction kept the ledger locked for more than {BUSY_SECONDS} s{{}}; if that continues, PostgreSQL may "
    "be waiting for a synchronous standby: start it, or find the transaction in pg_stat_activity"
)
"""What is wrong if changes wait; the field is for the state that PostgreSQL reports."""

_BUSY_TIMEOUT = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}"
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    _BUSY_TIMEOUT,
    f"PRAGMA cache_size = -{CACHE_BYTES >> 10}",
    f"PRAGMA journal_size_limit = {MAX_WAL_SIZE}",
)
_QUERY_ONLY = "PRAGMA query_only = ON"
_READ_ONLY = "-c default_transaction_read_only=on"
_PRIMARY = "primary"  # not "read-write": connections that only read are read-only at the primary too
_TIMEOUTS = "; ".join(
    f"SET LOCAL {name} = '{BUSY_SECONDS}s'"
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)  # for transactions that may lock the head; readers have no limit
_LONG_TIMEOUTS = (
    f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)
_DURABLE = (
    "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)  # acknowledged data is on disk, whatever the database's setting
# Taken before the snapshot: otherwise a view that was just replaced could be missing from it.
_LOCK_VIEWS = "LOCK TABLE records, search IN ACCESS SHARE MODE"
_DRIVER = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://")
# libpq's hint below each attempt, what psycopg adds to a single one, and its report if there were several.
_HINT = re.compile(r"\n\tIs the server running .*\?")
_SINGLE = re.compile("^connection (?:failed|is bad): ")
_ATTEMPT = re.compile(r"^- host: .*?: connection (?:failed|is bad): (.+)$", re.MULTILINE)
_FULL_MESSAGE = "database or disk is full"
_IO_ERROR_MESSAGE = "disk I/O error"
_CANNOT_OPEN_MESSAGE = "unable to open"
_CORRUPT_MESSAGES = ("malformed", "file is not a database")
_NO_TABLE_STATE = "42P01"  # undefined_table
_NO_TABLE_MESSAGE = "no such table"
_FULL_STATE = "53100"  # disk_full
_STANDBY_STATE = "25006"  # read_only_sql_transaction
_CORRUPT_STATES = ("XX001", "XX002")  # data_corrupted, index_corrupted
_TIMEOUT_STATES = ("55P03", "57014")  # of locks and statements
_CONTENTION_STATES = ("40001", "40P01", *_TIMEOUT_STATES)  # serialization, deadlock


class Store:
    """The connections of one process to the tables of one ledger."""

    def __init__(self, engine: Engine, writing: Engine | None = None, driver: SqliteDriver | None = None) -> None:
        self.engine = engine
        self._driver = driver  # for hot paths, where SQLAlchemy costs more than the statements
        # Writers have their own pool, so that readers cannot exhaust it.
        self._writing = engine if writing is None else writing
        self.dialect = engine.dialect.name
        self.url = ""
        """The URL of a PostgreSQL database, with its password."""
        self.parameters: dict[str, Any] = {}
        """How it is connected to, as libpq calls it."""
        self._erased_at: object = None  # the database's time, while there may be dead rows
        # Hot paths run on the driver and raise its errors.
        errors = engine.dialect.loaded_dbapi
        self._driver_error: type[Exception] = errors.Error
        self._connection_errors: tuple[type[Exception], ...] = (errors.OperationalError, errors.InterfaceError)

    @classmethod
    def sqlite(cls, path: Path, *, read_only: bool = False) -> "Store":
        """Open the store in a file, which is created if it is missing."""
        if not read_only:
            path.touch(mode=0o600)
            path.chmod(0o600)  # SQLite copies the mode to its other files
        path = path.absolute()
        pragmas = (*_PRAGMAS, _QUERY_ONLY) if read_only else _PRAGMAS
        # Not as a URL string, where some characters of a path have a meaning.
        engines = _create_engines(URL.create("sqlite", database=str(path)), {"check_same_thread": False})
        for engine in engines:
            event.listen(engine, "connect", partial(_configure_connection, pragmas))
            event.listen(engine, "begin", _begin)
        return cls(*engines, SqliteDriver(str(path), pragmas, BUSY_SECONDS))

    @classmethod
    def postgres(cls, url: str, *, read_only: bool = False) -> "Store":
        """Open the store in a database at `postgresql://user@host/database`; ValueError if the URL is invalid.

        The URL is libpq's. With several hosts, `postgresql://user@one,two/database`, the one that accepts changes is
        used: a standby would not have the last ones.
        """
        import psycopg  # noqa: PLC0415 - an optional dependency
        from psycopg import conninfo, pq  # noqa: PLC0415

        try:
            parameters = conninfo.conninfo_to_dict(_DRIVER.sub("postgresql://", url))
            for port in filter(None, str(parameters.get("port", "")).split(",")):
                int(port)
        except (psycopg.ProgrammingError, ValueError):
            raise ValueError(
                _find_url_problem(url, [each.keyword.decode() for each in pq.Conninfo.get_defaults()])
            ) from None
        has_several_hosts = "," in f"{parameters.get('host', '')}{parameters.get('hostaddr', '')}"
        timeout = NEXT_HOST_SECONDS if has_several_hosts else CONNECT_SECONDS
        # Whatever PGCLIENTENCODING or the role says.
        parameters = {"connect_timeout": timeout, **KEEP_ALIVE, **parameters, "client_encoding": "UTF8"}
        if has_several_hosts and parameters.get("target_session_attrs", "read-write") == "read-write":
            parameters["target_session_attrs"] = _PRIMARY
        if read_only:
            parameters["options"] = f"{parameters.get('options') or ''} {_READ_ONLY}".strip()
        creator = partial(_connect, parameters)
        store = cls(*_create_engines("postgresql+psycopg://", {}, pool_pre_ping=True, creator=creator))
        store.url, store.parameters = url, parameters
        return store

    def close(self) -> None:
        """Close all connections."""
        if self._driver is not None:
            self._driver.close()
        self.engine.dispose()
        self._writing.dispose()

    def check_hosts(self) -> Iterator[tuple[str, bool, str]]:
        """Connect to each of several database servers; yield its address, whether it is a primary, and why that fails.

        Usually only the one that accepts changes is connected to, so that others are not known to work.
        """
        names = [name for name in ("host", "hostaddr", "port") if "," in str(self.parameters.get(name, ""))]
        if not {"host", "hostaddr"} & set(names):
            return
        for each in zip(*(str(self.parameters[name]).split(",") for name in names), strict=False):
            one = dict(zip(names, each, strict=True))
            is_primary, problem = False, ""
            try:
                with _connect({**self.parameters, **one, "target_session_attrs": "any"}) as connection:
                    (is_primary,) = connection.execute("SELECT NOT pg_is_in_recovery()").fetchone()
            except self._driver_error as error:
                problem = _summarize(str(error))
            yield ":".join(dict.fromkeys(filter(None, one.values()))), is_primary, problem

    def connect(self) -> Connection:
        """Open a connection for long use, which takes none from other users of the store."""
        return self._writing.connect()

    def version(self) -> str | None:
        """Return the version of the tables; None if there is no ledger in them.

        Tables without a ledger are left over if the creation in a database was interrupted.
        """
        version = self._query_scalar("SELECT version_num FROM alembic_version")
        if version is None:
            return None
        is_empty = str(version) >= TABLES_VERSION and self._query_scalar("SELECT origin FROM ledger") is None
        return None if is_empty else str(version)

    def accepts_program(self) -> bool:
        """Whether this program can use the tables although a newer one has upgraded them."""
        oldest = self._query_scalar("SELECT oldest_program FROM head")
        return oldest is not None and str(oldest) <= TABLES_VERSION

    @property
    def is_whole(self) -> bool:
        """Whether no upgrade of the tables has left a view to be rebuilt."""
        return not self._query_scalar("SELECT count(*) FROM views WHERE seq < 0")

    def _query_scalar(self, query: str) -> object:
        """Return the first field of the first row; None if the table is missing or empty."""
        with self.translate_errors():
            try:
                with self.engine.connect() as connection:
                    result: object = connection.exec_driver_sql(query).scalar()
                    return result
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == _NO_TABLE_STATE or _NO_TABLE_MESSAGE in str(error.orig):
                    return None
                raise

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn database errors into `StorageFull`, or `StoreUnavailable` with a message on one line."""
        try:
            yield
        except (DBAPIError, self._driver_error) as error:
            translated = self._translate_error(error)
            if isinstance(translated, StorageFull):
                raise translated from error
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(_summarize(str(cause))) from error

    @property
    def is_remote(self) -> bool:
        """Whether reading may wait for a network."""
        return self.dialect != "sqlite"

    def check_space(self, *, thorough: bool) -> None:
        """Raise `StorageFull` if there is no space for changes.

        If not `thorough`, nothing is written unless the disk looks full: a quota and a full database are not noticed.
        """
        path = self.engine.url.database
        if self.dialect == "sqlite":
            if (thorough or looks_full(path)) and not has_free_space(path):
                raise StorageFull(f"the disk of {path} is full")
        elif thorough:
            with self.writing() as connection:
                connection.exec_driver_sql("UPDATE head SET one = one")

    def upgrade(self) -> None:
        """Upgrade the tables to the version of this program; tables of a newer one are refused."""
        # Imported here, because it would cost every other command 80 ms.
        import alembic.command  # noqa: PLC0415
        import alembic.config  # noqa: PLC0415
        from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        config = alembic.config.Config()
        config.set_main_option("script_location", "perseid.ledger.store:migrations")
        with self.writing() as connection:
            self._check_encoding(connection)
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            version = MigrationContext.configure(connection).get_current_revision()
            if version is not None and version not in known:
                raise newer_tables(version)
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")
            oldest = "UPDATE head SET oldest_program = :oldest WHERE oldest_program < :oldest"
            connection.execute(text(oldest), {"oldest": OLDEST_PROGRAM})

    def _check_encoding(self, connection: Connection) -> None:
        """Refuse a PostgreSQL database that cannot store every text."""
        if self.dialect == "sqlite":
            return
        name, encoding = connection.exec_driver_sql("SELECT current_database(), getdatabaseencoding()").one()
        if encoding != "UTF8":
            raise LedgerError(
                f"The database {name} has the encoding {encoding}; Perseid needs UTF8. "
                "Create another one with: createdb --encoding UTF8 --template template0 NAME"
            )

    @contextmanager
    def writing(self, *, limited: bool = True) -> Iterator[Connection]:
        """Open a transaction that may write; it is durable when the block ends without an error.

        PostgreSQL aborts it if it waits, works or idles for some seconds. If not `limited`, it may work for any time,
        and idle
        for a minute.
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
        """Open a transaction that sees one state."""
        try:
            connection = self.engine.connect().execution_options(**self._options(writes=False))
            with connection, connection.begin():
                if self.dialect != "sqlite":
                    connection.exec_driver_sql(_LOCK_VIEWS)
                yield connection
        except PoolTimeout as error:
            raise TooBusy("too many concurrent readers; retry later") from error
        except (DBAPIError, self._driver_error) as error:
            raise self.translate_read_error(error) from error

    @contextmanager
    def writing_cursor(self, *, limited: bool = True) -> Iterator[Any]:
        """Like `writing`, for hot paths: a driver cursor, which runs statements as text."""
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
        """Like `reading`, for hot paths: a driver cursor, which runs statements as text."""
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
        """Remove overwritten data from the write-ahead log (SQLite) or from dead rows (PostgreSQL).

        False if a reader of an earlier state prevents it; call it again later. In PostgreSQL this takes time in
        proportion to
        the tables.
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
        """Remove dead rows, once no transaction can see them."""
        with self._writing.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if self._erased_at is None:
                self._erased_at = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            older = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start <= :erased"
            )
            if connection.execute(text(older), {"erased": self._erased_at}).scalar_one():
                return False
            connection.execute(text("VACUUM entries, search, idempotency"))
        self._erased_at = None
        return True

    def translate_read_error(self, error: Exception) -> Exception:
        """Translate an error of a read, which has no commit whose outcome could be unknown."""
        translated = self._translate_error(error)
        if isinstance(translated, OutcomeUnknown):
            return StoreUnavailable(f"{translated}; retry")
        return translated

    def _translate_error(self, error: Exception) -> Exception:
        """Translate a driver error; return it unchanged if it is a bug of this program."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if self.dialect == "sqlite":
            return self._translate_sqlite_error(str(cause)) or error
        state = getattr(cause, "sqlstate", None)
        if state == _FULL_STATE:
            return StorageFull("the disk of the database is full")
        if state == _STANDBY_STATE:
            return StoreUnavailable("the database server does not accept changes: it is a standby, or read-only")
        if state in _CORRUPT_STATES:
            return CorruptData(f"the database reports corrupt data ({state}). Run: perseid verify --all")
        if state in _CONTENTION_STATES:
            if state in _TIMEOUT_STATES:
                return Contention(LOCKED.format(f" ({state})"))
            return Contention(f"the database preferred another transaction ({state})")
        lost = isinstance(cause, self._connection_errors) if state is None else state.startswith(("08", "57P", "25P03"))
        return OutcomeUnknown("the database connection was lost") if lost else error

    def _translate_sqlite_error(self, message: str) -> LedgerError | None:
        """Translate an SQLite error by its message, which all versions of SQLite share."""
        path = self.engine.url.database
        # SQLite reports a full disk when it writes data, but not when it creates or extends one of its other files.
        is_unclear = _IO_ERROR_MESSAGE in message or _CANNOT_OPEN_MESSAGE in message
        if _FULL_MESSAGE in message or (is_unclear and not has_free_space(path)):
            return StorageFull(f"the disk of {path} is full")
        if _IO_ERROR_MESSAGE in message:
            return StoreUnavailable(f"I/O error on the disk of {path}; check the disk and the system log")
        if "database is locked" in message:
            return Contention("the ledger is locked by another writer")
        if any(damaged in message for damaged in _CORRUPT_MESSAGES):
            return CorruptData(f"{path} is corrupt ({message}). Run: perseid verify --all")
        if _CANNOT_OPEN_MESSAGE in message:
            return StoreUnavailable(f"cannot open {path}: it is missing, or too many files are open")
        return None


def _create_engines(url: str | URL, arguments: dict[str, Any], **options: Any) -> tuple[Engine, Engine]:
    """Create one engine for readers and one for writers. Parameters never appear in errors: they may be private."""
    common = {"connect_args": arguments, "hide_parameters": True, "pool_timeout": BUSY_SECONDS, **options}
    return (
        create_engine(url, pool_size=READERS, max_overflow=0, **common),
        create_engine(url, pool_size=2, max_overflow=-1, **common),
    )


def _find_url_problem(url: str, options: Sequence[str]) -> str:
    """What is wrong with a database URL, without its password: an option of libpq, or the URL as a whole."""
    query = url.partition("?")[2]
    # With these, what looks like an option may be a part of the password.
    if query and "password" not in query and "@" not in query:
        for name, separator, _ in (each.partition("=") for each in query.split("&")):
            option = quote_text(unquote(name))
            if unquote(name) not in options:
                meant = did_you_mean(nearest(unquote(name), options), "see the parameters of libpq connections")
                return f"unknown option {option} in the database URL; {meant}"
            if not separator:
                return f"the option {option} in the database URL has no value; write {name}=VALUE"
    return "invalid database URL; expected postgresql://user@host/database, with / in a password as %2F"


def _connect(parameters: dict[str, Any]) -> Any:
    import psycopg  # noqa: PLC0415 - see `Store.postgres`

    return psycopg.connect(**parameters)


def _configure_connection(pragmas: Sequence[str], dbapi_connection: Any, _record: object) -> None:
    # None: the driver must not begin transactions by itself.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    for pragma in pragmas:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("perseid_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _summarize(message: str) -> str:
    """A message of the driver on one line; if no host of several could be used, the reason of each."""
    message = _SINGLE.sub("", _HINT.sub("", message))
    return " ".join("; ".join(_ATTEMPT.findall(message) or [message]).split())


def newer_tables(version: str) -> NewerFormat:
    """Return the error for tables of a newer version."""
    return NewerFormat(f"A newer version of Perseid wrote the ledger (tables {version}); upgrade Perseid")

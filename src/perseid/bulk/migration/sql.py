"""The SQL database of a Handle server: the tables `nas` and `handles` on MySQL, MariaDB or PostgreSQL.

    nas      na
    handles  handle, idx, type, data, ttl_type, ttl, timestamp, refs, admin_read, admin_write, pub_read, pub_write

One row of `handles` is one value. Names and types are bytes in UTF-8, whatever the column says; references are text
with escapes (`decode_references`). Everything is read in one read-only transaction, with a cursor on the server: the
memory does not grow with the table, and changes of the running server do not matter.
"""

import re
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from perseid.bulk.formats import MAX_RECORD
from perseid.names import handle
from perseid.records.binary import MAX_BYTES
from perseid.records.encoding import from_wire
from perseid.records.errors import InvalidData
from perseid.records.record import MAX_VALUES, Permission, TtlType, Value, ref_from_text
from perseid.registry.jobs.migration import SourceRecord

from .source import (
    MAX_PREFIXES,
    SourceError,
    SourceItem,
    SourceUnreachable,
    collect_prefixes,
    decode_name,
    unreadable,
)

MYSQL_SCHEMES: Final = ("mysql", "mariadb")
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
SCHEMES: Final = (*MYSQL_SCHEMES, *POSTGRES_SCHEMES)

CONNECT_SECONDS: Final = 30
"""Seconds to connect to a database."""

FETCH_SIZE: Final = 100
"""Rows fetched at a time, each of at most 3 MiB. More would hardly be faster: a row takes 3.3 µs, of 2,000 at a time
2.8 µs, and to store its record 40 µs."""

MAX_MEMORY: Final = 1 << 30
"""Bytes that the process can allocate while it reads: drivers keep whatever a database sends. `FETCH_SIZE` rows take a
third of them."""

_LONGEST: Final = MAX_BYTES + 1  # bytes of a column that are read: one more shows that it is too long
_LONGEST_HANDLE: Final = handle.MAX_BYTES + 1
_UNIT: Final = re.compile("%([0-9A-Fa-f]{4})")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r"}
_PERMISSION_BITS: Final = (
    Permission.ADMIN_READ,
    Permission.ADMIN_WRITE,
    Permission.PUBLIC_READ,
    Permission.PUBLIC_WRITE,
)
_SQL_OPTIONS: Final = {
    "mysql": {"unix_socket": "unix_socket", "ssl_ca": "ssl_ca"},
    "postgresql": {"host": "host", "sslmode": "sslmode", "sslrootcert": "sslrootcert"},
}

_MYSQL_RECORDS: Final = (
    "SELECT SUBSTRING(CAST(handle AS BINARY), 1, %s), idx, SUBSTRING(type, 1, %s), SUBSTRING(data, 1, %s), ttl_type, "
    "ttl, `timestamp`, SUBSTRING(refs, 1, %s), admin_read, admin_write, pub_read, pub_write FROM handles "
    "ORDER BY handle, idx"
)
_POSTGRES_RECORDS: Final = (
    "SELECT substring(handle from 1 for %s), idx, substring(type from 1 for %s), substring(data from 1 for %s), "
    'ttl_type, ttl, "timestamp", substring(refs from 1 for %s), admin_read, admin_write, pub_read, pub_write '
    "FROM handles ORDER BY handle, idx"
)
_MYSQL_PREFIXES: Final = "SELECT SUBSTRING(CAST(na AS BINARY), 1, %s) FROM nas ORDER BY na LIMIT %s"
_POSTGRES_PREFIXES: Final = "SELECT substring(na from 1 for %s) FROM nas ORDER BY na LIMIT %s"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """Where a database is: `mysql://USER@HOST:PORT/DATABASE` or `postgresql://…`."""

    scheme: str
    """`mysql` or `postgresql`."""
    user: str
    host: str
    port: int | None
    database: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "DatabaseUrl":
        """Parse a URL. Raises `SourceError`; passwords are refused, because others can see the command line."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:  # its text may contain a part of a password
            raise SourceError("The URL of the database is invalid", "Percent-encode special characters") from None
        scheme = "mysql" if parts.scheme in MYSQL_SCHEMES else "postgresql"
        if parts.password is not None:
            raise SourceError("The URL of the database contains a password", "Use --password-file FILE")
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database or not parts.username:
            example = f"{scheme}://handle@db.example.org/handles"
            raise SourceError("The URL of the database lacks the user or the name of the database", f"Use {example}")
        known = _SQL_OPTIONS[scheme]
        options = parse_qsl(parts.query, keep_blank_values=True)
        for name, _ in options:
            if name not in known:
                raise SourceError(f"Unknown option {name[:40]!r} of the database", f"Use {' or '.join(known)}")
        return cls(scheme, unquote(parts.username), parts.hostname or "", port, database, tuple(options))

    @property
    def label(self) -> str:
        """The URL without options and user."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}/{self.database}"


class SqlSource:
    """The database of a Handle server."""

    is_complete = lists_prefixes = True

    def __init__(self, url: DatabaseUrl, password: str = "", clock: Callable[[], float] = time.time) -> None:
        self._url, self._clock = url, clock
        self._driver = _Mysql(url, password) if url.scheme == "mysql" else _Postgres(url, password)
        self.label = self.origin = url.label

    def prefixes(self) -> list[str]:
        """Read the table `nas`."""
        sizes = (_LONGEST_HANDLE, MAX_PREFIXES + 1)
        with self._rows(self._driver.prefixes, *sizes) as rows:
            return collect_prefixes(self.label, (decode_name(_as_bytes(na)) for (na,) in rows))

    def records(self) -> Iterator[SourceItem]:
        """Read the table `handles`, by handle."""
        now = int(self._clock())
        sizes = (_LONGEST_HANDLE, _LONGEST, _LONGEST, _LONGEST)
        with self._rows(self._driver.records, *sizes) as rows:
            for raw, group in groupby(rows, lambda row: _as_bytes(row[0])):
                yield decode_rows(raw, group, now)

    def close(self) -> None:
        self._driver.close()

    @contextmanager
    def _rows(self, statement: str, *arguments: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        driver = self._driver
        try:
            with driver.translate_errors(self.label), _limit_memory(), driver.rows(statement, *arguments) as rows:
                yield rows
        except MemoryError as error:
            raise SourceError(f"Cannot read {self.label}: a row does not fit in memory", _ADVICE) from error


@contextmanager
def _limit_memory() -> Iterator[None]:
    """Limit how much the process can allocate meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[_STATM_DATA]) * resource.getpagesize()
    limits = [used + MAX_MEMORY, *[limit for limit in before if limit != resource.RLIM_INFINITY]]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


_STATM_DATA: Final = 5  # the field with the pages of data and stack


def decode_rows(raw: bytes, rows: Iterable[tuple[Any, ...]], now: int) -> SourceItem:
    """Decode the rows of one handle."""
    name = decode_name(raw)
    values: list[Value] = []
    problem: InvalidData | None = None
    size = 0
    for row in rows:  # to the end, because the next group follows
        if len(values) > MAX_VALUES or problem is not None:
            continue
        try:
            values.append(decode_row(row[1:], now))
            size += len(values[-1].data)
            if size > MAX_RECORD:
                raise InvalidData(f"the record has more than {MAX_RECORD:,} bytes")
        except InvalidData as error:
            problem = error
            values.clear()
    if problem is not None:
        return unreadable(name, problem)
    if name.encode() != raw:
        return unreadable(name, "the handle is not UTF-8")
    return SourceRecord(name, tuple(values))


def decode_row(row: tuple[Any, ...], now: int) -> Value:
    """Decode the columns after `handle`. Raises `InvalidData`."""
    index, type_, data, ttl_type, ttl, timestamp, refs, *bits = row
    numbers = [0 if number is None else number for number in (index, ttl_type, ttl, timestamp)]
    if not all(isinstance(number, int) and -(1 << 31) <= number < 1 << 32 for number in numbers):
        raise InvalidData("an index, TTL or timestamp is not a number of 32 bits")
    index, kind, ttl, timestamp = numbers
    type_, data, refs = _as_bytes(type_), _as_bytes(data), _as_bytes(refs)
    if max(map(len, (type_, data, refs))) > MAX_BYTES or not 0 <= kind <= 0xFF:
        raise InvalidData(f"value {index} has more than {MAX_BYTES:,} bytes, or an unknown TTL type")
    if kind == TtlType.ABSOLUTE:
        ttl = from_wire(ttl & 0xFFFF_FFFF, now)
    permissions = Permission(0)
    for bit, is_set in zip(_PERMISSION_BITS, bits, strict=True):
        permissions |= bit if is_set else Permission(0)
    try:
        type_text = type_.decode()
    except UnicodeDecodeError:
        raise InvalidData(f"the type of value {index} is not UTF-8") from None
    references = tuple([ref_from_text(text) for text in decode_references(refs)])
    return Value(
        index, type_text, data, ttl, TtlType(kind), permissions, from_wire(timestamp & 0xFFFF_FFFF, now), references
    )


def decode_references(raw: bytes) -> list[str]:
    """Decode the column `refs` to texts `INDEX:HANDLE`. Raises `InvalidData`.

    The texts are joined by tabs, with tabs, line ends and backslashes in them escaped by a backslash; then every UTF-16
    unit that is not printable ASCII, and `%`, is written as `%` and four hexadecimal digits.
    """
    try:
        text = raw.decode("ascii")
        units = _UNIT.sub(lambda match: chr(int(match[1], 16)), text)
        plain = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        raise InvalidData("the references of a value are not encoded as ASCII") from None
    return [
        _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), each) for each in plain.split("\t") if each.strip()
    ]


def encode_references(texts: Iterable[str]) -> str:
    """Encode references as the column `refs` has them."""
    escapes = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    joined = "\t".join("".join(escapes.get(char, char) for char in text) for text in texts)
    raw = joined.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    return "".join(chr(unit) if 0x20 <= unit < 0x7F and unit != 0x25 else f"%{unit:04X}" for unit in units)


def _as_bytes(value: object) -> bytes:
    """The bytes of a column, whatever its type; none for NULL."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


class _Postgres:
    prefixes = _POSTGRES_PREFIXES
    records = _POSTGRES_RECORDS

    def __init__(self, url: DatabaseUrl, password: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - optional
        except ImportError as error:
            raise SourceError("The PostgreSQL driver is not installed", "pip install 'perseid[postgres]'") from error
        self._errors: type[Exception] = psycopg.Error
        options = dict(url.options)
        arguments: dict[str, Any] = {"host": url.host or options.pop("host", None), **options}
        try:
            self._connection: Any = psycopg.connect(
                user=url.user,
                password=password or None,
                port=url.port,
                dbname=url.database,
                connect_timeout=CONNECT_SECONDS,
                application_name="perseid migrate",
                **arguments,
            )
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        except psycopg.Error as error:
            raise SourceUnreachable(f"Cannot connect to {url.label}: {_describe(error)}") from error

    @contextmanager
    def rows(self, statement: str, *arguments: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        with self._connection.transaction(), self._connection.cursor(name="perseid_migrate") as cursor:
            cursor.itersize = FETCH_SIZE
            cursor.execute(statement, arguments)
            yield cursor

    @contextmanager
    def translate_errors(self, label: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise SourceError(f"Cannot read {label}: {_describe(error)}", _ADVICE) from error

    def close(self) -> None:
        self._connection.close()


class _Mysql:
    prefixes = _MYSQL_PREFIXES
    records = _MYSQL_RECORDS

    def __init__(self, url: DatabaseUrl, password: str) -> None:
        try:
            import pymysql  # noqa: PLC0415 - optional
            from pymysql.cursors import SSCursor  # noqa: PLC0415
        except ImportError as error:
            raise SourceError("The MySQL driver is not installed", "pip install 'perseid[mysql]'") from error
        self._errors: type[Exception] = pymysql.MySQLError
        self._cursor_class = SSCursor
        options = dict(url.options)
        ssl = {"ca": options.pop("ssl_ca")} if "ssl_ca" in options else None
        try:
            self._connection: Any = pymysql.connect(
                host=url.host or None,
                port=url.port or 0,
                user=url.user,
                password=password,
                database=url.database,
                charset="utf8mb4",
                connect_timeout=CONNECT_SECONDS,
                autocommit=True,
                ssl=ssl,
                **options,
            )
        except pymysql.MySQLError as error:
            raise SourceUnreachable(f"Cannot connect to {url.label}: {_describe(error)}") from error

    @contextmanager
    def rows(self, statement: str, *arguments: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        with self._connection.cursor() as cursor:
            # A server gives up a connection whose client reads nothing for this long.
            cursor.execute("SET SESSION net_write_timeout = 3600, SESSION sql_mode = ''")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        with self._connection.cursor(self._cursor_class) as cursor:
            cursor.execute(statement, arguments)
            yield cursor
        self._connection.rollback()

    @contextmanager
    def translate_errors(self, label: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise SourceError(f"Cannot read {label}: {_describe(error)}", _ADVICE) from error

    def close(self) -> None:
        self._connection.close()


_ADVICE: Final = (
    "The database must have the tables nas and handles as Handle servers create them, and the user must be able to "
    "read them"
)


def _describe(error: Exception) -> str:
    """The first line of what a driver says."""
    text = str(error.args[-1] if error.args else error)
    return " ".join(text.split())[:300] or type(error).__name__

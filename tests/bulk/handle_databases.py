"""SQL databases as Handle servers have them, filled by tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import psycopg
from sqlalchemy import make_url

from perseid.bulk.migration.sql import encode_references
from perseid.records.admin import Admin
from perseid.records.encoding import to_wire
from perseid.records.record import Permission, TtlType, Value, ValueRef
from tests.mariadb import MariadbServer
from tests.postgres import Cluster

PREFIX: Final = "20.500.12345"
RECORDS: Final[dict[str, tuple[Value, ...]]] = {
    f"0.NA/{PREFIX}": (
        Value(100, "HS_ADMIN", Admin(ValueRef(300, f"0.NA/{PREFIX}")).to_bytes(), timestamp=1_000_000_000),
        Value(300, "HS_SECKEY", b"a secret", permissions=Permission(0x0C), timestamp=1_000_000_001),
    ),
    f"{PREFIX}/PLAIN": (Value(1, "URL", b"https://example.org/1", timestamp=1_500_000_000),),
    f"{PREFIX}/EVERYTHING": (
        Value(1, "URL", b"https://example.org/", 3600, timestamp=1_500_000_001),
        Value(2, "DESC", bytes(range(256)), 1_893_456_000, TtlType.ABSOLUTE, Permission(0), 1_500_000_002),
        Value(3, "10320/LOC", b"", -5, permissions=Permission(0x0F)),
        Value(
            7,
            "NOTE.ü",
            "日本".encode(),
            references=(ValueRef(1, f"{PREFIX}/tab\there"), ValueRef(2, f"{PREFIX}/100%\\ü")),
        ),
        Value(2_147_483_647, "EMAIL", b"a@example.org", permissions=Permission(0x08)),
    ),
    f"{PREFIX}/NO ADMINISTRATOR ": (Value(1, "URL", b"not a URL at all", timestamp=1),),
    f"{PREFIX}/CONTROL\x07\x1b[31m": (Value(1, "URL", b"https://example.org/\x1b[2J"),),
    f"{PREFIX}/U\u0308BER \u202e\u200b": (Value(1, "URL", "https://example.org/ü".encode()),),
    f"{PREFIX}//..//%2F?A=1#B": (Value(1, "URL", b"https://example.org/odd"),),
}
"""Records of a case-insensitive server, some of which break today's rules."""

_TABLES: Final = (
    "CREATE TABLE nas (na {name} NOT NULL PRIMARY KEY)",
    """CREATE TABLE handles (handle {name} NOT NULL, idx int4 NOT NULL, type {blob}, data {blob}, ttl_type int2,
    ttl int4, timestamp int4, refs {text}, admin_read bool, admin_write bool, pub_read bool, pub_write bool,
    PRIMARY KEY (handle, idx))""",
)
_INSERT: Final = "INSERT INTO handles VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


def signed(number: int) -> int:
    """A number of 32 bits as SQL stores it."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def to_row(handle: str, value: Value) -> tuple[Any, ...]:
    """The row of a value."""
    refs = encode_references(map(str, value.references)).encode() if value.references else None
    bits = [bool(value.permissions & bit) for bit in (8, 4, 2, 1)]
    ttl = signed(to_wire(value.ttl)) if value.ttl_type is TtlType.ABSOLUTE else value.ttl
    return (
        *(handle.encode(), value.index, value.type.encode(), value.data, int(value.ttl_type), ttl),
        *(signed(to_wire(value.timestamp)), refs, *bits),
    )


class HandleDatabase(Protocol):
    """The database of a Handle server."""

    url: str

    def insert(self, records: Mapping[str, Sequence[Value]]) -> None:
        """Store new records."""

    def put(self, handle: str, values: Sequence[Value]) -> None:
        """Replace a record, as the server does: delete all rows, and insert."""

    def delete(self, handle: str) -> None:
        """Delete a record."""

    def home(self, prefix: str) -> None:
        """Host a prefix."""

    def close(self) -> None:
        """Close the connection."""


class PostgresDatabase:
    """On PostgreSQL."""

    def __init__(self, cluster: Cluster) -> None:
        url = make_url(cluster.database())
        self.url = f"postgresql://{url.username}@/{url.database}?host={cluster.folder}"
        self._connection = psycopg.connect(
            host=str(cluster.folder), user=url.username, dbname=url.database, autocommit=True
        )
        for table in _TABLES:
            self._connection.execute(table.format(name="bytea", blob="bytea", text="text").encode())

    def insert(self, records: Mapping[str, Sequence[Value]]) -> None:
        rows = [to_row(handle, value) for handle, values in records.items() for value in values]
        texts = [(*row[:7], None if row[7] is None else row[7].decode(), *row[8:]) for row in rows]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(_INSERT, texts)

    def put(self, handle: str, values: Sequence[Value]) -> None:
        with self._connection.transaction():
            self.delete(handle)
            self.insert({handle: values})

    def delete(self, handle: str) -> None:
        self._connection.execute("DELETE FROM handles WHERE handle = %s", (handle.encode(),))

    def home(self, prefix: str) -> None:
        self._connection.execute("INSERT INTO nas VALUES (%s)", (prefix.encode(),))

    def close(self) -> None:
        self._connection.close()


class MariadbDatabase:
    """On MariaDB."""

    def __init__(self, server: MariadbServer) -> None:
        name = server.database()
        self.url = server.url(name)
        self._connection = server.connect(name)
        with self._connection.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(table.format(name="varchar(255)", blob="blob", text="blob"))

    def insert(self, records: Mapping[str, Sequence[Value]]) -> None:
        rows = [to_row(handle, value) for handle, values in records.items() for value in values]
        with self._connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)

    def put(self, handle: str, values: Sequence[Value]) -> None:
        self._connection.begin()
        self.delete(handle)
        self.insert({handle: values})
        self._connection.commit()

    def delete(self, handle: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("DELETE FROM handles WHERE handle = %s", (handle.encode(),))

    def home(self, prefix: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("INSERT INTO nas VALUES (%s)", (prefix.encode(),))

    def close(self) -> None:
        self._connection.close()


def fill(database: HandleDatabase) -> None:
    """Store `RECORDS`."""
    database.home(f"0.NA/{PREFIX}")
    database.insert(RECORDS)

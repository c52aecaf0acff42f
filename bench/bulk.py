"""What rows of files cost: reading and mapping a thousand rows of each format, and writing them."""

import io
from collections.abc import Callable
from functools import partial

from perseid.bulk.batch import format_create
from perseid.bulk.exchange import ExchangeWriter
from perseid.bulk.jsonl import format_record
from perseid.bulk.rows import open_rows
from perseid.bulk.tables import TableWriter
from perseid.bulk.value_table import VALUE_COLUMNS, value_rows
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef

ROWS = 1_000
HEADER = ("handle", "url", "title", "EMAIL!private", "state")
VALUES = (
    Value(100, "HS_ADMIN", Admin(ValueRef(200, "0.NA/12345")).to_bytes()),
    Value.text(1, "URL", "https://example.org/collections/maps/0001"),
    Value.text(2, "TITLE", "A map of the islands"),
)


def _handle(number: int) -> str:
    return f"12345/report-{number}"


def _read(data: bytes) -> int:
    return sum(1 for _ in open_rows(io.BytesIO(data)))


def _write_table() -> bytes:
    rows = [(_handle(n), f"https://example.org/{n}", "A title, quoted", "a@b.org", "published") for n in range(ROWS)]
    file = io.BytesIO()
    TableWriter(file, HEADER).write_many(rows)
    return file.getvalue()


def _write_value_table() -> bytes:
    file = io.BytesIO()
    writer = TableWriter(file, VALUE_COLUMNS)
    for number in range(ROWS):
        writer.write_many(value_rows(_handle(number), "published", VALUES))
    return file.getvalue()


def _write_lines() -> bytes:
    return b"".join([format_record(_handle(number), "published", VALUES) for number in range(ROWS)])


def _write_batch() -> bytes:
    return b"".join([format_create(_handle(number), VALUES)[0] for number in range(ROWS)])


def _write_exchange() -> bytes:
    file = io.BytesIO()
    writer = ExchangeWriter(file, ["0.NA/12345"])
    for number in range(ROWS):
        writer.write(_handle(number), VALUES)
    writer.close()
    return file.getvalue()


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure; each figure is for a thousand rows."""
    writers: dict[str, Callable[[], bytes]] = {
        "CSV": _write_table,
        "CSV of values": _write_value_table,
        "JSON lines": _write_lines,
        "batch": _write_batch,
        "exchange": _write_exchange,
    }
    return {
        **{f"read {name}": partial(_read, write()) for name, write in writers.items()},
        **{f"write {name}": write for name, write in writers.items()},
    }

"""What rows would store."""

import io

import msgspec

from perseid.bulk.formats import ReadOptions
from perseid.bulk.rows import open_rows
from perseid.records.json_form import value_from_json
from perseid.records.record import Value
from perseid.schema.imports import ImportRow, RowProblem

NOW = 1_794_700_800


def stored(row: ImportRow | RowProblem) -> tuple[Value, ...]:
    """The values of a row, as they would be stored with their timestamps."""
    assert isinstance(row, ImportRow)
    plain = msgspec.json.decode(msgspec.json.encode(row.values))
    known = [{name: member for name, member in value.items() if member is not None} for value in plain]
    return tuple([value_from_json({"index": index} | value) for index, value in enumerate(known, 1)])


def read(data: bytes, options: ReadOptions | None = None, name: str = "") -> list[ImportRow | RowProblem]:
    """All rows of a file."""
    return list(open_rows(io.BytesIO(data), name, options, now=NOW))


def problems(rows: list[ImportRow | RowProblem]) -> list[tuple[int, str]]:
    """The lines and rules of problems."""
    return [(row.line, row.rule) for row in rows if isinstance(row, RowProblem)]

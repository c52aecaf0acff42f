"""The rows of a file in any format, which is detected from its content and its name."""

import io
import re
from typing import BinaryIO, Final

from .columns import read_table
from .encodings import SAMPLE
from .formats import FileReader, Format, ReadOptions, RowReader, TypeCheck, invalid_file
from .jsonl import read_jsonl
from .tables import Table, open_text_table

_SUFFIXES: Final = {
    **dict.fromkeys(("csv", "tsv", "tab", "txt"), Format.CSV),
    **dict.fromkeys(("jsonl", "ndjson"), Format.JSONL),
    **dict.fromkeys(("batch", "bat", "hdl"), Format.BATCH),
    "xlsx": Format.XLSX,
    "ods": Format.ODS,
    "dump": Format.DUMP,
    "jdb": Format.JDB,
    "anvl": Format.ANVL,
}
_BATCH: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:#[^\n]*\n\s*)*"
    rb"(?:CREATE|DELETE|ADD|MODIFY|REMOVE|HOME|UNHOME|AUTHENTICATE|SESSIONSETUP)[ \t\r\n]",
    re.IGNORECASE,
)
_EXCHANGE: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:homedPrefixes|handleRecords)"')
_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")


def open_rows(
    file: BinaryIO,
    name: str = "",
    options: ReadOptions | None = None,
    *,
    read_file: FileReader | None = None,  # noqa: ARG001 - for batch files
    is_type: TypeCheck | None = None,
) -> RowReader:
    """Open a file of any format.

    `name` helps to detect the format. Only the command line gives a function that reads files which a batch file names.
    `is_type` says which types of an installation a column can be named after. Raises `InvalidFile`.
    """
    options = options or ReadOptions()
    file = _buffer(file)
    if options.mint and not options.prefix:
        raise invalid_file("missing-prefix", "The prefix in which to mint is missing.", "Use --prefix PREFIX.")
    format_ = options.format or detect_format(_peek(file), name)
    if format_ in (Format.CSV, Format.XLSX, Format.ODS):
        return read_table(open_table(file, name, options), options, is_type)
    if format_ == Format.JSONL:
        return read_jsonl(file, options)
    raise invalid_file("unknown-format", f"The format {format_} cannot be read yet.")


def open_table(file: BinaryIO, name: str = "", options: ReadOptions | None = None) -> Table:
    """Open a table of any format."""
    options = options or ReadOptions()
    file = _buffer(file)
    return open_text_table(file, options, name)


def detect_format(sample: bytes, name: str = "") -> Format:
    """Find the format of a file from its first bytes, and from its name if several are possible."""
    by_name = _SUFFIXES.get(name.rpartition(".")[2].lower()) if "." in name else None
    if sample.startswith(b"PK\x03\x04"):
        return Format.ODS if b"opendocument.spreadsheet" in sample[:200] or by_name == Format.ODS else Format.XLSX
    if sample.startswith(b"\0\x0cJDBHash v0.1"):
        return Format.JDB
    if sample.startswith(b"VERSION=") and b"HEADER=END" in sample:
        return Format.DUMP
    if _EXCHANGE.match(sample):
        return Format.EXCHANGE
    if _OBJECT.match(sample):
        return Format.JSONL
    if by_name is not None and by_name not in (Format.XLSX, Format.ODS, Format.JDB):
        return by_name
    if _BATCH.match(sample):
        return Format.BATCH
    return Format.CSV


def _buffer(file: BinaryIO) -> io.BufferedReader | io.BytesIO:
    """A file that can be peeked at."""
    if isinstance(file, io.BufferedReader | io.BytesIO):
        return file
    return io.BufferedReader(file, SAMPLE)  # type: ignore[arg-type] # any file with `readinto`


def _peek(file: io.BufferedReader | io.BytesIO) -> bytes:
    """The first bytes of a file, without reading them."""
    if isinstance(file, io.BufferedReader) and not file.seekable():
        return file.peek(SAMPLE)[:SAMPLE]
    start = file.tell()
    sample = file.read(SAMPLE)
    file.seek(start)
    return sample

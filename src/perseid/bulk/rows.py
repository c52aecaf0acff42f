"""The rows of a file in any format, which is detected from its content and its name."""

import re
import time
from typing import BinaryIO, Final

from perseid.registry.advice import AdviceKind

from .anvl import read_anvl
from .batch import Credential, CredentialInFile, find_credential, read_batch
from .columns import read_table
from .dumps import JDB_MARK, read_dump, read_jdb
from .encodings import buffer, find_mark, get_label, peek
from .exchange import read_exchange
from .formats import TABLES, FileReader, Format, ReadOptions, RowReader, TypeCheck, invalid_file
from .jsonl import read_jsonl
from .sheets import open_sheet
from .tables import Table, open_text_table, unquote_cell

_SUFFIXES: Final = {
    **dict.fromkeys(("csv", "tsv", "tab"), Format.CSV),
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
_ANVL: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*:: ?[^\s]")
_SEVERAL_LINES: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:(\[)\s*[{\]]|\{[ \t]*\r?\n)")
_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")


def open_rows(
    file: BinaryIO,
    name: str = "",
    options: ReadOptions | None = None,
    *,
    read_file: FileReader | None = None,
    is_type: TypeCheck | None = None,
    now: int | None = None,
    refuses_credentials: bool = False,
) -> RowReader:
    """Open a file of any format.

    `name` helps to detect the format. Only the command line gives a function that reads files which a batch file names.
    `is_type` says which types of an installation a column can be named after. `now` resolves the 32-bit times in
    databases of Handle servers. `refuses_credentials` is for files that are stored. Raises `InvalidFile`, also while
    rows are read.
    """
    options = options or ReadOptions()
    file = buffer(file)
    if options.mint and not options.prefix:
        raise invalid_file("missing-prefix", "The prefix in which to mint is missing.", AdviceKind.NAME_MINT_PREFIX())
    format_ = options.format or detect_format(peek(file), name)
    _refuse_unused(format_, options)
    if format_ in (Format.JSONL, Format.BATCH) and (mark := find_mark(peek(file))).startswith(("utf-16", "utf-32")):
        raise invalid_file("invalid-encoding", f"The file is {get_label(mark)}.", "Save the file as UTF-8.")
    if format_ in TABLES:
        return read_table(_open_table(file, format_, name, options), options, is_type)
    if format_ == Format.JSONL:
        return read_jsonl(file, options)
    if format_ == Format.ANVL:
        return read_anvl(file, options)
    if options.mint:
        message = f"Handles cannot be minted from a file in the format {format_}, which has handles."
        raise invalid_file("handle-not-empty", message, AdviceKind.OMIT_MINT())
    if format_ == Format.BATCH:
        return read_batch(file, read_file, refuses_credentials=refuses_credentials)
    if format_ == Format.EXCHANGE:
        return read_exchange(file, options)
    moment = int(time.time()) if now is None else now
    return read_dump(file, moment) if format_ == Format.DUMP else read_jdb(file, moment)


_UNUSED: Final = {
    "sheet": (frozenset({Format.XLSX, Format.ODS}), "Files in the format {} have no sheets."),
    "delimiter": (frozenset({Format.CSV}), "Files in the format {} have no delimiter."),
    "encoding": (frozenset({Format.CSV}), "The encoding of files in the format {} cannot be chosen."),
    "columns": (TABLES | {Format.ANVL}, "Files in the format {} have no columns that can be mapped."),
}
"""Options with the formats that have them, and what is said about the others."""


def _refuse_unused(format_: Format, options: ReadOptions) -> None:
    """Refuse options that a format does not have: the user expects another format."""
    for name, (formats, message) in _UNUSED.items():
        if getattr(options, name) and format_ not in formats:
            raise invalid_file("unused-option", message.format(format_), "Omit the option, or choose another format.")


def read_credential(file: BinaryIO, name: str, options: ReadOptions) -> Credential | None:
    """Find the identity that a file signs in with; only a batch file can have one. Raises `InvalidFile`."""
    file = buffer(file)
    format_ = options.format or detect_format(peek(file), name)
    return find_credential(file) if format_ == Format.BATCH else None


def find_secret(file: BinaryIO, name: str, options: ReadOptions) -> int:
    """Find the line of the first secret; 0 if there is none. Only a batch file can have one. Raises `InvalidFile`."""
    file = buffer(file)
    if (options.format or detect_format(peek(file), name)) == Format.BATCH:
        try:
            for _ in read_batch(file, refuses_credentials=True):
                pass
        except CredentialInFile as found:
            return found.problem.line
    return 0


def open_table(file: BinaryIO, name: str = "", options: ReadOptions | None = None) -> Table:
    """Open a table of any format."""
    options = options or ReadOptions()
    file = buffer(file)
    return _open_table(file, options.format or detect_format(peek(file), name), name, options)


def _open_table(file: BinaryIO, format_: Format, name: str, options: ReadOptions) -> Table:
    table = open_text_table(file, options, name) if format_ == Format.CSV else open_sheet(file, format_, options)
    if not options.raw:  # as in a report
        table.header = tuple([unquote_cell(name) for name in table.header])
    return table


_UNSUPPORTED: Final = {
    b"\xd0\xcf\x11\xe0": (
        "The file is an old or encrypted Excel file.",
        "Save it as .xlsx, .ods or CSV, without a password.",
    ),
    b"%PDF-": ("The file is a PDF.", "Export the table that it shows as CSV, .xlsx or .ods."),
    b"\x1f\x8b": ("The file is compressed.", "Decompress it, for example with gunzip."),
}
"""What files with these first bytes are, and how to get one that can be read."""


def _refuse_unsupported(sample: bytes) -> None:
    for start, problem in _UNSUPPORTED.items():
        if sample.startswith(start):
            raise invalid_file("unknown-format", *problem)


def _refuse_no_workbook(by_name: Format | None) -> None:
    if by_name in (Format.XLSX, Format.ODS):
        message = f"The file is not a workbook, although its name ends with .{by_name}."
        fix = "Save it again as a workbook, or as CSV with a name that ends with .csv."
        raise invalid_file("invalid-spreadsheet", message, fix)


def detect_format(sample: bytes, name: str = "") -> Format:
    """Find the format of a file from its first bytes, and from its name if several are possible."""
    by_name = _SUFFIXES.get(name.rpartition(".")[2].lower()) if "." in name else None
    _refuse_unsupported(sample)
    if sample.startswith(b"PK\x03\x04"):
        return Format.ODS if b"opendocument.spreadsheet" in sample[:200] or by_name == Format.ODS else Format.XLSX
    if sample.startswith(JDB_MARK):
        return Format.JDB
    if sample.startswith(b"VERSION=") and b"HEADER=END" in sample:
        return Format.DUMP
    if _EXCHANGE.match(sample):
        return Format.EXCHANGE
    if _ANVL.match(sample):
        return Format.ANVL
    if (found := _SEVERAL_LINES.match(sample)) is not None:
        kind, each = ("a JSON array", "'.[]'") if found[1] == b"[" else ("JSON with records on several lines", ".")
        fix = f"Write each record on one line, for example with: jq -c {each}"
        raise invalid_file("unknown-format", f"The file is {kind}.", fix)
    if _OBJECT.match(sample):
        return Format.JSONL
    if by_name is not None and by_name not in (Format.XLSX, Format.ODS, Format.JDB):
        return by_name
    if _BATCH.match(sample):
        return Format.BATCH
    _refuse_no_workbook(by_name)
    return Format.CSV

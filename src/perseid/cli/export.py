"""`perseid export`: write many records to a file."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from perseid.schema.exports import ExportFormat, ExportSummary
from perseid.schema.queries import Selectors

from ._arguments import ActingAs, Directory, open_installation, printable
from ._output import (
    AsJson,
    ProgressCallback,
    is_terminal,
    pluralize,
    print_fields,
    print_json,
    print_message,
    progress,
)
from .queries import (
    ChangedSince,
    HostCondition,
    OwnerCondition,
    PathCondition,
    TypeCondition,
    UrlCondition,
    ValueCondition,
    select,
)

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.bulk.export import Export

STANDARD_OUTPUT: Final = "-"


def export(  # noqa: PLR0913 - options
    prefix: Annotated[
        str | None, typer.Argument(metavar="PREFIX", help="Only handles with this prefix. Default: all.")
    ] = None,
    *,
    format_: Annotated[
        ExportFormat,
        typer.Option("--format", metavar="|".join(ExportFormat), help="The format; JSON lines are lossless."),
    ] = ExportFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The file. Default: standard output.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Every version, newest first, and deleted records; as JSON lines.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|SEQ", help="The records at a time, or at an entry of the ledger."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV: do not put ' before cells that a spreadsheet would run as formulas.")
    ] = False,
    url: UrlCondition = None,
    host: HostCondition = None,
    path: PathCondition = None,
    type_: TypeCondition = None,
    value: ValueCondition = None,
    owner: OwnerCondition = None,
    changed_since: ChangedSince = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Export records: those of a prefix, those that match all conditions, or all.

    JSON lines have one record on each line, with state and all values, and can be imported again without loss. CSV has
    one row for each value.

    On an installation you get every record and value, also private ones and secrets; with `--as`, or on a server,
    what the identity can see. All records are as of one entry of the ledger, whatever changes meanwhile. A file gets
    its name when it is complete.

    For example:
        perseid export
        perseid export 102.100.272 -o records.jsonl
        perseid export 102.100.272 --format csv -o records.csv
        perseid export --type EMAIL
        perseid export 102.100.272 --history --at 30 -o history.jsonl --json
    """
    to_file = output is not None and str(output) != STANDARD_OUTPUT
    if json and not to_file:
        raise typer.BadParameter("requires a file: use -o FILE", param_hint="--json")
    selectors = Selectors(url, host, path, type_, value, prefix, owner, changed_since=changed_since)

    from perseid.bulk import export as exports  # noqa: PLC0415 - see above
    from perseid.registry.queries.export import Selection  # noqa: PLC0415

    with ExitStack() as stack:
        session = stack.enter_context(open_installation(directory, acting_as))
        writer = exports.open_writer(format_, history=history, raw=raw)
        selection = Selection(select(session, selectors), history)
        running = exports.Export.start(session.registry, session.identity, selection, writer, at)
        stream: IO[bytes]
        if output is not None and to_file:
            stream = stack.enter_context(exports.open_atomically(output))
        else:
            stream = sys.stdout.buffer
        update = stack.enter_context(progress("exporting", unit="records", prints=not to_file))
        size = _write(stream, running, update)
    _report(ExportSummary(format_, running.records, size, running.as_of.seq, str(output) if to_file else None), json)


def _write(stream: IO[bytes], running: "Export", update: ProgressCallback) -> int:
    """Write an export and return its size in bytes."""
    size = 0
    for chunk in running.chunks():
        stream.write(chunk)
        size += len(chunk)
        update(running.records)
    stream.flush()
    return size


def _report(summary: ExportSummary, json: bool) -> None:
    counted, size = pluralize(summary.records, "record"), f"{summary.bytes:,} bytes"
    if json:
        print_json(summary)
    elif summary.file is not None:
        fields = {"file": printable(summary.file), "records": f"{summary.records:,}", "size": size}
        print_fields({**fields, "as of entry": summary.as_of})
    elif not is_terminal(sys.stdout):
        print_message(f"Exported {counted} ({size}), as of entry {summary.as_of}.")


commands: dict[str, Callable[..., None] | typer.Typer] = {"export": export}

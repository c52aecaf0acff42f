"""`perseid export`: write many records to a file."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from perseid.schema.exports import ExportFormat, ExportPart, ExportQuery, ExportSummary
from perseid.schema.queries import Selectors

from ._arguments import ActingAs, Directory, OpenInstallation, open_installation, parse_reference, printable
from ._common_options import REMOTE
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
    WordsCondition,
    select,
)

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.client import Client

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
    words: WordsCondition = None,
    owner: OwnerCondition = None,
    changed_since: ChangedSince = None,
    static: Annotated[
        Path | None,
        typer.Option("--static", metavar="DIR", help="Instead: a site of plain files that any web server can serve."),
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Export records: those of a prefix, those that match all conditions, or all.

    JSON lines have one record on each line, with state and all values, and can be imported again without loss. CSV has
    one row for each value. A batch file creates the public records on any Handle server.

    On an installation you get every record and value, also private ones and secrets; with `--as`, or on a server,
    what the identity can see. All records are as of one entry of the ledger, whatever changes meanwhile. A file gets
    its name when it is complete.

    `--static` writes the public records for the end of a service: redirect maps for nginx and Apache, pages, JSON
    and proofs. It needs the installation, and a directory that is new or empty.

    For example:
        perseid export
        perseid export 102.100.272 -o records.jsonl
        perseid export 102.100.272 --format csv -o records.csv
        perseid export --type EMAIL --format batch
        perseid export 102.100.272 --history --at 30 -o history.jsonl --json
        perseid export --static site
    """
    if static is not None:
        options = (output, at, url, host, path, type_, value, words, owner, changed_since, acting_as)
        if history or raw or format_ is not ExportFormat.JSONL or any(option is not None for option in options):
            raise typer.BadParameter("can only be used with PREFIX, -d and --json", param_hint="--static")
        _export_site(directory, static, prefix, json)
        return
    to_file = output is not None and str(output) != STANDARD_OUTPUT
    if json and not to_file:
        raise typer.BadParameter("requires a file: use -o FILE", param_hint="--json")
    selectors = Selectors(url, host, path, type_, value, prefix, owner, changed_since=changed_since, words=words)

    with ExitStack() as stack:
        connect = REMOTE.get()
        if connect is not None:
            client = stack.enter_context(connect())
            if owner is not None:
                selectors = msgspec.structs.replace(selectors, owner=str(parse_reference(owner).handle))
            parts = _export_remotely(client, selectors, format_, history=history, at=at, raw=raw)
        else:
            session = stack.enter_context(open_installation(directory, acting_as))
            parts = _export_locally(session, selectors, format_, history=history, at=at, raw=raw)
        first = next(parts)  # what is refused leaves no file
        stream: IO[bytes] = sys.stdout.buffer
        if output is not None and to_file:
            from perseid.bulk.export import open_atomically  # noqa: PLC0415 - see above

            stream = stack.enter_context(open_atomically(output))
        update = stack.enter_context(progress("exporting", unit="records", prints=not to_file))
        summary = _write(stream, format_, chain([first], parts), update)
    _report(msgspec.structs.replace(summary, file=str(output) if to_file else None), json)


def _export_site(directory: Path | None, target: Path, prefix: str | None, json: bool) -> None:
    """Write a static site."""
    with open_installation(directory) as session:
        from perseid.ledger.merkle import Signer  # noqa: PLC0415 - see above
        from perseid.registry.identity import LocalIdentity  # noqa: PLC0415
        from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME  # noqa: PLC0415
        from perseid.server.http.context import HttpSettings  # noqa: PLC0415
        from perseid.server.http.static_export import export_static  # noqa: PLC0415

        assert isinstance(session.identity, LocalIdentity)  # noqa: S101 - without --as
        signer = Signer.from_bytes((session.installation.directory / KEYS_NAME / CHECKPOINT_KEY).read_bytes())
        settings = HttpSettings.of(session.installation.config)
        with progress("exporting", unit="records") as update:
            summary, as_of = export_static(session.registry, session.identity, settings, signer, target, prefix, update)
    counts = {name: getattr(summary, name) for name in ("records", "redirects", "tombstones", "proofs")}
    if json:
        print_json({"directory": str(target), **counts, "pages_only": len(summary.pages_only), "as_of": as_of})
        return
    print_fields({"directory": printable(str(target)), **{name: f"{n:,}" for name, n in counts.items()}})
    print_message(f"{printable(str(target))}/README.md says how to serve it.")
    if summary.pages_only:
        count = pluralize(len(summary.pages_only), "identifier")
        print_message(f"{count} cannot be in the map of a web server, or their URL cannot: see pages-only.txt.")


def _export_locally(
    session: OpenInstallation,
    selectors: Selectors,
    format_: ExportFormat,
    *,
    history: bool,
    at: str | None,
    raw: bool,
) -> Iterator[ExportPart]:
    from perseid.bulk.export import export_parts, open_writer  # noqa: PLC0415 - see above
    from perseid.registry.queries.export import Selection  # noqa: PLC0415

    selection = Selection(select(session, selectors), history)
    writer = open_writer(format_, history=history, raw=raw)
    return export_parts(session.registry, session.identity, selection, writer, at)


def _export_remotely(
    client: "Client", selectors: Selectors, format_: ExportFormat, *, history: bool, at: str | None, raw: bool
) -> Iterator[ExportPart]:
    request = type(client).export.request(client)
    query = ExportQuery(**msgspec.structs.asdict(selectors), format=format_, history=history, at=at, raw=raw)
    return client.iterate(replace(request, query=query), "content").pages()


def _write(
    stream: IO[bytes], format_: ExportFormat, parts: Iterable[ExportPart], update: ProgressCallback
) -> ExportSummary:
    """Write an export and return what was exported."""
    records = size = omitted = as_of = 0
    for part in parts:
        for piece in part.content:
            stream.write(piece)
            size += len(piece)
        records, omitted, as_of = records + part.records, omitted + part.omitted, part.as_of
        update(records)
    stream.flush()
    return ExportSummary(format_, records, size, as_of, omitted)


def _report(summary: ExportSummary, json: bool) -> None:
    if summary.omitted and not json:
        what = pluralize(summary.omitted, "record or value", "records and values")
        print_message(f"A batch file cannot express {what}: unpublished records, dates, binary data and more.")
        print_message("For a complete export: --format jsonl")
    counted, size = pluralize(summary.records, "record"), f"{summary.bytes:,} bytes"
    if json:
        print_json(summary)
    elif summary.file is not None:
        fields = {"file": printable(summary.file), "records": f"{summary.records:,}", "size": size}
        print_fields({**fields, "as of entry": summary.as_of})
    elif not is_terminal(sys.stdout):
        print_message(f"Exported {counted} ({size}), as of entry {summary.as_of}.")


commands: dict[str, Callable[..., None] | typer.Typer] = {"export": export}

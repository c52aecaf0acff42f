"""`perseid resolve`: the record of a handle, now or at a time, and its authority metadata."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final

import typer

from perseid.ledger.log.entry import State
from perseid.records.encoding import iso_time
from perseid.records.value import Value
from perseid.registry.context import Context
from perseid.registry.queries.aliases import FoundRecord, find_record
from perseid.registry.queries.resolve import Query
from perseid.registry.responses import get_authority, to_record
from perseid.schema.namespaces import Authority

from ._installation import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    open_installation,
    parse_reference,
)
from ._output import AsJson, print_json, print_message
from ._values import format_data, printable

_STATE_DESCRIPTIONS: Final = {
    State.TOMBSTONE: "a tombstone: the resource is gone",
    State.UNPUBLISHED: "unpublished: only administrators can see it",
    State.RESERVED: "reserved: it has no record yet",
}


def resolve(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only values of this type; `TYPE.` includes subtypes."),
    ] = None,
    index: Annotated[list[int] | None, typer.Option("--index", metavar="INDEX", help="Only this value.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME|SEQ", help="The record at a time, or at an entry of the ledger.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Include private values that you can read.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Follow aliases.")] = False,
    authority: Annotated[
        bool, typer.Option("--authority", help="Show the authority metadata: dates, creator and owners.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the record of a handle: one value on each line, with index, type and data.

    `--at` shows the record at an earlier time. The number of an entry always gives the same result, so use it in
    citations. `--type` and `--index` are repeatable and select all matching values.

    For example:
        perseid resolve 102.100.272/8RBZF0DQH
        perseid resolve 102.100.272/2RDV0T0QH --authority
        perseid resolve http://resolver.net.au/hdl/102.100.272/8RBZF0DQH --type DESC --index 100
        perseid resolve hdl:2000.01/EEF4DF17361A42E2B975E554663B70C3 --at 30 --json
    """
    reference = parse_reference(handle)
    query = Query(reference.handle, tuple(type_ or ()), tuple(index or ()), public_only=not private)
    if authority and at is not None:
        raise typer.BadParameter("cannot be used with --at", param_hint="--authority")
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        context = Context(snapshot, session.identity, INTERFACE, session.registry.now())
        found = find_record(context, query, at, session.registry.ledger.log.clock.now(), follow=follow)
        metadata = get_authority(context, replace(query, handle=found.resolution.handle)) if authority else None
    record = found.resolution
    record = replace(
        record,
        query=reference.query if record.query is None else record.query,
        fragment=reference.fragment if record.fragment is None else record.fragment,
    )
    found = replace(found, resolution=record)
    if json:
        print_json(metadata or to_record(found))
        return
    if metadata is not None:
        _print_authority(metadata)
    else:
        _print_values(record.values)
    _print_hints(found)


def _print_authority(metadata: Authority) -> None:
    if not metadata.required:
        print_message("The policy of the namespace does not require authority metadata.")
        return
    for label, time in (("created", metadata.created), ("updated", metadata.updated)):
        typer.echo(f"{label}  {time or 'unknown'}")
    for label, party in (("creator", metadata.creator), *[("owner", owner) for owner in metadata.owners]):
        text = "unknown" if party is None else printable(party.uri)
        remark = "" if party is None or party.verified else "  (not verified: hosted by another service)"
        typer.echo(f"{label:<7}  {text}{remark}")


def _print_hints(found: FoundRecord) -> None:
    record = found.resolution
    if found.aliases:
        print_message(f"{printable(found.aliases[0])} is an alias of {printable(str(record.registered))}.")
    if record.state is not State.NORMAL:
        print_message(f"The handle is {_STATE_DESCRIPTIONS[record.state]}.")
    for part, text in (("query", record.query), ("fragment", record.fragment)):
        if text is not None:
            print_message(f"The {part} is passed on to the target: {printable(text)}")
    if record.by_template:
        source = "" if record.base is None else f" from the record of {printable(str(record.base))}"
        print_message(f"The handle has no record of its own: a template created these values{source}.")
    if found.entry is not None:
        source = "its latest source" if record.by_template else "the record"
        print_message(f"As of entry {found.entry}; {source} is from entry {record.seq} ({iso_time(record.at)}).")


def _print_values(values: tuple[Value, ...]) -> None:
    width = max(len(str(value.index)) for value in values)
    types = [printable(value.type) + ("" if value.is_public else "!private") for value in values]
    for value, type_ in zip(values, types, strict=True):
        typer.echo(f"{value.index:>{width}}  {type_:<{max(map(len, types))}}  {format_data(value)}")


commands: dict[str, Callable[..., None] | typer.Typer] = {"resolve": resolve}

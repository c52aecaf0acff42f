"""`perseid resolve`: the record of a handle, now or at a time, and its authority metadata."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from perseid.ledger.log.entry import State
from perseid.records.encoding import to_iso
from perseid.records.json_form import record_to_json
from perseid.records.json_parsing import JsonObject
from perseid.records.record import Record
from perseid.records.value import Value
from perseid.registry.context import Context
from perseid.registry.policy.authority_metadata import AuthorityMetadata
from perseid.registry.queries.aliases import resolve_aliases
from perseid.registry.queries.history import as_of, seq_at_time
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.queries.resolve import resolve as resolved
from perseid.registry.results import Resolution

from ._installation import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    OpenInstallation,
    open_installation,
    parse_reference,
)
from ._output import AsJson, print_json, print_message
from ._values import format_data, printable

_MICROSECONDS: Final = 1_000_000

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
    with open_installation(directory, acting_as) as session:
        result = _find(session, query, at, follow=follow, authority=authority)
    record = result.resolved
    tail = {
        "query": reference.query if record.query is None else record.query,
        "fragment": reference.fragment if record.fragment is None else record.fragment,
    }
    present = {part: text for part, text in tail.items() if text is not None}
    if json:
        _print_json(result, present, follow=follow, authority=authority)
        return
    if authority:
        _print_authority(result.authority)
    else:
        _print_values(record.values)
    _print_hints(result, present)


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a resolution."""

    resolved: Resolution
    entry: int | None
    """The last entry of the ledger at the requested time; None means now."""
    aliases: tuple[str, ...]
    """The aliases that were followed."""
    authority: AuthorityMetadata | None


def _find(session: OpenInstallation, query: Query, at: str | None, *, follow: bool, authority: bool) -> _Result:
    with session.registry.snapshot() as snapshot:
        entry = None if at is None else seq_at_time(snapshot.reader, at, session.registry.ledger.log.clock.now())
        aliases: tuple[str, ...] = ()
        if follow:
            chain = resolve_aliases(snapshot, query.handle, entry).chain
            if len(chain) > 1:
                aliases, query = tuple(map(str, chain[:-1])), replace(query, handle=chain[-1])
        if entry is None:
            record = resolved(query, Context(snapshot, session.identity, INTERFACE, session.registry.now()))
        else:
            record = as_of(snapshot, session.identity, query, entry).resolved
        metadata = get_authority_metadata(snapshot, snapshot.stored(record.base or query.handle)) if authority else None
    return _Result(record, entry, aliases, metadata)


def _print_json(result: _Result, tail: dict[str, str], *, follow: bool, authority: bool) -> None:
    record = result.resolved
    plain: JsonObject = record_to_json(Record(record.handle, record.values))
    if record.state is not State.NORMAL:
        plain["state"] = record.state.name.lower()
    plain |= tail
    if record.by_template:
        plain["template_base"] = None if record.base is None else str(record.base)
    if result.entry is not None:
        plain |= {"as_of": result.entry, "seq": record.seq, "changed": _format_time(record.at)}
    if follow:
        plain["aliases"] = list(result.aliases)
    if authority:
        plain["authority"] = None if result.authority is None else result.authority.to_json()
    print_json(plain)


def _print_authority(metadata: AuthorityMetadata | None) -> None:
    if metadata is None:
        print_message("The policy of the namespace does not require authority metadata.")
        return
    for label, time in (("created", metadata.created), ("updated", metadata.updated)):
        typer.echo(f"{label}  {'unknown' if time is None else to_iso(time)}")
    for label, party in (("creator", metadata.creator), *[("owner", owner) for owner in metadata.owners]):
        text = "unknown" if party is None else f"hdl:{printable(str(party.handle))}"
        remark = "" if party is None or party.verified else "  (not verified: hosted by another service)"
        typer.echo(f"{label:<7}  {text}{remark}")


def _print_hints(result: _Result, tail: dict[str, str]) -> None:
    record = result.resolved
    if result.aliases:
        print_message(f"{printable(result.aliases[0])} is an alias of {printable(str(record.registered))}.")
    if record.state is not State.NORMAL:
        print_message(f"The handle is {_STATE_DESCRIPTIONS[record.state]}.")
    for part, text in tail.items():
        print_message(f"The {part} is passed on to the target: {printable(text)}")
    if record.by_template:
        source = "" if record.base is None else f" from the record of {printable(str(record.base))}"
        print_message(f"The handle has no record of its own: a template created these values{source}.")
    if result.entry is not None:
        source = "its latest source" if record.by_template else "the record"
        print_message(f"As of entry {result.entry}; {source} is from entry {record.seq} ({_format_time(record.at)}).")


def _print_values(values: tuple[Value, ...]) -> None:
    width = max(len(str(value.index)) for value in values)
    types = [printable(value.type) + ("" if value.is_public else "!private") for value in values]
    for value, type_ in zip(values, types, strict=True):
        typer.echo(f"{value.index:>{width}}  {type_:<{max(map(len, types))}}  {format_data(value)}")


def _format_time(microseconds: int) -> str:
    time = datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


commands: dict[str, Callable[..., None] | typer.Typer] = {"resolve": resolve}

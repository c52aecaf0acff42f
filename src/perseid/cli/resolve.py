"""`perseid resolve`: what a name stands for, or stood for at a time, and what it says about itself."""

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
from perseid.registry.policy.aliases import resolve_aliases
from perseid.registry.policy.authority_metadata import AuthorityMetadata
from perseid.registry.queries.history import as_of, moment
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.queries.resolve import resolve as resolved
from perseid.registry.results import Resolution

from ._output import AsJson, print_json, print_message
from ._place import INTERFACE, ActingAs, Directory, Name, OpenInstallation, open_installation, parse_reference
from ._values import format_data, printable

_MICROSECONDS: Final = 1_000_000

_STATE_DESCRIPTIONS: Final = {
    State.TOMBSTONE: "a tombstone: the thing is gone",
    State.UNPUBLISHED: "not published: everybody else finds nothing",
    State.RESERVED: "reserved: it stands for nothing yet",
}


def resolve(  # noqa: PLR0913 - options
    handle: Name,
    *,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only values of this type; with a dot behind it also all below."),
    ] = None,
    index: Annotated[list[int] | None, typer.Option("--index", metavar="INDEX", help="Only this value.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME|SEQ", help="What it was at a time, or after an entry.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Also what not everybody may see, if you may see it.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Of an alias: what the name stands for to which it leads.")
    ] = False,
    authority: Annotated[
        bool, typer.Option("--authority", help="Since when the identifier exists, who created it and who owns it.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show what a name stands for: one value a line, with its index, its type and its data.

    With `--at` you see what it stood for then; cite the number of the entry, and the answer stays the same for ever.
    Both options `--type` and `--index` may be repeated, and find the values of all of them. With `--follow` a name that
    is an alias is taken for the one to which it leads.

    For example:
        perseid resolve 102.100.272/8RBZF0DQH
        perseid resolve 102.100.272/2RDV0T0QH --authority
        perseid resolve http://resolver.net.au/hdl/102.100.272/8RBZF0DQH --type DESC --index 100
        perseid resolve hdl:2000.01/EEF4DF17361A42E2B975E554663B70C3 --at 30 --json
    """
    reference = parse_reference(handle)
    query = Query(reference.handle, tuple(type_ or ()), tuple(index or ()), public_only=not private)
    if authority and at is not None:
        raise typer.BadParameter("it is told of the present only", param_hint="--authority")
    with open_installation(directory, acting_as) as session:
        found = _find(session, query, at, follow=follow, authority=authority)
    record = found.resolved
    tail = {
        "query": reference.query if record.query is None else record.query,
        "fragment": reference.fragment if record.fragment is None else record.fragment,
    }
    told = {what: text for what, text in tail.items() if text is not None}
    if json:
        _print_json(found, told, follow=follow, authority=authority)
        return
    if authority:
        _print_authority(found.authority)
    else:
        _print_values(record.values)
    _print_hints(found, told)


@dataclass(frozen=True, slots=True)
class _Result:
    """What was found under a name."""

    resolved: Resolution
    entry: int | None
    """The last entry of the ledger at the moment that was asked for; None is now."""
    aliases: tuple[str, ...]
    """The names that led to it."""
    authority: AuthorityMetadata | None


def _find(session: OpenInstallation, query: Query, at: str | None, *, follow: bool, authority: bool) -> _Result:
    with session.registry.snapshot() as snapshot:
        entry = None if at is None else moment(snapshot.reading, at, session.registry.ledger.log.clock.now())
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


def _print_json(found: _Result, tail: dict[str, str], *, follow: bool, authority: bool) -> None:
    record = found.resolved
    plain: JsonObject = record_to_json(Record(record.handle, record.values))
    if record.state is not State.NORMAL:
        plain["state"] = record.state.name.lower()
    plain |= tail
    if record.by_template:
        plain["madeFrom"] = None if record.base is None else str(record.base)
    if found.entry is not None:
        plain |= {"asOf": found.entry, "seq": record.seq, "changed": _format_time(record.at)}
    if follow:
        plain["aliases"] = list(found.aliases)
    if authority:
        plain["authority"] = None if found.authority is None else found.authority.to_json()
    print_json(plain)


def _print_authority(metadata: AuthorityMetadata | None) -> None:
    if metadata is None:
        print_message("The policy of its namespace does not ask records to say who is behind them.")
        return
    for what, moment_ in (("created", metadata.created), ("updated", metadata.updated)):
        typer.echo(f"{what}  {'not known' if moment_ is None else to_iso(moment_)}")
    for what, party in (("creator", metadata.creator), *[("owner", owner) for owner in metadata.owners]):
        text = "not known" if party is None else f"hdl:{printable(str(party.handle))}"
        remark = "" if party is None or party.verified else "  (not verified: it belongs to another service)"
        typer.echo(f"{what:<7}  {text}{remark}")


def _print_hints(found: _Result, tail: dict[str, str]) -> None:
    record = found.resolved
    if found.aliases:
        print_message(f"{printable(found.aliases[0])} is another name for {printable(str(record.registered))}.")
    if record.state is not State.NORMAL:
        print_message(f"The name is {_STATE_DESCRIPTIONS[record.state]}.")
    for what, text in tail.items():
        print_message(f"The {what} is for whoever serves the thing: {printable(text)}")
    if record.by_template:
        source = "" if record.base is None else f" from the record of {printable(str(record.base))}"
        print_message(f"It has no record of its own: a template made this{source}.")
    if found.entry is not None:
        what = "the latest that it was made from" if record.by_template else "the record"
        print_message(f"As of entry {found.entry}; {what} is that of entry {record.seq} ({_format_time(record.at)}).")


def _print_values(values: tuple[Value, ...]) -> None:
    wide = max(len(str(value.index)) for value in values)
    types = [printable(value.type) + ("" if value.is_public else "!private") for value in values]
    for value, type_ in zip(values, types, strict=True):
        typer.echo(f"{value.index:>{wide}}  {type_:<{max(map(len, types))}}  {format_data(value)}")


def _format_time(microseconds: int) -> str:
    moment_ = datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC)
    return moment_.isoformat(timespec="milliseconds").replace("+00:00", "Z")


commands: dict[str, Callable[..., None] | typer.Typer] = {"resolve": resolve}

"""`perseid create`, `set`, `add`, `remove`, `delete` and `list`.

The index of a value depends on the record, so the registry assigns it: see `perseid.registry.commands.records`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perseid.records.encoding import to_base64
from perseid.schema.common import HandleState

from ._arguments import (
    ActingAs,
    After,
    Directory,
    FromOption,
    HandleArgument,
    KeepHistory,
    Limit,
    Note,
    Prefix,
    UrlOption,
    ValueArguments,
    ValueOption,
    open_installation,
    parse_cursor,
    parse_handle,
    parse_values,
    print_changed,
    print_more,
    printable,
    read_record,
    require_version,
)
from ._common_options import NATIVE, REMOTE
from ._output import AsJson, print_json, print_message, print_text

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.client import Client
    from perseid.records.record import Value
    from perseid.registry.commands.records import (
        AddValues,
        CreateRecord,
        Delete,
        PartialValue,
        Remove,
        ReplaceRecord,
        SetValues,
    )
    from perseid.registry.context import Command
    from perseid.registry.results import ChangeResult
    from perseid.schema.queries import HandlePage, HandlesQuery
    from perseid.schema.records import CreatedRecord, RecordChanged, ValueInput

    from ._native import NativeTarget

    RecordCommand: TypeAlias = AddValues | CreateRecord | Delete | Remove | ReplaceRecord | SetValues
    ReadPage: TypeAlias = Callable[[str, HandlesQuery], HandlePage]

Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace an existing record; it keeps its administrators unless you name others."),
]
ReuseDeleted: TypeAlias = Annotated[bool, typer.Option("--reuse-deleted", help="Use a handle that was deleted.")]
PreserveDates: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--preserve-dates",
        help="Keep the creation date and the timestamps of the values (server administrators only).",
    ),
]
Indexes: TypeAlias = Annotated[list[int], typer.Argument(metavar="INDEX...", help="The indexes of the values.", min=1)]


def create(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    url: UrlOption = None,
    value: ValueOption = None,
    record: FromOption = None,
    overwrite: Overwrite = False,
    reuse_deleted: ReuseDeleted = False,
    preserve_dates: PreserveDates = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Create a record under a handle that you choose, and print the handle when it is durable.

    Values without an index get a free one: from 1, HS_ADMIN from 100. Values that the policy requires (administrators,
    creation date, creator) are added automatically. A handle that exists or was deleted is refused.

    With --overwrite, the whole record is replaced. It keeps its administrators unless you name others with HS_ADMIN
    values; to have none, remove these values with `perseid remove`.

    With --preserve-dates, a record from another server (`--from`) keeps its dates; the entry of the ledger has the
    current time, the interface `import` and your --note. Only server administrators can do this.

    For example:
        perseid create 2000.01/0123456789ABCDEF0123456789ABCDEF --url https://example.org/1
        perseid create 102.100.272/BCDFGHJKH --value URL=https://example.org/2 --value 5:EMAIL=help@example.org
        perseid create 102.100.272/BCDFGHJKH --url https://example.org/3 --overwrite --json
    """
    command = create_command(handle, url, value, record, overwrite, reuse_deleted, preserve_dates)
    print_changed(_execute(command, directory, acting_as, note), json)


def set_(  # noqa: PLR0913 - options
    handle: HandleArgument,
    value: ValueArguments = None,
    *,
    record: FromOption = None,
    if_version: Annotated[
        int | None,
        typer.Option(
            "--if-version", metavar="SEQ", min=1, help="Only if the latest version of the record is this entry."
        ),
    ] = None,
    keep_history: KeepHistory = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Set values of a record, or replace the whole record with --from.

    A value with an index replaces the one at that index. Without an index it replaces the only value of its type, or is
    added if there is none. Other values and the TTL are unchanged. A reserved handle has no record yet: create it with
    `perseid create`. If a public value becomes private
    (`TYPE!private=DATA`), its earlier versions are hidden as well; --keep-history keeps them public.

    A whole record replaces all values, except for those that the policy requires and, if it names no administrators,
    the administrators. With --if-version, the command fails if somebody else has changed the record since you read it;
    `perseid resolve --json` prints the version as `seq`.

    For example:
        perseid set 102.100.272/8RBZF0DQH URL=https://example.org/authority
        perseid set 102.100.272/8RBZF0DQH URL=https://example.org/policy 7:EMAIL!private=someone@example.org
    """
    command = set_command(handle, value, record)
    print_changed(_execute(command, directory, acting_as, note, if_version, keep_history=keep_history), json)


def add(
    handle: HandleArgument,
    value: ValueArguments = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add values to a record. Existing values are unchanged.

    For example:
        perseid add 102.100.272/8RBZF0DQH URL=https://example.org/authority EMAIL=policy@pilin.net.au
        perseid add 102.100.272/8RBZF0DQH HS_ADMIN=300:0.NA/102.100.272:add_value,modify_value
    """
    print_changed(_execute(add_command(handle, value), directory, acting_as, note), json)


def remove(
    handle: HandleArgument,
    index: Indexes,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Remove values from a record, by index. They stay in the history.

    For example:
        perseid remove 102.100.272/0N8J991QH 2
    """
    from perseid.registry.commands.records import Remove  # noqa: PLC0415 - see above

    print_changed(_execute(Remove(parse_handle(handle), tuple(index)), directory, acting_as, note), json)


def delete(
    handle: HandleArgument,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Delete a record, if the policy of the namespace allows it. The handle is not reused by default.

    Prefer `perseid tombstone`, which tells readers why the resource is gone and what to use instead.

    For example:
        perseid delete 102.100.TYPE/LINK.WORK
    """
    from perseid.registry.commands.records import Delete  # noqa: PLC0415 - see above

    print_changed(_execute(Delete(parse_handle(handle)), directory, acting_as, note), json)


def list_(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    state: Annotated[
        HandleState | None,
        typer.Option("--state", metavar="|".join(HandleState), help="Only handles in this state, without the state."),
    ] = None,
    starts_with: Annotated[
        str, typer.Option("--starts-with", metavar="TEXT", help="Only handles whose suffix starts with this text.")
    ] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Include deleted handles.")] = False,
    limit: Limit = None,
    after: After = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the handles of a namespace in alphabetical order, one on each line. By default there is no limit.

    The state follows the handle unless it is published. With `--as`, the identity needs permission LIST_HANDLES, or a
    policy that opens the list (`who_may_list`); then it sees published handles, tombstones and handles that it can
    read. A closed list is refused: `perseid find --prefix PREFIX --owner HANDLE` finds what an identity owns.

    For example:
        perseid list 102.100.272
        perseid list 102.100.272 --state published
        perseid list 102.100.272 --starts-with 2
        perseid list 2000.01 --limit 2 --json
    """
    from perseid.registry.queries.paging import MAX_PAGE  # noqa: PLC0415 - see above
    from perseid.schema.queries import HandlesQuery  # noqa: PLC0415

    connect_native = NATIVE.get()
    if connect_native is not None:
        _list_natively(connect_native, prefix, limit, json, selects=bool(state or starts_with or deleted or after))
        return
    with _open_lists(directory, acting_as) as read_page:
        cursor, remaining = after, limit
        while remaining != 0:
            size = MAX_PAGE if remaining is None else min(remaining, MAX_PAGE)
            query = HandlesQuery(size, cursor or "", state=state, deleted=deleted, starts_with=starts_with)
            page = read_page(prefix, query)
            for item in page.handles:
                if json:
                    print_json(item)
                else:
                    shown = state is None and item.state != HandleState.PUBLISHED
                    label = "deleted" if item.state == "absent" else item.state
                    print_text(printable(item.handle) + (f"  {label}" if shown else ""))
            cursor = page.next
            if cursor is None:
                return
            remaining = None if remaining is None else remaining - len(page.handles)
    print_more(cursor)


def _list_natively(
    connect: "Callable[[], NativeTarget]", prefix: str, limit: int | None, json: bool, *, selects: bool
) -> None:
    """List the handles as the native protocol does: all of them, without their states."""
    from perseid.schema.queries import HandleSummary  # noqa: PLC0415 - see above

    from ._native import UNKNOWN_STATE, refuse_native  # noqa: PLC0415

    if selects:
        raise refuse_native("--state, --starts-with, --deleted and --after")
    count = 0

    def show(handle: str) -> None:
        nonlocal count
        count += 1
        if limit is not None and count > limit:
            return
        if json:
            print_json(HandleSummary(handle, UNKNOWN_STATE, 0))
        else:
            print_text(printable(handle))

    with connect() as target:
        target.visit_handles(prefix, show)
    if limit is not None and count > limit:
        print_message(f"There are {count - limit:,} more results.")


@contextmanager
def _open_lists(directory: Path | None, acting_as: str | None) -> "Iterator[ReadPage]":
    """Open what is listed, and yield how to read a page after a cursor."""
    connect = REMOTE.get()
    if connect is not None:
        from perseid.client.api import Client  # noqa: PLC0415

        def read_remote(prefix: str, query: "HandlesQuery") -> "HandlePage":
            request = Client.list.request(client, prefix)
            return client.send(dataclasses.replace(request, query=query))

        with connect() as client:
            yield read_remote
        return
    from perseid.registry.queries.listing import list_handles  # noqa: PLC0415 - see above
    from perseid.registry.responses import to_summary  # noqa: PLC0415
    from perseid.schema.queries import HandlePage  # noqa: PLC0415

    def read_local(prefix: str, query: "HandlesQuery") -> "HandlePage":
        last = parse_cursor(query.cursor or None)
        with session.registry.snapshot() as snapshot:
            page = list_handles(
                snapshot,
                session.identity,
                prefix,
                last,
                query.limit,
                state=query.state,
                deleted=query.deleted,
                starts_with=query.starts_with,
            )
        return HandlePage([to_summary(item) for item in page.items], str(page.last) if page.more else None)

    with open_installation(directory, acting_as) as session:
        yield read_local


# Changes


def _execute(
    command: "RecordCommand",
    directory: Path | None,
    acting_as: str | None,
    note: str,
    if_version: int | None = None,
    *,
    keep_history: bool = False,
) -> "ChangeResult | RecordChanged | CreatedRecord":
    """Execute a command on an installation or on a server."""
    connect_native = NATIVE.get()
    if connect_native is not None:
        with connect_native() as target:
            return target.execute(command, note, if_version, keep_history=keep_history)
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            return _send(client, command, note, if_version, keep_history=keep_history)
    whole: Command[ChangeResult] = command
    if if_version is not None:
        whole = require_version(command, command.handle, if_version)
    with open_installation(directory, acting_as) as session:
        return session.do(whole, note, keep_history=keep_history)


def _send(
    client: "Client", command: "RecordCommand", note: str, if_version: int | None, *, keep_history: bool
) -> "RecordChanged | CreatedRecord":
    """Send a command to a server as the request that means the same."""
    from perseid.registry.commands import records as commands_  # noqa: PLC0415

    handle = str(command.handle)
    match command:
        case commands_.AddValues():
            return client.add(handle, to_inputs(command.values), note=note)
        case commands_.SetValues():
            values = to_inputs(command.values)
            return client.set(handle, values, keep_history=keep_history, if_version=if_version, note=note)
        case commands_.ReplaceRecord():
            values = to_inputs(command.complete)
            return client.replace(handle, values, keep_history=keep_history, if_version=if_version, note=note)
        case commands_.Remove():
            return client.remove(handle, command.indexes, note=note)
        case commands_.Delete():
            return client.delete(handle, note=note)
    return client.create(
        handle,
        to_inputs((*command.complete, *command.values)),
        reuse_deleted=command.reuse_deleted,
        preserve_dates=command.preserve_dates,
        overwrite=command.overwrite,
        note=note,
    )


def to_inputs(values: "Sequence[PartialValue | Value]") -> "list[ValueInput]":
    """The values as a request has them."""
    import msgspec  # noqa: PLC0415 - see above

    from perseid.records.json_form import value_to_json  # noqa: PLC0415
    from perseid.records.record import Value  # noqa: PLC0415
    from perseid.schema.records import Data, ValueInput  # noqa: PLC0415

    return [
        msgspec.convert(value_to_json(value), ValueInput)
        if isinstance(value, Value)
        else ValueInput(
            value.type,
            Data("base64", to_base64(value.data)),
            value.index,
            None if value.permissions is None else f"{value.permissions:04b}",
        )
        for value in values
    ]


# Shared with `explain`


def create_command(
    handle: str,
    url: str | None,
    value: list[str] | None,
    record: str | None,
    overwrite: bool = False,
    reuse_deleted: bool = False,
    preserve_dates: bool = False,
) -> "CreateRecord":
    """Return the command of `create`."""
    from perseid.registry.commands.records import CreateRecord  # noqa: PLC0415 - see above

    whole = () if record is None else read_record(record)
    values = parse_values(value, url)
    return CreateRecord(
        parse_handle(handle, new=not overwrite), values, whole, overwrite, reuse_deleted, preserve_dates=preserve_dates
    )


def set_command(handle: str, value: list[str] | None, record: str | None) -> "SetValues | ReplaceRecord":
    """Return the command of `set`."""
    from perseid.registry.commands.records import ReplaceRecord, SetValues  # noqa: PLC0415 - see above

    if bool(value) == (record is not None):
        raise typer.BadParameter("use either values or a whole record with --from FILE")
    if record is None:
        return SetValues(parse_handle(handle), parse_values(value))
    return ReplaceRecord(parse_handle(handle), read_record(record))


def add_command(handle: str, value: list[str] | None) -> "AddValues":
    """Return the command of `add`."""
    from perseid.registry.commands.records import AddValues  # noqa: PLC0415 - see above

    if not value:
        raise typer.BadParameter("at least one value is required, as in URL=https://example.org/")
    return AddValues(parse_handle(handle), parse_values(value))


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "create": create,
    "set": set_,
    "add": add,
    "remove": remove,
    "delete": delete,
    "list": list_,
}

"""`perseid create`, `set`, `add`, `remove`, `delete` and `list`.

The index of a value depends on the record, so the registry assigns it: see `perseid.registry.commands.records`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

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
from ._output import AsJson, print_json

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.registry.commands.records import AddValues, CreateRecord, ReplaceRecord, SetValues
    from perseid.registry.context import Command
    from perseid.registry.results import ChangeResult

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
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note), json)


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
    command: Command[ChangeResult] = set_command(handle, value, record)
    if if_version is not None:
        command = require_version(command, parse_handle(handle), if_version)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note, keep_history=keep_history), json)


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
    command = add_command(handle, value)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note), json)


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

    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Remove(parse_handle(handle), tuple(index)), note), json)


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

    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Delete(parse_handle(handle)), note), json)


def list_(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    state: Annotated[
        HandleState | None,
        typer.Option("--state", metavar="|".join(HandleState), help="Only handles in this state, without the state."),
    ] = None,
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
        perseid list 2000.01 --limit 2 --json
    """
    from perseid.ledger.log.entry import State  # noqa: PLC0415 - see above
    from perseid.registry.queries.listing import list_handles  # noqa: PLC0415
    from perseid.registry.queries.paging import MAX_PAGE  # noqa: PLC0415
    from perseid.registry.responses import to_summary  # noqa: PLC0415

    with open_installation(directory, acting_as) as session:
        last, remaining, more = parse_cursor(after), limit, True
        while more and remaining != 0:
            size = MAX_PAGE if remaining is None else min(remaining, MAX_PAGE)
            with session.registry.snapshot() as snapshot:
                page = list_handles(snapshot, session.identity, prefix, last, size, state=state, deleted=deleted)
            for item in page.items:
                if json:
                    print_json(to_summary(item))
                else:
                    shown = state is None and item.state is not State.NORMAL
                    label = "deleted" if item.state is State.ABSENT else item.state.label
                    typer.echo(printable(item.handle) + (f"  {label}" if shown else ""))
            last, more = page.last, page.more
            remaining = None if remaining is None else remaining - len(page.items)
    if more:
        print_more(last)


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

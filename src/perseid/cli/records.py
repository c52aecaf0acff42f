"""Commands about records: `create`, `set`, `add`, `remove`, `delete`, `list`.

Where a value is to stand depends on what is there, so the values of a command get their indexes inside the operation:
see `perseid.registry.commands.records`.
"""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from perseid.registry.commands.records import AddValues, CreateRecord, Delete, Remove, ReplaceRecord, SetValues
from perseid.registry.queries.history import MAX_PAGE
from perseid.registry.queries.listing import list_handles

from ._output import AsJson, print_json
from ._place import ActingAs, Directory, KeepHistory, Name, Note, Prefix, open_installation, parse_handle, print_changed
from ._values import FromOption, UrlOption, ValueArguments, ValueOption, parse_values, printable, read_record

Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace a record that exists; its administrators stay unless you name others."),
]
ReuseDeleted: TypeAlias = Annotated[bool, typer.Option("--again", help="Use a name again that was deleted.")]
Indexes: TypeAlias = Annotated[list[int], typer.Argument(metavar="INDEX...", help="The indexes of the values.", min=1)]


def create(  # noqa: PLR0913 - options
    handle: Name,
    *,
    url: UrlOption = None,
    value: ValueOption = None,
    record: FromOption = None,
    overwrite: Overwrite = False,
    again: ReuseDeleted = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Make a record under a name that you chose, and print the name when it is durable.

    Values without an index get one, from 1 on, HS_ADMIN from 100 on. What the namespace's policy adds (administrators,
    date of creation, creator) comes by itself. A name that exists, or was deleted, is refused unless you say so.

    With --overwrite a record is replaced as a whole, but for its administrators: they stay unless you name others with
    HS_ADMIN values. To have none, remove them by their indexes: `perseid remove`.

    For example:
        perseid create 2000.01/0123456789ABCDEF0123456789ABCDEF --url https://example.org/1
        perseid create 102.100.272/BCDFGHJKH --value URL=https://example.org/2 --value 5:EMAIL=help@example.org
        perseid create 102.100.272/BCDFGHJKH --url https://example.org/3 --overwrite --json
    """
    command = create_command(handle, url, value, record, overwrite, again)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note), json)


def set_(  # noqa: PLR0913 - options
    handle: Name,
    value: ValueArguments = None,
    *,
    record: FromOption = None,
    keep_past: KeepHistory = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Put values in the place of others, or replace the whole record with --from.

    A value with an index goes there. Without one it takes the place of the only value of its type, or is added where
    there is none. What you do not mention stays: other values, and how long caches keep this one. A value that was
    public and becomes private (`TYPE!private=DATA`) is hidden in the past as well, unless you say --keep-past.

    A whole record leaves nothing of the one before but what its namespace keeps in every record, and its administrators
    if it names none.

    For example:
        perseid set 102.100.272/8RBZF0DQH URL=https://example.org/authority
        perseid set 102.100.272/8RBZF0DQH URL=https://example.org/policy 7:EMAIL!private=someone@example.org
    """
    command = set_command(handle, value, record)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note, keep_past=keep_past), json)


def add(
    handle: Name,
    value: ValueArguments = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add values to a record; nothing that is there changes.

    For example:
        perseid add 102.100.272/8RBZF0DQH URL=https://example.org/authority EMAIL=policy@pilin.net.au
        perseid add 102.100.272/8RBZF0DQH HS_ADMIN=300:0.NA/102.100.272:add_value,modify_value
    """
    command = add_command(handle, value)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(command, note), json)


def remove(
    handle: Name,
    index: Indexes,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Remove values from a record, by their indexes; history keeps them.

    For example:
        perseid remove 102.100.272/0N8J991QH 2
    """
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Remove(parse_handle(handle), tuple(index)), note), json)


def delete(
    handle: Name,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Delete a record, where the namespace's policy allows it. The name is not given a second time.

    A thing that is gone should rather leave a tombstone, which says why and what to use instead: `perseid tombstone`.

    For example:
        perseid delete 102.100.TYPE/LINK.WORK
    """
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Delete(parse_handle(handle)), note), json)


def list_(
    prefix: Prefix,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also names that were deleted.")] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the names of a namespace, one a line, in the order of their letters; there is no limit.

    For example:
        perseid list 102.100.272
        perseid list 2000.01 --json
    """
    with open_installation(directory, acting_as) as session:
        after, more = 0, True
        while more:
            with session.registry.snapshot() as snapshot:
                page = list_handles(snapshot, session.identity, prefix, after, MAX_PAGE, deleted=deleted)
            for item in page.items:
                if json:
                    print_json({"handle": item.handle, "state": item.state.name.lower(), "seq": item.seq})
                else:
                    typer.echo(printable(item.handle))
            after, more = page.last, page.more


# What `explain` shares with the commands


def create_command(
    handle: str,
    url: str | None,
    value: list[str] | None,
    record: str | None,
    overwrite: bool = False,
    again: bool = False,
) -> CreateRecord:
    """What `create` asks for."""
    whole = () if record is None else read_record(record)
    return CreateRecord(parse_handle(handle, new=True), parse_values(value, url), whole, overwrite, again)


def set_command(handle: str, value: list[str] | None, record: str | None) -> SetValues | ReplaceRecord:
    """What `set` asks for."""
    if bool(value) == (record is not None):
        raise typer.BadParameter("give either values or a whole record with --from")
    if record is None:
        return SetValues(parse_handle(handle), parse_values(value))
    return ReplaceRecord(parse_handle(handle), read_record(record))


def add_command(handle: str, value: list[str] | None) -> AddValues:
    """What `add` asks for."""
    if not value:
        raise typer.BadParameter("give at least one value, as in URL=https://example.org/")
    return AddValues(parse_handle(handle), parse_values(value))


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "create": create,
    "set": set_,
    "add": add,
    "remove": remove,
    "delete": delete,
    "list": list_,
}

"""`perseid type`: register, list and show types. A type is a handle that resolves to its definition."""

from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from perseid.names.characters import fold
from perseid.records.data_types import Definition
from perseid.records.encoding import parse_json
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.commands.records import Create
from perseid.registry.policy.types import RegisteredType, definition_values
from perseid.registry.queries.listing import list_handles
from perseid.registry.queries.namespaces import get_type, list_types
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.responses import to_type
from perseid.registry.results import Refused

from ._commands import Group, register_command
from ._installation import (
    ActingAs,
    Directory,
    HandleArgument,
    OpenInstallation,
    open_installation,
    parse_handle,
    parse_reference,
    print_changed,
)
from ._output import AsJson, print_fields, print_json, print_message
from ._values import printable, read_text

app = typer.Typer(
    cls=Group,
    help="Register, list and show types of values. A type is a handle that resolves to its definition.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "add")
def add(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    definition: Annotated[str, typer.Option("--definition", metavar="TEXT", help="What values of the type mean.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="The name of the type. Default: the suffix.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="A regular expression (RE2) that the whole data must match."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE", help="A JSON Schema (2020-12) for data in JSON; - is standard input."),
    ] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="DATA", help="An example of the data; it must be valid.")
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Register a type: create a record with its definition, and print the handle.

    With the policy `registered_types = true`, a namespace accepts only values of registered types; with `validate_types
    = true`, their data must match the pattern or the schema. docs/reference/types.md lists the limits of schemas. To
    change a definition later: `perseid set HANDLE PERSEID_TYPE=@FILE`.

    For example:
        perseid type add 102.100.TYPE/SCALE --definition "A map's scale" --pattern "1:[1-9][0-9]*" --example 1:25000
        perseid type add 102.100.TYPE/SHEET --definition "The sheet of a map" --name Sheet --json
    """
    new_handle = parse_handle(handle, new=True)
    if pattern is not None and schema is not None:
        raise typer.BadParameter("use either --pattern or --schema, not both", param_hint="--pattern")
    plain = None if schema is None else parse_json(read_text(schema))
    parsed = Definition.make(name or new_handle.suffix, definition, pattern=pattern, schema=plain, example=example)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Create(new_handle, definition_values(parsed))), json)


@register_command(app, "list")
def list_(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only types of this prefix.", show_default=False)
    ] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the types that are registered here, one on each line, with their names.

    A type is a record with a value of type `PERSEID_TYPE`. This requires permission to list the handles of a namespace.

    For example:
        perseid type list
        perseid type list 102.100.TYPE --json
    """
    with open_installation(directory, acting_as) as session:
        for registered in map(to_type, _find_types(session, prefix)):
            if json:
                print_json(registered)
            else:
                typer.echo(f"{printable(registered.handle)}  {printable(registered.name)}")


@register_command(app, "show")
def show(handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show a type: its name, meaning and data format.

    For example:
        perseid type show 102.100.TYPE/CREATION_DATE
        perseid type show 102.100.TYPE/CREATOR --json
    """
    requested = parse_reference(handle).handle
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        registered = get_type(snapshot, requested)
    response = to_type(registered)
    if json:
        print_json(response)
        return
    fields = msgspec.structs.asdict(response) | {"seq": None}
    if registered.definition is not None:
        fields["schema"] = registered.definition.schema
    print_fields({name: printable(str(text)) for name, text in fields.items() if text})


def _find_types(session: OpenInstallation, prefix: str) -> list[RegisteredType]:
    """Find the types of a namespace, or of all that the caller can list."""
    with session.registry.snapshot() as snapshot:
        for each in () if prefix else namespaces(snapshot.reader):
            try:
                list_handles(snapshot, session.identity, each, limit=1)
            except Refused as refused:
                print_message(f"Not listed: {printable(each)}: {refused.reason}")
        found: list[RegisteredType] = []
        after: str | None = None
        while True:
            page, after = list_types(snapshot, session.identity, prefix, after, MAX_PAGE)
            found += page
            if after is None:
                return sorted(found, key=lambda each: fold(str(each.handle)))


commands: dict[str, Callable[..., None] | typer.Typer] = {"type": app}

"""`perseid type`: register types, and see what they are. A type is a handle that resolves to its definition."""

from collections.abc import Callable
from typing import Annotated

import typer

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject, parse_json
from perseid.records.type_definition import Definition
from perseid.records.types import DEFINITION
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.commands.records import Create
from perseid.registry.context import not_found
from perseid.registry.policy.types import RegisteredType, definition_values, get_registered_type
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.history import MAX_PAGE
from perseid.registry.queries.listing import list_handles
from perseid.registry.results import Refused

from ._failures import NOT_FOUND
from ._loading import Group, register_command
from ._output import AsJson, print_fields, print_json, print_message
from ._place import (
    ActingAs,
    Directory,
    Name,
    OpenInstallation,
    open_installation,
    parse_handle,
    parse_reference,
    print_changed,
)
from ._values import printable, read_text

app = typer.Typer(
    cls=Group,
    help="Register types of values, and see what they are. A type is a handle that resolves to its definition.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "add")
def add(  # noqa: PLR0913 - options
    handle: Name,
    *,
    definition: Annotated[
        str, typer.Option("--definition", metavar="TEXT", help="What values of the type mean, for people.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="What people call the type. Default: the suffix.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="A regular expression (RE2) that the whole data matches."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE", help="A JSON Schema (2020-12) for data in JSON; - is standard input."),
    ] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="DATA", help="Data of the type. It is checked like any other.")
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Register a type: make its record, with a definition for people and programs, and print its name.

    A namespace whose policy says `registered_types = true` takes values of registered types only; with `validate_types
    = true` their data has to match the pattern, or keep the schema. What a schema may hold, and how large it may be,
    stands in docs/reference/types.md. To change a definition later: `perseid set HANDLE PERSEID_TYPE=@FILE`.

    For example:
        perseid type add 102.100.TYPE/SCALE --definition "A map's scale" --pattern "1:[1-9][0-9]*" --example 1:25000
        perseid type add 102.100.TYPE/SHEET --definition "The sheet of a map" --name Sheet --json
    """
    found = parse_handle(handle, new=True)
    if pattern is not None and schema is not None:
        raise typer.BadParameter("give a pattern or a schema, not both", param_hint="--pattern")
    plain = None if schema is None else parse_json(read_text(schema))
    said = Definition.make(name or found.suffix, definition, pattern=pattern, schema=plain, example=example)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Create(found, definition_values(said))), json)


@register_command(app, "list")
def list_(
    prefix: Annotated[str | None, typer.Argument(metavar="PREFIX", help="Only types of this prefix.")] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the types that are registered here, one a line, with what people call them.

    A type is a record with a definition (a value of the type `PERSEID_TYPE`). It takes the right to see the names of
    a namespace together.

    For example:
        perseid type list
        perseid type list 102.100.TYPE --json
    """
    with open_installation(directory, acting_as) as session:
        for found in _find_types(session, prefix):
            if json:
                print_json(_to_json(found))
            else:
                typer.echo(f"{printable(str(found.handle))}  {printable(_type_name(found))}")


@register_command(app, "show")
def show(handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show what a type is: its name, what values of it mean, what their data looks like.

    For example:
        perseid type show 102.100.TYPE/CREATION_DATE
        perseid type show 102.100.TYPE/CREATOR --json
    """
    requested = parse_reference(handle).handle
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        stored = snapshot.stored(requested)
        if not stored.is_public:
            raise not_found(stored)
        found = get_registered_type(stored)
    if found is None:
        print_message(f"perseid: {printable(str(requested))} is no type: its record has no definition")
        print_message("A type has a value of the type PERSEID_TYPE, or at least a DESC.")
        raise typer.Exit(NOT_FOUND)
    plain = _to_json(found)
    if json:
        print_json(plain)
        return
    definition = found.definition
    words = plain if definition is None else plain | {"schema": definition.schema}
    print_fields({what: printable(str(text)) for what, text in words.items() if text is not None and what != "seq"})


def _find_types(session: OpenInstallation, prefix: str | None) -> list[RegisteredType]:
    """The types of a namespace, or of all whose names may be seen together; by the index of types."""
    if prefix is not None:
        _check_listing(session, prefix)
        bare = fold(prefix).removeprefix(f"{PREFIX_OF_PREFIXES}/")
        return [each for each in _all_types(session) if fold(each.handle.prefix) == bare]
    with session.registry.snapshot() as snapshot:
        prefixes = list(namespaces(snapshot.reading))
    for each in prefixes:
        try:
            _check_listing(session, each)
        except Refused as refused:
            print_message(f"Not listed: {printable(each)}: {refused.reason}")
    return _all_types(session)


def _check_listing(session: OpenInstallation, prefix: str) -> None:
    """Refuse whoever may not see the names of a namespace together."""
    with session.registry.snapshot() as snapshot:
        list_handles(snapshot, session.identity, prefix, limit=1)


def _all_types(session: OpenInstallation) -> list[RegisteredType]:
    found: list[RegisteredType] = []
    after: str | None = None
    while True:
        with session.registry.snapshot() as snapshot:
            page = find(snapshot, session.identity, Search(type=f"{DEFINITION}."), after, MAX_PAGE)
            names = [Handle.parse_lenient(item.handle) for item in page.items if item.state is State.NORMAL]
            types = [get_registered_type(snapshot.stored(name)) for name in names]
        found += [each for each in types if each is not None and (each.definition is not None or each.problem)]
        after = page.following
        if after is None:
            return sorted(found, key=lambda each: fold(str(each.handle)))


def _type_name(found: RegisteredType) -> str:
    return "" if found.definition is None else found.definition.name


def _to_json(found: RegisteredType) -> JsonObject:
    plain: JsonObject = {"handle": str(found.handle)}
    definition = found.definition
    if definition is None:
        plain |= {"description": found.description}
    else:
        plain |= {"name": definition.name, "description": definition.description}
        plain |= {"pattern": definition.pattern}
        plain |= {"schema": None if definition.schema is None else parse_json(definition.schema)}
        plain |= {"example": definition.example}
    plain |= {"problem": found.problem or _definition_problem(definition), "seq": found.seq}
    return {what: said for what, said in plain.items() if said is not None}


def _definition_problem(definition: Definition | None) -> str | None:
    """Why data cannot be checked against a definition that came to be elsewhere, or in another version."""
    try:
        if definition is not None:
            definition.check()
    except InvalidData as problem:
        return str(problem)
    return None


commands: dict[str, Callable[..., None] | typer.Typer] = {"type": app}

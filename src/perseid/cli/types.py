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
from perseid.registry.policy.types import Registered, definition_values, registered
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.history import MAX_PAGE
from perseid.registry.queries.listing import list_handles
from perseid.registry.results import Refused

from ._failures import NOT_FOUND
from ._loading import Group, command
from ._output import AsJson, hint, print_facts, print_json
from ._place import ActingAs, Directory, Name, Place, asked_for, named, opened, show_changed
from ._values import printable, read_text

app = typer.Typer(
    cls=Group,
    help="Register types of values, and see what they are. A type is a handle that resolves to its definition.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@command(app, "add")
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
    found = named(handle, new=True)
    if pattern is not None and schema is not None:
        raise typer.BadParameter("give a pattern or a schema, not both", param_hint="--pattern")
    plain = None if schema is None else parse_json(read_text(schema))
    said = Definition.make(name or found.suffix, definition, pattern=pattern, schema=plain, example=example)
    with opened(directory, acting_as) as place:
        show_changed(place.do(Create(found, definition_values(said))), json)


@command(app, "list")
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
    with opened(directory, acting_as) as place:
        for found in _types(place, prefix):
            if json:
                print_json(_plain(found))
            else:
                typer.echo(f"{printable(str(found.handle))}  {printable(_name(found))}")


@command(app, "show")
def show(handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show what a type is: its name, what values of it mean, what their data looks like.

    For example:
        perseid type show 102.100.TYPE/CREATION_DATE
        perseid type show 102.100.TYPE/CREATOR --json
    """
    asked = asked_for(handle).handle
    with opened(directory, acting_as) as place, place.registry.facts() as facts:
        held = facts.held(asked)
        if not held.is_public:
            raise not_found(held)
        found = registered(held)
    if found is None:
        hint(f"perseid: {printable(str(asked))} is no type: its record has no definition")
        hint("A type has a value of the type PERSEID_TYPE, or at least a DESC.")
        raise typer.Exit(NOT_FOUND)
    plain = _plain(found)
    if json:
        print_json(plain)
        return
    definition = found.definition
    words = plain if definition is None else plain | {"schema": definition.schema}
    print_facts({what: printable(str(text)) for what, text in words.items() if text is not None and what != "seq"})


def _types(place: Place, prefix: str | None) -> list[Registered]:
    """The types of a namespace, or of all whose names may be seen together; by the index of types."""
    if prefix is not None:
        _check_listed(place, prefix)
        bare = fold(prefix).removeprefix(f"{PREFIX_OF_PREFIXES}/")
        return [each for each in _every_type(place) if fold(each.handle.prefix) == bare]
    with place.registry.facts() as facts:
        prefixes = list(namespaces(facts.reading))
    for each in prefixes:
        try:
            _check_listed(place, each)
        except Refused as refused:
            hint(f"Not listed: {printable(each)}: {refused.reason}")
    return _every_type(place)


def _check_listed(place: Place, prefix: str) -> None:
    """Refuse whoever may not see the names of a namespace together."""
    with place.registry.facts() as facts:
        list_handles(facts, place.who, prefix, limit=1)


def _every_type(place: Place) -> list[Registered]:
    found: list[Registered] = []
    after: str | None = None
    while True:
        with place.registry.facts() as facts:
            page = find(facts, place.who, Search(type=f"{DEFINITION}."), after, MAX_PAGE)
            names = [Handle.keepable(item.handle) for item in page.items if item.state is State.NORMAL]
            types = [registered(facts.held(name)) for name in names]
        found += [each for each in types if each is not None and (each.definition is not None or each.problem)]
        after = page.following
        if after is None:
            return sorted(found, key=lambda each: fold(str(each.handle)))


def _name(found: Registered) -> str:
    return "" if found.definition is None else found.definition.name


def _plain(found: Registered) -> JsonObject:
    plain: JsonObject = {"handle": str(found.handle)}
    definition = found.definition
    if definition is None:
        plain |= {"description": found.description}
    else:
        plain |= {"name": definition.name, "description": definition.description}
        plain |= {"pattern": definition.pattern}
        plain |= {"schema": None if definition.schema is None else parse_json(definition.schema)}
        plain |= {"example": definition.example}
    plain |= {"problem": found.problem or _problem(definition), "seq": found.seq}
    return {what: said for what, said in plain.items() if said is not None}


def _problem(definition: Definition | None) -> str | None:
    """Why data cannot be checked against a definition that came to be elsewhere, or in another version."""
    try:
        if definition is not None:
            definition.check()
    except InvalidData as problem:
        return str(problem)
    return None


commands: dict[str, Callable[..., None] | typer.Typer] = {"type": app}

"""Types of values: a type is a handle that resolves to its definition."""

from typing import Annotated, Any, Final

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import parse_json
from perseid.records.patterns import MAX_PATTERN
from perseid.records.type_definition import Definition
from perseid.records.types import DEFINITION
from perseid.registry.access.permissions import shown
from perseid.registry.commands.records import Create
from perseid.registry.context import Context, not_found
from perseid.registry.policy.types import Registered, definition_values, registered
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.listing import list_handles
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import Known
from perseid.server.http.v1.problems import Wrong
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import HANDLE_STEP, About, Given, NextCursor, Note, Paging, Seq, Told
from perseid.server.http.v1.validation import Unfitting

CHAPTER: Final = Routes("Types", "Types of values. A type is a handle that resolves to its definition.")

Meaning = Annotated[str, About("What values of the type mean, for people.", min_length=1, max_length=10_000)]
Pattern = Annotated[str, About("A regular expression (RE2) that the whole data matches.", max_length=MAX_PATTERN)]
Example = Annotated[str, About("Data of the type.", max_length=10_000)]


class TypesQuery(Paging, frozen=True):
    """Which types are wanted."""

    prefix: Annotated[str, About("Only types of this prefix.", max_length=2_048, examples=["12345"])] = ""


class NewType(Given, frozen=True):
    """A type that is to be registered."""

    handle: Annotated[str, About("Its name.", min_length=1, max_length=4_096, examples=["12345/SCALE"])]
    description: Meaning
    name: Annotated[str, About("What people call it; the suffix if it is left out.", max_length=200)] = ""
    pattern: Annotated[Pattern | None, About("What its data looks like; not together with a schema.")] = None
    schema: Annotated[dict[str, Any] | bool | None, About("A JSON Schema (2020-12) for data in JSON.")] = None
    example: Annotated[Example | None, About("Data of the type; it is checked like any other.")] = None
    note: Note = ""


class TypeTold(Told, frozen=True):
    """A type that is registered."""

    handle: Annotated[str, About("Its name.", examples=["12345/SCALE"])]
    seq: Seq
    name: Annotated[str, About("What people call it.")] = ""
    description: Annotated[str, About("What values of it mean.")] = ""
    pattern: Annotated[str | None, About("A regular expression (RE2) that its data matches.")] = None
    schema: Annotated[Any, About("A JSON Schema that its data keeps, as JSON.")] = None
    example: Annotated[str | None, About("Data of the type.")] = None
    problem: Annotated[str, About("Why data cannot be checked against the definition, if so.")] = ""


class Types(Told, frozen=True):
    """Types that are registered here."""

    types: Annotated[list[TypeTold], About("The types of the page.")]
    next: NextCursor = None


class MadeType(Told, frozen=True):
    """A type that was registered."""

    handle: Annotated[str, About("Its name.", examples=["12345/SCALE"])]
    seq: Seq


@CHAPTER.add(
    "GET", "/types", "listTypes", "The types", answer=Types, query=TypesQuery, scope="find", problems=(401, 403)
)
async def list_types(call: ApiCall) -> Reply:
    """The types that are registered here: records with a definition, a value of the type `PERSEID_TYPE`.

    It takes the right to see the names of a namespace together; those of others are left out, unless a prefix is named.
    """
    asked, after = call.asked(TypesQuery), await call.after(str)

    def page(context: Context) -> tuple[list[TypeTold], str | None]:
        facts, who = context.facts, context.who
        if asked.prefix:
            list_handles(facts, who, asked.prefix, limit=1)  # refused, if they may not be seen together
        # Types are fewer than names, so they are found by what they are and not by where.
        found = find(facts, who, Search(type=f"{DEFINITION}."), after, asked.limit)
        names = [Handle.keepable(item.handle) for item in found.items if item.state is State.NORMAL]
        wanted = [name for name in names if not asked.prefix or fold(name.prefix) == fold(asked.prefix)]
        types = [registered(facts.held(name)) for name in wanted]
        told = [_told(each) for each in types if each is not None and (each.definition is not None or each.problem)]
        return told, found.following

    def tell(found: tuple[list[TypeTold], str | None]) -> Reply:
        cursor = call.sealed(found[1])
        return Reply(Types(found[0], cursor), next=cursor)

    return await call.tell(page, tell)


@CHAPTER.add(
    "GET",
    "/types/{handle}",
    "showType",
    "A type",
    answer=TypeTold,
    problems=(404,),
    parameters={"handle": HANDLE_STEP},
)
async def show_type(call: ApiCall) -> Reply:
    """What a type is: its name, what values of it mean, what their data looks like."""
    handle = call.handle()

    def read(context: Context) -> Registered | None:
        held = context.facts.held(handle)
        if not held.is_public:
            raise not_found(held)
        return registered(held)

    def tell(found: Registered | None) -> Reply:
        if found is None:
            advice = "a type has a value of the type PERSEID_TYPE, or at least a DESC"
            raise Wrong("not-found", f"{shown(handle)} is no type: its record has no definition", advice)
        return Reply(_told(found), name=str(handle))

    return await call.tell(read, tell, handle)


@CHAPTER.add(
    "POST",
    "/types",
    "addType",
    "Register a type",
    body=NewType,
    answer=MadeType,
    status=201,
    scope="create",
    creates=True,
    problems=(401, 403, 409, 422),
)
async def add_type(call: ApiCall) -> Reply:
    """Register a type: make its record, with a definition for people and programs.

    A namespace whose policy says `registered_types = true` takes values of registered types only; with `validate_types
    = true` their data has to match the pattern, or keep the schema.
    """
    new = call.given(NewType)
    handle = call.named(new.handle, new=True)
    if new.pattern is not None and new.schema is not None:
        raise Unfitting("there is a pattern and a schema too", "$.pattern", "give a pattern or a schema, not both")
    said = Definition.make(
        new.name or handle.suffix,
        new.description,
        pattern=new.pattern,
        schema=new.schema,
        example=new.example,
    )
    known = Known(Create(handle, definition_values(said)), f"create {shown(handle)}")
    return await call.create(
        lambda _: known,
        lambda made: Reply(MadeType(str(made.handle), made.seq), 201, name=str(made.handle)),
        about=handle,
        note=new.note,
    )


def _told(found: Registered) -> TypeTold:
    definition = found.definition
    if definition is None:
        return TypeTold(str(found.handle), found.seq, description=found.description or "", problem=found.problem)
    return TypeTold(
        str(found.handle),
        found.seq,
        definition.name,
        definition.description,
        definition.pattern,
        None if definition.schema is None else parse_json(definition.schema),
        definition.example,
        _problem(definition),
    )


def _problem(definition: Definition) -> str:
    """Why data cannot be checked against a definition that came to be elsewhere, or in another version."""
    try:
        definition.check()
    except InvalidData as problem:
        return str(problem)
    return ""

"""Types of values: a type is a handle that resolves to its definition."""

from typing import Annotated, Any, Final

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import parse_json
from perseid.records.patterns import MAX_PATTERN_LENGTH
from perseid.records.type_definition import Definition
from perseid.records.types import DEFINITION
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.records import Create
from perseid.registry.context import Context, not_found
from perseid.registry.policy.types import RegisteredType, definition_values, get_registered_type
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.listing import list_handles
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import RequireIdentity
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import (
    HANDLE_PARAMETER,
    Doc,
    NextCursor,
    Note,
    Paging,
    RequestBody,
    ResponseBody,
    Seq,
)
from perseid.server.http.v1.validation import InvalidParameter

SECTION: Final = Routes("Types", "Types of values. A type is a handle that resolves to its definition.")

Description = Annotated[str, Doc("What values of the type mean, for people.", min_length=1, max_length=10_000)]
Pattern = Annotated[str, Doc("A regular expression (RE2) that the whole data matches.", max_length=MAX_PATTERN_LENGTH)]
Example = Annotated[str, Doc("Data of the type.", max_length=10_000)]


class TypesQuery(Paging, frozen=True):
    """Which types are wanted."""

    prefix: Annotated[str, Doc("Only types of this prefix.", max_length=2_048, examples=["12345"])] = ""


class NewType(RequestBody, frozen=True):
    """A type that is to be registered."""

    handle: Annotated[str, Doc("Its name.", min_length=1, max_length=4_096, examples=["12345/SCALE"])]
    description: Description
    name: Annotated[str, Doc("What people call it; the suffix if it is left out.", max_length=200)] = ""
    pattern: Annotated[Pattern | None, Doc("What its data looks like; not together with a schema.")] = None
    schema: Annotated[dict[str, Any] | bool | None, Doc("A JSON Schema (2020-12) for data in JSON.")] = None
    example: Annotated[Example | None, Doc("Data of the type; it is checked like any other.")] = None
    note: Note = ""


class TypeResponse(ResponseBody, frozen=True):
    """A type that is registered."""

    handle: Annotated[str, Doc("Its name.", examples=["12345/SCALE"])]
    seq: Seq
    name: Annotated[str, Doc("What people call it.")] = ""
    description: Annotated[str, Doc("What values of it mean.")] = ""
    pattern: Annotated[str | None, Doc("A regular expression (RE2) that its data matches.")] = None
    schema: Annotated[Any, Doc("A JSON Schema that its data keeps, as JSON.")] = None
    example: Annotated[str | None, Doc("Data of the type.")] = None
    problem: Annotated[str, Doc("Why data cannot be checked against the definition, if so.")] = ""


class TypePage(ResponseBody, frozen=True):
    """Types that are registered here."""

    types: Annotated[list[TypeResponse], Doc("The types of the page.")]
    next: NextCursor = None


class CreatedType(ResponseBody, frozen=True):
    """A type that was registered."""

    handle: Annotated[str, Doc("Its name.", examples=["12345/SCALE"])]
    seq: Seq


@SECTION.add(
    "GET", "/types", "listTypes", "The types", response=TypePage, query=TypesQuery, scope="find", problems=(401, 403)
)
async def list_types(call: ApiCall) -> Reply:
    """The types that are registered here: records with a definition, a value of the type `PERSEID_TYPE`.

    It takes the right to see the names of a namespace together; those of others are left out, unless a prefix is named.
    """
    asked, after = call.asked(TypesQuery), await call.after(str)

    def page(context: Context) -> tuple[list[TypeResponse], str | None]:
        snapshot, identity = context.snapshot, context.identity
        if asked.prefix:
            list_handles(snapshot, identity, asked.prefix, limit=1)  # refused, if they may not be seen together
        # Types are fewer than names, so they are found by what they are and not by where.
        found = find(snapshot, identity, Search(type=f"{DEFINITION}."), after, asked.limit)
        names = [Handle.parse_lenient(item.handle) for item in found.items if item.state is State.NORMAL]
        wanted = [name for name in names if not asked.prefix or fold(name.prefix) == fold(asked.prefix)]
        types = [get_registered_type(snapshot.stored(name)) for name in wanted]
        result = [
            _to_response(each) for each in types if each is not None and (each.definition is not None or each.problem)
        ]
        return result, found.following

    def respond(found: tuple[list[TypeResponse], str | None]) -> Reply:
        cursor = call.seal(found[1])
        return Reply(TypePage(found[0], cursor), next=cursor)

    return await call.respond(page, respond)


@SECTION.add(
    "GET",
    "/types/{handle}",
    "showType",
    "A type",
    response=TypeResponse,
    problems=(404,),
    parameters={"handle": HANDLE_PARAMETER},
)
async def show_type(call: ApiCall) -> Reply:
    """What a type is: its name, what values of it mean, what their data looks like."""
    handle = call.handle()

    def read(context: Context) -> RegisteredType | None:
        stored = context.snapshot.stored(handle)
        if not stored.is_public:
            raise not_found(stored)
        return get_registered_type(stored)

    def respond(found: RegisteredType | None) -> Reply:
        if found is None:
            advice = "a type has a value of the type PERSEID_TYPE, or at least a DESC"
            raise ApiError("not-found", f"{display_name(handle)} is no type: its record has no definition", advice)
        return Reply(_to_response(found), name=str(handle))

    return await call.respond(read, respond, handle)


@SECTION.add(
    "POST",
    "/types",
    "addType",
    "Register a type",
    body=NewType,
    response=CreatedType,
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
    new = call.payload(NewType)
    handle = call.parse_handle(new.handle, new=True)
    if new.pattern is not None and new.schema is not None:
        raise InvalidParameter(
            "there is a pattern and a schema too", "$.pattern", "give a pattern or a schema, not both"
        )
    said = Definition.make(
        new.name or handle.suffix,
        new.description,
        pattern=new.pattern,
        schema=new.schema,
        example=new.example,
    )
    known = RequireIdentity(Create(handle, definition_values(said)), f"create {display_name(handle)}")
    return await call.create(
        lambda _: known,
        lambda made: Reply(CreatedType(str(made.handle), made.seq), 201, name=str(made.handle)),
        about=handle,
        note=new.note,
    )


def _to_response(found: RegisteredType) -> TypeResponse:
    definition = found.definition
    if definition is None:
        return TypeResponse(str(found.handle), found.seq, description=found.description or "", problem=found.problem)
    return TypeResponse(
        str(found.handle),
        found.seq,
        definition.name,
        definition.description,
        definition.pattern,
        None if definition.schema is None else parse_json(definition.schema),
        definition.example,
        _definition_problem(definition),
    )


def _definition_problem(definition: Definition) -> str:
    """Why data cannot be checked against a definition that came to be elsewhere, or in another version."""
    try:
        definition.check()
    except InvalidData as problem:
        return str(problem)
    return ""

"""Types of values: a type is a handle that resolves to its definition."""

from typing import Final

from perseid.records.data_types import Definition
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.records import Create
from perseid.registry.context import Context
from perseid.registry.policy.types import definition_values
from perseid.registry.queries.namespaces import get_type, list_types
from perseid.registry.responses import to_type
from perseid.schema.common import HANDLE_PARAMETER
from perseid.schema.namespaces import NewType, TypePage, TypeResponse, TypesQuery
from perseid.schema.records import CreatedRecord
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import RequireIdentity
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter

SECTION: Final = Routes(
    "Types", "Register and list types of values. A type is a handle that resolves to its definition."
)


@SECTION.add(
    "GET", "/types", "listTypes", "List types", response=TypePage, query=TypesQuery, scope="find", problems=(401, 403)
)
async def show_types(call: ApiCall) -> Reply:
    """List the types registered here: records with a definition, a value of the type `PERSEID_TYPE`.

    The list covers namespaces whose handles you can list. With `prefix`, missing permission is an error.
    """
    query, after = call.query_as(TypesQuery), await call.after(str)

    def page(context: Context) -> tuple[list[TypeResponse], str | None]:
        types, following = list_types(context.snapshot, context.identity, query.prefix, after, query.limit)
        return [to_type(each) for each in types], following

    def respond(page: tuple[list[TypeResponse], str | None]) -> Reply:
        cursor = call.seal(page[1])
        return Reply(TypePage(page[0], cursor), next=cursor)

    return await call.respond(page, respond)


@SECTION.add(
    "GET",
    "/types/{handle}",
    "showType",
    "Get a type",
    response=TypeResponse,
    problems=(404,),
    parameters={"handle": HANDLE_PARAMETER},
)
async def show_type(call: ApiCall) -> Reply:
    """Return the definition of a type: name, meaning, pattern or schema."""
    handle = call.handle()
    return await call.respond(
        lambda context: get_type(context.snapshot, handle),
        lambda registered: Reply(to_type(registered), name=str(handle)),
        handle,
    )


@SECTION.add(
    "POST",
    "/types",
    "addType",
    "Register a type",
    body=NewType,
    response=CreatedRecord,
    status=201,
    scope="create",
    creates=True,
    problems=(401, 403, 409, 422),
)
async def add_type(call: ApiCall) -> Reply:
    """Register a type: create its record, with a definition for people and programs.

    A namespace whose policy has `registered_types = true` accepts only values of registered types; with `validate_types
    = true` their data must match the pattern or the schema.
    """
    new = call.payload(NewType)
    handle = call.parse_handle(new.handle, new=True)
    if new.pattern is not None and new.schema is not None:
        raise InvalidParameter("`pattern` cannot be combined with `schema`", "$.pattern", "Give only one of them")
    definition = Definition.make(
        new.name or handle.suffix,
        new.description,
        pattern=new.pattern,
        schema=new.schema,
        example=new.example,
    )
    command = RequireIdentity(Create(handle, definition_values(definition)), f"create {display_name(handle)}")
    return await call.create(
        lambda _: command,
        lambda created: Reply(CreatedRecord(str(created.handle), created.seq), 201, name=str(created.handle)),
        about=handle,
        note=new.note,
    )

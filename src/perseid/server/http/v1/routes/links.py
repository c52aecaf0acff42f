"""Links between handles: aliases, versions of a work, and metadata."""

from typing import Final

from perseid.records.types import HS_ALIAS
from perseid.registry.commands.records import CreateRecord, PartialValue
from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion
from perseid.registry.queries.aliases import follow_aliases
from perseid.registry.responses import to_aliases, to_linked
from perseid.schema.records import Aliases, CreatedRecord, LinkedHandles, MetadataLink, NewAlias, VersionLink
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import CREATED, HANDLE_PARAMETERS, create_record
from perseid.server.http.v1.routing import Reply, Routes

SECTION: Final = Routes("Links", "Aliases, versions of a work, and metadata.")

_PROBLEMS: Final = (401, 403, 404, 422)


# Aliases


@SECTION.add(
    "POST",
    "/aliases",
    "createAlias",
    "Create an alias",
    body=NewAlias,
    response=CreatedRecord,
    status=CREATED,
    scope="create",
    creates=True,
    problems=(*_PROBLEMS, 409),
)
async def create_alias(call: ApiCall) -> Reply:
    """Create an alias: a handle that resolves to another one, by a value of the type HS_ALIAS.

    To turn an existing handle into an alias, add or set the value HS_ALIAS. A handle cannot be an alias of itself.
    """
    new = call.payload(NewAlias)
    handle, target = call.parse_handle(new.handle, new=True), call.parse_reference(new.of, "$.of", legal=True)
    return await create_record(
        call, CreateRecord(handle, (PartialValue(HS_ALIAS, target.to_bytes()),)), handle, new.note
    )


@SECTION.add(
    "GET",
    "/handles/{handle}/aliases",
    "followAliases",
    "Follow the aliases of a handle",
    response=Aliases,
    problems=(404,),
    parameters=HANDLE_PARAMETERS,
)
async def show_aliases(call: ApiCall) -> Reply:
    """Follow the public aliases of a handle and return the chain."""
    handle = call.handle()
    chain = await call.read(lambda context: follow_aliases(context.snapshot, handle), handle)
    return Reply(to_aliases(chain), name=str(handle))


# Links


@SECTION.add(
    "POST",
    "/links/versions",
    "linkVersion",
    "Link a work and a version",
    body=VersionLink,
    response=LinkedHandles,
    scope="update",
    problems=_PROBLEMS,
)
async def link_version(call: ApiCall) -> Reply:
    """Link a work and one fixed version, in both directions, in one change.

    A work has one handle for the latest version; each version that must stay citable has its own. A version belongs to
    one work. To remove a link, remove its values.
    """
    new = call.payload(VersionLink)
    work = call.parse_handle(new.work, "$.work")
    return _linked_reply(
        await call.change(LinkVersion(work, call.parse_handle(new.version, "$.version")), work, new.note)
    )


@SECTION.add(
    "POST",
    "/links/metadata",
    "linkMetadata",
    "Link an object and its metadata",
    body=MetadataLink,
    response=LinkedHandles,
    scope="update",
    problems=_PROBLEMS,
)
async def link_metadata(call: ApiCall) -> Reply:
    """Link an object and the metadata record that describes it. Both have their own handles.

    Each has at most one of the other. Minting with `metadata` creates both, linked.
    """
    new = call.payload(MetadataLink)
    thing = call.parse_handle(new.thing, "$.thing")
    return _linked_reply(
        await call.change(LinkMetadata(thing, call.parse_handle(new.metadata, "$.metadata")), thing, new.note)
    )


def _linked_reply(linked: LinkResult) -> Reply:
    return Reply(to_linked(linked), name=str(linked.handles[0]))

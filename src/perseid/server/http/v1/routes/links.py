"""Names that lead to others: aliases, versions of a work, and what describes a thing; as `perseid link` does."""

from typing import Annotated, Final

from perseid.records.types import HS_ALIAS
from perseid.registry.commands.records import CreateRecord
from perseid.registry.commands.records import PartialValue as GivenValue
from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion
from perseid.registry.policy.aliases import follow_aliases
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import CREATED, HANDLE_PARAMETERS, CreatedRecord, Name, create_record
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, Note, RequestBody, ResponseBody, Seq

SECTION: Final = Routes("Links", "Names that lead to others: aliases, versions of a work, what describes a thing.")

_PROBLEMS: Final = (401, 403, 404, 422)


class NewAlias(RequestBody, frozen=True):
    """Another name for a thing."""

    handle: Annotated[Name, Doc("The new name.")]
    of: Annotated[
        Name,
        Doc(
            "The name that it leads to, here or elsewhere: a handle, a `hdl:` URI, or a URL of a resolver that is "
            "known here. The handle is stored.",
            examples=["12345/x"],
        ),
    ]
    note: Note = ""


class Aliases(ResponseBody, frozen=True):
    """Where a name leads by its aliases."""

    chain: Annotated[list[str], Doc("The names in the order in which they were met, the one asked for first.")]
    end: Annotated[
        str,
        Doc(
            "How it ended: `found`, `not found`, `elsewhere` (another service answers for the last name), `loop`, "
            "`too long` or `unreadable`.",
            examples=["found"],
        ),
    ]


class VersionLink(RequestBody, frozen=True):
    """A work and a version of it."""

    work: Annotated[Name, Doc("The name that leads to the latest version.", examples=["12345/map"])]
    version: Annotated[Name, Doc("The name of one fixed version.", examples=["12345/map-1"])]
    note: Note = ""


class MetadataLink(RequestBody, frozen=True):
    """A thing and what describes it."""

    thing: Annotated[Name, Doc("The name of the thing.", examples=["12345/map"])]
    metadata: Annotated[Name, Doc("The name of the record that describes it.", examples=["12345/about-map"])]
    note: Note = ""


class LinkedHandles(ResponseBody, frozen=True):
    """Two names that lead to each other."""

    # said as a list of two: many readers of descriptions do not know what a tuple is
    handles: Annotated[tuple[str, ...], Doc("The two names, as they are registered.", min_length=2, max_length=2)]
    seq: Annotated[Seq, Doc("The first entry that made it so; 0 if it was so already.")]


# Aliases


@SECTION.add(
    "POST",
    "/aliases",
    "createAlias",
    "Make another name for a thing",
    body=NewAlias,
    response=CreatedRecord,
    status=CREATED,
    scope="create",
    creates=True,
    problems=(*_PROBLEMS, 409),
)
async def create_alias(call: ApiCall) -> Reply:
    """Make a name that leads to another one: a record with a value of the type HS_ALIAS.

    Resolvers follow it, so the new name leads wherever the other one does. An alias of a name that exists already is a
    value like any other: add it, or put it in the place of what is there. No name can be an alias of itself.
    """
    new = call.payload(NewAlias)
    handle, target = call.parse_handle(new.handle, new=True), call.parse_reference(new.of, "$.of", legal=True)
    return await create_record(call, CreateRecord(handle, (GivenValue(HS_ALIAS, target.to_bytes()),)), handle, new.note)


@SECTION.add(
    "GET",
    "/handles/{handle}/aliases",
    "followAliases",
    "Where a name leads",
    response=Aliases,
    problems=(404,),
    parameters=HANDLE_PARAMETERS,
)
async def show_aliases(call: ApiCall) -> Reply:
    """Follow the aliases of a name, as far as everybody may see them, and tell the way."""
    handle = call.handle()
    found = await call.read(lambda context: follow_aliases(context.snapshot, handle), handle)
    return Reply(Aliases([str(each) for each in found.chain], found.end.value), name=str(handle))


# Links


@SECTION.add(
    "POST",
    "/links/versions",
    "linkVersion",
    "Link a work with a version",
    body=VersionLink,
    response=LinkedHandles,
    scope="update",
    problems=_PROBLEMS,
)
async def link_version(call: ApiCall) -> Reply:
    """Link a work with one fixed version of it, in one change: each leads to the other.

    A work has one name, which always means the latest version, and each version that should stay citable has another.
    A work may have many versions, a version is of one work. A link is taken away by removing its values.
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
    "Link a thing with its metadata",
    body=MetadataLink,
    response=LinkedHandles,
    scope="update",
    problems=_PROBLEMS,
)
async def link_metadata(call: ApiCall) -> Reply:
    """Link a thing with the metadata record that describes it: two things, so they have two names.

    Each has one of the other. Minting with `metadata` makes both names, linked.
    """
    new = call.payload(MetadataLink)
    thing = call.parse_handle(new.thing, "$.thing")
    return _linked_reply(
        await call.change(LinkMetadata(thing, call.parse_handle(new.metadata, "$.metadata")), thing, new.note)
    )


def _linked_reply(linked: LinkResult) -> Reply:
    one, other = (str(handle) for handle in linked.handles)
    return Reply(LinkedHandles((one, other), linked.seq), name=one)

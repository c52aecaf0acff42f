"""Routes of queries: search, citations, QR codes, links, and explanations of changes.

The criteria of a search are those of `perseid find`; `registry.queries.find` decides what a caller can find. Cursors
are encrypted (`state.CursorCipher`), because the end of a page may be a handle that the caller cannot see.
"""

from dataclasses import replace
from typing import Final

import msgspec

from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.uri import Reference, Resolver, parse_uri, parse_user_input
from perseid.records.types import HS_ALIAS
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import (
    AddValues,
    CreateRecord,
    Delete,
    PartialValue,
    Remove,
    ReplaceRecord,
    SetValues,
    assign_indexes,
)
from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion, Transfer
from perseid.registry.context import Command, Context
from perseid.registry.queries import aliases, listing
from perseid.registry.queries import find as searching
from perseid.registry.queries.citation import QrImage, find_printable_name, get_citation, to_uri
from perseid.registry.queries.find import Search, build_search
from perseid.registry.responses import to_aliases, to_citation, to_explanation, to_found, to_linked, to_summary
from perseid.registry.results import Refused
from perseid.schema.queries import (
    CitationQuery,
    CitationResponse,
    FindQuery,
    FoundHandlePage,
    HandlePage,
    HandlesQuery,
    ImageFormat,
    QrQuery,
    Selectors,
)
from perseid.schema.records import (
    Aliases,
    CreatedRecord,
    ExplainRequest,
    Explanation,
    LinkedHandles,
    MetadataLink,
    NewAlias,
    ToAdd,
    ToCreate,
    ToDelete,
    ToMint,
    ToPublish,
    ToRemove,
    ToReplace,
    ToSet,
    ToTombstone,
    ToTransfer,
    ToUnpublish,
    VersionLink,
)
from perseid.server.http.context import INTERFACE
from perseid.server.http.resolver.paths import get_cited_resolver
from perseid.server.http.v1.api_call import (
    CREATED,
    ApiCall,
    RequireIdentity,
    execute_create,
    parse_resolver,
    parse_value_ref,
    parse_values,
)
from perseid.server.http.v1.problems import ApiError, render_advice
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import locate_name_error
from perseid.server.native.decisions import GuardedCommand
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

FIND: Final = Routes(
    "Search", "Find handles by URL, value, owner or time of change, and list the handles of a namespace."
)

SCAN_SECONDS: Final = 0.25
"""Seconds that one page scans if there is no index."""

SCAN_REMARK: Final = (
    "No index supports this search, so every page scans a part of all records. Start the URL with its host."
)

ANONYMOUS_REMARK: Final = (
    "Anonymous searches cover only public lists of handles. Authenticate to search your namespaces."
)


@FIND.add("GET", "/find", "Find handles", scope="find", problems=(422, 501))
async def find(call: ApiCall, query: FindQuery) -> Reply[FoundHandlePage]:
    """Find handles by the content of their records. The number of results is not limited: follow the pages.

    Indexed searches return at once. A URL that starts with `*`, or has one in its host, may need a scan, which `scans`
    reports. You find handles of namespaces that you can list, and records that you can read; private values match only
    in the latter. A record that changes between two pages can appear twice or not at all.
    """

    def read(context: Context) -> Reply[FoundHandlePage]:
        since, after = call.after(tuple[int | None, str]) or (None, None)
        search = replace(select(call, context, query, since), state=query.state)
        page = searching.find(context.snapshot, context.identity, search, after, query.limit, SCAN_SECONDS)
        next_cursor = call.seal(None if page.following is None else (search.since, page.following))
        remark = SCAN_REMARK if page.scans else None
        if not page.items and next_cursor is None and call.call.is_anonymous:
            remark = ANONYMOUS_REMARK
        return call.page(FoundHandlePage([to_found(each) for each in page.items], page.scans, remark, next_cursor))

    return await call.read(read)


@FIND.add(
    "GET",
    "/namespaces/{prefix}/handles",
    "List the handles of a namespace",
    scope="find",
    problems=(401, 403, 404, 501),
)
async def list_handles(call: ApiCall, query: HandlesQuery) -> Reply[HandlePage]:
    """List the handles of a namespace with their states, sorted.

    Requires permission to list them, or a policy that makes the list public. Administrators of the namespace see
    handles in every state, other users public ones and those that they can read. A closed list is refused: `find` with
    `prefix` and `owner` finds what you own.
    """
    prefix = call.names["prefix"]
    if "/" in prefix:  # the registry would read it as a prefix handle
        reason = f"{display_name(prefix)} is not a prefix"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.PREFIX_EXAMPLE(), "H2")
    name = f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{prefix}" if query.derived else prefix

    def read(context: Context) -> Reply[HandlePage]:
        page = listing.list_handles(
            context.snapshot,
            context.identity,
            name,
            call.after(int) or 0,
            query.limit,
            state=query.state,
            deleted=query.deleted,
            starts_with=query.starts_with,
        )
        next_cursor = call.seal(page.last if page.more else None)
        return call.page(HandlePage([to_summary(each) for each in page.items], next_cursor))

    return await call.read(read, f"{PREFIX_OF_PREFIXES}/{prefix}")


def select(call: ApiCall, context: Context, selectors: Selectors, since: int | None = None, path: str = "") -> Search:
    """Return the search for the selectors of a request. `path` precedes the field names in errors.

    `since` is what an earlier page found for `changed_since`: the time is resolved once, for all pages.
    """
    parse = parse_uri if selectors.strict else parse_user_input

    def parse_owner(text: str) -> str:
        with locate_name_error(f"{path}owner", text, new=False):
            return str(parse(text, call.resolvers, for_lookup=True).handle)

    if since is not None:
        selectors = msgspec.structs.replace(selectors, changed_since=str(since))
    return build_search(context.snapshot.reader, selectors, parse_owner, call.now())


CITATION: Final = Routes("Citations", "Citations and QR codes of identifiers.")


MAX_URL_SIZE: Final = 400
"""Bytes of a URL in a QR code: 77 modules per side, near the limit of what scans easily. The largest codes take a tenth
of a second each, which blocks others; the command line draws them."""

DRAW_SECONDS: Final = 0.002
DRAW_SECONDS_PER_BYTE: Final = 0.000_05
"""CPU seconds to draw a code, plus those for each byte of the URL: most of them to choose the best of eight masks."""


@CITATION.add("GET", "/handles/{handle}/citation", "Cite a handle", problems=(404, 422))
async def cite_handle(call: ApiCall, query: CitationQuery) -> Reply[CitationResponse]:
    """Cite an identifier, with the bibliographic data in its record.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, with the prefix `DC.`, or as the suffix of a registered type. With `at` the
    citation names the ledger entry of the version, which never changes.
    """
    handle = call.handle()
    resolver = _cited_resolver(call, query.resolver)
    citation = await call.read(
        lambda context: get_citation(context, Reference(handle), resolver, query.at, call.now()), handle
    )
    return Reply(to_citation(citation, query.style), name=str(handle))


@CITATION.add(
    "GET",
    "/handles/{handle}/qr",
    "Get the QR code of a handle",
    media_types=("image/svg+xml", "image/png"),
    problems=(404, 422),
)
async def draw_qr(call: ApiCall, query: QrQuery) -> Reply[bytes]:
    """Draw the QR code of an identifier: its URL at a resolver, or its `hdl:` URI if this server has no public URL.

    The handle must exist, be reserved, or resolve by a template. A URL of more than 400 bytes is refused: the code
    would be too fine to scan.
    """
    handle = call.handle()
    resolver = _cited_resolver(call, query.resolver)
    name = await call.read(lambda context: find_printable_name(context, Reference(handle)), handle)
    address = to_uri(name, resolver)
    size = len(address.encode())
    if size > MAX_URL_SIZE:
        detail = f"The URL has {size:,} bytes; a QR code here can have at most {MAX_URL_SIZE:,}"
        advice = "Use a shorter resolver URL"
        raise ApiError("invalid-query", detail, advice, code=int(ResponseCode.INVALID_VALUE))

    def draw_image() -> bytes:
        code = QrImage.of(address)
        return code.png(query.scale) if query.format is ImageFormat.PNG else code.svg(query.scale)

    media_type = "image/png" if query.format is ImageFormat.PNG else "image/svg+xml"
    price = DRAW_SECONDS + DRAW_SECONDS_PER_BYTE * size
    image = await call.request_context.do(WorkKind.READ, draw_image, price=price)
    return Reply(image, media_type=media_type, name=str(name.handle))


def _cited_resolver(call: ApiCall, text: str) -> Resolver | None:
    return parse_resolver(text) if text else get_cited_resolver(call.settings)


LINKS: Final = Routes("Links", "Aliases, versions of a work, and metadata.")

_PROBLEMS: Final = (401, 403, 404, 422)


# Aliases


@LINKS.add(
    "POST", "/aliases", "Create an alias", status=CREATED, scope="create", creates=True, problems=(*_PROBLEMS, 409)
)
async def create_alias(call: ApiCall, new: NewAlias) -> Reply[CreatedRecord]:
    """Create an alias: a handle that resolves to another one, by a value of the type HS_ALIAS.

    To turn an existing handle into an alias, add or set the value HS_ALIAS. A handle cannot be an alias of itself.
    """
    handle, target = call.parse_handle(new.handle, new=True), call.parse_reference(new.of, "$.of", legal=True)
    return await execute_create(
        call, CreateRecord(handle, (PartialValue(HS_ALIAS, target.to_bytes()),)), handle, new.note
    )


@LINKS.add("GET", "/handles/{handle}/aliases", "Follow the aliases of a handle", problems=(404,))
async def follow_aliases(call: ApiCall) -> Reply[Aliases]:
    """Follow the public aliases of a handle and return the chain."""
    handle = call.handle()
    chain = await call.read(lambda context: aliases.follow_aliases(context.snapshot, handle), handle)
    return Reply(to_aliases(chain), name=str(handle))


# Links


@LINKS.add("POST", "/links/versions", "Link a work and a version", scope="update", problems=_PROBLEMS)
async def link_version(call: ApiCall, new: VersionLink) -> Reply[LinkedHandles]:
    """Link a work and one fixed version, in both directions, in one change.

    A work has one handle for the latest version; each version that must stay citable has its own. A version belongs to
    one work. To remove a link, remove its values.
    """
    work = call.parse_handle(new.work, "$.work")
    return _linked_reply(
        await call.change(LinkVersion(work, call.parse_handle(new.version, "$.version")), work, new.note)
    )


@LINKS.add("POST", "/links/metadata", "Link an object and its metadata", scope="update", problems=_PROBLEMS)
async def link_metadata(call: ApiCall, new: MetadataLink) -> Reply[LinkedHandles]:
    """Link an object and the metadata record that describes it. Both have their own handles.

    Each has at most one of the other. Minting with `metadata` creates both, linked.
    """
    resource = call.parse_handle(new.resource, "$.resource")
    return _linked_reply(
        await call.change(LinkMetadata(resource, call.parse_handle(new.metadata, "$.metadata")), resource, new.note)
    )


def _linked_reply(linked: LinkResult) -> Reply[LinkedHandles]:
    return Reply(to_linked(linked), name=str(linked.handles[0]))


EXPLAIN: Final = Routes("Explain", "Check whether a change would be allowed, without making it.")


@EXPLAIN.add("POST", "/explain", "Explain whether a change is allowed", problems=(422,))
async def explain(call: ApiCall, new: ExplainRequest) -> Reply[Explanation]:
    """Explain whether you could make a change, and why or why not. Nothing is changed.

    A refusal has the same reason, rule and advice as the change itself.
    """
    command = await call.run_in_pool(lambda: _to_command(call, new))
    guarded = GuardedCommand(command, call.call.auth.guard, allow_referrals=True)
    registry, identity = call.registry, call.identity
    result = await call.do(WorkKind.READ, lambda: registry.explain(guarded, identity, INTERFACE))
    return Reply(to_explanation(result, render_advice(result.advice)))


def _to_command(call: ApiCall, request: object) -> Command[object]:  # noqa: C901 - one case for each
    match request:
        case ToCreate():
            handle = call.parse_handle(request.handle, new=not request.overwrite)
            values = parse_values(request.values)
            create = CreateRecord(handle, values, overwrite=request.overwrite, reuse_deleted=request.reuse_deleted)
            return RequireIdentity(create, f"create {display_name(handle)}")
        case ToSet():
            return SetValues(call.parse_handle(request.handle), parse_values(request.values))
        case ToReplace():
            return ReplaceRecord(call.parse_handle(request.handle), values=parse_values(request.values))
        case ToAdd():
            return AddValues(call.parse_handle(request.handle), parse_values(request.values))
        case ToRemove():
            return Remove(call.parse_handle(request.handle), tuple(request.indexes))
        case ToDelete():
            return Delete(call.parse_handle(request.handle))
        case ToMint():
            common = parse_values(request.values)
            rows = [parse_values(row, f"$.records[{number}]") for number, row in enumerate(request.records)]
            each = tuple([assign_indexes((*common, *row)) for row in rows])
            return Mint(request.prefix, len(each) or 1, values=() if each else assign_indexes(common), each=each)
        case ToPublish():
            return Publish(call.parse_handle(request.handle))
        case ToUnpublish():
            return Unpublish(call.parse_handle(request.handle))
        case ToTombstone():
            return (
                Revive(call.parse_handle(request.handle))
                if request.undo
                else Tombstone(call.parse_handle(request.handle), "gone", None)
            )
        case ToTransfer():
            return Transfer(call.parse_handle(request.handle), parse_value_ref(request.to, "$.to"))
    raise AssertionError(f"unknown request {type(request).__name__}")

"""Searches, and the handles of a namespace.

The criteria are those of `perseid find`; `registry.queries.find` decides what a caller can find. Cursors are encrypted
(`state.CursorCipher`), because the end of a page may be a handle that the caller cannot see.
"""

from typing import Final

from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.uri import KNOWN_RESOLVERS, parse_user_input
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.queries.find import Search, SearchPage, find
from perseid.registry.queries.history import seq_at_time
from perseid.registry.queries.listing import ListedHandle, list_handles
from perseid.registry.queries.paging import Page
from perseid.registry.responses import to_found, to_summary
from perseid.registry.results import Refused
from perseid.schema.queries import FindQuery, FoundHandlePage, HandlePage, HandlesQuery
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import locate_name_error
from perseid.wire.codes import ResponseCode

from .namespaces import PREFIX_PARAMETER

SECTION: Final = Routes(
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


@SECTION.add(
    "GET", "/find", "find", "Find handles", response=FoundHandlePage, query=FindQuery, scope="find", problems=(422, 501)
)
async def find_handles(call: ApiCall) -> Reply:
    """Find handles by the content of their records. The number of results is not limited: follow the pages.

    Indexed searches return at once. A URL that starts with `*`, or has one in its host, may need a scan, which `scans`
    reports. You find handles of namespaces that you can list; private values match only in records that you can read. A
    record that changes between two pages can appear twice or not at all.
    """
    query = call.query_as(FindQuery)
    position = await call.after(tuple[int | None, str])

    def read(context: Context) -> tuple[int | None, SearchPage]:
        since, after = (_parse_since(call, context, query), None) if position is None else position
        search = _build_search(call, query, since)
        return since, find(context.snapshot, context.identity, search, after, query.limit, SCAN_SECONDS)

    def respond(result: tuple[int | None, SearchPage]) -> Reply:
        since, page = result
        # The time of `changed_since` is resolved once, for all pages.
        next_cursor = call.seal(None if page.following is None else (since, page.following))
        remark = SCAN_REMARK if page.scans else None
        if not page.items and next_cursor is None and call.call.is_anonymous:
            remark = ANONYMOUS_REMARK
        return Reply(
            FoundHandlePage([to_found(each) for each in page.items], page.scans, remark, next_cursor),
            next=next_cursor,
        )

    return await call.respond(read, respond)


@SECTION.add(
    "GET",
    "/namespaces/{prefix}/handles",
    "listHandles",
    "List the handles of a namespace",
    response=HandlePage,
    query=HandlesQuery,
    scope="find",
    problems=(401, 403, 404, 501),
    parameters={"prefix": PREFIX_PARAMETER},
)
async def list_namespace_handles(call: ApiCall) -> Reply:
    """List all handles of a namespace, sorted.

    Requires permission to list them, or a policy that makes the list public. Administrators of the namespace see
    handles in every state, other users only public ones.
    """
    query, prefix = call.query_as(HandlesQuery), call.names["prefix"]
    after = await call.after(int)
    if "/" in prefix:  # the registry would read it as a prefix handle
        reason = f"{display_name(prefix)} is not a prefix"
        raise Refused(ResponseCode.INVALID_HANDLE, reason, AdviceKind.PREFIX_EXAMPLE(), "H2")
    name = f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{prefix}" if query.derived else prefix

    def read(context: Context) -> Page[ListedHandle]:
        page = list_handles(context.snapshot, context.identity, name, after or 0, query.limit, deleted=query.deleted)
        if not page.more or len(page.items) < query.limit:
            return page
        # A full page has a cursor only if more is visible: an empty page would reveal hidden handles.
        rest = list_handles(context.snapshot, context.identity, name, page.last, 1, deleted=query.deleted)
        return page if rest.items or rest.more else Page(page.items, page.last, more=False)

    def respond(page: Page[ListedHandle]) -> Reply:
        next_cursor = call.seal(page.last if page.more else None)
        return Reply(HandlePage([to_summary(each) for each in page.items], next_cursor), next=next_cursor)

    return await call.respond(read, respond, f"{PREFIX_OF_PREFIXES}/{prefix}")


def _parse_since(call: ApiCall, context: Context, query: FindQuery) -> int | None:
    if query.changed_since is None:
        return None
    return seq_at_time(context.snapshot.reader, query.changed_since, call.registry.ledger.log.clock.now())


def _build_search(call: ApiCall, query: FindQuery, since: int | None) -> Search:
    owner = query.owner
    if owner is not None:
        known = (*get_resolvers(call.settings), *KNOWN_RESOLVERS)
        with locate_name_error("owner", owner, new=False):
            owner = str(parse_user_input(owner, resolvers=known, for_lookup=True).handle)
    return Search(
        url=query.url,
        host=query.host,
        path=query.path,
        type=query.type,
        value=None if query.value is None else query.value.encode(),
        owner=owner,
        prefix=query.prefix,
        since=since,
    )

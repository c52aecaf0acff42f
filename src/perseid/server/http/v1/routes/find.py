"""Finding names: by what their records hold, whose they are, when they changed; and all names of a prefix.

The criteria are those of `perseid find`, and who finds what is decided in `registry.finding`. Where a page ended is
sealed, for whoever reads it may not be allowed to know that place; see `cursors` and `registry.page_ends`.
"""

from typing import Annotated, Final

from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.uri import KNOWN_RESOLVERS, parse_user_input
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context
from perseid.registry.queries.find import Search, SearchPage, SearchResult, find
from perseid.registry.queries.history import moment
from perseid.registry.queries.listing import ListedHandle, Page, list_handles
from perseid.registry.results import Refused
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import iso_time
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, NextCursor, Paging, ResponseBody, Seq
from perseid.server.http.v1.validation import locate_name_error
from perseid.server.http.v1.values import ValueResponse, dump_values
from perseid.wire.codes import ResponseCode

from .history import Moment
from .namespaces import PREFIX_PARAMETER

SECTION: Final = Routes(
    "Finding", "Which names lead there, hold this, belong to somebody, have changed, or have a prefix."
)

SCAN_SECONDS: Final = 0.25
"""How long one page looks through everything, where there is no index. Others wait for an answer too."""

SCAN_REMARK: Final = (
    "No index answers that: everything is looked through, a part for each page. Begin the URL with its host."
)
"""What is said then."""

ANONYMOUS_REMARK: Final = (
    "Everybody finds only names of namespaces that everybody may list. Say who you are to find yours."
)
"""What is said to nobody in particular who found nothing."""


class FindQuery(Paging, frozen=True):
    """What is looked for: all that is said has to hold together, and at least one thing has to be said."""

    url: Annotated[
        str | None, Doc("They lead to this URL; `*` stands for any characters.", examples=["https://example.org/*"])
    ] = None
    host: Annotated[str | None, Doc("They lead to this host or one of its subdomains.", examples=["example.org"])] = (
        None
    )
    path: Annotated[str | None, Doc("They lead to a path that begins so, on any host.", examples=["/maps/"])] = None
    type: Annotated[str | None, Doc("They have a value of this type; `URL.`: or a subtype.", examples=["EMAIL"])] = None
    value: Annotated[str | None, Doc("They have a value that is exactly this.", examples=["keeper@example.org"])] = None
    prefix: Annotated[str | None, Doc("They are names of this namespace.", examples=["12345"])] = None
    owner: Annotated[
        str | None,
        Doc("They belong to this party, owner or creator: its handle, in any form.", examples=["12345/ann"]),
    ] = None
    changed_since: Annotated[Moment | None, Doc("They have changed since.")] = None


class FoundHandle(ResponseBody, frozen=True):
    """A name whose record is what was looked for."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    state: Annotated[str, Doc("`normal`, `tombstone`, `unpublished` or `reserved`.", examples=["normal"])]
    seq: Annotated[Seq, Doc("Its latest entry.")]
    changed: Annotated[str, Doc("When that was, in ISO 8601.")]
    values: Annotated[
        list[ValueResponse], Doc("The values that are as asked for, if something was asked about values.")
    ]


class FoundHandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """What was found, in the order of the index that was used."""

    found: Annotated[list[FoundHandle], Doc("The names of the page. It may have none, and not be the last.")]
    scans: Annotated[bool, Doc("Whether everything is looked through, for lack of an index; it takes many pages.")]
    remark: Annotated[str | None, Doc("What to know about it, for people.")] = None
    next: NextCursor = None


class NamesQuery(Paging, frozen=True):
    """Which names of a prefix are wanted."""

    deleted: Annotated[bool, Doc("Also names that were deleted, for those who administer the namespace.")] = False
    derived: Annotated[bool, Doc("The handles of prefixes derived from this one, in place of its names.")] = False


class HandleSummary(ResponseBody, frozen=True):
    """A name."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    state: Annotated[
        str, Doc("`normal`, `tombstone`, `unpublished`, `reserved` or `absent` (deleted).", examples=["normal"])
    ]
    seq: Annotated[Seq, Doc("Its latest entry.")]


class HandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """Names of a prefix, in their order."""

    names: Annotated[list[HandleSummary], Doc("The names of the page. It may have none, and not be the last.")]
    next: NextCursor = None


@SECTION.add(
    "GET", "/find", "find", "Find names", response=FoundHandlePage, query=FindQuery, scope="find", problems=(422, 501)
)
async def find_names(call: ApiCall) -> Reply:
    """Find names by what their records hold. There is no limit to how many there can be: go from page to page.

    Indexes answer at once. Only for a URL that begins with `*`, or has one in its host, everything may have to be
    looked through, and the answer says so. You find names of namespaces that you may list, and by private values those
    of records that you may read. A record that changes between two pages may be seen twice, or not at all.
    """
    asked = call.asked(FindQuery)
    place = await call.after(tuple[int | None, str])

    def read(context: Context) -> tuple[int | None, SearchPage]:
        since, after = (_parse_since(call, context, asked), None) if place is None else place
        search = _build_search(call, asked, since)
        return since, find(context.snapshot, context.identity, search, after, asked.limit, SCAN_SECONDS)

    def respond(found: tuple[int | None, SearchPage]) -> Reply:
        since, page = found
        # What `changedSince` was when the search began holds for all its pages.
        following = call.seal(None if page.following is None else (since, page.following))
        remark = SCAN_REMARK if page.scans else None
        if not page.items and following is None and call.call.is_anonymous:
            remark = ANONYMOUS_REMARK
        return Reply(
            FoundHandlePage([_to_result(each) for each in page.items], page.scans, remark, following), next=following
        )

    return await call.respond(read, respond)


@SECTION.add(
    "GET",
    "/namespaces/{prefix}/names",
    "listNames",
    "The names of a namespace",
    response=HandlePage,
    query=NamesQuery,
    scope="find",
    problems=(401, 403, 404, 501),
    parameters={"prefix": PREFIX_PARAMETER},
)
async def list_names(call: ApiCall) -> Reply:
    """All names of a prefix, in their order, page by page.

    It takes the right to list them, or a policy that opens that. Those who administer the namespace see names in every
    state, all others those that the public may know.
    """
    asked, prefix = call.asked(NamesQuery), call.names["prefix"]
    after = await call.after(int)
    if "/" in prefix:  # to the registry the names of prefixes mean something else
        raise Refused(
            ResponseCode.INVALID_HANDLE, f"{display_name(prefix)} is no prefix", "name a prefix, such as 12345", "H2"
        )
    name = f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{prefix}" if asked.derived else prefix

    def read(context: Context) -> Page[ListedHandle]:
        page = list_handles(context.snapshot, context.identity, name, after or 0, asked.limit, deleted=asked.deleted)
        if not page.more or len(page.items) < asked.limit:
            return page
        # A full page goes on only if there is more that may be seen; what is hidden is not told of by an empty page.
        rest = list_handles(context.snapshot, context.identity, name, page.last, 1, deleted=asked.deleted)
        return page if rest.items or rest.more else Page(page.items, page.last, more=False)

    def respond(page: Page[ListedHandle]) -> Reply:
        following = call.seal(page.last if page.more else None)
        return Reply(HandlePage([_to_summary(each) for each in page.items], following), next=following)

    return await call.respond(read, respond, f"{PREFIX_OF_PREFIXES}/{prefix}")


def _parse_since(call: ApiCall, context: Context, asked: FindQuery) -> int | None:
    if asked.changed_since is None:
        return None
    return moment(context.snapshot.reading, asked.changed_since, call.registry.ledger.log.clock.now())


def _build_search(call: ApiCall, asked: FindQuery, since: int | None) -> Search:
    owner = asked.owner
    if owner is not None:
        known = (*get_resolvers(call.settings), *KNOWN_RESOLVERS)
        with locate_name_error("owner", owner, new=False):
            owner = str(parse_user_input(owner, resolvers=known, for_lookup=True).handle)
    return Search(
        url=asked.url,
        host=asked.host,
        path=asked.path,
        type=asked.type,
        value=None if asked.value is None else asked.value.encode(),
        owner=owner,
        prefix=asked.prefix,
        since=since,
    )


def _to_result(found: SearchResult) -> FoundHandle:
    return FoundHandle(found.handle, found.state.name.lower(), found.seq, iso_time(found.at), dump_values(found.values))


def _to_summary(listed: ListedHandle) -> HandleSummary:
    return HandleSummary(listed.handle, listed.state.name.lower(), listed.seq)

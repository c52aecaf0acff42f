"""The log of all changes, and the entries of a job."""

from typing import Final

from perseid.client.errors import ClientError
from perseid.schema.jobs import JobResponse
from perseid.schema.namespaces import Scope
from perseid.schema.queries import EntryResponse
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _

from .requests import ConsoleRequest
from .routing import Pages

LOG: Final = Pages("log")

PAGE_SIZE: Final = 50
"""Entries on a page."""

MAX_JOB_ENTRIES: Final = 20
"""Changed records on the page of a job; the log has all."""

MAX_SEARCHED_ENTRIES: Final = 2_000
"""Entries since the start of a job among which its own are searched: others can write at the same time."""

_SEARCHED_AT_ONCE: Final = 500


@LOG.get("/log")
async def show_log(console: ConsoleRequest) -> Response:
    """Show the entries of the ledger that the user can see, the newest first, or those since a time in order."""
    since = console.text("since")
    page, problem = None, None
    try:
        pages = console.api.log(since=since or "0", newest=not since, page_size=PAGE_SIZE)
        page = await pages.page(console.text("cursor"))
    except ClientError as error:
        problem = error
    return console.render(
        "log.html",
        title=_("Log"),
        problem=problem,
        page=page,
        since=since,
        lacks_scope=not console.has_scope(Scope.FIND),
    )


async def list_job_entries(console: ConsoleRequest, job: JobResponse) -> list[EntryResponse]:
    """The first entries of a job that the user can see in the log: their notes begin with its kind and id."""
    found: list[EntryResponse] = []
    pages, cursor = console.api.log(since=job.started_at, page_size=_SEARCHED_AT_ONCE), ""
    try:
        for _number in range(MAX_SEARCHED_ENTRIES // _SEARCHED_AT_ONCE):
            page = await pages.page(cursor)
            found += [each for each in page.entries if job.job in (each.note or "").partition(":")[0]]
            if len(found) >= min(MAX_JOB_ENTRIES, job.done) or not page.next:
                break
            if job.ended_at and page.entries and page.entries[-1].at > job.ended_at:
                break
            cursor = page.next
    except ClientError:
        pass  # a token without the scope, or a server that does not list handles
    return found[:MAX_JOB_ENTRIES]

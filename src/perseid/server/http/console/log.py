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


@LOG.get("/log")
async def show_log(console: ConsoleRequest) -> Response:
    """Show the entries that the user can see, the newest first; those since a time or of a job in order."""
    since, job = console.text("since"), console.text("job")
    page, problem = None, None
    try:
        pages = console.api.log(since=since or "0", newest=not since and not job, job=job, page_size=PAGE_SIZE)
        page = await pages.page(console.text("cursor"))
    except ClientError as error:
        problem = error
    return console.render(
        "log.html",
        title=_("Log of job {job}").format(job=job) if job else _("Log"),
        problem=problem,
        page=page,
        since=since,
        job=job,
        lacks_scope=not console.has_scope(Scope.FIND),
    )


async def list_job_entries(console: ConsoleRequest, job: JobResponse) -> list[EntryResponse]:
    """The first entries of a job that the user can see in the log."""
    try:
        return (await console.api.log(job=job.job, page_size=MAX_JOB_ENTRIES).page()).entries
    except ClientError:
        return []  # a token without the scope, or a server that does not list handles

"""The first page after the sign-in: what the user works with, and what happened there."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from perseid.client.errors import ClientError
from perseid.names.handle import fold
from perseid.schema.jobs import JobResponse
from perseid.schema.namespaces import Namespace
from perseid.schema.queries import EntryResponse
from perseid.schema.statistics import StatisticsPeriod
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _

from .findings import find_findings
from .jobs import make_describer
from .requests import ConsoleRequest
from .routing import Pages

DASHBOARD: Final = Pages("dashboard")

MAX_NAMESPACES: Final = 20
"""Namespaces on the page; others are on their own page."""

MAX_JOBS: Final = 5
MAX_CHANGES: Final = 10
"""Latest jobs and changes: they fit on one screen."""

MAX_CHECKED_JOBS: Final = 50
"""Latest jobs that are checked whether they are unfinished."""


@DASHBOARD.get("/")
async def show_dashboard(console: ConsoleRequest) -> Response:
    """Show what needs attention, the namespaces of the user, the latest jobs and the latest changes."""
    page = await console.api.namespaces(mine=True, page_size=MAX_NAMESPACES).page()
    jobs = await _list_jobs(console)
    return console.render(
        "dashboard.html",
        title=_("Overview"),
        findings=await find_findings(console, jobs),
        namespaces=page.namespaces,
        counts=await _count_identifiers(console, page.namespaces),
        has_more=page.next is not None,
        jobs=jobs[:MAX_JOBS],
        describe_subject=make_describer(jobs),
        changes=await _list_changes(console),
    )


async def _count_identifiers(console: ConsoleRequest, namespaces: Sequence[Namespace]) -> dict[str, int]:
    """The number of public identifiers by prefix, as far as the user can see it and it is counted."""
    by = StatisticsPeriod.NAMESPACE
    try:
        rows = (await console.api.statistics(by=by)).rows
    except ClientError:  # only server administrators see all
        rows = []
        for each in namespaces:
            with suppress(ClientError):
                rows += (await console.api.statistics(each.prefix, by=by)).rows
    counts = {row.namespace: row.identifiers for row in rows}
    return {each.prefix: counts[fold(each.prefix)] for each in namespaces if fold(each.prefix) in counts}


async def _list_jobs(console: ConsoleRequest) -> list[JobResponse]:
    try:
        return (await console.api.jobs(page_size=MAX_CHECKED_JOBS).page()).jobs
    except ClientError:
        return []  # a token without the scope


async def _list_changes(console: ConsoleRequest) -> list[EntryResponse]:
    try:
        return (await console.api.log(newest=True, page_size=MAX_CHANGES).page()).entries
    except ClientError:
        return []  # a token without the scope, or a server that does not list handles

"""The first page after the sign-in: what the user works with, and what happened there."""

from typing import Final

from perseid.client.errors import ClientError
from perseid.schema.jobs import JobResponse
from perseid.schema.queries import EntryResponse
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _

from .requests import ConsoleRequest
from .routing import Pages

DASHBOARD: Final = Pages("dashboard")

MAX_NAMESPACES: Final = 20
"""Namespaces on the page; others are on their own page."""

MAX_JOBS: Final = 5
MAX_CHANGES: Final = 10
"""Latest jobs and changes: they fit on one screen."""


@DASHBOARD.get("/")
async def show_dashboard(console: ConsoleRequest) -> Response:
    """Show the namespaces of the user, the latest jobs and the latest changes."""
    page = await console.api.namespaces(mine=True, page_size=MAX_NAMESPACES).page()
    return console.render(
        "dashboard.html",
        title=_("Overview"),
        namespaces=page.namespaces,
        has_more=page.next is not None,
        jobs=await _list_jobs(console),
        changes=await _list_changes(console),
    )


async def _list_jobs(console: ConsoleRequest) -> list[JobResponse]:
    try:
        return (await console.api.jobs(page_size=MAX_JOBS).page()).jobs
    except ClientError:
        return []  # a token without the scope


async def _list_changes(console: ConsoleRequest) -> list[EntryResponse]:
    try:
        return (await console.api.log(newest=True, page_size=MAX_CHANGES).page()).entries
    except ClientError:
        return []  # a token without the scope, or a server that does not list handles

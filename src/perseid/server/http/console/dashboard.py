"""The first page after the sign-in: namespaces of the user, running jobs, and the sessions of the identity."""

from typing import Final

from perseid.client.errors import ClientError
from perseid.schema.jobs import JobResponse
from perseid.schema.namespaces import Namespace
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _

from .requests import ConsoleRequest
from .routing import Pages

DASHBOARD: Final = Pages("dashboard")

MAX_SHOWN: Final = 20
"""Namespaces and jobs on the page."""


@DASHBOARD.get("/")
async def show_dashboard(console: ConsoleRequest) -> Response:
    """Show what the user works with."""
    namespaces: list[Namespace] = []
    jobs: list[JobResponse] = []
    namespaces = list((await console.api.namespaces(mine=True, page_size=MAX_SHOWN).page()).namespaces)
    try:
        jobs = list((await console.api.jobs(page_size=MAX_SHOWN).page()).jobs)
    except ClientError:
        jobs = []  # a token without the scope
    return console.render("dashboard.html", title=_("Overview"), namespaces=namespaces, jobs=jobs)

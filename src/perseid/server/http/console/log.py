"""The log of all changes, and the entries of a job."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from markupsafe import Markup

from perseid.client.errors import ClientError
from perseid.registry.queries.log import BY_ISSUER, TOKEN_ACTOR
from perseid.schema.common import EntryAction
from perseid.schema.jobs import JobResponse
from perseid.schema.namespaces import Scope
from perseid.schema.queries import EntryResponse
from perseid.server.http.messages import Response
from perseid.server.http.pages.links import to_visible
from perseid.server.http.pages.texts import _

from .requests import ConsoleRequest
from .routing import Pages, link

LOG: Final = Pages("log")

PAGE_SIZE: Final = 50
"""Entries on a page."""

MAX_JOB_ENTRIES: Final = 20
"""Changed records on the page of a job; the log has all."""

FILTERS: Final = ("actor", "action", "prefix", "since", "until")
"""Fields of the form."""

ACTIONS: Final = tuple([each.value for each in EntryAction])


@LOG.get("/log")
async def show_log(console: ConsoleRequest) -> Response:
    """Show the entries that the user can see and that match the filters, the newest first; those of a job in order."""
    filters = {name: text for name in ("job", *FILTERS) if (text := console.text(name))}
    if filters.get("action") not in ACTIONS:
        filters.pop("action", None)
    job = filters.get("job", "")
    page, problem = None, None
    try:
        pages = console.api.log(
            since=filters.get("since", "0"),
            until=filters.get("until"),
            newest=not job,
            job=job,
            actor=filters.get("actor"),
            action=EntryAction(filters["action"]) if "action" in filters else None,
            prefix=filters.get("prefix"),
            page_size=PAGE_SIZE,
        )
        page = await pages.page(console.cursor())
    except ClientError as error:
        problem = error
    return console.render(
        "log.html",
        title=_("Log of job {job}").format(job=job) if job else _("Log"),
        problem=problem,
        page=page,
        job=job,
        filters=filters,
        form=dict.fromkeys(FILTERS, "") | filters,
        actions=ACTIONS,
        namespaces=(await console.api.namespaces(mine=True).page()).namespaces,
        actor_link=partial(link_actor, filters),
        lacks_scope=not console.has_scope(Scope.FIND),
    )


def link_actor(filters: Mapping[str, str], actor: str) -> Markup:
    """An actor as HTML: the token and the user lead to their entries that match the other filters too."""
    parts = actor.split(BY_ISSUER, 1) if actor.startswith(TOKEN_ACTOR) else [actor] if actor else []
    links = [
        Markup('<a href="{}"><bdi>{}</bdi></a>').format(link("log", **{**filters, "actor": part}), to_visible(part))
        for part in parts
    ]
    return Markup(" by ").join(links)  # as in the ledger


async def list_job_entries(console: ConsoleRequest, job: JobResponse) -> list[EntryResponse]:
    """The first entries of a job that the user can see in the log."""
    try:
        return (await console.api.log(job=job.job, page_size=MAX_JOB_ENTRIES).page()).entries
    except ClientError:
        return []  # a token without the scope, or a server that does not list handles

"""Jobs with live progress and undo, changing many links, and transferring many records."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from perseid.client.api_exchange import HttpRequest
from perseid.client.api_operations import encode_parameter
from perseid.client.api_services import JOB_PATH
from perseid.client.errors import ClientError, Refused
from perseid.schema.jobs import JobResponse, JobState
from perseid.schema.queries import Selectors
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.routing import BASE as API_BASE

from .advice import describe_advice, get_words
from .log import list_job_entries
from .requests import ConsoleRequest
from .routing import Pages

JOBS: Final = Pages("jobs")
REWRITE: Final = Pages("rewrite")
TRANSFER: Final = Pages("transfer")

PAGE_SIZE: Final = 50
"""Jobs or planned changes on a page."""

_RUNNING: Final = (JobState.RUNNING, JobState.BEING_UNDONE)
_LINKED: Final = ("import", "job")  # parameters that are shown as links
_UNDOABLE: Final = (JobState.DONE, JobState.CANCELED, JobState.UNFINISHED)
_STARTED: Final = ("job-started", "job-resume", "job-undo")  # notices that are outdated when the job is done
_ANY_URL_OF_HOST: Final = re.compile(r"\*://([^/*]+)/\*")


# Jobs


@JOBS.get("/jobs")
async def list_jobs(console: ConsoleRequest) -> Response:
    """List the jobs, the latest first."""
    page = await console.api.jobs(page_size=PAGE_SIZE).page(console.cursor())
    return console.render(
        "jobs.html",
        title=_("Jobs"),
        jobs=page.jobs,
        next_cursor=page.next,
        describe_subject=make_describer(page.jobs),
    )


@JOBS.get("/jobs/{job}")
async def show_job(console: ConsoleRequest) -> Response:
    """Show a job; a script follows its progress, and without it the page can be loaded again."""
    return await _job_page(console, console.names["job"])


@JOBS.get("/jobs/{job}/events")
async def stream_job(console: ConsoleRequest) -> Response:
    """The progress of a job as server-sent events, with the session of the page."""
    path = JOB_PATH.format(job=encode_parameter(console.names["job"]))
    request = HttpRequest("GET", f"{API_BASE}{path}/events", {"Accept": "text/event-stream"})
    response = await console.api.call(request)
    if response.status < HTTPStatus.BAD_REQUEST and response.stream is not None:
        server, session = console.request_context.server, console.session
        assert session is not None  # noqa: S101 - the route needs one
        is_active = partial(server.web_sessions.is_active, session)
        return replace(response, stream=StreamOfSession(response.stream, lambda: is_active(server.time())))
    # Without the challenge of the API, for which a browser would show its password dialog.
    return Response(response.status, (NO_STORE,), response.body)


class StreamOfSession(AsyncIterator[bytes]):
    """Ends a stream when the session ends; it has a part, maybe an empty one, every second.

    Not a generator: closing one that has not started, as for HEAD, would not close the stream.
    """

    def __init__(self, stream: AsyncIterator[bytes], is_active: Callable[[], bool]) -> None:
        self._stream = stream
        self._is_active = is_active

    async def __anext__(self) -> bytes:
        part = await anext(self._stream)
        if self._is_active():
            return part
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the stream: the client has gone, or wants no body."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


@JOBS.post("/jobs/{job}/{action}")
async def change_job(console: ConsoleRequest) -> Response:
    """Resume, cancel or undo a job."""
    job, action = console.names["job"], console.names["action"]
    try:
        match action:
            case "resume":
                changed = await console.api.resume(job)
            case "cancel":
                changed = await console.api.cancel(job)
            case "undo":
                changed = await console.api.undo(job, note=console.text("note"))
            case _:
                raise Refused(_("The console has no such page"))
    except ClientError as error:
        return await _job_page(console, job, error)
    return console.redirect("jobs", changed.job, done=f"job-{action}")


@JOBS.get("/jobs/{job}/undo")
async def preview_undo(console: ConsoleRequest) -> Response:
    """Show what the undo of a job would change, and what prevents it."""
    job = await console.api.job(console.names["job"])
    plan = await console.api.preview_undo(job.job)
    advice, language = ("", "") if plan.problem is None else describe_advice(plan.problem, plan.problem.advice)
    undone = job.parameters.get("job") if job.kind == "undo" else None  # to undo its undo is to redo it
    title = _("Redo job {job}").format(job=undone) if undone else _("Undo job {job}").format(job=job.job)
    return console.render(
        "job_undo.html",
        title=title,
        job=job,
        about=await _describe_with_undone(console, job),
        plan=plan,
        changes=plan.total - plan.reserved,
        advice=advice,
        advice_language=language,
        is_redo=bool(undone),
    )


async def _job_page(console: ConsoleRequest, name: str, problem: ClientError | None = None) -> Response:
    job = await console.api.job(name)
    advice, language = ("", "") if job.problem is None else describe_advice(job.problem, job.problem.advice)
    done = console.query.first("done") or ""
    return console.render(
        "job.html",
        done="job-done" if done in _STARTED and job.state is JobState.DONE else done,
        advice=advice,
        advice_language=language,
        title=_("Job {job}").format(job=job.job),
        about=await _describe_with_undone(console, job),
        problem=problem,
        scripts=("job.js",) if job.state in _RUNNING else (),
        job=job,
        parameters=_parameters(job),
        entries=await list_job_entries(console, job),
        is_running=job.state in _RUNNING,
        can_undo=job.state in _UNDOABLE,
    )


def _parameters(job: JobResponse) -> list[tuple[str, str]]:
    """The parameters of a job with their labels; those that the page shows as links are left out."""
    labels, parameters = _describe_parameters(), dict(job.parameters)
    if match := _ANY_URL_OF_HOST.fullmatch(str(parameters.get("url"))):
        parameters = {"host": match[1]} | {name: value for name, value in parameters.items() if name != "url"}
    return [
        (labels.get(name, name), _describe_value(name, value))
        for name, value in parameters.items()
        if name not in _LINKED and value not in (None, "", [], False)
    ]


async def _describe_with_undone(console: ConsoleRequest, job: JobResponse) -> str:
    """What a job does, with what it undoes."""
    known = {}
    if job.kind == "undo":
        with suppress(ClientError):
            undone = await console.api.job(str(job.parameters.get("job")))
            known = {undone.job: undone}
    return describe_job(job, known)


def make_describer(jobs: Sequence[JobResponse]) -> Callable[[JobResponse], str]:
    """Return what describes the subject of each job of a list, where an undo is about another job of the list."""
    known = {job.job: job for job in jobs}
    return lambda job: _describe_subject(job, known)


def describe_job(job: JobResponse, known: Mapping[str, JobResponse]) -> str:
    """What a job does, in a line: its kind and its subject, which may be a known job."""
    subject = _describe_subject(job, known)
    kind = get_words().get(job.kind, job.kind)
    return f"{kind}: {subject}" if subject else kind


def _describe_subject(job: JobResponse, known: Mapping[str, JobResponse]) -> str:
    """What a job is about: its file, URLs, records, or the job that it undoes; empty if it does not say."""
    texts = {name: str(value) for name, value in job.parameters.items() if isinstance(value, str)}
    what = next((texts[name] for name in ("file", "url", "where", "prefix", "job") if texts.get(name)), "")
    if match := _ANY_URL_OF_HOST.fullmatch(what):
        what = match[1]
    if what in known:
        what = describe_job(known[what], {})
    return f"{what} → {texts['to']}" if what and texts.get("to") else what


def _describe_value(name: str, value: object) -> str:
    if isinstance(value, list):
        return ", ".join([_describe_value(name, each) for each in value])
    if name == "on_existing":
        return {"skip": _("skip the row"), "update": _("update the record")}.get(str(value), str(value))
    if name == "roles":
        return get_words().get(str(value), str(value))
    return _("yes") if value is True else str(value)


def _describe_parameters() -> dict[str, str]:
    """Labels of the parameters of jobs; one of a newer version has its own name."""
    return {
        "changed_since": _("Changed after entry"),
        "count": _("Number of identifiers"),
        "derived": _("With derived prefixes"),
        "file": _("File"),
        "host": _("Host"),
        "mint": _("Mints identifiers"),
        "on_existing": _("If an identifier exists already"),
        "owner": _("Owner"),
        "path": _("Beginning of the path"),
        "prefix": _("Prefix"),
        "preserve_dates": _("Keeps dates and owners"),
        "reserve": _("Reserves identifiers"),
        "roles": _("Roles"),
        "sha256": _("SHA-256 of the file"),
        "skipped_rows": _("Invalid rows, skipped"),
        "source": _("Source"),
        "to": _("To"),
        "type": _("Type"),
        "url": _("URL"),
        "value": _("Value"),
        "where": _("Prefix or identifier"),
        "words": _("Words of the title"),
    }


# Changing links


@REWRITE.get("/rewrite")
async def show_rewrite(console: ConsoleRequest) -> Response:
    """Show the form, and with its fields what would change."""
    namespaces = (await console.api.namespaces(mine=True).page()).namespaces
    shown = {name: console.text(name) for name in ("url", "host", "prefix", "to")}
    plan, problem = None, None
    if shown["to"]:
        try:
            pages = console.api.preview_rewrite(_selectors(console), shown["to"], page_size=PAGE_SIZE)
            plan = await pages.page(console.cursor())
        except ClientError as error:
            problem = error
    return console.render(
        "rewrite.html",
        title=_("Change links"),
        problem=problem,
        namespaces=namespaces,
        plan=plan,
        is_whole=plan is not None and not plan.next and not console.cursor(),
        exact=bool(shown["to"] and shown["url"]) and not shown["url"].endswith("*") and not (plan and plan.handles),
        url=shown["url"],
        host=shown["host"],
        prefix=shown["prefix"],
        to=shown["to"],
    )


@REWRITE.post("/rewrite")
async def start_rewrite(console: ConsoleRequest) -> Response:
    """Start the job."""
    job = await console.api.rewrite(_selectors(console), console.text("to"), note=console.text("note"))
    return console.redirect("jobs", job.job, done="job-started")


def _selectors(console: ConsoleRequest) -> Selectors:
    url, host, prefix = (console.text(name) or None for name in ("url", "host", "prefix"))
    return Selectors(url=url, host=host, prefix=prefix)


# Transfer


@TRANSFER.get("/transfer")
async def show_transfer(console: ConsoleRequest) -> Response:
    """Show the form, and with its fields which records would get the new owner."""
    return await _transfer_page(console)


@TRANSFER.post("/transfer")
async def start_transfer(console: ConsoleRequest) -> Response:
    """Start the job."""
    where, to, derived = console.text("where"), console.text("to"), bool(console.text("derived"))
    try:
        job = await console.api.transfer_all(where, to, derived=derived, note=console.text("note"))
    except ClientError as error:
        return await _transfer_page(console, error)
    return console.redirect("jobs", job.job, done="job-started")


async def _transfer_page(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    where, to, derived = console.text("where"), console.text("to"), bool(console.text("derived"))
    namespaces = (await console.api.namespaces(mine=True).page()).namespaces
    plan = None
    if where and to:
        try:
            pages = console.api.preview_transfer(where, to, derived=derived, page_size=PAGE_SIZE)
            plan = await pages.page(console.cursor())
        except ClientError as error:
            problem = problem or error
    return console.render(
        "transfer.html",
        title=_("Transfer"),
        problem=problem,
        namespaces=namespaces,
        plan=plan,
        is_whole=plan is not None and not plan.next and not console.cursor(),
        where=where,
        to=to,
        derived=derived,
    )

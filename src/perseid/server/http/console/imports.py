"""Importing a file: upload, map its columns, see what would change, apply, and undo through its job."""

import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from perseid.client.errors import ClientError, Refused
from perseid.registry.advice import AdviceKind
from perseid.schema.imports import ImportQuery, ImportResponse, ImportState, OnExisting, has_changes
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import NO_STORE

from .advice import describe_advice
from .requests import ConsoleRequest
from .routing import Pages

IMPORTS: Final = Pages("imports")

PAGE_SIZE: Final = 50
"""Problems and changes on a page."""

_TEXTS: Final = ("format", "delimiter", "encoding", "sheet", "prefix", "profile")
_FLAGS: Final = ("raw", "mint", "mint_again", "skip_invalid")


@IMPORTS.get("/imports")
async def show_upload(console: ConsoleRequest) -> Response:
    """Show the form for a file."""
    return await _upload_form(console)


@IMPORTS.post("/imports")
async def upload(console: ConsoleRequest) -> Response:
    """Upload a file; the server checks it, and nothing is changed. The file can be larger than other forms."""
    file = console.files.get("file")
    try:
        if file is None or not file.name:
            raise Refused(_("No file was chosen"), advice=_("Choose a file"))
        query = _read_options(console, ImportQuery(name=file.name[:255]))
        made = await console.api.create_import(file.file, query)
    except ClientError as error:
        return await _upload_form(console, error)
    return console.redirect("imports", made.id)


async def _upload_form(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    namespaces = (await console.api.namespaces(mine=True).page()).namespaces
    options = _read_options(console, ImportQuery())
    if like := console.text("like"):  # another import, whose options are used again
        try:
            options = _get_options(await console.api.show_import(like))
        except ClientError as error:
            problem = problem or error
    return console.render(
        "import_new.html",
        title=_("Import a file"),
        problem=problem,
        pending=(await console.api.pending_imports()).imports,
        namespaces=namespaces,
        options=options,
        on_existing=tuple(OnExisting),
    )


@IMPORTS.get("/imports/example.csv")
async def download_example(console: ConsoleRequest) -> Response:
    """A table with the columns of most files, to fill in; its handles are in a namespace of the user."""
    namespaces = (await console.api.namespaces(mine=True, page_size=1).page()).namespaces
    prefix = namespaces[0].prefix if namespaces else "12345"
    rows = [f"{prefix}/report-{number},https://example.org/reports/{number},Report {number}" for number in (1, 2)]
    headers = (
        ("Content-Type", "text/csv;charset=utf-8"),
        ("Content-Disposition", 'attachment; filename="example.csv"'),
        NO_STORE,
    )
    return Response(200, headers, "\r\n".join(["handle,URL,TITLE", *rows, ""]).encode())


@IMPORTS.get("/imports/{id}")
async def show_import(console: ConsoleRequest) -> Response:
    """Show the result of the check: counts, problems, and what would change."""
    return await _import_page(console)


@IMPORTS.post("/imports/{id}/check")
async def check_again(console: ConsoleRequest) -> Response:
    """Check the file again: with other options, with meanings of its unknown columns, or with an option more."""
    import_id = console.names["id"]
    try:
        options = _get_options(await console.api.show_import(import_id))
        if console.text("options"):
            options = _read_options(console, options)
        else:
            changed = {flag: True for flag in _FLAGS if console.text(flag)}
            mapped = (*options.map, *_read_mapping(console))
            options = msgspec.structs.replace(options, map=mapped, **changed)
        await console.api.recheck_import(import_id, options)
    except ClientError as error:
        return await _import_page(console, error)
    return console.redirect("imports", import_id)


@IMPORTS.post("/imports/{id}/apply")
async def apply_import(console: ConsoleRequest) -> Response:
    """Start the job that imports the rows, if the file was not checked again since the page was shown."""
    check = console.text("check")
    try:
        job = await console.api.apply_import(
            console.names["id"],
            note=console.text("note"),
            sha256=console.text("sha256"),
            check=int(check) if check.isdecimal() else None,
        )
    except ClientError as error:
        return await _import_page(console, error)
    return console.redirect("jobs", job.job, done="job-started")


@IMPORTS.post("/imports/{id}/discard")
async def discard_import(console: ConsoleRequest) -> Response:
    """Delete the uploaded file."""
    await console.api.discard_import(console.names["id"])
    return console.redirect("imports", done="import-discarded")


@IMPORTS.get("/imports/{id}/report")
async def download_report(console: ConsoleRequest) -> Response:
    """The invalid rows with their problems, in the form of the file, to be corrected and imported."""
    return await _download(console, "report")


@IMPORTS.get("/imports/{id}/handles")
async def download_handles(console: ConsoleRequest) -> Response:
    """The file again, with the handles that were minted for its rows."""
    return await _download(console, "handles")


async def _download(console: ConsoleRequest, kind: str) -> Response:
    """Return a file of an import; its parts are read while it is sent."""
    import_id, api = console.names["id"], console.api
    read = api.read_import_report if kind == "report" else api.read_minted_handles
    found = await api.show_import(import_id)
    first = await read(import_id, 0)  # what is wrong gets a page

    async def stream() -> AsyncIterator[bytes]:
        part, offset = first, 0
        while part:
            yield part
            offset += len(part)
            part = await read(import_id, offset)

    name = re.sub(r"[^A-Za-z0-9._-]", "_", found.name)[-100:] or "import"
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f'attachment; filename="{kind}-{name}"'),
        ("Cache-Control", "no-store"),
    )
    return Response(200, headers, stream=stream())


async def _import_page(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    found = await console.api.show_import(console.names["id"])
    problems, changes = None, None
    if found.invalid:
        problems = await console.api.import_problems(found.id, page_size=PAGE_SIZE).page(console.cursor("problems"))
    if found.changes:
        changes = await console.api.import_changes(found.id, page_size=PAGE_SIZE).page(console.cursor("changes"))
    advice, language = describe_advice(found, found.advice or "")
    return console.render(
        "import.html",
        advice=advice,
        advice_language=language,
        fixes=[describe_advice(each, each.fix) for each in problems.problems] if problems is not None else [],
        title=_("Import of {name}").format(name=found.name or found.id),
        problem=problem,
        found=found,
        problems=problems,
        changes=changes,
        columns=_columns(found),
        unknown=_find_unknown(found),
        meanings=_describe_meanings(),
        minted_by=_find_minting_job(found, problem),
        can_check=found.state in (ImportState.INVALID, ImportState.READY),
        namespaces=(await console.api.namespaces(mine=True).page()).namespaces,
        options=_get_options(found) if not console.text("options") else _read_options(console, _get_options(found)),
        on_existing=tuple(OnExisting),
        has_invalid_rows=found.state is ImportState.INVALID and not found.problem,
        is_checking=found.state in (ImportState.CHECKING, ImportState.UPLOADING),
        is_ready=found.state is ImportState.READY and has_changes(found.outcomes),
        is_unchanged=found.state is ImportState.READY and not has_changes(found.outcomes),
    )


def _find_minting_job(found: ImportResponse, problem: ClientError | None) -> str:
    """The job that has minted the identifiers of this file before, if the check or the import was refused for it."""
    refused = None if problem is None else problem.problem
    for each in (found, refused):
        if each is not None and each.advice_kind == AdviceKind.MINT_AGAIN.name:
            return str(each.advice_parameters.get("job", ""))
    return ""


def _columns(found: ImportResponse) -> list[tuple[str, str]]:
    """The columns of a table and their meanings, as far as they are known."""
    columns = found.detected.get("columns")
    found_columns = columns if isinstance(columns, list) else []
    return [(str(each.get("header", "")), str(each.get("meaning", ""))) for each in found_columns]


def _find_unknown(found: ImportResponse) -> dict[str, str]:
    """The columns that mean nothing, with what was probably meant, if they can be given a meaning."""
    columns = found.detected.get("unknown_columns")
    return columns if isinstance(columns, dict) and found.advice_kind == AdviceKind.MAP_COLUMN.name else {}


def _describe_meanings() -> dict[str, str]:
    """What is offered for a column; any other type can be typed."""
    return {
        "-": _("leave it out"),
        "handle": _("the identifier (handle)"),
        "URL": _("the target (URL)"),
        "TITLE": _("a title (TITLE)"),
        "AUTHOR": _("an author (AUTHOR)"),
        "PUBLISHER": _("a publisher (PUBLISHER)"),
        "DATE": _("a date (DATE)"),
        "DESC": _("a description (DESC)"),
        "EMAIL": _("an email address (EMAIL)"),
        "state": _("the state: published, unpublished, reserved or tombstone"),
    }


def _read_mapping(console: ConsoleRequest) -> list[str]:
    """The meanings of columns: as the user has written them, or has chosen them for unknown columns."""
    mapped = [line.strip() for line in console.text("map").splitlines() if line.strip()]
    for name, column in console.form.pairs:
        if name.startswith("column."):
            number = name.removeprefix("column.")
            meaning = console.text(f"other.{number}") or console.text(f"meaning.{number}")
            mapped += [f"{column}={meaning}"] if meaning else []
    return mapped


def _read_options(console: ConsoleRequest, query: ImportQuery) -> ImportQuery:
    """Read the options of the form. A checkbox that is not sent is not checked; other options that it lacks stay."""
    sent = {name for name, _ in console.form.pairs}
    texts = {name: console.text(name) for name in _TEXTS if name in sent}
    flags = {name: bool(console.text(name)) for name in _FLAGS}
    choice = console.text("on_existing")
    on_existing = OnExisting(choice) if choice in tuple(OnExisting) else query.on_existing
    mapped = tuple(_read_mapping(console)) if "map" in sent else query.map
    return msgspec.structs.replace(query, **texts, **flags, on_existing=on_existing, map=mapped)


def _get_options(found: ImportResponse) -> ImportQuery:
    """The options with which a file was checked; those of a newer server are left out."""
    known = {name: value for name, value in found.options.items() if name in ImportQuery.__struct_fields__}
    return msgspec.convert(known, ImportQuery)

"""Creating identifiers, and editing the values of a record with a difference before it is saved.

Two people who edit one record never overwrite each other without a word: the form has the version that it shows, and
a change of another version is refused. The page then shows both, and the form starts from the current version.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perseid.client.errors import ClientError, Refused
from perseid.schema.records import Explanation, MintedHandles, ToCreate, ToMint, ToReplace, ValueInput, WarningInfo
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import NO_STORE

from .advice import API_LANGUAGE, describe_advice
from .records import after_change
from .requests import ConsoleRequest, ProblemView, describe
from .routing import Pages
from .values import (
    EMPTY_ROWS,
    MAX_ROWS,
    Row,
    check_indexes,
    compare,
    merge,
    parse_version,
    read_rows,
    to_inputs,
    to_rows,
    too_many_values,
)

EDITING: Final = Pages("records")

MAX_MINTED: Final = 1_000
"""Identifiers that one form creates: as many as one request of the API. More belong into an import."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What would happen to a change."""

    problem: ProblemView | None = None
    """Why it would be refused; None if it would be made."""
    warnings: tuple[WarningInfo, ...] = ()


PRECONDITION_FAILED: Final = "precondition-failed"

_TITLE: Final = "TITLE"  # offered for new identifiers, and left out if it is not filled in


# Creating


@EDITING.get("/new")
async def show_new(console: ConsoleRequest) -> Response:
    """Show the form that creates identifiers."""
    return await _new_form(console, [Row(type=type_) for type_ in ("URL", _TITLE)])


@EDITING.post("/new")
async def create(console: ConsoleRequest) -> Response:
    """Create one identifier or several, or reserve them."""
    rows = read_rows(console.form)
    if console.text("check"):
        return await _new_form(console, rows, checked=await _explain_rows(console, rows, new=True))
    prefix, suffix, mode = console.text("prefix"), console.text("suffix"), console.text("mode", "mint")
    note, published = console.text("note"), not console.text("unpublished")
    try:
        _require_namespace(console)
        urls = _read_urls(console) if mode == "mint" else []
        values, count = to_inputs(_common_rows(rows, urls)), _read_count(console.text("count", "1"))
        where = f"{prefix}/{suffix}" if suffix else prefix
        if mode == "create":
            handle = suffix if "/" in suffix else f"{prefix}/{suffix}"
            reuse = bool(console.text("reuse_deleted"))
            made = await console.api.create(handle, values, published=published, reuse_deleted=reuse, note=note)
            minted = MintedHandles((made.handle,), warnings=made.warnings)
        elif mode == "reserve":
            minted = await console.api.reserve(where, count=count, note=note)
        elif urls:
            minted = await console.api.mint(where, values, records=_to_records(urls), published=published, note=note)
        else:
            minted = await console.api.mint(where, values, count=count, published=published, note=note)
    except ClientError as error:
        return await _new_form(console, rows, error)
    if len(minted.handles) == 1:
        done = "reserved" if mode == "reserve" else "created"
        return await after_change(console, minted.handles[0], minted.warnings, done)
    targets = urls or [next((row.data for row in rows if row.type == "URL"), "") if mode == "mint" else ""] * count
    return console.render(
        "minted.html",
        title=_("New identifiers"),
        minted=minted,
        mode=mode,
        pairs=list(zip(minted.handles, targets, strict=False)),
        missing=len(targets) - len(minted.handles),
    )


@EDITING.post("/minted.csv")
async def download_minted(console: ConsoleRequest) -> Response:
    """Return the lines of the result as a CSV file: handle and URL, separated by a tab."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("handle", "URL"))
    writer.writerows([line.partition("\t")[::2] for line in console.text("lines").splitlines()])
    headers = (
        ("Content-Type", "text/csv;charset=utf-8"),
        ("Content-Disposition", 'attachment; filename="identifiers.csv"'),
        NO_STORE,
    )
    return Response(200, headers, text.getvalue().encode())


async def _new_form(
    console: ConsoleRequest,
    rows: Sequence[Row],
    problem: ClientError | None = None,
    checked: Checked | None = None,
) -> Response:
    namespaces = (await console.api.namespaces(mine=True).page()).namespaces
    count = console.text("count", "1")
    return console.render(
        "record_new.html",
        title=_("New identifiers"),
        problem=problem,
        scripts=("console.js",),
        namespaces=namespaces,
        rows=[*rows, *[Row()] * EMPTY_ROWS],
        checked=checked,
        max_count=MAX_MINTED,
        prefix=console.text("prefix"),
        suffix=console.text("suffix"),
        mode=console.text("mode", "mint"),
        count=count if count.isascii() and count.isdigit() else "1",  # a browser shows nothing else
        urls=console.text("urls"),
        unpublished=bool(console.text("unpublished")),
        note=console.text("note"),
    )


def _require_namespace(console: ConsoleRequest) -> None:
    """Refuse a form without a namespace. None is chosen for the user: an identifier cannot be moved to another."""
    is_whole = console.text("mode") == "create" and "/" in console.text("suffix")
    if not console.text("prefix") and not is_whole:
        raise Refused(_("No namespace was chosen"), advice=_("Choose a namespace"))


def _read_count(text: str) -> int:
    if not 1 <= (parse_version(text) or 0) <= MAX_MINTED:
        raise _invalid_count()
    return int(text)


def _read_urls(console: ConsoleRequest) -> list[str]:
    """The targets of the new identifiers, one per line."""
    urls = [line.strip() for line in console.text("urls").splitlines() if line.strip()]
    if len(urls) > MAX_MINTED:
        raise _invalid_count()
    return urls


def _to_records(urls: Sequence[str]) -> tuple[tuple[ValueInput, ...], ...]:
    """The values of each record, with one target each."""
    return tuple([(ValueInput("URL", url),) for url in urls])


def _invalid_count() -> Refused:
    reason = _("The number of identifiers must be 1 to {maximum}").format(maximum=f"{MAX_MINTED:,}")
    return Refused(reason, advice=_("Import a file for more"))


def _common_rows(rows: Sequence[Row], urls: Sequence[str]) -> list[Row]:
    """The rows of every new record, without offered ones that are empty: the title, and the URL if each has its own."""
    return [row for row in rows if row.data or (row.type != _TITLE and not (urls and row.type == "URL"))]


# Editing


@EDITING.get("/records/{handle}/edit")
async def show_edit(console: ConsoleRequest) -> Response:
    """Show the values of a record as a form."""
    record = await console.api.resolve(console.names["handle"], private=True)
    if len(record.values) > MAX_ROWS:
        raise too_many_values(len(record.values))
    rows = to_rows(record.values)
    return _edit_form(console, record.handle, record.seq, rows, rows)


@EDITING.post("/records/{handle}/edit")
async def edit(console: ConsoleRequest) -> Response:
    """Show the difference, or save it."""
    handle, rows = console.names["handle"], read_rows(console.form)
    seq = parse_version(console.text("version")) or 0
    record = await console.api.resolve(handle, private=True)
    stored = to_rows(record.values)
    if seq != record.seq:
        return await _conflict(console, seq, rows)
    if console.text("again"):
        return _edit_form(console, record.handle, seq, rows, stored)
    try:
        values = to_inputs(rows, record.values)
        if not console.text("save"):
            checked = await _explain(console, values)
            return _preview(console, record.handle, seq, rows, stored, checked)
        changed = await console.api.replace(
            handle, values, keep_unreadable=True, if_version=seq, note=console.text("note")
        )
    except ClientError as error:
        if error.problem_type == PRECONDITION_FAILED:
            return await _conflict(console, seq, rows)
        return _edit_form(console, record.handle, seq, rows, stored, error)
    return await after_change(console, record.handle, changed.warnings, "saved")


@EDITING.post("/check")
async def check(console: ConsoleRequest) -> Response:
    """Say whether a change would be made, for the script of a form."""
    is_new = not console.text("handle")
    checked = await _explain_rows(console, read_rows(console.form), new=is_new)
    return console.render("explanation.html", title="", checked=checked)


def _edit_form(
    console: ConsoleRequest,
    handle: str,
    seq: int,
    rows: Sequence[Row],
    stored: Sequence[Row],
    problem: ClientError | None = None,
) -> Response:
    return console.render(
        "record_edit.html",
        title=_("Edit {handle}").format(handle=handle),
        problem=problem,
        scripts=("console.js",),
        handle=handle,
        version=seq,
        rows=[*rows, *[Row()] * EMPTY_ROWS],
        stored={row.index: row for row in stored},
        note=console.text("note"),
    )


def _preview(
    console: ConsoleRequest,
    handle: str,
    seq: int,
    rows: Sequence[Row],
    stored: Sequence[Row],
    checked: Checked,
) -> Response:
    return console.render(
        "record_preview.html",
        title=_("Change {handle}").format(handle=handle),
        problem=checked.problem,
        warnings=checked.warnings,
        handle=handle,
        version=seq,
        rows=rows,
        changes=compare(stored, rows),
        note=console.text("note"),
    )


async def _conflict(console: ConsoleRequest, seq: int, rows: Sequence[Row]) -> Response:
    """Show what somebody else has changed meanwhile, and what this user wants to change."""
    handle = console.names["handle"]
    current = await console.api.resolve(handle, private=True)
    try:
        base = to_rows((await console.api.resolve(handle, at=seq, private=True)).values) if seq else []
    except ClientError:
        base = []
    theirs = to_rows(current.values)
    try:
        check_indexes(rows)
    except Refused as error:  # the conflict is shown after the correction
        return _edit_form(console, current.handle, seq, rows, theirs, error)
    merged = merge(base, theirs, rows) if base else None
    return console.render(
        "record_conflict.html",
        409,
        title=_("Conflict at {handle}").format(handle=current.handle),
        handle=current.handle,
        version=current.seq,
        rows=rows if merged is None else merged,
        is_merged=merged is not None,
        theirs=compare(base, theirs),
        yours=compare(base, rows),
        result=compare(theirs, rows if merged is None else merged),
        note=console.text("note"),
    )


# Checks


async def _explain_rows(console: ConsoleRequest, rows: Sequence[Row], *, new: bool) -> Checked:
    """Check the change that a form would make."""
    try:
        if new:
            _require_namespace(console)
        urls = _read_urls(console) if new and console.text("mode", "mint") == "mint" else []
        stored = [] if new else (await console.api.resolve(console.text("handle"), private=True)).values
        values = to_inputs(_common_rows(rows, urls) if new else rows, stored)
    except ClientError as error:
        return Checked(describe(error))
    return await _explain(console, values, urls, new=new)


async def _explain(
    console: ConsoleRequest, values: tuple[ValueInput, ...], urls: Sequence[str] = (), *, new: bool = False
) -> Checked:
    try:
        explained = await console.api.explain(_change(console, values, urls, new=new))
    except ClientError as error:
        return Checked(describe(error))
    return Checked(None if explained.allowed else _refusal(explained), explained.warnings)


def _change(
    console: ConsoleRequest, values: tuple[ValueInput, ...], urls: Sequence[str], *, new: bool
) -> ToCreate | ToMint | ToReplace:
    if not new:
        return ToReplace(console.names.get("handle") or console.text("handle"), values)
    prefix, suffix = console.text("prefix"), console.text("suffix")
    if console.text("mode") == "create":
        return ToCreate(suffix if "/" in suffix else f"{prefix}/{suffix}", values)
    return ToMint(prefix, values, _to_records(urls))


def _refusal(explained: Explanation) -> ProblemView:
    advice, advice_language = describe_advice(explained, explained.advice or "")
    title = _("This change would be refused")
    return ProblemView(422, title, explained.reason, advice, API_LANGUAGE, advice_language)

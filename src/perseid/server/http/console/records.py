"""Browsing and searching identifiers, one record with its history, and changes of its life: publish, tombstone …"""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final

from perseid.client.errors import ClientError, NotFound, Refused
from perseid.names.handle import fold
from perseid.records.titles import TITLE_KEYWORDS, find_words, to_single_line, type_keyword
from perseid.records.types import is_url_type
from perseid.schema.common import HandleState
from perseid.schema.queries import FoundHandle, HandleSummary, VersionResponse
from perseid.schema.records import Record, ToDelete, WarningInfo
from perseid.server.http.messages import Response
from perseid.server.http.pages.texts import _
from perseid.server.http.resolver.paths import absolute_url, path_to

from .advice import describe_own_record, get_notices
from .requests import ConsoleRequest
from .routing import Pages
from .values import Change, Row, compare, parse_version, to_rows

RECORDS: Final = Pages("records")

PAGE_SIZE: Final = 50
"""Identifiers on a page: two screens."""

HISTORY_SIZE: Final = 20
"""Versions on a page; each shows its values."""

MAX_TITLE: Final = 300
"""Characters of a title in the reason of a tombstone: a long sentence."""

SEARCHES: Final = ("url", "host", "value", "words", "type", "owner")
"""Criteria that a user can choose, beside handles."""

_ANY: Final = "*"
_HOST: Final = re.compile("[A-Za-z0-9-]+([.][A-Za-z0-9-]+)+(:[0-9]+)?", re.ASCII)

STATES: Final = tuple([state.value for state in HandleState])


# Browsing


@RECORDS.get("/records")
async def browse(console: ConsoleRequest) -> Response:
    """List the identifiers of a namespace, or search."""
    text, prefix, by = console.text("q"), console.text("prefix"), console.text("by")
    state = HandleState(console.text("state")) if console.text("state") in STATES else None
    start = _find_start(text, prefix) if by in ("", "handle") else None
    namespaces = (await console.api.namespaces(mine=True).page()).namespaces
    if state and not text and not prefix and len(namespaces) == 1:
        prefix = namespaces[0].prefix
    found: list[HandleSummary] | list[FoundHandle] = []
    cursor, problem, remark, by_now = None, None, "", by
    try:
        if start is not None or (prefix and not text):
            where, suffix = start or (prefix, "")
            pages = console.api.list(where, state=state, starts_with=suffix, page_size=PAGE_SIZE)
            listed = await pages.page(console.cursor())
            found, cursor = listed.handles, listed.next
        elif text:
            handle = await _find_handle(console, text) if by in ("", "handle") else None
            if handle is not None:
                return console.redirect("records", handle)
            for by_now in _ways(text, by):
                criteria: dict[str, Any] = {by_now: text, "state": state, **({"prefix": prefix} if prefix else {})}
                results = await console.api.find(**criteria, page_size=PAGE_SIZE).page(console.cursor())
                found, cursor, remark = results.results, results.next, results.remark or ""
                if found or cursor:
                    break
    except ClientError as error:
        problem = error
    return console.render(
        "records.html",
        title=_("Identifiers"),
        problem=problem,
        q=text,
        prefix=prefix,
        by=by,
        by_now=by_now,
        state=state or "",
        states=STATES,
        namespaces=namespaces,
        found=found,
        summaries=await _summarize(console, [each for each in found if isinstance(each, HandleSummary)]),
        has_values=any(isinstance(each, FoundHandle) and each.values for each in found),
        remark=remark,
        next_cursor=cursor,
        similar_urls=f"{text}{_ANY}" if by_now == "url" and not text.endswith(_ANY) else "",
        searched=bool(text or prefix) and problem is None,
    )


async def _summarize(console: ConsoleRequest, listed: Sequence[HandleSummary]) -> dict[str, tuple[str, str]]:
    """The title and the target of listed records by handle, as far as the user can read them."""
    found = {}
    for each in listed:
        if each.state in (HandleState.PUBLISHED, HandleState.UNPUBLISHED):
            with suppress(ClientError):
                record = await console.api.resolve(each.handle, suggest=False)
                target = next((str(value.data.value) for value in record.values if is_url_type(value.type)), "")
                found[each.handle] = _find_title(console, record), target
    return found


def _find_start(text: str, prefix: str) -> tuple[str, str] | None:
    """The prefix and the beginning of the suffix, if a text is the beginning of handles and `*`: `12345/maps-*`."""
    where, slash, suffix = text.removesuffix(_ANY).partition("/")
    if not text.endswith(_ANY) or "://" in text:
        return None
    return (where, suffix) if slash else (prefix, where) if prefix else None


def _ways(text: str, by: str) -> tuple[str, ...]:
    """How to search for a text, until something is found: as URL, as exact value, as host, then by the words of titles,
    unless the user chooses. Text without words has no such search.
    """
    if by == "handle":
        return ()
    if by in SEARCHES:
        return (by,)
    if "://" in text:
        return ("url",)
    hosts = ("host",) if _HOST.fullmatch(text) else ()
    return ("value", *hosts, "words") if find_words(text) else ("value", *hosts)


async def _find_handle(console: ConsoleRequest, text: str) -> str | None:
    """The registered handle if a text is one in any form, and it has a record."""
    try:
        name = (await console.api.parse_name(text)).handle
        return (await read_record(console, name, suggest=False)).handle
    except ClientError:
        return None


# One record


async def read_record(console: ConsoleRequest, handle: str, *, suggest: bool = True) -> Record:
    """Read a record with its private values; without them if the user cannot read them all."""
    try:
        return await console.api.resolve(handle, private=True, suggest=suggest)
    except Refused:
        return await console.api.resolve(handle, suggest=suggest)


@RECORDS.get("/records/{handle}")
async def show_record(console: ConsoleRequest) -> Response:
    """Show a record with all values that the user can read."""
    return await _record_page(console, console.names["handle"], done=console.query.first("done") or "")


async def after_change(console: ConsoleRequest, handle: str, warnings: Sequence[WarningInfo], done: str) -> Response:
    """Show a record after a change: by a redirect, unless there are warnings, which the page then shows."""
    if not warnings:
        return console.redirect("records", handle, done=done)
    return await _record_page(console, handle, warnings, done)


async def _record_page(
    console: ConsoleRequest, handle: str, warnings: Sequence[WarningInfo] = (), done: str = ""
) -> Response:
    try:
        record = await read_record(console, handle)
    except NotFound as error:
        own, path = describe_own_record(handle)
        if path:
            return console.redirect_to(path)
        # After a change, it is not public: a user who can create it cannot always read it.
        problem = None if done in get_notices() else error
        return console.render(
            "record_missing.html",
            title=handle,
            problem=problem,
            handle=handle,
            warnings=warnings,
            done=done,
            can_create=bool(problem) and not own,
        )
    settings = console.request_context.server.settings
    return console.render(
        "record_show.html",
        done=done,
        title=record.handle,
        warnings=warnings,
        record=record,
        rows=to_rows(record.values),
        record_title="" if record.state == HandleState.TOMBSTONE else _find_title(console, record),
        can_delete=await _can_delete(console, record.handle),
        public_path=f"{path_to(record.handle, settings)}?noredirect",
        public_url=absolute_url(path_to(record.handle, settings), settings) if settings.public_url else "",
    )


async def _can_delete(console: ConsoleRequest, handle: str) -> bool:
    """Whether a record can be deleted, by the policy and the permissions of the user."""
    try:
        return (await console.api.explain(ToDelete(handle))).allowed
    except ClientError:
        return False


@RECORDS.get("/records/{handle}/history")
async def show_history(console: ConsoleRequest) -> Response:
    """Show the versions of a record, the newest first."""
    handle = console.names["handle"]
    page = await console.api.history(handle, page_size=HISTORY_SIZE).page(console.cursor())
    rows = [to_rows(version.values) for version in page.versions]
    versions = [
        (version, _describe_action(version, before), values, _compare_with(before, values))
        for version, before, values in zip_longest(page.versions, page.versions[1:], rows)
    ]
    title = _("History of {handle}").format(handle=page.handle)
    return console.render(
        "history.html", title=title, handle=page.handle, versions=versions, next_cursor=page.next, page=page
    )


def _describe_action(version: VersionResponse, earlier: VersionResponse | None) -> str:
    """The action of a version; that of a tombstone which was removed is an update of the ledger."""
    is_restored = earlier is not None and earlier.state == HandleState.TOMBSTONE != version.state
    return "restore" if is_restored and version.action == "update" else version.action


def _compare_with(earlier: VersionResponse | None, rows: Sequence[Row]) -> list[Change]:
    """What a version has changed; nothing if it is the first one, or if the one before is on the next page."""
    return [] if earlier is None else compare(to_rows(earlier.values), rows)


# Changes of its life


@RECORDS.get("/records/{handle}/{action}")
async def show_action(console: ConsoleRequest) -> Response:
    """Show the form of a change."""
    return await _action_form(console)


@RECORDS.post("/records/{handle}/{action}")
async def do_action(console: ConsoleRequest) -> Response:
    """Make the change."""
    handle, action, api = console.names["handle"], console.names["action"], console.api
    note = console.text("note")
    condition = parse_version(console.text("version"))
    try:
        match action:
            case "publish":
                changed = await api.publish(handle, if_version=condition, note=note)
            case "unpublish":
                keep = bool(console.text("keep_history"))
                changed = await api.unpublish(handle, keep_history=keep, if_version=condition, note=note)
            case "tombstone":
                replaced_by = console.text("replaced_by")
                title, reason = console.text("title"), console.text("reason")
                if title and reason:
                    reason = _("“{title}”: {reason}").format(title=title, reason=reason)
                changed = await api.tombstone(handle, reason, replaced_by=replaced_by, if_version=condition, note=note)
            case "restore":
                changed = await api.revive(handle, if_version=condition, note=note)
            case "transfer":
                changed = await api.transfer(handle, console.text("to"), if_version=condition, note=note)
            case "delete":
                await api.delete(handle, if_version=condition, note=note)
                return console.redirect("records", prefix=handle.partition("/")[0], done="deleted")
            case _:
                return await _action_form(console)
    except ClientError as error:
        return await _action_form(console, error)
    return await after_change(console, handle, changed.warnings, action)


async def _action_form(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    action = console.names["action"]
    titles = {
        "publish": _("Publish {handle}"),
        "unpublish": _("Unpublish {handle}"),
        "tombstone": _("Create a tombstone for {handle}"),
        "restore": _("Restore {handle}"),
        "transfer": _("Transfer {handle}"),
        "delete": _("Delete {handle}"),
    }
    if action not in titles:
        raise NotFound(_("The console has no such page"))
    record = await read_record(console, console.names["handle"])
    fields = dict(console.form.pairs)
    if action == "tombstone" and record.state == HandleState.TOMBSTONE:
        titles[action] = _("Change the tombstone of {handle}")
        fields = fields or await _tombstone_fields(console, record)
    return console.render(
        "record_action.html",
        title=titles[action].format(handle=record.handle),
        problem=problem,
        action=action,
        record=record,
        name=_find_title(console, record) if action == "tombstone" else "",
        fields=fields,
    )


async def _tombstone_fields(console: ConsoleRequest, record: Record) -> dict[str, str]:
    """The fields of the form as an existing tombstone has them, by the types of the policy."""
    rules = (await console.api.policy(record.handle.partition("/")[0])).rules
    texts = {fold(row.type): row.data for row in reversed(to_rows(record.values))}
    types = {"reason": "tombstone_reason_type", "replaced_by": "tombstone_replacement_type"}
    return {field: texts.get(fold(rules[type_]), "") for field, type_ in types.items()}


def _find_title(console: ConsoleRequest, record: Record) -> str:
    """The public title of a record, by the types of the settings, or else as in citations; empty if it has none."""
    rows = [row for row in reversed(to_rows(record.values)) if row.permissions[2:3] == "1"]
    texts = {type_keyword(row.type): row.data for row in rows} | {fold(row.type): row.data for row in rows}
    types = (*map(fold, console.request_context.server.settings.service.title_types), *TITLE_KEYWORDS)
    return next((to_single_line(texts[each])[:MAX_TITLE] for each in types if each in texts), "")

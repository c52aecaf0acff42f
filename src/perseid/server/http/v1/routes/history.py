"""The past: what became of one name, how it differs between two moments, and what happened to all of them.

Who may see what is decided in `registry.past` and `registry.past_names`, as for `perseid history` and `perseid log`.
What a name stood for at one moment is told by `records_chapter`, with `at`.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from perseid.records.value import Value
from perseid.registry.access.permissions import Differences
from perseid.registry.context import Context, not_found
from perseid.registry.queries.history import History, RecordHistory, Version, VisibleVersion, get_history, moment
from perseid.registry.queries.listing import ChangedRecord, LogEntry, Page, list_changes, list_log
from perseid.registry.results import InvalidQuery
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import HANDLE_PARAMETERS, iso_time
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, NextCursor, Paging, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.values import Index, ValueResponse, dump_values

SECTION: Final = Routes(
    "History", "What names were, what changed, when, and, for those who may know it, by whom and why."
)

MAX_MOMENT: Final = 100
"""Characters of a time or a number: the longest in ISO 8601 has some forty."""

Moment = Annotated[
    str,
    Doc(
        "A time in ISO 8601, in UTC unless it says; or the number of an entry of the ledger.",
        min_length=1,
        max_length=MAX_MOMENT,
        examples=["2026-11-15T10:00:00Z"],
    ),
]
At = Annotated[str, Doc("When that was, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]
Action = Annotated[
    str,
    Doc(
        "What was done: `create`, `update`, `delete`, `reserve`, `publish`, `unpublish`, `tombstone`, `redact` …",
        examples=["update"],
    ),
]
State = Annotated[
    str,
    Doc(
        "What the name is then: `normal`, `reserved`, `unpublished`, `tombstone`, or `absent` if it has no record.",
        examples=["normal"],
    ),
]
Interface = Annotated[str | None, Doc("Through which door it came: `http`, `native`, `cli` …")]
Actor = Annotated[str | None, Doc("Who did it; left out if you may not know, or it was erased.")]
NoteText = Annotated[str | None, Doc("Why, in the words of who did it; left out if you may not know.")]


class LogQuery(Paging, frozen=True):
    """From where on the log is wanted."""

    since: Annotated[Moment, Doc("Only what came behind this entry, or after this time.")] = "0"


class BetweenQuery(RequestBody, frozen=True):
    """Two moments."""

    earlier: Annotated[Moment, Doc("The earlier moment.", examples=["1"])]
    later: Annotated[Moment | None, Doc("The later moment; now if it is left out.")] = None


class ChangesQuery(Paging, frozen=True, kw_only=True):
    """Two moments."""

    earlier: Annotated[Moment, Doc("The earlier moment.", examples=["1"])]
    later: Annotated[Moment | None, Doc("The later moment; now if it is left out.")] = None


class ModifiedValue(ResponseBody, frozen=True):
    """A value that became another one."""

    index: Index
    old: Annotated[ValueResponse, Doc("What it was.")]
    new: Annotated[ValueResponse, Doc("What it is then.")]


class ValueChanges(ResponseBody, frozen=True, omit_defaults=False):
    """How the values of a record differ, as far as you may see them."""

    added: Annotated[list[ValueResponse], Doc("Values that are there then, and were not before.")]
    removed: Annotated[list[ValueResponse], Doc("Values that were there before, and are not then.")]
    modified: Annotated[list[ModifiedValue], Doc("Values that are others then.")]


class VersionResponse(ResponseBody, frozen=True):
    """What a name was after one entry, as far as you may see it."""

    seq: Seq
    at: At
    action: Action
    state: State
    values: Annotated[list[ValueResponse], Doc("The values, in the order of their indexes.")]
    changed: Annotated[
        ValueChanges | None, Doc("How they differ from those of the version before; left out if that is not shown.")
    ] = None
    redacted: Annotated[int, Doc("How many values of it have been erased for good.")] = 0
    door: Interface = None
    actor: Actor = None
    note: NoteText = None


class HistoryPage(ResponseBody, frozen=True, omit_defaults=False):
    """Versions of one name, newest first."""

    handle: Annotated[str, Doc("The name as it is registered.", examples=["12345/x"])]
    versions: Annotated[list[VersionResponse], Doc("The versions of the page.")]
    complete: Annotated[
        bool, Doc("False if the policy, or the length of the past, kept something back on this page or before it.")
    ]
    next: NextCursor = None


class StateAt(ResponseBody, frozen=True, omit_defaults=False):
    """What a name was at a moment."""

    as_of: Annotated[int, Doc("The last entry of the ledger at that moment.")]
    seq: Annotated[int, Doc("The last entry of the name by then; 0 if it had no record that you may see.")] = 0
    at: Annotated[str | None, Doc("When that was, in ISO 8601; null if there is none.")] = None
    state: State = "absent"


class DifferencesResponse(ResponseBody, frozen=True, omit_defaults=False):
    """How a record differs between two moments."""

    handle: Annotated[str, Doc("The name as it is registered.", examples=["12345/x"])]
    earlier: Annotated[StateAt, Doc("What it was at the earlier moment.")]
    later: Annotated[StateAt, Doc("What it was at the later moment.")]
    changed: Annotated[ValueChanges, Doc("What differs.")]


class EntryResponse(ResponseBody, frozen=True):
    """An entry of the ledger, as far as you may see it."""

    seq: Seq
    at: At
    action: Action
    handle: Annotated[str, Doc("The name that it was done to.", examples=["12345/x"])]
    state: State
    door: Interface = None
    actor: Actor = None
    note: NoteText = None


class LogPage(ResponseBody, frozen=True, omit_defaults=False):
    """Entries of the ledger, oldest first."""

    entries: Annotated[list[EntryResponse], Doc("The entries of the page, of those that you may see.")]
    last: Annotated[
        int | None, Doc("On the last page the last entry of the ledger: give it as `since` to see what comes later.")
    ] = None
    next: NextCursor = None


class ChangedHandle(ResponseBody, frozen=True):
    """A name whose record differs between two moments."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    before: Annotated[int, Doc("Its entry at the earlier moment; 0 if it had none that you may see.")]
    after: Annotated[int, Doc("Its entry at the later moment.")]
    state_before: Annotated[State, Doc("What it was at the earlier moment.")]
    state_after: Annotated[State, Doc("What it was at the later moment.")]
    at: Annotated[str, Doc("When it became what it was at the later moment, in ISO 8601.")]


class ChangedHandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """Names whose records differ between two moments, in the order of their first change."""

    earlier: Annotated[int, Doc("The last entry of the ledger at the earlier moment.")]
    later: Annotated[int, Doc("The last entry of the ledger at the later moment.")]
    names: Annotated[list[ChangedHandle], Doc("The names of the page.")]
    next: NextCursor = None


# One name


@SECTION.add(
    "GET",
    "/handles/{handle}/history",
    "history",
    "The history of a name",
    response=HistoryPage,
    query=Paging,
    problems=(404,),
    parameters=HANDLE_PARAMETERS,
)
async def show_history(call: ApiCall) -> Reply:
    """What a name was: every version, newest first, with what changed and when.

    Everybody sees values that were public then and have not been hidden since. Whoever administers the record sees
    every version, who made it and why; a token needs the word `read` for that.
    """
    handle, limit = call.handle(), call.asked(Paging).limit
    before = await call.after(int)

    def read(context: Context) -> History:
        return get_history(context.snapshot, context.identity, handle, before, limit)

    def respond(found: History) -> Reply:
        following = call.seal(found.before)
        versions = [_to_version(version) for version in found.versions]
        result = HistoryPage(str(found.handle), versions, found.complete, following)
        return Reply(result, name=str(handle), next=following)

    return await call.respond(read, respond, handle)


@SECTION.add(
    "GET",
    "/handles/{handle}/differences",
    "differences",
    "How a name differs between two moments",
    response=DifferencesResponse,
    query=BetweenQuery,
    problems=(403, 404, 422),
    parameters=HANDLE_PARAMETERS,
)
async def show_differences(call: ApiCall) -> Reply:
    """Which values of a name were added, removed and changed between two moments, as far as you may see both.

    A moment before the name existed counts as a record without values.
    """
    handle, asked = call.handle(), call.asked(BetweenQuery)

    def read(context: Context) -> _Between:
        earlier, later = _parse_moments(call, context, asked.earlier, asked.later)
        past = RecordHistory(context.snapshot, context.identity, handle)
        found = _Between(str(past.stored.handle), earlier, later, past.existing_at(earlier), past.existing_at(later))
        if found.before is None and found.after is None:
            raise not_found(past.stored)
        return found

    return await call.respond(read, lambda found: Reply(_to_differences(found), name=str(handle)), handle)


@dataclass(frozen=True, slots=True)
class _Between:
    """What a name was at two moments; None where it had no record that may be seen."""

    handle: str
    earlier: int
    later: int
    before: VisibleVersion | None
    after: VisibleVersion | None


def _to_differences(found: _Between) -> DifferencesResponse:
    before, after = (() if seen is None else seen.values for seen in (found.before, found.after))
    changed = _to_changes(Differences.between(before, after))
    return DifferencesResponse(
        found.handle, _to_state_at(found.earlier, found.before), _to_state_at(found.later, found.after), changed
    )


# All names


@SECTION.add(
    "GET",
    "/log",
    "log",
    "What happened in the whole ledger",
    response=LogPage,
    query=LogQuery,
    scope="find",
    problems=(422, 501),
)
async def show_log(call: ApiCall) -> Reply:
    """What happened to all names, oldest first: number, time, what was done to which name.

    It tells of the names of namespaces in which you may list names. A page may be short, or empty, and not the last.
    On the last page, ask later with `last` as `since` for what has come behind it.
    """
    asked = call.asked(LogQuery)
    before = await call.after(int)

    def read(context: Context) -> Page[LogEntry]:
        after = _parse_moment(call, context, asked.since) if before is None else before
        return list_log(context.snapshot, context.identity, after, asked.limit)

    def respond(page: Page[LogEntry]) -> Reply:
        following = call.seal(page.last if page.more else None)
        # Where another page ended is sealed: it may tell of what was passed over.
        last = None if page.more else page.last
        return Reply(LogPage([_to_entry(each) for each in page.items], last, following), next=following)

    return await call.respond(read, respond)


@SECTION.add(
    "GET",
    "/changes",
    "changes",
    "Which names differ between two moments",
    response=ChangedHandlePage,
    query=ChangesQuery,
    scope="find",
    problems=(422, 501),
)
async def show_changes(call: ApiCall) -> Reply:
    """The names whose records changed between two moments, each once, in the order of their first change.

    It tells of the names of namespaces in which you may list names. A page may be short, or empty, and not the last.
    """
    asked = call.asked(ChangesQuery)
    # What was meant by `later` stays the same on all pages, also where it was now.
    place = await call.after(tuple[int, int, int])

    def read(context: Context) -> tuple[int, int, Page[ChangedRecord]]:
        if place is None:
            earlier, later = _parse_moments(call, context, asked.earlier, asked.later)
            after = None
        else:
            earlier, later, after = place
        return earlier, later, list_changes(context.snapshot, context.identity, earlier, later, after, asked.limit)

    def respond(found: tuple[int, int, Page[ChangedRecord]]) -> Reply:
        earlier, later, page = found
        following = call.seal((earlier, later, page.last) if page.more else None)
        return Reply(
            ChangedHandlePage(earlier, later, [_to_changed_handle(each) for each in page.items], following),
            next=following,
        )

    return await call.respond(read, respond)


# Moments


def _parse_moment(call: ApiCall, context: Context, text: str) -> int:
    """The last entry of the ledger at a moment; raises `Refused`."""
    return moment(context.snapshot.reading, text, call.registry.ledger.log.clock.now())


def _parse_moments(call: ApiCall, context: Context, earlier: str, later: str | None) -> tuple[int, int]:
    first = _parse_moment(call, context, earlier)
    last = context.snapshot.reading.size if later is None else _parse_moment(call, context, later)
    if first > last:
        reason = f"the earlier moment, entry {first}, is behind the later one, entry {last}"
        raise InvalidQuery(reason, "exchange them")
    return first, last


# What is told


def _to_version(version: Version) -> VersionResponse:
    return VersionResponse(
        version.seq,
        iso_time(version.at),
        version.action.name.lower(),
        version.state.name.lower(),
        dump_values(version.values),
        None if version.changed is None else _to_changes(version.changed),
        version.redacted,
        version.door,
        version.actor,
        version.note or None,
    )


def _to_changes(found: Differences) -> ValueChanges:
    modified = [ModifiedValue(new.index, _dump_value(old), _dump_value(new)) for old, new in found.modified]
    return ValueChanges(dump_values(found.added), dump_values(found.removed), modified)


def _dump_value(value: Value) -> ValueResponse:
    (result,) = dump_values((value,))
    return result


def _to_state_at(as_of: int, seen: VisibleVersion | None) -> StateAt:
    if seen is None:
        return StateAt(as_of)
    entry = seen.entry
    return StateAt(as_of, entry.seq, iso_time(entry.at), entry.state.name.lower())


def _to_entry(logged: LogEntry) -> EntryResponse:
    return EntryResponse(
        logged.seq,
        iso_time(logged.at),
        logged.action.name.lower(),
        logged.handle,
        logged.state.name.lower(),
        logged.door,
        logged.actor,
        logged.note or None,
    )


def _to_changed_handle(altered: ChangedRecord) -> ChangedHandle:
    return ChangedHandle(
        altered.handle,
        altered.before,
        altered.after,
        altered.state_before.name.lower(),
        altered.state_after.name.lower(),
        iso_time(altered.at),
    )

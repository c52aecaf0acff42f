"""The past: what became of one name, how it differs between two moments, and what happened to all of them.

Who may see what is decided in `registry.past` and `registry.past_names`, as for `perseid history` and `perseid log`.
What a name stood for at one moment is told by `records_chapter`, with `at`.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from perseid.records.value import Value
from perseid.registry.access.permissions import Differences
from perseid.registry.context import Context, not_found
from perseid.registry.queries.history import History, Past, Seen, Version, history, moment
from perseid.registry.queries.listing import Altered, Logged, Page, changes, log
from perseid.registry.results import Unanswerable
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import PLACE, iso_time
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import About, Given, NextCursor, Paging, Seq, Told
from perseid.server.http.v1.values import Index, ValueTold, told_values

CHAPTER: Final = Routes(
    "History", "What names were, what changed, when, and, for those who may know it, by whom and why."
)

MAX_MOMENT: Final = 100
"""Characters of a time or a number: the longest in ISO 8601 has some forty."""

Moment = Annotated[
    str,
    About(
        "A time in ISO 8601, in UTC unless it says; or the number of an entry of the ledger.",
        min_length=1,
        max_length=MAX_MOMENT,
        examples=["2026-11-15T10:00:00Z"],
    ),
]
At = Annotated[str, About("When that was, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]
Action = Annotated[
    str,
    About(
        "What was done: `create`, `update`, `delete`, `reserve`, `publish`, `unpublish`, `tombstone`, `redact` …",
        examples=["update"],
    ),
]
State = Annotated[
    str,
    About(
        "What the name is then: `normal`, `reserved`, `unpublished`, `tombstone`, or `absent` if it has no record.",
        examples=["normal"],
    ),
]
Door = Annotated[str | None, About("Through which door it came: `http`, `native`, `cli` …")]
Actor = Annotated[str | None, About("Who did it; left out if you may not know, or it was erased.")]
Why = Annotated[str | None, About("Why, in the words of who did it; left out if you may not know.")]


class LogQuery(Paging, frozen=True):
    """From where on the log is wanted."""

    since: Annotated[Moment, About("Only what came behind this entry, or after this time.")] = "0"


class BetweenQuery(Given, frozen=True):
    """Two moments."""

    earlier: Annotated[Moment, About("The earlier moment.", examples=["1"])]
    later: Annotated[Moment | None, About("The later moment; now if it is left out.")] = None


class ChangesQuery(Paging, frozen=True, kw_only=True):
    """Two moments."""

    earlier: Annotated[Moment, About("The earlier moment.", examples=["1"])]
    later: Annotated[Moment | None, About("The later moment; now if it is left out.")] = None


class ModifiedValue(Told, frozen=True):
    """A value that became another one."""

    index: Index
    old: Annotated[ValueTold, About("What it was.")]
    new: Annotated[ValueTold, About("What it is then.")]


class Changes(Told, frozen=True, omit_defaults=False):
    """How the values of a record differ, as far as you may see them."""

    added: Annotated[list[ValueTold], About("Values that are there then, and were not before.")]
    removed: Annotated[list[ValueTold], About("Values that were there before, and are not then.")]
    modified: Annotated[list[ModifiedValue], About("Values that are others then.")]


class VersionTold(Told, frozen=True):
    """What a name was after one entry, as far as you may see it."""

    seq: Seq
    at: At
    action: Action
    state: State
    values: Annotated[list[ValueTold], About("The values, in the order of their indexes.")]
    changed: Annotated[
        Changes | None, About("How they differ from those of the version before; left out if that is not shown.")
    ] = None
    redacted: Annotated[int, About("How many values of it have been erased for good.")] = 0
    door: Door = None
    actor: Actor = None
    note: Why = None


class HistoryTold(Told, frozen=True, omit_defaults=False):
    """Versions of one name, newest first."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    versions: Annotated[list[VersionTold], About("The versions of the page.")]
    complete: Annotated[
        bool, About("False if the policy, or the length of the past, kept something back on this page or before it.")
    ]
    next: NextCursor = None


class PointTold(Told, frozen=True, omit_defaults=False):
    """What a name was at a moment."""

    as_of: Annotated[int, About("The last entry of the ledger at that moment.")]
    seq: Annotated[int, About("The last entry of the name by then; 0 if it had no record that you may see.")] = 0
    at: Annotated[str | None, About("When that was, in ISO 8601; null if there is none.")] = None
    state: State = "absent"


class DifferencesTold(Told, frozen=True, omit_defaults=False):
    """How a record differs between two moments."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    earlier: Annotated[PointTold, About("What it was at the earlier moment.")]
    later: Annotated[PointTold, About("What it was at the later moment.")]
    changed: Annotated[Changes, About("What differs.")]


class EntryTold(Told, frozen=True):
    """An entry of the ledger, as far as you may see it."""

    seq: Seq
    at: At
    action: Action
    handle: Annotated[str, About("The name that it was done to.", examples=["12345/x"])]
    state: State
    door: Door = None
    actor: Actor = None
    note: Why = None


class LogTold(Told, frozen=True, omit_defaults=False):
    """Entries of the ledger, oldest first."""

    entries: Annotated[list[EntryTold], About("The entries of the page, of those that you may see.")]
    last: Annotated[
        int | None, About("On the last page the last entry of the ledger: give it as `since` to see what comes later.")
    ] = None
    next: NextCursor = None


class AlteredTold(Told, frozen=True):
    """A name whose record differs between two moments."""

    handle: Annotated[str, About("The name.", examples=["12345/x"])]
    before: Annotated[int, About("Its entry at the earlier moment; 0 if it had none that you may see.")]
    after: Annotated[int, About("Its entry at the later moment.")]
    state_before: Annotated[State, About("What it was at the earlier moment.")]
    state_after: Annotated[State, About("What it was at the later moment.")]
    at: Annotated[str, About("When it became what it was at the later moment, in ISO 8601.")]


class AlteredNames(Told, frozen=True, omit_defaults=False):
    """Names whose records differ between two moments, in the order of their first change."""

    earlier: Annotated[int, About("The last entry of the ledger at the earlier moment.")]
    later: Annotated[int, About("The last entry of the ledger at the later moment.")]
    names: Annotated[list[AlteredTold], About("The names of the page.")]
    next: NextCursor = None


# One name


@CHAPTER.add(
    "GET",
    "/handles/{handle}/history",
    "history",
    "The history of a name",
    answer=HistoryTold,
    query=Paging,
    problems=(404,),
    parameters=PLACE,
)
async def show_history(call: ApiCall) -> Reply:
    """What a name was: every version, newest first, with what changed and when.

    Everybody sees values that were public then and have not been hidden since. Whoever administers the record sees
    every version, who made it and why; a token needs the word `read` for that.
    """
    handle, limit = call.handle(), call.asked(Paging).limit
    before = await call.after(int)

    def read(context: Context) -> History:
        return history(context.facts, context.who, handle, before, limit)

    def tell(found: History) -> Reply:
        following = call.sealed(found.before)
        versions = [_version(version) for version in found.versions]
        told = HistoryTold(str(found.handle), versions, found.complete, following)
        return Reply(told, name=str(handle), next=following)

    return await call.tell(read, tell, handle)


@CHAPTER.add(
    "GET",
    "/handles/{handle}/differences",
    "differences",
    "How a name differs between two moments",
    answer=DifferencesTold,
    query=BetweenQuery,
    problems=(403, 404, 422),
    parameters=PLACE,
)
async def show_differences(call: ApiCall) -> Reply:
    """Which values of a name were added, removed and changed between two moments, as far as you may see both.

    A moment before the name existed counts as a record without values.
    """
    handle, asked = call.handle(), call.asked(BetweenQuery)

    def read(context: Context) -> _Between:
        earlier, later = _moments(call, context, asked.earlier, asked.later)
        past = Past(context.facts, context.who, handle)
        found = _Between(str(past.held.handle), earlier, later, past.existing_at(earlier), past.existing_at(later))
        if found.before is None and found.after is None:
            raise not_found(past.held)
        return found

    return await call.tell(read, lambda found: Reply(_differences(found), name=str(handle)), handle)


@dataclass(frozen=True, slots=True)
class _Between:
    """What a name was at two moments; None where it had no record that may be seen."""

    handle: str
    earlier: int
    later: int
    before: Seen | None
    after: Seen | None


def _differences(found: _Between) -> DifferencesTold:
    before, after = (() if seen is None else seen.values for seen in (found.before, found.after))
    changed = _changes(Differences.between(before, after))
    return DifferencesTold(found.handle, _point(found.earlier, found.before), _point(found.later, found.after), changed)


# All names


@CHAPTER.add(
    "GET",
    "/log",
    "log",
    "What happened in the whole ledger",
    answer=LogTold,
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

    def read(context: Context) -> Page[Logged]:
        after = _moment(call, context, asked.since) if before is None else before
        return log(context.facts, context.who, after, asked.limit)

    def tell(page: Page[Logged]) -> Reply:
        following = call.sealed(page.last if page.more else None)
        # Where another page ended is sealed: it may tell of what was passed over.
        last = None if page.more else page.last
        return Reply(LogTold([_logged(each) for each in page.items], last, following), next=following)

    return await call.tell(read, tell)


@CHAPTER.add(
    "GET",
    "/changes",
    "changes",
    "Which names differ between two moments",
    answer=AlteredNames,
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

    def read(context: Context) -> tuple[int, int, Page[Altered]]:
        if place is None:
            earlier, later = _moments(call, context, asked.earlier, asked.later)
            after = None
        else:
            earlier, later, after = place
        return earlier, later, changes(context.facts, context.who, earlier, later, after, asked.limit)

    def tell(found: tuple[int, int, Page[Altered]]) -> Reply:
        earlier, later, page = found
        following = call.sealed((earlier, later, page.last) if page.more else None)
        return Reply(AlteredNames(earlier, later, [_altered(each) for each in page.items], following), next=following)

    return await call.tell(read, tell)


# Moments


def _moment(call: ApiCall, context: Context, text: str) -> int:
    """The last entry of the ledger at a moment; raises `Refused`."""
    return moment(context.facts.reading, text, call.registry.ledger.log.clock.now())


def _moments(call: ApiCall, context: Context, earlier: str, later: str | None) -> tuple[int, int]:
    first = _moment(call, context, earlier)
    last = context.facts.reading.size if later is None else _moment(call, context, later)
    if first > last:
        reason = f"the earlier moment, entry {first}, is behind the later one, entry {last}"
        raise Unanswerable(reason, "exchange them")
    return first, last


# What is told


def _version(version: Version) -> VersionTold:
    return VersionTold(
        version.seq,
        iso_time(version.at),
        version.action.name.lower(),
        version.state.name.lower(),
        told_values(version.values),
        None if version.changed is None else _changes(version.changed),
        version.redacted,
        version.door,
        version.actor,
        version.note or None,
    )


def _changes(found: Differences) -> Changes:
    modified = [ModifiedValue(new.index, _one(old), _one(new)) for old, new in found.modified]
    return Changes(told_values(found.added), told_values(found.removed), modified)


def _one(value: Value) -> ValueTold:
    (told,) = told_values((value,))
    return told


def _point(as_of: int, seen: Seen | None) -> PointTold:
    if seen is None:
        return PointTold(as_of)
    entry = seen.entry
    return PointTold(as_of, entry.seq, iso_time(entry.at), entry.state.name.lower())


def _logged(logged: Logged) -> EntryTold:
    return EntryTold(
        logged.seq,
        iso_time(logged.at),
        logged.action.name.lower(),
        logged.handle,
        logged.state.name.lower(),
        logged.door,
        logged.actor,
        logged.note or None,
    )


def _altered(altered: Altered) -> AlteredTold:
    return AlteredTold(
        altered.handle,
        altered.before,
        altered.after,
        altered.state_before.name.lower(),
        altered.state_after.name.lower(),
        iso_time(altered.at),
    )

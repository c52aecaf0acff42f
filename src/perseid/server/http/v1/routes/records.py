"""Records: what a name stands for, read, made and changed, as `perseid create`, `resolve`, `set`, `add` … do."""

from dataclasses import dataclass, replace
from typing import Annotated, Final

from perseid.names.handle import Handle
from perseid.records.value import MAX_VALUES
from perseid.registry.commands.conditions import entry_tag, version_tag
from perseid.registry.commands.records import AddGiven, CreateGiven, Delete, Remove, ReplaceWhole, SetGiven, placed
from perseid.registry.commands.records import Given as GivenValue
from perseid.registry.context import Context, Plan
from perseid.registry.policy.aliases import followed
from perseid.registry.queries.history import as_of, moment
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import Changed, Refused, Resolved
from perseid.server.http import caching
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import (
    CREATED,
    PLACE,
    KeepPast,
    MadeRecord,
    Name,
    RecordChanged,
    Why,
    change,
    iso_time,
    make,
    recalled,
    told,
    told_of,
    under,
)
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import About, Given, Note, Seq, Told
from perseid.server.http.v1.values import Index, Type, ValueGiven, Values, ValueTold, given_values, told_values
from perseid.wire.codes import ResponseCode

CHAPTER: Final = Routes("Records", "What a name stands for: read, made and changed.")

MAX_SELECTED: Final = 100
"""Types and indexes that a query names, each; who wants more reads the whole record."""

_NOT_MODIFIED: Final = 304
_PROBLEMS: Final = (401, 403, 404, 409, 412, 422)

SomeValues = Annotated[tuple[ValueGiven, ...], About("Values.", min_length=1, max_length=MAX_VALUES)]


class RecordQuery(Given, frozen=True):
    """What of a record is wanted."""

    type: Annotated[
        tuple[Type, ...],
        About(
            "Only values of this type; with a dot behind it also all below. May be repeated.",
            max_length=MAX_SELECTED,
            examples=[["URL"]],
        ),
    ] = ()
    index: Annotated[
        tuple[Index, ...],
        About("Only the value at this index. May be repeated.", max_length=MAX_SELECTED, examples=[[1]]),
    ] = ()
    at: Annotated[
        str,
        About(
            "What it was at a time, in ISO 8601, or after an entry, by its number.",
            max_length=100,
            examples=["2026-11-15T10:00:00Z"],
        ),
    ] = ""
    private: Annotated[bool, About("Also what not everybody may see, if you may see it.")] = False
    follow: Annotated[bool, About("Of an alias: what the name stands for to which it leads.")] = False
    suggest: Annotated[
        bool, About("Whether you are told what may have been meant if there is no such name: `false` saves the time.")
    ] = True


class Record(Told, frozen=True):
    """What a name stands for, or stood for."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    state: Annotated[str, About("`normal`, `tombstone`, `unpublished` or `reserved`.", examples=["normal"])]
    values: Annotated[list[ValueTold], About("The values, in the order of their indexes.")]
    seq: Annotated[Seq, About("The entry that made it so: ask for it with `at`, and the answer stays the same.")]
    changed: Annotated[str, About("When that was, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]
    as_of: Annotated[int | None, About("The last entry of the ledger at the moment that was asked for.")] = None
    aliases: Annotated[tuple[str, ...], About("The names that led to it, if aliases were followed.")] = ()
    by_template: Annotated[bool, About("Whether a template made the values: the name has no record of its own.")] = (
        False
    )
    made_from: Annotated[str | None, About("The name whose record a template made them from.")] = None
    query: Annotated[str | None, About("What stood behind a `?`, in schemes where that is no part of a name.")] = None
    fragment: Annotated[str | None, About("What stood behind a `#`, likewise.")] = None


class NewRecord(Given, frozen=True):
    """A record that is to be made."""

    handle: Name
    values: Values = ()
    again: Annotated[bool, About("Use a name again that was deleted.")] = False
    published: Annotated[bool, About("Whether everybody may see it at once.")] = True
    note: Note = ""


class WholeRecord(Given, frozen=True):
    """What a record is to hold, and nothing else."""

    values: Values
    keep_past: KeepPast = False
    note: Note = ""


class MoreValues(Given, frozen=True):
    """Values that a record is to hold besides."""

    values: SomeValues
    note: Note = ""


class OtherValues(Given, frozen=True):
    """Values that are to stand in the place of others."""

    values: SomeValues
    keep_past: KeepPast = False
    note: Note = ""


class RemovalQuery(Why, frozen=True, kw_only=True):
    """Which values are to be removed."""

    index: Annotated[
        tuple[Index, ...],
        About("Where the value stands. May be repeated.", min_length=1, max_length=MAX_SELECTED, examples=[[1]]),
    ]


# Reading


@CHAPTER.add(
    "GET",
    "/handles/{handle}",
    "getRecord",
    "What a name stands for",
    answer=Record,
    query=RecordQuery,
    problems=(404, 422),
    parameters=PLACE,
)
async def get(call: ApiCall) -> Reply:
    """What a name stands for today, or stood for at a time: what everybody may see, and with `private` what you may.

    With both `type` and `index`, values are found by either. Cite the number of the entry: asked for with `at`, it
    gives the same for ever, but for what is hidden or erased later. `ETag` names the state of the record; a change
    with `If-Match` is made in that state only.
    """
    asked, handle = call.asked(RecordQuery), call.handle()
    query = Query(handle, asked.type, asked.index, public_only=not asked.private)
    clock = call.registry.ledger.log.clock

    def read(context: Context) -> tuple[Resolved, int | None, tuple[str, ...]]:
        facts = context.facts
        entry = moment(facts.reading, asked.at, clock.now()) if asked.at else None
        aliases: tuple[str, ...] = ()
        wanted = query
        if asked.follow:
            chain = _chain(context, handle, entry)
            if len(chain) > 1:
                aliases, wanted = tuple(map(str, chain[:-1])), replace(query, handle=chain[-1])
        found = resolve(wanted, context) if entry is None else as_of(facts, context.who, wanted, entry).resolved
        return found, entry, aliases

    def tell(read: tuple[Resolved, int | None, tuple[str, ...]]) -> Reply:
        found, entry, aliases = read
        if entry is not None or aliases or found.by_template:
            return Reply(_record(found, entry, aliases), name=str(handle))
        # With a tag of the record's state, under which it can be changed; all others have one of their octets.
        tag = entry_tag(found.seq) if asked.private else version_tag(found.seq)
        if caching.is_known(call.request, tag):
            return Reply(None, _NOT_MODIFIED, (caching.header(tag),), name=str(handle))
        return Reply(_record(found, None, ()), headers=(caching.header(tag),), name=str(handle))

    return await call.tell(read, tell, handle)


# Making


@CHAPTER.add(
    "POST",
    "/handles",
    "createRecord",
    "Make a record",
    body=NewRecord,
    answer=MadeRecord,
    status=CREATED,
    scope="create",
    creates=True,
    problems=_PROBLEMS,
)
async def create(call: ApiCall) -> Reply:
    """Make a record under a name that you chose, or register a name that was reserved.

    Values without an index get one, from 1 on, HS_ADMIN from 100 on. What the namespace's policy adds (administrators,
    date of creation, creator) comes by itself. A name that exists, or was deleted, is refused unless you say so.
    """
    new = call.given(NewRecord)
    handle = call.named(new.handle, new=True)
    given = await call.worked_out(lambda: given_values(new.values))
    return await make(call, CreateGiven(handle, given, again=new.again, published=new.published), handle, new.note)


# Changing


@CHAPTER.add(
    "PUT",
    "/handles/{handle}",
    "replaceRecord",
    "Replace a record",
    body=WholeRecord,
    answer=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=PLACE,
)
async def replace_whole(call: ApiCall) -> Reply:
    """Replace a record that exists, as a whole.

    What its namespace keeps in every record stays, mentioned or not; and so do its administrators, unless you name
    others: that takes the word `transfer` in the scope of a token besides.
    """
    handle, new = call.handle(), call.given(WholeRecord)
    given = await call.worked_out(lambda: given_values(new.values))
    return await change(call, _Replace(handle, given), handle, new.note, keep_past=new.keep_past)


@CHAPTER.add(
    "DELETE",
    "/handles/{handle}",
    "deleteRecord",
    "Delete a record",
    query=Why,
    answer=RecordChanged,
    scope="delete",
    conditional=True,
    problems=_PROBLEMS,
    parameters=PLACE,
)
async def delete(call: ApiCall) -> Reply:
    """Delete a record, where the namespace's policy allows it. The name is not given a second time.

    A thing that is gone should rather leave a tombstone, which says why and what to use instead.
    """
    handle = call.handle()
    return await change(call, Delete(handle), handle, call.asked(Why).note)


@CHAPTER.add(
    "POST",
    "/handles/{handle}/values",
    "addValues",
    "Add values",
    body=MoreValues,
    answer=RecordChanged,
    scope="update",
    creates=True,
    conditional=True,
    problems=_PROBLEMS,
    parameters=PLACE,
)
async def add(call: ApiCall) -> Reply:
    """Add values to a record; nothing that is there changes. A value without an index gets a free one.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, new = call.handle(), call.given(MoreValues)
    given = await call.worked_out(lambda: given_values(new.values))
    operation = under(call, AddGiven(handle, given), handle)
    reply = await call.create(lambda _: operation, told, handle, new.note)
    return await recalled(call, reply, lambda names, seq: told_of(names[0], seq))


@CHAPTER.add(
    "PUT",
    "/handles/{handle}/values",
    "setValues",
    "Put values in the place of others",
    body=OtherValues,
    answer=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=PLACE,
)
async def set_values(call: ApiCall) -> Reply:
    """Put values in the place of others; what you do not mention stays.

    A value with an index goes there. Without one it takes the place of the only value of its type, or is added where
    there is none. It keeps permissions and TTL of the one before unless you say others. One that was public and becomes
    private is hidden in the past as well, unless you say `keepPast`.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, new = call.handle(), call.given(OtherValues)
    given = await call.worked_out(lambda: given_values(new.values))
    return await change(call, SetGiven(handle, given), handle, new.note, keep_past=new.keep_past)


@CHAPTER.add(
    "DELETE",
    "/handles/{handle}/values",
    "removeValues",
    "Remove values",
    query=RemovalQuery,
    answer=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=PLACE,
)
async def remove(call: ApiCall) -> Reply:
    """Remove values from a record, by their indexes; history keeps them.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, asked = call.handle(), call.asked(RemovalQuery)
    return await change(call, Remove(handle, asked.index), handle, asked.note)


# What the functions share


@dataclass(frozen=True, slots=True)
class _Replace:
    """Replace a record that exists by values as they were given."""

    handle: Handle
    given: tuple[GivenValue, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """As for `ReplaceWhole`."""
        held = context.own(self.handle)
        return ReplaceWhole(self.handle, placed(self.given, ttl=held.policy.default_ttl)).decide(context)


def _chain(context: Context, handle: Handle, entry: int | None) -> tuple[Handle, ...]:
    """The names to the record that aliases lead to; refused if they lead to none."""
    try:
        return followed(context.facts, handle, entry).chain
    except Refused as refused:
        if refused.code is not ResponseCode.ERROR:
            raise
        # The record exists, and what it leads to does not.
        raise Refused(ResponseCode.VALUES_NOT_FOUND, refused.reason, refused.advice, refused.rule) from refused


def _record(found: Resolved, entry: int | None, aliases: tuple[str, ...]) -> Record:
    return Record(
        handle=str(found.registered),
        state=found.state.name.lower(),
        values=told_values(found.values),
        seq=found.seq,
        changed=iso_time(found.at),
        as_of=entry,
        aliases=aliases,
        by_template=found.by_template,
        made_from=None if found.base is None else str(found.base),
        query=found.query,
        fragment=found.fragment,
    )

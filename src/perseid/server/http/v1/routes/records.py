"""Records: what a name stands for, read, made and changed, as `perseid create`, `resolve`, `set`, `add` … do."""

from dataclasses import dataclass, replace
from typing import Annotated, Final

from perseid.names.handle import Handle
from perseid.records.value import MAX_VALUES
from perseid.registry.commands.conditions import entry_tag, version_tag
from perseid.registry.commands.records import (
    AddValues,
    CreateRecord,
    Delete,
    Remove,
    ReplaceRecord,
    SetValues,
    assign_indexes,
)
from perseid.registry.commands.records import PartialValue as GivenValue
from perseid.registry.context import Context, Plan
from perseid.registry.policy.aliases import resolve_aliases
from perseid.registry.queries.history import as_of, moment
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import ChangeResult, Refused, Resolution
from perseid.server.http import caching
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import (
    CREATED,
    HANDLE_PARAMETERS,
    ChangeNote,
    CreatedRecord,
    KeepHistory,
    Name,
    RecordChanged,
    change_record,
    changed_reply,
    create_record,
    iso_time,
    replay,
    to_reply,
    with_condition,
)
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, Note, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.values import Index, Type, ValueInput, ValueResponse, Values, dump_values, parse_values
from perseid.wire.codes import ResponseCode

SECTION: Final = Routes("Records", "What a name stands for: read, made and changed.")

MAX_SELECTED: Final = 100
"""Types and indexes that a query names, each; who wants more reads the whole record."""

_NOT_MODIFIED: Final = 304
_PROBLEMS: Final = (401, 403, 404, 409, 412, 422)

NonEmptyValues = Annotated[tuple[ValueInput, ...], Doc("Values.", min_length=1, max_length=MAX_VALUES)]


class RecordQuery(RequestBody, frozen=True):
    """What of a record is wanted."""

    type: Annotated[
        tuple[Type, ...],
        Doc(
            "Only values of this type; with a dot behind it also all below. May be repeated.",
            max_length=MAX_SELECTED,
            examples=[["URL"]],
        ),
    ] = ()
    index: Annotated[
        tuple[Index, ...],
        Doc("Only the value at this index. May be repeated.", max_length=MAX_SELECTED, examples=[[1]]),
    ] = ()
    at: Annotated[
        str,
        Doc(
            "What it was at a time, in ISO 8601, or after an entry, by its number.",
            max_length=100,
            examples=["2026-11-15T10:00:00Z"],
        ),
    ] = ""
    private: Annotated[bool, Doc("Also what not everybody may see, if you may see it.")] = False
    follow: Annotated[bool, Doc("Of an alias: what the name stands for to which it leads.")] = False
    suggest: Annotated[
        bool, Doc("Whether you are told what may have been meant if there is no such name: `false` saves the time.")
    ] = True


class Record(ResponseBody, frozen=True):
    """What a name stands for, or stood for."""

    handle: Annotated[str, Doc("The name as it is registered.", examples=["12345/x"])]
    state: Annotated[str, Doc("`normal`, `tombstone`, `unpublished` or `reserved`.", examples=["normal"])]
    values: Annotated[list[ValueResponse], Doc("The values, in the order of their indexes.")]
    seq: Annotated[Seq, Doc("The entry that made it so: ask for it with `at`, and the answer stays the same.")]
    changed: Annotated[str, Doc("When that was, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]
    as_of: Annotated[int | None, Doc("The last entry of the ledger at the moment that was asked for.")] = None
    aliases: Annotated[tuple[str, ...], Doc("The names that led to it, if aliases were followed.")] = ()
    by_template: Annotated[bool, Doc("Whether a template made the values: the name has no record of its own.")] = False
    made_from: Annotated[str | None, Doc("The name whose record a template made them from.")] = None
    query: Annotated[str | None, Doc("What stood behind a `?`, in schemes where that is no part of a name.")] = None
    fragment: Annotated[str | None, Doc("What stood behind a `#`, likewise.")] = None


class NewRecord(RequestBody, frozen=True):
    """A record that is to be made."""

    handle: Name
    values: Values = ()
    again: Annotated[bool, Doc("Use a name again that was deleted.")] = False
    published: Annotated[bool, Doc("Whether everybody may see it at once.")] = True
    note: Note = ""


class RecordReplacement(RequestBody, frozen=True):
    """What a record is to hold, and nothing else."""

    values: Values
    keep_past: KeepHistory = False
    note: Note = ""


class NewValues(RequestBody, frozen=True):
    """Values that a record is to hold besides."""

    values: NonEmptyValues
    note: Note = ""


class UpdatedValues(RequestBody, frozen=True):
    """Values that are to stand in the place of others."""

    values: NonEmptyValues
    keep_past: KeepHistory = False
    note: Note = ""


class RemovalQuery(ChangeNote, frozen=True, kw_only=True):
    """Which values are to be removed."""

    index: Annotated[
        tuple[Index, ...],
        Doc("Where the value stands. May be repeated.", min_length=1, max_length=MAX_SELECTED, examples=[[1]]),
    ]


# Reading


@SECTION.add(
    "GET",
    "/handles/{handle}",
    "getRecord",
    "What a name stands for",
    response=Record,
    query=RecordQuery,
    problems=(404, 422),
    parameters=HANDLE_PARAMETERS,
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

    def read(context: Context) -> tuple[Resolution, int | None, tuple[str, ...]]:
        snapshot = context.snapshot
        entry = moment(snapshot.reading, asked.at, clock.now()) if asked.at else None
        aliases: tuple[str, ...] = ()
        wanted = query
        if asked.follow:
            chain = _follow_aliases(context, handle, entry)
            if len(chain) > 1:
                aliases, wanted = tuple(map(str, chain[:-1])), replace(query, handle=chain[-1])
        found = resolve(wanted, context) if entry is None else as_of(snapshot, context.identity, wanted, entry).resolved
        return found, entry, aliases

    def respond(read: tuple[Resolution, int | None, tuple[str, ...]]) -> Reply:
        found, entry, aliases = read
        if entry is not None or aliases or found.by_template:
            return Reply(_to_record(found, entry, aliases), name=str(handle))
        # With a tag of the record's state, under which it can be changed; all others have one of their octets.
        tag = entry_tag(found.seq) if asked.private else version_tag(found.seq)
        if caching.matches_if_none_match(call.request, tag):
            return Reply(None, _NOT_MODIFIED, (caching.etag_header(tag),), name=str(handle))
        return Reply(_to_record(found, None, ()), headers=(caching.etag_header(tag),), name=str(handle))

    return await call.respond(read, respond, handle)


# Making


@SECTION.add(
    "POST",
    "/handles",
    "createRecord",
    "Make a record",
    body=NewRecord,
    response=CreatedRecord,
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
    new = call.payload(NewRecord)
    handle = call.parse_handle(new.handle, new=True)
    payload = await call.run_in_pool(lambda: parse_values(new.values))
    return await create_record(
        call, CreateRecord(handle, payload, again=new.again, published=new.published), handle, new.note
    )


# Changing


@SECTION.add(
    "PUT",
    "/handles/{handle}",
    "replaceRecord",
    "Replace a record",
    body=RecordReplacement,
    response=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def replace_record(call: ApiCall) -> Reply:
    """Replace a record that exists, as a whole.

    What its namespace keeps in every record stays, mentioned or not; and so do its administrators, unless you name
    others: that takes the word `transfer` in the scope of a token besides.
    """
    handle, new = call.handle(), call.payload(RecordReplacement)
    payload = await call.run_in_pool(lambda: parse_values(new.values))
    return await change_record(call, _Replace(handle, payload), handle, new.note, keep_past=new.keep_past)


@SECTION.add(
    "DELETE",
    "/handles/{handle}",
    "deleteRecord",
    "Delete a record",
    query=ChangeNote,
    response=RecordChanged,
    scope="delete",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def delete(call: ApiCall) -> Reply:
    """Delete a record, where the namespace's policy allows it. The name is not given a second time.

    A thing that is gone should rather leave a tombstone, which says why and what to use instead.
    """
    handle = call.handle()
    return await change_record(call, Delete(handle), handle, call.asked(ChangeNote).note)


@SECTION.add(
    "POST",
    "/handles/{handle}/values",
    "addValues",
    "Add values",
    body=NewValues,
    response=RecordChanged,
    scope="update",
    creates=True,
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def add(call: ApiCall) -> Reply:
    """Add values to a record; nothing that is there changes. A value without an index gets a free one.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, new = call.handle(), call.payload(NewValues)
    payload = await call.run_in_pool(lambda: parse_values(new.values))
    operation = with_condition(call, AddValues(handle, payload), handle)
    reply = await call.create(lambda _: operation, to_reply, handle, new.note)
    return await replay(call, reply, lambda names, seq: changed_reply(names[0], seq))


@SECTION.add(
    "PUT",
    "/handles/{handle}/values",
    "setValues",
    "Put values in the place of others",
    body=UpdatedValues,
    response=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def set_values(call: ApiCall) -> Reply:
    """Put values in the place of others; what you do not mention stays.

    A value with an index goes there. Without one it takes the place of the only value of its type, or is added where
    there is none. It keeps permissions and TTL of the one before unless you say others. One that was public and becomes
    private is hidden in the past as well, unless you say `keepPast`.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, new = call.handle(), call.payload(UpdatedValues)
    payload = await call.run_in_pool(lambda: parse_values(new.values))
    return await change_record(call, SetValues(handle, payload), handle, new.note, keep_past=new.keep_past)


@SECTION.add(
    "DELETE",
    "/handles/{handle}/values",
    "removeValues",
    "Remove values",
    query=RemovalQuery,
    response=RecordChanged,
    scope="update",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def remove(call: ApiCall) -> Reply:
    """Remove values from a record, by their indexes; history keeps them.

    Administrators, groups and keys take the word `transfer` in the scope of a token in place of `update`.
    """
    handle, asked = call.handle(), call.asked(RemovalQuery)
    return await change_record(call, Remove(handle, asked.index), handle, asked.note)


# What the functions share


@dataclass(frozen=True, slots=True)
class _Replace:
    """Replace a record that exists by values as they were given."""

    handle: Handle
    payload: tuple[GivenValue, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """As for `ReplaceWhole`."""
        stored = context.get_hosted(self.handle)
        return ReplaceRecord(self.handle, assign_indexes(self.payload, ttl=stored.policy.default_ttl)).decide(context)


def _follow_aliases(context: Context, handle: Handle, entry: int | None) -> tuple[Handle, ...]:
    """The names to the record that aliases lead to; refused if they lead to none."""
    try:
        return resolve_aliases(context.snapshot, handle, entry).chain
    except Refused as refused:
        if refused.code is not ResponseCode.ERROR:
            raise
        # The record exists, and what it leads to does not.
        raise Refused(ResponseCode.VALUES_NOT_FOUND, refused.reason, refused.advice, refused.rule) from refused


def _to_record(found: Resolution, entry: int | None, aliases: tuple[str, ...]) -> Record:
    return Record(
        handle=str(found.registered),
        state=found.state.name.lower(),
        values=dump_values(found.values),
        seq=found.seq,
        changed=iso_time(found.at),
        as_of=entry,
        aliases=aliases,
        by_template=found.by_template,
        made_from=None if found.base is None else str(found.base),
        query=found.query,
        fragment=found.fragment,
    )

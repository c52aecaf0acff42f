"""Routes of records: create, read, change, delete, publish, unpublish, tombstone and transfer."""

from typing import Final

from perseid.registry.commands.composition import entry_tag, version_tag
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.records import (
    AddValues,
    CreateRecord,
    Delete,
    Remove,
    ReplaceRecord,
    SetValues,
)
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.queries.aliases import find_record
from perseid.registry.queries.resolve import Query
from perseid.schema.common import ChangeNote
from perseid.schema.records import (
    CreatedRecord,
    NewOwner,
    NewRecord,
    NewTombstone,
    NewValues,
    Record,
    RecordChanged,
    RecordQuery,
    RecordReplacement,
    RemovalQuery,
    UnpublishRequest,
    UpdatedValues,
)
from perseid.server.http.v1.api_call import (
    CREATED,
    ApiCall,
    change_record,
    changed_reply,
    execute_create,
    parse_value_ref,
    parse_values,
    replay_handles,
    to_reply,
    with_condition,
)
from perseid.server.http.v1.routing import Reply, Routes

RECORDS: Final = Routes(
    "Records",
    "Create, read, change and delete records.",
    defaults={"problems": (401, 403, 404, 409, 412, 422)},
)


# Reading


@RECORDS.add("GET", "/handles/{handle}", "Get a record", problems=(404, 422))
async def get_record(call: ApiCall, query: RecordQuery) -> Reply[Record]:
    """Return a record, now or at a time: its public values, and with `private` those that you can read.

    With both `type` and `index`, values that match either are returned. To cite a version, use the number of its entry
    as `at`: it always returns the same version, except for data that is hidden or redacted later. `ETag` identifies the
    state of the record; send it as `If-Match` to change the record only in that state.

    A type that a `pilin` namespace uses and another service hosts is returned as a copy that comes with Perseid:
    `copy` is true, `seq` is 0, and it has no history.
    """
    handle = call.handle()
    selection = Query(handle, query.type, query.index, public_only=not query.private)

    def read(context: Context) -> Reply[Record]:
        found = find_record(context, selection, query.at, call.now(), follow=query.follow)
        seq = found.resolution.seq
        if found.entry is not None or found.aliases or found.is_copy or found.resolution.by_template:
            return Reply(found.to_response(), name=str(handle))
        # The ETag of the record's state, for `If-Match`; other responses have the ETag of their bytes.
        tag = entry_tag(seq) if query.private else version_tag(seq)
        return Reply(found.to_response(), name=str(handle), tag=tag)

    return await call.read(read, handle, public=not query.private)


# Creating


@RECORDS.add("POST", "/handles", "Create a record", status=CREATED, scope="create", creates=True)
async def create_record(call: ApiCall, new: NewRecord) -> Reply[CreatedRecord]:
    """Create a record under a chosen handle, or register a reserved handle.

    Values without an index get one, from 1 on, HS_ADMIN values from 100 on. Values that the policy requires
    (administrators, creation date, creator) are added automatically. An existing handle is refused; a deleted one too,
    unless you set `reuse_deleted`. With `overwrite` an existing record is replaced; it keeps its administrators unless
    you give others.

    With `preserve_dates` a record from another server keeps its dates; the ledger entry has the current time, the
    interface `import` and your note.
    """
    handle = call.parse_handle(new.handle, new=not new.overwrite)
    values = await call.run_in_pool(lambda: parse_values(new.values, with_timestamps=new.preserve_dates))
    command = CreateRecord(
        handle,
        values,
        overwrite=new.overwrite,
        reuse_deleted=new.reuse_deleted,
        published=new.published,
        preserve_dates=new.preserve_dates,
    )
    return await execute_create(call, command, handle, new.note)


# Changing


@RECORDS.add("PUT", "/handles/{handle}", "Replace a record", scope="update", conditional=True)
async def replace_record(call: ApiCall, new: RecordReplacement) -> Reply[RecordChanged]:
    """Replace an existing record completely.

    Values that the policy requires stay. So do the administrators, unless you give others; for that a token needs the
    scope `transfer` too.
    """
    handle = call.handle()
    values = await call.run_in_pool(lambda: parse_values(new.values))
    command = ReplaceRecord(handle, values=values, keep_unreadable=new.keep_unreadable)
    return await change_record(call, command, handle, new.note, keep_history=new.keep_history)


@RECORDS.add("DELETE", "/handles/{handle}", "Delete a record", scope="delete", conditional=True)
async def delete_record(call: ApiCall, query: ChangeNote) -> Reply[RecordChanged]:
    """Delete a record, if the policy of the namespace allows it. The handle is never assigned again.

    For an object that is gone, create a tombstone instead: it gives the reason and a replacement.
    """
    handle = call.handle()
    return await change_record(call, Delete(handle), handle, query.note)


@RECORDS.add("POST", "/handles/{handle}/values", "Add values", scope="update", creates=True, conditional=True)
async def add_values(call: ApiCall, new: NewValues) -> Reply[RecordChanged]:
    """Add values to a record. Existing values stay. A value without an index gets a free one.

    For administrators, groups and keys a token needs the scope `transfer` instead of `update`.
    """
    handle = call.handle()
    values = await call.run_in_pool(lambda: parse_values(new.values))
    command = with_condition(call, AddValues(handle, values), handle)
    replay = replay_handles(lambda handles, seq: changed_reply(RecordChanged(handles[0], seq)))
    return await call.create(lambda _: command, to_reply, handle, new.note, replay)


@RECORDS.add("PUT", "/handles/{handle}/values", "Set values", scope="update", conditional=True)
async def set_values(call: ApiCall, new: UpdatedValues) -> Reply[RecordChanged]:
    """Set values of a record. Other values stay.

    A value with an index replaces the value at that index. A value without one replaces the only value of its type, or
    is added if there is none. It keeps the permissions and TTL of the replaced value unless you give others. A public
    value that becomes private is hidden in earlier versions too, unless you set `keep_history`.

    For administrators, groups and keys a token needs the scope `transfer` instead of `update`.
    """
    handle = call.handle()
    values = await call.run_in_pool(lambda: parse_values(new.values))
    return await change_record(call, SetValues(handle, values), handle, new.note, keep_history=new.keep_history)


@RECORDS.add("DELETE", "/handles/{handle}/values", "Remove values", scope="update", conditional=True)
async def remove_values(call: ApiCall, query: RemovalQuery) -> Reply[RecordChanged]:
    """Remove values from a record by index. They stay in the history.

    For administrators, groups and keys a token needs the scope `transfer` instead of `update`.
    """
    handle = call.handle()
    return await change_record(call, Remove(handle, query.index), handle, query.note)


# Helpers


LIFECYCLE: Final = Routes(
    "Lifecycle",
    "Publish, unpublish, tombstone and transfer handles.",
    defaults={"conditional": True, "problems": (401, 403, 404, 412, 422)},
)


@LIFECYCLE.add("POST", "/handles/{handle}/publish", "Publish a handle", scope="publish")
async def publish(call: ApiCall, new: ChangeNote) -> Reply[RecordChanged]:
    """Make an unpublished handle public. Does nothing if it is public already.

    A reserved handle has no values yet: create a record under it replacement.
    """
    handle = call.handle()
    return await change_record(call, Publish(handle), handle, new.note)


@LIFECYCLE.add("POST", "/handles/{handle}/unpublish", "Unpublish a handle", scope="publish")
async def unpublish(call: ApiCall, options: UnpublishRequest) -> Reply[RecordChanged]:
    """Hide a handle from everyone except its administrators. The record is unchanged.

    Everyone else gets 404, also for earlier versions. When the handle is published again, values that were public
    before stay hidden in earlier versions unless they are public then; `keep_history` keeps them visible.
    """
    handle = call.handle()
    return await change_record(call, Unpublish(handle), handle, options.note, keep_history=options.keep_history)


@LIFECYCLE.add("POST", "/handles/{handle}/tombstone", "Create a tombstone", scope="tombstone")
async def tombstone(call: ApiCall, new: NewTombstone) -> Reply[RecordChanged]:
    """Create a tombstone: why the object is gone, and what replaces it.

    The handle still resolves: to the reason, the date and the replacement. Earlier values stay in its history, and the
    handle is never assigned again. On an existing tombstone this updates the reason and keeps the date, and also the
    replacement unless the request has one; an empty one removes it.
    """
    handle = call.handle()
    replaced_by = new.replaced_by
    replacement = call.parse_reference(replaced_by, "$.replaced_by") if replaced_by else replaced_by
    return await change_record(call, Tombstone(handle, new.reason, replacement), handle, new.note)


@LIFECYCLE.add("POST", "/handles/{handle}/revive", "Remove a tombstone", scope="tombstone")
async def revive(call: ApiCall, new: ChangeNote) -> Reply[RecordChanged]:
    """Remove a tombstone and restore the record, with its current administrators."""
    handle = call.handle()
    return await change_record(call, Revive(handle), handle, new.note)


@LIFECYCLE.add("POST", "/handles/{handle}/transfer", "Transfer a handle", scope="transfer")
async def transfer(call: ApiCall, new: NewOwner) -> Reply[RecordChanged]:
    """Transfer a handle to another owner, who replaces all its administrators. Creator and creation date stay."""
    handle = call.handle()
    return await change_record(call, Transfer(handle, parse_value_ref(new.to, "$.to")), handle, new.note)

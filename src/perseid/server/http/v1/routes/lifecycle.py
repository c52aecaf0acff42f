"""Publish, unpublish, tombstone and transfer handles."""

from typing import Final

from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.transfer import Transfer
from perseid.schema.common import ChangeNote
from perseid.schema.records import NewOwner, NewTombstone, RecordChanged, UnpublishRequest
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import HANDLE_PARAMETERS, change_record, parse_value_ref
from perseid.server.http.v1.routing import Reply, Routes

SECTION: Final = Routes("Lifecycle", "Publish, unpublish, tombstone and transfer handles.")

_PROBLEMS: Final = (401, 403, 404, 412, 422)


@SECTION.add(
    "POST",
    "/handles/{handle}/publish",
    "publish",
    "Publish a handle",
    body=ChangeNote,
    response=RecordChanged,
    scope="publish",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def publish(call: ApiCall) -> Reply:
    """Make an unpublished handle public. Does nothing if it is public already.

    A reserved handle has no values yet: create a record under it replacement.
    """
    handle = call.handle()
    return await change_record(call, Publish(handle), handle, call.payload(ChangeNote).note)


@SECTION.add(
    "POST",
    "/handles/{handle}/unpublish",
    "unpublish",
    "Unpublish a handle",
    body=UnpublishRequest,
    response=RecordChanged,
    scope="publish",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def unpublish(call: ApiCall) -> Reply:
    """Hide a handle from everyone except its administrators. The record is unchanged.

    Everyone else gets 404, also for earlier versions. When the handle is published again, values that were public
    before stay hidden in earlier versions unless they are public then; `keep_history` keeps them visible.
    """
    handle, options = call.handle(), call.payload(UnpublishRequest)
    return await change_record(call, Unpublish(handle), handle, options.note, keep_history=options.keep_history)


@SECTION.add(
    "POST",
    "/handles/{handle}/tombstone",
    "tombstone",
    "Create a tombstone",
    body=NewTombstone,
    response=RecordChanged,
    scope="tombstone",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def tombstone(call: ApiCall) -> Reply:
    """Create a tombstone: why the object is gone, and what replaces it.

    The handle still resolves: to the reason, the date and the replacement. Earlier values stay in its history, and the
    handle is never assigned again. On an existing tombstone this updates the reason and keeps the date.
    """
    handle, new = call.handle(), call.payload(NewTombstone)
    replacement = None if new.replaced_by is None else call.parse_reference(new.replaced_by, "$.replaced_by")
    return await change_record(call, Tombstone(handle, new.reason, replacement), handle, new.note)


@SECTION.add(
    "POST",
    "/handles/{handle}/revive",
    "revive",
    "Remove a tombstone",
    body=ChangeNote,
    response=RecordChanged,
    scope="tombstone",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def revive(call: ApiCall) -> Reply:
    """Remove a tombstone and restore the record, with its current administrators."""
    handle = call.handle()
    return await change_record(call, Revive(handle), handle, call.payload(ChangeNote).note)


@SECTION.add(
    "POST",
    "/handles/{handle}/transfer",
    "transfer",
    "Transfer a handle",
    body=NewOwner,
    response=RecordChanged,
    scope="transfer",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def transfer(call: ApiCall) -> Reply:
    """Transfer a handle to another owner, who replaces all its administrators. Creator and creation date stay."""
    handle, new = call.handle(), call.payload(NewOwner)
    return await change_record(call, Transfer(handle, parse_value_ref(new.to, "$.to")), handle, new.note)

"""The life of a name: published, hidden, ended, handed over; as `perseid publish`, `tombstone` … do."""

from typing import Annotated, Final

from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.transfer import Transfer
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import (
    HANDLE_PARAMETERS,
    ChangeNote,
    IdentityText,
    KeepHistory,
    Name,
    RecordChanged,
    change_record,
)
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, Note, RequestBody
from perseid.server.http.v1.values import parse_value_ref

SECTION: Final = Routes("Lives", "The life of a name: published, hidden, ended, handed over.")

_PROBLEMS: Final = (401, 403, 404, 412, 422)


class UnpublishRequest(ChangeNote, frozen=True):
    """Why a name is hidden, and what becomes of its past."""

    keep_past: KeepHistory = False


class NewTombstone(RequestBody, frozen=True):
    """That a thing is gone."""

    reason: Annotated[
        str,
        Doc("Why; everybody reads it.", min_length=1, max_length=10_000, examples=["Withdrawn by its publisher"]),
    ]
    replaced_by: Annotated[
        Name | None,
        Doc(
            "The name to use instead, here or elsewhere: a handle, a `hdl:` URI, or a URL of a resolver that is known "
            "here. The handle is stored."
        ),
    ] = None
    note: Note = ""


class NewOwner(RequestBody, frozen=True):
    """Whom a name is handed over to."""

    to: Annotated[IdentityText, Doc("The key or group that owns it from then on, as `INDEX:HANDLE`.")]
    note: Note = ""


@SECTION.add(
    "POST",
    "/handles/{handle}/publish",
    "publish",
    "Publish a name",
    body=ChangeNote,
    response=RecordChanged,
    scope="publish",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def publish(call: ApiCall) -> Reply:
    """Let everybody resolve a name that was unpublished. Nothing happens if everybody can already.

    A reserved name has no values to show yet: make a record under it instead.
    """
    handle = call.handle()
    return await change_record(call, Publish(handle), handle, call.payload(ChangeNote).note)


@SECTION.add(
    "POST",
    "/handles/{handle}/unpublish",
    "unpublish",
    "Hide a name",
    body=UnpublishRequest,
    response=RecordChanged,
    scope="publish",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def unpublish(call: ApiCall) -> Reply:
    """Hide a name from everybody but its administrators; the record stays as it is.

    Everybody else is told that there is no such name, now and for its past. When it is published again, what everybody
    saw before stays hidden unless it is still so; with `keepPast` it can be seen again.
    """
    handle, how = call.handle(), call.payload(UnpublishRequest)
    return await change_record(call, Unpublish(handle), handle, how.note, keep_past=how.keep_past)


@SECTION.add(
    "POST",
    "/handles/{handle}/tombstone",
    "tombstone",
    "Say that a thing is gone",
    body=NewTombstone,
    response=RecordChanged,
    scope="tombstone",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def tombstone(call: ApiCall) -> Reply:
    """Say that a thing is gone, why, and what replaces it.

    The name goes on resolving: to the reason, the date and the replacement. What it held before is in its history, and
    nobody gets the name again. On a tombstone this says it better; the date stays.
    """
    handle, new = call.handle(), call.payload(NewTombstone)
    instead = None if new.replaced_by is None else call.parse_reference(new.replaced_by, "$.replacedBy")
    return await change_record(call, Tombstone(handle, new.reason, instead), handle, new.note)


@SECTION.add(
    "POST",
    "/handles/{handle}/revive",
    "revive",
    "Take a tombstone away",
    body=ChangeNote,
    response=RecordChanged,
    scope="tombstone",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def revive(call: ApiCall) -> Reply:
    """Say that a thing is not gone after all: its record holds what it held, with the administrators it has now."""
    handle = call.handle()
    return await change_record(call, Revive(handle), handle, call.payload(ChangeNote).note)


@SECTION.add(
    "POST",
    "/handles/{handle}/transfer",
    "transfer",
    "Hand a name over",
    body=NewOwner,
    response=RecordChanged,
    scope="transfer",
    conditional=True,
    problems=_PROBLEMS,
    parameters=HANDLE_PARAMETERS,
)
async def transfer(call: ApiCall) -> Reply:
    """Give a name to another owner, who takes the place of all administrators it has. Creator and date stay."""
    handle, new = call.handle(), call.payload(NewOwner)
    return await change_record(call, Transfer(handle, parse_value_ref(new.to, "$.to")), handle, new.note)

"""Explain whether a change would be allowed, without executing it."""

from typing import Final

from perseid.registry.access.permissions import display_name
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint, MintInputs
from perseid.registry.commands.records import AddValues, CreateRecord, Delete, Remove, SetValues, assign_indexes
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Command
from perseid.registry.responses import to_explanation
from perseid.schema.records import (
    ExplainRequest,
    Explanation,
    ToAdd,
    ToCreate,
    ToDelete,
    ToMint,
    ToPublish,
    ToRemove,
    ToSet,
    ToTombstone,
    ToTransfer,
    ToUnpublish,
)
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import RequireIdentity, parse_value_ref, parse_values
from perseid.server.http.v1.problems import render_advice
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.native.decisions import GuardedCommand
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes("Explain", "Check whether a change would be allowed, without making it.")


@SECTION.add(
    "POST",
    "/explain",
    "explain",
    "Explain whether a change is allowed",
    body=ExplainRequest,
    response=Explanation,
    problems=(422,),
)
async def explain(call: ApiCall) -> Reply:
    """Explain whether you could make a change, and why or why not. Nothing is changed.

    A refusal has the same reason, rule and advice as the change itself.
    """
    command = await call.run_in_pool(lambda: _to_command(call, call.body))
    guarded = GuardedCommand(command, call.call.auth.guard, allow_referrals=True)
    registry, identity = call.registry, call.identity
    result = await call.do(WorkKind.READ, lambda: registry.explain(guarded, identity, INTERFACE))
    return Reply(to_explanation(result, render_advice(result.advice)))


def _to_command(call: ApiCall, request: object) -> Command[object]:  # noqa: C901 - one case for each
    match request:
        case ToCreate():
            handle, values = call.parse_handle(request.handle, new=True), parse_values(request.values)
            create = CreateRecord(handle, values, overwrite=request.overwrite, reuse_deleted=request.reuse_deleted)
            return RequireIdentity(create, f"create {display_name(handle)}")
        case ToSet():
            return SetValues(call.parse_handle(request.handle), parse_values(request.values))
        case ToAdd():
            return AddValues(call.parse_handle(request.handle), parse_values(request.values))
        case ToRemove():
            return Remove(call.parse_handle(request.handle), tuple(request.indexes))
        case ToDelete():
            return Delete(call.parse_handle(request.handle))
        case ToMint():
            return Mint(
                MintInputs.of(call.registry), request.prefix, values=assign_indexes(parse_values(request.values))
            )
        case ToPublish():
            return Publish(call.parse_handle(request.handle))
        case ToUnpublish():
            return Unpublish(call.parse_handle(request.handle))
        case ToTombstone():
            return (
                Revive(call.parse_handle(request.handle))
                if request.undo
                else Tombstone(call.parse_handle(request.handle), "gone", None)
            )
        case ToTransfer():
            return Transfer(call.parse_handle(request.handle), parse_value_ref(request.to, "$.to"))
    raise AssertionError(f"unknown request {type(request).__name__}")

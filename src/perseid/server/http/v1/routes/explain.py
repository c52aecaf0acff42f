"""Whether something would be allowed, and why or why not; nothing is done."""

from typing import Annotated, Final

from perseid.registry.access.permissions import display_name
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint, MintInputs
from perseid.registry.commands.records import AddValues, CreateRecord, Delete, Remove, SetValues, assign_indexes
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Command
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import RequireIdentity
from perseid.server.http.v1.problems import to_http_advice
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, RequestBody, ResponseBody
from perseid.server.http.v1.values import Index, Values, parse_value_ref, parse_values
from perseid.server.native.decisions import GuardedCommand
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes("Explaining", "Whether something would be allowed, and why or why not; nothing is done.")

Name = Annotated[str, Doc("The handle that it is about.", min_length=1, max_length=4_096, examples=["12345/x"])]


class ToCreate(RequestBody, frozen=True, tag_field="operation", tag="create"):
    """To make a record under a chosen name."""

    handle: Name
    values: Values = ()
    overwrite: Annotated[bool, Doc("Replace a record that exists, as a whole.")] = False
    again: Annotated[bool, Doc("Use a name again that was deleted.")] = False


class ToSet(RequestBody, frozen=True, tag_field="operation", tag="set"):
    """To put values in the place of others."""

    handle: Name
    values: Values


class ToAdd(RequestBody, frozen=True, tag_field="operation", tag="add"):
    """To add values to a record."""

    handle: Name
    values: Values


class ToRemove(RequestBody, frozen=True, tag_field="operation", tag="remove"):
    """To remove values from a record."""

    handle: Name
    indexes: Annotated[list[Index], Doc("The indexes of the values.", min_length=1, max_length=10_000)]


class ToDelete(RequestBody, frozen=True, tag_field="operation", tag="delete"):
    """To delete a record."""

    handle: Name


class ToMint(RequestBody, frozen=True, tag_field="operation", tag="mint"):
    """To make new names."""

    prefix: Annotated[str, Doc("The prefix of the namespace.", min_length=1, max_length=2_048, examples=["12345"])]
    values: Values = ()


class ToPublish(RequestBody, frozen=True, tag_field="operation", tag="publish"):
    """To let everybody resolve a name."""

    handle: Name


class ToUnpublish(RequestBody, frozen=True, tag_field="operation", tag="unpublish"):
    """To hide a name from everybody but its administrators."""

    handle: Name


class ToTombstone(RequestBody, frozen=True, tag_field="operation", tag="tombstone"):
    """To say that a thing is gone, or that it is not gone after all."""

    handle: Name
    undo: Annotated[bool, Doc("Take the tombstone away.")] = False


class ToTransfer(RequestBody, frozen=True, tag_field="operation", tag="transfer"):
    """To give a name to another owner."""

    handle: Name
    to: Annotated[str, Doc("The new owner, `INDEX:HANDLE`.", max_length=4_096, examples=["200:0.NA/12345"])]


ExplainRequest = (
    ToCreate | ToSet | ToAdd | ToRemove | ToDelete | ToMint | ToPublish | ToUnpublish | ToTombstone | ToTransfer
)


class Explanation(ResponseBody, frozen=True, omit_defaults=False):
    """Whether something would be allowed to whoever asks, and why or why not."""

    allowed: Annotated[bool, Doc("Whether it would be done.")]
    reason: Annotated[str, Doc("Why, or why not.")]
    advice: Annotated[str | None, Doc("What to do about it.")] = None
    rule: Annotated[str | None, Doc("The rule, or the line of the policy, that stands in the way.")] = None
    code: Annotated[int | None, Doc("The number that the Handle System has for the refusal.")] = None


@SECTION.add(
    "POST", "/explain", "explain", "May I do that?", body=ExplainRequest, response=Explanation, problems=(422,)
)
async def explain(call: ApiCall) -> Reply:
    """Whether something would be allowed to whoever asks, and why or why not. Nothing is done.

    The refusal is the one that the operation itself would meet, with the same rule and advice.
    """
    command = await call.run_in_pool(lambda: _to_command(call, call.body))
    guarded = GuardedCommand(command, call.call.auth.guard, allow_referrals=True)
    registry, identity = call.registry, call.identity
    found = await call.do(WorkKind.READ, lambda: registry.explain(guarded, identity, INTERFACE))
    code = None if found.code is None else int(found.code)
    advice = to_http_advice(found.advice) or None
    return Reply(Explanation(found.allowed, found.reason, advice, found.rule or None, code))


def _to_command(call: ApiCall, request: object) -> Command[object]:  # noqa: C901 - one case for each
    match request:
        case ToCreate():
            handle, payload = call.parse_handle(request.handle, new=True), parse_values(request.values)
            create = CreateRecord(handle, payload, overwrite=request.overwrite, again=request.again)
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
    raise AssertionError(f"{type(request).__name__} is not one of the operations")

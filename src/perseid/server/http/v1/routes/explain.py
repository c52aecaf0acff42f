"""Whether something would be allowed, and why or why not; nothing is done."""

from typing import Annotated, Final

from perseid.registry.access.permissions import shown
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Maker, Mint
from perseid.registry.commands.records import AddGiven, CreateGiven, Delete, Remove, SetGiven, placed
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Operation
from perseid.server.http.context import DOOR
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import Known
from perseid.server.http.v1.problems import said_here
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import About, Given, Told
from perseid.server.http.v1.values import Index, Values, given_values, party
from perseid.server.native.decisions import Guarded
from perseid.server.native.steps import Kind

CHAPTER: Final = Routes("Explaining", "Whether something would be allowed, and why or why not; nothing is done.")

Name = Annotated[str, About("The handle that it is about.", min_length=1, max_length=4_096, examples=["12345/x"])]


class ToCreate(Given, frozen=True, tag_field="operation", tag="create"):
    """To make a record under a chosen name."""

    handle: Name
    values: Values = ()
    overwrite: Annotated[bool, About("Replace a record that exists, as a whole.")] = False
    again: Annotated[bool, About("Use a name again that was deleted.")] = False


class ToSet(Given, frozen=True, tag_field="operation", tag="set"):
    """To put values in the place of others."""

    handle: Name
    values: Values


class ToAdd(Given, frozen=True, tag_field="operation", tag="add"):
    """To add values to a record."""

    handle: Name
    values: Values


class ToRemove(Given, frozen=True, tag_field="operation", tag="remove"):
    """To remove values from a record."""

    handle: Name
    indexes: Annotated[list[Index], About("The indexes of the values.", min_length=1, max_length=10_000)]


class ToDelete(Given, frozen=True, tag_field="operation", tag="delete"):
    """To delete a record."""

    handle: Name


class ToMint(Given, frozen=True, tag_field="operation", tag="mint"):
    """To make new names."""

    prefix: Annotated[str, About("The prefix of the namespace.", min_length=1, max_length=2_048, examples=["12345"])]
    values: Values = ()


class ToPublish(Given, frozen=True, tag_field="operation", tag="publish"):
    """To let everybody resolve a name."""

    handle: Name


class ToUnpublish(Given, frozen=True, tag_field="operation", tag="unpublish"):
    """To hide a name from everybody but its administrators."""

    handle: Name


class ToTombstone(Given, frozen=True, tag_field="operation", tag="tombstone"):
    """To say that a thing is gone, or that it is not gone after all."""

    handle: Name
    undo: Annotated[bool, About("Take the tombstone away.")] = False


class ToTransfer(Given, frozen=True, tag_field="operation", tag="transfer"):
    """To give a name to another owner."""

    handle: Name
    to: Annotated[str, About("The new owner, `INDEX:HANDLE`.", max_length=4_096, examples=["200:0.NA/12345"])]


Wanted = ToCreate | ToSet | ToAdd | ToRemove | ToDelete | ToMint | ToPublish | ToUnpublish | ToTombstone | ToTransfer


class Explanation(Told, frozen=True, omit_defaults=False):
    """Whether something would be allowed to whoever asks, and why or why not."""

    allowed: Annotated[bool, About("Whether it would be done.")]
    reason: Annotated[str, About("Why, or why not.")]
    advice: Annotated[str | None, About("What to do about it.")] = None
    rule: Annotated[str | None, About("The rule, or the line of the policy, that stands in the way.")] = None
    code: Annotated[int | None, About("The number that the Handle System has for the refusal.")] = None


@CHAPTER.add("POST", "/explain", "explain", "May I do that?", body=Wanted, answer=Explanation, problems=(422,))
async def explain(call: ApiCall) -> Reply:
    """Whether something would be allowed to whoever asks, and why or why not. Nothing is done.

    The refusal is the one that the operation itself would meet, with the same rule and advice.
    """
    operation = await call.worked_out(lambda: _operation(call, call.body))
    guarded = Guarded(operation, call.call.identified.guard, refers=True)
    registry, who = call.registry, call.who
    found = await call.do(Kind.READ, lambda: registry.explain(guarded, who, DOOR))
    code = None if found.code is None else int(found.code)
    advice = said_here(found.advice) or None
    return Reply(Explanation(found.allowed, found.reason, advice, found.rule or None, code))


def _operation(call: ApiCall, wanted: object) -> Operation[object]:  # noqa: C901 - one case for each
    match wanted:
        case ToCreate():
            handle, given = call.named(wanted.handle, new=True), given_values(wanted.values)
            create = CreateGiven(handle, given, overwrite=wanted.overwrite, again=wanted.again)
            return Known(create, f"create {shown(handle)}")
        case ToSet():
            return SetGiven(call.named(wanted.handle), given_values(wanted.values))
        case ToAdd():
            return AddGiven(call.named(wanted.handle), given_values(wanted.values))
        case ToRemove():
            return Remove(call.named(wanted.handle), tuple(wanted.indexes))
        case ToDelete():
            return Delete(call.named(wanted.handle))
        case ToMint():
            return Mint(Maker.of(call.registry), wanted.prefix, values=placed(given_values(wanted.values)))
        case ToPublish():
            return Publish(call.named(wanted.handle))
        case ToUnpublish():
            return Unpublish(call.named(wanted.handle))
        case ToTombstone():
            return (
                Revive(call.named(wanted.handle)) if wanted.undo else Tombstone(call.named(wanted.handle), "gone", None)
            )
        case ToTransfer():
            return Transfer(call.named(wanted.handle), party(wanted.to, "$.to"))
    raise AssertionError(f"{type(wanted).__name__} is not one of the operations")

"""Changing a record over the API: PUT and DELETE, and making a new name (http-api reference, 6.2 to 6.4).

What may be done, and in which order it is looked at, the registry decides. Here is what belongs to the API alone: the
indexes in the query have to be those of the body, a name in the body has to be the one in the path, and a change may
have a condition.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.conditions import Condition, Conditional
from perseid.registry.commands.minting import Mint, MintInputs
from perseid.registry.commands.records import Add, Create, Delete, Remove, require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.results import ChangeResult, Refused
from perseid.server.http import bodies, caching
from perseid.server.http.messages import Response
from perseid.server.http.responses import NO_STORE
from perseid.server.http.targets import BadRequest, Name, encode_path
from perseid.server.native.decisions import UnstorableName
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from .call import Call, full_name

CREATED: Final = 201

ANY_INDEX: Final = "various"
"""In place of indexes: those that the body has."""

EMPTY_HANDLE: Final = "Empty handle invalid"

T = TypeVar("T")


async def put(call: Call, name: Name) -> Response:
    """Create or replace a record, add or replace values, or make a new name."""
    return await call.catching_errors(name.text or None, _put(call, name))


async def delete(call: Call, name: Name) -> Response:
    """Delete a record, or remove values."""
    return await call.catching_errors(name.text or None, _delete(call, name))


async def _put(call: Call, name: Name) -> Response:
    submitted = await _read_submission(call)
    mints = call.parameters.flag("mintNewSuffix")
    indexes = _has_indexes(call, submitted)
    condition = caching.parse_condition(call.request)
    _check_name(name)
    if mints:
        if indexes:
            raise BadRequest("mintNewSuffix makes a new record, and index is about one that exists: send one of them")
        return await _mint(call, name, submitted)
    overwrite = _should_overwrite(call)
    handle = call.handle(name, ResponseCode.HANDLE_NOT_FOUND if indexes else ResponseCode.INVALID_HANDLE, writes=True)
    operation: Command[ChangeResult]
    if isinstance(handle, UnstorableName):
        operation = handle
    else:
        if indexes:
            operation = Add(handle, submitted.values, overwrite)
        else:
            # Deployed servers forget what was deleted, and clients of this interface register such names again.
            operation = Create(handle, submitted.values, overwrite, again=True, keeps_administrator=True)
        operation = _with_condition(condition, _with_name_check(operation, handle, submitted), handle)
    changed = await call.change(lambda _: operation, full_name(name.text))
    return _change_response(call, name.text, changed.overwritten)


async def _mint(call: Call, name: Name, submitted: bodies.Submission) -> Response:
    stub = name.text
    if not name.is_text or "/" not in stub:
        advice = f"write {display_name(stub)}/ for a name of the prefix" if name.is_text else "names are UTF-8"
        raise Refused(ResponseCode.INVALID_HANDLE, f"{display_name(stub)} is no beginning of a name", advice)
    if submitted.handle is not None and fold(submitted.handle) != fold(stub):
        raise _mismatch_error(submitted.handle, stub)
    inputs = MintInputs.of(call.request_context.place.registry)
    minted = await call.change(lambda since: Mint(inputs, stub, since=since, values=submitted.values), stub)
    return _change_response(call, str(minted.handles[0]), overwritten=False)


async def _delete(call: Call, name: Name) -> Response:
    indexes = tuple(call.parameters.numbers("index"))
    condition = caching.parse_condition(call.request)
    _check_name(name)
    handle = call.handle(name, writes=True)
    operation: Command[ChangeResult]
    if isinstance(handle, UnstorableName):
        operation = handle
    else:
        operation = _with_condition(condition, Remove(handle, indexes) if indexes else Delete(handle), handle)
    await call.change(lambda _: _DeleteOrNotFound(operation, name.text))
    return call.respond(_success_body(name.text), name=name.text)


async def _read_submission(call: Call) -> bodies.Submission:
    """What the body asks to have stored; a large one is read in a thread. Raises `Malformed`."""
    request, now = call.request, int(call.request_context.place.time())
    if len(request.body) <= bodies.MAX_INLINE_BYTES:
        return bodies.parse_submission(request, now)
    price = len(request.body) * bodies.SECONDS_PER_BYTE
    return await call.request_context.do(WorkKind.READ, lambda: bodies.parse_submission(request, now), price=price)


# What belongs to the API


@dataclass(frozen=True, slots=True)
class _CheckedName(Generic[T]):
    """An operation on a record that a request names twice."""

    operation: Command[T]
    handle: Handle
    other: str

    def decide(self, context: Context) -> Plan[T]:
        """The names first: a request that is not sure what it is about is malformed."""
        other = Handle.for_lookup(full_name(self.other))
        case = context.snapshot.policy(self.handle.prefix).case
        if other is None or case.key(other) != case.key(self.handle):
            raise _mismatch_error(self.other, str(self.handle))
        return self.operation.decide(context)


@dataclass(frozen=True, slots=True)
class _DeleteOrNotFound(Generic[T]):
    """A deletion: of a name that is not here there is no record, and whoever is unknown is asked who they are first."""

    operation: Command[T]
    name: str

    def decide(self, context: Context) -> Plan[T]:
        try:
            return self.operation.decide(context)
        except Refused as refused:
            if refused.code not in (ResponseCode.SERVER_NOT_RESP, ResponseCode.HANDLE_NOT_FOUND):
                raise
            require_identity(context, f"delete {display_name(self.name)}")
            raise Refused(
                ResponseCode.HANDLE_NOT_FOUND, f"there is no record of {display_name(self.name)}"
            ) from refused


def _with_name_check(
    operation: Command[ChangeResult], handle: Handle, submitted: bodies.Submission
) -> Command[ChangeResult]:
    return operation if submitted.handle is None else _CheckedName(operation, handle, submitted.handle)


def _with_condition(condition: Condition | None, operation: Command[T], handle: Handle) -> Command[T]:
    return operation if condition is None else Conditional(operation, handle, condition)


def _mismatch_error(other: str, name: str) -> BadRequest:
    return BadRequest(
        f"Mismatched handle: the body is about {display_name(other)}, and the path about {display_name(name)}"
    )


def _check_name(name: Name) -> None:
    if not name.text:
        raise Refused(ResponseCode.INVALID_HANDLE, EMPTY_HANDLE)


def _should_overwrite(call: Call) -> bool:
    """Whether what exists may be replaced; a parameter that says nothing does not mean it, for that destroys data."""
    return call.parameters.first("overwrite") != "" and call.parameters.flag("overwrite", default=True)


def _has_indexes(call: Call, submitted: bodies.Submission) -> bool:
    """Whether single values are meant and not the whole record; raises `Malformed` if it is not clear which."""
    first = call.parameters.first("index")
    if first is None or first == ANY_INDEX:
        return first is not None
    wanted, given = set(call.parameters.numbers("index")), {value.index for value in submitted.values}
    if wanted != given:
        message = f"Mismatched indexes: the query has {_format_indexes(wanted)}, and the body {_format_indexes(given)}"
        raise BadRequest(f"{message}; index={ANY_INDEX} means those of the body")
    return True


def _format_indexes(indexes: set[int]) -> str:
    shown_ones = ", ".join(str(index) for index in sorted(indexes)[:10])
    return (shown_ones + (" …" if len(indexes) > 10 else "")) or "none"


def _change_response(call: Call, name: str, overwritten: bool) -> Response:
    if overwritten:
        return call.respond(_success_body(name), name=name)
    location = ("Location", f"/api/handles/{encode_path(name)}")
    return call.respond(_success_body(name), CREATED, (location, NO_STORE), name=name)


def _success_body(name: str) -> dict[str, object]:
    return {"responseCode": int(ResponseCode.SUCCESS), "handle": name}

"""PUT and DELETE of records, and minting (http-api reference, 6.2 to 6.4).

The registry decides permissions and the order of checks. Specific to this API: indexes in the query must match those of
the body, a handle in the body must match the path, and a change may have a precondition.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from perseid.names.handle import Handle, fold
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import render
from perseid.registry.commands.composition import Condition, Conditional
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Add, Create, Delete, Remove, require_identity
from perseid.registry.context import Command, Context, Plan
from perseid.registry.responses import phrase_warnings
from perseid.registry.results import ChangeResult, Refused
from perseid.schema.records import WarningInfo
from perseid.server.http import negotiation, responses
from perseid.server.http.messages import BadRequest, Name, Response, encode_path
from perseid.server.http.responses import NO_STORE
from perseid.server.native.decisions import UnstorableName
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from .call import ADVICE_TEXTS, Call, full_name

CREATED: Final = 201

ANY_INDEX: Final = "various"
"""The indexes of the body."""

EMPTY_HANDLE: Final = "Empty handle invalid"

T = TypeVar("T")


async def put(call: Call, name: Name) -> Response:
    """Create or replace a record, add or replace values, or mint."""
    return await call.catching_errors(name.text or None, _put(call, name))


async def delete(call: Call, name: Name) -> Response:
    """Delete a record, or remove values."""
    return await call.catching_errors(name.text or None, _delete(call, name))


async def _put(call: Call, name: Name) -> Response:
    submitted = await _read_submission(call)
    mints = call.parameters.flag("mintNewSuffix")
    indexes = _has_indexes(call, submitted)
    condition = negotiation.parse_condition(call.request)
    _check_name(name)
    if mints:
        if indexes:
            raise BadRequest("mintNewSuffix creates a record and index changes an existing one; send only one of them")
        return await _mint(call, name, submitted)
    overwrite = _should_overwrite(call)
    handle = call.handle(name, ResponseCode.HANDLE_NOT_FOUND if indexes else ResponseCode.INVALID_HANDLE, writes=True)
    command: Command[ChangeResult]
    if isinstance(handle, UnstorableName):
        command = handle
    else:
        if indexes:
            command = Add(handle, submitted.values, overwrite)
        else:
            # Deployed servers forget deleted handles, and clients of this API create them again.
            command = Create(handle, submitted.values, overwrite, reuse_deleted=True, keeps_administrator=True)
        command = _with_condition(condition, _with_name_check(command, handle, submitted), handle)
    changed = await call.change(lambda _: command, full_name(name.text))
    # As registered; a prefix alone, which means its prefix handle, is repeated as deployed servers do.
    registered = str(changed.handle) if "/" in name.text else name.text
    return _change_response(call, registered, changed.warnings, overwritten=changed.overwritten)


async def _mint(call: Call, name: Name, submitted: responses.Submission) -> Response:
    stub = name.text
    if not name.is_text or "/" not in stub:
        reason = f"{display_name(stub)} is not the start of a handle; end a prefix with a slash"
        raise Refused(ResponseCode.INVALID_HANDLE, reason)
    if submitted.handle is not None and fold(submitted.handle) != fold(stub):
        raise _mismatch_error(submitted.handle, stub)
    minted = await call.change(lambda since: Mint(stub, since=since, values=submitted.values), stub)
    return _change_response(call, str(minted.handles[0]), minted.warnings, overwritten=False)


async def _delete(call: Call, name: Name) -> Response:
    indexes = tuple(call.parameters.numbers("index"))
    condition = negotiation.parse_condition(call.request)
    _check_name(name)
    handle = call.handle(name, writes=True)
    command: Command[ChangeResult]
    if isinstance(handle, UnstorableName):
        command = handle
    else:
        command = _with_condition(condition, Remove(handle, indexes) if indexes else Delete(handle), handle)
    await call.change(lambda _: _DeleteOrNotFound(command, name.text))
    return call.respond(_success_body(name.text), name=name.text)


async def _read_submission(call: Call) -> responses.Submission:
    """Parse the body; a large one in a thread. Raises `BadRequest`."""
    request = call.request
    if len(request.body) <= responses.MAX_INLINE_BYTES:
        return responses.parse_submission(request)
    price = len(request.body) * responses.SECONDS_PER_BYTE
    return await call.request_context.do(WorkKind.READ, lambda: responses.parse_submission(request), price=price)


# Rules of this API


@dataclass(frozen=True, slots=True)
class _CheckedName(Generic[T]):
    """A command on a record that the request names twice."""

    command: Command[T]
    handle: Handle
    other: str

    def decide(self, context: Context) -> Plan[T]:
        """Check the names first: a request with two different handles is invalid."""
        other = Handle.for_lookup(full_name(self.other))
        case = context.snapshot.policy(self.handle.prefix).case
        if other is None or case.key(other) != case.key(self.handle):
            raise _mismatch_error(self.other, str(self.handle))
        return context.decide(self.command)


@dataclass(frozen=True, slots=True)
class _DeleteOrNotFound(Generic[T]):
    """A deletion. A prefix not hosted here is reported as not found; anonymous callers get a challenge first."""

    command: Command[T]
    name: str

    def decide(self, context: Context) -> Plan[T]:
        try:
            return context.decide(self.command)
        except Refused as refused:
            if refused.code not in (ResponseCode.SERVER_NOT_RESP, ResponseCode.HANDLE_NOT_FOUND):
                raise
            require_identity(context, f"delete {display_name(self.name)}")
            raise Refused(
                ResponseCode.HANDLE_NOT_FOUND, f"handle {display_name(self.name)} does not exist"
            ) from refused


def _with_name_check(
    command: Command[ChangeResult], handle: Handle, submitted: responses.Submission
) -> Command[ChangeResult]:
    return command if submitted.handle is None else _CheckedName(command, handle, submitted.handle)


def _with_condition(condition: Condition | None, command: Command[T], handle: Handle) -> Command[T]:
    return command if condition is None else Conditional(command, handle, condition)


def _mismatch_error(other: str, name: str) -> BadRequest:
    return BadRequest(f"Mismatched handle: the body is for {display_name(other)}, the path for {display_name(name)}")


def _check_name(name: Name) -> None:
    if not name.text:
        raise Refused(ResponseCode.INVALID_HANDLE, EMPTY_HANDLE)


def _should_overwrite(call: Call) -> bool:
    """Whether existing data may be replaced; an empty parameter does not allow it, since that destroys data."""
    return call.parameters.first("overwrite") != "" and call.parameters.flag("overwrite", default=True)


def _has_indexes(call: Call, submitted: responses.Submission) -> bool:
    """Whether single values are meant and not the whole record; raises `BadRequest` if query and body differ."""
    first = call.parameters.first("index")
    if first is None or first == ANY_INDEX:
        return first is not None
    in_query, in_body = set(call.parameters.numbers("index")), {value.index for value in submitted.values}
    if in_query != in_body:
        message = f"Mismatched indexes: the query has {_format_indexes(in_query)}, the body {_format_indexes(in_body)}"
        raise BadRequest(f"{message}; use index={ANY_INDEX} for those of the body")
    return True


def _format_indexes(indexes: set[int]) -> str:
    listed = ", ".join(str(index) for index in sorted(indexes)[:10])
    return (listed + (" …" if len(indexes) > 10 else "")) or "none"


def _change_response(call: Call, name: str, warnings: tuple[WarningInfo, ...], *, overwritten: bool) -> Response:
    body = _success_body(name)
    if warnings:
        body["warnings"] = list(map(str, phrase_warnings(warnings, partial(render, texts=ADVICE_TEXTS))))
    if overwritten:
        return call.respond(body, name=name)
    location = ("Location", f"/api/handles/{encode_path(name)}")
    return call.respond(body, CREATED, (location, NO_STORE), name=name)


def _success_body(name: str) -> dict[str, object]:
    return {"responseCode": int(ResponseCode.SUCCESS), "handle": name}

"""Changing a record over the API: PUT and DELETE, and making a new name (http-api reference, 6.2 to 6.4).

What may be done, and in which order it is looked at, the registry decides. Here is what belongs to the API alone: the
indexes in the query have to be those of the body, a name in the body has to be the one in the path, and a change may
have a condition.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.registry.access.permissions import shown
from perseid.registry.commands.conditions import Condition, Conditional
from perseid.registry.commands.minting import Maker, Mint
from perseid.registry.commands.records import Add, Create, Delete, Remove, require_identity
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.results import Changed, Refused
from perseid.server.http import bodies, caching
from perseid.server.http.messages import Response
from perseid.server.http.responses import NO_STORE
from perseid.server.http.targets import Malformed, Name, path_of
from perseid.server.native.decisions import Unkeepable
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from .call import Call, full_name

CREATED: Final = 201

VARIOUS: Final = "various"
"""In place of indexes: those that the body has."""

EMPTY: Final = "Empty handle invalid"

T = TypeVar("T")


async def put(call: Call, name: Name) -> Response:
    """Create or replace a record, add or replace values, or make a new name."""
    return await call.refusing(name.text or None, _put(call, name))


async def delete(call: Call, name: Name) -> Response:
    """Delete a record, or remove values."""
    return await call.refusing(name.text or None, _delete(call, name))


async def _put(call: Call, name: Name) -> Response:
    submitted = await _submitted(call)
    mints = call.parameters.flag("mintNewSuffix")
    indexes = _indexes(call, submitted)
    condition = caching.condition(call.request)
    _check_name(name)
    if mints:
        if indexes:
            raise Malformed("mintNewSuffix makes a new record, and index is about one that exists: send one of them")
        return await _mint(call, name, submitted)
    overwrite = _overwrites(call)
    handle = call.handle(name, ResponseCode.HANDLE_NOT_FOUND if indexes else ResponseCode.INVALID_HANDLE, writes=True)
    operation: Operation[Changed]
    if isinstance(handle, Unkeepable):
        operation = handle
    else:
        if indexes:
            operation = Add(handle, submitted.values, overwrite)
        else:
            # Deployed servers forget what was deleted, and clients of this interface register such names again.
            operation = Create(handle, submitted.values, overwrite, again=True, keeps_administrator=True)
        operation = _under(condition, _named(operation, handle, submitted), handle)
    changed = await call.change(lambda _: operation, full_name(name.text))
    return _changed(call, name.text, changed.overwritten)


async def _mint(call: Call, name: Name, submitted: bodies.Submission) -> Response:
    stub = name.text
    if not name.is_text or "/" not in stub:
        advice = f"write {shown(stub)}/ for a name of the prefix" if name.is_text else "names are UTF-8"
        raise Refused(ResponseCode.INVALID_HANDLE, f"{shown(stub)} is no beginning of a name", advice)
    if submitted.handle is not None and fold(submitted.handle) != fold(stub):
        raise _mismatched(submitted.handle, stub)
    maker = Maker.of(call.asking.place.registry)
    minted = await call.change(lambda since: Mint(maker, stub, since=since, values=submitted.values), stub)
    return _changed(call, str(minted.handles[0]), overwritten=False)


async def _delete(call: Call, name: Name) -> Response:
    indexes = tuple(call.parameters.numbers("index"))
    condition = caching.condition(call.request)
    _check_name(name)
    handle = call.handle(name, writes=True)
    operation: Operation[Changed]
    if isinstance(handle, Unkeepable):
        operation = handle
    else:
        operation = _under(condition, Remove(handle, indexes) if indexes else Delete(handle), handle)
    await call.change(lambda _: _Nowhere(operation, name.text))
    return call.answer(_told(name.text), name=name.text)


async def _submitted(call: Call) -> bodies.Submission:
    """What the body asks to have stored; a large one is read in a thread. Raises `Malformed`."""
    request, now = call.request, int(call.asking.place.time())
    if len(request.body) <= bodies.MAX_AT_ONCE:
        return bodies.submission(request, now)
    price = len(request.body) * bodies.OCTET_SECONDS
    return await call.asking.do(Kind.READ, lambda: bodies.submission(request, now), price=price)


# What belongs to the API


@dataclass(frozen=True, slots=True)
class _SameName(Generic[T]):
    """An operation on a record that a request names twice."""

    operation: Operation[T]
    handle: Handle
    other: str

    def decide(self, context: Context) -> Plan[T]:
        """The names first: a request that is not sure what it is about is malformed."""
        other = Handle.for_lookup(full_name(self.other))
        case = context.facts.policy(self.handle.prefix).case
        if other is None or case.key(other) != case.key(self.handle):
            raise _mismatched(self.other, str(self.handle))
        return self.operation.decide(context)


@dataclass(frozen=True, slots=True)
class _Nowhere(Generic[T]):
    """A deletion: of a name that is not here there is no record, and whoever is unknown is asked who they are first."""

    operation: Operation[T]
    name: str

    def decide(self, context: Context) -> Plan[T]:
        try:
            return self.operation.decide(context)
        except Refused as refused:
            if refused.code not in (ResponseCode.SERVER_NOT_RESP, ResponseCode.HANDLE_NOT_FOUND):
                raise
            require_identity(context, f"delete {shown(self.name)}")
            raise Refused(ResponseCode.HANDLE_NOT_FOUND, f"there is no record of {shown(self.name)}") from refused


def _named(operation: Operation[Changed], handle: Handle, submitted: bodies.Submission) -> Operation[Changed]:
    return operation if submitted.handle is None else _SameName(operation, handle, submitted.handle)


def _under(condition: Condition | None, operation: Operation[T], handle: Handle) -> Operation[T]:
    return operation if condition is None else Conditional(operation, handle, condition)


def _mismatched(other: str, name: str) -> Malformed:
    return Malformed(f"Mismatched handle: the body is about {shown(other)}, and the path about {shown(name)}")


def _check_name(name: Name) -> None:
    if not name.text:
        raise Refused(ResponseCode.INVALID_HANDLE, EMPTY)


def _overwrites(call: Call) -> bool:
    """Whether what exists may be replaced; a parameter that says nothing does not mean it, for that destroys data."""
    return call.parameters.first("overwrite") != "" and call.parameters.flag("overwrite", absent=True)


def _indexes(call: Call, submitted: bodies.Submission) -> bool:
    """Whether single values are meant and not the whole record; raises `Malformed` if it is not clear which."""
    first = call.parameters.first("index")
    if first is None or first == VARIOUS:
        return first is not None
    wanted, given = set(call.parameters.numbers("index")), {value.index for value in submitted.values}
    if wanted != given:
        message = f"Mismatched indexes: the query has {_listed(wanted)}, and the body {_listed(given)}"
        raise Malformed(f"{message}; index={VARIOUS} means those of the body")
    return True


def _listed(indexes: set[int]) -> str:
    shown_ones = ", ".join(str(index) for index in sorted(indexes)[:10])
    return (shown_ones + (" …" if len(indexes) > 10 else "")) or "none"


def _changed(call: Call, name: str, overwritten: bool) -> Response:
    if overwritten:
        return call.answer(_told(name), name=name)
    location = ("Location", f"/api/handles/{path_of(name)}")
    return call.answer(_told(name), CREATED, (location, NO_STORE), name=name)


def _told(name: str) -> dict[str, object]:
    return {"responseCode": int(ResponseCode.SUCCESS), "handle": name}

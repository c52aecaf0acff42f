"""Going on with a change of many records that was interrupted, whatever it was."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from perseid.ledger.store.jobs import Operation
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from . import jobs, rewrite, transfer, undo
from .jobs import Progress

_Pieces = Callable[[Registry, Operation, Identity], Iterator[Progress]]
_PIECES: Final[Mapping[str, _Pieces]] = MappingProxyType(
    {rewrite.KIND: rewrite.pieces, transfer.KIND: transfer.pieces, undo.KIND: undo.pieces}
)


def resume(registry: Registry, name: str, who: Identity, door: str = "") -> tuple[Operation, Iterator[Progress]]:
    """The unit of a name, and what is left to do of it. Raises `Refused`.

    It goes on with the rights, and under the name, of whoever asks, and through their door; without one, through that
    of the beginning. Before an undo goes on it is looked at again whether anything stands in its way.
    """
    operation = unfinished(registry, name, who)
    operation = replace(operation, door=door or operation.door)
    if operation.kind == undo.KIND:
        undo.begin(registry, operation.undoes, who, operation.door, operation.note)
    return operation, jobs.told(pieces(registry, operation, who))


def unfinished(registry: Registry, name: str, who: Identity) -> Operation:
    """The unit of a name, if it can be gone on with. Raises `Refused`."""
    operation = jobs.found(registry, who, name)
    undos = jobs.Undos.of(registry, operation.id)
    if (by := undos.running(operation.id)) is not None:
        reason = f"{operation.id} is being undone by {by}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"go on with that: perseid operations resume {by}")
    undo.check_not_undone(undos, operation.id)
    if operation.ended:
        reason = f"nothing of {operation.id} is left to do"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "look at: perseid operations")
    if operation.kind not in _PIECES:
        reason = f"a {operation.kind} is gone on with by doing it again"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "give the same command, or undo what was done")
    return operation


def pieces(registry: Registry, operation: Operation, who: Identity) -> Iterator[Progress]:
    """What is left to do of a unit that can be gone on with, in pieces of bounded work."""
    return _PIECES[operation.kind](registry, operation, who)

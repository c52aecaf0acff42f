"""Going on with a change of many records that was interrupted, whatever it was."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from perseid.ledger.store.jobs import Job
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from . import rewrite, runner, transfer, undo
from .runner import Progress

_StepRunner = Callable[[Registry, Job, Identity], Iterator[Progress]]
_STEP_RUNNERS: Final[Mapping[str, _StepRunner]] = MappingProxyType(
    {rewrite.KIND: rewrite.run_steps, transfer.KIND: transfer.run_steps, undo.KIND: undo.run_steps}
)


def resume(registry: Registry, name: str, identity: Identity, door: str = "") -> tuple[Job, Iterator[Progress]]:
    """The unit of a name, and what is left to do of it. Raises `Refused`.

    It goes on with the rights, and under the name, of whoever asks, and through their door; without one, through that
    of the beginning. Before an undo goes on it is looked at again whether anything stands in its way.
    """
    operation = get_unfinished_job(registry, name, identity)
    operation = replace(operation, door=door or operation.door)
    if operation.kind == undo.KIND:
        undo.start(registry, operation.undoes, identity, operation.door, operation.note)
    return operation, runner.skip_unchanged(run_steps(registry, operation, identity))


def get_unfinished_job(registry: Registry, name: str, identity: Identity) -> Job:
    """The unit of a name, if it can be gone on with. Raises `Refused`."""
    operation = runner.find_job(registry, identity, name)
    undos = runner.UndoIndex.of(registry, operation.id)
    if (by := undos.running(operation.id)) is not None:
        reason = f"{operation.id} is being undone by {by}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, f"go on with that: perseid operations resume {by}")
    undo.check_not_undone(undos, operation.id)
    if operation.ended:
        reason = f"nothing of {operation.id} is left to do"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "look at: perseid operations")
    if operation.kind not in _STEP_RUNNERS:
        reason = f"a {operation.kind} is gone on with by doing it again"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "give the same command, or undo what was done")
    return operation


def run_steps(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """What is left to do of a unit that can be gone on with, in pieces of bounded work."""
    return _STEP_RUNNERS[operation.kind](registry, operation, identity)

"""Resuming interrupted jobs of any kind."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from perseid.ledger.store.jobs import Job
from perseid.registry.advice import AdviceKind
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


def resume(registry: Registry, name: str, identity: Identity, interface: str = "") -> tuple[Job, Iterator[Progress]]:
    """Return an unfinished job and an iterator that does the rest of it. Raises `Refused`.

    The job continues with the permissions and identity of the caller, through `interface` or else the interface that
    started it. An undo checks for conflicts again first.
    """
    job = get_unfinished_job(registry, name, identity)
    job = replace(job, interface=interface or job.interface)
    if job.kind == undo.KIND:
        undo.start(registry, job.undoes, identity, job.interface, job.note)
    return job, runner.skip_unchanged(run_steps(registry, job, identity))


def get_unfinished_job(registry: Registry, name: str, identity: Identity) -> Job:
    """Return a job that can be resumed. Raises `Refused`."""
    job = runner.find_job(registry, identity, name)
    undos = runner.UndoIndex.of(registry, job.id)
    if (by := undos.running(job.id)) is not None:
        reason = f"Job {job.id} is being undone by job {by}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.RESUME_JOB(job=by))
    undo.check_not_undone(undos, job.id)
    if job.ended_at:
        reason = f"Job {job.id} is already complete"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.LIST_JOBS())
    if job.kind not in _STEP_RUNNERS:
        reason = f"A {job.kind} job cannot be resumed"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.REPEAT_OR_UNDO_JOB(job=job.id))
    return job


def run_steps(registry: Registry, job: Job, identity: Identity) -> Iterator[Progress]:
    """Do the rest of a job in pieces of bounded work."""
    return _STEP_RUNNERS[job.kind](registry, job, identity)

"""Runs of jobs, step by step."""

from collections.abc import Iterator
from dataclasses import dataclass

from perseid.ledger.store.jobs import Job
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs.runner import JobRun
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.registry import Registry


@dataclass(frozen=True)
class Progress:
    """How far a job has come."""

    job: str
    done: int
    total: int
    processed: int


def run_pieces(registry: Registry, job: Job, identity: Identity) -> Iterator[Progress]:
    """Run a job; yield after each piece of work."""
    return _pieces(JobRun(registry, job, identity))


def run_steps(registry: Registry, job: Job, identity: Identity) -> Iterator[Progress]:
    """Run a job; yield after each piece that changed something."""
    return changes(JobRun(registry, job, identity))


def changes(run: JobRun) -> Iterator[Progress]:
    """Run a job; yield after each piece that changed something."""
    done = run.done
    for piece in _pieces(run):
        if piece.done > done:
            yield piece
        done = piece.done


def _pieces(run: JobRun) -> Iterator[Progress]:
    while run.advance():
        yield Progress(run.job.id, run.done, run.job.total, run.processed)


def run_transfer(
    registry: Registry, order: TransferAll, identity: Identity, note: str = "", interface: str = "cli"
) -> Job:
    """Return the completed job."""
    job = transfer.start(registry, order, identity, interface, note)
    for _ in run_pieces(registry, job, identity):
        pass
    return runner.find_job(registry, identity, job.id)

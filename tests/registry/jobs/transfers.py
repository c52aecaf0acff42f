"""A helper that runs a transfer job to its end."""

from perseid.ledger.store.jobs import Job
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.registry import Registry


def run_transfer(
    registry: Registry, order: TransferAll, identity: Identity, note: str = "", interface: str = "cli"
) -> Job:
    """Return the completed job."""
    job = transfer.start(registry, order, identity, interface, note)
    for _ in transfer.run_steps(registry, job, identity):
        pass
    return runner.find_job(registry, identity, job.id)

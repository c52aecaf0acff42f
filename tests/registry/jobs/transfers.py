"""Handing over many names at once, as the tests of it do: begun, and done to the end."""

from perseid.ledger.store.jobs import Job
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.registry import Registry


def hand_over(registry: Registry, order: TransferAll, identity: Identity, note: str = "", door: str = "cli") -> Job:
    """The unit that a transfer is, when nothing is left to do of it."""
    unit = transfer.start(registry, order, identity, door, note)
    for _ in transfer.run_steps(registry, unit, identity):
        pass
    return runner.find_job(registry, identity, unit.id)

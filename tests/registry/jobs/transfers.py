"""Handing over many names at once, as the tests of it do: begun, and done to the end."""

from perseid.ledger.store.jobs import Operation
from perseid.registry.identity import Identity
from perseid.registry.jobs import jobs, transfer
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.registry import Registry


def hand_over(registry: Registry, order: TransferAll, who: Identity, note: str = "", door: str = "cli") -> Operation:
    """The unit that a transfer is, when nothing is left to do of it."""
    unit = transfer.begin(registry, order, who, door, note)
    for _ in transfer.pieces(registry, unit, who):
        pass
    return jobs.found(registry, who, unit.id)

"""Handing over many names at once, as the tests of it do: begun, and done to the end."""

from perseid.ledger.store.jobs import Operation
from perseid.registry import transferring, units
from perseid.registry.identity import Identity
from perseid.registry.registry import Registry
from perseid.registry.transferring import TransferAll


def hand_over(registry: Registry, order: TransferAll, who: Identity, note: str = "", door: str = "cli") -> Operation:
    """The unit that a transfer is, when nothing is left to do of it."""
    unit = transferring.begin(registry, order, who, door, note)
    for _ in transferring.pieces(registry, unit, who):
        pass
    return units.found(registry, who, unit.id)

"""Suffix generation (seed 000): three modes, and what each stores."""

from dataclasses import replace
from uuid import UUID

import pytest

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import State
from perseid.names import pilin
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.minting import Mint, mint
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries.namespaces import (
    MintMode,
    build_command,
)
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import NOW, Machine
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, key_holder, registry_in_memory

ANN = key_holder(300, "98765/ann")
STRANGER = key_holder(300, "98765/stranger")
PILIN = replace(PROFILES["pilin"], authority=False)


def make(
    registry: Registry, making: MintMode, identity: Identity, count: int = 1, where: str = "102.100.272"
) -> list[Handle]:
    values = (Value.text(1, "URL", "https://example.org/"),) if making is MintMode.MINT else ()
    owner = None if making is MintMode.GENERATE else ValueRef(300, "98765/ann")
    asked = build_command(making, where, count, values=values, owner=owner)
    return [name for made in mint(registry, asked, identity, "http") for name in made.handles]


def state(registry: Registry, name: Handle) -> State:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name).state


# Three ways


def test_each_mode_stores_what_it_describes() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "102.100.272", PILIN)
        before = _size(registry)
        generated = make(registry, MintMode.GENERATE, OPERATOR, 3)
        assert _size(registry) == before, "a lease is no entry"
        reserved = make(registry, MintMode.RESERVE, OPERATOR, 2)
        minted = make(registry, MintMode.MINT, OPERATOR, 2)
        assert [state(registry, name) for name in generated] == [State.ABSENT] * 3
        assert [state(registry, name) for name in reserved] == [State.RESERVED] * 2
        assert [state(registry, name) for name in minted] == [State.NORMAL] * 2
        assert len({*generated, *reserved, *minted}) == 7
        assert _size(registry) == before + 4


def test_p6_generated_handle_is_never_issued_again() -> None:
    """The lease is durable: also after a clock step and in every mode."""
    machine = Machine()
    with registry_in_memory(machine) as registry:
        add_namespace(registry, "102.100.272", PILIN)
        names: list[Handle] = []
        for making in (MintMode.GENERATE, MintMode.MINT, MintMode.GENERATE, MintMode.RESERVE, MintMode.GENERATE):
            names += make(registry, making, OPERATOR, 5)
            machine.wall -= SECOND
        assert len(set(names)) == 25
        first = pilin.from_unix_ns(NOW * 1000)
        assert sorted(pilin.decode(name.suffix) for name in names) == list(range(first, first + 25))


def test_p6_lease_survives_restart(registry: Registry) -> None:
    """On both databases: it is in the ledger's own tables."""
    add_namespace(registry, "102.100.272", PILIN)
    names = make(registry, MintMode.GENERATE, OPERATOR, 4)
    again = Registry(registry.ledger, registry.rules)
    assert set(make(again, MintMode.GENERATE, OPERATOR, 4)).isdisjoint(names)


@pytest.mark.parametrize("making", MintMode)
def test_s13_every_mode_requires_same_permission(making: MintMode) -> None:
    with registry_in_memory() as registry:
        adder = admin(100, "300:98765/ann", AdminPermission.ADD_HANDLE)
        registry.do(AddNamespace("102.100.272", PILIN, (adder,)), OPERATOR, "cli")
        make(registry, making, ANN)
        for identity, code in (
            (NOBODY, ResponseCode.AUTHENTICATION_NEEDED),
            (STRANGER, ResponseCode.INVALID_ADMIN),
        ):
            with pytest.raises(Refused, match="who_may_mint") as caught:
                make(registry, making, identity)
            assert caught.value.code is code
        registry.do(AddNamespace("10.7", replace(PILIN, who_may_mint=Audience.SERVER), (adder,)), OPERATOR, "cli")
        with pytest.raises(Refused, match="who_may_mint"):
            make(registry, making, ANN, where="10.7")


def test_values_and_owner_require_a_record() -> None:
    values = (Value.text(1, "URL", "https://example.org/"),)
    for making in (MintMode.RESERVE, MintMode.GENERATE):
        with pytest.raises(Refused, match="has no values"):
            build_command(making, "102.100.272", values=values)
    with pytest.raises(Refused, match="has no owner"):
        build_command(MintMode.GENERATE, "102.100.272", owner=ValueRef(300, "98765/ann"))
    reserving = build_command(MintMode.RESERVE, "102.100.272", 2)
    assert isinstance(reserving, Mint)
    assert (reserving.reserve, reserving.count, reserving.where) == (True, 2, "102.100.272")


def test_cordra_handles_are_generated() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "2000.01", "cordra")
        (name,) = make(registry, MintMode.GENERATE, OPERATOR, where="2000.01")
        assert len(name.suffix) == 32
        assert UUID(name.suffix).version == 4


def _size(registry: Registry) -> int:
    with registry.snapshot() as snapshot:
        return snapshot.reader.size

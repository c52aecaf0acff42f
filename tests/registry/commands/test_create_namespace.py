"""Creation of complete namespaces, with their default creator, in one commit."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import Action
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.log.requests import Lease
from perseid.names import pilin
from perseid.records.admin import AdminPermission
from perseid.records.record import Value
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.create_namespace import CreateNamespace
from perseid.registry.commands.minting import Mint, RetryLater
from perseid.registry.commands.namespaces import AddNamespace, Namespace
from perseid.registry.commands.records import Create, Home
from perseid.registry.identity import Identity
from perseid.registry.installation import setup
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import Machine
from tests.registry.access.token_identities import RULES, furnish, scope, shown
from tests.registry.administration import ref
from tests.registry.registries import (
    NOBODY,
    OPERATOR,
    add_namespace,
    admin,
    decide,
    handle,
    key_holder,
    registry_in_memory,
)

PILIN = with_group_administrators(PROFILES["pilin"])
ANN = ref("300:0.NA/12345")
URL = Value.text(1, "URL", "https://example.org/")


@pytest.fixture
def registry(machine: Machine) -> Iterator[Registry]:
    with registry_in_memory(machine, RULES) as made:
        furnish(made)
        yield made


def wanted(prefix: str = "777", **rules: object) -> AddNamespace:
    return AddNamespace(prefix, replace(PILIN, **rules), administrator_values(prefix, [ANN]))  # type: ignore[arg-type]


def make(registry: Registry, order: AddNamespace, identity: Identity = OPERATOR) -> Namespace:
    return registry.do(CreateNamespace(order), identity, "cli", "as agreed")


def size(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


def history(registry: Registry, name: str) -> list[Action]:
    with registry.ledger.open_reader() as reader:
        return [entry.action for entry in reader.history(record_key(name))]


# All of it


def test_a4_creator_is_created_in_the_same_commit(registry: Registry) -> None:
    before = size(registry)
    made = make(registry, wanted())
    creator = made.policy.default_creator
    assert made.seq == before + 1
    with registry.snapshot() as snapshot:
        assert snapshot.policy("777") == made.policy
        entries = [snapshot.reader.entry(seq) for seq in range(before + 1, size(registry) + 1)]
        assert {(entry.origin, entry.at) for entry in entries} == {(("cli", "local:alice"), entries[0].at)}
    assert [entry.handle for entry in entries] == [policy_name("777"), "0.SITE/HOMED/0.NA/777", "0.NA/777", creator]
    assert history(registry, policy_name("777")) == [Action.CREATE], "the policy names it from the beginning"
    said = {value.type: value.data for value in registry.resolve(Query(handle(creator)), NOBODY).values}
    assert said[PILIN.creator_type].decode() == creator
    registry.do(Create(handle("777/BCDFGHJKH"), (URL,)), OPERATOR, "cli")


def test_no_creator_is_created_if_not_needed(registry: Registry) -> None:
    make(registry, AddNamespace("777", PROFILES["free"]))
    first = make(registry, wanted("778")).policy.default_creator
    before = size(registry)
    assert make(registry, wanted("779", default_creator=first)).policy.default_creator == first
    assert size(registry) == before + 3


def test_a6_types_in_the_namespace_are_created_with_it(registry: Registry) -> None:
    types = {key: f"777/{key.upper()}" for key in ("creation_date_type", "creator_type")}
    rules = replace(PROFILES["free"], authority=True, registered_types=True, **types)  # type: ignore[arg-type]
    made = make(registry, AddNamespace("777", rules))
    assert not set(types.values()) & set(made.types_elsewhere)
    for name in (*types.values(), made.policy.default_creator):
        assert registry.resolve(Query(handle(name)), NOBODY).values


@pytest.mark.parametrize("prefix", ["abc", "10.x"])
def test_c1_prefix_of_cordra_identifiers_has_digits_and_dots(registry: Registry, prefix: str) -> None:
    with pytest.raises(Refused, match="A CORDRA naming authority consists of decimal digits and dots; ") as refused:
        make(registry, AddNamespace(prefix, PROFILES["cordra"]))
    assert (refused.value.advice, refused.value.rule) == (AdviceKind.CORDRA_PREFIX_EXAMPLE(), "C1")


def test_default_policy_is_replaced(registry: Registry) -> None:
    registry.do(Home("0.NA/777"), OPERATOR, "cli")
    made = make(registry, wanted())
    assert history(registry, policy_name("777")) == [Action.UPDATE, Action.CREATE]
    with registry.snapshot() as snapshot:
        assert snapshot.policy("777").default_creator == made.policy.default_creator != ""


def test_h5_existing_records_that_would_be_lost_are_refused(registry: Registry) -> None:
    registry.do(Home("0.NA/777"), OPERATOR, "cli")
    exact = AddNamespace("777", replace(PROFILES["exact"], authority=True))
    request = decide(registry, CreateNamespace(exact))
    registry.do(Create(handle("777/abc"), (URL,)), OPERATOR, "cli")
    (outcome,) = registry.ledger.append(request)
    assert "has records" in str(getattr(outcome, "error", ""))


# Or nothing


def test_token_without_mint_scope_creates_nothing(registry: Registry) -> None:
    before = size(registry)
    lacks = shown(registry, OPERATOR, scope("namespaces", where=["777.*", "12345"]))
    may = shown(registry, OPERATOR, scope("namespaces", "mint", where=["777.*", "12345"]))
    order = wanted("777.1")
    with pytest.raises(Refused, match=r"default creator .* its scopes do not include mint") as caught:
        make(registry, order, lacks)
    assert caught.value.code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert caught.value.advice == AdviceKind.NAME_CREATOR()
    assert size(registry) == before + 2, "nothing but the tokens"
    with registry.snapshot() as snapshot:
        assert not snapshot.is_homed("0.NA/777.1")
    creator = make(registry, order, may).policy.default_creator
    make(registry, wanted("777.2", default_creator=creator), lacks)


def test_caller_who_cannot_mint_creates_nothing(registry: Registry) -> None:
    deriver, other = key_holder(1, "99/deriver"), ref("1:99/other")
    add_namespace(registry, "10", "free", admin(100, "1:99/deriver", AdminPermission.ADD_NA))
    before = size(registry)
    for_others = AddNamespace("10.1", PILIN, administrator_values("10.1", [other]))
    with pytest.raises(Refused) as caught:
        make(registry, for_others, deriver)
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    assert size(registry) == before
    their_own = AddNamespace("10.1", PILIN, administrator_values("10.1", [deriver.reference]))
    assert make(registry, their_own, deriver).policy.default_creator
    named = replace(PILIN, default_creator=make(registry, wanted()).policy.default_creator)
    make(registry, AddNamespace("10.2", named, administrator_values("10.2", [other])), deriver)


def test_namespace_created_meanwhile_is_not_created_again(registry: Registry) -> None:
    order = CreateNamespace(wanted())
    request = decide(registry, order)
    make(registry, AddNamespace("777", PROFILES["free"]))
    before = size(registry)
    registry.ledger.append(request)
    assert size(registry) == before
    with pytest.raises(Refused, match="already"):
        registry.do(order, OPERATOR, "cli")


# Prefix handles that others serve


def test_copy_of_the_prefix_handle_is_in_the_same_commit(registry: Registry) -> None:
    registry.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
    before = size(registry)
    lacks = shown(registry, OPERATOR, scope("namespaces", where=None))
    with pytest.raises(Refused, match="mint"):
        make(registry, wanted(), lacks)
    with pytest.raises(Refused, match="store a copy"):
        make(registry, wanted(), key_holder(300, "0.NA/12345"))
    assert size(registry) == before + 1
    assert history(registry, "0.NA/777") == []
    made = make(registry, wanted())
    assert (history(registry, "0.NA/777"), made.seq) == ([Action.CREATE], before + 2)
    assert made.policy.default_creator.startswith("777/")
    with pytest.raises(Refused):
        registry.resolve(Query(handle("0.NA/777")), NOBODY)


def test_no_copy_of_a_prefix_handle_hosted_here(registry: Registry) -> None:
    registry.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
    registry.do(Home("0.NA/0.NA/12345"), OPERATOR, "cli")
    make(registry, wanted("12345.7"))
    assert registry.resolve(Query(handle("0.NA/12345.7")), NOBODY).values


# Waiting


def test_creation_waits_for_the_clock(registry: Registry, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of an earlier namespace may be ahead."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        machine.run(int(seconds * 1_000_000) + 1)

    ahead = pilin.from_unix_ns(machine.wall * 1_000) + PILIN.lead + 500
    registry.ledger.append(Lease(b"777 pilin", 1, ahead))
    monkeypatch.setattr(time, "sleep", sleep)
    before = size(registry)
    with pytest.raises(RetryLater):
        setup.add_namespace(registry, wanted(), OPERATOR, "cli", patience=0.0)
    assert size(registry) == before
    made = setup.add_namespace(registry, wanted(), OPERATOR, "cli")
    assert waited
    assert made.policy.default_creator.startswith("777/")


# What is there already


def test_requested_administrators_of_an_existing_prefix_handle_are_refused(registry: Registry) -> None:
    others = administrator_values("777", [ref("300:0.NA/20.500")])
    registry.do(Create(handle("0.NA/777"), others), OPERATOR, "cli")
    insisting = replace(wanted(), require_administrators=True)
    with pytest.raises(Refused, match="with other administrators") as caught:
        make(registry, insisting)
    assert caught.value.code is ResponseCode.HANDLE_ALREADY_EXISTS
    assert make(registry, replace(insisting, values=others)).prefix == "777", "they are the ones it has"


def test_unhomed_prefix_can_be_created_again(registry: Registry) -> None:
    make(registry, wanted(authority=False))
    name = registry.do(Mint("777", values=(URL,)), OPERATOR, "cli").handles[0]
    registry.do(Home("0.NA/777", unhome=True), OPERATOR, "cli")
    with pytest.raises(Refused) as caught:
        registry.resolve(Query(name), NOBODY)
    assert caught.value.code is ResponseCode.SERVER_NOT_RESP
    make(registry, wanted(authority=False))
    assert URL.data in [value.data for value in registry.resolve(Query(name), NOBODY).values]
    with pytest.raises(Refused, match="Namespace 777 already exists"):
        make(registry, wanted(authority=False))

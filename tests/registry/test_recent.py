"""Deciding by what was seen last: it saves reading, and what has changed since never counts."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from perseid.ledger.entry import Action, Draft, State
from perseid.ledger.keys import policy_name
from perseid.ledger.reading import Reading
from perseid.ledger.requests import Append
from perseid.records import Value
from perseid.registry import recent
from perseid.registry.facts import POLICY_TYPE
from perseid.registry.operations import Add, Create, Modify
from perseid.registry.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.resolving import Query
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.registries import NOBODY, add_namespace, admin, handle, key_holder, registry_in_memory

URL = Value.text(1, "URL", "https://example.org/")
EMAIL = Value.text(2, "EMAIL", "someone@example.org")
ADMIN = key_holder(300, "0.NA/10.1")
NO_URL = replace(PROFILES["free"], forbidden_types=("URL",))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", admin(100, "300:0.NA/10.1"))
        yield made


@pytest.fixture
def readings(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A note for every state of the ledger that is entered."""
    entered: list[str] = []
    really = registry.ledger.reading

    def reading() -> AbstractContextManager[Reading]:
        entered.append("read")
        return really()

    monkeypatch.setattr(registry.ledger, "reading", reading)
    return entered


def create(registry: Registry, name: str, *values: Value) -> None:
    registry.do(Create(handle(name), values or (URL,)), ADMIN, "native")


def elsewhere(registry: Registry, name: str, *values: Value, state: State = State.NORMAL) -> None:
    """What another process or node appends."""
    registry.ledger.append(Append(Draft(Action.UPDATE, state, name, "test", "local:test", values=values)))


def set_policy(registry: Registry, policy: object) -> None:
    text = getattr(policy, "to_toml", str)()
    elsewhere(registry, policy_name("10.1"), Value(1, POLICY_TYPE, text.encode()))


def test_creating_one_more_name_reads_nothing(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a")
    del readings[:]
    create(registry, "10.1/b")
    create(registry, "10.1/c")
    assert readings == []


def test_a_name_that_exists_is_found_to_exist(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a")
    del readings[:]
    with pytest.raises(Refused) as caught:
        create(registry, "10.1/A", EMAIL)
    assert (caught.value.code, readings) == (ResponseCode.HANDLE_ALREADY_EXISTS, ["read"])
    assert registry.resolve(Query(handle("10.1/a")), NOBODY).values[0].type == "URL"


def test_a_policy_that_another_process_has_set_holds_at_once(registry: Registry) -> None:
    create(registry, "10.1/a")
    set_policy(registry, NO_URL)
    with pytest.raises(Refused, match="forbidden_types"):
        create(registry, "10.1/b")
    create(registry, "10.1/b", EMAIL)


def test_nobody_is_refused_for_what_is_not_so_any_more(registry: Registry) -> None:
    set_policy(registry, NO_URL)
    create(registry, "10.1/a", EMAIL)
    set_policy(registry, PROFILES["free"])
    create(registry, "10.1/b")


def test_a_right_that_is_gone_does_not_count(registry: Registry) -> None:
    create(registry, "10.1/a")
    elsewhere(registry, "0.NA/10.1", admin(100, "300:0.NA/10.2"))
    with pytest.raises(Refused) as caught:
        create(registry, "10.1/b")
    assert caught.value.code is ResponseCode.INVALID_ADMIN


def test_that_nothing_is_to_be_done_is_not_taken_from_memory(registry: Registry) -> None:
    """The record of a creator, say, that other decisions have read."""
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"))
    name = handle("10.1/a")
    with registry.facts() as facts:
        registry._recent.note({facts.held(name).key: facts.held(name).entry}, frozenset())
    changed = Value.text(1, "URL", "https://example.org/changed")
    elsewhere(registry, "10.1/a", changed, admin(100, "300:0.NA/10.1"))
    registry.do(Add(name, (URL,), overwrite=True), ADMIN, "native")
    assert registry.resolve(Query(name, indexes=[1]), NOBODY).values[0].data == URL.data


def test_what_a_change_has_made_old_is_not_remembered(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"))
    for number in range(3):
        registry.do(Modify(handle("10.1/a"), (Value.text(1, "URL", str(number)),)), ADMIN, "native")
    del readings[:]
    registry.do(Modify(handle("10.1/a"), (Value.text(1, "URL", "last"),)), ADMIN, "native")
    assert readings == ["read"]


def test_only_so_much_is_remembered(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_ENTRIES", 2)
    for number in range(3):
        create(registry, f"10.1/{number}")
        assert len(registry._recent._entries) <= 2
    monkeypatch.setattr(recent, "MAX_VALUES", 0)
    registry._recent.forget(dict(registry._recent._entries))
    create(registry, "10.1/last")
    assert not [entry for entry in registry._recent._entries.values() if entry.values]

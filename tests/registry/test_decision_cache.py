"""Decisions from the cache: they save reads, and never use outdated entries."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import get_ident

import pytest

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.log.requests import Append
from perseid.names.handle import CaseRule
from perseid.records.admin import ValueList
from perseid.records.record import Permission, Value
from perseid.registry import snapshot
from perseid.registry.commands.lifecycle import Redact, Revive, Tombstone
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Modify, Remove
from perseid.registry.context import Command, Context, Plan
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import POLICY_TYPE
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import until
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

URL = Value.text(1, "URL", "https://example.org/")
EMAIL = Value.text(2, "EMAIL", "someone@example.org")
SECRET = Value(300, "HS_SECKEY", b"open sesame", permissions=Permission(0x0C))
ADMIN = key_holder(300, "0.NA/10.1")
NO_URL = replace(PROFILES["free"], forbidden_types=("URL",))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", admin(100, "300:0.NA/10.1"))
        yield made


@pytest.fixture
def readings(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects one item for every snapshot that this thread opens; the ledger's own threads read too."""
    entered: list[str] = []
    caller = get_ident()
    really = registry.ledger.open_reader

    def open_reader() -> AbstractContextManager[LogReader]:
        if get_ident() == caller:
            entered.append("read")
        return really()

    monkeypatch.setattr(registry.ledger, "open_reader", open_reader)
    return entered


def create(registry: Registry, name: str, *values: Value) -> None:
    registry.do(Create(handle(name), values or (URL,)), ADMIN, "native")


def elsewhere(registry: Registry, name: str, *values: Value, state: State = State.NORMAL) -> None:
    """Append as another process or node."""
    registry.ledger.append(Append(Draft(Action.UPDATE, state, name, "test", "local:test", values=values)))


def set_policy(registry: Registry, policy: object) -> None:
    text = getattr(policy, "to_toml", str)()
    elsewhere(registry, policy_name("10.1"), Value(1, POLICY_TYPE, text.encode()))


def remember(registry: Registry, seen: Mapping[bytes, Entry | None]) -> None:
    """Cache entries as a decision that has read them."""
    with registry.ledger.open_reader() as reader:
        registry.entry_cache.note(seen, (), reader.size, erased=False)


def remembered(registry: Registry, name: str) -> Entry | None:
    found = registry.entry_cache.get(record_key(name))
    return None if found is None else found.entry


def test_second_create_reads_nothing(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a")
    del readings[:]
    create(registry, "10.1/b")
    create(registry, "10.1/c")
    assert readings == []


def test_overwriting_create_of_a_new_handle_reads_nothing(registry: Registry, readings: list[str]) -> None:
    """The answers view does not have it, and the commit checks that nothing else has: here an unpublished record."""
    until(lambda: registry.ledger.ready)
    create(registry, "10.1/a")
    elsewhere(registry, "10.1/hidden", EMAIL, state=State.UNPUBLISHED)
    for name, expected in (("10.1/b", []), ("10.1/hidden", ["read"]), ("10.1/a", ["read"])):
        del readings[:]
        result = registry.do(Create(handle(name), (URL, EMAIL), overwrite=True), OPERATOR, "native")
        assert (result.overwritten, readings) == (bool(expected), expected)


def test_existing_handle_is_detected(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a")
    del readings[:]
    with pytest.raises(Refused) as caught:
        create(registry, "10.1/A", EMAIL)
    assert (caught.value.code, readings) == (ResponseCode.HANDLE_ALREADY_EXISTS, ["read"])
    assert registry.resolve(Query(handle("10.1/a")), NOBODY).values[0].type == "URL"


def test_policy_of_another_process_applies_at_once(registry: Registry) -> None:
    create(registry, "10.1/a")
    set_policy(registry, NO_URL)
    with pytest.raises(Refused, match="forbidden_types"):
        create(registry, "10.1/b")
    create(registry, "10.1/b", EMAIL)


def test_outdated_entry_refuses_nobody(registry: Registry) -> None:
    set_policy(registry, NO_URL)
    create(registry, "10.1/a", EMAIL)
    set_policy(registry, PROFILES["free"])
    create(registry, "10.1/b")


def test_removed_permission_is_not_used(registry: Registry) -> None:
    create(registry, "10.1/a")
    elsewhere(registry, "0.NA/10.1", admin(100, "300:0.NA/10.2"))
    with pytest.raises(Refused) as caught:
        create(registry, "10.1/b")
    assert caught.value.code is ResponseCode.INVALID_ADMIN


def test_no_change_is_not_decided_from_the_cache(registry: Registry) -> None:
    """For example the record of a creator that other decisions have read."""
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"))
    name = handle("10.1/a")
    with registry.snapshot() as snapshot:
        remember(registry, {snapshot.stored(name).key: snapshot.stored(name).entry})
    changed = Value.text(1, "URL", "https://example.org/changed")
    elsewhere(registry, "10.1/a", changed, admin(100, "300:0.NA/10.1"))
    registry.do(Add(name, (URL,), overwrite=True), ADMIN, "native")
    assert registry.resolve(Query(name, indexes=[1]), NOBODY).values[0].data == URL.data


def test_changed_entry_is_not_cached(registry: Registry, readings: list[str]) -> None:
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"))
    for number in range(3):
        registry.do(Modify(handle("10.1/a"), (Value.text(1, "URL", str(number)),)), ADMIN, "native")
    del readings[:]
    registry.do(Modify(handle("10.1/a"), (Value.text(1, "URL", "last"),)), ADMIN, "native")
    assert readings == ["read"]


def test_cache_size_is_limited(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_ENTRIES", 2)
    for number in range(3):
        create(registry, f"10.1/{number}")
        assert len(registry.entry_cache._entries) <= 2
    monkeypatch.setattr(snapshot, "MAX_VALUES", 0)
    registry.entry_cache.forget(dict(registry.entry_cache._entries))
    create(registry, "10.1/last")
    assert not [known for known in registry.entry_cache._entries.values() if known.entry.values]


@pytest.mark.parametrize(("octets", "is_kept"), [(snapshot.MAX_BYTES // 2, True), (snapshot.MAX_BYTES, False)])
def test_large_entries_are_not_cached(registry: Registry, octets: int, is_kept: bool) -> None:
    elsewhere(registry, "0.NA/10.1", admin(100, "300:0.NA/10.1"), Value(1, "DESC", b"x" * octets))
    create(registry, "10.1/a")
    assert (remembered(registry, "0.NA/10.1") is not None) is is_kept


# What is erased is not kept in memory


def holding(registry: Registry, data: bytes) -> bool:
    return any(data in known.entry.body() for known in registry.entry_cache._entries.values())


def test_changed_entry_is_dropped_by_all_threads(registry: Registry) -> None:
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"), SECRET)
    key = record_key("10.1/a")
    with registry.snapshot() as snapshot:
        seen = {key: snapshot.entry(key)}
        before = snapshot.reader.size
    remember(registry, seen)
    assert holding(registry, SECRET.data)
    registry.do(Remove(handle("10.1/a"), (SECRET.index,)), ADMIN, "native")
    assert not holding(registry, SECRET.data)
    registry.entry_cache.note(seen, (), before, erased=False)
    assert not holding(registry, SECRET.data), "who read it before, and comes only now, brings it back"
    create(registry, "10.1/b")
    assert remembered(registry, "0.NA/10.1") is not None


def test_cache_is_cleared_by_a_redaction(registry: Registry) -> None:
    create(registry, "10.1/a", URL, admin(100, "300:0.NA/10.1"))
    with registry.snapshot() as snapshot:
        stored = snapshot.stored(handle("10.1/a"))
    elsewhere(registry, "10.1/a", EMAIL, admin(100, "300:0.NA/10.1"))
    # Of what other processes change nothing is known here, so it may be remembered under whatever key.
    remember(registry, {stored.key: stored.entry, b"10.1/OTHER": stored.entry})
    registry.do(Redact(handle("10.1/a"), 1, stored.seq, "by order of a court"), OPERATOR, "cli")
    assert not holding(registry, URL.data)


def test_cache_drops_records_of_another_case_rule(registry: Registry) -> None:
    create(registry, "10.1/Aa", URL, SECRET)
    create(registry, "10.1/b", URL)
    exact = replace(PROFILES["free"], case=CaseRule.SENSITIVE)
    registry.do(SetPolicy("10.1", exact, change_case=True), OPERATOR, "cli")
    assert not holding(registry, SECRET.data)
    assert remembered(registry, policy_name("10.1")) is None


# One state, and what is remembered beside it


@dataclass(frozen=True)
class Interrupted:
    """A command during which another one is executed and cached, while its snapshot is open."""

    operation: Command[ChangeResult]
    meanwhile: Callable[[], object]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        assert context.snapshot.reader.size  # as for rights that are not remembered
        self.meanwhile()
        return self.operation.decide(context)


def change_once(registry: Registry, name: str, *values: Value, state: State = State.NORMAL) -> Callable[[], None]:
    """Change a record, and have another decision cache it; the second time do nothing."""
    done: list[str] = []

    def change() -> None:
        if not done:
            done.append(name)
            elsewhere(registry, name, *values, state=state)
            with registry.snapshot() as snapshot:
                remember(registry, {record_key(name): snapshot.entry(record_key(name))})

    return change


def test_redaction_keeps_concurrent_changes(registry: Registry) -> None:
    create(registry, "10.1/a", URL)
    with registry.snapshot() as snapshot:
        seq = snapshot.stored(handle("10.1/a")).seq
    registry.do(Modify(handle("10.1/a"), (Value.text(1, "URL", "new"),)), OPERATOR, "cli")
    newest = Value.text(1, "URL", "newest")
    order = Redact(handle("10.1/a"), 1, seq, "by order of a court")
    registry.do(Interrupted(order, change_once(registry, "10.1/a", newest)), OPERATOR, "cli")
    assert registry.resolve(Query(handle("10.1/a")), NOBODY).values[0].data == newest.data


def test_undoing_a_tombstone_keeps_concurrent_changes(registry: Registry) -> None:
    """It was undone, changed, and created again."""
    name = handle("10.1/a")
    create(registry, "10.1/a", URL)
    registry.do(Tombstone(name, "gone"), OPERATOR, "cli")
    steps = [change_once(registry, "10.1/a", EMAIL), change_once(registry, "10.1/a", state=State.TOMBSTONE)]
    registry.do(Interrupted(Revive(name), lambda: [step() for step in steps]), OPERATOR, "cli")
    assert [value.type for value in registry.resolve(Query(name), NOBODY).values] == ["EMAIL"]


def test_entries_found_by_scan_do_not_hide_a_removed_permission(registry: Registry) -> None:
    """A change of the case rule depends on all records, and one may be cached for its permissions."""
    create(registry, "10.1/group", Value(200, "HS_VLIST", ValueList((ADMIN.reference,)).to_bytes()))
    elsewhere(registry, "0.NA/10.1", admin(100, "200:10.1/group"))
    create(registry, "10.1/a")
    assert remembered(registry, "10.1/group") is not None
    elsewhere(registry, "10.1/group", Value(200, "HS_VLIST", ValueList(()).to_bytes()))
    exact = replace(PROFILES["free"], case=CaseRule.SENSITIVE)
    with pytest.raises(Refused) as caught:
        registry.do(SetPolicy("10.1", exact, change_case=True), ADMIN, "native")
    assert caught.value.code is ResponseCode.INVALID_ADMIN


# Another history under the same numbers


def test_cache_of_a_replaced_ledger_is_not_used(registry: Registry, tmp_path: Path) -> None:
    """An older database is restored under a running process, without a permission."""
    bob = key_holder(301, "0.NA/10.1")
    path = str(registry.ledger.log.store.engine.url.database)
    with closing(sqlite3.connect(path)) as database, closing(sqlite3.connect(tmp_path / "older")) as older:
        database.backup(older)
        elsewhere(registry, "0.NA/10.1", admin(100, "300:0.NA/10.1"), admin(101, "301:0.NA/10.1"))
        registry.do(Create(handle("10.1/a"), (URL,)), bob, "native")
        known = remembered(registry, "0.NA/10.1")
        put_back(older, database)
    elsewhere(registry, "0.NA/10.1", admin(100, "300:0.NA/10.1"))
    with registry.snapshot() as snapshot:
        assert known is not None
        assert snapshot.latest(record_key("0.NA/10.1")) == known.seq, "the number is the same"
    with pytest.raises(Refused) as caught:
        registry.do(Create(handle("10.1/b"), (URL,)), bob, "native")
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    create(registry, "10.1/b")
    create(registry, "10.1/c")
    found = registry.entry_cache.get(record_key("0.NA/10.1"))
    assert found is not None
    assert found.entry.leaf_hash() == found.leaf != known.leaf_hash()


def put_back(older: sqlite3.Connection, database: sqlite3.Connection) -> None:
    """Restore the rows of every table."""
    tables = [row[0] for row in older.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with database:
        for table in tables:
            rows = older.execute(f"SELECT * FROM {table}").fetchall()
            database.execute(f"DELETE FROM {table}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def test_assumed_policy_applies_to_records_that_were_read_before(registry: Registry) -> None:
    create(registry, "10.1/a")
    with registry.snapshot() as read:
        assert read.values("10.1/a")
        read.assume("10.1", replace(PROFILES["free"], case=CaseRule.SENSITIVE))
        assert read.values("10.1/a") is None

"""Exports: what each caller gets, and that all records are as of one entry."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from perseid.names.handle import CaseRule
from perseid.records.record import Permission
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import export as exports
from perseid.registry.queries.export import ExportedRecord, Selection, check_export, find_as_of, read_slice
from perseid.registry.queries.find import Search
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    LISTER,
    SERVER,
    STRANGER,
    delete,
    hidden,
    policy,
    publish,
    put,
    reserve,
    rules,
    site,
    unpublish,
    value,
)
from tests.registry.registries import NOBODY, OPERATOR, add_namespace

IN_NAMESPACE = Selection(Search(prefix="12345"))


def exported(
    registry: Registry,
    identity: Identity = OPERATOR,
    selection: Selection = IN_NAMESPACE,
    at: str | None = None,
    changes: Sequence[Callable[[], object]] = (),
) -> list[ExportedRecord]:
    """Return an export; one of the changes is made after each slice."""
    following = iter(changes)
    with registry.snapshot() as snapshot:
        check_export(snapshot, identity, selection)
        as_of = find_as_of(snapshot.reader, at, registry.ledger.log.clock.now())
    found: list[ExportedRecord] = []
    position = None
    while True:
        with registry.snapshot() as snapshot:
            part = read_slice(snapshot, identity, selection, as_of, position)
        found += part.records
        assert part.position != position or position is None
        position = part.position
        if position is None:
            return found
        next(following, list)()


def shown(records: list[ExportedRecord]) -> dict[str, tuple[str, list[str]]]:
    """Return the state and the data of public and private values of each record, by suffix."""
    return {
        each.handle.partition("/")[2]: (
            each.state.label,
            [value.data.decode() for value in each.values if value.type == "URL"],
        )
        for each in records
    }


def fill(registry: Registry) -> None:
    """Create records in every state; ANN administers all of them."""
    put(registry, value(1, "public"), hidden(2, "private"), value(3, "none", Permission(0)), ADMIN, name="12345/A")
    unpublish(registry, value(1, "unpublished"), ADMIN, name="12345/b")
    reserve(registry, ADMIN, name="12345/c")
    put(registry, ADMIN, name="12345/d")
    delete(registry, name="12345/d")
    put(registry, value(1, "other"), name="12345/e")


@pytest.mark.parametrize(
    ("identity", "audience", "expected"),
    [
        (
            OPERATOR,
            Audience.ADMINISTRATORS,
            {
                "A": ("published", ["public", "private", "none"]),
                "b": ("unpublished", ["unpublished"]),
                "c": ("reserved", []),
                "e": ("published", ["other"]),
            },
        ),
        (NOBODY, Audience.PUBLIC, {"A": ("published", ["public"]), "e": ("published", ["other"])}),
        (STRANGER, Audience.AUTHENTICATED, {"A": ("published", ["public"]), "e": ("published", ["other"])}),
        (LISTER, Audience.ADMINISTRATORS, {"A": ("published", ["public"]), "e": ("published", ["other"])}),
        (SERVER, Audience.ADMINISTRATORS, {"A": ("published", ["public"]), "e": ("published", ["other"])}),
        (
            ANN,
            Audience.PUBLIC,
            {
                "A": ("published", ["public", "private"]),
                "b": ("unpublished", ["unpublished"]),
                "c": ("reserved", []),
                "e": ("published", ["other"]),
            },
        ),
    ],
    ids=["local administrator", "anonymous", "authenticated", "lister", "server administrator", "owner"],
)
def test_callers_get_what_they_can_see(
    identity: Identity, audience: Audience, expected: dict[str, tuple[str, list[str]]]
) -> None:
    with site(who_may_list=audience) as registry:
        fill(registry)
        assert shown(exported(registry, identity)) == expected


def test_closed_list_is_refused_but_owned_records_are_exported() -> None:
    with site() as registry:
        fill(registry)
        for identity in (NOBODY, STRANGER, ANN):
            with pytest.raises(Refused, match="list the handles of 12345"):
                exported(registry, identity)
        everything = Selection()
        assert exported(registry, NOBODY, everything) == []
        assert list(shown(exported(registry, ANN, everything))) == ["A", "b", "c"]
        # The owner of the policy `free` is the administrator.
        owned = Selection(Search(prefix="12345", owner="12345/ann"))
        assert list(shown(exported(registry, ANN, owned))) == ["A", "b", "c"]
    with site(rules=rules(listing_allowed=False), who_may_list=Audience.PUBLIC) as registry:
        fill(registry)
        assert list(shown(exported(registry, OPERATOR))) == ["A", "b", "c", "e"]
        with pytest.raises(Refused, match="disabled"):
            exported(registry, NOBODY)


def test_unknown_prefix_is_refused_and_own_records_of_the_installation_are_not_exported() -> None:
    with site() as registry:
        fill(registry)
        with pytest.raises(Refused, match="does not host prefix 99999"):
            exported(registry, OPERATOR, Selection(Search(prefix="99999")))
        names = [each.handle for each in exported(registry, OPERATOR, Selection())]
        assert names == ["0.NA/12345", "12345/A", "12345/b", "12345/c", "12345/e"]
        history = [each.handle for each in exported(registry, OPERATOR, Selection(history=True))]
        assert not [name for name in history if name.startswith("0.SITE")]


def test_records_are_as_of_one_entry_whatever_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_RECORDS", 1)
    with site(who_may_list=Audience.PUBLIC) as registry:
        names = [f"12345/{letter}" for letter in "bcdefgh"]
        for name in names:
            put(registry, value(1, "old"), name=name)
        before = {name: shown(exported(registry, identity)) for name, identity in (("all", OPERATOR), ("any", NOBODY))}
        changes: list[Callable[[], object]] = [
            lambda: put(registry, value(1, "new"), name="12345/c"),
            lambda: delete(registry, name="12345/d"),
            lambda: put(registry, value(1, "new"), name="12345/dd"),
            lambda: put(registry, value(1, "new"), name="12345/a"),
            lambda: [delete(registry, name="12345/f"), put(registry, value(1, "again"), name="12345/f")],
        ]
        found = exported(registry, OPERATOR, changes=changes)
        assert shown(found) == before["all"]
        assert [each.handle for each in found] == names
        again = [lambda: [put(registry, value(1, "newer"), name=name) for name in names]]
        before["any"] = shown(exported(registry, NOBODY))
        assert shown(exported(registry, NOBODY, changes=again)) == before["any"]


def test_what_is_hidden_during_an_export_stays_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_RECORDS", 1)
    with site(who_may_list=Audience.PUBLIC) as registry:
        for letter in "abcd":
            put(registry, value(1, "shown"), value(2, "secret"), name=f"12345/{letter}")

        def hide() -> None:
            put(registry, value(1, "shown"), hidden(2, "secret"), name="12345/b")
            unpublish(registry, value(1, "shown"), name="12345/c")

        changes = [hide]
        found = shown(exported(registry, NOBODY, changes=changes))
        assert found == {
            "a": ("published", ["shown", "secret"]),
            "b": ("published", ["shown"]),
            "d": ("published", ["shown", "secret"]),
        }


def test_earlier_time_is_exported_unless_the_policy_hides_it() -> None:
    with site(who_may_list=Audience.PUBLIC) as registry:
        then = put(registry, value(1, "old"), name="12345/a")
        put(registry, value(1, "new"), name="12345/a")
        put(registry, value(1, "late"), name="12345/b")
        for identity in (OPERATOR, NOBODY):
            assert shown(exported(registry, identity, at=str(then))) == {"a": ("published", ["old"])}
        registry.do(SetPolicy("12345", policy(who_may_list=Audience.PUBLIC, show_past=False)), OPERATOR, "cli")
        assert exported(registry, NOBODY, at=str(then)) == []
        assert shown(exported(registry, OPERATOR, at=str(then))) == {"a": ("published", ["old"])}


def test_records_that_change_are_exported_as_they_are_where_history_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_RECORDS", 1)
    with site(who_may_list=Audience.PUBLIC, show_past=False) as registry:
        put(registry, value(1, "old"), name="12345/a")
        put(registry, value(1, "old"), name="12345/b")
        changes = [lambda: put(registry, value(1, "new"), name="12345/b")]
        found = shown(exported(registry, NOBODY, changes=changes))
        assert found == {"a": ("published", ["old"]), "b": ("published", ["new"])}


@pytest.mark.parametrize("size", [1, 2, 1_000])
def test_history_has_every_visible_version(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_RECORDS", size)
    history = replace(IN_NAMESPACE, history=True)

    def versions(identity: Identity, at: str | None = None) -> list[tuple[str, str, str]]:
        found = exported(registry, identity, history, at)
        assert all(each.version is not None for each in found)
        return [
            (each.handle.partition("/")[2], each.state.label, each.version.action.name.lower())
            for each in found
            if each.version is not None
        ]

    with site(who_may_list=Audience.PUBLIC) as registry:
        reserve(registry, ADMIN, name="12345/a")
        published = publish(registry, value(1, "one"), ADMIN, name="12345/a")
        put(registry, value(1, "two"), hidden(2, "secret"), ADMIN, name="12345/a", note="why")
        delete(registry, name="12345/a")
        unpublish(registry, value(1, "hidden"), name="12345/b")
        everything = [
            ("a", "absent", "delete"),
            ("a", "published", "update"),
            ("a", "published", "publish"),
            ("a", "reserved", "reserve"),
            ("b", "unpublished", "unpublish"),
        ]
        assert versions(OPERATOR) == everything
        assert versions(OPERATOR, str(published)) == everything[2:4]
        public = [("a", "absent", "delete"), ("a", "published", "update"), ("a", "published", "create")]
        assert versions(NOBODY) == public
        newest = next(each for each in exported(registry, OPERATOR, history) if each.state.label == "published")
        assert newest.version is not None
        assert (newest.version.actor, newest.version.note) == ("300:12345/ann", "why")
        assert [each.data for each in newest.values if each.type == "URL"] == [b"two", b"secret"]
        seen = next(each for each in exported(registry, NOBODY, history) if each.state.label == "published")
        assert seen.version is not None
        assert (seen.version.actor, seen.version.note) == (None, None)
        assert [each.data for each in seen.values if each.type == "URL"] == [b"two"]


@pytest.mark.parametrize("identity", [OPERATOR, NOBODY])
def test_change_of_the_case_rule_leaves_one_record_and_one_history(identity: Identity) -> None:
    with site(who_may_list=Audience.PUBLIC) as registry:
        first = put(registry, value(1, "one"), name="12345/Mixed")
        put(registry, value(1, "plain"), name="12345/plain")
        sensitive = policy(case=CaseRule.SENSITIVE, who_may_list=Audience.PUBLIC)
        registry.do(SetPolicy("12345", sensitive, change_case=True), OPERATOR, "cli")
        assert [each.handle for each in exported(registry, identity)] == ["12345/Mixed", "12345/plain"]
        versions = exported(registry, identity, replace(IN_NAMESPACE, history=True))
        assert [(each.handle, each.state.label) for each in versions[:2]] == [("12345/Mixed", "published")] * 2
        assert len({each.seq for each in versions}) == len(versions)
        (found,) = exported(registry, identity, at=str(first))
        assert (found.handle, found.seq, [each.data for each in found.values]) == ("12345/Mixed", first, [b"one"])


def test_owner_gets_a_record_that_has_another_key_since() -> None:
    with site() as registry:
        put(registry, value(1, "deleted"), name="12345/A")
        delete(registry, name="12345/A")
        put(registry, value(1, "mine"), ADMIN, name="12345/aa")
        then = unpublish(registry, value(1, "not mine"), name="12345/b")
        registry.do(SetPolicy("12345", policy(case=CaseRule.SENSITIVE), change_case=True), OPERATOR, "cli")
        found = exported(registry, ANN, Selection(), at=str(then))
        assert [each.handle for each in found] == ["12345/aa"]


def test_criteria_select_records_as_of_that_time() -> None:
    with site(who_may_list=Audience.PUBLIC) as registry:
        add_namespace(registry, "54321", policy(who_may_list=Audience.PUBLIC))
        put(registry, value(1, "https://example.org/1"), hidden(2, "https://secret.example/"), ADMIN, name="12345/a")
        put(registry, value(1, "https://example.org/2"), name="54321/b")
        last = put(registry, value(1, "https://other.example/"), name="12345/c")

        def names(identity: Identity = NOBODY, at: str | None = None, **criteria: object) -> list[str]:
            search = Search(**criteria)  # type: ignore[arg-type]
            return [each.handle for each in exported(registry, identity, Selection(search), at)]

        assert names(host="example.org") == ["12345/a", "54321/b"]
        assert names(host="example.org", prefix="54321") == ["54321/b"]
        assert names(host="secret.example") == []
        assert names(ANN, host="secret.example") == ["12345/a"]
        assert names(since=last - 1) == ["12345/c"]
        put(registry, value(1, "https://other.example/2"), name="54321/b")
        assert names(host="example.org") == ["12345/a"]
        assert names(host="example.org", at=str(last)) == ["12345/a", "54321/b"]


def test_slices_end_at_bytes_and_skipped_records(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(who_may_list=Audience.PUBLIC) as registry:
        for number in range(6):
            put(registry, value(1, "x" * 100), name=f"12345/{number}")
            unpublish(registry, name=f"12345/{number}h")
        expected = [f"12345/{number}" for number in range(6)]
        monkeypatch.setattr(exports, "_BATCH", 2)
        monkeypatch.setattr(exports, "MAX_SCANNED", 2)
        assert [each.handle for each in exported(registry, NOBODY)] == expected
        monkeypatch.setattr(exports, "MAX_BYTES", 200)
        monkeypatch.setattr(exports, "_BATCH", 500)
        with registry.snapshot() as snapshot:
            part = read_slice(snapshot, NOBODY, IN_NAMESPACE, find_as_of(snapshot.reader, None, 0))
        assert [each.handle for each in part.records] == expected[:2]
        assert part.position is not None


def test_slices_end_after_many_versions_that_were_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_VERSIONS_SCANNED", 10)
    with site(who_may_list=Audience.PUBLIC) as registry:
        *_, then = [put(registry, value(1, "old"), name=name) for name in ("12345/a", "12345/b", "12345/c")]
        for name in ("12345/a", "12345/c"):
            for number in range(10):
                put(registry, value(1, str(number)), name=name)
        with registry.snapshot() as snapshot:
            as_of = find_as_of(snapshot.reader, str(then), registry.ledger.log.clock.now())
            part = read_slice(snapshot, NOBODY, IN_NAMESPACE, as_of)
        assert [each.handle for each in part.records] == ["12345/a"]
        assert shown(exported(registry, NOBODY, at=str(then))) == dict.fromkeys("abc", ("published", ["old"]))

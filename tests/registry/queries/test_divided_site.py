"""Copies that were left when a site was divided: only server administrators see them, and nothing else names them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.records.partition import find_server_index
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.commands.records import Create, Delete, ReplaceRecord
from perseid.registry.identity import Identity
from perseid.registry.partition import Partition
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import browse, listing
from perseid.registry.queries.export import Selection, find_as_of, read_slice
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.listing import (
    count_handles,
    list_by_offset,
    list_changes,
    list_handles,
)
from perseid.registry.queries.log import list_log, list_recent
from perseid.registry.queries.suggest import suggestions
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Snapshot
from tests.registry.installation.server_files import site
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory
from tests.wire.key_material import SERVER_KEY

ANN = key_holder(300, "0.NA/12345")
SERVER = key_holder(300, "0.NA/0.NA")
NAMES = [f"12345/report-{letter}" for letter in "abcdefghij"]
KEPT, LEFT = ([name for name in NAMES if find_server_index(name.encode(), 2, 2) == n] for n in range(2))


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """The first server of a site that was divided after records had been created."""
    with registry_in_memory() as made:
        opened = replace(PROFILES["free"], who_may_list=Audience.PUBLIC)
        add_namespace(made, "12345", opened, admin(100, str(ANN)))
        values = (Value.text(1, "URL", "https://example.org/"), admin(100, str(ANN)))
        for name in NAMES:
            made.do(Create(handle(name), values), OPERATOR, "cli")
        whole = replace(site(SERVER_KEY), servers=site(SERVER_KEY).servers * 2)
        made.rules = replace(made.rules, partition=Partition(whole, 0))
        yield made


def listed(snapshot: Snapshot, identity: Identity) -> dict[str, list[str]]:
    everything = Selection()
    as_of = find_as_of(snapshot.reader, None, 0)
    return {
        "list": [each.handle for each in list_handles(snapshot, identity, "12345").items],
        "log": [each.handle for each in list_log(snapshot, identity).items if each.handle in NAMES],
        "recent": [each.handle for each in list_recent(snapshot, identity).items if each.handle in NAMES][::-1],
        "changes": [
            each.handle
            for each in list_changes(snapshot, identity, 0, snapshot.reader.size).items
            if each.handle in NAMES
        ],
        "find": [each.handle for each in find(snapshot, identity, Search(prefix="12345")).items],
        "export": [
            each.handle for each in read_slice(snapshot, identity, everything, as_of).records if each.handle in NAMES
        ],
    }


@pytest.mark.parametrize(
    ("identity", "expected"), [(NOBODY, KEPT), (ANN, KEPT), (SERVER, NAMES), (OPERATOR, NAMES)], ids=str
)
def test_copies_are_listed_for_server_administrators_only(
    registry: Registry, identity: Identity, expected: list[str]
) -> None:
    assert KEPT
    assert LEFT
    with registry.snapshot() as snapshot:
        assert listed(snapshot, identity) == dict.fromkeys(listed(snapshot, identity), expected)
        for _ in range(2):  # also when it is cached
            assert count_handles(snapshot, identity, "12345") == len(expected)
        pages = [list_by_offset(snapshot, identity, "12345", skip, 2) for skip in range(0, len(NAMES), 2)]
        found = [None if page is None else [each.handle for each in page] for page in pages]
        assert found == ([None] * 5 if expected == KEPT else [NAMES[n : n + 2] for n in range(0, len(NAMES), 2)])


def test_pages_about_namespaces_do_not_name_copies(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        assert browse.complete(snapshot, "12345/report-", ()) == KEPT[:8]
        for size in (1, 2, 3):
            starts = browse.list_parts(snapshot, "12345", size, 100)
            parts = [browse.list_part(snapshot, "12345", start, size) for start in starts]
            assert set(starts) <= set(KEPT)
            assert [name for part in parts for name in part] == KEPT
        overview = browse.get_overview(registry.context(snapshot, NOBODY, "http"), "12345", None)
        assert {each.handle for each in overview.recent} <= {*KEPT, "0.NA/12345"}


def test_copies_are_no_longer_counted_when_they_are_deleted_or_hidden(registry: Registry) -> None:
    with registry_in_memory() as made:
        add_namespace(made, "12345", replace(PROFILES["free"], who_may_list=Audience.PUBLIC), admin(100, str(ANN)))
        for name in NAMES:
            made.do(Create(handle(name), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli")
        made.rules = replace(made.rules, partition=registry.rules.partition)
        for number in range(3):
            with made.snapshot() as snapshot:
                assert count_handles(snapshot, NOBODY, "12345") == len(KEPT)
                assert count_handles(snapshot, OPERATOR, "12345") == len(NAMES) - number
                overview = browse.get_overview(made.context(snapshot, NOBODY, "http"), "12345", None)
                assert overview.count == len(KEPT)
            made.do(Delete(handle(LEFT[number])), OPERATOR, "cli")
        made.do(Delete(handle(KEPT[0])), OPERATOR, "cli")
        with made.snapshot() as snapshot:
            assert count_handles(snapshot, NOBODY, "12345") == len(KEPT) - 1


def test_copies_are_counted_in_steps(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many handles nor many changes are examined at once, and an older snapshot changes nothing."""
    with registry_in_memory() as made:
        add_namespace(made, "12345", replace(PROFILES["free"], who_may_list=Audience.PUBLIC), admin(100, str(ANN)))
        for name in NAMES:
            made.do(Create(handle(name), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli")
        partition = replace(registry.rules.partition or pytest.fail("not divided"), misplaced={})
        made.rules = replace(made.rules, partition=partition)
        monkeypatch.setattr(listing, "MAX_SCANNED", 4)

        def count() -> int | None:
            with made.snapshot() as snapshot:
                return count_handles(snapshot, NOBODY, "12345")

        assert [count() for _ in range(5)] == [None, None, *[len(KEPT)] * 3]
        with made.snapshot() as older:
            assert older.reader.size
            for number in range(6):
                made.do(
                    ReplaceRecord(handle(KEPT[0]), (Value.text(1, "URL", f"https://example.org/{number}"),)),
                    OPERATOR,
                    "cli",
                )
            assert [count() for _ in range(3)] == [None, len(KEPT), len(KEPT)]
            known = dict(partition.misplaced)
            assert count_handles(older, NOBODY, "12345") is None, "it is about later entries"
            assert partition.misplaced == known
        made.do(Delete(handle(LEFT[0])), OPERATOR, "cli")
        assert [count() for _ in range(3)] == [None, None, len(KEPT)], "they are counted again"


def test_nothing_is_suggested_for_handles_of_other_servers(registry: Registry) -> None:
    """Neither a typo leads to a copy, nor is a handle of another server said not to exist."""
    found = suggestions(registry, f"{LEFT[0]}.")
    assert (found.suggestions, found.prefix) == ((), None)
    near = [str(each.handle) for name in NAMES for each in suggestions(registry, f"{name}x").suggestions]
    assert near
    assert set(near) <= set(KEPT)


def test_readable_copies_do_not_decide_about_other_records(registry: Registry) -> None:
    """Records with the same administrators have the same answer in an export, but not at the same server."""
    for name in (KEPT[0], LEFT[0]):
        registry.rules, whole = replace(registry.rules, partition=None), registry.rules
        registry.do(Unpublish(handle(name)), OPERATOR, "cli")
        registry.rules = whole
    with registry.snapshot() as snapshot:
        assert listed(snapshot, ANN)["export"] == KEPT
        assert listed(snapshot, NOBODY)["export"] == KEPT[1:]

"""Pages end when their items or bytes are used up; together they are the whole list, in order."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log import reader
from perseid.records.record import Value, ValueRef
from perseid.registry.access import tokens
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.identity import Identity
from perseid.registry.jobs import rewrite, runner
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import listing, log, paging
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.history import get_history
from perseid.registry.queries.paging import ITEM_OVERHEAD, VALUE_OVERHEAD, PageBudget, values_size
from perseid.registry.registry import Registry
from perseid.schema.common import MAX_PAGE_BYTES
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    X,
    delete,
    hidden,
    put,
    reserve,
    rules,
    site,
    value,
)
from tests.registry.registries import NOBODY, OPERATOR

Place = int | str | tuple[int, str] | None
Pages = Callable[[Registry, Identity, Place], tuple[Sequence[object], Place]]

LARGE = 10**9
"""Octets that do not fit on any page."""


@given(st.lists(st.integers(0, 2 * MAX_PAGE_BYTES), max_size=60), st.integers(1, 20))
def test_page_respects_both_limits_and_has_first_item(weights: list[int], limit: int) -> None:
    left = list(weights)
    while left:
        room, page = PageBudget(limit), []
        while left and room.take(left[0]):
            page.append(left.pop(0))
        assert 1 <= len(page) <= limit
        octets = sum(page) + ITEM_OVERHEAD * len(page)
        assert len(page) == 1 or octets <= MAX_PAGE_BYTES
        assert room.is_full == (len(page) == limit or octets >= MAX_PAGE_BYTES)
        if left:
            assert len(page) == limit or octets + left[0] + ITEM_OVERHEAD > MAX_PAGE_BYTES


def test_empty_budget_accepts_one_item_of_any_size() -> None:
    room = PageBudget(2)
    taken = [(room.take(octets), room.is_full) for octets in (LARGE, 0)]
    assert taken == [(True, True), (False, True)]


def test_value_size_includes_all_parts() -> None:
    plain = Value(1, "URL", b"https://example.org/")
    assert values_size((plain,)) == VALUE_OVERHEAD + 3 + 20
    references = tuple([ValueRef(number, "12345/other") for number in range(1_000)])
    assert values_size((plain, Value(2, "URL", b"", references=references))) > 1_000 * len("12345/other")
    assert values_size(()) == 0


# Each list, page by page


@pytest.fixture(scope="module")
def lived() -> Iterator[Registry]:
    """Create a public namespace with records of many sizes and states, one with a long history."""
    with site(rules=rules(), who_may_list=Audience.PUBLIC) as made:
        for number in range(24):
            url = value(1, f"http://old.example/{number}" + "x" * (number % 5 * 100))
            more = [value(2, "y" * (number % 3 * 500), type_="DESC"), hidden(3, "z" * (number % 4 * 800), "DESC")]
            put(made, ADMIN, url, *more[: number % 3], name=f"12345/n{number:02}", note="why " * (number % 6 * 50))
        for number in (3, 4, 11):
            delete(made, f"12345/n{number:02}")
        reserve(made, ADMIN, name="12345/later")
        for number in range(20):
            put(made, ADMIN, value(1, f"http://old.example/{number}"), value(2, "d" * (number % 4 * 400), type_="DESC"))
        for number in range(12):
            runner.start_job(made, "rewrite", {"url": "u" * (number * 90)}, OPERATOR, "cli", "n" * number)
            places = [f"12345.{each}.*" for each in range(number + 1)]
            secret = Secret.new(random.Random(number).randbytes)
            made.do(CreateToken(secret, ScopeSet.of(("read",), places), "", 1_000), OPERATOR, "cli")
        yield made


def listed_history(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, int)
    with registry.snapshot() as snapshot:
        found = get_history(snapshot, identity, X, after)
    return found.versions, found.before


def listed_log(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, int)
    with registry.snapshot() as snapshot:
        found = log.list_log(snapshot, identity, after)
    return found.items, found.last if found.more else None


def listed_changes(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, int)
    with registry.snapshot() as snapshot:
        found = listing.list_changes(snapshot, identity, 0, snapshot.reader.size, after)
    return found.items, found.last if found.more else None


def listed_names(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, int)
    with registry.snapshot() as snapshot:
        found = listing.list_handles(snapshot, identity, "12345", after or 0)
    return found.items, found.last if found.more else None


def numbered_names(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None
    with registry.snapshot() as snapshot:
        return listing.list_by_offset(snapshot, identity, "12345", 2) or (), None


def found_by(search: Search) -> Pages:
    def listed(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
        assert after is None or isinstance(after, str)
        with registry.snapshot() as snapshot:
            found = find(snapshot, identity, search, after)
        return found.items, found.following

    return listed


def planned(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, str)
    order = Rewrite("http://old.example/*", f"https://new.example/{'n' * 700}/*")
    with registry.snapshot() as snapshot:
        found = rewrite.preview_page(snapshot, identity, order, after)
    return found.items, found.following


def listed_units(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, tuple)
    found = runner.jobs_page(registry, identity, after, 100)
    return found.items, found.last


def listed_tokens(registry: Registry, identity: Identity, after: Place) -> tuple[Sequence[object], Place]:
    assert after is None or isinstance(after, str)
    return tokens.list_tokens(registry, identity, after or "")


LISTS: dict[str, tuple[Pages, Identity]] = {
    "history": (listed_history, ANN),
    "history for all": (listed_history, NOBODY),
    "log": (listed_log, OPERATOR),
    "log for all": (listed_log, NOBODY),
    "changes": (listed_changes, OPERATOR),
    "names": (listed_names, OPERATOR),
    "numbered names": (numbered_names, OPERATOR),
    "found by host": (found_by(Search(host="old.example")), OPERATOR),
    "found by host for all": (found_by(Search(host="old.example")), NOBODY),
    "found by type": (found_by(Search(type="DESC")), OPERATOR),
    "found by prefix": (found_by(Search(prefix="12345")), NOBODY),
    "found by time": (found_by(Search(since=10)), OPERATOR),
    "found without an index": (found_by(Search(url="*old*")), OPERATOR),
    "plan": (planned, OPERATOR),
    "units": (listed_units, OPERATOR),
    "tokens": (listed_tokens, OPERATOR),
}

ALWAYS_SHORT = ("changes", "names", "numbered names")
"""Lists that tell names alone: a thousand of them fit on a page."""


def all_pages(pages: Pages, registry: Registry, identity: Identity) -> list[Sequence[object]]:
    found: list[Sequence[object]] = []
    after: Place = None
    while True:
        items, after = pages(registry, identity, after)
        found.append(items)
        if after is None:
            return found


@pytest.mark.parametrize("name", LISTS)
def test_short_pages_add_up_to_whole_list(lived: Registry, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, identity = LISTS[name]
    ((*whole,),) = all_pages(pages, lived, identity)
    assert len(whole) >= 10
    for octets in (1, 600, 1_500, 4_000):
        monkeypatch.setattr(paging, "MAX_PAGE_BYTES", octets)
        monkeypatch.setattr(reader, "CHUNK_BYTES", octets)
        found = all_pages(pages, lived, identity)
        assert [each for page in found for each in page] == whole
        assert (len(found) == 1) == (name in ALWAYS_SHORT)
        if octets == 1:
            assert {len(page) for page in found} <= {0, 1} or name in ALWAYS_SHORT


def test_hidden_items_use_no_budget() -> None:
    """Otherwise the end of a page would reveal their size."""
    with site(rules=rules(), who_may_list=Audience.PUBLIC) as made:
        for number in range(12):
            put(
                made, ADMIN, value(1, f"http://example.org/{number}"), hidden(2, "h" * 500_000), name=f"12345/n{number}"
            )
            put(made, ADMIN, value(1, f"http://example.org/{number}"), hidden(2, "h" * 500_000))
        assert [len(page) for page in all_pages(found_by(Search(host="example.org")), made, NOBODY)] == [13]
        assert len(all_pages(found_by(Search(host="example.org")), made, OPERATOR)) == 1, "it is not by that value"
        assert len(all_pages(found_by(Search(type="URL")), made, NOBODY)) == 1
        assert [len(page) for page in all_pages(listed_history, made, NOBODY)] == [12]
        assert len(all_pages(listed_history, made, ANN)) > 1


def test_oversized_item_is_alone_on_its_page() -> None:
    with site(rules=rules(), who_may_list=Audience.PUBLIC) as made:
        for number in range(3):
            large = [value(index, f"{number}" * 1_000_000, type_="DESC") for index in range(2, 8)]
            put(made, ADMIN, value(1, f"http://example.org/{number}"), *large)
        assert [len(page) for page in all_pages(listed_history, made, NOBODY)] == [1, 1, 1]
        put(made, value(1, "http://example.org/"), name="12345/small")
        found = [page for page in all_pages(found_by(Search(host="example.org")), made, NOBODY) if page]
        assert sorted(len(page) for page in found) == [1, 1]
        with made.snapshot() as snapshot:
            assert (
                listing.list_by_offset(snapshot, OPERATOR, "12345", 0)
                == listing.list_handles(snapshot, OPERATOR, "12345").items
            )

"""Memento (RFC 7089): times, versions and TimeMaps; none reveals hidden data."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action, State
from perseid.names.handle import Handle
from perseid.registry.advice import AdviceKind
from perseid.registry.identity import Identity
from perseid.registry.queries import history, memento
from perseid.registry.queries.history import as_of, get_history, keep_history_note, seq_at_time
from perseid.registry.queries.links import LINK_FORMAT
from perseid.registry.queries.memento import (
    JSON,
    MementoNeighbors,
    MementoUrls,
    TimeMap,
    find_at_entry,
    find_at_time,
    find_deleted,
    format_http_date,
    get_time_map,
    memento_links,
    parse_http_date,
    present_links,
)
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import NOW, Machine
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    X,
    delete,
    hidden,
    publish,
    put,
    reserve,
    site,
    unpublish,
    value,
)
from tests.registry.queries.link_parser import ReadLink, read_links
from tests.registry.registries import NOBODY

HOME = "https://id.example.org/12345/x"
START = NOW // SECOND


def page_address(media_type: str, before: int | None) -> str:
    form = "json" if media_type == JSON else "link"
    return f"{HOME}?timemap={form}" + ("" if before is None else f"&before={before}")


ADDRESSES = MementoUrls(HOME, f"{HOME}?timegate", page_address, lambda seq: f"{HOME}?at={seq}")
OWN_GATE = MementoUrls(HOME, HOME, page_address, lambda seq: f"{HOME}?at={seq}")


def at_time(registry: Registry, seconds: int | None, identity: Identity = NOBODY, name: Handle = X) -> MementoNeighbors:
    with registry.snapshot() as snapshot:
        return find_at_time(snapshot, identity, name, seconds)


def mapped(
    registry: Registry, before: int | None = None, limit: int = 100, identity: Identity = NOBODY, name: Handle = X
) -> TimeMap:
    with registry.snapshot() as snapshot:
        return get_time_map(snapshot, identity, name, before, limit)


def seqs(found: TimeMap) -> list[int]:
    return [version.seq for version in found.mementos]


def not_found(registry: Registry, name: Handle = X) -> None:
    for call in (lambda: at_time(registry, None, name=name), lambda: mapped(registry, name=name)):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND


def by_relation(links: Sequence[ReadLink]) -> dict[str, list[ReadLink]]:
    found: dict[str, list[ReadLink]] = {}
    for link in links:
        for relation in link.relations:
            found.setdefault(relation, []).append(link)
    return found


# Times


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))  # noqa: DTZ001 - made UTC below
def test_http_dates_round_trip(naive: datetime) -> None:
    moment_ = naive.replace(microsecond=0, tzinfo=UTC)
    seconds = (moment_ - datetime(1970, 1, 1, tzinfo=UTC)).days * 86_400 + moment_.hour * 3_600
    seconds += moment_.minute * 60 + moment_.second
    text = format_http_date(seconds)
    assert text == format_datetime(moment_, usegmt=True)
    assert parse_http_date(text) == parse_http_date(f"  {text} ") == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Invalid HTTP date"),
        ("2026-11-15T10:00:00Z", "Invalid HTTP date"),
        ("Sunday, 15-Nov-26 10:00:00 GMT", "Invalid HTTP date"),
        ("Sun Nov 15 10:00:00 2026", "Invalid HTTP date"),
        ("Sun, 15 Nov 2026 10:00:00 +0000", "Invalid HTTP date"),
        ("Sun, 15 Nov 2026 10:00:00 CET", "Invalid HTTP date"),
        ("sun, 15 nov 2026 10:00:00 gmt", "Invalid HTTP date"),
        ("Sun, 15 Nov 26 10:00:00 GMT", "Invalid HTTP date"),
        ("Sun, 5 Nov 2026 10:00:00 GMT", "Invalid HTTP date"),
        ("Sun, 15 Nov 2026 10:00:00 GMT; x", "Invalid HTTP date"),
        ("Sun, 15 Nov \uff12026 10:00:00 GMT", "Invalid HTTP date"),
        ("\tSun, 15 Nov 2026 10:00:00 GMT", "Invalid HTTP date"),
        ("Sun, 31 Feb 2026 10:00:00 GMT", "no such time"),
        ("Sun, 15 Nov 2026 24:00:00 GMT", "no such time"),
        ("Sun, 15 Nov 2026 10:00:61 GMT", "no such time"),
        ("Sun, 15 Nov 0000 10:00:00 GMT", "no such time"),
        ("Son, 15 Nov 2026 10:00:00 GMT", "Invalid HTTP date"),
    ],
)
def test_invalid_http_dates_are_refused(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        parse_http_date(text)
    assert caught.value.code is ResponseCode.INVALID_VALUE
    assert caught.value.advice == AdviceKind.USE_ACCEPT_DATETIME()


def test_day_of_week_is_ignored() -> None:
    """RFC 7089, section 4.5.3: only malformed dates are refused; its figures 7 and 8 have wrong days."""
    assert format_http_date(parse_http_date("Tue, 15 Sep 2000 11:28:26 GMT")) == "Fri, 15 Sep 2000 11:28:26 GMT"


def test_leap_second_is_start_of_next_second() -> None:
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == parse_http_date("Sun, 01 Jan 2017 00:00:00 GMT")


# The version of a time


def three(registry: Registry, machine: Machine) -> list[int]:
    """Create versions 0, 10 and 20 seconds after the start."""
    found = []
    for number in range(3):
        found.append(put(registry, value(1, f"v{number}"), ADMIN))
        machine.run(10 * SECOND)
    return found


def test_memento_at_time(here: Registry, machine: Machine) -> None:
    first, second, third = three(here, machine)
    assert at_time(here, START).memento.seq == first
    assert at_time(here, START + 9).memento.seq == first
    assert at_time(here, START + 10).memento.seq == second
    assert at_time(here, START + 19).memento.seq == second
    assert at_time(here, START + 20).memento.seq == third


def test_times_outside_history_return_first_or_last(here: Registry, machine: Machine) -> None:
    first, _, third = three(here, machine)
    assert at_time(here, 0).memento.seq == first
    assert at_time(here, START - 1).memento.seq == first
    assert at_time(here, None).memento.seq == third
    assert at_time(here, START + 10**9).memento.seq == third, "also in the future"


def test_deleted_handle_has_the_requested_spelling(here: Registry) -> None:
    put(here)
    delete(here)
    with here.snapshot() as snapshot:
        found = [find_deleted(snapshot, Handle.parse(name)) for name in ("12345/x", "12345/X")]
    assert [each and str(each.handle) for each in found] == ["12345/x", "12345/X"]


def test_last_version_of_a_second_is_chosen(here: Registry, machine: Machine) -> None:
    put(here, value(1, "a"))
    machine.run(SECOND // 2)
    late = put(here, value(1, "b"))
    machine.run(SECOND)
    put(here, value(1, "c"))
    found = at_time(here, START)
    assert found.memento.seq == late
    assert found.memento.at % SECOND
    assert at_time(here, parse_http_date(found.memento.datetime)).memento.seq == late


def test_memento_has_neighbors(here: Registry, machine: Machine) -> None:
    first, second, third = three(here, machine)

    def told(found: MementoNeighbors) -> list[int | None]:
        versions = (found.first, found.previous, found.memento, found.next, found.last)
        return [None if version is None else version.seq for version in versions]

    assert told(at_time(here, START)) == [first, None, first, second, third]
    assert told(at_time(here, 0)) == [first, None, first, second, third]
    assert told(at_time(here, START + 12)) == [first, first, second, third, third]
    assert told(at_time(here, None)) == [first, second, third, None, third]
    with here.snapshot() as snapshot:
        assert told(find_at_entry(snapshot, NOBODY, X, second)) == [first, first, second, third, third]
        assert find_at_entry(snapshot, NOBODY, X, third + 100).memento.seq == third


def test_deleted_phase_returns_version_before(here: Registry, machine: Machine) -> None:
    first = put(here, value(1, "a"))
    machine.run(10 * SECOND)
    delete(here)
    machine.run(10 * SECOND)
    assert at_time(here, START + 15).memento.seq == first, "that it existed is known"
    assert seqs(mapped(here)) == [first]
    again = put(here, value(1, "b"), action=Action.CREATE)
    assert at_time(here, START + 15).memento.seq == first
    assert seqs(mapped(here)) == [first, again]


def test_every_memento_can_be_resolved(here: Registry, machine: Machine) -> None:
    three(here, machine)
    delete(here)
    put(here, value(1, "z"), action=Action.CREATE)
    for version in mapped(here).mementos:
        with here.snapshot() as snapshot:
            found = as_of(snapshot, NOBODY, Query(X), version.seq).resolved
        assert (found.seq, found.at) == (version.seq, version.at)


# What may not be seen


def test_hidden_handle_has_no_mementos(here: Registry, machine: Machine) -> None:
    put(here, value(1, "a"))
    machine.run(SECOND)
    unpublish(here, value(1, "a"))
    not_found(here)
    not_found(here, Handle.parse("12345/never"))
    reserve(here, ADMIN, name="12345/reserved")
    not_found(here, Handle.parse("12345/reserved"))
    with pytest.raises(Refused) as caught:
        at_time(here, None, name=Handle.parse("99999/x"))
    assert caught.value.code is ResponseCode.SERVER_NOT_RESP


def test_time_before_publication_is_hidden(here: Registry, machine: Machine) -> None:
    reserve(here, ADMIN)
    machine.run(10 * SECOND)
    unpublish(here, value(1, "a"), ADMIN)
    machine.run(10 * SECOND)
    first = publish(here, value(1, "a"), ADMIN)
    assert seqs(mapped(here)) == [first]
    assert at_time(here, START).memento.seq == first
    assert len(mapped(here, identity=ANN).mementos) == 3, "its administrator sees all of it"


def test_values_hidden_since_are_in_no_memento(here: Registry, machine: Machine) -> None:
    put(here, value(1, "a"), value(2, "secret"))
    machine.run(10 * SECOND)
    put(here, value(1, "a"), hidden(2, "secret"))
    for version in mapped(here).mementos:
        with here.snapshot() as snapshot:
            values = as_of(snapshot, NOBODY, Query(X), version.seq).resolved.values
        assert [each.data for each in values] == [b"a"]


def test_versions_before_unpublishing_stay_hidden_unless_kept(here: Registry) -> None:
    first = put(here, value(1, "a"))
    unpublish(here, value(1, "a"))
    again = publish(here, value(1, "b"))
    with here.snapshot() as snapshot, pytest.raises(Refused):
        as_of(snapshot, NOBODY, Query(X), first)
    other = Handle.parse("12345/y")
    kept = put(here, value(1, "a"), name="12345/y")
    unpublish(here, value(1, "a"), name="12345/y", note=keep_history_note(""))
    publish(here, value(1, "b"), name="12345/y")
    with here.snapshot() as snapshot:
        assert as_of(snapshot, NOBODY, Query(other), kept).resolved.seq == kept
    assert seqs(mapped(here))[-1] == again


def test_policy_without_history_leaves_one_memento(machine: Machine) -> None:
    with site(machine, show_past=False) as registry:
        _, _, third = three(registry, machine)
        found = mapped(registry)
        assert (seqs(found), found.complete) == ([third], False)
        chosen = at_time(registry, START)
        assert (chosen.memento.seq, chosen.first, chosen.previous) == (third, None, None)
        (memento_link,) = by_relation(read_links(found.to_link_format(ADDRESSES)))["memento"]
        assert memento_link.relations == ["last", "memento"]


_STEPS: dict[str, Callable[[Registry], int]] = {
    "put": lambda registry: put(registry, value(1, "a"), ADMIN),
    "hide": lambda registry: put(registry, hidden(1, "a"), ADMIN),
    "unpublish": lambda registry: unpublish(registry, value(1, "a"), ADMIN),
    "keep": lambda registry: unpublish(registry, value(1, "a"), ADMIN, note=keep_history_note("")),
    "publish": lambda registry: publish(registry, value(1, "a"), ADMIN),
    "delete": delete,
    "reserve": lambda registry: reserve(registry, ADMIN),
    "tombstone": lambda registry: put(registry, ADMIN, action=Action.TOMBSTONE, state=State.TOMBSTONE),
}


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(_STEPS)),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_mementos_match_history(steps: list[tuple[str, int]]) -> None:
    """TimeMaps list exactly the visible versions of the history."""
    machine = Machine()
    with site(machine) as registry:
        for what, seconds in steps:
            machine.run(seconds * SECOND)
            _STEPS[what](registry)
        with registry.snapshot() as snapshot:
            try:
                told = get_history(snapshot, NOBODY, X).versions
            except Refused:
                told = ()
        existing = [version.seq for version in told if version.state is not State.ABSENT][::-1]
        if not existing:
            not_found(registry)
            return
        assert seqs(mapped(registry)) == existing
        times = {version.seq: version.at // SECOND for version in told}
        for second in range(START - 1, machine.wall // SECOND + 2):
            before = [seq for seq in existing if times[seq] <= second]
            assert at_time(registry, second).memento.seq == (before[-1] if before else existing[0])


# Bounds


def test_first_memento_of_long_history_is_not_named(
    here: Registry, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three(here, machine)
    monkeypatch.setattr(memento, "MAX_VERSIONS_BEYOND", 2)
    found = at_time(here, None)
    assert (found.memento.seq, found.first) == (third, None)
    assert found.previous is not None
    assert found.previous.seq == second
    monkeypatch.setattr(memento, "MAX_VERSIONS_SCANNED_BACK", 2)
    assert at_time(here, START).memento.seq == second, "the earliest of those that are looked at"
    assert first


def test_mementos_end_at_scan_limit(here: Registry, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, third = three(here, machine)
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 3)
    found = mapped(here)
    assert (seqs(found), found.complete) == ([third], False)
    assert at_time(here, START).first is None


# Links


def test_present_response_links_history() -> None:
    gate, timemap = present_links(ADDRESSES)
    assert (gate.relation, gate.target) == ("timegate", ADDRESSES.timegate)
    assert (timemap.relation, timemap.target, timemap.type) == ("timemap", page_address(LINK_FORMAT, None), LINK_FORMAT)
    own = present_links(OWN_GATE)
    assert (own[0].relation, own[0].target) == ("original timegate", HOME)


def test_memento_links_neighbors(here: Registry, machine: Machine) -> None:
    """RFC 7089, section 2.2: every memento link has its time; a link can have several roles."""
    first, second, third = three(here, machine)
    found = memento_links(at_time(here, START + 12), ADDRESSES)
    assert [(link.relation, link.target) for link in found] == [
        ("original", HOME),
        ("timegate", f"{HOME}?timegate"),
        ("timemap", f"{HOME}?timemap=link"),
        ("first prev memento", f"{HOME}?at={first}"),
        ("memento", f"{HOME}?at={second}"),
        ("next last memento", f"{HOME}?at={third}"),
    ]
    assert [dict(link.others).get("datetime") for link in found[3:]] == [
        format_http_date(START),
        format_http_date(START + 10),
        format_http_date(START + 20),
    ]
    only = memento_links(at_time(here, None, name=X), OWN_GATE)
    assert "original timegate" in [link.relation for link in only]
    assert "last memento" in [link.relation for link in only]


def test_single_version_has_one_link(here: Registry) -> None:
    seq = put(here, value(1))
    *_, link = memento_links(at_time(here, None), ADDRESSES)
    assert (link.relation, link.target) == ("first last memento", f"{HOME}?at={seq}")


# Lists


def test_timemap_lists_all_mementos(here: Registry, machine: Machine) -> None:
    """RFC 7089, section 5: original, self with its range, timegate, and mementos."""
    first, second, third = three(here, machine)
    links = by_relation(read_links(mapped(here).to_link_format(ADDRESSES)))
    assert [link.target for link in links["original"]] == [HOME]
    assert [link.target for link in links["timegate"]] == [f"{HOME}?timegate"]
    (itself,) = links["self"]
    assert (itself.target, itself.one("type")) == (f"{HOME}?timemap=link", "application/link-format")
    assert (itself.one("from"), itself.one("until")) == (format_http_date(START), format_http_date(START + 20))
    assert [(link.target, link.one("datetime")) for link in links["memento"]] == [
        (f"{HOME}?at={first}", format_http_date(START)),
        (f"{HOME}?at={second}", format_http_date(START + 10)),
        (f"{HOME}?at={third}", format_http_date(START + 20)),
    ]
    assert [link.relations for link in links["memento"]] == [["first", "memento"], ["memento"], ["last", "memento"]]
    assert "timemap" not in links


def test_timemap_as_json(here: Registry, machine: Machine) -> None:
    first, _, third = three(here, machine)
    document = json.loads(mapped(here).to_json(ADDRESSES))
    assert document["original_uri"] == HOME
    assert document["timegate_uri"] == f"{HOME}?timegate"
    assert document["timemap_uri"] == {
        "link_format": f"{HOME}?timemap=link",
        "json_format": f"{HOME}?timemap=json",
    }
    items = document["mementos"]["list"]
    assert items[0] == {"datetime": "2027-11-03T00:00:00Z", "uri": f"{HOME}?at={first}", "seq": first}
    assert (document["mementos"]["first"], document["mementos"]["last"]) == (items[0], items[2])
    assert items[2]["seq"] == third
    assert document["complete"] is True
    assert "timemap_index" not in document


@pytest.mark.parametrize("identity", [NOBODY, ANN])
def test_timemap_pages_cover_all_mementos(here: Registry, machine: Machine, identity: Identity) -> None:
    every = []
    for number in range(7):
        every.append(put(here, value(1, f"v{number}"), ADMIN))
        machine.run(SECOND)
    pages = [mapped(here, limit=3, identity=identity)]
    while (before := pages[-1].next_before) is not None:
        pages.append(mapped(here, before, 3, identity))
    assert [seqs(page) for page in pages] == [every[4:], every[1:4], every[:1]]
    first, middle, last = [by_relation(read_links(page.to_link_format(ADDRESSES))) for page in pages]
    assert [link.target for link in first["timemap"]] == [page_address(LINK_FORMAT, every[4])]
    assert [first["timemap"][0].one(name) for name in ("from", "until")] == [
        format_http_date(START + 1),
        format_http_date(START + 3),
    ]
    assert middle["self"][0].target == page_address(LINK_FORMAT, every[4])
    assert [middle["self"][0].one(name) for name in ("from", "until")] == [
        format_http_date(START + 1),
        format_http_date(START + 3),
    ]
    assert [link.target for link in middle["timemap"]] == [
        page_address(LINK_FORMAT, None),
        page_address(LINK_FORMAT, every[1]),
    ]
    assert ("last" in first, "last" in middle, "last" in last) == (True, False, False)
    assert ("first" in first, "first" in middle, "first" in last) == (False, False, True)
    index = [json.loads(page.to_json(ADDRESSES)).get("timemap_index") for page in pages]
    newest = {"uri": page_address(JSON, None)} | ({"from": "2027-11-03T00:00:04Z"} if identity is NOBODY else {})
    assert index == [
        [{"uri": page_address(JSON, every[4]), "from": "2027-11-03T00:00:01Z", "until": "2027-11-03T00:00:03Z"}],
        [
            newest,
            {"uri": page_address(JSON, every[1]), "from": "2027-11-03T00:00:00Z", "until": "2027-11-03T00:00:00Z"},
        ],
        [newest],
    ]
    nothing = mapped(here, every[0], identity=identity)
    assert (seqs(nothing), nothing.older) == ([], None)
    assert "memento" not in by_relation(read_links(nothing.to_link_format(ADDRESSES)))


def test_timemap_page_is_limited(here: Registry) -> None:
    put(here, value(1))
    assert len(mapped(here, limit=10 * MAX_PAGE).mementos) == 1
    for before, limit in ((None, 0), (0, 1), (-5, 1)):
        with pytest.raises(Refused) as caught:
            mapped(here, before, limit)
        assert caught.value.code is ResponseCode.INVALID_VALUE
    not_found(here, Handle.parse("12345/none"))
    with pytest.raises(Refused):
        mapped(here, before=10**6, name=Handle.parse("12345/none"))


def test_all_interfaces_parse_times_alike(here: Registry, machine: Machine) -> None:
    """`at` accepts a time or an entry; the result is the memento of that entry."""
    _, second, _ = three(here, machine)
    with here.snapshot() as snapshot:
        seq = seq_at_time(snapshot.reader, "2027-11-03T00:00:12Z", machine.wall)
        found = find_at_entry(snapshot, NOBODY, X, seq)
        assert found.memento.seq == as_of(snapshot, NOBODY, Query(X), seq).resolved.seq == second
        assert seq_at_time(snapshot.reader, str(second), machine.wall) == second

"""The log with filters: by actor, action, prefix, time and job."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.log.entry import Action, State
from perseid.ledger.store.jobs import JobSteps
from perseid.records.encoding import to_iso
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Home
from perseid.registry.identity import Identity, LocalIdentity, TokenIdentity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import log
from perseid.registry.queries.listing import LogEntry
from perseid.registry.queries.log import LogFilter, LogSearch, get_actor_names, list_log, parse_actor
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidQuery, InvalidRequest
from perseid.schema.common import EntryAction
from perseid.schema.queries import LogQuery
from tests.ledger.ledgers import Machine
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    LISTER,
    SERVER,
    STRANGER,
    delete,
    identity,
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

TOKEN = str(TokenIdentity(ANN, "k7qpx2ma", ScopeSet.of(("find",), None)))
BEN, LOCAL = "301:12345/ben", str(LocalIdentity("ann"))

ACTORS = {
    "300:12345/ann": {"300:12345/ann", TOKEN},
    "12345/ann": {"300:12345/ann", "301:12345/ann", TOKEN},
    "0:12345/ann": {"300:12345/ann", "301:12345/ann", TOKEN},
    "hdl:12345/ann": {"300:12345/ann", "301:12345/ann", TOKEN},
    "301:12345/ann": {"301:12345/ann"},
    BEN: {BEN},
    LOCAL: {LOCAL},
    "token:k7qpx2ma": {TOKEN},
    TOKEN: {TOKEN},
    "anonymous": {"anonymous"},
    "12345/ANN": set(),  # another administrator, even where handles ignore case
    "token:k7": set(),
}
"""Filters, and the actors that they find."""

WRITERS = ("300:12345/ann", "301:12345/ann", BEN, TOKEN, LOCAL, "anonymous")


@pytest.fixture(scope="module", params=[(), ("show_actors",), ("show_past",), ("show_actors", "show_past")], ids=str)
def written(request: pytest.FixtureRequest) -> Iterator[Registry]:
    """A namespace with a public list and one without, with records in every state, changed by many actors."""
    shown = {name: name in request.param for name in ("show_actors", "show_past")}
    with site(rules=rules()) as made:
        add_namespace(made, "777")
        for number, actor in enumerate(WRITERS * 2):
            name = f"{('12345', '777')[number % 2]}/n{number % 5}"
            put(made, ADMIN, value(1, f"{number}"), name=name, actor=actor)
        for name in ("12345/c", "777/c"):
            put(made, ADMIN, value(1), name=name, state=State.UNPUBLISHED, actor=BEN)
            publish(made, ADMIN, value(1), name=name)
            unpublish(made, ADMIN, value(1), name=name)
            publish(made, ADMIN, value(1), name=name)
        reserve(made, ADMIN, name="12345/r")
        delete(made, "12345/n2")
        put(made, name="12345/g", action=Action.TOMBSTONE, state=State.TOMBSTONE, actor=BEN)
        made.do(SetPolicy("12345", policy(who_may_list=Audience.PUBLIC, **shown)), OPERATOR, "cli")
        yield made


def read(registry: Registry, caller: Identity, search: LogSearch, limit: int) -> list[LogEntry]:
    """Return all pages of a search."""
    found: list[LogEntry] = []
    position: int | None = None
    with registry.snapshot() as snapshot:
        while True:
            page = list_log(snapshot, caller, position, limit, search)
            found += page.items
            if not page.more:
                return found
            assert position is None or (page.last < position if search.newest else page.last > position)
            position = page.last


@settings(max_examples=100)
@given(
    caller=st.sampled_from((NOBODY, STRANGER, ANN, LISTER, SERVER, OPERATOR)),
    actor=st.none() | st.sampled_from(list(ACTORS)),
    action=st.none() | st.sampled_from(list(EntryAction)),
    prefix=st.none() | st.sampled_from(("12345", "777", "0.NA", "0.site", "12345.1")),
    bounds=st.tuples(st.integers(0, 33), st.integers(0, 33)) | st.just((0, 33)),
    newest=st.booleans(),
    steps=st.none() | st.lists(st.integers(1, 33), max_size=20, unique=True),
    limit=st.integers(1, 9),
    most=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_filtered_log_is_the_log_filtered(  # noqa: PLR0917 - every filter
    written: Registry,
    caller: Identity,
    actor: str | None,
    action: EntryAction | None,
    prefix: str | None,
    bounds: tuple[int, int],
    newest: bool,
    steps: list[int] | None,
    limit: int,
    most: tuple[int, int],
) -> None:
    since, until = bounds
    whole = read(written, caller, LogSearch(), 1_000)
    expected = [
        each
        for each in whole
        if since < each.seq <= until
        and (actor is None or each.actor in ACTORS[actor])
        and (action is None or each.action.name.lower() == action)
        and (prefix is None or each.handle.partition("/")[0].lower() == prefix.lower())
        and (steps is None or each.seq in steps)
    ]
    filters = LogFilter.of(LogQuery(actor=actor, action=action, prefix=prefix))
    rows = None if steps is None else JobSteps([(seq, 1) for seq in steps])
    with patch.object(log, "MAX_COMPARED", most[0]), patch.object(log, "MAX_SCANNED", most[1]):
        found = read(written, caller, LogSearch(filters, since, until, newest, rows), limit)
    assert found == (expected[::-1] if newest else expected)


def test_example_of_every_filter_is_in_the_log(written: Registry) -> None:
    """Otherwise the property could hold for empty logs only."""
    whole = read(written, SERVER, LogSearch(), 1_000)
    assert {each.actor for each in whole} >= set(WRITERS)
    assert {each.action.name for each in whole} >= {"CREATE", "UPDATE", "RESERVE", "PUBLISH", "UNPUBLISH", "TOMBSTONE"}
    assert 30 <= len(whole) <= 33
    assert [older.seq + 1 for older, _ in pairwise(whole)] == [newer.seq for _, newer in pairwise(whole)]


def test_withheld_actor_is_not_found() -> None:
    with site(rules=rules(), who_may_list=Audience.PUBLIC, show_actors=False) as here:
        put(here, ADMIN, value(1), name="12345/a")
        search = LogSearch(LogFilter(parse_actor("12345/ann")))
        assert [each.handle for each in read(here, LISTER, search, 9)] == ["12345/a"]
        assert len(read(here, NOBODY, LogSearch(), 9)) == 1
        assert read(here, NOBODY, search, 9) == []


def test_filtered_page_limits_compared_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(rules=rules()) as here:
        seqs = [put(here, value(1), name=f"12345/{number}", actor=BEN) for number in range(7)]
        last = put(here, ADMIN, value(1), name="12345/a")
        monkeypatch.setattr(log, "MAX_COMPARED", 3)
        search = LogSearch(LogFilter(parse_actor("300:12345/ann")), since=seqs[0] - 1)
        with here.snapshot() as snapshot:
            page = list_log(snapshot, LISTER, search=search)
            assert (page.items, page.last, page.more) == ((), seqs[2], True)
            page = list_log(snapshot, LISTER, seqs[4], search=search)
            assert ([each.seq for each in page.items], page.last, page.more) == ([last], last, False)
            newest = replace(search, filters=LogFilter(parse_actor("12345/none")), newest=True)
            page = list_log(snapshot, LISTER, search=newest)
            assert (page.items, page.last, page.more) == ((), seqs[5], True)


def test_filtered_page_limits_examined_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an entry is still public costs several reads."""
    with site(rules=rules(), who_may_list=Audience.PUBLIC) as here:
        put(here, value(1), name="12345/other", actor="anonymous")
        seqs = [put(here, value(1), name="12345/a", state=State.UNPUBLISHED) for _ in range(5)]
        monkeypatch.setattr(log, "MAX_SCANNED", 2)
        search = LogSearch(LogFilter(prefix="12345"), since=seqs[0] - 1)
        with here.snapshot() as snapshot:
            page = list_log(snapshot, NOBODY, search=search)
        assert (page.items, page.last, page.more) == ((), seqs[1], True)


def test_dates_and_times_limit_the_log() -> None:
    machine = Machine()
    with site(machine, rules()) as here:
        machine.run(1_000_000)
        size = put(here, value(1), name="12345/a")
        with here.snapshot() as snapshot:
            reader, now = snapshot.reader, here.ledger.log.clock.now()
            today = to_iso(reader.entry(size).at // 1_000_000)[:10]
            expected = {today: size, f"{today}T00:00:00Z": size - 1, "1970-01-02": 0, "2": 2}
            for text, seq in expected.items():  # a date includes its day, even today
                assert LogSearch.of(reader, LogQuery(until=text), now).until == seq
            for text in ("2999-01-01", "2999-01-01T00:00:00Z", "yesterday", "99"):
                with pytest.raises(InvalidQuery):
                    LogSearch.of(reader, LogQuery(until=text), now)
            with pytest.raises(InvalidQuery, match=r"`since` \(entry 2\) is after `until` \(entry 1\)"):
                LogSearch.of(reader, LogQuery(since="2", until="1"), now)


@pytest.mark.parametrize("text", ["", "ann", "token:", "local:", "300:", "300:ann", "99999999999:12345/ann", "a:b"])
def test_invalid_actors_are_refused(text: str) -> None:
    with pytest.raises(InvalidQuery, match="Invalid actor"):
        parse_actor(text)


def test_every_identity_is_found_by_its_text() -> None:
    token = TokenIdentity(LocalIdentity("root"), "k7", ScopeSet.of(("find",), None))
    for each in (NOBODY, OPERATOR, ANN, SERVER, token, identity("1:0.NA/12345")):
        assert parse_actor(f" {each} ") in get_actor_names(str(each))
    assert parse_actor("1:0.na/12345") == parse_actor("1:0.NA/12345"), "system handles ignore case"
    assert get_actor_names(str(token)) == {"token:k7", "local:root"}


def test_invalid_prefix_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Invalid prefix 12345/x"):
        LogFilter.of(LogQuery(prefix="12345/x"))


def test_every_action_of_the_ledger_can_be_selected() -> None:
    assert [each.value for each in EntryAction] == [each.name.lower() for each in Action]


def test_prefix_of_a_filter_ignores_case() -> None:
    with site(rules=rules()) as here:
        here.do(Home("0.NA/abc"), OPERATOR, "cli")
        put(here, value(1), name="ABC/x")
        search = LogSearch(LogFilter.of(LogQuery(prefix="aBc")))
        assert [each.handle for each in read(here, OPERATOR, search, 9)] == ["ABC/x"]

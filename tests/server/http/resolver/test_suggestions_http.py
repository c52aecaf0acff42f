"""Suggestions for unknown handles, as a page and as JSON, and their rate limits."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import suggest
from perseid.registry.queries.suggest import MAX_LOOKUPS, STEP_LOOKUPS
from perseid.server.http.context import (
    MAX_SEARCHES,
    MAX_WAITING_FOR_SEARCH,
    SUGGESTIONS_PER_ADDRESS,
    make_suggestion_budget,
)
from perseid.server.http.resolver import problems
from perseid.server.limits.turns import Turns
from perseid.server.state.state import SharedState
from tests.server.http.contexts import STRANGER, Harness, header_of, json_of
from tests.server.http.resolver.resolver_records import (
    add_namespace,
    create,
    location_of,
    page_of,
    resolver,
    text,
    without_suggestions,
)
from tests.server.installations import OPERATOR

JSON: Final = {"Accept": "application/json"}


@pytest.fixture(autouse=True)
def _without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine can take longer than people wait; the limit has its own test, with a clock."""
    monkeypatch.setattr(suggest, "MAX_SECONDS", inf)


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        create(made, "12345/report-2021", text(1, "URL", "https://report.example/"))
        create(made, "12345/old-thing", text(1, "URL", "https://old.example/"))
        gone = Tombstone(Handle.parse("12345/old-thing"), "Withdrawn <b>by</b> its author.", Handle.parse("12345/url"))
        made.registry.do(gone, OPERATOR, "cli")
        add_namespace(made, "102.100.272", "pilin")
        for prefix in ("12345", "102.100.272"):
            set_listing(made, prefix, Audience.PUBLIC)
        yield made


def set_listing(server: Harness, prefix: str, audience: Audience) -> None:
    with server.registry.snapshot() as snapshot:
        policy = replace(snapshot.policy(prefix), who_may_list=audience)
    server.registry.do(SetPolicy(prefix, policy), OPERATOR, "cli")


def told(server: Harness, name: str, **how: Any) -> dict[str, Any]:
    """The JSON response about a name."""
    answer = server.get(f"/{quote(name, safe='')}", headers=JSON, **how)
    assert answer.status in (400, 404), answer
    return dict(json_of(answer))


def names(plain: dict[str, Any]) -> list[str]:
    return [each["handle"] for each in plain["suggestions"]]


@pytest.mark.parametrize(
    "written",
    [
        "12345/report-2021.",
        "(12345/report-2021)",
        "12345/report\u20132021",
        "12345/report-2021/",
        "12345%2Freport-2021",
        "12345%252Freport-2021",
        "12345/reprot-2021",
        "12345/report-202",
        "12345/eport-2021",
        "12345/repot-2021",
        "12345/report-20211",
        "12345/report-2031",
        "12345/report-2O21",
        "12345/ report-2021",
        "https://hdl.handle.net/12345/report-2021",
        "https://hdl.example.org/hdl/12345/report-2021",
        "resolver.example/12345/report-2021",
        "12345/report-2021?utm_source=x",
    ],
)
def test_suggestions_are_found(server: Harness, written: str) -> None:
    plain = told(server, written)
    assert names(plain) == ["12345/report-2021"], plain
    assert plain["suggestions"][0]["why"]
    page = page_of(server.get(f"/{quote(written, safe='')}"))
    assert "Did you mean …?" in page.text
    assert "/12345/report-2021" in page.links
    assert location_of(server.get("/12345/report-2021")) == "https://report.example/"


def test_no_typo_is_corrected_where_not_everybody_can_list(server: Harness) -> None:
    written = "12345/reprot-2021"
    set_listing(server, "12345", Audience.AUTHENTICATED)
    try:
        assert names(told(server, written)) == []
        assert "/12345/report-2021" not in page_of(server.get(f"/{written}")).links
        assert names(json_of(server.get(f"/api/handles/{written}?suggest"))) == []
    finally:
        set_listing(server, "12345", Audience.PUBLIC)


def test_form_input_is_corrected(server: Harness) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = server.post("/", "hdl=" + quote("12345/report\u20132021.") + "&page=yes", headers=form)
    assert answer.status == 404
    assert "/12345/report-2021" in page_of(answer).links


def test_suggested_tombstones(server: Harness) -> None:
    plain = told(server, "12345/old-thign")
    (found,) = plain["suggestions"]
    assert found["handle"] == "12345/old-thing"
    assert found["gone"]["reason"] == "Withdrawn <b>by</b> its author."
    assert found["gone"]["replacement"] == "12345/url"
    page = page_of(server.get("/12345/old-thign"))
    assert "This identifier was withdrawn on" in page.text
    assert "Withdrawn <b>by</b> its author." in page.text
    assert "Use instead: hdl:12345/url" in page.text


def test_prefix_information(server: Harness) -> None:
    assert told(server, "12345/zzzzzz")["prefix"]["status"] == "hosted"
    unknown = told(server, "99999/x")
    assert (unknown["responseCode"], unknown["prefix"]["status"]) == (301, "unknown")
    assert told(server, "12345.77/x")["prefix"] == {
        "prefix": "12345.77",
        "status": "derived",
        "derived_from": "12345",
        "why": "prefix 12345.77 is not hosted here; it is derived from 12345, which is",
    }
    assert "it is derived from 12345, which is" in page_of(server.get("/12345.77/x")).text
    assert "but this handle does not exist" in page_of(server.get("/12345/zzzzzz")).text


def test_suggestions_are_public(server: Harness) -> None:
    assert "12345/unpublished" not in names(told(server, "12345/unpublishde"))
    assert names(told(server, "12345/unpublished.")) == []


def test_mistyped_pilin_handle(server: Harness) -> None:
    creator = text(2, "102.100.TYPE/CREATOR", "12345/n0")
    create(server, "102.100.272/2RDV0T0QH", text(1, "URL", "https://pilin.example/"), creator)
    assert names(told(server, "102.100.272/2RDV0TOQH")) == ["102.100.272/2RDV0T0QH"]


def test_suggestions_for_dangling_alias(server: Harness) -> None:
    create(server, "12345/alias-typo", text(1, "HS_ALIAS", "12345/reprot-2021"))
    assert names(told(server, "12345/alias-typo")) == ["12345/report-2021"]


def test_other_errors_get_no_suggestions(server: Harness) -> None:
    for path in ("/12345/hidden", "/12345/loop", "/static/x", "/12345/url?at=1", "/12345/url?type=NONE"):
        answer = server.get(path, headers=JSON)
        if answer.status != 200:
            assert b"suggestions" not in answer.body, path


# The API


def test_api_returns_suggestions_on_request(server: Harness) -> None:
    target = "/api/handles/12345/reprot-2021"
    assert json_of(server.get(target)) == {"responseCode": 100, "handle": "12345/reprot-2021"}, "as clients know it"
    for query in ("?suggest", "?suggest=true"):
        answer = server.get(target + query)
        assert answer.status == 404
        plain = json_of(answer)
        assert names(plain) == ["12345/report-2021"]
        assert (plain["responseCode"], plain["handle"]) == (100, "12345/reprot-2021")
        assert header_of(answer, "Cache-Control") == "no-store"
    assert "suggestions" not in json_of(server.get(f"{target}?suggest=no"))
    assert json_of(server.get("/api/handles/99999/x?suggest"))["prefix"]["status"] == "unknown"
    assert json_of(server.get("/api/handles/12345/report-2021?suggest"))["responseCode"] == 1
    with without_suggestions(server):
        assert json_of(server.get(f"{target}?suggest")) == {"responseCode": 100, "handle": "12345/reprot-2021"}


# Rate limits


@pytest.fixture
def limited(server: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """The server with its production budget, and a stopped monotonic clock; the wall clock does not count."""
    context, times = server.context, count(server.context.time(), 3_600.0)
    monkeypatch.setattr(problems, "monotonic", lambda: 1_024.0)
    server.service.server = replace(context, suggestion_budget=make_suggestion_budget(), time=lambda: next(times))
    yield server
    server.service.server = context


def test_suggestions_per_address_are_limited(limited: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    burst = int(SUGGESTIONS_PER_ADDRESS.burst)
    for _ in range(burst):
        assert names(told(limited, "12345/reprot-2021"))
    plain = told(limited, "12345/reprot-2021")
    assert plain == {"responseCode": 100, "message": "Not found", "handle": "12345/reprot-2021"}
    page = page_of(limited.get("/12345/reprot-2021"))
    assert (page.title, "Did you mean" in page.text) == ("Not found", False)
    assert json_of(limited.get("/api/handles/12345/reprot-2021?suggest")) == {
        "responseCode": 100,
        "handle": "12345/reprot-2021",
    }
    assert names(told(limited, "12345/reprot-2021", host="198.51.100.7")), "others are not concerned"
    for _ in range(burst):
        assert names(told(limited, "12345/reprot-2021", host="127.0.0.1", local=True)), "nor is the machine itself"
    monkeypatch.setattr(problems, "monotonic", lambda: 1_024.0 + 1 / SUGGESTIONS_PER_ADDRESS.per_second)
    assert names(told(limited, "12345/reprot-2021")), "after a while there is one more"
    assert "suggestions" not in told(limited, "12345/reprot-2021")


def test_suggestions_are_limited_in_total(limited: Harness) -> None:
    answered = [told(limited, "12345/reprot-2021", host=f"198.51.100.{number}") for number in range(80)]
    found = ["suggestions" in plain for plain in answered]
    assert found == [True] * 50 + [False] * 30


def test_network_shares_suggestion_limit(limited: Harness) -> None:
    answered = [told(limited, "12345/reprot-2021", host=f"2001:db8::{number:x}") for number in range(1, 30)]
    assert sum("suggestions" in plain for plain in answered) == SUGGESTIONS_PER_ADDRESS.burst


def test_busy_server_omits_suggestions(server: Harness) -> None:
    cache = server.context.suggestion_cache
    cache.running += MAX_SEARCHES
    try:
        plain = told(server, "12345/reprot-2021-x")
    finally:
        cache.running -= MAX_SEARCHES
    assert plain == {"responseCode": 100, "message": "Not found", "handle": "12345/reprot-2021-x"}


def test_suggestions_are_searched_in_steps_in_the_event_loop(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    server.kinds.clear()
    turns: list[object] = []

    async def take(_: Turns, source: object) -> None:
        turns.append(source)

    monkeypatch.setattr(Turns, "take", take)
    told(server, "12345/reprot-2022", host=STRANGER)
    assert server.kinds == []
    assert MAX_LOOKUPS // STEP_LOOKUPS // 2 < len(turns) <= MAX_LOOKUPS // STEP_LOOKUPS + 3


def test_search_is_given_up_while_pages_wait(limited: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a page without suggestions waits for one turn, not for one in each step."""
    waiting = [0, 0, MAX_WAITING_FOR_SEARCH, MAX_WAITING_FOR_SEARCH + 1]
    monkeypatch.setattr(Turns, "waiting", property(lambda _: waiting.pop(0)))
    assert "suggestions" not in told(limited, "12345/reprot-2024")
    assert waiting == [], "it ended after three steps"
    assert limited.context.suggestion_cache.running == 0


def test_search_is_not_started_while_pages_wait(limited: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Turns, "waiting", MAX_WAITING_FOR_SEARCH + 1)
        for _ in range(2 * int(SUGGESTIONS_PER_ADDRESS.burst)):
            assert "suggestions" not in told(limited, "12345/reprot-2021")
    assert "suggestions" in told(limited, "12345/reprot-2021"), "they have not used the budget"


def test_suggestions_are_cached_until_something_changes(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    first = told(server, "12345/reprot-2023")
    with monkeypatch.context() as patch:
        patch.setattr(server.context.suggestion_cache, "running", MAX_SEARCHES)  # so there is no second search
        assert told(server, "12345/reprot-2023") == first
        create(server, "12345/report-2023", text(1, "URL", "https://report.example/"))
        assert "suggestions" not in told(server, "12345/reprot-2023")
    assert names(told(server, "12345/reprot-2023")) == ["12345/report-2023"]


def test_all_workers_have_one_budget_for_suggestions(tmp_path: Path) -> None:
    state = SharedState(tmp_path)
    budgets = [make_suggestion_budget(state) for _ in range(2)]
    taken = [budgets[number % 2].take((1,), 1_000.0) for number in range(2 * int(SUGGESTIONS_PER_ADDRESS.burst))]
    assert sum(taken) == SUGGESTIONS_PER_ADDRESS.burst

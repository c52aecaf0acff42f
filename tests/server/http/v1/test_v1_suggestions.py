"""Suggestions for missing handles."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import suggest
from perseid.server.http.context import SUGGESTIONS_PER_ADDRESS, make_suggestion_budget
from perseid.server.http.v1.problems import ENCODED_TWICE
from tests.server.http.contexts import Harness, basic, harness, json_of
from tests.server.http.v1.apis import problem, send
from tests.server.http.v1.callers import at, create
from tests.server.installations import OPERATOR

MISSPELT = "12345/reprot-2021"


@pytest.fixture(autouse=True)
def _without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine can take longer than people wait."""
    monkeypatch.setattr(suggest, "MAX_SECONDS", inf)


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        create(made, "12345/report-2021")
        create(made, "12345/old-thing")
        create(made, "12345/secret-thing")
        gone = Tombstone(Handle.parse("12345/old-thing"), "withdrawn", Handle.parse("12345/n0"))
        made.registry.do(gone, OPERATOR, "cli")
        with made.registry.snapshot() as snapshot:
            listed = replace(snapshot.policy("12345"), who_may_list=Audience.PUBLIC)
        made.registry.do(SetPolicy("12345", listed), OPERATOR, "cli")
        made.registry.do(Unpublish(Handle.parse("12345/secret-thing")), OPERATOR, "cli")
        yield made


def told(server: Harness, name: str, more: str = "", slug: str = "not-found", **how: Any) -> dict[str, Any]:
    return problem(send(server, "GET", at(name, more), **how), slug)


def names(plain: dict[str, Any]) -> list[str]:
    return [each["handle"] for each in plain.get("suggestions", ())]


@pytest.mark.parametrize("more", ["", "/history", "/citation", "/qr"])
def test_suggestions_match_the_other_interfaces(server: Harness, more: str) -> None:
    found = told(server, MISSPELT, more)
    assert names(found) == ["12345/report-2021"]
    other = json_of(server.get(f"/api/handles/{MISSPELT}?suggest"))
    assert {"suggestions": found["suggestions"], "prefix": found["prefix"]} == {
        "suggestions": other["suggestions"],
        "prefix": other["prefix"],
    }


def test_path_encoded_twice_gets_advice(server: Harness) -> None:
    found = told(server, "12345%2Freport-2021", slug="invalid-name")
    assert (found["rule"], names(found)) == ("H1", ["12345/report-2021"])
    assert found["advice"] == ENCODED_TWICE
    assert told(server, "12345%2Fnothing-like-it", slug="invalid-name")["advice"] == ENCODED_TWICE
    assert told(server, "12345%zz", slug="invalid-name").get("advice") != ENCODED_TWICE


def test_suggested_tombstone_is_marked(server: Harness) -> None:
    (found,) = told(server, "12345/old-thign")["suggestions"]
    assert found["gone"]["reason"] == "withdrawn"
    assert found["gone"]["replacement"] == "12345/n0"


def test_prefix_status_is_reported(server: Harness) -> None:
    assert told(server, "12345/zzzzzz")["prefix"]["status"] == "hosted"
    assert told(server, "99999/x", slug="prefix-not-hosted")["prefix"]["status"] == "unknown"
    derived = told(server, "12345.77/x", slug="prefix-not-hosted")["prefix"]
    assert (derived["status"], derived["derived_from"]) == ("derived", "12345")


def test_hidden_handles_are_not_suggested(server: Harness) -> None:
    assert names(told(server, "12345/secret-thign")) == []
    assert names(told(server, "12345/secret-thign", headers=basic())) == []


def test_suggestions_can_be_disabled(server: Harness) -> None:
    assert names(told(server, MISSPELT, "?suggest")) == ["12345/report-2021"]
    plain = told(server, MISSPELT, "?suggest=false")
    assert "suggestions" not in plain
    assert "prefix" not in plain


def test_existing_handles_get_no_suggestions(server: Harness) -> None:
    """A name that was not there at some time is spelt as it should be; and one that leads to nothing is there."""
    create(server, "12345/report-2022")
    dangling = [{"type": "HS_ALIAS", "data": "12345/report-2023"}]
    create(server, "12345/report-2024", values=dangling)
    before = server.service.server
    server.service.server = replace(before, suggestion_budget=make_suggestion_budget())
    try:
        for _ in range(int(SUGGESTIONS_PER_ADDRESS.burst)):
            for name, more in (
                ("12345/report-2022", "?at=1"),
                ("12345/report-2022", "/citation?at=1"),
                ("12345/report-2022", "/proof?at=1"),
                ("12345/report-2022", "/differences?earlier=1&later=2"),
                ("12345/report-2024", "?follow=true"),
            ):
                found = told(server, name, more)
                assert "suggestions" not in found
                assert "prefix" not in found
        assert names(told(server, "12345/report-2025", "?follow=true")), "nothing was used up by that"
    finally:
        server.service.server = before


def test_only_reads_get_suggestions(server: Harness) -> None:
    refused = send(server, "POST", at(MISSPELT, "/publish"), headers=basic())
    assert "suggestions" not in problem(refused, "not-found")


def test_suggestions_share_the_budget_of_other_interfaces(server: Harness) -> None:
    before = server.service.server
    server.service.server = replace(before, suggestion_budget=make_suggestion_budget())
    try:
        for _ in range(int(SUGGESTIONS_PER_ADDRESS.burst) - 1):
            assert names(told(server, MISSPELT))
        assert json_of(server.get(f"/api/handles/{MISSPELT}?suggest"))["suggestions"]
        spent = told(server, MISSPELT)
        assert "suggestions" not in spent
        assert "prefix" not in spent
        assert names(told(server, MISSPELT, host="192.0.2.77"))
    finally:
        server.service.server = before

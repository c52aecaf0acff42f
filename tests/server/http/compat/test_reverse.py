"""Reverse lookup, as in an add-on to deployed servers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from perseid.server.http.compat import listing
from perseid.server.http.compat.listing import matches
from tests.server.http.contexts import Harness, basic, harness, header_of, json_of
from tests.server.installations import OPERATOR, PREFIX, PRIVATE

FIND = "/hrls/handles/?"


def found(server: Harness, query: str, **how: Any) -> list[str]:
    answer = server.get(FIND + query, **({"headers": basic()} | how))
    assert answer.status == 200, answer
    names: list[str] = json_of(answer)
    return names


def make(server: Harness, name: str, *values: Value) -> None:
    server.registry.do(Create(Handle.parse(f"{PREFIX}/{name}"), values), OPERATOR, "cli")


def test_ping(shared: Harness) -> None:
    for target in ("/hrls/ping", "/hrls/ping/"):
        answer = shared.get(target)
        assert (answer.status, answer.body) == (200, b"OK")
    assert shared.get("/hrls/other").status == 404
    assert shared.post("/hrls/handles/?URL=x").status == 405


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("URL=https://example.org/7", ["n7"]),
        ("URL=*example.org/4*", ["n4", *[f"n4{digit}" for digit in range(10)]]),
        ("url=HTTPS://EXAMPLE.ORG/7", ["n7"]),
        ("URL=https://example.org/none", []),
        ("URL=*/7&EMAIL=keeper@example.org", ["n7"]),
        ("URL=*/7&EMAIL=*@example.org", ["n7"]),
        ("URL=*/7&EMAIL=nobody@example.org", []),
        ("DESC=the thing with the number 12", ["n12"]),
        ("DESC=*number 1*&URL=*8", ["n18"]),
        ("EMAIL=keeper*&DESC=*number 3", ["n3"]),
        (f"URL=*/7&prefix={PREFIX}", ["n7"]),
    ],
)
def test_handles_are_found_by_values(shared: Harness, query: str, names: list[str]) -> None:
    target = query.replace(" ", "%20")
    assert sorted(found(shared, target)) == sorted(f"{PREFIX}/{name}" for name in names)


def test_private_values_are_found_with_permission(server: Harness) -> None:
    note = "NOTE=for%20administrators"
    assert found(server, note) == [f"{PREFIX}/private"]
    assert found(server, f"URL=*&{note}") == [f"{PREFIX}/private"]
    make(server, "somebody", Value(300, "HS_SECKEY", b"s", permissions=PRIVATE))
    somebody = {"headers": basic(f"300:{PREFIX}/somebody", "s")}
    assert found(server, note, **somebody) == []
    assert found(server, "URL=*", **somebody) == []


def test_anonymous_search_finds_public_or_gets_challenge(shared: Harness) -> None:
    answer = shared.get(f"{FIND}URL=*")
    assert (answer.status, json_of(answer)["responseCode"]) == (401, 402)
    assert list(answer.values("WWW-Authenticate"))
    assert shared.get(f"{FIND}URL=*", secure=False, headers=basic()).status == 403
    assert shared.get(f"{FIND}URL=*", headers=basic(secret="wrong")).status == 401


def test_results_are_limited_with_next_link(shared: Harness) -> None:
    names: list[str] = []
    target: str | None = f"{FIND}URL=*example.org*&limit=20"
    pages = 0
    while target:
        answer = shared.get(target, headers=basic())
        names += json_of(answer)
        link = header_of(answer, "Link")
        target = None if link is None else link.partition("<")[2].partition(">")[0]
        pages += 1
    assert pages >= 3
    assert len(names) == len(set(names)) == 51


def test_one_request_reads_few_pages(shared: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_STEPS", 1)
    monkeypatch.setattr(listing, "MAX_PAGE", 5)
    answer = shared.get(f"{FIND}URL=*", headers=basic())
    assert len(json_of(answer)) == 5
    assert 'rel="next"' in (header_of(answer, "Link") or "")


@pytest.mark.parametrize(
    "query", ["", "limit=5", "URL=x&limit=0", "URL=x&limit=x", "&".join(["A=b"] * 9), "=x", "URL=x&after=nope"]
)
def test_invalid_query_is_refused(shared: Harness, query: str) -> None:
    answer = shared.get(FIND + query, headers=basic())
    assert answer.status == 400
    assert json_of(answer)["message"]


def test_nothing_is_found_where_listing_is_disabled() -> None:
    with harness(listing_allowed=False) as server:
        make(server, "somebody", Value(300, "HS_SECKEY", b"s", permissions=PRIVATE))
        assert server.get(f"{FIND}URL=*", headers=basic(f"300:{PREFIX}/somebody", "s")).status == 501


@pytest.mark.parametrize(
    ("pattern", "text", "is_so"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("", "", True),
        ("*", "", True),
        ("a*c", "abc", True),
        ("a*c", "ac", True),
        ("a*a", "a", False),
        ("*b*", "abc", True),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("**", "x", True),
        ("a.c", "abc", False),
    ],
)
def test_patterns(pattern: str, text: str, is_so: bool) -> None:
    assert matches(pattern, text) is is_so


@given(st.lists(st.text(st.sampled_from("ab."), max_size=3), min_size=1, max_size=4), st.data())
def test_pattern_matches_any_text_for_wildcards(parts: list[str], data: st.DataObject) -> None:
    fillings = [data.draw(st.text(st.sampled_from("ab.c"), max_size=4)) for _ in parts[1:]]
    text = parts[0] + "".join(filling + part for filling, part in zip(fillings, parts[1:], strict=True))
    assert matches("*".join(parts), text)

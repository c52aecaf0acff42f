"""Searches, and lists of handles."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create, Delete
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries.find import Search, find
from tests.server.http.contexts import Harness, basic, harness
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import ANN, with_token
from tests.server.http.v1.test_v1_history import pages
from tests.server.installations import OPERATOR

HIDDEN = Permission.ADMIN_READ | Permission.ADMIN_WRITE
HOSTS = ("old.example", "maps.old.example", "new.example")


def make(server: Harness, name: str, *values: Value, published: bool = True) -> int:
    return server.registry.do(Create(Handle.parse(name), values, published=published), OPERATOR, "cli").seq


def open_to_all(server: Harness) -> None:
    with server.registry.snapshot() as snapshot:
        known = snapshot.policy("12345")
    server.registry.do(SetPolicy("12345", replace(known, who_may_list=Audience.PUBLIC)), OPERATOR, "cli")


@pytest.fixture(scope="module")
def filled() -> Iterator[Harness]:
    """A server with a public list, with some hidden handles and private values."""
    with harness() as server:
        open_to_all(server)
        for number in range(12):
            host = HOSTS[number % 3]
            link = Value.text(1, "URL", f"https://{host}/maps/{number}")
            mail = Value.text(2, "EMAIL", f"ann{number % 2}@example.org")
            title = Value.text(3, "TITLE", f"Map {number}0 of Venice")
            make(server, f"12345/f{number:02}", link, mail, title, published=number != 5)
        secret = Value(1, "URL", b"https://old.example/secret", permissions=HIDDEN)
        make(server, "12345/f-secret", secret, Value.text(2, "EMAIL", "ann0@example.org"))
        make(server, "12345/f-stone", Value.text(1, "URL", "https://old.example/stone"))
        server.registry.do(Tombstone(Handle.parse("12345/f-stone"), "gone", None), OPERATOR, "cli")
        yield server


CRITERIA: list[tuple[dict[str, str], Search]] = [
    ({"url": "https://old.example/*"}, Search(url="https://old.example/*")),
    ({"url": "https://old.example/maps/3"}, Search(url="https://old.example/maps/3")),
    ({"url": "*/maps/1*"}, Search(url="*/maps/1*")),
    ({"host": "old.example"}, Search(host="old.example")),
    ({"path": "/maps/1"}, Search(path="/maps/1")),
    ({"type": "EMAIL"}, Search(type="EMAIL")),
    ({"type": "URL."}, Search(type="URL.")),
    ({"value": "ann0@example.org"}, Search(value=b"ann0@example.org")),
    ({"words": "venice map"}, Search(words="venice map")),
    ({"words": "VEN 30", "host": "old.example"}, Search(words="VEN 30", host="old.example")),
    ({"prefix": "12345"}, Search(prefix="12345")),
    ({"owner": "hdl:0.NA/12345"}, Search(owner="0.NA/12345")),
    ({"changed_since": "60"}, Search(since=60)),
    ({"prefix": "12345", "host": "old.example", "type": "URL"}, Search(prefix="12345", host="old.example", type="URL")),
]


def known(server: Harness, identity: Identity, search: Search) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    after: str | None = None
    while True:
        with server.registry.snapshot() as snapshot:
            page = find(snapshot, identity, search, after, 1_000)
        found += [(each.handle, len(each.values)) for each in page.items]
        after = page.following
        if after is None:
            return found


@pytest.mark.parametrize(
    ("asked", "search"), CRITERIA, ids=lambda each: ",".join(each) if isinstance(each, dict) else ""
)
def test_search_returns_the_results_of_the_registry(filled: Harness, asked: dict[str, str], search: Search) -> None:
    for headers, identity in (({}, Anonymous()), (basic(), ANN)):
        expected = known(filled, identity, search)
        for limit in (1, 4, 1_000):
            path = f"/find?{urlencode({**asked, 'limit': str(limit)})}"
            found = pages(filled, path, "results", headers=headers)
            assert [(each["handle"], len(each["values"])) for each in found] == expected


def test_private_data_is_found_by_administrators_only(filled: Harness) -> None:
    public = pages(filled, "/find?host=old.example", "results")
    names = {each["handle"] for each in public}
    assert names == {f"12345/f{number:02}" for number in range(12) if number % 3 < 2}
    mine = {each["handle"] for each in pages(filled, "/find?host=old.example", "results", headers=basic())}
    assert mine - names == {"12345/f-secret"}
    assert {each["handle"] for each in pages(filled, "/find?host=new.example", "results", headers=basic())} >= {
        "12345/f05"
    }
    by_mail = pages(filled, "/find?value=ann0@example.org", "results")
    assert "12345/f-secret" in {each["handle"] for each in by_mail}
    assert b"secret" not in json.dumps([each["values"] for each in by_mail]).encode()


def test_words_find_titles_from_their_start(filled: Harness) -> None:
    (found,) = pages(filled, "/find?words=v%C3%89NI+30", "results")
    assert (found["handle"], [each["data"]["value"] for each in found["values"]]) == ("12345/f03", ["Map 30 of Venice"])
    assert pages(filled, "/find?words=50", "results") == [], "it is not published"
    assert [each["handle"] for each in pages(filled, "/find?words=50", "results", headers=basic())] == ["12345/f05"]


def test_token_needs_the_find_scope(server: Harness) -> None:
    path = "/find?prefix=12345&limit=5"
    assert len(got(send(server, "GET", path, headers=with_token(server, "find")))["results"]) == 5
    for headers in (with_token(server, "read"), with_token(server, "find", where=("12345.*",))):
        assert problem(send(server, "GET", path, headers=headers), "permission-denied")["status"] == 403
    assert problem(send(server, "GET", path), "authentication-required")["status"] == 401


def test_scan_is_reported(filled: Harness) -> None:
    scanned = got(send(filled, "GET", "/find?url=*maps*&limit=3", headers=basic()))
    assert scanned["scans"] is True
    assert "No index" in scanned["remark"]
    indexed = got(send(filled, "GET", "/find?url=https://old.example/*", headers=basic()))
    assert (indexed["scans"], indexed["remark"]) == (False, None)


def test_anonymous_empty_search_has_a_remark(server: Harness) -> None:
    found = got(send(server, "GET", "/find?host=example.org"))
    assert (found["results"], found["next"]) == ([], None)
    assert "Authenticate" in found["remark"]


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("", "invalid-query"),
        ("limit=3", "invalid-query"),
        ("words=a", "invalid-query"),
        ("prefix=1/2", "invalid-name"),
        ("owner=nobody", "invalid-name"),
        ("changed_since=never", "invalid-query"),
        ("changed_since=99999999", "invalid-query"),
        ("since=3", "invalid-request"),
        ("host=a&host=b", "invalid-request"),
        ("host=old.example&cursor=abc", "invalid-cursor"),
    ],
)
def test_invalid_searches_are_refused(filled: Harness, query: str, slug: str) -> None:
    problem(send(filled, "GET", f"/find?{query}", headers=basic()), slug)


def test_search_is_not_supported_when_listing_is_disabled() -> None:
    with harness(listing_allowed=False) as server:
        for path in ("/find?host=example.org", "/log", "/changes?earlier=0", "/namespaces/12345/handles"):
            assert problem(send(server, "GET", path), "not-supported")["status"] == 501


def test_cursor_of_another_search_or_reader_is_refused(filled: Harness) -> None:
    cursor = got(send(filled, "GET", "/find?host=old.example&limit=1"))["next"]
    got(send(filled, "GET", f"/find?host=old.example&limit=2&cursor={cursor}"))
    problem(send(filled, "GET", f"/find?host=new.example&limit=1&cursor={cursor}"), "invalid-cursor")
    problem(send(filled, "GET", f"/find?host=old.example&cursor={cursor}", headers=basic()), "invalid-cursor")
    problem(send(filled, "GET", f"/namespaces/12345/handles?cursor={cursor}"), "invalid-cursor")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["url", "host", "path", "type", "value", "words", "prefix", "owner"]), TEXTS, min_size=1
    )
)
def test_any_search_is_answered(filled: Harness, asked: dict[str, str]) -> None:
    """Any search succeeds or is refused with a reason, without internal errors."""
    answer = send(filled, "GET", f"/find?{urlencode(asked)}", headers=basic())
    assert answer.status in (200, 400, 422), answer


# Names of a prefix


def test_handles_of_a_prefix_are_sorted(filled: Harness) -> None:
    mine = pages(filled, "/namespaces/12345/handles?limit=7", "handles", headers=basic())
    names = [each["handle"] for each in mine]
    assert names == sorted(names, key=str.upper)
    assert len(names) == len(set(names))
    public = pages(filled, "/namespaces/12345/handles?limit=7", "handles")
    assert [each["handle"] for each in public] == [each["handle"] for each in mine if each["state"] != "unpublished"]
    assert {each["state"] for each in mine} == {"published", "tombstone", "unpublished"}
    hidden = pages(filled, "/namespaces/12345/handles?state=unpublished", "handles", headers=basic())
    assert hidden == [each for each in mine if each["state"] == "unpublished"]
    start = mine[0]["handle"].partition("/")[2][:3]
    started = pages(filled, f"/namespaces/12345/handles?starts_with={start}", "handles", headers=basic())
    assert started == [each for each in mine if each["handle"].startswith(f"12345/{start}")] != mine
    by_state = pages(filled, "/find?prefix=12345&state=unpublished", "results", headers=basic())
    assert [each["handle"] for each in by_state] == [each["handle"] for each in hidden]
    assert pages(filled, "/find?prefix=12345&state=reserved", "results", headers=basic()) == []
    problem(send(filled, "GET", "/find?state=published", headers=basic()), "invalid-query")
    problem(send(filled, "GET", "/namespaces/12345/handles?state=normal", headers=basic()), "invalid-request")


def test_hidden_handles_do_not_cause_an_empty_page(server: Harness) -> None:
    open_to_all(server)
    make(server, "12345/zz", Value.text(1, "URL", "https://example.org/"))
    for number in range(3):
        make(server, f"12345/zzz{number}", Value.text(1, "URL", "https://example.org/"), published=False)
    found: list[Any] = []
    path, cursor = "/namespaces/12345/handles?limit=1", ""
    while True:
        page = got(send(server, "GET", path + cursor))
        assert len(page["handles"]) == 1
        found += page["handles"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found[-1]["handle"] == "12345/zz"


def test_forged_cursor_is_refused(server: Harness) -> None:
    """A number, which would tell whether its entry is about a name of the prefix, is no cursor."""
    open_to_all(server)
    for made_up in ("1", "50", "MQ", quote("\x01"), "AAAAAAAAAAAAAAAAAAAAAAAAAAA"):
        problem(send(server, "GET", f"/namespaces/12345/handles?cursor={made_up}"), "invalid-cursor")


def test_deleted_handles_and_derived_prefixes_are_listed(server: Harness) -> None:
    make(server, "12345/gone", Value.text(1, "URL", "https://example.org/"))
    server.registry.do(Delete(Handle.parse("12345/gone")), OPERATOR, "cli")
    names = pages(server, "/namespaces/12345/handles", "handles", headers=basic())
    assert "12345/gone" not in [each["handle"] for each in names]
    everything = pages(server, "/namespaces/12345/handles?deleted", "handles", headers=basic())
    assert [each["handle"] for each in everything if each["state"] == "absent"] == ["12345/gone"]
    make(server, "0.NA/12345.7", Value.text(1, "DESC", "a derived prefix"))
    derived = pages(server, "/namespaces/12345/handles?derived", "handles", headers=basic())
    assert [each["handle"] for each in derived] == ["0.NA/12345.7"]


@pytest.mark.parametrize(
    ("prefix", "slug"), [("54321", "prefix-not-hosted"), ("0.NA%2F12345", "invalid-name"), ("1%2F2", "invalid-name")]
)
def test_invalid_prefixes_cannot_be_listed(shared: Harness, prefix: str, slug: str) -> None:
    problem(send(shared, "GET", f"/namespaces/{prefix}/handles", headers=basic()), slug)


def test_listing_without_permission_is_refused(shared: Harness) -> None:
    problem(send(shared, "GET", "/namespaces/12345/handles"), "authentication-required")
    headers = with_token(shared, "read")
    problem(send(shared, "GET", "/namespaces/12345/handles", headers=headers), "permission-denied")

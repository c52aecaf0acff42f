"""History, differences, log and changes."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.commands.lifecycle import Publish, Unpublish
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Remove
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import history
from perseid.registry.queries.log import list_log
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import ANN, at, with_token
from tests.server.installations import ADMINISTRATOR, OPERATOR

NAME = "12345/map"
HIDDEN = Permission.ADMIN_READ | Permission.ADMIN_WRITE


def url(number: int, *, public: bool = True) -> Value:
    text = Value.text(1, "URL", f"https://example.org/{number}")
    return text if public else Value(1, "URL", text.data, permissions=HIDDEN)


def put(server: Harness, *values: Value, name: str = NAME, note: str = "") -> int:
    """Give a record these values; the entry that did it."""
    handle = Handle.parse(name)
    with server.registry.snapshot() as snapshot:
        exists = snapshot.stored(handle).exists
    operation = Add(handle, values, overwrite=True) if exists else Create(handle, values)
    return server.registry.do(operation, OPERATOR, "cli", note).seq


def policy(server: Harness, **rules: Any) -> None:
    with server.registry.snapshot() as snapshot:
        known = snapshot.policy("12345")
    server.registry.do(SetPolicy("12345", replace(known, **rules)), OPERATOR, "cli")


def pages(server: Harness, path: str, member: str, **how: Any) -> list[Any]:
    """All items of a list, page by page, as the links say."""
    found: list[Any] = []
    while True:
        answer = send(server, "GET", path, **how)
        page = got(answer)
        found += page[member]
        link = header_of(answer, "Link")
        assert (link is None) == (page["next"] is None)
        if link is None:
            return found
        assert link.endswith('>; rel="next"')
        path = link[1:].partition(">")[0].removeprefix("https://hdl.example.org/api/v1")


def known_history(server: Harness, identity: Identity, name: str = NAME) -> list[tuple[int, str, list[int]]]:
    with server.registry.snapshot() as snapshot:
        found = history.get_history(snapshot, identity, Handle.parse(name), limit=1_000)
    return [(each.seq, each.action.name.lower(), [value.index for value in each.values]) for each in found.versions]


def told_history(versions: list[Any]) -> list[tuple[int, str, list[int]]]:
    return [(each["seq"], each["action"], [value["index"] for value in each["values"]]) for each in versions]


# One name


def test_history_is_paged_newest_first(server: Harness) -> None:
    for number in range(7):
        put(server, url(number), note=f"number {number}")
    versions = pages(server, at(NAME, "/history?limit=3"), "versions")
    assert told_history(versions) == known_history(server, Anonymous())
    assert [each["seq"] for each in versions] == sorted((each["seq"] for each in versions), reverse=True)
    assert [each["action"] for each in versions] == ["update"] * 6 + ["create"]
    (changed,) = versions[0]["changed"]["modified"]
    assert (changed["index"], changed["old"]["data"]["value"]) == (1, "https://example.org/5")
    assert changed["new"]["data"]["value"] == "https://example.org/6"
    assert "note" not in versions[0]
    assert "actor" not in versions[0]


def test_administrators_see_actor_and_note(server: Harness) -> None:
    put(server, url(1), note="the first one")
    (version,) = got(send(server, "GET", at(NAME, "/history"), headers=basic()))["versions"]
    assert (version["actor"], version["interface"], version["note"]) == ("local:tests", "cli", "the first one")
    reader = with_token(server, "read")
    assert got(send(server, "GET", at(NAME, "/history"), headers=reader))["versions"][0]["note"] == "the first one"
    minter = with_token(server, "mint")
    assert "note" not in got(send(server, "GET", at(NAME, "/history"), headers=minter))["versions"][0]


def test_private_and_hidden_values_are_not_shown(server: Harness) -> None:
    secret = Value(2, "NOTE", b"for us alone", permissions=HIDDEN)
    put(server, url(1), secret)
    put(server, url(2, public=False))
    for path in ("/history", "/differences?earlier=0"):
        answer = send(server, "GET", at(NAME, path))
        assert b"for us alone" not in answer.body
        assert b"example.org" not in answer.body, "its past is hidden with it"
        assert b"for us alone" in send(server, "GET", at(NAME, path), headers=basic()).body


def test_unpublished_handle_has_no_public_history(server: Harness) -> None:
    before = put(server, url(1))
    handle = Handle.parse(NAME)
    server.registry.do(Unpublish(handle), OPERATOR, "cli")
    for path in ("/history", f"/differences?earlier={before}"):
        assert problem(send(server, "GET", at(NAME, path)), "not-found")["status"] == 404
        got(send(server, "GET", at(NAME, path), headers=basic()))
    nothing = problem(send(server, "GET", at("12345/none", "/history")), "not-found")
    hidden = problem(send(server, "GET", at(NAME, "/history")), "not-found")
    assert nothing["detail"].replace("12345/none", NAME) == hidden["detail"], "nothing tells the two apart"
    server.registry.do(Publish(handle), OPERATOR, "cli")
    actions = [each["action"] for each in got(send(server, "GET", at(NAME, "/history")))["versions"]]
    assert actions == ["update", "create"], "that it was hidden for a time is not told"


def test_policy_withholds_history(server: Harness) -> None:
    first = put(server, url(1))
    put(server, url(2))
    policy(server, show_past=False)
    found = got(send(server, "GET", at(NAME, "/history")))
    assert (found["complete"], len(found["versions"])) == (False, 1)
    refused = problem(send(server, "GET", at(NAME, f"/differences?earlier={first}")), "permission-denied")
    assert "show_past" in refused["rule"]
    assert len(got(send(server, "GET", at(NAME, "/history"), headers=basic()))["versions"]) == 2


def test_time_before_the_first_version_names_it_to_those_who_can_see_it(server: Harness) -> None:
    before = put(server, url(1), name="12345/earlier")
    first = put(server, url(1))
    put(server, url(2))
    found = problem(send(server, "GET", at(NAME, f"?at={before}")), "not-found")
    assert found["detail"].startswith(
        f"Handle {NAME} did not exist at entry {before}; its first version is entry {first} "
    )
    assert found["advice"] == f"To see its first version: GET /api/v1/handles/12345%2Fmap?at={first}"
    assert "suggestions" not in found
    policy(server, show_past=False)
    hidden = send(server, "GET", at(NAME, f"?at={before}"))
    assert f"entry {first}" not in hidden.body.decode()
    server.registry.do(Unpublish(Handle.parse(NAME)), OPERATOR, "cli")
    policy(server, show_past=True)
    assert "did not exist" not in send(server, "GET", at(NAME, f"?at={before}")).body.decode()


def test_differences_between_two_times(server: Harness) -> None:
    text = Value.text(2, "DESC", "a map")
    first = put(server, url(1), text)
    put(server, url(2))
    handle = Handle.parse(NAME)
    server.registry.do(Remove(handle, (2,)), OPERATOR, "cli")
    last = put(server, Value.text(3, "EMAIL", "ann@example.org"))
    found = got(send(server, "GET", at(NAME, f"/differences?earlier={first}")))
    changed = found["changed"]
    assert [each["data"]["value"] for each in changed["added"]] == ["ann@example.org"]
    assert [each["data"]["value"] for each in changed["removed"]] == ["a map"]
    assert [each["new"]["data"]["value"] for each in changed["modified"]] == ["https://example.org/2"]
    assert (found["earlier"]["seq"], found["later"]["seq"], found["later"]["as_of"]) == (first, last, last)
    nothing = {"as_of": 0, "seq": 0, "at": None, "state": "absent"}
    whole = got(send(server, "GET", at(NAME, f"/differences?earlier=0&later={first}")))
    assert (whole["earlier"], len(whole["changed"]["added"])) == (nothing, 3), "the administrator among them"
    server.registry.do(Delete(handle), OPERATOR, "cli")
    gone = got(send(server, "GET", at(NAME, f"/differences?earlier={first}")))
    assert (gone["later"]["seq"], len(gone["changed"]["removed"])) == (0, 3)


def test_time_selects_the_version(server: Harness) -> None:
    put(server, url(1))
    put(server, url(2))
    versions = got(send(server, "GET", at(NAME, "/history")))["versions"]
    then = quote(versions[1]["at"], safe="")
    found = got(send(server, "GET", at(NAME, f"/differences?earlier={then}")))
    assert found["earlier"]["seq"] == versions[1]["seq"]


@pytest.mark.parametrize(
    ("query", "slug", "status"),
    [
        ("earlier=5&later=1", "invalid-query", 422),
        ("earlier=yesterday", "invalid-query", 422),
        ("earlier=99999999", "invalid-query", 422),
        ("earlier=2999-01-01", "invalid-query", 422),
        ("earlier=", "invalid-request", 400),
        ("", "invalid-request", 400),
    ],
)
def test_invalid_times_are_refused(shared: Harness, query: str, slug: str, status: int) -> None:
    answer = send(shared, "GET", at("12345/n0", f"/differences?{query}"))
    assert problem(answer, slug)["status"] == status
    if slug != "invalid-request":
        assert problem(send(shared, "GET", f"/changes?{query}", headers=basic()), slug)["detail"]


# All names


def test_log_requires_permission_to_list(server: Harness) -> None:
    before = put(server, url(1))
    for number in range(5):
        put(server, url(number), name=f"12345/log{number}")
    path = f"/log?since={before}&limit=2"
    assert pages(server, path, "entries") == []
    entries = pages(server, path, "entries", headers=basic())
    assert [each["handle"] for each in entries] == [f"12345/log{number}" for number in range(5)]
    with server.registry.snapshot() as snapshot:
        known = list_log(snapshot, ANN, before)
    assert [each["seq"] for each in entries] == [each.seq for each in known.items]
    assert entries[0]["actor"] == "local:tests"
    finder = with_token(server, "find")
    assert len(pages(server, path, "entries", headers=finder)) == 5
    assert pages(server, path, "entries", headers=with_token(server, "read")) == []
    assert got(send(server, "GET", path, headers=basic()))["last"] is None
    last = got(send(server, "GET", "/log?limit=1000", headers=basic()))["last"]
    assert got(send(server, "GET", f"/log?since={last}", headers=basic()))["entries"] == []
    put(server, url(9), name="12345/later")
    (later,) = got(send(server, "GET", f"/log?since={last}", headers=basic()))["entries"]
    assert later["handle"] == "12345/later"


def test_log_is_read_newest_first(server: Harness) -> None:
    for number in range(5):
        put(server, url(number), name=f"12345/log{number}")
    assert pages(server, "/log?newest=true&limit=2", "entries") == []
    oldest = pages(server, "/log?limit=7", "entries", headers=basic())
    assert pages(server, "/log?newest=true&limit=7", "entries", headers=basic()) == oldest[::-1]
    assert oldest[-1]["handle"] == "12345/log4"
    later = pages(server, f"/log?newest=true&since={oldest[-3]['seq']}&limit=1", "entries", headers=basic())
    assert later == oldest[:-3:-1]


def test_log_is_filtered(server: Harness) -> None:
    first = put(server, url(0))
    finder = with_token(server, "find", "create")
    for number in range(3):
        body = {"handle": f"12345/by-{number}", "values": [{"type": "URL", "data": "https://example.org/"}]}
        created = send(server, "POST", "/handles", body, headers=finder if number else basic())
        assert created.status == 201, created.body
    put(server, url(1), name="12345/by-local")
    whole = pages(server, f"/log?since={first}", "entries", headers=basic())
    tokens = [each for each in whole if each.get("actor", "").startswith("token:")]
    assert len(tokens) == 2

    def found(query: str) -> list[str]:
        entries = pages(server, f"/log?since={first}&limit=1&{query}", "entries", headers=basic())
        return [each["handle"].removeprefix("12345/by-") for each in entries]

    name = ADMINISTRATOR.partition(":")[2]
    assert found(f"actor={name}&action=create&prefix=12345") == list("012")
    assert found(f"actor={ADMINISTRATOR}&prefix=12345") == list("012")
    assert found(f"actor={name}&prefix=12345&newest=true") == list("210")
    assert found(f"actor={quote(tokens[0]['actor'])}") == list("12")
    assert found("actor=local:tests&prefix=12345") == ["local"]
    assert found(f"actor={name}&until={tokens[0]['seq']}&prefix=12345") == list("01")
    assert found("action=delete") == found("prefix=777") == []
    assert pages(server, f"/log?since={first}&actor={name}", "entries") == [], "as the log without a filter"


@pytest.mark.parametrize(
    ("query", "slug", "said"),
    [
        ("actor=ann", "invalid-query", "Invalid actor ann"),
        ("action=eat", "invalid-request", "eat"),
        ("prefix=12345/x", "invalid-name", "Invalid prefix 12345/x"),
        ("since=2&until=1", "invalid-query", "`since` (entry 2) is after `until` (entry 1)"),
        ("until=2999-01-01", "invalid-query", "is in the future"),
    ],
)
def test_invalid_filters_of_the_log_are_refused(shared: Harness, query: str, slug: str, said: str) -> None:
    assert said in problem(send(shared, "GET", f"/log?{query}", headers=basic()), slug)["detail"]


def test_cursor_of_the_log_is_bound_to_its_filters(shared: Harness) -> None:
    cursor = got(send(shared, "GET", "/log?limit=1&action=create", headers=basic()))["next"]
    got(send(shared, "GET", f"/log?limit=1&action=create&cursor={cursor}", headers=basic()))
    problem(send(shared, "GET", f"/log?limit=1&cursor={cursor}", headers=basic()), "invalid-cursor")


def test_public_list_opens_the_public_log(server: Harness) -> None:
    policy(server, who_may_list=Audience.PUBLIC)
    before = put(server, url(1))
    server.registry.do(Create(Handle.parse("12345/secret"), (url(2),), published=False), OPERATOR, "cli")
    shown = pages(server, f"/log?since={before - 1}", "entries")
    assert [(each["handle"], "actor" in each) for each in shown] == [(NAME, False)]
    altered = pages(server, f"/changes?earlier={before - 1}", "handles")
    assert [each["handle"] for each in altered] == [NAME]
    theirs = pages(server, f"/changes?earlier={before - 1}", "handles", headers=basic())
    assert [each["handle"] for each in theirs] == [NAME, "12345/secret"]


def test_changed_handles_are_listed_once(server: Harness) -> None:
    before = put(server, url(0))
    names = [f"12345/c{number}" for number in range(5)]
    for name in (*names, *names):
        put(server, url(len(name)), name=name)
    first = send(server, "GET", f"/changes?earlier={before}&limit=2", headers=basic())
    page = got(first)
    put(server, url(7), name="12345/later")
    rest = pages(server, f"/changes?earlier={before}&limit=2&cursor={page['next']}", "handles", headers=basic())
    found = [each["handle"] for each in (*page["handles"], *rest)]
    assert found == names, "what came after the first page is no part of it"
    assert {(each["before"], each["state_before"], each["state_after"]) for each in rest} == {
        (0, "absent", "published")
    }


def test_cursor_is_bound_to_list_and_reader(server: Harness) -> None:
    for number in range(4):
        put(server, url(number))
    path = at(NAME, "/history?limit=1")
    cursor = got(send(server, "GET", path))["next"]
    got(send(server, "GET", f"{path}&cursor={cursor}"))
    for other in (at("12345/n0", "/history?limit=1"), "/log?limit=1"):
        problem(send(server, "GET", f"{other}&cursor={cursor}"), "invalid-cursor")
    problem(send(server, "GET", f"{path}&cursor={cursor}", headers=basic()), "invalid-cursor")
    for forged in ("1", "AAAA", cursor[:-1], cursor + "A", "%00"):
        problem(send(server, "GET", f"{path}&cursor={forged}"), "invalid-cursor")

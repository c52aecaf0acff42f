"""Records: read, create, change, delete."""

from dataclasses import replace
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.records import Add
from perseid.server.http.messages import Client
from perseid.server.native.work import Work, WorkKind
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import URL, at, change, create, keyed, record, with_token
from tests.server.installations import OPERATOR


def data(found: dict[str, Any]) -> dict[int, object]:
    return {value["index"]: value["data"]["value"] for value in found["values"]}


def stranger(server: Harness) -> dict[str, str]:
    """Return the header of an identity without permissions."""
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    return basic("300:12345/bea", "another secret")


# Reading


def test_public_values_are_returned(shared: Harness) -> None:
    found = record(shared, "12345/private")
    assert (found["handle"], found["state"]) == ("12345/private", "published")
    assert 9 not in data(found)
    assert found["seq"] > 0
    assert found["changed"].endswith("Z")
    assert found["values"][0] == {
        "index": 1,
        "type": "URL",
        "data": {"format": "string", "value": "https://example.org/0"},
        "ttl": 86_400,
        "timestamp": found["values"][0]["timestamp"],
    }


def test_private_values_require_permission(server: Harness) -> None:
    path = at("12345/private", "?private")
    assert problem(send(server, "GET", path), "authentication-required")["status"] == 401
    assert data(record(server, "12345/private", "?private", headers=basic()))[9] == "for administrators"
    assert problem(send(server, "GET", path, headers=stranger(server)), "permission-denied")["status"] == 403
    assert got(send(server, "GET", path, headers=with_token(server, "read")))["values"][3]["index"] == 9
    assert problem(send(server, "GET", path, headers=with_token(server, "find")), "permission-denied")["status"] == 403
    got(send(server, "GET", at("12345/private"), headers=with_token(server, "find")))  # as everybody


def test_s2_administrators_learn_that_a_handle_is_not_public(server: Harness) -> None:
    change(server, "POST", at("12345/n1", "/unpublish"))
    found = problem(send(server, "GET", at("12345/n1"), headers=with_token(server, "read")), "not-found")
    assert found["detail"] == "Handle 12345/n1 is unpublished: only its administrators can see it"
    assert found["advice"] == "To see it: GET /api/v1/handles/12345%2Fn1?private"
    assert not {"suggestions", "prefix"} & found.keys(), "it is the one that was meant"
    for headers in ({}, stranger(server), with_token(server, "find")):
        found = problem(send(server, "GET", at("12345/n1"), headers=headers), "not-found")
        assert found["detail"] == "Handle 12345/n1 does not exist"
    for hidden in ("12345/n1", "12345/none"):  # a claim is not enough
        problem(send(server, "GET", at(hidden), headers=basic(secret="a guess")), "authentication-failed")


def test_values_are_selected_by_type_and_index(shared: Harness) -> None:
    assert list(data(record(shared, "12345/n1", "?type=URL&index=3"))) == [1, 3]
    found = problem(send(shared, "GET", at("12345/n1", "?type=NONE")), "not-found")
    assert found["code"] == 200
    assert problem(send(shared, "GET", at("12345/n1", "?index=x")), "invalid-request")["where"] == "index"


@pytest.mark.parametrize("name", ["12345/none", "12345/n0/x", "12345/%", "12345/ü?#", "12345/" + "x" * 2_000])
def test_missing_handles_are_not_found(shared: Harness, name: str) -> None:
    found = problem(send(shared, "GET", at(name)), "not-found")
    assert (found["status"], found["code"]) == (404, 100)


def test_handles_of_other_services_are_refused(shared: Harness) -> None:
    found = problem(send(shared, "GET", at("54321/x")), "prefix-not-hosted")
    assert (found["status"], found["code"]) == (404, 301)
    assert problem(send(shared, "GET", at("12345")), "invalid-name")["rule"] == "H1"


def test_handles_can_contain_any_text(server: Harness) -> None:
    for name in ("12345/a/b", "12345/..", "12345/%2F", "12345/a?b#c", "12345/ä ö", "12345/;&="):
        assert create(server, name)["handle"] == name
        assert record(server, name)["handle"] == name


def test_earlier_version_is_returned(server: Harness) -> None:
    first = create(server, "12345/t")["seq"]
    before = record(server, "12345/t")
    change(server, "PUT", at("12345/t", "/values"), {"values": [{"type": "URL", "data": "https://new.example/"}]})
    past = record(server, "12345/t", f"?at={first}")
    assert (past["as_of"], past["seq"], past["values"]) == (first, first, before["values"])
    assert record(server, "12345/t", f"?at={before['changed']}")["as_of"] == first
    assert data(record(server, "12345/t"))[1] == "https://new.example/"
    problem(send(server, "GET", at("12345/t", f"?at={first - 1}")), "not-found")
    assert problem(send(server, "GET", at("12345/t", "?at=2999-01-01")), "invalid-query")["code"] == 202
    assert problem(send(server, "GET", at("12345/t", "?at=soon")), "invalid-query")["status"] == 422


def test_etag_identifies_the_state(server: Harness) -> None:
    answer = send(server, "GET", at("12345/n3"))
    tag = header_of(answer, "ETag") or ""
    known = send(server, "GET", at("12345/n3"), headers={"If-None-Match": tag})
    assert (known.status, known.body, header_of(known, "ETag")) == (304, b"", tag)
    private = send(server, "GET", at("12345/n3", "?private"), headers={**basic(), "If-None-Match": tag})
    assert private.status == 200  # another answer, which has another tag
    change(server, "POST", at("12345/n3", "/values"), {"values": [URL]})
    assert send(server, "GET", at("12345/n3"), headers={"If-None-Match": tag}).status == 200


# Making


def test_record_is_created(server: Harness) -> None:
    order = {"handle": "12345/new", "values": [URL, {"type": "EMAIL", "data": "x@y.example", "permissions": "1100"}]}
    answer = send(server, "POST", "/handles", order, headers=basic())
    made = got(answer, 201)
    assert made == {"handle": "12345/new", "seq": made["seq"]}
    assert header_of(answer, "Location") == "/api/v1/handles/12345%2Fnew"
    assert list(data(record(server, "12345/new"))) == [1, 100]
    assert list(data(record(server, "12345/new", "?private", headers=basic()))) == [1, 2, 100]


def test_record_round_trip(server: Harness) -> None:
    found = record(server, "12345/n0")
    create(server, "12345/copy", values=found["values"])
    again = record(server, "12345/copy")
    assert data(again) == data(found)
    change(server, "PUT", at("12345/n0"), {"values": found["values"]})
    assert record(server, "12345/n0") == found  # nothing differs, so nothing was written


def test_a3_server_administrator_can_preserve_dates(server: Harness) -> None:
    dated = {**URL, "timestamp": "2007-08-10T04:23:11Z"}
    create(server, "12345/today", values=[dated])
    assert record(server, "12345/today")["values"][0]["timestamp"] > "2020"
    create(server, "12345/dated", values=[dated], preserve_dates=True)
    assert record(server, "12345/dated")["values"][0]["timestamp"] == "2007-08-10T04:23:11Z"
    order = {"handle": "12345/other", "values": [dated], "preserve_dates": True}
    found = problem(send(server, "POST", "/handles", order, headers=stranger(server)), "permission-denied")
    assert "keep the dates of a record" in found["detail"]
    order["values"] = [{**URL, "timestamp": "yesterday"}]
    assert (
        problem(send(server, "POST", "/handles", order, headers=basic()), "invalid-request")["where"] == "$.values[0]"
    )


@pytest.mark.parametrize(
    ("timestamp", "detail", "advice"),
    [
        ("2090-01-01T00:00:00Z", "in the future, 2090-01-01T00:00:00Z", "Correct the date"),
        (99_999_999_999, "in the future, 5138-11-16T09:46:39Z", "Correct the date"),
        (-1, "before 1970, 1969-12-31T23:59:59Z", "Write date, time and zone as in"),
    ],
)
def test_a3_preserved_dates_must_be_possible(server: Harness, timestamp: object, detail: str, advice: str) -> None:
    values = [URL, {"type": "EMAIL", "data": "a@example.org", "timestamp": timestamp}]
    order = {"handle": "12345/dated", "values": values, "preserve_dates": True}
    found = problem(send(server, "POST", "/handles", order, headers=basic()), "invalid-value")
    assert found["detail"] == f"Value 2 has a timestamp {detail}"
    assert found["where"] == "$.values[1].timestamp"
    assert found["advice"].startswith(advice)
    create(server, "12345/dated", values=values)  # the server sets the time


def test_values_can_have_all_fields(server: Harness) -> None:
    value = {
        "index": 7,
        "type": "X",
        "data": {"format": "hex", "value": "0001"},
        "permissions": "1010",
        "ttl": "2030-01-01T00:00:00Z",
        "references": [{"handle": "12345/n0", "index": 1}],
    }
    create(server, "12345/full", values=[value])
    found = record(server, "12345/full")["values"][0]
    kept = {"ttl": value["ttl"], "permissions": "1010", "references": value["references"], "index": 7}
    assert {name: found[name] for name in kept} == kept
    assert found["data"] == {"format": "base64", "value": "AAE="}


def test_data_can_be_given_in_natural_form(server: Harness) -> None:
    admin = {"type": "HS_ADMIN", "data": "300:0.NA/12345:add_value,read_value"}
    create(server, "12345/p", values=[admin, {"type": "X", "data": "base64:AAE="}, {"type": "HS_SECKEY", "data": "s"}])
    found = record(server, "12345/p", "?private", headers=basic())
    values = {value["type"]: value for value in found["values"]}
    assert values["HS_ADMIN"]["data"]["value"]["index"] == 300
    assert values["HS_ADMIN"]["index"] == 100
    assert values["X"]["data"] == {"format": "base64", "value": "AAE="}
    assert values["HS_SECKEY"]["permissions"] == "1100"
    wrong = send(server, "POST", "/handles", {"handle": "12345/q", "values": [URL, {"type": "HS_ADMIN", "data": "x"}]})
    assert problem(wrong, "invalid-request")["where"] == "$.values[1]"


def test_existing_handle_is_refused(server: Harness) -> None:
    order = {"handle": "12345/n0", "values": [URL]}
    found = problem(send(server, "POST", "/handles", order, headers=basic()), "already-exists")
    assert (found["status"], found["rule"], found["code"]) == (409, "H7", 101)
    assert problem(send(server, "POST", "/handles", order), "authentication-required")["status"] == 401


def test_deleted_handle_needs_reuse_deleted(server: Harness) -> None:
    last = got(send(server, "GET", at("12345/n0")))["seq"]
    change(server, "DELETE", at("12345/n0"))
    for path in ("", "/authority", "/citation"):
        found = problem(send(server, "GET", at("12345/n0", path)), "not-found")
        assert found["deleted"] == {"at": found["detail"].rpartition(" ")[2], "last_seq": last}
        assert found["advice"] == f"To see its last version: GET /api/v1/handles/12345%2Fn0?at={last}"
    order = {"handle": "12345/n0", "values": [URL]}
    assert problem(send(server, "POST", "/handles", order, headers=basic()), "already-exists")["rule"] == "S8"
    got(send(server, "POST", "/handles", {**order, "reuse_deleted": True}, headers=basic()), 201)


def test_record_can_be_created_unpublished(server: Harness) -> None:
    create(server, "12345/later", published=False)
    problem(send(server, "GET", at("12345/later")), "not-found")
    change(server, "POST", at("12345/later", "/publish"))
    assert record(server, "12345/later")["state"] == "published"


@pytest.mark.parametrize(
    ("handle", "slug", "rule"),
    [
        ("12345", "invalid-name", "H1"),
        ("12345/", "invalid-name", "H1"),
        ("12345/\x01", "invalid-name", "H3"),
        ("54321/x", "prefix-not-hosted", ""),
        ("0.SITE/x", "prefix-not-hosted", ""),
    ],
)
def test_invalid_handles_are_refused(shared: Harness, handle: str, slug: str, rule: str) -> None:
    found = problem(send(shared, "POST", "/handles", {"handle": handle}, headers=basic()), slug)
    assert found.get("rule", "") == rule


# Changing


@pytest.mark.parametrize(("length", "waits_in_loop"), [(10, True), (20_000, False)])
def test_short_change_waits_in_the_event_loop(server: Harness, length: int, waits_in_loop: bool) -> None:
    """Deciding a large change would block the loop."""
    works, run = list[Work](), server.context.do

    async def do(work: Work, client: Client) -> object:
        works.append(work)
        return await run(work, client)

    server.service.server = replace(server.context, do=do)
    body = {"values": [{"type": "DESC", "data": "x" * length}]}
    got(send(server, "PUT", at("12345/n0", "/values"), body, headers=basic()))
    assert [work.coroutine is not None for work in works if work.kind is WorkKind.WRITE] == [waits_in_loop]


def test_values_are_added_set_and_removed(server: Harness) -> None:
    path = at("12345/n7", "/values")
    added = change(server, "POST", path, {"values": [{"type": "DESC", "data": "more"}], "note": "a note"})
    assert added["handle"] == "12345/n7"
    assert data(record(server, "12345/n7"))[4] == "more"
    change(
        server,
        "PUT",
        path,
        {"values": [{"type": "URL", "data": "https://b.example/"}, {"index": 4, "type": "X", "data": "y"}]},
    )
    assert {1: "https://b.example/", 4: "y"}.items() <= data(record(server, "12345/n7")).items()
    gone = change(server, "DELETE", f"{path}?index=1&index=4&note=as%20agreed")
    assert list(data(record(server, "12345/n7"))) == [2, 3, 100]
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.entry(added["seq"]).why == "a note"
        assert snapshot.reader.entry(gone["seq"]).why == "as agreed"


def test_hidden_value_is_hidden_in_history_by_default(server: Harness) -> None:
    for name, keep_past, seen in (("12345/n8", False, False), ("12345/n9", True, True)):
        first = record(server, name)["seq"]
        hidden = {"index": 3, "type": "EMAIL", "data": "keeper@example.org", "permissions": "1100"}
        change(server, "PUT", at(name, "/values"), {"values": [hidden], "keep_history": keep_past, "note": "privacy"})
        assert (3 in data(record(server, name, f"?at={first}"))) is seen
        assert 3 not in data(record(server, name))


def test_record_is_replaced(server: Harness) -> None:
    change(server, "PUT", at("12345/n6"), {"values": [{"type": "DESC", "data": "all there is"}], "note": "anew"})
    found = record(server, "12345/n6")
    assert list(data(found)) == [1, 100]  # its administrators stay
    assert data(found)[1] == "all there is"
    others = {"values": [{"type": "HS_ADMIN", "data": "300:0.NA/12345"}, {"index": 100, "type": "DESC", "data": "x"}]}
    refused = send(server, "PUT", at("12345/n6"), others, headers=with_token(server, "update"))
    assert "transfer" in problem(refused, "permission-denied")["detail"]
    change(server, "PUT", at("12345/n6"), others)
    assert list(data(record(server, "12345/n6"))) == [100, 101]
    found = problem(send(server, "PUT", at("12345/none"), {"values": [URL]}, headers=basic()), "not-found")
    assert found["code"] == 100


@pytest.mark.parametrize(
    ("method", "path", "plain", "slug", "code"),
    [
        ("POST", at("12345/n0", "/values"), {"values": [{**URL, "index": 1}]}, "already-exists", 201),
        ("POST", at("12345/none", "/values"), {"values": [URL]}, "not-found", 100),
        ("POST", at("12345/n0", "/values"), {"values": []}, "invalid-request", None),
        ("PUT", at("12345/none", "/values"), {"values": [URL]}, "not-found", 100),
        ("DELETE", at("12345/n0", "/values?index=77"), None, "not-found", 200),
        ("DELETE", at("12345/n0", "/values"), None, "invalid-request", None),
        ("DELETE", at("12345/none"), None, "not-found", 100),
        ("DELETE", at("54321/x"), None, "not-found", 100),
    ],
)
def test_invalid_changes_are_refused(
    shared: Harness, method: str, path: str, plain: object, slug: str, code: int | None
) -> None:
    found = problem(send(shared, method, path, plain, headers=basic()), slug)
    assert code is None or found["code"] == code


CHANGES = [
    ("POST", "/handles", {"handle": "12345/new", "values": [URL]}, "create"),
    ("PUT", at("12345/n0"), {"values": [URL]}, "update"),
    ("DELETE", at("12345/n0"), None, "delete"),
    ("POST", at("12345/n0", "/values"), {"values": [URL]}, "update"),
    ("PUT", at("12345/n0", "/values"), {"values": [{"type": "DESC", "data": "x"}]}, "update"),
    ("DELETE", at("12345/n0", "/values?index=1"), None, "update"),
]


@pytest.mark.parametrize(("method", "path", "plain", "word"), CHANGES, ids=[f"{each[0]} {each[1]}" for each in CHANGES])
def test_changes_require_permission(server: Harness, method: str, path: str, plain: object, word: str) -> None:
    assert problem(send(server, method, path, plain), "authentication-required")["code"] == 402
    refused = problem(send(server, method, path, plain, headers=stranger(server)), "permission-denied")
    assert refused["advice"]
    every = {"create", "update", "delete", "publish", "tombstone", "mint", "find"}
    others = with_token(server, *(every - {word}))
    assert word in problem(send(server, method, path, plain, headers=others), "permission-denied")["detail"]
    answer = send(server, method, path, plain, headers=with_token(server, word))
    assert answer.status in (200, 201), answer
    assert answer.identity.endswith("by 300:0.NA/12345")


def test_administrator_values_need_the_transfer_scope(server: Harness) -> None:
    order = {"values": [{"type": "HS_ADMIN", "data": "300:0.NA/12345"}]}
    path = at("12345/n0", "/values")
    found = problem(send(server, "POST", path, order, headers=with_token(server, "update")), "permission-denied")
    assert "transfer" in found["detail"]
    got(send(server, "POST", path, order, headers=with_token(server, "transfer")))


def test_changes_check_if_match(server: Harness) -> None:
    for query, how in (("", {}), ("?private", basic())):
        tag = header_of(send(server, "GET", at("12345/n4", query), headers=how), "ETag") or ""
        change(
            server, "PUT", at("12345/n4", "/values"), {"values": [{"type": "DESC", "data": query}]}, **{"If-Match": tag}
        )
        path, order = at("12345/n4", "/values"), {"values": [{"type": "DESC", "data": "of another"}]}
        late = send(server, "PUT", path, order, headers={**basic(), "If-Match": tag})
        assert problem(late, "precondition-failed")["status"] == 412
        assert data(record(server, "12345/n4"))[2] == query
    for method, path, plain, _ in CHANGES[1:]:
        late = send(server, method, path, plain, headers={**basic(), "If-Match": '"v1"'})
        assert problem(late, "precondition-failed")["status"] == 412
    odd = send(server, "DELETE", at("12345/n4"), headers={**basic(), "If-Match": "v1"})
    assert problem(odd, "invalid-request")["status"] == 400


# Once


def test_idempotent_creation_happens_once(server: Harness) -> None:
    order = {"handle": "12345/once", "values": [URL]}
    first = send(server, "POST", "/handles", order, headers=keyed("a"))
    again = send(server, "POST", "/handles", order, headers=keyed("a"))
    assert got(again, 201) == got(first, 201)
    assert header_of(again, "Location") == header_of(first, "Location")
    other = send(server, "POST", "/handles", {**order, "values": []}, headers=keyed("a"))
    assert problem(other, "idempotency-key-reused")["status"] == 422
    more = {"values": [URL]}
    first = send(server, "POST", at("12345/once", "/values"), more, headers=keyed("b"))
    assert got(send(server, "POST", at("12345/once", "/values"), more, headers=keyed("b"))) == got(first)
    assert list(data(record(server, "12345/once"))) == [1, 2, 100]


def test_idempotency_keys_belong_to_an_identity(server: Harness) -> None:
    got(send(server, "POST", "/handles", {"handle": "12345/mine"}, headers=keyed("a")), 201)
    token = {**with_token(server, "create"), "Idempotency-Key": "a"}
    made = got(send(server, "POST", "/handles", {"handle": "12345/yours"}, headers=token), 201)
    assert made["handle"] == "12345/yours"


def test_dropped_responses_are_rebuilt_from_the_ledger(server: Harness) -> None:
    order, more = {"handle": "12345/once", "values": [URL]}, {"values": [URL]}
    first = got(send(server, "POST", "/handles", order, headers=keyed("a")), 201)
    second = got(send(server, "POST", at("12345/once", "/values"), more, headers=keyed("b")))
    gone = Handle.parse("12345/n0")
    seq = server.registry.do(Add(gone, (Value.text(8, "DESC", "a slip"),)), OPERATOR, "cli").seq
    change(server, "DELETE", at("12345/n0", "/values?index=8"))
    server.registry.do(Redact(gone, 8, seq, "law"), OPERATOR, "cli")  # after which no answer is kept
    again = send(server, "POST", "/handles", order, headers=keyed("a"))
    assert got(again, 201) == first
    assert header_of(again, "Idempotency-Replayed") == "true"
    again = send(server, "POST", at("12345/once", "/values"), more, headers=keyed("b"))
    assert got(again) == second
    assert header_of(again, "Idempotency-Replayed") == "true"

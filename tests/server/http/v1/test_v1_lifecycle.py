"""Publish, unpublish, tombstone, transfer, aliases and links."""

from dataclasses import replace
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create
from perseid.registry.installation.setup import with_group_administrators
from perseid.registry.policy.policy import PROFILES
from tests.server.http.contexts import PUBLIC_URL, Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import URL, at, change, create, keyed, record, with_token
from tests.server.installations import OPERATOR


def texts(found: dict[str, Any]) -> dict[str, object]:
    return {value["type"]: value["data"]["value"] for value in found["values"]}


# Published and hidden


def test_handle_is_unpublished_and_published(server: Harness) -> None:
    first = record(server, "12345/n1")["seq"]
    hidden = change(server, "POST", at("12345/n1", "/unpublish"), {"note": "under embargo"})
    assert hidden == {"handle": "12345/n1", "seq": hidden["seq"]}
    problem(send(server, "GET", at("12345/n1")), "not-found")
    problem(send(server, "GET", at("12345/n1", f"?at={first}")), "not-found")
    assert record(server, "12345/n1", "?private", headers=basic())["state"] == "unpublished"
    assert change(server, "POST", at("12345/n1", "/unpublish"))["seq"] == hidden["seq"]  # nothing to be done
    change(server, "PUT", at("12345/n1", "/values"), {"values": [{"type": "DESC", "data": "another thing"}]})
    change(server, "POST", at("12345/n1", "/publish"), {"note": "it is spring"})
    assert record(server, "12345/n1")["state"] == "published"
    assert "DESC" not in texts(record(server, "12345/n1", f"?at={first}"))


def test_history_can_be_kept(server: Harness) -> None:
    first = record(server, "12345/n2")["seq"]
    hidden = change(server, "POST", at("12345/n2", "/unpublish"), {"keep_history": True, "note": "for a while"})
    change(server, "PUT", at("12345/n2", "/values"), {"values": [{"type": "DESC", "data": "another thing"}]})
    change(server, "POST", at("12345/n2", "/publish"))
    assert texts(record(server, "12345/n2", f"?at={first}"))["DESC"] == "the thing with the number 2"
    with server.registry.snapshot() as snapshot:
        assert (snapshot.reader.entry(hidden["seq"]).why or "").endswith("\nfor a while")


def test_optional_body_can_be_empty(shared: Harness) -> None:
    for body, headers in (
        (b"", {}),
        (b"", {"Content-Type": "application/json"}),
        (b"{}", {"Content-Type": "application/json"}),
    ):
        path = f"/api/v1{at('12345/n3', '/publish')}"
        assert got(shared.ask("POST", path, body, headers={**basic(), **headers}))["handle"] == "12345/n3"
    other = shared.ask("POST", f"/api/v1{at('12345/n3', '/publish')}", b"note=x", headers=basic())
    assert problem(other, "unsupported-media-type")["status"] == 415
    empty = shared.ask("POST", f"/api/v1{at('12345/n3', '/tombstone')}", b"", headers=basic())
    assert problem(empty, "unsupported-media-type")["status"] == 415  # there a reason has to be said


# Gone


def test_tombstone_is_created_and_removed(server: Harness) -> None:
    before = record(server, "12345/n4")
    order = {"reason": "It burnt down", "replaced_by": "12345/n5", "note": "alas"}
    gone = change(server, "POST", at("12345/n4", "/tombstone"), order)
    found = record(server, "12345/n4")
    assert (found["state"], found["seq"]) == ("tombstone", gone["seq"])
    assert {"It burnt down", "12345/n5"} <= {*map(str, texts(found).values())}
    change(server, "POST", at("12345/n4", "/tombstone"), {"reason": "It burnt", "replaced_by": ""})
    assert "12345/n5" not in {*map(str, texts(record(server, "12345/n4")).values())}
    late = problem(
        send(server, "POST", at("12345/n4", "/values"), {"values": [URL]}, headers=basic()), "state-conflict"
    )
    assert (late["status"], late["rule"]) == (409, "S8")
    change(server, "POST", at("12345/n4", "/revive"), {"note": "only the roof"})
    assert texts(record(server, "12345/n4")) == texts(before)
    again = problem(send(server, "POST", at("12345/n4", "/revive"), headers=basic()), "state-conflict")
    assert again["rule"] == "S8"


@pytest.mark.parametrize(
    ("order", "slug"),
    [
        ({}, "invalid-request"),
        ({"reason": ""}, "invalid-request"),
        ({"reason": " "}, "invalid-value"),
        ({"reason": "gone", "replaced_by": "12345/none"}, "invalid-value"),
        ({"reason": "gone", "replaced_by": "12345/n6"}, "invalid-value"),
        ({"reason": "gone", "replaced_by": "12345"}, "invalid-name"),
    ],
)
def test_invalid_tombstones_are_refused(shared: Harness, order: dict[str, Any], slug: str) -> None:
    problem(send(shared, "POST", at("12345/n6", "/tombstone"), order, headers=basic()), slug)


def test_missing_reason_is_described(shared: Harness) -> None:
    found = problem(send(shared, "POST", at("12345/n6", "/tombstone"), {}, headers=basic()), "invalid-request")
    assert found["advice"] == "Expected: The reason why the object is gone, which is public"


def test_replacement_is_a_handle_not_the_address_of_a_web_page(shared: Harness) -> None:
    order = {"reason": "gone", "replaced_by": "https://library.org/"}
    found = problem(send(shared, "POST", at("12345/n6", "/tombstone"), order, headers=basic()), "invalid-name")
    assert found["advice"].startswith("Use a handle, as in 12345/x, not the address of a web page. To read")


# Handed over


def test_handle_is_transferred(server: Harness) -> None:
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    bea = basic("300:12345/bea", "another secret")
    path, order = at("12345/n7", "/transfer"), {"to": "300:12345/bea", "note": "as agreed"}
    assert problem(send(server, "POST", path, order, headers=bea), "permission-denied")["status"] == 403
    change(server, "POST", path, order)
    got(send(server, "PUT", at("12345/n7", "/values"), {"values": [{"type": "DESC", "data": "mine"}]}, headers=bea))
    value = {"values": [{"type": "DESC", "data": "mine"}]}
    problem(
        send(server, "PUT", at("12345/n7", "/values"), value, headers=with_token(server, "update")), "permission-denied"
    )


def test_invalid_owners_are_refused(shared: Harness) -> None:
    path = at("12345/n8", "/transfer")
    assert problem(send(shared, "POST", path, {"to": "bea"}, headers=basic()), "invalid-request")["where"] == "$.to"
    found = problem(send(shared, "POST", path, {"to": "300:12345/nobody"}, headers=basic()), "invalid-value")
    assert found["rule"] == "S1"


# Aliases and links


def test_alias_resolves_to_another_handle(server: Harness) -> None:
    answer = send(server, "POST", "/aliases", {"handle": "12345/also", "of": "12345/n9"}, headers=keyed("a"))
    assert got(answer, 201)["handle"] == "12345/also"
    assert got(send(server, "POST", "/aliases", {"handle": "12345/also", "of": "12345/n9"}, headers=keyed("a")), 201)
    assert header_of(answer, "Location") == "/api/v1/handles/12345%2Falso"
    assert texts(record(server, "12345/also"))["HS_ALIAS"] == "12345/n9"
    found = record(server, "12345/also", "?follow")
    assert (found["handle"], found["aliases"]) == ("12345/n9", ["12345/also"])
    assert "aliases" not in record(server, "12345/n9", "?follow")
    chain = got(send(server, "GET", at("12345/also", "/aliases")))
    assert chain == {"chain": ["12345/also", "12345/n9"], "end": "found"}
    problem(
        send(server, "POST", "/aliases", {"handle": "12345/also", "of": "12345/n8"}, headers=basic()), "already-exists"
    )
    problem(send(server, "POST", "/aliases", {"handle": "12345/x", "of": "nowhere"}, headers=basic()), "invalid-name")


@pytest.mark.parametrize(
    ("of", "end", "slug"),
    [
        ("12345/none", "not_found", "not-found"),
        ("54321/x", "not_hosted", "prefix-not-hosted"),
        ("12345/back", "loop", "not-found"),
    ],
)
def test_broken_aliases_are_reported(server: Harness, of: str, end: str, slug: str) -> None:
    got(send(server, "POST", "/aliases", {"handle": "12345/back", "of": "12345/odd"}, headers=basic()), 201)
    got(send(server, "POST", "/aliases", {"handle": "12345/odd", "of": of}, headers=basic()), 201)
    assert got(send(server, "GET", at("12345/odd", "/aliases")))["end"] == end
    found = problem(send(server, "GET", at("12345/odd", "?follow")), slug)
    assert (found["status"], found["rule"]) == (404, "S2")


FORMS = ["12345/n9", "hdl:12345/n9", "HDL://12345/n9", "https://hdl.handle.net/12345/n9", f"{PUBLIC_URL}/12345/n9"]


@pytest.mark.parametrize("form", FORMS)
def test_u7_alias_target_is_stored_as_a_handle(server: Harness, form: str) -> None:
    got(send(server, "POST", "/aliases", {"handle": "12345/al", "of": form}, headers=basic()), 201)
    assert texts(record(server, "12345/al"))["HS_ALIAS"] == "12345/n9"
    assert got(send(server, "GET", at("12345/al", "/aliases")))["end"] == "found"


@pytest.mark.parametrize("form", FORMS)
def test_u7_replacement_is_stored_as_a_handle(server: Harness, form: str) -> None:
    change(server, "POST", at("12345/n4", "/tombstone"), {"reason": "gone", "replaced_by": form})
    held = server.registry.ledger.open_reader
    with held() as reader:
        stored = [value.data for value in reader.entry(reader.size).record()]
    assert b"12345/n9" in stored
    assert form.encode() not in stored or form == "12345/n9"


def test_c5_query_and_fragment_are_not_stored(server: Harness) -> None:
    for of in ("hdl:12345/n9?x", "hdl:12345/n9#y"):
        found = problem(
            send(server, "POST", "/aliases", {"handle": "12345/al", "of": of}, headers=basic()), "invalid-request"
        )
        assert (found["where"], found["advice"]) == ("$.of", "Use 12345/n9")
    # a bare handle is literal
    got(send(server, "POST", "/aliases", {"handle": "12345/al", "of": "10.1/n9?x"}, headers=basic()), 201)
    assert texts(record(server, "12345/al"))["HS_ALIAS"] == "10.1/n9?x"


@pytest.mark.parametrize("of", ["12345/self", "12345/SELF", "hdl:12345/self"])
def test_s2_alias_of_itself_is_refused(server: Harness, of: str) -> None:
    new = {"handle": "12345/self", "of": of}
    found = problem(send(server, "POST", "/aliases", new, headers=basic()), "invalid-value")
    assert (found["status"], found["rule"]) == (422, "S2")
    problem(send(server, "GET", at("12345/self")), "not-found")


@pytest.mark.parametrize(("method", "more"), [("POST", "/values"), ("PUT", "/values"), ("PUT", "")])
def test_s2_alias_of_itself_is_refused_in_changes(server: Harness, method: str, more: str) -> None:
    values = {"values": [{"type": "HS_ALIAS", "data": "12345/N3", "index": 50}]}
    found = problem(send(server, method, at("12345/n3", more), values, headers=basic()), "invalid-value")
    assert "cannot be an alias of itself" in found["detail"]
    nobody = problem(send(server, method, at("12345/n3", more), values), "authentication-required")
    assert "itself" not in nobody["detail"]


def test_s2_imported_alias_of_itself_can_be_changed(server: Harness) -> None:
    """Deployed servers accept such a value; it must stay editable here."""
    itself = Value.text(1, "HS_ALIAS", "12345/came")
    server.registry.do(Create(Handle.parse("12345/came"), (itself,)), OPERATOR, "import")
    change(server, "POST", at("12345/came", "/values"), {"values": [URL]})
    change(server, "PUT", at("12345/came"), {"values": [{"type": "HS_ALIAS", "data": "12345/came"}]})


def test_versions_and_metadata_are_linked_in_both_directions(server: Harness) -> None:
    rules = replace(
        with_group_administrators(PROFILES["free"]),
        work_type="WORK",
        expression_type="VERSION",
        metadata_type="ABOUT",
        object_type="OBJECT",
    )
    server.registry.do(SetPolicy("12345", rules), OPERATOR, "cli")
    order = {"work": "12345/n1", "version": "12345/n2", "note": "first edition"}
    made = change(server, "POST", "/links/versions", order)
    assert made["handles"] == ["12345/n1", "12345/n2"]
    assert texts(record(server, "12345/n1"))["VERSION"] == "12345/n2"
    assert texts(record(server, "12345/n2"))["WORK"] == "12345/n1"
    assert change(server, "POST", "/links/versions", order)["seq"] == 0
    change(server, "POST", "/links/metadata", {"resource": "12345/n1", "metadata": "12345/n3"})
    assert texts(record(server, "12345/n3"))["OBJECT"] == "12345/n1"
    other = {"resource": "12345/n1", "metadata": "12345/n4"}
    assert problem(send(server, "POST", "/links/metadata", other, headers=basic()), "state-conflict")["rule"]
    same = {"work": "12345/n1", "version": "12345/n1"}
    assert problem(send(server, "POST", "/links/versions", same, headers=basic()), "invalid-value")["rule"] == "S3"
    gone = {"work": "12345/n1", "version": "12345/none"}
    assert problem(send(server, "POST", "/links/versions", gone, headers=basic()), "not-found")["code"] == 100


# Who may

CHANGES = [
    (at("12345/n0", "/publish"), None, "publish"),
    (at("12345/n0", "/unpublish"), None, "publish"),
    (at("12345/n0", "/tombstone"), {"reason": "gone"}, "tombstone"),
    (at("12345/tomb", "/revive"), None, "tombstone"),
    (at("12345/n0", "/transfer"), {"to": "300:0.NA/12345"}, "transfer"),
    ("/links/versions", {"work": "12345/n0", "version": "12345/n1"}, "update"),
    ("/links/metadata", {"resource": "12345/n0", "metadata": "12345/n1"}, "update"),
    ("/aliases", {"handle": "12345/new", "of": "12345/n1"}, "create"),
]


@pytest.mark.parametrize(("path", "plain", "word"), CHANGES, ids=[each[0] for each in CHANGES])
def test_changes_require_permission(server: Harness, path: str, plain: object, word: str) -> None:
    create(server, "12345/tomb")
    change(server, "POST", at("12345/tomb", "/tombstone"), {"reason": "gone"})
    assert problem(send(server, "POST", path, plain), "authentication-required")["code"] == 402
    every = {"read", "create", "update", "delete", "publish", "tombstone", "mint", "find", "transfer"}
    others = with_token(server, *(every - {word}))
    assert word in problem(send(server, "POST", path, plain, headers=others), "permission-denied")["detail"]
    answer = send(server, "POST", path, plain, headers=with_token(server, word))
    assert answer.status in (200, 201), answer


def test_changes_check_if_match(server: Harness) -> None:
    create(server, "12345/tomb")
    tag = header_of(send(server, "GET", at("12345/tomb")), "ETag") or ""
    change(server, "POST", at("12345/tomb", "/tombstone"), {"reason": "gone"}, **{"If-Match": tag})
    for path, plain, _ in CHANGES[1:5]:
        late = send(server, "POST", path, plain, headers={**basic(), "If-Match": tag})
        assert problem(late, "precondition-failed")["status"] == 412

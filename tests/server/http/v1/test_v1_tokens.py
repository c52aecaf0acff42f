"""Tokens: create, list, show, revoke."""

from concurrent.futures import Future
from typing import Any

import pytest

from perseid.registry.access.token_records import Secret
from perseid.schema.namespaces import SCOPES
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import at, change, clear_responses, create, keyed, with_token
from tests.server.installations import ADMINISTRATOR

ORDER = {"scopes": ["mint", "update"], "namespaces": ["12345"], "label": "the catalogue", "expires_in": "30d"}


def make(server: Harness, **more: object) -> Any:
    return got(send(server, "POST", "/tokens", {**ORDER, **more}, headers=basic()), 201)


def bearer(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['token']}"}


def test_token_is_created_and_acts_for_its_issuer(server: Harness) -> None:
    answer = send(server, "POST", "/tokens", {**ORDER, "note": "for spring"}, headers=basic())
    made = got(answer, 201)
    assert Secret.parse(made["token"]).id == made["id"]
    assert header_of(answer, "Location") == f"/api/v1/tokens/{made['id']}"
    assert header_of(answer, "Cache-Control") == "no-store"
    got(send(server, "POST", "/mint", {"prefix": "12345"}, headers=bearer(made)), 201)
    shown = got(send(server, "GET", f"/tokens/{made['id']}", headers=basic()))
    assert shown == {
        "id": made["id"],
        "label": "the catalogue",
        "issuer": ADMINISTRATOR,
        "scopes": ["mint", "update"],
        "namespaces": ["12345"],
        "created": shown["created"],
        "expires": made["expires"],
        "state": "active",
        "seq": shown["seq"],
        "last_used": shown["created"][:10],
    }
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.entry(shown["seq"]).why == "for spring"


def test_read_does_not_wait_until_the_use_of_its_token_is_recorded(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(server)
    with monkeypatch.context() as patch:
        patch.setattr(server.registry.ledger, "submit", lambda *_: [Future()])  # never done
        got(send(server, "GET", f"/tokens/{made['id']}", headers=bearer(made)))


def test_token_is_shown_once(server: Harness) -> None:
    first = send(server, "POST", "/tokens", ORDER, headers=keyed("k"))
    made = got(first, 201)
    again = send(server, "POST", "/tokens", ORDER, headers=keyed("k"))
    repeated = got(again, 201)
    assert set(repeated) == {"id", "expires", "advice"}
    assert (repeated["id"], repeated["expires"]) == (made["id"], made["expires"])
    assert "shown only once" in repeated["advice"]
    assert header_of(again, "Idempotency-Replayed") == "true"
    assert header_of(again, "Location") == header_of(first, "Location") == f"/api/v1/tokens/{made['id']}"
    assert set(made) == {"id", "expires", "token"}
    other = send(server, "POST", "/tokens", {**ORDER, "label": "x"}, headers=keyed("k"))
    assert problem(other, "idempotency-key-reused")["status"] == 422
    for path in ("/tokens", f"/tokens/{made['id']}"):
        assert made["token"][16:].encode() not in send(server, "GET", path, headers=basic()).body
    log = server.registry.ledger.log
    with log.store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM idempotency").fetchall()
    assert rows
    assert made["token"][16:] not in repr(rows)


def test_token_id_is_rebuilt_from_the_ledger(server: Harness) -> None:
    made = got(send(server, "POST", "/tokens", ORDER, headers=keyed("k")), 201)
    before = send(server, "POST", "/tokens", ORDER, headers=keyed("k"))
    clear_responses(server)
    again = send(server, "POST", "/tokens", ORDER, headers=keyed("k"))
    assert got(again, 201) == got(before, 201)
    assert again.headers[:2] == before.headers[:2]
    assert header_of(again, "Location") == f"/api/v1/tokens/{made['id']}"
    assert header_of(again, "Idempotency-Replayed") == "true"
    change(server, "DELETE", f"/tokens/{made['id']}")
    assert got(send(server, "POST", "/tokens", ORDER, headers=keyed("k")), 201)["id"] == made["id"]
    assert len(got(send(server, "GET", "/tokens?all", headers=basic()))["tokens"]) == 1


def test_tokens_are_listed_by_visibility(server: Harness) -> None:
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    ids = sorted(make(server, label=str(number))["id"] for number in range(5))
    seen, cursor = [], ""
    while True:
        page = got(send(server, "GET", f"/tokens?limit=2{cursor}", headers=basic()))
        assert len(page["tokens"]) <= 2
        seen += [token["id"] for token in page["tokens"]]
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == ids
    bea = basic("300:12345/bea", "another secret")
    assert got(send(server, "GET", "/tokens", headers=bea)) == {"tokens": []}
    assert problem(send(server, "GET", f"/tokens/{ids[0]}", headers=bea), "not-found")["status"] == 404
    problem(send(server, "GET", f"/tokens?limit=2{cursor}", headers=bea), "invalid-cursor")


def test_token_is_revoked_immediately(server: Harness) -> None:
    made = make(server)
    revoked = change(server, "DELETE", f"/tokens/{made['id']}?note=found%20in%20a%20repository")
    assert (revoked["id"], revoked["state"]) == (made["id"], "revoked")
    answer = send(server, "POST", "/mint", {"prefix": "12345"}, headers=bearer(made))
    assert problem(answer, "authentication-failed")["status"] == 401
    assert got(send(server, "GET", "/tokens", headers=basic())) == {"tokens": []}
    (listed,) = got(send(server, "GET", "/tokens?all", headers=basic()))["tokens"]
    assert listed["revoked"] == revoked["revoked"]
    assert change(server, "DELETE", f"/tokens/{made['id']}")["seq"] == revoked["seq"]  # once is enough


def test_token_can_revoke_only_itself(server: Harness) -> None:
    found, other = make(server), make(server)
    refused = send(server, "DELETE", f"/tokens/{other['id']}", headers=bearer(found))
    assert problem(refused, "not-found")["status"] == 404
    assert got(send(server, "DELETE", f"/tokens/{found['id']}", headers=bearer(found)))["state"] == "revoked"
    problem(send(server, "GET", f"/tokens/{found['id']}", headers=bearer(found)), "authentication-failed")


def test_token_cannot_create_tokens(server: Harness) -> None:
    everything = with_token(server, *SCOPES, where=None)
    assert problem(send(server, "POST", "/tokens", ORDER, headers=everything), "permission-denied")["status"] == 403


def test_creating_tokens_requires_permission(server: Harness) -> None:
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    bea = basic("300:12345/bea", "another secret")
    found = problem(send(server, "POST", "/tokens", ORDER, headers=bea), "permission-denied")
    assert "MODIFY_ADMIN" in found["detail"]


def test_hidden_token_is_not_found(server: Harness) -> None:
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    bea = basic("300:12345/bea", "another secret")
    made, gone = make(server)["id"], make(server)["id"]
    change(server, "DELETE", f"/tokens/{gone}")
    for method in ("GET", "DELETE"):
        said = {}
        for token in (made, gone, "zzzzzzzz"):
            answer = send(server, method, f"/tokens/{token}", headers=bea)
            assert problem(answer, "not-found")["status"] == 404
            said[token] = answer.body.decode().replace(token, "…")
        assert len(set(said.values())) == 1, said
    assert got(send(server, "GET", f"/tokens/{made}", headers=basic()))["state"] == "active"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/tokens"), ("GET", "/tokens/aaaaaaaa"), ("DELETE", "/tokens/aaaaaaaa")]
)
def test_anonymous_callers_must_authenticate(shared: Harness, method: str, path: str) -> None:
    assert problem(send(shared, method, path), "authentication-required")["code"] == 402
    if path != "/tokens":
        assert problem(send(shared, method, path, headers=basic()), "not-found")["code"] == 100


def test_token_in_the_url_is_refused(server: Harness) -> None:
    made = make(server)
    for method in ("GET", "DELETE"):
        answer = send(server, method, f"/tokens/{made['token']}", headers=basic())
        assert problem(answer, "invalid-request")["where"] == "token"
        assert made["token"][16:].encode() not in answer.body


@pytest.mark.parametrize(
    ("more", "slug", "where"),
    [
        ({"scopes": []}, "invalid-request", "$.scopes"),
        ({"scopes": ["fly"]}, "invalid-request", "$.scopes[0]"),
        ({"namespaces": []}, "invalid-request", "$.namespaces"),
        ({"all_namespaces": True}, "invalid-request", "$.namespaces"),
        ({"namespaces": ["1..2"]}, "invalid-request", "$.namespaces"),
        ({"namespaces": ["54321"]}, "prefix-not-hosted", ""),
        ({"scopes": ["admin"]}, "invalid-request", "$.namespaces"),
        ({"expires_in": "0d"}, "invalid-request", "$.expires_in"),
        ({"expires_in": "401d"}, "invalid-request", "$.expires_in"),
        ({"expires_in": "30"}, "invalid-request", "$.expires_in"),
        ({"label": "\n"}, "invalid-value", ""),
        ({"label": "x" * 201}, "invalid-request", "$.label"),
    ],
)
def test_invalid_tokens_are_refused(shared: Harness, more: dict[str, Any], slug: str, where: str) -> None:
    found = problem(send(shared, "POST", "/tokens", {**ORDER, **more}, headers=basic()), slug)
    assert found.get("where", "") == where


def test_token_for_all_namespaces(server: Harness) -> None:
    made = got(send(server, "POST", "/tokens", {"scopes": ["admin"], "all_namespaces": True}, headers=basic()), 201)
    shown = got(send(server, "GET", f"/tokens/{made['id']}", headers=basic()))
    assert shown["namespaces"] is None
    assert send(server, "GET", at("12345/n0"), headers=bearer(made)).status == 200

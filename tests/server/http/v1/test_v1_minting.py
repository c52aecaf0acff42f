"""Minting, reserving and generating handles."""

from dataclasses import replace
from typing import Any

import pytest

from perseid.ledger.log.requests import MAX_BODY
from perseid.names import pilin
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.policy.policy import PROFILES
from perseid.schema.records import MAX_NAMES
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import URL, at, create, keyed, record, with_token
from tests.server.installations import OPERATOR

FREE = PROFILES["free"]
PILIN = replace(FREE, scheme="pilin")


def mint(server: Harness, path: str = "/mint", **more: object) -> Any:
    return got(send(server, "POST", path, {"prefix": "12345", **more}, headers=basic()), 201)


def refused(server: Harness, slug: str, path: str = "/mint", **more: object) -> dict[str, Any]:
    return problem(send(server, "POST", path, {"prefix": "12345", **more}, headers=basic()), slug)


def namespace(server: Harness, prefix: str, **rules: Any) -> None:
    server.registry.do(AddNamespace(prefix, replace(FREE, **rules)), OPERATOR, "cli")


# Minting


def test_minted_handle_resolves(server: Harness) -> None:
    answer = send(server, "POST", "/mint", {"prefix": "12345", "values": [URL], "note": "new"}, headers=basic())
    made = got(answer, 201)
    (name,) = made["handles"]
    assert header_of(answer, "Location") == f"/api/v1{at(name)}"
    assert answer.name == name
    found = record(server, name)
    assert (found["handle"], found["seq"], found["state"]) == (name, made["seq"], "published")
    assert found["values"][0]["data"]["value"] == "https://example.org/"
    with server.registry.snapshot() as snapshot:
        entry = snapshot.reader.entry(made["seq"])
    assert (entry.handle, entry.origin, entry.why) == (name, ("http", "300:0.NA/12345"), "new")


def test_thousand_handles_are_minted_in_one_request(server: Harness) -> None:
    made = mint(server, count=1_000, values=[URL])
    assert len(set(made["handles"])) == 1_000
    with server.registry.snapshot() as snapshot:
        entries = [snapshot.reader.entry(made["seq"] + number) for number in range(1_000)]
    assert [entry.handle for entry in entries] == made["handles"]
    assert {entry.at for entry in entries} == {entries[0].at}  # of one commit
    assert record(server, made["handles"][-1])["seq"] == made["seq"] + 999


def test_each_record_can_have_its_own_values(server: Harness) -> None:
    rows = [[{"type": "URL", "data": f"https://example.org/{number}"}] for number in range(3)]
    made = mint(server, records=rows, values=[{"type": "DESC", "data": "all"}])
    assert len(made["handles"]) == 3
    for number, name in enumerate(made["handles"]):
        values = record(server, name)["values"]
        assert [(value["index"], value["data"]["value"]) for value in values[:2]] == [
            (1, "all"),
            (2, f"https://example.org/{number}"),
        ]


def test_policy_defines_the_form_of_handles(server: Harness) -> None:
    namespace(server, "77", scheme="pilin")
    for name in mint(server, prefix="77", count=3)["handles"]:
        pilin.decode(name.removeprefix("77/"))


def test_suffix_prefix_without_a_scheme(server: Harness) -> None:
    (name,) = mint(server, prefix="12345/report-")["handles"]
    assert name.startswith("12345/report-")
    namespace(server, "77", scheme="pilin")
    found = refused(server, "invalid-name", prefix="77/report-")
    assert (found["status"], found["rule"], found["code"]) == (400, "P8", 102)


def test_minting_with_metadata_creates_linked_handles(server: Harness) -> None:
    made = mint(server, count=2, values=[URL], metadata=[{"type": "DESC", "data": "about it"}])
    assert (len(made["handles"]), len(made["metadata"])) == (2, 2)
    for thing, about in zip(made["handles"], made["metadata"], strict=True):
        assert [value["data"]["value"] for value in record(server, thing)["values"]].count(about) == 1
        found = [value["data"]["value"] for value in record(server, about)["values"]]
        assert (thing in found, "about it" in found) == (True, True)
    assert refused(server, "invalid-value", count=501, metadata=[])["status"] == 422


def test_handles_can_be_minted_unpublished(server: Harness) -> None:
    (name,) = mint(server, published=False, values=[URL])["handles"]
    assert problem(send(server, "GET", at(name)), "not-found")["status"] == 404
    assert record(server, name, "?private", headers=basic())["state"] == "unpublished"


def test_owner_can_be_given(server: Harness) -> None:
    create(server, "12345/ann", values=[{"type": "HS_SECKEY", "data": "a secret", "index": 300}])
    (name,) = mint(server, owner="300:12345/ann", values=[URL])["handles"]
    admin = record(server, name, "?type=HS_ADMIN")["values"][0]["data"]["value"]
    assert (admin["handle"], admin["index"]) == ("12345/ann", 300)
    assert refused(server, "invalid-request", owner="ann")["where"] == "$.owner"
    assert refused(server, "invalid-value", owner="300:12345/bea")["rule"] == "S1"


def test_policy_defines_the_default_ttl(server: Harness) -> None:
    namespace(server, "77", default_ttl=60)
    (name,) = mint(server, prefix="77", values=[URL, {**URL, "ttl": 5}])["handles"]
    assert [value["ttl"] for value in record(server, name)["values"]][:2] == [60, 5]


@pytest.mark.parametrize(
    ("more", "slug", "where"),
    [
        ({"count": 0}, "invalid-request", "$.count"),
        ({"count": MAX_NAMES + 1}, "invalid-request", "$.count"),
        ({"count": 2, "records": [[]]}, "invalid-request", "$.count"),
        ({"records": [[]] * (MAX_NAMES + 1)}, "invalid-request", "$.records"),
        ({"records": [[], [{"type": "HS_ADMIN", "data": "x"}]]}, "invalid-request", "$.records[1][0]"),
        ({"metadata": [{"type": "HS_ADMIN", "data": "x"}]}, "invalid-request", "$.metadata[0]"),
        ({"prefix": ""}, "invalid-request", "$.prefix"),
        ({"prefix": "1..2"}, "invalid-name", ""),
        ({"prefix": "0.NA"}, "invalid-name", ""),
        ({"prefix": "54321"}, "prefix-not-hosted", ""),
        ({"values": [{**URL, "index": 1}, {**URL, "index": 1}]}, "already-exists", ""),
    ],
)
def test_invalid_mint_requests_are_refused(shared: Harness, more: dict[str, Any], slug: str, where: str) -> None:
    assert refused(shared, slug, **more).get("where", "") == where


def test_minting_requires_permission(server: Harness) -> None:
    order = {"prefix": "12345"}
    for path in ("/mint", "/reserve", "/generate"):
        assert problem(send(server, "POST", path, order), "authentication-required")["code"] == 402
        got(send(server, "POST", path, order, headers=with_token(server, "mint")), 201)
        found = problem(
            send(server, "POST", path, order, headers=with_token(server, "create", "update")), "permission-denied"
        )
        assert "mint" in found["detail"]
        elsewhere = with_token(server, "mint", where=("12345.*",))
        assert problem(send(server, "POST", path, order, headers=elsewhere), "permission-denied")["status"] == 403


def test_clock_bound_minting_sends_retry_after(server: Harness) -> None:
    namespace(server, "77", scheme="pilin")
    for _ in range(15):
        mint(server, prefix="77", count=MAX_NAMES)  # fifteen seconds of the clock, in much less
    server.registry.do(SetPolicy("77", replace(PILIN, max_ahead=0)), OPERATOR, "cli")
    answer = send(server, "POST", "/mint", {"prefix": "77"}, headers=keyed("k"))
    found = problem(answer, "busy")
    assert (answer.status, found["rule"], found["code"]) == (503, "max_ahead = 0", 3)
    assert int(header_of(answer, "Retry-After") or 0) >= 1
    server.registry.do(SetPolicy("77", PILIN), OPERATOR, "cli")
    got(
        send(server, "POST", "/mint", {"prefix": "77"}, headers=keyed("k")), 201
    )  # nothing was done, so the key is free


# Reserving


def test_reserved_handles_are_registered_later(server: Harness) -> None:
    made = mint(server, "/reserve", count=2)
    name, other = made["handles"]
    problem(send(server, "GET", at(name)), "not-found")
    assert record(server, name, "?private", headers=basic())["state"] == "reserved"
    assert create(server, name)["handle"] == name
    assert record(server, name)["state"] == "published"
    found = problem(send(server, "POST", at(other, "/publish"), headers=basic()), "state-conflict")
    assert found["rule"] == "S1"


def test_chosen_handles_are_reserved_all_or_none(server: Harness) -> None:
    order: dict[str, object] = {"handles": ["12345/r1", "12345/r2"], "note": "for the poster"}
    made = got(send(server, "POST", "/reserve", order, headers=basic()), 201)
    assert made["handles"] == ["12345/r1", "12345/r2"]
    order = {"handles": ["12345/r3", "12345/r2"]}
    assert problem(send(server, "POST", "/reserve", order, headers=basic()), "already-exists")["rule"] == "H7"
    problem(send(server, "GET", at("12345/r3", "?private"), headers=basic()), "not-found")


def test_s1_owner_sees_a_reserved_handle(server: Harness) -> None:
    create(server, "12345/bea", values=[{"index": 300, "type": "HS_SECKEY", "data": "another secret"}])
    order = {"handles": ["12345/r1"], "owner": "300:12345/bea"}
    got(send(server, "POST", "/reserve", order, headers=basic()), 201)
    owner, other = basic("300:12345/bea", "another secret"), with_token(server, "find")
    for headers, status, found in ((owner, 200, ["12345/r1"]), (other, 404, ["12345/r1"]), ({}, 404, [])):
        assert send(server, "GET", at("12345/r1", "/history"), headers=headers).status == status
        assert server.get("/api/handles/12345/r1", headers=headers).status == status
        results = got(send(server, "GET", "/find?owner=12345/bea", headers=headers))["results"]
        assert [each["handle"] for each in results] == found
    assert record(server, "12345/r1", "?private", headers=owner)["state"] == "reserved"


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, "$.prefix"),
        ({"prefix": "12345", "handles": ["12345/r"]}, "$.prefix"),
        ({"handles": ["12345/r"], "count": 1}, "$.count"),
        ({"handles": ["12345/r"], "values": [URL]}, "$.values"),
    ],
)
def test_ambiguous_reservations_are_refused(shared: Harness, more: dict[str, Any], where: str) -> None:
    assert problem(send(shared, "POST", "/reserve", more, headers=basic()), "invalid-request")["where"] == where


# Generating


def test_generated_handles_are_unique_and_have_no_record(server: Harness) -> None:
    namespace(server, "77", scheme="pilin")
    with server.registry.snapshot() as snapshot:
        size = snapshot.reader.size
    answer = send(server, "POST", "/generate", {"prefix": "77", "count": 1_000}, headers=basic())
    made = got(answer, 201)
    assert (len(set(made["handles"])), "seq" in made, header_of(answer, "Location")) == (1_000, False, None)
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.size == size
    later = mint(server, prefix="77", count=1_000)["handles"] + mint(server, "/generate", prefix="77")["handles"]
    assert not {*made["handles"]} & {*later}


# Once


def test_repeated_mint_returns_the_same_handles(server: Harness) -> None:
    for path in ("/mint", "/reserve", "/generate"):
        order: dict[str, object] = {"prefix": "12345", "count": 3}
        first = send(server, "POST", path, order, headers=keyed(path))
        again = send(server, "POST", path, order, headers=keyed(path))
        assert got(first, 201) == got(again, 201)
        assert header_of(again, "Idempotency-Replayed") == "true"
        other = send(server, "POST", path, {**order, "count": 2}, headers=keyed(path))
        assert problem(other, "idempotency-key-reused")["status"] == 422


def test_long_response_is_rebuilt_from_the_ledger(server: Harness) -> None:
    prefix = "77." + "7" * 40
    namespace(server, prefix)
    order = {"prefix": prefix, "count": 500, "metadata": []}
    first = send(server, "POST", "/mint", order, headers=keyed("k"))
    assert len(first.body) > MAX_BODY
    again = send(server, "POST", "/mint", order, headers=keyed("k"))
    assert got(again, 201) == got(first, 201)
    assert header_of(again, "Idempotency-Replayed") == "true"


def test_long_response_without_records_is_not_rebuilt(server: Harness) -> None:
    prefix = "77." + "7" * 40
    namespace(server, prefix)
    order = {"prefix": prefix, "count": 1_000}
    assert len(got(send(server, "POST", "/generate", order, headers=keyed("k")), 201)["handles"]) == 1_000
    assert got(send(server, "POST", "/generate", order, headers=keyed("k")), 201) == {"seq": 0, "count": 0}

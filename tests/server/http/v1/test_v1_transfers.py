"""Transfers of many handles."""

from typing import Any
from urllib.parse import urlencode

import pytest

from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.records import Add, Create
from perseid.registry.commands.transfer import Transfer
from perseid.registry.jobs import runner
from perseid.registry.jobs import undo as undoing
from perseid.server.http.v1 import job_requests
from tests.registry.jobs.runs import run_steps
from tests.server.http.contexts import Harness, basic, header_of, serve
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import keyed, with_token
from tests.server.http.v1.test_v1_history import pages
from tests.server.http.v1.test_v1_jobs import _often, ask, ended, in_one_loop
from tests.server.installations import ADMINISTRATOR, NAMES, OPERATOR

__all__ = ["_often"]  # a fixture: whoever listens is told often

BOB = "300:54321/bob"
GROUP = "200:0.NA/12345"
ALL = NAMES + 3
"""Names under 12345, without the prefix handle."""


def owners(server: Harness, name: str) -> list[str]:
    with server.registry.snapshot() as snapshot:
        values = snapshot.stored(Handle.parse(name)).values
    return [str(Admin.from_bytes(value.data).administrator) for value in values if value.type == "HS_ADMIN"]


def preview(server: Harness, where: str, to: str = BOB, **more: Any) -> list[Any]:
    query = urlencode({"where": where, "to": to, "limit": 20, **more})
    return pages(server, f"/transfers/preview?{query}", "handles", headers=basic())


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch, server: Harness) -> Harness:
    """A server that changes a few names at a time, so that some dozens are many."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "FIRST_STEPS", 2)
    return server


def test_transfer_is_previewed(server: Harness) -> None:
    server.registry.do(Transfer(Handle.parse("12345/n0"), ValueRef.parse(BOB)), OPERATOR, "cli")
    server.registry.do(Transfer(Handle.parse("12345/n1"), ValueRef(300, "54321/carol")), OPERATOR, "cli")
    plan = {each["handle"]: each for each in preview(server, "12345")}
    assert len(plan) == ALL - 1 + 1, "one has that owner already, and the prefix handle goes too"
    assert plan["12345/n2"] == {
        "handle": "12345/n2",
        "administrators": [GROUP],
        "allowed": True,
        "reason": None,
    }
    other = plan["12345/n1"]
    assert (other["administrators"], other["allowed"]) == (["300:54321/carol"], False)
    assert "cannot transfer 12345/n1: requires permission MODIFY_ADMIN" in other["reason"]
    assert list(plan)[-1] == "0.NA/12345", "in the order in which they are handed over"
    assert [each["handle"] for each in preview(server, "12345/n4*")] == [
        "12345/n4",
        *[f"12345/n4{number}" for number in range(10)],
    ]
    assert owners(server, "12345/n2") == [GROUP], "nothing is done"


def test_small_transfer_completes_before_the_response(server: Harness) -> None:
    order = {"where": "12345/n4*", "to": BOB, "note": "sold"}
    answer = send(server, "POST", "/transfers", order, headers=basic())
    told = got(answer, 202)
    assert (told["kind"], told["state"], told["done"], told["total"], told["note"]) == (
        "transfer",
        "done",
        11,
        11,
        "sold",
    )
    assert told["parameters"] == {"where": "12345/n4", "to": BOB, "derived": False}
    where = f"/jobs/{told['job']}"
    assert header_of(answer, "Location") == f"https://hdl.example.org/api/v1{where}"
    assert owners(server, "12345/n44") == [BOB]
    assert owners(server, "12345/n5") == [GROUP]
    again = got(send(server, "POST", "/transfers", order, headers=basic()), 202)
    assert (again["state"], again["done"], again["total"]) == ("done", 0, None), "there is nothing left to hand over"
    verify(server.registry.ledger.log)


def test_namespace_transfer_runs_in_the_background_and_is_undone(slowly: Harness) -> None:
    server = slowly

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/transfers", {"where": "12345", "to": BOB}), 202)
        assert (told["state"], told["total"]) == ("running", ALL + 1)
        assert 0 < told["done"] < told["total"]
        left = await ended(server, told["job"])
        assert (left["state"], left["done"]) == ("done", ALL + 1)

    in_one_loop(scenario)
    for name in ("12345/n0", "12345/n49", "12345/private", "0.NA/12345"):
        assert owners(server, name) == [BOB], name
    last = got(send(server, "GET", "/jobs/last", headers=basic()))["job"]
    refused = problem(send(server, "POST", f"/jobs/{last}/undo", {}, headers=basic()), "permission-denied")
    assert "cannot undo" in refused["detail"], "what is given away is not taken back"
    undo = undoing.start(server.registry, last, OPERATOR, "cli")
    assert [step.done for step in run_steps(server.registry, undo, OPERATOR)][-1] == ALL + 1
    assert got(send(server, "GET", f"/jobs/{last}", headers=basic()))["state"] == "undone"
    assert owners(server, "12345/n0") == [GROUP]


def test_transfer_is_undone_by_the_new_owner(server: Harness) -> None:
    told = got(send(server, "POST", "/transfers", {"where": "12345/n4*", "to": ADMINISTRATOR}, headers=basic()), 202)
    assert (told["state"], owners(server, "12345/n44")) == ("done", [ADMINISTRATOR])
    path = f"/jobs/{told['job']}/undo"
    assert got(send(server, "GET", path, headers=basic()))["total"] == 11
    undone = got(send(server, "POST", path, {}, headers=basic()), 202)
    assert (undone["state"], undone["done"], owners(server, "12345/n44")) == ("done", 11, [GROUP])


def test_interrupted_job_is_resumed(slowly: Harness) -> None:
    server = slowly
    begun: dict[str, Any] = {}

    async def interrupted() -> None:
        begun.update(got(await ask(server, "POST", "/transfers", {"where": "12345", "to": BOB}), 202))
        server.context.api.stop()

    in_one_loop(interrupted)
    other = serve(server.registry)
    where = f"/jobs/{begun['job']}"
    left = got(send(other, "GET", where, headers=basic()))
    assert (left["state"], left["done"] < ALL) == ("unfinished", True)

    async def resumed() -> None:
        got(await ask(other, "POST", f"{where}/resume"), 202)
        assert (await ended(other, begun["job"]))["state"] == "done"

    in_one_loop(resumed)
    assert got(send(other, "GET", where, headers=basic()))["done"] == ALL + 1, "each was handed over once"


def test_transfer_stops_at_a_handle_without_permission(slowly: Harness) -> None:
    server = slowly
    server.registry.do(Transfer(Handle.parse("12345/n9"), ValueRef(300, "54321/carol")), OPERATOR, "cli")

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/transfers", {"where": "12345", "to": BOB}), 202)
        left = await ended(server, told["job"])
        assert (left["state"], 0 < left["done"] < ALL) == ("unfinished", True)
        assert "cannot transfer 12345/n9" in left["problem"]["detail"]

    in_one_loop(scenario)
    assert owners(server, "0.NA/12345") != [BOB]


# Rights and forms


def test_transfer_needs_token_scopes(server: Harness) -> None:
    whole, some = {"where": "12345", "to": BOB}, {"where": "12345/n4*", "to": BOB}
    for words, order, lacks in (
        (("find", "update", "namespaces"), some, "transfer"),
        (("find", "update", "namespaces"), whole, "transfer"),
        (("transfer", "find"), whole, "namespaces"),
    ):
        token = with_token(server, *words)
        refused = problem(send(server, "POST", "/transfers", order, headers=token), "permission-denied")
        assert f"scopes do not include {lacks}" in refused["detail"]
        asked = f"/transfers/preview?{urlencode(order)}"
        assert problem(send(server, "GET", asked, headers=token), "permission-denied")["detail"] == refused["detail"]
    assert got(send(server, "GET", "/jobs", headers=basic()))["jobs"] == []
    token = with_token(server, "transfer")
    assert got(send(server, "POST", "/transfers", some, headers=token), 202)["done"] == 11
    elsewhere = with_token(server, "transfer", "namespaces", where=None)
    assert got(send(server, "POST", "/transfers", whole, headers=elsewhere), 202)["done"] == ALL - 11 + 1


def test_refused_job_leaves_nothing(server: Harness) -> None:
    order = {"where": "12345", "to": BOB}
    problem(send(server, "POST", "/transfers", order), "authentication-required")
    problem(send(server, "GET", f"/transfers/preview?{urlencode(order)}"), "authentication-required")
    problem(send(server, "POST", "/transfers", order, headers=basic(), secure=False), "https-required")
    stranger = (Value(300, "HS_SECKEY", b"secret"),)
    server.registry.do(Create(Handle.parse("12345/stranger"), stranger), OPERATOR, "cli")
    known = basic("300:12345/stranger", "secret")
    assert (
        "LIST_HANDLES"
        in problem(send(server, "POST", "/transfers", order, headers=known), "permission-denied")["detail"]
    )
    crossed = {**basic(), "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert send(server, "POST", "/transfers", order, headers=crossed).status == 403
    assert got(send(server, "GET", "/jobs", headers=basic()))["jobs"] == []


@pytest.mark.parametrize(
    ("order", "slug"),
    [
        ({"where": "12345"}, "invalid-request"),
        ({"where": "12345", "to": "bob"}, "invalid-request"),
        ({"where": "12345", "to": "300:"}, "invalid-request"),
        ({"where": "12345/n0", "to": BOB}, "invalid-request"),
        ({"where": "", "to": BOB}, "invalid-request"),
        ({"where": "x" * 5_000, "to": BOB}, "invalid-request"),
        ({"where": "54321", "to": BOB}, "prefix-not-hosted"),
        ({"where": "0.NA", "to": BOB}, "invalid-name"),
        ({"where": "*", "to": BOB}, "invalid-name"),
        ({"where": "12345/n*", "to": BOB, "derived": True}, "invalid-name"),
        ({"where": "12345", "to": "300:12345/nobody"}, "invalid-value"),
        ({"where": "12345", "to": BOB, "dry_run": True}, "invalid-request"),
    ],
)
def test_invalid_transfers_are_refused(shared: Harness, order: dict[str, Any], slug: str) -> None:
    problem(send(shared, "POST", "/transfers", order, headers=basic()), slug)
    if order.get("derived") is not True:  # a switch is written otherwise there
        problem(send(shared, "GET", f"/transfers/preview?{urlencode(order)}", headers=basic()), slug)
    assert got(send(shared, "GET", "/jobs", headers=basic()))["jobs"] == []


def test_single_handle_is_refused(shared: Harness) -> None:
    order = {"where": "12345/n0", "to": BOB}
    refused = problem(send(shared, "POST", "/transfers", order, headers=basic()), "invalid-request")
    assert (refused["where"], "/handles/{handle}/transfer" in refused["advice"]) == ("$.where", True)


def test_derived_prefixes_are_included(server: Harness) -> None:
    made = send(server, "POST", "/namespaces", {"prefix": "12345.7", "profile": "free"}, headers=basic())
    got(made, 201)
    server.registry.do(Create(Handle.parse("12345.7/x"), (Value.text(1, "URL", "https://x/"),)), OPERATOR, "cli")
    own = Value(100, "HS_ADMIN", Admin(ValueRef.parse(GROUP)).to_bytes())
    for name in ("0.NA/12345.7", "12345.7/x"):
        server.registry.do(Add(Handle.parse(name), (own,), overwrite=True), OPERATOR, "cli")
    assert [each["handle"] for each in preview(server, "12345", derived="true")][-3:] == [
        "12345.7/x",
        "0.NA/12345.7",
        "0.NA/12345",
    ]
    told = got(send(server, "POST", "/transfers", {"where": "12345", "to": BOB, "derived": True}, headers=basic()), 202)
    assert (told["state"], told["done"]) == ("done", ALL + 3)
    assert owners(server, "12345.7/x") == owners(server, "0.NA/12345.7") == [BOB]


def test_idempotency_key_starts_one_transfer(server: Harness) -> None:
    order = {"where": "12345/n4*", "to": BOB}
    first = send(server, "POST", "/transfers", order, headers=keyed("k1"))
    again = send(server, "POST", "/transfers", order, headers=keyed("k1"))
    assert got(first, 202) == got(again, 202)
    assert header_of(again, "Idempotency-Replayed") == "true"
    problem(send(server, "POST", "/transfers", {**order, "note": "x"}, headers=keyed("k1")), "idempotency-key-reused")
    assert len(got(send(server, "GET", "/jobs", headers=basic()))["jobs"]) == 1

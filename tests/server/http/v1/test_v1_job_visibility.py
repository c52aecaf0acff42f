"""Which users see, resume and undo jobs."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.records import Add, Create, Remove
from perseid.registry.jobs import runner
from perseid.registry.jobs import undo as undoing
from perseid.server.http.v1 import job_events, job_requests
from tests.server.http.contexts import Harness, basic, header_of, serve
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import with_token
from tests.server.http.v1.test_v1_jobs import ORDER, _often, ask, ended, events_of, fill, in_one_loop, leads
from tests.server.installations import OPERATOR

__all__ = ["_often"]  # a fixture: whoever listens is told often

BEA = "300:12345/bea"
BEAS = basic(BEA, "beas secret")
PREFIX_HANDLE = Handle.parse("0.NA/12345")


def invite_bea(server: Harness) -> None:
    """Let her administer the namespace too; she does not run the server."""
    key = Value(300, "HS_SECKEY", b"beas secret", permissions=Permission(0x0C))
    server.registry.do(Create(Handle.parse("12345/bea"), (key,)), OPERATOR, "cli")
    member = Value(110, "HS_ADMIN", Admin(ValueRef.parse(BEA)).to_bytes())
    server.registry.do(Add(PREFIX_HANDLE, (member,)), OPERATOR, "cli")


def let_bea_change(server: Harness, *names: str) -> None:
    for name in names:
        own = Value(110, "HS_ADMIN", Admin(ValueRef.parse(BEA), AdminPermission.MODIFY_VALUE).to_bytes())
        server.registry.do(Add(Handle.parse(name), (own,)), OPERATOR, "cli")


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch, server: Harness) -> Harness:
    """A server that changes a few names at a time, of which two administer the names."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "FIRST_STEPS", 2)
    invite_bea(server)
    return server


def beas_token(server: Harness) -> dict[str, str]:
    made = send(
        server, "POST", "/tokens", {"scopes": ["find", "update"], "namespaces": ["12345"], "label": "x"}, headers=BEAS
    )
    return {"Authorization": f"Bearer {got(made, 201)['token']}"}


def test_issuer_sees_and_undoes_jobs_of_a_token(server: Harness) -> None:
    invite_bea(server)
    names = fill(server, 5)
    let_bea_change(server, *names)
    token, other = beas_token(server), beas_token(server)
    told = got(send(server, "POST", "/rewrites", ORDER, headers=token), 202)
    assert (told["state"], told["done"]) == ("done", 5)
    where = f"/jobs/{told['job']}"
    assert got(send(server, "GET", where, headers=BEAS)) == told
    assert got(send(server, "GET", "/jobs/last", headers=BEAS)) == told
    assert got(send(server, "GET", "/jobs", headers=BEAS))["jobs"] == [told]
    for path in (where, "/jobs/last", f"{where}/events", f"{where}/undo"):
        problem(send(server, "GET", path, headers=other), "not-found")
    undone = got(send(server, "POST", f"{where}/undo", {}, headers=BEAS), 202)
    assert (undone["done"], undone["actor"]) == (5, BEA)
    assert got(send(server, "GET", where, headers=token))["undone_by"] == undone["job"]
    problem(send(server, "GET", f"/jobs/{undone['job']}", headers=token), "not-found")


def test_undo_of_another_user_is_not_resumed(server: Harness) -> None:
    """Missing permission is reported before any change."""
    invite_bea(server)
    names = fill(server, 5)
    let_bea_change(server, *names)
    where = f"/jobs/{got(send(server, 'POST', '/rewrites', ORDER, headers=BEAS), 202)['job']}"
    undo = undoing.start(server.registry, where.rpartition("/")[2], OPERATOR, "cli")
    refused = problem(send(server, "POST", f"{where}/undo", {}, headers=BEAS), "state-conflict")
    assert f"is being undone by job {undo.id}, which another user started" in refused["detail"]
    assert leads(server, names[0]) == [f"https://new.example/x/{names[0]}"]
    told = got(send(server, "POST", f"/jobs/{undo.id}/resume", headers=basic()), 202)
    assert (told["state"], told["done"]) == ("done", 5)


def test_conflict_details_need_access_to_the_history(server: Harness) -> None:
    invite_bea(server)
    names = fill(server, 2)
    let_bea_change(server, *names)
    where = f"/jobs/{got(send(server, 'POST', '/rewrites', ORDER, headers=BEAS), 202)['job']}"
    server.registry.do(Remove(Handle.parse(names[1]), (110,)), OPERATOR, "cli")
    plan = got(send(server, "GET", f"{where}/undo", headers=BEAS))
    assert plan["conflicts"] == [
        {
            "handle": names[1],
            "seq": None,
            "reason": "details withheld: you cannot read its history",
            "changed_later": False,
        }
    ]
    (known,) = got(send(server, "GET", f"{where}/undo", headers=basic()))["conflicts"]
    assert (known["reason"], known["changed_later"]) == (f"changed later, in entry {known['seq']}", True)
    refused = problem(send(server, "POST", f"{where}/undo", {}, headers=BEAS), "undo-conflict")
    assert str(known["seq"]) not in str(refused).replace(where.rpartition("/")[2], "")


def test_failure_reason_is_private(slowly: Harness) -> None:
    """Ann starts a job, Bea resumes it up to a record that she cannot change."""
    server = slowly
    names = fill(server, 60)
    let_bea_change(server, *names[:40])
    begun: dict[str, Any] = {}

    async def interrupted() -> None:
        begun.update(got(await ask(server, "POST", "/rewrites", ORDER, **token), 202))

    token = with_token(server, "find", "update")
    in_one_loop(interrupted)
    server = serve(server.registry)  # the next start
    where = f"/jobs/{begun['job']}"
    # ... because she runs the server now, which gives her no right to the names.
    rules = server.registry.rules
    both = (*rules.administration.server_admins, ValueRef.parse(BEA))
    server.registry.rules = replace(rules, administration=replace(rules.administration, server_admins=both))

    async def resumed() -> None:
        got(await ask(server, "POST", f"{where}/resume", **BEAS), 202)
        hers = await ended(server, begun["job"], **BEAS)
        assert (hers["state"], hers["done"], hers["problem"]["status"]) == ("unfinished", 40, 403)
        assert f"{BEA} cannot modify values" in hers["problem"]["detail"]
        for others in (token, basic()):
            seen = await ended(server, begun["job"], **others)
            assert seen["problem"] == {
                "type": "https://hdl.example.org/docs/problems#job-failed",
                "title": "Job failed",
                "status": 424,
                "detail": "The user who ran the job could not complete it",
            }
            assert {**seen, "problem": None} == {**hers, "problem": None}
        listed = got(await ask(server, "GET", "/jobs", **token))["jobs"]
        assert "bea" not in str(listed)

    in_one_loop(resumed)
    assert leads(server, names[39]) == [f"https://new.example/x/{names[39]}"]


def test_resumed_job_records_its_interface(slowly: Harness) -> None:
    server = slowly
    names = fill(server, 20)
    unit = runner.start_job(server.registry, "rewrite", {**ORDER, "prefix": None}, OPERATOR, "cli")

    async def scenario() -> None:
        got(await ask(server, "POST", f"/jobs/{unit.id}/resume"), 202)
        assert (await ended(server, unit.id))["state"] == "done"

    in_one_loop(scenario)
    with server.registry.snapshot() as snapshot:
        entry = snapshot.stored(Handle.parse(names[-1])).entry
    assert entry is not None
    assert entry.origin == ("http", "300:0.NA/12345")


def test_running_job_uses_new_settings(slowly: Harness) -> None:
    """A user who is no longer server administrator stops at the next step."""
    server = slowly
    fill(server, 80)
    rules = server.registry.rules
    full = replace(rules.administration, server_admin_full_access=True, server_admins=(ValueRef.parse(BEA),))
    server.registry.rules = replace(rules, administration=full)
    server.registry.do(Remove(PREFIX_HANDLE, (110,)), OPERATOR, "cli")

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/transfers", {"where": "12345", "to": BEA}, **BEAS), 202)
        assert told["state"] == "running"
        server.registry.rules = rules  # as when they are read again
        left = await ended(server, told["job"], **BEAS)
        assert (left["state"], left["done"] < 80) == ("unfinished", True)
        assert "LIST_HANDLES" in left["problem"]["detail"]

    in_one_loop(scenario)


# Listening


def test_concurrent_listeners_are_counted(slowly: Harness) -> None:
    server = slowly
    fill(server, 80)

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        path = f"/jobs/{told['job']}/events"
        at_once = await asyncio.gather(
            *[ask(server, "GET", path) for _ in range(3 * job_events.MAX_LISTENERS_PER_SOURCE)]
        )
        listening = [each for each in at_once if each.stream is not None]
        assert len(listening) == job_events.MAX_LISTENERS_PER_SOURCE
        for each in at_once:
            if each.stream is None:
                assert (problem(each, "too-many-requests")["status"], header_of(each, "Retry-After")) == (429, "10")
        await asyncio.gather(*[events_of(each.stream) for each in listening])
        assert not server.context.api.listeners.all

    in_one_loop(scenario)


def test_failed_listeners_do_not_count(slowly: Harness) -> None:
    """They are not there, they ask for something else, or they have gone before anything was sent."""
    server = slowly
    fill(server, 80)
    all_of_them = server.context.api.listeners.all

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        path = f"/jobs/{told['job']}/events"
        for method, at in (("GET", "/jobs/none/events"), ("HEAD", path)):
            await ask(server, method, at)
            assert not all_of_them
        closed = (await ask(server, "GET", path)).stream
        assert len(all_of_them) == 1
        await closed.aclose()  # type: ignore[union-attr]
        assert not all_of_them

    in_one_loop(scenario)

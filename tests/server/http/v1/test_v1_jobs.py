"""Jobs: preview, start, watch, resume, undo."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, aclosing
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.access.tokens import RevokeToken
from perseid.registry.commands.records import Add, Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.jobs import runner
from perseid.registry.results import Refused
from perseid.schema.common import ResponseBody
from perseid.server.http.connection.responses import encode_head
from perseid.server.http.messages import Client, Request, Response
from perseid.server.http.v1 import job_events, job_requests
from perseid.server.http.v1.job_events import JobEvent, format_event
from perseid.server.native.decisions import AuthorizedRegistry
from perseid.server.state.jobs import MAX_RUNNING, LimitReached
from perseid.wire.codes import ResponseCode
from tests.server.http.contexts import STRANGER, Harness, basic, header_of, serve
from tests.server.http.v1.apis import JSON, got, problem, send
from tests.server.http.v1.callers import keyed, with_token
from tests.server.http.v1.test_v1_history import pages
from tests.server.installations import ADMINISTRATOR, OPERATOR
from tests.server.shared_state import make_state

ORDER = {"url": "http://old.example/*", "to": "https://new.example/x/*"}
PREVIEW = "/rewrites/preview?url=http://old.example/*&to=https://new.example/x/*"


def fill(server: Harness, count: int = 10) -> list[str]:
    names = [f"12345/m{number:03}" for number in range(count)]
    for name in names:
        put(server, name, f"http://old.example/{name}")
    return names


def put(server: Harness, name: str, url: str) -> int:
    value = (Value.text(1, "URL", url),)
    handle = Handle.parse(name)
    with server.registry.snapshot() as snapshot:
        exists = snapshot.stored(handle).exists
    operation = Add(handle, value, overwrite=True) if exists else Create(handle, value)
    return server.registry.do(operation, OPERATOR, "cli").seq


def leads(server: Harness, *names: str) -> list[str]:
    with server.registry.snapshot() as snapshot:
        return [snapshot.stored(Handle.parse(name)).values[0].data.decode() for name in names]


async def ask(server: Harness, method: str, path: str, plain: object = None, **headers: str) -> Response:
    """Send a request as Ann in the running event loop; a stream is returned as is."""
    said = {**basic(), **({} if plain is None else {"Content-Type": JSON}), **headers}
    pairs = [(name.lower(), value) for name, value in said.items()]
    body = b"" if plain is None else json.dumps(plain).encode()
    request = Request(method, f"/api/v1{path}".encode(), pairs, body, Client(STRANGER, secure=True))
    return await server.service.handle(request)


def in_one_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def events_of(stream: AsyncIterator[bytes] | None) -> list[tuple[str, str, Any]]:
    """Return all events of a stream."""
    assert stream is not None
    return parsed(b"".join([piece async for piece in stream]))


def parsed(data: bytes) -> list[tuple[str, str, Any]]:
    """Parse events: name, id and data."""
    found = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


async def ended(server: Harness, name: str, **headers: str) -> Any:
    """Return the last event of a job."""
    stream = await ask(server, "GET", f"/jobs/{name}/events", **headers)
    name, _, told = (await events_of(stream.stream))[-1]
    assert name == "end"
    return told


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often."""
    monkeypatch.setattr(job_events, "POLL_SECONDS", 0.01)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch, server: Harness) -> Harness:
    """A server that changes few records per step, so that some dozens are many."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "CHUNK_SIZE", 4)
    monkeypatch.setattr(job_requests, "FIRST_STEPS", 2)
    return server


# Rewrites


def test_rewrite_is_previewed(server: Harness) -> None:
    names = fill(server)
    plan = pages(server, f"{PREVIEW}&limit=3", "handles", headers=basic())
    assert [each["handle"] for each in plan] == names
    assert plan[0]["changes"] == [
        {
            "index": 1,
            "type": "URL",
            "old": {"format": "string", "value": "http://old.example/12345/m000"},
            "new": {"format": "string", "value": "https://new.example/x/12345/m000"},
        }
    ]
    assert leads(server, names[0]) == ["http://old.example/12345/m000"], "nothing is done"
    for narrowed in (f"path=/{names[4]}", f"value=http://old.example/{names[4]}"):
        plan = pages(server, f"{PREVIEW}&{narrowed}&changed_since=2020-01-01", "handles", headers=basic())
        assert [each["handle"] for each in plan] == [names[4]], "the criteria of a search narrow it"
    assert got(send(server, "GET", PREVIEW))["handles"] == []


def test_small_rewrite_completes_before_the_response(server: Harness) -> None:
    names = fill(server)
    answer = send(server, "POST", "/rewrites", {**ORDER, "note": "the host has moved"}, headers=basic())
    told = got(answer, 202)
    assert (told["state"], told["done"], told["total"], told["kind"]) == ("done", 10, 10, "rewrite")
    assert (told["actor"], told["note"], told["problem"]) == (ADMINISTRATOR, "the host has moved", None)
    where = f"/jobs/{told['job']}"
    assert header_of(answer, "Location") == f"https://hdl.example.org/api/v1{where}"
    assert leads(server, *names) == [f"https://new.example/x/{name}" for name in names]
    assert got(send(server, "GET", where, headers=basic())) == told
    assert got(send(server, "GET", "/jobs/last", headers=basic())) == told
    (version, *_) = got(send(server, "GET", "/handles/12345%2Fm000/history", headers=basic()))["versions"]
    assert (version["interface"], version["actor"]) == ("http", ADMINISTRATOR)
    assert version["note"] == f"rewrite {told['job']}: the host has moved"
    again = send(server, "POST", "/rewrites", ORDER, headers=basic())
    assert "No URL that you can see matches" in problem(again, "not-found")["detail"]
    verify(server.registry.ledger.log)


def test_log_of_a_job_has_its_entries_only(server: Harness) -> None:
    names = fill(server)
    job = got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)["job"]
    put(server, "12345/later", "http://other.example/")
    for path in (f"/log?job={job}", f"/log?job={job}&limit=3"):
        assert [each["handle"] for each in pages(server, path, "entries", headers=basic())] == names
    entries = pages(server, f"/log?job={job}", "entries", headers=basic())
    rest = pages(server, f"/log?job={job}&since={entries[6]['seq']}", "entries", headers=basic())
    assert rest == entries[7:]
    problem(send(server, "GET", "/log?job=0123456789abcdef", headers=basic()), "not-found")
    assert pages(server, f"/log?job={job}&newest=true", "entries", headers=basic()) == entries[::-1]
    problem(send(server, "GET", f"/log?job={job}"), "authentication-required")


def test_large_rewrite_runs_in_the_background(slowly: Harness) -> None:
    server = slowly
    names = fill(server, 80)

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        assert (told["state"], told["total"], told["ended_at"]) == ("running", 80, None)
        assert 0 < told["done"] < 80
        where = f"/jobs/{told['job']}"
        stream = await ask(server, "GET", f"{where}/events", **{"Last-Event-ID": "17\x7f';--"})
        assert header_of(stream, "Content-Type") == "text/event-stream"
        assert header_of(stream, "Cache-Control") == "no-store"
        heard = await events_of(stream.stream)
        assert {name for name, _, _ in heard[:-1]} <= {"progress"}
        assert heard[-1][0] == "end"
        counts = [said["done"] for _, _, said in heard]
        assert counts == sorted(counts)
        assert [int(number) for _, number, _ in heard] == counts
        assert (heard[-1][2]["state"], counts[-1]) == ("done", 80)
        assert heard[-1][2] == got(await ask(server, "GET", where))
        late = await ask(server, "GET", f"{where}/events")
        assert [name for name, _, _ in await events_of(late.stream)] == ["end"]

    in_one_loop(scenario)
    assert leads(server, *names) == [f"https://new.example/x/{name}" for name in names]


def test_interrupted_job_is_resumed(slowly: Harness) -> None:
    server = slowly
    names = fill(server, 60)
    begun: dict[str, Any] = {}

    async def interrupted() -> None:
        begun.update(got(await ask(server, "POST", "/rewrites", ORDER), 202))
        server.jobs.executor.is_stopping = True
        server.context.api.stop()
        stream = await ask(server, "GET", f"/jobs/{begun['job']}/events")
        heard = await events_of(stream.stream)
        assert "end" not in [name for name, _, _ in heard], "who watches shall come again"
        refused = problem(await ask(server, "POST", "/rewrites", ORDER), "busy")
        assert "shutting down" in refused["detail"]

    in_one_loop(interrupted)
    other = serve(server.registry)  # the next start, which knows nothing of it but what is in the ledger
    where = f"/jobs/{begun['job']}"
    left = got(send(other, "GET", where, headers=basic()))
    assert (left["state"], left["done"] < 60, left["ended_at"]) == ("unfinished", True, None)

    async def resumed() -> None:
        told = got(await ask(other, "POST", f"{where}/resume"), 202)
        again = got(await ask(other, "POST", f"{where}/resume"), 202)
        assert {told["state"], again["state"]} <= {"running", "done"}
        assert (await ended(other, begun["job"]))["state"] == "done"

    in_one_loop(resumed)
    assert leads(server, *names) == [f"https://new.example/x/{name}" for name in names]
    done = got(send(other, "GET", where, headers=basic()))
    assert done["done"] == 60, "each was moved once"
    assert (
        "already complete"
        in problem(send(other, "POST", f"{where}/resume", headers=basic()), "state-conflict")["detail"]
    )


def test_job_is_the_same_at_every_worker(slowly: Harness) -> None:
    names, state = fill(slowly, 60), make_state()
    workers = [serve(slowly.registry, state=state) for _ in range(2)]

    async def scenario() -> None:
        where = f"/jobs/{got(await ask(workers[0], 'POST', '/rewrites', ORDER), 202)['job']}"
        assert [got(await ask(each, "GET", where))["state"] for each in workers] == ["running"] * 2
        assert got(await ask(workers[1], "POST", f"{where}/resume"), 202)["state"] == "running"
        assert workers[1].jobs.executor.is_idle, "it runs once"
        assert (await ended(workers[1], where.removeprefix("/jobs/")))["done"] == 60

    in_one_loop(scenario)
    assert leads(slowly, *names) == [f"https://new.example/x/{name}" for name in names]


def test_canceled_job_keeps_its_changes_and_is_resumed(slowly: Harness) -> None:
    names = fill(slowly, 60)

    async def canceled() -> None:
        where = f"/jobs/{got(await ask(slowly, 'POST', '/rewrites', ORDER), 202)['job']}"
        stopped = got(await ask(slowly, "POST", f"{where}/cancel"))
        assert (stopped["state"], 0 < stopped["done"] < 60, stopped["ended_at"] is None) == ("canceled", True, False)
        assert stopped["parameters"] == {**ORDER, "prefix": None}
        assert "already canceled" in problem(await ask(slowly, "POST", f"{where}/cancel"), "state-conflict")["detail"]
        while slowly.context.api.jobs.is_running(stopped["job"]):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert got(await ask(slowly, "GET", where))["done"] == stopped["done"], "it stopped before its next step"
        got(await ask(slowly, "POST", f"{where}/resume"), 202)
        done = await ended(slowly, stopped["job"])
        assert (done["state"], done["done"]) == ("done", 60)
        assert "already complete" in problem(await ask(slowly, "POST", f"{where}/cancel"), "state-conflict")["detail"]

    in_one_loop(canceled)
    assert leads(slowly, *names) == [f"https://new.example/x/{name}" for name in names]


@pytest.mark.parametrize(
    ("plain", "slug", "status"),
    [
        ({"url": "http://old.example/*"}, "invalid-request", 400),
        ({**ORDER, "url": "*"}, "invalid-value", 422),
        ({**ORDER, "to": "new.example/*"}, "invalid-value", 422),
        ({**ORDER, "owner": "x"}, "invalid-name", 400),
        ({**ORDER, "owner": "12345/ann", "strict": True}, "invalid-name", 400),
        ({**ORDER, "changed_since": "soon"}, "invalid-value", 422),
        ({**ORDER, "prefix": "1/2"}, "invalid-name", 400),
        ({**ORDER, "dry_run": True}, "invalid-request", 400),
    ],
)
def test_invalid_rewrites_are_refused(shared: Harness, plain: object, slug: str, status: int) -> None:
    answer = send(shared, "POST", "/rewrites", plain, headers=basic())
    assert problem(answer, slug)["status"] == status
    assert got(send(shared, "GET", "/jobs", headers=basic()))["jobs"] == []


# Permissions


def test_refused_job_leaves_nothing(server: Harness) -> None:
    names = fill(server)
    problem(send(server, "POST", "/rewrites", ORDER), "authentication-required")
    problem(send(server, "POST", "/rewrites", ORDER, headers=basic(), secure=False), "https-required")
    finder = with_token(server, "find")
    refused = problem(send(server, "POST", "/rewrites", ORDER, headers=finder), "permission-denied")
    assert "update" in refused["detail"] + refused["advice"]
    assert problem(send(server, "POST", "/rewrites", ORDER, headers=with_token(server, "update")), "not-found")
    assert got(send(server, "GET", "/jobs", headers=basic()))["jobs"] == []
    assert leads(server, names[0]) == ["http://old.example/12345/m000"]
    both = with_token(server, "find", "update")
    told = got(send(server, "POST", "/rewrites", ORDER, headers=both), 202)
    assert told["actor"].startswith("token:")
    mine = got(send(server, "GET", "/jobs", headers=both))["jobs"]
    assert [each["job"] for each in mine] == [told["job"]]
    assert got(send(server, "GET", "/jobs", headers=finder))["jobs"] == []
    problem(send(server, "GET", f"/jobs/{told['job']}", headers=finder), "not-found")
    for path in ("", f"/{told['job']}", f"/{told['job']}/events", f"/{told['job']}/undo"):
        problem(send(server, "GET", f"/jobs{path}"), "authentication-required")


def test_cross_site_job_is_refused(server: Harness) -> None:
    fill(server)
    headers = {**basic(), "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert send(server, "POST", "/rewrites", ORDER, headers=headers).status == 403
    assert got(send(server, "GET", "/jobs", headers=basic()))["jobs"] == []


def test_job_stops_at_a_record_without_permission(slowly: Harness) -> None:
    server = slowly
    names = fill(server, 60)
    stubborn = Value(1, "URL", b"http://old.example/z", permissions=Permission(0x0A))  # may be read only
    server.registry.do(Create(Handle.parse("12345/z"), (stubborn,)), OPERATOR, "cli")

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        left = await ended(server, told["job"])
        assert (left["done"], left["problem"]["status"]) == (60, 403)
        assert "read-only" in left["problem"]["detail"]
        stream = await ask(server, "GET", f"/jobs/{told['job']}/events")
        ((name, _, said),) = await events_of(stream.stream)
        assert (name, said["problem"]) == ("end", left["problem"])

    in_one_loop(scenario)
    assert leads(server, names[-1]) == [f"https://new.example/x/{names[-1]}"]


def test_job_stops_when_the_token_is_revoked(slowly: Harness) -> None:
    server = slowly
    fill(server, 80)
    token = with_token(server, "find", "update")
    revoke = RevokeToken(token["Authorization"].removeprefix("Bearer perseid_")[:8])

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER, **token), 202)
        stream = await ask(server, "GET", f"/jobs/{told['job']}/events", **token)
        assert stream.stream is not None
        async with aclosing(stream.stream) as pieces:  # type: ignore[type-var]
            await anext(pieces)
            server.registry.do(revoke, OPERATOR, "cli")
            assert parsed(b"".join([piece async for piece in pieces])) == []
        left = await ended(server, told["job"])
        assert left["done"] < 80
        assert left["problem"]["status"] in (401, 403)

    in_one_loop(scenario)


def test_job_stops_when_the_key_changes(slowly: Harness) -> None:
    server = slowly
    fill(server, 80)

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        other = Value(300, "HS_SECKEY", b"another secret", permissions=Permission(0x0C))
        server.registry.do(Add(Handle.parse("0.NA/12345"), (other,), overwrite=True), OPERATOR, "cli")
        new = basic(secret="another secret")
        left = await ended(server, told["job"], **new)
        assert left["done"] < 80
        assert "was changed" in left["problem"]["detail"]

    in_one_loop(scenario)


# Undoing


def test_undo_reverts_a_job_and_can_be_undone(server: Harness) -> None:
    names = fill(server)
    told = got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)
    where = f"/jobs/{told['job']}"
    plan = got(send(server, "GET", f"{where}/undo", headers=basic()))
    sample = plan.pop("sample")
    assert plan == {
        "job": told["job"],
        "total": 10,
        "possible": True,
        "conflict_count": 0,
        "conflicts": [],
        "tombstones": 0,
        "reserved": 0,
        "problem": None,
    }
    assert [(each["handle"], each["state"], each["new_state"]) for each in sample] == [
        (name, "published", "published") for name in reversed(names)
    ]
    assert sample[0]["changes"] == [
        {
            "index": 1,
            "type": "URL",
            "old": {"format": "string", "value": f"https://new.example/x/{names[-1]}"},
            "new": {"format": "string", "value": f"http://old.example/{names[-1]}"},
        }
    ]
    undone = got(send(server, "POST", f"{where}/undo", {"note": "a mistake"}, headers=basic()), 202)
    assert (undone["kind"], undone["state"], undone["done"], undone["note"]) == ("undo", "done", 10, "a mistake")
    assert leads(server, *names) == [f"http://old.example/{name}" for name in names]
    before = got(send(server, "GET", where, headers=basic()))
    assert (before["state"], before["undone_by"]) == ("undone", undone["job"])
    refused = problem(send(server, "POST", f"{where}/undo", {}, headers=basic()), "state-conflict")
    assert "was undone by" in refused["detail"]
    problem(send(server, "GET", f"{where}/undo", headers=basic()), "state-conflict")
    got(send(server, "POST", "/jobs/last/undo", {}, headers=basic()), 202)
    assert leads(server, names[3]) == [f"https://new.example/x/{names[3]}"]
    verify(server.registry.ledger.log)


def test_later_changes_are_undo_conflicts(server: Harness) -> None:
    names = fill(server, 30)
    told = got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)
    later = [put(server, name, "https://third.example/") for name in names[:25]]
    path = f"/jobs/{told['job']}/undo"
    plan = got(send(server, "GET", path, headers=basic()))
    assert (plan["possible"], plan["total"], plan["conflict_count"]) == (False, 30, 25)
    assert sorted((each["handle"], each["seq"]) for each in plan["conflicts"]) == sorted(
        zip(names[:25], later, strict=True)
    )
    with server.registry.ledger.open_reader() as reader:
        size = reader.size
    refused = problem(send(server, "POST", path, {}, headers=basic()), "undo-conflict")
    assert (refused["status"], "25 records have conflicting changes" in refused["detail"]) == (409, True)
    assert "changed later, in entry" in refused["detail"]
    assert "and 5 more" in refused["detail"]
    with server.registry.ledger.open_reader() as reader:
        assert reader.size == size, "nothing is undone then"


def test_running_job_can_be_undone(slowly: Harness) -> None:
    server = slowly
    names = fill(server, 80)

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        undo = got(await ask(server, "POST", f"/jobs/{told['job']}/undo", {}), 202)
        again = got(await ask(server, "POST", f"/jobs/{told['job']}/undo", {}), 202)
        assert again["job"] == undo["job"], "there is one undo of it"
        assert (await ended(server, undo["job"]))["state"] == "done"
        meant = got(await ask(server, "GET", f"/jobs/{told['job']}"))
        assert (meant["state"], meant["problem"]) == ("undone", None)

    in_one_loop(scenario)
    assert leads(server, *names) == [f"http://old.example/{name}" for name in names]


# Conventions


def test_idempotency_key_starts_one_job(server: Harness) -> None:
    fill(server)
    first = send(server, "POST", "/rewrites", ORDER, headers=keyed("k1"))
    again = send(server, "POST", "/rewrites", ORDER, headers=keyed("k1"))
    assert got(first, 202) == got(again, 202)
    assert header_of(again, "Idempotency-Replayed") == "true"
    problem(send(server, "POST", "/rewrites", {**ORDER, "note": "x"}, headers=keyed("k1")), "idempotency-key-reused")
    assert len(got(send(server, "GET", "/jobs", headers=basic()))["jobs"]) == 1


def test_jobs_are_listed_latest_first(server: Harness) -> None:
    fill(server, 3)
    names = []
    for number in range(5):
        order = {
            "url": f"http://{'old' if not number else f'h{number - 1}'}.example/*",
            "to": f"http://h{number}.example/*",
        }
        names.append(got(send(server, "POST", "/rewrites", order, headers=basic()), 202)["job"])
    listed = pages(server, "/jobs?limit=2", "jobs", headers=basic())
    assert [each["job"] for each in listed] == names[::-1]
    assert [each["job"] for each in pages(server, "/jobs", "jobs", headers=basic())] == names[::-1]


def test_unknown_job_is_not_found(shared: Harness) -> None:
    for name in ("last", "0123456789abcdef", "%00x", "..%2F", "x" * 300):
        for method, path in (
            ("GET", ""),
            ("GET", "/events"),
            ("GET", "/undo"),
            ("POST", "/resume"),
            ("POST", "/cancel"),
        ):
            answer = send(shared, method, f"/jobs/{name}{path}", headers=basic())
            assert answer.status in (400, 404), answer


def test_number_of_running_jobs_is_limited(server: Harness) -> None:
    running = server.jobs.running
    fill(server)
    with ExitStack() as others:
        for number in range(MAX_RUNNING):
            others.enter_context(running.reserve(LocalIdentity(f"other {number}")))
        answer = send(server, "POST", "/rewrites", ORDER, headers=basic())
        assert (problem(answer, "busy")["status"], header_of(answer, "Retry-After")) == (503, "10")
    got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)


def test_job_without_room_in_the_shared_state_is_not_lost(slowly: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    server, running = slowly, slowly.jobs.running
    fill(server, 40)
    with monkeypatch.context() as full:
        full.setattr(running.slots, "renew", lambda *_, **_fields: False)
        job = got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)
    assert (job["done"], job["problem"]["status"]) == (8, 503)
    assert f"POST /api/v1/jobs/{job['job']}/resume" in job["problem"]["advice"]
    with monkeypatch.context() as full:
        full.setattr(running, "claim", Mock(side_effect=LimitReached("The server is busy")))
        for path, order in (("/rewrites", ORDER), (f"/jobs/{job['job']}/resume", None)):
            answer = send(server, "POST", path, order, headers=basic())
            assert (problem(answer, "busy")["status"], header_of(answer, "Retry-After")) == (503, "10")
    assert [each["job"] for each in got(send(server, "GET", "/jobs", headers=basic()))["jobs"]] == [job["job"]]


def test_number_of_listeners_is_limited(slowly: Harness) -> None:
    server = slowly
    fill(server, 80)

    async def scenario() -> None:
        told = got(await ask(server, "POST", "/rewrites", ORDER), 202)
        path = f"/jobs/{told['job']}/events"
        head = await ask(server, "HEAD", path)
        assert head.status == 200
        assert [name for name, _, _ in await events_of(head.stream)] == []
        assert not server.context.api.listeners.all, "whoever wants to know what there is does not listen"
        answers = [await ask(server, "GET", path) for _ in range(job_events.MAX_LISTENERS_PER_SOURCE)]
        heads = [encode_head(each, version="1.1", keep=True, seconds=0).decode() for each in (head, *answers)]
        alike = {re.sub("(?m)^RateLimit.*$", "", each) for each in heads}
        assert len(alike) == 1, "what is told of HEAD is what GET begins with"
        streams = [each.stream for each in answers]
        for each in streams:
            assert each is not None
            await anext(each)
        answer = await ask(server, "GET", path)
        assert (problem(answer, "too-many-requests")["status"], header_of(answer, "Retry-After")) == (429, "10")
        for each in streams[1:]:
            await each.aclose()  # type: ignore[union-attr]
        assert [name for name, _, _ in await events_of(streams[0])][-1] == "end"
        assert (await ask(server, "GET", path)).status == 200

    in_one_loop(scenario)
    assert not server.context.api.listeners.all


def test_listening_to_an_idle_job_ends(slowly: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    server = slowly
    fill(server, 80)
    monkeypatch.setattr(job_events, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(job_events, "HEARTBEAT_SECONDS", 0.01)
    told = got(send(server, "POST", "/rewrites", ORDER, headers=basic()), 202)
    other = serve(server.registry)

    async def scenario() -> None:
        stream = (await ask(other, "GET", f"/jobs/{told['job']}/events")).stream
        assert stream is not None
        octets = b"".join([piece async for piece in stream])
        assert [(name, said["state"]) for name, _, said in parsed(octets)] == [
            ("progress", "unfinished"),
            ("end", "unfinished"),
        ]
        assert octets.startswith(b"retry: ")
        assert octets.count(b"\n:\n") > 3, "lines go out in between"

    in_one_loop(scenario)


class Anything(ResponseBody, frozen=True):
    text: str


@given(st.text(), st.integers(0))
def test_event_round_trip(text: str, done: int) -> None:
    octets = format_event("progress", JobEvent(Anything(text), done, ended=False, is_running=True))
    assert parsed(octets) == [("progress", str(done), {"text": text})]
    assert octets.count(b"\n\n") == 1


def test_credentials_are_checked_however_a_command_is_executed(server: Harness) -> None:
    class ChangedKey:
        def check(self, _snapshot: object, _now: int) -> None:
            raise Refused(ResponseCode.AUTHENTICATION_FAILED, "The key has changed")

    registry = AuthorizedRegistry(server.registry, OPERATOR, cast("Any", ChangedKey()))
    command = Create(Handle.parse("12345/guarded"), (Value.text(1, "URL", "https://example.org"),))
    with pytest.raises(Refused, match="The key has changed"):
        registry.do(command, OPERATOR, "cli")
    with pytest.raises(Refused, match="The key has changed"):
        asyncio.run(registry.execute(command, OPERATOR, "cli"))

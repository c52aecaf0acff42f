"""The client of the HTTP API, against a server in the same process."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import perseid
from perseid.client import api
from perseid.client.api import AsyncClient, Client, Operations, make_options
from perseid.client.api_exchange import EventParser, InsecureConnection, Origin
from perseid.client.api_operations import ListOperation, Operation
from perseid.client.errors import ClientError, NotFound, ProtocolError, Refused, Unreachable
from perseid.records.encoding import to_base64
from perseid.schema.common import HandleState
from perseid.schema.exports import ExportPart
from perseid.schema.jobs import JobState
from perseid.schema.queries import ImageFormat, Selectors
from perseid.schema.records import ToDelete, ValueInput
from perseid.server.http.v1.routes import SECTIONS
from tests.client.in_process import URL, InProcess
from tests.server.http.contexts import Harness, harness
from tests.server.http.v1.callers import with_token
from tests.server.installations import ADMINISTRATOR, SECRET
from tests.wire.key_material import SERVER_KEY


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        yield made


@pytest.fixture
def client(server: Harness) -> Client:
    return Client(make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET}), InProcess(server))


class Script(httpx.BaseTransport):
    """Gives prepared responses; an exception is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.sent: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr("perseid.client.api.time.sleep", seconds.append)
    return seconds


def scripted(*answers: httpx.Response | Exception, **options: Any) -> tuple[Client, Script]:
    script = Script(*answers)
    return Client(make_options(URL, {"token": "perseid_secret", **options}), script), script  # type: ignore[typeddict-item]


def problem(slug: str, status: int, **headers: str) -> httpx.Response:
    body = {"type": f"{URL}/docs/problems#{slug}", "title": "t", "status": status, "detail": "d", "advice": "a"}
    return httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json", **headers})


CREATED = {"handle": "12345/x", "seq": 7}


def created() -> httpx.Response:
    return httpx.Response(201, json=CREATED)


# Operations


def test_client_has_every_operation_of_the_server() -> None:
    routes = {(route.method, route.path) for section in SECTIONS for route in section.routes}
    described = [getattr(Operations, name) for name in dir(Operations) if not name.startswith("_")]
    operations = [each for each in described if isinstance(each, Operation | ListOperation)]
    assert all(each.__doc__ for each in operations)
    ours = {(each.method, each.path) for each in operations} | {("GET", "/jobs/{job}/events")}  # Client.watch
    assert ours == routes
    assert len(operations) == len(routes) - 1, "two operations for a route"


def test_operations_have_the_types_of_the_routes() -> None:
    routes = {(route.method, route.path): route for section in SECTIONS for route in section.routes}
    for name in dir(Operations):
        each = getattr(Operations, name)
        if isinstance(each, Operation | ListOperation) and each.result not in (bytes, ExportPart):
            route = routes[each.method, each.path]
            assert each.result is route.response, name
            assert (each.repeat.value == "with_key") == route.creates, name
        if isinstance(each, ListOperation):
            assert each.items in each.result.__struct_fields__, name


def test_records_are_created_changed_and_deleted(client: Client) -> None:
    made = client.create("12345/api?1", {"URL": "https://example.org/1"}, note="new")
    assert made.handle == "12345/api?1"
    client.add(made.handle, [ValueInput("EMAIL", "keeper@example.org", index=7)])
    changed = client.set(made.handle, {"URL": "https://example.org/2"})
    client.remove(made.handle, [7], if_version=changed.seq)
    found = client.resolve(made.handle, types=["URL"])
    assert [value.data.value for value in found.values] == ["https://example.org/2"]
    assert client.resolve(made.handle, at=made.seq).values[0].data.value == "https://example.org/1"
    assert [version.action for version in client.history(made.handle)] == ["update", "update", "update", "create"]
    with pytest.raises(Refused) as refused:
        client.set(made.handle, {"URL": "https://example.org/3"}, if_version=made.seq)
    assert refused.value.problem_type == "precondition-failed"
    with pytest.raises(Refused, match="already exists"):
        client.create(made.handle)
    client.delete(made.handle)
    with pytest.raises(NotFound) as missing:
        client.resolve(made.handle)
    assert missing.value.problem is not None
    assert missing.value.code == 100


def test_lifecycle(client: Client) -> None:
    assert client.unpublish("12345/n1").handle == "12345/n1"
    assert client.resolve("12345/n1", private=True).state == "unpublished"
    client.publish("12345/n1")
    client.tombstone("12345/n1", "gone", replaced_by="12345/n2")
    client.revive("12345/n1")
    client.create_alias("12345/api-alias", "12345/n1")
    assert client.aliases("12345/api-alias").chain == ["12345/api-alias", "12345/n1"]
    assert client.link_version("12345/n1", "12345/n2").handles == ("12345/n1", "12345/n2")
    assert client.explain(ToDelete("12345/n1")).allowed
    assert client.cite("12345/n1").hdl == "hdl:12345/n1"
    assert client.qr("12345/n1", image_format=ImageFormat.PNG).startswith(b"\x89PNG")


def test_minting_reserving_and_lists_of_several_pages(client: Client) -> None:
    minted = client.mint("12345/api-m-", {"URL": "https://example.org/m"}, count=5)
    assert len(minted.handles) == 5
    assert len(client.reserve("12345/api-r-", count=2).handles) == 2
    reserved = [each.handle for each in client.list("12345", state=HandleState.RESERVED, page_size=1)]
    assert len(reserved) == 2
    found = client.find(url="https://example.org/m", page_size=2)
    assert {each.handle for each in found} == set(minted.handles)
    assert len(list(found.pages())) > 1
    assert next(iter(client.log(since=minted.seq - 1))).handle == minted.handles[0]


def test_jobs_are_watched_until_they_end(client: Client) -> None:
    selectors = Selectors(url="https://example.org/3*")
    planned = list(client.preview_rewrite(selectors, "https://example.net/3*"))
    job = client.rewrite(selectors, "https://example.net/3*")
    seen: list[int] = []
    ended = client.wait(job.job, lambda each: seen.append(each.done))
    assert (ended.state, ended.done) == (JobState.DONE, len(planned))
    assert seen[-1] == len(planned)
    assert client.preview_undo(job.job).possible
    assert client.wait(client.undo(job.job).job).state is JobState.DONE
    assert client.jobs().pages().__next__().jobs[0].kind == "undo"


def test_namespaces_types_and_tokens(client: Client) -> None:
    assert client.add_namespace("999", profile="free", purpose="Maps").prefix == "999"
    assert "999" in [each.prefix for each in client.namespaces()]
    assert client.change_policy("999", 'purpose = "Charts"\n').changed == ("purpose",)
    assert client.namespace("999").purpose == "Charts"
    client.add_type("999/SCALE", "The scale", pattern="1:[0-9]+")
    assert client.type("999/SCALE").pattern == "1:[0-9]+"
    token = client.create_token(["read"], namespaces=["12345"], label="catalog")
    assert token.token
    assert client.revoke_token(token.id).state == "revoked"
    assert token.id in [each.id for each in client.tokens(all=True)]
    assert client.parse_name("hdl:12345/x").handle == "12345/x"
    assert client.remove_namespace("999", retire=True).retired


def test_asynchronous_client_does_the_same(server: Harness) -> None:
    async def use() -> None:
        token = with_token(server, "find", "mint")["Authorization"].removeprefix("Bearer ")
        async with AsyncClient(make_options(URL, {"token": token}), InProcess(server)) as client:
            minted = await client.mint("12345/api-a-", count=2)
            assert [each.handle async for each in client.list("12345") if each.handle in minted.handles]
            assert [page.next async for page in client.list("12345").pages()] == [None]
            with pytest.raises(NotFound):
                await client.resolve("12345/none")

    asyncio.run(use())


# Credentials


def test_key_signs_the_nonce_of_a_session(server: Harness, client: Client) -> None:
    public = to_base64(SERVER_KEY.public.to_bytes())
    keys = [ValueInput("HS_PUBKEY", f"base64:{public}", index=300)]
    client.create("12345/api-key", [*keys, ValueInput("HS_ADMIN", "300:12345/api-key", index=100)])
    transport = InProcess(server)
    own = Client(make_options(URL, {"identity": "300:12345/api-key", "key": SERVER_KEY}), transport)
    own.set("12345/api-key", {"URL": "https://example.org/"})
    own.add("12345/api-key", {"EMAIL": "keeper@example.org"})
    paths = [request.url.path for request in transport.sent]
    assert paths.count("/api/sessions") == 1
    own.options.credentials.session = "ended"  # type: ignore[attr-defined]
    own.add("12345/api-key", {"EMAIL": "other@example.org"})
    assert [request.url.path for request in transport.sent].count("/api/sessions") == 2
    other = Client(make_options(URL, {"identity": "300:0.NA/12345", "key": SERVER_KEY}), transport)
    with pytest.raises(Refused) as refused:
        other.publish("12345/n1")
    assert refused.value.problem_type == "authentication-failed"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://id.example.org", {"token": "t"}),
        ("http://id.example.org", {"identity": "300:0.NA/1", "secret": "s"}),
        ("http://id.example.org", {"certificate": "c.pem"}),
        ("http://127.0.0.1:8000", {"token": "t", "proxy": "http://proxy.example.org"}),
    ],
)
def test_credentials_are_not_sent_over_plain_http(url: str, options: Any) -> None:
    with pytest.raises(InsecureConnection, match="Use https://"):
        perseid.connect(url, **options)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost", URL])
def test_credentials_are_sent_to_this_machine_and_over_https(url: str) -> None:
    perseid.connect(url, token="t").close()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("id.example.org", {}),
        ("ftp://id.example.org", {}),
        ("https://user:secret@id.example.org", {}),
        ("https://id.example.org?x", {}),
        (URL, {"token": "t", "secret": "s", "identity": "300:0.NA/1"}),
        (URL, {"secret": "s"}),
        (URL, {"identity": "300:0.NA/1"}),
        (URL, {"fingerprint": "ab"}),
        (URL, {"fingerprint": "ab" * 32, "proxy": "http://proxy.example.org"}),
    ],
)
def test_invalid_options_are_refused(url: str, options: Any) -> None:
    with pytest.raises(ValueError, match=r"Use|digits"):
        perseid.connect(url, **options)


def test_urls_of_servers() -> None:
    assert Origin.parse("https://id.example.org/").url == "https://id.example.org"
    assert Origin.parse("https://example.org/pid/api/v1").url == "https://example.org/pid"
    assert Origin.parse("http://localhost:8000").port == 8000


def test_redirects_are_not_followed(waits: list[float]) -> None:
    client, script = scripted(httpx.Response(307, headers={"Location": "https://other.example.org/"}))
    with pytest.raises(ProtocolError, match=r"redirects to https://other\.example\.org/"):
        client.resolve("12345/x")
    assert len(script.sent) == 1
    assert waits == []


def test_secrets_are_not_shown() -> None:
    options = make_options(URL, {"token": "perseid_secret"})
    assert "perseid_secret" not in repr(options)


# Retries


@pytest.mark.parametrize("status", [429, 503])
def test_server_that_changed_nothing_is_asked_again(waits: list[float], status: int) -> None:
    client, script = scripted(problem("busy", status, **{"Retry-After": "7"}), problem("busy", status), created())
    assert client.create("12345/x").seq == 7
    assert waits[0] == 7
    assert len(waits) == 2
    keys = {request.headers["Idempotency-Key"] for request in script.sent}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("lost", "attempts"),
    [(httpx.ReadTimeout("slow"), 1), (httpx.RemoteProtocolError("closed"), 1), (httpx.ConnectError("refused"), 4)],
)
def test_only_safe_requests_are_repeated(waits: list[float], lost: Exception, attempts: int) -> None:
    client, script = scripted(*[lost] * 4)
    with pytest.raises(Unreachable):
        client.delete("12345/x")
    assert len(script.sent) == attempts
    repeated: list[Callable[[], object]] = [
        client.checkpoint,
        lambda: client.create("12345/x"),
        lambda: client.set("12345/x", {"URL": "u"}),
    ]
    for call in repeated:
        script.answers[:] = [lost, created()]
        script.sent.clear()
        call()
        assert len(script.sent) == 2
    script.answers[:] = [lost] * 4
    script.sent.clear()
    with pytest.raises(Unreachable):
        client.set("12345/x", {"URL": "u"}, if_version=1)  # after the change, the condition would fail
    assert len(script.sent) == attempts
    assert len(waits) >= 3


def test_each_change_has_its_own_key(waits: list[float]) -> None:
    client, script = scripted(created(), created())
    client.create("12345/x")
    client.create("12345/x")
    assert script.sent[0].headers["Idempotency-Key"] != script.sent[1].headers["Idempotency-Key"]
    assert waits == []


def test_long_waits_and_other_refusals_are_errors(waits: list[float]) -> None:
    client, _ = scripted(
        problem("busy", 503, **{"Retry-After": "3600"}),
        problem("permission-denied", 403),
        problem("internal-error", 500),
        httpx.Response(404, text="<html>"),
        httpx.Response(502, text="<html>"),
        retries=0,
    )
    for kind in (ClientError, Refused, ClientError, ProtocolError, Unreachable):
        with pytest.raises(kind) as caught:
            client.resolve("12345/x")
        assert type(caught.value) is kind
    assert waits == []


def test_request_in_progress_is_awaited(waits: list[float]) -> None:
    client, _ = scripted(problem("in-progress", 409, **{"Retry-After": "1"}), created())
    assert client.create("12345/x").seq == 7
    assert len(waits) == 1


def test_large_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_RESPONSE", 10)
    client, _ = scripted(created())
    with pytest.raises(ProtocolError, match="has more than"):
        client.create("12345/x")


# Events


def test_events_are_parsed_in_pieces_of_any_size() -> None:
    text = b'retry: 2000\n\n:\n\nevent: progress\nid: 5\ndata: {"a":1}\r\n\r\nevent: end\ndata: {}\n\n'
    for size in (1, 7, len(text)):
        parser = EventParser()
        events = [each for at in range(0, len(text), size) for each in parser.feed(text[at : at + size])]
        assert events == [("progress", b'{"a":1}'), ("end", b"{}")]


JOB = {
    "job": "0123456789abcdef",
    "kind": "rewrite",
    "state": "running",
    "parameters": {},
    "done": 1,
    "total": 2,
    "started_at": "2026-11-15T10:00:00Z",
    "ended_at": None,
    "actor": "300:0.NA/1",
    "note": "",
}


def test_job_is_polled_where_events_cannot_be_streamed(waits: list[float]) -> None:
    ended = {**JOB, "state": "done", "done": 2, "ended_at": "2026-11-15T10:00:01Z"}
    client, script = scripted(
        httpx.Response(200, json=JOB), problem("too-many-requests", 429), httpx.Response(200, json=ended)
    )
    assert [job.done for job in client.watch()] == [1, 2]
    assert [request.url.path for request in script.sent][1] == "/api/v1/jobs/0123456789abcdef/events"
    assert waits == [1.0]


def test_job_is_watched_by_events(waits: list[float]) -> None:
    stream = f"event: progress\ndata: {json.dumps({**JOB, 'done': 2})}\n\nevent: end\ndata: {json.dumps(JOB)}\n\n"
    client, _ = scripted(httpx.Response(200, json=JOB), httpx.Response(200, text=stream))
    assert [job.done for job in client.watch()] == [1, 2, 1]
    assert waits == []

"""The client of the HTTP API, against a server in the same process."""

import asyncio
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

import perseid
from perseid.client import api
from perseid.client.api import Client, Operations, make_options
from perseid.client.api_async import AsyncClient
from perseid.client.api_exchange import EventParser, Failure, HttpRequest, InsecureConnection, NoResponse, Origin
from perseid.client.api_http import Proxy, ResponseStream
from perseid.client.api_operations import ListOperation, Operation
from perseid.client.errors import ClientError, NotFound, ProtocolError, Refused, UnknownOutcome, Unreachable
from perseid.records.encoding import to_base64
from perseid.schema.common import EntryAction, HandleState
from perseid.schema.exports import ExportPart
from perseid.schema.jobs import JobState
from perseid.schema.queries import ImageFormat, Selectors
from perseid.schema.records import ToDelete, ValueInput
from perseid.server.http.v1.routes import SECTIONS
from tests.client.in_process import URL, AsyncInProcess, InProcess, path_of
from tests.server.http.client_certificates import UID, certificate, library_key
from tests.server.http.contexts import Harness, harness
from tests.server.http.v1.callers import with_token
from tests.server.installations import ADMINISTRATOR, SECRET
from tests.wire.key_material import RSA_KEY, SERVER_KEY


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        yield made


@pytest.fixture
def client(server: Harness) -> Client:
    return Client(make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET}), InProcess(server))


@dataclass
class Answer:
    """A prepared response; JSON unless it has a media type."""

    status: int = 200
    body: object = b""
    headers: dict[str, str] = field(default_factory=dict)

    def stream(self) -> ResponseStream:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = {"content-type": "application/json", **{name.lower(): value for name, value in self.headers.items()}}
        return ResponseStream(self.status, headers, iter([body]))


class Script:
    """Gives prepared responses and failures."""

    def __init__(self, *answers: Answer | Failure) -> None:
        self.answers = list(answers)
        self.sent: list[HttpRequest] = []

    @contextmanager
    def open(self, request: HttpRequest, _timeout: float) -> Iterator[ResponseStream]:
        self.sent.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Failure):
            raise NoResponse(answer)
        yield answer.stream()

    def close(self) -> None:
        pass


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr("perseid.client.api.time.sleep", seconds.append)
    return seconds


def scripted(*answers: Answer | Failure, **options: Any) -> tuple[Client, Script]:
    script = Script(*answers)
    return Client(make_options(URL, {"token": "perseid_secret", **options}), script), script  # type: ignore[typeddict-item]


def problem(slug: str, status: int, **headers: str) -> Answer:
    body = {"type": f"{URL}/docs/problems#{slug}", "title": "t", "status": status, "detail": "d", "advice": "a"}
    return Answer(status, body, {"Content-Type": "application/problem+json", **headers})


CREATED = {"handle": "12345/x", "seq": 7}
HTML = {"Content-Type": "text/html"}


def created() -> Answer:
    return Answer(201, CREATED)


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
    assert "12345/n2" in [value.data.value for value in client.resolve("12345/n1").values]
    client.tombstone("12345/n1", "gone", replaced_by="")
    assert "12345/n2" not in [value.data.value for value in client.resolve("12345/n1").values]
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
    logged = client.log(
        since=minted.seq - 1, until=minted.seq + 1, actor=ADMINISTRATOR, action=EntryAction.CREATE, prefix="12345"
    )
    assert tuple(each.handle for each in logged) == minted.handles[:2]


def test_same_page_again_ends_the_iteration() -> None:
    page = {"handles": [{"handle": "12345/a", "state": "published", "seq": 1}], "next": "x"}
    client, script = scripted(*[Answer(200, page)] * 3)
    with pytest.raises(ProtocolError, match="sent the same page of /api/v1/namespaces/12345/handles again"):
        list(client.list("12345"))
    assert len(script.sent) == 2


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
        async with AsyncClient(make_options(URL, {"token": token}), AsyncInProcess(server)) as client:
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
    assert [path_of(request) for request in transport.sent].count("/api/sessions") == 1
    other = Client(make_options(URL, {"identity": "300:0.NA/12345", "key": SERVER_KEY}), transport)
    with pytest.raises(Refused) as refused:
        other.publish("12345/n1")
    assert refused.value.problem_type == "authentication-failed"


class Expired(InProcess):
    """Ends the first session when some requests have come with it."""

    def __init__(self, server: Harness, requests: int) -> None:
        super().__init__(server)
        self.barrier = threading.Barrier(requests)
        self.lock = threading.Lock()
        self.old = ""

    def ask(self, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
        if self.old and request.headers.get("Authorization") == self.old:
            self.barrier.wait(30)
            request = replace(request, headers={**request.headers, "Authorization": 'Handle sessionId="ended"'})
        with self.lock:
            return super().ask(request)


def test_requests_at_the_same_time_share_a_new_session_when_theirs_has_ended(server: Harness, client: Client) -> None:
    public = to_base64(SERVER_KEY.public.to_bytes())
    keys = [ValueInput("HS_PUBKEY", f"base64:{public}", index=300)]
    client.create("12345/api-expired", [*keys, ValueInput("HS_ADMIN", "300:12345/api-expired", index=100)])
    transport = Expired(server, 8)
    own = Client(make_options(URL, {"identity": "300:12345/api-expired", "key": SERVER_KEY}), transport)
    own.set("12345/api-expired", {"URL": "https://example.org/"})
    transport.old = transport.sent[-1].headers["Authorization"]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: own.add("12345/api-expired", {f"NOTE{n}": "n"}).handle, range(8)))
    assert results == ["12345/api-expired"] * 8
    assert [path_of(request) for request in transport.sent].count("/api/sessions") == 2

    async def use() -> list[str]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8))
        asynchronous = AsyncInProcess(server)
        asynchronous.blocking = transport
        transport.old = transport.sent[-1].headers["Authorization"]
        async with AsyncClient(own.options, asynchronous) as many:
            made = [many.add("12345/api-expired", {f"MORE{n}": "n"}) for n in range(8)]
            return [each.handle for each in await asyncio.gather(*made)]

    assert asyncio.run(use()) == ["12345/api-expired"] * 8
    assert [path_of(request) for request in transport.sent].count("/api/sessions") == 3


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
    client, script = scripted(Answer(307, headers={"Location": "https://other.example.org/"}))
    with pytest.raises(ProtocolError, match=r"redirects to https://other\.example\.org/"):
        client.resolve("12345/x")
    assert len(script.sent) == 1
    assert waits == []


def test_secrets_are_not_shown() -> None:
    proxy = "http://user:password@proxy.example.org"
    options = make_options(URL, {"token": "perseid_secret", "proxy": proxy})
    assert "secret" not in repr(options)
    assert "password" not in repr(options)
    assert "Basic" not in repr(Proxy.parse(proxy))


# Retries


@pytest.mark.parametrize("status", [429, 503])
def test_server_that_changed_nothing_is_asked_again(waits: list[float], status: int) -> None:
    client, script = scripted(problem("busy", status, **{"Retry-After": "7"}), problem("busy", status), created())
    assert client.create("12345/x").seq == 7
    assert waits[0] == 7
    assert len(waits) == 2
    keys = {request.headers["Idempotency-Key"] for request in script.sent}
    assert len(keys) == 1


LOST = Failure("no answer within 30 s")
NEVER_SENT = Failure("Connection refused", sent=False)
BAD_GATEWAY = Answer(502, b"<html>", HTML)


@pytest.mark.parametrize(("lost", "attempts"), [(LOST, 1), (BAD_GATEWAY, 1), (NEVER_SENT, 4)])
def test_only_safe_requests_are_repeated(waits: list[float], lost: Answer | Failure, attempts: int) -> None:
    client, script = scripted(*[lost] * 4)
    unsafe: list[Callable[[], object]] = [
        lambda: client.delete("12345/x"),
        lambda: client.set("12345/x", {"URL": "u"}, if_version=1),  # after the change, the condition would fail
    ]
    for call in unsafe:
        script.answers[:] = [lost] * 4
        script.sent.clear()
        with pytest.raises(Unreachable) as caught:
            call()
        assert type(caught.value) is (Unreachable if lost is NEVER_SENT else UnknownOutcome)
        assert len(script.sent) == attempts
    safe: list[Callable[[], object]] = [
        client.checkpoint,
        lambda: client.create("12345/x"),
        lambda: client.set("12345/x", {"URL": "u"}),
    ]
    for call in safe:
        script.answers[:] = [lost, created()]
        script.sent.clear()
        call()
        assert len(script.sent) == 2
    assert len(waits) >= 3


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([LOST, NEVER_SENT], UnknownOutcome),
        ([LOST, problem("busy", 503)], UnknownOutcome),
        ([LOST, problem("in-progress", 409, **{"Retry-After": "1"})], UnknownOutcome),
        ([NEVER_SENT, BAD_GATEWAY], UnknownOutcome),
        ([NEVER_SENT, NEVER_SENT], Unreachable),
        ([NEVER_SENT, problem("busy", 503)], ClientError),
        ([LOST, problem("permission-denied", 403)], Refused),
        ([LOST, problem("already-exists", 409)], Refused),
    ],
)
def test_outcome_is_unknown_until_the_server_tells_it(
    waits: list[float], answers: list[Answer | Failure], kind: type[ClientError]
) -> None:
    client, script = scripted(*answers, retries=1)
    with pytest.raises(ClientError) as caught:
        client.create("12345/x")
    assert type(caught.value) is kind
    assert len({request.headers["Idempotency-Key"] for request in script.sent}) == 1
    assert len(waits) == 1
    if kind is UnknownOutcome:
        assert caught.value.problem_type == "unknown-outcome"
        assert "look before you repeat it" in caught.value.advice
    script.answers[:] = [LOST, NEVER_SENT]
    with pytest.raises(Unreachable) as caught:
        client.set("12345/x", {"URL": "u"})
    assert type(caught.value) is Unreachable, "it can be repeated"


@pytest.mark.parametrize("failure", [LOST, BAD_GATEWAY])
def test_change_is_not_sent_before_the_session(waits: list[float], failure: Answer | Failure) -> None:
    script = Script(*[failure] * 4)
    client = Client(make_options(URL, {"identity": ADMINISTRATOR, "key": RSA_KEY}), script)
    with pytest.raises(Unreachable) as caught:
        client.delete("12345/x")
    assert type(caught.value) is Unreachable, "nothing can have been made"
    assert [path_of(request) for request in script.sent] == ["/api/sessions"] * 4
    assert len(waits) == 3


@pytest.mark.parametrize("name", ['a"b', "a\r\nX-Other: b", ""])
def test_session_that_no_header_can_name_is_an_invalid_response(name: str) -> None:
    script = Script(Answer(201, {"sessionId": name, "nonce": to_base64(bytes(16))}))
    client = Client(make_options(URL, {"identity": ADMINISTRATOR, "key": RSA_KEY}), script)
    with pytest.raises(ProtocolError, match="did not start a session"):
        client.delete("12345/x")


def test_invalid_response_to_a_change_says_that_it_may_have_been_made() -> None:
    replayed = {"Idempotency-Replayed": "true"}
    client, script = scripted(Answer(201, {"handle": "12345/x", "seq": 7, "count": 1}, {**HTML, **replayed}))
    with pytest.raises(ProtocolError, match=r"The change was made \(entry 7\)"):
        client.create("12345/x")
    for answer in (Answer(201, [], replayed), Answer(200, b"<html>", HTML)):
        script.answers[:] = [answer] * 2
        with pytest.raises(ProtocolError, match="as a Perseid server does") as caught:
            client.create("12345/x")
        assert caught.value.advice.startswith("The change may have been made")
        with pytest.raises(ProtocolError, match="as a Perseid server does") as caught:
            client.resolve("12345/x")
        assert caught.value.advice.startswith("Check the URL")


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
        Answer(404, b"<html>", HTML),
        BAD_GATEWAY,
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
    client, script = scripted(Answer(body=JOB), problem("too-many-requests", 429), Answer(body=ended))
    assert [job.done for job in client.watch()] == [1, 2]
    assert path_of(script.sent[1]) == "/api/v1/jobs/0123456789abcdef/events"
    assert waits == [1.0]


def test_job_is_watched_by_events(waits: list[float]) -> None:
    stream = f"event: progress\ndata: {json.dumps({**JOB, 'done': 2})}\n\nevent: end\ndata: {json.dumps(JOB)}\n\n"
    client, _ = scripted(Answer(body=JOB), Answer(body=stream.encode()))
    assert [job.done for job in client.watch()] == [1, 2, 1]
    assert waits == []


def test_streams_that_end_at_once_are_asked_for_less_and_less_often(waits: list[float]) -> None:
    event = f"event: progress\ndata: {json.dumps({**JOB, 'done': 2})}\n\n".encode()
    streams = [b"", b"", b"", b"", b"", event, b""]
    answers = [answer for stream in streams for answer in (Answer(body=JOB), Answer(body=stream))]
    ended = {**JOB, "state": "done", "ended_at": "2026-11-15T10:00:01Z"}
    client, _ = scripted(*answers, Answer(body=ended))
    assert client.wait().state is JobState.DONE
    assert waits == [1, 2, 4, 8, 8, 1, 2]


def test_event_without_an_end_is_refused(waits: list[float]) -> None:
    class Endless(Script):
        @contextmanager
        def open(self, request: HttpRequest, timeout: float) -> Iterator[ResponseStream]:
            if not request.url.endswith("/events"):
                with super().open(request, timeout) as response:
                    yield response
                return
            yield ResponseStream(200, {}, (b"data: " + bytes(65_536) for _ in itertools.count()))

    client = Client(make_options(URL, {"token": "t"}), Endless(Answer(body=JOB)))
    with pytest.raises(ProtocolError, match="event of more than 1 MiB"):
        client.wait()
    assert waits == []


# Parameters and files


def test_empty_parameter_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        client.resolve("")


@pytest.mark.parametrize("option", ["ca_file", "certificate", "key"])
def test_files_that_cannot_be_used_are_refused_at_once(tmp_path: Path, option: str) -> None:
    more = {"identity": "300:0.NA/1"} if option == "key" else {}
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for file, reason in {
        tmp_path / "missing.pem": "No such file",
        tmp_path: "Is a directory",
        empty: "certificate|private key",
    }.items():
        with pytest.raises(ValueError, match=reason) as caught:
            perseid.connect(URL, **{option: file}, **more)  # type: ignore[arg-type]
        assert str(file) in str(caught.value)


def test_protected_certificate_does_not_ask_at_the_terminal(tmp_path: Path) -> None:
    key = library_key(RSA_KEY).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    file = tmp_path / "protected.pem"
    file.write_bytes(key + ssl.DER_cert_to_PEM_cert(certificate((UID, "300:12345/x"), key=RSA_KEY)).encode())
    with pytest.raises(ValueError, match="without a passphrase"):
        perseid.connect(URL, certificate=file)

"""A server without sockets: a real installation and its registry in a temporary directory, and requests to its service.

    with harness() as server:
        assert server.get("/api/handles/12345/n0").status == 200

Work runs in the calling thread. A request comes over TLS from another machine unless it says otherwise.
"""

import asyncio
import base64
import json
import random
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.auth.web_sessions import WebSessions
from perseid.server.http.context import HttpSettings, ProofResult, ServerContext
from perseid.server.http.messages import Client, Request, Response
from perseid.server.http.service import HttpService
from perseid.server.http.v1.state import ApiState
from perseid.server.limits.budgets import NO_LIMIT, Budget
from perseid.server.native.server import NativeServer
from perseid.server.native.work import NativeResponse, Work, WorkKind
from perseid.server.processes.jobs import JobExecutor
from perseid.server.state.jobs import RunningJobs
from perseid.server.state.state import SharedState
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply
from tests.server.faults.machine import eventually
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.native.native_servers import SITE, Clock, make_server, recorded_registry
from tests.server.shared_state import make_state
from tests.wire.key_material import SERVER_KEY

STRANGER: Final = "192.0.2.1"
"""The address that requests come from, unless they say otherwise: another machine's."""

PUBLIC_URL: Final = "https://hdl.example.org"


def basic(identity: str = ADMINISTRATOR, secret: str | bytes = SECRET) -> dict[str, str]:
    """The header of a user with a secret key, as clients write it."""
    octets = secret.encode() if isinstance(secret, str) else secret
    name = identity.replace("%", "%25").replace(":", "%3A").encode()
    return {"Authorization": "Basic " + base64.b64encode(name + b":" + octets).decode()}


@dataclass(frozen=True)
class Messages:
    """The native protocol for messages in HTTP requests; work runs in the calling thread."""

    native_server: NativeServer
    time: Callable[[], float]

    def respond(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]:
        return self.native_server.handle(frame, host, self.time(), transport)

    def early_failure(self, code: ResponseCode, text: str) -> Reply:
        return self.native_server.server.early_failure(code, text, self.time())


class JobTasks:
    """Runs jobs between the requests of an event loop, instead of the process of jobs; they stop with the loop."""

    def __init__(self, registry: Registry, state: SharedState) -> None:
        self.running = RunningJobs(state, self._start)
        self.executor = JobExecutor(registry, self.running, pause=lambda _: None)
        self._task: asyncio.Task[None] | None = None

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self.running.waiting():
            await asyncio.sleep(0.001)
            self.executor.advance()


@dataclass
class Harness:
    """A server to which requests are made directly."""

    service: HttpService
    jobs: JobTasks
    kinds: list[WorkKind] = field(default_factory=list, repr=False)
    """What sorts of work were asked for, in that order."""
    verdicts: list[ProofResult] = field(default_factory=list, repr=False)
    """What came of each proof of an identity, in that order."""

    @property
    def context(self) -> ServerContext:
        return self.service.server

    @property
    def registry(self) -> Registry:
        return self.service.server.registry

    def configure(self, **settings: Any) -> None:
        """Change the HTTP settings."""
        self.service.server = replace(self.context, settings=replace(self.context.settings, **settings))

    def hold_time(self) -> None:
        """Stop the clock."""
        now = self.context.time()
        self.service.server = replace(self.context, time=lambda: now)

    def ask(
        self,
        method: str,
        target: str | bytes,
        body: bytes | str = b"",
        *,
        headers: Mapping[str, str | list[str]] | None = None,
        secure: bool = True,
        local: bool = False,
        trusted: bool = False,
        certificate: bytes | None = None,
        host: str = STRANGER,
        version: str = "1.1",
    ) -> Response:
        """Send a request and return its response."""
        pairs = [
            (name.lower(), value)
            for name, values in (headers or {}).items()
            for value in ([values] if isinstance(values, str) else values)
        ]
        request = Request(
            method,
            target.encode() if isinstance(target, str) else target,
            pairs,
            body.encode() if isinstance(body, str) else body,
            Client(host, secure, local, trusted, certificate),
            version,
        )
        return asyncio.run(self.answer(request))

    async def answer(self, request: Request) -> Response:
        """The answer to a request, with all of its body."""
        response = await self.service.handle(request)
        if response.stream is None:
            return response
        body = b"".join([piece async for piece in response.stream])
        return replace(response, body=body, stream=None)

    def get(self, target: str | bytes, **how: Any) -> Response:
        return self.ask("GET", target, **how)

    def head(self, target: str | bytes, **how: Any) -> Response:
        return self.ask("HEAD", target, **how)

    def post(self, target: str | bytes, body: bytes | str = b"", **how: Any) -> Response:
        return self.ask("POST", target, body, **how)

    def delete(self, target: str | bytes, **how: Any) -> Response:
        return self.ask("DELETE", target, **how)

    def put(self, target: str | bytes, plain: object, **how: Any) -> Response:
        """PUT something as JSON; bytes and text are sent as they are."""
        body = plain if isinstance(plain, bytes | str) else json.dumps(plain)
        how["headers"] = {"Content-Type": "application/json", **how.get("headers", {})}
        return self.ask("PUT", target, body, **how)


def in_session(server: Harness, identity: str = ADMINISTRATOR, secret: str = SECRET) -> dict[str, str]:
    """The header of an authenticated session, which browsers do not send automatically."""
    answer = server.post("/api/sessions", headers=basic(identity, secret))
    assert answer.status == 201, answer
    return {"Authorization": f'Handle sessionId="{json.loads(answer.body)["sessionId"]}"'}


def json_of(response: Response) -> Any:
    """The JSON of a response; its type must be JSON."""
    assert list(response.values("Content-Type")) == ["application/json;charset=utf-8"]
    return json.loads(response.body)


def header_of(response: Response, name: str) -> str | None:
    """A header of a response, which must not repeat."""
    found = list(response.values(name))
    assert len(found) <= 1, found
    return found[0] if found else None


def serve(
    registry: Registry, site: Site = SITE, key: PrivateKey = SERVER_KEY, state: SharedState | None = None
) -> Harness:
    """A server of a registry; `state` is what it shares with others about jobs."""
    kinds: list[WorkKind] = []
    verdicts: list[ProofResult] = []

    def record_proof(result: ProofResult, client: Client) -> None:  # noqa: ARG001 - of everybody
        verdicts.append(result)

    async def do(work: Work, client: Client) -> object:  # noqa: ARG001 - everybody may have everything done
        kinds.append(work.kind)
        return work.call() if work.coroutine is None else await work.coroutine()

    def time() -> float:
        return float(registry.now())

    jobs = JobTasks(registry, make_state() if state is None else state)
    context = ServerContext(
        api=ApiState(jobs=jobs.running),
        registry=registry,
        site=site,
        position=0,
        key=key,
        settings=HttpSettings(PUBLIC_URL),
        do=do,
        time=time,
        random=random.Random(5).randbytes,
        ready=lambda: "",
        record_proof=record_proof,
        sessions=SessionTable(make_state()),
        web_sessions=WebSessions(make_state()),
        suggestion_budget=Budget(NO_LIMIT, NO_LIMIT),
        native=Messages(NativeServer(registry, make_server(), site), time),
    )
    return Harness(HttpService(context), jobs, kinds, verdicts)


@contextmanager
def harness(**rules: Any) -> Iterator[Harness]:
    """A server of the installation of `installations`: the prefix 12345 with fifty handles, and its administrator."""
    with (
        tempfile.TemporaryDirectory(prefix="perseid-http-") as folder,
        Installation.open(copy_to(Path(folder)), environ={}) as installation,
    ):
        eventually(lambda: installation.ledger.ready, "the answers view is ready")
        yield serve(Registry(installation.ledger, Rules(installation.administration, PROFILES["free"], **rules)))


@contextmanager
def recorded_harness(clock: Clock | None = None, **rules: Any) -> Iterator[Harness]:
    """A server in the state in which exchanges with the deployed server were recorded."""
    with recorded_registry(clock, **rules) as registry:
        yield serve(registry)

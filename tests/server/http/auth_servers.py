"""Authentication of the HTTP API in the recorded state, without the rest of the server.

    with auth_server_context() as auth_server:
        assert auth_server.identify("Basic …").problem is None

Work runs in the calling thread, unless `auth_server.do` is replaced. Requests come over TLS from another machine.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.encoding import to_base64
from perseid.records.record import Value
from perseid.registry.commands.records import Create, Modify, Remove
from perseid.registry.registry import Registry
from perseid.server.http.auth import authentication, handle_scheme
from perseid.server.http.auth.authentication import AuthResult
from perseid.server.http.auth.session_table import Session, SessionTable
from perseid.server.http.auth.web_sessions import WebSessions
from perseid.server.http.context import HttpSettings, ProofResult, RequestContext, ServerContext
from perseid.server.http.messages import Client, HeaderList, Request
from perseid.server.native.decisions import GuardedCommand
from perseid.server.native.work import Work, WorkKind
from tests.registry.registries import OPERATOR
from tests.server.native.native_servers import HIDDEN, NOW, PREFIX, SITE, recorded_registry
from tests.server.shared_state import make_state
from tests.wire.key_material import SERVER_KEY

STRANGER: Final = "192.0.2.1"
USER: Final = f"{PREFIX}/user"


@dataclass
class AuthServer:
    """A server context to which requests are made."""

    context: ServerContext
    now: list[float]
    """The time that it has, alone in its list."""
    kinds: list[WorkKind] = field(default_factory=list)
    in_loop: list[bool] = field(default_factory=list)
    """Whether each work was meant for the event loop."""
    secrets: list[bytes | None] = field(default_factory=list)
    """Whose secret each work was about."""
    verdicts: list[ProofResult] = field(default_factory=list)

    @property
    def registry(self) -> Registry:
        return self.context.registry

    @property
    def table(self) -> SessionTable:
        return self.context.sessions

    def configure(self, **settings: Any) -> None:
        self.context = replace(self.context, settings=replace(self.context.settings, **settings))

    def request_context(
        self,
        authorization: str | None = None,
        *,
        method: str = "GET",
        target: str = f"/api/handles/{PREFIX}/vec-std",
        body: bytes | str | None = None,
        client: Client | None = None,
        host: str = STRANGER,
        certificate: bytes | None = None,
        **headers: str,
    ) -> RequestContext:
        pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if authorization is not None:
            pairs.append(("authorization", authorization))
        octets = body.encode() if isinstance(body, str) else body or b""
        client = client or Client(host, secure=True, certificate=certificate)
        return RequestContext(Request(method, target.encode(), pairs, octets, client), self.context)

    def identify(self, authorization: str | None = None, **how: Any) -> AuthResult:
        return asyncio.run(authentication.authenticate(self.request_context(authorization, **how)))

    def reason(self, authorization: str | None = None, **how: Any) -> str:
        """Why authentication failed."""
        auth = self.identify(authorization, **how)
        assert auth.problem is not None
        assert str(auth.identity) == "anonymous"
        assert auth.guard is None
        return auth.problem.reason

    def challenge(self, authorization: str | None = None, **how: Any) -> HeaderList:
        request_context = self.request_context(authorization, **how)
        return authentication.challenge_headers(
            request_context, asyncio.run(authentication.authenticate(request_context))
        )

    def begin(self) -> Session:
        """Start an unauthenticated session."""
        return self.table.begin(STRANGER, self.now[0])

    def execute(self, auth: AuthResult, operation: Any) -> Any:
        """Execute a command for the caller, under the guard of their key."""
        return self.registry.do(GuardedCommand(operation, auth.guard, allow_referrals=True), auth.identity, "http")

    # What others do meanwhile

    def create(self, name: str, *values: Value) -> None:
        self.registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")

    def modify(self, name: str, *values: Value) -> None:
        self.registry.do(Modify(Handle.parse(name), values), OPERATOR, "cli")

    def remove(self, name: str, *indexes: int) -> None:
        self.registry.do(Remove(Handle.parse(name), indexes), OPERATOR, "cli")


@contextmanager
def auth_server_context() -> Iterator[AuthServer]:
    """A context in the state in which exchanges were recorded."""
    with recorded_registry() as registry:
        yield make_auth_server(registry)


def make_auth_server(registry: Registry) -> AuthServer:
    kinds: list[WorkKind] = []
    in_loop: list[bool] = []
    secrets: list[bytes | None] = []
    verdicts: list[ProofResult] = []
    now = [NOW]

    async def do(work: Work, client: Client) -> object:  # noqa: ARG001 - everybody may have everything done
        kinds.append(work.kind)
        in_loop.append(work.is_short)
        secrets.append(work.secret_of)
        return work.call()

    def record_proof(result: ProofResult, client: Client) -> None:  # noqa: ARG001 - of everybody
        verdicts.append(result)

    context = ServerContext(
        registry=registry,
        site=SITE,
        position=0,
        key=SERVER_KEY,
        settings=HttpSettings("https://hdl.example.org"),
        do=do,
        time=lambda: now[0],
        random=bytes,
        ready=lambda: "",
        record_proof=record_proof,
        sessions=SessionTable(make_state()),
        web_sessions=WebSessions(make_state()),
    )
    return AuthServer(context, now, kinds, in_loop, secrets, verdicts)


def basic_header(name: str, secret: str | bytes) -> str:
    octets = secret.encode() if isinstance(secret, str) else secret
    return "Basic " + to_base64(quote(name, safe="/").encode() + b":" + octets)


def handle_header(**fields: str | bytes) -> str:
    """A header of the Handle scheme; bytes are written in base64, the id percent-encoded."""
    written = {name: to_base64(value) if isinstance(value, bytes) else value for name, value in fields.items()}
    if "id" in written:
        written["id"] = quote(written["id"], safe=":/")
    return "Handle " + handle_scheme.format_fields(written)


def secret_at(index: int, secret: bytes = b"a secret") -> Value:
    return Value(index, "HS_SECKEY", secret, permissions=HIDDEN)


def fields_of(line: str) -> dict[str, str]:
    """The fields of a challenge of the Handle scheme."""
    scheme, _, rest = line.partition(" ")
    assert scheme == "Handle"
    fields = handle_scheme.parse_fields(rest)
    assert fields is not None
    return fields

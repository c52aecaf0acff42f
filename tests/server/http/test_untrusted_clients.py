"""Hidden handles look free to untrusted clients, whatever they request."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create
from perseid.registry.installation.setup import with_group_administrators
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries.namespaces import RETIRED, ChangePolicy
from perseid.server.http.messages import Response
from perseid.server.http.v1.routes import SECTIONS
from perseid.server.http.v1.routing import BASE
from tests.server.http.auth_servers import basic_header, handle_header
from tests.server.http.client_certificates import named
from tests.server.http.contexts import Harness, harness
from tests.server.installations import OPERATOR, PREFIX
from tests.wire.key_material import RSA_KEYS

FREE, RESERVED, UNPUBLISHED = (f"{PREFIX}/{word}" for word in ("freefree", "reserved", "unpublsh"))

VALUES = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/"}])
MAC = "nonce=AAAAAAAAAAAAAAAAAAAAAA==&cnonce=AAAAAAAAAAAAAAAAAAAAAA==&alg=SHA1&signature=AAAA"

READING = (
    *[
        f"/api/handles/{{}}{query}"
        for query in ("", "?publicOnly=false", "?at=1", "?at=2037-01-01", "?index=1", "?auth")
    ],
    *[f"/{{}}{query}" for query in ("", "?noredirect", "?action=api", "?action=explain", "?action=showurls", "?at=60")],
    "/{}?action=linkset",
    "/timemap/link/{}",
    "/timemap/json/{}",
    f"/api/verifications/300:{{}}?{MAC}",
)
CHANGING = [
    (method, f"/api/handles/{{}}{query}")
    for method, queries in (
        ("PUT", ("", "?overwrite=false", "?index=1", "?index=various&overwrite=false", "?mintNewSuffix=true")),
        ("DELETE", ("", "?index=1")),
        ("POST", ("", "?publicOnly=false")),
    )
    for query in queries
]
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"Accept": "application/json"},
    {"If-Match": "*"},
    {"If-None-Match": "*"},
    {"Accept-Datetime": "Thu, 01 Jan 2026 00:00:00 GMT"},
)

_RANDOM = re.compile(
    r'sessionId="[^"]*", nonce="[^"]*"|"sessionId":"[^"]*","nonce":"[^"]*"'
    r'|"[0-9a-f]{32}"|"requests";r=\d+;t=\d+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}'
)


@pytest.fixture(scope="module", params=[None, Audience.AUTHENTICATED, Audience.SERVER, "retired"])
def secretive(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A server with hidden handles, in a namespace where handles are created by permission, by a policy, or no more."""
    with harness() as server:
        if isinstance(request.param, Audience):
            policy = replace(with_group_administrators(PROFILES["free"]), who_may_mint=request.param)
            server.registry.do(SetPolicy(PREFIX, policy), OPERATOR, "cli")
        server.registry.do(Reserve((Handle.parse(RESERVED),)), OPERATOR, "cli")
        value = Value.text(1, "URL", "https://example.org/")
        server.registry.do(Create(Handle.parse(UNPUBLISHED), (value,)), OPERATOR, "cli")
        server.registry.do(Unpublish(Handle.parse(UNPUBLISHED)), OPERATOR, "cli")
        if request.param == "retired":
            server.registry.do(ChangePolicy(PREFIX, RETIRED), OPERATOR, "cli")
        yield server


def told(response: Response, name: str) -> str:
    """A whole response, without the name and random parts."""
    text = f"{response.status} {response.headers} {response.body.decode()}"
    return _RANDOM.sub("*", text).replace(name, "NAME").replace(name.replace("/", "%2F"), "NAME")


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("name", [RESERVED, UNPUBLISHED])
def test_hidden_handles_look_free(secretive: Harness, name: str, headers: dict[str, str]) -> None:
    for method, target in (*[("GET", target) for target in READING], *CHANGING):
        body = VALUES if method == "PUT" else ""
        how = headers | ({"Content-Type": "application/json"} if body else {})
        for secure in (True, False):
            free, other = (
                told(secretive.ask(method, target.format(each), body, headers=how, secure=secure), each)
                for each in (FREE, name)
            )
            assert other == free, (method, target)


V1_ROUTES = [
    (route.method, f"{BASE}{route.path.replace('{handle}', '{}')}")
    for section in SECTIONS
    for route in section.routes
    if "{handle}" in route.path
]


def claim(server: Harness, kind: str, identity: str) -> Iterator[Response]:
    """The responses to a caller who claims an identity without its key."""
    header, certificate, session = {}, None, ("POST", "/api/sessions")
    if kind == "certificate":
        certificate = named(identity, RSA_KEYS[0])
    elif kind == "Basic":
        header["Authorization"] = basic_header(identity, b"a guess")
    else:
        fields: dict[str, str | bytes] = {"type": kind, "cnonce": bytes(16), "alg": "SHA256", "signature": bytes(16)}
        session_id = json.loads(server.ask(*session).body)["sessionId"]
        header["Authorization"] = handle_header(sessionId=session_id, id=identity, **fields)
        session = ("PUT", "/api/sessions/this")
    for method, target in (("GET", f"/api/handles/{PREFIX}/n1"), ("GET", f"{BASE}/handles/{PREFIX}%2Fn1"), session):
        yield server.ask(method, target, headers=header, certificate=certificate)


@pytest.mark.parametrize("name", [RESERVED, UNPUBLISHED])
def test_hidden_handles_look_free_in_our_api(secretive: Harness, name: str) -> None:
    for method, target in V1_ROUTES:
        body = "" if method == "GET" else "{}"
        how = {"Content-Type": "application/json"} if body else {}
        free, other = (
            told(secretive.ask(method, target.format(each.replace("/", "%2F")), body, headers=how), each)
            for each in (FREE, name)
        )
        assert other == free, (method, target)


@pytest.mark.parametrize("kind", ["Basic", "HS_SECKEY", "HS_PUBKEY", "certificate"])
def test_hidden_handles_look_free_as_identities(secretive: Harness, kind: str) -> None:
    for index in (0, 1, 100, 300):
        free, *others = (
            [told(response, name) for response in claim(secretive, kind, f"{index}:{name}")]
            for name in (FREE, RESERVED, UNPUBLISHED)
        )
        assert others == [free, free]
        assert all("authentication failed" in text for text in free[1:]), free

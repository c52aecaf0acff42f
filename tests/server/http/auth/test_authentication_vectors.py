"""Recorded authentication exchanges with the recorded nonces: our server accepts the recorded signatures.

`http_vectors` replays the same exchanges with new signatures. Here the sessions of the recorded server are put into our
table, with their ids and nonces, and every request is sent byte for byte as recorded.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from perseid.records.encoding import from_base64
from perseid.server.http.auth.session_table import TIMEOUT, SessionTable, _StoredSession
from perseid.server.http.messages import Response
from tests.server.http.auth_servers import fields_of
from tests.server.http.contexts import Harness, basic, json_of, recorded_harness
from tests.vector_files import Vector, load
from tests.wire.key_material import SECRET, SERVER_KEY

ABOUT_IDENTITY = re.compile("auth-|session-|verification-|get-restricted-|get-basic-")
VECTORS = [vector for vector in load("http.json") if ABOUT_IDENTITY.match(vector["name"])]

STATUSES = {
    "auth-basic-colon-not-encoded": (401, 200),
    "auth-basic-index-0": (403, 200),
    "session-life-3-put-wrong": (200, 401),
}
"""Where ours is another than the recorded one: the name that was meant is taken, an identity without an index has that
of its key, and a wrong proof is no success."""

WITH_REASON = {
    "get-basic-wrong",
    "auth-handle-unknown-session",
    "auth-bearer",
    "session-post-http",
    "session-life-5-get-after",
    "session-life-6-use-after",
}
"""Where the recorded body is empty, and ours says why."""


@dataclass
class Exchange:
    """A recorded exchange, and our response to the same request."""

    vector: Vector
    ours: Response

    @property
    def name(self) -> str:
        name = self.vector["name"]
        assert isinstance(name, str)
        return name

    @property
    def recorded(self) -> Any:
        return self.vector["response"]

    def recorded_lines(self) -> list[str]:
        found = self.recorded["headers"].get("WWW-Authenticate", [])
        return [found] if isinstance(found, str) else list(found)


def text_of_request(vector: Vector) -> str:
    request = vector["request"]
    return f"{request['headers'].get('Authorization', '')} {request['body'] or ''}"


def recorded_nonces() -> dict[str, str]:
    """The nonces of the recorded sessions, by id."""
    nonces = {}
    for vector in VECTORS:
        body = vector["response"]["body"]
        if isinstance(body, dict) and "nonce" in body:
            nonces[body["sessionId"]] = body["nonce"]
        for line in Exchange(vector, Response(200)).recorded_lines():
            if line.startswith("Handle "):
                fields = fields_of(line)
                nonces[fields["sessionid"]] = fields["nonce"]
    return nonces


def put_in(table: SessionTable, text: str, nonce: bytes, now: float) -> None:
    table._unproved.put(table._hash(text), table._entry(_StoredSession(now, TIMEOUT, (), nonce)))


@pytest.fixture(scope="module")
def exchanges() -> Iterator[dict[str, Exchange]]:
    """All exchanges in order, in one conversation with a server in the recorded state."""
    nonces, known, found = recorded_nonces(), set(), {}
    with recorded_harness() as server:
        load_state(server)
        for vector in VECTORS:
            for text, nonce in nonces.items():
                if text in text_of_request(vector) and text not in known:
                    known.add(text)
                    put_in(server.context.sessions, text, from_base64(nonce, "nonce"), server.context.time())
            request = vector["request"]
            ours = server.ask(
                request["method"],
                request["path"],
                request["body"] or "",
                headers=request["headers"],
                secure=vector["transport"] == "https",
            )
            found[vector["name"]] = Exchange(vector, ours)
        yield found


def load_state(server: Harness) -> None:
    for record in load("http/state.json"):
        if "vec-h-user" in record["handle"]:
            path = f"/api/handles/{record['handle']}"
            assert server.put(path, record, headers=basic("301:0.NA/20.500.99999", SECRET)).status == 201


def names(*beginnings: str) -> list[str]:
    return [vector["name"] for vector in VECTORS if vector["name"].startswith(beginnings or "")]


def test_all_recorded_exchanges_are_compared() -> None:
    assert len(VECTORS) == 40


@pytest.mark.parametrize("name", names())
def test_recorded_request_gets_recorded_status(exchanges: dict[str, Exchange], name: str) -> None:
    exchange = exchanges[name]
    recorded, ours = STATUSES.get(name, (exchange.recorded["status"],) * 2)
    assert (exchange.recorded["status"], exchange.ours.status) == (recorded, ours)


@pytest.mark.parametrize("name", [name for name in names() if name not in STATUSES])
def test_challenge_has_recorded_fields(exchanges: dict[str, Exchange], name: str) -> None:
    exchange = exchanges[name]
    ours = list(exchange.ours.values("WWW-Authenticate"))
    assert [shape(line) for line in ours] == [shape(line) for line in exchange.recorded_lines()]


def shape(line: str) -> list[str] | str:
    return line if line.startswith("Basic") else list(fields_of(line))


@pytest.mark.parametrize("name", [name for name in names() if name not in STATUSES])
def test_recorded_request_gets_recorded_body(exchanges: dict[str, Exchange], name: str) -> None:
    exchange = exchanges[name]
    body = exchange.recorded["body"]
    if body == "":
        assert (exchange.ours.body != b"") == (name in WITH_REASON)
        return
    assert comparable(json_of(exchange.ours)) == comparable(body)


def comparable(plain: dict[str, Any]) -> dict[str, Any]:
    """The body without what varies, and without messages."""
    words = {name: "words" for name in ("error", "nonce", "sessionId", "serverSignature") if name in plain}
    plain = {name: value for name, value in (plain | words).items() if name != "message"}
    return json.loads(re.sub(r'"timestamp": "[^"]*"', '"timestamp": "T"', json.dumps(plain)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", names("session-put-", "session-post-this", "session-life-1", "session-life-2"))
def test_response_in_recorded_session_has_its_id_and_nonce(exchanges: dict[str, Exchange], name: str) -> None:
    ours, recorded = json_of(exchanges[name].ours), exchanges[name].recorded["body"]
    assert (ours["sessionId"], ours["nonce"]) == (recorded["sessionId"], recorded["nonce"])


@pytest.mark.parametrize("name", ["auth-server-signature", "session-post-cnonce"])
def test_server_signs_with_recorded_key(exchanges: dict[str, Exchange], name: str) -> None:
    exchange = exchanges[name]
    if name.startswith("auth"):
        (line,) = exchange.ours.values("WWW-Authenticate")
        fields = fields_of(line)
    else:
        fields = {key.lower(): value for key, value in json_of(exchange.ours).items()}
    cnonce = bytes.fromhex(exchange.vector["keys"]["cnonce"])
    signature = from_base64(fields["serversignature"], "signature")
    assert fields["serveralg"] == "SHA-256"
    assert SERVER_KEY.public.verify("SHA-256", signature, from_base64(fields["nonce"], "nonce") + cnonce)
    assert SERVER_KEY.public.verify("SHA-256", *recorded_signature(exchange))


def recorded_signature(exchange: Exchange) -> tuple[bytes, bytes]:
    """The recorded signature and its data; with an RSA key only one signature is valid."""
    keys = exchange.vector["keys"]
    text = json.dumps(exchange.recorded)
    found = re.search(r'serverSignature[=\\": ]+([A-Za-z0-9+/=]+)', text)
    assert found is not None
    return from_base64(found[1], "signature"), bytes.fromhex(keys["nonce"]) + bytes.fromhex(keys["cnonce"])

"""Planted secrets over a whole session of HTTP: they are in no log, metric or refusal.

A server with full logging gets every request that has a secret: passwords, right and wrong, as clients and careless
people send them; sessions and proofs; tokens; keys in new records, in refused bodies and in aborted requests. None of
them may appear anywhere except where it was requested.
"""

import base64
import hashlib
import hmac
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from perseid.registry.installation.installation import KNOWN_CLIENTS
from tests.server.faults.machine import PROC, eventually, named
from tests.server.faults.sources import metrics_page
from tests.server.http.contexts import basic
from tests.server.http.raw import NO_LIMITS, Answer, Raw, connected, request
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET, copy_to
from tests.server.running import Serving, serving
from tests.server.test_no_secrets_in_logs import FORMATS, LOUD, PASSPHRASE, assert_hidden, fields_of, protected

WRONG = "a-wrong-password-that-somebody-typed"
NEW_KEY = "the-secret-key-of-a-new-record"
HEX_KEY = "not-in-hexadecimal-but-secret"
PRIVATE = "what only administrators may read here"
QUERIED = "a-secret-that-somebody-put-into-a-query"
COOKIE = "a-cookie-of-another-program"
WRONG_TOKEN = "perseid_k7qpx2maAAAABBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJ"
NO_SECRET = "a-name-that-is-no-secret"
NEVER_TOLD = (SECRET, WRONG, NEW_KEY, HEX_KEY, PRIVATE, QUERIED, COOKIE, WRONG_TOKEN, PASSPHRASE)

API = f"/api/handles/{PREFIX}/"
MINE = basic()["Authorization"]
JSON = {"Content-Type": "application/json"}


@dataclass
class Spy:
    """A client that notes what is secret and what is refused."""

    client: Raw
    server: Serving
    told: list[str] = field(default_factory=list)
    """What the server has told in confidence: sessions, nonces, tokens."""
    refusals: list[bytes] = field(default_factory=list)

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes | Any = None) -> Answer:
        octets = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = self.client.ask(request(method, target, headers, octets), method)
        self.note(answer)
        return answer

    def note(self, answer: Answer) -> None:
        if answer.status >= 400:
            self.refusals.append(answer.body + repr(answer.headers).encode())

    def broken(self, octets: bytes) -> None:
        """Send an invalid request over a connection of its own."""
        with connected(self.server.http) as client:
            self.note(client.ask(octets))


def use(spy: Spy) -> None:
    """Send everything that has a secret in it."""
    records = [
        {"index": 1, "type": "URL", "data": "https://example.org/"},
        {"index": 2, "type": "HS_SECKEY", "data": NEW_KEY, "permissions": "1100"},
        {"index": 3, "type": "NOTE", "data": PRIVATE, "permissions": "1100"},
    ]
    mine = {"Authorization": MINE} | JSON
    # Basic, right and wrong, encoded and not, with other schemes and rubbish behind it.
    assert spy.ask("PUT", f"{API}planted", mine, records).status == 201
    assert spy.ask("PUT", f"{API}planted?overwrite=false", mine, records).status == 409
    seen = spy.ask("GET", f"{API}planted?publicOnly=false", {"Authorization": MINE})
    assert PRIVATE in seen.body.decode()
    assert NEW_KEY in seen.body.decode()
    open_name = base64.b64encode(f"{ADMINISTRATOR}:{SECRET}".encode()).decode()
    assert spy.ask("GET", f"{API}planted?publicOnly=false", {"Authorization": f"basic {open_name}"}).status == 200
    doubly = base64.b64encode(f"300:{PREFIX}:{SECRET}".encode()).decode()
    for header in (
        basic(secret=WRONG)["Authorization"],
        basic(identity=f"300:{PREFIX}/nobody")["Authorization"],
        basic(identity="300:999/elsewhere")["Authorization"],
        f"Basic {SECRET}",
        f"Basic {doubly}",
        f"{MINE[:-1]}*",
        f"{MINE}, {MINE}",
        f"Digest username=x, response={WRONG}",
        f"Bearer {WRONG_TOKEN}",
        f"Bearer {SECRET}",
        f'Handle sessionId="{QUERIED}"',
        f'Handle id="300:0.NA/{PREFIX}", type="HS_SECKEY", cnonce="{QUERIED}", alg="SHA1", signature="{WRONG}"',
        f'Handle clientCert="{SECRET}',
        SECRET,
    ):
        for path in (f"{API}planted", "/api/v1/tokens", "/hrls/handles/?URL=*"):
            assert spy.ask("GET", path, {"Authorization": header}).status in (400, 401, 403), (header, path)
        spy.ask("GET", f"/{PREFIX}/n1", {"Authorization": header, "Cookie": f"x={COOKIE}"})
    # Where no secret belongs: queries, forms, user information, bodies that are refused.
    for path in (
        f"{API}planted?password={QUERIED}",
        f"{API}planted?index={QUERIED}",
        f"{API}planted?callback={QUERIED}&index=x",
        f"/{PREFIX}/n1?action=explain&sessionId={QUERIED}",
        f"/api/sessions/this?sessionId={QUERIED}",
        f"/api/v1/names/parse?text=x&secret={QUERIED}",
        f"/api/verifications/300:0.NA/{PREFIX}?nonce=AAAA&cnonce=AAAA&alg=SHA1&signature={quote(WRONG)}",
    ):
        spy.ask("GET", path, {})
    for broken in (
        [{"index": 1, "type": "HS_SECKEY", "data": {"format": "hex", "value": HEX_KEY}}],
        [{"index": "x", "type": "HS_SECKEY", "data": NEW_KEY}],
        [{"index": 1, "type": "HS_SECKEY", "data": {"format": NEW_KEY, "value": "x"}}],
        [{"index": 0, "type": "HS_SECKEY", "data": NEW_KEY}],
        {"values": {"HS_SECKEY": NEW_KEY}},
        NEW_KEY,
    ):
        assert spy.ask("PUT", f"{API}refused", mine, broken).status == 400
        spy.ask("POST", "/api/v1/handles", mine, {"handle": f"{PREFIX}/refused", "values": broken})
    whole = json.dumps(records).encode()
    assert spy.ask("PUT", f"{API}refused", mine, whole[: whole.index(b"-new-record")]).status == 400
    assert spy.ask("PUT", f"{API}refused", mine, whole.decode().encode("utf-16")).status == 400
    tokens(spy)
    sessions(spy)
    # What is no request: the head of it may be a password, and the body a key.
    host = b"Host: x\r\n"
    spy.broken(b"GET / HTTP/1.1\r\n" + host + f"Authorization: {MINE}\n\r\n".encode())
    spy.broken(b"GET / HTTP/1.1\r\n" + host + f"Authorization : {SECRET}\r\n\r\n".encode())
    spy.broken(f"GET http://admin:{SECRET}@localhost/ HTTP/1.1\r\n".encode() + host + b"\r\n")
    spy.broken(f"{SECRET}\r\n\r\n".encode())
    spy.broken(f"GET /{PREFIX}/n1 {SECRET}\r\n\r\n".encode())
    spy.broken(b"PUT / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n" + f"{NEW_KEY}\r\n".encode())
    spy.broken(b"GET / HTTP/1.1\r\n" + host + f"Authorization: {MINE}\r\nX: {'x' * 9_000}\r\n\r\n".encode())
    with connected(spy.server.http) as client:
        client.send(request("PUT", f"{API}cut", mine, whole)[:-60])
    # From a connection that others can read they do not count, and are refused.
    open_to_all = mine | {"X-Forwarded-For": "192.0.2.1"}
    with connected(spy.server.http) as client:
        answer = client.ask(request("PUT", f"{API}planted", open_to_all, whole))
        assert answer.status == 403
        spy.note(answer)
    assert spy.ask("DELETE", f"{API}planted", mine).status == 200


def tokens(spy: Spy) -> None:
    """Issue a token, use it, misuse it and revoke it."""
    wanted = {"scopes": ["create", "update"], "namespaces": [PREFIX], "label": "for the test"}
    made = spy.ask("POST", "/api/v1/tokens", {"Authorization": MINE} | JSON, wanted)
    assert made.status == 201, made
    token, name = made.json["token"], f"{PREFIX}/by-{made.json['id']}"
    spy.told.append(token)
    bearer = {"Authorization": f"Bearer {token}"} | JSON
    new = {"handle": name, "values": [{"type": "HS_SECKEY", "data": NEW_KEY, "index": 7}]}
    assert spy.ask("POST", "/api/v1/handles", bearer, new).status == 201
    assert spy.ask("DELETE", f"/api/v1/handles/{quote(name, safe='')}", bearer).status == 403
    altered = token[:-1] + ("a" if token[-1] != "a" else "b")
    assert spy.ask("GET", "/api/v1/tokens", {"Authorization": f"Bearer {altered}"}).status == 401
    assert spy.ask("GET", f"{API}n1", {"Authorization": f"Bearer {token} {token}"}).status == 401
    listed = spy.ask("GET", "/api/v1/tokens", {"Authorization": MINE})
    assert listed.status == 200
    assert token not in listed.body.decode()
    revoked = spy.ask("DELETE", f"/api/v1/tokens/{made.json['id']}", {"Authorization": MINE})
    assert revoked.status in (200, 204), revoked
    assert spy.ask("POST", "/api/v1/handles", bearer, new).status == 401


def sessions(spy: Spy) -> None:
    """Start a session, authenticate it wrongly and correctly, use it and end it."""
    begun = spy.ask("POST", "/api/sessions", {}).json
    cnonce = os.urandom(16)
    octets = base64.b64decode(begun["nonce"]) + cnonce
    right = base64.b64encode(hmac.new(SECRET.encode(), octets, hashlib.sha256).digest()).decode()
    fields = {"id": f"300:0.NA/{PREFIX}", "type": "HS_SECKEY", "alg": "HMAC-SHA256"}
    fields |= {"sessionId": begun["sessionId"], "cnonce": base64.b64encode(cnonce).decode()}
    assert spy.ask("PUT", "/api/sessions/this", JSON, fields | {"signature": right[::-1]}).status in (400, 401)
    proved = spy.ask("PUT", "/api/sessions/this", JSON, fields | {"signature": right})
    assert proved.json["authenticated"] is True
    spy.told += [begun["sessionId"], begun["nonce"], right]
    header = {"Authorization": f'Handle sessionId="{begun["sessionId"]}"'}
    assert PRIVATE in spy.ask("GET", f"{API}planted?publicOnly=false", header).body.decode()
    assert spy.ask("GET", f"/api/sessions/this?sessionId={quote(begun['sessionId'])}", {}).status == 200
    assert spy.ask("DELETE", "/api/sessions/this", header).status == 204
    assert spy.ask("GET", f"{API}planted", header).status == 401


@FORMATS
def test_no_secret_is_revealed_over_http(tmp_path: Path, form: str) -> None:
    directory = protected(copy_to(tmp_path))
    settings = LOUD | NO_LIMITS | {"PERSEID_LOG_FORMAT": form, "PERSEID_LIMITS_FAILED_PROOFS": "100000"}
    with serving(directory, **settings) as server:
        with connected(server.http, secure=form == "json") as client:  # one in each form is enough
            spy = Spy(client, server)
            use(spy)
        assert len(spy.refusals) > 50
        os.kill(server.pid, signal.SIGHUP)
        eventually(lambda: "were reloaded" in server.errors, "a line about the settings")
        with connected(server.http) as client:
            assert client.get(f"/{PREFIX}/{NO_SECRET}").status == 404
        eventually(lambda: NO_SECRET in server.errors, "the line of the last request")
        for line in server.errors.splitlines():
            fields_of(line, form)
        places = {"the log": (server.folder / "stderr").read_bytes() + (server.folder / "stdout").read_bytes()}
        with pytest.raises(AssertionError, match="is in the log"):
            assert_hidden([NO_SECRET.encode()], places)  # what is there is found
        places["the metrics"] = metrics_page(server).encode()
        for name, pid in named(server).items():
            places[f"the command line of {name}"] = (PROC / str(pid) / "cmdline").read_bytes()
    known = directory / KNOWN_CLIENTS
    assert known.stat().st_mode & 0o777 == 0o600
    places["the known clients"] = known.read_bytes()
    assert_hidden([text.encode() for text in (*NEVER_TOLD, *spy.told, MINE)], places)
    echoed = [secret for secret in NEVER_TOLD if secret != QUERIED]  # which a refusal of a parameter repeats
    assert_hidden([secret.encode() for secret in echoed], {"a refusal": b"\n".join(spy.refusals)})

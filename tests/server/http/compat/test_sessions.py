"""`/api/sessions`: sessions are started, authenticated, used and ended."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.encoding import from_base64, to_base64
from perseid.records.record import Value
from perseid.registry.commands.records import Create, Modify, Remove
from perseid.server.http.auth.session_table import MAX_UNPROVED_PER_ADDRESS
from perseid.server.http.messages import Client, Request, Response
from perseid.server.native.work import WorkKind
from perseid.server.state.state import SharedState, StateFull
from tests.registry.registries import OPERATOR
from tests.server.http.auth_servers import basic_header, fields_of, handle_header, secret_at
from tests.server.http.client_certificates import named
from tests.server.http.contexts import Harness, header_of, json_of, recorded_harness
from tests.server.native.native_servers import ADMIN, PREFIX
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY

SEC, RSA = f"301:{ADMIN}", f"300:{ADMIN}"
CNONCE = bytes(range(16))
SESSIONS, THIS = "/api/sessions", "/api/sessions/this"
HIDDEN = f"/api/handles/{PREFIX}/vec-std?index=50"
USER = f"{PREFIX}/user"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server() -> Iterator[Harness]:
    with recorded_harness() as made:
        yield made


def begin(server: Harness, **how: Any) -> dict[str, Any]:
    answer = server.post(SESSIONS, **how)
    assert answer.status == 201
    plain = json_of(answer)
    assert isinstance(plain, dict)
    return plain


def proof(session: dict[str, Any], identity: str = SEC, secret: bytes = SECRET) -> dict[str, str]:
    nonce = from_base64(session["nonce"], "nonce")
    return {
        "sessionId": session["sessionId"],
        "id": identity,
        "type": "HS_SECKEY",
        "cnonce": to_base64(CNONCE),
        "alg": "SHA256",
        "signature": to_base64(hashlib.sha256(secret + nonce + CNONCE + secret).digest()),
    }


def within(server: Harness, method: str, fields: dict[str, Any] | str, **how: Any) -> Response:
    body = fields if isinstance(fields, str) else json.dumps(fields)
    return server.ask(method, THIS, body, headers=JSON | how.pop("headers", {}), **how)


def in_session(session: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": handle_header(sessionId=session["sessionId"])}


# Start


def test_new_session_has_id_and_nonce(server: Harness) -> None:
    answer = server.post(SESSIONS)
    assert answer.status == 201
    assert header_of(answer, "Location") == THIS
    assert header_of(answer, "Cache-Control") == "no-store"
    plain = json_of(answer)
    assert list(plain) == ["sessionId", "nonce"]
    assert len(from_base64(plain["nonce"], "nonce")) == 16
    assert len(from_base64(plain["sessionId"], "id")) * 8 == 192
    assert plain != begin(server)


@pytest.mark.parametrize("path", ["/api/sessions", "/api/sessions/", "/api/sessions?pretty"])
def test_trailing_slash_is_ignored(server: Harness, path: str) -> None:
    assert server.post(path, "{}", headers=JSON).status == 201


def test_session_can_be_authenticated_at_once(server: Harness) -> None:
    for how in (
        {"headers": {"Authorization": basic_header(SEC, SECRET)}},
        {"certificate": named(RSA)},
    ):
        plain = begin(server, **how)
        assert list(plain) == ["sessionId", "nonce", "authenticated", "id"]
        assert plain["authenticated"] is True
        assert server.get(HIDDEN, headers=in_session(plain)).status == 200


@pytest.mark.parametrize(
    "how",
    [
        {"headers": {"Authorization": basic_header(SEC, b"wrong")}},
        {"headers": {"Authorization": "Basic ?"}},
        {"headers": {"Authorization": "Bearer x"}},
        {"headers": {"Authorization": handle_header(id=SEC)}},
        {"headers": {"Authorization": handle_header(version="7")}},
        {"certificate": named("nobody")},
    ],
)
def test_wrong_proof_still_starts_session_with_error(server: Harness, how: dict[str, Any]) -> None:
    plain = begin(server, **how)
    assert list(plain) == ["sessionId", "nonce", "error"]
    after = server.get(THIS, headers=in_session(plain))
    assert list(json_of(after)) == ["sessionId", "nonce"]


def test_signature_before_nonce_is_refused(server: Harness) -> None:
    fields = proof({"sessionId": "", "nonce": "AAAA"})
    del fields["sessionId"]
    plain = begin(server, body=json.dumps(fields), headers=JSON)
    assert "error" in plain
    assert server.verdicts[-1].succeeded is False


def test_client_cannot_choose_session_id(server: Harness) -> None:
    for how in (
        {"body": '{"sessionId": "mine"}', "headers": JSON},
        {"headers": {"Authorization": handle_header(sessionId="mine")}},
    ):
        answer = server.post(SESSIONS, **how)
        assert answer.status == 400
        assert "sessionId" in json_of(answer)["error"]
    assert server.post(f"{SESSIONS}?sessionid=mine").status == 400


def test_server_proves_itself_for_client_nonce(server: Harness) -> None:
    for plain in (
        begin(server, body=json.dumps({"cnonce": to_base64(CNONCE)}), headers=JSON),
        begin(server, headers={"Authorization": handle_header(cnonce=CNONCE)}),
    ):
        assert list(plain) == ["sessionId", "nonce", "serverAlg", "serverSignature"]
        signed = from_base64(plain["nonce"], "nonce") + CNONCE
        assert SERVER_KEY.public.verify("SHA-256", from_base64(plain["serverSignature"], "signature"), signed)
    assert "serverSignature" not in begin(server, body='{"cnonce": "?"}', headers=JSON)
    session = begin(server)
    again = json_of(within(server, "PUT", {"sessionId": session["sessionId"], "cnonce": to_base64(CNONCE)}))
    assert list(again) == ["sessionId", "nonce", "serverAlg", "serverSignature"]


@pytest.mark.parametrize("body", ["[]", "null", "{", "3", '"x"', '{"id": {}}', '{"id": [1]}', "\xff", '{"a":' * 100])
def test_body_must_be_an_object(server: Harness, body: str) -> None:
    for method, path in (("POST", SESSIONS), ("PUT", THIS)):
        answer = server.ask(method, path, body, headers=JSON)
        assert answer.status == 400
        assert json_of(answer)["error"]


def test_invalid_header_is_refused(server: Harness) -> None:
    for header in ('Handle a="1" b="2"', "Handle sessionId", "Handle id=%FF"):
        for method, path in (("POST", SESSIONS), ("PUT", THIS), ("GET", THIS)):
            assert server.ask(method, path, headers={"Authorization": header}).status == 400


def test_too_many_fields_are_refused(server: Harness) -> None:
    answer = server.post(SESSIONS, json.dumps({str(number): "" for number in range(65)}), headers=JSON)
    assert answer.status == 400


# Authentication


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("where", ["json", "form", "query", "header"])
def test_fields_may_be_in_header_body_or_query(server: Harness, method: str, where: str) -> None:
    session = begin(server)
    fields = proof(session)
    match where:
        case "json":
            answer = within(server, method, fields | {"version": "0"})
        case "header":
            answer = server.ask(method, THIS, headers={"Authorization": handle_header(**fields)})
        case "form":
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = server.ask(method, THIS, urlencode(fields), headers=form)
        case _:
            answer = server.ask(method, f"{THIS}/?{urlencode(fields)}")
    assert answer.status == 200
    assert json_of(answer) == {**session, "authenticated": True, "id": SEC}
    assert answer.identity == SEC
    assert server.get(HIDDEN, headers=in_session(session)).status == 200


def test_header_precedes_body_and_body_precedes_query(server: Harness) -> None:
    session, other = begin(server), begin(server)
    fields = proof(session)
    wrong = {"id": "999:x/y"}
    answer = server.put(f"{THIS}?{urlencode(wrong | {'sessionId': other['sessionId']})}", fields)
    assert json_of(answer)["sessionId"] == session["sessionId"]
    answer = server.put(THIS, wrong | {"sessionID": "nope"}, headers={"Authorization": handle_header(**fields)})
    assert answer.status == 200


def test_id_is_percent_encoded_in_header_only(server: Harness) -> None:
    secret = Value(300, "HS_SECKEY", b"s")
    server.registry.do(Create(Handle.parse(f"{PREFIX}/50%25 ü"), (secret,)), OPERATOR, "cli")
    for identity in (f"300:{PREFIX}/50%25 ü", f"{PREFIX}/50%25 ü"):
        session = begin(server)
        fields = proof(session, identity, b"s")
        assert json_of(within(server, "PUT", fields))["id"] == identity
        header = {"Authorization": handle_header(**fields)}
        assert json_of(server.ask("PUT", THIS, headers=header))["id"] == identity


@pytest.mark.parametrize(("key", "index"), [(RSA_KEY, 300), (DSA_KEY, 302)])
@pytest.mark.parametrize("alg", ["SHA1", "SHA256"])
def test_keys_authenticate_session(server: Harness, key: Any, index: int, alg: str) -> None:
    for identity in (f"{index}:{ADMIN}", ADMIN):
        session = begin(server)
        signed = from_base64(session["nonce"], "nonce") + CNONCE
        signature = key.sign("SHA1" if alg == "SHA1" else "SHA-256", signed)
        fields = proof(session, identity) | {"type": "HS_PUBKEY", "alg": alg, "signature": to_base64(signature)}
        assert json_of(within(server, "PUT", fields)) == {**session, "authenticated": True, "id": identity}
        assert server.get(HIDDEN, headers=in_session(session)).identity == f"{index}:{ADMIN}"


def test_basic_authenticates_session_named_in_body(server: Harness) -> None:
    session = begin(server)
    fields = {"sessionId": session["sessionId"]}
    answer = within(server, "PUT", fields, headers={"Authorization": basic_header(SEC, SECRET)})
    assert json_of(answer)["authenticated"] is True
    wrong = within(server, "PUT", fields, headers={"Authorization": basic_header(SEC, b"wrong")})
    assert wrong.status == 401


def test_certificate_authenticates_session_without_replacing_identity(server: Harness) -> None:
    session = begin(server)
    fields = {"sessionId": session["sessionId"]}
    assert json_of(within(server, "PUT", fields, certificate=named(RSA)))["id"] == RSA
    within(server, "PUT", proof(session))
    assert json_of(within(server, "PUT", fields, certificate=named(RSA)))["id"] == SEC


@pytest.mark.parametrize(
    "change",
    [
        {"signature": "AAAA"},
        {"signature": ""},
        {"alg": "SHA-512"},
        {"alg": "SHA1"},
        {"type": "HS_PUBKEY"},
        {"cnonce": "AAAA"},
        {"id": f"399:{ADMIN}"},
        {"id": f"301:{PREFIX}/nobody"},
        {"version": "1"},
        {"id": ""},
    ],
)
def test_wrong_proof_gets_challenge(server: Harness, change: dict[str, str]) -> None:
    session = begin(server)
    answer = within(server, "PUT", proof(session) | change)
    assert answer.status == 401
    plain = json_of(answer)
    assert list(plain) == ["sessionId", "nonce", "error"]
    offered, line = answer.values("WWW-Authenticate")
    assert offered.startswith("Basic")
    fields = fields_of(line)
    assert (fields["sessionid"], fields["nonce"]) == (session["sessionId"], session["nonce"])
    assert "error" in fields
    assert server.get(HIDDEN, headers=in_session(session)).status == 200, "as nobody"
    assert json_of(server.get(THIS, headers=in_session(session))) == session


def test_wrong_proof_keeps_session_identity(server: Harness) -> None:
    session = begin(server)
    within(server, "PUT", proof(session))
    answer = within(server, "PUT", proof(session, secret=b"wrong"))
    assert answer.status == 401
    plain = json_of(answer)
    assert (plain["authenticated"], plain["id"]) == (True, SEC)
    assert "error" in plain
    assert json_of(server.get(THIS, headers=in_session(session)))["authenticated"] is True


def test_second_identity_replaces_first(server: Harness) -> None:
    server.registry.do(Create(Handle.parse(USER), (secret_at(300),)), OPERATOR, "cli")
    session = begin(server)
    within(server, "PUT", proof(session))
    answer = within(server, "PUT", proof(session, f"300:{USER}", b"a secret"))
    assert json_of(answer)["id"] == f"300:{USER}"
    assert server.get(HIDDEN, headers=in_session(session)).status == 403


def test_proof_without_session_is_ignored(server: Harness) -> None:
    for method in ("GET", "PUT", "POST"):
        answer = server.ask(method, THIS)
        assert answer.status == 200
        assert json_of(answer) == {"authenticated": False}
    fields = proof({"sessionId": "", "nonce": "AAAA"})
    del fields["sessionId"]
    assert json_of(within(server, "PUT", fields)) == {"authenticated": False}
    assert server.kinds == []


# Reading and ending


def test_session_can_be_read(server: Harness) -> None:
    session = begin(server)
    assert json_of(server.get(THIS, headers=in_session(session))) == session
    assert json_of(server.get(f"{THIS}?sessionId={session['sessionId']}")) == session
    within(server, "PUT", proof(session))
    answer = server.get(f"{THIS}?pretty", headers=in_session(session))
    assert json_of(answer) == {**session, "authenticated": True, "id": SEC}
    assert answer.body.startswith(b'{\n  "sessionId"')
    assert server.head(THIS, headers=in_session(session)).status == 200


def test_get_does_not_authenticate(server: Harness) -> None:
    session = begin(server)
    answer = server.get(f"{THIS}?{urlencode(proof(session))}", certificate=named(RSA))
    assert json_of(answer) == session
    assert server.kinds == []


def test_jsonp_is_not_supported(server: Harness) -> None:
    session = begin(server)
    answer = server.get(f"{THIS}?callback=f&sessionId={session['sessionId']}")
    assert header_of(answer, "Content-Type") == "application/json;charset=utf-8"
    assert answer.body.startswith(b"{")


def test_delete_ends_session(server: Harness) -> None:
    session = begin(server)
    within(server, "PUT", proof(session))
    answer = server.delete(THIS, headers=in_session(session))
    assert (answer.status, answer.body) == (204, b"")
    for method in ("GET", "PUT", "DELETE"):
        assert server.ask(method, THIS, headers=in_session(session)).status == 403
    after = server.get(f"/api/handles/{PREFIX}/vec-std?index=1", headers=in_session(session))
    assert after.status == 401, "public reads included"
    (line,) = after.values("WWW-Authenticate")
    assert fields_of(line)["sessionid"] != session["sessionId"]


def test_unknown_session_is_refused_and_counts_as_failure(server: Harness) -> None:
    session = begin(server)
    first, others = session["sessionId"][0], session["sessionId"][1:]
    unknown = {"Authorization": handle_header(sessionId=("b" if first == "a" else "a") + others)}
    for method in ("GET", "PUT", "POST", "DELETE"):
        answer = server.ask(method, THIS, headers=unknown)
        assert answer.status == 403
        assert "the session does not exist or has ended" in json_of(answer)["error"]
    assert [verdict.succeeded for verdict in server.verdicts] == [False] * 4
    assert server.delete(THIS).status == 403


@pytest.mark.parametrize("path", ["/api/sessions/x", "/api/sessions/this/x", "/api/sessions//", "/api/sessions/This"])
def test_only_this_session_can_be_addressed(server: Harness, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert server.ask(method, path).status == 403


def test_session_ends_with_its_key(server: Harness) -> None:
    server.registry.do(Create(Handle.parse(USER), (secret_at(300), secret_at(301))), OPERATOR, "cli")
    changes: list[Any] = [Modify(Handle.parse(USER), (secret_at(300, b"other"),)), Remove(Handle.parse(USER), (301,))]
    for index, change in zip((300, 301), changes, strict=True):
        session = begin(server)
        within(server, "PUT", proof(session, f"{index}:{USER}", b"a secret"))
        server.registry.do(change, OPERATOR, "cli")
        answer = server.get(THIS, headers=in_session(session))
        assert answer.status == 403
        assert "has changed" in json_of(answer)["error"]
        assert (
            "the session does not exist or has ended" in json_of(server.get(THIS, headers=in_session(session)))["error"]
        )


def test_request_in_session_with_changed_key_gets_challenge(server: Harness) -> None:
    server.registry.do(Create(Handle.parse(USER), (secret_at(300),)), OPERATOR, "cli")
    session = begin(server)
    within(server, "PUT", proof(session, f"300:{USER}", b"a secret"))
    server.registry.do(Modify(Handle.parse(USER), (secret_at(300, b"other"),)), OPERATOR, "cli")
    answer = server.get(HIDDEN, headers=in_session(session))
    assert answer.status == 401
    assert fields_of(list(answer.values("WWW-Authenticate"))[-1])["sessionid"] != session["sessionId"]
    assert server.get(THIS, headers=in_session(session)).status == 403


# Insecure connections


def test_plain_http_has_no_sessions(server: Harness) -> None:
    session = begin(server)
    within(server, "PUT", proof(session))
    for method, path in (("POST", SESSIONS), ("GET", THIS), ("PUT", THIS), ("DELETE", THIS)):
        answer = server.ask(method, path, headers=in_session(session), secure=False)
        assert answer.status == 403
        assert "HTTPS" in json_of(answer)["error"]
        assert not list(answer.values("WWW-Authenticate"))
    assert json_of(server.get(THIS, headers=in_session(session), secure=False, local=True))["authenticated"] is True


# Ambient credentials


@pytest.mark.parametrize(
    "more", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_cross_site_page_cannot_authenticate_session(server: Harness, more: dict[str, str]) -> None:
    header = {"Authorization": basic_header(SEC, SECRET)} | more
    plain = begin(server, headers=header)
    assert "another site" in plain["error"]
    assert "authenticated" not in plain
    assert "another site" in begin(server, headers=more, certificate=named(RSA))["error"]
    session = begin(server)
    assert within(server, "PUT", proof(session), headers=more).status == 200, "no browser sends that by itself"


def test_cross_site_form_cannot_authenticate_session(server: Harness) -> None:
    """Also in old browsers that do not send the origin: no form is sent as JSON."""
    session = begin(server)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode({"sessionId": session["sessionId"]})
    for how in ({"headers": form | {"Authorization": basic_header(SEC, SECRET)}}, {"certificate": named(RSA)}):
        answer = server.post(THIS, body, **{"headers": form, **how})
        assert answer.status == 401
        assert "application/json" in json_of(answer)["error"]
    assert json_of(server.get(THIS, headers=in_session(session))) == session


def test_own_page_can_authenticate_session(server: Harness) -> None:
    own = {"Origin": "https://hdl.example.org", "Sec-Fetch-Site": "same-origin"}
    header = {"Authorization": basic_header(SEC, SECRET)} | own | JSON
    assert begin(server, body="{}", headers=header)["authenticated"] is True


# Properties


TEXTS = st.text(max_size=20) | st.sampled_from(("HS_SECKEY", "HS_PUBKEY", "SHA256", "0", "AAAA", SEC, "true"))
NAMES = st.sampled_from(("sessionId", "id", "type", "cnonce", "alg", "signature", "salt", "iterations", "length", "x"))
PLAIN = st.dictionaries(NAMES, TEXTS | st.integers() | st.booleans() | st.none() | st.floats(), max_size=6)


@given(PLAIN, st.sampled_from(("GET", "PUT", "POST", "DELETE")), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_is_at_most_refused(server: Harness, plain: dict[str, Any], method: str, this: bool) -> None:
    body = json.dumps(plain)
    path = THIS if this or method != "POST" else SESSIONS
    assert server.ask(method, path, body, headers=JSON).status in (200, 201, 400, 403)


@given(st.binary(max_size=60), st.sampled_from(("Handle ", "Basic ", "")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_is_at_most_refused(server: Harness, octets: bytes, scheme: str) -> None:
    header = {"Authorization": scheme + octets.decode("latin-1")}
    for method, path in (("POST", SESSIONS), ("PUT", THIS), ("DELETE", THIS)):
        assert server.ask(method, path, headers=header).status in (200, 201, 400, 403)


def test_many_challenges_of_one_address_are_bounded(server: Harness) -> None:
    mine = begin(server, host="192.0.2.9")
    for _ in range(MAX_UNPROVED_PER_ADDRESS + 10):
        assert server.put(f"/api/handles/{PREFIX}/new", [{"index": 1, "type": "URL", "data": "x"}]).status == 401
    assert len(server.context.sessions) == MAX_UNPROVED_PER_ADDRESS + 1
    assert within(server, "PUT", proof(mine)).status == 200


def test_concurrent_requests_of_one_session(server: Harness) -> None:
    session = begin(server)
    within(server, "PUT", proof(session))

    async def many() -> list[Response]:
        client = Client("192.0.2.1", secure=True)
        header = [("authorization", in_session(session)["Authorization"])]
        return await asyncio.gather(
            *[server.answer(Request("GET", HIDDEN.encode(), header, b"", client)) for _ in range(10)]
        )

    assert {answer.status for answer in asyncio.run(many())} == {200}
    assert WorkKind.VERIFY in server.kinds


def test_full_state_is_a_busy_server(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    started = begin(server)

    def fail(*_: object) -> None:
        raise StateFull

    with monkeypatch.context() as full:
        full.setattr(SharedState, "write", fail)
        for refused in (
            within(server, "PUT", proof(started)),
            server.delete(THIS, headers=in_session(started)),
        ):
            assert (refused.status, header_of(refused, "Retry-After") is None) == (503, False)
    assert server.delete(THIS, headers=in_session(started)).status == 204

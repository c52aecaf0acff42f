"""Sign-in and sessions of the console: proofs, cookies, timeouts, forged forms, removed keys and tokens."""

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.encoding import from_base64, to_base64
from perseid.records.record import Value
from perseid.registry.commands.records import Remove
from perseid.registry.identity import Anonymous
from perseid.server.http.auth import web_sessions
from perseid.server.http.auth.web_sessions import (
    IDLE_SECONDS,
    MAX_PER_IDENTITY,
    MAX_SECONDS,
    SECURE_COOKIE,
    USE_INTERVAL,
    WebSessions,
    read_cookie,
)
from perseid.server.http.messages import Client, Request
from tests.server.http.console.console_user import FORM, ConsoleUser
from tests.server.http.contexts import Harness, basic, harness, header_of
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET
from tests.server.shared_state import make_state
from tests.wire.key_material import RSA_KEY

OTHER = "300:12345/other"


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as made:
        create(made, "12345/other", Value(300, "HS_SECKEY", b"other-secret"))
        create(made, "12345/signer", Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes()))
        yield made


def make_token(server: Harness) -> str:
    answer = server.post(
        "/api/v1/tokens",
        json.dumps({"label": "console", "scopes": ["create", "update", "read"], "all_namespaces": True}),
        headers={**basic(), "Content-Type": "application/json"},
    )
    assert answer.status == 201, answer.body
    return str(json.loads(answer.body)["token"])


def test_every_page_leads_to_sign_in_and_back(server: Harness) -> None:
    user = ConsoleUser(server)
    user.get("/console/sign-in?next=/console/jobs%3Fx%3D1")
    assert user.form("/sign-in").fields["next"] == "/console/jobs?x=1"
    first = server.get("/console/jobs?x=1")
    assert (first.status, header_of(first, "Location")) == (303, "/console/sign-in?next=%2Fconsole%2Fjobs%3Fx%3D1")


def test_secret_starts_a_session(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    assert f"Signed in as {ADMINISTRATOR}" in user.text
    assert header_of(user.page, "Cache-Control") == "no-store"


@pytest.mark.parametrize(
    ("identity", "secret"), [(ADMINISTRATOR, "wrong"), ("300:12345/nobody", SECRET), ("nonsense", SECRET)]
)
def test_wrong_proof_starts_no_session(server: Harness, identity: str, secret: str) -> None:
    user = ConsoleUser(server)
    user.get("/console/sign-in")
    user.submit("/sign-in", identity=identity, secret=secret)
    assert user.page.status == 403
    assert user.alert
    assert user.cookie == ""
    assert SECRET not in user.page.body.decode()
    assert any(verdict.succeeded is False for verdict in server.verdicts) or identity == "nonsense"


@pytest.mark.parametrize(
    ("method", "fields", "words"),
    [
        (
            "secret",
            {"identity": ADMINISTRATOR, "secret": "wrong"},
            "The identity or the secret is wrong. Check the identity and its secret or key.",
        ),
        ("secret", {"identity": "ann", "secret": "wrong"}, "'ann' is not an identity. Write INDEX:HANDLE, such as"),
        (
            "secret",
            {"identity": "300:", "secret": "wrong"},
            "'300:' is not an identity. Write INDEX:HANDLE, such as 300:",
        ),
        ("token", {"secret": "nonsense"}, "This is not a token. Enter the whole token, which starts with perseid_."),
        ("token", {"secret": "perseid_nonsense"}, "Enter the whole token, as it was shown when it was created."),
        ("key", {"identity": ADMINISTRATOR}, "The challenge has expired. Choose the key file again."),
    ],
)
def test_failed_sign_in_says_what_to_do(server: Harness, method: str, fields: dict[str, str], words: str) -> None:
    user = ConsoleUser(server)
    user.post("/console/sign-in", {"method": method, **fields})
    assert user.page.status == 403
    assert words in user.alert


def test_cookie_is_protected(server: Harness) -> None:
    fields = {"method": "secret", "identity": ADMINISTRATOR, "secret": SECRET}
    answer = server.post("/console/sign-in", urlencode(fields), headers=FORM)
    cookie = header_of(answer, "Set-Cookie") or ""
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")
    local = server.post("/console/sign-in", urlencode(fields), headers=FORM, secure=False, local=True)
    assert (header_of(local, "Set-Cookie") or "").endswith("; Path=/; HttpOnly; SameSite=Lax")


def test_plain_connection_gets_no_form(server: Harness) -> None:
    answer = server.get("/console/sign-in", secure=False)
    assert answer.status == 403
    assert b'name="secret"' not in answer.body


def test_token_starts_a_session_within_its_scope(server: Harness) -> None:
    user = ConsoleUser(server)
    user.get("/console/sign-in")
    user.post("/console/sign-in", {"method": "token", "secret": make_token(server)})
    assert user.page.status == 200
    assert "with token" in user.text
    user.get("/console/log")
    assert "No entries." not in user.text
    assert "a token without the scope find, which the log needs" in user.text


def test_key_signs_in_with_a_signature(server: Harness) -> None:
    session = json.loads(server.post("/api/sessions").body)
    cnonce = bytes(range(16))
    signature = RSA_KEY.sign("SHA-256", from_base64(session["nonce"], "nonce") + cnonce)
    fields = {
        "method": "key",
        "identity": "300:12345/signer",
        "id": "300:12345/signer",
        "sessionId": session["sessionId"],
        "cnonce": to_base64(cnonce),
        "alg": "SHA-256",
        "signature": to_base64(signature),
    }
    user = ConsoleUser(server)
    user.post("/console/sign-in", fields)
    assert "Signed in as 300:12345/signer" in user.text
    again = ConsoleUser(server)
    again.post("/console/sign-in", fields)
    assert again.page.status == 403, "the nonce is valid once"


def test_session_id_changes_with_each_sign_in(server: Harness) -> None:
    """A cookie that an attacker has set before is worth nothing."""
    user = ConsoleUser(server, cookie="fixed-by-somebody-else")
    user.sign_in()
    first = user.cookie
    assert first != "fixed-by-somebody-else"
    fields = {"method": "secret", "identity": ADMINISTRATOR, "secret": SECRET}
    user.get("/console")
    user.post("/console/sign-in", fields | {"csrf": user.form("/sign-out").fields["csrf"]})
    assert user.cookie != first
    stale = ConsoleUser(server, cookie=first)
    assert "With a secret" in stale.read("/console")


def test_log_of_requests_has_the_identity(server: Harness) -> None:
    assert server.get("/console/sign-in").identity == ""
    user = ConsoleUser(server).sign_in()
    assert user.get("/console/jobs").identity == ADMINISTRATOR
    assert user.get("/console/jobs/0123456789abcdef").identity == ADMINISTRATOR, "also of refused requests"
    fields = user.form("/sign-out").fields
    cookie = {"Cookie": f"{SECURE_COOKIE}={user.cookie}"}
    assert server.post("/console/sign-out", urlencode(fields), headers={**FORM, **cookie}).identity == ADMINISTRATOR


def test_next_stays_in_the_console(server: Harness) -> None:
    fields = {"method": "secret", "identity": ADMINISTRATOR, "secret": SECRET}
    for wanted in (
        *("https://evil.example/", "//evil.example/console", "/console\\@evil", "/consoleevil", "/api", "x"),
        *("/console/../api", "/console/..//evil.example/", "/console/%2E%2e/api", "/console/./%2e./x", "/console/\t/x"),
        *("javascript:alert(1)", "/\\evil.example/console/", "///evil.example/console", "https:/console/x"),
    ):
        fields["next"] = wanted
        answer = server.post("/console/sign-in", urlencode(fields), headers=FORM)
        assert header_of(answer, "Location") == "/console"
    fields["next"] = "/console/jobs?x=1"
    answer = server.post("/console/sign-in", urlencode(fields), headers=FORM)
    assert header_of(answer, "Location") == "/console/jobs?x=1"


def test_form_of_another_site_is_refused(server: Harness) -> None:
    fields = {"method": "secret", "identity": ADMINISTRATOR, "secret": SECRET}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = server.post(
            "/console/sign-in", urlencode(fields), headers={"Content-Type": FORM["Content-Type"], **headers}
        )
        assert answer.status == 403
        assert header_of(answer, "Set-Cookie") is None


def test_form_without_its_token_is_refused(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    other = ConsoleUser(server).sign_in(OTHER, "other-secret")
    for token in ("", "x", "é", other.form("/sign-out").fields["csrf"]):
        user.post("/console/sign-out", {"csrf": token})
        assert user.page.status == 403
    assert user.get("/console").status == 200
    assert "Signed in as" in user.text


def test_sign_out_ends_the_session(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    copy = ConsoleUser(server, user.cookie)
    user.submit("/sign-out")
    assert "You have signed out." in user.text
    assert user.cookie == ""
    assert "With a secret" in copy.read("/console")


def test_sign_out_everywhere_ends_all_sessions_of_the_identity(server: Harness) -> None:
    user, elsewhere = ConsoleUser(server).sign_in(), ConsoleUser(server).sign_in()
    other = ConsoleUser(server).sign_in(OTHER, "other-secret")
    user.submit("/sign-out", everywhere="yes")
    assert "With a secret" in elsewhere.read("/console")
    assert "Signed in as" in other.read("/console")


def test_session_ends_with_its_key(server: Harness) -> None:
    user = ConsoleUser(server).sign_in(OTHER, "other-secret")
    server.registry.do(Remove(Handle.parse("12345/other"), (300,)), OPERATOR, "cli")
    user.get("/console")
    assert "Your session has ended. Sign in again." in user.text
    assert user.cookie == ""


def test_session_ends_with_its_token(server: Harness) -> None:
    token = make_token(server)
    user = ConsoleUser(server)
    user.get("/console/sign-in")
    user.post("/console/sign-in", {"method": "token", "secret": token})
    assert server.delete(f"/api/v1/tokens/{token.split('_')[1][:8]}", headers=basic()).status in (200, 404)
    listed = json.loads(server.get("/api/v1/tokens", headers=basic()).body)["tokens"]
    for each in listed:
        server.delete(f"/api/v1/tokens/{each['id']}", headers=basic())
    user.get("/console")
    assert "Your session has ended. Sign in again." in user.text


def test_script_needs_a_token_of_the_session(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    cookie = {"Cookie": f"{SECURE_COOKIE}={user.cookie}"}
    token = user.form("/sign-out").fields["csrf"]
    assert server.get("/api/v1/tokens", headers=cookie).status == 401
    assert server.get("/api/v1/tokens", headers={**cookie, "X-CSRF-Token": "x"}).status == 401
    assert server.get("/api/v1/tokens", headers={**cookie, "X-CSRF-Token": token}).status == 200
    assert server.get("/api/v1/tokens", headers={"X-CSRF-Token": token}).status == 401


def test_unknown_pages_and_methods(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    assert user.get("/console/nothing").status == 404
    answer = server.post("/console", "", headers=FORM)
    assert (answer.status, header_of(answer, "Allow")) == (405, "GET, OPTIONS")


# The table


def _client(sessions: WebSessions, now: float) -> web_sessions.WebSession:
    return sessions.begin(Anonymous(), None, "secret", now, "http")


def test_session_ends_without_use_and_after_a_day() -> None:
    sessions = WebSessions(make_state())
    session = _client(sessions, 0.0)
    assert sessions.find(session.id, IDLE_SECONDS + USE_INTERVAL + 1) is None
    session = _client(sessions, 0.0)
    now = 0.0
    while now + IDLE_SECONDS < MAX_SECONDS:
        now += IDLE_SECONDS
        assert sessions.find(session.id, now) is not None
    assert sessions.find(session.id, MAX_SECONDS + 1) is None


def test_sessions_of_one_identity_are_limited() -> None:
    sessions = WebSessions(make_state())
    made = [_client(sessions, float(number)) for number in range(MAX_PER_IDENTITY + 1)]
    assert sessions.find(made[0].id, 200.0) is None
    assert sessions.find(made[-1].id, 200.0) is not None
    assert len(sessions.of_identity(Anonymous(), 200.0)) == MAX_PER_IDENTITY


@given(st.text(max_size=200))
def test_arbitrary_ids_and_tokens_are_unknown(text: str) -> None:
    sessions = _SESSIONS
    assert sessions.find(text, 1.0) is None
    assert _SESSION.read_form_token(text) is None


_SESSIONS = WebSessions(make_state())
_SESSION = _client(_SESSIONS, 0.0)


def test_form_token_is_bound_to_its_session() -> None:
    other = _client(_SESSIONS, 0.0)
    token = _SESSION.make_form_token()
    assert _SESSION.read_form_token(token) is not None
    assert other.read_form_token(token) is None
    for position in range(len(token)):
        changed = token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
        assert _SESSION.read_form_token(changed) is None or position == len(token) - 1


@given(st.lists(st.text(st.characters(max_codepoint=255), max_size=60), max_size=3))
def test_arbitrary_cookies_are_read(headers: list[str]) -> None:
    request = Request("GET", b"/console", [("cookie", header) for header in headers], client=Client("::1", True))
    found = read_cookie(request)
    assert found is None or found in ";".join(headers)


def test_secret_is_in_no_repr(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    session = server.context.web_sessions.find(user.cookie, server.context.time())
    assert session is not None
    assert user.cookie not in repr(session)


def test_invalid_next_is_ignored(server: Harness) -> None:
    for wanted in ("//[", "http://[::1", "\x00", "é"):
        assert server.get("/console/sign-in?" + urlencode({"next": wanted})).status == 200


def test_token_in_a_url_is_not_read(server: Harness) -> None:
    token = make_token(server)
    answer = server.post(f"/console/sign-in?method=token&secret={token}", "", headers=FORM)
    assert header_of(answer, "Set-Cookie") is None


def test_token_does_not_end_sessions_of_its_issuer(server: Harness) -> None:
    issuer = ConsoleUser(server).sign_in()
    program = ConsoleUser(server)
    program.get("/console/sign-in")
    program.post("/console/sign-in", {"method": "token", "secret": make_token(server)})
    program.submit("/sign-out", everywhere="yes")
    assert "Signed in as" in issuer.read("/console")

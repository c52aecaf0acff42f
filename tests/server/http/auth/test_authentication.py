"""Authentication over HTTP: precedence of credentials, validity of proofs, and challenges."""

import asyncio
import hashlib
import hmac
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.encoding import from_base64, to_base64
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.records import Create, Delete
from perseid.registry.identity import KeyIdentity
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_SHORT_BYTES
from perseid.server.http.auth import authentication
from perseid.server.http.auth.authentication import AuthResult, denial, end_stale_session, proof_headers
from perseid.server.http.auth.proofs import AuthFailure
from perseid.server.http.auth.session_table import USE_INTERVAL, Session
from perseid.server.http.messages import Client
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode
from tests.server.http.auth_servers import STRANGER, USER, AuthServer, basic_header, fields_of, handle_header, secret_at
from tests.server.http.client_certificates import named
from tests.server.native.native_servers import ADMIN, BY_ADMINS, PREFIX, STD, URL
from tests.wire.key_material import DSA_KEY, RSA_KEY, RSA_KEYS, SECRET, SERVER_KEY

SEC, RSA, DSA = f"301:{ADMIN}", f"300:{ADMIN}", f"302:{ADMIN}"
CNONCE = bytes(range(16))
NEW = Handle.parse(f"{PREFIX}/new")
CREATE = Create(NEW, (URL, BY_ADMINS))
SECRETS = ("own ", ADMIN)


def digest_header(session: Session, identity: str = SEC, secret: bytes = SECRET, **other: str) -> str:
    signature = hashlib.sha256(secret + session.nonce + CNONCE + secret).digest()
    fields: dict[str, Any] = {
        "id": identity,
        "type": "HS_SECKEY",
        "cnonce": CNONCE,
        "alg": "SHA256",
        "signature": signature,
    }
    return handle_header(**({"sessionId": session.id} | fields | other))


def key_header(session: Session, identity: str = RSA, key: PrivateKey = RSA_KEY, alg: str = "SHA-256") -> str:
    signature = key.sign(alg, session.nonce + CNONCE)
    return handle_header(
        sessionId=session.id, id=identity, type="HS_PUBKEY", cnonce=CNONCE, alg=alg, signature=signature
    )


@pytest.mark.parametrize("size", [1, MAX_SHORT_BYTES])
def test_long_record_is_not_read_in_the_event_loop(auth_server: AuthServer, size: int) -> None:
    """Anybody may name one, and other requests must not wait."""
    key = Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes())
    auth_server.create(USER, key, secret_at(301), Value(1, "DESC", b"x" * size))
    session = auth_server.begin()
    for how in (
        {"authorization": basic_header(f"301:{USER}", "a secret")},
        {"authorization": key_header(session, f"300:{USER}")},
        {"certificate": named(f"300:{USER}", RSA_KEY)},
    ):
        auth_server.kinds.clear()
        auth_server.in_loop.clear()
        assert auth_server.identify(**how).problem is None
        reads = [
            short for kind, short in zip(auth_server.kinds, auth_server.in_loop, strict=True) if kind is WorkKind.READ
        ]
        assert reads == ([True] if size == 1 else [True, False]), how


# Basic


@pytest.mark.parametrize("name", [SEC, ADMIN, f"0:{ADMIN}", f"301:{ADMIN.lower()}"])
def test_secret_authenticates(auth_server: AuthServer, name: str) -> None:
    auth = auth_server.identify(basic_header(name, SECRET))
    assert auth.problem is None
    assert str(auth.identity).upper() == SEC
    assert auth.ambient, "browsers remember passwords"
    assert auth.session is None
    assert auth_server.kinds == [WorkKind.READ]
    auth_server.execute(auth, CREATE)


def test_identity_without_index_gets_index_of_key(auth_server: AuthServer) -> None:
    """Deployed servers leave it at 0, which no administrator has."""
    auth_server.create(USER, secret_at(300, b"one"), secret_at(400, b"two"))
    for secret, index in ((b"one", 300), (b"two", 400)):
        auth = auth_server.identify(basic_header(USER, secret))
        assert isinstance(auth.identity, KeyIdentity)
        assert auth.identity.reference == ValueRef(index, USER)
        assert auth.identity.verified_index == index


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        (SEC, b"wrong"),
        (SEC, b""),
        (SEC, SECRET + b"x"),
        (RSA, SECRET),
        (RSA, RSA_KEY.public.to_bytes()),
        (f"399:{ADMIN}", SECRET),
        (f"301:{PREFIX}/nobody", SECRET),
        ("301:nobody", SECRET),
        (f"301:0.NA/{PREFIX}9", SECRET),
    ],
)
def test_every_wrong_secret_gets_the_same_reason(auth_server: AuthServer, name: str, secret: bytes) -> None:
    reason = auth_server.reason(basic_header(name, secret))
    assert reason.replace(name, "NAME") == "authentication failed: the user name was read as NAME"
    assert auth_server.kinds == [WorkKind.READ]
    (verdict,) = auth_server.verdicts
    assert not verdict.succeeded
    assert verdict.own
    assert verdict.secret_of == auth_server.secrets[0]
    assert verdict.secret_of == f"own {name.partition(':')[2]}".encode()


def test_reason_may_say_that_prefix_is_not_hosted(auth_server: AuthServer) -> None:
    for name in ("300:12345.9/x", "301:0.SITE/x"):
        assert "not hosted here" in auth_server.reason(basic_header(name, b"s"))


def test_unencoded_colon_in_user_name_is_accepted(auth_server: AuthServer) -> None:
    header = "Basic " + to_base64(f"301:{ADMIN}:".encode() + SECRET)
    assert str(auth_server.identify(header).identity) == SEC
    wrong = auth_server.reason("Basic " + to_base64(f"301:{PREFIX}/a:b:secret".encode()))
    assert "the user name was read as" in wrong
    assert "%3A" in wrong


@pytest.mark.parametrize("header", ["Basic", "Basic ", "Basic ?", "basic\teDp5eg", "BASIC MzAwOnNlY3JldA=="])
def test_malformed_credentials_are_refused_without_lookup(auth_server: AuthServer, header: str) -> None:
    reason = auth_server.reason(header)
    assert "%3A" in reason or "x" in reason
    assert auth_server.kinds in ([], [WorkKind.READ])


def test_empty_secrets_prove_nothing(auth_server: AuthServer) -> None:
    auth_server.create(USER, secret_at(300, b""))
    assert "authentication failed" in auth_server.reason(basic_header(f"300:{USER}", b""))


def test_secrets_are_not_in_repr(auth_server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    texts = []
    with caplog.at_level(logging.DEBUG):
        for header in (basic_header(SEC, SECRET), basic_header(SEC, b"opensesame-wrong"), "Basic " + to_base64(SECRET)):
            auth = auth_server.identify(header)
            texts += [repr(auth), repr(auth_server.verdicts), str(auth.problem)]
    session = auth_server.begin()
    texts.append(repr(auth_server.identify(digest_header(session))))
    texts.append(repr(auth_server.identify(digest_header(session, secret=b"opensesame-wrong"))))
    assert SECRET.startswith(b"opensesame")
    assert not any("opensesame" in text for text in [*texts, caplog.text])
    assert not any(session.id in text for text in texts)


# The Handle scheme


@pytest.mark.parametrize("alg", ["MD5", "SHA1", "SHA-256"])
def test_private_key_authenticates(auth_server: AuthServer, alg: str) -> None:
    for identity, key in ((RSA, RSA_KEY), (ADMIN, RSA_KEY), (DSA, DSA_KEY), (ADMIN, DSA_KEY)):
        if key is DSA_KEY and alg == "MD5":
            continue
        session = auth_server.begin()
        auth = auth_server.identify(key_header(session, identity, key, alg))
        assert auth.problem is None
        assert str(auth.identity) == (RSA if key is RSA_KEY else DSA)
        assert auth.session == session
        assert auth.session.claimed == identity, "as it was written"
        assert not auth.ambient
    assert auth_server.verdicts
    assert all(verdict.succeeded and verdict.secret_of is None for verdict in auth_server.verdicts)
    assert set(auth_server.kinds) == {WorkKind.READ, WorkKind.VERIFY}


def test_secret_authenticates_by_signature(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    auth = auth_server.identify(digest_header(session))
    assert str(auth.identity) == SEC
    assert auth_server.secrets == [None, "".join(SECRETS).encode()], "one attempt"
    auth_server.execute(auth, CREATE)


@pytest.mark.parametrize(
    ("identity", "key"),
    [(RSA, RSA_KEYS[0]), (DSA, RSA_KEY), (SEC, RSA_KEY), (f"399:{ADMIN}", RSA_KEY), (f"300:{PREFIX}/nobody", RSA_KEY)],
)
def test_wrong_signature_is_refused(auth_server: AuthServer, identity: str, key: PrivateKey) -> None:
    session = auth_server.begin()
    reason = auth_server.reason(key_header(session, identity, key))
    assert reason.replace(identity, "NAME") == "authentication failed: the id was read as NAME"
    assert session.proved is None
    assert [verdict.succeeded for verdict in auth_server.verdicts] == [False]


def test_signature_of_another_session_is_refused(auth_server: AuthServer) -> None:
    mine, other = auth_server.begin(), auth_server.begin()
    assert mine.nonce != other.nonce
    header = digest_header(mine).replace(mine.id, other.id)
    assert "authentication failed" in auth_server.reason(header)


def test_signature_without_session_is_refused(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    header = digest_header(session).replace(f'sessionId="{session.id}", ', "")
    assert "nonce of a session" in auth_server.reason(header)
    assert auth_server.kinds == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": "1"}, "version"),
        ({"id": f"301:{ADMIN}"}, "missing: type, cnonce, alg, signature"),
        ({"signature": "AAAA"}, "missing"),
        ({"alg": "SHA-512"}, "missing"),
    ],
)
def test_invalid_claim_is_refused_in_its_session(auth_server: AuthServer, fields: dict[str, str], reason: str) -> None:
    session = auth_server.begin()
    auth = auth_server.identify(handle_header(sessionId=session.id, **fields))
    assert auth.problem is not None
    assert reason in auth.problem.reason
    assert auth.session == session
    assert auth_server.kinds == []


def test_weak_digests_are_configurable(auth_server: AuthServer) -> None:
    auth_server.configure(weak_digests=False)
    session = auth_server.begin()
    assert "does not accept SHA1" in auth_server.reason(key_header(session, alg="SHA1"))
    assert auth_server.identify(key_header(session)).problem is None


@pytest.mark.parametrize("header", ["Bearer x", "Digest username=x", "", "Handle a b", 'Handle a="b', "Handle\x80"])
def test_unknown_schemes_and_invalid_headers_are_refused(auth_server: AuthServer, header: str) -> None:
    auth = auth_server.identify(header)
    assert auth.problem is not None
    assert not auth.problem.in_challenge
    assert auth.session is None
    assert auth_server.verdicts == []


@given(
    st.text(st.characters(codec="latin-1"), max_size=80)
    | st.sampled_from(("Basic", "Handle")).flatmap(
        lambda scheme: st.text(st.characters(codec="latin-1"), max_size=60).map(lambda rest: f"{scheme} {rest}")
    )
)
@example("Handle id=%FF, type=HS_PUBKEY")
@example('Handle sessionId=""')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_is_at_most_refused(auth_server: AuthServer, header: str) -> None:
    auth = auth_server.identify(header)
    assert str(auth.identity) == "anonymous"


# Sessions


def test_session_remembers_identity(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    header = handle_header(sessionId=session.id)
    before = auth_server.identify(header)
    assert (str(before.identity), before.session, before.problem) == ("anonymous", session, None)
    auth_server.identify(digest_header(session))
    auth_server.kinds.clear()
    auth = auth_server.identify(header)
    assert str(auth.identity) == SEC
    assert (auth.ambient, auth.session) == (False, session)
    assert auth_server.kinds == []
    auth_server.execute(auth, CREATE)


def test_session_identity_can_read_public_values(auth_server: AuthServer) -> None:
    """A session of the native protocol would need a permission even for public values."""
    auth_server.create(USER, secret_at(300))
    session = auth_server.begin()
    auth = auth_server.identify(digest_header(session, f"300:{USER}", b"a secret"))
    found = auth_server.registry.resolve(Query(Handle.parse(STD), indexes=(1,)), auth.identity)
    assert [value.index for value in found.values] == [1]


def test_header_that_proved_session_is_not_verified_again(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    header = key_header(session)
    auth_server.identify(header)
    auth_server.kinds.clear()
    assert str(auth_server.identify(header).identity) == RSA
    assert auth_server.kinds == []
    another = header.replace("Handle ", "Handle  ")
    assert str(auth_server.identify(another).identity) == RSA
    assert auth_server.kinds == [WorkKind.READ, WorkKind.VERIFY], "that is not the same, octet by octet"
    assert auth_server.identify(header + ", x=y").problem is None


def test_second_identity_replaces_first_in_session(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    auth_server.identify(digest_header(session))
    assert str(auth_server.identify(key_header(session)).identity) == RSA
    plain = handle_header(sessionId=session.id)
    assert str(auth_server.identify(plain).identity) == RSA
    auth_server.kinds.clear()
    assert str(auth_server.identify(digest_header(session)).identity) == SEC
    assert auth_server.kinds == [WorkKind.READ, WorkKind.VERIFY], "it is not the one that counted last"
    assert str(auth_server.identify(plain).identity) == SEC


def test_wrong_proof_leaves_session_unchanged(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    auth_server.identify(digest_header(session))
    auth = auth_server.identify(digest_header(session, secret=b"wrong"))
    assert auth.problem is not None
    assert auth.session == session
    assert str(auth_server.identify(handle_header(sessionId=session.id)).identity) == SEC


def test_unknown_session_is_refused_and_counts_as_guess(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    auth_server.identify(digest_header(session))
    auth_server.verdicts.clear()
    for text in ("nope", "", "x" * 5000, session.id[:-1], session.id + "A", "ä"):
        auth = auth_server.identify(handle_header(sessionId=text))
        assert auth.problem is not None
        assert not auth.problem.in_challenge
        assert auth.session is None
    assert [verdict.succeeded for verdict in auth_server.verdicts] == [False] * 6
    assert "the session does not exist" in auth_server.reason(digest_header(session).replace(session.id, "nope"))


def test_idle_session_ends(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    header = digest_header(session)
    auth_server.identify(header)
    auth_server.now[0] += 1_800
    assert auth_server.identify(handle_header(sessionId=session.id)).problem is None
    auth_server.now[0] += 1_800 + USE_INTERVAL + 1
    assert "the session does not exist" in auth_server.reason(header)
    auth_server.configure(session_timeout=60)
    session = auth_server.begin()
    auth_server.now[0] += 63
    assert "the session does not exist" in auth_server.reason(handle_header(sessionId=session.id))


@pytest.mark.parametrize("change", ["modify", "remove"])
def test_session_ends_with_its_key(auth_server: AuthServer, change: str) -> None:
    auth_server.create(USER, secret_at(300), URL, Value(100, "HS_ADMIN", Admin(ValueRef(300, USER)).to_bytes()))
    session = auth_server.begin()
    auth_server.identify(digest_header(session, f"300:{USER}", b"a secret"))
    auth = auth_server.identify(handle_header(sessionId=session.id))
    if change == "modify":
        auth_server.modify(USER, secret_at(300, b"another"))
    else:
        auth_server.remove(USER, 300)
    with pytest.raises(KeyChanged) as gone:
        auth_server.execute(auth, Delete(Handle.parse(USER)))
    request_context = auth_server.request_context()
    after = end_stale_session(request_context, auth, gone.value)
    assert str(after.identity) == "anonymous"
    assert after.problem is not None
    assert "was changed" in after.problem.reason
    answer = denial(request_context, after)
    assert (answer.status, answer.code) == (401, ResponseCode.AUTHENTICATION_FAILED)
    assert fields_of(answer.headers[-1][1])["sessionid"] != session.id
    assert "the session does not exist" in auth_server.reason(handle_header(sessionId=session.id))


def test_header_that_proved_session_is_refused_without_key(auth_server: AuthServer) -> None:
    auth_server.create(USER, secret_at(300), Value(100, "HS_ADMIN", Admin(ValueRef(300, USER)).to_bytes()))
    session = auth_server.begin()
    header = digest_header(session, f"300:{USER}", b"a secret")
    auth_server.identify(header)
    auth_server.modify(USER, secret_at(300, b"another"))
    auth = auth_server.identify(header)
    with pytest.raises(KeyChanged):
        auth_server.execute(auth, Delete(Handle.parse(USER)))


def test_proof_is_valid_only_while_key_exists(auth_server: AuthServer) -> None:
    auth = auth_server.identify(basic_header(SEC, SECRET))
    auth_server.modify(ADMIN, secret_at(301, b"another"))
    with pytest.raises(KeyChanged) as gone:
        auth_server.execute(auth, CREATE)
    assert end_stale_session(auth_server.request_context(), auth, gone.value).problem is not None
    with auth_server.registry.snapshot() as snapshot:
        assert not snapshot.stored(NEW).exists


def test_identity_has_only_its_permissions(auth_server: AuthServer) -> None:
    auth_server.create(USER, secret_at(300))
    auth = auth_server.identify(basic_header(f"300:{USER}", b"a secret"))
    with pytest.raises(Refused) as refused:
        auth_server.execute(auth, CREATE)
    assert refused.value.code is ResponseCode.INVALID_ADMIN


# Insecure connections


@pytest.mark.parametrize(
    "client",
    [Client(STRANGER), Client("127.0.0.1"), Client(STRANGER, trusted=True)],
    ids=["plain", "passed on", "proxy"],
)
def test_credentials_are_ignored_over_plain_http(auth_server: AuthServer, client: Client) -> None:
    session = auth_server.begin()
    auth_server.identify(digest_header(session))
    auth_server.kinds.clear()
    auth_server.verdicts.clear()
    for header in (basic_header(SEC, SECRET), basic_header(SEC, b"x"), handle_header(sessionId=session.id), "Bearer x"):
        auth = auth_server.identify(header, client=client)
        assert auth == AuthResult()
        answer = denial(auth_server.request_context(header, client=client), auth)
        assert (answer.status, answer.code, answer.headers) == (403, ResponseCode.AUTHENTICATION_NEEDED, ())
        assert "HTTPS" in answer.message
        assert "machine" in answer.message
        assert auth_server.challenge(header, client=client) == ()
    assert (auth_server.kinds, auth_server.verdicts) == ([], [])


def test_plain_http_is_accepted_from_local_machine(auth_server: AuthServer) -> None:
    client = Client("127.0.0.1", local=True)
    assert str(auth_server.identify(basic_header(SEC, SECRET), client=client).identity) == SEC


# Challenges


def lines(auth_server: AuthServer, authorization: str | None = None, **how: Any) -> list[str]:
    found = auth_server.challenge(authorization, **how)
    assert {name for name, _ in found} <= {"WWW-Authenticate"}
    return [value for _, value in found]


def test_challenge_offers_basic_and_handle_in_two_headers(auth_server: AuthServer) -> None:
    first, second = lines(auth_server)
    assert first == 'Basic realm="handle"'
    fields = fields_of(second)
    assert list(fields) == ["sessionid", "nonce"]
    session = auth_server.table.find(fields["sessionid"], auth_server.now[0])
    assert session is not None
    assert from_base64(fields["nonce"], "nonce") == session.nonce
    assert len(session.nonce) == 16
    assert auth_server.identify(digest_header(session)).problem is None, "and may answer it"


def test_challenge_in_session_names_that_session(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    (line,) = lines(auth_server, handle_header(sessionId=session.id))
    assert fields_of(line) == {"sessionid": session.id, "nonce": session.nonce_text}
    assert len(auth_server.table) == 1


@pytest.mark.parametrize(
    ("header", "more", "offered"),
    [
        (None, {}, True),
        (None, {"x_requested_with": "XMLHttpRequest"}, False),
        (None, {"x_requested_with": "fetch"}, True),
        ("Basic eDp5", {"x_requested_with": "XMLHttpRequest"}, True),
        ("Bearer x", {}, False),
        ("Handle", {}, False),
        ('Handle sessionId="nope"', {}, False),
    ],
)
def test_basic_is_not_offered_to_scripts_and_other_schemes(
    auth_server: AuthServer, header: str | None, more: dict[str, str], offered: bool
) -> None:
    assert len(lines(auth_server, header, **more)) == 1 + offered


def test_challenge_has_reason_in_ascii(auth_server: AuthServer) -> None:
    wrong = lines(auth_server, basic_header("300:12345/ü", b"x"))[-1]
    assert wrong.isascii()
    assert "not hosted here" in fields_of(wrong)["error"]
    for silent in ("Bearer x", 'Handle sessionId="nope"', "Handle ="):
        assert "error" not in fields_of(lines(auth_server, silent)[-1])


def test_denials_have_protocol_codes(auth_server: AuthServer) -> None:
    needed = denial(auth_server.request_context(), auth_server.identify())
    assert (needed.status, needed.code) == (401, ResponseCode.AUTHENTICATION_NEEDED)
    header = basic_header(SEC, b"wrong")
    failed = denial(auth_server.request_context(header), auth_server.identify(header))
    assert (failed.status, failed.code) == (401, ResponseCode.AUTHENTICATION_FAILED)
    assert SEC in failed.message


def test_server_proves_its_identity_on_request(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    for header in (handle_header(cnonce=CNONCE), handle_header(sessionId=session.id, cnonce=CNONCE)):
        auth_server.kinds.clear()
        auth = auth_server.identify(header)
        assert auth.problem is None
        assert auth_server.kinds == [WorkKind.SIGN]
        ((name, line),) = proof_headers(auth)
        assert name == "WWW-Authenticate"
        fields = fields_of(line)
        assert list(fields) == ["sessionid", "nonce", "serveralg", "serversignature"]
        assert fields["serveralg"] == "SHA-256"
        signed = from_base64(fields["nonce"], "nonce") + CNONCE
        assert SERVER_KEY.public.verify("SHA-256", from_base64(fields["serversignature"], "signature"), signed)
        request_context = auth_server.request_context(header)
        assert authentication.challenge_headers(request_context, auth) == ((name, line),)
    assert proof_headers(auth_server.identify()) == ()
    assert proof_headers(auth_server.identify(key_header(session))) == (), "a nonce of a claim asks for nothing"
    assert "base64" in auth_server.reason('Handle cnonce="?"')


def test_nonce_is_never_a_prefix_of_a_native_message(auth_server: AuthServer) -> None:
    """Native messages start with a version or an opcode, and other signed data with a letter."""
    assert all(auth_server.begin().nonce[0] & 0x80 for _ in range(20))


def test_concurrent_requests_keep_their_own_identity(auth_server: AuthServer) -> None:
    async def both() -> list[AuthResult]:
        tasks = [
            authentication.authenticate(auth_server.request_context(basic_header(SEC, secret)))
            for secret in (SECRET, b"wrong", SECRET)
        ]
        return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(both())
    assert (str(first.identity), str(third.identity)) == (SEC, SEC)
    assert isinstance(second.problem, AuthFailure)


def test_hmac_and_derived_keys_authenticate(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    signed = session.nonce + CNONCE
    derived = hashlib.pbkdf2_hmac("sha1", SECRET, b"saltsalt", 1000, 20)
    proofs: list[dict[str, str | bytes]] = [
        {"alg": "HMAC-SHA256", "signature": hmac.digest(SECRET, signed, "sha256")},
        {"alg": "HMAC-SHA1", "signature": hmac.digest(SECRET, signed, "sha1")},
        {
            "alg": "PBKDF2WithHmacSHA1",
            "signature": hmac.digest(derived, signed, "sha1"),
            "salt": b"saltsalt",
            "iterations": "1000",
            "length": "160",
        },
    ]
    for fields in proofs:
        header = handle_header(sessionId=session.id, id=SEC, type="HS_SECKEY", cnonce=CNONCE, **fields)
        assert str(auth_server.identify(header).identity) == SEC

"""Who is believed over HTTP, in which order, for how long; and what those are asked who are not."""

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
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.records import Create, Delete
from perseid.registry.identity import KeyIdentity
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused
from perseid.server.http.auth import authentication
from perseid.server.http.auth.authentication import AuthResult, denial, end_stale_session, proof_headers
from perseid.server.http.auth.proofs import AuthFailure
from perseid.server.http.auth.session_table import Session
from perseid.server.http.messages import Client
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode
from tests.server.http.doorsteps import STRANGER, USER, Doorstep, basic_header, fields_of, handle_header, secret_at
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


# Basic


@pytest.mark.parametrize("name", [SEC, ADMIN, f"0:{ADMIN}", f"301:{ADMIN.lower()}"])
def test_secret_authenticates(door: Doorstep, name: str) -> None:
    auth = door.identify(basic_header(name, SECRET))
    assert auth.problem is None
    assert str(auth.identity).upper() == SEC
    assert auth.ambient, "browsers remember passwords"
    assert auth.session is None
    assert door.kinds == [WorkKind.READ]
    door.carry_out(auth, CREATE)


def test_identity_without_index_gets_index_of_key(door: Doorstep) -> None:
    """Deployed servers leave it at 0, which no administrator is."""
    door.create(USER, secret_at(300, b"one"), secret_at(400, b"two"))
    for secret, index in ((b"one", 300), (b"two", 400)):
        auth = door.identify(basic_header(USER, secret))
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
def test_every_wrong_secret_gets_the_same_reason(door: Doorstep, name: str, secret: bytes) -> None:
    reason = door.reason(basic_header(name, secret))
    assert reason.replace(name, "NAME") == "authentication failed: the user name was read as NAME"
    assert door.kinds == [WorkKind.READ]
    (verdict,) = door.verdicts
    assert not verdict.succeeded
    assert verdict.own
    assert verdict.secret_of == door.secrets[0]
    assert verdict.secret_of == f"own {name.partition(':')[2]}".encode()


def test_reason_may_say_that_prefix_is_not_hosted(door: Doorstep) -> None:
    for name in ("300:12345.9/x", "301:0.SITE/x"):
        assert "not hosted here" in door.reason(basic_header(name, b"s"))


def test_unencoded_colon_in_user_name_is_accepted(door: Doorstep) -> None:
    header = "Basic " + to_base64(f"301:{ADMIN}:".encode() + SECRET)
    assert str(door.identify(header).identity) == SEC
    wrong = door.reason("Basic " + to_base64(f"301:{PREFIX}/a:b:secret".encode()))
    assert "the user name was read as" in wrong
    assert "%3A" in wrong


@pytest.mark.parametrize("header", ["Basic", "Basic ", "Basic ?", "basic\teDp5eg", "BASIC MzAwOnNlY3JldA=="])
def test_malformed_credentials_are_refused_without_lookup(door: Doorstep, header: str) -> None:
    reason = door.reason(header)
    assert "%3A" in reason or "x" in reason
    assert door.kinds in ([], [WorkKind.READ])


def test_empty_secrets_prove_nothing(door: Doorstep) -> None:
    door.create(USER, secret_at(300, b""))
    assert "authentication failed" in door.reason(basic_header(f"300:{USER}", b""))


def test_secrets_are_not_in_repr(door: Doorstep, caplog: pytest.LogCaptureFixture) -> None:
    texts = []
    with caplog.at_level(logging.DEBUG):
        for header in (basic_header(SEC, SECRET), basic_header(SEC, b"opensesame-wrong"), "Basic " + to_base64(SECRET)):
            auth = door.identify(header)
            texts += [repr(auth), repr(door.verdicts), str(auth.problem)]
    session = door.begin()
    texts.append(repr(door.identify(digest_header(session))))
    texts.append(repr(door.identify(digest_header(session, secret=b"opensesame-wrong"))))
    assert SECRET.startswith(b"opensesame")
    assert not any("opensesame" in text for text in [*texts, caplog.text])
    assert not any(session.id in text for text in texts)


# The Handle scheme


@pytest.mark.parametrize("alg", ["MD5", "SHA1", "SHA-256"])
def test_private_key_authenticates(door: Doorstep, alg: str) -> None:
    for identity, key in ((RSA, RSA_KEY), (ADMIN, RSA_KEY), (DSA, DSA_KEY), (ADMIN, DSA_KEY)):
        if key is DSA_KEY and alg == "MD5":
            continue
        session = door.begin()
        auth = door.identify(key_header(session, identity, key, alg))
        assert auth.problem is None
        assert str(auth.identity) == (RSA if key is RSA_KEY else DSA)
        assert auth.session is session
        assert session.claimed == identity, "as it was written"
        assert not auth.ambient
    assert door.verdicts
    assert all(verdict.succeeded and verdict.secret_of is None for verdict in door.verdicts)
    assert set(door.kinds) == {WorkKind.READ, WorkKind.VERIFY}


def test_secret_authenticates_by_signature(door: Doorstep) -> None:
    session = door.begin()
    auth = door.identify(digest_header(session))
    assert str(auth.identity) == SEC
    assert door.secrets == ["".join(SECRETS).encode()] * 2
    door.carry_out(auth, CREATE)


@pytest.mark.parametrize(
    ("identity", "key"),
    [(RSA, RSA_KEYS[0]), (DSA, RSA_KEY), (SEC, RSA_KEY), (f"399:{ADMIN}", RSA_KEY), (f"300:{PREFIX}/nobody", RSA_KEY)],
)
def test_wrong_signature_is_refused(door: Doorstep, identity: str, key: PrivateKey) -> None:
    session = door.begin()
    reason = door.reason(key_header(session, identity, key))
    assert reason.replace(identity, "NAME") == "authentication failed: the id was read as NAME"
    assert session.proved is None
    assert [verdict.succeeded for verdict in door.verdicts] == [False]


def test_signature_of_another_session_is_refused(door: Doorstep) -> None:
    mine, other = door.begin(), door.begin()
    assert mine.nonce != other.nonce
    header = digest_header(mine).replace(mine.id, other.id)
    assert "authentication failed" in door.reason(header)


def test_signature_without_session_is_refused(door: Doorstep) -> None:
    session = door.begin()
    header = digest_header(session).replace(f'sessionId="{session.id}", ', "")
    assert "nonce of a session" in door.reason(header)
    assert door.kinds == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": "1"}, "version"),
        ({"id": f"301:{ADMIN}"}, "missing: type, cnonce, alg, signature"),
        ({"signature": "AAAA"}, "missing"),
        ({"alg": "SHA-512"}, "missing"),
    ],
)
def test_invalid_claim_is_refused_in_its_session(door: Doorstep, fields: dict[str, str], reason: str) -> None:
    session = door.begin()
    auth = door.identify(handle_header(sessionId=session.id, **fields))
    assert auth.problem is not None
    assert reason in auth.problem.reason
    assert auth.session is session
    assert door.kinds == []


def test_weak_digests_are_configurable(door: Doorstep) -> None:
    door.configure(weak_digests=False)
    session = door.begin()
    assert "does not accept SHA1" in door.reason(key_header(session, alg="SHA1"))
    assert door.identify(key_header(session)).problem is None


@pytest.mark.parametrize("header", ["Bearer x", "Digest username=x", "", "Handle a b", 'Handle a="b', "Handle\x80"])
def test_unknown_schemes_and_invalid_headers_are_refused(door: Doorstep, header: str) -> None:
    auth = door.identify(header)
    assert auth.problem is not None
    assert not auth.problem.in_challenge
    assert auth.session is None
    assert door.verdicts == []


@given(
    st.text(st.characters(codec="latin-1"), max_size=80)
    | st.sampled_from(("Basic", "Handle")).flatmap(
        lambda scheme: st.text(st.characters(codec="latin-1"), max_size=60).map(lambda rest: f"{scheme} {rest}")
    )
)
@example("Handle id=%FF, type=HS_PUBKEY")
@example('Handle sessionId=""')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_is_at_most_refused(door: Doorstep, header: str) -> None:
    auth = door.identify(header)
    assert str(auth.identity) == "anonymous"


# Sessions


def test_session_remembers_identity(door: Doorstep) -> None:
    session = door.begin()
    header = handle_header(sessionId=session.id)
    before = door.identify(header)
    assert (str(before.identity), before.session, before.problem) == ("anonymous", session, None)
    door.identify(digest_header(session))
    door.kinds.clear()
    auth = door.identify(header)
    assert str(auth.identity) == SEC
    assert (auth.ambient, auth.session) == (False, session)
    assert door.kinds == []
    door.carry_out(auth, CREATE)


def test_session_identity_can_read_public_values(door: Doorstep) -> None:
    """A session of the native protocol would demand a permission for public values too."""
    door.create(USER, secret_at(300))
    session = door.begin()
    auth = door.identify(digest_header(session, f"300:{USER}", b"a secret"))
    found = door.registry.resolve(Query(Handle.parse(STD), indexes=(1,)), auth.identity)
    assert [value.index for value in found.values] == [1]


def test_header_that_proved_session_is_not_verified_again(door: Doorstep) -> None:
    session = door.begin()
    header = key_header(session)
    door.identify(header)
    door.kinds.clear()
    assert str(door.identify(header).identity) == RSA
    assert door.kinds == []
    another = header.replace("Handle ", "Handle  ")
    assert str(door.identify(another).identity) == RSA
    assert door.kinds == [WorkKind.READ, WorkKind.VERIFY], "that is not the same, octet by octet"
    assert door.identify(header + ", x=y").problem is None


def test_second_identity_replaces_first_in_session(door: Doorstep) -> None:
    session = door.begin()
    door.identify(digest_header(session))
    assert str(door.identify(key_header(session)).identity) == RSA
    plain = handle_header(sessionId=session.id)
    assert str(door.identify(plain).identity) == RSA
    door.kinds.clear()
    assert str(door.identify(digest_header(session)).identity) == SEC
    assert door.kinds == [WorkKind.READ, WorkKind.VERIFY], "it is not the one that counted last"
    assert str(door.identify(plain).identity) == SEC


def test_wrong_proof_leaves_session_unchanged(door: Doorstep) -> None:
    session = door.begin()
    door.identify(digest_header(session))
    auth = door.identify(digest_header(session, secret=b"wrong"))
    assert auth.problem is not None
    assert auth.session is session
    assert str(door.identify(handle_header(sessionId=session.id)).identity) == SEC


def test_unknown_session_is_refused_and_counts_as_guess(door: Doorstep) -> None:
    session = door.begin()
    door.identify(digest_header(session))
    door.verdicts.clear()
    for text in ("nope", "", "x" * 5000, session.id[:-1], session.id + "A", "ä"):
        auth = door.identify(handle_header(sessionId=text))
        assert auth.problem is not None
        assert not auth.problem.in_challenge
        assert auth.session is None
    assert [verdict.succeeded for verdict in door.verdicts] == [False] * 6
    assert "the session does not exist or has ended" in door.reason(digest_header(session).replace(session.id, "nope"))


def test_idle_session_ends(door: Doorstep) -> None:
    session = door.begin()
    header = digest_header(session)
    door.identify(header)
    door.now[0] += 1_800
    assert door.identify(handle_header(sessionId=session.id)).problem is None
    door.now[0] += 1_801
    assert "the session does not exist or has ended" in door.reason(header)
    door.configure(session_timeout=60)
    session = door.begin()
    door.now[0] += 61
    assert "the session does not exist or has ended" in door.reason(handle_header(sessionId=session.id))


@pytest.mark.parametrize("change", ["modify", "remove"])
def test_session_ends_with_its_key(door: Doorstep, change: str) -> None:
    door.create(USER, secret_at(300), URL, Value(100, "HS_ADMIN", Admin(ValueRef(300, USER)).to_bytes()))
    session = door.begin()
    door.identify(digest_header(session, f"300:{USER}", b"a secret"))
    auth = door.identify(handle_header(sessionId=session.id))
    if change == "modify":
        door.modify(USER, secret_at(300, b"another"))
    else:
        door.remove(USER, 300)
    with pytest.raises(KeyChanged) as gone:
        door.carry_out(auth, Delete(Handle.parse(USER)))
    request_context = door.request_context()
    after = end_stale_session(request_context, auth, gone.value)
    assert str(after.identity) == "anonymous"
    assert after.problem is not None
    assert "was changed" in after.problem.reason
    answer = denial(request_context, after)
    assert (answer.status, answer.code) == (401, ResponseCode.AUTHENTICATION_FAILED)
    assert fields_of(answer.headers[-1][1])["sessionid"] != session.id
    assert "the session does not exist or has ended" in door.reason(handle_header(sessionId=session.id))


def test_header_that_proved_session_is_refused_without_key(door: Doorstep) -> None:
    door.create(USER, secret_at(300), Value(100, "HS_ADMIN", Admin(ValueRef(300, USER)).to_bytes()))
    session = door.begin()
    header = digest_header(session, f"300:{USER}", b"a secret")
    door.identify(header)
    door.modify(USER, secret_at(300, b"another"))
    auth = door.identify(header)
    with pytest.raises(KeyChanged):
        door.carry_out(auth, Delete(Handle.parse(USER)))


def test_proof_is_valid_only_while_key_exists(door: Doorstep) -> None:
    auth = door.identify(basic_header(SEC, SECRET))
    door.modify(ADMIN, secret_at(301, b"another"))
    with pytest.raises(KeyChanged) as gone:
        door.carry_out(auth, CREATE)
    assert end_stale_session(door.request_context(), auth, gone.value).problem is not None
    with door.registry.snapshot() as snapshot:
        assert not snapshot.stored(NEW).exists


def test_identity_has_only_its_permissions(door: Doorstep) -> None:
    door.create(USER, secret_at(300))
    auth = door.identify(basic_header(f"300:{USER}", b"a secret"))
    with pytest.raises(Refused) as refused:
        door.carry_out(auth, CREATE)
    assert refused.value.code is ResponseCode.INVALID_ADMIN


# Where others read along


@pytest.mark.parametrize(
    "client",
    [Client(STRANGER), Client("127.0.0.1"), Client(STRANGER, trusted=True)],
    ids=["plain", "passed on", "proxy"],
)
def test_credentials_are_ignored_over_plain_http(door: Doorstep, client: Client) -> None:
    session = door.begin()
    door.identify(digest_header(session))
    door.kinds.clear()
    door.verdicts.clear()
    for header in (basic_header(SEC, SECRET), basic_header(SEC, b"x"), handle_header(sessionId=session.id), "Bearer x"):
        auth = door.identify(header, client=client)
        assert auth == AuthResult()
        answer = denial(door.request_context(header, client=client), auth)
        assert (answer.status, answer.code, answer.headers) == (403, ResponseCode.AUTHENTICATION_NEEDED, ())
        assert "HTTPS" in answer.message
        assert "machine" in answer.message
        assert door.challenge(header, client=client) == ()
    assert (door.kinds, door.verdicts) == ([], [])


def test_plain_http_is_accepted_from_local_machine(door: Doorstep) -> None:
    client = Client("127.0.0.1", local=True)
    assert str(door.identify(basic_header(SEC, SECRET), client=client).identity) == SEC


# What somebody is asked


def lines(door: Doorstep, authorization: str | None = None, **how: Any) -> list[str]:
    found = door.challenge(authorization, **how)
    assert {name for name, _ in found} <= {"WWW-Authenticate"}
    return [value for _, value in found]


def test_challenge_offers_basic_and_handle_in_two_headers(door: Doorstep) -> None:
    first, second = lines(door)
    assert first == 'Basic realm="handle"'
    fields = fields_of(second)
    assert list(fields) == ["sessionid", "nonce"]
    session = door.table.find(fields["sessionid"], door.now[0])
    assert session is not None
    assert from_base64(fields["nonce"], "nonce") == session.nonce
    assert len(session.nonce) == 16
    assert door.identify(digest_header(session)).problem is None, "and may answer it"


def test_challenge_in_session_names_that_session(door: Doorstep) -> None:
    session = door.begin()
    (line,) = lines(door, handle_header(sessionId=session.id))
    assert fields_of(line) == {"sessionid": session.id, "nonce": session.nonce_text}
    assert len(door.table) == 1


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
    door: Doorstep, header: str | None, more: dict[str, str], offered: bool
) -> None:
    assert len(lines(door, header, **more)) == 1 + offered


def test_challenge_has_reason_in_ascii(door: Doorstep) -> None:
    wrong = lines(door, basic_header("300:12345/ü", b"x"))[-1]
    assert wrong.isascii()
    assert "not hosted here" in fields_of(wrong)["error"]
    for silent in ("Bearer x", 'Handle sessionId="nope"', "Handle ="):
        assert "error" not in fields_of(lines(door, silent)[-1])


def test_denials_have_protocol_codes(door: Doorstep) -> None:
    needed = denial(door.request_context(), door.identify())
    assert (needed.status, needed.code) == (401, ResponseCode.AUTHENTICATION_NEEDED)
    header = basic_header(SEC, b"wrong")
    failed = denial(door.request_context(header), door.identify(header))
    assert (failed.status, failed.code) == (401, ResponseCode.AUTHENTICATION_FAILED)
    assert SEC in failed.message


def test_server_proves_its_identity_on_request(door: Doorstep) -> None:
    session = door.begin()
    for header in (handle_header(cnonce=CNONCE), handle_header(sessionId=session.id, cnonce=CNONCE)):
        door.kinds.clear()
        auth = door.identify(header)
        assert auth.problem is None
        assert door.kinds == [WorkKind.SIGN]
        ((name, line),) = proof_headers(auth)
        assert name == "WWW-Authenticate"
        fields = fields_of(line)
        assert list(fields) == ["sessionid", "nonce", "serveralg", "serversignature"]
        assert fields["serveralg"] == "SHA-256"
        signed = from_base64(fields["nonce"], "nonce") + CNONCE
        assert SERVER_KEY.public.verify("SHA-256", from_base64(fields["serversignature"], "signature"), signed)
        request_context = door.request_context(header)
        assert authentication.challenge_headers(request_context, auth) == ((name, line),)
    assert proof_headers(door.identify()) == ()
    assert proof_headers(door.identify(key_header(session))) == (), "a nonce of a claim asks for nothing"
    assert "base64" in door.reason('Handle cnonce="?"')


def test_nonce_is_never_a_prefix_of_a_native_message(door: Doorstep) -> None:
    """They begin with a version or an opcode, and other signed things with a letter."""
    assert all(door.begin().nonce[0] & 0x80 for _ in range(20))


def test_concurrent_requests_keep_their_own_identity(door: Doorstep) -> None:
    async def both() -> list[AuthResult]:
        tasks = [
            authentication.authenticate(door.request_context(basic_header(SEC, secret)))
            for secret in (SECRET, b"wrong", SECRET)
        ]
        return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(both())
    assert (str(first.identity), str(third.identity)) == (SEC, SEC)
    assert isinstance(second.problem, AuthFailure)


def test_hmac_and_derived_keys_authenticate(door: Doorstep) -> None:
    session = door.begin()
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
        assert str(door.identify(header).identity) == SEC

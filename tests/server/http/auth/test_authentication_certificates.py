"""Authentication with TLS client certificates: the name in the certificate, the key in the record, and refusals."""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.signatures import Certificate, Claims
from perseid.registry.commands.records import Create
from perseid.server.http.auth import proofs
from perseid.server.http.auth.proofs import InvalidCertificate
from perseid.server.http.messages import Client
from perseid.server.native.authentication import MAX_KEYS, KeyChanged
from perseid.server.observe.limited_log import BURST_LINES
from perseid.wire.codes import ResponseCode
from tests.server.http.auth_servers import STRANGER, USER, AuthServer, handle_header
from tests.server.http.client_certificates import CN, ORG, UID, UNIT, certificate, elliptic_key, named, wide_exponent
from tests.server.native.native_servers import ADMIN, BY_ADMINS, NOW, PREFIX, SITE, URL
from tests.wire.key_material import DSA_KEY, RSA_KEY, RSA_KEYS, SERVER_KEY

RSA_NAME, DSA_NAME = f"300:{ADMIN}", f"302:{ADMIN}"
WANTS = 'Handle clientCert="true"'


@pytest.mark.parametrize(
    "names",
    [
        [(UID, RSA_NAME)],
        [(CN, RSA_NAME)],
        [(ORG, RSA_NAME)],
        [(ORG, "x"), (CN, "y"), (UID, RSA_NAME), (UID, "z")],
        [(ORG, "x"), (CN, RSA_NAME), (UNIT, "y")],
        [(UID, f"300:{ADMIN.lower()}")],
    ],
)
def test_certificate_names_its_holder(auth_server: AuthServer, names: list[tuple[x509.ObjectIdentifier, str]]) -> None:
    auth = auth_server.identify(certificate=certificate(*names))
    assert auth.problem is None
    assert str(auth.identity).upper() == RSA_NAME.upper()
    assert auth.ambient
    assert auth.session is None
    assert [verdict.succeeded for verdict in auth_server.verdicts] == [True]
    auth_server.execute(auth, Create(Handle.parse(f"{PREFIX}/new"), (URL, BY_ADMINS)))


@pytest.mark.parametrize(("key", "index"), [(RSA_KEY, 300), (DSA_KEY, 302)], ids=["RSA", "DSA"])
@pytest.mark.parametrize("name", [ADMIN, f"0:{ADMIN}", None])
def test_key_is_found_without_index(auth_server: AuthServer, key: PrivateKey, index: int, name: str | None) -> None:
    auth = auth_server.identify(certificate=named(name or f"{index}:{ADMIN}", key))
    assert str(auth.identity) == f"{index}:{ADMIN}"


def test_few_keys_of_a_record_are_tried(auth_server: AuthServer) -> None:
    """Anybody may name a record with a thousand keys. Other values do not count."""
    last = 300 + MAX_KEYS
    others = [replace(URL, index=index) for index in range(1, MAX_KEYS + 1)]
    keys = [Value(index, "HS_PUBKEY", RSA_KEY.public.to_bytes()) for index in range(300, last - 1)]
    keys += [Value(last - 1 + at, "HS_PUBKEY", RSA_KEYS[at].public.to_bytes()) for at in range(2)]
    auth_server.create(USER, *others, *keys)
    assert str(auth_server.identify(certificate=named(USER, RSA_KEYS[0])).identity) == f"{last - 1}:{USER}"
    assert "not a key of" in auth_server.reason(certificate=named(USER, RSA_KEYS[1]))
    assert str(auth_server.identify(certificate=named(f"{last}:{USER}", RSA_KEYS[1])).identity) == f"{last}:{USER}"


def test_trailing_zeros_of_key_are_ignored(auth_server: AuthServer) -> None:
    """Some software omits the four zeros after an RSA key."""
    auth_server.create(USER, Value(300, "HS_PUBKEY", RSA_KEYS[0].public.to_bytes()[:-4]))
    assert str(auth_server.identify(certificate=named(f"300:{USER}", RSA_KEYS[0])).identity) == f"300:{USER}"


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (certificate(), "no UID, CN or O"),
        (certificate((UNIT, RSA_NAME)), "no UID, CN or O"),
        (named("300:"), "not INDEX:HANDLE"),
        (named("99999999999:12345/x"), "not INDEX:HANDLE"),
        (named(RSA_NAME, elliptic_key()), "RSA or DSA"),
        (named(RSA_NAME, wide_exponent()), "RSA or DSA"),
        (b"", "is invalid"),
        (b"0\x80no certificate", "is invalid"),
        (bytes(20_000), "more than 16,384"),
        (named(RSA_NAME, RSA_KEYS[0]), f"not a key of {RSA_NAME}"),
        (named(DSA_NAME, RSA_KEY), f"not a key of {DSA_NAME}"),
        (named(f"301:{ADMIN}", RSA_KEY), "not a key of"),
        (named(f"399:{ADMIN}", RSA_KEY), "not a key of"),
        (named(f"{PREFIX}/nobody", RSA_KEY), "not a key of"),
        (named("anonymous", RSA_KEY), "not a key of 0:anonymous"),
        (named("300:99999/x", RSA_KEY), "not hosted here"),
    ],
)
def test_wrong_certificate_is_refused_with_reason(
    auth_server: AuthServer, octets: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert reason in auth_server.reason(certificate=octets)
    assert auth_server.verdicts == [], "a certificate is no guess"
    assert len(caplog.records) == 1
    assert STRANGER in caplog.text


def test_log_says_more_than_response(auth_server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        in_challenge = [
            auth_server.reason(certificate=named(name, RSA_KEYS[0])).replace(name, "NAME")
            for name in (RSA_NAME, f"301:{ADMIN}", f"300:{PREFIX}/nobody")
        ]
    assert len(set(in_challenge)) == 1
    another, no_key, no_record = (record.getMessage() for record in caplog.records)
    assert "(HS_PUBKEY) is not the certificate's" in another
    assert "no value with a public key" in no_key
    assert "there is no record" in no_record


def test_certificate_names_cannot_forge_log_lines(auth_server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        auth_server.reason(certificate=named("300:1/a\nb"))
        auth_server.reason(certificate=named("300:" + "\u202e"))
    assert all("\n" not in record.getMessage() and "\u202e" not in record.getMessage() for record in caplog.records)


def test_untrusted_clients_cannot_fill_the_log(auth_server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    """Rejected certificates are not rate-limited, but their log lines are."""
    with caplog.at_level(logging.INFO):
        for octets in [named("300:1/nobody"), b"rubbish"] * BURST_LINES:
            auth_server.reason(certificate=octets)
        in_challenge = len(caplog.records)
        assert abs(in_challenge - BURST_LINES) <= 1  # the clock has fractions
        auth_server.now[0] += 2
        auth_server.reason(certificate=b"rubbish")
    assert f"({2 * BURST_LINES - in_challenge} similar messages omitted)" in caplog.records[-1].getMessage()


def test_certificate_with_serial_number_0_is_accepted(auth_server: AuthServer) -> None:
    """Some tools use it for all certificates."""
    number = b"\x02\x01\x01"
    octets = named(RSA_NAME)
    at = octets.index(number, 12)
    numbered = octets[: at + 2] + b"\0" + octets[at + 3 :]
    assert str(auth_server.identify(certificate=numbered).identity) == RSA_NAME


def test_certificate_of_a_connection_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with every request."""
    loaded: list[bytes] = []
    load = proofs._load_certificate

    def count(raw: bytes) -> x509.Certificate:
        loaded.append(raw)
        return load(raw)

    monkeypatch.setattr(proofs, "_load_certificate", count)
    raw = named(f"300:{PREFIX}/once")
    assert proofs.parse_subject(raw) == proofs.parse_subject(raw)
    assert loaded == [raw]


@given(octets=st.binary(max_size=300) | st.binary(max_size=5).map(lambda cut: named(RSA_NAME)[:-5] + cut))
def test_any_bytes_are_parsed_or_refused(octets: bytes) -> None:
    with suppress(InvalidCertificate):
        proofs.parse_subject(octets)


@pytest.mark.parametrize("octet", [0x03, 0x0C, 0x1E, 0x80, 0xFF])
def test_certificate_damaged_anywhere_is_at_most_refused(octet: int) -> None:
    whole = named(RSA_NAME)
    for at in range(len(whole)):
        with suppress(InvalidCertificate):
            proofs.parse_subject(whole[:at] + bytes((octet,)) + whole[at + 1 :])


@given(st.integers(0, 800), st.integers(0, 255))
def test_damaged_certificate_is_at_most_refused(at: int, octet: int) -> None:
    whole = bytearray(named(RSA_NAME))
    whole[at % len(whole)] = octet
    with suppress(InvalidCertificate):
        proofs.parse_subject(bytes(whole))


# Values with keys


def test_server_key_in_site_record_is_accepted(auth_server: AuthServer) -> None:
    """The record has the site of the recorded server at index 1."""
    for name in (f"1:{ADMIN}", ADMIN):
        auth = auth_server.identify(certificate=named(name, SERVER_KEY))
        assert str(auth.identity) == f"1:{ADMIN}"
    assert "is not a key of" in auth_server.reason(certificate=named(f"1:{ADMIN}", RSA_KEYS[0]))


def test_site_of_derived_prefixes_is_not_a_key(auth_server: AuthServer) -> None:
    auth_server.create(USER, Value(1, "HS_SITE.PREFIX", SITE.to_bytes()), Value(2, "HS_SITE", b"no site"))
    assert "is not a key of" in auth_server.reason(certificate=named(USER, SERVER_KEY))


def token(subject: str, *, key: PrivateKey = RSA_KEYS[0], begins: int = -1, ends: int | None = 1) -> Value:
    now = int(NOW)
    expires = None if ends is None else now + ends
    claims = Claims(ValueRef.parse("300:0.NA/0.NA"), ValueRef.parse(subject), now, now + begins, expires)
    return Value(400, "HS_CERT", Certificate.sign(claims, key.public, (), RSA_KEY).to_bytes())


def test_valid_token_for_handle_is_accepted(auth_server: AuthServer) -> None:
    auth_server.create(USER, token(f"300:{USER}"))
    for name in (f"400:{USER}", USER):
        assert str(auth_server.identify(certificate=named(name, RSA_KEYS[0])).identity) == f"400:{USER}"
    assert "is not a key of" in auth_server.reason(certificate=named(USER, RSA_KEYS[1]))
    auth_server.now[0] += 10
    assert "is not a key of" in auth_server.reason(certificate=named(USER, RSA_KEYS[0]))


@pytest.mark.parametrize(
    "value",
    [token(USER, begins=1, ends=2), token(USER, ends=0), token(USER, ends=None), token("300:12345/other")],
    ids=["too early", "too late", "without end", "about another"],
)
def test_other_tokens_are_refused(auth_server: AuthServer, value: Value) -> None:
    auth_server.create(USER, value, Value(401, "HS_CERT", b"no token"))
    assert "is not a key of" in auth_server.reason(certificate=named(USER, RSA_KEYS[0]))


# Precedence


def test_certificate_is_used_without_other_credentials(auth_server: AuthServer) -> None:
    octets = named(RSA_NAME)
    assert auth_server.identify("Basic eDp5", certificate=octets).problem is not None
    assert auth_server.identify("Bearer x", certificate=octets).problem is not None
    assert auth_server.identify('Handle sessionId="x"', certificate=octets).problem is not None
    assert auth_server.identify("Handle", certificate=octets).problem is None


def test_requested_certificate_is_not_ambient(auth_server: AuthServer) -> None:
    auth = auth_server.identify(WANTS, certificate=named(RSA_NAME))
    assert str(auth.identity) == RSA_NAME
    assert not auth.ambient
    again = auth_server.identify('Handle clientCert="true", renegotiate="true"', certificate=named(RSA_NAME))
    assert str(again.identity) == RSA_NAME


def test_missing_certificate_is_explained(auth_server: AuthServer) -> None:
    auth = auth_server.identify(WANTS)
    assert auth.problem is not None
    assert auth.problem.code is ResponseCode.AUTHENTICATION_NEEDED
    assert "handshake" in auth.problem.reason
    (line,) = auth_server.challenge(WANTS)
    assert line[1].startswith("Handle "), "and no Basic"
    assert auth_server.identify('Handle clientCert="false"').problem is None


def test_session_identity_takes_precedence_over_certificate(auth_server: AuthServer) -> None:
    session = auth_server.begin()
    header = handle_header(sessionId=session.id)
    assert str(auth_server.identify(header, certificate=named(RSA_NAME)).identity) == RSA_NAME
    found = auth_server.table.find(session.id, auth_server.now[0])
    assert found is not None
    assert found.claimed == RSA_NAME
    assert str(auth_server.identify(header, certificate=named(DSA_NAME, DSA_KEY)).identity) == RSA_NAME
    assert str(auth_server.identify(header).identity) == RSA_NAME


def test_certificate_on_insecure_connection_is_ignored(auth_server: AuthServer) -> None:
    client = Client(STRANGER, secure=False, certificate=named(RSA_NAME))
    assert str(auth_server.identify(client=client).identity) == "anonymous"


def test_proof_ends_with_key(auth_server: AuthServer) -> None:
    auth = auth_server.identify(certificate=named(RSA_NAME))
    auth_server.modify(ADMIN, Value(300, "HS_PUBKEY", RSA_KEYS[0].public.to_bytes()))
    with pytest.raises(KeyChanged):
        auth_server.execute(auth, Create(Handle.parse(f"{PREFIX}/new"), (URL, BY_ADMINS)))
    assert "is not a key of" in auth_server.reason(certificate=named(RSA_NAME))


def test_changed_site_record_ends_proof(auth_server: AuthServer) -> None:
    auth = auth_server.identify(certificate=named(f"1:{ADMIN}", SERVER_KEY))
    auth_server.modify(ADMIN, Value(1, "HS_SITE", replace(SITE, serial=7).to_bytes()))
    assert auth.guard is not None
    with auth_server.registry.snapshot() as snapshot, pytest.raises(KeyChanged):
        auth.guard.check(snapshot, 0.0)

"""Who comes with a TLS client certificate: the name in it, the key in the record, and what is said to all others."""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.private_keys import PrivateKey
from perseid.records.signatures import Certificate, Claims
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.records import Create
from perseid.server.http.auth import proofs
from perseid.server.http.auth.proofs import InvalidCertificate
from perseid.server.http.context import BURST_LINES
from perseid.server.http.messages import Client
from perseid.server.native.authentication import KeyChanged
from perseid.wire.codes import ResponseCode
from tests.server.http.client_certificates import CN, ORG, UID, UNIT, certificate, elliptic_key, named, wide_exponent
from tests.server.http.doorsteps import STRANGER, USER, Doorstep, handle_header
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
def test_a_certificate_names_its_holder(door: Doorstep, names: list[tuple[x509.ObjectIdentifier, str]]) -> None:
    auth = door.identify(certificate=certificate(*names))
    assert auth.problem is None
    assert str(auth.identity).upper() == RSA_NAME.upper()
    assert auth.ambient
    assert auth.session is None
    assert [verdict.succeeded for verdict in door.verdicts] == [True]
    door.carry_out(auth, Create(Handle.parse(f"{PREFIX}/new"), (URL, BY_ADMINS)))


@pytest.mark.parametrize(("key", "index"), [(RSA_KEY, 300), (DSA_KEY, 302)], ids=["RSA", "DSA"])
@pytest.mark.parametrize("name", [ADMIN, f"0:{ADMIN}", None])
def test_without_an_index_the_key_is_found(door: Doorstep, key: PrivateKey, index: int, name: str | None) -> None:
    auth = door.identify(certificate=named(name or f"{index}:{ADMIN}", key))
    assert str(auth.identity) == f"{index}:{ADMIN}"


def test_a_key_is_the_same_however_its_octets_end(door: Doorstep) -> None:
    """Some software leaves out the four zeros behind an RSA key."""
    door.create(USER, Value(300, "HS_PUBKEY", RSA_KEYS[0].public.to_bytes()[:-4]))
    assert str(door.identify(certificate=named(f"300:{USER}", RSA_KEYS[0])).identity) == f"300:{USER}"


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (certificate(), "no UID, CN or O"),
        (certificate((UNIT, RSA_NAME)), "no UID, CN or O"),
        (named("300:"), "not INDEX:HANDLE"),
        (named("99999999999:12345/x"), "not INDEX:HANDLE"),
        (named(RSA_NAME, elliptic_key()), "RSA or DSA"),
        (named(RSA_NAME, wide_exponent()), "RSA or DSA"),
        (b"", "cannot be read"),
        (b"0\x80no certificate", "cannot be read"),
        (bytes(20_000), "more than 16,384"),
        (named(RSA_NAME, RSA_KEYS[0]), f"not held here as that of {RSA_NAME}"),
        (named(DSA_NAME, RSA_KEY), f"not held here as that of {DSA_NAME}"),
        (named(f"301:{ADMIN}", RSA_KEY), "not held here as that of"),
        (named(f"399:{ADMIN}", RSA_KEY), "not held here as that of"),
        (named(f"{PREFIX}/nobody", RSA_KEY), "not held here as that of"),
        (named("anonymous", RSA_KEY), "not held here as that of 0:anonymous"),
        (named("300:99999/x", RSA_KEY), "not served here"),
    ],
)
def test_another_certificate_is_refused_with_a_reason(
    door: Doorstep, octets: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert reason in door.reason(certificate=octets)
    assert door.verdicts == [], "a certificate is no guess"
    assert len(caplog.records) == 1
    assert STRANGER in caplog.text


def test_the_log_says_more_than_the_answer(door: Doorstep, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        in_challenge = [
            door.reason(certificate=named(name, RSA_KEYS[0])).replace(name, "NAME")
            for name in (RSA_NAME, f"301:{ADMIN}", f"300:{PREFIX}/nobody")
        ]
    assert len(set(in_challenge)) == 1
    another, no_key, no_record = (record.getMessage() for record in caplog.records)
    assert "(HS_PUBKEY) is another one than the certificate's" in another
    assert "no value with a public key" in no_key
    assert "there is no record" in no_record


def test_names_of_strangers_forge_no_line_of_the_log(door: Doorstep, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        door.reason(certificate=named("300:1/a\nb"))
        door.reason(certificate=named("300:" + "\u202e"))
    assert all("\n" not in record.getMessage() and "\u202e" not in record.getMessage() for record in caplog.records)


def test_strangers_do_not_fill_the_log(door: Doorstep, caplog: pytest.LogCaptureFixture) -> None:
    """Who comes with a certificate that is not accepted may ask as often as everybody."""
    with caplog.at_level(logging.INFO):
        for octets in [named("300:1/nobody"), b"rubbish"] * BURST_LINES:
            door.reason(certificate=octets)
        in_challenge = len(caplog.records)
        assert abs(in_challenge - BURST_LINES) <= 1  # the clock has fractions
        door.now[0] += 2
        door.reason(certificate=b"rubbish")
    assert f"({2 * BURST_LINES - in_challenge} like it were not told)" in caplog.records[-1].getMessage()


def test_a_certificate_may_have_the_number_0(door: Doorstep) -> None:
    """Some tools give it to all that they make."""
    number = b"\x02\x01\x01"
    octets = named(RSA_NAME)
    at = octets.index(number, 12)
    numbered = octets[: at + 2] + b"\0" + octets[at + 3 :]
    assert str(door.identify(certificate=numbered).identity) == RSA_NAME


@given(octets=st.binary(max_size=300) | st.binary(max_size=5).map(lambda cut: named(RSA_NAME)[:-5] + cut))
def test_no_octets_are_too_odd_to_be_refused(octets: bytes) -> None:
    with suppress(InvalidCertificate):
        proofs.parse_subject(octets)


@pytest.mark.parametrize("octet", [0x03, 0x0C, 0x1E, 0x80, 0xFF])
def test_no_damage_anywhere_brings_more_than_a_refusal(octet: int) -> None:
    whole = named(RSA_NAME)
    for at in range(len(whole)):
        with suppress(InvalidCertificate):
            proofs.parse_subject(whole[:at] + bytes((octet,)) + whole[at + 1 :])


@given(st.integers(0, 800), st.integers(0, 255))
def test_no_damage_brings_more_than_a_refusal(at: int, octet: int) -> None:
    whole = bytearray(named(RSA_NAME))
    whole[at % len(whole)] = octet
    with suppress(InvalidCertificate):
        proofs.parse_subject(bytes(whole))


# Values that hold a key


def test_the_key_of_a_server_in_a_site_record_counts(door: Doorstep) -> None:
    """The record has the site of the recorded server at index 1."""
    for name in (f"1:{ADMIN}", ADMIN):
        auth = door.identify(certificate=named(name, SERVER_KEY))
        assert str(auth.identity) == f"1:{ADMIN}"
    assert "not held" in door.reason(certificate=named(f"1:{ADMIN}", RSA_KEYS[0]))


def test_where_derived_prefixes_live_is_no_key(door: Doorstep) -> None:
    door.create(USER, Value(1, "HS_SITE.PREFIX", SITE.to_bytes()), Value(2, "HS_SITE", b"no site"))
    assert "not held" in door.reason(certificate=named(USER, SERVER_KEY))


def token(subject: str, *, key: PrivateKey = RSA_KEYS[0], begins: int = -1, ends: int | None = 1) -> Value:
    now = int(NOW)
    expires = None if ends is None else now + ends
    claims = Claims(ValueRef.parse("300:0.NA/0.NA"), ValueRef.parse(subject), now, now + begins, expires)
    return Value(400, "HS_CERT", Certificate.sign(claims, key.public, (), RSA_KEY).to_bytes())


def test_a_token_about_the_handle_counts_while_it_is_valid(door: Doorstep) -> None:
    door.create(USER, token(f"300:{USER}"))
    for name in (f"400:{USER}", USER):
        assert str(door.identify(certificate=named(name, RSA_KEYS[0])).identity) == f"400:{USER}"
    assert "not held" in door.reason(certificate=named(USER, RSA_KEYS[1]))
    door.now[0] += 10
    assert "not held" in door.reason(certificate=named(USER, RSA_KEYS[0]))


@pytest.mark.parametrize(
    "value",
    [token(USER, begins=1, ends=2), token(USER, ends=0), token(USER, ends=None), token("300:12345/other")],
    ids=["too early", "too late", "without end", "about another"],
)
def test_no_other_token_counts(door: Doorstep, value: Value) -> None:
    door.create(USER, value, Value(401, "HS_CERT", b"no token"))
    assert "not held" in door.reason(certificate=named(USER, RSA_KEYS[0]))


# In a request


def test_a_certificate_counts_where_nothing_else_does(door: Doorstep) -> None:
    octets = named(RSA_NAME)
    assert door.identify("Basic eDp5", certificate=octets).problem is not None
    assert door.identify("Bearer x", certificate=octets).problem is not None
    assert door.identify('Handle sessionId="x"', certificate=octets).problem is not None
    assert door.identify("Handle", certificate=octets).problem is None


def test_whoever_asks_for_a_certificate_is_no_browser_that_sends_it_by_itself(door: Doorstep) -> None:
    auth = door.identify(WANTS, certificate=named(RSA_NAME))
    assert str(auth.identity) == RSA_NAME
    assert not auth.ambient
    again = door.identify('Handle clientCert="true", renegotiate="true"', certificate=named(RSA_NAME))
    assert str(again.identity) == RSA_NAME


def test_who_has_none_is_told_where_to_send_it(door: Doorstep) -> None:
    auth = door.identify(WANTS)
    assert auth.problem is not None
    assert auth.problem.code is ResponseCode.AUTHENTICATION_NEEDED
    assert "handshake" in auth.problem.reason
    (line,) = door.challenge(WANTS)
    assert line[1].startswith("Handle "), "and no Basic"
    assert door.identify('Handle clientCert="false"').problem is None


def test_a_certificate_proves_a_session_and_what_was_proved_there_counts_before_it(door: Doorstep) -> None:
    session = door.begin()
    header = handle_header(sessionId=session.id)
    assert str(door.identify(header, certificate=named(RSA_NAME)).identity) == RSA_NAME
    assert session.claimed == RSA_NAME
    assert str(door.identify(header, certificate=named(DSA_NAME, DSA_KEY)).identity) == RSA_NAME
    assert str(door.identify(header).identity) == RSA_NAME


def test_a_certificate_of_a_connection_that_others_read_does_not_count(door: Doorstep) -> None:
    client = Client(STRANGER, secure=False, certificate=named(RSA_NAME))
    assert str(door.identify(client=client).identity) == "anonymous"


def test_the_proof_ends_with_the_key(door: Doorstep) -> None:
    auth = door.identify(certificate=named(RSA_NAME))
    door.modify(ADMIN, Value(300, "HS_PUBKEY", RSA_KEYS[0].public.to_bytes()))
    with pytest.raises(KeyChanged):
        door.carry_out(auth, Create(Handle.parse(f"{PREFIX}/new"), (URL, BY_ADMINS)))
    assert "not held" in door.reason(certificate=named(RSA_NAME))


def test_a_site_record_that_changes_ends_what_it_proved(door: Doorstep) -> None:
    auth = door.identify(certificate=named(f"1:{ADMIN}", SERVER_KEY))
    door.modify(ADMIN, Value(1, "HS_SITE", replace(SITE, serial=7).to_bytes()))
    assert auth.guard is not None
    with door.registry.snapshot() as snapshot, pytest.raises(KeyChanged):
        auth.guard.check(snapshot)

"""Certificates for HTTPS: self-signed and configured ones, and errors."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)
from cryptography.x509.oid import NameOID

from perseid.records.keys import PublicKey
from perseid.registry.installation.certificates import (
    CertificateError,
    Credentials,
    certificate_hosts,
    create_certificate,
    create_self_signed,
    find_certificate,
    find_or_create,
)
from tests.registry.installation.server_files import PASSPHRASE, furnish, put, settings
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY

NOW = datetime(2026, 11, 15, tzinfo=UTC)
DEFAULTS = settings()
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
OWN = {"HTTP_CERTIFICATE_FILE": "web.pem", "HTTP_KEY_FILE": "web.key"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return furnish(tmp_path / "here")


def names_of(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def issued(
    key: Any,
    *names: str,
    begin: datetime = NOW - timedelta(days=1),
    end: datetime = NOW + timedelta(days=90),
    issuer: Any = OTHER_KEY,
) -> bytes:
    """Return a certificate as issued by an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "web")])
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    )
    return made.sign(issuer, hashes.SHA256()).public_bytes(Encoding.PEM)


def private(key: Any, word: bytes | None = None) -> bytes:
    hidden = NoEncryption() if word is None else BestAvailableEncryption(word)
    octets: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)
    return octets


def refused(directory: Path, **variables: object) -> str:
    with pytest.raises(CertificateError) as caught:
        find_certificate(directory, settings(**variables), SERVER_KEY)
    return str(caught.value)


# The self-signed one


def test_self_signed_certificate_has_server_key_and_hosts(here: Path) -> None:
    assert find_certificate(here, DEFAULTS, SERVER_KEY) is None
    made = find_or_create(here, DEFAULTS, SERVER_KEY)
    assert made.made
    (certificate,) = made.chain
    encoded = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert PublicKey.from_x509(encoded) == SERVER_KEY.public
    assert names_of(certificate) == ["127.0.0.1", "localhost", "::1"]
    assert certificate.not_valid_before_utc.year == 2000
    assert certificate.not_valid_after_utc.year == 9999
    path = here / "keys" / "https.pem"
    assert made.path == path
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in path.read_bytes()
    assert not (here / "keys" / "https.key").exists()
    again = find_certificate(here, DEFAULTS, SERVER_KEY)
    assert again is not None
    assert (again.chain, again.made, again.is_own) == (made.chain, "", True)
    assert not list(again.remarks(DEFAULTS, NOW))
    assert "PRIVATE" not in repr(again)


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({"HTTP_PUBLIC_URL": "https://hdl.example.org:8443/x", "HTTP_HOST": "192.0.2.7"}, "hdl.example.org"),
        ({"HTTP_PUBLIC_URL": "https://[2001:db8::1]"}, "2001:db8::1"),
        ({"HTTP_HOST": "0.0.0.0"}, "localhost"),
        ({"HTTP_HOST": "::"}, "localhost"),
        ({"HTTP_HOST": "names.example.org"}, "names.example.org"),
    ],
)
def test_public_host_comes_first(variables: dict[str, str], first: str) -> None:
    found = certificate_hosts(settings(**variables))
    assert found[0] == first
    assert {"localhost", "127.0.0.1", "::1"} <= set(found)
    assert "0.0.0.0" not in found
    assert names_of(create_self_signed(EC_KEY, found)) == list(found)


@pytest.mark.parametrize("strict", [False, True])
def test_clients_with_a_copy_verify_certificate(here: Path, strict: bool) -> None:
    """With the ssl module: the chain and the host name."""
    made = create_certificate(here, settings(HTTP_PUBLIC_URL="https://hdl.example.org"), SERVER_KEY)
    put(here / "key.pem", private(made.key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.path, here / "key.pem")
    client = ssl.create_default_context(cafile=str(made.path))
    if strict:
        client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname="hdl.example.org")
    other = server.wrap_bio(there, back, server_side=True)
    for side in (one, other, one, other, one):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert one.version() == "TLSv1.3"
    assert one.getpeercert()


def test_common_name_is_shortened() -> None:
    host = ".".join(["long-label-" * 3 + "x"] * 5)
    made = create_self_signed(EC_KEY, (host,))
    assert names_of(made) == [host]
    (common,) = made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert common.value == host[:64]


@pytest.mark.parametrize("change", ["key", "host", "damaged", "empty"])
def test_certificate_is_replaced_when_key_or_hosts_change(here: Path, change: str) -> None:
    before = create_certificate(here, DEFAULTS, SERVER_KEY)
    key, config = SERVER_KEY, DEFAULTS
    if change == "key":
        key = RSA_KEY
    elif change == "host":
        config = settings(HTTP_PUBLIC_URL="https://hdl.example.org")
    else:
        put(before.path, b"" if change == "empty" else b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    assert find_certificate(here, config, key) is None
    after = find_or_create(here, config, key)
    assert after.made
    assert after.chain != before.chain
    assert find_certificate(here, config, key) is not None


@pytest.mark.parametrize("passphrase", ["", PASSPHRASE])
def test_unsuitable_key_gets_separate_tls_key(here: Path, passphrase: str) -> None:
    config = settings(KEYS_PASSPHRASE=passphrase)
    made = find_or_create(here, config, DSA_KEY)
    assert isinstance(made.key, ec.EllipticCurvePrivateKey)
    path = here / "keys" / "https.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (b"ENCRYPTED" in path.read_bytes()) == bool(passphrase)
    again = find_or_create(here, config, DSA_KEY)
    assert (again.chain, again.made) == (made.chain, "")
    other_hosts = find_or_create(here, settings(KEYS_PASSPHRASE=passphrase, HTTP_HOST="192.0.2.7"), DSA_KEY)
    assert private(other_hosts.key) == private(made.key)
    if passphrase:
        with pytest.raises(CertificateError, match="is protected by a passphrase, but none is set"):
            find_certificate(here, DEFAULTS, DSA_KEY)
        with pytest.raises(CertificateError, match=r"passphrase of PERSEID_KEYS_PASSPHRASE is wrong for .*https\.key"):
            find_certificate(here, settings(KEYS_PASSPHRASE="wrong"), DSA_KEY)
    else:
        assert find_certificate(here, settings(KEYS_PASSPHRASE="not needed"), DSA_KEY) is not None
        put(path, b"nonsense")
        with pytest.raises(CertificateError, match=r"https\.key is damaged; remove the file to have a new one created"):
            find_certificate(here, config, DSA_KEY)


def test_short_rsa_key_gets_separate_tls_key(here: Path) -> None:
    short = type(RSA_KEY).from_pkcs8(
        rsa.generate_private_key(65_537, 1024).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    )
    assert isinstance(find_or_create(here, DEFAULTS, short).key, ec.EllipticCurvePrivateKey)


# The operator's


@pytest.mark.parametrize(
    "key",
    [EC_KEY, rsa.generate_private_key(65_537, 2048), ed25519.Ed25519PrivateKey.generate()],
    ids=["ec", "rsa", "edwards"],
)
@pytest.mark.parametrize("together", [False, True])
def test_configured_files_are_used(here: Path, key: Any, together: bool) -> None:
    authority = issued(OTHER_KEY, "authority")
    own = issued(key, "hdl.example.org", "*.example.net")
    if together:
        put(here / "web.pem", b"a remark\n" + own + authority + private(key))
        config = settings(HTTP_CERTIFICATE_FILE="web.pem")
    else:
        put(here / "web.pem", own + authority)
        put(here / "web.key", private(key))
        config = settings(HTTP_CERTIFICATE_FILE=here / "web.pem", HTTP_KEY_FILE="web.key")
    found = find_or_create(here, config, SERVER_KEY)
    assert (len(found.chain), found.path, found.is_own, found.made) == (2, here / "web.pem", False, "")
    assert names_of(found.chain[0]) == ["hdl.example.org", "*.example.net"]
    assert not (here / "keys" / "https.pem").exists()


def remarks(here: Path, now: datetime = NOW, url: str = "", **dates: datetime) -> list[str]:
    put(here / "web.pem", issued(EC_KEY, "hdl.example.org", "*.example.net", **dates) + private(EC_KEY))
    config = settings(HTTP_CERTIFICATE_FILE="web.pem", HTTP_PUBLIC_URL=url)
    found = find_certificate(here, config, SERVER_KEY)
    assert isinstance(found, Credentials)
    return [remark.removeprefix(f"The certificate in {here / 'web.pem'} ") for remark in found.remarks(config, now)]


def test_expired_certificate_is_a_warning(here: Path) -> None:
    assert remarks(here) == []
    assert remarks(here, end=NOW - timedelta(hours=1)) == [
        "expired at 2026-11-14 23:00 UTC and clients reject it; renew it"
    ]
    assert remarks(here, begin=NOW + timedelta(hours=1)) == ["is valid only from 2026-11-15 01:00 UTC; check the clock"]
    assert remarks(here, end=NOW + timedelta(days=3, hours=1)) == [
        "expires in 3 days, at 2026-11-18 01:00 UTC; renew it"
    ]


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://hdl.example.org", True),
        ("https://HDL.example.org:8443/x", True),
        ("https://a.example.net", True),
        ("https://a.b.example.net", False),
        ("https://example.net", False),
        ("https://192.0.2.7", False),
    ],
)
def test_certificate_for_another_host_is_a_warning(here: Path, url: str, fits: bool) -> None:
    assert bool(remarks(here, url=url)) is not fits


def test_unusable_files_are_refused_with_advice(here: Path) -> None:
    certificate, key = here / "web.pem", here / "web.key"
    assert refused(here, HTTP_KEY_FILE="web.key").startswith("http.key_file is set but http.certificate_file is not")
    assert refused(here, **OWN) == (
        f"Cannot read {certificate}: No such file or directory; correct the setting http.certificate_file"
    )
    put(certificate, b"nothing\n")
    assert refused(here, **OWN).startswith(f"{certificate} is not a PEM certificate file (")
    put(certificate, issued(EC_KEY, "a") + issued(OTHER_KEY, "b"))
    assert refused(here, **OWN) == f"Cannot read {key}: No such file or directory; correct the setting http.key_file"
    assert refused(here, HTTP_CERTIFICATE_FILE="web.pem").startswith(f"{certificate} contains no PEM private key; set")
    put(key, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert refused(here, **OWN) == f"The private key in {key} is unreadable; restore the file"
    put(key, private(EC_KEY, b"secret"))
    said = refused(here, **OWN)
    assert f"openssl pkey -in {key}" in said
    assert said.startswith(f"The private key in {key} is protected by a passphrase")
    put(key, private(OTHER_KEY))
    assert refused(here, **OWN) == f"The server's certificate must come first in {certificate}"
    put(key, private(ec.generate_private_key(ec.SECP256R1())))
    assert refused(here, **OWN).startswith(f"The key in {key} does not match the certificate in {certificate}")
    put(key, private(rsa.generate_private_key(65_537, 1024)))
    assert refused(here, **OWN) == f"The RSA key in {key} has 1024 bits; TLS clients require 2048"
    old = load_der_private_key(DSA_KEY.to_pkcs8(), None)
    assert isinstance(old, dsa.DSAPrivateKey)
    put(key, private(old))
    assert refused(here, **OWN) == f"{key} contains a DSA key; TLS requires RSA or an elliptic curve"
    put(certificate, bytes(2 << 20))
    assert "is too large: at most 1,048,576 bytes" in refused(here, **OWN)

"""The certificate for HTTPS: the administrator's own, or a self-signed one for the server's key.

    keys/https.pem    the self-signed certificate; created by `init`, and again when the key or the host names change
    keys/https.key    its key, if the server's own key is unsuitable for TLS: DSA, or a short RSA key

A self-signed certificate has the key of the site information, so clients that have that can compare them, as Handle
System clients do. It names the server's hosts, so clients with a copy can verify it as usual, and it never expires: a
replacement would mean a new key. The key stays in its own file, protected as it is.

An administrator's certificate comes from the files of the settings. Unusable files are refused; a certificate that
clients will reject (expired, or for other hosts) is a warning, since a server with an old certificate is better than
none.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perseid.records.private_keys import PrivateKey

from .files import InstallationError, read_file, replace_file
from .settings import Config
from .site import KEYS_NAME, is_unspecified, load_passphrase, parse_address

CERTIFICATE_NAME: Final = "https.pem"
KEY_NAME: Final = "https.key"

MIN_RSA_BITS: Final = 2048
"""Shortest RSA key for TLS: current clients accept no shorter one."""

EXPIRY_WARNING: Final = timedelta(days=14)
"""How long before expiry to warn; automatic renewal happens at thirty days."""

MAX_FILE: Final = 1 << 20
"""Maximum size of a certificate file in bytes."""

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # independent of the clock
_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280, 4.1.2.5: it has no well-defined end
_MAX_COMMON_NAME = 64  # RFC 5280, appendix A.1
_SERIAL_BYTES = 16
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PEM_HEADER = b"-----BEGIN "

TlsKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


class CertificateError(InstallationError):
    """The certificate for HTTPS or its key is unusable; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate chain and its private key. `repr` shows no key."""

    chain: tuple[x509.Certificate, ...]
    key: TlsKey
    path: Path
    """File of the certificate."""
    is_own: bool = False
    """Whether it is the self-signed one."""
    made: str = ""
    """Why it was created just now, if it was."""

    def remarks(self, config: Config, now: datetime) -> Iterator[str]:
        """Yield warnings: why clients will reject it, now or soon."""
        leaf = self.chain[0]
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if now > end:
            yield f"The certificate in {self.path} expired at {end:%Y-%m-%d %H:%M} UTC and clients reject it; renew it"
        elif now < begin:
            yield f"The certificate in {self.path} is valid only from {begin:%Y-%m-%d %H:%M} UTC; check the clock"
        elif now > end - EXPIRY_WARNING:
            days = (end - now).days
            yield f"The certificate in {self.path} expires in {days} days, at {end:%Y-%m-%d %H:%M} UTC; renew it"
        host = _public_host(config)
        if host and not _covers(leaf, host):
            yield (
                f"The certificate in {self.path} is not valid for {host}, the host of http.public_url; "
                "clients reject it"
            )


def find_certificate(directory: Path, config: Config, key: PrivateKey) -> Credentials | None:
    """Return the certificate of an installation; None if a self-signed one must be created.

    `key` is the server's own. Raises `CertificateError` for unusable files.
    """
    if config.http.certificate_file:
        return _load_configured(directory, config)
    if config.http.key_file:
        raise CertificateError("http.key_file is set but http.certificate_file is not; set both or neither")
    return _load_self_signed(directory, config, key)


def find_or_create(directory: Path, config: Config, key: PrivateKey) -> Credentials:
    """Return the certificate, creating it if necessary."""
    credentials = find_certificate(directory, config, key)
    return create_certificate(directory, config, key) if credentials is None else credentials


def create_certificate(directory: Path, config: Config, key: PrivateKey) -> Credentials:
    """Create a self-signed certificate and store it."""
    folder = directory / KEYS_NAME
    path = folder / CERTIFICATE_NAME
    why = "none existed, or the key or hosts changed"
    tls_key = _to_tls_key(key)
    if tls_key is None:
        tls_key = _load_self_signed_key(directory, config)
        if tls_key is None:
            tls_key = ec.generate_private_key(ec.SECP256R1())
            passphrase, _ = load_passphrase(directory, config)
            encryption: KeySerializationEncryption = (
                NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
            )
            replace_file(folder / KEY_NAME, tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    certificate = create_self_signed(tls_key, certificate_hosts(config))
    replace_file(path, certificate.public_bytes(Encoding.PEM))
    return Credentials((certificate,), tls_key, path, is_own=True, made=why)


def certificate_hosts(config: Config) -> tuple[str, ...]:
    """Return the server's names and addresses, the public one first."""
    hosts = [_public_host(config), config.http.host.rstrip("."), *_LOCAL_HOSTS]
    return tuple(dict.fromkeys(host for host in hosts if host and not is_unspecified(host)))


def create_self_signed(key: TlsKey, names: Sequence[str]) -> x509.Certificate:
    """Return a certificate for names and addresses, signed with its own key.

    It is not a CA certificate, so clients that trust it trust only this server.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:_MAX_COMMON_NAME])])
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(int.from_bytes(secrets.token_bytes(_SERIAL_BYTES), "big") >> 1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    is_edwards = isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    return builder.sign(key, None if is_edwards else hashes.SHA256())


# Self-signed certificates


def _load_self_signed(directory: Path, config: Config, key: PrivateKey) -> Credentials | None:
    """Load the self-signed certificate if it matches the key and the current hosts."""
    tls_key = _to_tls_key(key) or _load_self_signed_key(directory, config)
    path = directory / KEYS_NAME / CERTIFICATE_NAME
    if tls_key is None or not path.exists():
        return None
    try:
        chain = tuple(
            x509.load_pem_x509_certificates(
                read_file(path, MAX_FILE, "remove it to have a new one created", CertificateError)
            )
        )
    except ValueError:
        return None  # incomplete or invalid; it can be created again
    if _public_bytes(chain[0].public_key()) != _public_bytes(tls_key.public_key()):
        return None
    if not all(_covers(chain[0], host) for host in certificate_hosts(config)):
        return None
    return Credentials(chain, tls_key, path, is_own=True)


def _load_self_signed_key(directory: Path, config: Config) -> TlsKey | None:
    """Load the key of the self-signed certificate, if there is one."""
    path = directory / KEYS_NAME / KEY_NAME
    if not path.exists():
        return None
    passphrase, source = load_passphrase(directory, config)
    data = read_file(path, MAX_FILE, "remove it to have a new one created", CertificateError)
    try:
        return _check_tls_key(load_pem_private_key(data, passphrase), path)
    except TypeError:  # passphrase given but not needed, or the other way round
        try:
            return _check_tls_key(load_pem_private_key(data, None), path)
        except TypeError:
            raise CertificateError(f"{path} is protected by a passphrase, but none is set") from None
    except ValueError:
        problem = f"The passphrase of {source} is wrong for {path}, or the file" if passphrase else str(path)
        raise CertificateError(f"{problem} is damaged; remove the file to have a new one created") from None


def _to_tls_key(key: PrivateKey) -> TlsKey | None:
    """Return the server's own key for TLS; None if unsuitable."""
    try:
        # The library's primality tests take 35 ms; the key is our own.
        tls_key = load_der_private_key(key.to_pkcs8(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return tls_key if isinstance(tls_key, rsa.RSAPrivateKey) and tls_key.key_size >= MIN_RSA_BITS else None


# Configured certificates


def _load_configured(directory: Path, config: Config) -> Credentials:
    """Load the certificate and key from the files of the settings."""
    path = directory / config.http.certificate_file
    data = read_file(path, MAX_FILE, "correct the setting http.certificate_file", CertificateError)
    try:
        chain = tuple(x509.load_pem_x509_certificates(data))
    except ValueError as problem:
        raise CertificateError(
            f"{path} is not a PEM certificate file ({problem}): expected -----BEGIN CERTIFICATE-----, with the "
            "server's certificate first and then its chain"
        ) from None
    key_path = directory / config.http.key_file if config.http.key_file else path
    key = _load_configured_key(key_path, "http.key_file" if config.http.key_file else "http.certificate_file")
    public = _public_bytes(key.public_key())
    if _public_bytes(chain[0].public_key()) != public:
        if any(_public_bytes(each.public_key()) == public for each in chain[1:]):
            raise CertificateError(f"The server's certificate must come first in {path}")
        raise CertificateError(
            f"The key in {key_path} does not match the certificate in {path}; set the files that belong together"
        )
    return Credentials(chain, key, path)


def _load_configured_key(path: Path, setting: str) -> TlsKey:
    data = read_file(path, MAX_FILE, f"correct the setting {setting}", CertificateError)
    if _PEM_HEADER not in data or b"PRIVATE KEY-----" not in data:
        raise CertificateError(f"{path} contains no PEM private key; set http.key_file")
    try:
        return _check_tls_key(load_pem_private_key(data[data.index(_PEM_HEADER) :], None), path)
    except TypeError:
        raise CertificateError(
            f"The private key in {path} is protected by a passphrase. Remove it with: "
            f"openssl pkey -in {path} -out FILE, and use that file"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"The private key in {path} is unreadable; restore the file") from None


def _check_tls_key(key: object, path: Path) -> TlsKey:
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < MIN_RSA_BITS:
        raise CertificateError(f"The RSA key in {path} has {key.key_size} bits; TLS clients require {MIN_RSA_BITS}")
    if not isinstance(key, TlsKey):
        kind = "a DSA key" if isinstance(key, dsa.DSAPrivateKey) else "an unsupported key"
        raise CertificateError(f"{path} contains {kind}; TLS requires RSA or an elliptic curve")
    return key


# Helpers


def _public_bytes(key: object) -> bytes:
    public_bytes = getattr(key, "public_bytes", None)
    return b"" if public_bytes is None else bytes(public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _public_host(config: Config) -> str:
    return (urlsplit(config.http.public_url).hostname or "").rstrip(".")


def _general_name(host: str) -> x509.GeneralName:
    address = parse_address(host)
    return x509.DNSName(host.lower()) if address is None else x509.IPAddress(address)


def _covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate is valid for a host (RFC 9525): by name, wildcard or address."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    address = parse_address(host)
    if address is not None:
        return address in names.get_values_for_type(x509.IPAddress)
    host_name = host.lower()
    wildcard = f"*.{host_name.partition('.')[2]}"
    return any(name.lower() in (host_name, wildcard) for name in names.get_values_for_type(x509.DNSName))

"""The certificate with which HTTPS is served: the operator's own, or a self-signed one around the server's key.

    keys/https.pem    the self-signed certificate; made by `init`, and again when the key or the host names have changed
    keys/https.key    its key, where the server's own key is not fit for TLS: DSA, or RSA that is too short

A self-signed certificate holds the key that also stands in the site information, so that whoever has that can compare
them, as clients of the Handle System do. It names the hosts at which the server is found, so that whoever has a copy of
the certificate can have it verified as usual, and it never expires: what would have to be exchanged is the key. The key
itself stays in its own file, protected as it is.

An operator's certificate is taken from the files that the settings name. What cannot be used is refused; what will make
clients turn away (it has expired, or names other hosts) is a remark, since a server with an old certificate is better
than none.
"""

import ipaddress
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

from .files import InstallationError, replace_file
from .settings import Config
from .site import KEYS_NAME, load_passphrase

CERTIFICATE_NAME: Final = "https.pem"
KEY_NAME: Final = "https.key"

MIN_RSA_BITS: Final = 2048
"""The shortest RSA key for TLS: clients of today accept no shorter one."""

EXPIRY_WARNING: Final = timedelta(days=14)
"""How long before its end an operator is reminded of a certificate; those that renew themselves do it at thirty."""

MAX_FILE: Final = 1 << 20
"""Octets of the longest file with certificates that is read."""

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # whatever the clock says when it is made
_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280, 4.1.2.5: it has no well-defined end
_MAX_COMMON_NAME = 64  # RFC 5280, appendix A.1
_SERIAL_BYTES = 16
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PEM_HEADER = b"-----BEGIN "

TlsKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


class CertificateError(InstallationError):
    """The certificate for HTTPS, or its key, cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate with what it chains to, and its private key. `repr` shows no key."""

    chain: tuple[x509.Certificate, ...]
    key: TlsKey
    path: Path
    """Where the certificate stands."""
    is_own: bool = False
    """Whether it is the self-signed one."""
    made: str = ""
    """Why it was made just now, if it was."""

    def remarks(self, config: Config, now: datetime) -> Iterator[str]:
        """What will make clients turn away, now or soon."""
        leaf = self.chain[0]
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if now > end:
            yield f"the certificate in {self.path} has expired at {end:%Y-%m-%d %H:%M} UTC: clients refuse it; renew it"
        elif now < begin:
            yield f"the certificate in {self.path} is valid only from {begin:%Y-%m-%d %H:%M} UTC on; look at the clock"
        elif now > end - EXPIRY_WARNING:
            left = (end - now).days
            yield f"the certificate in {self.path} expires in {left} days, at {end:%Y-%m-%d %H:%M} UTC; renew it"
        host = _public_host(config)
        if host and not _covers(leaf, host):
            yield f"the certificate in {self.path} is not for {host}, the host of http.public_url: clients refuse it"


def find_certificate(directory: Path, config: Config, key: PrivateKey) -> Credentials | None:
    """The certificate of an installation; None if it is to be a self-signed one, and that has yet to be made.

    `key` is the server's own. Raises `CertificateProblem` for files that cannot be used.
    """
    if config.http_certificate_file:
        return _load_configured(directory, config)
    if config.http_key_file:
        raise CertificateError(
            "http.key_file is set and http.certificate_file is not: name the file with the certificate too, or neither"
        )
    return _load_self_signed(directory, config, key)


def find_or_create(directory: Path, config: Config, key: PrivateKey) -> Credentials:
    """The same; what is missing is made."""
    found = find_certificate(directory, config, key)
    return create_certificate(directory, config, key) if found is None else found


def create_certificate(directory: Path, config: Config, key: PrivateKey) -> Credentials:
    """Make a self-signed certificate and put it into its place."""
    folder = directory / KEYS_NAME
    path = folder / CERTIFICATE_NAME
    why = "there was none, or its key or hosts have changed"
    own = _to_tls_key(key)
    if own is None:
        own = _load_self_signed_key(directory, config)
        if own is None:
            own = ec.generate_private_key(ec.SECP256R1())
            passphrase, _ = load_passphrase(directory, config)
            hidden: KeySerializationEncryption = (
                NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
            )
            replace_file(folder / KEY_NAME, own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    certificate = create_self_signed(own, certificate_hosts(config))
    replace_file(path, certificate.public_bytes(Encoding.PEM))
    return Credentials((certificate,), own, path, is_own=True, made=why)


def certificate_hosts(config: Config) -> tuple[str, ...]:
    """Where the server is found: by names and addresses; the one that others know comes first."""
    found = [_public_host(config), config.http_host.rstrip("."), *_LOCAL_HOSTS]
    return tuple(dict.fromkeys(host for host in found if host and not _is_unspecified(host)))


def create_self_signed(key: TlsKey, names: Sequence[str]) -> x509.Certificate:
    """A certificate for some names and addresses, signed with its own key.

    It can certify no other one, so whoever takes it among those that they trust trusts this server and nobody else.
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
    made = (
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
    return made.sign(key, None if is_edwards else hashes.SHA256())


# The self-signed one


def _load_self_signed(directory: Path, config: Config, key: PrivateKey) -> Credentials | None:
    """The self-signed certificate, if there is one that belongs to the key and names the hosts of today."""
    own = _to_tls_key(key) or _load_self_signed_key(directory, config)
    path = directory / KEYS_NAME / CERTIFICATE_NAME
    if own is None or not path.exists():
        return None
    try:
        chain = tuple(x509.load_pem_x509_certificates(_read(path, "remove it, and another one is made")))
    except ValueError:
        return None  # half of one, or something else: it is nothing that could be lost
    if _public_bytes(chain[0].public_key()) != _public_bytes(own.public_key()):
        return None
    if not all(_covers(chain[0], host) for host in certificate_hosts(config)):
        return None
    return Credentials(chain, own, path, is_own=True)


def _load_self_signed_key(directory: Path, config: Config) -> TlsKey | None:
    """The key beside the self-signed certificate, if there is one."""
    path = directory / KEYS_NAME / KEY_NAME
    if not path.exists():
        return None
    passphrase, source = load_passphrase(directory, config)
    data = _read(path, "remove it, and another one is made")
    try:
        return _check_tls_key(load_pem_private_key(data, passphrase), path)
    except TypeError:  # there is a passphrase and it needs none, or the other way round
        try:
            return _check_tls_key(load_pem_private_key(data, None), path)
        except TypeError:
            raise CertificateError(f"{path} is protected by a passphrase, and none is set") from None
    except ValueError:
        opens = (
            f"the passphrase of {source} does not open {path}, or it is damaged" if passphrase else f"{path} is damaged"
        )
        raise CertificateError(f"{opens}; remove it, and another one is made") from None


def _to_tls_key(key: PrivateKey) -> TlsKey | None:
    """The server's own key as TLS takes it; None if it does not."""
    try:
        found = load_der_private_key(key.to_pkcs8(), None)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return found if isinstance(found, rsa.RSAPrivateKey) and found.key_size >= MIN_RSA_BITS else None


# The operator's


def _load_configured(directory: Path, config: Config) -> Credentials:
    """The certificate and the key in the files that the settings name."""
    path = directory / config.http_certificate_file
    data = _read(path, "correct the setting http.certificate_file")
    try:
        chain = tuple(x509.load_pem_x509_certificates(data))
    except ValueError as problem:
        raise CertificateError(
            f"{path} holds no certificate in PEM ({problem}): it begins with -----BEGIN CERTIFICATE-----, the server's "
            "own first, then those that it chains to"
        ) from None
    key_path = directory / config.http_key_file if config.http_key_file else path
    key = _load_configured_key(key_path, "http.key_file" if config.http_key_file else "http.certificate_file")
    public = _public_bytes(key.public_key())
    if _public_bytes(chain[0].public_key()) != public:
        if any(_public_bytes(each.public_key()) == public for each in chain[1:]):
            raise CertificateError(f"in {path} another certificate stands before the server's own; put that first")
        raise CertificateError(
            f"the key in {key_path} does not belong to the certificate in {path}: name the two files that were made "
            "together"
        )
    return Credentials(chain, key, path)


def _load_configured_key(path: Path, setting: str) -> TlsKey:
    data = _read(path, f"correct the setting {setting}")
    if _PEM_HEADER not in data or b"PRIVATE KEY-----" not in data:
        raise CertificateError(f"{path} holds no private key in PEM; name the file that does in http.key_file")
    try:
        return _check_tls_key(load_pem_private_key(data[data.index(_PEM_HEADER) :], None), path)
    except TypeError:
        raise CertificateError(
            f"the private key in {path} is protected by a passphrase, which the server does not have: take it off with "
            f"openssl pkey -in {path} -out FILE, and name that file"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"the private key in {path} cannot be read; put it back from where it came") from None


def _check_tls_key(key: object, path: Path) -> TlsKey:
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < MIN_RSA_BITS:
        raise CertificateError(f"the RSA key in {path} has {key.key_size} bits, and clients want {MIN_RSA_BITS}")
    if not isinstance(key, TlsKey):
        kind = "a DSA key" if isinstance(key, dsa.DSAPrivateKey) else "a key of another kind"
        raise CertificateError(f"{path} holds {kind}; for TLS it is RSA, or of an elliptic curve")
    return key


# Small things


def _read(path: Path, advice: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}; {advice}") from None
    if len(data) > MAX_FILE:
        raise CertificateError(f"{path} has more than {MAX_FILE:,} octets, and is something else; {advice}")
    return data


def _public_bytes(key: object) -> bytes:
    found = getattr(key, "public_bytes", None)
    return b"" if found is None else bytes(found(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _public_host(config: Config) -> str:
    return (urlsplit(config.http_public_url).hostname or "").rstrip(".")


def _is_unspecified(host: str) -> bool:
    address = _parse_address(host)
    return address is not None and address.is_unspecified


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _general_name(host: str) -> x509.GeneralName:
    address = _parse_address(host)
    return x509.DNSName(host.lower()) if address is None else x509.IPAddress(address)


def _covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate is for a host, as clients look at it (RFC 9525): by a name, one with `*`, or an address."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    address = _parse_address(host)
    if address is not None:
        return address in names.get_values_for_type(x509.IPAddress)
    wanted = host.lower()
    wild = f"*.{wanted.partition('.')[2]}"
    return any(name.lower() in (wanted, wild) for name in names.get_values_for_type(x509.DNSName))

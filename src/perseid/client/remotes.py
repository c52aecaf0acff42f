"""Saved remotes: servers with the credentials for them, each in a file that only the user can read.

    $XDG_CONFIG_HOME/perseid/remotes/NAME.json

`perseid login` writes them. A server is a URL, for its HTTP API, or `HOST[:PORT]`, for the native protocol. A
certificate that no authority has signed is pinned by its fingerprint, and so is the key of a native server; the private
key of an identity stays in its own file.
"""

import hashlib
import os
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from .errors import UnexpectedKey, Unreachable

if TYPE_CHECKING:
    from perseid.records.keys import PublicKey

    from .api import Client, ConnectOptions
    from .native import NativeClient

Address: TypeAlias = tuple[str, int]
"""Host and port."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = 0o077
"""The permissions of all but the owner."""

GROUP_READS: Final = 0o040
"""How the access list of a credential that systemd passes looks: it names one user."""

MAX_SECRET_BYTES: Final = 65_536
"""Bytes of a file with a token, a secret or a key: the longest private keys have some KiB."""

CONNECT_SECONDS: Final = 10.0
"""Seconds to wait for the certificate of a server, while a user waits."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class InvalidRemote(ValueError):
    """A remote, its name or its files cannot be used."""


class Remote(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server, and how to authenticate there."""

    server: str
    """The URL of its HTTP API, or `HOST[:PORT]` of the native protocol."""
    identity: str = ""
    """Who acts, as `INDEX:HANDLE`; empty with a token, or for an anonymous user."""
    token: str = ""
    secret: str = ""
    key_file: str = ""
    """The file with the private key of the identity."""
    ca_file: str = ""
    """Certificates to trust instead of those of the system."""
    fingerprint: str = ""
    """The SHA-256 hash of the server's certificate, instead of a chain of trust; or that of its key, as `SHA256:…`."""
    server_key: str = ""
    """The pinned public key of a native server: a Handle key in base64."""
    proxy: str = ""
    timeout: float = 0.0
    """Seconds; 0 for the default."""

    def __repr__(self) -> str:
        return f"Remote({self.server!r}, {self.identity!r})"

    @property
    def is_native(self) -> bool:
        """Whether it is a server of the native protocol."""
        return is_native(self.server)

    @property
    def address(self) -> Address:
        """Host and port of a native server. Raises InvalidRemote."""
        return parse_address(self.server)

    def connect(self) -> "Client":
        """Return a client of the HTTP API; nothing is sent yet. Raises ValueError."""
        from .api import connect  # noqa: PLC0415 - loads the HTTP library

        options: ConnectOptions = {}
        if self.token:
            options["token"] = self.token
        if self.secret:
            options["identity"], options["secret"] = self.identity, self.secret
        if self.key_file:
            from perseid.records.private_keys import read_private_key  # noqa: PLC0415 - loads cryptography

            options["identity"] = self.identity
            options["key"] = read_private_key(read_private_file(Path(self.key_file)))
        if self.ca_file:
            options["ca_file"] = self.ca_file
        if self.fingerprint:
            options["fingerprint"] = self.fingerprint
        if self.proxy:
            options["proxy"] = self.proxy
        if self.timeout:
            options["timeout"] = self.timeout
        return connect(self.server, **options)

    def connect_native(self) -> "NativeClient":
        """Return a client of the native protocol. Raises ValueError, or ClientError for a key that is not expected.

        Nobody authenticates to a server whose key is not known. One that is known by its fingerprint is asked for it.
        """
        from perseid.records.private_keys import read_private_key  # noqa: PLC0415 - loads cryptography

        from .native import DEFAULT_TIMEOUT  # noqa: PLC0415
        from .native_site import SiteClient  # noqa: PLC0415

        host, port = self.address
        server_key = self._find_key()
        if self.identity and server_key is None:
            raise InvalidRemote(
                f"The key of {self.server} is not known. Save it with perseid login {self.server}, "
                "or name it with --fingerprint"
            )
        key = read_private_key(read_private_file(Path(self.key_file))) if self.key_file else self.secret or None
        return SiteClient(
            host,
            port,
            identity=self.identity or None,
            key=key,
            server_key=server_key,
            timeout=self.timeout or DEFAULT_TIMEOUT,
        )

    def _find_key(self) -> "PublicKey | None":
        """The key that the server must have; None for any."""
        from perseid.records.encoding import from_base64  # noqa: PLC0415 - as above
        from perseid.records.errors import InvalidData  # noqa: PLC0415
        from perseid.records.keys import PublicKey  # noqa: PLC0415

        if self.server_key:
            try:
                return PublicKey.from_bytes(from_base64(self.server_key, "the key"))
            except InvalidData as error:
                raise InvalidRemote(f"The saved key of {self.server} is invalid: {error}") from error
        if not self.fingerprint:
            return None
        key = fetch_key(self.address, self.timeout)
        if not has_fingerprint(key, self.fingerprint):
            raise UnexpectedKey(
                f"{self.server} has the key {key.fingerprint}, not the expected one",
                advice="Ask the operator of the server for the fingerprint of its key",
            )
        return key


def read_private_file(path: Path) -> bytes:
    """Read a file with a secret; refuse one that other users can read."""
    try:
        with path.open("rb") as file:
            if others_have_access(path, os.fstat(file.fileno()).st_mode):
                raise InvalidRemote(f"Other users can read {path}. Protect it: chmod 600 {path}")
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidRemote(f"Cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_SECRET_BYTES:
        raise InvalidRemote(f"The file {path} has more than {MAX_SECRET_BYTES:,} bytes, so it is not a secret")
    return data


def others_have_access(path: Path, mode: int) -> bool:
    """Whether the mode of a file with a secret gives access to other users; credentials of systemd may be 0440."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    is_credential = folder != "" and path.parent == Path(folder)
    return bool(mode & (OTHERS & ~GROUP_READS if is_credential else OTHERS))


def read_secret(path: Path, *, any_lines: bool = False) -> str:
    """Read a token or a secret from a file, without the end of its line; a passphrase can have several lines."""
    try:
        text = read_private_file(path).decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidRemote(f"The file {path} is not UTF-8, so it has no token or secret") from error
    if not text:
        raise InvalidRemote(f"The file {path} is empty")
    if (lines := len(text.splitlines())) > 1 and not any_lines:
        raise InvalidRemote(f"The file {path} has {lines} lines; it must contain only the secret")
    return text


# Files


def remotes_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the saved remotes."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(home) / "perseid" / "remotes"


def load_remote(name: str, environ: Mapping[str, str]) -> Remote:
    """Load a saved remote."""
    path = _find_file(name, environ)
    if not path.exists():
        raise _unknown_remote(name, environ)
    try:
        return msgspec.json.decode(read_private_file(path), type=Remote)
    except msgspec.DecodeError as error:
        raise InvalidRemote(f"{path} is not a saved remote: {error}. Replace it with: perseid login SERVER") from error


def save_remote(name: str, remote: Remote, environ: Mapping[str, str]) -> Path:
    """Save a remote, completely or not at all; one of the same name is replaced."""
    path = _find_file(name, environ)
    path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
        file.write(msgspec.json.encode(remote))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return path


def remove_remote(name: str, environ: Mapping[str, str]) -> None:
    """Remove a saved remote, with its credentials; also one whose file is damaged."""
    path = _find_file(name, environ)
    if not path.exists():
        raise _unknown_remote(name, environ)
    path.unlink()


def list_remotes(environ: Mapping[str, str]) -> list[str]:
    """The names of the saved remotes."""
    return sorted(path.stem for path in remotes_folder(environ).glob("*.json"))


def find_server_key(address: Address, environ: Mapping[str, str]) -> str:
    """The key of a native server that is saved under any name; empty if there is none."""
    for name in list_remotes(environ):
        with suppress(InvalidRemote):
            remote = load_remote(name, environ)
            if remote.server_key and remote.address == address:
                return remote.server_key
    return ""


def check_name(name: str) -> None:
    """Check the name of a remote, which becomes the name of its file; raises InvalidRemote."""
    if not _NAME.fullmatch(name):
        raise InvalidRemote(f"{name!r} is not a name of a remote. Use up to 64 letters, digits, dots and hyphens")


def _unknown_remote(name: str, environ: Mapping[str, str]) -> InvalidRemote:
    known = ", ".join(list_remotes(environ)) or "none"
    return InvalidRemote(f"There is no remote {name}; saved remotes: {known}. Add it with: perseid login SERVER")


def _find_file(name: str, environ: Mapping[str, str]) -> Path:
    check_name(name)
    return remotes_folder(environ) / f"{name}.json"


# Certificates


class UntrustedServer(NamedTuple):
    """A certificate that is not trusted."""

    fingerprint: str
    """Its SHA-256 hash, in hexadecimal."""
    reason: str
    """Such as `self-signed certificate`, or that it is for another host."""


def find_untrusted(host: str, port: int, ca_file: Path | None) -> UntrustedServer | None:
    """The certificate of a server, if it is not trusted: no known authority has signed it for this host."""
    from .api_http import describe_failure, load_authorities, read_certificate  # noqa: PLC0415 - only `login` needs it
    from .connections import open_stream  # noqa: PLC0415

    trusting = load_authorities(ca_file)
    try:
        try:
            with open_stream(host, port, CONNECT_SECONDS) as plain:
                trusting.wrap_socket(plain, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            digits = hashlib.sha256(read_certificate(host, port, CONNECT_SECONDS)).hexdigest()
            return UntrustedServer(digits, error.verify_message.rstrip("."))
    except OSError as error:
        failure = describe_failure(error, CONNECT_SECONDS, sent=False)
        raise Unreachable(f"{host}:{port} cannot be reached: {failure.reason}", advice=failure.advice) from error
    return None


def format_fingerprint(digits: str) -> str:
    """Format the hash of a certificate as other programs show it."""
    return ":".join(re.findall("..", digits.upper()))


# Native servers


def is_native(server: str) -> bool:
    """Whether a server is named by its host, not by a URL."""
    return "://" not in server


def parse_address(server: str) -> Address:
    """Parse `HOST[:PORT]`; an IPv6 address is in brackets. Raises InvalidRemote."""
    from .native import DEFAULT_PORT  # noqa: PLC0415 - loads cryptography

    try:
        parts = urlsplit(f"//{server}")
        if parts.hostname and parts.netloc == server and "@" not in server and server.isprintable():
            return parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:  # the port
        pass
    raise InvalidRemote(f"{server[:100]!r} is not a server. Use https://HOST, or HOST[:PORT] of the native protocol")


def fetch_key(address: Address, timeout: float = 0.0) -> "PublicKey":
    """Ask a native server for its public key, with which it signs the answer. Raises ClientError."""
    from .native import NativeClient  # noqa: PLC0415 - as above

    try:
        with NativeClient(*address, timeout=timeout or CONNECT_SECONDS) as client:
            return client.server_key
    except Unreachable as error:
        advice = "Check the port: it must be that of the native protocol. The HTTP API has a URL: https://HOST"
        raise Unreachable(error.detail, advice=error.advice or advice) from error


def has_fingerprint(key: "PublicKey", expected: str) -> bool:
    """Whether a key has a fingerprint, which may be given with or without the type and length of the key."""
    return key.fingerprint.endswith(f" {expected.strip()}") or key.fingerprint == expected.strip()

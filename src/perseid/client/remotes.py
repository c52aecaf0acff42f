"""Saved remotes: servers with the credentials for them, each in a file that only the user can read.

    $XDG_CONFIG_HOME/perseid/remotes/NAME.json

`perseid login` writes them. A certificate that no authority has signed is pinned by its fingerprint; the private key of
an identity stays in its own file.
"""

import hashlib
import os
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from .errors import Unreachable

if TYPE_CHECKING:
    from .api import Client, ConnectOptions

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = 0o077
"""The permissions of all but the owner."""

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
    """The URL."""
    identity: str = ""
    """Who acts, as `INDEX:HANDLE`; empty with a token, or for an anonymous user."""
    token: str = ""
    secret: str = ""
    key_file: str = ""
    """The file with the private key of the identity."""
    ca_file: str = ""
    """Certificates to trust instead of those of the system."""
    fingerprint: str = ""
    """The SHA-256 hash of the server's certificate, instead of a chain of trust."""

    def __repr__(self) -> str:
        return f"Remote({self.server!r}, {self.identity!r})"

    def connect(self) -> "Client":
        """Return a client; nothing is sent yet. Raises ValueError."""
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
        return connect(self.server, **options)


def read_private_file(path: Path) -> bytes:
    """Read a file with a secret; refuse one that other users can read."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & OTHERS:
                raise InvalidRemote(f"Other users can read {path}. Protect it: chmod 600 {path}")
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidRemote(f"Cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_SECRET_BYTES:
        raise InvalidRemote(f"{path} has more than {MAX_SECRET_BYTES:,} bytes, so it is not a secret")
    return data


def read_secret(path: Path) -> str:
    """Read a token or a secret from a file, without the end of its line."""
    try:
        text = read_private_file(path).decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidRemote(f"{path} is not UTF-8, so it has no token or secret") from error
    if not text:
        raise InvalidRemote(f"{path} is empty")
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
        known = ", ".join(list_remotes(environ)) or "none"
        raise InvalidRemote(f"There is no remote {name}; saved remotes: {known}. Add it with: perseid login SERVER")
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
    """Remove a saved remote, with its credentials."""
    load_remote(name, environ)
    _find_file(name, environ).unlink()


def list_remotes(environ: Mapping[str, str]) -> list[str]:
    """The names of the saved remotes."""
    return sorted(path.stem for path in remotes_folder(environ).glob("*.json"))


def check_name(name: str) -> None:
    """Check the name of a remote, which becomes the name of its file; raises InvalidRemote."""
    if not _NAME.fullmatch(name):
        raise InvalidRemote(f"{name!r} is not a name of a remote. Use up to 64 letters, digits, dots and hyphens")


def _find_file(name: str, environ: Mapping[str, str]) -> Path:
    check_name(name)
    return remotes_folder(environ) / f"{name}.json"


# Certificates


def find_untrusted(host: str, port: int, ca_file: Path | None) -> str:
    """The SHA-256 hash of a server's certificate that no trusted authority has signed; empty if one has."""
    trusting = ssl.create_default_context(cafile=ca_file)
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
            trusting.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError:
        text = ssl.get_server_certificate((host, port), timeout=CONNECT_SECONDS)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
    except OSError as error:
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    return ""


def format_fingerprint(digits: str) -> str:
    """Format the hash of a certificate as other programs show it."""
    return ":".join(re.findall("..", digits.upper()))

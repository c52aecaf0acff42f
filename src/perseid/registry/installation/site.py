"""The identity of a server in files: its site information and private key.

    siteinfo.json     the site: its servers, their interfaces and public keys
    siteinfo.bin      the same, as deployed software reads it
    keys/privkey.bin  the server's private key, in the deployed format, plain or protected by a passphrase
    keys/pubkey.bin   its public key, as a copy for others; never read

`site_setup` writes them; administrators can replace them. Site information in `keys/` takes precedence over that in the
directory, so the files of `init` can stay. The two forms can differ after an edit, a replacement or an interruption.
Then the form that matches the server's key is used; otherwise the one with the later serial number, which must be
raised with every change; otherwise the server refuses to start.

During a rotation there is also `keys/privkey.bin.next`; the site information says which key is in use.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perseid.names.errors import quote_text
from perseid.records.errors import InvalidData
from perseid.records.key_files import MAX_FILE_SIZE, needs_passphrase, read_key_file
from perseid.records.private_keys import PrivateKey
from perseid.records.public_keys import PublicKey
from perseid.records.site import Site

from .files import OTHERS_READ, OTHERS_WRITE, InstallationError, check_mode
from .settings import Config, variable_name

KEYS_NAME: Final = "keys"
SITE_BINARY: Final = "siteinfo.bin"
SITE_JSON: Final = "siteinfo.json"
SITE_NAMES: Final = (SITE_BINARY, SITE_JSON)
SERVER_KEY: Final = "privkey.bin"
NEXT_SERVER_KEY: Final = f"{SERVER_KEY}.next"
"""The next key, during a rotation."""
PUBLIC_KEY: Final = "pubkey.bin"

MAX_SITE_BYTES: Final = 4_194_304
"""Maximum size of site information in bytes: more than a thousand servers with long keys."""

MAX_PASSPHRASE: Final = 4_096
"""Maximum size of a passphrase file in bytes."""

ROTATE_COMMAND: Final = "perseid key rotate server"
"""The command that creates a new server key with matching site information."""


class SiteError(InstallationError):
    """The site information or the server's key is unusable; the message says what to do."""


class MissingFile(SiteError):
    """A required file does not exist."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file with site information."""

    path: Path
    site: Site


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file with a private key of the server."""

    path: Path
    key: PrivateKey
    protected: bool
    """Whether it requires a passphrase."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The identity of a server: its site, position and key."""

    site: Site
    position: int
    """Position in the site, counted from 0."""
    key: PrivateKey
    site_path: Path
    """The site information in use."""
    key_path: Path
    remarks: tuple[str, ...] = ()
    """Warnings."""


def load_server_identity(directory: Path, config: Config) -> ServerIdentity:
    """Load the server's identity; raises `SiteError` if it is incomplete or inconsistent."""
    keys = read_keys(directory, config)
    forms = read_site_files(directory)
    if not forms:
        raise MissingFile(
            f"No site information in {directory}; put {SITE_JSON} or {SITE_BINARY} there or in {KEYS_NAME}/, or create "
            f"a new key and site information with: {ROTATE_COMMAND}"
        )
    if not keys:
        path = directory / KEYS_NAME / SERVER_KEY
        raise MissingFile(f"No server key in {path}; put your key there, or create a new one with: {ROTATE_COMMAND}")
    position = config.site.position - 1
    form = choose_site_file(forms, keys, position)
    check_position(form, config)
    key = find_matching_key(form, keys, position)
    if key is None:
        raise SiteError(
            f"The key in {keys[0].path} does not match server {position + 1} in {form.path}; "
            "use matching files, or correct "
            "the setting site.position"
        )
    return ServerIdentity(form.site, position, key.key, form.path, key.path, tuple(_remarks(directory, forms, form)))


# Reading


def read_site_files(directory: Path) -> list[SiteFile]:
    """Read all forms of the site information from the folder that takes precedence; may be empty."""
    for folder in (directory / KEYS_NAME, directory):
        paths = [path for name in SITE_NAMES if (path := folder / name).exists()]
        if paths:
            return [SiteFile(path, _read_site(path)) for path in paths]
    return []


def read_keys(directory: Path, config: Config) -> list[KeyFile]:
    """Read the server's private keys: the current one, and a complete next one."""
    folder = directory / KEYS_NAME
    keys = []
    if (folder / SERVER_KEY).exists():
        keys.append(read_key(folder / SERVER_KEY, directory, config))
    if (folder / NEXT_SERVER_KEY).exists():
        try:
            keys.append(read_key(folder / NEXT_SERVER_KEY, directory, config))
        except SiteError:
            if not keys:  # an incomplete next key is ignored if there is a current one
                raise
    return keys


def read_key(path: Path, directory: Path, config: Config) -> KeyFile:
    """Read a private key file, with the passphrase of the settings if needed."""
    check_mode(path, OTHERS_READ)
    data = _read(path, MAX_FILE_SIZE, "restore it from your copy of the keys")
    try:
        protected = needs_passphrase(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is not a private key: {problem}; put the server's {SERVER_KEY} there") from None
    passphrase, source = load_passphrase(directory, config) if protected else (None, "")
    if protected and passphrase is None:
        raise SiteError(
            f"{path} is protected by a passphrase, but none is set; set keys.passphrase_file "
            "to a file that contains it, "
            f"or set the environment variable {variable_name('keys.passphrase')}"
        )
    try:
        return KeyFile(path, read_key_file(data, passphrase), protected)
    except InvalidData as problem:
        # Errors in decrypted bytes could reveal them, so they are not repeated.
        if protected:
            message = f"The passphrase of {source} is wrong for {path}, or the file is damaged"
            raise SiteError(f"{message}; correct the passphrase, or restore the file") from None
        raise SiteError(f"{path} is not a private key: {problem}; put the server's {SERVER_KEY} there") from None


def load_passphrase(directory: Path, config: Config) -> tuple[bytes | None, str]:
    """Return the passphrase for the server's key, if any, and its source."""
    if config.keys.passphrase:
        return config.keys.passphrase.encode(), config.sources["keys.passphrase"]
    if not config.keys.passphrase_file:
        return None, ""
    path = directory / config.keys.passphrase_file
    data = _read(path, MAX_PASSPHRASE, "correct the setting keys.passphrase_file")
    passphrase = data.removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase or b"\n" in passphrase:
        raise SiteError(f"{path} must contain one line, the passphrase of the server's key")
    return passphrase, str(path)


def _read_site(path: Path) -> Site:
    check_mode(path, OTHERS_WRITE)
    data = _read(path, MAX_SITE_BYTES, "restore it from your copy")
    try:
        return Site.from_file(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is not valid site information: {problem}; correct or replace it") from None


def _read(path: Path, max_bytes: int, advice: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise SiteError(f"Cannot read {path}: {error.strerror}; {advice}") from None
    if len(data) > max_bytes:
        raise SiteError(f"{path} is too large: at most {max_bytes:,} bytes; {advice}")
    return data


# Selection


def choose_site_file(forms: Sequence[SiteFile], keys: Sequence[KeyFile], position: int) -> SiteFile:
    """Return the form of the site information to use."""
    pool = [form for form in forms if find_matching_key(form, keys, position) is not None] or forms
    newest = [form for form in pool if not any(is_later(other.site.serial, form.site.serial) for other in pool)]
    if newest and all(form.site == newest[0].site for form in newest):
        return newest[0]
    names = " and ".join(str(form.path) for form in forms)
    raise SiteError(
        f"{names} differ but have the same serial number; remove the wrong one, or raise the "
        "serial number of the right "
        "one"
    )


def find_matching_key(form: SiteFile, keys: Sequence[KeyFile], position: int) -> KeyFile | None:
    """Return the key file of a server of the site."""
    if position >= len(form.site.servers):
        return None
    public = form.site.servers[position].key
    return next((key for key in keys if key.key.public == public), None)


def fingerprint(key: PublicKey) -> str:
    """Return type, length and hash of a public key; the hash covers the bytes in the site information."""
    digest = base64.b64encode(hashlib.sha256(key.to_bytes()).digest()).decode().rstrip("=")
    return f"{key.KTY} {key.bits} SHA256:{digest}"


def is_later(serial: int, other: int) -> bool:
    """Whether a serial number follows another. They have 16 bits and wrap around (RFC 1982)."""
    return 0 < (serial - other) & 0xFFFF < 0x8000


def check_position(form: SiteFile, config: Config) -> None:
    """Refuse a position that the site does not have."""
    servers = len(form.site.servers)
    if config.site.position > servers:
        available = f"{servers} servers" if servers != 1 else "one server"
        raise SiteError(
            f"site.position is {config.site.position} ({config.sources['site.position']}), "
            f"but {form.path} has {available}; correct "
            "the setting, or install the complete site information"
        )


def _remarks(directory: Path, forms: Sequence[SiteFile], used: SiteFile) -> Iterator[str]:
    """Yield warnings about site information that is not used."""
    for form in forms:
        if form.site != used.site:
            yield (
                f"{form.path} (serial number {form.site.serial}) differs from {used.path} (serial number "
                f"{used.site.serial}), which is used; remove or update it"
            )
    if used.path.parent != directory:
        others = [name for name in SITE_NAMES if (directory / name).exists()]
        if others and any(_differs(directory / name, used.site) for name in others):
            names = " and ".join(map(quote_text, others))
            yield f"{used.path} is used; {names} in {directory} differ and are ignored"


def _differs(path: Path, site: Site) -> bool:
    try:
        return _read_site(path) != site
    except InstallationError:
        return True

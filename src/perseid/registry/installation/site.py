"""Who a server is, as files say it: its site information, and the key with which it signs.

    siteinfo.json     the site: its servers, where each listens, the public key of each
    siteinfo.bin      the same as deployed software reads it
    keys/privkey.bin  the server's private key, in the deployed format, plain or protected by a passphrase
    keys/pubkey.bin   its public key, for whoever wants a copy; nothing is read from it

`site_making` writes them. An operator brings others by putting them there. Site information in `keys/` goes before that
in the directory, so what `init` wrote may stay. Two forms of one thing can differ: somebody has edited one, brought
one, or was interrupted. Then counts the form whose key the server has; if that says nothing, the one with the later
serial number, which is to be raised with every change; if that says nothing either, nobody can know: it is refused.

While a key takes the place of another there is `keys/privkey.bin.next`, and the site information says which one counts.
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
from .setting_keys import variable_name
from .settings import Config

KEYS_NAME: Final = "keys"
SITE_BINARY: Final = "siteinfo.bin"
SITE_JSON: Final = "siteinfo.json"
SITE_NAMES: Final = (SITE_BINARY, SITE_JSON)
SERVER_KEY: Final = "privkey.bin"
NEXT_SERVER_KEY: Final = f"{SERVER_KEY}.next"
"""The key that is about to take over, while a rotation is under way."""
PUBLIC_KEY: Final = "pubkey.bin"

MAX_SITE_BYTES: Final = 4_194_304
"""Octets of the longest site information that is read: more than a thousand servers with long keys."""

MAX_PASSPHRASE: Final = 4_096
"""Octets of the longest file with a passphrase."""

ROTATE_COMMAND: Final = "perseid key rotate server"
"""The command that makes a new key for the server, and site information to go with it."""


class SiteError(InstallationError):
    """The site information or the server's key cannot be used; the message says what to do."""


class MissingFile(SiteError):
    """There is no such file."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """One file with site information."""

    path: Path
    site: Site


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file with a private key of the server."""

    path: Path
    key: PrivateKey
    protected: bool
    """Whether it cannot be read without a passphrase."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Who a server is: a member of a site, by a key."""

    site: Site
    position: int
    """Which of the site's servers, counted from 0."""
    key: PrivateKey
    site_path: Path
    """Where the site information that counts stands."""
    key_path: Path
    remarks: tuple[str, ...] = ()
    """What is no error, and yet not as it should be."""


def load_server_identity(directory: Path, config: Config) -> ServerIdentity:
    """Who the server of an installation is; raises `SiteProblem` if that cannot be told, or does not fit together."""
    keys = read_keys(directory, config)
    forms = read_site_files(directory)
    if not forms:
        message = f"there is no site information in {directory}; put {SITE_JSON} or {SITE_BINARY} there, or in"
        raise MissingFile(f"{message} {KEYS_NAME}/, or make a new key and site information with: {ROTATE_COMMAND}")
    if not keys:
        path = directory / KEYS_NAME / SERVER_KEY
        raise MissingFile(f"there is no server key: put yours into {path}, or make a new one with: {ROTATE_COMMAND}")
    position = config.site_position - 1
    form = choose_site_file(forms, keys, position)
    check_position(form, config)
    key = find_matching_key(form, keys, position)
    if key is None:
        raise SiteError(
            f"the key in {keys[0].path} is not that of server {position + 1} in {form.path}: put the key there that "
            "belongs to the site information, or the site information that belongs to the key; or name another server "
            "with the setting site.position"
        )
    return ServerIdentity(form.site, position, key.key, form.path, key.path, tuple(_remarks(directory, forms, form)))


# Reading


def read_site_files(directory: Path) -> list[SiteFile]:
    """The site information of an installation in all forms there are, from where it counts; none if there is none."""
    for folder in (directory / KEYS_NAME, directory):
        paths = [path for name in SITE_NAMES if (path := folder / name).exists()]
        if paths:
            return [SiteFile(path, _read_site(path)) for path in paths]
    return []


def read_keys(directory: Path, config: Config) -> list[KeyFile]:
    """The server's private keys: the one in use, and one that is about to take over, if it was written completely."""
    folder = directory / KEYS_NAME
    found = []
    if (folder / SERVER_KEY).exists():
        found.append(read_key(folder / SERVER_KEY, directory, config))
    if (folder / NEXT_SERVER_KEY).exists():
        try:
            found.append(read_key(folder / NEXT_SERVER_KEY, directory, config))
        except SiteError:
            if not found:  # half-written it has not taken over; but then there would be another one
                raise
    return found


def read_key(path: Path, directory: Path, config: Config) -> KeyFile:
    """A private key from its file, with the passphrase of the settings if it needs one."""
    check_mode(path, OTHERS_READ)
    data = _read(path, MAX_FILE_SIZE, "put it back from where you keep a copy of the keys")
    try:
        protected = needs_passphrase(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is no private key: {problem}; put the server's {SERVER_KEY} there") from None
    passphrase, source = load_passphrase(directory, config) if protected else (None, "")
    if protected and passphrase is None:
        raise SiteError(
            f"{path} is protected by a passphrase, and none is set: write it into a file of your own and name that in "
            f"the setting keys.passphrase_file, or set the variable {variable_name('keys.passphrase')}"
        )
    try:
        return KeyFile(path, read_key_file(data, passphrase), protected)
    except InvalidData as problem:
        # What was wrong with octets that were decrypted says something about them, so it is not repeated.
        if protected:
            message = f"the passphrase of {source} does not open {path}, or the file is damaged"
            raise SiteError(f"{message}; correct the passphrase, or put the file back") from None
        raise SiteError(f"{path} is no private key: {problem}; put the server's {SERVER_KEY} there") from None


def load_passphrase(directory: Path, config: Config) -> tuple[bytes | None, str]:
    """The passphrase that the settings give for the server's key, if any, and where it comes from."""
    if config.keys_passphrase:
        return config.keys_passphrase.encode(), config.sources["keys.passphrase"]
    if not config.keys_passphrase_file:
        return None, ""
    path = directory / config.keys_passphrase_file
    data = _read(path, MAX_PASSPHRASE, "correct the setting keys.passphrase_file")
    passphrase = data.removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase or b"\n" in passphrase:
        raise SiteError(f"{path} should have one line, the passphrase of the server's key")
    return passphrase, str(path)


def _read_site(path: Path) -> Site:
    check_mode(path, OTHERS_WRITE)
    data = _read(path, MAX_SITE_BYTES, "put it back from where you keep a copy")
    try:
        return Site.from_file(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is no site information: {problem}; correct it, or put yours there") from None


def _read(path: Path, most: int, advice: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise SiteError(f"{path} cannot be read: {error.strerror}; {advice}") from None
    if len(data) > most:
        raise SiteError(f"{path} has more than {most:,} octets, and is something else; {advice}")
    return data


# What counts


def choose_site_file(forms: Sequence[SiteFile], keys: Sequence[KeyFile], position: int) -> SiteFile:
    """The form of the site information that counts."""
    pool = [form for form in forms if find_matching_key(form, keys, position) is not None] or forms
    newest = [form for form in pool if not any(is_later(other.site.serial, form.site.serial) for other in pool)]
    if newest and all(form.site == newest[0].site for form in newest):
        return newest[0]
    names = " and ".join(str(form.path) for form in forms)
    raise SiteError(
        f"{names} differ, and have the same serial number: remove the one that is wrong, or raise the serial number of "
        "the one that is right"
    )


def find_matching_key(form: SiteFile, keys: Sequence[KeyFile], position: int) -> KeyFile | None:
    """The key file that belongs to a server of a site."""
    if position >= len(form.site.servers):
        return None
    public = form.site.servers[position].key
    return next((key for key in keys if key.key.public == public), None)


def fingerprint(key: PublicKey) -> str:
    """A public key in a few words: its kind and length, and a hash of the octets that stand in site information."""
    digest = base64.b64encode(hashlib.sha256(key.to_bytes()).digest()).decode().rstrip("=")
    return f"{key.KTY} {key.bits} SHA256:{digest}"


def is_later(serial: int, other: int) -> bool:
    """Whether a serial number comes after another one. They have 16 bits and go round (RFC 1982)."""
    return 0 < (serial - other) & 0xFFFF < 0x8000


def check_position(form: SiteFile, config: Config) -> None:
    """Refuse a position that the site does not have."""
    servers = len(form.site.servers)
    if config.site_position > servers:
        has = f"{servers} servers" if servers != 1 else "one server"
        raise SiteError(
            f"{form.path} has {has}, and site.position is {config.site_position} ({config.sources['site.position']}): "
            "correct the setting, or bring the information about the whole site"
        )


def _remarks(directory: Path, forms: Sequence[SiteFile], used: SiteFile) -> Iterator[str]:
    """What an operator should know about the site information that does not count."""
    for form in forms:
        if form.site != used.site:
            yield (
                f"{form.path} (serial number {form.site.serial}) differs from {used.path} (serial number "
                f"{used.site.serial}), which counts; remove it, or bring it up to date"
            )
    if used.path.parent != directory:
        others = [name for name in SITE_NAMES if (directory / name).exists()]
        if others and any(_differs(directory / name, used.site) for name in others):
            names = " and ".join(map(quote_text, others))
            yield f"{used.path} counts, and what {names} in {directory} say does not"


def _differs(path: Path, site: Site) -> bool:
    try:
        return _read_site(path) != site
    except InstallationError:
        return True

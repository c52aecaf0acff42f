"""The identity of a server in files: its site information and private key.

    siteinfo.json     the site: its servers, their interfaces and public keys
    siteinfo.bin      the same, as deployed software reads it
    keys/privkey.bin  the server's private key, in the deployed format, plain or protected by a passphrase
    keys/pubkey.bin   its public key, as a copy for others; never read

Administrators can replace these files. Site information in `keys/` takes precedence over that in the directory, so the
files of `init` can stay. The two forms can differ after an edit, a replacement or an interruption. Then the form that
matches the server's key is used; otherwise the one with the later serial number, which must be raised with every
change; otherwise the server refuses to start.

Private and public key are in several files, which cannot change in one step. So a rotation has three:

1. `keys/privkey.bin.next` is written and synced.
2. `siteinfo.bin`, then `siteinfo.json` are replaced, with the new public key and the next serial number.
3. `privkey.bin.next` becomes `privkey.bin`, and `pubkey.bin` follows.

After an interruption before step 2 the old key is in use; later, the key that the site information with the later
serial number names, which exists under one of the two names. A server that starts in between works. The same command
completes the rotation.
"""

import fcntl
import ipaddress
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.ledger.store.directory import sync_directory
from perseid.names.errors import quote_text
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import (
    MAX_FILE_SIZE,
    PrivateKey,
    RsaPrivateKey,
    needs_passphrase,
    read_key_file,
    write_key_file,
)
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport
from perseid.wire.message import UNKNOWN_SERIAL

from .files import KEYS_NAME as KEYS_NAME  # noqa: PLC0414 - re-exported
from .files import OTHERS_READ, OTHERS_WRITE, InstallationError, check_mode, read_file, replace_file, write_file
from .files import SITE_BINARY as SITE_BINARY  # noqa: PLC0414
from .files import SITE_JSON as SITE_JSON  # noqa: PLC0414
from .files import SITE_NAMES as SITE_NAMES  # noqa: PLC0414
from .sections import HttpSection, NativeSection
from .settings import Config, variable_name

SERVER_KEY: Final = "privkey.bin"
NEXT_SERVER_KEY: Final = f"{SERVER_KEY}.next"
"""The next key, during a rotation."""
CHECKPOINT_KEY: Final = "checkpoint.key"
NEXT_CHECKPOINT_KEY: Final = f"{CHECKPOINT_KEY}.next"
PUBLIC_KEY: Final = "pubkey.bin"
BEFORE_SUFFIX: Final = ".before"
"""The end of the names of files that `replace_identity` has replaced."""

MAX_SITE_BYTES: Final = 4_194_304
"""Maximum size of site information in bytes: more than a thousand servers with long keys."""

MAX_PASSPHRASE: Final = 4_096
"""Maximum size of a passphrase file in bytes."""

KEY_BITS: Final = 2048
"""Length of a new key: as deployed servers create them; every client reads it."""

ROTATE_COMMAND: Final = "perseid key rotate server"
"""The command that creates a new server key with matching site information."""

_EXPONENT = 65_537
_BOTH = Purpose.ADMIN | Purpose.QUERY
_LOOPBACK = "127.0.0.1"
_NO_ADDRESS = bytes(16)  # for a server with a domain name


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


@dataclass(frozen=True, slots=True)
class RotationResult:
    """The result of a key rotation."""

    key: PublicKey
    site: Site
    site_paths: tuple[Path, ...]
    """The site information with the new key."""
    finished: bool
    """Whether this completed an interrupted rotation."""


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
            "use matching files, or correct the setting site.position"
        )
    return ServerIdentity(form.site, position, key.key, form.path, key.path, tuple(_remarks(directory, forms, form)))


def load_site(directory: Path, config: Config) -> tuple[Site, int] | None:
    """Load the site and this server's position in it, without keys; None if only these tell which site applies."""
    forms = read_site_files(directory)
    if not forms or any(form.site != forms[0].site for form in forms):
        return None
    check_position(forms[0], config)
    return forms[0].site, config.site.position - 1


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
    data = read_file(path, MAX_FILE_SIZE, "restore it from your copy of the keys", SiteError)
    try:
        protected = needs_passphrase(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is not a private key: {problem}; put the server's {SERVER_KEY} there") from None
    passphrase, source = load_passphrase(directory, config) if protected else (None, "")
    if protected and passphrase is None:
        raise SiteError(
            f"{path} is protected by a passphrase, but none is set; set keys.passphrase_file to a file that "
            f"contains it, or set the environment variable {variable_name('keys.passphrase')}"
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
    data = read_file(path, MAX_PASSPHRASE, "correct the setting keys.passphrase_file", SiteError)
    passphrase = data.removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase or b"\n" in passphrase:
        raise SiteError(f"{path} must contain one line, the passphrase of the server's key")
    return passphrase, str(path)


def _read_site(path: Path) -> Site:
    check_mode(path, OTHERS_WRITE)
    data = read_file(path, MAX_SITE_BYTES, "restore it from your copy", SiteError)
    try:
        return Site.from_file(data)
    except InvalidData as problem:
        raise SiteError(f"{path} is not valid site information: {problem}; correct or replace it") from None


# Selection


def choose_site_file(forms: Sequence[SiteFile], keys: Sequence[KeyFile], position: int) -> SiteFile:
    """Return the form of the site information to use."""
    pool = [form for form in forms if find_matching_key(form, keys, position) is not None] or forms
    newest = [form for form in pool if not any(is_later(other.site.serial, form.site.serial) for other in pool)]
    if newest and all(form.site == newest[0].site for form in newest):
        return newest[0]
    names = " and ".join(str(form.path) for form in forms)
    raise SiteError(
        f"{names} differ but have the same serial number; remove the wrong one, or raise the serial number of the "
        "right one"
    )


def find_matching_key(form: SiteFile, keys: Sequence[KeyFile], position: int) -> KeyFile | None:
    """Return the key file of a server of the site."""
    if position >= len(form.site.servers):
        return None
    public = form.site.servers[position].key
    return next((key for key in keys if key.key.public == public), None)


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
            f"but {form.path} has {available}; correct the setting, or install the complete site information"
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


# Creation and rotation


def generate_key() -> PrivateKey:
    """Generate a key for a server."""
    key = rsa.generate_private_key(_EXPONENT, KEY_BITS)
    return RsaPrivateKey.from_pkcs8(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def build_site(config: Config, key: PublicKey) -> Site:
    """Build the site of a single-server installation: one primary server with the interfaces of the settings.

    Changes are not offered over UDP, as in new installations of deployed software: clients would try it first, and
    changes that need retransmission are better sent over TCP. HTTP is included if it has the same address, since a
    server has only one; its clients use TLS at that port too.
    """
    # For "any free port" the default is used, because clients cannot know it.
    native = config.native.port or NativeSection().port
    interfaces: tuple[Interface, ...] = (
        Interface(_BOTH, Transport.TCP, native),
        Interface(Purpose.QUERY, Transport.UDP, native),
    )
    if config.http.enabled and (config.http.host == config.native.host or is_unspecified(config.http.host)):
        transport = Transport.HTTPS if config.http.listen == "https" else Transport.HTTP
        interfaces += (Interface(_BOTH, transport, config.http.port or HttpSection().port),)
    address, attributes = _site_address(config.native.host)
    return Site((Server(1, address, key.to_bytes(), interfaces),), attributes, primary=PrimaryMask.PRIMARY)


def rotate(directory: Path, config: Config) -> RotationResult:
    """Replace the server's key, create the first one, or complete an interrupted rotation.

    Other servers of the site, and everybody with a copy of the site information, need the new one.
    """
    with lock_keys(directory / KEYS_NAME) as folder:
        keys, forms = read_keys(directory, config), read_site_files(directory)
        position = config.site.position - 1
        form = choose_site_file(forms, keys, position) if forms else None
        if form is not None:
            check_position(form, config)
        pending = None if form is None else _pending_key(form, keys, position)
        if form is not None and pending is not None:
            key, site = pending.key, form.site
        else:
            key = generate_key()
            site = build_site(config, key.public) if form is None else with_key(form.site, position, key.public)
            _write_next(folder / NEXT_SERVER_KEY, key, load_passphrase(directory, config)[0])
        paths = write_site(directory if form is None else form.path.parent, site)
        (folder / NEXT_SERVER_KEY).replace(folder / SERVER_KEY)
        sync_directory(folder)
        replace_file(folder / PUBLIC_KEY, key.public.to_bytes())
    return RotationResult(key.public, site, paths, pending is not None)


def replace_identity(directory: Path, config: Config, site: Site, key: PrivateKey) -> tuple[Path, ...]:
    """Use the site information and the key of another server, such as one that this installation replaces.

    The order is that of a rotation, so an interruption leaves a pair that matches. The files that were in use before
    are kept beside the new ones, with `.before` at the end of their names.
    """
    with lock_keys(directory / KEYS_NAME) as folder:
        forms = read_site_files(directory)
        place = forms[0].path.parent if forms else directory
        for path in (folder / SERVER_KEY, *[form.path for form in forms]):
            if path.exists():
                replace_file(path.with_name(f"{path.name}{BEFORE_SUFFIX}"), path.read_bytes())
        _write_next(folder / NEXT_SERVER_KEY, key, load_passphrase(directory, config)[0])
        paths = write_site(place, site)
        (folder / NEXT_SERVER_KEY).replace(folder / SERVER_KEY)
        sync_directory(folder)
        replace_file(folder / PUBLIC_KEY, key.public.to_bytes())
    return paths


def with_key(site: Site, position: int, key: PublicKey) -> Site:
    """Return the site with a new key for one of its servers and the next serial number."""
    servers = list(site.servers)
    servers[position] = replace(servers[position], public_key=key.to_bytes())
    return replace(site, servers=tuple(servers), serial=next_serial(site.serial))


def next_serial(serial: int) -> int:
    """Return the next serial number: 16 bits, signed, wrapping around, without the value for "unknown"."""
    number = (serial + 1) & 0xFFFF
    signed = number - 0x1_0000 if number > 0x7FFF else number
    return next_serial(signed) if signed == UNKNOWN_SERIAL else signed


def dump_site_json(site: Site) -> bytes:
    """Return the contents of `siteinfo.json`, indented for editing."""
    return json.dumps(site.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"


def _pending_key(form: SiteFile, keys: list[KeyFile], position: int) -> KeyFile | None:
    """Return the next key if the site information already names it."""
    key = find_matching_key(form, keys, position)
    return key if key is not None and key.path.name == NEXT_SERVER_KEY else None


def _write_next(path: Path, key: PrivateKey, passphrase: bytes | None) -> None:
    # Left by an interrupted rotation; the site information does not name it, so it was never in use.
    path.unlink(missing_ok=True)
    write_file(path, write_key_file(key, passphrase, secrets.token_bytes))
    sync_directory(path.parent)


def write_site(folder: Path, site: Site) -> tuple[Path, ...]:
    """Write both forms of the site information, and return their paths."""
    paths = []
    for name, data in encode_site(site):
        replace_file(folder / name, data)
        paths.append(folder / name)
    return tuple(paths)


def encode_site(site: Site) -> tuple[tuple[str, bytes], ...]:
    """Return the files with site information, by name."""
    return (SITE_BINARY, site.to_bytes()), (SITE_JSON, dump_site_json(site))


def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a host of the settings; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_unspecified(host: str) -> bool:
    """Whether a host of the settings stands for all addresses."""
    address = parse_address(host)
    return address is not None and address.is_unspecified


def _site_address(host: str) -> tuple[bytes, tuple[Attribute, ...]]:
    """Return the server's address for clients, or its domain name."""
    address = parse_address(host)
    if address is None:
        return _NO_ADDRESS, (Attribute("domain", host.encode()),)
    if address.is_unspecified:  # it listens on all addresses; the public one is unknown
        address = ipaddress.ip_address(_LOOPBACK)
    return address.packed.rjust(len(_NO_ADDRESS), b"\0"), ()


@contextmanager
def lock_keys(folder: Path) -> Iterator[Path]:
    """Serialize key rotations, and reading all keys."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(handle)

"""Creation of a server's key and site information, and key rotation.

The private key is in one file and the public key in others, so they cannot change in one step. The new key is on disk,
under another name, before the site information names it, and replaces the old one afterwards:

1. `privkey.bin.next` is written and synced; 2. `siteinfo.bin`, then `siteinfo.json` are replaced, with the new public
key and the next serial number; 3. `privkey.bin.next` becomes `privkey.bin`, and `pubkey.bin` follows.

After an interruption before step 2 the old key is in use. Later, the site information with the later serial number is
used, and its key exists under one of the two names (see `site`). The same command completes the rotation. A server that
starts in between works.
"""

import fcntl
import ipaddress
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.ledger.store.directory import sync_directory
from perseid.records.key_files import write_key_file
from perseid.records.private_keys import PrivateKey, RsaPrivateKey
from perseid.records.public_keys import PublicKey
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport
from perseid.wire.message import UNKNOWN_SERIAL

from .certificates import create_certificate
from .files import replace_file, write_file
from .sections import HttpSection, NativeSection
from .settings import Config
from .site import (
    KEYS_NAME,
    NEXT_SERVER_KEY,
    PUBLIC_KEY,
    SERVER_KEY,
    SITE_BINARY,
    SITE_JSON,
    KeyFile,
    SiteFile,
    check_position,
    choose_site_file,
    find_matching_key,
    load_passphrase,
    read_keys,
    read_site_files,
)

KEY_BITS: Final = 2048
"""Length of a new key: as deployed servers create them; every client reads it."""

_EXPONENT = 65_537
_BOTH = Purpose.ADMIN | Purpose.QUERY
_LOOPBACK = "127.0.0.1"
_NO_ADDRESS = bytes(16)  # for a server with a domain name


@dataclass(frozen=True, slots=True)
class RotationResult:
    """The result of a key rotation."""

    key: PublicKey
    site: Site
    site_paths: tuple[Path, ...]
    """The site information with the new key."""
    finished: bool
    """Whether this completed an interrupted rotation."""


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
    if config.http.enabled and (config.http.host == config.native.host or _is_unspecified(config.http.host)):
        transport = Transport.HTTPS if config.http.listen == "https" else Transport.HTTP
        interfaces += (Interface(_BOTH, transport, config.http.port or HttpSection().port),)
    address, attributes = _site_address(config.native.host)
    return Site((Server(1, address, key.to_bytes(), interfaces),), attributes, primary=PrimaryMask.PRIMARY)


def write_server_files(work: Path, config: Config, passphrase: bytes | None = None) -> PublicKey:
    """Write a key, site information and a certificate for a new installation.

    With a passphrase the key is protected by it.
    """
    key = generate_key()
    write_file(work / KEYS_NAME / SERVER_KEY, write_key_file(key, passphrase, secrets.token_bytes))
    write_file(work / KEYS_NAME / PUBLIC_KEY, key.public.to_bytes())
    for name, data in _encode_site(build_site(config, key.public)):
        write_file(work / name, data)
    if config.http.enabled and not config.http.certificate_file:
        create_certificate(work, config, key)
    return key.public


def rotate(directory: Path, config: Config) -> RotationResult:
    """Replace the server's key, create the first one, or complete an interrupted rotation.

    Other servers of the site, and everybody with a copy of the site information, need the new one.
    """
    with _key_lock(directory / KEYS_NAME) as folder:
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
        paths = _write_site(directory if form is None else form.path.parent, site)
        (folder / NEXT_SERVER_KEY).replace(folder / SERVER_KEY)
        sync_directory(folder)
        replace_file(folder / PUBLIC_KEY, key.public.to_bytes())
    return RotationResult(key.public, site, paths, pending is not None)


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


def _write_site(folder: Path, site: Site) -> tuple[Path, ...]:
    paths = []
    for name, data in _encode_site(site):
        replace_file(folder / name, data)
        paths.append(folder / name)
    return tuple(paths)


def _encode_site(site: Site) -> tuple[tuple[str, bytes], ...]:
    return (SITE_BINARY, site.to_bytes()), (SITE_JSON, dump_site_json(site))


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _site_address(host: str) -> tuple[bytes, tuple[Attribute, ...]]:
    """Return the server's address for clients, or its domain name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _NO_ADDRESS, (Attribute("domain", host.encode()),)
    if address.is_unspecified:  # it listens on all addresses; the public one is unknown
        address = ipaddress.ip_address(_LOOPBACK)
    return address.packed.rjust(len(_NO_ADDRESS), b"\0"), ()


@contextmanager
def _key_lock(folder: Path) -> Iterator[Path]:
    """Serialize key rotations."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(handle)

"""Making the site information and the key of a server, and putting a new key in the place of another.

The private key is in one file and the public key in others, so they cannot be changed in one step. The new key is on
the disk before the site information names it, under a name of its own, and takes the old one's place afterwards:

1. `privkey.bin.next` is written and synced;
2. `siteinfo.bin`, then `siteinfo.json` are exchanged for ones with the new public key and the next serial number;
3. `privkey.bin.next` becomes `privkey.bin`, and `pubkey.bin` follows.

Whoever is interrupted before the second step has the old key. Afterwards the site information with the later serial
number counts, and the key that belongs to it is there, under the one name or the other (see `site_files`). The same
command again does what is left. A server that starts in between works.
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

from .certificates import make as make_certificate
from .files import replace_file, write
from .setting_http import Listen
from .setting_keys import SETTINGS
from .settings import Config
from .site import (
    KEYS_NAME,
    NEXT_SERVER_KEY,
    PUBLIC_KEY,
    SERVER_KEY,
    SITE_BINARY,
    SITE_JSON,
    Form,
    KeyFile,
    check_position,
    choose,
    matching,
    passphrase,
    read_forms,
    read_keys,
)

KEY_BITS: Final = 2048
"""Of a new key: as deployed servers make them, and every client reads them."""

_EXPONENT = 65_537
_BOTH = Purpose.ADMIN | Purpose.QUERY
_LOOPBACK = "127.0.0.1"
_SOMEWHERE = bytes(16)  # the address of a server that is found by its domain


@dataclass(frozen=True, slots=True)
class Rotated:
    """A key that took the place of another."""

    key: PublicKey
    site: Site
    site_paths: tuple[Path, ...]
    """Where the site information stands that names it."""
    finished: bool
    """Whether this only ended what was interrupted before."""


def new_key() -> PrivateKey:
    """A key for a server."""
    made = rsa.generate_private_key(_EXPONENT, KEY_BITS)
    return RsaPrivateKey.from_pkcs8(made.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def new_site(config: Config, key: PublicKey) -> Site:
    """The site of an installation that is alone: one server, a primary, which listens where the settings say.

    Changes are not offered over UDP, as in a new installation of deployed software: a client would try it first, and a
    change that has to be sent again is better off on a connection. HTTP stands there if it is at the same address, of
    which a server has one only; who finds it there speaks TLS at that port too.
    """
    native = _port(config.native_port, "native.port")
    interfaces: tuple[Interface, ...] = (
        Interface(_BOTH, Transport.TCP, native),
        Interface(Purpose.QUERY, Transport.UDP, native),
    )
    if config.http_enabled and (config.http_host == config.native_host or _is_everywhere(config.http_host)):
        transport = Transport.HTTPS if config.http_listen is Listen.HTTPS else Transport.HTTP
        interfaces += (Interface(_BOTH, transport, _port(config.http_port, "http.port")),)
    address, attributes = _address(config.native_host)
    return Site((Server(1, address, key.to_bytes(), interfaces),), attributes, primary=PrimaryMask.PRIMARY)


def write_new(work: Path, config: Config, word: bytes | None = None) -> PublicKey:
    """Write a key, site information and a certificate in the folder of an installation that is being made.

    With a passphrase the key is protected by it.
    """
    key = new_key()
    write(work / KEYS_NAME / SERVER_KEY, write_key_file(key, word, secrets.token_bytes))
    write(work / KEYS_NAME / PUBLIC_KEY, key.public.to_bytes())
    for name, octets in _in_both_forms(new_site(config, key.public)):
        write(work / name, octets)
    if config.http_enabled and not config.http_certificate_file:
        make_certificate(work, config, key)
    return key.public


def rotate(directory: Path, config: Config) -> Rotated:
    """Put a new key in the place of the server's, or the first one in place; or end what was interrupted.

    Other servers of the site, and whoever keeps a copy of the site information, must be given the new one.
    """
    with _alone(directory / KEYS_NAME) as folder:
        keys, forms = read_keys(directory, config), read_forms(directory)
        position = config.site_position - 1
        form = choose(forms, keys, position) if forms else None
        if form is not None:
            check_position(form, config)
        waiting = None if form is None else _waiting(form, keys, position)
        if form is not None and waiting is not None:
            key, site = waiting.key, form.site
        else:
            key = new_key()
            site = new_site(config, key.public) if form is None else with_key(form.site, position, key.public)
            _write_next(folder / NEXT_SERVER_KEY, key, passphrase(directory, config)[0])
        paths = _write_site(directory if form is None else form.path.parent, site)
        (folder / NEXT_SERVER_KEY).replace(folder / SERVER_KEY)
        sync_directory(folder)
        replace_file(folder / PUBLIC_KEY, key.public.to_bytes())
    return Rotated(key.public, site, paths, waiting is not None)


def with_key(site: Site, position: int, key: PublicKey) -> Site:
    """The site with another key for one of its servers, and the next serial number."""
    servers = list(site.servers)
    servers[position] = replace(servers[position], public_key=key.to_bytes())
    return replace(site, servers=tuple(servers), serial=following(site.serial))


def following(serial: int) -> int:
    """The serial number after another one: 16 bits with a sign, round and round, without the one that says "none"."""
    number = (serial + 1) & 0xFFFF
    signed = number - 0x1_0000 if number > 0x7FFF else number
    return following(signed) if signed == UNKNOWN_SERIAL else signed


def json_file(site: Site) -> bytes:
    """The contents of a `siteinfo.json`, for people to read and edit."""
    return json.dumps(site.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"


def _waiting(form: Form, keys: list[KeyFile], position: int) -> KeyFile | None:
    """The key that the site information names and that has yet to take the old one's place."""
    found = matching(form, keys, position)
    return found if found is not None and found.path.name == NEXT_SERVER_KEY else None


def _write_next(path: Path, key: PrivateKey, word: bytes | None) -> None:
    # Left by somebody who was interrupted; the site information does not name it, so it never counted.
    path.unlink(missing_ok=True)
    write(path, write_key_file(key, word, secrets.token_bytes))
    sync_directory(path.parent)


def _write_site(folder: Path, site: Site) -> tuple[Path, ...]:
    paths = []
    for name, octets in _in_both_forms(site):
        replace_file(folder / name, octets)
        paths.append(folder / name)
    return tuple(paths)


def _in_both_forms(site: Site) -> tuple[tuple[str, bytes], ...]:
    return (SITE_BINARY, site.to_bytes()), (SITE_JSON, json_file(site))


def _port(port: int, setting: str) -> int:
    """A port; where any free one will do, clients cannot be told, and get the usual one."""
    usual = SETTINGS[setting].default
    assert isinstance(usual, int)  # noqa: S101 - a port is a number
    return port or usual


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _address(host: str) -> tuple[bytes, tuple[Attribute, ...]]:
    """Where clients find the server: at an address, or by a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _SOMEWHERE, (Attribute("domain", host.encode()),)
    if address.is_unspecified:  # it listens everywhere, and which of its addresses is for clients nobody has said
        address = ipaddress.ip_address(_LOOPBACK)
    return address.packed.rjust(len(_SOMEWHERE), b"\0"), ()


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """One exchange of keys at a time."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(handle)

"""Helpers for tests of site information and server keys: server files made of recorded keys."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from perseid.records.private_keys import PrivateKey, ProtectionScheme, write_key_file
from perseid.records.site import Server, Site
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import dump_site_json
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.recorded import key_file

SITE: Final = Site.from_bytes(key_file("siteinfo.bin"))
"""The recorded site: one server, with the key SERVER_KEY."""

PASSPHRASE: Final = "correct horse, battery staple"
KEYS: Final = (SERVER_KEY, RSA_KEY, DSA_KEY)


def site(*keys: PrivateKey, serial: int = 1) -> Site:
    """Return the recorded site with a server for each of these keys."""
    (first,) = SITE.servers
    servers = [replace(first, server_id=number, public_key=key.public.to_bytes()) for number, key in enumerate(keys, 1)]
    return replace(SITE, servers=tuple[Server, ...](servers), serial=serial)


def put(path: Path, octets: bytes, mode: int = 0o600) -> Path:
    """Write a file for its owner."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(octets)
    path.chmod(mode)
    return path


def put_key(
    path: Path, key: PrivateKey, passphrase: str | None = None, scheme: ProtectionScheme = ProtectionScheme.AES
) -> Path:
    """Write a file with a private key."""
    word = None if passphrase is None else passphrase.encode()
    return put(path, write_key_file(key, word, lambda count: bytes(range(count)), scheme))


def put_site(path: Path, information: Site) -> Path:
    """Write site information in the format of the file name."""
    return put(path, dump_site_json(information) if path.suffix == ".json" else information.to_bytes())


def furnish(directory: Path, key: PrivateKey = SERVER_KEY, information: Site | None = None) -> Path:
    """Create a directory with a key and site information in both forms."""
    information = information or site(key)
    put_key(directory / "keys" / "privkey.bin", key)
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(directory / name, information)
    return directory


def settings(**variables: object) -> Config:
    """Settings from variables: `settings(SITE_POSITION=2)`."""
    return Config.parse("", {f"PERSEID_{name}": str(value) for name, value in variables.items()})

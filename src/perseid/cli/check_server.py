"""What `perseid check` has to say about the server: its key, its site information, and the ports it is to listen at."""

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perseid.records.site import Server, Transport
from perseid.registry.installation.files import OTHERS_READ
from perseid.registry.installation.installation import KEYS_NAME, InstallationProblem
from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import (
    NEXT_SERVER_KEY,
    PUBLIC_KEY,
    ROTATE,
    SITE_BINARY,
    SITE_JSON,
    ServerIdentity,
    fingerprint,
    identify,
)
from perseid.server.processes.sockets import Looked, look

from ._findings import Finding, Level

_NATIVE = (Transport.TCP, Transport.UDP)
_FREE_FOR_ALL = 1_024  # the first port that needs no right
_EDIT = f"correct {SITE_JSON}, raise its serialNumber by one, and remove {SITE_BINARY}; or correct the settings"


def server_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """The server's key and its site information: whether they are there, can be read and belong together."""
    try:
        found = identify(directory, config)
    except InstallationProblem as problem:
        yield Finding("server", Level.WRONG, str(problem))
        return
    yield from _exchange(directory, found)
    yield from _passphrase(directory, config)
    for remark in found.remarks:
        yield Finding("server", Level.NOTE, remark)
    with suppress(OSError):
        if (directory / KEYS_NAME / PUBLIC_KEY).read_bytes() != found.key.public.to_bytes():
            message = f"{KEYS_NAME}/{PUBLIC_KEY} is not the public key of the server; nothing here reads it"
            yield Finding("server", Level.NOTE, message, "remove it; it is in the site information as well")
    if not found.site.is_primary:
        message = f"{found.site_path} says that this site is no primary one, so the server takes no changes"
        yield Finding("server", Level.NOTE, message)
    server = found.site.servers[found.position]
    yield from _interfaces(server, found, config)
    yield from _address(server, found, config)
    about = f"it signs as server {found.position + 1} of {found.site_path.name} (serial number {found.site.serial})"
    yield Finding("server", Level.OK, f"{about} with {fingerprint(found.key.public)}")


def _exchange(directory: Path, found: ServerIdentity) -> Iterator[Finding]:
    """A key that was being exchanged."""
    following = directory / KEYS_NAME / NEXT_SERVER_KEY
    if found.key_path == following:
        message = "the server's key was being exchanged, and that was interrupted"
        yield Finding("server", Level.WRONG, message, f"finish it with: {ROTATE}")
    elif following.exists():
        message = f"{following} is left over from an exchange that was interrupted; it never counted"
        yield Finding("server", Level.NOTE, message, "the next exchange removes it")


def _passphrase(directory: Path, config: Config) -> Iterator[Finding]:
    """A file with the passphrase that others can read."""
    path = directory / config.keys_passphrase_file
    with suppress(OSError):
        if config.keys_passphrase_file and path.stat().st_mode & OTHERS_READ:
            message = f"others may read {path}, and the passphrase of the server's key is in it"
            yield Finding("server", Level.NOTE, message, f"close it with: chmod 0600 {path}")


def _interfaces(server: Server, found: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Ports at which clients will ask, and others at which the server listens."""
    over_http = Transport.HTTPS if config.http_listen is Listen.HTTPS else Transport.HTTP
    for setting, port, transports in (
        ("native.port", config.native_port, _NATIVE),
        ("http.port", config.http_port if config.http_enabled else 0, (over_http,)),
    ):
        said = {one: sorted({each.port for each in server.interfaces if each.transport == one}) for one in transports}
        elsewhere = [f"{one.name} {' and '.join(map(str, ports))}" for one, ports in said.items() if port not in ports]
        if port and elsewhere and all(said.values()):
            message = f"{found.site_path} sends clients to {', '.join(elsewhere)}, and {setting} is {port}"
            yield Finding("server", Level.NOTE, message, f"unless something between them translates: {_EDIT}")
        for one in [one for one in transports if not said[one] and one in _NATIVE]:
            message = f"{found.site_path} names no {one.name} interface of this server, so clients use none"
            yield Finding("server", Level.NOTE, message, _EDIT)


def _address(server: Server, found: ServerIdentity, config: Config) -> Iterator[Finding]:
    """The address at which clients will ask, and another one at which the server listens."""
    try:
        host = ipaddress.ip_address(config.native_host)
    except ValueError:
        return
    said = server.ip
    far = host.is_unspecified and said.is_loopback
    if far or not (host.is_unspecified or said.is_unspecified or said == host):
        message = f"{found.site_path} sends clients to {said}, and native.host is {host}"
        yield Finding("server", Level.NOTE, message, f"unless something between them translates: {_EDIT}")


@dataclass(frozen=True, slots=True)
class _Door:
    """Where something is to be served."""

    section: str
    """Of the settings, in which `host` and `port` stand."""
    host: str
    port: int
    transports: tuple[Transport, ...]


def port_findings(config: Config) -> Iterator[Finding]:
    """Whether the ports can be served at, or who has them."""
    doors = [_Door("native", config.native_host, config.native_port, _NATIVE)]
    if config.http_enabled:
        doors.append(_Door("http", config.http_host, config.http_port, (Transport.TCP,)))
    if config.metrics_enabled:
        doors.append(_Door("metrics", config.metrics_host, config.metrics_port, (Transport.TCP,)))
    for door in doors:
        if not door.port:
            yield Finding("ports", Level.OK, f"any port that is free will be used ({door.section}.port is 0)")
            continue
        found: dict[Looked, list[str]] = {}
        for transport in door.transports:
            found.setdefault(look(door.host, door.port, transport), []).append(transport.name)
        for looked, transports in found.items():
            host = f"[{door.host}]" if ":" in door.host else door.host
            yield _port(looked, f"{host}:{door.port} ({door.section}, {', '.join(transports)})", door, config)


def _port(looked: Looked, where: str, door: _Door, config: Config) -> Finding:
    if not looked.problem:
        return Finding("ports", Level.OK, f"{where} is free")
    host, port = f"{door.section}.host", f"{door.section}.port"
    if not looked.taken:
        sources = ", ".join(dict.fromkeys(config.sources[name] for name in (host, port)))
        advice = f"correct {host} or {port} ({sources})"
        if door.port < _FREE_FOR_ALL:
            advice += "; a port below 1024 needs a right that the system gives to services (CAP_NET_BIND_SERVICE)"
        return Finding("ports", Level.WRONG, f"{where} cannot be served at: {looked.problem}", advice)
    advice = f"stop it, or set {port} to another one"
    if not looked.holders:
        message = f"{where} is in use by a process that cannot be told, perhaps of another user"
        return Finding("ports", Level.WRONG, message, f"find it with: ss -lntup; {advice}")
    message = f"{where} is in use by {looked.holders[0]}"
    if any("perseid" in holder.command for holder in looked.holders):
        return Finding("ports", Level.NOTE, message, "if it serves this installation, all is well")
    return Finding("ports", Level.WRONG, message, advice)

"""What `perseid check` finds, and how bad it is.

What `perseid check` finds about bearer tokens: those that nobody seems to need, and what a restore did to them.

What `perseid check` has to say about HTTP: the certificate, and settings that do not go together.

What `perseid check` has to say about the server: its key, its site information, and the ports it is to listen at.
"""

import ipaddress
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from perseid.ledger.log.signing import find_branch
from perseid.records.site import Server, Transport
from perseid.registry.access.tokens import DAY, TokenStatus
from perseid.registry.installation.certificates import EXPIRY_WARNING, Credentials, find_certificate
from perseid.registry.installation.files import OTHERS_READ
from perseid.registry.installation.installation import KEYS_NAME, InstallationError
from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import (
    NEXT_SERVER_KEY,
    PUBLIC_KEY,
    ROTATE_COMMAND,
    SITE_BINARY,
    SITE_JSON,
    ServerIdentity,
    fingerprint,
    load_server_identity,
)
from perseid.server.processes.sockets import PortStatus, check_port

from ._place import OpenInstallation
from .tokens import list_all


class Level(StrEnum):
    """How bad a finding is: what the operator must do something about is wrong; what is worth knowing is a note."""

    OK = "ok"
    NOTE = "note"
    ERROR = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one part of an installation."""

    about: str
    level: Level
    message: str
    advice: str = ""
    """What to do about it."""


def has_errors(found: Iterable[Finding]) -> bool:
    """Whether there is something that must be done."""
    return any(finding.level is Level.ERROR for finding in found)


UNUSED_DAYS: Final = 60
"""Days without any use after which a token is worth a question: two months, which most programs do not pause."""

_MAX_IDS: Final = 5


def token_findings(session: OpenInstallation) -> Iterator[Finding]:
    """What there is to say about the tokens of an installation; nothing, if there never were any."""
    now = session.registry.now()
    tokens = list(list_all(session))
    if not tokens:
        return
    active = [item for item in tokens if item.is_active(now)]
    unused = [item for item in active if now - max(item.used or 0, item.token.created) >= UNUSED_DAYS * DAY]
    if unused:
        message = f"nobody has used {_format_ids(unused)} for {UNUSED_DAYS} days"
        yield Finding("tokens", Level.NOTE, message, "end what nobody needs: perseid token revoke TOKEN")
    branch = find_branch(session.registry.ledger.log)
    older = [] if branch is None else [item for item in active if item.seq <= branch.predecessor.size]
    if older:
        message = f"{_format_ids(older)} counted when the backup was made; what was revoked after that counts again"
        yield Finding("tokens", Level.NOTE, message, "look at them: perseid token list; and revoke them again")
    expired = sum(item.state(now) == "expired" for item in tokens)
    ended = f", {expired:,} have expired" if expired else ""
    yield Finding("tokens", Level.OK, f"{len(active):,} count{'s' if len(active) == 1 else ''}{ended}")


def _format_ids(items: Sequence[TokenStatus]) -> str:
    named = ", ".join([item.token.id for item in items[:_MAX_IDS]])
    return named if len(items) <= _MAX_IDS else f"{named} and {len(items) - _MAX_IDS:,} more"


_HTTP = "http"


def http_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Whether HTTPS can be served, for how long, and what clients will think of it."""
    if not config.http_enabled:
        yield Finding(_HTTP, Level.OK, "it is not served (http.enabled is false)")
        return
    if config.http_listen is Listen.HTTP:
        yield from _proxy_findings(config)
        yield Finding(_HTTP, Level.OK, "plain HTTP is served, so no certificate is needed (http.listen is http)")
        return
    try:
        found = find_certificate(directory, config, load_server_identity(directory, config).key)
    except InstallationError as problem:
        yield Finding(_HTTP, Level.ERROR, str(problem))
        return
    if found is None:
        message = "there is no self-signed certificate for the key and hosts of today"
        yield Finding(_HTTP, Level.NOTE, message, "the server makes one when it starts, or on SIGHUP")
        return
    yield from _certificate_findings(found, config)
    yield from _key_file_findings(directory, config)


def _certificate_findings(found: Credentials, config: Config) -> Iterator[Finding]:
    now = datetime.now(UTC)
    leaf = found.chain[0]
    end = leaf.not_valid_after_utc
    for remark in found.remarks(config, now):
        yield Finding(_HTTP, Level.ERROR if now > end else Level.NOTE, remark)
    if now > end:
        return
    if found.is_own:
        yield Finding(_HTTP, Level.OK, f"HTTPS has a self-signed certificate: {found.path}")
    elif now <= end - EXPIRY_WARNING:
        days = (end - now).days
        yield Finding(_HTTP, Level.OK, f"the certificate in {found.path} is valid for another {days} days")


def _key_file_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """A private key that everybody can read."""
    path = directory / (config.http_key_file or config.http_certificate_file)
    with suppress(OSError):
        if config.http_certificate_file and path.stat().st_mode & stat.S_IROTH:
            message = f"everybody may read {path}, and the private key for HTTPS is in it"
            yield Finding(_HTTP, Level.NOTE, message, f"close it with: chmod o= {path}")


def _proxy_findings(config: Config) -> Iterator[Finding]:
    if config.http_public_url.lower().startswith("https:") and not config.http_trusted_proxies:
        message = "http.public_url is an https address and only plain HTTP is spoken here, so something passes it on"
        advice = "name it in http.trusted_proxies; otherwise nobody can prove who they are over HTTP"
        yield Finding(_HTTP, Level.NOTE, message, advice)


_NATIVE_TRANSPORTS = (Transport.TCP, Transport.UDP)
_FIRST_UNPRIVILEGED_PORT = 1_024  # the first port that needs no right
_EDIT_ADVICE = f"correct {SITE_JSON}, raise its serialNumber by one, and remove {SITE_BINARY}; or correct the settings"


def server_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """The server's key and its site information: whether they are there, can be read and belong together."""
    try:
        found = load_server_identity(directory, config)
    except InstallationError as problem:
        yield Finding("server", Level.ERROR, str(problem))
        return
    yield from _rotation_findings(directory, found)
    yield from _passphrase_findings(directory, config)
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
    yield from _interface_findings(server, found, config)
    yield from _address_findings(server, found, config)
    about = f"it signs as server {found.position + 1} of {found.site_path.name} (serial number {found.site.serial})"
    yield Finding("server", Level.OK, f"{about} with {fingerprint(found.key.public)}")


def _rotation_findings(directory: Path, found: ServerIdentity) -> Iterator[Finding]:
    """A key that was being exchanged."""
    following = directory / KEYS_NAME / NEXT_SERVER_KEY
    if found.key_path == following:
        message = "the server's key was being exchanged, and that was interrupted"
        yield Finding("server", Level.ERROR, message, f"finish it with: {ROTATE_COMMAND}")
    elif following.exists():
        message = f"{following} is left over from an exchange that was interrupted; it never counted"
        yield Finding("server", Level.NOTE, message, "the next exchange removes it")


def _passphrase_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """A file with the passphrase that others can read."""
    path = directory / config.keys_passphrase_file
    with suppress(OSError):
        if config.keys_passphrase_file and path.stat().st_mode & OTHERS_READ:
            message = f"others may read {path}, and the passphrase of the server's key is in it"
            yield Finding("server", Level.NOTE, message, f"close it with: chmod 0600 {path}")


def _interface_findings(server: Server, found: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Ports at which clients will ask, and others at which the server listens."""
    over_http = Transport.HTTPS if config.http_listen is Listen.HTTPS else Transport.HTTP
    for setting, port, transports in (
        ("native.port", config.native_port, _NATIVE_TRANSPORTS),
        ("http.port", config.http_port if config.http_enabled else 0, (over_http,)),
    ):
        said = {one: sorted({each.port for each in server.interfaces if each.transport == one}) for one in transports}
        elsewhere = [f"{one.name} {' and '.join(map(str, ports))}" for one, ports in said.items() if port not in ports]
        if port and elsewhere and all(said.values()):
            message = f"{found.site_path} sends clients to {', '.join(elsewhere)}, and {setting} is {port}"
            yield Finding("server", Level.NOTE, message, f"unless something between them translates: {_EDIT_ADVICE}")
        for one in [one for one in transports if not said[one] and one in _NATIVE_TRANSPORTS]:
            message = f"{found.site_path} names no {one.name} interface of this server, so clients use none"
            yield Finding("server", Level.NOTE, message, _EDIT_ADVICE)


def _address_findings(server: Server, found: ServerIdentity, config: Config) -> Iterator[Finding]:
    """The address at which clients will ask, and another one at which the server listens."""
    try:
        host = ipaddress.ip_address(config.native_host)
    except ValueError:
        return
    said = server.ip
    far = host.is_unspecified and said.is_loopback
    if far or not (host.is_unspecified or said.is_unspecified or said == host):
        message = f"{found.site_path} sends clients to {said}, and native.host is {host}"
        yield Finding("server", Level.NOTE, message, f"unless something between them translates: {_EDIT_ADVICE}")


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Where something is to be served."""

    section: str
    """Of the settings, in which `host` and `port` stand."""
    host: str
    port: int
    transports: tuple[Transport, ...]


def port_findings(config: Config) -> Iterator[Finding]:
    """Whether the ports can be served at, or who has them."""
    endpoints = [_Endpoint("native", config.native_host, config.native_port, _NATIVE_TRANSPORTS)]
    if config.http_enabled:
        endpoints.append(_Endpoint("http", config.http_host, config.http_port, (Transport.TCP,)))
    if config.metrics_enabled:
        endpoints.append(_Endpoint("metrics", config.metrics_host, config.metrics_port, (Transport.TCP,)))
    for endpoint in endpoints:
        if not endpoint.port:
            yield Finding("ports", Level.OK, f"any port that is free will be used ({endpoint.section}.port is 0)")
            continue
        found: dict[PortStatus, list[str]] = {}
        for transport in endpoint.transports:
            found.setdefault(check_port(endpoint.host, endpoint.port, transport), []).append(transport.name)
        for looked, transports in found.items():
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            yield _port_finding(
                looked, f"{host}:{endpoint.port} ({endpoint.section}, {', '.join(transports)})", endpoint, config
            )


def _port_finding(looked: PortStatus, where: str, endpoint: _Endpoint, config: Config) -> Finding:
    if not looked.problem:
        return Finding("ports", Level.OK, f"{where} is free")
    host, port = f"{endpoint.section}.host", f"{endpoint.section}.port"
    if not looked.in_use:
        sources = ", ".join(dict.fromkeys(config.sources[name] for name in (host, port)))
        advice = f"correct {host} or {port} ({sources})"
        if endpoint.port < _FIRST_UNPRIVILEGED_PORT:
            advice += "; a port below 1024 needs a right that the system gives to services (CAP_NET_BIND_SERVICE)"
        return Finding("ports", Level.ERROR, f"{where} cannot be served at: {looked.problem}", advice)
    advice = f"stop it, or set {port} to another one"
    if not looked.owners:
        message = f"{where} is in use by a process that cannot be told, perhaps of another user"
        return Finding("ports", Level.ERROR, message, f"find it with: ss -lntup; {advice}")
    message = f"{where} is in use by {looked.owners[0]}"
    if any("perseid" in owner.command for owner in looked.owners):
        return Finding("ports", Level.NOTE, message, "if it serves this installation, all is well")
    return Finding("ports", Level.ERROR, message, advice)

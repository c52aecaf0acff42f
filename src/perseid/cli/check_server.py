"""The findings of `perseid check` about the server: key, site information, HTTP, ports and tokens."""

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

from ._installation import OpenInstallation
from .tokens import list_all


class Level(StrEnum):
    """The severity of a finding: an error must be fixed, a note is worth knowing."""

    OK = "ok"
    NOTE = "note"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    about: str
    level: Level
    message: str
    advice: str = ""


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is an error."""
    return any(finding.level is Level.ERROR for finding in findings)


UNUSED_DAYS: Final = 60
"""Days without use after which a token is reported: most programs do not pause for two months."""

_MAX_IDS: Final = 5


def token_findings(session: OpenInstallation) -> Iterator[Finding]:
    """Yield the findings about tokens; none if there are no tokens."""
    now = session.registry.now()
    tokens = list(list_all(session))
    if not tokens:
        return
    active = [item for item in tokens if item.is_active(now)]
    unused = [item for item in active if now - max(item.used or 0, item.token.created) >= UNUSED_DAYS * DAY]
    if unused:
        message = f"not used for {UNUSED_DAYS} days: {_format_ids(unused)}"
        yield Finding("tokens", Level.NOTE, message, "revoke tokens that are not needed: perseid token revoke TOKEN")
    branch = find_branch(session.registry.ledger.log)
    older = [] if branch is None else [item for item in active if item.seq <= branch.predecessor.size]
    if older:
        message = f"restored from a backup: {_format_ids(older)}; tokens revoked after the backup are active again"
        yield Finding("tokens", Level.NOTE, message, "review them with perseid token list, and revoke them again")
    expired = sum(item.state(now) == "expired" for item in tokens)
    yield Finding("tokens", Level.OK, f"{len(active):,} active" + (f", {expired:,} expired" if expired else ""))


def _format_ids(items: Sequence[TokenStatus]) -> str:
    ids = ", ".join([item.token.id for item in items[:_MAX_IDS]])
    return ids if len(items) <= _MAX_IDS else f"{ids} and {len(items) - _MAX_IDS:,} more"


_HTTP = "http"


def http_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Yield the findings about HTTP and the certificate for HTTPS."""
    if not config.http.enabled:
        yield Finding(_HTTP, Level.OK, "disabled (http.enabled is false)")
        return
    if config.http.listen == "http":
        yield from _proxy_findings(config)
        yield Finding(_HTTP, Level.OK, "plain HTTP only, so no certificate is needed (http.listen is http)")
        return
    try:
        credentials = find_certificate(directory, config, load_server_identity(directory, config).key)
    except InstallationError as problem:
        yield Finding(_HTTP, Level.ERROR, str(problem))
        return
    if credentials is None:
        message = "there is no self-signed certificate for the current key and hosts"
        yield Finding(_HTTP, Level.NOTE, message, "the server creates one when it starts, or on SIGHUP")
        return
    yield from _certificate_findings(credentials, config)
    yield from _key_file_findings(directory, config)


def _certificate_findings(credentials: Credentials, config: Config) -> Iterator[Finding]:
    now = datetime.now(UTC)
    leaf = credentials.chain[0]
    end = leaf.not_valid_after_utc
    for remark in credentials.remarks(config, now):
        yield Finding(_HTTP, Level.ERROR if now > end else Level.NOTE, remark)
    if now > end:
        return
    if credentials.is_own:
        yield Finding(_HTTP, Level.OK, f"HTTPS uses a self-signed certificate: {credentials.path}")
    elif now <= end - EXPIRY_WARNING:
        days = (end - now).days
        yield Finding(_HTTP, Level.OK, f"the certificate in {credentials.path} is valid for another {days} days")


def _key_file_findings(directory: Path, config: Config) -> Iterator[Finding]:
    path = directory / (config.http.key_file or config.http.certificate_file)
    with suppress(OSError):
        if config.http.certificate_file and path.stat().st_mode & stat.S_IROTH:
            message = f"all users can read {path}, which contains the private key for HTTPS"
            yield Finding(_HTTP, Level.NOTE, message, f"restrict access with: chmod o= {path}")


def _proxy_findings(config: Config) -> Iterator[Finding]:
    if config.http.public_url.lower().startswith("https:") and not config.http.trusted_proxies:
        message = "http.public_url is an https address but http.listen is http, so a proxy must be in front"
        advice = "list the proxy in http.trusted_proxies; otherwise authentication over HTTP is refused"
        yield Finding(_HTTP, Level.NOTE, message, advice)


_NATIVE_TRANSPORTS = (Transport.TCP, Transport.UDP)
_FIRST_UNPRIVILEGED_PORT = 1_024
_EDIT_ADVICE = f"correct {SITE_JSON}, raise its serialNumber by one, and remove {SITE_BINARY}; or correct the settings"


def server_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Yield the findings about the server's key and site information."""
    try:
        identity = load_server_identity(directory, config)
    except InstallationError as problem:
        yield Finding("server", Level.ERROR, str(problem))
        return
    yield from _rotation_findings(directory, identity)
    yield from _passphrase_findings(directory, config)
    for remark in identity.remarks:
        yield Finding("server", Level.NOTE, remark)
    with suppress(OSError):
        if (directory / KEYS_NAME / PUBLIC_KEY).read_bytes() != identity.key.public.to_bytes():
            message = f"{KEYS_NAME}/{PUBLIC_KEY} is not the public key of the server; Perseid does not read it"
            yield Finding("server", Level.NOTE, message, "remove it; the site information contains the public key")
    if not identity.site.is_primary:
        message = f"{identity.site_path} describes a site that is not primary, so the server refuses changes"
        yield Finding("server", Level.NOTE, message)
    server = identity.site.servers[identity.position]
    yield from _interface_findings(server, identity, config)
    yield from _address_findings(server, identity, config)
    about = f"signs as server {identity.position + 1} of {identity.site_path.name}"
    serial = f"serial number {identity.site.serial}"
    yield Finding("server", Level.OK, f"{about} ({serial}) with {fingerprint(identity.key.public)}")


def _rotation_findings(directory: Path, identity: ServerIdentity) -> Iterator[Finding]:
    next_key = directory / KEYS_NAME / NEXT_SERVER_KEY
    if identity.key_path == next_key:
        message = "the rotation of the server's key was interrupted"
        yield Finding("server", Level.ERROR, message, f"finish it with: {ROTATE_COMMAND}")
    elif next_key.exists():
        message = f"{next_key} is left over from an interrupted rotation and was never used"
        yield Finding("server", Level.NOTE, message, "the next rotation removes it")


def _passphrase_findings(directory: Path, config: Config) -> Iterator[Finding]:
    path = directory / config.keys.passphrase_file
    with suppress(OSError):
        if config.keys.passphrase_file and path.stat().st_mode & OTHERS_READ:
            message = f"other users can read {path}, which contains the passphrase of the server's key"
            yield Finding("server", Level.NOTE, message, f"restrict access with: chmod 0600 {path}")


def _interface_findings(server: Server, identity: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Compare the ports of the site information with those of the settings."""
    over_http = Transport.HTTPS if config.http.listen == "https" else Transport.HTTP
    for setting, port, transports in (
        ("native.port", config.native.port, _NATIVE_TRANSPORTS),
        ("http.port", config.http.port if config.http.enabled else 0, (over_http,)),
    ):
        listed = {one: sorted({each.port for each in server.interfaces if each.transport == one}) for one in transports}
        others = [f"{one.name} {' and '.join(map(str, ports))}" for one, ports in listed.items() if port not in ports]
        if port and others and all(listed.values()):
            message = f"{identity.site_path} sends clients to {', '.join(others)}, but {setting} is {port}"
            yield Finding("server", Level.NOTE, message, f"unless ports are forwarded: {_EDIT_ADVICE}")
        for one in [one for one in transports if not listed[one] and one in _NATIVE_TRANSPORTS]:
            message = f"{identity.site_path} lists no {one.name} interface of this server, so clients use none"
            yield Finding("server", Level.NOTE, message, _EDIT_ADVICE)


def _address_findings(server: Server, identity: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Compare the address of the site information with the setting."""
    try:
        host = ipaddress.ip_address(config.native.host)
    except ValueError:
        return
    listed = server.ip
    only_local = host.is_unspecified and listed.is_loopback
    if only_local or not (host.is_unspecified or listed.is_unspecified or listed == host):
        message = f"{identity.site_path} sends clients to {listed}, but native.host is {host}"
        yield Finding("server", Level.NOTE, message, f"unless addresses are translated: {_EDIT_ADVICE}")


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An address that the server listens on."""

    section: str
    """The section of the settings with its `host` and `port`."""
    host: str
    port: int
    transports: tuple[Transport, ...]


def port_findings(config: Config) -> Iterator[Finding]:
    """Yield whether each port is free, or which process uses it."""
    endpoints = [_Endpoint("native", config.native.host, config.native.port, _NATIVE_TRANSPORTS)]
    if config.http.enabled:
        endpoints.append(_Endpoint("http", config.http.host, config.http.port, (Transport.TCP,)))
    if config.metrics.enabled:
        endpoints.append(_Endpoint("metrics", config.metrics.host, config.metrics.port, (Transport.TCP,)))
    for endpoint in endpoints:
        if not endpoint.port:
            yield Finding("ports", Level.OK, f"the system chooses a free port ({endpoint.section}.port is 0)")
            continue
        statuses: dict[PortStatus, list[str]] = {}
        for transport in endpoint.transports:
            statuses.setdefault(check_port(endpoint.host, endpoint.port, transport), []).append(transport.name)
        for status, transports in statuses.items():
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            yield _port_finding(
                status, f"{host}:{endpoint.port} ({endpoint.section}, {', '.join(transports)})", endpoint, config
            )


def _port_finding(status: PortStatus, address: str, endpoint: _Endpoint, config: Config) -> Finding:
    if not status.problem:
        return Finding("ports", Level.OK, f"{address} is free")
    host, port = f"{endpoint.section}.host", f"{endpoint.section}.port"
    if not status.in_use:
        sources = ", ".join(dict.fromkeys(config.sources[name] for name in (host, port)))
        advice = f"correct {host} or {port} ({sources})"
        if endpoint.port < _FIRST_UNPRIVILEGED_PORT:
            advice += "; a port below 1024 requires the capability CAP_NET_BIND_SERVICE"
        return Finding("ports", Level.ERROR, f"cannot listen on {address}: {status.problem}", advice)
    advice = f"stop it, or change {port}"
    if not status.owners:
        message = f"{address} is in use by an unknown process, perhaps of another user"
        return Finding("ports", Level.ERROR, message, f"find it with: ss -lntup; {advice}")
    message = f"{address} is in use by {status.owners[0]}"
    if any("perseid" in owner.command for owner in status.owners):
        return Finding("ports", Level.NOTE, message, "this is correct if it serves this installation")
    return Finding("ports", Level.ERROR, message, advice)

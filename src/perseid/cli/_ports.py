"""The ports of an installation, for `perseid check`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.processes.sockets import PortStatus, check_port
from perseid.server.state.runtime import find_users

from ._findings import Finding, Level

_FIRST_UNPRIVILEGED_PORT = 1_024


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An address that the server listens on."""

    section: str
    """The section of the settings with its `host` and `port`."""
    host: str
    port: int
    transports: tuple[Transport, ...]


def port_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Yield whether each port is free, or which process uses it."""
    users = find_users(directory)
    own = users or ()
    endpoints = [_Endpoint("native", config.native.host, config.native.port, (Transport.TCP, Transport.UDP))]
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
            status = check_port(endpoint.host, endpoint.port, udp=transport is Transport.UDP)
            statuses.setdefault(status, []).append(transport.name)
        for status, transports in statuses.items():
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            address = f"{host}:{endpoint.port} ({endpoint.section}, {', '.join(transports)})"
            if any(owner.process in own for owner in status.owners):
                yield Finding("ports", Level.OK, f"{address} is in use by the running server of this installation")
            else:
                yield _port_finding(status, address, endpoint, config, may_be_own=users == [])


def _port_finding(
    status: PortStatus, address: str, endpoint: _Endpoint, config: Config, *, may_be_own: bool
) -> Finding:
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
    message = f"{address} is in use by {', '.join(map(str, status.owners))}"
    return Finding("ports", Level.NOTE if may_be_own else Level.ERROR, message, advice)

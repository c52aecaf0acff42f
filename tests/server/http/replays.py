"""Replay of the recorded HTTP exchanges with our server: in this process, or over the network."""

import http.client
import socket
import ssl
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from perseid.names.handle import Handle
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.registry.registries import OPERATOR
from tests.server.http.contexts import PUBLIC_URL, STRANGER, Harness, recorded_harness
from tests.server.http.http_vectors import VECTORS, Received, Replay, Sent, import_state
from tests.server.native.live_vectors import make_installation
from tests.server.native.native_servers import NOW, Clock
from tests.server.native.recorded_answers import Found
from tests.server.running import Address, serving

PATIENCE: Final = 30.0
"""Seconds that a client waits for an answer: more than on a loaded machine, less than for ever."""

SETTINGS: Final = {
    "PERSEID_HTTP_PUBLIC_URL": PUBLIC_URL,
    "PERSEID_HTTP_TRUSTED_PROXIES": '["127.0.0.0/8"]',
}
"""So that whoever comes over plain HTTP can be somebody on another machine, of whom a proxy says so."""


def hold_in_process() -> dict[str, list[Found]]:
    """Replay every recorded exchange without sockets; return the differences of each."""
    clock = Clock()
    clock.show(NOW)
    with recorded_harness(clock) as server:
        import_state(server.registry)
        replay = Replay(lambda sent: carried(server, sent))
        replay.load_state()
        (listed,) = [vector["response"]["body"]["handles"] for vector in VECTORS if vector["name"] == "list"]
        for name in listed:  # of which nothing else is known
            server.registry.do(Create(Handle.parse(name), ()), OPERATOR, "cli")
        held = {}
        for vector in VECTORS:
            moment = parsedate_to_datetime(vector["response"]["headers"]["Date"]).timestamp()
            clock.show(max(moment, server.context.time()))  # some were recorded anew, and time does not go back
            held[vector["name"]] = replay.hold(vector)
        return held


def hold_over_network(folder: Path) -> dict[str, list[Found]]:
    """Replay every recorded exchange with a running server in the recorded state, over HTTP and TLS."""
    directory = make_installation(folder, "tcp")
    with Installation.open(directory, environ={}) as installation:
        import_state(Registry(installation.ledger, Rules(installation.administration)))
    with serving(directory, **SETTINGS) as server:
        replay = Replay(over_network(server.http))
        replay.load_state()
        return {vector["name"]: replay.hold(vector) for vector in VECTORS}


def carried(server: Harness, sent: Sent) -> Received:
    """Make a request to a server without sockets, from another machine."""
    headers: dict[str, str | list[str]] = dict(sent.headers)
    answer = server.ask(sent.method, sent.path, sent.body, headers=headers, secure=sent.secure, version=sent.version)
    body = b"" if sent.method == "HEAD" else answer.body
    return Received(answer.status, list(answer.headers), body, server.context.time())


def over_network(address: Address) -> Callable[[Sent], Received]:
    """Make a request over a connection of its own: with TLS, or as if through a proxy."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def send(sent: Sent) -> Received:
        with socket.create_connection(address, PATIENCE) as plain:
            stream = context.wrap_socket(plain) if sent.secure else plain
            with stream:
                stream.sendall(octets_of(sent, address))
                answer = http.client.HTTPResponse(stream, method=sent.method)
                answer.begin()
                body = answer.read()
        length = answer.getheader("Content-Length")
        assert length is None or sent.method == "HEAD" or int(length) == len(body)
        date = parsedate_to_datetime(answer.getheader("Date") or "").timestamp()
        return Received(answer.status, answer.getheaders(), body, date)

    return send


def octets_of(sent: Sent, address: Address) -> bytes:
    """A request as bytes, on a connection that ends with it."""
    headers = {"Host": f"{address[0]}:{address[1]}", "Connection": "close", **dict(sent.headers)}
    if not sent.secure:
        headers["X-Forwarded-For"] = STRANGER
    if sent.body or sent.method in ("PUT", "POST"):
        headers["Content-Length"] = str(len(sent.body))
    lines = [f"{sent.method} {sent.path} HTTP/{sent.version}", *[f"{name}: {value}" for name, value in headers.items()]]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent.body

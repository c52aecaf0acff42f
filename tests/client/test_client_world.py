"""A small world of real servers: a root, a service with two sites, and a third server with a delegated prefix."""

import asyncio
import base64
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perseid.client import sites
from perseid.client.errors import NotFound, ProtocolError
from perseid.client.resolution import AsyncResolver, Resolver
from perseid.client.roots import Root
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.records.site import Interface, Purpose, Site, Transport
from perseid.registry.commands.records import Create, Home
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.wire.codes import ResponseCode
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET, copy_to
from tests.server.native.native_client import NativeClient
from tests.server.running import Serving, start
from tests.wire.key_material import SERVER_KEY

NAMES = ("root", "first", "second", "delegated")
SERVICE = ("first", "second")


@dataclass
class Servers:
    """The servers by name, and the root."""

    running: dict[str, Serving]
    sites: dict[str, Site]

    @property
    def root(self) -> Root:
        """Where resolution begins."""
        return Root((self.sites["root"],), "the test root")

    def addresses(self, *names: str) -> set[str]:
        """The UDP addresses of some servers."""
        return {f"udp://{host}:{port}" for host, port in (self.running[name].native for name in names)}


def site_of(directory: Path, server: Serving) -> Site:
    """The site of a server, with the ports that it has now."""
    site = Site.from_file((directory / "siteinfo.bin").read_bytes())
    native, http = server.native[1], server.http[1]
    ports = {Transport.UDP: native, Transport.TCP: native, Transport.HTTP: http, Transport.HTTPS: http}
    interfaces = tuple(Interface(Purpose.ADMIN | Purpose.QUERY, transport, port) for transport, port in ports.items())
    return replace(site, servers=(replace(site.servers[0], interfaces=interfaces),))


def with_key(site: Site, key: bytes) -> Site:
    return replace(site, servers=(replace(site.servers[0], public_key=key),))


def prepare(directory: Path, *names: str) -> None:
    """Create records that only a server administrator can create; homes the prefix of a handle."""
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        url = Value.text(1, "URL", "https://example.org/delegated")
        for name in names:
            is_prefix = name.startswith("0.NA/")
            if not is_prefix:
                registry.do(Home(f"0.NA/{name.partition('/')[0]}"), OPERATOR, "cli")
            registry.do(Create(Handle.parse(name), (admin(),) if is_prefix else (url, admin())), OPERATOR, "cli")


def administer(servers: Servers) -> None:
    """Register the sites at the root, and that of the delegated prefix at the third server."""
    sites = {name: Value(1, "HS_SITE", site.to_bytes()) for name, site in servers.sites.items()}
    wrong_key = with_key(servers.sites["second"], SERVER_KEY.public.to_bytes())
    added = {
        ("root", "0.NA/12345"): (
            sites["first"],
            replace(sites["second"], index=2),
            replace(sites["delegated"], index=3, type="HS_SITE.PREFIX"),
        ),
        ("root", "0.NA/999"): (Value(1, "HS_SITE", wrong_key.to_bytes()),),
        ("delegated", "0.NA/12345.6"): (sites["delegated"],),
    }
    for (name, handle), values in added.items():
        with NativeClient(servers.running[name].native) as client:
            client.act_as(ADMINISTRATOR, SECRET)
            assert client.add(handle, *values).code is ResponseCode.SUCCESS


def admin() -> Value:
    return Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a network that loses datagrams."""
    monkeypatch.setattr(sites, "UDP_WAITS", (10.0, 10.0))


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perseid-world-")))
        directories = {}
        for name in NAMES:
            (folder / name).mkdir()
            directories[name] = copy_to(folder / name)
        prepare(directories["root"], "0.NA/999")
        prepare(directories["delegated"], "0.NA/12345.6", "12345.6/x")
        with ThreadPoolExecutor() as pool:  # they start at the same time
            started = {name: pool.submit(start, directories[name], folder / name) for name in NAMES}
        running = {name: future.result() for name, future in started.items() if future.exception() is None}
        for server in running.values():
            stack.callback(server.kill)
        assert len(running) == len(NAMES)
        found = Servers(running, {name: site_of(directories[name], running[name]) for name in NAMES})
        administer(found)
        yield found


def test_a_delegated_prefix_resolves_through_a_referral_with_a_certified_chain(servers: Servers) -> None:
    result = Resolver(servers.root).resolve("12345.6/x", certified=True, trace=True)
    assert (result.target, result.is_certified) == ("https://example.org/delegated", True)
    assert [(step.action, step.handle) for step in result.trace] == [
        ("ask", "0.NA/12345.6"),
        ("referral", "0.NA/12345.6"),
        ("ask", "0.NA/12345.6"),
        ("service", "0.NA/12345.6"),
        ("ask", "12345.6/x"),
    ]
    assert all(step.is_certified for step in result.trace if step.action == "ask")
    assert {step.address for step in result.trace if step.address} == servers.addresses("root", "delegated")


@pytest.mark.parametrize("transport", [Transport.UDP, Transport.TCP, Transport.HTTP, Transport.HTTPS])
def test_every_transport_of_a_server_certifies(servers: Servers, transport: Transport) -> None:
    async def ask() -> bool:
        async with AsyncResolver(servers.root, transports=[transport]) as resolver:
            return (await resolver.resolve("12345/long", certified=True)).is_certified

    resolver = Resolver(servers.root, transports=[transport])
    assert resolver.resolve("12345/long", certified=True).is_certified
    assert asyncio.run(ask())
    with pytest.raises(NotFound):
        resolver.resolve("12345/missing", certified=True)


def test_a_response_that_is_too_long_for_datagrams_comes_over_tcp(servers: Servers) -> None:
    result = Resolver(servers.root).resolve("12345/longer", types=["DATA"], trace=True)
    assert sum(len(value.data) for value in result.values) == 200_000
    assert result.trace[-1].address.startswith("tcp://")


def test_a_wrong_signature_and_a_wrong_tls_key_are_refused(servers: Servers) -> None:
    with pytest.raises(ProtocolError, match="the response is not signed by the server"):
        Resolver(servers.root, transports=[Transport.UDP, Transport.TCP]).resolve("999/x", certified=True)
    with pytest.raises(ProtocolError, match="the TLS certificate does not have the key of the site"):
        Resolver(
            Root((), resolver=(with_key(servers.sites["root"], SERVER_KEY.public.to_bytes()),)),
            transports=[Transport.HTTPS],
        ).resolve("12345/n1")
    with pytest.raises(NotFound, match="does not host its prefix"):
        Resolver(servers.root).resolve("999/x")


def test_a_handle_resolves_at_both_sites_and_at_one_if_the_other_is_killed(servers: Servers) -> None:
    """The other tests do not need the site that is killed here."""
    resolver = Resolver(servers.root, cache_size=0)
    asked = set()
    for number in range(40):
        result = resolver.resolve(f"12345/n{number}", trace=True)
        assert result.target == f"https://example.org/{number}"
        asked.add(result.trace[-1].address)
        resolver._core.times._measured.clear()  # so that both are equal, and chance decides
    assert asked == servers.addresses(*SERVICE)

    blocking = Resolver(servers.root)
    blocking.resolve("12345/n0", certified=True)
    servers.running["first"].kill()

    async def ask() -> list[str | None]:
        async with AsyncResolver(servers.root) as resolver:
            found = await asyncio.gather(*[resolver.resolve(f"12345/n{number}") for number in range(20)])
            return [result.target for result in found]

    for number in range(1, 20):
        result = blocking.resolve(f"12345/n{number}", certified=True, trace=True)
        assert result.target == f"https://example.org/{number}"
        assert result.trace[-1].address in servers.addresses("second")
    assert asyncio.run(ask()) == [f"https://example.org/{number}" for number in range(20)]


def test_an_administrator_with_a_key_at_the_root_changes_a_record_over_http(servers: Servers, tmp_path: Path) -> None:
    """The identity is the prefix handle 999, whose secret only the root has."""
    secret = Value(300, "HS_SECKEY", b"of 999", permissions=PRIVATE_PERMISSIONS)
    with NativeClient(servers.running["root"].native) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        assert client.add("0.NA/999", secret).code is ResponseCode.SUCCESS
    directory = copy_to(tmp_path)
    (directory / "root.bin").write_bytes(servers.sites["root"].to_bytes())
    settings = directory / "perseid.toml"
    identities = '[identities]\nroot = "root.bin"\nnetworks = ["127.0.0.0/8"]'
    settings.write_text(settings.read_text().replace("[identities]", identities))
    administrator = Value(100, "HS_ADMIN", Admin(ValueRef(300, "0.NA/999")).to_bytes())
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        registry.do(Create(Handle.parse("12345/shared"), (administrator,)), OPERATOR, "cli")
    server = start(directory, tmp_path)
    try:
        host, port = server.http
        url = f"http://{host}:{port}/api/handles/12345/shared?index=various"
        body = {"values": [{"index": 1, "type": "URL", "data": "https://example.org/changed"}]}
        statuses = []
        for given in ("wrong", "of 999"):
            token = base64.b64encode(f"300%3A0.NA/999:{given}".encode()).decode()
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    statuses.append(response.status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
        assert statuses == [401, 201]
    finally:
        server.kill()

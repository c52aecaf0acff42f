"""A network in memory: servers with records, keys and faults. It does the steps of a resolver without sockets."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from perseid.client.attempts import Options, Query
from perseid.client.lookup import Core, Resolution
from perseid.client.roots import Root
from perseid.client.sites import TRANSPORTS
from perseid.client.transport import FAILURES, Address, Exchange, Lookup, Step, Steps, Turn
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, select
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport, address_from_json
from perseid.wire.codes import ResponseCode
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.requests import Resolve
from perseid.wire.responses import Failure, ResolutionResult, ResponseBody
from perseid.wire.server import Reply, Request, ServerSettings
from perseid.wire.server import Server as WireServer
from tests.wire.key_material import RSA_KEY, SERVER_KEY

T = TypeVar("T")

PORT: Final = 2641
ROOT_HOST: Final = "192.0.2.1"
HOST: Final = "192.0.2.2"
OTHER_HOST: Final = "192.0.2.3"

URL: Final = Value.text(1, "URL", "https://example.org/1")


def make_site(
    *hosts: str,
    key: PrivateKey = RSA_KEY,
    transports: Iterable[Transport] = (Transport.UDP, Transport.TCP),
    primary: bool = True,
    attributes: Mapping[str, str] | None = None,
) -> Site:
    """A site with a server at each address."""
    interfaces = tuple(Interface(Purpose.ADMIN | Purpose.QUERY, transport, PORT) for transport in transports)
    servers = [
        Server(number, address_from_json(host), key.public.to_bytes(), interfaces) for number, host in enumerate(hosts)
    ]
    named = tuple(Attribute(name, value.encode()) for name, value in (attributes or {}).items())
    return Site(tuple(servers), named, primary=PrimaryMask.PRIMARY if primary else PrimaryMask(0))


def site_value(site: Site, index: int = 1, type_: str = "HS_SITE") -> Value:
    """The value with a site."""
    return Value(index, type_, site.to_bytes())


Answer = tuple[ResponseCode, ResponseBody]
Fault = Callable[["Host", Exchange], None]
"""Raises an OSError instead of an answer, or does nothing."""


@dataclass
class Host:
    """A server with records."""

    records: dict[str, tuple[Value, ...] | Answer]
    key: PrivateKey = RSA_KEY
    fault: Fault | None = None
    is_primary: bool = True
    serial: int = 1
    """The serial number of its site."""
    asked: list[str] = field(default_factory=list)
    """The handles of the requests, in order."""
    exchanges: list[Exchange] = field(default_factory=list)

    def reply(self, frame: Frame, now: float) -> Reply:
        """Answer a request as a server does."""
        settings = ServerSettings(self.key, is_primary=self.is_primary, site_serial=self.serial)
        server = WireServer(settings, random.Random(1).randbytes)
        request = server.receive(frame, now)
        assert isinstance(request, Request)
        assert isinstance(request.body, Resolve)
        handle = request.body.handle.decode()
        self.asked.append(handle)
        code, body = self._find(request.body, handle)
        reply = server.respond(request, code, body, now)
        return reply if reply.is_signed else server.sign(reply)

    def _find(self, query: Resolve, handle: str) -> Answer:
        found = self.records.get(handle.upper())
        if found is None:
            return ResponseCode.HANDLE_NOT_FOUND, Failure()
        if found and isinstance(found[0], ResponseCode):
            return found
        values = select(found, query.indexes, query.types)
        if not values:
            return ResponseCode.VALUES_NOT_FOUND, Failure()
        return ResponseCode.SUCCESS, ResolutionResult(query.handle, values)


@dataclass
class World:
    """Hosts by address, and a clock."""

    hosts: dict[str, Host]
    domains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Addresses by domain; without any, a look-up does not end."""
    now: float = 1_794_724_100.0
    change_packets: Callable[[list[bytes]], list[bytes]] = lambda packets: packets
    """What the network does to the datagrams of a response."""

    def clock(self) -> float:
        """The time."""
        return self.now

    def run(self, steps: Steps[T]) -> T:
        """Do the steps."""
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except FAILURES as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _do(self, step: Step) -> object:
        if isinstance(step, Turn):
            return None
        return self._look_up(step) if isinstance(step, Lookup) else self._exchange(step)

    def _look_up(self, lookup: Lookup) -> tuple[str, ...]:
        if lookup.domain not in self.domains:
            raise OSError("Name or service not known")
        if not self.domains[lookup.domain]:
            self.now += lookup.timeout
            raise TimeoutError("timed out")
        return self.domains[lookup.domain]

    def _exchange(self, exchange: Exchange) -> object:
        host = self.hosts.get(exchange.address.host)
        if host is None:
            self.now += exchange.timeout
            raise TimeoutError("timed out")
        host.exchanges.append(exchange)
        if host.fault is not None:
            host.fault(host, exchange)
        if exchange.address.transport is Transport.UDP:
            packets = Reassembler()
            whole = [message for packet in exchange.data if (message := packets.receive(0, packet, self.now))]
            for packet in self.change_packets(host.reply(Frame(*whole[0]), self.now).to_packets()):
                if exchange.receive(packet):
                    return None
            self.now += exchange.timeout
            raise TimeoutError("timed out")
        reader = FrameReader()
        data = b"".join(exchange.data)
        is_http = exchange.address.transport in (Transport.HTTP, Transport.HTTPS)
        reader.feed(data.partition(b"\r\n\r\n")[2] if is_http else data)
        (frame,) = reader.frames()
        stream = host.reply(frame, self.now).to_stream()
        if is_http:
            stream = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(stream) + stream
        while not exchange.receive(stream[:1_000]):
            stream = stream[1_000:]
        return None


@dataclass
class WorldResolver:
    """A resolver in a world."""

    world: World
    core: Core

    def resolve(
        self, handle: str, types: tuple[str, ...] = (), *, authoritative: bool = False, **options: object
    ) -> Resolution:
        """Resolve a handle."""
        query = Query(handle, types, authoritative=authoritative)
        return self.world.run(self.core.resolve(query, Options(**options)))  # type: ignore[arg-type]


def resolver_of(world: World, root: Root | None = None, **settings: object) -> WorldResolver:
    """A resolver that begins at the root of a world."""
    core = Core(root or Root((make_site(ROOT_HOST, key=SERVER_KEY),), "the test root"), 100, TRANSPORTS, None)
    core.clock = core.timer = world.clock
    for name, value in settings.items():
        setattr(core, name, value)
    return WorldResolver(world, core)


def two_hosts(*, site: Site | None = None) -> World:
    """A root, and a service that has 12345/x."""
    service = make_site(HOST) if site is None else site
    root = Host({"0.NA/12345": (site_value(service),)}, SERVER_KEY)
    return World({ROOT_HOST: root, HOST: Host({"12345/X": (URL,)})})


def refuse(_host: Host, _exchange: Exchange) -> None:
    """A host where no server listens."""
    raise ConnectionRefusedError(111, "Connection refused")


def only(*transports: Transport) -> Fault:
    """A host that answers by some transports only, as behind a firewall."""

    def fault(_host: Host, exchange: Exchange) -> None:
        if exchange.address.transport not in transports:
            raise TimeoutError("timed out")

    return fault


def addresses(host: Host) -> list[Address]:
    """The addresses at which a host was asked."""
    return [exchange.address for exchange in host.exchanges]


def with_ttl(value: Value, ttl: int) -> Value:
    """The value with another TTL."""
    return replace(value, ttl=ttl)

"""Both drivers, over real sockets of this machine: every transport, and networks that lose, repeat and reorder."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perseid.client import connections, sites
from perseid.client.errors import ClientError, NotFound, ProtocolError, Unreachable
from perseid.client.native import NativeClient
from perseid.client.resolution import AsyncResolver, Resolution, Resolver
from perseid.client.roots import Root
from perseid.client.transport import Address, AsyncTransport, Exchange, Lookup, Steps, StreamReceiver, run
from perseid.records.record import Value
from perseid.records.site import Interface, Purpose, Site, Transport
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame, FrameReader
from tests.client.worlds import URL, Host, make_site, site_value

LOOPBACK = "127.0.0.1"
LONG = tuple(Value(index, "DATA", bytes([index]) * 900) for index in range(1, 9))
Change = Callable[[list[bytes]], list[bytes]]


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a lossy network; the first wait stays short, for tests of loss."""
    monkeypatch.setattr(sites, "UDP_WAITS", (0.5, 10.0, 10.0))


@dataclass
class Listener:
    """A server in threads, which answers what a `Host` of the tests knows."""

    host: Host
    change: Change = list
    """What the network does to the datagrams of each response."""

    @contextmanager
    def serving(self) -> Iterator[Site]:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((LOOPBACK, 0))
        tcp = socket.create_server((LOOPBACK, 0))
        http = socket.create_server((LOOPBACK, 0))
        loops = ((self._answer_datagrams, udp), (self._answer_streams, tcp), (self._answer_http, http))
        threads = [threading.Thread(target=loop, args=(source,), daemon=True) for loop, source in loops]
        for thread in threads:
            thread.start()
        ports = {
            transport: source.getsockname()[1]
            for transport, source in ((Transport.UDP, udp), (Transport.TCP, tcp), (Transport.HTTP, http))
        }
        site = make_site(LOOPBACK)
        interfaces = tuple(Interface(Purpose.QUERY, transport, port) for transport, port in ports.items())
        try:
            yield replace(site, servers=(replace(site.servers[0], interfaces=interfaces),))
        finally:
            for source in (udp, tcp, http):
                source.shutdown(socket.SHUT_RDWR) if source is not udp else udp.sendto(b"end", udp.getsockname())
            for thread in threads:
                thread.join()
            for source in (udp, tcp, http):
                source.close()

    def _answer_datagrams(self, udp: socket.socket) -> None:
        while True:
            data, peer = udp.recvfrom(65_536)
            if data == b"end":
                return
            whole = Reassembler().receive(0, data, 0)
            assert whole is not None
            for packet in self.change(self.host.reply(Frame(*whole), time.time()).to_packets()):
                udp.sendto(packet, peer)

    def _answer_streams(self, listener: socket.socket, *, is_http: bool = False) -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            with stream:
                received = b""
                reader = FrameReader()
                frames: list[Frame] = []
                while not frames:
                    received = stream.recv(65_536)
                    reader.feed(received.partition(b"\r\n\r\n")[2] if is_http else received)
                    frames = list(reader.frames())
                answer = self.host.reply(frames[0], time.time()).to_stream()
                if is_http:
                    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
                stream.sendall(answer)

    def _answer_http(self, listener: socket.socket) -> None:
        self._answer_streams(listener, is_http=True)


def records() -> Host:
    return Host({"12345/X": (URL,), "12345/LONG": LONG})


def blocking(root: Root, handle: str, transports: list[Transport], **options: object) -> Resolution:
    return Resolver(root, transports=transports).resolve(handle, **options)  # type: ignore[arg-type]


def asynchronous(root: Root, handle: str, transports: list[Transport], **options: object) -> Resolution:
    async def ask() -> Resolution:
        async with AsyncResolver(root, transports=transports) as resolver:
            return await resolver.resolve(handle, **options)  # type: ignore[arg-type]

    return asyncio.run(ask())


Driver = Callable[..., Resolution]
drivers = pytest.mark.parametrize("driver", [blocking, asynchronous])


@drivers
def test_every_transport_carries_short_and_long_responses(driver: Driver) -> None:
    with Listener(records()).serving() as site:
        root = Root((), resolver=(site,))
        for transport in (Transport.UDP, Transport.TCP, Transport.HTTP):
            result = driver(root, "hdl:12345/long", [transport], certified=True, trace=True)
            assert result.values == LONG
            assert result.trace[-1].address.startswith(transport.name.lower())
            assert driver(root, "12345/x", [transport]).target == "https://example.org/1"


@drivers
def test_a_network_that_loses_repeats_and_reorders_is_survived(driver: Driver) -> None:
    changes: list[Change] = [
        lambda packets: packets[2:],
        lambda packets: [*reversed(packets), *packets[:3], *packets],
    ]
    with Listener(records(), lambda packets: changes.pop(0)(packets) if changes else packets).serving() as site:
        result = driver(Root((), resolver=(site,)), "12345/long", [Transport.UDP], trace=True)
    assert result.values == LONG
    assert [step.outcome for step in result.trace] == ["timed out", "SUCCESS"]


@drivers
def test_nobody_listening_is_reported_at_once(driver: Driver) -> None:
    with Listener(records()).serving() as site:
        pass
    with pytest.raises(Unreachable, match="Connection refused") as caught:
        driver(Root((), resolver=(site,)), "12345/x", [Transport.UDP, Transport.TCP], timeout=30)
    assert caught.value.detail.count("Connection refused") == 2
    assert "timed out" not in caught.value.detail


@drivers
def test_a_server_that_closes_the_connection_or_is_silent_is_reported(driver: Driver) -> None:
    listener = socket.create_server((LOOPBACK, 0))

    def close_streams() -> None:
        for wait in (0.0, 5.0):
            stream, _ = listener.accept()
            with stream:
                stream.settimeout(wait or None)
                stream.recv(65_536) if not wait else silent.wait(30)

    silent = threading.Event()
    thread = threading.Thread(target=close_streams)
    thread.start()
    site = make_site(LOOPBACK)
    interface = Interface(Purpose.QUERY, Transport.TCP, listener.getsockname()[1])
    root = Root((), resolver=(replace(site, servers=(replace(site.servers[0], interfaces=(interface,)),)),))
    with listener:
        with pytest.raises(Unreachable, match="closed the connection"):
            driver(root, "12345/x", [Transport.TCP])
        with pytest.raises(Unreachable, match="timed out"):
            driver(root, "12345/x", [Transport.TCP], timeout=0.2)
        silent.set()
        thread.join()


@drivers
def test_an_http_server_that_is_no_handle_server_is_reported(driver: Driver) -> None:
    listener = socket.create_server((LOOPBACK, 0))

    def answer() -> None:
        stream, _ = listener.accept()
        with stream:
            stream.recv(65_536)
            stream.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry")
            stream.recv(1)

    thread = threading.Thread(target=answer)
    thread.start()
    site = make_site(LOOPBACK)
    interface = Interface(Purpose.QUERY, Transport.HTTP, listener.getsockname()[1])
    root = Root((), resolver=(replace(site, servers=(replace(site.servers[0], interfaces=(interface,)),)),))
    with listener, pytest.raises(ProtocolError, match="does not have a native message"):
        driver(root, "12345/x", [Transport.HTTP])
    thread.join()


def test_concurrent_requests_share_a_socket_and_get_their_own_responses() -> None:
    handles = {f"12345/{number}": (Value.text(1, "URL", f"https://example.org/{number}"),) for number in range(100)}
    held: list[bytes] = []

    def reorder(packets: list[bytes]) -> list[bytes]:
        """Keep a response back until the next one was sent."""
        held.extend(packets)
        return [held.pop(0)] if len(held) > 1 else []

    async def ask(root: Root) -> list[Resolution]:
        async with AsyncResolver(root) as resolver:
            found = await asyncio.gather(*[resolver.resolve(handle) for handle in handles])
            assert len(resolver._transport._sockets) == 1
            return found

    with Listener(Host(dict(handles)), reorder).serving() as site:
        found = asyncio.run(ask(Root((), resolver=(site,))))
    assert [result.target for result in found] == [f"https://example.org/{number}" for number in range(100)]


def test_a_cancelled_resolution_leaves_nothing_behind() -> None:
    async def ask(root: Root) -> None:
        async with AsyncResolver(root) as resolver:
            task = asyncio.create_task(resolver.resolve("12345/x"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (shared,) = resolver._transport._sockets.values()
            assert shared.is_idle
            pending = asyncio.create_task(resolver.resolve("12345/x", timeout=10))
            await asyncio.sleep(0.05)
        with pytest.raises(ClientError):
            await pending

    with Listener(records(), lambda _: []).serving() as site:
        udp = replace(site.servers[0], interfaces=site.servers[0].interfaces[:1])
        asyncio.run(ask(Root((), resolver=(replace(site, servers=(udp,)),))))


def test_concurrent_resolutions_find_their_service_once() -> None:
    host = Host({})
    host.records |= {f"12345/{number}": (URL,) for number in range(50)}

    async def ask(root: Root) -> None:
        async with AsyncResolver(root) as resolver:
            first = asyncio.create_task(resolver.resolve("12345/0"))
            await asyncio.sleep(0)
            first.cancel()  # while it has the turn
            found = await asyncio.gather(*[resolver.resolve(f"12345/{number}") for number in range(50)])
            assert [result.target for result in found] == ["https://example.org/1"] * 50
            lost = await asyncio.gather(*[resolver.resolve("888/x") for _ in range(5)], return_exceptions=True)
            assert [type(error) for error in lost] == [NotFound] * 5
            assert resolver._transport._turns == {}

    with Listener(host).serving() as site:
        host.records["0.NA/12345"] = (site_value(site),)
        asyncio.run(ask(Root((site,))))
    assert host.asked.count("0.NA/12345") <= 2  # that of the first one, which was cancelled, and one for all others
    assert host.asked.count("0.NA/888") == 1


def test_resolutions_that_wait_for_the_same_service_end_at_their_timeout() -> None:
    async def ask(root: Root) -> list[object]:
        async with AsyncResolver(root, transports=[Transport.UDP]) as resolver:
            waiting = [resolver.resolve("12345/x", timeout=0.2) for _ in range(3)]
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert resolver._transport._turns == {}
            return [type(error) for error in found]

    with Listener(records(), lambda _: []).serving() as site:
        assert asyncio.run(ask(Root((site,)))) == [Unreachable] * 3


def test_a_cleared_cache_is_filled_again() -> None:
    host = records()
    with Listener(host).serving() as site:
        resolver = Resolver(Root((), resolver=(site,)))
        for _ in range(3):
            assert resolver.resolve("12345/x").select("URL") == (URL,)
        resolver.clear_cache()
        assert resolver.resolve("12345/x").select("DESC") == ()
    assert host.asked == ["12345/x"] * 2


def look_up(domain: str) -> Steps[tuple[str, ...]]:
    found: tuple[str, ...] = yield Lookup(domain, 5.0)
    return found


def test_both_drivers_look_up_domains() -> None:
    async def ask() -> tuple[str, ...]:
        return await AsyncTransport().run(look_up("localhost"))

    assert LOOPBACK in run(look_up("localhost"))
    assert set(asyncio.run(ask())) == set(run(look_up("localhost")))
    with pytest.raises(OSError, match="is not a domain"):
        run(look_up("a..b"))


def test_a_look_up_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, find = threading.Event(), socket.getaddrinfo

    def wait(*arguments: Any, flags: int = 0, **options: Any) -> object:
        if not flags & socket.AI_NUMERICHOST:
            ended.wait(30)
        return find(*arguments, **{"flags": flags, **options})

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(connections, "_free", threading.BoundedSemaphore(2))
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError, match="look-up of localhost"):
                connections.look_up("localhost", 0.01)
            with pytest.raises(TimeoutError, match="look-up of localhost"):
                asyncio.run(connections.look_up_async("localhost", 0.01))
        with NativeClient("localhost", 1, timeout=0.01) as client, pytest.raises(Unreachable, match="look-up"):
            client.site()
    finally:
        ended.set()
    assert LOOPBACK in connections.look_up("localhost", 30), "a thread has ended, and another look-up can begin"
    for thread in threading.enumerate():
        if thread.name == "perseid-lookup":
            thread.join(30)  # further tests watch what is looked up
            assert not thread.is_alive()


def test_idle_sockets_are_closed_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.client.transport._MAX_SOCKETS", 2)

    async def ask() -> int:
        transport = AsyncTransport()
        for port in (1, 2, 3, 4):
            transport._socket(Address(Transport.UDP, LOOPBACK, port))
        opened = len(transport._sockets)
        transport.close()
        return opened

    assert asyncio.run(ask()) == 2


def test_nothing_outside_the_machine_is_contacted() -> None:
    contacted: list[object] = []
    active = True
    others = set(threading.enumerate()) - {threading.current_thread()}  # a look-up of another test may still run

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if (
            active
            and threading.current_thread() not in others
            and event in ("socket.connect", "socket.sendto", "socket.getaddrinfo")
        ):
            contacted.append(arguments[1] if event != "socket.getaddrinfo" else arguments[0])

    sys.addaudithook(audit)
    try:
        with Listener(records()).serving() as site:
            root = Root((), resolver=(site,))
            for driver in (blocking, asynchronous):
                driver(root, "12345/x", [Transport.UDP, Transport.TCP])
                driver(root, "12345/x", [Transport.TCP])
            with pytest.raises(ClientError, match="no root is configured"):
                Resolver().resolve("10.1000/1")
    finally:
        active = False
    hosts = {peer[0] if isinstance(peer, tuple) else peer for peer in contacted}
    assert hosts == {LOOPBACK}


def test_an_exchange_reads_until_its_last_message() -> None:
    receiver = StreamReceiver(lambda frame: len(frame.payload) == 2)
    envelope = bytes((2, 11, 2, 11)) + bytes(12)
    assert not receiver(envelope + (1).to_bytes(4, "big") + b"a")
    assert receiver(envelope + (2).to_bytes(4, "big") + b"bc")
    assert [frame.payload for frame in receiver.frames] == [b"a", b"bc"]
    assert Exchange(Address(Transport.TCP, "::1", 1), (), receiver, 1.0).address.__str__() == "tcp://[::1]:1"

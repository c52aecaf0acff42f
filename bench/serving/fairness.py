"""What other clients get while a few addresses send as many requests as they can.

    python -m bench.serving.fairness [--addresses N] [--connections N] [--seconds S] [--native]

Connections from a few addresses send pipelined requests without a pause, over HTTP or the native protocol. Meanwhile
an HTTP client from another address sends one request after the other: with and without `Connection: close`, and for a
page that needs the normal path. It prints the responses by status and the waiting times.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from perseid.wire.codes import DEFAULT_FLAGS, OpFlag
from tests.server.installations import copy_to
from tests.server.native.resolution_states import RequestFields
from tests.server.running import Address, serving

PIPELINED: Final = 64
"""Requests that a connection sends at once."""
NAME: Final = b"12345/n7"
FLOODS: Final = (
    (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % NAME * PIPELINED, b"HTTP/1.1 "),
    (RequestFields(NAME, flags=int(DEFAULT_FLAGS | OpFlag.KEEP_CONNECTION)).to_bytes() * PIPELINED, NAME),
)
"""What a connection of the flood sends over HTTP, and over the native protocol, and what is once in each response."""
KEPT: Final = b"GET /12345/n8 HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSED: Final = b"GET /12345/n8 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PAGE: Final = b"GET /12345/n8?noredirect HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n"


async def _flood(address: Address, host: str, end: float, answered: Counter[str], requests: bytes, mark: bytes) -> None:
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
            while time.monotonic() < end:
                writer.write(requests)
                data = await asyncio.wait_for(reader.read(1 << 18), 10)
                if not data:
                    break
                answered["flood 503" if b" 503 " in data else "flood"] += data.count(mark)
            writer.close()
        except (OSError, TimeoutError):
            await asyncio.sleep(0.05)


async def _ask(address: Address, request: bytes) -> int:
    """Send a request on a new connection; return the status."""
    reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.99", 0))
    try:
        writer.write(request)
        return int((await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).split()[1])
    finally:
        writer.close()


async def _measure(name: str, ask: Callable[[], Awaitable[int]], end: float) -> None:
    statuses: Counter[object] = Counter()
    waits = []
    while time.monotonic() < end:
        before = time.monotonic()
        try:
            statuses[await ask()] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            statuses[type(error).__name__] += 1
        waits.append((time.monotonic() - before) * 1e3)
        await asyncio.sleep(0.01)
    waits.sort()
    median, late = statistics.median(waits), waits[int(len(waits) * 0.99)]
    print(f"{name:8} {dict(statuses)}, p50 {median:.1f} ms, p99 {late:.1f} ms", flush=True)


def _flood_all(address: Address, addresses: int, connections: int, seconds: float, what: tuple[bytes, bytes]) -> None:
    """Flood in a process of its own, so that the other client does not wait for it."""
    end, answered = time.monotonic() + seconds, Counter[str]()

    async def run() -> None:
        hosts = [f"127.0.0.{2 + number % addresses}" for number in range(connections)]
        await asyncio.gather(*[_flood(address, host, end, answered, *what) for host in hosts])

    asyncio.run(run())
    print({kind: round(number / seconds) for kind, number in answered.items()}, "a second", flush=True)


async def _run(address: Address, seconds: float) -> None:
    end = time.monotonic() + seconds
    requests = {"kept": KEPT, "closed": CLOSED, "page": PAGE}
    await asyncio.gather(*[_measure(name, partial(_ask, address, request), end) for name, request in requests.items()])


def main() -> None:
    """Measure with and without the flood."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--addresses", type=int, default=8)
    parser.add_argument("--connections", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--native", action="store_true", help="flood over the native protocol")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="perseid-bench-") as folder,
        serving(copy_to(Path(folder)), PERSEID_LIMITS_EXEMPT_NETWORKS="[]") as server,
    ):
        for connections in (0, options.connections):
            print(f"{connections} connections from {options.addresses} addresses:", flush=True)
            address = server.native if options.native else server.http
            arguments = (address, options.addresses, connections, options.seconds + 2, FLOODS[options.native])
            flood = multiprocessing.get_context("spawn").Process(target=_flood_all, args=arguments)
            flood.start()
            time.sleep(1.5)
            asyncio.run(_run(server.http, options.seconds))
            flood.join()


if __name__ == "__main__":
    main()

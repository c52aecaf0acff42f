"""Speed of the client: `python -m bench.serving.client [--records N] [--seconds S] [--creates C]`.

`perseid serve` serves an installation of N records with one worker. A resolver of this process resolves random handles:
one after the other, 64 at a time in an event loop, certified, and from its cache. A native client then creates handles
in one session. Client and server share the machine. The result is the number of resolutions and creates a second, and
the CPU time of the client for one.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled, make
from perseid.client import native_operations as operations
from perseid.client.errors import ClientError
from perseid.client.native import NativeClient
from perseid.client.resolution import AsyncResolver, Resolver
from perseid.client.roots import Root
from perseid.records.site import Interface, Purpose, Site, Transport
from perseid.server.benchmark.installation import FORMAT, three_values
from tests.server.running import Serving, serving

CONCURRENT: Final = 64
"""Resolutions at a time in the event loop."""
SETTINGS: Final = {
    "PERSEID_LOG_ACCESS": "false",
    "PERSEID_LIMITS_UDP_OCTETS": "0",
    "PERSEID_LIMITS_UDP_OCTETS_IN_ALL": "0",
}

_chance = random.Random(7)


def root_of(directory: Path, server: Serving) -> Root:
    """The server as a root, with its ports."""
    site = Site.from_file((directory / "siteinfo.bin").read_bytes())
    interfaces = tuple(
        Interface(Purpose.QUERY, transport, server.native[1]) for transport in (Transport.UDP, Transport.TCP)
    )
    return Root((replace(site, servers=(replace(site.servers[0], interfaces=interfaces),)),), "bench")


class Bench:
    """Resolves random handles of one server for some seconds."""

    def __init__(self, root: Root, records: int, seconds: float) -> None:
        self._root = root
        self._records = records
        self._seconds = seconds

    def _handle(self) -> str:
        return FORMAT % _chance.randrange(self._records)

    def blocking(self, *, certified: bool = False) -> int:
        """One after the other."""
        resolver = Resolver(self._root)
        end, count = time.perf_counter() + self._seconds, 0
        while count == 0 or time.perf_counter() < end:
            resolver.resolve(self._handle(), certified=certified)
            resolver._core.answers.clear()  # noqa: SLF001 - the sites stay known, the records do not
            count += 1
        return count

    def cached(self) -> int:
        """The same record again and again."""
        resolver, handle = Resolver(self._root), self._handle()
        end, count = time.perf_counter() + self._seconds, 0
        while count == 0 or time.perf_counter() < end:
            resolver.resolve(handle)
            count += 1
        return count

    def concurrent(self) -> int:
        """Many at a time in an event loop."""
        return asyncio.run(self._concurrent())

    async def _concurrent(self) -> int:
        counts: list[int] = []
        async with AsyncResolver(self._root) as resolver:
            await resolver.resolve(self._handle())
            end = time.perf_counter() + self._seconds

            async def work() -> None:
                count = 0
                while count == 0 or time.perf_counter() < end:
                    await resolver.resolve(self._handle())
                    resolver._core.answers.clear()  # noqa: SLF001 - as above
                    count += 1
                counts.append(count)

            work_all: list[Coroutine[None, None, None]] = [work() for _ in range(CONCURRENT)]
            await asyncio.gather(*work_all)
        return sum(counts)


def create_many(filled: Filled, server: Serving, count: int) -> int:
    """Create handles in one session, many at a time."""
    identity, key = filled.proof("secret")
    values = three_values("new")
    with NativeClient(*server.native, identity=identity, key=key) as client:
        wanted = (operations.create(FORMAT % (filled.handles + number), values) for number in range(count))
        failed = [result for result in client.do_many(wanted) if isinstance(result, ClientError)]
    if failed:
        raise failed[0]
    return count


def measure(name: str, run: Callable[[], int]) -> None:
    """Print the figures of one way to resolve."""
    began, cpu = time.perf_counter(), time.process_time()
    count = run()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"  {name:<34}{count / seconds:10,.0f} a second  {cpu / count * 1e6:8.1f} µs CPU of the client", flush=True)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print how fast the client resolves.")
    parser.add_argument("--records", type=int, default=10_000, help="number of records; default 10000")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds for each measurement; default 3")
    parser.add_argument("--creates", type=int, default=5_000, help="number of creates; default 5000")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perseid-client-") as folder:
        filled = make(Path(folder, "installation"), options.records)
        directory = filled.directory
        with serving(directory, **SETTINGS) as server:
            bench = Bench(root_of(directory, server), options.records, options.seconds)
            measure("one after the other", bench.blocking)
            measure("one after the other, certified", lambda: bench.blocking(certified=True))
            measure(f"{CONCURRENT} at a time", bench.concurrent)
            measure("from the cache", bench.cached)
            measure("creates in one session", lambda: create_many(filled, server, options.creates))


if __name__ == "__main__":
    main()

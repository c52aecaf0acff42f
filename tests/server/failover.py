"""Fail-over with real PostgreSQL servers: `python -m tests.server.failover --rounds 50 [--seed N]`.

Two nodes share a database with a synchronous standby. Clients mint at both nodes and resolve all the time. In each
round the primary is killed, the standby promoted, and another standby made; the nodes must follow by themselves. No
acknowledged identifier may be missing, no request executed twice, no response wrong, and the tree of the ledger must
contain the tree of every round before.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import make_url

from perseid.records.record import Value
from perseid.registry.installation.installation import Installation
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, default_flags
from tests.cli.installation import call
from tests.postgres import USER, Cluster
from tests.server.native.native_client import NativeClient, NoAnswer, Via
from tests.server.running import Address, Serving, serving

PREFIX: Final = "12345"
PATIENCE: Final = 120.0
"""Seconds for anything to happen: much more than a loaded machine needs."""

MAX_RECOVERY: Final = 10.0
"""Seconds after a promotion until a change is acknowledged again."""


def perseid(*words: object, environ: Mapping[str, str] | None = None) -> str:
    """Run a command; return its output."""
    done = call(*map(str, words), environ=environ)
    assert done.code == 0, done
    return done.out


class Pair:
    """A PostgreSQL server and its standby, each at a place of its own."""

    def __init__(self, folder: Path, *, synchronous: bool = True) -> None:
        self._synchronous = synchronous
        self._places = [folder / "a", folder / "b"]
        self.primary = Cluster(folder=self._places[0], fsync=False)
        self.primary.start()
        self.name = str(make_url(self.primary.database()).database)
        self.standby = self._add_standby()

    @property
    def url(self) -> str:
        """The database at either place."""
        return f"postgresql://{USER}@/{self.name}?host={','.join(map(str, self._places))}"

    def stop(self) -> None:
        for each in (self.primary, self.standby):
            each.stop()

    def fail_over(self) -> float:
        """Kill the primary and promote the standby; return the time of the promotion."""
        self.primary.kill()
        if self._synchronous:  # of the copied settings: it has no standby of its own yet
            self.standby.execute("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
        self.standby.execute("SELECT pg_promote()")
        promoted = time.monotonic()
        self.primary = self.standby
        return promoted

    def add_standby(self) -> None:
        """Make another standby where the killed primary was."""
        self.standby = self._add_standby()

    def disconnect_standby(self) -> None:
        """Keep the standby from receiving what is written from now on."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        wait_until(lambda: not self.primary.execute("SELECT 1 FROM pg_stat_replication"), "the standby is disconnected")

    def _add_standby(self) -> Cluster:
        place = next(each for each in self._places if each != self.primary.folder)
        standby = Cluster(folder=place, primary=self.primary, fsync=False)
        standby.start()
        state = "sync" if self._synchronous else "async"
        if self._synchronous:
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        found = f"SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        wait_until(lambda: bool(self.primary.execute(found)), "the standby follows")
        return standby


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(psycopg.OperationalError):
            if condition():
                return
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)


def request(address: Address, method: str, path: str, body: object = None, token: str = "") -> tuple[int, bytes]:
    """Send one request; return the status and the body."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@dataclass
class Clients:
    """Clients that mint at every node, and clients that resolve."""

    nodes: Sequence[Serving]
    token: str
    handle: str
    """Resolved all the time."""
    minted: dict[str, str] = field(default_factory=dict)
    """Acknowledged handles by URL."""
    refused: int = 0
    resolved: int = 0
    problems: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run them while the block runs."""
        threads = [
            threading.Thread(target=work, args=(number, node))
            for number, node in enumerate(self.nodes)
            for work in (self._mint, self._resolve)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.problems, self.problems[:5]

    def wait_for_changes(self, count: int) -> None:
        """Wait until this many more changes are acknowledged."""
        before = len(self.minted)
        wait_until(lambda: self.problems or len(self.minted) >= before + count, "changes are acknowledged")
        assert not self.problems, self.problems[:5]

    def _mint(self, number: int, node: Serving) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            url = f"https://example.org/{number}/{count}"
            body = {"prefix": PREFIX, "values": [{"type": "URL", "data": url}]}
            try:
                status, answer = request(node.http, "POST", "/api/v1/mint", body, self.token)
            except OSError as error:
                self.problems.append(f"mint: {error!r}")
                continue
            if status == 201:
                self.minted[url] = json.loads(answer)["handles"][0]
            elif status == 503:
                self.refused += 1
                time.sleep(0.05)
            else:
                self.problems.append(f"mint: {status} {answer[:200]!r}")

    def _resolve(self, _: int, node: Serving) -> None:
        """Over HTTP and UDP; every other response is signed, by a worker and not by the compiled module."""
        plain = default_flags(OpCode.RESOLUTION)
        with NativeClient(node.native, Via.UDP) as client:
            for flags in cycle((plain, plain | OpFlag.CERTIFY)):
                if self._stop.is_set():
                    return
                try:
                    status, answer = request(node.http, "GET", f"/api/handles/{self.handle}?type=URL")
                    response = client.resolve(self.handle, flags=flags)
                except (OSError, NoAnswer) as error:
                    self.problems.append(f"resolve: {error!r}")
                    continue
                for code, body in (status, answer), (response.code, response.message.body):
                    if code not in (200, ResponseCode.SUCCESS) or b"https://example.org/first" not in body:
                        self.problems.append(f"resolve: {code} {body[:200]!r}")
                    self.resolved += 1
                time.sleep(0.01)


def make_nodes(folder: Path, pair: Pair, count: int = 2) -> list[Path]:
    """Create an installation in the database, and other nodes of it."""
    first = folder / "node-0"
    perseid("init", first, "--prefix", PREFIX, "--database", pair.url)
    perseid("create", f"{PREFIX}/first", "--url", "https://example.org/first", "-d", first)
    nodes = [first, *(folder / f"node-{number}" for number in range(1, count))]
    secret = folder / "passphrase"
    secret.write_text("of nodes in tests\n")
    secret.chmod(0o600)
    if count > 1:
        perseid("node", "export", folder / "file", "--passphrase-file", secret, "-d", first)
    for node in nodes[1:]:
        perseid("node", "join", folder / "file", "--passphrase-file", secret, "-d", node)
    return nodes


def token_for(node: Path) -> str:
    """Create a token that may mint."""
    options = ("--scope", "mint", "--namespace", PREFIX, "--expires-in", "1d")
    return perseid("token", "create", "-d", node, *options).strip()


def tree(node: Path) -> tuple[int, bytes]:
    """The size and the root of the tree."""
    with Installation.open(node, writable=False) as installation, installation.log.open_reader() as reader:
        return reader.size, reader.root(reader.size)


def check(node: Path, minted: dict[str, str], earlier: Sequence[tuple[int, bytes]]) -> None:
    """Check that nothing is missing, doubled or changed."""
    with Installation.open(node, writable=False) as installation, installation.log.open_reader() as reader:
        found: dict[str, list[str]] = {}
        for entry in reader.log(0):
            for value in [Value.from_bytes(content, 1) for content in entry.contents()]:
                if value.type == "URL":
                    found.setdefault(value.data.decode(), []).append(entry.handle)
        lost = {url: handle for url, handle in minted.items() if found.get(url) != [handle]}
        assert not lost, f"acknowledged, but missing or doubled: {list(lost.items())[:5]}"
        doubled = {url: handles for url, handles in found.items() if len(handles) > 1}
        assert not doubled, f"executed twice: {list(doubled.items())[:5]}"
        for size, root in earlier:
            assert reader.root(size) == root, f"the ledger was forked before entry {size}"
    perseid("verify", "--all", "-d", node)


def run(rounds: int, seed: int) -> list[float]:
    """Run rounds of fail-over; return the seconds from each promotion until a change was acknowledged."""
    chance = random.Random(seed)
    recoveries: list[float] = []
    with tempfile.TemporaryDirectory(prefix="perseid-fo-", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        pair = Pair(folder)
        stack.callback(pair.stop)
        directories = make_nodes(folder, pair)
        token = token_for(directories[0])
        nodes = [stack.enter_context(serving(each, PERSEID_LOG_ACCESS="false")) for each in directories]
        clients = Clients(nodes, token, f"{PREFIX}/first")
        earlier: list[tuple[int, bytes]] = []
        with clients.running():
            for number in range(rounds):
                clients.wait_for_changes(5)
                time.sleep(chance.uniform(0, 0.5))
                earlier.append(tree(directories[0]))
                promoted = pair.fail_over()
                clients.wait_for_changes(1)
                recoveries.append(time.monotonic() - promoted)
                pair.add_standby()
                if rounds > 1:
                    print(f"round {number + 1}: {len(clients.minted):,} minted, {recoveries[-1]:.2f} s", flush=True)
        check(directories[0], clients.minted, earlier)
    print(
        f"{rounds} fail-overs: {len(clients.minted):,} acknowledged, 0 lost or doubled; {clients.refused:,} refused; "
        f"{clients.resolved:,} responses, none wrong; acknowledged {max(recoveries):.2f} s after a promotion at most"
    )
    return recoveries


def main() -> None:
    """Parse the options and run; exit with 1 if changes were not accepted soon enough."""
    parser = argparse.ArgumentParser(description="Kill and replace the database server of two nodes.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if max(run(options.rounds, options.seed)) > MAX_RECOVERY:
        sys.exit(f"a change was acknowledged more than {MAX_RECOVERY:.0f} s after a promotion")


if __name__ == "__main__":
    main()

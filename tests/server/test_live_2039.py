"""A server in the year 2039, beyond 31 bits of seconds: everything works as usual."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from perseid.records.record import Value
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import MESSAGE_LIFETIME
from perseid.wire.requests import Resolve
from perseid.wire.responses import ResolutionResult
from tests.server.live_servers import WHO, client_of, eventually, indexes, live_installation
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.native_servers import BY_ADMINS, HIDDEN, PREFIX, STD, text_of
from tests.server.other_clocks import OtherClock
from tests.server.processes.test_processes import children

BOTH = pytest.mark.parametrize("via", [Via.UDP, Via.TCP], ids=lambda via: via.value)
LATER: Final = 2_190_000_000
"""In May 2039; 2³¹ was in January 2038."""
URL = Value.text(1, "URL", "https://example.org/2039")
_TIMESTAMP = 4  # bytes after the beginning of a value


@dataclass(frozen=True)
class Late:
    """A server in 2039."""

    server: Serving
    directory: Path
    clock: OtherClock

    def client(self, via: Via, identity: str | None = None) -> NativeClient:
        return client_of(self.server, via, identity, clock=self.clock.now)

    def run(self, *words: str) -> Any:
        """What a command says, on the same machine."""
        command = [sys.executable, "-c", "from perseid.cli import main; main()", *words, "-d", str(self.directory)]
        environment = os.environ | self.clock.environment
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment, check=True)
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    folder = tmp_path_factory.mktemp("live-2039")
    clock = OtherClock.make(folder / "clock")
    clock.show(LATER)
    directory = live_installation(folder)
    with serving(directory, "--accept-clock", **clock.environment) as server:
        yield Late(server, directory, clock)


@BOTH
@pytest.mark.parametrize("in_session", [False, True], ids=["alone", "session"])
@pytest.mark.parametrize("identity", WHO)
def test_records_are_created_and_resolved(late: Late, via: Via, identity: str, in_session: bool) -> None:
    name = f"{PREFIX}/in-2039-{via.value}-{identity}-{in_session}"
    with late.client(via, identity) as client:
        if in_session:
            client.begin_session()
        before = int(late.clock.now())
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS
        assert client.add(name, Value(5, "NOTE", b"hidden", permissions=HIDDEN)).code is ResponseCode.SUCCESS
        assert indexes(client.resolve(name, flags=DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY)) == [1, 5, 100]
        after = int(late.clock.now())
        client.end_session()
    for other in (Via.UDP, Via.TCP):
        with late.client(other) as client:
            found = client.resolve(name, flags=DEFAULT_FLAGS | OpFlag.CERTIFY)
            assert isinstance(found.body, ResolutionResult)
            assert [before <= value.timestamp <= after for value in found.body.values] == [True, True]
            assert found.is_certified


@BOTH
def test_times_are_written_modulo_two_to_the_32_and_read_as_the_nearest_instant(late: Late, via: Via) -> None:
    name = f"{PREFIX}/octets-{via.value}"
    with late.client(Via.TCP, "rsa") as client:
        before = int(late.clock.now())
        assert client.create(name, (URL,)).code is ResponseCode.SUCCESS
    with late.client(via) as client:
        (frame,) = client.exchange(client.request(OpCode.RESOLUTION, Resolve(name.encode())))
        after = int(late.clock.now())
        expires = int.from_bytes(frame.payload[16:20], "big")
        assert before + MESSAGE_LIFETIME <= expires <= after + MESSAGE_LIFETIME
        assert expires >= 1 << 31, "as a signed number it would be in 1903"
        at = 24 + 4 + len(name) + 4 + _TIMESTAMP
        assert before <= int.from_bytes(frame.payload[at : at + 4], "big") <= after
        # What was made thirteen years before is still of its day.
        old = client.resolve(STD).body
        assert isinstance(old, ResolutionResult)
        assert {value.timestamp for value in old.values if value.timestamp > 1 << 31} == set()
        assert all(before - (1 << 31) < value.timestamp < before for value in old.values)


def test_clock_is_accepted_once(late: Late) -> None:
    """The worker that is started again gets the clock as any other."""
    (first,) = children(late.server, "worker")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: children(late.server, "worker") not in ([], [first]), "another process")
    eventually(lambda: late.server.errors.count("ready: ") == 2, "the worker")


def test_history_has_correct_dates(late: Late) -> None:
    name = f"{PREFIX}/history"
    with late.client(Via.TCP, "secret") as client:
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS
        assert client.modify(name, Value.text(1, "URL", "https://example.org/newer")).code is ResponseCode.SUCCESS
    told = late.run("history", name)
    assert len(told["versions"]) == 2
    assert all("2039-" in json.dumps(version) for version in told["versions"])
    assert "2039-" not in json.dumps(late.run("history", STD))


def test_sessions_continue_and_end(late: Late) -> None:
    with late.client(Via.TCP, "dsa") as client:
        client.begin_session()
        for number in range(3):
            assert client.create(f"{PREFIX}/session-{number}", (URL,)).code is ResponseCode.SUCCESS
        ended = client.end_session()
        assert ended is not None
        assert ended.code is ResponseCode.SUCCESS


def test_unconfirmed_clock_refuses_changes_but_resolves(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After a pause of thirteen years the clock is probably wrong: an operator must confirm it."""
    clock = OtherClock.make(tmp_path_factory.mktemp("unaccepted") / "clock")
    clock.show(LATER)
    with serving(live_installation(tmp_path), **clock.environment) as server:
        with client_of(server, Via.UDP, clock=clock.now) as client:
            assert client.resolve(STD).code is ResponseCode.SUCCESS
        with client_of(server, Via.TCP, "secret", clock=clock.now) as client:
            refused = client.create(f"{PREFIX}/unaccepted", (URL,))
            assert refused.code is ResponseCode.SERVER_BACKUP
            assert "clock of the server is wrong" in text_of(refused)

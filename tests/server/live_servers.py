"""A running server for tests of whole conversations.

It has the state of the recorded exchanges, with new administrators who have RSA, DSA and secret keys; also a prefix
with many handles, a prefix that refers to another service, and records for what is not recorded.
"""

import atexit
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.private_keys import PrivateKey
from perseid.records.record import DEFAULT_PERMISSIONS, Permission, Value, ValueRef
from perseid.registry.commands.records import Create, Home
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation, create
from perseid.registry.installation.setup import create_root
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag
from perseid.wire.fragments import packet_count
from perseid.wire.message import Envelope
from perseid.wire.requests import HandleRequest
from perseid.wire.responses import ResolutionResult
from tests.server.native.native_client import Address, NativeClient, Serving, Via
from tests.server.native.native_servers import ADMIN, BY_ADMINS, PREFIX, RECORDS, SERVER_ADMINS, SITE
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET

WHO: Final[dict[str, tuple[str, PrivateKey | bytes]]] = {
    "rsa": (f"300:{ADMIN}", RSA_KEY),
    "secret": (f"301:{ADMIN}", SECRET),
    "dsa": (f"302:{ADMIN}", DSA_KEY),
}
"""The administrators, by their kind of key."""

MANY: Final = "20.500.77777"
"""A prefix with so many names that a list of them takes three messages."""
NAMES: Final = tuple(f"{MANY}/name-{number:03}" for number in range(120))

REFERRING: Final = "20.7"
"""A prefix whose derived prefixes are with another service."""

FOREIGN: Final = f"{PREFIX}/foreign"
"""A record that is administered by somebody whose key is not held here."""
STRANGER: Final = "300:20.500.44444/keeper"

WALL: Final = f"{PREFIX}/wall"
"""A record with a value that everybody may write."""

UNHOMED: Final = ("20.500.11", "20.500.22")
"""Prefixes that are not homed here at first, though their prefix handles are held."""

PATIENCE: Final = 30.0
"""Seconds until something that should come has not come."""
ATTEMPTS: Final = 5
"""How often a request is sent over UDP in that time: a machine that is busy with other things loses datagrams."""

OPERATOR: Final = LocalIdentity("tests")


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perseid-live-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    directory = folder / "made"
    create(directory, settings={"administrators.server": [str(one) for one in SERVER_ADMINS]}, environ={})
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        create_root(registry, OPERATOR, "cli")
        for prefix in (ADMIN, f"0.NA/{MANY}"):
            registry.do(Home(prefix), OPERATOR, "cli")
        elsewhere = Value(101, "HS_ADMIN", Admin(ValueRef.parse(STRANGER)).to_bytes())
        url = Value.text(1, "URL", "https://example.org/")
        writable = replace(url, permissions=DEFAULT_PERMISSIONS | Permission.PUBLIC_WRITE)
        records = {
            **RECORDS,
            f"0.NA/{MANY}": (BY_ADMINS,),
            f"0.NA/{REFERRING}": (Value(3, "HS_SITE.PREFIX", SITE.to_bytes()), BY_ADMINS),
            **{f"0.NA/{prefix}": (BY_ADMINS,) for prefix in UNHOMED},
            FOREIGN: (url, elsewhere),
            WALL: (writable, BY_ADMINS),
        }
        for name, values in records.items():
            registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")
        drafts = [Draft(Action.CREATE, State.NORMAL, name, "import", "local:tests") for name in NAMES]
        installation.ledger.append(*map(Append, drafts))
    return directory


def live_installation(folder: Path) -> Path:
    """Copy the installation to a new directory."""
    target = folder / "installation"
    shutil.copytree(_template(), target)
    target.chmod(0o700)
    return target


def client_of(server: Serving, via: Via = Via.TCP, identity: str | None = None, **settings: object) -> NativeClient:
    """A client, with a key if it is one of the administrators."""
    client = NativeClient(server.native, via, timeout=PATIENCE, **settings)  # type: ignore[arg-type]
    if identity is not None:
        client.act_as(*WHO[identity])
    return client


@contextmanager
def reading_of(directory: Path) -> Iterator[LogReader]:
    """Read the ledger of a server."""
    with (
        Installation.open(directory, writable=False, environ={}) as installation,
        installation.log.open_reader() as found,
    ):
        yield found


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)


def entries(directory: Path) -> int:
    """The number of entries in the ledger of a server."""
    with (
        Installation.open(directory, writable=False, environ={}) as installation,
        installation.log.open_reader() as reader,
    ):
        return reader.size


def indexes(answer: VerifiedResponse) -> list[int]:
    """The indexes of the values in a response."""
    assert isinstance(answer.body, ResolutionResult), (answer.code, answer.body)
    return [value.index for value in answer.body.values]


def over_udp(address: Address, packets: list[bytes]) -> list[bytes]:
    """Send datagrams from a new port and return the responses in order, with the retries of clients."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(address)
        sending.settimeout(PATIENCE / ATTEMPTS)
        for _ in range(ATTEMPTS):
            for packet in packets:
                sending.send(packet)
            found: dict[int, bytes] = {}
            try:
                while True:
                    packet = sending.recv(65_536)
                    envelope = Envelope.from_bytes(packet)
                    found[envelope.sequence] = packet
                    if len(found) == packet_count(envelope.length):
                        return [found[number] for number in sorted(found)]
            except TimeoutError:
                continue
    raise AssertionError(f"no answer over UDP in {ATTEMPTS} attempts")


def answers_before_a_signed_one(address: Address, datagrams: list[bytes]) -> list[bytes]:
    """Send datagrams and then a request, all from one port; what comes before the answer to that request.

    It shows silence without waiting for it: datagrams of one port are taken in their order, and the answer has to be
    signed, which control does last. So what is answered to the others comes before.
    """
    with NativeClient(address) as client, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        request = client.request(OpCode.GET_SITE_INFO, HandleRequest(), flags=OpFlag.CERTIFY)
        sending.connect(address)
        sending.settimeout(PATIENCE)
        for datagram in (*datagrams, request.to_bytes()):
            sending.send(datagram)
        found = []
        while Envelope.from_bytes(packet := sending.recv(65_536)).request_id != request.envelope.request_id:
            found.append(packet)
        return found

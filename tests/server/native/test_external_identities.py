"""Identities whose keys are on other servers: proved by certified resolution, or by the server that has the secret."""

import asyncio
import ipaddress
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.client.attempts import AddressFilter
from perseid.client.roots import Root
from perseid.client.transport import Exchange, Steps
from perseid.ledger.log.clock import SECOND
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.records.site import Interface, Purpose, Site, Transport
from perseid.registry.commands.records import Create, Home, Modify, Remove
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.server.native import external as external_module
from perseid.server.native.authentication import EXTERNAL_LIFE
from perseid.server.native.external import ExternalIdentities, Unverifiable, make_address_filter
from perseid.server.native.server import NativeServer
from perseid.server.native.work import NativeResponse, SecretGuess, own_secret_id
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.message import Envelope
from perseid.wire.requests import ValuesRequest
from perseid.wire.sessions import Identity
from tests.registry.registries import OPERATOR
from tests.server.native.native_servers import (
    HIDDEN,
    NOW,
    PREFIX,
    SITE,
    Clock,
    Visitor,
    make_server,
    receive,
    recorded_registry,
    text_of,
)
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY
from tests.wire.recorded import fed

OTHER = "20.500.77"
"""A prefix of the other server."""
PERSON = f"{OTHER}/ann"
PREFIX_PERSON = f"0.NA/{OTHER}"
RECORD = f"{PREFIX}/shared"
URL = Value.text(1, "URL", "https://example.org/")
NEW = Value.text(2, "URL", "https://example.org/new")
PROOFS: dict[int, PrivateKey | bytes] = {300: RSA_KEY, 301: SECRET, 302: DSA_KEY}


class LoopVisitor(Visitor):
    """A client whose requests are handled in an event loop: the server waits for others."""

    def carry(self, frame: Frame) -> list[Frame]:
        async def collect() -> list[NativeResponse]:
            served = self.native_server.handle(frame, self.source, self.now, self.transport)
            return [response async for response in served]

        served = asyncio.run(collect())
        self.served += served
        return fed(FrameReader(), b"".join(one.reply.to_stream() for one in served))


class World:
    """This server, another one that is the root, and the messages between them."""

    clock: Clock

    def __init__(self, here: Registry, there: Registry, allows: AddressFilter | None = None) -> None:
        self.here, self.there = here, there
        self.other = NativeServer(there, make_server(seed=5), OTHER_SITE)
        self.asked: list[tuple[str, int]] = []
        self.change: Callable[[bytes], bytes] = lambda reply: reply
        allows = allows or make_address_filter(["127.0.0.0/8"])
        self.external = ExternalIdentities(lambda: Root((OTHER_SITE,)), allows, self.run)
        self.visitor = LoopVisitor(NativeServer(here, make_server(), SITE, external=self.external))

    async def run(self, steps: Steps[Any]) -> Any:
        """Do steps with the other server."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Exchange):
                    self.asked.append((step.address.host, step.address.port))
                    self.answer(step)
                step = steps.send(None)
        except StopIteration as stop:
            return stop.value

    def answer(self, step: Exchange) -> None:
        raw = b"".join(step.data)
        frame = Frame(Envelope.from_bytes(raw), raw[20:])
        for response in receive(self.other, frame, "192.0.2.7", time.time(), step.address.transport):
            for packet in (
                [response.reply.to_stream()]
                if step.address.transport != Transport.UDP
                else (response.reply.to_packets())
            ):
                step.receive(self.change(packet))

    def add(
        self, person: str, index: int, proof: PrivateKey | bytes | None = None, name: str = RECORD
    ) -> tuple[Any, Any]:
        """Add a value to the record as that identity."""
        identity = Identity(person.encode(), index)
        request = self.visitor.request(OpCode.ADD_VALUE, ValuesRequest(name.encode(), (NEW,)))
        challenge = self.visitor.ask(request)
        assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
        answer = self.visitor.answer(challenge, request, identity, PROOFS[index] if proof is None else proof)
        response = self.visitor.ask(answer, about=request)
        return response.code, response


def site_at(host: str = "127.0.0.1", port: int = 2641, **other: Any) -> Site:
    server = SITE.servers[0]
    address = ipaddress.ip_address(host)
    packed = address.packed if address.version == 6 else bytes(12) + address.packed
    interfaces = tuple(
        Interface(Purpose.QUERY | Purpose.ADMIN, transport, port) for transport in (Transport.TCP, Transport.UDP)
    )
    return replace(SITE, servers=(replace(server, address=packed, interfaces=interfaces),), **other)


OTHER_SITE = site_at()


@pytest.fixture
def world() -> Iterator[World]:
    clock = Clock()
    clock.show(NOW)
    with recorded_registry(clock) as here, recorded_registry() as there:
        made = prepare_world(here, there)
        made.clock = clock
        yield made


def prepare_world(here: Registry, there: Registry, allows: AddressFilter | None = None) -> World:
    people = [ValueRef(index, person) for person in (PERSON, PREFIX_PERSON) for index in PROOFS]
    admins = [Value(100 + number, "HS_ADMIN", Admin(each).to_bytes()) for number, each in enumerate(people)]
    here.do(Create(Handle.parse(RECORD), (URL, *admins)), OPERATOR, "cli")
    keys = (
        Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes()),
        Value(301, "HS_SECKEY", SECRET, permissions=HIDDEN),
        Value(302, "HS_PUBKEY", DSA_KEY.public.to_bytes()),
    )
    for prefix in ("0.NA/0.NA", f"0.NA/{OTHER}"):
        there.do(Home(prefix), OPERATOR, "cli")
    there.do(Create(Handle.parse(PREFIX_PERSON), (Value(1, "HS_SITE", OTHER_SITE.to_bytes()), *keys)), OPERATOR, "cli")
    there.do(Create(Handle.parse(PERSON), keys), OPERATOR, "cli")
    return World(here, there, allows)


@pytest.mark.parametrize("person", [PERSON, PREFIX_PERSON])
@pytest.mark.parametrize("index", PROOFS)
def test_a_key_on_another_server_proves_an_identity(world: World, person: str, index: int) -> None:
    code, _ = world.add(person, index)
    assert code is ResponseCode.SUCCESS
    assert set(world.asked) == {("127.0.0.1", 2641)}


@pytest.mark.parametrize("person", [PERSON, PREFIX_PERSON])
@pytest.mark.parametrize(("index", "proof"), [(300, SERVER_KEY), (301, b"wrong"), (302, RSA_KEY)])
def test_a_wrong_proof_is_refused(world: World, person: str, index: int, proof: PrivateKey | bytes) -> None:
    code, _ = world.add(person, index, proof)
    assert code is ResponseCode.AUTHENTICATION_FAILED
    assert world.asked


def test_nobody_else_makes_this_server_ask_another_one(world: World) -> None:
    """Only identities that would have the permission are asked about."""
    for person in (f"{OTHER}/eve", "0.NA/20.500.66"):
        code, _ = world.add(person, 300)
        assert code is ResponseCode.INVALID_ADMIN
    assert not world.asked


def test_a_session_with_a_key_on_another_server_ends_after_a_while(world: World) -> None:
    visitor = world.visitor
    identity = Identity(PERSON.encode(), 300)
    session = visitor.begin_session(identity)

    def add(index: int) -> ResponseCode:
        body = ValuesRequest(RECORD.encode(), (replace(NEW, index=index),))
        request = visitor.request(OpCode.ADD_VALUE, body, session=session)
        challenge = visitor.ask(request, session)
        if challenge.code is not ResponseCode.AUTHENTICATION_NEEDED:
            return challenge.code
        return visitor.ask(visitor.answer(challenge, request, identity, RSA_KEY), session, about=request).code

    assert add(10) is ResponseCode.SUCCESS
    asked = len(world.asked)
    assert add(11) is ResponseCode.SUCCESS
    assert len(world.asked) == asked, "a proof is valid for the session"
    world.clock.run(EXTERNAL_LIFE * SECOND)
    assert add(12) is ResponseCode.SESSION_TIMEOUT


def test_a_removed_key_proves_nothing(world: World) -> None:
    assert world.add(PERSON, 300)[0] is ResponseCode.SUCCESS
    changed = Value(300, "HS_PUBKEY", SERVER_KEY.public.to_bytes())
    world.there.do(Modify(Handle.parse(PERSON), (changed,)), OPERATOR, "cli")
    assert world.add(PERSON, 300)[0] is ResponseCode.AUTHENTICATION_FAILED


def test_an_unsigned_or_changed_answer_proves_nothing_and_reveals_nothing(world: World) -> None:
    world.change = lambda reply: reply[:-1] + bytes([reply[-1] ^ 1])
    for index in PROOFS:
        code, response = world.add(PERSON, index)
        assert code is ResponseCode.SERVER_TOO_BUSY
        assert text_of(response) == Unverifiable.text
        served = world.visitor.served[-1]
        guess = SecretGuess(own_secret_id(PERSON), right=None) if index == 301 else None
        assert (served.guess, served.is_authentication_failure) == (guess, False), "it is not a wrong guess"


def test_missing_keys_are_wrong_guesses(world: World) -> None:
    world.there.do(Remove(Handle.parse(PERSON), (*PROOFS,)), OPERATOR, "cli")
    for index in PROOFS:
        assert world.add(PERSON, index)[0] is ResponseCode.AUTHENTICATION_FAILED
        assert world.visitor.served[-1].is_authentication_failure


def test_a_secret_on_another_server_needs_its_index(world: World) -> None:
    """That server says only that one of its secrets fits, and each may have other permissions."""
    handle, administrator = Handle.parse(f"{PREFIX}/any"), Admin(ValueRef(0, PERSON))
    world.here.do(Create(handle, (Value(100, "HS_ADMIN", administrator.to_bytes()),)), OPERATOR, "cli")
    code, response = world.add(PERSON, 0, SECRET, str(handle))
    assert code is ResponseCode.INVALID_CREDENTIAL
    assert "index" in text_of(response)
    assert not world.visitor.served[-1].is_authentication_failure
    assert world.add(PERSON, 0, RSA_KEY, str(handle))[0] is ResponseCode.SUCCESS


def test_too_many_at_once_are_told_to_retry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_module, "MAX_RUNNING", 0)
    assert world.add(PERSON, 300)[0] is ResponseCode.SERVER_TOO_BUSY
    assert not world.asked


def test_without_the_setting_other_servers_are_not_asked() -> None:
    with recorded_registry() as here, recorded_registry() as there:
        world = prepare_world(here, there)
        world.visitor.native_server.external = None
        assert world.add(PERSON, 300)[0] is ResponseCode.AUTHENTICATION_FAILED
        assert world.add(PREFIX_PERSON, 300)[0] is ResponseCode.AUTHENTICATION_FAILED
        assert not world.asked


# Addresses

FORBIDDEN = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.8.8.8",
    "169.254.169.254",  # metadata of cloud machines
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::a00:1",
    "::ffff:127.0.0.2",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001:db8::1",
    "2002:c0a8:101::",
    "2002:a00:1::1",
    "2001:0:5ef5:79fd:0:59d:f5ff:fffe",  # Teredo to 10.0.0.1
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


def test_addresses_that_are_not_public_are_never_contacted(world: World) -> None:
    """SSRF: the record of a prefix leads to them, signed by the root."""
    world.external._allows = make_address_filter(["127.0.0.1"])  # the root
    for number, address in enumerate(FORBIDDEN):
        site = Value(1, "HS_SITE", site_at(address).to_bytes())
        world.there.do(Modify(Handle.parse(PREFIX_PERSON), (site,)), OPERATOR, "cli")
        world.external._core = None  # forget the last one
        code, response = world.add(PERSON, (300, 301)[number % 2])
        assert code is ResponseCode.SERVER_TOO_BUSY, address
        assert text_of(response) == Unverifiable.text
        assert set(world.asked) == {("127.0.0.1", 2641)}, address


@pytest.mark.parametrize("address", ["127.0.0.1", *FORBIDDEN])
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not make_address_filter([])(ipaddress.ip_address(address), 2641)


def test_public_and_configured_addresses_are_allowed() -> None:
    allows = make_address_filter(["10.1.0.0/16", "fd00::/8"])
    for allowed in ("8.8.8.8", "2600::1", "10.1.2.3", "fd00::1", "::ffff:10.1.2.3", "::ffff:8.8.8.8"):
        assert allows(ipaddress.ip_address(allowed), 2641)
        assert not allows(ipaddress.ip_address(allowed), 0)
    assert not allows(ipaddress.ip_address("10.2.0.1"), 2641)


# Settings


def test_settings_decide_whether_other_servers_are_asked(tmp_path: Path) -> None:
    (tmp_path / "root.bin").write_bytes(OTHER_SITE.to_bytes())

    def load(root: str, identities: str) -> ExternalIdentities | None:
        text = f'root = "{root}"\n[identities]\nroot = "{identities}"\nnetworks = ["10.0.0.0/8"]\n'
        return ExternalIdentities.of(Config.parse(text, {}), tmp_path)

    assert load("self", "") is None
    found = load("self", "root.bin")
    assert found is not None
    assert found._load_root is not None
    assert found._load_root().sites == (OTHER_SITE,)
    for both in (("global", ""), ("self", "global")):
        found = load(*both)
        assert found is not None
        assert found._load_root == Root.load_global, "nothing is fetched before it is needed"

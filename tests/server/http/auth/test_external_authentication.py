"""Identities on other servers over HTTP, with the rules of the native protocol."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.commands.records import Create, Modify, Remove
from perseid.registry.queries import access
from perseid.registry.queries.access import is_named
from perseid.server.http.auth.external import failure_reason
from perseid.server.http.context import ProofResult
from perseid.server.http.messages import Client
from perseid.server.native import external as external_module
from perseid.server.native.authentication import EXTERNAL_LIFE, KeyChanged
from perseid.server.native.decisions import Busy, ReadCommand
from perseid.server.native.external import Unverifiable, make_address_filter
from perseid.server.native.work import Work, WorkKind, own_secret_id
from tests.registry.registries import OPERATOR
from tests.server.http.auth_servers import AuthServer, basic_header, handle_header, make_auth_server
from tests.server.http.client_certificates import named
from tests.server.native.native_servers import NOW, PREFIX, Clock, recorded_registry
from tests.server.native.test_external_identities import (
    FORBIDDEN,
    OTHER,
    PERSON,
    PREFIX_PERSON,
    World,
    prepare_world,
    site_at,
)
from tests.wire.key_material import DSA_KEY, RSA_KEY, SECRET, SERVER_KEY

KEYS: dict[int, PrivateKey] = {300: RSA_KEY, 302: DSA_KEY}


class Caller:
    """A client of this server whose key is on the other one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = make_auth_server(world.here)
        self.server.context = replace(self.server.context, external=world.external)

    def prove(self, method: str, person: str = PERSON, *, wrong: bool = False, index: int | None = None) -> str:
        """Authenticate; return the identity, or the reason of a failure."""
        server: AuthServer = self.server
        at = {"basic": 301, "secret": 301, "pbkdf2": 301, "dsa": 302}.get(method, 300) if index is None else index
        identity, secret = f"{at}:{person}", b"wrong" if wrong else SECRET
        if method == "basic":
            auth = server.identify(basic_header(identity, secret))
        elif method == "certificate":
            auth = server.identify(certificate=named(identity, SERVER_KEY if wrong else RSA_KEY))
        else:
            session, cnonce = server.begin(), bytes(range(16))
            more: dict[str, str | bytes] = {}
            signed, kind, algorithm = session.nonce + cnonce, "HS_SECKEY", "SHA256"
            if method == "secret":
                signature = hashlib.sha256(secret + signed + secret).digest()
            elif method == "pbkdf2":
                algorithm, more = "PBKDF2-HMAC-SHA1", {"salt": bytes(8), "iterations": "1000", "length": "160"}
                key = hashlib.pbkdf2_hmac("sha1", secret, bytes(8), 1_000, 20)
                signature = hmac.digest(key, signed, "sha1")
            else:
                key_of = {"signature": RSA_KEY, "dsa": DSA_KEY}[method]
                kind, signature = "HS_PUBKEY", (SERVER_KEY if wrong else key_of).sign("SHA-256", signed)
            more |= {"sessionId": session.id, "id": identity, "type": kind, "cnonce": cnonce, "alg": algorithm}
            auth = server.identify(handle_header(**more, signature=signature))
        self.auth = auth
        return str(auth.identity) if auth.problem is None else auth.problem.reason

    @property
    def last(self) -> ProofResult | None:
        """The outcome that was recorded last."""
        return self.server.verdicts[-1] if self.server.verdicts else None


METHODS = ["basic", "secret", "pbkdf2", "signature", "dsa", "certificate"]


@pytest.fixture
def caller() -> Iterator[Caller]:
    clock = Clock()
    clock.show(NOW)
    with recorded_registry(clock) as here, recorded_registry() as there:
        world = prepare_world(here, there)
        world.clock = clock
        yield Caller(world)


@pytest.mark.parametrize("person", [PERSON, PREFIX_PERSON])
@pytest.mark.parametrize("method", METHODS)
def test_a_key_on_another_server_proves_an_identity(caller: Caller, method: str, person: str) -> None:
    assert caller.prove(method, person).endswith(f":{person}")
    assert caller.last is not None
    assert caller.last.succeeded
    assert set(caller.world.asked) == {("127.0.0.1", 2641)}
    read = ReadCommand(lambda context: str(context.identity))
    assert caller.server.execute(caller.auth, read).endswith(f":{person}")
    caller.world.clock.run(EXTERNAL_LIFE * 1_000_000)
    with pytest.raises(KeyChanged):
        caller.server.execute(caller.auth, read)


@pytest.mark.parametrize("method", METHODS)
def test_wrong_proofs_and_identities_that_nobody_names_get_the_same_reason(caller: Caller, method: str) -> None:
    wrong = caller.prove(method, wrong=True)
    assert caller.auth.problem is not None
    assert wrong == f"authentication failed: {failure_reason(ValueRef.parse(wrong.split(' of ')[1].split(' ')[0]))}"
    is_secret = method in ("basic", "secret", "pbkdf2")
    expected = ProofResult(succeeded=False, secret_of=own_secret_id(PERSON) if is_secret else None)
    assert caller.last == expected
    asked = len(caller.world.asked)
    assert asked
    for person in (f"{OTHER}/eve", "0.NA/20.500.66"):
        assert caller.prove(method, person) == wrong.replace(PERSON, person)
    assert len(caller.world.asked) == asked, "nobody else makes this server send anything"


@pytest.mark.parametrize("method", METHODS)
def test_the_outage_of_the_other_server_is_not_a_wrong_guess(caller: Caller, method: str) -> None:
    caller.world.change = lambda reply: reply[:-1] + bytes([reply[-1] ^ 1])
    with pytest.raises(Unverifiable):
        caller.prove(method)
    is_secret = method in ("basic", "secret", "pbkdf2")
    assert caller.last == (ProofResult(None, own_secret_id(PERSON)) if is_secret else None)


@pytest.mark.parametrize("method", ["basic", "certificate"])
def test_a_proof_of_each_request_is_remembered_for_a_while(caller: Caller, method: str) -> None:
    assert caller.prove(method).endswith(PERSON)
    asked = len(caller.world.asked)
    caller.world.there.do(Remove(Handle.parse(PERSON), (300, 301)), OPERATOR, "cli")
    assert caller.prove(method).endswith(PERSON)
    assert len(caller.world.asked) == asked
    assert "failed" in caller.prove(method, wrong=True), "only the same proof"
    caller.server.now[0] += EXTERNAL_LIFE
    assert "failed" in caller.prove(method)


def test_a_secret_on_another_server_needs_its_index(caller: Caller) -> None:
    for method in ("basic", "secret"):
        assert "the index of the secret is missing" in caller.prove(method, index=0)
        assert caller.last == ProofResult(None, own_secret_id(PERSON))
    assert caller.prove("signature", index=0) == f"300:{PERSON}"


@pytest.mark.parametrize("method", METHODS)
def test_no_other_server_is_asked_for_callers_who_failed_too_often(caller: Caller, method: str) -> None:
    do = caller.server.context.do

    async def refuse(work: Work, client: Client) -> object:
        if work.kind is WorkKind.VERIFY or (work.secret_of is not None and method == "basic"):
            raise Busy
        return await do(work, client)

    caller.server.context = replace(caller.server.context, do=refuse)
    with pytest.raises(Busy):
        caller.prove(method)
    assert not caller.world.asked


def test_limits_apply_to_http_too(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_module, "MAX_RUNNING", 0)
    for method in METHODS:
        with pytest.raises(Busy):
            caller.prove(method)
    assert not caller.world.asked
    caller.server.context = replace(caller.server.context, external=None)
    for method in METHODS:
        assert "is not hosted here, and its keys cannot be read" in caller.prove(method)
    assert not caller.world.asked


def test_addresses_that_are_not_public_are_never_contacted(caller: Caller) -> None:
    """SSRF: the record of a prefix leads to them, signed by the root."""
    world = caller.world
    world.external._allows = make_address_filter(["127.0.0.1"])  # the root
    for number, address in enumerate(FORBIDDEN):
        site = Value(1, "HS_SITE", site_at(address).to_bytes())
        world.there.do(Modify(Handle.parse(PREFIX_PERSON), (site,)), OPERATOR, "cli")
        world.external._core = None  # forget the last one
        with pytest.raises(Unverifiable):
            caller.prove(METHODS[number % len(METHODS)])
        assert set(world.asked) == {("127.0.0.1", 2641)}, ipaddress.ip_address(address)


def test_who_is_named_here(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    here = caller.world.here

    def is_known(handle: str) -> bool:
        with here.snapshot() as snapshot:
            return is_named(snapshot, handle)

    def create(name: str, value: Value) -> None:
        here.do(Create(Handle.parse(f"{PREFIX}/{name}"), (value,)), OPERATOR, "cli")

    assert is_known(PERSON)
    assert not is_known(PERSON.upper()), "administrators are case-sensitive"
    assert not is_known(f"{OTHER}/member")
    create("group", Value(200, "HS_VLIST", ValueList((ValueRef(300, f"{OTHER}/member"),)).to_bytes()))
    assert is_known(f"{OTHER}/member")
    monkeypatch.setattr(access, "MAX_GROUPS", 0)
    assert not is_known(f"{OTHER}/member")
    here.rules = replace(here.rules, administration=Settings(status_admins=(ValueRef(300, f"{OTHER}/member"),)))
    assert is_known(f"{OTHER}/member")
    create("hidden", Value(100, "HS_ADMIN", Admin(ValueRef(300, f"{OTHER}/hidden")).to_bytes()))
    assert is_known(f"{OTHER}/hidden")
    here.do(Unpublish(Handle.parse(f"{PREFIX}/hidden")), OPERATOR, "cli")
    assert not is_known(f"{OTHER}/hidden"), "a claim must not reveal it"

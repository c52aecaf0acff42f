"""Conversations over the native protocol: every operation, with every kind of key, in a session or not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.partition import find_server_index
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.site import MIRROR, Purpose, Transport
from perseid.registry.commands.records import Create, Delete, Home
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.native.server import NativeServer, NativeSettings
from perseid.server.native.work import SecretGuess, Work, WorkKind
from perseid.wire.challenges import answer_with_secret
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
    default_flags,
)
from perseid.wire.requests import (
    DumpHandles,
    HandleRequest,
    MirrorShare,
    RemoveValues,
    Resolve,
    RetrieveTransactions,
    ValuesRequest,
    VerifyChallenge,
)
from perseid.wire.responses import (
    CreationResult,
    Empty,
    HandleList,
    Referral,
    ResolutionResult,
    SiteInfo,
    VerificationResult,
)
from perseid.wire.server import ServerSettings
from perseid.wire.sessions import Identity
from tests.registry.registries import OPERATOR
from tests.server.native.native_servers import (
    ADMIN,
    BY_ADMINS,
    DSA,
    HIDDEN,
    MADE,
    NEW,
    NOTE,
    NOW,
    PREFIX,
    RECORDS,
    RSA,
    SEC,
    SITE,
    STD,
    URL,
    Clock,
    Visitor,
    make_server,
    receive,
    recorded_registry,
    run_with,
    text_of,
    without_timestamps,
)
from tests.wire.key_material import DSA_KEY, SECRET, SERVER_KEY

READ_ALL = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY
IDENTITIES = {"rsa": RSA, "secret": SEC, "dsa": DSA}
TRANSPORTS = (Transport.TCP, Transport.UDP)


@pytest.fixture
def native_server(registry: Registry) -> NativeServer:
    return NativeServer(registry, make_server(), SITE)


@pytest.fixture
def visitor(native_server: NativeServer) -> Visitor:
    return Visitor(native_server)


def values_of(registry: Registry, name: str | bytes) -> dict[int, Value]:
    text = name.decode() if isinstance(name, bytes) else name
    with registry.snapshot() as snapshot:
        return {value.index: value for value in snapshot.stored(Handle.parse(text)).values}


def make(registry: Registry, name: str, *values: Value) -> None:
    registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")


# Every operation


@dataclass
class Case:
    """An operation, and a check that it was executed."""

    opcode: OpCode
    body: Callable[[], object]
    flags: OpFlag = DEFAULT_FLAGS
    check: Callable[[Registry, VerifiedResponse], None] = lambda _registry, _answer: None
    tcp_only: bool = False


Check: TypeAlias = Callable[[Registry, VerifiedResponse], None]


def body_is(body: object) -> Check:
    def check(_: Registry, answer: VerifiedResponse) -> None:
        assert answer.body == body

    return check


def record_is(name: bytes, indexes: set[int], body: object = None) -> Check:
    def check(registry: Registry, answer: VerifiedResponse) -> None:
        assert answer.body == (Empty() if body is None else body)
        assert set(values_of(registry, name)) == indexes

    return check


def minted(registry: Registry, answer: VerifiedResponse) -> None:
    assert isinstance(answer.body, CreationResult)
    assert answer.body.handle is not None
    assert answer.body.handle.startswith(NEW + b"-")
    assert OpFlag.MINT_SUFFIX in answer.message.header.flags
    assert set(values_of(registry, answer.body.handle)) == {1}


def overwritten(registry: Registry, answer: VerifiedResponse) -> None:
    assert answer.body == CreationResult(STD.encode())
    assert OpFlag.OVERWRITE in answer.message.header.flags
    assert set(values_of(registry, STD)) == {1, 100}


def all_values(_: Registry, answer: VerifiedResponse) -> None:
    assert isinstance(answer.body, ResolutionResult)
    assert without_timestamps(answer.body.values) == RECORDS[STD]


def has_status(_: Registry, answer: VerifiedResponse) -> None:
    assert isinstance(answer.body, ResolutionResult)
    assert [value.type for value in answer.body.values][:2] == ["DESC", "READY"]
    assert all(not value.is_public for value in answer.body.values)


def homed(registry: Registry, answer: VerifiedResponse) -> None:
    assert answer.body == Empty()
    with registry.snapshot() as snapshot:
        assert snapshot.is_homed("0.NA/20.500.88888")


def unhomed(registry: Registry, answer: VerifiedResponse) -> None:
    assert answer.body == Empty()
    with registry.snapshot() as snapshot:
        assert not snapshot.is_homed(ADMIN)


def deleted(registry: Registry, answer: VerifiedResponse) -> None:
    assert answer.body == Empty()
    with pytest.raises(Refused):
        registry.resolve(Query(Handle.parse(STD)), Anonymous())


CASES = {
    "resolve": Case(OpCode.RESOLUTION, lambda: Resolve(STD.encode()), READ_ALL, all_values),
    "status": Case(OpCode.RESOLUTION, lambda: Resolve(b"0.site/status"), READ_ALL, has_status),
    "create": Case(
        OpCode.CREATE_HANDLE,
        lambda: ValuesRequest(NEW, (URL, BY_ADMINS)),
        check=record_is(NEW, {1, 100}, CreationResult(NEW)),
    ),
    "overwrite": Case(
        OpCode.CREATE_HANDLE,
        lambda: ValuesRequest(STD.encode(), (URL, BY_ADMINS)),
        DEFAULT_FLAGS | OpFlag.OVERWRITE,
        overwritten,
    ),
    "mint": Case(
        OpCode.CREATE_HANDLE, lambda: ValuesRequest(NEW + b"-", (URL,)), DEFAULT_FLAGS | OpFlag.MINT_SUFFIX, minted
    ),
    "delete": Case(OpCode.DELETE_HANDLE, lambda: HandleRequest(STD.encode()), check=deleted),
    "add": Case(
        OpCode.ADD_VALUE,
        lambda: ValuesRequest(STD.encode(), (replace(URL, index=9),)),
        check=record_is(STD.encode(), {1, 2, 4, 6, 9, 50, 100}),
    ),
    "remove": Case(
        OpCode.REMOVE_VALUE,
        lambda: RemoveValues(STD.encode(), (2, 4, 2)),
        check=record_is(STD.encode(), {1, 6, 50, 100}),
    ),
    "modify": Case(
        OpCode.MODIFY_VALUE,
        lambda: ValuesRequest(STD.encode(), (URL,)),
        check=record_is(STD.encode(), {1, 2, 4, 6, 50, 100}),
    ),
    "list": Case(
        OpCode.LIST_HANDLES,
        lambda: HandleRequest(ADMIN.encode()),
        check=body_is(HandleList(tuple(f"{PREFIX}/vec-{name}".encode() for name in ("big", "std", "üñí-日本")))),
        tcp_only=True,
    ),
    "list homed": Case(
        OpCode.LIST_HOMED_NAS,
        HandleRequest,
        check=body_is(HandleList((b"0.NA/0.NA", ADMIN.encode()))),
        tcp_only=True,
    ),
    "home": Case(OpCode.HOME_NA, lambda: HandleRequest(b"0.NA/20.500.88888"), check=homed),
    "unhome": Case(OpCode.UNHOME_NA, lambda: HandleRequest(PREFIX.encode()), check=unhomed),
    "backup": Case(OpCode.BACKUP_SERVER, HandleRequest, check=body_is(Empty())),
}


@pytest.mark.parametrize("transport", TRANSPORTS, ids=str)
@pytest.mark.parametrize("in_session", [False, True], ids=["alone", "session"])
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
@pytest.mark.parametrize("name", CASES)
def test_every_operation_works_with_every_kind_of_key(
    registry: Registry, name: str, identity: Identity, in_session: bool, transport: Transport
) -> None:
    case = CASES[name]
    made: list[int] = []

    def checkpoint() -> bool:
        made.append(1)
        return True

    native_server = NativeServer(registry, make_server(), SITE, checkpoint=checkpoint)
    visitor = Visitor(native_server, Transport.TCP if case.tcp_only else transport)
    session = visitor.begin_session(identity) if in_session else None
    body = case.body()
    request = visitor.request(case.opcode, body, flags=case.flags, session=session)  # type: ignore[arg-type]
    answer = visitor.ask_as(identity, request, session)
    assert answer.code is ResponseCode.SUCCESS, answer.body
    case.check(registry, answer)
    assert made == [1] * (name == "backup")
    assert visitor.served[-1].identity == f"{identity.index}:{ADMIN}"
    if session is not None:
        # Proved once, a MAC is enough.
        again = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=READ_ALL, session=session)
        (code,) = {one.code for one in visitor.all(again, session)}
        # What was deleted or unhomed is gone for an administrator too.
        gone = {"delete": ResponseCode.HANDLE_NOT_FOUND, "unhome": ResponseCode.SERVER_NOT_RESP}
        assert code is gone.get(name, ResponseCode.SUCCESS)


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
@pytest.mark.parametrize("minor", [1, 3, 4, 5, 6, 7, 8, 10, 11])
def test_every_version_works_with_and_without_a_session(visitor: Visitor, minor: int, identity: Identity) -> None:
    client = Visitor(visitor.native_server, version=Version(2, minor))
    request = client.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL, BY_ADMINS)))
    assert client.ask_as(identity, request).code is ResponseCode.SUCCESS
    session = client.begin_session(identity)
    for index in (7, 8):
        body = ValuesRequest(NEW, (Value(index, "NOTE", b"not for all", permissions=HIDDEN),))
        request = client.request(OpCode.ADD_VALUE, body, session=session)
        assert client.ask_as(identity, request, session).code is ResponseCode.SUCCESS


def test_version_2_0_gets_its_old_challenge(visitor: Visitor) -> None:
    client = Visitor(visitor.native_server, version=Version(2, 0))
    request = client.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)))
    assert client.ask_as(SEC, request).code is ResponseCode.SUCCESS


def test_a_session_is_ended_by_its_client(visitor: Visitor) -> None:
    session = visitor.begin_session()
    visitor.ask_as(SEC, visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), session=session), session)
    end = visitor.request(OpCode.SESSION_TERMINATE, HandleRequest(), session=session)
    assert visitor.ask(end, session).code is ResponseCode.SUCCESS
    # Its id is acceptable for public queries until its challenges are forgotten, as in deployed servers (15.7).
    visitor.now += 61
    late = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), session=session)
    assert visitor.ask(late, session).code is ResponseCode.SESSION_TIMEOUT


# Resolution


def resolve(visitor: Visitor, name: str | bytes, flags: OpFlag = DEFAULT_FLAGS, **filters: Any) -> VerifiedResponse:
    raw = name.encode() if isinstance(name, str) else name
    return visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(raw, **filters), flags=flags))


def found(answer: VerifiedResponse) -> list[int]:
    assert isinstance(answer.body, ResolutionResult)
    return [value.index for value in answer.body.values]


@pytest.mark.parametrize(
    ("filters", "indexes"),
    [
        ({}, [1, 2, 4, 6, 100]),
        ({"indexes": (4, 1)}, [1, 4]),
        ({"types": ("URL.",)}, [1, 2]),
        ({"types": ("email",), "indexes": (6, 50)}, [4, 6]),
    ],
    ids=str,
)
def test_a_query_finds_public_values_by_index_and_type(
    visitor: Visitor, filters: dict[str, Any], indexes: list[int]
) -> None:
    assert found(resolve(visitor, STD, **filters)) == indexes


def test_name_is_echoed_as_spelled(visitor: Visitor) -> None:
    answer = resolve(visitor, STD.upper())
    assert isinstance(answer.body, ResolutionResult)
    assert answer.body.handle == STD.upper().encode()


def test_a_name_without_a_slash_is_a_prefix_handle(visitor: Visitor) -> None:
    answer = resolve(visitor, PREFIX)
    assert isinstance(answer.body, ResolutionResult)
    assert answer.body.handle == PREFIX.encode()
    assert found(answer) == [1, 100, 200, 300, 302]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (f"{PREFIX}/absent".encode(), ResponseCode.HANDLE_NOT_FOUND),
        (f"{PREFIX}/".encode(), ResponseCode.HANDLE_NOT_FOUND),
        (f"{PREFIX}/".encode() + b"\xff", ResponseCode.HANDLE_NOT_FOUND),
        (f"{PREFIX}/".encode() + b"x" * 3000, ResponseCode.HANDLE_NOT_FOUND),
        (b"", ResponseCode.HANDLE_NOT_FOUND),  # slashless, so a prefix handle
        (b"/x", ResponseCode.SERVER_NOT_RESP),
        (b"\xff/x", ResponseCode.SERVER_NOT_RESP),
        (b"20.500.77777/x", ResponseCode.SERVER_NOT_RESP),
        (b"20.500.77777/\xff", ResponseCode.SERVER_NOT_RESP),
        (b"0.SITE/HOMED/0.NA/0.NA", ResponseCode.SERVER_NOT_RESP),
        (b"0.SITE/STATUS", ResponseCode.VALUES_NOT_FOUND),
    ],
    ids=lambda value: str(value)[:24],
)
@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, READ_ALL], ids=["public", "all"])
def test_missing_handle_is_not_found(visitor: Visitor, name: bytes, code: ResponseCode, flags: OpFlag) -> None:
    answer = resolve(visitor, name, flags)
    if name == b"0.SITE/STATUS" and flags == READ_ALL:
        assert answer.code is ResponseCode.AUTHENTICATION_NEEDED
        return
    assert answer.code is code
    assert (text_of(answer) == "") == (code is not ResponseCode.SERVER_NOT_RESP)


def test_public_values_require_an_identity_only_in_a_session(visitor: Visitor) -> None:
    assert found(resolve(visitor, STD, READ_ALL, indexes=(1,))) == [1]
    session = visitor.begin_session()
    request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode(), (1,)), flags=READ_ALL, session=session)
    assert visitor.ask(request, session).code is ResponseCode.AUTHENTICATION_NEEDED
    public = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode(), (1,)), session=session)
    assert found(visitor.ask(public, session)) == [1]


def test_private_values_are_encrypted_in_a_session(visitor: Visitor) -> None:
    session = visitor.begin_session()
    request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode(), (50,)), flags=READ_ALL, session=session)
    answer = visitor.ask_as(SEC, request, session)
    assert found(answer) == [50]
    (frame,) = visitor.served[-1].reply.frames
    assert frame.envelope.encrypted
    assert NOTE.data not in frame.payload


def test_unreadable_value_is_refused(registry: Registry, visitor: Visitor) -> None:
    make(registry, f"{PREFIX}/closed", replace(URL, permissions=Permission.ADMIN_WRITE), BY_ADMINS)
    answer = resolve(visitor, f"{PREFIX}/closed", READ_ALL)
    assert answer.code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert "is not readable by anybody" in text_of(answer)


@pytest.mark.parametrize("key", [SERVER_KEY, DSA_KEY], ids=["rsa", "dsa"])
@pytest.mark.parametrize("minor", [1, 5, 6, 7, 8, 11])
def test_response_is_signed_on_request(registry: Registry, key: object, minor: int) -> None:
    native_server = NativeServer(registry, make_server(ServerSettings(key)), SITE)  # type: ignore[arg-type]
    visitor = Visitor(native_server, version=Version(2, minor))
    flags = DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST
    for name in (STD, f"{PREFIX}/absent", "20.500.77777/x"):
        request = visitor.request(OpCode.RESOLUTION, Resolve(name.encode()), flags=flags)
        (frame,) = visitor.carry(visitor.client.pack(request, None))
        public = key.public  # type: ignore[attr-defined]
        assert visitor.client.read(frame, request, NOW, server_key=public).is_certified


def test_challenge_and_repeated_reply_are_signed(registry: Registry, visitor: Visitor) -> None:
    flags = DEFAULT_FLAGS | OpFlag.CERTIFY
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), flags=flags)
    challenge = visitor.ask(request)
    assert challenge.is_certified
    proof = visitor.answer(challenge, request, DSA)
    first, second = (visitor.ask(proof, about=request) for _ in range(2))
    assert first.is_certified
    assert first.message.to_bytes() == second.message.to_bytes()
    assert len(values_of(registry, NEW)) == 1


# Referrals


SITES = Value(3, "HS_SITE.PREFIX", SITE.to_bytes())


@pytest.fixture
def referring(registry: Registry) -> None:
    """A prefix whose derived prefixes are at another service."""
    make(registry, "0.NA/20.7", SITES, BY_ADMINS)


@pytest.mark.usefixtures("referring")
def test_derived_prefix_elsewhere_is_referred(visitor: Visitor) -> None:
    answer = resolve(visitor, "0.NA/20.7.1")
    assert answer.code is ResponseCode.PREFIX_REFERRAL
    assert isinstance(answer.body, Referral)
    assert answer.body.handle == b""
    assert [value.type for value in answer.body.values or ()] == ["HS_SITE.PREFIX"]


@pytest.mark.usefixtures("referring")
def test_do_not_refer_is_respected(visitor: Visitor) -> None:
    flags = DEFAULT_FLAGS | OpFlag.DO_NOT_REFER
    assert resolve(visitor, "0.NA/20.7.1", flags).code is ResponseCode.HANDLE_NOT_FOUND
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(b"0.NA/20.7.1", (URL,)), flags=flags)
    assert visitor.ask(request).code is ResponseCode.AUTHENTICATION_NEEDED


@pytest.mark.usefixtures("referring")
@pytest.mark.parametrize(
    ("minor", "opcode", "code"),
    [
        (11, OpCode.CREATE_HANDLE, ResponseCode.PREFIX_REFERRAL),
        (10, OpCode.CREATE_HANDLE, ResponseCode.PREFIX_REFERRAL),
        (9, OpCode.CREATE_HANDLE, ResponseCode.AUTHENTICATION_NEEDED),
        (9, OpCode.MODIFY_VALUE, ResponseCode.HANDLE_NOT_FOUND),
        (9, OpCode.RESOLUTION, ResponseCode.PREFIX_REFERRAL),
        (5, OpCode.RESOLUTION, ResponseCode.PREFIX_REFERRAL),
        (4, OpCode.RESOLUTION, ResponseCode.SERVER_NOT_RESP),  # the number would mean something else
    ],
    ids=str,
)
def test_only_clients_with_support_are_referred(
    visitor: Visitor, minor: int, opcode: OpCode, code: ResponseCode
) -> None:
    client = Visitor(visitor.native_server, version=Version(2, minor))
    name = b"0.NA/20.7.1"
    body = Resolve(name) if opcode == OpCode.RESOLUTION else ValuesRequest(name, (URL,))
    assert client.ask(client.request(opcode, body)).code is code


# What deployed servers do, and what we do otherwise


def test_existence_is_checked_before_authentication(visitor: Visitor) -> None:
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(STD.encode(), (URL,)))
    answer = visitor.ask(request)
    assert answer.code is ResponseCode.HANDLE_ALREADY_EXISTS
    assert text_of(answer) == f"Handle {STD} already exists"


def test_deleted_handle_cannot_be_reused(registry: Registry, visitor: Visitor) -> None:
    registry.do(Delete(Handle.parse(STD)), OPERATOR, "cli")
    for flags in (DEFAULT_FLAGS, DEFAULT_FLAGS | OpFlag.OVERWRITE):
        request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(STD.encode(), (URL,)), flags=flags)
        answer = visitor.ask_as(SEC, request)
        assert answer.code is ResponseCode.HANDLE_ALREADY_EXISTS
        assert "was deleted, and a deleted handle is not reused by default" in text_of(answer)


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ((), ResponseCode.INVALID_VALUE, "Value list was empty"),
        ((replace(URL, index=0),), ResponseCode.INVALID_VALUE, "Value indexes must be positive"),
        ((URL, URL), ResponseCode.VALUE_ALREADY_EXISTS, "Index conflict for 1"),
    ],
    ids=str,
)
def test_fixed_texts_of_deployed_servers_are_sent_unchanged(
    visitor: Visitor, values: tuple[Value, ...], code: ResponseCode, text: str
) -> None:
    answer = visitor.ask(visitor.request(OpCode.ADD_VALUE, ValuesRequest(STD.encode(), values)))
    assert (answer.code, text_of(answer)) == (code, text)


def test_a_read_only_value_is_not_modified(visitor: Visitor) -> None:
    body = ValuesRequest(STD.encode(), (Value.text(6, "DESC", "another"),))
    answer = visitor.ask(visitor.request(OpCode.MODIFY_VALUE, body))
    assert (answer.code, text_of(answer)) == (ResponseCode.INSUFFICIENT_PERMISSIONS, "Value is read-only")


def test_publicly_writable_value_is_modified_anonymously(registry: Registry, visitor: Visitor) -> None:
    make(registry, f"{PREFIX}/wall", replace(URL, permissions=Permission(0x0F)))
    changed = Value.text(1, "URL", "https://example.org/graffiti")
    request = visitor.request(OpCode.MODIFY_VALUE, ValuesRequest(f"{PREFIX}/wall".encode(), (changed,)))
    assert visitor.ask(request).code is ResponseCode.SUCCESS
    assert values_of(registry, f"{PREFIX}/wall")[1].data == changed.data
    assert visitor.served[-1].identity == ""


@pytest.mark.parametrize(
    ("opcode", "code"),
    [
        (OpCode.CREATE_HANDLE, ResponseCode.INVALID_HANDLE),
        (OpCode.ADD_VALUE, ResponseCode.HANDLE_NOT_FOUND),
        (OpCode.MODIFY_VALUE, ResponseCode.HANDLE_NOT_FOUND),
    ],
    ids=str,
)
@pytest.mark.parametrize("suffix", [b"\xff", b"", b"x" * 2100], ids=["no UTF-8", "empty", "long"])
def test_a_name_that_no_record_can_have_is_refused(
    visitor: Visitor, opcode: OpCode, code: ResponseCode, suffix: bytes
) -> None:
    name = PREFIX.encode() + b"/" + suffix
    assert visitor.ask(visitor.request(opcode, ValuesRequest(name, (URL,)))).code is code
    elsewhere = visitor.ask(visitor.request(opcode, ValuesRequest(b"20.500.77777/" + suffix + b"\xff", (URL,))))
    assert (elsewhere.code, text_of(elsewhere)) == (ResponseCode.SERVER_NOT_RESP, "That prefix doesn't live here")


def test_names_without_a_slash_are_not_created(visitor: Visitor) -> None:
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(b"20.500.1", (URL,)))
    assert visitor.ask(request).code is ResponseCode.INVALID_HANDLE


def test_mint_prefix_must_be_utf8(visitor: Visitor) -> None:
    flags = DEFAULT_FLAGS | OpFlag.MINT_SUFFIX
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(PREFIX.encode() + b"/\xff", (URL,)), flags=flags)
    assert visitor.ask(request).code is ResponseCode.INVALID_HANDLE


@pytest.mark.parametrize("name", [b"\xff", f"{PREFIX}/x".encode(), b"0.SITE"], ids=str)
@pytest.mark.parametrize("opcode", [OpCode.HOME_NA, OpCode.UNHOME_NA], ids=str)
def test_only_prefixes_are_homed(visitor: Visitor, opcode: OpCode, name: bytes) -> None:
    assert visitor.ask(visitor.request(opcode, HandleRequest(name))).code is ResponseCode.INVALID_HANDLE


def test_prefix_is_served_only_while_homed(registry: Registry, visitor: Visitor) -> None:
    name = b"20.500.88888/x"
    make_it = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(name, (URL,)))
    assert visitor.ask(make_it).code is ResponseCode.SERVER_NOT_RESP
    visitor.ask_as(SEC, visitor.request(OpCode.HOME_NA, HandleRequest(b"20.500.88888")))
    make(registry, "0.NA/20.500.88888", BY_ADMINS)
    assert (
        visitor.ask_as(SEC, visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(name, (URL,)))).code
        is ResponseCode.SUCCESS
    )
    visitor.ask_as(SEC, visitor.request(OpCode.UNHOME_NA, HandleRequest(b"20.500.88888")))
    assert resolve(visitor, name).code is ResponseCode.SERVER_NOT_RESP


# Site


def test_site_information_is_public(visitor: Visitor) -> None:
    answer = visitor.ask(visitor.request(OpCode.GET_SITE_INFO, HandleRequest()))
    assert answer.body == SiteInfo(SITE.to_bytes())


def test_site_that_is_not_primary_refuses_changes(registry: Registry) -> None:
    native_server = NativeServer(
        registry, make_server(ServerSettings(SERVER_KEY, is_primary=False)), replace(SITE, primary=MIRROR)
    )
    visitor = Visitor(native_server)
    answer = visitor.ask(visitor.request(OpCode.DELETE_HANDLE, HandleRequest(STD.encode())))
    assert (answer.code, text_of(answer)) == (ResponseCode.SERVER_NOT_RESP, "Not a primary server")
    answer = resolve(visitor, STD)
    assert answer.code is ResponseCode.SUCCESS
    assert OpFlag.AUTHORITATIVE not in answer.message.header.flags


def test_name_of_another_server_of_the_site_is_refused(registry: Registry) -> None:
    site = replace(SITE, servers=SITE.servers * 2)
    mine = find_server_index(STD.encode(), site.hash_option, 2)
    for position, code in ((mine, ResponseCode.SUCCESS), (1 - mine, ResponseCode.SERVER_NOT_RESP)):
        visitor = Visitor(NativeServer(registry, make_server(), site, settings=NativeSettings(position)))
        answer = resolve(visitor, STD)
        assert answer.code is code
        if position != mine:
            assert text_of(answer) == "Request was hashed incorrectly"
            change = visitor.ask(visitor.request(OpCode.DELETE_HANDLE, HandleRequest(STD.encode())))
            assert change.code is ResponseCode.SERVER_NOT_RESP


def server_with(registry: Registry, purpose: Purpose, port: int = 2641) -> NativeServer:
    server = SITE.servers[0]
    interface = replace(server.interfaces[0], purpose=purpose, transport=Transport.TCP, port=2641)
    site = replace(SITE, servers=(replace(server, interfaces=(interface,)),))
    settings = NativeSettings(ports={Transport.TCP: port, Transport.UDP: 2641})
    return NativeServer(registry, make_server(), site, settings=settings)


@pytest.mark.parametrize(
    ("purpose", "resolves", "changes"),
    [(Purpose.QUERY, True, False), (Purpose.ADMIN, False, True), (Purpose.ADMIN | Purpose.QUERY, True, True)],
    ids=str,
)
def test_interface_accepts_what_the_site_record_says(
    registry: Registry, purpose: Purpose, resolves: bool, changes: bool
) -> None:
    visitor = Visitor(server_with(registry, purpose))
    for opcode, body, served in (
        (OpCode.RESOLUTION, Resolve(STD.encode()), resolves),
        (OpCode.DELETE_HANDLE, HandleRequest(STD.encode()), changes),
        (OpCode.LIST_HANDLES, HandleRequest(ADMIN.encode()), changes),
        (OpCode.GET_SITE_INFO, HandleRequest(), True),
    ):
        request = visitor.request(opcode, body)
        visitor.carry(visitor.client.pack(request, None))
        assert (visitor.served[-1].code is not ResponseCode.PROTOCOL_ERROR) is served
        assert visitor.served[-1].opcode == opcode


def test_interface_missing_in_the_site_record_accepts_everything(registry: Registry) -> None:
    for native_server, transport in (
        (server_with(registry, Purpose(0), port=2642), Transport.TCP),
        (server_with(registry, Purpose(0)), Transport.UDP),
    ):
        assert resolve(Visitor(native_server, transport), STD).code is ResponseCode.SUCCESS


@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.HTTPS], ids=str)
def test_message_over_http_is_handled_like_any_other(native_server: NativeServer, transport: Transport) -> None:
    visitor = Visitor(native_server, transport)
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)))
    assert visitor.ask_as(RSA, request).code is ResponseCode.SUCCESS


# Other operations


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (OpCode.GET_NEXT_TXN_ID, HandleRequest()),
        (OpCode.RETRIEVE_TXN_LOG, RetrieveTransactions(MirrorShare(2, 1, 0))),
        (OpCode.DUMP_HANDLES, DumpHandles(MirrorShare(2, 1, 0))),
    ],
    ids=str,
)
def test_mirrors_are_not_supported_yet(visitor: Visitor, opcode: OpCode, body: HandleRequest) -> None:
    answer = visitor.ask(visitor.request(opcode, body))
    assert answer.code is ResponseCode.OPERATION_NOT_SUPPORTED
    assert text_of(answer) == f"operation {opcode.value} is not supported"


def test_unknown_operation_is_refused(visitor: Visitor) -> None:
    request = visitor.request(OpCode(106), HandleRequest())
    with pytest.raises(RemoteProtocolError) as refused:
        visitor.ask(request)
    assert refused.value.code is ResponseCode.ERROR


def test_missing_checkpoint_key_is_reported(visitor: Visitor) -> None:
    answer = visitor.ask_as(SEC, visitor.request(OpCode.BACKUP_SERVER, HandleRequest()))
    assert (answer.code, text_of(answer)) == (
        ResponseCode.ERROR,
        "this server has no key to sign a checkpoint",
    )


@pytest.mark.parametrize(
    ("identity", "secret", "valid"),
    [
        (SEC, SECRET, True),
        (Identity(SEC.handle, 0), SECRET, True),
        (SEC, b"wrong", False),
        (RSA, SECRET, False),
        (Identity(SEC.handle, 77), SECRET, False),
        (Identity(STD.encode() + b"-absent", 301), SECRET, False),
        (Identity(PREFIX.encode() + b"/\xff", 301), SECRET, False),
    ],
    ids=str,
)
def test_another_server_may_verify_a_response(visitor: Visitor, identity: Identity, secret: bytes, valid: bool) -> None:
    nonce, digest = bytes(16), bytes(range(32))
    answer = answer_with_secret(secret, nonce, digest, CURRENT_VERSION, CURRENT_VERSION, bytes(16))
    body = VerifyChallenge(identity.handle, identity.index, nonce, digest, answer)
    told = visitor.ask(visitor.request(OpCode.VERIFY_CHALLENGE, body, flags=default_flags(OpCode.VERIFY_CHALLENGE)))
    assert told.is_certified
    assert told.body == VerificationResult(int(valid))


@pytest.mark.parametrize(
    ("handle", "secret"),
    [
        (SEC.handle, SECRET),
        (SEC.handle, b"wrong"),
        (STD.encode() + b"-absent", SECRET),
        (SEC.handle + b"?a=1", SECRET),
        (SEC.handle + b"#x?\n", SECRET),
    ],
    ids=str,
)
def test_work_names_the_handle_of_the_secret_and_its_result(registry: Registry, handle: bytes, secret: bytes) -> None:
    """The work is the same if there is no such handle. Query and fragment make no other secret of it."""
    done: list[tuple[WorkKind, bytes | None]] = []

    def do(step: Work) -> object:
        done.append((step.kind, step.secret_of))
        return step.call()

    nonce, digest = bytes(16), bytes(range(32))
    answer = answer_with_secret(secret, nonce, digest, CURRENT_VERSION, CURRENT_VERSION, bytes(16))
    visitor = Visitor(native_server := NativeServer(registry, make_server(), SITE, run=run_with(do)))
    request = visitor.request(OpCode.VERIFY_CHALLENGE, VerifyChallenge(handle, 301, nonce, digest, answer))
    (served,) = receive(native_server, visitor.client.pack(request, None), "somebody", visitor.now, Transport.TCP)
    right = handle == SEC.handle and secret == SECRET
    secret_of = handle.partition(b"?")[0].partition(b"#")[0]
    assert served.guess == SecretGuess(secret_of, right)
    assert served.is_authentication_failure is not right
    assert done == [(WorkKind.READ, None), (WorkKind.VERIFY, secret_of), (WorkKind.SIGN, None)], "one attempt"


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize(("identity", "is_short"), [(RSA, True), (DSA, False), (SEC, False)], ids=str)
def test_create_is_decided_once_as_the_caller(
    registry: Registry, identity: Identity, is_short: bool, in_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an authenticated session, also as anonymous up to the permission: some refusals need no challenge."""
    callers: list[str] = []
    verified: list[bool] = []
    decide = Create.decide

    def counted(command: Create, context: Context) -> object:
        callers.append(str(context.identity))
        return decide(command, context)

    def do(work: Work) -> object:
        if work.kind is WorkKind.VERIFY:
            verified.append(work.is_short)
        return work.call()

    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    session = visitor.begin_session(identity) if in_session else None
    monkeypatch.setattr(Create, "decide", counted)
    caller = f"{identity.index}:{ADMIN}"
    for name, expected in ((NEW, ["anonymous", caller]), (NEW + b"2", [caller])):
        callers.clear()
        body = ValuesRequest(name, (URL,))
        answer = visitor.ask_as(identity, visitor.request(OpCode.CREATE_HANDLE, body, session=session), session)
        assert answer.code is ResponseCode.SUCCESS
        assert callers == (expected if in_session else ["anonymous", caller])
    assert verified == [is_short] * (1 if in_session else 2)


@pytest.mark.parametrize("anybody_may", [False, True])
def test_anonymous_change_is_checked_as_a_read(registry: Registry, anybody_may: bool) -> None:
    done: list[WorkKind] = []

    def do(step: Work) -> object:
        done.append(step.kind)
        return step.call()

    public = Permission.PUBLIC_READ | Permission.PUBLIC_WRITE | Permission.ADMIN_READ | Permission.ADMIN_WRITE
    make(registry, NEW.decode(), replace(URL, permissions=public) if anybody_may else URL)
    changed = replace(URL, data=b"https://example.org/changed", permissions=public if anybody_may else URL.permissions)
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    answer = visitor.ask(visitor.request(OpCode.MODIFY_VALUE, ValuesRequest(NEW, (changed,))))
    if anybody_may:
        assert (answer.code, done) == (ResponseCode.SUCCESS, [WorkKind.READ, WorkKind.WRITE])
    else:
        assert (answer.code, done) == (ResponseCode.AUTHENTICATION_NEEDED, [WorkKind.READ])


@pytest.mark.parametrize("name", [b"20.500.77777/x", b"20.500.77777/\xff"], ids=str)
def test_responses_of_foreign_handles_are_not_verified(visitor: Visitor, name: bytes) -> None:
    body = VerifyChallenge(name, 300, bytes(16), bytes(32), b"x")
    answer = visitor.ask(visitor.request(OpCode.VERIFY_CHALLENGE, body))
    assert answer.code is ResponseCode.SERVER_NOT_RESP


def test_status_requires_an_administrator(registry: Registry, visitor: Visitor) -> None:
    make(registry, f"{PREFIX}/other", Value(300, "HS_SECKEY", b"another", permissions=HIDDEN))
    other = Identity(f"{PREFIX}/other".encode(), 300)
    request = visitor.request(OpCode.RESOLUTION, Resolve(b"0.SITE/status"), flags=READ_ALL)
    challenge = visitor.ask(request)
    answer = visitor.ask(visitor.answer(challenge, request, other, b"another"), about=request)
    assert answer.code is ResponseCode.INVALID_ADMIN
    request = visitor.request(OpCode.RESOLUTION, Resolve(b"0.SITE/status", (99,)), flags=READ_ALL)
    assert visitor.ask_as(SEC, request).code is ResponseCode.VALUES_NOT_FOUND


def test_custom_status_may_be_passed(registry: Registry) -> None:
    native_server = NativeServer(registry, make_server(), SITE, status=lambda: (replace(URL, permissions=HIDDEN),))
    request = (visitor := Visitor(native_server)).request(OpCode.RESOLUTION, Resolve(b"0.SITE/status"), flags=READ_ALL)
    assert found(visitor.ask_as(SEC, request)) == [1]


def test_everything_works_in_2039() -> None:
    later = 2_190_000_000
    machine = Clock()
    machine.show(later)
    with recorded_registry(machine) as late:
        late.ledger.log.clock.accept()
        visitor = Visitor(NativeServer(late, make_server(), SITE), now=float(later))
        session = visitor.begin_session()
        request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), session=session)
        assert visitor.ask_as(SEC, request, session).code is ResponseCode.SUCCESS
        answer = resolve(visitor, NEW)
        assert isinstance(answer.body, ResolutionResult)
        assert answer.body.values[0].timestamp == later > 1 << 31
        assert later - MADE > 1 << 28


def test_unpublished_names_do_not_exist_for_others(registry: Registry, visitor: Visitor) -> None:
    """Not even for a claimed administrator: the claim must be proved first."""
    draft = Draft(Action.RESERVE, State.RESERVED, f"{PREFIX}/kept", "cli", "local:alice", values=(BY_ADMINS, URL))
    registry.ledger.append(Append(draft))
    for name in (f"{PREFIX}/kept", f"{PREFIX}/absent"):
        assert resolve(visitor, name, READ_ALL).code is ResponseCode.HANDLE_NOT_FOUND
        request = visitor.request(OpCode.ADD_VALUE, ValuesRequest(name.encode(), (URL,)))
        challenge = visitor.ask(request)
        wrong = visitor.ask(visitor.answer(challenge, request, SEC, b"a guess"), about=request)
        assert wrong.code is ResponseCode.AUTHENTICATION_FAILED
        right = visitor.ask(visitor.answer(challenge, request, SEC), about=request)
        known = name.endswith("kept")
        assert right.code is (ResponseCode.VALUE_ALREADY_EXISTS if known else ResponseCode.HANDLE_NOT_FOUND)


def test_listing_may_be_disabled() -> None:
    with recorded_registry(listing=False) as registry:
        visitor = Visitor(NativeServer(registry, make_server(), SITE))
        answer = visitor.ask(visitor.request(OpCode.LIST_HANDLES, HandleRequest(ADMIN.encode())))
        assert answer.code is ResponseCode.OPERATION_NOT_SUPPORTED


def test_permissions_are_checked_individually(registry: Registry, visitor: Visitor) -> None:
    """Permission to add values does not include deleting the record."""
    reference = ValueRef(301, ADMIN)
    few = Value(100, "HS_ADMIN", Admin(reference, AdminPermission.ADD_VALUE).to_bytes())
    make(registry, f"{PREFIX}/few", URL, few)
    name = f"{PREFIX}/few".encode()
    add = visitor.request(OpCode.ADD_VALUE, ValuesRequest(name, (replace(URL, index=2),)))
    assert visitor.ask_as(SEC, add).code is ResponseCode.SUCCESS
    answer = visitor.ask_as(SEC, visitor.request(OpCode.DELETE_HANDLE, HandleRequest(name)))
    assert answer.code is ResponseCode.INVALID_ADMIN
    assert "requires permission DELETE_HANDLE" in text_of(answer)


def test_a_marker_makes_the_server_responsible_for_derived_prefixes(registry: Registry, visitor: Visitor) -> None:
    registry.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
    assert resolve(visitor, "0.NA/20.7.1").code is ResponseCode.SERVER_NOT_RESP
    registry.do(Home("0.NA/0.NA/20.7"), OPERATOR, "cli")
    assert resolve(visitor, "0.NA/20.7.1").code is ResponseCode.HANDLE_NOT_FOUND

"""Every operation of the protocol (6.1) with a running server, over UDP and TCP."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.record import Permission, Value, select
from perseid.records.site import Site
from perseid.wire.challenges import answer_with_secret
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
)
from perseid.wire.message import MESSAGE_LIFETIME, UNKNOWN_REQUEST_ID
from perseid.wire.requests import (
    DumpHandles,
    HandleRequest,
    MirrorShare,
    RequestBody,
    Resolve,
    RetrieveTransactions,
    VerifyChallenge,
)
from perseid.wire.responses import CreationResult, HandleList, Referral, ResolutionResult, SiteInfo, VerificationResult
from tests.server.live_servers import (
    MANY,
    NAMES,
    REFERRING,
    UNHOMED,
    WHO,
    client_of,
    entries,
    indexes,
    live_installation,
    reading_of,
)
from tests.server.native.native_client import Serving, Via, serving
from tests.server.native.native_servers import (
    ADMIN,
    BY_ADMINS,
    HIDDEN,
    PREFIX,
    RECORDS,
    STD,
    text_of,
    without_timestamps,
)
from tests.wire.key_material import SECRET

BOTH = pytest.mark.parametrize("via", [Via.UDP, Via.TCP], ids=lambda via: via.value)
READ_ALL = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY
URL = Value.text(1, "URL", "https://example.org/new")
SECRET_NOTE = Value(7, "NOTE", b"not for all", permissions=HIDDEN)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return live_installation(tmp_path_factory.mktemp("live-operations"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory) as running:
        yield running


# Resolution


@BOTH
@pytest.mark.parametrize(
    ("indexes_", "types", "found"),
    [
        ((), (), [1, 2, 4, 6, 100]),
        ((4, 1), (), [1, 4]),
        ((), ("URL",), [1]),
        ((), ("url.",), [1, 2]),
        ((6, 50), ("EMAIL",), [4, 6]),
        ((50,), (), []),
        ((), ("",), []),
        ((99,), ("NONE",), []),
    ],
    ids=str,
)
def test_a_query_finds_public_values_by_index_and_type(
    server: Serving, via: Via, indexes_: tuple[int, ...], types: tuple[str, ...], found: list[int]
) -> None:
    with client_of(server, via) as client:
        answer = client.resolve(STD, indexes=indexes_, types=types)
        assert answer.code is (ResponseCode.SUCCESS if found else ResponseCode.VALUES_NOT_FOUND)
        if found:
            assert indexes(answer) == found


ASKED_FLAGS = (
    OpFlag.AUTHORITATIVE,
    OpFlag.CACHE_AUTHENTICATION,
    OpFlag.CERTIFY,
    OpFlag.DO_NOT_REFER,
    OpFlag.ENCRYPT,
    OpFlag.KEEP_CONNECTION,
    OpFlag.OVERWRITE,
    OpFlag.PUBLIC_ONLY,
    OpFlag.RECURSIVE,
    OpFlag.REQUEST_DIGEST,
)
COPIED = (
    OpFlag.CACHE_AUTHENTICATION
    | OpFlag.CERTIFY
    | OpFlag.DO_NOT_REFER
    | OpFlag.ENCRYPT
    | OpFlag.PUBLIC_ONLY
    | OpFlag.REQUEST_DIGEST
)


@given(st.data())
def test_both_transports_return_the_same_for_all_filters_and_flags(server: Serving, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([STD, STD.upper(), f"{PREFIX}/vec-big", ADMIN, PREFIX, f"{PREFIX}/vec-üñí-日本"]))
    wanted = tuple(data.draw(st.lists(st.sampled_from([1, 2, 4, 6, 50, 100, 200, 300, 301]), max_size=3)))
    types = tuple(data.draw(st.lists(st.sampled_from(["URL", "URL.", "desc", "HS_ADMIN", "HS_", "."]), max_size=2)))
    flags = OpFlag(sum(data.draw(st.sets(st.sampled_from(ASKED_FLAGS)))))
    record = next(RECORDS[key] for key in RECORDS if key.upper() in (name.upper(), f"0.NA/{name}"))
    expected = select(record, wanted, types)
    private = not all(value.is_public for value in expected)
    shown = tuple(value for value in expected if value.is_public)
    for via in (Via.UDP, Via.TCP):
        with client_of(server, via) as client:
            answer = client.resolve(name, indexes=wanted, types=types, flags=flags)
        head = answer.message.header
        if private and OpFlag.PUBLIC_ONLY not in flags:
            assert answer.code is ResponseCode.AUTHENTICATION_NEEDED
            assert head.flags == flags & COPIED | OpFlag.RECURSIVE | OpFlag.AUTHORITATIVE | OpFlag.REQUEST_DIGEST
            continue
        assert head.flags == flags & COPIED | OpFlag.RECURSIVE | OpFlag.AUTHORITATIVE
        assert answer.is_certified is (OpFlag.CERTIFY in flags)
        assert (answer.digest is not None) is (OpFlag.REQUEST_DIGEST in flags)
        assert not answer.message.envelope.encrypted, "there is no session"
        if not shown:
            assert answer.code is ResponseCode.VALUES_NOT_FOUND
        else:
            assert isinstance(answer.body, ResolutionResult)
            assert answer.body.handle == name.encode()
            assert without_timestamps(answer.body.values) == without_timestamps(shown)


@BOTH
def test_missing_handle_is_not_found(server: Serving, via: Via) -> None:
    with client_of(server, via) as client:
        assert client.resolve(f"{PREFIX}/absent").code is ResponseCode.HANDLE_NOT_FOUND
        assert client.resolve(f"{PREFIX}/".encode() + b"\xff").code is ResponseCode.HANDLE_NOT_FOUND
        elsewhere = client.resolve("20.500.12121/x")
        assert elsewhere.code is ResponseCode.SERVER_NOT_RESP
        assert text_of(elsewhere) == "That prefix doesn't live here"
        assert client.resolve("0.SITE/status").code is ResponseCode.VALUES_NOT_FOUND


@BOTH
def test_derived_prefix_elsewhere_is_referred(server: Serving, via: Via) -> None:
    name = f"0.NA/{REFERRING}.1"
    with client_of(server, via) as client:
        answer = client.resolve(name)
        assert answer.code is ResponseCode.PREFIX_REFERRAL
        assert isinstance(answer.body, Referral)
        assert [value.type for value in answer.body.values or ()] == ["HS_SITE.PREFIX"]
        flags = DEFAULT_FLAGS | OpFlag.DO_NOT_REFER
        assert client.resolve(name, flags=flags).code is ResponseCode.HANDLE_NOT_FOUND
        assert client.create(name, (URL,)).code is ResponseCode.PREFIX_REFERRAL
        with client_of(server, via, version=Version(2, 4)) as old:
            assert old.resolve(name).code is ResponseCode.SERVER_NOT_RESP, "the number would mean something else"


# Administration


@BOTH
@pytest.mark.parametrize("in_session", [False, True], ids=["alone", "session"])
@pytest.mark.parametrize("identity", WHO)
def test_record_is_created_changed_and_deleted_by_every_kind_of_key(
    server: Serving, via: Via, identity: str, in_session: bool
) -> None:
    name = f"{PREFIX}/life-{via.value}-{identity}-{in_session}"
    with client_of(server, via, identity) as client, client_of(server, Via.UDP) as anybody:
        if in_session:
            client.begin_session()
        assert client.create(name, (URL, BY_ADMINS)).body == CreationResult(name.encode())
        assert indexes(anybody.resolve(name)) == [1, 100]
        assert client.create(name, (URL,)).code is ResponseCode.HANDLE_ALREADY_EXISTS
        assert client.add(name, SECRET_NOTE, replace(URL, index=8)).code is ResponseCode.SUCCESS
        conflict = client.add(name, SECRET_NOTE)
        assert conflict.code is ResponseCode.VALUE_ALREADY_EXISTS
        assert text_of(conflict) == "Index conflict for 7"
        private = client.resolve(name, flags=READ_ALL)
        assert indexes(private) == [1, 7, 8, 100]
        assert private.message.envelope.encrypted is in_session, "private values are never shown in the clear there"
        assert indexes(anybody.resolve(name)) == [1, 8, 100]
        assert client.modify(name, Value.text(1, "URL", "https://example.org/other")).code is ResponseCode.SUCCESS
        assert client.modify(name, replace(URL, index=33)).code is ResponseCode.VALUES_NOT_FOUND
        assert client.remove(name, 8, 8).code is ResponseCode.SUCCESS
        assert client.remove(name, 8).code is ResponseCode.VALUES_NOT_FOUND
        overwritten = client.create(name, (URL, BY_ADMINS, replace(URL, index=2)), OpFlag.OVERWRITE)
        assert overwritten.code is ResponseCode.SUCCESS
        assert OpFlag.OVERWRITE in overwritten.message.header.flags
        assert indexes(anybody.resolve(name)) == [1, 2, 100]
        assert client.delete(name).code is ResponseCode.SUCCESS
        assert client.delete(name).code is ResponseCode.HANDLE_NOT_FOUND
        assert anybody.resolve(name).code is ResponseCode.HANDLE_NOT_FOUND
        if in_session:
            ended = client.end_session()
            assert ended is not None
            assert ended.code is ResponseCode.SUCCESS


@BOTH
@pytest.mark.parametrize("identity", WHO)
def test_wrong_key_changes_nothing(server: Serving, directory: Path, via: Via, identity: str) -> None:
    reference, _ = WHO[identity]
    others = {"rsa": "dsa", "dsa": "rsa", "secret": ""}
    _, wrong = WHO.get(others[identity], ("", b"a wrong secret"))
    before = entries(directory)
    with client_of(server, via) as client:
        assert client.delete(STD).code is ResponseCode.AUTHENTICATION_NEEDED
        client.act_as(reference, wrong)
        assert client.delete(STD).code is ResponseCode.AUTHENTICATION_FAILED
        client.act_as(f"300:{STD}", wrong)
        assert client.delete(STD).code is ResponseCode.INVALID_ADMIN
    assert entries(directory) == before


@BOTH
def test_handles_are_minted(server: Serving, via: Via) -> None:
    with client_of(server, via, "secret") as client:
        answer = client.create(f"{PREFIX}/mint-", (URL,), OpFlag.MINT_SUFFIX)
        assert isinstance(answer.body, CreationResult)
        assert answer.body.handle is not None
        assert answer.body.handle.startswith(f"{PREFIX}/mint-".encode())
        assert OpFlag.MINT_SUFFIX in answer.message.header.flags
        assert indexes(client.resolve(answer.body.handle)) == [1]


@BOTH
def test_prefixes_are_homed_and_unhomed_while_the_server_runs(server: Serving, via: Via) -> None:
    prefix = UNHOMED[via is Via.TCP]
    name = f"{prefix}/x"
    with client_of(server, via, "rsa") as client, client_of(server, Via.UDP) as anybody:
        for made in (ResponseCode.SUCCESS, ResponseCode.HANDLE_ALREADY_EXISTS, ResponseCode.HANDLE_ALREADY_EXISTS):
            assert anybody.resolve(name).code is ResponseCode.SERVER_NOT_RESP
            assert client.create(name, (URL,)).code is ResponseCode.SERVER_NOT_RESP
            assert client.do(OpCode.HOME_NA, HandleRequest(f"0.NA/{prefix}".encode())).code is ResponseCode.SUCCESS
            # Resolvers know it when the change is answered: there is nothing to wait for.
            assert anybody.resolve(name).code is not ResponseCode.SERVER_NOT_RESP
            assert client.create(name, (URL,)).code is made
            assert indexes(anybody.resolve(name)) == [1]
            assert client.do(OpCode.UNHOME_NA, HandleRequest(f"0.NA/{prefix}".encode())).code is ResponseCode.SUCCESS
        assert anybody.resolve(name).code is ResponseCode.SERVER_NOT_RESP
        assert anybody.do(OpCode.HOME_NA, HandleRequest(b"0.NA/20.500.33")).code is ResponseCode.AUTHENTICATION_NEEDED


# Lists


@pytest.mark.parametrize("via", [Via.TCP, Via.KEPT], ids=lambda via: via.value)
@pytest.mark.parametrize("in_session", [False, True], ids=["alone", "session"])
def test_list_has_messages_of_fifty(server: Serving, via: Via, in_session: bool) -> None:
    with client_of(server, via, "secret") as client:
        if in_session:
            client.begin_session()
        answers = client.do_all(OpCode.LIST_HANDLES, HandleRequest(f"0.NA/{MANY}".encode()))
        assert [len(one.body.handles) for one in answers if isinstance(one.body, HandleList)] == [50, 50, 20]
        assert [one.more_follows for one in answers] == [True, True, False]
        assert len({one.message.envelope.request_id for one in answers}) == 1
        listed = [name.decode() for one in answers if isinstance(one.body, HandleList) for name in one.body.handles]
        assert listed == list(NAMES)
        (homed,) = client.do_all(OpCode.LIST_HOMED_NAS, HandleRequest())
        assert isinstance(homed.body, HandleList)
        assert {b"0.NA/0.NA", ADMIN.encode(), f"0.NA/{MANY}".encode()} <= set(homed.body.handles)


@pytest.mark.parametrize("opcode", [OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS], ids=str)
def test_lists_require_tcp_and_permission(server: Serving, opcode: OpCode) -> None:
    with client_of(server, Via.UDP, "secret") as client:
        assert client.do(opcode, HandleRequest(f"0.NA/{MANY}".encode())).code is ResponseCode.PROTOCOL_ERROR
    with client_of(server) as client:
        assert client.do(opcode, HandleRequest(f"0.NA/{MANY}".encode())).code is ResponseCode.AUTHENTICATION_NEEDED


# What servers ask and tell each other


@BOTH
def test_site_information_is_public(server: Serving, directory: Path, via: Via) -> None:
    with client_of(server, via) as client:
        answer = client.do(OpCode.GET_SITE_INFO, HandleRequest())
        assert isinstance(answer.body, SiteInfo)
        assert answer.body.site == (directory / "siteinfo.bin").read_bytes()
        assert Site.from_bytes(answer.body.site).serial == answer.message.header.site_serial


@BOTH
def test_another_server_may_verify_a_response(server: Serving, via: Via) -> None:
    nonce, digest = bytes(16), bytes(range(32))
    with client_of(server, via) as client:
        for index, secret, valid in ((301, SECRET, 1), (0, SECRET, 1), (301, b"wrong", 0), (300, SECRET, 0)):
            answer = answer_with_secret(secret, nonce, digest, CURRENT_VERSION, CURRENT_VERSION, bytes(16))
            told = client.do(OpCode.VERIFY_CHALLENGE, VerifyChallenge(ADMIN.encode(), index, nonce, digest, answer))
            assert told.is_certified
            assert told.body == VerificationResult(valid)
        elsewhere = VerifyChallenge(b"20.500.44444/keeper", 300, nonce, digest, b"x")
        assert client.do(OpCode.VERIFY_CHALLENGE, elsewhere).code is ResponseCode.SERVER_NOT_RESP


RECEIVER = MirrorShare(2, 1, 0)


@BOTH
@pytest.mark.parametrize("identity", [None, "rsa"], ids=["anybody", "administrator"])
@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (OpCode.GET_NEXT_TXN_ID, HandleRequest()),
        (OpCode.RETRIEVE_TXN_LOG, RetrieveTransactions(RECEIVER)),
        (OpCode.DUMP_HANDLES, DumpHandles(RECEIVER)),
    ],
    ids=lambda value: value.name if isinstance(value, OpCode) else "",
)
def test_mirrors_are_not_supported_yet(
    server: Serving, via: Via, identity: str | None, opcode: OpCode, body: RequestBody
) -> None:
    with client_of(server, via, identity) as client:
        assert client.do(opcode, body).code is ResponseCode.OPERATION_NOT_SUPPORTED


@BOTH
def test_administrator_creates_a_checkpoint(server: Serving, directory: Path, via: Via) -> None:
    with client_of(server, via, "dsa") as client, client_of(server, via) as anybody:
        name = f"{PREFIX}/before-the-checkpoint-{via.value}"
        assert client.create(name, (URL,)).code is ResponseCode.SUCCESS
        size = entries(directory)
        assert anybody.do(OpCode.BACKUP_SERVER, HandleRequest()).code is ResponseCode.AUTHENTICATION_NEEDED
        assert client.do(OpCode.BACKUP_SERVER, HandleRequest()).code is ResponseCode.SUCCESS
        with reading_of(directory) as reader:
            assert (reader.checkpoint_size() or 0) >= size


@BOTH
def test_status_requires_an_administrator(server: Serving, via: Via) -> None:
    with client_of(server, via, "rsa") as client:
        told = client.resolve("0.SITE/status", flags=READ_ALL).body
        assert isinstance(told, ResolutionResult)
        assert {"READY", "SESSIONS", "CHALLENGES", "ENTRIES"} <= {value.type for value in told.values}
        assert all(value.permissions == Permission.ADMIN_READ for value in told.values)


# Versions


@BOTH
@pytest.mark.parametrize("minor", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
def test_every_version_works_with_and_without_a_session(server: Serving, via: Via, minor: int) -> None:
    version = Version(2, minor)
    name = f"{PREFIX}/version-{via.value}-{minor}"
    identity = sorted(WHO)[minor % 3]
    certified = DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST
    with client_of(server, via, identity, version=version) as client:
        made = client.create(name, (URL, BY_ADMINS))
        assert made.code is ResponseCode.SUCCESS
        assert made.message.version == version
        session = client.begin_session()
        assert session.version == version
        for index in (7, 8):
            assert client.add(name, replace(SECRET_NOTE, index=index)).code is ResponseCode.SUCCESS
        sealed = client.resolve(name, flags=READ_ALL | OpFlag.ENCRYPT | OpFlag.CERTIFY)
        assert indexes(sealed) == [1, 7, 8, 100]
        assert sealed.message.envelope.encrypted
        assert sealed.is_certified
        client.end_session()
        signed = client.resolve(STD, flags=certified)
        assert signed.is_certified
        assert signed.digest is not None
        assert signed.message.version == version


@BOTH
def test_suggested_newer_version_is_used(server: Serving, via: Via) -> None:
    with client_of(server, via) as client:
        client.version = Version(2, 3)  # in which it writes; it speaks what is current
        answer = client.resolve(STD, flags=DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST)
        assert answer.message.version == CURRENT_VERSION
        assert answer.is_certified


@BOTH
def test_version_2_0_has_no_digests_and_its_own_challenge(server: Serving, via: Via) -> None:
    with client_of(server, via, "secret", version=Version(2, 0)) as client:
        found = client.resolve(STD, flags=DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)
        assert found.message.version == Version(2, 0)
        assert found.digest is None
        assert client.create(f"{PREFIX}/version-{via.value}-0", (URL,)).code is ResponseCode.SUCCESS


# What cannot be understood


@BOTH
def test_invalid_request_gets_a_response(server: Serving, via: Via) -> None:
    with client_of(server, via) as client:
        request = client.request(OpCode(9_999), Resolve(STD.encode()))
        (frame,) = client.exchange(request)
        assert frame.envelope.request_id in (UNKNOWN_REQUEST_ID, request.envelope.request_id)
        with pytest.raises(RemoteProtocolError, match="could not read the request"):
            client.ask(request)


def test_response_is_valid_for_twelve_hours(server: Serving) -> None:
    for via in (Via.UDP, Via.TCP):
        with client_of(server, via) as client:
            before = int(client.clock())
            expires = client.resolve(STD).message.header.expires
            assert before + MESSAGE_LIFETIME <= expires <= int(client.clock()) + MESSAGE_LIFETIME


def test_newer_version_gets_the_current_one(server: Serving) -> None:
    for via in (Via.UDP, Via.TCP):
        with client_of(server, via) as client:
            request = client.request(OpCode.RESOLUTION, Resolve(STD.encode()))
            newer = replace(request.envelope, version=Version(9, 9), suggested=Version(3, 11))
            (frame,) = client.exchange(replace(request, envelope=newer))
            assert frame.envelope.version == CURRENT_VERSION
            assert frame.payload[4:8] == ResponseCode.SUCCESS.to_bytes(4, "big")

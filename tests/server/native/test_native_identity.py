"""Authentication over the native protocol: challenges, keys, index 0, sessions, and keys that change."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.records import Create, Delete, Home, Modify, Remove
from perseid.registry.registry import Registry
from perseid.server.native.authentication import MAX_SECRETS, find_proving_secret
from perseid.server.native.decisions import Busy
from perseid.server.native.server import NativeServer, NativeSettings
from perseid.server.native.work import SecretGuess, Work, WorkKind, own_secret_id
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import Message
from perseid.wire.requests import ChallengeResponse, HandleRequest, RequestBody, Resolve, ValuesRequest, encode_request
from perseid.wire.responses import CreationResult
from perseid.wire.server import ChallengeProof
from perseid.wire.sessions import Identity, Session
from tests.registry.registries import OPERATOR
from tests.server.faults.machine import eventually
from tests.server.native.native_servers import (
    ADMIN,
    BY_ADMINS,
    DSA,
    HIDDEN,
    NEW,
    PREFIX,
    RSA,
    SEC,
    SITE,
    STD,
    URL,
    StartedRequest,
    Visitor,
    make_server,
    run_with,
    text_of,
)
from tests.wire.key_material import DSA_KEY, RSA_KEY, RSA_KEYS, SECRET

USER = f"{PREFIX}/user"
READ_ALL = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY


def create(visitor: Visitor, session: Session | None = None, name: bytes = NEW) -> Message:
    return visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(name, (URL, BY_ADMINS)), session=session)


def exists(registry: Registry, name: bytes = NEW) -> bool:
    with registry.snapshot() as snapshot:
        return snapshot.stored(Handle.parse(name.decode())).exists


def add_key(registry: Registry, name: str, *values: Value) -> None:
    registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")


def secret_at(index: int, secret: bytes = b"a secret") -> Value:
    return Value(index, "HS_SECKEY", secret, permissions=HIDDEN)


def administered(registry: Registry, name: str, *references: ValueRef) -> None:
    """Create a record with these administrators."""
    admins = [Value(100 + at, "HS_ADMIN", Admin(each).to_bytes()) for at, each in enumerate(references)]
    registry.do(Create(Handle.parse(name), (URL, *admins)), OPERATOR, "cli")


# What they may comes first, who they are afterwards


@pytest.mark.parametrize("proof", [b"a secret", b"a guess"], ids=["right", "wrong"])
def test_non_administrator_is_refused_whatever_the_response(registry: Registry, visitor: Visitor, proof: bytes) -> None:
    add_key(registry, USER, secret_at(300))
    request = create(visitor)
    answer = visitor.answer(visitor.ask(request), request, Identity(USER.encode(), 300), proof)
    refused = visitor.ask(answer, about=request)
    assert refused.code is ResponseCode.INVALID_ADMIN
    assert "cannot create" in text_of(refused)


@pytest.mark.parametrize(
    ("identity", "proof"),
    [(RSA, RSA_KEYS[0]), (DSA, RSA_KEY), (SEC, b"a guess"), (RSA, DSA_KEY)],
    ids=str,
)
def test_wrong_response_of_an_administrator_is_refused(
    registry: Registry, visitor: Visitor, identity: Identity, proof: bytes
) -> None:
    request = create(visitor)
    answer = visitor.answer(visitor.ask(request), request, identity, proof)
    refused = visitor.ask(answer, about=request)
    assert refused.code is ResponseCode.AUTHENTICATION_FAILED
    assert refused.message.header.opcode == OpCode.CREATE_HANDLE
    assert visitor.served[-1].is_authentication_failure
    assert visitor.served[-1].identity == ""
    assert not exists(registry)


def test_missing_and_wrong_key_get_the_same_text(registry: Registry, visitor: Visitor) -> None:
    administered(registry, f"{PREFIX}/x", ValueRef(0, ADMIN))
    texts = set()
    for index in (301, 399):
        request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
        answer = visitor.answer(visitor.ask(request), request, Identity(ADMIN.encode(), index), b"a guess")
        refused = visitor.ask(answer, about=request)
        assert refused.code is ResponseCode.AUTHENTICATION_FAILED
        texts.add(text_of(refused).replace(str(index), "N"))
    assert len(texts) == 1


def test_secret_key_and_public_key_do_not_replace_each_other(registry: Registry, visitor: Visitor) -> None:
    """The claimed kind of proof decides which keys are tried."""
    for identity, proof in ((RSA, RSA_KEY.public.to_bytes()), (SEC, RSA_KEY)):
        request = create(visitor)
        answer = visitor.answer(visitor.ask(request), request, identity, proof)
        assert visitor.ask(answer, about=request).code is ResponseCode.AUTHENTICATION_FAILED
    assert not exists(registry)


@pytest.mark.parametrize("type_", ["hs_pubkey", "HS_PUBKEY.x"])
def test_only_the_exact_type_is_a_public_key(registry: Registry, visitor: Visitor, type_: str) -> None:
    add_key(registry, USER, Value(300, type_, RSA_KEY.public.to_bytes()))
    administered(registry, f"{PREFIX}/x", ValueRef(300, USER))
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
    answer = visitor.answer(visitor.ask(request), request, Identity(USER.encode(), 300), RSA_KEY)
    assert visitor.ask(answer, about=request).code is ResponseCode.AUTHENTICATION_FAILED


def test_invalid_key_proves_nothing(registry: Registry, visitor: Visitor) -> None:
    add_key(registry, USER, Value(300, "HS_PUBKEY", b"not a key"), secret_at(301, b""))
    administered(registry, f"{PREFIX}/x", ValueRef(300, USER), ValueRef(301, USER))
    for index, proof in ((300, RSA_KEY), (301, b"")):
        request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
        answer = visitor.answer(visitor.ask(request), request, Identity(USER.encode(), index), proof)
        assert visitor.ask(answer, about=request).code is ResponseCode.AUTHENTICATION_FAILED


def test_identity_not_stored_here_is_refused_with_a_reason(registry: Registry, visitor: Visitor) -> None:
    administered(registry, f"{PREFIX}/x", ValueRef(300, "20.500.77777/admin"))
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
    answer = visitor.answer(visitor.ask(request), request, Identity(b"20.500.77777/admin", 300), RSA_KEY)
    refused = visitor.ask(answer, about=request)
    assert refused.code is ResponseCode.AUTHENTICATION_FAILED
    reason = "the prefix of 20.500.77777/admin is not hosted here, and its keys cannot be read"
    assert text_of(refused) == reason


def keep_hidden(registry: Registry, name: str, *values: Value, state: State = State.UNPUBLISHED) -> None:
    registry.ledger.append(Append(Draft(Action.RESERVE, state, name, "cli", "local:alice", values=values)))


CLAIMS = {
    "missing": (),
    "unpublished": (URL,),
    "reserved": (BY_ADMINS,),
    "with a key": (secret_at(300), Value(301, "HS_PUBKEY", RSA_KEY.public.to_bytes())),
    "invalid key": (Value(300, "HS_SECKEY", b""), Value(301, "HS_PUBKEY", b"not a key")),
    "other index": (secret_at(400), Value(401, "HS_PUBKEY", RSA_KEY.public.to_bytes())),
}
"""Records that somebody claims as an identity; all are hidden."""


@pytest.mark.parametrize(("index", "proof"), [(300, b"a guess"), (301, RSA_KEYS[0]), (0, b"a guess")], ids=str)
def test_claim_does_not_reveal_a_hidden_identity(
    registry: Registry, index: int, proof: bytes | PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by code and text, nor by the work that is done."""
    checks = {"check_secret": 0, "check_key": 0}
    for name in checks:
        original = getattr(ChallengeProof, name)

        def check(one: ChallengeProof, key: object, name: str = name, original: object = original) -> bool:
            checks[name] += 1
            return bool(original(one, key))  # type: ignore[operator]

        monkeypatch.setattr(ChallengeProof, name, check)
    for kind, values in CLAIMS.items():
        if values:
            state = State.RESERVED if kind == "reserved" else State.UNPUBLISHED
            keep_hidden(registry, f"{PREFIX}/{kind}", *values, state=state)
    work: list[WorkKind] = []

    def do(step: Work) -> object:
        work.append(step.kind)
        return step.call()

    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    outcomes = set()
    for kind in CLAIMS:
        work.clear()
        request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/absent".encode()))
        identity = Identity(f"{PREFIX}/{kind}".encode(), index)
        checks = dict.fromkeys(checks, 0)
        refused = visitor.ask(visitor.answer(visitor.ask(request), request, identity, proof), about=request)
        text = text_of(refused).replace(kind, "NAME")
        outcomes.add((refused.code, text, visitor.served[-1].is_authentication_failure, *work, *checks.items()))
    assert len(outcomes) == 1
    assert ResponseCode.AUTHENTICATION_FAILED in outcomes.pop()


def test_claim_does_not_reveal_a_hidden_record(registry: Registry, visitor: Visitor) -> None:
    """Also not that of an administrator with few permissions, of an owner, or of a member of a hidden group."""
    add_key(registry, USER, secret_at(300))
    permissions = AdminPermission.READ_VALUE | AdminPermission.ADD_VALUE
    few = Value(100, "HS_ADMIN", Admin(ValueRef(300, USER), permissions).to_bytes())
    keep_hidden(registry, f"{PREFIX}/draft", URL, few)
    keep_hidden(registry, f"{PREFIX}/later", few, state=State.RESERVED)
    keep_hidden(registry, f"{PREFIX}/group", Value(200, "HS_VLIST", ValueList((ValueRef(300, USER),)).to_bytes()))
    for group in ("group", "gone"):
        administered(registry, f"{PREFIX}/by-{group}", ValueRef(200, f"{PREFIX}/{group}"))

    def claim(opcode: OpCode, name: str, proof: bytes = b"a guess") -> tuple[ResponseCode, str]:
        bodies: dict[OpCode, RequestBody] = {OpCode.DELETE_HANDLE: HandleRequest(f"{PREFIX}/{name}".encode())}
        request = visitor.request(opcode, bodies.get(opcode) or ValuesRequest(f"{PREFIX}/{name}".encode(), (URL,)))
        answer = visitor.answer(visitor.ask(request), request, Identity(USER.encode(), 300), proof)
        refused = visitor.ask(answer, about=request)
        text = "" if refused.code is ResponseCode.SUCCESS else text_of(refused)
        return refused.code, text.replace(name, "NAME")

    for opcode in (OpCode.DELETE_HANDLE, OpCode.CREATE_HANDLE, OpCode.ADD_VALUE):
        assert len({claim(opcode, name) for name in ("draft", "later", "absent")}) == 1
    assert claim(OpCode.DELETE_HANDLE, "by-group") == claim(OpCode.DELETE_HANDLE, "by-gone")
    # With the right proof, permissions count.
    assert claim(OpCode.DELETE_HANDLE, "draft", b"a secret")[0] is ResponseCode.INVALID_ADMIN
    assert claim(OpCode.DELETE_HANDLE, "by-group", b"a secret")[0] is ResponseCode.SUCCESS
    assert claim(OpCode.CREATE_HANDLE, "later", b"a secret")[0] is ResponseCode.SUCCESS


def test_key_under_an_unhomed_prefix_proves_nothing(registry: Registry, visitor: Visitor) -> None:
    registry.do(Home("0.NA/20.500.66666"), OPERATOR, "cli")
    add_key(registry, "20.500.66666/user", secret_at(300))
    administered(registry, f"{PREFIX}/x", ValueRef(300, "20.500.66666/user"))
    registry.do(Home("0.NA/20.500.66666", unhome=True), OPERATOR, "cli")
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
    answer = visitor.answer(visitor.ask(request), request, Identity(b"20.500.66666/user", 300), b"a secret")
    assert visitor.ask(answer, about=request).code is ResponseCode.AUTHENTICATION_FAILED


@pytest.mark.parametrize("handle", [b"\xff", b"", b"no slash", b"0.SITE/HOMED/0.NA/0.NA"], ids=str)
def test_invalid_handle_is_not_an_identity(visitor: Visitor, handle: bytes) -> None:
    request = create(visitor)
    answer = visitor.answer(visitor.ask(request), request, Identity(handle, 300), b"x")
    assert visitor.ask(answer, about=request).code is ResponseCode.INVALID_ADMIN


def rewritten(answer: Message, **changes: object) -> Message:
    """The challenge response with changed fields."""
    body = ChallengeResponse.read(answer.body_reader(), answer.version, 0)
    raw = encode_request(replace(body, **changes), answer.version)  # type: ignore[arg-type]
    return Message.build(answer.envelope, answer.header, raw)


@pytest.mark.parametrize("kind", ["", "HS_CERT", "hs_pubkey"])
def test_unknown_authentication_type_is_an_invalid_credential(visitor: Visitor, kind: str) -> None:
    request = create(visitor)
    answer = rewritten(visitor.answer(visitor.ask(request), request, RSA), auth_type=kind)
    assert visitor.ask(answer, about=request).code is ResponseCode.INVALID_CREDENTIAL


# Index 0


ANY = Identity(ADMIN.encode(), 0)


@pytest.mark.parametrize("proof", [RSA_KEY, DSA_KEY, SECRET], ids=["rsa", "dsa", "secret"])
def test_administrator_without_an_index_may_use_any_key(registry: Registry, visitor: Visitor, proof: bytes) -> None:
    administered(registry, f"{PREFIX}/x", ValueRef(0, ADMIN))
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
    answer = visitor.answer(visitor.ask(request), request, ANY, proof)
    assert visitor.ask(answer, about=request).code is ResponseCode.SUCCESS


def test_identity_without_an_index_is_refused_if_an_index_is_required(visitor: Visitor) -> None:
    request = create(visitor)
    refused = visitor.ask(visitor.answer(visitor.ask(request), request, ANY, RSA_KEY), about=request)
    assert refused.code is ResponseCode.INVALID_ADMIN


@pytest.mark.parametrize("proof", [RSA_KEY, DSA_KEY, SECRET], ids=["rsa", "dsa", "secret"])
def test_session_takes_the_index_of_the_proving_key(registry: Registry, visitor: Visitor, proof: bytes) -> None:
    session = visitor.begin_session(ANY)
    request = create(visitor, session)
    answer = visitor.answer(visitor.ask(request, session), request, ANY, proof)
    assert visitor.ask(answer, session, about=request).code is ResponseCode.SUCCESS
    # And from then on.
    assert visitor.ask(create(visitor, session, NEW + b"2"), session).code is ResponseCode.SUCCESS
    with registry.snapshot() as snapshot:
        entry = snapshot.stored(Handle.parse(NEW.decode())).entry
    assert entry is not None
    assert entry.origin in {("native", f"{index}:{ADMIN}") for index in (300, 301, 302)}


def test_wrong_response_without_an_index_in_a_session_is_refused(visitor: Visitor) -> None:
    session = visitor.begin_session(ANY)
    request = create(visitor, session)
    answer = visitor.answer(visitor.ask(request, session), request, ANY, b"a guess")
    assert visitor.ask(answer, session, about=request).code is ResponseCode.INVALID_ADMIN
    nobody = Identity(b"20.500.77777/nobody", 0)
    session = visitor.begin_session(nobody)
    request = create(visitor, session)
    answer = visitor.answer(visitor.ask(request, session), request, nobody, b"a guess")
    assert visitor.ask(answer, session, about=request).code is ResponseCode.INVALID_ADMIN


@pytest.mark.parametrize(("index", "tries"), [(300, 1), (0, MAX_SECRETS)])
def test_wrong_secret_takes_the_same_work_whatever_secrets_there_are(index: int, tries: int) -> None:
    tried: list[bytes] = []

    def check(secret: bytes) -> bool:
        tried.append(secret)
        return False

    for count in range(tries + 1):
        tried.clear()
        keys = [secret_at(300 + at, b"a secret") for at in range(count)] + [secret_at(400, b"")]
        assert find_proving_secret(keys, check, index) is None
        assert len(tried) == tries


def test_number_of_tried_keys_is_limited(registry: Registry, visitor: Visitor) -> None:
    keys = [secret_at(300 + at, f"secret {at}".encode()) for at in range(MAX_SECRETS + 1)]
    add_key(registry, USER, *keys)
    administered(registry, f"{PREFIX}/x", ValueRef(0, USER))
    identity = Identity(USER.encode(), 0)
    for key, code in ((keys[-1], ResponseCode.AUTHENTICATION_FAILED), (keys[-2], ResponseCode.SUCCESS)):
        request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/x".encode()))
        answer = visitor.answer(visitor.ask(request), request, identity, key.data)
        assert visitor.ask(answer, about=request).code is code


# Challenges are used once


def test_challenge_cannot_be_used_twice(registry: Registry, visitor: Visitor) -> None:
    body = ValuesRequest(STD.encode(), (replace(URL, index=9),))
    request = visitor.request(OpCode.ADD_VALUE, body)
    answer = visitor.answer(visitor.ask(request), request, SEC)
    first = visitor.ask(answer, about=request)
    assert first.code is ResponseCode.SUCCESS
    size = registry.ledger.log
    with size.open_reader() as reader:
        entries = reader.size
    # The same octets get the same answer; executed again it would be a conflict.
    assert visitor.ask(answer, about=request).message.to_bytes() == first.message.to_bytes()
    other = rewritten(answer)
    other = replace(other, envelope=replace(other.envelope, request_id=other.envelope.request_id ^ 1))
    assert visitor.ask(other, about=request).code is ResponseCode.AUTHEN_TIMEOUT
    with size.open_reader() as reader:
        assert reader.size == entries


def test_concurrent_repeated_response_is_executed_once(registry: Registry, visitor: Visitor) -> None:
    request = create(visitor)
    answer = visitor.answer(visitor.ask(request), request, SEC)
    frame = visitor.client.pack(answer, None)
    runs = [StartedRequest(visitor, frame) for _ in range(2)]
    while any(run.response is None for run in runs):
        for run in runs:
            run.step()
    assert sorted(len(run.finish().reply.frames) for run in runs) == [0, 1]
    assert exists(registry)


def test_challenge_is_bound_to_its_request(registry: Registry, visitor: Visitor) -> None:
    """Two requests, two challenges; the response to one is not valid for the other."""
    first, second = create(visitor), create(visitor, name=NEW + b"2")
    one, two = visitor.ask(first), visitor.ask(second)
    answer = visitor.answer(one, first, SEC)
    moved = replace(answer, envelope=replace(answer.envelope, session_id=two.message.envelope.session_id))
    assert visitor.ask(moved, about=second).code is ResponseCode.AUTHENTICATION_FAILED
    assert not exists(registry, NEW)
    assert not exists(registry, NEW + b"2")


# Keys that change meanwhile


def change_key(registry: Registry) -> None:
    registry.do(Modify(Handle.parse(ADMIN), (secret_at(301, b"another"),)), OPERATOR, "cli")


def move_other_value(registry: Registry) -> None:
    registry.do(Remove(Handle.parse(ADMIN), (1,)), OPERATOR, "cli")


def test_key_changed_after_the_challenge_proves_nothing(registry: Registry, visitor: Visitor) -> None:
    request = create(visitor)
    answer = visitor.answer(visitor.ask(request), request, SEC)
    change_key(registry)
    assert visitor.ask(answer, about=request).code is ResponseCode.AUTHENTICATION_FAILED
    assert not exists(registry)


def count_readers(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how often this thread has read from the ledger since the last call."""
    readers: list[str] = []
    open_reader = registry.ledger.open_reader

    def opened() -> AbstractContextManager[LogReader]:
        readers.append(threading.current_thread().name)
        return open_reader()

    def count() -> int:
        found = readers.count(threading.current_thread().name)
        readers.clear()
        return found

    monkeypatch.setattr(registry.ledger, "open_reader", opened)
    return count


def test_wrong_proof_reads_the_ledger_as_often_for_every_identity(
    registry: Registry, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an identity is cached, stored or missing."""
    assert visitor.ask_as(SEC, create(visitor)).code is ResponseCode.SUCCESS
    missing = replace(SEC, handle=SEC.handle + b"-missing")
    count = count_readers(registry, monkeypatch)
    counts = []
    for identity in (SEC, missing):
        request = create(visitor, name=NEW + b"2")
        challenge = visitor.ask(request)
        count()
        answer = visitor.answer(challenge, request, identity, b"wrong")
        assert visitor.ask(answer, about=request).code is not ResponseCode.SUCCESS
        counts.append(count())
    assert counts[0] == counts[1]


def test_write_of_a_known_identity_reads_nothing(
    registry: Registry, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key and permissions were read before; the commit checks them, and that the handle is new."""
    eventually(lambda: registry.ledger.ready, "the answers view is ready")
    assert visitor.ask_as(RSA, create(visitor)).code is ResponseCode.SUCCESS
    count = count_readers(registry, monkeypatch)
    assert visitor.ask_as(RSA, create(visitor, name=NEW + b"2")).code is ResponseCode.SUCCESS
    assert count() == 0
    assert visitor.ask(create(visitor)).code is ResponseCode.HANDLE_ALREADY_EXISTS  # without a challenge


def test_key_changed_by_another_process_is_replaced_at_once(registry: Registry, visitor: Visitor) -> None:
    """What this process remembers of the identity is out of date."""
    assert visitor.ask_as(SEC, create(visitor)).code is ResponseCode.SUCCESS
    change_key(Registry(registry.ledger, registry.rules))
    read = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=READ_ALL)
    for request in (create(visitor, name=NEW + b"2"), read):
        assert visitor.ask_as(SEC, request).code is ResponseCode.AUTHENTICATION_FAILED
    assert not exists(registry, NEW + b"2")
    request = create(visitor, name=NEW + b"2")
    answer = visitor.answer(visitor.ask(request), request, SEC, b"another")
    assert visitor.ask(answer, about=request).code is ResponseCode.SUCCESS


@pytest.mark.parametrize("identity", [SEC, RSA], ids=["secret", "public"])
def test_proof_by_a_key_that_is_gone_counts_as_wrong(registry: Registry, visitor: Visitor, identity: Identity) -> None:
    """It is verified with the cached key; only the decision finds out."""
    assert visitor.ask_as(identity, create(visitor)).code is ResponseCode.SUCCESS
    assert visitor.served[-1].identity
    remove = Remove(Handle.parse(ADMIN), (identity.index,))
    Registry(registry.ledger, registry.rules).do(remove, OPERATOR, "cli")
    assert visitor.ask_as(identity, create(visitor, name=NEW + b"2")).code is ResponseCode.AUTHENTICATION_FAILED
    served = visitor.served[-1]
    guess = SecretGuess(own_secret_id(ADMIN), right=False) if identity == SEC else None
    assert (served.guess, served.failed_proof, served.identity) == (guess, True, "")


@pytest.mark.parametrize("is_busy", [False, True], ids=["read", "busy"])
def test_wrong_proof_is_one_attempt_even_if_the_server_is_busy(registry: Registry, is_busy: bool) -> None:
    """The cached key of another process is out of date, or the current one cannot be read."""
    attempts: list[bytes] = []
    answered = False

    def do(step: Work) -> object:
        if step.secret_of is not None:
            attempts.append(step.secret_of)
        if is_busy and answered and step.kind is WorkKind.READ:
            raise Busy
        return step.call()

    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    assert visitor.ask_as(SEC, create(visitor)).code is ResponseCode.SUCCESS
    change_key(Registry(registry.ledger, registry.rules))
    attempts.clear()
    request = create(visitor, name=NEW + b"2")
    answer, answered = visitor.answer(visitor.ask(request), request, SEC, b"wrong"), True
    code = visitor.ask(answer, about=request).code
    assert code is (ResponseCode.SERVER_TOO_BUSY if is_busy else ResponseCode.AUTHENTICATION_FAILED)
    assert visitor.served[-1].guess == SecretGuess(own_secret_id(ADMIN), right=False)
    assert attempts == [own_secret_id(ADMIN)]


@pytest.mark.parametrize(
    ("meanwhile", "code"),
    [(change_key, ResponseCode.AUTHENTICATION_FAILED), (move_other_value, ResponseCode.SUCCESS)],
    ids=["the key", "another value"],
)
def test_key_is_checked_in_the_snapshot_of_the_decision(
    registry: Registry, meanwhile: Callable[[Registry], None], code: ResponseCode
) -> None:
    """It changes after verification and before anything is written."""

    def do(step: Work) -> object:
        if step.kind is WorkKind.WRITE and verified:
            meanwhile(registry)
            verified.clear()
        if step.kind is WorkKind.VERIFY:
            verified.append(True)
        return step.call()

    verified: list[bool] = []
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    answer = visitor.ask_as(SEC, create(visitor))
    assert answer.code is code
    assert exists(registry) is (code is ResponseCode.SUCCESS)
    if code is not ResponseCode.SUCCESS:
        assert "was changed" in text_of(answer)


@pytest.mark.parametrize("private_read", [False, True], ids=["write", "read"])
def test_session_ends_when_its_key_changes(registry: Registry, visitor: Visitor, private_read: bool) -> None:
    session = visitor.begin_session()
    assert visitor.ask_as(SEC, create(visitor, session), session).code is ResponseCode.SUCCESS
    change_key(registry)
    if private_read:
        request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=READ_ALL, session=session)
    else:
        request = create(visitor, session, NEW + b"2")
    refused = visitor.ask(request, session)
    assert refused.code is ResponseCode.SESSION_TIMEOUT
    assert "was changed" in text_of(refused)
    assert not exists(registry, NEW + b"2")
    assert len(visitor.native_server.server.sessions) == 0


def test_session_ends_when_its_identity_is_deleted(registry: Registry, visitor: Visitor) -> None:
    add_key(registry, USER, secret_at(300))
    administered(registry, f"{PREFIX}/x", ValueRef(300, USER))
    identity = Identity(USER.encode(), 300)
    session = visitor.begin_session(identity)
    body = ValuesRequest(f"{PREFIX}/x".encode(), (replace(URL, index=5),))
    request = visitor.request(OpCode.ADD_VALUE, body, session=session)
    answer = visitor.answer(visitor.ask(request, session), request, identity, b"a secret")
    assert visitor.ask(answer, session, about=request).code is ResponseCode.SUCCESS
    registry.do(Delete(Handle.parse(USER)), OPERATOR, "cli")
    request = visitor.request(OpCode.ADD_VALUE, body, session=session)
    assert visitor.ask(request, session).code is ResponseCode.SESSION_TIMEOUT


# Sessions


def test_other_identity_in_a_session_is_valid_for_one_request(registry: Registry, visitor: Visitor) -> None:
    session = visitor.begin_session(SEC)
    request = create(visitor, session)
    assert visitor.ask_as(RSA, request, session).code is ResponseCode.SUCCESS
    again = create(visitor, session, NEW + b"2")
    assert visitor.ask(again, session).code is ResponseCode.AUTHENTICATION_NEEDED
    assert exists(registry)


def test_anonymous_session_has_no_identity(visitor: Visitor) -> None:
    session = visitor.begin_session(None)
    assert visitor.ask_as(SEC, create(visitor, session), session).code is ResponseCode.SUCCESS
    assert visitor.ask(create(visitor, session, NEW + b"2"), session).code is ResponseCode.AUTHENTICATION_NEEDED


def test_session_request_is_executed_once(registry: Registry, visitor: Visitor) -> None:
    session = visitor.begin_session()
    visitor.ask_as(SEC, create(visitor, session), session)
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(NEW), session=session)
    assert visitor.ask(request, session).code is ResponseCode.SUCCESS
    assert visitor.ask(request, session).code is ResponseCode.SESSION_MESSAGE_REJECTED
    assert not exists(registry)


def test_request_with_a_wrong_mac_is_not_executed(registry: Registry, visitor: Visitor) -> None:
    session = visitor.begin_session()
    visitor.ask_as(SEC, create(visitor, session), session)
    request = visitor.request(OpCode.DELETE_HANDLE, HandleRequest(NEW), session=session)
    assert request.credential is not None
    spoilt = replace(request, credential=replace(request.credential, signature=bytes(32)))
    assert visitor.ask(spoilt, session).code is ResponseCode.INVALID_SESSION_KEY
    bare = replace(request, credential=None)
    bare = replace(bare, envelope=bare.envelope.with_length(len(bare.payload())))
    assert visitor.ask(bare, session).code is ResponseCode.INVALID_CREDENTIAL
    assert exists(registry)


def test_sessions_may_be_required_for_authentication(registry: Registry) -> None:
    server = make_server()
    open_door = Visitor(NativeServer(registry, server, SITE))
    challenged = create(open_door)
    challenge = open_door.ask(challenged)
    visitor = Visitor(NativeServer(registry, server, SITE, settings=NativeSettings(sessions_required=True)), seed=3)
    public = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()))
    assert visitor.ask(public).code is ResponseCode.SUCCESS
    refused = visitor.ask(create(visitor))
    assert refused.code is ResponseCode.INVALID_CREDENTIAL
    assert "within a session only" in text_of(refused)
    answer = visitor.answer(challenge, challenged, SEC)
    assert visitor.ask(answer, about=challenged).code is ResponseCode.INVALID_CREDENTIAL
    session = visitor.begin_session()
    assert visitor.ask_as(SEC, create(visitor, session), session).body == CreationResult(NEW)

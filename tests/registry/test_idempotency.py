"""Idempotency keys: requests are replayed and never executed twice, even if a process is killed."""

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL

import pytest

from perseid.ledger.errors import TooBusy
from perseid.ledger.log import commit
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import KEY_LIFETIME, IdempotentRequest, Remember, StoredResponse
from perseid.ledger.store import idempotency, jobs
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry import idempotency as idempotency_keys
from perseid.registry.commands.lifecycle import Publish, Unpublish
from perseid.registry.commands.minting import Generate, Mint
from perseid.registry.commands.records import Create, Delete
from perseid.registry.context import Command, Context, Plan
from perseid.registry.idempotency import (
    DIGEST_LENGTH,
    Claim,
    Executed,
    IdempotencyKeys,
    InProgress,
    KeyReused,
    NewClaim,
    Replayed,
    caller_id,
)
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner
from perseid.registry.registry import AlreadyExecuted, Registry
from perseid.registry.results import ChangeResult, MintResult, Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.crash import Place, run_module
from tests.ledger.ledgers import Machine
from tests.registry import idempotency_crash
from tests.registry.access.token_identities import ANN, RULES, furnish, scope, shown
from tests.registry.registries import NOBODY, OPERATOR, handle, key_holder, registry_in_memory

URL = Value.text(1, "URL", "https://example.org/")
NEW = Create(handle("12345/new"), (URL,))


@pytest.fixture
def here(registry: Registry) -> Registry:
    """A registry on each back end."""
    furnish(registry)
    return registry


@pytest.fixture
def there(machine: Machine) -> Iterator[Registry]:
    """A registry for tests that need one back end."""
    with registry_in_memory(machine, RULES) as made:
        furnish(made)
        yield made


def digest(body: str = "") -> bytes:
    return hashlib.sha256(b"POST\0/api\0" + body.encode()).digest()


def changed(found: ChangeResult) -> StoredResponse:
    return StoredResponse(201, f"{found.handle} {found.seq}".encode())


def minted(found: MintResult) -> StoredResponse:
    return StoredResponse(201, "\n".join(map(str, found.handles)).encode())


def ask(
    keys: IdempotencyKeys,
    operation: Command[ChangeResult] = NEW,
    identity: Identity = OPERATOR,
    key: bytes = b"key",
    body: str = "",
) -> Executed | Replayed | KeyReused | InProgress:
    with keys.claim(identity, key, digest(body), changed) as claim:
        return keys.execute(claim, operation, identity, "http", changed) if isinstance(claim, NewClaim) else claim


async def ask_in_loop(
    keys: IdempotencyKeys, operation: Command[ChangeResult] = NEW
) -> Executed | Replayed | KeyReused | InProgress:
    with keys.claim(OPERATOR, b"key", digest(), changed) as claim:
        assert isinstance(claim, NewClaim)
        return await keys.execute_in_loop(claim, operation, OPERATOR, "http", changed)


def size(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


# Answered again


def test_repeated_request_gets_the_same_response(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    first = ask(keys)
    assert isinstance(first, Executed)
    before = size(here)
    for again in (ask(keys), ask(IdempotencyKeys(here))):
        assert again == Replayed(201, first.answer.body, before, 1)
    assert size(here) == before
    assert first.answer.body == b"12345/new %d" % before


def test_key_with_another_body_is_reused_key(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    ask(keys)
    before = size(here)
    assert ask(keys, Create(handle("12345/other"), (URL,)), body="other") == KeyReused()
    assert size(here) == before


def test_keys_belong_to_an_identity(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    identity: list[Identity] = [OPERATOR, ANN, shown(here, ANN, scope("create")), shown(here, ANN, scope("create"))]
    assert len({caller_id(each) for each in identity}) == 4
    for number, each in enumerate(identity):
        assert isinstance(ask(keys, Create(handle(f"12345/{number}"), (URL,)), each), Executed)
    for each in identity:
        assert isinstance(ask(keys, NEW, each), Replayed)


def test_key_expires_after_a_day(here: Registry, machine: Machine) -> None:
    keys = IdempotencyKeys(here)
    ask(keys)
    machine.run(KEY_LIFETIME)
    assert isinstance(ask(keys, Create(handle("12345/other"), (URL,)), body="other"), Executed)


def test_handles_are_minted_once(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    found: list[bytes] = []
    for order in (Mint("12345", 3, values=(URL,)), Generate("12345", 3)):
        key = secrets.token_bytes(16)
        for _ in range(2):
            with keys.claim(OPERATOR, key, digest(), minted) as claim:
                done = keys.execute(claim, order, OPERATOR, "http", minted) if isinstance(claim, NewClaim) else claim
            assert isinstance(done, Executed | Replayed)
            body = done.answer.body if isinstance(done, Executed) else done.body
            assert body is not None
            found.append(body)
    assert found[0] == found[1] != found[2] == found[3]
    assert len(found[0].split()) == len(found[2].split()) == 3


def test_unchanged_result_is_replayed_too(there: Registry) -> None:
    """Otherwise a late request would do what it did not do the first time."""
    keys = IdempotencyKeys(there)
    there.do(NEW, OPERATOR, "cli")
    publish = Publish(NEW.handle)
    first = ask(keys, publish)
    assert isinstance(first, Executed)
    there.do(Unpublish(NEW.handle), OPERATOR, "cli")
    before = size(there)
    assert ask(keys, publish) == Replayed(201, first.answer.body, 0, 0)
    assert size(there) == before


def test_long_result_is_not_stored(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MAX_BODY", 10)
    keys = IdempotencyKeys(there)
    assert isinstance(ask(keys), Executed)
    assert ask(keys) == Replayed(201, None, size(there), 1)


def test_response_that_an_earlier_version_stored_is_replayed(there: Registry) -> None:
    keys = IdempotencyKeys(there)
    with keys.claim(OPERATOR, b"key", digest(), changed) as claim:
        assert isinstance(claim, NewClaim)
        there.ledger.append(Remember(IdempotentRequest(claim.caller, claim.key, claim.digest, 201, b"as it was")))
    assert ask(keys) == Replayed(201, b"as it was", 0, 0)


def test_refused_request_can_be_retried(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            ask(keys, Delete(NEW.handle))
        assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND
    here.do(NEW, OPERATOR, "cli")
    assert isinstance(ask(keys, Delete(NEW.handle)), Executed)
    assert isinstance(ask(keys, Delete(NEW.handle)), Replayed)


def test_response_of_several_commits_is_stored_afterwards(here: Registry) -> None:
    keys = IdempotencyKeys(here)
    answer = StoredResponse(202, b"the operation")
    with keys.claim(OPERATOR, b"key", digest()) as claim:
        assert isinstance(claim, NewClaim)
        unit = runner.start_job(here, "test", {}, OPERATOR, "http")
        here.ledger.change(jobs.EndJob(unit.id))
        assert keys.keep(claim, answer) == Executed(answer)
        assert keys.keep(claim, StoredResponse(500, b"")) == Replayed(202, b"the operation", 0, 0)
        assert keys.keep(replace(claim, digest=digest("x")), answer) == KeyReused()
    with keys.claim(OPERATOR, b"key", digest()) as again:
        assert again == Replayed(202, b"the operation", 0, 0)


# At the same time


def test_concurrent_request_is_in_progress(there: Registry) -> None:
    keys = IdempotencyKeys(there)
    with keys.claim(OPERATOR, b"key", digest()) as first:
        assert isinstance(first, NewClaim)
        assert ask(keys) == InProgress()
        assert ask(keys, body="other") == InProgress()
        assert isinstance(ask(keys, Create(handle("12345/2"), (URL,)), key=b"other"), Executed)
        assert isinstance(ask(keys, Create(handle("12345/3"), (URL,)), ANN), Executed)
    assert isinstance(ask(keys), Executed)


def test_claim_ends_with_its_block(there: Registry) -> None:
    keys = IdempotencyKeys(there)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), keys.claim(OPERATOR, b"key", digest()):
            raise error
    assert isinstance(ask(keys), Executed)


@dataclass(frozen=True)
class Meanwhile:
    """A command with a callback before or after its decision."""

    operation: Command[ChangeResult]
    happens: list[Callable[[], object]]
    first: bool

    def decide(self, context: Context) -> Plan[ChangeResult]:
        if self.first and self.happens:
            self.happens.pop()()
        plan = context.decide(self.operation)
        if self.happens:
            self.happens.pop()()
        return plan


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("body", ["", "other"])
@pytest.mark.parametrize("in_loop", [False, True])
def test_same_request_in_another_process_is_executed_once(
    here: Registry, first: bool, body: str, in_loop: bool
) -> None:
    """Decided before or after: it gets the other response, and does nothing."""
    keys, others = IdempotencyKeys(here), IdempotencyKeys(here)
    done: list[Claim | Executed] = []
    late = Meanwhile(NEW, [lambda: done.append(ask(others, body=body))], first)
    found = asyncio.run(ask_in_loop(keys, late)) if in_loop else ask(keys, late)
    (other,) = done
    assert isinstance(other, Executed)
    if body:
        assert found == KeyReused()
    else:
        assert found == Replayed(201, other.answer.body, size(here), 1)
    with here.ledger.open_reader() as reader:
        assert len(list(reader.history(b"12345/NEW"))) == 1


def test_concurrent_requests_are_executed_once(here: Registry) -> None:
    several = [IdempotencyKeys(here) for _ in range(3)]
    order = Mint("12345", values=(URL,))
    found: list[object] = []

    def work(keys: IdempotencyKeys) -> None:
        for _ in range(20):
            with keys.claim(OPERATOR, b"key", digest(), minted) as claim:
                done = keys.execute(claim, order, OPERATOR, "http", minted) if isinstance(claim, NewClaim) else claim
            found.append(done)

    before = size(here)
    threads = [threading.Thread(target=work, args=(keys,)) for keys in several for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert size(here) == before + 1
    bodies = {
        each.answer.body if isinstance(each, Executed) else each.body
        for each in found
        if isinstance(each, Executed | Replayed)
    }
    assert len(bodies) == 1
    assert sum(isinstance(each, Executed) for each in found) == 1
    assert len(found) == 180


# Refused


@pytest.mark.parametrize(
    ("identity", "key", "code"),
    [
        (OPERATOR, b"", ResponseCode.INVALID_VALUE),
        (OPERATOR, bytes(256), ResponseCode.INVALID_VALUE),
        (NOBODY, b"key", ResponseCode.AUTHENTICATION_NEEDED),
    ],
)
def test_invalid_key_is_refused(there: Registry, identity: Identity, key: bytes, code: ResponseCode) -> None:
    with pytest.raises(Refused) as caught:
        ask(IdempotencyKeys(there), NEW, identity, key)
    assert caught.value.code is code


@pytest.mark.parametrize("key", [b"\0", bytes(255), "schlüssel".encode(), b"'; DROP TABLE entries; --"])
def test_any_bytes_are_a_valid_key(here: Registry, key: bytes) -> None:
    keys = IdempotencyKeys(here)
    assert isinstance(ask(keys, key=key), Executed)
    assert isinstance(ask(keys, key=key), Replayed)


def test_digest_length_is_checked(there: Registry) -> None:
    with pytest.raises(ValueError, match="32 bytes"), IdempotencyKeys(there).claim(OPERATOR, b"key", b"short"):
        pass


def test_new_key_is_refused_when_the_quota_is_used_up(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = IdempotencyKeys(there)
    ask(keys)
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "MAX_KEYS_PER_OWNER", 1)
        keys = IdempotencyKeys(there)
        assert isinstance(ask(keys), Replayed)
        with pytest.raises(
            Refused, match="You have too many stored idempotency keys; each is kept for 24 hours"
        ) as caught:
            ask(keys, key=b"another")
        assert caught.value.code is ResponseCode.SERVER_TOO_BUSY
        assert isinstance(ask(keys, Create(handle("12345/2"), (URL,)), ANN), Executed)
    monkeypatch.setattr(idempotency, "MAX_KEYS", 2)
    with pytest.raises(Refused, match="The server has too many"):
        ask(IdempotencyKeys(there), key=b"another")


def test_keys_are_counted_once_in_a_while(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[bytes] = []
    check, now = idempotency.check_capacity, 100.0

    def count(log: Log, caller: bytes) -> idempotency.KeyCapacity:
        counted.append(caller)
        return check(log, caller)

    monkeypatch.setattr(idempotency, "check_capacity", count)
    monkeypatch.setattr(idempotency_keys, "MAX_OWNERS", 1)
    monkeypatch.setattr(idempotency_keys, "monotonic", lambda: now)
    keys = IdempotencyKeys(there)

    def claim(number: int, identity: Identity = OPERATOR) -> int:
        counted.clear()
        with keys.claim(identity, b"%d" % number, bytes(DIGEST_LENGTH)) as claimed:
            assert isinstance(claimed, NewClaim)
        return len(counted)

    assert [claim(number) for number in range(3)] == [1, 0, 0]
    now += idempotency_keys.CAPACITY_SECONDS
    assert [claim(3), claim(4)] == [1, 0]
    assert [claim(5, ANN), claim(6)] == [1, 1], "the owners are bounded"
    monkeypatch.setattr(idempotency, "MAX_KEYS_PER_OWNER", 2)
    now += idempotency_keys.CAPACITY_SECONDS
    assert [claim(number) for number in range(5)] == [1, 0, 1, 0, 1], "a refusal relies on a new count"


def test_tokens_share_the_quota_of_their_issuer(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token has its keys; the quota is that of its issuer, in any spelling."""
    monkeypatch.setattr(idempotency, "MAX_KEYS_PER_OWNER", 3)
    keys = IdempotencyKeys(here)
    spelt = key_holder(300, "0.na/12345")
    first: list[Identity] = [ANN, shown(here, ANN, scope("create")), spelt]
    more: list[Identity] = [ANN, spelt, shown(here, ANN, scope("create")), shown(here, spelt, scope("create"))]
    for number, identity in enumerate(first):
        assert isinstance(ask(keys, Create(handle(f"12345/{number}"), (URL,)), identity), Executed)
    for identity in more:
        with pytest.raises(Refused, match="You have too many"):
            ask(keys, Create(handle("12345/3"), (URL,)), identity, key=b"another")
    assert isinstance(ask(keys, Create(handle("12345/3"), (URL,)), OPERATOR), Executed)


def test_failure_is_raised_unchanged(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object, **__: object) -> object:
        raise TooBusy("later")

    keys = IdempotencyKeys(there)
    with monkeypatch.context() as patch:
        patch.setattr(there, "do", busy)
        patch.setattr(there, "execute", busy)
        with pytest.raises(TooBusy):
            ask(keys)
        with pytest.raises(TooBusy):
            asyncio.run(ask_in_loop(keys))
    assert isinstance(ask(keys), Executed)


def test_registry_reports_the_stored_record(there: Registry) -> None:
    once = IdempotentRequest(bytes(32), b"key", digest(), 201)
    made = there.do(NEW, OPERATOR, "cli", once=once)
    with pytest.raises(AlreadyExecuted) as caught:
        there.do(Create(Handle.parse("12345/2"), (URL,)), OPERATOR, "cli", once=once)
    assert caught.value.record.seq == made.seq


# Killed


def test_killed_process_executes_once_or_not_at_all(where: str, tmp_path: Path) -> None:
    options = ("--where", where, "--folder", tmp_path, "--rounds", 6, "--seed", 20260101)
    done = run_module("tests.registry.idempotency_crash", *options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_after_commit_and_before_the_response(where: str, tmp_path: Path) -> None:
    """The moment that keys are made for."""
    done = run_module("tests.registry.idempotency_crash", "--where", where, "--folder", tmp_path, "--die-at", 7)
    assert done.returncode == -SIGKILL, done.stdout + done.stderr
    with Place(where, tmp_path).open() as ledger:
        before = ledger.log
        with before.open_reader() as reader:
            entries = reader.size
        registry = Registry(ledger, RULES)
        name = idempotency_crash.ask(IdempotencyKeys(registry), 7)
        with before.open_reader() as reader:
            assert reader.size == entries, "it was not carried out again"
            assert reader.entry(entries).handle == name

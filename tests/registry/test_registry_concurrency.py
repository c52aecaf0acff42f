"""Concurrent commands: one wins, the others are refused, and no removed permission is used."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from perseid.ledger.errors import TooBusy
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import homed_name, policy_name, record_key
from perseid.ledger.log.requests import Append, Failed, Outcome, Request
from perseid.ledger.views.answers import Answers
from perseid.names.handle import Handle
from perseid.records.admin import ValueList
from perseid.records.record import Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.context import Command, Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import ATTEMPTS_BEFORE_DEFERRING, MAX_ATTEMPTS, Execution, Registry
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import POLICY_TYPE, Rules
from perseid.wire.codes import ResponseCode
from tests.ledger.answer_ledgers import process
from tests.ledger.ledgers import SIGNER, log_of_today, open_store, postgres_with_tables, sqlite_with_tables, verified
from tests.postgres import postgres
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder

__all__ = ["postgres"]

RC = ResponseCode
THREADS = 16
PROCESSES = 3
NAMES = tuple(f"12345/{number}" for number in range(80))
ADMIN = key_holder(300, "0.NA/12345")
OWNER = key_holder(300, "77/owner")
MEMBER = key_holder(300, "77/member")
URL = Value.text(1, "URL", "https://example.org/")
RULES = Rules(Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),)))


@contextmanager
def opened(where: str, folder: Path) -> Iterator[Registry]:
    """The registry over an existing ledger, with the current time."""
    with Ledger(log_of_today(open_store(where)), Answers(folder / "answers")) as ledger:
        yield Registry(ledger, RULES)


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new ledger with a namespace 12345, on each back end."""
    if request.param == "sqlite":
        address = str(tmp_path / "ledger.db")
        store = sqlite_with_tables(Path(address))
    else:
        address = postgres_with_tables(request.getfixturevalue("postgres"))
        store = open_store(address)
    log_of_today(store).create(SIGNER)
    store.close()
    with opened(address, tmp_path) as registry:
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "12345", "free", admin(100, "300:0.NA/12345"))
    return address


@pytest.fixture
def registry(where: str, tmp_path: Path) -> Iterator[Registry]:
    with opened(where, tmp_path) as made:
        yield made


def outcome(registry: Registry, operation: Command[object], identity: Identity = ADMIN) -> int:
    """The response code of a command."""
    try:
        registry.do(operation, identity, "native")
    except Refused as refused:
        return int(refused.code)
    return int(RC.SUCCESS)


def all_at_once(number: int, work: Callable[[int], None]) -> None:
    """Run threads from the same moment on; raise what fails in one of them."""
    start = threading.Barrier(number)
    failed: list[BaseException] = []

    def run(which: int) -> None:
        start.wait()
        try:
            work(which)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that reports
            failed.append(error)

    threads = [threading.Thread(target=run, args=(which,)) for which in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def size(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


def data(registry: Registry, name: str) -> str:
    return registry.resolve(Query(handle(name), indexes=[1]), NOBODY).values[0].data.decode()


def shuffled(seed: int, names: Sequence[str] = NAMES) -> list[str]:
    return random.Random(seed).sample(names, len(names))


def check_winners(registry: Registry, outcomes: dict[str, dict[str, int]]) -> None:
    """Each handle has one winner and its value; all others were refused."""
    for name in NAMES:
        codes = {identity: told[name] for identity, told in outcomes.items()}
        assert Counter(codes.values()) == {RC.SUCCESS: 1, RC.HANDLE_ALREADY_EXISTS: len(outcomes) - 1}, name
        assert codes[data(registry, name)] == RC.SUCCESS


# The same names


def test_one_of_16_threads_creates_each_handle(registry: Registry) -> None:
    before = size(registry)
    outcomes: dict[str, dict[str, int]] = {str(which): {} for which in range(THREADS)}

    def work(which: int) -> None:
        # Half of them in the same order, so that they meet at every name; the others anyhow.
        for name in NAMES if which % 2 else shuffled(which):
            value = Value.text(1, "URL", str(which))
            outcomes[str(which)][name] = outcome(registry, Create(handle(name), (value,)))

    all_at_once(THREADS, work)
    check_winners(registry, outcomes)
    assert size(registry) == before + len(NAMES)
    assert verified(registry.ledger.log) == before + len(NAMES)


def create_all(pipe: Connection, where: str, folder: Path, me: str) -> None:
    """Worker process: create every handle on request, and report the result."""
    told: dict[str, int] = {}
    with opened(where, folder) as registry:
        pipe.send("ready")
        pipe.recv()
        for name in shuffled(7) if me == "0" else NAMES:
            told[name] = outcome(registry, Create(handle(name), (Value.text(1, "URL", me),)))
    pipe.send(told)


def test_one_of_3_processes_creates_each_handle(where: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        children = [
            stack.enter_context(process(create_all, where, tmp_path, str(which)))[1] for which in range(PROCESSES)
        ]
        assert [pipe.recv() for pipe in children] == ["ready"] * PROCESSES
        for pipe in children:
            pipe.send("go")
        outcomes = {str(which): pipe.recv() for which, pipe in enumerate(children)}
    with opened(where, tmp_path) as registry:
        check_winners(registry, outcomes)
        assert verified(registry.ledger.log) == size(registry)


def test_one_of_16_threads_deletes_a_handle(registry: Registry) -> None:
    for name in NAMES[:10]:
        registry.do(Create(handle(name), (URL, admin(100, "300:77/owner"))), ADMIN, "native")
        codes: list[int] = []

        def work(_: int, name: str = name, codes: list[int] = codes) -> None:
            codes.append(outcome(registry, Delete(handle(name)), OWNER))

        all_at_once(THREADS, work)
        assert Counter(codes) == {RC.SUCCESS: 1, RC.HANDLE_NOT_FOUND: THREADS - 1}


def test_one_of_16_threads_creates_a_namespace(registry: Registry) -> None:
    codes: list[int] = []
    before = size(registry)
    all_at_once(THREADS, lambda _: codes.append(outcome(registry, AddNamespace("55", PROFILES["free"]), OPERATOR)))
    assert Counter(codes) == {RC.SUCCESS: 1, RC.HANDLE_ALREADY_EXISTS: THREADS - 1}
    assert size(registry) == before + 3


def test_nothing_is_lost_when_16_threads_add_to_one_record(registry: Registry) -> None:
    """Each failure means that another one succeeded, so 16 threads do not exhaust their attempts."""
    registry.do(Create(handle("12345/x"), (URL, admin(100, "300:77/owner"))), ADMIN, "native")

    def work(which: int) -> None:
        registry.do(Add(handle("12345/x"), (Value.text(200 + which, "DESC", str(which)),)), OWNER, "native")

    all_at_once(THREADS, work)
    found = registry.resolve(Query(handle("12345/x")), NOBODY).values
    assert [value.index for value in found] == [1, 100, *range(200, 200 + THREADS)]


def test_concurrent_adds_and_removes_keep_other_values(registry: Registry) -> None:
    registry.do(Create(handle("12345/x"), (URL, admin(100, "300:77/owner"))), ADMIN, "native")

    def work(which: int) -> None:
        registry.do(Add(handle("12345/x"), (Value.text(1000 + which, "DESC", ""),)), OWNER, "native")
        registry.do(Remove(handle("12345/x"), (1000 + which,)), OWNER, "native")

    before = size(registry)
    all_at_once(8, work)
    assert size(registry) == before + 16
    assert [value.index for value in registry.resolve(Query(handle("12345/x")), NOBODY).values] == [1, 100]


# What moves between the decision and the commit


class Between:
    """Changes the ledger between a decision and its commit."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.registry = registry
        self.decisions = 0
        self.times = times
        self.changes: list[Draft] = []
        self._append = registry.ledger.append
        monkeypatch.setattr(registry.ledger, "append", self.append)
        monkeypatch.setattr(Execution, "decide", self._counting(Execution.decide))

    def append(self, *requests: Request) -> list[Outcome]:
        if self.times:
            self.times -= 1
            self._append(*[Append(change) for change in self.changes])
        return self._append(*requests)

    def _counting(self, decide: Callable[..., object]) -> Callable[..., object]:
        def decided(*arguments: object) -> object:
            execution = arguments[0]
            assert isinstance(execution, Execution)
            was_done = execution._is_done
            request = decide(*arguments)
            self.decisions += not was_done
            return request

        return decided


def becomes(name: str, *values: Value, state: State = State.NORMAL) -> Draft:
    return Draft(Action.UPDATE, state, name, "test", "local:test", values=values)


OTHER_ADMIN = admin(100, "300:77/somebody")
FORBIDDING = Value(1, POLICY_TYPE, replace(PROFILES["free"], forbidden_types=("EMAIL",)).to_toml().encode())
GROUP = Value(200, "HS_VLIST", ValueList((MEMBER.reference,)).to_bytes())
NO_GROUP = Value(200, "HS_VLIST", ValueList((OWNER.reference,)).to_bytes())
EMAIL = Value.text(4, "EMAIL", "someone@example.org")
NEW, OLD, GROUPED = handle("12345/new"), handle("12345/old"), handle("12345/grouped")


@dataclass(frozen=True)
class Case:
    """A command that is allowed when decided, a change before the commit, and the outcome."""

    operation: Command[object]
    identity: Identity
    change: Draft
    code: ResponseCode


CASES = {
    "the prefix's administrator is removed": Case(
        Create(NEW, (URL,)), ADMIN, becomes("0.NA/12345", OTHER_ADMIN), RC.INVALID_ADMIN
    ),
    "the prefix handle is deleted": Case(
        Create(NEW, (URL,)), ADMIN, becomes("0.NA/12345", state=State.ABSENT), RC.INVALID_ADMIN
    ),
    "the prefix is unhomed": Case(
        Create(NEW, (URL,)), ADMIN, becomes(homed_name("0.NA/12345"), state=State.ABSENT), RC.SERVER_NOT_RESP
    ),
    "the policy forbids a type": Case(
        Create(NEW, (EMAIL,)), ADMIN, becomes(policy_name("12345"), FORBIDDING), RC.INVALID_VALUE
    ),
    "somebody else creates the name": Case(
        Create(NEW, (URL,)), ADMIN, becomes(str(NEW), EMAIL), RC.HANDLE_ALREADY_EXISTS
    ),
    "somebody else reserves the name": Case(
        Create(NEW, (URL,)), ADMIN, becomes(str(NEW), OTHER_ADMIN, state=State.RESERVED), RC.HANDLE_ALREADY_EXISTS
    ),
    "the record's administrator is removed": Case(
        Add(OLD, (EMAIL,)), OWNER, becomes(str(OLD), URL, OTHER_ADMIN), RC.INVALID_ADMIN
    ),
    "the index is taken": Case(
        Add(OLD, (EMAIL,)), OWNER, becomes(str(OLD), EMAIL, admin(100, "300:77/owner")), RC.VALUE_ALREADY_EXISTS
    ),
    "the value becomes read-only": Case(
        Modify(OLD, (Value.text(1, "URL", "x"),)),
        OWNER,
        becomes(str(OLD), replace(URL, permissions=URL.permissions & ~4), admin(100, "300:77/owner")),
        RC.INSUFFICIENT_PERMISSIONS,
    ),
    "the value is removed": Case(
        Remove(OLD, (1,)), OWNER, becomes(str(OLD), admin(100, "300:77/owner")), RC.VALUES_NOT_FOUND
    ),
    "the record is deleted": Case(Delete(OLD), OWNER, becomes(str(OLD), state=State.ABSENT), RC.HANDLE_NOT_FOUND),
    "the member leaves the group": Case(Delete(GROUPED), MEMBER, becomes("12345/group", NO_GROUP), RC.INVALID_ADMIN),
    "the group is deleted": Case(Delete(GROUPED), MEMBER, becomes("12345/group", state=State.ABSENT), RC.INVALID_ADMIN),
    "the whole record changes, so that replacing it needs more": Case(
        Create(OLD, (URL, admin(100, "300:77/owner"), EMAIL), overwrite=True),
        OWNER,
        becomes(str(OLD), URL, OTHER_ADMIN),
        RC.INVALID_ADMIN,
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_changed_precondition_is_decided_again_and_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    registry.do(Create(OLD, (URL, admin(100, "300:77/owner"))), ADMIN, "native")
    registry.do(Create(handle("12345/group"), (GROUP,)), ADMIN, "native")
    registry.do(Create(GROUPED, (URL, admin(100, "200:12345/group"))), ADMIN, "native")
    assert registry.explain(case.operation, case.identity, "native").allowed
    between = Between(registry, monkeypatch, times=1)
    between.changes = [case.change]
    before = size(registry)
    with pytest.raises(Refused) as caught:
        registry.do(case.operation, case.identity, "native")
    assert caught.value.code is case.code
    assert between.decisions == 1, "and a second time, which refused"
    assert size(registry) == before + 1


def test_changed_precondition_that_still_allows_it_succeeds(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = admin(100, "300:77/owner")
    registry.do(Create(OLD, (URL, owner)), ADMIN, "native")
    between = Between(registry, monkeypatch, times=3)
    between.changes = [becomes(str(OLD), Value.text(1, "URL", "https://example.org/moved"), owner)]
    registry.do(Add(OLD, (EMAIL,)), OWNER, "native")
    assert between.decisions == ATTEMPTS_BEFORE_DEFERRING + 1
    assert data(registry, str(OLD)) == "https://example.org/moved"
    assert [value.index for value in registry.resolve(Query(OLD), NOBODY).values] == [1, 4, 100]


def test_unread_changes_do_not_matter(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    between = Between(registry, monkeypatch, times=1)
    between.changes = [becomes("12345/other", URL), becomes("0.NA/99", URL), becomes(homed_name("0.NA/99"))]
    registry.do(Create(NEW, (URL,)), ADMIN, "native")
    assert between.decisions == 1


def test_changed_precondition_without_work_left_writes_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = admin(100, "300:77/owner")
    registry.do(Create(OLD, (URL, owner)), ADMIN, "native")
    between = Between(registry, monkeypatch, times=1)
    between.changes = [becomes(str(OLD), Value.text(1, "URL", "same"), owner)]
    before = size(registry)
    changed = registry.do(Modify(OLD, (Value.text(1, "URL", "same"),)), OWNER, "native")
    assert (changed.seq, size(registry), between.decisions) == (before + 1, before + 1, 2)


@dataclass(frozen=True)
class Wrapped:
    """A command that cannot be deferred, because it is not data."""

    command: Command[object]

    def decide(self, context: Context) -> Plan[object]:
        return self.command.decide(context)


@pytest.mark.parametrize("which", ["own record", "prefix handle"])
def test_busy_record_delays_nobody_forever(registry: Registry, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """After two conflicts a command is decided inside the commit; one that cannot be is refused in the end."""
    owner = admin(100, "300:77/owner")
    registry.do(Create(OLD, (URL, owner)), ADMIN, "native")
    between = Between(registry, monkeypatch, times=10_000)
    if which == "own record":
        operation: Command[object] = Add(OLD, (EMAIL,))
        identity, between.changes = OWNER, [becomes(str(OLD), URL, owner)]
    else:
        operation = Create(NEW, (URL,))
        identity, between.changes = ADMIN, [becomes("0.NA/12345", admin(100, "300:0.NA/12345"))]
    before = size(registry)
    with pytest.raises(TooBusy, match="nothing was written"):
        registry.do(Wrapped(operation), identity, "native")
    assert between.decisions == MAX_ATTEMPTS
    assert size(registry) == before + MAX_ATTEMPTS
    between.decisions = 0
    registry.do(operation, identity, "native")
    assert between.decisions == ATTEMPTS_BEFORE_DEFERRING + 1
    with registry.ledger.open_reader() as reader:
        record = reader.record(record_key(str(OLD if which == "own record" else NEW)))
    assert record is not None
    assert [value.index for value in record.record() if value.index < 100] == ([1, 4] if which == "own record" else [1])


def test_requests_of_one_commit_are_decided_one_after_the_other(registry: Registry) -> None:
    """Each one sees what the ones before it have changed, although nothing of that is committed yet."""
    registry.do(Create(OLD, (URL, admin(100, "300:77/owner"))), ADMIN, "native")
    commands: list[Command[object]] = [
        *[Add(OLD, (Value.text(200 + number, "DESC", str(number)),)) for number in range(3)],
        Mint("12345", 2, values=(URL,)),
        Add(OLD, (Value.text(201, "DESC", "taken"),)),
        Delete(OLD),
        Remove(OLD, (1,)),
        RemoveNamespace("12345"),
    ]
    deferred = [Execution(registry, each, OPERATOR, "cli", "", {}, "", None) for each in commands]
    for execution in deferred:
        execution._attempts = ATTEMPTS_BEFORE_DEFERRING
    requests = [execution.decide() for execution in deferred]
    outcomes = registry.ledger.log.append([request for request in requests if request is not None])
    codes = [
        each.error.code if isinstance(each, Failed) and isinstance(each.error, Refused) else 1 for each in outcomes
    ]
    assert codes == [1, 1, 1, 1, RC.VALUE_ALREADY_EXISTS, 1, RC.HANDLE_NOT_FOUND, RC.INVALID_VALUE]
    assert verified(registry.ledger.log) == size(registry)


def test_execution_in_an_event_loop_waits_for_the_commit(registry: Registry) -> None:
    async def create_all() -> list[ChangeResult]:
        commands = [Create(handle(f"12345/{number}"), (URL,)) for number in range(20)]
        return await asyncio.gather(*[registry.execute(command, ADMIN, "native") for command in commands])

    before = size(registry)
    results = asyncio.run(create_all())
    assert sorted(result.seq for result in results) == list(range(before + 1, before + 21))
    with pytest.raises(Refused):
        asyncio.run(registry.execute(Create(handle("12345/1"), (URL,)), ADMIN, "native"))


def test_namespace_is_created_completely_or_not_at_all(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    between = Between(registry, monkeypatch, times=1)
    between.changes = [becomes(homed_name("0.NA/55"), state=State.NORMAL)]
    before = size(registry)
    registry.do(AddNamespace("55", PROFILES["free"], (admin(100, "300:77/owner"),)), OPERATOR, "cli")
    assert (between.decisions, size(registry)) == (1, before + 3)
    assert registry.resolve(Query(Handle.parse("0.NA/55")), NOBODY).values

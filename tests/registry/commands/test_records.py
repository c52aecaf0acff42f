"""Commands on records: what each does, the order of its checks, and its results (§12, §14, §16).

Every expectation goes through `World.done` or `World.refused`, which also call `explain`: both must agree, and neither
an explanation nor a refusal may leave an entry.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import combinations, count
from typing import TypeVar

import pytest

from perseid.ledger.log import entry as entry_module
from perseid.ledger.log.clock import SECOND, TOLERANCE
from perseid.ledger.log.entry import IMPORT, Action, Draft, State
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.log.requests import Append
from perseid.names.handle import CaseRule, Handle
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission, ValueList
from perseid.records.binary import MAX_BYTES
from perseid.records.encoding import to_iso
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove, ReplaceRecord
from perseid.registry.context import Command, not_hosted
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, Proof
from perseid.registry.policy.policy import PROFILES, Audience, Deletion, Policy
from perseid.registry.queries.namespaces import RETIRED, ChangePolicy
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidTimestamp, ReferralError, Refused, Resolution
from perseid.registry.snapshot import POLICY_TYPE, Rules
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import Machine
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

T = TypeVar("T")
P = AdminPermission
RC = ResponseCode

SERVER = key_holder(300, "0.NA/0.NA")
STRANGER = key_holder(300, "77/stranger")
OWNER = key_holder(300, "77/owner")
URL = Value.text(1, "URL", "https://example.org/")
EMAIL = Value.text(4, "EMAIL", "someone@example.org")
SECRET = Value(5, "HS_SECKEY", b"secret", permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)
HIDDEN = Value(6, "NOTE", b"for nobody", permissions=Permission.ADMIN_WRITE)
LOCKED = Value(2, "DESC", b"as it is", permissions=Permission.ADMIN_READ | Permission.PUBLIC_READ)
OPEN = Value(7, "COMMENT", b"anybody", permissions=Permission(0x0F))
ELSEWHERE = Value(1, "HS_SITE.PREFIX", b"a service")
ILLEGAL = "a\u202eb"
DIGITS = "EEF4DF17361A42E2B975E554663B70C3"
PILIN_NAMES = ("Y35XYS0QH", "2RDV0T0QH", "0N8J991QH", "8RBZF0DQH", "D7J1G0DQH", "X4NDP2JQH")

_numbers = count(20_000)


@dataclass(frozen=True)
class World:
    """A registry with its clock, and the helpers of this file."""

    registry: Registry
    machine: Machine

    @property
    def size(self) -> int:
        with self.registry.ledger.open_reader() as reader:
            return reader.size

    @property
    def now(self) -> int:
        return self.machine.wall // SECOND

    def done(self, operation: Command[T], identity: Identity = OPERATOR, interface: str = "native") -> T:
        """An operation is explained as allowed, which changes nothing, and then carried out."""
        before = self.size
        explained = self.registry.explain(operation, identity, interface)
        assert (explained.allowed, explained.code) == (True, None), explained
        assert explained.reason
        assert self.size == before
        return self.registry.do(operation, identity, interface)

    def unchanged(self, operation: Command[T], identity: Identity = OPERATOR) -> T:
        """An operation is carried out, and there was nothing to do."""
        before = self.size
        answer = self.done(operation, identity)
        assert self.size == before
        return answer

    def refused(
        self,
        operation: Command[object],
        identity: Identity,
        code: ResponseCode,
        text: str = "",
        interface: str = "native",
    ) -> Refused:
        """An operation is explained as refused, and then refused, with the same words; nothing changes."""
        before = self.size
        explained = self.registry.explain(operation, identity, interface)
        with pytest.raises(Refused) as caught:
            self.registry.do(operation, identity, interface)
        refused = caught.value
        assert refused.code is code, refused
        assert refused.reason == text or (refused.reason and not text)
        assert not explained.allowed
        assert (explained.code, explained.reason) == (refused.code, refused.reason)
        assert (explained.advice, explained.rule) == (refused.advice, refused.rule)
        assert self.size == before
        return refused

    def seen(
        self, name: str, identity: Identity = NOBODY, at: int | None = None, *, public_only: bool = True
    ) -> Resolution:
        return self.registry.resolve(Query(Handle.parse_lenient(name), public_only=public_only), identity, at)

    def unseen(
        self,
        name: str,
        code: ResponseCode,
        identity: Identity = NOBODY,
        *,
        public_only: bool = True,
        types: tuple[str, ...] = (),
        indexes: tuple[int, ...] = (),
        refer: bool = True,
    ) -> Refused:
        query = Query(Handle.parse_lenient(name), types, indexes, public_only, refer)
        with pytest.raises(Refused) as caught:
            self.registry.resolve(query, identity)
        assert caught.value.code is code, caught.value
        return caught.value

    def stored(self, name: str, *, exact: bool = False) -> tuple[Value, ...]:
        """The values of a record without timestamps, private ones included."""
        return tuple(value.with_timestamp(0) for value in self.timed(name, exact=exact))

    def timed(self, name: str, *, exact: bool = False) -> tuple[Value, ...]:
        with self.registry.ledger.open_reader() as reader:
            entry = reader.record(record_key(name, exact=exact))
        assert entry is not None
        return entry.record()

    def state(self, name: str, *, exact: bool = False) -> State:
        with self.registry.ledger.open_reader() as reader:
            entry = reader.record(record_key(name, exact=exact))
        assert entry is not None
        return entry.state

    def put(self, name: str, state: State, *values: Value, exact: bool = False) -> None:
        """Write an entry past all rules, for states that other operations make."""
        dated = tuple(value.with_timestamp(self.now) for value in values)
        draft = Draft(Action.UPDATE, state, name, "test", "local:test", values=dated, exact=exact)
        self.registry.ledger.append(Append(draft))

    def namespace(self, profile: str | Policy = "free", *values: Value) -> str:
        """A new namespace, which its key 300 administers; the prefix."""
        prefix = str(next(_numbers))
        add_namespace(self.registry, prefix, profile, admin(100, f"300:0.NA/{prefix}"), *values)
        return prefix

    def record(self, prefix: str, *values: Value, permissions: AdminPermission = ALL_PERMISSIONS) -> str:
        """A new record, administered by OWNER."""
        name = f"{prefix}/{next(_numbers)}"
        self.done(Create(handle(name), (*values, admin(100, "300:77/owner", permissions))))
        return name


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One world for all tests: each has its own namespaces."""
    machine = Machine()
    with registry_in_memory(machine) as registry:
        yield World(registry, machine)


@pytest.fixture
def own_world() -> Iterator[World]:
    """For tests that change shared state."""
    machine = Machine()
    with registry_in_memory(machine) as registry:
        yield World(registry, machine)


@pytest.fixture
def prefix(world: World) -> str:
    return world.namespace()


def administrator(prefix: str) -> KeyIdentity:
    return key_holder(300, f"0.NA/{prefix}")


def in_session(identity: KeyIdentity) -> KeyIdentity:
    return replace(identity, session=True)


# The order of checks


class Fault(Enum):
    """The faults that a request can have."""

    FOREIGN = auto()
    """The prefix is not hosted here."""
    ILLEGAL = auto()
    """The handle cannot be registered."""
    EMPTY = auto()
    """There are no values."""
    ZERO = auto()
    """An index is not positive."""
    TWICE = auto()
    """The request has an index twice."""
    TAKEN = auto()
    """The handle exists."""
    MISSING = auto()
    """The handle does not exist."""
    CLASH = auto()
    """The record has a value with an index to add."""
    NO_VALUE = auto()
    """The record has no value with an index to change."""
    READ_ONLY = auto()
    """A value to change is read-only."""
    ANONYMOUS = auto()
    """The caller is anonymous."""
    STRANGER = auto()
    """The caller has no permission."""
    POLICY = auto()
    """The namespace's policy does not allow it."""


F = Fault
FOREIGN = (F.FOREIGN, RC.SERVER_NOT_RESP, "")
ILLEGAL_NAME = (F.ILLEGAL, RC.INVALID_HANDLE, "")
EMPTY = (F.EMPTY, RC.INVALID_VALUE, "Value list was empty")
ZERO = (F.ZERO, RC.INVALID_VALUE, "Value indexes must be positive")
TWICE = (F.TWICE, RC.VALUE_ALREADY_EXISTS, "Index conflict for 9")
MISSING = (F.MISSING, RC.HANDLE_NOT_FOUND, "")
NO_VALUE = (F.NO_VALUE, RC.VALUES_NOT_FOUND, "")
ANONYMOUS = (F.ANONYMOUS, RC.AUTHENTICATION_NEEDED, "")
NO_RIGHT = (F.STRANGER, RC.INVALID_ADMIN, "")
POLICY = (F.POLICY, RC.INVALID_VALUE, "")

ORDERS: dict[str, tuple[tuple[Fault, ResponseCode, str], ...]] = {
    "create": (
        FOREIGN,
        ILLEGAL_NAME,
        ZERO,
        TWICE,
        (F.TAKEN, RC.HANDLE_ALREADY_EXISTS, ""),
        ANONYMOUS,
        NO_RIGHT,
        POLICY,
    ),
    "replace": (FOREIGN, ILLEGAL_NAME, ZERO, TWICE, ANONYMOUS, NO_RIGHT, POLICY),
    "add": (
        FOREIGN,
        EMPTY,
        ZERO,
        TWICE,
        ANONYMOUS,
        MISSING,
        (F.CLASH, RC.VALUE_ALREADY_EXISTS, "Index conflict for 1"),
        NO_RIGHT,
        POLICY,
    ),
    "add over": (FOREIGN, EMPTY, ZERO, TWICE, ANONYMOUS, MISSING, NO_RIGHT, POLICY),
    "remove": (FOREIGN, ANONYMOUS, MISSING, NO_VALUE, NO_RIGHT, POLICY),
    "modify": (
        FOREIGN,
        MISSING,
        NO_VALUE,
        (F.READ_ONLY, RC.INSUFFICIENT_PERMISSIONS, "Value is read-only"),
        ANONYMOUS,
        NO_RIGHT,
        (F.TWICE, RC.INVALID_VALUE, ""),
        POLICY,
    ),
    "delete": (ANONYMOUS, MISSING, NO_RIGHT, POLICY),
}
"""The checks of each command in the order of §16, with the code and, if §16 has one, the text."""

VALUE_FAULTS = {F.ZERO, F.TWICE, F.CLASH, F.POLICY}


def _can_meet(operation: str, one: Fault, other: Fault) -> bool:
    """Whether a request can have both faults."""
    both = {one, other}
    if F.EMPTY in both and both & VALUE_FAULTS:
        return False
    if F.MISSING in both and both & {F.CLASH, F.NO_VALUE, F.READ_ONLY}:
        return False  # a record that is not there has no values to speak of
    return not (F.FOREIGN in both and F.POLICY in both and operation == "delete")


PAIRS = [
    pytest.param(operation, one, other, id=f"{operation}-{one[0].name}-{other[0].name}")
    for operation, order in ORDERS.items()
    for one, other in combinations(order, 2)
    if _can_meet(operation, one[0], other[0])
]
SINGLES = [
    pytest.param(operation, check, id=f"{operation}-{check[0].name}")
    for operation, order in ORDERS.items()
    for check in order
]
STRICT = replace(
    PROFILES["free"], forbidden_types=("EMAIL",), required_types=("URL",), deletion=Deletion.TOMBSTONE, profile="own"
)


def faulty(world: World, operation: str, faults: set[Fault]) -> tuple[Command[object], Identity]:
    """A request with exactly these faults."""
    prefix = world.namespace(STRICT if F.POLICY in faults else "free")
    identity: Identity = administrator(prefix) if operation == "create" else OWNER
    if F.STRANGER in faults:
        identity = STRANGER
    if F.ANONYMOUS in faults:
        identity = NOBODY
    name = f"{prefix}/{ILLEGAL if F.ILLEGAL in faults else 'x'}"
    if (operation == "create" and F.TAKEN in faults) or (operation != "create" and F.MISSING not in faults):
        world.put(name, State.NORMAL, URL, LOCKED, admin(100, "300:77/owner"))
    if F.FOREIGN in faults:
        world.done(Home(f"0.NA/{prefix}", unhome=True))
    return _request(operation, Handle.parse_lenient(name), faults), identity


def _request(operation: str, name: Handle, faults: set[Fault]) -> Command[object]:
    spoilt = [Value.text(0, "DESC", "zero")] * (F.ZERO in faults) + [EMAIL] * (F.POLICY in faults)
    spoilt += [Value.text(9, "DESC", "nine")] * (2 if F.TWICE in faults else 0)
    plain = Value.text(3, "DESC", "three")
    if operation in ("create", "replace"):
        return Create(name, (plain, URL, *spoilt), overwrite=operation == "replace")
    if operation in ("add", "add over"):
        values = () if F.EMPTY in faults else (plain, *spoilt, *[URL] * (F.CLASH in faults))
        return Add(name, values, overwrite=operation == "add over")
    if operation == "remove":
        return Remove(name, (1 if F.POLICY in faults else 2, *[55] * (F.NO_VALUE in faults)))
    if operation == "modify":
        changed = replace(URL, type="EMAIL" if F.POLICY in faults else "URL", data=b"https://example.org/2")
        missing = [Value.text(55, "URL", "x")] * (F.NO_VALUE in faults)
        locked = [replace(LOCKED, data=b"changed")] * (F.READ_ONLY in faults)
        return Modify(name, (*missing, *locked, changed, *[changed] * (F.TWICE in faults)))
    return Delete(name)


@pytest.mark.parametrize("operation", list(ORDERS))
def test_request_without_faults_succeeds(world: World, operation: str) -> None:
    """So the next tests observe only the faults."""
    request, identity = faulty(world, operation, set())
    before = world.size
    world.done(request, identity)
    assert world.size == before + 1


@pytest.mark.parametrize(("operation", "check"), SINGLES)
def test_each_check_has_the_code_and_text_of_the_protocol(
    world: World, operation: str, check: tuple[Fault, ResponseCode, str]
) -> None:
    fault, code, text = check
    request, identity = faulty(world, operation, {fault})
    world.refused(request, identity, code, text)


@pytest.mark.parametrize(("operation", "first", "second"), PAIRS)
def test_first_of_two_faults_is_reported(
    world: World,
    operation: str,
    first: tuple[Fault, ResponseCode, str],
    second: tuple[Fault, ResponseCode, str],
) -> None:
    request, identity = faulty(world, operation, {first[0], second[0]})
    refused = world.refused(request, identity, first[1])
    if first[1] is second[1]:
        assert not second[2] or refused.reason != second[2]
        assert not first[2] or refused.reason == first[2]


def test_all_faults_are_reported_one_by_one(world: World) -> None:
    """The order from the client's view: fix each fault and retry."""
    for operation, order in ORDERS.items():
        faults = {check[0] for check in order}
        if F.EMPTY in faults:
            faults -= VALUE_FAULTS - {F.POLICY}
        for fault, code, _ in order:
            if fault in faults:
                request, identity = faulty(world, operation, faults)
                world.refused(request, identity, code)
                faults.remove(fault)
                if fault is F.EMPTY:
                    faults |= VALUE_FAULTS & {check[0] for check in order}
        world.done(*faulty(world, operation, set()))


# Create


def test_create_stores_the_values_with_the_time_of_the_server(world: World, prefix: str) -> None:
    name = f"{prefix}/x"
    world.machine.run(3 * SECOND)
    changed = world.done(Create(handle(name), (EMAIL, URL.with_timestamp(77))), administrator(prefix))
    assert (changed.handle, changed.seq, changed.overwritten) == (handle(name), world.size, False)
    assert world.timed(name) == (URL.with_timestamp(world.now), EMAIL.with_timestamp(world.now))
    found = world.seen(name)
    assert (found.values, found.seq, found.state) == (world.timed(name), world.size, State.NORMAL)


def test_a3_import_refuses_impossible_timestamps(world: World, prefix: str) -> None:
    name, latest = handle(f"{prefix}/dated"), world.now + TOLERANCE // SECOND
    too_late = AdviceKind.CORRECT_DATE()
    too_early = AdviceKind.WRITE_DATE(example=to_iso(world.now))
    for timestamp, problem, advice in (
        (latest + 1, f"in the future, {to_iso(latest + 1)}", too_late),
        (99_999_999_999, "in the future, 5138-11-16T09:46:39Z", too_late),
        ((1 << 63) - 1, "in the future, 9223372036854775807", too_late),
        (-1, "before 1970, 1969-12-31T23:59:59Z", too_early),
        (-(1 << 63), "before 1970, -9223372036854775808", too_early),
    ):
        values = (URL.with_timestamp(latest), EMAIL.with_timestamp(timestamp))
        text = f"Value {EMAIL.index} has a timestamp {problem}"
        for overwrite in (False, True):
            refused = world.refused(Create(name, values, overwrite), OPERATOR, RC.INVALID_VALUE, text, IMPORT)
            assert isinstance(refused, InvalidTimestamp)
            assert (refused.number, refused.advice) == (1, advice)
    values = (URL.with_timestamp(latest), EMAIL.with_timestamp(1))
    world.done(Create(name, values), OPERATOR, IMPORT)
    assert world.timed(str(name)) == values


def test_a3_import_keeps_stored_values_whatever_their_timestamp(world: World, prefix: str) -> None:
    late = EMAIL.with_timestamp(world.now + 86_400)
    draft = Draft(Action.CREATE, State.NORMAL, f"{prefix}/late", "test", "local:test", values=(late,))
    world.registry.ledger.append(Append(draft))
    old = URL.with_timestamp(77)
    world.done(Create(handle(f"{prefix}/late"), (old, late), overwrite=True), OPERATOR, IMPORT)
    assert world.timed(f"{prefix}/late") == (old, late)


def test_create_without_values_or_administrators_is_allowed(world: World, prefix: str) -> None:
    name = handle(f"{prefix}/empty")
    world.done(Create(name, ()), administrator(prefix))
    world.unseen(str(name), RC.VALUES_NOT_FOUND)
    world.refused(Create(name, ()), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)
    world.refused(Add(name, (URL,)), administrator(prefix), RC.INVALID_ADMIN)


def test_h7_existing_handle_is_refused_and_unchanged(world: World, prefix: str) -> None:
    name = world.record(prefix, URL)
    before = world.timed(name)
    for identity in (administrator(prefix), OWNER, OPERATOR, SERVER, NOBODY):
        world.refused(Create(handle(name), (EMAIL,)), identity, RC.HANDLE_ALREADY_EXISTS)
    assert world.timed(name) == before


def test_administrators_in_a_new_record_cannot_create_it(world: World, prefix: str) -> None:
    request = Create(handle(f"{prefix}/mine"), (admin(100, "300:77/owner"),))
    world.refused(request, OWNER, RC.INVALID_ADMIN)


def test_default_administrators_are_added_to_a_new_record(world: World) -> None:
    policy = replace(PROFILES["free"], default_administrators=("300:0.NA/{prefix}",))
    prefix = world.namespace(policy)
    world.done(Create(handle(f"{prefix}/a"), (URL, Value.text(100, "DESC", "here"))), administrator(prefix))
    added = world.stored(f"{prefix}/a")[-1]
    assert (added.index, added.type) == (101, "HS_ADMIN")
    world.done(Delete(handle(f"{prefix}/a")), administrator(prefix))
    own = admin(200, "300:77/owner")
    world.done(Create(handle(f"{prefix}/b"), (own,)), administrator(prefix))
    assert world.stored(f"{prefix}/b") == (own,)


def test_h9_handles_and_records_have_a_size_limit(world: World, prefix: str) -> None:
    longest = f"{prefix}/".ljust(2048, "x")
    world.done(Create(handle(longest), (URL,)))
    assert world.seen(longest).handle == handle(longest)
    many = tuple(Value.text(index, "URL", "") for index in range(1, 2050))
    world.refused(Create(handle(f"{prefix}/many"), many), OPERATOR, RC.INVALID_VALUE)
    world.done(Create(handle(f"{prefix}/many"), many[:-1]))
    world.refused(Add(handle(f"{prefix}/many"), many[-1:]), OPERATOR, RC.INVALID_VALUE)


@pytest.mark.parametrize("suffix", ["a\u202eb", "a\x07", " a", "a ", "\ue000\ud7ff\u0378", "\U0001f600"])
def test_h3_illegal_handles_are_not_registered_and_not_found(world: World, prefix: str, suffix: str) -> None:
    name = Handle.parse_lenient(f"{prefix}/{suffix}")
    refused = world.refused(Create(name, (URL,)), OPERATOR, RC.INVALID_HANDLE)
    assert refused.rule == "H3"
    world.unseen(str(name), RC.HANDLE_NOT_FOUND)


@pytest.mark.parametrize("prefix", [".7", "7.", "7..8", "7/8"])
def test_h8_handle_of_an_invalid_prefix_is_not_registered(world: World, prefix: str) -> None:
    refused = world.refused(Create(Handle.parse(f"0.NA/{prefix}"), ()), OPERATOR, RC.INVALID_HANDLE)
    assert refused.reason.startswith(f"0.NA/{prefix} does not name a prefix: ")
    assert (refused.rule, refused.advice) == ("H2", AdviceKind.PREFIX_EXAMPLE())


def test_h6_derived_prefix_requires_permission_on_its_parent(world: World) -> None:
    parent = world.namespace("free", admin(101, "300:77/owner", P.ADD_NA), admin(102, "300:77/other", P.ADD_HANDLE))
    derived = Create(handle(f"0.NA/{parent}.1"), (URL,))
    world.refused(derived, key_holder(300, "77/other"), RC.INVALID_ADMIN)
    world.refused(derived, NOBODY, RC.AUTHENTICATION_NEEDED)
    world.done(derived, OWNER)
    world.refused(Create(handle(f"0.NA/{parent}.1.1"), (URL,)), OWNER, RC.INVALID_ADMIN)
    world.refused(Create(handle(f"{parent}/x"), (URL,)), OWNER, RC.INVALID_ADMIN)


@pytest.mark.parametrize(
    ("who_may", "allowed", "refused"),
    [
        (Audience.SERVER, {"server"}, {"administrator": RC.INVALID_ADMIN, "stranger": RC.INVALID_ADMIN}),
        (Audience.AUTHENTICATED, {"administrator", "stranger", "server"}, {}),
        (Audience.ADMINISTRATORS, {"administrator"}, {"stranger": RC.INVALID_ADMIN}),
    ],
)
def test_s13_policy_decides_who_can_create_handles(
    world: World, who_may: Audience, allowed: set[str], refused: dict[str, ResponseCode]
) -> None:
    prefix = world.namespace(replace(PROFILES["free"], who_may_mint=who_may))
    people = {"administrator": administrator(prefix), "stranger": STRANGER, "server": SERVER}
    world.refused(Create(handle(f"{prefix}/x"), (URL,)), NOBODY, RC.AUTHENTICATION_NEEDED)
    for person, code in refused.items():
        world.refused(Create(handle(f"{prefix}/x"), (URL,)), people[person], code)
    for person in allowed:
        world.done(Create(handle(f"{prefix}/{person}"), (URL,)), people[person])


def test_caller_administers_a_new_record_if_everybody_can_create(world: World) -> None:
    """The protocol allows records without administrators (§16.2), also here if administrators create them."""
    open_, closed = world.namespace(replace(PROFILES["free"], who_may_mint=Audience.AUTHENTICATED)), world.namespace()
    mine = admin(100, str(STRANGER))
    world.done(Create(handle(f"{open_}/a"), (URL,)), STRANGER)
    assert world.stored(f"{open_}/a") == (URL, mine)
    world.done(Modify(handle(f"{open_}/a"), (replace(URL, data=b"mended"),)), STRANGER)
    world.done(Create(handle(f"{open_}/b"), (URL, admin(7, str(OWNER)))), STRANGER)
    assert world.stored(f"{open_}/b") == (URL, admin(7, str(OWNER)))
    world.done(Create(handle(f"{open_}/c"), (URL,)), OPERATOR)
    assert world.stored(f"{open_}/c") == (URL,), "an operator has no key to name"
    world.done(Create(handle(f"{closed}/a"), (URL,)), administrator(closed))
    assert world.stored(f"{closed}/a") == (URL,)


def test_default_administrators_take_precedence_over_the_caller(world: World) -> None:
    policy = replace(PROFILES["free"], who_may_mint=Audience.AUTHENTICATED, default_administrators=(str(OWNER),))
    prefix = world.namespace(policy)
    world.done(Create(handle(f"{prefix}/a"), (URL,)), STRANGER)
    assert world.stored(f"{prefix}/a") == (URL, admin(100, str(OWNER)))


def test_a6_policy_can_require_registered_types(world: World) -> None:
    prefix = world.namespace(replace(PROFILES["free"], registered_types=True))
    types = world.namespace()
    world.done(Create(handle(f"{types}/KNOWN"), (Value.text(1, "DESC", "a type"),)))
    known, unknown = (Value.text(1, f"{types}/{name}", "x") for name in ("KNOWN", "UNKNOWN"))
    world.done(Create(handle(f"{prefix}/a"), (known,)))
    world.refused(Create(handle(f"{prefix}/b"), (unknown,)), OPERATOR, RC.INVALID_VALUE)
    world.refused(Add(handle(f"{prefix}/a"), (replace(unknown, index=2),)), OPERATOR, RC.INVALID_VALUE)


# Create over a record


def test_replacing_a_record_removes_other_values(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, EMAIL, OPEN)
    changed = world.done(Create(handle(name), (LOCKED,), overwrite=True), OWNER)
    assert changed.overwritten
    assert world.stored(name) == (LOCKED,)
    assert world.seen(name, at=changed.seq - 1).values[0].data == URL.data


def test_overwriting_a_missing_record_creates_it(world: World, prefix: str) -> None:
    changed = world.done(Create(handle(f"{prefix}/x"), (URL,), overwrite=True), administrator(prefix))
    assert not changed.overwritten
    world.refused(Create(handle(f"{prefix}/y"), (URL,), overwrite=True), OWNER, RC.INVALID_ADMIN)
    world.refused(Create(handle(f"{prefix}/y"), (URL,), overwrite=True), NOBODY, RC.AUTHENTICATION_NEEDED)


def test_unchanged_values_keep_their_timestamps(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, EMAIL, OPEN)
    first = {value.index: value.timestamp for value in world.timed(name)}
    world.machine.run(10 * SECOND)
    other = replace(EMAIL, data=b"another@example.org")
    kept = (URL.with_timestamp(world.now), OPEN, admin(100, "300:77/owner"))
    world.done(Create(handle(name), (*kept, other), overwrite=True), OWNER)
    assert {value.index: value.timestamp for value in world.timed(name)} == first | {4: world.now}
    world.machine.run(10 * SECOND)
    world.done(Add(handle(name), (URL, replace(other, index=9), replace(OPEN, data=b"x")), overwrite=True), OWNER)
    times = {value.index: value.timestamp for value in world.timed(name)}
    assert times == first | {4: world.now - 10, 7: world.now, 9: world.now}


@pytest.mark.parametrize(
    ("on_record", "on_prefix", "wanted", "allowed"),
    [
        # 1: what the differences need, in one value
        (P.ADD_VALUE, P(0), (URL, EMAIL, LOCKED), True),
        (P.REMOVE_VALUE, P(0), (URL,), True),
        (P.MODIFY_VALUE, P(0), (URL, replace(EMAIL, data=b"")), True),
        (P.MODIFY_VALUE | P.ADD_VALUE, P(0), (URL,), False),
        (P.MODIFY_VALUE | P.REMOVE_VALUE, P(0), (replace(URL, data=b""),), True),
        (P.ADD_VALUE | P.REMOVE_VALUE, P(0), (URL, replace(EMAIL, data=b"")), False),
        # 2: ADD_ADMIN alone is enough for anything
        (P.ADD_ADMIN, P(0), (replace(EMAIL, data=b""), LOCKED), True),
        (P.ADD_ADMIN, P(0), (admin(101, "1:77/new"),), True),
        (ALL_PERMISSIONS & ~P.ADD_ADMIN & ~P.DELETE_HANDLE, P(0), (URL, EMAIL, admin(101, "1:77/new")), False),
        # 3: to delete it and to create it anew
        (P.DELETE_HANDLE, P.ADD_HANDLE, (LOCKED, admin(101, "1:77/new")), True),
        (P.DELETE_HANDLE, P(0), (LOCKED,), False),
        (P.READ_VALUE, P.ADD_HANDLE, (LOCKED,), False),
    ],
)
def test_replace_has_three_alternative_requirements(
    world: World, on_record: AdminPermission, on_prefix: AdminPermission, wanted: tuple[Value, ...], allowed: bool
) -> None:
    prefix = world.namespace("free", *[admin(101, "300:77/owner", on_prefix)] * bool(on_prefix))
    name = world.record(prefix, URL, EMAIL, permissions=on_record)
    own = (admin(100, "300:77/owner", on_record),)
    request = Create(handle(name), (*wanted, *own), overwrite=True)
    if allowed:
        world.done(request, OWNER)
        assert world.stored(name) == tuple(sorted((*wanted, *own), key=lambda value: value.index))
    else:
        world.refused(request, OWNER, RC.INVALID_ADMIN)


def test_unchanged_replacement_requires_only_authentication(world: World, prefix: str) -> None:
    name = world.record(prefix, URL)
    request = Create(handle(name), (admin(100, "300:77/owner"), URL.with_timestamp(12)), overwrite=True)
    answer = world.unchanged(request, STRANGER)
    assert (answer.overwritten, answer.seq) == (True, world.seen(name).seq)
    world.refused(request, NOBODY, RC.AUTHENTICATION_NEEDED)


# Add


def test_add_keeps_existing_values_and_sorts_by_index(world: World, prefix: str) -> None:
    name = world.record(prefix, EMAIL)
    changed = world.done(Add(handle(name), (OPEN, URL)), OWNER)
    assert not changed.overwritten
    assert [value.index for value in world.timed(name)] == [1, 4, 7, 100]


@pytest.mark.parametrize(
    ("value", "needed"), [(URL, P.ADD_VALUE), (admin(7, "1:77/x"), P.ADD_ADMIN), (replace(URL, type="hs_admin.x"), 0)]
)
def test_add_requires_the_permission_for_the_type(
    world: World, prefix: str, value: Value, needed: AdminPermission
) -> None:
    needed = needed or P.ADD_ADMIN
    able = world.record(prefix, permissions=needed)
    unable = world.record(prefix, permissions=ALL_PERMISSIONS & ~needed)
    world.refused(Add(handle(unable), (value,)), OWNER, RC.INVALID_ADMIN)
    world.done(Add(handle(able), (value,)), OWNER)


def test_add_with_overwrite_replaces_only_the_same_indexes(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, EMAIL, LOCKED)
    new = replace(LOCKED, data=b"ADMIN_WRITE is not asked here"), replace(URL, data=b"new")
    changed = world.done(Add(handle(name), new, overwrite=True), OWNER)
    assert changed.overwritten
    assert world.stored(name) == (new[1], new[0], EMAIL, admin(100, "300:77/owner"))
    assert not world.done(Add(handle(name), (OPEN,), overwrite=True), OWNER).overwritten


def test_add_with_overwrite_requires_modify_permissions(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, EMAIL, OPEN, permissions=P.ADD_VALUE)
    changed = replace(URL, data=b"new")
    world.refused(Add(handle(name), (changed,), overwrite=True), OWNER, RC.INVALID_ADMIN)
    answer = world.done(Add(handle(name), (URL, LOCKED), overwrite=True), OWNER)
    assert answer.overwritten
    assert world.unchanged(Add(handle(name), (URL, LOCKED), overwrite=True), STRANGER).overwritten
    world.refused(Add(handle(name), (URL,), overwrite=True), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.done(Add(handle(name), (replace(OPEN, data=b"new"),), overwrite=True), STRANGER)
    becomes_admin = replace(admin(7, "1:77/x"), permissions=OPEN.permissions)
    world.refused(Add(handle(name), (becomes_admin,), overwrite=True), STRANGER, RC.INVALID_ADMIN)


# Remove


def test_remove_ignores_value_permissions(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, LOCKED, HIDDEN)
    world.done(Remove(handle(name), (2, 6, 2)), OWNER)
    assert world.stored(name) == (URL, admin(100, "300:77/owner"))


def test_removing_the_last_value_leaves_a_record_without_values(world: World, prefix: str) -> None:
    name = world.record(prefix)
    world.done(Remove(handle(name), (100,)), OWNER)
    world.unseen(name, RC.VALUES_NOT_FOUND)
    world.refused(Remove(handle(name), (100,)), OWNER, RC.VALUES_NOT_FOUND)
    world.refused(Create(handle(name), (URL,)), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)


def test_remove_requires_the_permission_for_the_type(world: World, prefix: str) -> None:
    values = world.record(prefix, URL, permissions=P.REMOVE_VALUE)
    admins = world.record(prefix, URL, permissions=P.REMOVE_ADMIN)
    world.refused(Remove(handle(values), (1, 100)), OWNER, RC.INVALID_ADMIN)
    world.refused(Remove(handle(admins), (1,)), OWNER, RC.INVALID_ADMIN)
    world.done(Remove(handle(values), (1,)), OWNER)
    world.done(Remove(handle(admins), (100,)), OWNER)


# Modify


def test_modify_replaces_everything_but_the_index(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, EMAIL)
    world.machine.run(SECOND)
    new = Value(1, "DESC", b"new", ttl=7, permissions=Permission(0x0F), references=(ValueRef(2, "1/2"),), timestamp=5)
    changed = world.done(Modify(handle(name), (new,)), OWNER)
    assert not changed.overwritten
    assert world.timed(name)[0] == new.with_timestamp(world.now)
    assert world.timed(name)[1].timestamp == world.now - 1


def test_modify_reports_the_first_invalid_value(world: World, prefix: str) -> None:
    """§16.6: for each value in order, so an unreadable second value does not hide what is wrong with the first."""
    name = world.record(prefix, URL, LOCKED)
    missing, locked = Value.text(55, "URL", "x"), replace(LOCKED, data=b"x")
    plain = replace(URL, data=b"x")
    world.refused(Modify(handle(name), (missing, locked)), OWNER, RC.VALUES_NOT_FOUND)
    world.refused(Modify(handle(name), (locked, missing)), OWNER, RC.INSUFFICIENT_PERMISSIONS)
    world.refused(Modify(handle(name), (plain, missing)), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Modify(handle(name), (plain, missing)), STRANGER, RC.VALUES_NOT_FOUND)
    world.refused(Modify(handle(name), (missing, plain)), NOBODY, RC.VALUES_NOT_FOUND)


@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        (URL, replace(URL, data=b"x"), P.MODIFY_VALUE),
        (admin(9, "1:77/x"), admin(9, "1:77/y"), P.MODIFY_ADMIN),
        (admin(9, "1:77/x"), replace(URL, index=9), P.REMOVE_ADMIN | P.MODIFY_VALUE),
        (URL, admin(1, "1:77/x"), P.MODIFY_VALUE | P.ADD_ADMIN),
    ],
)
def test_modify_requires_the_permission_for_old_and_new_type(
    world: World, prefix: str, old: Value, new: Value, needed: AdminPermission
) -> None:
    able = world.record(prefix, old, permissions=needed)
    for bit in AdminPermission:
        if bit in needed:
            unable = world.record(prefix, old, permissions=ALL_PERMISSIONS & ~bit)
            world.refused(Modify(handle(unable), (new,)), OWNER, RC.INVALID_ADMIN)
    world.done(Modify(handle(able), (new,)), OWNER)


def test_anonymous_can_modify_a_publicly_writable_value(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, OPEN)
    new = replace(OPEN, data=b"hello", permissions=Permission(0x0F))
    world.done(Modify(handle(name), (new,)), NOBODY)
    world.done(Modify(handle(name), (replace(new, data=b"me too"),)), STRANGER)
    assert world.stored(name)[1].data == b"me too"
    with world.registry.ledger.open_reader() as reader:
        actors = [entry.origin for entry in reader.history(record_key(name))]
    assert ("native", "anonymous") in actors


def test_publicly_writable_value_cannot_become_an_administrator(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, OPEN, replace(admin(8, "1:77/x"), permissions=Permission(0x0F)))
    crown = replace(admin(7, "300:77/stranger"), permissions=Permission(0x0F))
    world.refused(Modify(handle(name), (crown,)), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Modify(handle(name), (crown,)), STRANGER, RC.INVALID_ADMIN)
    world.refused(Modify(handle(name), (replace(OPEN, index=8),)), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Modify(handle(name), (replace(OPEN, index=8),)), STRANGER, RC.INVALID_ADMIN)
    mixed = (replace(OPEN, data=b"x"), replace(URL, data=b"x"))
    world.refused(Modify(handle(name), mixed), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Modify(handle(name), mixed), STRANGER, RC.INVALID_ADMIN)


def test_value_without_admin_write_is_read_only(world: World, prefix: str) -> None:
    odd = replace(OPEN, permissions=Permission.PUBLIC_WRITE | Permission.PUBLIC_READ)
    name = world.record(prefix, odd)
    for identity in (NOBODY, STRANGER, OWNER, OPERATOR):
        world.refused(Modify(handle(name), (replace(odd, data=b"x"),)), identity, RC.INSUFFICIENT_PERMISSIONS)


# Nothing to do


def test_unchanged_record_writes_no_entry(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, OPEN)
    latest = world.seen(name).seq
    assert world.unchanged(Modify(handle(name), (URL.with_timestamp(9),)), OWNER).seq == latest
    assert world.unchanged(Modify(handle(name), (OPEN,)), NOBODY).seq == latest
    assert world.unchanged(Add(handle(name), (URL,), overwrite=True), OWNER).seq == latest
    whole = (URL, OPEN, admin(100, "300:77/owner"))
    assert world.unchanged(Create(handle(name), whole, overwrite=True), OWNER).seq == latest
    world.refused(Modify(handle(name), (URL,)), STRANGER, RC.INVALID_ADMIN)


def test_unchanged_policy_writes_no_entry(world: World, prefix: str) -> None:
    world.unchanged(SetPolicy(prefix, PROFILES["free"]))


# Delete


def test_deleted_handle_is_not_found_and_not_free(world: World, prefix: str) -> None:
    name = world.record(prefix, URL)
    before = world.size
    changed = world.done(Delete(handle(name)), OWNER)
    assert (changed.seq, changed.handle) == (before + 1, handle(name))
    world.unseen(name, RC.HANDLE_NOT_FOUND)
    world.refused(Delete(handle(name)), OWNER, RC.HANDLE_NOT_FOUND)
    world.refused(Add(handle(name), (URL,)), OWNER, RC.HANDLE_NOT_FOUND)
    world.refused(Modify(handle(name), (URL,)), OWNER, RC.HANDLE_NOT_FOUND)
    world.refused(Remove(handle(name), (1,)), OWNER, RC.HANDLE_NOT_FOUND)
    for identity in (administrator(prefix), OPERATOR):
        world.refused(Create(handle(name), (URL,)), identity, RC.HANDLE_ALREADY_EXISTS)
    for identity in (OWNER, STRANGER):  # who may create nothing there is not told what was there once
        world.refused(Create(handle(name), (URL,)), identity, RC.INVALID_ADMIN)
    world.refused(Create(handle(name), (URL,)), NOBODY, RC.AUTHENTICATION_NEEDED)


def test_deleted_handle_can_be_reused_only_with_confirmation(world: World, prefix: str) -> None:
    """Issue 5, point 5. Overwriting is not a confirmation: HTTP clients overwrite by default."""
    name = world.record(prefix, URL)
    world.done(Delete(handle(name)), OWNER)
    world.refused(Create(handle(name), (URL,), reuse_deleted=True), OWNER, RC.INVALID_ADMIN)
    world.refused(Create(handle(name), (URL,), reuse_deleted=True), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Create(handle(name), (URL,), overwrite=True), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)
    changed = world.done(Create(handle(name), (EMAIL,), reuse_deleted=True), administrator(prefix))
    assert not changed.overwritten
    assert world.stored(name) == (EMAIL,)


def test_delete_na_is_not_consulted(world: World) -> None:
    prefix = world.namespace("free", admin(101, "300:77/owner", P.DELETE_NA), admin(102, "1:77/d", P.DELETE_HANDLE))
    world.refused(Delete(handle(f"0.NA/{prefix}")), OWNER, RC.INVALID_ADMIN)
    world.done(Delete(handle(f"0.NA/{prefix}")), key_holder(1, "77/d"))


def test_stray_record_of_an_unhomed_prefix_can_be_deleted(world: World, prefix: str) -> None:
    """§16.3 allows it, so a delete never gets "not responsible"."""
    name = world.record(prefix, URL)
    world.done(Home(f"0.NA/{prefix}", unhome=True), SERVER)
    world.unseen(name, RC.SERVER_NOT_RESP)
    world.refused(Delete(handle(name)), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(Delete(handle(name)), STRANGER, RC.INVALID_ADMIN)
    world.done(Delete(handle(name)), OWNER)


@pytest.mark.parametrize(
    ("identity", "code"),
    [(NOBODY, RC.AUTHENTICATION_NEEDED), (STRANGER, RC.HANDLE_NOT_FOUND), (OPERATOR, RC.HANDLE_NOT_FOUND)],
)
def test_deleting_a_missing_record_is_not_found(world: World, identity: Identity, code: ResponseCode) -> None:
    world.refused(Delete(handle("99999.98/x")), identity, code)


def test_policy_can_forbid_deletion_with_advice(world: World) -> None:
    prefix = world.namespace(STRICT)
    name = world.record(prefix, URL)
    refused = world.refused(Delete(handle(name)), OPERATOR, RC.INVALID_VALUE)
    assert refused.rule == 'deletion = "tombstone"'
    assert refused.advice == AdviceKind.TOMBSTONE_INSTEAD(handle=handle(name))


# Home and unhome


def test_homing_is_for_server_administrators_and_idempotent(world: World) -> None:
    prefix = str(next(_numbers))
    for unhome in (False, True):
        request = Home(f"0.NA/{prefix}", unhome=unhome)
        world.refused(request, NOBODY, RC.AUTHENTICATION_NEEDED)
        world.refused(request, STRANGER, RC.INVALID_ADMIN)
        if unhome:
            world.done(request, SERVER)
        else:
            world.unseen(f"{prefix}/x", RC.SERVER_NOT_RESP)
            world.done(request, SERVER)
            world.unseen(f"{prefix}/x", RC.HANDLE_NOT_FOUND)
        world.unchanged(request, SERVER)
        world.unchanged(replace(request, name=f"0.na/{prefix}"), SERVER)
    world.unseen(f"{prefix}/x", RC.SERVER_NOT_RESP)


def test_home_only_administrators_can_home() -> None:
    settings = Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),), home_only_admins=(ValueRef(300, "77/owner"),))
    with registry_in_memory(rules=Rules(settings)) as registry:
        world = World(registry, Machine())
        world.done(Home("0.NA/55"), OWNER)
        world.refused(SetPolicy("55", PROFILES["free"]), OWNER, RC.INVALID_ADMIN)
        world.done(Home("0.NA/55", unhome=True), OWNER)


@pytest.mark.parametrize("name", ["20/x", "0.NA/20/x", "0.NA/20/", "0.NA/", "", ".", "a..b", "0.NA/0.NA/20/x", "20 "])
@pytest.mark.parametrize("unhome", [False, True])
def test_only_prefixes_can_be_homed(world: World, name: str, unhome: bool) -> None:
    for identity in (NOBODY, STRANGER, SERVER):
        world.refused(Home(name, unhome), identity, RC.INVALID_HANDLE, "Handle is not a prefix handle")


def test_homing_touches_neither_the_prefix_handle_nor_the_handles(world: World, prefix: str) -> None:
    name = world.record(prefix, URL)
    world.done(Home(f"0.NA/{prefix}", unhome=True))
    assert world.stored(name)[0] == URL
    assert world.seen(f"0.NA/{prefix}").values
    world.refused(Add(handle(name), (EMAIL,)), OWNER, RC.SERVER_NOT_RESP)
    world.done(Home(f"0.NA/{prefix}"))
    assert world.seen(name).values[0].data == URL.data
    world.refused(Create(handle(name), (URL,)), OPERATOR, RC.HANDLE_ALREADY_EXISTS)


def test_bare_prefix_means_its_prefix_handle(world: World) -> None:
    """§10 and §16.8: HOME and UNHOME expand it, and UNHOME removes a bare entry as well."""
    prefix = str(next(_numbers))
    world.done(Home(prefix))
    world.unseen(f"{prefix}/x", RC.HANDLE_NOT_FOUND)
    world.unchanged(Home(f"0.NA/{prefix}"))
    world.done(Home(prefix, unhome=True))
    world.unseen(f"{prefix}/x", RC.SERVER_NOT_RESP)
    world.done(Home(f"0.NA/{prefix}"))
    world.done(Home(prefix, unhome=True))
    world.unseen(f"{prefix}/x", RC.SERVER_NOT_RESP)


def test_bare_entry_is_used_and_removed_by_a_bare_unhome(world: World) -> None:
    prefix = str(next(_numbers))
    world.put(f"0.SITE/HOMED/{prefix}", State.NORMAL)
    world.unseen(f"{prefix}/x", RC.HANDLE_NOT_FOUND)
    world.done(Home(prefix, unhome=True))
    world.unseen(f"{prefix}/x", RC.SERVER_NOT_RESP)


# Resolve


def resolved(world: World, name: str, types: tuple[str, ...] = (), indexes: tuple[int, ...] = ()) -> list[int]:
    return [value.index for value in world.registry.resolve(Query(handle(name), types, indexes), NOBODY).values]


def test_types_and_indexes_select_together(world: World, prefix: str) -> None:
    values = (
        Value.text(1, "URL", "a"),
        Value.text(2, "url", "b"),
        Value.text(3, "URL.us", "c"),
        Value.text(4, "URLS", "d"),
        Value.text(5, "EMAIL", "e"),
    )
    name = world.record(prefix, *reversed(values))
    assert resolved(world, name) == [1, 2, 3, 4, 5, 100]
    assert resolved(world, name, ("URL",)) == resolved(world, name, ("uRl",)) == [1, 2]
    assert resolved(world, name, ("URL.",)) == [1, 2, 3]
    assert resolved(world, name, ("EMAIL",), (4, 99)) == [4, 5]
    assert resolved(world, name, (), (3,)) == [3]
    for types, indexes in [(("NONE",), ()), ((), (99,)), ((), (0, -1)), ((".",), ()), (("",), ())]:
        world.unseen(name, RC.VALUES_NOT_FOUND, types=types, indexes=indexes)


def test_public_responses_omit_private_values(world: World, prefix: str) -> None:
    name = world.record(prefix, URL, SECRET, HIDDEN)
    for identity in (NOBODY, Anonymous(session=True), STRANGER, OWNER, in_session(OWNER), OPERATOR):
        assert [value.index for value in world.seen(name, identity).values] == [1, 100]
        world.unseen(name, RC.VALUES_NOT_FOUND, identity, indexes=(5, 6))


@pytest.mark.parametrize(
    ("identity", "selected", "expected"),
    [
        # outside a session: whoever asks gets public values; the first private one decides
        (NOBODY, (1,), (1,)),
        (STRANGER, (1, 100), (1, 100)),
        (NOBODY, (1, 5), RC.AUTHENTICATION_NEEDED),
        (STRANGER, (1, 5), RC.INVALID_ADMIN),
        (OWNER, (1, 5), (1, 5)),
        (OWNER, (), (1, 5, 100)),
        (NOBODY, (6,), RC.INSUFFICIENT_PERMISSIONS),
        (OWNER, (6,), RC.INSUFFICIENT_PERMISSIONS),
        (OWNER, (5, 6), (5,)),
        (OWNER, (77,), RC.VALUES_NOT_FOUND),
        # inside: identity and permission always
        (Anonymous(session=True), (1,), RC.AUTHENTICATION_NEEDED),
        (in_session(STRANGER), (1,), RC.INVALID_ADMIN),
        (in_session(OWNER), (1,), (1,)),
        (in_session(OWNER), (1, 5, 6), (1, 5)),
        (in_session(OWNER), (6,), RC.INSUFFICIENT_PERMISSIONS),
        (Anonymous(session=True), (6,), RC.INSUFFICIENT_PERMISSIONS),
        (Anonymous(session=True), (77,), RC.VALUES_NOT_FOUND),
    ],
)
def test_private_values_are_read_with_permission(
    world: World, prefix: str, identity: Identity, selected: tuple[int, ...], expected: tuple[int, ...] | ResponseCode
) -> None:
    """§12.2; values that no administrator can read are omitted (§22.3)."""
    name = world.record(prefix, URL, SECRET, HIDDEN)
    query = Query(handle(name), indexes=selected, public_only=False)
    if isinstance(expected, ResponseCode):
        world.unseen(name, expected, identity, public_only=False, indexes=selected)
        return
    assert tuple(value.index for value in world.registry.resolve(query, identity).values) == expected


def test_private_values_require_read_value(world: World, prefix: str) -> None:
    able = world.record(prefix, SECRET, permissions=P.READ_VALUE)
    unable = world.record(prefix, SECRET, permissions=ALL_PERMISSIONS & ~P.READ_VALUE)
    assert len(world.seen(able, OWNER, public_only=False).values) == 2
    world.unseen(unable, RC.INVALID_ADMIN, OWNER, public_only=False)


def test_index_0_matches_only_in_a_session(world: World, prefix: str) -> None:
    name = world.record(prefix, SECRET)
    outside = KeyIdentity(ValueRef(0, "77/owner"), Proof.PUBLIC_KEY, verified_index=300)
    world.unseen(name, RC.INVALID_ADMIN, outside, public_only=False)
    world.refused(Add(handle(name), (URL,)), outside, RC.INVALID_ADMIN)
    world.done(Add(handle(name), (URL,)), in_session(outside))


def test_prefix_not_hosted_differs_from_not_found(world: World, prefix: str) -> None:
    refused = world.unseen("99999.97/x", RC.SERVER_NOT_RESP)
    assert refused.reason == "This server does not host prefix 99999.97"
    world.unseen(f"{prefix}/none", RC.HANDLE_NOT_FOUND)
    world.unseen(f"{prefix}/none", RC.HANDLE_NOT_FOUND, in_session(OWNER), public_only=False)


# Prefix referrals and markers (§12.1)


def requests_about(name: str) -> list[Command[object]]:
    """Every command on a handle, with all other faults."""
    bad = (Value.text(0, "URL", ""), Value.text(0, "URL", ""))
    return [
        Create(handle(name), bad),
        Create(handle(name), bad, overwrite=True),
        Add(handle(name), ()),
        Add(handle(name), bad, overwrite=True),
        Remove(handle(name), (7,)),
        Modify(handle(name), bad),
        Delete(handle(name)),
    ]


@pytest.mark.parametrize("kind", ["HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_SERV.PREFIX"])
def test_derived_prefix_elsewhere_is_referred_first(world: World, kind: str) -> None:
    site = replace(ELSEWHERE, type=kind)
    prefix = world.namespace("free", site, replace(site, index=2, permissions=Permission.ADMIN_READ), URL_AT_3)
    for name in (f"0.NA/{prefix}.1", f"0.na/{prefix}.1.2.3"):
        for identity in (NOBODY, STRANGER, OPERATOR):
            for request in requests_about(name):
                refused = world.refused(request, identity, RC.PREFIX_REFERRAL)
                assert isinstance(refused, ReferralError)
                assert [value.with_timestamp(0) for value in refused.values] == [site]
            assert isinstance(world.unseen(name, RC.PREFIX_REFERRAL, identity), ReferralError)
        world.unseen(name, RC.HANDLE_NOT_FOUND, refer=False)
    world.unseen(f"{prefix}/x.y", RC.HANDLE_NOT_FOUND)
    assert world.seen(f"0.NA/{prefix}").values


URL_AT_3 = replace(URL, index=3)


def test_nearest_ancestor_with_a_service_refers(world: World) -> None:
    prefix = world.namespace("free", ELSEWHERE)
    nearer = replace(ELSEWHERE, data=b"nearer")
    add_namespace(world.registry, f"{prefix}.1", "free", nearer)
    add_namespace(world.registry, f"{prefix}.1.2", "free", URL)
    for name, expected in [(f"0.NA/{prefix}.1.2.3", nearer), (f"0.NA/{prefix}.5", ELSEWHERE)]:
        refused = world.unseen(name, RC.PREFIX_REFERRAL)
        assert isinstance(refused, ReferralError)
        assert [value.with_timestamp(0) for value in refused.values] == [expected]
    assert world.seen(f"0.NA/{prefix}.1.2").values[0].data == URL.data


@pytest.mark.parametrize(
    "site", [replace(ELSEWHERE, permissions=Permission.ADMIN_READ), replace(ELSEWHERE, type="hs_site.prefix"), URL]
)
def test_only_public_delegation_values_refer(world: World, site: Value) -> None:
    prefix = world.namespace("free", site)
    world.unseen(f"0.NA/{prefix}.1", RC.HANDLE_NOT_FOUND)
    world.done(Create(handle(f"0.NA/{prefix}.1"), (URL,)))


def test_unpublished_prefix_handle_does_not_refer(world: World) -> None:
    prefix = world.namespace("free", ELSEWHERE)
    world.put(f"0.NA/{prefix}", State.UNPUBLISHED, ELSEWHERE)
    world.unseen(f"0.NA/{prefix}.1", RC.HANDLE_NOT_FOUND)


def test_marker_homes_only_derived_prefixes(own_world: World) -> None:
    world = own_world
    world.done(Home("0.NA/0.NA", unhome=True))
    world.unseen("0.NA/20.5.1", RC.SERVER_NOT_RESP)
    world.done(Home("0.NA/0.NA/20.5"))
    for name in ("0.NA/20.5.1", "0.na/20.5.1.2"):
        world.unseen(name, RC.HANDLE_NOT_FOUND)
    for name in ("0.NA/20.5", "0.NA/20", "0.NA/20.55", "0.NA/20.6.1", "0.NA/0.NA", "20.5/x", "20.5.1/x"):
        world.unseen(name, RC.SERVER_NOT_RESP)
        world.refused(Create(handle(name), (URL,)), OPERATOR, RC.SERVER_NOT_RESP)
    world.done(Create(handle("0.NA/20.5.1"), (URL,)))
    assert world.seen("0.NA/20.5.1").values
    world.done(Home("0.NA/0.NA/20.5", unhome=True))
    world.unseen("0.NA/20.5.1", RC.SERVER_NOT_RESP)


def test_without_the_root_prefix_handles_are_not_hosted(own_world: World) -> None:
    world = own_world
    world.done(Home("0.NA/0.NA", unhome=True))
    made = world.done(AddNamespace("20.7", PROFILES["free"], (admin(100, "300:77/owner"),)))
    assert made.prefix == "20.7"
    world.unseen("0.NA/20.7", RC.SERVER_NOT_RESP)
    world.unseen("20.7/x", RC.HANDLE_NOT_FOUND)
    world.refused(Create(handle("20.7/x"), (URL,)), OWNER, RC.INVALID_ADMIN)
    world.done(Create(handle("20.7/x"), (URL,)), OPERATOR)


# The installation's own records


@pytest.mark.parametrize(
    "name", ["0.SITE/POLICY/{}", "0.site/policy/{}", "0.SITE/HOMED/0.NA/{}", "0.SITE/LEDGER", "0.SITE/x", "0.Site/y"]
)
def test_installation_records_are_not_reachable(world: World, prefix: str, name: str) -> None:
    own = name.format(prefix)
    requests: list[Command[object]] = [
        *requests_about(own),
        Create(handle(own), (URL,)),
        Create(handle(own), (URL,), overwrite=True),
        Add(handle(own), (URL,)),
        Modify(handle(own), (URL,)),
        Remove(handle(own), (1,)),
    ]
    for identity in (NOBODY, STRANGER, SERVER, OPERATOR):
        for request in requests:
            world.refused(request, identity, RC.SERVER_NOT_RESP)
        for public_only in (True, False):
            world.unseen(own, RC.SERVER_NOT_RESP, identity, public_only=public_only)
    assert world.registry.ledger.find(own.encode()) is None


@pytest.mark.parametrize("name", ["0.SITE", "0.site", "0.NA/0.SITE", "0.na/0.Site", "0.NA/0.NA/0.SITE"])
def test_installation_prefix_cannot_be_homed(world: World, name: str) -> None:
    world.refused(Home(name), OPERATOR, RC.INVALID_HANDLE)
    world.refused(Home(name, unhome=True), OPERATOR, RC.INVALID_HANDLE)


@pytest.mark.parametrize("name", ["0.SITE", "0.site", "0.NA", "0.na"])
def test_system_prefixes_cannot_be_namespaces(world: World, name: str) -> None:
    world.refused(AddNamespace(name, PROFILES["free"]), OPERATOR, RC.INVALID_HANDLE)
    world.refused(SetPolicy(name, PROFILES["free"]), OPERATOR, RC.INVALID_HANDLE)


def test_installation_records_grant_no_permissions(world: World, prefix: str) -> None:
    group = Value(200, "HS_VLIST", ValueList((ValueRef(300, "77/stranger"),)).to_bytes())
    world.put("0.SITE/GROUP", State.NORMAL, group)
    name = handle(f"{prefix}/x")
    world.done(Create(name, (URL, admin(100, "200:0.SITE/GROUP"))))
    world.refused(Delete(name), STRANGER, RC.INVALID_ADMIN)


# The life of a name


STATES = [State.RESERVED, State.UNPUBLISHED, State.TOMBSTONE, State.ABSENT]


def in_state(world: World, prefix: str, state: State, *values: Value) -> str:
    name = f"{prefix}/{next(_numbers)}"
    stored = () if state is State.ABSENT else (*(values or (URL,)), admin(100, "300:77/owner"))
    world.put(name, state, *stored)
    return name


@pytest.mark.parametrize("state", [State.RESERVED, State.UNPUBLISHED, State.ABSENT])
def test_hidden_handle_is_not_found_by_the_public(world: World, prefix: str, state: State) -> None:
    name = in_state(world, prefix, state)
    never = world.unseen(f"{prefix}/never", RC.HANDLE_NOT_FOUND)
    for identity in (NOBODY, Anonymous(session=True), STRANGER, in_session(STRANGER), administrator(prefix)):
        for public_only in (True, False):
            refused = world.unseen(name, RC.HANDLE_NOT_FOUND, identity, public_only=public_only)
            assert str(refused) == str(never).replace(f"{prefix}/never", name)
    for request in (Add(handle(name), (EMAIL,)), Remove(handle(name), (1,)), Delete(handle(name))):
        world.refused(request, STRANGER, RC.HANDLE_NOT_FOUND)
        world.refused(request, NOBODY, RC.AUTHENTICATION_NEEDED)
    for identity in (NOBODY, STRANGER):
        world.refused(Modify(handle(name), (URL,)), identity, RC.HANDLE_NOT_FOUND)


@pytest.mark.parametrize("state", STATES)
def test_minters_learn_that_a_hidden_handle_exists(world: World, prefix: str, state: State) -> None:
    name = in_state(world, prefix, state)
    world.refused(Create(handle(name), (URL,)), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)
    world.refused(Reserve((handle(name),)), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)
    if state is State.TOMBSTONE:  # that everybody can see
        world.refused(Create(handle(name), (URL,)), STRANGER, RC.HANDLE_ALREADY_EXISTS)
    assert world.state(name) is state


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("state", [State.RESERVED, State.UNPUBLISHED, State.ABSENT])
def test_hidden_handles_look_free_without_add_handle(
    world: World, prefix: str, state: State, overwrite: bool, retired: bool
) -> None:
    name, free = in_state(world, prefix, state), f"{prefix}/never"
    if retired:
        world.done(ChangePolicy(prefix, RETIRED))
    for identity, code in ((STRANGER, RC.INVALID_ADMIN), (NOBODY, RC.AUTHENTICATION_NEEDED)):
        for values in ((URL,), ()):
            told = world.refused(Create(handle(name), values, overwrite=overwrite), identity, code)
            never = world.refused(Create(handle(free), values, overwrite=overwrite), identity, code)
            assert str(told) == str(never).replace(free, name)
        told = world.refused(Reserve((handle(name),)), identity, code)
        assert str(told) == str(world.refused(Reserve((handle(free),)), identity, code)).replace(free, name)
    assert world.state(name) is state


@pytest.mark.parametrize("state", [State.NORMAL, State.UNPUBLISHED, State.RESERVED])
def test_h3_existing_record_can_be_replaced_although_its_handle_is_not_legal_any_more(
    world: World, prefix: str, state: State
) -> None:
    name = f"{prefix}/old\u200b"
    old, free = Handle.parse_lenient(name), Handle.parse_lenient(f"{prefix}/new\u200b")
    world.put(name, state, URL, admin(100, "300:77/owner"))
    never = world.refused(Create(free, (URL,), overwrite=True), OWNER, RC.INVALID_HANDLE)
    assert never.rule == "H3"
    if state is not State.NORMAL:  # it looks free to users who cannot know it
        for identity in (STRANGER, NOBODY):
            told = world.refused(Create(old, (URL,), overwrite=True), identity, RC.INVALID_HANDLE)
            assert str(told) == str(never).replace("new", "old")
    new = (replace(URL, data=b"https://example.org/new"), admin(100, "300:77/owner"))
    world.done(Create(old, new, overwrite=True), OWNER)
    assert world.stored(name) == new
    world.done(ReplaceRecord(old, (URL,)), OWNER)
    assert world.stored(name) == (URL, new[1])


def test_readers_learn_that_a_hidden_handle_exists(world: World, prefix: str) -> None:
    name = in_state(world, prefix, State.UNPUBLISHED)
    world.refused(Create(handle(name), (URL,)), OWNER, RC.HANDLE_ALREADY_EXISTS)


@pytest.mark.parametrize(
    ("state", "new"),
    [(State.RESERVED, admin(4, "300:77/second")), (State.UNPUBLISHED, EMAIL)],
    ids=["reserved", "hidden"],
)
def test_administrators_can_read_and_change_hidden_records(world: World, prefix: str, state: State, new: Value) -> None:
    name = in_state(world, prefix, state)
    world.unseen(name, RC.HANDLE_NOT_FOUND, OWNER)
    for identity in (OWNER, in_session(OWNER), OPERATOR):
        found = world.seen(name, identity, public_only=False)
        assert (found.state, len(found.values)) == (state, 2)
    world.done(Add(handle(name), (new,)), OWNER)
    world.done(Modify(handle(name), (replace(new, ttl=60),)), OWNER)
    world.done(Remove(handle(name), (4,)), OWNER)
    assert world.state(name) is state
    world.unseen(name, RC.HANDLE_NOT_FOUND)
    world.done(Delete(handle(name)), OWNER)
    assert world.state(name) is State.ABSENT


def test_s1_owner_creates_the_record_of_a_reserved_handle(world: World, prefix: str) -> None:
    owner = admin(100, "300:77/owner")
    name = f"{prefix}/{next(_numbers)}"
    world.put(name, State.RESERVED, owner)
    world.refused(Create(handle(name), (URL,)), NOBODY, RC.AUTHENTICATION_NEEDED)
    changed = world.done(Create(handle(name), (URL, Value.text(100, "DESC", "takes the place"))), OWNER)
    assert not changed.overwritten
    assert world.seen(name).state is State.NORMAL
    assert world.stored(name) == (URL, Value.text(100, "DESC", "takes the place"), replace(owner, index=101))
    world.refused(Create(handle(name), (URL,)), OWNER, RC.HANDLE_ALREADY_EXISTS)


def test_s1_reserved_handle_without_owner_needs_a_server_administrator(world: World, prefix: str) -> None:
    name = f"{prefix}/{next(_numbers)}"
    world.put(name, State.RESERVED)
    world.refused(Create(handle(name), ()), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)
    world.done(Create(handle(name), ()), OPERATOR)
    assert world.state(name) is State.NORMAL


def test_s1_new_administrators_can_replace_the_owner_of_a_reservation(world: World, prefix: str) -> None:
    name = f"{prefix}/{next(_numbers)}"
    world.put(name, State.RESERVED, admin(100, "300:77/owner"))
    own = admin(100, "300:77/another")
    world.done(Create(handle(name), (URL, own)), OWNER)
    assert world.stored(name) == (URL, own)


def test_s1_policy_applies_when_a_reserved_handle_is_created(world: World) -> None:
    prefix = world.namespace(STRICT)
    name = f"{prefix}/{next(_numbers)}"
    world.put(name, State.RESERVED, admin(100, "300:77/owner"))
    world.refused(Create(handle(name), (Value.text(0, "URL", ""),)), OWNER, RC.INVALID_VALUE)
    world.refused(Create(handle(name), (LOCKED,)), OWNER, RC.INVALID_VALUE)
    world.done(Create(handle(name), (URL,)), OWNER)


def test_s1_creation_date_is_when_the_record_is_created(world: World) -> None:
    prefix = pilin_namespace(world)
    name = f"{prefix}/{PILIN_NAMES[1]}"
    world.put(name, State.RESERVED, admin(100, "300:77/owner"))
    world.machine.run(100 * SECOND)
    world.done(Create(handle(name), (URL,)), OWNER)
    assert facts_of(world, name) == (to_iso(world.now), f"{prefix}/{PILIN_NAMES[0]}")


def test_s2_unpublished_record_stays_unpublished_when_replaced(world: World, prefix: str) -> None:
    name = in_state(world, prefix, State.UNPUBLISHED)
    world.done(Create(handle(name), (EMAIL, admin(100, "300:77/owner")), overwrite=True), OWNER)
    assert world.state(name) is State.UNPUBLISHED
    with pytest.raises(Refused):
        world.registry.do(Create(handle(name), (URL,), overwrite=True), STRANGER, "native")
    world.unseen(name, RC.HANDLE_NOT_FOUND)


def test_s8_tombstone_resolves_and_cannot_be_reused(world: World, prefix: str) -> None:
    reason = Value.text(1, "TOMBSTONE.REASON", "burnt")
    name = in_state(world, prefix, State.TOMBSTONE, reason)
    found = world.seen(name)
    assert (found.state, found.values[0].data) == (State.TOMBSTONE, b"burnt")
    for identity in (OWNER, OPERATOR):
        world.refused(Create(handle(name), (URL,)), identity, RC.HANDLE_ALREADY_EXISTS)
    world.refused(Add(handle(name), (EMAIL,)), STRANGER, RC.INVALID_ADMIN)
    world.done(Modify(handle(name), (replace(reason, data=b"burnt in 1999"),)), OWNER)
    assert world.seen(name).state is State.TOMBSTONE


def test_s8_required_types_do_not_apply_to_a_tombstone(world: World) -> None:
    prefix = world.namespace(STRICT)
    reason = Value.text(1, "TOMBSTONE.REASON", "burnt")
    name = in_state(world, prefix, State.TOMBSTONE, reason)
    world.done(Modify(handle(name), (replace(reason, data=b"burnt in 1999"),)), OWNER)
    world.refused(Add(handle(name), (EMAIL,)), OWNER, RC.INVALID_VALUE)


# Small and capital letters (H5)


def test_h5_case_insensitive_lookup_keeps_the_registered_spelling(world: World) -> None:
    add_namespace(world.registry, "Lib.Free", "free")
    world.done(Create(handle("Lib.Free/Straße-Abc"), (URL,)))
    for asked in ("Lib.Free/Straße-Abc", "lib.free/sTRAßE-ABC"):
        found = world.seen(asked)
        assert (found.handle, found.registered) == (handle(asked), handle("Lib.Free/Straße-Abc"))
        world.refused(Create(handle(asked), ()), OPERATOR, RC.HANDLE_ALREADY_EXISTS)
    world.done(Modify(handle("LIB.FREE/straße-abc"), (replace(URL, data=b"x"),)))
    replaced = world.done(Create(handle("LIB.FREE/STRAßE-ABC"), (EMAIL,), overwrite=True))
    assert (replaced.handle, replaced.overwritten) == (handle("Lib.Free/Straße-Abc"), True)
    assert world.seen("lib.free/straße-abc").registered == handle("Lib.Free/Straße-Abc")
    for other in ("Lib.Free/STRASSE-Abc", "Lib.Free/Stra\u1e9ee-Abc"):
        world.unseen(other, RC.HANDLE_NOT_FOUND)
        world.done(Create(handle(other), (URL,)))
    world.done(Delete(handle("lib.free/STRAßE-abc")))
    world.refused(Create(handle("lib.free/straße-abc"), (URL,)), OPERATOR, RC.HANDLE_ALREADY_EXISTS)


def test_h5_case_sensitive_lookup_folds_only_the_prefix(world: World) -> None:
    add_namespace(world.registry, "Lib.Exact", "exact")
    world.done(Create(handle("Lib.Exact/Abc"), (URL,)))
    world.unseen("Lib.Exact/abc", RC.HANDLE_NOT_FOUND)
    world.done(Create(handle("Lib.Exact/abc"), (EMAIL,)))
    world.refused(Create(handle("lib.exact/Abc"), (EMAIL,)), OPERATOR, RC.HANDLE_ALREADY_EXISTS)
    found = world.seen("LIB.EXACT/Abc")
    assert (str(found.handle), str(found.registered)) == ("LIB.EXACT/Abc", "Lib.Exact/Abc")
    assert found.values[0].type == "URL"
    assert world.seen("lib.exact/abc").values[0].type == "EMAIL"
    world.done(Delete(handle("lib.exact/abc")))
    assert world.seen("Lib.Exact/Abc").values[0].type == "URL"
    world.done(Create(handle("Lib.Exact/ABC"), (URL,)))


def test_h5_administrators_apply_to_each_spelling(world: World) -> None:
    add_namespace(world.registry, "Lib.Owned", "exact")
    world.done(Create(handle("Lib.Owned/a"), (URL, admin(100, "300:77/owner"))))
    world.done(Create(handle("Lib.Owned/A"), (URL, admin(100, "300:77/another"))))
    world.done(Add(handle("lib.owned/a"), (EMAIL,)), OWNER)
    world.refused(Add(handle("lib.owned/A"), (EMAIL,)), OWNER, RC.INVALID_ADMIN)


def test_h5_everything_under_the_prefix_of_prefixes_folds() -> None:
    rules = Rules(Settings(server_admins=(SERVER.reference,)), default_policy=PROFILES["exact"])
    with registry_in_memory(rules=rules) as registry:
        world = World(registry, Machine())
        world.done(Create(handle("0.NA/Lib"), (URL,)))
        found = world.seen("0.na/lIB")
        assert (str(found.handle), str(found.registered)) == ("0.na/lIB", "0.NA/Lib")
        world.refused(Create(handle("0.NA/LIB"), ()), OPERATOR, RC.HANDLE_ALREADY_EXISTS)
        world.done(Home("0.NA/Lib"))
        world.done(Create(handle("lib/x"), (URL,)))
        world.unseen("LIB/X", RC.HANDLE_NOT_FOUND)
        assert world.seen("LIB/x").values


def test_c4_cordra_path_is_registered_in_uppercase(world: World) -> None:
    add_namespace(world.registry, "2000.01", "cordra")
    asked = handle(f"2000.01/{DIGITS.lower()}")
    changed = world.done(Create(asked, (URL,)))
    assert str(changed.handle) == f"2000.01/{DIGITS}"
    found = world.seen(str(asked))
    assert (found.handle, str(found.registered)) == (asked, f"2000.01/{DIGITS}")
    world.refused(Create(handle(f"2000.01/{DIGITS}"), ()), OPERATOR, RC.HANDLE_ALREADY_EXISTS)
    world.done(Add(asked, (EMAIL,)))
    for bad in (DIGITS[:-1], DIGITS + "0", DIGITS[:-1] + "G", f"{DIGITS[:8]}-{DIGITS[8:]}"):
        refused = world.refused(Create(handle(f"2000.01/{bad}"), (URL,)), OPERATOR, RC.INVALID_HANDLE)
        assert refused.rule == 'scheme = "cordra"'
        world.unseen(f"2000.01/{bad}", RC.HANDLE_NOT_FOUND)


TAILS = [("?v=A/b", "v=A/b", None), ("#Part", None, "Part"), ("?Q#F?", "Q", "F?"), ("?", "", None), ("?#", "", "")]


@pytest.mark.parametrize(("tail", "query", "fragment"), TAILS)
def test_c5_lookup_with_query_or_fragment_finds_the_bare_path(
    world: World, tail: str, query: str | None, fragment: str | None
) -> None:
    prefix = world.namespace("cordra")
    path = f"{prefix}/{DIGITS}"
    world.done(Create(handle(path), (URL,)))
    asked = Handle.parse_lenient(path.lower() + tail)
    found = world.registry.resolve(Query(asked), NOBODY)
    assert (found.handle, str(found.registered)) == (asked, path)
    assert (found.query, found.fragment) == (query, fragment)
    refused = world.refused(
        Create(Handle.parse_lenient(f"{prefix}/{'0' * 32}{tail}"), (URL,)), OPERATOR, RC.INVALID_HANDLE
    )
    assert refused.rule == 'scheme = "cordra"'
    world.unseen(f"{prefix}/{'0' * 32}{tail}", RC.HANDLE_NOT_FOUND)


@pytest.mark.parametrize("tail", ["?page=2", "#part"])
def test_c5_changes_require_the_bare_path(world: World, tail: str) -> None:
    """Deleting page 2 must not delete the book."""
    prefix = world.namespace(replace(PROFILES["cordra"], deletion=Deletion.ALLOWED))
    path = f"{prefix}/{DIGITS}"
    world.done(Create(handle(path), (URL,)))
    asked = Handle.parse_lenient(path + tail)
    requests: list[Command[object]] = [
        Create(asked, (EMAIL,), overwrite=True),
        Add(asked, (EMAIL,)),
        Modify(asked, (replace(URL, data=b"x"),)),
        Remove(asked, (1,)),
        Delete(asked),
    ]
    for request in requests:
        world.refused(request, OPERATOR, RC.INVALID_HANDLE)
    assert world.stored(path) == (URL,)


def test_c5_question_mark_is_part_of_other_handles(world: World, prefix: str) -> None:
    world.done(Create(handle(f"{prefix}/a?b#c"), (URL,)))
    found = world.seen(f"{prefix}/A?B#C")
    assert (found.query, found.fragment, str(found.registered)) == (None, None, f"{prefix}/a?b#c")
    world.unseen(f"{prefix}/a", RC.HANDLE_NOT_FOUND)


# Namespaces and policies


def test_creating_a_namespace_homes_the_prefix_and_creates_its_handle(world: World) -> None:
    prefix = str(next(_numbers))
    request = AddNamespace(prefix, PROFILES["free"], (admin(100, "300:77/owner"), URL))
    world.refused(request, NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(request, STRANGER, RC.INVALID_ADMIN)
    before = world.size
    made = world.done(request, SERVER)
    assert (made.prefix, made.policy, made.seq) == (prefix, PROFILES["free"], before + 1)
    assert [value.type for value in world.seen(f"0.NA/{prefix}").values] == ["URL", "HS_ADMIN"]
    world.done(Create(handle(f"{prefix}/x"), (URL,)), OWNER)
    world.refused(request, SERVER, RC.HANDLE_ALREADY_EXISTS)
    world.refused(replace(request, prefix="a b/c"), SERVER, RC.INVALID_HANDLE)
    world.refused(request, STRANGER, RC.INVALID_ADMIN)


def test_values_of_a_prefix_handle_are_checked(world: World) -> None:
    request = AddNamespace(str(next(_numbers)), PROFILES["free"])
    zero, nine = Value.text(0, "URL", ""), Value.text(9, "URL", "")
    world.refused(replace(request, values=(zero, nine, nine)), OPERATOR, RC.INVALID_VALUE)
    world.refused(replace(request, values=(nine, nine)), NOBODY, RC.VALUE_ALREADY_EXISTS, "Index conflict for 9")
    world.refused(replace(request, prefix="a..b", values=(zero,)), NOBODY, RC.INVALID_HANDLE)


def test_h6_derived_namespace_requires_permission_on_the_parent(world: World) -> None:
    parent = world.namespace("free", admin(101, "300:77/owner", P.ADD_NA))
    world.refused(AddNamespace(f"{parent}.1", PROFILES["free"]), STRANGER, RC.INVALID_ADMIN)
    world.done(AddNamespace(f"{parent}.1", PROFILES["free"]), OWNER)
    world.refused(AddNamespace(f"{parent}.1.1", PROFILES["free"]), OWNER, RC.INVALID_ADMIN)


def test_c1_cordra_namespace_requires_a_numeric_prefix(world: World) -> None:
    world.refused(AddNamespace("10.x", PROFILES["cordra"]), OPERATOR, RC.INVALID_HANDLE)


def test_c1_namespace_with_another_prefix_cannot_become_cordra(world: World) -> None:
    world.done(AddNamespace("30.x", PROFILES["free"]))
    policy = replace(PROFILES["cordra"], case=CaseRule.INSENSITIVE)
    world.refused(SetPolicy("30.x", policy), OPERATOR, RC.INVALID_HANDLE)


def test_h5_namespace_that_would_hide_records_is_refused(world: World) -> None:
    """A homed prefix has the case rule of the default policy, which its records use."""
    prefix = str(next(_numbers))
    world.done(Home(f"0.NA/{prefix}"))
    world.done(Create(handle(f"{prefix}/Abc"), (URL,)))
    world.refused(AddNamespace(prefix, PROFILES["exact"]), OPERATOR, RC.INVALID_VALUE)
    world.done(AddNamespace(prefix, PROFILES["free"]))
    assert world.seen(f"{prefix}/Abc").values[0].data == URL.data
    world.refused(Create(handle(f"{prefix}/Abc"), ()), OPERATOR, RC.HANDLE_ALREADY_EXISTS)


def test_a6_types_are_found_by_the_case_rule_of_the_namespace(world: World) -> None:
    prefix = str(next(_numbers))
    policy = replace(
        PROFILES["exact"], authority=True, creation_date_type=f"{prefix}/made", creator_type=f"{prefix}/maker"
    )
    world.done(AddNamespace(prefix, policy))
    assert world.seen(f"{prefix}/made").values[0].type == "DESC"
    assert world.seen(f"{prefix}/maker").values[0].type == "DESC"


def test_a6_types_elsewhere_are_reported(world: World) -> None:
    prefix = str(next(_numbers))
    policy = Policy(authority=True, creation_date_type="88.1/MADE", creator_type=f"{prefix}/MAKER")
    made = world.done(AddNamespace(prefix, policy))
    assert made.types_elsewhere == ("88.1/MADE",)
    assert world.seen(f"{prefix}/MAKER").values


def test_setting_a_policy_requires_modify_admin_on_the_prefix(world: World) -> None:
    prefix = world.namespace(
        "free", admin(101, "300:77/owner", P.MODIFY_ADMIN), admin(102, "1:77/x", ALL_PERMISSIONS & ~P.MODIFY_ADMIN)
    )
    request = SetPolicy(prefix, replace(STRICT, purpose="tests"))
    world.refused(request, NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(request, key_holder(1, "77/x"), RC.INVALID_ADMIN)
    assert world.done(request, OWNER).policy.purpose == "tests"
    world.done(SetPolicy(prefix, STRICT), SERVER)
    world.refused(Create(handle(f"{prefix}/x"), (EMAIL, URL)), OPERATOR, RC.INVALID_VALUE)


def test_checks_of_a_new_policy_are_ordered(world: World) -> None:
    unhomed = "99999.96"
    sensitive = replace(PROFILES["free"], case=CaseRule.SENSITIVE)
    world.refused(SetPolicy("a..b", sensitive), NOBODY, RC.INVALID_HANDLE)
    world.refused(SetPolicy(unhomed, sensitive), NOBODY, RC.AUTHENTICATION_NEEDED)
    world.refused(SetPolicy(unhomed, sensitive), STRANGER, RC.INVALID_ADMIN)
    world.refused(SetPolicy(unhomed, sensitive), SERVER, RC.SERVER_NOT_RESP)
    prefix = world.namespace()
    refused = world.refused(SetPolicy(prefix, sensitive), SERVER, RC.INVALID_VALUE)
    assert "H5" in refused.reason


def test_h5_case_rule_of_a_default_policy_is_fixed_too(world: World) -> None:
    prefix = str(next(_numbers))
    world.done(Home(f"0.NA/{prefix}"))
    world.done(Create(handle(f"{prefix}/Abc"), (URL,)))
    world.refused(SetPolicy(prefix, PROFILES["exact"]), OPERATOR, RC.INVALID_VALUE)
    world.done(SetPolicy(prefix, STRICT))
    assert world.seen(f"{prefix}/aBC").values


def test_policy_survives_replacing_the_prefix_handle(world: World) -> None:
    prefix = world.namespace(STRICT)
    world.done(Create(handle(f"0.NA/{prefix}"), (admin(100, f"300:0.NA/{prefix}"), EMAIL), overwrite=True))
    world.refused(Create(handle(f"{prefix}/x"), (URL, EMAIL)), administrator(prefix), RC.INVALID_VALUE)
    world.done(Create(handle(f"{prefix}/x"), (URL,)), administrator(prefix))
    world.refused(Delete(handle(f"{prefix}/x")), OPERATOR, RC.INVALID_VALUE)
    world.done(Delete(handle(f"0.NA/{prefix}")))
    world.refused(Create(handle(f"{prefix}/y"), (URL, EMAIL)), OPERATOR, RC.INVALID_VALUE)
    assert world.seen(f"{prefix}/X").values


def test_new_policy_keeps_records_readable(world: World, prefix: str) -> None:
    name = world.record(prefix, EMAIL)
    world.done(SetPolicy(prefix, replace(STRICT, scheme="uuid")))
    assert world.seen(name).values[0].data == EMAIL.data
    world.refused(Add(handle(name), (replace(EMAIL, index=9),)), OWNER, RC.INVALID_VALUE)
    world.refused(Create(handle(f"{prefix}/no-uuid"), (URL,)), OPERATOR, RC.INVALID_HANDLE)


def broken(world: World, policy: bytes = b"case = 7") -> str:
    """A namespace with an unreadable policy."""
    prefix = world.namespace()
    world.done(Create(handle(f"{prefix}/x"), (URL, admin(100, "300:77/owner"))))
    world.put(policy_name(prefix), State.NORMAL, Value(1, POLICY_TYPE, policy))
    return prefix


@pytest.mark.parametrize("policy", [b"case = 7", b"\xff", b"future_key = true"])
def test_unreadable_policy_allows_nothing(world: World, policy: bytes) -> None:
    prefix = broken(world, policy)
    for request in (Create(handle(f"{prefix}/y"), (URL,)), Delete(handle(f"{prefix}/x"))):
        refused = world.refused(request, OPERATOR, RC.ERROR)
        assert refused.advice == AdviceKind.SET_POLICY()
    world.unseen(f"{prefix}/x", RC.ERROR)
    assert world.seen(f"0.NA/{prefix}").values
    world.record(world.namespace(), URL)


def test_unreadable_policy_can_be_replaced(world: World) -> None:
    """As the refusal advises."""
    prefix = broken(world)
    world.done(SetPolicy(prefix, PROFILES["free"]))
    assert world.seen(f"{prefix}/X").values


def test_group_under_an_unreadable_policy_does_not_match(world: World, prefix: str) -> None:
    name = handle(f"{prefix}/x")
    world.done(Create(name, (URL, admin(100, f"200:{broken(world)}/x"), admin(101, "200:77/none"))))
    world.refused(Delete(name), STRANGER, RC.INVALID_ADMIN)


# Authority metadata and plain clients


def pilin_namespace(world: World, policy: Policy = PROFILES["pilin"]) -> str:
    """A PILIN namespace with a default creator, whose record exists."""
    prefix = str(next(_numbers))
    creator = f"{prefix}/{PILIN_NAMES[0]}"
    values = (admin(100, f"300:0.NA/{prefix}"),)
    add_namespace(world.registry, prefix, replace(policy, default_creator=creator), *values)
    world.done(Create(handle(creator), (Value.text(1, "DESC", "the first"), admin(100, "300:77/owner"))))
    return prefix


def facts_of(world: World, name: str) -> tuple[str, str]:
    """The creation date and creator of a record."""
    by_type = {value.type: value for value in world.seen(name).values}
    date, creator = (by_type[f"102.100.TYPE/{fact}"] for fact in ("CREATION_DATE", "CREATOR"))
    return date.data.decode(), creator.data.decode()


def test_a8_plain_client_works_in_a_pilin_namespace(world: World) -> None:
    prefix = pilin_namespace(world)
    name, identity = f"{prefix}/{PILIN_NAMES[1]}", administrator(prefix)
    mine = (URL, admin(100, f"300:0.NA/{prefix}"))
    world.done(Create(handle(name.lower()), mine), identity)
    assert str(world.seen(name).registered) == name
    snapshot = facts_of(world, name)
    assert snapshot == (to_iso(world.now), f"{prefix}/{PILIN_NAMES[0]}")
    assert [value.index for value in world.seen(name).values] == [1, 100, 9001, 9002]
    world.machine.run(60 * SECOND)
    world.unchanged(Create(handle(name), mine, overwrite=True), identity)
    changed = replace(URL, data=b"https://example.org/2")
    world.done(Create(handle(name), (changed, mine[1]), overwrite=True), identity)
    assert facts_of(world, name) == snapshot
    times = {value.index: value.timestamp for value in world.seen(name).values}
    assert {index for index, at in times.items() if at == world.now} == {1}
    world.done(Add(handle(name), (EMAIL,)), identity)
    world.done(Remove(handle(name), (4,)), identity)
    world.done(Modify(handle(name), (URL,)), identity)
    assert facts_of(world, name) == snapshot
    refused = world.refused(Delete(handle(name)), identity, RC.INVALID_VALUE)
    assert refused.rule == 'deletion = "tombstone"'


def test_a8_plain_client_can_delete_if_the_policy_allows_it(world: World) -> None:
    prefix = pilin_namespace(world, replace(PROFILES["pilin"], deletion=Deletion.ALLOWED))
    name = f"{prefix}/{PILIN_NAMES[1]}"
    world.done(Create(handle(name), (URL, admin(100, "300:77/owner"))), administrator(prefix))
    world.done(Delete(handle(name)), OWNER)
    world.refused(Create(handle(name), (URL,)), administrator(prefix), RC.HANDLE_ALREADY_EXISTS)


def test_a8_plain_client_needs_no_permission_for_unknown_values(world: World) -> None:
    """Date and creator stay, so omitting them removes nothing."""
    prefix = pilin_namespace(world)
    name = f"{prefix}/{PILIN_NAMES[1]}"
    mine = (URL, admin(100, "300:77/owner", P.MODIFY_VALUE))
    world.done(Create(handle(name), mine))
    world.unchanged(Create(handle(name), mine, overwrite=True), STRANGER)
    world.done(Create(handle(name), (replace(URL, data=b"https://x.example/"), mine[1]), overwrite=True), OWNER)


def test_a8_date_and_creator_cannot_be_changed_or_removed(world: World) -> None:
    prefix = pilin_namespace(world)
    name = f"{prefix}/{PILIN_NAMES[1]}"
    world.done(Create(handle(name), (URL,)))
    date, creator = world.stored(name)[1:]
    for fact in (date, creator):
        world.refused(Remove(handle(name), (fact.index,)), OPERATOR, RC.INVALID_VALUE)
        world.refused(Modify(handle(name), (replace(URL, index=fact.index),)), OPERATOR, RC.INVALID_VALUE)
        other = replace(fact, data=b"2001-01-01T00:00:00Z" if fact is date else b"77/other")
        world.refused(Modify(handle(name), (other,)), OPERATOR, RC.INVALID_VALUE)
        world.refused(Create(handle(name), (URL, other), overwrite=True), OPERATOR, RC.INVALID_VALUE)
        world.refused(Add(handle(name), (replace(other, index=50),)), OPERATOR, RC.INVALID_VALUE)


def test_p8_other_suffixes_are_refused(world: World) -> None:
    prefix = str(next(_numbers))
    add_namespace(world.registry, prefix, "pilin")
    for bad in ("hello", "Y35XYS0Q", "Y35XYS0QHH", "A35XYS0QH", "Y35-YS0QH"):
        refused = world.refused(Create(handle(f"{prefix}/{bad}"), (URL,)), OPERATOR, RC.INVALID_HANDLE)
        assert (refused.rule, bool(refused.advice)) == ('scheme = "pilin"', True)
    first = f"{prefix}/{PILIN_NAMES[2]}"
    refused = world.refused(Create(handle(first), (URL,)), OPERATOR, RC.INVALID_VALUE)
    assert refused.rule == 'default_creator = ""'
    maker = Value.text(3, "102.100.TYPE/CREATOR", f"hdl:{first.lower()}")
    world.done(Create(handle(first), (URL, maker)))
    assert facts_of(world, first)[1].upper() == first
    later = Value.text(3, "102.100.TYPE/CREATOR", first)
    world.done(Create(handle(f"{prefix}/{PILIN_NAMES[3]}"), (later,)))
    missing = Value.text(3, "102.100.TYPE/CREATOR", f"{prefix}/{PILIN_NAMES[5]}")
    world.refused(Create(handle(f"{prefix}/{PILIN_NAMES[4]}"), (missing,)), OPERATOR, RC.INVALID_VALUE)
    foreign = replace(missing, data=b"102.100.pilin2/XYZZY")
    world.done(Create(handle(f"{prefix}/{PILIN_NAMES[4]}"), (foreign,)))


def test_a3_only_server_administrators_can_import_dates(world: World) -> None:
    prefix = pilin_namespace(world)
    dated = Value.text(2, "102.100.TYPE/CREATION_DATE", "2007-06-22T02:53:46Z")
    old = URL.with_timestamp(1_182_480_826)
    names = iter(PILIN_NAMES[1:])
    for interface, identity in (
        ("native", OPERATOR),
        ("native", administrator(prefix)),
        ("import", administrator(prefix)),
    ):
        request = Create(handle(f"{prefix}/{next(names)}"), (old, dated))
        world.refused(request, identity, RC.INVALID_VALUE, interface=interface)
    name = f"{prefix}/{next(names)}"
    world.done(Create(handle(name), (old, dated)), OPERATOR, interface="import")
    assert facts_of(world, name)[0] == "2007-06-22T02:53:46Z"
    assert world.seen(name).values[0] == old


def test_a3_only_server_administrators_can_import_timestamps(world: World, prefix: str) -> None:
    old = URL.with_timestamp(1_182_480_826)
    world.done(Create(handle(f"{prefix}/a"), (old,)), administrator(prefix), interface="import")
    assert world.seen(f"{prefix}/a").values[0].timestamp == world.now
    world.done(Create(handle(f"{prefix}/b"), (old,)), OPERATOR, interface="import")
    assert world.seen(f"{prefix}/b").values[0].timestamp == old.timestamp


# What is kept of a change


LONGEST = Value(1, "URL", b"x" * (MAX_BYTES - 29))  # 26 bytes and the type come on top
LONGER: list[Callable[[Handle, Value], Command[object]]] = [
    lambda name, value: Create(handle(f"{name}.new"), (value,)),
    lambda name, value: Create(name, (value,), overwrite=True),
    lambda name, value: Add(name, (replace(value, index=9),)),
    lambda name, value: Modify(name, (value,)),
    lambda name, value: ReplaceRecord(name, (value,)),
]


@pytest.mark.parametrize("make", LONGER)
def test_value_is_refused_if_it_could_not_be_read_back(
    world: World, prefix: str, make: Callable[[Handle, Value], Command[object]]
) -> None:
    name = world.record(prefix, URL)
    refused = world.refused(make(handle(name), replace(LONGEST, data=LONGEST.data + b"x")), OPERATOR, RC.INVALID_VALUE)
    assert "would have 1,048,577 bytes with its type and references; the maximum is 1,048,576" in refused.reason
    world.done(make(handle(name), LONGEST))
    assert LONGEST.size == len(LONGEST.to_bytes()) == MAX_BYTES


def test_longer_value_of_an_earlier_version_does_not_block_other_changes(
    world: World, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, longer = world.record(prefix, EMAIL), replace(LONGEST, data=b"x" * (MAX_BYTES + 1))
    with monkeypatch.context() as patch:
        patch.setattr(entry_module, "MAX_BYTES", 2 * MAX_BYTES)
        world.put(name, State.NORMAL, longer, EMAIL, admin(100, "300:77/owner"))
    world.done(Remove(handle(name), (EMAIL.index,)), OWNER)
    assert longer in world.stored(name)
    world.done(Modify(handle(name), (URL,)), OWNER)


def test_entry_records_actor_interface_and_note(world: World, prefix: str) -> None:
    name = handle(f"{prefix}/x")
    world.registry.do(Create(name, (URL,)), administrator(prefix), "http", "because")
    with world.registry.ledger.open_reader() as reader:
        entry = reader.record(record_key(str(name)))
    assert entry is not None
    assert (entry.origin, entry.why) == (("http", f"300:0.NA/{prefix}"), "because")
    assert entry.action is Action.CREATE


ACTIONS: list[tuple[Callable[[Handle], Command[object]], Action]] = [
    (lambda name: Add(name, (EMAIL,)), Action.UPDATE),
    (lambda name: Modify(name, (replace(URL, data=b"x"),)), Action.UPDATE),
    (lambda name: Remove(name, (1,)), Action.UPDATE),
    (lambda name: Create(name, (EMAIL,), overwrite=True), Action.UPDATE),
    (Delete, Action.DELETE),
]


@pytest.mark.parametrize(("make", "action"), ACTIONS)
def test_each_change_is_one_entry_of_its_kind(
    world: World, prefix: str, make: Callable[[Handle], Command[object]], action: Action
) -> None:
    name = world.record(prefix, URL)
    before = world.size
    world.done(make(handle(name)), OWNER)
    with world.registry.ledger.open_reader() as reader:
        entry = reader.entry(before + 1)
    assert (entry.action, entry.handle, world.size) == (action, name, before + 1)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("54321/x", AdviceKind.HOST_PREFIX(prefix="54321")),
        ("abc/x", AdviceKind.HOST_PREFIX(prefix="abc")),
        ("doi.org/10.1000/1", AdviceKind.USE_BARE_HANDLE(handle=handle("10.1000/1"))),
        ("api/handles/12345/x", AdviceKind.USE_BARE_HANDLE(handle=handle("12345/x"))),
        ("<https://x", AdviceKind.PREFIX_EXAMPLE()),
    ],
)
def test_part_of_a_url_is_not_advised_as_a_prefix_to_host(name: str, advice: Advice) -> None:
    wrong = Handle.parse_lenient(name)
    assert not_hosted(wrong.prefix, wrong).advice == advice

"""The registry against a model in a dictionary: any commands in any order have the same results.

The model is written from the protocol (§12.2, §14, §16 of the native-protocol reference) and from the states of a
handle, and shares only the form of values with the registry. After every step each handle of both namespaces is
resolved by the public and compared. One namespace is case-sensitive. `make fuzz` looks further.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission, ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.context import Command
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import ChangeResult, Refused
from tests.conftest import EXAMPLES
from tests.ledger.ledgers import Machine, open_store
from tests.postgres import Cluster, postgres
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, key_holder, registry_on

__all__ = ["postgres"]

NAMES: Final = tuple("".join(pair) for pair in product("aA", "bB"))
GROUP: Final = "200:77/group"
RIGHTS: Final = {
    "all": frozenset(bit.name for bit in AdminPermission),
    "writer": frozenset({"MODIFY_VALUE", "ADD_VALUE"}),
    "remover": frozenset({"REMOVE_VALUE", "READ_VALUE"}),
    "crowner": frozenset({"ADD_ADMIN"}),
    "keeper": frozenset({"MODIFY_ADMIN", "REMOVE_ADMIN", "MODIFY_VALUE", "ADD_ADMIN"}),
    "deleter": frozenset({"DELETE_HANDLE"}),
}
"""The permissions of an administrator, by name."""

MEMBER: Final = key_holder(300, "77/member")
MAKER: Final = key_holder(300, "77/maker")
"""Can create handles in both namespaces, and delete records that name them `deleter`."""
PEOPLE: Final[dict[str, Identity]] = {
    "nobody": NOBODY,
    "operator": OPERATOR,
    "stranger": key_holder(300, "77/stranger"),
    "maker": MAKER,
    "member": MEMBER,
    **{right: key_holder(300, f"77/{right}") for right in RIGHTS},
}


def _bits(right: str) -> AdminPermission:
    bits = AdminPermission(0)
    for name in RIGHTS[right]:
        bits |= AdminPermission[str(name)]
    return bits


ADMINS: Final[dict[bytes, tuple[str, frozenset[str | None]]]] = {
    **{admin(1, f"300:77/{right}", _bits(right)).data: (right, RIGHTS[right]) for right in RIGHTS},
    admin(1, "300:77/maker", AdminPermission.DELETE_HANDLE).data: ("maker", RIGHTS["deleter"]),
    admin(1, GROUP, ALL_PERMISSIONS).data: ("member", RIGHTS["all"]),
}
"""The data of every HS_ADMIN value used here: administrator and permissions."""


@dataclass
class Name:
    """A handle in the model."""

    spelling: str
    state: str = "normal"
    values: dict[int, Value] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.state != "deleted"


@dataclass(frozen=True)
class Answer:
    """The outcome of a command: done, or refused with a code."""

    code: int = 1
    overwritten: bool = False
    changes: bool = True


def is_admin(value: Value) -> bool:
    return value.type.upper().split(".")[0] == "HS_ADMIN"


def same(one: Value, other: Value) -> bool:
    return replace(one, timestamp=0) == replace(other, timestamp=0)


def bit(value: Value, letter: int) -> bool:
    """Whether a bit of `rwrw` (admin read, admin write, public read, public write) is set."""
    return bool(value.permissions & (8, 4, 2, 1)[letter])


def buried(name: "Name", wanted: Mapping[int, Value]) -> bool:
    """Whether a change would add values to a tombstone (S8) or to a reserved handle (S1), or change those of a
    tombstone. Administrators can change.
    """
    if name.state not in ("tombstone", "reserved"):
        return False
    for index in name.values.keys() | wanted.keys():
        old, new = name.values.get(index), wanted.get(index)
        if old is not None and new is not None and same(old, new):
            continue
        if new is None and name.state == "reserved":
            continue
        if not all(is_admin(value) for value in (old, new) if value is not None):
            return True
    return False


class Model:
    """Handles × states × values, and the rules of the protocol in their order."""

    def __init__(self, namespaces: dict[str, bool]) -> None:
        self.exact = namespaces
        self.homed = set(namespaces)
        self.names: dict[str, Name] = {}
        self.now = 0

    def key(self, prefix: str, suffix: str) -> str:
        return f"{prefix}/{suffix if self.exact[prefix] else suffix.upper()}"

    def find(self, prefix: str, suffix: str) -> Name | None:
        return self.names.get(self.key(prefix, suffix))

    # Who may

    def may(self, who: str, needed: Collection[str], name: Name) -> bool:
        """All permissions have to come from one value."""
        if who == "operator":
            return True
        given = [ADMINS[value.data] for value in name.values.values() if is_admin(value)]
        return any(whom == who and set(needed) <= rights for whom, rights in given)

    def may_create(self, who: str) -> bool:
        return who in ("operator", "maker")

    def shows_itself(self, who: str, name: Name | None) -> bool:
        """Whether there is a record as far as somebody can tell."""
        if name is None or not name.exists:
            return False
        return name.state in ("normal", "tombstone") or (who != "nobody" and self.may(who, {"READ_VALUE"}, name))

    def knows(self, who: str, name: Name, wanted: dict[int, Value]) -> bool:
        """Whether there is a record as far as somebody can tell, or a name that is reserved for them."""
        if name.state == "reserved" and who != "nobody" and self.may(who, self.to_register(wanted), name):
            return True
        return self.shows_itself(who, name)

    @staticmethod
    def to_add(value: Value) -> set[str]:
        return {"ADD_ADMIN" if is_admin(value) else "ADD_VALUE"}

    def to_register(self, wanted: dict[int, Value]) -> set[str]:
        return set().union(*[self.to_add(value) for value in wanted.values()]) or {"ADD_VALUE"}

    @staticmethod
    def to_remove(value: Value) -> set[str]:
        return {"REMOVE_ADMIN" if is_admin(value) else "REMOVE_VALUE"}

    @staticmethod
    def to_modify(old: Value, new: Value) -> set[str]:
        if is_admin(old):
            return {"MODIFY_ADMIN"} if is_admin(new) else {"REMOVE_ADMIN", "MODIFY_VALUE"}
        if is_admin(new):
            return {"MODIFY_VALUE", "ADD_ADMIN"}
        return set() if bit(old, 3) else {"MODIFY_VALUE"}

    def to_become(self, old: dict[int, Value], new: dict[int, Value]) -> tuple[set[str], bool]:
        """What the differences need, and whether there are any."""
        needed: set[str] = set()
        differs = False
        for index in old.keys() | new.keys():
            if index not in new:
                needed |= self.to_remove(old[index])
            elif index not in old:
                needed |= self.to_add(new[index])
            elif same(old[index], new[index]):
                continue
            else:
                needed |= self.to_modify(old[index], new[index])
            differs = True
        return needed, differs

    # Changes

    def store(self, name: Name, values: dict[int, Value]) -> bool:
        """Put values into a record; those that stay keep their timestamps. Whether anything has changed."""
        dated = {
            index: name.values[index]
            if index in name.values and same(name.values[index], value)
            else replace(value, timestamp=self.now)
            for index, value in values.items()
        }
        changes, name.values = dated != name.values, dated
        return changes

    def create(self, who: str, prefix: str, suffix: str, values: Sequence[Value], how: str) -> Answer:
        indexes = [value.index for value in values]
        if prefix not in self.homed:
            return Answer(301)
        if any(index <= 0 for index in indexes):
            return Answer(202)
        if len(set(indexes)) < len(indexes):
            return Answer(201)
        wanted = {value.index: value for value in values}
        name = self.find(prefix, suffix)
        if name is not None and name.exists and not self.knows(who, name, wanted) and not self.may_create(who):
            return Answer(402 if who == "nobody" else 400)
        if name is not None and name.state == "reserved":
            return self.register(who, name, wanted)
        if name is not None and name.exists:
            return self.replace(who, name, wanted) if how == "overwrite" else Answer(101)
        if who == "nobody":
            return Answer(402)
        if not self.may_create(who):
            return Answer(400)
        if name is not None and how != "again":
            return Answer(101)
        name = name or Name(f"{prefix}/{suffix}")
        name.state, name.values = "normal", {}
        self.store(name, wanted)
        self.names[self.key(prefix, suffix)] = name
        return Answer()

    def register(self, who: str, name: Name, wanted: dict[int, Value]) -> Answer:
        """A reserved name is registered by whom it was reserved for; to others who know of it, it exists."""
        if not self.may(who, self.to_register(wanted), name):
            return Answer(101)
        if not any(is_admin(value) for value in wanted.values()):
            taken = set(wanted)
            for index, value in name.values.items():
                if is_admin(value):
                    free = next(number for number in count(index) if number not in taken)
                    taken.add(free)
                    wanted[free] = replace(value, index=free)
        self.store(name, wanted)
        name.state = "normal"
        return Answer()

    def replace(self, who: str, name: Name, wanted: dict[int, Value]) -> Answer:
        if who == "nobody":
            return Answer(402)
        needed, differs = self.to_become(name.values, wanted)
        ways = [
            not needed,
            "ADD_ADMIN" not in needed and self.may(who, needed, name),
            self.may(who, {"ADD_ADMIN"}, name),
            self.may(who, {"DELETE_HANDLE"}, name) and self.may_create(who),
        ]
        if not any(ways):
            return Answer(400)
        if buried(name, wanted):
            return Answer(202)
        assert self.store(name, wanted) is differs
        return Answer(overwritten=True, changes=differs)

    def add(self, who: str, prefix: str, suffix: str, values: Sequence[Value], overwrite: bool) -> Answer:
        indexes = [value.index for value in values]
        if prefix not in self.homed:
            return Answer(301)
        if not values or any(index <= 0 for index in indexes):
            return Answer(202)
        if len(set(indexes)) < len(indexes):
            return Answer(201)
        if who == "nobody":
            return Answer(402)
        name = self.find(prefix, suffix)
        if name is None or not self.shows_itself(who, name):
            return Answer(100)
        shared = set(indexes) & name.values.keys()
        if shared and not overwrite:
            return Answer(201)
        merged = name.values | {value.index: value for value in values}
        needed, _ = self.to_become(name.values, merged)
        if needed and not self.may(who, needed, name):
            return Answer(400)
        if buried(name, merged):
            return Answer(202)
        return Answer(overwritten=bool(shared), changes=self.store(name, merged))

    def remove(self, who: str, prefix: str, suffix: str, indexes: Sequence[int]) -> Answer:
        if prefix not in self.homed:
            return Answer(301)
        if who == "nobody":
            return Answer(402)
        name = self.find(prefix, suffix)
        if name is None or not self.shows_itself(who, name):
            return Answer(100)
        if not set(indexes) <= name.values.keys():
            return Answer(200)
        needed = set().union(*[self.to_remove(name.values[index]) for index in indexes])
        if not self.may(who, needed, name):
            return Answer(400)
        left = {index: value for index, value in name.values.items() if index not in indexes}
        if buried(name, left):
            return Answer(202)
        self.store(name, left)
        return Answer()

    def modify(self, who: str, prefix: str, suffix: str, values: Sequence[Value]) -> Answer:
        if prefix not in self.homed:
            return Answer(301)
        name = self.find(prefix, suffix)
        if name is None or not self.shows_itself(who, name):
            return Answer(100)
        needed: set[str] = set()
        for value in values:
            old = name.values.get(value.index)
            if old is None:
                return Answer(200)
            if not bit(old, 1):
                return Answer(401)
            if who == "nobody" and (not bit(old, 3) or is_admin(old) or is_admin(value)):
                return Answer(402)
            needed |= self.to_modify(old, value)
        if needed and not self.may(who, needed, name):
            return Answer(400)
        wanted = {value.index: value for value in values}
        if len(wanted) < len(values):
            return Answer(202)
        if buried(name, name.values | wanted):
            return Answer(202)
        return Answer(changes=self.store(name, name.values | wanted))

    def delete(self, who: str, prefix: str, suffix: str) -> Answer:
        if who == "nobody":
            return Answer(402)
        name = self.find(prefix, suffix)
        if name is None or not self.shows_itself(who, name):
            return Answer(100)
        if not self.may(who, {"DELETE_HANDLE"}, name):
            return Answer(400)
        name.state, name.values = "deleted", {}
        return Answer()

    # Resolution

    def resolve(
        self, who: str, prefix: str, suffix: str, types: Collection[str], indexes: Collection[int], mode: str
    ) -> int | list[Value]:
        """The values, or the code of the refusal. The mode is public, or private outside or inside a session."""
        if prefix not in self.homed:
            return 301
        name = self.find(prefix, suffix)
        if name is None or not self.shows_itself("nobody" if mode == "public" else who, name):
            return 100
        selected = [
            value
            for _, value in sorted(name.values.items())
            if not (types or indexes) or value.index in indexes or any(matches(query, value.type) for query in types)
        ]
        if not selected:
            return 200
        private = [value for value in selected if not bit(value, 2)]
        if mode == "public":
            found = [value for value in selected if bit(value, 2)]
        else:
            if mode == "session" or private:
                if private and not bit(private[0], 0):
                    return 401
                if who == "nobody":
                    return 402
                if not self.may(who, {"READ_VALUE"}, name):
                    return 400
            found = [value for value in selected if bit(value, 2) or bit(value, 0)]
        return found or 200


def matches(query: str, type_: str) -> bool:
    wanted, given = query.upper(), type_.upper()
    return given == wanted.rstrip(".") or (wanted.endswith(".") and given.startswith(wanted))


# What is asked

people = st.sampled_from(list(PEOPLE))
permissions = st.sampled_from([0x0E, 0x0E, 0x0E, 0x0F, 0x0C, 0x0A, 0x06, 0x04, 0x03]).map(Permission)
plain_values = st.builds(
    Value,
    index=st.sampled_from([1, 1, 2, 2, 3, 4, 100]),
    type=st.sampled_from(["URL", "url", "URL.us", "DESC"]),
    data=st.sampled_from([b"", b"x", b"y"]),
    permissions=permissions,
    timestamp=st.sampled_from([0, 5]),
)
admin_values = st.builds(
    Value,
    index=st.sampled_from([2, 100, 101]),
    type=st.sampled_from(["HS_ADMIN", "HS_ADMIN", "hs_admin.x"]),
    data=st.sampled_from(list(ADMINS)),
    permissions=st.sampled_from([0x0E, 0x0E, 0x0C, 0x0F]).map(Permission),
)
odd_values = plain_values.map(lambda value: replace(value, index=0))
some_values = st.lists(st.one_of(plain_values, plain_values, admin_values), max_size=4).map(
    lambda values: list({value.index: value for value in values}.values())
)
any_values = st.one_of(
    some_values, some_values, some_values, st.lists(st.one_of(plain_values, admin_values, odd_values), max_size=4)
)
suffixes = st.sampled_from(NAMES)
prefixes = st.sampled_from([0, 1])

_numbers = count(40_000)


class Registered(RuleBasedStateMachine):
    """Runs the same commands on the registry and the model."""

    def __init__(self, registry: Registry, machine: Machine) -> None:
        super().__init__()
        self.registry = registry
        self.machine = machine
        self.prefixes = [f"{next(_numbers)}.m", f"{next(_numbers)}.m"]
        self.model = Model(dict(zip(self.prefixes, (False, True), strict=True)))

    @initialize()
    def make_namespaces(self) -> None:
        maker = admin(100, "300:77/maker", AdminPermission.ADD_HANDLE)
        for prefix, profile in zip(self.prefixes, ("free", "exact"), strict=True):
            add_namespace(self.registry, prefix, profile, maker)

    def entries(self) -> int:
        with self.registry.ledger.open_reader() as reader:
            return reader.size

    def check(self, operation: Command[ChangeResult], who: str, expected: Answer) -> None:
        """Ask the registry, first for an explanation, and compare; also how many entries there are then."""
        before = self.entries()
        explained = self.registry.explain(operation, PEOPLE[who], "native")
        said: tuple[int, str] | None = None
        try:
            changed = self.registry.do(operation, PEOPLE[who], "native")
            answer = Answer(1, changed.overwritten, self.entries() == before + 1)
        except Refused as refused:
            answer, said = Answer(int(refused.code)), (refused.code, refused.reason)
        assert answer == expected
        assert self.entries() == before + (said is None and answer.changes)
        assert explained.allowed == (said is None)
        assert said in (None, (explained.code, explained.reason))

    def now(self) -> None:
        self.model.now = self.machine.wall // SECOND

    def handle(self, prefix: int, suffix: str, small: bool = False) -> Handle:
        spelled = self.prefixes[prefix] if small else self.prefixes[prefix].upper()
        return Handle(spelled, suffix)

    @rule(
        who=people,
        prefix=prefixes,
        suffix=suffixes,
        values=any_values,
        how=st.sampled_from(["new", "new", "overwrite", "overwrite", "again"]),
    )
    def create(self, who: str, prefix: int, suffix: str, values: list[Value], how: str) -> None:
        self.now()
        # Prefixes fold everywhere; the spelling that is registered is the model's.
        handle = self.handle(prefix, suffix, small=True)
        expected = self.model.create(who, self.prefixes[prefix], suffix, values, how)
        self.check(Create(handle, tuple(values), how == "overwrite", how == "again"), who, expected)

    @rule(prefix=prefixes, suffix=suffixes, values=some_values, who=st.sampled_from(["operator", "maker"]))
    def create_well(self, who: str, prefix: int, suffix: str, values: list[Value]) -> None:
        """So that there is something to change."""
        self.create(who, prefix, suffix, values, "new")

    @rule(who=people, prefix=prefixes, suffix=suffixes, values=any_values, overwrite=st.booleans())
    def add(self, who: str, prefix: int, suffix: str, values: list[Value], overwrite: bool) -> None:
        self.now()
        expected = self.model.add(who, self.prefixes[prefix], suffix, values, overwrite)
        self.check(Add(self.handle(prefix, suffix), tuple(values), overwrite), who, expected)

    @rule(
        who=people,
        prefix=prefixes,
        suffix=suffixes,
        indexes=st.lists(st.sampled_from([1, 1, 2, 2, 3, 4, 100, 101, 0]), min_size=1, max_size=3),
    )
    def remove(self, who: str, prefix: int, suffix: str, indexes: list[int]) -> None:
        self.now()
        expected = self.model.remove(who, self.prefixes[prefix], suffix, indexes)
        self.check(Remove(self.handle(prefix, suffix), tuple(indexes)), who, expected)

    @rule(who=people, prefix=prefixes, suffix=suffixes, values=any_values.filter(bool))
    def modify(self, who: str, prefix: int, suffix: str, values: list[Value]) -> None:
        self.now()
        expected = self.model.modify(who, self.prefixes[prefix], suffix, values)
        self.check(Modify(self.handle(prefix, suffix), tuple(values)), who, expected)

    @rule(who=people, prefix=prefixes, suffix=suffixes, data=st.data())
    def modify_what_is_there(self, who: str, prefix: int, suffix: str, data: st.DataObject) -> None:
        name = self.model.find(self.prefixes[prefix], suffix)
        assume(name is not None and name.values)
        assert name is not None
        old = data.draw(st.sampled_from(list(name.values.values())))
        new = data.draw(st.one_of(plain_values, admin_values))
        self.modify(who, prefix, suffix, [replace(new, index=old.index)])

    @rule(who=people, prefix=prefixes, suffix=suffixes)
    def delete(self, who: str, prefix: int, suffix: str) -> None:
        self.now()
        expected = self.model.delete(who, self.prefixes[prefix], suffix)
        self.check(Delete(self.handle(prefix, suffix)), who, expected)

    @rule(prefix=prefixes, suffix=suffixes, state=st.sampled_from(["reserved", "unpublished", "tombstone", "normal"]))
    def live(self, prefix: int, suffix: str, state: str) -> None:
        """What other operations do to a name that exists; and a name that does not is reserved."""
        name = self.model.find(self.prefixes[prefix], suffix)
        if name is None:
            assume(state == "reserved")
            name = Name(f"{self.prefixes[prefix]}/{suffix}", values={100: admin(100, GROUP)})
            self.model.names[self.model.key(self.prefixes[prefix], suffix)] = name
        assume(name.exists)
        name.state = state
        values = tuple(value for _, value in sorted(name.values.items()))
        entry = Draft(
            Action.UPDATE, State[state.upper()], name.spelling, "test", "local:test", values=values, exact=bool(prefix)
        )
        self.registry.ledger.append(Append(entry))

    @rule(prefix=prefixes, who=st.sampled_from(["operator", "nobody", "maker"]), unhome=st.booleans())
    def home(self, prefix: int, who: str, unhome: bool) -> None:
        name = self.prefixes[prefix]
        changes = (name in self.model.homed) is unhome
        code = {"operator": 1, "nobody": 402}.get(who, 400)
        self.check(Home(f"0.NA/{name}", unhome), who, Answer(code, changes=changes) if code == 1 else Answer(code))
        if code == 1:
            (self.model.homed.discard if unhome else self.model.homed.add)(name)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.machine.run(seconds * SECOND)

    @rule(
        who=people,
        prefix=prefixes,
        suffix=suffixes,
        types=st.lists(st.sampled_from(["URL", "url.", "URL.", "DESC", "HS_ADMIN", "none", "."]), max_size=2),
        indexes=st.lists(st.sampled_from([0, 1, 2, 100, 7]), max_size=2),
        mode=st.sampled_from(["public", "private", "session"]),
    )
    def resolve(self, who: str, prefix: int, suffix: str, types: list[str], indexes: list[int], mode: str) -> None:
        identity = PEOPLE[who]
        if mode == "session":
            assume(not isinstance(identity, LocalIdentity))  # they do not come over the network
            identity = Anonymous(session=True) if isinstance(identity, Anonymous) else within_session(identity)
        expected = self.model.resolve(who, self.prefixes[prefix], suffix, types, indexes, mode)
        self.compare(Query(self.handle(prefix, suffix), types, indexes, mode == "public"), identity, expected)

    def compare(self, query: Query, identity: Identity, expected: int | list[Value]) -> None:
        found: int | list[Value]
        try:
            resolved = self.registry.resolve(query, identity)
        except Refused as refused:
            found = int(refused.code)
        else:
            found = list(resolved.values)
            assert resolved.handle == query.handle
            prefix = query.handle.prefix.lower()
            name = self.model.find(prefix, query.handle.suffix)
            assert name is not None
            assert str(resolved.registered) == name.spelling
            assert resolved.state is State[name.state.upper()]
        assert found == expected

    @invariant()
    def the_public_sees_the_same(self) -> None:
        for prefix, suffix in product((0, 1), NAMES):
            expected = self.model.resolve("nobody", self.prefixes[prefix], suffix, (), (), "public")
            self.compare(Query(self.handle(prefix, suffix)), NOBODY, expected)


def within_session(identity: Identity) -> Identity:
    assert isinstance(identity, KeyIdentity)
    return replace(identity, session=True)


def run(where: str, folder: Path, examples: int) -> None:
    store = open_store(where)
    store.upgrade()
    machine = Machine()
    with registry_on(store, folder, machine) as registry:
        group = Value(200, "HS_VLIST", ValueList((ValueRef(300, "77/x"), MEMBER.reference)).to_bytes())
        add_namespace(registry, "77", "free")
        registry.do(Create(Handle.parse("77/group"), (group,)), OPERATOR, "cli")

        class Here(Registered):
            """Hypothesis makes its machines itself, and tells them nothing."""

            def __init__(self) -> None:
                super().__init__(registry, machine)

        bounds = settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        )
        run_state_machine_as_test(Here, settings=bounds)


def test_registry_matches_the_model(tmp_path: Path) -> None:
    run(str(tmp_path / "ledger.db"), tmp_path, EXAMPLES)


def test_registry_on_postgresql_matches_the_model(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    cluster: Cluster = request.getfixturevalue("postgres")
    run(cluster.database(), tmp_path, max(EXAMPLES // 5, 1))

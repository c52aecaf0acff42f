"""Every command by every kind of token: allowed exactly if its issuer and its scope allow it."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perseid.registry
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken, RevokeToken
from perseid.registry.commands.access import Grant, Revoke
from perseid.registry.commands.create_namespace import CopyPrefixHandle, CreateNamespace
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Generate, Mint, Reserve
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace, SetPolicy
from perseid.registry.commands.records import (
    Add,
    AddValues,
    Create,
    CreateRecord,
    Delete,
    Home,
    Modify,
    PartialValue,
    Remove,
    ReplaceRecord,
    SetValues,
)
from perseid.registry.commands.transfer import LinkMetadata, LinkVersion, Transfer
from perseid.registry.commands.users import AddUser, DisableUser, NewUserKey, ResetUser
from perseid.registry.context import Command, Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.jobs.migration import HostMigrated, Migrate, SourceRecord
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import history, listing, resolve
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.namespaces import ChangePolicy
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.schema.namespaces import Scope
from perseid.wire.codes import OpCode, ResponseCode
from tests.registry.access.token_identities import ANN, BEA, RULES, SERVER, furnish, key, make, scope, shown
from tests.registry.administration import ref
from tests.registry.registries import OPERATOR, admin, handle, registry_in_memory

W = Scope
URL = Value.text(1, "URL", "https://example.org/")
OPEN = replace(Value.text(5, "DESC", "anybody"), permissions=Permission(0x0F))
PRIVATE = replace(Value.text(6, "DESC", "nobody"), permissions=Permission(0x0C))
X, Y = handle("12345/x"), handle("12345/y")
PREFIX = handle("0.NA/12345")
FREE = PROFILES["free"]
OWN = admin(100, "300:0.NA/12345")
PUBLIC_KEY = Value(7, "HS_PUBKEY", b"whatever")


@dataclass(frozen=True)
class Look:
    """A query, as interfaces run it."""

    read: Callable[[Context], object]

    def decide(self, context: Context) -> Plan[None]:
        self.read(context)
        return Plan(lambda _: None)


@dataclass(frozen=True)
class Case:
    """A command, with the scopes it needs, and the namespace."""

    make: Callable[[Registry], Command[object]]
    scopes: frozenset[Scope]
    where: str = "12345"


def case(
    operation: Command[object] | Callable[[Registry], Command[object]], *scopes: Scope, where: str = "12345"
) -> Case:
    made = operation if callable(operation) else lambda _: operation
    return Case(made, frozenset(scopes), where)


def looking(read: Callable[[Context], object], *scopes: Scope, where: str = "12345") -> Case:
    return case(Look(read), *scopes, where=where)


def demanding(require: permissions.Requirement, *scopes: Scope, where: str = "12345") -> Case:
    return looking(lambda context: context.require(require), *scopes, where=where)


def seen(context: Context, name: str) -> None:
    """Read the history as an administrator of a record."""
    found = history.get_history(context.snapshot, context.identity, Handle.parse(name))
    if all(value.is_public for value in found.versions[0].values):
        raise Refused(ResponseCode.INVALID_ADMIN, "not as an administrator")


CASES = {
    "mint": case(Mint("12345", values=(URL,)), W.MINT),
    "generate": case(Generate("12345"), W.MINT),
    "reserve": case(Reserve((handle("12345/new"),)), W.MINT),
    "create": case(Create(handle("12345/new"), (URL,)), W.CREATE),
    "create with keys": case(Create(handle("12345/new"), (URL, key(300), admin(100, "1:1/a"))), W.CREATE),
    "create again": case(Create(handle("12345/gone"), (URL,), reuse_deleted=True), W.CREATE),
    "register": case(Create(handle("12345/reserved"), (URL,)), W.CREATE),
    "register for somebody": case(Create(handle("12345/reserved"), (URL, admin(100, "1:1/a"))), W.CREATE),
    "replace": case(Create(X, (replace(URL, data=b"https://x/"), admin(100, "300:0.NA/12345")), True), W.UPDATE),
    "replace nothing": case(
        Create(Y, (replace(URL, data=b"https://y/"), admin(100, "300:0.NA/12345")), True), W.UPDATE
    ),
    "replace the administrators": case(Create(Y, (replace(URL, data=b"https://y/"),), True), W.TRANSFER),
    "replace all": case(Create(Y, (URL, admin(100, "1:1/a")), True), W.UPDATE, W.TRANSFER),
    "add": case(Add(X, (Value.text(9, "DESC", ""),)), W.UPDATE),
    "add to a name that is not public": case(Add(handle("12345/hidden"), (Value.text(9, "DESC", ""),)), W.UPDATE),
    "add an administrator to a name that is not public": case(
        Add(handle("12345/hidden"), (admin(9, "1:1/a"),)), W.TRANSFER
    ),
    "add an administrator": case(Add(X, (admin(9, "1:1/a"),)), W.TRANSFER),
    "add a key": case(Add(X, (key(9),)), W.TRANSFER),
    "add a public key and text": case(Add(X, (PUBLIC_KEY, Value.text(9, "DESC", ""))), W.TRANSFER, W.UPDATE),
    "add over": case(Add(X, (replace(OPEN, data=b"!"),), overwrite=True), W.UPDATE),
    "add what is there": case(Add(X, (OPEN,), overwrite=True), W.UPDATE),
    "remove": case(Remove(X, (1,)), W.UPDATE),
    "remove an administrator": case(Remove(X, (100,)), W.TRANSFER),
    "modify": case(Modify(X, (replace(URL, data=b"https://new/"),)), W.UPDATE),
    "modify what anybody may": case(Modify(X, (replace(OPEN, data=b"!"),)), W.UPDATE),
    "turn text into an administrator": case(Modify(X, (admin(1, "1:1/a"),)), W.UPDATE, W.TRANSFER),
    "turn text into a key": case(Modify(X, (key(5),)), W.UPDATE, W.TRANSFER),
    "create as given": case(CreateRecord(handle("12345/new"), (PartialValue("URL", b"https://x/"),)), W.CREATE),
    "add as given": case(AddValues(X, (PartialValue("DESC", b""),)), W.UPDATE),
    "add a key as given": case(AddValues(X, (PartialValue("HS_SECKEY", b""),)), W.TRANSFER),
    "set as given": case(SetValues(X, (PartialValue("URL", b"https://x/"),)), W.UPDATE),
    "set anew as given": case(SetValues(X, (PartialValue("HS_SECKEY", b""),)), W.TRANSFER),
    "replace a whole": case(ReplaceRecord(Y, (URL, admin(100, "300:0.NA/12345"))), W.UPDATE),
    "replace all but the administrators": case(ReplaceRecord(Y, (URL,)), W.UPDATE),
    "replace all but the administrators as given": case(
        CreateRecord(Y, (PartialValue("URL", b"https://x/"),), overwrite=True), W.UPDATE
    ),
    "delete": case(Delete(X), W.DELETE),
    "delete what is not public": case(Delete(handle("12345/hidden")), W.DELETE),
    "publish": case(Publish(handle("12345/hidden")), W.PUBLISH),
    "unpublish": case(Unpublish(X), W.PUBLISH),
    "tombstone": case(Tombstone(X, "gone"), W.TOMBSTONE),
    "revive": case(Revive(handle("12345/tomb")), W.TOMBSTONE),
    "transfer": case(Transfer(X, ref("301:0.NA/12345")), W.TRANSFER),
    "grant in a record": case(Grant(ref("300:0.NA/12345"), ("reader",), "12345/x"), W.TRANSFER),
    "grant on a prefix": case(Grant(ref("300:0.NA/12345"), ("minter",), "12345"), W.NAMESPACES, W.TRANSFER),
    "revoke in a record": case(Revoke(ref("1:1/a"), (), "12345/x"), W.TRANSFER),
    "revoke on a prefix": case(Revoke(ref("1:1/a"), (), "12345"), W.NAMESPACES, W.TRANSFER),
    "add a user": case(AddUser("12345", "eve", NewUserKey(secret="x")), W.CREATE, W.TRANSFER),
    "disable a user": case(DisableUser(X), W.TRANSFER),
    "reset a user": case(ResetUser(PREFIX, NewUserKey(secret="x")), W.NAMESPACES, W.TRANSFER),
    "link versions": case(LinkVersion(X, Y), W.UPDATE),
    "link metadata": case(LinkMetadata(X, Y), W.UPDATE),
    "redact": case(lambda registry: Redact(handle("12345/changed"), 1, first_of(registry), "law"), W.ADMIN, where=""),
    "home": case(Home("0.NA/777"), W.NAMESPACES, where="777"),
    "unhome": case(Home("0.NA/12345", unhome=True), W.NAMESPACES),
    "home all that is derived": case(Home("0.NA/0.NA/12345"), W.NAMESPACES, where=""),
    "make a namespace": case(AddNamespace("777", FREE), W.NAMESPACES, where="777"),
    "derive a namespace": case(AddNamespace("12345.7", FREE), W.NAMESPACES, where="12345.7"),
    "make a namespace whole": case(CreateNamespace(AddNamespace("777", FREE)), W.NAMESPACES, where="777"),
    "make a namespace with a creator": case(
        CreateNamespace(AddNamespace("12345.7", PROFILES["pilin"], (OWN,))),
        *(W.NAMESPACES, W.MINT),
        where="12345.7",
    ),
    "remove a namespace": case(RemoveNamespace("20.500"), W.NAMESPACES, where="20.500"),
    "set a policy": case(SetPolicy("12345", replace(FREE, purpose="another")), W.NAMESPACES),
    "change a policy": case(ChangePolicy("12345", 'purpose = "another"'), W.NAMESPACES),
    "change a case rule": case(SetPolicy("12345", PROFILES["exact"], change_case=True), W.NAMESPACES),
    "keep a prefix handle": case(CopyPrefixHandle("12345", ()), W.NAMESPACES),
    "add to a prefix handle": case(Add(PREFIX, (Value.text(9, "DESC", ""),)), W.NAMESPACES),
    "add an administrator of a prefix": case(Add(PREFIX, (admin(9, "1:1/a"),)), W.NAMESPACES, W.TRANSFER),
    "create a prefix handle": case(Create(handle("0.NA/12345.7"), (URL,)), W.NAMESPACES, where="12345.7"),
    "delete a prefix handle": case(Delete(PREFIX), W.NAMESPACES),
    "transfer a prefix handle": case(Transfer(PREFIX, ref("301:0.NA/12345")), W.NAMESPACES, W.TRANSFER),
    "read what is private": looking(
        lambda context: resolve.resolve(Query(X, indexes=(6,), public_only=False), context), W.READ
    ),
    "read a private value of a prefix handle": looking(
        lambda context: resolve.resolve(Query(PREFIX, indexes=(300,), public_only=False), context), W.READ
    ),
    "read what is not public": looking(
        lambda context: resolve.resolve(Query(handle("12345/hidden"), public_only=False), context), W.READ
    ),
    "read the past": looking(lambda context: seen(context, "12345/x"), W.READ),
    "list": looking(lambda context: listing.list_handles(context.snapshot, context.identity, "12345"), W.FIND),
    "find": looking(
        lambda context: find(context.snapshot, context.identity, Search(type="URL", prefix="12345")), W.FIND
    ),
    "see the whole ledger": demanding(history.SEE_ALL, W.ADMIN, where=""),
    "status": demanding(permissions.status(), W.ADMIN, where=""),
    "list homed prefixes": looking(
        lambda context: listing.list_homed(context.snapshot, context.identity), W.FIND, where=""
    ),
    "migrate": case(Migrate((SourceRecord("12345/old", (URL,)),)), W.CREATE, W.ADMIN, where=""),
    "host a migrated prefix": case(HostMigrated("0.NA/777", FREE), W.NAMESPACES, where="777"),
    "backup": demanding(permissions.server_operation(OpCode.BACKUP_SERVER), W.ADMIN, where=""),
    "follow": demanding(permissions.server_operation(OpCode.RETRIEVE_TXN_LOG), W.ADMIN, where=""),
    "make a token": case(CreateToken(Secret("aaaaaaaa", bytes(32)), scope("read"))),
    "revoke a token": case(RevokeToken("bbbbbbbb")),
    "something new": demanding(permissions.Requirement("do something new", ((),))),
}

MAKERS: dict[str, Identity] = {"operator": OPERATOR, "ann": ANN, "bea": BEA, "server": SERVER}
OTHER = "20.500"


def first_of(registry: Registry) -> int:
    with registry.snapshot() as snapshot:
        return min(entry.seq for entry in snapshot.reader.history(b"12345/CHANGED"))


def fill(registry: Registry) -> None:
    """Handles in every state, all owned by Ann."""
    registry.do(Create(X, (URL, OPEN, PRIVATE, OWN)), OPERATOR, "cli")
    registry.do(Create(Y, (replace(URL, data=b"https://y/"), OWN)), OPERATOR, "cli")
    registry.do(Create(handle("12345/hidden"), (URL, OWN), published=False), OPERATOR, "cli")
    registry.do(Reserve((handle("12345/reserved"),), ref("300:0.NA/12345")), OPERATOR, "cli")
    for name in ("gone", "tomb", "changed"):
        registry.do(Create(handle(f"12345/{name}"), (URL, OWN)), OPERATOR, "cli", "a note")
    registry.do(Delete(handle("12345/gone")), OPERATOR, "cli")
    registry.do(Tombstone(handle("12345/tomb"), "gone"), OPERATOR, "cli")
    registry.do(Modify(handle("12345/changed"), (replace(URL, data=b"https://n/"),)), OPERATOR, "cli", "a note")
    registry.do(CreateToken(Secret("bbbbbbbb", bytes(32)), scope("read")), OPERATOR, "cli")


@pytest.fixture(scope="module")
def world() -> Iterator[Registry]:
    """The tests here change nothing, except for new tokens."""
    with registry_in_memory(rules=RULES) as made:
        furnish(made)
        fill(made)
        yield made


def allowed(registry: Registry, name: str, identity: Identity) -> bool:
    return registry.explain(CASES[name].make(registry), identity, "http").allowed


def expected(name: str, by_maker: bool, limits: ScopeSet) -> bool:
    scopes, where = CASES[name].scopes, CASES[name].where
    return by_maker and bool(scopes) and scopes <= limits.scopes and limits.includes_namespace(where)


@pytest.fixture(scope="module")
def by_makers(world: Registry) -> dict[tuple[str, str], bool]:
    """What each issuer can do."""
    return {(name, identity): allowed(world, name, MAKERS[identity]) for name in CASES for identity in MAKERS}


def limits_of(identity: str) -> list[ScopeSet]:
    """Each scope alone, all, all but one, and all in another namespace."""
    scopes = [word for word in Scope if word is not Scope.ADMIN]
    found = [scope(word) for word in scopes] + [scope(*scopes)]
    found += [scope(*[other for other in scopes if other is not word]) for word in scopes]
    found += [scope(*scopes, where=[OTHER]), scope(*scopes, where=["12345.*"])]
    if identity in ("operator", "server"):
        found += [scope(where=None), *[scope(word, where=None) for word in Scope]]
    return [each for each in found if identity != "bea" or each.namespaces == ("12345",)]


@pytest.mark.parametrize("identity", MAKERS)
def test_token_is_allowed_what_issuer_and_scope_allow(
    world: Registry, by_makers: dict[tuple[str, str], bool], identity: str
) -> None:
    for limits in limits_of(identity):
        token = shown(world, MAKERS[identity], limits)
        for name in CASES:
            found = allowed(world, name, token)
            assert found is expected(name, by_makers[name, identity], limits), (name, identity, limits)


@given(
    st.sampled_from(list(MAKERS)),
    st.frozensets(st.sampled_from(Scope), min_size=1),
    st.one_of(st.none(), st.frozensets(st.sampled_from(["12345", "20.500", "12345.*", "777.*"]), min_size=1)),
    st.sampled_from(list(CASES)),
)
def test_token_table_for_random_scopes(
    world: Registry,
    by_makers: dict[tuple[str, str], bool],
    identity: str,
    scopes: frozenset[Scope],
    where: frozenset[str] | None,
    name: str,
) -> None:
    limits = (
        ScopeSet.of(scopes - {Scope.ADMIN} or {Scope.READ}, where) if where is not None else ScopeSet.of(scopes, None)
    )
    try:
        token = shown(world, MAKERS[identity], limits)
    except Refused:
        assert identity in ("ann", "bea"), "who runs the server makes any token"
        return
    assert allowed(world, name, token) is expected(name, by_makers[name, identity], limits)


def test_table_covers_both_outcomes(by_makers: dict[tuple[str, str], bool]) -> None:
    for identity in ("operator", "ann", "server"):
        assert sum(by_makers[name, identity] for name in CASES) > 30, identity
    assert not all(by_makers[name, "ann"] for name in CASES)
    assert by_makers["set a policy", "bea"]
    assert not by_makers["add", "bea"]
    for name, each in CASES.items():
        if each.scopes and name != "keep a prefix handle":  # which is served here, and so refused to everybody
            assert by_makers[name, "operator"], name


def test_every_command_is_in_the_table(world: Registry) -> None:
    """A new command must declare its scopes here."""
    found = set()
    for module in pkgutil.walk_packages(perseid.registry.__path__, "perseid.registry."):
        for name, thing in vars(import_module(module.name)).items():
            if inspect.isclass(thing) and thing.__module__.startswith("perseid.registry") and hasattr(thing, "decide"):
                found.add(thing.__name__ if not name.startswith("_") else "")
    # What decides commands, a protocol, a wrapper, and steps of jobs (test_tokens.py).
    inside = {"Context", "Execution", "Command", "Conditional", "Step", "ImportStep", "MintRows", ""}
    assert found - inside == {type(each.make(world)).__name__ for each in CASES.values()} - {"Look"}


def test_every_scope_is_in_the_table() -> None:
    assert {word for each in CASES.values() for word in each.scopes} == set(Scope)


# What everybody may read


def test_token_can_read_public_data(world: Registry) -> None:
    token = shown(world, ANN, scope("mint", where=["20.500"]))
    assert world.resolve(Query(X), token).values
    assert world.resolve(Query(X, indexes=(1,), public_only=False), token).values
    with pytest.raises(Refused):
        world.resolve(Query(X, indexes=(6,), public_only=False), token)


def test_public_list_is_open_to_tokens() -> None:
    with registry_in_memory(rules=RULES) as registry:
        furnish(registry)
        token = shown(registry, ANN, scope("mint"))
        for opened, is_open in (
            (Audience.ADMINISTRATORS, False),
            (Audience.AUTHENTICATED, False),
            (Audience.PUBLIC, True),
        ):
            registry.do(SetPolicy("12345", replace(FREE, who_may_list=opened)), OPERATOR, "cli")
            for name in ("list", "find"):
                assert allowed(registry, name, token) is is_open


def test_token_identity_needs_no_secret(world: Registry) -> None:
    """The table uses identities; test_tokens.py tests how secrets authenticate."""
    assert shown(world, ANN).scope == scope("read")
    assert make(world, ANN).id != make(world, ANN).id

"""Roles and permissions: what they write, who can grant them, and attempts to get more rights than one has."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access.roles import ROLES, permission_names
from perseid.registry.commands.access import AccessChange, Grant, Revoke
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Add, Create, Modify
from perseid.registry.context import Command
from perseid.registry.identity import Identity
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Audience, Policy
from perseid.registry.queries.access import MAX_COUNTED, access_of, count_without, list_access, list_users
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, PrefixNotHosted, Refused, StateConflict
from perseid.schema.access import MAX_RIGHTS, AccessRole, KeyState
from perseid.wire.codes import ResponseCode
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

PREFIX_HANDLE = "0.NA/12345"
ROOT = key_holder(300, PREFIX_HANDLE)
ANN, BOB = key_holder(300, "12345/ann"), key_holder(300, "12345/bob")
URL = Value.text(1, "URL", "https://example.org/")
NEW_URL = Value.text(1, "URL", "https://example.org/new")
PRIVATE = Permission.ADMIN_READ | Permission.ADMIN_WRITE
OWNERS = admin(100, f"200:{PREFIX_HANDLE}")


def secret(index: int = 300) -> Value:
    return Value(index, "HS_SECKEY", b"secret", permissions=PRIVATE)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        furnish(made)
        yield made


def furnish(made: Registry, policy: Policy | None = None) -> None:
    values = administrator_values("12345", (ROOT.reference,), "root's secret")
    add_namespace(made, "12345", policy or with_group_administrators(PROFILES["free"]), *values)
    for name in ("ann", "bob"):
        made.do(Create(handle(f"12345/{name}"), (secret(), OWNERS)), OPERATOR, "cli")
    made.do(Create(handle("12345/x"), (URL, replace(URL, index=2, permissions=PRIVATE), OWNERS)), OPERATOR, "cli")


def grant(made: Registry, who: str, *rights: str, on: str = "12345", by: Identity = ROOT) -> AccessChange:
    return made.do(Grant(ValueRef.parse(who), rights, on), by, "cli")


def revoke(made: Registry, who: str, *rights: str, on: str = "12345", by: Identity = ROOT) -> AccessChange:
    return made.do(Revoke(ValueRef.parse(who), rights, on), by, "cli")


def can(made: Registry, command: Command[object], identity: Identity) -> bool:
    return made.explain(command, identity, "cli").allowed


def refused(made: Registry, command: Command[object], identity: Identity) -> Refused:
    before = stored(made, PREFIX_HANDLE)
    with pytest.raises(Refused) as caught:
        made.do(command, identity, "cli")
    assert stored(made, PREFIX_HANDLE) == before
    return caught.value


def stored(made: Registry, name: str) -> dict[int, Value]:
    with made.snapshot() as snapshot:
        return {value.index: value for value in snapshot.stored(Handle.parse(name)).values}


def policy(made: Registry) -> Policy:
    with made.snapshot() as snapshot:
        return snapshot.policy("12345")


def can_read(made: Registry, name: str, identity: Identity) -> bool:
    try:
        made.resolve(Query(Handle.parse(name), (), (), public_only=False), identity)
    except Refused:
        return False
    return True


MINT, EDIT = Mint("12345", values=(URL,)), Modify(handle("12345/x"), (NEW_URL,))
EDIT_ADMINS = Add(handle("12345/x"), (admin(150, "300:12345/bob"),))
CHANGE_PREFIX = Add(handle(PREFIX_HANDLE), (Value.text(1, "DESC", "mine"),))


@pytest.mark.parametrize(
    ("role", "mints", "edits", "reads", "owns"),
    [("owner", 1, 1, 1, 1), ("editor", 1, 1, 1, 0), ("minter", 1, 0, 0, 0), ("reader", 0, 0, 1, 0)],
)
def test_role_on_a_prefix_has_its_permissions_and_no_others(
    registry: Registry, role: str, mints: int, edits: int, reads: int, owns: int
) -> None:
    change = grant(registry, "12345/ann", role)
    assert change.handles == (PREFIX_HANDLE,)
    assert change.identity == ValueRef(300, "12345/ann")
    registry.do(Create(handle("12345/new"), (URL, replace(URL, index=2, permissions=PRIVATE))), OPERATOR, "cli")
    assert can(registry, MINT, ANN) is bool(mints)
    assert can(registry, Modify(handle("12345/new"), (NEW_URL,)), ANN) is bool(edits)
    assert can(registry, Add(handle("12345/new"), (admin(150, "300:12345/bob"),)), ANN) is bool(owns)
    assert can_read(registry, "12345/new", ANN) is bool(reads)
    assert can(registry, CHANGE_PREFIX, ANN) is bool(owns)
    # The keys of others, and the groups
    assert can_read(registry, "12345/bob", ANN) is bool(owns)
    assert can_read(registry, PREFIX_HANDLE, ANN) is bool(owns)
    assert can(registry, Modify(handle("12345/bob"), (replace(secret(), data=b"mine"),)), ANN) is bool(owns)
    group = Value(200, "HS_VLIST", ValueList((ANN.reference,)).to_bytes())
    assert can(registry, Modify(handle(PREFIX_HANDLE), (group,)), ANN) is bool(owns)


def test_roles_are_ordinary_values_and_one_commit(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        size = snapshot.reader.size
    change = grant(registry, "12345/ann", "editor", "minter")
    assert change.policy
    assert change.seq == size + 1
    with registry.snapshot() as snapshot:
        assert snapshot.reader.size == size + 2
    values = stored(registry, PREFIX_HANDLE)
    assert ValueList.from_bytes(values[201].data).entries == (ANN.reference,)
    assert ValueList.from_bytes(values[202].data).entries == (ANN.reference,)
    editor = Admin.from_bytes(values[101].data)
    assert (editor.administrator, editor.permissions) == (
        ValueRef(201, PREFIX_HANDLE),
        ROLES[AccessRole.EDITOR].on_prefix,
    )
    assert policy(registry).default_administrators == (
        "200:0.NA/{prefix}",
        "201:0.NA/{prefix}:modify_value,remove_value,add_value,read_value",
    )
    again = grant(registry, "300:12345/ANN", "editor", "minter")
    assert (again.is_changed, again.seq) == (False, 0), "in any spelling"
    grant(registry, "12345/bob", "editor")
    assert ValueList.from_bytes(stored(registry, PREFIX_HANDLE)[201].data).entries == (ANN.reference, BOB.reference)


def test_existing_records_without_the_group_are_counted(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    grant(registry, "12345/ann", "editor", "minter", "reader")
    assert not can(registry, EDIT, ANN), "12345/x does not name the group"
    with registry.snapshot() as snapshot:
        editors, readers = count_without(snapshot, "12345", tuple(AccessRole))
        assert (editors.role, str(editors.group), editors.count, editors.is_complete) == (
            AccessRole.EDITOR, "201:0.NA/12345", 1, True,
        )  # fmt: skip
        assert readers.count == 1, "the users have keys"
        monkeypatch.setattr("perseid.registry.queries.access.MAX_COUNTED", 2)
        assert [each.is_complete for each in count_without(snapshot, "12345", (AccessRole.OWNER,))] == [False]
    assert MAX_COUNTED > 2


def test_rights_in_a_record_are_merged_and_revoked(registry: Registry) -> None:
    first = grant(registry, "12345/ann", "reader", on="12345/x")
    assert first.on == "12345/x"
    assert can_read(registry, "12345/x", ANN)
    grant(registry, "12345/ann", "add_value", "modify_value", on="12345/x")
    (value,) = [each for each in stored(registry, "12345/x").values() if each.index == 101]
    assert permission_names(Admin.from_bytes(value.data).permissions) == ("modify_value", "add_value", "read_value")
    assert not grant(registry, "12345/ann", "add_value", on="12345/x").is_changed
    assert can(registry, EDIT, ANN)
    assert revoke(registry, "12345/ann", "modify_value", on="12345/x").is_changed
    assert not can(registry, EDIT, ANN)
    assert revoke(registry, "12345/ann", on="12345/x").is_changed
    assert 101 not in stored(registry, "12345/x")
    assert not revoke(registry, "12345/ann", on="12345/x").is_changed


def test_revoking_on_a_prefix_ends_roles_and_permissions(registry: Registry) -> None:
    grant(registry, "12345/ann", "minter", "reader", "add_na")
    grant(registry, "12345/bob", "minter")
    assert revoke(registry, "12345/ann", "minter").is_changed
    assert not can(registry, MINT, ANN)
    assert can(registry, MINT, BOB)
    with registry.snapshot() as snapshot:
        context = registry.context(snapshot, ROOT, "cli")
        assert [(each.role, each.permissions) for each in access_of(context, "12345", ANN.reference)] == [
            (AccessRole.READER, AdminPermission.LIST_HANDLES),
            (None, AdminPermission.ADD_NA),
        ]
    assert revoke(registry, "0:12345/ann").is_changed
    with registry.snapshot() as snapshot:
        assert access_of(registry.context(snapshot, ROOT, "cli"), "12345", ANN.reference) == ()
    assert not revoke(registry, "12345/ann").is_changed


def test_revoking_finds_every_spelling_of_one_record() -> None:
    """Its holder can authenticate with each, although they are different administrators."""
    for profile, left in (("free", []), ("exact", ["300:12345/ANN"])):
        with registry_in_memory() as made:
            furnish(made, with_group_administrators(PROFILES[profile]))
            made.do(Add(handle("12345/x"), (admin(101, "300:12345/ANN"), admin(102, "300:12345/ann"))), OPERATOR, "cli")
            with made.snapshot() as snapshot:
                shown = access_of(made.context(snapshot, ROOT, "cli"), "12345/x", ANN.reference)
            assert len(shown) == 2 - len(left)
            revoke(made, "12345/ann", on="12345/x")
            admins = [Admin.from_bytes(each.data) for each in stored(made, "12345/x").values() if each.index > 100]
            assert [str(each.administrator) for each in admins] == left


def test_last_administrator_stays(registry: Registry) -> None:
    assert refused(registry, Revoke(ROOT.reference, (), "12345"), ROOT).code is ResponseCode.INVALID_VALUE
    assert refused(registry, Revoke(ValueRef(200, PREFIX_HANDLE), (), "12345/x"), ROOT).advice is not None
    grant(registry, "12345/ann", "owner")
    assert revoke(registry, "300:0.NA/12345", by=ANN).is_changed
    assert not can(registry, CHANGE_PREFIX, ROOT)


# Attempts


def test_nobody_grants_more_than_they_have(registry: Registry) -> None:
    registry.do(Add(handle("12345/x"), (admin(140, "300:12345/bob", AdminPermission.ADD_ADMIN),)), OPERATOR, "cli")
    assert refused(registry, Grant(BOB.reference, ("owner",), "12345/x"), BOB).code is ResponseCode.INVALID_ADMIN
    assert refused(registry, Grant(ANN.reference, ("read_value",), "12345/x"), BOB).code is ResponseCode.INVALID_ADMIN
    grant(registry, "12345/ann", "add_admin", on="12345/x", by=BOB)
    # Permissions of two values are not combined.
    registry.do(Add(handle("12345/x"), (admin(141, "300:12345/bob", AdminPermission.READ_VALUE),)), OPERATOR, "cli")
    assert refused(registry, Grant(ANN.reference, ("reader",), "12345/x"), BOB).code is ResponseCode.INVALID_ADMIN


def test_roles_below_owner_grant_and_revoke_nothing(registry: Registry) -> None:
    grant(registry, "12345/ann", "editor", "minter", "reader")
    for wanted in ("owner", "editor", "minter", "reader", "add_handle"):
        for who in (ANN, BOB):
            assert refused(registry, Grant(who.reference, (wanted,), "12345"), ANN).code is ResponseCode.INVALID_ADMIN
    assert refused(registry, Revoke(ROOT.reference, (), "12345"), ANN).code is ResponseCode.INVALID_ADMIN
    assert refused(registry, Grant(ANN.reference, ("owner",), "12345/x"), ANN).code is ResponseCode.INVALID_ADMIN
    code = refused(registry, Grant(ANN.reference, ("owner",), "12345"), NOBODY).code
    assert code is ResponseCode.AUTHENTICATION_NEEDED


def test_administrator_with_some_permissions_grants_only_those(registry: Registry) -> None:
    some = AdminPermission.MODIFY_ADMIN | AdminPermission.ADD_ADMIN | AdminPermission.ADD_VALUE
    values = (admin(150, "300:12345/bob", some | AdminPermission.ADD_HANDLE | AdminPermission.LIST_HANDLES),)
    registry.do(Add(handle(PREFIX_HANDLE), values), OPERATOR, "cli")
    assert grant(registry, "12345/ann", "minter", by=BOB).is_changed
    for role in ("owner", "editor", "reader"):
        assert refused(registry, Grant(BOB.reference, (role,), "12345"), BOB).code is ResponseCode.INVALID_ADMIN
    # With MODIFY_VALUE missing, the group of the minters exists and cannot be changed.
    assert refused(registry, Grant(BOB.reference, ("minter",), "12345"), BOB).code is ResponseCode.INVALID_ADMIN


def test_new_records_with_keys_do_not_name_editors(registry: Registry) -> None:
    grant(registry, "12345/ann", "editor")
    registry.do(Create(handle("12345/eve"), (secret(),)), OPERATOR, "cli")
    assert not can_read(registry, "12345/eve", ANN)
    assert not can(registry, Modify(handle("12345/eve"), (replace(secret(), data=b"mine"),)), ANN)
    registry.do(Create(handle("12345/y"), (URL,)), OPERATOR, "cli")
    assert can(registry, Modify(handle("12345/y"), (NEW_URL,)), ANN)


def test_group_with_other_permissions_gets_no_members(registry: Registry) -> None:
    group = Value(201, "HS_VLIST", ValueList((BOB.reference,)).to_bytes())
    registry.do(Add(handle(PREFIX_HANDLE), (group,)), OPERATOR, "cli")
    refusal = refused(registry, Grant(ANN.reference, ("editor",), "12345"), ROOT)
    assert isinstance(refusal, StateConflict)
    registry.do(Add(handle(PREFIX_HANDLE), (Value.text(203, "DESC", "x"),)), OPERATOR, "cli")
    assert isinstance(refused(registry, Grant(ANN.reference, ("reader",), "12345"), ROOT), StateConflict)


def test_owners_of_deployed_tools_have_fewer_permissions_and_stay_owners(registry: Registry) -> None:
    fewer = ALL_PERMISSIONS & ~(AdminPermission.ADD_NA | AdminPermission.DELETE_NA)
    registry.do(Modify(handle(PREFIX_HANDLE), (admin(100, f"200:{PREFIX_HANDLE}", fewer),)), OPERATOR, "cli")
    assert grant(registry, "12345/ann", "owner").is_changed
    assert Admin.from_bytes(stored(registry, PREFIX_HANDLE)[100].data).permissions == fewer
    with registry.snapshot() as snapshot:
        roles = [each.role for each in list_access(registry.context(snapshot, ROOT, "cli"), "12345").grantees]
    assert roles == [AccessRole.OWNER, AccessRole.OWNER]


INVALID = (
    (Grant(ANN.reference, ("boss",), "12345"), InvalidRequest),
    (Grant(ANN.reference, (), "12345"), InvalidRequest),
    (Grant(ANN.reference, ("minter",) * (MAX_RIGHTS + 1), "12345"), InvalidRequest),
    (Revoke(ANN.reference, ("minter",) * (MAX_RIGHTS + 1), "12345"), InvalidRequest),
    (Grant(ANN.reference, ("minter",), "12345/x"), InvalidRequest),
    (Grant(ANN.reference, ("add_value",), "12345"), InvalidRequest),
    (Grant(ANN.reference, ("minter",), "99"), PrefixNotHosted),
    (Grant(ANN.reference, ("reader",), "12345/none"), Refused),
    (Grant(ValueRef(300, "12345/none"), ("minter",), "12345"), Refused),
    (Grant(ValueRef(1, "12345/x"), ("minter",), "12345"), Refused),
    (Grant(ValueRef(0, "12345/x"), ("minter",), "12345"), Refused),
    (Grant(ValueRef(0, "77/elsewhere"), ("minter",), "12345"), Refused),
    (Grant(ValueRef(300, "x"), ("minter",), "12345"), InvalidRequest),
)


def test_as_many_rights_as_allowed_are_granted(registry: Registry) -> None:
    assert grant(registry, "12345/ann", *["minter"] * MAX_RIGHTS).is_changed


def test_invalid_grants_are_refused_with_advice(registry: Registry) -> None:
    for command, kind in INVALID:
        refusal = refused(registry, command, ROOT)
        assert type(refusal) is kind, command
        assert refusal.advice is not None or refusal.code is ResponseCode.HANDLE_NOT_FOUND


def test_key_must_be_named_if_there_are_several(registry: Registry) -> None:
    registry.do(Add(handle("12345/ann"), (secret(301),)), OPERATOR, "cli")
    assert "301:12345/ann" in str(refused(registry, Grant(ValueRef(0, "12345/ann"), ("minter",), "12345"), ROOT))
    assert grant(registry, "301:12345/ann", "minter").is_changed
    assert grant(registry, "300:77/elsewhere", "minter").is_changed, "another service hosts it"


def test_policy_of_users_who_own_what_they_mint_stays() -> None:
    with registry_in_memory() as made:
        furnish(made, replace(PROFILES["free"], who_may_mint=Audience.AUTHENTICATED))
        assert not grant(made, "12345/ann", "editor").policy
    with registry_in_memory() as made:
        furnish(made, PROFILES["free"])
        grant(made, "12345/ann", "reader")
        assert policy(made).default_administrators == ("200:0.NA/{prefix}", "203:0.NA/{prefix}:read_value")


# Access


def test_access_shows_values_groups_and_states(registry: Registry) -> None:
    team = Value(210, "HS_VLIST", ValueList((BOB.reference, ValueRef(300, "77/elsewhere"))).to_bytes())
    registry.do(Add(handle("12345/x"), (team,)), OPERATOR, "cli")
    grant(registry, "210:12345/x", "reader", on="12345/x")
    registry.do(Modify(handle("12345/bob"), (Value.text(300, "DESC", "no key"),)), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        found = list_access(registry.context(snapshot, NOBODY, "cli"), "12345/X")
    assert found.on == "12345/x"
    assert [(str(each.identity), each.role, each.value, each.state) for each in found.grantees] == [
        ("300:0.NA/12345", AccessRole.OWNER, 100, KeyState.ACTIVE),
        ("300:12345/bob", AccessRole.READER, 101, KeyState.DISABLED),
        ("300:77/elsewhere", AccessRole.READER, 101, KeyState.UNKNOWN),
    ]
    assert [list(map(str, each.groups)) for each in found.grantees] == [
        ["200:0.NA/12345"],
        ["210:12345/x"],
        ["210:12345/x"],
    ]


def test_access_hides_private_values_and_records(registry: Registry) -> None:
    hidden = replace(admin(102, "300:12345/bob", AdminPermission.READ_VALUE), permissions=PRIVATE)
    registry.do(Add(handle("12345/x"), (hidden,)), OPERATOR, "cli")
    registry.do(Create(handle("12345/secret"), (URL,), published=False), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        public = registry.context(snapshot, NOBODY, "cli")
        assert [each.value for each in list_access(public, "12345/x").grantees] == [100]
        assert list_access(public, "12345").without == ()
        assert [each.value for each in list_access(registry.context(snapshot, ROOT, "cli"), "12345/x").grantees] == [
            100,
            102,
        ]
        for name in ("12345/secret", "12345/none"):
            with pytest.raises(Refused) as caught:
                list_access(public, name)
            assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND
        assert list_access(registry.context(snapshot, ROOT, "cli"), "12345/secret").grantees


def test_revoking_without_an_index_leaves_groups(registry: Registry) -> None:
    team = Value(210, "HS_VLIST", ValueList((BOB.reference,)).to_bytes())
    registry.do(Add(handle("12345/ann"), (team,)), OPERATOR, "cli")
    grant(registry, "300:12345/ann", "minter")
    grant(registry, "210:12345/ann", "minter")
    assert revoke(registry, "12345/ann").is_changed
    assert not can(registry, MINT, ANN)
    assert can(registry, MINT, BOB)
    assert not revoke(registry, PREFIX_HANDLE, on="12345/x").is_changed
    # A group in place of the key is the user.
    own = admin(101, "300:12345/ann", ROLES[AccessRole.EDITOR].in_record)
    registry.do(Add(handle("12345/ann"), (own,)), OPERATOR, "cli")
    grant(registry, "300:12345/ann", "reader")
    registry.do(Modify(handle("12345/ann"), (replace(team, index=300),)), ANN, "cli")
    assert revoke(registry, "12345/ann", "reader").is_changed


def test_group_with_two_values_has_the_permissions_of_both(registry: Registry) -> None:
    grant(registry, "12345/ann", "reader")
    more = admin(150, f"203:{PREFIX_HANDLE}", ALL_PERMISSIONS)
    registry.do(Add(handle(PREFIX_HANDLE), (more,)), OPERATOR, "cli")
    for command in (Grant(BOB.reference, ("reader",), "12345"), Revoke(ANN.reference, ("reader",), "12345")):
        assert isinstance(refused(registry, command, ROOT), StateConflict)


def test_access_shows_no_role_that_the_identity_does_not_have(registry: Registry) -> None:
    minter = ROLES[AccessRole.MINTER].on_prefix
    group = Value(201, "HS_VLIST", ValueList((BOB.reference,)).to_bytes())
    few = admin(150, f"201:{PREFIX_HANDLE}", AdminPermission.ADD_NA)
    direct = [admin(151, "300:12345/ann", minter), admin(152, "300:12345/ann", AdminPermission.LIST_HANDLES)]
    registry.do(Add(handle(PREFIX_HANDLE), (group, few, *direct)), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        found = list_access(registry.context(snapshot, ROOT, "cli"), "12345").grantees
    assert {each.value: each.role for each in found if each.value != 100} == {
        150: None,
        151: AccessRole.MINTER,
        152: None,
    }


def test_record_that_names_a_group_with_fewer_permissions_is_counted(registry: Registry) -> None:
    grant(registry, "12345/ann", "editor")
    few = admin(150, f"201:{PREFIX_HANDLE}", AdminPermission.ADD_VALUE)
    registry.do(Add(handle("12345/x"), (few,)), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        assert [each.count for each in count_without(snapshot, "12345", (AccessRole.EDITOR,))] == [1]


def test_listing_users_counts_no_records(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.queries.access.records_of", None)
    grant(registry, "12345/ann", "editor")
    with registry.snapshot() as snapshot:
        users, _ = list_users(registry.context(snapshot, ROOT, "cli"), "12345")
    assert "12345/ann" in [each.handle for each in users]

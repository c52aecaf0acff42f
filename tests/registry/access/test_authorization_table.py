"""Every command × every permission bit × every kind of identity.

The requirements are written here a second time, by hand from the protocol's description, as alternatives of (record,
permissions); and so is whether the records name a kind of identity. A command is allowed exactly if the identity is
named and one alternative is granted in full.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission
from perseid.records.record import Value
from perseid.registry.access import permissions as requirements
from perseid.registry.access.authorization import Settings, authorize
from perseid.registry.access.permissions import Requirement, Role
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, Proof
from perseid.wire.codes import OpCode, ResponseCode
from tests.registry.administration import PREFIX_HANDLE, SECRET, TARGET, Records, admin, group, holder, ref, secret, url

P: Final = AdminPermission
NAME: Final = str(TARGET)
ROOT: Final = "0.NA/0.NA"
DERIVED: Final = Handle.parse("0.na/12345.7")
PLACES: Final = (NAME, PREFIX_HANDLE, ROOT, str(DERIVED))
"""Every record whose administrators are checked."""

Alternatives = list[list[tuple[str, AdminPermission]]]

OLD, ADMIN, OPEN = url(1), admin("5:a/b", index=2), url(3, permissions="rwrw")
NEW_OLD, NEW_ADMIN, NEW_OPEN = url(1, "https://b/"), admin("6:a/b", index=2), url(3, "https://c/", "rwrw")
URL_FOR_ADMIN, ADMIN_FOR_URL, ADMIN_FOR_OPEN = url(2), admin("6:a/b", index=1), admin("6:a/b", index=3)
RECORD = (OLD, ADMIN, OPEN)
ANEW = [(NAME, P.DELETE_HANDLE), (PREFIX_HANDLE, P.ADD_HANDLE)]


def on_target(*permissions: AdminPermission) -> Alternatives:
    return [[(NAME, permission) for permission in permissions]]


def replaced(*permissions: AdminPermission) -> Alternatives:
    """The three alternatives to replace a record, with the given first one; without it if None."""
    first = on_target(*permissions) if permissions else []
    return [*first, [(NAME, P.ADD_ADMIN)], ANEW]


def replace(*values: Value) -> Requirement:
    return requirements.overwrite(TARGET, RECORD, values)


OPERATIONS: dict[str, tuple[Requirement, Alternatives]] = {
    "create": (requirements.create(TARGET), [[(PREFIX_HANDLE, P.ADD_HANDLE)]]),
    "create a prefix in another case": (requirements.create(Handle.parse("0.na/p")), [[(ROOT, P.ADD_HANDLE)]]),
    "create a derived prefix": (requirements.create(DERIVED), [[(PREFIX_HANDLE, P.ADD_NA)]]),
    "create a prefix": (requirements.create(Handle.parse("0.NA/12345")), [[(ROOT, P.ADD_HANDLE)]]),
    "delete": (requirements.delete(TARGET), on_target(P.DELETE_HANDLE)),
    "delete a prefix": (requirements.delete(DERIVED), [[(str(DERIVED), P.DELETE_HANDLE)]]),
    "add a value": (requirements.add(TARGET, [url(9)]), on_target(P.ADD_VALUE)),
    "add an administrator": (requirements.add(TARGET, [admin("1:a/b")]), on_target(P.ADD_ADMIN)),
    "add both": (requirements.add(TARGET, [url(9), admin("1:a/b")]), on_target(P.ADD_VALUE, P.ADD_ADMIN)),
    "add over": (requirements.add(TARGET, [NEW_OLD, url(9)], RECORD), on_target(P.MODIFY_VALUE, P.ADD_VALUE)),
    "add over an open value": (requirements.add(TARGET, [NEW_OPEN, url(9)], RECORD), on_target(P.ADD_VALUE)),
    "add over an administrator": (requirements.add(TARGET, [NEW_ADMIN], RECORD), on_target(P.MODIFY_ADMIN)),
    "add what is there": (requirements.add(TARGET, [OLD, ADMIN], RECORD), on_target()),
    "remove a value": (requirements.remove(TARGET, [OLD]), on_target(P.REMOVE_VALUE)),
    "remove an open value": (requirements.remove(TARGET, [OPEN]), on_target(P.REMOVE_VALUE)),
    "remove an administrator": (requirements.remove(TARGET, [ADMIN]), on_target(P.REMOVE_ADMIN)),
    "remove both": (requirements.remove(TARGET, [OLD, ADMIN, OLD]), on_target(P.REMOVE_VALUE, P.REMOVE_ADMIN)),
    "modify a value": (requirements.modify(TARGET, [(OLD, NEW_OLD)]), on_target(P.MODIFY_VALUE)),
    "modify without change": (requirements.modify(TARGET, [(OLD, OLD)]), on_target(P.MODIFY_VALUE)),
    "modify an administrator": (requirements.modify(TARGET, [(ADMIN, NEW_ADMIN)]), on_target(P.MODIFY_ADMIN)),
    "administrator to value": (
        requirements.modify(TARGET, [(ADMIN, URL_FOR_ADMIN)]), on_target(P.REMOVE_ADMIN, P.MODIFY_VALUE),
    ),
    "value to administrator": (
        requirements.modify(TARGET, [(OLD, ADMIN_FOR_URL)]), on_target(P.MODIFY_VALUE, P.ADD_ADMIN),
    ),
    "open value to administrator": (
        requirements.modify(TARGET, [(OPEN, ADMIN_FOR_OPEN)]), on_target(P.MODIFY_VALUE, P.ADD_ADMIN),
    ),
    "modify an open and another": (
        requirements.modify(TARGET, [(OPEN, NEW_OPEN), (ADMIN, NEW_ADMIN)]), on_target(P.MODIFY_ADMIN),
    ),
    "read": (requirements.read(TARGET), on_target(P.READ_VALUE)),
    "list": (requirements.list_handles("12345"), [[(PREFIX_HANDLE, P.LIST_HANDLES)]]),
    "replace: nothing": (replace(*RECORD), on_target()),
    "replace: timestamps": (replace(*[value.with_timestamp(77) for value in RECORD]), on_target()),
    "replace: open value": (replace(OLD, ADMIN, NEW_OPEN), on_target()),
    "replace: modify": (replace(NEW_OLD, ADMIN, OPEN), replaced(P.MODIFY_VALUE)),
    "replace: add": (replace(*RECORD, url(9)), replaced(P.ADD_VALUE)),
    "replace: remove": (replace(ADMIN, OPEN), replaced(P.REMOVE_VALUE)),
    "replace: remove an administrator": (replace(OLD, OPEN), replaced(P.REMOVE_ADMIN)),
    "replace: modify an administrator": (replace(OLD, NEW_ADMIN, OPEN), replaced(P.MODIFY_ADMIN)),
    "replace: several": (
        replace(NEW_OLD, NEW_ADMIN, url(9)), replaced(P.MODIFY_VALUE, P.MODIFY_ADMIN, P.REMOVE_VALUE, P.ADD_VALUE),
    ),
    "replace: add an administrator": (replace(*RECORD, admin("1:a/b")), replaced()),
    "replace: value to administrator": (replace(ADMIN_FOR_URL, ADMIN, OPEN), replaced()),
    "replace a derived prefix": (
        requirements.overwrite(DERIVED, [OLD], []),
        [
            [(str(DERIVED), P.REMOVE_VALUE)],
            [(str(DERIVED), P.ADD_ADMIN)],
            [(str(DERIVED), P.DELETE_HANDLE), (PREFIX_HANDLE, P.ADD_NA)],
        ],
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of identity: the caller, whom the HS_ADMIN values name, and whether these match."""

    identity: Identity
    named: str
    meant: bool
    groups: dict[str, list[Value]] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    always: bool = False
    """Whether the permission does not depend on HS_ADMIN."""


ALICE = holder("300:abc/Alice")
SYSTEM = holder("300:0.NA/abc")
ALONE = {"abc/Alice": [secret()]}
ONE_GROUP = {"abc/staff": [group("300:abc/bob", "300:abc/Alice")]}
NESTED = {"abc/all": [group("200:abc/none", "200:abc/staff")], **ONE_GROUP}
SERVERS = (ref("300:abc/bob"), ref("300:abc/Alice"))
STAFF = (ref("200:abc/all"),)

KINDS: dict[str, Kind] = {
    "anonymous": Kind(Anonymous(), "0:abc/Alice", False),
    "anonymous in a session": Kind(Anonymous(session=True), "0:abc/Alice", False),
    "direct": Kind(ALICE, "300:abc/Alice", True),
    "direct, secret key": Kind(KeyIdentity(ALICE.reference, Proof.SECRET_KEY), "300:abc/Alice", True),
    "reference with index 0": Kind(ALICE, "0:abc/Alice", True),
    "wrong index": Kind(ALICE, "301:abc/Alice", False, ALONE),
    "wrong handle": Kind(ALICE, "300:abc/bob", False, ALONE),
    "prefix in another case": Kind(ALICE, "300:ABC/Alice", True),
    "suffix in another case": Kind(ALICE, "300:abc/alice", False),
    "system name in another case": Kind(SYSTEM, "300:0.na/ABC", True),
    "identity 0, reference 0": Kind(holder("0:abc/Alice"), "0:abc/Alice", True),
    "identity 0, reference 300": Kind(holder("0:abc/Alice"), "300:abc/Alice", False),
    "identity 0, verified, no session": Kind(holder("0:abc/Alice", verified=300), "300:abc/Alice", False),
    "identity 0, verified in a session": Kind(holder("0:abc/Alice", session=True, verified=300), "300:abc/Alice", True),
    "identity 0, other key in a session": Kind(
        holder("0:abc/Alice", session=True, verified=301), "300:abc/Alice", False
    ),
    "identity 0, nothing verified": Kind(holder("0:abc/Alice", session=True), "300:abc/Alice", False),
    "group member": Kind(ALICE, "200:abc/staff", True, ONE_GROUP),
    "group member by index 0": Kind(ALICE, "200:abc/staff", True, {"abc/staff": [group("0:ABC/Alice")]}),
    "group at another index": Kind(ALICE, "201:abc/staff", False, ONE_GROUP),
    "group named with index 0": Kind(ALICE, "0:abc/staff", False, ONE_GROUP),
    "group of a subtype": Kind(
        ALICE, "200:abc/staff", True, {"abc/staff": [group("300:abc/Alice", type_="hs_vlist.x")]}
    ),
    "group of another type": Kind(
        ALICE, "200:abc/staff", False, {"abc/staff": [group("300:abc/Alice", type_="HS_VLISTS")]}
    ),
    "group with another index of mine": Kind(ALICE, "200:abc/staff", False, {"abc/staff": [group("301:abc/Alice")]}),
    "group that is not here": Kind(ALICE, "200:abc/staff", False),
    "nested group member": Kind(ALICE, "200:abc/all", True, NESTED),
    "nested group, not a member": Kind(holder("300:abc/eve"), "200:abc/all", False, NESTED),
    "server administrator": Kind(ALICE, "300:abc/bob", False, settings=Settings(server_admins=SERVERS)),
    "server administrator, full access": Kind(
        ALICE, "300:abc/bob", False, settings=Settings(SERVERS, server_admin_full_access=True), always=True
    ),
    "group of server administrators": Kind(ALICE, "300:abc/bob", False, NESTED, Settings(STAFF)),
    "group of server administrators, full access": Kind(
        ALICE, "300:abc/bob", False, NESTED, Settings(STAFF, server_admin_full_access=True), always=True
    ),
    "full access for others": Kind(
        holder("300:abc/eve"), "300:abc/bob", False, NESTED, Settings(STAFF, server_admin_full_access=True)
    ),
    "other roles": Kind(
        ALICE,
        "300:abc/bob",
        False,
        settings=Settings((), SERVERS, SERVERS, SERVERS, SERVERS, server_admin_full_access=True),
    ),
    "local operator": Kind(LocalIdentity("alice"), "300:abc/bob", False, always=True),
}


def grants(needed: AdminPermission) -> Iterator[AdminPermission]:
    """No permission, each alone, all, all but one, exactly what is needed, and unused bits."""
    yield from (P(0), ALL_PERMISSIONS, needed, ALL_PERMISSIONS & ~needed, P(0xF000))
    for bit in AdminPermission:
        yield from (bit, ALL_PERMISSIONS & ~bit, needed & ~bit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_permission_and_identity(operation: str, kind: str) -> None:
    requirement, alternatives = OPERATIONS[operation]
    who = KINDS[kind]
    needed = P(0)
    for alternative in alternatives:
        for _, permission in alternative:
            needed |= permission
    places = {place for alternative in alternatives for place, _ in alternative}
    for given in dict.fromkeys(grants(needed)):
        for places_given in ([*PLACES], *[[place] for place in sorted(places)]):
            lookup = Records({**{place: [admin(who.named, given)] for place in places_given}, **who.groups})
            decision = authorize(who.identity, requirement, lookup, who.settings)

            met = any(all(p in given and place in places_given for place, p in way) for way in alternatives)
            known = not isinstance(who.identity, Anonymous)
            free = [] in alternatives
            expected = known and (who.always or free or (who.meant and met))
            where = (given, places_given, decision)
            assert decision.allowed is expected, where
            denial = ResponseCode.INVALID_ADMIN if known else ResponseCode.AUTHENTICATION_NEEDED
            assert decision.code is (None if expected else denial), where
            assert list(decision.read) == lookup.asked, where
            assert SECRET not in f"{decision.reason} {decision.advice}", where
            assert decision.reason, where


ROLES: dict[str, tuple[Requirement, set[Role]]] = {
    "home": (requirements.server_operation(OpCode.HOME_NA), {Role.SERVER, Role.HOME_ONLY}),
    "unhome": (requirements.server_operation(OpCode.UNHOME_NA), {Role.SERVER, Role.HOME_ONLY}),
    "list homed": (requirements.server_operation(OpCode.LIST_HOMED_NAS), {Role.SERVER, Role.HOME_ONLY}),
    "transactions": (requirements.server_operation(OpCode.RETRIEVE_TXN_LOG), {Role.SERVER, Role.REPLICATION}),
    "dump": (requirements.server_operation(OpCode.DUMP_HANDLES), {Role.SERVER, Role.REPLICATION}),
    "backup": (requirements.server_operation(OpCode.BACKUP_SERVER), {Role.SERVER, Role.BACKUP}),
    "status": (requirements.status(), {Role.SERVER, Role.STATUS}),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].settings == Settings()])
@pytest.mark.parametrize("operation", ROLES)
def test_every_server_operation_and_identity(operation: str, kind: str) -> None:
    requirement, roles = ROLES[operation]
    who = KINDS[kind]
    known = not isinstance(who.identity, Anonymous)
    # Permissions on records say nothing about the server.
    records = {**{place: [admin(who.named)] for place in PLACES}, **who.groups}
    for role in (*Role, None):
        for full_access in (False, True):
            listed = {} if role is None else {f"{role.name.lower()}_admins": (ref("9:a/b"), ref(who.named))}
            settings = Settings(**listed, server_admin_full_access=full_access)  # type: ignore[arg-type]
            decision = authorize(who.identity, requirement, Records(records), settings)
            assert decision.allowed is (known and (who.always or (who.meant and role in roles))), (role, decision)


UNKNOWN: list[Requirement] = [
    Requirement("do what nobody has heard of"),
    *[requirements.server_operation(OpCode(code)) for code in (0, 1, 2, 100, 105, 200, 400, 1000, 4711)],
    requirements.add(TARGET, []),
    requirements.remove(TARGET, []),
    requirements.modify(TARGET, []),
]


@pytest.mark.parametrize("requirement", UNKNOWN, ids=lambda requirement: requirement.action)
def test_unknown_operation_is_denied(requirement: Requirement) -> None:
    for who in KINDS.values():
        lookup = Records({**{place: [admin(who.named)] for place in PLACES}, **who.groups})
        decision = authorize(who.identity, requirement, lookup, who.settings)
        assert not decision.allowed
        assert decision.code in (ResponseCode.INVALID_ADMIN, ResponseCode.AUTHENTICATION_NEEDED)


@pytest.mark.parametrize("kind", KINDS)
def test_publicly_writable_values_need_no_authentication(kind: str) -> None:
    who = KINDS[kind]
    decision = authorize(who.identity, requirements.modify(TARGET, [(OPEN, NEW_OPEN)]), Records({}), Settings())
    assert decision.allowed

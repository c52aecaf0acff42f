"""Authorization beyond the table: reasons, settings, permissions of single values, malformed data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access import permissions as requirements
from perseid.registry.access.authorization import Decision, Settings, authorize, authorize_read, authorize_write
from perseid.registry.access.permissions import Differences, HasPermissions, Requirement, Role
from perseid.registry.advice import AdviceKind
from perseid.registry.identity import Anonymous, Identity, LocalIdentity
from perseid.wire.codes import OpCode, ResponseCode
from tests.record_strategies import values
from tests.registry.administration import PREFIX_HANDLE, SECRET, TARGET, Records, admin, group, holder, ref, secret, url

P = AdminPermission
ALICE = holder("300:0.NA/12345")
LOCAL = LocalIdentity("alice")
ADD = requirements.add(TARGET, [url(9)])


def decide(
    requirement: Requirement, *admins: Value, identity: Identity = ALICE, settings: Settings | None = None
) -> Decision:
    return authorize(
        identity, requirement, Records({str(TARGET): admins, PREFIX_HANDLE: admins}), settings or Settings()
    )


# Reasons


def test_decision_names_the_value_that_granted_it() -> None:
    decision = decide(ADD, admin("300:a/b"), admin("300:0.NA/12345", index=101))
    reason = "300:0.NA/12345 can add values to 12345/x: HS_ADMIN value 101 of 12345/x grants ADD_VALUE"
    assert decision == Decision(True, None, reason, read=("12345/x",))


def test_refusal_names_what_is_missing_and_the_fix() -> None:
    decision = decide(ADD, admin("300:0.NA/12345", ALL_PERMISSIONS & ~P.ADD_VALUE), admin("300:a/b", index=101))
    assert decision.code is ResponseCode.INVALID_ADMIN
    assert decision.reason == (
        "300:0.NA/12345 cannot add values to 12345/x: requires permission ADD_VALUE on 12345/x; "
        "HS_ADMIN value 100 of 12345/x does not grant ADD_VALUE; "
        "HS_ADMIN value 101 of 12345/x refers to a record that is not stored here"
    )
    assert decision.advice == AdviceKind.ASK_WHO_HAS_ACCESS(on="12345/x")
    assert "a/b" not in decision.reason


def test_private_administrator_value_is_not_revealed() -> None:
    private = Value(100, "HS_ADMIN", admin("300:0.NA/12345", P.READ_VALUE).data, permissions=Permission.ADMIN_READ)
    assert "does not grant" not in decide(ADD, private).reason
    assert decide(requirements.read(TARGET), private).allowed


def test_permissions_of_two_values_are_not_combined() -> None:
    both = requirements.add(TARGET, [url(9), admin("1:a/b")])
    halves = admin("300:0.NA/12345", P.ADD_VALUE), admin("300:0.NA/12345", P.ADD_ADMIN, 101)
    decision = decide(both, *halves)
    assert not decision.allowed
    assert "ADD_VALUE + ADD_ADMIN in one HS_ADMIN value" in decision.reason
    assert "HS_ADMIN value 100 of 12345/x does not grant ADD_ADMIN" in decision.reason
    assert decide(both, admin("300:0.NA/12345", P.ADD_VALUE | P.ADD_ADMIN)).allowed


def test_two_records_can_grant_delete_and_create() -> None:
    records = Records(
        {str(TARGET): [admin("300:0.NA/12345", P.DELETE_HANDLE)], PREFIX_HANDLE: [admin("0:0.NA/12345", P.ADD_HANDLE)]}
    )
    decision = authorize(ALICE, requirements.overwrite(TARGET, [url(1)], []), records, Settings())
    assert decision.allowed
    assert "of 12345/x grants DELETE_HANDLE; " in decision.reason
    assert "of 0.NA/12345 grants ADD_HANDLE" in decision.reason


def test_refusal_names_all_alternatives() -> None:
    reason = decide(requirements.overwrite(TARGET, [url(1)], [url(2)])).reason
    assert "requires permissions REMOVE_VALUE + ADD_VALUE in one" in reason
    assert ", or permission ADD_ADMIN on" in reason
    assert ", or permission DELETE_HANDLE on 12345/x and permission ADD_HANDLE on 0." in reason


def test_anonymous_must_authenticate_before_anything_is_read() -> None:
    lookup = Records({})
    for session in (False, True):
        decision = authorize(Anonymous(session), ADD, lookup, Settings())
        assert decision.code is ResponseCode.AUTHENTICATION_NEEDED
        assert decision.advice == AdviceKind.AUTHENTICATE()
    assert lookup.asked == []


@pytest.mark.parametrize("identity", ["0:0.NA/12345", "0:0.na/12345"])
def test_index_zero_is_refused_if_an_index_is_listed(identity: str) -> None:
    decision = decide(ADD, admin("300:0.NA/12345"), identity=holder(identity))
    assert decision.code is ResponseCode.INVALID_ADMIN
    assert decision.advice == AdviceKind.AUTHENTICATE_WITH_INDEX()
    in_group = Records({str(TARGET): [admin("200:g/1")], "g/1": [group("300:0.NA/12345")]})
    grouped = authorize(holder(identity), ADD, in_group, Settings())
    assert grouped.advice == AdviceKind.AUTHENTICATE_WITH_INDEX()
    assert decide(ADD, admin("0:0.NA/12345"), identity=holder(identity)).allowed
    without = decide(ADD, admin("300:0.NA/12345", P.READ_VALUE), identity=holder(identity))
    assert without.advice == AdviceKind.ASK_WHO_HAS_ACCESS(on="12345/x"), "the index would not help"


def test_long_or_unprintable_names_are_quoted() -> None:
    handle = Handle("12345", "a\x1b[31m" + "b" * 500)
    for requirement in (
        requirements.create(handle),
        requirements.delete(handle),
        requirements.overwrite(handle, [], [url(1)]),
    ):
        decision = authorize(holder("300:k/\n" + "c" * 500), requirement, Records({}), Settings())
        assert decision.reason.isprintable()
        assert "b" * 100 not in decision.reason
        assert "c" * 100 not in decision.reason


# Administrators


@pytest.mark.parametrize("type_", ["HS_ADMIN", "hs_admin", "HS_ADMIN.x", "Hs_Admin.X.y"])
def test_subtypes_of_hs_admin_name_administrators(type_: str) -> None:
    value = admin("300:0.NA/12345", type_=type_)
    assert decide(ADD, value).allowed
    assert requirements.permission_to_add(value) == P.ADD_ADMIN
    assert requirements.permission_to_remove(value) == P.REMOVE_ADMIN


@pytest.mark.parametrize("type_", ["HS_ADMINS", "HS_ADMIN_", "HS_VLIST", "URL", ""])
def test_other_types_do_not_name_administrators(type_: str) -> None:
    decision = decide(ADD, admin("300:0.NA/12345", type_=type_))
    assert not decision.allowed
    assert "12345/x has no administrators" in decision.reason


def test_record_without_administrators_allows_nobody() -> None:
    assert "12345/x has no administrators" in decide(ADD).reason
    decision = authorize(ALICE, ADD, Records({}), Settings())
    assert "12345/x is not stored here" in decision.reason
    assert not decision.allowed


WHOLE = admin("300:0.NA/12345").data


@pytest.mark.parametrize("data", [b"", WHOLE[:-1], WHOLE + b"\0", WHOLE + b"\0\1", WHOLE + b"\0\0\0", WHOLE[1:]])
def test_invalid_administrator_value_is_ignored(data: bytes) -> None:
    decision = decide(ADD, Value(100, "HS_ADMIN", data))
    assert not decision.allowed
    assert "HS_ADMIN value 100 of 12345/x is invalid and ignored" in decision.reason
    assert decide(ADD, Value(100, "HS_ADMIN", data), admin("300:0.NA/12345", index=101)).allowed


def test_long_form_of_old_software_is_accepted() -> None:
    assert decide(ADD, Value(100, "HS_ADMIN", WHOLE + b"\0\0")).allowed


def test_administrators_in_the_new_record_cannot_create_it() -> None:
    records = Records({str(TARGET): [admin("300:0.NA/12345")]})
    assert not authorize(ALICE, requirements.create(TARGET), records, Settings()).allowed


@pytest.mark.parametrize(
    ("handle", "record", "permission"),
    [
        ("12345/x", "0.NA/12345", P.ADD_HANDLE),
        ("abc.é/x.y", "0.NA/ABC.é", P.ADD_HANDLE),
        ("0.NA/12345", "0.NA/0.NA", P.ADD_HANDLE),
        ("0.na/a", "0.NA/0.NA", P.ADD_HANDLE),
        ("0.NA/a.b", "0.NA/A", P.ADD_NA),
        ("0.na/a.b.c", "0.NA/A.B", P.ADD_NA),
        ("0.NA/0.NA", "0.NA/0", P.ADD_NA),
        ("0.NAx/a.b", "0.NA/0.NAX", P.ADD_HANDLE),
    ],
)
def test_create_requires_permission_on_the_prefix_handle(handle: str, record: str, permission: AdminPermission) -> None:
    assert requirements.create(Handle.parse(handle)).alternatives == (
        (HasPermissions(permission, record, on_prefix=True),),
    )


@pytest.mark.parametrize("permissions", [0, 0x1000, 0x1001, 0xFFFF])
def test_invalid_permissions_are_rejected(permissions: int) -> None:
    with pytest.raises(ValueError, match="not a set of admin permissions"):
        HasPermissions(AdminPermission(permissions), "a/b")


# Settings

ON_PREFIX = [
    requirements.create(TARGET),
    requirements.create(Handle.parse("0.NA/12345.1")),
    requirements.list_handles("12345"),
    requirements.overwrite(TARGET, [url(1)], []),
]


@pytest.mark.parametrize("full_access", [False, True])
@pytest.mark.parametrize("requirement", ON_PREFIX, ids=lambda requirement: requirement.action)
def test_without_prefix_administrators_server_administrators_create_and_list(
    requirement: Requirement, full_access: bool
) -> None:
    root = holder("300:k/root")
    admins = Records(
        {PREFIX_HANDLE: [admin("300:0.NA/12345")], str(TARGET): [admin("0:k/root", P.DELETE_HANDLE)], "k/root": []}
    )
    settings = Settings((root.reference,), allow_na_admins=False, server_admin_full_access=full_access)
    assert not authorize(ALICE, requirement, admins, settings).allowed
    assert authorize(root, requirement, admins, settings).allowed
    assert PREFIX_HANDLE not in admins.asked
    assert not authorize(Anonymous(), requirement, admins, settings).allowed


def test_without_prefix_administrators_refusal_names_the_setting() -> None:
    settings = Settings(allow_na_admins=False)
    assert (
        "requires an entry in the setting administrators.server"
        in decide(requirements.create(TARGET), settings=settings).reason
    )


def test_prefix_handle_keeps_its_own_administrators() -> None:
    """Only permissions over the handles of a prefix are switched off, not those over the prefix handle."""
    requirement = requirements.add(Handle.parse(PREFIX_HANDLE), [url(1)])
    assert decide(requirement, admin("300:0.NA/12345"), settings=Settings(allow_na_admins=False)).allowed


def test_refusal_names_the_settings() -> None:
    reason = decide(requirements.server_operation(OpCode.HOME_NA)).reason
    assert (
        reason == "300:0.NA/12345 cannot host a prefix: requires an entry in the setting administrators.server or "
        "administrators.home_only"
    )


@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_a_setting(role: Role) -> None:
    holders = (ref("300:a/b"),)
    assert Settings(**{f"{role.name.lower()}_admins": holders}).holders(role) == holders  # type: ignore[arg-type]
    assert Settings().holders(role) == ()


def test_local_identity_is_a_server_administrator() -> None:
    decision = authorize(LOCAL, ADD, Records({}), Settings())
    assert decision == Decision(
        True, None, "local:alice can add values to 12345/x: server administrator by file permission"
    )


# Differences

VALUES = st.lists(values(), max_size=6, unique_by=lambda value: value.index).map(tuple)


@given(VALUES, VALUES)
def test_differences_transform_the_old_record_into_the_new_one(old: tuple[Value, ...], new: tuple[Value, ...]) -> None:
    found = Differences.between(old, new)
    after = {value.index: value for value in (*found.kept, *found.added, *[value for _, value in found.modified])}
    assert {index: value.with_timestamp(0) for index, value in after.items()} == {
        value.index: value.with_timestamp(0) for value in new
    }
    assert {value.index for value in found.removed} == {value.index for value in old} - {value.index for value in new}
    assert set(found.kept) <= set(old), "what is kept keeps its timestamp"
    assert all(former.with_timestamp(0) != later.with_timestamp(0) for former, later in found.modified)


@given(VALUES, st.integers(0, 1 << 31))
def test_timestamps_are_not_compared(old: tuple[Value, ...], timestamp: int) -> None:
    found = Differences.between(old, [value.with_timestamp(timestamp) for value in old])
    assert found == Differences((), (), (), old)
    assert not found.permissions


@given(VALUES, VALUES)
def test_differences_require_permission_unless_publicly_writable(
    old: tuple[Value, ...], new: tuple[Value, ...]
) -> None:
    found = Differences.between(old, new)
    closed = [pair for pair in found.modified if not _is_open(*pair)]
    assert bool(found.permissions) == bool(found.added or found.removed or closed)


def _is_open(old: Value, new: Value) -> bool:
    admins = [value.type.upper().split(".")[0] == "HS_ADMIN" for value in (old, new)]
    return Permission.PUBLIC_WRITE in old.permissions and not any(admins)


@pytest.mark.parametrize(
    "change",
    [
        {"data": b"x"},
        {"type": "url"},
        {"ttl": 1},
        {"permissions": Permission.ADMIN_READ},
        {"references": (ValueRef(1, "a/b"),)},
    ],
    ids=str,
)
def test_every_part_except_the_timestamp_is_compared(change: dict[str, object]) -> None:
    old = url(1)
    new = Value(**{**{name: getattr(old, name) for name in Value.__slots__}, **change})
    assert Differences.between([old], [new]).modified == ((old, new),)


# Single values


@pytest.mark.parametrize("identity", [Anonymous(), ALICE, LOCAL])
def test_everybody_can_read_public_values(identity: Identity) -> None:
    lookup = Records({})
    assert authorize_read(identity, TARGET, [url(1), url(2)], lookup, Settings()).allowed
    assert lookup.asked == []


def test_private_values_require_an_administrator() -> None:
    records = Records({str(TARGET): [admin("300:0.NA/12345", P.READ_VALUE)]})
    selected = [url(1), secret()]
    assert authorize_read(ALICE, TARGET, selected, records, Settings()).allowed
    assert authorize_read(LOCAL, TARGET, selected, records, Settings()).allowed
    asked = authorize_read(Anonymous(), TARGET, selected, records, Settings())
    assert asked.code is ResponseCode.AUTHENTICATION_NEEDED
    refused = authorize_read(holder("300:k/eve"), TARGET, selected, records, Settings())
    assert refused.code is ResponseCode.INVALID_ADMIN
    assert SECRET not in repr([asked, refused])


@pytest.mark.parametrize(
    "identity", [Anonymous(), ALICE, LOCAL, Anonymous(session=True), holder("300:0.NA/12345", session=True)]
)
def test_unreadable_value_is_refused_before_authentication(identity: Identity) -> None:
    decision = authorize_read(identity, TARGET, [url(1), url(2, permissions="-w--"), secret()], Records({}), Settings())
    assert decision.code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert "Value 2 of" in decision.reason


def test_the_first_private_value_decides() -> None:
    decision = authorize_read(Anonymous(), TARGET, [secret(), url(400, permissions="----")], Records({}), Settings())
    assert decision.code is ResponseCode.AUTHENTICATION_NEEDED


def test_session_requires_permission_even_for_public_values() -> None:
    records = Records({str(TARGET): [admin("300:0.NA/12345", P.READ_VALUE)]})
    inside = holder("300:0.NA/12345", session=True)
    assert authorize_read(inside, TARGET, [url(1)], records, Settings()).allowed
    asked = authorize_read(Anonymous(session=True), TARGET, [url(1)], records, Settings())
    assert asked.code is ResponseCode.AUTHENTICATION_NEEDED
    refused = authorize_read(holder("300:k/eve", session=True), TARGET, [url(1)], records, Settings())
    assert refused.code is ResponseCode.INVALID_ADMIN


@pytest.mark.parametrize("identity", [Anonymous(), ALICE, LOCAL])
@pytest.mark.parametrize("permissions", ["r-rw", "r-r-", "----"])
def test_read_only_value_cannot_be_written(identity: Identity, permissions: str) -> None:
    decision = authorize_write(identity, TARGET, url(1, permissions=permissions), url(1))
    assert decision.code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert decision.reason == "Value is read-only"
    assert decision.advice == AdviceKind.REPLACE_VALUE(index=1)


OPEN_ADMIN = Value(1, "HS_ADMIN", Admin(ref("1:a/b")).to_bytes(), permissions=Permission(0x0F))


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (url(1, permissions="rwrw"), url(1), True),
        (url(1, permissions="rwrw"), url(1, permissions="r---"), True),
        (url(1), url(1, permissions="rwrw"), False),
        (url(1, permissions="rwrw"), OPEN_ADMIN, False),
        (OPEN_ADMIN, url(1, permissions="rwrw"), False),
        (OPEN_ADMIN, OPEN_ADMIN, False),
    ],
)
def test_anonymous_can_write_public_values_but_not_administrators(old: Value, new: Value, allowed: bool) -> None:
    decision = authorize_write(Anonymous(), TARGET, old, new)
    assert decision.allowed is allowed
    assert decision.code is (None if allowed else ResponseCode.AUTHENTICATION_NEEDED)
    assert authorize_write(ALICE, TARGET, old, new).allowed
    assert authorize(Anonymous(), requirements.modify(TARGET, [(old, new)]), Records({}), Settings()).allowed is allowed

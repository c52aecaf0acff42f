"""HS_ADMIN: administrators and permissions in bytes, JSON and text."""

import pytest

from perseid.records.admin import Admin, AdminPermission
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.record import ValueRef

ADMINISTRATOR = ValueRef(200, "0.NA/12345")
ADD_AND_MODIFY = AdminPermission.ADD_VALUE | AdminPermission.MODIFY_VALUE


@pytest.mark.parametrize(
    ("text", "admin"),
    [
        ("200:0.NA/12345", Admin(ADMINISTRATOR)),
        ("200:0.NA/12345:modify_value,add_value", Admin(ADMINISTRATOR, ADD_AND_MODIFY)),
        ("200:0.NA/12345:none", Admin(ADMINISTRATOR, AdminPermission(0))),
        ("200:0.NA/12345:all,legacy", Admin(ADMINISTRATOR, legacy_length=True)),
        ("200:0.NA/12345:all,bit_12", Admin(ADMINISTRATOR, AdminPermission(0x1FFF))),
        ("200:0.NA/12345:bit_15", Admin(ADMINISTRATOR, AdminPermission(0x8000))),
        ("0:a/b:c:all", Admin(ValueRef(0, "a/b:c"))),
        ("-1:x", Admin(ValueRef(-1, "x"))),
    ],
)
def test_text_is_index_handle_and_permissions(text: str, admin: Admin) -> None:
    assert Admin.from_text(text) == admin
    assert admin.to_text() == text


def test_permissions_can_be_in_any_order_and_repeated() -> None:
    text = "200:0.NA/12345:add_value,modify_value,add_value"
    assert Admin.from_text(text) == Admin(ADMINISTRATOR, ADD_AND_MODIFY)
    assert Admin.from_text("200:0.NA/12345:add_value,all") == Admin(ADMINISTRATOR)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "INDEX:HANDLE"),
        ("0.NA/12345", "INDEX:HANDLE"),
        ("200:", "empty"),
        ("200::all", "empty"),
        ("x:0.NA/12345", "INDEX:HANDLE"),
        ("2147483648:x", "between"),
        ("200:0.NA/12345:", "not a permission"),
        ("200:0.NA/12345:add_valu", "not a permission; valid permissions: add_handle"),
        ("200:0.NA/12345:ADD_VALUE", "not a permission"),
        ("200:a/b:c", "not a permission"),
        ("200:\ud800", "surrogate"),
        ("200:x:\ud800", "surrogate"),
    ],
)
def test_mistyped_text_never_grants_permissions(text: str, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        Admin.from_text(text)


@pytest.mark.parametrize(
    ("permissions", "bits"),
    [
        ("011111110011", 0x7F3),
        ("111111111111", 0xFFF),
        ("*", 0xFFF),
        (True, 0xFFF),
        (False, 0),
        (None, 0),
        ("", 0),
        ("1", 1),
        ("10", 2),
        ("0000000000000000000011", 3),
        ("1000000000000", 0),
        ("1111" + "0" * 12, 0xF000),
        ("0001" + "0" * 11 + "1", 0x1001),
        ("1" * 40, 0xFFF),
        ("1" * 17, 0xFFF),
        (11, 0b1011),
        (0, 0),
        ([True, 0, 1], 0b101),
        (["x", None, "", {}], 1),
        ([], 0),
    ],
)
def test_json_permissions_have_the_highest_bit_first_and_many_forms(permissions: object, bits: int) -> None:
    plain = {"handle": "0.NA/12345", "index": 200, "permissions": permissions}
    assert Admin.from_json(plain).permissions == bits


def test_permissions_missing_from_json_are_none() -> None:
    assert Admin.from_json({"handle": "0.NA/12345", "index": "200"}) == Admin(ADMINISTRATOR, AdminPermission(0))


@pytest.mark.parametrize("permissions", ["true", "0x7f3", "11111111111x", -1, 0x1000, 1.5, [1] * 13, {}, "१"])
def test_invalid_permissions_are_refused(permissions: object) -> None:
    with pytest.raises(InvalidData):
        Admin.from_json({"handle": "0.NA/12345", "index": 200, "permissions": permissions})


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        "200:0.NA/12345",
        {},
        {"handle": "x"},
        {"index": 1},
        {"handle": 1, "index": 1},
        {"handle": "x", "index": None},
        {"handle": "x", "index": True},
        {"handle": "x", "index": 1 << 31},
        {"handle": "", "index": 1},
        {"handle": "\ud800", "index": 1},
        {"handle": "x", "index": 1, "legacyByteLength": "yes"},
    ],
)
def test_json_requires_a_handle_and_an_index(plain: object) -> None:
    with pytest.raises(InvalidData):
        Admin.from_json(plain)


def test_json_has_the_deployed_form() -> None:
    usual = Admin(ADMINISTRATOR, AdminPermission(0x7F3))
    assert usual.to_json() == {"handle": "0.NA/12345", "index": 200, "permissions": "011111110011"}
    assert list(usual.to_json()) == ["handle", "index", "permissions"]
    old = Admin(ADMINISTRATOR, AdminPermission(0x8001), legacy_length=True)
    assert old.to_json() == {
        "handle": "0.NA/12345",
        "index": 200,
        "permissions": "1000000000000001",
        "legacyByteLength": True,
    }


@pytest.mark.parametrize("tail", ["00", "0001", "0100", "000000", "ffff"])
def test_only_two_zeros_can_follow_the_index(tail: str) -> None:
    with pytest.raises(InvalidData, match="follow the administrator's index"):
        Admin.from_bytes(Admin(ADMINISTRATOR).to_bytes() + bytes.fromhex(tail))


def test_empty_or_malformed_administrator_handle_is_refused() -> None:
    for data in ("0fff 00000000 000000c8", "0fff 00000001 ff 000000c8"):
        with pytest.raises(InvalidData):
            Admin.from_bytes(bytes.fromhex(data))


def test_constructor_refuses_an_administrator_that_cannot_be_encoded() -> None:
    with pytest.raises(RecordMisuse, match="handle is empty"):
        Admin(ValueRef(1, ""))
    with pytest.raises(RecordMisuse, match="do not fit"):
        Admin(ADMINISTRATOR, AdminPermission(0x1_0000))
    with pytest.raises(RecordMisuse):
        Admin(ValueRef(1 << 40, "x")).to_bytes()

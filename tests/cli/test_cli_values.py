"""Values as users type them on the command line."""

import base64
from pathlib import Path

import pytest
import typer

from perseid.cli._arguments import format_data, parse_value, printable, read_record, read_text
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.errors import InvalidData
from perseid.records.record import DEFAULT_PERMISSIONS, DEFAULT_TTL, PRIVATE_PERMISSIONS, Permission, Value, ValueRef
from perseid.registry.commands.records import PartialValue, assign_indexes, merge_values
from perseid.registry.results import Refused
from tests.wire.key_material import RSA_KEY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("URL=https://example.org/?a=b", PartialValue("URL", b"https://example.org/?a=b")),
        ("URL=", PartialValue("URL", b"")),
        ("7:DESC=Bücher = books", PartialValue("DESC", "Bücher = books".encode(), 7)),
        ("10320/loc=<locations/>", PartialValue("10320/loc", b"<locations/>")),
        ("2147483647:X=y", PartialValue("X", b"y", 2147483647)),
        ("EMAIL!private=a@b.org", PartialValue("EMAIL", b"a@b.org", None, PRIVATE_PERMISSIONS)),
        ("3:EMAIL!public=a@b.org", PartialValue("EMAIL", b"a@b.org", 3, DEFAULT_PERMISSIONS)),
        ("X=base64:AAECfw==", PartialValue("X", b"\x00\x01\x02\x7f")),
        ("HS_SECKEY=open sesame", PartialValue("HS_SECKEY", b"open sesame", None, PRIVATE_PERMISSIONS)),
        ("HS_ADMIN=200:0.NA/12345", PartialValue("HS_ADMIN", Admin(ValueRef(200, "0.NA/12345")).to_bytes())),
        (
            "100:HS_ADMIN=200:0.NA/12345:add_value,modify_value",
            PartialValue(
                "HS_ADMIN",
                Admin(ValueRef(200, "0.NA/12345"), AdminPermission.ADD_VALUE | AdminPermission.MODIFY_VALUE).to_bytes(),
                100,
            ),
        ),
        (
            "HS_VLIST=300:0.NA/P,301:0.NA/P",
            PartialValue("HS_VLIST", ValueList((ValueRef(300, "0.NA/P"), ValueRef(301, "0.NA/P"))).to_bytes()),
        ),
    ],
)
def test_value_is_parsed(text: str, expected: PartialValue) -> None:
    assert parse_value(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("URL", "use [INDEX:]TYPE=DATA"),
        ("=x", "use [INDEX:]TYPE=DATA"),
        (" =x", "use [INDEX:]TYPE=DATA"),
        ("0:URL=x", "a number from 1;"),
        ("9999999999:URL=x", "a number from 1;"),
        ("x:URL=x", "a number from 1;"),
        ("URL!secret=x", "use !private or !public"),
        ("X=base64:!!", "base64"),
        ("HS_ADMIN=200:0.NA/P:fly", "'fly' is not a permission"),
        ("HS_ADMIN=nobody", "INDEX:HANDLE"),
    ],
)
def test_invalid_value_is_wrong_usage(text: str, words: str) -> None:
    with pytest.raises(typer.BadParameter) as problem:
        parse_value(text)
    assert words in problem.value.message


def test_data_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x00\xff\n")
    assert parse_value(f"X=@{tmp_path}/data").data == b"\x00\xff\n"
    with pytest.raises(OSError, match="No such file"):
        parse_value(f"X=@{tmp_path}/none")


def test_public_key_file_becomes_a_handle_key_and_a_private_one_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(RSA_KEY.public.to_x509()) + b"-----END PUBLIC KEY-----\n"
    for data in (pem, RSA_KEY.public.to_text().encode(), RSA_KEY.public.to_bytes()):
        key.write_bytes(data)
        assert parse_value(f"300:HS_PUBKEY=@{key}") == PartialValue("HS_PUBKEY", RSA_KEY.public.to_bytes(), 300)
    key.write_text(RSA_KEY.to_text(), encoding="ascii")
    with pytest.raises(typer.BadParameter, match="this is a private key; use its public key"):
        parse_value(f"HS_PUBKEY=@{key}")


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1_048_577))
    with pytest.raises(typer.BadParameter, match=r"^'X': the data has 1,048,577 bytes; the maximum is 1,048,576$"):
        parse_value(f"X=@{tmp_path}/data")


def test_free_indexes_start_at_1_and_for_administrators_at_100() -> None:
    values = [
        parse_value(text) for text in ("URL=a", "2:DESC=b", "URL=c", "HS_ADMIN=0:0.NA/P:all", "HS_ADMIN=200:0.NA/P")
    ]
    assert [
        value.index for value in assign_indexes(values, [Value.text(3, "URL", "x"), Value.text(100, "X", "x")])
    ] == [
        1,
        2,
        4,
        101,
        102,
    ]


def test_ttl_is_that_of_the_namespace() -> None:
    assert assign_indexes([parse_value("URL=a")])[0].ttl == DEFAULT_TTL
    assert assign_indexes([parse_value("URL=a")], ttl=60)[0].ttl == 60


def test_value_replaces_the_only_one_of_its_type_and_preserves_other_fields() -> None:
    old = Value(5, "url", b"old", ttl=60, permissions=Permission.ADMIN_READ, references=(ValueRef(1, "1/x"),))
    (new,) = merge_values([parse_value("URL=new")], [old])
    assert new == Value(5, "URL", b"new", ttl=60, permissions=Permission.ADMIN_READ, references=(ValueRef(1, "1/x"),))
    (public,) = merge_values([parse_value("URL!public=new")], [old])
    assert public.permissions == DEFAULT_PERMISSIONS


def test_new_values_get_a_free_index() -> None:
    existing = [Value.text(1, "URL", "old")]
    assert [
        (value.index, value.type)
        for value in merge_values([parse_value("DESC=d"), parse_value("URL=u"), parse_value("9:X=y")], existing)
    ] == [
        (1, "URL"),
        (2, "DESC"),
        (9, "X"),
    ]


def test_ambiguous_type_requires_an_index() -> None:
    existing = [Value.text(1, "URL", "a"), Value.text(4, "URL", "b")]
    with pytest.raises(Refused, match=r"2 values of type 'URL', at the indexes 1, 4\. Name the index"):
        merge_values([parse_value("URL=c")], existing)
    assert merge_values([parse_value("4:URL=c")], existing)[0].index == 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Value.text(1, "DESC", "two\nlines \u202e\x1b[31m"), r"two\nlines \u202e\x1b[31m"),
        (Value(1, "X", b"\xff"), "base64:" + base64.b64encode(b"\xff").decode()),
        (Value(1, "HS_SECKEY", b"open sesame"), "(secret; --json shows it)"),
        (Value.text(1, "DESC", "Bücher"), "Bücher"),
    ],
)
def test_data_is_shown_on_one_line_without_secrets(value: Value, shown: str) -> None:
    assert format_data(value) == shown
    assert printable(shown) == shown


def test_invalid_record_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"values": [{"index": 1}]}')
    with pytest.raises(InvalidData, match='a value has no "type"'):
        read_record(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidData, match="is not UTF-8 at byte 1"):
        read_text(str(path))

"""The class of each type, and data as people write it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.admin import Admin, ValueList
from perseid.records.binary import MAX_BYTES
from perseid.records.data_types import (
    data_from_json,
    data_from_text,
    data_to_text,
    find_data_class,
    interpret,
    interpret_as,
)
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey, SecretKey
from perseid.records.locations import Locations
from perseid.records.namespace import Namespace
from perseid.records.record import Value, ValueRef
from perseid.records.signatures import Certificate, RecordSignature
from perseid.records.site import Site
from perseid.records.types import Alias, Description, Email, ServiceHandle, Url
from tests.record_strategies import TYPES, encoded, plain_objects, values
from tests.vector_files import read_bytes


@pytest.mark.parametrize(
    ("type_", "class_"),
    [
        ("HS_ADMIN", Admin),
        ("hs_admin.x", Admin),
        ("HS_VLIST", ValueList),
        ("HS_SITE", Site),
        ("HS_SITE.6", Site),
        ("HS_SITE.PREFIX", Site),
        ("HS_NA_DELEGATE", Site),
        ("HS_PUBKEY", PublicKey),
        ("HS_SECKEY", SecretKey),
        ("HS_SERV", ServiceHandle),
        ("HS_SERV.PREFIX", ServiceHandle),
        ("HS_ALIAS", Alias),
        ("HS_NAMESPACE", Namespace),
        ("HS_SIGNATURE", RecordSignature),
        ("HS_CERT", Certificate),
        ("URL", Url),
        ("url.us", Url),
        ("EMAIL", Email),
        ("DESC", Description),
        ("10320/LOC", Locations),
        ("HS_ADMINX", None),
        ("UNKNOWN", None),
        (".URL", None),
        ("", None),
    ],
)
def test_data_class_depends_on_the_type_before_the_first_dot(type_: str, class_: type | None) -> None:
    assert find_data_class(type_) is class_


def test_values_are_interpreted_or_unchanged() -> None:
    admin = Value(100, "HS_ADMIN", Admin(ValueRef(200, "0.NA/1")).to_bytes())
    assert interpret(admin) == Admin(ValueRef(200, "0.NA/1"))
    assert interpret_as(admin, Admin) == Admin(ValueRef(200, "0.NA/1"))
    assert interpret_as(admin, Url) is None
    for value in (Value(1, "UNKNOWN", b"\xff"), Value(1, "HS_ADMIN", b"\xff"), Value(1, "URL", b"\xff")):
        assert interpret(value) is None
        assert Value.from_bytes(value.to_bytes(), 0) == value


@given(values())
def test_interpreting_never_fails_and_changes_nothing(value: Value) -> None:
    found = interpret(value)
    if found is not None and not isinstance(found, PublicKey):
        assert found.to_bytes() == value.data


@pytest.mark.parametrize(
    ("type_", "text", "data"),
    [
        ("URL", "https://example.org/", b"https://example.org/"),
        ("UNKNOWN", "é", b"\xc3\xa9"),
        ("HS_ADMIN", "200:0.NA/P", Admin(ValueRef(200, "0.NA/P")).to_bytes()),
        ("HS_ADMIN", "200:0.NA/P:add_value,modify_value", bytes.fromhex("0050 00000006 302e4e412f50 000000c8")),
        ("HS_VLIST", "300:0.NA/P,301:0.NA/P", ValueList((ValueRef(300, "0.NA/P"), ValueRef(301, "0.NA/P"))).to_bytes()),
        ("HS_SITE", read_bytes("keys/siteinfo.json").decode(), read_bytes("keys/siteinfo.bin")),
        ("HS_SECKEY", "open sesame", b"open sesame"),
        ("URL", "base64:AP8=", b"\0\xff"),
        ("HS_ADMIN", "base64:AP8", b"\0\xff"),
        ("10320/loc", "<locations/>", b"<locations/>"),
    ],
)
def test_data_is_parsed_from_the_natural_form_of_its_type(type_: str, text: str, data: bytes) -> None:
    assert data_from_text(type_, text) == data


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("HS_ADMIN", "0.NA/P"),
        ("HS_VLIST", "x"),
        ("HS_SITE", "{}"),
        ("10320/loc", "https://example.org/"),
        ("HS_NAMESPACE", "<!DOCTYPE x><x/>"),
        ("HS_SIGNATURE", "signed"),
        ("URL", "base64:!!"),
        ("URL", "\ud800"),
        ("URL", "x" * (MAX_BYTES + 1)),
        ("URL", "base64:" + "A" * (MAX_BYTES // 3 * 4 + 8)),
    ],
)
def test_invalid_text_is_refused(type_: str, text: str) -> None:
    with pytest.raises(InvalidData):
        data_from_text(type_, text)


def test_data_length_is_limited() -> None:
    assert len(data_from_text("URL", "x" * MAX_BYTES)) == MAX_BYTES
    with pytest.raises(InvalidData, match="the data has 1,048,577 bytes"):
        data_from_text("URL", "x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidData, match=r"^a string of 1,048,577 bytes is too long; the maximum is 1,048,576$"):
        data_from_json("HS_ADMIN", {"handle": "x" * (MAX_BYTES + 1), "index": 1})


@given(values())
def test_data_round_trips_through_text(value: Value) -> None:
    assert data_from_text(value.type, data_to_text(value)) == value.data


def test_ambiguous_text_and_binary_secrets_are_shown_in_base64() -> None:
    assert data_to_text(Value(1, "URL", b"base64:x")) == "base64:YmFzZTY0Ong="
    assert data_to_text(Value(1, "HS_SECKEY", b"\xff")) == "base64:/w=="
    # the same key, but not the same bytes
    assert data_to_text(Value(1, "HS_PUBKEY", read_bytes("keys/rsapub.bin")[:-4])).startswith("base64:")


def test_data_is_parsed_from_the_json_of_its_type() -> None:
    assert (
        data_from_json("HS_ADMIN", {"handle": "0.NA/P", "index": 200, "permissions": "*"})
        == Admin(ValueRef(200, "0.NA/P")).to_bytes()
    )
    assert data_from_json("UNKNOWN", "é") == "é".encode()
    with pytest.raises(InvalidData):
        data_from_json("UNKNOWN", {})


@given(TYPES, st.text(st.characters(), max_size=20), plain_objects)
def test_any_text_and_any_json_are_converted_or_refused(type_: str, text: str, plain: object) -> None:
    with suppress(InvalidData):
        assert isinstance(data_from_text(type_, text), bytes)
    with suppress(InvalidData):
        assert isinstance(data_from_json(type_, plain), bytes)


@given(encoded)
def test_repr_hides_a_secret(data: bytes) -> None:
    shown = repr(interpret(Value(1, "HS_SECKEY", data + b"secret")))
    assert "secret" not in shown.replace("secret=", "").lower().replace("secretkey", "")

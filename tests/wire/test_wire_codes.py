"""Codes, flags, versions and their negotiation, and errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.encoding import OpenEnum
from perseid.records.record import TtlType
from perseid.wire.codes import (
    ASSUMED_VERSION,
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    LocalProtocolError,
    OpCode,
    OpFlag,
    ProtocolError,
    RemoteProtocolError,
    ResponseCode,
    Version,
    common_version,
    response_code_from_wire,
    response_code_to_wire,
)
from perseid.wire.message import DigestAlgorithm
from perseid.wire.requests import ExchangeMode
from tests.wire.strategies import EXAMPLES, FLAGS, I32, VERSIONS

OPEN_ENUMS = (OpCode, ResponseCode, ExchangeMode, DigestAlgorithm, TtlType)


@pytest.mark.parametrize("enum", OPEN_ENUMS)
@EXAMPLES
@given(number=I32)
def test_every_code_round_trips_known_or_not(enum: type[OpenEnum], number: int) -> None:
    member = enum(number)
    assert member == number
    assert isinstance(member, enum)
    assert member.value == number
    assert str(member) == member.name
    if number not in {known.value for known in enum}:
        assert member.name == f"{enum.__name__}_{number}"


def test_unknown_codes_are_not_cached() -> None:
    before = len(OpCode._value2member_map_)
    for number in range(5000, 6000):
        OpCode(number)
    assert len(OpCode._value2member_map_) == before


@pytest.mark.parametrize("value", [1 << 32, -(1 << 31) - 1, "1", None, 1.5])
def test_code_must_be_a_32_bit_number(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid OpCode"):
        OpCode(value)


@EXAMPLES
@given(FLAGS)
def test_unknown_flags_are_preserved(flags: OpFlag) -> None:
    assert OpFlag(int(flags)) == flags
    assert (flags | OpFlag.CERTIFY) & ~OpFlag.CERTIFY == int(flags) & ~0x4000_0000
    assert OpFlag.CERTIFY in flags | OpFlag.CERTIFY
    assert hash(OpFlag(int(flags))) == hash(flags)
    assert repr(flags)


def test_combinations_of_unknown_flags_are_not_cached() -> None:
    before = len(OpFlag._value2member_map_)
    for bits in range(1, 3000):
        OpFlag(bits | 0x4000_0000)
    assert len(OpFlag._value2member_map_) == before
    known = 1 << sum(1 for _ in OpFlag)
    assert known == 4096, "all combinations of known flags may stay: there are few"


def test_default_request_flags_are_recursive_cached_and_public() -> None:
    assert DEFAULT_FLAGS == 0x1900_0000


@pytest.mark.parametrize(
    ("version", "minor", "expected"),
    [
        ("2.0", 0, True),
        ("2.0", 1, False),
        ("2.7", 7, True),
        ("2.10", 9, True),
        ("2.9", 10, False),
        ("2.11", 11, True),
        ("3.0", 11, True),
        ("9.9", 11, True),
        ("1.9", 0, False),
        ("5.0", 0, False),
        ("5.11", 1, False),
    ],
)
def test_versions_are_compared_by_number_and_5_is_older_than_2(version: str, minor: int, expected: bool) -> None:
    assert Version.parse(version).at_least(minor) is expected
    assert str(Version.parse(version)) == version


@pytest.mark.parametrize(
    ("suggested", "used"),
    [
        ("2.0", "2.0"),
        ("2.3", "2.3"),
        ("2.11", "2.11"),
        ("2.12", "2.11"),
        ("3.0", "2.11"),
        ("9.9", "2.11"),
        ("5.0", "2.0"),
        ("5.9", "2.0"),
        ("1.1", "2.0"),
        ("0.0", "2.0"),
    ],
)
def test_response_uses_the_lower_of_suggested_and_own_version(suggested: str, used: str) -> None:
    assert common_version(Version.parse(suggested)) == Version.parse(used)


@pytest.mark.parametrize(("peer", "used"), [("2.11", "2.6"), ("2.5", "2.5"), ("5.0", "2.0")])
def test_client_with_a_lower_version_uses_the_lower_version(peer: str, used: str) -> None:
    assert common_version(Version.parse(peer), Version(2, 6)) == Version.parse(used)


def test_current_version_is_2_11_and_2_3_is_the_default() -> None:
    assert str(CURRENT_VERSION) == "2.11"
    assert str(ASSUMED_VERSION) == "2.3"


def test_two_codes_have_different_numbers_before_2_5() -> None:
    old, new = Version(2, 4), Version(2, 5)
    assert response_code_to_wire(ResponseCode.SERVER_BACKUP, old) == 303
    assert response_code_to_wire(ResponseCode.SERVER_BACKUP, new) == 7
    assert response_code_to_wire(ResponseCode.INVALID_VALUE, old) == 201
    assert response_code_to_wire(ResponseCode.INVALID_VALUE, new) == 202
    assert response_code_from_wire(303, old) is ResponseCode.SERVER_BACKUP
    assert response_code_from_wire(303, new) is ResponseCode.PREFIX_REFERRAL
    assert response_code_from_wire(201, old) is ResponseCode.VALUE_ALREADY_EXISTS
    assert response_code_from_wire(303, Version(5, 0)) is ResponseCode.SERVER_BACKUP


@EXAMPLES
@given(st.sampled_from(list(ResponseCode)), VERSIONS)
def test_other_codes_have_one_number_in_all_versions(code: ResponseCode, version: Version) -> None:
    number = response_code_to_wire(code, version)
    if number == code and not (code == ResponseCode.PREFIX_REFERRAL and not version.at_least(5)):
        assert response_code_from_wire(number, version) is code
    else:
        assert not version.at_least(5)


def test_protocol_error_has_a_side_and_a_response_code() -> None:
    with pytest.raises(TypeError, match=r"^raise RemoteProtocolError or LocalProtocolError instead$"):
        ProtocolError("neither", ResponseCode.ERROR)
    assert RemoteProtocolError("you").code is ResponseCode.PROTOCOL_ERROR
    assert LocalProtocolError("we").code is ResponseCode.ERROR
    assert RemoteProtocolError("you", ResponseCode.SESSION_FAILED).code is ResponseCode.SESSION_FAILED
    assert str(RemoteProtocolError("you")) == RemoteProtocolError("you").message == "you"

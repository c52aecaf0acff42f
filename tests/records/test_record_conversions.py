"""Every class of typed data: six conversions that are exact inverses and raise only their own errors."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.data_types import Data, find_data_class
from perseid.records.encoding import parse_json, write_json
from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import PublicKey, SecretKey
from tests.record_strategies import DATA, PUBLIC_KEYS, encoded, plain_objects, xml

KINDS = [pytest.param(class_, strategy, id=class_.__name__) for class_, strategy in DATA.items()]
CLASSES = [*DATA, PublicKey, SecretKey]
_any_bytes = st.binary(max_size=80) | encoded | xml.map(str.encode)
_any_text = st.text(st.characters(), max_size=40) | xml


def is_refused(call: Callable[[Any], object], argument: object) -> bool:
    """Whether the call raises InvalidData; any other error fails the test."""
    try:
        call(argument)
    except InvalidData:
        return True
    return False


@pytest.mark.parametrize(("class_", "strategy"), KINDS)
@given(st.data())
def test_every_conversion_round_trips(
    class_: type[Data], strategy: st.SearchStrategy[Data], data: st.DataObject
) -> None:
    found = data.draw(strategy)
    raw, plain, text = found.to_bytes(), found.to_json(), found.to_text()
    assert class_.from_bytes(raw) == found
    assert class_.from_json(plain) == found
    assert class_.from_json(parse_json(write_json(plain))) == found
    assert class_.from_text(text) == found
    # canonical: the result is written in the same form
    reparsed = class_.from_text(text)
    assert (reparsed.to_bytes(), reparsed.to_json(), reparsed.to_text()) == (raw, plain, text)


@pytest.mark.parametrize("class_", CLASSES)
@given(data=_any_bytes)
def test_any_bytes_round_trip_or_are_refused(class_: type[Data], data: bytes) -> None:
    try:
        found = class_.from_bytes(data)
    except InvalidData:
        return
    if class_ is PublicKey:  # leading zeros, the bytes after the numbers and the flags are dropped
        found, data = class_.from_bytes(found.to_bytes()), found.to_bytes()
    assert found.to_bytes() == data


@pytest.mark.parametrize(("class_", "strategy"), KINDS)
@given(st.data())
def test_truncated_encoding_is_refused_or_round_trips(
    class_: type[Data], strategy: st.SearchStrategy[Data], data: st.DataObject
) -> None:
    raw = data.draw(strategy).to_bytes()
    front = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        found = class_.from_bytes(front)
    except InvalidData:
        return
    assert found.to_bytes() == front


@pytest.mark.parametrize("class_", [class_ for class_ in DATA if class_.__name__ in ("Admin", "ValueList", "Site")])
@given(st.data())
def test_truncated_or_extended_structure_is_refused(class_: type[Data], data: st.DataObject) -> None:
    raw = data.draw(DATA[class_]).to_bytes()
    for end in range(len(raw)):
        # HS_ADMIN without its two legacy zeros is a valid HS_ADMIN
        if class_.__name__ == "Admin" and end == len(raw) - 2 and raw.endswith(b"\0\0"):
            continue
        assert is_refused(class_.from_bytes, raw[:end]), end
    assert is_refused(class_.from_bytes, raw + b"\1")


@pytest.mark.parametrize("class_", CLASSES)
@given(plain=plain_objects)
def test_any_plain_object_is_converted_or_refused(class_: type[Data], plain: object) -> None:
    if not is_refused(class_.from_json, plain):
        found = class_.from_json(plain)
        try:
            data = found.to_bytes()
        except RecordMisuse:
            return
        assert class_.from_bytes(data) == found


@pytest.mark.parametrize("class_", CLASSES)
@given(text=_any_text)
def test_any_text_is_converted_or_refused(class_: type[Data], text: str) -> None:
    if not is_refused(class_.from_text, text):
        found = class_.from_text(text)
        assert class_.from_text(found.to_text()) == found


@pytest.mark.parametrize(("class_", "strategy"), KINDS)
@given(st.data())
def test_data_is_frozen_and_hashable(
    class_: type[Data], strategy: st.SearchStrategy[Data], data: st.DataObject
) -> None:
    found = data.draw(strategy)
    assert hash(found) == hash(class_.from_bytes(found.to_bytes()))
    with pytest.raises(AttributeError):
        setattr(found, fields(class_)[0].name, None)  # type: ignore[arg-type] # every class is a dataclass


def test_public_keys_round_trip_to_the_same_bytes() -> None:
    for data in PUBLIC_KEYS:
        assert PublicKey.from_bytes(data).to_bytes() == data


def test_every_registered_type_has_all_conversions() -> None:
    for type_ in ("HS_ADMIN", "HS_VLIST", "HS_SITE", "HS_PUBKEY", "HS_SECKEY", "HS_SERV", "HS_NAMESPACE", "10320/loc"):
        class_ = find_data_class(type_)
        for name in ("from_bytes", "to_bytes", "from_json", "to_json", "from_text", "to_text"):
            assert callable(getattr(class_, name)), (type_, name)

"""Values and records as JSON, in both directions and without loss.

    {"handle": "12345/x", "values": [{"index": 1, "type": "URL", "data": {"format": "string", "value": "https://…"},
     "permissions": "1110", "ttl": 86400, "timestamp": "2017-07-14T02:40:00Z",
     "references": [{"handle": "12345/y", "index": 2}]}]}

Written as deployed: `permissions` is left out when 1110, `timestamp` when 0, `references` when there are none; data
is `admin`, `vlist`, `site` or `key` where the type says so and the data decodes, else `string`, else `base64`. For
what that form has no place for there is one that deployed readers pass over:

- data that decodes but would come back as other octets (a key without its zeros), and a Diffie–Hellman key, which
  deployed readers of JSON do not know, is written in base64;
- permissions with unknown bits have eight digits; deployed readers take the last four;
- a TTL that is neither relative nor absolute, and an instant outside the years 1 to 9999, is a number with
  `"ttlType"` beside it; such a timestamp is a number.

So every value with a binary form comes back as it was. Read is all that clients are known to send (numbers as text,
bare strings for data, ISO times with zones and fractions, a number for a timestamp), except where the deployed reader
guesses or loses something: `permissions` is read in all its digits (its reader skips the first), a TTL in digits is
seconds (not a year), base64 with foreign characters and numbers beyond 32 bits are refused.

Not judged here, because records that exist must pass: whether an index is positive, whether a TTL is negative. Who
accepts new values from outside asks that.
"""

import re
from typing import Final

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle

from . import encoding as octets_module
from . import types
from .data_types import check_length, data_from_json, interpret
from .encoding import clean_text, from_iso, to_base64, to_iso
from .errors import InvalidData, RecordMisuse
from .json_parsing import (
    JsonObject,
    a_list,
    a_number,
    a_text,
    an_object,
    check_bounds,
    kind,
    member,
    parse_json,
    write_json,
)
from .record import Record
from .site_json import key_for_json
from .value import DEFAULT_PERMISSIONS, DEFAULT_TTL, MAX_VALUES, Permission, TtlType, Value, ref_from_json, ref_to_json

FORMATS: Final = {
    types.HS_ADMIN: "admin",
    types.HS_VLIST: "vlist",
    types.HS_SITE: "site",
    types.HS_NA_DELEGATE: "site",
    types.HS_PUBKEY: "key",
}
"""The formats of data that are not octets, by the types that are written in them; all types may be read in them."""

_TYPES = {format_: type_ for type_, format_ in FORMATS.items()}
_LETTERS = re.compile("[r-][w-][r-][w-]")
_USUAL_DIGITS = 4  # of permissions: those with a meaning
_DIGITS = 8  # one for each bit of the octet
_INSTANTS = (-(1 << 63), (1 << 63) - 1)


def value_to_json(value: Value) -> JsonObject:
    """A value as a plain object, members in the order in which deployed software writes them."""
    plain: JsonObject = {"index": value.index, "type": value.type, "data": _data_to_json(value)}
    if value.permissions != DEFAULT_PERMISSIONS:
        plain["permissions"] = f"{value.permissions:0{_USUAL_DIGITS if value.permissions <= 0x0F else _DIGITS}b}"
    if value.ttl_type == TtlType.ABSOLUTE and (moment := _iso(value.ttl)) is not None:
        plain["ttl"] = moment
    else:
        plain["ttl"] = value.ttl
        if value.ttl_type != TtlType.RELATIVE:
            plain["ttlType"] = int(value.ttl_type)
    if value.timestamp:
        moment = _iso(value.timestamp)
        plain["timestamp"] = value.timestamp if moment is None else moment
    if value.references:
        plain["references"] = [ref_to_json(reference) for reference in value.references]
    return plain


def value_from_json(plain: object) -> Value:
    """Take a value."""
    check_bounds(plain)
    return _value(plain)


def record_to_json(record: Record) -> JsonObject:
    """A record as a plain object, values in their order; `Record.ascending` gives the one that clients like."""
    return {"handle": str(record.handle), "values": [value_to_json(value) for value in record.values]}


def record_from_json(plain: object) -> Record:
    """Take a record; whatever stands beside handle and values does not matter."""
    check_bounds(plain)
    members = an_object(plain, "the record")
    name = a_text(member(members, "handle", "the record"), "the handle")
    try:
        handle, _ = Handle.imported(name)
    except InvalidName as problem:
        raise InvalidData(f"the handle of the record: {problem}") from None
    return Record.received(handle, _values(member(members, "values", "the record")))


def values_from_json(plain: object) -> tuple[Value, ...]:
    """Take the values of a submission: `{"values": […]}`, a bare array, or one value."""
    check_bounds(plain)
    if isinstance(plain, list):
        return _values(plain)
    members = an_object(plain, "the record")
    if "values" not in members and members.keys() >= {"index", "type", "data"}:
        return (_value(plain),)
    return _values(member(members, "values", "the record"))


def record_to_text(record: Record) -> str:
    """A record as JSON text in one line."""
    return write_json(record_to_json(record))


def record_from_text(text: str | bytes) -> Record:
    """Take a record as JSON text."""
    return record_from_json(parse_json(text))


def _data_to_json(value: Value) -> JsonObject:
    """In the format of its type if that is exact, as a string if it is clean text, or else in base64."""
    format_ = FORMATS.get(types.base_of(value.type))
    if format_ is not None:
        # Administrators, lists and sites decode exactly or not at all.
        found = key_for_json(value.data) if format_ == "key" else interpret(value)
        if found is not None:
            return {"format": format_, "value": found.to_json()}
    text = clean_text(value.data)
    if text is None:
        return {"format": "base64", "value": to_base64(value.data)}
    return {"format": "string", "value": text}


def _data_from_json(plain: object) -> bytes:
    """Take an object with format and value, or a string, number or boolean, which is its text."""
    if not isinstance(plain, dict):
        return check_length(octets_module.decode("string", _scalar(plain), "the data"))
    given = member(plain, "value", "the data")
    format_ = a_text(member(plain, "format", "the data"), "the format of the data").lower()
    if format_ in _TYPES:
        return data_from_json(_TYPES[format_], given)
    return check_length(octets_module.decode(format_, _scalar(given), "the data"))


def _value(plain: object) -> Value:
    members = an_object(plain, "a value")
    ttl, ttl_type = _ttl(members)
    references = a_list(members.get("references", []), "the references")
    return Value(
        a_number(member(members, "index", "a value"), "the index"),
        a_text(member(members, "type", "a value"), "the type"),
        _data_from_json(member(members, "data", "a value")),
        ttl,
        ttl_type,
        _permissions(members["permissions"]) if "permissions" in members else DEFAULT_PERMISSIONS,
        _timestamp(members["timestamp"]) if "timestamp" in members else 0,
        tuple([ref_from_json(reference, "a reference") for reference in references]),
    )


def _values(plain: object) -> tuple[Value, ...]:
    items = a_list(plain, "the values")
    if len(items) > MAX_VALUES:
        raise InvalidData(f"{len(items):,} values are too many; {MAX_VALUES:,} are the most")
    return tuple([_value(item) for item in items])


def _scalar(plain: object) -> str:
    """The text that a string, number or boolean stands for."""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, float) or (isinstance(plain, int) and _INSTANTS[0] <= plain <= _INSTANTS[1]):
        return str(plain)
    if isinstance(plain, str):
        return plain
    raise InvalidData(f"the data should be an object or a string, not {kind(plain)}")


def _permissions(plain: object) -> Permission:
    """Take digits, right-aligned: a missing one keeps its default, those too many are cut off at the left.

    Eight digits are the whole octet, as it is written when an unknown bit is set.
    """
    if isinstance(plain, str) and _LETTERS.fullmatch(plain):
        digits = "".join("0" if letter == "-" else "1" for letter in plain)
    elif isinstance(plain, str):
        digits = "1111" if plain == "*" else plain
    else:
        digits = str(a_number(plain, "permissions given as a number", 0, 11_111_111))
    if len(digits) != _DIGITS:
        digits = digits[-_USUAL_DIGITS:]
    given = int("".join("1" if digit == "1" else "0" for digit in digits) or "0", 2)
    return Permission(DEFAULT_PERMISSIONS >> len(digits) << len(digits) | given)


def _ttl(members: JsonObject) -> tuple[int, TtlType]:
    plain = members.get("ttl", DEFAULT_TTL)
    if "ttlType" in members:
        ttl_type = TtlType(a_number(members["ttlType"], "ttlType", 0, 0xFF))
        # An absolute one is an instant and has 64 bits here.
        bounds = _INSTANTS if ttl_type == TtlType.ABSOLUTE else (-0x8000_0000, 0x7FFF_FFFF)
        return a_number(plain, "the TTL", *bounds), ttl_type
    if isinstance(plain, str) and not plain.removeprefix("-").isdecimal():
        return from_iso(plain), TtlType.ABSOLUTE
    return a_number(plain, "the TTL"), TtlType.RELATIVE


def _timestamp(plain: object) -> int:
    return from_iso(plain) if isinstance(plain, str) else a_number(plain, "the timestamp", *_INSTANTS)


def _iso(instant: int) -> str | None:
    try:
        return to_iso(instant)
    except RecordMisuse:
        return None

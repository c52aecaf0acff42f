"""Lossless conversion of values and records to and from JSON.

    {"handle": "12345/x", "values": [{"index": 1, "type": "URL", "data": {"format": "string", "value": "https://…"},
     "permissions": "1110", "ttl": 86400, "timestamp": "2017-07-14T02:40:00Z",
     "references": [{"handle": "12345/y", "index": 2}]}]}

Output is as deployed: `permissions` is omitted if 1110, `timestamp` if 0, `references` if empty; data is `admin`,
`vlist`, `site` or `key` if the type says so and the data decodes, otherwise `string` or `base64`. Extensions that
deployed readers ignore make every value survive a round trip:

- data that would decode to other bytes (a key without its zeros), and Diffie–Hellman keys, which deployed JSON readers
  do not know, are written in base64;
- permissions with unknown bits have eight digits; deployed readers use the last four;
- a TTL that is neither relative nor absolute, and a time outside the years 1 to 9999, is a number with `"ttlType"`;
  such a timestamp is a number.

Input is everything that clients are known to send (numbers as strings, bare strings for data, ISO times with zones and
fractions, a number for a timestamp), except where the deployed reader guesses or loses something: all digits of
`permissions` are read (it skips the first), a TTL in digits is seconds (not a year), and base64 with other characters
and numbers beyond 32 bits are rejected.

Negative indexes and TTLs are accepted, because existing records can have them; the registry refuses new ones.
"""

import re
from typing import TYPE_CHECKING, Final

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle

from . import encoding as codec
from . import types
from .data_types import check_data_length, data_from_json, interpret
from .encoding import (
    JsonObject,
    check_bounds,
    decode_printable,
    from_iso,
    json_type_name,
    require_int,
    require_list,
    require_member,
    require_object,
    require_text,
    to_base64,
    to_iso,
)
from .errors import InvalidData, RecordMisuse
from .record import (
    DEFAULT_PERMISSIONS,
    DEFAULT_TTL,
    MAX_VALUES,
    Permission,
    Record,
    TtlType,
    Value,
    ref_from_json,
    ref_to_json,
)

if TYPE_CHECKING:
    from .keys import PublicKey

FORMATS: Final = {
    types.HS_ADMIN: "admin",
    types.HS_VLIST: "vlist",
    types.HS_SITE: "site",
    types.HS_NA_DELEGATE: "site",
    types.HS_PUBKEY: "key",
}
"""Structured data formats by the types that are written in them; they are accepted for all types."""

_TYPES = {format_: type_ for type_, format_ in FORMATS.items()}
_LETTERS = re.compile("[r-][w-][r-][w-]")
_USUAL_DIGITS = 4  # of permissions: the bits with a meaning
_DIGITS = 8  # one per bit
_TIME_RANGE = (-(1 << 63), (1 << 63) - 1)


def value_to_json(value: Value) -> JsonObject:
    """Convert a value to JSON, with members in the order of deployed software."""
    obj: JsonObject = {"index": value.index, "type": value.type, "data": _data_to_json(value)}
    if value.permissions != DEFAULT_PERMISSIONS:
        obj["permissions"] = f"{value.permissions:0{_USUAL_DIGITS if value.permissions <= 0x0F else _DIGITS}b}"
    if value.ttl_type == TtlType.ABSOLUTE and (time := _try_iso(value.ttl)) is not None:
        obj["ttl"] = time
    else:
        obj["ttl"] = value.ttl
        if value.ttl_type != TtlType.RELATIVE:
            obj["ttlType"] = int(value.ttl_type)
    if value.timestamp:
        time = _try_iso(value.timestamp)
        obj["timestamp"] = value.timestamp if time is None else time
    if value.references:
        obj["references"] = [ref_to_json(reference) for reference in value.references]
    return obj


def value_from_json(obj: object) -> Value:
    """Parse a value."""
    check_bounds(obj)
    return _parse_value(obj)


def record_to_json(record: Record) -> JsonObject:
    """Convert a record to JSON, with values in their order; clients prefer `Record.ascending`."""
    return {"handle": str(record.handle), "values": [value_to_json(value) for value in record.values]}


def record_from_json(obj: object) -> Record:
    """Parse a record; members other than `handle` and `values` are ignored."""
    check_bounds(obj)
    members = require_object(obj, "the record")
    name = require_text(require_member(members, "handle", "the record"), "the handle")
    try:
        handle, _ = Handle.parse_imported(name)
    except InvalidName as problem:
        raise InvalidData(f"the handle of the record: {problem}") from None
    return Record.from_untrusted(handle, _parse_values(require_member(members, "values", "the record")))


def values_from_json(obj: object) -> tuple[Value, ...]:
    """Parse the values of a request: `{"values": […]}`, an array, or one value."""
    check_bounds(obj)
    if isinstance(obj, list):
        return _parse_values(obj)
    members = require_object(obj, "the record")
    if "values" not in members and members.keys() >= {"index", "type", "data"}:
        return (_parse_value(obj),)
    return _parse_values(require_member(members, "values", "the record"))


def _decode_key(data: bytes) -> "PublicKey | None":
    from .site import key_for_json  # noqa: PLC0415 - most records have no keys

    return key_for_json(data)


def _data_to_json(value: Value) -> JsonObject:
    """In the format of its type if that is exact, as a string if it is printable, otherwise in base64."""
    format_ = FORMATS.get(types.get_base_type(value.type))
    if format_ is not None:
        # Administrators, lists and sites decode exactly or not at all.
        decoded = _decode_key(value.data) if format_ == "key" else interpret(value)
        if decoded is not None:
            return {"format": format_, "value": decoded.to_json()}
    text = decode_printable(value.data)
    if text is None:
        return {"format": "base64", "value": to_base64(value.data)}
    return {"format": "string", "value": text}


def _data_from_json(obj: object) -> bytes:
    """Parse an object with format and value, or a string, number or boolean, which is text."""
    if not isinstance(obj, dict):
        return check_data_length(codec.decode("string", _scalar_text(obj), "the data"))
    data = require_member(obj, "value", "the data")
    format_ = require_text(require_member(obj, "format", "the data"), "the format of the data").lower()
    if format_ in _TYPES:
        return data_from_json(_TYPES[format_], data)
    return check_data_length(codec.decode(format_, _scalar_text(data), "the data"))


def _parse_value(obj: object) -> Value:
    members = require_object(obj, "a value")
    ttl, ttl_type = _parse_ttl(members)
    references = require_list(members.get("references", []), "the references")
    return Value(
        require_int(require_member(members, "index", "a value"), "the index"),
        require_text(require_member(members, "type", "a value"), "the type"),
        _data_from_json(require_member(members, "data", "a value")),
        ttl,
        ttl_type,
        _parse_permissions(members["permissions"]) if "permissions" in members else DEFAULT_PERMISSIONS,
        _parse_timestamp(members["timestamp"]) if "timestamp" in members else 0,
        tuple([ref_from_json(reference, "a reference") for reference in references]),
    )


def _parse_values(obj: object) -> tuple[Value, ...]:
    items = require_list(obj, "the values")
    if len(items) > MAX_VALUES:
        raise InvalidData(f"there are {len(items):,} values; the maximum is {MAX_VALUES:,}")
    return tuple([_parse_value(item) for item in items])


def _scalar_text(obj: object) -> str:
    if isinstance(obj, bool):
        return "true" if obj else "false"
    if isinstance(obj, float) or (isinstance(obj, int) and _TIME_RANGE[0] <= obj <= _TIME_RANGE[1]):
        return str(obj)
    if isinstance(obj, str):
        return obj
    raise InvalidData(f"the data must be an object or a string, not {json_type_name(obj)}")


def _parse_permissions(obj: object) -> Permission:
    """Parse digits, right-aligned: missing ones keep their default, extra ones on the left are ignored.

    Eight digits are the whole byte, as written if an unknown bit is set.
    """
    if isinstance(obj, str) and _LETTERS.fullmatch(obj):
        digits = "".join("0" if letter == "-" else "1" for letter in obj)
    elif isinstance(obj, str):
        digits = "1111" if obj == "*" else obj
    else:
        digits = str(require_int(obj, "permissions as a number", 0, 11_111_111))
    if len(digits) != _DIGITS:
        digits = digits[-_USUAL_DIGITS:]
    bits = int("".join("1" if digit == "1" else "0" for digit in digits) or "0", 2)
    return Permission(DEFAULT_PERMISSIONS >> len(digits) << len(digits) | bits)


def _parse_ttl(members: JsonObject) -> tuple[int, TtlType]:
    obj = members.get("ttl", DEFAULT_TTL)
    if "ttlType" in members:
        ttl_type = TtlType(require_int(members["ttlType"], "ttlType", 0, 0xFF))
        # An absolute TTL is a time and has 64 bits here.
        bounds = _TIME_RANGE if ttl_type == TtlType.ABSOLUTE else (-0x8000_0000, 0x7FFF_FFFF)
        return require_int(obj, "the TTL", *bounds), ttl_type
    if isinstance(obj, str) and not obj.removeprefix("-").isdecimal():
        return from_iso(obj), TtlType.ABSOLUTE
    return require_int(obj, "the TTL"), TtlType.RELATIVE


def _parse_timestamp(obj: object) -> int:
    return from_iso(obj) if isinstance(obj, str) else require_int(obj, "the timestamp", *_TIME_RANGE)


def _try_iso(instant: int) -> str | None:
    try:
        return to_iso(instant)
    except RecordMisuse:
        return None

"""Untrusted JSON: parsing and type checks; encodings of bytes and times; enumerations that keep unknown codes.

Every `require_…` function returns a value of its type or raises `InvalidData` with the label of the part. Unknown
members are ignored.

Bytes in JSON: where the kind of data is unknown, an object names the format: `{"format": "base64", "value": "AP8="}`.
Base64 is read in both alphabets, with or without padding and line breaks; other characters are rejected, where the
deployed reader would skip them and lose data.

Times are whole seconds since 1970-01-01T00:00:00Z. The wire has the low 32 bits, read as the time nearest to now, so
that nothing special happens in 2038 or 2106. Zero on the wire means "not set" and stays zero.
"""

import base64
import binascii
import math
import re
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final, Self, TypeAlias

from .binary import MAX_BYTES
from .errors import InvalidData, RecordMisuse

JsonObject: TypeAlias = dict[str, object]
"""A JSON object."""

MAX_JSON_DEPTH: Final = 16
"""Maximum nesting of lists and objects. A record with a site with a key needs nine levels."""

MAX_JSON_BYTES: Final = 4 * 1_048_576
"""Maximum size of a JSON text. The longest message has 262,144 bytes, and a byte of a record takes at most ten of JSON
(an interface of a site); the longest single value, 1,048,576 bytes, takes 1.4 million in base64."""

MAX_JSON_ITEMS: Final = MAX_JSON_BYTES // 2
"""Maximum number of items in a document: no text of the maximum size has more (`1,1,1,…`)."""

_MAX_NUMBER = 10**15
"""Limit below which every integer is an exact float."""


def parse_json(text: str | bytes) -> object:
    """Parse JSON text within the limits."""
    import msgspec  # noqa: PLC0415 - the rest of this module needs no JSON

    if isinstance(text, str):
        check_utf8(text, "the JSON")
        text = text.encode("utf-8")
    if len(text) > MAX_JSON_BYTES:
        raise InvalidData(f"the JSON has {len(text):,} bytes; the maximum is {MAX_JSON_BYTES:,}")
    try:
        obj = msgspec.json.decode(text)
    except RecursionError:
        raise InvalidData(f"the JSON is nested more than {MAX_JSON_DEPTH} levels deep") from None
    except (msgspec.DecodeError, UnicodeError):
        raise InvalidData(f"invalid JSON{locate_json_error(text)}") from None
    check_bounds(obj)
    return obj


def locate_json_error(data: bytes) -> str:
    """Where invalid JSON text is invalid, as the end of a sentence; empty if that is not known.

    The line is named if there are several.
    """
    import json  # noqa: PLC0415 - see above

    try:
        json.loads(data.decode(), parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()):
            return ": it ends too early"
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        return f" at {line}column {error.colno}"
    except UnicodeDecodeError:
        return ": it is not UTF-8"
    except RecursionError:
        return ": it is nested too deeply"
    return ""


def write_json(obj: object) -> str:
    """Format compact JSON text, with members in their order."""
    import msgspec  # noqa: PLC0415 - see above

    try:
        return msgspec.json.encode(obj).decode("utf-8")
    except UnicodeEncodeError:
        raise RecordMisuse("the text contains a surrogate and cannot be encoded in UTF-8") from None


def check_bounds(obj: object) -> None:
    """Reject documents that are nested too deeply or have too many items, without recursion."""
    level = [obj]
    count = 0
    for _ in range(MAX_JSON_DEPTH + 1):
        count += len(level)
        if count > MAX_JSON_ITEMS:
            raise InvalidData(f"the JSON has more than {MAX_JSON_ITEMS:,} items")
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [item for part in containers for item in (part.values() if isinstance(part, dict) else part)]
    raise InvalidData(f"the JSON is nested more than {MAX_JSON_DEPTH} levels deep")


def require_object(obj: object, label: str) -> JsonObject:
    """Return a JSON object."""
    if not isinstance(obj, dict):
        raise InvalidData(f"{label} must be a JSON object, not {json_type_name(obj)}")
    return obj


def require_list(obj: object, label: str) -> list[object]:
    """Return a JSON array without null, which lenient readers produce for a trailing comma."""
    if not isinstance(obj, list):
        raise InvalidData(f"{label} must be a JSON array, not {json_type_name(obj)}")
    if None in obj:
        raise InvalidData(f"{label} contains null; remove it, or a trailing comma")
    return obj


def require_text(obj: object, label: str) -> str:
    """Return a JSON string that can be encoded in UTF-8."""
    if not isinstance(obj, str):
        raise InvalidData(f"{label} must be a string, not {json_type_name(obj)}")
    check_utf8(obj, label)
    return obj


def check_utf8(text: str, label: str) -> None:
    """Reject text that cannot be encoded in UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidData(f"{label} contains a surrogate (character {error.start + 1})") from None


def require_bool(obj: object, label: str) -> bool:
    """Return a boolean."""
    if not isinstance(obj, bool):
        raise InvalidData(f"{label} must be true or false, not {json_type_name(obj)}")
    return obj


def require_int(obj: object, label: str, low: int = -0x8000_0000, high: int = 0x7FFF_FFFF) -> int:
    """Return an integer in a range; as clients send them, it can be a string, and a fraction is cut off."""
    number = _to_int(obj)
    if number is None:
        raise InvalidData(f"{label} must be an integer, not {json_type_name(obj)}")
    if not low <= number <= high:
        raise InvalidData(f"{label} must be between {low} and {high}")
    return number


def require_member(obj: JsonObject, name: str, label: str) -> object:
    """Return a required member."""
    try:
        return obj[name]
    except KeyError:
        raise InvalidData(f'{label} has no "{name}"') from None


def json_type_name(obj: object) -> str:
    """Name of a JSON type for error messages, which never show contents that may be secret."""
    if obj is None:
        return "null"
    if isinstance(obj, bool):
        return "true" if obj else "false"
    if isinstance(obj, int | float):
        return "a number"
    if isinstance(obj, str):
        return "a string"
    return "an array" if isinstance(obj, list) else "an object"


def _to_int(obj: object) -> int | None:
    if isinstance(obj, bool):
        return None
    if isinstance(obj, int):
        return obj
    if isinstance(obj, float):
        return int(obj) if math.isfinite(obj) and abs(obj) < _MAX_NUMBER else None
    if isinstance(obj, str) and len(obj) < len(str(_MAX_NUMBER)):
        digits = obj.removeprefix("-")
        if digits.isascii() and digits.isdecimal():
            return int(obj)
    return None


_CONTROL_CHARACTERS = re.compile(rb"[\x00-\x08\x14-\x1f\x7f]")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")
_BLANKS = re.compile(r"[\t\n\r ]+")
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2})*")

_URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_printable(data: bytes) -> str | None:
    """Decode bytes if they are valid UTF-8 without control characters; None if not.

    As deployed, 0x09 to 0x13 are text. Unlike deployed software, encoded surrogates are not, because they would not
    survive a round trip.
    """
    if _CONTROL_CHARACTERS.search(data):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def to_base64(data: bytes) -> str:
    """Encode in standard base64 with padding."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str, label: str) -> bytes:
    """Decode base64 in either alphabet, padded or not."""
    digits = _BLANKS.sub("", text)
    if len(digits) > MAX_BYTES // 3 * 4 + 4:
        raise InvalidData(f"{label} is too long; the maximum is {MAX_BYTES:,} bytes")
    digits = digits.translate(_URL_SAFE).rstrip("=")
    if match := _NOT_BASE64.search(digits):
        raise InvalidData(f"{label} is not base64: it contains {match.group()!a}")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        raise InvalidData(f"{label} is not base64: the last digit is missing") from None


def from_hex(text: str, label: str) -> bytes:
    """Decode hexadecimal digits without separators."""
    if not _HEXADECIMAL.fullmatch(text):
        raise InvalidData(f"{label} must be hexadecimal digits, two per byte")
    return bytes.fromhex(text)


def to_json(data: bytes) -> str | JsonObject:
    """A JSON string if the bytes are UTF-8, otherwise an object with base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"format": "base64", "value": to_base64(data)}


def from_json(obj: object, label: str) -> bytes:
    """Decode a JSON string, or an object with format `string`, `base64` or `hex`."""
    if isinstance(obj, str):
        return _encode_utf8(obj, label)
    members = require_object(obj, label)
    format_ = require_text(require_member(members, "format", label), f"the format of {label}").lower()
    return decode(format_, require_text(require_member(members, "value", label), f"the value of {label}"), label)


def decode(format_: str, text: str, label: str) -> bytes:
    """Decode text in a format: `string`, `base64` or `hex`."""
    if format_ == "string":
        return _encode_utf8(text, label)
    if format_ == "base64":
        return from_base64(text, label)
    if format_ == "hex":
        return from_hex(text, label)
    raise InvalidData(f"{label} has the unknown format {format_[:20]!a}; use string, base64 or hex")


def _encode_utf8(text: str, label: str) -> bytes:
    check_utf8(text, label)
    return text.encode("utf-8")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE = 1 << 32
_HALF = 1 << 31


def to_wire(instant: int) -> int:
    """The low 32 bits of a time."""
    return instant % _CYCLE


def from_wire(bits: int, now: int) -> int:
    """The time nearest to `now` with these low 32 bits; zero stays zero."""
    if bits == 0:
        return 0
    return now + (bits - now + _HALF) % _CYCLE - _HALF


def to_iso(instant: int) -> str:
    """Format a time as `2017-07-14T02:40:00Z`."""
    try:
        time = _EPOCH + timedelta(seconds=instant)
    except OverflowError:
        raise RecordMisuse(f"{instant} seconds after 1970 is outside the years 1 to 9999") from None
    return time.isoformat().replace("+00:00", "Z")


def iso_time(microseconds: int) -> str:
    """Format a time with microseconds, which identify one ledger entry."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """Parse an ISO 8601 time to seconds since 1970, rounded down; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidData(f"{text[:40]!r} is not an ISO 8601 time such as 2017-07-14T02:40:00Z") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(seconds=1)


class OpenEnum(IntEnum):
    """An IntEnum that accepts every 32-bit number: unknown codes of newer peers survive a round trip."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not -0x8000_0000 <= value <= 0xFFFF_FFFF:
            return None
        # Not cached: a peer that sends all codes must not fill the memory.
        member = int.__new__(cls, value)
        member._name_ = f"{cls.__name__}_{value}"
        member._value_ = value
        return member

    def __str__(self) -> str:
        return self.name

"""Parsing and type checks of untrusted JSON.

Every `require_…` function returns a value of its type or raises `InvalidData` with the label of the part. Unknown
members are ignored.
"""

import math
from typing import Final, TypeAlias

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
    import msgspec  # noqa: PLC0415 - resolver processes need the rest of this module, but no JSON

    if isinstance(text, str):
        check_utf8(text, "the JSON")
        text = text.encode("utf-8")
    if len(text) > MAX_JSON_BYTES:
        raise InvalidData(f"the JSON has {len(text):,} bytes; the maximum is {MAX_JSON_BYTES:,}")
    try:
        obj = msgspec.json.decode(text)
    except RecursionError:
        raise InvalidData(f"the JSON is nested more than {MAX_JSON_DEPTH} levels deep") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidData(f"invalid JSON: {error}") from None
    check_bounds(obj)
    return obj


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

"""Plain objects, as JSON readers make them: bounds first, then each part taken by what it should be.

A plain object is a dict with text keys, a list, a text, a number, a boolean or None. What comes from outside may
hold anything anywhere; every function here gives what was asked for or raises `InvalidData` with the name of the
part that is wrong. Unknown members are never looked at.
"""

import math
from typing import Final, TypeAlias

from .errors import InvalidData, RecordMisuse

JsonObject: TypeAlias = dict[str, object]
"""What we write; ready for any JSON writer."""

MAX_JSON_DEPTH: Final = 16
"""How deeply lists and objects may stand in each other. A record with a site with a key needs nine."""

MAX_JSON_BYTES: Final = 4 * 1_048_576
"""The longest JSON text. The longest message has 262,144 bytes, and a byte of a record takes at most ten of
JSON (an interface of a site); the longest single value, 1,048,576 bytes, takes 1.4 million in base64."""

MAX_JSON_ITEMS: Final = MAX_JSON_BYTES // 2
"""The most items in a plain object: no text of the greatest length has more (`1,1,1,…`)."""

_MAX_NUMBER = 10**15
"""Beyond this a float no longer tells one whole number from the next, and nothing here is so large."""


def parse_json(text: str | bytes) -> object:
    """The plain object that a JSON text stands for; bounded."""
    import msgspec  # noqa: PLC0415 - resolver processes need the rest of this module, and no JSON

    if isinstance(text, str):
        check_utf8(text, "the JSON")
        text = text.encode("utf-8")
    if len(text) > MAX_JSON_BYTES:
        raise InvalidData(f"{len(text):,} bytes of JSON are too many; {MAX_JSON_BYTES:,} are the most")
    try:
        obj = msgspec.json.decode(text)
    except RecursionError:
        raise InvalidData(f"the JSON is nested more than {MAX_JSON_DEPTH} deep") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidData(f"this is not JSON: {error}") from None
    check_bounds(obj)
    return obj


def write_json(obj: object) -> str:
    """The shortest JSON text of a plain object, members in their order."""
    import msgspec  # noqa: PLC0415 - see above

    try:
        return msgspec.json.encode(obj).decode("utf-8")
    except UnicodeEncodeError:
        raise RecordMisuse("a text holds half of a surrogate pair and has no UTF-8 form") from None


def check_bounds(obj: object) -> None:
    """Refuse what is nested too deeply or has too many items, without recursion."""
    level = [obj]
    count = 0
    for _ in range(MAX_JSON_DEPTH + 1):
        count += len(level)
        if count > MAX_JSON_ITEMS:
            raise InvalidData(f"the JSON has more than {MAX_JSON_ITEMS:,} items")
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    raise InvalidData(f"the JSON is nested more than {MAX_JSON_DEPTH} deep")


def require_object(obj: object, label: str) -> JsonObject:
    """A JSON object."""
    if not isinstance(obj, dict):
        raise InvalidData(f"{label} should be a JSON object, not {json_type_name(obj)}")
    return obj


def require_list(obj: object, label: str) -> list[object]:
    """A JSON array without null in it: that is what a trailing comma leaves in lenient readers."""
    if not isinstance(obj, list):
        raise InvalidData(f"{label} should be a JSON array, not {json_type_name(obj)}")
    if None in obj:
        raise InvalidData(f"{label} has an item that is null; is there a comma too many?")
    return obj


def require_text(obj: object, label: str) -> str:
    """A JSON string that has a UTF-8 form."""
    if not isinstance(obj, str):
        raise InvalidData(f"{label} should be a string, not {json_type_name(obj)}")
    check_utf8(obj, label)
    return obj


def check_utf8(text: str, label: str) -> None:
    """Refuse text without a UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidData(f"{label} holds half of a surrogate pair (character {error.start + 1})") from None


def require_bool(obj: object, label: str) -> bool:
    """True or false."""
    if not isinstance(obj, bool):
        raise InvalidData(f"{label} should be true or false, not {json_type_name(obj)}")
    return obj


def require_int(obj: object, label: str, low: int = -0x8000_0000, high: int = 0x7FFF_FFFF) -> int:
    """A whole number in a range; it may be written as text, and a fraction is cut off, as clients send them."""
    number = _to_int(obj)
    if number is None:
        raise InvalidData(f"{label} should be a number, not {json_type_name(obj)}")
    if not low <= number <= high:
        raise InvalidData(f"{label} should be between {low} and {high}")
    return number


def require_member(obj: JsonObject, name: str, label: str) -> object:
    """A member that must be there."""
    try:
        return obj[name]
    except KeyError:
        raise InvalidData(f'{label} has no "{name}"') from None


def json_type_name(obj: object) -> str:
    """What a plain object is, for an objection; it never shows the contents, which may be secret."""
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

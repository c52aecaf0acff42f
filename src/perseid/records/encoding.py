"""Bytes in JSON and text: as clean text, base64 or hexadecimal.

Wherever JSON must hold bytes of unknown kind it says how they are written: `{"format": "base64", "value": "AP8="}`.
Both alphabets of base64 are read, with and without padding, with line ends; anything else in it is refused,
where the deployed reader would skip it and lose data without a word.

Times: 64 bits inside, 32 bits on the wire.

An instant is a whole number of seconds since 1970-01-01T00:00:00Z. The wire has its low 32 bits; they are read as
the instant nearest to now, so that nothing special happens in 2038 or 2106. Zero on the wire means "not set" and
stays zero.

Enumerations that survive what they have never heard of.

A newer peer may send a code that this version does not know. It must come out as it came in: unknown values
become members without a name of their own, equal to their number.
"""

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final, Self

from .binary import MAX_BYTES
from .errors import InvalidData, RecordMisuse
from .json_parsing import JsonObject, check_utf8, require_member, require_object, require_text

_CONTROL_CHARACTERS = re.compile(rb"[\x00-\x08\x14-\x1f\x7f]")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")
_BLANKS = re.compile(r"[\t\n\r ]+")
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2})*")

_URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_printable(data: bytes) -> str | None:
    """The text that bytes stand for if it can be shown: strict UTF-8 without control characters.

    As deployed, 0x09 to 0x13 count as text. Not as deployed: surrogates in UTF-8 do not, because they would not
    come back.
    """
    if _CONTROL_CHARACTERS.search(data):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def to_base64(data: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str, label: str) -> bytes:
    """Take base64 in either alphabet, padded or not."""
    digits = _BLANKS.sub("", text)
    if len(digits) > MAX_BYTES // 3 * 4 + 4:
        raise InvalidData(f"{label} is too long; {MAX_BYTES:,} bytes are the most")
    digits = digits.translate(_URL_SAFE).rstrip("=")
    if found := _NOT_BASE64.search(digits):
        raise InvalidData(f"{label} is not base64: it has {found.group()!a} in it")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        raise InvalidData(f"{label} is not base64: a digit is missing at its end") from None


def from_hex(text: str, label: str) -> bytes:
    """Take hexadecimal digits without separators."""
    if not _HEXADECIMAL.fullmatch(text):
        raise InvalidData(f"{label} should be hexadecimal digits, two for each byte")
    return bytes.fromhex(text)


def to_json(data: bytes) -> str | JsonObject:
    """A JSON string if the bytes are UTF-8, or else an object that says base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"format": "base64", "value": to_base64(data)}


def from_json(obj: object, label: str) -> bytes:
    """Take a JSON string, or an object with format `string`, `base64` or `hex`."""
    if isinstance(obj, str):
        return _encode_utf8(obj, label)
    members = require_object(obj, label)
    format_ = require_text(require_member(members, "format", label), f"the format of {label}").lower()
    return decode(format_, require_text(require_member(members, "value", label), f"the value of {label}"), label)


def decode(format_: str, text: str, label: str) -> bytes:
    """The bytes that a text stands for in a format: `string`, `base64` or `hex`."""
    if format_ == "string":
        return _encode_utf8(text, label)
    if format_ == "base64":
        return from_base64(text, label)
    if format_ == "hex":
        return from_hex(text, label)
    raise InvalidData(f"{label} has the format {format_[:20]!a}, which is not known")


def _encode_utf8(text: str, label: str) -> bytes:
    check_utf8(text, label)
    return text.encode("utf-8")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE = 1 << 32
_HALF = 1 << 31


def to_wire(instant: int) -> int:
    """The 32 bits that stand for an instant."""
    return instant % _CYCLE


def from_wire(bits: int, now: int) -> int:
    """The instant nearest to `now` that has these low 32 bits; zero stays zero."""
    if bits == 0:
        return 0
    return now + (bits - now + _HALF) % _CYCLE - _HALF


def to_iso(instant: int) -> str:
    """`2017-07-14T02:40:00Z`."""
    try:
        moment = _EPOCH + timedelta(seconds=instant)
    except OverflowError:
        raise RecordMisuse(f"{instant} seconds after 1970 lies outside the years 1 to 9999") from None
    return moment.isoformat().replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """Seconds since 1970 of an ISO 8601 time; without a zone it is UTC, and parts of a second are cut off."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidData(f"{text[:40]!r} is not an ISO 8601 time such as 2017-07-14T02:40:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)


class OpenEnum(IntEnum):
    """An IntEnum in which every 32-bit number has a place."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not -0x8000_0000 <= value <= 0xFFFF_FFFF:
            return None
        # Not kept anywhere: a peer that counts through all codes must not fill the memory.
        member = int.__new__(cls, value)
        member._name_ = f"{cls.__name__}_{value}"
        member._value_ = value
        return member

    def __str__(self) -> str:
        return self.name

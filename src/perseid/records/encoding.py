"""Octets in JSON and text: as clean text, base64 or hexadecimal.

Wherever JSON must hold octets of unknown kind it says how they are written: `{"format": "base64", "value": "AP8="}`.
Both alphabets of base64 are read, with and without padding, with line ends; anything else in it is refused,
where the deployed reader would skip it and lose data without a word.
"""

import base64
import binascii
import re
from typing import Final

from .binary import MAX_OCTETS
from .errors import InvalidData
from .json_parsing import JsonObject, a_text, an_object, check_text, member

_UNCLEAN = re.compile(rb"[\x00-\x08\x14-\x1f\x7f]")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")
_BLANKS = re.compile(r"[\t\n\r ]+")
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2})*")

_URL_SAFE: Final = str.maketrans("-_", "+/")


def clean_text(octets: bytes) -> str | None:
    """The text that octets stand for if it can be shown: strict UTF-8 without control characters.

    As deployed, 0x09 to 0x13 count as text. Not as deployed: surrogates in UTF-8 do not, because they would not
    come back.
    """
    if _UNCLEAN.search(octets):
        return None
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return None


def to_base64(octets: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(octets).decode("ascii")


def from_base64(text: str, what: str) -> bytes:
    """Take base64 in either alphabet, padded or not."""
    digits = _BLANKS.sub("", text)
    if len(digits) > MAX_OCTETS // 3 * 4 + 4:
        raise InvalidData(f"{what} is too long; {MAX_OCTETS:,} octets are the most")
    digits = digits.translate(_URL_SAFE).rstrip("=")
    if found := _NOT_BASE64.search(digits):
        raise InvalidData(f"{what} is not base64: it has {found.group()!a} in it")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        raise InvalidData(f"{what} is not base64: a digit is missing at its end") from None


def from_hexadecimal(text: str, what: str) -> bytes:
    """Take hexadecimal digits without separators."""
    if not _HEXADECIMAL.fullmatch(text):
        raise InvalidData(f"{what} should be hexadecimal digits, two for each octet")
    return bytes.fromhex(text)


def to_json(octets: bytes) -> str | JsonObject:
    """A JSON string if the octets are UTF-8, or else an object that says base64."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return {"format": "base64", "value": to_base64(octets)}


def from_json(plain: object, what: str) -> bytes:
    """Take a JSON string, or an object with format `string`, `base64` or `hex`."""
    if isinstance(plain, str):
        return _utf8(plain, what)
    members = an_object(plain, what)
    format_ = a_text(member(members, "format", what), f"the format of {what}").lower()
    return decode(format_, a_text(member(members, "value", what), f"the value of {what}"), what)


def decode(format_: str, text: str, what: str) -> bytes:
    """The octets that a text stands for in a format: `string`, `base64` or `hex`."""
    if format_ == "string":
        return _utf8(text, what)
    if format_ == "base64":
        return from_base64(text, what)
    if format_ == "hex":
        return from_hexadecimal(text, what)
    raise InvalidData(f"{what} has the format {format_[:20]!a}, which is not known")


def _utf8(text: str, what: str) -> bytes:
    check_text(text, what)
    return text.encode("utf-8")

"""Variants of the JSON of sites, including those of old software.

- Members can begin with an uppercase letter, and `servers`, `interfaces` can be `serverList`, `interfaceList`.
- Attributes are an array of `{"name":…, "value":…}`, or an object of name → text or texts.
- A public key is `{"format": "key", "value": {…}}`, or bytes in base64 or hexadecimal; a bare string is hexadecimal.
- Protocols are names, or numbers if unknown.

Only the current form is written. Members that deployed readers ignore hold what it cannot express.
"""

import ipaddress
import re
from typing import Final

from . import encoding as codec
from .encoding import from_hex, to_base64
from .errors import InvalidData
from .json_parsing import JsonObject, require_int, require_list, require_object, require_text
from .public_keys import PublicKey

LEGACY_NAMES: Final = {"servers": "serverList", "interfaces": "interfaceList"}
"""Alternative names of members."""

ADDRESS_LENGTH: Final = 16
_JSON_KEY_TYPES = ("RSA", "DSA")
_V4_PADDING = bytes(12)
_MAPPED_V4 = bytes(10) + b"\xff\xff"
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


def find_site_member(members: JsonObject, name: str) -> object:
    """Find a member by its name or legacy name, in lowercase or capitalized; None if missing."""
    for spelling in (name, LEGACY_NAMES.get(name, name)):
        for candidate in (spelling, spelling[0].upper() + spelling[1:]):
            if candidate in members:
                return members[candidate]
    return None


def require_site_member(members: JsonObject, name: str, label: str) -> object:
    """Return a required member that is not null."""
    value = find_site_member(members, name)
    if value is None:
        raise InvalidData(f'{label} has no "{name}"')
    return value


def attributes_from_json(obj: object) -> list[tuple[str, bytes]]:
    """Parse names and values from an array or an object."""
    if obj is None:
        return []
    pairs: list[tuple[object, object]] = []
    if isinstance(obj, dict):
        for name, values in obj.items():
            items = require_list(values, "an attribute's values") if isinstance(values, list) else [values]
            pairs += [(name, value) for value in items]
    else:
        for item in require_list(obj, "the attributes"):
            members = require_object(item, "an attribute")
            pairs.append(
                (
                    require_site_member(members, "name", "an attribute"),
                    require_site_member(members, "value", "an attribute"),
                )
            )
    return [
        (require_text(name, "an attribute's name"), codec.from_json(value, "an attribute's value"))
        for name, value in pairs
    ]


def attributes_to_json(attributes: list[tuple[str, bytes]]) -> list[JsonObject]:
    """Format an array of names and values."""
    return [{"name": name, "value": codec.to_json(value)} for name, value in attributes]


def key_from_json(obj: object) -> bytes:
    """Decode a public key in any of its formats."""
    if isinstance(obj, str):
        return from_hex(obj, "the public key")
    members = require_object(obj, "the public key")
    value = require_site_member(members, "value", "the public key")
    format_ = require_text(
        require_site_member(members, "format", "the public key"), "the format of the public key"
    ).lower()
    if format_ == "key":
        return PublicKey.from_json(value).to_bytes()
    return codec.decode(format_, require_text(value, "the public key"), "the public key")


def key_to_json(data: bytes) -> JsonObject:
    """Format a public key as a JSON key if that is exact, otherwise in base64."""
    key = key_for_json(data)
    if key is None:
        return {"format": "base64", "value": to_base64(data)}
    return {"format": "key", "value": key.to_json()}


def key_for_json(data: bytes) -> PublicKey | None:
    """Decode a public key if its JSON form is exact and deployed software can read it; None if not."""
    try:
        key = PublicKey.from_bytes(data)
    except InvalidData:
        return None
    return key if key.KTY in _JSON_KEY_TYPES and key.to_bytes() == data else None


def address_from_json(obj: object) -> bytes:
    """Parse an address to sixteen bytes; IPv4 follows twelve zeros."""
    text = require_text(obj, "the address")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidData(f"{text[:60]!r} is not an IP address") from None
    if "%" in text:
        raise InvalidData(f"the address {text[:60]!r} has a zone (%), which is not allowed in a site")
    return address.packed.rjust(ADDRESS_LENGTH, b"\0")


def address_to_json(data: bytes) -> str:
    """Format an address; twelve leading zeros mean IPv4."""
    if data.startswith(_V4_PADDING):
        return str(ipaddress.IPv4Address(data[len(_V4_PADDING) :]))
    if data.startswith(_MAPPED_V4):  # the format differs between versions of Python
        return f"::ffff:{ipaddress.IPv4Address(data[len(_MAPPED_V4) :])}"
    return str(ipaddress.IPv6Address(data))


def version_from_json(obj: object) -> tuple[int, int]:
    """Parse `"2.11"`, a string, because the number 2.10 would be 2.1."""
    match = _VERSION.fullmatch(require_text(obj, "the protocol version"))
    if match is None:
        raise InvalidData("the protocol version must have the form 2.11")
    return require_int(match[1], "the major version", 0, 0xFF), require_int(match[2], "the minor version", 0, 0xFF)

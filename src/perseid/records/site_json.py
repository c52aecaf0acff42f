"""What is particular about the JSON of sites: old spellings, several shapes, keys in four formats.

- Members may begin with a capital, and `servers`, `interfaces` may be called `serverList`, `interfaceList`: so
  wrote old software.
- Attributes are an array of `{"name":…, "value":…}`, or an object of name → text or texts.
- A public key is `{"format": "key", "value": {…}}`, or bytes in base64 or hexadecimal; a bare string is
  hexadecimal, which is how old software wrote it.
- Protocols are called by name, or by number if nobody has named them.

Written is only the present form. What JSON has no place for gets a member that deployed readers skip.
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
"""What else a member may be called."""

ADDRESS_LENGTH: Final = 16
_JSON_KEY_TYPES = ("RSA", "DSA")
_V4_PADDING = bytes(12)
_MAPPED_V4 = bytes(10) + b"\xff\xff"
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


def find_site_member(members: JsonObject, name: str) -> object:
    """A member under its name, its other name, or either of them with a capital; None if it is not there."""
    for spelling in (name, LEGACY_NAMES.get(name, name)):
        for candidate in (spelling, spelling[0].upper() + spelling[1:]):
            if candidate in members:
                return members[candidate]
    return None


def require_site_member(members: JsonObject, name: str, label: str) -> object:
    """A member that must be there and not be null."""
    found = find_site_member(members, name)
    if found is None:
        raise InvalidData(f'{label} has no "{name}"')
    return found


def attributes_from_json(obj: object) -> list[tuple[str, bytes]]:
    """Names and values, in their order, of an array or an object."""
    if obj is None:
        return []
    pairs: list[tuple[object, object]] = []
    if isinstance(obj, dict):
        for name, values in obj.items():
            several = require_list(values, "an attribute's values") if isinstance(values, list) else [values]
            pairs += [(name, value) for value in several]
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
    """An array of names and values."""
    return [{"name": name, "value": codec.to_json(value)} for name, value in attributes]


def key_from_json(obj: object) -> bytes:
    """The bytes of a public key in any of its formats."""
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
    """A public key as a JSON key if it comes back as the same bytes, or else in base64."""
    key = key_for_json(data)
    if key is None:
        return {"format": "base64", "value": to_base64(data)}
    return {"format": "key", "value": key.to_json()}


def key_for_json(data: bytes) -> PublicKey | None:
    """A public key, if its JSON form gives the same bytes back and deployed software reads it."""
    try:
        key = PublicKey.from_bytes(data)
    except InvalidData:
        return None
    return key if key.KTY in _JSON_KEY_TYPES and key.to_bytes() == data else None


def address_from_json(obj: object) -> bytes:
    """Sixteen bytes of an address in text; an IPv4 address is put behind twelve zeros."""
    text = require_text(obj, "the address")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidData(f"{text[:60]!r} is not an IP address") from None
    if "%" in text:
        raise InvalidData("an address in a site has no zone (%)")
    return address.packed.rjust(ADDRESS_LENGTH, b"\0")


def address_to_json(data: bytes) -> str:
    """The address in text; what begins with twelve zeros is IPv4."""
    if data.startswith(_V4_PADDING):
        return str(ipaddress.IPv4Address(data[len(_V4_PADDING) :]))
    if data.startswith(_MAPPED_V4):  # newer versions of Python write these in another way than older ones
        return f"::ffff:{ipaddress.IPv4Address(data[len(_MAPPED_V4) :])}"
    return str(ipaddress.IPv6Address(data))


def version_from_json(obj: object) -> tuple[int, int]:
    """Take `"2.11"`, which is a text: as a number 2.10 would be 2.1."""
    found = _VERSION.fullmatch(require_text(obj, "the protocol version"))
    if found is None:
        raise InvalidData("the protocol version should be written like 2.11")
    return require_int(found[1], "the major version", 0, 0xFF), require_int(found[2], "the minor version", 0, 0xFF)

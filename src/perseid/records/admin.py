"""HS_ADMIN (an administrator and its permissions) and HS_VLIST (a group of administrators).

HS_ADMIN:

    0   u16    permissions
    2   bytes  the administrator's handle
    …   i32    the administrator's index; 0 is any index of that handle
    (…) 2      zeros, written by software up to 7.3: preserved, because the bytes of a value are signed

Permissions are written in three orders, which must not be confused:

- JSON: twelve digits, the highest bit (list handles) first.
- batch files: twelve digits, the lowest bit (add handle) first; their manual shows another order, which no software
  implements.
- text: names, `200:0.NA/12345:add_value,modify_value`; without names, all permissions. A handle that contains a colon
  requires names after it, so that a mistyped name never becomes part of the handle.

HS_VLIST: references to keys or to other groups.

    i32  count, then each: str handle, i32 index

Text is `300:0.NA/12345,301:0.NA/12345`; a comma or backslash in a handle is escaped with a backslash. JSON is a list of
`{"handle":…, "index":…}`.
"""

import re
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, Self

from .binary import Reader, Writer
from .encoding import JsonObject, check_utf8, require_bool, require_list, require_object
from .errors import InvalidData, RecordMisuse
from .record import ValueRef, ref_from_json, ref_from_text, ref_to_json


class AdminPermission(IntFlag):
    """Permissions of an administrator. The upper four bits have no meaning and are preserved."""

    ADD_HANDLE = 0x0001
    """Create handles under the prefix; in `0.NA/…`."""
    DELETE_HANDLE = 0x0002
    ADD_NA = 0x0004
    """Create derived prefixes."""
    DELETE_NA = 0x0008
    MODIFY_VALUE = 0x0010
    REMOVE_VALUE = 0x0020
    ADD_VALUE = 0x0040
    MODIFY_ADMIN = 0x0080
    REMOVE_ADMIN = 0x0100
    ADD_ADMIN = 0x0200
    READ_VALUE = 0x0400
    """Read values that are not public."""
    LIST_HANDLES = 0x0800


ALL_PERMISSIONS: Final = AdminPermission(0x0FFF)
"""All defined permissions."""

_KNOWN_BITS = 12
_ALL_BITS = 16
_LEGACY_TAIL = b"\0\0"
_ALL, _NONE, _LEGACY = "all", "none", "legacy"
_PERMISSION_NAMES = {member.name.lower(): member for member in AdminPermission if member.name} | {
    f"bit_{position}": AdminPermission(1 << position) for position in range(_KNOWN_BITS, _ALL_BITS)
}


@dataclass(frozen=True, slots=True)
class Admin:
    """One administrator, or a group of them."""

    administrator: ValueRef
    """The administrator's key, or an HS_VLIST of keys."""
    permissions: AdminPermission = ALL_PERMISSIONS
    legacy_length: bool = False
    """Whether the binary form ends with the two zeros of old software."""

    def __post_init__(self) -> None:
        if not self.administrator.handle:
            raise RecordMisuse("the administrator's handle is empty")
        if not 0 <= self.permissions < 1 << _ALL_BITS:
            raise RecordMisuse(f"permissions {int(self.permissions):#x} do not fit in 16 bits")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value; two zeros can follow."""
        reader = Reader(data)
        permissions = AdminPermission(int.from_bytes(reader.raw(2), "big"))
        administrator = ValueRef.read(reader)
        tail = reader.rest()
        if tail not in (b"", _LEGACY_TAIL):
            raise InvalidData(f"{len(tail)} bytes follow the administrator's index; only two zero bytes are allowed")
        return cls._create(administrator, permissions, bool(tail))

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        writer = Writer().raw(self.permissions.to_bytes(2, "big"))
        self.administrator.write(writer)
        return writer.raw(_LEGACY_TAIL if self.legacy_length else b"").getvalue()

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse `{"handle":…, "index":…, "permissions":…}` with permissions in any form that clients send."""
        members = require_object(obj, "the administrator")
        legacy = require_bool(members.get("legacyByteLength", False), "legacyByteLength")
        permissions = _permissions_from_json(members.get("permissions"))
        return cls._create(ref_from_json(members, "the administrator"), permissions, legacy)

    def to_json(self) -> JsonObject:
        """Handle, index, twelve digits (sixteen if unknown bits are set), and the flag of the long form."""
        digits = _KNOWN_BITS if self.permissions <= ALL_PERMISSIONS else _ALL_BITS
        obj = ref_to_json(self.administrator)
        obj["permissions"] = f"{self.permissions:0{digits}b}"
        if self.legacy_length:
            obj["legacyByteLength"] = True
        return obj

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse `INDEX:HANDLE`, optionally followed by `:PERMISSION,PERMISSION…`; the default is all permissions."""
        index, _, rest = text.partition(":")
        handle, colon, names = rest.rpartition(":")
        if not colon:
            return cls._create(ref_from_text(text), ALL_PERMISSIONS, False)
        permissions, legacy = _parse_permissions(names)
        return cls._create(ref_from_text(f"{index}:{handle}"), permissions, legacy)

    def to_text(self) -> str:
        """Format as text, with permissions in the order of their bits."""
        if self.permissions == ALL_PERMISSIONS and not self.legacy_length and ":" not in self.administrator.handle:
            return str(self.administrator)
        return f"{self.administrator}:{_format_permissions(self.permissions, self.legacy_length)}"

    @classmethod
    def _create(cls, administrator: ValueRef, permissions: AdminPermission, legacy: bool) -> Self:
        if not administrator.handle:
            raise InvalidData("the administrator's handle is empty")
        return cls(administrator, permissions, legacy)


def _permissions_from_json(obj: object) -> AdminPermission:
    """Parse all forms that the deployed reader accepts, except a string such as "true", which would grant nothing."""
    if obj is None or isinstance(obj, bool):
        return ALL_PERMISSIONS if obj else AdminPermission(0)
    if isinstance(obj, list):
        if len(obj) > _KNOWN_BITS:
            raise InvalidData(f"the list has {len(obj)} permissions; the maximum is {_KNOWN_BITS}")
        return AdminPermission(sum(1 << bit for bit, item in enumerate(obj) if item))
    if isinstance(obj, int):
        if not 0 <= obj <= ALL_PERMISSIONS:
            raise InvalidData(f"permissions as a number must be between 0 and {int(ALL_PERMISSIONS)}")
        return AdminPermission(obj)
    if obj == "*":
        return ALL_PERMISSIONS
    if not isinstance(obj, str) or obj.strip("01"):
        raise InvalidData('permissions must be digits 0 and 1 (the last one is ADD_HANDLE) or "*" for all')
    # Sixteen digits are written if an unknown bit is set; otherwise the last twelve are used.
    digits = obj if len(obj) == _ALL_BITS else obj[-_KNOWN_BITS:]
    return AdminPermission(int(digits or "0", 2))


def _parse_permissions(text: str) -> tuple[AdminPermission, bool]:
    check_utf8(text, "the permissions")
    permissions = AdminPermission(0)
    legacy = False
    for name in text.split(","):
        if name == _LEGACY:
            legacy = True
        elif name == _ALL:
            permissions |= ALL_PERMISSIONS
        elif name in _PERMISSION_NAMES:
            permissions |= _PERMISSION_NAMES[name]
        elif name != _NONE:
            known = ", ".join([*list(_PERMISSION_NAMES)[:_KNOWN_BITS], _ALL, _NONE])
            raise InvalidData(f"{name[:40]!r} is not a permission; valid permissions: {known}")
    return permissions, legacy


def _format_permissions(permissions: AdminPermission, legacy: bool) -> str:
    names = [name for name, bit in _PERMISSION_NAMES.items() if bit in permissions]
    if permissions & ALL_PERMISSIONS == ALL_PERMISSIONS:
        names[:_KNOWN_BITS] = [_ALL]
    return ",".join((names or [_NONE]) + ([_LEGACY] if legacy else []))


_MIN_ENTRY_SIZE = 8  # an empty handle
_ENTRY = re.compile(r"(?:[^,\\]|\\.)*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TO_ESCAPE = re.compile(r"[,\\]")


@dataclass(frozen=True, slots=True)
class ValueList:
    """A list of references to values."""

    entries: tuple[ValueRef, ...] = ()
    """In order; deployed software compares them one by one."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value."""
        reader = Reader(data)
        entries = tuple([ValueRef.read(reader) for _ in range(reader.count(_MIN_ENTRY_SIZE))])
        reader.finish()
        return cls(entries)

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        writer = Writer().i32(len(self.entries))
        for entry in self.entries:
            entry.write(writer)
        return writer.getvalue()

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse a list of objects with handle and index."""
        return cls(tuple([ref_from_json(item, "an entry of the list") for item in require_list(obj, "the list")]))

    def to_json(self) -> list[JsonObject]:
        """A list of objects with handle and index."""
        return [ref_to_json(entry) for entry in self.entries]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse `INDEX:HANDLE,INDEX:HANDLE…`; an empty text has no entries."""
        entries: list[ValueRef] = []
        position = 0
        while text:
            match = _ENTRY.match(text, position)
            end = match.end() if match else position
            entries.append(ref_from_text(_ESCAPED.sub(r"\1", text[position:end])))
            if end == len(text):
                break
            if text[end] != ",":
                raise InvalidData("the list ends with a backslash")
            position = end + 1
        return cls(tuple(entries))

    def to_text(self) -> str:
        """The entries, separated by commas."""
        return ",".join([_TO_ESCAPE.sub(r"\\\g<0>", str(entry)) for entry in self.entries])

"""HS_VLIST: a group of administrators, as a list of pointers to keys or to further groups.

    i32  count, then each: str handle, i32 index

Text is `300:0.NA/12345,301:0.NA/12345`; a comma or backslash in a handle has a backslash before it. JSON is a
list of `{"handle":…, "index":…}`.
"""

import re
from dataclasses import dataclass
from typing import Self

from .binary import Reader, Writer
from .errors import InvalidData
from .json_parsing import JsonObject, a_list
from .refs import ref_from_json, ref_from_text, ref_to_json
from .value import ValueRef

_SMALLEST_ENTRY = 8  # an empty handle
_ENTRY = re.compile(r"(?:[^,\\]|\\.)*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TO_ESCAPE = re.compile(r"[,\\]")


@dataclass(frozen=True, slots=True)
class ValueList:
    """A list of pointers to values."""

    entries: tuple[ValueRef, ...] = ()
    """In their order; deployed software compares them one by one."""

    @classmethod
    def from_bytes(cls, octets: bytes) -> Self:
        """Take the data of a value; nothing may follow."""
        reader = Reader(octets)
        entries = tuple([ValueRef.read(reader) for _ in range(reader.count(_SMALLEST_ENTRY))])
        reader.finish()
        return cls(entries)

    def to_bytes(self) -> bytes:
        """The data of a value."""
        writer = Writer().i32(len(self.entries))
        for entry in self.entries:
            entry.write(writer)
        return writer.done()

    @classmethod
    def from_json(cls, plain: object) -> Self:
        """Take a list of objects with handle and index."""
        return cls(tuple([ref_from_json(item, "an entry of the list") for item in a_list(plain, "the list")]))

    def to_json(self) -> list[JsonObject]:
        """A list of objects with handle and index."""
        return [ref_to_json(entry) for entry in self.entries]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Take `INDEX:HANDLE,INDEX:HANDLE…`; no text is no entry."""
        entries: list[ValueRef] = []
        position = 0
        while text:
            found = _ENTRY.match(text, position)
            end = found.end() if found else position
            entries.append(ref_from_text(_ESCAPED.sub(r"\1", text[position:end])))
            if end == len(text):
                break
            if text[end] != ",":
                raise InvalidData("the list ends in a backslash")
            position = end + 1
        return cls(tuple(entries))

    def to_text(self) -> str:
        """The entries with commas between them."""
        return ",".join([_TO_ESCAPE.sub(r"\\\g<0>", str(entry)) for entry in self.entries])

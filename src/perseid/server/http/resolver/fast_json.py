"""A record as JSON straight from the octets of its values, as `records.json_form` and `json_answers` write it.

Most values are plain: text of ASCII that needs no escape in JSON, a relative TTL, no references. Those are put together
here. Of whatever is not, `records.json_form` makes the part in question. What structured types say, administrators most
of all, is much the same in many records, so their form is kept for a while.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from perseid.records.encoding import from_wire, to_iso
from perseid.records.json_form import value_to_json
from perseid.records.value import DEFAULT_PERMISSIONS, TtlType, Value
from perseid.server.http.responses import encode_json

CACHED_FORMS: Final = 1_024
"""Structured data whose form is kept: the administrators and groups of a busy server. An administrator has 300 octets
of JSON; a site with a key 2,000."""

MAX_CACHED_DATA: Final = 4_096
"""Octets of the longest of them that is kept."""

HEAD: Final = Struct(">iIBiBi")
"""The beginning of a value: index, timestamp, type of TTL, TTL, permissions, length of the type."""

_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")  # printable ASCII without quotation marks and backslashes
_STRUCTURED: Final = b"HS_"  # how the types of the system itself begin
_RELATIVE: Final = int(TtlType.RELATIVE)
_HEAD_SIZE: Final = HEAD.size
_NO_REFERENCES: Final = bytes(4)
_LENGTH: Final = 4
_PERMISSIONS: Final = [
    b"" if octet == DEFAULT_PERMISSIONS else b',"permissions":"%b"' % f"{octet:0{4 if octet <= 0x0F else 8}b}".encode()
    for octet in range(256)
]


def record_json(name: bytes, raw: bytes, at: int, lengths: Sequence[int], now: int) -> tuple[bytes, int | None]:
    """The answer of the API about a name of plain letters, and for how long it may be kept; None if nothing says.

    Its values stand side by side from `at` on and have these lengths.
    """
    parts = []
    least: int | None = 0x7FFF_FFFF
    for length in lengths:
        end = at + length
        index, stamp, ttl_type, ttl, permissions, size = HEAD.unpack_from(raw, at)
        type_end = at + _HEAD_SIZE + size
        data_at = type_end + _LENGTH
        data_end = data_at + int.from_bytes(raw[type_end:data_at], "big")
        type_ = raw[at + _HEAD_SIZE : type_end]
        if ttl_type == _RELATIVE:
            if least is not None and ttl < least:
                least = ttl
            if raw[data_end:end] == _NO_REFERENCES and _PLAIN.fullmatch(type_):
                data = raw[data_at:data_end]
                parts.append(
                    b'{"index":%d,"type":"%b","data":%b%b,"ttl":%d%b}'
                    % (
                        index,
                        type_,
                        _encode_value_data(type_, data),
                        _PERMISSIONS[permissions],
                        ttl,
                        _timestamp_member(stamp, now),
                    )
                )
                at = end
                continue
        else:
            least = None
        parts.append(encode_json(value_to_json(Value.from_bytes(raw[at:end], now))))
        at = end
    body = b'{"responseCode":1,"handle":"%b","values":[%b]}' % (name, b",".join(parts))
    return body, None if least is None else max(0, least)


def _timestamp_member(stamp: int, now: int) -> bytes:
    return _timestamp(from_wire(stamp, now)) if stamp else b""


@lru_cache(CACHED_FORMS)
def _timestamp(instant: int) -> bytes:
    return b',"timestamp":"%b"' % to_iso(instant).encode()


def _encode_value_data(type_: bytes, data: bytes) -> bytes:
    if type_[:3].upper() == _STRUCTURED:
        return (_encode_structured if len(data) <= MAX_CACHED_DATA else _encode_data)(type_, data)
    if _PLAIN.fullmatch(data):
        return b'{"format":"string","value":"%b"}' % data
    return _encode_data(type_, data)


def _encode_data(type_: bytes, data: bytes) -> bytes:
    return encode_json(value_to_json(Value(1, type_.decode("ascii"), data))["data"])


_encode_structured = lru_cache(CACHED_FORMS)(_encode_data)

"""Records as JSON, directly from the bytes of their values; the output equals that of `records.json_form`.

Most values are simple: ASCII text that needs no JSON escape, a relative TTL, no references. Those are formatted here;
`records.json_form` formats everything else. The JSON of structured types, mostly administrators, repeats in many
records and is cached.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from perseid.records.encoding import from_wire, to_iso
from perseid.records.json_form import value_to_json
from perseid.records.value import DEFAULT_PERMISSIONS, HEAD, TYPE_OFFSET, TtlType, Value
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME, value_lifetime
from perseid.server.http.responses import encode_json

CACHED_FORMS: Final = 1_024
"""Cached JSON of structured data: the administrators and groups of a busy server. An administrator has 300 bytes of
JSON; a site with a key 2,000."""

MAX_CACHED_DATA: Final = 4_096
"""Bytes of the longest data that is cached."""

_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")  # printable ASCII without quotation marks and backslashes
_STRUCTURED: Final = b"HS_"  # prefix of the system's own types
_RELATIVE: Final = int(TtlType.RELATIVE)
_NO_REFERENCES: Final = bytes(4)
_LENGTH: Final = 4
_PERMISSIONS: Final = [
    b"" if bits == DEFAULT_PERMISSIONS else b',"permissions":"%b"' % f"{bits:0{4 if bits <= 0x0F else 8}b}".encode()
    for bits in range(256)
]


def record_json(name: bytes, raw: bytes, at: int, lengths: Sequence[int], now: int) -> tuple[bytes, int]:
    """The API response for a name without special characters, and its cache lifetime.

    The values are consecutive in `raw` from `at` on and have these lengths.
    """
    parts = []
    lifetime = MAX_CACHE_LIFETIME
    for length in lengths:
        end = at + length
        index, stamp, ttl_type, ttl, permissions, size = HEAD.unpack_from(raw, at)
        type_end = at + TYPE_OFFSET + size
        data_at = type_end + _LENGTH
        data_end = data_at + int.from_bytes(raw[type_end:data_at], "big")
        type_ = raw[at + TYPE_OFFSET : type_end]
        if ttl_type == _RELATIVE:
            if ttl < lifetime:  # noqa: PLR1730 - a call per value would take longer
                lifetime = ttl
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
        value = Value.from_bytes(raw[at:end], now)
        lifetime = min(lifetime, value_lifetime(value, now))
        parts.append(encode_json(value_to_json(value)))
        at = end
    body = b'{"responseCode":1,"handle":"%b","values":[%b]}' % (name, b",".join(parts))
    return body, max(0, lifetime)


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

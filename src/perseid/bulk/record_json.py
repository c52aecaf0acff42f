"""Records as lines of JSON, written from their stored form.

    {"handle":"12345/x","state":"published","values":[{"index":1,"type":"URL","data":{"format":"string",…},…}]}

Lines have the form of `jsonl.format_record`, byte for byte, at a fraction of its cost: nothing is decoded that is only
copied, and what is the same in many records is encoded once. A version in a history also has `seq`, `time`, `action`
and, if the caller can see them, `interface`, `actor` and `note`; its state is `deleted` if there is no record.
"""

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from perseid.ledger.log.entry import MICROSECONDS_PER_SECOND, State
from perseid.records import types
from perseid.records.encoding import decode_printable, from_wire, iso_time, to_base64
from perseid.records.json_form import FORMATS, value_to_json
from perseid.records.record import DEFAULT_PERMISSIONS, HEAD, TYPE_OFFSET, TtlType, Value
from perseid.registry.queries.export import ExportedRecord

_CACHED: Final = 4_096  # distinct types and times of a namespace; each takes some hundred bytes
_MAX_CACHED_DATA: Final = 1_024  # bytes of data that may occur in many records, such as administrators
_LENGTH: Final = Struct(">i")
_NO_REFERENCES: Final = bytes(4)
_RELATIVE: Final = int(TtlType.RELATIVE)
_DEFAULT: Final = int(DEFAULT_PERMISSIONS)

_STATES: Final = {state: state.label.encode() for state in State} | {State.ABSENT: b"deleted"}

_encode = msgspec.json.Encoder().encode


def encode_lines(records: Iterable[ExportedRecord]) -> bytes:
    """Encode records, one a line."""
    return b"".join([encode_line(record) for record in records])


def encode_line(record: ExportedRecord) -> bytes:
    """Encode a record on a line."""
    now = record.at // MICROSECONDS_PER_SECOND
    values = b",".join([encode_value(content, now) for content in record.contents])
    version = b"" if record.version is None else _encode_version(record)
    state = _STATES[record.state]
    return b'{"handle":%b,"state":"%b",%b"values":[%b]}\n' % (_encode(record.handle), state, version, values)


def _encode_version(record: ExportedRecord) -> bytes:
    """Encode what only versions in a history have."""
    info = record.version
    assert info is not None  # noqa: S101 - checked by the caller
    members: dict[str, object] = {"seq": record.seq, "time": iso_time(record.at), "action": info.action.name.lower()}
    seen = {"interface": info.interface, "actor": info.actor, "note": info.note}
    members |= {name: text for name, text in seen.items() if text}
    return _encode(members)[1:-1] + b","


def encode_value(content: bytes, now: int) -> bytes:
    """Encode a stored value; `now` is the time of its entry, in seconds, which resolves 32-bit times."""
    index, timestamp, ttl_type, ttl, permissions, length = HEAD.unpack_from(content)
    end = TYPE_OFFSET + length
    (size,) = _LENGTH.unpack_from(content, end)
    data = content[end + 4 : end + 4 + size]
    if ttl_type != _RELATIVE or content[end + 4 + size :] != _NO_REFERENCES or permissions != _DEFAULT:
        return _encode(value_to_json(Value.from_bytes(content, now)))
    type_ = content[TYPE_OFFSET:end]
    name, is_structured = _encode_type(type_)
    if is_structured:
        written = (_cached_structure if size <= _MAX_CACHED_DATA else _encode_structure)(type_, data)
    else:
        written = _encode_data(data)
    if not timestamp:
        return b'{"index":%d,"type":%b,"data":%b,"ttl":%d}' % (index, name, written, ttl)
    time = _encode_time(from_wire(timestamp, now))
    return b'{"index":%d,"type":%b,"data":%b,"ttl":%d,"timestamp":%b}' % (index, name, written, ttl, time)


def _encode_data(data: bytes) -> bytes:
    text = decode_printable(data)
    if text is None:
        return b'{"format":"base64","value":"%b"}' % to_base64(data).encode()
    return b'{"format":"string","value":%b}' % _encode(text)


@lru_cache(_CACHED)
def _encode_type(type_: bytes) -> tuple[bytes, bool]:
    """Encode a type, and whether its data has a structure."""
    text = type_.decode("utf-8")
    return _encode(text), types.get_base_type(text) in FORMATS


def _encode_structure(type_: bytes, data: bytes) -> bytes:
    return _encode(value_to_json(Value(1, type_.decode("utf-8"), data))["data"])


_cached_structure = lru_cache(_CACHED)(_encode_structure)


@lru_cache(_CACHED)
def _encode_time(seconds: int) -> bytes:
    return _encode(value_to_json(Value(1, "", b"", timestamp=seconds))["timestamp"])

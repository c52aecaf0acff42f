"""Records: whatever comes in, every decoder gives a value or raises InvalidData; what it gives is written as it was.

`TARGETS` has one function for each decoder. The first byte of an input to `fuzz` says which of them gets the rest.
Text is UTF-8; bytes that are not become lone surrogates, which is how malformed arguments reach the decoders.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from perseid.records.admin import Admin, ValueList
from perseid.records.data_types import Data, data_from_json, data_from_text, data_to_text, interpret
from perseid.records.encoding import from_iso, parse_json, to_iso, write_json
from perseid.records.errors import InvalidData
from perseid.records.json_form import (
    record_from_json,
    record_to_json,
    value_from_json,
    value_to_json,
    values_from_json,
)
from perseid.records.keys import PublicKey, SecretKey
from perseid.records.locations import Locations
from perseid.records.namespace import Namespace
from perseid.records.record import Record, Value, ValueRef, permissions_from_text, values_from_bytes, values_to_bytes
from perseid.records.signatures import Certificate, RecordSignature
from perseid.records.site import Site
from perseid.records.types import TypeQuery, Url, has_type
from perseid.records.xml import MAX_XML_ELEMENTS, parse_xml

T = TypeVar("T")

NOWS = (1_794_700_800, 2_177_452_800, 2_729_376_000)
TYPES = (
    *("URL", "HS_ADMIN", "HS_VLIST", "HS_SITE", "HS_PUBKEY", "HS_SECKEY", "HS_SERV", "HS_NAMESPACE"),
    *("HS_SIGNATURE", "HS_CERT", "10320/loc", "UNKNOWN"),
)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _accepted(decode: Callable[..., T], *arguments: object) -> T | None:
    """The result of a decoder; an error must be short and printable on any terminal."""
    try:
        return decode(*arguments)
    except InvalidData as problem:
        _check_problem(problem)
        return None


def _check_problem(problem: InvalidData) -> None:
    assert str(problem).isprintable(), problem
    assert len(str(problem)) < 1_000, problem


def _exact(class_: type[Data], data: bytes) -> None:
    """A data class decodes what it encoded, in each of its forms."""
    found = _accepted(class_.from_bytes, data)
    if found is None:
        return
    assert found.to_bytes() == data
    assert class_.from_json(found.to_json()) == found
    if class_ is not SecretKey:
        assert class_.from_text(found.to_text()) == found


def fuzz_value(data: bytes) -> None:
    """Values in bytes, at three times."""
    for now in NOWS:
        value = _accepted(Value.from_bytes, data, now)
        if value is None:
            continue
        assert value.to_bytes() == data
        assert value_from_json(value_to_json(value)) == value
        assert data_from_text(value.type, data_to_text(value)) == value.data
        interpret(value)


def fuzz_values(data: bytes) -> None:
    """Files of values."""
    values = _accepted(values_from_bytes, data, NOWS[0])
    assert values is None or values_to_bytes(values) == data


def fuzz_admin(data: bytes) -> None:
    """HS_ADMIN."""
    _exact(Admin, data)


def fuzz_vlist(data: bytes) -> None:
    """HS_VLIST."""
    _exact(ValueList, data)


def fuzz_site(data: bytes) -> None:
    """HS_SITE, in bytes and in a file of either kind."""
    _exact(Site, data)
    site = _accepted(Site.from_file, data)
    if site is not None:
        assert Site.from_bytes(site.to_bytes()) == site
        assert Site.from_text(site.to_text()) == site


def fuzz_public_key(data: bytes) -> None:
    """HS_PUBKEY, which does not preserve flags, leading zeros and trailing bytes."""
    key = _accepted(PublicKey.from_bytes, data)
    if key is not None:
        assert PublicKey.from_bytes(key.to_bytes()) == PublicKey.from_json(key.to_json()) == key
        assert PublicKey.from_text(key.to_text()) == key


def fuzz_secret_key(data: bytes) -> None:
    """HS_SECKEY."""
    _exact(SecretKey, data)


def fuzz_plain_text(data: bytes) -> None:
    """URL and the like."""
    _exact(Url, data)


def fuzz_namespace(data: bytes) -> None:
    """HS_NAMESPACE."""
    _exact(Namespace, data)


def fuzz_locations(data: bytes) -> None:
    """10320/loc."""
    _exact(Locations, data)


def fuzz_signature(data: bytes) -> None:
    """HS_SIGNATURE."""
    _exact(RecordSignature, data)


def fuzz_certificate(data: bytes) -> None:
    """HS_CERT."""
    _exact(Certificate, data)


def fuzz_xml(data: bytes) -> None:
    """XML."""
    root = _accepted(parse_xml, data)
    if root is not None:
        waiting, count = [root], 0
        while waiting:
            count += 1
            waiting += waiting.pop().elements()
        assert count <= MAX_XML_ELEMENTS


def fuzz_json(data: bytes) -> None:
    """Values and records in JSON."""
    plain = _accepted(parse_json, data)
    value = _accepted(value_from_json, plain)
    if value is not None:
        assert value_from_json(value_to_json(value)) == value
    record: Record | None = _accepted(record_from_json, plain)
    if record is not None:
        assert record_from_json(record_to_json(record)) == record
        assert record_from_json(parse_json(write_json(record_to_json(record)))) == record
    _accepted(values_from_json, plain)


def fuzz_data_from_json(data: bytes) -> None:
    """The JSON of each type."""
    type_ = TYPES[data[0] % len(TYPES)] if data else ""
    raw = _accepted(data_from_json, type_, _accepted(parse_json, data[1:]))
    assert raw is None or interpret(Value(1, type_, raw)) is not None or type_ == "UNKNOWN"


def fuzz_data_from_text(data: bytes) -> None:
    """The text after `TYPE=`."""
    type_ = TYPES[data[0] % len(TYPES)] if data else ""
    raw = _accepted(data_from_text, type_, _text(data[1:]))
    if raw is not None:
        assert data_from_text(type_, data_to_text(Value(1, type_, raw))) == raw


def fuzz_small_texts(data: bytes) -> None:
    """References, permissions, times."""
    text = _text(data)
    ref = _accepted(ValueRef.parse, text)
    assert ref is None or ValueRef.parse(str(ref)) == ref
    _accepted(permissions_from_text, text)
    instant = _accepted(from_iso, text)
    if instant is not None and -62_135_596_800 <= instant <= 253_402_300_799:
        assert from_iso(to_iso(instant)) == instant


def fuzz_types(data: bytes) -> None:
    """Type queries, compared with a simple implementation."""
    type_, *queries = data.decode("utf-8", "replace").split("\n")
    folded = type_.encode().upper()
    expected = [
        folded == (wanted := query.encode().upper()) or (wanted[-1:] == b"." and f"{_text(folded)}.".encode() == wanted)
        or (wanted[-1:] == b"." and folded.startswith(wanted))
        for query in queries
    ]  # fmt: skip
    assert [TypeQuery((query,)).finds(type_) for query in queries] == expected
    assert TypeQuery(queries).finds(type_) == any(expected)
    for query in queries:
        if not query.endswith("."):
            assert has_type(type_, query) == TypeQuery((f"{query}.",)).finds(type_)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "value": fuzz_value,
    "values": fuzz_values,
    "admin": fuzz_admin,
    "vlist": fuzz_vlist,
    "site": fuzz_site,
    "public_key": fuzz_public_key,
    "secret_key": fuzz_secret_key,
    "plain_text": fuzz_plain_text,
    "namespace": fuzz_namespace,
    "locations": fuzz_locations,
    "signature": fuzz_signature,
    "certificate": fuzz_certificate,
    "xml": fuzz_xml,
    "json": fuzz_json,
    "data_from_json": fuzz_data_from_json,
    "data_from_text": fuzz_data_from_text,
    "small_texts": fuzz_small_texts,
    "types": fuzz_types,
}

_CHECKS = list(TARGETS.values())


def fuzz(data: bytes) -> None:
    """Run one target with one input."""
    if data:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])


_VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
_LOCATIONS = (
    b'<locations chooseby="locatt,country"><location id="0" href="https://uk.example/" weight="0"/></locations>'
)
_NAMESPACE = (
    b'<n><status>inactive</status><locs no_nslocs="yes">1/l</locs><template delimiter="@"><notfound/></template></n>'
)
_TOKEN = (
    b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiIzMDA6MC5OQS8xIiwic3ViIjoiMS94IiwiZXhwIjoxLCJkaWdlc3RzIjp7ImFsZyI6IlNIQS0yNTYiLCJ"
    b"kaWdlc3RzIjpbeyJpbmRleCI6MSwiZGlnZXN0IjoiQUFBQSJ9XX19.AAAA"
)
_RECORD = (
    b'{"handle":"12345/x","values":[{"index":1,"type":"URL","data":{"format":"string","value":"https://example.com/"},'
    b'"permissions":"1110","ttl":"2030-01-01T00:00:00Z","ttlType":1,"timestamp":"2017-07-14T02:40:00Z","references":'
    b'[{"handle":"12345/y","index":2}]},{"index":100,"type":"HS_ADMIN","data":{"format":"admin","value":{"handle":'
    b'"0.NA/1","index":"200","permissions":"011111110011","legacyByteLength":true}}}]}'
)


def _seed(target: str, *inputs: bytes) -> list[bytes]:
    number = list(TARGETS).index(target)
    return [bytes([number]) + data for data in inputs]


def _encoded(name: str) -> dict[str, bytes]:
    vectors = json.loads((_VECTORS / name).read_bytes())
    return {vector["name"]: bytes.fromhex(vector["encoded_hex"]) for vector in vectors}


def _seeds() -> list[bytes]:
    seeds = _seed("value", *_encoded("codec-values.json").values())
    for name, data in _encoded("codec-records.json").items():
        kinds = {"hs-admin": "admin", "hs-vlist": "vlist", "hs-site": "site", "hs-pubkey": "public_key"}
        seeds += _seed(next(target for start, target in kinds.items() if name.startswith(start)), data)
    site = (_VECTORS / "keys" / "siteinfo.json").read_bytes()
    as_text = (
        *(b"200:0.NA/1", b"200:0.NA/1:add_value,bit_12,legacy", b"300:0.NA/1,301:0.NA/1", site, b"base64:AP8="),
        *(_NAMESPACE, _LOCATIONS, _TOKEN, "é".encode()),
    )
    as_json = (
        *(b'{"handle":"0.NA/1","index":"2","permissions":[1,0]}', b'[{"handle":"1/x","index":3}]', b'"x"', site),
    )
    return [
        *seeds,
        *_seed(
            "values", bytes.fromhex("0000001e 00000001 00000001 00000000 00 00015180 0e 00000000 00000000 00000000")
        ),
        *_seed("site", site, (_VECTORS / "keys" / "siteinfo.bin").read_bytes()),
        *_seed("namespace", _NAMESPACE),
        *_seed("locations", _LOCATIONS),
        *_seed("xml", _NAMESPACE, b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "y">]><a>&x;&#65;</a>'),
        *_seed("signature", _TOKEN, b'{"payload":"e30","signatures":[{"protected":"e30","signature":""}]}'),
        *_seed("json", _RECORD, b'{"index":"5","type":"T","data":12.5,"permissions":110}'),
        *_seed("data_from_json", *(bytes([kind]) + one for kind in range(len(TYPES)) for one in as_json)),
        *_seed("data_from_text", *(bytes([kind]) + one for kind in range(len(TYPES)) for one in as_text)),
        *_seed("small_texts", b"300:0.NA/12345", b"rwr-", b"111111111111", b"2017-07-14T02:40:00.5+02:00"),
        *_seed("types", b"URL.us\nURL.\nURL\n.\n", "TYPÉ.x\ntypé.".encode()),
    ]


SEEDS = _seeds()

WORDS = [
    *(b'"format":"', b'"value":', b'"handle":', b'"index":', b'"permissions":', b'"servers":[', b'"interfaces":['),
    *(b"<locations", b"<template", b"<!DOCTYPE", b"<!ENTITY", b"<![CDATA[", b"&#", b":all", b":legacy", b"base64:"),
    *(
        b"RSA_PUB_KEY",
        b"DSA_PUB_KEY",
        b"DH_PUB_KEY",
        b"\0\0\0\1",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"HS_ADMIN",
    ),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"1e999", b"-", b"Z", b"T"),
]

"""Generated request bodies: records as clients write them, documents of our own API, and both with errors."""

import json
from typing import Any, Final
from urllib.parse import quote

import msgspec
from hypothesis import strategies as st

from tests.server.http.generated_text import KNOWN, NEW, PARAMETERS, SAID, SPOKEN, TEXTS, mostly
from tests.server.installations import PREFIX

_DATA: Final[list[Any]] = [
    "https://example.org/new",
    {"format": "string", "value": "text"},
    {"format": "base64", "value": "AAEC"},
    {"format": "hex", "value": "00FF"},
    {"format": "admin", "value": {"handle": f"0.NA/{PREFIX}", "index": "200", "permissions": "011111110011"}},
    {"format": "vlist", "value": [{"handle": f"{PREFIX}/n1", "index": 300}]},
    {"format": "key", "value": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}},
    {
        "format": "site",
        "value": {"version": 1, "protocolVersion": "2.11", "serialNumber": 1, "servers": [], "attributes": []},
    },
]
_LOC = '<locations><location href="https://example.org/{}" weight="1"/></locations>'
_FITTING: Final[list[tuple[str, Any]]] = [
    ("URL", "https://example.org/new"),
    ("URL.x", {"format": "string", "value": "https://example.org/\u00e4 b"}),
    ("DESC", "\u202e<b>bold</b>"),
    ("HS_ADMIN", _DATA[4]),
    ("HS_VLIST", _DATA[5]),
    ("HS_ALIAS", f"{PREFIX}/n2"),
    ("10320/loc", _LOC),
    ("10320/headers", "Link: <https://example.org/>\r\nX-Injected: yes"),
    ("HS_SECKEY", "a-secret-of-nobody"),
    ("EMAIL", "x@example.org"),
]
_TYPES = [type_ for type_, _ in _FITTING] + ["HS_SITE", "HS_PUBKEY", "HS_NAMESPACE", "HS_CERT"]
_SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | TEXTS
_PLAIN = st.recursive(
    _SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3), max_leaves=8
)


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    """A value as clients write it."""
    made: dict[str, Any] = {"index": draw(st.integers(1, 5) | st.sampled_from(["7", 300]))}
    type_, data = draw(st.sampled_from(_FITTING))
    if draw(st.integers(0, 4)) == 0:
        data = draw(st.sampled_from(_DATA))
    made |= {"type": type_, "data": data}
    if draw(st.booleans()):
        made["permissions"] = draw(st.sampled_from(["1110", "1100", "0000", "*", 1111]))
    if draw(st.booleans()):
        made |= {"ttl": draw(st.sampled_from([86_400, 0, "2030-01-01T00:00:00Z"])), "timestamp": "2020-01-01T00:00:00Z"}
    return made


@st.composite
def sound_records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A valid record."""
    made = draw(st.lists(st.sampled_from(_FITTING), min_size=1, max_size=4))
    numbered = [{"index": at, "type": type_, "data": data} for at, (type_, data) in enumerate(made, 1)]
    return [*numbered, {"index": 100, "type": "HS_ADMIN", "data": _DATA[4]}]


@st.composite
def altered(draw: st.DrawFn, plain: Any) -> Any:
    """A document with one changed part."""
    if not isinstance(plain, dict | list) or not plain or draw(st.integers(0, 3)) == 0:
        return draw(_PLAIN)
    if isinstance(plain, list):
        at = draw(st.integers(0, len(plain) - 1))
        return [*plain[:at], draw(altered(plain[at])), *plain[at + 1 :]]
    name = draw(st.sampled_from(sorted(plain)))
    match draw(st.integers(0, 4)):
        case 0:
            return {key: value for key, value in plain.items() if key != name}
        case 1:
            return plain | {draw(TEXTS): draw(_PLAIN)}
        case _:
            return plain | {name: draw(altered(plain[name]))}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """JSON that a client would send to the compatible API or to our own."""
    made: Any = draw(st.lists(values(), max_size=3))
    match draw(st.integers(0, 5)):
        case 0:
            made = {"values": made, "handle": draw(SPOKEN)}
        case 1:
            made = draw(values())
        case 2:
            made = draw(
                st.dictionaries(
                    st.sampled_from(["sessionId", "id", "type", "cnonce", "alg", "signature"]), SAID | TEXTS
                )
            )
        case _:
            pass
    return draw(altered(made)) if draw(st.booleans()) else made


@st.composite
def bodies(draw: st.DrawFn) -> bytes | None:
    match draw(st.integers(0, 11)):
        case 0 | 1 | 2 | 3:
            return None
        case 4:
            return draw(st.binary(max_size=60))
        case 5:
            pairs = draw(st.lists(st.tuples(PARAMETERS, SAID | SPOKEN), max_size=3))
            return "&".join([f"{name}={quote(said, errors='surrogatepass')}" for name, said in pairs]).encode()
        case 6:
            return draw(
                st.sampled_from(
                    [b"[" * 2_000, b'{"a":' * 2_000, b"1" * 5_000, b'"\\ud800"', b"\xef\xbb\xbf[]", b"[1e999]"]
                )
            )
        case 7:
            octets = octets_of(draw(documents()))
            return octets[: draw(st.integers(0, len(octets)))]
        case _:
            return octets_of(draw(documents()))


def octets_of(document: Any) -> bytes:
    """A document as JSON; what JSON cannot express (NaN, lone surrogates) is written as Python does."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


# Documents of our own API


def fitting(type_: Any) -> st.SearchStrategy[Any]:
    """Documents that match a type, or nearly."""
    return _fitting(msgspec.inspect.type_info(type_))


def _fitting(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:  # noqa: C901 - one case for each kind
    match info:
        case msgspec.inspect.Metadata():
            return _fitting(info.type)
        case msgspec.inspect.UnionType():
            return st.one_of([_fitting(each) for each in info.types])
        case msgspec.inspect.StructType():
            return _structures(info)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return st.lists(_fitting(info.item_type), min_size=info.min_length or 0, max_size=3)
        case msgspec.inspect.DictType():
            return st.dictionaries(_WORDS, _fitting(info.value_type), max_size=3)
        case msgspec.inspect.EnumType():
            return st.sampled_from([member.value for member in info.cls])
        case msgspec.inspect.IntType():
            return st.integers(info.ge if info.ge is not None else -3, min(info.le or 100, 100))
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.StrType():
            return _WORDS
        case _:
            return _PLAIN


_WORDS = mostly(SAID | st.sampled_from(KNOWN), TEXTS)
_BY_MEMBER: Final[dict[str, st.SearchStrategy[Any]]] = {
    "handle": mostly(NEW | st.sampled_from(KNOWN), TEXTS),
    "prefix": mostly(st.just(PREFIX), st.sampled_from(["12345.new", "999"]) | TEXTS),
    "type": mostly(st.sampled_from(_TYPES), TEXTS),
    "data": st.sampled_from(_DATA) | st.just("https://example.org/"),
    "permissions": st.sampled_from(["1110", "1100", "0000"]),
    "profile": st.sampled_from(["free", "pilin", "cordra", "x"]),
    "ttl": st.sampled_from([0, 86_400, "2030-01-01T00:00:00Z", "x"]),
}


@st.composite
def _structures(draw: st.DrawFn, info: msgspec.inspect.StructType) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if {"type", "data", "index"} <= {field.name for field in info.fields} and draw(st.integers(0, 4)):
        return draw(values())
    if info.tag_field is not None:
        made[info.tag_field] = info.tag
    for field in info.fields:
        if field.required or draw(st.integers(0, 2)) == 0:
            strategy = _BY_MEMBER[field.name] if field.name in _BY_MEMBER else _fitting(field.type)
            made[field.encode_name] = draw(strategy)
    return made

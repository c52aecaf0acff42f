"""Hypothesis strategies for records: every value, every kind of data, and objects that resemble them."""

from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.data_types import Definition
from perseid.records.keys import PublicKey
from perseid.records.locations import Locations
from perseid.records.namespace import Namespace
from perseid.records.partition import HashOption
from perseid.records.private_keys import PrivateKey
from perseid.records.record import Permission, Record, TtlType, Value, ValueRef
from perseid.records.signatures import Certificate, CertPermission, Claims, RecordSignature
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport
from perseid.records.types import Text, Url
from tests.vector_files import read_bytes

NOWS: Final = (1_794_700_800, 2_177_452_800, 2_729_376_000)
"""Instants in 2026, 2039 and 2056: before and after a signed 32-bit time overflows."""

PUBLIC_KEYS: Final = [read_bytes("keys/rsapub.bin"), read_bytes("keys/dsapub.bin"), read_bytes("keys/pubkey.bin")]
"""Keys in the form that values and sites contain."""

# The files contain the scheme (1, not encrypted) and then the key.
RSA_PRIVATE: Final = PrivateKey.from_bytes(read_bytes("keys/rsapriv.bin")[4:])
DSA_PRIVATE: Final = PrivateKey.from_bytes(read_bytes("keys/dsapriv.bin")[4:])

_CYCLE = 1 << 32

I16 = st.integers(-0x8000, 0x7FFF)
I32 = st.integers(-0x8000_0000, 0x7FFF_FFFF)
U8 = st.integers(0, 0xFF)
BYTES = st.binary(max_size=40)
_MEANINGFUL = st.sampled_from(list(",:;\\/.{}[]\"'<>&\n\t\x00\x13\x14\x7f\x9f 019aZé\ufeff\U0001f600"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | _MEANINGFUL, max_size=20)
NAMES = TEXTS | st.sampled_from(["0.NA/12345", "12345/x", "a/b:c", "a/b,7:c", "a/b\\", "5:x/y"])
TYPES = TEXTS | st.sampled_from(
    [
        *("URL", "url", "URL.us", "EMAIL", "DESC", "HS_ADMIN", "hs_admin.x", "HS_VLIST", "HS_SITE", "HS_SITE.6"),
        *("HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_SERV", "HS_SERV.PREFIX", "HS_ALIAS", "HS_PUBKEY", "HS_SECKEY"),
        *("HS_NAMESPACE", "HS_SIGNATURE", "HS_CERT", "10320/loc", "10320/LOC"),
    ]
)


def instants(now: int) -> st.SearchStrategy[int]:
    """Instants that 32 bits can distinguish at `now`; zero is "not set", also in another cycle."""
    near = st.integers(now - (1 << 31), now + (1 << 31) - 1)
    return st.just(0) | near.filter(lambda instant: instant % _CYCLE != 0)


refs = st.builds(ValueRef, I32, NAMES)


@st.composite
def values(draw: st.DrawFn, now: int = NOWS[0], data: st.SearchStrategy[bytes] | None = None) -> Value:
    """Values with a binary form at `now`, of any type, with data that is valid for the type or not."""
    ttl_type = draw(st.sampled_from(list(TtlType)) | U8.map(TtlType))
    return Value(
        draw(I32),
        draw(TYPES),
        draw(data if data is not None else BYTES | encoded),
        draw(instants(now) if ttl_type == TtlType.ABSOLUTE else I32),
        ttl_type,
        Permission(draw(U8)),
        draw(instants(now)),
        tuple(draw(st.lists(refs, max_size=3))),
    )


@st.composite
def records(draw: st.DrawFn, now: int = NOWS[0]) -> Record:
    """Records of a few values."""
    handle = Handle.parse_imported(f"1/{draw(TEXTS) or 'x'}")[0]
    record_values = draw(st.lists(values(now), max_size=5, unique_by=lambda value: value.index))
    return Record(handle, tuple(record_values))


admins = st.builds(
    Admin,
    st.builds(ValueRef, I32, NAMES.filter(bool)),
    st.integers(0, 0xFFFF).map(AdminPermission) | st.just(AdminPermission(0x0FFF)),
    st.booleans(),
)
value_lists = st.builds(ValueList, st.lists(refs, max_size=5).map(tuple))
interfaces = st.builds(Interface, U8.map(Purpose), U8.map(Transport) | st.sampled_from(list(Transport)), I32)
addresses = st.binary(min_size=16, max_size=16) | st.binary(min_size=4, max_size=4).flatmap(
    lambda address: st.sampled_from([bytes(12) + address, bytes(10) + b"\xff\xff" + address])
)
servers = st.builds(
    Server, I32, addresses, BYTES | st.sampled_from(PUBLIC_KEYS), st.lists(interfaces, max_size=4).map(tuple)
)
sites = st.builds(
    Site,
    st.lists(servers, max_size=3).map(tuple),
    st.lists(st.builds(Attribute, TEXTS, BYTES | TEXTS.map(str.encode)), max_size=3).map(tuple),
    I16,
    U8.map(PrimaryMask),
    U8.map(HashOption),
    BYTES,
    st.tuples(U8, U8),
    I16,
)

_xml_text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=20)
_xml_names = st.sampled_from(
    ["a", "x:y", "location", "loc_template", "template", "status", "statusmsg", "contact", "locs", "value", "é"]
)
_xml_attribute_names = st.sampled_from(["href", "id", "weight", "chooseby", "choose_by", "delimiter", "no_nslocs"])


@st.composite
def _xml_element(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    name = draw(_xml_names)
    attributes = draw(st.dictionaries(_xml_attribute_names, _xml_text, max_size=3))
    written = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<{name}{written}>{''.join(draw(st.lists(inner, max_size=3)))}</{name}>"


xml = st.recursive(_xml_text.map(escape) | st.just("<!-- -->"), _xml_element, max_leaves=8).map(
    lambda inner: f"<root>{inner}</root>"
)
namespaces = xml.map(Namespace)
locations = xml.map(Locations)

claims = st.builds(
    Claims,
    st.builds(ValueRef, st.integers(0, 0x7FFF_FFFF), NAMES.filter(bool)),
    st.builds(ValueRef, st.integers(0, 0x7FFF_FFFF), NAMES.filter(bool)),
    st.none() | st.integers(0, 1 << 40),
    st.none() | st.integers(0, 1 << 40),
    st.none() | st.integers(0, 1 << 40),
    st.lists(st.builds(ValueRef, st.integers(0, 9), NAMES.filter(bool)), max_size=2).map(tuple),
)
signatures = st.builds(
    RecordSignature.sign,
    claims,
    st.lists(st.builds(Value, I32, TEXTS, BYTES), max_size=3, unique_by=lambda value: value.index),
    st.just(RSA_PRIVATE),  # DSA signatures differ each time, and examples must be reproducible
)
certificates = st.builds(
    Certificate.sign,
    claims,
    st.sampled_from(PUBLIC_KEYS).map(PublicKey.from_bytes),
    st.lists(st.builds(CertPermission, TEXTS, st.none() | NAMES), max_size=2),
    st.just(RSA_PRIVATE),
)
texts = st.builds(Text, TEXTS)

_syntaxes = st.sampled_from(
    ({}, {"pattern": "[a-z]+"}, {"pattern": "("}, {"schema": {"type": "string"}}, {"schema": 1})
)
definitions = st.builds(
    lambda name, text, syntax, example: Definition.make(name, text, example=example, **syntax),
    TEXTS.filter(lambda text: 0 < len(text.strip()) <= len(text) <= 200),
    TEXTS,
    _syntaxes,
    st.none() | TEXTS,
)

DATA: Final[dict[type[Any], st.SearchStrategy[Any]]] = {
    Admin: admins,
    ValueList: value_lists,
    Site: sites,
    Text: texts,
    Url: st.builds(Url, TEXTS),
    Namespace: namespaces,
    Locations: locations,
    Definition: definitions,
    RecordSignature: signatures,
    Certificate: certificates,
}
"""Every class of typed data except keys, with a strategy for its instances."""

encoded: st.SearchStrategy[bytes] = st.one_of(
    admins.map(Admin.to_bytes),
    value_lists.map(ValueList.to_bytes),
    sites.map(Site.to_bytes),
    TEXTS.map(str.encode),
    st.sampled_from(PUBLIC_KEYS),
)
"""Bytes that some type of value can read."""

_MEMBERS = [
    *("handle", "values", "index", "type", "data", "format", "value", "permissions", "ttl", "ttlType", "timestamp"),
    *("references", "legacyByteLength", "servers", "ServerList", "interfaces", "InterfaceList", "address", "Address"),
    *("serverId", "publicKey", "PublicKey", "protocol", "port", "Port", "query", "admin", "attributes", "name"),
    *("version", "protocolVersion", "serialNumber", "primarySite", "multiPrimary", "hashOption", "hashFilter"),
    *("kty", "n", "e", "payload", "protected", "signature", "signatures", "iss", "sub", "digests", "primaryMask"),
]
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 20),
    st.floats(),
    st.text(st.characters(), max_size=12),
    st.sampled_from(
        [
            *("string", "base64", "hex", "admin", "vlist", "site", "key", "*", "1110", "rwr-", "200", "2.11", "TCP"),
            *("127.0.0.1", "::1", "fe80::1%1", "AP8=", "00ff", "2017-07-14T02:40:00Z", "12345/x", "9" * 5000, "RSA"),
            10**400,
        ]
    ),
)
plain_objects: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_MEMBERS) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=20,
)
"""Any JSON value, mostly with member names that parsers look for."""

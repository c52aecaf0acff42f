"""Vectors of typed data: recorded vectors, vectors of the protocol description (21.2), and a site in both forms."""

import json

import pytest

from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.data_types import find_data_class
from perseid.records.encoding import parse_json
from perseid.records.keys import PublicKey
from perseid.records.partition import HashOption
from perseid.records.record import TtlType, Value, ValueRef, values_from_bytes, values_to_bytes
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport
from tests.vector_files import Vector, fields, parameters, read_bytes

VECTOR_FILES = ("codec-records.json", "keys/siteinfo.bin", "keys/siteinfo.json")
NOW = 1_794_700_800

TYPES = {
    "Encoder.encodeAdminRecord": "HS_ADMIN",
    "Encoder.encodeValueReferenceList": "HS_VLIST",
    "Util.getBytesFromPublicKey": "HS_PUBKEY",
    "Encoder.encodeSiteInfoRecord": "HS_SITE",
}


@pytest.mark.parametrize("vector", parameters("codec-records.json"))
def test_vector_of_a_record_round_trips_through_every_conversion(vector: Vector) -> None:
    encoded = bytes.fromhex(vector["encoded_hex"])
    class_ = find_data_class(TYPES[vector["function"]])
    assert class_ is not None
    found = class_.from_bytes(encoded)
    assert found.to_bytes() == encoded
    assert class_.from_json(found.to_json()).to_bytes() == encoded
    assert class_.from_text(found.to_text()).to_bytes() == encoded
    if "json" in vector:
        assert found.to_json() == vector["json"]
        assert json.dumps(found.to_json()) == json.dumps(vector["json"])  # members in the same order
        assert class_.from_json(vector["json"]).to_bytes() == encoded
    if "x509_hex" in vector:
        assert PublicKey.from_x509(bytes.fromhex(vector["x509_hex"])) == found
    if "admin" in vector:
        assert found.to_text() == vector["admin"]


@pytest.mark.parametrize("vector", parameters("codec-records.json"))
def test_vector_of_a_record_matches_its_description(vector: Vector) -> None:
    encoded = bytes.fromhex(vector["encoded_hex"])
    expected = fields(vector)
    if vector["function"] == "Encoder.encodeAdminRecord":
        admin = Admin.from_bytes(encoded)
        assert describe_permissions(admin.permissions) == expected["v.permissions"]
        assert admin.administrator == ValueRef(int(expected["v.adminIdIndex"]), str(expected["v.adminId"]))
        assert admin.legacy_length is ("TRAILING" in expected)
    elif vector["function"] == "Encoder.encodeValueReferenceList":
        entries = ValueList.from_bytes(encoded).entries
        assert len(entries) == expected["v.count"]
        for number, entry in enumerate(entries):
            assert entry == ValueRef(int(expected[f"v[{number}].index"]), str(expected[f"v[{number}].handle"]))
    elif vector["function"] == "Encoder.encodeSiteInfoRecord":
        assert describe_site(Site.from_bytes(encoded)).items() <= expected.items()
    else:
        key = PublicKey.from_bytes(encoded)
        assert expected["v.keyType"] == key.KIND


def describe_permissions(permissions: AdminPermission) -> str:
    names = "|".join(str(one.name) for one in AdminPermission if one in permissions)
    return f"0x{permissions:04x} {names}"


def describe_site(site: Site) -> dict[str, int | str]:
    """The fields of a site under the names that the vectors use."""
    primary, multi = site.is_primary, PrimaryMask.MULTI_PRIMARY in site.primary
    found: dict[str, int | str] = {
        "v.dataFormatVersion": site.version,
        "v.majorProtocolVersion": site.protocol_version[0],
        "v.minorProtocolVersion": site.protocol_version[1],
        "v.serialNumber": site.serial,
        "v.primaryMask": f"0x{site.primary:02x} (primary={primary:d} multiPrimary={multi:d})",
        "v.hashOption": f"{site.hash_option:d} (0 prefix 1 suffix 2 all)",
        "v.hashFilter": site.hash_filter.decode(),
        "v.attributeCount": len(site.attributes),
        "v.serverCount": len(site.servers),
    }
    for number, attribute in enumerate(site.attributes):
        found |= {
            f"v.attribute[{number}].name": attribute.name,
            f"v.attribute[{number}].value": attribute.value.decode(),
        }
    for number, server in enumerate(site.servers):
        found[f"v.server[{number}].serverId"] = server.server_id
        found[f"v.server[{number}].publicKey"] = server.public_key.hex()
    return found


def test_vector_of_the_recorded_site_is_the_same_in_both_files() -> None:
    binary, text = read_bytes("keys/siteinfo.bin"), read_bytes("keys/siteinfo.json")
    site = Site.from_bytes(binary)
    assert site == Site.from_text(text.decode()) == Site.from_file(binary) == Site.from_file(text)
    assert site.to_bytes() == binary
    assert json.dumps(site.to_json()) == json.dumps(parse_json(text))
    assert site.servers[0].key == PublicKey.from_bytes(read_bytes("keys/pubkey.bin"))
    assert str(site.servers[0].ip) == "127.0.0.1"
    assert site.attribute("desc") == "cnri reference on localhost"


VALUE = Value(1, "URL", b"http://example.com/", timestamp=1_500_000_000)
WITH_REFERENCE = Value(1, "URL", b"http://example.com/", timestamp=1_500_000_000, references=(ValueRef(7, "1/2"),))
VALUE_HEX = "0000000159682f0000000151800e0000000355524c00000013687474703a2f2f6578616d706c652e636f6d2f00000000"
REFERENCE_HEX = (
    "0000000159682f0000000151800e0000000355524c00000013687474703a2f2f6578616d706c652e636f6d2f00000001"
    "00000003312f3200000007"
)
ROOT_INFO_HEX = (
    "0000003f000000010000000159682f0000000151800e0000000355524c00000013687474703a2f2f6578616d706c652e"
    "636f6d2f0000000100000003312f3200000007"
)
SITE_HEX = (
    "0001020b0001800200000000000000010000000464657363000000045465737400000001000000010000000000000000"
    "000000007f0000010000000301020300000003030100000a51020000000a51030200001f40"
)


@pytest.mark.parametrize(("value", "hexadecimal"), [(VALUE, VALUE_HEX), (WITH_REFERENCE, REFERENCE_HEX)])
def test_vector_21_2_of_a_value(value: Value, hexadecimal: str) -> None:
    assert value.to_bytes().hex() == hexadecimal
    assert Value.from_bytes(bytes.fromhex(hexadecimal), NOW) == value
    assert (value.ttl, value.ttl_type) == (86_400, TtlType.RELATIVE)


@pytest.mark.parametrize(
    ("admin", "hexadecimal"),
    [
        (Admin(ValueRef(300, "0.NA/12345"), ALL_PERMISSIONS), "0fff0000000a302e4e412f31323334350000012c"),
        (
            Admin(ValueRef(300, "0.NA/12345"), ALL_PERMISSIONS, legacy_length=True),
            "0fff0000000a302e4e412f31323334350000012c0000",
        ),
    ],
)
def test_vector_21_2_of_an_administrator(admin: Admin, hexadecimal: str) -> None:
    assert admin.to_bytes().hex() == hexadecimal
    assert Admin.from_bytes(bytes.fromhex(hexadecimal)) == admin


def test_vector_21_2_of_a_list() -> None:
    found = ValueList((ValueRef(300, "1/A"), ValueRef(301, "1/B")))
    hexadecimal = "0000000200000003312f410000012c00000003312f420000012d"
    assert found.to_bytes().hex() == hexadecimal
    assert ValueList.from_bytes(bytes.fromhex(hexadecimal)) == found


def test_vector_21_2_of_a_site() -> None:
    interfaces = (
        Interface(Purpose.ADMIN | Purpose.QUERY, Transport.TCP, 2641),
        Interface(Purpose.QUERY, Transport.UDP, 2641),
        Interface(Purpose.ADMIN | Purpose.QUERY, Transport.HTTP, 8000),
    )
    server = Server(1, bytes(12) + bytes([127, 0, 0, 1]), b"\1\2\3", interfaces)
    site = Site((server,), (Attribute("desc", b"Test"),), 1, PrimaryMask.PRIMARY, HashOption.ALL)
    assert site.to_bytes().hex() == SITE_HEX
    assert Site.from_bytes(bytes.fromhex(SITE_HEX)) == site
    assert site.servers[0].key is None
    assert site.to_json()["servers"][0]["publicKey"] == {"format": "base64", "value": "AQID"}  # type: ignore[index]


def test_vector_21_2_of_a_file_of_values() -> None:
    assert values_to_bytes((WITH_REFERENCE,)).hex() == ROOT_INFO_HEX
    assert values_from_bytes(bytes.fromhex(ROOT_INFO_HEX), NOW) == (WITH_REFERENCE,)

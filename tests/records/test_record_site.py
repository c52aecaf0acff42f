"""Sites: the fields that clients use, and all forms of their JSON."""

from typing import Any

import pytest

from perseid.records.errors import InvalidData, RecordMisuse
from perseid.records.keys import PublicKey
from perseid.records.partition import HashOption
from perseid.records.site import Attribute, Interface, PrimaryMask, Purpose, Server, Site, Transport
from tests.vector_files import read_bytes

KEY = read_bytes("keys/rsapub.bin")
BOTH = Purpose.ADMIN | Purpose.QUERY
TCP = Interface(BOTH, Transport.TCP, 2641)
UDP = Interface(Purpose.QUERY, Transport.UDP, 2641)
SERVER = Server(1, bytes(12) + bytes([192, 0, 2, 1]), b"\1\2\3", (TCP, UDP))
SITE = Site((SERVER,), (Attribute("desc", b"x"),), serial=5, primary=PrimaryMask.PRIMARY)
PLAIN_SERVER = {
    "serverId": 1,
    "address": "192.0.2.1",
    "publicKey": {"format": "hex", "value": "010203"},
    "interfaces": [
        {"query": True, "admin": True, "protocol": "TCP", "port": 2641},
        {"query": True, "admin": False, "protocol": "UDP", "port": 2641},
    ],
}


def with_server(**changes: object) -> dict[str, Any]:
    return {"servers": [PLAIN_SERVER | changes]}


def with_interface(**changes: object) -> dict[str, Any]:
    return with_server(interfaces=[{"protocol": "TCP", "port": 1} | changes])


def test_only_servers_are_required() -> None:
    site = Site.from_json({"servers": []})
    assert site == Site((), serial=0)
    assert (site.version, site.protocol_version, site.hash_option) == (1, (2, 11), HashOption.ALL)
    assert not site.is_primary
    with pytest.raises(InvalidData, match='no "servers"'):
        Site.from_json({"version": 1})


def test_default_members_are_omitted() -> None:
    assert list(SITE.to_json()) == [
        *("version", "protocolVersion", "serialNumber", "primarySite", "multiPrimary", "attributes", "servers")
    ]
    other = Site((), hash_option=HashOption.PREFIX, hash_filter=b"x")
    assert list(other.to_json())[5:7] == ["hashOption", "hashFilter"]
    assert (other.to_json()["hashOption"], other.to_json()["hashFilter"]) == (0, "x")


def test_unusual_fields_have_extended_json_members() -> None:
    odd = Site(
        (Server(1, bytes(16), b"", (Interface(Purpose(0x84), Transport(9), -1),)),),
        (Attribute("a", b"\xff"),),
        primary=PrimaryMask(0xC1),
        hash_filter=b"\xff",
        hash_option=HashOption(9),
        protocol_version=(255, 0),
        version=-3,
    )
    plain: Any = odd.to_json()
    assert plain["primaryMask"] == 0xC1
    assert plain["hashFilter"] == plain["attributes"][0]["value"] == {"format": "base64", "value": "/w=="}
    assert plain["servers"][0]["interfaces"] == [
        {"query": False, "admin": False, "protocol": 9, "port": -1, "type": 0x84}
    ]
    assert Site.from_json(plain) == odd


@pytest.mark.parametrize(
    ("argument", "pairs"),
    [
        ([{"name": "a", "value": "1"}, {"name": "a", "value": "2"}], [("a", b"1"), ("a", b"2")]),
        ({"a": "1", "b": ["2", "é"], "c": []}, [("a", b"1"), ("b", b"2"), ("b", "é".encode())]),
        ([{"Name": "a", "Value": "1"}], [("a", b"1")]),
        ([], []),
        (None, []),
    ],
)
def test_attributes_are_an_array_or_an_object(argument: object, pairs: list[tuple[str, bytes]]) -> None:
    site = Site.from_json({"servers": [], "attributes": argument})
    assert [(one.name, one.value) for one in site.attributes] == pairs


def test_legacy_member_names_and_hexadecimal_keys_are_accepted() -> None:
    old = {
        "Version": 1,
        "ProtocolVersion": "2.11",
        "SerialNumber": 5,
        "PrimarySite": True,
        "MultiPrimary": False,
        "HashOption": 2,
        "Attributes": {"desc": "x"},
        "ServerList": [
            {
                "ServerId": 1,
                "Address": "192.0.2.1",
                "PublicKey": "010203",
                "InterfaceList": [
                    {"Query": True, "Admin": True, "Protocol": "TCP", "Port": 2641},
                    {"Query": True, "Protocol": "udp", "Port": "2641"},
                ],
            }
        ],
    }
    assert Site.from_json(old) == SITE
    renamed = PLAIN_SERVER | {"interfaceList": PLAIN_SERVER["interfaces"]}
    del renamed["interfaces"]
    assert Site.from_json({"serverList": [renamed]}).servers == (SERVER,)


def test_keys_are_accepted_in_four_formats() -> None:
    key = PublicKey.from_bytes(KEY)
    for argument in (
        {"format": "key", "value": key.to_json()},
        {"format": "KEY", "value": key.to_json()},
        {"Format": "hex", "Value": KEY.hex().upper()},
        {"format": "base64", "value": Server(1, bytes(16), KEY + b"x").to_json()["publicKey"]["value"]},  # type: ignore[index]
        KEY.hex(),
    ):
        found = Site.from_json(with_server(publicKey=argument)).servers[0].public_key
        assert found.removesuffix(b"x") == KEY
    assert Server(1, bytes(16), KEY).key == key


def test_key_that_would_not_round_trip_is_written_in_base64() -> None:
    # Without the four zeros, which readers ignore: the same key, but not the same bytes.
    plain = Server(1, bytes(16), KEY[:-4]).to_json()
    assert plain["publicKey"]["format"] == "base64"  # type: ignore[index]
    assert Server(1, bytes(16), KEY).to_json()["publicKey"]["format"] == "key"  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("192.0.2.1", "00000000000000000000000 0c0000201".replace(" ", ""), "192.0.2.1"),
        ("0.0.0.0", "0" * 32, "0.0.0.0"),
        ("::", "0" * 32, "0.0.0.0"),
        ("::1", "0" * 31 + "1", "0.0.0.1"),
        ("2001:DB8::1", "20010db8000000000000000000000001", "2001:db8::1"),
        ("::ffff:192.0.2.1", "00000000000000000000ffffc0000201", "::ffff:192.0.2.1"),
    ],
)
def test_ipv4_address_follows_twelve_zeros(text: str, address: str, written: str) -> None:
    server = Site.from_json(with_server(address=text)).servers[0]
    assert server.address.hex() == address
    assert server.to_json()["address"] == written


@pytest.mark.parametrize(
    ("argument", "serial"), [(5, 5), ("5", 5), (-1, -1), (65_535, -1), (32_768, -32_768), (32_767, 32_767)]
)
def test_serial_numbers_have_sixteen_bits(argument: object, serial: int) -> None:
    site = Site.from_json({"servers": [], "serialNumber": argument})
    assert site.serial == serial
    assert Site.from_bytes(site.to_bytes()) == site


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {"servers": None},
        {"servers": {}},
        {"servers": [None]},
        {"servers": [PLAIN_SERVER, None]},
        {"servers": [], "serialNumber": 65_536},
        {"servers": [], "version": 40_000},
        {"servers": [], "protocolVersion": 2.11},
        {"servers": [], "protocolVersion": "2"},
        {"servers": [], "protocolVersion": "2.256"},
        {"servers": [], "protocolVersion": "2.11.1"},
        {"servers": [], "primarySite": "true"},
        {"servers": [], "primaryMask": 256},
        {"servers": [], "hashOption": -1},
        {"servers": [], "hashFilter": 1},
        {"servers": [], "attributes": "x"},
        {"servers": [], "attributes": [None]},
        {"servers": [], "attributes": [{"name": "x"}]},
        {"servers": [], "attributes": [{"name": 1, "value": "x"}]},
        {"servers": [], "attributes": {"x": [None]}},
        {"servers": [], "attributes": {"x": None}},
        with_server(serverId=None),
        with_server(serverId=1 << 31),
        with_server(address="localhost"),
        with_server(address="fe80::1%eth0"),
        with_server(address="192.0.2.256"),
        with_server(address=1),
        with_server(publicKey=None),
        with_server(publicKey={}),
        with_server(publicKey={"format": "key", "value": {}}),
        with_server(publicKey={"format": "rot13", "value": "x"}),
        with_server(publicKey="0"),
        with_server(publicKey="xx"),
        with_server(interfaces=None),
        with_server(interfaces=[None]),
        with_interface(protocol="SCTP"),
        with_interface(protocol=256),
        with_interface(protocol=None),
        with_interface(protocol="\ud800"),
        with_interface(port=None),
        with_interface(port="x"),
        with_interface(query="yes"),
        with_interface(type=256),
    ],
)
def test_invalid_json_is_refused(plain: object) -> None:
    with pytest.raises(InvalidData):
        Site.from_json(plain)


def test_trailing_comma_is_refused() -> None:
    for text in ('{"servers":[],}', '{"servers":[null]}', '{"servers":[,]}'):
        with pytest.raises(InvalidData):
            Site.from_text(text)


def test_file_is_binary_unless_it_is_printable_text() -> None:
    assert Site.from_file(SITE.to_bytes()) == SITE
    assert Site.from_file(SITE.to_text().encode()) == SITE
    assert Site.from_file(b"\xef\xbb\xbf" + SITE.to_text().encode()) == SITE
    for contents in (b"", b"{}", b"{\0}", b"\xff", SITE.to_text().encode() + b"\0"):
        with pytest.raises(InvalidData):
            Site.from_file(contents)


def test_interfaces_are_found_by_protocol_and_purpose() -> None:
    assert SERVER.interface(Transport.TCP, Purpose.ADMIN) is TCP
    assert SERVER.interface(Transport.UDP, Purpose.QUERY) is UDP
    assert SERVER.interface(Transport.UDP, Purpose.ADMIN) is None
    assert SERVER.interface(Transport.HTTP, Purpose.QUERY) is None
    off = Server(1, bytes(16), b"", (Interface(Purpose(0), Transport.TCP, 1),))
    assert off.interface(Transport.TCP, Purpose.QUERY) is None


def test_attributes_are_found_by_name() -> None:
    site = Site((), (Attribute("a", b"1"), Attribute("a", b"2"), Attribute("b", b"\xff")))
    assert site.attribute("a") == "1"
    assert site.attribute("b") is None
    assert site.attribute("c") is None


def test_constructor_refuses_a_site_that_cannot_be_encoded() -> None:
    with pytest.raises(RecordMisuse, match="16 bytes"):
        Server(1, b"\x7f\0\0\1", b"")
    with pytest.raises(RecordMisuse, match="must fit in one byte"):
        Site((), protocol_version=(2, 256))
    with pytest.raises(RecordMisuse):
        Site((), serial=40_000).to_bytes()

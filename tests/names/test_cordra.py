"""CORDRA identifiers: numeric authority, 32 hexadecimal digits, unchanged query and fragment."""

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names import cordra
from perseid.names.cordra import CordraName, CordraScheme
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, parse_uri
from tests.names.support import NOON, FakeClock, attempt, error_fields, misuse_error, name_error
from tests.strategies import authorities, hexadecimal, queries, utf_8_texts

PATH = "F58FB49EB1F848F0A606E84CEF294BE5"


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("2000.01/EEF4DF17361A42E2B975E554663B70C3", "2000.01/EEF4DF17361A42E2B975E554663B70C3"),
        ("2000.01/FFEE9F72B00C4189B137ECD34188B94E", "2000.01/FFEE9F72B00C4189B137ECD34188B94E"),
        ("100.102/F58FB49EB1F848f0A606E84CEF294BE5", f"100.102/{PATH}"),
        (f"100.102/{PATH.lower()}", f"100.102/{PATH}"),
        (f"0/{'0' * 32}", f"0/{'0' * 32}"),
    ],
)
def test_c1_c2_c4_vectors_are_valid_and_normalize_to_uppercase(name: str, normal: str) -> None:
    handle = Handle.parse(name)
    CordraScheme().validate(handle)
    assert str(CordraScheme().normalize(handle)) == normal
    assert CordraName.parse(handle).path == normal.partition("/")[2]


@pytest.mark.parametrize(
    ("prefix", "suffix", "rule", "position", "character"),
    [
        ("10.x", PATH, "C1", 3, "x"),
        ("10.\u0661", PATH, "C1", 3, "\u0661"),
        ("10..1", PATH, "C1", 3, "."),
        (".10", PATH, "C1", 0, "."),
        ("10.", PATH, "C1", 2, "."),
        ("10.1", PATH[:-1], "C2", 5 + 31, None),
        ("10.1", PATH + "0", "C2", 5 + 32, None),
        ("10.1", PATH[:-1] + "G", "C2", 5 + 31, "G"),
        ("10.1", "f58fb49e-b1f8-48f0-a606-e84cef294be5", "C2", 5 + 8, "-"),
        ("10.1", PATH[:4] + "\uff21" + PATH[5:], "C2", 5 + 4, "\uff21"),
        ("10.1", "?q", "C2", 5, None),
        ("10.1", PATH + "/x", "C2", 5 + 32, "/"),
        ("10.1", PATH + "?a b", "C2", 5 + 34, " "),
        ("10.1", PATH + "?%zz", "C2", 5 + 33, "%"),
        ("10.1", PATH + "?a%4", "C2", 5 + 34, "%"),
        ("10.1", PATH + "#é", "C2", 5 + 33, "é"),
        ("10.1", PATH + "?a#b#c", "C2", 5 + 36, "#"),
        ("10.1", PATH + "\n", "C2", 5 + 32, "\n"),
    ],
)
def test_c1_c2_invalid_cordra_identifier_is_refused_with_its_position(
    prefix: str, suffix: str, rule: str, position: int, character: str | None
) -> None:
    handle = Handle(prefix, suffix)
    for method in (CordraName.parse, CordraScheme().validate, CordraScheme().normalize, CordraScheme().describe):
        assert error_fields(name_error(method, handle)) == (rule, position, character)


@pytest.mark.parametrize(
    ("tail", "query", "fragment"),
    [
        ("", None, None),
        ("?", "", None),
        ("#", None, ""),
        ("?aB=%c3/?", "aB=%c3/?", None),
        ("?q#fG", "q", "fG"),
        ("#f?x/", None, "f?x/"),
    ],
)
def test_c2_c4_query_and_fragment_are_parsed_and_unchanged(tail: str, query: str | None, fragment: str | None) -> None:
    name = CordraName.parse(Handle("100.102", PATH.lower() + tail))
    assert name == CordraName("100.102", PATH, query, fragment)
    assert name.handle == Handle("100.102", PATH + tail)
    assert name.bare == Handle("100.102", PATH)
    assert CordraScheme().describe(name.handle) == {
        "path": PATH,
        "query": query,
        "fragment": fragment,
        "uuid": "f58fb49e-b1f8-48f0-a606-e84cef294be5",
    }


def test_u6_join_reference_adds_query_and_fragment_to_the_handle() -> None:
    reference = parse_uri(f"hdl:100.102/{PATH}?a=%41#B")
    assert reference.handle == Handle("100.102", PATH)
    joined = cordra.join_reference(reference)
    assert joined == Handle("100.102", f"{PATH}?a=%41#B")
    assert CordraName.parse(joined).query == "a=%41"
    assert cordra.join_reference(Reference(Handle("100.102", PATH))) == Handle("100.102", PATH)
    for whole in (reference, Reference(joined)):
        assert cordra.split_reference(whole) == Reference(Handle("100.102", PATH), "a=%41", "B")


def test_c3_version_4_is_the_default_and_all_but_six_bits_are_random() -> None:
    for byte in (0x00, 0xFF, 0xA5):
        (path,) = CordraScheme().mint(FakeClock().source(byte))
        uuid = UUID(path)
        assert (uuid.version, uuid.variant) == (4, RFC_4122)
        fixed = 0xF << 76 | 0x3 << 62
        assert uuid.int & ~fixed == int.from_bytes(bytes([byte] * 16), "big") & ~fixed


@pytest.mark.parametrize("byte", [0x00, 0xFE, 0xFF])
def test_c3_version_1_has_the_time_and_a_random_multicast_node(byte: int) -> None:
    (path,) = CordraScheme(version=1).mint(FakeClock().source(byte))
    uuid = UUID(path)
    assert (uuid.version, uuid.variant) == (1, RFC_4122)
    assert uuid.time == NOON * 10_000 + 0x01B21DD213814000
    assert uuid.node >> 40 & 1, "the multicast bit is set"
    assert uuid.node == int.from_bytes(bytes([byte] * 6), "big") | 1 << 40
    assert uuid.clock_seq == (byte << 8 | byte) & 0x3FFF


def test_c3_minted_paths_are_valid_uppercase_without_hyphens() -> None:
    for scheme in (CordraScheme(), CordraScheme(version=1)):
        minted = scheme.mint(FakeClock().source(0xAB), 3)
        assert len(minted) == 3
        for path in minted:
            handle = Handle("100.102", path)
            assert scheme.normalize(handle) == handle
            assert "-" not in path
    assert CordraScheme().mint(FakeClock().source(), 0) == []


def test_c3_other_uuid_versions_are_misuse() -> None:
    for version in (0, 2, 7, "4"):
        assert misuse_error(CordraScheme, version).rule == "C3"


@given(authorities(), hexadecimal(32), queries(), queries())
def test_c1_c2_c4_parse_and_handle_are_inverse(
    authority: str, path: str, query: str | None, fragment: str | None
) -> None:
    handle = cordra.join_reference(Reference(Handle(authority, path), query, fragment))
    name = CordraName.parse(handle)
    assert name == CordraName(authority, path.upper(), query, fragment)
    assert CordraName.parse(name.handle) == name
    assert CordraScheme().normalize(handle) == CordraScheme().normalize(CordraScheme().normalize(handle)) == name.handle


@given(authorities() | utf_8_texts(), utf_8_texts() | st.builds(str.__add__, hexadecimal(32), utf_8_texts()))
def test_c2_arbitrary_suffix_is_refused_with_a_position_or_unchanged(prefix: str, suffix: str) -> None:
    handle = Handle(prefix.replace("/", "") or "1", suffix or "x")
    answer = attempt(CordraName.parse, handle)
    if isinstance(answer, InvalidName):
        assert answer.position is not None
        assert answer.character in {None, f"{handle} "[answer.position]}
    else:
        assert str(answer.handle).upper() == str(handle).upper()


@pytest.mark.parametrize(
    "handle",
    [
        Handle("10.x", "0" * 32),
        Handle("10.1", "x"),
        Handle("10.1", "0" * 32 + "?own"),
        Handle("10.1", "0" * 32 + "#own"),
    ],
)
def test_u6_query_and_fragment_join_only_a_bare_cordra_identifier(handle: Handle) -> None:
    problem = name_error(cordra.join_reference, Reference(handle, "q"))
    assert problem.rule in {"C1", "C2"}
    assert problem.position is not None
    assert problem.character == str(handle)[problem.position]
    if "own" in handle.suffix:
        assert problem.position == 5 + 32


@pytest.mark.parametrize(
    ("authority", "path", "query", "fragment"),
    [
        ("10.x", PATH, None, None),
        ("10..1", PATH, None, None),
        ("", PATH, None, None),
        ("10.1", PATH.lower(), None, None),
        ("10.1", PATH[:-1], None, None),
        ("10.1", PATH + "\n", None, None),
        ("10.1", PATH, "a b", None),
        ("10.1", PATH, "%4", None),
        ("10.1", PATH, "a#b", None),
        ("10.1", PATH, "q", "é"),
        ("10.1", PATH, None, "\ud800"),
    ],
)
def test_c1_c2_c4_constructor_refuses_invalid_cordra_identifier(
    authority: str, path: str, query: str | None, fragment: str | None
) -> None:
    assert misuse_error(CordraName, authority, path, query, fragment).rule == "C2"


def test_u6_joined_handle_obeys_the_length_limit() -> None:
    bare = Handle("10.1", "0" * 32)
    available = 2048 - len(str(bare)) - 1
    assert len(str(cordra.join_reference(Reference(bare, "q" * available)))) == 2048
    assert name_error(cordra.join_reference, Reference(bare, "q" * (available + 1))).rule == "H9"

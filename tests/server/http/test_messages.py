"""Names in paths, parameters in queries, and headers of responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.http.messages import (
    MAX_PARAMETERS,
    BadRequest,
    Name,
    Parameters,
    Response,
    encode_path,
    is_api,
    parse_name,
    percent_decode,
)
from tests.strategies import handles

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(TEXTS)
def test_name_in_path_round_trips(name: str) -> None:
    path = encode_path(name)
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(' "<>\\^`{|}#?')
    assert parse_name(path.encode()) == Name(name)


@given(handles())
def test_path_normalization_keeps_name(handle: object) -> None:
    steps = encode_path(str(handle)).split("/")
    assert not {"", ".", ".."} & set(steps)


@given(TEXTS)
def test_name_may_be_fully_percent_encoded(name: str) -> None:
    path = "".join(f"%{octet:02x}" for octet in name.encode())
    assert parse_name(path.encode()) == Name(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("12345/a/b%20c", "12345/a/b c"),
        ("12345%2Fa%2fb", "12345/a/b"),
        ("12345//x", "12345//x"),
        ("12345/./../x/", "12345/./../x/"),
        ("12345/a+b;c=1&d", "12345/a+b;c=1&d"),
        ("12345/a%2Bb%3Fc%23", "12345/a+b?c#"),
        ("12345/100%", "12345/100%"),
        ("12345/%2541", "12345/%41"),
        ('12345/a|b\\c"d<e>[f]', '12345/a|b\\c"d<e>[f]'),
        ("", ""),
    ],
)
def test_path_is_decoded_once(path: str, name: str) -> None:
    assert parse_name(path.encode()) == Name(name)


def test_raw_bytes_are_utf_8() -> None:
    assert parse_name("12345/ü".encode()) == Name("12345/ü")


@pytest.mark.parametrize("path", [b"12345/%FF", b"12345/\xff", b"12345/%C3", b"12345/%ED%A0%80"])
def test_invalid_utf_8_is_marked(path: bytes) -> None:
    name = parse_name(path)
    assert not name.is_text
    assert "\ufffd" in name.text


@pytest.mark.parametrize("path", [b"12345/%zz", b"12345/%4"])
def test_invalid_escape_is_refused(path: bytes) -> None:
    with pytest.raises(BadRequest, match="as %25") as refused:
        parse_name(path)
    assert (refused.value.status, refused.value.code) == (400, 4)


@pytest.mark.parametrize("path", [b"12345/%%41", b"12345/%4/x", b"12345/%u0041", b"%%"])
def test_other_encodings_are_not_guessed(path: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_name(path)


@pytest.mark.parametrize("path", [b"12345/a%00b", b"12345/\0"])
def test_nul_is_refused(path: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^the path contains NUL \(%00\), which is not allowed in names$"):
        parse_name(path)


@given(st.binary())
def test_decoding_never_fails(octets: bytes) -> None:
    assert len(percent_decode(octets)) <= len(octets)


@given(st.binary(max_size=200))
def test_any_query_is_parsed(query: bytes) -> None:
    for name, value in Parameters.parse(query).pairs:
        assert (name + value).encode("utf-8", "strict") is not None  # no half of a surrogate pair


def test_plus_is_a_space_and_ampersand_separates() -> None:
    found = Parameters.parse(b"type=a+b%2Bc&x;y=1&&index=1&index=2&=z&type=%E6%97%A5")
    assert found.pairs == (
        ("type", "a b+c"),
        ("x;y", "1"),
        ("index", "1"),
        ("index", "2"),
        ("", "z"),
        ("type", "日"),
    )
    assert found.first("type") == "a b+c"
    assert found.numbers("index") == [1, 2]
    assert "index" in found
    assert "Index" not in found


@pytest.mark.parametrize(
    ("query", "flag"),
    [
        ("", False),
        ("pretty", True),
        ("pretty=", True),
        ("pretty=TRUE", True),
        ("pretty=Yes", True),
        ("pretty=1", False),
        ("pretty=false", False),
        ("pretty=no&pretty=true", False),
    ],
)
def test_flags(query: str, flag: bool) -> None:
    assert Parameters.parse(query.encode()).flag("pretty") is flag


@pytest.mark.parametrize("text", ["", "abc", "1.5", "2147483648", "-2147483649", "1" * 5_000, "٣", "0x1", "1_0", " 1"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="index must be a 32-bit integer"):
        Parameters((("index", text),)).numbers("index")


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_every_32_bit_number_is_parsed(number: int) -> None:
    assert Parameters((("index", str(number)),)).number("index") == number


def test_too_many_parameters_are_refused() -> None:
    assert len(Parameters.parse(b"&".join([b"a"] * MAX_PARAMETERS)).pairs) == MAX_PARAMETERS
    with pytest.raises(BadRequest, match=r"^too many parameters; the maximum is 10,000$"):
        Parameters.parse(b"&".join([b"a"] * (MAX_PARAMETERS + 1)))


@pytest.mark.parametrize(("path", "is_it"), [(b"/api", True), (b"/api/x", True), (b"/apix", False), (b"/API/x", False)])
def test_api_path(path: bytes, is_it: bool) -> None:
    assert is_api(path) is is_it


def test_header_is_printable_latin_1() -> None:
    for character in map(chr, [*range(0x3000), 0xFFFD, 0x10000]):
        headers = (("Location", "/x"), ("X-Name", f"a{character}b"))
        if character.isprintable() and character <= "\xff":
            assert Response(200, headers).with_headers(("X-Name", character)).headers[:-1] == headers
        else:
            with pytest.raises(ValueError, match=r"^the header X-Name has a control character, or one beyond Latin-1$"):
                Response(200, headers)

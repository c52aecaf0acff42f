"""Names as people type and paste them: every form, typos, and bare handles read literally."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import (
    KNOWN_RESOLVERS,
    MAX_ENCODED_LENGTH,
    Reference,
    Resolver,
    parse_user_input,
    to_host,
    to_http,
    to_path,
)
from tests.names.support import attempt, error_fields, name_error
from tests.strategies import BLANK, handles, references, texts

BLANKS = st.text(st.sampled_from([*sorted(BLANK), "\t", "\r", "\n"]), max_size=4)


@pytest.mark.parametrize(
    "text",
    [
        "10.1/a/b",
        "hdl:10.1/a/b",
        "HDL:10.1/a/b",
        "hdl:/10.1/a/b",
        "hdl://10.1/a/b",
        "hdl: 10.1/a/b",
        "hdl:10.1/a%2Fb",
        "hdl:10.1/a%2fb",
        "hdl:10.1%2Fa%2Fb",
        "https://doi.org/10.1%2fa%2Fb",
        "https://doi.org/10.1%2Fa/b",
        "urn:hdl:10.1:a/b",
        "URN:DOI:10.1/a/b",
        "doi:10.1/a/b",
        "DOI: 10.1/a/b",
        "doi:/10.1/a/b",
        "info:hdl/10.1/a/b",
        "info:doi/10.1/a/b",
        "INFO:HDL/10.1/a/b",
        "http://hdl.handle.net/10.1/a/b",
        "https://hdl.handle.net/10.1/a/b",
        "https://HDL.Handle.net:443/10.1/a%2Fb",
        "https://doi.org/10.1/a/b",
        "http://dx.doi.org/10.1/a/b",
        "http://hld.handle.net/10.1/a/b",
        "http://resolver.net.au/hdl/10.1/a/b",
        "http://arrow.resolver.au.gov:2641/hdl/10.1/a/b",
    ],
)
def test_u7_every_common_form_is_read_as_the_same_handle(text: str) -> None:
    for typed in (text, f"  {text}\n", f"\u3000{text}\t\u00a0", f"\ufeff{text}", f"\ufeff {text}\r\n"):
        assert parse_user_input(typed) == Reference(Handle("10.1", "a/b"))


@pytest.mark.parametrize("suffix", ["a?b", "a#b", "?q=1#f", "100%", "%41", "%2F", "%zz", "%FF", "a%252Fb", "a b", "é"])
def test_u7_bare_handle_is_read_literally(suffix: str) -> None:
    assert parse_user_input(f"10.1/{suffix}") == Reference(Handle("10.1", suffix))


@pytest.mark.parametrize(
    ("text", "suffix", "query", "fragment"),
    [
        ("hdl:10.1/%2541", "%41", None, None),
        ("hdl:10.1/a%252Fb", "a%2Fb", None, None),
        ("doi:10.1/%25zz", "%zz", None, None),
        ("https://doi.org/10.1/%25FF/x", "%FF/x", None, None),
        ("hdl:10.1/é%C3%A9 b", "éé b", None, None),
        ("hdl:10.1/[x]<y>", "[x]<y>", None, None),
        ("hdl:10.1/x?a=%41#f", "x", "a=%41", "f"),
        ("hdl:10.1/x?", "x", "", None),
        ("hdl:10.1/x#", "x", None, ""),
        ("hdl:10.1/x?a b#c#é", "x", "a%20b", "c%23%C3%A9"),
        ("hdl:10.1/a/b?c/d", "a/b", "c/d", None),
    ],
)
def test_u7_uri_form_is_decoded_once_and_its_query_and_fragment_are_encoded(
    text: str, suffix: str, query: str | None, fragment: str | None
) -> None:
    assert parse_user_input(text) == Reference(Handle("10.1", suffix), query, fragment)


@pytest.mark.parametrize(
    ("text", "rule", "position", "character"),
    [
        ("", "H1", 0, None),
        ("  \t ", "H1", 4, None),
        ("10.1", "H1", 4, None),
        ("  10.1/", "H1", 7, None),
        ("  10..1/x", "H2", 5, "."),
        (" 10.1/a\u202eb", "H3", 7, "\u202e"),
        ("10.1/" + "x" * 2044, "H9", 2048, "x"),
        ("\ufeff 10.1/a\u202eb", "H3", 8, "\u202e"),
        ("\ufeff hdl:10.1/%zz", "U5", 11, "%"),
        ("hdl:10.1", "H1", 8, None),
        (" hdl:10.1?a/b", "H1", 9, None),
        ("hdl:///10.1/x", "H1", 6, None),
        (" hdl:10.1/%41%zz", "U5", 13, "%"),
        (" hdl:10.1/é%C3%A9%FF", "U5", 17, "%"),
        (" doi:1%2F0/x", "H2", 6, "/"),
        (" doi:10.1/%41\x00", "H3", 13, "\x00"),
        (" hdl:10.1/\ud800%41", "H3", 10, "\ud800"),
        ("hdl:10.1/x?%", "U5", 11, "%"),
        ("hdl:10.1/x?a#%4", "U5", 13, "%"),
        (" hdl:10.1/x?a\ud800", "H4", 13, "\ud800"),
        (" hdl:10.1/x?a#\udfffb", "H4", 14, "\udfff"),
        ("hdl:10.1/" + "x" * 2044, "H9", 2052, "x"),
        (" http://elsewhere.org/10.1/x", "U4", 1, None),
        ("https://doi.org", "U4", 0, None),
        (" https://doi.org/10.1/%C3%A9%0A", "H3", 28, "\n"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_u7_every_error_has_its_position_in_the_input(
    text: str, rule: str, position: int | None, character: str | None
) -> None:
    assert error_fields(name_error(parse_user_input, text)) == (rule, position, character)


@pytest.mark.parametrize("for_lookup", [False, True])
@pytest.mark.parametrize("start", ["hdl:", "hdl://", "doi: ", "info:hdl/", "urn:hdl:", "https://doi.org/"])
@pytest.mark.parametrize(
    ("piece", "end"), [("%2F", "/x"), ("%2F", ""), ("a/", "%2F"), ("%2F%", "/x"), ("%", "/"), ("10.1", ""), ("é", "/x")]
)
def test_h9_u7_long_uri_is_refused_before_it_is_searched(start: str, piece: str, end: str, for_lookup: bool) -> None:
    """By its length alone, whatever else is wrong: untrusted text can be arbitrarily long."""
    for length in (MAX_ENCODED_LENGTH + 1, 1_000_000):
        path = (piece * length)[: length - len(end)] + end
        with pytest.raises(InvalidName) as caught:
            parse_user_input(f" {start}{path}?q", for_lookup=for_lookup)
        assert (caught.value.rule, caught.value.position) == ("H9", 1 + len(start) + MAX_ENCODED_LENGTH)


def test_h9_u7_longest_handle_can_be_fully_escaped() -> None:
    handle = Handle("\u00e9" * 500, "\u20ac" * 349)
    assert len(handle.to_bytes()) == 2_048
    escaped = "".join(f"%{byte:02X}" for byte in handle.to_bytes())
    assert len(escaped) == MAX_ENCODED_LENGTH
    for uri in (f"hdl:{escaped}", f"https://doi.org/{escaped}?{'q' * 9_000}"):
        assert parse_user_input(uri).handle == handle


def test_u7_error_names_an_unknown_resolver_and_resolvers_can_be_added() -> None:
    text = "https://id.example.org/hdl/10.1/a/b"
    assert "id.example.org" in name_error(parse_user_input, text).message
    assert parse_user_input(text, [Resolver.parse("https://id.example.org/hdl")]).handle == Handle("10.1", "a/b")


@pytest.mark.parametrize("text", ["http\u017f://doi.org/10.1/x", "\u0131nfo:hdl/10.1/x"], ids=ascii)
def test_u7_non_ascii_letters_do_not_form_a_uri_scheme(text: str) -> None:
    assert str(parse_user_input(text).handle) == text


@given(handles(), BLANKS, BLANKS)
def test_u7_every_legal_bare_handle_is_read_literally(handle: Handle, before: str, after: str) -> None:
    name = str(handle).lower()
    assume(not name.startswith(("hdl:", "doi:", "info:hdl/", "info:doi/", "http://", "https://", "\ufeff")))
    assert parse_user_input(f"{before}{handle}{after}") == Reference(handle)


@given(references(), st.sampled_from(KNOWN_RESOLVERS))
def test_u7_u8_user_input_accepts_every_generated_uri(reference: Reference, resolver: Resolver) -> None:
    for uri in (to_host(reference), to_path(reference), to_http(reference, resolver)):
        assert parse_user_input(f" {uri}\n") == reference


@pytest.mark.parametrize(
    ("text", "prefix", "suffix"),
    [
        ("hdl:10..1/a%E2%80%AEb", "10..1", "a\u202eb"),
        ("https://doi.org/10.1/x%20", "10.1", "x "),
        ("10..1/\U0001f600", "10..1", "\U0001f600"),
    ],
)
def test_u7_illegal_name_can_be_looked_up(text: str, prefix: str, suffix: str) -> None:
    assert parse_user_input(text, for_lookup=True) == Reference(Handle(prefix, suffix))
    name_error(parse_user_input, text)


@pytest.mark.parametrize("text", ["10.1", "hdl:10.1/", "hdl:10.1/%zz", "https://elsewhere.org/10.1/x", "10.1/\ud800"])
def test_u7_lookup_still_checks_the_syntax(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_user_input(text, for_lookup=True)


@given(texts())
def test_u7_arbitrary_text_is_refused_or_read_as_a_legal_handle(text: str) -> None:
    answer = attempt(parse_user_input, text)
    if isinstance(answer, InvalidName):
        assert answer.position is None or 0 <= answer.position <= len(text)
    else:
        assert Handle.parse(str(answer.handle)) == answer.handle
        assert parse_user_input(to_path(answer)) == answer

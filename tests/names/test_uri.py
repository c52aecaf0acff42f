"""Handles in URIs: three forms, strict grammar, exact inverse."""

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid import names
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri, to_host, to_http, to_path
from tests.names.support import attempt, error_fields, misuse_error, name_error
from tests.strategies import LEGAL, imported_handles, references, texts

CORDRA = "100.102/F58FB49EB1F848f0A606E84CEF294BE5"
PILIN = "102.100.272/0N8J991QH"
PLAIN = Resolver.parse("http://hld.handle.net")
SEGMENT = Resolver.parse("http://arrow.resolver.au.gov:2641/hdl")
AUSTRALIAN = Resolver.parse("http://resolver.net.au/hdl")
RESOLVERS = (PLAIN, SEGMENT, AUSTRALIAN)

# Handle, host form, path form, rest of the HTTP form.
FORMS = [
    (CORDRA, f"hdl://{CORDRA}", f"hdl:{CORDRA}", CORDRA),
    ("10.1/a/b?c#d%e f", "hdl://10.1/a%2Fb%3Fc%23d%25e%20f", "hdl:10.1/a%2Fb%3Fc%23d%25e%20f", None),
    ("10.1/é漢", "hdl://10.1/%C3%A9%E6%BC%A2", "hdl:10.1/%C3%A9%E6%BC%A2", None),
    ("10.1/-._~!$&'()*+,;=:@", "hdl://10.1/-._~!$&'()*+,;=:@", "hdl:10.1/-._~!$&'()*+,;=:@", None),
    ('10.1/"<>[\\]^`{|}', "hdl://10.1/%22%3C%3E%5B%5C%5D%5E%60%7B%7C%7D", None, None),
    ("a:b@c/x", "hdl://a%3Ab%40c/x", "hdl:a:b@c/x", "a:b@c/x"),
    ("10.1/%2F", "hdl://10.1/%252F", "hdl:10.1/%252F", "10.1/%252F"),
    ("10.1//", "hdl://10.1/%2F", "hdl:10.1/%2F", "10.1/%2F"),
    ("10.1/..", "hdl://10.1/%2E%2E", "hdl:10.1/..", "10.1%2F.."),
    ("10.1/.", "hdl://10.1/%2E", "hdl:10.1/.", "10.1%2F."),
    ("10.1/a/../.", "hdl://10.1/a%2F..%2F.", "hdl:10.1/a%2F..%2F.", "10.1/a%2F..%2F."),
]


@pytest.mark.parametrize(("name", "host", "path", "rest"), FORMS)
def test_u2_u3_u4_u5_u8_every_form_is_written_and_read_back(
    name: str, host: str, path: str | None, rest: str | None
) -> None:
    reference = Reference(Handle.parse(name))
    path = path or host.replace("hdl://", "hdl:")
    rest = rest or path.removeprefix("hdl:")
    assert to_host(reference) == host
    assert to_path(reference) == path
    assert to_http(reference, PLAIN) == f"http://hld.handle.net/{rest}"
    assert to_http(reference, SEGMENT) == f"http://arrow.resolver.au.gov:2641/hdl/{rest}"
    for uri in (host, path, to_http(reference, PLAIN), to_http(reference, SEGMENT)):
        assert parse_uri(uri, RESOLVERS) == reference


@pytest.mark.parametrize(
    ("uri", "name", "write"),
    [
        (f"hdl://{CORDRA}", CORDRA, to_host),
        (f"hdl:{CORDRA}", CORDRA, to_path),
        (f"http://hld.handle.net/{CORDRA}", CORDRA, lambda reference: to_http(reference, PLAIN)),
        (f"http://arrow.resolver.au.gov:2641/hdl/{CORDRA}", CORDRA, lambda reference: to_http(reference, SEGMENT)),
        (f"http://resolver.net.au/hdl/{PILIN}", PILIN, lambda reference: to_http(reference, AUSTRALIAN)),
    ],
)
def test_u8_vectors_of_the_seed_documents_round_trip(uri: str, name: str, write: Callable[[Reference], str]) -> None:
    reference = parse_uri(uri, RESOLVERS)
    assert reference == Reference(Handle.parse(name))
    assert write(reference) == uri


@pytest.mark.parametrize("scheme", ["hdl", "HDL", "Hdl", "hDL"])
def test_u1_scheme_is_read_in_any_case_and_written_in_lowercase(scheme: str) -> None:
    for uri in (f"{scheme}:10.1/X", f"{scheme}://10.1/X"):
        reference = parse_uri(uri)
        assert reference.handle == Handle("10.1", "X")
        assert to_path(reference) == "hdl:10.1/X"
        assert to_host(reference) == "hdl://10.1/X"


@pytest.mark.parametrize(
    ("tail", "query", "fragment"),
    [
        ("", None, None),
        ("?", "", None),
        ("#", None, ""),
        ("?#", "", ""),
        ("?a=b", "a=b", None),
        ("#x", None, "x"),
        ("?a/b?c#d/e?f", "a/b?c", "d/e?f"),
        ("#a?b", None, "a?b"),
        ("?%41%FF#%2f", "%41%FF", "%2f"),
    ],
)
def test_u6_query_and_fragment_are_separate_and_unchanged(tail: str, query: str | None, fragment: str | None) -> None:
    for form in ("hdl:10.1/x", "hdl://10.1/x", "http://hld.handle.net/10.1/x"):
        reference = parse_uri(form + tail, RESOLVERS)
        assert reference == Reference(Handle("10.1", "x"), query, fragment)
        assert reference.tail == tail


@pytest.mark.parametrize("text", [CORDRA, "10.1/x", "//10.1/x", "doi:10.1/x", "info:hdl/10.1/x", "hdl", "", "urn:x/y"])
def test_u7_uri_requires_the_scheme(text: str) -> None:
    assert error_fields(name_error(parse_uri, text, RESOLVERS)) == ("U7", 0, None)


@pytest.mark.parametrize("text", ["http\u017f://hld.handle.net/10.1/x", "\u210edl:10.1/x"], ids=ascii)
def test_u1_u7_non_ascii_letters_do_not_form_a_scheme(text: str) -> None:
    assert name_error(parse_uri, text, RESOLVERS).rule == "U7"


@pytest.mark.parametrize(
    ("text", "rule", "position", "character"),
    [
        ("hdl:", "H1", 4, None),
        ("hdl:10.1", "H1", 8, None),
        ("hdl:10.1?q/x", "H1", 8, None),
        ("hdl:/10.1/x", "H1", 4, None),
        ("hdl:///x", "H1", 6, None),
        ("hdl:10.1/", "H1", 9, None),
        ("hdl:10.1/?q", "H1", 9, None),
        ("hdl://10.1/", "H1", 11, None),
        ("hdl:10.1/a/b", "U5", 10, "/"),
        ("hdl:10.1/%41/", "U5", 12, "/"),
        ("hdl:10..1/x", "H2", 7, "."),
        ("hdl:10%2E%2E1/x", "H2", 9, "."),
        ("hdl:1%2F0/x", "H2", 5, "/"),
        ("hdl:%C3%A91%2f0/x", "H2", 11, "/"),
        ("hdl:10.1/a b", "U5", 10, " "),
        ("hdl:10.1/é", "U5", 9, "é"),
        ("hdl:10.1/\ud800", "U5", 9, "\ud800"),
        ("hdl:10.1/[", "U5", 9, "["),
        ("hdl://a:1/x", "U5", 7, ":"),
        ("hdl://a@1/x", "U5", 7, "@"),
        ("hdl:10.1/x?a b", "U5", 12, " "),
        ("hdl:10.1/x?a#b#c", "U5", 14, "#"),
        ("hdl:10.1/x?%4", "U5", 11, "%"),
        ("hdl:10.1/x#%zz", "U5", 11, "%"),
        ("hdl:10.1/%", "U5", 9, "%"),
        ("hdl:10.1/%4", "U5", 9, "%"),
        ("hdl:10.1/%41%G1", "U5", 12, "%"),
        ("hdl:1%/x", "U5", 5, "%"),
        ("hdl:10.1/%FF", "U5", 9, "%"),
        ("hdl:10.1/%41b%C3%A9%FF", "U5", 19, "%"),
        ("hdl:10.1/%C3%A9x%C3", "U5", 16, "%"),
        ("hdl:10.1/%C0%AF", "U5", 9, "%"),
        ("hdl:10.1/%ED%A0%80", "U5", 9, "%"),
        ("hdl:%FF/x", "U5", 4, "%"),
        ("hdl:10.1/%00", "H3", 9, "\x00"),
        ("hdl:10.1/%41%C3%A9b%E2%80%AE", "H3", 19, "\u202e"),
        ("hdl:%C3%A9.1/%E6%BC%A2%F0%9F%98%80", "H3", 22, "\U0001f600"),
        ("hdl:10.1/%20x", "H3", 9, " "),
        ("hdl:10.1/%C3%A9%20", "H3", 15, " "),
        ("hdl:10.1/" + "x" * 2044, "H9", 2052, "x"),
        ("hdl:10.1/" + "%C3%A9" * 1022, "H9", 9 + 6 * 1021, "é"),
        ("hdl:10.1/a%?q", "U5", 10, "%"),
        ("hdl:10.1/%41%#q", "U5", 12, "%"),
        ("hdl://1%41%/x", "U5", 10, "%"),
        ("hdl:10.1/x?%41%#", "U5", 14, "%"),
        ("http://hld.handle.net/10%/x", "U5", 24, "%"),
        ("http://resolver.net.au\u212a/hdl/10.1/x", "U4", 0, None),
        ("http://elsewhere.org/10.1/x", "U4", 0, None),
        ("http://resolver.net.au/10.1/x", "U4", 0, None),
        ("http://resolver.net.au/HDL/10.1/x", "U4", 0, None),
        ("http://hld.handle.net", "U4", 0, None),
        ("http://hld.handle.net:8080/10.1/x", "U4", 0, None),
        ("http://hld.handle.net/10.1", "H1", 26, None),
        ("http://hld.handle.net/10.1/a%C3%A9%0A", "H3", 34, "\n"),
    ],
)
def test_u2_u3_u4_u5_u7_every_error_has_its_position_in_the_input(
    text: str, rule: str, position: int | None, character: str | None
) -> None:
    assert error_fields(name_error(parse_uri, text, RESOLVERS)) == (rule, position, character)


@given(
    st.sampled_from(["hdl:", "hdl://", "http://hld.handle.net/"]),
    st.lists(st.sampled_from(["%", "%4", "%41", "%zz", "a", "10.1", "/", "?", "#", "%C3%A9"]), max_size=9).map("".join),
    st.booleans(),
)
def test_u5_percent_sign_without_two_hexadecimal_digits_is_refused(form: str, rest: str, for_lookup: bool) -> None:
    """Possessive quantifiers over a group, which the parser once used, are broken in Python 3.11.0 to 3.11.4."""
    for text in (form + rest, f"{form}10.1/{rest}"):
        answer = attempt(partial(parse_uri, for_lookup=for_lookup), text, RESOLVERS)
        assert isinstance(answer, InvalidName) or not re.search("%(?![0-9A-Fa-f]{2})", text)


def test_u5_patterns_of_the_package_have_no_possessive_quantifiers() -> None:
    """They are broken around groups in Python 3.11.0 to 3.11.4; use atomic groups, which work in every version."""
    modules = [module for module in vars(names).values() if isinstance(module, ModuleType)]
    patterns = [each for module in modules for each in vars(module).values() if isinstance(each, re.Pattern)]
    assert len(patterns) > 15
    for pattern in patterns:
        quantifiers = re.sub(r"\\.|\[[^\]]*\]", "x", pattern.pattern)
        assert not re.search(r"[*+?}]\+", quantifiers), pattern


@pytest.mark.parametrize("letter", ["\u212a", "\u017f", "\u0130"], ids=ascii)
def test_u4_non_ascii_letters_do_not_match_a_host(letter: str) -> None:
    """Python lowercases the Kelvin sign to k and uppercases the long s to S."""
    known = [Resolver.parse("http://kis.example")]
    host = {"\u212a": "\u212ais", "\u017f": "ki\u017f", "\u0130": "k\u0130s"}[letter]
    assert parse_uri("http://KIS.example/10.1/x", known).handle == Handle("10.1", "x")
    assert name_error(parse_uri, f"http://{host}.example/10.1/x", known).rule == "U4"


@given(imported_handles(), st.sampled_from(RESOLVERS))
def test_h3_u5_u8_uris_of_every_imported_name_round_trip(handle: Handle, resolver: Resolver) -> None:
    reference = Reference(handle, "q", None)
    for uri in (to_host(reference), to_path(reference), to_http(reference, resolver)):
        assert parse_uri(uri, RESOLVERS, for_lookup=True) == reference


@pytest.mark.parametrize(
    ("text", "rule", "position"),
    [
        ("hdl:10.1", "H1", 8),
        ("hdl:10.1/", "H1", 9),
        ("hdl:1%2F0/x", "H2", 5),
        ("hdl:10.1/%FF", "U5", 9),
        ("hdl:10.1/a b", "U5", 10),
        ("hdl:10.1/" + "x" * 2044, "H9", 2052),
        ("10.1/x", "U7", 0),
    ],
)
def test_u5_lookup_still_checks_the_syntax(text: str, rule: str, position: int) -> None:
    problem = name_error(partial(parse_uri, for_lookup=True), text)
    assert (problem.rule, problem.position) == (rule, position)


def test_u5_error_shows_how_to_encode_the_character() -> None:
    assert "%C3%A9" in name_error(parse_uri, "hdl:10.1/é").message
    assert "%2F" in name_error(parse_uri, "hdl:10.1/a/b").message
    assert "cannot be encoded in UTF-8" in name_error(parse_uri, "hdl:10.1/\ud800").message


def test_u5_escapes_are_decoded_once_in_either_case_even_if_unnecessary() -> None:
    assert parse_uri("hdl:%31%30.1/%2f%2F%41%c3%A9%2541").handle == Handle("10.1", "//Aé%41")


@pytest.mark.parametrize("component", ["query", "fragment"])
@pytest.mark.parametrize("text", ["a b", "é", "#", "%", "%4", "%GG", "[", "\ud800"], ids=ascii)
def test_u5_constructor_refuses_an_unencoded_query_or_fragment(component: str, text: str) -> None:
    problem = misuse_error(Reference, Handle("10.1", "x"), **{component: text})
    assert problem.rule == "U5"
    assert component in problem.message


@given(references(), st.sampled_from(RESOLVERS))
def test_u2_u3_u4_u5_u8_decoding_is_the_exact_inverse_for_every_handle(
    reference: Reference, resolver: Resolver
) -> None:
    for uri in (to_host(reference), to_path(reference), to_http(reference, resolver)):
        assert uri.isascii()
        assert parse_uri(uri, RESOLVERS) == reference


def test_u5_every_legal_character_is_encoded_and_decoded_exactly() -> None:
    for character in LEGAL:
        reference = Reference(Handle("10.1", f"a{character}b"))
        assert parse_uri(to_path(reference)) == reference


@given(texts())
def test_u5_u7_arbitrary_text_is_refused_or_read_as_a_legal_handle(text: str) -> None:
    answer = attempt(parse_uri, text, RESOLVERS)
    if isinstance(answer, InvalidName):
        assert answer.position is None or 0 <= answer.position <= len(text)
    else:
        assert Handle.parse(str(answer.handle)) == answer.handle
        assert parse_uri(to_path(answer)) == answer

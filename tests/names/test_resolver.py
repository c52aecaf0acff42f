"""HTTP resolver declarations and the URLs that match them."""

import pytest
from hypothesis import given

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, match_resolver, parse_uri, to_http
from tests.names.support import attempt, error_fields, misuse_error, name_error
from tests.strategies import texts

HANDLE = Reference(Handle("10.1", "x"))


@pytest.mark.parametrize(
    ("text", "authority", "segment", "scheme", "written"),
    [
        ("https://hdl.handle.net", "hdl.handle.net", None, "https", None),
        ("https://hdl.handle.net/", "hdl.handle.net", None, "https", "https://hdl.handle.net"),
        ("HTTP://Example.ORG/hdl", "example.org", "hdl", "http", "http://example.org/hdl"),
        ("http://example.org/HDL/", "example.org", "HDL", "http", "http://example.org/HDL"),
        ("http://example.org:80/a:b@c%20", "example.org", "a:b@c%20", "http", "http://example.org/a:b@c%20"),
        ("https://example.org:443", "example.org", None, "https", "https://example.org"),
        ("https://example.org:80", "example.org:80", None, "https", None),
        ("http://example.org:443", "example.org:443", None, "http", None),
        ("http://[::1]:8000/hdl", "[::1]:8000", "hdl", "http", None),
        ("http://localhost:2641", "localhost:2641", None, "http", None),
        ("http://[::ffff:192.0.2.1]:65535", "[::ffff:192.0.2.1]:65535", None, "http", None),
        ("http://[2001:DB8::1]:1", "[2001:db8::1]:1", None, "http", "http://[2001:db8::1]:1"),
    ],
)
def test_u4_declaration_is_parsed_and_written_canonically(
    text: str, authority: str, segment: str | None, scheme: str, written: str | None
) -> None:
    resolver = Resolver.parse(text)
    assert (resolver.authority, resolver.segment, resolver.scheme) == (authority, segment, scheme)
    assert str(resolver) == (written or text)
    assert Resolver.parse(str(resolver)) == resolver
    assert parse_uri(to_http(HANDLE, resolver), [resolver]) == HANDLE


@pytest.mark.parametrize(
    "text",
    ["", "example.org", "ftp://example.org", "http://", "https:///hdl", "http://a b", "http://u@h", "http://h:port"],
)
def test_u4_invalid_address_is_refused(text: str) -> None:
    assert name_error(Resolver.parse, text).rule == "U4"


@pytest.mark.parametrize(
    ("text", "position", "character"),
    [
        ("", 0, None),
        ("example.org", 0, None),
        ("http://", 7, None),
        ("https:///hdl", 8, None),
        ("http://a b/x", 8, " "),
        ("http://u@h", 8, "@"),
        ("http://h:port", 8, ":"),
        ("http://h:123456", 14, "6"),
        ("http://h:0", 9, None),
        ("http://h:65536/hdl", 9, None),
        ("http://[::1]:99999", 13, None),
        ("http://[::1", 7, "["),
        ("http://[::1]x", 12, "x"),
        ("http://[:]/x", 8, None),
        ("http://[1::2::3]", 8, None),
        ("http://[12345::]", 8, None),
        ("http://[127.0.0.1]", 8, None),
    ],
)
def test_u4_invalid_address_is_refused_with_its_position(text: str, position: int, character: str | None) -> None:
    assert error_fields(name_error(Resolver.parse, text)) == ("U4", position, character)


@pytest.mark.parametrize(
    ("text", "rule", "position", "character"),
    [
        ("http://h.org/a/b", "U4", 14, "/"),
        ("http://h.org/a b c", "U4", 14, " "),
        ("http://h.org/a?b", "U4", 14, "?"),
        ("http://h.org/é", "U4", 13, "é"),
        ("http://h.org/%zz", "U5", 13, "%"),
        ("http://h.org/%2/", "U5", 13, "%"),
    ],
)
def test_u4_segment_that_is_invalid_in_a_url_is_refused(text: str, rule: str, position: int, character: str) -> None:
    assert error_fields(name_error(Resolver.parse, text)) == (rule, position, character)


@pytest.mark.parametrize(
    ("authority", "segment", "scheme"),
    [
        ("h.org", None, "ftp"),
        ("h.org", "", "http"),
        ("h.org", "a/b", "http"),
        ("h.org", "%z", "http"),
        ("h org", None, "http"),
        ("", None, "http"),
        ("H.org", None, "http"),
        ("h.org:80", None, "http"),
        ("h.org:443", None, "https"),
        ("h.org:0", None, "https"),
        ("h.org:70000", None, "https"),
        ("[:::]", None, "https"),
    ],
)
def test_u4_constructor_refuses_a_resolver_that_would_not_match_its_own_urls(
    authority: str, segment: str | None, scheme: str
) -> None:
    assert misuse_error(Resolver, authority, segment, scheme).rule == "U4"


@pytest.mark.parametrize(
    ("url", "declared", "start"),
    [
        ("http://h.org/10.1/x", "http://h.org", 13),
        ("https://h.org/10.1/x", "http://h.org", 14),
        ("HTTPS://H.ORG/10.1/x", "http://h.org", 14),
        ("http://h.org:80/10.1/x", "https://h.org", 16),
        ("https://h.org:443/10.1/x", "http://h.org", 18),
        ("http://h.org/hdl/10.1/x", "http://h.org/hdl", 17),
        ("http://h.org:99/hdl/10.1/x", "https://h.org:99/hdl", 20),
    ],
)
def test_u4_both_schemes_and_default_ports_match(url: str, declared: str, start: int) -> None:
    resolver = Resolver.parse(declared)
    assert match_resolver(url, [resolver]) == (resolver, start)
    assert parse_uri(url, [resolver]) == HANDLE


@pytest.mark.parametrize(
    ("url", "declared"),
    [
        ("http://h.org:443/10.1/x", "https://h.org"),
        ("https://h.org:80/10.1/x", "http://h.org"),
        ("http://h.org:8080/10.1/x", "http://h.org"),
        ("http://h.org/10.1/x", "http://h.org:8080"),
        ("http://h.org/10.1/x", "http://h.org/hdl"),
        ("http://h.org/hdlx/10.1/x", "http://h.org/hdl"),
        ("http://u@h.org/10.1/x", "http://h.org"),
        ("http://h.org.evil.example/10.1/x", "http://h.org"),
        ("http://h.org", "http://h.org"),
    ],
)
def test_u4_other_addresses_do_not_match(url: str, declared: str) -> None:
    assert match_resolver(url, [Resolver.parse(declared)]) is None
    assert error_fields(name_error(parse_uri, url, [Resolver.parse(declared)])) == ("U4", 0, None)


def test_u4_error_names_the_known_resolvers() -> None:
    known = [Resolver.parse("http://h.org/hdl"), Resolver.parse("https://hdl.handle.net")]
    message = name_error(parse_uri, "http://elsewhere.org/10.1/x", known).message
    assert "http://h.org/hdl, https://hdl.handle.net" in message
    assert "known: none" in name_error(parse_uri, "http://elsewhere.org/10.1/x").message


@given(texts())
def test_u4_arbitrary_text_is_refused_or_declares_a_resolver(text: str) -> None:
    answer = attempt(Resolver.parse, text)
    if isinstance(answer, InvalidName):
        assert answer.rule in {"U4", "U5"}
    else:
        assert parse_uri(to_http(HANDLE, answer), [answer]) == HANDLE


@pytest.mark.parametrize("order", [1, -1])
def test_u4_required_segment_is_recognized_in_any_order_of_resolvers(order: int) -> None:
    known = [Resolver.parse("http://h.org"), Resolver.parse("http://h.org/hdl")][::order]
    assert parse_uri("http://h.org/hdl/10.1/x", known).handle == Handle("10.1", "x")
    assert parse_uri("http://h.org/10.1/x", known).handle == Handle("10.1", "x")

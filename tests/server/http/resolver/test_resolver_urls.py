"""URLs of records on their way into a header: what is encoded, what is refused."""

import string
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.server.http.messages import is_header_text
from perseid.server.http.resolver.redirect import (
    MAX_URL,
    SAFE_CHARACTERS,
    InvalidTarget,
    Target,
    encode_url,
    get_scheme,
    parse_target,
)

SCHEMES: Final = frozenset(("http", "https", "ftp", "mailto"))
ALLOWED: Final = set(string.ascii_letters + string.digits + SAFE_CHARACTERS)


def slowly_encoded(text: str) -> str:
    """The rule, octet by octet."""
    result = ""
    for character in text:
        if character in ALLOWED:
            result += character
        else:
            result += "".join(f"%{octet:02X}" for octet in character.encode("utf-8"))
    return result


def location(text: str, appended: str = "") -> str:
    return parse_target(text, SCHEMES, appended).location


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("100%25 & 100%")
@example("[::1]#?'")
def test_every_octet_outside_of_the_set_is_encoded(text: str) -> None:
    assert encode_url(text) == slowly_encoded(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_a_url_with_a_plain_host_goes_out_encoded_or_not_at_all(text: str) -> None:
    url = f"https://example.org/{text}"
    try:
        found = location(url)
    except InvalidTarget:
        stripped = url.strip(" \t\r\n\f\v")
        assert any(ord(each) < 0x20 or 0x7F <= ord(each) <= 0x9F for each in stripped)
        return
    assert found == slowly_encoded(url.strip(" \t\r\n\f\v"))


@given(st.text(max_size=60), st.text(max_size=30))
@example("https://a.example\r\nSet-Cookie: x=1", "")
@example("https://a.example/", "\r\nSet-Cookie: x=1")
@example("https://ex\uff0fample.org/", "")
@example("https://exämple.org\\@evil.example/", "")
def test_whatever_goes_out_is_one_line_of_ascii_with_a_permitted_scheme(text: str, appended: str) -> None:
    try:
        found = parse_target(text, SCHEMES, appended)
    except InvalidTarget:
        return
    assert found.location.isascii()
    assert is_header_text(found.location)
    assert set(found.location) <= ALLOWED
    assert get_scheme(found.location) in SCHEMES
    assert len(found.location) <= MAX_URL


def test_the_recorded_one() -> None:
    expected = "https://xn--exmple-cua.org/p%C3%A4th%20a?q=%3C%22%3E%20"
    assert parse_target(' https://exämple.org/päth a?q=<">%20 ', SCHEMES) == Target(
        'https://exämple.org/päth a?q=<">%20', expected
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.org/a", "https://example.org/a"),
        ("HTTPS://Example.org", "HTTPS://Example.org"),
        ("https://exämple.org", "https://xn--exmple-cua.org"),
        ("http://user:pä@exämple.org:8080/x", "http://user:p%C3%A4@xn--exmple-cua.org:8080/x"),
        ("ftp://日本.example/日", "ftp://xn--wgv71a.example/%E6%97%A5"),
        ("https://[2001:db8::1]:8443/", "https://[2001:db8::1]:8443/"),
        ("mailto:someone@exämple.org", "mailto:someone@ex%C3%A4mple.org"),
        ("https://example.org/a%2Fb%zz", "https://example.org/a%2Fb%zz"),
        ("https://example.org/\u202e", "https://example.org/%E2%80%AE"),
        ("https://example.org/\u2028", "https://example.org/%E2%80%A8"),
        ("\n https://example.org/ \r\n", "https://example.org/"),
    ],
)
def test_what_goes_out(text: str, expected: str) -> None:
    assert location(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("javascript:alert(1)", "scheme"),
        ("JaVaScRiPt:alert(1)", "scheme"),
        ("data:text/html,<script>alert(1)</script>", "scheme"),
        ("java\nscript:alert(1)", "control"),
        ("file:///etc/passwd", "scheme"),
        ("vbscript:x", "scheme"),
        ("relative/path", "scheme"),
        ("//evil.example/", "no scheme"),
        ("/path", "no scheme"),
        ("https:evil.example", "no host"),
        ("https:///evil.example", "no host"),
        ("https://", "no host"),
        ("https://user@/x", "no host"),
        ("https://a b/", "no name of a host"),
        ("https://a<b>/", "no name of a host"),
        ("https://good.example\\@evil.example/", "backslash"),
        ("https://ex\uff0fevil.example/", "no name of a host"),  # becomes a slash by the rules of IDNA
        ("https://good.example\uff20evil.example/", "no name of a host"),  # an at sign
        ("https://" + "ä" * 300 + "/", "no name of a host"),
        ("https://\u200b.example/", "no name of a host"),
        ("https://example.org/\x00", "control"),
        ("https://example.org/\r\nX: y", "control"),
        ("https://example.org/\x85", "control"),
        ("https://example.org/\x7f", "control"),
        ("https://example.org/" + "x" * MAX_URL, "characters"),
        ("https://example.org/" + "ä" * (MAX_URL // 2), "characters"),
    ],
)
def test_what_nobody_is_sent_to(text: str, reason: str) -> None:
    with pytest.raises(InvalidTarget, match=reason):
        location(text)


def test_the_permitted_schemes_are_a_setting() -> None:
    assert parse_target("gopher://example.org/", {"gopher"}).location == "gopher://example.org/"
    with pytest.raises(InvalidTarget, match="scheme"):
        parse_target("https://example.org/", {"gopher"})


@pytest.mark.parametrize(
    ("text", "appended", "expected"),
    [
        ("https://example.org/short", "/x y?z", "https://example.org/short/x%20y?z"),
        ("https://example.org", "/x", "https://example.org/x"),
        ("https://example.org", "?x=@evil.example", "https://example.org?x=@evil.example"),
        ("https://example.org", "#x", "https://example.org#x"),
        ("mailto:a@example.org", "?subject=x", "mailto:a@example.org?subject=x"),
    ],
)
def test_something_is_appended(text: str, appended: str, expected: str) -> None:
    assert location(text, appended) == expected


@pytest.mark.parametrize(
    ("text", "appended"),
    [
        ("https://example.org", ".evil.example/"),
        ("https://example.org", "@evil.example/"),
        ("https://example.org", ":x@evil.example/"),
        ("https://example.org", ":8080/"),
        ("https://example.org", "\\@evil.example/"),
        ("https://exämple.org", ".evil.example/"),
        ("mailto:a@example.org", ",b@evil.example"),
        ("mailto:a@example.org", ".evil.example"),
        ("https://example.org/", "\r\nX: y"),
    ],
)
def test_what_is_appended_leads_nobody_to_another_host(text: str, appended: str) -> None:
    with pytest.raises(InvalidTarget):
        location(text, appended)


@given(st.sampled_from(("https://example.org", "http://u@example.org:80", "https://exämple.org")), st.text(max_size=20))
def test_the_host_stays_whatever_is_appended(url: str, appended: str) -> None:
    try:
        found = location(url, appended)
    except InvalidTarget:
        return
    host = location(url)
    assert found == host or (found.startswith(host) and found[len(host)] in "/?#")

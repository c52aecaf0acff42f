"""Target URLs: encoding and refusals."""

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
    """The encoding rule, byte by byte."""
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
def test_other_bytes_are_encoded(text: str) -> None:
    assert encode_url(text) == slowly_encoded(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_url_is_encoded_or_refused(text: str) -> None:
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
def test_target_is_ascii_with_permitted_scheme(text: str, appended: str) -> None:
    try:
        found = parse_target(text, SCHEMES, appended)
    except InvalidTarget:
        return
    assert found.location.isascii()
    assert is_header_text(found.location)
    assert set(found.location) <= ALLOWED
    assert get_scheme(found.location) in SCHEMES
    assert len(found.location) <= MAX_URL


def test_recorded_url() -> None:
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
def test_encoded_targets(text: str, expected: str) -> None:
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
        ("https://a b/", "not a valid host name"),
        ("https://a<b>/", "not a valid host name"),
        ("https://good.example\\@evil.example/", "backslash"),
        ("https://ex\uff0fevil.example/", "not a valid host name"),  # becomes a slash by the rules of IDNA
        ("https://good.example\uff20evil.example/", "not a valid host name"),  # an at sign
        ("https://" + "ä" * 300 + "/", "not a valid host name"),
        ("https://\u200b.example/", "not a valid host name"),
        ("https://example.org/\x00", "control"),
        ("https://example.org/\r\nX: y", "control"),
        ("https://example.org/\x85", "control"),
        ("https://example.org/\x7f", "control"),
        ("https://example.org/" + "x" * MAX_URL, "characters"),
        ("https://example.org/" + "ä" * (MAX_URL // 2), "characters"),
    ],
)
def test_invalid_targets(text: str, reason: str) -> None:
    with pytest.raises(InvalidTarget, match=reason):
        location(text)


def test_schemes_are_configurable() -> None:
    assert parse_target("gopher://example.org/", frozenset(("gopher",))).location == "gopher://example.org/"
    with pytest.raises(InvalidTarget, match="scheme"):
        parse_target("https://example.org/", frozenset(("gopher",)))


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
def test_appended_text(text: str, appended: str, expected: str) -> None:
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
def test_appended_text_cannot_change_host(text: str, appended: str) -> None:
    with pytest.raises(InvalidTarget):
        location(text, appended)


@given(st.sampled_from(("https://example.org", "http://u@example.org:80", "https://exämple.org")), st.text(max_size=20))
def test_any_appended_text_keeps_host(url: str, appended: str) -> None:
    try:
        found = location(url, appended)
    except InvalidTarget:
        return
    host = location(url)
    assert found == host or (found.startswith(host) and found[len(host)] in "/?#")

"""Other search keys, and URL patterns: every range contains the right keys."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.views.search_keys import (
    KEY_LENGTH,
    KeyRange,
    _cached_value_keys,
    index_keys,
    location_keys,
    owner_ranges,
    target_keys,
    type_ranges,
    url_text,
    value_ranges,
    word_range,
)
from perseid.ledger.views.url_glob import UrlGlob
from perseid.records.admin import Admin
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.types import TypeQuery
from tests.record_strategies import values as record_values

types = st.sampled_from(["URL", "url", "URL.x", "HS_ADMIN", "hs_admin", "HS_ADMIN.x", "EMAIL", "EMAIL.x.y", "E" * 600])
ADMIN = Admin(ValueRef(300, "12345/Ann")).to_bytes()


def content(type_: str, data: bytes) -> bytes:
    return Value(1, type_, data).to_bytes()


def contains_any(ranges: tuple[KeyRange, ...], *contents: bytes) -> bool:
    keys = index_keys(contents)
    return any(each.first <= key < each.end for each in ranges for key in keys)


def url(text: str | bytes) -> bytes:
    return content("URL", text if isinstance(text, bytes) else text.encode())


@given(types, types, st.booleans(), st.sampled_from([ADMIN, b"odd", b""]))
def test_type_is_found_with_subtypes_on_request(query_type: str, type_: str, dot: bool, data: bytes) -> None:
    query = query_type + "." * dot
    if TypeQuery((query,)).finds(type_):
        assert contains_any(type_ranges(query), content(type_, data))


@given(st.binary(max_size=40), types)
def test_data_is_found_for_every_type_but_administrators(data: bytes, type_: str) -> None:
    if not type_.lower().startswith("hs_admin"):
        assert contains_any(value_ranges(data), content(type_, data))
    assert not contains_any(value_ranges(data + b"!"), content("DESC", data))
    assert not contains_any(value_ranges(data), content("HS_SECKEY", data))


def test_keys_do_not_depend_on_index_time_and_ttl() -> None:
    """So those of administrators and constant data are computed once."""
    one = Value(1, "EMAIL", b"someone@example.org", timestamp=7).to_bytes()
    other = Value(9, "EMAIL", b"someone@example.org", ttl=60, timestamp=8).to_bytes()
    before = _cached_value_keys.cache_info().hits
    assert index_keys([one]) == index_keys([other]) == index_keys([one, other])
    assert _cached_value_keys.cache_info().hits >= before + 3


@pytest.mark.parametrize("data", [b"private", b"x" * 300], ids=["private", "large"])
def test_private_and_large_data_is_not_kept_in_memory(data: bytes) -> None:
    permissions = Permission.ADMIN_READ if data == b"private" else Permission.PUBLIC_READ
    before = _cached_value_keys.cache_info()
    one = Value(1, "DESC", data, permissions=permissions).to_bytes()
    assert index_keys([one]) == index_keys([content("DESC", data)])
    assert index_keys([one])
    assert _cached_value_keys.cache_info().misses <= before.misses + (data == b"private")


def test_words_of_titles_are_found_by_their_start() -> None:
    title = content("TITLE", "A Map of Åre".encode())
    for start in ("m", "map", "are", "of"):
        assert contains_any((word_range(start),), title)
    assert not contains_any((word_range("maps"),), title)
    assert not contains_any((word_range("map"),), content("EMAIL", b"map"), content("TITLE", b"\xffmap"))
    description = content("DESC", b"An atlas")
    assert contains_any((word_range("atlas"),), description)
    assert not contains_any((word_range("atlas"),), title, description), "a description is no title beside one"
    hidden = Value(1, "TITLE", b"Draft", permissions=Permission.ADMIN_READ).to_bytes()
    assert contains_any((word_range("atlas"),), hidden, description), (
        "it is the title of those who cannot read the other"
    )


def test_administrator_is_found_case_insensitively() -> None:
    for handle in ("12345/Ann", "12345/ann", "12345/ANN"):
        assert contains_any(owner_ranges(handle), content("HS_ADMIN", ADMIN))
        assert contains_any(owner_ranges(handle), content("OWNER", b"12345/ann"))
    assert not contains_any(owner_ranges("12345/annie"), content("HS_ADMIN", ADMIN))


@given(st.lists(record_values(), max_size=5))
def test_keys_are_short_enough_and_include_url_keys(values: list[Value]) -> None:
    contents = [value.to_bytes() for value in values]
    keys = index_keys(contents)
    assert target_keys(contents) <= keys
    assert all(len(key) <= KEY_LENGTH for key in keys)
    assert bool(keys) == bool(values)


# Patterns

urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "HTTPS", "ftp"]),
    st.sampled_from(
        ["a.org", "B.a.org", "x.org", "192.0.2.1", "a.192.0.2.1", "[2001:db8::1]", "bücher.example", "a.org.."]
    ),
    st.sampled_from(["", ":80", ":8080"]),
    st.text("/?#ab*", max_size=5).map(lambda rest: f"/{rest}" if rest else ""),
) | st.sampled_from(["mailto:a@a.org", "urn:a://b/", "odd://", "a b://a.org/x", "", "//a.org/"])


@given(urls)
def test_the_text_of_a_key_has_the_same_key(one: str) -> None:
    key = location_keys(url(one))[0][0]
    assert location_keys(url(url_text(key)))[0][0] == key


@given(urls, urls, st.integers(0, 12))
def test_a_pattern_with_a_star_at_the_end_matches_by_the_start_of_keys(one: str, other: str, cut: int) -> None:
    glob = UrlGlob.parse((one[: max(len(one) - cut, 0)] or "x") + "*")
    for text in (one, other):
        key = location_keys(url(text))[0][0]
        assert glob.matches(key) is glob._matches_parts(key), (glob, text)


@given(urls, urls, st.data())
def test_matches_of_a_pattern_are_in_its_range(pattern: str, other: str, data: st.DataObject) -> None:
    if pattern:
        start = data.draw(st.integers(0, len(pattern)))
        end = data.draw(st.integers(start, len(pattern)))
        pattern = pattern[:start] + "*" + pattern[end:]
    for text in (pattern or "*", "*://*" + other[other.find("/", 9) :] if "/" in other[9:] else "*"):
        try:
            glob = UrlGlob.parse(text)
            ranges = glob.ranges()
        except ValueError:
            continue  # not a host
        if glob.matches_values(url(other)) and ranges is not None:
            assert contains_any(ranges, url(other)), (text, other)


def test_exact_pattern_matches_equivalent_urls() -> None:
    glob = UrlGlob.parse("HTTP://Example.org:80")
    assert glob.is_exact
    assert glob.matches_values(url("http://EXAMPLE.org/"))
    assert not glob.matches_values(url("https://example.org/"))
    assert UrlGlob.parse("https://bücher.example/*").matches_values(url("https://xn--bcher-kva.example/1"))


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("https://a.org/i/*", ["https://a.org/i/", "https://a.org/i/1"], ["https://a.org/i", "http://a.org/i/1"]),
        ("https://*.a.org/*", ["https://b.a.org/", "https://c.b.a.org/x"], ["https://a.org/", "https://x/.a.org/"]),
        ("*://a.org/x", ["http://a.org/x", "ftp://a.org/x"], ["http://b.a.org/x"]),
        ("*://*/i/*.pdf", ["http://a.org/i/1.pdf", "ftp://b/i/.pdf"], ["http://a.org/j/i/1.pdf"]),
        ("*.pdf", ["http://a.org/1.pdf", "x.pdf"], ["http://a.org/1.pdf?"]),
        ("https://a.org*", ["https://a.org/", "https://a.organic/x"], ["http://a.org/"]),
        ("*a*a*", ["https://a/a", "aa"], ["https://x/a"]),
        ("https://*.BÜCHER.example/*", ["https://www.bücher.example/", "https://a.xn--bcher-kva.example/"], []),
        ("https://*.a.org./*", ["https://b.a.org/", "https://b.a.org./x"], ["https://b.a.org../"]),
        ("*://a.org:80/*", ["http://a.org/", "https://a.org:80/"], ["https://a.org/", "http://a.org:8080/"]),
        ("https://*.a.org:443/*", ["https://b.a.org/", "https://b.a.org:443/"], ["https://b.a.org:8443/"]),
        ("https://*.a.org../*", ["https://b.a.org../"], ["https://b.a.org/"]),
        ("https://*.a.org:0443/*", ["https://b.a.org/"], []),
        ("https://a.org:*/*", ["https://a.org/", "https://a.org:8443/"], ["https://a.organic/"]),
        ("https://*/*", ["https://a.org/", "https://a.org:8443/"], ["http://a.org/"]),
        ("https://*43/*", ["https://a43/", "https://a.org:8443/"], ["https://a.org/"]),
        ("https://a.org/%41[_\\*", ["https://a.org/%41[_\\x"], ["https://a.org/A[_\\x", "https://a.org/%41[xx"]),
    ],
)
def test_star_in_the_host_matches_host_characters_only(pattern: str, found: list[str], not_found: list[str]) -> None:
    glob = UrlGlob.parse(pattern)
    assert [glob.matches_values(url(each)) for each in found] == [True] * len(found)
    assert [glob.matches_values(url(each)) for each in not_found] == [False] * len(not_found)


def test_pattern_with_many_stars_is_linear() -> None:
    glob = UrlGlob.parse("*" + "a*" * 2_000 + "b")
    assert not glob.matches_values(url("https://example.org/" + "a" * 100_000))
    with pytest.raises(ValueError, match=re.escape("allowed are 1 to 4,096")):
        UrlGlob.parse("x" * 5_000)


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("http://A.org/x*", b"http://a.org/x"),
        ("http://a.org/x", None),
        ("http://a.org*", None),
        ("*://a.org/*", None),
        ("http://a.org/*/x", None),
        ("urn:*", None),
    ],
)
def test_literal_of_a_pattern_with_one_trailing_star(pattern: str, literal: bytes | None) -> None:
    assert UrlGlob.parse(pattern).literal == literal

"""URL search keys: every query for URLs, hosts and paths is a range with exactly the right keys."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from perseid.ledger.views.search_keys import (
    KEY_LENGTH,
    KeyRange,
    exact_url_range,
    host_range,
    path_prefix_range,
    target_keys,
    url_prefix_range,
)
from perseid.records.errors import InvalidData
from perseid.records.record import Value
from tests.record_strategies import values as record_values


def content(data: str | bytes, type_: str = "URL") -> bytes:
    return Value(1, type_, data if isinstance(data, bytes) else data.encode()).to_bytes()


def answers(key_range: KeyRange, *urls: str | bytes) -> bool:
    """Whether a record with these URLs is found by its keys, and by its values if keys are truncated."""
    contents = [content(url) for url in urls]
    found = any(key_range.first <= key < key_range.end for key in target_keys(contents))
    if not found or not key_range.is_truncated:
        assert found == key_range.matches_values(contents), "values say something else than keys"
    return found and key_range.matches_values(contents)


@dataclass(frozen=True)
class Url:
    """A URL in parts, in normalized form."""

    scheme: str
    labels: tuple[str, ...]
    port: str
    rest: str

    def __str__(self) -> str:
        return f"{self.scheme}://{'.'.join(self.labels)}{self.port and ':'}{self.port}{self.rest}"


DEFAULT_PORTS = {"https": "443", "http": "80", "ftp": "21"}

# Few and short parts, so that one is often a prefix of another.
labels = st.sampled_from(["a", "aa", "b", "org", "example", "ample", "-", "1", "a1", "xn--bcher-kva"])
hosts = st.lists(labels, min_size=1, max_size=4).map(tuple).filter(lambda found: found != ("1",) * 4)
addresses = st.sampled_from([("192", "0", "2", "1"), ("192", "0", "2", "10"), ("1", "2", "0", "192")])
rests = st.text("/?#:.%&@aé", max_size=6).map("/".__add__)
urls = st.builds(
    Url,
    st.sampled_from(["https", "http", "ftp", "s", "h"]),
    hosts | addresses,
    st.sampled_from(["", "", "8", "80", "8080", "443"]),
    rests,
).map(lambda url: replace(url, port="") if url.port == DEFAULT_PORTS.get(url.scheme) else url)


@given(urls, urls)
def test_an_exact_url_is_found_and_no_other(one: Url, other: Url) -> None:
    assert answers(exact_url_range(str(one)), str(one))
    assert answers(exact_url_range(str(one)), str(other)) == (one == other)


@given(urls, urls, st.data())
def test_url_prefix_matches_the_whole_host_and_the_path_prefix(one: Url, other: Url, data: st.DataObject) -> None:
    part = replace(one, rest=one.rest[: data.draw(st.integers(1, len(one.rest)))])
    key_range = url_prefix_range(str(part))
    assert answers(key_range, str(one))
    same = replace(other, rest="") == replace(part, rest="") and other.rest.startswith(part.rest)
    assert answers(key_range, str(other)) == same


def is_address(labels: tuple[str, ...]) -> bool:
    return len(labels) == 4 and all(label.isdecimal() and len(label) <= 3 for label in labels)


@given(hosts, urls)
@example(("ample", "org"), Url("https", ("example", "org"), "", "/"))
@example(("example", "org"), Url("https", ("www", "example", "org"), "", "/"))
def test_a_host_is_found_alone_or_with_its_subdomains(labels: tuple[str, ...], url: Url) -> None:
    assume(not is_address(labels) and not is_address(url.labels))  # an address has no subdomains and is not a subdomain
    name = ".".join(labels)
    assert answers(host_range(name, subdomains=False), str(url)) == (url.labels == labels)
    assert answers(host_range(name, subdomains=True), str(url)) == (url.labels[-len(labels) :] == labels)


@given(urls)
def test_every_parent_domain_finds_a_host(url: Url) -> None:
    assume(len(url.labels) != 4 or not "".join(url.labels).isdigit())  # addresses have no endings
    for start in range(len(url.labels)):
        name = ".".join(url.labels[start:])
        assert answers(host_range(name, subdomains=True), str(url))
        assert answers(host_range(name, subdomains=False), str(url)) == (start == 0)


@given(addresses, urls, st.booleans())
def test_an_address_has_no_subdomains(labels: tuple[str, ...], url: Url, subdomains: bool) -> None:
    assert answers(host_range(".".join(labels), subdomains=subdomains), str(url)) == (url.labels == labels)


@given(rests, urls)
def test_path_prefix_is_found_on_every_host(path: str, url: Url) -> None:
    assert answers(path_prefix_range(path), str(url)) == url.rest.startswith(path)
    assert answers(path_prefix_range(path), str(replace(url, rest=path + url.rest)))
    assert path_prefix_range(path[1:]) == path_prefix_range(path) or path[1:].startswith("/")


@given(urls, st.sampled_from(["", "user@", "user:pass@", "a@b@"]), st.sampled_from(["", "."]), st.booleans())
def test_equivalent_urls_have_the_same_keys(url: Url, user: str, dot: str, port: bool) -> None:
    ending = url.port or (DEFAULT_PORTS.get(url.scheme, "") if port else "")
    written = f" {url.scheme.upper()}://{user}{'.'.join(url.labels).upper()}{dot}:{ending and '00'}{ending}{url.rest}\n"
    assert target_keys([content(written)]) == target_keys([content(str(url))])
    assert answers(exact_url_range(written), str(url))


def test_leading_whitespace_of_a_prefix_is_ignored() -> None:
    assert url_prefix_range(" \nhttps://example.org/x") == url_prefix_range("https://example.org/x")
    assert url_prefix_range("https://example.org/x ") != url_prefix_range("https://example.org/x")


@pytest.mark.parametrize("rest", ["", "?q=1", "#top"])
def test_an_empty_path_is_a_slash(rest: str) -> None:
    assert target_keys([content("https://example.org" + rest)]) == target_keys([content("https://example.org/" + rest)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "XN--BCHER-KVA.example"),
        ("bu\u0308cher.example", "bücher.example"),
        ("straße.example", "xn--strae-oqa.example"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
    ],
)
def test_both_forms_of_an_internationalized_host_are_equal(one: str, other: str) -> None:
    assert answers(host_range(one, subdomains=False), f"https://{other}/")
    assert answers(host_range(other, subdomains=True), f"https://www.{one}/")
    assert answers(exact_url_range(f"https://{one}/x"), f"https://{other}/x")


def test_hosts_equal_under_idna_2003_differ() -> None:
    assert not answers(host_range("straße.example", subdomains=True), "https://strasse.example/")


def test_overlong_host_is_unchanged() -> None:
    assert b"U" + "é".encode() * 513 + b".:/" == exact_url_range(f"https://{'é' * 513}/").full_first
    assert answers(host_range("é" * 10_000, subdomains=False), f"https://{'é' * 10_000}/")
    assert not answers(host_range("é" * 10_000, subdomains=False), f"https://{'é' * 10_001}/")


@pytest.mark.parametrize("name", ["2001:db8::1", "[2001:DB8::1]", "2001:db8:0:0::0.0.0.1"])
def test_spellings_of_an_ipv6_address_are_equal(name: str) -> None:
    for subdomains in (True, False):
        assert answers(host_range(name, subdomains=subdomains), "http://[2001:db8:0::1]:8080/x")
        assert not answers(host_range(name, subdomains=subdomains), "http://[2001:db8::10]/x")


@pytest.mark.parametrize(
    "name", ["", " ", ".", "a/b", "a:80", "a@b", "https://a/", "[a]", "::g", "fe80::1%eth0", "[" * 99]
)
def test_invalid_host_is_refused(name: str) -> None:
    with pytest.raises(InvalidData, match="is not a host name or IP address"):
        host_range(name, subdomains=True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "mailto:alice@example.org", "example.org/x", "https:///x", "https://./x", "https://@/x", "//example.org"),
        *("https:/example.org", "1s://example.org/", "http://[::g]/", "http://[::1", "http://[fe80::1%eth0]/"),
        *("http://[::1]x/", "http://a[b]/", f"http://[{':' * 99}]/", "\0", "data:text/plain,https://example.org/"),
    ],
)
def test_text_without_a_host_is_found_as_text(text: str) -> None:
    assert answers(exact_url_range(text), text)
    assert not answers(exact_url_range(text), text + "x")
    assert answers(url_prefix_range(text), text + "x")
    assert not answers(path_prefix_range("/"), text)
    assert not answers(host_range("example.org", subdomains=True), text)


def test_bytes_that_are_not_utf8_are_found() -> None:
    url = b"https://www.example.org/caf\xe9"
    assert answers(host_range("example.org", subdomains=True), url)
    assert answers(url_prefix_range("https://www.example.org/caf"), url)
    assert answers(exact_url_range(url), url)
    assert answers(url_prefix_range(b"https://www.example.org/\xff\xff"), b"https://www.example.org/\xff\xff\xff")
    assert not answers(url_prefix_range(b"https://www.example.org/\xff\xff"), b"https://www.example.org/\xff\xfe")
    assert answers(url_prefix_range(b"https://\xff.org/"), b"https://\xff.ORG/x")
    assert answers(exact_url_range(b"\xff\xff"), b"\xff\xff")


def test_lone_surrogate_is_not_found() -> None:
    ranges = (
        exact_url_range("https://a/\ud800"),
        url_prefix_range("\udc80"),
        host_range("\ud800", subdomains=True),
        path_prefix_range("\ud800"),
    )
    assert not any(answers(each, "https://a/\ufffd") for each in ranges)


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")))
def test_any_url_value_is_found(data: bytes) -> None:
    for url in (data, b"https://" + data, b"https://example.org/" + data):
        assert answers(exact_url_range(url), url)
        assert answers(url_prefix_range(url.strip()), url)
        assert all(key[:1] in (b"U", b"P", b"T") for key in target_keys([content(url)]))


@pytest.mark.parametrize("length", range(KEY_LENGTH - 3, KEY_LENGTH + 4))
def test_long_urls_are_distinguished_by_their_values(length: int) -> None:
    endings = ("", "a", "b", "aa")
    rest = "/" + "x" * (length - len("Uorg.example.www.:/"))
    base = "https://www.example.org" + rest
    assert max(map(len, target_keys([content(base)]))) == min(length, KEY_LENGTH)
    for one, other in product(endings, endings):
        assert answers(exact_url_range(base + one), base + other) == (one == other)
        assert answers(url_prefix_range(base + one), base + other) == other.startswith(one)


@pytest.mark.parametrize("length", range(KEY_LENGTH - 3, KEY_LENGTH + 4))
def test_long_paths_are_distinguished_by_their_values(length: int) -> None:
    path = "/" + "x" * (length - len("P/"))
    for one, other in product(("", "a", "b", "aa"), repeat=2):
        assert answers(path_prefix_range(path + one), "https://a" + path + other) == other.startswith(one)


def test_long_hosts_are_distinguished_by_their_values() -> None:
    long = "x" * KEY_LENGTH
    assert host_range(f"{long}.org", subdomains=False).is_truncated
    assert answers(host_range(f"{long}.org", subdomains=False), f"https://{long}.org/")
    assert not answers(host_range(f"{long}.org", subdomains=False), f"https://{long}y.org/")
    assert not answers(host_range(f"{long}.org", subdomains=False), f"https://www.{long}.org/")


@given(urls, st.text("/a", max_size=5))
def test_short_queries_do_not_need_the_values(url: Url, path: str) -> None:
    ranges = (
        exact_url_range(str(url)),
        url_prefix_range(str(url)),
        path_prefix_range(path),
        host_range("example.org", subdomains=True),
    )
    assert not any(each.is_truncated for each in ranges)


@pytest.mark.parametrize("type_", ["URL", "url", "Url", "URL.", "url.us", "URL.a.b", "URL." + "x" * 300])
def test_url_types_in_any_case_and_subtypes_are_indexed(type_: str) -> None:
    assert target_keys([content("https://example.org/x", type_)]) == {b"Uorg.example.:/x", b"P/x"}


@pytest.mark.parametrize("type_", ["", "U", "UR", "URLS", "URI", "URL\0", "URN.", "10320/local", "1032", "10320/lo.c"])
def test_other_types_have_no_url_keys(type_: str) -> None:
    assert target_keys([content("https://example.org/x", type_)]) == set()
    assert target_keys([content('<l><location href="https://example.org/x"/></l>', type_)]) == set()


def test_url_whose_length_bytes_are_letters_is_read_completely() -> None:
    """The type is compared case-insensitively, but the length next to it must not be."""
    for length in (0x41, 0x4141):
        url = f"https://example.org/{'x' * (length - 20)}"
        assert answers(exact_url_range(url), url)


@pytest.mark.parametrize("type_", ["10320/loc", "10320/LOC", "10320/loc.x"])
def test_every_location_is_indexed(type_: str) -> None:
    places = """
        <locations>
          <location href="https://uk.example/a" href_template="https://unused.example/"/>
          <location href_template="https://www.example/{hdl}"/>
          <loc_template href=" mailto:x "/>
          <location weight="1"/>
        </locations>"""
    assert target_keys([content(places, type_)]) == {
        *(b"Uexample.uk.:/a", b"P/a", b"Uexample.www.:/{hdl}", b"P/{hdl}", b"Tmailto:x")
    }


@pytest.mark.parametrize("data", [b"", b"<a>", b"\xff", b"<!DOCTYPE a><a/>", b"<a/>"])
def test_invalid_location_list_has_no_keys(data: bytes) -> None:
    assert target_keys([content(data, "10320/loc"), content("https://a/")]) == {b"Ua.:/", b"P/"}


def test_keys_match_the_module_docstring() -> None:
    for url, keys in {
        "https://www.example.org/items/7?v=2": {b"Uorg.example.www.:/items/7?v=2", b"P/items/7?v=2"},
        "http://example.org:8080": {b"Uorg.example.:http:8080/", b"P/"},
        "https://example.org:8443/x": {b"Uorg.example.::8443/x", b"P/x"},
        "https://192.0.2.1/x": {b"U[192.0.2.1]:/x", b"P/x"},
        "ftp://[2001:db8::1]/": {b"U[20010db8000000000000000000000001]:ftp/", b"P/"},
        "mailto:alice@example.org": {b"Tmailto:alice@example.org"},
    }.items():
        assert target_keys([content(url)]) == keys


def test_a_record_has_the_keys_of_all_its_values_and_one_row_for_a_shared_path() -> None:
    contents = [content("https://a.org/x"), content("not a url", "DESC"), content("https://b.org/x")]
    assert target_keys(contents) == {b"Uorg.a.:/x", b"Uorg.b.:/x", b"P/x"}


def test_typical_url_keys_take_about_twice_its_length() -> None:
    keys = target_keys([content("https://repository.example.org/items/2024/0001234")])
    assert sum(map(len, keys)) <= 70


@given(st.lists(record_values(), max_size=5))
def test_every_record_has_keys(values: list[Value]) -> None:
    def is_url(value: Value) -> bool:
        return value.type.lower() == "url" or value.type.lower().startswith("url.")

    keys = target_keys([value.to_bytes() for value in values])
    assert all(len(key) <= KEY_LENGTH for key in keys)
    for value in values:
        if is_url(value):
            assert exact_url_range(value.data).first in keys

"""Type names and how they match; also case folding, which is in the same vector file."""

import time

import pytest
from hypothesis import given

from perseid.names.handle import fold
from perseid.records.types import (
    DELEGATION_TYPES,
    SITE_TYPES,
    TypeQuery,
    find_url_problem,
    get_base_type,
    has_type,
)
from tests.record_strategies import TEXTS
from tests.vector_files import Vector, load, parameters

VECTOR_FILES = ("codec-text.json",)


@pytest.mark.parametrize("vector", parameters("codec-text.json"))
def test_vector_of_text(vector: Vector) -> None:
    if vector["function"] == "Util.upperCase":
        original, folded = bytes.fromhex(vector["in"]), bytes.fromhex(vector["out"])
        assert fold(original.decode()).encode() == folded
    else:
        assert vector["function"] == "Util.isParentTypeInArray"
        assert TypeQuery((vector["query"],)).finds(vector["type"]) is vector["match"]


def test_vectors_of_text_are_of_two_kinds() -> None:
    assert len(load("codec-text.json")) == 11


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"https://example.org/", ""),
        (b"HTTP://example.org", ""),
        ("https://b\u00fccher.example/\u00fc?x#y".encode(), ""),
        (b"mailto:ann@example.org", ""),
        (b"urn:isbn:9780000000000", "has the scheme urn, which is none of http, https, ftp, mailto"),
        (b"hdl:12345/x", "has the scheme hdl, "),
        (b"javascript:alert(1)", "has the scheme javascript, which is none of http, https, "),
        (b"data:text/html,x", "has the scheme data, "),
        (b"file:///etc/passwd", "has the scheme file, "),
        (b"notaurl", "is not an absolute URL"),
        (b"", "is not an absolute URL"),
        (b"https:", "is not an absolute URL"),
        (b"/path", "is not an absolute URL"),
        (b"//example.org/", "is not an absolute URL"),
        (b"https:example.org", "has no host"),
        (b"https:///path", "has no host"),
        (b"not a url", "contains a blank or a control character"),
        (b"https://example.org/\n", "contains a blank or a control character"),
        (b"https://example.org/\xff", "is not UTF-8"),
    ],
)
def test_url_must_be_absolute_with_a_scheme_that_leads_somewhere(data: bytes, problem: str) -> None:
    found = find_url_problem(data)
    assert ("" if found is None else found.reason).startswith(problem)
    assert bool(found) == bool(problem)
    assert (found is not None and found.is_scheme) == problem.startswith("has the scheme ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("example.org", "https://example.org"),
        ("WWW.Example.org/a?b#c", "https://WWW.Example.org/a?b#c"),
        ("//example.org/", "https://example.org/"),
        ("maps.example.org:8080/x", "https://maps.example.org:8080/x"),
        ("notaurl", ""),
        ("ann@example.org", ""),
        ("1.5", ""),
        ("example.org:ann", ""),
        ("exa_mple.org", ""),
    ],
)
def test_url_without_a_scheme_has_one_that_is_meant(text: str, meant: str) -> None:
    found = find_url_problem(text.encode())
    assert found is not None
    assert found.meant == meant
    other = find_url_problem(text.encode(), ("ftp",))
    assert other is not None
    assert other.meant == "", "where https is not allowed"


@pytest.mark.parametrize(
    ("query", "type_", "found"),
    [
        ("URL", "URL", True),
        ("URL", "url", True),
        ("URL", "URL.us", False),
        ("URL", "URL.", False),
        ("URL.", "URL", True),
        ("url.", "URL.us", True),
        ("URL.", "URL.us.east", True),
        ("URL.", "URLX", False),
        ("URL.us.", "URL.us", True),
        ("URL.us.", "URL.US.x", True),
        ("URL.us.", "URL", False),
        ("typé", "TYPé", True),
        ("typé", "TYPÉ", False),
        ("\u017f", "S", False),
        (".", "X", False),
        ("", "X", False),
        (".", "X.", False),
        ("", "", True),
        ("*", "URL", False),
    ],
)
def test_query_matches_its_type_and_with_a_trailing_dot_its_subtypes(query: str, type_: str, found: bool) -> None:
    assert TypeQuery((query,)).finds(type_) is found


def test_several_queries_match_what_any_of_them_matches() -> None:
    query = TypeQuery(["EMAIL", "url.", "HS_"])
    assert [query.finds(type_) for type_ in ("URL.x", "email", "EMAIL.x", "HS_ADMIN", "DESC")] == [
        *(True, True, False, False, False)
    ]
    assert not TypeQuery([]).finds("URL")


@given(TEXTS, TEXTS)
def test_type_includes_itself_and_its_subtypes(base: str, subtype: str) -> None:
    assert has_type(base, base)
    assert has_type(f"{base}.{subtype}", fold(base))
    assert TypeQuery((f"{base}.",)).finds(f"{base}.{subtype}")
    assert not has_type(f"{base}x{subtype}", f"{base}y")


def test_base_type_is_the_part_before_the_first_dot() -> None:
    assert [get_base_type(type_) for type_ in ("hs_site.6", "HS_SITE", "10320/loc", ".x", "")] == [
        *("HS_SITE", "HS_SITE", "10320/LOC", "", "")
    ]


def test_types_that_resolvers_use_are_exact() -> None:
    assert "HS_SITE.6" in SITE_TYPES
    assert "hs_site.6" not in SITE_TYPES
    assert {"HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_SERV.PREFIX"} == DELEGATION_TYPES


def test_many_queries_for_many_long_types_are_fast() -> None:
    # As many as fit in a message: tens of thousands of type families.
    queries = [f"{number:x}." for number in range(40_000)]
    types = ["." * 1_000] * 2_000
    query = TypeQuery(queries)
    started = time.process_time()
    assert not any(query.finds(type_) for type_ in types)
    assert time.process_time() - started < 2

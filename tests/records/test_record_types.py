"""Type names and how they match; also how letters fold, which the same file of vectors holds."""

import time

import pytest
from hypothesis import given

from perseid.names.characters import fold
from perseid.records.types import (
    DELEGATION_TYPES,
    SERVICE_TYPES,
    SITE_TYPES,
    TypeQuery,
    get_base_type,
    has_type,
    matches,
)
from tests.record_strategies import TEXTS
from tests.vector_files import Vector, load, parameters

VECTOR_FILES = ("codec-text.json",)


@pytest.mark.parametrize("vector", parameters("codec-text.json"))
def test_vector_of_text(vector: Vector) -> None:
    if vector["function"] == "Util.upperCase":
        given_, folded = bytes.fromhex(vector["in"]), bytes.fromhex(vector["out"])
        assert fold(given_.decode()).encode() == folded
    else:
        assert vector["function"] == "Util.isParentTypeInArray"
        assert matches(vector["query"], vector["type"]) is vector["match"]


def test_vectors_of_text_are_of_two_kinds() -> None:
    assert len(load("codec-text.json")) == 11


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
def test_a_query_finds_its_type_and_with_a_dot_its_subtypes(query: str, type_: str, found: bool) -> None:
    assert matches(query, type_) is found


def test_several_queries_find_what_one_of_them_finds() -> None:
    query = TypeQuery(["EMAIL", "url.", "HS_"])
    assert [query.finds(type_) for type_ in ("URL.x", "email", "EMAIL.x", "HS_ADMIN", "DESC")] == [
        *(True, True, False, False, False)
    ]
    assert not TypeQuery([]).finds("URL")


@given(TEXTS, TEXTS)
def test_a_type_has_itself_and_what_is_below_it(base: str, below: str) -> None:
    assert has_type(base, base)
    assert has_type(f"{base}.{below}", fold(base))
    assert matches(f"{base}.", f"{base}.{below}")
    assert not has_type(f"{base}x{below}", f"{base}y")


def test_what_stands_before_the_first_dot_says_how_data_is_read() -> None:
    assert [get_base_type(type_) for type_ in ("hs_site.6", "HS_SITE", "10320/loc", ".x", "")] == [
        *("HS_SITE", "HS_SITE", "10320/LOC", "", "")
    ]


def test_names_that_resolvers_act_on_are_exact() -> None:
    assert "HS_SITE.6" in SITE_TYPES
    assert "hs_site.6" not in SITE_TYPES
    assert "HS_SERV" in SERVICE_TYPES
    assert "HS_SITE.PREFIX" not in SERVICE_TYPES
    assert {"HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_SERV.PREFIX"} == DELEGATION_TYPES


def test_many_queries_for_many_long_types_take_no_longer_than_their_lengths_allow() -> None:
    # As many as fit a message: tens of thousands of families, few of the same length would help nobody.
    queries = [f"{number:x}." for number in range(40_000)]
    types = ["." * 1_000] * 2_000
    query = TypeQuery(queries)
    began = time.process_time()
    assert not any(query.finds(type_) for type_ in types)
    assert time.process_time() - began < 2

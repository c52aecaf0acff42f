"""What a scope covers: words and places, each of which has to be named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.value import Value
from perseid.registry.access.scopes import (
    MAX_NAMESPACES,
    NO_TOKEN,
    WORDS,
    InvalidScope,
    Reach,
    Scope,
    Word,
    decides_rights,
    words_for,
)

ALL = Scope.of(Word, None)
PLACES = ("12345", "12345.1", "12345.1.2", "123456", "20.500", "")

words = st.frozensets(st.sampled_from(Word))
namespaces = st.one_of(st.none(), st.lists(st.sampled_from([*PLACES[:-1], "12345.*", "20.*"]), min_size=1))


def covers(scope: Scope, reach: Reach) -> bool:
    return not scope.lacks(reach)


def is_in(place: str, allowed: str) -> bool:
    if allowed.endswith(".*"):
        return place.startswith(allowed[:-1])
    return place == allowed


@given(words, namespaces, words, st.sampled_from(PLACES))
def test_a_scope_covers_what_it_names_and_nothing_else(
    has: frozenset[Word], places: list[str] | None, needs: frozenset[Word], place: str
) -> None:
    if not has or (places is not None and Word.ADMIN in has):
        with pytest.raises(InvalidScope):
            Scope.of(has, places)
        return
    scope = Scope.of(has, places)
    here = places is None or any(is_in(place, allowed) for allowed in places)
    assert covers(scope, Reach(needs, place)) is (bool(needs) and needs <= has and here)


@given(words.filter(lambda found: found and Word.ADMIN not in found), namespaces)
def test_a_scope_is_made_again_of_its_words(has: frozenset[Word], places: list[str] | None) -> None:
    scope = Scope.of(has, places)
    assert Scope.of(scope.may, scope.namespaces) == scope
    assert scope.may == [word for word in WORDS if Word(word) in has]


def test_letters_of_prefixes_do_not_count() -> None:
    scope = Scope.of(["read"], ["abc.d"])
    assert scope.namespaces == ("ABC.D",)
    assert covers(scope, Reach.under("aBc.D", Word.READ))


def test_no_scope_covers_what_says_nothing() -> None:
    assert ALL.lacks(NO_TOKEN) == "no token can do that"
    assert ALL.lacks(Reach.under("12345")) == "no token can do that"


def test_what_is_missing_is_named() -> None:
    scope = Scope.of(["read"], ["12345"])
    assert scope.lacks(Reach.under("12345", Word.UPDATE)) == "its scope does not have the word update"
    both = Reach.under("12345", Word.TRANSFER, Word.UPDATE)
    assert scope.lacks(both) == "its scope does not have the word update nor the word transfer"
    assert scope.lacks(Reach.under("20", Word.READ)) == "its scope is limited to 12345"
    assert scope.lacks(Reach.everywhere(Word.READ)) == "its scope is limited to 12345"


@pytest.mark.parametrize(
    ("may", "where", "problem"),
    [
        ([], None, "do nothing"),
        (["read"], [], "good nowhere"),
        (["everything"], None, "is no word of a scope"),
        (["READ"], None, "is no word of a scope"),
        (["x" * 1_000], None, "is no word of a scope"),
        (["read"], ["12345/x"], "write a prefix"),
        (["read"], [""], "write a prefix"),
        (["read"], [".*"], "write a prefix"),
        (["read"], ["12345..*"], "write a prefix"),
        (["read", "admin"], ["12345"], "about the server as a whole"),
        (["read"], [f"12345.{number}" for number in range(MAX_NAMESPACES + 1)], "too many"),
    ],
)
def test_what_is_no_scope(may: list[str], where: list[str] | None, problem: str) -> None:
    with pytest.raises(InvalidScope, match=problem) as caught:
        Scope.of(may, where)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("given_words", "reached"),
    [
        ((Word.READ,), {Word.READ}),
        ((Word.UPDATE,), {Word.NAMESPACES}),
        ((Word.CREATE,), {Word.NAMESPACES}),
        ((Word.UPDATE, Word.TRANSFER), {Word.NAMESPACES, Word.TRANSFER}),
        ((Word.DELETE,), {Word.NAMESPACES}),
        ((Word.ADMIN,), {Word.NAMESPACES, Word.ADMIN}),
    ],
)
def test_a_prefix_handle_belongs_to_its_namespace(given_words: tuple[Word, ...], reached: set[Word]) -> None:
    """Otherwise a token for the names of a namespace would decide who administers it."""
    assert Reach.of(Handle.parse("0.na/12345"), *given_words) == Reach(frozenset(reached), "12345")
    assert Reach.of(Handle.parse("12345/x"), *given_words) == Reach(frozenset(given_words), "12345")


@pytest.mark.parametrize("type_", ["HS_ADMIN", "hs_admin.x", "HS_VLIST", "HS_PUBKEY", "HS_SECKEY", "hs_seckey"])
def test_administrators_groups_and_keys_decide_rights(type_: str) -> None:
    value, plain = Value(1, type_, b""), Value.text(2, "URL", "")
    assert decides_rights(value)
    assert not decides_rights(plain)
    assert words_for([value]) == (Word.TRANSFER,)
    assert set(words_for([value, plain])) == {Word.TRANSFER, Word.UPDATE}
    assert words_for([]) == (Word.UPDATE,)


def test_what_only_reads() -> None:
    assert Reach.under("12345", Word.READ, Word.FIND).only_reads
    assert not Reach.under("12345", Word.READ, Word.UPDATE).only_reads
    assert not NO_TOKEN.only_reads


def test_what_people_are_shown() -> None:
    assert ALL.places == "all namespaces"
    assert Scope.of(["update", "read"], ["20.*", "12345"]).places == "12345, 20.*"

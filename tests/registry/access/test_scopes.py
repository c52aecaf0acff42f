"""What a scope covers: words and places, each of which has to be named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.value import Value
from perseid.registry.access.scopes import (
    MAX_NAMESPACES,
    NO_TOKEN,
    SCOPES,
    InvalidScope,
    RequiredScope,
    Scope,
    ScopeSet,
    controls_access,
    scopes_for,
)

ALL = ScopeSet.of(Scope, None)
PLACES = ("12345", "12345.1", "12345.1.2", "123456", "20.500", "")

scopes = st.frozensets(st.sampled_from(Scope))
namespaces = st.one_of(st.none(), st.lists(st.sampled_from([*PLACES[:-1], "12345.*", "20.*"]), min_size=1))


def covers(scope: ScopeSet, required_scope: RequiredScope) -> bool:
    return not scope.describe_missing(required_scope)


def is_in(place: str, allowed: str) -> bool:
    if allowed.endswith(".*"):
        return place.startswith(allowed[:-1])
    return place == allowed


@given(scopes, namespaces, scopes, st.sampled_from(PLACES))
def test_a_scope_covers_what_it_names_and_nothing_else(
    has: frozenset[Scope], places: list[str] | None, needs: frozenset[Scope], place: str
) -> None:
    if not has or (places is not None and Scope.ADMIN in has):
        with pytest.raises(InvalidScope):
            ScopeSet.of(has, places)
        return
    scope = ScopeSet.of(has, places)
    here = places is None or any(is_in(place, allowed) for allowed in places)
    assert covers(scope, RequiredScope(needs, place)) is (bool(needs) and needs <= has and here)


@given(scopes.filter(lambda found: found and Scope.ADMIN not in found), namespaces)
def test_a_scope_is_made_again_of_its_words(has: frozenset[Scope], places: list[str] | None) -> None:
    scope = ScopeSet.of(has, places)
    assert ScopeSet.of(scope.may, scope.namespaces) == scope
    assert scope.may == [word for word in SCOPES if Scope(word) in has]


def test_letters_of_prefixes_do_not_count() -> None:
    scope = ScopeSet.of(["read"], ["abc.d"])
    assert scope.namespaces == ("ABC.D",)
    assert covers(scope, RequiredScope.for_namespace("aBc.D", Scope.READ))


def test_no_scope_covers_what_says_nothing() -> None:
    assert ALL.describe_missing(NO_TOKEN) == "no token can do that"
    assert ALL.describe_missing(RequiredScope.for_namespace("12345")) == "no token can do that"


def test_what_is_missing_is_named() -> None:
    scope = ScopeSet.of(["read"], ["12345"])
    assert (
        scope.describe_missing(RequiredScope.for_namespace("12345", Scope.UPDATE))
        == "its scope does not have the word update"
    )
    both = RequiredScope.for_namespace("12345", Scope.TRANSFER, Scope.UPDATE)
    assert scope.describe_missing(both) == "its scope does not have the word update nor the word transfer"
    assert scope.describe_missing(RequiredScope.for_namespace("20", Scope.READ)) == "its scope is limited to 12345"
    assert scope.describe_missing(RequiredScope.for_server(Scope.READ)) == "its scope is limited to 12345"


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
        ScopeSet.of(may, where)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("given_words", "reached"),
    [
        ((Scope.READ,), {Scope.READ}),
        ((Scope.UPDATE,), {Scope.NAMESPACES}),
        ((Scope.CREATE,), {Scope.NAMESPACES}),
        ((Scope.UPDATE, Scope.TRANSFER), {Scope.NAMESPACES, Scope.TRANSFER}),
        ((Scope.DELETE,), {Scope.NAMESPACES}),
        ((Scope.ADMIN,), {Scope.NAMESPACES, Scope.ADMIN}),
    ],
)
def test_a_prefix_handle_belongs_to_its_namespace(given_words: tuple[Scope, ...], reached: set[Scope]) -> None:
    """Otherwise a token for the names of a namespace would decide who administers it."""
    assert RequiredScope.of(Handle.parse("0.na/12345"), *given_words) == RequiredScope(frozenset(reached), "12345")
    assert RequiredScope.of(Handle.parse("12345/x"), *given_words) == RequiredScope(frozenset(given_words), "12345")


@pytest.mark.parametrize("type_", ["HS_ADMIN", "hs_admin.x", "HS_VLIST", "HS_PUBKEY", "HS_SECKEY", "hs_seckey"])
def test_administrators_groups_and_keys_decide_rights(type_: str) -> None:
    value, plain = Value(1, type_, b""), Value.text(2, "URL", "")
    assert controls_access(value)
    assert not controls_access(plain)
    assert scopes_for([value]) == (Scope.TRANSFER,)
    assert set(scopes_for([value, plain])) == {Scope.TRANSFER, Scope.UPDATE}
    assert scopes_for([]) == (Scope.UPDATE,)


def test_what_only_reads() -> None:
    assert RequiredScope.for_namespace("12345", Scope.READ, Scope.FIND).is_read_only
    assert not RequiredScope.for_namespace("12345", Scope.READ, Scope.UPDATE).is_read_only
    assert not NO_TOKEN.is_read_only


def test_what_people_are_shown() -> None:
    assert ALL.places == "all namespaces"
    assert ScopeSet.of(["update", "read"], ["20.*", "12345"]).places == "12345, 20.*"

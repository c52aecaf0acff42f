"""What a scope covers: scopes and namespaces, each of which must be named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.access.permissions import (
    NO_TOKEN,
    InvalidScope,
    RequiredScope,
    ScopeSet,
    controls_access,
    scopes_for,
)
from perseid.schema.namespaces import MAX_NAMESPACES, SCOPES, Scope

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
def test_scope_covers_only_what_it_names(
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
def test_scope_set_round_trips(has: frozenset[Scope], places: list[str] | None) -> None:
    scope = ScopeSet.of(has, places)
    assert ScopeSet.of(scope.scope_names, scope.namespaces) == scope
    assert scope.scope_names == [word for word in SCOPES if Scope(word) in has]


def test_prefixes_ignore_case() -> None:
    scope = ScopeSet.of(["read"], ["abc.d"])
    assert scope.namespaces == ("ABC.D",)
    assert covers(scope, RequiredScope.for_namespace("aBc.D", Scope.READ))


def test_requirement_without_scopes_is_denied() -> None:
    assert ALL.describe_missing(NO_TOKEN) == "tokens cannot do this"
    assert ALL.describe_missing(RequiredScope.for_namespace("12345")) == "tokens cannot do this"


def test_missing_scopes_are_named() -> None:
    scope = ScopeSet.of(["read"], ["12345"])
    assert (
        scope.describe_missing(RequiredScope.for_namespace("12345", Scope.UPDATE)) == "its scopes do not include update"
    )
    both = RequiredScope.for_namespace("12345", Scope.TRANSFER, Scope.UPDATE)
    assert scope.describe_missing(both) == "its scopes do not include update, transfer"
    assert scope.describe_missing(RequiredScope.for_namespace("20", Scope.READ)) == "it is limited to 12345"
    assert scope.describe_missing(RequiredScope.for_server(Scope.READ)) == "it is limited to 12345"


@pytest.mark.parametrize(
    ("may", "where", "problem"),
    [
        ([], None, "at least one scope"),
        (["read"], [], "at least one namespace"),
        (["everything"], None, "is not a scope"),
        (["READ"], None, "is not a scope"),
        (["x" * 1_000], None, "is not a scope"),
        (["read"], ["12345/x"], "Write a prefix"),
        (["read"], [""], "Write a prefix"),
        (["read"], [".*"], "Write a prefix"),
        (["read"], ["12345..*"], "Write a prefix"),
        (["read", "admin"], ["12345"], "applies to the whole server"),
        (["read"], [f"12345.{number}" for number in range(MAX_NAMESPACES + 1)], "at most 100 namespaces"),
    ],
)
def test_invalid_scope_is_refused(may: list[str], where: list[str] | None, problem: str) -> None:
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
def test_prefix_handle_belongs_to_its_namespace(given_words: tuple[Scope, ...], reached: set[Scope]) -> None:
    """Otherwise a token for the handles of a namespace could change its administrators."""
    assert RequiredScope.of(Handle.parse("0.na/12345"), *given_words) == RequiredScope(frozenset(reached), "12345")
    assert RequiredScope.of(Handle.parse("12345/x"), *given_words) == RequiredScope(frozenset(given_words), "12345")


@pytest.mark.parametrize("type_", ["HS_ADMIN", "hs_admin.x", "HS_VLIST", "HS_PUBKEY", "HS_SECKEY", "hs_seckey"])
def test_administrators_groups_and_keys_control_access(type_: str) -> None:
    value, plain = Value(1, type_, b""), Value.text(2, "URL", "")
    assert controls_access(value)
    assert not controls_access(plain)
    assert scopes_for([value]) == (Scope.TRANSFER,)
    assert set(scopes_for([value, plain])) == {Scope.TRANSFER, Scope.UPDATE}
    assert scopes_for([]) == (Scope.UPDATE,)


def test_read_only_scopes() -> None:
    assert RequiredScope.for_namespace("12345", Scope.READ, Scope.FIND).is_read_only
    assert not RequiredScope.for_namespace("12345", Scope.READ, Scope.UPDATE).is_read_only
    assert not NO_TOKEN.is_read_only

"""Identities, and which references match them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import CaseRule, Handle
from perseid.records.record import ValueRef
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, Proof, handle_key
from tests.registry.administration import holder, ref


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        (Anonymous(), "anonymous"),
        (Anonymous(session=True), "anonymous"),
        (LocalIdentity("alice"), "local:alice"),
        (holder("300:0.NA/12345"), "300:0.NA/12345"),
        (holder("300:0.NA/12345", verified=300), "300:0.NA/12345"),
        (holder("0:0.NA/12345"), "0:0.NA/12345"),
        (holder("0:0.NA/12345", verified=301), "301:0.NA/12345"),
        (KeyIdentity(ref("7:a/b:c"), Proof.FILE_PERMISSION), "7:a/b:c"),
    ],
)
def test_text_form_is_the_actor_in_the_ledger(identity: Identity, text: str) -> None:
    assert str(identity) == text


def test_negative_index_means_any_key() -> None:
    identity = KeyIdentity(ValueRef(-1, "12345/a"), Proof.PUBLIC_KEY)
    assert str(identity) == "0:12345/a"
    assert identity.matches(ref("0:12345/a"))
    assert not identity.matches(identity.reference)
    assert not identity.matches(ref("300:12345/a"))


@pytest.mark.parametrize(("claimed", "verified"), [("300:a/b", 301), ("300:a/b", 0), ("0:a/b", 0), ("0:a/b", -1)])
def test_other_key_does_not_verify(claimed: str, verified: int) -> None:
    with pytest.raises(ValueError, match="does not verify"):
        holder(claimed, verified=verified)


@pytest.mark.parametrize("user", ["", "a\nb", "\udcff"])
def test_local_identity_needs_a_printable_name(user: str) -> None:
    with pytest.raises(ValueError, match="user name"):
        LocalIdentity(user)


def test_local_identity_is_never_in_a_session() -> None:
    assert not LocalIdentity("alice").session


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12345/admin", "12345/admin", True),
        ("12345/ADMIN", "12345/admin", False),
        ("abc/admin", "ABC/admin", True),
        ("abc/admin", "ABC/ADMIN", False),
        ("0.NA/abc", "0.na/ABC", True),
        ("0.SITE/abc", "0.site/Abc", True),
        ("0/abc", "0/ABC", False),
        ("0.na/é", "0.na/É", False),
        ("é/a", "É/a", False),
        ("a/b/c", "A/b/c", True),
        ("a/b/c", "a/B/c", False),
        ("abc", "ABC", True),
        ("abc", "0.NA/ABC", False),
    ],
)
def test_administrator_handles_fold_the_prefix_or_system_handles(one: str, other: str, same: bool) -> None:
    assert (handle_key(one) == handle_key(other)) is same
    assert holder(f"300:{one}").matches(ref(f"300:{other}")) is same


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text("abAB/.0é", min_size=1))
def test_matching_handles_are_one_record_if_case_is_ignored(prefix: str, suffix: str) -> None:
    handle = Handle(prefix.replace("/", "") or "p", suffix)
    swapped = Handle(handle.prefix.swapcase(), handle.suffix.swapcase())
    if handle_key(str(handle)) == handle_key(str(swapped)):
        assert CaseRule.INSENSITIVE.key(handle) == CaseRule.INSENSITIVE.key(swapped)


# What is claimed, within a session or not, the key that verified, the index of the reference, and whether it matches.
INDEXES = [
    (300, False, None, 300, True),
    (300, False, None, 0, True),
    (300, False, None, 301, False),
    (300, True, 300, 300, True),
    (300, True, 300, 301, False),
    (0, False, None, 0, True),
    (0, False, None, 300, False),
    (0, False, 300, 0, True),
    (0, False, 300, 300, False),  # outside a session rights are looked up before the key is known
    (0, True, None, 0, True),
    (0, True, None, 300, False),
    (0, True, 300, 0, True),
    (0, True, 300, 300, True),
    (0, True, 300, 301, False),
    (300, False, None, -300, False),
]


@pytest.mark.parametrize("proof", list(Proof))
@pytest.mark.parametrize(("claimed", "session", "verified", "index", "meant"), INDEXES)
def test_index_zero(claimed: int, session: bool, verified: int | None, index: int, meant: bool, proof: Proof) -> None:
    identity = KeyIdentity(ValueRef(claimed, "12345/a"), proof, session, verified)
    assert identity.matches(ValueRef(index, "12345/a")) is meant


def test_empty_handle_matches_nobody() -> None:
    reference = ValueRef(300, "")
    assert not KeyIdentity(reference, Proof.PUBLIC_KEY).matches(reference)

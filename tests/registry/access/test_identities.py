"""Identities as users write them."""

import pytest

from perseid.registry.access.identities import complete_identity


@pytest.mark.parametrize(
    ("text", "on", "meant"),
    [
        ("ann", "12345", "12345/ann"),
        ("ann", "12345/map/1", "12345/ann"),
        ("ann", "0.NA/12345", "12345/ann"),
        ("ann", "0.na/102.100.272", "102.100.272/ann"),
        ("12345/ann", "99", "12345/ann"),
        ("300:12345/ann", "99", "300:12345/ann"),
        ("hdl:12345/ann", "99", "hdl:12345/ann"),
        ("", "12345", ""),
    ],
)
def test_bare_name_is_a_user_of_the_prefix(text: str, on: str, meant: str) -> None:
    assert complete_identity(text, on) == meant

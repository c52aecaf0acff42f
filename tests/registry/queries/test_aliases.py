"""Aliases: where they lead, now and at an earlier time, and where they fail."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Publish, Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.records import Create, Delete, Modify
from perseid.registry.policy.resolution import MAX_ALIASES, AliasOutcome
from perseid.registry.queries.aliases import AliasChain, follow_aliases, resolve_aliases
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.registries import OPERATOR, add_namespace, handle, registry_in_memory

NAME = handle("10.1/thing")
OWNER = ValueRef(300, "10.9/owner")
URL = Value.text(1, "URL", "https://example.org/thing")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        add_namespace(made, "10.1")
        made.do(Create(NAME, (URL,)), OPERATOR, "cli")
        yield made


def alias(registry: Registry, name: str, target: str, **more: object) -> int:
    """An alias as another server registered it, even of itself."""
    value = replace(Value.text(5, "HS_ALIAS", target), **more)  # type: ignore[arg-type]
    return registry.do(Create(handle(name), (value,)), OPERATOR, "import").seq


def follow(registry: Registry, name: str, limit: int = MAX_ALIASES, at: int | None = None) -> AliasChain:
    with registry.snapshot() as snapshot:
        return follow_aliases(snapshot, handle(name), at, limit)


def refusal(registry: Registry, name: str) -> Refused:
    with registry.snapshot() as snapshot, pytest.raises(Refused) as caught:
        resolve_aliases(snapshot, handle(name))
    return caught.value


def test_s2_aliases_are_followed_by_the_rules_of_each_namespace(registry: Registry) -> None:
    """One namespace is case-sensitive and the other is not; queries of CORDRA handles are ignored."""
    add_namespace(registry, "10.2", "exact")
    add_namespace(registry, "2000.1", "cordra")
    path = "F58FB49EB1F848F0A606E84CEF294BE5"
    alias(registry, f"2000.1/{path}", "10.1/Thing")
    alias(registry, "10.2/Exact", f"2000.1/{path.lower()}?part=1")
    alias(registry, "10.2/exact", "10.2/none")
    found = follow(registry, "10.2/Exact")
    assert [str(name) for name in found.chain] == ["10.2/Exact", f"2000.1/{path}", "10.1/thing"]
    assert (found.end, found.last) == (AliasOutcome.FOUND, NAME)
    assert follow(registry, "10.2/exact").end is AliasOutcome.NOT_FOUND
    assert follow(registry, "10.1/thing") == AliasChain((NAME,), AliasOutcome.FOUND)


@pytest.mark.parametrize(
    ("target", "end", "code", "words"),
    [
        ("10.1/A", AliasOutcome.LOOP, ResponseCode.VALUES_NOT_FOUND, "10.1/a leads back to itself"),
        (
            "10.1/none",
            AliasOutcome.NOT_FOUND,
            ResponseCode.HANDLE_NOT_FOUND,
            "of 10.1/none, which does not exist",
        ),
        ("10.77/elsewhere", AliasOutcome.NOT_HOSTED, ResponseCode.SERVER_NOT_RESP, "which is not hosted here"),
        (
            "no name",
            AliasOutcome.UNREADABLE,
            ResponseCode.VALUES_NOT_FOUND,
            "alias of 10.1/a is not a valid handle",
        ),
        ("0.SITE/POLICY/10.1", AliasOutcome.NOT_FOUND, ResponseCode.HANDLE_NOT_FOUND, "which does not exist"),
    ],
)
def test_broken_alias_is_refused_with_a_reason(
    registry: Registry, target: str, end: AliasOutcome, code: ResponseCode, words: str
) -> None:
    alias(registry, "10.1/a", target)
    found = follow(registry, "10.1/a")
    assert found.end is end
    assert found.chain[0] == handle("10.1/a")
    if end is AliasOutcome.NOT_HOSTED:
        assert found.last == handle(target)
    refused = refusal(registry, "10.1/a")
    assert refused.code is code
    assert words in refused.reason


@pytest.mark.parametrize("name", ["10.1/none", "10.77/elsewhere", "10.1/thing"])
def test_handle_that_is_not_an_alias_is_returned(registry: Registry, name: str) -> None:
    with registry.snapshot() as snapshot:
        assert resolve_aliases(snapshot, handle(name)).chain == (handle(name),)


def test_loops_and_long_chains_are_refused(registry: Registry) -> None:
    for number in range(24):
        alias(registry, f"10.1/a{number}", f"10.1/a{number + 1}")
    alias(registry, "10.1/b", "10.1/c")
    alias(registry, "10.1/c", "10.1/b")
    assert [str(name) for name in follow(registry, "10.1/b").chain] == ["10.1/b", "10.1/c", "10.1/b"]
    assert follow(registry, "10.1/b").end is AliasOutcome.LOOP
    found = follow(registry, "10.1/a0")
    assert (found.end, len(found.chain)) == (AliasOutcome.TOO_LONG, MAX_ALIASES + 1)
    assert "more than 20 steps" in refusal(registry, "10.1/a0").reason
    registry.do(Create(handle("10.1/a24"), (URL,)), OPERATOR, "cli")
    assert follow(registry, "10.1/a4").end is AliasOutcome.FOUND, "twenty are followed"
    assert follow(registry, "10.1/a3").end is AliasOutcome.TOO_LONG
    assert follow(registry, "10.1/a0", limit=24).end is AliasOutcome.FOUND


def test_only_public_aliases_are_followed(registry: Registry) -> None:
    alias(registry, "10.1/private", "10.1/thing", permissions=Permission(0x0C))
    assert follow(registry, "10.1/private").chain == (handle("10.1/private"),)
    alias(registry, "10.1/a", "10.1/thing")
    registry.do(Unpublish(NAME), OPERATOR, "cli")
    assert follow(registry, "10.1/a").end is AliasOutcome.NOT_FOUND
    registry.do(Publish(NAME), OPERATOR, "cli")
    registry.do(Tombstone(handle("10.1/a"), "merged", NAME), OPERATOR, "cli")
    assert follow(registry, "10.1/a").chain == (handle("10.1/a"),), "a tombstone leads nowhere by itself"


def test_aliases_are_followed_at_one_time_if_still_public(registry: Registry) -> None:
    before = alias(registry, "10.1/a", "10.1/b")
    then = alias(registry, "10.1/b", "10.1/thing")
    registry.do(Modify(handle("10.1/b"), (Value.text(5, "HS_ALIAS", "10.1/none"),)), OPERATOR, "cli")
    assert follow(registry, "10.1/a").end is AliasOutcome.NOT_FOUND
    chain = (handle("10.1/a"), handle("10.1/b"), NAME)
    assert follow(registry, "10.1/a", at=then) == AliasChain(chain, AliasOutcome.FOUND)
    assert follow(registry, "10.1/a", at=before) == AliasChain(chain[:2], AliasOutcome.NOT_FOUND)
    registry.do(Unpublish(handle("10.1/b")), OPERATOR, "cli")
    assert follow(registry, "10.1/a", at=then) == AliasChain(chain[:2], AliasOutcome.NOT_FOUND), (
        "its past is hidden with it"
    )


@pytest.mark.parametrize("hide", ["reserve", "unpublish", "delete"])
def test_spelling_of_a_hidden_handle_is_not_revealed(registry: Registry, hide: str) -> None:
    secret = handle("10.1/SeCret-Project")
    if hide == "reserve":
        seq = registry.do(Reserve((secret,), OWNER), OPERATOR, "cli").seq
    else:
        seq = registry.do(Create(secret, (URL,)), OPERATOR, "cli").seq
        registry.do(Unpublish(secret) if hide == "unpublish" else Delete(secret), OPERATOR, "cli")
    alias(registry, "10.1/x", "10.1/secret-project")
    for start in ("10.1/x", "10.1/secret-project"):
        found = follow(registry, start)
        assert (found.end, str(found.last)) == (AliasOutcome.NOT_FOUND, "10.1/secret-project")
    assert "10.1/secret-project" in refusal(registry, "10.1/x").reason
    then = follow(registry, "10.1/secret-project", at=seq)
    assert str(then.last) == (str(secret) if hide == "delete" else "10.1/secret-project"), "as far as the past is shown"


def test_hidden_handle_looks_like_a_missing_one(registry: Registry) -> None:
    """By the rules of its namespace, which may normalize to uppercase and ignore queries."""
    add_namespace(registry, "2000.1", "cordra")
    registry.do(Reserve((handle(f"2000.1/{'AB' * 16}"),), OWNER), OPERATOR, "cli")
    for digits in ("ab", "cd"):
        found = follow(registry, f"2000.1/{digits * 16}?part=1")
        assert (found.end, str(found.last)) == (AliasOutcome.NOT_FOUND, f"2000.1/{digits.upper() * 16}")


def test_record_without_public_values_ends_the_chain(registry: Registry) -> None:
    name = Handle.parse("10.1/empty")
    seq = registry.do(Create(name, ()), OPERATOR, "cli").seq
    for at in (None, seq):
        assert follow(registry, str(name), at=at) == AliasChain((name,), AliasOutcome.FOUND)

"""Templates: which template and base apply to a handle without a record, when, and for whom."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import CaseRule, Handle
from perseid.records.record import Permission, Value
from perseid.registry.access.authorization import Settings
from perseid.registry.commands.lifecycle import Publish, Tombstone, Unpublish
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.resolution import AliasOutcome
from perseid.registry.queries import history
from perseid.registry.queries.aliases import follow_aliases
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import Rules
from perseid.wire.codes import ResponseCode
from tests.registry.commands.records_in_every_state import policy, unpublish
from tests.registry.registries import (
    NOBODY,
    OPERATOR,
    add_namespace,
    admin,
    handle,
    key_holder,
    registry_in_memory,
)

PRIVATE = Permission(0x0C)
URL = Value.text(1, "URL", "https://example.org/a")
SECRET = Value(2, "NOTE", b"secret", permissions=PRIVATE)
TEMPLATE = """<namespace><template delimiter="@">
  <if expression="none"><notfound/></if>
  <foreach><if value="type" expression="URL"><value data="${data}?${extension}"/></if></foreach>
</template></namespace>"""
NOT_FOUND = ResponseCode.HANDLE_NOT_FOUND
NO_VALUES = ResponseCode.VALUES_NOT_FOUND


def namespace(text: str = TEMPLATE, index: int = 50) -> Value:
    return Value.text(index, "HS_NAMESPACE", text)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """The namespace 10.1 with a template, and 10.1/a with a URL and a private value."""
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", namespace())
        made.do(Create(handle("10.1/a"), (URL, SECRET)), OPERATOR, "cli")
        yield made


def put(registry: Registry, name: str, *values: Value) -> int:
    return registry.do(Create(handle(name), values, overwrite=True), OPERATOR, "cli").seq


def asked(name: str, registry: Registry, at: int | None = None, identity: Identity = NOBODY, **more: Any) -> Resolution:
    return registry.resolve(replace(Query(Handle.parse_lenient(name)), **more), identity, at)


def data(name: str, registry: Registry, at: int | None = None, **more: Any) -> list[str]:
    return [value.data.decode() for value in asked(name, registry, at, **more).values]


def code(name: str, registry: Registry, at: int | None = None, **more: Any) -> ResponseCode:
    with pytest.raises(Refused) as caught:
        asked(name, registry, at, **more)
    return caught.value.code


# Which template


def test_template_generates_values_for_a_handle_without_a_record(registry: Registry) -> None:
    found = asked("10.1/a@page=7", registry)
    assert found.values == (replace(found.values[0], data=b"https://example.org/a?page=7"),)
    assert (found.handle, found.registered, found.base) == (*[handle("10.1/a@page=7")] * 2, handle("10.1/a"))
    assert (found.by_template, found.state) == (True, State.NORMAL)
    assert asked("10.1/a", registry).by_template is False
    assert data("10.1/A@Page=7", registry) == ["https://example.org/a?Page=7"], "the extension keeps its letters"
    assert code("10.1/a", registry, indexes=(99,)) == NO_VALUES


def test_index_and_type_select_generated_values(registry: Registry) -> None:
    assert data("10.1/a@x", registry, types=("URL",)) == data("10.1/a@x", registry, indexes=(1,))
    assert code("10.1/a@x", registry, types=("EMAIL",)) == NO_VALUES


def test_template_without_values_or_with_notfound(registry: Registry) -> None:
    assert code("10.1/a@none", registry) == NOT_FOUND
    assert code("10.1/nothing@x", registry) == NO_VALUES, "a base without a record counts as empty"
    assert code("10.1/@x", registry) == NO_VALUES
    assert code("10.1/nothing", registry) == NOT_FOUND, "no delimiter is in it"


def test_record_overrides_the_template(registry: Registry) -> None:
    put(registry, "10.1/a@own", Value.text(7, "DESC", "a record of its own"))
    assert data("10.1/a@own", registry) == ["a record of its own"]
    registry.do(Delete(handle("10.1/a@own")), OPERATOR, "cli")
    assert data("10.1/a@own", registry) == ["https://example.org/a?own"]


def test_templated_handle_does_not_exist_for_writes(registry: Registry) -> None:
    for change in (
        Add(handle("10.1/a@x"), (Value.text(9, "DESC", "x"),)),
        Remove(handle("10.1/a@x"), (1,)),
        Modify(handle("10.1/a@x"), (URL,)),
        Delete(handle("10.1/a@x")),
    ):
        with pytest.raises(Refused) as caught:
            registry.do(change, OPERATOR, "cli")
        assert caught.value.code is NOT_FOUND


def test_base_can_have_its_own_namespace_value(registry: Registry) -> None:
    own = namespace('<n><template><value type="T" data="own ${extension}"/></template></n>')
    put(registry, "10.1/b", URL, own)
    assert data("10.1/b@x", registry) == ["own x"]
    put(registry, "10.1/b", URL, namespace("<n><contact>a@example.org</contact></n>"))
    assert data("10.1/b@x", registry) == ["https://example.org/a?x"], "without a template the prefix's counts"


def test_namespace_value_with_the_lowest_index_is_used(registry: Registry) -> None:
    other = '<n><template delimiter="#"><value type="T" data="other"/></template></n>'
    registry.do(Add(handle("0.NA/10.1"), (namespace(other, 40),)), OPERATOR, "cli")
    assert data("10.1/a#x", registry) == ["other"]
    assert code("10.1/a@x", registry) == NOT_FOUND


def test_derived_prefixes_inherit_templates(registry: Registry) -> None:
    for prefix in ("10.1.2", "10.1.2.3"):
        add_namespace(registry, prefix)
        put(registry, f"{prefix}/b", URL)
    assert data("10.1.2.3/b@x", registry) == data("10.1.2/b@x", registry) == ["https://example.org/a?x"]
    own = namespace('<n><template><value type="T" data="nearer"/></template></n>')
    put(registry, "0.NA/10.1.2", own)
    assert data("10.1.2.3/b@x", registry) == ["nearer"], "its delimiter is still that of the one above"
    add_namespace(registry, "10.11")
    put(registry, "10.11/b", URL)
    assert code("10.11/b@x", registry) == NOT_FOUND


def test_slash_can_be_the_delimiter() -> None:
    with registry_in_memory() as made:
        text = '<n><template delimiter="/"><value type="URL" data="https://example.org/${extension}|${base}"/></template></n>'
        add_namespace(made, "10.1", "free", namespace(text))
        found = asked("10.1/any/thing", made)
        assert found.values[0].data == b"https://example.org/any/thing|10.1"
        assert found.base == handle("0.NA/10.1"), "a prefix alone means its prefix handle"


# The setting


@pytest.fixture
def with_setting() -> Iterator[Registry]:
    with registry_in_memory(rules=Rules(Settings(), template_delimiter="::")) as made:
        add_namespace(made, "10.1")
        put(made, "10.1/a", URL, SECRET)
        yield made


def test_delimiter_setting_finds_the_base(with_setting: Registry) -> None:
    found = asked("10.1/a::part", with_setting)
    assert (found.values, found.base) == ((replace(URL, timestamp=found.values[0].timestamp),), handle("10.1/a"))
    assert code("10.1/none::part", with_setting) == NOT_FOUND, "no namespace is known, so the base has to be"
    assert code("10.1/a@part", with_setting) == NOT_FOUND


def test_namespace_overrides_the_delimiter_setting(with_setting: Registry) -> None:
    put(with_setting, "0.NA/10.1", namespace("<n><contact>a@example.org</contact></n>"))
    assert data("10.1/a::part", with_setting) == ["https://example.org/a"]
    assert code("10.1/none::part", with_setting) == NO_VALUES
    put(with_setting, "10.1/b", namespace('<n><template><value type="T" data="${extension}"/></template></n>'))
    assert data("10.1/b::part", with_setting) == ["part"]
    put(with_setting, "0.NA/10.1", namespace())
    assert data("10.1/a@part", with_setting) == ["https://example.org/a?part"]
    assert code("10.1/a::part", with_setting) == NOT_FOUND


# Who sees what


def test_templates_use_only_public_values(registry: Registry) -> None:
    copying = """<n><template delimiter="@"><def parameter="all"><foreach>
      <if value="type" expression="NOTE"><value/></if></foreach></def>
      <value type="LEAK" data="[${all}]"/><foreach><value/></foreach></template></n>"""
    put(registry, "0.NA/10.1", namespace(copying), admin(100, "300:10.1/admin"))
    administrator = key_holder(300, "10.1/admin")
    for identity, public_only in ((NOBODY, True), (NOBODY, False), (administrator, False), (OPERATOR, False)):
        found = asked("10.1/a@x", registry, identity=identity, public_only=public_only)
        assert [value.data for value in found.values] == [b"[]", URL.data]


def test_hidden_namespaces_are_ignored(registry: Registry) -> None:
    put(registry, "0.NA/10.1", replace(namespace(), permissions=PRIVATE))
    assert code("10.1/a@x", registry) == NOT_FOUND
    put(registry, "0.NA/10.1", namespace())
    assert data("10.1/a@x", registry)
    unpublish(registry, namespace(), name="0.NA/10.1")
    assert code("10.1/a@x", registry) == NOT_FOUND


def test_unpublished_base_is_treated_as_missing(registry: Registry) -> None:
    registry.do(Unpublish(handle("10.1/a")), OPERATOR, "cli")
    assert code("10.1/a@x", registry) == code("10.1/nothing@x", registry) == NO_VALUES
    registry.do(Publish(handle("10.1/a")), OPERATOR, "cli")
    assert data("10.1/a@x", registry)


def test_unpublished_handle_is_not_revealed(registry: Registry) -> None:
    registry.do(Create(handle("10.1/a@x"), (URL,), published=False), OPERATOR, "cli")
    assert data("10.1/a@x", registry) == ["https://example.org/a?x"], "as if it did not exist"
    assert data("10.1/a@x", registry, identity=OPERATOR, public_only=False)[0] == "https://example.org/a"


def test_template_applies_to_a_tombstone(registry: Registry) -> None:
    registry.do(Tombstone(handle("10.1/a"), "gone"), OPERATOR, "cli")
    assert code("10.1/a@x", registry) == NO_VALUES
    put(registry, "0.NA/10.1", namespace('<n><template delimiter="@"><value type="T" data="x"/></template></n>'))
    assert asked("10.1/a@x", registry).state is State.TOMBSTONE


def test_session_that_requests_all_values_needs_read_permission(registry: Registry) -> None:
    put(registry, "10.1/b", URL, admin(100, "300:10.1/keeper"))
    keeper, other = (replace(key_holder(300, f"10.1/{name}"), session=True) for name in ("keeper", "other"))
    assert asked("10.1/b@x", registry, identity=keeper, public_only=False).values
    assert code("10.1/b@x", registry, identity=other, public_only=False) is not NOT_FOUND
    assert asked("10.1/b@x", registry, identity=other).values


def test_regular_expressions_ignore_case_where_handles_do() -> None:
    text = '<n><template delimiter="@"><if test="matches" expression="X"><value type="T" data="x"/></if></template></n>'
    with registry_in_memory() as made:
        for prefix, profile in (("10.1", "free"), ("10.2", "exact")):
            add_namespace(made, prefix, profile, namespace(text))
        assert data("10.1/a@x", made) == ["x"]
        assert data("10.2/a@X", made) == ["x"]
        assert code("10.2/a@x", made) == NO_VALUES


# References


def test_references_resolve_to_public_values_here(registry: Registry) -> None:
    stored = Value.text(10, "XML", '<template><value type="T" data="stored ${extension}"/></template>')
    put(registry, "10.1/template", stored)
    refer = '<n><template delimiter="@" ref="{}"/></n>'

    def through(reference: str) -> list[str] | ResponseCode:
        put(registry, "0.NA/10.1", namespace(refer.format(reference)))
        try:
            return data("10.1/a@x", registry)
        except Refused as refused:
            return refused.code

    assert through("10:10.1/template") == ["stored x"]
    assert through("10:10.1/none") == through("11:10.1/template") == NOT_FOUND
    assert through("10:10.99/elsewhere") == through("1:0.SITE/POLICY/10.1") == NOT_FOUND
    assert through("10:" + "x" * 10) == NOT_FOUND
    put(registry, "10.1/template", replace(stored, permissions=PRIVATE))
    assert through("10:10.1/template") == NOT_FOUND
    assert through("50:0.NA/10.1") == NOT_FOUND, "a template that refers to itself"


def test_template_that_exceeds_its_budget_is_refused(registry: Registry) -> None:
    value = '<value type="T" data="${extension}"/>'
    put(registry, "0.NA/10.1", namespace(f'<n><template delimiter="@">{value * 900}</template></n>'))
    with pytest.raises(Refused, match="produces more than 262,144 bytes") as caught:
        asked(f"10.1/a@{'x' * 1_500}", registry)
    assert caught.value.code is ResponseCode.ERROR


# The past


def test_template_and_base_are_those_of_the_requested_time(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        first = snapshot.reader.size
    put(registry, "10.1/a", Value.text(1, "URL", "https://example.org/b"))
    changed = '<n><template delimiter="@"><foreach><value data="${data}#${extension}"/></foreach></template></n>'
    second = put(registry, "0.NA/10.1", namespace(changed))
    third = put(registry, "10.1/a@x", Value.text(1, "URL", "https://example.org/own"))
    gone = registry.do(Delete(handle("10.1/a@x")), OPERATOR, "cli").seq
    put(registry, "0.NA/10.1", Value.text(1, "DESC", "no template any more"))
    assert code("10.1/a@x", registry) == NOT_FOUND
    assert data("10.1/a@x", registry, first) == ["https://example.org/a?x"]
    assert data("10.1/a@x", registry, second - 1) == ["https://example.org/b?x"]
    assert data("10.1/a@x", registry, second) == ["https://example.org/b#x"]
    assert data("10.1/a@x", registry, third) == ["https://example.org/own"]
    assert data("10.1/a@x", registry, gone) == ["https://example.org/b#x"]
    assert code("10.1/a@x", registry, 1) == NOT_FOUND
    then = asked("10.1/a@x", registry, second)
    assert (then.seq, then.by_template, then.base) == (second, True, handle("10.1/a"))
    assert code("10.1/a@none", registry, first) == NOT_FOUND


def test_templates_do_not_use_versions_hidden_since(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        first = snapshot.reader.size
    registry.do(Modify(handle("10.1/a"), (replace(URL, permissions=PRIVATE),)), OPERATOR, "cli")
    assert code("10.1/a@x", registry, first) == NO_VALUES
    unpublish(registry, namespace(), name="0.NA/10.1")
    assert code("10.1/a@x", registry, first) == NOT_FOUND


def test_templates_do_not_reveal_a_hidden_history() -> None:
    with registry_in_memory() as made:
        add_namespace(made, "10.1", policy(show_past=False), namespace())
        first = put(made, "10.1/a", URL)
        put(made, "10.1/a", Value.text(1, "URL", "https://example.org/b"))
        assert code("10.1/a@x", made, first) is ResponseCode.INSUFFICIENT_PERMISSIONS


def test_expressions_use_the_case_rule_of_the_requested_time() -> None:
    text = '<n><template delimiter="@"><if test="matches" expression="X"><value type="T" data="x"/></if></template></n>'
    with registry_in_memory() as made:
        add_namespace(made, "10.1", policy(), namespace(text))
        folded = put(made, "10.1/a", URL)
        assert data("10.1/a@x", made, folded) == ["x"]
        made.do(SetPolicy("10.1", policy(case=CaseRule.SENSITIVE), change_case=True), OPERATOR, "cli")
        exact = put(made, "10.1/b", URL)
        assert data("10.1/a@x", made, folded) == ["x"], "what was cited once stays the same"
        assert code("10.1/a@x", made) == code("10.1/a@x", made, exact) == NO_VALUES
        made.do(SetPolicy("10.1", policy(), change_case=True), OPERATOR, "cli")
        assert data("10.1/a@x", made) == data("10.1/a@x", made, folded) == ["x"]
        assert code("10.1/a@x", made, exact) == NO_VALUES
        assert code("0.NA/10.1@x", made, exact) == NOT_FOUND, "a prefix handle, in whose name letters never count"


def refusal(name: str, registry: Registry, at: int) -> Refused:
    with pytest.raises(Refused) as caught:
        asked(name, registry, at)
    return caught.value


@pytest.mark.parametrize("long", ["10.1/a", "0.NA/10.1", "10.1/template"])
def test_refusal_of_a_long_history_names_the_requested_handle(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    put(registry, "10.1/template", Value.text(10, "XML", '<template><value type="T" data="stored"/></template>'))
    changing = [namespace('<n><template delimiter="@" ref="10:10.1/template"/></n>')]
    seq = put(registry, "0.NA/10.1", *changing)
    assert data("10.1/a@x", registry, seq) == ["stored"]
    for number in range(10):
        put(registry, long, Value.text(1, "DESC", str(number)), namespace())
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 20)
    refused = refusal("10.1/a@x", registry, seq)
    assert refused.code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert refused.reason == "The history of a record that 10.1/a@x is derived from is hidden"


def test_history_of_template_and_base_shares_one_budget(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry.snapshot() as snapshot:
        first = snapshot.reader.size
    for number in range(10):
        put(registry, "10.1/a", Value.text(1, "URL", str(number)))
        put(registry, "0.NA/10.1", namespace(), Value.text(1, "DESC", str(number)))
    assert data("10.1/a@x", registry, first) == ["https://example.org/a?x"]
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 40)  # enough for either, and not for both
    assert refusal("10.1/a@x", registry, first).code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert asked("10.1/a", registry, first).values
    assert asked("0.NA/10.1", registry, first).values


# Aliases


def test_s2_templated_handle_can_be_an_alias(registry: Registry) -> None:
    text = '<n><template delimiter="@"><value type="HS_ALIAS" data="10.1/${extension}"/></template></n>'
    seq = put(registry, "0.NA/10.1", namespace(text))
    for at in (None, seq):
        with registry.snapshot() as snapshot:
            found = follow_aliases(snapshot, handle("10.1/x@A"), at)
            assert (found.end, [str(name) for name in found.chain]) == (AliasOutcome.FOUND, ["10.1/x@A", "10.1/a"])
            assert follow_aliases(snapshot, handle("10.1/x@y"), at).end is AliasOutcome.NOT_FOUND
            assert follow_aliases(snapshot, handle("10.1/x@x@x"), at).end is AliasOutcome.NOT_FOUND


def test_alias_can_point_to_a_templated_handle(registry: Registry) -> None:
    put(registry, "10.1/alias", Value.text(1, "HS_ALIAS", "10.1/A@Page"))
    with registry.snapshot() as snapshot:
        found = follow_aliases(snapshot, handle("10.1/alias"))
    assert (found.end, str(found.last)) == (AliasOutcome.FOUND, "10.1/A@Page"), "with the letters that it was asked for"


# Writing


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<n>", "invalid XML"),
        ("<!DOCTYPE n><n/>", "the XML has a DOCTYPE"),
        ("<n><template><vlaue/></template></n>", "<vlaue> is unknown"),
        ('<n><template><if test="matches" expression="(a)\\1"/></template></n>', "backreference"),
        ('<n><template><if test="matches" expression="(?!a)"/></template></n>', "lookaround"),
    ],
)
def test_unusable_template_is_refused(registry: Registry, text: str, sentence: str) -> None:
    wrong = namespace(text, 60)
    prefix_handle = handle("0.NA/10.1")
    for change in (
        Add(prefix_handle, (wrong,)),
        Modify(prefix_handle, (replace(wrong, index=50),)),
        Create(prefix_handle, (wrong,), overwrite=True),
        Create(handle("10.1/new"), (replace(wrong, type="hs_namespace.x"),)),
        AddNamespace("10.2", PROFILES["free"], (wrong,)),
    ):
        with pytest.raises(Refused) as caught:
            registry.do(change, OPERATOR, "cli")
        assert caught.value.code is ResponseCode.INVALID_VALUE
        assert sentence in caught.value.reason
        assert caught.value.reason.startswith("Invalid HS_NAMESPACE value at index")
    assert data("10.1/a@x", registry) == ["https://example.org/a?x"]


def test_existing_template_does_not_block_other_changes(registry: Registry) -> None:
    """What another server wrote is kept, and used as far as possible."""
    text = """<n><template delimiter="@"><if test="matches" expression="(a)\\1"><value type="T" data="matched"/></if>
      <else><value type="T" data="no match"/></else></template></n>"""
    registry.do(Create(handle("0.NA/10.1"), (namespace(text),), overwrite=True), OPERATOR, "import")
    assert data("10.1/a@aa", registry) == ["no match"]
    registry.do(Add(handle("0.NA/10.1"), (Value.text(1, "DESC", "more"),)), OPERATOR, "cli")
    with pytest.raises(Refused, match="backreference"):
        registry.do(Modify(handle("0.NA/10.1"), (namespace(text + " "),)), OPERATOR, "cli")


# What resolvers know


def flag(registry: Registry, prefix: str) -> bool:
    answers = registry.ledger.answers
    assert answers.catch_up(registry.ledger.log.open_reader)
    item = answers.get_prefix(prefix.encode())
    return item is not None and bool(item[0] & 0x08)


def test_resolvers_notice_added_and_removed_templates(registry: Registry) -> None:
    assert flag(registry, "10.1")
    put(registry, "0.NA/10.1", namespace("<n/>"))
    assert not flag(registry, "10.1")
    put(registry, "0.NA/10.1", namespace())
    registry.do(Home("0.NA/10.1", unhome=True), OPERATOR, "cli")
    assert flag(registry, "10.1"), "what the prefix handle says does not depend on who answers for the prefix"
    assert code("10.1/a@x", registry) is ResponseCode.SERVER_NOT_RESP
    registry.do(Home("0.NA/10.1"), OPERATOR, "cli")
    assert data("10.1/a@x", registry) == ["https://example.org/a?x"]
    registry.do(Delete(handle("0.NA/10.1")), OPERATOR, "cli")
    assert not flag(registry, "10.1")
    assert code("10.1/a@x", registry) == NOT_FOUND


def test_copy_of_an_external_prefix_handle_is_used() -> None:
    """Under an external root another server hosts the prefix handle; the copy here is used."""
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", namespace())
        put(made, "10.1/a", URL)
        made.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
        seq = put(made, "10.1/b", URL)
        assert code("0.NA/10.1", made) is ResponseCode.SERVER_NOT_RESP
        assert data("10.1/a@x", made) == data("10.1/a@x", made, seq) == ["https://example.org/a?x"]


def test_invalid_policy_does_not_reveal_templates(registry: Registry) -> None:
    stored = Value.text(10, "XML", "<template/>")
    add_namespace(registry, "10.2")
    put(registry, "10.2/t", stored)
    put(registry, "0.NA/10.1", namespace('<n><template delimiter="@" ref="10:10.2/t"/></n>'))
    assert code("10.1/a@x", registry) == NO_VALUES
    broken = Draft(
        Action.UPDATE, State.NORMAL, "0.SITE/POLICY/10.2", "test", "local:test", "", (Value(1, "PERSEID_POLICY", b"="),)
    )
    registry.ledger.append(Append(broken))
    assert code("10.1/a@x", registry) == NOT_FOUND

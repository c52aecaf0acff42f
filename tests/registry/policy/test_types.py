"""Types are handles that resolve to their definition, and a namespace can validate data against them (A6)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from perseid.records.data_types import Definition
from perseid.records.json_schema import Violation
from perseid.records.patterns import ValidationBudget
from perseid.records.record import Permission, Value
from perseid.records.titles import DESCRIPTIONS, TITLES
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Modify
from perseid.registry.context import MAX_WARNINGS
from perseid.registry.policy import types
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.types import (
    MAX_COMPARED_TYPES,
    check_types,
    definition_values,
    find_type_typos,
    get_registered_type,
    is_known_type,
    nearest_type,
)
from perseid.registry.queries.citation import CREATORS, DATES, PUBLISHERS
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.registries import OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

CHECKED = replace(PROFILES["free"], registered_types=True, validate_types=True)
SCALE = Definition.make("Scale", "The scale of a map.", pattern="1:[1-9][0-9]*", example="1:25000")
SIZE = Definition.make(
    "Size", "How large it is.", schema={"properties": {"mm": {"type": "integer"}}, "additionalProperties": False}
)
PRIVATE = Permission.ADMIN_READ | Permission.ADMIN_WRITE


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Types under 10, and 20 whose data is checked against them."""
    with registry_in_memory() as made:
        add_namespace(made, "10")
        add_namespace(made, "20", CHECKED, admin(100, "300:99/owner"))
        made.do(Create(handle("10/SCALE"), definition_values(SCALE)), OPERATOR, "cli")
        made.do(Create(handle("10/SIZE"), definition_values(SIZE)), OPERATOR, "cli")
        yield made


def create(registry: Registry, name: str, *values: Value, interface: str = "native") -> None:
    registry.do(Create(handle(name), values), OPERATOR, interface)


def refused(registry: Registry, name: str, *values: Value, interface: str = "native") -> Refused:
    explained = registry.explain(Create(handle(name), values), OPERATOR, interface)
    with pytest.raises(Refused) as caught:
        create(registry, name, *values, interface=interface)
    assert caught.value.code is ResponseCode.INVALID_VALUE
    assert (explained.allowed, explained.reason) == (False, caught.value.reason)
    return caught.value


def test_a6_type_is_a_handle_that_resolves_to_its_definition(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        found = get_registered_type(snapshot.stored(handle("10/scale")))
    assert found is not None
    assert (str(found.handle), found.definition, found.problem) == ("10/SCALE", SCALE, "")
    assert found.description == "Scale: The scale of a map."


def test_a6_data_is_checked_against_the_definition_of_its_type(registry: Registry) -> None:
    create(registry, "20/a", Value.text(1, "10/SCALE", "1:50000"), Value.text(2, "10/size", '{"mm": 3}'))
    pattern = refused(registry, "20/b", Value.text(3, "10/SCALE", "large"))
    assert pattern.reason == (
        'value 3 does not match its type \'10/SCALE\': the data violates the rule "pattern": "1:[1-9][0-9]*"; '
        "the policy of this namespace says: validate_types = true"
    )
    assert pattern.advice == AdviceKind.SEE_TYPE(type="10/SCALE")
    schema = refused(registry, "20/b", Value.text(1, "10/SIZE", '{"mm": 3.5}'))
    assert 'the data at /mm violates the rule "type": "integer" (#/properties/mm/type of the schema)' in schema.reason
    assert "invalid JSON" in refused(registry, "20/b", Value.text(1, "10/SIZE", "3 mm")).reason


def test_data_is_checked_by_every_interface_and_command(registry: Registry) -> None:
    good, bad = Value.text(1, "10/SCALE", "1:1"), Value.text(1, "10/SCALE", "no")
    for interface in ("native", "http", "cli", "import"):
        refused(registry, "20/a", bad, interface=interface)
    create(registry, "20/a", good)
    for operation in (
        Modify(handle("20/a"), (bad,)),
        Add(handle("20/a"), (replace(bad, index=5),)),
        Create(handle("20/a"), (bad,), overwrite=True),
    ):
        with pytest.raises(Refused, match="does not match its type"):
            registry.do(operation, OPERATOR, "native")
    with pytest.raises(Refused, match="does not match its type"):
        registry.do(Create(handle("20/b"), (bad,)), key_holder(300, "99/owner"), "native")


def test_a_refusal_never_shows_the_data(registry: Registry) -> None:
    for type_, data in (("10/SCALE", "hunter2"), ("10/SIZE", '{"mm": "hunter2"}'), ("10/SIZE", "hunter2")):
        found = refused(registry, "20/a", replace(Value.text(1, type_, data), permissions=PRIVATE))
        assert "hunter2" not in str(found)


def test_types_elsewhere_or_without_a_pattern_are_accepted(registry: Registry) -> None:
    create(registry, "10/WORDS", Value.text(1, "DESC", "a type in words"))
    create(registry, "20/a", Value.text(1, "10/WORDS", "x"), Value.text(2, "88.1/ELSEWHERE", "y"), Value(3, "URL", b""))


def test_record_without_a_definition_is_not_a_type(registry: Registry) -> None:
    create(registry, "10/MAP", Value.text(1, "URL", "https://example.org/"))
    hidden = replace(Value.text(1, "DESC", "hidden"), permissions=PRIVATE)
    create(registry, "10/HIDDEN", hidden, Value.text(2, "URL", "https://example.org/"))
    for type_ in ("10/MAP", "10/HIDDEN", "10/NONE", "WORD"):
        found = refused(registry, "20/a", Value.text(1, type_, "x"))
        assert found.reason.startswith(f"the type '{type_}' is not registered; the policy")
        assert found.advice == (AdviceKind.DEFINE_TYPE(type=type_) if "/" in type_ else AdviceKind.LIST_TYPES())
    registry.do(Delete(handle("10/SCALE")), OPERATOR, "cli")
    refused(registry, "20/a", Value.text(1, "10/SCALE", "1:1"))


def test_types_of_the_server_need_no_definition(registry: Registry) -> None:
    create(registry, "20/a", Value.text(1, CHECKED.tombstone_reason_type, "gone"))


def test_known_types(registry: Registry) -> None:
    with registry.snapshot() as snapshot:
        policy = snapshot.policy("10")
        cited = (*TITLES, *CREATORS, *DATES, *PUBLISHERS, *DESCRIPTIONS, "DC.TITLE")
        for type_ in ("URL", "URL.us", "HS_ALIAS", "LINK.WORK", "10/SCALE", "88.1/ELSEWHERE", "10320/loc", *cited):
            assert is_known_type(snapshot, policy, type_), type_
        typos = (("url", "URL"), ("title", "TITLE"), ("EMIAL", "EMAIL"), ("Name/Title", "TITLE"))
        for type_, meant in (*typos, ("CHECKSUM", ""), ("10/X", ""), ("https://example.org/1", "")):
            assert (is_known_type(snapshot, policy, type_), nearest_type(policy, type_)) == (False, meant)


def test_unchanged_values_are_not_checked_again(registry: Registry) -> None:
    create(registry, "20/a", Value.text(1, "10/SCALE", "1:1"))
    stricter = Definition.make("Scale", "The scale.", pattern="1:[1-9][0-9]{4,}")
    registry.do(Modify(handle("10/SCALE"), (Value(2, "PERSEID_TYPE", stricter.to_bytes()),)), OPERATOR, "cli")
    registry.do(Add(handle("20/a"), (Value.text(2, "URL", "https://example.org/"),)), OPERATOR, "cli")
    refused(registry, "20/b", Value.text(1, "10/SCALE", "1:1"))
    with registry.snapshot() as snapshot:
        (found,) = check_types(snapshot, CHECKED, snapshot.stored(handle("20/a")).values)
    assert found.key == "validate_types"


def test_existing_types_need_no_definition(registry: Registry) -> None:
    """Neither types older than the policy nor deleted ones block other corrections."""
    registry.do(SetPolicy("20", replace(CHECKED, registered_types=False)), OPERATOR, "cli")
    words = (Value.text(1, "WORD", "x"), Value.text(2, "10/NONE", "x"))
    create(registry, "20/a", *words, Value.text(3, "10/SCALE", "1:1"))
    registry.do(SetPolicy("20", CHECKED), OPERATOR, "cli")
    registry.do(Delete(handle("10/SCALE")), OPERATOR, "cli")
    url = Value.text(4, "URL", "https://example.org/")
    registry.do(Add(handle("20/a"), (url,)), OPERATOR, "native")
    registry.do(Modify(handle("20/a"), (Value.text(1, "word", "y"),)), OPERATOR, "native")
    with pytest.raises(Refused, match="'10/OTHER' is not registered"):
        registry.do(Add(handle("20/a"), (Value.text(5, "10/OTHER", "x"),)), OPERATOR, "native")
    refused(registry, "20/b", Value.text(1, "10/SCALE", "1:1"))
    with registry.snapshot() as snapshot:
        found = list(check_types(snapshot, CHECKED, snapshot.stored(handle("20/a")).values))
    assert [each.key for each in found] == ["registered_types"] * 3, "a check of the whole lists them"


def test_policy_without_type_rules_checks_nothing(registry: Registry) -> None:
    create(registry, "10/a", Value.text(1, "10/SCALE", "no"), Value.text(2, "WORD", "x"))
    registry.do(SetPolicy("20", replace(CHECKED, registered_types=False)), OPERATOR, "cli")
    create(registry, "20/a", Value.text(1, "WORD", "x"))
    refused(registry, "20/b", Value.text(1, "10/SCALE", "no"))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (b"{", "invalid JSON"),
        (Definition.make("a", "b", pattern=r"(a)\1").to_bytes(), "backreference at character 4"),
        (Definition.make("a", "b", pattern="a(?!b)").to_bytes(), "lookaround"),
        (Definition.make("a", "b", pattern="[a&&b]").to_bytes(), "intersection"),
        (Definition.make("a", "b", schema={"$ref": "#/a"}).to_bytes(), "at /$ref: '$ref' is not a supported keyword"),
        (Definition.make("a", "b", pattern="a", example="b").to_bytes(), "the example is not valid for the type"),
    ],
)
def test_unusable_definition_is_refused_in_every_namespace(registry: Registry, definition: bytes, reason: str) -> None:
    found = refused(registry, "10/NEW", Value(2, "PERSEID_TYPE", definition))
    assert found.reason.startswith("Value 2 is not a valid type definition: ")
    assert reason in found.reason
    assert found.rule == "A6"


def test_record_can_define_only_one_type(registry: Registry) -> None:
    found = refused(registry, "10/TWO", *definition_values(SCALE), Value(3, "perseid_type", SIZE.to_bytes()))
    assert found.reason == "Values 2 and 3 both define a type; a record can define one"


def test_record_with_too_many_types_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.policy.types.MAX_CHECKED_TYPES", 1)
    create(registry, "20/a", Value.text(1, "10/SCALE", "1:1"), Value.text(2, "10/SCALE", "1:2"))
    both = (Value.text(1, "10/SCALE", "1:1"), Value.text(2, "10/SIZE", "{}"))
    assert "more than 1 types" in refused(registry, "20/b", *both).reason
    registry.do(Add(handle("20/a"), (Value.text(3, "10/SIZE", "{}"),)), OPERATOR, "native")


def test_types_without_a_definition_do_not_use_the_limit(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.policy.types.MAX_CHECKED_TYPES", 1)
    for name in ("10/WORDS", "10/OTHERS"):
        create(registry, name, Value.text(1, "DESC", "a type in words"))
    words = (Value.text(1, "10/WORDS", "x"), Value.text(2, "10/OTHERS", "x"), Value.text(3, "88.1/ELSEWHERE", "x"))
    create(registry, "20/a", *words, Value.text(4, "10/SCALE", "1:1"))


def applied(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Collects the data that definitions are applied to."""
    seen: list[bytes] = []
    violation = Definition.violation

    def counted(self: Definition, data: bytes, budget: ValidationBudget) -> Violation | None:
        seen.append(data)
        return violation(self, data, budget)

    monkeypatch.setattr(Definition, "violation", counted)
    return seen


def test_no_definition_is_applied_beyond_the_limit(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.policy.types.MAX_CHECKED_TYPES", 3)
    for number in range(20):
        same = Definition.make(f"T{number}", "Any text.", pattern=".*")
        create(registry, f"10/T{number}", *definition_values(same))
    values = [Value.text(number + 1, f"10/T{number}", str(number)) for number in range(20)]
    seen = applied(monkeypatch)
    with registry.snapshot() as snapshot:
        (found,) = check_types(snapshot, CHECKED, values)
    assert "more than 3 types" in found.message
    assert seen == [b"0", b"1", b"2"]


def large_schema(number: int) -> Definition:
    parts: dict[str, object] = {f"d{part}": {} for part in range(100)}
    return Definition.make("a", "b", schema={"title": str(number), "properties": parts})


def large_pattern(number: int) -> Definition:
    return Definition.make("a", "b", pattern=f".*|{number}" + "a" * 800)


@pytest.mark.parametrize("large", [large_schema, large_pattern])
def test_definitions_that_exceed_the_budget_are_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, large: Callable[[int], Definition]
) -> None:
    for number in range(30):
        create(registry, f"10/T{number}", *definition_values(large(number)))
    values = [Value.text(number + 1, f"10/T{number}", "1") for number in range(30)]
    seen = applied(monkeypatch)
    with registry.snapshot() as snapshot:
        (found,) = check_types(snapshot, CHECKED, values)
    assert "too large in total" in found.message
    assert 5 < len(seen) < 15


def test_check_stops_at_the_first_invalid_value(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unusable definition is not cached, and would be tried again for every value."""
    with monkeypatch.context() as lenient:
        lenient.setattr("perseid.registry.commands.composition.check_definitions", lambda *_: None)
        create(registry, "10/OLD", *definition_values(Definition.make("a", "b", schema={"$ref": "#none"})))
    seen = applied(monkeypatch)
    with registry.snapshot() as snapshot:
        values = [Value.text(number, "10/OLD", str(number)) for number in range(1, 50)]
        (found,) = check_types(snapshot, CHECKED, values)
    assert "'$ref' is not a supported keyword" in found.message
    assert seen == [b"1"]


def test_existing_unusable_definition_stays_and_matches_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade with stricter rules for definitions."""
    with monkeypatch.context() as lenient:
        lenient.setattr("perseid.registry.commands.composition.check_definitions", lambda *_: None)
        old = Definition.make("a", "b", pattern=r"(a)\1")
        create(registry, "10/OLD", *definition_values(old))
        create(registry, "10/BROKEN", Value(1, "PERSEID_TYPE", b"{"))
    registry.do(Add(handle("10/OLD"), (Value.text(3, "URL", "https://example.org/"),)), OPERATOR, "cli")
    assert "backreference" in refused(registry, "20/a", Value.text(1, "10/OLD", "aa")).reason
    assert "its definition is invalid" in refused(registry, "20/a", Value.text(1, "10/BROKEN", "aa")).reason


def test_existing_schema_with_an_unsupported_keyword_stays_readable_and_refuses_new_values(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Definition.make("Old", "An old type.", schema={"allOf": [{"type": "string"}]})
    with monkeypatch.context() as lenient:
        lenient.setattr("perseid.registry.commands.composition.check_definitions", lambda *_: None)
        lenient.setattr("perseid.registry.commands.composition.check_types", lambda *_: iter(()))
        create(registry, "10/OLD", *definition_values(old))
        create(registry, "20/a", Value.text(1, "10/OLD", '"x"'))
    with registry.snapshot() as snapshot:
        registered = get_registered_type(snapshot.stored(handle("10/OLD")))
        assert registered is not None
        assert registered.definition == old
        assert snapshot.stored(handle("20/a")).values[0].data == b'"x"'
    new = refused(registry, "20/b", Value.text(1, "10/OLD", '"x"')).reason
    assert "'10/OLD': invalid schema at /allOf: 'allOf' is not a supported keyword; supported are type, " in new
    for changed in ("20/a", "10/OLD"):  # other values can change, and the definition can be corrected
        registry.do(Add(handle(changed), (Value.text(3, "URL", "https://example.org/"),)), OPERATOR, "cli")
    corrected = Definition.make("Old", "An old type.", schema={"type": "string"})
    registry.do(Modify(handle("10/OLD"), (definition_values(corrected)[1],)), OPERATOR, "cli")
    create(registry, "20/b", Value.text(1, "10/OLD", '"x"'))


def test_a6_types_of_a_new_namespace_have_definitions() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "102.100.TYPE")
        add_namespace(registry, "102.100.272", replace(PROFILES["pilin"], default_creator="88.1/creator"))
        with registry.snapshot() as snapshot:
            for name in ("CREATION_DATE", "CREATOR", "TOMBSTONE.REASON", "LINK.WORK"):
                found = get_registered_type(snapshot.stored(handle(f"102.100.TYPE/{name}")))
                assert found is not None
                assert found.definition is not None
                assert found.definition.name == name
                found.definition.check()


def test_namespace_that_forbids_definitions_gets_descriptions() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "102.100.TYPE", replace(PROFILES["free"], allowed_types=("DESC",)))
        add_namespace(registry, "102.100.272", replace(PROFILES["pilin"], default_creator="88.1/creator"))
        with registry.snapshot() as snapshot:
            assert [value.type for value in snapshot.stored(handle("102.100.TYPE/CREATOR")).values] == ["DESC"]


def record_comparisons(monkeypatch: pytest.MonkeyPatch, meant: str) -> list[str]:
    """The types that are compared with the built-in ones from now on; each is nearly `meant`."""
    compared: list[str] = []

    def get_meant_type(base: str) -> str:
        compared.append(base)
        return meant

    monkeypatch.setattr(types, "_get_meant_type", get_meant_type)
    return compared


def test_search_for_typos_is_bounded_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = record_comparisons(monkeypatch, "")
    old = [Value.text(index, f"OLD{index}", "x") for index in range(1, 101)]
    new = [Value.text(index, f"NEW{index}", "x") for index in range(101, 201)]
    assert list(find_type_typos(PROFILES["free"], [*old, *new, *new], old)) == []
    assert compared == [f"NEW{index}" for index in range(101, 101 + MAX_COMPARED_TYPES)]


def test_search_for_typos_ends_with_the_last_warning(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = record_comparisons(monkeypatch, "URL")
    values = tuple(Value.text(index, f"TYPO{index}", "x") for index in range(1, MAX_WARNINGS + 11))
    done = registry.do(Create(handle("10/typos"), values), OPERATOR, "cli")
    assert len(done.warnings) == len(compared) == MAX_WARNINGS


def test_typo_in_a_registered_type_is_a_warning(registry: Registry) -> None:
    """Only types of this installation are compared, and the record is stored."""
    values = [("10/SCALLE", "1:1"), ("10/scale", "1:1"), ("10/LICENSE", "x"), ("99/SCALLE", "x")]
    record = tuple(Value.text(number, *each) for number, each in enumerate(values, 1))
    done = registry.do(Create(handle("10/map"), record), OPERATOR, "cli")
    warning = "Value 1 has the type '10/SCALLE', which clients may not know. Use 10/SCALE, if you mean that"
    assert [*map(str, done.warnings)] == [warning]
    again = registry.do(Add(handle("10/map"), (Value.text(5, "URL", "https://example.org/"),)), OPERATOR, "cli")
    assert again.warnings == (), "what it had before is not reported again"
    found = refused(registry, "20/a", Value.text(1, "10/SCALLE", "1:1"))
    assert "the type '10/SCALLE' is not registered; did you mean 10/SCALE?" in found.reason

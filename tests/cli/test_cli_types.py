"""`perseid type`: register, list and show types; validation in namespaces; and `check`."""

import json
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.reader import LogReader
from perseid.records.data_types import Definition
from tests.cli.installation import Site, refused, site

SCHEMA = {"type": "object", "required": ["mm"], "properties": {"mm": {"type": "integer"}}}
ADD = "type add 102.100.TYPE/SCALE --definition 'The scale of a map'"


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


def add_checked_namespace(demo: Site) -> None:
    """Add a namespace that accepts only registered types with valid data."""
    policy = b'profile = "free"\nregistered_types = true\nvalidate_types = true\n'
    done = demo("namespace add 12345 --policy -", stdin=policy)
    assert done.code == 0, done


def test_a6_data_is_validated_against_a_registered_type(demo: Site) -> None:
    assert demo.lines(f"{ADD} --pattern '1:[1-9][0-9]*' --example 1:25000 --name Scale") == ["102.100.TYPE/SCALE"]
    add_checked_namespace(demo)
    demo.ok("create 12345/a --value 102.100.TYPE/SCALE=1:50000")
    refused(
        demo("create 12345/b --value 102.100.TYPE/SCALE=large"),
        "Value 1 does not match its type '102.100.TYPE/SCALE'",
        'violates the rule "pattern": "1:[1-9][0-9]*"',
        "validate_types = true",
        "perseid type show 102.100.TYPE/SCALE",
    )
    refused(demo("create 12345/b --value 102.100.TYPE/OTHER=x"), "is not registered", "registered_types = true")
    done = demo("explain set 12345/a 102.100.TYPE/SCALE=small")
    assert (done.code, done.out.startswith("refused: value 1 does not match its type")) == (4, True)


def test_schema_is_read_from_a_file_or_standard_input(demo: Site, tmp_path: Path) -> None:
    (tmp_path / "size.json").write_text(json.dumps(SCHEMA))
    demo.ok("type add 102.100.TYPE/SIZE --definition 'How large' --schema", str(tmp_path / "size.json"))
    demo.ok("type add 102.100.TYPE/WIDTH --definition 'How wide' --schema -", stdin=json.dumps(SCHEMA).encode())
    add_checked_namespace(demo)
    demo.ok("create 12345/a", "--value", '102.100.TYPE/SIZE={"mm": 3}')
    refused(demo("create 12345/b", "--value", '102.100.TYPE/WIDTH={"mm": "3"}'), "at /mm violates", "integer")
    shown = demo.ok("type show 102.100.TYPE/SIZE --json").json
    assert shown == {
        "handle": "102.100.TYPE/SIZE",
        "name": "SIZE",
        "description": "How large",
        "schema": SCHEMA,
        "seq": shown["seq"],
    }
    assert f"schema       {json.dumps(SCHEMA, separators=(',', ':'))}" in demo.lines("type show 102.100.TYPE/SIZE")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([r"--pattern=(a)\1"], "backreference at character 4"),
        (["--pattern=a(?=b)"], "lookaround"),
        (["--pattern=[a-z&&[^b]]"], "intersection of classes"),
        (["--pattern=[0-9]+", "--example=x"], "the example is not valid for the type"),
    ],
)
def test_invalid_definitions_are_refused(demo: Site, options: list[str], words: str) -> None:
    refused(demo(ADD, *options), words)
    assert demo("type show 102.100.TYPE/SCALE").code == 3


def test_hostile_schemas_are_refused_with_a_location(demo: Site) -> None:
    for schema, words in (
        ({"$ref": "https://example.org/"}, "at /$ref: '$ref' is not a supported keyword; supported are type, "),
        ({"items": {"pattern": r"(a)\1"}}, "at /items/pattern"),
    ):
        refused(demo(f"{ADD} --schema -", stdin=json.dumps(schema).encode()), words)
    refused(demo(f"{ADD} --schema -", stdin=b"{"), "Invalid JSON", code=1)
    assert demo(f"{ADD} --schema - --pattern a", stdin=b"{}").code == 2


def test_type_is_registered_once_under_a_hosted_prefix(demo: Site) -> None:
    demo.ok(ADD)
    refused(demo(ADD), "already exists")
    refused(demo("type add 88.1/X --definition y"), "This server does not host prefix 88.1", code=3)
    refused(demo("type add 102.100.TYPE/NEW --definition y --as 300:12345/ann"), "cannot create")


def test_types_of_the_demonstration_are_listed_and_shown(demo: Site) -> None:
    lines = demo.lines("type list")
    assert lines[:2] == ["102.100.TYPE/CREATION_DATE  CREATION_DATE", "102.100.TYPE/CREATOR  CREATOR"]
    assert demo.lines("type list 102.100.TYPE") == lines
    found = [json.loads(line) for line in demo.lines("type list --json")]
    assert [item["handle"] for item in found] == [line.partition(" ")[0] for line in lines]
    assert demo.lines("type list 2000.01") == []
    assert demo.lines("type show hdl:102.100.TYPE/creation_date") == [
        "handle       102.100.TYPE/CREATION_DATE",
        "name         CREATION_DATE",
        "description  When the identifier was first associated with the thing it identifies.",
        "pattern      [0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
        "example      2007-06-22T02:53:46Z",
    ]


def test_list_without_types_names_common_ones(tmp_path: Path) -> None:
    done = site(tmp_path, "--prefix", "12345").ok("type list")
    assert done.out == ""
    assert "No types are registered here. Common types need no registration: URL, EMAIL" in done.err
    assert "perseid type add --help" in done.err


def test_types_are_listed_without_scanning_all_handles(demo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.ok("namespace add 12345 --profile free")
    demo.ok("mint 12345 --count 300 --url https://example.org/")
    demo.ok(f"{ADD} --name Scale")
    demo.ok("type add 12345/size --definition 'How large'")
    demo.ok("tombstone 12345/size --reason 'not used'")
    demo.ok("type add 12345/Width --definition 'How wide'")
    counts: list[int] = []
    names = LogReader.names

    def count_names(reader: LogReader, *arguments: Any) -> list[Entry]:
        found = names(reader, *arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(LogReader, "names", count_names)
    lines = demo.lines("type list")
    assert lines == sorted(lines, key=str.upper)
    assert {"102.100.TYPE/SCALE  Scale", "12345/Width  Width"} < set(lines)
    assert demo.lines("type list 12345") == demo.lines("type list 0.NA/12345") == ["12345/Width  Width"]
    assert max(counts) < 100
    assert demo("type list 777").code == 3


def test_list_of_types_checks_no_definition(demo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking one can take half a second, and a page has up to 1,000."""
    checked: list[Definition] = []

    def record(definition: Definition) -> None:
        checked.append(definition)

    monkeypatch.setattr(Definition, "check", record)
    assert demo.lines("type list")
    assert demo.lines("type list --json")
    assert checked == []
    demo.ok("type show 102.100.TYPE/CREATION_DATE")
    assert len(checked) == 1


def test_type_list_reports_namespaces_without_permission(demo: Site) -> None:
    done = demo("type list --as 300:12345/ann")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("Not listed: 102.100.272: ")
    refused(demo("type list 102.100.TYPE --as 300:12345/ann"), "LIST_HANDLES")


def test_handle_that_is_not_a_type_is_not_found(demo: Site) -> None:
    refused(demo("type show 102.100.272/2RDV0T0QH"), "is not a type", code=3)
    refused(demo("type show 102.100.TYPE/NONE"), "does not exist", code=3)
    demo.ok("create 102.100.TYPE/WORDS --value DESC='A type in words'")
    assert demo.lines("type show 102.100.TYPE/WORDS") == [
        "handle       102.100.TYPE/WORDS",
        "description  A type in words",
    ]


def test_invalid_stored_definition_is_shown_with_its_problem(demo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("perseid.registry.commands.composition.check_definitions", lambda *_: None)
        demo.ok(ADD, r"--pattern=(a)\1")
    assert demo.lines("type show 102.100.TYPE/SCALE")[-1].startswith("problem      the pattern has a backreference")


def test_check_lists_definitions_that_are_no_longer_supported(demo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("perseid.registry.commands.composition.check_definitions", lambda *_: None)
        demo.ok(f"{ADD} --schema -", stdin=b'{"not": {}}')
    assert 'schema       {"not":{}}' in demo.lines("type show 102.100.TYPE/SCALE")
    assert "invalid schema at /not: 'not' is not a supported keyword" in demo("check").out


def test_check_lists_values_that_no_longer_match_their_type(demo: Site) -> None:
    demo.ok(f"{ADD} --pattern '1:[1-9][0-9]*'")
    add_checked_namespace(demo)
    demo.ok("create 12345/a --value 102.100.TYPE/SCALE=1:1")
    definition = {"name": "Scale", "description": "The scale", "pattern": "1:[1-9][0-9]{4,}"}
    demo.ok("set 102.100.TYPE/SCALE", f"PERSEID_TYPE={json.dumps(definition)}")
    out = demo("check").out
    assert "the first is 12345/a: value 1 does not match its" in out

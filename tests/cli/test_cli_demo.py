"""The demonstration data: the identifiers that the seed documents published."""

from pathlib import Path
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.records.encoding import from_iso
from perseid.records.record import Record, ValueRef
from perseid.registry.commands.namespaces import RemoveNamespace
from perseid.registry.identity import Anonymous
from perseid.registry.installation.setup import create_demonstration
from perseid.registry.policy.authority import AuthorityMetadata, Party, build_metadata
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused
from tests.cli.installation import Site, refused, site
from tests.pilin_vectors import PILIN
from tests.registry.registries import OPERATOR, add_namespace, registry_in_memory

EXAMPLE = Handle.parse("102.100.272/2RDV0T0QH")


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


def test_demonstration_has_the_published_identifiers_of_the_seed_documents(demo: Site) -> None:
    assert demo.lines("namespace list") == ["102.100.272", "102.100.TYPE", "2000.01"]
    assert demo.lines("list 102.100.272") == sorted(f"102.100.272/{suffix}" for suffix, *_ in PILIN)
    assert set(demo.lines("list 2000.01")) >= {
        "2000.01/EEF4DF17361A42E2B975E554663B70C3",
        "2000.01/FFEE9F72B00C4189B137ECD34188B94E",
    }


def test_identifiers_resolve_as_the_seed_documents_write_them(demo: Site) -> None:
    for form in ("hdl:/102.100.272/Y35XYS0QH", "http://resolver.net.au/hdl/102.100.272/0N8J991QH"):
        assert "DESC" in demo.ok("resolve", form).out


def test_a1_a3_a5_example_of_authority_metadata_has_all_values(demo: Site) -> None:
    found = demo.ok(f"resolve {EXAMPLE} --json").json["values"]
    assert [(value["type"], value["data"]["value"], value["timestamp"]) for value in found[:2]] == [
        ("102.100.TYPE/CREATION_DATE", "2007-06-22T02:53:46Z", "2007-06-22T02:53:46Z"),
        ("102.100.TYPE/CREATOR", "102.100.272/0N8J991QH", "2007-06-22T02:53:46Z"),
    ]
    assert (found[2]["type"], found[2]["data"]["value"]["handle"]) == ("HS_ADMIN", "102.100.pilin2/XYZZY")
    assert len(found) == 3


def test_a1_example_has_the_authority_metadata_of_the_seed_document() -> None:
    with registry_in_memory() as registry:
        create_demonstration(registry, OPERATOR, "cli", (ValueRef(300, "0.NA/0.NA"),))
        found = registry.resolve(Query(EXAMPLE), Anonymous())
        with registry.snapshot() as snapshot:
            policy = snapshot.policy("102.100.272")
    assert build_metadata(policy, Record(EXAMPLE, found.values), None, lambda _: False) == AuthorityMetadata(
        created=from_iso("2007-06-22T02:53:46Z"),
        updated=from_iso("2007-08-10T04:23:11Z"),
        creator=Party(Handle.parse("102.100.272/0N8J991QH"), False),
        owners=(Party(Handle.parse("102.100.pilin2/XYZZY"), False),),
    )


def test_a3_demonstration_has_the_dates_of_its_identifiers(demo: Site) -> None:
    for suffix, _, minted in PILIN:
        found = demo.ok(f"resolve 102.100.272/{suffix} --authority --json").json
        example = suffix == EXAMPLE.suffix
        assert found["created"] == ("2007-06-22T02:53:46Z" if example else f"{minted[:19]}Z")
        assert found["updated"] == ("2007-08-10T04:23:11Z" if example else found["created"])
        assert found["creator"]["uri"] == "hdl:102.100.272/0N8J991QH"
    for name in demo.lines("list 2000.01"):
        assert {value["timestamp"] for value in values(demo, name)} == {"2005-01-01T00:00:00Z"}


def test_a3_server_administrator_can_create_a_record_with_its_dates(demo: Site) -> None:
    record, new = demo.ok(f"resolve {EXAMPLE} --json").out, "102.100.272/BCDFGHJKH"
    create = f"create {new} --from -"
    refused(demo(create, stdin=record.encode()), "a date of creation", "with --preserve-dates")
    as_other = f"{create} --preserve-dates --as 300:0.NA/102.100.272"
    refused(demo(as_other, stdin=record.encode()), "cannot keep the dates of a record", "administrators.server")
    future = record.replace("2007-08-10T04:23:11Z", "2090-01-01T00:00:00Z")
    late = demo(f"{create} --preserve-dates", stdin=future.encode())
    refused(late, "has a timestamp in the future, 2090-01-01T00:00:00Z", "Correct the date", code=2)
    demo.ok(f"{create} --preserve-dates --note 'old server'", stdin=record.encode())
    assert values(demo, new) == values(demo, str(EXAMPLE))
    found = demo.ok(f"resolve {new} --authority --json").json
    assert (found["created"], found["updated"]) == ("2007-06-22T02:53:46Z", "2007-08-10T04:23:11Z")
    (entry,) = demo.ok(f"history {new} --json").json["versions"]
    assert (entry["interface"], entry["note"]) == ("import", "old server")


def test_a6_types_are_handles_that_resolve_to_their_definition(demo: Site) -> None:
    used = {value["type"] for name in demo.lines("list 102.100.272") for value in values(demo, name)}
    for type_ in sorted(used - {"DESC", "EMAIL", "HS_ADMIN"}):
        assert values(demo, type_)[0]["data"]["value"].startswith(f"{type_.partition('/')[2]}: ")


def test_s3_s12_links_exist_in_both_directions(demo: Site) -> None:
    links = {
        (name, value["data"]["value"])
        for prefix in ("102.100.272", "2000.01")
        for name in demo.lines(f"list {prefix}")
        for value in values(demo, name)
        if "LINK." in value["type"]
    }
    assert len(links) == 8
    assert links == {(other, one) for one, other in links}


def test_demonstration_changes_nothing_if_a_namespace_exists() -> None:
    with registry_in_memory() as registry:
        first = create_demonstration(registry, OPERATOR, "cli")
        assert len(first) == 10
        with registry.snapshot() as snapshot:
            size = snapshot.reader.size
        with pytest.raises(Refused, match=r"102\.100\.TYPE of the demonstration already exists"):
            create_demonstration(registry, OPERATOR, "cli")
        with registry.snapshot() as snapshot:
            assert snapshot.reader.size == size


def test_demonstration_is_created_after_its_namespaces_were_removed() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "2000.01", "cordra")
        registry.do(RemoveNamespace("2000.01"), OPERATOR, "cli")
        assert len(create_demonstration(registry, OPERATOR, "cli")) == 10


def values(demo: Site, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.ok(f"resolve {name} --json").json["values"]
    return found

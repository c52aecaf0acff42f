"""Authority metadata (A1) and the last update (A3): removals count, publishing does not."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import IMPORT
from perseid.names.handle import Handle
from perseid.records.encoding import from_iso
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.records import Add, Create, Delete, Modify, Remove
from perseid.registry.policy.authority import AuthorityMetadata, Party
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import get_authority_metadata, last_change
from perseid.registry.registry import Registry
from perseid.registry.snapshot import LedgerNeeded
from tests.ledger.ledgers import NOW, Machine
from tests.registry.registries import OPERATOR, add_namespace, admin, handle, registry_in_memory

START = NOW // SECOND
CREATOR = handle("10.1/creator")
NAME = handle("10.1/x")
FREE_PILIN = replace(PROFILES["pilin"], scheme="free", default_creator=str(CREATOR))
URL = Value.text(1, "URL", "https://example.org/")
EMAIL = Value.text(2, "EMAIL", "someone@example.org")


@pytest.fixture
def registry(machine: Machine) -> Iterator[Registry]:
    with registry_in_memory(machine) as made:
        add_namespace(made, "10.1", FREE_PILIN)
        made.do(Create(CREATOR, (Value.text(1, FREE_PILIN.creator_type, str(CREATOR)),)), OPERATOR, "cli")
        yield made


def about(registry: Registry, name: Handle = NAME) -> AuthorityMetadata | None:
    """Return the authority metadata; from the view it is the same, unless that leaves it to the ledger."""
    with registry.snapshot() as snapshot:
        found = get_authority_metadata(snapshot, snapshot.stored(name))
        is_public = snapshot.stored(name).is_public
    with suppress(LedgerNeeded), registry.public_snapshot() as public:
        assert not is_public or get_authority_metadata(public, public.stored(name)) == found
    return found


def updated(registry: Registry) -> int | None:
    """Return the time of the last update, in seconds since the start."""
    found = about(registry)
    assert found is not None
    assert found.created == START
    return None if found.updated is None else found.updated - START


def test_a3_only_value_changes_move_last_update(registry: Registry, machine: Machine) -> None:
    now = 0
    steps: list[tuple[object, bool]] = [
        (Create(NAME, (URL, EMAIL)), True),
        (Modify(NAME, (replace(URL, data=b"https://other/"),)), True),
        (Modify(NAME, (replace(URL, data=b"https://other/"),)), False),
        (Remove(NAME, (2,)), True),
        (Unpublish(NAME), False),
        (Publish(NAME), False),
        (Add(NAME, (EMAIL,)), True),
        (Create(NAME, (EMAIL,), overwrite=True), True),
        (Tombstone(NAME, "gone"), True),
        (Revive(NAME), True),
    ]
    expected = 0
    for operation, moves in steps:
        registry.do(operation, OPERATOR, "cli")  # type: ignore[arg-type]
        expected = now if moves else expected
        assert updated(registry) == expected, operation
        now += 60
        machine.run(60 * SECOND)


def test_a3_redaction_is_not_an_update(registry: Registry, machine: Machine) -> None:
    seq = registry.do(Create(NAME, (URL, EMAIL)), OPERATOR, "cli").seq
    machine.run(SECOND)
    registry.do(Remove(NAME, (2,)), OPERATOR, "cli")
    machine.run(SECOND)
    registry.do(Redact(NAME, 2, seq, "personal"), OPERATOR, "cli")
    assert updated(registry) == 1


def test_a3_import_keeps_dates(registry: Registry, machine: Machine) -> None:
    """The seed document's own example: created and updated in 2007."""
    created, changed = from_iso("2007-06-22T02:53:46Z"), from_iso("2007-08-10T04:23:11Z")
    values = (
        Value.text(1, FREE_PILIN.creation_date_type, "2007-06-22T02:53:46Z").with_timestamp(created),
        Value.text(2, FREE_PILIN.creator_type, str(CREATOR)).with_timestamp(created),
        admin(100, "300:102.100.pilin2/XYZZY").with_timestamp(changed),
    )
    registry.do(Create(NAME, values), OPERATOR, IMPORT)
    owner = Party(handle("102.100.pilin2/XYZZY"), verified=False)
    imported = AuthorityMetadata(created, changed, Party(CREATOR, verified=True), (owner,))
    assert about(registry) == imported
    registry.do(Unpublish(NAME), OPERATOR, "cli")
    registry.do(Publish(NAME), OPERATOR, "cli")
    assert about(registry) == imported
    machine.run(SECOND)
    registry.do(Add(NAME, (replace(EMAIL, index=7),)), OPERATOR, "cli")
    machine.run(SECOND)
    registry.do(Remove(NAME, (7,)), OPERATOR, "cli")
    assert about(registry) == replace(imported, updated=START + 2)


def test_a1_no_metadata_without_record_or_policy(registry: Registry) -> None:
    assert about(registry) is None
    registry.do(Reserve((NAME,), ValueRef(300, "10.9/owner")), OPERATOR, "cli")
    assert about(registry) is None
    add_namespace(registry, "10.2")
    other = handle("10.2/x")
    registry.do(Create(other, (URL,)), OPERATOR, "cli")
    assert about(registry, other) is None
    registry.do(Delete(other), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        assert last_change(snapshot.reader.history(snapshot.stored(other).key)) == START
        assert last_change([]) is None

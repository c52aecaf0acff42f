"""Grant jobs: existing records name the groups of roles, as far as the caller can give those rights."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.partition import find_server_index
from perseid.records.record import Value
from perseid.registry.access.roles import ROLES
from perseid.registry.commands.access import Grant
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.records import Create, Modify
from perseid.registry.identity import Identity
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.jobs import grant, runner, undo
from perseid.registry.jobs.grant import GrantAll
from perseid.registry.partition import Partition
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.access import count_without
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, Refused, StateConflict
from perseid.schema.access import AccessRole
from perseid.schema.jobs import JobState
from perseid.wire.codes import ResponseCode
from tests.registry.administration import secret
from tests.registry.installation.server_files import site
from tests.registry.jobs.runs import run_pieces
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory
from tests.wire.key_material import SERVER_KEY

ROOT = key_holder(300, "0.NA/12345")
ANN = key_holder(300, "12345/ann")
OWNERS = admin(100, "200:0.NA/12345")
URL = Value.text(1, "URL", "https://example.org/")
EDITORS = GrantAll("12345", (AccessRole.EDITOR, AccessRole.MINTER))


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Records of the owners, of somebody else, a reserved one, and a user."""
    with registry_in_memory() as made:
        values = administrator_values("12345", (ROOT.reference,), "root")
        add_namespace(made, "12345", with_group_administrators(PROFILES["free"]), *values)
        for name, record in {"x": (URL, OWNERS), "y": (URL, OWNERS), "other": (URL, admin(100, "300:77/eve"))}.items():
            made.do(Create(handle(f"12345/{name}"), record), OPERATOR, "cli")
        made.do(Create(handle("12345/ann"), (secret(), OWNERS)), OPERATOR, "cli")
        made.do(Reserve((handle("12345/reserved"),)), ROOT, "cli")
        made.do(Grant(ANN.reference, ("editor",), "12345"), ROOT, "cli")
        yield made


def run(made: Registry, order: GrantAll = EDITORS, by: Identity = ROOT) -> int:
    job = grant.start(made, order, by, "cli", "why")
    for _ in run_pieces(made, job, by):
        pass
    return runner.find_job(made, by, job.id).done


def editors_of(made: Registry, name: str) -> list[AdminPermission]:
    with made.snapshot() as snapshot:
        values = snapshot.stored(Handle.parse(name)).values
    admins = [Admin.from_bytes(value.data) for value in values if value.type == "HS_ADMIN"]
    return [each.permissions for each in admins if str(each.administrator) == "201:0.NA/12345"]


def test_records_of_the_caller_name_the_group_once(registry: Registry) -> None:
    change = Modify(handle("12345/x"), (Value.text(1, "URL", "https://example.org/new"),))
    assert not registry.explain(change, ANN, "cli").allowed
    assert run(registry) == 3
    assert registry.explain(change, ANN, "cli").allowed
    for name in ("x", "y", "reserved"):
        assert editors_of(registry, f"12345/{name}") == [ROLES[AccessRole.EDITOR].in_record]
    assert editors_of(registry, "12345/other") == [], "it is not theirs to give"
    assert editors_of(registry, "12345/ann") == [], "it has a key"
    assert run(registry) == 0
    with registry.snapshot() as snapshot:
        (left,) = count_without(snapshot, "12345", (AccessRole.EDITOR,))
    assert left.count == 1


def test_records_of_other_servers_of_the_site_stay(registry: Registry) -> None:
    """Copies that were left when the site was divided are neither changed nor counted."""
    whole = replace(site(SERVER_KEY), servers=site(SERVER_KEY).servers * 2)
    position = find_server_index(b"12345/x", whole.hash_option, 2)
    assert position != find_server_index(b"12345/other", whole.hash_option, 2)
    registry.rules = replace(registry.rules, partition=Partition(whole, 1 - position))
    expected = 0
    for name in ("y", "reserved"):
        expected += find_server_index(f"12345/{name}".encode(), whole.hash_option, 2) != position
    assert run(registry) == expected
    assert editors_of(registry, "12345/x") == []
    with registry.snapshot() as snapshot:
        (left,) = count_without(snapshot, "12345", (AccessRole.EDITOR,))
    assert left.count == 1, "the record of somebody else"


def test_job_is_undone(registry: Registry) -> None:
    job = grant.start(registry, EDITORS, ROOT, "cli")
    for _ in run_pieces(registry, job, ROOT):
        pass
    undone = undo.start(registry, job.id, ROOT, "cli")
    for _ in run_pieces(registry, undone, ROOT):
        pass
    assert editors_of(registry, "12345/x") == []
    state = runner.UndoIndex.of(registry, job.id).state(runner.find_job(registry, ROOT, job.id))
    assert state is JobState.UNDONE


def test_only_administrators_of_the_prefix_start_it(registry: Registry) -> None:
    for by, code in ((ANN, ResponseCode.INVALID_ADMIN), (NOBODY, ResponseCode.AUTHENTICATION_NEEDED)):
        with pytest.raises(Refused) as caught:
            grant.start(registry, EDITORS, by, "cli")
        assert caught.value.code is code
    with pytest.raises(StateConflict):
        grant.start(registry, GrantAll("12345", (AccessRole.READER,)), ROOT, "cli")
    with pytest.raises(InvalidRequest):
        grant.start(registry, GrantAll("12345", (AccessRole.MINTER,)), ROOT, "cli")

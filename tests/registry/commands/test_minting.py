"""Minting: by the scheme of the namespace, without duplicates, with the permissions and values of the policy."""

import re
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.commit import MIN_PREFETCH
from perseid.ledger.log.entry import Action, State
from perseid.ledger.log.requests import Append, Execute
from perseid.ledger.views.answers import Answers
from perseid.names import cordra, pilin
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.scheme_loader import PatternScheme
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.encoding import to_iso
from perseid.records.record import Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands import minting
from perseid.registry.commands.minting import Generate, Mint, Reserve, RetryLater, mint
from perseid.registry.commands.records import Create, Delete, Home
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES, Audience, Policy
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import MintResult, Refused
from perseid.registry.snapshot import Rules, StoredRecord
from perseid.schema.records import MAX_NAMES
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import NOW, SIGNER, Machine, log_of_today, open_store
from tests.registry.registries import (
    NOBODY,
    OPERATOR,
    add_namespace,
    admin,
    decide,
    handle,
    key_holder,
    registry_in_memory,
)

UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ROOT = Path(__file__).resolve().parents[3]
CREATOR = handle("102.100.272/0N8J991QH")
PILIN = replace(PROFILES["pilin"], default_creator=str(CREATOR))
ALICE = key_holder(300, "0.NA/10.1")
STRANGER = key_holder(300, "10.9/stranger")
SERVER = key_holder(300, "0.NA/0.NA")


@pytest.fixture
def registry(machine: Machine) -> Iterator[Registry]:
    """Namespaces with and without a scheme; the first creator names itself (A4)."""
    with registry_in_memory(machine) as made:
        add_namespace(made, "10.1", "free", admin(100, "300:0.NA/10.1"), url("key", 300))
        add_namespace(made, "102.100.272", PILIN, admin(100, "300:0.NA/102.100.272"))
        party = Value.text(1, PILIN.creator_type, str(CREATOR))
        made.do(Create(CREATOR, (party, Value.text(2, "DESC", "a party"))), OPERATOR, "cli")
        yield made


def url(data: str = "https://example.org/", index: int = 1) -> Value:
    return Value.text(index, "URL", data)


def minted(registry: Registry, where: str, count: int = 1, identity: Identity = OPERATOR, **more: object) -> MintResult:
    order = replace(Mint(where, count), **more)  # type: ignore[arg-type]
    return registry.do(order, identity, "cli")


def refusal(registry: Registry, where: str, count: int = 1, identity: Identity = OPERATOR, **more: object) -> Refused:
    with pytest.raises(Refused) as caught:
        minted(registry, where, count, identity, **more)
    return caught.value


def stored(registry: Registry, name: Handle) -> StoredRecord:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name)


def of_type(found: StoredRecord, type_: str) -> list[str]:
    return [value.data.decode() for value in found.values if value.type == type_]


# Names


def test_p8_scheme_mints_in_its_namespace(registry: Registry) -> None:
    names = minted(registry, "102.100.272", 3, values=(url(),)).handles
    first = pilin.from_unix_ns(NOW * 1000)
    assert [pilin.decode(name.suffix) for name in names] == [first, first + 1, first + 2], "P1: when it was asked for"
    assert all(stored(registry, name).state is State.NORMAL for name in names)


@pytest.mark.parametrize("profile", ["free", "exact"])
@pytest.mark.parametrize("lead", ["", "/", "/abc-"])
def test_p8_uuid_is_appended_without_a_scheme(registry: Registry, profile: str, lead: str) -> None:
    add_namespace(registry, "10.2", profile)
    name = minted(registry, "10.2" + lead).handles[0]
    assert UUID.fullmatch(name.suffix.removeprefix(lead[1:]))
    assert str(name).startswith("10.2/" + lead[1:])


def test_p8_scheme_creates_the_whole_suffix(registry: Registry) -> None:
    refused = refusal(registry, "102.100.272/abc")
    assert (refused.code, refused.rule) == (ResponseCode.INVALID_HANDLE, "P8")
    assert str(refused) == (
        'The suffix cannot begin with abc; the policy of this namespace says: scheme = "pilin". Mint under '
        "102.100.272: the service creates the whole suffix"
    )


def test_every_built_in_scheme_mints(registry: Registry) -> None:
    add_namespace(registry, "10.3", replace(PROFILES["free"], scheme="pattern:TR-dd", profile="own"))
    assert [name.suffix for name in minted(registry, "10.3", 3).handles] == ["TR-00", "TR-01", "TR-02"]
    add_namespace(registry, "2000.1", "cordra")
    assert re.fullmatch("[0-9A-F]{32}", minted(registry, "2000.1").handles[0].suffix)
    add_namespace(registry, "10.4", replace(PROFILES["free"], scheme="uuid", profile="own"))
    assert UUID.fullmatch(minted(registry, "10.4").handles[0].suffix)


def test_exhausted_pattern_is_refused(registry: Registry) -> None:
    add_namespace(registry, "10.3", replace(PROFILES["free"], scheme="pattern:d", profile="own"))
    assert len(minted(registry, "10.3", 9).handles) == 9
    refused = refusal(registry, "10.3", 2)
    assert refused.code is ResponseCode.INVALID_HANDLE
    assert refused.reason == (
        "No handle can be minted: the template 'd' has 1 of 10 names left; 2 were requested; the policy of this "
        'namespace says: scheme = "pattern:d"'
    )
    assert len(minted(registry, "10.3", 1).handles) == 1, "none was lost"


def test_p8_minted_suffix_must_be_valid(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemes can come from third parties."""

    def validate(_: PatternScheme, handle: Handle) -> None:
        raise InvalidName("P8", f"{handle.suffix} is not what it should be")

    add_namespace(registry, "10.3", replace(PROFILES["free"], scheme="pattern:TR-dd", profile="own"))
    monkeypatch.setattr(PatternScheme, "validate", validate)
    assert "TR-00 is not what it should be" in refusal(registry, "10.3").reason


@pytest.mark.parametrize(
    ("where", "code", "reason"),
    [
        ("10.8", ResponseCode.SERVER_NOT_RESP, "This server does not host prefix 10.8"),
        ("0.NA", ResponseCode.INVALID_HANDLE, "Prefix 0.NA is reserved for the system"),
        ("0.SITE/x", ResponseCode.INVALID_HANDLE, "Prefix 0.SITE is reserved for the system"),
        (
            "10..1",
            ResponseCode.INVALID_HANDLE,
            "at character 4: the prefix has an empty segment; write one dot between segments",
        ),
        ("", ResponseCode.INVALID_HANDLE, 'at character 1: the prefix (before the first "/") is empty'),
        (
            "10.1/a\u202eb",
            ResponseCode.INVALID_HANDLE,
            "at character 7: U+202E is a bidirectional control: the name would not read as it is stored",
        ),
        (
            "10.1/" + "x" * 2040,
            ResponseCode.INVALID_HANDLE,
            "at character 2049: the handle has 2,081 bytes in UTF-8; the maximum is 2,048",
        ),
    ],
)
def test_minting_is_refused_for_invalid_prefixes(
    registry: Registry, where: str, code: ResponseCode, reason: str
) -> None:
    refused = refusal(registry, where)
    assert (refused.code, refused.reason.removesuffix(f" (rule {refused.rule})")) == (code, reason)


@pytest.mark.parametrize("count", [0, -1, MAX_NAMES + 1, 10**20])
def test_count_per_commit_is_limited(registry: Registry, count: int) -> None:
    assert f"Cannot create {count:,} handles at once; the limit is 1 to 1,000" in str(refusal(registry, "10.1", count))


# Never twice


@pytest.mark.parametrize("count", [3, MIN_PREFETCH + 1])
def test_p6_existing_and_deleted_handles_are_skipped(registry: Registry, count: int) -> None:
    """Created by hand, deleted, or in lowercase: a lease skips them all, one by one or looked up together."""
    add_namespace(registry, "10.5", replace(PROFILES["free"], scheme="pilin", profile="own"))
    first = pilin.from_unix_ns(NOW * 1000)
    by_hand = [Handle("10.5", pilin.encode(first + after)) for after in (0, 1, 3)]
    registry.do(Create(by_hand[0], ()), OPERATOR, "cli")
    registry.do(Create(Handle("10.5", by_hand[1].suffix.lower()), ()), OPERATOR, "cli")
    registry.do(Create(by_hand[2], ()), OPERATOR, "cli")
    registry.do(Delete(by_hand[2]), OPERATOR, "cli")
    found = [pilin.decode(name.suffix) - first for name in minted(registry, "10.5", count).handles]
    assert found == [2, *range(4, count + 3)]


def test_a_few_random_handles_are_decided_before_the_commit(registry: Registry) -> None:
    add_namespace(registry, "10.9", replace(PROFILES["free"], scheme="uuid"))
    ahead(registry, "10.8")
    few, many = minting.MAX_EARLY, minting.MAX_EARLY + 1
    requests = [decide(registry, Mint(where, count)) for where, count in (("10.9", few), ("10.9", many), ("10.8", 1))]
    early, large, leased = requests
    assert isinstance(early, Append)
    assert len(early.drafts) == few
    assert {early.preconditions[draft.key] for draft in early.drafts} == {0}
    assert isinstance(large, Execute)
    assert isinstance(leased, Execute)


def test_p6_random_handle_that_existed_is_drawn_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    add_namespace(registry, "10.9", replace(PROFILES["free"], scheme="uuid"))
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    drawn = iter((one, one, one, other))
    monkeypatch.setattr(cordra, "generate_uuid", lambda *_: next(drawn))
    (first,) = minted(registry, "10.9").handles
    registry.do(Delete(first), OPERATOR, "cli")
    (second,) = minted(registry, "10.9").handles
    assert [first.suffix, second.suffix] == [str(one), str(other)]
    assert not list(drawn)


def test_namespace_that_is_nearly_full_is_left_to_the_commit(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decided before it can run in an event loop, so only some handles are looked up there."""
    add_namespace(registry, "10.9", replace(PROFILES["free"], scheme="uuid"))
    monkeypatch.setattr(minting, "MAX_EARLY_CANDIDATES", 8)
    drawn = iter([*[uuid.UUID(int=1)] * 100, *map(uuid.UUID, [f"{number:032x}" for number in range(2, 9)])])
    monkeypatch.setattr(cordra, "generate_uuid", lambda *_: next(drawn))
    found, had_entries = [], minting.MintPlan._had_entries

    def note(plan: minting.MintPlan, key: bytes) -> bool:
        found.append(had_entries(plan, key))
        return found[-1]

    monkeypatch.setattr(minting.MintPlan, "_had_entries", note)
    assert [name.suffix for name in minted(registry, "10.9").handles] == [str(uuid.UUID(int=1))]
    assert [name.suffix for name in minted(registry, "10.9", 2).handles] == [str(uuid.UUID(int=n)) for n in (2, 3)]
    assert found.count(True) == 8


def test_p6_clock_that_steps_back_mints_no_duplicate(registry: Registry, machine: Machine) -> None:
    names = [*minted(registry, "102.100.272", 5, values=(url(),)).handles]
    machine.wall -= 60 * SECOND
    names += minted(registry, "102.100.272", 5, values=(url(),)).handles
    assert len(set(names)) == 10
    assert sorted(names, key=lambda name: pilin.decode(name.suffix)) == names


def test_p6_generated_handles_are_leased_without_a_record(registry: Registry) -> None:
    order = Generate("102.100.272", 3)
    names = [*registry.do(order, OPERATOR, "cli").handles, *minted(registry, "102.100.272", values=(url(),)).handles]
    assert len(set(names)) == 4
    assert [stored(registry, name).exists for name in names] == [False, False, False, True]
    assert registry.do(replace(order, where="10.1/x"), OPERATOR, "cli").handles[0].suffix.startswith("x")


def test_p6_many_existing_handles_are_retried_outside_the_commit(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipping is limited, because nobody else can write meanwhile; the next attempt continues there."""
    add_namespace(registry, "10.3", replace(PROFILES["free"], scheme="pattern:ddd", profile="own"))
    for number in (*range(21), 24):
        registry.do(Create(Handle("10.3", f"{number:03}"), ()), OPERATOR, "cli")
    monkeypatch.setattr(minting, "MAX_CANDIDATES", 10)
    monkeypatch.setattr(minting, "MIN_WAIT", 0.001)
    with pytest.raises(RetryLater, match=r"All 10 handles that were tried under 10\.3/ already exist"):
        minted(registry, "10.3", 4)
    order = Mint("10.3", 12, each=numbered(12))
    found = [*mint(registry, order, OPERATOR, "cli")]
    assert [[int(name.suffix) for name in made.handles] for made in found] == [
        [21, 22, 23, 25, 26, 27, 28, 29],
        [30, 31, 32, 33],
    ]
    last = stored(registry, found[1].handles[-1])
    assert of_type(last, "URL") == ["https://example.org/11"], "the numbers go on where the names do"


def test_p5_eight_threads_mint_without_a_duplicate(registry: Registry) -> None:
    """P5, P6: within a process."""

    def some(_: int) -> list[Handle]:
        found = [minted(registry, "102.100.272", 20, values=(url(),)).handles for _ in range(5)]
        return [name for names in found for name in names]

    with ThreadPoolExecutor(8) as pool:
        names = [name for names in pool.map(some, range(8)) for name in names]
    assert len(names) == len(set(names)) == 800
    with registry.snapshot() as snapshot:
        assert all(snapshot.stored(name).exists for name in names)


MINTER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from perseid.ledger.ledger import Ledger
    from perseid.ledger.views.answers import Answers
    from perseid.registry.snapshot import Rules
    from perseid.registry.identity import LocalIdentity
    from perseid.registry.commands.minting import Mint, mint
    from perseid.registry.registry import Registry
    from tests.ledger.ledgers import log_of_today, open_store

    where = sys.argv[1]
    with Ledger(log_of_today(open_store(where)), Answers(Path(where).parent / "answers")) as ledger:
        registry = Registry(ledger, Rules())
        order = Mint("10.5", int(sys.argv[2]))
        for made in mint(registry, order, LocalIdentity("bob"), "cli"):
            print(*made.handles, sep="\\n")
    """
)


def test_p5_three_processes_mint_on_one_file_without_a_duplicate(tmp_path: Path) -> None:
    """P5, P6: between processes, each with its own registry."""
    where = str(tmp_path / "ledger.db")
    store = open_store(where)
    store.upgrade()
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        registry = Registry(ledger, Rules())
        registry.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        add_namespace(registry, "10.5", replace(PROFILES["free"], scheme="pilin", profile="own"))
        command = [sys.executable, "-c", MINTER, where, "400"]
        running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        names = [line for one in running for line in one.communicate()[0].split()]
        assert [one.returncode for one in running] == [0, 0, 0]
        assert len(names) == len(set(names)) == 1200
        assert all(stored(registry, handle(name)).exists for name in names[::100])


# Waiting for the clock


def ahead(registry: Registry, prefix: str = "10.5", **more: object) -> None:
    policy = replace(PROFILES["free"], scheme="pilin", profile="own", **more)  # type: ignore[arg-type]
    add_namespace(registry, prefix, policy)


def test_p6_minting_beyond_max_ahead_must_wait(registry: Registry, machine: Machine) -> None:
    """Nothing waits inside the commit, and no handle is lost."""
    ahead(registry, max_ahead=100)
    assert len(minted(registry, "10.5", 101).handles) == 101
    refused = refusal(registry, "10.5", 10)
    assert isinstance(refused, RetryLater)
    assert (refused.code, refused.seconds) == (ResponseCode.SERVER_TOO_BUSY, 0.01)
    assert str(refused) == (
        "The handles under 10.5/ are as far ahead of the clock as allowed; the policy of this namespace "
        "says: max_ahead = 100. Retry in 1 s; if that is long, check the clock of the server"
    )
    machine.run(10_000)
    names = minted(registry, "10.5", 10).handles
    assert pilin.decode(names[0].suffix) == pilin.from_unix_ns(NOW * 1000) + 101


def test_p6_mint_waits_outside_the_commit_and_keeps_its_position(
    registry: Registry, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strict clock allows 1,000 handles a second: none before its time, and none is skipped."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        machine.run(int(seconds * SECOND))

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(minting, "MAX_NAMES", 100)
    ahead(registry, strict_clock=True)
    assert "strict_clock = true" in str(refusal(registry, "10.5", 2))
    found = []
    for made in mint(registry, Mint("10.5", 250), OPERATOR, "cli"):
        found += [pilin.decode(name.suffix) for name in made.handles]
        assert found[-1] <= pilin.from_unix_ns(machine.wall * 1000)
    first = pilin.from_unix_ns(NOW * 1000)
    assert found == list(range(first, first + 250))
    assert sum(waited) == pytest.approx(0.25, abs=0.01)


def test_mint_waits_at_most_its_patience(registry: Registry, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: machine.run(int(seconds * SECOND)))
    ahead(registry, max_ahead=0)
    order = Mint("10.5", 1000)
    with pytest.raises(RetryLater):
        next(mint(registry, order, OPERATOR, "cli", patience=0.5))
    assert machine.wall == NOW, "it would not have sufficed, so it was not begun"
    assert len(next(mint(registry, order, OPERATOR, "cli", patience=1.5)).handles) == 1000


def test_large_mints_use_several_commits(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minting, "MAX_NAMES", 10)
    order = Mint("10.1", 21, each=numbered(21))
    found = list(mint(registry, order, OPERATOR, "cli"))
    assert [len(made.handles) for made in found] == [10, 10, 1]
    assert of_type(stored(registry, found[2].handles[0]), "URL") == ["https://example.org/20"], "numbers go on"
    pairs = list(mint(registry, replace(order, count=6, metadata=()), OPERATOR, "cli"))
    assert [len(made.handles) for made in pairs] == [10, 2], "S12: both names of a thing in one commit"
    plain = list(mint(registry, Generate("10.1", 11), OPERATOR, "cli"))
    assert [len(made.handles) for made in plain] == [10, 1]
    with pytest.raises(Refused, match="Cannot create 0 handles"):
        next(mint(registry, replace(order, count=0), OPERATOR, "cli"))


# Values


def numbered(count: int) -> tuple[tuple[Value, ...], ...]:
    """A row of values for each of several records."""
    return tuple([(url(f"https://example.org/{number}"),) for number in range(count)])


def test_each_record_can_have_its_own_values(registry: Registry) -> None:
    for number, name in enumerate(minted(registry, "10.1", 3, each=numbered(3)).handles):
        assert of_type(stored(registry, name), "URL") == [f"https://example.org/{number}"]


def test_refusal_names_one_of_several_records(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (url("https://example.org/a b"),)
    begins = "value 1 of type 'URL', 'https://example.org/a b', contains a blank"
    assert refusal(registry, "102.100.272", 3, each=(*numbered(2), wrong)).reason.startswith(f"Record 3: {begins}")
    assert refusal(registry, "102.100.272", 1, each=(wrong,)).reason.startswith(begins)
    monkeypatch.setattr(minting, "MAX_NAMES", 2)
    batches = mint(registry, Mint("102.100.272", 5, each=(*numbered(4), wrong)), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"^Record 5: "):
        list(batches)


def test_a1_new_records_have_authority_metadata_and_administrators(registry: Registry, machine: Machine) -> None:
    """A1, A8: the policy completes them, however they are created."""
    registry_policy = replace(PILIN, default_administrators=("200:0.NA/{prefix}",), default_ttl=600)
    add_namespace(registry, "10.6", registry_policy)
    for values in ({"values": (url(),)}, {"each": numbered(1)}):
        found = stored(registry, minted(registry, "10.6", **values).handles[0])
        assert of_type(found, PILIN.creation_date_type) == [to_iso(machine.wall // SECOND)]
        assert of_type(found, PILIN.creator_type) == [str(CREATOR)]
        made = [value for value in found.values if value.type != "URL"]
        assert {value.ttl for value in made} == {600}
        assert Admin.from_bytes(made[0].data) == Admin(ValueRef(200, "0.NA/10.6"))
        assert {value.timestamp for value in found.values} == {machine.wall // SECOND}


def test_a4_record_can_name_itself_as_creator(registry: Registry) -> None:
    add_namespace(registry, "10.6", PROFILES["pilin"])
    name = minted(registry, "10.6", values=(url(),), own_handle=PILIN.creator_type).handles[0]
    assert of_type(stored(registry, name), PILIN.creator_type) == [str(name)]


def creators(name: str) -> tuple[tuple[Value, ...], ...]:
    return tuple([(Value.text(1, PILIN.creator_type, each),) for each in (str(CREATOR), name)])


def test_a4_every_creator_must_resolve(registry: Registry) -> None:
    """Nothing is written if one of them is refused."""
    with registry.snapshot() as snapshot:
        before = snapshot.reader.size
    refused = refusal(registry, "102.100.272", 2, each=creators("10.1/nobody"))
    assert refused.code is ResponseCode.INVALID_VALUE
    assert "10.1/nobody" in refused.reason
    with registry.snapshot() as snapshot:
        assert snapshot.reader.size == before
    assert minted(registry, "102.100.272", 2, each=creators("10.77/elsewhere")).seq == before + 1


@pytest.mark.parametrize("values", [(url(index=0),), (url(), url())])
def test_invalid_or_duplicate_indexes_are_refused(registry: Registry, values: tuple[Value, ...]) -> None:
    assert refusal(registry, "10.1", values=values).code in (
        ResponseCode.INVALID_VALUE,
        ResponseCode.VALUE_ALREADY_EXISTS,
    )


def test_record_can_be_minted_unpublished(registry: Registry) -> None:
    name = minted(registry, "10.1", values=(url(),), published=False).handles[0]
    assert stored(registry, name).state is State.UNPUBLISHED
    with pytest.raises(Refused) as caught:
        registry.resolve(Query(name), NOBODY)
    assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND


def test_s12_object_and_metadata_record_have_a_handle_each(registry: Registry) -> None:
    """Both are created in one commit and linked by the policy's types."""
    made = minted(registry, "102.100.272", 2, each=numbered(2), metadata=(url("https://example.org/about"),))
    assert len(set(made.handles)) == 4
    for at in (0, 2):
        thing, about = made.handles[at : at + 2]
        assert of_type(stored(registry, thing), PILIN.metadata_type) == [str(about)]
        assert of_type(stored(registry, about), PILIN.object_type) == [str(thing)]
        assert of_type(stored(registry, thing), "URL") == [f"https://example.org/{at // 2}"]
        assert of_type(stored(registry, about), "URL") == ["https://example.org/about"]
        assert of_type(stored(registry, about), PILIN.creator_type) == [str(CREATOR)]
        assert stored(registry, about).seq == stored(registry, thing).seq + 1


# Who may


def minting_policy(identity: Audience) -> Policy:
    return replace(PROFILES["free"], who_may_mint=identity)


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (Audience.ADMINISTRATORS, {"operator", "server", "administrator"}),
        (Audience.SERVER, {"operator", "server"}),
        (Audience.AUTHENTICATED, {"operator", "server", "administrator", "stranger"}),
    ],
)
def test_s13_policy_decides_who_can_mint(registry: Registry, rule: Audience, allowed: set[str]) -> None:
    """Also who can reserve and generate; every refusal repeats the policy's line."""
    add_namespace(registry, "10.7", minting_policy(rule), admin(100, "300:0.NA/10.1", AdminPermission.ADD_HANDLE))
    identities: dict[str, Identity] = {
        "operator": OPERATOR,
        "server": SERVER,
        "administrator": ALICE,
        "stranger": STRANGER,
        "nobody": NOBODY,
    }
    for name, identity in identities.items():
        chosen = Reserve((handle(f"10.7/chosen-by-{name}"),), ValueRef(300, "0.NA/10.1"))
        for operation in (Mint("10.7"), Generate("10.7"), chosen):
            explained = registry.explain(operation, identity, "cli")
            assert explained.allowed is (name in allowed), (name, explained)
            if not explained.allowed:
                known = ResponseCode.AUTHENTICATION_NEEDED if identity is NOBODY else ResponseCode.INVALID_ADMIN
                assert explained.code is known
                assert explained.reason.endswith(f'the policy of this namespace says: who_may_mint = "{rule.value}"')


def test_s13_minting_requires_add_handle(registry: Registry) -> None:
    less = ALL_PERMISSIONS & ~AdminPermission.ADD_HANDLE
    add_namespace(registry, "10.7", "free", admin(100, "300:0.NA/10.1", less))
    assert "ADD_HANDLE" in refusal(registry, "10.7", identity=ALICE).reason


def test_caller_administers_what_they_mint_if_everybody_can(registry: Registry) -> None:
    add_namespace(registry, "10.7", minting_policy(Audience.AUTHENTICATED))
    name = minted(registry, "10.7", identity=STRANGER, values=(url(),)).handles[0]
    assert stored(registry, name).values[1:] == (admin(100, "300:10.9/stranger").with_timestamp(NOW // SECOND),)
    name = minted(registry, "10.7", identity=STRANGER, owner=ValueRef(300, "0.NA/10.1")).handles[0]
    assert of_admin(stored(registry, name)) == ["300:0.NA/10.1"]
    name = minted(registry, "10.7", identity=STRANGER, values=(admin(1, "5:10.9/x"),)).handles[0]
    assert of_admin(stored(registry, name)) == ["5:10.9/x"]
    assert stored(registry, minted(registry, "10.7").handles[0]).values == (), "an operator has no key to name"


def of_admin(found: StoredRecord) -> list[str]:
    return [str(Admin.from_bytes(value.data).administrator) for value in found.values if value.type == "HS_ADMIN"]


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (ValueRef(300, "10.1/nobody"), "handle 10.1/nobody does not exist"),
        (ValueRef(301, "0.NA/10.1"), "0.NA/10.1 has no value with index 301"),
        (ValueRef(300, "nonsense"), "300:nonsense is not a valid owner"),
    ],
)
def test_owner_must_be_an_existing_key(registry: Registry, owner: ValueRef, words: str) -> None:
    refused = refusal(registry, "10.1", owner=owner)
    assert refused.code is ResponseCode.INVALID_VALUE
    assert words in refused.reason
    assert words in refusal(registry, "10.1", reserve=True, owner=owner).reason
    assert minted(registry, "10.1", owner=ValueRef(7, "10.77/elsewhere")).handles


# Reserving


def test_s1_reserved_handles_have_an_owner_and_do_not_resolve(registry: Registry) -> None:
    made = minted(registry, "102.100.272", 20, reserve=True, owner=ValueRef(300, "0.NA/10.1"))
    for name in made.handles:
        found = stored(registry, name)
        assert found.state is State.RESERVED
        assert of_admin(found) == ["300:0.NA/10.1"]
        assert len(found.values) == 1, "A3: no date of creation before there is a thing"
        with pytest.raises(Refused) as caught:
            registry.resolve(Query(name), NOBODY)
        assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND
        item = registry.ledger.find(str(name).encode())
        assert item is None or item.state is State.RESERVED
    assert not set(made.handles) & set(minted(registry, "102.100.272", 20, reserve=True, identity=OPERATOR).handles)


def test_s1_owner_creates_the_record_of_a_reserved_handle(registry: Registry, machine: Machine) -> None:
    """Minting and creation are two dates (A3): the first association is the creation."""
    name = minted(registry, "102.100.272", reserve=True, owner=ValueRef(300, "0.NA/10.1")).handles[0]
    machine.run(28 * 86_400 * SECOND)
    with pytest.raises(Refused) as caught:
        registry.do(Create(name, (url(),)), STRANGER, "native")
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    registry.do(Create(name, (url(),)), ALICE, "native")
    found = stored(registry, name)
    assert (found.state, of_admin(found)) == (State.NORMAL, ["300:0.NA/10.1"])
    assert of_type(found, PILIN.creation_date_type) == [to_iso(machine.wall // SECOND)]
    assert pilin.decode(name.suffix) == pilin.from_unix_ns(NOW * 1000)


def test_s1_chosen_handles_can_be_reserved_together(registry: Registry) -> None:
    names = (handle("10.1/one"), handle("10.1/two"))
    made = registry.do(Reserve(names), ALICE, "cli")
    assert made.handles == names
    assert [stored(registry, name).state for name in names] == [State.RESERVED] * 2
    assert of_admin(stored(registry, names[0])) == ["300:0.NA/10.1"], "whoever reserves owns"
    with registry.snapshot() as snapshot:
        assert [snapshot.reader.entry(made.seq + at).action for at in (0, 1)] == [Action.RESERVE] * 2


def test_s1_reserving_fails_as_a_whole_if_one_is_taken(registry: Registry) -> None:
    gone, there, free = handle("10.1/gone"), handle("10.1/there"), handle("10.1/free")
    for name in (gone, there):
        registry.do(Create(name, ()), OPERATOR, "cli")
    registry.do(Delete(gone), OPERATOR, "cli")
    for names, words in (
        ((free, there), "Handle 10.1/there already exists"),
        ((free, handle("10.1/FREE")), "Handle 10.1/FREE already exists"),
        ((free, gone), "10.1/gone was deleted"),
        ((), "Cannot create 0 handles"),
        ((free, handle("10.8/x")), "This server does not host prefix 10.8"),
        ((free, handle("102.100.272/x")), 'scheme = "pilin"'),
        ((free, handle("0.NA/10.1.1")), "is reserved for the system"),
    ):
        with pytest.raises(Refused) as caught:
            registry.do(Reserve(names, ValueRef(300, "0.NA/10.1")), OPERATOR, "cli")
        assert words in str(caught.value)
        if "10.1/" in words:
            assert caught.value.advice == AdviceKind.CHOOSE_HANDLE(), "a reservation cannot replace or reuse a record"
    assert not stored(registry, free).exists


def test_s1_minters_own_reserved_handles_by_default(registry: Registry) -> None:
    """The policy's default administrators, or those of the prefix; refused if there are none."""
    with_defaults = replace(PROFILES["free"], default_administrators=("200:0.NA/{prefix}",))
    add_namespace(registry, "10.6", with_defaults)
    unreadable = Value(101, "HS_ADMIN", b"x")
    lister = admin(102, "7:10.9/lister", AdminPermission.LIST_HANDLES)
    add_namespace(registry, "10.7", "free", admin(100, "5:10.9/x"), unreadable, lister)
    add_namespace(registry, "10.8", "free")
    assert of_admin(stored(registry, minted(registry, "10.6", reserve=True).handles[0])) == ["200:0.NA/10.6"]
    assert of_admin(stored(registry, minted(registry, "10.7", reserve=True).handles[0])) == ["5:10.9/x"]
    refused = refusal(registry, "10.8", reserve=True)
    assert refused.code is ResponseCode.INVALID_VALUE
    assert "would have no owner: the prefix has no administrators" in refused.reason


@pytest.mark.parametrize("more", [{"values": (url(),)}, {"each": numbered(1)}, {"metadata": ()}])
def test_s1_reserved_handle_cannot_have_values(registry: Registry, more: dict[str, Any]) -> None:
    refused = refusal(registry, "10.1", reserve=True, **more)
    assert (refused.code, refused.rule) == (ResponseCode.INVALID_VALUE, "S1")


def test_s1_required_types_do_not_apply_to_reserved_handles(registry: Registry) -> None:
    policy = replace(PROFILES["free"], required_types=("URL",), default_administrators=("200:0.NA/{prefix}",))
    add_namespace(registry, "10.6", policy)
    assert minted(registry, "10.6", reserve=True).handles
    assert "the record has no value of type 'URL'" in refusal(registry, "10.6").reason


# Beside others


def test_policy_changed_meanwhile_applies(registry: Registry) -> None:
    """Preconditions are checked at commit: a caller who lost the permission creates nothing."""
    order = Mint("10.1")
    assert registry.explain(order, ALICE, "cli").allowed
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(registry.do, order, ALICE, "cli") for _ in range(20)]
        registry.do(Create(handle("0.NA/10.1"), (url("key", 300),), overwrite=True), OPERATOR, "cli")
        last = stored(registry, handle("0.NA/10.1")).seq
        seqs = [future.result().seq for future in made if future.exception() is None]
    assert all(seq < last for seq in seqs)
    assert not registry.explain(order, ALICE, "cli").allowed

"""What earlier versions stored is read for ever: an installation, backups, proofs, tokens, jobs that were interrupted.

README.md says how the files were made. They are never made anew: a test that fails here says that somebody's
installation can no longer be used, or means something else than before.
"""

import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import msgspec
import pytest

from perseid.ledger.store.store import Store
from perseid.names.handle import Handle
from perseid.registry.access.token_records import Secret
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.records import Create
from perseid.registry.idempotency import IdempotencyKeys, KeyReused, NewClaim, Replayed
from perseid.registry.identity import Anonymous
from perseid.registry.installation.settings import Config
from perseid.registry.queries.history import RecordHistory
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.http.v1.api_call import _outcome_reply
from tests.cli.installation import Site
from tests.registry.registries import authenticated
from tests.stored import stored
from tests.stored.stored import FOLDER, Facts, opened

REFUSED, FAILED = 4, 1  # exit codes
AUTHENTICATION_FAILED = 403  # of the protocol
PROOFS = {
    "before-restore": ("12345/kept", "old"),
    "kept": ("12345/kept", "new"),
    "kept-at-6": ("12345/kept", "new"),
    "gone": ("12345/gone", "new"),
    "set": ("12345/set", "new"),
}

KILLED_UPGRADE = textwrap.dedent(
    """
    import os, pathlib, signal, sys
    from alembic import op
    from perseid.registry.installation.installation import upgrade

    def kill_before_the_end(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    op.create_index = kill_before_the_end
    upgrade(pathlib.Path(sys.argv[1]), environ={})
    """
)


@pytest.fixture(scope="module")
def told() -> Facts:
    return stored.expected()


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return stored.unpacked(tmp_path)


@pytest.fixture
def registry(here: Site) -> Iterator[Registry]:
    with opened(here) as found:
        yield found


def job_of(told: Facts, kind: str, *, about: str = "", ended: bool = True) -> str:
    """The id of a job by its content; `about` is the first letter of all its handles."""
    found = [each for each in told["jobs"] if each[1] == kind and bool(each[10]) is ended]
    (name,) = [each[0] for each in found if not about or f"/{about}" in json.dumps(each[2])]
    return str(name)


def state_of(registry: Registry, name: str) -> tuple[int, bool, str | None]:
    """The number of entries of a job, whether it has ended, and what has undone it."""
    (job,) = [each for each in stored.jobs(registry) if each[0] == name]
    return job[12], bool(job[10]), job[-1]


def leading(here: Site, lead: str) -> dict[str, int]:
    """The number of handles with a prefix by the host of their URL."""
    return {
        host: len([name for name in here.lines(f"find --host {host}.example") if name.startswith(f"12345/{lead}-")])
        for host in ("old", "new")
    }


# The ledger


def test_every_entry_is_unchanged(registry: Registry, told: Facts) -> None:
    found = stored.entries(registry, told["size"])
    for entry, expected in zip(found, told["entries"], strict=True):
        assert entry == expected
    assert stored.ledger(registry, told["size"]) == told["ledger"]
    with registry.ledger.open_reader() as reader:
        assert reader.size == told["size"]


def test_last_checkpoint_is_unchanged(here: Site, told: Facts) -> None:
    # Read before the installation is opened: an open ledger signs a checkpoint over its latest entries by itself.
    with closing(sqlite3.connect(here.directory / "ledger.db")) as database, database:
        (note,) = database.execute("SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1").fetchone()
    assert note == told["checkpoint"]


def test_the_whole_ledger_verifies(here: Site) -> None:
    here.ok("verify --all")
    with closing(sqlite3.connect(here.directory / "ledger.db")) as database, database:
        rows = database.execute("SELECT body, seq FROM entries").fetchall()
        changed = [(body.replace(b"past stays public", b"past stays hidden"), seq) for body, seq in rows]
        database.executemany("UPDATE entries SET body = ? WHERE seq = ?", changed)
    assert here("verify --all").code != 0


def test_every_identity_sees_the_same_records_and_history(registry: Registry, told: Facts) -> None:
    found = stored.public(registry, stored.names(registry))
    assert found.keys() == told["public"].keys()
    for name, seen in found.items():
        assert seen == told["public"][name], name


def test_history_of_republished_handles_is_hidden_as_before(here: Site) -> None:
    """The first line of a note decides this."""
    seen: dict[str, list[bool]] = {}
    for name in ("past-public", "past-hidden"):
        here.ok(f"publish 12345/{name}")
        with opened(here) as registry, registry.snapshot() as snapshot:
            versions = list(RecordHistory(snapshot, Anonymous(), Handle.parse(f"12345/{name}")).versions())
        data = [value.data.decode() for version in versions for value in version.values if value.type == "URL"]
        seen[name] = [f"https://example.org/{name}/{number}" in data for number in (1, 2)]
    assert seen == {"past-public": [True, True], "past-hidden": [False, True]}


def listed(here: Site, words: str) -> list[str]:
    """The handles that `list` prints, without the states that follow some of them."""
    return [line.partition("  ")[0] for line in here.lines(words)]


def test_names_are_listed_and_found_as_before(here: Site, told: Facts) -> None:
    for words, expected in told["lists"].items():
        found = listed(here, words) if words.startswith("list ") else [line.strip() for line in here.lines(words)]
        assert found == expected, words


def test_prefix_items_are_unchanged(registry: Registry, told: Facts) -> None:
    assert stored.prefixes(registry, list(told["prefixes"])) == told["prefixes"]


def test_imported_records_have_no_local_change_date(registry: Registry, told: Facts) -> None:
    """The interface in the actor decides this."""
    found = stored.changed(registry, list(told["changed"]))
    assert found == told["changed"]
    assert [name for name, seconds in found.items() if seconds is None] == ["10.5072/8RBZF0DQH"]


def test_lost_views_are_rebuilt(here: Site, told: Facts) -> None:
    here.ok("rebuild")
    here.ok("verify --all")
    assert here.lines("find --host new.example") == told["lists"]["find --host new.example"]


# Tokens


def test_token_is_valid_with_the_same_scopes_and_issuer(registry: Registry, told: Facts) -> None:
    (expected,) = [each for each in told["tokens"] if each[1] == "the catalog"]
    who = authenticated(registry, told["token_texts"]["good"])
    assert [who.token, str(who.issuer), who.scope.scope_names, list(who.scope.namespaces or ())] == [
        expected[0],
        expected[2],
        expected[4],
        expected[5],
    ]
    assert str(who) == f"token:{expected[0]} by 300:0.NA/12345"


def test_revoked_and_expired_tokens_are_refused(registry: Registry, told: Facts) -> None:
    good = Secret.parse(told["token_texts"]["good"])
    forged = Secret(good.id, bytes(32)).text()
    for text in (told["token_texts"]["revoked"], told["token_texts"]["expired"], forged):
        with pytest.raises(Refused) as refusal:
            authenticated(registry, text)
        assert int(refusal.value.code) == AUTHENTICATION_FAILED


def test_all_tokens_are_listed_as_before(registry: Registry, told: Facts) -> None:
    assert stored.known_tokens(registry) == told["tokens"]


def test_token_is_invalid_after_its_issuer_key_changed(here: Site, told: Facts) -> None:
    """The ledger has a commitment to the key."""
    here.ok("set 0.NA/12345", "300:HS_SECKEY!private=another one")
    with opened(here) as registry, pytest.raises(Refused) as refusal:
        authenticated(registry, told["token_texts"]["good"])
    assert int(refusal.value.code) == AUTHENTICATION_FAILED


def test_token_is_limited_to_its_scopes(here: Site, told: Facts) -> None:
    with opened(here) as registry:
        who = authenticated(registry, told["token_texts"]["good"])
        made = registry.do(Create(Handle.parse("12345/by-a-program"), ()), who, "http")
        assert stored.entries(registry, made.seq)[-1][6] == f"http token:{who.token} by 300:0.NA/12345"
        for order in (
            Create(Handle.parse("20.500/by-a-program"), ()),
            Tombstone(Handle.parse("12345/kept"), "because"),
            Unpublish(Handle.parse("12345/kept")),
        ):
            with pytest.raises(Refused):
                registry.do(order, who, "http")


# Policies


def test_policies_are_read_with_every_key(registry: Registry, told: Facts) -> None:
    found = stored.policies(registry, list(told["policies"]))
    for prefix, expected in told["policies"].items():
        # Later versions may have more keys, with defaults under which everything stays as it was.
        assert found[prefix] == {**found[prefix], **expected}, prefix


def test_policies_have_the_same_effect(here: Site, told: Facts) -> None:
    names = "--url https://example.org/new"
    for words, line in (
        ("create 20.500/without --value DESC=x", 'required_types = ["URL"]'),
        (f"create 20.500/forbidden {names} --value EMAIL=a@example.org", 'forbidden_types = ["EMAIL"]'),
        ("delete 20.500/Secretive", 'deletion = "tombstone"'),
        ("list 20.500 --as 300:12345/ann", ""),
        (f"create 12345/mine {names} --as 300:12345/ann", ""),
        (f"create 10.5072/free-form {names}", 'scheme = "pilin"'),
        ("set 12345/typed 12345/SCALE=large", "validate_types = true"),
        (f"create 12345.MAPS/TR-12 {names}", 'scheme = "pattern:TR-dddd"'),
    ):
        done = here(words)
        assert done.code == REFUSED, (words, done)
        assert line in done.err, done
    here.ok(f"create 20.500/Authenticated {names} --as 300:12345/ann")
    assert listed(here, "list 12345 --as 300:12345/ann") == told["lists"]["list 12345 --as 300:12345/ann"]
    assert "https://example.org/secretive/1" not in here.ok("history 20.500/Secretive --as 300:12345/ann").out
    assert "https://example.org/kept/1" in here.ok("history 12345/kept --as 300:12345/ann").out


def test_only_a_default_policy_is_replaced(here: Site) -> None:
    """The note of its entry says whether it is the default."""
    here.ok("namespace add 30000 --profile exact")
    assert here("namespace add 12345 --profile exact").code == REFUSED


# Jobs


def test_jobs_are_unchanged(registry: Registry, told: Facts) -> None:
    assert stored.jobs(registry) == told["jobs"]


def test_a_rewrite_that_was_interrupted_is_resumed_and_undone(here: Site, told: Facts) -> None:
    name = job_of(told, "rewrite", ended=False)
    assert leading(here, "r") == {"old": 2, "new": 5}
    here.ok(f"jobs resume {name}")
    with opened(here) as registry:
        assert state_of(registry, name) == (7, True, None)
    assert leading(here, "r") == {"old": 0, "new": 7}
    here.ok(f"undo {name} --yes")
    assert leading(here, "r") == {"old": 7, "new": 0}
    here.ok("verify --all")


def test_an_undo_that_was_interrupted_is_resumed(here: Site, told: Facts) -> None:
    name = job_of(told, "undo", ended=False)
    assert leading(here, "u") == {"old": 5, "new": 2}
    here.ok(f"jobs resume {name}")
    assert leading(here, "u") == {"old": 7, "new": 0}
    with opened(here) as registry:
        assert state_of(registry, name) == (7, True, None)
        undone = next(each[3] for each in told["jobs"] if each[0] == name)
        assert state_of(registry, undone)[2] == name


def test_a_transfer_that_was_interrupted_is_resumed_and_undone(here: Site, told: Facts) -> None:
    name = job_of(told, "transfer", ended=False)
    owned = [each for each in here.lines("find --owner 12345/ann") if each.startswith("12345/x-")]
    assert len(owned) == 5
    here.ok(f"jobs resume {name} --as 300:0.NA/12345")
    assert len([each for each in here.lines("find --owner 12345/ann") if each.startswith("12345/x-")]) == 7
    here.ok(f"undo {name} --yes")
    assert [each for each in here.lines("find --owner 12345/ann") if each.startswith("12345/x-")] == []


def test_finished_jobs_are_undone_once(here: Site, told: Facts) -> None:
    for about, hosts in (("a", ("new", "old")), ("c", ("new", "old")), ("f", ("new", "old"))):
        assert leading(here, about)[hosts[0]] == 3
        here.ok(f"undo {job_of(told, 'rewrite', about=about)} --yes")
        assert leading(here, about)[hosts[1]] == 3
    assert here(f"undo {job_of(told, 'rewrite', about='b')} --yes").code == REFUSED
    here.ok(f"undo {job_of(told, 'transfer')} --yes")
    assert not [name for name in here.lines("find --owner 12345/ann") if name.startswith("12345/e-")]
    here.ok(f"undo {job_of(told, 'mint', about='later-')} --yes")


def test_job_is_visible_to_its_owner(here: Site, told: Facts) -> None:
    """Including jobs started with the owner's tokens, and no others."""
    seen = {line.split()[0] for line in here.lines("jobs list --as 300:0.NA/12345")}
    everything = {line.split()[0] for line in here.lines("jobs list")}
    assert everything == {each[0] for each in told["jobs"]}
    own = {each[0] for each in told["jobs"] if each[6] == "300:0.NA/12345"}
    assert len(own) == 2
    assert seen == everything  # the settings name them as an administrator of the server
    text = here.directory / "perseid.toml"
    text.write_text(text.read_text().replace('server = ["300:0.NA/12345"]', "server = []"))
    assert {line.split()[0] for line in here.lines("jobs list --as 300:0.NA/12345")} == own
    assert here.lines("jobs list --as 300:12345/ann") == []


# Requests that are carried out once


def test_repeated_request_gets_the_stored_response(registry: Registry, told: Facts) -> None:
    keys, who = IdempotencyKeys(registry), authenticated(registry, told["token_texts"]["good"])
    kept = {each[0]: each[1:] for each in told["kept_requests"]}
    for request in told["requests"]:
        digest, seq, count, status, body = kept[request["key"]]
        assert digest == request["digest"]
        with keys.claim(who, request["key"].encode(), bytes.fromhex(digest)) as claim:
            assert isinstance(claim, Replayed)
            assert [claim.seq, claim.count, claim.status] == [seq, count, status]
            assert (None if claim.body is None else claim.body.hex()) == body
            answer = _outcome_reply(claim)
        assert answer.status_code == 201
        if body is not None:
            assert json.loads(msgspec.convert(answer.body, bytes)) == request["answer"]
        with keys.claim(who, request["key"].encode(), bytes(32)) as claim:
            assert isinstance(claim, KeyReused)
    with keys.claim(who, b"another one", bytes(32)) as claim:
        assert isinstance(claim, NewClaim)
    with registry.ledger.open_reader() as reader:
        assert reader.size == told["size"]


# Names


def test_minted_handles_are_not_minted_again(here: Site, told: Facts) -> None:
    """Numbers are leased under a prefix and the name of a scheme."""
    assert here.lines("mint 12345.MAPS --url https://example.org/next") == ["12345.MAPS/TR-0011"]
    (made,) = here.lines("mint 10.5072 --url https://example.org/next")
    assert made not in told["lists"]["list 10.5072"]
    with closing(sqlite3.connect(here.directory / "ledger.db")) as database:
        scopes = [bytes(row[0]).decode() for row in database.execute("SELECT scope FROM leases ORDER BY scope")]
    assert scopes == [each[0] for each in told["leases"]]


def test_reserved_handles_are_created_and_tombstones_removed(here: Site, told: Facts) -> None:
    here.ok(f"create {told['reserved'][0]} --url https://example.org/now")
    here.ok("tombstone 12345/gone --undo")
    assert "https://example.org/gone" in here.ok("resolve 12345/gone").out
    assert "https://example.org/kept/2" in here.ok("resolve 12345/alias --follow").out
    assert here("create 12345/deleted --url https://example.org/x").code == REFUSED
    seen = told["public"][told["pilin"][0]][0][2]
    (creator,) = [data for _, type_, data in seen if type_ == "102.100.TYPE/CREATOR"]
    assert creator in here.ok(f"resolve {told['pilin'][0]} --authority").out


# Backups and proofs


def test_backups_are_restored_and_verify(tmp_path: Path, told: Facts) -> None:
    there = Site(tmp_path / "restored")
    there.ok("restore", str(FOLDER / "full.backup"), str(FOLDER / "increment.backup"))
    there.ok("verify --all")
    with opened(there) as registry:
        assert stored.entries(registry, told["size"]) == told["entries"]
        assert stored.jobs(registry) == told["jobs"]
        assert stored.known_tokens(registry) == told["tokens"]
        assert stored.public(registry, list(told["public"])) == told["public"]
        assert stored.policies(registry, ["20.500"])["20.500"]["show_past"] is False
        branch = stored.entries(registry, told["size"] + 1)[-1]
    assert [branch[2], branch[5]] == [12, "0.SITE/LEDGER"]
    lines = branch[7].split("\n")
    assert lines[:3] == ["perseid ledger branch", told["ledger"][1], str(told["size"])]
    assert lines[4] == told["ledger"][2]
    assert there("mint 12345.MAPS --url https://example.org/next").code == FAILED
    there.ok("restore --reopen 12345.MAPS --last 12345.MAPS/TR-0020")
    assert there.lines("mint 12345.MAPS --url https://example.org/next") == ["12345.MAPS/TR-0021"]
    there.ok(f"jobs resume {job_of(told, 'rewrite', ended=False)}")


def test_a_full_backup_is_restored_alone_and_an_increment_is_not(tmp_path: Path, told: Facts) -> None:
    there = Site(tmp_path / "restored")
    assert there("restore", str(FOLDER / "increment.backup")).code == FAILED
    there.ok("restore", str(FOLDER / "full.backup"))
    with opened(there) as registry:
        leaves = [entry[8] for entry in stored.entries(registry, told["increment_since"])]
    assert leaves == [entry[8] for entry in told["entries"][: told["increment_since"]]]


def test_increment_after_an_upgrade_continues_an_earlier_backup(here: Site, tmp_path: Path, told: Facts) -> None:
    here.ok("backup", str(tmp_path / "increment"), "--since", str(told["increment_since"]))
    there = Site(tmp_path / "restored")
    there.ok("restore", str(FOLDER / "full.backup"), str(tmp_path / "increment"))
    there.ok("verify --all")
    with opened(there) as registry:
        assert stored.entries(registry, told["size"]) == told["entries"]
        assert stored.jobs(registry) == told["jobs"]


@pytest.mark.parametrize("name", PROOFS)
def test_proofs_are_verified_without_an_installation(name: str, tmp_path: Path, told: Facts) -> None:
    handle, era = PROOFS[name]
    path = FOLDER / f"{name}.proof.json"
    keys = told["keys"]["old"] if era == "old" else told["keys"]["new"][2:]
    nowhere = Site(tmp_path / "nowhere")
    assert handle in nowhere.ok("verify", str(path), "--key", keys[0], "--handle", handle).out
    assert nowhere("verify", str(path), "--key", keys[0], "--handle", "12345/other").code == 1
    document = json.loads(path.read_text())
    assert document["format"] == "perseid proof 1"
    document["values"] = document["values"][1:] + document["values"][:1]
    (tmp_path / "changed.json").write_text(json.dumps(document))
    if len(document["values"]) > 1:
        assert nowhere("verify", str(tmp_path / "changed.json"), "--key", keys[0]).code == 1
    foreign = told["keys"]["new" if era == "old" else "old"][-1]
    assert nowhere("verify", str(path), "--key", foreign).code == (0 if foreign in keys else 1)


# What is written now


def test_new_entries_have_the_same_forms(here: Site, told: Facts, tmp_path: Path) -> None:
    """New entries are read by the same rules as old ones."""
    here.ok("create 12345/new --url https://example.org/new --note why")
    here.ok("unpublish 12345/new --keep-history --note embargo")
    here.ok("token create --scope mint,read --namespace 12345 --label new --as 300:0.NA/12345")
    here.ok("namespace policy 20.500 --file -", stdin=b'who_may_list = "public"\n')
    here.ok("key rotate checkpoint")
    here.ok("prove 12345/kept -o", str(tmp_path / "proof.json"))
    here.ok("backup", str(tmp_path / "backup"))
    with opened(here) as registry, registry.ledger.open_reader() as reader:
        made = stored.entries(registry, reader.size)[told["size"] :]
        token = json.loads(stored.last(reader, made[2][5]).record()[0].data)
        policy = tomllib.loads(stored.last(reader, "0.SITE/POLICY/20.500").record()[0].data.decode())
    first, hidden, about_token, about_policy, rotation = made
    assert first[2:6] == [1, 1, False, "12345/new"]
    assert first[6].startswith("cli local:")
    assert [first[7], hidden[7]] == ["why", "past stays public\nembargo"]
    assert hidden[2:4] == [8, 3]
    assert about_token[5].startswith("0.SITE/TOKENS/")
    assert about_token[6] == "cli 300:0.NA/12345"
    assert [value[:2] for value in about_token[9]] == [[1, "PERSEID_TOKEN"], [2, "PERSEID_TOKEN_HASH"]]
    assert list(token) == ["label", "maker", "key", "may", "namespaces", "created", "expires"]
    assert [token["maker"], token["may"]] == ["300:0.NA/12345", ["read", "mint"]]
    assert about_policy[9][0][:2] == [1, "PERSEID_POLICY"]
    assert set(told["policies"]["20.500"]) <= set(policy)
    assert rotation[7].startswith("perseid checkpoint key rotation\n")
    document = json.loads((tmp_path / "proof.json").read_text())
    assert document["format"] == "perseid proof 1"
    assert set(document) == set(json.loads((FOLDER / "kept.proof.json").read_text()))
    assert (tmp_path / "backup").read_bytes().startswith(b"perseid ledger backup 1\n")
    here.ok("verify --all")


def test_new_jobs_have_the_same_forms(here: Site, told: Facts) -> None:
    """Another version may resume them."""
    kinds = {each[1]: set(each[2]) for each in told["jobs"]}
    known = {each[0] for each in told["jobs"]}
    here.ok("mint 12345/j- --count 2 --url https://old.example/j/1")
    here.ok("rewrite --url https://old.example/j/* --to https://new.example/j/* --yes --note moved")
    here.ok("undo last --yes")
    here.ok("transfer 12345/j-* --to 300:12345/ann --yes")
    with opened(here) as registry:
        begun = [each for each in stored.jobs(registry) if each[0] not in known]
        notes = [entry[7] for entry in stored.entries(registry, told["size"] + 4)[-2:]]
    assert {each[1]: set(each[2]) for each in begun} == kinds
    (rewrite,) = [each[0] for each in begun if each[1] == "rewrite"]
    assert notes == [f"rewrite {rewrite}: moved"] * 2


# Settings


def test_every_earlier_setting_is_read() -> None:
    text = (FOLDER / "every-setting.toml").read_text()
    found = Config.parse(text, {}).show()

    def flat(table: dict[str, Any]) -> Iterator[object]:
        for item in table.values():
            yield from flat(item) if isinstance(item, dict) else [item]

    given = sorted(map(repr, flat(tomllib.loads(text))))
    assert len(given) == 76
    assert sorted([repr(each.value) for each in found if each.source.startswith("perseid.toml")]) == given


def test_settings_of_the_installation_apply(here: Site) -> None:
    shown = here.ok("config").out
    for value in ('"https://hdl.example.org"', "1000", "3600", '"json"', '["300:0.NA/12345"]'):
        assert f" {value}  (perseid.toml" in shown, value


# Tables of older versions


def test_killed_upgrade_leaves_the_tables_unchanged(tmp_path: Path, told: Facts) -> None:
    here = stored.unpacked(tmp_path, upgrade=False)

    def schema() -> list[Any]:
        with closing(sqlite3.connect(here.directory / "ledger.db")) as database:
            found = database.execute("SELECT name, sql FROM sqlite_master UNION SELECT 'view', name FROM views")
            return sorted(map(str, [*found, *database.execute("SELECT version_num FROM alembic_version")]))

    before = schema()
    done = subprocess.run([sys.executable, "-c", KILLED_UPGRADE, here.directory], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert schema() == before
    assert here("jobs list").code == FAILED
    here.ok("upgrade")
    assert schema() != before
    with opened(here) as registry:
        assert stored.jobs(registry) == told["jobs"]


def test_tables_of_version_4_are_upgraded_with_their_jobs(tmp_path: Path, told: Facts) -> None:
    """Jobs had no owner then; it follows from their actor."""
    here = stored.unpacked(tmp_path, upgrade=False)
    path = here.directory / "ledger.db"
    newer = path.rename(here.directory / "newer.db")
    with closing(Store.sqlite(path)) as store, store.writing() as connection:
        config = alembic.config.Config()
        config.set_main_option("script_location", "perseid.ledger.store:migrations")
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0004")
    with closing(sqlite3.connect(path)) as database:
        database.execute("ATTACH ? AS newer", (str(newer),))
        tables = [row[0] for row in database.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        for table in sorted({*tables} - {"alembic_version"}):
            columns = ", ".join(f'"{row[1]}"' for row in database.execute(f'PRAGMA main.table_info("{table}")'))
            database.execute(f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM newer."{table}"')
        database.commit()
        assert "maker" not in [row[1] for row in database.execute("PRAGMA main.table_info(operations)")]
    newer.unlink()
    assert here("jobs list").code == FAILED
    here.ok("upgrade")
    with opened(here) as registry:
        assert stored.jobs(registry) == told["jobs"]
    here.ok(f"jobs resume {job_of(told, 'rewrite', ended=False)}")
    here.ok("verify --all")

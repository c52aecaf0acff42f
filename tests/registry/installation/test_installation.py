"""Installations: made whole or not at all, opened by their owner only, and every refusal says what to do."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import pytest
from alembic.script import ScriptDirectory

from perseid.ledger.errors import ClockError, NewerFormat, ReadOnlyStore
from perseid.ledger.log.log import Log
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import UnsuitableDirectory, prepare
from perseid.ledger.store.store import TABLES_VERSION, Store
from perseid.ledger.verify import verify
from perseid.proof.verifier import open_checkpoint
from perseid.records.value import ValueRef
from perseid.registry.installation import files
from perseid.registry.installation import installation as module
from perseid.registry.installation.installation import (
    DatabaseUnreachable,
    DriverMissing,
    Installation,
    InstallationError,
    NoInstallation,
    OlderFormat,
    create,
    upgrade,
)
from perseid.registry.installation.settings import Config, InvalidConfig, config_template
from tests import postgres
from tests.ledger.ledgers import appended, change, url

IS_ROOT = os.geteuid() == 0
PASSWORD = "correct-horse"
MADE = ["ledger.db", "siteinfo.bin", "siteinfo.json"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An installation with the defaults."""
    create(tmp_path / "made", environ={})
    return tmp_path / "made"


@pytest.fixture
def database() -> str:
    """An empty database, named as people name it."""
    return postgres._shared().database().replace("postgresql+psycopg", "postgresql")


def opened(directory: Path, **options: Any) -> Installation:
    return Installation.open(directory, environ={}, **options)


def append(directory: Path, name: str) -> None:
    with opened(directory) as installation:
        appended(installation.ledger.append(change(name, url("https://example.org/")))[0])


def size(directory: Path) -> int:
    with opened(directory, writable=False) as installation, installation.log.reading() as reading:
        return reading.size


def signed(log: Log) -> str | None:
    with log.reading() as reading:
        return reading.checkpoint()


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("the plug was pulled")


# Making one


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_installation_is_for_its_owner_only_and_has_nothing_else_in_it(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "new"
    if exists:
        directory.mkdir(0o755)
    create(directory, environ={})
    found = {str(path.relative_to(tmp_path)): mode(path) for path in tmp_path.rglob("*")}
    assert found == {
        "new": 0o700,
        "new/keys": 0o700,
        "new/keys/checkpoint.key": 0o600,
        "new/keys/https.pem": 0o600,
        "new/keys/privkey.bin": 0o600,
        "new/keys/pubkey.bin": 0o600,
        "new/ledger.db": 0o600,
        "new/perseid.toml": 0o600,
        "new/siteinfo.bin": 0o600,
        "new/siteinfo.json": 0o600,
    }
    assert (directory / "perseid.toml").read_text() == config_template()
    append(directory, "a")
    assert size(directory) == 1
    assert mode(directory / "answers") == 0o700


def test_its_settings_are_written_and_count(tmp_path: Path) -> None:
    create(tmp_path / "new", settings={"root": "global", "administrators.server": ["300:0.NA/1"]}, environ={})
    with opened(tmp_path / "new") as installation:
        assert installation.directory == tmp_path / "new"
        assert installation.config.root.value == "global"
        assert installation.administration.server_admins == (ValueRef(300, "0.NA/1"),)
    with Installation.open(tmp_path / "new", environ={"PERSEID_ROOT": "self"}) as installation:
        assert installation.config.root.value == "self"


def test_its_origin_says_nothing_about_people_and_machines(tmp_path: Path) -> None:
    for name in ("a", "b"):
        create(tmp_path / name, environ={})
    keys = [Signer.from_bytes((tmp_path / name / "keys" / "checkpoint.key").read_bytes()) for name in ("a", "b")]
    assert all(re.fullmatch("ledger-[0-9a-f]{16}", key.name) for key in keys)
    assert keys[0].name != keys[1].name
    assert keys[0].public.public != keys[1].public.public


def test_the_ledger_signs_with_its_key_under_the_origin_that_was_given(tmp_path: Path) -> None:
    create(tmp_path / "new", origin="example.org/names", environ={})
    with opened(tmp_path / "new") as installation:
        appended(installation.ledger.append(change("a"))[0])
        until = time.monotonic() + 30
        while signed(installation.log) is None and time.monotonic() < until:
            time.sleep(0.01)
    key = Signer.from_bytes((tmp_path / "new" / "keys" / "checkpoint.key").read_bytes())
    with opened(tmp_path / "new", writable=False) as installation, installation.log.reading() as reading:
        assert reading.origin == key.name == "example.org/names"
        assert open_checkpoint(reading.checkpoint() or "", key.public).size == 1


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "a\nb", "x" * 201])
def test_an_origin_that_checkpoints_cannot_bear_is_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(InstallationError, match="an origin has up to 200 printable characters"):
        create(tmp_path / "new", origin=origin, environ={})
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match='"self" or "global" is expected'):
        create(tmp_path / "new", settings={"root": "x"}, environ={})
    with pytest.raises(InvalidConfig, match="PERSEID_NATIVE_PORT"):
        create(tmp_path / "new", environ={"PERSEID_NATIVE_PORT": "x"})
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_left_alone(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with pytest.raises(UnsuitableDirectory, match=f"there is an installation in {made} already"):
        create(made, environ={})
    (made / "perseid.toml").unlink()
    with pytest.raises(UnsuitableDirectory, match=r"is not empty \('keys', 'ledger.db', 'siteinfo.bin', …\); name an"):
        create(made, environ={})
    for name in ("siteinfo.bin", "siteinfo.json"):
        (made / name).unlink()
    with pytest.raises(UnsuitableDirectory, match=r"is not empty \('keys', 'ledger.db'\); name an empty directory"):
        create(made, environ={})
    assert {path: path.stat().st_mtime_ns for path in before if path.exists()}.items() <= before.items()
    assert len(list(made.iterdir())) == 2


def test_places_where_none_can_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableDirectory, match="absent does not exist; make it first"):
        create(tmp_path / "absent" / "new", environ={})
    (tmp_path / "file").touch()
    with pytest.raises(UnsuitableDirectory, match="not a directory"):
        create(tmp_path / "file", environ={})
    with pytest.raises(UnsuitableDirectory, match=r"nothing can be made in .*file"):
        create(tmp_path / "file" / "new", environ={})
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsuitableDirectory, match="others may write"):
        create(tmp_path / "open", environ={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "open"]


def network_mounts(folder: Path) -> Callable[[Path], None]:
    """`prepare`, were everything on a network."""
    mounts = folder / "mounts"
    mounts.write_text("36 1 98:0 / / rw - nfs4 server:/ rw\n")
    return partial(prepare, mounts=mounts)


@pytest.mark.parametrize("exists", [False, True])
def test_none_is_made_on_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    monkeypatch.setattr(files, "prepare", network_mounts(tmp_path))
    if exists:
        (tmp_path / "new").mkdir()
    with pytest.raises(UnsuitableDirectory, match="on a network file system"):
        create(tmp_path / "new", environ={})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mounts", *(["new"] if exists else [])]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("where", "what"), [(Store, "upgrade"), (Log, "create"), (module, "sync_directory"), (module, "place")]
)
def test_when_something_fails_half_way_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, exists: bool
) -> None:
    directory = tmp_path / "new"
    if exists:
        directory.mkdir()
    with monkeypatch.context() as context:
        context.setattr(where, what, fail)
        with pytest.raises(RuntimeError, match="plug"):
            create(directory, environ={})
    assert list(tmp_path.rglob("*")) == ([directory] if exists else [])
    create(directory, environ={})
    append(directory, "a")


def test_when_it_cannot_be_put_into_place_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "new"
    directory.mkdir()
    rename = Path.rename

    def fails_at_the_last(path: Path, target: Path) -> Path:
        if path.name == "perseid.toml":
            assert sorted(path.name for path in directory.iterdir() if path.name[0] != ".") == ["keys", *MADE]
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_at_the_last)
    with pytest.raises(UnsuitableDirectory, match=r"nothing can be put into .*: No space left on device"):
        create(directory, environ={})
    assert list(tmp_path.rglob("*")) == [directory]


@pytest.mark.parametrize("exists", [False, True])
def test_of_two_that_make_the_same_one_is_refused_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    directory = tmp_path / "new"
    if exists:
        directory.mkdir()
    make = Log.create

    def another_is_faster(log: Log, signer: Signer) -> None:
        make(log, signer)
        monkeypatch.undo()
        if exists:
            monkeypatch.setattr(files, "_check_empty", lambda *_: None)  # it had looked before
        create(directory, origin="faster", environ={})

    monkeypatch.setattr(Log, "create", another_is_faster)
    with pytest.raises(UnsuitableDirectory, match="nothing can be put into"):
        create(directory, origin="slower", environ={})
    append(directory, "a")
    with opened(directory, writable=False) as installation, installation.log.reading() as reading:
        assert reading.origin == "faster"
    assert [path.name for path in tmp_path.rglob(".*")] == []


# Opening


@pytest.mark.parametrize("exists", [False, True])
def test_where_there_is_none_it_says_how_to_make_one(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "none"
    if exists:
        directory.mkdir()
        directory.chmod(0o777)  # nobody is told to change the rights of a folder that has nothing to do with this
    for action in (opened, partial(opened, writable=False), partial(upgrade, environ={})):
        with pytest.raises(NoInstallation) as caught:
            action(directory)
        assert str(caught.value) == f"there is no installation in {directory}; make one with: perseid init {directory}"
    assert list(tmp_path.rglob("*")) == ([directory] if exists else [])


def test_what_is_acknowledged_is_there_after_opening_again(made: Path) -> None:
    for number in range(3):
        append(made, f"a{number}")
    with opened(made) as installation:
        assert installation.ledger.find(b"10.1/A2") is not None
        assert verify(installation.log).entries == 3
    assert sorted(path.name for path in made.iterdir()) == sorted(["answers", "keys", *MADE, "perseid.toml"])


def test_for_reading_there_is_a_log_and_nothing_is_made(made: Path) -> None:
    with opened(made, writable=False) as installation:
        with installation.log.reading() as reading:
            assert reading.size == 0
        with pytest.raises(ReadOnlyStore, match="opened for reading only"):
            installation.ledger.close()
    assert sorted(path.name for path in made.iterdir()) == sorted(["keys", *MADE, "perseid.toml"])


def test_another_user_is_refused_and_told_the_command_that_works(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    for action in (opened, partial(opened, writable=False), partial(upgrade, environ={})):
        with pytest.raises(
            ReadOnlyStore, match=f"belongs to {owner}, and this process runs as .*: sudo -u {owner} perseid"
        ):
            action(made)


def test_root_looks_into_the_installation_of_another_user_and_leaves_no_file_of_its_own(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(made, "a")
    if IS_ROOT:
        owner = pwd.getpwnam("nobody")
        for path in (made, *made.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    else:  # the installation is another user's from root's side
        owner = pwd.getpwuid(os.geteuid())
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ReadOnlyStore, match=f"sudo -u {owner.pw_name} perseid"):
        opened(made)
    with opened(made, writable=False) as installation, installation.log.reading() as reading:
        assert reading.size == 1
        assert {path.stat().st_uid for path in made.rglob("*")} == {owner.pw_uid}


@pytest.mark.parametrize("closed", [False, True])
def test_who_cannot_even_look_is_told_whose_it_is(closed: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="perseid-", dir="/tmp"))
    create(folder / "made", environ={})
    # Root becomes somebody else for whom the folder is closed; who is not root closes it for himself.
    open_to_others, shut = (0o755, 0o700) if IS_ROOT else (0o755, 0o000)
    folder.chmod(shut if closed else open_to_others)
    become = "os.setuid(65534)" if IS_ROOT else "os.geteuid = lambda: 65534"
    script = f"""
        import os, sys
        from pathlib import Path
        from perseid.registry.installation.installation import Installation
        {become}
        try:
            Installation.open(Path(sys.argv[1]))
        except Exception as error:
            print(type(error).__name__, error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder / "made")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folder.chmod(0o700)
    shutil.rmtree(folder)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    refused = (
        f"{folder / 'made'} belongs to {owner}, and this process runs as nobody; run it as the owner: sudo -u {owner}"
    )
    hidden = f"InstallationProblem {folder / 'made'} cannot be looked into: Permission denied"
    assert said.startswith(hidden if closed else f"ReadOnly {refused}")


def test_an_installation_on_a_network_is_not_opened(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prepare", network_mounts(made.parent))
    with pytest.raises(UnsuitableDirectory, match="on a network file system"):
        opened(made)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("", 0o770, "others may write to"),
        ("perseid.toml", 0o620, "others may write to .*perseid.toml .mode 0620.; close it with: chmod 0600 /"),
        ("keys/checkpoint.key", 0o640, "others may read .*checkpoint.key .mode 0640.; close it with: chmod 0600 /"),
    ],
)
def test_files_that_others_could_misuse_are_refused(made: Path, name: str, wrong: int, message: str) -> None:
    (made / name).chmod(wrong)
    with pytest.raises((InstallationError, UnsuitableDirectory), match=message):
        opened(made)


def test_others_may_read_the_settings_unless_there_is_a_password_in_them(made: Path) -> None:
    path = made / "perseid.toml"
    path.chmod(0o644)
    opened(made).close()
    path.write_text(f'[ledger]\ndatabase = "postgresql://me:{PASSWORD}@127.0.0.1:1/names"\n')
    with pytest.raises(InstallationError, match=r"others may read .*perseid.toml"):
        opened(made)


def test_settings_that_cannot_be_read_are_named(made: Path) -> None:
    (made / "perseid.toml").write_text("[native]\nport = 'x'")
    with pytest.raises(InvalidConfig, match=f"{made}/perseid.toml:2: native.port"):
        opened(made)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Config, "load", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(InstallationError, match=r"perseid\.toml cannot be read: Permission denied"):
            opened(made)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"", "it is damaged"),
        (b"00 x", "it is damaged"),
        (b"\xff", "it is damaged"),
    ],
)
def test_a_key_that_is_not_there_or_damaged_is_named_and_everything_given_back(
    made: Path, content: bytes | None, problem: str
) -> None:
    path = made / "keys" / "checkpoint.key"
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InstallationError, match=f"checkpoint.key cannot be read: {problem}; put it back"):
        opened(made)
    path.write_bytes(before)
    path.chmod(0o600)
    append(made, "a")


def test_a_ledger_that_is_missing_or_no_ledger_is_named(made: Path) -> None:
    path = made / "ledger.db"
    path.unlink()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(InstallationError, match=f"there is no ledger in {path}, though .*; restore a backup"):
            action(made)
    assert not path.exists()
    path.touch()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(InstallationError, match=f"there is no ledger in {path}"):
            action(made)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(InstallationError, match=r"ledger.db cannot be used: file is not a database"):
        opened(made)


def test_a_wrong_clock_is_taken_on_an_operators_word_only(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000 * 1_000_000_000)
    with opened(made, writable=False) as installation, pytest.raises(ClockError):
        installation.log.clock.date(None)
    with opened(made, writable=False, accept_clock=True) as installation:
        assert installation.log.clock.date(None) == 1_000_000_000 * 1_000_000


# Versions


def test_the_version_is_that_of_the_last_migration_and_versions_can_be_compared() -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", "perseid.ledger.store:migrations")
    versions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert versions[0] == TABLES_VERSION
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch("[0-9]{4}", version) for version in versions)


def test_opening_asks_no_migrations(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, what in ((alembic.command, "upgrade"), (ScriptDirectory, "from_config"), (Store, "upgrade")):
        monkeypatch.setattr(where, what, fail)
    opened(made).close()


def test_a_newer_ledger_is_refused_and_left_alone(made: Path) -> None:
    store = Store.sqlite(made / "ledger.db")
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    store.close()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(NewerFormat, match=r"newer version of the program \(tables 9999\); upgrade this one"):
            action(made)


def test_an_older_ledger_is_opened_when_it_has_been_upgraded(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not upgrade(made, environ={})
    monkeypatch.setattr(module, "TABLES_VERSION", "9998")
    with pytest.raises(OlderFormat, match=rf"\(tables {TABLES_VERSION}, not 9998\); .*perseid upgrade -d {made}"):
        opened(made)
    assert upgrade(made, environ={})


def test_what_an_upgrade_leaves_to_be_computed_is_computed_also_after_it_was_broken_off(made: Path) -> None:
    append(made, "a")
    store = Store.sqlite(made / "ledger.db")
    with store.writing() as connection:
        for table in ("operations", "steps", "idempotency", "token_uses"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("DELETE FROM targets")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "rebuild_outdated", fail)
        with pytest.raises(RuntimeError, match="plug"):
            upgrade(made, environ={})
    for writable in (True, False):  # what is found would not be all there is
        words = f"was broken off; finish it: perseid upgrade -d {made}"
        with pytest.raises(OlderFormat, match=words), opened(made, writable=writable):
            pass
    assert upgrade(made, environ={})
    assert not upgrade(made, environ={})
    append(made, "b")
    assert verify(module.new_log(store)).entries == 2
    store.close()


# PostgreSQL


def test_the_ledger_may_be_in_a_database_that_nodes_share(tmp_path: Path, database: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    create(first, settings={"ledger.database": database}, environ={})
    assert sorted(path.name for path in first.iterdir()) == ["keys", "perseid.toml", "siteinfo.bin", "siteinfo.json"]
    shutil.copytree(first, second)
    second.chmod(0o700)
    append(first, "a")
    append(second, "b")
    with opened(first) as installation:
        assert installation.ledger.find(b"10.1/B") is not None
    assert size(second) == 2
    assert not upgrade(second, environ={})


def test_a_variable_may_name_the_database(tmp_path: Path, database: str) -> None:
    environ = {"PERSEID_LEDGER_DATABASE": database.replace("postgresql:", "postgres:")}
    create(tmp_path / "new", environ=environ)
    with Installation.open(tmp_path / "new", environ=environ) as installation:
        assert installation.log.store.dialect == "postgresql"
    with pytest.raises(InstallationError, match=r"there is no ledger in .*ledger.db"):
        opened(tmp_path / "new")


def test_a_database_that_has_a_ledger_is_not_begun_again(tmp_path: Path, database: str) -> None:
    create(tmp_path / "a", settings={"ledger.database": database}, environ={})
    with pytest.raises(InstallationError, match=r"there is a ledger in postgresql://.* already; name an empty"):
        create(tmp_path / "b", settings={"ledger.database": database}, environ={})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    append(tmp_path / "a", "a")


@pytest.mark.parametrize("exists", [False, True])
def test_a_creation_that_failed_in_a_database_can_be_repeated(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    directory = tmp_path / "new"
    if exists:
        directory.mkdir()
    for where, what in ((module, "place"), (Log, "create")):
        with monkeypatch.context() as context:
            context.setattr(where, what, fail)
            with pytest.raises(RuntimeError, match="plug"):
                create(directory, settings={"ledger.database": database}, environ={})
        assert list(tmp_path.rglob("*")) == ([directory] if exists else [])
    create(directory, settings={"ledger.database": database}, environ={})
    append(directory, "a")


def test_an_installation_whose_database_is_empty_says_so(tmp_path: Path, database: str) -> None:
    create(tmp_path / "a", environ={})
    (tmp_path / "a" / "perseid.toml").write_text(f'[ledger]\ndatabase = "{database}"\n')
    with pytest.raises(InstallationError, match="there is no ledger in postgresql://"):
        opened(tmp_path / "a")
    store = Store.postgres(database.replace("postgresql:", "postgresql+psycopg:"))
    store.upgrade()
    store.close()
    with pytest.raises(InstallationError, match="there is no ledger in postgresql://"):
        opened(tmp_path / "a")


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path, made: Path) -> None:
    address = f"postgresql://me:{PASSWORD}@127.0.0.1:1/names"
    (made / "perseid.toml").write_text(f'[ledger]\ndatabase = "{address}"\n')
    begun = time.monotonic()
    made_anew = partial(create, tmp_path / "new", settings={"ledger.database": address}, environ={})
    for action in (partial(opened, made), made_anew):
        with pytest.raises(DatabaseUnreachable) as caught:
            action()
        said = str(caught.value)
        assert said.startswith("the database postgresql://me:***@127.0.0.1:1/names cannot be used: ")
        assert "refused" in said
        assert PASSWORD not in said
        assert re.search(r"; see that it runs .*correct the setting ledger\.database \(perseid\.toml:\d+\)$", said)
    assert time.monotonic() - begun < 10
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgres://me:a%40b@h/d", "postgresql+psycopg://me:a%40b@h/d?connect_timeout=10"),
        ("postgresql://h/d?connect_timeout=3", "postgresql+psycopg://h/d?connect_timeout=3"),
    ],
)
def test_a_database_is_not_waited_for_without_end(given: str, used: str) -> None:
    store = Store.postgres(given)
    assert store.engine.url.render_as_string(hide_password=False) == used
    store.close()


def test_a_url_that_cannot_be_understood_is_refused_without_its_password(made: Path) -> None:
    (made / "perseid.toml").write_text(f'[ledger]\ndatabase = "postgresql://me:{PASSWORD}@h:port/d"\n')
    with pytest.raises(InvalidConfig) as caught:
        opened(made)
    assert str(caught.value) == "perseid.toml:2: ledger.database: a URL that can be understood is expected"


def test_without_the_driver_it_says_what_to_install(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "perseid.toml").write_text('[ledger]\ndatabase = "postgresql://me@127.0.0.1:1/names"\n')
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DriverMissing, match=re.escape("run: pip install 'perseid[postgres]'")):
        opened(made)

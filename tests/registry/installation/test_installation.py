"""Installations: atomic creation, opening by their owner only, and errors with advice."""

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
import psycopg
import pytest
from alembic.script import ScriptDirectory

from perseid.ledger.errors import ClockError, NewerFormat, ReadOnlyStore, StorageFull
from perseid.ledger.log.log import Log
from perseid.ledger.merkle import Signer
from perseid.ledger.store import TABLES_VERSION
from perseid.ledger.store.directory import UnsuitableDirectory, prepare
from perseid.ledger.store.store import Store
from perseid.ledger.verify import verify
from perseid.proof.verifier import open_checkpoint
from perseid.records.record import ValueRef
from perseid.registry.installation import files, public_view
from perseid.registry.installation import installation as module
from perseid.registry.installation.installation import (
    ANSWERS_NAME,
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
    """Return the URL of an empty database."""
    return postgres._shared().database().replace("postgresql+psycopg", "postgresql")


def opened(directory: Path, **options: Any) -> Installation:
    return Installation.open(directory, environ={}, **options)


def append(directory: Path, name: str) -> None:
    with opened(directory) as installation:
        appended(installation.ledger.append(change(name, url("https://example.org/")))[0])


def size(directory: Path) -> int:
    with opened(directory, writable=False) as installation, installation.log.open_reader() as reader:
        return reader.size


def signed(log: Log) -> str | None:
    with log.open_reader() as reader:
        return reader.checkpoint()


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("the plug was pulled")


# Making one


@pytest.mark.parametrize("exists", [False, True])
def test_new_installation_has_expected_private_files(tmp_path: Path, exists: bool) -> None:
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


def test_settings_are_written_and_effective(tmp_path: Path) -> None:
    create(tmp_path / "new", settings={"root": "global", "administrators.server": ["300:0.NA/1"]}, environ={})
    with opened(tmp_path / "new") as installation:
        assert installation.directory == tmp_path / "new"
        assert installation.config.root == "global"
        assert installation.administration.server_admins == (ValueRef(300, "0.NA/1"),)
    with Installation.open(tmp_path / "new", environ={"PERSEID_ROOT": "self"}) as installation:
        assert installation.config.root == "self"


def test_default_origin_is_anonymous(tmp_path: Path) -> None:
    for name in ("a", "b"):
        create(tmp_path / name, environ={})
    keys = [Signer.from_bytes((tmp_path / name / "keys" / "checkpoint.key").read_bytes()) for name in ("a", "b")]
    assert all(re.fullmatch("ledger-[0-9a-f]{16}", key.name) for key in keys)
    assert keys[0].name != keys[1].name
    assert keys[0].public.public != keys[1].public.public


def test_ledger_signs_under_given_origin(tmp_path: Path) -> None:
    create(tmp_path / "new", origin="example.org/names", environ={})
    with opened(tmp_path / "new") as installation:
        appended(installation.ledger.append(change("a"))[0])
        until = time.monotonic() + 30
        while signed(installation.log) is None and time.monotonic() < until:
            time.sleep(0.01)
    key = Signer.from_bytes((tmp_path / "new" / "keys" / "checkpoint.key").read_bytes())
    with opened(tmp_path / "new", writable=False) as installation, installation.log.open_reader() as reader:
        assert reader.origin == key.name == "example.org/names"
        assert open_checkpoint(reader.checkpoint() or "", key.public).size == 1


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "a\nb", "x" * 201])
def test_invalid_origin_is_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(InstallationError, match="use at most 200 printable characters"):
        create(tmp_path / "new", origin=origin, environ={})
    assert list(tmp_path.iterdir()) == []


def test_invalid_settings_are_refused_before_creation(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match='Expected "self" or "global"'):
        create(tmp_path / "new", settings={"root": "x"}, environ={})
    with pytest.raises(InvalidConfig, match="PERSEID_NATIVE_PORT"):
        create(tmp_path / "new", environ={"PERSEID_NATIVE_PORT": "x"})
    assert list(tmp_path.iterdir()) == []


def test_installation_can_be_the_first_directory_of_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    create(tmp_path, environ={})
    assert (tmp_path / "perseid.toml").exists()
    assert (tmp_path / "lost+found").is_dir()


def test_existing_files_are_left_alone(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with pytest.raises(UnsuitableDirectory, match=f"{made} already contains an installation"):
        create(made, environ={})
    (made / "perseid.toml").unlink()
    with pytest.raises(
        UnsuitableDirectory, match=r"is not empty \('keys', 'ledger.db', 'siteinfo.bin', …\); choose an"
    ):
        create(made, environ={})
    for name in ("siteinfo.bin", "siteinfo.json"):
        (made / name).unlink()
    with pytest.raises(
        UnsuitableDirectory, match=r"is not empty \('keys', 'ledger.db'\); choose an empty or new directory"
    ):
        create(made, environ={})
    assert {path: path.stat().st_mtime_ns for path in before if path.exists()}.items() <= before.items()
    assert len(list(made.iterdir())) == 2


def test_unusable_directories_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableDirectory, match="absent does not exist; create it first"):
        create(tmp_path / "absent" / "new", environ={})
    (tmp_path / "file").touch()
    with pytest.raises(UnsuitableDirectory, match="not a directory"):
        create(tmp_path / "file", environ={})
    with pytest.raises(UnsuitableDirectory, match=r"cannot create files in .*file"):
        create(tmp_path / "file" / "new", environ={})
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsuitableDirectory, match="writable by other users"):
        create(tmp_path / "open", environ={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "open"]


def network_mounts(folder: Path) -> Callable[[Path], None]:
    """Return `prepare` with everything on a network file system."""
    mounts = folder / "mounts"
    mounts.write_text("36 1 98:0 / / rw - nfs4 server:/ rw\n")
    return partial(prepare, mounts=mounts)


@pytest.mark.parametrize("exists", [False, True])
def test_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
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
def test_failed_creation_leaves_nothing(
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


def test_failed_move_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "new"
    directory.mkdir()
    rename = Path.rename

    def fails_at_the_last(path: Path, target: Path) -> Path:
        if path.name == "perseid.toml":
            assert sorted(path.name for path in directory.iterdir() if path.name[0] != ".") == ["keys", *MADE]
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_at_the_last)
    with pytest.raises(UnsuitableDirectory, match=r"cannot write to .*: No space left on device"):
        create(directory, environ={})
    assert list(tmp_path.rglob("*")) == [directory]


@pytest.mark.parametrize("exists", [False, True])
def test_concurrent_creation_refuses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
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
    with pytest.raises(UnsuitableDirectory, match="cannot write to"):
        create(directory, origin="slower", environ={})
    append(directory, "a")
    with opened(directory, writable=False) as installation, installation.log.open_reader() as reader:
        assert reader.origin == "faster"
    assert [path.name for path in tmp_path.rglob(".*")] == []


# Opening


@pytest.mark.parametrize("exists", [False, True])
def test_missing_installation_is_reported_with_command(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "none"
    if exists:
        directory.mkdir()
        directory.chmod(0o777)  # nobody is told to change the rights of a folder that has nothing to do with this
    other = "name another directory with -d DIR or PERSEID_DIR"
    for action in (opened, partial(opened, writable=False), partial(upgrade, environ={})):
        with pytest.raises(NoInstallation) as caught:
            action(directory)
        create = f"create one with: perseid init {directory}"
        assert str(caught.value) == f"No installation in {directory}; {other}, or {create}"
    assert list(tmp_path.rglob("*")) == ([directory] if exists else [])


def test_committed_entries_survive_reopening(made: Path) -> None:
    for number in range(3):
        append(made, f"a{number}")
    with opened(made) as installation:
        assert installation.ledger.find(b"10.1/A2") is not None
        assert verify(installation.log).entries == 3
    assert sorted(path.name for path in made.iterdir()) == sorted(["answers", "keys", *MADE, "perseid.toml"])


def test_read_only_opening_creates_nothing(made: Path) -> None:
    with opened(made, writable=False) as installation:
        with installation.log.open_reader() as reader:
            assert reader.size == 0
        with pytest.raises(ReadOnlyStore, match="open for reading only"):
            installation.ledger.close()
    assert sorted(path.name for path in made.iterdir()) == sorted(["keys", *MADE, "perseid.toml"])


def test_other_user_is_refused_with_command(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    for action in (opened, partial(opened, writable=False), partial(upgrade, environ={})):
        with pytest.raises(
            ReadOnlyStore, match=f"belongs to {owner}, but this process runs as .*: sudo -u {owner} perseid"
        ):
            action(made)


def test_root_reads_installation_of_another_user_without_traces(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with opened(made, writable=False) as installation, installation.log.open_reader() as reader:
        assert reader.size == 1
        assert {path.stat().st_uid for path in made.rglob("*")} == {owner.pw_uid}


@pytest.mark.parametrize("closed", [False, True])
def test_user_without_access_is_told_the_owner(closed: bool) -> None:
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
        f"{folder / 'made'} belongs to {owner}, but this process runs as nobody; run it as the owner: sudo -u {owner}"
    )
    hidden = f"InstallationError Cannot read {folder / 'made'}: Permission denied"
    assert said.startswith(hidden if closed else f"ReadOnlyStore {refused}")


def test_installation_on_network_file_system_is_not_opened(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_view, "prepare", network_mounts(made.parent))
    with pytest.raises(UnsuitableDirectory, match="on a network file system"):
        opened(made)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("", 0o770, "is writable by other users"),
        ("perseid.toml", 0o620, "other users can write to .*perseid.toml .mode 0620.; run: chmod 0600 /"),
        ("keys/checkpoint.key", 0o640, "other users can read .*checkpoint.key .mode 0640.; run: chmod 0600 /"),
    ],
)
def test_files_open_to_others_are_refused(made: Path, name: str, wrong: int, message: str) -> None:
    (made / name).chmod(wrong)
    with pytest.raises((InstallationError, UnsuitableDirectory), match=message):
        opened(made)


def test_settings_with_password_must_be_private(made: Path) -> None:
    path = made / "perseid.toml"
    path.chmod(0o644)
    opened(made).close()
    path.write_text(f'[ledger]\ndatabase = "postgresql://me:{PASSWORD}@127.0.0.1:1/names"\n')
    with pytest.raises(InstallationError, match=r"other users can read .*perseid.toml"):
        opened(made)


def test_unreadable_settings_are_reported(made: Path) -> None:
    (made / "perseid.toml").write_text("[native]\nport = 'x'")
    with pytest.raises(InvalidConfig, match=f"{made}/perseid.toml:2: native.port"):
        opened(made)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Config, "load", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(InstallationError, match=r"Cannot read .*perseid\.toml: Permission denied"):
            opened(made)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"", "the file is damaged"),
        (b"00 x", "the file is damaged"),
        (b"\xff", "the file is damaged"),
    ],
)
def test_missing_or_damaged_key_is_reported(made: Path, content: bytes | None, problem: str) -> None:
    path = made / "keys" / "checkpoint.key"
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InstallationError, match=f"Cannot read .*checkpoint.key: {problem}; restore it"):
        opened(made)
    path.write_bytes(before)
    path.chmod(0o600)
    append(made, "a")


def test_missing_or_invalid_ledger_is_reported(made: Path) -> None:
    path = made / "ledger.db"
    path.unlink()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(
            InstallationError, match=f"No ledger in {path} for the installation in .*; restore a backup"
        ):
            action(made)
    assert not path.exists()
    path.touch()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(InstallationError, match=f"No ledger in {path}"):
            action(made)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(InstallationError, match=r"Cannot use .*ledger.db: file is not a database"):
        opened(made)


def test_installation_without_space_has_no_ledger_and_needs_an_answers_view(made: Path) -> None:
    full = StorageFull("the disk is full")
    with Installation.open_without_ledger(made, full) as installation:
        assert isinstance(installation.ledger.write_problem, StorageFull)
    shutil.rmtree(made / ANSWERS_NAME)
    (made / ANSWERS_NAME).write_text("not a folder")
    with pytest.raises(StorageFull, match=r"^the disk is full$"):
        Installation.open_without_ledger(made, full)


def test_wrong_clock_requires_confirmation(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000 * 1_000_000_000)
    with opened(made, writable=False) as installation, pytest.raises(ClockError):
        installation.log.clock.date(None)
    with opened(made, writable=False, accept_clock=True) as installation:
        assert installation.log.clock.date(None) == 1_000_000_000 * 1_000_000


# Versions


def test_version_is_that_of_last_migration() -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", "perseid.ledger.store:migrations")
    versions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert versions[0] == TABLES_VERSION
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch("[0-9]{4}", version) for version in versions)


def test_opening_loads_no_migrations(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, what in ((alembic.command, "upgrade"), (ScriptDirectory, "from_config"), (Store, "upgrade")):
        monkeypatch.setattr(where, what, fail)
    opened(made).close()


def test_newer_ledger_is_refused(made: Path) -> None:
    store = Store.sqlite(made / "ledger.db")
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    opened(made).close()  # it can use them
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE head SET oldest_program = '9999'")
    store.close()
    for action in (opened, partial(upgrade, environ={})):
        with pytest.raises(NewerFormat) as caught:
            action(made)
        assert str(caught.value) == "A newer version of Perseid wrote the ledger (tables 9999); upgrade Perseid"


def test_older_ledger_must_be_upgraded(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not upgrade(made, environ={})
    monkeypatch.setattr(module, "TABLES_VERSION", "9998")
    with pytest.raises(OlderFormat, match=rf"\(tables {TABLES_VERSION}, not 9998\); .*perseid upgrade -d {made}"):
        opened(made)
    assert upgrade(made, environ={})


def test_interrupted_upgrade_can_be_completed(made: Path) -> None:
    append(made, "a")
    store = Store.sqlite(made / "ledger.db")
    with store.writing() as connection:
        for table in ("jobs", "steps", "idempotency", "token_uses", "node_reports"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        for column in ("read_only", "oldest_program"):
            connection.exec_driver_sql(f"ALTER TABLE head DROP COLUMN {column}")
        connection.exec_driver_sql("DELETE FROM search")
        connection.exec_driver_sql("ALTER TABLE search RENAME COLUMN key TO target")
        connection.exec_driver_sql("ALTER TABLE search RENAME TO targets")
        connection.exec_driver_sql("UPDATE views SET name = 'targets' WHERE name = 'search'")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "rebuild_outdated", fail)
        with pytest.raises(RuntimeError, match="plug"):
            upgrade(made, environ={})
    for writable in (True, False):  # what is found would not be all there is
        words = f"was interrupted; complete it with: perseid upgrade -d {made}"
        with pytest.raises(OlderFormat, match=words), opened(made, writable=writable):
            pass
    assert upgrade(made, environ={})
    assert not upgrade(made, environ={})
    append(made, "b")
    assert verify(module.new_log(store)).entries == 2
    store.close()


# PostgreSQL


def test_nodes_share_a_database(tmp_path: Path, database: str) -> None:
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


def test_variable_can_name_database(tmp_path: Path, database: str) -> None:
    environ = {"PERSEID_LEDGER_DATABASE": database.replace("postgresql:", "postgres:")}
    create(tmp_path / "new", environ=environ)
    with Installation.open(tmp_path / "new", environ=environ) as installation:
        assert installation.log.store.dialect == "postgresql"
    with pytest.raises(InstallationError, match=r"No ledger in .*ledger.db"):
        opened(tmp_path / "new")


def test_database_with_ledger_is_refused(tmp_path: Path, database: str) -> None:
    create(tmp_path / "a", settings={"ledger.database": database}, environ={})
    with pytest.raises(InstallationError, match=r"postgresql://.* already contains a ledger; use an empty"):
        create(tmp_path / "b", settings={"ledger.database": database}, environ={})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    append(tmp_path / "a", "a")


@pytest.mark.parametrize("exists", [False, True])
def test_failed_creation_in_database_can_be_repeated(
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


def test_empty_database_is_reported(tmp_path: Path, database: str) -> None:
    create(tmp_path / "a", environ={})
    (tmp_path / "a" / "perseid.toml").write_text(f'[ledger]\ndatabase = "{database}"\n')
    with pytest.raises(InstallationError, match="No ledger in postgresql://"):
        opened(tmp_path / "a")
    store = Store.postgres(database.replace("postgresql:", "postgresql+psycopg:"))
    store.upgrade()
    store.close()
    with pytest.raises(InstallationError, match="No ledger in postgresql://"):
        opened(tmp_path / "a")


def test_unreachable_database_is_reported_at_once_and_without_password(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[object] = []

    def connect(*address: object, **options: object) -> None:
        attempts.append(address)
        connect_once(*address, **options)  # type: ignore[arg-type]

    connect_once = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", connect)
    address = f"postgresql://me:{PASSWORD}@127.0.0.1:1/names"
    (made / "perseid.toml").write_text(f'[ledger]\ndatabase = "{address}"\n')
    made_anew = partial(create, tmp_path / "new", settings={"ledger.database": address}, environ={})
    for action in (partial(opened, made), made_anew):
        with pytest.raises(DatabaseUnreachable) as caught:
            action()
        said = str(caught.value)
        assert said.startswith("Cannot use the database postgresql://me:***@127.0.0.1:1/names: ")
        assert "refused" in said
        assert PASSWORD not in said
        assert re.search(
            r"; check that it runs .*correct the setting ledger\.database \((perseid\.toml:\d+|--database)\)$", said
        )
    assert len(attempts) == 2, "nothing is tried again"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgres://me:a%40b@h/d", {"user": "me", "password": "a@b", "host": "h", "connect_timeout": 10}),
        ("postgresql+psycopg://h/d?connect_timeout=3", {"host": "h", "dbname": "d", "connect_timeout": "3"}),
        ("postgresql://one:1,two:2/d", {"host": "one,two", "port": "1,2", "target_session_attrs": "primary"}),
        ("postgresql:///d?host=/one,/two&target_session_attrs=any", {"target_session_attrs": "any"}),
    ],
)
def test_parameters_of_database_connections(url: str, parameters: dict[str, object]) -> None:
    store = Store.postgres(url)
    assert parameters.items() <= store.parameters.items()
    assert ("target_session_attrs" in store.parameters) == ("target_session_attrs" in parameters)
    store.close()


def test_invalid_database_url_is_refused_without_password(made: Path) -> None:
    (made / "perseid.toml").write_text(f'[ledger]\ndatabase = "postgresql://me:{PASSWORD}@h:port/d"\n')
    with pytest.raises(InvalidConfig) as caught:
        opened(made)
    assert (
        str(caught.value)
        == "perseid.toml:2: ledger.database: invalid database URL; expected postgresql://user@host/database, "
        "with / in a password as %2F"
    )


_WHOLE = "invalid database URL; expected postgresql://user@host/database, with / in a password as %2F"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("d?sslmod=require", "unknown option 'sslmod' in the database URL; did you mean sslmode?"),
        (
            "d?sslmode=require&target_session_attr=any",
            "'target_session_attr' in the database URL; did you mean target_s",
        ),
        ("d?ssl%6Dod=x", "unknown option 'sslmod' in the database URL; did you mean sslmode?"),
        ("d?qqq=1", "unknown option 'qqq' in the database URL; see the parameters of libpq connections"),
        ("d?sslmode", "the option 'sslmode' in the database URL has no value; write sslmode=VALUE"),
        (f"d?password={PASSWORD}&hosst=x", _WHOLE),  # perhaps the end of the password
        (f"d?{PASSWORD}@h/d", _WHOLE),
        ("d?", None),
    ],
)
def test_wrong_option_of_a_database_url_is_named(end: str, reason: str | None) -> None:
    url = f"postgresql://me:{PASSWORD}@h/{end}"
    if reason is None:
        Store.postgres(url).close()
        return
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        Store.postgres(url)
    assert PASSWORD not in str(caught.value)


def test_missing_driver_is_reported_with_command(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "perseid.toml").write_text('[ledger]\ndatabase = "postgresql://me@127.0.0.1:1/names"\n')
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DriverMissing, match=re.escape("run: pip install 'perseid[postgres]'")):
        opened(made)

"""The runtime directory belongs to one server of one user, and is removed with it."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from perseid.server.state import runtime
from perseid.server.state.runtime import (
    WRITER_LINK,
    NoRuntimeDirectory,
    RuntimeDirectory,
    is_last_ending,
    lock_installation,
    read_details,
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A path that is short enough for a socket, as pytest's is not."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def create(tmp_path: Path, base: str = "run") -> RuntimeDirectory:
    (tmp_path / base).mkdir(exist_ok=True)
    return RuntimeDirectory.create(tmp_path / "installation", {"RUNTIME_DIRECTORY": f"{tmp_path / base}:/other"})


def test_directory_is_private_and_removed(tmp_path: Path) -> None:
    directory = create(tmp_path)
    assert directory.path.parent == tmp_path / "run"
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.last_writer() == 0
    (directory.path / "data.mdb").touch()
    directory.remove()
    assert not directory.path.exists()


def test_second_server_of_an_installation_gets_its_own(tmp_path: Path) -> None:
    one, two = create(tmp_path), create(tmp_path)
    assert one.path != two.path
    one.remove()
    two.remove()


def test_directory_is_in_use_as_long_as_a_process_of_its_server_runs(tmp_path: Path) -> None:
    """The writer of a killed supervisor still has its socket there."""
    one = create(tmp_path)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=[one.lock]) as orphan:
        os.close(one.lock)
        two = create(tmp_path)
        assert one.path != two.path
        assert one.path.exists()
        orphan.communicate()
    two.remove()
    again = create(tmp_path)
    assert again.path == one.path
    again.remove()


def test_directory_of_a_killed_server_is_removed_by_the_next_of_any_installation(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    script = (
        "import os, sys; from pathlib import Path; from perseid.server.state.runtime import RuntimeDirectory\n"
        "directory = RuntimeDirectory.create(Path(sys.argv[1]), {'RUNTIME_DIRECTORY': sys.argv[2]})\n"
        "(directory.path / 'data.mdb').touch(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "installation", tmp_path / "run"], check=False)
    (left,) = (tmp_path / "run").iterdir()
    assert (left / "data.mdb").exists()
    for name in ("perseid-backup", "perseid-0123456789abcdef"):  # not ours: another name, or no lock
        (tmp_path / "run" / name).mkdir(0o700)
        (tmp_path / "run" / name / "file").touch()
    other = RuntimeDirectory.create(tmp_path / "other", {"RUNTIME_DIRECTORY": str(tmp_path / "run")})
    assert not left.exists()
    directory = create(tmp_path)
    assert directory.path == left
    assert other.path.exists()
    directory.remove()
    other.remove()
    assert len(list((tmp_path / "run").rglob("file"))) == 2


@pytest.mark.parametrize("what", ["mode", "link", "file"])
def test_directory_of_somebody_else_is_not_used(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = create(tmp_path)
    expected.remove()
    if what == "mode":
        expected.path.mkdir(0o755)
    elif what == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        expected.path.symlink_to(tmp_path / "elsewhere")
    else:
        expected.path.touch(0o700)
    monkeypatch.setattr(runtime, "SHARED_MEMORY", str(tmp_path / "missing"))
    (tmp_path / "installation").mkdir()
    directory = create(tmp_path)
    assert directory.path.parent == tmp_path / "installation"
    directory.remove()


def test_path_too_long_for_a_socket_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MAX_PATH", 20)
    with pytest.raises(NoRuntimeDirectory, match=r"run/perseid-.*: the path has more than 20 bytes"):
        create(tmp_path)


def test_full_file_systems_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(NoRuntimeDirectory, match=r"run: \d+ MiB are free"):
        create(tmp_path)


@pytest.mark.parametrize("opened", [1, 2])
def test_lock_removed_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: int) -> None:
    """The server that had the directory may remove it after another has opened its lock."""
    first = create(tmp_path)
    real, calls = os.open, []

    def open_and_remove(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags, mode)
        calls.append(path)
        if len(calls) == opened:
            first.remove()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_remove)
    second = create(tmp_path)
    assert calls.count(calls[0]) == 2
    assert (second.path / "lock").exists()
    second.remove()


def test_installation_has_one_server_and_tells_which(tmp_path: Path) -> None:
    installation = tmp_path / "installation"
    installation.mkdir()
    assert (read_details(installation), is_last_ending(installation)) == (None, False)
    lock = lock_installation(installation)
    assert lock is not None
    assert lock_installation(installation) is None
    directory = create(tmp_path)
    (installation / WRITER_LINK).symlink_to(directory.path / "writer")
    assert (read_details(installation), is_last_ending(installation)) == (None, True)
    directory.write_details({"pid": os.getpid(), "workers": 2})
    assert read_details(installation) == {"pid": os.getpid(), "workers": 2}
    with subprocess.Popen(["/bin/true"]) as ended:
        pass
    directory.write_details({"pid": ended.pid})
    assert read_details(installation) is None, "the server was killed"
    os.close(lock)
    os.close(directory.lock)
    assert not is_last_ending(installation)
    lock = lock_installation(installation)
    assert lock is not None
    os.close(lock)
    directory.path.rename(tmp_path / "gone")
    directory.write_details({})  # this is for a message only

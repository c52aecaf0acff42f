"""The directory of an installation: owner, permissions, file system, files."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.errors import ReadOnlyStore
from perseid.ledger.log.log import Log
from perseid.ledger.store.directory import UnsuitableDirectory, find_mount, open_new, prepare, sync_directory
from perseid.ledger.store.store import Store
from tests.ledger.ledgers import SIGNER, Machine, change

ROOT = Path(__file__).resolve().parents[2]
NOBODY = pwd.getpwnam("nobody")
IS_ROOT = os.geteuid() == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask of 0."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="perseid-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# Creation


@pytest.mark.usefixtures("open_umask")
def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    prepare(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    prepare(tmp_path / "new")


def test_parents_of_the_directory_are_unchanged(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableDirectory, match="absent does not exist"):
        prepare(tmp_path / "absent" / "new")
    assert list(tmp_path.iterdir()) == []


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsuitableDirectory, match="not a directory"):
        prepare(tmp_path / "file")


@pytest.mark.parametrize("wrong", [0o770, 0o707, 0o777, 0o720, 0o702, 0o1777])
def test_directory_writable_by_others_is_refused_with_the_fix(tmp_path: Path, wrong: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(wrong)
    with pytest.raises(UnsuitableDirectory, match=f"mode {wrong:04o}.*chmod 0700 {path}"):
        prepare(path)
    assert mode(path) == wrong, "nothing is changed behind the operator's back"
    path.chmod(0o700)
    prepare(path)


# Owner

AS_ANOTHER = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from perseid.ledger.store.directory import prepare
    from perseid.ledger.errors import ReadOnlyStore

    user = int(sys.argv[2])
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    try:
        prepare(Path(sys.argv[1]))
    except ReadOnlyStore as error:
        print(error)
    else:
        print("prepared")
    """
)


def prepared_as(user: int, path: Path) -> str:
    """The message that a process of that user gets."""
    command = [sys.executable, "-c", AS_ANOTHER, str(path), str(user)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_process_of_another_user_is_refused_with_the_command(shared_folder: Path) -> None:
    if IS_ROOT:
        # A directory of root and a process of user nobody.
        ours = shared_folder / "ours"
        prepare(ours)
        ours.chmod(0o755)
        message = prepared_as(NOBODY.pw_uid, ours)
        assert message.endswith("run it as the owner: sudo -u root perseid …")
        assert "belongs to root" in message
        assert "runs as nobody" in message
        assert prepared_as(0, ours) == "prepared"
    else:
        with pytest.raises(ReadOnlyStore, match="sudo -u root perseid"):
            prepare(Path("/usr"))
        assert prepared_as(os.geteuid(), shared_folder) == "prepared"


def test_root_is_another_user_as_well(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if IS_ROOT:
        theirs = shared_folder / "theirs"
        theirs.mkdir(mode=0o700)
        os.chown(theirs, NOBODY.pw_uid, NOBODY.pw_gid)
        assert prepared_as(0, theirs).endswith("run it as the owner: sudo -u nobody perseid …")
        assert list(theirs.iterdir()) == []
        assert prepared_as(NOBODY.pw_uid, theirs) == "prepared"
    else:
        # Only root can become root, but the decision depends on this number alone.
        owner = pwd.getpwuid(os.geteuid()).pw_name
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        with pytest.raises(ReadOnlyStore, match=f"runs as root; run it as the owner: sudo -u {owner} perseid"):
            prepare(shared_folder)


def test_user_without_a_name_is_shown_by_number(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    owner = shared_folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 4_123)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ReadOnlyStore, match=f"belongs to user {owner}, .*user 4123; .* sudo -u '#{owner}' perseid"):
        prepare(shared_folder)


# File system

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /net rw shared:5 master:2 - nfs4 server:/export rw,addr=192.0.2.1
31 30 8:2 / /net/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /media/two\\040words\\134and\\011more rw - cifs //server/share rw
33 22 8:3 / /data rw - ext4 /dev/sdc1 rw
34 33 0:42 / /data/remote rw - fuse.sshfs me@server: rw
35 33 8:4 / /data rw - btrfs /dev/sdd1 rw
36 22 8:5 / /over/below rw - ext4 /dev/sde1 rw
37 22 0:43 / /over rw - nfs server:/over rw
38 22 8:6 / /stack rw - ext4 /dev/sdf1 rw
39 38 0:44 / /stack rw - ceph mon:/ rw
40 22 0:45 / /late rw - nfs server:/late rw
41 22 8:7 / /late rw - ext4 /dev/sdg1 rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/", "ext4", "/"),
        ("/var/lib/perseid", "ext4", "/"),
        ("/net", "nfs4", "/net"),
        ("/net/perseid/deep", "nfs4", "/net"),
        ("/network", "ext4", "/"),  # another folder that starts with the same letters
        ("/net/local", "xfs", "/net/local"),
        ("/net/local/x", "xfs", "/net/local"),
        ("/net/locally", "nfs4", "/net"),
        ("/media/two words\\and\tmore/x", "cifs", "/media/two words\\and\tmore"),
        ("/data/remote", "btrfs", "/data"),  # hidden by a later mount over /data
        ("/over/below", "nfs", "/over"),  # also hidden, by a mount next to it
        ("/stack/x", "ceph", "/stack"),
        ("/late/x", "ext4", "/late"),
    ],
)
def test_mount_that_contains_a_path_is_found(mounts: Path, path: str, kind: str, point: str) -> None:
    mount = find_mount(Path(path), mounts)
    assert mount is not None
    assert (mount.kind, mount.point) == (kind, Path(point))


def test_root_mounted_on_itself_is_the_root(tmp_path: Path) -> None:
    path = tmp_path / "mountinfo"
    path.write_text("1 1 0:2 / / rw - rootfs rootfs rw\n2 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    mount = find_mount(Path("/x"), path)
    assert mount is not None
    assert mount.kind == "ext4"


def test_mount_is_unknown_without_a_mount_table(tmp_path: Path) -> None:
    assert find_mount(tmp_path, tmp_path / "absent") is None
    (tmp_path / "mountinfo").write_text("23 22 0:21 / /proc rw - proc proc rw\n")  # in a chroot
    assert find_mount(tmp_path, tmp_path / "mountinfo") is None
    prepare(tmp_path / "new", tmp_path / "absent")


def test_mount_of_a_real_path_matches_the_kernel(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    said = Path(f"/proc/self/fdinfo/{handle}").read_text()
    os.close(handle)
    mount = find_mount(tmp_path.resolve())
    assert mount is not None
    assert f"mnt_id:\t{mount.number}\n" in said


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "lustre", "ocfs2", "glusterfs"]
)
def test_network_file_system_is_refused_before_anything_is_created(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / {tmp_path} rw - {kind} server:/export rw\n")
    words = f"network file system .{kind}, mounted at {tmp_path}.*local disk, or .* PostgreSQL"
    with pytest.raises(UnsuitableDirectory, match=words):
        prepare(tmp_path / "new", mounts)
    assert not (tmp_path / "new").exists()


def test_link_is_followed_to_its_disk(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / {tmp_path}/remote rw - nfs server:/ rw\n")
    with pytest.raises(UnsuitableDirectory, match="nfs"):
        prepare(tmp_path / "link" / "new", mounts)


# Files


@pytest.mark.usefixtures("open_umask")
def test_the_files_of_a_ledger_are_for_their_owner_only(tmp_path: Path, machine: Machine) -> None:
    folder = tmp_path / "installation"
    prepare(folder)
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    log = Log(store, machine.clock(), os.urandom)
    log.create(SIGNER)
    log.append([change("a")])
    modes = {path.name: mode(path) for path in folder.iterdir()}
    store.close()
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}


@pytest.mark.usefixtures("open_umask")
def test_a_new_file_is_private_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with open_new(path) as stream:
        stream.write(b"secret")
    sync_directory(tmp_path)
    assert mode(path) == 0o600
    with pytest.raises(FileExistsError):
        open_new(path)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        open_new(tmp_path / "link")
    assert path.read_bytes() == b"secret"
    assert not (tmp_path / "elsewhere").exists()

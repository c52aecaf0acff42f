"""A machine with systemd, in namespaces of the kernel: its root file system is read, and changes are in memory."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_SECONDS: Final = 60.0
COMMAND_SECONDS: Final = 120.0

# systemd becomes the first process of a control group of its own, which is removed at the end.
_OUTSIDE = """
work=$1 inside=$2; shift 2
mount -t tmpfs machine "$work"
mkdir "$work/groups" "$work/upper" "$work/work" "$work/root"
mount -t cgroup2 groups "$work/groups"
group="$work/groups$(sed -n 's/^0:://p' /proc/self/cgroup)/perseid-test-$$"
trap 'find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true' EXIT
mkdir "$group"
(
    sh -c 'echo $PPID' >"$group/cgroup.procs"
    exec setpriv --pdeathsig KILL unshare --mount --pid --net --ipc --uts --cgroup --fork --kill-child \\
        sh -ec "$inside" sh "$work" "$@"
) || true
"""

# What engines of containers mount for systemd.
_INSIDE = """
work=$1 lower=$2; shift 2
root="$work/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" overlay "$root"
for each; do mkdir -p "$root${each%%=*}"; mount --bind "${each#*=}" "$root${each%%=*}"; done
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for each in null zero full random urandom tty; do
    touch "$root/dev/$each"
    mount --bind "/dev/$each" "$root/dev/$each"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts"
mount -t tmpfs shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for each in run tmp; do mount -t tmpfs -o mode=1777 "$each" "$root/$each"; done
chmod 755 "$root/run"
hostname machine
cd "$root"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A running machine."""

    pid: int
    environ: dict[str, str]

    def run(self, script: str) -> str:
        """Run a script as root, in its folder; return what it prints. It must not fail."""
        done = self.execute("sh", "-ec", f"cd /root\n{script}")
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{self.execute('journalctl', '--no-pager').stdout}"
        return done.stdout

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command as root; both streams are one."""
        spaces = ("--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root", "--wd")
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", *spaces, *command],
            env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **self.environ},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
        )

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.execute("journalctl", "--no-pager").stdout
            time.sleep(0.1)


@contextmanager
def booted(root: Path, volumes: dict[str, Path], **environ: str) -> Iterator[Machine]:
    """Boot a root file system that has systemd. `volumes` are folders by their place in it."""
    work = Path(tempfile.mkdtemp(prefix="perseid-machine-"))
    mounts = [f"{place}={folder}" for place, folder in volumes.items()]
    outside = ["sh", "-ec", _OUTSIDE, "sh", str(work), _INSIDE, str(root), *mounts]
    with (work.with_suffix(".log")).open("w+b") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", *outside],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        first = 0
        try:
            deadline = time.monotonic() + BOOT_SECONDS
            while not (first := _first_process(process.pid)):
                log.seek(0)
                assert process.poll() is None, log.read().decode()
                assert time.monotonic() < deadline, log.read().decode()
                time.sleep(0.05)
            machine = Machine(first, environ)
            machine.wait_until(
                lambda: machine.execute("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"),
                BOOT_SECONDS,
            )
            yield machine
        finally:
            if first:
                os.kill(first, signal.SIGKILL)
            else:
                process.terminate()
            process.wait(30)
            work.with_suffix(".log").unlink()
            shutil.rmtree(work)


def _first_process(outer: int) -> int:
    """The process id of systemd, once it runs; 0 before."""
    pid = outer
    for _ in range(3):  # the shell, unshare, systemd
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                return pid
        except OSError:
            return 0
        if not children:
            return 0
        pid = int(children[0])
    return pid if Path(f"/proc/{pid}/comm").read_text() == "systemd\n" else 0

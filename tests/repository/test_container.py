"""The steps of `Containerfile`, and those of the guide for Debian with systemd, in a root file system of Debian.

Namespaces of the kernel isolate the commands as a container engine does, so that ports and paths are the real ones.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perseid.registry.installation.settings import SETTINGS
from tests.cli.program import PERSEID
from tests.repository import container_process, machine
from tests.test_documentation import blocks

if TYPE_CHECKING:
    from tests.repository.conftest import Environ

DEADLINE = 30.0
BUILD_SECONDS = 300.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
URL = "https://example.org/report"
HEALTH_OPTION = re.compile(r"--\S+ ")


@dataclass(frozen=True, slots=True)
class Image:
    """The instructions of the file."""

    base: str
    runs: list[str]
    environ: dict[str, str]
    volume: str
    ports: list[str]
    user: int
    health: str
    command: list[str]


def read_containerfile(path: Path) -> Image:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        if line:
            name, _, value = line.partition(" ")
            found.setdefault(name, []).append(value)
    runs = found.pop("RUN")
    (base,), (environ,), (volume,), (ports,), (user,), (health,), (entry,), (command,) = (
        found.pop(name) for name in ("FROM", "ENV", "VOLUME", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT", "CMD")
    )
    assert not found
    uid, gid = user.split(":")
    assert uid == gid
    health = HEALTH_OPTION.sub("", health, count=2)
    assert health.startswith("CMD ")
    return Image(
        base,
        runs,
        dict(pair.split("=") for pair in environ.split()),
        volume,
        ports.split(),
        int(uid),
        health.removeprefix("CMD "),
        json.loads(entry) + json.loads(command),
    )


@pytest.fixture(scope="module")
def image(root: Path) -> Image:
    return read_containerfile(root / "Containerfile")


def command_in(options: container_process.Options, *command: str) -> list[str]:
    """The command in namespaces of its own; it ends with the process that started it."""
    unshare = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
    return [*unshare, sys.executable, container_process.__file__, json.dumps(options), *command]


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory,
    image: Image,
    wheel: Path,
    wheels: Path,
    clean_environ: "Environ",
) -> Iterator[Path]:
    """The root file system, after all `RUN` instructions."""
    assert os.geteuid() == 0, "run this test as root: it mounts file systems"
    root = tmp_path_factory.mktemp("image")
    debian = [
        *("unshare", "--mount"),  # what it mounts is gone with it, also if it is killed
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=essential",
        "--dpkgopt=force-unsafe-io",  # it need not survive the machine
        "--include=passwd,python3-venv,systemd",
        "bookworm",
        str(root),
    ]
    done = subprocess.run(debian, env=clean_environ, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stderr
    (root / "wheels").mkdir()
    for run in image.runs:
        volumes = {"/wheels": str(wheels)}
        if mount := re.match(r"--mount=type=bind,source=dist,target=(\S+) ", run):
            volumes[mount[1]] = str(wheel.parent)
            (root / mount[1].strip("/")).mkdir()
        step = run[mount.end() :] if mount else run
        done = subprocess.run(
            command_in({"root": str(root), "user": 0, "volumes": volumes, "read_only": False}, "sh", "-ec", step),
            env={"PATH": PATH, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"},
            check=False,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
        assert done.returncode == 0, (step, done.stdout, done.stderr)
    yield root
    shutil.rmtree(root)


@dataclass(frozen=True, slots=True)
class Container:
    """A running container."""

    pid: int
    environ: dict[str, str]
    user: int

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user."""
        user = ("--setuid", str(self.user), "--setgid", str(self.user))
        return self._enter("--mount", "--pid", "--root", "--wd", *user, "--", *command, environ=self.environ)

    def outside(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of this machine that reaches the ports."""
        return self._enter("--", *command, environ=dict(os.environ))

    def _enter(self, *arguments: str | Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", "--net", *arguments],
            env=environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )


@contextmanager
def running(image: Image, options: container_process.Options, log: Path) -> Iterator[Container]:
    """The entry point and command of the image; stopped as engines do, by SIGTERM to its first process."""
    environ = {"PATH": PATH} | image.environ
    with log.open("wb") as output:
        process = subprocess.Popen(command_in(options, *image.command), env=environ, stdout=output, stderr=output)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        wait_until(lambda: children.read_text() != "", log)
        container = Container(int(children.read_text()), environ, image.user)
        yield container
        os.kill(container.pid, signal.SIGTERM)
        assert process.wait(DEADLINE) == 0, log.read_text()
    finally:
        if process.poll() is None:
            # Its first process by itself: --kill-child has no effect on a process that has changed its user.
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
            process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_ports_and_variables_are_those_of_the_settings(image: Image) -> None:
    ports = {name: SETTINGS[f"{name}.port"].default for name in ("native", "http", "metrics")}
    assert image.ports == [f"{ports['native']}/udp", f"{ports['native']}/tcp", f"{ports['http']}/tcp"]
    assert f"${{PERSEID_METRICS_PORT:-{ports['metrics']}}}" in image.health
    variables = {"PERSEID_" + name.upper().replace(".", "_") for name in SETTINGS} | {"PERSEID_DIR"}
    assert image.environ.keys() <= variables
    assert image.environ["PERSEID_DIR"] == image.volume
    assert re.fullmatch(r"python:3\.\d+-slim", image.base)


def test_container_serves_without_privileges(image: Image, built: Path, tmp_path: Path) -> None:
    # A new volume is a copy of the folder in the image, with its owner.
    volume = tmp_path / "volume"
    subprocess.run(["cp", "--archive", built / image.volume.strip("/"), volume], check=True)
    assert (volume.stat().st_uid, volume.stat().st_mode & 0o777) == (image.user, 0o700)
    volumes = {image.volume: str(volume)}
    options = container_process.Options(root=str(built), user=image.user, volumes=volumes, read_only=True)
    environ = {"PATH": PATH} | image.environ | {"PERSEID_NATIVE_HOST": "192.0.2.7"}
    init = command_in(options, image.command[0], "init", "--prefix", "12345")
    done = subprocess.run(init, env=environ, check=False, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "192.0.2.7" in (volume / "siteinfo.json").read_text()
    unhealthy = command_in(options, "sh", "-c", image.health)
    assert subprocess.run(unhealthy, env=environ, check=False, capture_output=True, timeout=DEADLINE).returncode == 1

    with running(image, options, tmp_path / "log") as container:
        wait_until(lambda: container.exec("sh", "-c", image.health).returncode == 0, tmp_path / "log")
        done = container.exec("perseid", "create", "12345/report", "--url", URL)
        assert done.returncode == 0, done.stderr
        # Not the address to which servers are bound by default.
        for server in ("127.0.0.2:2641", "http://127.0.0.2:8000"):
            done = container.outside(PERSEID, "resolve", "12345/report", "--server", server)
            assert (done.returncode, URL in done.stdout) == (0, True), (server, done.stdout, done.stderr)
        done = container.exec("sh", "-c", "id -u; touch /usr/forbidden")
        assert (done.returncode, done.stdout) == (1, f"{image.user}\n"), done.stderr


HTTPS = """python3 -c '
import ssl, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context(), timeout=30).status)' """
DROP_INS = "/etc/systemd/system/perseid.service.d"
AS_USER = "runuser -u perseid --"


def test_guide_for_debian_is_followed(image: Image, built: Path, wheel: Path, wheels: Path) -> None:
    """With the units, their sandbox, sockets and credentials. The program is installed as `Containerfile` does it."""
    repository = Path(__file__).parents[2]
    guides = repository / "docs" / "guides"
    steps = [each.text for each in blocks(guides / "install-on-debian.md") if each.language == "sh"]
    program, _, service, ports, backups, upgrade = steps
    for line in program.splitlines()[1:2] + program.splitlines()[3:4]:
        assert line in image.runs[0]
    (drop_in,) = [each.text for each in blocks(guides / "serving.md") if each.text.startswith("[Service]")]
    volumes = {"/wheels": wheels, "/dist": wheel.parent, "/units": repository / "systemd"}
    with machine.booted(built, volumes, PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels") as debian:
        debian.run("userdel perseid; ln -s /dist/perseid-*.whl .; ln -s /units systemd")
        assert "300:0.NA/12345" in debian.run(service)
        assert debian.run(f"{HTTPS} https://127.0.0.1:8000/readyz") == "200\n"
        debian.run("systemctl kill --signal=KILL perseid")
        debian.wait_until(
            lambda: debian.run("systemctl show -p NRestarts,ActiveState perseid") == "NRestarts=1\nActiveState=active\n"
        )
        debian.run(ports)
        for url in ("https://127.0.0.1/readyz", "http://127.0.0.1/readyz", "http://127.0.0.1:443/readyz"):
            assert debian.run(f"{HTTPS} {url}") == "200\n"
        debian.run(f"{AS_USER} perseid create 12345/report --url {URL} -d /var/lib/perseid")
        assert URL in debian.run("perseid resolve 12345/report --server 127.0.0.1")
        debian.run("systemctl stop perseid 2>&1")
        assert debian.run(f"{HTTPS} https://127.0.0.1/readyz") == "200\n"  # starts it again
        debian.run(backups)
        assert "files: valid" in debian.run("journalctl --no-pager -u perseid-backup")
        assert "perseid-backup.timer" in debian.run("systemctl list-timers --no-pager")
        # A key with a passphrase.
        debian.run("(umask 077; echo secret > /etc/perseid/passphrase)")
        debian.run(f"{AS_USER} env PERSEID_KEYS_PASSPHRASE=secret perseid key rotate server -d /var/lib/perseid")
        assert debian.execute("systemctl", "restart", "perseid").returncode != 0
        debian.run(f"mkdir {DROP_INS}; cat > {DROP_INS}/key.conf << 'END'\n{drop_in}END")
        debian.run("systemctl daemon-reload; systemctl restart perseid")
        stop, _, rest = upgrade.partition("\n")
        debian.run(stop)
        assert debian.execute("sh", "-c", f"{HTTPS} https://127.0.0.1/readyz").returncode == 1  # no client starts it
        assert "already have version" in debian.run(rest)
        assert debian.run(f"{HTTPS} https://127.0.0.1/readyz") == "200\n"

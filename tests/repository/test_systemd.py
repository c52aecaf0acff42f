"""The systemd units are valid and sandboxed, start existing commands, and match the notifications of the program."""

import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.installation import site
from tests.cli.program import PERSEID

if TYPE_CHECKING:
    from tests.repository.conftest import Environ

PROGRAM = "/usr/local/bin/perseid"
Unit = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def unit(root: Path) -> Unit:
    return read_unit(root / "systemd" / "perseid.service")


@pytest.fixture(scope="module")
def backup_unit(root: Path) -> Unit:
    return read_unit(root / "systemd" / "perseid-backup.service")


def read_unit(path: Path) -> Unit:
    """The sections of a unit, with the values of each option in order."""
    sections: Unit = {}
    current: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", " ", path.read_text()).splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, found, value = line.partition("=")
            assert found, line
            assert name.isalnum(), line
            current.setdefault(name, []).append(value)
    return sections


def test_service_notifies_systemd_and_stops_in_order(unit: Unit) -> None:
    service = unit["Service"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["ExecStart"] == [f"{PROGRAM} serve"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["KillMode"] == ["mixed"]  # the supervisor stops the other processes in order
    assert service["Restart"] == ["on-failure"]
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]  # as often as it takes
    assert service["OOMPolicy"] == ["continue"]
    assert int(service["WatchdogSec"][0]) > 60
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


def test_service_uses_its_state_directory(unit: Unit) -> None:
    service = unit["Service"]
    directory = f"/var/lib/{service['StateDirectory'][0]}"
    assert service["Environment"] == [f"PERSEID_DIR={directory}"]
    assert unit["Unit"]["AssertPathExists"] == [f"{directory}/perseid.toml"]
    assert service["StateDirectoryMode"] == ["0700"]
    assert service["UMask"] == ["0077"]


@pytest.mark.parametrize("service_unit", ["unit", "backup_unit"])
def test_service_is_sandboxed(service_unit: str, request: pytest.FixtureRequest) -> None:
    """tests/repository/test_container.py shows that the services work in it."""
    service = request.getfixturevalue(service_unit)["Service"]
    for name in (
        *("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock", "ProtectControlGroups"),
        *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "LockPersonality"),
        *("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
    ):
        assert service[name] == ["yes"], name
    assert service["CapabilityBoundingSet"] == service.get("AmbientCapabilities", [""]) == [""]
    assert service["ProtectSystem"] == ["strict"]
    assert service["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert service["SystemCallArchitectures"] == ["native"]
    assert service["LimitCORE"] == ["0"]


def test_sysusers_file_creates_the_user_of_the_service(unit: Unit, root: Path) -> None:
    (line,) = [
        line
        for line in (root / "systemd" / "perseid.sysusers").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert line.split()[:2] == ["u", unit["Service"]["User"][0]]
    assert line.endswith(" /var/lib/perseid")


def test_units_and_the_drop_ins_of_the_guides_are_valid(root: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` also checks that the program exists, so the units name the one of the tests."""
    names = sorted(path.name for path in (root / "systemd").iterdir() if path.suffix != ".sysusers")
    assert len(names) == 4
    for name in names:
        (tmp_path / name).write_text((root / "systemd" / name).read_text().replace(PROGRAM, str(PERSEID)))
    (tmp_path / "perseid.service.d").mkdir()
    guides = [(root / "docs" / "guides" / name).read_text() for name in ("serving.md", "install-on-debian.md")]
    drop_ins = [text for guide in guides for text in re.findall(r"```text\n(\[Service\]\n.*?)```", guide, re.DOTALL)]
    assert len(drop_ins) == 1
    for number, text in enumerate(drop_ins):
        (tmp_path / "perseid.service.d" / f"{number}.conf").write_text(text)
    assert verify_units(tmp_path, *names) == (0, "")
    (tmp_path / "perseid.service.d" / "typo.conf").write_text("[Service]\nRestrat=always\n")
    code, message = verify_units(tmp_path, *names)
    assert code == 1
    assert "Restrat" in message


def verify_units(folder: Path, *names: str) -> tuple[int, str]:
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--recursive-errors=no",
        *(str(folder / name) for name in names),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def test_socket_unit_has_the_ports_of_web_and_native_protocol(root: Path) -> None:
    sockets = read_unit(root / "systemd" / "perseid.socket")["Socket"]
    assert sockets["ListenStream"] == ["443", "80", "2641"]
    assert sockets["ListenDatagram"] == ["2641"]


def test_service_starts_the_sockets_while_they_are_enabled(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    for name in ("perseid.service", "perseid.socket"):
        (folder / name).write_text((root / "systemd" / name).read_text())
    wanted = folder / "perseid.service.wants" / "perseid.socket"
    for command, is_wanted in (("enable", True), ("disable", False)):
        subprocess.run(["systemctl", "--root", str(tmp_path), command, "perseid.socket"], check=True, timeout=30)
        assert wanted.is_symlink() is is_wanted
    assert "perseid.socket" not in read_unit(folder / "perseid.service")["Unit"]["Wants"][0]


def test_timer_starts_the_backup_every_day(root: Path, backup_unit: Unit) -> None:
    timer = read_unit(root / "systemd" / "perseid-backup.timer")
    assert timer["Timer"]["OnCalendar"] == ["daily"]
    assert timer["Timer"]["Persistent"] == ["yes"]
    assert backup_unit["Service"]["Type"] == ["oneshot"]
    assert backup_unit["Service"]["LoadCredential"] == ["passphrase:/etc/perseid/backup.passphrase"]


def test_backup_service_creates_tests_and_removes_backups(
    backup_unit: Unit, tmp_path: Path, clean_environ: "Environ"
) -> None:
    folder, credentials = tmp_path / "backups", tmp_path / "credentials"
    folder.mkdir()
    credentials.mkdir()
    (credentials / "passphrase").write_text("a long passphrase\n")
    (credentials / "passphrase").chmod(0o400)
    for name, days in {"old.backup": 40, "recent.backup": 20, "old.txt": 40}.items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - days * 86_400,) * 2)
    command = shlex.split(backup_unit["Service"]["ExecStart"][0].replace("%%", "%"))
    assert command[:2] == ["/bin/sh", "-euc"]
    environ = clean_environ.plus(
        PERSEID_DIR=str(site(tmp_path, "--prefix", "12345").directory),
        FOLDER=str(folder),
        CREDENTIALS_DIRECTORY=str(credentials),
        TMPDIR=str(tmp_path),
        PATH=f"{Path(PERSEID).parent}:{clean_environ['PATH']}",
    )
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "contents  ledger, settings and keys, encrypted" in done.stdout
    assert "files: valid" in done.stdout
    new, *others = sorted(path.name for path in folder.iterdir())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{6}Z\.backup", new)
    assert others == ["old.txt", "recent.backup"]

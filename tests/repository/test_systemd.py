"""The service of systemd is sandboxed, starts what exists, and fits what the program says to systemd."""

from pathlib import Path

import pytest

Unit = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def unit(root: Path) -> Unit:
    """The sections of the unit, and in each what every name was set to, in order."""
    sections: Unit = {}
    current: dict[str, list[str]] = {}
    for line in (root / "systemd" / "perseid.service").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, found, value = line.partition("=")
            assert found, line
            assert name.isalnum(), line
            current.setdefault(name, []).append(value)
    return sections


def test_systemd_knows_when_it_serves_and_how_to_stop_it(unit: Unit) -> None:
    service = unit["Service"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["ExecStart"] == ["/usr/bin/perseid serve"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["KillMode"] == ["mixed"]  # the supervisor ends the others, in order
    assert service["Restart"] == ["on-failure"]
    assert service["OOMPolicy"] == ["continue"]
    assert int(service["WatchdogSec"][0]) > 60
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


def test_it_works_on_the_directory_that_it_may_write(unit: Unit) -> None:
    service = unit["Service"]
    directory = f"/var/lib/{service['StateDirectory'][0]}"
    assert service["Environment"] == [f"PERSEID_DIR={directory}"]
    assert unit["Unit"]["AssertPathExists"] == [f"{directory}/perseid.toml"]
    assert service["StateDirectoryMode"] == ["0700"]
    assert service["UMask"] == ["0077"]


def test_it_may_do_nothing_else(unit: Unit) -> None:
    service = unit["Service"]
    for name in (
        *("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock", "ProtectControlGroups"),
        *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "LockPersonality"),
        *("MemoryDenyWriteExecute", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
    ):
        assert service[name] == ["yes"], name
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == [""]
    assert service["ProtectSystem"] == ["strict"]
    assert service["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert service["SystemCallArchitectures"] == ["native"]
    assert service["LimitCORE"] == ["0"]


def test_its_user_is_made_by_the_file_beside_it(unit: Unit, root: Path) -> None:
    (line,) = [
        line
        for line in (root / "systemd" / "perseid.sysusers").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert line.split()[:2] == ["u", unit["Service"]["User"][0]]
    assert line.endswith(" /var/lib/perseid")

"""The systemd service is sandboxed, starts an existing command, and matches the notifications of the program."""

from pathlib import Path

import pytest

Unit = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def unit(root: Path) -> Unit:
    """The sections of the unit, with the values of each option in order."""
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


def test_service_notifies_systemd_and_stops_in_order(unit: Unit) -> None:
    service = unit["Service"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["ExecStart"] == ["/usr/bin/perseid serve"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["KillMode"] == ["mixed"]  # the supervisor stops the other processes in order
    assert service["Restart"] == ["on-failure"]
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


def test_service_is_sandboxed(unit: Unit) -> None:
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


def test_sysusers_file_creates_the_user_of_the_service(unit: Unit, root: Path) -> None:
    (line,) = [
        line
        for line in (root / "systemd" / "perseid.sysusers").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert line.split()[:2] == ["u", unit["Service"]["User"][0]]
    assert line.endswith(" /var/lib/perseid")

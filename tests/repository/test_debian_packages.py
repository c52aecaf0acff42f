"""tools/debian-packages installs missing packages as root; otherwise it prints the command to run."""

import subprocess
from pathlib import Path

import pytest

# dpkg-query knows the packages listed in a file; "removed" is one whose configuration was left behind.
DPKG_QUERY = """\
#!/bin/sh
for name; do :; done
grep -qx "$name" "$HERE/installed" && { printf installed; exit 0; }
[ "$name" = removed ] && { printf config-files; exit 0; }
echo "dpkg-query: no packages found matching $name" >&2
exit 1
"""
ID = '#!/bin/sh\necho "$USER_ID"\n'
APT_GET = """\
#!/bin/sh
echo "$DEBIAN_FRONTEND: $*" >> "$HERE/apt-get.log"
if [ "$1" = install ]; then
    sleep 0.2
    for name; do echo "$name" >> "$HERE/installed"; done
fi
"""
ROOT_USER, OTHER_USER = "0", "1000"


class Machine:
    """A fake Debian machine with its packages, its user and the recorded calls of apt-get."""

    def __init__(self, here: Path, script: Path) -> None:
        self.here = here
        self.script = script
        (here / "installed").write_text("present\nanother\n")
        for name, text in (("dpkg-query", DPKG_QUERY), ("id", ID), ("apt-get", APT_GET)):
            program = here / name
            program.write_text(text)
            program.chmod(0o755)

    def environ(self, user: str) -> dict[str, str]:
        return {"PATH": f"{self.here}:/usr/bin:/bin", "HERE": str(self.here), "USER_ID": user}

    def run(self, *packages: str, user: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script, *packages],
            env=self.environ(user),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def apt_get_calls(self) -> list[str]:
        log = self.here / "apt-get.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, root: Path) -> Machine:
    return Machine(tmp_path, root / "tools" / "debian-packages")


@pytest.mark.parametrize("user", [ROOT_USER, OTHER_USER])
def test_nothing_happens_when_everything_is_installed(machine: Machine, user: str) -> None:
    done = machine.run("present", "another", user=user)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.apt_get_calls() == []


def test_user_gets_one_line_with_the_command_to_run(machine: Machine) -> None:
    done = machine.run("absent", "present", "removed", user=OTHER_USER)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith("sudo apt-get install absent removed")
    assert machine.apt_get_calls() == []


def test_command_is_shown_on_a_system_without_dpkg_too(machine: Machine) -> None:
    script = machine.here / "debian-packages"
    script.write_text(machine.script.read_text().replace("/var/lib/dpkg", str(machine.here / "missing")))
    script.chmod(0o755)
    machine.script = script
    done = machine.run("absent", user=OTHER_USER)
    assert (done.returncode, done.stderr.count("sudo apt-get install absent"), done.stderr.count("\n")) == (1, 1, 1)


def test_root_installs_the_missing_packages_without_prompts(machine: Machine) -> None:
    done = machine.run("absent", "present", "removed", user=ROOT_USER)
    assert done.returncode == 0, done.stderr
    update, install = machine.apt_get_calls()
    assert update.startswith("noninteractive: update")
    assert install.startswith("noninteractive: install ")
    words = install.split()
    assert "--yes" in words
    assert words[-2:] == ["absent", "removed"]


def test_of_several_at_once_the_first_installs_and_the_others_wait(machine: Machine) -> None:
    command = [str(machine.script), "absent"]
    running = [subprocess.Popen(command, env=machine.environ(ROOT_USER)) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    assert [line.split()[1] for line in machine.apt_get_calls()] == ["update", "install"]

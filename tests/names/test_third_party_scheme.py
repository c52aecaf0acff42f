"""A third-party scheme, packaged, installed and used as a third party would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "perseid-colours"
version = "1.0"

[project.entry-points."perseid.schemes"]
colours = "perseid_colours:Colours"
pilin = "perseid_colours:Colours"
broken = "perseid_colours:Missing"
"""

MODULE = '''
"""Names such as red-0 and blue-1."""

from dataclasses import dataclass

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.schemes import Details, Source


@dataclass(frozen=True)
class Colours:
    colour: str = "red"
    name = "colours"

    def mint(self, source: Source, count: int = 1) -> list[str]:
        first = source.lease(count, 0)
        return [f"{self.colour}-{number}" for number in range(first, first + count)]

    def validate(self, handle: Handle) -> None:
        if not handle.suffix.startswith(f"{self.colour}-"):
            raise InvalidName("P8", f"not {self.colour}", position=len(handle.prefix) + 1)

    def normalize(self, handle: Handle) -> Handle:
        self.validate(handle)
        return handle

    def describe(self, handle: Handle) -> Details:
        return {"number": int(handle.suffix.rpartition("-")[2])}
'''

USE = """
import secrets, time
from perseid.names.schemes import MemoryLease
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.scheme_loader import load_scheme, scheme_names
from perseid.names.schemes import Scheme, Source

source = Source(time.time_ns, secrets.token_bytes, MemoryLease(), time.sleep)
scheme: Scheme = load_scheme("colours", colour="blue")
print(*scheme.mint(source, 2))
print(scheme.describe(Handle("10.1", "blue-7")))
try:
    scheme.validate(Handle("10.1", "red-7"))
except InvalidName as problem:
    print(problem)
print(*scheme_names())
print(type(load_scheme("pilin")).__module__)
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where pip installed the third-party distribution."""
    project = tmp_path_factory.mktemp("colours")
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "perseid_colours.py").write_text(MODULE)
    target = project / "installed"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target), str(project)]
    result = subprocess.run([*command, *options], cwd=project, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return target


def run(code: str, plugins: Path | None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process with the plugins on its path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if plugins is not None:
        environ["PYTHONPATH"] = str(plugins)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environ, check=False, capture_output=True, text=True, timeout=300)


def test_installed_scheme_mints_and_cannot_shadow_a_built_in_scheme(plugins: Path, tmp_path: Path) -> None:
    result = run(USE, plugins, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "blue-0 blue-1",
        "{'number': 7}",
        "at character 6: not blue (rule P8)",
        "pilin pilin-check cordra uuid pattern broken colours",
        "perseid.names.pilin",
    ]


def test_scheme_is_unknown_without_the_distribution(tmp_path: Path) -> None:
    result = run(USE, None, tmp_path)
    assert result.returncode == 1
    assert "unknown scheme 'colours'" in result.stderr


def test_unknown_scheme_option_is_misuse(plugins: Path, tmp_path: Path) -> None:
    result = run(
        "from perseid.names.scheme_loader import load_scheme; load_scheme('colours', flavour=1)", plugins, tmp_path
    )
    assert result.returncode == 1
    assert "NameMisuse" in result.stderr
    assert "flavour" in result.stderr


def test_scheme_that_does_not_load_is_misuse_and_named(plugins: Path, tmp_path: Path) -> None:
    result = run("from perseid.names.scheme_loader import load_scheme; load_scheme('broken')", plugins, tmp_path)
    assert result.returncode == 1
    assert "NameMisuse" in result.stderr
    assert "perseid_colours:Missing" in result.stderr

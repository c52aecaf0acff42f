"""The wheel works on its own, when it is installed and run outside the checkout."""

import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.repository.conftest import Installed


def test_wheel_contains_the_whole_package_and_nothing_else(root: Path, installed: "Installed") -> None:
    source = root / "src"
    package = {
        str(path.relative_to(source))
        for path in (source / "perseid").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert names - about == package
    assert "perseid/py.typed" in names
    assert "perseid/names/rules.toml" in names
    assert any(name.endswith("/licenses/LICENSE") for name in about)


def test_installed_package_needs_nothing_from_outside(tmp_path: Path, installed: "Installed") -> None:
    result = installed.run("python", "-c", "import perseid; print(perseid.__file__)", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(installed.home)
    for tool in ("pip", "pytest", "hatchling", "packaging"):
        assert installed.run("python", "-c", f"import {tool}", cwd=tmp_path).returncode == 1, tool


def test_installed_command_prints_its_version(tmp_path: Path, installed: "Installed") -> None:
    done = installed.run("perseid", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert metadata.version("perseid") in done.stdout.split()


def test_installed_command_finds_its_package_data(tmp_path: Path, installed: "Installed") -> None:
    done = installed.run("perseid", "name", "rules", "H3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "H3" in done.stdout

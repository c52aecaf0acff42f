"""docs/ARCHITECTURE.md lists the packages and dependencies that exist."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROW = re.compile(r"^\| `([^`]+)`", re.MULTILINE)


@pytest.fixture(scope="module")
def sections(root: Path) -> dict[str, str]:
    """The text under each heading, whatever its level."""
    parts = re.split(r"^#+ (.+)$", (root / "docs" / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def project_requirements(root: Path, *extras: str) -> set[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = [project["optional-dependencies"][extra] for extra in extras] or [project["dependencies"]]
    return {canonicalize_name(Requirement(line).name) for group in groups for line in group}


def test_every_package_is_listed(root: Path, sections: dict[str, str]) -> None:
    listed = re.findall(r"^\| `(\w+)/` \|", sections["Packages"], re.MULTILINE)
    existing = [path.parent.name for path in (root / "src" / "perseid").glob("*/__init__.py")]
    assert sorted(listed) == sorted(existing)


def test_paths_in_the_table_of_places_exist(root: Path, sections: dict[str, str]) -> None:
    named = re.findall(r"`([\w./]+/[\w./]*)`", sections["Where to look"])
    assert len(named) > 20
    missing = [name for name in named if not any((root / base / name).exists() for base in ("", "src/perseid"))]
    assert missing == []


def test_every_run_time_dependency_is_listed(root: Path, sections: dict[str, str]) -> None:
    assert set(ROW.findall(sections["At run time"])) == project_requirements(root)
    assert set(ROW.findall(sections["For servers"])) == project_requirements(root, "server")


def test_every_optional_dependency_and_tool_is_listed(root: Path, sections: dict[str, str]) -> None:
    assert set(ROW.findall(sections["Optional"])) == project_requirements(root, "postgres", "mysql", "spreadsheets")
    assert set(ROW.findall(sections["For tests and development"])) == project_requirements(root, "test", "dev")

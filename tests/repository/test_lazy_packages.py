"""Packages load what is used of them, and offer what they say; a resolver process loads little."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("names", "records", "wire", "ledger")

HEAVY = (
    "alembic",
    "asyncio",
    "cryptography",
    "defusedxml",
    "h11",
    "http.client",
    "msgspec",
    "prometheus_client",
    "psycopg",
    "sqlalchemy",
    "ssl",
    "typer",
    "urllib.request",
    "uvloop",
    "xml",
)
"""What a resolver has no use for."""

ROOMS = ("perseid.batch", "perseid.cli", "perseid.client", "perseid.registry")
MAX_MODULES = 50
"""Modules of our own in a resolver; each costs memory in every one of them."""

LIST_MODULES = "import sys; import {}; print(*sorted(sys.modules))"


def offered(package: str, root: Path) -> tuple[dict[str, set[str]], dict[str, set[str]], list[str]]:
    """What a package offers by module: to type checkers, when it runs, and as a whole."""
    tree = ast.parse((root / "src" / "perseid" / package / "__init__.py").read_text())
    (choice,) = (node for node in tree.body if isinstance(node, ast.If))
    checked: dict[str, set[str]] = {}
    for node in choice.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            checked.setdefault(node.module or alias.name, set()).update({alias.name} if node.module else ())
    (assignment,) = choice.orelse
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.Call)
    running = {module: set(names) for module, names in ast.literal_eval(assignment.value.args[1]).items()}
    return checked, running, importlib.import_module(f"perseid.{package}").__all__


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_the_same_to_type_checkers_and_when_it_runs(package: str, root: Path) -> None:
    checked, running, everything = offered(package, root)
    assert checked == running
    names = set().union(*running.values())
    assert names <= set(everything)
    assert set(everything) - names <= set(running)
    modules = {path.stem for path in (root / "src" / "perseid" / package).glob("*.py")}
    assert not names & modules, "whoever imports such a module first would find it in the name's place"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_a_package_offers_is_there(package: str, root: Path) -> None:
    whole = importlib.import_module(f"perseid.{package}")
    _, running, everything = offered(package, root)
    for module, names in running.items():
        for name in names:
            assert getattr(whole, name) is getattr(importlib.import_module(f"perseid.{package}.{module}"), name)
    assert all(hasattr(whole, name) for name in everything)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        whole.nothing  # noqa: B018 - looking is all


def loaded_by(module: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", LIST_MODULES.format(module)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.split()


def test_a_resolver_loads_only_what_it_uses() -> None:
    loaded = loaded_by("perseid.server.processes.resolver")
    ours = [module for module in loaded if module.split(".")[0] == "perseid"]
    print(len(ours), *ours)
    assert [module for module in HEAVY if module in loaded] == []
    assert [module for module in ours if module.startswith(ROOMS)] == []
    assert len(ours) <= MAX_MODULES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_alone_loads_nothing(package: str) -> None:
    ours = [module for module in loaded_by(f"perseid.{package}") if module.startswith("perseid")]
    assert ours == ["perseid", "perseid._lazy", f"perseid.{package}"]

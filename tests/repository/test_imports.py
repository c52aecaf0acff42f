"""Packages import nothing by themselves, and the supervisor and quick commands load few modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perseid.server.processes.fork_server import PRELOADED
from tests.cli.installation import site

PACKAGES = ("names", "records", "schema", "wire", "client", "ledger", "registry", "server")

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
"""Modules that the supervisor does not use."""

UNUSED_PACKAGES = ("perseid.bulk", "perseid.cli", "perseid.client", "perseid.registry")
MAX_MODULES = 40
"""Perseid modules in the supervisor, which stays small."""

MAX_RESOLVER_MODULES = 90
"""Perseid modules before the first response over UDP."""

SERVER_ONLY = {
    "alembic",
    "httptools",
    "jinja2",
    "lmdb",
    "OpenSSL",
    "prometheus_client",
    "segno",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvloop",
}
"""Packages of the extra `server`, and typer, which the client does not use."""

LIST_MODULES = "import sys; import {}; print(*sorted(sys.modules))"


def loaded_by(module: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", LIST_MODULES.format(module)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.split()


def test_supervisor_loads_only_what_it_uses() -> None:
    loaded = loaded_by("perseid.server.processes.supervisor")
    ours = [module for module in loaded if module.split(".")[0] == "perseid"]
    print(len(ours), *ours)
    assert [module for module in HEAVY if module in loaded] == []
    assert [module for module in ours if module.startswith(UNUSED_PACKAGES)] == []
    assert len(ours) <= MAX_MODULES


def test_resolver_loads_only_what_public_resolution_needs() -> None:
    """It answers before the others are loaded: the fork server loads it first."""
    assert PRELOADED[0] == "perseid.server.processes.resolver"
    loaded = loaded_by(PRELOADED[0])
    late = ("asyncio", "httptools", "OpenSSL", "prometheus_client", "sqlalchemy", "starlette", "uvloop")
    assert [module for module in late if module in loaded] == []
    packages = ("commands", "queries", "jobs", "codec", "registry")
    late_packages = ("perseid.server.http", "perseid.bulk", *(f"perseid.registry.{name}" for name in packages))
    assert [module for module in loaded if module.startswith(late_packages)] == []
    ours = [module for module in loaded if module.startswith("perseid.")]
    assert len(ours) <= MAX_RESOLVER_MODULES


def test_worker_starts_without_the_handlers_of_http() -> None:
    """They are loaded when it has started, or before it is forked."""
    loaded = loaded_by("perseid.server.processes.writer, perseid.server.processes.worker")
    late = ("jinja2", "starlette", "perseid.server.http.dispatch", "perseid.server.http.pages")
    assert [module for module in late if module in loaded] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_alone_loads_no_modules(package: str) -> None:
    ours = [module for module in loaded_by(f"perseid.{package}") if module.startswith("perseid")]
    assert ours == ["perseid", f"perseid.{package}"]


@pytest.mark.parametrize("module", ["perseid.client.api", "perseid.client.native", "perseid.client.resolution"])
def test_client_needs_neither_database_nor_server(module: str) -> None:
    loaded = loaded_by(module)
    assert [name for name in loaded if name.split(".")[0] in SERVER_ONLY] == []
    ours = [name.split(".")[1] for name in loaded if name.startswith("perseid.")]
    assert {"cli", "ledger", "registry", "server"}.isdisjoint(ours)


def test_a_blocking_resolver_loads_only_what_it_uses() -> None:
    loaded = loaded_by("perseid.client.resolution")
    unused = ("asyncio", "httpx", "lmdb", "msgspec", "sqlalchemy", "perseid.records.data_types", "perseid.schema")
    assert [module for module in unused if module in loaded] == []
    assert [module for module in loaded if module.startswith(("perseid.ledger", "perseid.registry"))] == []


def test_a_blocking_client_loads_only_what_it_uses() -> None:
    """A remote command loads it, and must start quickly."""
    loaded = loaded_by("perseid.client.api")
    unused = ("anyio", "asyncio", "cryptography", "httpcore", "httpx", "rich", "typer")
    assert [module for module in unused if module in loaded] == []


STARTUP_MODULES = (
    "alembic",
    "asyncio",
    "cryptography",
    "defusedxml",
    "http.client",
    "httpx",
    "lmdb",
    "perseid.ledger",
    "perseid.registry",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
)
"""Modules that take long to load, compared with what a short command does."""

RUN_COMMAND = "import sys; from perseid.cli import app; app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("--help", ()),
        ("name parse 10.1/a", ()),
        ("create --help", ()),
        ("find --help", ()),
        ("mint --help", ()),
        ("resolve --help", ()),
        ("resolve 102.100.272/8RBZF0DQH", ("lmdb", "perseid.ledger", "perseid.registry")),
        ("resolve 102.100.272/8RBZF0DQH --json", ("lmdb", "perseid.ledger", "perseid.registry")),
    ],
)
def test_quick_commands_load_few_modules(words: str, allowed: tuple[str, ...], tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    demo = site(tmp_path, "--demo")
    demo.ok("rebuild answers")
    environ["PERSEID_DIR"] = str(demo.directory)
    command = [sys.executable, "-c", RUN_COMMAND, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    loaded = done.stdout.splitlines()[-1].split()
    assert "perseid.cli" in loaded
    assert [module for module in STARTUP_MODULES if module in loaded] == list(allowed)

"""Fixtures of the repository tests: the checkout, clean variables, and an installed wheel."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import licenses
import lock

_ROOT = Path(__file__).resolve().parents[2]
# Variables of make, coverage, virtual environments and Python that would affect a child process.
_TRACES = ("COV", "MAKE", "MFLAGS", "GNUMAKEFLAGS", "PERSEID_", "PYTEST", "PYTHON", "VIRTUAL_ENV")


class Environ(dict[str, str]):
    """Environment variables. They may hold secrets, so a failing test does not show them."""

    def __repr__(self) -> str:
        return f"<{len(self)} variables>"

    def plus(self, **more: str) -> "Environ":
        return Environ(self, **more)


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment outside the checkout with the built wheel and its locked run-time dependencies."""

    wheel: Path
    home: Path
    environ: Environ

    def run(
        self, program: str, *arguments: str, cwd: Path, path: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, from `cwd`.

        The environment is shared by all tests, so it must not be changed: what a test adds (a plugin, say) it
        installs with `pip install --no-deps --target DIR` and names here as `path`.
        """
        return subprocess.run(
            [self.home / "bin" / program, *arguments],
            cwd=cwd,
            env=self.environ.plus(PYTHONPATH=str(path)) if path else self.environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return _ROOT


@pytest.fixture(scope="session")
def clean_environ() -> Environ:
    """The environment variables without those that would make a child process depend on this one."""
    return Environ((name, value) for name, value in os.environ.items() if not name.startswith(_TRACES))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, worker_id: str, clean_environ: Environ) -> Path:
    """The wheel, built from the checkout; once for all workers."""
    folder = _create_once(tmp_path_factory, worker_id, "wheel", lambda folder: _build(folder, clean_environ))
    (wheel,) = (folder / "dist").iterdir()
    return wheel


@pytest.fixture(scope="session")
def installed(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, clean_environ: Environ, wheel: Path
) -> Installed:
    """The wheel installed into an empty environment; once for all workers."""
    folder = _create_once(
        tmp_path_factory, worker_id, "installed", lambda folder: _install(folder, clean_environ, wheel)
    )
    assert not folder.resolve().is_relative_to(_ROOT), "the temporary directory is inside the checkout"
    return Installed(wheel, folder / "environment", clean_environ)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory, worker_id: str, clean_environ: Environ) -> Path:
    """The locked wheels of an installation, for the Python of Debian 12 and this one; once for all workers."""
    return _create_once(tmp_path_factory, worker_id, "wheels", lambda folder: _download(folder, clean_environ))


def _create_once(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, name: str, create: Callable[[Path], None]
) -> Path:
    """A folder that all workers share; the first one that needs it creates its contents."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            create(folder)
            (folder / "ready").touch()
    return folder


def _download(folder: Path, environ: Environ) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(_locked_requirements("server", "postgres"))
    for version in {"3.11", f"{sys.version_info[0]}.{sys.version_info[1]}"}:
        download = ["-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--require-hashes"]
        select = ["--only-binary=:all:", f"--python-version={version}", f"--dest={folder}", "-r", str(requirements)]
        done = subprocess.run(
            [sys.executable, *download, *select], env=environ, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def _locked_requirements(*extras: str) -> str:
    """The run-time dependencies with their hashes, as a file for pip."""
    needed = {canonicalize_name(each.metadata["Name"]) for each in licenses.closure("perseid", extras)}
    pins = lock.parse(lock.LOCK.read_text())
    return "".join(f"{pin.text}\n" for pin in pins if canonicalize_name(pin.requirement.name) in needed)


_PIP = ("-m", "pip", "--disable-pip-version-check")


def _build(folder: Path, environ: Environ) -> None:
    shutil.rmtree(folder / "dist", ignore_errors=True)
    _run_python(folder, environ, *_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", _ROOT)


def _install(folder: Path, environ: Environ, wheel: Path) -> None:
    shutil.rmtree(folder / "environment", ignore_errors=True)
    (folder / "requirements.txt").write_text(_locked_requirements())
    _run_python(folder, environ, "-m", "venv", "--without-pip", "environment")
    into = (*_PIP, "--python", "environment/bin/python", "install", "--no-compile")
    # Without --no-deps: a dependency that the closure missed has no hash, and pip refuses it.
    _run_python(folder, environ, *into, "--require-hashes", "-r", "requirements.txt")
    _run_python(folder, environ, *into, "--no-deps", "--no-index", wheel)


def _run_python(folder: Path, environ: Environ, *arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ.plus(PERSEID_BUILD="pure"),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"

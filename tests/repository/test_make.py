"""The Makefile sets up the environment once and runs all checks."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests import conftest
from tests.conftest import LONGEST

if TYPE_CHECKING:
    from tests.repository.conftest import Environ

# Replaces the Python that creates the environment and the one inside it, and records its calls.
FAKE_PYTHON = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "executable = $0" > .venv/pyvenv.cfg ;;
    *realpath*) echo "$0" ;;
    *"$BROKEN"*) exit 1 ;;
esac
"""


def make(directory: Path, environ: "Environ", *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=directory, env=environ, check=False, capture_output=True, text=True, timeout=30)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    """The files that `make env` reads, and a fake Python."""
    checkout = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "src/perseid/__init__.py", "tools/debian-packages"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, checkout / name)
    write_program(tmp_path / "bin" / "python3", FAKE_PYTHON)
    return checkout


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def fake_environ(tmp_path: Path, calls: Path, clean_environ: "Environ") -> "Environ":
    path = f"{tmp_path / 'bin'}{os.pathsep}{clean_environ['PATH']}"
    return clean_environ.plus(PATH=path, CALLS=str(calls), BROKEN="nothing is broken")


def test_environment_of_this_run_is_up_to_date(root: Path, clean_environ: "Environ") -> None:
    done = make(root, clean_environ, "--question", "env")
    assert done.returncode == 0, "the lock or pyproject.toml is newer than .venv; run: make env"


def test_env_installs_the_locked_versions_by_hash_and_then_the_package(
    checkout: Path, calls: Path, fake_environ: "Environ"
) -> None:
    done = make(checkout, fake_environ, "env")
    assert done.returncode == 0, done.stderr
    installs = [line for line in calls.read_text().splitlines() if line.startswith("-m pip install")]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "-r requirements.lock" in installs[0]
    assert "--no-deps" in installs[1]
    assert "--editable ." in installs[1]


def test_env_does_nothing_when_nothing_changed(checkout: Path, calls: Path, fake_environ: "Environ") -> None:
    assert make(checkout, fake_environ, "env").returncode == 0
    calls.unlink()
    assert make(checkout, fake_environ, "env").returncode == 0
    assert not calls.exists(), calls.read_text()


@pytest.mark.parametrize("changed", ["requirements.lock", "pyproject.toml"])
def test_env_installs_again_if_the_requirements_changed(
    checkout: Path, calls: Path, fake_environ: "Environ", changed: str
) -> None:
    assert make(checkout, fake_environ, "env").returncode == 0
    calls.unlink()
    later = (checkout / ".venv" / ".up-to-date").stat().st_mtime + 2
    os.utime(checkout / changed, (later, later))
    assert make(checkout, fake_environ, "env").returncode == 0
    assert "-m pip install" in calls.read_text()


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A second fake Python."""
    other = tmp_path / "other" / "python3"
    write_program(other, FAKE_PYTHON)
    return other


def test_env_is_created_again_only_if_another_python_is_named(
    checkout: Path, calls: Path, fake_environ: "Environ", other_python: Path
) -> None:
    assert make(checkout, fake_environ, "env").returncode == 0
    calls.unlink()
    named = make(checkout, fake_environ, f"PYTHON={other_python}", "env")
    assert named.returncode == 0, named.stderr
    assert "-m venv --clear .venv" in calls.read_text().splitlines()
    assert calls.read_text().count("-m pip install") == 2
    assert (checkout / ".venv" / "pyvenv.cfg").read_text() == f"executable = {other_python}\n"
    calls.unlink()
    assert make(checkout, fake_environ, "env").returncode == 0
    assert not calls.exists(), calls.read_text()


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_env_does_nothing_if_the_same_python_is_named_again(
    checkout: Path, calls: Path, fake_environ: "Environ", other_python: Path, way: str
) -> None:
    assert make(checkout, fake_environ, f"PYTHON={other_python}", "env").returncode == 0
    calls.unlink()
    if way == "argument":
        done = make(checkout, fake_environ, f"PYTHON={other_python}", "env")
    else:
        done = make(checkout, fake_environ.plus(PYTHON=str(other_python)), "env")
    assert done.returncode == 0
    (only,) = calls.read_text().splitlines()
    assert "realpath" in only, "only its path was asked for"


def test_missing_python_is_reported_and_keeps_the_environment(
    checkout: Path, fake_environ: "Environ", other_python: Path
) -> None:
    assert make(checkout, fake_environ, "env").returncode == 0
    done = make(checkout, fake_environ, f"PYTHON={other_python}-missing", "env")
    assert done.returncode != 0
    assert "choose one with: make PYTHON=" in done.stderr
    assert (checkout / ".venv" / "bin" / "python").exists()


def test_failed_env_is_retried(checkout: Path, calls: Path, fake_environ: "Environ") -> None:
    assert make(checkout, fake_environ.plus(BROKEN="--editable"), "env").returncode != 0
    calls.unlink()
    assert make(checkout, fake_environ, "env").returncode == 0
    assert "--editable" in calls.read_text()


def test_incomplete_environment_is_created_again(checkout: Path, calls: Path, fake_environ: "Environ") -> None:
    write_program(checkout / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    done = make(checkout, fake_environ, "env")
    assert done.returncode == 0, done.stderr
    assert "-m venv --clear .venv" in calls.read_text().splitlines()


def test_clean_removes_only_generated_files(checkout: Path, fake_environ: "Environ") -> None:
    before = sorted(checkout.rglob("*"))
    assert make(checkout, fake_environ, "env").returncode == 0
    (checkout / "src" / "perseid" / "__pycache__").mkdir()
    assert make(checkout, fake_environ, "clean").returncode == 0
    assert sorted(checkout.rglob("*")) == before


def test_missing_programs_are_installed_at_once(tmp_path: Path, checkout: Path, fake_environ: "Environ") -> None:
    """By users who are not root, too: they are told one command."""
    write_program(tmp_path / "bin" / "id", "#!/bin/sh\necho 1000\n")
    write_program(checkout / "tools" / "debian-packages", '#!/bin/sh\necho "$*" >> "$CALLS"\nexit "$FAILURE"\n')
    missing = {"POSTGRES": "postgres", "DNS_SERVERS": "knotd", "LOAD_GENERATORS": "wrk", "CADDY": "caddy"}
    names = [f"{name}={tmp_path / program}" for name, program in missing.items()]
    done = make(checkout, fake_environ.plus(FAILURE="1"), "programs", *names)
    assert done.returncode != 0
    (call,) = Path(fake_environ["CALLS"]).read_text().splitlines()
    assert {"postgresql-15", "knot", "wrk", "caddy", "gcc", "libc6-dev", "chromium"} <= {*call.split()}
    assert make(checkout, fake_environ.plus(FAILURE="0"), "programs", *names).returncode == 0
    assert {*Path(fake_environ["CALLS"]).read_text().splitlines()} == {call}


def test_test_runs_lint_and_all_tests_in_parallel(root: Path, clean_environ: "Environ") -> None:
    shown = make(root, clean_environ, "--dry-run", "test").stdout
    steps = ("ruff check", "ruff format --check", "mypy --strict", "lint-imports", "licenses.py", "pytest -n")
    positions = [shown.find(step) for step in steps]
    assert -1 not in positions, dict(zip(steps, positions, strict=True))
    assert positions == sorted(positions)
    (pytest_line,) = (line for line in shown.splitlines() if "pytest -n" in line)
    assert "--durations=20" in pytest_line.split()


def test_test_of_a_package_runs_lint_and_only_its_tests(root: Path, clean_environ: "Environ") -> None:
    shown = make(root, clean_environ, "--dry-run", "test", "PACKAGE=registry").stdout
    assert "lint-imports" in shown
    (pytest_line,) = (line for line in shown.splitlines() if "pytest -n" in line)
    assert pytest_line.split()[-1] == "tests/registry"


def test_quick_runs_the_quick_tests_of_changed_files(root: Path, clean_environ: "Environ") -> None:
    shown = make(root, clean_environ, "--dry-run", "quick").stdout
    (pytest_line,) = (line for line in shown.splitlines() if "pytest -n" in line)
    assert "--quick" in pytest_line.split()
    assert "tools/affected.py" in pytest_line


@pytest.mark.parametrize(
    "target",
    [
        *(
            "env",
            "programs",
            "serve",
            "quick",
            "test",
            "bytecode",
            "coverage",
            "lint",
            "fuzz",
            "crash",
            "soak",
            "bench",
            "lock",
            "unicode",
        ),
        "clean",
    ],
)
def test_every_target_is_explained_by_help(root: Path, clean_environ: "Environ", target: str) -> None:
    assert re.search(rf"^{target} +\S", make(root, clean_environ, "help").stdout, re.MULTILINE)


def test_serve_target_exists_if_the_command_exists(root: Path, clean_environ: "Environ") -> None:
    offered = make(root, clean_environ, "--dry-run", "serve").returncode == 0
    commands = (root / "src" / "perseid" / "cli" / "_command_table.py").read_text()
    assert offered == ('"serve": (' in commands)


def test_ci_runs_only_make_test(root: Path, tmp_path: Path, clean_environ: "Environ") -> None:
    write_program(tmp_path / "bin" / "make", '#!/bin/sh\npwd\necho "make $*"\n')
    environ = clean_environ.plus(PATH=f"{tmp_path / 'bin'}{os.pathsep}{clean_environ['PATH']}")
    done = subprocess.run(
        [root / ".ci" / "run"], cwd=tmp_path, env=environ, check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == f"{root}\nmake test\n"


@pytest.mark.parametrize("program", [".ci/run", "tools/debian-packages"])
def test_programs_are_executable(root: Path, program: str) -> None:
    assert (root / program).stat().st_mode & stat.S_IXUSR


def test_files_that_start_first_exist(root: Path) -> None:
    assert [name for name in LONGEST if not (root / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_files_of_parallel_tests_are_in_memory_if_there_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleanups: list[Callable[[], None]] = []

    def basetemp(dist: str, chosen: str | None = None) -> str | None:
        option = SimpleNamespace(basetemp=chosen)
        config = SimpleNamespace(option=option, getoption=lambda *_: dist, add_cleanup=cleanups.append)
        conftest.pytest_configure(cast("pytest.Config", config))
        assert isinstance(option.basetemp, str | None)
        return option.basetemp

    monkeypatch.setattr(conftest, "MEMORY", tmp_path)
    monkeypatch.setattr(conftest, "MEMORY_BYTES", 0)
    left, used, foreign = (tmp_path / f"{start}left" for start in ("perseid-tests-", "perseid-tests-1", "tests-"))
    for each in (left, used, foreign):
        (each / "t").mkdir(parents=True)
    lock = conftest._lock(used)
    assert (basetemp("no"), basetemp("loadfile", "elsewhere")) == (None, "elsewhere")
    folder = basetemp("loadfile")
    assert folder is not None
    assert {*tmp_path.iterdir()} == {Path(folder).parent, used, foreign}, "what others have stays"
    with pytest.raises(BlockingIOError):
        conftest._lock(Path(folder).parent)
    Path(folder).mkdir()
    for cleanup in cleanups:
        cleanup()
    assert {*tmp_path.iterdir()} == {used, foreign}
    os.close(lock)
    monkeypatch.setattr(conftest, "MEMORY_BYTES", 1 << 62)
    assert basetemp("loadfile") is None

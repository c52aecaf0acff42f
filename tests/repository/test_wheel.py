"""The wheel works on its own, when it is installed and run outside the checkout."""

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import licenses
from tests.cli.program import SCRIPTS

if TYPE_CHECKING:
    from tests.repository.conftest import Environ, Installed


def test_wheel_contains_the_whole_package_and_nothing_else(root: Path, installed: "Installed") -> None:
    source = root / "src"
    package = {
        str(path.relative_to(source))
        for path in (source / "perseid").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".so", ".c", ".h", ".pyx"}
    }
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert names - about == package
    assert "perseid/py.typed" in names
    assert "perseid/names/rules.toml" in names
    assert any(name.endswith("/licenses/LICENSE") for name in about)


def test_make_builds_the_same_bytes_again(
    root: Path, tmp_path: Path, installed: "Installed", clean_environ: "Environ"
) -> None:
    command = ["make", "--no-print-directory", "wheel", f"DIST={tmp_path}"]
    done = subprocess.run(
        command, cwd=root, env=clean_environ, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == installed.wheel.name
    assert wheel.read_bytes() == installed.wheel.read_bytes()


def test_wheel_with_the_compiled_module_is_built_with_the_same_bytes_again(
    root: Path, tmp_path: Path, clean_environ: "Environ"
) -> None:
    wheels: list[Path] = []
    for name in ("one", "two"):
        command = ["make", "--no-print-directory", "wheel", "COMPILED=1", f"DIST={tmp_path / name}"]
        done = subprocess.run(
            command, cwd=root, env=clean_environ, check=False, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        wheels += (tmp_path / name).glob("*.whl")
    first, second = wheels
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        (module,) = (name for name in archive.namelist() if name.endswith(".so"))
    assert module.startswith("perseid/compiled/_native.")
    assert "none-any" not in first.name


def test_wheel_is_the_pure_one_where_there_is_no_compiler(
    root: Path, tmp_path: Path, installed: "Installed", clean_environ: "Environ"
) -> None:
    command = [str(SCRIPTS / "hatchling"), "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(
        command, cwd=root, env=clean_environ.plus(CC="/bin/false"), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "perseid.compiled was not compiled; Python does its work:" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == installed.wheel.name
    assert wheel.read_bytes() == installed.wheel.read_bytes()
    demanded = clean_environ.plus(CC="/bin/false", PERSEID_BUILD="compiled")
    assert subprocess.run(command, cwd=root, env=demanded, check=False, capture_output=True).returncode != 0


def test_installed_server_serves_with_the_packages_of_its_extra_alone(tmp_path: Path, installed: "Installed") -> None:
    """What `pip install perseid.whl[server]` installs: links to the packages here instead of copies."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for distribution in licenses.closure("perseid", ["server"]):
        for name in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(distribution.locate_file(name)))
    assert not (packages / "psycopg").exists()
    done = installed.run("perseid", "init", "data", "--demo", cwd=tmp_path, path=packages)
    assert done.returncode == 0, done.stderr
    done = installed.run("perseid", "check", "--quick", "-d", "data", cwd=tmp_path, path=packages)
    assert "runs in Python (compiled module: it is not part of this installation)" in done.stdout
    assert "make wheel COMPILED=1" in done.stdout
    ports = ("--native-port", "0", "--http-port", "0", "--metrics-port", "0", "--workers", "1")
    server = subprocess.Popen(
        [installed.home / "bin" / "perseid", "serve", "-d", "data", "--json", *ports],
        cwd=tmp_path,
        env=installed.environ.plus(PYTHONPATH=str(packages)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    server.terminate()
    _, errors = server.communicate(timeout=30)
    assert (server.returncode, "http" in line) == (0, True), (line, errors)


def test_uv_installs_the_wheel_as_a_tool(tmp_path: Path, installed: "Installed", wheels: Path) -> None:
    """`uv tool install`, with nothing but a home directory and the wheels that it needs."""
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    offline = ("--offline", "--no-index", "--find-links", wheels, "--python", sys.executable)
    run(SCRIPTS / "uv", "tool", "install", *offline, f"{installed.wheel}[server]")
    program = tmp_path / ".local" / "bin" / "perseid"
    assert program.resolve().is_relative_to(tmp_path)
    run(program, "init", "data", "--prefix", "12345")
    run(program, "create", "12345/x", "--url", "https://example.org/x", "-d", "data")
    assert "https://example.org/x" in run(program, "resolve", "12345/x", "-d", "data")


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

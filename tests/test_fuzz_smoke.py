"""The fuzz harness works: every target survives a thousand inputs, and a planted bug does not, by either driver.

Atheris is tested wherever the project asks for it; there it must be installed.
"""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

RUN = Path(__file__).resolve().parents[1] / "fuzz" / "run.py"
EXECUTIONS = {"plain": 1_000, "atheris": 1_000}
"""How many inputs each target gets. Not how many seconds: a busy machine would do less, and nobody would see it.
`make fuzz` goes further."""

GUIDED = ("names",)
"""What atheris runs here: it takes ten seconds to instrument what one loads, and `make fuzz` runs all."""

ASKED_FOR = {
    requirement.name
    for requirement in map(Requirement, metadata.requires("perseid") or ())
    if requirement.marker and requirement.marker.evaluate({"extra": "dev"})
}
DRIVERS = ["plain", *({"atheris"} & ASKED_FOR)]


def fuzz(corpus: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--corpus", str(corpus), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("driver", DRIVERS)
def test_targets_survive_a_thousand_inputs(tmp_path: Path, driver: str) -> None:
    targets = {path.stem for path in RUN.parent.glob("*.py") if path != RUN and not path.name.startswith("_")}
    if driver == "atheris":
        targets &= {*GUIDED}
    chosen = [option for target in sorted(targets) for option in ("--target", target)] if driver == "atheris" else []
    done = fuzz(tmp_path, "--driver", driver, "--runs", str(EXECUTIONS[driver]), *chosen)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"^(\w+): ([0-9,]+) executions, no bug found$", done.stdout, re.MULTILINE))
    assert counts.keys() == targets
    for target, count in counts.items():
        assert int(count.replace(",", "")) >= EXECUTIONS[driver], target
        assert list((tmp_path / target).iterdir()), "what reached new code is kept for the next run"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_planted_bug_is_found_kept_and_can_be_repeated(tmp_path: Path, driver: str) -> None:
    done = fuzz(tmp_path, "--driver", driver, "--target", "selftest", "--runs", "4000")
    assert done.returncode == 1
    assert "selftest: " in done.stdout
    assert "FAILED" in done.stdout
    assert "ValueError: the planted bug" in done.stdout
    (finding,) = (tmp_path / "selftest-findings").iterdir()
    assert finding.read_bytes().startswith(b"P")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("repeat with: "))
    repeated = subprocess.run(line.removeprefix("repeat with: ").split(), check=False, capture_output=True, text=True)
    assert repeated.returncode != 0
    assert "the planted bug" in repeated.stdout + repeated.stderr


def test_compiled_module_survives_with_sanitizers() -> None:
    command = [sys.executable, str(RUN.parent / "_sanitized.py"), "--runs", "2000"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Done 2000 runs\nDone 5 rounds\n" in done.stdout


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--target", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_without_atheris_the_plain_driver_runs_and_says_so(tmp_path: Path) -> None:
    """As on a Python for which atheris is not built: its import is made to fail."""
    shadow = tmp_path / "sitecustomize.py"
    shadow.write_text("import sys\nsys.modules['atheris'] = None\n")
    command = [sys.executable, str(RUN), "--runs", "50", "--corpus", str(tmp_path / "corpus"), "--target", "names"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "atheris is not installed: plain random input, not guided by coverage",
        "names: 50 executions, no bug found",
    ]


def test_an_input_without_end_is_a_bug_for_the_plain_driver(tmp_path: Path) -> None:
    (tmp_path / "_endless.py").write_text("def fuzz(data):\n    while True: pass\n")
    (tmp_path / "input").write_bytes(b"x")
    command = [sys.executable, str(RUN.parent / "_child.py"), "plain", "_endless", str(tmp_path / "input")]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "-timeout=1"], check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 1
    assert "the input takes too long" in done.stderr

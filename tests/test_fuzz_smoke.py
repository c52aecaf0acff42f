"""The fuzz harness works: every target survives some thousand inputs, and a planted bug does not."""

import re
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "fuzz" / "run.py"
EXECUTIONS = 4_000


def fuzz(corpus: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--runs", str(EXECUTIONS), "--corpus", str(corpus), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_every_target_survives_some_thousand_inputs(tmp_path: Path) -> None:
    done = fuzz(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    targets = {path.stem for path in RUN.parent.glob("*.py") if path != RUN and not path.name.startswith("_")}
    counts = dict(re.findall(r"^(\w+): ([0-9,]+) executions, no bug found$", done.stdout, re.MULTILINE))
    assert counts.keys() == targets
    for target, count in counts.items():
        assert int(count.replace(",", "")) >= EXECUTIONS, target
        assert list((tmp_path / target).iterdir()), "what reached new code is kept for the next run"


def test_a_planted_bug_is_found_kept_and_can_be_repeated(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--target", "selftest")
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


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--target", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr

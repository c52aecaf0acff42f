"""The benches run and print their figures; how large these are is nobody's business here."""

import json
import re
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "bench" / "run.py"


def bench(*options: str) -> str:
    command = [sys.executable, str(RUN), "--rounds", "1", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_bench_has_figures_and_an_empty_call_stands_first() -> None:
    figures = json.loads(bench("--json"))["figures"]
    assert (figures[0]["bench"], figures[0]["name"]) == (None, "empty call")
    others = {path.stem for path in RUN.parent.glob("*.py") if path.name not in {RUN.name, "__main__.py"}}
    assert {figure["bench"] for figure in figures[1:]} == others
    assert all(figure["nanoseconds"] > 0 for figure in figures)
    # What a function allocates is counted: every one here makes something, but for the empty call.
    assert all(figure["bytes"] > 0 for figure in figures[1:] if "verify" not in figure["name"])


def test_the_table_has_one_line_for_each_function() -> None:
    lines = bench("--only", "names").splitlines()[1:-1]
    assert lines[0].startswith("empty call")
    assert all(re.fullmatch(r"names: .+? +[0-9,]+ +[0-9,]+ +[0-9,]+", line) for line in lines[1:])
    for part in (
        "handle parse",
        "URI encode, path",
        "URI decode, http",
        "PILIN encode",
        "PILIN decode",
        "CORDRA parse",
    ):
        assert any(line.startswith(f"names: {part} ") for line in lines), part

"""Throw arbitrary input at the decoders: `make fuzz`, or `fuzz/run.py [--seconds N | --runs N] [--target NAME]...`.

Every other file in this folder is a target: a module with a function `fuzz(data)` that raises when it finds a bug,
and optionally with `SEEDS`, inputs to begin with, and `WORDS`, pieces to try. Each target runs in a process of its own
(see `_child.py`). Inputs that reach new code are kept in a corpus, so that the next run begins where this one ended.
An input that shows a bug is kept beside the corpus, the whole run fails, and the last lines say how to repeat it.

Inputs come from atheris, guided by coverage. It is not built for every Python and every processor; where it is not
installed a plain driver (`_plain.py`) makes random changes to the seeds, and a line says so.

A file that begins with "_" is no target, except that `--target selftest` (`_selftest.py`) has a bug on purpose.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_LEN = 16_384
"""Maximum input size in bytes: more than every recorded message, and than a fully escaped handle."""
MAX_MEMORY = 1_024
"""Memory limit in MiB; a target needs about a hundred."""
TIMEOUT = 20
"""Time limit per input in seconds; no input should take a hundredth of it."""

_EXECUTED = re.compile(rb"^stat::number_of_executed_units: (\d+)|^Done (\d+) runs|^#(\d+)\t", re.MULTILINE)


def found() -> list[str]:
    """The names of all targets but the hidden ones."""
    return sorted(path.stem for path in HERE.glob("[!_]*.py") if path.name != Path(__file__).name)


def run(target: str, driver: str, limit: list[str], corpus: Path) -> bool:
    """Run one target; return whether it succeeded."""
    inputs, findings = corpus / target, corpus / f"{target}-findings"
    for folder in (inputs, findings):
        folder.mkdir(parents=True, exist_ok=True)
    module = target if (HERE / f"{target}.py").exists() else f"_{target}"
    child = [sys.executable, str(HERE / "_child.py"), driver, module]
    limits = [*limit, f"-max_len={MAX_LEN}", f"-timeout={TIMEOUT}", f"-rss_limit_mb={MAX_MEMORY}"]
    output = [f"-artifact_prefix={findings}/", "-print_final_stats=1"]
    done = subprocess.run([*child, str(inputs), *limits, *output], check=False, capture_output=True)
    text = done.stdout + done.stderr
    counts = [int(count) for groups in _EXECUTED.findall(text) for count in groups if count]
    executions = max(counts, default=0)
    well = done.returncode == 0 and executions > 0
    print(f"{target}: {executions:,} executions, {'no bug found' if well else 'FAILED'}", flush=True)
    if not well:
        print(text.decode(errors="replace")[-8_000:])
        for finding in sorted(findings.iterdir()):
            print(f"repeat with: {' '.join(child)} {finding}")
    return well


def main() -> None:
    """Read the options and run the targets; exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Throw arbitrary input at the decoders.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=60, help="how long each target runs; default 60")
    length.add_argument("--runs", type=int, help="how many inputs each target gets, always the same ones")
    choices = [*found(), "selftest"]
    parser.add_argument("--target", action="append", choices=choices, help="may be repeated; default all but selftest")
    guided = importlib.util.find_spec("atheris") is not None
    default = "atheris" if guided else "plain"
    parser.add_argument("--driver", choices=["atheris", "plain"], default=default, help=f"default here {default}")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus", help="where inputs are kept")
    options = parser.parse_args()
    limit = [f"-max_total_time={options.seconds}"] if options.runs is None else [f"-runs={options.runs}", "-seed=1"]
    if options.driver == "plain":
        why = "" if guided else "atheris is not installed: "
        print(f"{why}plain random input, not guided by coverage", flush=True)
    well = [run(target, options.driver, limit, options.corpus) for target in options.target or found()]
    sys.exit(not all(well))


if __name__ == "__main__":
    main()

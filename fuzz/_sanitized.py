"""Fuzz the compiled module with sanitizers: `fuzz/_sanitized.py [--runs N | --seconds N]`.

It compiles the module with sanitizers of addresses and undefined behavior, starts itself again with their libraries,
and compares the module with Python on random changes of the seeds of `answering`, in requests and in the view. Each is
copied into memory of exactly its size, so that every read beyond its end is found. Then it runs rounds of
`_thread_rounds`, for as long. The process ends at the first bug.
"""

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-U_FORTIFY_SOURCE")
CHILD = "--module"
RUNS_PER_ROUND = 400
"""Inputs for each round of the thread."""


def main() -> None:
    """Compile and start, or fuzz."""
    parser = argparse.ArgumentParser(description="Fuzz the compiled module with sanitizers.")
    parser.add_argument("--seconds", type=int, default=60, help="how long; default 60")
    parser.add_argument("--runs", type=int, help="how many inputs instead, always the same ones")
    parser.add_argument(CHILD, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module is not None:
        sys.exit(_fuzz(options.module, options.runs, options.seconds))
    sys.path.insert(0, str(HERE.parent))
    os.chdir(HERE.parent)
    from hatch_build import compile_module  # noqa: PLC0415 - in the folder above

    libraries = [
        subprocess.run(
            ["/usr/bin/gcc", f"-print-file-name={name}.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    with tempfile.TemporaryDirectory() as folder:
        module = compile_module(Path(folder), FLAGS, FLAGS[:1])
        environ = os.environ | {
            "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps what it has until the end
        }
        command = [sys.executable, __file__, *sys.argv[1:], CHILD, str(module)]
        done = subprocess.run(command, check=False, env=environ)
    sys.exit(done.returncode)


def _fuzz(module: Path, runs: int | None, seconds: int) -> int:
    """Put the module in its place and run the target."""
    spec = importlib.util.spec_from_file_location("perseid.compiled._native", module)
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules[native.__name__] = native
    drive, target = importlib.import_module("_plain").drive, importlib.import_module("answering")

    if sys.modules["perseid.compiled"].native is not native:
        raise RuntimeError("another module is fuzzed")
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(target.SEEDS):
            Path(folder, f"{number:04d}").write_bytes(seed)
        limit = [f"-max_total_time={seconds}"] if runs is None else [f"-runs={runs}", "-seed=1"]
        code = int(drive(target.fuzz, Path(folder), target.WORDS, limit))
    importlib.import_module("_thread_rounds").drive(
        runs // RUNS_PER_ROUND if runs is not None else sys.maxsize, seconds if runs is None else None
    )
    return code


if __name__ == "__main__":
    main()

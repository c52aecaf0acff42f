"""Start-up of commands: `python -m bench.serving.commands [--rounds N]`.

Each command is run in a process of its own, as from a shell, with compiled modules as after `pip install`. The result
is the CPU time of the process, so that other work on the machine matters little: the best of the rounds, and their
median.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.serving.installations import make
from perseid.server.benchmark.installation import FORMAT
from tests.server.running import serving

ROUNDS = 9
_PROGRAM = (sys.executable, "-c", "from perseid.cli import main; main()")


def cpu_ms(words: Sequence[str], environ: Mapping[str, str]) -> float:
    """Run a command, and return the CPU milliseconds of its process."""
    actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(sys.executable, [*_PROGRAM, *words], environ, file_actions=actions)
    _, status, used = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"perseid {' '.join(words)} failed")
    return (used.ru_utime + used.ru_stime) * 1_000


def measure(commands: Mapping[str, Sequence[str]], environ: Mapping[str, str], rounds: int) -> None:
    """Print the figures of commands; the first run of each compiles modules and is not counted."""
    for name, words in commands.items():
        cpu_ms(words, environ)
        spent = [cpu_ms(words, environ) for _ in range(rounds)]
        print(f"  {name:<34}{min(spent):6.0f} ms  {statistics.median(spent):6.0f} ms", flush=True)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print how much CPU time commands take.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each command; default {ROUNDS}")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="perseid-commands-") as folder:
        directory = make(Path(folder, "installation"), 1_000).directory
        environ = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PERSEID_DIR": str(directory),
            "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode")),
        }
        handle = FORMAT % 7
        print(f"  {'process':<34}{'best':>9}  {'median':>9}")
        local = {
            "--help": ["--help"],
            "mint --help": ["mint", "--help"],
            "name parse": ["name", "parse", handle],
            "resolve, local": ["resolve", handle],
        }
        measure(local, environ, rounds)
        with serving(directory) as server:
            host, port = server.native
            del environ["PERSEID_DIR"]
            remote = {
                "resolve, over HTTP": ["resolve", handle, "--server", "http://{}:{}".format(*server.http)],
                "resolve, over the native protocol": ["resolve", handle, "--server", f"{host}:{port}"],
            }
            measure(remote, environ, rounds)


if __name__ == "__main__":
    main()

"""Costs of imports: `python -m bench.serving.imports [--records N,N]`.

A CSV file with a URL and a title in each row is checked (`--dry-run`) and imported by the command, beside a server that
runs on the same installation and appends for it. Each run is a process of its own, so that peak memory is that of one
task. The time of the server for the import is not counted in the microseconds of CPU, which are those of the command.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .migration import measure

PERSEID: Final = Path(sys.executable).with_name("perseid")
PREFIX: Final = "12345"

_SAMPLE_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0


def fill(path: Path, records: int) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8") as file:
        file.write("handle,URL,TITLE\n")
        file.writelines(
            f"{PREFIX}/item-{number},https://example.org/items/{number},Title {number}\n" for number in range(records)
        )


@contextmanager
def serve(directory: Path) -> Iterator[None]:
    """Run a server on an installation."""
    command = [
        str(PERSEID),
        "serve",
        "-d",
        str(directory),
        "--http-port",
        "0",
        "--native-port",
        "0",
        "--metrics-port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (directory / "writer").is_symlink():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(_SAMPLE_SECONDS)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    """Measure each number of records."""
    parser = argparse.ArgumentParser(description="Costs of imports.")
    parser.add_argument("--records", default="10000", help="numbers of records, separated by commas; default 10000")
    options = parser.parse_args()
    print(f"{'':<8} {'rows':>10} {'rows/s':>10} {'us of CPU':>10} {'peak MB':>10}")
    for records in map(int, options.records.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            directory, table = Path(folder) / "installation", Path(folder) / "table.csv"
            fill(table, records)
            init = [str(PERSEID), "init", str(directory), "--prefix", PREFIX, "--profile", "free"]
            subprocess.run(init, check=True, capture_output=True)
            with serve(directory):
                measure("check", records, "import", str(table), "--dry-run", "-d", str(directory))
                measure("import", records, "import", str(table), "--yes", "-d", str(directory))


if __name__ == "__main__":
    main()

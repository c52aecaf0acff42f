"""Kill commands that export records, repeatedly; check that a file is never incomplete, and that the ledger verifies.

`make crash`, or a few kills in the tests. Records are exported in each format over an earlier file, by commands that
are killed with SIGKILL at random times. The file is then the earlier one or the whole export, and the next command,
which is not killed, writes the whole export.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from perseid.ledger.verify import verify
from perseid.registry.installation.installation import Installation

from .import_crash import PREFIX, Workplace, write_table

FORMATS = ("jsonl", "csv", "batch")
EARLIER = b"the file before the export\n"


def run(folder: Path, records: int, kills: int, seed: int) -> None:
    """Export records with this many kills before the end."""
    chance, place = random.Random(seed), Workplace(folder)
    write_table(folder / "table.csv", records, "item")
    place.run("import", "table.csv", "--yes")
    wholes: dict[str, bytes] = {}
    commands: dict[str, tuple[str, ...]] = {}
    started = time.monotonic()
    for format_ in FORMATS:
        summary = json.loads(place.run("export", "--format", format_, "-o", f"whole.{format_}", "--json"))
        wholes[format_] = (folder / f"whole.{format_}").read_bytes()
        commands[format_] = ("export", "--format", format_, "-o", f"out.{format_}", "--at", str(summary["as_of"]))
    duration = (time.monotonic() - started) / len(FORMATS)
    started = time.monotonic()
    place.run("jobs", "list")
    startup = time.monotonic() - started
    assert wholes["jsonl"].count(b"\n") >= records
    killed: Counter[str] = Counter()
    completed = attempts = 0
    while killed.total() < kills:
        format_ = FORMATS[attempts % len(FORMATS)]
        attempts += 1
        assert attempts <= 20 * kills, "commands end before they are killed"
        path = folder / f"out.{format_}"
        path.write_bytes(EARLIER)
        began = time.monotonic()
        is_killed = place.kill(chance.uniform(min(0.8 * startup, duration), duration), *commands[format_])
        content = path.read_bytes()
        assert content in (EARLIER, wholes[format_]), f"seed {seed}: an incomplete file"
        assert is_killed or content == wholes[format_], "a command that ends has written the file"
        killed[format_] += is_killed
        if not is_killed:
            completed += 1
            duration = min(duration, time.monotonic() - began)  # the machine may have been busier before
        place.run("create", f"{PREFIX}/while-exporting-{attempts}", "--url", "https://example.org/")
    partial = [path for path in folder.iterdir() if path.name.startswith(".")]
    assert len(partial) <= kills, "only exports that were killed leave files"
    for format_ in FORMATS:
        place.run(*commands[format_])
        assert (folder / f"out.{format_}").read_bytes() == wholes[format_]
    with Installation.open(place.directory) as installation:
        verify(installation.log)
    counts = ", ".join([f"{count} {format_}" for format_, count in killed.items()])
    print(
        f"seed {seed}: {records:,} records, {killed.total()} exports killed ({counts}), {len(partial)} while they "
        f"wrote; {completed} ended before"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="kill commands that export records, and check the files")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perseid-export-") as folder:
        run(Path(folder), options.records, options.rounds, options.seed)


if __name__ == "__main__":
    main()

"""Kill commands that import a file, repeatedly; check that every row is imported once, and that the ledger verifies.

`make crash`, or a few kills in the tests. First a file with invalid rows must change nothing, and without them import
the others. Then files are imported, with chosen and with minted handles, by commands that are killed with SIGKILL at
random times; the next one resumes. A round is a kill of a command that had made progress in its job. In the end each
row has one entry, and the file with the handles is complete.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from perseid.ledger.store import jobs
from perseid.ledger.verify import verify
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs import import_job, runner

PREFIX = "12345"
BAD_ROWS = 50
AT_ANY_TIME = 0.2
"""How many of the kills are at any time, also while a command starts or checks rows; the others are inside a job."""
MAX_DELAY = 0.2
"""Seconds between some progress of a job and a kill: a few steps."""
POLL_SECONDS = 0.01


class Workplace:
    """A folder with an installation and the files of imports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "data"
        self.kills = 0
        self.run("init", str(self.directory), "--prefix", PREFIX, "--profile", "free")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        environ = {**os.environ, "PERSEID_DIR": str(self.directory)}
        command = [sys.executable, "-c", "from perseid.cli import main; main()", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate()
        assert process.returncode == code, (words, process.returncode, out[-500:], err[-2_000:])
        return out

    def kill(self, seconds: float, *words: str, after: Callable[[], bool] = lambda: True) -> bool:
        """Run a command and kill it some time after an event, unless it has ended; return whether it was killed."""
        process = self.start(*words)
        while process.poll() is None and not after():
            time.sleep(POLL_SECONDS)
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        is_killed = process.returncode == -signal.SIGKILL
        self.kills += is_killed
        return is_killed


def write_table(path: Path, rows: int, name: str, *, mint: bool = False, bad: int = 0) -> None:
    """Write a table; some of its URLs are invalid."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["URL"] if mint else ["handle", "URL"])
        for number in range(rows):
            is_bad = bad and number % (rows // bad) == 0 and number // (rows // bad) < bad
            url = f"nowhere-{number}" if is_bad else f"https://example.org/{name}/{number}"
            writer.writerow([url] if mint else [f"{PREFIX}/{name}-{number}", url])


def check_invalid_rows(place: Workplace, rows: int) -> None:
    """Nothing changes if rows are invalid; without them, the others are imported."""
    write_table(place.folder / "bad.csv", rows, "bad", bad=BAD_ROWS)
    before = len(place.run("list", PREFIX).splitlines())
    assert len(place.run("import", "bad.csv", "--yes", code=4).splitlines()) == BAD_ROWS
    assert len(place.run("list", PREFIX).splitlines()) == before
    place.run("import", "bad.csv", "--yes", "--skip-invalid", "--report", "problems.csv")
    assert len(place.run("list", PREFIX).splitlines()) == before + rows - BAD_ROWS
    with (place.folder / "problems.csv").open(encoding="utf-8-sig") as file:
        assert len([*csv.DictReader(file)]) == BAD_ROWS


def import_with_kills(place: Workplace, rows: int, kills: int, name: str, chance: random.Random, *, mint: bool) -> int:
    """Import a file with interruptions, and check that each row has one entry; return the number of kills.

    Only kills inside the job are counted, of commands that had made progress.
    """
    write_table(place.folder / f"{name}.csv", rows, name, mint=mint)
    options = ("--mint", "--prefix", PREFIX) if mint else ()
    command = ("import", f"{name}.csv", "--yes", *options)
    startup = time.monotonic()
    place.run("jobs", "list")
    startup = time.monotonic() - startup
    killed = reached = 0

    def count_done() -> int:
        found = find_job(place, f"{name}.csv")
        return 0 if found is None else found[2]

    def has_progress(before: int) -> bool:
        return count_done() > before

    while killed < kills:
        found = find_job(place, f"{name}.csv")
        if found is not None and found[1]:
            break
        words = command if found is None else ("jobs", "resume", found[0])
        if chance.random() < AT_ANY_TIME:
            is_killed = place.kill(startup * chance.uniform(0.5, 3), *words)
        else:
            is_killed = place.kill(chance.uniform(0, MAX_DELAY), *words, after=partial(has_progress, reached))
        progress = count_done()
        assert progress >= reached, "durable progress was lost"
        killed += is_killed and progress > reached
        reached = progress
    found = find_job(place, f"{name}.csv")
    if found is None:
        place.run(*command)
    elif not found[1]:
        place.run("jobs", "resume", found[0])
    found = find_job(place, f"{name}.csv")
    assert found is not None
    job, is_done, done = found
    assert (is_done, done) == (True, rows), found
    with Installation.open(place.directory) as installation:
        registry = installation.registry()
        lines = [*import_job.minted_rows(registry, runner.find_job(registry, LocalIdentity("test"), job))]
    assert [line for line, _ in lines] == [*range(2, rows + 2)], "each row has one entry"
    assert len({handle for _, handle in lines}) == rows
    if mint:
        place.run("import", f"{name}.csv", "--handles-of", job, "-o", f"{name}.handles.csv")
        with (place.folder / f"{name}.handles.csv").open(encoding="utf-8-sig") as file:
            assert [row["handle"] for row in csv.DictReader(file)] == [handle for _, handle in lines]
        place.run(*command, "-o", "again.csv", code=4)
    return killed


def find_job(place: Workplace, file: str) -> tuple[str, bool, int] | None:
    """Return the job that imports a file, whether it has ended, and how many entries it has."""
    with Installation.open(place.directory, writable=False) as installation:
        for job in jobs.newest_first(installation.log):
            if job.kind == import_job.KIND and runner.load_parameters(job)["file"] == file:
                return job.id, bool(job.ended_at), job.done
    return None


def run(folder: Path, rows: int, bad_rows_of: int, kills: int, seed: int) -> None:
    """Import files, with this many kills."""
    chance, place = random.Random(seed), Workplace(folder)
    started = time.monotonic()
    if bad_rows_of:
        check_invalid_rows(place, bad_rows_of)
        print(f"{bad_rows_of:,} rows with {BAD_ROWS} invalid ones: {time.monotonic() - started:.1f} s")
    killed = number = 0
    while killed < kills:
        started, name = time.monotonic(), f"t{number}"
        these = import_with_kills(place, rows, kills - killed, name, chance, mint=bool(number % 2))
        killed += these
        number += 1
        seconds = time.monotonic() - started
        print(f"seed {seed}: {rows:,} rows despite {these} kills, {killed} in all: {seconds:.1f} s", flush=True)
    with Installation.open(place.directory) as installation:
        verify(installation.log)
    left = [path for path in (place.directory / "spool").iterdir() if (path / "rows").exists()]
    assert len(left) <= place.kills, "only checks that were killed leave files, for a day"


def main() -> None:
    parser = argparse.ArgumentParser(description="kill commands that import files, and check that nothing is doubled")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--bad-rows-of", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=50, help="kills inside a job; default 50")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perseid-import-") as folder:
        run(Path(folder), options.rows, options.bad_rows_of, options.rounds, options.seed)


if __name__ == "__main__":
    main()

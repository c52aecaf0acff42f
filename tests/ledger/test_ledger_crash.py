"""A few rounds of crash tests; `make crash` runs many."""

from pathlib import Path

import pytest

from tests.ledger.crash import run_module


@pytest.mark.parametrize(("back_end", "rounds"), [("sqlite", 4), ("postgresql", 2)], indirect=["back_end"])
def test_no_acknowledged_write_is_lost_when_processes_are_killed(where: str, tmp_path: Path, rounds: int) -> None:
    done = run_module("tests.ledger.crash", "--where", where, "--folder", tmp_path, "--rounds", rounds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{rounds} rounds, 0 acknowledged" not in done.stdout
    assert done.stdout.endswith(" acknowledged writes, none lost\n")

"""A few rounds of crash tests; `make crash` runs many."""

import os
from pathlib import Path

import pytest

from tests.ledger import crash


@pytest.mark.parametrize(("back_end", "rounds"), [("sqlite", 12), ("postgresql", 3)], indirect=["back_end"])
def test_no_acknowledged_write_is_lost_when_processes_are_killed(where: str, tmp_path: Path, rounds: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    assert crash.run(crash.Place(where, tmp_path), seed, rounds) > 0

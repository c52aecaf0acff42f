"""What ps shows of a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from perseid.server.processes import title

SHOW = """
import sys
from pathlib import Path
from perseid.server.processes.title import set_title
set_title(*sys.argv[1:3])
print(Path("/proc/self/comm").read_text(), end="")
print(Path("/proc/self/cmdline").read_text().rstrip("\\0"))
"""


@pytest.mark.parametrize(
    ("directory", "shown"),
    [("", "perseid: worker-0"), ("ids", "perseid: worker-0 ids"), ("/" + "\u00fc" * 4_000, None)],
)
def test_title_replaces_the_command_line(directory: str, shown: str | None) -> None:
    command = [sys.executable, "-c", SHOW, "worker-0", directory]
    name, line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert name == "worker-0"
    assert line == (shown or f"perseid: worker-0 {directory}")


def test_process_whose_title_cannot_be_set_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(title, "PROC", tmp_path / "missing")
    title.set_title("worker-0")
    monkeypatch.setattr(title, "PROC", tmp_path)
    (tmp_path / "stat").write_text("1 (python) S " + "0 " * 60)  # the system does not tell where the command line is
    title.set_title("worker-0")
    assert (tmp_path / "comm").read_text() == "worker-0"

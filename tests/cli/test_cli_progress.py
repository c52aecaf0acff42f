"""The progress bar is shown on a terminal only, and never on standard output."""

import io
import sys

import pytest

from perseid.cli._output import progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [2000, None])
def test_progress_is_shown_on_a_terminal(
    total: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("Minting", total) as update:
        update(4)
        update(2000)
    assert "Minting" in terminal.getvalue()
    assert ("2000/2000" if total else "2,000") in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_no_progress_without_a_terminal_or_for_short_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream, total in ((io.StringIO(), 2000), (Terminal(), 10)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("Minting", total) as update:
            update(total)
        assert (stream.getvalue(), capsys.readouterr().out) == ("", "")

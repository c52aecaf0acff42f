"""The bar of long work: on a terminal only, and never on standard output."""

import io
import sys

import pytest

from perseid.cli._output import progress


class Terminal(io.StringIO):
    """Somebody is looking."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [2000, None])
def test_a_terminal_sees_how_much_is_done(
    total: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("Minting", total) as tell:
        tell(4)
        tell(2000)
    assert "Minting" in terminal.getvalue()
    assert ("2000/2000" if total else "2,000") in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_nobody_else_does_nor_for_work_that_is_done_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream, total in ((io.StringIO(), 2000), (Terminal(), 10)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("Minting", total) as tell:
            tell(total)
        assert (stream.getvalue(), capsys.readouterr().out) == ("", "")

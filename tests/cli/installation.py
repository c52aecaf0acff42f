"""Commands on an installation: run in this process, which is quicker than a program each, with the same outcome."""

import atexit
import contextlib
import functools
import io
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from typer.testing import CliRunner

from perseid.cli import app
from perseid.cli._errors import report_error
from tests.cli.program import CONTROL, Done

ENVIRON = {"COLUMNS": "100", "TERM": "dumb", "PERSEID_DIR": "", "NO_COLOR": "1"}


def call(*arguments: str, given: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
    """Run a command as `perseid` does; what every run must keep to is checked as there."""
    result = CliRunner().invoke(
        app, list(arguments), input=given, env={**ENVIRON, **(environ or {})}, prog_name="perseid"
    )
    code, error = result.exit_code, result.exception
    words = io.StringIO()
    if isinstance(error, Exception):
        with contextlib.redirect_stderr(words):
            code = report_error(error)
    # Failures are reported when everything else has been said.
    done = Done(code, result.stdout, result.stderr + words.getvalue(), result.output + words.getvalue())
    for text in (done.out, done.err):
        assert not CONTROL.search(text), repr(text)
    return done


def examples(*words: str) -> list[str]:
    """The examples in the help of a command, without the name of the program."""
    shown = call(*words, "--help", environ={"COLUMNS": "300"}).out
    return re.findall(r"^ perseid (.+?) *$", shown.partition("Example")[2], re.MULTILINE)


class Site:
    """An installation in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, words: str, *more: str, given: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
        """Run a command on it."""
        return call(
            *shlex.split(words), *more, given=given, environ={"PERSEID_DIR": str(self.directory), **(environ or {})}
        )

    def ok(self, words: str, *more: str, given: bytes = b"") -> Done:
        """Run a command that succeeds."""
        done = self(words, *more, given=given)
        assert done.code == 0, done
        return done

    def lines(self, words: str, *more: str) -> list[str]:
        """The lines that a command prints."""
        return self.ok(words, *more).out.splitlines()


@functools.cache
def _made(*options: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perseid-cli-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    done = call("init", str(folder / "made"), *options)
    assert done.code == 0, done
    return folder / "made"


def site(folder: Path, *options: str) -> Site:
    """A copy of an installation that `init` made with these options."""
    directory = folder / "perseid-data"
    shutil.copytree(_made(*options), directory)
    return Site(directory)


def refused(done: Done, *words: str, code: int = 4) -> None:
    """Check that a command was refused, in one line that says why and help after it."""
    assert (done.code, done.out) == (code, ""), done
    first = done.err.splitlines()[0]
    assert first.startswith("perseid: ")
    for word in words:
        assert word in done.err, done.err

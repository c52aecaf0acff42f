"""Run commands on an installation in this process, which is faster than a subprocess and has the same result."""

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


def call(*arguments: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
    """Run a command as `perseid` does, with the checks that apply to every run (see `program.finish`)."""
    result = CliRunner().invoke(
        app, list(arguments), input=stdin, env={**ENVIRON, **(environ or {})}, prog_name="perseid"
    )
    code, error = result.exit_code, result.exception
    errors = io.StringIO()
    if isinstance(error, Exception):
        with contextlib.redirect_stderr(errors):
            code = report_error(error, json="--json" in arguments)
    # Errors are reported after all other output.
    done = Done(code, result.stdout, result.stderr + errors.getvalue(), result.output + errors.getvalue())
    for text in (done.out, done.err):
        assert not CONTROL.search(text), repr(text)
    return done


def examples(*words: str) -> list[str]:
    """The examples in the help of a command, without the program name."""
    shown = call(*words, "--help", environ={"COLUMNS": "300"}).out
    return re.findall(r"^  perseid (.+)$", shown.partition("Example")[2], re.MULTILINE)


class Site:
    """An installation in its own directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, words: str, *more: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
        """Run a command on the installation."""
        return call(
            *shlex.split(words), *more, stdin=stdin, environ={"PERSEID_DIR": str(self.directory), **(environ or {})}
        )

    def ok(self, words: str, *more: str, stdin: bytes = b"") -> Done:
        """Run a command and check that it succeeds."""
        done = self(words, *more, stdin=stdin)
        assert done.code == 0, done
        return done

    def lines(self, words: str, *more: str) -> list[str]:
        """The lines that a command prints."""
        return self.ok(words, *more).out.splitlines()


@functools.cache
def _init_template(*options: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perseid-cli-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    done = call("init", str(folder / "made"), *options)
    assert done.code == 0, done
    return folder / "made"


def site(folder: Path, *options: str) -> Site:
    """Copy an installation that `init` created with these options."""
    directory = folder / "perseid-data"
    shutil.copytree(_init_template(*options), directory)
    return Site(directory)


def refused(done: Done, *words: str, code: int = 4) -> None:
    """Check that a command was refused with a one-line reason, followed by help."""
    assert (done.code, done.out) == (code, ""), done
    first = done.err.splitlines()[0]
    assert first.startswith("perseid: ")
    for word in words:
        assert word in done.err, done.err

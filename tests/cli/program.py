"""Run the installed program `perseid` as a user does, with the checks that apply to every run."""

import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(sysconfig.get_path("scripts"))
PERSEID = SCRIPTS / "perseid"

# Characters that control a terminal or change how text is displayed, except line ends.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# Variables that change what the program or its libraries print.
_OUTPUT_VARIABLES = re.compile(
    "PERSEID_|_PERSEID|_TYPER|COLUMNS|LINES|TERM|FORCE_COLOR|NO_COLOR|PY_COLORS|GITHUB_ACTIONS"
    "|PYTHONIOENCODING|PYTHONUNBUFFERED|PYTHONUTF8"
)
ENVIRON = {name: value for name, value in os.environ.items() if not _OUTPUT_VARIABLES.match(name)} | {
    "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
    "TERM": "xterm-256color",
    "COLUMNS": "100",
}


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a run."""

    code: int
    out: str
    err: str
    shown: str = ""
    """Both streams in the order of a terminal; only for commands that run in this process."""

    @property
    def json(self) -> Any:
        """The one JSON document on standard output, on one line."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def run(*arguments: str | bytes, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
    """Run `perseid` with these arguments and this standard input. No stream is a terminal."""
    return finish([os.fsencode(PERSEID), *arguments], stdin, environ)


def finish(command: list[str | bytes], stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Done:
    """Run any command and check that its output is UTF-8 without control characters and tracebacks."""
    done = subprocess.run(
        command, input=stdin, env={**ENVIRON, **(environ or {})}, check=False, capture_output=True, timeout=120
    )
    out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    for text in (out, err):
        assert not CONTROL.search(text), repr(text)
        assert "Traceback" not in text, text
    return Done(done.returncode, out, err)


def refused(done: Done, rule: str) -> str:
    """Check that a name was refused by this rule, in the standard format, and return the reason."""
    assert (done.code, done.out) == (2, ""), done
    first, *_, last = done.err.splitlines()
    assert first.startswith("perseid: ")
    assert first.endswith(f"(rule {rule})")
    assert last == f"To read the rule: perseid name rules {rule}"
    assert len(done.err) < 1_000
    return first.removeprefix("perseid: ").removesuffix(f" (rule {rule})")

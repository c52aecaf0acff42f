"""The user's text editor."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Final

from perseid.names.errors import quote_text

from ._output import CommandFailed, require_terminal

_VARIABLES: Final = ("VISUAL", "EDITOR")
_DEFAULT: Final = "vi"
_ADVICE: Final = "Set EDITOR, as in: export EDITOR=nano"


def find_editor() -> list[str]:
    """Return the command that runs the editor."""
    for variable in _VARIABLES:
        if text := os.environ.get(variable, "").strip():
            try:
                return shlex.split(text)
            except ValueError as error:
                raise CommandFailed(f"{variable} is not a command: {quote_text(text)}", _ADVICE) from error
    require_terminal(f"No editor is set, and the default ({_DEFAULT})", _ADVICE)
    return [_DEFAULT]


def run_editor(command: list[str], path: Path) -> None:
    """Open a file in the editor, and wait until the user closes it."""
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - chosen by the user
    except OSError as error:
        raise CommandFailed(f"Cannot run the editor {quote_text(command[0])}: {error.strerror}", _ADVICE) from error
    if code:
        raise CommandFailed(f"The editor {quote_text(command[0])} failed with exit code {code}; nothing was changed")

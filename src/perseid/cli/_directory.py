"""Which installation a command is meant for: apart from `_place`, for commands that do not open it themselves."""

import os
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

DEFAULT_DIRECTORY: Final = "perseid-data"
DIRECTORY_VARIABLE: Final = "PERSEID_DIR"

Directory: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-d", "--directory", metavar="DIR", help=f"The installation. ${DIRECTORY_VARIABLE}, or ./{DEFAULT_DIRECTORY}."
    ),
]
"""The option that every command has which works on an installation."""


def directory_of(given: Path | None) -> Path:
    """The directory that was given, or the one from the environment, or the default one."""
    return given or Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)

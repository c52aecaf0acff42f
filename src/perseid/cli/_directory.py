"""The directory that a command works on; apart from `_installation`, for commands that do not open it."""

import os
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

DEFAULT_DIRECTORY: Final = "perseid-data"
DIRECTORY_VARIABLE: Final = "PERSEID_DIR"

Directory: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-d",
        "--directory",
        metavar="DIR",
        help=f"The installation. Default: ${DIRECTORY_VARIABLE}, or ./{DEFAULT_DIRECTORY}.",
    ),
]
"""The option of every command that works on an installation."""


def resolve_directory(directory: Path | None) -> Path:
    """Return the directory from the option, the environment or the default, in this order."""
    return directory or Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)

"""Access to the recorded vectors in tests/vectors.

A test module that uses a file names it in its module constant `VECTOR_FILES` and parametrizes over all vectors that
`load` returns, so that a vector added to the file is tested. A test compares the union of all `VECTOR_FILES` with the
files in the folder. Tests of vectors have `vector` in their names.
"""

import json
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

FOLDER: Final = Path(__file__).parent / "vectors"
"""The folder of the vectors; see its README.md."""

Vector: TypeAlias = dict[str, Any]
"""One vector, as in the file."""


def load(name: str) -> list[Vector]:
    """Load all vectors of a file, in order."""
    vectors: list[Vector] = json.loads((FOLDER / name).read_bytes())
    return vectors


def parameters(name: str) -> list[Any]:
    """All vectors of a file as test parameters with their names as ids."""
    return [pytest.param(vector, id=vector["name"]) for vector in load(name)]


def read_bytes(name: str) -> bytes:
    """Read a binary file of the folder, such as `keys/siteinfo.bin`."""
    return (FOLDER / name).read_bytes()


def fields(vector: Vector) -> dict[str, int | str]:
    """The decoded fields of a vector by name."""
    return {item["field"]: item["value"] for item in vector["decoded"]}

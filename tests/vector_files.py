"""The recorded vectors, and how their coverage is checked.

`load` reads one file of tests/vectors. A test module that exercises a file names it in its module constant
`VECTOR_FILES` and parametrises over everything that `load` gives for it, so that a vector added to the file is a test
more and not a vector forgotten. Completeness is then a comparison of names: the union of all `VECTOR_FILES` must be
the list of files in the folder. Tests of vectors have `vector` in their names.
"""

import json
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

FOLDER: Final = Path(__file__).parent / "vectors"
"""Where the vectors are; their README.md says how to read them."""

Vector: TypeAlias = dict[str, Any]
"""One vector, as its line in the file has it."""


def load(name: str) -> list[Vector]:
    """All vectors of a file, in their order."""
    vectors: list[Vector] = json.loads((FOLDER / name).read_bytes())
    return vectors


def parameters(name: str) -> list[Any]:
    """All vectors of a file as parameters of a test, each called by its name."""
    return [pytest.param(vector, id=vector["name"]) for vector in load(name)]


def read_bytes(name: str) -> bytes:
    """A binary file of the folder: `keys/siteinfo.bin`."""
    return (FOLDER / name).read_bytes()


def fields(vector: Vector) -> dict[str, int | str]:
    """The decoded fields of a vector by name."""
    return {item["field"]: item["value"] for item in vector["decoded"]}

"""No recorded vector is forgotten: not a file, not a line of a file, not a key.

A test module that exercises vector files names them in `VECTOR_FILES` and has every vector of them among the parameters
of its tests, itself or with its whole conversation.
"""

import ast
import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.wire.recorded import FOLDER, WIRE_FILES, Vector, conversations

TESTS = FOLDER.parent

COUNTS = {
    "admin-dsa.json": 44,
    "admin-rsa.json": 44,
    "admin-sec.json": 44,
    "auth-errors.json": 10,
    "certified.json": 4,
    "codec-hash.json": 12,
    "codec-keys.json": 15,
    "codec-macs.json": 33,
    "codec-records.json": 22,
    "codec-text.json": 11,
    "codec-values.json": 21,
    "lists.json": 4,
    "malformed.json": 24,
    "mint.json": 2,
    "multipacket.json": 6,
    "prefixes.json": 8,
    "replication.json": 2,
    "resolve.json": 22,
    "session.json": 108,
    "siteinfo.json": 2,
    "verify.json": 2,
    "versions.json": 14,
}
"""How many vectors each file has; a copy that was cut short has fewer."""

KEYS = {
    "dsapriv.bin",
    "dsapub.bin",
    "privkey.bin",
    "pubkey.bin",
    "rsapriv.bin",
    "rsapub.bin",
    "secret.txt",
    "siteinfo.bin",
    "siteinfo.json",
}


@cache
def names_in(file: str) -> tuple[str, ...]:
    return tuple(vector["name"] for vector in json.loads((FOLDER / file).read_text(encoding="utf-8")))


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        if path.name != Path(__file__).name:
            yield path, ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> tuple[ModuleType, ...]:
    """The test modules that say which vector files they exercise."""
    found = []
    for path, tree in sources():
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        if any(isinstance(target, ast.Name) and target.id == "VECTOR_FILES" for target in targets):
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            found.append(importlib.import_module(name))
    return tuple(found)


def exercised(module: ModuleType) -> set[str]:
    """The names of all vectors among the parameters of a module's tests."""
    names: set[str] = set()
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        for mark in getattr(function, "pytestmark", ()):
            if mark.name == "parametrize":
                for value in mark.args[1]:
                    names.update(_names(value))
    return names


def _names(value: Any) -> Iterator[str]:
    """The vectors that one parameter stands for: itself, or all of the conversation that it names."""
    for one in value.values if isinstance(value, type(pytest.param())) else (value,):
        if isinstance(one, Vector):
            yield one.name
        elif isinstance(one, dict) and isinstance(one.get("name"), str):
            yield one["name"]
        elif isinstance(one, str):
            yield from (vector.name for vector in conversations(*WIRE_FILES).get(one, ()))


def test_the_vector_files_are_all_there_and_whole() -> None:
    found = {path.name: len(names_in(path.name)) for path in FOLDER.glob("*.json")}
    assert found == COUNTS
    assert sum(COUNTS[file] for file in WIRE_FILES) == 340
    assert sum(count for file, count in COUNTS.items() if file.startswith("codec-")) == 114
    for file, count in COUNTS.items():
        assert len(set(names_in(file))) == count, "a vector is known by its name"


def test_every_vector_file_is_exercised_by_a_test_module() -> None:
    named = {file for module in modules() for file in module.VECTOR_FILES if not file.startswith("keys/")}
    assert named == set(COUNTS)


@pytest.mark.parametrize("file", COUNTS)
def test_every_vector_of_a_file_is_a_parameter_of_the_tests_that_name_it(file: str) -> None:
    responsible = [module for module in modules() if file in module.VECTOR_FILES]
    assert responsible
    for module in responsible:
        assert set(names_in(file)) <= exercised(module), module.__name__


def test_every_key_of_the_vectors_is_there_and_used() -> None:
    assert {path.name for path in (FOLDER / "keys").iterdir()} == KEYS
    constants = {
        node.value.removeprefix("keys/")
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants >= KEYS


def test_the_exchanges_are_exercised_in_decoding_by_our_server_and_by_our_client() -> None:
    for name in ("test_wire_vectors", "test_wire_server_vectors", "test_wire_client_vectors"):
        (module,) = [module for module in modules() if module.__name__.endswith(f".{name}")]
        assert set(module.VECTOR_FILES) == set(WIRE_FILES)

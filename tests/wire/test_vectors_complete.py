"""Every recorded vector is tested: all files, all their vectors, all keys.

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
    "http.json": 120,
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
"""The number of vectors in each file; a truncated copy has fewer."""

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


def sources(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules that contain one of these words. Others are not parsed, because there are hundreds."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != Path(__file__).name and any(word in text for word in words):
            yield path, ast.parse(text)


@cache
def modules() -> tuple[ModuleType, ...]:
    """The test modules that name the vector files they exercise."""
    found = []
    for path, tree in sources("VECTOR_FILES"):
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        if any(isinstance(target, ast.Name) and target.id == "VECTOR_FILES" for target in targets):
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            found.append(importlib.import_module(name))
    return tuple(found)


def exercised(module: ModuleType) -> set[str]:
    """The names of all vectors among the parameters of a module's tests."""
    tests = [function for name, function in vars(module).items() if name.startswith("test_")]
    return {name for function in tests for name in parameters_of(function)}


def parameters_of(function: Any) -> set[str]:
    """The names of all vectors among the parameters of one test."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    return {name for mark in marks for value in mark.args[1] for name in _names(value)}


def _names(value: Any) -> Iterator[str]:
    """The vectors of one parameter: itself, or the whole conversation that it names."""
    for one in value.values if isinstance(value, type(pytest.param())) else (value,):
        if isinstance(one, Vector):
            yield one.name
        elif isinstance(one, dict) and isinstance(one.get("name"), str):
            yield one["name"]
        elif isinstance(one, str):
            yield from (vector.name for vector in all_conversations().get(one, ()))


@cache
def all_conversations() -> dict[str, list[Vector]]:
    return conversations(*WIRE_FILES)


def test_vector_files_are_complete() -> None:
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


def test_every_key_of_the_vectors_exists_and_is_used() -> None:
    assert {path.name for path in (FOLDER / "keys").iterdir()} == KEYS
    constants = {
        node.value.removeprefix("keys/")
        for _, tree in sources(*KEYS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants >= KEYS


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("vectors", ("a_vector_says_what", "a_malformed_vector_says_what")),
        ("vectors", ("a_vector_is_written_as", "the_reply_of_a_malformed_vector_is_written")),
        ("vectors", ("the_digests_of_a_vector",)),
        ("server_vectors", ("a_vector_gets", "a_diffie_hellman_session", "an_rsa_session", "a_malformed_vector_gets")),
        ("client_vectors", ("the_requests_of_a_vector", "the_answer_of_a_vector")),
    ],
)
def test_every_exchange_is_decoded_encoded_and_replayed_by_server_and_client(
    module: str, tests: tuple[str, ...]
) -> None:
    (found,) = [one for one in modules() if one.__name__.endswith(f".test_wire_{module}")]
    names: set[str] = set()
    for begin in tests:
        (function,) = [value for name, value in vars(found).items() if name.startswith(f"test_{begin}")]
        names |= parameters_of(function)
    assert names >= {name for file in WIRE_FILES for name in names_in(file)}


def test_vector_names_are_unique_in_all_files() -> None:
    """Vectors are counted by name."""
    names = [name for file in COUNTS for name in names_in(file)]
    assert len(names) == len(set(names))


def test_every_vector_of_the_specification_is_used_by_a_vector_test() -> None:
    """The vectors of section 21 are constants of `section21`; each must be read by a test or its parameters."""
    (_, tree) = next((path, tree) for path, tree in sources_and_helpers() if path.stem == "section21")
    targets = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    known = {target.id for target in targets if isinstance(target, ast.Name)}
    assert len(known) >= 10
    used = {
        node.attr
        for path, tree in sources_and_helpers()
        if path.stem.startswith("test_")
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and "vector" in function.name
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "section21"
    }
    assert known - used == set()


def sources_and_helpers() -> list[tuple[Path, ast.Module]]:
    paths = sorted([*(TESTS / "records").glob("*.py"), *(TESTS / "wire").glob("*.py")])
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]

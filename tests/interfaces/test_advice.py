"""Advice about refusals: every kind has a text at every interface, and what the texts name exists."""

import ast
import re
from collections import defaultdict
from pathlib import Path
from string import Formatter
from typing import Final

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import perseid
from perseid.cli import _advice, app
from perseid.cli._commands import LazyCommand
from perseid.registry.advice import NO_TEXTS, AdviceKind, AdviceTexts, render
from perseid.server.http.compat import call
from perseid.server.http.v1 import problems
from tests.server.http.contexts import basic, harness
from tests.server.http.v1.openapi_document import document

INTERFACES: Final[dict[str, AdviceTexts]] = {
    "cli": _advice.TEXTS,
    "v1": problems.ADVICE_TEXTS,
    "compat": call.ADVICE_TEXTS,
    "pages": NO_TEXTS,
}
"""The native protocol sends no advice."""

COMMAND: Final = re.compile("perseid [a-z]|--[a-z]|perseid.toml|docs/reference")
REQUEST: Final = re.compile("(GET|POST|PUT|DELETE) (/[^ ,.;)]*)")
PARAMETER: Final = re.compile("([A-Za-z_]+)=true|confirm with ([a-z_]+)")


def texts(interface: str) -> dict[AdviceKind, str]:
    """Return the text of every kind at an interface."""
    return {kind: INTERFACES[interface].get(kind, kind.value) or "" for kind in AdviceKind}


def uses() -> dict[str, list[set[str]]]:
    """Return the parameters of every kind, for each place in the sources that creates it."""
    found: dict[str, list[set[str]]] = defaultdict(list)
    for path in Path(perseid.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := kind_of(node.func)):
                found[name].append({str(keyword.arg) for keyword in node.keywords})
            elif isinstance(node, ast.IfExp):
                for each in filter(None, map(kind_of, (node.body, node.orelse))):
                    found[each].append(set())
    return found


def kind_of(node: ast.expr) -> str:
    is_kind = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "AdviceKind"
    return node.attr if is_kind and isinstance(node, ast.Attribute) else ""


def options(words: list[str]) -> set[str]:
    """Return the options of the command that words start with; fails if there is none."""
    command: object = typer.main.get_command(app)
    for word in words:
        if isinstance(command, TyperGroup):
            command = command.commands[word]
            command = command.load() if isinstance(command, LazyCommand) else command
    assert isinstance(command, TyperCommand), words
    return {option for each in command.params for option in each.opts}


def test_interfaces_have_texts_for_the_same_kinds() -> None:
    assert set(INTERFACES["cli"]) == set(INTERFACES["v1"]) == set(INTERFACES["compat"])
    assert None not in [*INTERFACES["cli"].values(), *INTERFACES["v1"].values()]


def test_every_kind_is_used() -> None:
    assert set(uses()) == {kind.name for kind in AdviceKind}


@pytest.mark.parametrize("interface", INTERFACES)
def test_texts_use_the_parameters_that_are_given(interface: str) -> None:
    used = uses()
    for kind, text in texts(interface).items():
        names = {name for _, name, _, _ in Formatter().parse(text) if name}
        assert all(names <= given for given in used[kind.name]), kind
        assert not text.endswith("."), kind
        advice = kind(**dict.fromkeys(names, "a b/%"))
        assert "{" not in render(advice, INTERFACES[interface]), kind


def test_only_the_command_line_names_commands() -> None:
    for interface in set(INTERFACES) - {"cli"}:
        assert [text for text in texts(interface).values() if COMMAND.search(text)] == []
    for interface in ("cli", "pages"):
        assert [text for text in texts(interface).values() if REQUEST.search(text)] == []


def test_no_text_of_the_server_names_a_command() -> None:
    """Texts of the ledger, and about the installation, are for operators: clients get only a reference to the log."""
    root = Path(perseid.__path__[0])
    operators = {root / "registry" / "installation", root / "server" / "processes", root / "server" / "observe"}
    found = []
    for package in ("names", "records", "registry", "server", "wire"):
        for path in (root / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                f"{path.relative_to(root)}: {node.value}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
                if operators.isdisjoint(path.parents)
                and re.search("perseid [a-z]+\\b(?! \\d)|(?<!-)--(?!data-binary)[a-z]", node.value)
            ]
    assert found == []


def test_every_command_in_advice_exists() -> None:
    named = [(text, match[1]) for text in texts("cli").values() if (match := re.search("perseid ([a-z][^:)…]*)", text))]
    assert len(named) > 10
    for text, command in named:
        assert set(re.findall("--[a-z-]+", text)) <= options(command.split()), text
    flags = {AdviceKind.CHANGE_CASE: "namespace policy", AdviceKind.OVERWRITE: "create"}
    flags |= {
        AdviceKind.REUSE_DELETED: "create",
        AdviceKind.AUTHENTICATE: "create",
        AdviceKind.GIVE_REASON: "tombstone",
        AdviceKind.SEARCH_URLS: "find",
    }
    for kind, command in flags.items():
        assert set(re.findall("--[a-z-]+", texts("cli")[kind])) <= options(command.split()), kind


def test_every_request_in_advice_exists() -> None:
    paths = document()["paths"]
    members = {name for schema in document()["components"]["schemas"].values() for name in schema.get("properties", ())}
    for text in texts("v1").values():
        for method, path in REQUEST.findall(text):
            shape = path.partition("?")[0].removeprefix("/api/v1").replace("/types/{type}", "/types/{handle}")
            assert method.lower() in paths.get(shape, {}), (method, path)
        assert {match[2] for match in PARAMETER.finditer(text)} <= members, text


def test_every_page_and_parameter_in_advice_of_the_compatible_api_exists() -> None:
    everything = " ".join([*texts("compat").values(), *texts("v1").values()])
    with harness() as server:
        for path in {*re.findall("/docs/[a-z]+|/api/prefixes", everything)}:
            assert server.get(path, headers=basic()).status == 200
    source = Path(call.__file__).with_name("writing.py").read_text(encoding="utf-8")
    for match in PARAMETER.finditer(" ".join(texts("compat").values())):
        assert f'"{match[1]}"' in source, match

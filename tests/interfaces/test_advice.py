"""Advice about refusals and warnings: every kind has a text at every interface, and what the texts name exists."""

import ast
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Final

import msgspec
import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import perseid
from perseid.cli import _advice, app
from perseid.cli._commands import LazyCommand
from perseid.client import advice
from perseid.client.api import Client
from perseid.client.api_exchange import to_error
from perseid.client.api_operations import ListOperation, Operation
from perseid.registry.advice import NO_TEXTS, AdviceKind, AdviceTexts, render
from perseid.registry.results import WarningKind
from perseid.schema.imports import ImportQuery
from perseid.schema.jobs import JobResponse, JobState
from perseid.schema.problems import Problem
from perseid.schema.records import ValueInput
from perseid.server.http.compat import call
from perseid.server.http.console import advice as console
from perseid.server.http.v1 import problems
from tests.server.http.contexts import basic, harness, json_of
from tests.server.http.v1.apis import send
from tests.server.http.v1.openapi_document import document

INTERFACES: Final[dict[str, AdviceTexts]] = {
    "cli": _advice.TEXTS,
    "v1": problems.ADVICE_TEXTS,
    "compat": call.ADVICE_TEXTS,
    "pages": NO_TEXTS,
    "console": console.ADVICE_TEXTS,
    "python": {AdviceKind[name]: text for name, text in advice.TEXTS.items()},
}
"""The native protocol sends no advice."""

COMMAND: Final = re.compile("perseid [a-z]|--[a-z]|perseid.toml|docs/reference")
REQUEST: Final = re.compile("(GET|POST|PUT|DELETE) (/[^ ,.;)]*)")
PARAMETER: Final = re.compile("([A-Za-z_]+)=true|confirm with ([a-z_]+)")


def texts(interface: str) -> dict[AdviceKind, str]:
    """Return the text of every kind at an interface."""
    return {kind: INTERFACES[interface].get(kind, kind.value) or "" for kind in AdviceKind}


@cache
def uses(kinds: str = "AdviceKind") -> dict[str, list[set[str]]]:
    """Return the parameters of every kind, for each place in the sources that creates it; "None" for `**`."""
    found: dict[str, list[set[str]]] = defaultdict(list)
    for path in Path(perseid.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := kind_of(node.func, kinds)):
                found[name].append({str(keyword.arg) for keyword in node.keywords})
            elif isinstance(node, ast.IfExp):
                for each in filter(None, [kind_of(part, kinds) for part in (node.body, node.orelse)]):
                    found[each].append(set())
    return found


def kind_of(node: ast.expr, kinds: str) -> str:
    is_kind = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == kinds
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
    for interface in ("v1", "compat", "python", "console"):
        assert set(INTERFACES["cli"]) == set(INTERFACES[interface])
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
    for interface in ("cli", "pages", "python", "console"):
        assert [text for text in texts(interface).values() if REQUEST.search(text)] == []


def test_no_text_of_the_server_names_a_command() -> None:
    """Texts of the ledger, and about the installation, are for operators: clients get only a reference to the log."""
    root = Path(perseid.__path__[0])
    operators = {root / "registry" / "installation", root / "server" / "processes", root / "server" / "observe"}
    operators |= {root / "bulk" / "migration", root / "bulk" / "static"}
    found = []
    for package in ("bulk", "names", "records", "registry", "server", "wire"):
        for path in (root / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                f"{path.relative_to(root)}: {node.value}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
                if operators.isdisjoint(path.parents)
                and re.search("perseid [a-z]+\\b(?! \\d)|(?<!-)--(?!data-binary)[a-z][a-z-]*+(?!:)", node.value)
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
        AdviceKind.CHOOSE_ENCODING: "import",
        AdviceKind.CHOOSE_ON_EXISTING: "import",
        AdviceKind.IMPORT_WITH_ON_EXISTING: "import",
        AdviceKind.IGNORE_COLUMN: "import",
        AdviceKind.MAP_COLUMN: "import",
        AdviceKind.MAP_EACH_COLUMN: "import",
        AdviceKind.CONFIRM_MINT: "import",
        AdviceKind.MINT_OR_ENTER_HANDLE: "import",
        AdviceKind.NAME_HANDLE_COLUMN: "import",
        AdviceKind.NAME_MINT_PREFIX: "import",
        AdviceKind.NAME_ROW_PREFIX: "import",
        AdviceKind.OMIT_MINT: "import",
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


CALL: Final = re.compile(r"(client\.[a-z_]+|ImportQuery|ValueInput)(\([^()]*\))")


def test_every_call_in_advice_of_the_client_is_valid() -> None:
    """Names such as `policy` and `values` are what the reader has to fill in."""
    named = [match for text in texts("python").values() for match in CALL.finditer(text)]
    assert len(named) > 30
    for match in named:
        call_ = ast.parse(match[0].replace("{", "").replace("}", ""), mode="eval").body
        assert isinstance(call_, ast.Call)
        target = getattr(
            Client, match[1].removeprefix("client."), {"ImportQuery": ImportQuery}.get(match[1], ValueInput)
        )
        bound = [None] * (len(call_.args) + isinstance(target, Operation | ListOperation))
        function = target.build if isinstance(target, Operation | ListOperation) else target
        inspect.signature(function).bind(*bound, **{str(keyword.arg): None for keyword in call_.keywords})


def test_client_phrases_advice_of_a_server_as_python() -> None:
    with harness() as server:
        refused = send(server, "POST", "/handles", {"handle": "12345/n0"}, headers=basic())
        invalid = send(server, "POST", "/handles", {"handle": "12345/\u202e"}, headers=basic())
    for response, text in ((refused, "client.create('12345/n0', values, overwrite=True)"), (invalid, "client.rule('")):
        error = to_error(msgspec.json.decode(response.body, type=Problem))
        assert text in error.advice
        assert "/api/v1" not in str(error)


def test_warnings_have_the_fix_of_each_interface() -> None:
    """Those of the other interfaces are in their own tests: records of the command line, console, client."""
    values = [{"index": 1, "type": "HS_ALIAS", "data": "12345/none"}]
    with harness() as server:
        made = send(server, "POST", "/handles", {"handle": "12345/w", "values": values}, headers=basic())
        (own,) = msgspec.json.decode(made.body)["warnings"]
        (compatible,) = json_of(server.put("/api/handles/12345/w2", values, headers=basic()))["warnings"]
    message = "Value 1 is an alias of 12345/none, which does not exist"
    assert own == {
        "code": "alias_target",
        "message": message,
        "parameters": {"index": 1, "target": "12345/none"},
        "rule": "S2",
        "advice": "Correct the alias, or create the record: POST /api/v1/handles",
        "advice_kind": "FIX_ALIAS",
        "advice_parameters": {"handle": "12345/none"},
    }
    assert compatible == f"{message}. Correct the alias, or create 12345/none: PUT /api/handles/12345/none"


def test_every_kind_of_warning_is_used_with_its_parameters() -> None:
    used = uses("WarningKind")
    assert set(used) == {kind.name for kind in WarningKind}
    for kind in WarningKind:
        names = {name for _, name, _, _ in Formatter().parse(kind.value) if name}
        assert all(each == names or "None" in each for each in used[kind.name]), kind
        assert not kind.value.endswith("."), kind


def test_advice_about_planned_urls_is_the_same_everywhere() -> None:
    """So the warnings of a preview need no words of an interface."""
    kinds = AdviceKind.ENCODE_BLANK, AdviceKind.USE_ABSOLUTE_URL, AdviceKind.USE_OTHER_SCHEME, AdviceKind.USE_URL
    for kind in kinds:
        assert not any(kind in each for each in INTERFACES.values())


def test_problems_of_jobs_are_phrased_as_commands() -> None:
    problem = Problem("about:x", "X", 409, "x", "POST /api/v1/jobs/1/resume", "RESUME_JOB", {"job": "1"})
    job = JobResponse("1", "import", JobState.UNFINISHED, {}, 0, None, "", None, "", "", problem=problem)
    phrased = _advice.phrase_job(job).problem
    assert phrased is not None
    assert phrased.advice == "Resume that job: perseid jobs resume 1"


def test_client_keeps_the_text_of_a_newer_server() -> None:
    problem = Problem("about:x", "X", 409, "x", advice="Do y", advice_kind="UNDO_JOB", advice_parameters={"other": "1"})
    assert to_error(problem).advice == "Do y"
    assert to_error(msgspec.structs.replace(problem, advice_kind="NEWER")).advice == "Do y"


def test_every_page_and_parameter_in_advice_of_the_compatible_api_exists() -> None:
    everything = " ".join([*texts("compat").values(), *texts("v1").values()])
    with harness() as server:
        for path in {*re.findall("/docs/[a-z]+|/api/prefixes", everything)}:
            assert server.get(path, headers=basic()).status == 200
    source = Path(call.__file__).with_name("writing.py").read_text(encoding="utf-8")
    for match in PARAMETER.finditer(" ".join(texts("compat").values())):
        assert f'"{match[1]}"' in source, match

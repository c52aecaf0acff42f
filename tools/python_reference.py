"""Write docs/reference/python.md, the reference of the Python client, from signatures and docstrings.

    python tools/python_reference.py

The sources are parsed, because docstrings of fields exist only there. A test compares the page.
"""

import ast
import enum
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from perseid.client.api_operations import ListOperation

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "python.md"
WIDTH: Final = 100
"""Characters of a line of a signature; longer ones have a line for each parameter."""

INTRODUCTION: Final = """\
# The Python client

Everything that programs use, with signatures and docstrings. [Use Perseid from Python](../guides/use-from-python.md)
and [Resolve any handle](../guides/resolve-any-handle.md) explain it with examples. Import the names from
`perseid.client`, and those of [other types](#types) from their modules; `connect`, `connect_async` and `resolve` are
also in `perseid`.

This page is generated from the code by `tools/python_reference.py`; a test compares them.
"""

TYPES: Final = """\
## Types

The types in signatures that are not in `perseid.client`. The fields of structures are those of the HTTP API, which the
OpenAPI document of a server describes (`/api/v1/openapi.json`).

| type | module | fields or values |
|---|---|---|"""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page."""

    title: str
    text: str
    entries: tuple[str, ...]
    """Functions, classes and types, as `module.name`."""


SECTIONS: Final = (
    Section(
        "Connect to a server",
        "A client of the HTTP API of one server.",
        ("api.connect", "api_async.connect_async", "api.ConnectOptions"),
    ),
    Section(
        "Clients",
        "`Client` has these methods and the operations of the next sections. `AsyncClient` has the same ones: they\n"
        "are awaited; lists and `watch` are asynchronous iterators.",
        ("api.Client", "api_async.AsyncClient", "api.Pages", "api_operations.Values"),
    ),
    Section(
        "Records",
        "Each operation shows its route under `/api/v1`. Every one can raise the [errors](#errors) of the client.",
        ("api_operations.RecordOperations",),
    ),
    Section("Search, history and proofs", "", ("api_operations.QueryOperations",)),
    Section("Jobs", "", ("api_services.JobOperations",)),
    Section(
        "Imports",
        "`Client.import_file` does all of this: upload a file, check it, and start the job.",
        ("api_imports.ImportOperations",),
    ),
    Section("Namespaces, types, tokens and names", "", ("api_services.NamespaceOperations",)),
    Section("Users and rights", "", ("api_access.AccessOperations",)),
    Section(
        "Resolve handles",
        "Any handle, wherever it is hosted, over the native protocol.",
        (
            "resolution.resolve",
            "resolution.ResolveOptions",
            "resolution.Resolver",
            "resolution.AsyncResolver",
            "lookup.Resolution",
            "attempts.Step",
            "roots.Root",
        ),
    ),
    Section(
        "Administer a server over the native protocol",
        "For any server of the Handle System. `do` and `do_many` perform operations that the functions of\n"
        "`perseid.client.native_operations` describe: they have the names and parameters of the methods\n"
        "(`site_information` for `site`).",
        ("native.NativeClient", "native_async.AsyncNativeClient", "native_site.SiteClient"),
    ),
    Section(
        "Errors",
        "A mistake of the calling program, such as an unknown option, is a ValueError or TypeError.",
        (
            "errors.ClientError",
            "errors.NotFound",
            "errors.Refused",
            "errors.Unreachable",
            "errors.UnknownOutcome",
            "errors.ProtocolError",
            "errors.UnexpectedKey",
            "errors.UntrustedCertificate",
        ),
    ),
)

LIKE_ANOTHER: Final = {"AsyncClient", "AsyncNativeClient", "AsyncResolver", "SiteClient"}
"""Classes with the parameters and methods of another one, as their docstrings say."""
NOT_CALLED: Final = {"Client", "Pages"}
"""Classes whose instances functions return."""
INTERNAL: Final = {"iterate", "send"}
"""Public methods that only operations call."""


@cache
def parse(module: str) -> tuple[ast.stmt, ...]:
    """The statements of a module of the client."""
    return tuple(ast.parse((ROOT / "src" / "perseid" / "client" / f"{module}.py").read_text(encoding="utf-8")).body)


@cache
def names_in(module: str) -> dict[str, Any]:
    """The names that a module of the client defines or imports."""
    return vars(import_module(f"perseid.client.{module}"))


def find_class(module: str, name: str) -> ast.ClassDef | None:
    """The definition of a class."""
    return next((node for node in parse(module) if isinstance(node, ast.ClassDef) and node.name == name), None)


# Signatures


def signature(function: Function, module: str, name: str, returns: str = "") -> str:
    """The signature as a call, without `self`."""
    arguments = function.args
    defaults = [*[None] * (len(arguments.args) - len(arguments.defaults)), *arguments.defaults]
    pairs = [pair for pair in zip(arguments.args, defaults, strict=True) if pair[0].arg not in {"self", "cls"}]
    parts = [parameter(*pair, module) for pair in pairs]
    if arguments.vararg is not None:
        parts.append(f"*{parameter(arguments.vararg, None, module)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [parameter(*pair, module) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parts.append(f"**{parameter(arguments.kwarg, None, module)}")
    end = f") -> {returns}" if returns else ")"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + end


def parameter(argument: ast.arg, default: ast.expr | None, module: str) -> str:
    """A parameter with its type and default: the value of a constant, not its name."""
    text = argument.arg if argument.annotation is None else f"{argument.arg}: {type_text(argument.annotation)}"
    if default is None:
        return text
    if isinstance(default, ast.Name) and isinstance(value := names_in(module)[default.id], int | float | str):
        return f"{text} = {value!r}"
    return f"{text} = {ast.unparse(default)}"


def type_text(node: ast.expr) -> str:
    """A type as a reader writes it."""
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", ast.unparse(node).replace("'", ""))
    return text.replace("os.PathLike[str]", "PathLike")


# Markdown


def entry(heading: str, code: str, text: str) -> list[str]:
    """A heading, a signature and a docstring."""
    block = ["```text", *code.splitlines(), "```", ""] if code else []
    return [heading, "", *block, *paragraphs(text)]


def paragraphs(text: str) -> list[str]:
    """A docstring as Markdown, one line for each paragraph."""
    return [line for part in text.split("\n\n") if part for line in (" ".join(part.split()), "")]


def table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """A table of fields, if there are some."""
    lines = [
        " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", f"`{kind}`", text)) for name, kind, text in rows
    ]
    return ["| name | type | meaning |", "|---|---|---|", *[f"| {line} |" for line in lines], ""] if lines else []


def describe(module: str, name: str) -> Iterator[str]:
    """The lines of one function, class or type."""
    for node in parse(module):
        if isinstance(node, Function) and node.name == name:
            returns = "" if node.returns is None else type_text(node.returns)
            yield from entry(f"### {name}", signature(node, module, name, returns), ast.get_docstring(node) or "")
        elif isinstance(node, ast.ClassDef) and node.name == name:
            yield from (
                describe_operations(node, module) if name.endswith("Operations") else describe_class(node, module)
            )
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value is not None:
            (text,) = [text for found, _, text in documented_fields(parse(module)) if found == name]
            yield from entry(f"### {name}", f"{name} = {type_text(node.value)}", text)


def describe_class(node: ast.ClassDef, module: str) -> Iterator[str]:
    """A class: its constructor, fields and public methods, with those of a private base."""
    bases = [ast.unparse(base) for base in node.bases]
    inherited = [base for name in bases if name[0] == "_" and (base := find_class(module, name)) is not None]
    functions = [each for part in (node, *inherited) for each in part.body if isinstance(each, Function)]
    constructor = next((each for each in functions if each.name == "__init__"), None)
    text, code, attributes = ast.get_docstring(node) or "", "", node.body
    if module == "errors":
        text += f" A kind of `{bases[0]}`."
        attributes = node.body if constructor is None else constructor.body
    elif constructor is not None and node.name not in NOT_CALLED | LIKE_ANOTHER:
        code = signature(constructor, module, node.name)
        text = f"{text}\n\n{ast.get_docstring(constructor) or ''}"
    yield from entry(f"### {node.name}", code, text)
    if node.name in LIKE_ANOTHER:
        return
    kinds = {} if constructor is None else {each.arg: each.annotation for each in constructor.args.args}
    if constructor is not None:
        kinds |= {each.arg: each.annotation for each in constructor.args.kwonlyargs}
    found = [(name, kind or kinds.get(name), text) for name, kind, text in documented_fields(attributes)]
    yield from table((name, type_text(kind), text) for name, kind, text in found if kind is not None)
    for each in functions:
        if not each.name.startswith("_") and each.name not in INTERNAL:
            returns = "" if each.returns is None else type_text(each.returns).replace("Self", node.name)
            is_property = "property" in map(ast.unparse, each.decorator_list)
            code = f"{each.name}: {returns}" if is_property else signature(each, module, each.name, returns)
            yield from entry(f"#### {node.name}.{each.name}", code, ast.get_docstring(each) or "")


def documented_fields(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Fields and attributes with their types, and their docstrings, which are strings after them."""
    for node, after in pairwise(body):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(inspect.cleandoc(str(after.value.value)).split())
        if isinstance(node, ast.AnnAssign) and text:
            yield ast.unparse(node.target), node.annotation, text
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and text:
            yield node.targets[0].attr, None, text


def describe_operations(node: ast.ClassDef, module: str) -> Iterator[str]:
    """The operations of the HTTP API of a class, with their routes."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            route = getattr(names_in(module)[node.name], each.name)
            result = route.result.__name__
            if isinstance(route, ListOperation):
                (call,) = each.decorator_list
                result = f"Pages[{result}, {ast.unparse(call.args[3])}]" if isinstance(call, ast.Call) else result
            text = f"{ast.get_docstring(each)} `{route.method} {route.path}`"
            yield from entry(f"### Client.{each.name}", signature(each, module, each.name, result), text)


def describe_types(text: str) -> Iterator[str]:
    """The types of other packages that the page names."""
    modules = {entry.partition(".")[0] for section in SECTIONS for entry in section.entries}
    known = {name: value for module in sorted(modules) for name, value in names_in(module).items()}
    named = "".join(re.findall(r"^```text\n.*?^```|^\| `\w+` \| `[^`]*`", text, re.MULTILINE | re.DOTALL))
    for name in sorted(set(re.findall(r"\b[A-Z]\w+", named)) & known.keys()):
        kind = known[name]
        if not isinstance(kind, type) or not re.match(r"perseid\.(?!client|wire)", kind.__module__):
            continue
        parts: list[str] = []
        if issubclass(kind, msgspec.Struct):
            parts = [field.name for field in msgspec.structs.fields(kind)]
        elif is_dataclass(kind):
            parts = [field.name for field in fields(kind)]
        elif issubclass(kind, enum.Enum):
            parts = [each.name if isinstance(each.value, int) else str(each.value) for each in kind]
        yield f"| `{name}` | `{kind.__module__}` | {', '.join(f'`{part}`' for part in parts)} |"


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
        for each in section.entries:
            lines += describe(*each.split("."))
    lines += [TYPES, *describe_types("\n".join(lines)), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

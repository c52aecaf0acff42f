"""Examples of the documentation pages: each operation of the HTTP API as a curl command and as a Python program.

Both are made of the same values: the examples of the fields, or else minimal ones. The Python program calls the method
of `perseid.client` that describes the same route, so it has that method's names. A test compares the requests of both.
"""

import inspect
import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, BinaryIO, Final, get_args, get_type_hints
from urllib.parse import quote

import msgspec

from perseid.client.api import Client, Operations
from perseid.client.api_operations import ListOperation, Operation
from perseid.schema.exports import ExportPart
from perseid.schema.records import ValueInput
from perseid.server.http.v1.openapi import is_stream
from perseid.server.http.v1.routing import BASE, NO_TOKEN, Route

Spec = Mapping[str, Any]
"""A part of the OpenAPI document."""

FILE: Final = "table.csv"
"""The uploaded file of the examples."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: a value that the reader must know."""

    name: str


_PATH_EXAMPLES: Final[Mapping[str, str | Variable]] = {
    "handle": "12345/x",
    "prefix": "12345",
    "suffix": "D7J1G0DQH",
    "rule": "H3",
    "job": "last",
    "id": Variable("IMPORT_ID"),
    "token": Variable("TOKEN_ID"),
}
"""Examples of path parameters."""

_HANDLE_EXAMPLES: Final = {"types": "12345/SCALE", "users": "12345/ann"}
"""Examples of handles under other paths than that of records, by their first segment."""

_USUAL_MEMBERS: Final = frozenset(("values", "prefix", "namespaces"))
"""Optional fields that examples include."""

_MEMBER_EXAMPLES: Final = {"data": "https://example.org/", "of": "12345/map", "description": "The scale of a map"}
"""Examples of fields whose type has none, or an unsuitable one."""

_EXAMPLES: Final[Mapping[str, Mapping[str, object]]] = {
    "createAlias": {"handle": "12345/old-map"},
    "find": {"url": "https://example.org/*"},
    "consistency": {"old": 1},
    "createImport": {"name": FILE},
    "previewRewrite": {"url": "https://example.org/*"},
    "rewrite": {"url": "https://example.org/*", "prefix": None},
    "exportRecords": {"prefix": "12345"},
    "resetUser": {"note": "lost key"},
}
"""Parameters and fields of operations that need or want others than usual; None for those to omit."""

_IDENTIFIED: Final = frozenset(("Imports", "Jobs", "Access"))
"""Sections whose reads return nothing to anonymous callers."""

_TYPE_EXAMPLES: Final[Mapping[str, object]] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "object": {}}

_IMAGES: Final = {"image/svg+xml": "qr.svg"}
"""Responses that are not for a terminal, and the files for them."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example request of a route."""

    route: Route
    names: Mapping[str, str | Variable]
    """The parameters of the path."""
    query: Mapping[str, Any]
    body: Any
    """The body as an object; None if there is none, or if it is a file."""

    @property
    def credentials(self) -> str:
        """What the request needs: `secret`, `token` or nothing."""
        if self.route.scope == NO_TOKEN:
            return "secret"
        return "token" if self.route.scope or self.route.tag in _IDENTIFIED else ""

    @property
    def body_text(self) -> str:
        """The body as JSON; empty if there is none."""
        return "" if self.body is None else json.dumps(self.body, ensure_ascii=False)


def make_example(route: Route, spec: Spec, schemas: Spec) -> Example:
    """Build the example of a route from its OpenAPI operation."""
    own = _EXAMPLES.get(route.operation, {})
    names: dict[str, str | Variable] = {}
    query: dict[str, Any] = {}
    for each in spec["parameters"]:
        name = each["name"]
        if each["in"] == "path":
            names[name] = _PATH_EXAMPLES[name]
            if name == "handle":
                names[name] = _HANDLE_EXAMPLES.get(route.path.split("/")[1], "12345/x")
        elif each["in"] == "query" and (each["required"] or name in own):
            query[name] = own[name] if name in own else _example(each["schema"], schemas)
    body = None
    if route.body is not None and not route.is_streamed:
        body = _example(spec["requestBody"]["content"]["application/json"]["schema"], schemas)
        assert isinstance(body, dict)  # noqa: S101 - bodies are objects
        body = {name: value for name, value in {**body, **own}.items() if value is not None}
    return Example(route, names, query, body)


def _example(schema: Spec, schemas: Spec) -> object:
    """Build an example of a schema."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for choice in ("examples", "enum"):
        if choice in schema:
            return schema[choice][0]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _example(schema[choice][0], schemas)
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}), schemas)]
    members = schema.get("properties")
    if members is None:
        return _TYPE_EXAMPLES[schema["type"]]
    included = {*schema.get("required", ()), *_USUAL_MEMBERS} & set(members)
    included = included or {name for name in members if "examples" in members[name]}
    return {
        name: _MEMBER_EXAMPLES.get(name) or _example(members[name], schemas) for name in members if name in included
    }


# curl


def curl_command(example: Example, server: str) -> str:
    """Write an example as a curl command."""
    route = example.route
    options = []
    if route.method != "GET":
        options.append(f"-X {route.method}")
    if is_stream(route):
        options.append("-N")
    if example.credentials == "secret":
        options.append("-u '300%3A0.NA/12345'")
    elif example.credentials:
        options.append('-H "Authorization: Bearer $TOKEN"')
    parts = [" ".join(["curl", *options])]
    if route.is_streamed:
        parts += ['-H "Content-Type: application/octet-stream"', f"--data-binary @{FILE}"]
    elif route.body is not None:
        parts += ['-H "Content-Type: application/json"', f"-d {shlex.quote(example.body_text)}"]
    if file := _get_file(route):
        parts.append(f"-o {file}")
    parts.append(f'"{server}{BASE}{_target(example)}"')
    is_long = len(" ".join(parts)) > _MAX_LINE and parts[0] != "curl"
    return " \\\n  ".join(parts) if is_long else " ".join(parts)


_MAX_LINE: Final = 88
"""Characters of a line: what a code block shows on a usual screen."""


def _get_file(route: Route) -> str:
    return next((_IMAGES[each] for each in route.media_types if each in _IMAGES), "")


def _target(example: Example) -> str:
    path = example.route.path
    for name, value in example.names.items():
        text = f"${value.name}" if isinstance(value, Variable) else quote(value, safe="")
        path = path.replace(f"{{{name}}}", text)
    query = [
        f"{name}={quote(str(each), safe=':/')}"
        for name, value in example.query.items()
        for each in (value if isinstance(value, list) else [value])  # a list parameter is repeated
    ]
    return f"{path}?{'&'.join(query)}" if query else path


# Python


def python_program(example: Example, server: str) -> str:
    """Write an example as a Python program."""
    writer = _PythonWriter(example)
    statement = "\n".join(writer.statement())
    connect = _call("with perseid.connect", [f'"{server}"', *_CONNECT_OPTIONS[example.credentials]], " as client:")
    program = "\n".join([*connect, textwrap.indent(statement, _INDENT)])
    standard = [f"import {name}" for name in ("os", "pathlib") if f"{name}." in program]
    own = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(writer.imports.items())]
    blocks = ["\n".join(standard), "\n".join(["import perseid", *own]), program]
    return "\n\n".join(filter(None, blocks))


def _call(function: str, arguments: Sequence[str], end: str = "") -> list[str]:
    """Write a call in one line, or with each argument in a line of its own."""
    line = f"{function}({', '.join(arguments)}){end}"
    if len(line) <= _MAX_LINE:
        return [line]
    return [f"{function}(", *[f"{_INDENT}{argument}," for argument in arguments], f"){end}"]


_INDENT: Final = "    "
_CONNECT_OPTIONS: Final = {
    "": [],
    "token": ['token=os.environ["TOKEN"]'],
    "secret": ['identity="300:0.NA/12345"', 'secret=os.environ["SECRET"]'],
}
_ARGUMENT_NAMES: Final = {"import_id": "id", "indexes": "index"}
"""Arguments of methods that have another name in the API."""


@cache
def methods() -> Mapping[tuple[str, str], tuple[str, Any]]:
    """The operations of the client by method and path, each with its name."""
    found = {name: getattr(Operations, name) for name in dir(Operations)}
    return {
        (each.method, each.path): (name, each)
        for name, each in found.items()
        if isinstance(each, Operation | ListOperation)
    }


class _PythonWriter:
    """Writes the call of the method of a route."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self.imports: dict[str, set[str]] = {}
        """Names to import, by module."""

    def statement(self) -> list[str]:
        """The lines that call the method and use the result."""
        route = self._example.route
        if is_stream(route):  # the client has no operation for it, but a method
            job = self._literal(self._example.names["job"])
            return [f"for job in client.{Client.watch.__name__}({job}):", "    print(job)"]
        name, operation = methods()[route.method, route.path]
        function, arguments = f"client.{name}", self._arguments(operation)
        if isinstance(operation, ListOperation):
            shown = "part.decode()" if operation.result is ExportPart else "item"
            loop = _call(f"for {shown.partition('.')[0]} in {function}", arguments, ":")
            return [*loop, f"{_INDENT}print({shown})"]
        (call, *more) = _call(function, arguments)
        if more:
            return [f"result = {call}", *more, "print(result)"]
        if file := _get_file(route):
            return [f'pathlib.Path("{file}").write_bytes({call})']
        return [f"print({call}.decode())" if operation.result is bytes else f"print({call})"]

    def _arguments(self, operation: Any) -> list[str]:
        example = self._example
        given = {**example.names, **example.query, **(example.body or {})}
        types = get_type_hints(operation.build)
        written = []
        for name, parameter in list(inspect.signature(operation.build).parameters.items())[1:]:
            type_ = types[name]
            if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
                fields = [field for field in type_.__struct_fields__ if field in given]
                text = self._struct(type_, {field: given.pop(field) for field in fields})
            elif type_ is BinaryIO:
                text = f'pathlib.Path("{FILE}").open("rb")'
            elif (known := _ARGUMENT_NAMES.get(name, name)) in given:
                text = self._argument(given.pop(known), type_)
            elif "command" in given:  # a union of commands
                tag = given.pop("command")
                chosen = next(each for each in get_args(type_) if each.__struct_config__.tag == tag)
                text, given = self._struct(chosen, given), {}
            else:
                continue
            written.append(f"{name}={text}" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else text)
        return written

    def _argument(self, value: Any, type_: Any) -> str:
        if isinstance(type_, type) and issubclass(type_, Enum):
            return f"{self._name(type_)}.{type_(value).name}"
        if isinstance(value, list) and value and isinstance(value[0], dict):  # values of a record
            return self._literal({each["type"]: each["data"] for each in value})
        return self._literal(value)

    def _struct(self, type_: type[msgspec.Struct], given: Mapping[str, Any]) -> str:
        fields = []
        for name, value in given.items():
            text = self._literal(value)
            if isinstance(value, list):
                values = [f"{self._name(ValueInput)}({', '.join(map(self._literal, each.values()))})" for each in value]
                text = f"({', '.join(values)},)"
            fields.append(f"{name}={text}")
        return f"{self._name(type_)}({', '.join(fields)})"

    def _name(self, type_: type) -> str:
        """The name of a type, which is imported."""
        self.imports.setdefault(type_.__module__, set()).add(type_.__name__)
        return type_.__name__

    @staticmethod
    def _literal(value: object) -> str:
        return f'os.environ["{value.name}"]' if isinstance(value, Variable) else json.dumps(value, ensure_ascii=False)

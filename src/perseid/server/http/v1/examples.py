"""Commands that ask for the parts of the API, as its pages show them: complete, so that they can be copied and run.

They are made of the description. What a body holds are the examples that its members name, or else the plainest thing
that fits.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from .routing import BASE, NO_TOKEN, Route

_STEPS: Final = {"handle": "12345%2Fx", "prefix": "12345", "suffix": "D7J1G0DQH", "rule": "H3"}
"""What stands in a path for its parameters; others stand for themselves, in capitals."""

_LIKELY: Final = frozenset(("values", "prefix", "namespaces"))
"""Members that may be left out, and hardly ever are."""

_MEMBERS: Final = {"data": "https://example.org/", "of": "12345/map", "description": "The scale of a map"}
"""What members hold that have no example, or one that does not go with the others."""

_ASKED: Final = {"/find": ("url",)}
"""Parameters of the query that may be left out, and one of them has to be there."""

_PLAIN: Final[Mapping[str, object]] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "object": {}}

Schemas = Mapping[str, Any]
"""The structures of the description, by their names."""


def command(route: Route, said: Mapping[str, Any], schemas: Schemas, server: str) -> str:
    """A command that asks a server for a route, of which the description says `said`."""
    parts = ["curl"]
    if route.method != "GET":
        parts[0] += f" -X {route.method}"
    if route.scope == NO_TOKEN:
        parts[0] += " -u '300%3A0.NA/12345'"
    elif route.scope:
        parts[0] += ' -H "Authorization: Bearer $TOKEN"'
    if route.body is not None:
        body = json.dumps(body_of(said, schemas), ensure_ascii=False)
        parts += ['-H "Content-Type: application/json"', f"-d {shlex.quote(body)}"]
    parts.append(shlex.quote(f"{server}{BASE}{_target(route, said, schemas)}"))
    return " \\\n  ".join(parts) if route.body is not None else " ".join(parts)


def body_of(said: Mapping[str, Any], schemas: Schemas) -> object:
    """A body that a route takes."""
    return _example(said["requestBody"]["content"]["application/json"]["schema"], schemas)


def _target(route: Route, said: Mapping[str, Any], schemas: Schemas) -> str:
    path, query = route.path, []
    for each in said["parameters"]:
        name = each["name"]
        if each["in"] == "path":
            path = path.replace(f"{{{name}}}", _STEPS.get(name, name.upper()))
        elif each["in"] == "query" and (each["required"] or name in _ASKED.get(route.path, ())):
            example = _example(each["schema"], schemas)
            values = example if isinstance(example, list) else [example]  # one that takes several is repeated
            query += [f"{name}={quote(str(value), safe=':/')}" for value in values]
    return f"{path}?{'&'.join(query)}" if query else path


def _example(schema: Mapping[str, Any], schemas: Schemas) -> object:
    """Something that a schema describes."""
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
        return _PLAIN[schema["type"]]
    wanted = {*schema.get("required", ()), *_LIKELY} & set(members)
    wanted = wanted or {name for name in members if "examples" in members[name]}
    return {name: _MEMBERS.get(name) or _example(members[name], schemas) for name in members if name in wanted}

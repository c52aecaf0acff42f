"""A simple, slow model of templates: their elements, their XML and their meaning."""

import re
from dataclasses import dataclass, field, replace
from typing import Any
from xml.sax.saxutils import quoteattr

from hypothesis import strategies as st

from perseid.records.record import Value

NAMES = ("extension", "base", "handle", "index", "type", "data", "x", "y", "nothing")
EXPRESSIONS = ("", "a", "URL", "(a)(b)?", "[ab]*", "(.*)=(.*)", r"(\d+)", "1", "(?i)A", r"a{2,}", r"(b)|(\d)")


@dataclass(frozen=True)
class Node:
    """An element: its name, its attributes and its children."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: tuple["Node", ...] = ()

    def xml(self) -> str:
        attributes = "".join(f" {name}={quoteattr(text)}" for name, text in self.attributes.items())
        return f"<{self.name}{attributes}>{''.join(child.xml() for child in self.children)}</{self.name}>"


class NameNotFound(Exception):
    """The name does not exist."""


class Model:
    """The meaning of a template: one parameter table and one list of values, evaluated in document order."""

    def __init__(self, handle: str, base: str, extension: str, values: tuple[Value, ...], ignore_case: bool) -> None:
        self.values = values
        self.flags = re.ASCII | re.IGNORECASE if ignore_case else re.ASCII
        self.known = {"handle": handle, "base": base, "extension": extension}
        self.groups: dict[str, list[str]] = {}

    def run(self, nodes: tuple[Node, ...], current: Value | None, output: list[Value]) -> None:  # noqa: C901, PLR0912 - in document order
        outcomes: list[bool] = []
        for node in nodes:
            if node.name == "value":
                self.value(node, current, output)
            elif node.name == "foreach" and current is None:
                known, groups = dict(self.known), dict(self.groups)
                for value in self.values:
                    loop_parameters = {"index": str(value.index), "type": value.type, "data": value.data.decode()}
                    for name in loop_parameters:
                        self.groups.pop(name, None)
                    self.known.update(loop_parameters)
                    self.run(node.children, value, output)
                for name in ("index", "type", "data"):
                    self.known.pop(name, None)
                    self.groups.pop(name, None)
                    if name in known:
                        self.known[name] = known[name]
                    if name in groups:
                        self.groups[name] = groups[name]
            elif node.name == "if":
                outcomes.append(self.evaluate_test(node))
                if outcomes[-1]:
                    self.run(node.children, current, output)
            elif node.name == "else" and outcomes and not outcomes[-1]:
                self.run(node.children, current, output)
            elif node.name == "def":
                inner_output: list[Value] = []
                self.run(node.children, current, inner_output)
                self.known[node.attributes["parameter"]] = inner_output[0].data.decode() if inner_output else ""
                self.groups.pop(node.attributes["parameter"], None)
            elif node.name == "notfound":
                raise NameNotFound

    def evaluate_test(self, node: Node) -> bool:
        name = node.attributes.get("value", "extension")
        text = self.known.get(name, "")
        expression = node.attributes["expression"]
        if node.attributes.get("test") == "matches":
            found = re.compile(expression, self.flags).fullmatch(text)
            matched = found is not None
            if found is not None:
                parameter = node.attributes.get("parameter", name)
                self.known[parameter] = text
                self.groups[parameter] = [text, *found.groups("")]
        else:
            matched = text == expression
        return matched != (node.attributes.get("negate") == "yes")

    def value(self, node: Node, current: Value | None, output: list[Value]) -> None:
        fields: dict[str, Any] = {}
        if "index" in node.attributes:
            fields["index"] = int(node.attributes["index"])
        if "type" in node.attributes:
            fields["type"] = self.fill(node.attributes["type"])
        if "data" in node.attributes:
            fields["data"] = self.fill(node.attributes["data"]).encode()
        if current is None:
            if "type" not in fields or "data" not in fields:
                return
            value = Value(**{"index": 1, **fields})
        else:
            value = replace(current, **fields)
        index = value.index
        while index in [other.index for other in output]:
            index += 1
        output.append(replace(value, index=index))

    def fill(self, text: str) -> str:
        if not text:
            return ""
        if text[0] == "\\" and len(text) > 1:
            return text[1] + self.fill(text[2:])
        if text[:2] == "${" and "}" in text and "{" not in text[2 : text.index("}")]:
            end = text.index("}")
            return self.look_up(text[2:end]) + self.fill(text[end + 1 :])
        if text[0] == "$" and text[1:2] in set("0123456789"):
            digits = min(len(text) - 1 - len(text[1:].lstrip("0123456789")), 4)
            groups = self.groups.get("extension", [self.known["extension"]])
            valid_counts = [n for n in range(2, digits + 1) if int(text[1 : n + 1]) < len(groups)]
            digit_count = max(valid_counts, default=1)
            number = int(text[1 : digit_count + 1])
            group = groups[number] if number < len(groups) else ""
            return group + text[digit_count + 1 : digits + 1] + self.fill(text[digits + 1 :])
        return text[0] + self.fill(text[1:])

    def look_up(self, name: str) -> str:
        if name in self.known:
            return self.known[name]
        found = re.fullmatch(r"(.*)\[(\d+)\]", name, re.DOTALL)
        if found is None or found[1] not in self.known:
            return ""
        groups = self.groups.get(found[1], [self.known[found[1]]])
        return groups[int(found[2])] if int(found[2]) < len(groups) else ""


# Strategies for templates

_names = st.sampled_from(NAMES)
_pieces = st.one_of(
    st.text("ab=1 \\$é&<", max_size=3),
    _names.map(lambda name: f"${{{name}}}"),
    st.tuples(_names, st.integers(0, 3)).map(lambda pair: f"${{{pair[0]}[{pair[1]}]}}"),
    st.integers(0, 31).map(lambda number: f"${number}"),
    st.sampled_from(["$00001", "$12345", "$000000"]),
)
_texts = st.lists(_pieces, max_size=4).map("".join)
_values = st.fixed_dictionaries(
    {}, optional={"index": st.integers(1, 4).map(str), "type": _texts | st.just("URL"), "data": _texts}
).map(lambda attributes: Node("value", attributes))
_notfound = st.integers(0, 20).map(lambda number: Node("notfound") if number == 0 else Node("value", {"type": "T"}))


def _containers(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    children = st.lists(inner, max_size=4).map(tuple)
    tests = st.fixed_dictionaries(
        {"expression": st.sampled_from(EXPRESSIONS)},
        optional={
            "value": _names,
            "test": st.sampled_from(["equals", "matches"]),
            "negate": st.sampled_from(["yes", "no"]),
            "parameter": st.sampled_from(["x", "y"]),
        },
    )
    return st.one_of(
        st.builds(Node, st.just("if"), tests, children),
        st.builds(Node, st.just("else"), st.just({}), children),
        st.builds(Node, st.just("foreach"), st.just({}), children),
        st.builds(
            Node, st.just("def"), st.sampled_from(["x", "y", "extension"]).map(lambda n: {"parameter": n}), children
        ),
    )


nodes = st.recursive(_values | _notfound, _containers, max_leaves=10)
templates = st.lists(nodes, max_size=5).map(lambda found: Node("template", {"delimiter": "@"}, tuple(found)))
"""Any template, including those that validation refuses."""

base_values = st.lists(
    st.builds(
        Value,
        st.integers(1, 6),
        st.sampled_from(["URL", "DESC", "a"]),
        st.sampled_from([b"", b"a", b"ab", b"https://example.org/?a=1", "é".encode()]),
        ttl=st.sampled_from([60, 86_400]),
    ),
    max_size=4,
    unique_by=lambda value: value.index,
).map(tuple)

"""Templates once more, slowly and obviously: what they are made of, how they are written, and what they mean."""

import re
from dataclasses import dataclass, field, replace
from typing import Any
from xml.sax.saxutils import quoteattr

from hypothesis import strategies as st

from perseid.records.value import Value

NAMES = ("extension", "base", "handle", "index", "type", "data", "x", "y", "nothing")
EXPRESSIONS = ("", "a", "URL", "(a)(b)?", "[ab]*", "(.*)=(.*)", r"(\d+)", "1", "(?i)A", r"a{2,}", r"(b)|(\d)")


@dataclass(frozen=True)
class Node:
    """An element: its name, its attributes, and what is in it."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: tuple["Node", ...] = ()

    def xml(self) -> str:
        written = "".join(f" {name}={quoteattr(text)}" for name, text in self.attributes.items())
        return f"<{self.name}{written}>{''.join(child.xml() for child in self.children)}</{self.name}>"


class Absent(Exception):
    """There is no such name."""


class Model:
    """What a template means: one parameter table, one list of values, everything done as it is read."""

    def __init__(self, handle: str, base: str, extension: str, values: tuple[Value, ...], ignore_case: bool) -> None:
        self.values = values
        self.flags = re.ASCII | re.IGNORECASE if ignore_case else re.ASCII
        self.known = {"handle": handle, "base": base, "extension": extension}
        self.groups: dict[str, list[str]] = {}

    def run(self, nodes: tuple[Node, ...], current: Value | None, made: list[Value]) -> None:  # noqa: C901, PLR0912 - as it is read
        outcomes: list[bool] = []
        for node in nodes:
            if node.name == "value":
                self.value(node, current, made)
            elif node.name == "foreach" and current is None:
                known, groups = dict(self.known), dict(self.groups)
                for value in self.values:
                    told = {"index": str(value.index), "type": value.type, "data": value.data.decode()}
                    for name in told:
                        self.groups.pop(name, None)
                    self.known.update(told)
                    self.run(node.children, value, made)
                for name in ("index", "type", "data"):
                    self.known.pop(name, None)
                    self.groups.pop(name, None)
                    if name in known:
                        self.known[name] = known[name]
                    if name in groups:
                        self.groups[name] = groups[name]
            elif node.name == "if":
                outcomes.append(self.holds(node))
                if outcomes[-1]:
                    self.run(node.children, current, made)
            elif node.name == "else" and outcomes and not outcomes[-1]:
                self.run(node.children, current, made)
            elif node.name == "def":
                apart: list[Value] = []
                self.run(node.children, current, apart)
                self.known[node.attributes["parameter"]] = apart[0].data.decode() if apart else ""
                self.groups.pop(node.attributes["parameter"], None)
            elif node.name == "notfound":
                raise Absent

    def holds(self, node: Node) -> bool:
        name = node.attributes.get("value", "extension")
        text = self.known.get(name, "")
        wanted = node.attributes["expression"]
        if node.attributes.get("test") == "matches":
            found = re.compile(wanted, self.flags).fullmatch(text)
            held = found is not None
            if found is not None:
                parameter = node.attributes.get("parameter", name)
                self.known[parameter] = text
                self.groups[parameter] = [text, *found.groups("")]
        else:
            held = text == wanted
        return held != (node.attributes.get("negate") == "yes")

    def value(self, node: Node, current: Value | None, made: list[Value]) -> None:
        given: dict[str, Any] = {}
        if "index" in node.attributes:
            given["index"] = int(node.attributes["index"])
        if "type" in node.attributes:
            given["type"] = self.fill(node.attributes["type"])
        if "data" in node.attributes:
            given["data"] = self.fill(node.attributes["data"]).encode()
        if current is None:
            if "type" not in given or "data" not in given:
                return
            value = Value(**{"index": 1, **given})
        else:
            value = replace(current, **given)
        index = value.index
        while index in [other.index for other in made]:
            index += 1
        made.append(replace(value, index=index))

    def fill(self, text: str) -> str:
        if not text:
            return ""
        if text[0] == "\\" and len(text) > 1:
            return text[1] + self.fill(text[2:])
        if text[:2] == "${" and "}" in text and "{" not in text[2 : text.index("}")]:
            end = text.index("}")
            return self.meaning(text[2:end]) + self.fill(text[end + 1 :])
        if text[0] == "$" and text[1:2] in set("0123456789"):
            digits = min(len(text) - 1 - len(text[1:].lstrip("0123456789")), 4)
            groups = self.groups.get("extension", [self.known["extension"]])
            fitting = [n for n in range(2, digits + 1) if int(text[1 : n + 1]) < len(groups)]
            used = max(fitting, default=1)
            number = int(text[1 : used + 1])
            group = groups[number] if number < len(groups) else ""
            return group + text[used + 1 : digits + 1] + self.fill(text[digits + 1 :])
        return text[0] + self.fill(text[1:])

    def meaning(self, name: str) -> str:
        if name in self.known:
            return self.known[name]
        found = re.fullmatch(r"(.*)\[(\d+)\]", name, re.DOTALL)
        if found is None or found[1] not in self.known:
            return ""
        groups = self.groups.get(found[1], [self.known[found[1]]])
        return groups[int(found[2])] if int(found[2]) < len(groups) else ""


# Templates of any kind

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


def _holding(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
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


nodes = st.recursive(_values | _notfound, _holding, max_leaves=10)
templates = st.lists(nodes, max_size=5).map(lambda found: Node("template", {"delimiter": "@"}, tuple(found)))
"""Any template, also one that nobody would be allowed to write."""

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

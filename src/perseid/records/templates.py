"""Templates: values of names without a record, produced from a base record by the XML of an HS_NAMESPACE value.

A name such as `12345/report@page=7` is split at a delimiter into base and extension. The template produces the values:

    <template delimiter="@">
      <foreach>
        <if value="type" expression="URL"><value data="${data}?${extension}"/></if>
        <else><value/></else>
      </foreach>
    </template>

Elements, processed in order:

- `value index type data` produces a value. Data can also be the content of the element. Outside `foreach`, type and
  data are required and the index defaults to 1; inside, missing parts come from the current base value. An index that
  is in use becomes the next free one.
- `foreach` processes its content for each base value, with the parameters `index`, `type` and `data`. It cannot be
  nested.
- `if value test expression negate parameter` processes its content if a parameter (default: `extension`) equals the
  expression or, with `test="matches"`, if the regular expression matches all of it; captured groups go to `parameter`.
  `else` processes its content if the `if` before it did not.
- `def parameter` sets a parameter to the data of the first value in it, and produces no value.
- `notfound` ends processing: the name does not exist.
- `template ref="index:handle"` is replaced by the template in that value.

In types and data, `${name}` is a parameter, `${name[2]}` its second captured group, and `$2` that of the extension (at
most four digits); a backslash escapes the next character. `handle`, `base` and `extension` are always set; an unset
parameter is empty.

Templates are untrusted: values, bytes, steps and references are limited. Elements that cannot be used, and invalid
regular expressions, have no effect, for compatibility with records of other servers; `check_templates` rejects them in
new records.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from .errors import InvalidData
from .namespace import Namespace
from .patterns import JavaRegex, compile_java_regex
from .record import Value, ValueRef
from .xml import Element, is_true, parse_xml

MAX_TEMPLATE_VALUES: Final = 2_048
"""Maximum number of values: what deployed clients accept in a response."""

MAX_TEMPLATE_BYTES: Final = 262_144
"""Maximum size in bytes of all values, and of any intermediate text: the longest message."""

MAX_TEMPLATE_STEPS: Final = 10_000
"""Maximum number of steps per name: one for an element, more for long texts and expressions. They take a fraction of a
second."""

MAX_REFERENCE_DEPTH: Final = 10
"""Maximum depth of references to other templates, as in deployed servers."""

CHARACTERS_PER_STEP: Final = 1_000
"""Characters of text per step. Costs are not rounded, so many short texts cost the same as a long one."""

FILL_CHARACTERS: Final = 200
"""Fixed cost of filling in a text, in characters."""

TOKEN_CHARACTERS: Final = 100
"""Cost of each parameter or backslash in it, in characters."""

KEPT_REFERENCE_CHARACTERS: Final = 200
"""Cost of each reference that a value keeps from the base, in characters."""

MATCH_COST_PER_STEP: Final = 1_000
"""Matching work per step: states of the expression times characters of the text."""

EXPRESSION_STEPS: Final = 20
"""Fixed cost of parsing a regular expression, besides a step per ten characters."""

INVALID_EXPRESSION_STEPS: Final = 100
"""Additional cost of an invalid expression, which may have been compiled up to its limit."""

STATES_PER_STEP: Final = 100
"""States of a compiled expression per step."""

REFERENCE_STEPS: Final = 500
"""Cost of looking up a template: reading a record and parsing up to 64 KiB of XML."""

EXTENSION: Final = "extension"
TEMPLATE: Final = "template"
MAX_INDEX: Final = 0x7FFF_FFFF

_LOOP_PARAMETERS: Final = ("index", "type", "data")
# No expression has a thousand groups; int() raises its own error for thousands of digits.
_TOKEN: Final = re.compile(r"\\(.)|\$\{([^{}]*)\}|\$([0-9]{1,4})", re.DOTALL)
_GROUP: Final = re.compile(r"(.*)\[([0-9]{1,4})\]", re.DOTALL)
_INDEX: Final = re.compile(r"\s*([0-9]{1,10})\s*")

ValueLookup: TypeAlias = Callable[[ValueRef], bytes | None]
"""Returns the data of a public value; None if there is none."""


class TemplateBudgetExceeded(InvalidData):
    """A template exceeds a limit."""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """A requested name and its base record."""

    handle: str
    """The requested name."""
    base: str
    """The part before the delimiter."""
    extension: str
    """The part after the delimiter."""
    values: tuple[Value, ...] = ()
    """The public values of the base; empty if it has no record."""
    ignore_case: bool = True
    """Whether names of the namespace are case-insensitive."""


def split_name(handle: str, prefix: str, delimiter: str) -> tuple[str, str] | None:
    """Split a name into base and extension; None if there is no delimiter at the end of the prefix or after it."""
    position = handle.find(delimiter, len(prefix)) if delimiter else -1
    return None if position < 0 else (handle[:position], handle[position + len(delimiter) :])


def evaluate(templates: tuple[Element, ...], subject: TemplateInput, lookup: ValueLookup) -> tuple[Value, ...] | None:
    """Evaluate templates: the values of a name, in order; None if the name does not exist.

    Raises `TemplateBudgetExceeded`.
    """
    steps = _StepBudget()
    output = _ValueCollector(steps)
    evaluation = _Evaluation(subject, lookup, steps)
    try:
        for template in templates:
            evaluation.template(template, None, output, 0)
    except _NotFound:
        return None
    return tuple(output.values)


def parse_index(text: str | None) -> int | None:
    """Parse the index of a value; None if it is invalid."""
    match = _INDEX.fullmatch(text or "")
    return int(match[1]) if match is not None and 0 < int(match[1]) <= MAX_INDEX else None


def get_data(element: Element) -> "str | tuple[Element | str, ...] | None":
    """The data of a `value` element: text, or content with elements; None if there is none."""
    data = element.get("data")
    if data is not None:
        return data
    if element.elements():
        return element.children
    return element.text.strip() or None


class _NotFound(Exception):
    """The name does not exist."""


class _StepBudget:
    """Remaining work, in characters, so that fractions of a step are not lost."""

    def __init__(self) -> None:
        self._remaining = MAX_TEMPLATE_STEPS * CHARACTERS_PER_STEP

    def spend(self, steps: int) -> None:
        self.spend_characters(steps * CHARACTERS_PER_STEP)

    def spend_characters(self, characters: int) -> None:
        """Charge for a text before it is built or read."""
        self._remaining -= characters
        if self._remaining < 0:
            raise TemplateBudgetExceeded(f"the template takes more than {MAX_TEMPLATE_STEPS:,} steps")


class _ValueCollector:
    """The values of a template or of a `def`."""

    def __init__(self, steps: _StepBudget) -> None:
        self.values: list[Value] = []
        self._steps = steps
        self._size = 0
        self._next_indexes: dict[int, int] = {}  # from an index in use towards a free one

    def add(self, value: Value) -> None:
        """Add a value, at the next free index if its own is in use."""
        if len(self.values) == MAX_TEMPLATE_VALUES:
            raise TemplateBudgetExceeded(f"the template produces more than {MAX_TEMPLATE_VALUES:,} values")
        self._steps.spend_characters(len(value.data) + KEPT_REFERENCE_CHARACTERS * len(value.references))
        size = len(value.to_bytes())
        self._steps.spend_characters(size)  # references can be long
        self._size += size
        if self._size > MAX_TEMPLATE_BYTES:
            raise _length_error()
        index = self._find_free_index(value.index)
        self._next_indexes[index] = index + 1 if index < MAX_INDEX else 1
        self.values.append(replace(value, index=index))

    def _find_free_index(self, index: int) -> int:
        """Find a free index, with path compression: a thousand values may have the same index."""
        visited = []
        while index in self._next_indexes:
            visited.append(index)
            index = self._next_indexes[index]
        self._next_indexes.update(dict.fromkeys(visited, index))
        return index


class _TextBuffer:
    """A text buffer that charges for each part and limits the total length."""

    def __init__(self, steps: _StepBudget, limit: int = MAX_TEMPLATE_BYTES) -> None:
        self._steps = steps
        self._parts: list[str] = []
        self.remaining = limit
        """Number of characters that can still be added."""

    def add(self, *parts: str) -> None:
        for part in filter(None, parts):
            self.remaining -= len(part)
            if self.remaining < 0:
                raise _length_error()
            self._steps.spend_characters(len(part))
            self._parts.append(part)

    def replace_last(self, part: str) -> None:
        """Replace the last part."""
        self.remaining += len(self._parts.pop())
        self.add(part)

    def __str__(self) -> str:
        return "".join(self._parts)


class _Evaluation:
    """The evaluation of templates for one name."""

    def __init__(self, subject: TemplateInput, lookup: ValueLookup, steps: _StepBudget) -> None:
        self._subject = subject
        self._lookup = lookup
        self._steps = steps
        self._loaded: dict[str, tuple[Element, ...]] = {}
        self._expressions: dict[str, JavaRegex | None] = {}
        self._parameters: dict[str, tuple[str, ...]] = {
            "handle": (subject.handle,),
            "base": (subject.base,),
            EXTENSION: (subject.extension,),
        }
        """Each with its text and captured groups."""

    def template(self, element: Element, base: Value | None, output: _ValueCollector, depth: int) -> None:
        """Process a template, or the one that it refers to, at reference depth `depth`."""
        reference = element.get("ref")
        if reference is None:
            self._run(element, base, output, depth)
            return
        if depth >= MAX_REFERENCE_DEPTH:
            raise _NotFound
        for other in self._load_templates(reference):
            self.template(other, base, output, depth + 1)

    def _load_templates(self, reference: str) -> tuple[Element, ...]:
        """The templates in another value. If it is missing or invalid, the name does not exist."""
        if reference not in self._loaded:
            self._steps.spend(REFERENCE_STEPS)
            try:
                data = self._lookup(ValueRef.parse(reference.strip()))
                if data is None:
                    raise _NotFound
                root = parse_xml(data)
            except InvalidData:
                raise _NotFound from None
            self._loaded[reference] = (root,) if root.name == TEMPLATE else root.elements(TEMPLATE) or (root,)
        return self._loaded[reference]

    def _run(self, parent: Element, base: Value | None, output: _ValueCollector, depth: int) -> None:
        """Process the children of an element; recursion is limited by the depth of the XML."""
        condition: bool | None = None
        for element in parent.elements():
            # Charge for all attributes at once.
            self._steps.spend_characters(CHARACTERS_PER_STEP + sum([len(text) for _, text in element.attributes]))
            name = element.name
            if name == "if":
                condition = self._test(element)
            if (name == "if" and condition) or (name == "else" and condition is False):
                self._run(element, base, output, depth)
            elif name == "foreach" and base is None:
                for each in self._iterate_values():
                    self._run(element, each, output, depth)
            elif name == "def":
                definition = _ValueCollector(self._steps)
                self._run(element, base, definition, depth)
                self._define(element.get("parameter"), definition)
            elif name == TEMPLATE:
                self.template(element, base, output, depth)
            elif name == "notfound":
                raise _NotFound
            elif name == "value" and (value := self._value(element, base)) is not None:
                output.add(value)

    def _iterate_values(self) -> Iterator[Value]:
        """Iterate over the base values of a `foreach`, with parameters set."""
        saved = {name: self._parameters.get(name) for name in _LOOP_PARAMETERS}
        for value in self._subject.values:
            self._steps.spend_characters(CHARACTERS_PER_STEP + len(value.data))
            texts = (str(value.index), value.type, _decode_text(value.data))
            self._parameters |= {name: (text,) for name, text in zip(_LOOP_PARAMETERS, texts, strict=True)}
            yield value
        for name, groups in saved.items():
            self._parameters.pop(name, None)
            if groups is not None:
                self._parameters[name] = groups

    def _define(self, parameter: str | None, definition: _ValueCollector) -> None:
        if parameter:
            data = definition.values[0].data if definition.values else b""
            self._steps.spend_characters(len(data))
            self._parameters[parameter] = (_decode_text(data),)

    # Tests

    def _test(self, element: Element) -> bool:
        name = element.get("value") or EXTENSION
        expected = element.get("expression")
        if expected is None:
            return False
        text = self._parameter(name)
        if element.get("test") == "matches":
            condition = self._matches(text, expected, element.get("parameter") or name)
        else:
            self._steps.spend_characters(len(text))
            condition = text == expected
        return condition != is_true(element.get("negate"))

    def _matches(self, text: str, expected: str, parameter: str) -> bool:
        compiled = self._expression(expected)
        if compiled is None:
            return False
        self._steps.spend_characters(compiled.cost(text) * CHARACTERS_PER_STEP // MATCH_COST_PER_STEP)
        groups = compiled.match(text)
        if groups is None:
            return False
        self._parameters[parameter] = groups
        return True

    def _expression(self, text: str) -> JavaRegex | None:
        """A regular expression, compiled once per name; None if it is invalid."""
        if text not in self._expressions:
            self._steps.spend(EXPRESSION_STEPS + len(text) // 10)
            try:
                compiled = compile_java_regex(text, ignore_case=self._subject.ignore_case)
            except InvalidData:
                self._steps.spend(INVALID_EXPRESSION_STEPS)
                self._expressions[text] = None
            else:
                self._steps.spend(compiled.size // STATES_PER_STEP)
                self._expressions[text] = compiled
        return self._expressions[text]

    # Values

    def _value(self, element: Element, base: Value | None) -> Value | None:
        """The value of an element; None if it is incomplete."""
        index, type_ = parse_index(element.get("index")), element.get("type")
        if base is None and type_ is None:
            return None
        # Charge for reading the content, even if it is only white space.
        self._steps.spend_characters(
            sum([len(child) if isinstance(child, str) else TOKEN_CHARACTERS for child in element.children])
        )
        data = get_data(element)
        if base is None:
            if type_ is None or data is None:
                return None
            return Value(1 if index is None else index, self._fill(type_), self._content(data).encode("utf-8"))
        return replace(
            base,
            index=base.index if index is None else index,
            type=base.type if type_ is None else self._fill(type_),
            data=base.data if data is None else self._content(data).encode("utf-8"),
        )

    def _content(self, data: "str | tuple[Element | str, ...]") -> str:
        """Data as text; parameters in XML are escaped."""
        if isinstance(data, str):
            return self._fill(data)
        text = _TextBuffer(self._steps)
        for child in data:
            self._write(child, text)
        return str(text).strip()

    def _write(self, child: Element | str, text: _TextBuffer) -> None:
        """Write an element with its content, or text."""
        from xml.sax.saxutils import escape, quoteattr  # noqa: PLC0415 - loads an HTTP client

        if isinstance(child, str):
            text.add(escape(self._fill(child, text.remaining)))
            return
        self._steps.spend_characters(FILL_CHARACTERS)
        text.add("<", child.name)
        for name, value in child.attributes:
            text.add(" ", name, "=", quoteattr(self._fill(value, text.remaining)))
        text.add(">")
        remaining = text.remaining
        for other in child.children:
            self._write(other, text)
        if text.remaining == remaining:
            text.replace_last("/>")  # it is empty
        else:
            text.add("</", child.name, ">")

    def _fill(self, text: str, limit: int = MAX_TEMPLATE_BYTES) -> str:
        """Fill parameters into a text of at most `limit` characters."""
        self._steps.spend_characters(FILL_CHARACTERS + len(text))
        buffer = _TextBuffer(self._steps, limit)
        end = 0
        for token in _TOKEN.finditer(text):
            self._steps.spend_characters(TOKEN_CHARACTERS)
            buffer.add(text[end : token.start()], self._expand(token))
            end = token.end()
        buffer.add(text[end:])
        return str(buffer)

    def _expand(self, token: "re.Match[str]") -> str:
        escaped, name, digits = token.groups()
        if escaped is not None:
            return str(escaped)
        if name is not None:
            return self._parameter(name)
        # `$12` is group 12 if it exists, otherwise group 1 followed by "2".
        groups = self._parameters[EXTENSION]
        used = 1
        while used < len(digits) and int(digits[: used + 1]) < len(groups):
            used += 1
        number = int(digits[:used])
        return (groups[number] if number < len(groups) else "") + str(digits[used:])

    def _parameter(self, name: str) -> str:
        """The text of a parameter, or of one of its groups."""
        groups = self._parameters.get(name)
        if groups is not None:
            return groups[0]
        match = _GROUP.fullmatch(name)
        groups = () if match is None else self._parameters.get(match[1], ())
        return groups[int(match[2])] if match is not None and int(match[2]) < len(groups) else ""


def _decode_text(data: bytes) -> str:
    """Decode data for a parameter; invalid UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def _length_error() -> TemplateBudgetExceeded:
    return TemplateBudgetExceeded(f"the template produces more than {MAX_TEMPLATE_BYTES:,} bytes")


MAX_TEMPLATE_EXPRESSIONS: Final = 64
"""Maximum number of different regular expressions in the templates of one value: compiling one takes up to a few
milliseconds."""

_ATTRIBUTES: Final = {
    TEMPLATE: ("delimiter", "ref"),
    "value": ("index", "type", "data"),
    "foreach": (),
    "if": ("value", "test", "expression", "negate", "parameter"),
    "else": (),
    "def": ("parameter",),
    "notfound": (),
}
_TESTS: Final = ("equals", "matches")
_BOOLEANS: Final = ("yes", "true", "1", "no", "false", "0")


def check_templates(namespace: Namespace) -> None:
    """Reject a namespace with an invalid template; stricter than evaluation. Raises `InvalidData`."""
    expressions: set[str] = set()
    for template in namespace.templates:
        _check_element(template, expressions, in_foreach=False, follows_if=False)


def _check_element(element: Element, expressions: set[str], *, in_foreach: bool, follows_if: bool) -> None:
    """Check an element and its content; `expressions` are those that are known to be valid."""
    known = _ATTRIBUTES.get(element.name)
    if known is None:
        raise _make_error(element, f"is unknown; use {', '.join(_ATTRIBUTES)}")
    for name, _ in element.attributes:
        if name not in known:
            raise _make_error(element, f"has the unknown attribute {name!a}")
    if element.name == "value":
        _check_value(element, in_foreach=in_foreach)
        return
    if element.name == "foreach" and in_foreach:
        raise _make_error(element, "cannot be nested")
    if element.name == "else" and not follows_if:
        raise _make_error(element, "has no <if> before it")
    _check_attributes(element, expressions)
    if element.text.strip():
        raise _make_error(element, "contains text, which has no effect")
    seen_if = False
    for child in element.elements():
        _check_element(child, expressions, in_foreach=in_foreach or element.name == "foreach", follows_if=seen_if)
        seen_if = seen_if or child.name == "if"


def _check_attributes(element: Element, expressions: set[str]) -> None:
    match element.name:
        case "if":
            _check_if(element, expressions)
        case "def" if not element.get("parameter"):
            raise _make_error(element, "has no parameter attribute")
        case "template" if element.get("ref") is not None:
            _check_reference(element)


def _check_value(element: Element, *, in_foreach: bool) -> None:
    index = element.get("index")
    if index is not None and parse_index(index) is None:
        raise _make_error(element, f"has an invalid index: {index[:20]!a}")
    missing = [name for name, part in (("type", element.get("type")), ("data", get_data(element))) if part is None]
    if missing and not in_foreach:
        raise _make_error(element, f"requires {' and '.join(missing)} outside <foreach>")


def _check_if(element: Element, expressions: set[str]) -> None:
    test, expected = element.get("test"), element.get("expression")
    if test is not None and test not in _TESTS:
        raise _make_error(element, f"has an invalid test: {test[:20]!a}; use equals or matches")
    if (negate := element.get("negate")) is not None and negate.strip().lower() not in _BOOLEANS:
        raise _make_error(element, f"has an invalid negate: {negate[:20]!a}; use yes or no")
    if expected is None:
        raise _make_error(element, "has no expression")
    if test == "matches" and expected not in expressions:
        if len(expressions) == MAX_TEMPLATE_EXPRESSIONS:
            raise _make_error(element, f"exceeds the maximum of {MAX_TEMPLATE_EXPRESSIONS} regular expressions")
        expressions.add(expected)
        try:
            compile_java_regex(expected)
        except InvalidData as problem:
            raise _make_error(element, f"has an invalid expression: {problem}") from None


def _check_reference(element: Element) -> None:
    reference = element.get("ref") or ""
    try:
        index = ValueRef.parse(reference.strip()).index
    except InvalidData as problem:
        raise _make_error(element, f"has an invalid reference: {problem}") from None
    if index == 0:
        raise _make_error(element, "has a reference without an index; write INDEX:HANDLE")
    if element.children:
        raise _make_error(element, "has both a reference and content; remove the content")


def _make_error(element: Element, reason: str) -> InvalidData:
    return InvalidData(f"in a template, <{element.name[:20]}> {reason}")

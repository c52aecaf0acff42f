"""Templates: the values of names that have no record, made from a base record by the XML of an HS_NAMESPACE value.

A name such as `12345/report@page=7` is cut at a delimiter into base and extension. The template says what becomes of
them:

    <template delimiter="@">
      <foreach>
        <if value="type" expression="URL"><value data="${data}?${extension}"/></if>
        <else><value/></else>
      </foreach>
    </template>

Elements, in the order of their writing:

- `value index type data` makes a value. Data may also be what stands in the element. Outside of `foreach` type and data
  are needed and the index is 1 unless it says otherwise; inside, what is missing is taken from the current base value.
  An index that is taken becomes the next free one.
- `foreach` repeats what is in it for each base value, with the parameters `index`, `type` and `data`; it is not nested.
- `if value test expression negate parameter` does what is in it if a parameter (`extension`) equals the expression, or
  with `test="matches"` if all of it matches the regular expression; what is captured goes to `parameter`. `else` does
  what is in it if the `if` before it did not.
- `def parameter` gives a parameter the data of the first value that is made in it, and makes no value.
- `notfound` ends everything: there is no such name.
- `template ref="index:handle"` stands for the template in that value.

In types and data `${name}` stands for a parameter, `${name[2]}` for the second captured group, `$2` for that of the
extension, a number of at most four digits; a backslash takes the meaning from the next character. `handle`, `base` and
`extension` are always there. A parameter keeps what it was given until it is given something else; one that nobody gave
anything is empty.

What a stranger's template may cost is bounded: values, bytes, steps, references. What cannot be used counts as if it
were not there: a regular expression that is refused matches nothing. `template_checks` says so before it is written.

What is wrong with a template, for whoever writes it.

A server takes templates as it finds them: what it cannot use counts as if it were not there. That is kind to records of
other servers and cruel to their authors, who would hear of a slip from their readers. So a template is checked when it
is written, more strictly than it is used.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from .errors import InvalidData
from .java_regex import JavaRegex, compile_java_regex
from .namespace import Namespace
from .value import Value, ValueRef
from .xml import Element, is_true, parse_xml

MAX_TEMPLATE_VALUES: Final = 2_048
"""The most values that are made: what deployed clients read in one response."""

MAX_TEMPLATE_BYTES: Final = 262_144
"""Bytes of all values together, and of any text on the way there: the longest message."""

MAX_TEMPLATE_STEPS: Final = 10_000
"""Work for one name: an element takes a step, and what is long or hard takes more; see `_Steps`. It lasts a fraction of
a second at worst."""

MAX_REFERENCE_DEPTH: Final = 10
"""How many references to other templates are followed from one to the next, as deployed servers do."""

CHARACTERS_PER_STEP: Final = 1_000
"""Characters of a text that is made or looked at for the price of a step. Many short ones cost what a long one does:
nothing is rounded down."""

FILL_CHARACTERS: Final = 200
"""What it costs to fill in a text, however short it is, in characters: it takes as long as copying so many."""

TOKEN_CHARACTERS: Final = 100
"""The same for each parameter or backslash in it."""

KEPT_REFERENCE_CHARACTERS: Final = 200
"""The same for each reference that a value keeps from the base."""

MATCH_COST_PER_STEP: Final = 1_000
"""How much matching has the price of a step: states of the expression times characters of the text."""

EXPRESSION_STEPS: Final = 20
"""What it costs to take a regular expression apart, beside a step for every ten characters."""

INVALID_EXPRESSION_STEPS: Final = 100
"""What it costs beyond that to find out that it cannot be used: it may have been written out to its limit first."""

STATES_PER_STEP: Final = 100
"""States that the engine makes of an expression for the price of a step."""

REFERENCE_STEPS: Final = 500
"""What it costs to look a template up: a record is read, and up to 64 KiB of XML."""

EXTENSION: Final = "extension"
TEMPLATE: Final = "template"
MAX_INDEX: Final = 0x7FFF_FFFF

_LOOP_PARAMETERS: Final = ("index", "type", "data")
# No expression has a thousand groups; Python refuses to read thousands of digits, with an error of its own.
_TOKEN: Final = re.compile(r"\\(.)|\$\{([^{}]*)\}|\$([0-9]{1,4})", re.DOTALL)
_GROUP: Final = re.compile(r"(.*)\[([0-9]{1,4})\]", re.DOTALL)
_INDEX: Final = re.compile(r"\s*([0-9]{1,10})\s*")

ValueLookup: TypeAlias = Callable[[ValueRef], bytes | None]
"""The data of a value that everybody may read; None if there is none."""


class TemplateBudgetExceeded(InvalidData):
    """A template makes more than may be made, or takes too long."""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The name that is asked for, taken apart."""

    handle: str
    """The name as it is asked for."""
    base: str
    """What is before the delimiter."""
    extension: str
    """What is behind it."""
    values: tuple[Value, ...] = ()
    """The values of the base, as far as templates may show them to everybody; none, if it has no record."""
    ignore_case: bool = True
    """Whether small and capital letters are one in the names of the namespace."""


def split_name(handle: str, prefix: str, delimiter: str) -> tuple[str, str] | None:
    """Base and extension of a name; None if the delimiter does not stand at the end of the prefix or behind it."""
    at = handle.find(delimiter, len(prefix)) if delimiter else -1
    return None if at < 0 else (handle[:at], handle[at + len(delimiter) :])


def evaluate(templates: tuple[Element, ...], subject: TemplateInput, lookup: ValueLookup) -> tuple[Value, ...] | None:
    """The values that templates make of a name, in their order; None if they say that there is no such name.

    Raises `TemplateTooCostly`.
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
    """An index as it is written; None if it is none that a value can have."""
    found = _INDEX.fullmatch(text or "")
    return int(found[1]) if found is not None and 0 < int(found[1]) <= MAX_INDEX else None


def get_data(element: Element) -> "str | tuple[Element | str, ...] | None":
    """What a `value` element says the data is: a text, or content with elements in it; None if it says nothing."""
    data = element.get("data")
    if data is not None:
        return data
    if element.elements():
        return element.children
    return element.text.strip() or None


class _NotFound(Exception):
    """There is no such name."""


class _StepBudget:
    """How much work is left, counted in characters, so that what costs less than a step is not lost."""

    def __init__(self) -> None:
        self._remaining = MAX_TEMPLATE_STEPS * CHARACTERS_PER_STEP

    def spend(self, steps: int) -> None:
        self.spend_characters(steps * CHARACTERS_PER_STEP)

    def spend_characters(self, characters: int) -> None:
        """Pay for a text before it is made or looked at."""
        self._remaining -= characters
        if self._remaining < 0:
            raise TemplateBudgetExceeded(f"the template takes more than {MAX_TEMPLATE_STEPS:,} steps")


class _ValueCollector:
    """Values that were made: of a whole template, or of a definition."""

    def __init__(self, steps: _StepBudget) -> None:
        self.values: list[Value] = []
        self._steps = steps
        self._size = 0
        self._next_indexes: dict[int, int] = {}  # from an index that is taken towards one that is free

    def add(self, value: Value) -> None:
        """Add a value, at the next free index if its own is taken."""
        if len(self.values) == MAX_TEMPLATE_VALUES:
            raise TemplateBudgetExceeded(f"the template makes more than {MAX_TEMPLATE_VALUES:,} values")
        self._steps.spend_characters(len(value.data) + KEPT_REFERENCE_CHARACTERS * len(value.references))
        size = len(value.to_bytes())
        self._steps.spend_characters(size)  # a reference may be long
        self._size += size
        if self._size > MAX_TEMPLATE_BYTES:
            raise _length_error()
        index = self._find_free_index(value.index)
        self._next_indexes[index] = index + 1 if index < MAX_INDEX else 1
        self.values.append(replace(value, index=index))

    def _find_free_index(self, index: int) -> int:
        """A thousand values may want the same index, so the way to a free one is made short for the next."""
        visited = []
        while index in self._next_indexes:
            visited.append(index)
            index = self._next_indexes[index]
        self._next_indexes.update(dict.fromkeys(visited, index))
        return index


class _TextBuffer:
    """A text on its way: it is paid for, and ends where it would be too long, before anything is put together."""

    def __init__(self, steps: _StepBudget, limit: int = MAX_TEMPLATE_BYTES) -> None:
        self._steps = steps
        self._parts: list[str] = []
        self.remaining = limit
        """How many characters may still be added."""

    def add(self, *parts: str) -> None:
        for part in filter(None, parts):
            self.remaining -= len(part)
            if self.remaining < 0:
                raise _length_error()
            self._steps.spend_characters(len(part))
            self._parts.append(part)

    def replace_last(self, part: str) -> None:
        """Write something else in place of the last part."""
        self.remaining += len(self._parts.pop())
        self.add(part)

    def __str__(self) -> str:
        return "".join(self._parts)


class _Evaluation:
    """What happens to one name."""

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
        """Each with the groups that were captured of it, behind the whole."""

    def template(self, element: Element, base: Value | None, output: _ValueCollector, depth: int) -> None:
        """Do what a template says, or the one that it refers to, `depth` references away from the first."""
        reference = element.get("ref")
        if reference is None:
            self._run(element, base, output, depth)
            return
        if depth >= MAX_REFERENCE_DEPTH:
            raise _NotFound
        for other in self._load_templates(reference):
            self.template(other, base, output, depth + 1)

    def _load_templates(self, reference: str) -> tuple[Element, ...]:
        """The templates in another value. What cannot be found or read makes that there is no such name."""
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
        """Do what the elements in another one say. One call for each level of the XML: they may be many."""
        condition: bool | None = None
        for element in parent.elements():
            # All attributes are paid for at once: several of them are taken apart, by this and that.
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
        """The rounds of a `foreach`: each base value, with its parameters."""
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
        found = compiled.match(text)
        if found is None:
            return False
        self._parameters[parameter] = found
        return True

    def _expression(self, text: str) -> JavaRegex | None:
        """A regular expression, taken apart once for a name; None if it cannot be used."""
        if text not in self._expressions:
            self._steps.spend(EXPRESSION_STEPS + len(text) // 10)
            try:
                found = compile_java_regex(text, ignore_case=self._subject.ignore_case)
            except InvalidData:
                self._steps.spend(INVALID_EXPRESSION_STEPS)
                self._expressions[text] = None
            else:
                self._steps.spend(found.size // STATES_PER_STEP)
                self._expressions[text] = found
        return self._expressions[text]

    # Values

    def _value(self, element: Element, base: Value | None) -> Value | None:
        """The value that an element makes; None if it does not say enough."""
        index, type_ = parse_index(element.get("index")), element.get("type")
        if base is None and type_ is None:
            return None
        # To see what is in the element costs something, also if that is nothing but space.
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
        """Data as text; XML in it stays XML, whatever parameters hold."""
        if isinstance(data, str):
            return self._fill(data)
        text = _TextBuffer(self._steps)
        for child in data:
            self._write(child, text)
        return str(text).strip()

    def _write(self, child: Element | str, text: _TextBuffer) -> None:
        """Write an element with everything in it, or a text between elements."""
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
            text.replace_last("/>")  # there is nothing in it
        else:
            text.add("</", child.name, ">")

    def _fill(self, text: str, limit: int = MAX_TEMPLATE_BYTES) -> str:
        """A text with parameters in the places where their names stand, of at most so many characters."""
        self._steps.spend_characters(FILL_CHARACTERS + len(text))
        buffer = _TextBuffer(self._steps, limit)
        at = 0
        for token in _TOKEN.finditer(text):
            self._steps.spend_characters(TOKEN_CHARACTERS)
            buffer.add(text[at : token.start()], self._meaning(token))
            at = token.end()
        buffer.add(text[at:])
        return str(buffer)

    def _meaning(self, token: "re.Match[str]") -> str:
        escaped, name, digits = token.groups()
        if escaped is not None:
            return str(escaped)
        if name is not None:
            return self._parameter(name)
        # Of `$12` it is the twelfth group if there are so many, and otherwise the first with a 2 behind it.
        groups = self._parameters[EXTENSION]
        used = 1
        while used < len(digits) and int(digits[: used + 1]) < len(groups):
            used += 1
        number = int(digits[:used])
        return (groups[number] if number < len(groups) else "") + str(digits[used:])

    def _parameter(self, name: str) -> str:
        """What a parameter is, or a group of it."""
        groups = self._parameters.get(name)
        if groups is not None:
            return groups[0]
        found = _GROUP.fullmatch(name)
        groups = () if found is None else self._parameters.get(found[1], ())
        return groups[int(found[2])] if found is not None and int(found[2]) < len(groups) else ""


def _decode_text(data: bytes) -> str:
    """Data as a parameter; what is no text becomes one in which the wrong bytes can be seen to be wrong."""
    return data.decode("utf-8", "replace")


def _length_error() -> TemplateBudgetExceeded:
    return TemplateBudgetExceeded(f"the template makes more than {MAX_TEMPLATE_BYTES:,} bytes")


MAX_TEMPLATE_EXPRESSIONS: Final = 64
"""Different regular expressions in the templates of one value: each is made ready to be checked, in a few milliseconds
at worst. Nobody waits for so many to be tried one after the other, for every name."""

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
    """Refuse a namespace with a template that cannot do what its author means; raises `InvalidData`."""
    expressions: set[str] = set()
    for template in namespace.templates:
        _check_element(template, expressions, in_foreach=False, follows_if=False)


def _check_element(element: Element, expressions: set[str], *, in_foreach: bool, follows_if: bool) -> None:
    """Look at an element and all in it; it stands in a `foreach`, or follows an `if`, or not.

    The expressions are those that were found good already.
    """
    known = _ATTRIBUTES.get(element.name)
    if known is None:
        raise _make_error(element, f"is none of {', '.join(_ATTRIBUTES)}")
    for name, _ in element.attributes:
        if name not in known:
            raise _make_error(element, f"has an attribute that means nothing there: {name!a}")
    if element.name == "value":
        _check_value(element, in_foreach=in_foreach)
        return
    if element.name == "foreach" and in_foreach:
        raise _make_error(element, "stands in another one")
    if element.name == "else" and not follows_if:
        raise _make_error(element, "has no <if> before it")
    _check_attributes(element, expressions)
    if element.text.strip():
        raise _make_error(element, "holds text, which says nothing there")
    seen_if = False
    for child in element.elements():
        _check_element(child, expressions, in_foreach=in_foreach or element.name == "foreach", follows_if=seen_if)
        seen_if = seen_if or child.name == "if"


def _check_attributes(element: Element, expressions: set[str]) -> None:
    match element.name:
        case "if":
            _check_if(element, expressions)
        case "def" if not element.get("parameter"):
            raise _make_error(element, "does not say which parameter it defines")
        case "template" if element.get("ref") is not None:
            _check_reference(element)


def _check_value(element: Element, *, in_foreach: bool) -> None:
    index = element.get("index")
    if index is not None and parse_index(index) is None:
        raise _make_error(element, f"has an index that is none: {index[:20]!a}")
    missing = [name for name, found in (("type", element.get("type")), ("data", get_data(element))) if found is None]
    if missing and not in_foreach:
        raise _make_error(element, f"needs {' and '.join(missing)}, as it stands in no <foreach>")


def _check_if(element: Element, expressions: set[str]) -> None:
    test, expected = element.get("test"), element.get("expression")
    if test is not None and test not in _TESTS:
        raise _make_error(element, f"has a test that is neither equals nor matches: {test[:20]!a}")
    if (negate := element.get("negate")) is not None and negate.strip().lower() not in _BOOLEANS:
        raise _make_error(element, f"has a negate that is neither yes nor no: {negate[:20]!a}")
    if expected is None:
        raise _make_error(element, "has no expression")
    if test == "matches" and expected not in expressions:
        if len(expressions) == MAX_TEMPLATE_EXPRESSIONS:
            raise _make_error(element, f"has one regular expression too many; {MAX_TEMPLATE_EXPRESSIONS} are the most")
        expressions.add(expected)
        try:
            compile_java_regex(expected)
        except InvalidData as problem:
            raise _make_error(element, f"cannot be used: {problem}") from None


def _check_reference(element: Element) -> None:
    reference = element.get("ref") or ""
    try:
        index = ValueRef.parse(reference.strip()).index
    except InvalidData as problem:
        raise _make_error(element, f"has a reference that cannot be used: {problem}") from None
    if index == 0:
        raise _make_error(element, "has a reference without an index: it is written INDEX:HANDLE")
    if element.children:
        raise _make_error(element, "refers to another one and has content of its own, which would not count")


def _make_error(element: Element, reason: str) -> InvalidData:
    return InvalidData(f"in a template, <{element.name[:20]}> {reason}")

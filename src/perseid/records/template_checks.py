"""What is wrong with a template, for whoever writes it.

A server takes templates as it finds them: what it cannot use counts as if it were not there. That is kind to records of
other servers and cruel to their authors, who would hear of a slip from their readers. So a template is checked when it
is written, more strictly than it is used.
"""

from typing import Final

from .errors import InvalidData
from .java_regex import expression
from .namespace import Namespace
from .templates import TEMPLATE, data_of, read_index
from .value import ValueRef
from .xml import Element

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
        _check(template, expressions, repeats=False, follows_if=False)


def _check(element: Element, expressions: set[str], *, repeats: bool, follows_if: bool) -> None:
    """Look at an element and all in it; it stands in a `foreach`, or follows an `if`, or not.

    The expressions are those that were found good already.
    """
    known = _ATTRIBUTES.get(element.name)
    if known is None:
        raise _wrong(element, f"is none of {', '.join(_ATTRIBUTES)}")
    for name, _ in element.attributes:
        if name not in known:
            raise _wrong(element, f"has an attribute that means nothing there: {name!a}")
    if element.name == "value":
        _check_value(element, repeats=repeats)
        return
    if element.name == "foreach" and repeats:
        raise _wrong(element, "stands in another one")
    if element.name == "else" and not follows_if:
        raise _wrong(element, "has no <if> before it")
    _check_attributes(element, expressions)
    if element.text.strip():
        raise _wrong(element, "holds text, which says nothing there")
    seen_if = False
    for child in element.elements():
        _check(child, expressions, repeats=repeats or element.name == "foreach", follows_if=seen_if)
        seen_if = seen_if or child.name == "if"


def _check_attributes(element: Element, expressions: set[str]) -> None:
    match element.name:
        case "if":
            _check_if(element, expressions)
        case "def" if not element.get("parameter"):
            raise _wrong(element, "does not say which parameter it defines")
        case "template" if element.get("ref") is not None:
            _check_reference(element)


def _check_value(element: Element, *, repeats: bool) -> None:
    index = element.get("index")
    if index is not None and read_index(index) is None:
        raise _wrong(element, f"has an index that is none: {index[:20]!a}")
    missing = [name for name, found in (("type", element.get("type")), ("data", data_of(element))) if found is None]
    if missing and not repeats:
        raise _wrong(element, f"needs {' and '.join(missing)}, as it stands in no <foreach>")


def _check_if(element: Element, expressions: set[str]) -> None:
    test, expected = element.get("test"), element.get("expression")
    if test is not None and test not in _TESTS:
        raise _wrong(element, f"has a test that is neither equals nor matches: {test[:20]!a}")
    if (negate := element.get("negate")) is not None and negate.strip().lower() not in _BOOLEANS:
        raise _wrong(element, f"has a negate that is neither yes nor no: {negate[:20]!a}")
    if expected is None:
        raise _wrong(element, "has no expression")
    if test == "matches" and expected not in expressions:
        if len(expressions) == MAX_TEMPLATE_EXPRESSIONS:
            raise _wrong(element, f"has one regular expression too many; {MAX_TEMPLATE_EXPRESSIONS} are the most")
        expressions.add(expected)
        try:
            expression(expected)
        except InvalidData as problem:
            raise _wrong(element, f"cannot be used: {problem}") from None


def _check_reference(element: Element) -> None:
    reference = element.get("ref") or ""
    try:
        index = ValueRef.parse(reference.strip()).index
    except InvalidData as problem:
        raise _wrong(element, f"has a reference that cannot be used: {problem}") from None
    if index == 0:
        raise _wrong(element, "has a reference without an index: it is written INDEX:HANDLE")
    if element.children:
        raise _wrong(element, "refers to another one and has content of its own, which would not count")


def _wrong(element: Element, why: str) -> InvalidData:
    return InvalidData(f"in a template, <{element.name[:20]}> {why}")

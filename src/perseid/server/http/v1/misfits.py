"""What does not fit in a request, in words for people: what is allowed there, where it stands, and what to do about it.

The decoder says what it expected in terms of its own types. Here that becomes a sentence, with the place down to the
member that is missing or unknown; and what the description of the API says about that member becomes the advice.

What it says holds names and words of strangers, as they wrote them and at any length: they are shown and cut, and
nothing is made of them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perseid.names.errors import MAX_QUOTED, quoted
from perseid.registry.access.permissions import shown

MAX_WHERE: Final = 400
"""Characters of a path. Those of members that are described here are shorter; another one is of a stranger's making."""

_AT: Final = " - at `"
_WHERE: Final = re.compile(r"\$(?:\.\w+|\[(?:[0-9]+|\.\.\.)\])*", re.ASCII)
_MISSING: Final = re.compile(r"(?s)Object missing required field `(.*)`")
_UNKNOWN: Final = re.compile(r"(?s)Object contains unknown field `(.*)`")
_NOT_ALLOWED: Final = re.compile(r"(?s)Invalid (enum )?value (.*)")
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")
_BOUND: Final = re.compile(r"Expected `([^`]*)` (of length )?([<>]=?) ([0-9.-]+)")
_PATTERN: Final = re.compile(r"(?s)Expected `str` matching regex (.*)")
_STEP: Final = re.compile(r"\.(\w+)|\[[^\[\]]*\]")
_ESCAPED: Final = re.compile(r"(?:\\(?:x..|u.{4}|U.{8}|.)|[^\\])" + f"{{0,{MAX_QUOTED}}}")
_PLURAL: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_BOUNDS: Final = {">=": "{} at least", "<=": "{} at most", ">": "more than {}", "<": "less than {}"}


@dataclass(frozen=True, slots=True)
class Misfit:
    """What does not fit."""

    problem: str
    """What is wrong with what stands there, as the end of a sentence."""
    where: str
    """The path in the JSON: `$.values[0].index`."""
    advice: str


@dataclass(frozen=True, slots=True)
class _Member:
    """A place in a type."""

    type: inspect.Type
    about: str = ""
    """What the description says of it."""


def misfit(problem: msgspec.ValidationError, type_: Any, body: bytes = b"") -> Misfit:
    """What the decoder's objection to something of a type means; with the `body` that it is in, more can be said."""
    said, where = _split(str(problem))
    member = _at(type_, where)
    if missing := _MISSING.fullmatch(said):
        where = f"{where}.{missing[1]}"
        return Misfit("is missing", where, _about(_at(type_, where)) or _allowed(None, type_, where))
    if unknown := _UNKNOWN.fullmatch(said):
        return Misfit("is not known", f"{where}.{shown(unknown[1])}", _there_are(member, body if where == "$" else b""))
    if wrong := _NOT_ALLOWED.fullmatch(said):
        word = _escaped(wrong[2]) if wrong[1] else _raw(wrong[2])
        return Misfit(f"is {word}, which is not allowed there", where, _allowed(member, type_, where))
    return Misfit(_sentence(said), where, _about(member))


def _split(said: str) -> tuple[str, str]:
    """What the decoder says, and the path at its end; a stranger's words before that may hold anything."""
    rest, _, path = said.rpartition(_AT)
    where = path.removesuffix("`")
    if rest and len(where) <= MAX_WHERE and where != path and _WHERE.fullmatch(where):
        return rest, where
    return said, "$"


def _sentence(said: str) -> str:
    """What something should be, and what it is."""
    if found := _BOUND.fullmatch(said):
        kind, is_length, relation, number = found.groups()
        many = f"{int(number):,}" if number.isdecimal() else number
        unit = "" if not is_length else " characters" if kind == "str" else " items"
        return f"should {'have' if is_length else 'be'} {_BOUNDS[relation].format(many + unit)}"
    if found := _PATTERN.fullmatch(said):
        return f"should match the pattern {found[1]}"
    if found := _EXPECTED.fullmatch(said):
        wanted = f"should be {_kinds(found[1])}"
        return f"{wanted}, and is {_kinds(found[2])}" if found[2] else wanted
    return f"does not fit: {said[:1].lower()}{said[1:]}"


def _kinds(said: str) -> str:
    """Types of JSON, as people call them."""
    return " or ".join([_KINDS.get(kind, kind) for kind in said.split(" | ")])


def _raw(said: str) -> str:
    """What somebody wrote: a text that the decoder has put in quotes as it is, or a number."""
    if len(said) > 1 and said[0] == said[-1] and said[0] in "'\"":
        return quoted(said[1:-1])
    return said[:MAX_QUOTED]


def _escaped(said: str) -> str:
    """The same where the decoder has escaped the text as `quoted` does, and cuts nothing: cut between characters."""
    if len(said) <= MAX_QUOTED or said[0] not in "'\"":
        return said[:MAX_QUOTED]
    inner = said[1:-1]
    found = _ESCAPED.match(inner)
    kept = "" if found is None else found[0]
    return said if kept == inner else f"{said[0]}{kept}…{said[0]}"


# What the description says


def _about(member: _Member | None) -> str:
    if member is None:
        return ""
    choices = _choices(member.type)
    allowed = f"write one of {', '.join(choices)}" if choices else ""
    return "; ".join(filter(None, [allowed, f"what belongs there: {member.about}" if member.about else ""]))


def _there_are(member: _Member | None, body: bytes) -> str:
    """Which members an object has; of several sorts of objects, that of the sort which the body says that it is."""
    structures = [] if member is None else _structures(member.type)
    if body and len(structures) > 1:
        tag = _tag(body, str(structures[0].tag_field))
        structures = [each for each in structures if each.tag == tag] or structures
    names = [name for each in structures for name in (each.tag_field, *[field.encode_name for field in each.fields])]
    return f"there are {', '.join(dict.fromkeys(filter(None, names)))}" if any(names) else "there are none here"


def _tag(body: bytes, name: str) -> str | None:
    """What an object says that it is, by one of its members; the others are passed over."""
    try:
        found = msgspec.json.decode(body, type=_tagged(name))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # what stands behind that place may be anything
    return str(getattr(found, name))


@cache
def _tagged(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Tagged", [(name, str)])


def _allowed(member: _Member | None, type_: Any, where: str) -> str:
    """What may stand in a place that takes some words only."""
    choices = () if member is None else _choices(member.type)
    if not choices:  # the member by which structures are told apart
        parent, _, name = where.rpartition(".")
        whole = _at(type_, parent)
        structures = [] if whole is None else _structures(whole.type)
        choices = tuple([str(each.tag) for each in structures if each.tag_field == name])
    return f"write one of {', '.join(choices)}" if choices else ""


def _choices(type_: inspect.Type) -> Sequence[str]:
    for each in _alternatives(type_):
        if isinstance(each, inspect.EnumType):
            return [str(item.value) for item in each.cls]
        if isinstance(each, inspect.LiteralType):
            return [str(value) for value in each.values]
    return ()


def _at(type_: Any, where: str) -> _Member | None:
    """The member that a path leads to; None where the type says nothing about it."""
    found: _Member | None = _Member(_type(type_))
    for name in _STEP.findall(where.removeprefix("$")):
        if found is None:
            return None
        found = _below(found, name)
    return found


def _below(member: _Member, name: str) -> _Member | None:
    if name:
        said = next((type_ for key, type_ in _members(member.type) if key == name), None)
        return None if said is None else _Member(said, _description(said))
    for each in _alternatives(member.type):
        if isinstance(each, _PLURAL):
            return _Member(each.item_type, _description(each.item_type) or member.about)
        if isinstance(each, inspect.DictType):
            return _Member(each.value_type, _description(each.value_type) or member.about)
    return None


def _members(type_: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
    for structure in _structures(type_):
        for field in structure.fields:
            yield field.encode_name, field.type


def _structures(type_: inspect.Type) -> list[inspect.StructType]:
    return [each for each in _alternatives(type_) if isinstance(each, inspect.StructType)]


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    """What a type may be, without what is said about it."""
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _alternatives(each)
    else:
        yield type_


def _description(type_: inspect.Type) -> str:
    """What is said about a type, the outermost first."""
    while isinstance(type_, inspect.Metadata):
        if said := (type_.extra_json_schema or {}).get("description"):
            return str(said)
        type_ = type_.type
    return ""


@cache
def _type(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)

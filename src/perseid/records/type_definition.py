"""PERSEID_TYPE: the definition of a type, in the record of the handle that is the type (A6).

    {"name": "ORCID iD", "description": "Who wrote it.", "pattern": "[0-9]{4}(-[0-9]{4}){2}-[0-9]{3}[0-9X]",
     "example": "0000-0002-1825-0097"}

The text is kept as it is; the rest is read from it. What data of the type looks like is said by `pattern`, a regular
expression that the whole text matches, or by `schema`, a JSON Schema that the data keeps as JSON, or not at all. A
definition can be read whatever they hold: whoever writes one asks `check`, and data that is met with an expression or
schema that cannot be used is not of the type. docs/reference/types.md says more.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from .errors import InvalidData
from .json_parsing import JsonObject, parse_json, require_member, require_object, require_text, write_json
from .json_schema import MAX_CHECKED_BYTES, Violation, compile_schema
from .patterns import BudgetExceeded, ValidationBudget, compile_pattern
from .text_types import Text

MAX_DEFINITION_BYTES: Final = 32_768
"""The longest definition: twice the longest schema."""

MAX_TYPE_NAME_LENGTH: Final = 200
"""The longest name of a type, in characters: a line."""


@dataclass(frozen=True, slots=True)
class Definition(Text):
    """What a type is: its name, what its values mean, what their data looks like."""

    name: str = field(init=False, compare=False)
    """What people call the type."""
    description: str = field(init=False, compare=False)
    """What values of the type mean."""
    pattern: str | None = field(init=False, compare=False)
    """A regular expression that the whole data matches, as text."""
    schema: str | None = field(init=False, compare=False)
    """A JSON Schema, as JSON text, that the data keeps, as JSON."""
    example: str | None = field(init=False, compare=False)
    """Data of the type."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        data = self.to_bytes()
        if len(data) > MAX_DEFINITION_BYTES:
            message = f"{len(data):,} bytes are too many for a definition; {MAX_DEFINITION_BYTES:,} are the most"
            raise InvalidData(message)
        members = require_object(parse_json(data), "the definition of a type")
        name = require_text(require_member(members, "name", "the definition"), "the name of the type")
        if not 0 < len(name.strip()) <= len(name) <= MAX_TYPE_NAME_LENGTH:
            raise InvalidData(f"the name of the type is empty, or has more than {MAX_TYPE_NAME_LENGTH} characters")
        if "pattern" in members and "schema" in members:
            raise InvalidData("the definition has a pattern and a schema; say in one way what the data looks like")
        schema = members.get("schema")
        for key, found in (
            ("name", name),
            ("description", require_text(require_member(members, "description", "the definition"), "the description")),
            ("pattern", _optional_text(members, "pattern")),
            ("schema", None if "schema" not in members else write_json(schema)),
            ("example", _optional_text(members, "example")),
        ):
            object.__setattr__(self, key, found)

    @classmethod
    def make(
        cls,
        name: str,
        description: str,
        *,
        pattern: str | None = None,
        schema: object = None,
        example: str | None = None,
    ) -> Self:
        """A definition with these parts; a schema is a plain object."""
        parts: JsonObject = {"name": name, "description": description, "pattern": pattern, "schema": schema}
        parts["example"] = example
        return cls(write_json({part: value for part, value in parts.items() if value is not None}))

    @property
    def syntax(self) -> str | None:
        """What the data looks like, for people; None if nothing is said about it."""
        if self.pattern is not None:
            return f"text that matches {self.pattern}"
        return None if self.schema is None else f"JSON that keeps {self.schema}"

    def check(self) -> None:
        """Refuse a definition that could not be used: its syntax cannot be applied, or its own example fails it."""
        if self.pattern is not None:
            compile_pattern(self.pattern)
        if self.schema is not None:
            compile_schema(self.schema)
        if (
            self.example is not None
            and (found := self.violation(self.example.encode("utf-8"), ValidationBudget())) is not None
        ):
            raise InvalidData(f"the example of the type is not of the type: {found}")

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """What is wrong with data of the type; None if nothing is, or if nothing is said about it."""
        try:
            if self.pattern is not None:
                return self._check_pattern(self.pattern, data, budget)
            return None if self.schema is None else self._check_schema(self.schema, data, budget)
        except InvalidData as problem:
            return Violation("", problem=str(problem))

    def _check_pattern(self, pattern: str, data: bytes, budget: ValidationBudget) -> Violation | None:
        if len(data) > MAX_CHECKED_BYTES:
            raise BudgetExceeded(f"{len(data):,} bytes are too many to be checked; {MAX_CHECKED_BYTES:,} are the most")
        text = Text.from_bytes(data).text
        matcher = compile_pattern(pattern)
        budget.prepare(pattern, matcher.cost)
        return None if matcher.matches(text, budget) else Violation(f'"pattern": {write_json(pattern)}')

    def _check_schema(self, text: str, data: bytes, budget: ValidationBudget) -> Violation | None:
        schema = compile_schema(text)
        budget.prepare(text, schema.cost)
        return schema.violation(data, budget)


def _optional_text(members: JsonObject, name: str) -> str | None:
    return require_text(members[name], f"the {name} of the type") if name in members else None

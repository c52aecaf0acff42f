"""PERSEID_TYPE: the definition of a type, in the record of its handle (A6).

    {"name": "ORCID iD", "description": "Who wrote it.", "pattern": "[0-9]{4}(-[0-9]{4}){2}-[0-9]{3}[0-9X]",
     "example": "0000-0002-1825-0097"}

The syntax of the data is given by `pattern`, a regular expression for the whole text, or by `schema`, a JSON Schema, or
not at all. A definition with an invalid pattern or schema can be read, but no data is valid for it; `check` validates
new definitions. See docs/reference/types.md.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from .errors import InvalidData
from .json_parsing import JsonObject, parse_json, require_member, require_object, require_text, write_json
from .json_schema import MAX_CHECKED_BYTES, Violation, compile_schema
from .patterns import BudgetExceeded, ValidationBudget, compile_pattern
from .text_types import Text

MAX_DEFINITION_BYTES: Final = 32_768
"""Maximum size of a definition: twice the longest schema."""

MAX_TYPE_NAME_LENGTH: Final = 200
"""Maximum length of the name of a type, in characters."""


@dataclass(frozen=True, slots=True)
class Definition(Text):
    """The definition of a type, parsed from its JSON text."""

    name: str = field(init=False, compare=False)
    """Display name."""
    description: str = field(init=False, compare=False)
    """Meaning of the values."""
    pattern: str | None = field(init=False, compare=False)
    """A regular expression that the whole data must match."""
    schema: str | None = field(init=False, compare=False)
    """A JSON Schema for the data, as JSON text."""
    example: str | None = field(init=False, compare=False)
    """Valid data of the type."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        data = self.to_bytes()
        if len(data) > MAX_DEFINITION_BYTES:
            message = f"the definition has {len(data):,} bytes; the maximum is {MAX_DEFINITION_BYTES:,}"
            raise InvalidData(message)
        members = require_object(parse_json(data), "the definition of a type")
        name = require_text(require_member(members, "name", "the definition"), "the name of the type")
        if not 0 < len(name.strip()) <= len(name) <= MAX_TYPE_NAME_LENGTH:
            raise InvalidData(f"the name of the type must have 1 to {MAX_TYPE_NAME_LENGTH} characters")
        if "pattern" in members and "schema" in members:
            raise InvalidData("the definition has both a pattern and a schema; use only one")
        schema = members.get("schema")
        for key, value in (
            ("name", name),
            ("description", require_text(require_member(members, "description", "the definition"), "the description")),
            ("pattern", _optional_text(members, "pattern")),
            ("schema", None if "schema" not in members else write_json(schema)),
            ("example", _optional_text(members, "example")),
        ):
            object.__setattr__(self, key, value)

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
        """Create a definition; the schema is decoded JSON."""
        parts: JsonObject = {"name": name, "description": description, "pattern": pattern, "schema": schema}
        parts["example"] = example
        return cls(write_json({part: value for part, value in parts.items() if value is not None}))

    @property
    def syntax(self) -> str | None:
        """Description of the syntax of the data; None if there is none."""
        if self.pattern is not None:
            return f"text that matches {self.pattern}"
        return None if self.schema is None else f"JSON that is valid for {self.schema}"

    def check(self) -> None:
        """Reject a definition with an invalid pattern, schema or example."""
        if self.pattern is not None:
            compile_pattern(self.pattern)
        if self.schema is not None:
            compile_schema(self.schema)
        if (
            self.example is not None
            and (violation := self.violation(self.example.encode("utf-8"), ValidationBudget())) is not None
        ):
            raise InvalidData(f"the example is not valid for the type: {violation}")

    def violation(self, data: bytes, budget: ValidationBudget) -> Violation | None:
        """Validate data of the type; None if it is valid or there is no syntax."""
        try:
            if self.pattern is not None:
                return self._check_pattern(self.pattern, data, budget)
            return None if self.schema is None else self._check_schema(self.schema, data, budget)
        except InvalidData as problem:
            return Violation("", problem=str(problem))

    def _check_pattern(self, pattern: str, data: bytes, budget: ValidationBudget) -> Violation | None:
        if len(data) > MAX_CHECKED_BYTES:
            message = f"the data has {len(data):,} bytes; the maximum for validation is {MAX_CHECKED_BYTES:,}"
            raise BudgetExceeded(message)
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

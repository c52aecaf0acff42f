"""HS_NAMESPACE: what holds for all handles of a prefix, as XML.

The root element's name is free. In it stand, in any order: `status` (`active`, which is the default, or
`inactive`), `statusmsg`, `contact`, `locs` (a handle with further locations) and `template`, which makes values
for names that have no record. Templates are kept as parsed elements; what they do is the registry's affair.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from .errors import InvalidData
from .text_types import Text
from .types import HS_NAMESPACE, has_type
from .value import Value
from .xml import Element, is_true, parse_xml


class NamespaceStatus(Enum):
    """Whether a namespace is in use."""

    ACTIVE = "active"
    INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class NamespaceLocations:
    """A handle that holds locations for every handle of the namespace."""

    handle: str
    """The name, as it is written."""
    without_parents: bool = False
    """`no_nslocs`: the locations of parent namespaces do not count."""


@dataclass(frozen=True, slots=True)
class Namespace(Text):
    """The properties of a namespace. The text is kept as it is; the rest is read from it."""

    root: Element = field(init=False, repr=False, compare=False)
    """The whole document."""
    templates: tuple[Element, ...] = field(init=False, repr=False, compare=False)
    """The `template` elements."""
    status: NamespaceStatus = field(init=False, compare=False)
    """Whether the namespace is in use."""
    status_message: str | None = field(init=False, compare=False)
    """What to tell people when it is not."""
    contact: str | None = field(init=False, compare=False)
    """Whom to ask."""
    locations: tuple[NamespaceLocations, ...] = field(init=False, compare=False)
    """Where further locations are."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        root = parse_xml(self.to_bytes())
        inactive = (_first_text(root, "status") or "").lower() == NamespaceStatus.INACTIVE.value
        locations = [
            NamespaceLocations(element.text.strip(), is_true(element.get("no_nslocs")))
            for element in root.elements("locs")
        ]
        for name, found in (
            ("root", root),
            ("templates", root.elements("template")),
            ("status", NamespaceStatus.INACTIVE if inactive else NamespaceStatus.ACTIVE),
            ("status_message", _first_text(root, "statusmsg")),
            ("contact", _first_text(root, "contact")),
            ("locations", tuple(locations)),
        ):
            object.__setattr__(self, name, found)

    @property
    def delimiter(self) -> str | None:
        """What separates a base name from its extension, if a template says so."""
        return next((found for template in self.templates if (found := template.get("delimiter"))), None)


def find_namespace(values: Iterable[Value]) -> Namespace | None:
    """The namespace that a record describes: the one with the lowest index; what does not parse is not there."""
    candidates = [value for value in values if has_type(value.type, HS_NAMESPACE)]
    for value in sorted(candidates, key=lambda value: value.index):
        try:
            return Namespace.from_bytes(value.data)
        except InvalidData:
            continue
    return None


def _first_text(root: Element, name: str) -> str | None:
    return next((element.text.strip() for element in root.elements(name)), None)

"""HS_NAMESPACE: properties of all handles of a prefix, as XML.

The name of the root element does not matter. It contains, in any order: `status` (`active`, the default, or
`inactive`), `statusmsg`, `contact`, `locs` (a handle with more locations) and `template`, which produces values for
names without a record; see `templates`.
"""

from dataclasses import dataclass, field
from enum import Enum

from .types import Text
from .xml import Element, is_true, parse_xml


class NamespaceStatus(Enum):
    """Whether a namespace is in use."""

    ACTIVE = "active"
    INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class NamespaceLocations:
    """A handle with locations for every handle of the namespace."""

    handle: str
    """The handle, as written."""
    without_parents: bool = False
    """`no_nslocs`: ignore the locations of parent namespaces."""


@dataclass(frozen=True, slots=True)
class Namespace(Text):
    """The properties of a namespace, parsed from its XML text."""

    root: Element = field(init=False, repr=False, compare=False)
    """The whole document."""
    templates: tuple[Element, ...] = field(init=False, repr=False, compare=False)
    """The `template` elements."""
    status: NamespaceStatus = field(init=False, compare=False)
    status_message: str | None = field(init=False, compare=False)
    """Message to show if the namespace is inactive."""
    contact: str | None = field(init=False, compare=False)
    locations: tuple[NamespaceLocations, ...] = field(init=False, compare=False)
    """Handles with more locations."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        root = parse_xml(self.to_bytes())
        inactive = (_first_text(root, "status") or "").lower() == NamespaceStatus.INACTIVE.value
        locations = [
            NamespaceLocations(element.text.strip(), is_true(element.get("no_nslocs")))
            for element in root.elements("locs")
        ]
        for name, value in (
            ("root", root),
            ("templates", root.elements("template")),
            ("status", NamespaceStatus.INACTIVE if inactive else NamespaceStatus.ACTIVE),
            ("status_message", _first_text(root, "statusmsg")),
            ("contact", _first_text(root, "contact")),
            ("locations", tuple(locations)),
        ):
            object.__setattr__(self, name, value)

    @property
    def delimiter(self) -> str | None:
        """The delimiter between a base name and its extension, if a template has one."""
        return next((value for template in self.templates if (value := template.get("delimiter"))), None)


def _first_text(root: Element, name: str) -> str | None:
    return next((element.text.strip() for element in root.elements(name)), None)

"""Parser for untrusted XML, with limits that are checked while parsing.

A document with a DOCTYPE is rejected, which rules out expanding and external entities. It is UTF-8, whatever it
declares. Namespaces are not interpreted, as in deployed software: `x:location` is a name like any other. Comments and
processing instructions are dropped.
"""

from dataclasses import dataclass
from typing import Final

from .errors import InvalidData

MAX_XML_BYTES: Final = 65_536
"""Maximum size of a document: a quarter of the longest message. Location lists have up to a few thousand bytes."""

MAX_XML_DEPTH: Final = 32
"""Maximum nesting of elements. A list of locations needs two levels, a template rarely ten."""

MAX_XML_ELEMENTS: Final = 1_000
"""Maximum number of elements: a choice between more locations takes too long for a request."""

MAX_XML_ATTRIBUTES: Final = 64
"""Maximum number of attributes of an element. About thirty are known for a location."""

MAX_XML_ATTRIBUTE_LENGTH: Final = 8_192
"""Maximum length of an attribute in characters: the longest URL that common web servers accept."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element with its content."""

    name: str
    """As written, with its prefix."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Names and values in document order."""
    children: "tuple[Element | str, ...]" = ()
    """Elements and the text between them, in order; no two adjacent items are text."""

    def get(self, name: str) -> str | None:
        """The value of an attribute, or None."""
        return next((value for key, value in self.attributes if key == name), None)

    def elements(self, *names: str) -> "tuple[Element, ...]":
        """Child elements; with `names`, only those."""
        return tuple(
            [child for child in self.children if isinstance(child, Element) and (not names or child.name in names)]
        )

    @property
    def text(self) -> str:
        """The text directly in this element."""
        return "".join([child for child in self.children if isinstance(child, str)])


def parse_xml(data: bytes) -> Element:
    """Parse a document and return its root element."""
    if len(data) > MAX_XML_BYTES:
        raise InvalidData(f"the XML has {len(data):,} bytes; the maximum is {MAX_XML_BYTES:,}")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidData("the XML is not valid UTF-8", error.start) from None
    from .xml_builder import build  # noqa: PLC0415 - takes 20 ms, and most records have no XML

    return build(data)


def is_true(text: str | None) -> bool:
    """Whether an attribute is `yes`, `true` or `1`."""
    return text is not None and text.strip().lower() in ("yes", "true", "1")

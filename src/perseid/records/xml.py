"""Parser for untrusted XML, with limits that are checked while parsing.

A document with a DOCTYPE is rejected, which rules out expanding and external entities. It is UTF-8, whatever it
declares. Namespaces are not interpreted, as in deployed software: `x:location` is a name like any other. Comments and
processing instructions are dropped.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Final
from xml.sax import SAXException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource

from defusedxml.common import DefusedXmlException
from defusedxml.expatreader import DefusedExpatParser

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
    builder = _Builder()
    parser = DefusedExpatParser(forbid_dtd=True)
    parser.setContentHandler(builder)
    source = InputSource()
    source.setByteStream(BytesIO(data))
    source.setEncoding("utf-8")
    try:
        parser.parse(source)
    except DefusedXmlException:
        raise InvalidData("the XML has a DOCTYPE, which is not allowed") from None
    except SAXException as error:
        raise InvalidData(f"invalid XML: {error.getMessage()}") from None
    return builder.root


def is_true(text: str | None) -> bool:
    """Whether an attribute is `yes`, `true` or `1`."""
    return text is not None and text.strip().lower() in ("yes", "true", "1")


class _Builder(ContentHandler):
    """Builds elements from the inside out: an element is created when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, tuple[tuple[str, str], ...], list[Element | str]]] = []
        self._count = 0
        self.root = Element("")  # replaced at the end of the document

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802 - named by the library
        self._count += 1
        if self._count > MAX_XML_ELEMENTS:
            raise InvalidData(f"the XML has more than {MAX_XML_ELEMENTS:,} elements")
        if len(self._open) >= MAX_XML_DEPTH:
            raise InvalidData(f"the XML is nested more than {MAX_XML_DEPTH} levels deep")
        attributes = tuple(attrs.items())
        if len(attributes) > MAX_XML_ATTRIBUTES:
            raise InvalidData(f"an XML element has more than {MAX_XML_ATTRIBUTES} attributes")
        if any(len(value) > MAX_XML_ATTRIBUTE_LENGTH for _, value in attributes):
            raise InvalidData(f"an XML attribute has more than {MAX_XML_ATTRIBUTE_LENGTH:,} characters")
        self._open.append((name, attributes, []))

    def endElement(self, _name: str) -> None:  # noqa: N802
        name, attributes, children = self._open.pop()
        element = Element(name, attributes, tuple(children))
        if self._open:
            self._open[-1][2].append(element)
        else:
            self.root = element

    def characters(self, content: str) -> None:
        children = self._open[-1][2]
        if children and isinstance(children[-1], str):
            children[-1] += content
        else:
            children.append(content)

"""XML of strangers: parsed within narrow bounds into frozen elements, or refused.

A document is refused for any DOCTYPE, whether or not it declares entities: that rules out expanding and external
entities together. It is UTF-8, whatever it declares. Namespaces are not interpreted: `x:location` is a name like
any other, as in deployed software. Comments and processing instructions are dropped.

Every bound is checked while parsing, before memory is spent on what exceeds it.
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
"""The longest document. A quarter of the longest message; the largest location lists in use have a few thousand."""

MAX_XML_DEPTH: Final = 32
"""How deeply elements may stand in each other. A list of locations needs two, a template rarely ten."""

MAX_XML_ELEMENTS: Final = 1_000
"""The most elements. More locations than this cannot be chosen between in the time of a request."""

MAX_XML_ATTRIBUTES: Final = 64
"""The most attributes of one element. All that are known for a location are about thirty."""

MAX_XML_ATTRIBUTE_LENGTH: Final = 8_192
"""The longest value of an attribute, in characters: the longest URL that common web servers accept."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element with everything in it."""

    name: str
    """As it is written, with its prefix if it has one."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Names and values in the order in which they are written."""
    children: "tuple[Element | str, ...]" = ()
    """Elements and the text between them, in order; no two texts are neighbours."""

    def get(self, name: str) -> str | None:
        """The value of an attribute."""
        return next((value for key, value in self.attributes if key == name), None)

    def elements(self, *names: str) -> "tuple[Element, ...]":
        """The elements directly in this one; only those of the given names, if there are any."""
        return tuple(
            [child for child in self.children if isinstance(child, Element) and (not names or child.name in names)]
        )

    @property
    def text(self) -> str:
        """The text directly in this element."""
        return "".join([child for child in self.children if isinstance(child, str)])


def parse_xml(data: bytes) -> Element:
    """The root element of a document."""
    if len(data) > MAX_XML_BYTES:
        raise InvalidData(f"{len(data):,} bytes of XML are too many; {MAX_XML_BYTES:,} are the most")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidData("the XML is not UTF-8", error.start) from None
    builder = _Builder()
    parser = DefusedExpatParser(forbid_dtd=True)
    parser.setContentHandler(builder)
    source = InputSource()
    source.setByteStream(BytesIO(data))
    source.setEncoding("utf-8")
    try:
        parser.parse(source)
    except DefusedXmlException:
        raise InvalidData("XML with a DOCTYPE is refused") from None
    except SAXException as error:
        raise InvalidData(f"this is not XML: {error.getMessage()}") from None
    return builder.root


def is_true(text: str | None) -> bool:
    """Whether an attribute says so: `yes`, `true` or `1`."""
    return text is not None and text.strip().lower() in ("yes", "true", "1")


class _Builder(ContentHandler):
    """Makes elements from the inside out: an element is frozen when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, tuple[tuple[str, str], ...], list[Element | str]]] = []
        self._count = 0
        self.root = Element("")  # until the parser has seen the end of the real one, which it insists on

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802 - named by the library
        self._count += 1
        if self._count > MAX_XML_ELEMENTS:
            raise InvalidData(f"the XML has more than {MAX_XML_ELEMENTS:,} elements")
        if len(self._open) >= MAX_XML_DEPTH:
            raise InvalidData(f"the XML is nested more than {MAX_XML_DEPTH} deep")
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

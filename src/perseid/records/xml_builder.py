"""Elements from the events of an XML parser: see `xml`."""

from io import BytesIO
from xml.sax import SAXException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource

from defusedxml.common import DefusedXmlException
from defusedxml.expatreader import DefusedExpatParser

from .errors import InvalidData
from .xml import MAX_XML_ATTRIBUTE_LENGTH, MAX_XML_ATTRIBUTES, MAX_XML_DEPTH, MAX_XML_ELEMENTS, Element


def build(data: bytes) -> Element:
    """Return the root element of a document in UTF-8."""
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

"""Untrusted XML: both sides of every limit, and well-known attacks."""

import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.records.xml import (
    MAX_XML_ATTRIBUTE_LENGTH,
    MAX_XML_ATTRIBUTES,
    MAX_XML_BYTES,
    MAX_XML_DEPTH,
    MAX_XML_ELEMENTS,
    Element,
    is_true,
    parse_xml,
)
from tests.record_strategies import xml

BILLION_LAUGHS = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [
 <!ENTITY lol "lol">
 <!ENTITY lol1 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">
 <!ENTITY lol2 "&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;">
 <!ENTITY lol3 "&lol2;&lol2;&lol2;&lol2;&lol2;&lol2;&lol2;&lol2;&lol2;&lol2;">
 <!ENTITY lol4 "&lol3;&lol3;&lol3;&lol3;&lol3;&lol3;&lol3;&lol3;&lol3;&lol3;">
 <!ENTITY lol5 "&lol4;&lol4;&lol4;&lol4;&lol4;&lol4;&lol4;&lol4;&lol4;&lol4;">
 <!ENTITY lol6 "&lol5;&lol5;&lol5;&lol5;&lol5;&lol5;&lol5;&lol5;&lol5;&lol5;">
 <!ENTITY lol7 "&lol6;&lol6;&lol6;&lol6;&lol6;&lol6;&lol6;&lol6;&lol6;&lol6;">
 <!ENTITY lol8 "&lol7;&lol7;&lol7;&lol7;&lol7;&lol7;&lol7;&lol7;&lol7;&lol7;">
 <!ENTITY lol9 "&lol8;&lol8;&lol8;&lol8;&lol8;&lol8;&lol8;&lol8;&lol8;&lol8;">
]>
<lolz>&lol9;</lolz>"""
QUADRATIC = b'<!DOCTYPE a [<!ENTITY x "' + b"x" * 30_000 + b'">]><a>' + b"&x;" * 5_000 + b"</a>"


def error_message(data: bytes) -> str:
    with pytest.raises(InvalidData) as caught:
        parse_xml(data)
    return str(caught.value)


def test_attributes_and_text_are_parsed_in_order() -> None:
    data = '\ufeff<?xml version="1.0"?><a b="1" c="&lt;é"> x<!-- - --><d/>y<![CDATA[<z>]]>&amp;<?pi?></a>'.encode()
    element = parse_xml(data)
    assert element == Element("a", (("b", "1"), ("c", "<é")), (" x", Element("d"), "y<z>&"))
    assert element.get("c") == "<é"
    assert element.get("x") is None
    assert element.text == " xy<z>&"
    assert element.elements() == element.elements("d", "e") == (Element("d"),)
    assert element.elements("e") == ()


@pytest.mark.parametrize(
    "data",
    [
        BILLION_LAUGHS,
        QUADRATIC,
        b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><a>&e;</a>',
        b'<!DOCTYPE a [<!ENTITY e SYSTEM "http://127.0.0.1:9/x">]><a>&e;</a>',
        b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd">%p;]><a/>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a PUBLIC "-//W3C//DTD" "http://127.0.0.1:9/x"><a/>',
        b"<!DOCTYPE a><a/>",
        b'<?xml version="1.0"?>\n<!-- x --><!DOCTYPE a [<!ATTLIST a b CDATA "c">]><a/>',
    ],
    ids=["laughs", "quadratic", "file", "http", "parameter", "system", "public", "bare", "attlist"],
)
def test_every_doctype_is_refused_with_little_time_and_memory(data: bytes) -> None:
    tracemalloc.start()
    started = time.process_time()
    message = error_message(data)
    elapsed = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "DOCTYPE" in message or "too many" in message
    assert elapsed < 0.5
    assert peak < 4_000_000


def test_undeclared_entity_is_refused() -> None:
    assert "undefined entity" in error_message(b"<a>&e;</a>")
    assert parse_xml(b"<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x42;</a>").text == "<>&\"'AB"


def test_length_is_limited() -> None:
    longest = b"<a>" + b"x" * (MAX_XML_BYTES - 7) + b"</a>"
    assert len(parse_xml(longest).text) == MAX_XML_BYTES - 7
    assert "the maximum is" in error_message(longest + b"\n")


def test_nesting_depth_is_limited() -> None:
    assert parse_xml(b"<a>" * MAX_XML_DEPTH + b"</a>" * MAX_XML_DEPTH).name == "a"
    assert "nested more than 32 levels deep" in error_message(
        b"<a>" * (MAX_XML_DEPTH + 1) + b"</a>" * (MAX_XML_DEPTH + 1)
    )
    # 9,000 levels, never closed: refused at the 33rd
    assert "nested more than 32 levels deep" in error_message(b"<aaaa>" * 9_000)


def test_number_of_elements_is_limited() -> None:
    assert len(parse_xml(b"<a>" + b"<b/>" * (MAX_XML_ELEMENTS - 1) + b"</a>").elements()) == MAX_XML_ELEMENTS - 1
    assert "more than 1,000 elements" in error_message(b"<a>" + b"<b/>" * MAX_XML_ELEMENTS + b"</a>")


def test_number_of_attributes_is_limited() -> None:
    attributes = [f'a{number}=""' for number in range(MAX_XML_ATTRIBUTES + 1)]
    assert len(parse_xml(f"<a {' '.join(attributes[1:])}/>".encode()).attributes) == MAX_XML_ATTRIBUTES
    assert "more than 64 attributes" in error_message(f"<a {' '.join(attributes)}/>".encode())


def test_length_of_attributes_is_limited() -> None:
    longest = "é" * MAX_XML_ATTRIBUTE_LENGTH
    assert parse_xml(f'<a b="{longest}"/>'.encode()).get("b") == longest
    assert "more than 8,192 characters" in error_message(f'<a b="{longest}é"/>'.encode())


def test_largest_document_needs_little_time_and_memory() -> None:
    attributes = " ".join(f'a{number:x}="1"' for number in range(5))
    data = f"<a>{f'<b {attributes}>x</b>' * 999}</a>".encode()
    assert len(data) <= MAX_XML_BYTES
    tracemalloc.start()
    started = time.process_time()
    parse_xml(data)
    elapsed = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < 2
    assert peak < 8_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"<a",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"text",
        b"{}",
        b'<a b="1" b="2"/>',
        b"<a>\x00</a>",
        b"<a>\xff</a>",
        b"<a>\xed\xa0\x80</a>",
        b"<a>&#0;</a>",
        b"<a>&#xD800;</a>",
        b"\xff\xfe<\0a\0/\0>\0",
        b'<a b="<"/>',
    ],
)
def test_invalid_xml_is_refused(data: bytes) -> None:
    assert error_message(data)


def test_encoding_is_utf_8_whatever_the_declaration_says() -> None:
    assert parse_xml('<?xml version="1.0" encoding="ISO-8859-1"?><a>é</a>'.encode()).text == "é"
    assert parse_xml('<?xml version="1.0" encoding="x-unknown"?><a>é</a>'.encode()).text == "é"
    assert "not valid UTF-8" in error_message('<?xml version="1.0" encoding="ISO-8859-1"?><a>é</a>'.encode("latin-1"))


def test_names_with_a_prefix_are_literal() -> None:
    assert parse_xml(b'<x:a xmlns="y" z:b="1"/>') == Element("x:a", (("xmlns", "y"), ("z:b", "1")))


@given(xml)
def test_any_generated_xml_is_parsed(text: str) -> None:
    assert parse_xml(text.encode()).name == "root"


@given(st.binary(max_size=60) | xml.map(str.encode).flatmap(lambda data: st.sampled_from([data[:-3], data * 2])))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    with suppress(InvalidData):
        parse_xml(data)


@pytest.mark.parametrize(
    ("text", "expected"), [("yes", True), (" TRUE ", True), ("1", True), ("no", False), (None, False)]
)
def test_booleans_in_attributes(text: str | None, expected: bool) -> None:
    assert is_true(text) is expected

"""HS_NAMESPACE: properties of all handles under a prefix."""

import pytest

from perseid.records.errors import InvalidData
from perseid.records.namespace import Namespace, NamespaceLocations, NamespaceStatus

FULL = """<namespace>
  <status> Inactive </status>
  <statusmsg>Moved to <b>elsewhere</b></statusmsg>
  <contact>a@example.org</contact><contact>second</contact>
  <locs no_nslocs="yes">10320/locs</locs>
  <locs>10320/more</locs>
  <template delimiter="@">
    <foreach><if value="type" test="equals" expression="URL"><value data="${data}"/></if></foreach>
  </template>
  <other/>
</namespace>"""


def test_all_properties_are_read() -> None:
    namespace = Namespace.from_text(FULL)
    assert namespace.status is NamespaceStatus.INACTIVE
    assert namespace.status_message == "Moved to"
    assert namespace.contact == "a@example.org"
    assert namespace.locations == (NamespaceLocations("10320/locs", True), NamespaceLocations("10320/more"))
    assert namespace.delimiter == "@"
    assert [element.name for element in namespace.templates[0].elements()] == ["foreach"]
    assert namespace.to_bytes() == FULL.encode()


def test_root_element_is_free_and_every_property_has_a_default() -> None:
    namespace = Namespace("<anything/>")
    assert namespace.status is NamespaceStatus.ACTIVE
    assert namespace.status_message is namespace.contact is namespace.delimiter is None
    assert namespace.locations == ()
    assert namespace.templates == ()
    assert Namespace("<n><status>closed</status></n>").status is NamespaceStatus.ACTIVE
    assert Namespace('<n><template/><template delimiter="#"/></n>').delimiter == "#"


def test_bytes_are_unchanged() -> None:
    data = '\ufeff<?xml version="1.0"?>\r\n<n  a = "1" ><!-- é --></n>\n'.encode()
    assert Namespace.from_bytes(data).to_bytes() == data


def test_namespace_must_be_xml() -> None:
    with pytest.raises(InvalidData):
        Namespace("active")

"""10320/loc: several locations in a record."""

import pytest

from perseid.records.data_types import interpret
from perseid.records.errors import InvalidData
from perseid.records.locations import DEFAULT_METHODS, Locations, Method
from perseid.records.record import Value

EXAMPLE = """<locations chooseby="locatt,country,weighted" no_legacy="true">
  <location id="0" href="https://uk.example/" country="gb" weight="0"/>
  <location id="1" href="https://www1.example/" weight="1"/>
  <loc_template href_template="https://www2.example/get/{hdl:path}" http_role="conneg"/>
  <other href="https://no.example/"/>
  <group><location href="https://too-deep.example/"/></group>
</locations>"""


def test_locations_are_parsed_in_order_with_all_attributes() -> None:
    found = Locations(EXAMPLE)
    assert [one.href for one in found.locations] == ["https://uk.example/", "https://www1.example/", None]
    assert found.locations[0].attributes[2] == ("country", "gb")
    assert found.locations[2].href_template == "https://www2.example/get/{hdl:path}"
    assert found.locations[0].get("score") is None
    assert found.choose_by == (Method.LOCATT, Method.COUNTRY, Method.WEIGHTED)
    assert found.get("chooseby") == "locatt,country,weighted"
    assert found.to_bytes() == EXAMPLE.encode()


@pytest.mark.parametrize(
    ("attributes", "methods"),
    [
        ("", DEFAULT_METHODS),
        ('chooseby="Weighted, LOCATT,magic,"', (Method.WEIGHTED, Method.LOCATT)),
        ('choose_by="score" chooseby="country"', (Method.SCORE,)),
        ('choose_by="" chooseby="country"', ()),
        ('chooseby="magic"', ()),
    ],
)
def test_selection_methods(attributes: str, methods: tuple[Method, ...]) -> None:
    assert Locations(f"<locations {attributes}/>").choose_by == methods


def test_default_order_is_the_deployed_order() -> None:
    assert [method.value for method in DEFAULT_METHODS] == ["locatt", "address", "country", "score", "weighted"]


def test_root_element_and_case_of_the_type_are_free() -> None:
    found = interpret(Value.text(1, "10320/LOC", "<x><location href='y'/></x>"))
    assert isinstance(found, Locations)
    assert found.locations[0].href == "y"


def test_invalid_xml_is_not_interpreted_and_unchanged() -> None:
    value = Value(1, "10320/loc", b"<locations>")
    assert interpret(value) is None
    assert value.data == b"<locations>"
    with pytest.raises(InvalidData):
        Locations.from_bytes(value.data)

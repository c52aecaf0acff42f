"""Values in responses: everything that can be stored can be shown."""

import msgspec
from hypothesis import given

from perseid.records.json_form import value_to_json
from perseid.records.record import Value
from perseid.schema.records import dump_values
from tests import record_strategies


@given(record_strategies.values())
def test_every_stored_value_has_a_response(value: Value) -> None:
    (shown,) = msgspec.to_builtins(dump_values([value]))
    plain = value_to_json(value)
    assert shown["index"] == plain["index"]
    assert shown["type"] == plain["type"]
    assert shown["data"] == plain["data"]
    assert shown.get("references", ()) == tuple(plain.get("references", ()))  # type: ignore[arg-type]

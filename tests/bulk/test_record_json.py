"""The fast encoding of records equals the general one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk.formats import InvalidFile
from perseid.bulk.jsonl import format_record, parse_record
from perseid.bulk.record_json import encode_line, encode_lines
from perseid.ledger.log.entry import Action, State
from perseid.records.record import Value
from perseid.registry.queries.export import ExportedRecord, VersionInfo
from tests.record_strategies import NAMES, NOWS, values

STATES = [State.NORMAL, State.RESERVED, State.UNPUBLISHED, State.TOMBSTONE]


@st.composite
def stored(draw: st.DrawFn) -> ExportedRecord:
    now = draw(st.sampled_from(NOWS))
    contents = [value.to_bytes() for value in draw(st.lists(values(now), max_size=4))]
    return ExportedRecord(draw(NAMES), draw(st.sampled_from(STATES)), contents, 7, now * 1_000_000 + 5)


@given(stored())
def test_line_is_that_of_the_general_writer(record: ExportedRecord) -> None:
    assert encode_line(record) == format_record(record.handle, record.state.label, record.values)


def test_version_has_its_entry_and_who_made_it() -> None:
    contents = [Value.text(1, "URL", "https://example.org/").to_bytes()]
    info = VersionInfo(Action.UPDATE, "cli", "local:ann", "two\nlines")
    version = ExportedRecord("12345/x", State.NORMAL, contents, 7, 1_794_700_800_000_001, info)
    deleted = ExportedRecord("12345/x", State.ABSENT, [], 8, 1_794_700_800_000_002, VersionInfo(Action.DELETE))
    first, second = encode_lines([version, deleted]).splitlines()
    assert msgspec.json.decode(first) == {
        "handle": "12345/x",
        "state": "published",
        "seq": 7,
        "time": "2026-11-15T00:00:00.000001Z",
        "action": "update",
        "interface": "cli",
        "actor": "local:ann",
        "note": "two\nlines",
        "values": [
            {"index": 1, "type": "URL", "data": {"format": "string", "value": "https://example.org/"}, "ttl": 86400}
        ],
    }
    assert second == (
        b'{"handle":"12345/x","state":"deleted","seq":8,"time":"2026-11-15T00:00:00.000002Z","action":"delete",'
        b'"values":[]}'
    )
    for line in (first, second):
        with pytest.raises(InvalidFile, match="every version of its records"):
            parse_record(line, 1)

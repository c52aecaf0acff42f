"""Selection from raw values matches the registry's selection from objects, and invalid lists are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import HandleItem, read_item
from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.record import Value, select
from perseid.server.native.resolution import MAX_CACHED_SELECTIONS, FastPathMiss, parse_selection
from perseid.wire.codes import CURRENT_VERSION
from perseid.wire.requests import Resolve, encode_request

MEANT = ("URL", "url", "URL.us", "URL.", ".", "", "ü.Ä", "ü.", "Ü.", "ß", "HS_ADMIN.x", "URLs")
TYPES = st.sampled_from(MEANT) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INDEXES = st.integers(1, 5) | st.integers(-(1 << 31), (1 << 31) - 1)


def lists(indexes: tuple[int, ...], types: tuple[str, ...]) -> bytes:
    return encode_request(Resolve(b"", indexes, types), CURRENT_VERSION)[4:]


@given(
    kept=st.lists(st.builds(Value, INDEXES, TYPES, st.binary(max_size=200)), max_size=6),
    indexes=st.lists(INDEXES, max_size=4).map(tuple),
    types=st.lists(TYPES | TYPES.map(lambda type_: type_ + "."), max_size=4).map(tuple),
)
@settings(max_examples=500, deadline=None)
def test_raw_selection_matches_object_selection(
    kept: list[Value], indexes: tuple[int, ...], types: tuple[str, ...]
) -> None:
    contents = tuple(value.to_bytes() for value in kept)
    raw = HandleItem(b"10/x", State.NORMAL, values=contents).to_bytes(b"10/X")
    item = read_item(b"10/X", raw, sensitive=False)
    assert item is not None
    _, _, whole, at, lengths = item
    expected = [value.to_bytes() for value in select(kept, indexes, types)]
    wanted = parse_selection(lists(indexes, types))
    if wanted is None:
        assert not indexes
        assert not types
        assert whole[at:] == b"".join(expected)
    else:
        assert wanted.choose(whole, at, lengths) == expected


@given(st.binary(max_size=40) | st.binary(max_size=12).map(lambda raw: bytes(3) + raw))
@settings(max_examples=500, deadline=None)
def test_lists_are_refused_exactly_if_the_wire_module_refuses_them(raw: bytes) -> None:
    try:
        Resolve.read(Reader(bytes(4) + raw), CURRENT_VERSION, 0)
    except InvalidData:
        with pytest.raises(FastPathMiss):
            parse_selection(raw)
    else:
        parse_selection(raw)


def test_selection_cache_is_bounded() -> None:
    for index in range(2 * MAX_CACHED_SELECTIONS):
        parse_selection(lists((index,), ()))
    assert parse_selection.cache_info().currsize == MAX_CACHED_SELECTIONS

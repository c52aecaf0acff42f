"""Exports of EZID and arklet."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk import anvl
from perseid.bulk.anvl import map_ark
from perseid.bulk.formats import Format, InvalidFile, Profile, ReadOptions, UnknownColumns
from perseid.bulk.imports import to_read_options
from perseid.bulk.rows import open_rows
from perseid.schema.imports import ImportQuery, ImportRow, RowProblem
from perseid.schema.records import Data, ValueInput
from tests.bulk.stored import problems, read

ANVL = b"""\
:: ark:/99999/fk4cz3dh0
_created: 1300812337
_updated: 1300913550
_target: http://www.gutenberg.org/ebooks/7178
_profile: erc
_status: public
_owner: apitest
erc.who: Proust, Marcel
erc.what: Remembrance of Things Past%0A100%25
_mappedTitle: Remembrance of Things Past%0A100%25

:: doi:10.5072/FK2X
_status: unavailable | withdrawn by author
dc.title: X

:: ark:/99999/fk4new
_status: reserved
"""


def values_of(row: ImportRow | RowProblem) -> list[tuple[str, str]]:
    assert isinstance(row, ImportRow)
    return [(value.type, str(value.data.value)) for value in row.values if isinstance(value.data, Data)]


def test_an_anvl_file_of_ezid_is_read() -> None:
    reader = open_rows(io.BytesIO(ANVL), "x.txt", ReadOptions(prefix="12345"))
    assert (reader.detected.format, reader.detected.profile) == (Format.ANVL, Profile.EZID)
    first, doi, reserved = reader
    assert values_of(first) == [
        ("URL", "http://www.gutenberg.org/ebooks/7178"),
        ("CREATOR", "Proust, Marcel"),
        ("TITLE", "Remembrance of Things Past\n100%"),
        ("ARK", "ark:/99999/fk4cz3dh0"),
    ]
    assert isinstance(first, ImportRow)
    assert (first.line, first.handle, first.state) == (1, "12345/fk4cz3dh0", "published")
    assert (first.created, first.values[0].timestamp) == ("2011-03-22T16:45:37Z", "2011-03-23T20:52:30Z")
    assert isinstance(doi, ImportRow)
    assert (doi.handle, doi.state) == ("10.5072/FK2X", "tombstone")
    assert values_of(doi) == [("TITLE", "X"), ("TOMBSTONE.REASON", "withdrawn by author")]
    assert isinstance(reserved, ImportRow)
    assert (reserved.handle, reserved.state) == ("12345/fk4new", "unpublished"), "a reserved handle has no values"


def test_a_table_of_ezid_is_read() -> None:
    table = (
        b"_id,_target,_status,_created,dc.title,_owner\nark:/99999/x,https://a.org/,public,2011-03-22T16:45:37Z,T,u\n"
    )
    reader = open_rows(io.BytesIO(table))
    assert reader.detected.profile is Profile.EZID
    (row,) = reader
    assert isinstance(row, ImportRow)
    assert (row.handle, row.state, row.created) == ("99999/x", "published", "2011-03-22T16:45:37Z")
    assert values_of(row) == [("URL", "https://a.org/"), ("TITLE", "T"), ("ARK", "ark:/99999/x")]
    with pytest.raises(UnknownColumns) as caught:
        read(b"_id,_traget,local.shelf\nark:/99999/x,a,b\n")
    assert caught.value.columns == {"_traget": "_target", "local.shelf": ""}
    with pytest.raises(UnknownColumns) as caught:
        read(b"_id,_target,shelf\nark:/99999/x,a,b\n")
    assert caught.value.columns == {"shelf": ""}
    with pytest.raises(UnknownColumns) as caught:
        read(b"_id,shelf\n1,b\n")
    assert set(caught.value.columns) == {"_id", "shelf"}, "the table of another service"
    (row,) = read(b"_id,local.shelf\nark:/99999/x,b\n", ReadOptions(columns={"local.shelf": "SHELF"}))
    assert values_of(row)[0] == ("SHELF", "b")
    (row,) = read(b"_id,local.shelf\nark:/99999/x,b\n", to_read_options(ImportQuery(map=("local.shelf=21.T1/x=y",))))
    assert values_of(row)[0] == ("21.T1/x=y", "b")


def test_a_mapping_names_columns_with_equals_signs() -> None:
    """The advice about an unknown column can be followed, also if the type has an equals sign."""
    table = b"_id,local.a=b,local.a\nark:/99999/x,b,c\n"
    with pytest.raises(UnknownColumns):
        read(table, ReadOptions())
    (row,) = read(table, to_read_options(ImportQuery(map=("local.a=b=21.T1/x=y", "local.a=-"))))
    assert values_of(row)[0] == ("21.T1/x=y", "b")


@pytest.mark.parametrize(
    ("meaning", "shown", "expected"),
    [
        ("EMAIL!private", "EMAIL!private", ValueInput("EMAIL", Data("string", "Zg=="), None, "1100")),
        ("email", "EMAIL", ValueInput("EMAIL", Data("string", "Zg=="))),
        ("7:X!base64!ttl=60", "7:X!ttl=60!base64", ValueInput("X", Data("base64", "Zg=="), 7, None, 60)),
        *((name, name, ValueInput(name, Data("string", "Zg=="))) for name in ("id", "status", "name", "naan")),
    ],
)
def test_types_of_a_mapping_have_their_options(meaning: str, shown: str, expected: ValueInput) -> None:
    table = io.BytesIO(b"_id,local.x\nark:/99999/x,Zg==\n")
    reader = open_rows(table, "", ReadOptions(columns={"local.x": meaning}))
    assert reader.detected.columns[1].meaning == shown
    (row,) = reader
    assert isinstance(row, ImportRow)
    assert row.values[0] == expected


def test_a_mapping_that_an_export_of_a_service_cannot_have_is_refused() -> None:
    for meaning in ("owner", "X!secret", ""):
        for data in (b"_id,local.x\nark:/99999/x,a\n", b":: ark:/99999/x\nlocal.x: a\n"):
            with pytest.raises(InvalidFile) as caught:
                read(data, ReadOptions(columns={"local.x": meaning}))
            assert caught.value.problem.rule == "invalid-column"
    table = b"_id,local.x\nark:/99999/x,200:0.NA/1\nark:/99999/y,nonsense:1\n"
    assert problems(read(table, ReadOptions(columns={"local.x": "HS_ADMIN"}))) == [(3, "invalid-data")]
    words = {"x.id": "handle", "x.at": "Created", "x.is": "state", "x.no": "-"}
    options = ReadOptions(columns=words, profile=Profile.EZID)
    (row,) = read(b"x.id,x.at,x.is,x.no\nark:/99999/x,2011-03-22,public,1\n", options)
    assert isinstance(row, ImportRow)
    assert (row.handle, row.created, row.state) == ("99999/x", "2011-03-22", "published")
    assert values_of(row) == [("ARK", "ark:/99999/x")]


def test_a_table_of_arklet_is_read() -> None:
    table = b"ark,naan,shoulder,assigned_name,url,metadata,commitment\n99999/a1x,99999,/a1,x,https://a.org/,M,C\n"
    (row,) = read(table, ReadOptions(prefix="12345"))
    assert isinstance(row, ImportRow)
    assert row.handle == "12345/a1x"
    assert values_of(row) == [
        *(("URL", "https://a.org/"), ("DESCRIPTION", "M"), ("COMMITMENT", "C"), ("ARK", "ark:/99999/a1x")),
    ]
    (row,) = read(b"naan,shoulder,assigned_name,url\n99999,/a1,x,https://a.org/\n")
    assert isinstance(row, ImportRow)
    assert row.handle == "99999/a1x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ark:/99999/x", ("99999/x", "ark:/99999/x")),
        (" ark:99999/x/y.z ", ("99999/x/y.z", "ark:/99999/x/y.z")),
        ("https://n2t.net/ark:/b5060/x", ("b5060/x", "ark:/b5060/x")),
        ("doi:10.1/x", ("10.1/x", "")),
        ("ark:/x", None),
        ("", None),
    ],
)
def test_arks_become_handles(text: str, expected: tuple[str, str] | None) -> None:
    assert map_ark(text) == expected


def test_invalid_records_are_problems() -> None:
    data = b"name: 1\n:: nonsense\n:: ark:/99999/a\n_status: odd\n:: ark:/99999/b\nx.y: 1\n:: ark:/99999/c\nnonsense\n"
    rows = read(data, ReadOptions(format=Format.ANVL))
    assert problems(rows) == [
        *((1, "invalid-anvl"), (2, "invalid-ark"), (3, "unknown-state"), (5, "unknown-columns"), (8, "invalid-anvl")),
    ]
    for bad in (b":: \xff\n", b":: " + b"x" * 5_000_000):
        with pytest.raises(InvalidFile):
            read(bad, ReadOptions(format=Format.ANVL))


def test_a_record_that_is_too_large_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anvl, "MAX_RECORD", 40)
    rows = read(b":: ark:/99999/a\n_target: x\nerc.what: long text\n", ReadOptions(format=Format.ANVL))
    assert problems(rows) == [(3, "invalid-anvl")]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_crash(data: bytes) -> None:
    try:
        rows = read(data, ReadOptions(format=Format.ANVL))
    except InvalidFile:
        return
    assert all(isinstance(row, ImportRow | RowProblem) for row in rows)

"""Columns by their headers, and rows from their cells."""

import io

import pytest

from perseid.bulk.columns import parse_column
from perseid.bulk.formats import InvalidFile, ReadOptions, Row, UnknownColumns
from perseid.bulk.imports import to_read_options
from perseid.bulk.rows import open_rows
from perseid.schema.imports import ImportQuery, ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, ValueInput


def read(text: str, options: ReadOptions | None = None) -> list[Row]:
    return list(open_rows(io.BytesIO(text.encode()), "x.csv", options))


def text(type_: str, data: str, **more: object) -> ValueInput:
    return ValueInput(type_, Data("string", data), **more)  # type: ignore[arg-type]


def test_columns_have_usual_names_or_are_types_with_options() -> None:
    reader = open_rows(
        io.BytesIO(
            b"PID, Target ,2:EMAIL!private,10320/loc!ttl=300,title,URL,Status,created,owner\n"
            b"1/a,https://x.org/,a@b.org,<x/>,T,https://y.org/,Unpublished,2001-02-03,300:0.NA/1\n"
            b"1/b,,,,,,,,\n"
        )
    )
    assert [use.meaning for use in reader.detected.columns] == [
        *("handle", "URL", "2:EMAIL!private", "10320/loc!ttl=300", "TITLE", "URL", "state", "created", "owner"),
    ]
    assert list(reader) == [
        ImportRow(
            line=2,
            operation=RowOperation.CREATE,
            handle="1/a",
            values=(
                text("URL", "https://x.org/"),
                text("EMAIL", "a@b.org", index=2, permissions="1100"),
                text("10320/loc", "<x/>", ttl=300),
                text("TITLE", "T"),
                text("URL", "https://y.org/"),
            ),
            columns=("Target", "2:EMAIL!private", "10320/loc!ttl=300", "title", "URL"),
            state="unpublished",
            created="2001-02-03",
            owner="300:0.NA/1",
        ),
        ImportRow(3, RowOperation.CREATE, "1/b"),
    ]


def test_cells_are_literal() -> None:
    (row,) = read("handle,url,title,DESC\n1/a,@/etc/passwd,base64:AAAA,'=1\n")
    assert isinstance(row, ImportRow)
    assert row.values == (text("URL", "@/etc/passwd"), text("TITLE", "base64:AAAA"), text("DESC", "=1"))
    (row,) = read("handle,DESC\n1/a,'=1\n", ReadOptions(raw=True))
    assert isinstance(row, ImportRow)
    assert row.values == (text("DESC", "'=1"),)


def test_structured_types_have_their_natural_form_and_bytes_base64() -> None:
    good, bad, base64 = read(
        "handle,HS_ADMIN,HS_PUBKEY!base64\n1/a,200:0.NA/1,AAAA\n1/b,nonsense:1,\n1/c,base64:AAAA,\n"
    )
    assert isinstance(good, ImportRow)
    assert good.values[0].data == Data("base64", "D/8AAAAGMC5OQS8xAAAAyA==")
    assert good.values[1].data == Data("base64", "AAAA")
    for problem in bad, base64:
        assert isinstance(problem, RowProblem)
        assert (problem.column, problem.rule) == ("HS_ADMIN", "invalid-data")


def test_unknown_columns_are_refused_by_name_with_suggestions() -> None:
    with pytest.raises(UnknownColumns) as caught:
        read("handle,ulr,shelf mark,HS_VLIST\n1/a,b,c,d\n")
    assert caught.value.columns == {"ulr": "URL", "shelf mark": ""}
    assert "'ulr' is probably URL" in caught.value.problem.message
    (row,) = read("handle,ulr,shelf mark\n1/a,b,c\n", ReadOptions(columns={"ULR": "-", "Shelf_Mark": "21.T1/shelf"}))
    assert isinstance(row, ImportRow)
    assert row.values == (text("21.T1/shelf", "c"),)
    (row,) = read("handle,Adresse\n1/a,b\n", ReadOptions(columns={"Adresse": "url"}))
    assert isinstance(row, ImportRow)
    assert row.values == (text("URL", "b"),)
    known = list(open_rows(io.BytesIO(b"handle,21.T1/x\n1/a,b\n"), is_type=lambda type_: type_ == "21.T1/x"))
    assert isinstance(known[0], ImportRow)


@pytest.mark.parametrize(
    ("header", "options", "example"),
    [
        ("handle,Shelf,Ttile", ReadOptions(), ("Ttile", "TITLE")),
        ("handle,Shelf", ReadOptions(), ("Shelf", "TYPE")),
        ("Kennung,URL", ReadOptions(), ("Kennung", "handle")),
        ("Ttile,Kennung,Handel", ReadOptions(), ("Handel", "handle")),
        ("Shelf,URL", ReadOptions(mint=True, prefix="1"), ("Shelf", "TYPE")),
    ],
)
def test_advice_for_unknown_columns_has_the_probable_meaning(
    header: str, options: ReadOptions, example: tuple[str, str]
) -> None:
    with pytest.raises(UnknownColumns) as caught:
        read(f"{header}\n", options)
    assert tuple(caught.value.problem.advice_parameters.values()) == example


@pytest.mark.parametrize(
    ("prefix", "signature", "guesses", "example"),
    [
        ("", "12345/a", {"Signatur": "handle", "Titel": "TITLE", "Ziel": "URL", "Jahr": ""}, "Signatur"),
        ("12345", "12345/a", {"Signatur": "handle", "Titel": "TITLE", "Ziel": "URL", "Jahr": ""}, "Signatur"),
        ("12346", "12345/a", {"Signatur": "", "Titel": "TITLE", "Ziel": "URL", "Jahr": ""}, "Signatur"),
        ("", "a-1", {"Signatur": "", "Titel": "TITLE", "Ziel": "URL", "Jahr": ""}, "Signatur"),
    ],
)
def test_meanings_of_columns_are_guessed_from_their_cells(
    prefix: str, signature: str, guesses: dict[str, str], example: str
) -> None:
    """Never a type of the Handle System from similar letters: Signatur is not HS_SIGNATURE."""
    table = f"Signatur;Titel;Ziel;Jahr\n\n{signature};Karte;https://example.org/1;1890\n;B;;\n"
    with pytest.raises(UnknownColumns) as caught:
        read(table, ReadOptions(prefix=prefix))
    assert caught.value.columns == guesses
    assert caught.value.problem.advice_parameters == {"column": example, "meaning": "handle"}
    with pytest.raises(UnknownColumns) as caught:
        read(table, ReadOptions(mint=True, prefix="12345"))
    assert "handle" not in caught.value.columns.values()


@pytest.mark.parametrize("first", ["1/a,https://example.org/", "https://example.org/,A map", "A map\t20.500/x y"])
@pytest.mark.parametrize("mint", [False, True])
def test_a_file_without_names_of_columns_is_refused_as_such(first: str, mint: bool) -> None:
    """With a meaning for each of its cells, the first row would be lost."""
    with pytest.raises(InvalidFile, match=r"The first row has values, such as '(1/a|https://example.org/|20.500/x y)'"):
        read(f"{first}\n", ReadOptions(mint=mint, prefix="1"))


def test_a_column_can_have_the_name_of_a_property() -> None:
    table = "handle,http://purl.org/dc/terms/title\n1/a,b\n"
    with pytest.raises(UnknownColumns):
        read(table)
    (row,) = read(table, ReadOptions(columns={"http://purl.org/dc/terms/title": "TITLE"}))
    assert isinstance(row, ImportRow)
    assert row.values == (text("TITLE", "b"),)


def test_problem_of_a_table_without_names_is_short() -> None:
    with pytest.raises(UnknownColumns) as caught:
        read(f"handle,{','.join([f'cell {number}' for number in range(1_000)])}\n")
    assert caught.value.problem.message.startswith("Unknown columns: 'cell 0', 'cell 1', ")
    assert caught.value.problem.message.endswith("'cell 19' and 980 more.")


def test_columns_and_types_of_a_mapping_can_have_equals_signs() -> None:
    table = "handle,a,a=b,A = c,d\n1/a,1,2,3,4\n"
    mapped = to_read_options(ImportQuery(map=("a=-", "a=b=URL!ttl=300", "a = c=EMAIL", "d=21.T1/x=y")))
    (row,) = read(table, mapped)
    assert isinstance(row, ImportRow)
    assert row.values == (text("URL", "2", ttl=300), text("EMAIL", "3"), text("21.T1/x=y", "4"))
    with pytest.raises(InvalidFile, match="does not have the column 'e'"):
        read(table, to_read_options(ImportQuery(map=("a=-", "a=b=-", "a = c=-", "d=-", "e=URL!ttl=300"))))


@pytest.mark.parametrize(
    ("header", "options", "rule"),
    [
        ("url,title", ReadOptions(), "missing-column"),
        ("handle,url", ReadOptions(columns={"x": "URL"}), "missing-column"),
        ("handle,pid", ReadOptions(), "duplicate-column"),
        ("handle,1:URL,1:EMAIL", ReadOptions(), "duplicate-column"),
        ("handle,URL!secret", ReadOptions(), "invalid-column"),
        ("handle,url", ReadOptions(columns={"url": "!private"}), "invalid-column"),
        ("handle,a", ReadOptions(columns={"a": "TITLE,b=YEAR"}), "invalid-column"),
        ("handle,9999999999:URL", ReadOptions(), "invalid-column"),
        ("url", ReadOptions(mint=True), "missing-prefix"),
    ],
)
def test_headers_that_cannot_be_used_are_refused(header: str, options: ReadOptions, rule: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        read(f"{header}\n1/a,x\n", options)
    assert caught.value.problem.rule == rule


def test_handles_are_chosen_or_minted() -> None:
    mint = ReadOptions(mint=True, prefix="12345")
    minted, refused = read("handle,url\n,x\n1/a,y\n", mint)
    assert isinstance(minted, ImportRow)
    assert (minted.operation, minted.handle) == (RowOperation.MINT, "12345")
    assert isinstance(refused, RowProblem)
    assert (refused.line, refused.column, refused.value, refused.rule) == (3, "handle", "1/a", "handle-not-empty")
    (row,) = read("url\nx\n", mint)
    assert isinstance(row, ImportRow)
    chosen = read("url,handle\nx,suffix\ny,1/a\nz,\n", ReadOptions(prefix="12345"))
    assert [row.handle if isinstance(row, ImportRow) else row.rule for row in chosen] == [
        *("12345/suffix", "1/a", "missing-handle"),
    ]


def test_unknown_states_and_values_without_a_name_are_problems() -> None:
    rows = read("handle,,state,url\n1/a,,gone,x\n1/b,y,,\n")
    assert [(row.line, row.rule) for row in rows if isinstance(row, RowProblem)] == [
        *((2, "unknown-state"), (3, "unnamed-column")),
    ]


def test_the_columns_of_a_report_are_ignored_but_what_could_not_be_read_is_not_minted() -> None:
    header = "url,problem_line,problem_column,problem_value,problem_rule,problem_message,problem_fix"
    good, empty = read(
        f"{header}\nx,2,url,y,invalid-data,No.,\n,3,,,invalid-csv,No.,\n", ReadOptions(mint=True, prefix="1")
    )
    assert isinstance(good, ImportRow)
    assert good.values == (text("URL", "x"),)
    assert isinstance(empty, RowProblem)
    assert empty.rule == "empty-row"


def test_columns_are_shown_as_they_are_written() -> None:
    assert str(parse_column("3:EMAIL!private!ttl=60!base64")) == "3:EMAIL!private!ttl=60!base64"

"""Citations: both forms (S10), only what the record says; BibTeX and CSL-JSON round trips."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri
from perseid.records.record import Permission, Value
from perseid.records.titles import to_single_line
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.queries.citation import (
    FORMATTERS,
    TEX_ESCAPES,
    Citation,
    Version,
    build_citation,
    format_bibtex,
    format_csl,
    format_hdl,
    format_http,
    format_text,
    to_json,
)
from perseid.registry.results import Resolution
from tests.strategies import handles

RESOLVER = Resolver.parse("https://id.example.org/hdl")
FREE = PROFILES["free"]
NAME = Handle.parse("12345/a")
AT = 1_700_000_000_000_000


def cited(*values: Value, policy: Policy = FREE, handle: Handle = NAME, fixed: bool = False) -> Citation:
    resolved = Resolution(handle, handle, State.NORMAL, values, 7, AT)
    return build_citation(policy, resolved, Reference(handle), RESOLVER, fixed=fixed)


def texts(**said: str) -> tuple[Value, ...]:
    return tuple(Value.text(index, type_, text) for index, (type_, text) in enumerate(said.items(), 1))


BOOK = cited(*texts(TITLE="An Atlas", AUTHOR="Survey", DATE="1907-03", PUBLISHER="Press", DESC="Maps of the coast."))

# What this program writes of CSL-JSON: names, and what each takes, as the format's own description has them.
CSL = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["id", "type"],
        "additionalProperties": False,
        "properties": {
            **{name: {"type": "string", "minLength": 1} for name in ("id", "title", "publisher", "abstract")},
            **{name: {"type": "string", "minLength": 1} for name in ("URL", "note", "version")},
            "type": {"const": "document"},
            "author": {
                "type": "array",
                "items": {"type": "object", "required": ["literal"], "properties": {"literal": {"type": "string"}}},
            },
            "issued": {
                "oneOf": [
                    {
                        "required": ["date-parts"],
                        "properties": {
                            "date-parts": {
                                "type": "array",
                                "items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "integer"}},
                            }
                        },
                        "additionalProperties": False,
                    },
                    {
                        "required": ["literal"],
                        "properties": {"literal": {"type": "string"}},
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}


# A reader of BibTeX, by the rules of BibTeX itself: braces are counted, whatever stands before them.

_COMMANDS = {written: character for character, written in TEX_ESCAPES.items()}
_TOKEN = re.compile("|".join(map(re.escape, sorted(_COMMANDS, key=len, reverse=True))) + "|.", re.DOTALL)


def read_bibtex(text: str) -> tuple[str, dict[str, str]]:
    """Return the key of an entry and its fields, still as TeX."""
    found = re.fullmatch(r"@misc\{([^,{}\s]+),\n(.*)\n\}", text, re.DOTALL)
    assert found is not None, text
    key, rest = found.groups()
    fields: dict[str, str] = {}
    while rest:
        name, equals, rest = rest.strip().partition(" = ")
        assert equals, text
        assert name not in fields
        if rest.startswith("{"):
            end = closing(rest)
            fields[name], rest = rest[1:end], rest[end + 1 :]
        else:
            fields[name], _, rest = rest.partition(",")
            rest = f",{rest}" if rest else ""
        rest = rest.removeprefix(",")
    return key, fields


def closing(text: str) -> int:
    """Return the position of the closing brace of a text."""
    depth = 0
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return place
    raise AssertionError(f"braces are not balanced: {text}")


def unescaped(tex: str) -> str:
    return "".join(_COMMANDS.get(token, token) for token in _TOKEN.findall(tex))


def names_of(field: str) -> list[str]:
    names = []
    while field:
        end = closing(field)
        names.append(unescaped(field[1:end]))
        field = field[end + 1 :].removeprefix(" and ")
    return names


def test_s10_every_style_has_the_identifier() -> None:
    assert format_hdl(BOOK) == "hdl:12345/a"
    assert format_http(BOOK) == "https://id.example.org/hdl/12345/a"
    for style in ("text", "bibtex", "csl-json"):
        written = FORMATTERS[style](BOOK)
        assert format_hdl(BOOK) in written
        assert format_http(BOOK) in written


def test_citation_has_values_of_record() -> None:
    assert format_text(BOOK) == "Survey (1907-03). An Atlas. Press. hdl:12345/a, https://id.example.org/hdl/12345/a"
    key, fields = read_bibtex(format_bibtex(BOOK))
    assert key == "hdl:12345/a"
    assert fields == {
        "title": "{An Atlas}",
        "author": "{Survey}",
        "year": "1907",
        "month": "mar",
        "publisher": "{Press}",
        "abstract": "Maps of the coast.",
        "url": "https://id.example.org/hdl/12345/a",
        "note": "hdl:12345/a",
    }
    assert json.loads(format_csl(BOOK)) == [
        {
            "id": "hdl:12345/a",
            "type": "document",
            "title": "An Atlas",
            "author": [{"literal": "Survey"}],
            "issued": {"date-parts": [[1907, 3]]},
            "publisher": "Press",
            "abstract": "Maps of the coast.",
            "URL": "https://id.example.org/hdl/12345/a",
            "note": "hdl:12345/a",
        }
    ]
    assert to_json(BOOK)["creators"] == ["Survey"]


def test_citation_invents_nothing() -> None:
    bare = cited(Value.text(1, "URL", "https://example.org/"))
    assert format_text(bare) == "hdl:12345/a, https://id.example.org/hdl/12345/a"
    assert set(read_bibtex(format_bibtex(bare))[1]) == {"url", "note"}
    assert json.loads(format_csl(bare))[0].keys() == {"id", "type", "URL", "note"}
    assert to_json(bare) == {"hdl": bare.hdl, "http": bare.http}


def test_registered_types_are_recognized() -> None:
    values = (
        Value.text(1, "10.1/Title", "By a registered type"),
        Value.text(2, "DC.CREATOR", "One"),
        Value.text(3, "dc.creator", "Another"),
        Value.text(4, "DCTERMS.ISSUED", "1907"),
        Value.text(5, "TITLE.ALTERNATIVE", "No title"),
    )
    found = cited(*values)
    assert (found.title, found.creators, found.date) == ("By a registered type", ("One", "Another"), "1907")


def test_description_replaces_missing_title() -> None:
    found = cited(*texts(DESC="What it is"))
    assert (found.title, found.description) == ("What it is", None)


def test_private_and_binary_values_are_omitted() -> None:
    hidden = replace(Value.text(1, "TITLE", "secret"), permissions=Permission.ADMIN_READ)
    assert cited(hidden, Value(2, "TITLE", b"\xff"), Value.text(3, "TITLE", " \n")).title is None


def test_s10_identifier_creator_is_not_author() -> None:
    """The authority metadata of A1 stays separate."""
    pilin = PROFILES["pilin"]
    values = (
        Value.text(1, pilin.creation_date_type, "2007-06-22T02:53:46Z"),
        Value.text(2, pilin.creator_type, "102.100.272/0N8J991QH"),
    )
    found = cited(*values, policy=pilin)
    assert (found.creators, found.date) == ((), None)
    assert (found.created, found.creator) == ("2007-06-22T02:53:46Z", "hdl:102.100.272/0N8J991QH")
    note = "hdl:12345/a; identifier created 2007-06-22T02:53:46Z by hdl:102.100.272/0N8J991QH"
    assert json.loads(format_csl(found))[0]["note"] == note
    assert cited(*values).creators == ()


def test_version_is_cited_by_entry() -> None:
    found = cited(*texts(TITLE="An Atlas"), fixed=True)
    assert found.version == Version(7, "2023-11-14T22:13:20Z")
    for style, write in FORMATTERS.items():
        assert re.search(r"\b(entry )?7\b", write(found)), style
    assert format_hdl(found) == "hdl:12345/a as of entry 7"
    assert read_bibtex(format_bibtex(found))[0] == "hdl:12345/a_40_7"
    assert json.loads(format_csl(found))[0]["version"] == "entry 7"


def test_citation_of_tombstone_says_so() -> None:
    reason = Value.text(9101, FREE.tombstone_reason_type, "Lost in a fire")
    resolved = Resolution(NAME, NAME, State.TOMBSTONE, (reason,), 7, AT)
    found = build_citation(FREE, resolved, Reference(NAME), RESOLVER)
    assert format_text(found).endswith(" [gone: Lost in a fire]")
    without = build_citation(FREE, replace(resolved, values=()), Reference(NAME), RESOLVER)
    assert without.gone == "gone"


@pytest.mark.parametrize(
    ("date", "parts"),
    [
        ("1907", (1907,)),
        ("1907-03", (1907, 3)),
        ("1907-03-09", (1907, 3, 9)),
        ("2007-06-22T02:53:46Z", (2007, 6, 22)),
        ("1907-13", ()),
        ("1907-02-30", ()),
        ("0000", ()),
        ("circa 1907", ()),
        ("1907/8", ()),
    ],
)
def test_only_iso_dates_are_parsed(date: str, parts: tuple[int, ...]) -> None:
    found = cited(*texts(DATE=date))
    assert found.date_parts == parts
    issued = json.loads(format_csl(found))[0]["issued"]
    assert issued == ({"date-parts": [list(parts)]} if parts else {"literal": date})
    assert unescaped(read_bibtex(format_bibtex(found))[1]["year"]) == (date[:4] if parts else date)


_hostile = st.text(
    st.sampled_from("ab {}\\%$&#_^~\"'<>|@=,;\n\t\0\u2028\u202eäß日\U0001f5fa"), min_size=1, max_size=30
) | st.text(min_size=1, max_size=20)


@given(handles(), st.lists(_hostile, max_size=3), _hostile, _hostile, _hostile)
def test_bibtex_and_csl_round_trip(
    handle: Handle, creators: list[str], title: str, description: str, date: str
) -> None:
    values = [Value.text(1, "TITLE", title), Value.text(2, "DESC", description), Value.text(3, "DATE", date)]
    values += [Value.text(index, "CREATOR", name) for index, name in enumerate(creators, 4)]
    found = cited(*values, handle=handle)
    key, fields = read_bibtex(format_bibtex(found))
    assert parse_uri(re.sub("_([0-9a-f]+)_", lambda code: chr(int(code[1], 16)), key)).handle == handle
    assert names_of(fields.get("title", "")) == ([found.title] if found.title else [])
    assert names_of(fields.get("author", "")) == list(found.creators)
    assert found.creators == tuple(filter(None, map(to_single_line, creators)))
    assert unescaped(fields.get("abstract", "")) == (found.description or "")
    assert unescaped(fields["note"]) == found.hdl
    assert fields["url"] == found.http
    plain = json.loads(format_csl(found))
    jsonschema.validate(plain, CSL)
    assert plain[0].get("title") == found.title
    assert [name["literal"] for name in plain[0].get("author", [])] == list(found.creators)
    assert "\n" not in format_text(found)


def test_control_characters_are_removed() -> None:
    assert to_single_line(" a\t\nb\x1b[31m\u202ec\u2028 ") == "a b [31mc"
    assert to_single_line("a\u200eb\u200fc\u061cd") == "abcd"
    assert to_single_line("a\u200cb") == "a\u200cb", "letters of some scripts are kept apart by it"


@given(st.lists(st.sampled_from(["a", " ", "a  b", "\u202e", "\t", "\xa0", "é"]), max_size=4).map("".join))
def test_printable_text_becomes_a_line_like_any_other(text: str) -> None:
    assert to_single_line(text) == to_single_line(f"{text}\x1b")

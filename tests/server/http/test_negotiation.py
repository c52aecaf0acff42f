"""Content negotiation: `Accept` and `Accept-Language` against a simple model, and examples."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.http.negotiation import (
    ANY_TYPE,
    HTML,
    JSON,
    MAX_ENTRIES,
    MAX_WEIGHT,
    XHTML,
    AcceptHeader,
    Preference,
    Representation,
    location_preferences,
    parse_accept,
    parse_accept_language,
)

CHROME: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
MOZILLA: Final = "Mozilla/5.0 (X11; Linux x86_64)"
BROWSER: Final[tuple[Preference, ...]] = (("http_role", "browser"), ("ctype", HTML), ("media-type", HTML))

TYPES: Final = (HTML, XHTML, JSON, "text/turtle", "text/plain", "image/png", "application/pdf")
RANGES: Final = (*TYPES, "text/*", "application/*", "image/*", ANY_TYPE)

ranges = st.lists(st.tuples(st.sampled_from(RANGES), st.integers(0, MAX_WEIGHT)), max_size=6)


@st.composite
def written(draw: st.DrawFn) -> tuple[list[tuple[str, int]], list[str]]:
    """Media ranges with weights, and headers that express them."""
    entries = draw(ranges)
    texts = []
    for name, weight in entries:
        text = "".join(draw(st.sampled_from((each, each.upper()))) for each in name)
        for parameter in draw(st.lists(st.sampled_from(("charset=utf-8", 'title="a, b; q=0"', "v")), max_size=2)):
            text += f"{draw(blank)};{draw(blank)}{parameter}"
        if weight < MAX_WEIGHT or draw(st.booleans()):
            number = f"{weight / MAX_WEIGHT:.3f}"
            number = number.rstrip("0").rstrip(".") if draw(st.booleans()) else number
            text += f"{draw(blank)};{draw(blank)}{draw(st.sampled_from('qQ'))}={number}"
        texts.append(f"{draw(blank)}{text}{draw(blank)}")
    at = draw(st.integers(0, len(texts)))
    lines = [",".join(part) for part in (texts[:at], texts[at:]) if part]
    return entries, lines


blank = st.sampled_from(("", " ", "\t", "  "))


def slow_weight(entries: list[tuple[str, int]], type_: str) -> int:
    """The weight of a type, as the standard explains it: the most specific range applies."""
    if not entries:
        return MAX_WEIGHT
    found = []
    for name, weight in entries:
        major, _, minor = name.partition("/")
        if name == type_:
            found.append((2, weight))
        elif minor == "*" and major == type_.partition("/")[0]:
            found.append((1, weight))
        elif name == ANY_TYPE:
            found.append((0, weight))
    return max(found, default=(0, 0))[1]


@given(written(), st.sampled_from(TYPES))
def test_most_specific_range_determines_weight(header: tuple[list[tuple[str, int]], list[str]], type_: str) -> None:
    entries, lines = header
    assert parse_accept(lines).weight(type_) == slow_weight(entries, type_)


@given(written(), st.booleans())
def test_weights_determine_representation(header: tuple[list[tuple[str, int]], list[str]], leads: bool) -> None:
    entries, lines = header
    json, html = (slow_weight(entries, JSON), max(slow_weight(entries, HTML), slow_weight(entries, XHTML)))
    if leads and not (json > html and JSON in [name for name, _ in entries]):
        expected = Representation.REDIRECTION
    elif json > html:
        expected = Representation.JSON
    else:
        expected = Representation.PAGE
    assert parse_accept(lines).choose(has_target=leads) is expected


@given(st.lists(st.text(max_size=60), max_size=4))
def test_any_header_is_parsed(lines: list[str]) -> None:
    accepted = parse_accept(lines)
    assert all(0 <= entry.weight <= MAX_WEIGHT for entry in accepted.entries)
    assert len(accepted.entries) <= MAX_ENTRIES
    assert accepted.choose(has_target=True) in Representation
    found = location_preferences(accepted, parse_accept_language(lines), "")
    assert all(value and value.isprintable() for _, value in found)


@pytest.mark.parametrize(
    ("accept", "leading", "showing"),
    [
        ([], Representation.REDIRECTION, Representation.PAGE),
        (["*/*"], Representation.REDIRECTION, Representation.PAGE),
        ([CHROME], Representation.REDIRECTION, Representation.PAGE),
        (["application/json"], Representation.JSON, Representation.JSON),
        (["APPLICATION/JSON; charset=utf-8"], Representation.JSON, Representation.JSON),
        (
            ["application/json, text/plain, */*"],
            Representation.REDIRECTION,
            Representation.PAGE,
        ),  # libraries for scripts send this
        (["application/json", "*/*;q=0.5"], Representation.JSON, Representation.JSON),
        (["application/json;q=0.5, text/html"], Representation.REDIRECTION, Representation.PAGE),
        (["application/json;q=0.5, text/html;q=0.4"], Representation.JSON, Representation.JSON),
        (["application/json;q=0"], Representation.REDIRECTION, Representation.PAGE),
        (
            ["application/*"],
            Representation.REDIRECTION,
            Representation.PAGE,
        ),  # which is HTML too, as it is written for XML
        (["text/html;q=0, application/xhtml+xml;q=0, */*"], Representation.REDIRECTION, Representation.JSON),
        (["application/ld+json"], Representation.OTHER, Representation.OTHER),
        (["application/ld+json, */*"], Representation.REDIRECTION, Representation.PAGE),
        (["application/ld+json, */*;q=0.9"], Representation.OTHER, Representation.OTHER),
        (["application/ld+json, text/html"], Representation.REDIRECTION, Representation.PAGE),
        (["application/ld+json;q=0.9, application/json"], Representation.JSON, Representation.JSON),
        (["application/ld+json, application/json"], Representation.JSON, Representation.JSON),
        (["text/x-bibliography; style=apa"], Representation.OTHER, Representation.OTHER),
        (
            ["application/vnd.citationstyles.csl+json, application/json;q=0.9"],
            Representation.OTHER,
            Representation.OTHER,
        ),
        ([f"{CHROME}, application/ld+json;q=0.9"], Representation.REDIRECTION, Representation.PAGE),
        (["application/linkset+json;q=0"], Representation.REDIRECTION, Representation.PAGE),
        (["text/turtle"], Representation.REDIRECTION, Representation.PAGE),
        (["text/turtle, application/json;q=0.2"], Representation.JSON, Representation.JSON),
        (
            ["text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"],
            Representation.REDIRECTION,
            Representation.PAGE,
        ),  # an old library
        (
            ["application/json;q=2"],
            Representation.REDIRECTION,
            Representation.PAGE,
        ),  # no weight, so no entry, so no header
        (["application/json;q=high, text/html;q=0.1"], Representation.REDIRECTION, Representation.PAGE),
        (["nonsense"], Representation.REDIRECTION, Representation.PAGE),
        ([",,,"], Representation.REDIRECTION, Representation.PAGE),
    ],
)
def test_representations(accept: list[str], leading: Representation, showing: Representation) -> None:
    accepted = parse_accept(accept)
    assert (accepted.choose(has_target=True), accepted.choose(has_target=False)) == (leading, showing)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/x-bibtex, application/ld+json", "application/ld+json"),  # that is offered before it
        ("application/x-bibtex, application/ld+json;q=0.5", "application/x-bibtex"),
        ("APPLICATION/X-BIBTEX", "application/x-bibtex"),
        ("application/x-bibtex;q=0.2, text/*;q=0.1", "application/x-bibtex"),
        ("application/linkset, text/html;q=0.5, */*;q=0.1", "application/linkset"),
        ("application/*", None),
        ("*/*", None),
        ("", None),
    ],
)
def test_named_form(accept: str, expected: str | None) -> None:
    assert parse_accept([accept]).named_form == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json", True),
        ("application/ld+json", True),
        ("application/vnd.citationstyles.csl+json", True),
        ("application/x-bibtex", False),
        ("*/*", False),
        (CHROME, False),
    ],
)
def test_errors_are_json_for_json_clients(accept: str, expected: bool) -> None:
    assert parse_accept([accept]).prefers_json_errors is expected


def test_entries_of_header_are_limited() -> None:
    accepted = parse_accept([",".join(["text/html"] * 1_000), "application/json"])
    assert [entry.name for entry in accepted.entries] == [HTML] * MAX_ENTRIES


@pytest.mark.parametrize(
    ("accept", "agent", "expected"),
    [
        ([], "", (("http_role", "no_conneg"),)),
        ([], "curl/8.5.0", (("http_role", "no_conneg"),)),
        (["*/*"], "curl/8.5.0", (("http_role", "no_conneg"),)),
        ([], MOZILLA, BROWSER),
        (["*/*"], "Opera/9.80", BROWSER),
        (["*/*;q=0.1"], MOZILLA, BROWSER),
        ([CHROME], "", BROWSER),
        (["text/html"], "", BROWSER),
        (["image/png"], "", (("http_role", "browser"),)),
        (["video/*;q=0.9, text/turtle;q=0.9"], "", (("http_role", "browser"),)),
        (
            ["text/turtle"],
            MOZILLA,
            (("ctype", "text/turtle"), ("media-type", "text/turtle"), ("http_role", "conneg")),
        ),
        (
            ["TEXT/Turtle;q=0.5, application/rdf+xml, */*;q=0.1"],
            "",
            (
                ("ctype", "application/rdf+xml"),
                ("media-type", "application/rdf+xml"),
                ("ctype", "text/turtle"),
                ("media-type", "text/turtle"),
                ("http_role", "conneg"),
            ),
        ),
        (
            ["application/ld+json, application/*;q=0.9, text/turtle;q=0.8, text/html;q=0.7"],
            "",
            (("ctype", "application/ld+json"), ("media-type", "application/ld+json"), ("http_role", "conneg")),
        ),
        (["text/turtle;q=0, text/html"], "", BROWSER),
    ],
)
def test_location_preferences(accept: list[str], agent: str, expected: tuple[Preference, ...]) -> None:
    accepted = parse_accept(accept)
    assert location_preferences(accepted, (), agent) == expected
    without_role = tuple(wish for wish in expected if wish[0] != "http_role")
    assert location_preferences(accepted, (), agent, metadata=True) == without_role


def test_language_preferences() -> None:
    languages = parse_accept_language(["de;q=0.8, de-DE", "en;q=0.5, *;q=0.1, fr;q=0"])
    found = location_preferences(AcceptHeader(()), languages, "")
    assert found[1:] == (("language", "de-DE"), ("language", "de"), ("language", "en"))


@given(written())
def test_preferences_follow_the_rules(header: tuple[list[tuple[str, int]], list[str]]) -> None:
    entries, lines = header
    found = location_preferences(parse_accept(lines), (), "")
    wanted = [(name, weight) for name, weight in entries if weight]
    roles = [value for name, value in found if name == "http_role"]
    if {name for name, _ in wanted} <= {ANY_TYPE}:
        assert roles == ["no_conneg"]
        return
    best = max(weight for _, weight in wanted)
    for_browsers = [
        weight
        for name, weight in wanted
        if name.endswith("*") or name in (HTML, XHTML, "application/pdf") or name.startswith("image/")
    ]
    is_browser = max(for_browsers, default=0) == best
    assert roles == ["browser" if is_browser else "conneg"]
    if not is_browser:
        named = [value for name, value in found if name == "media-type"]
        assert named
        by_weight = sorted(wanted, key=lambda entry: -entry[1])
        assert named == [name for name, _ in by_weight][: len(named)]
        assert len(named) == len(by_weight) or by_weight[len(named)][0].endswith("*")


@pytest.mark.parametrize("header", ['text/html;a="', 'text/html, a/b;q="', 'text/html;a="\\'])
def test_unclosed_quote_is_parsed_in_linear_time(header: str) -> None:
    """It extends to the end of the header. A parser that restarted at every quote would not finish."""
    accepted = parse_accept([header + '\\"' * 1_000_000 + ", application/json"])
    assert [entry.name for entry in accepted.entries] == [HTML]
    assert accepted.weight(JSON) == 0

"""Location selection: worked examples, included lists, hostile lists, and a slow model of the selection."""

from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.locations import (
    MAX_HREF_LENGTH,
    MAX_INCLUDE_DEPTH,
    MAX_INCLUDES,
    MAX_LOCATION_BYTES,
    MAX_LOCATION_LISTS,
    MAX_LOCATIONS,
    MAX_NETWORKS,
    MAX_TOTAL_NETWORKS,
    Candidates,
    Method,
    RecordLookup,
    SelectedLocation,
    SelectionCriteria,
    expand_template,
    find_locations,
    parse_address,
    parse_locatt,
    parse_number,
    select_location,
)
from perseid.records.namespace import Namespace
from perseid.records.record import Permission, Value
from perseid.records.xml import MAX_XML_BYTES

NAME = Handle.parse("20.500.99999/vec-h-loc")
EXAMPLE = """<locations chooseby="locatt,country,weighted">
  <location id="0" href="https://uk.example/" country="gb" weight="0"/>
  <location id="1" href="https://www1.example/" weight="1"/>
</locations>"""
RECORDED = (
    '<locations><location id="0" href="https://a.example/" weight="0" http_sc="303"/>'
    '<location id="1" href="https://b.example/" weight="1"/>'
    '<location id="2" href_template="https://c.example/{hdl:path}?h={hdl}" weight="0" http_role="conneg"'
    ' media-type="text/turtle"/></locations>'
)


def loc(text: str, index: int = 1) -> Value:
    return Value.text(index, "10320/LOC", text)


def url(text: str, index: int = 2, type_: str = "URL") -> Value:
    return Value.text(index, type_, text)


def record_lookup(**records: Iterable[Value]) -> RecordLookup:
    """Records under `1/<name>`, and under `0.NA/<prefix>` for names such as na_20_500."""
    names = {name.replace("_", "."): tuple(values) for name, values in records.items()}
    return lambda name: names.get(name.lower().removeprefix("1/").replace("0.na/", "na."))


NOTHING = record_lookup()


def candidates(values: Iterable[Value], look_up: RecordLookup = NOTHING, handle: Handle = NAME) -> Candidates:
    return find_locations(handle, values, look_up)


def selected_href(values: Iterable[Value], *criteria: str, number: float = 0.5, **more: str) -> str | None:
    """The URL of the selected location."""
    known = SelectionCriteria(
        tuple(map(parse_locatt, criteria)), more.get("country"), parse_address(more.get("address", ""))
    )
    chosen = select_location(candidates(values), known, number)
    return None if chosen is None else chosen.candidate.href


# Selection


def test_worked_example() -> None:
    uk, other = "https://uk.example/", "https://www1.example/"
    values = [loc(EXAMPLE)]
    assert selected_href(values, country="GB") == uk
    assert selected_href(values, country="fr") == selected_href(values) == other
    assert selected_href(values, "id:0") == selected_href(values, "id:0", country="fr") == uk
    assert selected_href(values, "country:us") == selected_href(values, "id:9") == other
    assert selected_href(values, "id:0", "id:1") == uk, "the second finds nothing among what the first has left"
    assert selected_href(values, "country") == uk, "an attribute alone: whoever has it"


def test_recorded_examples() -> None:
    values = [loc(RECORDED), url("https://url.example/")]
    assert selected_href(values, "http_role:no_conneg") == "https://b.example/"
    assert selected_href(values, "id:0") == "https://a.example/"
    turtle = selected_href(values, "ctype:text/turtle", "media-type:text/turtle", "http_role:conneg")
    assert turtle == "https://c.example/20.500.99999/vec-h-loc?h=20.500.99999%2Fvec-h-loc"
    summary = [(each.href, each.weight, each.is_url) for each in candidates(values).locations]
    assert summary[0] == ("https://a.example/", 0.0, False)
    assert summary[-1] == ("https://url.example/", 0.0, True)
    assert candidates(values).locations[0].location.get("http_sc") == "303"


@pytest.mark.parametrize(
    ("attributes", "criteria", "expected"),
    [
        (('weight="1"', 'weight="0"'), SelectionCriteria(), "0"),
        (('weight="-5"', ""), SelectionCriteria(), "1"),  # negative counts as zero; the default is 1
        (('score="1"', 'score="2" weight="0"'), SelectionCriteria(), "1"),
        (('score="x"', 'score="0.5"'), SelectionCriteria(), "1"),
        (('addresses="10.0.0.0/8, 2001:db8::/32"', ""), SelectionCriteria(address=ip_address("10.1.2.3")), "0"),
        (
            ('addresses="10.0.0.0/8,2001:db8::/32" weight="0"', ""),
            SelectionCriteria(address=ip_address("2001:db8::5")),
            "0",
        ),
        (('addresses="nonsense,10.0.0.1"', ""), SelectionCriteria(address=ip_address("10.0.0.1")), "0"),
        (('addresses="10.0.0.0/8" weight="0"', ""), SelectionCriteria(address=ip_address("11.0.0.1")), "1"),
        (('country="DE" weight="0"', 'country="fr"'), SelectionCriteria(country=" de"), "0"),
        (('country="de"', 'weight="0"'), SelectionCriteria(country="us"), "1"),  # without a country, as documented
        (('country="de"', 'country="fr" weight="0"'), SelectionCriteria(country="us"), "0"),  # no match: ignored
        (('lang="de" weight="0"', 'lang="DE"'), SelectionCriteria((("lang", "de"),)), "0"),  # case-sensitive
    ],
)
def test_each_selection_method(attributes: tuple[str, str], criteria: SelectionCriteria, expected: str) -> None:
    written = "".join(f'<location href="{number}" {text}/>' for number, text in enumerate(attributes))
    chosen = select_location(candidates([loc(f"<l>{written}</l>")]), criteria, 0.9 if expected == "1" else 0.1)
    assert chosen is not None
    assert chosen.candidate.href == expected


def test_methods_are_applied_in_the_order_of_the_list() -> None:
    text = '<l {}><location href="a" score="1"/><location href="b" country="de" score="0"/></l>'
    criteria = SelectionCriteria(country="de")

    def select_by(attribute: str) -> tuple[str, Method | None]:
        chosen = select_location(candidates([loc(text.format(attribute))]), criteria, 0.0)
        assert chosen is not None
        return chosen.candidate.href, chosen.by

    assert select_by("") == ("b", Method.COUNTRY)
    assert select_by('chooseby="score,country"') == ("a", Method.SCORE)
    assert select_by('chooseby="Score" choose_by=" COUNTRY , nonsense"') == ("b", Method.COUNTRY)
    assert select_by('chooseby=""') == ("a", Method.WEIGHTED)
    assert select_location(candidates([url("x")]), criteria, 0.0) == SelectedLocation(
        candidates([url("x")]).locations[0], None
    )


def test_random_number_selects_in_proportion_to_the_weights() -> None:
    values = [
        loc('<l><location href="a" weight="1"/><location href="b" weight="0"/><location href="c" weight="3"/></l>')
    ]
    counts = Counter(selected_href(values, number=step / 1_000) for step in range(1_000))
    assert counts == {"a": 250, "c": 750}
    zero = [loc('<l><location href="a" weight="0"/><location href="b" weight="0"/></l>')]
    assert Counter(selected_href(zero, number=step / 10) for step in range(10)) == {"a": 5, "b": 5}
    thirds = [loc("<l>" + '<location href="x" weight="0.1"/>' * 3 + '<location href="y" weight="0"/></l>')]
    assert selected_href(thirds, number=1 - 2**-53) == "x", (
        "what rounding leaves over is no reason to send anybody elsewhere"
    )
    for number in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="not a random number"):
            select_location(candidates(values), SelectionCriteria(), number)


def test_no_location_is_selected_without_candidates() -> None:
    assert selected_href([]) is None
    assert selected_href([Value.text(1, "EMAIL", "a@example.org")]) is None
    assert selected_href([loc("<l><location id='5'/></l>")]) is None, "a location that does not say where it is"


# Candidates


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([url("b", 5), url("a", 3)], [("a", 1.0), ("b", 0.0)]),  # the lowest index comes first
        ([url("x", 1, "URL.us"), url("a", 2)], [("a", 1.0), ("x", 0.0)]),
        ([url("x", 1, "URL.us"), url("y", 2, "url.de")], [("x", 1.0), ("y", 0.0)]),
        ([url("a", 1, "0.TYPE/URL")], [("a", 1.0)]),
        ([loc("<l/>"), url("a")], [("a", 0.0)]),
        ([loc('<l urlWeight="2" urlSubtypeWeight="3"/>'), url("a"), url("x", 3, "URL.x")], [("a", 2.0), ("x", 3.0)]),
        ([loc('<l no_legacy="yes"><location href="l"/></l>'), url("a")], [("l", 1.0)]),
        ([loc("<l><location"), url("a")], [("a", 1.0)]),  # invalid XML is ignored
        ([loc("<l><location href='1'/></l>", 9), loc("<l><loc_template href='2'/><x href='3'/></l>", 4)],
         [("2", 1.0), ("1", 1.0)]),
        ([Value(1, "URL", b"secret", permissions=Permission(0x0C)), url("a")], [("a", 1.0)]),
        ([loc('<l><location href="a" weight="nan"/><location href="b" weight="1e99"/></l>')], [("a", 1.0), ("b", 1.0)]),
    ],
)  # fmt: skip
def test_candidates_are_locations_and_urls_of_the_record(
    values: list[Value], expected: list[tuple[str, float]]
) -> None:
    assert [(each.href, each.weight) for each in candidates(values).locations] == expected


def test_handle_is_encoded_in_a_template() -> None:
    handle = Handle.parse_lenient("12345/a b?ü")
    assert expand_template("x?{hdl}", handle) == "x?12345%2Fa%20b%3F%C3%BC"
    assert expand_template("x/{hdl:path}", handle) == "x/12345/a%20b%3F%C3%BC"
    assert expand_template("{hdl:path}", Handle.parse("1/-._~!$()*,:@/;=&+")) == "1/-._~!$()*,:@/;=%26%2B"
    assert expand_template("{hdl}", Handle.parse_lenient("1/{hdl:path}")) == "1%2F%7Bhdl%3Apath%7D", (
        "what was put in is not read again"
    )


def test_lists_include_lists() -> None:
    look_up = record_lookup(
        a=[loc('<l include="1/b" chooseby="score"><location href="a"/></l>')],
        b=[loc('<l http_sc="307"><location href="b"/><include>1/a</include><include>1/none</include></l>'), url("no")],
        c=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/d</locs></n>")],
        d=[loc('<l><location href="d"/></l>')],
    )
    own = loc('<l include="1/A" http_sc="303"><location href="own"/><includeNamespace>1/c</includeNamespace></l>')
    found = candidates([own, url("u")], look_up)
    assert [each.href for each in found.locations] == ["own", "a", "d", "b", "u"]
    assert (found.methods, found.get("http_sc"), found.get("nothing"), found.truncated) == (
        (Method.SCORE,),
        "303",
        None,
        False,
    )


def test_namespaces_add_locations() -> None:
    look_up = record_lookup(
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        na_20_500=[Value.text(1, "HS_NAMESPACE", "<n><locs no_nslocs='yes'>1/middle</locs></n>")],
        na_20=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/far</locs></n>")],
        na_77=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/far</locs></n>")],
        near=[loc('<l><location href="near/{hdl}"/><location href_template="near/{hdl}"/></l>')],
        middle=[loc('<l><location href="middle"/></l>')],
        far=[loc('<l><location href="far"/></l>')],
    )

    def hrefs(*values: Value, handle: Handle = NAME) -> list[str]:
        return [each.href for each in candidates(values, look_up, handle).locations]

    namespace = ["near/{hdl}", "near/20.500.99999%2Fvec-h-loc", "middle"]
    assert hrefs(url("u")) == ["u", *namespace]
    assert hrefs(loc('<l no_nslocs="1"/>'), url("u")) == ["u"]
    assert hrefs(loc('<l overridePrefix="77"/>')) == ["far"]
    assert hrefs(loc('<l nshdl="1/far"/>')) == namespace
    assert hrefs(loc('<l nshdl="1/far"/>'), handle=Handle.parse("5/x")) == ["far"], "where the namespace has none"
    assert hrefs(Value.text(1, "EMAIL", "a@example.org")) == [], "a record that leads nowhere is led nowhere"


_LIST_ATTRIBUTES = {"no_legacy": "yes", "urlWeight": "7", "urlSubtypeWeight": "8", "http_sc": "307"}


@given(st.lists(st.dictionaries(st.sampled_from(sorted(_LIST_ATTRIBUTES)), st.integers(0, 9)), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_attribute_comes_from_the_first_list_own_included_or_of_the_namespace(written: list[dict[str, int]]) -> None:
    """The precedence on plain dictionaries: own, then included, then namespace."""
    own, included, from_namespace = (
        " ".join(f'{name}="{number}"' for name, number in each.items()) for each in written
    )
    look_up = record_lookup(
        other=[loc(f"<l {included}/>")],
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        near=[loc(f'<l {from_namespace}><location href="near"/></l>')],
    )
    found = candidates([loc(f'<l {own} include="1/other"/>'), url("u"), url("sub", 3, "URL.x")], look_up)
    known = {name: number for each in reversed(written) for name, number in each.items()}
    expected = [("u", known.get("urlWeight", 0)), ("sub", known.get("urlSubtypeWeight", 0))]
    if known.get("no_legacy") == 1:
        expected = []
    assert [(each.href, each.weight) for each in found.locations] == [*expected, ("near", 1)]
    assert found.get("http_sc") == (str(known["http_sc"]) if "http_sc" in known else None)


@pytest.mark.parametrize(
    ("attribute", "expected"), [('no_legacy="yes"', [("n", 1)]), ('urlWeight="0"', [("u", 0), ("n", 1)])]
)
def test_namespace_controls_urls_when_the_record_has_no_list(attribute: str, expected: list[tuple[str, float]]) -> None:
    look_up = record_lookup(
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        near=[loc(f'<l {attribute} no_nslocs="yes" nshdl="1/x"><location href="n"/></l>')],
    )
    assert [(each.href, each.weight) for each in candidates([url("u")], look_up).locations] == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" -2.5 ", -2.5), ("+.5", 0.5), ("1e2", 100), ("1.", 1), ("1_0", 9), ("\u0661", 9), ("inf", 9),
     ("nan", 9), ("0x1", 9), ("1e99", 9), ("", 9), (None, 9), ("1" * 5_000, 9)],
)  # fmt: skip
def test_invalid_numbers_get_the_default(text: str | None, number: float) -> None:
    assert parse_number(text, 9.0) == number


# Hostile lists


def test_namespace_is_parsed_once_and_counts_like_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    from_bytes = Namespace.from_bytes

    def counting_from_bytes(data: bytes) -> Namespace:
        parsed.append(len(data))
        return from_bytes(data)

    monkeypatch.setattr(Namespace, "from_bytes", counting_from_bytes)
    space = [Value.text(1, "HS_NAMESPACE", "<n>" + "".join(f"<locs>1/{n}</locs>" for n in range(50)) + "</n>")]
    including = "<l>" + "".join(f"<includeNamespace>1/space{n % 5}</includeNamespace>" for n in range(500)) + "</l>"
    lists = [loc(including, index) for index in range(1, 6)]
    found = candidates(lists, lambda name: space if "space" in name else [loc(f"<l><location href='{name}'/></l>")])
    assert len(parsed) == 5
    assert [each.href for each in found.locations] == [f"1/{n}" for n in range(50)], "and each list counts once"

    parsed.clear()
    padded = [Value.text(1, "HS_NAMESPACE", f"<n>{' ' * 60_000}</n>")]
    found = candidates(
        [loc("<l>" + "".join(f"<includeNamespace>1/{n}</includeNamespace>" for n in range(90)) + "</l>")],
        lambda _: padded,
    )
    assert found.truncated
    assert sum(parsed) <= MAX_LOCATION_BYTES

    parsed.clear()
    broken = [Value.text(index, "HS_NAMESPACE", "<n") for index in range(1, 2_000)]
    found = candidates([loc("<l includeNamespace='1/a'/>")], lambda _: broken)
    assert found.truncated
    assert len(parsed) < MAX_LOCATION_LISTS


def test_record_included_and_named_by_the_namespace_counts_once() -> None:
    look_up = record_lookup(
        a=[loc('<l><location href="a"/></l>')],
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/A</locs></n>")],
    )
    assert [each.href for each in candidates([loc('<l include="1/a"/>')], look_up).locations] == ["a"]


def test_expanded_template_obeys_the_length_limit() -> None:
    handle = Handle.parse("1/" + "x" * 2_000)
    allowed = (MAX_HREF_LENGTH // len(expand_template("{hdl}", handle))) * "{hdl}"
    text = f'<l><location href_template="{allowed}"/><location href_template="{"{hdl}" * 1_600}"/></l>'
    found = candidates([loc(text)], handle=handle)
    assert [len(each.href) for each in found.locations] == [len(expand_template(allowed, handle))]


def test_circular_includes_terminate() -> None:
    look_up = record_lookup(a=[loc('<l include="1/b"><location href="a"/></l>')], b=[loc('<l include="1/a"/>')])
    found = candidates([loc('<l include="1/a"/>')], look_up)
    assert ([each.href for each in found.locations], found.truncated) == (["a"], False)


def test_include_depth_is_limited() -> None:
    def look_up(name: str) -> list[Value]:
        number = int(name.removeprefix("1/n")) if name.startswith("1/n") else None
        return [] if number is None else [loc(f'<l include="1/n{number + 1}"><location href="{number}"/></l>')]

    found = candidates([loc('<l include="1/n1"/>')], look_up)
    assert [each.href for each in found.locations] == [str(number) for number in range(1, MAX_INCLUDE_DEPTH + 1)]
    assert found.truncated


def test_number_of_included_records_is_limited() -> None:
    requested: list[str] = []

    def look_up(name: str) -> list[Value]:
        requested.append(name)
        more = "".join(f"<include>{name}{digit}</include>" for digit in range(10))
        return [loc(f'<l>{more}<location href="{name}"/></l>')]

    found = candidates([loc('<l include="1/n"/>')], look_up)
    assert (len(requested), len(set(requested)), found.truncated) == (MAX_INCLUDES, MAX_INCLUDES, True)
    assert select_location(found, SelectionCriteria(), 0.5) is not None


def test_lists_bytes_and_locations_are_limited() -> None:
    lists = [loc('<l><location href="x"/></l>', index) for index in range(1, 2_000)]
    assert (len(candidates(lists).locations), candidates(lists).truncated) == (MAX_LOCATION_LISTS, True)
    long = f"<l><location href='x'/>{' ' * (MAX_XML_BYTES - 40)}</l>"
    many = candidates([loc(long, index) for index in range(1, 100)])
    assert (len(many.locations), many.truncated) == (MAX_LOCATION_BYTES // len(long), True)
    full = "<l>" + "<location href='x'/>" * 600 + "</l>"
    assert (
        len(candidates([loc(full, 1), loc(full, 2)]).locations),
        candidates([loc(full, 1), loc(full, 2)]).truncated,
    ) == (
        MAX_LOCATIONS,
        True,
    )


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE l [<!ENTITY x SYSTEM "file:///etc/passwd">]><l><location href="&x;"/></l>',
        "<!DOCTYPE l><l><location href='a'/></l>",
        "<l>" * 100 + "</l>" * 100,
        "<l>" + "<location/>" * 2_000 + "</l>",
        "\ud7ff<l/>",
    ],
)
def test_refused_xml_is_ignored(text: str) -> None:
    assert selected_href([loc(text), url("u")]) == "u"


def test_number_of_networks_per_location_is_limited() -> None:
    networks = ",".join(["10.0.0.0/8"] * 500 + ["192.0.2.1"])
    text = f'<l><location href="a" weight="0" addresses="{networks}"/><location href="b"/></l>'
    assert selected_href([loc(text)], address="192.0.2.1") == "b"


def test_total_number_of_networks_is_limited() -> None:
    many = ",".join(["10.0.0.0/8"] * MAX_NETWORKS)
    filling = f'<location href="no" weight="0" addresses="{many}"/>'
    last = '<location href="last" weight="0" addresses="192.0.2.1"/><location href="other"/>'
    full = MAX_TOTAL_NETWORKS // MAX_NETWORKS
    assert selected_href([loc(f"<l>{filling * (full - 1)}{last}</l>")], address="192.0.2.1") == "last"
    assert selected_href([loc(f"<l>{filling * full}{last}</l>")], address="192.0.2.1") == "other"
    none = '<location href="no" weight="0"/>'
    assert selected_href([loc(f"<l>{none * 900}{last}</l>")], address="192.0.2.1") == "last", "none is no network"


def test_ipv4_mapped_ipv6_address_matches_ipv4_networks() -> None:
    text = '<l><location href="a" weight="0" addresses="192.0.2.0/24"/><location href="b"/></l>'
    assert selected_href([loc(text)], address="::ffff:192.0.2.9") == "a"
    assert selected_href([loc(text)], address="::ffff:198.51.100.9") == "b"
    written = text.replace("192.0.2.0/24", "::ffff:192.0.2.0/120")
    assert selected_href([loc(written)], address="::ffff:192.0.2.9") == "a"


# Comparison with a model

_weights = st.sampled_from(["0", "1", "2.5", "-1", "x", ""])
_locations = st.fixed_dictionaries(
    {},
    optional={
        "weight": _weights,
        "country": st.sampled_from(["de", "GB", ""]),
        "score": st.sampled_from(["0", "1", "-1", "x"]),
        "lang": st.sampled_from(["de", "en"]),
        "addresses": st.sampled_from(["10.0.0.0/8", "x,192.0.2.0/24", "::/0"]),
    },
)
_criteria = st.builds(
    SelectionCriteria,
    st.lists(st.sampled_from([("lang", "de"), ("lang", None), ("country", "GB"), ("no", None)]), max_size=3).map(tuple),
    st.sampled_from([None, "de", "gb", "us"]),
    st.sampled_from([None, ip_address("10.1.1.1"), ip_address("192.0.2.9"), ip_address("::1")]),
)
_methods = st.lists(st.sampled_from(list(Method)), max_size=4)


def parse_float(text: str | None, missing: float) -> float:
    try:
        return float(text or "")
    except ValueError:
        return missing


def model(found: list[dict[str, str]], methods: list[Method], criteria: SelectionCriteria, number: float) -> str | None:
    """The selection rules in order, on plain dictionaries."""
    remaining = found
    for method in [*methods, Method.WEIGHTED]:
        if len(remaining) == 1:
            break
        keep = remaining
        if method is Method.LOCATT:
            for name, value in criteria.attributes:
                keep = [one for one in keep if name in one and value in (None, one[name])] or keep
        elif method is Method.ADDRESS and criteria.address is not None:
            first, second, all_six = (
                str(criteria.address).startswith("10."),
                "192.0.2" in str(criteria.address),
                criteria.address.version == 6,
            )
            near = {"10.0.0.0/8": first, "x,192.0.2.0/24": second, "::/0": all_six}
            keep = [one for one in remaining if near.get(one.get("addresses", ""), False)]
        elif method is Method.COUNTRY and criteria.country is not None:
            keep = [one for one in remaining if one.get("country", "").lower() == criteria.country]
            keep = keep or [one for one in remaining if not one.get("country")]
        elif method is Method.SCORE:
            keep = [one for one in remaining if all(score(one) >= score(other) for other in remaining)]
        elif method is Method.WEIGHTED and remaining:
            keep = [select_weighted(remaining, number)]
        remaining = keep or remaining
    return remaining[0]["href"] if remaining else None


def score(one: dict[str, str]) -> float:
    return parse_float(one.get("score"), 0.0)


def select_weighted(remaining: list[dict[str, str]], number: float) -> dict[str, str]:
    weights = [max(parse_float(one.get("weight"), 1.0), 0.0) for one in remaining]
    if not any(weights):
        return remaining[int(number * len(remaining))]
    tickets = [one for one, weight in zip(remaining, weights, strict=True) for _ in range(int(weight * 2))]
    return tickets[int(number * len(tickets))]


@given(st.lists(_locations, max_size=5), _methods, _criteria, st.integers(0, 63).map(lambda step: step / 64))
@settings(max_examples=150, deadline=None)
def test_selection_matches_the_model(
    locations: list[dict[str, str]], methods: list[Method], criteria: SelectionCriteria, number: float
) -> None:
    written = [{"href": str(at), **attributes} for at, attributes in enumerate(locations)]
    inner = "".join(
        f"<location {' '.join(f'{name}={quoteattr(text)}' for name, text in one.items())}/>" for one in written
    )
    named = ",".join(method.value for method in methods)
    found = candidates([loc(f'<l chooseby="{named}">{inner}</l>')])
    chosen = select_location(found, criteria, number)
    assert (None if chosen is None else chosen.candidate.href) == model(written, methods, criteria, number)


@given(st.lists(st.sampled_from(["URL", "URL.us", "url", "DESC", "10320/loc"]), max_size=5))
def test_namespace_that_is_known_to_have_no_locations_need_not_be_read(types: list[str]) -> None:
    written = '<l urlWeight="0.5"><location href="own"/></l>'
    values = [Value.text(index, type_, written if "loc" in type_ else type_) for index, type_ in enumerate(types, 1)]
    assert find_locations(NAME, values, NOTHING, is_alone=True) == find_locations(NAME, values, NOTHING)

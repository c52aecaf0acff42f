"""Which place somebody is sent to: worked examples, what is included, hostile lists, and a slow model of the choice."""

from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.location_choice import (
    MAX_NETWORKS,
    MAX_TOTAL_NETWORKS,
    SelectedLocation,
    SelectionCriteria,
    parse_address,
    parse_locatt,
    select_location,
)
from perseid.records.locations import (
    MAX_HREF_LENGTH,
    MAX_INCLUDE_DEPTH,
    MAX_INCLUDES,
    MAX_LOCATION_BYTES,
    MAX_LOCATION_LISTS,
    MAX_LOCATIONS,
    Candidates,
    Method,
    RecordLookup,
    expand_template,
    find_locations,
    parse_number,
)
from perseid.records.namespace import Namespace
from perseid.records.value import Permission, Value
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


def kept(**records: Iterable[Value]) -> RecordLookup:
    """Records under `1/<name>`, and under `0.NA/<prefix>` for names such as na_20_500."""
    names = {name.replace("_", "."): tuple(values) for name, values in records.items()}
    return lambda name: names.get(name.lower().removeprefix("1/").replace("0.na/", "na."))


NOTHING = kept()


def places(values: Iterable[Value], look_up: RecordLookup = NOTHING, handle: Handle = NAME) -> Candidates:
    return find_locations(handle, values, look_up)


def sent(values: Iterable[Value], *wishes: str, number: float = 0.5, **more: str) -> str | None:
    """Where a request goes."""
    known = SelectionCriteria(
        tuple(map(parse_locatt, wishes)), more.get("country"), parse_address(more.get("address", ""))
    )
    chosen = select_location(places(values), known, number)
    return None if chosen is None else chosen.place.href


# Choosing


def test_the_worked_example() -> None:
    uk, other = "https://uk.example/", "https://www1.example/"
    values = [loc(EXAMPLE)]
    assert sent(values, country="GB") == uk
    assert sent(values, country="fr") == sent(values) == other
    assert sent(values, "id:0") == sent(values, "id:0", country="fr") == uk
    assert sent(values, "country:us") == sent(values, "id:9") == other
    assert sent(values, "id:0", "id:1") == uk, "the second finds nothing among what the first has left"
    assert sent(values, "country") == uk, "an attribute alone: whoever has it"


def test_the_recorded_examples() -> None:
    values = [loc(RECORDED), url("https://url.example/")]
    assert sent(values, "http_role:no_conneg") == "https://b.example/"
    assert sent(values, "id:0") == "https://a.example/"
    turtle = sent(values, "ctype:text/turtle", "media-type:text/turtle", "http_role:conneg")
    assert turtle == "https://c.example/20.500.99999/vec-h-loc?h=20.500.99999%2Fvec-h-loc"
    shown = [(place.href, place.weight, place.is_url) for place in places(values).places]
    assert shown[0] == ("https://a.example/", 0.0, False)
    assert shown[-1] == ("https://url.example/", 0.0, True)
    assert places(values).places[0].location.get("http_sc") == "303"


@pytest.mark.parametrize(
    ("attributes", "wishes", "expected"),
    [
        (('weight="1"', 'weight="0"'), SelectionCriteria(), "0"),
        (('weight="-5"', ""), SelectionCriteria(), "1"),  # less than nothing is nothing; not said is 1
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
        (('country="de"', 'weight="0"'), SelectionCriteria(country="us"), "1"),  # of no country, as the documents say
        (('country="de"', 'country="fr" weight="0"'), SelectionCriteria(country="us"), "0"),  # none of them: undone
        (('lang="de" weight="0"', 'lang="DE"'), SelectionCriteria((("lang", "de"),)), "0"),  # letters count
    ],
)
def test_each_method(attributes: tuple[str, str], wishes: SelectionCriteria, expected: str) -> None:
    written = "".join(f'<location href="{number}" {text}/>' for number, text in enumerate(attributes))
    chosen = select_location(places([loc(f"<l>{written}</l>")]), wishes, 0.9 if expected == "1" else 0.1)
    assert chosen is not None
    assert chosen.place.href == expected


def test_methods_are_tried_in_the_order_of_the_list() -> None:
    text = '<l {}><location href="a" score="1"/><location href="b" country="de" score="0"/></l>'
    wishes = SelectionCriteria(country="de")

    def by(attribute: str) -> tuple[str, Method | None]:
        chosen = select_location(places([loc(text.format(attribute))]), wishes, 0.0)
        assert chosen is not None
        return chosen.place.href, chosen.by

    assert by("") == ("b", Method.COUNTRY)
    assert by('chooseby="score,country"') == ("a", Method.SCORE)
    assert by('chooseby="Score" choose_by=" COUNTRY , nonsense"') == ("b", Method.COUNTRY)
    assert by('chooseby=""') == ("a", Method.WEIGHTED)
    assert select_location(places([url("x")]), wishes, 0.0) == SelectedLocation(places([url("x")]).places[0], None)


def test_one_number_decides_in_proportion_to_the_weights() -> None:
    values = [
        loc('<l><location href="a" weight="1"/><location href="b" weight="0"/><location href="c" weight="3"/></l>')
    ]
    counts = Counter(sent(values, number=step / 1_000) for step in range(1_000))
    assert counts == {"a": 250, "c": 750}
    zero = [loc('<l><location href="a" weight="0"/><location href="b" weight="0"/></l>')]
    assert Counter(sent(zero, number=step / 10) for step in range(10)) == {"a": 5, "b": 5}
    thirds = [loc("<l>" + '<location href="x" weight="0.1"/>' * 3 + '<location href="y" weight="0"/></l>')]
    assert sent(thirds, number=1 - 2**-53) == "x", "what rounding leaves over is no reason to send anybody elsewhere"
    for number in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="not a random number"):
            select_location(places(values), SelectionCriteria(), number)


def test_nowhere_to_go() -> None:
    assert sent([]) is None
    assert sent([Value.text(1, "EMAIL", "a@example.org")]) is None
    assert sent([loc("<l><location id='5'/></l>")]) is None, "a location that does not say where it is"


# Which places there are


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([url("b", 5), url("a", 3)], [("a", 1.0), ("b", 0.0)]),  # the first by index is meant
        ([url("x", 1, "URL.us"), url("a", 2)], [("a", 1.0), ("x", 0.0)]),
        ([url("x", 1, "URL.us"), url("y", 2, "url.de")], [("x", 1.0), ("y", 0.0)]),
        ([url("a", 1, "0.TYPE/URL")], [("a", 1.0)]),
        ([loc("<l/>"), url("a")], [("a", 0.0)]),
        ([loc('<l urlWeight="2" urlSubtypeWeight="3"/>'), url("a"), url("x", 3, "URL.x")], [("a", 2.0), ("x", 3.0)]),
        ([loc('<l no_legacy="yes"><location href="l"/></l>'), url("a")], [("l", 1.0)]),
        ([loc("<l><location"), url("a")], [("a", 1.0)]),  # what cannot be read is not there
        ([loc("<l><location href='1'/></l>", 9), loc("<l><loc_template href='2'/><x href='3'/></l>", 4)],
         [("2", 1.0), ("1", 1.0)]),
        ([Value(1, "URL", b"secret", permissions=Permission(0x0C)), url("a")], [("a", 1.0)]),
        ([loc('<l><location href="a" weight="nan"/><location href="b" weight="1e99"/></l>')], [("a", 1.0), ("b", 1.0)]),
    ],
)  # fmt: skip
def test_own_locations_and_urls(values: list[Value], expected: list[tuple[str, float]]) -> None:
    assert [(place.href, place.weight) for place in places(values).places] == expected


def test_a_handle_in_a_template_is_encoded() -> None:
    handle = Handle.parse_lenient("12345/a b?ü")
    assert expand_template("x?{hdl}", handle) == "x?12345%2Fa%20b%3F%C3%BC"
    assert expand_template("x/{hdl:path}", handle) == "x/12345/a%20b%3F%C3%BC"
    assert expand_template("{hdl:path}", Handle.parse("1/-._~!$()*,:@/;=&+")) == "1/-._~!$()*,:@/;=%26%2B"
    assert expand_template("{hdl}", Handle.parse_lenient("1/{hdl:path}")) == "1%2F%7Bhdl%3Apath%7D", (
        "what was put in is not read again"
    )


def test_lists_include_lists() -> None:
    look_up = kept(
        a=[loc('<l include="1/b" chooseby="score"><location href="a"/></l>')],
        b=[loc('<l http_sc="307"><location href="b"/><include>1/a</include><include>1/none</include></l>'), url("no")],
        c=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/d</locs></n>")],
        d=[loc('<l><location href="d"/></l>')],
    )
    own = loc('<l include="1/A" http_sc="303"><location href="own"/><includeNamespace>1/c</includeNamespace></l>')
    found = places([own, url("u")], look_up)
    assert [place.href for place in found.places] == ["own", "a", "d", "b", "u"]
    assert (found.methods, found.get("http_sc"), found.get("nothing"), found.truncated) == (
        (Method.SCORE,),
        "303",
        None,
        False,
    )


def test_namespaces_add_locations() -> None:
    look_up = kept(
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        na_20_500=[Value.text(1, "HS_NAMESPACE", "<n><locs no_nslocs='yes'>1/middle</locs></n>")],
        na_20=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/far</locs></n>")],
        na_77=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/far</locs></n>")],
        near=[loc('<l><location href="near/{hdl}"/><location href_template="near/{hdl}"/></l>')],
        middle=[loc('<l><location href="middle"/></l>')],
        far=[loc('<l><location href="far"/></l>')],
    )

    def hrefs(*values: Value, handle: Handle = NAME) -> list[str]:
        return [place.href for place in places(values, look_up, handle).places]

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
def test_of_an_attribute_the_first_list_counts_own_included_or_of_the_namespace(written: list[dict[str, int]]) -> None:
    """The rules on plain dictionaries: own, then included, then of the namespace."""
    own, included, from_namespace = (
        " ".join(f'{name}="{number}"' for name, number in each.items()) for each in written
    )
    look_up = kept(
        other=[loc(f"<l {included}/>")],
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        near=[loc(f'<l {from_namespace}><location href="near"/></l>')],
    )
    found = places([loc(f'<l {own} include="1/other"/>'), url("u"), url("sub", 3, "URL.x")], look_up)
    known = {name: number for each in reversed(written) for name, number in each.items()}
    expected = [("u", known.get("urlWeight", 0)), ("sub", known.get("urlSubtypeWeight", 0))]
    if known.get("no_legacy") == 1:
        expected = []
    assert [(place.href, place.weight) for place in found.places] == [*expected, ("near", 1)]
    assert found.get("http_sc") == (str(known["http_sc"]) if "http_sc" in known else None)


@pytest.mark.parametrize(
    ("attribute", "expected"), [('no_legacy="yes"', [("n", 1)]), ('urlWeight="0"', [("u", 0), ("n", 1)])]
)
def test_a_namespace_decides_about_urls_where_the_record_has_no_list(
    attribute: str, expected: list[tuple[str, float]]
) -> None:
    look_up = kept(
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/near</locs></n>")],
        near=[loc(f'<l {attribute} no_nslocs="yes" nshdl="1/x"><location href="n"/></l>')],
    )
    assert [(place.href, place.weight) for place in places([url("u")], look_up).places] == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" -2.5 ", -2.5), ("+.5", 0.5), ("1e2", 100), ("1.", 1), ("1_0", 9), ("\u0661", 9), ("inf", 9),
     ("nan", 9), ("0x1", 9), ("1e99", 9), ("", 9), (None, 9), ("1" * 5_000, 9)],
)  # fmt: skip
def test_numbers_are_read_as_they_are_elsewhere(text: str | None, number: float) -> None:
    assert parse_number(text, 9.0) == number


# Hostile lists


def test_a_namespace_is_taken_apart_once_and_counts_like_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    from_bytes = Namespace.from_bytes

    def counted(data: bytes) -> Namespace:
        parsed.append(len(data))
        return from_bytes(data)

    monkeypatch.setattr(Namespace, "from_bytes", counted)
    space = [Value.text(1, "HS_NAMESPACE", "<n>" + "".join(f"<locs>1/{n}</locs>" for n in range(50)) + "</n>")]
    naming = "<l>" + "".join(f"<includeNamespace>1/space{n % 5}</includeNamespace>" for n in range(500)) + "</l>"
    lists = [loc(naming, index) for index in range(1, 6)]
    found = places(lists, lambda name: space if "space" in name else [loc(f"<l><location href='{name}'/></l>")])
    assert len(parsed) == 5
    assert [place.href for place in found.places] == [f"1/{n}" for n in range(50)], "and each list counts once"

    parsed.clear()
    padded = [Value.text(1, "HS_NAMESPACE", f"<n>{' ' * 60_000}</n>")]
    found = places([loc("<l>" + "".join(f"<includeNamespace>1/{n}</includeNamespace>" for n in range(90)) + "</l>")],
                   lambda _: padded)  # fmt: skip
    assert found.truncated
    assert sum(parsed) <= MAX_LOCATION_BYTES

    parsed.clear()
    broken = [Value.text(index, "HS_NAMESPACE", "<n") for index in range(1, 2_000)]
    found = places([loc("<l includeNamespace='1/a'/>")], lambda _: broken)
    assert found.truncated
    assert len(parsed) < MAX_LOCATION_LISTS


def test_a_record_that_is_included_and_named_by_the_namespace_counts_once() -> None:
    look_up = kept(
        a=[loc('<l><location href="a"/></l>')],
        na_20_500_99999=[Value.text(1, "HS_NAMESPACE", "<n><locs>1/A</locs></n>")],
    )
    assert [place.href for place in places([loc('<l include="1/a"/>')], look_up).places] == ["a"]


def test_an_address_that_a_template_makes_is_not_longer_than_one_that_is_written() -> None:
    handle = Handle.parse("1/" + "x" * 2_000)
    fitting = (MAX_HREF_LENGTH // len(expand_template("{hdl}", handle))) * "{hdl}"
    text = f'<l><location href_template="{fitting}"/><location href_template="{"{hdl}" * 1_600}"/></l>'
    found = places([loc(text)], handle=handle)
    assert [len(place.href) for place in found.places] == [len(expand_template(fitting, handle))]


def test_lists_that_include_each_other_end() -> None:
    look_up = kept(a=[loc('<l include="1/b"><location href="a"/></l>')], b=[loc('<l include="1/a"/>')])
    found = places([loc('<l include="1/a"/>')], look_up)
    assert ([place.href for place in found.places], found.truncated) == (["a"], False)


def test_includes_are_followed_so_deep_and_no_deeper() -> None:
    def look_up(name: str) -> list[Value]:
        number = int(name.removeprefix("1/n")) if name.startswith("1/n") else None
        return [] if number is None else [loc(f'<l include="1/n{number + 1}"><location href="{number}"/></l>')]

    found = places([loc('<l include="1/n1"/>')], look_up)
    assert [place.href for place in found.places] == [str(number) for number in range(1, MAX_INCLUDE_DEPTH + 1)]
    assert found.truncated


def test_so_many_records_are_looked_up_and_no_more() -> None:
    asked: list[str] = []

    def look_up(name: str) -> list[Value]:
        asked.append(name)
        more = "".join(f"<include>{name}{digit}</include>" for digit in range(10))
        return [loc(f'<l>{more}<location href="{name}"/></l>')]

    found = places([loc('<l include="1/n"/>')], look_up)
    assert (len(asked), len(set(asked)), found.truncated) == (MAX_INCLUDES, MAX_INCLUDES, True)
    assert select_location(found, SelectionCriteria(), 0.5) is not None


def test_limits_of_lists_bytes_and_locations() -> None:
    lists = [loc('<l><location href="x"/></l>', index) for index in range(1, 2_000)]
    assert (len(places(lists).places), places(lists).truncated) == (MAX_LOCATION_LISTS, True)
    long = f"<l><location href='x'/>{' ' * (MAX_XML_BYTES - 40)}</l>"
    many = places([loc(long, index) for index in range(1, 100)])
    assert (len(many.places), many.truncated) == (MAX_LOCATION_BYTES // len(long), True)
    full = "<l>" + "<location href='x'/>" * 600 + "</l>"
    assert (len(places([loc(full, 1), loc(full, 2)]).places), places([loc(full, 1), loc(full, 2)]).truncated) == (
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
def test_xml_that_is_refused_counts_as_if_it_were_not_there(text: str) -> None:
    assert sent([loc(text), url("u")]) == "u"


def test_a_list_of_very_many_networks_is_not_read_to_its_end() -> None:
    networks = ",".join(["10.0.0.0/8"] * 500 + ["192.0.2.1"])
    text = f'<l><location href="a" weight="0" addresses="{networks}"/><location href="b"/></l>'
    assert sent([loc(text)], address="192.0.2.1") == "b"


def test_networks_of_all_locations_together_are_bounded() -> None:
    many = ",".join(["10.0.0.0/8"] * MAX_NETWORKS)
    filling = f'<location href="no" weight="0" addresses="{many}"/>'
    last = '<location href="last" weight="0" addresses="192.0.2.1"/><location href="other"/>'
    full = MAX_TOTAL_NETWORKS // MAX_NETWORKS
    assert sent([loc(f"<l>{filling * (full - 1)}{last}</l>")], address="192.0.2.1") == "last"
    assert sent([loc(f"<l>{filling * full}{last}</l>")], address="192.0.2.1") == "other"
    none = '<location href="no" weight="0"/>'
    assert sent([loc(f"<l>{none * 900}{last}</l>")], address="192.0.2.1") == "last", "none is no network"


def test_an_ipv4_address_is_known_in_the_clothes_of_the_other_kind() -> None:
    text = '<l><location href="a" weight="0" addresses="192.0.2.0/24"/><location href="b"/></l>'
    assert sent([loc(text)], address="::ffff:192.0.2.9") == "a"
    assert sent([loc(text)], address="::ffff:198.51.100.9") == "b"
    written = text.replace("192.0.2.0/24", "::ffff:192.0.2.0/120")
    assert sent([loc(written)], address="::ffff:192.0.2.9") == "a"


# Compared with a model

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
_wishes = st.builds(
    SelectionCriteria,
    st.lists(st.sampled_from([("lang", "de"), ("lang", None), ("country", "GB"), ("no", None)]), max_size=3).map(tuple),
    st.sampled_from([None, "de", "gb", "us"]),
    st.sampled_from([None, ip_address("10.1.1.1"), ip_address("192.0.2.9"), ip_address("::1")]),
)
_methods = st.lists(st.sampled_from(list(Method)), max_size=4)


def number_of(text: str | None, missing: float) -> float:
    try:
        return float(text or "")
    except ValueError:
        return missing


def model(found: list[dict[str, str]], methods: list[Method], wishes: SelectionCriteria, number: float) -> str | None:
    """The rules one after the other, on plain dictionaries."""
    left = found
    for method in [*methods, Method.WEIGHTED]:
        if len(left) == 1:
            break
        keep = left
        if method is Method.LOCATT:
            for name, value in wishes.attributes:
                keep = [one for one in keep if name in one and value in (None, one[name])] or keep
        elif method is Method.ADDRESS and wishes.address is not None:
            first, second, all_six = (
                str(wishes.address).startswith("10."),
                "192.0.2" in str(wishes.address),
                wishes.address.version == 6,
            )
            near = {"10.0.0.0/8": first, "x,192.0.2.0/24": second, "::/0": all_six}
            keep = [one for one in left if near.get(one.get("addresses", ""), False)]
        elif method is Method.COUNTRY and wishes.country is not None:
            keep = [one for one in left if one.get("country", "").lower() == wishes.country]
            keep = keep or [one for one in left if not one.get("country")]
        elif method is Method.SCORE:
            keep = [one for one in left if all(score(one) >= score(other) for other in left)]
        elif method is Method.WEIGHTED and left:
            keep = [weighted(left, number)]
        left = keep or left
    return left[0]["href"] if left else None


def score(one: dict[str, str]) -> float:
    return number_of(one.get("score"), 0.0)


def weighted(left: list[dict[str, str]], number: float) -> dict[str, str]:
    weights = [max(number_of(one.get("weight"), 1.0), 0.0) for one in left]
    if not any(weights):
        return left[int(number * len(left))]
    tickets = [one for one, weight in zip(left, weights, strict=True) for _ in range(int(weight * 2))]
    return tickets[int(number * len(tickets))]


@given(st.lists(_locations, max_size=5), _methods, _wishes, st.integers(0, 63).map(lambda step: step / 64))
@settings(max_examples=150, deadline=None)
def test_the_choice_is_that_of_the_model(
    locations: list[dict[str, str]], methods: list[Method], wishes: SelectionCriteria, number: float
) -> None:
    written = [{"href": str(at), **attributes} for at, attributes in enumerate(locations)]
    inner = "".join(
        f"<location {' '.join(f'{name}={quoteattr(text)}' for name, text in one.items())}/>" for one in written
    )
    named = ",".join(method.value for method in methods)
    found = places([loc(f'<l chooseby="{named}">{inner}</l>')])
    chosen = select_location(found, wishes, number)
    assert (None if chosen is None else chosen.place.href) == model(written, methods, wishes, number)

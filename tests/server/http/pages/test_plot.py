"""Plots as SVG: what is drawn, for whom, and within which bounds."""

import itertools
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from perseid.server.http.pages.plot import MAX_POINTS, WIDTH, InvalidPlot, Plot, Series, bar_chart, line_chart

DAYS = [f"2026-11-{day:02}" for day in range(1, 31)]
PAGE_BYTES = 100_000


def parse(text: str) -> ET.Element:
    return ET.fromstring(text)


def plot(*series: Series, labels: list[str] | None = None, title: str = "Resolutions by day") -> Plot:
    return Plot("resolutions", title, DAYS if labels is None else labels, series)


def heights(root: ET.Element, number: int) -> list[float]:
    group = root.find(f"g[@class='plot-series-{number}']")
    assert group is not None
    return [float(rect.attrib["height"]) for rect in group.iter("rect")]


def test_bars_are_proportional_and_stacked() -> None:
    root = parse(bar_chart(plot(Series("People", [10, 20]), Series("Bots", [5, 0]), labels=DAYS[:2])))
    people, bots = heights(root, 1), heights(root, 2)
    assert people[1] == pytest.approx(2 * people[0])
    assert bots == [pytest.approx(people[0] / 2, abs=0.1)]
    first, second = (root.find(f"g[@class='plot-series-{number}']/rect") for number in (1, 2))
    assert first is not None
    assert second is not None
    assert float(second.attrib["y"]) + bots[0] == pytest.approx(float(first.attrib["y"]), abs=0.1)


def test_a_reader_who_does_not_see_it_gets_title_range_and_largest_value() -> None:
    root = parse(bar_chart(plot(Series("Resolutions", list(range(30))))))
    assert root.attrib["role"] == "img"
    shown = {child.attrib["id"]: child.text or "" for child in root if "id" in child.attrib}
    assert root.attrib["aria-labelledby"].split() == list(shown)
    assert shown["resolutions-title"] == "Resolutions by day"
    assert shown["resolutions-desc"] == "2026-11-01 – 2026-11-30; Resolutions: ≤ 29 (2026-11-30)"


def test_each_bar_and_point_has_its_value_as_tooltip() -> None:
    series = Series("People", [1234, 5])
    for text in (bar_chart(plot(series, labels=DAYS[:2])), line_chart(plot(series, labels=DAYS[:2]))):
        titles = [title.text for title in parse(text).iter("title")]
        assert titles[1:] == ["2026-11-01: 1,234 (People)", "2026-11-02: 5 (People)"]


def test_axes_have_round_values_and_few_dates() -> None:
    root = parse(bar_chart(plot(Series("All", [17] * 30))))
    texts = [text.text for text in root.iter("text")]
    assert texts[1:6] == ["0", "5", "10", "15", "20"]
    assert texts[6:] == DAYS[::6]


@pytest.mark.parametrize("draw", [bar_chart, line_chart])
def test_date_near_the_end_is_shown(draw: Callable[[Plot], Markup]) -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 32)]
    texts = list(parse(draw(plot(Series("All", [1] * 31), labels=days))).iter("text"))
    assert [text.text for text in texts if text.text in days] == days[::7]
    assert all(float(text.attrib["x"]) <= WIDTH for text in texts)


def test_dates_do_not_touch_each_other() -> None:
    for count in range(1, 130):
        labels = [f"2026-01-{day:03}" for day in range(count)]
        root = parse(bar_chart(plot(Series("All", [1] * count), labels=labels)))
        dates = [text for text in root.iter("text") if (text.text or "").startswith("2026")]
        widths = {"middle": (-35, 35), "end": (-70, 0)}
        spans = [[float(each.attrib["x"]) + side for side in widths[each.attrib["text-anchor"]]] for each in dates]
        assert all(end <= start + 0.2 for (_, end), (start, _) in itertools.pairwise(spans))


def test_large_values_are_short_on_the_axis() -> None:
    for value, shown in ((4_000, "4,000"), (40_000, "40k"), (4_000_000, "4M"), (4_000_000_000, "4G")):
        texts = [text.text for text in parse(line_chart(plot(Series("All", [value]), labels=["x"]))).iter("text")]
        assert shown in texts


def test_nothing_to_show_is_an_empty_plot() -> None:
    for draw in (bar_chart, line_chart):
        root = parse(draw(plot(Series("All", []), labels=[])))
        assert [text.text for text in root.iter("text")] == ["All", "0", "1"]
        assert not list(parse(draw(plot(Series("All", [0, 0]), labels=["a", "b"]))).iterfind(".//g/rect"))


def test_text_is_escaped() -> None:
    hostile = "<script>\"'&</script>"
    for draw in (bar_chart, line_chart):
        text = draw(Plot(hostile, hostile, [hostile], [Series(hostile, [1])], hostile))
        assert "<script" not in text
        root = parse(text)
        assert root[0].text == root[1].text == hostile
        assert root.attrib["aria-labelledby"] == f"{hostile}-title {hostile}-desc"


def test_nothing_is_forbidden_by_the_content_security_policy() -> None:
    for draw in (bar_chart, line_chart):
        for element in parse(draw(plot(Series("All", [1] * 30)))).iter():
            assert not {name for name in element.attrib if name == "style" or name.startswith("on")}
            assert element.tag not in {"script", "style", "image", "use", "a"}


def test_many_days_are_combined_so_that_a_page_stays_small() -> None:
    days = [str(number) for number in range(1826)]
    series = [Series(f"Series {number}", [10_000] * 1826) for number in range(4)]
    bars = parse(bar_chart(plot(*series, labels=days)))
    assert len(heights(bars, 1)) <= MAX_POINTS
    assert "0 – 15: 160,000 (Series 0)" in [title.text for title in bars.iter("title")]
    assert len(bar_chart(plot(*series, labels=days))) < PAGE_BYTES
    line = parse(line_chart(plot(Series("Level", list(range(1826))), labels=days)))
    assert "0 – 15: 15 (Level)" in [title.text for title in line.iter("title")]


@pytest.mark.parametrize(
    ("series", "problem"),
    [
        ((), "0 series"),
        ((Series("a", [1]),) * 5, "5 series"),
        ((Series("a", [1, 2]),), "2 values for 1 labels"),
        ((Series("a", [-1]),), "negative"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(series: tuple[Series, ...], problem: str) -> None:
    with pytest.raises(InvalidPlot, match=problem):
        Plot("p", "P", ["x"], series)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), max_size=400))
def test_everything_is_drawn_inside_the_plot(pairs: list[tuple[int, int]]) -> None:
    labels = [str(number) for number in range(len(pairs))]
    shown = plot(Series("A", [one for one, _ in pairs]), Series("B", [other for _, other in pairs]), labels=labels)
    for root in (parse(bar_chart(shown)), parse(line_chart(shown))):
        for rect in root.iterfind(".//g/rect"):
            x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 52 <= x <= x + width <= 472.2
            assert 25.9 <= y <= y + height <= 196.2
        for point in root.iter("circle"):
            assert 52 <= float(point.attrib["cx"]) <= 472
            assert 26 <= float(point.attrib["cy"]) <= 196

"""Plots as SVG, for pages: bars for what happened in each period, a line for a level over time.

A plot needs no script and no stylesheet: it is drawn in `currentColor`, so it follows light and dark mode, and series
differ in opacity. A stylesheet can color them by class: `plot`, `plot-grid`, `plot-label`, and `plot-series-1` to
`plot-series-4`. Nothing has a style attribute, which the content security policy of a page forbids.

A reader who does not see it gets the title and a description with the range and the largest value; a page should offer
the numbers as a table or a download, too. Each bar and each point of a line has its value as a tooltip.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

MAX_POINTS: Final = 120
"""Bars or points of a series. More could not be told apart, and a page has less than 100 kB: neighbors are combined."""

MAX_SERIES: Final = 4
"""Series in one plot: more shades cannot be told apart."""

MAX_TICKS: Final = 5
"""Lines of the grid above zero."""

MAX_DATES: Final = 5
"""Labels below the axis: dates do not touch each other."""

WIDTH: Final = 480
HEIGHT: Final = 230
"""Size in units of the drawing; it is as wide as its container. At 360 pixels, labels are still legible."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 472, 26, 196  # the plot inside the drawing: labels and legend are around it
_BASELINE = 214  # of the labels below the axis
_OPACITIES = ("1", "0.65", "0.4", "0.22")
_GAP = 0.2  # share of a bar's place that is empty, if the place is wide enough
_MIN_GAP_WIDTH = 3.0
_TO = " – "  # between the first and the last of combined periods
_DATE_WIDTH = 70.0  # estimated width of a date, and the space after it
_DATE_END = WIDTH - 2.0  # of a date that would not fit below its bar or point
_LEGEND_CHARACTER = 6.6  # estimated width of a character


class InvalidPlot(ValueError):
    """The numbers of a plot do not fit together."""


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one kind, one for each label of the plot."""

    label: str
    values: Sequence[int]


@dataclass(frozen=True, slots=True)
class Plot:
    """What a plot shows; all texts are for people, in their language."""

    name: str
    """Unique in the page: the ids of title and description start with it."""
    title: str
    labels: Sequence[str]
    """The periods, in order: days as `2026-11-18`."""
    series: Sequence[Series]
    description: str = ""
    """What a reader who does not see the plot should know; otherwise made of the numbers."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= MAX_SERIES:
            raise InvalidPlot(f"{len(self.series)} series; a plot has 1 to {MAX_SERIES}")
        for series in self.series:
            if len(series.values) != len(self.labels):
                raise InvalidPlot(f"{series.label}: {len(series.values)} values for {len(self.labels)} labels")
            if any(value < 0 for value in series.values):
                raise InvalidPlot(f"{series.label}: negative values cannot be drawn")


def bar_chart(plot: Plot) -> Markup:
    """Draw stacked bars. Combined periods are added up."""
    labels, rows = _combine(plot, sum)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    top = _axis_top(max(totals, default=0))
    place = (_RIGHT - _LEFT) / max(1, len(labels))
    width = place * (1 - _GAP) if place > _MIN_GAP_WIDTH else place
    bars = []
    below = [0] * len(labels)
    for number, (series, values) in enumerate(zip(plot.series, rows, strict=True)):
        shapes = []
        for position, value in enumerate(values):
            if not value:
                continue
            x = _LEFT + position * place + (place - width) / 2
            y, base = _y(below[position] + value, top), _y(below[position], top)
            below[position] += value
            shapes.append(
                f'<rect x="{_round(x)}" y="{_round(y)}" width="{_round(width)}" height="{_round(base - y)}">'
                f"<title>{_tooltip(labels[position], series.label, value)}</title></rect>"
            )
        bars.append(f"<g {_paint(number)}>{''.join(shapes)}</g>")
    centers = [_LEFT + (position + 0.5) * place for position in range(len(labels))]
    return _drawing(plot, labels, centers, top, "".join(bars))


def line_chart(plot: Plot) -> Markup:
    """Draw lines. Of combined periods the last level is shown."""
    labels, rows = _combine(plot, lambda values: values[-1])
    top = _axis_top(max((max(values, default=0) for values in rows), default=0))
    step = (_RIGHT - _LEFT) / max(1, len(labels) - 1)
    xs = [_LEFT + position * step for position in range(len(labels))]
    radius = _round(min(2.5, max(1.0, step / 4)))
    lines = []
    for number, (series, values) in enumerate(zip(plot.series, rows, strict=True)):
        points = [(_round(x), _round(_y(value, top))) for x, value in zip(xs, values, strict=True)]
        path = " ".join(f"{x},{y}" for x, y in points)
        dots = "".join(
            f'<circle cx="{x}" cy="{y}" r="{radius}"><title>{_tooltip(label, series.label, value)}</title></circle>'
            for (x, y), label, value in zip(points, labels, values, strict=True)
        )
        lines.append(
            f'<g {_paint(number)}><polyline points="{path}" fill="none" stroke="currentColor" stroke-width="2"/>'
            f"{dots}</g>"
        )
    return _drawing(plot, labels, xs, top, "".join(lines))


# Parts


def _drawing(plot: Plot, labels: Sequence[str], xs: Sequence[float], top: int, shapes: str) -> Markup:
    name = escape(plot.name)
    description = escape(plot.description or _describe(plot))
    return Markup(  # noqa: S704 - every text is escaped
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" fill="currentColor" '
        f'font-size="12" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(plot.title)}</title><desc id="{name}-desc">{description}</desc>'
        f"{_legend(plot.series)}{_grid(top)}{shapes}{_dates(labels, xs)}</svg>"
    )


def _legend(series: Sequence[Series]) -> str:
    parts = []
    x = float(_LEFT)
    for number, one in enumerate(series):
        parts.append(
            f'<rect {_paint(number)} x="{_round(x)}" y="6" width="10" height="10"/>'
            f'<text class="plot-label" x="{_round(x + 15)}" y="15">{escape(one.label)}</text>'
        )
        x += 15 + len(one.label) * _LEGEND_CHARACTER + 18
    return "".join(parts)


def _grid(top: int) -> str:
    """Horizontal lines with their values; the axis is stronger."""
    parts = []
    for value in range(0, top + 1, _step(top)):
        y = _round(_y(value, top))
        opacity = "0.2" if value else "0.7"
        parts.append(
            f'<line class="plot-grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" '
            f'stroke-opacity="{opacity}"/><text class="plot-label" x="{_LEFT - 6}" y="{_round(_y(value, top) + 4)}" '
            f'text-anchor="end">{_short(value)}</text>'
        )
    return "".join(parts)


def _dates(labels: Sequence[str], xs: Sequence[float]) -> str:
    every = -(-len(labels) // MAX_DATES) or 1
    parts = []
    free = float("-inf")  # where the next label can start
    for position in range(0, len(labels), every):
        x = xs[position]
        anchor = "end" if x > _RIGHT - _DATE_WIDTH / 2 else "middle"
        x = _DATE_END if anchor == "end" else x
        start = x - (_DATE_WIDTH if anchor == "end" else _DATE_WIDTH / 2)
        if start < free:
            continue
        free = start + _DATE_WIDTH
        parts.append(
            f'<text class="plot-label" x="{_round(x)}" y="{_BASELINE}" text-anchor="{anchor}">'
            f"{escape(labels[position].partition(_TO)[0])}</text>"
        )
    return "".join(parts)


def _paint(number: int) -> str:
    return f'class="plot-series-{number + 1}" fill="currentColor" opacity="{_OPACITIES[number]}"'


def _tooltip(label: str, series: str, value: int) -> Markup:
    return escape(f"{label}: {value:,} ({series})")


def _describe(plot: Plot) -> str:
    """The range, and of each series the sum and the largest value."""
    if not plot.labels:
        return "–"
    parts = [f"{plot.labels[0]}{_TO}{plot.labels[-1]}"]
    for series in plot.series:
        largest = max(series.values)
        parts.append(f"{series.label}: ≤ {largest:,} ({plot.labels[list(series.values).index(largest)]})")
    return "; ".join(parts)


# Numbers


def _combine(plot: Plot, combine: Callable[[Sequence[int]], int]) -> tuple[list[str], list[list[int]]]:
    """Return at most `MAX_POINTS` labels and values; neighbors are combined, the last group may be shorter."""
    size = -(-len(plot.labels) // MAX_POINTS) or 1
    starts = range(0, len(plot.labels), size)
    groups = [plot.labels[start : start + size] for start in starts]
    labels = [group[0] if len(group) == 1 else f"{group[0]}{_TO}{group[-1]}" for group in groups]
    return labels, [[combine(series.values[start : start + size]) for start in starts] for series in plot.series]


def _step(top: int) -> int:
    """The distance of grid lines: 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * MAX_TICKS >= top:
                return factor * power
        power *= 10


def _axis_top(largest: int) -> int:
    """The value at the top: the first grid line that is not below the largest value."""
    step = _step(max(1, largest))
    return max(1, -(-largest // step)) * step


def _y(value: int, top: int) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / top


def _round(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _short(value: int) -> str:
    """A number for the axis, where there is little space."""
    for power, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= power:
            divisor = 1_000 if unit == "k" else power
            return f"{value / divisor:.1f}".removesuffix(".0") + unit
    return f"{value:,}"

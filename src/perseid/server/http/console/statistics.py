"""Statistics: plots of requests, changes and growth, the numbers as a table and CSV, and wanted identifiers."""

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from perseid.client.errors import ClientError
from perseid.schema.namespaces import Namespace
from perseid.schema.statistics import StatisticsPeriod, StatisticsResponse, StatisticsRow, WantedHandle
from perseid.server.http.messages import Response
from perseid.server.http.pages.plot import Plot, Series, bar_chart, line_chart
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import NO_STORE

from .requests import ConsoleRequest
from .routing import Pages

STATISTICS: Final = Pages("statistics")

MAX_WANTED: Final = 20
"""Wanted identifiers on the page; the API has all of them."""


@STATISTICS.get("/statistics")
async def show_statistics(console: ConsoleRequest) -> Response:
    """Show plots and numbers."""
    namespaces = list((await console.api.namespaces(mine=True).page()).namespaces)
    shown = {name: console.text(name) for name in ("since", "until")}
    by = _period(console)
    found, problem = None, None
    try:
        found = await _read(console, namespaces)
    except ClientError as error:
        problem = error
    return console.render(
        "statistics.html",
        title=_("Statistics"),
        problem=problem,
        namespaces=[each.prefix for each in namespaces],
        namespace=console.text("namespace") if found is None else found.namespace or "",
        by=by.value,
        since=shown["since"],
        until=shown["until"],
        found=found,
        plots=[] if found is None or by is StatisticsPeriod.NAMESPACE else _plots(found),
        label=_label(by),
        wanted=await _wanted(console, found),
    )


@STATISTICS.get("/statistics/csv")
async def download(console: ConsoleRequest) -> Response:
    """Return the numbers as a file."""
    table = await console.api.statistics_csv(
        console.text("namespace") or None,
        by=_period(console),
        since=console.text("since") or None,
        until=console.text("until") or None,
    )
    disposition = ("Content-Disposition", 'attachment; filename="statistics.csv"')
    return Response(200, (("Content-Type", "text/csv; charset=utf-8"), disposition, NO_STORE), table)


async def _read(console: ConsoleRequest, namespaces: Sequence[Namespace]) -> StatisticsResponse:
    """Read what was asked for; by default everything, or the first namespace of a user who cannot see all."""
    asked = console.query.first("namespace")
    options = {name: console.text(name) or None for name in ("since", "until")}
    by = _period(console)
    try:
        return await console.api.statistics(asked or None, by=by, since=options["since"], until=options["until"])
    except ClientError as error:
        if asked is not None or not namespaces or error.problem is None or error.problem.status != 403:
            raise
    first = namespaces[0].prefix
    return await console.api.statistics(first, by=by, since=options["since"], until=options["until"])


async def _wanted(console: ConsoleRequest, found: StatisticsResponse | None) -> list[WantedHandle]:
    if found is None or found.namespace is None:
        return []
    try:
        return (await console.api.wanted(found.namespace)).handles[:MAX_WANTED]
    except ClientError:
        return []  # for administrators only


def _period(console: ConsoleRequest) -> StatisticsPeriod:
    text = console.text("by")
    return StatisticsPeriod(text) if text in list(StatisticsPeriod) else StatisticsPeriod.DAY


def _label(by: StatisticsPeriod) -> Callable[[StatisticsRow], str]:
    """What a row is called: its day, its hour, or its namespace."""
    if by is StatisticsPeriod.NAMESPACE:
        return lambda row: row.namespace or _("not hosted")
    if by is StatisticsPeriod.HOUR:
        return lambda row: (row.start or "")[5:16].replace("T", " ")
    return lambda row: (row.start or "")[:10]


def _plots(found: StatisticsResponse) -> list[tuple[str, Markup]]:
    """The plots with their titles; those for administrators if they have the numbers."""
    rows = found.rows
    labels = [_label(found.by)(row) for row in rows]

    def bars(name: str, title: str, *series: Series) -> tuple[str, Markup]:
        return title, bar_chart(Plot(name, title, labels, series))

    plots = [
        bars(
            "resolutions",
            _("Resolutions"),
            Series(_("Native protocol"), [row.native for row in rows]),
            Series(_("Redirects"), [row.redirects for row in rows]),
            Series(_("Pages and data"), [row.pages + row.json for row in rows]),
            Series(_("Bots"), [row.bots for row in rows]),
        )
    ]
    if activities := [row.activity for row in rows if row.activity is not None]:
        plots += [
            bars(
                "not-found",
                _("Not found"),
                Series(_("People and programs"), [each.not_found for each in activities]),
                Series(_("Bots"), [each.bot_not_found for each in activities]),
            ),
            bars(
                "changes",
                _("Changes"),
                Series(_("Created"), [each.created for each in activities]),
                Series(_("Updated"), [each.updated for each in activities]),
                Series(_("Deleted"), [each.deleted for each in activities]),
            ),
            bars(
                "durations",
                _("Duration of requests"),
                Series(_("< 1 ms"), [each.durations.under_1ms for each in activities]),
                Series(_("1–10 ms"), [each.durations.under_10ms for each in activities]),
                Series(_("10–100 ms"), [each.durations.under_100ms for each in activities]),
                Series(_("longer"), [each.durations.under_1s + each.durations.slower for each in activities]),
            ),
        ]
    growth = Series(_("Public identifiers"), [row.identifiers for row in rows])
    title = _("Growth")
    return [*plots, (title, line_chart(Plot("growth", title, labels, [growth])))]

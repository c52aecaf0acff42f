"""`perseid statistics`: requests and changes by day, hour or namespace, and wanted identifiers."""

from collections.abc import Callable
from typing import Annotated

import typer

from perseid.bulk.export import statistics_csv
from perseid.schema.statistics import StatisticsPeriod, StatisticsResponse, StatisticsRow, WantedHandles

from ._arguments import ActingAs, Directory, printable
from ._output import AsJson, print_json, print_message, print_text
from ._target import open_target

_COLUMNS = ("resolutions", "native", "redirects", "pages", "json", "bots", "not_found", "changes", "identifiers")


def statistics(  # noqa: PLR0913 - options
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="The namespace. Default: all, for server administrators.")
    ] = None,
    *,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="The first day or hour. Default: 30 days ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The last one. Default: now.")] = None,
    by: Annotated[
        StatisticsPeriod, typer.Option("--by", metavar="day|hour|namespace", help="What a line is about.")
    ] = StatisticsPeriod.DAY,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with all columns.")] = False,
    wanted: Annotated[
        bool,
        typer.Option("--wanted", help="List the identifiers of PREFIX that were requested most and do not exist."),
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show how often identifiers were resolved, requested in vain and changed, and how many there are.

    A running server counts requests without addresses or identities, and tells bots apart over HTTP. Days are kept for
    five years, hours for 14 days. The numbers are some seconds old.

    For example:
        perseid statistics
        perseid statistics 102.100.272 --by hour
        perseid statistics --by namespace --from 2026-01-01 --csv
        perseid statistics 102.100.272 --wanted --json
    """
    if wanted and prefix is None:
        raise typer.BadParameter("--wanted requires a PREFIX")
    if csv and (json or wanted):
        raise typer.BadParameter("--csv cannot be used with --json or --wanted")
    with open_target(directory, acting_as) as target:
        if wanted:
            _print_wanted(target.wanted(str(prefix)), json)
            return
        found = target.statistics(prefix, by=by, since=since, until=until)
    if json:
        print_json(found)
    elif csv:
        print_text(statistics_csv(found).decode().replace("\r\n", "\n"), nl=False)
    else:
        _print_table(found)


def _print_wanted(found: WantedHandles, json: bool) -> None:
    if json:
        print_json(found)
        return
    for each in found.handles:
        print_text(f"{each.count:>8,}  {each.last}  {printable(each.handle)}")
    if not found.handles:
        print_message("No identifier was requested that does not exist.")


def _print_table(found: StatisticsResponse) -> None:
    if found.by is StatisticsPeriod.NAMESPACE:
        names = [printable(row.namespace or "(other)") for row in found.rows]
    else:
        length = len("2026-11-15") if found.by is StatisticsPeriod.DAY else len("2026-11-15T10:00")
        names = [(row.start or "")[:length] for row in found.rows]
    rows = [_cells(row) for row in found.rows]
    width = max(map(len, (found.by.value, *names)))
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for name, cells in ((found.by.value, _COLUMNS), *zip(names, rows, strict=True)):
        aligned = [f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)]
        print_text(f"{name:<{width}}  {'  '.join(aligned)}")


def _cells(row: StatisticsRow) -> tuple[str, ...]:
    activity = row.activity
    hidden = "–"
    return (
        *(f"{number:,}" for number in (row.resolutions, row.native, row.redirects, row.pages, row.json, row.bots)),
        hidden if activity is None else f"{activity.not_found:,}",
        hidden if activity is None else f"{activity.created + activity.updated + activity.deleted:,}",
        f"{row.identifiers:,}",
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"statistics": statistics}

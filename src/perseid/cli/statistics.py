"""`perseid statistics`: requests and changes by day, hour or namespace, and wanted identifiers."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from perseid.bulk.export import statistics_csv
from perseid.schema.statistics import StatisticsPeriod, StatisticsResponse, StatisticsRow, WantedHandles

from ._arguments import ActingAs, Directory, printable
from ._output import AsJson, print_json, print_message, print_text
from ._target import open_target

_COLUMNS = ("resolutions", "native", "http", "bots", "not_found", "changes", "identifiers")


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
    if not found.handles:
        print_message("No identifier was requested that does not exist.")
        return
    print_text("requests  last        handle")
    for each in found.handles:
        print_text(f"{each.count:>8,}  {each.last}  {printable(each.handle)}")


def _print_table(found: StatisticsResponse) -> None:
    """Print the rows from the first that is not empty, and their total."""
    numbers = [_numbers(row) for row in found.rows]
    by_namespace = found.by is StatisticsPeriod.NAMESPACE
    empty = 0 if by_namespace else next((n for n, row in enumerate(numbers) if any(row[:-1])), len(numbers) - 1)
    lines = [(_name(found.by, row), cells) for row, cells in zip(found.rows[empty:], numbers[empty:], strict=True)]
    if len(lines) > 1:
        *sums, identifiers = [_add(column) for column in zip(*numbers, strict=True)]
        lines.append(("total", (*sums, identifiers if by_namespace else numbers[-1][-1])))
    table = [(found.by.value, _COLUMNS), *[(name, tuple(map(_format, cells))) for name, cells in lines]]
    width = max(len(name) for name, _ in table)
    widths = [max(map(len, column)) for column in zip(*[cells for _, cells in table], strict=True)]
    for name, cells in table:
        aligned = [f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)]
        print_text(f"{name:<{width}}  {'  '.join(aligned)}")


def _name(by: StatisticsPeriod, row: StatisticsRow) -> str:
    if by is StatisticsPeriod.NAMESPACE:
        return printable(row.namespace or "not hosted")
    start = row.start or ""
    return start[:10] if by is StatisticsPeriod.DAY else start[5:16].replace("T", " ")


def _numbers(row: StatisticsRow) -> tuple[int | None, ...]:
    """The cells of a row; None for what the caller cannot see."""
    activity = row.activity
    return (
        *(row.resolutions, row.native, row.redirects + row.pages + row.json, row.bots),
        None if activity is None else activity.not_found,
        None if activity is None else activity.created + activity.updated + activity.deleted,
        row.identifiers,
    )


def _add(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(filter(None, numbers))


def _format(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


commands: dict[str, Callable[..., None] | typer.Typer] = {"statistics": statistics}

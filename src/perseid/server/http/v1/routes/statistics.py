"""Routes of statistics: requests and changes by day, hour or namespace, and wanted identifiers."""

from typing import Final

from perseid.bulk.export import statistics_csv
from perseid.registry.queries.statistics import list_wanted, read_statistics
from perseid.schema.statistics import StatisticsQuery, StatisticsResponse, WantedHandles, WantedQuery
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.routing import Reply, Routes

STATISTICS: Final = Routes("Statistics", "Requests and changes by day, hour or namespace.")

_PROBLEMS: Final = (401, 403, 404, 422)


@STATISTICS.add("GET", "/statistics", "Get statistics", scope="find", problems=_PROBLEMS)
async def get_statistics(call: ApiCall, query: StatisticsQuery) -> Reply[StatisticsResponse]:
    """Return requests and changes by day, hour or namespace, counted without addresses or identities.

    Administrators of a namespace see its statistics, server administrators those of all. If the policy lets others list
    the handles, they see resolutions and growth. Days are kept for five years, hours for 14 days; the last seconds may
    be missing.
    """
    return Reply(await _read(call, query))


@STATISTICS.add(
    "GET",
    "/statistics/csv",
    "Get statistics as CSV",
    scope="find",
    media_types=("text/csv",),
    problems=_PROBLEMS,
)
async def download_statistics(call: ApiCall, query: StatisticsQuery) -> Reply[bytes]:
    """Return the same as a table, for spreadsheets."""
    return Reply(statistics_csv(await _read(call, query)), media_type="text/csv; charset=utf-8")


@STATISTICS.add("GET", "/statistics/wanted", "List wanted identifiers", scope="find", problems=_PROBLEMS)
async def list_wanted_handles(call: ApiCall, query: WantedQuery) -> Reply[WantedHandles]:
    """List identifiers of a namespace that were requested most often and do not exist.

    Requires an administrator of the namespace. Reserved and unpublished identifiers are not listed, and requests by
    bots are not counted. Identifiers that nobody has requested for 90 days are dropped.
    """
    store = call.registry.statistics
    return Reply(await call.read(lambda context: list_wanted(context, store, query.namespace)))


async def _read(call: ApiCall, query: StatisticsQuery) -> StatisticsResponse:
    store, now = call.registry.statistics, call.now()
    return await call.read(lambda context: read_statistics(context, store, query, now))

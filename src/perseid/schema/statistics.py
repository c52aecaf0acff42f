"""Statistics: requests and changes by day, hour or namespace, and wanted identifiers."""

from enum import StrEnum
from typing import Annotated, Final

from .common import MAX_MOMENT, Doc, RequestBody, ResponseBody

MAX_WANTED: Final = 200
"""Wanted identifiers of a namespace: as many as are kept."""

Date = Annotated[
    str,
    Doc(
        "A date or time in ISO 8601, by default in UTC.",
        min_length=1,
        max_length=MAX_MOMENT,
        examples=["2026-11-01"],
    ),
]
PrefixText = Annotated[str, Doc("A prefix.", min_length=1, max_length=2_043, examples=["12345"])]


class StatisticsPeriod(StrEnum):
    """What a row of statistics is about."""

    DAY = "day"
    HOUR = "hour"
    """Kept for 14 days."""
    NAMESPACE = "namespace"
    """All days together, for each namespace."""


class StatisticsQuery(RequestBody, frozen=True):
    """Which statistics to return."""

    namespace: Annotated[PrefixText | None, Doc("The namespace; all of the server if omitted.")] = None
    by: Annotated[StatisticsPeriod, Doc("What a row is about.")] = StatisticsPeriod.DAY
    since: Annotated[
        Date | None, Doc("The first day or hour. Default: 30 days ago, or 48 hours ago with `by=hour`.")
    ] = None
    until: Annotated[Date | None, Doc("The last day or hour; now if omitted.")] = None


class Durations(ResponseBody, frozen=True, omit_defaults=False):
    """Requests by the time that the server took."""

    under_1ms: Annotated[int, Doc("Less than a millisecond.")]
    under_10ms: Annotated[int, Doc("1 to 10 milliseconds.")]
    under_100ms: Annotated[int, Doc("10 to 100 milliseconds.")]
    under_1s: Annotated[int, Doc("0.1 to 1 second.")]
    slower: Annotated[int, Doc("A second or longer.")]


class Activity(ResponseBody, frozen=True, omit_defaults=False):
    """What only administrators see."""

    not_found: Annotated[int, Doc("Requests for identifiers that do not exist or are not public, without bots.")]
    bot_not_found: Annotated[int, Doc("Such requests of bots.")]
    created: Annotated[int, Doc("Records that were created or reserved.")]
    updated: Annotated[int, Doc("Other changes of records.")]
    deleted: Annotated[int, Doc("Records that were deleted.")]
    durations: Annotated[Durations, Doc("All requests for identifiers, by duration.")]


class StatisticsRow(ResponseBody, frozen=True, omit_defaults=False):
    """The numbers of a day, an hour or a namespace."""

    resolutions: Annotated[int, Doc("Requests that were answered with a record, without bots.")]
    native: Annotated[int, Doc("Of these, over the native protocol, which does not tell bots apart.")]
    redirects: Annotated[int, Doc("Of these, redirects to the target.")]
    pages: Annotated[int, Doc("Of these, web pages.")]
    json: Annotated[int, Doc("Of these, data over HTTP.")]
    bots: Annotated[int, Doc("Resolutions by bots, which name themselves in the header `User-Agent`.")]
    published: Annotated[int, Doc("Identifiers that became public; 0 if the policy hides the past from you.")]
    withdrawn: Annotated[int, Doc("Public identifiers that were deleted, hidden or made tombstones; 0 likewise.")]
    identifiers: Annotated[
        int, Doc("Public identifiers at the end of the period, without tombstones; likewise, those of now.")
    ]
    start: Annotated[str | None, Doc("The start of the day or hour, in UTC.", examples=["2026-11-15T10:00:00Z"])] = None
    namespace: Annotated[
        str | None,
        Doc(
            "The namespace, with uppercase letters, with `by=namespace`; empty for all requests for prefixes that are "
            "not hosted here."
        ),
    ] = None
    activity: Annotated[Activity | None, Doc("More, for administrators of the namespace; otherwise null.")] = None


class StatisticsResponse(ResponseBody, frozen=True, omit_defaults=False):
    """Statistics."""

    namespace: Annotated[str | None, Doc("The namespace; null for all of the server.")]
    by: Annotated[StatisticsPeriod, Doc("What a row is about.")]
    since: Annotated[str, Doc("The start of the first period.", examples=["2026-11-15T00:00:00Z"])]
    until: Annotated[str, Doc("The end of the last period.", examples=["2026-11-16T00:00:00Z"])]
    rows: Annotated[list[StatisticsRow], Doc("The rows: every day or hour, also those without requests.")]


class WantedQuery(RequestBody, frozen=True):
    """Whose wanted identifiers to return."""

    namespace: Annotated[PrefixText, Doc("The namespace.")]


class WantedHandle(ResponseBody, frozen=True):
    """An identifier that was requested and does not exist."""

    handle: Annotated[str, Doc("The handle, as requested.", examples=["12345/x"])]
    count: Annotated[int, Doc("Number of requests, at most: rare ones share their counts.")]
    last: Annotated[str, Doc("The day of the last request.", examples=["2026-11-15"])]


class WantedHandles(ResponseBody, frozen=True, omit_defaults=False):
    """The most wanted identifiers of a namespace that do not exist."""

    namespace: Annotated[str, Doc("The namespace.")]
    handles: Annotated[list[WantedHandle], Doc(f"The handles, the most wanted first; at most {MAX_WANTED}.")]

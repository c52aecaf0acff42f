"""URLs of a handle at this server, for links in headers and documents.

    {name}                       its target; with `Accept-Datetime`, the redirect to a version (TimeGate)
    {name}?noredirect            its record, as a page
    {name}?action=json-ld …      its record in another form
    {name}?at=SEQ                its state after an entry (memento)
    /timemap/link/{name}         its versions (TimeMap)
    /timemap/json/{name}

All of them start with the public URL in the settings, never with the `Host` of a request. Without a public URL there
are no absolute URLs, and so no such links.
"""

from collections.abc import Mapping
from typing import Final

from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from perseid.registry.queries.links import LINK_FORMAT, LINKSET_JSON, Link, format_headers
from perseid.registry.queries.memento import JSON, MementoUrls
from perseid.registry.queries.signposting import AlternateForm
from perseid.server.http.context import HttpSettings
from perseid.server.http.targets import encode_path

from .paths import FORMS, TIME_MAPS, Action, absolute_url, encode_name, get_resolvers, path_to

API_HANDLES_PATH: Final = "/api/handles/"

TIME_MAP_FORMS: Final[Mapping[str, str]] = {"link": LINK_FORMAT, "json": JSON}
"""Forms in the path of a TimeMap, and their media types."""

MAX_SIGNPOSTED_NAME: Final = 256
"""Length of the longest encoded name whose redirects carry all links: they repeat it three times, and proxies allow 4
to 8 KiB of headers. Longer names get only the first link, which RFC 7089 requires. Nearly all names are shorter
than a hundred characters."""

MAX_LINK_BYTES: Final = 2_048
"""Bytes of all links to versions in headers: half of the limit for all links. If the first does not fit, there are
none."""


def get_resolver(settings: HttpSettings) -> Resolver:
    """The resolver used in citations: this one if it has a public URL."""
    return (*get_resolvers(settings), *KNOWN_RESOLVERS)[0]


def record_url(name: str, settings: HttpSettings, *parameters: str) -> str:
    """The URL of a name, with parameters that are already encoded."""
    url = absolute_url(path_to(name, settings), settings)
    return f"{url}?{'&'.join(parameters)}" if parameters else url


def get_forms(name: str, settings: HttpSettings, at: int | None = None) -> tuple[AlternateForm, ...]:
    """The other forms of a record, now or after an entry; none without a public URL."""
    if not settings.public_url:
        return ()
    then = () if at is None else (f"at={at}",)
    forms = [
        AlternateForm(record_url(name, settings, f"action={action.value}", *then), media_type)
        for action, media_type in FORMS.items()
    ]
    plain = absolute_url(API_HANDLES_PATH + encode_path(name), settings)
    return (*forms, AlternateForm("?".join((plain, *then)), JSON))


def get_addresses(name: str, settings: HttpSettings) -> MementoUrls | None:
    """The URLs of a handle's history; None without a public URL."""
    if not settings.public_url:
        return None
    original = record_url(name, settings)
    return MementoUrls(
        original,
        original,
        lambda media_type, before: time_map_url(name, settings, media_type, before),
        lambda seq: record_url(name, settings, f"at={seq}"),
    )


def get_api_addresses(name: str, settings: HttpSettings) -> MementoUrls | None:
    """The same for the record in the API."""
    if not settings.public_url:
        return None
    original = absolute_url(API_HANDLES_PATH + encode_path(name), settings)
    return MementoUrls(
        original,
        original,
        lambda media_type, before: time_map_url(name, settings, media_type, before),
        lambda seq: f"{original}?at={seq}",
    )


def time_map_url(name: str, settings: HttpSettings, media_type: str, before: int | None = None) -> str:
    """The URL of a TimeMap: of the versions before an entry, or of the latest."""
    form = next(form for form, type_ in TIME_MAP_FORMS.items() if type_ == media_type)
    url = absolute_url(f"/{TIME_MAPS}/{form}/{encode_name(name)}", settings)
    return url if before is None else f"{url}?before={before}"


def redirect_links(name: str, settings: HttpSettings, *, with_map: bool = True) -> str | None:
    """The links of a redirect as one header: to the history and to the linkset, which has all other links.

    Redirects are the most frequent responses and should stay small. `with_map` is False for a name without TimeMap.
    """
    if not settings.public_url:
        return None
    original, is_short = record_url(name, settings), len(encode_name(name)) <= MAX_SIGNPOSTED_NAME
    if len(original) > MAX_LINK_BYTES:
        return None
    links = [Link(original, "original timegate")]
    if is_short and with_map:
        links.append(Link(time_map_url(name, settings, LINK_FORMAT), "timemap", type=LINK_FORMAT))
    if is_short:
        linkset = record_url(name, settings, f"action={Action.LINKSET_JSON.value}")
        links.append(Link(linkset, "linkset", type=LINKSET_JSON))
    return ", ".join(format_headers(links))


def link_pieces(path: str, settings: HttpSettings) -> tuple[str, ...]:
    """The parts of that header around the name, for the fast path; `path` precedes the name in URLs."""
    original, time_map = f"{settings.public_url}{path}", f"{settings.public_url}/{TIME_MAPS}/link/"
    return (
        f"<{original}",
        f'>; rel="original timegate", <{time_map}',
        f'>; rel="timemap"; type="{LINK_FORMAT}", <{original}',
        f'?action={Action.LINKSET_JSON.value}>; rel="linkset"; type="{LINKSET_JSON}"',
    )

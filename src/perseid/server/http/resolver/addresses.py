"""Where everything about a name is to be had at this server, for links in headers and documents.

    {name}                       where it leads; with `Accept-Datetime`, the way to what it was then (TimeGate)
    {name}?noredirect            its record, as a page
    {name}?action=json-ld …      its record in another form
    {name}?at=SEQ                what it was after an entry (memento)
    /timemap/link/{name}         which versions there are (TimeMap)
    /timemap/json/{name}

All of them begin with the address that the settings declare, and never with what a request says in `Host`. A server
that has declared none has no absolute addresses, and so no such links.
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
"""What stands in the path of a TimeMap, and the media type that it means."""

MAX_SIGNPOSTED_NAME: Final = 256
"""Characters of the longest name, encoded, whose redirections carry all of their links: they repeat it three times, and
servers on the way have room for 4 to 8 KiB of headers. Those of longer ones have the first only, which RFC 7089
demands. Nearly all names have fewer than a hundred."""

MAX_LINK_BYTES: Final = 2_048
"""Octets of all links to versions in headers: half of what all links may have. A name so long that not even the first
of them fits has none."""


def get_resolver(settings: HttpSettings) -> Resolver:
    """The resolver at which identifiers are cited: this one, if it has declared its address."""
    return (*get_resolvers(settings), *KNOWN_RESOLVERS)[0]


def record_url(name: str, settings: HttpSettings, *parameters: str) -> str:
    """The address of a name, with parameters that are encoded already."""
    address = absolute_url(path_to(name, settings), settings)
    return f"{address}?{'&'.join(parameters)}" if parameters else address


def get_forms(name: str, settings: HttpSettings, at: int | None = None) -> tuple[AlternateForm, ...]:
    """The record of a name in its other forms, as it is now or was after an entry; none if they have no address."""
    if not settings.public_url:
        return ()
    then = () if at is None else (f"at={at}",)
    found = [
        AlternateForm(record_url(name, settings, f"action={action.value}", *then), media_type)
        for action, media_type in FORMS.items()
    ]
    plain = absolute_url(API_HANDLES_PATH + encode_path(name), settings)
    return (*found, AlternateForm("?".join((plain, *then)), JSON))


def get_addresses(name: str, settings: HttpSettings) -> MementoUrls | None:
    """Where the past of a name is to be had; None if nothing here has an address."""
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
    """The same for the record as the API gives it."""
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
    """The address of a TimeMap: of the versions before an entry, or from the latest on."""
    form = next(form for form, type_ in TIME_MAP_FORMS.items() if type_ == media_type)
    address = absolute_url(f"/{TIME_MAPS}/{form}/{encode_name(name)}", settings)
    return address if before is None else f"{address}?before={before}"


def redirect_links(name: str, settings: HttpSettings, *, with_map: bool = True) -> str | None:
    """The links that go with a redirection, as one header: to the past of the name, and to all other links.

    The rest is in the linkset. A redirection is what is asked for most, and should stay small. Without a TimeMap for a
    name that has none.
    """
    if not settings.public_url:
        return None
    original, is_short = record_url(name, settings), len(encode_name(name)) <= MAX_SIGNPOSTED_NAME
    if len(original) > MAX_LINK_BYTES:
        return None
    found = [Link(original, "original timegate")]
    if is_short and with_map:
        found.append(Link(time_map_url(name, settings, LINK_FORMAT), "timemap", type=LINK_FORMAT))
    if is_short:
        linkset = record_url(name, settings, f"action={Action.LINKSET_JSON.value}")
        found.append(Link(linkset, "linkset", type=LINKSET_JSON))
    return ", ".join(format_headers(found))


def link_pieces(path: str, settings: HttpSettings) -> tuple[str, ...]:
    """What stands before, between and behind the name in that header, for whoever puts it together without looking at
    the name; `path` is what stands before it in a path.
    """
    original, time_map = f"{settings.public_url}{path}", f"{settings.public_url}/{TIME_MAPS}/link/"
    return (
        f"<{original}",
        f'>; rel="original timegate", <{time_map}',
        f'>; rel="timemap"; type="{LINK_FORMAT}", <{original}',
        f'?action={Action.LINKSET_JSON.value}>; rel="linkset"; type="{LINKSET_JSON}"',
    )

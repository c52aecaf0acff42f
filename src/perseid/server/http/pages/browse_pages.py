"""Pages that read the registry: front page, namespaces, the ledger, suggestions while typing, and sitemaps.

`registry.queries.browse` decides what everybody can see. What takes long to read, such as the number of handles, is
kept for a minute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast
from urllib.parse import quote, urlencode
from xml.sax.saxutils import escape

from markupsafe import Markup

from perseid.ledger.log.entry import Action as LedgerAction
from perseid.names.handle import CaseRule, Handle, fold
from perseid.names.uri import KNOWN_RESOLVERS
from perseid.records.encoding import to_iso
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import FREE, Audience, Deletion, Policy
from perseid.registry.queries.browse import (
    ListedNamespace,
    NamespaceOverview,
    complete,
    get_overview,
    is_listed,
    list_namespaces,
    list_part,
    list_parts,
)
from perseid.registry.queries.listing import LogEntry
from perseid.registry.queries.prove import signing_keys
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http import responses
from perseid.server.http.context import INTERFACE, HttpSettings, RequestContext
from perseid.server.http.messages import BadRequest, Response
from perseid.server.http.negotiation import PAGE_AGE
from perseid.server.http.resolver.paths import absolute_url, get_resolvers, parse_query, path_to
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from .branding import site_name
from .links import TextLink, to_visible
from .pages import PAGES_SCRIPT, SEARCH_SCRIPT, render_page, url_templates
from .plot import Plot, Series, line_chart
from .texts import _
from .values import MAX_NAME

KEPT_SECONDS: Final = 60
"""How long pages show a number of handles, and recent changes, that may be older."""

SITEMAP_URLS: Final = 1_000
"""Addresses in one sitemap: a page of a listing."""

MAX_SITEMAPS: Final = 10_000
"""Sitemaps in the index; the format allows 50,000."""

MAX_TYPED: Final = 2_048
"""Characters of a text that is completed: the length of the longest handle."""

NAMESPACES: Final = "namespaces"
LEDGER: Final = "ledger"
SITEMAP: Final = "sitemap.xml"

_AGE: Final = (("Cache-Control", f"public, max-age={KEPT_SECONDS}"),)
_SUGGEST_AGE: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_XML: Final = ("Content-Type", "application/xml;charset=utf-8")
_SECOND: Final = 1_000_000
_SITEMAPS: Final = "http://www.sitemaps.org/schemas/sitemap/0.9"

T = TypeVar("T")


async def get_page(request_context: RequestContext, path: str) -> Response | None:
    """Return one of these pages; None if there is none at this path. Raises `Refused`."""
    match path.partition("/"):
        case ("", "", ""):
            return await _front_page(request_context)
        case ("namespaces", "/", prefix) if prefix:
            return await _namespace_page(request_context, prefix)
        case ("ledger", "", ""):
            return await request_context.do(WorkKind.READ, lambda: _ledger_page(request_context))
        case ("suggest", "", ""):
            return await _suggest(request_context)
        case ("sitemap.xml", "", ""):
            return await _sitemap(request_context)
    return None


# Front page


async def _front_page(request_context: RequestContext) -> Response:
    settings = request_context.server.settings
    listed = await _read(request_context, "front", list_namespaces)
    return render_page(
        "front.html",
        settings,
        headers=_AGE,
        scripts=(SEARCH_SCRIPT,),
        title=_("{service}: resolve an identifier").format(service=site_name(settings)),
        forms=url_templates(settings),
        url=f"{settings.public_url}/" if settings.public_url else "",
        api=f"{settings.public_url}/api/handles/{{handle}}",
        namespaces=[_show_namespace(each) for each in listed],
    )


@dataclass(frozen=True, slots=True)
class ShownNamespace:
    """A namespace on the front page."""

    prefix: str
    href: str
    purpose: str
    retired: bool


def _show_namespace(listed: ListedNamespace) -> ShownNamespace:
    purpose = to_visible(listed.purpose.partition("\n")[0], MAX_NAME)
    return ShownNamespace(to_visible(listed.prefix), namespace_path(listed.prefix), purpose, listed.retired)


def namespace_path(prefix: str) -> str:
    """The path of the page of a namespace."""
    return f"/{NAMESPACES}/{quote(prefix, safe='')}"


# Namespaces


async def _namespace_page(request_context: RequestContext, prefix: str) -> Response | None:
    """The page of a namespace; None if it does not exist here."""
    settings = request_context.server.settings
    registry = request_context.server.registry

    def read(snapshot: Snapshot) -> NamespaceOverview:
        return get_overview(registry.context(snapshot, Anonymous(), INTERFACE), prefix, registry.statistics)

    try:
        found = await _read(request_context, f"namespace {fold(prefix)}", read)
    except Refused as refused:
        if refused.code != ResponseCode.SERVER_NOT_RESP:
            raise
        return None
    name = to_visible(prefix, MAX_NAME)
    return render_page(
        "namespace.html",
        settings,
        headers=_AGE,
        scripts=(PAGES_SCRIPT,),
        title=_("Namespace {prefix}").format(prefix=name),
        prefix=name,
        purpose=to_visible(found.policy.purpose),
        summary=to_visible(found.policy.purpose.partition("\n")[0], MAX_NAME),
        url=absolute_url(namespace_path(prefix), settings) if settings.public_url else "",
        retired=found.policy.retired,
        rules=explain_policy(found.policy),
        count=None if found.count is None else f"{found.count:,}",
        listed=found.listed,
        recent=[_show_change(entry, settings) for entry in found.recent],
        growth=_draw_growth(found),
        record=f"{path_to(prefix, settings)}?noredirect",
        api=f"/api/v1/namespaces/{quote(prefix, safe='')}/policy",
    )


def _draw_growth(found: NamespaceOverview) -> Markup | str:
    """The growth as a plot, if there is some."""
    if not found.growth:
        return ""
    days, levels = zip(*found.growth, strict=True)
    return line_chart(Plot("growth", _("Growth"), days, [Series(_("Public identifiers"), levels)]))


def explain_policy(policy: Policy) -> list[str]:
    """The rules of a namespace that matter to readers and depositors, as sentences."""
    audiences = {
        Audience.ADMINISTRATORS: _("Its administrators"),
        Audience.SERVER: _("The administrators of this server"),
        Audience.AUTHENTICATED: _("All users with an account"),
        Audience.PUBLIC: _("Everybody"),
    }
    cases = {
        CaseRule.SENSITIVE: _("Uppercase and lowercase letters are different."),
        CaseRule.INSENSITIVE: _("Uppercase and lowercase letters mean the same."),
        CaseRule.PATH: _("Uppercase and lowercase letters mean the same before the first ? or #."),
    }
    sentences = [
        _("{who} can create identifiers.").format(who=audiences[policy.who_may_mint]),
        _("{who} can list all identifiers.").format(who=audiences[policy.who_may_list]),
        _("A suffix can be any text.")
        if policy.scheme == FREE
        else _("Suffixes follow the scheme {scheme}.").format(scheme=to_visible(policy.scheme, MAX_NAME)),
        cases[policy.case],
        _("Identifiers are never deleted: a withdrawn one says what became of it.")
        if policy.deletion is Deletion.TOMBSTONE
        else _("Administrators can delete identifiers."),
        _("Earlier versions of records are public.") if policy.show_past else _("Earlier versions are not public."),
        _("Everybody sees who made a change.") if policy.show_actors else _("Who made a change is not public."),
    ]
    if policy.authority:
        sentences.append(_("Every record names its date of creation, its creator and its owners."))
    if policy.retired:
        sentences.append(_("The namespace is retired: no new identifiers are created."))
    return sentences


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A change on the page of a namespace."""

    link: TextLink
    time: str
    words: str


def _show_change(entry: LogEntry, settings: HttpSettings) -> ShownChange:
    words = {
        LedgerAction.CREATE: _("Created"),
        LedgerAction.DELETE: _("Deleted"),
        LedgerAction.TOMBSTONE: _("Withdrawn"),
    }
    link = TextLink(to_visible(entry.handle, MAX_NAME), f"{path_to(entry.handle, settings)}?noredirect")
    return ShownChange(link, to_iso(entry.at // _SECOND), words.get(entry.action) or _("Changed"))


# The ledger


def _ledger_page(request_context: RequestContext) -> Response:
    with request_context.server.registry.snapshot() as snapshot:
        reader = snapshot.reader
        note, origin, keys = reader.checkpoint(), reader.origin, signing_keys(reader)
    return render_page(
        "ledger.html",
        request_context.server.settings,
        headers=_AGE,
        scripts=(PAGES_SCRIPT,),
        title=_("Ledger"),
        origin=origin,
        checkpoint=note,
        size="" if note is None else f"{int(note.splitlines()[1]):,}",
        key=str(keys[-1].key),
    )


# Suggestions while typing


async def _suggest(request_context: RequestContext) -> Response:
    """The handles that start with `q`, as JSON."""
    settings = request_context.server.settings
    typed = parse_query(request_context.request.query).first("q") or ""
    found: list[str] = []
    if typed and len(typed) <= MAX_TYPED:
        resolvers = (*get_resolvers(settings), *KNOWN_RESOLVERS)
        found = await request_context.read_short(lambda snapshot: complete(snapshot, typed, resolvers))
    return responses.json_response({"suggestions": list(found)}, headers=_SUGGEST_AGE)


# Sitemaps, as sitemaps.org describes them


async def _sitemap(request_context: RequestContext) -> Response:
    """The index of sitemaps, or with `start` the one that begins with this handle."""
    settings, parameters = request_context.server.settings, parse_query(request_context.request.query)
    start = parameters.first("start")
    if not settings.public_url:
        raise BadRequest("sitemaps need absolute URLs, and this server has no public URL; set http.public_url", 404)
    if start is None:
        return _sitemap_index(await _read(request_context, "sitemaps", _list_sitemaps), settings)
    handles = await request_context.do(WorkKind.READ, lambda: _list_handles(request_context, start))
    urls = [absolute_url(path_to(handle, settings) + "?noredirect", settings) for handle in handles]
    lines = [f"<url><loc>{escape(url)}</loc></url>" for url in urls]
    return _xml("urlset", lines)


def _sitemap_index(starts: list[str], settings: HttpSettings) -> Response:
    addresses = [absolute_url(f"/{SITEMAP}?{urlencode({'start': start})}", settings) for start in starts]
    lines = [f"<sitemap><loc>{escape(each)}</loc></sitemap>" for each in addresses]
    return _xml("sitemapindex", lines)


def _xml(root: str, lines: list[str]) -> Response:
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<{root} xmlns="{_SITEMAPS}">'
    body = "\n".join((head, *lines, f"</{root}>", ""))
    return Response(200, (*_AGE, _XML), body.encode())


def _list_sitemaps(snapshot: Snapshot) -> list[str]:
    """The handles with which sitemaps begin, so that each costs the same, wherever it is."""
    starts: list[str] = []
    for each in list_namespaces(snapshot):
        starts += list_parts(snapshot, each.prefix, SITEMAP_URLS, MAX_SITEMAPS - len(starts))
    return starts


def _list_handles(request_context: RequestContext, start: str) -> list[str]:
    prefix = start.partition("/")[0]
    with request_context.server.registry.snapshot() as snapshot:
        if Handle.for_lookup(start) is None or not is_listed(snapshot, prefix):
            raise BadRequest("there is no such sitemap; use an address of the index unchanged", 404)
        return list_part(snapshot, prefix, start, SITEMAP_URLS)


# Reading


async def _read(request_context: RequestContext, key: str, read: Callable[[Snapshot], T]) -> T:
    """Read in a thread, once for all who wait for it, or return what was read less than `KEPT_SECONDS` ago."""

    def run() -> T:
        with request_context.server.registry.snapshot() as snapshot:
            return read(snapshot)

    kept = request_context.server.slow_results
    return cast("T", await kept.get(key, KEPT_SECONDS, lambda: request_context.do(WorkKind.READ, run)))

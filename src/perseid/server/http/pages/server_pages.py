"""The server's own pages: front page, help, resolver declaration (U4) and static files."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from perseid.records.encoding import JsonObject
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import PAGE_AGE, STATIC_AGE
from perseid.server.http.resolver.paths import (
    PAGES,
    RESERVED_SEGMENTS,
    RESOLVER_PARAMETERS,
    TIME_MAP_FORMS,
    TIME_MAPS,
    Action,
    get_resolvers,
    get_segments,
)

from . import docs_pages
from .branding import get_branded_file, site_name
from .pages import STATIC, read_static, render_page, url_templates
from .texts import _, mark

API: Final = "/api/handles/{handle}"
ROBOTS: Final = b"User-agent: *\nDisallow: /console\nDisallow: /suggest\nCrawl-delay: 1\nRequest-rate: 1/1\n"
"""As deployed resolvers ask: handles are public, and one request per second is enough for a robot."""

NEW_IDENTIFIERS: Final = "/console/new"
"""The page that creates identifiers."""

_AGE: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_STATIC_AGE: Final = (("Cache-Control", f"public, max-age={STATIC_AGE}"),)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter on the help page."""

    text: str
    about: str


PARAMETERS: Final = (
    Parameter("noredirect", mark("Show the record instead of redirecting.")),
    Parameter("type=URL", mark("Use only values of this type. Repeatable. A final dot (URL.) includes subtypes.")),
    Parameter("index=1", mark("Use only the value with this index. Repeatable.")),
    Parameter("ignore_aliases", mark("Do not follow HS_ALIAS values.")),
    Parameter("auth", mark("Bypass caches and get the authoritative response.")),
    Parameter("cert", mark("Accepted for compatibility; responses are always authoritative.")),
    Parameter("urlappend=TEXT", mark("Append this text to the URL. It cannot change the host.")),
    Parameter("locatt=ATTRIBUTE:VALUE", mark("Choose the location with this attribute. Repeatable.")),
    Parameter("action=redirect", mark("Redirect to the target, whatever the Accept header says.")),
    Parameter("action=showvalues", mark("Show the record.")),
    Parameter("action=showurls", mark("List all locations as XML.")),
    Parameter("action=metadata", mark("Redirect to the location whose role is metadata, if there is one.")),
    Parameter("action=api", mark("Get the record as JSON, as in the API.")),
    Parameter("action=explain", mark("Explain how the target is chosen.")),
    Parameter("action=citation", mark("Get the citation as text. Use bibtex or csl-json for other formats.")),
    Parameter("action=json-ld", mark("Get the metadata of the record as schema.org JSON-LD.")),
    Parameter(
        "action=linkset-json", mark("Get all typed links of the record. Use linkset for the Link header format.")
    ),
    Parameter(
        "action=history", mark("Show the versions of the record and their differences; feed returns them as Atom.")
    ),
    Parameter("action=qr", mark("Get the QR code of the identifier as SVG.")),
    Parameter("at=TIME", mark("Resolve as of a time, such as 2026-11-15T10:00:00Z, or after a ledger entry number.")),
    Parameter("redirectionHeaders", mark("Show the headers of the redirect, with status 200.")),
)


def get_page(path: str, settings: HttpSettings, server: str) -> Response | None:
    """Return one of the server's own pages; None if there is none. `server` is passed to `docs_pages.render`."""
    match path:
        case "help.html":
            return render_page(
                "help.html",
                settings,
                headers=_AGE,
                title=_("Help – {service}").format(service=site_name(settings)),
                forms=url_templates(settings),
                parameters=PARAMETERS,
                api=f"{settings.public_url}{API}",
            )
        case "generate":  # the address of the form in earlier versions
            return Response(HTTPStatus.MOVED_PERMANENTLY, (*_AGE, ("Location", NEW_IDENTIFIERS)))
        case "robots.txt":
            sitemap = f"Sitemap: {settings.public_url}/sitemap.xml\n".encode() if settings.public_url else b""
            return Response(200, (*_STATIC_AGE, ("Content-Type", "text/plain;charset=utf-8")), ROBOTS + sitemap)
        case "resolver.json":
            return responses.json_response(declaration(settings), headers=_AGE)
        case "favicon.ico":
            return _file(path)
    name = path.removeprefix("static/")
    if name == path:
        return docs_pages.render(path, settings, server)
    if name in STATIC:
        return _file(name)
    branded = get_branded_file(name, settings)
    return None if branded is None else branded.with_headers(*_AGE)


def declaration(settings: HttpSettings) -> JsonObject:
    """Describe what this server resolves and in which URL forms (U4)."""
    resolvers = get_resolvers(settings)
    authority = {"scheme": resolvers[0].scheme, "authority": resolvers[0].authority} if resolvers else {}
    forms: list[object] = [{"template": form} for form in url_templates(settings)]
    names: list[str | None] = [None] if settings.bare else []
    for form, segment in zip(forms, [*names, *get_segments(settings)], strict=True):
        assert isinstance(form, dict)  # noqa: S101 - made above
        form["segment"] = segment
    return {
        **authority,
        "forms": forms,
        "ownPaths": sorted(RESERVED_SEGMENTS | PAGES - {""}),
        "parameters": sorted(RESOLVER_PARAMETERS),
        "actions": [action.value for action in Action],
        "timemaps": [f"{settings.public_url}/{TIME_MAPS}/{form}/{{handle}}" for form in TIME_MAP_FORMS],
        "api": f"{settings.public_url}{API}",
    }


def _file(name: str) -> Response:
    return Response(200, (*_STATIC_AGE, ("Content-Type", STATIC[name])), read_static(name))

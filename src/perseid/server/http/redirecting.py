"""Where a name leads, and the answer that sends somebody there (§9.4 to §9.6, §10).

Everything here follows from its arguments: the values of a record, the places that they name, what the request wants,
and one random number. So a redirection can be made by whoever has the values, from wherever they come, and is the same.

A place that nobody may be sent to (see `urls`) counts as if it were not there: of several URLs the first that can be
used is. If none can be, there is no redirection, and the record is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Final

from perseid.names.handle import Handle
from perseid.records.location_choice import Address, Chosen, Wishes, choose
from perseid.records.locations import Candidate, Candidates
from perseid.records.value import Value
from perseid.server.http.resolver.redirect import extra_headers
from perseid.wire.codes import ResponseCode

from .caching import age_headers, least_ttl
from .messages import HeaderList, Response
from .negotiation import VARIES, VARIES_IN_THE_PAST, Accepted, Wish
from .settings import HttpSettings
from .urls import Target, Unsuitable, target_of

STATUSES: Final = frozenset((301, 302, 303, 307, 308))
"""What a record may choose as the status of a redirection."""

OLD_STATUSES: Final = frozenset((301, 302))
"""Those that clients of HTTP/1.0 know."""

_CONTENT_TYPE: Final = ("Content-Type", "text/html;charset=utf-8")
_BY_PLACE: Final = ("addresses", "country")  # attributes by which it matters where the client is
_BY_AGENT: Final = ("http_role", "ctype", "media-type")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants, as far as it decides where somebody is sent."""

    accepted: Accepted = field(default_factory=lambda: Accepted(()))
    own: tuple[Wish, ...] = ()
    """Attributes that the request names itself (`locatt`)."""
    derived: tuple[Wish, ...] = ()
    """Attributes that follow from its headers."""
    append: str = ""
    """What is appended to the URL."""
    country: str | None = None
    address: Address | None = None
    insists: bool = False
    """Whether it asks for a redirection in so many words, so that its headers do not turn it into something else."""
    headers_only: bool = False
    """Whether the headers of the redirection are wanted with status 200."""
    fresh: bool = False
    """Whether the answer is wanted from the source, and not from caches."""
    old: bool = False
    """Whether it is a client of HTTP/1.0."""

    @property
    def wishes(self) -> Wishes:
        """All attributes, those named first."""
        return Wishes((*self.own, *self.derived), self.country, self.address)


@dataclass(frozen=True, slots=True)
class Led:
    """Where somebody is sent, and what was looked at on the way."""

    chosen: Chosen | None
    target: Target | None
    status: int
    status_from: str
    """What chose the status: the location, its list, or the settings."""
    unsuitable: Mapping[str, str]
    """Places that nobody is sent to, and why."""


def lead(candidates: Candidates, wanted: Wanted, settings: HttpSettings, number: float) -> Led:
    """Where a request is sent. `number` is random, from 0 up to but without 1."""
    targets: dict[str, Target] = {}
    unsuitable: dict[str, str] = {}
    for place in candidates.places:
        if place.href in targets or place.href in unsuitable:
            continue
        try:
            targets[place.href] = target_of(place.href, settings.schemes)
        except Unsuitable as problem:
            unsuitable[place.href] = str(problem)
    if unsuitable:
        kept = tuple([place for place in candidates.places if place.href in targets])
        candidates = replace(candidates, places=kept)
    chosen = choose(candidates, wanted.wishes, number)
    status, status_from = _status(candidates, chosen, wanted, settings)
    return Led(chosen, None if chosen is None else targets[chosen.place.href], status, status_from, unsuitable)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a name."""

    handle: Handle
    values: tuple[Value, ...]
    """Those that were asked for and everybody may read."""
    candidates: Candidates
    """The places that they name."""
    used: tuple[Value, ...]
    """All values that an answer rests on: those of aliases on the way too."""
    signposts: HeaderList = ()
    """What goes with every answer about the name: links, and when that was."""
    past: bool = False
    """Whether it is told what was."""
    fixed: bool = False
    """Whether it is told what was after an entry, which never changes."""


def redirect(known: Known, wanted: Wanted, settings: HttpSettings, number: float, now: float) -> Response | None:
    """The answer that sends somebody to where a name leads; None if it leads nowhere, or the record is wanted.

    Raises `Unsuitable` if what the request appends to the URL cannot be.
    """
    candidates = known.candidates
    led = lead(candidates, wanted, settings, number)
    if led.chosen is None or led.target is None or _is_record_wanted(led.chosen.place, wanted):
        return None
    target = target_of(led.target.text, settings.schemes, wanted.append) if wanted.append else led.target
    place_matters = any(place.location.get(name) is not None for place in candidates.places for name in _BY_PLACE)
    age = age_headers(least_ttl(known.used, now), now, shared=not place_matters, again=wanted.fresh, fixed=known.fixed)
    return Response(
        200 if wanted.headers_only else led.status,
        (
            ("Location", target.location),
            *age,
            ("Vary", vary(candidates, wanted.accepted, past=known.past)),
            *extra_headers(known.handle, known.values, candidates, settings.schemes),
            *known.signposts,
            _CONTENT_TYPE,
        ),
        _body(target),
        code=ResponseCode.SUCCESS,
        name=str(known.handle),
    )


def vary(candidates: Candidates, accepted: Accepted, *, past: bool = False) -> str:
    """Which headers of a request an answer depends on."""
    named = {name for place in candidates.places for name, _ in place.location.attributes}
    found = [VARIES_IN_THE_PAST if past else VARIES]
    if "language" in named:
        found.append("Accept-Language")
    if named.intersection(_BY_AGENT) and accepted.says_nothing:
        found.append("User-Agent")  # by which it is told whether somebody browses
    return ", ".join(found)


def alias_redirect(location: str, age: HeaderList, name: str, signposts: HeaderList, *, past: bool) -> Response:
    """The answer that tells a client the name that the one it asked for is an alias of."""
    varies = ("Vary", VARIES_IN_THE_PAST if past else VARIES)
    headers: HeaderList = (("Location", location), *age, varies, *signposts)
    return Response(301, headers, code=ResponseCode.SUCCESS, name=name)


def _status(candidates: Candidates, chosen: Chosen | None, wanted: Wanted, settings: HttpSettings) -> tuple[int, str]:
    """The status of a redirection, and what chose it."""
    written = (
        (None if chosen is None else chosen.place.location.get("http_sc"), "location"),
        (candidates.get("http_sc"), "list"),
    )
    found = [(int(text), where) for text, where in written if text is not None and text.strip() in _WORDS]
    status, where = found[0] if found else (settings.redirect_status, "settings")
    return (302, "HTTP/1.0") if wanted.old and status not in OLD_STATUSES else (status, where)


_WORDS: Final = frozenset(str(status) for status in STATUSES)


def _is_record_wanted(place: Candidate, wanted: Wanted) -> bool:
    """Whether the record is given in a form for programs instead: a location that is meant for such goes before it."""
    form = wanted.accepted.named_form
    if wanted.insists or form is None:
        return False
    location = place.location
    is_meant = form in (location.get("media-type"), location.get("ctype")) or location.get("http_role") == "conneg"
    return not is_meant


def _body(target: Target) -> bytes:
    """A page with the link, in the words of deployed resolvers, for clients that do not follow by themselves."""
    return page_of(escape(target.location).encode(), escape(target.text).encode())


def page_of(href: bytes, text: bytes) -> bytes:
    """That page, of what is escaped already."""
    return b'<html><head><title>Handle Redirect</title></head>\n<body><a href="%b">%b</a></body></html>' % (href, text)

"""The web resolver: what a browser, a link checker or a program gets for `GET /{handle}` (§9).

A name leads to where its thing is. If it leads nowhere, its record is shown; if the thing is gone, that is said; and if
there is no such name, that is. Nobody is asked who they are, credentials are not looked at, and only what everybody may
see is shown. The server follows no URL itself.

What is read of the ledger is read at once, in one state, by `looking_up`; what is made of it needs nothing else. With
`at` that is what the name was at a moment, and `Accept-Datetime` leads to it: see `travelling`. What may have been
meant by a name that is not there is looked for afterwards: see `suggested`.
"""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlencode

from perseid.records.location_choice import read_address, read_wish
from perseid.records.locations import Candidates
from perseid.registry.queries.memento import Around
from perseid.registry.results import Refused
from perseid.server.http.caching import age_headers, least_ttl
from perseid.server.http.clients import address_asked
from perseid.server.http.compat import api
from perseid.server.http.context import Asking, HttpSettings
from perseid.server.http.long_responses import tagged
from perseid.server.http.messages import HeaderList, Request, Response
from perseid.server.http.negotiation import (
    HTML,
    JSON,
    VARIES,
    VARIES_IN_THE_PAST,
    Accepted,
    Wish,
    read_accept,
    read_languages,
    wishes,
)
from perseid.server.http.pages import generator, own_pages
from perseid.server.http.pages.pages import POLICY, linked, page, visible
from perseid.server.http.pages.record_page import Links, Shown, Then, as_xml, explained, record_page, tombstone_page
from perseid.server.http.responses import failure_of
from perseid.server.http.targets import Malformed, Parameters
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from . import problems, signposting, time_map, time_travel
from .addresses import API, addresses_of
from .lookup import Found, Lost, Reading, Selection
from .paths import (
    FORMS,
    GENERATOR,
    MAX_FORM,
    TIME_MAPS,
    Action,
    Named,
    Own,
    action_of,
    address_of,
    indexes_of,
    locate,
    path_to,
    percent_encoded_query,
    read_query,
    rest_of,
    typed,
)
from .problems import ABOUT, Problem, suggested
from .redirect import Known, Unsuitable, Wanted, alias_redirect, lead, redirect, vary
from .time_travel import AT, Moment

_FORM: Final = "application/x-www-form-urlencoded"
_FIELD: Final = "hdl"
_METADATA: Final[Wish] = ("role", "metadata")
_LEADING: Final = (None, Action.REDIRECT, Action.METADATA)
_INSISTING: Final = ("locatt", "urlappend", "redirectionHeaders")
_PASSED_ON: Final = ("type", "index", "auth", AT)
_FROM_PAGE: Final = "page"
"""The field by which our own form is known."""

_ABOUT_TIMES: Final = (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND)
"""What is said of a name that may have been there at another time."""

_RANDOM_OCTETS: Final = 6  # as many as a number with a fraction holds exactly
_CREDENTIALS: Final = frozenset(("authorization", "cookie"))
_CONDITIONS: Final = frozenset(("if-match", "if-modified-since", "if-none-match", "if-unmodified-since"))
_TIME: Final = frozenset(("accept-datetime",))
_OURS: Final = frozenset(("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary"))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What somebody asks about a name."""

    named: Named
    parameters: Parameters
    wanted: Wanted
    selection: Selection
    action: Action | None
    query: bytes
    """As it came; the parameters of a form are not part of it."""
    posted: bool
    at: str | None = None
    """The moment that it is about, as it is written; None for the present."""
    time: int | None = None
    """The time that `Accept-Datetime` names, where no moment is."""

    @property
    def leads(self) -> bool:
        """Whether somebody wants to be sent to the thing."""
        return self.action in _LEADING


@dataclass(frozen=True, slots=True)
class _AsJson:
    """The record is to be given as the API gives it."""

    name: str
    status: int = 200
    headers: HeaderList = ()


@dataclass(frozen=True, slots=True)
class _Unknown:
    """There is no such name, and what was meant may be found."""

    text: str
    problem: Problem


async def answer(asking: Asking) -> Response:
    """The answer to a request for a name, or for one of the server's own pages."""
    settings, accepted = asking.place.settings, read_accept(asking.request.all("accept"))
    try:
        return await tagged(asking, await _answer(asking, accepted))
    except Malformed as problem:
        said = problems.malformed(problem.message, problem.status)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it becomes a page
        failure = failure_of(problem, asking)
        said = problems.failed(failure.status, failure.code, failure.message, failure.headers)
    return problems.answer(said, accepted, settings)


async def _answer(asking: Asking, accepted: Accepted) -> Response:
    request, settings = asking.request, asking.place.settings
    form = _form(request)
    located = locate(request.path, settings)
    if located == Own("") and form is not None:
        located = typed(form.first(_FIELD) or "", settings) or located
    if isinstance(located, Named):
        try:
            asked = _asked(request, located, form or Parameters(), accepted)
        except Refused as refused:  # its time cannot be read, and it is a TimeGate all the same (RFC 7089, 4.5.3)
            failure, links = failure_of(refused, asking), time_travel.gate_links(addresses_of(located.name, settings))
            said = problems.failed(failure.status, failure.code, failure.message, (*failure.headers, *links))
            return problems.answer(said, accepted, settings)
        return await _about_name(asking, asked)
    own = None
    if isinstance(located, Own):
        if located.path.startswith(f"{TIME_MAPS}/"):
            return await time_map.answer(asking, located.path, accepted)
        is_generator = located.path == GENERATOR
        if is_generator:
            own = await generator.answer(asking, form)
        else:
            own = own_pages.answer(located.path, settings, address_asked(asking))
    if own is not None:
        return own.with_headers(time_travel.NOT_NEGOTIATED)
    return problems.answer(problems.no_page(located.path, settings), accepted, settings)


async def _about_name(asking: Asking, asked: _Asked) -> Response:
    if asked.action is Action.API:
        return await _from_api(asking, asked.named.name, asked.parameters)
    made = await asking.do(Kind.READ, lambda: _resolved(asking, asked))
    if isinstance(made, Response):
        return made
    if isinstance(made, _Unknown):
        settings = asking.place.settings
        problem = problems.with_suggestions(made.problem, await suggested(asking, made.text), settings)
        return problems.answer(problem, asked.wanted.accepted, settings)
    found = await _from_api(asking, made.name, _selected(asked.parameters), conditional=False)
    headers = [header for header in found.headers if header[0].lower() not in _OURS]
    return replace(
        found, status=made.status if found.status == 200 else found.status, headers=(*headers, *made.headers)
    )


# What is asked


def _form(request: Request) -> Parameters | None:
    """The fields of a form that was posted; None if none was."""
    type_ = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if request.method != "POST" or type_ != _FORM:
        return None
    if len(request.body) > MAX_FORM:
        raise Malformed(f"a form here has at most {MAX_FORM:,} octets, and this one has {len(request.body):,}", 413)
    return Parameters.parse(request.body)


def _asked(request: Request, named: Named, form: Parameters, accepted: Accepted) -> _Asked:
    parameters = read_query(request.query).plus(form.pairs)
    action = action_of(parameters)
    metadata = action is Action.METADATA
    own = tuple([read_wish(text) for text in parameters.all("locatt")])
    languages = read_languages(request.all("accept-language"))
    client = request.client
    address = read_address(client.host)
    if client.trusted and (given := parameters.first("ip")) is not None:
        address = read_address(given) or address
    wanted = Wanted(
        accepted=accepted,
        own=(*own, _METADATA) if metadata else own,
        derived=wishes(accepted, languages, request.header("user-agent") or "", metadata=metadata),
        append=parameters.first("urlappend") or "",
        country=parameters.first("country") if client.trusted else None,
        address=address,
        insists=action is not None or any(name in parameters for name in _INSISTING),
        headers_only="redirectionHeaders" in parameters,
        fresh="auth" in parameters,
        old=request.version == "1.0",
    )
    selection = Selection(
        tuple(parameters.all("type")),
        indexes_of(parameters),
        "ignore_aliases" not in parameters,
        rest_of(request.query),
    )
    at = parameters.first(AT)
    time = time_travel.wanted_time(request) if at is None else None
    return _Asked(named, parameters, wanted, selection, action, request.query, request.method == "POST", at, time)


# What there is: in a thread that may read


def _resolved(asking: Asking, asked: _Asked) -> Response | _AsJson | _Unknown:
    """What a name stands for, as an answer."""
    place, accepted = asking.place, asked.wanted.accepted
    settings, registry = place.settings, place.registry
    with registry.facts() as facts:
        moment = None if asked.at is None else time_travel.moment_of(asked.at, facts, registry)
        reading = Reading(facts, place, registry.now(), None if moment is None else moment.seq)
        try:
            if asked.time is not None:
                return _led_to_past(reading, asked, asked.time, settings)
            found = reading.find(asked.named, asked.selection)
        except Lost as lost:
            return _nothing(lost, reading, asked, settings)
        space = reading.space(found.resolved.handle)
        if space.inactive is not None:
            problem = replace(problems.inactive(found.name, space), past=moment is not None)
            return problems.answer(problem, accepted, settings)
        return _Answering(asking, asked, found, reading, moment).answer()


def _nothing(lost: Lost, reading: Reading, asked: _Asked, settings: HttpSettings) -> Response | _Unknown:
    """What is said where there is nothing to show: that the namespace is not in use, if so, before all else."""
    if lost.space.inactive is not None:
        problem = replace(problems.inactive(lost.name, lost.space), past=reading.at is not None)
        return problems.answer(problem, asked.wanted.accepted, settings)
    code = lost.refused.code
    is_absent = code is ResponseCode.HANDLE_NOT_FOUND and not lost.is_circle
    versions = reading.versions_of(lost) if code in _ABOUT_TIMES and not lost.is_circle else None
    if reading.at is not None and is_absent:
        problem = problems.not_then(lost, versions, reading.at, settings)
    else:
        problem = problems.lost(lost, asked.named.name, settings, restricted=asked.selection.is_restricted)
        problem = replace(problem, past=reading.at is not None)
        if versions is not None and is_absent:
            problem = problems.deleted(problem, versions, settings)
    problem = replace(problem, headers=(*problem.headers, *_times_around(lost, versions, reading, settings)))
    if reading.at is None and code in ABOUT and not lost.is_circle:
        return _Unknown(lost.name, problem)
    return problems.answer(problem, asked.wanted.accepted, settings)


def _times_around(lost: Lost, versions: Around | None, reading: Reading, settings: HttpSettings) -> HeaderList:
    """What is said about other times where there is nothing to show.

    A name that was deleted has a past that can be asked for (RFC 7089, section 4.5.2). A version of which there is
    nothing to show, as of a record without public values or of an alias that leads nowhere, is a memento all the same
    (section 4.5.5). A time without a record is none: it is in no list of versions, and nobody is led to it.
    """
    if lost.first is not None:
        return signposting.time_headers(lost.first, reading, settings)
    if versions is None:
        return ()
    is_memento = reading.at is not None and lost.refused.code is ResponseCode.VALUES_NOT_FOUND
    return time_travel.past_headers(versions, addresses_of(str(versions.handle), settings), is_memento=is_memento)


def _led_to_past(reading: Reading, asked: _Asked, time: int, settings: HttpSettings) -> Response:
    """The answer of the TimeGate: where the version of a time is. Raises `Lost`."""
    found = reading.negotiated(asked.named, asked.selection, time)
    name, versions = found.name, found.versions
    space = reading.space(found.handle)
    if space.inactive is not None:
        return problems.answer(problems.inactive(name, space), asked.wanted.accepted, settings)
    query = percent_encoded_query(asked.query)
    path = f"{path_to(name, settings, asked.named.segment)}?{query}{'&' if query else ''}{AT}={found.seq}"
    addresses = addresses_of(name if versions is None else str(versions.handle), settings)
    headers: HeaderList = (
        ("Location", address_of(path, settings)),
        ("Cache-Control", "no-cache"),  # there may be another version of that time, until the time has passed
        ("Vary", VARIES),
        *(time_travel.gate_links(addresses) if versions is None else time_travel.past_links(versions, addresses)),
    )
    return Response(302, headers, code=int(ResponseCode.SUCCESS), name=name)


@dataclass(frozen=True, slots=True)
class _Answering:
    """A name that stands for something, and somebody who asked for it."""

    asking: Asking
    asked: _Asked
    found: Found
    reading: Reading
    moment: Moment | None
    """That of the past which it is about; None for the present."""

    @property
    def settings(self) -> HttpSettings:
        return self.asking.place.settings

    @property
    def now(self) -> float:
        return self.asking.place.time()

    @property
    def fixed(self) -> bool:
        """Whether the answer stays the same."""
        return self.moment is not None and self.moment.fixed

    @property
    def age(self) -> HeaderList:
        return age_headers(
            least_ttl(self.found.used, self.now), self.now, again=self.asked.wanted.fresh, fixed=self.fixed
        )

    @property
    def kept(self) -> HeaderList:
        """For how long an answer about the record is good, and for whom."""
        return (*self.age, ("Vary", VARIES if self.moment is None else VARIES_IN_THE_PAST))

    @property
    def times(self) -> HeaderList:
        """What is said about other times."""
        return signposting.time_headers(self.found.resolved, self.reading, self.settings)

    def answer(self) -> Response | _AsJson:
        asked, found, settings = self.asked, self.found, self.settings
        wanted = asked.wanted
        if found.aliases and asked.leads and not asked.posted:
            path = path_to(found.name, settings, asked.named.segment)
            query = percent_encoded_query(asked.query)
            location = address_of(f"{path}?{query}" if query else path, settings)
            links = signposting.alias_headers(found, self.reading, settings)
            return alias_redirect(location, self.age, found.name, links, past=self.moment is not None)
        if found.tomb is not None and asked.leads:
            return self.record(wanted.accepted.record_form, gone=True)
        if asked.action is Action.VALUES:
            return self.record(wanted.accepted.record_form)
        if asked.action is not None and asked.action in FORMS:
            return self.record(FORMS[asked.action], gone=found.tomb is not None, located=True)
        candidates = self.reading.candidates(found)
        number = int.from_bytes(self.asking.place.random(_RANDOM_OCTETS), "big") / (1 << 8 * _RANDOM_OCTETS)
        if asked.action is Action.LOCATIONS:
            headers = (*self.kept, *self.times, ("Content-Security-Policy", POLICY))
            return _with(as_xml(candidates, found.values, found.name), headers)
        if asked.action is Action.EXPLAIN:
            led = lead(candidates, wanted, settings, number)
            known = Known(found.resolved.handle, found.values, candidates, found.used)
            made = explained(known, found.aliases, wanted, led, text=not wanted.accepted.prefers_json)
            varies = ("Vary", vary(candidates, wanted.accepted, past=self.moment is not None))
            return _with(made, (("Cache-Control", "no-store"), varies, *self.times))
        return self.redirected(candidates, number) or self.record(wanted.accepted.record_form)

    def redirected(self, candidates: Candidates, number: float) -> Response | None:
        """The answer that sends somebody to where the name leads; None if it leads nowhere, or the record is wanted."""
        found, asked = self.found, self.asked
        known = Known(
            found.resolved.handle,
            found.values,
            candidates,
            found.used,
            signposting.redirection_headers(found, self.reading, self.settings),
            past=self.moment is not None,
            fixed=self.fixed,
        )
        try:
            redirection = redirect(known, asked.wanted, self.settings, number, self.now)
        except Unsuitable as problem:
            raise Malformed(f"urlappend: {problem}") from problem
        if redirection is None or not (asked.posted and _FROM_PAGE in asked.parameters):
            return redirection
        return _leaving(redirection, found, self.settings)

    def record(self, form: str, *, gone: bool = False, located: bool = False) -> Response | _AsJson:
        """The record itself in a form, which is a media type; `gone`, if it is told instead of where its thing was.

        `located`, if that form was asked for by its address, and not chosen by the headers of the request.
        """
        found, reading, settings = self.found, self.reading, self.settings
        status = 410 if gone else 200
        described = signposting.describe(found, reading, settings)
        if form not in (JSON, HTML):
            address = next((each.address for each in described.forms if each.media_type == form), None)
            where = () if located or address is None else (("Content-Location", address),)
            headers = (*self.kept, *where, *signposting.form_headers(described, found, reading, settings))
            return _about(signposting.form_answer(form, described, status, headers), found)
        links_of_record = signposting.record_headers(described, found, reading, settings, is_page=form == HTML)
        headers = (*self.kept, *links_of_record)
        if form == JSON:
            return _AsJson(found.name, status, headers)
        links = Links(settings, reading.is_here)
        then = None if self.moment is None else Then(self.moment.seq, reading.versions(found.resolved))
        api = _api_path(found.name) if self.moment is None else f"{_api_path(found.name)}?{AT}={self.moment.seq}"
        shown = Shown(described.authority, api, then, signposting.embedded(described, settings))
        if gone and found.tomb is not None:
            return _about(tombstone_page(found, found.tomb, shown, links, headers), found)
        return _about(record_page(found, shown, links, headers), found)


def _leaving(redirection: Response, found: Found, settings: HttpSettings) -> Response:
    """A page that leads on, for whoever sent the form of a page: that may send its form to us alone, and some browsers
    do not follow a redirection to anybody else then.
    """
    target = linked(next(redirection.values("location")), settings)
    name = visible(found.name)
    made = page(
        "leaving.html", settings, headers=(("Cache-Control", "no-store"),), title=name, name=name, target=target
    )
    return _about(made, found)


def _about(response: Response, found: Found) -> Response:
    return replace(response, code=int(ResponseCode.SUCCESS), name=found.name)


def _with(response: Response, headers: HeaderList) -> Response:
    return replace(response, headers=(*headers, *response.headers))


# As the API answers


async def _from_api(asking: Asking, name: str, parameters: Parameters, *, conditional: bool = True) -> Response:
    """What the API says about a name to whoever proves nothing; all of it, unless conditions may count."""
    request = asking.request
    left_out = _CREDENTIALS if conditional else _CREDENTIALS | _CONDITIONS | _TIME
    headers = [header for header in request.headers if header[0] not in left_out]
    target = f"{_api_path(name)}?{urlencode(parameters.pairs)}".removesuffix("?")
    client = replace(request.client, certificate=None)
    method = request.method if request.method == "HEAD" else "GET"
    passed_on = Request(method, target.encode("ascii"), headers, b"", client, request.version)
    return await api.answer(Asking(passed_on, asking.place))


def _api_path(name: str) -> str:
    return API + quote(name, safe="")


def _selected(parameters: Parameters) -> Parameters:
    """The parameters that say which values are wanted."""
    return Parameters(tuple([pair for pair in parameters.pairs if pair[0] in _PASSED_ON]))

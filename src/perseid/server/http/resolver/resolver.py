"""The web resolver: the response to `GET /{handle}` for browsers, link checkers and programs (§9).

A handle redirects to its target. Without a target its record is shown; a withdrawn identifier gets a tombstone page,
and an unknown one an error page. Credentials are ignored, and only public data is shown. The server itself never
requests a URL of a record.

Everything is read in one snapshot, by `lookup`: of the answers view, or of the ledger if that is not enough. With `at`
the response is as of a time, and `Accept-Datetime` redirects to it: see `time_travel`. Suggestions for unknown handles
are looked up afterwards: see `problems`.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from perseid.ledger.errors import LedgerError, StoreUnavailable
from perseid.names.handle import Handle
from perseid.records.locations import Candidates, parse_address, parse_locatt
from perseid.records.record import Value
from perseid.records.types import URL
from perseid.registry.identity import Anonymous
from perseid.registry.policy.authority import find_built_in_definition, find_handle_types
from perseid.registry.policy.resolution import cache_lifetime
from perseid.registry.queries.citation import QrImage, find_last_title, find_title
from perseid.registry.queries.history import get_history
from perseid.registry.queries.memento import MementoNeighbors
from perseid.registry.queries.suggest import may_be_typo
from perseid.registry.results import OtherServer, PrefixNotHosted, Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http.clients import request_base_url
from perseid.server.http.compat import api
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import BadRequest, HeaderList, Parameters, Request, Response
from perseid.server.http.negotiation import (
    HTML,
    JSON,
    VARY,
    VARY_HISTORY,
    AcceptHeader,
    KeptPage,
    Preference,
    cache_headers,
    location_preferences,
    parse_accept,
    parse_accept_language,
    with_etag_in_pool,
)
from perseid.server.http.pages import browse_pages, server_pages
from perseid.server.http.pages.history_page import VERSIONS_PER_PAGE, history_feed, history_page, parse_entry
from perseid.server.http.pages.links import to_link, to_visible
from perseid.server.http.pages.pages import POLICY, render_page
from perseid.server.http.pages.record_page import (
    PageDetails,
    PastMoment,
    explanation_response,
    locations_response,
    record_page,
    tombstone_page,
)
from perseid.server.http.pages.texts import get_language
from perseid.server.http.pages.type_page import find_definition, type_page
from perseid.server.http.pages.values import LinkBuilder
from perseid.server.http.responses import to_failure
from perseid.server.native.decisions import Busy
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from . import problems, signposting, time_travel
from .lookup import LookupFailure, LookupResult, RecordReader, Selection
from .paths import (
    API_HANDLES_PATH,
    FORMS,
    MAX_FORM,
    TIME_MAPS,
    Action,
    OwnPage,
    RequestedName,
    absolute_url,
    encode_query,
    get_addresses,
    parse_action,
    parse_indexes,
    parse_path,
    parse_query,
    parse_search_input,
    path_to,
    quote_name,
    strip_parameters,
)
from .problems import Problem, find_suggestions
from .redirect import (
    InvalidTarget,
    RedirectRequest,
    RedirectSource,
    alias_redirect,
    choose_redirect,
    redirect_response,
    vary_header,
)
from .time_travel import AT_PARAMETER, Moment

_FORM: Final = "application/x-www-form-urlencoded"
_FIELD: Final = "hdl"
_METADATA: Final[Preference] = ("role", "metadata")
_REDIRECT_ACTIONS: Final = (None, Action.REDIRECT, Action.METADATA)
_HISTORY_ACTIONS: Final = (Action.HISTORY, Action.FEED)
_FORCING_PARAMETERS: Final = ("locatt", "urlappend", "redirectionHeaders")
_FORWARDED_PARAMETERS: Final = ("type", "index", "auth", AT_PARAMETER)
_FROM_PAGE: Final = "page"
"""The field that identifies our own form."""

QR_SCALE: Final = 4
"""Units per module: an SVG has any size, but some programs show it in its own."""

SVG_TYPE: Final = "image/svg+xml"

MAX_CACHED_QUERIES: Final = 64
"""Queries and forms that are parsed once, and headers: clients of a kind send the same. One has at most 16 KiB."""

MAX_KEPT_BODY: Final = 16_384
"""Bytes of the longest page that is kept for the next request; most have 6 to 9 KB."""

MAX_KEPT_KEY: Final = 256
"""Characters of name and query of a page that is kept."""

_RANDOM_BYTES: Final = 6  # as many as a float represents exactly
_CREDENTIALS: Final = frozenset(("authorization", "cookie"))
_CONDITIONS: Final = frozenset(("if-match", "if-modified-since", "if-none-match", "if-unmodified-since"))
_TIME: Final = frozenset(("accept-datetime",))
_OWN_HEADERS: Final = frozenset(
    ("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary")
)


@dataclass(frozen=True, slots=True)
class _ResolverRequest:
    """A parsed request about a name."""

    named: RequestedName
    parameters: Parameters
    wanted: RedirectRequest
    selection: Selection
    action: Action | None
    query: bytes
    """As received; the parameters of a form are not part of it."""
    posted: bool
    at: str | None = None
    """The requested time, as written; None for the present."""
    time: int | None = None
    """The time in `Accept-Datetime`, unless `at` is set."""

    @property
    def wants_redirect(self) -> bool:
        """Whether a redirect is requested."""
        return self.action in _REDIRECT_ACTIONS


@dataclass(frozen=True, slots=True)
class _AsJson:
    """The record will be returned as in the API."""

    name: str
    status: int = 200
    headers: HeaderList = ()


@dataclass(frozen=True, slots=True)
class _NotFound:
    """There is no such handle, but there may be suggestions."""

    text: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class _QrCode:
    """A QR code will be drawn, in a thread."""

    text: str
    headers: HeaderList


@dataclass(frozen=True, slots=True)
class _Gone:
    """A tombstone page, which names the title of the last version if the ledger has it."""

    found: LookupResult
    render: Callable[[str, HeaderList], Response]
    headers: HeaderList


async def handle_request(request_context: RequestContext) -> Response:
    """Handle a request for a name, or for one of the server's own pages."""
    settings, accepted = request_context.server.settings, parse_accept(request_context.request.all("accept"))
    try:
        return await with_etag_in_pool(request_context, await _dispatch(request_context, accepted))
    except BadRequest as problem:
        error = problems.bad_request(problem.message, problem.status)
    except Exception as problem:  # noqa: BLE001 - every exception must become a page
        failure = to_failure(problem, request_context)
        error = problems.from_failure(failure.status, failure.code, failure.message, failure.headers)
    return problems.to_response(error, accepted, settings)


async def _dispatch(request_context: RequestContext, accepted: AcceptHeader) -> Response:
    request, settings = request_context.request, request_context.server.settings
    form = _parse_form(request)
    located = parse_path(request.path, settings)
    if located == OwnPage("") and form is not None:
        located = parse_search_input(form.first(_FIELD) or "", settings) or located
    if isinstance(located, RequestedName):
        try:
            parsed = _parse_request(request, located, form or Parameters(), accepted)
        except Refused as refused:  # an invalid time; the URL is a TimeGate nevertheless (RFC 7089, 4.5.3)
            failure, links = (
                to_failure(refused, request_context),
                time_travel.gate_links(get_addresses(located.name, settings)),
            )
            error = problems.from_failure(failure.status, failure.code, failure.message, (*failure.headers, *links))
            return problems.to_response(error, accepted, settings)
        return await _handle_name(request_context, parsed)
    own = None
    if isinstance(located, OwnPage):
        if located.path.startswith(f"{TIME_MAPS}/"):
            return await signposting.time_map_response(request_context, located.path, accepted)
        own = await browse_pages.get_page(request_context, located.path)
        own = own or server_pages.get_page(located.path, settings, request_base_url(request_context))
    if own is not None:
        return own.with_headers(time_travel.DO_NOT_NEGOTIATE)
    return problems.to_response(problems.page_not_found(located.path, settings), accepted, settings)


async def _handle_name(request_context: RequestContext, parsed: _ResolverRequest) -> Response:
    if parsed.action is Action.API:
        return await _from_api(request_context, parsed.named.name, parsed.parameters)
    past = parsed.at is not None or parsed.time is not None or parsed.action in _HISTORY_ACTIONS
    result = await request_context.read_public(lambda snapshot: _resolve(request_context, parsed, snapshot), past=past)
    if isinstance(result, Response):
        return result
    if isinstance(result, KeptPage):
        now = request_context.server.time()
        return result.respond(request_context.request, now, no_cache=parsed.wanted.no_cache)
    if isinstance(result, _QrCode):
        image = await request_context.do(WorkKind.READ, lambda: QrImage.of(result.text).svg(QR_SCALE))
        return Response(200, (*result.headers, ("Content-Type", SVG_TYPE), ("Content-Security-Policy", POLICY)), image)
    if isinstance(result, _Gone):
        handle = result.found.resolved.registered
        return _with_name(result.render(await _find_last_title(request_context, handle), result.headers), result.found)
    if isinstance(result, _NotFound):
        settings = request_context.server.settings
        suggestions = await find_suggestions(request_context, result.text)
        problem = problems.with_suggestions(result.problem, suggestions, settings)
        return problems.to_response(problem, parsed.wanted.accepted, settings)
    response = await _from_api(request_context, result.name, _value_parameters(parsed.parameters), conditional=False)
    headers = [header for header in response.headers if header[0].lower() not in _OWN_HEADERS]
    status = result.status if response.status == 200 else response.status
    return replace(response, status=status, headers=(*headers, *result.headers))


async def _find_last_title(request_context: RequestContext, handle: Handle) -> str:
    """The title of the last public version before a tombstone; empty if there is none, or it cannot be read now."""
    registry, types = request_context.server.registry, request_context.server.settings.service.title_types
    if isinstance(registry.ledger.write_problem, StoreUnavailable):
        return ""  # nobody waits for a database that does not respond

    def read() -> str:
        with registry.snapshot() as snapshot:
            return find_last_title(snapshot, handle, types)

    try:
        return await request_context.do(WorkKind.READ, read)
    except (Busy, LedgerError, Refused):
        return ""  # the page does without


# Parsing


def _parse_form(request: Request) -> Parameters | None:
    """Parse a posted form; None if there is none."""
    type_ = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if request.method != "POST" or type_ != _FORM:
        return None
    if len(request.body) > MAX_FORM:
        raise BadRequest(f"the form is too large: {len(request.body):,} bytes; the maximum is {MAX_FORM:,}", 413)
    return Parameters.parse(request.body)


def _parse_request(
    request: Request, named: RequestedName, form: Parameters, accepted: AcceptHeader
) -> _ResolverRequest:
    parameters, action, selection = _parse_parameters(request.query, form.pairs)
    client = request.client
    address = parse_address(client.host)
    if client.trusted and (reported := parameters.first("ip")) is not None:
        address = parse_address(reported) or address
    languages, user_agent = tuple(request.all("accept-language")), request.header("user-agent") or ""
    wanted = replace(
        _parse_wishes(parameters, accepted, languages, user_agent),
        country=parameters.first("country") if client.trusted else None,
        address=address,
        is_http10=request.version == "1.0",
    )
    at = parameters.first(AT_PARAMETER)
    time = time_travel.parse_accept_datetime(request) if at is None else None
    return _ResolverRequest(
        named, parameters, wanted, selection, action, request.query, request.method == "POST", at, time
    )


@lru_cache(MAX_CACHED_QUERIES)
def _parse_parameters(query: bytes, form: tuple[tuple[str, str], ...]) -> tuple[Parameters, Action | None, Selection]:
    parameters = parse_query(query).plus(form)
    types, follow = tuple(parameters.all("type")), "ignore_aliases" not in parameters
    selection = Selection(types, parse_indexes(parameters), follow, strip_parameters(query))
    return parameters, parse_action(parameters), selection


@lru_cache(MAX_CACHED_QUERIES)
def _parse_wishes(
    parameters: Parameters, accepted: AcceptHeader, languages: tuple[str, ...], user_agent: str
) -> RedirectRequest:
    """What parameters and headers say about the target, whoever the client is."""
    action = parse_action(parameters)
    metadata = action is Action.METADATA
    own = tuple([parse_locatt(text) for text in parameters.all("locatt")])
    return RedirectRequest(
        accepted=accepted,
        own=(*own, _METADATA) if metadata else own,
        derived=location_preferences(accepted, parse_accept_language(languages), user_agent, metadata=metadata),
        append=parameters.first("urlappend") or "",
        force_redirect=action is not None or any(name in parameters for name in _FORCING_PARAMETERS),
        headers_only="redirectionHeaders" in parameters,
        no_cache="auth" in parameters,
    )


# Reading


def _resolve(
    request_context: RequestContext, parsed: _ResolverRequest, snapshot: Snapshot
) -> Response | KeptPage | _AsJson | _Gone | _NotFound | _QrCode:
    """Look up a name and create the response."""
    server, accepted = request_context.server, parsed.wanted.accepted
    settings, registry = server.settings, server.registry
    key, state = _page_key(parsed), snapshot.stamp
    kept = None if key is None else server.record_pages.get(key, state)
    if kept is not None and kept.settings is settings:
        return kept
    moment = None if parsed.at is None else time_travel.parse_moment(parsed.at, snapshot, registry)
    reader = RecordReader(snapshot, server, registry.now(), None if moment is None else moment.seq)
    try:
        if parsed.time is not None:
            return _time_gate_redirect(reader, parsed, parsed.time, settings)
        found = reader.find(parsed.named, parsed.selection)
    except LookupFailure as failure:
        return _lookup_failed(failure, reader, parsed, settings)
    namespace = reader.describe_namespace(found.resolved.handle)
    if namespace.inactive is not None:
        problem = replace(problems.inactive_namespace(found.name, namespace), past=moment is not None)
        return problems.to_response(problem, accepted, settings)
    response = _RecordResponse(request_context, parsed, found, reader, moment).respond()
    if headers := _name_headers(found):
        response = replace(response, headers=(*response.headers, *headers))
    if key is None or state is None or not isinstance(response, Response) or not _is_small_page(response):
        return response
    if server.pages_requested_once.get(key, state) is None:  # most pages are requested once: keeping one takes time
        server.pages_requested_once.add(key, state, True)
        return response
    lifetimes = {Value(1, URL, b"", value.ttl, value.ttl_type) for value in found.used}  # without data: it can be large
    kept = KeptPage.of(response, settings, partial(cache_lifetime, lifetimes))
    server.record_pages.add(key, state, kept)
    return kept


def _is_small_page(response: Response) -> bool:
    return response.status == HTTPStatus.OK and len(response.body) <= MAX_KEPT_BODY


def _page_key(parsed: _ResolverRequest) -> Hashable | None:
    """What the page of a current record depends on, besides the records; None for other responses and long keys."""
    if parsed.action is not Action.VALUES or parsed.at is not None or parsed.time is not None or parsed.posted:
        return None
    if parsed.wanted.accepted.record_form != HTML or len(parsed.query) + len(parsed.named.name) > MAX_KEPT_KEY:
        return None
    return parsed.named, parsed.query, get_language()


def _name_headers(found: LookupResult) -> HeaderList:
    """Query and fragment of a CORDRA name for the client (C5). A target that does not ask for them is unchanged."""
    parts = (("Handle-Query", found.first.query), ("Handle-Fragment", found.first.fragment))
    return tuple([(name, part) for name, part in parts if part is not None])


def _lookup_failed(
    failure: LookupFailure, reader: RecordReader, parsed: _ResolverRequest, settings: HttpSettings
) -> Response | _NotFound:
    """Create the response to a failed lookup; an inactive namespace takes precedence."""
    if failure.namespace.inactive is not None:
        problem = replace(problems.inactive_namespace(failure.name, failure.namespace), past=reader.at is not None)
        return problems.to_response(problem, parsed.wanted.accepted, settings)
    handle = Handle.for_lookup(RequestedName(failure.name).handle)
    if isinstance(failure.refused, OtherServer) and handle is not None:
        location = _other_location(failure.name, handle, reader, parsed, settings)
        if location:
            headers = (("Location", location), problems.NO_CACHE)
            return Response(307, headers, code=int(failure.refused.code), name=failure.name)
    if isinstance(failure.refused, PrefixNotHosted) and handle is not None:
        definition = find_built_in_definition(handle)
        if definition is not None and parsed.wanted.accepted.record_form == HTML:
            headers = (problems.NO_CACHE, ("Vary", VARY))
            page = type_page(definition.type, definition, settings, headers, is_copy=True)
            return replace(page, code=int(ResponseCode.SUCCESS), name=failure.name)
    code = failure.refused.code
    is_absent = code is ResponseCode.HANDLE_NOT_FOUND and not failure.is_loop
    is_empty_version = code is ResponseCode.VALUES_NOT_FOUND and reader.at is not None
    versions = reader.versions_of(failure) if is_absent or is_empty_version else None
    if reader.at is not None and is_absent:
        problem = problems.not_found_at(failure, versions, reader.at, settings)
    else:
        problem = problems.from_lookup_failure(
            failure, parsed.named.name, settings, restricted=parsed.selection.is_restricted
        )
        problem = replace(problem, past=reader.at is not None)
        if versions is not None and is_absent:
            problem = problems.with_last_version(problem, versions, settings)
    problem = replace(problem, headers=(*problem.headers, *_version_headers(failure, versions, reader, settings)))
    if reader.at is None and may_be_typo(failure.refused) and not failure.is_loop:
        return _NotFound(failure.name, problem)
    return problems.to_response(problem, parsed.wanted.accepted, settings)


def _other_location(
    name: str, handle: Handle, reader: RecordReader, parsed: _ResolverRequest, settings: HttpSettings
) -> str:
    """The URL of a handle at the server of this site that has it; empty if that is not known."""
    partition = reader.snapshot.rules.partition
    position = None if partition is None else partition.find_other(handle)
    url = "" if partition is None or position is None else partition.url(position)
    query = encode_query(parsed.query)
    return f"{url}{path_to(name, settings, parsed.named.segment)}{'?' if query else ''}{query}" if url else ""


def _version_headers(
    failure: LookupFailure, versions: MementoNeighbors | None, reader: RecordReader, settings: HttpSettings
) -> HeaderList:
    """The time headers of a failed lookup.

    A record without the requested values has the links of every record. A deleted handle has a history that can be
    requested (RFC 7089, section 4.5.2). A version with nothing to show, such as a record without public values or a
    dangling alias, is still a memento (section 4.5.5). A time without a record is not: it is in no TimeMap, and nobody
    is redirected to it.
    """
    if failure.first is not None:
        return signposting.time_headers(failure.first, reader, settings)
    if reader.at is None and failure.refused.code is ResponseCode.VALUES_NOT_FOUND:
        stored = reader.snapshot.stored(Handle.parse_lenient(RequestedName(failure.name).handle))
        return time_travel.gate_links(get_addresses(str(stored.handle), settings), with_map=stored.exists)
    if versions is None:
        return ()
    is_memento = reader.at is not None and failure.refused.code is ResponseCode.VALUES_NOT_FOUND
    return time_travel.memento_headers(versions, get_addresses(str(versions.handle), settings), is_memento=is_memento)


def _time_gate_redirect(reader: RecordReader, parsed: _ResolverRequest, time: int, settings: HttpSettings) -> Response:
    """The response of the TimeGate: a redirect to the version of a time. Raises `LookupFailure`."""
    found = reader.negotiate_version(parsed.named, parsed.selection, time)
    name, versions = found.name, found.versions
    namespace = reader.describe_namespace(found.handle)
    if namespace.inactive is not None:
        return problems.to_response(problems.inactive_namespace(name, namespace), parsed.wanted.accepted, settings)
    query = encode_query(parsed.query)
    path = f"{path_to(name, settings, parsed.named.segment)}?{query}{'&' if query else ''}{AT_PARAMETER}={found.seq}"
    addresses = get_addresses(name if versions is None else str(versions.handle), settings)
    headers: HeaderList = (
        ("Location", absolute_url(path, settings)),
        ("Cache-Control", "no-cache"),  # the version of that time can change until the time has passed
        ("Vary", VARY),
        *(time_travel.gate_links(addresses) if versions is None else time_travel.version_links(versions, addresses)),
    )
    return Response(302, headers, code=int(ResponseCode.SUCCESS), name=name)


@dataclass(frozen=True, slots=True)
class _RecordResponse:
    """Builds the response for a name that resolves."""

    request_context: RequestContext
    parsed: _ResolverRequest
    found: LookupResult
    reader: RecordReader
    moment: Moment | None
    """The requested earlier time; None for the present."""

    @property
    def settings(self) -> HttpSettings:
        return self.request_context.server.settings

    @property
    def now(self) -> float:
        return self.request_context.server.time()

    @property
    def fixed(self) -> bool:
        """Whether the response never changes."""
        return self.moment is not None and self.moment.fixed

    @property
    def age(self) -> HeaderList:
        return cache_headers(
            cache_lifetime(self.found.used, self.now), self.now, no_cache=self.parsed.wanted.no_cache, fixed=self.fixed
        )

    @property
    def cache_headers(self) -> HeaderList:
        """The caching headers of a response about the record."""
        return (*self.age, ("Vary", VARY if self.moment is None else VARY_HISTORY))

    @property
    def time_headers(self) -> HeaderList:
        """The headers about other versions."""
        return signposting.time_headers(self.found.resolved, self.reader, self.settings)

    def respond(self) -> Response | _AsJson | _Gone | _QrCode:
        parsed, found, settings = self.parsed, self.found, self.settings
        wanted = parsed.wanted
        if found.aliases and parsed.wants_redirect and not parsed.posted:
            path = path_to(found.registered_name, settings, parsed.named.segment)
            query = encode_query(parsed.query)
            location = absolute_url(f"{path}?{query}" if query else path, settings)
            links = signposting.alias_headers(found, self.reader, settings)
            return alias_redirect(location, self.age, found.name, links, past=self.moment is not None)
        if found.tombstone is not None and parsed.wants_redirect:
            return self.record(wanted.accepted.record_form, gone=True)
        if parsed.action is Action.QR:
            described = signposting.describe(found, self.reader, settings)
            return _QrCode(described.citation.uri, self.cache_headers)
        if parsed.action in _HISTORY_ACTIONS:
            return self.history()
        if parsed.action is Action.VALUES:
            return self.record(wanted.accepted.record_form)
        if parsed.action is not None and parsed.action in FORMS:
            return self.record(FORMS[parsed.action], gone=found.tombstone is not None, located=True)
        candidates = self.reader.candidates(found)
        number = int.from_bytes(self.request_context.server.random(_RANDOM_BYTES), "big") / (1 << 8 * _RANDOM_BYTES)
        if parsed.action is Action.LOCATIONS:
            headers = (*self.cache_headers, *self.time_headers, ("Content-Security-Policy", POLICY))
            return _with_headers(locations_response(candidates, found.values, found.name), headers)
        if parsed.action is Action.EXPLAIN:
            redirect = choose_redirect(candidates, wanted, settings, number)
            source = RedirectSource(found.resolved.handle, found.values, candidates, found.used)
            response = explanation_response(
                source, found.aliases, wanted, redirect, text=not wanted.accepted.prefers_json
            )
            varies = ("Vary", vary_header(candidates, wanted.accepted, past=self.moment is not None))
            return _with_headers(response, (("Cache-Control", "no-store"), varies, *self.time_headers))
        return self.redirect(candidates, number) or self.record(wanted.accepted.record_form)

    def history(self) -> Response:
        """Return the versions of the record, as a page or as a feed."""
        found, settings = self.found, self.settings
        before = parse_entry(self.parsed.parameters.first("before"))
        headers = (("Cache-Control", "no-cache"), ("Vary", VARY_HISTORY), *self.time_headers)
        versions = get_history(self.reader.snapshot, Anonymous(), found.resolved.handle, before, VERSIONS_PER_PAGE)
        links = LinkBuilder(settings, self.reader.link_to, self.reader.get_cached)
        citation = signposting.describe(found, self.reader, settings).citation
        if self.parsed.action is Action.FEED:
            return _with_name(history_feed(found, versions, citation, links, headers), found)
        page = history_page(found, versions, citation, links, headers, is_first=before is None)
        return _with_name(page, found)

    def redirect(self, candidates: Candidates, number: float) -> Response | None:
        """Create the redirect; None if there is no target, or the record is requested."""
        found, parsed = self.found, self.parsed
        source = RedirectSource(
            found.resolved.handle,
            found.values,
            candidates,
            found.used,
            signposting.redirect_headers(found, self.reader, self.settings),
            past=self.moment is not None,
            fixed=self.fixed,
        )
        try:
            redirection = redirect_response(source, parsed.wanted, self.settings, number, self.now)
        except InvalidTarget as problem:
            raise BadRequest(f"urlappend: {problem}") from problem
        if redirection is None or not (parsed.posted and _FROM_PAGE in parsed.parameters):
            return redirection
        return _leaving_page(redirection, found, self.settings)

    def record(self, form: str, *, gone: bool = False, located: bool = False) -> Response | _AsJson | _Gone:
        """Return the record in a form, which is a media type.

        `gone`: as a tombstone, with status 410. `located`: the form was requested by its URL, not chosen by `Accept`.
        """
        found, reader, settings = self.found, self.reader, self.settings
        status = 410 if gone else 200
        described = signposting.describe(found, reader, settings)
        if form not in (JSON, HTML):
            address = next((each.address for each in described.forms if each.media_type == form), None)
            where = () if located or address is None else (("Content-Location", address),)
            headers = (*self.cache_headers, *where, *signposting.form_headers(described, found, reader, settings))
            return _with_name(signposting.form_response(form, described, status, headers), found)
        links_of_record = signposting.record_headers(described, found, reader, settings, is_page=form == HTML)
        headers = (*self.cache_headers, *links_of_record)
        if form == JSON:
            return _AsJson(found.name, status, headers)
        links = LinkBuilder(settings, reader.link_to, reader.get_cached)
        then = None if self.moment is None else PastMoment(self.moment.seq, reader.versions(found.resolved))
        api = (
            _api_path(found.name)
            if self.moment is None
            else f"{_api_path(found.name)}?{AT_PARAMETER}={self.moment.seq}"
        )
        citation = described.citation
        embedded = signposting.embedded_json_ld(described, settings)
        handle_types = reader.get_cached(
            ("handle types", found.resolved.handle.prefix), lambda: find_handle_types(reader.policy(found))
        )
        title = find_title(described.policy, described.values, settings.service.title_types) or citation.title or ""
        shown = PageDetails(citation, described.authority, api, then, embedded, handle_types, title)
        if gone and found.tombstone is not None:
            replacement = links.to(found.tombstone.replacement)
            render = partial(tombstone_page, found, found.tombstone, shown, replacement, settings)
            if described.policy.show_past and then is None and not title:
                return _Gone(found, render, headers)
            return _with_name(render("", headers), found)
        if self.parsed.action is None and then is None and (definition := find_definition(found.values)) is not None:
            return _with_name(type_page(found.registered_name, definition, settings, headers), found)
        return _with_name(record_page(found, shown, links, headers), found)


def _leaving_page(redirection: Response, found: LookupResult, settings: HttpSettings) -> Response:
    """A page that redirects, for our own form: its policy allows submission to this server only, and some browsers
    then do not follow a redirect to another.
    """
    target = to_link(next(redirection.values("location")), settings)
    name = to_visible(found.name)
    page = render_page(
        "leaving.html", settings, headers=(("Cache-Control", "no-store"),), title=name, name=name, target=target
    )
    return _with_name(page, found)


def _with_name(response: Response, found: LookupResult) -> Response:
    return response.with_name(int(ResponseCode.SUCCESS), found.name)


def _with_headers(response: Response, headers: HeaderList) -> Response:
    return replace(response, headers=(*headers, *response.headers))


# Responses of the API


async def _from_api(
    request_context: RequestContext, name: str, parameters: Parameters, *, conditional: bool = True
) -> Response:
    """Return the API's response to an anonymous request for a name; `conditional`: whether conditions apply."""
    request = request_context.request
    omitted = _CREDENTIALS if conditional else _CREDENTIALS | _CONDITIONS | _TIME
    headers = [header for header in request.headers if header[0] not in omitted]
    target = f"{_api_path(name)}?{urlencode(parameters.pairs)}".removesuffix("?")
    client = replace(request.client, certificate=None)
    method = request.method if request.method == "HEAD" else "GET"
    forwarded = Request(method, target.encode("ascii"), headers, b"", client, request.version)
    return await api.handle_request(RequestContext(forwarded, request_context.server))


def _api_path(name: str) -> str:
    return API_HANDLES_PATH + quote_name(name)


def _value_parameters(parameters: Parameters) -> Parameters:
    """The parameters that select values."""
    return Parameters(tuple([pair for pair in parameters.pairs if pair[0] in _FORWARDED_PARAMETERS]))

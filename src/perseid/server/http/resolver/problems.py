"""Error pages of the resolver (§9.7), suggestions, and advice about prefixes that are not hosted here.

The titles, and the sentence with `The handle you requested` and `cannot be found`, are those of deployed resolvers:
programs look for them. Hosted prefixes are shown only to users who can list them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic
from typing import Final, Generic, TypeVar

from markupsafe import Markup

from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.names.uri import KNOWN_RESOLVERS, Reference, is_uri, parse_user_input, to_path
from perseid.records.encoding import JsonObject, to_iso
from perseid.registry.access import permissions
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Command, Context, Plan
from perseid.registry.installation.sections import HANDLE_SEGMENT
from perseid.registry.policy.resolution import MAX_ALIASES
from perseid.registry.queries.memento import Memento, MementoNeighbors
from perseid.registry.queries.suggest import Suggestion, Suggestions, SuggestionSearch
from perseid.registry.results import OtherServer, PrefixNotHosted, ReferralError
from perseid.registry.snapshot import Snapshot
from perseid.schema.problems import PrefixStatus
from perseid.server.http import responses
from perseid.server.http.context import MAX_SEARCHES, MAX_WAITING_FOR_SEARCH, HttpSettings, RequestContext
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import VARY, VARY_HISTORY, AcceptHeader
from perseid.server.http.pages.browse_pages import NAMESPACES
from perseid.server.http.pages.links import TextLink, mail_link, mark_times, render_piece, to_sentence, to_visible
from perseid.server.http.pages.pages import PAGES_SCRIPT, SEARCH_SCRIPT, render_frequent_page
from perseid.server.http.pages.texts import _, mark
from perseid.server.http.responses import MISDIRECTED, status_of
from perseid.server.limits.budgets import EXEMPT, get_source
from perseid.server.native.decisions import Busy
from perseid.wire.codes import OpCode, ResponseCode

from .lookup import CHAIN_TOO_LONG, LookupFailure, NamespaceInfo
from .paths import get_resolvers, path_to
from .time_travel import AT_PARAMETER, memento_json


async def find_suggestions(request_context: RequestContext, text: str) -> Suggestions | None:
    """Find suggestions for a text that does not resolve; None if the budget is used up or the server is busy.

    Clients on this machine have no budget of their own. The page works without suggestions.
    """
    server, client = request_context.server, request_context.request.client
    if server.turns.waiting > MAX_WAITING_FOR_SEARCH:
        return None
    if not server.suggestion_budget.take(EXEMPT if client.local else get_source(client.host), monotonic()):
        return None
    cache, state = server.suggestion_cache, server.registry.ledger.answers.stamp
    if (known := cache.get(text, state)) is not None:
        return known
    if cache.running >= MAX_SEARCHES:
        return None
    search = SuggestionSearch(server.registry, text, (*KNOWN_RESOLVERS, *get_resolvers(server.settings)))
    cache.running += 1
    try:
        for _ in search.steps():
            await request_context.take_turn()
            if server.turns.waiting > MAX_WAITING_FOR_SEARCH:
                return None
    except Busy:
        return None
    finally:
        cache.running -= 1
    found = search.result()
    cache.add(text, state, found)
    return found


MAX_LISTED_PREFIXES: Final = 5
"""Prefixes that an error lists: enough to see whether this is the right server."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdvisedCommand(Generic[T]):
    """A command whose refusal of a prefix that is not hosted here has advice about the requested name."""

    command: Command[T]
    name: str
    """As requested."""
    settings: HttpSettings

    def decide(self, context: Context) -> Plan[T]:
        """Decide like the command."""
        try:
            return context.decide(self.command)
        except PrefixNotHosted as refused:
            if refused.advice is not None and refused.advice.kind is AdviceKind.SEE_TYPE_COPY:
                raise
            raise PrefixNotHosted(
                refused.code, refused.reason, prefix_advice(self.name, context, self.settings)
            ) from refused


def prefix_advice(name: str, context: Context, settings: HttpSettings) -> Advice:
    """What to do about a name whose prefix is not hosted here."""
    bare = _bare_handle(name, settings)
    if bare is not None:
        return AdviceKind.USE_BARE_HANDLE(handle=bare)
    prefixes: list[str] = []
    if context.is_allowed(permissions.server_operation(OpCode.LIST_HOMED_NAS)):
        prefixes = list(islice(_prefixes(context.snapshot), MAX_LISTED_PREFIXES + 1))
    if not prefixes:
        return AdviceKind.CHECK_PREFIX()
    more = ("…",) if len(prefixes) > MAX_LISTED_PREFIXES else ()
    return AdviceKind.CHOOSE_HOSTED_PREFIX(prefixes=(*prefixes[:MAX_LISTED_PREFIXES], *more))


def _prefixes(snapshot: Snapshot) -> Iterator[str]:
    """The hosted prefixes under which identifiers are created, in order."""
    for name in homed_prefixes(snapshot.reader):
        prefix = name.removeprefix(f"{PREFIX_OF_PREFIXES}/")
        if "/" not in prefix and fold(prefix) != PREFIX_OF_PREFIXES:
            yield prefix


def _bare_handle(name: str, settings: HttpSettings) -> Handle | None:
    """The handle in a URI, or in the URL of a known resolver; else None."""
    if not is_uri(name):
        return None
    try:
        return parse_user_input(name, (*get_resolvers(settings), *KNOWN_RESOLVERS), for_lookup=True).handle
    except InvalidName:
        return None


REQUESTED: Final = mark("The handle you requested,")
NOT_FOUND: Final = mark(", cannot be found.")
"""The text before and after the name."""

MAX_NAME: Final = 2_048
"""Characters of a name that an error repeats: the length of the longest name."""

NO_CACHE: Final = ("Cache-Control", "no-cache")
"""The handle may exist in a moment."""


@dataclass(frozen=True, slots=True)
class SuggestedName:
    """A suggestion as the page shows it."""

    link: TextLink
    reason: str
    tombstone: str = ""
    """What happened to it, if it is withdrawn."""
    replacement: str = ""
    """The handle to use instead; the tombstone page links it if it is hosted here."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of the resolver."""

    status: int
    title: str
    code: ResponseCode
    name: str = ""
    before: str = REQUESTED
    after: str = NOT_FOUND
    sentences: tuple[str, ...] = ()
    hints: tuple[TextLink, ...] = ()
    contact: str = ""
    headers: HeaderList = (NO_CACHE,)
    searchable: bool = True
    suggestions: tuple[SuggestedName, ...] = ()
    more: JsonObject | None = None
    """Further JSON members."""
    past: bool = False
    """Whether it is about a fixed time, so that `Accept-Datetime` does not matter."""
    versions: tuple[TextLink, ...] = ()
    """Links to versions at other times."""


def to_response(problem: Problem, accepted: AcceptHeader, settings: HttpSettings) -> Response:
    """Create the response, as HTML or JSON."""
    headers = (*problem.headers, ("Vary", VARY_HISTORY if problem.past else VARY))
    if accepted.prefers_json_errors:
        message = " ".join(problem.sentences) or problem.title
        plain = responses.error_body(problem.code, message, problem.name or None) | (problem.more or {})
        return responses.json_response(plain, status=problem.status, headers=headers, name=problem.name)
    sentences = [Markup("<p>{}</p>").format(mark_times(to_visible(each))) for each in problem.sentences]
    hints = [_render_hint(each) for each in (*problem.hints, *problem.versions)]
    page = render_frequent_page(
        "problem.html",
        settings,
        headers,
        (PAGES_SCRIPT, SEARCH_SCRIPT) if problem.searchable else (PAGES_SCRIPT,),
        {
            "title": _(problem.title),
            "name": to_visible(problem.name, MAX_NAME),
            "before": _(problem.before),
            "after": _(problem.after),
            "sentences": Markup("\n").join(sentences),
            "hints": Markup("\n").join(hints),
            "suggestions": Markup("\n").join(map(_render_suggestion, problem.suggestions)),
            "contact": render_piece(mail_link(problem.contact, settings)) if problem.contact else "",
        },
        problem.status,
        searchable=problem.searchable,
    )
    return Response(page.status, page.headers, page.body, code=problem.code, name=problem.name)


def _render_hint(hint: TextLink) -> Markup:
    return Markup('<li><a href="{}">{}</a></li>').format(hint.href, mark_times(hint.text))


def _render_suggestion(suggested: SuggestedName) -> Markup:
    link, quiet = suggested.link, Markup('<div class="quiet">{}</div>')
    parts = [
        Markup('<a href="{}"><bdi class="name">{}</bdi></a>').format(link.href, link.text),
        Markup('<div class="quiet" lang="en">{}</div>').format(suggested.reason),
    ]
    if suggested.tombstone:
        parts.append(quiet.format(mark_times(suggested.tombstone)))
    if suggested.replacement:
        replacement = Markup("<bdi>{}</bdi>").format(suggested.replacement)
        parts.append(quiet.format(Markup("{}: {}").format(_("Use instead"), replacement)))
    return Markup("<li>{}</li>").format(Markup("").join(parts))


def from_lookup_failure(
    problem: LookupFailure, requested: str, settings: HttpSettings, *, restricted: bool = False
) -> Problem:
    """Create the problem for a failed lookup."""
    refused, name = problem.refused, problem.name
    contact = problem.namespace.contact
    alias = _alias_sentence(problem.aliases, name)
    code = refused.code
    if problem.is_loop:
        sentence = _("Its aliases form a loop or a chain of more than {count}.").format(count=MAX_ALIASES)
        return Problem(404, CHAIN_TOO_LONG, code, requested, sentences=(sentence,), contact=contact)
    if code is ResponseCode.HANDLE_NOT_FOUND:
        return Problem(
            404, mark("Not found"), code, name, sentences=alias, hints=_without_slash(name, settings), contact=contact
        )
    if code is ResponseCode.VALUES_NOT_FOUND:
        sentences = (*alias, _("The handle exists, but none of its values are public."))
        hints: tuple[TextLink, ...] = ()
        if restricted:
            sentences = (*alias, _("The handle exists, but has no values of the requested types or indexes."))
            hints = (TextLink(_("Show all values"), f"{path_to(name, settings)}?noredirect"),)
        status = settings.no_values_status
        return Problem(status, mark("No Values Found"), code, name, sentences=sentences, hints=hints, contact=contact)
    sentences = (*alias, to_sentence(str(refused)))
    if isinstance(refused, ReferralError):
        sentences = (*alias, _("Another service hosts this prefix."))
    elif code is ResponseCode.SERVER_NOT_RESP and not isinstance(refused, OtherServer):
        prefix = name.partition("/")[0]
        sentences = (
            *alias,
            _("This server does not host prefix {prefix}. Use the service that hosts it.").format(
                prefix=to_visible(prefix, 200)
            ),
        )
    return Problem(
        MISDIRECTED if isinstance(refused, OtherServer) else status_of(code),
        mark("Resolution Error"),
        code,
        name,
        after=mark(", cannot be resolved here."),
        sentences=sentences,
    )


def with_suggestions(problem: Problem, found: Suggestions | None, settings: HttpSettings) -> Problem:
    """Add suggestions, and what is known of the prefix."""
    if found is None:
        return problem
    sentences = problem.sentences
    prefix = found.prefix
    # If the prefix is not hosted here, the problem says so already.
    if prefix is not None and (problem.status == 404 or prefix.status is PrefixStatus.DERIVED):
        sentences = (*sentences, to_sentence(prefix.why))
    suggested = tuple([_suggested_name(each, settings) for each in found.suggestions])
    more = (problem.more or {}) | found.to_json()
    return replace(problem, sentences=sentences, hints=(), suggestions=suggested, more=more)


def _suggested_name(suggestion: Suggestion, settings: HttpSettings) -> SuggestedName:
    name = str(suggestion.handle)
    link, why = TextLink(to_visible(name, MAX_NAME), path_to(name, settings)), to_visible(to_sentence(suggestion.why))
    gone = suggestion.gone
    if gone is None:
        return SuggestedName(link, why)
    text = _("This identifier was withdrawn on {date}") if gone.date else _("This identifier was withdrawn")
    text = text.format(date=gone.date) + (f": {gone.reason}" if gone.reason else "")
    replacement = "" if gone.replacement is None else to_visible(to_path(Reference(gone.replacement)), MAX_NAME)
    return SuggestedName(link, why, to_visible(to_sentence(text)), replacement)


def not_found_at(problem: LookupFailure, found: MementoNeighbors | None, at: int, settings: HttpSettings) -> Problem:
    """Create the problem for a name without record after an entry, with the versions around it."""
    name = problem.name
    alias = _alias_sentence(problem.aliases, name)
    base = Problem(
        404, mark("Not found"), ResponseCode.HANDLE_NOT_FOUND, name, contact=problem.namespace.contact, past=True
    )
    if found is None:
        return replace(base, sentences=(*alias, _("The handle did not exist at that time.")))
    version = found.memento
    if version.seq > at:
        sentence = _("The handle did not exist yet at that time. Its first version is from {time}.")
        listed = {"first": version}
    else:
        sentence = _("The handle was deleted at that time. Its previous version is from {time}.")
        listed = {"previous": version} | ({} if found.next is None else {"next": found.next})
    sentence = sentence.format(time=_time(version))
    return _with_versions(replace(base, sentences=(*alias, sentence)), listed, settings)


def with_last_version(problem: Problem, found: MementoNeighbors, settings: HttpSettings) -> Problem:
    """Add the last version of a deleted handle."""
    sentence = _("The handle was deleted. Its last version is from {time}.").format(time=_time(found.last))
    changed = replace(problem, sentences=(*problem.sentences, sentence))
    return _with_versions(changed, {"previous": found.last}, settings)


def _with_versions(problem: Problem, listed: Mapping[str, Memento], settings: HttpSettings) -> Problem:
    """Add versions, as links and as JSON members."""
    path = path_to(problem.name, settings)
    links = [
        TextLink(_("Version of {time}").format(time=_time(each)), f"{path}?{AT_PARAMETER}={each.seq}&noredirect")
        for each in listed.values()
    ]
    more: JsonObject = {label: memento_json(each) for label, each in listed.items()}
    return replace(problem, versions=tuple(links), more=(problem.more or {}) | more)


def _time(version: Memento) -> str:
    return to_iso(version.seconds)


def inactive_namespace(name: str, namespace: NamespaceInfo) -> Problem:
    """Create the problem for an inactive namespace."""
    sentence = namespace.inactive or _("The namespace of this handle is no longer in use.")
    code = ResponseCode.HANDLE_NOT_FOUND
    return Problem(404, mark("Not found"), code, name, sentences=(sentence,), contact=namespace.contact)


def bad_request(message: str, status: int) -> Problem:
    """Create the problem for an invalid request."""
    return Problem(status, mark("Bad Request"), ResponseCode.PROTOCOL_ERROR, sentences=(to_sentence(message),))


def page_not_found(name: str, settings: HttpSettings) -> Problem:
    """Create the problem for a path that is neither a page nor a name in a declared form."""
    folder, _slash, prefix = name.partition("/")
    if folder == NAMESPACES and prefix:
        sentence = _("This service has no namespace {prefix}.").format(prefix=to_visible(prefix, 200))
        hints = (TextLink(_("Namespaces of this service"), "/"),)
        return Problem(404, mark("Not found"), ResponseCode.PROTOCOL_ERROR, sentences=(sentence,), hints=hints)
    sentences = (_("This page does not exist."), _("If you meant a handle, follow the link."))
    hints = (TextLink(to_visible(name, 200), path_to(name, settings, HANDLE_SEGMENT)),)
    return Problem(404, mark("Not found"), ResponseCode.PROTOCOL_ERROR, sentences=sentences, hints=hints)


def from_failure(status: int, code: ResponseCode, message: str, headers: HeaderList) -> Problem:
    """Create the problem for an error that is not about a name."""
    title = mark("System Error") if status >= 500 else mark("Bad Request")
    return Problem(
        status, title, code, sentences=(to_sentence(message),), headers=(*headers, ("Cache-Control", "no-store"))
    )


def _alias_sentence(aliases: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The sentence that explains which alias led to a name."""
    return (
        (
            _("You requested {alias}, which is an alias of {name}.").format(
                alias=to_visible(aliases[0], 200), name=to_visible(name, 200)
            ),
        )
        if aliases
        else ()
    )


def _without_slash(name: str, settings: HttpSettings) -> tuple[TextLink, ...]:
    """A link to the name without the slash at its end, which is a common typo."""
    shorter = name.rstrip("/")
    if not name.endswith("/") or "/" not in shorter:
        return ()
    text = _("Try it without the final slash: {name}").format(name=to_visible(shorter, 200))
    return (TextLink(text, path_to(shorter, settings)),)

"""Did you mean …? What is said about a name that is not there, as far as there is a budget for it.

What else may have been meant: advice for whoever asked for a name that is not here.

Which prefixes are here is told to those who may list them, and to nobody else.

What is said of a name of which there is nothing to show, or nothing more (§9.7): a page, or JSON for programs.

The words of deployed resolvers stand where somebody may look for them: the titles, and the sentence with `The handle
you requested` and `cannot be found`, by which a program knows that it has reached a resolver.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Generic, TypeVar

from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.names.uri import KNOWN_RESOLVERS, Reference, to_path
from perseid.records.encoding import to_iso
from perseid.records.json_parsing import JsonObject
from perseid.registry.access import permissions
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Command, Context, Plan
from perseid.registry.queries.memento import Memento, MementoNeighbors
from perseid.registry.queries.suggest import PrefixStatus, Suggestion, Suggestions, suggestions
from perseid.registry.results import ReferralError, Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http import responses
from perseid.server.http.context import HANDLE_SEGMENT, HttpSettings, RequestContext
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import VARY, VARY_HISTORY, AcceptHeader
from perseid.server.http.pages.pages import NO_TEXT, TextLink, mail_link, render_page, to_visible
from perseid.server.http.responses import status_of
from perseid.server.limits.budgets import EXEMPT, get_source
from perseid.server.native.decisions import WRONG_PREFIX, Busy
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import OpCode, ResponseCode

from .lookup import CHAIN_TOO_LONG, MAX_ALIASES, LookupFailure, NamespaceInfo
from .paths import get_resolvers, path_to
from .time_travel import AT_PARAMETER, memento_json

SUGGESTION_CODES: Final = frozenset(
    (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.INVALID_HANDLE, ResponseCode.SERVER_NOT_RESP)
)
"""What may be a matter of spelling."""


async def find_suggestions(request_context: RequestContext, text: str) -> Suggestions | None:
    """What may have been meant by a text that is no name here; None if nobody looks for that at the moment.

    Whoever is on this machine, and asks for themselves, has no share of their own that could be used up.
    """
    place, client = request_context.place, request_context.request.client
    if not place.suggestion_budget.take(EXEMPT if client.local else get_source(client.host), place.time()):
        return None
    resolvers = (*KNOWN_RESOLVERS, *get_resolvers(place.settings))
    try:
        return await request_context.do(WorkKind.READ, lambda: suggestions(place.registry, text, resolvers))
    except Busy:
        return None  # that the name is not there can be said without it


MAX_LISTED_PREFIXES: Final = 5
"""Prefixes that an answer names: enough to see that one has come to the right place, or not."""

_SCHEME: Final = re.compile("(?:hdl|doi|info:hdl/|info:doi/|urn:hdl|urn:doi):?", re.IGNORECASE | re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdvisedCommand(Generic[T]):
    """An operation whose refusal of a name that is not here says more."""

    operation: Command[T]
    name: str
    """As it was asked for."""

    def decide(self, context: Context) -> Plan[T]:
        """As the operation decides."""
        try:
            return self.operation.decide(context)
        except ReferralError:
            raise
        except Refused as refused:
            if refused.code != ResponseCode.SERVER_NOT_RESP or fold(refused.reason) != fold(WRONG_PREFIX):
                raise
            raise Refused(refused.code, WRONG_PREFIX, prefix_advice(self.name, context)) from refused


def prefix_advice(name: str, context: Context) -> str:
    """What to do about a name whose prefix is not here."""
    bare = _without_scheme(name)
    if bare is not None and context.snapshot.is_responsible(bare):
        return f"names are written without a scheme before them here: {display_name(bare)}"
    asks = "ask the service of the prefix, if the prefix is right as it is written"
    if not context.is_allowed(permissions.server_operation(OpCode.LIST_HOMED_NAS)):
        return asks
    found = list(islice(_prefixes(context.snapshot), MAX_LISTED_PREFIXES + 1))
    if not found:
        return asks
    named = ", ".join(display_name(prefix) for prefix in found[:MAX_LISTED_PREFIXES])
    more = " and others" if len(found) > MAX_LISTED_PREFIXES else ""
    return f"{asks}; served here: {named}{more}"


def _prefixes(snapshot: Snapshot) -> Iterator[str]:
    """Prefixes whose names are here, in their order: those of the table that people make names under."""
    for name in homed_prefixes(snapshot.reading):
        prefix = name.removeprefix(f"{PREFIX_OF_PREFIXES}/")
        if "/" not in prefix and fold(prefix) != PREFIX_OF_PREFIXES:
            yield prefix


def _without_scheme(name: str) -> Handle | None:
    """The handle behind `hdl:` and the like; None if there is no such thing before it."""
    found = _SCHEME.match(name)
    return None if found is None else Handle.for_lookup(name[found.end() :].lstrip("/"))


REQUESTED: Final = "The handle you requested,"
NOT_FOUND: Final = ", cannot be found."
"""Around the name."""

MAX_NAME: Final = 2_048
"""Characters of a name that an error repeats: as many as the longest one can have."""

NO_CACHE: Final = ("Cache-Control", "no-cache")
"""A name that is not there may be there in a moment."""


@dataclass(frozen=True, slots=True)
class SuggestedName:
    """A name that may have been meant, as the page shows it."""

    link: TextLink
    why: str
    gone: str = ""
    """What became of its thing, if it is gone."""
    instead: str = ""
    """The name to use instead; the page of the one that is gone links it, if it is here."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, and what to say."""

    status: int
    title: str
    code: ResponseCode
    name: str = ""
    before: str = REQUESTED
    behind: str = NOT_FOUND
    sentences: tuple[str, ...] = ()
    hints: tuple[TextLink, ...] = ()
    contact: str = ""
    headers: HeaderList = (NO_CACHE,)
    searchable: bool = True
    meant: tuple[SuggestedName, ...] = ()
    """Names that may have been meant."""
    more: JsonObject | None = None
    """What programs are told besides."""
    past: bool = False
    """Whether it is about a moment of the past, so that the time which a header names does not count."""
    then: tuple[TextLink, ...] = ()
    """What there was at other times."""


def to_response(problem: Problem, accepted: AcceptHeader, settings: HttpSettings) -> Response:
    """A problem as an answer, in the form that the client likes better."""
    headers = (*problem.headers, ("Vary", VARY_HISTORY if problem.past else VARY))
    if accepted.prefers_json_errors:
        message = " ".join(problem.sentences) or problem.title
        plain = responses.error_body(problem.code, message, problem.name or None) | (problem.more or {})
        return responses.json_response(plain, status=problem.status, headers=headers, name=problem.name)
    made = render_page(
        "problem.html",
        settings,
        problem.status,
        headers,
        title=problem.title,
        name=to_visible(problem.name, MAX_NAME),
        before=problem.before,
        behind=problem.behind,
        sentences=[to_visible(sentence) for sentence in problem.sentences],
        hints=(*problem.hints, *problem.then),
        meant=problem.meant,
        contact=mail_link(problem.contact, settings) if problem.contact else NO_TEXT,
        searchable=problem.searchable,
    )
    return Response(made.status, made.headers, made.body, code=problem.code, name=problem.name)


def from_lookup_failure(
    problem: LookupFailure, asked: str, settings: HttpSettings, *, restricted: bool = False
) -> Problem:
    """What is said of a name of which there is nothing to show."""
    refused, name = problem.refused, problem.name
    contact = problem.space.contact
    by_way = _alias_sentence(problem.aliases, name)
    code = refused.code
    if problem.is_loop:
        sentence = f"It is another name for another name, in a circle or more than {MAX_ALIASES} times over."
        return Problem(404, CHAIN_TOO_LONG, code, asked, sentences=(sentence,), contact=contact)
    if code is ResponseCode.HANDLE_NOT_FOUND:
        return Problem(
            404, "Not Found", code, name, sentences=by_way, hints=_without_slash(name, settings), contact=contact
        )
    if code is ResponseCode.VALUES_NOT_FOUND:
        sentences = (*by_way, "There is such a name, and nothing in its record is public.")
        hints: tuple[TextLink, ...] = ()
        if restricted:
            sentences = (*by_way, "There is such a name, and its record has nothing of the types or indexes asked for.")
            hints = (TextLink("Everything in its record", f"{path_to(name, settings)}?noredirect"),)
        status = settings.no_values_status
        return Problem(status, "No Values Found", code, name, sentences=sentences, hints=hints, contact=contact)
    sentences = (*by_way, _sentence(str(refused)))
    if isinstance(refused, ReferralError):
        sentences = (*by_way, "Another service holds the handles of this prefix.")
    elif code is ResponseCode.SERVER_NOT_RESP:
        prefix = name.partition("/")[0]
        sentences = (
            *by_way,
            f"The prefix {to_visible(prefix, 200)} is not served here. Ask the service that it belongs to.",
        )
    return Problem(
        status_of(code), "Resolution Error", code, name, behind=", cannot be resolved here.", sentences=sentences
    )


def with_suggestions(problem: Problem, found: Suggestions | None, settings: HttpSettings) -> Problem:
    """The same with names that may have been meant, and what is known of the prefix."""
    if found is None:
        return problem
    sentences = problem.sentences
    prefix = found.prefix
    # Where the prefix is not served here, that has been said already.
    if prefix is not None and (problem.status == 404 or prefix.standing is PrefixStatus.DERIVED):
        sentences = (*sentences, _sentence(prefix.why))
    meant = tuple([_suggested_name(each, settings) for each in found.suggestions])
    return replace(problem, sentences=sentences, hints=(), meant=meant, more=(problem.more or {}) | found.to_json())


def _suggested_name(suggestion: Suggestion, settings: HttpSettings) -> SuggestedName:
    name = str(suggestion.handle)
    link, why = TextLink(to_visible(name, MAX_NAME), path_to(name, settings)), to_visible(_sentence(suggestion.why))
    gone = suggestion.gone
    if gone is None:
        return SuggestedName(link, why)
    reason = f": {gone.reason}" if gone.reason else ""
    what = f"What it stood for is gone{f' since {gone.date}' if gone.date else ''}{reason}"
    instead = "" if gone.replacement is None else to_visible(to_path(Reference(gone.replacement)), MAX_NAME)
    return SuggestedName(link, why, to_visible(_sentence(what)), instead)


def not_found_at(problem: LookupFailure, found: MementoNeighbors | None, at: int, settings: HttpSettings) -> Problem:
    """What is said of a name that was not there after an entry, with the versions around that moment."""
    name = problem.name
    by_way = _alias_sentence(problem.aliases, name)
    said = Problem(404, "Not Found", ResponseCode.HANDLE_NOT_FOUND, name, contact=problem.space.contact, past=True)
    if found is None:
        return replace(said, sentences=(*by_way, "There was no such name at that moment."))
    version = found.memento
    if version.seq > at:
        sentence = f"There was no such name yet at that moment. Its first version is of {_time(version)}."
        listed = {"first": version}
    else:
        sentence = f"There was no such name any more at that moment. Its last version before is of {_time(version)}."
        listed = {"previous": version} | ({} if found.next is None else {"next": found.next})
    return _with_versions(replace(said, sentences=(*by_way, sentence)), listed, settings)


def with_last_version(problem: Problem, found: MementoNeighbors, settings: HttpSettings) -> Problem:
    """The same of a name that is not there any more, with the last version that there was."""
    sentence = f"There was such a name. Its last version is of {_time(found.last)}."
    said = replace(problem, sentences=(*problem.sentences, sentence))
    return _with_versions(said, {"previous": found.last}, settings)


def _with_versions(problem: Problem, listed: Mapping[str, Memento], settings: HttpSettings) -> Problem:
    """The same with links to versions, and what programs are told of them."""
    address = path_to(problem.name, settings)
    then = [
        TextLink(f"As it was on {_time(each)}", f"{address}?{AT_PARAMETER}={each.seq}&noredirect")
        for each in listed.values()
    ]
    more: JsonObject = {label: memento_json(each) for label, each in listed.items()}
    return replace(problem, then=tuple(then), more=(problem.more or {}) | more)


def _time(version: Memento) -> str:
    return to_iso(version.seconds).replace("T", " ")


def inactive_namespace(name: str, space: NamespaceInfo) -> Problem:
    """What is said where a namespace is not in use any more."""
    sentence = space.inactive or "The namespace of this name is not in use any more."
    code = ResponseCode.HANDLE_NOT_FOUND
    return Problem(404, "Not Found", code, name, sentences=(sentence,), contact=space.contact)


def bad_request(message: str, status: int = 400, name: str = "") -> Problem:
    """What is said of a request that cannot be understood."""
    behind = ", was asked for in a way that makes no sense."
    sentences = (_sentence(message),)
    return Problem(status, "Bad Request", ResponseCode.PROTOCOL_ERROR, name, behind=behind, sentences=sentences)


def page_not_found(name: str, settings: HttpSettings) -> Problem:
    """What is said of a path that is no page, and no name in a form that this server declares."""
    sentences = ("There is no such page here.", "If you meant a handle of that name, follow the link.")
    hints = (TextLink(to_visible(name, 200), path_to(name, settings, HANDLE_SEGMENT)),)
    return Problem(404, "Not Found", ResponseCode.PROTOCOL_ERROR, sentences=sentences, hints=hints)


def from_failure(status: int, code: ResponseCode, message: str, headers: HeaderList) -> Problem:
    """What is said when something went wrong that has nothing to do with the name."""
    title = "System Error" if status >= 500 else "Bad Request"
    return Problem(
        status, title, code, sentences=(_sentence(message),), headers=(*headers, ("Cache-Control", "no-store"))
    )


def _alias_sentence(aliases: tuple[str, ...], name: str) -> tuple[str, ...]:
    """How somebody came to a name that they did not ask for."""
    return (
        (f"You asked for {to_visible(aliases[0], 200)}, which is another name for {to_visible(name, 200)}.",)
        if aliases
        else ()
    )


def _without_slash(name: str, settings: HttpSettings) -> tuple[TextLink, ...]:
    """A link to the name without the slash at its end, which people add without thinking."""
    shorter = name.rstrip("/")
    if not name.endswith("/") or "/" not in shorter:
        return ()
    return (TextLink(f"It ends in a slash. Try it without: {to_visible(shorter, 200)}", path_to(shorter, settings)),)


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")

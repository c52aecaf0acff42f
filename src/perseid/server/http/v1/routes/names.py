"""Names and suffixes: taken apart, converted, checked and explained, as `perseid name` and `perseid suffix` do.

Nobody has to be known for that, and nothing is looked up: whether a name exists is another question.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec

from perseid.names import pilin
from perseid.names.allocator import MemoryLease
from perseid.names.cordra import CordraScheme
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.prefixes import check_prefix
from perseid.names.schemes import load_scheme, recognize
from perseid.names.suffix_scheme import Source
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_user_input, to_host, to_http, to_path
from perseid.registry.results import rules
from perseid.server.http.caching import STATIC_AGE
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, RequestBody, ResponseBody
from perseid.server.http.v1.validation import InvalidNameParameter, InvalidParameter, locate_name_error

SECTION: Final = Routes("Names", "Names and suffixes: taken apart, converted, checked. Nothing is looked up.")

_CACHE_HEADERS: Final = (("Cache-Control", f"public, max-age={STATIC_AGE}"),)
_ANY_PREFIX: Final = "0"  # schemes look at whole handles; for a suffix alone any prefix serves
_MAX_TEXT: Final = 8_000  # more does not fit into the head of a request


class Form(StrEnum):
    """What a name can be converted to."""

    HANDLE = "handle"
    HOST = "host"
    PATH = "path"
    HTTP = "http"


class Scheme(StrEnum):
    """A scheme of suffixes that has a shape of its own."""

    PILIN = "pilin"
    PILIN_CHECK = "pilin-check"
    CORDRA = "cordra"
    UUID = "uuid"


Text = Annotated[
    str,
    Doc(
        "A name in any form: a handle, a `hdl:` URI, or a URL of a resolver that is known here.",
        min_length=1,
        max_length=_MAX_TEXT,
        examples=["hdl:102.100.272/D7J1G0DQH"],
    ),
]
Resolvers = Annotated[
    tuple[str, ...],
    Doc(
        "Also understand URLs of these resolvers; may be repeated.",
        max_length=10,
        examples=[["http://example.org/hdl"]],
    ),
]


class TextQuery(RequestBody, frozen=True):
    """A name, and which resolvers' URLs are understood."""

    text: Text
    resolver: Resolvers = ()


class ConversionQuery(RequestBody, frozen=True):
    """A name, and what it is to be converted to."""

    text: Text
    to: Annotated[Form, Doc("The form that is wanted.", examples=["path"])]
    resolver: Annotated[str, Doc("The resolver for the form `http`.", examples=["http://example.org/hdl"])] = ""


class PilinQuery(RequestBody, frozen=True):
    """A moment."""

    at: Annotated[
        str, Doc("In ISO 8601, in UTC unless it says; now if it is left out.", examples=["2007-09-17T07:14:50.919Z"])
    ] = ""


class CordraQuery(RequestBody, frozen=True):
    """A kind of UUID."""

    version: Annotated[Literal[1, 4], Doc("4 is random, 1 the time with a random node.", examples=[4])] = 4


class SchemeQuery(RequestBody, frozen=True):
    """A suffix, and the scheme that it may belong to."""

    suffix: Annotated[
        str,
        Doc(
            "The suffix alone: what stands behind the first slash of a handle.",
            min_length=1,
            max_length=_MAX_TEXT,
            examples=["D7J1G0DQH"],
        ),
    ]
    scheme: Annotated[Scheme | None, Doc("The scheme; without one, the one that it looks like.")] = None
    prefix: Annotated[str, Doc("The prefix, for schemes that restrict it.", min_length=1, max_length=200)] = _ANY_PREFIX


Query = Annotated[str | None, Doc("What stood behind a `?` in a URI; no part of the handle.")]
Fragment = Annotated[str | None, Doc("What stood behind a `#` in a URI; no part of the handle.")]


class ParsedName(ResponseBody, frozen=True):
    """A name and its parts."""

    handle: Annotated[str, Doc("The handle, in the spelling that its scheme prefers.", examples=["12345/x"])]
    given: Annotated[str, Doc("The handle as it was spelt.")]
    prefix: Annotated[str, Doc("What stands before the first slash.", examples=["12345"])]
    suffix: Annotated[str, Doc("What stands behind it.", examples=["x"])]
    query: Query = None
    fragment: Fragment = None
    scheme: Annotated[
        str | None, Doc("The scheme that it looks like. It is advice: only the namespace of the name knows.")
    ] = None
    details: Annotated[dict[str, Any], Doc("What the scheme tells from the suffix alone.")] = msgspec.field(
        default_factory=dict
    )


class ConvertedName(ResponseBody, frozen=True):
    """A name in another form."""

    form: Annotated[str, Doc("The form.", examples=["path"])]
    name: Annotated[str, Doc("The name in that form.", examples=["hdl:12345/x"])]
    query: Query = None
    fragment: Fragment = None


class NameForms(ResponseBody, frozen=True):
    """A name in all its forms."""

    handle: Annotated[str, Doc("The bare handle.", examples=["12345/x"])]
    host: Annotated[str, Doc("As `hdl://` URI.", examples=["hdl://12345/x"])]
    path: Annotated[str, Doc("As `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[list[str], Doc("At resolvers: those that this server declares, and the global one.")]


class Rule(ResponseBody, frozen=True):
    """A rule that problems name."""

    rule: Annotated[str, Doc("Its id.", examples=["H3"])]
    title: Annotated[str, Doc("What it is about.")]
    text: Annotated[str, Doc("What it says.")]


class Rules(ResponseBody, frozen=True):
    """All rules that problems name."""

    rules: Annotated[list[Rule], Doc("The rules that problems name.")]


class PilinSuffix(ResponseBody, frozen=True):
    """A PILIN suffix and the moment that it stands for."""

    suffix: Annotated[str, Doc("Nine characters.", examples=["D7J1G0DQH"])]
    milliseconds: Annotated[int, Doc("Since 1582-10-15T00:00:00Z.")]
    time: Annotated[str, Doc("The moment in ISO 8601.", examples=["2007-09-17T07:14:50.919Z"])]


class CordraSuffix(ResponseBody, frozen=True):
    """A CORDRA path."""

    suffix: Annotated[str, Doc("32 hexadecimal digits.")]
    version: Annotated[int, Doc("The kind of UUID.")]
    uuid: Annotated[str, Doc("The same with hyphens.")]


class SuffixCheck(ResponseBody, frozen=True):
    """Whether a suffix belongs to a scheme, and why or why not."""

    suffix: Annotated[str, Doc("The suffix as it was given.")]
    scheme: Annotated[str | None, Doc("The scheme; null if it looks like none.")]
    valid: Annotated[bool, Doc("Whether it belongs to the scheme.")]
    normal: Annotated[str, Doc("The spelling that the scheme prefers.")] = ""
    details: Annotated[dict[str, Any], Doc("What the scheme tells from it.")] = msgspec.field(default_factory=dict)
    reason: Annotated[str, Doc("What is wrong with it.")] = ""
    rule: Annotated[str, Doc("The id of the rule that it breaks.", examples=["P7"])] = ""
    where: Annotated[str, Doc("Which of the two it is that breaks it: `suffix` or `prefix`.", examples=["suffix"])] = ""
    position: Annotated[int | None, Doc("Which character of that is wrong, counted from 1.")] = None


@SECTION.add("GET", "/names/parse", "parseName", "Take a name apart", response=ParsedName, query=TextQuery)
async def parse(call: ApiCall) -> Reply:
    """The parts of a name in any form: handle, prefix, suffix, query, fragment, and the scheme that it looks like.

    A bare handle is taken literally. The scheme is advice by shape; only the name's namespace knows for sure.
    """
    asked = call.asked(TextQuery)
    reference = _parse_name(asked.text, _known_resolvers(call, asked.resolver))
    given = reference.handle
    scheme = recognize(given)
    handle = given if scheme is None else scheme.normalize(given)
    return Reply(
        ParsedName(
            str(handle),
            str(given),
            handle.prefix,
            handle.suffix,
            reference.query,
            reference.fragment,
            None if scheme is None else scheme.name,
            {} if scheme is None else dict(scheme.describe(given)),
        ),
        headers=_CACHE_HEADERS,
    )


@SECTION.add("GET", "/names/convert", "convertName", "Convert a name", response=ConvertedName, query=ConversionQuery)
async def convert(call: ApiCall) -> Reply:
    """A name in another form. The spelling is kept; query and fragment come along where the form has room."""
    asked = call.asked(ConversionQuery)
    own = [_parse_resolver(asked.resolver)] if asked.resolver else []
    reference = _parse_name(asked.text, [*own, *_known_resolvers(call)])
    name = {
        Form.HANDLE: lambda: str(reference.handle),
        Form.HOST: lambda: to_host(reference),
        Form.PATH: lambda: to_path(reference),
        Form.HTTP: lambda: to_http(reference, own[0] if own else KNOWN_RESOLVERS[0]),
    }[asked.to]()
    return Reply(ConvertedName(asked.to.value, name, reference.query, reference.fragment), headers=_CACHE_HEADERS)


@SECTION.add("GET", "/names/forms", "nameForms", "All forms of a name", response=NameForms, query=TextQuery)
async def forms(call: ApiCall) -> Reply:
    """A name as it is, as URI in both forms, and at the resolvers that are declared here."""
    asked = call.asked(TextQuery)
    reference = _parse_name(asked.text, _known_resolvers(call, asked.resolver))
    declared = [
        *map(_parse_resolver, asked.resolver),
        *get_resolvers(call.request_context.place.settings),
        KNOWN_RESOLVERS[0],
    ]
    links = list(dict.fromkeys(to_http(reference, resolver) for resolver in declared))
    return Reply(
        NameForms(str(reference.handle), to_host(reference), to_path(reference), links), headers=_CACHE_HEADERS
    )


@SECTION.add("GET", "/names/rules", "listRules", "The rules", response=Rules)
async def list_rules(_: ApiCall) -> Reply:
    """The rules that problems refer to by their ids."""
    return Reply(
        Rules([Rule(key, said["title"], said["text"]) for key, said in rules().items()]), headers=_CACHE_HEADERS
    )


@SECTION.add(
    "GET",
    "/names/rules/{rule}",
    "showRule",
    "A rule",
    response=Rule,
    problems=(404,),
    parameters={"rule": "The id of the rule, as problems name it: `H3`."},
)
async def show_rule(call: ApiCall) -> Reply:
    """What a rule says to which a problem refers by its id."""
    key = call.names["rule"].upper()
    said = rules().get(key)
    if said is None:
        raise ApiError(
            "not-found", f"there is no rule {quote_text(call.names['rule'])}", f"there are {', '.join(rules())}"
        )
    return Reply(Rule(key, said["title"], said["text"]), headers=_CACHE_HEADERS)


@SECTION.add(
    "GET", "/suffixes/pilin", "pilinSuffix", "The PILIN suffix of a moment", response=PilinSuffix, query=PilinQuery
)
async def pilin_suffix(call: ApiCall) -> Reply:
    """The suffix that PILIN makes of a moment. Two calls in the same millisecond give the same: it is nobody's name.

    Names that are never repeated are minted, or generated, by a namespace.
    """
    at = call.asked(PilinQuery).at
    if not at:
        return Reply(
            _pilin_response(pilin.from_unix_ns(int(call.request_context.place.time() * 1e9))), headers=(NO_STORE,)
        )
    return Reply(_pilin_response(_parse_milliseconds(at)), headers=_CACHE_HEADERS)


@SECTION.add(
    "GET",
    "/suffixes/pilin/{suffix}",
    "decodePilin",
    "The moment of a PILIN suffix",
    response=PilinSuffix,
    parameters={"suffix": "The nine characters."},
)
async def decode_pilin(call: ApiCall) -> Reply:
    """When a PILIN suffix was made, by what it says itself."""
    with locate_name_error("suffix"):
        return Reply(_pilin_response(pilin.decode(call.names["suffix"])), headers=_CACHE_HEADERS)


@SECTION.add("GET", "/suffixes/cordra", "cordraSuffix", "A new CORDRA path", response=CordraSuffix, query=CordraQuery)
async def cordra_suffix(call: ApiCall) -> Reply:
    """A new UUID in 32 capital hexadecimal digits. Nothing is registered."""
    version = call.asked(CordraQuery).version
    place = call.request_context.place
    scheme = CordraScheme(version)
    source = Source(lambda: int(place.time() * 1e9), secrets.token_bytes, MemoryLease(), lambda _: None)
    (suffix,) = scheme.mint(source)
    uuid = scheme.describe(Handle(_ANY_PREFIX, suffix))["uuid"]
    return Reply(CordraSuffix(suffix, version, str(uuid)), headers=(NO_STORE,))


@SECTION.add("GET", "/suffixes/check", "checkSuffix", "Check a suffix", response=SuffixCheck, query=SchemeQuery)
async def check(call: ApiCall) -> Reply:
    """Whether a suffix belongs to a scheme; if not, which rule it breaks and where.

    Some schemes restrict the prefix as well: name it, and it is checked too.
    """
    asked = call.asked(SchemeQuery)
    handle = _parse_suffix(asked)
    scheme = recognize(handle) if asked.scheme is None else load_scheme(asked.scheme.value)
    if scheme is None:
        return Reply(SuffixCheck(asked.suffix, None, valid=False, reason="it looks like none of the schemes"))
    try:
        normal = scheme.normalize(handle)
    except InvalidName as problem:
        found = _locate_error(problem, handle)
        at = None if found.position is None else found.position + 1
        made = SuffixCheck(
            asked.suffix, scheme.name, False, reason=found.message, rule=found.rule, where=found.where, position=at
        )
        return Reply(made, headers=_CACHE_HEADERS)
    return Reply(
        SuffixCheck(asked.suffix, scheme.name, True, normal.suffix, dict(scheme.describe(handle))),
        headers=_CACHE_HEADERS,
    )


def _parse_suffix(asked: SchemeQuery) -> Handle:
    """The handle of a suffix and a prefix, each of which has to be one by itself; raises `Misnamed`."""
    with locate_name_error("prefix"):
        check_prefix(asked.prefix)
    try:
        return Handle.parse(f"{asked.prefix}/{asked.suffix}")
    except InvalidName as problem:
        raise _locate_error(problem, Handle(asked.prefix, asked.suffix)) from problem


def _locate_error(problem: InvalidName, handle: Handle) -> InvalidNameParameter:
    """A problem with a handle, as one of its prefix or of its suffix."""
    begin = len(handle.prefix) + 1
    if problem.position is None:
        return InvalidNameParameter.at(problem, "suffix")
    if problem.position < begin:
        return InvalidNameParameter.at(problem, "prefix")
    return InvalidNameParameter.at(problem.with_position(problem.position - begin), "suffix")


def _known_resolvers(call: ApiCall, more: Sequence[str] = ()) -> list[Resolver]:
    """The resolvers whose URLs are understood: those that were named, our own, and those that everybody knows."""
    return [*map(_parse_resolver, more), *get_resolvers(call.request_context.place.settings), *KNOWN_RESOLVERS]


def _parse_name(text: str, resolvers: Sequence[Resolver]) -> Reference:
    with locate_name_error("text"):
        return parse_user_input(text, resolvers)


def _parse_resolver(text: str) -> Resolver:
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        advice = "write it as in http://example.org/hdl"
        raise InvalidParameter(problem.message, "resolver", advice) from problem


def _pilin_response(milliseconds: int) -> PilinSuffix:
    return PilinSuffix(pilin.encode(milliseconds), milliseconds, pilin.format_time(milliseconds))


def _parse_milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{quote_text(text)} is not a time in ISO 8601, such as 2007-09-17T07:14:50.919Z"
        raise InvalidParameter(message, "at", "write the time in ISO 8601, in UTC unless it names a zone") from None
    milliseconds = pilin.from_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if not pilin.MIN_MILLISECONDS <= milliseconds < pilin.END_MILLISECONDS:
        first, last = pilin.format_time(pilin.MIN_MILLISECONDS), pilin.format_time(pilin.END_MILLISECONDS - 1)
        raise InvalidName("P3", f"there is no PILIN suffix for that time: they begin at {first} and end at {last}")
    return milliseconds

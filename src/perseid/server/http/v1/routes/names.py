"""The entry point of the API, and routes about the syntax of handles and suffixes.

The routes parse, convert and check as `perseid name` and `perseid suffix` do. No authentication is needed, and nothing
is looked up.
"""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from perseid import __version__
from perseid.names import pilin
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle, check_prefix_syntax
from perseid.names.scheme_loader import load_scheme, recognize
from perseid.names.schemes import MemoryLease, Source
from perseid.names.uri import (
    KNOWN_RESOLVERS,
    Reference,
    Resolver,
    parse_uri,
    parse_user_input,
    to_host,
    to_http,
    to_path,
)
from perseid.schema import names
from perseid.schema.common import Overview
from perseid.schema.names import (
    ConversionQuery,
    ConvertedName,
    CordraQuery,
    CordraSuffix,
    NameForms,
    ParsedName,
    PilinQuery,
    PilinSuffix,
    Rule,
    Rules,
    SchemeQuery,
    SuffixCheck,
    TextQuery,
    generate_cordra,
    pilin_at,
    rules,
    to_pilin,
)
from perseid.server.http.negotiation import PAGE_AGE, STATIC_AGE
from perseid.server.http.resolver.paths import absolute_url, get_resolvers
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.api_call import ApiCall, parse_resolver
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.validation import InvalidNameParameter, InvalidParameter, locate_name_error

OVERVIEW: Final = Routes("Overview", "Links to the documentation.")


@OVERVIEW.add("GET", "/", "Get an overview")
async def overview(call: ApiCall) -> Reply[Overview]:
    """Return links to the documentation of this API."""

    def url(path: str) -> str:
        return absolute_url(path, call.settings)

    result = Overview(
        f"perseid {__version__}",
        url(BASE),
        url("/openapi.json"),
        url("/docs"),
        url("/docs/problems"),
        url("/resolver.json"),
    )
    return Reply(result, headers=(("Cache-Control", f"public, max-age={PAGE_AGE}"),))


NAMES: Final = Routes("Names", "Parse, convert and check handles and suffixes. Nothing is looked up.")

_CACHE_HEADERS: Final = (("Cache-Control", f"public, max-age={STATIC_AGE}"),)


@NAMES.add("GET", "/names/parse", "Parse a handle")
async def parse_name(call: ApiCall, query: TextQuery) -> Reply[ParsedName]:
    """Parse a handle in any form: handle, prefix, suffix, query, fragment, and the recognized scheme.

    A bare handle is taken literally. The scheme is recognized by form; only the policy of the namespace is
    authoritative.
    """
    reference = _parse_name(query, [*map(parse_resolver, query.resolver), *call.resolvers])
    return Reply(names.parse_name(reference), headers=_CACHE_HEADERS)


@NAMES.add("GET", "/names/convert", "Convert a handle")
async def convert_name(call: ApiCall, query: ConversionQuery) -> Reply[ConvertedName]:
    """Convert a handle to another form. Case is kept, query and fragment where the form allows them.

    In a CORDRA identifier (`scheme=cordra`), query and fragment are part of the handle, and every form has them.
    """
    own = parse_resolver(query.resolver) if query.resolver else None
    reference = _parse_name(query, [*([own] if own else ()), *call.resolvers])
    with locate_name_error("text"):
        converted = names.convert_name(reference, query.to, own, query.scheme)
    return Reply(converted, headers=_CACHE_HEADERS)


@NAMES.add("GET", "/names/forms", "List all forms of a handle")
async def name_forms(call: ApiCall, query: TextQuery) -> Reply[NameForms]:
    """Return a handle as bare handle, as both URI forms, and as URLs of the resolvers of this server."""
    reference = _parse_name(query, [*map(parse_resolver, query.resolver), *call.resolvers])
    declared = [*map(parse_resolver, query.resolver), *get_resolvers(call.settings), KNOWN_RESOLVERS[0]]
    links = list(dict.fromkeys(to_http(reference, resolver) for resolver in declared))
    return Reply(
        NameForms(str(reference.handle), to_host(reference), to_path(reference), links), headers=_CACHE_HEADERS
    )


@NAMES.add("GET", "/names/rules", "List the rules")
async def list_rules(_: ApiCall) -> Reply[Rules]:
    """List the rules that problems refer to by id."""
    return Reply(
        Rules([Rule(key, rule["title"], rule["text"]) for key, rule in rules().items()]), headers=_CACHE_HEADERS
    )


@NAMES.add("GET", "/names/rules/{rule}", "Get a rule", problems=(404,))
async def show_rule(call: ApiCall) -> Reply[Rule]:
    """Return a rule that problems refer to by id."""
    key = call.names["rule"].upper()
    rule = rules().get(key)
    if rule is None:
        raise ApiError(
            "not-found", f"Rule {quote_text(call.names['rule'])} does not exist", f"Use one of {', '.join(rules())}"
        )
    return Reply(Rule(key, rule["title"], rule["text"]), headers=_CACHE_HEADERS)


@NAMES.add("GET", "/suffixes/pilin", "Get the PILIN suffix of a time")
async def pilin_suffix(call: ApiCall, query: PilinQuery) -> Reply[PilinSuffix]:
    """Return the PILIN suffix of a time. It is not unique: two calls in the same millisecond return the same suffix.

    To get unique handles, mint or generate them in a namespace.
    """
    at = query.at
    if not at:
        now = pilin.from_unix_ns(int(call.request_context.server.time() * 1e9))
        return Reply(to_pilin(now), headers=(NO_STORE,))
    try:
        instant = datetime.fromisoformat(at)
    except ValueError:
        message = f"{quote_text(at)} is not a time in ISO 8601"
        raise InvalidParameter(message, "at", "Use a time such as 2007-09-17T07:14:50.919Z") from None
    return Reply(pilin_at(instant), headers=_CACHE_HEADERS)


@NAMES.add("GET", "/suffixes/pilin/{suffix}", "Decode a PILIN suffix")
async def decode_pilin(call: ApiCall) -> Reply[PilinSuffix]:
    """Return the time that a PILIN suffix encodes."""
    with locate_name_error("suffix"):
        return Reply(to_pilin(pilin.decode(call.names["suffix"])), headers=_CACHE_HEADERS)


@NAMES.add("GET", "/suffixes/cordra", "Generate a CORDRA suffix")
async def cordra_suffix(call: ApiCall, query: CordraQuery) -> Reply[CordraSuffix]:
    """Generate a UUID as 32 uppercase hexadecimal digits. Nothing is registered."""
    server = call.request_context.server
    source = Source(lambda: int(server.time() * 1e9), secrets.token_bytes, MemoryLease(), lambda _: None)
    return Reply(generate_cordra(query.version, source), headers=(NO_STORE,))


@NAMES.add("GET", "/suffixes/check", "Check a suffix")
async def check_suffix(_: ApiCall, query: SchemeQuery) -> Reply[SuffixCheck]:
    """Check whether a suffix is valid in a scheme; if not, return the broken rule and its position.

    Some schemes restrict the prefix too; give it to check it.
    """
    handle = _parse_suffix(query)
    scheme = recognize(handle) if query.scheme is None else load_scheme(query.scheme.value)
    if scheme is None:
        return Reply(SuffixCheck(query.suffix, None, valid=False, reason="No scheme has this form"))
    try:
        normal = scheme.normalize(handle)
    except InvalidName as problem:
        error = _locate_error(problem, handle)
        at = None if error.position is None else error.position + 1
        result = SuffixCheck(
            query.suffix, scheme.name, False, reason=error.message, rule=error.rule, where=error.where, position=at
        )
        return Reply(result, headers=_CACHE_HEADERS)
    return Reply(
        SuffixCheck(query.suffix, scheme.name, True, normal.suffix, dict(scheme.describe(handle))),
        headers=_CACHE_HEADERS,
    )


def _parse_suffix(query: SchemeQuery) -> Handle:
    """Combine prefix and suffix, which must each be valid; raises `InvalidNameParameter`."""
    with locate_name_error("prefix"):
        check_prefix_syntax(query.prefix)
    try:
        return Handle.parse(f"{query.prefix}/{query.suffix}")
    except InvalidName as problem:
        raise _locate_error(problem, Handle(query.prefix, query.suffix)) from problem


def _locate_error(problem: InvalidName, handle: Handle) -> InvalidNameParameter:
    """Assign an error to the prefix or the suffix."""
    begin = len(handle.prefix) + 1
    if problem.position is None:
        return InvalidNameParameter.at(problem, "suffix")
    if problem.position < begin:
        return InvalidNameParameter.at(problem, "prefix")
    return InvalidNameParameter.at(problem.with_position(problem.position - begin), "suffix")


def _parse_name(query: TextQuery | ConversionQuery, resolvers: Sequence[Resolver]) -> Reference:
    with locate_name_error("text"):
        return (parse_uri if query.strict else parse_user_input)(query.text, resolvers)

"""What may have been meant by a name that is not there, as problems tell it.

Everybody may read what is told, and so it is told to everybody who reads. It is the same as on the page of the
resolver, and counts for the same budget: whoever has used theirs up gets the problem without it.

What a client is told when something does not go as it wished: problem details (RFC 9457), always in one shape.

    {"type": "https://hdl.example.org/docs/problems#not-allowed", "title": "You may not do that", "status": 403,
     "detail": "…", "advice": "…", "rule": "…", "code": 400}

`type` is for programs and does not change; it leads to the page that explains it. `detail` says what was wrong, and
`advice` what to do about it. `rule` is the id of the rule, or the line of the namespace's policy, that stood in the
way. `code` is the number that the Handle System has for it. `where` is the part of the request that does not fit.

Advice in the language of this door: what is said elsewhere in commands of `perseid`, said here in requests.

The registry advises everybody in the same words, and where something is to be done it names the command that does it.
Who asks over the network has no command, so each becomes the request that does the same. A test fails where the
registry names one that is not known here.

Advice may hold names, and in names anything may stand, commands too. So it is taken as a whole: what is not all in the
words of the registry, with names where the registry puts them, stays as it is.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote, unquote

import msgspec

from perseid.names.errors import MAX_QUOTED_LENGTH, InvalidName
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.registry.access.scopes import InvalidScope
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import RetryLater
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.suggest import PrefixStatus
from perseid.registry.results import InvalidQuery, ReferralError, Refused
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Response
from perseid.server.http.resolver.problems import SUGGESTION_CODES, find_suggestions
from perseid.server.http.responses import HTTPS_REQUIRED, NO_STORE
from perseid.server.http.targets import BadRequest
from perseid.server.native.decisions import Busy
from perseid.wire.codes import ResponseCode

from .routing import BASE
from .state import InvalidCursor
from .structures import Doc, ResponseBody
from .validation import InvalidNameParameter, InvalidParameter

if TYPE_CHECKING:
    pass

ENCODED_TWICE: Final = "it looks as if the path was encoded twice: the slash of a handle is %2F there, and not %252F"


class TombstoneInfo(ResponseBody, frozen=True):
    """What became of a thing whose name is a tombstone. What the tombstone does not say is left out."""

    reason: Annotated[str, Doc("Why it is gone.")] = ""
    date: Annotated[str, Doc("Since when, as the tombstone has it.", examples=["2026-11-15T10:00:00Z"])] = ""
    replacement: Annotated[str | None, Doc("The name to use instead.")] = None


class Suggestion(ResponseBody, frozen=True):
    """A name that is there, and may have been meant."""

    handle: Annotated[str, Doc("The name as it is registered.", examples=["12345/x"])]
    why: Annotated[str, Doc("What makes it likely.", examples=["two characters are the other way round there"])]
    gone: Annotated[TombstoneInfo | None, Doc("What became of its thing, if that is gone.")] = None


class PrefixInfo(ResponseBody, frozen=True):
    """What this server knows of the prefix of a name that is not there."""

    prefix: Annotated[str, Doc("The prefix, as far as one can be told.", examples=["12345"])]
    standing: Annotated[PrefixStatus, Doc("What this server is to it.")]
    why: Annotated[str, Doc("The same for people.")]
    derived_from: Annotated[str | None, Doc("The prefix above it that is kept here, if that is the nearest.")] = None


class _Suggestions(ResponseBody, frozen=True):
    """What was found out, with the members that the other doors have too."""

    suggestions: tuple[Suggestion, ...] = ()
    prefix: PrefixInfo | None = None


async def add_suggestions(request_context: RequestContext, result: "ProblemResponse", text: str) -> "ProblemResponse":
    """A problem with what may have been meant by a name of the path, if it is one that may be a matter of spelling."""
    problem = result.problem
    if problem.code not in SUGGESTION_CODES:
        return result
    if "/" not in text and Handle.for_lookup(unquote(text)) is not None:
        problem = msgspec.structs.replace(problem, advice=ENCODED_TWICE)
    found = await find_suggestions(request_context, text)
    if found is not None:
        said = msgspec.convert(found.to_json(), _Suggestions)
        problem = msgspec.structs.replace(problem, suggestions=said.suggestions, prefix=said.prefix)
    return replace(result, problem=problem)


MEDIA_TYPE: Final = "application/problem+json"

PROBLEMS_PAGE: Final = "/docs/problems"
"""Where types of problems are explained."""


class Problem(ResponseBody, frozen=True):
    """What was wrong, and what to do about it (RFC 9457)."""

    type: Annotated[str, Doc("What sort of problem it is: an address that explains it, for programs to tell by.")]
    title: Annotated[str, Doc("The same in a few words, for people.")]
    status: Annotated[int, Doc("The status of the answer.")]
    detail: Annotated[str, Doc("What was wrong this time.")]
    advice: Annotated[str, Doc("What to do about it.")] = ""
    rule: Annotated[
        str, Doc("The id of the rule, or the line of the namespace's policy, that stood in the way.", examples=["H3"])
    ] = ""
    code: Annotated[int, Doc("The number that the Handle System has for it.", examples=[102])] = 0
    where: Annotated[
        str, Doc("The parameter, or the path in the JSON of the body, that does not fit.", examples=["$.values[0]"])
    ] = ""
    instance: Annotated[str, Doc("Under which number the log of the server has it, if it went wrong there.")] = ""
    suggestions: Annotated[
        tuple[Suggestion, ...],
        Doc("Names that are there and may have been meant, the nearest first, where a name is not there."),
    ] = ()
    prefix: Annotated[PrefixInfo | None, Doc("What is known here of the prefix of a name that is not there.")] = None


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A sort of problems, as its page explains it."""

    slug: str
    status: int
    title: str
    about: str


def _load_problem_types() -> dict[str, ProblemType]:
    found = tomllib.loads(files(__package__).joinpath("problems.toml").read_text(encoding="utf-8"))
    return {
        slug: ProblemType(slug, said["status"], said["title"], " ".join(said["about"].split()))
        for slug, said in found.items()
    }


PROBLEM_TYPES: Final = _load_problem_types()
"""All sorts of problems by the last part of their `type`: what problems.toml says."""

_BY_CODE: Final = {
    ResponseCode.SERVER_TOO_BUSY: "busy",
    ResponseCode.SERVER_BACKUP: "read-only",
    ResponseCode.PROTOCOL_ERROR: "malformed",
    ResponseCode.OPERATION_NOT_SUPPORTED: "not-supported",
    ResponseCode.HANDLE_NOT_FOUND: "not-found",
    ResponseCode.VALUES_NOT_FOUND: "not-found",
    ResponseCode.HANDLE_ALREADY_EXISTS: "exists",
    ResponseCode.VALUE_ALREADY_EXISTS: "exists",
    ResponseCode.INVALID_HANDLE: "invalid-name",
    ResponseCode.INVALID_VALUE: "invalid-value",
    ResponseCode.SERVER_NOT_RESP: "elsewhere",
    ResponseCode.SERVICE_REFERRAL: "elsewhere",
    ResponseCode.PREFIX_REFERRAL: "elsewhere",
    ResponseCode.INVALID_ADMIN: "not-allowed",
    ResponseCode.INSUFFICIENT_PERMISSIONS: "not-allowed",
    ResponseCode.AUTHENTICATION_NEEDED: "authentication-needed",
    ResponseCode.AUTHENTICATION_FAILED: "authentication-failed",
    ResponseCode.INVALID_CREDENTIAL: "authentication-failed",
    ResponseCode.SESSION_TIMEOUT: "authentication-failed",
}

_BY_STATUS: Final = {
    400: "malformed",
    401: "authentication-needed",
    403: "not-allowed",
    404: "no-such-path",
    405: "method-not-allowed",
    412: "condition-failed",
    413: "body-too-large",
    415: "unsupported-media-type",
    429: "too-many-requests",
    431: "head-too-large",
    501: "not-supported",
    505: "not-supported",
    503: "busy",
}


@dataclass(frozen=True, slots=True)
class ProblemResponse:
    """A problem, and what goes with it."""

    problem: Problem
    headers: HeaderList = ()


class ApiError(Exception):
    """Something that is answered with a problem of a sort; for what no refusal of the registry says."""

    def __init__(self, slug: str, detail: str, advice: str = "", *, code: int = 0, headers: HeaderList = ()) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.advice = advice
        self.code = code
        self.headers = headers


def to_problem(error: Exception, request_context: RequestContext) -> ProblemResponse:
    """What an error is to the client; one that nobody expected is logged."""
    settings = request_context.place.settings
    match error:
        case ApiError():
            made = make_problem(settings, error.slug, error.detail, advice=error.advice, code=error.code)
            return ProblemResponse(made, error.headers)
        case InvalidCursor():
            return ProblemResponse(make_problem(settings, "invalid-cursor", str(error)))
        case InvalidName():
            return ProblemResponse(_invalid_name_problem(error, settings))
        case InvalidData() | InvalidPolicy() | InvalidScope():
            slug = "unanswerable" if request_context.request.method in SAFE_METHODS else "invalid-value"
            return ProblemResponse(make_problem(settings, slug, str(error), code=int(ResponseCode.INVALID_VALUE)))
        case ReferralError():
            advice = "ask that service: the record of the prefix says which it is"
            return ProblemResponse(
                make_problem(settings, "elsewhere", error.reason, advice=advice, code=int(error.code))
            )
        case Refused():
            return _refusal_problem(error, request_context)
    return _failure_problem(error, request_context)


def _invalid_name_problem(error: InvalidName, settings: HttpSettings) -> Problem:
    """What a name is that is none: which character of it is wrong (counted from 1), by which rule, and where it is."""
    at = "" if error.position is None else f"at character {error.position + 1}: "
    return make_problem(
        settings,
        "invalid-name",
        f"{at}{error.message}",
        advice=rule_advice(error.rule),
        rule=error.rule,
        code=int(ResponseCode.INVALID_HANDLE),
        where=error.where if isinstance(error, InvalidNameParameter) else "",
    )


def _refusal_problem(refused: Refused, request_context: RequestContext) -> ProblemResponse:
    """What a refusal of the registry is: by its code, with its own reason, advice and rule."""
    headers = responses.to_failure(refused, request_context).headers
    code, advice = refused.code, to_http_advice(refused.advice)
    slug = _BY_CODE.get(code, "internal-error")
    if isinstance(refused, InvalidQuery) and request_context.request.method in SAFE_METHODS:
        slug = "unanswerable"  # who changes something is told why not
    if isinstance(refused, ConditionFailed):
        slug = "condition-failed"
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        slug, advice = "not-private", HTTPS_REQUIRED
    if isinstance(refused, RetryLater):
        slug = "busy"
    made = make_problem(
        request_context.place.settings, slug, refused.reason, advice=advice, rule=refused.rule, code=int(code)
    )
    return ProblemResponse(made, headers)


def _failure_problem(error: Exception, request_context: RequestContext) -> ProblemResponse:
    failure = responses.to_failure(error, request_context)
    slug = _BY_STATUS.get(failure.status) if isinstance(error, BadRequest | Busy) else _BY_CODE.get(failure.code)
    where, advice = (error.where, error.advice) if isinstance(error, InvalidParameter) else ("", "")
    instance = failure.message.partition("(reference ")[2].rstrip(")")
    made = make_problem(
        request_context.place.settings,
        slug or "internal-error",
        failure.message,
        advice=advice,
        code=int(failure.code),
        where=where,
        instance=instance,
        status=failure.status,
    )
    return ProblemResponse(made, failure.headers)


def make_problem(  # noqa: PLR0913 - members
    settings: HttpSettings,
    slug: str,
    detail: str,
    *,
    advice: str = "",
    rule: str = "",
    code: int = 0,
    where: str = "",
    instance: str = "",
    status: int = 0,
) -> Problem:
    """A problem of a sort."""
    problem_type = PROBLEM_TYPES[slug]
    return Problem(
        f"{settings.public_url}{PROBLEMS_PAGE}#{slug}",
        problem_type.title,
        status or problem_type.status,
        detail,
        advice=advice,
        rule=rule,
        code=code,
        where=where,
        instance=instance,
    )


def problem_response(result: ProblemResponse, *, name: str = "", identity: str = "") -> Response:
    """A problem as an answer."""
    problem = result.problem
    body = msgspec.json.encode(problem)
    headers = (*result.headers, NO_STORE, ("Content-Type", MEDIA_TYPE))
    return Response(problem.status, headers, body, code=problem.code, name=name, identity=identity)


def error_response(settings: HttpSettings, status: int, message: str) -> Response:
    """The answer to what never became a request."""
    slug = _BY_STATUS.get(status, "malformed" if status < 500 else "internal-error")
    return problem_response(ProblemResponse(make_problem(settings, slug, message, status=status)))


def problem_types_by_status(status: int) -> list[ProblemType]:
    """The sorts of problems with a status, for the description."""
    return [problem_type for problem_type in PROBLEM_TYPES.values() if problem_type.status == status]


AUTHENTICATE: Final = "send a token (Authorization: Bearer …), or prove who you are with a key"
"""What to do about not being known."""

_PLACEHOLDERS: Final = {
    "NAME": r"""(?P<NAME>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")""",  # as `names.errors.quoted` writes it
    "PREFIX": r"(?P<PREFIX>.+)",
    "ID": r"(?P<ID>[\w-]+)",
    "WHY": r"(?P<WHY>(?:if the thing [a-z ,]+: )?)",
}
"""What the registry puts into its advice, by the words that stand for it below."""

_HTTP_ADVICE: Final = (
    ("WHYperseid tombstone NAME --undo", "{WHY}POST {BASE}/handles/{NAME}/revive"),
    (
        "Say what became of the thing: perseid tombstone NAME --reason TEXT.",
        "Say what became of the thing: POST {BASE}/handles/{NAME}/tombstone.",
    ),
    (
        "Define it first (perseid type add NAME …), or use a type that is registered.",
        "Define it first (POST {BASE}/types), or use a type that is registered.",
    ),
    ("Give what the type asks for: perseid type show NAME.", "Give what the type asks for: GET {BASE}/types/{NAME}."),
    (
        "It is no handle, and only handles are registered: use one that is (perseid type list).",
        "It is no handle, and only handles are registered: use one that is (GET {BASE}/types).",
    ),
    (
        "what a definition looks like stands in docs/reference/types.md",
        "what a definition looks like stands in /docs/types",
    ),
    (
        "Let the service make the suffix (perseid mint), or give one that follows the scheme.",
        "Let the service make the suffix (POST {BASE}/mint), or give one that follows the scheme.",
    ),
    ("perseid namespace list shows those there are", "GET {BASE}/namespaces shows those there are"),
    ("look at: perseid namespace list", "look at: GET {BASE}/namespaces"),
    ("perseid namespace add PREFIX", "POST {BASE}/namespaces, with the prefix {PREFIX}"),
    (
        "Leave it as it is; or, if no two names become one by it, say that it is meant: --change-case.",
        "Leave it as it is; or, if no two names become one by it, say that it is meant: changeCase.",
    ),
    ("look at: perseid token list", "look at: GET {BASE}/tokens"),
    ("look at: perseid operations", "look at: GET {BASE}/operations"),
    ("go on with that: perseid operations resume ID", "go on with that: POST {BASE}/operations/{ID}/resume"),
    ("to have it again, undo that: perseid undo ID", "to have it again, undo that: POST {BASE}/operations/{ID}/undo"),
    ("the rule in full: perseid name rules ID", "the rule in full: GET {BASE}/names/rules/{ID}"),
    (
        "choose another name, or replace the record (overwrite)",
        "choose another name, or replace the record (PUT {BASE}/handles/{{handle}})",
    ),
    ("answer a challenge, or use a session", AUTHENTICATE),
)

_PLACEHOLDER: Final = re.compile("|".join(_PLACEHOLDERS))
_ESCAPE: Final = re.compile(r"\\(?:x(?P<x>..)|u(?P<u>.{4})|U(?P<U>.{8})|(?P<other>.))")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def _pattern(said: str) -> re.Pattern[str]:
    """What advice looks like; a refusal as a whole begins it with a capital letter."""
    return re.compile(_PLACEHOLDER.sub(lambda found: _PLACEHOLDERS[found[0]], re.escape(said)), re.IGNORECASE)


_ADVICE_PATTERNS: Final = tuple([(_pattern(said), here) for said, here in _HTTP_ADVICE])


def to_http_advice(advice: str) -> str:
    """Advice of the registry, as it can be followed over the network."""
    for pattern, here in _ADVICE_PATTERNS:
        if found := pattern.fullmatch(advice):
            slots = {slot: _path_segment(text) if slot == "NAME" else text for slot, text in found.groupdict().items()}
            return here.format(BASE=BASE, **slots)
    return advice


def _path_segment(name: str) -> str:
    """A name in a command as a step of a path; one that was cut has to be put in by whoever knows it."""
    text = _ESCAPE.sub(_unescape, name[1:-1])
    return "{handle}" if len(text) > MAX_QUOTED_LENGTH else quote(text, safe="", errors="replace")


def _unescape(found: re.Match[str]) -> str:
    """What an escape of `quoted` stands for."""
    number = found["x"] or found["u"] or found["U"]
    return _ESCAPES.get(found["other"], found["other"]) if number is None else chr(int(number, 16))


def rule_advice(rule: str) -> str:
    """What to do about a name that breaks a rule."""
    full = f"the rule in full: GET {BASE}/names/rules/{rule}"
    return f"name a resolver of your own with the parameter resolver; {full}" if rule == "U4" else full

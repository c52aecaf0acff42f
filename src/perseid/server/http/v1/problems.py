"""Problem documents (RFC 9457): the one form of all errors of the HTTP API.

    {"type": "https://hdl.example.org/docs/problems#permission-denied", "title": "Permission denied", "status": 403,
     "detail": "…", "advice": "…", "rule": "…", "code": 400}

`type` is stable and leads to the page that explains it (`problems.toml`). `detail` says what is wrong, `advice` how to
fix it. `rule` is the id of a rule or a line of the namespace's policy, `code` the response code of the Handle System,
`where` the invalid part of the request.

The registry gives its advice as data; `ADVICE_TEXTS` has the request for each kind that has one.

Problems about missing handles have suggestions. They contain public data only and share the budget of the resolver's
suggestions; beyond the budget they are omitted.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Annotated, Final
from urllib.parse import quote, unquote

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.registry.access.scopes import InvalidScope
from perseid.registry.advice import Advice, AdviceKind, AdviceTexts, render
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import RetryLater
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.suggest import PrefixStatus
from perseid.registry.results import InvalidQuery, ReferralError, Refused
from perseid.schema.common import Doc, ResponseBody
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Response
from perseid.server.http.resolver.problems import SUGGESTION_CODES, find_suggestions
from perseid.server.http.responses import HTTPS_REQUIRED, NO_STORE
from perseid.server.native.decisions import Busy
from perseid.wire.codes import ResponseCode

from .routing import BASE
from .state import InvalidCursor
from .validation import InvalidNameParameter, InvalidParameter

ENCODED_TWICE: Final = "The path seems to be encoded twice: write the slash of a handle as %2F, not %252F"


class TombstoneInfo(ResponseBody, frozen=True):
    """The content of a tombstone. Missing information is omitted."""

    reason: Annotated[str, Doc("Why the object is gone.")] = ""
    date: Annotated[
        str, Doc("When it was withdrawn, as stored in the tombstone.", examples=["2026-11-15T10:00:00Z"])
    ] = ""
    replacement: Annotated[str | None, Doc("The handle to use instead.")] = None


class Suggestion(ResponseBody, frozen=True):
    """An existing handle that may have been meant."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    why: Annotated[str, Doc("Why it is suggested.", examples=["two characters are swapped"])]
    gone: Annotated[TombstoneInfo | None, Doc("The tombstone, if the handle has one.")] = None


class PrefixInfo(ResponseBody, frozen=True):
    """What this server knows about the prefix of a missing handle."""

    prefix: Annotated[str, Doc("The prefix, if the text has one.", examples=["12345"])]
    status: Annotated[PrefixStatus, Doc("The relation of this server to the prefix.")]
    why: Annotated[str, Doc("The relation in words.")]
    derived_from: Annotated[str | None, Doc("The nearest parent prefix that is hosted here.")] = None


async def add_suggestions(request_context: RequestContext, response: "ProblemResponse", text: str) -> "ProblemResponse":
    """Add suggestions to a problem about a missing handle."""
    problem = response.problem
    if problem.code not in SUGGESTION_CODES:
        return response
    if "/" not in text and Handle.for_lookup(unquote(text)) is not None:
        problem = msgspec.structs.replace(problem, advice=ENCODED_TWICE)
    result = await find_suggestions(request_context, text)
    if result is not None:
        suggestions = msgspec.convert([each.to_json() for each in result.suggestions], tuple[Suggestion, ...])
        prefix = result.prefix and PrefixInfo(
            result.prefix.prefix, result.prefix.status, result.prefix.why, result.prefix.related
        )
        problem = msgspec.structs.replace(problem, suggestions=suggestions, prefix=prefix)
    return replace(response, problem=problem)


MEDIA_TYPE: Final = "application/problem+json"

PROBLEMS_PAGE: Final = "/docs/problems"
"""The page that explains the problem types."""


class Problem(ResponseBody, frozen=True):
    """A problem: what is wrong, and how to fix it (RFC 9457)."""

    type: Annotated[str, Doc("The problem type, for programs: a URL that explains it.")]
    title: Annotated[str, Doc("The problem type in words.")]
    status: Annotated[int, Doc("The HTTP status.")]
    detail: Annotated[str, Doc("What is wrong with this request.")]
    advice: Annotated[str, Doc("How to fix it.")] = ""
    rule: Annotated[str, Doc("The id of the broken rule, or the line of the namespace's policy.", examples=["H3"])] = ""
    code: Annotated[int, Doc("The response code of the Handle System.", examples=[102])] = 0
    where: Annotated[str, Doc("The invalid parameter, or the path in the JSON body.", examples=["$.values[0]"])] = ""
    instance: Annotated[str, Doc("The reference number in the log of the server, for internal errors.")] = ""
    suggestions: Annotated[
        tuple[Suggestion, ...],
        Doc("Existing handles that may have been meant, best match first, if the handle is missing."),
    ] = ()
    prefix: Annotated[PrefixInfo | None, Doc("What this server knows about the prefix, if the handle is missing.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A problem type as its page explains it."""

    slug: str
    status: int
    title: str
    about: str


def _load_problem_types() -> dict[str, ProblemType]:
    tables = tomllib.loads(files(__package__).joinpath("problems.toml").read_text(encoding="utf-8"))
    return {
        slug: ProblemType(slug, table["status"], table["title"], " ".join(table["about"].split()))
        for slug, table in tables.items()
    }


PROBLEM_TYPES: Final = _load_problem_types()
"""All problem types by slug, from problems.toml."""

_BY_CODE: Final = {
    ResponseCode.SERVER_TOO_BUSY: "busy",
    ResponseCode.SERVER_BACKUP: "read-only",
    ResponseCode.PROTOCOL_ERROR: "invalid-request",
    ResponseCode.OPERATION_NOT_SUPPORTED: "not-supported",
    ResponseCode.HANDLE_NOT_FOUND: "not-found",
    ResponseCode.VALUES_NOT_FOUND: "not-found",
    ResponseCode.HANDLE_ALREADY_EXISTS: "already-exists",
    ResponseCode.VALUE_ALREADY_EXISTS: "already-exists",
    ResponseCode.INVALID_HANDLE: "invalid-name",
    ResponseCode.INVALID_VALUE: "invalid-value",
    ResponseCode.SERVER_NOT_RESP: "prefix-not-hosted",
    ResponseCode.SERVICE_REFERRAL: "prefix-not-hosted",
    ResponseCode.PREFIX_REFERRAL: "prefix-not-hosted",
    ResponseCode.INVALID_ADMIN: "permission-denied",
    ResponseCode.INSUFFICIENT_PERMISSIONS: "permission-denied",
    ResponseCode.AUTHENTICATION_NEEDED: "authentication-required",
    ResponseCode.AUTHENTICATION_FAILED: "authentication-failed",
    ResponseCode.INVALID_CREDENTIAL: "authentication-failed",
    ResponseCode.SESSION_TIMEOUT: "authentication-failed",
}

_BY_STATUS: Final = {
    400: "invalid-request",
    401: "authentication-required",
    403: "permission-denied",
    404: "no-such-path",
    405: "method-not-allowed",
    412: "precondition-failed",
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
    """A problem and its headers."""

    problem: Problem
    headers: HeaderList = ()


class ApiError(Exception):
    """An error with a problem type, for what the registry does not refuse itself."""

    def __init__(self, slug: str, detail: str, advice: str = "", *, code: int = 0, headers: HeaderList = ()) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.advice = advice
        self.code = code
        self.headers = headers


def to_problem(error: Exception, request_context: RequestContext) -> ProblemResponse:
    """Convert an error to a problem; unexpected errors are logged."""
    settings = request_context.server.settings
    match error:
        case ApiError():
            problem = make_problem(settings, error.slug, error.detail, advice=error.advice, code=error.code)
            return ProblemResponse(problem, error.headers)
        case InvalidCursor():
            return ProblemResponse(make_problem(settings, "invalid-cursor", str(error)))
        case InvalidName():
            return ProblemResponse(_invalid_name_problem(error, settings))
        case InvalidData() | InvalidPolicy() | InvalidScope():
            slug = "invalid-query" if request_context.request.method in SAFE_METHODS else "invalid-value"
            return ProblemResponse(make_problem(settings, slug, str(error), code=int(ResponseCode.INVALID_VALUE)))
        case ReferralError():
            advice = "Send the request to the service that hosts the prefix; the prefix record names it"
            return ProblemResponse(
                make_problem(settings, "prefix-not-hosted", error.reason, advice=advice, code=int(error.code))
            )
        case Refused():
            return _refusal_problem(error, request_context)
    return _failure_problem(error, request_context)


def _invalid_name_problem(error: InvalidName, settings: HttpSettings) -> Problem:
    """Name the invalid character (counted from 1) and the rule."""
    at = "" if error.position is None else f"At character {error.position + 1}: "
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
    """Convert a refusal by its code, with its reason, advice and rule."""
    headers = responses.to_failure(refused, request_context).headers
    code, advice = refused.code, render_advice(refused.advice)
    slug = _BY_CODE.get(code, "internal-error")
    if isinstance(refused, InvalidQuery) and request_context.request.method in SAFE_METHODS:
        slug = "invalid-query"  # a change gets the type of its code
    if isinstance(refused, ConditionFailed):
        slug = "precondition-failed"
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        slug, advice = "https-required", HTTPS_REQUIRED
    if isinstance(refused, RetryLater):
        slug = "busy"
    problem = make_problem(
        request_context.server.settings, slug, refused.reason, advice=advice, rule=refused.rule, code=int(code)
    )
    return ProblemResponse(problem, headers)


def _failure_problem(error: Exception, request_context: RequestContext) -> ProblemResponse:
    failure = responses.to_failure(error, request_context)
    slug = _BY_STATUS.get(failure.status) if isinstance(error, BadRequest | Busy) else _BY_CODE.get(failure.code)
    where, advice = (error.where, error.advice) if isinstance(error, InvalidParameter) else ("", "")
    problem = make_problem(
        request_context.server.settings,
        slug or "internal-error",
        failure.message,
        advice=advice,
        code=int(failure.code),
        where=where,
        instance=failure.reference,
        status=failure.status,
    )
    return ProblemResponse(problem, failure.headers)


def make_problem(  # noqa: PLR0913 - one argument per field
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
    """Build a problem of a type."""
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
    """Build the HTTP response of a problem."""
    problem = result.problem
    body = msgspec.json.encode(problem)
    headers = (*result.headers, NO_STORE, ("Content-Type", MEDIA_TYPE))
    return Response(problem.status, headers, body, code=problem.code, name=name, identity=identity)


def error_response(settings: HttpSettings, status: int, message: str) -> Response:
    """Build the response to a request that could not be parsed."""
    slug = _BY_STATUS.get(status, "invalid-request" if status < 500 else "internal-error")
    return problem_response(ProblemResponse(make_problem(settings, slug, message, status=status)))


def problem_types_by_status(status: int) -> list[ProblemType]:
    """List the problem types with a status."""
    return [problem_type for problem_type in PROBLEM_TYPES.values() if problem_type.status == status]


ADVICE_TEXTS: Final[AdviceTexts] = {
    AdviceKind.AUTHENTICATE: "Send a token (Authorization: Bearer …), or authenticate with a key",
    AdviceKind.CHANGE_CASE: "Leave it unchanged. If no two handles collide, confirm with change_case",
    AdviceKind.CREATE_TOKEN: f"Use another token, or create one: POST {BASE}/tokens",
    AdviceKind.DEFINE_TYPE: f"Define it first (POST {BASE}/types), or use a registered type",
    AdviceKind.ENABLE_LISTING: AdviceKind.ENABLE_LISTING.value,
    AdviceKind.FOLLOW_SCHEME: f"Mint a handle (POST {BASE}/mint), or use a suffix that follows the scheme",
    AdviceKind.HOST_PREFIX: f"Ask the service that hosts it, or host it here: POST {BASE}/namespaces",
    AdviceKind.LIST_JOBS: f"List the jobs: GET {BASE}/jobs",
    AdviceKind.LIST_NAMESPACES: f"List the namespaces: GET {BASE}/namespaces",
    AdviceKind.LIST_TOKENS: f"List the tokens: GET {BASE}/tokens",
    AdviceKind.LIST_TYPES: f"Only handles can be registered as types. Use a registered type (GET {BASE}/types)",
    AdviceKind.OVERWRITE: f"Choose another handle, or send PUT {BASE}/handles/{{handle}} to replace it",
    AdviceKind.REDO_JOB: f"To redo it, undo that job: POST {BASE}/jobs/{{job}}/undo",
    AdviceKind.REPEAT_OR_UNDO_JOB: f"Send the same request again, or undo the job: POST {BASE}/jobs/{{job}}/undo",
    AdviceKind.RESTORE: f"To restore the record: POST {BASE}/handles/{{handle}}/revive",
    AdviceKind.RESUME_JOB: f"Resume that job: POST {BASE}/jobs/{{job}}/resume",
    AdviceKind.REUSE_DELETED: "Choose another handle, or confirm with reuse_deleted",
    AdviceKind.SEE_TYPE: f"See the definition of the type: GET {BASE}/types/{{type}}",
    AdviceKind.SEE_TYPE_FORMAT: "See /docs/types for the format of definitions",
    AdviceKind.TOMBSTONE_INSTEAD: f"Create a tombstone instead: POST {BASE}/handles/{{handle}}/tombstone",
    AdviceKind.UNDO_JOB: f"Undo the job: POST {BASE}/jobs/{{job}}/undo",
}
"""Advice as requests of this API."""


def render_advice(advice: Advice | None) -> str:
    """Return the text of advice; empty if there is none."""
    return render(advice, ADVICE_TEXTS, partial(quote, safe="", errors="replace"))


def rule_advice(rule: str) -> str:
    """Return advice about a broken rule."""
    full = f"To read the rule: GET {BASE}/names/rules/{rule}"
    return f"Add your resolver with the parameter resolver. {full}" if rule == "U4" else full

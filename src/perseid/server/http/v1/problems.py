"""Errors as problems (`schema.problems`), the one form of all errors of the HTTP API.

The registry gives its advice as data; `ADVICE_TEXTS` has the request for each kind that has one.

Problems about missing handles have suggestions. They contain public data only and share the budget of the resolver's
suggestions; beyond the budget they are omitted.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from perseid.names.errors import InvalidName, capitalize
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.registry.access.permissions import InvalidScope
from perseid.registry.advice import Advice, AdviceKind, AdviceTexts, render
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.suggest import SUGGESTION_CODES
from perseid.registry.responses import with_advice_kind, with_deletion, with_suggestions
from perseid.registry.results import InvalidQuery, InvalidTimestamp, ReferralError, Refused, find_refusal
from perseid.schema.problems import Problem, make_problem, slug_of_code
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings, RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Response
from perseid.server.http.resolver.problems import find_suggestions
from perseid.server.http.responses import NO_STORE
from perseid.server.native.decisions import Busy
from perseid.wire.codes import ResponseCode

from .routing import BASE
from .state import InvalidCursor
from .validation import InvalidNameParameter, InvalidParameter

ENCODED_TWICE: Final = "The path seems to be encoded twice: write the slash of a handle as %2F, not %252F"


async def add_suggestions(request_context: RequestContext, response: "ProblemResponse", text: str) -> "ProblemResponse":
    """Add suggestions to a problem about a missing handle."""
    problem = response.problem
    if problem.code not in SUGGESTION_CODES:
        return response
    if "/" not in text and Handle.for_lookup(unquote(text)) is not None:
        problem = msgspec.structs.replace(problem, advice=ENCODED_TWICE)
    result = await find_suggestions(request_context, text)
    if result is not None:
        problem = with_suggestions(problem, result)
    return replace(response, problem=problem)


MEDIA_TYPE: Final = "application/problem+json"

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
    url = request_context.server.settings.public_url
    error = find_refusal(error, reads=request_context.request.method in SAFE_METHODS) or error
    match error:
        case ApiError():
            problem = make_problem(error.slug, error.detail, url, advice=error.advice, code=error.code)
            return ProblemResponse(problem, error.headers)
        case InvalidCursor():
            return ProblemResponse(make_problem("invalid-cursor", str(error), url))
        case InvalidName():
            return ProblemResponse(_invalid_name_problem(error, url))
        case InvalidData() | InvalidPolicy() | InvalidScope():
            slug = "invalid-query" if request_context.request.method in SAFE_METHODS else "invalid-value"
            return ProblemResponse(make_problem(slug, str(error), url, code=int(ResponseCode.INVALID_VALUE)))
        case ReferralError():
            advice = "Send the request to the service that hosts the prefix; the prefix record names it"
            return ProblemResponse(
                make_problem("prefix-not-hosted", error.reason, url, advice=advice, code=int(error.code))
            )
        case Refused():
            return _refusal_problem(error, request_context)
    return _failure_problem(error, request_context)


def _invalid_name_problem(error: InvalidName, url: str) -> Problem:
    """Name the invalid character (counted from 1) and the rule."""
    where = error.where if isinstance(error, InvalidNameParameter) else ""
    at = "" if error.position is None else f"At character {error.position + 1}: "
    return make_problem(
        "invalid-name",
        f"{at}{error.message}",
        url,
        advice=rule_advice(error.rule, where),
        rule=error.rule,
        code=int(ResponseCode.INVALID_HANDLE),
        where=where,
    )


def _refusal_problem(refused: Refused, request_context: RequestContext) -> ProblemResponse:
    """Convert a refusal by its code, with its reason, advice and rule."""
    headers = responses.to_failure(refused, request_context).headers
    code, advice = refused.code, render_advice(refused.advice)
    slug = refused.problem_type or slug_of_code(code)
    if isinstance(refused, InvalidQuery) and request_context.request.method not in SAFE_METHODS:
        slug = slug_of_code(code)  # of a change
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        slug, advice = "https-required", capitalize(responses.https_required(request_context.request))
    url = request_context.server.settings.public_url
    where = f"$.values[{refused.number}].timestamp" if isinstance(refused, InvalidTimestamp) else ""
    problem = make_problem(slug, refused.reason, url, advice=advice, rule=refused.rule, code=int(code), where=where)
    if slug != "https-required":
        problem = with_advice_kind(problem, refused.advice)
    return ProblemResponse(with_deletion(problem, refused), headers)


def _failure_problem(error: Exception, request_context: RequestContext) -> ProblemResponse:
    failure = responses.to_failure(error, request_context)
    by_status = _BY_STATUS.get(failure.status, "internal-error")
    where = error.where if isinstance(error, InvalidParameter) else ""
    advice = error.advice if isinstance(error, BadRequest) else ""
    problem = make_problem(
        by_status if isinstance(error, BadRequest | Busy) else slug_of_code(failure.code),
        failure.message,
        request_context.server.settings.public_url,
        advice=advice,
        code=int(failure.code),
        where=where,
        instance=failure.reference,
        status=failure.status,
    )
    return ProblemResponse(problem, failure.headers)


def problem_response(result: ProblemResponse, *, name: str = "", identity: str = "") -> Response:
    """Build the HTTP response of a problem."""
    problem = result.problem
    body = msgspec.json.encode(problem)
    headers = (*result.headers, NO_STORE, ("Content-Type", MEDIA_TYPE))
    return Response(problem.status, headers, body, code=problem.code, name=name, identity=identity)


def error_response(settings: HttpSettings, status: int, message: str) -> Response:
    """Build the response to a request that could not be parsed."""
    slug = _BY_STATUS.get(status, "invalid-request" if status < 500 else "internal-error")
    return problem_response(ProblemResponse(make_problem(slug, message, settings.public_url, status=status)))


ADVICE_TEXTS: Final[AdviceTexts] = {
    AdviceKind.AUTHENTICATE: "Send a token (Authorization: Bearer …), or authenticate with a key",
    AdviceKind.ADD_USER: f"Name an existing key or group as INDEX:HANDLE, or add the user: POST {BASE}/users",
    AdviceKind.ASK_WHO_HAS_ACCESS: (
        "Ask an administrator for the permission, or authenticate as an identity that has it. "
        f"To see who has it: GET {BASE}/access?on={{on}}"
    ),
    AdviceKind.RESET_USER: f"Choose another name, or give the user a new key: POST {BASE}/users/{{handle}}/reset",
    AdviceKind.CHANGE_CASE: "Leave it unchanged. If no two handles collide, confirm with change_case",
    AdviceKind.CHANGE_POLICY: f"Change its policy instead: PUT {BASE}/namespaces/{{prefix}}/policy",
    AdviceKind.CHANGE_SCHEME: f"Change the scheme in the policy: PUT {BASE}/namespaces/{{prefix}}/policy",
    AdviceKind.CHOOSE_ENCODING: "Save the file as UTF-8, or choose its encoding with the parameter encoding",
    AdviceKind.CHOOSE_ON_EXISTING: "Remove the row, or send the parameter on_existing, which is skip or update",
    AdviceKind.CHOOSE_SHEET: "To read another one, name it with the parameter sheet",
    AdviceKind.CONFIRM_MINT: "To mint other handles, send the parameter mint_again",
    AdviceKind.CREATE_RECORD: f"Create its record first: POST {BASE}/handles",
    AdviceKind.CREATE_TOKEN: f"Use another token, or create one: POST {BASE}/tokens",
    AdviceKind.DEFINE_TYPE: f"Define it first (POST {BASE}/types), or use a registered type",
    AdviceKind.ENABLE_LISTING: AdviceKind.ENABLE_LISTING.value,
    AdviceKind.FIND_OWNED: (
        f"Ask an administrator for the permission. To find what you own: GET {BASE}/find?prefix={{prefix}}&owner=HANDLE"
    ),
    AdviceKind.FIX_ALIAS: f"Correct the alias, or create the record: POST {BASE}/handles",
    AdviceKind.FIX_AND_RESUME_JOB: (
        f"Fix the cause and resume it: POST {BASE}/jobs/{{job}}/resume, or undo it: POST {BASE}/jobs/{{job}}/undo"
    ),
    AdviceKind.FOLLOW_SCHEME: f"Mint a handle (POST {BASE}/mint), or use a suffix that follows the scheme",
    AdviceKind.FREE_SPACE: AdviceKind.FREE_SPACE.value,
    AdviceKind.GIVE_REASON: "Give a reason in the field reason",
    AdviceKind.HOST_PREFIX: f"Ask the service that hosts it, or host it here: POST {BASE}/namespaces",
    AdviceKind.IGNORE_COLUMN: "Ignore one with the parameter map={column}%3D-",
    AdviceKind.IMPORT_WITH_ON_EXISTING: (
        f"Upload the file again with the parameter on_existing, which is skip or update: POST {BASE}/imports"
    ),
    AdviceKind.LIST_JOBS: f"List the jobs: GET {BASE}/jobs",
    AdviceKind.LIST_NAMESPACES: f"List the namespaces: GET {BASE}/namespaces",
    AdviceKind.LIST_TOKENS: f"List the tokens: GET {BASE}/tokens",
    AdviceKind.LIST_TYPES: f"Only handles can be registered as types. Use a registered type (GET {BASE}/types)",
    AdviceKind.LIST_USERS: f"List the users: GET {BASE}/users",
    AdviceKind.MAKE_PUBLIC: 'Make it public, with the permissions "1110"',
    AdviceKind.MAP_COLUMN: (
        "Give each unknown column a meaning, as with the parameter map={column}%3D{meaning}: a type, handle, state, "
        "or - to ignore it"
    ),
    AdviceKind.MAP_EACH_COLUMN: "Repeat the parameter for each column: map={column}%3D{meaning}&map=COLUMN%3DTYPE",
    AdviceKind.REDO_IMPORT: (
        f"These records were undone by job {{job}}. To bring all back: POST {BASE}/jobs/{{job}}/undo"
    ),
    AdviceKind.UPDATE_IMPORTED: (
        "Job {job} imported this file already. To update its records, send the parameter on_existing, which is update"
    ),
    AdviceKind.MINT_AGAIN: (
        f"Undo it first: POST {BASE}/jobs/{{job}}/undo. To mint other handles, send the parameter mint_again"
    ),
    AdviceKind.MINT_OR_ENTER_HANDLE: "Enter the handle. To mint handles, send the parameter mint",
    AdviceKind.NAME_HANDLE_COLUMN: (
        "Name the column with the handles: map=COLUMN%3Dhandle. To mint handles, send the parameter mint"
    ),
    AdviceKind.NAME_MINT_PREFIX: "Name the prefix with the parameter prefix",
    AdviceKind.NAME_ROW_PREFIX: "Write PREFIX/SUFFIX, or name the prefix with the parameter prefix",
    AdviceKind.OMIT_MINT: "Send the file without mint",
    AdviceKind.NAME_RESOLVER: "Name a resolver with the parameter resolver, as in ?resolver=https://hdl.handle.net",
    AdviceKind.OMIT_DATE: "Omit it. Server administrators can keep the dates of a new record with preserve_dates",
    AdviceKind.OVERWRITE: f"Choose another handle, or send PUT {BASE}/handles/{{handle}} to replace it",
    AdviceKind.PRESERVE_DATES: AdviceKind.PRESERVE_DATES.value,
    AdviceKind.REDO_JOB: f"To redo it, undo that job: POST {BASE}/jobs/{{job}}/undo",
    AdviceKind.REOPEN_COUNTER: AdviceKind.REOPEN_COUNTER.value,
    AdviceKind.REOPEN_NAMESPACE: (
        f"Use another namespace, or set retired = false: PUT {BASE}/namespaces/{{prefix}}/policy"
    ),
    AdviceKind.REPEAT_OR_UNDO_JOB: f"Send the same request again, or undo the job: POST {BASE}/jobs/{{job}}/undo",
    AdviceKind.RESTORE: f"To restore the record: POST {BASE}/handles/{{handle}}/revive",
    AdviceKind.RESUME_JOB: f"Resume that job: POST {BASE}/jobs/{{job}}/resume",
    AdviceKind.RETIRE_NAMESPACE: f"Keep them and register no new ones: DELETE {BASE}/namespaces/{{prefix}}?retire",
    AdviceKind.REUSE_DELETED: f"Choose another handle, or confirm with reuse_deleted in POST {BASE}/handles",
    AdviceKind.SEARCH_URLS: (
        f"Search with the same url or host: GET {BASE}/find. A url that ends in * matches all that begin like it"
    ),
    AdviceKind.SEE_HIDDEN: f"To see it: GET {BASE}/handles/{{handle}}?private",
    AdviceKind.SEE_HISTORY: f"See which entries have the value: GET {BASE}/handles/{{handle}}/history",
    AdviceKind.SEE_FIRST_VERSION: f"To see its first version: GET {BASE}/handles/{{handle}}?at={{seq}}",
    AdviceKind.SEE_LAST_VERSION: f"To see its last version: GET {BASE}/handles/{{handle}}?at={{seq}}",
    AdviceKind.SEE_TYPE: f"See the definition of the type: GET {BASE}/types/{{type}}",
    AdviceKind.SEE_TYPE_COPY: f"See the copy of the definition: GET {BASE}/types/{{type}}",
    AdviceKind.SEE_TYPE_FORMAT: "See /docs/types for the format of definitions",
    AdviceKind.SELECT_URLS: "Give either url or host",
    AdviceKind.SET_AUTHORITY: (
        "To keep them, set authority = true, and default_creator unless each record has a creator: "
        f"PUT {BASE}/namespaces/{{prefix}}/policy"
    ),
    AdviceKind.SET_BACK: (f"{AdviceKind.SET_BACK.value}. To see the changes: GET {BASE}/handles/{{handle}}/history"),
    AdviceKind.RETRY_STATISTICS: AdviceKind.RETRY_STATISTICS.value,
    AdviceKind.SET_CLOCK: AdviceKind.SET_CLOCK.value,
    AdviceKind.TOMBSTONE_INSTEAD: f"Create a tombstone instead: POST {BASE}/handles/{{handle}}/tombstone",
    AdviceKind.UNDO_EARLIER_JOB: (
        "To take back a single change, set the earlier values again. "
        f"To undo the job before it: POST {BASE}/jobs/{{job}}/undo"
    ),
    AdviceKind.UNDO_JOB: f"Undo the job: POST {BASE}/jobs/{{job}}/undo",
    AdviceKind.UPGRADE_NODE: AdviceKind.UPGRADE_NODE.value,
    AdviceKind.WAIT_FOR_MAINTENANCE: AdviceKind.WAIT_FOR_MAINTENANCE.value,
}
"""Advice as requests of this API."""


def render_advice(advice: Advice | None) -> str:
    """Return the text of advice; empty if there is none."""
    return render(advice, ADVICE_TEXTS, partial(quote, safe="", errors="replace"))


def rule_advice(rule: str, where: str = "") -> str:
    """Return advice about a rule that the part `where` of the request breaks."""
    advice = _RESOLVER_ADVICE if (rule, where) == ("U4", "text") else _RULE_ADVICE.get(rule, "")
    return f"{advice}To read the rule: GET {BASE}/names/rules/{rule}"


_RESOLVER_ADVICE: Final = "Add your resolver with the parameter resolver. "
"""Only routes with the parameter `text` have it."""

_RULE_ADVICE: Final = {
    "U4": "Use a handle, as in 12345/x, not the address of a web page. ",
    "U7": "Write it as a URI, as in hdl:12345/x, or omit strict. ",
}

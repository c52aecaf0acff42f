"""What a client is told when something does not go as it wished: problem details (RFC 9457), always in one shape.

    {"type": "https://hdl.example.org/docs/problems#not-allowed", "title": "You may not do that", "status": 403,
     "detail": "…", "advice": "…", "rule": "…", "code": 400}

`type` is for programs and does not change; it leads to the page that explains it. `detail` says what was wrong, and
`advice` what to do about it. `rule` is the id of the rule, or the line of the namespace's policy, that stood in the
way. `code` is the number that the Handle System has for it. `where` is the part of the request that does not fit.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Final

import msgspec

from perseid.names.errors import InvalidName
from perseid.records.errors import InvalidData
from perseid.registry.access.scopes import InvalidScope
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import MustWait
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.results import Referred, Refused, Unanswerable
from perseid.server.http import responses
from perseid.server.http.context import Asking
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.methods import READING
from perseid.server.http.responses import NO_STORE, NOT_PRIVATE
from perseid.server.http.settings import HttpSettings
from perseid.server.http.targets import Malformed
from perseid.server.native_failures import Busy
from perseid.wire.codes import ResponseCode

from .advising import on_name, said_here
from .cursors import InvalidCursor
from .meant import KnownPrefix, MeantName
from .structures import About, Told
from .validation import Misnamed, Unfitting

MEDIA_TYPE: Final = "application/problem+json"

PAGE: Final = "/docs/problems"
"""Where types of problems are explained."""


class Problem(Told, frozen=True):
    """What was wrong, and what to do about it (RFC 9457)."""

    type: Annotated[str, About("What sort of problem it is: an address that explains it, for programs to tell by.")]
    title: Annotated[str, About("The same in a few words, for people.")]
    status: Annotated[int, About("The status of the answer.")]
    detail: Annotated[str, About("What was wrong this time.")]
    advice: Annotated[str, About("What to do about it.")] = ""
    rule: Annotated[
        str, About("The id of the rule, or the line of the namespace's policy, that stood in the way.", examples=["H3"])
    ] = ""
    code: Annotated[int, About("The number that the Handle System has for it.", examples=[102])] = 0
    where: Annotated[
        str, About("The parameter, or the path in the JSON of the body, that does not fit.", examples=["$.values[0]"])
    ] = ""
    instance: Annotated[str, About("Under which number the log of the server has it, if it went wrong there.")] = ""
    suggestions: Annotated[
        tuple[MeantName, ...],
        About("Names that are there and may have been meant, the nearest first, where a name is not there."),
    ] = ()
    prefix: Annotated[KnownPrefix | None, About("What is known here of the prefix of a name that is not there.")] = None


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of problems, as its page explains it."""

    slug: str
    status: int
    title: str
    about: str


def _sorts() -> dict[str, Sort]:
    found = tomllib.loads(files(__package__).joinpath("problems.toml").read_text(encoding="utf-8"))
    return {
        slug: Sort(slug, said["status"], said["title"], " ".join(said["about"].split())) for slug, said in found.items()
    }


SORTS: Final = _sorts()
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
class Answered:
    """A problem, and what goes with it."""

    problem: Problem
    headers: HeaderList = ()


class Wrong(Exception):
    """Something that is answered with a problem of a sort; for what no refusal of the registry says."""

    def __init__(self, slug: str, detail: str, advice: str = "", *, code: int = 0, headers: HeaderList = ()) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.advice = advice
        self.code = code
        self.headers = headers


def problem_of(error: Exception, asking: Asking) -> Answered:
    """What an error is to the client; one that nobody expected is logged."""
    settings = asking.place.settings
    match error:
        case Wrong():
            made = make(settings, error.slug, error.detail, advice=error.advice, code=error.code)
            return Answered(made, error.headers)
        case InvalidCursor():
            return Answered(make(settings, "invalid-cursor", str(error)))
        case InvalidName():
            return Answered(_misnamed(error, settings))
        case InvalidData() | InvalidPolicy() | InvalidScope():
            slug = "unanswerable" if asking.request.method in READING else "invalid-value"
            return Answered(make(settings, slug, str(error), code=int(ResponseCode.INVALID_VALUE)))
        case Referred():
            advice = "ask that service: the record of the prefix says which it is"
            return Answered(make(settings, "elsewhere", error.reason, advice=advice, code=int(error.code)))
        case Refused():
            return _refused(error, asking)
    return _failed(error, asking)


def _misnamed(error: InvalidName, settings: HttpSettings) -> Problem:
    """What a name is that is none: which character of it is wrong (counted from 1), by which rule, and where it is."""
    at = "" if error.position is None else f"at character {error.position + 1}: "
    return make(
        settings,
        "invalid-name",
        f"{at}{error.message}",
        advice=on_name(error.rule),
        rule=error.rule,
        code=int(ResponseCode.INVALID_HANDLE),
        where=error.where if isinstance(error, Misnamed) else "",
    )


def _refused(refused: Refused, asking: Asking) -> Answered:
    """What a refusal of the registry is: by its code, with its own reason, advice and rule."""
    headers = responses.failure_of(refused, asking).headers
    code, advice = refused.code, said_here(refused.advice)
    slug = _BY_CODE.get(code, "internal-error")
    if isinstance(refused, Unanswerable) and asking.request.method in READING:
        slug = "unanswerable"  # who changes something is told why not
    if isinstance(refused, ConditionFailed):
        slug = "condition-failed"
    if code == ResponseCode.AUTHENTICATION_NEEDED and not asking.request.client.private:
        slug, advice = "not-private", NOT_PRIVATE
    if isinstance(refused, MustWait):
        slug = "busy"
    made = make(asking.place.settings, slug, refused.reason, advice=advice, rule=refused.rule, code=int(code))
    return Answered(made, headers)


def _failed(error: Exception, asking: Asking) -> Answered:
    failure = responses.failure_of(error, asking)
    slug = _BY_STATUS.get(failure.status) if isinstance(error, Malformed | Busy) else _BY_CODE.get(failure.code)
    where, advice = (error.where, error.advice) if isinstance(error, Unfitting) else ("", "")
    instance = failure.message.partition("(reference ")[2].rstrip(")")
    made = make(
        asking.place.settings,
        slug or "internal-error",
        failure.message,
        advice=advice,
        code=int(failure.code),
        where=where,
        instance=instance,
        status=failure.status,
    )
    return Answered(made, failure.headers)


def make(  # noqa: PLR0913 - members
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
    sort = SORTS[slug]
    return Problem(
        f"{settings.public_url}{PAGE}#{slug}",
        sort.title,
        status or sort.status,
        detail,
        advice=advice,
        rule=rule,
        code=code,
        where=where,
        instance=instance,
    )


def response(answered: Answered, *, name: str = "", who: str = "") -> Response:
    """A problem as an answer."""
    problem = answered.problem
    body = msgspec.json.encode(problem)
    headers = (*answered.headers, NO_STORE, ("Content-Type", MEDIA_TYPE))
    return Response(problem.status, headers, body, code=problem.code, name=name, who=who)


def plain(settings: HttpSettings, status: int, message: str) -> Response:
    """The answer to what never became a request."""
    slug = _BY_STATUS.get(status, "malformed" if status < 500 else "internal-error")
    return response(Answered(make(settings, slug, message, status=status)))


def sorts_by_status(status: int) -> list[Sort]:
    """The sorts of problems with a status, for the description."""
    return [sort for sort in SORTS.values() if sort.status == status]

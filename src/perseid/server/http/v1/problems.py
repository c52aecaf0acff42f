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

from perseid.names.errors import MAX_QUOTED, InvalidName
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.registry.access.scopes import InvalidScope
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import MustWait
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.suggest import Standing
from perseid.registry.results import Referred, Refused, Unanswerable
from perseid.server.http import responses
from perseid.server.http.context import Asking, HttpSettings
from perseid.server.http.messages import READING, HeaderList, Response
from perseid.server.http.resolver.problems import ABOUT, suggested
from perseid.server.http.responses import NO_STORE, NOT_PRIVATE
from perseid.server.http.targets import Malformed
from perseid.server.native.decisions import Busy
from perseid.wire.codes import ResponseCode

from .routing import BASE
from .state import InvalidCursor
from .structures import About, Told
from .validation import Misnamed, Unfitting

if TYPE_CHECKING:
    pass

ENCODED_TWICE: Final = "it looks as if the path was encoded twice: the slash of a handle is %2F there, and not %252F"


class GoneThing(Told, frozen=True):
    """What became of a thing whose name is a tombstone. What the tombstone does not say is left out."""

    reason: Annotated[str, About("Why it is gone.")] = ""
    date: Annotated[str, About("Since when, as the tombstone has it.", examples=["2026-11-15T10:00:00Z"])] = ""
    replacement: Annotated[str | None, About("The name to use instead.")] = None


class MeantName(Told, frozen=True):
    """A name that is there, and may have been meant."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    why: Annotated[str, About("What makes it likely.", examples=["two characters are the other way round there"])]
    gone: Annotated[GoneThing | None, About("What became of its thing, if that is gone.")] = None


class KnownPrefix(Told, frozen=True):
    """What this server knows of the prefix of a name that is not there."""

    prefix: Annotated[str, About("The prefix, as far as one can be told.", examples=["12345"])]
    standing: Annotated[Standing, About("What this server is to it.")]
    why: Annotated[str, About("The same for people.")]
    derived_from: Annotated[str | None, About("The prefix above it that is kept here, if that is the nearest.")] = None


class _Found(Told, frozen=True):
    """What was found out, with the members that the other doors have too."""

    suggestions: tuple[MeantName, ...] = ()
    prefix: KnownPrefix | None = None


async def told(asking: Asking, answered: "Answered", text: str) -> "Answered":
    """A problem with what may have been meant by a name of the path, if it is one that may be a matter of spelling."""
    problem = answered.problem
    if problem.code not in ABOUT:
        return answered
    if "/" not in text and Handle.for_lookup(unquote(text)) is not None:
        problem = msgspec.structs.replace(problem, advice=ENCODED_TWICE)
    found = await suggested(asking, text)
    if found is not None:
        said = msgspec.convert(found.to_json(), _Found)
        problem = msgspec.structs.replace(problem, suggestions=said.suggestions, prefix=said.prefix)
    return replace(answered, problem=problem)


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


IDENTIFY: Final = "send a token (Authorization: Bearer …), or prove who you are with a key"
"""What to do about not being known."""

_SLOTS: Final = {
    "NAME": r"""(?P<NAME>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")""",  # as `names.errors.quoted` writes it
    "PREFIX": r"(?P<PREFIX>.+)",
    "ID": r"(?P<ID>[\w-]+)",
    "WHY": r"(?P<WHY>(?:if the thing [a-z ,]+: )?)",
}
"""What the registry puts into its advice, by the words that stand for it below."""

_SAID_HERE: Final = (
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
    ("answer a challenge, or use a session", IDENTIFY),
)

_SLOT: Final = re.compile("|".join(_SLOTS))
_ESCAPE: Final = re.compile(r"\\(?:x(?P<x>..)|u(?P<u>.{4})|U(?P<U>.{8})|(?P<other>.))")
_OTHERS: Final = {"n": "\n", "r": "\r", "t": "\t"}


def _pattern(said: str) -> re.Pattern[str]:
    """What advice looks like; a refusal as a whole begins it with a capital letter."""
    return re.compile(_SLOT.sub(lambda found: _SLOTS[found[0]], re.escape(said)), re.IGNORECASE)


_KNOWN: Final = tuple([(_pattern(said), here) for said, here in _SAID_HERE])


def said_here(advice: str) -> str:
    """Advice of the registry, as it can be followed over the network."""
    for pattern, here in _KNOWN:
        if found := pattern.fullmatch(advice):
            slots = {slot: _step(text) if slot == "NAME" else text for slot, text in found.groupdict().items()}
            return here.format(BASE=BASE, **slots)
    return advice


def _step(name: str) -> str:
    """A name in a command as a step of a path; one that was cut has to be put in by whoever knows it."""
    text = _ESCAPE.sub(_character, name[1:-1])
    return "{handle}" if len(text) > MAX_QUOTED else quote(text, safe="", errors="replace")


def _character(found: re.Match[str]) -> str:
    """What an escape of `quoted` stands for."""
    number = found["x"] or found["u"] or found["U"]
    return _OTHERS.get(found["other"], found["other"]) if number is None else chr(int(number, 16))


def on_name(rule: str) -> str:
    """What to do about a name that breaks a rule."""
    full = f"the rule in full: GET {BASE}/names/rules/{rule}"
    return f"name a resolver of your own with the parameter resolver; {full}" if rule == "U4" else full

"""Problem documents (RFC 9457): the one form of all errors of the HTTP API, and of the command line with `--json`.

    {"type": "https://hdl.example.org/docs/problems#permission-denied", "title": "Permission denied", "status": 403,
     "detail": "…", "advice": "…", "rule": "…", "code": 400}

`type` is stable and leads to the page that explains it. `detail` says what is wrong, `advice` how to fix it. `rule` is
the id of a rule or a line of the namespace's policy, `code` the response code of the Handle System, `where` the invalid
part of the request.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from perseid.names.errors import capitalize

from .common import Doc, ResponseBody, Seq


class PrefixStatus(Enum):
    """Relation of this server to a prefix."""

    HOSTED = "hosted"
    """It hosts the prefix."""
    DERIVED = "derived"
    """It hosts a prefix that this one is derived from, but not this one."""
    OTHER_SERVICE = "other_service"
    """It knows the prefix, which another service hosts."""
    UNKNOWN = "unknown"
    """It does not know the prefix."""


class TombstoneInfo(ResponseBody, frozen=True):
    """The content of a tombstone. Missing information is omitted."""

    reason: Annotated[str, Doc("Why the object is gone.")] = ""
    date: Annotated[
        str, Doc("When it was withdrawn, as stored in the tombstone.", examples=["2026-11-15T10:00:00Z"])
    ] = ""
    replacement: Annotated[str | None, Doc("The handle to use instead.")] = None


class DeletionInfo(ResponseBody, frozen=True):
    """The deletion of a record."""

    at: Annotated[str, Doc("When it was deleted, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]
    last_seq: Annotated[Seq, Doc("The ledger entry of its last version, for `at`.")]


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


class Problem(ResponseBody, frozen=True):
    """A problem: what is wrong, and how to fix it (RFC 9457)."""

    type: Annotated[str, Doc("The problem type, for programs: a URL that explains it.")]
    title: Annotated[str, Doc("The problem type in words.")]
    status: Annotated[int, Doc("The HTTP status.")]
    detail: Annotated[str, Doc("What is wrong with this request.")]
    advice: Annotated[str, Doc("How to fix it.")] = ""
    advice_kind: Annotated[
        str, Doc("The kind of advice, for programs that phrase it themselves.", examples=["TOMBSTONE_INSTEAD"])
    ] = ""
    advice_parameters: Annotated[dict[str, Any], Doc("The parameters of that kind.")] = msgspec.field(
        default_factory=dict
    )
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
    deleted: Annotated[DeletionInfo | None, Doc("The deletion, if the record was deleted and you can see that.")] = None


class CommandProblem(Problem, frozen=True, kw_only=True):
    """A problem of a command."""

    exit_code: Annotated[int, Doc("The exit code of the command.")]


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A problem type as its page explains it."""

    slug: str
    status: int
    title: str
    about: str
    codes: tuple[int, ...] = ()
    """The response codes of the Handle System that have this type unless a more exact one is known."""


PROBLEMS_PAGE: Final = "/docs/problems"
"""The page that explains the problem types."""

_TYPES: Final = (
    ProblemType(
        "invalid-request",
        400,
        "Invalid request",
        "A parameter, the path or the body has the wrong form or is unknown. `where` names it. Nothing was "
        "changed. Correct the request.",
        codes=(4,),
    ),
    ProblemType(
        "invalid-name",
        400,
        "Invalid handle",
        "A handle breaks a rule for all handles, or a rule of its namespace. `rule` names the rule.",
        codes=(102,),
    ),
    ProblemType(
        "invalid-cursor",
        400,
        "Invalid cursor",
        "A cursor is valid only for the list and the identity that it was issued to. Start again at the first page.",
    ),
    ProblemType(
        "authentication-required",
        401,
        "Authentication required",
        "The request needs an identity. Send a token (`Authorization: Bearer …`), Basic or Handle credentials, or "
        "a TLS client certificate.",
        codes=(402,),
    ),
    ProblemType(
        "authentication-failed",
        401,
        "Authentication failed",
        "The credentials are wrong: the key is wrong or was changed, or the token is unknown, revoked or expired.",
        codes=(403, 404, 500),
    ),
    ProblemType(
        "https-required",
        403,
        "HTTPS required",
        "Credentials are accepted only over TLS (https) or from the same machine. Repeat the request over https.",
    ),
    ProblemType(
        "permission-denied",
        403,
        "Permission denied",
        "You are authenticated, but you do not have the permission, or your token does not have the scope. `POST "
        "/api/v1/explain` shows what is required.",
        codes=(400, 401),
    ),
    ProblemType(
        "not-found",
        404,
        "Not found",
        "The record or value does not exist, or only its administrators can see it.",
        codes=(100, 200),
    ),
    ProblemType(
        "no-such-path",
        404,
        "Path not found",
        "The API has no such path. A handle is one segment of the path: write its slash as `%2F`.",
    ),
    ProblemType(
        "prefix-not-hosted",
        404,
        "Prefix not hosted here",
        "This server does not host the prefix of the handle. Send the request to the service that hosts the prefix.",
        codes=(301, 302, 303),
    ),
    ProblemType(
        "other-server",
        421,
        "Other server responsible",
        "The handles of this site are divided among several servers, and another one has this handle. `advice` names "
        "it, as does the parameter `address` of the advice. Send the request there, with credentials for that server.",
    ),
    ProblemType(
        "method-not-allowed",
        405,
        "Method not allowed",
        "The path does not support this method. `Allow` lists the methods that it supports.",
    ),
    ProblemType(
        "already-exists",
        409,
        "Already exists",
        "The handle or value already exists. A handle is never assigned twice.",
        codes=(101, 201),
    ),
    ProblemType(
        "in-progress",
        409,
        "Request in progress",
        "A request with the same `Idempotency-Key` is in progress. Repeat the request after `Retry-After` to get "
        "its response.",
    ),
    ProblemType(
        "undo-conflict",
        409,
        "Undo conflict",
        "A job is undone completely or not at all. The undo would discard later changes, or it needs data that "
        "was redacted. Nothing was undone. `detail` names the first records; `GET` on the same path lists all "
        "conflicts.",
    ),
    ProblemType(
        "state-conflict",
        409,
        "Conflicting state",
        "The request is valid, but not in the present state of the record, namespace or job: a tombstone cannot be "
        "changed, a complete job cannot be resumed. `detail` names the state and `advice` what to do first.",
    ),
    ProblemType(
        "precondition-failed",
        412,
        "Precondition failed",
        "The record does not match `If-Match` or `If-None-Match`: it has changed. Read it again, then repeat the "
        "change.",
    ),
    ProblemType(
        "body-too-large",
        413,
        "Body too large",
        "A body has at most 1 MiB. Split it into several requests.",
    ),
    ProblemType(
        "unsupported-media-type",
        415,
        "Unsupported media type",
        "A body must be JSON in UTF-8: `Content-Type: application/json`.",
    ),
    ProblemType(
        "invalid-value",
        422,
        "Invalid value",
        "The request is well-formed, but it breaks a rule for all records or the policy of the namespace. `rule` "
        "names the rule.",
        codes=(202,),
    ),
    ProblemType(
        "invalid-query",
        422,
        "Invalid query",
        "The query is well-formed, but it has no answer: a time or ledger size in the future, two times in the "
        "wrong order, a search without criteria, a handle that is too long for a QR code. `detail` gives the "
        "reason.",
    ),
    ProblemType(
        "idempotency-key-reused",
        422,
        "Idempotency key reused",
        "A different request used the same `Idempotency-Key` in the last 24 hours. Use a new key for every new "
        "request.",
    ),
    ProblemType(
        "job-failed",
        424,
        "Job failed",
        "A job shows this problem if it stopped before it was complete. Only the user who ran it sees the reason, "
        "because the reason can reveal their permissions. Completed changes remain. Resume the job or undo it.",
    ),
    ProblemType(
        "too-many-requests",
        429,
        "Too many requests",
        "You reached the rate limit, or too many attempts to authenticate failed. Wait for the seconds in "
        "`Retry-After`. Combine several items in one request where possible.",
    ),
    ProblemType(
        "head-too-large",
        431,
        "Headers too large",
        "The URL and the headers of a request have at most 8 KiB together. Send long data in the body, where the "
        "route has one.",
    ),
    ProblemType(
        "internal-error",
        500,
        "Internal error",
        "The server failed. Report the number in `instance` to the operator of the server; the log has the details.",
    ),
    ProblemType(
        "unknown-columns",
        400,
        "Unknown columns",
        "Only the command line reports this, with `--json`: a table has columns that are not known types. Nothing was "
        "minted. `advice` names the option that accepts them.",
    ),
    ProblemType(
        "command-failed",
        500,
        "Command failed",
        "Only the command line reports this, with `--json`: the installation, a file or the disk cannot be used. "
        "`detail` gives the reason.",
    ),
    ProblemType(
        "unreachable",
        504,
        "Server unreachable",
        "Only the client reports this: no server answered in time. `detail` names the servers. Check the network and "
        "the address, then retry.",
    ),
    ProblemType(
        "unknown-outcome",
        504,
        "Unknown outcome",
        "Only the client reports this: a change was sent, but its response did not arrive. It may have been made. "
        "Resolve the handle before you repeat it.",
    ),
    ProblemType(
        "invalid-response",
        502,
        "Invalid response",
        "Only the client reports this: the response of a server is malformed, has a wrong signature or belongs to "
        "another request, so it is not used. `detail` gives the reason.",
    ),
    ProblemType(
        "not-supported",
        501,
        "Not supported",
        "This server does not support the operation.",
        codes=(5,),
    ),
    ProblemType(
        "busy",
        503,
        "Server busy",
        "Nothing was changed. Repeat the request after the seconds in `Retry-After`.",
        codes=(3,),
    ),
    ProblemType(
        "counter-closed",
        503,
        "Minting suspended",
        "The server was restored from a backup, and identifiers of this namespace may have been minted after it was "
        "taken. A server administrator must set the last one that was minted. Other namespaces are not affected.",
    ),
    ProblemType(
        "read-only",
        503,
        "Server read-only",
        "The server does not accept changes at the moment, for example during a backup. Try again later.",
        codes=(7,),
    ),
    ProblemType(
        "statistics-unavailable",
        503,
        "Statistics unavailable",
        "The file of statistics is damaged or locked. Everything else works. Repeat the request after the seconds in "
        "`Retry-After`: a running server replaces a damaged file, and counts from zero then.",
    ),
    ProblemType(
        "storage-full",
        503,
        "Storage full",
        "The disk of the server is full. Nothing was changed; public handles still resolve. Repeat the request after "
        "the seconds in `Retry-After`: it succeeds once there is space.",
    ),
    ProblemType(
        "wrong-clock",
        503,
        "Wrong clock",
        "The clock of the server is wrong, and changes are dated. Nothing was changed; reading works. Repeat the "
        "request after the seconds in `Retry-After`: it succeeds once the clock is right.",
    ),
)

PROBLEM_TYPES: Final = {each.slug: each for each in _TYPES}
"""All problem types by slug."""

_BY_CODE: Final = {code: each.slug for each in _TYPES for code in each.codes}


def slug_of_code(code: int) -> str:
    """The problem type of a response code of the Handle System."""
    return _BY_CODE.get(code, "internal-error")


def problem_types_by_status(status: int) -> list[ProblemType]:
    """List the problem types with a status."""
    return [each for each in _TYPES if each.status == status]


def make_problem(  # noqa: PLR0913 - one argument per field
    slug: str,
    detail: str,
    public_url: str = "",
    *,
    advice: str = "",
    rule: str = "",
    code: int = 0,
    where: str = "",
    instance: str = "",
    status: int = 0,
) -> Problem:
    """Build a problem of a type; `public_url` is that of the server with the page."""
    problem_type = PROBLEM_TYPES[slug]
    return Problem(
        f"{public_url}{PROBLEMS_PAGE}#{slug}",
        problem_type.title,
        status or problem_type.status,
        capitalize(detail),
        advice=advice,
        rule=rule,
        code=code,
        where=where,
        instance=instance,
    )

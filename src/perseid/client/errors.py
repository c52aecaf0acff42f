"""Errors of the client: one small hierarchy for the native protocol and the HTTP API.

    ClientError
    ├── NotFound        the handle, value, prefix or path does not exist
    ├── Refused         the server refused the request: permission, policy, already exists, authentication
    ├── Unreachable     no server answered in time
    │   ├── UnknownOutcome        a change was sent and may have been made
    │   └── UntrustedCertificate  no trusted authority has signed the certificate of the server
    └── ProtocolError   an answer is malformed, has a wrong signature, or does not belong to the request
        └── UnexpectedKey         the server has another certificate or key than the pinned one

Every error has the data of a problem document (`perseid.schema.problems`), so that programs never parse texts. A
mistake of the calling program, such as an option that does not exist, is a ValueError or TypeError.
"""

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from perseid.schema.problems import Problem


class ClientError(Exception):
    """A request failed. The text says why, and how to fix it; programs use the fields."""

    default_type: ClassVar[str] = "command-failed"
    """The problem type unless a more exact one is known."""

    def __init__(
        self,
        detail: str,
        *,
        advice: str = "",
        code: int = 0,
        rule: str = "",
        problem_type: str = "",
        problem: "Problem | None" = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        """What is wrong, for people."""
        self.advice = advice
        """How to fix it; can be empty."""
        self.code = code
        """The response code of the Handle System; 0 if there is none."""
        self.rule = rule
        """The id of the broken rule; can be empty."""
        self.problem_type = problem_type or self.default_type
        """The problem type: `not-found`, `permission-denied` …"""
        self.problem = problem
        """The whole problem document, if the server sent one."""

    def __str__(self) -> str:
        return f"{self.detail}. {self.advice}" if self.advice else self.detail


class NotFound(ClientError):
    """The handle, value, prefix or path does not exist, or cannot be seen."""

    default_type = "not-found"


class Refused(ClientError):
    """The server refused the request."""

    default_type = "permission-denied"


class Unreachable(ClientError):
    """No server answered in time."""

    default_type = "unreachable"


class UnknownOutcome(Unreachable):
    """A change was sent, but its response did not arrive: it may have been made."""

    default_type = "unknown-outcome"


class UntrustedCertificate(Unreachable):
    """No trusted authority has signed the certificate of the server."""


class ProtocolError(ClientError):
    """The answer is malformed, has a wrong signature, or does not belong to the request."""

    default_type = "invalid-response"


class UnexpectedKey(ProtocolError):
    """The server has another certificate or key than the pinned one."""

"""What a user should look at: unfinished jobs, and tokens that are not valid for long."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from perseid.client.errors import ClientError
from perseid.records.encoding import to_iso
from perseid.schema.jobs import JobResponse, JobState
from perseid.schema.namespaces import TokenResponse
from perseid.server.http.pages.texts import _

from .requests import ConsoleRequest
from .routing import link

EXPIRY_WARNING: Final = timedelta(days=14)
"""How long before a token expires it is a finding: time enough to replace it in a program."""

MAX_TOKENS: Final = 100
"""Tokens that are checked."""


class Finding(NamedTuple):
    """A sentence, and the page where something can be done about it."""

    text: str
    path: str = ""


async def find_findings(console: ConsoleRequest, jobs: Sequence[JobResponse]) -> list[Finding]:
    """Return what the user should look at in their own jobs and tokens; every page has the state of the server."""
    return [*check_jobs(jobs), *await _check_tokens(console)]


def check_jobs(jobs: Sequence[JobResponse]) -> list[Finding]:
    """Return a finding for each unfinished job."""
    text = _("Job {job} is unfinished. Resume it, or undo it.")
    return [
        Finding(text.format(job=job.job), link("jobs", job.job)) for job in jobs if job.state is JobState.UNFINISHED
    ]


async def _check_tokens(console: ConsoleRequest) -> list[Finding]:
    try:
        tokens = (await console.api.tokens(page_size=MAX_TOKENS).page()).tokens
    except ClientError:
        return []  # a token cannot list tokens
    limit = to_iso(int(console.request_context.server.time() + EXPIRY_WARNING.total_seconds()))
    found = [_describe(token, limit) for token in tokens if token.issuer == console.me]
    return [Finding(text, link("tokens")) for text in found if text]


def _describe(token: TokenResponse, limit: str) -> str:
    name = token.label or token.id
    if token.state == "key_changed":
        return _("Token {name} is not valid any more: you have another key. Create another token.").format(name=name)
    if token.state == "active" and token.expires < limit:
        text = _("Token {name} expires on {day}. Create another one, and then revoke it.")
        return text.format(name=name, day=token.expires[:10])
    return ""

"""One request to the console: its session and form, the API as its user, and how a page is rendered.

The console has no rules of its own and does not touch the registry: it calls the HTTP API in the same process, as the
identity of the session, with the operations of `perseid.client`. So what a user can do here, and how it is refused, is
the same as over HTTP.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import BinaryIO, Final, TypeVar
from urllib.parse import parse_qsl

from jinja2 import Environment
from markupsafe import Markup

from perseid.client.api import AsyncOperations
from perseid.client.api_exchange import (
    ApiRequest,
    HttpRequest,
    HttpResponse,
    Origin,
    Repeat,
    Upload,
    build_request,
    read_error,
    read_result,
)
from perseid.client.errors import ClientError
from perseid.names.handle import fold
from perseid.records.encoding import to_iso
from perseid.registry.identity import TokenIdentity, effective_identity
from perseid.schema.namespaces import Scope
from perseid.server.http.auth.authentication import AuthResult
from perseid.server.http.auth.web_sessions import WebSession
from perseid.server.http.context import RequestContext
from perseid.server.http.messages import HeaderList, Parameters, Request, Response
from perseid.server.http.pages.links import MAX_SHOWN, break_url, mark_times, to_sentence, to_visible
from perseid.server.http.pages.pages import PAGES_SCRIPT, make_environment, render_page
from perseid.server.http.pages.texts import _, on_change
from perseid.server.http.pages.values import explain_type
from perseid.server.http.responses import NO_STORE
from perseid.server.http.v1.application import handle_authenticated

from .advice import (
    API_LANGUAGE,
    describe_advice,
    describe_own_record,
    describe_rule,
    describe_server_problem,
    describe_warning,
    get_notices,
    get_words,
)
from .routing import Match, link
from .values import to_text

R = TypeVar("R")

MAX_CURSORS: Final = 20
"""Cursors of earlier pages in a link: 1.7 KB, which a browser sends twice, also as the page it comes from."""

SEE_OTHER: Final = 303
UNAUTHORIZED: Final = 401

_JOB_NOTE: Final = re.compile("([a-z_]{1,20}) ([0-9a-f]{16})(?=[:,]|$)")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![^T])")  # what a field of a date can show
_FRACTION: Final = re.compile(r"(?<=:[0-9]{2})[.][0-9]+(?=Z)")  # of a second

_HERE: Final = Origin("", "", 0, is_https=True)  # requests stay in this process


def get_navigation() -> tuple[tuple[str, str, str], ...]:
    """Section, path and label of each entry of the navigation."""
    return (
        ("dashboard", "", _("Overview")),
        ("records", "records", _("Identifiers")),
        ("imports", "imports", _("Import")),
        ("rewrite", "rewrite", _("Change links")),
        ("transfer", "transfer", _("Transfer")),
        ("jobs", "jobs", _("Jobs")),
        ("namespaces", "namespaces", _("Namespaces")),
        ("access", "access", _("Access")),
        ("tokens", "tokens", _("Tokens")),
        ("log", "log", _("Log")),
        ("statistics", "statistics", _("Statistics")),
    )


@cache
def get_environment() -> Environment:
    """The templates of the console."""
    environment = make_environment(__package__)
    environment.filters["sentence"] = to_sentence
    environment.filters["warning"] = describe_warning
    environment.filters["times"] = lambda text: mark_times(_FRACTION.sub("", str(text)))
    environment.filters["visible"] = to_visible
    environment.filters["fold"] = lambda text: fold(str(text))
    environment.filters["handle"] = lambda text: break_url(to_visible(text))
    environment.filters["own_record"] = describe_own_record
    environment.filters["note"] = render_note
    environment.filters["about_type"] = explain_type
    environment.filters["word"] = lambda text: get_words().get(str(text), str(text))
    environment.filters["data_text"] = lambda data, type_: to_text(type_, data)
    environment.filters["day"] = lambda text: text[:10] if _DAY.match(text) else ""
    environment.filters["iso"] = lambda seconds: to_iso(int(seconds))
    return environment


on_change(get_environment.cache_clear)


def render_note(note: str, limit: int = MAX_SHOWN) -> Markup:
    """A note of an entry as HTML; one that a job has written starts with its kind and id, and leads to it."""
    match = _JOB_NOTE.match(note)
    if match is None:
        return Markup("<bdi>{}</bdi>").format(to_visible(note, limit))
    kind, job = match.groups()
    rest = to_visible(note[match.end() :], limit)
    return Markup('<a href="{}">{}</a><bdi>{}</bdi>').format(link("jobs", job), get_words().get(kind, kind), rest)


@dataclass(frozen=True, slots=True)
class ProblemView:
    """An error for a page."""

    status: int
    title: str
    detail: str
    advice: str = ""
    language: str = ""
    """The language of the title and the detail, if it is not that of the page."""
    advice_language: str = ""
    """The same of the advice."""
    where: str = ""
    """The invalid part of the request, as a JSON path; empty if unknown."""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file of a form, which is closed after the request."""

    name: str
    file: BinaryIO = field(repr=False)


@dataclass(slots=True)
class ConsoleRequest:
    """A request of a user who has signed in; on public pages maybe of one who has not."""

    request_context: RequestContext
    match: Match
    session: WebSession | None
    form: Parameters = field(default_factory=Parameters)
    files: dict[str, UploadedFile] = field(default_factory=dict)
    key: bytes = b""
    """The random number of the form, its idempotency key."""

    @property
    def request(self) -> Request:
        return self.request_context.request

    @property
    def names(self) -> Mapping[str, str]:
        """The parameters of the path."""
        return self.match.names

    @property
    def query(self) -> Parameters:
        pairs = parse_qsl(self.request.query.decode("latin-1"), keep_blank_values=True, errors="replace")
        return Parameters(tuple(pairs))

    @property
    def api(self) -> "ConsoleApi":
        """The HTTP API as the user of the session; anonymous without one."""
        return ConsoleApi(self.request_context, self.session, self.key)

    @property
    def me(self) -> str:
        """The identity of the user, `INDEX:HANDLE`; empty without a session."""
        return "" if self.session is None else str(effective_identity(self.session.identity))

    def has_scope(self, scope: Scope) -> bool:
        """Whether the user has signed in without a token, or with one that has a scope."""
        identity = None if self.session is None else self.session.identity
        return not isinstance(identity, TokenIdentity) or scope in identity.scope.scopes

    def text(self, name: str, default: str = "") -> str:
        """A field of the form, or else of the query, without surrounding whitespace."""
        value = self.form.first(name)
        if value is None:
            value = self.query.first(name)
        return default if value is None else value.strip()

    def cursors(self, name: str = "cursor") -> tuple[str, ...]:
        """The cursors of the pages of a list that the user has come through, last that of this page; none on the first.

        An API has no cursors of earlier pages, so the links to the next page keep them, up to `MAX_CURSORS`.
        """
        return tuple(self.query.all(name)[-MAX_CURSORS:])

    def cursor(self, name: str = "cursor") -> str:
        """The cursor of the page of a list; empty on the first."""
        return next(reversed(self.cursors(name)), "").strip()

    # Responses

    def render(
        self,
        template: str,
        status: int = 200,
        headers: HeaderList = (),
        problem: ClientError | ProblemView | None = None,
        scripts: tuple[str, ...] = (),
        done: str = "",
        **shown: object,
    ) -> Response:
        """Render a page of the console; `problem` is shown above its content. `shown` must contain `title`.

        `scripts` are the names of static files, beside the one that shows times in the zone of the reader. `done` is
        the notice of a page that is shown without a redirect (`advice.get_notices`).
        """
        view = describe(problem) if isinstance(problem, ClientError) else problem
        session = self.session
        return render_page(
            template,
            self.request_context.server.settings,
            view.status if view is not None and status == 200 else status,
            (*headers, NO_STORE),
            scripts=(PAGES_SCRIPT, *[f"/static/{name}" for name in scripts]),
            environment=get_environment(),
            me=to_visible(self.me),
            server_problem=describe_server_problem(self.request_context.server) if session is not None else "",
            token=session.identity.token if session and isinstance(session.identity, TokenIdentity) else "",
            navigation=get_navigation(),
            section=self.match.route.section,
            link=link,
            cursors=self.cursors,
            form_token=session.make_form_token if session is not None else _no_token,
            problem=view,
            notice=get_notices().get(done or self.query.first("done") or "", ""),
            **shown,
        )

    def redirect(self, *segments: object, done: str = "", headers: HeaderList = (), **query: object) -> Response:
        """Redirect to a page after a form; `done` is the notice that it shows (`advice.get_notices`)."""
        return self.redirect_to(link(*segments, done=done, **query), headers)

    def redirect_to(self, path: str, headers: HeaderList = ()) -> Response:
        """Redirect to a path of this server."""
        return Response(SEE_OTHER, (("Location", path), NO_STORE, *headers))


def _no_token() -> str:
    return ""


def describe(error: ClientError) -> ProblemView:
    """Describe an error of the API, with its advice in terms of the console."""
    problem = error.problem
    if problem is None:  # of the console itself
        return ProblemView(422, _("Invalid input"), error.detail, error.advice)
    advice, advice_language = describe_advice(problem, describe_rule(problem) or error.advice)
    return ProblemView(
        problem.status, problem.title, error.detail, advice, API_LANGUAGE, advice_language, problem.where
    )


class SessionEnded(Exception):
    """The key or token of a session is no longer valid. No page handles it: the user signs in again."""


class ConsoleApi(AsyncOperations):
    """The HTTP API in this process."""

    def __init__(self, request_context: RequestContext, session: WebSession | None, key: bytes = b"") -> None:
        """`key` is the idempotency key of the form; it counts for the first operation that takes one."""
        self._context = request_context
        self._auth = AuthResult() if session is None else AuthResult(session.identity, session.guard)
        self._key = key.hex()
        self._has_session = session is not None

    async def send(self, request: ApiRequest[R]) -> R:
        """Call an operation; raises `ClientError`, and `SessionEnded`."""
        key = ""
        if request.repeat is Repeat.WITH_KEY:
            key, self._key = self._key, f"{self._key}+" if self._key else ""
        response = await self.call(build_request(request, _HERE, {}, key))
        headers = {name.lower(): value for name, value in response.headers}
        body = response.body
        if response.stream is not None:
            body = b"".join([part async for part in response.stream])
        received = HttpResponse(response.status, headers, body)
        if response.status < SEE_OTHER:
            return read_result(request, _HERE, received)
        if response.status == UNAUTHORIZED and self._has_session:
            raise SessionEnded
        raise read_error(_HERE, received)

    async def call(self, request: HttpRequest) -> Response:
        """Call a route, and return its response as it is."""
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        client = replace(self._context.request.client, certificate=None)
        inner = Request(request.method, request.url.encode("latin-1"), headers, client=client)
        if isinstance(request.body, Upload):
            inner.stream = _read_upload(request.body)
        else:
            inner.body = request.body
        context = RequestContext(inner, self._context.server)
        try:
            return await handle_authenticated(context, self._auth)
        finally:
            context.settle_proof(succeeded=None)


async def _read_upload(upload: Upload) -> AsyncIterator[bytes]:
    parts = iter(upload)
    while part := await asyncio.to_thread(next, parts, b""):
        yield part

"""The page that creates identifiers for users with permission in a namespace.

Everyone can see the page: it explains how suffixes are built. Authenticated users get a form. The form becomes an
ordinary registry command, so permissions, policies and leases are decided there. The page works without scripts, and
keeps what the user entered when the form is refused.

A browser sends remembered passwords and certificates with every form that targets this server, whichever site the form
comes from. So the form has a token bound to one identity and a lifetime, and cross-site requests are refused. The token
is signed with a key derived from the ledger: it is valid on every node and after restarts, and nothing is stored. The
random number in it is the idempotency key: a form sent twice, by a double click or a reload, is executed once.
Credentials are accepted only over private connections.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Self

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.requests import StoredResponse
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.record import Value
from perseid.registry.commands.composition import mint_requirement
from perseid.registry.commands.minting import Generate
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Command, Context
from perseid.registry.idempotency import Executed, InProgress, NewClaim, Replayed
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import Policy
from perseid.registry.queries.namespaces import (
    PILIN_EXPLANATION,
    MintMode,
    SuffixCharacter,
    build_command,
    describe_suffix,
    explain_suffix,
)
from perseid.registry.results import MintResult, Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.server.http.auth.authentication import AuthResult, authenticate, denial
from perseid.server.http.clients import is_cross_site
from perseid.server.http.context import INTERFACE, HttpSettings, RequestContext
from perseid.server.http.messages import BadRequest, HeaderList, Parameters, Response
from perseid.server.http.resolver.paths import path_to
from perseid.server.http.resolver.problems import AdvisedCommand
from perseid.server.http.resolver.redirect import InvalidTarget, parse_target
from perseid.server.http.responses import FORBIDDEN, NO_STORE, https_required, to_failure
from perseid.server.native.decisions import NOT_PRIMARY, Busy, GuardedCommand, execute_with_wait
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

from .links import TextLink, to_sentence, to_visible
from .pages import render_page

PURPOSE: Final = b"forms of pages"
"""The purpose for which the key is derived from the ledger's secret."""

LIFETIME: Final = 7_200
"""Seconds for which a form can be sent: two hours."""

NUMBER_BYTES: Final = 16
"""Length of the random number in bytes; long enough to be unique."""

_TIME_BYTES: Final = 8
_TAG_BYTES: Final = hashlib.sha256().digest_size
_LENGTH: Final = _TIME_BYTES + NUMBER_BYTES + _TAG_BYTES
_MAX_TEXT: Final = 2 * _LENGTH  # longer than its base64 form


class InvalidFormToken(Exception):
    """A token that is forged, expired or for another identity; the message says what to do."""


class FormTokens:
    """Creates and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, identity: str, now: float, random: Callable[[int], bytes]) -> str:
        """Create a token for an identity, valid from `now`."""
        head = (int(now) + LIFETIME).to_bytes(_TIME_BYTES, "big") + random(NUMBER_BYTES)
        return base64.urlsafe_b64encode(head + self._tag(head, identity)).rstrip(b"=").decode()

    def read(self, token: str, identity: str, now: float) -> bytes:
        """Return the random number of a valid token; raises `InvalidFormToken`."""
        data = _decode(token)
        head, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if len(data) != _LENGTH or not hmac.compare_digest(tag, self._tag(head, identity)):
            raise InvalidFormToken("the form was not issued to you by this server; use the new form below")
        if now >= int.from_bytes(head[:_TIME_BYTES], "big"):
            raise InvalidFormToken(f"the form is older than {LIFETIME // 3_600} hours; use the new form below")
        return head[_TIME_BYTES:]

    def _tag(self, head: bytes, identity: str) -> bytes:
        return hmac.digest(self._secret, head + identity.encode("utf-8", "surrogatepass"), hashlib.sha256)


def _decode(token: str) -> bytes:
    """Decode the text of a token; return no bytes if it is invalid."""
    try:
        if len(token) > _MAX_TEXT:
            return b""
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except ValueError:
        return b""


MAX_NAMES: Final = 100
"""Identifiers that the page creates at once: as many as a person copies by hand."""

MAX_FIELD: Final = 2_048
"""Characters of one field: the longest handle, and the longest URL that every browser accepts. Longer text is refused,
because truncated text means something else."""

TITLE: Final = "Create identifiers"

_NUMBER: Final = re.compile("[0-9]{1,6}")
_FIELDS: Final = {"prefix": "prefix", "count": "number of identifiers", "url": "target URL", "creator": "creator"}
_UNREADABLE: Final = "\ufffd"  # replaces bytes that are not UTF-8
_MODES: Final = {mode.value: mode for mode in MintMode}
_DONE: Final = {
    MintMode.MINT: "minted: they resolve to the target URL from now on",
    MintMode.RESERVE: "reserved: they belong to you and do not resolve yet",
    MintMode.GENERATE: "generated: they will not be issued again, and no owner is recorded",
}
_DETAILS: Final = {"milliseconds": "Milliseconds", "time": "Time", "check": "Check character", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class FormData:
    """The fields of a submitted form."""

    prefix: str = ""
    mode: MintMode | None = MintMode.MINT
    count: str = "1"
    url: str = ""
    creator: str = ""
    error: str = ""
    """Why the form is invalid; empty if it is valid."""

    @classmethod
    def of(cls, form: Parameters) -> Self:
        """Read a submitted form, truncated to what can be shown again."""
        texts = {name: (form.first(name) or "").strip() for name in _FIELDS}
        errors = [_field_error(name, text) for name, text in texts.items()]
        mode = _MODES.get((form.first("mode") or "").strip())
        shown = {name: text[:MAX_FIELD] for name, text in texts.items()}
        return cls(mode=mode, error=next(filter(None, errors), ""), **shown)

    @property
    def number(self) -> int | None:
        """The number of identifiers; None if it is not a number."""
        return int(self.count) if _NUMBER.fullmatch(self.count) else None


@dataclass(frozen=True, slots=True)
class Offer:
    """A namespace in which the user can create identifiers."""

    prefix: str
    scheme: str
    """The scheme that generates its suffixes."""


@dataclass(frozen=True, slots=True)
class GeneratorForm:
    """What the page needs to show the form."""

    identity: str
    offers: Sequence[Offer]
    token: str = field(repr=False)
    filled: FormData
    problem: str
    """What was wrong with the last submission; empty if nothing was."""


def _field_error(name: str, text: str) -> str:
    if len(text) > MAX_FIELD:
        return f"the {_FIELDS[name]} has {len(text):,} characters; the maximum is {MAX_FIELD:,}"
    return f"the {_FIELDS[name]} is not valid UTF-8 text" if _UNREADABLE in text else ""


def introduction_page(settings: HttpSettings) -> Response:
    """Return the page for anonymous users."""
    return _page(settings, 200, sign_in=True)


def closed_page(reason: str, settings: HttpSettings, status: int) -> Response:
    """Return the page for connections over which nobody can authenticate."""
    return _page(settings, status, problem=reason)


def denied_page(reason: str, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """Return the page for a user whose authentication is missing or failed."""
    return _page(settings, status, headers, problem=reason, sign_in=True)


def form_page(shown: GeneratorForm, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """Return the page with the form."""
    return _page(settings, status, headers, problem=shown.problem, identity=shown.identity, form=shown)


def result_page(
    identity: str, mode: MintMode, names: Sequence[Handle], policy: Policy, settings: HttpSettings
) -> Response:
    """Return the page with the new identifiers."""
    shown = [_name(name, mode, settings) for name in names]
    parts, details = _explain_name(names[0], policy)
    return _page(settings, 200, identity=identity, done=_DONE[mode], names=shown, parts=parts, details=details)


def _name(name: Handle, mode: MintMode, settings: HttpSettings) -> TextLink:
    text = to_visible(str(name))
    return TextLink(text, path_to(str(name), settings)) if mode is MintMode.MINT else TextLink(text)


def _explain_name(name: Handle, policy: Policy) -> tuple[tuple[SuffixCharacter, ...], list[tuple[str, str]]]:
    """Return the characters of a PILIN suffix and the other details the scheme reads from a name."""
    description = describe_suffix(policy, name)
    details = [
        (_DETAILS.get(key, key), to_visible(str(value))) for key, value in description.items() if value is not None
    ]
    if "milliseconds" not in description:
        return (), details
    try:
        return explain_suffix(name.suffix[:-1] if "check" in description else name.suffix), details
    except InvalidName:
        return (), details


def _page(settings: HttpSettings, status: int, headers: HeaderList = (), **shown: Any) -> Response:
    defaults: dict[str, Any] = {
        "problem": "",
        "sign_in": False,
        "identity": "",
        "form": None,
        "done": "",
        "names": (),
        "parts": (),
        "details": (),
    }
    shown = defaults | shown
    shown["problem"] = to_sentence(to_visible(str(shown["problem"])))
    shown["identity"] = to_visible(str(shown["identity"]))
    return render_page(
        "generator.html",
        settings,
        status,
        (*headers, NO_STORE),
        title=TITLE,
        modes=tuple(MintMode),
        max_names=MAX_NAMES,
        suffix_explanation=PILIN_EXPLANATION,
        **shown,
    )


MAX_OFFERED: Final = 20
"""Namespaces that the form lists; users can enter others."""

MAX_SCANNED: Final = 100
"""Namespaces that are checked for the list."""

URL_INDEX: Final = 1
CREATOR_INDEX: Final = 2
"""The indexes of the URL value and of the creator value of a minted identifier."""

_TOKEN, _MODE = "token", "mode"
_CROSS_SITE: Final = "the form was sent from another site; use the form below"
_BUSY: Final = "this form is already being processed; reload the page in a moment"
_OTHER: Final = "this form was already sent with different fields; use the new form below"
_GONE: Final = "this form was already processed and its result is no longer stored; see the history of the namespace"
_NAMES: Final = msgspec.json.Decoder(list[str])


async def handle_request(request_context: RequestContext, form: Parameters | None) -> Response:
    """Return the page, or the result of its form."""
    settings, is_get = request_context.server.settings, form is None
    if not request_context.request.client.private:
        return closed_page(https_required(request_context.request), settings, 200 if is_get else FORBIDDEN)
    auth = await authenticate(request_context)
    is_anonymous = isinstance(auth.identity, Anonymous)
    if auth.problem is not None or (is_anonymous and not is_get):
        denied = denial(request_context, auth)
        return denied_page(denied.describe(), settings, denied.status, denied.headers)
    if is_anonymous:
        return introduction_page(settings)
    opened = await request_context.do(WorkKind.READ, lambda: _GeneratorPage.of(request_context, auth))
    if form is None or _MODE not in form:
        return opened.form(FormData())
    return await opened.submit(form)


@dataclass(frozen=True, slots=True)
class _GeneratorPage:
    """The page for an authenticated user."""

    request_context: RequestContext
    auth: AuthResult
    offers: tuple[Offer, ...]
    tokens: FormTokens

    @classmethod
    def of(cls, request_context: RequestContext, auth: AuthResult) -> "_GeneratorPage":
        """Read what the page needs from the ledger."""
        registry = request_context.server.registry
        with registry.snapshot() as snapshot:
            context = Context(snapshot, auth.identity, INTERFACE, registry.now())
            return cls(request_context, auth, _find_offers(context), FormTokens(snapshot.reader.secret(PURPOSE)))

    @property
    def identity(self) -> str:
        return str(self.auth.identity)

    # The form

    def form(self, filled: FormData, problem: str = "", status: int = 200, headers: HeaderList = ()) -> Response:
        """Return the form, with what was wrong with the last submission."""
        server = self.request_context.server
        token = self.tokens.make(self.identity, server.time(), server.random)
        shown = GeneratorForm(self.identity, self.offers, token, filled, problem)
        return form_page(shown, server.settings, status, headers)

    async def submit(self, form: Parameters) -> Response:
        """Execute a submitted form."""
        filled = FormData.of(form)
        try:
            if is_cross_site(self.request_context):
                raise BadRequest(_CROSS_SITE, FORBIDDEN)
            key = self._key(form)
            request = self._parse(filled)
            return await self.request_context.do(WorkKind.WRITE, lambda: self._mint(request, filled, key))
        except (BadRequest, Refused, Busy, LedgerError) as problem:
            failure = to_failure(problem, self.request_context)
            return self.form(filled, failure.message, failure.status, failure.headers)

    def _key(self, form: Parameters) -> bytes:
        try:
            return self.tokens.read(form.first(_TOKEN) or "", self.identity, self.request_context.server.time())
        except InvalidFormToken as problem:
            raise BadRequest(str(problem), FORBIDDEN) from problem

    def _parse(self, filled: FormData) -> "_MintRequest":
        """Validate the form; raises `BadRequest`."""
        if filled.error:
            raise BadRequest(filled.error)
        if not filled.prefix:
            raise BadRequest("the prefix is missing; enter the prefix for the identifiers")
        count = filled.number
        if count is None or not 1 <= count <= MAX_NAMES:
            raise BadRequest(f"the number of identifiers must be 1 to {MAX_NAMES}; use the API for more")
        if filled.mode is None:
            raise BadRequest("choose an action: mint, reserve or generate")
        url = ""
        if filled.mode is MintMode.MINT:
            try:
                url = parse_target(filled.url, self.request_context.server.settings.schemes).text
            except InvalidTarget as problem:
                reason = f"the target URL is invalid: {problem}"
                raise BadRequest(f"{reason}; enter another URL, or reserve the identifiers") from problem
        creator = filled.creator if filled.mode is MintMode.MINT else ""
        return _MintRequest(filled.mode, filled.prefix, count, url, creator)

    # Execution, in a writing thread

    def _mint(self, request: "_MintRequest", filled: FormData, key: bytes) -> Response:
        server, auth = self.request_context.server, self.auth
        registry = server.registry
        if not server.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        command = self._build_command(request)

        def guarded(since: int | None) -> Command[MintResult]:
            advised = AdvisedCommand(replace(command, since=since), request.prefix, server.settings)
            return GuardedCommand(advised, auth.guard, allow_referrals=True)

        keys = server.api.keys(registry)
        with keys.claim(auth.identity, key, request.digest(), _encode_result) as claim:
            done: Executed | Replayed | None = None
            if isinstance(claim, NewClaim):
                fresh = claim
                outcome = execute_with_wait(
                    guarded, lambda command: keys.execute(fresh, command, auth.identity, INTERFACE, _encode_result)
                )
                done = outcome if isinstance(outcome, Executed | Replayed) else None
            elif isinstance(claim, Replayed):
                done = claim
            elif isinstance(claim, InProgress):
                return self.form(filled, _BUSY, 409)
        if done is None:
            return self.form(filled, _OTHER, 422)
        body = done.answer.body if isinstance(done, Executed) else done.body
        if body is None:
            return self.form(filled, _GONE, 410)
        names = tuple([Handle.parse_lenient(name) for name in _NAMES.decode(body)])
        with registry.snapshot() as snapshot:
            policy = snapshot.policy(names[0].prefix)
        result = result_page(self.identity, request.mode, names, policy, server.settings)
        return replace(result, code=int(ResponseCode.SUCCESS), name=str(names[0]), identity=self.identity)

    def _build_command(self, request: "_MintRequest") -> Generate:
        registry = self.request_context.server.registry
        values = [Value.text(URL_INDEX, "URL", request.url)] if request.url else []
        if request.creator:
            with registry.snapshot() as snapshot:
                type_ = snapshot.policy(request.prefix.partition("/")[0]).creator_type
            values.append(Value.text(CREATOR_INDEX, type_, request.creator))
        return build_command(request.mode, request.prefix, request.count, values=values)


@dataclass(frozen=True, slots=True)
class _MintRequest:
    """A validated form."""

    mode: MintMode
    prefix: str
    count: int
    url: str
    creator: str

    def digest(self) -> bytes:
        """Fingerprint of the request, which detects a form that is sent again with other fields."""
        fields = (self.mode, self.prefix, self.count, self.url, self.creator)
        return hashlib.sha256(msgspec.json.encode(fields)).digest()


def _encode_result(minted: MintResult) -> StoredResponse:
    return StoredResponse(200, msgspec.json.encode([str(handle) for handle in minted.handles]))


def _find_offers(context: Context) -> tuple[Offer, ...]:
    """Find namespaces in which the caller can create identifiers."""
    prefixes = (name.partition("/")[2] for name in homed_prefixes(context.snapshot.reader))
    offers = (_find_offer(context, prefix) for prefix in islice(prefixes, MAX_SCANNED))
    return tuple(islice((offer for offer in offers if offer is not None), MAX_OFFERED))


def _find_offer(context: Context, prefix: str) -> Offer | None:
    if "/" in prefix or fold(prefix) in (PREFIX_OF_PREFIXES, SITE_PREFIX):
        return None
    snapshot: Snapshot = context.snapshot
    handle = Handle.for_lookup(f"{prefix}/x")
    try:
        if handle is None or not snapshot.is_responsible(handle):
            return None
        policy = snapshot.policy(prefix)
        return Offer(prefix, policy.scheme) if context.is_allowed(mint_requirement(policy, prefix)) else None
    except Refused:
        return None  # the policy of the namespace is invalid

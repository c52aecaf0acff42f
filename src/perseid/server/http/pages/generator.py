"""The generator's page: what stands on it, for everybody, for who may use it, and after it was used.

It works without script. What somebody has written into the form stays there when something was wrong with it.

The page at which new names are made (seed 000), for those who may make names in a namespace.

Everybody may look at the page: it says what a suffix is made of. Who has proved who they are gets a form, and what the
form asks for is an operation of the registry like any other: rights, policies and leases are decided there.

A browser sends the proof by itself, so the form has a token that only its owner can have (`form_tokens`), and what
comes from a page of another site does not count. The number in the token is the key of the request: a form that is sent
twice, by a double click or by loading the result again, is carried out once and answered twice. Nothing of this goes
over a connection that others can read.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Self

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.requests import StoredResponse
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.access.minting_rights import making
from perseid.registry.commands.minting import Generate, MintInputs
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Command, Context
from perseid.registry.idempotency import Executed, InProgress, NewClaim, Replayed
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import Policy
from perseid.registry.queries.suffixes import (
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
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.resolver.paths import path_to
from perseid.server.http.resolver.problems import AdvisedCommand
from perseid.server.http.resolver.redirect import InvalidTarget, parse_target
from perseid.server.http.responses import FORBIDDEN, HTTPS_REQUIRED, NO_STORE, to_failure
from perseid.server.http.targets import BadRequest, Parameters
from perseid.server.native.decisions import NOT_PRIMARY, Busy, GuardedCommand, execute_with_wait
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from .form_tokens import PURPOSE, FormTokens, InvalidFormToken
from .pages import TextLink, render_page, to_visible

MAX_NAMES: Final = 100
"""Names that the page makes at once: as many as somebody copies by hand."""

MAX_FIELD: Final = 2_048
"""Characters of one field: the longest name, and the longest address that every browser takes. More is refused, for
what is cut means something else."""

TITLE: Final = "Make new names"

_NUMBER: Final = re.compile("[0-9]{1,6}")
_FIELDS: Final = {"where": "prefix", "count": "number of names", "url": "address", "creator": "creator"}
_UNREADABLE: Final = "\ufffd"  # what stands for octets that are no text
_MAKINGS: Final = {making.value: making for making in MintMode}
_DONE: Final = {
    MintMode.MINT: "minted: the names lead to the address from now on",
    MintMode.RESERVE: "reserved: the names are yours, and lead nowhere yet",
    MintMode.GENERATE: "generated: nobody else is given these names, and no record is kept of whose they are",
}
_DETAILS: Final = {"milliseconds": "Milliseconds", "time": "Made for", "check": "Check character", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class FormData:
    """What somebody has written into the form."""

    where: str = ""
    making: MintMode | None = MintMode.MINT
    count: str = "1"
    url: str = ""
    creator: str = ""
    error: str = ""
    """Why it cannot be taken as it was sent; empty if it can."""

    @classmethod
    def of(cls, form: Parameters) -> Self:
        """The fields of a form that was sent, as far as they can be shown again."""
        texts = {name: (form.first(name) or "").strip() for name in _FIELDS}
        errors = [_field_error(name, text) for name, text in texts.items()]
        making = _MAKINGS.get((form.first("making") or "").strip())
        shown = {name: text[:MAX_FIELD] for name, text in texts.items()}
        return cls(making=making, error=next(filter(None, errors), ""), **shown)

    @property
    def number(self) -> int | None:
        """How many names are wanted; None if that is no number."""
        return int(self.count) if _NUMBER.fullmatch(self.count) else None


@dataclass(frozen=True, slots=True)
class Offer:
    """A namespace in which somebody may make names."""

    prefix: str
    scheme: str
    """By which its suffixes are made."""


@dataclass(frozen=True, slots=True)
class GeneratorForm:
    """The form."""

    who: str
    offers: Sequence[Offer]
    token: str = field(repr=False)
    filled: FormData
    problem: str
    """What was wrong with the last one; empty if nothing was."""


def _field_error(name: str, text: str) -> str:
    """Why a field cannot be taken as it was sent; empty if it can."""
    if len(text) > MAX_FIELD:
        return f"the {_FIELDS[name]} has {len(text):,} characters; {MAX_FIELD:,} are the most here"
    return f"the {_FIELDS[name]} holds something that is no text in UTF-8" if _UNREADABLE in text else ""


def introduction_page(settings: HttpSettings) -> Response:
    """The page for whoever has not said who they are."""
    return _page(settings, 200, sign_in=True)


def closed_page(reason: str, settings: HttpSettings, status: int) -> Response:
    """The page where nobody can say who they are."""
    return _page(settings, status, problem=reason)


def denied_page(reason: str, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page for somebody who is asked who they are, or is not believed."""
    return _page(settings, status, headers, problem=reason, sign_in=True)


def form_page(shown: GeneratorForm, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page with the form."""
    return _page(settings, status, headers, problem=shown.problem, who=shown.who, form=shown)


def result_page(
    who: str, making: MintMode, names: Sequence[Handle], policy: Policy, settings: HttpSettings
) -> Response:
    """The page with the names that were made."""
    shown = [_name(name, making, settings) for name in names]
    parts, details = _explain_name(names[0], policy)
    return _page(settings, 200, who=who, done=_DONE[making], names=shown, parts=parts, details=details)


def _name(name: Handle, making: MintMode, settings: HttpSettings) -> TextLink:
    text = to_visible(str(name))
    return TextLink(text, path_to(str(name), settings)) if making is MintMode.MINT else TextLink(text)


def _explain_name(name: Handle, policy: Policy) -> tuple[tuple[SuffixCharacter, ...], list[tuple[str, str]]]:
    """The characters of a PILIN suffix, and what else the scheme tells from a name."""
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


def _page(settings: HttpSettings, status: int, headers: HeaderList = (), **shown: object) -> Response:
    everything: dict[str, object] = {
        "problem": "",
        "sign_in": False,
        "who": "",
        "form": None,
        "done": "",
        "names": (),
        "parts": (),
        "details": (),
    }
    shown = everything | shown
    shown["problem"] = _sentence(to_visible(str(shown["problem"])))
    shown["who"] = to_visible(str(shown["who"]))
    return render_page(
        "generator.html",
        settings,
        status,
        (*headers, NO_STORE),
        title=TITLE,
        makings=tuple(MintMode),
        most=MAX_NAMES,
        how_it_counts=PILIN_EXPLANATION,
        **shown,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if not text or text.endswith((".", "!", "?")) else ".")


MAX_OFFERED: Final = 20
"""Namespaces that the form offers: as many as somebody reads. Others can be typed."""

MAX_SCANNED: Final = 100
"""Namespaces that are looked at for that."""

URL_INDEX: Final = 1
CREATOR_INDEX: Final = 2
"""The indexes of the address of a minted name, and of who created it."""

_TOKEN, _MAKING = "token", "making"
_CROSS_SITE: Final = "the form was sent by a page of another site; here is ours"
_BUSY: Final = "this form is being carried out; load the page again in a moment"
_OTHER: Final = "this form was sent before with something else in it; here is a new one"
_GONE: Final = "that was done before, and what was answered is not kept any more; look at the history of the namespace"
_NAMES: Final = msgspec.json.Decoder(list[str])


async def handle_request(request_context: RequestContext, form: Parameters | None) -> Response:
    """The page, or what came of its form."""
    settings, is_get = request_context.place.settings, form is None
    if not request_context.request.client.private:
        return closed_page(HTTPS_REQUIRED, settings, 200 if is_get else FORBIDDEN)
    auth = await authenticate(request_context)
    is_anonymous = isinstance(auth.identity, Anonymous)
    if auth.problem is not None or (is_anonymous and not is_get):
        denied = denial(request_context, auth)
        return denied_page(denied.message, settings, denied.status, denied.headers)
    if is_anonymous:
        return introduction_page(settings)
    opened = await request_context.do(WorkKind.READ, lambda: _GeneratorPage.of(request_context, auth))
    if form is None or _MAKING not in form:
        return opened.form(FormData())
    return await opened.submit(form)


@dataclass(frozen=True, slots=True)
class _GeneratorPage:
    """The page for somebody who has proved who they are."""

    request_context: RequestContext
    auth: AuthResult
    offers: tuple[Offer, ...]
    tokens: FormTokens

    @classmethod
    def of(cls, request_context: RequestContext, auth: AuthResult) -> "_GeneratorPage":
        """What is read of the ledger for it."""
        registry = request_context.place.registry
        with registry.snapshot() as snapshot:
            context = Context(snapshot, auth.identity, INTERFACE, registry.now())
            return cls(request_context, auth, _find_offers(context), FormTokens(snapshot.reading.secret(PURPOSE)))

    @property
    def who(self) -> str:
        return str(self.auth.identity)

    # The form

    def form(self, filled: FormData, problem: str = "", status: int = 200, headers: HeaderList = ()) -> Response:
        """The form, with what was wrong with the last one."""
        place = self.request_context.place
        token = self.tokens.make(self.who, place.time(), place.random)
        shown = GeneratorForm(self.who, self.offers, token, filled, problem)
        return form_page(shown, place.settings, status, headers)

    async def submit(self, form: Parameters) -> Response:
        """What came of a form that was sent."""
        filled = FormData.of(form)
        try:
            if is_cross_site(self.request_context):
                raise BadRequest(_CROSS_SITE, FORBIDDEN)
            key = self._key(form)
            wanted = self._wanted(filled)
            return await self.request_context.do(WorkKind.WRITE, lambda: self._mint(wanted, filled, key))
        except (BadRequest, Refused, Busy, LedgerError) as problem:
            failure = to_failure(problem, self.request_context)
            return self.form(filled, failure.message, failure.status, failure.headers)

    def _key(self, form: Parameters) -> bytes:
        try:
            return self.tokens.read(form.first(_TOKEN) or "", self.who, self.request_context.place.time())
        except InvalidFormToken as problem:
            raise BadRequest(str(problem), FORBIDDEN) from problem

    def _wanted(self, filled: FormData) -> "_MintRequest":
        """What the form asks for; raises `Malformed` for what the page can tell by itself."""
        if filled.error:
            raise BadRequest(filled.error)
        if not filled.where:
            raise BadRequest("write under which prefix the names shall be")
        count = filled.number
        if count is None or not 1 <= count <= MAX_NAMES:
            raise BadRequest(f"the number of names should be 1 to {MAX_NAMES}; for more there is the API")
        if filled.making is None:
            raise BadRequest("choose what shall be made")
        url = ""
        if filled.making is MintMode.MINT:
            try:
                url = parse_target(filled.url, self.request_context.place.settings.schemes).text
            except InvalidTarget as problem:
                reason = f"the address cannot be what the names lead to, because {problem}"
                raise BadRequest(f"{reason}; write another one, or reserve the names") from problem
        creator = filled.creator if filled.making is MintMode.MINT else ""
        return _MintRequest(filled.making, filled.where, count, url, creator)

    # Carrying out: in a thread that may write

    def _mint(self, wanted: "_MintRequest", filled: FormData, key: bytes) -> Response:
        place, auth = self.request_context.place, self.auth
        registry, who = place.registry, auth.identity
        if not place.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        asked = self._build_command(wanted)

        def guarded(since: int | None) -> Command[MintResult]:
            return GuardedCommand(
                AdvisedCommand(replace(asked, since=since), wanted.where), auth.guard, allow_referrals=True
            )

        keys = place.api.keys(registry)
        with keys.claim(who, key, wanted.digest()) as claim:
            done: Executed | Replayed | None = None
            if isinstance(claim, NewClaim):
                fresh = claim
                outcome = execute_with_wait(
                    guarded, lambda operation: keys.execute(fresh, operation, who, INTERFACE, _encode_result)
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
        result = result_page(self.who, wanted.making, names, policy, place.settings)
        return replace(result, code=int(ResponseCode.SUCCESS), name=str(names[0]), identity=self.who)

    def _build_command(self, wanted: "_MintRequest") -> Generate:
        """The operation that makes what is wanted."""
        registry = self.request_context.place.registry
        values = [Value.text(URL_INDEX, "URL", wanted.url)] if wanted.url else []
        if wanted.creator:
            with registry.snapshot() as snapshot:
                type_ = snapshot.policy(wanted.where.partition("/")[0]).creator_type
            values.append(Value.text(CREATOR_INDEX, type_, wanted.creator))
        return build_command(wanted.making, MintInputs.of(registry), wanted.where, wanted.count, values=values)


@dataclass(frozen=True, slots=True)
class _MintRequest:
    """What somebody wants to have made."""

    making: MintMode
    where: str
    count: int
    url: str
    creator: str

    def digest(self) -> bytes:
        """By what it is told from something else."""
        fields = (self.making, self.where, self.count, self.url, self.creator)
        return hashlib.sha256(msgspec.json.encode(fields)).digest()


def _encode_result(minted: MintResult) -> StoredResponse:
    return StoredResponse(200, msgspec.json.encode([str(handle) for handle in minted.handles]))


def _find_offers(context: Context) -> tuple[Offer, ...]:
    """Namespaces in which somebody may make names."""
    prefixes = (name.partition("/")[2] for name in homed_prefixes(context.snapshot.reading))
    found = (_find_offer(context, prefix) for prefix in islice(prefixes, MAX_SCANNED))
    return tuple(islice((offer for offer in found if offer is not None), MAX_OFFERED))


def _find_offer(context: Context, prefix: str) -> Offer | None:
    if "/" in prefix or fold(prefix) in (PREFIX_OF_PREFIXES, SITE_PREFIX):
        return None
    snapshot: Snapshot = context.snapshot
    handle = Handle.for_lookup(f"{prefix}/x")
    try:
        if handle is None or not snapshot.is_responsible(handle):
            return None
        policy = snapshot.policy(prefix)
        return Offer(prefix, policy.scheme) if context.is_allowed(making(policy, prefix)) else None
    except Refused:
        return None  # of a namespace whose policy cannot be read

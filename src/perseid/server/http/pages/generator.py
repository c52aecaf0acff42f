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
from perseid.ledger.log.requests import Answer
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.access.minting_rights import making
from perseid.registry.commands.minting import Generate, Maker
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Context, Operation
from perseid.registry.idempotency import Done, Fresh, Known, Pending
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import Policy
from perseid.registry.queries.suffixes import HOW_IT_COUNTS, Making, Part, described, explain, order
from perseid.registry.results import Minted, Refused
from perseid.registry.snapshot import SITE_PREFIX, Facts
from perseid.server.http.auth.authentication import Identified, denial, identify
from perseid.server.http.clients import is_foreign
from perseid.server.http.context import DOOR, Asking, HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.resolver.paths import path_to
from perseid.server.http.resolver.problems import Explaining
from perseid.server.http.resolver.redirect import Unsuitable, target_of
from perseid.server.http.responses import FORBIDDEN, NO_STORE, NOT_PRIVATE, failure_of
from perseid.server.http.targets import Malformed, Parameters
from perseid.server.native.decisions import NOT_PRIMARY, Busy, Guarded, patiently
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from .form_tokens import PURPOSE, FormTokens, NotOurs
from .pages import Piece, page, visible

MAX_AT_ONCE: Final = 100
"""Names that the page makes at once: as many as somebody copies by hand."""

MAX_FIELD: Final = 2_048
"""Characters of one field: the longest name, and the longest address that every browser takes. More is refused, for
what is cut means something else."""

TITLE: Final = "Make new names"

_NUMBER: Final = re.compile("[0-9]{1,6}")
_FIELDS: Final = {"where": "prefix", "count": "number of names", "url": "address", "creator": "creator"}
_UNREADABLE: Final = "\ufffd"  # what stands for octets that are no text
_MAKINGS: Final = {making.value: making for making in Making}
_DONE: Final = {
    Making.MINT: "minted: the names lead to the address from now on",
    Making.RESERVE: "reserved: the names are yours, and lead nowhere yet",
    Making.GENERATE: "generated: nobody else is given these names, and no record is kept of whose they are",
}
_DETAILS: Final = {"milliseconds": "Milliseconds", "time": "Made for", "check": "Check character", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class Filled:
    """What somebody has written into the form."""

    where: str = ""
    making: Making | None = Making.MINT
    count: str = "1"
    url: str = ""
    creator: str = ""
    fault: str = ""
    """Why it cannot be taken as it was sent; empty if it can."""

    @classmethod
    def of(cls, form: Parameters) -> Self:
        """The fields of a form that was sent, as far as they can be shown again."""
        texts = {name: (form.first(name) or "").strip() for name in _FIELDS}
        faults = [_fault(name, text) for name, text in texts.items()]
        making = _MAKINGS.get((form.first("making") or "").strip())
        shown = {name: text[:MAX_FIELD] for name, text in texts.items()}
        return cls(making=making, fault=next(filter(None, faults), ""), **shown)

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
class Form:
    """The form."""

    who: str
    offers: Sequence[Offer]
    token: str = field(repr=False)
    filled: Filled
    problem: str
    """What was wrong with the last one; empty if nothing was."""


def _fault(name: str, text: str) -> str:
    """Why a field cannot be taken as it was sent; empty if it can."""
    if len(text) > MAX_FIELD:
        return f"the {_FIELDS[name]} has {len(text):,} characters; {MAX_FIELD:,} are the most here"
    return f"the {_FIELDS[name]} holds something that is no text in UTF-8" if _UNREADABLE in text else ""


def introduction(settings: HttpSettings) -> Response:
    """The page for whoever has not said who they are."""
    return _page(settings, 200, sign_in=True)


def closed_page(reason: str, settings: HttpSettings, status: int) -> Response:
    """The page where nobody can say who they are."""
    return _page(settings, status, problem=reason)


def denied_page(reason: str, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page for somebody who is asked who they are, or is not believed."""
    return _page(settings, status, headers, problem=reason, sign_in=True)


def form_page(shown: Form, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page with the form."""
    return _page(settings, status, headers, problem=shown.problem, who=shown.who, form=shown)


def result_page(who: str, making: Making, names: Sequence[Handle], policy: Policy, settings: HttpSettings) -> Response:
    """The page with the names that were made."""
    shown = [_name(name, making, settings) for name in names]
    parts, details = _explained(names[0], policy)
    return _page(settings, 200, who=who, done=_DONE[making], names=shown, parts=parts, details=details)


def _name(name: Handle, making: Making, settings: HttpSettings) -> Piece:
    text = visible(str(name))
    return Piece(text, path_to(str(name), settings)) if making is Making.MINT else Piece(text)


def _explained(name: Handle, policy: Policy) -> tuple[tuple[Part, ...], list[tuple[str, str]]]:
    """The characters of a PILIN suffix, and what else the scheme tells from a name."""
    told = described(policy, name)
    details = [(_DETAILS.get(key, key), visible(str(value))) for key, value in told.items() if value is not None]
    if "milliseconds" not in told:
        return (), details
    try:
        return explain(name.suffix[:-1] if "check" in told else name.suffix), details
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
    shown["problem"] = _sentence(visible(str(shown["problem"])))
    shown["who"] = visible(str(shown["who"]))
    return page(
        "generator.html",
        settings,
        status,
        (*headers, NO_STORE),
        title=TITLE,
        makings=tuple(Making),
        most=MAX_AT_ONCE,
        how_it_counts=HOW_IT_COUNTS,
        **shown,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if not text or text.endswith((".", "!", "?")) else ".")


MAX_OFFERED: Final = 20
"""Namespaces that the form offers: as many as somebody reads. Others can be typed."""

MAX_LOOKED_AT: Final = 100
"""Namespaces that are looked at for that."""

URL_INDEX: Final = 1
CREATOR_INDEX: Final = 2
"""The indexes of the address of a minted name, and of who created it."""

_TOKEN, _MAKING = "token", "making"
_FOREIGN: Final = "the form was sent by a page of another site; here is ours"
_BUSY: Final = "this form is being carried out; load the page again in a moment"
_OTHER: Final = "this form was sent before with something else in it; here is a new one"
_GONE: Final = "that was done before, and what was answered is not kept any more; look at the history of the namespace"
_NAMES: Final = msgspec.json.Decoder(list[str])


async def answer(asking: Asking, form: Parameters | None) -> Response:
    """The page, or what came of its form."""
    settings, is_get = asking.place.settings, form is None
    if not asking.request.client.private:
        return closed_page(NOT_PRIVATE, settings, 200 if is_get else FORBIDDEN)
    identified = await identify(asking)
    is_anonymous = isinstance(identified.who, Anonymous)
    if identified.problem is not None or (is_anonymous and not is_get):
        denied = denial(asking, identified)
        return denied_page(denied.message, settings, denied.status, denied.headers)
    if is_anonymous:
        return introduction(settings)
    opened = await asking.do(Kind.READ, lambda: _Opened.of(asking, identified))
    if form is None or _MAKING not in form:
        return opened.form(Filled())
    return await opened.carried(form)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The page for somebody who has proved who they are."""

    asking: Asking
    identified: Identified
    offers: tuple[Offer, ...]
    tokens: FormTokens

    @classmethod
    def of(cls, asking: Asking, identified: Identified) -> "_Opened":
        """What is read of the ledger for it."""
        registry = asking.place.registry
        with registry.facts() as facts:
            context = Context(facts, identified.who, DOOR, registry.now())
            return cls(asking, identified, _offers(context), FormTokens(facts.reading.secret(PURPOSE)))

    @property
    def who(self) -> str:
        return str(self.identified.who)

    # The form

    def form(self, filled: Filled, problem: str = "", status: int = 200, headers: HeaderList = ()) -> Response:
        """The form, with what was wrong with the last one."""
        place = self.asking.place
        token = self.tokens.make(self.who, place.time(), place.random)
        shown = Form(self.who, self.offers, token, filled, problem)
        return form_page(shown, place.settings, status, headers)

    async def carried(self, form: Parameters) -> Response:
        """What came of a form that was sent."""
        filled = Filled.of(form)
        try:
            if is_foreign(self.asking):
                raise Malformed(_FOREIGN, FORBIDDEN)
            key = self._key(form)
            wanted = self._wanted(filled)
            return await self.asking.do(Kind.WRITE, lambda: self._made(wanted, filled, key))
        except (Malformed, Refused, Busy, LedgerError) as problem:
            failure = failure_of(problem, self.asking)
            return self.form(filled, failure.message, failure.status, failure.headers)

    def _key(self, form: Parameters) -> bytes:
        try:
            return self.tokens.read(form.first(_TOKEN) or "", self.who, self.asking.place.time())
        except NotOurs as problem:
            raise Malformed(str(problem), FORBIDDEN) from problem

    def _wanted(self, filled: Filled) -> "_Wanted":
        """What the form asks for; raises `Malformed` for what the page can tell by itself."""
        if filled.fault:
            raise Malformed(filled.fault)
        if not filled.where:
            raise Malformed("write under which prefix the names shall be")
        count = filled.number
        if count is None or not 1 <= count <= MAX_AT_ONCE:
            raise Malformed(f"the number of names should be 1 to {MAX_AT_ONCE}; for more there is the API")
        if filled.making is None:
            raise Malformed("choose what shall be made")
        url = ""
        if filled.making is Making.MINT:
            try:
                url = target_of(filled.url, self.asking.place.settings.schemes).text
            except Unsuitable as problem:
                reason = f"the address cannot be what the names lead to, because {problem}"
                raise Malformed(f"{reason}; write another one, or reserve the names") from problem
        creator = filled.creator if filled.making is Making.MINT else ""
        return _Wanted(filled.making, filled.where, count, url, creator)

    # Carrying out: in a thread that may write

    def _made(self, wanted: "_Wanted", filled: Filled, key: bytes) -> Response:
        place, identified = self.asking.place, self.identified
        registry, who = place.registry, identified.who
        if not place.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        asked = self._order(wanted)

        def guarded(since: int | None) -> Operation[Minted]:
            return Guarded(Explaining(replace(asked, since=since), wanted.where), identified.guard, refers=True)

        keys = place.api.keys(registry)
        with keys.claim(who, key, wanted.digest()) as claim:
            done: Done | Known | None = None
            if isinstance(claim, Fresh):
                fresh = claim
                outcome = patiently(guarded, lambda operation: keys.carry_out(fresh, operation, who, DOOR, _told))
                done = outcome if isinstance(outcome, Done | Known) else None
            elif isinstance(claim, Known):
                done = claim
            elif isinstance(claim, Pending):
                return self.form(filled, _BUSY, 409)
        if done is None:
            return self.form(filled, _OTHER, 422)
        body = done.answer.body if isinstance(done, Done) else done.body
        if body is None:
            return self.form(filled, _GONE, 410)
        names = tuple([Handle.keepable(name) for name in _NAMES.decode(body)])
        with registry.facts() as facts:
            policy = facts.policy(names[0].prefix)
        result = result_page(self.who, wanted.making, names, policy, place.settings)
        return replace(result, code=int(ResponseCode.SUCCESS), name=str(names[0]), who=self.who)

    def _order(self, wanted: "_Wanted") -> Generate:
        """The operation that makes what is wanted."""
        registry = self.asking.place.registry
        values = [Value.text(URL_INDEX, "URL", wanted.url)] if wanted.url else []
        if wanted.creator:
            with registry.facts() as facts:
                type_ = facts.policy(wanted.where.partition("/")[0]).creator_type
            values.append(Value.text(CREATOR_INDEX, type_, wanted.creator))
        return order(wanted.making, Maker.of(registry), wanted.where, wanted.count, values=values)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What somebody wants to have made."""

    making: Making
    where: str
    count: int
    url: str
    creator: str

    def digest(self) -> bytes:
        """By what it is told from something else."""
        fields = (self.making, self.where, self.count, self.url, self.creator)
        return hashlib.sha256(msgspec.json.encode(fields)).digest()


def _told(minted: Minted) -> Answer:
    return Answer(200, msgspec.json.encode([str(handle) for handle in minted.handles]))


def _offers(context: Context) -> tuple[Offer, ...]:
    """Namespaces in which somebody may make names."""
    prefixes = (name.partition("/")[2] for name in homed_prefixes(context.facts.reading))
    found = (_offer(context, prefix) for prefix in islice(prefixes, MAX_LOOKED_AT))
    return tuple(islice((offer for offer in found if offer is not None), MAX_OFFERED))


def _offer(context: Context, prefix: str) -> Offer | None:
    if "/" in prefix or fold(prefix) in (PREFIX_OF_PREFIXES, SITE_PREFIX):
        return None
    facts: Facts = context.facts
    handle = Handle.for_lookup(f"{prefix}/x")
    try:
        if handle is None or not facts.is_responsible(handle):
            return None
        policy = facts.policy(prefix)
        return Offer(prefix, policy.scheme) if context.may(making(policy, prefix)) else None
    except Refused:
        return None  # of a namespace whose policy cannot be read

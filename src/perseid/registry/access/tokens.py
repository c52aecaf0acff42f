"""Bearer tokens: made, revoked, listed, and recognised when somebody shows one.

A token acts as whoever makes it, within a scope (`scopes`) and for a time. It never has a right that its maker has not,
at the moment of its use: `authorise` asks for both. What is stored of it, and when it counts, stands in
`token_records`; the text that its holder has in `token_text`.

Server administrators and operators of this machine make any token; administrators of prefixes (MODIFY_ADMIN on the
prefix handle, as for policies) those whose scope lies within their prefixes. The same may see and revoke them, and so
may whoever made one. A token makes no tokens; it can revoke itself, so that whoever finds one can end it.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import TOKENS, record_key, token_name
from perseid.ledger.store import token_uses
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.admin import AdminPermission
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.namespaces import checked_prefix
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Anonymous, Identity, KeyHolder, LocalOperator, Tokened
from perseid.registry.queries.history import DEFAULT_PAGE, may, page_size
from perseid.registry.queries.listing import MAX_SCANNED
from perseid.registry.queries.paging import Room
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts
from perseid.wire.codes import ResponseCode

from .authorization import Spent
from .permissions import Demand, Membership, Need, Role, shown
from .scopes import BELOW, Scope
from .token_records import InvalidToken, Secret, Token, counting, digest_in, is_id, key_mark, maker_stands, record_of

DAY: Final = 86_400

DEFAULT_DAYS: Final = 90
"""For how long a token counts where nothing is said: a quarter, after which somebody looks whether it is needed."""

MAX_DAYS: Final = 400
"""For how long at most: a year, and a month to have noticed. A token that never ends is found by somebody one day."""

MAX_LABEL: Final = 200
"""Characters of the longest label: a line for people."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A token, as those see it who may."""

    token: Token
    seq: int
    """The entry that made it."""
    revoked: int | None
    """When it was revoked, in seconds since 1970; None if it was not."""
    stands: bool
    """Whether the key with which it was made is still there."""
    used: int | None
    """The last day on which it was used, in seconds since 1970; None if that never was."""

    def counts(self, now: int) -> bool:
        """Whether it counts at a moment."""
        return self.revoked is None and self.stands and now < self.token.expires

    def state(self, now: int) -> str:
        """What has become of it, in a word."""
        if self.revoked is not None:
            return "revoked"
        if now >= self.token.expires:
            return "expired"
        return "counts" if self.stands else "without its key"

    @property
    def octets(self) -> int:
        """What it takes on a page."""
        token = self.token
        return sum(map(len, token.scope.namespaces or ())) + len(token.label) + len(token.maker)


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Make a token. Its secret is made by whoever asks (`Secret.new`), and shown by them, once."""

    secret: Secret
    scope: Scope
    label: str = ""
    seconds: int = DEFAULT_DAYS * DAY
    """How long it counts."""

    def decide(self, context: Context) -> Plan[Token]:
        """The right, the maker, the place, the label and the time."""
        context.demand(_demand("make a token", self.scope))
        maker, key = self._maker(context)
        self._check(context)
        if record_of(context.facts, self.secret.id) is not None:
            reason = f"there is a token {self.secret.id} already"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "make another secret")
        token = Token(self.secret.id, self.label, maker, key, self.scope, context.now, context.now + self.seconds)
        values = token.values(self.secret.digest(), context.now)
        draft = _draft(context, Action.CREATE, State.NORMAL, self.secret.id, values)
        return Plan(lambda _: token, (draft,), reason=context.reasons[-1])

    def _maker(self, context: Context) -> tuple[str, bytes]:
        """Whom the token acts as, and the mark of their key."""
        who = context.who
        if isinstance(who, LocalOperator):
            return str(who), b""
        if not isinstance(who, KeyHolder):
            raise Refused(ResponseCode.INVALID_ADMIN, "only somebody with a key of their own makes tokens")
        # As they are meant now, and no more: an identity without an index is not meant by that of its key.
        reference = ValueRef(who.index, who.reference.handle)
        key = key_mark(context.facts, reference)
        if key is None:
            reason = f"{shown(str(reference))} is not held here, so a token would not end with it"
            advice = "make the token as somebody whose key is held here"
            raise Refused(ResponseCode.INVALID_ADMIN, reason, advice)
        return str(reference), key

    def _check(self, context: Context) -> None:
        for place in self.scope.namespaces or ():
            prefix = place.removesuffix(BELOW)
            checked_prefix(prefix)
            if prefix == place and not context.facts.is_homed(f"{PREFIX_OF_PREFIXES}/{prefix}"):
                reason = f"{shown(prefix)} is not homed here, so the token would be good for nothing there"
                raise Refused(ResponseCode.SERVER_NOT_RESP, reason, "look at: perseid namespace list")
        if not 0 < self.seconds <= MAX_DAYS * DAY:
            reason = f"a token counts for some time, and for {MAX_DAYS} days at most"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "say how long, or leave it out")
        if len(self.label) > MAX_LABEL or not self.label.isprintable():
            reason = f"the label of a token is one line of at most {MAX_LABEL} characters that can be printed"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it anew")


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """End a token, at once and for good. Nothing happens if it was revoked before."""

    token: str

    def decide(self, context: Context) -> Plan[Token]:
        """Those who might have made it, whoever did, and whoever shows it: all others learn not even that it exists."""
        require_identity(context, "revoke a token")
        token, entry = _known(context.facts, self.token)
        if _is_own(context.who, token):
            context.reasons.append(f"{shown(str(context.who))} may revoke the token {token.id}: it is their own")
        else:
            try:
                context.demand(_demand(f"revoke the token {token.id}", token.scope))
            except Refused:
                raise _unknown(self.token) from None
        if entry.state is not State.NORMAL:
            return Plan(lambda _: token, reason=context.reasons[-1])
        draft = _draft(context, Action.DELETE, State.ABSENT, token.id)
        return Plan(lambda _: token, (draft,), reason=context.reasons[-1])


class Tokens:
    """Recognises those who show tokens. For any number of threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._noted: dict[str, int] = {}  # the last day that was written down, by token
        self._lock = threading.Lock()

    def authenticate(self, text: str) -> Tokened:
        """Who shows a token. Raises `Refused`, which tells a stranger nothing but that they are one.

        Operations of the registry look again whether the token counts, and rest on it.
        """
        now = self._registry.now()
        with self._registry.facts() as facts:
            found = authenticate(facts, text, now)
        self._note(found.token, now // DAY)
        return found

    def _note(self, token: str, day: int) -> None:
        """Write down that a token was used today, once a day. Who cannot write now does it another time."""
        with self._lock:
            if self._noted.get(token, -1) >= day:
                return
            if any(noted < day for noted in self._noted.values()):
                self._noted.clear()  # a new day: those of yesterday would be kept for ever
            self._noted[token] = day
        try:
            token_uses.note(self._registry.ledger.log, token, day)
        except LedgerError:
            with self._lock:
                self._noted.pop(token, None)


def authenticate(facts: Facts, text: str, now: int) -> Tokened:
    """Who shows a token, by one state of the ledger. Raises `Refused`."""
    try:
        secret = Secret.parse(text)
    except InvalidToken as problem:
        advice = "give the whole token, as it was shown when it was made"
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, str(problem), advice) from None
    entry = record_of(facts, secret.id)
    made = None if entry is None else _making(facts, entry)
    # Whether it was revoked, or has ended, is told to those only who have it.
    if made is None or not secret.matches(digest_in(made)):
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, "there is no such token here")
    token, _ = counting(facts, secret.id, now)
    return token.identity()


def listed(
    registry: Registry, who: Identity, after: str = "", limit: int = DEFAULT_PAGE
) -> tuple[tuple[Listed, ...], str | None]:
    """The tokens that somebody may see, by ascending id behind one; and behind which the next page begins, if any does.

    Nobody in particular sees none, and others those that they may revoke. Revoked ones are shown as well. A page also
    ends where no more can be decided about rights at once: it may have fewer than `limit`, even none, and not be last.
    """
    room = Room(page_size(limit))
    days = token_uses.last_days(registry.ledger.log)
    first = record_key(token_name(after)) + b"\0" if after else record_key(TOKENS)
    end = record_key(TOKENS)[:-1] + b"0"  # the character behind the slash
    found: list[Listed] = []
    last: str | None = None
    with registry.facts() as facts:
        sight = _Sight(facts, who)
        entries, more = facts.reading.some_names(first, end, MAX_SCANNED)
        for entry in entries:
            if room.is_full:
                return tuple(found), last
            item = _listed(facts, entry, days)
            sees = item is not None and sight.sees(item.token)
            if sees is None:
                return tuple(found), last
            if item is not None and sees:
                if not room.take(item.octets):
                    return tuple(found), last
                found.append(item)
            last = entry.handle.rpartition("/")[2].lower()
    return tuple(found), last if more else None


def found(registry: Registry, who: Identity, token: str) -> Listed:
    """One token, if there is one that somebody may see. Raises `Refused`."""
    days = token_uses.last_days(registry.ledger.log)
    with registry.facts() as facts:
        known, entry = _known(facts, token)
        item = _listed(facts, entry, days)
        if item is None or not _sees(facts, who, known):
            raise _unknown(token)
    return item


class _Sight:
    """Which tokens somebody sees, of many that are looked at together."""

    def __init__(self, facts: Facts, who: Identity) -> None:
        self._facts = facts
        self._who = who
        self._known: dict[Scope, bool] = {}  # many tokens have the same scope

    def sees(self, token: Token) -> bool | None:
        """Whether they see a token; None if that cannot be decided any more, and has to be asked anew.

        How much one request may search for rights is limited. A search that began with all of it and came to its end is
        a refusal as anywhere; one that had only what others left over tells nothing.
        """
        if _is_own(self._who, token):
            return True
        if token.scope not in self._known:
            spent = self._facts.spent
            begins = spent == Spent()
            sees = _sees(self._facts, self._who, token)
            if not sees and not begins and spent.is_used_up:
                return None
            self._known[token.scope] = sees
        return self._known[token.scope]


def _listed(facts: Facts, entry: Entry, days: dict[str, int]) -> Listed | None:
    made = _making(facts, entry)
    token = None if made is None else Token.of_entry(made)
    if made is None or token is None:
        return None
    revoked = None if entry.state is State.NORMAL else entry.at // 1_000_000
    day = days.get(token.id)
    return Listed(token, made.seq, revoked, maker_stands(facts, token), None if day is None else day * DAY)


def _making(facts: Facts, entry: Entry) -> Entry | None:
    """The entry that made a token: this one, or the one before its revocation."""
    if entry.state is State.NORMAL:
        return entry
    previous = facts.reading.previous(entry.seq)
    return facts.reading.entry(previous) if previous else None


def _known(facts: Facts, token: str) -> tuple[Token, Entry]:
    """A token, revoked or not, and its latest entry."""
    entry = record_of(facts, token) if is_id(token) else None
    made = None if entry is None else _making(facts, entry)
    known = None if made is None else Token.of_entry(made)
    if entry is None or known is None:
        raise _unknown(token)
    return known, entry


def _unknown(token: str) -> Refused:
    return Refused(ResponseCode.HANDLE_NOT_FOUND, f"there is no token {shown(token)}", "look at: perseid token list")


def _sees(facts: Facts, who: Identity, token: Token) -> bool:
    return _is_own(who, token) or may(facts, who, _demand("see a token", token.scope))


def _is_own(who: Identity, token: Token) -> bool:
    """Whether somebody made a token, or shows it."""
    if isinstance(who, Tokened):
        return who.token == token.id
    if isinstance(who, Anonymous):
        return False
    if isinstance(who, KeyHolder):
        return str(ValueRef(who.index, who.reference.handle)) == token.maker
    return str(who) == token.maker


def _demand(action: str, scope: Scope) -> Demand:
    """What it takes to have a say about tokens of a scope. No token has one."""
    servers = (Membership((Role.SERVER,)),)
    if scope.namespaces is None:
        return Demand(action, (servers,))
    prefixes = sorted({place.removesuffix(BELOW) for place in scope.namespaces})
    needs: Sequence[Need] = [
        Need(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True)
        for prefix in prefixes
    ]
    return Demand(action, (servers, tuple(needs)))


def _draft(context: Context, action: Action, state: State, token: str, values: tuple[Value, ...] = ()) -> Draft:
    return Draft(action, state, token_name(token), context.door, str(context.who), context.note, values)

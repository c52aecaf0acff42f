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
from perseid.registry.commands.namespaces import check_prefix
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, TokenIdentity
from perseid.registry.queries.history import DEFAULT_PAGE, is_allowed, page_size
from perseid.registry.queries.listing import MAX_SCANNED
from perseid.registry.queries.paging import PageBudget
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .authorization import SearchUsage
from .permissions import HasPermissions, HasRole, Requirement, Role, display_name
from .scopes import DERIVED_SUFFIX, ScopeSet
from .token_records import (
    InvalidToken,
    Secret,
    Token,
    find_token_entry,
    is_id,
    issuer_key_matches,
    key_commitment,
    require_active_token,
    stored_digest,
)

DAY: Final = 86_400

DEFAULT_DAYS: Final = 90
"""For how long a token counts where nothing is said: a quarter, after which somebody looks whether it is needed."""

MAX_DAYS: Final = 400
"""For how long at most: a year, and a month to have noticed. A token that never ends is found by somebody one day."""

MAX_LABEL: Final = 200
"""Characters of the longest label: a line for people."""


@dataclass(frozen=True, slots=True)
class TokenStatus:
    """A token, as those see it who may."""

    token: Token
    seq: int
    """The entry that made it."""
    revoked: int | None
    """When it was revoked, in seconds since 1970; None if it was not."""
    key_matches: bool
    """Whether the key with which it was made is still there."""
    used: int | None
    """The last day on which it was used, in seconds since 1970; None if that never was."""

    def is_active(self, now: int) -> bool:
        """Whether it counts at a moment."""
        return self.revoked is None and self.key_matches and now < self.token.expires

    def state(self, now: int) -> str:
        """What has become of it, in a word."""
        if self.revoked is not None:
            return "revoked"
        if now >= self.token.expires:
            return "expired"
        return "counts" if self.key_matches else "without its key"

    @property
    def size(self) -> int:
        """What it takes on a page."""
        token = self.token
        return sum(map(len, token.scope.namespaces or ())) + len(token.label) + len(token.maker)


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Make a token. Its secret is made by whoever asks (`Secret.new`), and shown by them, once."""

    secret: Secret
    scope: ScopeSet
    label: str = ""
    seconds: int = DEFAULT_DAYS * DAY
    """How long it counts."""

    def decide(self, context: Context) -> Plan[Token]:
        """The right, the maker, the place, the label and the time."""
        context.require(_requirement("make a token", self.scope))
        maker, key = self._maker(context)
        self._check(context)
        if find_token_entry(context.snapshot, self.secret.id) is not None:
            reason = f"there is a token {self.secret.id} already"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "make another secret")
        token = Token(self.secret.id, self.label, maker, key, self.scope, context.now, context.now + self.seconds)
        values = token.values(self.secret.digest(), context.now)
        draft = _draft(context, Action.CREATE, State.NORMAL, self.secret.id, values)
        return Plan(lambda _: token, (draft,), reason=context.reasons[-1])

    def _maker(self, context: Context) -> tuple[str, bytes]:
        """Whom the token acts as, and the mark of their key."""
        identity = context.identity
        if isinstance(identity, LocalIdentity):
            return str(identity), b""
        if not isinstance(identity, KeyIdentity):
            raise Refused(ResponseCode.INVALID_ADMIN, "only somebody with a key of their own makes tokens")
        # As they are meant now, and no more: an identity without an index is not meant by that of its key.
        reference = ValueRef(identity.index, identity.reference.handle)
        key = key_commitment(context.snapshot, reference)
        if key is None:
            reason = f"{display_name(str(reference))} is not held here, so a token would not end with it"
            advice = "make the token as somebody whose key is held here"
            raise Refused(ResponseCode.INVALID_ADMIN, reason, advice)
        return str(reference), key

    def _check(self, context: Context) -> None:
        for place in self.scope.namespaces or ():
            prefix = place.removesuffix(DERIVED_SUFFIX)
            check_prefix(prefix)
            if prefix == place and not context.snapshot.is_homed(f"{PREFIX_OF_PREFIXES}/{prefix}"):
                reason = f"{display_name(prefix)} is not homed here, so the token would be good for nothing there"
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
        token, entry = _find_token(context.snapshot, self.token)
        if _is_own(context.identity, token):
            context.reasons.append(
                f"{display_name(str(context.identity))} may revoke the token {token.id}: it is their own"
            )
        else:
            try:
                context.require(_requirement(f"revoke the token {token.id}", token.scope))
            except Refused:
                raise _token_not_found(self.token) from None
        if entry.state is not State.NORMAL:
            return Plan(lambda _: token, reason=context.reasons[-1])
        draft = _draft(context, Action.DELETE, State.ABSENT, token.id)
        return Plan(lambda _: token, (draft,), reason=context.reasons[-1])


class TokenAuthenticator:
    """Recognises those who show tokens. For any number of threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._noted: dict[str, int] = {}  # the last day that was written down, by token
        self._lock = threading.Lock()

    def authenticate(self, text: str) -> TokenIdentity:
        """Who shows a token. Raises `Refused`, which tells a stranger nothing but that they are one.

        Operations of the registry look again whether the token counts, and rest on it.
        """
        now = self._registry.now()
        with self._registry.snapshot() as snapshot:
            get_token = authenticate(snapshot, text, now)
        self._note(get_token.token, now // DAY)
        return get_token

    def _note(self, token: str, day: int) -> None:
        """Write down that a token was used today, once a day. Who cannot write now does it another time."""
        with self._lock:
            if self._noted.get(token, -1) >= day:
                return
            if any(noted < day for noted in self._noted.values()):
                self._noted.clear()  # a new day: those of yesterday would be kept for ever
            self._noted[token] = day
        try:
            token_uses.record_use(self._registry.ledger.log, token, day)
        except LedgerError:
            with self._lock:
                self._noted.pop(token, None)


def authenticate(snapshot: Snapshot, text: str, now: int) -> TokenIdentity:
    """Who shows a token, by one state of the ledger. Raises `Refused`."""
    try:
        secret = Secret.parse(text)
    except InvalidToken as problem:
        advice = "give the whole token, as it was shown when it was made"
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, str(problem), advice) from None
    entry = find_token_entry(snapshot, secret.id)
    made = None if entry is None else _creation_entry(snapshot, entry)
    # Whether it was revoked, or has ended, is told to those only who have it.
    if made is None or not secret.matches(stored_digest(made)):
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, "there is no such token here")
    token, _ = require_active_token(snapshot, secret.id, now)
    return token.identity()


def list_tokens(
    registry: Registry, identity: Identity, after: str = "", limit: int = DEFAULT_PAGE
) -> tuple[tuple[TokenStatus, ...], str | None]:
    """The tokens that somebody may see, by ascending id behind one; and behind which the next page begins, if any does.

    Nobody in particular sees none, and others those that they may revoke. Revoked ones are shown as well. A page also
    ends where no more can be decided about rights at once: it may have fewer than `limit`, even none, and not be last.
    """
    room = PageBudget(page_size(limit))
    days = token_uses.last_used_days(registry.ledger.log)
    first = record_key(token_name(after)) + b"\0" if after else record_key(TOKENS)
    end = record_key(TOKENS)[:-1] + b"0"  # the character behind the slash
    get_token: list[TokenStatus] = []
    last: str | None = None
    with registry.snapshot() as snapshot:
        visibility = _TokenVisibility(snapshot, identity)
        entries, more = snapshot.reading.names_page(first, end, MAX_SCANNED)
        for entry in entries:
            if room.is_full:
                return tuple(get_token), last
            item = _token_status(snapshot, entry, days)
            sees = item is not None and visibility.sees(item.token)
            if sees is None:
                return tuple(get_token), last
            if item is not None and sees:
                if not room.take(item.size):
                    return tuple(get_token), last
                get_token.append(item)
            last = entry.handle.rpartition("/")[2].lower()
    return tuple(get_token), last if more else None


def get_token(registry: Registry, identity: Identity, token: str) -> TokenStatus:
    """One token, if there is one that somebody may see. Raises `Refused`."""
    days = token_uses.last_used_days(registry.ledger.log)
    with registry.snapshot() as snapshot:
        known, entry = _find_token(snapshot, token)
        item = _token_status(snapshot, entry, days)
        if item is None or not _can_see(snapshot, identity, known):
            raise _token_not_found(token)
    return item


class _TokenVisibility:
    """Which tokens somebody sees, of many that are looked at together."""

    def __init__(self, snapshot: Snapshot, identity: Identity) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._known: dict[ScopeSet, bool] = {}  # many tokens have the same scope

    def sees(self, token: Token) -> bool | None:
        """Whether they see a token; None if that cannot be decided any more, and has to be asked anew.

        How much one request may search for rights is limited. A search that began with all of it and came to its end is
        a refusal as anywhere; one that had only what others left over tells nothing.
        """
        if _is_own(self._identity, token):
            return True
        if token.scope not in self._known:
            usage = self._snapshot.usage
            begins = usage == SearchUsage()
            sees = _can_see(self._snapshot, self._identity, token)
            if not sees and not begins and usage.is_exhausted:
                return None
            self._known[token.scope] = sees
        return self._known[token.scope]


def _token_status(snapshot: Snapshot, entry: Entry, days: dict[str, int]) -> TokenStatus | None:
    made = _creation_entry(snapshot, entry)
    token = None if made is None else Token.from_entry(made)
    if made is None or token is None:
        return None
    revoked = None if entry.state is State.NORMAL else entry.at // 1_000_000
    day = days.get(token.id)
    return TokenStatus(
        token, made.seq, revoked, issuer_key_matches(snapshot, token), None if day is None else day * DAY
    )


def _creation_entry(snapshot: Snapshot, entry: Entry) -> Entry | None:
    """The entry that made a token: this one, or the one before its revocation."""
    if entry.state is State.NORMAL:
        return entry
    previous = snapshot.reading.previous(entry.seq)
    return snapshot.reading.entry(previous) if previous else None


def _find_token(snapshot: Snapshot, token: str) -> tuple[Token, Entry]:
    """A token, revoked or not, and its latest entry."""
    entry = find_token_entry(snapshot, token) if is_id(token) else None
    made = None if entry is None else _creation_entry(snapshot, entry)
    known = None if made is None else Token.from_entry(made)
    if entry is None or known is None:
        raise _token_not_found(token)
    return known, entry


def _token_not_found(token: str) -> Refused:
    return Refused(
        ResponseCode.HANDLE_NOT_FOUND, f"there is no token {display_name(token)}", "look at: perseid token list"
    )


def _can_see(snapshot: Snapshot, identity: Identity, token: Token) -> bool:
    return _is_own(identity, token) or is_allowed(snapshot, identity, _requirement("see a token", token.scope))


def _is_own(identity: Identity, token: Token) -> bool:
    """Whether somebody made a token, or shows it."""
    if isinstance(identity, TokenIdentity):
        return identity.token == token.id
    if isinstance(identity, Anonymous):
        return False
    if isinstance(identity, KeyIdentity):
        return str(ValueRef(identity.index, identity.reference.handle)) == token.maker
    return str(identity) == token.maker


def _requirement(action: str, scope: ScopeSet) -> Requirement:
    """What it takes to have a say about tokens of a scope. No token has one."""
    servers = (HasRole((Role.SERVER,)),)
    if scope.namespaces is None:
        return Requirement(action, (servers,))
    prefixes = sorted({place.removesuffix(DERIVED_SUFFIX) for place in scope.namespaces})
    needs: Sequence[HasPermissions] = [
        HasPermissions(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True)
        for prefix in prefixes
    ]
    return Requirement(action, (servers, tuple(needs)))


def _draft(context: Context, action: Action, state: State, token: str, values: tuple[Value, ...] = ()) -> Draft:
    return Draft(action, state, token_name(token), context.interface, str(context.identity), context.note, values)

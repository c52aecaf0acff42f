"""Bearer tokens: create, revoke, list and authenticate.

A token acts as its issuer, within a scope (`ScopeSet`) and for a limited time. It never has a permission that its
issuer lacks when it is used: `authorize` checks both. `token_records` has the stored form and the text of a token.

Server administrators and local users can create any token; administrators of prefixes (MODIFY_ADMIN on the prefix
handle, as for policies) those whose scope is within their prefixes. The same users, and the issuer, can see and revoke
it. A token cannot create tokens; it can revoke itself, so that anyone who finds one can end it.
"""

import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from perseid.ledger.errors import LedgerError, TooBusy
from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import TOKENS, key_range, record_key, token_name
from perseid.ledger.log.requests import Failed, Outcome
from perseid.ledger.store import idempotency
from perseid.names.errors import quote_text
from perseid.names.handle import PREFIX_OF_PREFIXES, fold
from perseid.records.admin import AdminPermission
from perseid.records.record import Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import check_prefix
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Deferrable, Plan
from perseid.registry.identity import (
    Anonymous,
    Identity,
    KeyIdentity,
    LocalIdentity,
    TokenIdentity,
    effective_identity,
)
from perseid.registry.queries.history import is_allowed
from perseid.registry.queries.listing import MAX_SCANNED
from perseid.registry.queries.paging import DEFAULT_PAGE, PageBudget, page_size
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, StateConflict
from perseid.registry.snapshot import Snapshot
from perseid.schema.namespaces import DEFAULT_DAYS, MAX_DAYS, MAX_LABEL
from perseid.wire.codes import ResponseCode

from .authorization import SearchUsage
from .permissions import DERIVED_SUFFIX, HasPermissions, HasRole, Requirement, Role, ScopeSet, display_name
from .token_records import (
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

_LIFETIME: Final = re.compile("([0-9]{1,4})d")


class InvalidLifetime(ValueError):
    """A text that is not the lifetime of a token."""


def parse_lifetime(text: str) -> int:
    """Parse a number of days, as in `90d`, to seconds. Raises `InvalidLifetime`."""
    match = _LIFETIME.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= MAX_DAYS:
        raise InvalidLifetime(f"{quote_text(text)} is not a lifetime from 1d to {MAX_DAYS}d")
    return int(match[1]) * DAY


@dataclass(frozen=True, slots=True)
class TokenStatus:
    """A token and its state."""

    token: Token
    seq: int
    """The entry that created it."""
    revoked: int | None
    """When it was revoked, in seconds since 1970; None if it was not."""
    key_matches: bool
    """Whether the key of its issuer is unchanged."""
    used: int | None
    """The last day on which it was used, in seconds since 1970; None if it was never used."""

    def is_active(self, now: int) -> bool:
        """Whether it is active at a time."""
        return self.revoked is None and self.key_matches and now < self.token.expires

    def state(self, now: int) -> str:
        """`active`, `expired`, `revoked` or `key_changed`."""
        if self.revoked is not None:
            return "revoked"
        if now >= self.token.expires:
            return "expired"
        return "active" if self.key_matches else "key_changed"

    @property
    def size(self) -> int:
        """Its size in the budget of a page."""
        token = self.token
        return sum(map(len, token.scope.namespaces or ())) + len(token.label) + len(token.issuer)


@dataclass(frozen=True, slots=True)
class CreateToken(Deferrable):
    """Create a token. The caller generates its secret (`Secret.new`) and shows it once."""

    secret: Secret
    scope: ScopeSet
    label: str = ""
    seconds: int = DEFAULT_DAYS * DAY
    """Its lifetime."""

    def decide(self, context: Context) -> Plan[Token]:
        """Check permission, issuer, namespaces, label and lifetime."""
        context.require(_requirement("create a token", self.scope))
        issuer, key = self._issuer(context)
        self._check(context)
        if find_token_entry(context.snapshot, self.secret.id) is not None:
            reason = f"Token {self.secret.id} already exists"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.NEW_SECRET())
        token = Token(self.secret.id, self.label, issuer, key, self.scope, context.now, context.now + self.seconds)
        values = token.values(self.secret.digest(), context.now)
        draft = _draft(context, Action.CREATE, State.NORMAL, self.secret.id, values)
        return Plan(lambda _: token, (draft,), reason=context.reasons[-1])

    def _issuer(self, context: Context) -> tuple[str, bytes]:
        """The issuer, and the commitment to their key."""
        identity = context.identity
        if isinstance(identity, LocalIdentity):
            return str(identity), b""
        if not isinstance(identity, KeyIdentity):
            raise Refused(
                ResponseCode.INVALID_ADMIN,
                "Only a caller with a key can create tokens",
                AdviceKind.AUTHENTICATE_WITH_KEY(),
            )
        # An identity without an index is not matched by references to the index of its key.
        reference = ValueRef(identity.index, identity.reference.handle)
        key = key_commitment(context.snapshot, reference)
        if key is None:
            reason = f"The key {display_name(str(reference))} is not stored here, so the token could not end with it"
            raise Refused(ResponseCode.INVALID_ADMIN, reason, AdviceKind.CREATE_TOKEN_WITH_KEY())
        return str(reference), key

    def _check(self, context: Context) -> None:
        for namespace in self.scope.namespaces or ():
            prefix = namespace.removesuffix(DERIVED_SUFFIX)
            check_prefix(prefix)
            if prefix == namespace and not context.snapshot.is_homed(f"{PREFIX_OF_PREFIXES}/{prefix}"):
                reason = f"This server does not host prefix {display_name(prefix)}"
                raise Refused(ResponseCode.SERVER_NOT_RESP, reason, AdviceKind.LIST_NAMESPACES())
        if not 0 < self.seconds <= MAX_DAYS * DAY:
            reason = f"The lifetime of a token must be positive, and at most {MAX_DAYS} days"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.OMIT_LIFETIME(days=DEFAULT_DAYS))
        if len(self.label) > MAX_LABEL or not self.label.isprintable():
            reason = f"The label of a token must be one printable line of at most {MAX_LABEL} characters"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.CHANGE_LABEL())


@dataclass(frozen=True, slots=True)
class RevokeToken(Deferrable):
    """Revoke a token, at once and permanently. Nothing happens if it was revoked before."""

    token: str

    def decide(self, context: Context) -> Plan[Token]:
        """Allow users who could have created it, its issuer, and the token itself; others see "not found"."""
        require_identity(context, "revoke a token")
        token, entry = _find_token(context.snapshot, self.token)
        if _is_own(context.identity, token):
            context.reasons.append(
                f"{display_name(str(context.identity))} can revoke the token {token.id}: it is their own"
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


MAX_REVOKED: Final = 1_000
"""Tokens that one commit revokes. Users have a few; a program that creates thousands must not stop the writer."""

MAX_LATER: Final = 10_000
"""Entries after a search for tokens that are looked through in the commit: a tenth of a second."""


@dataclass(frozen=True, slots=True)
class FoundTokens:
    """The active tokens of a user, found before the commit that revokes them."""

    ids: tuple[str, ...] = ()
    """Those to revoke."""
    others: int = 0
    """How many more end by themselves with the keys of the user."""
    seq: int = 0
    """The last entry of the ledger that was searched."""


def find_tokens_of(context: Context, handle: str) -> FoundTokens:
    """Find the active tokens whose issuer is a key of this handle: all tokens are read, so not inside a commit.

    Those that depend on no single key come first; if they are too many to revoke, this is refused.
    """
    snapshot, found = context.snapshot, dict[bool, list[str]]({False: [], True: []})
    first, end = key_range(TOKENS)
    seq, more = snapshot.reader.size, True
    while more:
        entries, more = snapshot.reader.names_page(first, end, MAX_SCANNED)
        for entry in entries:
            if (token := _find_active(context, entry, handle)) is not None:
                found[bool(token.key)].append(token.id)
            first = entry.key + b"\0"
        more = more and bool(entries)
    if len(found[False]) > MAX_REVOKED:
        reason = f"{display_name(handle)} has more than {MAX_REVOKED:,} tokens that were created without an index"
        raise StateConflict(reason, AdviceKind.LIST_TOKENS())
    ids = [*found[False], *found[True]]
    return FoundTokens(tuple(ids[:MAX_REVOKED]), max(0, len(ids) - MAX_REVOKED), seq)


def revoke_tokens_of(context: Context, handle: str, found: FoundTokens) -> tuple[Draft, ...]:
    """The entries that revoke tokens of a user: those that were found, and those created since.

    Call it inside the commit, where no others can be created; the caller must have permission to remove the keys.
    """
    reader = context.snapshot.reader
    if reader.size - found.seq > MAX_LATER:
        raise TooBusy("Many changes were made meanwhile; nothing was written. Retry shortly")
    first, end = key_range(TOKENS)
    later = [entry.key for entry in reader.log(found.seq) if first <= entry.key < end]
    keys = dict.fromkeys([*[record_key(token_name(each)) for each in found.ids], *later])
    entries = filter(None, [reader.record(key) for key in keys])
    tokens = filter(None, [_find_active(context, entry, handle) for entry in entries])
    return tuple([_draft(context, Action.DELETE, State.ABSENT, token.id) for token in tokens])


def _find_active(context: Context, entry: Entry, handle: str) -> Token | None:
    """The token of an entry, if it is neither revoked nor expired and its issuer is a key of this handle."""
    token = Token.from_entry(entry) if entry.state is State.NORMAL else None
    if token is None or token.expires <= context.now:
        return None
    issuer = effective_identity(token.identity())
    is_own = isinstance(issuer, KeyIdentity) and context.snapshot.is_same_record(issuer.reference.handle, handle)
    return token if is_own else None


class TokenUses:
    """Records on which day tokens were last used. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._noted: dict[str, int] = {}  # the last recorded day of use, by token
        self._lock = threading.Lock()

    def is_noted(self, token: str) -> bool:
        """Whether the use of a token is recorded for today."""
        return self._noted.get(token, -1) >= self._registry.now() // DAY

    def note(self, token: str) -> None:
        """Record that a token was used today, without waiting for it; if that fails, the next use tries again.

        While changes are refused, nothing is sent: in read-only mode each use would cost a transaction. In a server
        this must be called in the event loop.
        """
        if self._registry.ledger.write_problem is not None:
            return
        day = self._registry.now() // DAY
        with self._lock:
            if self._noted.get(token, -1) >= day:
                return
            if any(noted < day for noted in self._noted.values()):
                self._noted.clear()  # a new day: drop those of yesterday
            self._noted[token] = day

        def forget_failure(future: "Future[Outcome]") -> None:
            if future.cancelled() or future.exception() is not None or isinstance(future.result(), Failed):
                self._forget(token)

        try:
            (future,) = self._registry.ledger.submit(idempotency.RecordUse(token, day))
        except LedgerError:
            self._forget(token)
        else:
            future.add_done_callback(forget_failure)

    def _forget(self, token: str) -> None:
        with self._lock:
            self._noted.pop(token, None)


def authenticate(snapshot: Snapshot, secret: Secret, now: int) -> TokenIdentity:
    """The identity of a caller with a token. Raises `Refused`, which does not say why to a stranger.

    The registry checks again, for each command, that the token is active.
    """
    entry = find_token_entry(snapshot, secret.id)
    created = None if entry is None else _creation_entry(snapshot, entry)
    # Only a caller who has the secret learns that the token was revoked or has expired.
    if created is None or not secret.matches(stored_digest(created)):
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, "This token does not exist here", AdviceKind.CREATE_TOKEN())
    token, _ = require_active_token(snapshot, secret.id, now)
    return token.identity()


def list_tokens(
    registry: Registry, identity: Identity, after: str = "", limit: int = DEFAULT_PAGE
) -> tuple[tuple[TokenStatus, ...], str | None]:
    """A page of the tokens that the caller can see, by ascending id after one; and the id to continue after, if any.

    Anonymous callers see none, others those that they can revoke, revoked ones included. A page also ends when the
    search for permissions is exhausted: it may have fewer than `limit` tokens, even none, and not be the last.
    """
    budget = PageBudget(page_size(limit))
    days = idempotency.last_used_days(registry.ledger.log)
    first = record_key(token_name(after)) + b"\0" if after else record_key(TOKENS)
    end = record_key(TOKENS)[:-1] + b"0"  # the character after the slash
    tokens: list[TokenStatus] = []
    last: str | None = None
    with registry.snapshot() as snapshot:
        visibility = _TokenVisibility(snapshot, identity)
        entries, more = snapshot.reader.names_page(first, end, MAX_SCANNED)
        for entry in entries:
            if budget.is_full:
                return tuple(tokens), last
            item = _token_status(snapshot, entry, days)
            is_visible = item is not None and visibility.can_see(item.token)
            if is_visible is None:
                return tuple(tokens), last
            if item is not None and is_visible:
                if not budget.take(item.size):
                    return tuple(tokens), last
                tokens.append(item)
            last = entry.handle.rpartition("/")[2].lower()
    return tuple(tokens), last if more else None


def get_token(registry: Registry, identity: Identity, token: str) -> TokenStatus:
    """A token that the caller can see. Raises `Refused`."""
    days = idempotency.last_used_days(registry.ledger.log)
    with registry.snapshot() as snapshot:
        stored, entry = _find_token(snapshot, token)
        item = _token_status(snapshot, entry, days)
        if item is None or not _can_see(snapshot, identity, stored):
            raise _token_not_found(token)
    return item


class _TokenVisibility:
    """Which of many tokens a caller can see."""

    def __init__(self, snapshot: Snapshot, identity: Identity) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._known: dict[ScopeSet, bool] = {}  # many tokens have the same scope

    def can_see(self, token: Token) -> bool | None:
        """Whether the caller can see a token; None if the search was exhausted and another request must decide.

        The search for permissions is limited per request. A search that starts with the full limit and exhausts it is a
        refusal; one that starts with the remains of others is inconclusive.
        """
        if _is_own(self._identity, token):
            return True
        if token.scope not in self._known:
            usage = self._snapshot.usage
            is_first = usage == SearchUsage()
            is_visible = _can_see(self._snapshot, self._identity, token)
            if not is_visible and not is_first and usage.is_exhausted:
                return None
            self._known[token.scope] = is_visible
        return self._known[token.scope]


def _token_status(snapshot: Snapshot, entry: Entry, days: dict[str, int]) -> TokenStatus | None:
    created = _creation_entry(snapshot, entry)
    token = None if created is None else Token.from_entry(created)
    if created is None or token is None:
        return None
    revoked = None if entry.state is State.NORMAL else entry.at // 1_000_000
    day = days.get(token.id)
    return TokenStatus(
        token, created.seq, revoked, issuer_key_matches(snapshot, token), None if day is None else day * DAY
    )


def _creation_entry(snapshot: Snapshot, entry: Entry) -> Entry | None:
    """The entry that created a token: this one, or the one before its revocation."""
    if entry.state is State.NORMAL:
        return entry
    previous = snapshot.reader.previous(entry.seq)
    return snapshot.reader.entry(previous) if previous else None


def _find_token(snapshot: Snapshot, token: str) -> tuple[Token, Entry]:
    """A token, revoked or not, and its latest entry."""
    entry = find_token_entry(snapshot, token) if is_id(token) else None
    created = None if entry is None else _creation_entry(snapshot, entry)
    stored = None if created is None else Token.from_entry(created)
    if entry is None or stored is None:
        raise _token_not_found(token)
    return stored, entry


def _token_not_found(token: str) -> Refused:
    reason = f"Token {display_name(token)} does not exist"
    return Refused(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.LIST_TOKENS())


def _can_see(snapshot: Snapshot, identity: Identity, token: Token) -> bool:
    return _is_own(identity, token) or is_allowed(snapshot, identity, _requirement("see a token", token.scope))


def _is_own(identity: Identity, token: Token) -> bool:
    """Whether the caller issued a token, or is authenticated with it."""
    if isinstance(identity, TokenIdentity):
        return identity.token == token.id
    if isinstance(identity, Anonymous):
        return False
    if isinstance(identity, KeyIdentity):
        return str(ValueRef(identity.index, identity.reference.handle)) == token.issuer
    return str(identity) == token.issuer


def _requirement(action: str, scope: ScopeSet) -> Requirement:
    """The requirement to create, see and revoke tokens of a scope. No token meets it."""
    servers = (HasRole((Role.SERVER,)),)
    if scope.namespaces is None:
        return Requirement(action, (servers,))
    prefixes = sorted({namespace.removesuffix(DERIVED_SUFFIX) for namespace in scope.namespaces})
    needs: Sequence[HasPermissions] = [
        HasPermissions(AdminPermission.MODIFY_ADMIN, f"{PREFIX_OF_PREFIXES}/{fold(prefix)}", on_prefix=True)
        for prefix in prefixes
    ]
    return Requirement(action, (servers, tuple(needs)))


def _draft(context: Context, action: Action, state: State, token: str, values: tuple[Value, ...] = ()) -> Draft:
    return Draft(action, state, token_name(token), context.interface, str(context.identity), context.note, values)

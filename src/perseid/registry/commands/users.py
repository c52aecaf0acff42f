"""Users: add, disable, and give a new key.

A user is a record with a key, as deployed tools create it:

    12345/ann   2    EMAIL       ann@example.org
                100  HS_ADMIN    200:0.NA/12345                          the owners of the prefix
                101  HS_ADMIN    300:12345/ann:add_value,modify_value,…  ann herself, so that she can change her key
                300  HS_SECKEY   the secret, or HS_PUBKEY

The identity of the user is `300:12345/ann`. It has no permissions on other records until somebody grants them. Where
the namespace mints its suffixes, the handle is minted, and the name is a DESC value.

Without a key nobody can authenticate, sessions end, and so do the tokens that name the key. Groups in the record are
removed like keys: a group at the index of the key would pass the rights of the identity to its members. Only a prefix
handle keeps its groups, which are those of its roles. The commit that removes the keys also revokes the active tokens
of the handle, because one that was issued without an index does not depend on a single key. They are found before
(`FoundTokens`): all tokens are read for that. The rights of the identity
stay in the records, and are effective again after `ResetUser`. The ledger redacts a secret in the commit that removes
it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from perseid.ledger.log.entry import Action
from perseid.names.errors import InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.admin import Admin, AdminPermission
from perseid.records.data_types import BASE64_PREFIX
from perseid.records.encoding import from_base64
from perseid.records.keys import PublicKey
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.records.types import DESC, EMAIL, HS_PUBKEY, HS_SECKEY
from perseid.registry.access.permissions import (
    Differences,
    HasPermissions,
    HasRole,
    RequiredScope,
    Requirement,
    Role,
    display_name,
    on_record,
)
from perseid.registry.access.roles import KEY_INDEX, ROLES, is_group, is_key, own_indexes
from perseid.registry.access.tokens import FoundTokens, find_tokens_of, revoke_tokens_of
from perseid.registry.advice import AdviceKind
from perseid.registry.context import (
    Context,
    Deferrable,
    Plan,
    Stage,
    admin_values,
    caller_as_administrator,
    defer,
    not_hosted,
)
from perseid.registry.identity import KeyIdentity, effective_identity
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidRequest, StateConflict, WarningKind
from perseid.registry.snapshot import StoredRecord
from perseid.schema.access import MAX_NAME, AccessRole
from perseid.schema.namespaces import Scope
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode

from .access import has_active_administrator
from .composition import compose, require_mint
from .minting import Mint
from .namespaces import check_prefix
from .records import (
    Create,
    already_exists,
    plan_change,
    require_changeable,
    require_identity,
    require_record,
    was_deleted,
)

SECRET_BYTES: Final = 32
"""Random bytes in a secret: impossible to guess."""

_EMAIL_INDEX: Final = 2
_OWN_PERMISSIONS: Final = ROLES[AccessRole.EDITOR].in_record


def new_secret() -> str:
    """Return a new secret as text, which deployed clients ask for."""
    return secrets.token_urlsafe(SECRET_BYTES)


@dataclass(frozen=True, slots=True)
class UserResult:
    """A user after a change."""

    handle: Handle
    seq: int
    """The first entry; the latest of the record if nothing changed."""
    keys: tuple[int, ...]
    """The index of the new key, or those of the keys and groups that were removed."""
    tokens: int = 0
    """How many tokens were revoked."""
    warnings: tuple[WarningInfo, ...] = ()

    @property
    def identity(self) -> str:
        """The identity that the new key proves."""
        return f"{self.keys[0]}:{self.handle}"


@dataclass(frozen=True, slots=True)
class NewUserKey:
    """A key for a user: a public key, or else a secret. Its `repr` does not show it."""

    public: bytes = field(default=b"", repr=False)
    """A public key as stored in HS_PUBKEY values."""
    secret: str = field(default="", repr=False)

    def value(self, index: int, ttl: int) -> Value:
        """The value of a record."""
        if self.public:
            return Value(index, HS_PUBKEY, self.public, ttl=ttl)
        return Value(index, HS_SECKEY, self.secret.encode(), ttl=ttl, permissions=PRIVATE_PERMISSIONS)


def parse_user_key(text: str) -> NewUserKey:
    """Parse a public key: PEM, JWK, or `base64:` and a Handle key. Without one, generate a secret.

    Raises `InvalidData`.
    """
    if not text:
        return NewUserKey(secret=new_secret())
    data = (
        from_base64(text.removeprefix(BASE64_PREFIX), "the key")
        if text.startswith(BASE64_PREFIX)
        else text.encode("utf-8", "replace")
    )
    return NewUserKey(public=PublicKey.from_file(data).to_bytes())


@dataclass(frozen=True, slots=True)
class AddUser(Deferrable):
    """Create the record of a user."""

    prefix: str
    name: str
    key: NewUserKey
    email: str = ""
    since: int | None = None
    """When the first attempt to mint the handle was made; see `minting.RetryLater`."""

    def decide(self, context: Context) -> Plan[UserResult]:
        """Require a server administrator, or MODIFY_ADMIN on the prefix handle; and what creating a record requires."""
        check_prefix(self.prefix)
        for text in filter(None, (self.name, self.email)):
            if len(text) > MAX_NAME or not text.isprintable():
                reason = f"{display_name(text)} is not one printable line of at most {MAX_NAME} characters"
                raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.ONE_LINE_NAME())
        if not context.snapshot.hosts_prefix(self.prefix):
            raise not_hosted(self.prefix)
        policy = context.snapshot.policy(self.prefix)
        handle = self._parse_handle() if policy.suffix_scheme() is None else None
        if context.stage is not Stage.COMMIT:
            return defer(self)
        require_user_administration(context, self.prefix)
        values = self._values(context, policy)
        if handle is not None:
            require_mint(context, policy, self.prefix, Scope.CREATE)  # before it says which hidden handles exist
            stored = context.get_hosted(handle)
            if stored.entry is not None:
                if not stored.exists:
                    raise was_deleted(stored, can_reuse=False)
                refused = already_exists(stored, can_replace=False)
                if any(map(is_key, stored.values)):
                    refused.advice = AdviceKind.RESET_USER(handle=stored.handle)
                raise refused
            own = Admin(ValueRef(KEY_INDEX, str(policy.normalize(handle))), _OWN_PERMISSIONS)
            created = Create(handle, (*values, *admin_values(values, policy, [own]))).decide(context)
            return created.map(lambda result: UserResult(result.handle, result.seq, (KEY_INDEX,), 0, result.warnings))
        values = (Value(1, DESC, self.name.encode(), policy.default_ttl), *values)
        own_key = Admin(ValueRef(KEY_INDEX, self.prefix), _OWN_PERMISSIONS)
        minted = Mint(self.prefix, values=values, own_administrator=own_key.to_bytes(), since=self.since).decide(
            context
        )
        return minted.map(lambda result: UserResult(result.handles[0], result.seq, (KEY_INDEX,), 0, result.warnings))

    def _parse_handle(self) -> Handle:
        try:
            return Handle.parse(f"{self.prefix}/{self.name}")
        except InvalidName as problem:
            raise InvalidRequest(ResponseCode.INVALID_HANDLE, str(problem), rule=problem.rule) from problem

    def _values(self, context: Context, policy: Policy) -> tuple[Value, ...]:
        ttl = policy.default_ttl
        values = [self.key.value(KEY_INDEX, ttl)]
        if self.email:
            values.append(Value(_EMAIL_INDEX, EMAIL, self.email.encode(), ttl))
        admins = [
            admin for admin in policy.administrators(self.prefix) if AdminPermission.ADD_ADMIN in admin.permissions
        ]
        return (*values, *admin_values(values, policy, admins or caller_as_administrator(context)))


@dataclass(frozen=True, slots=True)
class DisableUser(Deferrable):
    """Remove all keys and groups of a user, and revoke their tokens. Nothing happens if there are none."""

    handle: Handle
    tokens: FoundTokens | None = None
    """Their tokens; None to find them at first."""

    def decide(self, context: Context) -> Plan[UserResult]:
        """Require MODIFY_ADMIN in the record, with REMOVE_VALUE. An administrator of the prefix must remain.

        Users cannot disable themselves by mistake.
        """
        if context.stage is not Stage.COMMIT:
            return defer(find_tokens(self, context))
        stored = _get_user(context, self.handle, "disable")
        identity = effective_identity(context.identity)
        if isinstance(identity, KeyIdentity) and context.snapshot.is_same_record(
            identity.reference.handle, str(stored.handle)
        ):
            reason = f"{display_name(stored.handle)} is the user that you act as"
            raise StateConflict(reason, AdviceKind.DISABLE_AS_OTHER())
        return _plan_keys(context, stored, None, "disable", self.tokens)


@dataclass(frozen=True, slots=True)
class ResetUser(Deferrable):
    """Replace all keys of a user by a new one, under the same identity, and revoke their tokens."""

    handle: Handle
    key: NewUserKey
    tokens: FoundTokens | None = None
    """Their tokens; None to find them at first."""

    def decide(self, context: Context) -> Plan[UserResult]:
        """Require MODIFY_ADMIN in the record, with what the change of keys requires."""
        if context.stage is not Stage.COMMIT:
            return defer(find_tokens(self, context))
        stored = _get_user(context, self.handle, "reset")
        index = _find_key_index(stored)
        if index is None:
            context.require(_manage(stored, AdminPermission.MODIFY_ADMIN, "reset"))
            reason = f"{display_name(stored.handle)} is not a user: it has no key, and does not administer itself"
            raise StateConflict(reason, AdviceKind.LIST_USERS())
        key = self.key.value(index, stored.policy.default_ttl)
        return _plan_keys(context, stored, key, "reset", self.tokens)


C = TypeVar("C", DisableUser, ResetUser)


def find_tokens(command: C, context: Context) -> C:
    """Return the command with the tokens of the user, if it is allowed: anybody can ask for it. Raises `Refused`.

    Reads all tokens of the installation, so call it in a thread before the command is executed in an event loop.
    """
    if command.tokens is not None:
        return command
    trial = replace(context, stage=Stage.COMMIT, reasons=[], warnings=[])
    replace(command, tokens=FoundTokens(seq=context.snapshot.reader.size)).decide(trial)
    return replace(command, tokens=find_tokens_of(context, str(context.get_for_update(command.handle).handle)))


def require_user_administration(context: Context, prefix: str) -> None:
    """Require a server administrator, or MODIFY_ADMIN on the prefix handle."""
    prefix_handle = f"{PREFIX_OF_PREFIXES}/{fold(prefix)}"
    alternatives = (
        (HasRole((Role.SERVER,)),),
        (HasPermissions(AdminPermission.MODIFY_ADMIN, prefix_handle, on_prefix=True),),
    )
    required_scope = RequiredScope.for_namespace(prefix, Scope.CREATE, Scope.TRANSFER)
    context.require(Requirement(f"add users under {display_name(prefix)}", alternatives, required_scope=required_scope))


def _get_user(context: Context, handle: Handle, verb: str) -> StoredRecord:
    stored = context.get_for_update(handle)
    require_identity(context, f"{verb} {display_name(handle)}")
    require_record(context, stored, Scope.TRANSFER)
    return stored


def _find_key_index(stored: StoredRecord) -> int | None:
    """The index that the record itself names as its administrator; otherwise that of a key, first the usual one."""
    keys = [value.index for value in stored.values if is_key(value)]
    taken = {value.index for value in stored.values if not _is_removed(stored, value)}
    own = [index for index in own_indexes(str(stored.handle), stored.values) if index not in taken]
    return next(iter([*own, *sorted(keys, key=lambda index: index != KEY_INDEX)]), None)


def _is_removed(stored: StoredRecord, value: Value) -> bool:
    """Whether a value of a user's record lets somebody act as the user."""
    return is_key(value) or (is_group(value) and not stored.handle.is_prefix_handle)


def _manage(stored: StoredRecord, needed: AdminPermission, verb: str) -> Requirement:
    return on_record(f"{verb} the user {display_name(stored.handle)}", needed, stored.handle, Scope.TRANSFER)


def _plan_keys(
    context: Context, stored: StoredRecord, key: Value | None, verb: str, found: FoundTokens | None
) -> Plan[UserResult]:
    """Replace all keys and groups by one key, or by none, and revoke the tokens."""
    removed = [value for value in stored.values if _is_removed(stored, value)]
    values: Sequence[Value] = [value for value in stored.values if value not in removed]
    if key is not None:
        values = [*values, key]
        for group in filter(is_group, removed):
            context.warn(WarningKind.GROUP_REMOVED(index=group.index))
    needed = Differences.between(stored.values, values).permissions | AdminPermission.MODIFY_ADMIN
    context.require(_manage(stored, needed, verb))
    if key is None:
        _require_administrator(context, stored, values)
    require_changeable(stored, values)
    changed = plan_change(context, stored, Action.UPDATE, compose(context, stored, values))
    found = found or find_tokens_of(context, str(stored.handle))  # only if nothing is committed
    tokens = revoke_tokens_of(context, str(stored.handle), found)
    count = len(tokens) + found.others
    keys = tuple([value.index for value in removed]) if key is None else (key.index,)
    warnings = tuple(context.warnings)
    return Plan(
        lambda seq: UserResult(stored.handle, seq or stored.seq, keys, count, warnings),
        (*changed.drafts, *tokens),
        reason=context.reasons[-1],
    )


def _require_administrator(context: Context, stored: StoredRecord, values: Sequence[Value]) -> None:
    """Refuse to disable the only administrator of the prefix."""
    prefix = stored.handle.suffix if stored.handle.is_prefix_handle else stored.handle.prefix
    prefix_handle = Handle(PREFIX_OF_PREFIXES, fold(prefix))
    had, has = (has_active_administrator(context, prefix_handle, stored, each) for each in (stored.values, values))
    if had and not has:
        reason = f"{display_name(stored.handle)} is the only active administrator of {display_name(prefix)}"
        raise StateConflict(reason, AdviceKind.GRANT_OWNER(prefix=prefix))

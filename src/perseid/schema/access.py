"""Users, roles, and who can do what."""

from enum import StrEnum
from typing import Annotated, Final

from .common import Doc, IdentityText, Name, NextCursor, Note, Paging, RequestBody, ResponseBody, Seq
from .namespaces import Prefix
from .records import Warnings

MAX_RIGHTS: Final = 20
"""Roles and permissions in one request: more than there are. The registry refuses more, at every interface."""

MAX_NAME: Final = 200
"""Characters of the longest name or address: one line."""

MAX_KEY: Final = 20_000
"""Characters of the longest public key: a certificate with a key of 16,384 bits."""

MAX_ENTRIES: Final = 1_000
"""Entries in one response about access. Groups can have a hundred thousand members."""


class AccessRole(StrEnum):
    """A set of permissions in plain words."""

    OWNER = "owner"
    EDITOR = "editor"
    MINTER = "minter"
    READER = "reader"


class KeyState(StrEnum):
    """Whether an identity can authenticate here."""

    ACTIVE = "active"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


On = Annotated[
    str,
    Doc(
        "A prefix, for everything under it; or a handle, for its record only.",
        min_length=1,
        max_length=4_096,
        examples=["12345"],
    ),
]

Administrator = Annotated[
    IdentityText,
    Doc(
        "The identity or group, as `INDEX:HANDLE`; the handle alone if it has only one key; or the name alone, such as "
        "`ann`, of a user under the prefix of `on`.",
        examples=["12345/ann"],
    ),
]

Rights = Annotated[
    tuple[str, ...],
    Doc(
        f"Roles (`owner`, `editor`, `minter`, `reader`) or permissions, such as `add_value`; at most {MAX_RIGHTS}.",
        examples=[["editor"]],
    ),
]

Permissions = Annotated[tuple[str, ...], Doc("The permissions.", examples=[["add_handle", "list_handles"]])]


# Access


class AccessQuery(RequestBody, frozen=True):
    """Whose administrators to list."""

    on: On


class AccessEntry(ResponseBody, frozen=True):
    """An identity, what it can do, and why."""

    identity: Annotated[str, Doc("The identity.", examples=["300:12345/ann"])]
    permissions: Permissions
    state: Annotated[
        KeyState,
        Doc("`active`: its key is stored here; `disabled`: it has no key; `unknown`: another server, or not visible."),
    ]
    role: Annotated[AccessRole | None, Doc("The role that has these permissions; null if none has.")] = None
    value: Annotated[int | None, Doc("The index of the HS_ADMIN value that grants them.", examples=[100])] = None
    groups: Annotated[
        tuple[str, ...], Doc("The groups through which the value names the identity.", examples=[["200:0.NA/12345"]])
    ] = ()
    setting: Annotated[str | None, Doc("The setting of the server that grants them instead.")] = None


class RecordsWithoutGroup(ResponseBody, frozen=True, omit_defaults=False):
    """Records of a prefix that do not name the group of a role: the role has no permissions on them."""

    role: Annotated[AccessRole, Doc("The role.")]
    group: Annotated[str, Doc("The group.", examples=["201:0.NA/12345"])]
    count: Annotated[int, Doc("The number of records, as far as they were counted.")]
    complete: Annotated[bool, Doc("Whether all records were counted; if not, there may be more.")]


class Access(ResponseBody, frozen=True):
    """Who can do what with a prefix or a record."""

    on: On
    handle: Annotated[str, Doc("The handle whose record names them.", examples=["0.NA/12345"])]
    entries: Annotated[list[AccessEntry], Doc(f"The identities, by value; at most {MAX_ENTRIES:,}.")]
    truncated: Annotated[bool, Doc("Whether there are more identities.")] = False
    records: Annotated[
        tuple[RecordsWithoutGroup, ...],
        Doc("For a prefix: the records that a role has no permissions on; only if you can list its handles."),
    ] = ()


class AccessRequest(RequestBody, frozen=True):
    """Rights to grant."""

    identity: Administrator
    rights: Annotated[Rights, Doc(f"Roles or permissions; at most {MAX_RIGHTS}.", min_length=1)]
    on: On
    dry_run: Annotated[bool, Doc("Only check and show what would change.")] = False
    note: Note = ""


class RevokeRequest(AccessRequest, frozen=True, kw_only=True):
    """Rights to revoke."""

    rights: Annotated[Rights, Doc(f"Roles or permissions, at most {MAX_RIGHTS}; everything if omitted.")] = ()


class AccessChanged(ResponseBody, frozen=True, omit_defaults=False):
    """The result of granting or revoking."""

    on: On
    identity: Annotated[str, Doc("The identity.", examples=["300:12345/ann"])]
    changed: Annotated[bool, Doc("Whether anything changed, or would change with `dry_run`.")]
    handles: Annotated[tuple[str, ...], Doc("The handles whose records change.", examples=[["0.NA/12345"]])]
    policy: Annotated[bool, Doc("Whether the policy changes, so that new records name the group.")]
    seq: Annotated[Seq, Doc("The first ledger entry of the change; 0 if nothing changed.")]
    records: Annotated[
        tuple[RecordsWithoutGroup, ...], Doc("Existing records that the granted roles have no permissions on.")
    ] = ()
    remaining: Annotated[
        tuple[AccessEntry, ...], Doc("What the identity can still do there after rights were revoked.")
    ] = ()


class RecordsRequest(RequestBody, frozen=True):
    """Roles whose groups existing records should name."""

    roles: Annotated[
        tuple[AccessRole, ...],
        Doc("The roles.", min_length=1, max_length=len(AccessRole), examples=[["editor"]]),
    ]
    note: Note = ""


# Users

UserName = Annotated[
    str,
    Doc(
        "The name. It is the suffix of the handle, or a description if the namespace mints its suffixes.",
        min_length=1,
        max_length=MAX_NAME,
        examples=["ann"],
    ),
]

Email = Annotated[str, Doc("An email address; public.", max_length=MAX_NAME, examples=["ann@example.org"])]

PublicKeyText = Annotated[
    str,
    Doc(
        "A public key: PEM (also a certificate), JWK, or `base64:` and a Handle key. A secret is generated if omitted.",
        max_length=MAX_KEY,
    ),
]


class NewUser(RequestBody, frozen=True):
    """A user to add."""

    prefix: Prefix
    name: UserName
    email: Email = ""
    public_key: PublicKeyText = ""
    note: Note = ""


class NewKey(RequestBody, frozen=True):
    """A new key for a user."""

    public_key: PublicKeyText = ""
    note: Note = ""


class UserKey(ResponseBody, frozen=True):
    """The identity of a user, and the key that proves it."""

    handle: Annotated[Name, Doc("The handle of the user.", examples=["12345/ann"])]
    identity: Annotated[str, Doc("The identity: log in and grant rights with it.", examples=["300:12345/ann"])]
    seq: Seq
    secret: Annotated[
        str,
        Doc(
            "The generated secret, in the first response only. A repeated request with the same `Idempotency-Key` "
            "returns the identity without it."
        ),
    ] = ""
    tokens: Annotated[int, Doc("The number of tokens that were revoked.")] = 0
    advice: Annotated[str, Doc("Why the secret is not shown, and what to do.")] = ""
    warnings: Warnings = ()


class UserDisabled(ResponseBody, frozen=True, omit_defaults=False):
    """A disabled user."""

    handle: Annotated[Name, Doc("The handle of the user.", examples=["12345/ann"])]
    changed: Annotated[bool, Doc("Whether anything changed.")]
    keys: Annotated[tuple[str, ...], Doc("The keys and groups that were removed.", examples=[["300:12345/ann"]])]
    tokens: Annotated[int, Doc("The number of tokens that were revoked.")]
    seq: Annotated[Seq, Doc("The first ledger entry of the change; the latest of the record if nothing changed.")]


class UsersQuery(Paging, frozen=True):
    """Which users to list."""

    prefix: Annotated[str, Doc("Only users of this prefix.", max_length=2_048, examples=["12345"])] = ""


class User(ResponseBody, frozen=True):
    """A user: a handle with keys, or a member of a group of the prefix that has none."""

    handle: Annotated[Name, Doc("The handle of the user.", examples=["12345/ann"])]
    state: Annotated[KeyState, Doc("`active`, or `disabled`: without a key.")]
    identities: Annotated[tuple[str, ...], Doc("The identities, one for each key.", examples=[["300:12345/ann"]])]
    name: Annotated[str, Doc("The description in the record.")] = ""
    email: Annotated[str, Doc("The email address in the record.")] = ""


class UserPage(ResponseBody, frozen=True):
    """Users."""

    users: Annotated[list[User], Doc("The users of the page. It can be empty without being the last.")]
    next: NextCursor = None

"""Namespaces, authority metadata, types of values, and tokens."""

from enum import Enum
from typing import Annotated, Any, Final

from perseid.names.handle import CaseRule
from perseid.records.patterns import MAX_PATTERN_LENGTH

from .common import ChangeNote, Doc, NextCursor, Note, Paging, RequestBody, ResponseBody, Seq
from .records import Warnings

MAX_TEXT_BYTES: Final = 16_384
"""The longest text of a policy: three times the longest sensible one."""

MAX_ADMINISTRATORS: Final = 100
"""Most administrators of a new namespace; use a group for more."""

Prefix = Annotated[str, Doc("The prefix.", min_length=1, max_length=2_048, examples=["12345"])]

Toml = Annotated[
    str,
    Doc(
        f"The policy in TOML, as `perseid namespace policy` prints it; at most {MAX_TEXT_BYTES:,} bytes.",
        max_length=MAX_TEXT_BYTES,
        examples=['purpose = "Maps"\nwho_may_list = "public"\n'],
    ),
]


class NewNamespace(RequestBody, frozen=True):
    """A namespace to create."""

    prefix: Prefix
    profile: Annotated[
        str, Doc("The initial policy, such as `pilin` or `exact`; `free` if omitted.", examples=["free"])
    ] = ""
    case: Annotated[
        CaseRule | None, Doc("Whether suffixes are case-sensitive; cannot be changed later without confirmation.")
    ] = None
    creator: Annotated[str, Doc("The default creator of identifiers: a handle.", max_length=4_096)] = ""
    purpose: Annotated[str, Doc("The purpose of the namespace.", max_length=2_000)] = ""
    policy: Annotated[Toml, Doc("A policy in TOML, instead of a profile.")] = ""
    administrators: Annotated[
        tuple[str, ...],
        Doc(
            "Administrators of the prefix and its handles, as `INDEX:HANDLE`; the server administrators if omitted.",
            max_length=MAX_ADMINISTRATORS,
            examples=[["300:0.NA/12345"]],
        ),
    ] = ()
    note: Note = ""


class NewPolicy(RequestBody, frozen=True):
    """A new policy."""

    policy: Toml
    change_case: Annotated[bool, Doc("Confirm a change of the case rule, for all existing handles.")] = False
    note: Note = ""


class Namespace(ResponseBody, frozen=True):
    """A summary of a namespace."""

    prefix: Prefix
    profile: Annotated[str, Doc("The profile of the policy.", examples=["pilin"])]
    purpose: Annotated[str, Doc("The purpose of the namespace.")]
    scheme: Annotated[str, Doc("The suffix scheme.", examples=["pilin"])]
    case: Annotated[str, Doc("Whether suffixes are case-sensitive.")]
    who_may_mint: Annotated[str, Doc("Who can mint handles.", examples=["administrators"])]
    who_may_list: Annotated[str, Doc("Who can list the handles.", examples=["administrators"])]
    retired: Annotated[bool, Doc("Whether no new handles can be registered.")]
    authority: Annotated[bool, Doc("Whether records have authority metadata: creation date, creator, owners.")]
    deletion: Annotated[str, Doc("Whether handles can be deleted.", examples=["tombstone"])]
    creator: Annotated[str | None, Doc("The default creator of identifiers.")] = None
    administrators: Annotated[tuple[str, ...], Doc("The public administrators in the prefix handle.")] = ()


class NamespacesQuery(Paging, frozen=True):
    """Which namespaces to list."""

    mine: Annotated[bool, Doc("Only those in which you can create or list handles.")] = False


class NamespacePage(ResponseBody, frozen=True):
    """Namespaces, sorted by prefix."""

    namespaces: Annotated[list[Namespace], Doc("The namespaces of the page.")]
    next: NextCursor = None


class NamespaceRemoval(ChangeNote, frozen=True):
    """How to remove a namespace."""

    retire: Annotated[bool, Doc("Keep the namespace with its handles, but register no new ones.")] = False


class RemovedNamespace(ResponseBody, frozen=True, omit_defaults=False):
    """A removed or retired namespace."""

    prefix: Prefix
    seq: Seq
    retired: Annotated[bool, Doc("Whether the namespace still exists, and only registers no new handles.")]


class CreatedNamespace(ResponseBody, frozen=True):
    """A created namespace."""

    prefix: Prefix
    profile: Annotated[str, Doc("The profile of the policy.")]
    seq: Seq
    creator: Annotated[str | None, Doc("The default creator of identifiers; its record was created if needed.")] = None
    external_types: Annotated[tuple[str, ...], Doc("Types that another service defines.")] = ()
    warnings: Warnings = ()


class PolicyResponse(ResponseBody, frozen=True):
    """The policy of a namespace."""

    prefix: Prefix
    policy: Toml
    rules: Annotated[dict[str, Any], Doc("The policy by key; see docs/reference/policy.md.")]


class PolicyChanged(ResponseBody, frozen=True):
    """A changed policy."""

    prefix: Prefix
    seq: Seq
    changed: Annotated[tuple[str, ...], Doc("The changed keys; empty if nothing changed.")]


class Party(ResponseBody, frozen=True):
    """A creator or owner of an identifier."""

    uri: Annotated[str, Doc("The handle as a `hdl:` URI.", examples=["hdl:12345/ann"])]
    verified: Annotated[bool, Doc("Whether the handle is known to resolve.")]


class Authority(ResponseBody, frozen=True, omit_defaults=False):
    """The authority metadata of an identifier."""

    handle: Annotated[str, Doc("The handle as registered.")]
    required: Annotated[bool, Doc("Whether the policy requires authority metadata; if not, the fields are empty.")]
    created: Annotated[str | None, Doc("When the identifier was first associated with its object, in ISO 8601.")] = None
    updated: Annotated[str | None, Doc("Time of the last change of the record, in ISO 8601.")] = None
    creator: Annotated[Party | None, Doc("Who created the identifier.")] = None
    owners: Annotated[tuple[Party, ...], Doc("The owners, if they are not the creator.")] = ()


# Types

Description = Annotated[str, Doc("The meaning of values of the type.", min_length=1, max_length=10_000)]

Pattern = Annotated[
    str, Doc("A regular expression (RE2) that the whole data must match.", max_length=MAX_PATTERN_LENGTH)
]

Example = Annotated[str, Doc("Example data.", max_length=10_000)]


class TypesQuery(Paging, frozen=True):
    """Which types to list."""

    prefix: Annotated[str, Doc("Only types of this prefix.", max_length=2_048, examples=["12345"])] = ""


class NewType(RequestBody, frozen=True):
    """A type to register."""

    handle: Annotated[str, Doc("The handle of the type.", min_length=1, max_length=4_096, examples=["12345/SCALE"])]
    description: Description
    name: Annotated[str, Doc("The name of the type; the suffix if omitted.", max_length=200)] = ""
    pattern: Annotated[Pattern | None, Doc("A pattern for the data; cannot be combined with `schema`.")] = None
    schema: Annotated[dict[str, Any] | bool | None, Doc("A JSON Schema (2020-12) for data in JSON.")] = None
    example: Annotated[Example | None, Doc("Example data; it must be valid.")] = None
    note: Note = ""


class TypeResponse(ResponseBody, frozen=True):
    """A registered type."""

    handle: Annotated[str, Doc("The handle of the type.", examples=["12345/SCALE"])]
    seq: Annotated[Seq, Doc("The latest ledger entry of its record; 0 for a copy.")]
    name: Annotated[str, Doc("The name of the type.")] = ""
    description: Annotated[str, Doc("The meaning of values of the type.")] = ""
    pattern: Annotated[str | None, Doc("A regular expression (RE2) that the data must match.")] = None
    schema: Annotated[Any, Doc("A JSON Schema for the data.")] = None
    example: Annotated[str | None, Doc("Example data.")] = None
    problem: Annotated[str, Doc("Why data cannot be validated with this definition; lists do not check it.")] = ""
    copy: Annotated[bool, Doc("Whether this is a copy: another service hosts the type.")] = False


class TypePage(ResponseBody, frozen=True):
    """Registered types."""

    types: Annotated[list[TypeResponse], Doc("The types of the page.")]
    next: NextCursor = None


# Tokens

MAX_NAMESPACES: Final = 100
"""Namespaces in one scope. For more, use all namespaces or several tokens."""

DEFAULT_DAYS: Final = 90
"""Default lifetime: a quarter, after which somebody checks whether the token is still needed."""

DEFAULT_LIFETIME: Final = f"{DEFAULT_DAYS}d"

MAX_DAYS: Final = 400
"""Longest lifetime: a year, and a month to notice. A token that never expires is found by somebody one day."""

MAX_LABEL: Final = 200
"""Characters of the longest label: one line."""


class Scope(Enum):
    """What a token can be used for."""

    READ = "read"
    FIND = "find"
    MINT = "mint"
    CREATE = "create"
    UPDATE = "update"
    PUBLISH = "publish"
    TOMBSTONE = "tombstone"
    DELETE = "delete"
    TRANSFER = "transfer"
    NAMESPACES = "namespaces"
    ADMIN = "admin"


SCOPES: Final = tuple([scope.value for scope in Scope])
"""The names of all scopes."""


class NewToken(RequestBody, frozen=True):
    """A token to create."""

    scopes: Annotated[
        tuple[Scope, ...],
        Doc("What the token can do.", min_length=1, max_length=len(SCOPES), examples=[["mint", "update"]]),
    ]
    namespaces: Annotated[
        tuple[str, ...],
        Doc(
            "Prefixes where the token is valid; `PREFIX.*` includes derived prefixes.",
            max_length=MAX_NAMESPACES,
            examples=[["12345"]],
        ),
    ] = ()
    all_namespaces: Annotated[bool, Doc("Valid in all namespaces; instead of `namespaces`.")] = False
    expires_in: Annotated[str, Doc(f"The lifetime in days, as in `90d`; at most `{MAX_DAYS}d`.", examples=["90d"])] = (
        DEFAULT_LIFETIME
    )
    label: Annotated[str, Doc("A label for people.", max_length=MAX_LABEL, examples=["the catalog"])] = ""
    note: Note = ""


class TokensQuery(Paging, frozen=True):
    """Which tokens to list."""

    all: Annotated[bool, Doc("Include revoked tokens.")] = False


class TokenResponse(ResponseBody, frozen=True):
    """A token."""

    id: Annotated[str, Doc("The id of the token in lists and in the ledger.", examples=["k7qpx2ma"])]
    label: Annotated[str, Doc("The label.")]
    issuer: Annotated[str, Doc("The identity that it acts for.", examples=["300:0.NA/12345"])]
    scopes: Annotated[tuple[str, ...], Doc("What the token can do.")]
    namespaces: Annotated[tuple[str, ...] | None, Doc("Where the token is valid; null for all namespaces.")]
    created: Annotated[str, Doc("Creation time, in ISO 8601.")]
    expires: Annotated[str, Doc("Expiry time, in ISO 8601.")]
    state: Annotated[str, Doc("`active`, `expired`, `revoked`, or `key_changed`: the issuer has another key now.")]
    seq: Seq
    revoked: Annotated[str | None, Doc("Time of revocation, in ISO 8601.")] = None
    last_used: Annotated[str | None, Doc("Day of the last use.", examples=["2026-11-15"])] = None


class TokenPage(ResponseBody, frozen=True):
    """Tokens, sorted by id."""

    tokens: Annotated[list[TokenResponse], Doc("The tokens of the page.")]
    next: NextCursor = None


class CreatedToken(ResponseBody, frozen=True):
    """A created token. It is shown only once, because only its hash is stored."""

    id: Annotated[str, Doc("The id of the token in lists and in the ledger.", examples=["k7qpx2ma"])]
    expires: Annotated[str, Doc("Expiry time, in ISO 8601.")]
    token: Annotated[
        str,
        Doc(
            "The token, in the first response only. A repeated request with the same `Idempotency-Key` "
            "returns the id without it."
        ),
    ] = ""
    advice: Annotated[str, Doc("Why the token is not shown, and what to do.")] = ""

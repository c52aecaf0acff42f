"""Policy of a namespace: a frozen value, stored as TOML in `0.SITE/POLICY/<PREFIX>`.

A person writes a profile and what differs from it (`profile = "pilin"`, `who_may_mint = "server"`), which
`Policy.from_toml` reads. `Policy.to_toml`, which is stored, is complete: a later version may have other profiles, and
no existing namespace changes because of it. So `Policy.from_stored` ignores profiles.

The checks return every violation as a `Refusal` that names the policy's line and says how to comply; the caller raises
it with the right response code.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Annotated, Any, Final, Self, get_type_hints

from msgspec import Meta

from perseid.names.cordra import CordraName
from perseid.names.errors import InvalidName, format_character, quote_text
from perseid.names.handle import PROFILE_CASE_RULES, CaseRule, Handle, fold
from perseid.names.scheme_loader import MAX_TEMPLATE_LENGTH, PatternScheme, load_scheme
from perseid.names.schemes import DEFAULT_MAX_AHEAD, STRICT_CLOCK, Scheme
from perseid.names.unicode import find_mixed_scripts, nfc
from perseid.records.admin import Admin
from perseid.records.record import DEFAULT_TTL, Value, ValueRef
from perseid.records.types import HS_ADMIN, URL_SCHEMES, TypeQuery, UrlProblem, find_url_problem, is_url_type
from perseid.registry.advice import Advice, AdviceKind

from .text import (
    Administrators,
    Flag,
    HandleName,
    InvalidPolicy,
    Key,
    OptionalTypeName,
    Options,
    SchemeList,
    TypeList,
    TypeName,
    about,
    check_size,
    choice,
    format_toml,
    number,
    parse,
)

FREE: Final = "free"
"""The scheme for any legal suffix. Minting in it appends a UUID, as deployed servers do (P8)."""

CUSTOM_PROFILE: Final = "own"
"""The profile of a policy that names none."""

TYPE_REGISTRY: Final = "102.100.TYPE/"
"""The registry of the types of authority metadata (A5), and of all types of the profile `pilin`."""

DEFAULT_OWNER_TYPE: Final = TYPE_REGISTRY + "OWNER"
"""The type for owners that are not the administrators (A5); a policy has to name it."""

PREFIX_PLACEHOLDER: Final = "{prefix}"
"""Replaced by the prefix in the default administrators, so that one text serves many namespaces."""

MAX_AHEAD: Final = 30 * 86_400_000
"""The largest `max_ahead`: 30 days, or 2,592 million handles at once. A suffix should show roughly when it is from."""

MAX_PURPOSE: Final = 2_000
"""The longest purpose, in characters: a page. More should be a document with its own identifier."""

MAX_LINE_LENGTH: Final = 160
"""How much of a policy's line a refusal repeats: enough to find it, short enough for a message."""

_PROFILE_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\\n)"  # Python's $ also matches before a final line break
_UPPERCASE_SCHEMES: Final = frozenset({"pilin", "pilin-check", "cordra"})  # registered in uppercase, read in any case
_MAX_LISTED_INDEXES: Final = 5  # in a refusal
_MAX_CACHED_ADMINISTRATORS: Final = 64  # the namespaces that a process works with at a time


class Audience(Enum):
    """Who can do something in a namespace. Server administrators always can."""

    ADMINISTRATORS = "administrators"
    """Users with the permission on the prefix handle (ADD_HANDLE, LIST_HANDLES)."""
    SERVER = "server"
    """Server administrators only."""
    AUTHENTICATED = "authenticated"
    """All authenticated users."""
    PUBLIC = "public"
    """Everyone."""


class Deletion(Enum):
    """Whether handles can be deleted (S8)."""

    ALLOWED = "allowed"
    """Users with the permission can delete them."""
    TOMBSTONE = "tombstone"
    """Handles are never deleted; they become tombstones."""


_MINTERS: Final = (Audience.ADMINISTRATORS, Audience.SERVER, Audience.AUTHENTICATED)


class Subject(Enum):
    """What a refusal is about; protocols have different codes for them."""

    NAME = "name"
    VALUES = "values"
    DELETION = "deletion"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a policy does not allow something, and how to comply."""

    subject: Subject
    key: str
    """The policy's key."""
    line: str
    """Its line in the policy's text; truncated if it is very long."""
    message: str
    """What is wrong, as a clause without a full stop."""
    advice: Advice
    """How to comply."""
    is_quoted: bool = True
    """Whether the line says more than the message."""

    @property
    def reason(self) -> str:
        """The message, with the line of the policy if that says more."""
        return f"{self.message}; the policy of this namespace says: {self.line}" if self.is_quoted else self.message

    def __str__(self) -> str:
        return f"{self.reason}. {self.advice}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of a namespace. An empty string means "none".

    The fields are the keys, in the order of the text. A key that is added later must have a default that changes
    nothing, because stored texts do not have it.
    """

    profile: Annotated[
        str,
        Meta(max_length=64, pattern=_PROFILE_NAME, extra={"expects": "a name of letters, digits and ._-"}),
        about("The profile that the policy is based on. For information only: the other rules apply."),
    ] = CUSTOM_PROFILE
    purpose: Annotated[
        str,
        Meta(max_length=MAX_PURPOSE, extra={"expects": "a string"}),
        about("What the namespace is for, in words that outlive the technology."),
    ] = ""
    scheme: Annotated[
        str,
        Meta(max_length=len("pattern:") + MAX_TEMPLATE_LENGTH, extra={"expects": "a string"}),
        about(
            "Which suffixes are valid and how new ones are minted: free (any), pilin, pilin-check, cordra, uuid, "
            "pattern:TEMPLATE, or an installed scheme."
        ),
    ] = FREE
    scheme_options: Annotated[Options, about("Options of the scheme, such as the version for cordra and uuid.")] = (
        field(default_factory=dict, hash=False)
    )
    case: Annotated[
        CaseRule,
        choice(CaseRule),
        about(
            "Whether suffixes are case-sensitive (path: only after ? and #). It can change only while no two handles "
            "collide."
        ),
    ] = CaseRule.SENSITIVE
    nfc: Annotated[
        Flag,
        about(
            "Whether suffixes must be in Unicode normalization form C, so that no two look alike because of accents."
        ),
    ] = False
    single_script: Annotated[
        Flag,
        about(
            "Whether a suffix must be in one script, so that no Cyrillic letter passes for a Latin one. Digits and "
            "punctuation belong to every script."
        ),
    ] = False
    max_ahead: Annotated[
        int, number(0, MAX_AHEAD), about("How many milliseconds minted handles with a time can run ahead of the clock.")
    ] = DEFAULT_MAX_AHEAD
    strict_clock: Annotated[
        Flag, about("Whether minted handles with a time never run ahead of the clock, which allows 1,000 per second.")
    ] = False
    who_may_mint: Annotated[
        Audience,
        choice(_MINTERS),
        about("Who can create handles (mint, reserve, create). Administrators have ADD_HANDLE on the prefix handle."),
    ] = Audience.ADMINISTRATORS
    who_may_list: Annotated[
        Audience,
        choice(Audience),
        about("Who can list the handles of the namespace. Administrators have LIST_HANDLES on the prefix handle."),
    ] = Audience.ADMINISTRATORS
    retired: Annotated[
        Flag,
        about("Whether the namespace is retired: handles resolve and can be changed, but no new ones are registered."),
    ] = False
    required_types: Annotated[
        TypeList, about("Types that every record must have. URL is that type, URL. also includes its subtypes.")
    ] = ()
    allowed_types: Annotated[
        TypeList,
        about(
            "The only types that a record can have; an empty list allows all. HS_ADMIN, and types in other keys, need "
            "not be listed."
        ),
    ] = ()
    forbidden_types: Annotated[TypeList, about("Types that no record can have.")] = ()
    registered_types: Annotated[
        Flag, about("Whether every type must be registered: a handle that resolves to its definition.")
    ] = False
    validate_types: Annotated[
        Flag, about("Whether data is checked against the definition of its type, if that is registered here.")
    ] = False
    url_schemes: Annotated[
        SchemeList,
        about(
            "The schemes of URLs: a value of type URL must be an absolute URL with one of them. If empty, any text is "
            "accepted, with a warning."
        ),
    ] = ()
    authority: Annotated[Flag, about("Whether every record has a date of creation, a creator and owners.")] = False
    creation_date_type: Annotated[TypeName, about("The type of the value with the date of creation.")] = (
        TYPE_REGISTRY + "CREATION_DATE"
    )
    creator_type: Annotated[TypeName, about("The type of the value with the creator, a handle.")] = (
        TYPE_REGISTRY + "CREATOR"
    )
    default_creator: Annotated[
        HandleName, about("The creator of records that name none. If empty and authority is true, these are refused.")
    ] = ""
    owner_type: Annotated[
        OptionalTypeName,
        about(
            "The type of values with owners, if these differ from administrators. If empty, HS_ADMIN names the owners."
        ),
    ] = ""
    deletion: Annotated[
        Deletion, choice(Deletion), about("Whether handles can be deleted, or only become tombstones.")
    ] = Deletion.ALLOWED
    tombstone_reason_type: Annotated[TypeName, about("The type of a tombstone's value with the reason.")] = (
        "TOMBSTONE.REASON"
    )
    tombstone_date_type: Annotated[TypeName, about("The type of a tombstone's value with the date.")] = "TOMBSTONE.DATE"
    tombstone_replacement_type: Annotated[
        TypeName, about("The type of a tombstone's value with the handle to use instead.")
    ] = "TOMBSTONE.REPLACEMENT"
    show_actors: Annotated[Flag, about("Whether the public sees who made a change.")] = False
    show_past: Annotated[
        Flag, about("Whether the public sees the history: earlier versions, and that a deleted handle existed.")
    ] = True
    default_ttl: Annotated[
        int, number(0, 0x7FFF_FFFF), about("How many seconds a value can be cached if it has no TTL of its own.")
    ] = DEFAULT_TTL
    default_administrators: Annotated[
        Administrators,
        about("Administrators of new records that name none; {prefix} is replaced by the prefix of the namespace."),
    ] = ()
    work_type: Annotated[
        TypeName, about("The type of the value in a fixed version that names its work (the latest version).")
    ] = "LINK.WORK"
    expression_type: Annotated[TypeName, about("The type of the values in a work that name its fixed versions.")] = (
        "LINK.EXPRESSION"
    )
    object_type: Annotated[TypeName, about("The type of the value in a metadata record that names the object.")] = (
        "LINK.OBJECT"
    )
    metadata_type: Annotated[TypeName, about("The type of the value in an object that names its metadata record.")] = (
        "LINK.METADATA"
    )

    def __post_init__(self) -> None:
        for name, key in KEYS.items():
            object.__setattr__(self, name, key.convert(getattr(self, name)))
        self._check_scheme_and_case()
        self._check_types()

    @classmethod
    def from_toml(
        cls, text: str, profiles: Mapping[str, "Policy"] | None = None, before: "Policy | None" = None
    ) -> Self:
        """Parse what a person wrote: an optional profile, and what differs from it.

        Handles must be legal, except those that the policy already had `before`.

        A name other than those of the profiles is a site's own, and its text must name the scheme: so a typo in the
        name of a profile is noticed, which would otherwise create a namespace with the wrong case rule, permanently.
        """
        known = PROFILES if profiles is None else profiles
        values = parse(text, KEYS)
        name = KEYS["profile"].convert(values.get("profile", CUSTOM_PROFILE))
        base = known.get(name)
        if base is None and "profile" in values and "scheme" not in values:
            message = f"{quote_text(name)} is none of {', '.join(known)}; your own profile must name its scheme"
            raise InvalidPolicy("profile", message)
        policy = cls(**values) if base is None else cls(**base.values() | values)
        for key in values:
            if before is None or getattr(before, key) != getattr(policy, key):
                KEYS[key].check_new(getattr(policy, key))
        policy.suffix_scheme()
        policy.to_toml()  # refuse what is too long to store
        return policy

    @classmethod
    def from_stored(cls, text: str) -> Self:
        """Parse what `to_toml` wrote. Keys that are newer than the text get their default; the scheme need not be
        installed, and handles need not be legal any more.
        """
        return cls(**parse(text, KEYS))

    def to_toml(self) -> str:
        """The complete policy, which is stored: each key after a comment that says what it is for."""
        text = "\n".join([f"# {key.about}\n{self._format_line(name)}\n" for name, key in KEYS.items()])
        check_size(text, "the complete policy")
        return text

    def values(self) -> dict[str, Any]:
        """Every key with its value."""
        return {name: getattr(self, name) for name in KEYS}

    def line(self, key: str) -> str:
        """The line of a key in the policy's text, for refusals: `who_may_mint = "server"`."""
        text = self._format_line(key)
        return text if len(text) <= MAX_LINE_LENGTH else text[:MAX_LINE_LENGTH] + "…"

    def _format_line(self, key: str) -> str:
        return f"{key} = {format_toml(getattr(self, key))}"

    @property
    def lead(self) -> int:
        """How many milliseconds minted handles can run ahead of the clock, considering `strict_clock`."""
        return STRICT_CLOCK if self.strict_clock else self.max_ahead

    @property
    def types_used(self) -> tuple[str, ...]:
        """The types of values that the server writes under this policy; see A6 for those that are handles."""
        authority = (self.creation_date_type, self.creator_type, self.owner_type) if self.authority else ()
        tombstone = (self.tombstone_reason_type, self.tombstone_date_type, self.tombstone_replacement_type)
        links = (self.work_type, self.expression_type, self.object_type, self.metadata_type)
        return tuple(filter(None, (*authority, *tombstone, *links)))

    @cached_property
    def named_types(self) -> frozenset[str]:
        """The folded types that the policy names for values of records."""
        return frozenset(map(fold, (*self.allowed_types, *self.required_types, *self.types_used)))

    @cached_property
    def identifier_types(self) -> frozenset[str]:
        """The folded types about an identifier itself, which do not describe its target."""
        return frozenset(map(fold, (*self.types_used, self.creator_type, self.creation_date_type)))

    def administrators(self, prefix: str) -> tuple[Admin, ...]:
        """The administrators of new records that name none."""
        return _expand_administrators(self.default_administrators, prefix)

    def suffix_scheme(self) -> Scheme | None:
        """The scheme of suffixes; None if any legal suffix is valid. Raises `InvalidPolicy` if the scheme is not
        installed, or does not accept the options.
        """
        return self._scheme

    @cached_property
    def _scheme(self) -> Scheme | None:
        if self.scheme == FREE:
            return None
        name, _, template = self.scheme.partition(":")
        pattern = {"template": template} if name == PatternScheme.name else {}
        try:
            return load_scheme(name, **self.scheme_options, **pattern)
        except (TypeError, ValueError) as problem:
            raise InvalidPolicy("scheme", f"{quote_text(self.scheme)} cannot be used here: {problem}") from problem

    @cached_property
    def _forbidden(self) -> TypeQuery:
        return TypeQuery(self.forbidden_types)

    @cached_property
    def _allowed(self) -> TypeQuery:
        return TypeQuery((*self.allowed_types, HS_ADMIN + ".", *self.required_types, *self.types_used))

    def normalize(self, handle: Handle) -> Handle:
        """The registered spelling of a handle: PILIN suffixes and CORDRA paths in uppercase (C4), others unchanged.
        A handle that is not valid in the scheme is not changed.
        """
        if self.scheme not in _UPPERCASE_SCHEMES:
            return handle
        scheme = self.suffix_scheme()
        try:
            return handle if scheme is None else scheme.normalize(handle)
        except InvalidName:
            return handle

    def lookup_form(self, handle: Handle) -> tuple[Handle, str | None, str | None]:
        """The handle of the record, with the query and fragment of a CORDRA handle for the caller (C5)."""
        if self.scheme != "cordra":
            return handle, None, None
        try:
            name = CordraName.parse(handle)
        except InvalidName:
            return handle, None, None
        return name.bare, name.query, name.fragment

    def check_open(self, prefix: str) -> list[Refusal]:
        """Why no new handle can be registered in the namespace: it is retired."""
        if not self.retired:
            return []
        advice = AdviceKind.REOPEN_NAMESPACE(prefix=prefix)
        return [self._refusal(Subject.POLICY, "retired", f"Namespace {quote_text(prefix)[1:-1]} is retired", advice)]

    def check_name(self, handle: Handle) -> list[Refusal]:
        """Why a handle cannot be registered: it violates the scheme (P8), has a query (C5), or uses misleading
        characters.
        """
        bare, query, fragment = self.lookup_form(handle)
        if query is not None or fragment is not None:
            message = f"{quote_text(str(handle))} has a query or fragment, which is only for lookups (rule C5)"
            return [self._refusal(Subject.NAME, "scheme", message, AdviceKind.REGISTER_WITHOUT_QUERY(handle=bare))]
        try:
            scheme = self.suffix_scheme()
        except InvalidPolicy as problem:
            return [self._refusal(Subject.NAME, "scheme", problem.message, AdviceKind.INSTALL_SCHEME())]
        try:
            if scheme is not None:
                scheme.validate(handle)
        except InvalidName as problem:
            advice = AdviceKind.FOLLOW_SCHEME(prefix=handle.prefix)
            return [self._refusal(Subject.NAME, "scheme", str(problem), advice)]
        return [] if handle.suffix.isascii() else self._check_letters(handle)

    def _check_letters(self, handle: Handle) -> list[Refusal]:
        """Check the characters of the suffix; the policy does not apply to the prefix."""
        refusals = []
        if self.nfc and (composed := nfc(handle.suffix)) != handle.suffix:
            at = next(count for count, pair in enumerate(zip_longest(handle.suffix, composed)) if pair[0] != pair[1])
            position = len(handle.prefix) + 1 + at + 1
            message = f"{quote_text(str(handle))} is not in Unicode normalization form C, from character {position} on"
            refusals.append(self._refusal(Subject.NAME, "nfc", message, _advise_composed(handle, composed)))
        if self.single_script and (mixed := find_mixed_scripts(handle.suffix)) is not None:
            position = len(handle.prefix) + 1 + mixed.position + 1
            what = f"character {position}, {format_character(handle.suffix[mixed.position])}, is {mixed.script}"
            message = (
                f"{quote_text(str(handle))} mixes scripts: {what}, and the characters before it are {mixed.before}"
            )
            refusals.append(self._refusal(Subject.NAME, "single_script", message, AdviceKind.USE_ONE_SCRIPT()))
        return refusals

    def check_values(
        self, values: Iterable[Value], *, complete: bool = True, known: Iterable[Value] = ()
    ) -> list[Refusal]:
        """Why a record cannot have these values. Reserved handles and tombstones are not `complete`: they need not
        have the required types. URLs that are `known` are not checked again.
        """
        indexes: dict[str, list[int]] = {}
        refusals = []
        for value, problem in find_url_problems(values, known, self.url_schemes) if self.url_schemes else ():
            data = quote_text(value.data.decode("utf-8", "replace"))
            message = f"value {value.index} of type {quote_text(value.type)}, {data}, {problem.reason}"
            refusal = self._refusal(Subject.VALUES, "url_schemes", message, advise_url(problem))
            refusals.append(replace(refusal, is_quoted=not problem.is_malformed))
        for value in values:
            indexes.setdefault(value.type, []).append(value.index)
        for type_, found in indexes.items():
            if self.forbidden_types and self._forbidden.finds(type_):
                key, advice = "forbidden_types", AdviceKind.OMIT_FORBIDDEN_TYPE()
            elif self.allowed_types and not self._allowed.finds(type_):
                key, advice = "allowed_types", AdviceKind.OMIT_OTHER_TYPE()
            else:
                continue
            message = f"{_describe_values(found)} of type {quote_text(type_)}"
            refusals.append(self._refusal(Subject.VALUES, key, message, advice))
        for query in self.required_types if complete else ():
            if not any(map(TypeQuery((query,)).finds, indexes)):
                message = f"the record has no value of type {quote_text(query)}"
                refusals.append(self._refusal(Subject.VALUES, "required_types", message, AdviceKind.ADD_VALUE()))
        return refusals

    def check_deletion(self, handle: Handle) -> list[Refusal]:
        """Why a handle cannot be deleted (S8)."""
        if self.deletion is Deletion.ALLOWED:
            return []
        advice = AdviceKind.TOMBSTONE_INSTEAD(handle=handle)
        return [self._refusal(Subject.DELETION, "deletion", f"{quote_text(str(handle))} cannot be deleted", advice)]

    def check_change(self, new: "Policy") -> list[Refusal]:
        """Why a namespace cannot get a new policy: its case rule is fixed (H5)."""
        if new.case is self.case:
            return []
        message = f"{new.line('case')} would change the case rule of the namespace (rule H5)"
        return [self._refusal(Subject.POLICY, "case", message, AdviceKind.CHANGE_CASE())]

    def _refusal(self, subject: Subject, key: str, message: str, advice: Advice) -> Refusal:
        return Refusal(subject, key, self.line(key), message, advice)

    def _check_scheme_and_case(self) -> None:
        name, colon, _ = self.scheme.partition(":")
        if not name or (bool(colon) != (name == PatternScheme.name)):
            raise InvalidPolicy("scheme", f"expected a scheme or pattern:TEMPLATE, not {quote_text(self.scheme)}")
        if name == FREE and self.scheme_options:
            raise InvalidPolicy("scheme_options", f"{self.line('scheme')} has no options")
        if name in _UPPERCASE_SCHEMES and self.case is CaseRule.SENSITIVE:
            expected = PROFILE_CASE_RULES.get(name, CaseRule.INSENSITIVE)
            instead = format_toml(expected.value)
            raise InvalidPolicy("case", f"{self.line('scheme')} ignores case; write case = {instead}")
        if self.case is CaseRule.PATH and name != "cordra":
            raise InvalidPolicy("case", f'case = "path" requires the scheme cordra, not {self.line("scheme")}')

    def _check_types(self) -> None:
        """Refuse a policy that no record could follow."""
        seen: set[str] = set()
        for type_ in self.types_used:
            if fold(type_) in seen:
                raise InvalidPolicy(None, f"the type {quote_text(type_)} is used twice in this policy; name two types")
            seen.add(fold(type_))
        for type_ in (HS_ADMIN, *self.required_types, *self.types_used):
            if self._forbidden.finds(type_):
                raise InvalidPolicy(
                    "forbidden_types", f"the type {quote_text(type_)} is required and cannot be forbidden"
                )


KEYS: Final = {name: Key(name, hint) for name, hint in get_type_hints(Policy, include_extras=True).items()}
"""Every key, in the order of the text."""

DEFAULTS: Final = Policy()
"""The policy of an empty text."""

_PROFILE_URL_SCHEMES: Final = ("http", "https", "ftp", "ftps", "mailto", "urn", "hdl", "doi", "info")
"""Web and file servers, mail, and persistent identifiers. Prefixes without a policy use a profile itself, so a shorter
list would change existing namespaces. The web resolver redirects to fewer (`URL_SCHEMES`)."""

PROFILES: Final[Mapping[str, Policy]] = {
    "pilin": Policy(
        profile="pilin",
        scheme="pilin",
        case=PROFILE_CASE_RULES["pilin"],
        url_schemes=_PROFILE_URL_SCHEMES,
        authority=True,
        deletion=Deletion.TOMBSTONE,
        tombstone_reason_type=TYPE_REGISTRY + DEFAULTS.tombstone_reason_type,
        tombstone_date_type=TYPE_REGISTRY + DEFAULTS.tombstone_date_type,
        tombstone_replacement_type=TYPE_REGISTRY + DEFAULTS.tombstone_replacement_type,
        work_type=TYPE_REGISTRY + DEFAULTS.work_type,
        expression_type=TYPE_REGISTRY + DEFAULTS.expression_type,
        object_type=TYPE_REGISTRY + DEFAULTS.object_type,
        metadata_type=TYPE_REGISTRY + DEFAULTS.metadata_type,
    ),
    "cordra": Policy(
        profile="cordra",
        scheme="cordra",
        case=PROFILE_CASE_RULES["cordra"],
        url_schemes=_PROFILE_URL_SCHEMES,
        deletion=Deletion.TOMBSTONE,
    ),
    "free": Policy(profile="free", case=PROFILE_CASE_RULES["free"]),
    "exact": Policy(profile="exact", case=PROFILE_CASE_RULES["exact"]),
}
"""The built-in profiles."""


def find_url_problems(
    values: Iterable[Value], known: Iterable[Value] = (), schemes: Collection[str] = URL_SCHEMES
) -> Iterator[tuple[Value, UrlProblem]]:
    """The URLs that are not absolute URLs with one of these schemes, and why; without those that are `known`."""
    for value in find_new_urls(values, known):
        if problem := find_url_problem(value.data, schemes):
            yield value, problem


def advise_url(problem: UrlProblem) -> Advice:
    """What to do about it."""
    if problem.has_blank:
        return AdviceKind.ENCODE_BLANK()
    if problem.meant:
        return AdviceKind.USE_URL(url=problem.meant)
    return AdviceKind.USE_OTHER_SCHEME() if problem.is_scheme else AdviceKind.USE_ABSOLUTE_URL()


def find_new_urls(values: Iterable[Value], known: Iterable[Value]) -> list[Value]:
    """The values that are URLs, without those that are `known`."""
    urls = [value for value in values if is_url_type(value.type)]
    before = {(value.type, value.data) for value in known} if urls else set()
    return [value for value in urls if (value.type, value.data) not in before]


@lru_cache(_MAX_CACHED_ADMINISTRATORS)
def _expand_administrators(texts: tuple[str, ...], prefix: str) -> tuple[Admin, ...]:
    admins = map(Admin.from_text, texts)
    return tuple([replace(admin, administrator=_expand_prefix(admin.administrator, prefix)) for admin in admins])


def _expand_prefix(administrator: ValueRef, prefix: str) -> ValueRef:
    return replace(administrator, handle=administrator.handle.replace(PREFIX_PLACEHOLDER, prefix))


def _advise_composed(handle: Handle, composed: str) -> Advice:
    try:
        name = str(Handle.parse(f"{handle.prefix}/{composed}"))
    except InvalidName:  # the normalization form of a few characters is not allowed in a handle
        return AdviceKind.CHOOSE_CHARACTERS()
    return AdviceKind.REGISTER_COMPOSED(handle=name, escaped=ascii(name))  # they look alike, so show the codes


def _describe_values(indexes: list[int]) -> str:
    """`value 3 is` or `values 1, 2 are`; of many only the first are listed."""
    shown = ", ".join(map(str, indexes[:_MAX_LISTED_INDEXES]))
    more = ", …" if len(indexes) > _MAX_LISTED_INDEXES else ""
    return f"value {shown} is" if len(indexes) == 1 else f"values {shown}{more} are"

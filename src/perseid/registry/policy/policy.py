"""What a namespace demands: its policy, a frozen value with a TOML text that is stored in `0.SITE/POLICY/<PREFIX>`.

A person writes a profile and what differs from it (`profile = "pilin"`, `who_may_mint = "server"`); `Policy.from_toml`
reads that. What is stored is `Policy.to_toml`, which says everything: a later version of this program may have better
profiles, and no existing namespace changes because of it. So `Policy.from_stored` looks at no profile.

The checks give back every objection as a `Refusal` that names the policy's line and says how to comply; to raise it,
with the code that a protocol has for it, is the caller's part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import zip_longest
from typing import Any, Final, Self

from perseid.names.allocator import DEFAULT_MAX_AHEAD, STRICT_CLOCK
from perseid.names.characters import fold
from perseid.names.cordra import CordraName
from perseid.names.errors import InvalidName, format_character, quote_text
from perseid.names.handle import PROFILE_CASE_RULES, CaseRule, Handle
from perseid.names.pattern import PatternScheme
from perseid.names.schemes import load_scheme
from perseid.names.suffix_scheme import Scheme
from perseid.names.unicode import find_mixed_scripts, nfc
from perseid.records.admin import Admin
from perseid.records.types import HS_ADMIN, TypeQuery
from perseid.records.value import DEFAULT_TTL, Value, ValueRef

from . import text as policy_text
from .keys import KEYS, Audience, Deletion
from .text import InvalidPolicy, Options

FREE: Final = "free"
"""The scheme that is none: any legal suffix. Minting in it appends a UUID, as deployed servers do (P8)."""

CUSTOM_PROFILE: Final = "own"
"""The profile of a policy that names none."""

TYPE_REGISTRY: Final = "102.100.TYPE/"
"""Where the types of authority metadata (A5), and all types of the profile `pilin`, are registered."""

DEFAULT_OWNER_TYPE: Final = TYPE_REGISTRY + "OWNER"
"""The type for owners where they are to be told from managers (A5); a policy that wants this names it."""

PREFIX_PLACEHOLDER: Final = "{prefix}"
"""Stands for the namespace's prefix in the default administrators, so that one text serves many namespaces."""

_UPPERCASE_SCHEMES: Final = frozenset(
    {"pilin", "pilin-check", "cordra"}
)  # names are registered so, and read in either case
_MAX_LISTED_INDEXES: Final = 5  # of the values that a refusal is about


class Subject(Enum):
    """What a refusal is about; protocols have different codes for them."""

    NAME = "name"
    VALUES = "values"
    DELETION = "deletion"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a policy does not allow something, and what would be allowed."""

    subject: Subject
    key: str
    """The policy's key that refuses."""
    line: str
    """Its line, as the policy's text has it; cut if it is very long."""
    message: str
    """What is wrong, as a clause without a full stop."""
    remedy: str
    """How to comply, as a sentence."""

    def __str__(self) -> str:
        return f"{self.message}; the policy of this namespace says: {self.line}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything a namespace demands. The defaults are those of a policy that says nothing; an empty text is "none"."""

    # What each is for, and what it may be, says `policy_keys.KEYS`.
    profile: str = CUSTOM_PROFILE
    purpose: str = ""
    scheme: str = FREE
    scheme_options: Options = ()
    case: CaseRule = CaseRule.SENSITIVE
    nfc: bool = False
    single_script: bool = False
    max_ahead: int = DEFAULT_MAX_AHEAD
    strict_clock: bool = False
    who_may_mint: Audience = Audience.ADMINISTRATORS
    who_may_list: Audience = Audience.ADMINISTRATORS
    required_types: tuple[str, ...] = ()
    allowed_types: tuple[str, ...] = ()
    forbidden_types: tuple[str, ...] = ()
    registered_types: bool = False
    validate_types: bool = False
    authority: bool = False
    creation_date_type: str = TYPE_REGISTRY + "CREATION_DATE"
    creator_type: str = TYPE_REGISTRY + "CREATOR"
    default_creator: str = ""
    owner_type: str = ""
    deletion: Deletion = Deletion.ALLOWED
    tombstone_reason_type: str = "TOMBSTONE.REASON"
    tombstone_date_type: str = "TOMBSTONE.DATE"
    tombstone_replacement_type: str = "TOMBSTONE.REPLACEMENT"
    show_actors: bool = False
    show_past: bool = True
    default_ttl: int = DEFAULT_TTL
    default_administrators: tuple[str, ...] = ()
    work_type: str = "LINK.WORK"
    expression_type: str = "LINK.EXPRESSION"
    object_type: str = "LINK.OBJECT"
    metadata_type: str = "LINK.METADATA"
    _loaded: Scheme | None = field(default=None, init=False, repr=False, compare=False)
    _forbidden: TypeQuery = field(init=False, repr=False, compare=False)
    _allowed: TypeQuery = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, key in KEYS.items():
            key.kind.check(name, getattr(self, name))
        object.__setattr__(self, "_forbidden", TypeQuery(self.forbidden_types))
        own = (HS_ADMIN + ".", *self.required_types, *self.types_used)
        object.__setattr__(self, "_allowed", TypeQuery((*self.allowed_types, *own)))
        self._check_scheme_and_case()
        self._check_types()

    @classmethod
    def from_toml(cls, text: str, profiles: Mapping[str, "Policy"] | None = None) -> Self:
        """Take what a person wrote: a profile, if one is named, and what differs from it.

        A name that is no profile's is a site's own. Such a text must name its scheme: that shows a slip in the name of
        a profile, which would otherwise make a namespace with other rules than meant, and the case rule is for ever.
        """
        known = PROFILES if profiles is None else profiles
        given: dict[str, Any] = policy_text.parse(text, KEYS)
        name = given.get("profile", CUSTOM_PROFILE)
        base = known.get(name)
        if base is None and "profile" in given and "scheme" not in given:
            message = f"{quote_text(name)} is none of {', '.join(known)}; a profile of your own names its scheme"
            raise InvalidPolicy("profile", message)
        policy = cls(**given) if base is None else cls(**base.values() | given)
        policy.suffix_scheme()
        policy.to_toml()  # what is too long to be stored is refused here
        return policy

    @classmethod
    def from_stored(cls, text: str) -> Self:
        """Take what `to_toml` wrote. It is complete, so no profile is asked; a key that is younger than the text has
        its default. A scheme that is not installed any more is no reason not to read the rest.
        """
        given: dict[str, Any] = policy_text.parse(text, KEYS)
        return cls(**given)

    def to_toml(self) -> str:
        """The complete policy, each key below a line that says what it is for: what is stored."""
        return policy_text.format_policy(self.values(), KEYS)

    def values(self) -> dict[str, Any]:
        """Every key with its value."""
        return {name: getattr(self, name) for name in KEYS}

    def line(self, key: str) -> str:
        """The line of the policy's text with this key, for refusals: `who_may_mint = "server"`."""
        return policy_text.truncate(policy_text.format_line(key, getattr(self, key), KEYS[key]))

    @property
    def lead(self) -> int:
        """How many milliseconds names may run ahead of the clock, `strict_clock` considered: the minter's setting."""
        return STRICT_CLOCK if self.strict_clock else self.max_ahead

    @property
    def types_used(self) -> tuple[str, ...]:
        """The types of values that the server itself writes under this policy; where they are handles, see A6."""
        authority = (self.creation_date_type, self.creator_type, self.owner_type) if self.authority else ()
        tombstone = (self.tombstone_reason_type, self.tombstone_date_type, self.tombstone_replacement_type)
        links = (self.work_type, self.expression_type, self.object_type, self.metadata_type)
        return tuple(filter(None, (*authority, *tombstone, *links)))

    def administrators(self, prefix: str) -> tuple[Admin, ...]:
        """The administrators of new records under this prefix that bring none."""
        admins = map(Admin.from_text, self.default_administrators)
        return tuple(replace(admin, administrator=_expand_prefix(admin.administrator, prefix)) for admin in admins)

    def suffix_scheme(self) -> Scheme | None:
        """The scheme that makes and judges suffixes; None where any legal suffix will do. InvalidPolicy if there is no
        such scheme here, or not with these options.
        """
        if self._loaded is None and self.scheme != FREE:
            name, _, template = self.scheme.partition(":")
            pattern = {"template": template} if name == PatternScheme.name else {}
            try:
                scheme = load_scheme(name, **dict(self.scheme_options), **pattern)
            except (TypeError, ValueError) as problem:
                raise InvalidPolicy("scheme", f"{quote_text(self.scheme)} cannot be used here: {problem}") from problem
            object.__setattr__(self, "_loaded", scheme)
        return self._loaded

    def normalize(self, handle: Handle) -> Handle:
        """The spelling under which a name is registered: PILIN suffixes and CORDRA paths in capitals (C4), all others
        as they are. What is not valid in the scheme is left alone.
        """
        if self.scheme not in _UPPERCASE_SCHEMES:
            return handle
        scheme = self.suffix_scheme()
        try:
            return handle if scheme is None else scheme.normalize(handle)
        except InvalidName:
            return handle

    def lookup_form(self, handle: Handle) -> tuple[Handle, str | None, str | None]:
        """The name whose record answers, with the query and fragment for the caller (C5); those of CORDRA have them."""
        if self.scheme != "cordra":
            return handle, None, None
        try:
            name = CordraName.parse(handle)
        except InvalidName:
            return handle, None, None
        return name.bare, name.query, name.fragment

    def check_name(self, handle: Handle) -> list[Refusal]:
        """What the policy has against registering a name: not of the scheme (P8), with a query (C5), or with letters
        that are not what they seem.
        """
        bare, query, fragment = self.lookup_form(handle)
        if query is not None or fragment is not None:
            message = f"{quote_text(str(handle))} has a query or fragment, which belongs to a look-up (rule C5)"
            return [self._refusal(Subject.NAME, "scheme", message, f"Register {bare}.")]
        try:
            scheme = self.suffix_scheme()
        except InvalidPolicy as problem:
            remedy = "Install the package that brings the scheme, or change the policy."
            return [self._refusal(Subject.NAME, "scheme", problem.message, remedy)]
        try:
            if scheme is not None:
                scheme.validate(handle)
        except InvalidName as problem:
            remedy = "Let the service make the suffix (perseid mint), or give one that follows the scheme."
            return [self._refusal(Subject.NAME, "scheme", str(problem), remedy)]
        return [] if handle.suffix.isascii() else self._check_letters(handle)

    def _check_letters(self, handle: Handle) -> list[Refusal]:
        """What the policy has against the letters of a suffix; those of the prefix are not the namespace's affair."""
        refusals = []
        if self.nfc and (composed := nfc(handle.suffix)) != handle.suffix:
            at = next(count for count, pair in enumerate(zip_longest(handle.suffix, composed)) if pair[0] != pair[1])
            place = len(handle.prefix) + 1 + at + 1
            message = f"{quote_text(str(handle))} is not in Unicode's normal form C, from character {place} on"
            refusals.append(self._refusal(Subject.NAME, "nfc", message, _composed_remedy(handle, composed)))
        if self.single_script and (mixed := find_mixed_scripts(handle.suffix)) is not None:
            place = len(handle.prefix) + 1 + mixed.position + 1
            what = f"character {place}, {format_character(handle.suffix[mixed.position])}, is {mixed.script}"
            message = f"{quote_text(str(handle))} mixes scripts: {what}, and what stands before it is {mixed.before}"
            remedy = "Write the suffix in one script; digits and signs go with every one."
            refusals.append(self._refusal(Subject.NAME, "single_script", message, remedy))
        return refusals

    def check_values(self, values: Iterable[Value], *, complete: bool = True) -> list[Refusal]:
        """What the policy has against the values of a record. Names that are reserved or have a tombstone are not
        `complete`: they need not have what is required of others.
        """
        indexes: dict[str, list[int]] = {}
        for value in values:
            indexes.setdefault(value.type, []).append(value.index)
        refusals = []
        for type_, stored in indexes.items():
            if self.forbidden_types and self._forbidden.finds(type_):
                key = "forbidden_types"
                remedy = "Leave it out, or keep what it says under a type that is not forbidden."
            elif self.allowed_types and not self._allowed.finds(type_):
                key, remedy = "allowed_types", "Leave it out, or use one of these types."
            else:
                continue
            message = f"{_describe_values(stored)} of the type {quote_text(type_)}"
            refusals.append(self._refusal(Subject.VALUES, key, message, remedy))
        for query in self.required_types if complete else ():
            if not any(map(TypeQuery((query,)).finds, indexes)):
                message = f"no value is of the type {quote_text(query)}"
                refusals.append(self._refusal(Subject.VALUES, "required_types", message, "Add such a value."))
        return refusals

    def check_deletion(self, handle: Handle) -> list[Refusal]:
        """What the policy has against deleting a name (S8)."""
        if self.deletion is Deletion.ALLOWED:
            return []
        remedy = f"Say what became of the thing: perseid tombstone {quote_text(str(handle))} --reason TEXT."
        return [self._refusal(Subject.DELETION, "deletion", f"{quote_text(str(handle))} cannot be deleted", remedy)]

    def check_change(self, new: "Policy") -> list[Refusal]:
        """What there is against a new policy for a namespace that has this one: its case rule is fixed (H5)."""
        if new.case is self.case:
            return []
        message = f"{new.line('case')} would change what was fixed when the namespace was made (rule H5)"
        remedy = "Leave it as it is; or, if no two names become one by it, say that it is meant: --change-case."
        return [self._refusal(Subject.POLICY, "case", message, remedy)]

    def _refusal(self, subject: Subject, key: str, message: str, remedy: str) -> Refusal:
        return Refusal(subject, key, self.line(key), message, remedy)

    def _check_scheme_and_case(self) -> None:
        name, colon, _ = self.scheme.partition(":")
        if not name or (bool(colon) != (name == PatternScheme.name)):
            raise InvalidPolicy("scheme", f"a scheme or pattern:TEMPLATE is expected, not {quote_text(self.scheme)}")
        if name == FREE and self.scheme_options:
            raise InvalidPolicy("scheme_options", f"{self.line('scheme')} takes no options")
        if name in _UPPERCASE_SCHEMES and self.case is CaseRule.SENSITIVE:
            expected = PROFILE_CASE_RULES.get(name, CaseRule.INSENSITIVE)
            instead = policy_text.format_toml(expected.value)
            raise InvalidPolicy("case", f"{self.line('scheme')} reads names in either case; write case = {instead}")
        if self.case is CaseRule.PATH and name != "cordra":
            raise InvalidPolicy("case", f"only names of the scheme cordra have a path, and here {self.line('scheme')}")

    def _check_types(self) -> None:
        """Refuse a policy that contradicts itself: no record could follow it."""
        seen: set[str] = set()
        for type_ in self.types_used:
            if fold(type_) in seen:
                raise InvalidPolicy(
                    None, f"the type {quote_text(type_)} has two meanings in this policy; name two types"
                )
            seen.add(fold(type_))
        for type_ in (HS_ADMIN, *self.required_types, *self.types_used):
            if self._forbidden.finds(type_):
                raise InvalidPolicy(
                    "forbidden_types", f"the type {quote_text(type_)} is needed, so it cannot be forbidden"
                )


DEFAULTS: Final = Policy()
"""What a policy says that says nothing."""

PROFILES: Final[Mapping[str, Policy]] = {
    "pilin": Policy(
        profile="pilin",
        scheme="pilin",
        case=PROFILE_CASE_RULES["pilin"],
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
    "cordra": Policy(profile="cordra", scheme="cordra", case=PROFILE_CASE_RULES["cordra"], deletion=Deletion.TOMBSTONE),
    "free": Policy(profile="free", case=PROFILE_CASE_RULES["free"]),
    "exact": Policy(profile="exact", case=PROFILE_CASE_RULES["exact"]),
}
"""The built-in profiles: ready-made policies, from which a namespace's own differs by a few lines."""


def _expand_prefix(administrator: ValueRef, prefix: str) -> ValueRef:
    return replace(administrator, handle=administrator.handle.replace(PREFIX_PLACEHOLDER, prefix))


def _composed_remedy(handle: Handle, composed: str) -> str:
    try:
        name = str(Handle.parse(f"{handle.prefix}/{composed}"))
    except InvalidName:  # a few characters have their normal form where no name can have it
        return "Choose other characters."
    escaped = ascii(name)  # the two look alike, so that the codes have to tell
    return f"Register {name}, which is {escaped}."


def _describe_values(indexes: list[int]) -> str:
    """`value 3 is` or `values 1, 2 are`; of many only the first are named."""
    shown = ", ".join(map(str, indexes[:_MAX_LISTED_INDEXES]))
    more = ", …" if len(indexes) > _MAX_LISTED_INDEXES else ""
    return f"value {shown} is" if len(indexes) == 1 else f"values {shown}{more} are"

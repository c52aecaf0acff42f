"""Keys of a policy: their kinds and descriptions, for parser, formatter, schema and manual.

The defaults are in `policy.Policy`, which has a field for each key. A key that is added later must have a default that
changes nothing, because stored texts do not have it.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from perseid.names.handle import CaseRule
from perseid.names.pattern import MAX_TEMPLATE_LENGTH
from perseid.records.json_parsing import JsonObject

from .text import (
    Administrators,
    Choice,
    Flag,
    HandleName,
    Key,
    NamedOptions,
    Number,
    Text,
    TypeList,
    TypeName,
    format_toml,
)

MAX_AHEAD: Final = 30 * 86_400_000
"""The largest `max_ahead`: 30 days, or 2,592 million handles at once. A suffix should show roughly when it is from."""

MAX_PURPOSE: Final = 2_000
"""The longest purpose, in characters: a page. More should be a document with its own identifier."""

_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


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


_PROFILE = Text(64, "[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and ._-")
_MINTERS = (Audience.ADMINISTRATORS, Audience.SERVER, Audience.AUTHENTICATED)

KEYS: Final[Mapping[str, Key]] = {
    "profile": Key(_PROFILE, "The profile that the policy is based on. For information only: the keys below apply."),
    "purpose": Key(Text(MAX_PURPOSE), "What the namespace is for, in words that outlive the technology."),
    "scheme": Key(
        Text(len("pattern:") + MAX_TEMPLATE_LENGTH),
        "Which suffixes are valid and how new ones are minted: free (any), pilin, pilin-check, cordra, uuid, "
        "pattern:TEMPLATE, or an installed scheme.",
    ),
    "scheme_options": Key(NamedOptions(), "Options of the scheme, such as { version = 1 } for cordra and uuid."),
    "case": Key(
        Choice(CaseRule),
        "Whether suffixes are case-sensitive (path: only after ? and #). It can change only while no two handles "
        "collide.",
    ),
    "nfc": Key(
        Flag(),
        "Whether suffixes must be in Unicode normalization form C, so that no two look alike because of accents.",
    ),
    "single_script": Key(
        Flag(),
        "Whether a suffix must be in one script, so that no Cyrillic letter passes for a Latin one. Digits and "
        "punctuation belong to every script.",
    ),
    "max_ahead": Key(
        Number(0, MAX_AHEAD), "How many milliseconds minted handles with a time can run ahead of the clock."
    ),
    "strict_clock": Key(
        Flag(), "Whether minted handles with a time never run ahead of the clock, which allows 1,000 per second."
    ),
    "who_may_mint": Key(
        Choice(_MINTERS),
        "Who can create handles (mint, reserve, create). Administrators have ADD_HANDLE on the prefix handle.",
    ),
    "who_may_list": Key(
        Choice(Audience),
        "Who can list the handles of the namespace. Administrators have LIST_HANDLES on the prefix handle.",
    ),
    "required_types": Key(
        TypeList(), "Types that every record must have. URL is that type, URL. also includes its subtypes."
    ),
    "allowed_types": Key(
        TypeList(),
        "The only types that a record can have; an empty list allows all. HS_ADMIN, and types in other keys, need "
        "not be listed.",
    ),
    "forbidden_types": Key(TypeList(), "Types that no record can have."),
    "registered_types": Key(Flag(), "Whether every type must be registered: a handle that resolves to its definition."),
    "validate_types": Key(
        Flag(),
        "Whether data is checked against the definition of its type, if that is registered here.",
    ),
    "authority": Key(Flag(), "Whether every record has a date of creation, a creator and owners."),
    "creation_date_type": Key(TypeName(), "The type of the value with the date of creation."),
    "creator_type": Key(TypeName(), "The type of the value with the creator, a handle."),
    "default_creator": Key(
        HandleName(), "The creator of records that name none. If empty and authority is true, these are refused."
    ),
    "owner_type": Key(
        TypeName(optional=True),
        "The type of values with owners, if these differ from administrators. If empty, HS_ADMIN names the owners.",
    ),
    "deletion": Key(Choice(Deletion), "Whether handles can be deleted, or only become tombstones."),
    "tombstone_reason_type": Key(TypeName(), "The type of a tombstone's value with the reason."),
    "tombstone_date_type": Key(TypeName(), "The type of a tombstone's value with the date."),
    "tombstone_replacement_type": Key(TypeName(), "The type of a tombstone's value with the handle to use instead."),
    "show_actors": Key(Flag(), "Whether the public sees who made a change."),
    "show_past": Key(
        Flag(), "Whether the public sees the history: earlier versions, and that a deleted handle existed."
    ),
    "default_ttl": Key(Number(0, 0x7FFF_FFFF), "How many seconds a value can be cached if it has no TTL of its own."),
    "default_administrators": Key(
        Administrators(),
        "Administrators of new records that name none; {prefix} is replaced by the prefix of the namespace.",
    ),
    "work_type": Key(TypeName(), "The type of the value in a fixed version that names its work (the latest version)."),
    "expression_type": Key(TypeName(), "The type of the values in a work that name its fixed versions."),
    "object_type": Key(TypeName(), "The type of the value in a metadata record that names the object."),
    "metadata_type": Key(TypeName(), "The type of the value in an object that names its metadata record."),
}
"""Every key, in the order of the text."""


def policy_schema(defaults: Mapping[str, object]) -> JsonObject:
    """The JSON Schema of a policy's text, for TOML editors. It cannot express every check of the parser."""
    properties = {
        name: {"description": key.about, **key.kind.schema(), "default": key.kind.plain(defaults[name])}
        for name, key in KEYS.items()
    }
    return {
        "$schema": _SCHEMA_DIALECT,
        "title": "The policy of a namespace",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def policy_table(defaults: Mapping[str, object], profiles: Mapping[str, Mapping[str, object]]) -> str:
    """The manual's table: one row for each key, with the default and the values of the built-in profiles."""
    rows = ["| key | value | default | in profiles | description |", "|---|---|---|---|---|"]
    for name, key in KEYS.items():
        others = [
            f"{profile}: `{format_toml(key.kind.plain(values[name]))}`"
            for profile, values in profiles.items()
            if values[name] != defaults[name] and name != "profile"
        ]
        default = format_toml(key.kind.plain(defaults[name]))
        rows.append(f"| `{name}` | {key.kind.expects} | `{default}` | {'; '.join(others) or '–'} | {key.about} |")
    return "\n".join(rows) + "\n"

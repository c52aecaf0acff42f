"""The keys of a policy: what each takes and what it is for, said once for reader, writer, schema and manual.

The defaults stand in `policy.Policy`, which has a field for each key. A key that is added later gets a default under
which everything stays as it was: texts that were stored before do not have it.
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
"""The largest `max_ahead`: 30 days, or 2,592 million names at once. A suffix should tell roughly when it was made."""

MAX_PURPOSE: Final = 2_000
"""The longest purpose, in characters: a page. What needs more is a document with an identifier of its own."""

_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Audience(Enum):
    """Who may do something in a namespace. Server administrators always may."""

    ADMINISTRATORS = "administrators"
    """Those to whom the prefix handle gives the permission (ADD_HANDLE, LIST_HANDLES)."""
    SERVER = "server"
    """Server administrators only."""
    AUTHENTICATED = "authenticated"
    """Everyone who proves an identity, whichever it is."""
    PUBLIC = "public"
    """Everyone."""


class Deletion(Enum):
    """What may happen to a name whose thing is gone (S8)."""

    ALLOWED = "allowed"
    """Who has the permission may delete the name."""
    TOMBSTONE = "tombstone"
    """Names are never deleted; they get a tombstone."""


_PROFILE = Text(64, "[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and ._-")
_MINTERS = (Audience.ADMINISTRATORS, Audience.SERVER, Audience.AUTHENTICATED)

KEYS: Final[Mapping[str, Key]] = {
    "profile": Key(_PROFILE, "Where the policy came from. Once stored this is information: what counts stands below."),
    "purpose": Key(Text(MAX_PURPOSE), "What the namespace is for, in words that outlive the technology."),
    "scheme": Key(
        Text(len("pattern:") + MAX_TEMPLATE_LENGTH),
        "Which suffixes are valid and how new ones are made: free (any), pilin, pilin-check, cordra, uuid, "
        "pattern:TEMPLATE, or a scheme that is installed.",
    ),
    "scheme_options": Key(NamedOptions(), "Options of the scheme, such as { version = 1 } for cordra and uuid."),
    "case": Key(
        Choice(CaseRule),
        "Whether a and A are two letters in a suffix (path: only after ? and #). It changes only while no two names "
        "collide.",
    ),
    "nfc": Key(
        Flag(),
        "Whether suffixes are in Unicode's normal form C: then no two look alike because an accent is written apart.",
    ),
    "single_script": Key(
        Flag(),
        "Whether a suffix is written in one script: then no Cyrillic letter passes for a Latin one. Digits and signs "
        "go with every script.",
    ),
    "max_ahead": Key(
        Number(0, MAX_AHEAD), "How many milliseconds names made from the time may run ahead of the clock."
    ),
    "strict_clock": Key(
        Flag(), "Whether names made from the time never run ahead of it, so that at most 1,000 a second are made."
    ),
    "who_may_mint": Key(
        Choice(_MINTERS),
        "Who may make names (mint, reserve, create). Administrators have ADD_HANDLE on the prefix handle.",
    ),
    "who_may_list": Key(
        Choice(Audience),
        "Who may see the names of the namespace together. Administrators have LIST_HANDLES on the prefix handle.",
    ),
    "required_types": Key(
        TypeList(), "Types of which every record has a value. URL is that type, URL. is it and all below."
    ),
    "allowed_types": Key(
        TypeList(),
        "The only types a record may have; an empty list allows all. HS_ADMIN, and types that other keys name, need "
        "not be listed.",
    ),
    "forbidden_types": Key(TypeList(), "Types that no record may have."),
    "registered_types": Key(Flag(), "Whether every type must be registered: a handle that resolves to its definition."),
    "validate_types": Key(
        Flag(),
        "Whether the data of a value is checked against the definition of its type, where that is registered here.",
    ),
    "authority": Key(Flag(), "Whether every record says when it was created, by whom, and who owns it."),
    "creation_date_type": Key(TypeName(), "The type of the value with the date of creation."),
    "creator_type": Key(TypeName(), "The type of the value with the creator, a handle."),
    "default_creator": Key(
        HandleName(), "The creator of records that name none. If empty, these are refused where authority is true."
    ),
    "owner_type": Key(
        TypeName(optional=True),
        "The type of values with owners, where these are told from administrators. If empty, HS_ADMIN says who owns.",
    ),
    "deletion": Key(
        Choice(Deletion), "Whether names may be deleted, or only get a tombstone that says what became of the thing."
    ),
    "tombstone_reason_type": Key(TypeName(), "The type of a tombstone's value that says why the thing is gone."),
    "tombstone_date_type": Key(TypeName(), "The type of a tombstone's value that says since when."),
    "tombstone_replacement_type": Key(TypeName(), "The type of a tombstone's value with the handle to use instead."),
    "show_actors": Key(Flag(), "Whether the public sees who made a change."),
    "show_past": Key(
        Flag(), "Whether the public sees what a name was: its history, earlier answers, and that a deleted one existed."
    ),
    "default_ttl": Key(Number(0, 0x7FFF_FFFF), "How many seconds caches may keep a value that does not say so itself."),
    "default_administrators": Key(
        Administrators(),
        "Administrators of new records that bring none; {prefix} stands for the prefix of the namespace.",
    ),
    "work_type": Key(TypeName(), "The type of the value by which a fixed version names its work (the latest version)."),
    "expression_type": Key(TypeName(), "The type of the values by which a work names its fixed versions."),
    "object_type": Key(TypeName(), "The type of the value by which a metadata record's identifier names the object."),
    "metadata_type": Key(
        TypeName(), "The type of the value by which an object names its metadata record's identifier."
    ),
}
"""Every key in the order in which it is written."""


def policy_schema(defaults: Mapping[str, object]) -> JsonObject:
    """The JSON Schema of a policy's text, as editors of TOML use it. It cannot say all that the reader checks."""
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
    """The manual's table: one row for each key, with the default and what the built-in profiles say instead."""
    rows = ["| key | takes | default | in profiles | what it is for |", "|---|---|---|---|---|"]
    for name, key in KEYS.items():
        others = [
            f"{profile}: `{format_toml(key.kind.plain(values[name]))}`"
            for profile, values in profiles.items()
            if values[name] != defaults[name] and name != "profile"
        ]
        default = format_toml(key.kind.plain(defaults[name]))
        rows.append(f"| `{name}` | {key.kind.expects} | `{default}` | {'; '.join(others) or '–'} | {key.about} |")
    return "\n".join(rows) + "\n"

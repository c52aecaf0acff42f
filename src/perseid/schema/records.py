"""Records: their values, and the requests that read, create, change, link, mint and explain them.

Values have the form of Handle.Net servers, `{"index": 1, "type": "URL", "data": {"format": "string", "value": "…"}}`.
In requests data may be a string, as at the command line, and omitted fields get defaults
(`perseid.registry.commands.records`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from perseid.records.json_form import value_to_json
from perseid.records.record import MAX_VALUES, Value

from .common import ChangeNote, Doc, IdentityText, Moment, Name, NameText, Note, RequestBody, ResponseBody, Seq

MAX_NAMES: Final = 1_000
"""Handles in one commit: enough to share the cost of a sync, few enough that others wait little."""

FORMATS: Final = (
    "`string`, `base64`, `hex`, `admin` (HS_ADMIN), `vlist` (HS_VLIST), `site` (HS_SITE), `key` (HS_PUBKEY)"
)

Index = Annotated[int, Doc("The index of the value in the record.", ge=1, le=0x7FFF_FFFF, examples=[1])]
Type = Annotated[str, Doc("The type of the value.", min_length=1, max_length=2_048, examples=["URL"])]
Permissions = Annotated[
    str,
    Doc(
        "Permissions as four digits: administrators read, administrators write, public read, public "
        "write. `1110` is usual, `1100` is private.",
        pattern="^[01]{4}([01]{4})?$",
        examples=["1110"],
    ),
]
TtlText = Annotated[
    int | str, Doc("Seconds for which the value can be cached, or an absolute time in ISO 8601.", examples=[86400])
]


class Data(RequestBody, frozen=True):
    """The data of a value."""

    format: Annotated[str, Doc(f"The format: {FORMATS}.", examples=["string"])]
    value: Annotated[
        str | dict[str, Any] | list[Any],
        Doc(
            "The data in that format: a string for `string`, `base64` and `hex`, a list for `vlist`, "
            "otherwise an object.",
            examples=["https://example.org/"],
        ),
    ]


class Reference(RequestBody, frozen=True):
    """A reference to another value."""

    handle: Annotated[str, Doc("The handle of the record.", examples=["0.NA/12345"])]
    index: Annotated[int, Doc("The index of the value; 0 for any.", ge=0, le=0x7FFF_FFFF, examples=[300])]


class ValueInput(RequestBody, frozen=True, rename={"ttl_type": "ttlType"}):
    """A value to store."""

    type: Type
    data: Annotated[
        str | Data,
        Doc(
            "The data: a string in the natural form of the type (`200:0.NA/12345` for HS_ADMIN, "
            "`base64:…` for bytes), or an object with a format, as in responses."
        ),
    ]
    index: Annotated[Index | None, Doc("The index; a free one if omitted.")] = None
    permissions: Annotated[
        Permissions | None, Doc("The permissions; `1110` if omitted, and `1100` for a secret key.")
    ] = None
    ttl: Annotated[TtlText | None, Doc("The TTL; the default of the namespace's policy if omitted.")] = None
    ttl_type: Annotated[int | None, Doc("The TTL type, if it is neither relative nor absolute.")] = None
    references: Annotated[tuple[Reference, ...] | None, Doc("References to other values; rarely used.")] = None
    timestamp: Annotated[
        int | str | None,
        Doc("Ignored: the server sets the time of the change. `preserve_dates` keeps it in a new record."),
    ] = None


class StoredReference(ResponseBody, frozen=True):
    """A reference of a value to another one."""

    handle: Annotated[str, Doc("The handle of the record.", examples=["0.NA/12345"])]
    index: Annotated[int, Doc("The index of the value; 0 for any.", examples=[300])]


class ValueResponse(ResponseBody, frozen=True, rename={"ttl_type": "ttlType"}):
    """A value of a record. Records from other servers can have values that this one would not accept."""

    index: Annotated[int, Doc("The index of the value in the record.", examples=[1])]
    type: Annotated[str, Doc("The type of the value.", examples=["URL"])]
    data: Annotated[Data, Doc("The data.")]
    ttl: TtlText
    ttl_type: Annotated[int | None, Doc("The TTL type, if it is neither relative nor absolute.")] = None
    permissions: Permissions = "1110"
    timestamp: Annotated[int | str | None, Doc("Time of the last change, in ISO 8601.")] = None
    references: Annotated[tuple[StoredReference, ...], Doc("References to other values.")] = ()


Values = Annotated[tuple[ValueInput, ...], Doc("Values of a record.", max_length=MAX_VALUES)]


def dump_values(values: Sequence[Value]) -> list[ValueResponse]:
    """Convert values for a response."""
    return [msgspec.convert(value_to_json(value), ValueResponse) for value in values]


# Records

MAX_SELECTED: Final = 100
"""Most types and indexes in a query, each; for more, read the whole record."""

NonEmptyValues = Annotated[tuple[ValueInput, ...], Doc("Values.", min_length=1, max_length=MAX_VALUES)]


class RecordQuery(RequestBody, frozen=True):
    """Which part of a record to return."""

    type: Annotated[
        tuple[Type, ...],
        Doc(
            "Only values of this type; with a trailing dot also its subtypes. Can be repeated.",
            max_length=MAX_SELECTED,
            examples=[["URL"]],
        ),
    ] = ()
    index: Annotated[
        tuple[Index, ...],
        Doc("Only the value at this index. Can be repeated.", max_length=MAX_SELECTED, examples=[[1]]),
    ] = ()
    at: Annotated[Moment | None, Doc("The version at a time, or after a ledger entry; now if omitted.")] = None
    private: Annotated[bool, Doc("Include private values that you can read.")] = False
    follow: Annotated[bool, Doc("Follow aliases and return the record of the target.")] = False
    suggest: Annotated[bool, Doc("Whether a problem about a missing handle has suggestions; `false` is faster.")] = True


class Record(ResponseBody, frozen=True):
    """A record, or an earlier version of it."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    state: Annotated[str, Doc("`published`, `unpublished`, `reserved` or `tombstone`.", examples=["published"])]
    values: Annotated[list[ValueResponse], Doc("The values, by index.")]
    seq: Annotated[
        Seq, Doc("The ledger entry of this version; with `at` it always returns the same version. 0 for a copy.")
    ]
    changed: Annotated[
        str | None,
        Doc("Time of that entry, in ISO 8601; a copy has none.", examples=["2026-11-15T10:00:00.123456Z"]),
    ] = None
    as_of: Annotated[int | None, Doc("The last ledger entry at the requested time.")] = None
    aliases: Annotated[tuple[str, ...], Doc("The aliases that were followed.")] = ()
    by_template: Annotated[
        bool, Doc("Whether a template generated the values: the handle has no record of its own.")
    ] = False
    template_base: Annotated[str | None, Doc("The handle whose record the template used.")] = None
    query: Annotated[str | None, Doc("The query after `?`, in schemes where it is not part of the handle.")] = None
    fragment: Annotated[str | None, Doc("The fragment after `#`, likewise.")] = None
    copy: Annotated[
        bool, Doc("Whether this is a copy that comes with Perseid: another service hosts the handle, a type.")
    ] = False


KeepHistory = Annotated[
    bool,
    Doc("Keep earlier versions public. By default, values that become private are hidden in earlier versions too."),
]


class WarningInfo(ResponseBody, frozen=True):
    """What you should know although a change is made. As text it is a sentence and its advice."""

    code: Annotated[str, Doc("The kind of warning, for programs.", examples=["unusable_url"])]
    message: Annotated[str, Doc("The warning in words.")]
    parameters: Annotated[dict[str, Any], Doc("What it is about, such as the `index` of a value.")] = msgspec.field(
        default_factory=dict
    )
    line: Annotated[int, Doc("The line of the file, or row of the spreadsheet, if it is about one row.")] = 0
    rule: Annotated[str, Doc("The id of the rule, if there is one.", examples=["S2"])] = ""
    advice: Annotated[str, Doc("What to do about it.")] = ""
    advice_kind: Annotated[str, Doc("The kind of advice, for programs that phrase it themselves.")] = ""
    advice_parameters: Annotated[dict[str, Any], Doc("The parameters of that kind.")] = msgspec.field(
        default_factory=dict
    )

    def __str__(self) -> str:
        text = f"Line {self.line}: {self.message}" if self.line else self.message
        return f"{text}. {self.advice}" if self.advice else text


def upgrade_warnings(stored: Any) -> Any:
    """Convert a stored result, as plain data, whose warnings were texts."""
    if not isinstance(stored, dict):
        return stored
    upgraded = {name: upgrade_warnings(value) for name, value in stored.items()}
    if warnings := upgraded.get("warnings"):
        upgraded["warnings"] = [{"code": "", "message": x} if isinstance(x, str) else x for x in warnings]
    return upgraded


Warnings = Annotated[
    tuple[WarningInfo, ...],
    Doc("What you should know although the change was made, such as a URL that is not an absolute URL. At most 10."),
]


class RecordChanged(ResponseBody, frozen=True):
    """A changed record, or one that needed no change."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    seq: Annotated[Seq, Doc("The ledger entry of the change; the latest entry of the record if nothing changed.")]
    warnings: Warnings = ()


class CreatedRecord(ResponseBody, frozen=True):
    """A created record."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    seq: Seq
    warnings: Warnings = ()


class NewRecord(RequestBody, frozen=True):
    """A record to create."""

    handle: Name
    values: Values = ()
    reuse_deleted: Annotated[bool, Doc("Use a deleted handle again.")] = False
    published: Annotated[bool, Doc("Whether the handle is public.")] = True
    preserve_dates: Annotated[
        bool,
        Doc("Keep the creation date and the timestamps of the values, as an import; for server administrators only."),
    ] = False
    overwrite: Annotated[
        bool, Doc("Replace an existing record; it keeps its administrators unless the values name others.")
    ] = False
    note: Note = ""


class RecordReplacement(RequestBody, frozen=True):
    """The complete new content of a record."""

    values: Values
    keep_history: KeepHistory = False
    keep_unreadable: Annotated[
        bool, Doc("Keep values that nobody can read, which you cannot repeat. By default they are removed.")
    ] = False
    note: Note = ""


class NewValues(RequestBody, frozen=True):
    """Values to add."""

    values: NonEmptyValues
    note: Note = ""


class UpdatedValues(RequestBody, frozen=True):
    """Values to set."""

    values: NonEmptyValues
    keep_history: KeepHistory = False
    note: Note = ""


class RemovalQuery(ChangeNote, frozen=True, kw_only=True):
    """Which values to remove."""

    index: Annotated[
        tuple[Index, ...],
        Doc("Index of the value. Can be repeated.", min_length=1, max_length=MAX_SELECTED, examples=[[1]]),
    ]


# Lifecycle


class UnpublishRequest(ChangeNote, frozen=True):
    """Options of an unpublish request."""

    keep_history: KeepHistory = False


class NewTombstone(RequestBody, frozen=True):
    """A tombstone to create."""

    reason: Annotated[
        str,
        Doc(
            "The reason why the object is gone, which is public.",
            min_length=1,
            max_length=10_000,
            examples=["Withdrawn by its publisher"],
        ),
    ]
    replaced_by: Annotated[
        NameText | None,
        Doc(
            "The handle to use instead, hosted here or elsewhere: a handle, a `hdl:` URI, or a URL of a "
            "known resolver. The handle is stored. Empty for none; without this field, an existing tombstone keeps "
            "its replacement."
        ),
    ] = None
    note: Note = ""


class NewOwner(RequestBody, frozen=True):
    """The new owner of a handle."""

    to: Annotated[IdentityText, Doc("The key or group that will own the handle, as `INDEX:HANDLE`.")]
    note: Note = ""


# Links


class NewAlias(RequestBody, frozen=True):
    """An alias to create."""

    handle: Annotated[Name, Doc("The new handle.")]
    of: Annotated[
        Name,
        Doc(
            "The target, hosted here or elsewhere: a handle, a `hdl:` URI, or a URL of a known resolver. "
            "The handle is stored.",
            examples=["12345/x"],
        ),
    ]
    note: Note = ""


class Aliases(ResponseBody, frozen=True):
    """The alias chain of a handle."""

    chain: Annotated[list[str], Doc("The handles in order, starting with the requested one.")]
    end: Annotated[
        str,
        Doc(
            "How the chain ends: `found`, `not_found`, `not_hosted` (another service hosts the last "
            "handle), `loop`, `too_long` or `unreadable`.",
            examples=["found"],
        ),
    ]


class VersionLink(RequestBody, frozen=True):
    """A link between a work and a version."""

    work: Annotated[Name, Doc("The handle of the work, which resolves to the latest version.", examples=["12345/map"])]
    version: Annotated[Name, Doc("The handle of one fixed version.", examples=["12345/map-1"])]
    note: Note = ""


class MetadataLink(RequestBody, frozen=True):
    """A link between a resource and its metadata."""

    resource: Annotated[Name, Doc("The handle of the resource.", examples=["12345/map"])]
    metadata: Annotated[Name, Doc("The handle of the metadata record.", examples=["12345/about-map"])]
    note: Note = ""


class LinkedHandles(ResponseBody, frozen=True):
    """Two linked handles."""

    # a list of two: many OpenAPI tools do not support tuples
    handles: Annotated[tuple[str, ...], Doc("The two handles as registered.", min_length=2, max_length=2)]
    seq: Annotated[Seq, Doc("The first ledger entry of the change; 0 if they were linked already.")]


# Minting

Where = Annotated[
    str,
    Doc(
        "The prefix. Without a suffix scheme in the policy, also the beginning of the suffix, as in `12345/report-`.",
        min_length=1,
        max_length=4_096,
        examples=["12345"],
    ),
]

Count = Annotated[int, Doc("Number of handles.", ge=1, le=MAX_NAMES, examples=[1])]

Rows = Annotated[
    tuple[Values, ...],
    Doc("Additional values of each record. There is one handle per item, so omit `count`.", max_length=MAX_NAMES),
]


class MintRequest(RequestBody, frozen=True):
    """Handles to mint, each with a record."""

    prefix: Where
    count: Annotated[Count | None, Doc(f"Number of handles, at most {MAX_NAMES:,}; 1 if omitted.")] = None
    values: Annotated[Values, Doc("Values of every record.")] = ()
    records: Rows = ()
    metadata: Annotated[
        Values | None,
        Doc(
            "Creates two linked handles for each object: its own and one for its metadata record, with "
            "these values. Both count toward the limit."
        ),
    ] = None
    published: Annotated[bool, Doc("Whether the handles are public.")] = True
    owner: Annotated[
        IdentityText | None, Doc("The administrator of the new handles; as the policy says if omitted.")
    ] = None
    note: Note = ""


class ReserveRequest(RequestBody, frozen=True):
    """Handles to reserve: new ones under a prefix, or chosen ones."""

    prefix: Annotated[Where | None, Doc("The prefix for new handles.")] = None
    count: Annotated[Count | None, Doc(f"Number of new handles, at most {MAX_NAMES:,}; 1 if omitted.")] = None
    handles: Annotated[
        tuple[Name, ...],
        Doc("Chosen handles, instead of a prefix; all are reserved, or none.", max_length=MAX_NAMES),
    ] = ()
    owner: Annotated[IdentityText | None, Doc("The owner of the handles; you if omitted.")] = None
    note: Note = ""


class GenerateRequest(RequestBody, frozen=True):
    """Handles to generate."""

    prefix: Where
    count: Count = 1


class MintedHandles(ResponseBody, frozen=True):
    """Created handles."""

    handles: Annotated[
        tuple[str, ...],
        Doc(
            "The handles, in order of creation. There can be fewer than requested if thousands of "
            "existing ones had to be skipped; repeat the request for the rest.",
            examples=[["12345/D7J1G0DQH"]],
        ),
    ]
    metadata: Annotated[tuple[str, ...], Doc("The handles of the metadata records, in the same order.")] = ()
    seq: Annotated[Seq, Doc("The ledger entry of the first handle; the others follow. 0 if there is none.")] = 0
    warnings: Warnings = ()


# Explanations


class ToCreate(RequestBody, frozen=True, tag_field="command", tag="create"):
    """Create a record under a chosen handle."""

    handle: Name
    values: Values = ()
    overwrite: Annotated[bool, Doc("Replace an existing record completely.")] = False
    reuse_deleted: Annotated[bool, Doc("Use a deleted handle again.")] = False


class ToSet(RequestBody, frozen=True, tag_field="command", tag="set"):
    """Set values of a record."""

    handle: Name
    values: Values


class ToReplace(RequestBody, frozen=True, tag_field="command", tag="replace"):
    """Replace a record completely."""

    handle: Name
    values: Values


class ToAdd(RequestBody, frozen=True, tag_field="command", tag="add"):
    """Add values to a record."""

    handle: Name
    values: Values


class ToRemove(RequestBody, frozen=True, tag_field="command", tag="remove"):
    """Remove values from a record."""

    handle: Name
    indexes: Annotated[list[Index], Doc("Indexes of the values.", min_length=1, max_length=10_000)]


class ToDelete(RequestBody, frozen=True, tag_field="command", tag="delete"):
    """Delete a record."""

    handle: Name


class ToMint(RequestBody, frozen=True, tag_field="command", tag="mint"):
    """Mint handles."""

    prefix: Annotated[str, Doc("The prefix of the namespace.", min_length=1, max_length=2_048, examples=["12345"])]
    values: Values = ()
    records: Rows = ()


class ToPublish(RequestBody, frozen=True, tag_field="command", tag="publish"):
    """Publish a handle."""

    handle: Name


class ToUnpublish(RequestBody, frozen=True, tag_field="command", tag="unpublish"):
    """Unpublish a handle."""

    handle: Name


class ToTombstone(RequestBody, frozen=True, tag_field="command", tag="tombstone"):
    """Create or remove a tombstone."""

    handle: Name
    undo: Annotated[bool, Doc("Remove the tombstone.")] = False


class ToTransfer(RequestBody, frozen=True, tag_field="command", tag="transfer"):
    """Transfer a handle to another owner."""

    handle: Name
    to: Annotated[str, Doc("The new owner, `INDEX:HANDLE`.", max_length=4_096, examples=["200:0.NA/12345"])]


ExplainRequest = (
    ToCreate
    | ToSet
    | ToAdd
    | ToReplace
    | ToRemove
    | ToDelete
    | ToMint
    | ToPublish
    | ToUnpublish
    | ToTombstone
    | ToTransfer
)


class Explanation(ResponseBody, frozen=True, omit_defaults=False):
    """Whether a change would be allowed, and why."""

    allowed: Annotated[bool, Doc("Whether the change would be made.")]
    reason: Annotated[str, Doc("The reason.")]
    advice: Annotated[str | None, Doc("How to fix it.")] = None
    rule: Annotated[str | None, Doc("The broken rule, or the line of the namespace's policy.")] = None
    code: Annotated[int | None, Doc("The response code of the Handle System for the refusal.")] = None
    warnings: Warnings = ()
    advice_kind: Annotated[str, Doc("The kind of advice, for programs that phrase it themselves.")] = ""
    advice_parameters: Annotated[dict[str, Any], Doc("The parameters of that kind.")] = msgspec.field(
        default_factory=dict
    )

"""Search, history, proofs and citations."""

from enum import StrEnum
from typing import Annotated, Final

from .common import (
    DEFAULT_PAGE,
    At,
    Cursor,
    Doc,
    EntryAction,
    HandleState,
    Moment,
    NameText,
    NextCursor,
    PageLimit,
    Paging,
    RequestBody,
    ResponseBody,
    Seq,
    State,
)
from .names import Strict
from .records import Index, ValueResponse


class Style(StrEnum):
    """Citation styles."""

    TEXT = "text"
    HDL = "hdl"
    HTTP = "http"
    BIBTEX = "bibtex"
    CSL_JSON = "csl-json"


class ImageFormat(StrEnum):
    """Image formats."""

    SVG = "svg"
    PNG = "png"


# Search


class Selectors(RequestBody, frozen=True):
    """Which records and values to select. All criteria must match, those about values the same value."""

    url: Annotated[
        str | None,
        Doc(
            "URL; `*` matches any characters. In a rewrite it can only be the scheme, and the end of the URL.",
            examples=["https://example.org/*"],
        ),
    ] = None
    host: Annotated[
        str | None,
        Doc("Host of the URL, or a parent domain; a rewrite leaves subdomains unchanged.", examples=["example.org"]),
    ] = None
    path: Annotated[str | None, Doc("Beginning of the path of the URL, on any host.", examples=["/maps/"])] = None
    type: Annotated[str | None, Doc("Type of a value; `URL.` includes subtypes.", examples=["EMAIL"])] = None
    value: Annotated[str | None, Doc("Exact data of a value.", examples=["keeper@example.org"])] = None
    prefix: Annotated[str | None, Doc("Prefix of the namespace.", examples=["12345"])] = None
    owner: Annotated[
        NameText | None,
        Doc("Handle of the owner or creator, in any form.", examples=["12345/ann"]),
    ] = None
    strict: Strict = False
    changed_since: Annotated[Moment | None, Doc("Changed after this time or ledger entry.")] = None
    words: Annotated[
        str | None,
        Doc(
            "Words of the title, or of the description if there is no title: in any order, each from its start, "
            "whatever their case and accents.",
            examples=["map venice"],
        ),
    ] = None


class FindQuery(Selectors, frozen=True):
    """Search criteria. All of them must match; at least one is required."""

    state: Annotated[HandleState | None, Doc("State of the handle.")] = None
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = ""


class FoundHandle(ResponseBody, frozen=True):
    """A search result."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    state: Annotated[str, Doc("`published`, `unpublished`, `reserved` or `tombstone`.", examples=["published"])]
    seq: Annotated[Seq, Doc("The latest ledger entry of the handle.")]
    changed: Annotated[str, Doc("Time of that entry, in ISO 8601.")]
    values: Annotated[
        list[ValueResponse],
        Doc("The matching values, if the search was about values; else the titles with the words."),
    ]


class FoundHandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """Search results, in the order of the index."""

    results: Annotated[list[FoundHandle], Doc("The results of the page. It can be empty without being the last.")]
    scans: Annotated[bool, Doc("Whether all records are scanned because no index supports the search.")]
    remark: Annotated[str | None, Doc("A remark about the search.")] = None
    next: NextCursor = None


class HandlesQuery(Paging, frozen=True):
    """Which handles of a namespace to list."""

    state: Annotated[HandleState | None, Doc("Only handles in this state, of those that you can see.")] = None
    deleted: Annotated[bool, Doc("Include deleted handles, for administrators of the namespace.")] = False
    derived: Annotated[bool, Doc("List the prefix handles of derived prefixes instead.")] = False
    starts_with: Annotated[
        str, Doc("Only handles whose suffix starts with this text.", max_length=4_096, examples=["maps-"])
    ] = ""


class HandleSummary(ResponseBody, frozen=True):
    """A handle in a list."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    state: Annotated[
        str, Doc("`published`, `unpublished`, `reserved`, `tombstone` or `absent` (deleted).", examples=["published"])
    ]
    seq: Annotated[Seq, Doc("The latest ledger entry of the handle.")]


class HandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """The handles of a namespace, sorted."""

    handles: Annotated[list[HandleSummary], Doc("The handles of the page. It can be empty without being the last.")]
    next: NextCursor = None


# History

Action = Annotated[
    str,
    Doc(
        "The action: `create`, `update`, `delete`, `reserve`, `publish`, `unpublish`, `tombstone`, `redact` …",
        examples=["update"],
    ),
]

Interface = Annotated[str | None, Doc("The interface: `http`, `native`, `cli` …")]

Actor = Annotated[str | None, Doc("Who made the change; omitted if you cannot see it or it was redacted.")]

NoteText = Annotated[str | None, Doc("The note of the change; omitted if you cannot see it.")]


ActorText = Annotated[
    str, Doc("An actor.", max_length=4_096, examples=["300:12345/ann", "token:k7qpx2ma", "local:ann"])
]


class LogQuery(Paging, frozen=True):
    """Which entries of the log to return. All criteria must match."""

    since: Annotated[Moment, Doc("Only entries after this entry or time.")] = "0"
    until: Annotated[
        Moment | None, Doc("Only entries up to this entry or time; a date without a time includes that day.")
    ] = None
    newest: Annotated[bool, Doc("Newest first.")] = False
    job: Annotated[str, Doc("Only entries of this job.", max_length=64, examples=["0123456789abcdef"])] = ""
    actor: Annotated[
        ActorText | None,
        Doc(
            "Only changes by this actor: a key, or a handle for all its keys, both with their tokens; a token; a local "
            "user; `anonymous`. Entries whose actor you cannot see are omitted.",
        ),
    ] = None
    action: Annotated[EntryAction | None, Doc("Only entries with this action.")] = None
    prefix: Annotated[str | None, Doc("Only handles with this prefix.", examples=["12345"])] = None


class BetweenQuery(RequestBody, frozen=True):
    """Two times to compare."""

    earlier: Annotated[Moment, Doc("The earlier time or entry.", examples=["1"])]
    later: Annotated[Moment | None, Doc("The later time or entry; now if omitted.")] = None


class ChangesQuery(Paging, frozen=True, kw_only=True):
    """Two times to compare."""

    earlier: Annotated[Moment, Doc("The earlier time or entry.", examples=["1"])]
    later: Annotated[Moment | None, Doc("The later time or entry; now if omitted.")] = None


class ModifiedValue(ResponseBody, frozen=True):
    """A modified value."""

    index: Index
    old: Annotated[ValueResponse, Doc("The old value.")]
    new: Annotated[ValueResponse, Doc("The new value.")]


class ValueChanges(ResponseBody, frozen=True, omit_defaults=False):
    """Differences between values, as far as you can see them."""

    added: Annotated[list[ValueResponse], Doc("Added values.")]
    removed: Annotated[list[ValueResponse], Doc("Removed values.")]
    modified: Annotated[list[ModifiedValue], Doc("Modified values.")]


class VersionResponse(ResponseBody, frozen=True):
    """A version of a record, as far as you can see it."""

    seq: Seq
    at: At
    action: Action
    state: State
    values: Annotated[list[ValueResponse], Doc("The values, by index.")]
    changed: Annotated[
        ValueChanges | None, Doc("Differences from the previous version; omitted if that is not visible.")
    ] = None
    redacted: Annotated[int, Doc("Number of permanently redacted values.")] = 0
    interface: Interface = None
    actor: Actor = None
    note: NoteText = None


class HistoryPage(ResponseBody, frozen=True, omit_defaults=False):
    """Versions of a record, newest first."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    versions: Annotated[list[VersionResponse], Doc("The versions of the page.")]
    complete: Annotated[
        bool,
        Doc(
            "False if versions on this page or before were withheld, because of the policy or the length "
            "of the history."
        ),
    ]
    next: NextCursor = None


class StateAt(ResponseBody, frozen=True, omit_defaults=False):
    """The state of a handle at a time."""

    as_of: Annotated[int, Doc("The last ledger entry at that time.")]
    seq: Annotated[int, Doc("The last entry of the handle at that time; 0 if it had no record that you can see.")] = 0
    at: Annotated[str | None, Doc("Time of that entry, in ISO 8601; null if there is none.")] = None
    state: State = "absent"


class DifferencesResponse(ResponseBody, frozen=True, omit_defaults=False):
    """Differences of a record between two times."""

    handle: Annotated[str, Doc("The handle as registered.", examples=["12345/x"])]
    earlier: Annotated[StateAt, Doc("The state at the earlier time.")]
    later: Annotated[StateAt, Doc("The state at the later time.")]
    changed: Annotated[ValueChanges, Doc("The differences.")]


class EntryResponse(ResponseBody, frozen=True):
    """A ledger entry, as far as you can see it."""

    seq: Seq
    at: At
    action: Action
    handle: Annotated[str, Doc("The changed handle.", examples=["12345/x"])]
    state: State
    interface: Interface = None
    actor: Actor = None
    note: NoteText = None


class LogPage(ResponseBody, frozen=True, omit_defaults=False):
    """Ledger entries, oldest first unless the request says `newest`."""

    entries: Annotated[list[EntryResponse], Doc("The entries of the page that you can see.")]
    last: Annotated[
        int | None, Doc("On the last page, the last ledger entry: send it as `since` to get later entries.")
    ] = None
    next: NextCursor = None


class ChangedHandle(ResponseBody, frozen=True):
    """A handle that changed between two times."""

    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    before: Annotated[int, Doc("Its entry at the earlier time; 0 if it had none that you can see.")]
    after: Annotated[int, Doc("Its entry at the later time.")]
    state_before: Annotated[State, Doc("The state at the earlier time.")]
    state_after: Annotated[State, Doc("The state at the later time.")]
    at: Annotated[str, Doc("Time of its entry at the later time, in ISO 8601.")]


class ChangedHandlePage(ResponseBody, frozen=True, omit_defaults=False):
    """Handles that changed between two times, in the order of their first change."""

    earlier: Annotated[int, Doc("The last ledger entry at the earlier time.")]
    later: Annotated[int, Doc("The last ledger entry at the later time.")]
    handles: Annotated[list[ChangedHandle], Doc("The handles of the page.")]
    next: NextCursor = None


# Proofs

Base64 = Annotated[str, Doc("Bytes in base64.")]

Size = Annotated[int, Doc("Number of ledger entries, from the first.", ge=0, le=(1 << 63) - 1, examples=[1234])]


class ProofQuery(RequestBody, frozen=True):
    """What to prove about a handle."""

    at: Annotated[Moment | None, Doc("The time or ledger entry; now if omitted.")] = None
    everything: Annotated[bool, Doc("Include private values, actor and note, if you can see them.")] = False


class InclusionProof(ResponseBody, frozen=True):
    """A ledger entry and its Merkle path."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The sibling hashes from the leaf to the root.")]


class OpenedCommitment(ResponseBody, frozen=True):
    """Committed content and its salt."""

    salt: Annotated[Base64, Doc("The salt of the commitment, 16 bytes.")]
    content: Annotated[Base64, Doc("The committed content.")]


class KeyLink(ResponseBody, frozen=True):
    """A ledger entry that rotated the signing key."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The sibling hashes from the leaf to the root.")]
    note: Annotated[OpenedCommitment | None, Doc("The statement signed by the previous key; omitted if redacted.")] = (
        None
    )


class ProofDocument(ResponseBody, frozen=True):
    """A proof of one version of a record. Store it unchanged for `perseid verify`."""

    format: Annotated[str, Doc("The format name.", examples=["perseid proof 1"])]
    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    seq: Annotated[int, Doc("The number of the ledger entry.")]
    entry: Annotated[InclusionProof, Doc("The ledger entry.")]
    values: Annotated[list[OpenedCommitment], Doc("The disclosed values, in binary form.")]
    checkpoint: Annotated[str, Doc("A signed checkpoint that includes the entry.")]
    keys: Annotated[list[KeyLink], Doc("The key rotations up to the signing key, oldest first.")]
    actor: Annotated[OpenedCommitment | None, Doc("Who made the change, if disclosed.")] = None
    note: Annotated[OpenedCommitment | None, Doc("The note of the change, if disclosed.")] = None


class ConsistencyQuery(RequestBody, frozen=True):
    """Two sizes of the ledger."""

    old: Annotated[Size, Doc("The older size: the second line of its checkpoint.")]
    new: Annotated[Size | None, Doc("The newer size; the latest checkpoint if omitted.")] = None


class ConsistencyProof(ResponseBody, frozen=True, omit_defaults=False):
    """A proof that the ledger only grew between two sizes (RFC 6962)."""

    old: Annotated[int, Doc("The older size.")]
    old_root: Annotated[Base64, Doc("The older root: the third line of its checkpoint.")]
    new: Annotated[int, Doc("The newer size.")]
    new_root: Annotated[Base64, Doc("The newer root.")]
    path: Annotated[list[Base64], Doc("The hashes of the proof, in the order of RFC 6962 §2.1.2.")]


class LedgerKey(ResponseBody, frozen=True):
    """A signing key of the ledger."""

    key: Annotated[str, Doc("The public key, as `NAME+HASH+KEY`, for `perseid verify --key`.")]
    since: Annotated[int | None, Doc("Its first ledger entry; omitted for the first key.")] = None
    until: Annotated[int | None, Doc("Its last ledger entry; omitted for the current key.")] = None


class LedgerKeys(ResponseBody, frozen=True, omit_defaults=False):
    """The signing keys of the ledger."""

    origin: Annotated[str, Doc("The name in the signatures of the ledger.", examples=["ledger-841b321ed5144bdb"])]
    key: Annotated[str, Doc("The current public key, as `NAME+HASH+KEY`.")]
    keys: Annotated[list[LedgerKey], Doc("All keys, oldest first. A proof contains the rotations between them.")]


# Citations

MAX_SCALE: Final = 20
"""Most pixels per module: the largest code then has 1,700 per side. For larger prints use SVG."""

MAX_RESOLVER: Final = 300
"""Characters of a resolver URL: the longest host name has 253."""

ResolverText = Annotated[
    str,
    Doc(
        "The resolver in the HTTP form; by default this server's public URL. Without one the `hdl:` URI is used.",
        max_length=MAX_RESOLVER,
        examples=["https://hdl.handle.net"],
    ),
]


class CitationQuery(RequestBody, frozen=True):
    """How to cite a handle."""

    style: Annotated[Style, Doc("The citation style.")] = Style.TEXT
    resolver: ResolverText = ""
    at: Annotated[Moment | None, Doc("Cite the version at a time or ledger entry; now if omitted.")] = None


class QrQuery(RequestBody, frozen=True):
    """How to draw a QR code."""

    format: Annotated[ImageFormat, Doc("The image format.")] = ImageFormat.SVG
    scale: Annotated[int, Doc("Pixels or units per module.", ge=1, le=MAX_SCALE)] = 8
    resolver: ResolverText = ""


class CitedVersion(ResponseBody, frozen=True):
    """The cited version of a record."""

    seq: Seq
    at: Annotated[str, Doc("Time of the version, in ISO 8601.", examples=["2026-11-15T10:00:00Z"])]


class CitationResponse(ResponseBody, frozen=True):
    """A citation and its parts. Missing information is omitted."""

    citation: Annotated[str, Doc("The citation.")]
    style: Annotated[Style, Doc("The citation style.")]
    hdl: Annotated[str, Doc("The identifier as a `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[
        str,
        Doc("The identifier as a URL of the resolver, if there is one.", examples=["https://hdl.example.org/12345/x"]),
    ] = ""
    title: Annotated[str, Doc("Title of the object.")] = ""
    creators: Annotated[tuple[str, ...], Doc("Creators of the object.")] = ()
    date: Annotated[str, Doc("Date of the object, as stored in the record.")] = ""
    publisher: Annotated[str, Doc("Publisher of the object.")] = ""
    description: Annotated[str, Doc("Description of the object.")] = ""
    created: Annotated[str, Doc("When the identifier was first associated with the object.")] = ""
    creator: Annotated[str, Doc("Who created the identifier, as a `hdl:` URI.")] = ""
    gone: Annotated[str, Doc("Why the object is gone, if the handle has a tombstone.")] = ""
    version: Annotated[CitedVersion | None, Doc("The cited version, if `at` was given.")] = None

"""The operations of the HTTP API: for each, its route, the type of its result, and how arguments become a request.

A description serves both clients: `Client` returns the result, `AsyncClient` an awaitable of it. A test compares the
descriptions with the routes of the server.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)
from urllib.parse import quote

import msgspec

from perseid.schema.common import MAX_PAGE, ChangeNote, EntryAction, HandleState, Paging
from perseid.schema.exports import ExportFormat, ExportPart, ExportQuery
from perseid.schema.namespaces import Authority
from perseid.schema.queries import (
    BetweenQuery,
    ChangedHandle,
    ChangedHandlePage,
    ChangesQuery,
    CitationQuery,
    CitationResponse,
    ConsistencyProof,
    ConsistencyQuery,
    DifferencesResponse,
    EntryResponse,
    FindQuery,
    FoundHandle,
    FoundHandlePage,
    HandlePage,
    HandlesQuery,
    HandleSummary,
    HistoryPage,
    ImageFormat,
    LedgerKeys,
    LogPage,
    LogQuery,
    ProofQuery,
    QrQuery,
    Style,
    VersionResponse,
)
from perseid.schema.records import (
    Aliases,
    CreatedRecord,
    ExplainRequest,
    Explanation,
    GenerateRequest,
    LinkedHandles,
    MetadataLink,
    MintedHandles,
    MintRequest,
    NewAlias,
    NewOwner,
    NewRecord,
    NewTombstone,
    NewValues,
    Record,
    RecordChanged,
    RecordQuery,
    RecordReplacement,
    RemovalQuery,
    ReserveRequest,
    UnpublishRequest,
    UpdatedValues,
    ValueInput,
    VersionLink,
)
from perseid.schema.statistics import (
    StatisticsPeriod,
    StatisticsQuery,
    StatisticsResponse,
    WantedHandles,
    WantedQuery,
)

from .api_exchange import ApiRequest, Repeat, Upload
from .options import as_names

if TYPE_CHECKING:
    from .api import AsyncOperations, AsyncPages, Client, Pages

P = ParamSpec("P")
R = TypeVar("R")
Page = TypeVar("Page", bound=msgspec.Struct)
Item = TypeVar("Item")

Values: TypeAlias = Mapping[str, str] | Iterable[ValueInput]
"""Values as `{"URL": "https://example.org/"}`, with the data as text, or as structures with index and permissions."""

RECORD_PATH: Final = "/handles/{handle}"


class Input(NamedTuple):
    """The arguments of an operation as parts of a request."""

    names: Mapping[str, str]
    query: msgspec.Struct | None
    body: msgspec.Struct | Upload | None
    if_version: int | None


def make_input(
    *,
    query: msgspec.Struct | None = None,
    body: msgspec.Struct | Upload | None = None,
    if_version: int | None = None,
    **path_names: str,
) -> Input:
    """Make the input of a request; other names are parameters of its path."""
    return Input(path_names, query, body, if_version)


def to_values(values: Values) -> tuple[ValueInput, ...]:
    """Convert values for a request."""
    if isinstance(values, Mapping):
        return tuple([ValueInput(type_, data) for type_, data in values.items()])
    return tuple(values)


def encode_parameter(text: str) -> str:
    """Encode a parameter of a path; raises ValueError for one that has no place in a path."""
    if not text:
        raise ValueError("A handle, prefix or id must not be empty")
    # Programs on the way remove segments of dots, and some of them encoded ones too.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


class _Route(Generic[P, R]):
    """A route, and the function that builds its input."""

    def __init__(
        self, method: str, path: str, result: type[R], repeat: Repeat, build: Callable[Concatenate[Any, P], Input]
    ) -> None:
        self.method = method
        self.path = path
        """The path under the API, with parameters in braces."""
        self.result = result
        self.repeat = repeat
        self.build = build
        """How arguments become parts of a request."""
        self.__doc__ = build.__doc__

    def request(self, client: object, /, *args: P.args, **options: P.kwargs) -> ApiRequest[R]:
        """Build the request."""
        given = self.build(client, *args, **options)
        path = self.path.format_map({name: encode_parameter(text) for name, text in given.names.items()})
        # The condition is no longer met once the change is made.
        repeat = self.repeat if given.if_version is None or self.repeat is not Repeat.ALWAYS else Repeat.NEVER
        return ApiRequest(self.method, path, self.result, given.query, given.body, repeat, given.if_version)


class Operation(_Route[P, R]):
    """An operation with one response."""

    @overload
    def __get__(self, instance: None, owner: object) -> Self: ...
    @overload
    def __get__(self, instance: "Client", owner: object) -> Callable[P, R]: ...
    @overload
    def __get__(self, instance: "AsyncOperations", owner: object) -> Callable[P, Awaitable[R]]: ...
    def __get__(self, instance: Any, owner: object) -> Any:
        if instance is None:
            return self

        @functools.wraps(self.build)
        def call(*args: P.args, **options: P.kwargs) -> object:
            return instance.send(self.request(instance, *args, **options))

        return call


class ListOperation(_Route[P, Page], Generic[P, Page, Item]):
    """An operation with many pages."""

    items: str = ""
    """The field of a page that has its items."""

    @overload
    def __get__(self, instance: None, owner: object) -> Self: ...
    @overload
    def __get__(self, instance: "Client", owner: object) -> "Callable[P, Pages[Page, Item]]": ...
    @overload
    def __get__(self, instance: "AsyncOperations", owner: object) -> "Callable[P, AsyncPages[Page, Item]]": ...
    def __get__(self, instance: Any, owner: object) -> Any:
        if instance is None:
            return self

        @functools.wraps(self.build)
        def call(*args: P.args, **options: P.kwargs) -> object:
            return instance.iterate(self.request(instance, *args, **options), self.items)

        return call


def operation(
    method: str, path: str, result: type[R], repeat: Repeat = Repeat.NEVER
) -> Callable[[Callable[Concatenate[Any, P], Input]], Operation[P, R]]:
    """Describe an operation. Reading can always be repeated."""
    again = Repeat.ALWAYS if method == "GET" else repeat
    return lambda build: Operation(method, path, result, again, build)


def pages(
    path: str, page: type[Page], items: str, _item: type[Item]
) -> Callable[[Callable[Concatenate[Any, P], Input]], ListOperation[P, Page, Item]]:
    """Describe a list; `items` is the field of a page that has its items."""

    def decorate(build: Callable[Concatenate[Any, P], Input]) -> ListOperation[P, Page, Item]:
        described: ListOperation[P, Page, Item] = ListOperation("GET", path, page, Repeat.ALWAYS, build)
        described.items = items
        return described

    return decorate


class RecordOperations:
    """Identifiers and their records."""

    @operation("POST", "/mint", MintedHandles, Repeat.WITH_KEY)
    def mint(  # noqa: PLR0913 - one argument per field
        self,
        prefix: str,
        values: Values = (),
        *,
        count: int | None = None,
        records: Iterable[Values] = (),
        metadata: Values | None = None,
        published: bool = True,
        owner: str | None = None,
        note: str = "",
    ) -> Input:
        """Mint handles, each with a record; `records` are further values, for one handle each."""
        body = MintRequest(
            prefix,
            count,
            to_values(values),
            tuple([to_values(each) for each in records]),
            None if metadata is None else to_values(metadata),
            published,
            owner,
            note,
        )
        return make_input(body=body)

    @operation("POST", "/reserve", MintedHandles, Repeat.WITH_KEY)
    def reserve(
        self,
        prefix: str | None = None,
        *,
        count: int | None = None,
        handles: Iterable[str] = (),
        owner: str | None = None,
        note: str = "",
    ) -> Input:
        """Reserve handles for later use: new ones under a prefix, or chosen ones."""
        return make_input(body=ReserveRequest(prefix, count, as_names(handles), owner, note))

    @operation("POST", "/generate", MintedHandles, Repeat.WITH_KEY)
    def generate(self, prefix: str, *, count: int = 1) -> Input:
        """Generate unique handles without records."""
        return make_input(body=GenerateRequest(prefix, count))

    @operation("GET", RECORD_PATH, Record)
    def resolve(
        self,
        handle: str,
        *,
        types: Iterable[str] = (),
        indexes: Iterable[int] = (),
        at: str | int | None = None,
        private: bool = False,
        follow: bool = False,
        suggest: bool = True,
    ) -> Input:
        """Return a record, now or at a time or ledger entry."""
        query = RecordQuery(as_names(types), tuple(indexes), _moment(at), private, follow, suggest)
        return make_input(handle=handle, query=query)

    @operation("POST", "/handles", CreatedRecord, Repeat.WITH_KEY)
    def create(
        self,
        handle: str,
        values: Values = (),
        *,
        reuse_deleted: bool = False,
        published: bool = True,
        preserve_dates: bool = False,
        overwrite: bool = False,
        note: str = "",
    ) -> Input:
        """Create a record under a chosen handle; with `overwrite` it replaces an existing one."""
        body = NewRecord(handle, to_values(values), reuse_deleted, published, preserve_dates, overwrite, note)
        return make_input(body=body)

    @operation("PUT", RECORD_PATH, RecordChanged, Repeat.ALWAYS)
    def replace(
        self,
        handle: str,
        values: Values,
        *,
        keep_history: bool = False,
        keep_unreadable: bool = False,
        if_version: int | None = None,
        note: str = "",
    ) -> Input:
        """Replace a record completely; with `if_version` only if that is still its latest ledger entry."""
        body = RecordReplacement(to_values(values), keep_history, keep_unreadable, note)
        return make_input(handle=handle, body=body, if_version=if_version)

    @operation("PUT", f"{RECORD_PATH}/values", RecordChanged, Repeat.ALWAYS)
    def set(
        self,
        handle: str,
        values: Values,
        *,
        keep_history: bool = False,
        if_version: int | None = None,
        note: str = "",
    ) -> Input:
        """Set values of a record; other values stay."""
        body = UpdatedValues(to_values(values), keep_history, note)
        return make_input(handle=handle, body=body, if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/values", RecordChanged, Repeat.WITH_KEY)
    def add(self, handle: str, values: Values, *, if_version: int | None = None, note: str = "") -> Input:
        """Add values to a record."""
        return make_input(handle=handle, body=NewValues(to_values(values), note), if_version=if_version)

    @operation("DELETE", f"{RECORD_PATH}/values", RecordChanged)
    def remove(self, handle: str, indexes: Iterable[int], *, if_version: int | None = None, note: str = "") -> Input:
        """Remove values from a record by index."""
        query = RemovalQuery(index=tuple(indexes), note=note)
        return make_input(handle=handle, query=query, if_version=if_version)

    @operation("DELETE", RECORD_PATH, RecordChanged)
    def delete(self, handle: str, *, if_version: int | None = None, note: str = "") -> Input:
        """Delete a record, if the policy allows it. The handle is never assigned again."""
        return make_input(handle=handle, query=ChangeNote(note), if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/publish", RecordChanged, Repeat.ALWAYS)
    def publish(self, handle: str, *, if_version: int | None = None, note: str = "") -> Input:
        """Make an unpublished handle public."""
        return make_input(handle=handle, body=ChangeNote(note), if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/unpublish", RecordChanged, Repeat.ALWAYS)
    def unpublish(
        self, handle: str, *, keep_history: bool = False, if_version: int | None = None, note: str = ""
    ) -> Input:
        """Hide a handle from all but its administrators."""
        body = UnpublishRequest(note, keep_history)
        return make_input(handle=handle, body=body, if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/tombstone", RecordChanged, Repeat.ALWAYS)
    def tombstone(
        self,
        handle: str,
        reason: str,
        *,
        replaced_by: str | None = None,
        if_version: int | None = None,
        note: str = "",
    ) -> Input:
        """Replace a record with a tombstone: why the object is gone, and what replaces it.

        A tombstone keeps its replacement if `replaced_by` is None; an empty string removes it.
        """
        body = NewTombstone(reason, replaced_by, note)
        return make_input(handle=handle, body=body, if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/revive", RecordChanged)
    def revive(self, handle: str, *, if_version: int | None = None, note: str = "") -> Input:
        """Remove a tombstone and restore the record."""
        return make_input(handle=handle, body=ChangeNote(note), if_version=if_version)

    @operation("POST", f"{RECORD_PATH}/transfer", RecordChanged, Repeat.ALWAYS)
    def transfer(self, handle: str, to: str, *, if_version: int | None = None, note: str = "") -> Input:
        """Transfer a handle to another owner, `INDEX:HANDLE`, who replaces all its administrators."""
        return make_input(handle=handle, body=NewOwner(to, note), if_version=if_version)

    @operation("POST", "/aliases", CreatedRecord, Repeat.WITH_KEY)
    def create_alias(self, handle: str, of: str, *, note: str = "") -> Input:
        """Create a handle that resolves to another one."""
        return make_input(body=NewAlias(handle, of, note))

    @operation("GET", f"{RECORD_PATH}/aliases", Aliases)
    def aliases(self, handle: str) -> Input:
        """Follow the public aliases of a handle."""
        return make_input(handle=handle)

    @operation("POST", "/links/versions", LinkedHandles, Repeat.ALWAYS)
    def link_version(self, work: str, version: str, *, note: str = "") -> Input:
        """Link a work and one fixed version."""
        return make_input(body=VersionLink(work, version, note))

    @operation("POST", "/links/metadata", LinkedHandles, Repeat.ALWAYS)
    def link_metadata(self, resource: str, metadata: str, *, note: str = "") -> Input:
        """Link an object and its metadata record."""
        return make_input(body=MetadataLink(resource, metadata, note))

    @operation("POST", "/explain", Explanation, Repeat.ALWAYS)
    def explain(self, change: ExplainRequest) -> Input:
        """Explain whether a change would be allowed, without making it."""
        return make_input(body=change)

    @operation("GET", f"{RECORD_PATH}/authority", Authority)
    def authority(self, handle: str) -> Input:
        """Return the authority metadata of a handle."""
        return make_input(handle=handle)

    @operation("GET", f"{RECORD_PATH}/citation", CitationResponse)
    def cite(self, handle: str, *, style: Style = Style.TEXT, resolver: str = "", at: str | int | None = None) -> Input:
        """Cite a handle."""
        return make_input(handle=handle, query=CitationQuery(style, resolver, _moment(at)))

    @operation("GET", f"{RECORD_PATH}/qr", bytes)
    def qr(
        self, handle: str, *, image_format: ImageFormat = ImageFormat.SVG, scale: int = 8, resolver: str = ""
    ) -> Input:
        """Draw the QR code of a handle."""
        return make_input(handle=handle, query=QrQuery(image_format, scale, resolver))


class QueryOperations:
    """Search, history and proofs."""

    @pages("/find", FoundHandlePage, "results", FoundHandle)
    def find(  # noqa: PLR0913 - one argument per field
        self,
        *,
        url: str | None = None,
        host: str | None = None,
        path: str | None = None,
        type: str | None = None,  # noqa: A002 - the name in the API
        value: str | None = None,
        prefix: str | None = None,
        owner: str | None = None,
        strict: bool = False,
        changed_since: str | int | None = None,
        words: str | None = None,
        state: HandleState | None = None,
        page_size: int = MAX_PAGE,
    ) -> Input:
        """Find handles; all criteria must match. At least one other than `state` is required."""
        criteria = (url, host, path, type, value, prefix, owner, strict, _moment(changed_since), words, state)
        return make_input(query=FindQuery(*criteria, limit=page_size))

    @pages("/exports", ExportPart, "content", bytes)
    def export(  # noqa: PLR0913 - one argument per field
        self,
        prefix: str | None = None,
        *,
        format: ExportFormat = ExportFormat.JSONL,  # noqa: A002 - the name in the API
        history: bool = False,
        at: str | int | None = None,
        raw: bool = False,
        url: str | None = None,
        host: str | None = None,
        path: str | None = None,
        type: str | None = None,  # noqa: A002 - the name in the API
        value: str | None = None,
        owner: str | None = None,
        strict: bool = False,
        changed_since: str | int | None = None,
        words: str | None = None,
        after: str = "",
    ) -> Input:
        """Export records as the parts of a file; `after` is the `next` of the last part of an interrupted export."""
        criteria = (url, host, path, type, value, prefix, owner, strict, _moment(changed_since), words)
        return make_input(query=ExportQuery(*criteria, format, history, _moment(at), raw, after))

    @operation("GET", "/statistics", StatisticsResponse)
    def statistics(
        self,
        namespace: str | None = None,
        *,
        by: StatisticsPeriod | str = StatisticsPeriod.DAY,
        since: str | None = None,
        until: str | None = None,
    ) -> Input:
        """Return requests and changes by day, hour or namespace, of a namespace or of all."""
        return make_input(query=StatisticsQuery(namespace, StatisticsPeriod(by), since, until))

    @operation("GET", "/statistics/csv", bytes)
    def statistics_csv(
        self,
        namespace: str | None = None,
        *,
        by: StatisticsPeriod | str = StatisticsPeriod.DAY,
        since: str | None = None,
        until: str | None = None,
    ) -> Input:
        """Return the same as a table in CSV."""
        return make_input(query=StatisticsQuery(namespace, StatisticsPeriod(by), since, until))

    @operation("GET", "/statistics/wanted", WantedHandles)
    def wanted(self, namespace: str) -> Input:
        """Return the identifiers of a namespace that were requested most often and do not exist."""
        return make_input(query=WantedQuery(namespace))

    @pages("/namespaces/{prefix}/handles", HandlePage, "handles", HandleSummary)
    def list(
        self,
        prefix: str,
        *,
        state: HandleState | None = None,
        deleted: bool = False,
        derived: bool = False,
        starts_with: str = "",
        page_size: int = MAX_PAGE,
    ) -> Input:
        """List the handles of a namespace, sorted; with `starts_with` those whose suffix starts with this text."""
        query = HandlesQuery(page_size, state=state, deleted=deleted, derived=derived, starts_with=starts_with)
        return make_input(prefix=prefix, query=query)

    @pages(f"{RECORD_PATH}/history", HistoryPage, "versions", VersionResponse)
    def history(self, handle: str, *, page_size: int = MAX_PAGE) -> Input:
        """Return the versions of a record, newest first."""
        return make_input(handle=handle, query=Paging(page_size))

    @operation("GET", f"{RECORD_PATH}/differences", DifferencesResponse)
    def differences(self, handle: str, earlier: str | int, later: str | int | None = None) -> Input:
        """Compare a record at two times or ledger entries."""
        return make_input(handle=handle, query=BetweenQuery(str(earlier), _moment(later)))

    @pages("/log", LogPage, "entries", EntryResponse)
    def log(  # noqa: PLR0913 - one argument per field
        self,
        *,
        since: str | int = "0",
        until: str | int | None = None,
        newest: bool = False,
        job: str = "",
        actor: str | None = None,
        action: EntryAction | None = None,
        prefix: str | None = None,
        page_size: int = MAX_PAGE,
    ) -> Input:
        """Return the entries of the ledger after a time or entry and up to another one, oldest or `newest` first.

        With the other arguments only those of a job, by an actor (`300:12345/ann`, a handle for all its keys,
        `token:…`, `local:…` or `anonymous`), with an action, or of the handles of a prefix.
        """
        query = LogQuery(page_size, since=str(since), until=_moment(until), newest=newest, job=job)
        return make_input(query=msgspec.structs.replace(query, actor=actor, action=action, prefix=prefix))

    @pages("/changes", ChangedHandlePage, "handles", ChangedHandle)
    def changes(self, earlier: str | int, later: str | int | None = None, *, page_size: int = MAX_PAGE) -> Input:
        """List the handles that changed between two times."""
        return make_input(query=ChangesQuery(page_size, earlier=str(earlier), later=_moment(later)))

    @operation("GET", f"{RECORD_PATH}/proof", bytes)
    def prove(self, handle: str, *, at: str | int | None = None, everything: bool = False) -> Input:
        """Return a proof of one version of a record: a JSON document, which must be stored unchanged."""
        return make_input(handle=handle, query=ProofQuery(_moment(at), everything))

    @operation("GET", "/ledger/checkpoint", bytes)
    def checkpoint(self) -> Input:
        """Return the latest checkpoint, a signed note."""
        return make_input()

    @operation("GET", "/ledger/consistency", ConsistencyProof)
    def consistency(self, old: int, new: int | None = None) -> Input:
        """Prove that the ledger only grew between two sizes."""
        return make_input(query=ConsistencyQuery(old, new))

    @operation("GET", "/ledger/key", LedgerKeys)
    def ledger_keys(self) -> Input:
        """Return the keys that sign checkpoints."""
        return make_input()


def _moment(text: str | int | None) -> str | None:
    return None if text is None else str(text)

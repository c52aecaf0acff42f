"""Rewrite jobs: replace the target URLs of many records, as in `http://old.example/*` to `https://new.example/*`.

The URLs are selected as in a search (`queries.find`), by a pattern or by their host, and by every other criterion.
The host is exact, because its subdomains may be other services. The part before the `*` is replaced, and the part
after it is kept byte for byte. Values of type URL and its subtypes and the locations in 10320/loc are rewritten. In XML
only the attribute changes; where that is impossible without touching anything else, the value stays unchanged.

Records are found through the search view, as far as the caller can see them, and changed like single changes: with the
permission to modify their values, under their policies. Concurrent changes by others are rewritten too, in their latest
state.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Final, Self
from xml.sax.saxutils import escape, unescape

import msgspec

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.ledger.views.search_keys import ALL_URLS, exact_url_range, url_keys, url_text
from perseid.ledger.views.url_glob import UrlGlob
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.locations import Locations
from perseid.records.record import Permission, Value
from perseid.records.types import LOCATIONS, URL, URL_SCHEMES, has_type
from perseid.records.xml import Element
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.permissions import Modification, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.composition import compose, find_url_warnings
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.queries.find import PreparedSearch, Search, SearchResult, find
from perseid.registry.queries.paging import values_size
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import JobRun

_STAR = "*"
_LOCATION_TAGS: Final = ("location", "loc_template")
# Comments, processing instructions and CDATA come first: tags inside them are text.
_TAG = re.compile(
    rf"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<(?P<name>{"|".join(_LOCATION_TAGS)})(?=[\s/>])(?:[^"'>]|"[^"]*"|'[^']*')*>""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""(?<=\s)(href|href_template)(\s*=\s*)("[^"<]*"|'[^'<]*')""")
_QUOTE_ENTITIES = {"&quot;": '"', "&apos;": "'"}


@dataclass(frozen=True, slots=True)
class UrlRewrite:
    """A URL pattern and its replacement."""

    glob: UrlGlob
    before: bytes | None
    """What is replaced: the start of URLs, in the form of `url_text`, or a whole URL; None if the scheme is open."""
    after: str
    selection: PreparedSearch
    """Which values and URLs are rewritten."""

    @classmethod
    def parse(cls, search: Search, to: str) -> Self:
        """Parse the pattern and its replacement; each needs a scheme and a host, with at most one `*`, at the end.

        The scheme of a pattern with a `*` at the end can be a `*` too. Raises `Refused`.
        """
        url = search.url or ""
        try:
            f"{url}{to}".encode()
        except UnicodeEncodeError:
            reason = "The URL contains an unpaired surrogate, which has no UTF-8 form"
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.URL_PATTERN_EXAMPLE(), "H4") from None
        try:
            glob = UrlGlob.parse(url)
        except InvalidData as problem:
            advice = AdviceKind.URL_PATTERN_EXAMPLE()
            raise InvalidRequest(ResponseCode.INVALID_VALUE, str(problem), advice) from problem
        target = to.strip()
        before = glob.literal if not glob.is_exact else url_text(exact_url_range(url).full_first)
        if glob.scheme is None or (before is None and not _has_open_scheme(glob)):
            reason = (
                f"Invalid URL pattern {display_name(url)}: it needs a scheme and a host, and at most one *, at the end"
            )
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.URL_PATTERN_EXAMPLE())
        stars = 0 if glob.is_exact else 1
        after = target.removesuffix(_STAR) if stars else target
        if target.count(_STAR) != stars or _STAR in after or not _is_url(after, whole=not stars):
            reason = (
                f"Invalid replacement URL {display_name(to)}: it needs a scheme and a host, "
                "and a * at the end only if the pattern has one"
            )
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.URL_REPLACEMENT_EXAMPLE())
        return cls(glob, before, after, search.prepare())

    @property
    def repeats(self) -> bool:
        """Whether a rewritten URL could match the pattern again."""
        if self.before is None:
            return True
        after = url_text(exact_url_range(self.after).full_first)
        return after.startswith(self.before) or self.before.startswith(after)

    def apply(self, value: Value) -> Value | None:
        """Return the rewritten value; the same value if it cannot be rewritten; None if it does not match."""
        if has_type(value.type, URL):
            keys = url_keys(value.data)
            if not (self.selection.matches_type_and_data(value) and self.selection.matches_url(keys)):
                return None
            return replace(value, data=self._build_url(keys[0]))
        if has_type(value.type, LOCATIONS) and self.selection.matches_value(value.to_bytes(), value):
            return self._rewrite_locations(value)
        return None

    def _build_url(self, key: bytes) -> bytes:
        text = url_text(key)
        if self.before is not None:
            return self.after.encode() + text[len(self.before) :]
        path = text.index(b"/", text.index(b"://") + len("://"))
        return self.after.encode() + text[path + len(self.glob.rest) - len(_STAR) :]

    def _rewrite_url(self, text: str) -> str:
        """Rewrite a URL if it matches."""
        keys = url_keys(text)
        return self._build_url(keys[0]).decode() if self.selection.matches_url(keys) else text

    def _rewrite_locations(self, value: Value) -> Value:
        old = Locations.from_bytes(value.data)
        text = _TAG.sub(self._rewrite_tag, old.text)
        try:
            new = Locations.from_bytes(text.encode())
        except InvalidData:
            return value
        return replace(value, data=new.to_bytes()) if new.root == self._rewrite_root(old.root) else value

    def _rewrite_tag(self, tag: re.Match[str]) -> str:
        """Rewrite the URLs in a location tag; other markup stays unchanged."""
        return (
            tag[0]
            if tag["name"] is None
            else _ATTRIBUTE.sub(lambda each: _rewrite_attribute(each, self._rewrite_url), tag[0])
        )

    def _rewrite_root(self, root: Element) -> Element:
        """Return the expected document: of each location only the effective target attribute changes."""
        children: list[Element | str] = []
        for child in root.children:
            if isinstance(child, Element) and child.name in _LOCATION_TAGS:
                target = "href" if child.get("href") is not None else "href_template"
                attributes = [
                    (name, self._rewrite_url(text) if name == target else text) for name, text in child.attributes
                ]
                children.append(replace(child, attributes=tuple(attributes)))
            else:
                children.append(child)
        return replace(root, children=tuple(children))


def _has_open_scheme(glob: UrlGlob) -> bool:
    """Whether a pattern is any scheme, a host, and the start of paths with a `*`."""
    star = _STAR.encode()
    return glob.scheme == star and star not in glob.authority and glob.rest.find(star) == len(glob.rest) - 1


def _rewrite_attribute(match: re.Match[str], rewrite: Callable[[str], str]) -> str:
    """Rewrite the URL in an attribute; the text stays unchanged if the URL does not match."""
    quote, inner = match[3][0], match[3][1:-1]
    text = unescape(inner, _QUOTE_ENTITIES)
    new = rewrite(text)
    if new == text:
        return match[0]
    return f"{match[1]}{match[2]}{quote}{escape(new, {quote: '&quot;' if quote == chr(34) else '&apos;'})}{quote}"


def _is_url(text: str, *, whole: bool) -> bool:
    """Whether a text has a scheme and a host; unless it is a whole URL, the host must end with a slash."""
    key = exact_url_range(text).full_first
    return ALL_URLS.first <= key < ALL_URLS.end and (whole or "/" in text.partition("://")[2])


KIND = "rewrite"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The parameters of a rewrite job."""

    url: str
    """A URL, or the start of URLs and a `*`."""
    to: str
    """The new URL, or the new start and a `*`."""
    prefix: str | None = None
    """Only handles under this prefix."""
    type: str | None = None
    """Only values of this type."""
    owner: str | None = None
    """Only records of this owner."""
    path: str | None = None
    """Only URLs whose path starts with this."""
    value: str | None = None
    """Only values with exactly this data."""
    changed_since: int | None = None
    """Only records whose latest change is after this entry."""
    words: str | None = None
    """Only records with these words in a title."""

    @classmethod
    def of(cls, search: Search, to: str) -> Self:
        """Return the rewrite of the URLs that a search selects, by a URL or a host. Raises `Refused`."""
        if (search.url is None) == (search.host is None):
            reason = "A rewrite requires either a URL or a host"
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.SELECT_URLS())
        search.prepare()
        url = search.url or f"*://{search.host}/*"
        try:
            value = None if search.value is None else search.value.decode()
        except UnicodeDecodeError:
            reason = "The value is not valid UTF-8"
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, AdviceKind.SELECT_URLS(), "H4") from None
        return cls(url, to, search.prefix, search.type, search.owner, search.path, value, search.since, search.words)

    @property
    def search(self) -> Search:
        return Search(
            url=self.url,
            path=self.path,
            type=self.type,
            value=None if self.value is None else self.value.encode(),
            owner=self.owner,
            prefix=self.prefix,
            since=self.changed_since,
            words=self.words,
        )

    def to_url_rewrite(self) -> UrlRewrite:
        """Return the change of each value. Raises `Refused`."""
        return UrlRewrite.parse(self.search, self.to)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """The planned change of one record."""

    handle: str
    changes: tuple[Modification, ...]
    """Values before and after."""
    left: tuple[Value, ...]
    """Values that match but cannot be rewritten."""
    schemes: tuple[str, ...] = URL_SCHEMES
    """The schemes of URLs to which clients are redirected."""

    def find_warnings(self, change: Modification) -> tuple[WarningInfo, ...]:
        """What the caller should know about one of the changes."""
        old, new = change
        return tuple(find_url_warnings([new], [old], self.schemes))


@dataclass(frozen=True, slots=True)
class RewritePage:
    """A page of planned changes."""

    items: tuple[PlannedRewrite, ...]
    following: str | None
    """Where the next page starts; None if this is the last one. A page can be empty and not the last."""


def preview(registry: Registry, order: Rewrite, identity: Identity) -> Iterator[PlannedRewrite]:
    """Iterate over the changes that the job would make now, without making them. Raises `Refused`."""
    after: str | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = preview_page(snapshot, identity, order, after)
        yield from page.items
        after = page.following
        if after is None:
            return


def preview_page(
    snapshot: Snapshot, identity: Identity, order: Rewrite, after: str | None = None, limit: int = 0
) -> RewritePage:
    """Return a page of the preview, of `CHUNK_SIZE` records unless `limit` is set. Raises `Refused`."""
    rewrite = order.to_url_rewrite()
    items: dict[str, PlannedRewrite] = {}

    def weigh(result: SearchResult) -> int:
        """Size of the planned change, which also counts toward the page budget."""
        planned = _plan_record(rewrite, result.handle, result.values, snapshot.rules.url_schemes)
        items[result.handle] = planned
        return values_size([new for _, new in planned.changes])

    results, following = _find_matching(snapshot, identity, order, after, limit or runner.CHUNK_SIZE, weigh)
    return RewritePage(tuple([items[handle] for handle, _ in results]), following)


def _plan_record(
    rewrite: UrlRewrite, handle: str, values: tuple[Value, ...], schemes: tuple[str, ...]
) -> PlannedRewrite:
    pairs = [(value, rewrite.apply(value)) for value in values]
    changes = tuple([(old, new) for old, new in pairs if new is not None and new != old])
    return PlannedRewrite(handle, changes, tuple([old for old, new in pairs if new == old]), schemes)


def nothing_matches(order: Rewrite) -> Refused:
    """The refusal of a rewrite that would change nothing."""
    reason = f"No URL that you can see matches {display_name(order.url)}, or none that can be rewritten"
    return Refused(ResponseCode.VALUES_NOT_FOUND, reason, AdviceKind.SEARCH_URLS())


def start(registry: Registry, order: Rewrite, identity: Identity, interface: str, note: str, total: int) -> Job:
    """Start a rewrite job; `JobRun` executes it."""
    order.to_url_rewrite()
    optional = asdict(order)
    parameters = {name: optional.pop(name) for name in ("url", "to", "prefix")}
    parameters |= {name: each for name, each in optional.items() if each is not None}
    return runner.start_job(registry, KIND, parameters, identity, interface, note, total=total)


def load_work(_registry: Registry, job: Job) -> "_RewriteWork":
    """Load the work of a rewrite job. Raises `Refused`."""
    order = msgspec.convert(runner.load_parameters(job), Rewrite)
    return _RewriteWork(order, order.to_url_rewrite(), job)


def _find_matching(
    snapshot: Snapshot,
    identity: Identity,
    order: Rewrite,
    after: str | None,
    limit: int,
    weigh: Callable[[SearchResult], int] | None = None,
) -> tuple[list[tuple[str, tuple[Value, ...]]], str | None]:
    """Return a page of matching handles with the matching values, and where the next page starts."""
    page = find(snapshot, identity, order.search, after, limit, weigh=weigh)
    # A tombstone has no target; its remaining values belong to its history.
    live = [each for each in page.items if each.state is not State.TOMBSTONE]
    hosted = [each for each in live if snapshot.is_responsible(Handle.parse_lenient(each.handle))]
    return [(each.handle, each.values) for each in hosted], page.following


@dataclass(frozen=True, slots=True)
class _RewriteWork:
    """Rewrites records, each once. Requires permission to modify the values of each record."""

    prepares_ahead: ClassVar[bool] = True
    order: Rewrite
    rewrite: UrlRewrite
    job: Job

    def pages(self, run: JobRun) -> Iterator[tuple[str, ...]]:
        """Select matching handles that the caller can see, again until nothing changes: new records can appear."""
        done = -1
        while done < len(run.steps):
            done = len(run.steps)
            after: str | None = None
            while True:
                with run.registry.snapshot() as snapshot:
                    results, after = _find_matching(snapshot, run.identity, self.order, after, runner.CHUNK_SIZE)
                yield tuple([handle for handle, _ in results])
                if after is None:
                    break
            yield ()  # the last step is committed when more is asked for, and counts

    def decider(self, context: Context, steps: JobSteps) -> Callable[[str], tuple[Draft, ...]]:
        return lambda name: self._drafts(context, name, steps)

    def _drafts(self, context: Context, name: str, done: JobSteps) -> tuple[Draft, ...]:
        """Return the entry that rewrites a record; none if nothing matches."""
        handle = Handle.parse_lenient(name)
        if not context.snapshot.is_responsible(handle):
            return ()
        stored = context.snapshot.stored(handle)
        if not stored.exists or stored.state is State.TOMBSTONE or self._is_done(context, stored, done):
            return ()
        changes: dict[int, Value] = {}
        pairs: list[Modification] = []
        for value in stored.values:
            new = self.rewrite.apply(value)
            if new is None or new == value:
                continue
            if not (value.is_public or self._reads(context, stored, value)):
                continue  # the caller cannot see its target
            decision = authorize_write(context.identity, stored.handle, value, new)
            if not decision.allowed:
                raise Refused.from_decision(decision)
            changes[value.index] = new
            pairs.append((value, new))
        if not pairs:
            return ()
        context.require(permissions.modify(stored.handle, pairs))
        values = compose(context, stored, tuple([changes.get(value.index, value) for value in stored.values]))
        return (context.draft(stored, Action.UPDATE, values, stored.state),)

    def _reads(self, context: Context, stored: StoredRecord, value: Value) -> bool:
        """Whether the caller can read a private value; some values nobody can read."""
        return Permission.ADMIN_READ in value.permissions and context.is_allowed(permissions.read(stored.handle))

    def _is_done(self, context: Context, stored: StoredRecord, done: JobSteps) -> bool:
        """Whether this job has already rewritten a record, even if others changed it later."""
        return self.rewrite.repeats and runner.last_changed_seq(context.snapshot, stored, self.job, done) > 0

"""Where a value leads, when hosts and paths have moved: `http://old.example/*` to `https://new.example/*`.

What stands before the `*` is replaced, and what stands behind it stays, letter by letter. Values of type URL, those of
its subtypes, and the places in 10320/loc are moved. In XML only the attribute is written anew; if that cannot be done
without touching anything else, the value is left as it is.

Moving what many names lead to, at once: a host has another name, a path begins otherwise.

The names are found by the index of where records lead, as far as whoever asks may see them (`finding`), and changed as
single changes would be: with the right to modify their values, under their policies. It is one unit (`units`), so it
can be watched, gone on with and undone. What is changed by others meanwhile is moved as well, as it is then.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Self
from xml.sax.saxutils import escape, unescape

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.ledger.views.search_keys import ALL_URLS, exact_url_range, location_keys, url_text
from perseid.ledger.views.url_glob import UrlGlob
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.locations import Locations
from perseid.records.types import LOCATIONS, URL, has_type
from perseid.records.value import Permission, Value
from perseid.records.xml import Element
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_write
from perseid.registry.access.permissions import Modification, display_name
from perseid.registry.commands.composition import compose
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.queries.find import Search, SearchResult, find
from perseid.registry.queries.paging import values_size
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import Progress

_STAR = "*"
_LOCATION_TAGS: Final = ("location", "loc_template")
# Comments, instructions and plain text first: what looks like a tag in them is none.
_TAG = re.compile(
    rf"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<(?P<name>{"|".join(_LOCATION_TAGS)})(?=[\s/>])(?:[^"'>]|"[^"]*"|'[^']*')*>""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""(?<=\s)(href|href_template)(\s*=\s*)("[^"<]*"|'[^'<]*')""")
_QUOTE_ENTITIES = {"&quot;": '"', "&apos;": "'"}


@dataclass(frozen=True, slots=True)
class UrlRewrite:
    """From where to where."""

    glob: UrlGlob
    before: bytes
    """What is replaced: how URLs begin, in the form of `url_text`, or a whole one."""
    after: str
    """What takes its place."""

    @classmethod
    def parse(cls, url: str, to: str) -> Self:
        """Take what somebody wrote; refused unless both say where, with one `*` at the end or none."""
        try:
            f"{url}{to}".encode()
        except UnicodeEncodeError:
            reason = "a URL that holds half of a surrogate pair has no UTF-8 form"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in http://old.example/*", "H4") from None
        try:
            glob = UrlGlob.parse(url)
        except InvalidData as problem:
            raise Refused(ResponseCode.INVALID_VALUE, str(problem), "write it as in http://old.example/*") from problem
        target = to.strip()
        before = glob.literal if not glob.is_exact else url_text(exact_url_range(url).full_first)
        if before is None or glob.scheme is None:
            reason = (
                f"{display_name(url)} does not say which URLs move: that takes a scheme, "
                "a host, and at most one * at the end"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in http://old.example/*")
        stars = 0 if glob.is_exact else 1
        after = target.removesuffix(_STAR) if stars else target
        if target.count(_STAR) != stars or _STAR in after or not _is_url(after, whole=not stars):
            reason = (
                f"{display_name(to)} does not say where to: that takes a scheme, a host, "
                "and a * just where the other has one"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in https://new.example/*")
        return cls(glob, before, after)

    @property
    def repeats(self) -> bool:
        """Whether something that was moved could be moved again."""
        after = url_text(exact_url_range(self.after).full_first)
        return after.startswith(self.before) or self.before.startswith(after)

    def moved(self, value: Value) -> Value | None:
        """A value after the move; the same if it cannot be moved; None if it leads elsewhere."""
        content = value.to_bytes()
        if not self.glob.matches_values(content):
            return None
        if has_type(value.type, URL):
            return replace(value, data=self._build_url(location_keys(content)[0][0]))
        return self._rewrite_locations(value) if has_type(value.type, LOCATIONS) else value

    def _build_url(self, key: bytes) -> bytes:
        return self.after.encode() + url_text(key)[len(self.before) :]

    def _rewrite_url(self, text: str) -> str:
        """Where a place is after the move; where it was, if it does not move."""
        key = exact_url_range(text).full_first
        return self._build_url(key).decode() if self.glob.matches(key) else text

    def _rewrite_locations(self, value: Value) -> Value:
        old = Locations.from_bytes(value.data)
        text = _TAG.sub(self._rewrite_tag, old.text)
        try:
            new = Locations.from_bytes(text.encode())
        except InvalidData:
            return value
        return replace(value, data=new.to_bytes()) if new.root == self._rewrite_root(old.root) else value

    def _rewrite_tag(self, tag: re.Match[str]) -> str:
        """A tag after the move; letter by letter the same if it is not that of a place."""
        return (
            tag[0]
            if tag["name"] is None
            else _ATTRIBUTE.sub(lambda each: _rewrite_attribute(each, self._rewrite_url), tag[0])
        )

    def _rewrite_root(self, root: Element) -> Element:
        """What the document says after the move; of each place only the attribute changes that counts as its target."""
        children: list[Element | str] = []
        for child in root.children:
            if isinstance(child, Element) and child.name in _LOCATION_TAGS:
                counts = "href" if child.get("href") is not None else "href_template"
                moved = [(name, self._rewrite_url(text) if name == counts else text) for name, text in child.attributes]
                children.append(replace(child, attributes=tuple(moved)))
            else:
                children.append(child)
        return replace(root, children=tuple(children))


def _rewrite_attribute(match: re.Match[str], moved: Callable[[str], str]) -> str:
    """An attribute of a place, as it is written after the move; letter by letter the same if it does not move."""
    quote, inner = match[3][0], match[3][1:-1]
    text = unescape(inner, _QUOTE_ENTITIES)
    new = moved(text)
    if new == text:
        return match[0]
    return f"{match[1]}{match[2]}{quote}{escape(new, {quote: '&quot;' if quote == chr(34) else '&apos;'})}{quote}"


def _is_url(text: str, *, whole: bool) -> bool:
    """Whether a text has a scheme and a host; as the beginning of URLs it says also where the host ends."""
    key = exact_url_range(text).full_first
    return ALL_URLS.first <= key < ALL_URLS.end and (whole or "/" in text.partition("://")[2])


KIND = "rewrite"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Move everything that leads to some URLs to others."""

    url: str
    """Which: a URL, or how they begin and a `*`."""
    to: str
    """Where to: a URL, or how they begin then and a `*`."""
    prefix: str | None = None
    """Only names of this namespace."""

    @property
    def search(self) -> Search:
        """What is looked for."""
        return Search(url=self.url, prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """What becomes of one name."""

    handle: str
    changes: tuple[Modification, ...]
    """Values as they are, and as they will be."""
    left: tuple[Value, ...]
    """Values that lead there and cannot be moved."""


@dataclass(frozen=True, slots=True)
class RewritePage:
    """What becomes of some names."""

    items: tuple[PlannedRewrite, ...]
    following: str | None
    """Where the next page begins; None if this is the last one. A page may be empty and not the last."""


def preview(registry: Registry, order: Rewrite, identity: Identity) -> Iterator[PlannedRewrite]:
    """What would be changed, by the state of now; nothing is done. Raises `Refused`."""
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
    """A page of the same, behind where one ended; of `units.CHUNK` names, unless it says. Raises `Refused`."""
    move = UrlRewrite.parse(order.url, order.to)
    items: dict[str, PlannedRewrite] = {}

    def weigh(found: SearchResult) -> int:
        """What becomes of a name takes room too; it is worked out here, for a page that it may not fit on."""
        made = items[found.handle] = _plan_record(move, found.handle, found.values)
        return values_size([new for _, new in made.changes])

    found, following = _find_matching(snapshot, identity, order, after, limit or runner.CHUNK_SIZE, weigh)
    return RewritePage(tuple([items[handle] for handle, _ in found]), following)


def _plan_record(move: UrlRewrite, handle: str, values: tuple[Value, ...]) -> PlannedRewrite:
    pairs = [(value, move.moved(value)) for value in values]
    changes = tuple([(old, new) for old, new in pairs if new is not None and new != old])
    return PlannedRewrite(handle, changes, tuple([old for old, new in pairs if new == old]))


def start(registry: Registry, order: Rewrite, identity: Identity, door: str, note: str, total: int) -> Job:
    """Begin to move; `run` does it."""
    UrlRewrite.parse(order.url, order.to)
    order.search.prepared()
    asked: dict[str, object] = {"url": order.url, "to": order.to, "prefix": order.prefix}
    return runner.start_job(registry, KIND, asked, identity, door, note, total=total)


def run(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """Do what is left to do of a rewrite, at most `units.CHUNK` records to a commit, and yield after each.

    The first record that somebody may not change ends it with `Refused`; what is done by then stays done. Everything
    is gone through until nothing is left, for there may be new records meanwhile.
    """
    return runner.skip_unchanged(run_steps(registry, operation, identity))


def run_steps(registry: Registry, operation: Job, identity: Identity) -> Iterator[Progress]:
    """The same in pieces of bounded work, whether or not anything was changed; the first one does nothing yet."""
    asked = runner.load_parameters(operation)
    order = Rewrite(str(asked["url"]), str(asked["to"]), None if asked["prefix"] is None else str(asked["prefix"]))
    move = UrlRewrite.parse(order.url, order.to)
    steps = jobs.load_steps(registry.ledger.log, operation.id)
    yield Progress(operation.id, len(steps), operation.total)
    changed = 1
    while changed:
        changed = 0
        for names in _matching_handles(registry, order, identity):
            while names:
                step = _Step(move, names, operation, steps)
                done = registry.do(
                    step, identity, operation.door, runner.entry_note(operation), job_id=operation.id
                )
                steps, names = done.steps, names[done.processed :]  # noqa: PLW2901 - the rest, if they are large
                changed += done.changed
                yield Progress(operation.id, len(steps), operation.total)
            yield Progress(operation.id, len(steps), operation.total)
    runner.complete_job(registry, operation)


def _matching_handles(registry: Registry, order: Rewrite, identity: Identity) -> Iterator[tuple[str, ...]]:
    """The names that lead there, as far as somebody may see them; page by page, some of which may be empty."""
    after: str | None = None
    while True:
        with registry.snapshot() as snapshot:
            found, after = _find_matching(snapshot, identity, order, after, runner.CHUNK_SIZE)
        yield tuple([handle for handle, _ in found])
        if after is None:
            return


def _find_matching(
    snapshot: Snapshot,
    identity: Identity,
    order: Rewrite,
    after: str | None,
    limit: int,
    weigh: Callable[[SearchResult], int] | None = None,
) -> tuple[list[tuple[str, tuple[Value, ...]]], str | None]:
    """A page of the names that lead there, with the values that do, and where the next one begins."""
    page = find(snapshot, identity, order.search, after, limit, weigh=weigh)
    # A tombstone leads nowhere; what it still holds is a matter of its past.
    living = [each for each in page.items if each.state is not State.TOMBSTONE]
    here = [each for each in living if snapshot.is_responsible(Handle.parse_lenient(each.handle))]
    return [(found.handle, found.values) for found in here], page.following


@dataclass(frozen=True, slots=True)
class _StepResult:
    """What a step came to."""

    steps: JobSteps
    processed: int
    """Of the names that were given, from the first on."""
    changed: int


@dataclass(frozen=True, slots=True)
class _Step:
    """Move some names, as far as one commit takes them."""

    move: UrlRewrite
    names: tuple[str, ...]
    unit: Job
    known: JobSteps
    """What of it has been done, as far as is known."""

    def decide(self, context: Context) -> Plan[_StepResult]:
        """For each record what modifying its values takes."""
        require_identity(context, f"move {display_name(self.names[0])}")
        done = self.known
        if self.move.repeats:  # then it counts what has been moved already, by others at the same time, too
            done = done.refresh(context.snapshot.reading, self.unit.id)
        chunk = runner.Chunk(context)
        chunk.take(self.names, lambda name: self._drafts(chunk.context, name, done))
        reason = context.reasons[-1] if context.reasons else ""
        count = len(chunk.drafts)
        drafts, processed = tuple(chunk.drafts), chunk.processed
        return Plan(lambda seq: _StepResult(done.with_step(seq, count), processed, count), drafts, reason=reason)

    def _drafts(self, context: Context, name: str, done: JobSteps) -> tuple[Draft, ...]:
        """The entry that moves a name; none if there is nothing to move."""
        handle = Handle.parse_lenient(name)
        if not context.snapshot.is_responsible(handle):
            return ()
        stored = context.snapshot.stored(handle)
        if not stored.exists or stored.state is State.TOMBSTONE or self._is_done(context, stored, done):
            return ()
        changes: dict[int, Value] = {}
        pairs: list[Modification] = []
        for value in stored.values:
            new = self.move.moved(value)
            if new is None or new == value:
                continue
            if not (value.is_public or self._reads(context, stored, value)):
                continue  # whoever may not read it has not seen where it leads
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
        """Whether somebody may read a value that is not public; some nobody may."""
        return Permission.ADMIN_READ in value.permissions and context.is_allowed(permissions.read(stored.handle))

    def _is_done(self, context: Context, stored: StoredRecord, done: JobSteps) -> bool:
        """Whether a record has been moved by this unit, whoever changed it afterwards."""
        return self.move.repeats and runner.last_changed_seq(context.snapshot, stored, self.unit, done) > 0

"""The versions of a record for people: a timeline with differences, and an Atom feed (RFC 4287).

`registry.queries.history` decides what everybody can see. Feeds have absolute URLs; without a public URL
their ids are `hdl:` URIs.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from perseid.ledger.log.entry import Action as LedgerAction
from perseid.records.encoding import to_iso
from perseid.records.record import Value
from perseid.records.titles import to_single_line
from perseid.registry.access.permissions import Differences
from perseid.registry.queries.citation import Citation
from perseid.registry.queries.history import History, Version
from perseid.server.http.messages import BadRequest, HeaderList, Response
from perseid.server.http.resolver.lookup import LookupResult
from perseid.server.http.resolver.paths import Action, absolute_url, path_to
from perseid.server.http.resolver.time_travel import AT_PARAMETER

from .branding import site_name
from .links import TextLink, to_visible
from .pages import PAGES_SCRIPT, render_page
from .record_page import MAX_TITLE
from .texts import _, ngettext
from .values import MAX_SHORT, LinkBuilder, describe_data

VERSIONS_PER_PAGE: Final = 20
"""Versions on one page: more than most records have."""

MAX_CHANGED: Final = 100
"""Values that one version shows; the version itself has all of them."""

FEED_TYPE: Final = "application/atom+xml;charset=utf-8"

_SECOND: Final = 1_000_000
_NUMBER: Final = re.compile("[0-9]{1,18}")
_ATOM: Final = "http://www.w3.org/2005/Atom"


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """One difference on the page; a side without value is empty."""

    index: int
    type: str
    before: TextLink
    after: TextLink


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A version on the page."""

    seq: str
    time: str
    words: str
    href: str
    changes: tuple[ChangedValue, ...]
    more: int
    actor: str


def parse_entry(text: str | None) -> int | None:
    """Parse the number of an entry; None if there is none. Raises `BadRequest`."""
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise BadRequest("the parameter before must be an entry number; use the link of the page unchanged")
    return int(text)


def history_page(
    found: LookupResult,
    history: History,
    citation: Citation,
    links: LinkBuilder,
    headers: HeaderList,
    *,
    is_first: bool = True,
) -> Response:
    """Return the timeline of a record, or the part before an entry."""
    name, path = to_visible(found.name), path_to(found.name, links.settings)
    return render_page(
        "history.html",
        links.settings,
        headers=headers,
        scripts=(PAGES_SCRIPT,),
        title=_("History of {name}").format(name=name),
        name=name,
        record_title=to_visible(citation.title or "", MAX_TITLE),
        path=path,
        versions=[_show(version, path, links) for version in history.versions],
        before=history.before,
        complete=history.complete,
        is_first=is_first,
    )


def history_feed(
    found: LookupResult, history: History, citation: Citation, links: LinkBuilder, headers: HeaderList
) -> Response:
    """Return the versions of a record as an Atom feed."""
    settings = links.settings
    path = absolute_url(path_to(found.name, settings), settings)
    base = path if settings.public_url else citation.hdl
    own = absolute_url(f"{path_to(found.name, settings)}?action={Action.FEED.value}", settings)
    updated = to_iso(history.versions[0].at // _SECOND) if history.versions else to_iso(0)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<feed xmlns="{_ATOM}">',
        f"<title>{_xml(citation.title or found.name)}</title>",
        f"<id>{_xml(base)}</id>",
        f"<updated>{updated}</updated>",
        f"<author><name>{_xml(site_name(settings))}</name></author>",
        f'<link rel="self" type="application/atom+xml" href={_attribute(own)}/>',
        f'<link rel="alternate" type="text/html" href={_attribute(f"{path}?action={Action.HISTORY.value}")}/>',
    ]
    for version in history.versions:
        place = f"?{AT_PARAMETER}={version.seq}"
        lines += [
            "<entry>",
            f"<title>{_xml(_describe(version))}</title>",
            f"<id>{_xml(base + place)}</id>",
            f"<updated>{to_iso(version.at // _SECOND)}</updated>",
            f'<link rel="alternate" type="text/html" href={_attribute(f"{path}{place}&noredirect")}/>',
            f"<summary>{_xml(_summarize(version.changed))}</summary>",
            "</entry>",
        ]
    body = "\n".join((*lines, "</feed>", "")).encode("utf-8", "replace")
    return Response(200, (*headers, ("Content-Type", FEED_TYPE)), body)


def _show(version: Version, path: str, links: LinkBuilder) -> ShownVersion:
    changed = version.changed
    values: list[ChangedValue] = []
    if changed is not None:
        values += [_changed(None, value, links) for value in changed.added]
        values += [_changed(before, after, links) for before, after in changed.modified]
        values += [_changed(value, None, links) for value in changed.removed]
        values.sort(key=lambda each: each.index)
    return ShownVersion(
        seq=f"{version.seq:,}",
        time=to_iso(version.at // _SECOND),
        words=_describe(version),
        href=f"{path}?noredirect&{AT_PARAMETER}={version.seq}",
        changes=tuple(values[:MAX_CHANGED]),
        more=max(0, len(values) - MAX_CHANGED),
        actor=to_visible(version.actor or "", MAX_SHORT),
    )


def _changed(before: Value | None, after: Value | None, links: LinkBuilder) -> ChangedValue:
    value = after or before
    assert value is not None  # noqa: S101 - one of them is there
    return ChangedValue(value.index, to_visible(value.type), _text_of(before, links), _text_of(after, links))


def _text_of(value: Value | None, links: LinkBuilder) -> TextLink:
    """A value in one line of text, without links: they may lead to what it no longer means."""
    if value is None:
        return TextLink("")
    lines, note = describe_data(value, links)
    return TextLink("\n".join(["".join([piece.text for piece in line]) for line in lines]) or note)


def _describe(version: Version) -> str:
    words = {
        LedgerAction.CREATE: _("Created"),
        LedgerAction.DELETE: _("Deleted"),
        LedgerAction.TOMBSTONE: _("Withdrawn"),
        LedgerAction.REDACT: _("Redacted"),
    }
    return words.get(version.action) or _("Changed")


def _summarize(changed: Differences | None) -> str:
    if changed is None:
        return ""
    counts: Iterable[tuple[int, str]] = (
        (len(changed.added), ngettext("{count} value added", "{count} values added", len(changed.added))),
        (len(changed.modified), ngettext("{count} value changed", "{count} values changed", len(changed.modified))),
        (len(changed.removed), ngettext("{count} value removed", "{count} values removed", len(changed.removed))),
    )
    return ", ".join([text.format(count=count) for count, text in counts if count])


def _xml(text: str) -> str:
    return escape(to_single_line(to_visible(text)))


def _attribute(text: str) -> str:
    return quoteattr(to_single_line(text))

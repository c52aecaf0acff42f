"""Citations of an identifier (S10) as text, URI, BibTeX, CSL-JSON or QR code.

Title, creators, date, publisher and description come from public values of matching types: `TITLE`, `AUTHOR` or
`CREATOR`, `DATE` or `ISSUED`, `PUBLISHER`, `DESC`, plain, after `DC.` (Dublin Core) or `DATACITE.`, or as the suffix of
a registered type (`12345/TITLE`). Nothing is invented: unknown fields are omitted, and who created the *identifier* and
when (A1) is never presented as an author or publication date.

BibTeX output works in every reader: TeX special characters become commands, and so do braces, because BibTeX counts
them even after a backslash. Non-ASCII letters stay UTF-8. Titles have two pairs of braces, so that no style changes
their case, and names too, so that none splits them.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle, fold
from perseid.names.uri import Reference, Resolver, to_http, to_path
from perseid.records.encoding import JsonObject, to_iso, write_json
from perseid.records.errors import InvalidData
from perseid.records.record import Record, Value, ascending
from perseid.records.titles import DESCRIPTIONS, TITLE_KEYWORDS, TITLES, read_line, type_keyword
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.records import require_record
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy.authority import build_metadata
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidQuery, Refused, Resolution
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.schema.queries import Style

from .history import RecordHistory, resolve_at, seq_at_time
from .resolve import Query

if TYPE_CHECKING:
    from segno import QRCode

CREATORS: Final = ("AUTHOR", "CREATOR")
DATES: Final = ("DATE", "ISSUED")
PUBLISHERS: Final = ("PUBLISHER",)
"""Types by meaning, as those of titles (`perseid.records.titles`); earlier ones take precedence."""

MAX_TOMBSTONES: Final = 10
"""Versions that are searched for the one before a tombstone: few tombstones are changed."""

_SECOND: Final = 1_000_000
_DATE: Final = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:T[0-9:.]+(?:Z|[+-][0-9:]+)?)?)?)?")


@dataclass(frozen=True, slots=True)
class Version:
    """The cited version of a record, permanently available by its entry."""

    seq: int
    """The entry that created it."""
    at: str
    """Its time, in ISO 8601."""


@dataclass(frozen=True, slots=True)
class Citation:
    """An identifier and its known metadata; each text is a single line."""

    hdl: str
    """The identifier as `hdl:` URI."""
    http: str | None = None
    """The identifier at a resolver; None if no resolver is known."""
    title: str | None = None
    creators: tuple[str, ...] = ()
    date: str | None = None
    """As in the record."""
    publisher: str | None = None
    description: str | None = None
    created: str | None = None
    """When the identifier was first associated with its target, in ISO 8601."""
    creator: str | None = None
    """Who created the identifier, as `hdl:` URI."""
    gone: str | None = None
    """That the target is no longer available, and why."""
    version: Version | None = None
    """The cited version; None for the current one at the time of reading."""

    @property
    def uri(self) -> str:
        """The URI to use: at the resolver, otherwise the `hdl:` URI."""
        return self.hdl if self.http is None else self.http

    @property
    def date_parts(self) -> tuple[int, ...]:
        """Year, month and day, as far as the date is ISO 8601; empty otherwise."""
        match = None if self.date is None else _DATE.fullmatch(self.date)
        if match is None:
            return ()
        parts = tuple([int(part) for part in match.groups() if part is not None])
        try:
            date(*(*parts, 1, 1)[:3])
        except (TypeError, ValueError):
            return ()
        return parts

    @property
    def state(self) -> tuple[str, ...]:
        """Notes for the reader: the cited version, and that the target is gone."""
        notes = [] if self.version is None else [f"as of entry {self.version.seq} ({self.version.at})"]
        return tuple(notes if self.gone is None else [*notes, self.gone])

    @property
    def origin(self) -> str | None:
        """When and by whom the identifier was created."""
        if self.created is None and self.creator is None:
            return None
        on, by = f" {self.created}" if self.created else "", f" by {self.creator}" if self.creator else ""
        return f"identifier created{on}{by}"


def to_uri(reference: Reference, resolver: Resolver | None) -> str:
    """Return the URI of an identifier: at the resolver, or the `hdl:` URI without one."""
    return to_path(reference) if resolver is None else to_http(reference, resolver)


def build_citation(
    policy: Policy,
    resolved: Resolution,
    reference: Reference,
    resolver: Resolver | None,
    texts: "PublicTexts | None" = None,
    *,
    fixed: bool = False,
) -> Citation:
    """Build the citation of a resolution, with its `texts` if known; `fixed` cites this version and no later one."""
    name = Reference(resolved.registered, reference.query, reference.fragment)
    texts = texts or PublicTexts(policy, resolved.values)
    metadata = None
    if policy.authority:
        metadata = build_metadata(policy, Record(resolved.registered, resolved.values), None, lambda _: False)
    titles, descriptions = texts.texts(TITLES), texts.texts(DESCRIPTIONS)
    created = None if metadata is None or metadata.created is None else to_iso(metadata.created)
    creator = None if metadata is None or metadata.creator is None else to_path(Reference(metadata.creator.handle))
    return Citation(
        hdl=to_path(name),
        http=None if resolver is None else to_http(name, resolver),
        title=next(iter(texts.texts(TITLE_KEYWORDS)), None),
        creators=tuple(texts.texts(CREATORS)),
        date=next(iter(texts.texts(DATES)), None),
        publisher=next(iter(texts.texts(PUBLISHERS)), None),
        description=next(iter(descriptions), None) if titles else None,
        created=created,
        creator=creator,
        gone=_tombstone_text(policy, resolved),
        version=Version(resolved.seq, to_iso(resolved.at // _SECOND)) if fixed else None,
    )


def find_title(policy: Policy, values: Iterable[Value], types: tuple[str, ...]) -> str:
    """The first text of a public value of one of these types, the preferred first; empty if there is none."""
    for type_ in types:
        chosen = [value for value in ascending(values) if value.is_public and fold(value.type) == fold(type_)]
        if (text := next(_texts(chosen), "")) and fold(type_) not in policy.identifier_types:
            return text
    return ""


def find_last_title(snapshot: Snapshot, handle: Handle, types: tuple[str, ...]) -> str:
    """The title of the last version before a tombstone that everybody can see; empty if there is none.

    Raises `Refused`.
    """
    history = RecordHistory(snapshot, Anonymous(), handle)
    policy = history.stored.policy
    for version in islice(history.versions(), MAX_TOMBSTONES):
        if version.entry.state is State.NORMAL:
            texts = PublicTexts(policy, version.values).texts(TITLE_KEYWORDS)
            return find_title(policy, version.values, types) or next(iter(texts), "")
    return ""


def _tombstone_text(policy: Policy, resolved: Resolution) -> str | None:
    if resolved.state is not State.TOMBSTONE:
        return None
    reasons = [value for value in resolved.values if fold(value.type) == fold(policy.tombstone_reason_type)]
    reason = next(_texts(reasons), "")
    return f"gone: {reason}" if reason else "gone"


class PublicTexts:
    """Texts of the public values that describe the target, each on one line."""

    def __init__(self, policy: Policy, values: Iterable[Value]) -> None:
        self._values: dict[str, list[Value]] = {}
        self._texts: dict[str, list[str]] = {}
        for value in ascending(values):
            if value.is_public and fold(value.type) not in policy.identifier_types:
                self._values.setdefault(type_keyword(value.type), []).append(value)

    def texts(self, keywords: tuple[str, ...]) -> list[str]:
        """Return the texts for the first of these keywords that has any."""
        for keyword in keywords:
            if keyword not in self._values:
                continue
            if keyword not in self._texts:
                self._texts[keyword] = list(_texts(self._values[keyword]))
            if self._texts[keyword]:
                return self._texts[keyword]
        return []


def _texts(values: Iterable[Value]) -> Iterator[str]:
    return filter(None, (read_line(value.data) for value in values))


TEX_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\textbackslash{}",
    "{": "\\textbraceleft{}",
    "}": "\\textbraceright{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': '{"}',
    **{character: f"\\{character}" for character in "#$%&_"},
}
"""Replacements of characters that are special in TeX or missing from its oldest fonts."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_SENTENCE_ENDS: Final = (".", "?", "!")


def format_text(citation: Citation) -> str:
    """Format as one line: creators, date, title, publisher and the identifier as `hdl:` URI and at the resolver."""
    creators = "; ".join(citation.creators)
    when = f"({citation.date})" if citation.date else ""
    start = " ".join(filter(None, (creators, when)))
    state = f" [{'; '.join(citation.state)}]" if citation.state else ""
    parts = [_with_period(part) for part in (start, citation.title, citation.publisher) if part]
    return " ".join([*parts, ", ".join(filter(None, (citation.hdl, citation.http))) + state])


def format_hdl(citation: Citation) -> str:
    """Format as `hdl:` URI."""
    return citation.hdl + _version(citation)


def format_http(citation: Citation) -> str:
    """Format as the URL at a resolver. Raises `Refused` without one."""
    if citation.http is None:
        raise InvalidQuery("This server has no public URL", AdviceKind.NAME_RESOLVER(), "U4")
    return citation.http + _version(citation)


def format_bibtex(citation: Citation) -> str:
    """Format as a BibTeX entry."""
    fields = "".join(f",\n  {name} = {value}" for name, value in _fields(citation))
    return f"@misc{{{_key(citation)}{fields}\n}}"


def format_csl(citation: Citation) -> str:
    """Format as a CSL-JSON list of one item."""
    return write_json([to_csl(citation)])


def to_csl(citation: Citation) -> JsonObject:
    """Return the CSL-JSON item as a plain object."""
    item: JsonObject = {"id": _id(citation), "type": "document"}
    parts = citation.date_parts
    fields: JsonObject = {
        "title": citation.title,
        "author": [{"literal": name} for name in citation.creators],
        "issued": {"date-parts": [list(parts)]} if parts else citation.date and {"literal": citation.date},
        "publisher": citation.publisher,
        "abstract": citation.description,
        "version": citation.version and f"entry {citation.version.seq}",
        "URL": citation.uri,
        "note": _note(citation),
    }
    return item | {name: value for name, value in fields.items() if value}


def to_json(citation: Citation) -> JsonObject:
    """Return all known fields as a plain object."""
    version = citation.version
    fields: JsonObject = {
        "hdl": citation.hdl,
        "http": citation.http,
        "title": citation.title,
        "creators": list(citation.creators),
        "date": citation.date,
        "publisher": citation.publisher,
        "description": citation.description,
        "created": citation.created,
        "creator": citation.creator,
        "gone": citation.gone,
        "version": None if version is None else {"seq": version.seq, "at": version.at},
    }
    return {name: value for name, value in fields.items() if value}


FORMATTERS: Final[Mapping[str, Callable[[Citation], str]]] = {
    Style.TEXT: format_text,
    Style.HDL: format_hdl,
    Style.HTTP: format_http,
    Style.BIBTEX: format_bibtex,
    Style.CSL_JSON: format_csl,
}
"""Formatters by style."""


def escape_tex(text: str) -> str:
    """Escape a text for TeX."""
    return "".join([TEX_ESCAPES.get(character, character) for character in text])


def _fields(citation: Citation) -> Iterator[tuple[str, str]]:
    if citation.title:
        yield "title", f"{{{{{escape_tex(citation.title)}}}}}"
    if citation.creators:
        yield "author", f"{{{' and '.join(f'{{{escape_tex(name)}}}' for name in citation.creators)}}}"
    if citation.date:
        parts = citation.date_parts
        yield "year", f"{{{f'{parts[0]:04}' if parts else escape_tex(citation.date)}}}"
        if len(parts) > 1:
            yield "month", _MONTHS[parts[1] - 1]  # a macro that every style defines
    if citation.publisher:
        yield "publisher", f"{{{{{escape_tex(citation.publisher)}}}}}"
    if citation.description:
        yield "abstract", f"{{{escape_tex(citation.description)}}}"
    # URLs are taken verbatim; a URI contains nothing that could end the field.
    yield "url", f"{{{citation.uri}}}"
    yield "note", f"{{{escape_tex(_note(citation))}}}"


def _note(citation: Citation) -> str:
    return "; ".join(filter(None, (citation.hdl, *citation.state, citation.origin)))


def _version(citation: Citation) -> str:
    return f" as of entry {citation.version.seq}" if citation.version else ""


def _id(citation: Citation) -> str:
    return citation.hdl if citation.version is None else f"{citation.hdl}@{citation.version.seq}"


def _key(citation: Citation) -> str:
    """Return the BibTeX key: only characters that every reader accepts, unique for each identifier."""
    return "".join(
        [
            each if each.isascii() and (each.isalnum() or each in ":/.-") else f"_{ord(each):x}_"
            for each in _id(citation)
        ]
    )


def _with_period(sentence: str) -> str:
    return sentence if sentence.endswith(_SENTENCE_ENDS) else f"{sentence}."


def get_citation(
    context: Context, reference: Reference, resolver: Resolver | None, at: str | None = None, clock: int = 0
) -> Citation:
    """Return the citation of a handle, now or `at` a time or entry. Raises `Refused`.

    `clock` is the current time in microseconds; `at` must not be later.
    """
    snapshot, query = context.snapshot, Query(reference.handle)
    resolved = resolve_at(context, query, None if at is None else seq_at_time(snapshot.reader, at, clock), at)
    tail = _with_tail(reference.handle, reference, resolved)
    return build_citation(snapshot.policy(resolved.registered.prefix), resolved, tail, resolver, fixed=at is not None)


def find_printable_name(context: Context, reference: Reference) -> Reference:
    """Return the handle for a QR code: as registered, or as requested if a template supplies its values.

    Reserved handles are allowed, since codes are printed in advance. Raises `Refused`.
    """
    stored = context.get_hosted(reference.handle)
    try:
        require_record(context, stored)
    except Refused:
        resolved = resolve_at(context, Query(reference.handle), None)  # also refused if there is no template
        return _with_tail(resolved.registered, reference, resolved)
    return _with_tail(stored.handle, reference, stored)


def _with_tail(handle: Handle, reference: Reference, result: StoredRecord | Resolution) -> Reference:
    """Return a handle with the requested query and fragment: in the URI, or in a CORDRA name (C5)."""
    return Reference(
        handle,
        reference.query if result.query is None else result.query,
        reference.fragment if result.fragment is None else result.fragment,
    )


# QR codes

QUIET_ZONE: Final = 4
"""Light modules around a code, as the standard requires; some readers fail without them."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class QrImage:
    """A QR code."""

    text: str
    code: "QRCode"

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the smallest code for a text, with error correction M, or L if it does not fit. Raises `InvalidData`
        if the text is too long.
        """
        import segno  # noqa: PLC0415 - few commands need it

        for error in ("m", "l"):
            try:
                return cls(text, segno.make(text, error=error, micro=False))
            except segno.DataOverflowError:
                continue
        raise InvalidData(f"Text of {len(text):,} characters is too long for a QR code: the largest holds 2,953 bytes")

    @property
    def designator(self) -> str:
        """Version and error correction: `4-M`."""
        return str(self.code.designator)

    def svg(self, scale: int) -> bytes:
        """Draw as SVG, `scale` units per module, with the light modules: the background may be dark."""
        output = BytesIO()
        options = {"light": "#fff", "svgclass": None, "lineclass": None}
        self.code.save(output, kind="svg", border=QUIET_ZONE, scale=scale, **options)
        return output.getvalue()

    def png(self, scale: int) -> bytes:
        """Draw as black-and-white PNG, `scale` pixels per module.

        A row of modules becomes one integer whose bits are its pixels: ten times faster than pixel by pixel.
        """
        modules = self.code.matrix
        side = (len(modules) + 2 * QUIET_ZONE) * scale
        row_bytes = -(-side // 8)
        margin = "1" * (QUIET_ZONE * scale)
        module_pixels = ("1" * scale, "0" * scale)  # light and dark
        repeats = (b"\2" + bytes(row_bytes)) * (scale - 1)  # same as the line above

        def lines(pixels: str) -> bytes:
            return b"\0" + int(pixels.ljust(8 * row_bytes, "0"), 2).to_bytes(row_bytes, "big") + repeats

        quiet_rows = lines("1" * side) * QUIET_ZONE
        rows = [lines(margin + "".join([module_pixels[module] for module in row]) + margin) for row in modules]
        pixels = quiet_rows + b"".join(rows) + quiet_rows
        head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
        return _PNG + _png_chunk(b"IHDR", head) + _png_chunk(b"IDAT", zlib.compress(pixels)) + _png_chunk(b"IEND", b"")


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

"""The files of a static site: records as pages and JSON, redirect maps, proofs, and a manifest.

    README.md            how to serve it
    MANIFEST.sha256      the hash of every other file, for `sha256sum -c`
    nginx.conf, nginx/   configuration and maps for nginx
    apache.conf, apache/ the same for Apache
    records/ab/cd….html  the page of a record; .json is the answer of the API
    proofs/ab/cd….json   proofs of its public versions
    ledger/              the signed checkpoint, the keys, and the hash of every entry

Files are named after the SHA-256 of the handle, so that every handle has a safe name of a fixed length on every file
system. Handles and URLs are untrusted: in a map each is one quoted token, in a page it is escaped. Records are written
one by one, so memory does not grow with their number; only namespaces with case-sensitive suffixes take some, to find
handles that differ in case alone.
"""

import hashlib
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import IO, Final, Self

from perseid.names.handle import fold
from perseid.records.data_types import data_to_text
from perseid.records.record import Value
from perseid.records.types import HS_SECKEY, has_type

from . import servers

ID_DIGITS: Final = 40
"""Hexadecimal digits of a file name: 160 bits, so that no two handles share one."""

MAX_SHOWN: Final = 4_000
"""Characters of a value on a page; the JSON form has all of it."""

RECORDS: Final = "records"
PROOFS: Final = "proofs"
LEDGER: Final = "ledger"
MANIFEST: Final = "MANIFEST.sha256"

_STYLE: Final = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;line-height:1.5}"
    "table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;vertical-align:top;"
    "border-top:1px solid #ccc;overflow-wrap:anywhere}"
)


@dataclass(frozen=True, slots=True)
class StaticRecord:
    """A public record, and what the resolver answers for it."""

    handle: str
    names: tuple[str, ...]
    """The names under which it resolves: the handle, and the prefix of a prefix handle."""
    exact: bool
    """Whether its suffix is case-sensitive."""
    values: tuple[Value, ...]
    """The public values, by index."""
    json: bytes
    """The answer of the API."""
    status: int = 200
    """That of the answer to a browser: a redirect, 410 for a tombstone, or 200."""
    location: str = ""
    """The target of a redirect, in ASCII."""
    reason: str = ""
    """Why the resource is gone."""


@dataclass(slots=True)
class SiteSummary:
    """What a static site contains."""

    records: int = 0
    redirects: int = 0
    tombstones: int = 0
    proofs: int = 0
    pages_only: list[str] = field(default_factory=list)
    """Handles that are too long for a map, or whose redirect is: their page has a link."""


class StaticSite:
    """Writes a static site into an empty directory."""

    def __init__(self, folder: Path, target: Path) -> None:
        """`target` is where the folder will be: configuration files name their maps by absolute paths."""
        self.folder = folder
        self.summary = SiteSummary()
        self._maps = servers.Maps(folder, target)
        self._manifest = (folder / MANIFEST).open("wb")
        self._folders: set[str] = set()

    def add(self, record: StaticRecord) -> str:
        """Write a record; return its id, which names its files."""
        id_ = make_id(record.handle, exact=record.exact)
        is_redirect = 300 <= record.status < 400
        if is_redirect and not servers.fits(record.location):
            self.summary.pages_only.append(record.handle)
            is_redirect = False
        for name in record.names:
            self._maps.add_name(name, id_, exact=record.exact)
        if is_redirect:
            if not self._maps.add_redirect(id_, record.status, record.location):
                self.summary.pages_only.append(record.handle)
            self.summary.redirects += 1
        elif record.status == servers.GONE:
            self._maps.add_gone(id_)
            self.summary.tombstones += 1
        self.write(f"{RECORDS}/{id_}.html", render_record(record))
        self.write(f"{RECORDS}/{id_}.json", record.json)
        self.summary.records += 1
        return id_

    def add_proof(self, id_: str, seq: int, document: bytes) -> None:
        """Write the proof of a version of a record."""
        self.write(f"{PROOFS}/{id_}.{seq}.json", document)
        self.summary.proofs += 1

    def write(self, name: str, data: bytes) -> None:
        """Write a file and note its hash."""
        with self.open(name) as file:
            file.write(data)

    def open(self, name: str) -> "HashedFile":
        """Open a file whose hash is noted when it is closed."""
        parent = name.rpartition("/")[0]
        if parent not in self._folders:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            self._folders.add(parent)
        return HashedFile((self.folder / name).open("xb"), name, self._manifest)

    def finish(self, origin: str, as_of: int) -> SiteSummary:
        """Write what depends on all records."""
        self.write(f"{RECORDS}/index.html", _page("Identifiers", _INDEX.format(count=self.summary.records)))
        self.write(f"{RECORDS}/not-found.html", _page("Not found", "<p>There is no such identifier.</p>"))
        self.write(f"{RECORDS}/gone.html", _page("Gone", "<p>The resource of this identifier is gone.</p>"))
        self.write(f"{RECORDS}/not-found.json", b'{"responseCode":100}')
        for name in self._maps.finish():
            note_hash(self.folder, name, self._manifest)
        self.summary.pages_only = [*dict.fromkeys([*self.summary.pages_only, *self._maps.unmapped])]
        self.write("README.md", servers.render_readme(self.summary.records, origin, as_of, self._maps).encode())
        if self.summary.pages_only:
            self.write("pages-only.txt", "".join([f"{name!r}\n" for name in self.summary.pages_only]).encode())
        self._manifest.close()
        return self.summary


class HashedFile:
    """A file that notes its hash in the manifest when it is closed."""

    def __init__(self, file: IO[bytes], name: str, manifest: IO[bytes]) -> None:
        self._file, self._name, self._manifest = file, name, manifest
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._manifest.write(f"{self._hash.hexdigest()}  {self._name}\n".encode())

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)


def note_hash(folder: Path, name: str, manifest: IO[bytes]) -> None:
    """Note the hash of a file that exists."""
    with (folder / name).open("rb") as file:
        manifest.write(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode())


def make_id(handle: str, *, exact: bool) -> str:
    """Return the id of a record: `ab/cdef…`, from the hash of its handle by its case rule."""
    prefix, slash, suffix = handle.partition("/")
    key = f"{fold(prefix)}{slash}{suffix}" if exact else fold(handle)
    digits = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS]
    return f"{digits[:2]}/{digits[2:]}"


_INDEX: Final = (
    "<p>The service of these {count:,} identifiers has ended. They still resolve here: append an identifier to the "
    "address of this page.</p>"
)


def render_record(record: StaticRecord) -> bytes:
    """Render the page of a record."""
    parts = []
    if record.status == servers.GONE:
        parts.append(f"<p><strong>The resource of this identifier is gone.</strong> {escape(record.reason)}</p>")
    if record.location:
        address = escape(record.location)
        parts.append(f'<p>It is at <a href="{address}" rel="nofollow">{address}</a>.</p>')
    rows = [
        f"<tr><td>{value.index}</td><td>{escape(value.type)}</td><td>{escape(_shown(value))}</td></tr>"
        for value in record.values
    ]
    if rows:
        parts.append(f"<table><tr><th>Index</th><th>Type</th><th>Data</th></tr>{''.join(rows)}</table>")
    return _page(record.handle, "".join(parts))


def _shown(value: Value) -> str:
    text = "(secret)" if has_type(value.type, HS_SECKEY) else data_to_text(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _page(title: str, body: str) -> bytes:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    page = f'<!DOCTYPE html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>'
    return f"{page}{body}</body></html>\n".encode("utf-8", "backslashreplace")

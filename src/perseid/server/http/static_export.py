"""The static site of an installation: what this server would answer for every public record, as plain files.

Redirects are those for a request without preferences: the default location of a record. The site is as of one entry of
the ledger. Values that a template computes for handles without a record are not in it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from perseid.bulk.static.servers import GONE, is_usable
from perseid.bulk.static.site import LEDGER, MANIFEST, RECORDS, SiteSummary, StaticRecord, StaticSite, make_id
from perseid.ledger.log.entry import State
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import UnsuitableDirectory
from perseid.names.handle import CaseRule, Handle
from perseid.records.json_form import value_to_json
from perseid.records.locations import find_locations
from perseid.records.record import Value
from perseid.registry.identity import Anonymous, LocalIdentity
from perseid.registry.installation.files import place, staging_directory
from perseid.registry.policy.authority import values_of_exact_type
from perseid.registry.policy.resolution import AliasOutcome, alias_target, current_public_record
from perseid.registry.queries import prove
from perseid.registry.queries.aliases import follow_aliases
from perseid.registry.queries.export import AsOf, ExportedRecord, Position, Selection, check_export, read_slice
from perseid.registry.queries.find import Search
from perseid.registry.queries.history import RecordHistory, is_public
from perseid.registry.registry import Registry
from perseid.registry.responses import to_ledger_key
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.schema.queries import LedgerKeys
from perseid.server.http.context import HttpSettings
from perseid.server.http.resolver.paths import path_to
from perseid.server.http.resolver.redirect import RedirectRequest, choose_redirect
from perseid.server.http.responses import encode_json
from perseid.wire.codes import ResponseCode

MAX_VERSIONS: Final = 100
"""Versions of a record that are proved, from the newest on. Proving one walks through all later ones."""

_DIRECTORY_MODE: Final = 0o755  # the web server is another user
_MOVED: Final = 301


def export_static(
    registry: Registry,
    identity: LocalIdentity,
    settings: HttpSettings,
    signer: Signer,
    directory: Path,
    prefix: str | None = None,
    update: Callable[[int], None] = lambda _: None,
) -> tuple[SiteSummary, int]:
    """Write a static site to a directory that is new or empty; return its summary and the entry as of which it is."""
    if not is_usable(directory.absolute()):
        raise UnsuitableDirectory(f"{directory} has characters with a meaning for web servers; choose another name")
    selection = Selection(Search(prefix=prefix))
    with registry.snapshot() as snapshot:
        check_export(snapshot, identity, selection)
        as_of = AsOf(snapshot.reader.size)
    prove.ensure_checkpoint(registry.ledger.log, signer, as_of.seq, time.sleep)
    with staging_directory(directory) as work:
        site = StaticSite(work, directory.absolute())
        for snapshot, records in _slices(registry, identity, selection, as_of):
            for record in records:
                _add_record(site, snapshot, settings, record, as_of)
            update(site.summary.records)
        with registry.snapshot() as snapshot:
            _write_ledger(site, snapshot)
            summary = site.finish(snapshot.reader.origin, as_of.seq)
        place(work, directory, RECORDS, MANIFEST)
    directory.chmod(_DIRECTORY_MODE)
    return summary, as_of.seq


def _slices(
    registry: Registry, identity: LocalIdentity, selection: Selection, as_of: AsOf
) -> Iterator[tuple[Snapshot, list[ExportedRecord]]]:
    position: Position | None = None
    while True:
        with registry.snapshot() as snapshot:
            part = read_slice(snapshot, identity, selection, as_of, position)
            yield snapshot, part.records
        position = part.position
        if position is None:
            return


def _add_record(
    site: StaticSite, snapshot: Snapshot, settings: HttpSettings, record: ExportedRecord, as_of: AsOf
) -> None:
    """Add a record if it is public, with proofs of its versions."""
    handle = Handle.parse_lenient(record.handle)
    if not is_public(record.state) or not snapshot.is_responsible(handle):
        return
    try:
        made = _build_record(snapshot, settings, handle, record)
    except Refused:  # the policy of its namespace cannot be read
        return
    site.add(made)
    id_ = make_id(record.handle, exact=made.exact)
    for seq, document in _proofs(snapshot, handle, as_of):
        site.add_proof(id_, seq, document)


def _build_record(snapshot: Snapshot, settings: HttpSettings, handle: Handle, record: ExportedRecord) -> StaticRecord:
    policy = snapshot.policy(handle.prefix)
    values = tuple([value for value in record.values if value.is_public])
    status, location, reason = 200, "", ""
    if record.state is State.TOMBSTONE:
        texts = values_of_exact_type(values, policy.tombstone_reason_type)
        status, reason = GONE, next((value.data.decode("utf-8", "replace") for value in texts), "")
    else:
        status, location = _find_redirect(snapshot, settings, handle, values)
    names: tuple[str, ...] = (str(handle),)
    if handle.is_prefix_handle and "/" not in handle.suffix:  # otherwise that is another handle
        names = (*names, handle.suffix)
    exact = policy.case is CaseRule.SENSITIVE and not handle.is_prefix_handle
    return StaticRecord(str(handle), names, exact, values, _to_json(handle, values), status, location, reason)


def _find_redirect(
    snapshot: Snapshot, settings: HttpSettings, handle: Handle, values: tuple[Value, ...]
) -> tuple[int, str]:
    """Return the status and the target of a record; 200 without a target."""
    if alias_target(values) is not None:
        chain = follow_aliases(snapshot, handle)
        if chain.end is AliasOutcome.FOUND:
            return _MOVED, path_to(str(snapshot.stored(chain.last).handle), settings)
        return 200, ""

    def look_up(name: str) -> tuple[Value, ...] | None:
        other = Handle.for_lookup(name)
        found = None if other is None else current_public_record(snapshot, other, None)
        return None if found is None else found.values

    redirect = choose_redirect(find_locations(handle, values, look_up), RedirectRequest(), settings, 0.0)
    return (200, "") if redirect.target is None else (redirect.status, redirect.target.location)


def _to_json(handle: Handle, values: tuple[Value, ...]) -> bytes:
    code = ResponseCode.SUCCESS if values else ResponseCode.VALUES_NOT_FOUND
    plain = {"responseCode": int(code), "handle": str(handle), "values": [value_to_json(value) for value in values]}
    return encode_json(plain)


def _proofs(snapshot: Snapshot, handle: Handle, as_of: AsOf) -> Iterator[tuple[int, bytes]]:
    """Yield the proofs of the public versions of a record."""
    history = RecordHistory(snapshot, Anonymous(), handle)
    seqs = [version.entry.seq for version in history.versions() if version.entry.state is not State.ABSENT]
    for seq in [seq for seq in seqs if seq <= as_of.seq][:MAX_VERSIONS]:
        try:
            yield seq, prove.prove(snapshot, Anonymous(), handle, seq).to_json().encode()
        except Refused:
            continue  # too large for a proof


def _write_ledger(site: StaticSite, snapshot: Snapshot) -> None:
    """Write the checkpoint, the keys, and the hashes of all entries that it covers."""
    reader = snapshot.reader
    keys = prove.signing_keys(reader)
    listed = LedgerKeys(reader.origin, str(keys[-1].key), [to_ledger_key(each) for each in keys])
    site.write(f"{LEDGER}/checkpoint.txt", (reader.checkpoint() or "").encode())
    site.write(f"{LEDGER}/keys.json", msgspec.json.encode(listed))
    with site.open(f"{LEDGER}/leaves.txt") as file:
        for seq in range(1, (reader.checkpoint_size() or 0) + 1):
            file.write(f"{reader.leaf(seq).hex()}\n".encode())

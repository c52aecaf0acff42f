"""An installation that another version of the program has left behind, and what is told of it in plain words.

What is told has no names of fields: lists of numbers and texts, as they are stored. So it can be compared with what an
earlier version told, whatever things are called in the code by then.
"""

import hashlib
import json
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.reader import LogReader
from perseid.ledger.store import jobs as stored_jobs
from perseid.ledger.store.jobs import Job
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.access import tokens
from perseid.registry.identity import Anonymous, LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs.runner import UndoIndex
from perseid.registry.policy import case_rules
from perseid.registry.queries.history import RecordHistory
from perseid.registry.queries.resolve import Query, last_change
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.cli.installation import Site

FOLDER: Final = Path(__file__).resolve().parent / "v5"
OPERATOR: Final = LocalIdentity("root")
OWN_RECORDS: Final = "0.SITE/"

Facts = dict[str, Any]


def expected() -> Facts:
    """Load what the version that created the installation reported about it."""
    found: Facts = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return found


def unpacked(folder: Path, *, upgrade: bool = True) -> Site:
    """Unpack a copy of the installation and upgrade its tables."""
    here = Site(folder / "installation")
    with tarfile.open(FOLDER / "installation.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Debian's Python 3.11.2
            archive.extractall(folder)
    for path in (here.directory, here.directory / "keys"):
        path.chmod(0o700)
    if upgrade:
        here.ok("upgrade")
    return here


@contextmanager
def opened(here: Site) -> Iterator[Registry]:
    """Open the registry of an installation in this process."""
    with Installation.open(here.directory, environ={}) as installation:
        yield installation.registry()


def entries(registry: Registry, until: int) -> list[list[Any]]:
    """The log."""
    with registry.ledger.open_reader() as reader:
        return [_entry(reader.entry(seq)) for seq in range(1, until + 1)]


def ledger(registry: Registry, until: int) -> list[Any]:
    """The ledger's identity, its key, and the root of its entries."""
    with registry.ledger.open_reader() as reader:
        root = reader.root(until).hex()
        return [reader.ledger_id.hex(), reader.origin, reader.signer, root]


def public(registry: Registry, names: list[str]) -> Facts:
    """What anonymous users see of handles, now and in their history."""
    return {name: [_now(registry, Handle.parse(name)), _past(registry, Handle.parse(name))] for name in names}


def names(registry: Registry) -> list[str]:
    """All handles that ever existed, without the installation's own records."""
    with registry.ledger.open_reader() as reader:
        found = {entry.handle for entry in reader.log(0)}
    return sorted(name for name in found if not name.startswith(OWN_RECORDS))


def known_tokens(registry: Registry) -> list[list[Any]]:
    """All tokens, also revoked ones, as the server administrator sees them."""
    found, _ = tokens.list_tokens(registry, OPERATOR)
    return [
        [
            each.token.id,
            each.token.label,
            each.token.issuer,
            each.token.key.hex(),
            each.token.scope.scope_names,
            None if each.token.scope.namespaces is None else list(each.token.scope.namespaces),
            each.token.created,
            each.token.expires,
            each.seq,
            each.revoked,
            each.key_matches,
            each.used,
        ]
        for each in sorted(found, key=lambda each: each.seq)
    ]


def jobs(registry: Registry) -> list[list[Any]]:
    """All jobs, oldest first, with their progress and state."""
    log = registry.ledger.log
    undos = UndoIndex.all(registry)
    found = sorted(stored_jobs.newest_first(log), key=lambda each: (each.since, each.started_at, each.id))
    return [
        [*_job(each), list(map(list, stored_jobs.load_steps(log, each.id))), undos.effective_undo(each.id)]
        for each in found
    ]


def policies(registry: Registry, prefixes: list[str]) -> Facts:
    """The parsed policies of namespaces, by stored key."""
    with registry.snapshot() as snapshot:
        return {prefix: tomllib.loads(snapshot.policy(prefix).to_toml()) for prefix in prefixes}


def prefixes(registry: Registry, named: list[str]) -> Facts:
    """What resolvers know of prefixes: whether they are hosted, the case rule, the scheme."""
    found = {prefix: registry.ledger.prefix(prefix.encode()) for prefix in named}
    return {
        prefix: None if item is None else [item.homed, item.case and item.case.value, item.scheme]
        for prefix, item in found.items()
    }


def changed(registry: Registry, named: list[str]) -> Facts:
    """When the values of handles were last changed here, in seconds since 1970."""
    with registry.snapshot() as snapshot:
        return {name: last_change(case_rules.history(snapshot, snapshot.stored(Handle.parse(name)))) for name in named}


def shown(data: bytes) -> str:
    """Format data as text if it is short."""
    if len(data) <= 120:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return f"hex:{data.hex()}"
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def last(reader: LogReader, handle: str) -> Entry:
    """The latest entry of a case-insensitive record."""
    found = reader.record(handle.upper().encode())
    assert found is not None, handle
    return found


def _entry(entry: Entry) -> list[Any]:
    actor, note = (None if slot.content is None else slot.content.decode() for slot in (entry.actor, entry.note))
    contents = [None if slot.content is None else Value.from_bytes(slot.content, 0) for slot in entry.values]
    values = [None if value is None else _value(value) for value in contents]
    place = [entry.seq, entry.at, int(entry.action), int(entry.state), entry.exact, entry.handle]
    return [*place, actor, note, entry.leaf_hash().hex(), values]


def _value(value: Value) -> list[Any]:
    return [value.index, value.type, shown(value.data), int(value.permissions), value.ttl, value.timestamp]


def _seen(values: tuple[Value, ...]) -> list[list[Any]]:
    return [[value.index, value.type, shown(value.data)] for value in values]


def _now(registry: Registry, handle: Handle) -> list[Any] | int:
    """The current record and its entry, or the response code of the refusal."""
    try:
        found = registry.resolve(Query(handle), Anonymous())
    except Refused as refused:
        return int(refused.code)
    return [int(found.state), found.seq, _seen(found.values)]


def _past(registry: Registry, handle: Handle) -> list[Any] | int:
    with registry.snapshot() as snapshot:
        try:
            past = RecordHistory(snapshot, Anonymous(), handle)
            return [past.shows_actors, [[seen.entry.seq, _seen(seen.values)] for seen in past.versions()]]
        except Refused as refused:
            return int(refused.code)


def _job(job: Job) -> list[Any]:
    about = [job.id, job.kind, json.loads(job.parameters), job.undoes, job.interface, job.actor, job.owner, job.note]
    return [*about, job.since, job.started_at, job.ended_at, job.total, job.done]

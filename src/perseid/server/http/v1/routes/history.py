"""Routes of history and proofs: versions and differences of a handle, the log, proofs and checkpoints.

`registry.queries.history` and `registry.queries.listing` decide what a caller can see. `routes.records` returns the
record at one time, with `at`.

A proof is the document that `perseid prove` writes and `perseid verify` checks without this server;
docs/reference/proof-format.md specifies it. By default it contains public data only. Checkpoints and consistency proofs
are public: they contain only hashes, of salted leaves.
"""

import asyncio
from typing import Final

from perseid.ledger.store.jobs import load_steps
from perseid.registry.context import Context
from perseid.registry.jobs.runner import find_job
from perseid.registry.queries import prove as proofs
from perseid.registry.queries.history import get_history, seq_at_time, seqs_between
from perseid.registry.queries.listing import list_changes
from perseid.registry.queries.log import LogSearch, list_log
from perseid.registry.queries.prove import NotCheckpointed, SigningKey, signing_keys
from perseid.registry.responses import (
    get_differences,
    to_changed_handle,
    to_consistency,
    to_entry,
    to_ledger_key,
    to_version,
)
from perseid.schema.common import Paging
from perseid.schema.queries import (
    BetweenQuery,
    ChangedHandlePage,
    ChangesQuery,
    ConsistencyProof,
    ConsistencyQuery,
    DifferencesResponse,
    HistoryPage,
    LedgerKeys,
    LogPage,
    LogQuery,
    ProofDocument,
    ProofQuery,
)
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.job_requests import authorize_registry
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes

HISTORY: Final = Routes(
    "History", "Earlier versions of records: what changed, when, and for administrators by whom and why."
)


# One handle


@HISTORY.add("GET", "/handles/{handle}/history", "Get the history of a handle", problems=(404,))
async def history(call: ApiCall, query: Paging) -> Reply[HistoryPage]:
    """Return the versions of a record, newest first, with their differences.

    Everyone sees values that were public then and have not been hidden since. Administrators of the record see all
    versions, their actors and notes; a token needs the scope `read` for that.
    """
    handle = call.handle()

    def read(context: Context) -> Reply[HistoryPage]:
        page = get_history(context.snapshot, context.identity, handle, call.after(int), query.limit)
        versions = [to_version(version) for version in page.versions]
        return call.page(HistoryPage(str(page.handle), versions, page.complete, call.seal(page.before)), handle)

    return await call.read(read, handle)


@HISTORY.add("GET", "/handles/{handle}/differences", "Compare a handle at two times", problems=(403, 404, 422))
async def differences(call: ApiCall, query: BetweenQuery) -> Reply[DifferencesResponse]:
    """Compare a record at two times: added, removed and modified values that you can see.

    Before the handle existed, the record has no values.
    """
    handle = call.handle()

    def read(context: Context) -> Reply[DifferencesResponse]:
        return Reply(get_differences(context, handle, query.earlier, query.later, call.now()), name=str(handle))

    return await call.read(read, handle)


# All handles


@HISTORY.add("GET", "/log", "Read the log of the ledger", scope="find", problems=(404, 422, 501))
async def log(call: ApiCall, query: LogQuery) -> Reply[LogPage]:
    """Return ledger entries, oldest first or `newest` first, for namespaces whose handles you can list. With `job` only
    those of the job; with `actor`, `action` and `prefix` only those that match.

    A page can be short or empty without being the last: one with such filters compares up to 5,000 entries. On the last
    page, send `last` as `since` later to get newer entries.
    """
    registry = authorize_registry(call) if query.job else None

    def read(context: Context) -> Reply[LogPage]:
        steps = None
        if registry is not None:
            steps = load_steps(registry.ledger.log, find_job(registry, call.identity, query.job).id)
        search = LogSearch.of(context.snapshot.reader, query, call.now(), steps)
        page = list_log(context.snapshot, context.identity, call.after(int), query.limit, search)
        cursor = call.seal(page.last if page.more else None)
        # The end of another page is encrypted: it may be an entry that the caller cannot see.
        last = None if page.more or query.newest else page.last
        return call.page(LogPage([to_entry(each) for each in page.items], last, cursor))

    return await call.read(read)


@HISTORY.add("GET", "/changes", "List the handles that changed between two times", scope="find", problems=(422, 501))
async def changes(call: ApiCall, query: ChangesQuery) -> Reply[ChangedHandlePage]:
    """List the handles that changed between two times, once each, in the order of their first change.

    The list covers namespaces whose handles you can list. A page can be short or empty without being the last.
    """

    def read(context: Context) -> Reply[ChangedHandlePage]:
        # `later` is resolved once, for all pages.
        position = call.after(tuple[int, int, int])
        earlier, later, after = position or (
            *seqs_between(context.snapshot.reader, query.earlier, query.later, call.now()),
            None,
        )
        page = list_changes(context.snapshot, context.identity, earlier, later, after, query.limit)
        cursor = call.seal((earlier, later, page.last) if page.more else None)
        return call.page(ChangedHandlePage(earlier, later, [to_changed_handle(each) for each in page.items], cursor))

    return await call.read(read)


PROOFS: Final = Routes("Proofs", "Verifiable proofs of what a record was, and signed checkpoints of the ledger.")

NOTE_TYPE: Final = "text/plain"
"""The media type of signed notes."""

POLL_SECONDS: Final = 0.25
MAX_POLLS: Final = 40
"""Seconds between polls for a checkpoint that includes an entry, and their number. One is signed every second; a busy
machine may need several, and ten seconds are less than clients wait for a response."""

_RETRY_HEADERS: Final = (("Retry-After", "1"),)


@PROOFS.add("GET", "/handles/{handle}/proof", "Get a proof of a handle", problems=(403, 404, 422))
async def prove(call: ApiCall, query: ProofQuery) -> Reply[ProofDocument]:
    """Return a proof of one version of a record, which anyone can verify without this server.

    By default it contains public data only; for `everything` a token needs the scope `read`. Save it as a file and
    check it with `perseid verify FILE --key KEY`, with a key that you got from the operator by another channel. The
    response can take a second, until a signed checkpoint includes the latest changes.
    """
    handle = call.handle()

    def read(context: Context) -> bytes:
        snapshot = context.snapshot
        seq = None if query.at is None else seq_at_time(snapshot.reader, query.at, call.now())
        return (
            proofs.prove(snapshot, context.identity, handle, seq, public_only=not query.everything).to_json().encode()
        )

    polls = 0
    while True:
        try:
            return Reply(await call.read(read, handle), name=str(handle))
        except NotCheckpointed as missing:
            polls += 1
            if polls == MAX_POLLS:
                raise ApiError("busy", str(missing), "Retry in a second", headers=_RETRY_HEADERS) from missing
        await asyncio.sleep(POLL_SECONDS)


@PROOFS.add("GET", "/ledger/checkpoint", "Get the latest checkpoint", media_types=(NOTE_TYPE,))
async def checkpoint(call: ApiCall) -> Reply[bytes]:
    """Return the latest checkpoint as a signed note: the name of the ledger, its size, and the root of its tree.

    Keep it: a consistency proof can later show that the ledger still contains all its entries.
    """
    note = await call.read(lambda context: context.snapshot.reader.checkpoint())
    if note is None:
        raise ApiError("busy", "No checkpoint is signed yet; the first one takes a second", headers=_RETRY_HEADERS)
    return Reply(note.encode(), media_type=f"{NOTE_TYPE};charset=utf-8")


@PROOFS.add("GET", "/ledger/consistency", "Prove that the ledger only grew", problems=(422,))
async def consistency(call: ApiCall, query: ConsistencyQuery) -> Reply[ConsistencyProof]:
    """Prove that the ledger only grew between two sizes, up to the latest checkpoint.

    Verify the proof against the roots in your checkpoints. The roots in the response are for sizes of which you have
    none.
    """
    proof = await call.read(lambda context: proofs.consistency(context.snapshot.reader, query.old, query.new))
    return Reply(to_consistency(proof))


@PROOFS.add("GET", "/ledger/key", "Get the signing keys of the ledger")
async def ledger_key(call: ApiCall) -> Reply[LedgerKeys]:
    """Return the public key that signs checkpoints, and earlier keys.

    Compare the key with the one that the operator has published elsewhere.
    """

    def read(context: Context) -> tuple[str, list[SigningKey]]:
        reader = context.snapshot.reader
        return reader.origin, signing_keys(reader)

    origin, keys = await call.read(read)
    return Reply(LedgerKeys(origin, str(keys[-1].key), [to_ledger_key(each) for each in keys]))

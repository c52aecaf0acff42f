"""Proofs that anyone can verify without this server, and checkpoints.

A proof is the document that `perseid prove` writes and `perseid verify` checks; docs/reference/proof-format.md
specifies it. By default it contains public data only. Checkpoints and consistency proofs are public: they contain only
hashes, of salted leaves.
"""

import asyncio
from typing import Final

from perseid.registry.context import Context
from perseid.registry.queries.history import seq_at_time
from perseid.registry.queries.prove import NotCheckpointed, SigningKey, consistency, prove, signing_keys
from perseid.registry.responses import to_consistency, to_ledger_key
from perseid.schema.queries import ConsistencyProof, ConsistencyQuery, LedgerKeys, ProofDocument, ProofQuery
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import HANDLE_PARAMETERS
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes

SECTION: Final = Routes("Proofs", "Verifiable proofs of what a record was, and signed checkpoints of the ledger.")

NOTE_TYPE: Final = "text/plain"
"""The media type of signed notes."""

POLL_SECONDS: Final = 0.25
MAX_POLLS: Final = 12
"""Seconds between polls for a checkpoint that includes an entry, and their number: one is signed per second."""

_RETRY_HEADERS: Final = (("Retry-After", "1"),)


@SECTION.add(
    "GET",
    "/handles/{handle}/proof",
    "prove",
    "Get a proof of a handle",
    response=ProofDocument,
    query=ProofQuery,
    problems=(403, 404, 422),
    parameters=HANDLE_PARAMETERS,
)
async def show_proof(call: ApiCall) -> Reply:
    """Return a proof of one version of a record, which anyone can verify without this server.

    By default it contains public data only; for `everything` a token needs the scope `read`. Save it as a file and
    check it with `perseid verify FILE --key KEY`, with a key that you got from the operator by another channel. The
    response can take a second, until a signed checkpoint includes the latest changes.
    """
    query, handle = call.query_as(ProofQuery), call.handle()
    clock = call.registry.ledger.log.clock

    def read(context: Context) -> bytes:
        snapshot = context.snapshot
        seq = None if query.at is None else seq_at_time(snapshot.reader, query.at, clock.now())
        return prove(snapshot, context.identity, handle, seq, public_only=not query.everything).to_json().encode()

    polls = 0
    while True:
        try:
            return Reply(await call.read(read, handle), name=str(handle))
        except NotCheckpointed as missing:
            polls += 1
            if polls == MAX_POLLS:
                raise ApiError("busy", str(missing), "Retry in a second", headers=_RETRY_HEADERS) from missing
        await asyncio.sleep(POLL_SECONDS)


@SECTION.add(
    "GET",
    "/ledger/checkpoint",
    "checkpoint",
    "Get the latest checkpoint",
    media_types=(NOTE_TYPE,),
)
async def show_checkpoint(call: ApiCall) -> Reply:
    """Return the latest checkpoint as a signed note: the name of the ledger, its size, and the root of its tree.

    Keep it: a consistency proof can later show that the ledger still contains all its entries.
    """
    note = await call.read(lambda context: context.snapshot.reader.checkpoint())
    if note is None:
        raise ApiError("busy", "No checkpoint is signed yet; the first one takes a second", headers=_RETRY_HEADERS)
    return Reply(note.encode(), media_type=f"{NOTE_TYPE};charset=utf-8")


@SECTION.add(
    "GET",
    "/ledger/consistency",
    "consistency",
    "Prove that the ledger only grew",
    response=ConsistencyProof,
    query=ConsistencyQuery,
    problems=(422,),
)
async def show_consistency(call: ApiCall) -> Reply:
    """Prove that the ledger only grew between two sizes, up to the latest checkpoint.

    Verify the proof against the roots in your checkpoints. The roots in the response are for sizes of which you have
    none.
    """
    query = call.query_as(ConsistencyQuery)
    proof = await call.read(lambda context: consistency(context.snapshot.reader, query.old, query.new))
    return Reply(to_consistency(proof))


@SECTION.add("GET", "/ledger/key", "ledgerKey", "Get the signing keys of the ledger", response=LedgerKeys)
async def show_key(call: ApiCall) -> Reply:
    """Return the public key that signs checkpoints, and earlier keys.

    Compare the key with the one that the operator has published elsewhere.
    """

    def read(context: Context) -> tuple[str, list[SigningKey]]:
        reader = context.snapshot.reader
        return reader.origin, signing_keys(reader)

    origin, keys = await call.read(read)
    return Reply(LedgerKeys(origin, str(keys[-1].key), [to_ledger_key(each) for each in keys]))

"""Proofs that anyone can verify without this server, and checkpoints.

A proof is the document that `perseid prove` writes and `perseid verify` checks; docs/reference/proof-format.md
specifies it. By default it contains public data only. Checkpoints and consistency proofs are public: they contain only
hashes, of salted leaves.
"""

import asyncio
from typing import Annotated, Final

from perseid.proof.document import FORMAT
from perseid.records.encoding import to_base64
from perseid.registry.context import Context
from perseid.registry.queries.history import seq_at_time
from perseid.registry.queries.prove import Consistency, NotCheckpointed, SigningKey, consistency, prove, signing_keys
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import HANDLE_PARAMETERS
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.schemas import Doc, RequestBody, ResponseBody

from .history import Moment

SECTION: Final = Routes("Proofs", "Verifiable proofs of what a record was, and signed checkpoints of the ledger.")

NOTE_TYPE: Final = "text/plain"
"""The media type of signed notes."""

POLL_SECONDS: Final = 0.25
MAX_POLLS: Final = 12
"""Seconds between polls for a checkpoint that includes an entry, and their number: one is signed per second."""

_RETRY_HEADERS: Final = (("Retry-After", "1"),)

Base64 = Annotated[str, Doc("Bytes in base64.")]
Size = Annotated[int, Doc("Number of ledger entries, from the first.", ge=0, le=(1 << 63) - 1, examples=[1234])]


class ProofQuery(RequestBody, frozen=True):
    """What to prove about a handle."""

    at: Annotated[Moment | None, Doc("The time or ledger entry; now if omitted.")] = None
    everything: Annotated[bool, Doc("Include private values, actor and note, if you can see them.")] = False


class InclusionProof(ResponseBody, frozen=True):
    """A ledger entry and its Merkle path."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The sibling hashes from the leaf to the root.")]


class OpenedCommitment(ResponseBody, frozen=True):
    """Committed content and its salt."""

    salt: Annotated[Base64, Doc("The salt of the commitment, 16 bytes.")]
    content: Annotated[Base64, Doc("The committed content.")]


class KeyLink(ResponseBody, frozen=True):
    """A ledger entry that rotated the signing key."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The sibling hashes from the leaf to the root.")]
    note: Annotated[OpenedCommitment | None, Doc("The statement signed by the previous key; omitted if redacted.")] = (
        None
    )


class ProofDocument(ResponseBody, frozen=True):
    """A proof of one version of a record. Store it unchanged for `perseid verify`."""

    format: Annotated[str, Doc("The format name.", examples=[FORMAT])]
    handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
    seq: Annotated[int, Doc("The number of the ledger entry.")]
    entry: Annotated[InclusionProof, Doc("The ledger entry.")]
    values: Annotated[list[OpenedCommitment], Doc("The disclosed values, in binary form.")]
    checkpoint: Annotated[str, Doc("A signed checkpoint that includes the entry.")]
    keys: Annotated[list[KeyLink], Doc("The key rotations up to the signing key, oldest first.")]
    actor: Annotated[OpenedCommitment | None, Doc("Who made the change, if disclosed.")] = None
    note: Annotated[OpenedCommitment | None, Doc("The note of the change, if disclosed.")] = None


class ConsistencyQuery(RequestBody, frozen=True):
    """Two sizes of the ledger."""

    old: Annotated[Size, Doc("The older size: the second line of its checkpoint.")]
    new: Annotated[Size | None, Doc("The newer size; the latest checkpoint if omitted.")] = None


class ConsistencyProof(ResponseBody, frozen=True, omit_defaults=False):
    """A proof that the ledger only grew between two sizes (RFC 6962)."""

    old: Annotated[int, Doc("The older size.")]
    old_root: Annotated[Base64, Doc("The older root: the third line of its checkpoint.")]
    new: Annotated[int, Doc("The newer size.")]
    new_root: Annotated[Base64, Doc("The newer root.")]
    path: Annotated[list[Base64], Doc("The hashes of the proof, in the order of RFC 6962 §2.1.2.")]


class LedgerKey(ResponseBody, frozen=True):
    """A signing key of the ledger."""

    key: Annotated[str, Doc("The public key, as `NAME+HASH+KEY`, for `perseid verify --key`.")]
    since: Annotated[int | None, Doc("Its first ledger entry; omitted for the first key.")] = None
    until: Annotated[int | None, Doc("Its last ledger entry; omitted for the current key.")] = None


class LedgerKeys(ResponseBody, frozen=True, omit_defaults=False):
    """The signing keys of the ledger."""

    origin: Annotated[str, Doc("The name in the signatures of the ledger.", examples=["ledger-841b321ed5144bdb"])]
    key: Annotated[str, Doc("The current public key, as `NAME+HASH+KEY`.")]
    keys: Annotated[list[LedgerKey], Doc("All keys, oldest first. A proof contains the rotations between them.")]


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
    return Reply(_to_consistency_proof(proof))


@SECTION.add("GET", "/ledger/key", "ledgerKey", "Get the signing keys of the ledger", response=LedgerKeys)
async def show_key(call: ApiCall) -> Reply:
    """Return the public key that signs checkpoints, and earlier keys.

    Compare the key with the one that the operator has published elsewhere.
    """

    def read(context: Context) -> tuple[str, list[SigningKey]]:
        reader = context.snapshot.reader
        return reader.origin, signing_keys(reader)

    origin, keys = await call.read(read)
    return Reply(LedgerKeys(origin, str(keys[-1].key), [_to_ledger_key(each) for each in keys]))


def _to_consistency_proof(proof: Consistency) -> ConsistencyProof:
    path = [to_base64(each) for each in proof.path]
    return ConsistencyProof(proof.old_size, to_base64(proof.old_root), proof.new_size, to_base64(proof.new_root), path)


def _to_ledger_key(key: SigningKey) -> LedgerKey:
    since, until = (None if entry is None else entry.seq for entry in (key.since, key.until))
    return LedgerKey(str(key.key), since, until)

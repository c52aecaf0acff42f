"""Proofs: documents that anybody can check without this server, and what they are checked against.

A proof is the document that `perseid prove` writes and `perseid verify` checks; docs/reference/proof-format.md
specifies it. It is made for others, so it shows what the public may see unless somebody asks for all that they may see.
Checkpoints and consistency proofs are for everybody: they hold hashes, of leaves that nobody can guess.
"""

import asyncio
from typing import Annotated, Final

from perseid.proof.document import FORMAT
from perseid.records.encoding import to_base64
from perseid.registry.context import Context
from perseid.registry.queries.history import moment
from perseid.registry.queries.prove import Consistency, NotCheckpointed, SigningKey, consistency, prove, signing_keys
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import HANDLE_PARAMETERS
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, RequestBody, ResponseBody

from .history import Moment

SECTION: Final = Routes("Proofs", "What a name was, provable to anybody, for ever, without this server.")

NOTE_TYPE: Final = "text/plain"
"""Of signed notes, in UTF-8."""

POLL_SECONDS: Final = 0.25
MAX_POLLS: Final = 12
"""How often, and in which intervals, it is looked whether a checkpoint has come to an entry: one is signed a second."""

_RETRY_HEADERS: Final = (("Retry-After", "1"),)

Base64 = Annotated[str, Doc("Octets in base64.")]
Size = Annotated[int, Doc("So many entries from the first on.", ge=0, le=(1 << 63) - 1, examples=[1234])]


class ProofQuery(RequestBody, frozen=True):
    """What is to be proved of a name."""

    at: Annotated[Moment | None, Doc("What it was at a moment; what it is now if it is left out.")] = None
    everything: Annotated[
        bool, Doc("Also values, actor and note that the public may not see, if you may see them.")
    ] = False


class InclusionProof(ResponseBody, frozen=True):
    """An entry of the ledger, and the way from it to the root of the tree."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The hashes beside the way from the leaf to the root, from below.")]


class OpenedCommitment(ResponseBody, frozen=True):
    """Something that an entry committed to, with what it takes to check that."""

    salt: Annotated[Base64, Doc("Sixteen octets that went into the commitment.")]
    content: Annotated[Base64, Doc("What was committed to.")]


class KeyLink(ResponseBody, frozen=True):
    """An entry by which another key came to sign."""

    leaf: Annotated[Base64, Doc("The leaf of the entry.")]
    path: Annotated[list[Base64], Doc("The hashes beside the way from the leaf to the root, from below.")]
    note: Annotated[OpenedCommitment | None, Doc("What the key before signed; left out if it was erased.")] = None


class ProofDocument(ResponseBody, frozen=True):
    """A proof of what a name was after one entry. Keep it as it is: `perseid verify` takes the file."""

    format: Annotated[str, Doc("The name of this format.", examples=[FORMAT])]
    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    seq: Annotated[int, Doc("The number of the entry.")]
    entry: Annotated[InclusionProof, Doc("The entry.")]
    values: Annotated[list[OpenedCommitment], Doc("The values that are shown, each in its binary form.")]
    checkpoint: Annotated[str, Doc("A signed checkpoint whose tree has the entry.")]
    keys: Annotated[list[KeyLink], Doc("How the key came to sign that signed it, oldest first.")]
    actor: Annotated[OpenedCommitment | None, Doc("Who did it, where that is shown.")] = None
    note: Annotated[OpenedCommitment | None, Doc("Why, where that is shown.")] = None


class ConsistencyQuery(RequestBody, frozen=True):
    """Two states of the ledger."""

    old: Annotated[Size, Doc("How many entries the older one has: the second line of its checkpoint.")]
    new: Annotated[Size | None, Doc("The same of the newer one; the latest signed one if it is left out.")] = None


class ConsistencyProof(ResponseBody, frozen=True, omit_defaults=False):
    """That one state of the ledger continues another: no entry before was changed or taken away (RFC 6962)."""

    old: Annotated[int, Doc("How many entries the older one has.")]
    old_root: Annotated[Base64, Doc("The root of its tree; the third line of its checkpoint.")]
    new: Annotated[int, Doc("How many entries the newer one has.")]
    new_root: Annotated[Base64, Doc("The root of its tree.")]
    path: Annotated[list[Base64], Doc("The hashes of the proof, in the order of RFC 6962, section 2.1.2.")]


class LedgerKey(ResponseBody, frozen=True):
    """A key with which the ledger signs, or has signed."""

    key: Annotated[str, Doc("The public key, as `NAME+HASH+KEY`: `perseid verify --key` takes it.")]
    since: Annotated[int | None, Doc("The entry with which it began; left out for the first one.")] = None
    until: Annotated[int | None, Doc("The entry with which it ended; left out for the one that signs now.")] = None


class LedgerKeys(ResponseBody, frozen=True, omit_defaults=False):
    """The keys of the ledger."""

    origin: Annotated[str, Doc("The name under which the ledger signs.", examples=["ledger-841b321ed5144bdb"])]
    key: Annotated[str, Doc("The public key that signs now, as `NAME+HASH+KEY`.")]
    keys: Annotated[list[LedgerKey], Doc("All of them, oldest first. A proof carries the way from each to the last.")]


@SECTION.add(
    "GET",
    "/handles/{handle}/proof",
    "prove",
    "Prove what a name is, or was",
    response=ProofDocument,
    query=ProofQuery,
    problems=(403, 404, 422),
    parameters=HANDLE_PARAMETERS,
)
async def show_proof(call: ApiCall) -> Reply:
    """A document with one version of a name, which anybody can check: without this server, for as long as they like.

    It shows what the public may see, unless you ask for everything; a token needs the word `read` for that. Save it as
    a file and check it with `perseid verify FILE --key KEY`, with a key that you have from the operator and not from
    here. It may take a second, until the latest changes are under a signed checkpoint.
    """
    asked, handle = call.asked(ProofQuery), call.handle()
    clock = call.registry.ledger.log.clock

    def read(context: Context) -> bytes:
        snapshot = context.snapshot
        seq = None if asked.at is None else moment(snapshot.reading, asked.at, clock.now())
        return prove(snapshot, context.identity, handle, seq, public_only=not asked.everything).to_json().encode()

    looks = 0
    while True:
        try:
            return Reply(await call.read(read, handle), name=str(handle))
        except NotCheckpointed as missing:
            looks += 1
            if looks == MAX_POLLS:
                raise ApiError("busy", str(missing), "ask again in a moment", headers=_RETRY_HEADERS) from missing
        await asyncio.sleep(POLL_SECONDS)


@SECTION.add(
    "GET",
    "/ledger/checkpoint",
    "checkpoint",
    "The latest checkpoint",
    media_types=(NOTE_TYPE,),
)
async def show_checkpoint(call: ApiCall) -> Reply:
    """The latest checkpoint, as a signed note: the name of the ledger, how many entries it has, the root of their tree.

    Keep it: with a consistency proof you can hold the ledger to it for ever.
    """
    note = await call.read(lambda context: context.snapshot.reading.checkpoint())
    if note is None:
        raise ApiError("busy", "nothing was signed yet: the first checkpoint comes in a second", headers=_RETRY_HEADERS)
    return Reply(note.encode(), media_type=f"{NOTE_TYPE};charset=utf-8")


@SECTION.add(
    "GET",
    "/ledger/consistency",
    "consistency",
    "That one checkpoint continues another",
    response=ConsistencyProof,
    query=ConsistencyQuery,
    problems=(422,),
)
async def show_consistency(call: ApiCall) -> Reply:
    """The proof that a state of the ledger continues an earlier one, of any two sizes up to the latest checkpoint.

    The roots are those that the checkpoints of these sizes have, and it is those that the proof has to lead to: what
    is said here about roots is for states of which you have no checkpoint.
    """
    asked = call.asked(ConsistencyQuery)
    found = await call.read(lambda context: consistency(context.snapshot.reading, asked.old, asked.new))
    return Reply(_to_consistency_proof(found))


@SECTION.add("GET", "/ledger/key", "ledgerKey", "The public key of the ledger", response=LedgerKeys)
async def show_key(call: ApiCall) -> Reply:
    """The public key with which checkpoints are signed, and those that signed before it.

    A key that comes from where the proof comes from proves little: compare it with what the operator has published.
    """

    def read(context: Context) -> tuple[str, list[SigningKey]]:
        reading = context.snapshot.reading
        return reading.origin, signing_keys(reading)

    origin, keys = await call.read(read)
    return Reply(LedgerKeys(origin, str(keys[-1].key), [_to_ledger_key(each) for each in keys]))


def _to_consistency_proof(found: Consistency) -> ConsistencyProof:
    path = [to_base64(each) for each in found.path]
    return ConsistencyProof(found.old_size, to_base64(found.old_root), found.new_size, to_base64(found.new_root), path)


def _to_ledger_key(found: SigningKey) -> LedgerKey:
    since, until = (None if entry is None else entry.seq for entry in (found.since, found.until))
    return LedgerKey(str(found.key), since, until)

"""Everything under a prefix, or all names that begin alike, handed over to another owner: as `perseid transfer` does.

It is an operation like a rewrite (`operations_chapter`), and watched, gone on with and undone like one. One name is
handed over in `lives_chapter`.
"""

from typing import Annotated, Final

from perseid.ledger.store.jobs import Job
from perseid.registry.context import Context
from perseid.registry.jobs import transfer
from perseid.registry.jobs.transfer import MAX_ADMINISTRATORS_SHOWN, TransferAll, TransferPage, parse_range
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import IdentityText
from perseid.server.http.v1.job_calls import (
    ACCEPTED,
    authorize_registry,
    check_authenticated,
    count_handles,
    run_job,
    start_job,
)
from perseid.server.http.v1.job_runs import Slot
from perseid.server.http.v1.job_structures import JobResponse
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import Doc, NextCursor, Note, Paging, RequestBody, ResponseBody
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.http.v1.values import parse_value_ref
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes("Transfers", "Everything under a prefix, or all names that begin alike, for another owner.")

Where = Annotated[
    str,
    Doc(
        "A prefix, for everything under it, and its prefix handle; or how names begin and `*`, as in `12345/maps-*`.",
        min_length=1,
        max_length=4_096,
        examples=["12345/maps-*"],
    ),
]
NewOwner = Annotated[IdentityText, Doc("The key or group that owns them from then on, as `INDEX:HANDLE`.")]
Derived = Annotated[bool, Doc("With a prefix: those derived from it as well, and all that is under them.")]


class TransferQuery(Paging, frozen=True, kw_only=True):
    """What is to be handed over, and to whom."""

    where: Where
    to: NewOwner
    derived: Derived = False


class NewTransfer(RequestBody, frozen=True):
    """That many names get another owner."""

    where: Where
    to: NewOwner
    derived: Derived = False
    note: Note = ""


class PlannedTransfer(ResponseBody, frozen=True, omit_defaults=False):
    """A name that would be handed over."""

    handle: Annotated[str, Doc("The name.", examples=["12345/x"])]
    administrators: Annotated[
        list[str],
        Doc(
            (
                "Who administers it now, and would not any more; as far as you may read that, "
                f"and {MAX_ADMINISTRATORS_SHOWN} at most."
            ),
            examples=[["200:0.NA/12345"]],
        ),
    ]
    allowed: Annotated[bool, Doc("Whether you may hand it over. The first name that you may not ends a transfer.")]
    reason: Annotated[str | None, Doc("Why you may not.")] = None


class TransferPlan(ResponseBody, frozen=True, omit_defaults=False):
    """What would be handed over, in the order in which it would be. Names that have that owner are passed over."""

    names: Annotated[list[PlannedTransfer], Doc("The names of the page. It may have none, and not be the last.")]
    next: NextCursor = None


@SECTION.add(
    "GET",
    "/transfers/preview",
    "previewTransfer",
    "What a transfer would hand over",
    response=TransferPlan,
    query=TransferQuery,
    scope="transfer",
    problems=(401, 403, 404, 422),
)
async def preview_transfer(call: ApiCall) -> Reply:
    """Which names would get another owner, who administers them now, and whether you may hand them over.

    Nothing is done. It takes the same rights as the transfer itself, for it shows reserved and hidden names too.
    """
    asked = call.asked(TransferQuery)
    order = _parse_order(asked.where, asked.to, derived=asked.derived)
    after = await call.after(tuple[int, bytes])

    def read(context: Context) -> TransferPage:
        return transfer.preview_page(context, order, after, asked.limit)

    def respond(page: TransferPage) -> Reply:
        following = call.seal(page.following)
        names = [
            PlannedTransfer(
                each.handle,
                list(each.administrators),
                each.refused is None,
                None if each.refused is None else each.refused.reason,
            )
            for each in page.items
        ]
        return Reply(TransferPlan(names, following), next=following)

    return await call.respond(read, respond)


@SECTION.add(
    "POST",
    "/transfers",
    "transferAll",
    "Hand many names over",
    body=NewTransfer,
    response=JobResponse,
    status=ACCEPTED,
    scope="transfer",
    creates=True,
    problems=(401, 403, 404, 422),
)
async def transfer_all(call: ApiCall) -> Reply:
    """Give everything under a prefix, or all names that begin alike, to another owner. See the preview first.

    The owner takes the place of all administrators. Creator and date of creation stay; so do the groups in a prefix
    handle, and the policy. The names come first, and the prefix handle last.

    It is one operation, which goes on in the background; a small one is done when the answer comes. `Location` is where
    to see how far it has come, and `/events` below it tells while it goes on. The first name that you may not hand over
    ends it: what is done by then stays done, and can be undone, by who has the rights then. You need the right to list
    the names. A token needs `transfer`, and for a prefix as a whole `namespaces` too.
    """
    new = call.payload(NewTransfer)
    order = _parse_order(new.where, new.to, derived=new.derived, place="$.")
    check_authenticated(call)
    registry = authorize_registry(call)

    def page(after: tuple[int, bytes] | None) -> tuple[int, tuple[int, bytes] | None]:
        with registry.snapshot() as snapshot:
            context = Context(snapshot, call.identity, INTERFACE, registry.now())
            found = transfer.preview_page(context, order, after, check_permissions=False)
        return len(found.items), found.following

    async def begin(place: Slot) -> Job:
        total = await count_handles(call, page) or 0
        job = await call.do(
            WorkKind.WRITE, lambda: transfer.start(registry, order, call.identity, INTERFACE, new.note, total)
        )
        await run_job(call, registry, place, job, forgets=True)
        return job

    return await call.once(lambda: start_job(call, registry, begin))


def _parse_order(where: str, to: str, *, derived: bool, place: str = "") -> TransferAll:
    """What is asked for; raises `Unfitting` if that is one name. `place` is where the members stand."""
    meant = parse_range(where)
    if meant is None:
        text = "that is one name, which `POST /handles/{handle}/transfer` hands over; write a prefix, or `*` behind it"
        raise InvalidParameter(text, f"{place}where")
    return TransferAll(meant, parse_value_ref(to, f"{place}to"), derived)

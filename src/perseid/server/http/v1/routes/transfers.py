"""Transfer everything under a prefix, or all handles with the same beginning, to another owner.

A transfer is a job like a rewrite (`routes.jobs`). One handle is transferred in `routes.lifecycle`.
"""

from typing import Final

from perseid.ledger.store.jobs import Job
from perseid.registry.context import Context
from perseid.registry.jobs import transfer
from perseid.registry.jobs.transfer import TransferAll, TransferPage, parse_range
from perseid.registry.responses import to_planned_transfer
from perseid.schema.jobs import JobResponse, NewTransfer, TransferPlan, TransferQuery
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.changes import parse_value_ref
from perseid.server.http.v1.job_requests import (
    ACCEPTED,
    authorize_registry,
    count_handles,
    run_job,
)
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes(
    "Transfers", "Transfer all handles of a prefix, or all with the same beginning, to another owner."
)


@SECTION.add(
    "GET",
    "/transfers/preview",
    "previewTransfer",
    "Preview a transfer",
    response=TransferPlan,
    query=TransferQuery,
    scope="transfer",
    problems=(401, 403, 404, 422),
)
async def preview_transfer(call: ApiCall) -> Reply:
    """List the handles that would be transferred, their administrators, and whether you can transfer them.

    Nothing is changed. Requires the same permissions as the transfer, because the list includes reserved and
    unpublished handles.
    """
    query = call.query_as(TransferQuery)
    order = _parse_order(query.where, query.to, derived=query.derived)
    after = await call.after(tuple[int, bytes])

    def read(context: Context) -> TransferPage:
        return transfer.preview_page(context, order, after, query.limit)

    def respond(page: TransferPage) -> Reply:
        cursor = call.seal(page.following)
        return Reply(TransferPlan([to_planned_transfer(each) for each in page.items], cursor), next=cursor)

    return await call.respond(read, respond)


@SECTION.add(
    "POST",
    "/transfers",
    "transferAll",
    "Transfer many handles",
    body=NewTransfer,
    response=JobResponse,
    status=ACCEPTED,
    scope="transfer",
    creates=True,
    problems=(401, 403, 404, 422),
)
async def transfer_all(call: ApiCall) -> Reply:
    """Transfer all handles of a prefix, or all with the same beginning, to another owner. Use the preview first.

    The new owner replaces all administrators. Creator and creation date stay, and so do the groups in a prefix handle
    and the policy. The prefix handle is transferred last.

    This is one job. It continues in the background; a small one is complete when the response arrives. `Location` is
    the URL of the job, and `/events` under it streams its progress. The job stops at the first handle that you cannot
    transfer; completed changes remain, and users with the permissions can undo them. You need permission to list the
    handles. A token needs `transfer`, and for a whole prefix `namespaces` too.
    """
    new = call.payload(NewTransfer)
    order = _parse_order(new.where, new.to, derived=new.derived, path="$.")
    registry = authorize_registry(call)

    def page(after: tuple[int, bytes] | None) -> tuple[int, tuple[int, bytes] | None]:
        with registry.snapshot() as snapshot:
            context = Context(snapshot, call.identity, INTERFACE, registry.now())
            found = transfer.preview_page(context, order, after, check_permissions=False)
        return len(found.items), found.following

    async def start() -> Job:
        total = await count_handles(call, page) or 0
        return await call.do(
            WorkKind.WRITE, lambda: transfer.start(registry, order, call.identity, INTERFACE, new.note, total)
        )

    return await call.once(lambda: run_job(call, registry, start, discard=True))


def _parse_order(where: str, to: str, *, derived: bool, path: str = "") -> TransferAll:
    """Build the transfer; raises `InvalidParameter` for a single handle. `path` precedes the field names in errors."""
    handle_range = parse_range(where)
    if handle_range is None:
        advice = "Use POST /api/v1/handles/{handle}/transfer, or give a prefix or a beginning and *"
        raise InvalidParameter("This is a single handle", f"{path}where", advice)
    return TransferAll(handle_range, parse_value_ref(to, f"{path}to"), derived)

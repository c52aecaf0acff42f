"""Everything under a prefix, or all names that begin alike, handed over to another owner: as `perseid transfer` does.

It is an operation like a rewrite (`operations_chapter`), and watched, gone on with and undone like one. One name is
handed over in `lives_chapter`.
"""

from typing import Annotated, Final

from perseid.ledger.store.jobs import Operation
from perseid.registry.context import Context
from perseid.registry.jobs import transfer
from perseid.registry.jobs.transfer import MAX_TOLD, PlannedPage, TransferAll, beginning
from perseid.server.http.context import DOOR
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.changes import Party
from perseid.server.http.v1.job_calls import ACCEPTED, acting_for, begun, check_known, counted, started
from perseid.server.http.v1.job_runs import Place
from perseid.server.http.v1.job_structures import OperationTold
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import About, Given, NextCursor, Note, Paging, Told
from perseid.server.http.v1.validation import Unfitting
from perseid.server.http.v1.values import party
from perseid.server.native.steps import Kind

CHAPTER: Final = Routes("Transfers", "Everything under a prefix, or all names that begin alike, for another owner.")

Where = Annotated[
    str,
    About(
        "A prefix, for everything under it, and its prefix handle; or how names begin and `*`, as in `12345/maps-*`.",
        min_length=1,
        max_length=4_096,
        examples=["12345/maps-*"],
    ),
]
To = Annotated[Party, About("The key or group that owns them from then on, as `INDEX:HANDLE`.")]
Derived = Annotated[bool, About("With a prefix: those derived from it as well, and all that is under them.")]


class TransferQuery(Paging, frozen=True, kw_only=True):
    """What is to be handed over, and to whom."""

    where: Where
    to: To
    derived: Derived = False


class NewTransfer(Given, frozen=True):
    """That many names get another owner."""

    where: Where
    to: To
    derived: Derived = False
    note: Note = ""


class PlannedTransfer(Told, frozen=True, omit_defaults=False):
    """A name that would be handed over."""

    handle: Annotated[str, About("The name.", examples=["12345/x"])]
    administrators: Annotated[
        list[str],
        About(
            f"Who administers it now, and would not any more; as far as you may read that, and {MAX_TOLD} at most.",
            examples=[["200:0.NA/12345"]],
        ),
    ]
    allowed: Annotated[bool, About("Whether you may hand it over. The first name that you may not ends a transfer.")]
    reason: Annotated[str | None, About("Why you may not.")] = None


class TransferPlan(Told, frozen=True, omit_defaults=False):
    """What would be handed over, in the order in which it would be. Names that have that owner are passed over."""

    names: Annotated[list[PlannedTransfer], About("The names of the page. It may have none, and not be the last.")]
    next: NextCursor = None


@CHAPTER.add(
    "GET",
    "/transfers/preview",
    "previewTransfer",
    "What a transfer would hand over",
    answer=TransferPlan,
    query=TransferQuery,
    scope="transfer",
    problems=(401, 403, 404, 422),
)
async def preview_transfer(call: ApiCall) -> Reply:
    """Which names would get another owner, who administers them now, and whether you may hand them over.

    Nothing is done. It takes the same rights as the transfer itself, for it shows reserved and hidden names too.
    """
    asked = call.asked(TransferQuery)
    order = _order(asked.where, asked.to, derived=asked.derived)
    after = await call.after(tuple[int, bytes])

    def read(context: Context) -> PlannedPage:
        return transfer.planned(context, order, after, asked.limit)

    def tell(page: PlannedPage) -> Reply:
        following = call.sealed(page.following)
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

    return await call.tell(read, tell)


@CHAPTER.add(
    "POST",
    "/transfers",
    "transferAll",
    "Hand many names over",
    body=NewTransfer,
    answer=OperationTold,
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
    new = call.given(NewTransfer)
    order = _order(new.where, new.to, derived=new.derived, place="$.")
    check_known(call)
    acting = acting_for(call)

    def page(after: tuple[int, bytes] | None) -> tuple[int, tuple[int, bytes] | None]:
        with acting.facts() as facts:
            context = Context(facts, call.who, DOOR, acting.now())
            found = transfer.planned(context, order, after, judges=False)
        return len(found.items), found.following

    async def begin(place: Place) -> Operation:
        total = await counted(call, page) or 0
        unit = await call.do(Kind.WRITE, lambda: transfer.begin(acting, order, call.who, DOOR, new.note, total))
        await started(call, acting, place, unit, forgets=True)
        return unit

    return await call.once(lambda: begun(call, acting, begin))


def _order(where: str, to: str, *, derived: bool, place: str = "") -> TransferAll:
    """What is asked for; raises `Unfitting` if that is one name. `place` is where the members stand."""
    meant = beginning(where)
    if meant is None:
        text = "that is one name, which `POST /handles/{handle}/transfer` hands over; write a prefix, or `*` behind it"
        raise Unfitting(text, f"{place}where")
    return TransferAll(meant, party(to, f"{place}to"), derived)

"""What goes over the network: the bases of all its structures, and what several of them share.

Every structure and every member is described where it stands, by a docstring and by `About`; the description of the
API is made of that, and a test fails where one is missing. Members are written in camel case.

    class Wanted(Given, frozen=True):
        \"\"\"What somebody wants.\"\"\"

        count: Annotated[int, About("How many.", ge=1, le=1000)] = 1
        index: Annotated[Index | None, About("Which; all if it is left out.")] = None

Limits belong to the type itself, not to a union: `Annotated[int | None, About(…, ge=1)]` is refused by `msgspec`.
"""

from typing import Annotated, Any, Final

import msgspec

from perseid.registry.queries.paging import MAX_PAGE_BYTES

MAX_PAGE: Final = 1_000
"""Items of a page at most: an answer of that many names is read in one go, and made in some milliseconds."""

DEFAULT_PAGE: Final = 100
"""Items of a page where nobody says how many."""


def Doc(description: str, **more: Any) -> msgspec.Meta:  # noqa: N802 - it stands where a type would
    """The description of a member, and its limits: those of `msgspec.Meta`."""
    return msgspec.Meta(description=description, **more)


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Something that a request says; what is not known is refused, so that no slip of the hand is passed over."""


class ResponseBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that an answer says; what is as usual may be left out."""


class Paging(RequestBody, frozen=True):
    """Which part of a long list is wanted."""

    limit: Annotated[
        int,
        Doc(
            "Items on the page, at most. A page may have fewer and not be the last: where records are large, it ends "
            f"at {MAX_PAGE_BYTES >> 20} MiB. A single one that is larger is told all the same.",
            ge=1,
            le=MAX_PAGE,
        ),
    ] = DEFAULT_PAGE
    cursor: Annotated[
        str, Doc("Where the page begins: `next` of the page before. It is good for the same list and identity only.")
    ] = ""


Note = Annotated[
    str, Doc("Why; kept with the change, for administrators to read.", max_length=2_000, examples=["as agreed"])
]
"""The note of a change."""

Handle = Annotated[str, Doc("A handle: prefix, slash, suffix.", examples=["12345/example"])]

Seq = Annotated[int, Doc("The number of the entry in the ledger.", ge=0, examples=[1234])]


NextCursor = Annotated[
    str | None, Doc("The cursor of the next page, to be given as `cursor`; null or absent on the last page.")
]
"""The member that every page has."""

HANDLE_PARAMETER: Final = "The handle, as one step of the path: its slash is written `%2F`, as in `12345%2Fx`."
"""What the parameter of a path is that most paths have."""


class AlreadyDone(ResponseBody, frozen=True):
    """That a request with the same `Idempotency-Key` was carried out before; what was answered then is not kept."""

    seq: Annotated[int, Doc("The first entry of the ledger that it made; 0 if it made none.")]
    count: Annotated[int, Doc("How many it made.")]

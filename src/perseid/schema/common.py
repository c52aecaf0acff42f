"""Base classes and common types of the requests and responses of the HTTP API.

Every class has a docstring and every field a `Doc`; the OpenAPI document is generated from them, and a test fails if
one is missing. Field names are written in snake case.

    class ItemQuery(RequestBody, frozen=True):
        \"\"\"Which items to return.\"\"\"

        count: Annotated[int, Doc("Number of items.", ge=1, le=1000)] = 1
        index: Annotated[Index | None, Doc("Index of the item; all if omitted.")] = None

Limits belong to the type itself: `msgspec` refuses `Annotated[int | None, Doc(…, ge=1)]`.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

MAX_PAGE_BYTES: Final = 1 << 22
"""Bytes on a page, as stored; binary data takes a third more in JSON. A thousand usual records are a quarter of it, so
only pages of large records end here. It takes a tenth of a second to write and some seconds to send over a slow line.
"""

MAX_PAGE: Final = 1_000
"""Most items on a page: encoding that many handles takes some milliseconds."""

DEFAULT_PAGE: Final = 100
"""Items on a page by default."""


def Doc(description: str, **more: Any) -> msgspec.Meta:  # noqa: N802 - used like a class
    """Describe a field and its limits, as `msgspec.Meta`."""
    return msgspec.Meta(description=description, **more)


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of request types; unknown fields are refused, to catch typos."""


class ResponseBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of response types; fields with default values may be omitted."""


PageLimit = Annotated[
    int,
    Doc(
        "Most items on the page. A page may have fewer and not be the last: pages end at "
        f"{MAX_PAGE_BYTES >> 20} MiB. A larger single item is a page of its own.",
        ge=1,
        le=MAX_PAGE,
    ),
]

Cursor = Annotated[str, Doc("The `next` cursor of the previous page. Valid only for the same list and identity.")]


class Paging(RequestBody, frozen=True):
    """Which page of a list to return."""

    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = ""


Note = Annotated[
    str, Doc("Reason for the change; administrators can read it.", max_length=2_000, examples=["as agreed"])
]

Seq = Annotated[int, Doc("The number of the ledger entry.", ge=0, examples=[1234])]

NextCursor = Annotated[str | None, Doc("Cursor of the next page, for `cursor`; null or absent on the last page.")]

HANDLE_PARAMETER: Final = "The handle as one path segment: write its slash as `%2F`, as in `12345%2Fx`."


class AlreadyDone(ResponseBody, frozen=True):
    """An earlier request with the same `Idempotency-Key` succeeded; its response is no longer stored."""

    seq: Annotated[int, Doc("The first ledger entry of that request; 0 if it made none.")]
    count: Annotated[int, Doc("The number of its ledger entries.")]


MAX_MOMENT: Final = 100
"""Characters of a time or entry number: the longest ISO 8601 form has about forty."""

Moment = Annotated[
    str,
    Doc(
        "A time in ISO 8601, by default in UTC, or the number of a ledger entry.",
        min_length=1,
        max_length=MAX_MOMENT,
        examples=["2026-11-15T10:00:00Z"],
    ),
]

At = Annotated[str, Doc("Time of the entry, in ISO 8601.", examples=["2026-11-15T10:00:00.123456Z"])]


class HandleState(StrEnum):
    """States of handles."""

    PUBLISHED = "published"
    UNPUBLISHED = "unpublished"
    RESERVED = "reserved"
    TOMBSTONE = "tombstone"


class EntryAction(StrEnum):
    """Actions of ledger entries."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    HOME = "home"
    UNHOME = "unhome"
    RESERVE = "reserve"
    PUBLISH = "publish"
    UNPUBLISH = "unpublish"
    TOMBSTONE = "tombstone"
    REDACT = "redact"
    ROTATE_KEY = "rotate_key"
    BRANCH = "branch"


State = Annotated[
    str,
    Doc(
        "The state of the handle: `published`, `unpublished`, `reserved`, `tombstone`, or `absent` without a record.",
        examples=["published"],
    ),
]

Name = Annotated[str, Doc("A handle.", min_length=1, max_length=4_096, examples=["12345/x"])]

NameText = Annotated[str, Doc("A handle in any form.", max_length=4_096, examples=["hdl:12345/x"])]

IdentityText = Annotated[
    str,
    Doc("A key or group, as `INDEX:HANDLE`.", min_length=1, max_length=4_096, examples=["300:12345/ann"]),
]


class ChangeNote(RequestBody, frozen=True):
    """A note about a change."""

    note: Note = ""


class Overview(ResponseBody, frozen=True):
    """Links to the documentation."""

    server: Annotated[str, Doc("Program and version.", examples=["perseid 1.0"])]
    base: Annotated[str, Doc("URL of this version of the API.")]
    description: Annotated[str, Doc("URL of the OpenAPI 3.1 document.")]
    pages: Annotated[str, Doc("URL of the documentation pages.")]
    problems: Annotated[str, Doc("URL of the problem types.")]
    resolver: Annotated[str, Doc("URL of the description of the resolver.")]

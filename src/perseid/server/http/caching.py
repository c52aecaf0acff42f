"""How long an answer may be kept, and whether the one that a client has is still good.

A value says how long it may be kept (its TTL). An answer may be kept as long as the value that says least, for two days
at most, as deployed proxies do. `Expires` says it to old caches and `Cache-Control` to all others.

What was after an entry of the past never changes but for what is hidden or erased later, which has to be gone from
caches in bearable time too. So it may be kept for the same two days, whatever TTL its values had, and need not be asked
for again meanwhile.

A page has a tag that follows from its octets. A client that shows the tag again is told that nothing has changed
(304). Redirections have none: by the rules of HTTP their conditions do not count.
"""

import hashlib
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final

from perseid.records.value import TtlType, Value

from .entity_tags import header, is_known
from .messages import HeaderList, Request, Response
from .methods import READING

MAX_AGE: Final = 172_800
"""Seconds that an answer is kept at most: two days. Whoever moves a thing cannot wait longer."""

PAGE_AGE: Final = 300
"""Seconds that a page of the server's own is kept, which changes with its settings."""

STATIC_AGE: Final = 86_400
"""Seconds that a file is kept which comes with the program."""

_TAG_DIGITS: Final = 32
_OF_304: Final = frozenset(("cache-control", "content-location", "etag", "expires", "link", "memento-datetime", "vary"))


def least_ttl(values: Iterable[Value], now: float) -> int | None:
    """For how many seconds what was made of these values may be kept; None if nothing says."""
    times = [_remaining(value, int(now)) for value in values]
    return max(0, min((*times, MAX_AGE))) if times else None


def age_headers(
    seconds: int | None, now: float, *, shared: bool = True, again: bool = False, fixed: bool = False
) -> HeaderList:
    """What tells caches how long to keep an answer.

    One that is meant for where the client is may not be `shared` with others. `again`: each time it has to be asked
    for again, as the client did who wanted it from the source. `fixed`: it is about an entry of the past.
    """
    if again or (seconds is None and not fixed):
        return (("Cache-Control", "no-cache"),)
    if seconds is None or fixed:
        seconds = MAX_AGE
    scope = "public" if shared else "private"
    return (
        ("Expires", formatdate(int(now) + seconds, usegmt=True)),
        ("Cache-Control", f"{scope}, max-age={seconds}{', immutable' if fixed else ''}"),
    )


def tagged(request: Request, response: Response, tag: str = "") -> Response:
    """The answer with a tag; or the word that the client's is still good, if it showed the same.

    `tag` is what follows from its octets, where that is known already. Of a long answer it is made by `long_answers`.
    """
    if not wants_tag(response):
        return response
    tag = tag or tag_of(next(response.values("content-type"), ""), response.body)
    if request.method in READING and is_known(request, tag):
        kept = tuple([each for each in response.headers if each[0].lower() in _OF_304])
        return Response(304, (*kept, header(tag)), code=response.code, name=response.name, who=response.who)
    return response.with_headers(header(tag))


def wants_tag(response: Response) -> bool:
    """Whether an answer gets the tag of its octets: conditions count where all is well only, and some have another."""
    return response.status == 200 and next(response.values("etag"), None) is None


def tag_of(type_: str, octets: bytes) -> str:
    """The tag of an answer: of its octets and their type."""
    digest = hashlib.sha256(type_.encode("latin-1") + b"\0")
    digest.update(octets)
    return digest.hexdigest()[:_TAG_DIGITS]


def _remaining(value: Value, now: int) -> int:
    """Seconds for which a value may be kept; none, if nobody knows how its TTL counts."""
    ends = {TtlType.RELATIVE: value.ttl, TtlType.ABSOLUTE: value.ttl - now}
    return ends.get(value.ttl_type, 0)

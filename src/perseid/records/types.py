"""Type names and type matching.

Names are UTF-8 text, case-insensitive for ASCII letters; `.` separates a type from its subtypes. There are three
comparisons:

- `matches`: a client's query. `URL` matches only `URL`; `URL.` matches `URL`, `URL.us` and all other subtypes.
- `has_type`: the type of a value. `HS_ADMIN.x` is an `HS_ADMIN`, in any case.
- exact spelling, for `SITE_TYPES`, `SERVICE_TYPES` and for an `HS_PUBKEY` that proves an identity: deployed resolvers
  and servers ignore `hs_site`, so it must have no effect here either.
"""

from collections.abc import Iterable
from typing import Final

from perseid.names.characters import fold

HS_ADMIN: Final = "HS_ADMIN"
HS_VLIST: Final = "HS_VLIST"
HS_PUBKEY: Final = "HS_PUBKEY"
HS_SECKEY: Final = "HS_SECKEY"
HS_SITE: Final = "HS_SITE"
HS_SITE_6: Final = "HS_SITE.6"
HS_SITE_PREFIX: Final = "HS_SITE.PREFIX"
HS_NA_DELEGATE: Final = "HS_NA_DELEGATE"
HS_SERV: Final = "HS_SERV"
HS_SERV_PREFIX: Final = "HS_SERV.PREFIX"
HS_NAMESPACE: Final = "HS_NAMESPACE"
HS_ALIAS: Final = "HS_ALIAS"
HS_SIGNATURE: Final = "HS_SIGNATURE"
HS_CERT: Final = "HS_CERT"
URL: Final = "URL"
EMAIL: Final = "EMAIL"
DESC: Final = "DESC"
LOCATIONS: Final = "10320/loc"
DEFINITION: Final = "PERSEID_TYPE"
"""The type of the value that defines a type: see `type_definition`."""

SITE_TYPES: Final = frozenset({HS_SITE, HS_SITE_6})
"""Sites that host the handles of a prefix; exact spelling."""

SERVICE_TYPES: Final = frozenset({HS_SITE, HS_SITE_6, HS_SERV})
"""The same, including service handles; exact spelling."""

DELEGATION_TYPES: Final = frozenset({HS_SITE_PREFIX, HS_NA_DELEGATE, HS_SERV_PREFIX})
"""Sites and service handles that host derived prefixes; exact spelling."""


def matches(query: str, type_: str) -> bool:
    """Whether a query for one type matches a type."""
    return TypeQuery((query,)).finds(type_)


def has_type(type_: str, base: str) -> bool:
    """Whether a type is `base` or one of its subtypes."""
    folded, folded_base = fold(type_), fold(base)
    return folded == folded_base or folded.startswith(folded_base + ".")


def get_base_type(type_: str) -> str:
    """The part before the first dot, folded, which selects the data class of a predefined type."""
    return fold(type_.partition(".")[0])


class TypeQuery:
    """Several type queries, prepared once.

    The cost of a match grows with the number of distinct query lengths, not with the number of queries: a request can
    have tens of thousands, and a record thousands of values.
    """

    __slots__ = ("_exact", "_families", "_lengths")

    def __init__(self, queries: Iterable[str]) -> None:
        folded = [fold(query) for query in queries]
        self._exact = frozenset([query.removesuffix(".") for query in folded])
        self._families = frozenset([query for query in folded if query.endswith(".")])
        self._lengths = frozenset([len(query) for query in self._families])

    def finds(self, type_: str) -> bool:
        """Whether one of the queries matches the type."""
        folded = fold(type_)
        return folded in self._exact or any(folded[:length] in self._families for length in self._lengths)

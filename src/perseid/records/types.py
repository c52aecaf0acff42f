"""Type names: what they are called and how they match.

Names are UTF-8 text, compared with the ASCII letters folded and no others; `.` separates a type from its
subtypes. There are three ways to compare, and each has its place:

- `matches`: what a client asks for. `URL` finds `URL` only, `URL.` finds `URL`, `URL.us` and all below.
- `has_type`: what a value is. `HS_ADMIN.x` is an `HS_ADMIN`, in any case of letters.
- exact spelling, for the names of `SITE_TYPES`, `SERVICE_TYPES` and for `HS_PUBKEY` where it proves an identity:
  deployed resolvers and servers overlook `hs_site`, so whoever finds it must not act on it either.
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
"""The type of the value that defines a type: see `definition`."""

SITE_TYPES: Final = frozenset({HS_SITE, HS_SITE_6})
"""Where the handles of a prefix live; exact spelling."""

SERVICE_TYPES: Final = frozenset({HS_SITE, HS_SITE_6, HS_SERV})
"""The same, directly or through a service handle; exact spelling."""

DELEGATION_TYPES: Final = frozenset({HS_SITE_PREFIX, HS_NA_DELEGATE, HS_SERV_PREFIX})
"""Where derived prefixes live, directly or through a service handle; exact spelling."""


def matches(query: str, type_: str) -> bool:
    """Whether a query for one type finds a value of this type."""
    return TypeQuery((query,)).finds(type_)


def has_type(type_: str, base: str) -> bool:
    """Whether a type is `base` or one of its subtypes."""
    folded, wanted = fold(type_), fold(base)
    return folded == wanted or folded.startswith(wanted + ".")


def get_base_type(type_: str) -> str:
    """What stands before the first dot, folded: the name that says how the data of a predefined type is read."""
    return fold(type_.partition(".")[0])


class TypeQuery:
    """Several queries for types, prepared once and asked often.

    What it costs to ask grows with the number of different lengths among the queries, not with the number of
    queries: a request may hold tens of thousands, and a record thousands of values.
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

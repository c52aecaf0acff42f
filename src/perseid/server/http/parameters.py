"""The parameters of the resolver (§9.3), in a query or a form, and what they mean.

In a query `&` and `;` separate, and `+` is a plus. (In a form, which a browser has written, `&` separates and `+` is a
blank: that is `targets.Parameters.parse`.) Flags count by being there, whatever they say. What is not ours belongs to
the name, where a name has a query of its own.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from perseid.registry.queries.links import LINKSET, LINKSET_JSON
from perseid.registry.queries.signposting import BIBLIOGRAPHY, BIBTEX, CSL_JSON, JSON_LD

from .targets import Parameters, percent_decoded

MAX_PARAMETERS: Final = 200
"""Parameters of a query that are looked at: a request for many kinds of values names a dozen."""

MAX_FORM: Final = 16_384
"""Octets of the longest form: the longest name in it, percent-encoded, needs 6,144."""

OWN: Final = frozenset(
    (
        "action",
        "at",
        "auth",
        "cert",
        "country",
        "ignore_aliases",
        "index",
        "ip",
        "locatt",
        "noredirect",
        "redirectionHeaders",
        "type",
        "urlappend",
    )
)
"""What the resolver understands; the rest of a query is the name's own."""

_INDEX: Final = re.compile("[0-9]{1,10}")
_LARGEST_INDEX: Final = 0x7FFF_FFFF
_SEPARATOR: Final = re.compile(b"[&;]")


class Action(Enum):
    """What is to be done with a name."""

    REDIRECT = "redirect"
    VALUES = "showvalues"
    LOCATIONS = "showurls"
    METADATA = "metadata"
    API = "api"
    EXPLAIN = "explain"
    JSON_LD = "json-ld"
    LINKSET_JSON = "linkset-json"
    LINKSET = "linkset"
    CSL_JSON = "csl-json"
    BIBTEX = "bibtex"
    CITATION = "citation"


FORMS: Final[Mapping[Action, str]] = {
    Action.JSON_LD: JSON_LD,
    Action.LINKSET_JSON: LINKSET_JSON,
    Action.LINKSET: LINKSET,
    Action.CSL_JSON: CSL_JSON,
    Action.BIBTEX: BIBTEX,
    Action.CITATION: BIBLIOGRAPHY,
}
"""The actions that give a record in a form of `registry.record_forms`: so that each form has an address of its own."""

_ACTIONS: Final = {action.value: action for action in Action}


def read_query(query: bytes) -> Parameters:
    """The parameters of a query; there may be more than anybody reads, and those do not count."""
    parts = [part.partition(b"=") for part in _SEPARATOR.split(query, MAX_PARAMETERS)[:MAX_PARAMETERS] if part]
    return Parameters(tuple([(_decoded(name), _decoded(value)) for name, _, value in parts]))


def indexes_of(parameters: Parameters) -> tuple[int, ...]:
    """The indexes that are asked for; one that cannot be read does not count."""
    found = [int(text) for text in parameters.all("index") if _INDEX.fullmatch(text)]
    return tuple([index for index in found if index <= _LARGEST_INDEX])


def action_of(parameters: Parameters) -> Action | None:
    """What is asked for in so many words: an unknown word is a redirection. None if nothing is."""
    named = parameters.first("action")
    if named is not None:
        return _ACTIONS.get(named, Action.REDIRECT)
    return Action.VALUES if "noredirect" in parameters else None


def rest_of(query: bytes) -> bytes:
    """A query without the parameters of the resolver, and otherwise as it was."""
    rest = b""
    start = 0
    for end in (*[found.start() for found in _SEPARATOR.finditer(query)], len(query)):
        part = query[start:end]
        if part and _decoded(part.partition(b"=")[0]) not in OWN:
            rest += (query[start - 1 : start] if rest else b"") + part
        start = end + 1
    return rest


def _decoded(octets: bytes) -> str:
    """Percent-decoded once; what is no escape stays, and what is no UTF-8 becomes a replacement character."""
    return percent_decoded(octets).decode("utf-8", "replace")

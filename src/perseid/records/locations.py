"""10320/loc: several places for one thing, and how to choose between them, as XML.

    <locations chooseby="locatt,country,weighted">
      <location id="0" href="https://uk.example/" country="gb" weight="0"/>
      <location id="1" href="https://www1.example/" weight="1"/>
    </locations>

The root element's name is free. Children `location` and the old `loc_template` count. Which one is chosen is
decided where the request is known: here is only what the record says.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from .text_types import Text
from .xml import Element, is_yes, parse_xml


class Method(Enum):
    """A way to choose between locations."""

    LOCATT = "locatt"
    """By an attribute that the request names."""
    ADDRESS = "address"
    """By the client's network."""
    COUNTRY = "country"
    """By the client's country."""
    SCORE = "score"
    """The highest `score`."""
    WEIGHTED = "weighted"
    """At random, in proportion to `weight`."""


DEFAULT_METHODS: Final = (Method.LOCATT, Method.ADDRESS, Method.COUNTRY, Method.SCORE, Method.WEIGHTED)
"""What is tried, in this order, if the list does not say."""

_METHODS = {method.value: method for method in Method}


@dataclass(frozen=True, slots=True)
class Location:
    """One place."""

    attributes: tuple[tuple[str, str], ...]
    """All that is written about it, in order."""

    def get(self, name: str) -> str | None:
        """An attribute."""
        return next((value for key, value in self.attributes if key == name), None)

    @property
    def href(self) -> str | None:
        """Where it is."""
        return self.get("href")

    @property
    def href_template(self) -> str | None:
        """Where it is, with `{hdl}` for the handle; counts if there is no `href`."""
        return self.get("href_template")


@dataclass(frozen=True, slots=True)
class Locations(Text):
    """A list of places. The text is kept as it is; the rest is read from it."""

    root: Element = field(init=False, repr=False, compare=False)
    """The whole document."""
    choose_by: tuple[Method, ...] = field(init=False, compare=False)
    """How to choose, in order; names that nobody knows are left out."""
    locations: tuple[Location, ...] = field(init=False, compare=False)
    """The places, in the order in which they are written."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        root = parse_xml(self.to_bytes())
        locations = [Location(element.attributes) for element in root.elements("location", "loc_template")]
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "choose_by", _methods(root))
        object.__setattr__(self, "locations", tuple(locations))

    def get(self, name: str) -> str | None:
        """An attribute of the whole list: `no_legacy`, `http_sc`, `include` …"""
        return self.root.get(name)

    def says(self, name: str) -> bool:
        """Whether an attribute of the whole list is `yes`, `true` or `1`."""
        return is_yes(self.root.get(name))


def _methods(root: Element) -> tuple[Method, ...]:
    named = root.get("choose_by")
    if named is None:
        named = root.get("chooseby")
    if named is None:
        return DEFAULT_METHODS
    words = [word.strip().lower() for word in named.split(",")]
    return tuple([_METHODS[word] for word in words if word in _METHODS])

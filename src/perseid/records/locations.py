"""10320/loc: several places for one thing, and how to choose between them, as XML.

    <locations chooseby="locatt,country,weighted">
      <location id="0" href="https://uk.example/" country="gb" weight="0"/>
      <location id="1" href="https://www1.example/" weight="1"/>
    </locations>

The root element's name is free. Children `location` and the old `loc_template` count. Which one is chosen is
decided where the request is known: here is only what the record says.

Which locations a handle has: its own lists, those that they include, its URLs, and those of its namespace.

Records are looked up by a function that is an argument, so this is the same for the present and the past, for a proxy
and for tests. It answers what everybody may read. Whoever writes a list decides what is looked up, hence the limits: in
depth against lists that include each other, in number against wide ones, in bytes against long ones. What is beyond
them is left out, and `cut` says so. XML that cannot be read counts as if it were not there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import quote

from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle

from .errors import InvalidData
from .namespace import Namespace
from .record import ascending
from .text_types import Text
from .types import HS_NAMESPACE, LOCATIONS, URL, has_type
from .value import Value
from .xml import Element, is_true, parse_xml


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
        object.__setattr__(self, "choose_by", _parse_methods(root))
        object.__setattr__(self, "locations", tuple(locations))

    def get(self, name: str) -> str | None:
        """An attribute of the whole list: `no_legacy`, `http_sc`, `include` …"""
        return self.root.get(name)

    def is_enabled(self, name: str) -> bool:
        """Whether an attribute of the whole list is `yes`, `true` or `1`."""
        return is_true(self.root.get(name))


def _parse_methods(root: Element) -> tuple[Method, ...]:
    named = root.get("choose_by")
    if named is None:
        named = root.get("chooseby")
    if named is None:
        return DEFAULT_METHODS
    words = [word.strip().lower() for word in named.split(",")]
    return tuple([_METHODS[word] for word in words if word in _METHODS])


MAX_INCLUDE_DEPTH: Final = 20
"""How many includes are followed from one to the next, as deployed proxies do."""

MAX_INCLUDES: Final = 100
"""Records that are looked up for one handle: what is included, and the namespaces."""

MAX_LOCATIONS: Final = 1_000
"""Locations that are chosen between; as many as one list can have."""

MAX_LOCATION_LISTS: Final = 250
"""Lists that are read for one handle, and namespaces that name some: even an empty one takes its time."""

MAX_LOCATION_BYTES: Final = 1 << 20
"""Bytes of XML that are read for one handle, its own included: a tenth of a second of work."""

MAX_PREFIX_LEVELS: Final = 32
"""Prefixes above one whose namespaces are looked at."""

MAX_HREF_LENGTH: Final = 8_192
"""The longest address that is made of a template, in characters: as long as one that is written can be."""

RecordLookup: TypeAlias = Callable[[str], Iterable[Value] | None]
"""The values of a record that everybody may read; None if there is no such record here."""

_PATH_SAFE: Final = "-._~!$()*,:@/;="
_URL_TYPES: Final = (URL, f"0.TYPE/{URL}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that may be chosen."""

    href: str
    """Where it is."""
    weight: float
    """How often it is chosen, compared with the others."""
    location: Location
    """What is written about it."""
    is_url: bool = False
    """Whether it is a URL value of the record, and no location of a list."""
    from_namespace: bool = False
    """Whether the namespace has added it."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """All places of a handle, and how to choose between them."""

    places: tuple[Candidate, ...]
    """In the order of their writing: own, included, URLs, of the namespace."""
    methods: tuple[Method, ...]
    lists: tuple[Locations, ...]
    """The lists that they came from."""
    truncated: bool
    """Whether something was left out because it was too much."""

    def get(self, name: str) -> str | None:
        """An attribute of the lists: the first that has it counts."""
        return _first_attribute(self.lists, name)


def find_locations(handle: Handle, values: Iterable[Value], lookup: RecordLookup) -> Candidates:
    """The places of a handle whose record has these values; only public ones are looked at."""
    record = [value for value in ascending(values) if value.is_public]
    collector = _LocationCollector(lookup)
    own = collector.find_lists(record)
    if not own and not any(_is_url(value) for value in record):
        return Candidates((), DEFAULT_METHODS, (), collector.truncated)  # what leads nowhere by itself is led nowhere
    lists = [*own, *collector.find_included(own)]
    # What the namespace adds is decided by the record's lists; everything else by those of the namespace as well.
    more: list[Locations] = []
    if not is_true(_first_attribute(lists, "no_nslocs")):
        prefix = _first_attribute(lists, "overridePrefix") or handle.prefix
        more = collector.from_namespace(prefix, _first_attribute(lists, "nshdl"))
    forms = _template_values(handle)
    found = [_make_candidate(location, forms) for each in lists for location in each.locations]
    lists += more
    if not is_true(_first_attribute(lists, "no_legacy")):
        found += _url_candidates(record, lists, has_list=bool(own))
    found += [_make_candidate(location, forms, from_namespace=True) for each in more for location in each.locations]
    places = [place for place in found if place is not None]
    methods = next((each.choose_by for each in lists if _has_methods(each)), DEFAULT_METHODS)
    truncated = collector.truncated or len(places) > MAX_LOCATIONS
    return Candidates(tuple(places[:MAX_LOCATIONS]), methods, tuple(lists), truncated)


def expand_template(template: str, handle: Handle) -> str:
    """A template of a URL with the handle in it: `{hdl}` all encoded, `{hdl:path}` as a path."""
    return _fill_template(template, _template_values(handle))


def parse_number(text: str | None, missing: float) -> float:
    """A weight or a score; what is no number, or no sensible one, counts as if it were missing."""
    if text is None or _NUMBER.fullmatch(text) is None:
        return missing
    number = float(text)
    return number if abs(number) <= _MAX_NUMBER else missing


# As numbers are written elsewhere too: Python alone reads `1_0`, and digits of every script.
_NUMBER: Final = re.compile(r"\s*[-+]?(?:[0-9]{1,99}(?:\.[0-9]{0,99})?|\.[0-9]{1,99})(?:[eE][-+]?[0-9]{1,9})?\s*")
_MAX_NUMBER: Final = 1e9  # beyond it sums of weights would lose the small ones


class _LocationCollector:
    """Looks lists up, as far as that is allowed for one handle."""

    def __init__(self, lookup: RecordLookup) -> None:
        self._lookup = lookup
        self._records: dict[str, tuple[Value, ...]] = {}
        self._namespaces: dict[str, Namespace | None] = {}
        self._visited: set[str] = set()  # records whose lists were taken
        self._visited_namespaces: set[str] = set()  # namespaces whose lists were included
        self._size = self._list_count = 0
        self.truncated = False

    def find_lists(self, values: Iterable[Value]) -> list[Locations]:
        """The lists in a record."""
        found = []
        for value in ascending(values):
            if not (value.is_public and has_type(value.type, LOCATIONS)):
                continue
            if not self._charge(value):
                break
            try:
                found.append(Locations.from_bytes(value.data))
            except InvalidData:
                continue
        return found

    def find_included(self, lists: Iterable[Locations]) -> list[Locations]:
        """The lists that others include, and those that these include."""
        found: list[Locations] = []
        pending = [(each, 0) for each in lists]
        while pending:
            including, depth = pending.pop(0)
            for name in self._included_handles(including, depth):
                more = self._load_lists(name)
                found += more
                pending += [(each, depth + 1) for each in more]
        return found

    def _load_lists(self, name: str) -> list[Locations]:
        """The lists of a record, however often it is named, and wherever: it counts once."""
        if fold(name) in self._visited:
            return []
        self._visited.add(fold(name))
        return self.find_lists(self._load_record(name))

    def _included_handles(self, including: Locations, depth: int) -> Iterator[str]:
        """The handles whose lists a list includes, directly or by the namespace that it names."""
        direct = list(_included_names(including, "include"))
        spaces = list(_included_names(including, "includeNamespace"))
        if depth >= MAX_INCLUDE_DEPTH:
            self.truncated = self.truncated or bool(direct or spaces)
            return
        yield from direct
        for name in spaces:
            if fold(name) in self._visited_namespaces:
                continue
            self._visited_namespaces.add(fold(name))
            namespace = self._namespace(name)
            yield from () if namespace is None else (each.handle for each in namespace.locations)

    def from_namespace(self, prefix: str, fallback: str | None) -> list[Locations]:
        """The lists of a prefix and of those that it is derived from, or of the given handle if there are none."""
        names: list[str] = []
        above = islice(filter(None, prefixes.ancestors(prefix)), MAX_PREFIX_LEVELS)
        for each in (prefix, *above):
            namespace = self._namespace(f"{PREFIX_OF_PREFIXES}/{each}")
            if namespace is None:
                continue
            names += [locations.handle for locations in namespace.locations]
            if any(locations.without_parents for locations in namespace.locations):
                break
        if not names and fallback:
            names = [fallback]
        found: list[Locations] = []
        for name in names:
            found += self._load_lists(name)
        return [*found, *self.find_included(found)]

    def _namespace(self, name: str) -> Namespace | None:
        """What a record says about a namespace, taken apart once: as XML it costs what a list does."""
        key = fold(name)
        if key not in self._namespaces:
            self._namespaces[key] = self._parse_namespace(self._load_record(name))
        return self._namespaces[key]

    def _parse_namespace(self, values: Iterable[Value]) -> Namespace | None:
        for value in ascending(values):
            if not (value.is_public and has_type(value.type, HS_NAMESPACE)):
                continue
            if not self._charge(value):
                break
            try:
                return Namespace.from_bytes(value.data)
            except InvalidData:
                continue
        return None

    def _charge(self, value: Value) -> bool:
        """Count a value whose XML is to be taken apart."""
        self._size += len(value.data)
        self._list_count += 1
        allowed = self._size <= MAX_LOCATION_BYTES and self._list_count <= MAX_LOCATION_LISTS
        self.truncated = self.truncated or not allowed
        return allowed

    def _load_record(self, name: str) -> tuple[Value, ...]:
        """A record, looked up once; empty if there is none, or if too many were looked up."""
        key = fold(name)
        if key not in self._records:
            if len(self._records) >= MAX_INCLUDES:
                self.truncated = True
                return ()
            self._records[key] = tuple(self._lookup(name) or ())
        return self._records[key]


def _first_attribute(lists: Iterable[Locations], name: str) -> str | None:
    """An attribute of several lists: the first that has it counts."""
    return next((found for each in lists if (found := each.get(name)) is not None), None)


def _included_names(including: Locations, what: str) -> Iterator[str]:
    """The handles that a list names, in an attribute or in elements."""
    written = (including.get(what) or "", *[element.text for element in including.root.elements(what)])
    yield from filter(None, map(str.strip, written))


def _has_methods(each: Locations) -> bool:
    return each.get("choose_by") is not None or each.get("chooseby") is not None


def _template_values(handle: Handle) -> dict[str, str]:
    """What stands for the handle in templates, and the handle as it is put there."""
    name = str(handle)
    return {"{hdl:path}": quote(name, safe=_PATH_SAFE), "{hdl}": quote(name, safe="")}


def _fill_template(template: str, forms: dict[str, str]) -> str:
    for sign, form in forms.items():
        template = template.replace(sign, form)  # a form has no braces, so what was put in is not read again
    return template


def _expanded_length(template: str, forms: dict[str, str]) -> int:
    return len(template) + sum(template.count(sign) * (len(form) - len(sign)) for sign, form in forms.items())


def _make_candidate(location: Location, forms: dict[str, str], *, from_namespace: bool = False) -> Candidate | None:
    """A location as a place; None if it does not say where it is, or in more words than anybody reads."""
    href, template = location.href, location.href_template
    if href is None and template is not None and _expanded_length(template, forms) <= MAX_HREF_LENGTH:
        href = _fill_template(template, forms)
    if href is None:
        return None
    return Candidate(href, max(parse_number(location.get("weight"), 1.0), 0.0), location, from_namespace=from_namespace)


def _is_url(value: Value) -> bool:
    return has_type(value.type, URL) or fold(value.type) in _URL_TYPES


def _url_candidates(record: list[Value], lists: list[Locations], *, has_list: bool) -> list[Candidate]:
    """The URLs of a record as places. Of several the first is meant; of a kind that is not meant, none.

    Values of the type URL come first, and those of its subtypes, such as URL.us, only if there is none.
    """
    urls = [value for value in record if _is_url(value)]
    plain = [value for value in urls if fold(value.type) in _URL_TYPES]
    others = [value for value in urls if fold(value.type) not in _URL_TYPES]
    weight = max(parse_number(_first_attribute(lists, "urlWeight"), 0.0 if has_list else 1.0), 0.0)
    other = max(parse_number(_first_attribute(lists, "urlSubtypeWeight"), 0.0 if plain else weight), 0.0)
    found = []
    for values, first_weight in ((plain, weight), (others, other)):
        for number, value in enumerate(values):
            href = value.data.decode("utf-8", "replace")
            each = first_weight if number == 0 else 0.0
            attributes = (("mode", "legacy"), ("weight", str(each)), ("href", href))
            found.append(Candidate(href, each, Location(attributes), is_url=True))
    return found

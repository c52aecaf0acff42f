"""10320/loc: several locations of an identifier as XML, and the selection of one of them for a request.

    <locations chooseby="locatt,country,weighted">
      <location id="0" href="https://uk.example/" country="gb" weight="0"/>
      <location id="1" href="https://www1.example/" weight="1"/>
    </locations>

The name of the root element does not matter. Its children `location` and the old `loc_template` are used.

`find_locations` collects the locations of a handle: its own lists, included lists, its URLs, and those of its
namespace. The lookup function is an argument and returns public values only. The author of a list controls what is
looked up, so depth, number and size are limited; `Candidates.truncated` tells whether something was left out. Invalid
XML is ignored.

`select_location` applies the methods in the order of the list. Each filters the candidates; one that would remove all
of them is skipped. At the end weights decide. The only randomness is a number passed as an argument: the same request
with the same number gives the same location.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import quote

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, ancestor_prefixes, fold

from .errors import InvalidData
from .namespace import Namespace
from .record import Value, ascending
from .types import HS_NAMESPACE, LOCATIONS, URL_TYPES, Text, has_type, is_url_type
from .xml import Element, is_true, parse_xml


class Method(Enum):
    """A selection method."""

    LOCATT = "locatt"
    """By an attribute in the request."""
    ADDRESS = "address"
    """By the client's network."""
    COUNTRY = "country"
    """By the client's country."""
    SCORE = "score"
    """The highest `score`."""
    WEIGHTED = "weighted"
    """At random, in proportion to `weight`."""


DEFAULT_METHODS: Final = (Method.LOCATT, Method.ADDRESS, Method.COUNTRY, Method.SCORE, Method.WEIGHTED)
"""Methods, in order, if the list does not name any."""

_METHODS = {method.value: method for method in Method}


@dataclass(frozen=True, slots=True)
class Location:
    """One location of a list."""

    attributes: tuple[tuple[str, str], ...]
    """All attributes, in order."""

    def get(self, name: str) -> str | None:
        """An attribute, or None."""
        for key, value in self.attributes:
            if key == name:
                return value
        return None

    @property
    def href(self) -> str | None:
        """The URL."""
        return self.get("href")

    @property
    def href_template(self) -> str | None:
        """The URL with `{hdl}` for the handle; used if there is no `href`."""
        return self.get("href_template")


@dataclass(frozen=True, slots=True)
class Locations(Text):
    """A list of locations, parsed from its XML text."""

    root: Element = field(init=False, repr=False, compare=False)
    """The whole document."""
    choose_by: tuple[Method, ...] = field(init=False, compare=False)
    """Selection methods, in order; unknown ones are omitted."""
    locations: tuple[Location, ...] = field(init=False, compare=False)
    """The locations, in document order."""

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        root = parse_xml(self.to_bytes())
        locations = [Location(element.attributes) for element in root.elements("location", "loc_template")]
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "choose_by", _parse_methods(root))
        object.__setattr__(self, "locations", tuple(locations))

    def get(self, name: str) -> str | None:
        """An attribute of the list: `no_legacy`, `http_sc`, `include` …"""
        return self.root.get(name)


def _parse_methods(root: Element) -> tuple[Method, ...]:
    text = root.get("choose_by")
    if text is None:
        text = root.get("chooseby")
    if text is None:
        return DEFAULT_METHODS
    names = [name.strip().lower() for name in text.split(",")]
    return tuple([_METHODS[name] for name in names if name in _METHODS])


MAX_INCLUDE_DEPTH: Final = 20
"""Maximum depth of includes, as in deployed proxies."""

MAX_INCLUDES: Final = 100
"""Maximum number of records looked up per handle, for includes and namespaces."""

MAX_LOCATIONS: Final = 1_000
"""Maximum number of locations per handle, as in one list."""

MAX_LOCATION_LISTS: Final = 250
"""Maximum number of lists and namespaces parsed per handle: even an empty one takes time."""

MAX_LOCATION_BYTES: Final = 1 << 20
"""Maximum size in bytes of all XML parsed per handle: 0.1 s of work."""

MAX_PREFIX_LEVELS: Final = 32
"""Maximum number of parent prefixes whose namespaces are used."""

MAX_HREF_LENGTH: Final = 8_192
"""Maximum length in characters of a URL from a template, as for an attribute in XML."""

RecordLookup: TypeAlias = Callable[[str], Iterable[Value] | None]
"""Returns the public values of a record; None if there is no such record here."""

_PATH_SAFE: Final = "-._~!$()*,:@/;="


@dataclass(frozen=True, slots=True)
class Candidate:
    """A location that can be selected."""

    href: str
    """The URL."""
    weight: float
    """Relative probability of selection."""
    location: Location
    is_url: bool = False
    """Whether it is a URL value of the record instead of a location of a list."""
    from_namespace: bool = False
    """Whether it comes from the namespace."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """All locations of a handle and how to choose between them."""

    locations: tuple[Candidate, ...]
    """In order: own, included, URLs, from the namespace."""
    methods: tuple[Method, ...]
    lists: tuple[Locations, ...]
    """The lists that they came from."""
    truncated: bool
    """Whether a limit was exceeded and something was left out."""

    def get(self, name: str) -> str | None:
        """An attribute of the first list that has it."""
        return _first_attribute(self.lists, name)


def find_locations(
    handle: Handle, values: Iterable[Value], lookup: RecordLookup, *, is_alone: bool = False
) -> Candidates:
    """Collect the locations of a handle from the public values of its record.

    `is_alone` means that its namespace is known to have none.
    """
    record = [value for value in ascending(values) if value.is_public]
    if is_alone and len(record) <= MAX_LOCATIONS and not any(has_type(value.type, LOCATIONS) for value in record):
        return Candidates(tuple(_url_candidates(record, [], has_list=False)), DEFAULT_METHODS, (), truncated=False)
    collector = _LocationCollector(lookup)
    own = collector.find_lists(record)
    if not own and not any(_is_url(value) for value in record):
        return Candidates((), DEFAULT_METHODS, (), collector.truncated)  # the namespace alone gives no target
    lists = [*own, *collector.find_included(own)]
    # The record's lists decide about the namespace; all other attributes can come from either.
    more: list[Locations] = []
    if not is_true(_first_attribute(lists, "no_nslocs")):
        prefix = _first_attribute(lists, "overridePrefix") or handle.prefix
        more = collector.from_namespace(prefix, _first_attribute(lists, "nshdl"))
    replacements = _template_values(handle) if lists or more else {}
    candidates = [_make_candidate(location, replacements) for each in lists for location in each.locations]
    lists += more
    if not is_true(_first_attribute(lists, "no_legacy")):
        candidates += _url_candidates(record, lists, has_list=bool(own))
    candidates += [
        _make_candidate(location, replacements, from_namespace=True) for each in more for location in each.locations
    ]
    found = [each for each in candidates if each is not None]
    methods = next((each.choose_by for each in lists if _has_methods(each)), DEFAULT_METHODS)
    truncated = collector.truncated or len(found) > MAX_LOCATIONS
    return Candidates(tuple(found[:MAX_LOCATIONS]), methods, tuple(lists), truncated)


def expand_template(template: str, handle: Handle) -> str:
    """Insert a handle into a URL template: `{hdl}` fully encoded, `{hdl:path}` as a path."""
    return _fill_template(template, _template_values(handle))


def parse_number(text: str | None, missing: float) -> float:
    """Parse a weight or score; `missing` if it is not a number or too large."""
    if text is None or _NUMBER.fullmatch(text) is None:
        return missing
    number = float(text)
    return number if abs(number) <= _MAX_NUMBER else missing


# Stricter than float(), which also accepts `1_0` and digits of every script.
_NUMBER: Final = re.compile(r"\s*[-+]?(?:[0-9]{1,99}(?:\.[0-9]{0,99})?|\.[0-9]{1,99})(?:[eE][-+]?[0-9]{1,9})?\s*")
_MAX_NUMBER: Final = 1e9  # with larger ones, sums of weights would lose small ones


class _LocationCollector:
    """Looks up lists within the limits for one handle."""

    def __init__(self, lookup: RecordLookup) -> None:
        self._lookup = lookup
        self._records: dict[str, tuple[Value, ...]] = {}
        self._namespaces: dict[str, Namespace | None] = {}
        self._visited: set[str] = set()  # records whose lists were collected
        self._visited_namespaces: set[str] = set()  # namespaces whose lists were included
        self._size = self._list_count = 0
        self.truncated = False

    def find_lists(self, values: Iterable[Value]) -> list[Locations]:
        """The lists in a record."""
        lists = []
        for value in ascending(values):
            if not (value.is_public and has_type(value.type, LOCATIONS)):
                continue
            if not self._charge(value):
                break
            try:
                lists.append(Locations.from_bytes(value.data))
            except InvalidData:
                continue
        return lists

    def find_included(self, lists: Iterable[Locations]) -> list[Locations]:
        """The lists that others include, recursively."""
        included: list[Locations] = []
        pending = [(each, 0) for each in lists]
        while pending:
            including, depth = pending.pop(0)
            for name in self._included_handles(including, depth):
                more = self._load_lists(name)
                included += more
                pending += [(each, depth + 1) for each in more]
        return included

    def _load_lists(self, name: str) -> list[Locations]:
        """The lists of a record; empty if it was loaded before."""
        if fold(name) in self._visited:
            return []
        self._visited.add(fold(name))
        return self.find_lists(self._load_record(name))

    def _included_handles(self, including: Locations, depth: int) -> Iterator[str]:
        """The handles that a list includes, directly or through a namespace."""
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
        """The lists of a prefix and its parents, or of `fallback` if there are none."""
        names: list[str] = []
        above = islice(ancestor_prefixes(prefix), MAX_PREFIX_LEVELS)
        for each in (prefix, *above):
            namespace = self._namespace(f"{PREFIX_OF_PREFIXES}/{each}")
            if namespace is None:
                continue
            names += [locations.handle for locations in namespace.locations]
            if any(locations.without_parents for locations in namespace.locations):
                break
        if not names and fallback:
            names = [fallback]
        lists: list[Locations] = []
        for name in names:
            lists += self._load_lists(name)
        return [*lists, *self.find_included(lists)]

    def _namespace(self, name: str) -> Namespace | None:
        """The namespace in a record, parsed once."""
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
        """Charge for parsing the XML of a value; False if a limit is exceeded."""
        self._size += len(value.data)
        self._list_count += 1
        allowed = self._size <= MAX_LOCATION_BYTES and self._list_count <= MAX_LOCATION_LISTS
        self.truncated = self.truncated or not allowed
        return allowed

    def _load_record(self, name: str) -> tuple[Value, ...]:
        """A record, looked up once; empty if there is none or the limit is exceeded."""
        key = fold(name)
        if key not in self._records:
            if len(self._records) >= MAX_INCLUDES:
                self.truncated = True
                return ()
            self._records[key] = tuple(self._lookup(name) or ())
        return self._records[key]


def _first_attribute(lists: Iterable[Locations], name: str) -> str | None:
    """An attribute of the first list that has it."""
    return next((value for each in lists if (value := each.get(name)) is not None), None)


def _included_names(including: Locations, name: str) -> Iterator[str]:
    """The handles in an attribute or in elements of this name."""
    texts = (including.get(name) or "", *[element.text for element in including.root.elements(name)])
    yield from filter(None, map(str.strip, texts))


def _has_methods(each: Locations) -> bool:
    return each.get("choose_by") is not None or each.get("chooseby") is not None


def _template_values(handle: Handle) -> dict[str, str]:
    """The placeholders in templates and their replacements."""
    name = str(handle)
    return {"{hdl:path}": quote(name, safe=_PATH_SAFE), "{hdl}": quote(name, safe="")}


def _fill_template(template: str, replacements: dict[str, str]) -> str:
    for placeholder, text in replacements.items():
        template = template.replace(placeholder, text)  # the text has no braces and is not replaced again
    return template


def _expanded_length(template: str, replacements: dict[str, str]) -> int:
    return len(template) + sum(
        template.count(placeholder) * (len(text) - len(placeholder)) for placeholder, text in replacements.items()
    )


def _make_candidate(
    location: Location, replacements: dict[str, str], *, from_namespace: bool = False
) -> Candidate | None:
    """A location as a candidate; None if it has no URL or a too long one."""
    href, template = location.href, location.href_template
    if href is None and template is not None and _expanded_length(template, replacements) <= MAX_HREF_LENGTH:
        href = _fill_template(template, replacements)
    if href is None:
        return None
    return Candidate(href, max(parse_number(location.get("weight"), 1.0), 0.0), location, from_namespace=from_namespace)


def _is_url(value: Value) -> bool:
    return is_url_type(value.type)


def _url_candidates(record: list[Value], lists: list[Locations], *, has_list: bool) -> list[Candidate]:
    """The URL values of a record as candidates. By default only the first one of type URL has a weight.

    Subtypes such as URL.us have a weight only if there is no value of type URL.
    """
    urls = [value for value in record if _is_url(value)]
    plain = [value for value in urls if fold(value.type) in URL_TYPES]
    others = [value for value in urls if fold(value.type) not in URL_TYPES]
    weight = max(parse_number(_first_attribute(lists, "urlWeight"), 0.0 if has_list else 1.0), 0.0)
    other = max(parse_number(_first_attribute(lists, "urlSubtypeWeight"), 0.0 if plain else weight), 0.0)
    candidates = []
    for values, first_weight in ((plain, weight), (others, other)):
        for number, value in enumerate(values):
            href = value.data.decode("utf-8", "replace")
            each = first_weight if number == 0 else 0.0
            attributes = (("mode", "legacy"), ("weight", str(each)), ("href", href))
            candidates.append(Candidate(href, each, Location(attributes), is_url=True))
    return candidates


MAX_NETWORKS: Final = 100
"""Maximum number of networks per location; others are ignored."""

MAX_TOTAL_NETWORKS: Final = 2_000
"""Maximum number of networks of all locations: some hundredths of a second of work."""

MAX_CACHED_ADDRESSES: Final = 256
"""Addresses of clients that are parsed once: those that send many requests at a time."""

Address: TypeAlias = IPv4Address | IPv6Address
_CandidateTuple: TypeAlias = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SelectionCriteria:
    """Properties of a request that affect the selection."""

    attributes: tuple[tuple[str, str | None], ...] = ()
    """`locatt`: attributes with their required value, or None for any, most important first."""
    country: str | None = None
    """Country code of the client, if known."""
    address: Address | None = None
    """Address of the client, if it should be used."""


@dataclass(frozen=True, slots=True)
class SelectedLocation:
    """The selected location."""

    candidate: Candidate
    by: Method | None
    """The method that decided; None if there was only one candidate."""


def parse_locatt(text: str) -> tuple[str, str | None]:
    """Parse `ATTRIBUTE:VALUE`, or an attribute alone."""
    name, colon, value = text.partition(":")
    return name, value if colon else None


def select_location(candidates: Candidates, criteria: SelectionCriteria, number: float) -> SelectedLocation | None:
    """Select the location for a request; None if there is none. `number` is random, 0 ≤ number < 1."""
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{number} is not a random number in 0 ≤ number < 1")
    remaining, by = candidates.locations, None
    for method in (*candidates.methods, Method.WEIGHTED):
        if len(remaining) <= 1:
            break
        matching = _apply_method(method, remaining, criteria, number)
        if matching and len(matching) < len(remaining):
            remaining, by = matching, method
    return SelectedLocation(remaining[0], by) if remaining else None


def _apply_method(
    method: Method, candidates: _CandidateTuple, criteria: SelectionCriteria, number: float
) -> _CandidateTuple:
    """Filter candidates by a method; all of them if it does not apply."""
    match method:
        case Method.LOCATT:
            return _by_attributes(candidates, criteria)
        case Method.ADDRESS:
            return candidates if criteria.address is None else _by_address(candidates, criteria.address)
        case Method.COUNTRY:
            return candidates if criteria.country is None else _by_country(candidates, criteria.country)
        case Method.SCORE:
            scores = [parse_number(candidate.location.get("score"), 0.0) for candidate in candidates]
            highest = max(scores)
            return tuple([candidate for candidate, score in zip(candidates, scores, strict=True) if score == highest])
    return (_by_weight(candidates, number),)


def _by_attributes(candidates: _CandidateTuple, criteria: SelectionCriteria) -> _CandidateTuple:
    """Filter by attributes; an attribute that no candidate has is ignored."""
    for name, value in criteria.attributes:
        matching = [candidate for candidate in candidates if _has_attribute(candidate, name, value)]
        candidates = tuple(matching) or candidates
    return candidates


def _has_attribute(candidate: Candidate, name: str, value: str | None) -> bool:
    actual = candidate.location.get(name)
    return actual is not None and value in (None, actual)


def _by_address(candidates: _CandidateTuple, address: Address) -> _CandidateTuple:
    known = {address, _unmap_ipv4(address)}
    remaining = MAX_TOTAL_NETWORKS
    matching = []
    for candidate in candidates:
        text = candidate.location.get("addresses")
        limit = min(remaining, MAX_NETWORKS)
        networks = text.split(",", limit)[:limit] if text else []
        remaining -= len(networks)
        if any(_contains(network, known) for network in networks):
            matching.append(candidate)
    return tuple(matching)


def _contains(network: str, addresses: set[Address]) -> bool:
    try:
        parsed = ip_network(network.strip(), strict=False)
    except ValueError:
        return False
    return any(address in parsed for address in addresses)


def _unmap_ipv4(address: Address) -> Address:
    """Convert `::ffff:192.0.2.1`, as dual-stack sockets report it, to IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _by_country(candidates: _CandidateTuple, country: str) -> _CandidateTuple:
    """Candidates of the country; if there are none, those without a country."""
    countries = [(candidate.location.get("country") or "").strip().lower() for candidate in candidates]
    expected = country.strip().lower()
    if expected not in countries:
        expected = ""
    return tuple([candidate for candidate, code in zip(candidates, countries, strict=True) if code == expected])


def _by_weight(candidates: _CandidateTuple, number: float) -> Candidate:
    """Choose one candidate in proportion to the weights; with equal probability if all are zero."""
    total = sum(candidate.weight for candidate in candidates)
    if total <= 0.0:
        return candidates[int(number * len(candidates))]
    point = number * total
    for candidate in candidates:
        point -= candidate.weight
        if point < 0.0:
            return candidate
    # Rounding can leave a remainder, which belongs to the last candidate with a weight.
    return next(candidate for candidate in reversed(candidates) if candidate.weight > 0.0)


@lru_cache(MAX_CACHED_ADDRESSES)
def parse_address(text: str) -> Address | None:
    """Parse an IP address; None if it is invalid."""
    try:
        return ip_address(text.strip())
    except ValueError:
        return None

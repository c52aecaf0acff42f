"""Which locations a handle has: its own lists, those that they include, its URLs, and those of its namespace.

Records are looked up by a function that is an argument, so this is the same for the present and the past, for a proxy
and for tests. It answers what everybody may read. Whoever writes a list decides what is looked up, hence the limits: in
depth against lists that include each other, in number against wide ones, in octets against long ones. What is beyond
them is left out, and `cut` says so. XML that cannot be read counts as if it were not there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote

from perseid.names import Handle, prefixes
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES

from .errors import InvalidData
from .locations import DEFAULT_METHODS, Location, Locations, Method
from .namespace import Namespace, namespace_of
from .record import ascending
from .types import LOCATIONS, URL, has_type
from .value import Value
from .xml import is_yes

MAX_INCLUDES_DEEP: Final = 20
"""How many includes are followed from one to the next, as deployed proxies do."""

MAX_INCLUDES: Final = 100
"""Records that are looked up for one handle: what is included, and the namespaces."""

MAX_LOCATIONS: Final = 1_000
"""Locations that are chosen between; as many as one list can have."""

MAX_LOCATION_LISTS: Final = 250
"""Lists that are read for one handle: even an empty one takes its time."""

MAX_LOCATION_OCTETS: Final = 1 << 20
"""Octets of XML that are read for one handle, its own included: a tenth of a second of work."""

MAX_PREFIX_LEVELS: Final = 32
"""Prefixes above one whose namespaces are looked at."""

LookUp: TypeAlias = Callable[[str], Iterable[Value] | None]
"""The values of a record that everybody may read; None if there is no such record here."""

_KEPT_IN_PATHS: Final = "-._~!$()*,:@/;="
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


@dataclass(frozen=True, slots=True)
class Candidates:
    """All places of a handle, and how to choose between them."""

    places: tuple[Candidate, ...]
    """In the order of their writing: own, included, URLs, of the namespace."""
    methods: tuple[Method, ...]
    lists: tuple[Locations, ...]
    """The lists that they came from."""
    cut: bool
    """Whether something was left out because it was too much."""

    def get(self, name: str) -> str | None:
        """An attribute of the lists: the first that has it counts."""
        return next((found for each in self.lists if (found := each.get(name)) is not None), None)


def find_locations(handle: Handle, values: Iterable[Value], look_up: LookUp) -> Candidates:
    """The places of a handle whose record has these values; only public ones are looked at."""
    record = [value for value in ascending(values) if value.is_public]
    gathering = _Gathering(look_up)
    own = gathering.lists_of(record)
    if not own and not any(_is_url(value) for value in record):
        return Candidates((), DEFAULT_METHODS, (), gathering.cut)  # what leads nowhere by itself is led nowhere
    lists = [*own, *gathering.included(own)]
    named = {name: next(filter(None, (each.get(name) for each in lists)), None) for name in _DECIDING}
    found = [_candidate(location, handle) for each in lists for location in each.locations]
    if not is_yes(named["no_legacy"]):
        found += _urls(record, named, has_list=bool(own))
    if not is_yes(named["no_nslocs"]):
        more = gathering.of_namespace(named["overridePrefix"] or handle.prefix, named["nshdl"])
        found += [_candidate(location, handle) for each in more for location in each.locations]
        lists += more
    places = [place for place in found if place is not None]
    methods = next((each.choose_by for each in lists if _says_how(each)), DEFAULT_METHODS)
    cut = gathering.cut or len(places) > MAX_LOCATIONS
    return Candidates(tuple(places[:MAX_LOCATIONS]), methods, tuple(lists), cut)


def expand(template: str, handle: Handle) -> str:
    """A template of a URL with the handle in it: `{hdl}` all encoded, `{hdl:path}` as a path."""
    name = str(handle)
    return template.replace("{hdl:path}", quote(name, safe=_KEPT_IN_PATHS)).replace("{hdl}", quote(name, safe=""))


def read_number(text: str | None, missing: float) -> float:
    """A weight or a score; what is no number, or no sensible one, counts as if it were missing."""
    try:
        number = float(text or "")
    except ValueError:
        return missing
    return number if abs(number) <= _LARGEST else missing


_DECIDING: Final = ("no_legacy", "no_nslocs", "nshdl", "overridePrefix", "urlWeight", "urlSubtypeWeight")
_LARGEST: Final = 1e9  # beyond it sums of weights would lose the small ones


class _Gathering:
    """Looks lists up, as far as that is allowed for one handle."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._looked_up: dict[str, tuple[Value, ...]] = {}
        self._octets = self._lists = 0
        self.cut = False

    def lists_of(self, values: Iterable[Value]) -> list[Locations]:
        """The lists in a record."""
        found = []
        for value in ascending(values):
            if not (value.is_public and has_type(value.type, LOCATIONS)):
                continue
            self._octets += len(value.data)
            self._lists += 1
            if self._octets > MAX_LOCATION_OCTETS or self._lists > MAX_LOCATION_LISTS:
                self.cut = True
                break
            try:
                found.append(Locations.from_bytes(value.data))
            except InvalidData:
                continue
        return found

    def included(self, lists: Iterable[Locations]) -> list[Locations]:
        """The lists that others include, and those that these include; each record counts once."""
        found: list[Locations] = []
        met: set[str] = set()
        waiting = [(each, 0) for each in lists]
        while waiting:
            including, depth = waiting.pop(0)
            for name in self._names(including, depth):
                if fold(name) in met:
                    continue
                met.add(fold(name))
                more = self.lists_of(self._record(name))
                found += more
                waiting += [(each, depth + 1) for each in more]
        return found

    def _names(self, including: Locations, depth: int) -> Iterator[str]:
        """The handles whose lists a list includes, directly or by the namespace that it names."""
        direct = list(_named(including, "include"))
        spaces = list(_named(including, "includeNamespace"))
        if depth >= MAX_INCLUDES_DEEP:
            self.cut = self.cut or bool(direct or spaces)
            return
        yield from direct
        for name in spaces:
            namespace = self._namespace(name)
            yield from () if namespace is None else (each.handle for each in namespace.locations)

    def of_namespace(self, prefix: str, fallback: str | None) -> list[Locations]:
        """The lists of a prefix and of those that it is derived from, or of the given handle if there are none."""
        names: list[str] = []
        above = list(prefixes.ancestors(prefix))[:MAX_PREFIX_LEVELS]
        for each in (prefix, *filter(None, above)):
            namespace = self._namespace(f"{PREFIX_OF_PREFIXES}/{each}")
            if namespace is None:
                continue
            names += [locations.handle for locations in namespace.locations]
            if any(locations.without_parents for locations in namespace.locations):
                break
        if not names and fallback:
            names = [fallback]
        found: list[Locations] = []
        for name in dict.fromkeys(names):
            found += self.lists_of(self._record(name))
        return [*found, *self.included(found)]

    def _namespace(self, name: str) -> Namespace | None:
        return namespace_of([value for value in self._record(name) if value.is_public])

    def _record(self, name: str) -> tuple[Value, ...]:
        """A record, looked up once; empty if there is none, or if too many were looked up."""
        key = fold(name)
        if key not in self._looked_up:
            if len(self._looked_up) >= MAX_INCLUDES:
                self.cut = True
                return ()
            self._looked_up[key] = tuple(self._look_up(name) or ())
        return self._looked_up[key]


def _named(including: Locations, what: str) -> Iterator[str]:
    """The handles that a list names, in an attribute or in elements."""
    written = (including.get(what) or "", *[element.text for element in including.root.elements(what)])
    yield from filter(None, map(str.strip, written))


def _says_how(each: Locations) -> bool:
    return each.get("choose_by") is not None or each.get("chooseby") is not None


def _candidate(location: Location, handle: Handle) -> Candidate | None:
    """A location as a place; None if it does not say where it is."""
    href = location.href
    if href is None and location.href_template is not None:
        href = expand(location.href_template, handle)
    if href is None:
        return None
    return Candidate(href, max(read_number(location.get("weight"), 1.0), 0.0), location)


def _is_url(value: Value) -> bool:
    return has_type(value.type, URL) or fold(value.type) in _URL_TYPES


def _urls(record: list[Value], named: dict[str, str | None], *, has_list: bool) -> list[Candidate]:
    """The URLs of a record as places. Of several the first is meant; of a kind that is not meant, none.

    Values of the type URL come first, and those of its subtypes, such as URL.us, only if there is none.
    """
    urls = [value for value in record if _is_url(value)]
    plain = [value for value in urls if fold(value.type) in _URL_TYPES]
    others = [value for value in urls if fold(value.type) not in _URL_TYPES]
    weight = max(read_number(named["urlWeight"], 0.0 if has_list else 1.0), 0.0)
    other = max(read_number(named["urlSubtypeWeight"], 0.0 if plain else weight), 0.0)
    found = []
    for values, most in ((plain, weight), (others, other)):
        for number, value in enumerate(values):
            href = value.data.decode("utf-8", "replace")
            each = most if number == 0 else 0.0
            attributes = (("mode", "legacy"), ("weight", str(each)), ("href", href))
            found.append(Candidate(href, each, Location(attributes), is_url=True))
    return found

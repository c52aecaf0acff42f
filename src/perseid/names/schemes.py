"""Finding a scheme: by name, built in or installed by third parties, and by the shape of a handle.

A third party's package declares an entry point in the group `perseid.schemes`; its object is called with the
options of the policy as keyword arguments and returns a `Scheme`:

    [project.entry-points."perseid.schemes"]
    ark = "example_ark:ArkScheme"
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from .cordra import CordraScheme
from .errors import InvalidName, NameMisuse
from .handle import Handle
from .pattern import PatternScheme
from .pilin import PilinCheckScheme, PilinScheme
from .suffix_scheme import Scheme
from .uuids import UuidScheme

ENTRY_POINT_GROUP = "perseid.schemes"

_BUILT_IN: dict[str, Callable[..., Scheme]] = {
    kind.name: kind for kind in (PilinScheme, PilinCheckScheme, CordraScheme, UuidScheme, PatternScheme)
}

# Tried in this order: the more a shape demands, the earlier. `pattern` has no shape of its own.
_RECOGNIZABLE: tuple[Scheme, ...] = (CordraScheme(), UuidScheme(), PilinCheckScheme(), PilinScheme())


def scheme_names() -> list[str]:
    """Every scheme that can be named, the built-in ones first."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - _BUILT_IN.keys()
    return [*_BUILT_IN, *sorted(others)]


def load_scheme(name: str, **options: object) -> Scheme:
    """The scheme of that name with these options. Third parties add names; they cannot replace built-in ones."""
    factory = _BUILT_IN.get(name) or _load_plugin(name)
    try:
        return factory(**options)
    except TypeError as error:
        raise NameMisuse("P8", f"the scheme {name!r} does not take these options: {error}") from error


def recognize(handle: Handle) -> Scheme | None:
    """The built-in scheme a handle looks like. This is advice: only its namespace knows what a name is (U6)."""
    for scheme in _RECOGNIZABLE:
        try:
            scheme.validate(handle)
        except InvalidName:
            continue
        return scheme
    return None


def _load_plugin(name: str) -> Callable[..., Scheme]:
    points = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not points:
        raise NameMisuse("P8", f"there is no scheme {name!r}; there are {', '.join(scheme_names())}")
    point = next(iter(points))
    try:
        return cast("Callable[..., Scheme]", point.load())
    except (ImportError, AttributeError) as error:
        message = f"the scheme {name!r} is installed but does not load ({point.value}): {error}"
        raise NameMisuse("P8", message) from error

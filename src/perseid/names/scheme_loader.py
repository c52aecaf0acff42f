"""Suffix schemes: lookup by name, built-in and third-party, and recognition by the form of a handle.

Third-party packages declare an entry point in the group `perseid.schemes`. Its object is called with the options of
the policy as keyword arguments and returns a `Scheme`:

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
from .schemes import Scheme
from .uuids import UuidScheme

ENTRY_POINT_GROUP = "perseid.schemes"

_BUILT_IN: dict[str, Callable[..., Scheme]] = {
    kind.name: kind for kind in (PilinScheme, PilinCheckScheme, CordraScheme, UuidScheme, PatternScheme)
}

# In order of specificity. `pattern` has no form of its own.
_RECOGNIZABLE: tuple[Scheme, ...] = (CordraScheme(), UuidScheme(), PilinCheckScheme(), PilinScheme())


def scheme_names() -> list[str]:
    """Names of all available schemes, built-in ones first."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - _BUILT_IN.keys()
    return [*_BUILT_IN, *sorted(others)]


def load_scheme(name: str, **options: object) -> Scheme:
    """Load a scheme by name with its options. Plugins cannot replace built-in schemes."""
    factory = _BUILT_IN.get(name) or _load_plugin(name)
    try:
        return factory(**options)
    except TypeError as error:
        raise NameMisuse("P8", f"invalid options for the scheme {name!r}: {error}") from error


def recognize(handle: Handle) -> Scheme | None:
    """Guess the built-in scheme of a handle. Only its namespace knows for sure (U6)."""
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
        raise NameMisuse("P8", f"unknown scheme {name!r}; available schemes: {', '.join(scheme_names())}")
    point = next(iter(points))
    try:
        return cast("Callable[..., Scheme]", point.load())
    except (ImportError, AttributeError) as error:
        message = f"the scheme {name!r} is installed but cannot be loaded ({point.value}): {error}"
        raise NameMisuse("P8", message) from error

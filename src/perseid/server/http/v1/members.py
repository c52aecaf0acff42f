r"""Members and texts of JSON that the decoder passes over, or says nothing useful about.

Of a member that stands twice in an object one reader takes the first, another the last. What was meant nobody knows, so
it is refused. So is half of a surrogate pair, `"\ud800"`, which JSON can write and UTF-8 cannot.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from perseid.registry.access.permissions import shown

MAX_PATH: Final = 400
"""Characters of a path, after which it ends: bodies may be nested deeply."""

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


Steps = Sequence[str | int]
"""A place: the names of members, and the numbers of items, on the way to it."""


class _Twice(dict[str, Any]):
    """An object in which a member stands twice."""

    __slots__ = ("name",)

    def __init__(self, plain: dict[str, Any], name: str) -> None:
        super().__init__(plain)
        self.name = name
        """The member."""


def given_twice(body: bytes) -> tuple[str, str] | None:
    """Path and name of a member that stands twice in JSON that has been read before; None if there is none.

    It takes about as long as reading the JSON in Python: a millisecond for the values of a thousand names. A body of
    1 MiB of nothing but tiny objects takes a quarter of a second and 30 MB, if one of the last is such a one.
    """
    is_found = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_found
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        is_found = True
        return _Twice(plain, _repeated([name for name, _ in pairs]))

    # What numbers say does not matter here, and reading long ones would cost more than the rest.
    plain = json.loads(body.decode(), object_pairs_hook=made, parse_int=str, parse_float=str)
    if not is_found:
        return None
    for steps, each in _parts(plain):
        if isinstance(each, _Twice):
            return _path([*steps, each.name]), each.name
    return None


def half_character(body: bytes) -> str | None:
    """The path of a text with half of a surrogate pair, in what may be JSON; None if there is none."""
    if _HALF.search(body) is None:
        return None
    try:
        plain = json.loads(body.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    for steps, each in _parts(plain):
        if isinstance(each, str) and _SURROGATE.search(each):
            return _path(steps)
        if isinstance(each, dict) and any(map(_SURROGATE.search, each)):
            return _path(steps)
    return None


def _repeated(names: Sequence[str]) -> str:
    """The first name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is there twice")


def _parts(plain: Any) -> Iterator[tuple[Steps, Any]]:
    """Everything in a plain object and the way to it, which counts until the next; what holds others comes before them.

    There may be a million of them, so nothing is kept of those that have been passed.
    """
    steps: list[str | int] = []
    yield steps, plain
    inside = [_items(plain)]
    while inside:
        following = next(inside[-1], None)
        if following is None:
            inside.pop()
            if inside:
                steps.pop()
            continue
        step, each = following
        steps.append(step)
        yield steps, each
        if isinstance(each, dict | list):
            inside.append(_items(each))
        else:
            steps.pop()


def _items(plain: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(plain, dict):
        return iter(plain.items())
    return enumerate(plain) if isinstance(plain, list) else iter(())


def _path(steps: Steps) -> str:
    """A way as people read it, as far as there is room for it."""
    path = "$"
    for step in steps:
        if len(path) >= MAX_PATH:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{shown(step)}"
    return path

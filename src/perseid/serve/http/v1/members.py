r"""Members and texts of JSON that the decoder passes over, or says nothing useful about.

Of a member that stands twice in an object one reader takes the first, another the last. What was meant nobody knows, so
it is refused. So is half of a surrogate pair, `"\ud800"`, which JSON can write and UTF-8 cannot.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

MAX_NAME: Final = 80
"""Characters of the name of a member in a path: enough to find it again."""

MAX_PATH: Final = 400
"""Characters of a path, after which it ends: bodies may be nested deeply, and every step of such a path is kept."""

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Twice(dict[str, Any]):
    """An object in which a member stands twice."""

    name = ""


def given_twice(body: bytes) -> tuple[str, str] | None:
    """Path and name of a member that stands twice in JSON that has been read before; None if there is none.

    It takes about as long as reading the JSON in Python: half a millisecond for the values of a thousand names, and up
    to two tenths of a second for a body of 1 MiB, of nothing but tiny objects.
    """
    found: list[_Twice] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        twice = _Twice(plain)
        twice.name = _repeated([name for name, _ in pairs])
        found.append(twice)
        return twice

    # What numbers say does not matter here, and reading long ones would cost more than the rest.
    plain = json.loads(body.decode(), object_pairs_hook=made, parse_int=str, parse_float=str)
    if not found:
        return None
    return next((_named(path, each.name), each.name) for path, each in _parts(plain) if isinstance(each, _Twice))


def half_character(body: bytes) -> str | None:
    """The path of a text with half of a surrogate pair, in what may be JSON; None if there is none."""
    if _HALF.search(body) is None:
        return None
    try:
        plain = json.loads(body.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    for path, each in _parts(plain):
        if isinstance(each, str) and _SURROGATE.search(each):
            return path
        if isinstance(each, dict) and any(map(_SURROGATE.search, each)):
            return path
    return None


def _repeated(names: Sequence[str]) -> str:
    """The first name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is there twice")


def _parts(plain: Any) -> Iterator[tuple[str, Any]]:
    """Everything in a plain object with its path, the outermost first; without recursion."""
    level = [("$", plain)]
    while level:
        yield from level
        below: list[tuple[str, Any]] = []
        for path, each in level:
            if isinstance(each, dict):
                below.extend([(_named(path, name), value) for name, value in each.items()])
            elif isinstance(each, list):
                below.extend([(_longer(path, f"[{number}]"), value) for number, value in enumerate(each)])
        level = below


def _named(path: str, name: str) -> str:
    return _longer(path, f".{_SURROGATE.sub(chr(0xFFFD), name[:MAX_NAME])}")


def _longer(path: str, step: str) -> str:
    return f"{path}{step}" if len(path) < MAX_PATH else path

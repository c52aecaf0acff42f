"""Access as a picture: which identity has which role, through which groups. It shows the data of the table beside it.

Like the plots (`pages.plot`), it needs no script and no style attribute, is drawn in `currentColor`, and has a title
and a description for readers who do not see it.
"""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

from perseid.schema.access import Access, AccessEntry
from perseid.server.http.pages.texts import _

from .advice import get_words

MAX_IDENTITIES: Final = 30
"""Identities in the picture; more lines cannot be followed. The table has all."""

WIDTH: Final = 560
"""In units of the drawing. On a phone one scrolls, so that the labels are legible."""

_ROW: Final = 40
_BOX_HEIGHT: Final = 34
_BOX_WIDTH: Final = 172
_COLUMNS: Final = (0, 194, 388)  # identities, groups, prefix or record
_MAX_LABEL: Final = 24  # characters in a box; the whole text is its tooltip

_Node = tuple[str, str]  # its kind, and its text


def draw_access(access: Access) -> Markup:
    """Draw identities on the left, groups and settings in the middle, and the prefix or record on the right."""
    shown = [entry for entry in access.entries if entry.identity in _identities(access.entries)]
    identities = list(dict.fromkeys([entry.identity for entry in shown]))
    groups = list(dict.fromkeys([group for entry in shown for group in _path(entry)]))
    height = max(len(identities), len(groups), 1) * _ROW
    lefts, middles = _rows(len(identities), height), _rows(len(groups), height)
    places = {("i", name): (_COLUMNS[0], y) for name, y in zip(identities, lefts, strict=True)}
    places |= {("g", name): (_COLUMNS[1], y) for name, y in zip(groups, middles, strict=True)}
    target = ("t", access.on)
    places[target] = (_COLUMNS[2], height / 2)
    edges = dict.fromkeys([edge for entry in shown for edge in _edges(entry, target)])
    lines = "".join([_line(places[start], places[end]) for start, end in edges])
    roles = {name: ", ".join(_roles(shown, name)) for name in identities}
    boxes = "".join([_box(places[key], key[1], roles[key[1]] if key[0] == "i" else "") for key in places])
    return Markup(  # noqa: S704 - every text is escaped
        f'<svg class="access-picture" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" fill="currentColor" '
        f'font-size="11" aria-labelledby="access-title access-desc">'
        f'<title id="access-title">{escape(_("Who can do what with {on}").format(on=access.on))}</title>'
        f'<desc id="access-desc">{escape(_describe(shown))}</desc>{lines}{boxes}</svg>'
    )


def count_omitted(access: Access) -> int:
    """The number of identities that are only in the table."""
    return len({entry.identity for entry in access.entries}) - len(_identities(access.entries))


def _identities(entries: Sequence[AccessEntry]) -> list[str]:
    return list(dict.fromkeys([entry.identity for entry in entries]))[:MAX_IDENTITIES]


def _path(entry: AccessEntry) -> tuple[str, ...]:
    """What is between the prefix or record and the identity."""
    return (entry.setting,) if entry.setting else entry.groups


def _edges(entry: AccessEntry, target: _Node) -> list[tuple[_Node, _Node]]:
    nodes: list[_Node] = [target, *[("g", group) for group in _path(entry)], ("i", entry.identity)]
    return list(zip(nodes[1:], nodes[:-1], strict=True))


def _roles(entries: Sequence[AccessEntry], identity: str) -> list[str]:
    found = [
        get_words()[entry.role.value] if entry.role else _("permissions")
        for entry in entries
        if entry.identity == identity
    ]
    return list(dict.fromkeys(found))


def _describe(entries: Sequence[AccessEntry]) -> str:
    return "; ".join(
        [" → ".join([entry.identity, *_path(entry)[::-1], *_roles([entry], entry.identity)]) for entry in entries]
    )


def _rows(count: int, height: int) -> list[float]:
    """The centers of rows that are spread over the height."""
    return [height * (number + 0.5) / count for number in range(count)]


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = start, end
    if x == to_x:  # a group in a group
        x, to_x = x + _BOX_WIDTH, to_x + _BOX_WIDTH
        bend, to_bend = x + 16, to_x + 16
    else:
        x += _BOX_WIDTH
        bend = to_bend = (x + to_x) / 2
    return (
        f'<path d="M{x:.0f} {y:.0f}C{bend:.0f} {y:.0f} {to_bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}" '
        f'fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
    )


def _box(place: tuple[float, float], label: str, role: str) -> str:
    x, y = place
    short = label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…"
    baseline = y - 2 if role else y + 4
    below = f'<text x="{x + 6:.0f}" y="{y + 11:.0f}" opacity="0.75">{escape(role)}</text>' if role else ""
    return (
        f"<g><title>{escape(f'{label}: {role}' if role else label)}</title>"
        f'<rect x="{x + 0.5:.1f}" y="{y - _BOX_HEIGHT / 2:.1f}" width="{_BOX_WIDTH - 1}" height="{_BOX_HEIGHT}" rx="5" '
        f'fill-opacity="0.06" stroke="currentColor" stroke-opacity="0.35"/>'
        f'<text x="{x + 6:.0f}" y="{baseline:.0f}">{escape(short)}</text>{below}</g>'
    )

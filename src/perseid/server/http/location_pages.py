"""All places of a name: as XML, as deployed resolvers show them (§10.6), and with the reason why one of them is chosen.

The XML is made of attributes that strangers wrote, and a browser would act on some of them. So names with a colon and
declarations of namespaces are left out: without those it is data, and nothing else.
"""

import re
from typing import Final
from xml.sax.saxutils import quoteattr

from perseid.names.characters import fold
from perseid.records.data_types import interpret
from perseid.records.json_parsing import JsonObject, write_json
from perseid.records.locations import Candidate, Candidates
from perseid.records.types import LOCATIONS, URL, has_type
from perseid.records.value import Value
from perseid.wire.codes import ResponseCode

from . import json_answers
from .messages import Response
from .negotiation import Wish
from .redirecting import Known, Led, Wanted

XML_TYPE: Final = "text/xml;charset=utf-8"
TEXT_TYPE: Final = "text/plain;charset=utf-8"

_ROOT: Final = "locations"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What no document of XML 1.0 may hold, escaped or not.
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_URL_TYPES: Final = (URL, f"0.TYPE/{URL}")


def as_xml(candidates: Candidates, values: tuple[Value, ...], name: str) -> Response:
    """All places, one to a line; of URL values those of the kind that would be used."""
    root = candidates.lists[0].root.name if candidates.lists else _ROOT
    root = root if _NAME.fullmatch(root) else _ROOT
    lines = [f"<{root}>", *[_element(place) for place in _shown(candidates, values)], f"</{root}>", ""]
    body = "\n".join(lines).encode("utf-8")
    return Response(200, (("Content-Type", XML_TYPE),), body, code=ResponseCode.SUCCESS, name=name)


def explained(known: Known, aliases: tuple[str, ...], wanted: Wanted, led: Led, *, text: bool) -> Response:
    """Why a request would be sent where it would be sent; as text for people, or as JSON."""
    plain = _explanation(known, aliases, wanted, led)
    body = _as_text(plain).encode("utf-8") if text else json_answers.encoded(plain)
    type_ = TEXT_TYPE if text else json_answers.JSON
    return Response(200, (("Content-Type", type_),), body, code=ResponseCode.SUCCESS, name=str(known.handle))


def _shown(candidates: Candidates, values: tuple[Value, ...]) -> list[Candidate]:
    plain = sum(value.is_public and fold(value.type) in _URL_TYPES for value in values)
    found = []
    urls = 0
    for place in candidates.places:
        urls += place.is_url
        if not place.is_url or not plain or urls <= plain:
            found.append(place)
    return found


def _element(place: Candidate) -> str:
    attributes = dict(place.location.attributes)
    attributes["href"] = place.href
    written = [
        f"{name}={quoteattr(_NO_XML.sub(_REPLACED, value))}"
        for name, value in attributes.items()
        if _NAME.fullmatch(name) and name != "xmlns"
    ]
    return f"<location {' '.join(written)}/>"


def _explanation(known: Known, aliases: tuple[str, ...], wanted: Wanted, led: Led) -> JsonObject:
    candidates, chosen = known.candidates, led.chosen
    places: list[object] = [
        {
            "href": place.href,
            "weight": place.weight,
            "from": "URL value" if place.is_url else "location",
            "attributes": dict(place.location.attributes),
            "unsuitable": led.unsuitable.get(place.href),
            "chosen": chosen is not None and place is chosen.place,
        }
        for place in candidates.places
    ]
    by = None
    if chosen is not None:
        by = "the only one" if chosen.by is None else chosen.by.value
    return {
        "handle": str(known.handle),
        "aliases": list(aliases),
        "location": None if led.target is None else led.target.location,
        "status": None if led.target is None else led.status,
        "statusFrom": None if led.target is None else led.status_from,
        "chosenBy": by,
        "methods": [method.value for method in candidates.methods],
        "wishes": [_wish(wish) for wish in wanted.wishes.attributes],
        "places": places,
        "unreadableLists": [value.index for value in known.values if _is_unreadable(value)],
        "tooMany": candidates.cut,
    }


def _is_unreadable(value: Value) -> bool:
    """Whether a list of locations counts as if it were not there."""
    return has_type(value.type, LOCATIONS) and interpret(value) is None


def _as_text(plain: JsonObject) -> str:
    """The same for people: what strangers wrote stands behind its name, each on a line of its own."""
    lines = []
    for key, value in plain.items():
        if not isinstance(value, list):
            lines.append(f"{key}: {_line(value)}")
            continue
        lines.append(f"{key}:{'' if value else ' none'}")
        lines += [f"  {_line(item)}" for item in value]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    """A value on one line; what could be taken for another line, or would not show, is escaped."""
    return value if isinstance(value, str) and value.isprintable() else write_json(value)


def _wish(wish: Wish) -> str:
    name, value = wish
    return name if value is None else f"{name}:{value}"

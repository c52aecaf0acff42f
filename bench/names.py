"""What names cost: parsing, the URI forms, suffixes. Each for a usual name and for one beyond ASCII."""

from collections.abc import Callable, Iterator
from functools import partial

from perseid.names import pilin
from perseid.names.cordra import CordraName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri, to_host, to_http, to_path

ASCII = "102.100.272/D7J1G0DQH"
OTHER = "10.1234/Bücher/Жуковский-2007"
CORDRA = "100.102/F58FB49EB1F848f0A606E84CEF294BE5"
MILLISECONDS = 13_409_306_090_919
RESOLVER = Resolver.parse("https://hdl.handle.net")


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure."""
    return {
        "handle parse": partial(Handle.parse, ASCII),
        "handle parse, not ASCII": partial(Handle.parse, OTHER),
        "handle from octets": partial(Handle.from_bytes, ASCII.encode()),
        "handle for look-up": partial(Handle.parse_lenient, ASCII.encode()),
        **dict(_uri_forms(ASCII, "")),
        **dict(_uri_forms(OTHER, ", not ASCII")),
        "PILIN encode": partial(pilin.encode, MILLISECONDS),
        "PILIN decode": partial(pilin.decode, "D7J1G0DQH"),
        "CORDRA parse": partial(CordraName.parse, Handle.parse(CORDRA)),
    }


def _uri_forms(name: str, remark: str) -> Iterator[tuple[str, Callable[[], object]]]:
    reference = Reference(Handle.parse(name))
    forms: dict[str, Callable[[], str]] = {
        "path": partial(to_path, reference),
        "host": partial(to_host, reference),
        "http": partial(to_http, reference, RESOLVER),
    }
    for form, encode in forms.items():
        yield f"URI encode, {form}{remark}", encode
    for form, encode in forms.items():
        yield f"URI decode, {form}{remark}", partial(parse_uri, encode(), [RESOLVER])

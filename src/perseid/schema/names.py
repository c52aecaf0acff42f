"""Syntax of handles and suffixes. The responses are computed here: they need nothing but the syntax."""

import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

import msgspec

from perseid.names import pilin
from perseid.names.cordra import CordraScheme, join_reference, split_reference
from perseid.names.errors import InvalidName, load_rules
from perseid.names.handle import Handle
from perseid.names.scheme_loader import recognize
from perseid.names.schemes import Source
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, to_host, to_http, to_path

from .common import Doc, RequestBody, ResponseBody

ANY_PREFIX: Final = "0"
"""Schemes read whole handles; for a suffix alone any prefix will do."""

_MAX_TEXT: Final = 8_000  # a longer text does not fit into the head of a request


class Form(StrEnum):
    """A form of a handle."""

    HANDLE = "handle"
    HOST = "host"
    PATH = "path"
    HTTP = "http"


class Scheme(StrEnum):
    """A suffix scheme that can be recognized by form."""

    PILIN = "pilin"
    PILIN_CHECK = "pilin-check"
    CORDRA = "cordra"
    UUID = "uuid"


class ConversionScheme(StrEnum):
    """A suffix scheme whose names convert in a way of their own."""

    CORDRA = "cordra"


Text = Annotated[
    str,
    Doc(
        "A handle in any form: a bare handle, a `hdl:` URI, or a URL of a known resolver.",
        min_length=1,
        max_length=_MAX_TEXT,
        examples=["hdl:102.100.272/D7J1G0DQH"],
    ),
]

Resolvers = Annotated[
    tuple[str, ...],
    Doc(
        "Additional resolvers whose URLs are accepted; can be repeated.",
        max_length=10,
        examples=[["http://example.org/hdl"]],
    ),
]


Strict = Annotated[
    bool, Doc("Accept only exact URIs: `hdl:PREFIX/SUFFIX`, `hdl://PREFIX/SUFFIX`, and URLs of known resolvers.")
]


class TextQuery(RequestBody, frozen=True):
    """A handle, and additional resolvers."""

    text: Text
    resolver: Resolvers = ()
    strict: Strict = False


class ConversionQuery(RequestBody, frozen=True):
    """A handle and the form to convert it to."""

    text: Text
    to: Annotated[Form, Doc("The new form.", examples=["path"])]
    resolver: Annotated[str, Doc("The resolver for the form `http`.", examples=["http://example.org/hdl"])] = ""
    scheme: Annotated[
        ConversionScheme | None,
        Doc("`cordra`: query and fragment are part of the name; its path is written in uppercase."),
    ] = None
    strict: Strict = False


class PilinQuery(RequestBody, frozen=True):
    """A time."""

    at: Annotated[
        str, Doc("The time in ISO 8601, by default in UTC; now if omitted.", examples=["2007-09-17T07:14:50.919Z"])
    ] = ""


class CordraQuery(RequestBody, frozen=True):
    """A UUID version."""

    version: Annotated[Literal[1, 4], Doc("4: random; 1: time with a random node.", examples=[4])] = 4


class SchemeQuery(RequestBody, frozen=True):
    """A suffix, and the scheme to check."""

    suffix: Annotated[
        str,
        Doc(
            "The suffix: the part after the first slash of a handle.",
            min_length=1,
            max_length=_MAX_TEXT,
            examples=["D7J1G0DQH"],
        ),
    ]
    scheme: Annotated[Scheme | None, Doc("The scheme; recognized by form if omitted.")] = None
    prefix: Annotated[str, Doc("The prefix, for schemes that restrict it.", min_length=1, max_length=200)] = ANY_PREFIX


Query = Annotated[str | None, Doc("The query of a URI; not part of the handle.")]

Fragment = Annotated[str | None, Doc("The fragment of a URI; not part of the handle.")]


class ParsedName(ResponseBody, frozen=True):
    """A parsed handle."""

    handle: Annotated[str, Doc("The handle, normalized by its scheme.", examples=["12345/x"])]
    spelling: Annotated[str, Doc("The handle in the spelling of the input.")]
    prefix: Annotated[str, Doc("The part before the first slash.", examples=["12345"])]
    suffix: Annotated[str, Doc("The part after the first slash.", examples=["x"])]
    query: Query = None
    fragment: Fragment = None
    scheme: Annotated[
        str | None, Doc("The scheme, recognized by form. Only the policy of the namespace is authoritative.")
    ] = None
    details: Annotated[dict[str, Any], Doc("What the scheme can derive from the suffix.")] = msgspec.field(
        default_factory=dict
    )


class ConvertedName(ResponseBody, frozen=True):
    """A converted handle."""

    form: Annotated[Form, Doc("The form.", examples=["path"])]
    name: Annotated[str, Doc("The handle in that form.", examples=["hdl:12345/x"])]
    query: Query = None
    fragment: Fragment = None


class NameForms(ResponseBody, frozen=True):
    """All forms of a handle."""

    handle: Annotated[str, Doc("The bare handle.", examples=["12345/x"])]
    host: Annotated[str, Doc("As a `hdl://` URI.", examples=["hdl://12345/x"])]
    path: Annotated[str, Doc("As a `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[list[str], Doc("As URLs of the resolvers of this server and the global resolver.")]


class Rule(ResponseBody, frozen=True):
    """A rule that problems refer to."""

    rule: Annotated[str, Doc("The id of the rule.", examples=["H3"])]
    title: Annotated[str, Doc("The subject.")]
    text: Annotated[str, Doc("The text of the rule.")]


class Rules(ResponseBody, frozen=True):
    """All rules that problems refer to."""

    rules: Annotated[list[Rule], Doc("The rules.")]


class PilinSuffix(ResponseBody, frozen=True):
    """A PILIN suffix and its time."""

    suffix: Annotated[str, Doc("Nine characters.", examples=["D7J1G0DQH"])]
    milliseconds: Annotated[int, Doc("Milliseconds since 1582-10-15T00:00:00Z.")]
    time: Annotated[str, Doc("The time in ISO 8601.", examples=["2007-09-17T07:14:50.919Z"])]


class CordraSuffix(ResponseBody, frozen=True):
    """A CORDRA suffix."""

    suffix: Annotated[str, Doc("32 hexadecimal digits.")]
    version: Annotated[int, Doc("The UUID version.")]
    uuid: Annotated[str, Doc("The UUID with hyphens.")]


class SuffixCheck(ResponseBody, frozen=True):
    """The result of a suffix check."""

    suffix: Annotated[str, Doc("The suffix as given.")]
    scheme: Annotated[str | None, Doc("The scheme; null if none is recognized.")]
    valid: Annotated[bool, Doc("Whether the suffix is valid in the scheme.")]
    normal: Annotated[str, Doc("The normalized suffix.")] = ""
    details: Annotated[dict[str, Any], Doc("What the scheme can derive from the suffix.")] = msgspec.field(
        default_factory=dict
    )
    reason: Annotated[str, Doc("What is wrong.")] = ""
    rule: Annotated[str, Doc("The id of the broken rule.", examples=["P7"])] = ""
    where: Annotated[str, Doc("The invalid part: `suffix` or `prefix`.", examples=["suffix"])] = ""
    position: Annotated[int | None, Doc("The invalid character of that part, counted from 1.")] = None


def parse_name(reference: Reference) -> ParsedName:
    """Describe a parsed handle; the scheme is a guess from its form."""
    original = reference.handle
    scheme = recognize(original)
    handle = original if scheme is None else scheme.normalize(original)
    return ParsedName(
        str(handle),
        str(original),
        handle.prefix,
        handle.suffix,
        reference.query,
        reference.fragment,
        None if scheme is None else scheme.name,
        {} if scheme is None else dict(scheme.describe(original)),
    )


def convert_name(
    reference: Reference, form: Form, resolver: Resolver | None, scheme: ConversionScheme | None = None
) -> ConvertedName:
    """Convert a handle to another form; the resolver is for `http`.

    Query and fragment belong to the local name of a CORDRA identifier, and in the URI forms to the URI (C2, U6).
    """
    is_cordra = scheme is ConversionScheme.CORDRA
    if is_cordra:
        reference = split_reference(reference)
    convert: dict[Form, Callable[[Reference], str]] = {
        Form.HANDLE: lambda each: str(join_reference(each) if is_cordra else each.handle),
        Form.HOST: to_host,
        Form.PATH: to_path,
        Form.HTTP: lambda each: to_http(each, resolver or KNOWN_RESOLVERS[0]),
    }
    return ConvertedName(form, convert[form](reference), reference.query, reference.fragment)


def to_pilin(milliseconds: int) -> PilinSuffix:
    """Return the PILIN suffix of a time."""
    return PilinSuffix(pilin.encode(milliseconds), milliseconds, pilin.format_time(milliseconds))


def pilin_at(instant: datetime) -> PilinSuffix:
    """Return the PILIN suffix of a time, by default in UTC; raises `InvalidName`."""
    instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    milliseconds = pilin.from_time(instant)
    if not pilin.MIN_MILLISECONDS <= milliseconds < pilin.END_MILLISECONDS:
        first, last = pilin.format_time(pilin.MIN_MILLISECONDS), pilin.format_time(pilin.END_MILLISECONDS - 1)
        text = instant.isoformat().replace("+00:00", "Z")
        raise InvalidName("P3", f"{text} has no PILIN suffix: the first is for {first}, the last for {last}")
    return to_pilin(milliseconds)


def generate_cordra(version: Literal[1, 4], source: Source) -> CordraSuffix:
    """Generate a CORDRA suffix."""
    scheme = CordraScheme(version)
    (suffix,) = scheme.mint(source)
    return CordraSuffix(suffix, version, str(scheme.describe(Handle(ANY_PREFIX, suffix))["uuid"]))


@cache
def rules() -> dict[str, dict[str, str]]:
    """Title and text of each rule by its id, in the order of letters and numbers."""
    own: dict[str, dict[str, str]] = tomllib.loads(
        files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    )
    every = {**load_rules(), **own}
    letters = list(dict.fromkeys(key[0] for key in every))
    return dict(sorted(every.items(), key=lambda item: (letters.index(item[0][0]), int(item[0][1:]))))

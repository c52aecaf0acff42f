"""Names: whatever comes in, the parsers accept it or raise InvalidName; what they accept survives every round trip.

The first byte of the input says which check gets the rest. Text is UTF-8; bytes that are not become lone surrogates,
which is how malformed arguments and lines reach the parsers.
"""

import importlib
import re
import zlib
from collections.abc import Callable

from perseid.names import pilin
from perseid.names.cordra import CordraName
from perseid.names.errors import InvalidName, NameMisuse, load_rules
from perseid.names.handle import CaseRule, Handle
from perseid.names.pilin import PilinCheckScheme
from perseid.names.scheme_loader import PatternScheme, recognize
from perseid.names.suggest import suggest
from perseid.names.uri import (
    KNOWN_RESOLVERS,
    Reference,
    Resolver,
    parse_uri,
    parse_user_input,
    to_host,
    to_http,
    to_path,
)

RULES = load_rules().keys()
BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
RESOLVER = Resolver.parse("http://example.org/hdl")
RESOLVERS = (RESOLVER, *KNOWN_RESOLVERS)

# The same code with lower bounds sees a hundred times as many inputs in the same time.
MAX_TRIES = 100
_bounds = importlib.import_module("perseid.names.suggest")
_bounds.MAX_TRIES, _bounds.MAX_CANDIDATES = MAX_TRIES, 500  # type: ignore[attr-defined]


def fuzz(data: bytes) -> None:
    """Run one check with one input."""
    if data:
        CHECKS[data[0] % len(CHECKS)](data[1:])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check_problem(problem: InvalidName | NameMisuse, text: str) -> None:
    """An error has an existing rule and a position inside the text, and is printable on any terminal."""
    assert problem.rule in RULES, problem
    assert problem.position is None or 0 <= problem.position <= len(text), problem
    assert str(problem).isprintable(), problem


def _accepted(text: str, parse: Callable[[str], Handle]) -> Handle | None:
    try:
        return parse(text)
    except InvalidName as problem:
        _check_problem(problem, text)
        return None


def _check_forms(reference: Reference) -> None:
    assert Handle.parse(str(reference.handle)) == reference.handle
    for uri in (to_path(reference), to_host(reference), to_http(reference, RESOLVER)):
        assert parse_uri(uri, RESOLVERS) == reference, uri
        assert parse_user_input(uri, RESOLVERS) == reference, uri


def _handle(data: bytes) -> None:
    text = _text(data)
    handle = _accepted(text, Handle.parse)
    if handle is None:
        return
    assert str(handle) == text
    assert Handle.from_bytes(handle.to_bytes()) == handle
    assert Handle.for_lookup(text) == handle
    assert Handle.parse_imported(text) == (handle, None)
    _check_forms(Reference(handle))


def _from_bytes(data: bytes) -> None:
    try:
        handle = Handle.from_bytes(data)
    except InvalidName as problem:
        _check_problem(problem, _text(data))
    else:
        assert handle.to_bytes() == data


def _for_lookup(data: bytes) -> None:
    """Looking up never raises."""
    handle = Handle.for_lookup(data)
    assert handle is None or handle.to_bytes() == data
    assert Handle.for_lookup(_text(data)) == handle


def _imported(data: bytes) -> None:
    for name in (data, _text(data)):
        try:
            handle, objection = Handle.parse_imported(name)
        except InvalidName as problem:
            _check_problem(problem, _text(data))
            assert Handle.for_lookup(name) is None
        else:
            assert handle.to_bytes() == data
            assert (objection is None) == (_accepted(str(handle), Handle.parse) is not None)


def _uri(data: bytes) -> None:
    text = _text(data)
    try:
        reference = parse_uri(text, RESOLVERS)
    except InvalidName as problem:
        _check_problem(problem, text)
        _check_lookup(text)
        return
    assert not BAD_ESCAPE.search(text)
    assert parse_uri(text, RESOLVERS, for_lookup=True) == reference
    assert parse_user_input(text, RESOLVERS) == reference
    _check_forms(reference)


def _check_lookup(text: str) -> None:
    """A name parsed for lookup only survives the round trip."""
    try:
        reference = parse_uri(text, RESOLVERS, for_lookup=True)
    except InvalidName as problem:
        _check_problem(problem, text)
        return
    assert not BAD_ESCAPE.search(text)
    assert Handle.for_lookup(str(reference.handle)) == reference.handle
    assert parse_uri(to_path(reference), for_lookup=True) == reference


def _human(data: bytes) -> None:
    text = _text(data)
    try:
        reference = parse_user_input(text, RESOLVERS)
    except InvalidName as problem:
        _check_problem(problem, text)
        return
    _check_forms(reference)


def _resolver(data: bytes) -> None:
    text = _text(data)
    try:
        resolver = Resolver.parse(text)
    except InvalidName as problem:
        _check_problem(problem, text)
        return
    assert Resolver.parse(str(resolver)) == resolver
    reference = Reference(Handle("10.1", "a/b"), "q", "f")
    assert parse_uri(to_http(reference, resolver), [resolver]) == reference


def _pilin(data: bytes) -> None:
    text = _text(data)
    try:
        milliseconds = pilin.decode(text)
    except InvalidName as problem:
        _check_problem(problem, text)
    else:
        assert pilin.encode(milliseconds) == text.upper()
    number = int.from_bytes(data[:6], "big")
    try:
        suffix = pilin.encode(number)
    except NameMisuse:
        assert not pilin.MIN_MILLISECONDS <= number < pilin.END_MILLISECONDS
    else:
        assert pilin.decode(suffix.lower()) == number


def _cordra(data: bytes) -> None:
    handle = _accepted(_text(data), Handle.parse)
    if handle is None:
        return
    try:
        name = CordraName.parse(handle)
    except InvalidName as problem:
        _check_problem(problem, str(handle))
        return
    assert CordraName.parse(name.handle) == name
    assert CordraName.parse(name.bare).path == name.path
    assert str(name.handle).upper() == str(handle).upper()


def _scheme(data: bytes) -> None:
    handle = _accepted(_text(data), Handle.parse)
    scheme = None if handle is None else recognize(handle)
    if handle is None or scheme is None:
        return
    preferred = scheme.normalize(handle)
    scheme.validate(preferred)
    assert scheme.normalize(preferred) == preferred
    assert scheme.describe(preferred) == scheme.describe(handle)


def _pattern(data: bytes) -> None:
    template, _, suffix = _text(data).partition("\n")
    try:
        pattern = PatternScheme(template)
    except NameMisuse as problem:  # a template is the policy's, so a bad one is our side's mistake
        _check_problem(problem, template)
        return
    for number in (0, pattern.capacity - 1):
        assert pattern.parse(pattern.format(number).lower()) == number
    for number in (-1, pattern.capacity):
        try:
            pattern.format(number)
        except NameMisuse as problem:
            _check_problem(problem, template)
        else:
            raise AssertionError("there is no name with this number")
    try:
        number = pattern.parse(suffix)
    except InvalidName as problem:
        _check_problem(problem, suffix)
    else:
        assert pattern.format(number) == suffix.upper()


def _suggest(data: bytes) -> None:
    """The work is limited and only valid names are suggested, whatever the input."""
    text = _text(data)
    tried = 0

    def exists(name: str) -> bool:
        nonlocal tried
        tried += 1
        return zlib.crc32(name.encode()) % 4 == 0

    scheme = PilinCheckScheme() if data[:1] == b"~" else None
    case = CaseRule.INSENSITIVE if data[1:2] == b"~" else CaseRule.SENSITIVE
    names = suggest(text, exists, scheme=scheme, case=case, limit=3)
    assert tried <= MAX_TRIES
    assert len(names) == len({case.key(Handle.parse(name)) for name in names}) <= 3
    assert text not in names
    for name in names:
        handle = Handle.parse(name)
        if scheme is not None:
            scheme.validate(handle)


CHECKS: list[Callable[[bytes], None]] = [
    _handle,
    _from_bytes,
    _for_lookup,
    _imported,
    _uri,
    _human,
    _resolver,
    _pilin,
    _cordra,
    _scheme,
    _pattern,
    _suggest,
]

_TYPICAL = (
    "102.100.272/D7J1G0DQH",
    "10.1000/a/b",
    "10.1000/Bücher?q#f%41",
    "hdl:10.1000/a%2Fb?q=%20#f",
    "HDL://10.1000/a%C3%BCb",
    "hdl:/10.1000/a/b",
    "info:doi/10.1000/1",
    "https://hdl.handle.net:443/10.1000/%E6%9B%B8",
    "http://example.org/hdl/10.1000/1#",
    "http://resolver.net.au/hdl/102.100.272/0N8J991QH",
    "http://[::1]:8000/hdl",
    "100.102/F58FB49EB1F848f0A606E84CEF294BE5?part=2#page/3",
    "20.500/f58fb49e-b1f8-48f0-a606-e84cef294be5",
    "D7J1G0DQH",
    "~(hdl:102.100.272/D7JIGODQHJ).",
    "~~hdl:102.100.272/D7JIGODQHJ",
    "hdl:1%/x",
    "hdl:10.1/a%?q",
    "\ufeff10.1/x",
    "TR-dddd\nTR-0042",
    "eeeek\n2b9fk",
)

SEEDS = [
    *(bytes([index]) + text.encode() for text in _TYPICAL for index in range(len(CHECKS))),
    *(bytes([CHECKS.index(_pattern)]) + b"e" * length for length in (2_046, 2_047, 4_000)),
    *(bytes([CHECKS.index(check)]) + b"hdl:" + b"%2F" * 5_000 + b"/x" for check in (_uri, _human, _suggest)),
]

WORDS = [
    *(b"hdl:", b"hdl://", b"doi:", b"info:hdl/", b"https://hdl.handle.net/", b"http://example.org/hdl/"),
    *(b"10.1/", b"%2F", b"%25", b"%3F", b"%C3%BC", b"%", b"/", b".", b"..", b"?", b"#", b" ", b"\n"),
    *(b"\xc2\xa0", b"\xe2\x80\xae", b"\xc5\xbf", b"\xc4\xb0", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"dddd", b"eeeek"),
]

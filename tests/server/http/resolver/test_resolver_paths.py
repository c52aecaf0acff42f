"""Paths of the resolver: declared forms, the server's own paths, and names as written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.names.uri import Reference, strip_scheme, to_host, to_http, to_path
from perseid.registry.installation.sections import RESERVED_SEGMENTS as OWN_SEGMENTS
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import BadRequest
from perseid.server.http.resolver.paths import (
    PAGES,
    RESERVED_SEGMENTS,
    RESOLVER_PARAMETERS,
    Action,
    OwnPage,
    RequestedName,
    UnknownPath,
    get_resolvers,
    is_bare,
    parse_action,
    parse_indexes,
    parse_path,
    parse_query,
    parse_search_input,
    path_to,
    strip_parameters,
)
from tests.strategies import handles

DEFAULT = HttpSettings()
ONLY_SEGMENTS = HttpSettings(bare=False, segments=("id", "hdl"))
SETTINGS = (DEFAULT, ONLY_SEGMENTS, HttpSettings(segments=()), HttpSettings("https://hdl.example.org"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", OwnPage("")),
        ("//", OwnPage("")),
        ("/help.html", OwnPage("help.html")),
        ("/robots.txt", OwnPage("robots.txt")),
        ("/favicon.ico", OwnPage("favicon.ico")),
        ("/resolver.json", OwnPage("resolver.json")),
        ("/static/perseid.css", OwnPage("static/perseid.css")),
        ("/static/x/y", OwnPage("static/x/y")),
        ("/generate", OwnPage("generate")),
        ("/generate/x", RequestedName("generate/x")),
        ("/timemap/link/12345/x%20", OwnPage("timemap/link/12345/x ")),
        ("/timemap", UnknownPath("timemap")),
        ("/12345/x", RequestedName("12345/x")),
        ("/12345%2Fx", RequestedName("12345/x")),
        ("/12345", RequestedName("12345")),
        ("/12345/x/", RequestedName("12345/x/")),
        ("/12345//x", RequestedName("12345//x")),
        ("/12345/a/../b", RequestedName("12345/a/../b")),
        ("//12345/x", RequestedName("12345/x")),
        ("/%2F12345/x", RequestedName("12345/x")),
        ("/%2012345/x%20", RequestedName("12345/x")),
        ("/12345/a+b", RequestedName("12345/a+b")),
        ("/12345/a;b=c", RequestedName("12345/a;b=c")),
        ("/12345/100%", RequestedName("12345/100%")),
        ("/12345/%C3%BC", RequestedName("12345/ü")),
        ("/12345/ü", RequestedName("12345/ü")),
        ("/hdl:12345/x", RequestedName("12345/x")),
        ("/HDL:12345%2Fx", RequestedName("12345/x")),
        ("/hdl:12345/a%252Fb", RequestedName("12345/a%2Fb")),
        ("/hdl:/12345/x", RequestedName("12345/x")),
        ("/hdl://12345/x", RequestedName("12345/x")),
        ("/doi:10.1/x", RequestedName("10.1/x")),
        ("/info:hdl/12345/x", RequestedName("12345/x")),
        ("/INFO:DOI/10.1/x", RequestedName("10.1/x")),
        ("/urn:hdl:12345:x", RequestedName("12345/x")),
        ("/urn:doi:10.1:a:b", RequestedName("10.1/a:b")),
        ("/urn:eidr:10.5240:x", RequestedName("10.5240/x")),
        ("/urn:hdl:12345/a:b", RequestedName("12345/a:b")),
        ("/hdl/12345/x", RequestedName("12345/x", "hdl")),
        ("/hdl%2F12345/x", RequestedName("12345/x", "hdl")),
        ("/hdl//12345/x", RequestedName("12345/x", "hdl")),
        ("/hdl/12345/x%20", RequestedName("12345/x ", "hdl")),
        ("/hdl/hdl/x", RequestedName("hdl/x", "hdl")),
        ("/hdl/api/handles/x", RequestedName("api/handles/x", "hdl")),
        ("/hdl/robots.txt", RequestedName("robots.txt", "hdl")),
        ("/hdl", OwnPage("")),
        ("/hdl/", OwnPage("")),
        ("/HDL/x", RequestedName("HDL/x")),
        ("/api/nothing", UnknownPath("api/nothing")),
        ("//api/handles/12345/x", UnknownPath("api/handles/12345/x")),
        ("/healthz/x", UnknownPath("healthz/x")),
        ("/robots.txt/x", RequestedName("robots.txt/x")),
    ],
)
def test_paths(path: str, expected: object) -> None:
    assert parse_path(path.encode(), DEFAULT) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", OwnPage("")),
        ("/12345/x", UnknownPath("12345/x")),
        ("/id/12345/x", RequestedName("12345/x", "id")),
        ("/hdl/12345/x", RequestedName("12345/x", "hdl")),
        ("/robots.txt", OwnPage("robots.txt")),
    ],
)
def test_undeclared_form_is_not_a_name(path: str, expected: object) -> None:
    assert parse_path(path.encode(), ONLY_SEGMENTS) == expected


def test_hdl_works_even_if_not_declared() -> None:
    assert parse_path(b"/hdl/12345/x", HttpSettings(segments=())) == RequestedName("12345/x", "hdl")


@pytest.mark.parametrize("path", [b"/12345/%zz", b"/12345/%0", b"/12345/%", b"/12345/a%00b"])
def test_invalid_escapes_are_refused_except_final_percent(path: bytes) -> None:
    if path.endswith(b"/%"):
        assert parse_path(path, DEFAULT) == RequestedName("12345/%")
        return
    with pytest.raises(BadRequest):
        parse_path(path, DEFAULT)


def test_invalid_utf_8_becomes_replacement_characters() -> None:
    assert parse_path(b"/12345/%FF", DEFAULT) == RequestedName("12345/\ufffd")


@given(handles(), st.sampled_from(SETTINGS), st.sampled_from(("", "hdl", "id")))
def test_path_to_name_round_trips(handle: Handle, settings: HttpSettings, segment: str) -> None:
    segment = segment if segment in settings.segments else ""
    path = path_to(str(handle), settings, segment)
    found = parse_path(path.encode("ascii"), settings)
    assert isinstance(found, RequestedName)
    assert found.name == str(handle)
    assert found.segment == segment or (not segment and found.segment == "hdl")
    assert not set(path) & set(' "<>\\^`{|}?#')
    assert not any(part in (".", "..", "") for part in path.split("/")[1:])


@pytest.mark.parametrize("name", ["hdl/x", "api/x", "static/x", "hdl:77/x", "robots.txt", "healthz", "help.html"])
def test_ambiguous_names_are_reached_under_hdl(name: str) -> None:
    assert not is_bare(name, DEFAULT)
    assert path_to(name, DEFAULT).startswith("/hdl/")


@pytest.mark.parametrize(
    ("name", "path"), [("12345/..", "/12345%2F.."), ("12345/.", "/12345%2F."), ("1/a/../b", "/1/a%2F..%2Fb")]
)
def test_dots_are_not_a_relative_path(name: str, path: str) -> None:
    assert path_to(name, DEFAULT) == path


def test_handle_without_slash_is_a_prefix() -> None:
    assert RequestedName("12345").handle == "0.NA/12345"
    assert RequestedName("12345/x").handle == "12345/x"


def test_scheme_after_segment_is_an_alternative() -> None:
    for name in ("hdl:12345/x", "hdl:/12345/x", "hdl://12345/x"):
        assert RequestedName(name, "hdl").alternative == RequestedName("12345/x", "hdl")
    assert RequestedName("12345/x", "hdl").alternative is None
    assert RequestedName("hdl:", "hdl").alternative is None


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("12345/x", "12345/x"),
        ("  12345/x\n", "12345/x"),
        ("\ufeff12345/x", "12345/x"),
        ("/12345/x", "12345/x"),
        ("hdl:12345/x", "12345/x"),
        ("hdl: 12345/x", "12345/x"),
        ("hdl:/102.100.272/Y35XYS0QH", "102.100.272/Y35XYS0QH"),
        ("hdl://12345/x", "12345/x"),
        ("hdl:12345/a%2Fb", "12345/a/b"),
        ("hdl:12345/a%252Fb", "12345/a%2Fb"),
        ("HDL:12345/%C3%BC", "12345/ü"),
        ("doi:12345/a%20b?x#y", "12345/a b"),
        ("urn:hdl:12345:x", "12345/x"),
        ("hdl:12345", "12345"),
        ("https://hdl.handle.net/12345?noredirect", "12345"),
        ("https://hdl.handle.net/12345%2Fa/b", "12345/a/b"),
        ("http://resolver.net.au/hdl/12345/x", "12345/x"),
        ("hdl.12345/x", "12345/x"),
        ("12345/http://hdl.example.org/1", "12345/http://hdl.example.org/1"),
        ("Handle: 12345/x", "12345/x"),
        ("info:hdl/12345/x", "12345/x"),
        ("https://hdl.handle.net/12345/x", "12345/x"),
        ("HTTP://hdl.example.org/12345/a%20b?noredirect#x", "12345/a b"),
        ("https://hdl.example.org/hdl/12345/x", "12345/x"),
        ("hdl.handle.net/12345/x", "12345/x"),
        ("12345/100%", "12345/100%"),
        ("12345/a%20b", "12345/a%20b"),  # a bare handle is literal
        ("12345/x?y#z", "12345/x?y#z"),
        ("12345", "12345"),
    ],
)
def test_typed_and_pasted_input(field: str, expected: str) -> None:
    found = parse_search_input(field, DEFAULT)
    assert found is not None
    assert found.name == expected


@given(handles())
def test_form_reads_every_printed_form(handle: Handle) -> None:
    reference = Reference(handle)
    own = HttpSettings("https://id.example.org/ids")
    for text in (to_path(reference), to_host(reference), *(to_http(reference, each) for each in get_resolvers(own))):
        found = parse_search_input(text, own)
        assert found is not None
        assert found.name == str(handle)


@pytest.mark.parametrize("field", ["hdl:12345/100%", "hdl:12345/%FF", "https://hdl.handle.net/12345/%zz"])
def test_form_refuses_invalid_escapes_in_uris(field: str) -> None:
    with pytest.raises(BadRequest):
        parse_search_input(field, DEFAULT)


def test_empty_input() -> None:
    assert parse_search_input("", DEFAULT) is None
    assert parse_search_input(" \n", DEFAULT) is None
    assert parse_search_input("https://hdl.handle.net/", DEFAULT) is None


@given(st.text(max_size=40))
def test_any_input_is_parsed_or_refused(field: str) -> None:
    try:
        found = parse_search_input(field, DEFAULT)
    except BadRequest:
        return
    assert found is None or found.name


@given(st.text(max_size=20))
def test_scheme_is_removed_once(name: str) -> None:
    assert strip_scheme(f"hdl://{name}") == name
    assert strip_scheme(f"info:doi/{name}") == name


# Parameters


def test_both_separators_work_and_plus_is_literal() -> None:
    found = parse_query(b"a=1;b=2&c=x+y&d=%26%3B;e&&;")
    assert found.pairs == (("a", "1"), ("b", "2"), ("c", "x+y"), ("d", "&;"), ("e", ""))


def test_invalid_indexes_are_ignored() -> None:
    found = parse_query(b"index=1&index=x&index=&index=-1&index=2&index=99999999999&index=4294967296&index=%C2%B2")
    assert parse_indexes(found) == (1, 2)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", None),
        (b"noredirect", Action.VALUES),
        (b"noredirect=false", Action.VALUES),
        (b"action=redirect&noredirect", Action.REDIRECT),
        (b"noredirect;action=showurls", Action.LOCATIONS),
        (b"action=nonsense", Action.REDIRECT),
        (b"action=", Action.REDIRECT),
        (b"action=api&action=showvalues", Action.API),
        (b"Noredirect", None),
    ],
)
def test_actions(query: bytes, expected: Action | None) -> None:
    assert parse_action(parse_query(query)) is expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", b""),
        (b"a=b", b"a=b"),
        (b"a=b;c&d", b"a=b;c&d"),
        (b"noredirect&a=b", b"a=b"),
        (b"a=b&noredirect;type=URL&c=%20d", b"a=b&c=%20d"),
        (b"typ%65=URL&a", b"a"),
        (b"noredirect&type=URL", b""),
    ],
)
def test_query_without_own_parameters(query: bytes, expected: bytes) -> None:
    assert strip_parameters(query) == expected


@given(
    st.lists(st.sampled_from((*sorted(RESOLVER_PARAMETERS), "x", "y", "%6E")), max_size=8), st.sampled_from(("&", ";"))
)
def test_other_parameters_keep_their_order(names: list[str], separator: str) -> None:
    expected = separator.join(name for name in names if name not in RESOLVER_PARAMETERS)
    assert strip_parameters(separator.join(names).encode()) == expected.encode()


def test_settings_cannot_declare_own_paths_as_segments() -> None:
    assert {name for name in RESERVED_SEGMENTS | PAGES if name.isalpha()} <= OWN_SEGMENTS

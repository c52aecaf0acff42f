"""Parsing, converting and checking handles and suffixes."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names import pilin
from perseid.schema.names import rules
from tests.cli.installation import call as cli
from tests.server.http.contexts import Harness, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.openapi_document import document

NAMES = [
    "12345/x",
    "hdl:102.100.272/d7j1g0dqh?a=b#c",
    "hdl://102.100.272/D7J1G0DQH",
    "https://hdl.handle.net/10.1000/a%2Fb",
    "http://resolver.net.au/hdl/102.100.272/8RBZF0DQH",
    "info:doi/10.1000/1",
    "2000.01/EEF4DF17361A42E2B975E554663B70C3",
    " 12345/é ",
    "12345/a b",
]
WRONG = ["12345", "/x", "12345/", "12345/\u202e", "hdl:12345/%zz", "https://example.org/12345/x", "12345/\U0001f600"]


@pytest.mark.parametrize("text", NAMES)
def test_handle_is_parsed_like_the_command(shared: Harness, text: str) -> None:
    found = got(send(shared, "GET", f"/names/parse?text={quote(text)}"))
    said = cli("name", "parse", text, "--json").json
    assert found == {key: value for key, value in said.items() if value not in (None, {})}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_handle_breaks_the_same_rule(shared: Harness, text: str) -> None:
    found = problem(send(shared, "GET", f"/names/parse?text={quote(text)}"), "invalid-name")
    done = cli("name", "parse", text)
    assert done.code == 2
    assert f"perseid name rules {found['rule']}" in done.err
    assert found["rule"] in rules()


@pytest.mark.parametrize("form", ["handle", "host", "path", "http"])
@pytest.mark.parametrize("text", NAMES)
def test_handles_are_converted_like_the_command(shared: Harness, text: str, form: str) -> None:
    found = got(send(shared, "GET", f"/names/convert?text={quote(text)}&to={form}"))
    said = cli("name", "convert", text, "--to", form, "--json").json
    assert found == {key: value for key, value in said.items() if value is not None}


def test_custom_resolver_is_accepted(shared: Harness) -> None:
    own = quote("http://example.org/hdl", safe="")
    found = got(send(shared, "GET", f"/names/convert?text=12345/x&to=http&resolver={own}"))
    assert found["name"] == "http://example.org/hdl/12345/x"
    address = quote(found["name"], safe="")
    assert got(send(shared, "GET", f"/names/parse?text={address}&resolver={own}"))["handle"] == "12345/x"
    assert problem(send(shared, "GET", f"/names/parse?text={address}"), "invalid-name")["rule"] == "U4"
    assert problem(send(shared, "GET", "/names/parse?text=1/2&resolver=x"), "invalid-request")["where"] == "resolver"


def test_strict_accepts_only_exact_uris(shared: Harness) -> None:
    assert got(send(shared, "GET", "/names/parse?text=hdl:12345/a%252Fb&strict=true"))["handle"] == "12345/a/b"
    for route in ("parse?", "forms?", "convert?to=path&"):
        found = problem(send(shared, "GET", f"/names/{route}text=12345/a&strict=true"), "invalid-name")
        assert (found["rule"], found["where"]) == ("U7", "text")
    assert problem(send(shared, "GET", "/find?owner=0.NA/12345&strict=true"), "invalid-name")["where"] == "owner"


def test_urls_of_this_server_are_accepted(shared: Harness) -> None:
    address = quote("https://hdl.example.org/hdl/12345/x", safe="")
    assert got(send(shared, "GET", f"/names/parse?text={address}"))["handle"] == "12345/x"


def test_all_forms_of_a_handle(shared: Harness) -> None:
    assert got(send(shared, "GET", "/names/forms?text=12345/a%252Fb")) == {
        "handle": "12345/a%2Fb",
        "host": "hdl://12345/a%252Fb",
        "path": "hdl:12345/a%252Fb",
        "http": [
            "https://hdl.example.org/12345/a%252Fb",
            "https://hdl.example.org/hdl/12345/a%252Fb",
            "https://hdl.handle.net/12345/a%252Fb",
        ],
    }


@given(st.text(min_size=1))
def test_any_text_is_answered(shared: Harness, text: str) -> None:
    shared.configure(api_requests_anonymous=0)
    try:
        written = quote(text)
    except UnicodeEncodeError:
        return
    for path in ("parse", "forms"):
        assert send(shared, "GET", f"/names/{path}?text={written}").status in (200, 400)
    for path in ("/suffixes/pilin/", "/names/rules/", "/namespaces/", "/types/"):
        assert send(shared, "GET", f"{path}{quote(text, safe='')}").status in (200, 400, 404)
    assert send(shared, "GET", f"/suffixes/check?suffix={written}").status in (200, 400)


# Rules


def test_rules_are_listed_and_shown(shared: Harness) -> None:
    listed = got(send(shared, "GET", "/names/rules"))["rules"]
    assert [each["rule"] for each in listed] == list(rules())
    assert got(send(shared, "GET", "/names/rules/h3")) == next(each for each in listed if each["rule"] == "H3")
    assert "H1" in problem(send(shared, "GET", "/names/rules/Z9"), "not-found")["advice"]


# Suffixes


@given(st.integers(pilin.MIN_MILLISECONDS, pilin.END_MILLISECONDS - 1))
def test_pilin_suffix_round_trip(shared: Harness, milliseconds: int) -> None:
    shared.configure(api_requests_anonymous=0)
    moment = pilin.format_time(milliseconds)
    found = got(send(shared, "GET", f"/suffixes/pilin?at={quote(moment)}"))
    assert found == {"suffix": pilin.encode(milliseconds), "milliseconds": milliseconds, "time": moment}
    assert got(send(shared, "GET", f"/suffixes/pilin/{found['suffix']}")) == found


def test_suffix_of_now_is_not_cached(shared: Harness) -> None:
    answer = send(shared, "GET", "/suffixes/pilin")
    assert header_of(answer, "Cache-Control") == "no-store"
    assert len(got(answer)["suffix"]) == 9


@pytest.mark.parametrize(("at", "slug"), [("soon", "invalid-request"), ("1500-01-01", "invalid-name")])
def test_times_without_a_suffix_are_refused(shared: Harness, at: str, slug: str) -> None:
    problem(send(shared, "GET", f"/suffixes/pilin?at={at}"), slug)


@pytest.mark.parametrize(("version", "digit"), [("", "4"), ("?version=4", "4"), ("?version=1", "1")])
def test_new_cordra_suffix(shared: Harness, version: str, digit: str) -> None:
    answer = send(shared, "GET", f"/suffixes/cordra{version}")
    found = got(answer)
    assert found["uuid"][14] == digit
    assert found["suffix"] == found["uuid"].replace("-", "").upper()
    assert header_of(answer, "Cache-Control") == "no-store"


def test_unsupported_uuid_version_is_refused(shared: Harness) -> None:
    assert problem(send(shared, "GET", "/suffixes/cordra?version=7"), "invalid-request")["where"] == "version"


def test_suffixes_are_checked(shared: Harness) -> None:
    right = got(send(shared, "GET", "/suffixes/check?suffix=d7j1g0dqh"))
    assert (right["scheme"], right["valid"], right["normal"]) == ("pilin", True, "D7J1G0DQH")
    wrong = got(send(shared, "GET", "/suffixes/check?suffix=D7J1O0DQH&scheme=pilin"))
    assert (wrong["valid"], wrong["rule"], wrong["position"]) == (False, "P7", 5)
    none = got(send(shared, "GET", "/suffixes/check?suffix=report-1"))
    assert (none["scheme"], none["valid"]) == (None, False)
    assert wrong["where"] == "suffix"


@pytest.mark.parametrize(("prefix", "position"), [("abc", 1), ("10.x", 4)])
def test_c1_prefix_is_checked_by_the_scheme(shared: Harness, prefix: str, position: int) -> None:
    path = f"/suffixes/check?suffix=F58FB49EB1F848f0A606E84CEF294BE5&scheme=cordra&prefix={prefix}"
    found = got(send(shared, "GET", path))
    assert (found["valid"], found["rule"]) == (False, "C1")
    assert (found["where"], found["position"]) == ("prefix", position)


@pytest.mark.parametrize(
    ("query", "where", "rule", "position"),
    [
        ("suffix=x&prefix=10/x", "prefix", "H2", 3),
        ("suffix=x&prefix=1..2", "prefix", "H2", 3),
        ("suffix=x&prefix=a%E2%80%AEb", "prefix", "H3", 2),
        ("suffix=a%E2%80%AEb&prefix=102", "suffix", "H3", 2),
        ("suffix=%20x", "suffix", "H3", 1),
    ],
)
def test_invalid_suffixes_and_prefixes_are_refused(
    shared: Harness, query: str, where: str, rule: str, position: int
) -> None:
    found = problem(send(shared, "GET", f"/suffixes/check?{query}"), "invalid-name")
    assert (found["where"], found["rule"]) == (where, rule)
    assert found["detail"].startswith(f"At character {position}: ")


def test_whole_handle_is_not_a_suffix(shared: Harness) -> None:
    found = got(send(shared, "GET", "/suffixes/check?suffix=102.100.272/D7J1G0DQH&scheme=pilin"))
    assert (found["valid"], found["where"]) == (False, "suffix")
    said = {each["name"]: each["description"] for each in parameters("checkSuffix")}
    assert "The suffix" in said["suffix"]


def parameters(operation: str) -> list[dict[str, Any]]:
    """The parameters of an operation, as they are described."""
    paths = document()["paths"].values()
    found = [said["parameters"] for each in paths for said in each.values() if said["operationId"] == operation]
    return list(found[0])


def test_c3_uuid_versions_are_described(shared: Harness) -> None:
    (version,) = [each["schema"] for each in parameters("cordraSuffix") if each["name"] == "version"]
    assert version["enum"] == [1, 4]
    for kind in (-1, 0, 2, 3, 5, 7):
        problem(send(shared, "GET", f"/suffixes/cordra?version={kind}"), "invalid-request")

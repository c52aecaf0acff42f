"""`perseid name`: parse and convert every form of a handle, with a reason for each error.

Tests of standard input run the installed program, because it opens its own streams.
"""

import json
from pathlib import Path

import pytest

from perseid.cli.names import RULES_WITHOUT_ERRORS
from perseid.names.errors import load_rules
from perseid.names.uri import KNOWN_RESOLVERS
from perseid.schema.names import rules as all_rules
from tests.cli.installation import call
from tests.cli.program import refused, run

FIELDS = ["handle", "spelling", "prefix", "suffix", "scheme", "details"]
CORDRA = "F58FB49EB1F848F0A606E84CEF294BE5"
CORDRA_MIXED_CASE = "F58FB49EB1F848f0A606E84CEF294BE5"


@pytest.mark.parametrize(
    "text",
    [
        "10.1000/a/b",
        "hdl:10.1000/a%2Fb",
        "HDL:10.1000/a%2fb",
        "hdl://10.1000/a%2Fb",
        "hdl:/10.1000/a%2Fb",
        "hdl:10.1000/a/b",
        "hdl: 10.1000/a/b",
        "doi:10.1000/a/b",
        "DOI: 10.1000/a/b",
        "info:hdl/10.1000/a%2Fb",
        "info:doi/10.1000/a/b",
        "http://hdl.handle.net:80/10.1000/a%2Fb",
        "HTTPS://HDL.HANDLE.NET:443/10.1000/a/b",
        " \t10.1000/a/b\u00a0\n",
        *(f"{resolver}/10.1000/a%2Fb" for resolver in KNOWN_RESOLVERS),
    ],
)
def test_parse_accepts_every_form(text: str) -> None:
    done = call("name", "parse", text, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "handle": "10.1000/a/b",
        "spelling": "10.1000/a/b",
        "prefix": "10.1000",
        "suffix": "a/b",
    }


@pytest.mark.parametrize(
    ("text", "scheme", "handle", "details"),
    [
        (
            "hdl:102.100.272/d7j1g0dqh",
            "pilin",
            "102.100.272/D7J1G0DQH",
            {"milliseconds": 13409306090919, "time": "2007-09-17T07:14:50.919Z"},
        ),
        (
            "102.100.272/D7J1G0DQHJ",
            "pilin-check",
            "102.100.272/D7J1G0DQHJ",
            {"milliseconds": 13409306090919, "time": "2007-09-17T07:14:50.919Z", "check": "J"},
        ),
        (
            f"http://arrow.resolver.au.gov:2641/hdl/100.102/{CORDRA_MIXED_CASE}",
            "cordra",
            f"100.102/{CORDRA}",
            {"path": CORDRA, "query": None, "fragment": None, "uuid": "f58fb49e-b1f8-48f0-a606-e84cef294be5"},
        ),
        (
            f"100.102/{CORDRA_MIXED_CASE}?q=a#f",
            "cordra",
            f"100.102/{CORDRA}?q=a#f",
            {"path": CORDRA, "query": "q=a", "fragment": "f", "uuid": "f58fb49e-b1f8-48f0-a606-e84cef294be5"},
        ),
        (
            "20.500/F58FB49E-B1F8-48F0-A606-E84CEF294BE5",
            "uuid",
            "20.500/f58fb49e-b1f8-48f0-a606-e84cef294be5",
            {"version": 4},
        ),
    ],
)
def test_parse_recognizes_schemes_and_shows_the_input_spelling(
    text: str, scheme: str, handle: str, details: dict[str, object]
) -> None:
    output = call("name", "parse", text, "--json").json
    assert list(output) == FIELDS
    assert output["scheme"] == scheme
    assert output["handle"] == handle
    assert f"{output['prefix']}/{output['suffix']}" == handle
    assert output["spelling"] in text
    assert output["spelling"].upper() == handle.upper()
    assert output["details"] == details


def test_parse_prints_one_field_per_line() -> None:
    assert call("name", "parse", f"hdl:100.102/{CORDRA_MIXED_CASE}?part=2#page3").out == (
        f"handle       100.102/{CORDRA}\n"
        f"spelling     100.102/{CORDRA_MIXED_CASE}\n"
        "prefix       100.102\n"
        f"suffix       {CORDRA}\n"
        "query        part=2\n"
        "fragment     page3\n"
        "scheme       cordra\n"
        f"cordra path  {CORDRA}\n"
        "cordra uuid  f58fb49e-b1f8-48f0-a606-e84cef294be5\n"
    )


def test_parse_reads_a_bare_handle_literally() -> None:
    """U7: nothing is decoded or removed."""
    output = call("name", "parse", "10.1000/50%25?q#f", "--json").json
    assert output["handle"] == "10.1000/50%25?q#f"
    assert not {"query", "fragment"} & output.keys()


def test_parse_separates_query_and_fragment_of_a_uri() -> None:
    output = call("name", "parse", "hdl:10.1000/50%25?q=%20#", "--json").json
    assert (output["handle"], output["query"], output["fragment"]) == ("10.1000/50%", "q=%20", "")


def test_parse_accepts_configured_resolvers() -> None:
    url = "https://id.example.org/hdl/10.1000/1"
    message = refused(call("name", "parse", "http://id.example.org/10.1000/1"), "U4")
    assert "'id.example.org' is not the address of a known resolver" in message
    resolvers = ("--resolver", "http://id.example.org/hdl", "--resolver", "http://other.example.org")
    assert call("name", "parse", url, *resolvers, "--json").json["handle"] == "10.1000/1"
    assert (
        call("name", "parse", "http://other.example.org/10.1000/2", *resolvers, "--json").json["handle"] == "10.1000/2"
    )


def test_unknown_resolver_is_reported_with_the_option() -> None:
    assert "--resolver" in call("name", "parse", "http://id.example.org/10.1000/1").err


@pytest.mark.parametrize("text", ["10.1000/Bücher", "10.1000/Жуковский", "10.1000/書", "10.1000/a b"])
@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
def test_non_ascii_names_are_printed_in_utf8(text: str, locale: str) -> None:
    """H4: the output is UTF-8 in every locale."""
    environ_ascii = {"LC_ALL": locale, "PYTHONIOENCODING": "ascii"}
    done = run("name", "parse", "-", stdin=f"{text}\n".encode(), environ=environ_ascii)
    assert done.out.splitlines()[0].split(maxsplit=1) == ["handle", text]


@pytest.mark.parametrize(
    ("to", "converted"),
    [
        ("handle", "10.1000/a/b?%"),
        ("host", "hdl://10.1000/a%2Fb%3F%25"),
        ("path", "hdl:10.1000/a%2Fb%3F%25"),
        ("http", "https://hdl.handle.net/10.1000/a%2Fb%3F%25"),
    ],
)
@pytest.mark.parametrize(
    "text",
    ["10.1000/a/b?%", "hdl://10.1000/a%2Fb%3F%25", "hdl:10.1000/a/b%3F%25", "https://doi.org/10.1000/a%2Fb%3f%25"],
)
def test_convert_from_every_form_to_every_form(text: str, to: str, converted: str) -> None:
    """U8."""
    done = call("name", "convert", text, "--to", to)
    assert (done.code, done.out, done.err) == (0, f"{converted}\n", "")


@pytest.mark.parametrize(
    ("to", "converted"),
    [
        ("handle", f"100.102/{CORDRA_MIXED_CASE}"),
        ("host", f"hdl://100.102/{CORDRA_MIXED_CASE}?part=2#page/3"),
        ("path", f"hdl:100.102/{CORDRA_MIXED_CASE}?part=2#page/3"),
        ("http", f"http://resolver.net.au/hdl/100.102/{CORDRA_MIXED_CASE}?part=2#page/3"),
    ],
)
def test_convert_preserves_spelling_query_and_fragment(to: str, converted: str) -> None:
    """U6: a CORDRA identifier keeps its spelling."""
    uri = f"hdl:100.102/{CORDRA_MIXED_CASE}?part=2#page/3"
    done = call("name", "convert", uri, "--to", to, "--resolver", "http://resolver.net.au/hdl/")
    assert (done.code, done.out) == (0, f"{converted}\n")
    left_out = "Left out, because it is not part of the handle: ?part=2#page/3\n"
    assert done.err == (left_out if to == "handle" else "")


@pytest.mark.parametrize("resolver", ["https://hdl.handle.net", "http://example.org/hdl", "http://[::1]:8000"])
def test_convert_writes_and_reads_urls_of_the_named_resolver(resolver: str) -> None:
    """U4."""
    url = f"{resolver}/10.1000/1"
    assert call("name", "convert", "10.1000/1", "--to", "http", "--resolver", resolver).out == f"{url}\n"
    assert call("name", "convert", url, "--to", "path", "--resolver", resolver).out == "hdl:10.1000/1\n"


@pytest.mark.parametrize(
    ("to", "converted"),
    [("handle", ""), ("host", "hdl://"), ("path", "hdl:"), ("http", "https://hdl.handle.net/")],
)
def test_c2_u6_convert_splits_and_joins_a_cordra_identifier(to: str, converted: str) -> None:
    name = "100.102/F58FB49EB1F848f0A606E84CEF294BE5?part=2#top"
    for form in ("", "hdl:", "hdl://", "http://hld.handle.net/"):
        done = call("name", "convert", form + name, "--to", to, "--scheme", "cordra")
        assert (done.code, done.out, done.err) == (0, f"{converted}{name.replace('f', 'F')}\n", "")
    done = call("name", "convert", "hdl:10.1000/a?q", "--to", to, "--scheme", "cordra")
    assert (done.code, done.out) == (2, "")
    assert "(rule C2)" in done.err


@pytest.mark.parametrize("command", [("parse",), ("convert", "--to", "path")])
def test_u7_strict_accepts_only_exact_uris(command: tuple[str, ...]) -> None:
    for text in ("hdl:10.1000/a%2Fb", "hdl://10.1000/a%2Fb", "https://doi.org/10.1000/a%2Fb"):
        assert call("name", *command, "--strict", text).code == 0
    for text, rule in (("10.1000/a", "U7"), ("hdl:10.1000/a/b", "U5"), ("hdl:/10.1000/a", "H1"), ("doi:1/a", "U7")):
        assert f"(rule {rule})" in call("name", *command, "--strict", text).err


def test_convert_prints_json_with_form_name_query_and_fragment() -> None:
    assert call("name", "convert", "hdl:10.1000/a?q", "--to", "handle", "--json").json == {
        "form": "handle",
        "name": "10.1000/a",
        "query": "q",
    }


LINES = b"""10.1000/1
no handle

hdl:10.1000/%zz
  hdl:10.1000/2
10.1000/\xff
10.1000/3"""


def test_invalid_line_is_reported_by_number_and_the_others_are_converted() -> None:
    done = run("name", "convert", "-", "--to", "path", stdin=LINES)
    assert done.code == 2
    assert done.out == "hdl:10.1000/1\nhdl:10.1000/2\nhdl:10.1000/3\n"
    errors = [line for line in done.err.splitlines() if line.startswith("perseid: ")]
    assert [line.split(":")[1] for line in errors] == [" line 2", " line 4", " line 6"]
    assert [line[-10:] for line in errors] == ["(rule H1)".rjust(10), "(rule U5)".rjust(10), "(rule H4)".rjust(10)]


def test_json_of_many_names_has_one_document_per_line() -> None:
    done = run("name", "parse", "-", "--json", stdin=b"10.1000/1\r\n10.1000/2\r\n")
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line)["suffix"] for line in done.out.splitlines()] == ["1", "2"]


def test_byte_order_mark_is_not_part_of_a_name() -> None:
    done = run("name", "convert", "-", "--to", "path", stdin="\ufeff10.1000/1\n10.1000/2\n".encode())
    assert (done.code, done.out, done.err) == (0, "hdl:10.1000/1\nhdl:10.1000/2\n", "")


@pytest.mark.parametrize("stdin", [b"\n  \n", "\ufeff\n".encode(), "\ufeff".encode()])
def test_empty_input_has_no_output(stdin: bytes) -> None:
    done = run("name", "parse", "-", stdin=stdin)
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("line", [b"10.1000/" + b"a" * 200_000, b"hdl:10.1000/a?" + b"q" * 200_000])
def test_overlong_line_is_refused_and_line_numbers_stay_correct(line: bytes) -> None:
    done = run("name", "convert", "-", "--to", "path", stdin=line + b"\n10.1000/2\nbad\n" + line)
    assert (done.code, done.out) == (2, "hdl:10.1000/2\n")
    errors = [line for line in done.err.splitlines() if line.startswith("perseid: ")]
    assert [line.split(":")[1] for line in errors] == [" line 1", " line 3", " line 4"]
    assert "line 1: At character 65537: the line has more than 65,536 characters" in errors[0]
    assert "more than 65,536 characters" in errors[2]


@pytest.mark.parametrize(
    ("text", "rule", "words"),
    [
        ("", "H1", "the name is empty"),
        ("10.1000", "H1", 'there is no "/"'),
        ("/a", "H1", "At character 1: the prefix"),
        ("10.1000/", "H1", "At character 9: the suffix"),
        ("10..1/a", "H2", "At character 4: the prefix has an empty segment"),
        ("10.1000/\U0001f600", "H3", "(U+1F600) is outside the Basic Multilingual Plane"),
        ("10.1000/" + "a" * 2041, "H9", "the handle has 2,049 bytes in UTF-8; the maximum is 2,048"),
        ("hdl:10.1000/100%", "U5", 'write a literal "%" as %25'),
        ("hdl:10.1000/%C3", "U5", "are not valid UTF-8"),
        ("hdl:10%2F1000/a", "H2", "At character 7: a prefix cannot contain"),
        ("https://example.org/10.1000/a", "U4", "'example.org' is not the address of a known resolver"),
    ],
)
def test_error_has_position_reason_and_rule(text: str, rule: str, words: str) -> None:
    assert words in refused(call("name", "parse", text), rule)


def test_rules_explains_every_rule() -> None:
    done = call("name", "rules")
    assert (done.code, done.err) == (0, "")
    assert done.out == "".join(f"{key}  {rule['title']}\n    {rule['text']}\n" for key, rule in all_rules().items())
    assert call("name", "rules", "--json").json == {
        "rules": [{"rule": key, **rule} for key, rule in all_rules().items()]
    }


def test_rules_explains_one_rule_in_either_case() -> None:
    assert call("name", "rules", "h3", "--json").json == {"rule": "H3", **all_rules()["H3"]}


def test_rule_without_errors_is_known_but_not_found() -> None:
    done = call("name", "rules", "c4")
    assert (done.code, done.out) == (3, "")
    assert done.err == "perseid: No error refers to rule C4; see docs/reference/names.md\n"
    assert not {*RULES_WITHOUT_ERRORS} & load_rules().keys()
    assert call("name", "rules", "H7", "--json").json["title"] == "One handle, one record", "cited by refusals"


def test_unknown_rule_is_not_found() -> None:
    done = call("name", "rules", "Z9")
    assert (done.code, done.out) == (3, "")
    assert done.err == f"perseid: Rule 'Z9' does not exist; the rules are {', '.join(all_rules())}\n"
    problem = json.loads(call("name", "rules", "Z9", "--json").err)
    assert (problem["type"], problem["exit_code"], "code" in problem) == ("/docs/problems#not-found", 3, False)


@pytest.mark.parametrize("words", ["name parse", "name convert --to handle", "name parse --strict"])
def test_url_of_the_own_installation_is_read(tmp_path: Path, words: str) -> None:
    (tmp_path / "perseid.toml").write_text('[http]\npublic_url = "https://id.example.org"\n')
    url, environ = "https://id.example.org/12345/x", {"PERSEID_DIR": str(tmp_path)}
    assert "12345/x" in call(*words.split(), url, environ=environ).out
    assert call(*words.split(), url).code == 2, "no installation is found"

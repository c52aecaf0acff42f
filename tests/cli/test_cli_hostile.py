"""Hostile arguments and input are refused with a message and never reach the terminal unescaped.

Every run checks that the output has no control characters and no tracebacks; see `program.finish`. Most run in this
process, with arguments decoded as the interpreter decodes them; one of each kind is a program of its own.
"""

import os

import pytest

from tests.cli import program
from tests.cli.installation import call
from tests.cli.program import Done, finish, refused


def run(*arguments: str | bytes) -> Done:
    """Run a command in this process."""
    done = call(*map(os.fsdecode, arguments))
    assert "Traceback" not in done.err, done.err
    return done


@pytest.mark.parametrize(
    "arguments",
    [
        ("name", "parse", b"10.1/\xff\xfe"),
        ("name", "parse", b"10.1/\x1b[31mred"),
        ("name", "rules", b"\xff\xfe"),
        ("suffix", "pilin", "--at", b"\x1b[31mred\x07"),
        (b"\xff\xfe",),
    ],
    ids=str,
)
def test_a_program_and_this_process_refuse_hostile_arguments_alike(arguments: tuple[str | bytes, ...]) -> None:
    alone, here = program.run(*arguments), run(*arguments)
    assert (alone.code, alone.out, alone.err) == (here.code, here.out, here.err)
    assert alone.code in (2, 3)


@pytest.mark.parametrize(
    ("text", "rule", "words"),
    [
        pytest.param(b"10.1/\xff\xfe", "H4", "At character 6: byte 0xFF of TEXT is not valid UTF-8", id="not UTF-8"),
        pytest.param(b"10.1/\xc3", "H4", "At character 6: byte 0xC3", id="UTF-8 cut off"),
        pytest.param(b"10.1/\xed\xa0\x80", "H4", "At character 6: byte 0xED", id="surrogate in UTF-8"),
        pytest.param(b"hdl:10.1/a?\xff", "H4", "At character 12: byte 0xFF", id="query not UTF-8"),
        pytest.param(b"hdl:10.1/a#\xff", "H4", "At character 12: byte 0xFF", id="fragment not UTF-8"),
        pytest.param(b"hdl:10.1/%ff\x1b[31m", "U5", "'%ff' are not valid UTF-8", id="color after a bad escape"),
        pytest.param(b"hdl:10.1/%1B[31m", "H3", "U+001B is a control character", id="escaped colour"),
        pytest.param(b"10.1/\x1b[31mred", "H3", "U+001B is a control character", id="colour"),
        pytest.param("10.1/\u009b31m".encode(), "H3", "U+009B is a control character", id="colour in one character"),
        pytest.param(b"10.1/a\nperseid: all is well", "H3", "U+000A is a control character", id="line feed"),
        pytest.param("10.1/a\u2028b".encode(), "H3", "U+2028 is a line", id="line separator"),
        pytest.param("10.1/\u202egnp.exe".encode(), "H3", "U+202E is a bidirectional control", id="right to left"),
        pytest.param("10.1/\u2066a".encode(), "H3", "U+2066 is a bidirectional control", id="isolate"),
        pytest.param(b"hdl:10.1/%E2%80%AEa", "H3", "U+202E is a bidirectional control", id="escaped direction"),
        pytest.param(b"http://\x1b]0;title\x07/10.1/a", "U4", "'\\x1b]0;title\\x07'", id="host with a title"),
        pytest.param("http://\u202emoc.elpmaxe/10.1/a".encode(), "U4", "'\\u202emoc", id="host right to left"),
        pytest.param(b"10.1/" + b"a" * 100_000, "H9", "100,005 bytes", id="100 kB"),
        pytest.param(b"10.1/" + "é".encode() * 50_000, "H9", "100,005 bytes", id="100 kB beyond ASCII"),
        pytest.param(b"10.1" + b".1" * 50_000 + b"/a", "H9", "100,006 bytes", id="100 kB of segments"),
        pytest.param(b"hdl:10.1/" + b"%41" * 30_000, "H9", "90,005 characters in the URI", id="100 kB of escapes"),
        pytest.param(b"hdl:10.1/" + b"%ff" * 30_000, "H9", "90,005 characters in the URI", id="100 kB of bad escapes"),
        pytest.param(b"hdl:10.1/" + b"%ff" * 2_000, "U5", "are not valid UTF-8", id="6 kB of bad escapes"),
        pytest.param(b"http://" + b"a" * 100_000 + b"/10.1/a", "U4", "aaa…' is not", id="100 kB of host"),
        pytest.param(b"/" * 100_000, "H1", "the prefix", id="100 kB of slashes"),
    ],
)
def test_hostile_name_is_refused_with_a_message(text: bytes, rule: str, words: str) -> None:
    """The message is short (see `refused`), shows what is wrong, and repeats no control characters."""
    assert words in refused(run("name", "parse", text), rule)


@pytest.mark.parametrize("form", ["handle", "http"])
@pytest.mark.parametrize("text", [b"hdl:10.1/a?\xff", b"10.1/\x1b[31mred"], ids=["not UTF-8", "colour"])
def test_hostile_name_is_not_converted(text: bytes, form: str) -> None:
    done = run("name", "convert", text, "--to", form)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("perseid: At character ")


@pytest.mark.parametrize(
    "text",
    [
        b"\xff" * 9,
        b"\x1b[31m0000",
        "\u202e00000000".encode(),
        ("\u0660" * 9).encode(),
        b"0" * 100_000 + b"A",
        b"\n" * 9,
    ],
    ids=["not UTF-8", "colour", "right to left", "Arabic digits", "100 kB", "line feeds"],
)
def test_hostile_suffix_is_refused_with_a_message(text: bytes) -> None:
    assert "is not in the PILIN alphabet" in refused(run("suffix", "pilin", "--decode", text), "P7")


HOSTILE = [
    pytest.param(b"\xff\xfe", id="not UTF-8"),
    pytest.param(b"\x1b[31mred\x07", id="colour"),
    pytest.param("\u009b31m".encode(), id="colour in one character"),
    pytest.param(b"x" * 100_000, id="100 kB"),
]
BIDI = pytest.param("\u202egnp\u2066".encode(), id="right to left")


@pytest.mark.parametrize("text", [*HOSTILE, BIDI])
def test_hostile_rule_is_not_found(text: bytes) -> None:
    done = run("name", "rules", text)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("perseid: Rule '")
    assert len(done.err) < 1_000


@pytest.mark.parametrize(
    "command",
    [
        ("suffix", "pilin", "--at"),
        ("suffix", "cordra", "--version"),
        ("name", "convert", "10.1/a", "--to"),
        ("name", "parse", "10.1/a", "--resolver"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("text", [*HOSTILE, BIDI])
def test_hostile_option_is_wrong_usage(command: tuple[str, ...], text: bytes) -> None:
    done = run(*command, text)
    assert (done.code, done.out) == (2, "")
    assert "Usage: perseid" in done.err


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("command", [(), ("name",)], ids=["perseid", "name"])
def test_hostile_command_is_wrong_usage(command: tuple[str, ...], text: bytes) -> None:
    done = run(*command, text)
    assert (done.code, done.out) == (2, "")
    assert "Usage: perseid" in done.err


def test_binary_standard_input_is_refused_line_by_line() -> None:
    done = program.run("name", "parse", "-", stdin=bytes(range(256)) * 20)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("perseid: line ") == len(done.err.splitlines()) / 2


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
def test_standard_input_that_is_not_utf8_is_refused_in_every_locale(locale: str) -> None:
    """H4: the encoding is not guessed, for example ISO 8859-1."""
    latin_1 = {"LC_ALL": locale, "PYTHONIOENCODING": "latin-1"}
    done = program.run("name", "parse", "-", stdin="10.1/Bücher\n".encode("latin-1"), environ=latin_1)
    assert (done.code, done.out) == (2, "")
    assert "line 1: At character 7: byte 0xFC" in done.err


def test_closed_standard_input_is_empty() -> None:
    done = finish(["sh", "-c", "perseid name parse - <&-"])
    assert (done.code, done.out, done.err) == (0, "", "")


def test_full_disk_is_reported() -> None:
    done = finish(["sh", "-c", "perseid name parse 10.1/a > /dev/full"])
    assert done.code == 1
    assert done.err == "perseid: No space left on device\nFree disk space, then repeat the command\n"

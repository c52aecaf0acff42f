"""`perseid suffix`: encode and decode PILIN suffixes, create CORDRA paths (P1, P3, P7, C3 at the command line).

Tests of standard input run the installed program, because it opens its own streams.
"""

import json
import re
from uuid import UUID

import pytest

from tests.cli.installation import call
from tests.cli.program import refused, run
from tests.pilin_vectors import PILIN


@pytest.mark.parametrize(("suffix", "milliseconds", "time"), PILIN)
def test_pilin_encodes_and_decodes_times(suffix: str, milliseconds: int, time: str) -> None:
    """P1, P7."""
    assert call("suffix", "pilin", "--at", time).out == f"{suffix}\n"
    assert call("suffix", "pilin", "--decode", suffix).out == f"{time}\n"
    expected = {"suffix": suffix, "milliseconds": milliseconds, "time": time}
    assert call("suffix", "pilin", "--at", time, "--json").json == expected
    assert call("suffix", "pilin", "--decode", suffix.lower(), "--json").json == expected


@pytest.mark.parametrize(
    "time",
    ["2007-09-17T07:14:50.919", "2007-09-17 09:14:50.919+02:00", "2007-09-17T07:14:50.919999Z", "20070917T071450.919Z"],
)
def test_pilin_reads_iso_8601_with_utc_as_default_zone(time: str) -> None:
    assert call("suffix", "pilin", "--at", time).out == "D7J1G0DQH\n"


def test_pilin_of_now_has_nine_characters() -> None:
    done = call("suffix", "pilin")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch("[0-9BCDFGHJKLMNPQRSTVWXYZ]{8}[1-9BCDFGHJKLMNPQRSTVWXYZ]\n", done.out)


def test_pilin_json_of_now_is_consistent() -> None:
    now = call("suffix", "pilin", "--json").json
    assert list(now) == ["suffix", "milliseconds", "time"]
    assert call("suffix", "pilin", "--decode", now["suffix"], "--json").json == now


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("1582-10-15", "1582-10-15T00:00:00Z"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00+23:59"),
        ("1609-10-24T00:00:00Z", "1609-10-24T00:00:00Z"),
        ("2500-01-01", "2500-01-01T00:00:00Z"),
        ("9999-12-31", "9999-12-31T00:00:00Z"),
    ],
)
def test_pilin_refuses_times_out_of_range_and_shows_the_range(time: str, shown: str) -> None:
    """P3."""
    message = refused(call("suffix", "pilin", "--at", time), "P3")
    assert f"{shown} has no PILIN suffix: the first is for 1609-10-24T" in message
    assert "the last for 2420-08-16T" in message
    assert "millisecond" not in message


def test_pilin_range_ends_with_nine_characters() -> None:
    """P3."""
    assert call("suffix", "pilin", "--at", "2420-08-16T03:29:20.670Z").out == "ZZZZZZZZZ\n"
    refused(call("suffix", "pilin", "--at", "2420-08-16T03:29:20.671Z"), "P3")


@pytest.mark.parametrize(
    ("suffix", "rule", "words"),
    [
        ("O7J1G0DQH", "P7", 'At character 1: "O" (U+004F) is not in the PILIN alphabet; did you mean the digit 0?'),
        ("D7Ji G0DQ", "P7", 'At character 4: "i" (U+0069) is not in the PILIN alphabet; did you mean the digit 1?'),
        ("D7J1G0DQA", "P7", 'At character 9: "A" (U+0041) is not in the PILIN alphabet'),
        ("D7J1G0DQ", "P3", "the suffix has 8 characters"),
        ("D7J1G0DQHJ", "P3", "the suffix has 10 characters"),
        ("", "P3", "the suffix has 0 characters"),
        ("D7J1G0DQ0", "P3", 'cannot end with "0"'),
    ],
)
def test_pilin_refuses_invalid_suffixes_without_correcting_them(suffix: str, rule: str, words: str) -> None:
    """P3, P7."""
    assert words in refused(call("suffix", "pilin", "--decode", suffix), rule)


def test_pilin_time_and_suffix_exclude_each_other() -> None:
    done = call("suffix", "pilin", "--at", "2007-09-17", "--decode", "D7J1G0DQH")
    assert (done.code, done.out) == (2, "")
    assert "either --at or --decode" in done.err


@pytest.mark.parametrize("time", ["yesterday", "", "2007-13-01", "2007-09-17T25:00Z"])
def test_pilin_refuses_invalid_times(time: str) -> None:
    done = call("suffix", "pilin", "--at", time)
    assert (done.code, done.out) == (2, "")
    assert "ISO 8601" in done.err


@pytest.mark.parametrize(("options", "version"), [((), 4), (("--version", "4"), 4), (("--version", "1"), 1)])
def test_cordra_creates_a_uuid_in_32_uppercase_digits(options: tuple[str, ...], version: int) -> None:
    """C3."""
    done = call("suffix", "cordra", *options)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch("[0-9A-F]{32}\n", done.out)
    assert UUID(done.out.strip()).version == version


def test_cordra_version_1_has_a_random_node() -> None:
    """C3."""
    first, second = (UUID(call("suffix", "cordra", "--version", "1").out.strip()) for _ in range(2))
    assert first.node != second.node
    assert first.node & second.node & (1 << 40)


def test_cordra_prints_json_with_suffix_version_and_uuid() -> None:
    output = call("suffix", "cordra", "--version", "1", "--json").json
    assert list(output) == ["suffix", "version", "uuid"]
    assert output["version"] == 1
    assert UUID(output["uuid"]) == UUID(output["suffix"])


@pytest.mark.parametrize("version", ["5", "7", "0", "-1", "four"])
def test_cordra_refuses_other_versions(version: str) -> None:
    """C3."""
    done = call("suffix", "cordra", "--version", version)
    assert (done.code, done.out) == (2, "")
    assert "version" in done.err


def test_pilin_decodes_standard_input_line_by_line() -> None:
    """P7."""
    lines = "\ufeffD7J1G0DQH\r\n\nO7J1G0DQH\nx4ndp2jqh\nD7J1G0DQH" + "0" * 70_000 + "\n"
    done = run("suffix", "pilin", "--decode", "-", stdin=lines.encode())
    assert (done.code, done.out) == (2, "2007-09-17T07:14:50.919Z\n2007-10-29T03:09:20.060Z\n")
    errors = [line for line in done.err.splitlines() if line.startswith("perseid: ")]
    assert [line.split(":")[1] for line in errors] == [" line 3", " line 5"]
    assert "did you mean the digit 0?" in errors[0]
    several = run("suffix", "pilin", "--decode", "-", "--json", stdin=b"D7J1G0DQH\nX4NDP2JQH\n")
    assert [json.loads(line)["suffix"] for line in several.out.splitlines()] == ["D7J1G0DQH", "X4NDP2JQH"]

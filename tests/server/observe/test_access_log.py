"""The access log has one line for each request, and writes lines in batches."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.observe.access_log import BATCH_LINES, MAX_NAME, AccessLog
from perseid.server.observe.logs import MAX_LINE, LineStyle, Log, LogOutput
from perseid.wire.codes import OpCode, ResponseCode

NOW = 1_772_366_400.1239


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Lines(LogOutput):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.written: list[str] = []
        self.flushed = 0

    def write(self, lines: object) -> None:
        assert isinstance(lines, list)
        self.written += lines

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def output() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def text(output: Lines, clock: Clock) -> AccessLog:
    return AccessLog(Log(LineStyle("resolver-1"), output), clock)


def test_line_has_all_fields(text: AccessLog, output: Lines) -> None:
    text.log_request("192.0.2.7", "tcp", OpCode.CREATE_HANDLE, ResponseCode.SUCCESS, b"12345/x", 812, "300:0.NA/12345")
    text.log_request("2001:db8::1", "udp", 1, 100, b"12345/a b", 9)
    text.log_request("192.0.2.7", "tcp", 4711, 999, b"", 9)
    text.log_request("192.0.2.7", "tcp", 400, None, b"\xff\n", 9)
    text.flush()
    begin = "2026-03-01T12:00:00.123Z INFO resolver-1 access "
    shown = [line.removesuffix("\n").removeprefix(begin) for line in output.written]
    tcp, udp = "transport=tcp address=192.0.2.7", "transport=udp address=2001:db8::1"
    assert shown == [
        f"{tcp} operation=CREATE_HANDLE name=12345/x code=SUCCESS microseconds=812 identity=300:0.NA/12345",
        f'{udp} operation=RESOLUTION name="12345/a b" code=HANDLE_NOT_FOUND microseconds=9 identity=-',
        f'{tcp} operation=4711 name="" code=999 microseconds=9 identity=-',
        f'{tcp} operation=SESSION_SETUP name="\\xff\\n" code=- microseconds=9 identity=-',
    ]


def test_http_line_has_method_and_status(text: AccessLog, output: Lines) -> None:
    text.log_request("192.0.2.7", "https", "PUT", 1, b"12345/x", 812, "300:0.NA/12345", 201)
    text.log_request("192.0.2.7", "http", "GET", 0, b"/a b\xff", 9, status=404, is_name=False)
    text.log_request("192.0.2.7", "http", "x" * 100, 0, b"", 9, status=501, is_name=False)
    text.log_request("192.0.2.7", "http", "", 999, b"/", 9, status=400, is_name=False)
    text.flush()
    begin = "2026-03-01T12:00:00.123Z INFO resolver-1 access "
    shown = [line.removesuffix("\n").removeprefix(begin) for line in output.written]
    plain, secure = (f"transport={transport} address=192.0.2.7" for transport in ("http", "https"))
    assert shown == [
        f"{secure} method=PUT name=12345/x status=201 code=SUCCESS microseconds=812 identity=300:0.NA/12345",
        f'{plain} method=GET path="/a b\\xff" status=404 code=- microseconds=9 identity=-',
        f'{plain} method="xxxxxxxxxxx…" path="" status=501 code=- microseconds=9 identity=-',
        f'{plain} method="" path=/ status=400 code=999 microseconds=9 identity=-',
    ]


def test_http_json_line_has_the_same_fields(output: Lines, clock: Clock) -> None:
    access = AccessLog(Log(LineStyle("control", json=True), output), clock)
    access.log_request("192.0.2.7", "https", 'P"T', 1, b"12345/x", 812, "300:0.NA/1", 302)
    access.flush()
    (line,) = output.written
    found = json.loads(line)
    assert list(found.values())[3:] == [
        "access",
        "https",
        "192.0.2.7",
        'P"T',
        "12345/x",
        302,
        "SUCCESS",
        812,
        "300:0.NA/1",
    ]


@given(st.text(), st.text(), st.binary(max_size=5_000), st.text(), st.booleans())
def test_http_request_is_always_one_line(method: str, host: str, path: bytes, identity: str, as_json: bool) -> None:
    output = Lines()
    access = AccessLog(Log(LineStyle("control", json=as_json), output), Clock())
    access.log_request(host, "http", method, 1, path, 1, identity, 200, is_name=False)
    access.flush()
    (line,) = output.written
    assert line.count("\n") == 1
    assert line.removesuffix("\n").isprintable()
    assert len(line.encode()) <= MAX_LINE
    if as_json:
        assert json.loads(line)["status"] == 200


def test_json_line_has_the_same_fields(output: Lines, clock: Clock) -> None:
    access = AccessLog(Log(LineStyle("control", json=True), output), clock)
    access.log_request("192.0.2.7", "tcp", 1, 1, 'ü"'.encode(), 812, "300:0.NA/1")
    access.log_request("192.0.2.7", "udp", 1, None, b"\xff", 8)
    access.flush()
    first, second = map(json.loads, output.written)
    assert first == {
        "time": "2026-03-01T12:00:00.123Z",
        "level": "info",
        "process": "control",
        "message": "access",
        "transport": "tcp",
        "address": "192.0.2.7",
        "operation": "RESOLUTION",
        "name": 'ü"',
        "code": "SUCCESS",
        "microseconds": 812,
        "identity": "300:0.NA/1",
    }
    assert (second["name"], second["code"], second["identity"]) == ("\\xff", "-", "-")


def test_journal_line_has_no_time(output: Lines, clock: Clock) -> None:
    access = AccessLog(Log(LineStyle("control", journal=True), output), clock)
    access.log_request("192.0.2.7", "tcp", 1, 1, b"x", 1)
    access.flush()
    assert output.written[0].startswith("<6>INFO control access transport=tcp ")


@given(
    st.binary(max_size=2_048),
    st.text(st.characters(exclude_categories=()), max_size=600),
    st.text(st.characters(exclude_categories=()), max_size=600),
    st.integers(0, 2**32 - 1),
    st.integers(-1, 2**32 - 1),
)
def test_any_request_is_one_line(name: bytes, identity: str, address: str, opcode: int, code: int) -> None:
    for style in (LineStyle("control"), LineStyle("control", json=True), LineStyle("control", json=True, journal=True)):
        output = Lines()
        access = AccessLog(Log(style, output), Clock())
        access.log_request(address, "tcp", opcode, code, name, 1, identity)
        access.flush()
        (line,) = output.written
        assert line[-1] == "\n"
        assert line[:-1].isprintable()
        assert len(line.encode()) <= MAX_LINE
        if style.json:
            found = json.loads(line.removeprefix("<6>"))
            assert (found["operation"] == str(opcode)) == (opcode not in list(OpCode))
            assert found["microseconds"] == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_line_does_not_depend_on_others_of_its_batch(output: Lines, clock: Clock, as_json: bool) -> None:
    """Plain names are formatted together, and times of one millisecond once."""
    access = AccessLog(Log(LineStyle("control", json=as_json), output), clock)
    names = [b"12345/x", b"12345/y", b"x" * MAX_NAME, b"x" * (MAX_NAME + 1), b"", b"a b", b"\xff", b'"\\', b"\n"]

    def log(name: bytes, step: int) -> None:
        clock.now = NOW + step // 2 / 1000
        access.log_request("192.0.2.7", "udp", 1, 1, name, 1)

    for step, name in enumerate(names):
        log(name, step)
        access.flush()
    for some in (names, names[:2]):
        alone, output.written = output.written[: len(some)], []
        for step, name in enumerate(some):
            log(name, step)
        assert not output.written
        access.flush()
        assert output.written == alone


def test_lines_are_written_in_batches(text: AccessLog, output: Lines, clock: Clock) -> None:
    for number in range(BATCH_LINES - 1):
        text.log_request("192.0.2.7", "udp", 1, 1, b"%d" % number, 1)
    assert output.written == []
    text.log_request("192.0.2.7", "udp", 1, 1, b"last", 1)
    assert len(output.written) == BATCH_LINES
    text.log_request("192.0.2.7", "udp", 1, 1, b"next", 1)
    clock.now += 1
    text.log_request("192.0.2.7", "udp", 1, 1, b"in another second", 1)
    assert len(output.written) == BATCH_LINES + 1
    clock.now -= 3_600  # the clock was set
    text.log_request("192.0.2.7", "udp", 1, 1, b"an hour ago", 1)
    assert len(output.written) == BATCH_LINES + 2
    text.flush()
    assert output.written[-2].startswith("2026-03-01T12:00:01.123Z")
    assert output.written[-1].startswith("2026-03-01T11:00:01.123Z")


def test_flush_retries_pending_output(text: AccessLog, output: Lines) -> None:
    text.flush()
    assert output.flushed == 1


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield opened
    os.close(opened)


def test_lines_are_written_to_a_file(descriptor: int, tmp_path: Path) -> None:
    access = AccessLog(Log(LineStyle("control"), LogOutput(descriptor)))
    for _ in range(3 * BATCH_LINES):
        access.log_request("192.0.2.7", "tcp", 1, 1, b"12345/x", 3)
    access.flush()
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3 * BATCH_LINES
    assert all(line.endswith(" name=12345/x code=SUCCESS microseconds=3 identity=-") for line in lines)

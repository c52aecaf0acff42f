"""The log has one line for each event, as text for people or JSON for programs."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.observe import logs
from perseid.server.observe.logs import MAX_LINE, LineFormatter, LineHandler, LineStyle, Log, LogOutput, fields

TEXT, AS_JSON = LineStyle("control"), LineStyle("control", json=True)
SECRET = "geheim-4711"
ANY = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=3_000),
    st.binary(max_size=300),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
)


class Color(Enum):
    RED = "red"


class Unwilling:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def record(
    message: object,
    *arguments: object,
    importance: int = logging.INFO,
    error: BaseException | None = None,
    **given: object,
) -> logging.LogRecord:
    about = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("perseid.x", importance, __file__, 1, message, arguments, about)
    made.created = 1_772_366_400.1234
    made.__dict__.update(fields(**given))
    return made


def lines(style: LineStyle, made: logging.LogRecord) -> str:
    return LineFormatter(style).format(made)


@contextmanager
def raised(error: BaseException) -> Iterator[BaseException]:
    """An error with a traceback."""

    def inner() -> None:
        raise error

    try:
        inner()
    except BaseException as caught:  # noqa: BLE001 - it was raised for this
        yield caught


@pytest.fixture
def quiet() -> Iterator[None]:
    """Restores what `configure` changes for the whole process."""
    root, ours = logging.getLogger(), logging.getLogger("perseid")
    levels, hooks = (root.level, ours.level), (sys.excepthook, sys.unraisablehook, threading.excepthook)
    yield
    for handler in [each for each in root.handlers if isinstance(each, LineHandler)]:
        root.removeHandler(handler)
        handler.close()
    logging.captureWarnings(capture=False)
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_text_format() -> None:
    made = record(
        "the view cannot follow %s", "now", importance=logging.WARNING, seq=17, name=b"10.1/a b", why=Color.RED
    )
    assert lines(TEXT, made) == (
        '2026-03-01T12:00:00.123Z WARNING control the view cannot follow now seq=17 name="10.1/a b" why=RED\n'
    )


def test_json_format() -> None:
    made = record(
        "x", seq=17, name=b"10.1/\xff", none=None, yes=True, part=0.5, nan=float("nan"), time="high", why=Color.RED
    )
    assert json.loads(lines(AS_JSON, made)) == {
        "time": "2026-03-01T12:00:00.123Z",
        "level": "info",
        "process": "control",
        "logger": "perseid.x",
        "message": "x",
        "seq": 17,
        "name": "10.1/\\xff",
        "none": None,
        "yes": True,
        "part": 0.5,
        "nan": "nan",
        "time_": "high",
        "why": "RED",
    }


@given(ANY, st.dictionaries(st.text(max_size=20), ANY, max_size=12))
def test_any_record_is_one_printable_line_of_bounded_length(message: object, given_fields: dict[str, object]) -> None:
    made = record("%s", message)
    made.__dict__["fields"] = given_fields
    for style in (TEXT, AS_JSON, LineStyle("control", journal=True)):
        line = lines(style, made)
        assert line.endswith("\n")
        assert line[:-1].isprintable()
        assert len(line.encode()) <= MAX_LINE
    found = json.loads(lines(AS_JSON, made))
    assert found["process"] == "control"
    if isinstance(message, str) and len(message) < 100 and not re.search("[\ud800-\udfff]", message):
        assert found["message"] == message


def test_fields_that_do_not_fit_are_left_out_and_marked() -> None:
    made = record("m" * 5_000)
    made.__dict__.update(fields(**{f"field{number}": "x" * 400 for number in range(12)}))
    for style in (TEXT, AS_JSON):
        line = lines(style, made)
        assert len(line.encode()) <= MAX_LINE
        assert "field0" in line
        assert "field11" not in line
    assert json.loads(lines(AS_JSON, made))["cut"] is True
    assert lines(TEXT, made).endswith(" cut=true\n")


def test_exception_is_logged_with_type_and_frames_without_its_message() -> None:
    cause = KeyError(SECRET)
    error = ValueError(SECRET)
    error.__cause__ = cause
    with raised(error) as caught:
        text = lines(TEXT, record("it failed", error=caught))
    assert SECRET not in text
    assert re.search(r'exception="ValueError in inner:\d+ < raised:\d+, after KeyError"\n', text)
    with raised(OSError(98, SECRET)) as caught:
        found = json.loads(lines(AS_JSON, record("it failed", error=caught)))
    assert found["exception"].startswith("OSError: Address already in use in inner:")


def test_long_traceback_is_truncated() -> None:
    def deeper(levels: int) -> None:
        if not levels:
            raise RuntimeError(SECRET)
        deeper(levels - 1)

    with pytest.raises(RuntimeError) as caught:
        deeper(100)
    assert logs.describe_exception(caught.value).count("deeper:") == logs.MAX_FRAMES
    chain = RuntimeError()
    for _ in range(10):
        chain, chain.__context__ = RuntimeError(), chain
    assert logs.describe_exception(chain).count("RuntimeError") == logs.MAX_CAUSES


def test_invalid_record_never_raises() -> None:
    assert "<Unwilling without text>" in lines(TEXT, record("x", it=Unwilling()))
    assert "(invalid arguments)" in lines(TEXT, record("%d", "no number"))
    assert "(invalid arguments)" in lines(AS_JSON, record("%s", Unwilling()))
    assert json.loads(lines(AS_JSON, record("x", it=10**5_000)))["it"] == "<int without text>"
    made = record("x")
    made.__dict__["fields"] = "no mapping"
    assert lines(TEXT, made).endswith("control x\n")


def test_record_that_breaks_the_formatter_is_replaced() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as found, open(writing, "wb"):  # noqa: PTH123 - descriptors
        handler = LineHandler(Log(AS_JSON, LogOutput(writing)))
        broken = record("x")
        broken.created = float("inf")
        handler.emit(broken)
        handler.close()
        line = os.read(found.fileno(), 4096)
    assert json.loads(line)["message"] == "cannot format a log record of perseid.x"


@pytest.mark.usefixtures("quiet")
def test_journal_lines_have_priorities_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+b") as stream:
        about = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{about.st_dev}:{about.st_ino}")
        log = logs.configure("resolver-1", "text", level=logging.DEBUG, descriptor=stream.fileno())
        assert log.style == LineStyle("resolver-1", journal=True)
        ours = logging.getLogger("perseid.x")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            ours.log(level, "said")
        stream.seek(0)
        assert stream.read().decode().splitlines() == [
            "<7>DEBUG resolver-1 said",
            "<6>INFO resolver-1 said",
            "<4>WARNING resolver-1 said",
            "<3>ERROR resolver-1 said",
            "<2>CRITICAL resolver-1 said",
        ]
        monkeypatch.setenv("JOURNAL_STREAM", "1:1")  # standard error was redirected since
        assert not logs.configure("control", "json", descriptor=stream.fileno()).style.journal
    monkeypatch.delenv("JOURNAL_STREAM")
    assert not logs.configure("control", "json", descriptor=10_000).style.journal


@pytest.mark.usefixtures("quiet")
def test_configure_replaces_the_earlier_configuration(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as stream:
        logs.configure("control", "text", descriptor=stream.fileno())
        logs.configure("control", "json", level=logging.WARNING, descriptor=stream.fileno())
        logging.getLogger("perseid.x").info("not asked for")
        logging.getLogger("perseid.x").warning("once")
        logging.getLogger("sqlalchemy.engine").info("never below a warning: %s", SECRET)
        (line,) = path.read_text().splitlines()
    assert json.loads(line)["message"] == "once"


@pytest.mark.usefixtures("quiet")
def test_lost_lines_are_reported_in_the_log_format() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as found, open(writing, "wb"):  # noqa: PTH123 - descriptors
        log = logs.configure("control", "json", descriptor=writing)
        log.output.lost = 3
        logging.getLogger("perseid.x").warning("here")
        first, second = found.read(4096).splitlines()
    assert json.loads(first)["message"] == "here"
    assert json.loads(second)["message"].startswith("3 log lines were lost")


PROGRAM = """
import asyncio, gc, logging, sys, threading, warnings
from perseid.server.observe import logs

logs.configure("control", "json")
secret = "geheim-4711"

class Unraisable:
    def __del__(self):
        raise ValueError(secret)

def fail(*_):
    raise ValueError(secret + "\\nsecond line")

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_exception_handler)
    loop.call_soon(fail, secret)
    await asyncio.sleep(0.01)

warnings.warn("a warning\\nin two lines", stacklevel=1)
thread = threading.Thread(target=fail, name="worker\\n1")
thread.start()
thread.join()
Unraisable()
asyncio.run(main())
fail()
"""


def test_uncaught_errors_are_logged() -> None:
    environ = {**os.environ, "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, check=False, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert SECRET not in done.stderr
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [each["message"].split("\n")[0] for each in found][1:] == [
        "uncaught exception in thread worker",
        "unraisable exception",
        "error in the event loop: Exception in callback fail",
        "uncaught exception, the process ends",
    ]
    assert "a warning\nin two lines" in found[0]["message"]
    assert all(each["exception"].startswith("ValueError in ") for each in found[1:])


def test_logs_load_neither_event_loop_nor_database() -> None:
    rooms = [f"perseid.{room}" for room in ("registry", "ledger", "wire")]
    heavy = ["asyncio", "msgspec", "sqlalchemy", "cryptography", *rooms]
    modules = "perseid.server.observe.logs, perseid.server.processes.systemd"
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("quiet")
def test_keyboard_interrupt_and_thread_exit_are_not_errors() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as found, open(writing, "wb"):  # noqa: PTH123 - descriptors
        logs.configure("control", "text", descriptor=writing)
        sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
        threading.excepthook(threading.ExceptHookArgs((SystemExit, SystemExit(), None, None)))
        os.set_blocking(found.fileno(), False)
        assert not found.read(10)

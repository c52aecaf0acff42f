"""Lines are written whole and in order, and a slow reader never blocks."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from perseid.server.observe.logs import MAX_LINE, MAX_WAITING_BYTES, LogOutput

LINE = "x" * 999 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):  # the test may have closed it
            os.close(end)


def read_all(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    found = b""
    try:
        while raw := os.read(descriptor, 1 << 20):
            found += raw
    except BlockingIOError:
        pass
    return found


def read_until(enough: Callable[[bytes], bool], read: Callable[[], bytes], *outputs: LogOutput) -> bytes:
    """Read while outputs retry, until it is enough."""
    found, deadline = b"", monotonic() + 30
    while not enough(found):
        assert monotonic() < deadline, f"{len(found)} bytes came"
        found += read()
        for output in outputs:
            output.flush()
    return found


def test_lines_are_written_unchanged(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    output.write(["one\n", "two ü\n"])
    output.write(["three \ud800\n"])
    assert read_all(pipe[0]).decode() == "one\ntwo ü\nthree \\ud800\n"
    output.close()
    os.write(pipe[1], b"the descriptor is still the caller's")


def test_stopped_reader_does_not_block_and_gets_everything_later(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    sent = [f"{number:08d}\n" for number in range(20_000)]  # more than a pipe holds
    output.write(sent)
    found = read_until(lambda found: len(found) >= 9 * len(sent), lambda: read_all(pipe[0]), output)
    assert found.decode() == "".join(sent)
    assert output.lost == 0


def test_excess_lines_are_lost_counted_and_reported(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1], lambda lines: f"lost {lines}\n")
    for _ in range(2 * MAX_WAITING_BYTES // len(LINE)):
        output.write([LINE])
    lost = output.lost
    assert lost > 0
    found = read_until(lambda found: b"lost" in found, lambda: read_all(pipe[0]), output)
    lines = found.decode().splitlines(keepends=True)
    assert lines[-1] == f"lost {lost}\n"
    assert len(lines) - 1 + lost == 2 * MAX_WAITING_BYTES // len(LINE)
    assert output.lost == lost
    output.write(["and on\n"])
    assert read_all(pipe[0]) == b"and on\n"


def test_writes_are_atomic_for_a_pipe_and_few_for_a_file(
    pipe: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = os.write

    def write(where: int, block: bytes) -> int:
        sizes.append(len(block))
        return real(where, block)

    monkeypatch.setattr(os, "write", write)
    LogOutput(pipe[1]).write([LINE] * 20)
    assert sum(sizes) == 20 * len(LINE)
    assert max(sizes) <= MAX_LINE
    assert len(sizes) == 5
    with (tmp_path / "log").open("wb") as file:
        LogOutput(file.fileno()).write([LINE] * 20)
    assert sizes[5:] == [20 * len(LINE)]


def test_lines_of_several_writers_do_not_mix(pipe: tuple[int, int]) -> None:
    outputs = [LogOutput(pipe[1]) for _ in range(4)]

    def write(output: LogOutput, letter: str) -> None:
        for _ in range(200):
            output.write([letter * 300 + "\n"] * 3)

    threads = [
        threading.Thread(target=write, args=(output, letter)) for output, letter in zip(outputs, "abcd", strict=True)
    ]
    for thread in threads:
        thread.start()
    found = read_until(lambda found: len(found) >= 4 * 200 * 3 * 301, lambda: read_all(pipe[0]), *outputs)
    for thread in threads:
        thread.join()
    lines = found.decode().splitlines()
    assert len(lines) == 2400
    assert all(line == line[0] * 300 for line in lines)


def test_closed_reader_is_not_an_error(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    os.close(pipe[0])
    output.write(["nobody\n", "hears\n"])
    output.write(["this\n"])
    assert output.lost == 3
    output.close()


def test_journal_socket_does_not_block() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        output = LogOutput(writer.fileno())
        sent = [f"{number:08d}\n" for number in range(60_000)]
        output.write(sent)
        found = read_until(lambda found: len(found) >= 9 * len(sent), lambda: reader.recv(1 << 20), output)
        assert found.decode() == "".join(sent)
        output.close()


def test_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as opened:
        output = LogOutput(opened.fileno())
        output.write(["one\n"])
        output.close()
    assert path.read_text() == "one\n"


def test_unread_lines_are_lost_on_close(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    output.write([LINE] * 100)
    output.close(0.01)
    written = len(read_all(pipe[0])) // len(LINE)
    assert 0 < written < 100
    assert output.lost == 100 - written


def test_signal_handler_may_log_during_a_write(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    output = LogOutput(pipe[1])
    real = os.write
    interrupted: list[bool] = []

    def write(where: int, block: bytes) -> int:
        if not interrupted:
            interrupted.append(True)
            output.write(["from the signal\n"])
        return real(where, block)

    monkeypatch.setattr(os, "write", write)
    output.write(["first\n"])
    assert read_all(pipe[0]) == b"first\nfrom the signal\n"


def test_pipe_of_another_user_is_polled(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        output = LogOutput(pipe[1])
    output.write([LINE] * 100)  # more than the pipe holds: with a plain write this would wait for ever
    found = read_all(pipe[0])
    output.flush()
    assert len(found + read_all(pipe[0])) == 100 * len(LINE)

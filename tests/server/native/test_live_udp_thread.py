"""Workers with the thread of the compiled module: one that is stuck, and settings that the module cannot apply."""

import ctypes
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from perseid.wire.codes import ResponseCode
from tests.server.installations import NAMES, PREFIX, copy_to
from tests.server.live_servers import eventually, over_udp
from tests.server.native.live_vectors import make_installation
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.test_resolution_vectors import VECTOR_FILES, is_left_to_the_server
from tests.server.native.test_udp_thread import untimed
from tests.wire.recorded import exchanges

PATIENCE = 30.0
PTRACE_ATTACH, PTRACE_DETACH = 16, 17  # <sys/ptrace.h>
WAIT_FOR_THREADS = 0x4000_0000  # __WALL of <sys/wait.h>
MANY = [f"10.{number // 256}.{number % 256}.0/24" for number in range(257)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory, "--workers", "2") as running:
        eventually(lambda: running.errors.count("ready: native protocol") == 2, "two workers")
        yield running


def threads(server: Serving) -> list[int]:
    """The threads of the module, by their name."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/task/[0-9]*/comm"):
        with suppress(OSError):
            process = comm.parents[2]
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.pid and comm.read_text() == "perseid-resolve\n":
                found.append(int(comm.parent.name))
    return sorted(found)


@contextmanager
def stopped(thread: int) -> Iterator[None]:
    """Stop a single thread of another process, as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_ATTACH, thread, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(thread, WAIT_FOR_THREADS)
    try:
        yield
    finally:
        if libc.ptrace(PTRACE_DETACH, thread, None, None):  # it was killed
            os.waitpid(thread, WAIT_FOR_THREADS)


def resolve(server: Serving, times: int) -> None:
    """Resolve from as many ports, of which the kernel gives about half to each worker. Every request is sent once."""
    for at in range(times):
        with NativeClient(server.native, Via.UDP, timeout=PATIENCE, attempts=1) as client:
            assert client.resolve(f"{PREFIX}/n{at % NAMES}").code is ResponseCode.SUCCESS


def test_another_worker_serves_the_socket_of_a_stuck_thread(server: Serving) -> None:
    """Its worker says no more that it is alive, although its event loop runs."""
    first, _ = threads(server)
    with stopped(first):
        resolve(server, 40)
    resolve(server, 20)


def test_many_exempt_networks_are_applied_by_python(server: Serving, directory: Path) -> None:
    def count(text: str) -> int:
        return len(re.findall(rf"worker-\d .*{text}", server.errors))

    for networks, reloads in ((MANY, 2), (MANY[:-1], 4)):
        (directory / "perseid.toml").write_text(f"[limits]\nexempt_networks = {networks}\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda lines=reloads: count("were reloaded") == lines, "two reloads")  # type: ignore[misc]
        resolve(server, 20)
        assert count(r"runs in Python \(limits.exempt_networks has 257 networks") == 2
    assert len(threads(server)) == 2


def test_recorded_resolutions_get_the_recorded_bytes(tmp_path: Path) -> None:
    """Over UDP from the module, all but the time."""
    vectors = [one for one in exchanges(*VECTOR_FILES) if one.transport == "udp" and not is_left_to_the_server(one)]
    assert len(vectors) == 12
    with serving(make_installation(tmp_path, "udp")) as running:
        assert len(threads(running)) == 1
        for vector in vectors:
            packets = over_udp(running.native, list(vector.request))
            assert [untimed(packet) for packet in packets] == [untimed(packet) for packet in vector.response], vector

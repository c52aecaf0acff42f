"""A running `perseid serve`, for tests and benchmarks; `native_client` has the client."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

Address = tuple[str, int]
"""Host and port."""

START_SECONDS: Final = 60.0
"""Seconds for a server to start: much more than a loaded machine needs."""
STOP_SECONDS: Final = 30.0
"""Seconds for it to stop."""

ANNOUNCED: Final = '{"pid": '
"""Start of the line that a server prints when it is ready."""

DEFAULTS: Final = {"PERSEID_HTTP_PORT": "0", "PERSEID_METRICS_PORT": "0", "PERSEID_SERVER_WORKERS": "1"}
"""Free ports, so that servers of several tests do not conflict; and one worker, which starts fastest, for tests that do
not ask for several."""


CHOSEN_PORTS: Final = range(20_000, 32_768)
"""Ports that Linux does not choose (net.ipv4.ip_local_port_range), so that no other process takes a free one
meanwhile."""


def free_port() -> int:
    """A port of this machine that is free for UDP and TCP, for servers that must know it before they start."""
    while True:
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            port = random.SystemRandom().choice(CHOSEN_PORTS)  # hypothesis seeds the other one
            try:
                stream.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server."""

    process: "subprocess.Popen[bytes]"
    """The supervisor."""
    folder: Path
    """Where its standard output and standard error go."""
    announced: dict[str, Any] = field(default_factory=dict)
    """What it said when it began to serve."""

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self.process.pid

    @property
    def native(self) -> Address:
        """Where it speaks the native protocol, over UDP and TCP."""
        return self.announced["native"]["host"], self.announced["native"]["port"]

    @property
    def http(self) -> Address:
        """Where it speaks HTTP and HTTPS."""
        return self.announced["http"]["host"], self.announced["http"]["port"]

    @property
    def metrics(self) -> Address | None:
        """Where it tells its metrics."""
        found = self.announced.get("metrics")
        parts = urlsplit(found or "")
        return None if parts.port is None else (str(parts.hostname), parts.port)

    @property
    def workers(self) -> int:
        """How many worker processes it has."""
        return int(self.announced["workers"])

    @property
    def output(self) -> str:
        """All that it has written on standard output."""
        return (self.folder / "stdout").read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """All that it has written on standard error."""
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def wait_until_announced(self) -> None:
        """Wait for the line on standard output that the server writes when it serves.

        It is the first one, unless the installation was made at the same time: that is told before.
        """
        end = time.monotonic() + START_SECONDS
        while not (lines := [line for line in self.output.split("\n")[:-1] if line.startswith(ANNOUNCED)]):
            assert self.process.poll() is None, f"it ended with exit code {self.process.returncode}\n{self.errors}"
            assert time.monotonic() < end, f"it did not serve within {START_SECONDS:.0f} s\n{self.errors}"
            time.sleep(0.002)
        self.announced.update(json.loads(lines[0]))

    def stop(self) -> None:
        """Have it drain and stop, and see that it ends well: exit code 0, no traceback, no runtime directory."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not stop within {STOP_SECONDS:.0f} s\n{self.errors}") from None
        assert code == 0, f"exit code {code}\n{self.errors}"
        assert "Traceback" not in self.errors, self.errors
        assert not list(self.folder.glob("perseid-*"))

    def kill(self) -> None:
        """End it at once, with all that it has started: they share a process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def serve_command(directory: Path, *options: str) -> list[str]:
    """The command that serves an installation at a free port, and prints it."""
    command = [sys.executable, "-c", "from perseid.cli import main; main()", "serve", "-d", str(directory)]
    return [*command, "--native-port", "0", "--json", *options]


def start(directory: Path, folder: Path, *options: str, **environment: str) -> Serving:
    """Start a server at free ports, with its output in a folder; it has announced itself when this returns.

    Settings are given as they stand in the environment: `PERSEID_SERVER_WORKERS="3"`.
    """
    # Files, because nobody reads while it runs, and a pipe that is full would hold the server up.
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("ab") as stderr:
        process = subprocess.Popen(
            serve_command(directory, *options),
            stdout=stdout,
            stderr=stderr,
            env=os.environ | DEFAULTS | {"RUNTIME_DIRECTORY": str(folder)} | environment,
            start_new_session=True,
        )
    server = Serving(process, folder)
    try:
        server.wait_until_announced()
    except BaseException:
        server.kill()
        raise
    return server


@contextmanager
def serving(directory: Path, *options: str, **environment: str) -> Iterator[Serving]:
    """Serve an installation at free ports while the block runs; stop it afterwards and see that it ended well."""
    with tempfile.TemporaryDirectory(prefix="perseid-serving-") as folder:
        server = start(directory, Path(folder), *options, **environment)
        try:
            yield server
        except BaseException:
            server.kill()
            raise
        server.stop()

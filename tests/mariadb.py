"""A private MariaDB for the tests, from Debian's package: made in a temporary folder, gone with the process.

It listens on a Unix socket only, without passwords. The kernel stops it if we die, be it by SIGKILL.

Tests get it by a fixture, which they import: `from tests.mariadb import mariadb`.
"""

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

PACKAGE: Final = "mariadb-server-core mariadb-client-core"
"""What Debian calls it."""

SERVER: Final = Path("/usr/sbin/mariadbd")
INSTALLER: Final = Path("/usr/bin/mariadb-install-db")

USER: Final = "handle"
"""The user of the tests; every name is accepted."""

START_SECONDS: Final = 60
"""How long the server may take to start: a second, usually; more on a machine that runs many tests at once."""


class MariadbFailed(Exception):
    """The server is missing or did not start."""


class MariadbServer:
    """A server of one's own. It must be started by a thread that lives as long as it is needed."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()

    def start(self) -> None:
        """Create the databases and start the server; it is ready when this returns."""
        if not SERVER.exists():
            raise MariadbFailed(f"there is no MariaDB in {SERVER}; please run: sudo apt-get install {PACKAGE}")
        self.folder = Path(tempfile.mkdtemp(prefix="perseid-my-", dir="/tmp"))
        options = _process_options()
        shutil.chown(self.folder, options.get("user", os.getuid()))
        log = (self.folder / "log").open("a+b")
        with log:
            done = subprocess.run(
                [
                    *(INSTALLER, "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db"),
                    *("--skip-name-resolve", "--innodb-use-native-aio=0"),
                ],
                stdout=log,
                stderr=log,
                check=False,
                **options,
            )
            if done.returncode:
                raise MariadbFailed(f"mariadb-install-db failed:\n{self._read_log()}")
            server = [
                *(str(SERVER), "--no-defaults", f"--datadir={self.folder / 'data'}", f"--socket={self.socket}"),
                *("--skip-networking", "--skip-grant-tables", f"--pid-file={self.folder / 'pid'}"),
                "--innodb-use-native-aio=0",  # the kernel has few requests for all servers of the machine
                *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"),
            ]
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )
            self._wait(self._process)

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def stop(self) -> None:
        """Stop the server and remove everything; nobody needs its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database: str | None = None) -> Any:
        """Connect to the server."""
        return pymysql.connect(
            unix_socket=str(self.socket), user=USER, database=database, autocommit=True, binary_prefix=True
        )

    def database(self) -> str:
        """Create an empty database, and return its name."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str) -> str:
        """The URL of a database, as `perseid migrate` takes it."""
        return f"mysql://{USER}@/{database}?unix_socket={self.socket}"

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with suppress(pymysql.MySQLError):
                self.connect().close()
                return
            time.sleep(0.02)
        raise MariadbFailed(f"the server did not start:\n{self._read_log()}")

    def _read_log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


def _process_options() -> dict[str, Any]:
    """How to run its processes: not as root, and without environment variables for other servers."""
    options: dict[str, Any] = {"cwd": "/", "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}}
    if os.getuid() == 0:
        user = _server_user()
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return options


def _server_user() -> pwd.struct_passwd:
    for name in ("mysql", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise MariadbFailed("root must not run it, and there is no other user")


@cache
def _shared() -> MariadbServer:
    server = MariadbServer()
    server.start()
    atexit.register(server.stop)
    return server


@pytest.fixture(scope="session")
def mariadb() -> MariadbServer:
    """The server of this process."""
    return _shared()

"""A private PostgreSQL for the tests, from Debian's package: made in a temporary folder, gone with the process.

One server for each process that runs tests. Making and starting one takes about a second, and 40 MB of disk; sharing
one between processes would save little and needs somebody who knows which of them is the last.

The server hangs on a supervisor, a few lines of shell, and the supervisor on us: the kernel tells it when we die, be
it by SIGKILL. It then stops the server and removes the folder, and that is also the way in which `stop` does it. Should
the supervisor be killed itself, the kernel tells the server.

Tests get it by a fixture, which a conftest.py imports: `from tests.postgres import postgres`.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

PACKAGE: Final = "postgresql-15"
"""What Debian calls it."""

BINARIES: Final = Path(os.environ.get("TEST_POSTGRES", "/usr/lib/postgresql/15/bin"))
"""Where Debian's package puts it. Never another one from PATH: the tests say what holds for this version. To test with
another version, set TEST_POSTGRES to its folder of programs."""

USER: Final = "perseid"
"""The owner of everything in the cluster. Nobody else can reach it, so there is no password."""

START_SECONDS: Final = 60
"""How long the server may take to start: a second, usually; more on a machine that runs many tests at once."""

STOP_SECONDS: Final = 30
"""How long it may take to stop: it leaves everything as it is, so hardly any time."""

# initdb and postgres refuse to run as root. The package brings the first of these users, every system has the second.
_SERVER_USERS = ("postgres", "nobody")

# The longest path of a socket is 107 octets (sockaddr_un), and PostgreSQL adds `/.s.PGSQL.5432` to the folder's.
_MAX_FOLDER = 90

# SIGQUIT tells PostgreSQL to stop at once: nobody needs its data any more. It is repeated because a shell's children
# ignore it until PostgreSQL has come so far as to listen. If somebody else is our parent, the real one died before the
# kernel knew that we want to be told.
_SUPERVISOR = """
folder=$1 parent=$2; shift 2
ended=
trap 'ended=yes' TERM
[ "$PPID" -eq "$parent" ] || ended=yes
setpriv --pdeathsig QUIT "$@" &
server=$!
while kill -0 "$server" 2>/dev/null; do
    if [ -n "$ended" ]; then kill -QUIT "$server"; sleep 0.05; else wait "$server"; fi
done
rm -rf "$folder"
"""


class PostgresMissing(Exception):
    """There is no PostgreSQL to test with. Tests fail then: untested code is not known to work."""

    def __init__(self, binaries: Path) -> None:
        super().__init__(f"there is no PostgreSQL in {binaries}; please run: sudo apt-get install {PACKAGE}")


class PostgresFailed(Exception):
    """The server did not start; the message has its last log lines."""


class Cluster:
    """A server of one's own, reached through a Unix socket only.

    It must be started by a thread that lives as long as it is needed: for the kernel, the thread is what dies.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        binaries: Path = BINARIES,
        folder: Path | None = None,
        primary: "Cluster | None" = None,
    ) -> None:
        """`folder` is where it lives; by default a new one. With a `primary`, it is a standby of it.

        With `fsync=False` it does not wait for the disk.

        No kill of a process, be it client or server, loses what the kernel has; only the machine's own end would. So no
        test can tell the difference; with fsync a commit takes the time it takes in earnest, as benches need it.
        """
        self._fsync = fsync
        self._binaries = binaries
        self._fixed = folder
        self._primary = primary
        self._numbers = count(1)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        """Where it lives while it runs: data, socket and log."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create the cluster and start the server; it is ready when this returns."""
        if not (self._binaries / "postgres").exists():
            raise PostgresMissing(self._binaries)
        # Not in pytest's own folder: its path is long, and closed to the server's user.
        self.folder = self._fixed or Path(tempfile.mkdtemp(prefix="perseid-pg-", dir="/tmp"))
        self.folder.mkdir(0o700, exist_ok=True)
        assert len(bytes(self.folder)) <= _MAX_FOLDER
        try:
            self._make()
            # Held open from the beginning: a supervisor whose server has failed removes the folder.
            with (self.folder / "log").open("a+b") as log:
                self._supervisor = self._run(log)
                self._wait(self._supervisor, log)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove everything; harmless if it does not run."""
        if self._supervisor is not None:
            self._supervisor.terminate()
            self._supervisor.wait(STOP_SECONDS)
            self._supervisor = None
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = Path()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def database(self, like: str | None = None) -> str:
        """Create a database, empty or a copy of the one at a URL without connections; return its SQLAlchemy URL."""
        name = f"test_{next(self._numbers)}"
        # PostgreSQL does not allow changes to template0.
        template = "template0" if like is None else str(make_url(like).database)
        with self._connect() as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"

    def kill(self) -> None:
        """Kill the server like a machine that fails, and remove everything."""
        os.kill(self.pid, signal.SIGKILL)
        if self._supervisor is not None:
            self._supervisor.wait(STOP_SECONDS)
        self.stop()

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Execute statements as the superuser; return the rows of the last one."""
        with self._connect() as connection:
            cursors = [connection.execute(statement.encode()) for statement in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(host=str(self.folder), user=USER, dbname="postgres", autocommit=True)

    def _make(self) -> None:
        shutil.chown(self.folder, self._process().get("user", os.getuid()))
        data = self.folder / "data"
        if self._primary is None:
            # An incomplete cluster is worthless, so this need not wait for the disk.
            initdb: list[str | Path] = [
                self._binaries / "initdb",
                "--pgdata",
                data,
                "--username",
                USER,
                "--auth",
                "trust",
            ]
            command = [*initdb, "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        else:
            source: list[str | Path] = ["--host", self._primary.folder, "--username", USER, "--checkpoint", "fast"]
            command = [
                self._binaries / "pg_basebackup",
                "--pgdata",
                data,
                "--write-recovery-conf",
                "--no-sync",
                *source,
            ]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._process(),
        )
        if done.returncode != 0:
            raise PostgresFailed(f"{command[0]} failed:\n{done.stdout}")

    def _run(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._fsync else "off",
            "autovacuum": "on" if self._fsync else "off",  # it looks at the databases of all tests that have ended
            "max_connections": "60",  # a test of many writers has some dozens
            "dynamic_shared_memory_type": "mmap",  # in its folder: nothing else removes that of a killed server
            "shared_buffers": "16MB",  # what the tests write fits, and there may be as many servers as cores
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        server = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *options]
        supervised = ["sh", "-c", _SUPERVISOR, "sh", str(self.folder), str(os.getpid()), *server]
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *supervised],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests, which stop the server at the end
            **self._process(),
        )

    def _wait(self, supervisor: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        """Wait until the server responds."""
        until = time.monotonic() + START_SECONDS
        while supervisor.poll() is None and time.monotonic() < until:
            try:
                self._connect().close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        log.seek(0)
        raise PostgresFailed(f"the server did not start:\n{log.read().decode(errors='replace')[-2000:]}")

    @staticmethod
    def _process() -> dict[str, Any]:
        """How to run its processes: not as root, and without environment variables for other servers."""
        options: dict[str, Any] = {"cwd": "/", "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}}
        if os.getuid() == 0:
            user = _server_user()
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return options


def _server_user() -> pwd.struct_passwd:
    for name in _SERVER_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresFailed(f"root must not run it, and none of the users {', '.join(_SERVER_USERS)} exists")


@cache
def _shared() -> Cluster:
    cluster = Cluster(fsync=False)
    cluster.start()
    atexit.register(cluster.stop)
    return cluster


@pytest.fixture(scope="session")
def postgres() -> Cluster:
    """The cluster of this process.

    It belongs to the process and not to the fixture, because every conftest.py that imports a fixture has one of
    its own.
    """
    return _shared()

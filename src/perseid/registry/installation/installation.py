"""One directory holds an installation: its settings, its ledger, its answers and its keys.

    perseid.toml          the settings; a directory that holds it is an installation
    ledger.db             the ledger, unless the settings name a database
    answers/              the answers view, made when it is missing
    keys/checkpoint.key   the key that signs checkpoints
    keys/privkey.bin      the key with which the server signs what it answers
    keys/https.pem        its self-signed certificate for HTTPS: `certificates`
    siteinfo.json, .bin   who the server is: `site_files` reads them, `site_making` makes them

`create` makes one, `Installation.open` opens it and `upgrade` brings its tables to the version of this program. Opening
upgrades nothing: an operator decides when, with a backup at hand. It only compares two short texts, and looks whether
an upgrade came to its end, because every command pays for it.
"""

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from perseid.ledger.errors import NewerFormat, ReadOnlyStore, StoreUnavailable
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.log.log import Log
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE, prepare, sync_directory
from perseid.ledger.store.store import TABLES_VERSION as TABLES_VERSION  # noqa: PLC0414 - part of what is offered here
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.sql import rebuild_outdated
from perseid.names.errors import quote_text
from perseid.registry.access.authorization import Settings

from .files import OTHERS_READ, OTHERS_WRITE, check_mode, place, remove_files, staging_directory, write_file
from .files import InstallationError as InstallationError  # noqa: PLC0414 - part of what is offered here
from .setting_kinds import mask_password
from .settings import FILE_NAME, Config, InvalidConfig, config_template
from .site import KEYS_NAME as KEYS_NAME  # noqa: PLC0414
from .site import SITE_JSON, load_passphrase
from .site_setup import write_server_files

LEDGER_NAME: Final = "ledger.db"
ANSWERS_NAME: Final = "answers"
CHECKPOINT_KEY: Final = "checkpoint.key"
NEXT_CHECKPOINT_KEY: Final = f"{CHECKPOINT_KEY}.next"
"""The key that is about to take over, while a rotation is under way."""

MAX_ORIGIN: Final = 200
"""The longest origin of a log in characters: it stands in every checkpoint, and a restore makes it longer."""

_SEED_BYTES = 32
_ORIGIN_BYTES = 8


class NoInstallation(InstallationError):
    """There is none in the directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"there is no installation in {directory}; make one with: perseid init {directory}")


class OlderFormat(InstallationError):
    """The ledger was written by an older version of the program and must be upgraded first."""


class DatabaseUnreachable(InstallationError):
    """The database of the ledger does not answer, or does not let this program in."""


class DriverMissing(InstallationError):
    """The program was installed without what PostgreSQL needs."""


class Installation:
    """An installation that is open. Close it, or use it as a context manager.

    A process opens a directory once for writing, and its threads share it: LMDB allows no more.
    """

    def __init__(self, directory: Path, config: Config, log: Log, ledger: Ledger | None) -> None:
        self.directory = directory
        self.config = config
        self.log = log
        """To read from, whether or not writing is possible."""
        self._ledger = ledger

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        writable: bool = True,
        accept_clock: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Open the installation in a directory.

        For reading alone (`writable=False`) there is a `log` and no `ledger`: no view is touched and nothing signed,
        and root may look into the directory of another user. `accept_clock` takes the clock as it stands.
        """
        directory = directory.resolve()
        _check_directory(directory, writable=writable)
        config = _load_config(directory, environ)
        with ExitStack() as stack:
            store = stack.enter_context(closing(open_store(directory, config)))
            _check_version(directory, store, config)
            log = new_log(store, accept_clock=accept_clock)
            ledger = None
            if writable:
                signer = _load_signer(directory, log)
                answers = stack.enter_context(Answers(directory / ANSWERS_NAME))
                ledger = Ledger(log, answers, signer, partial(_load_signer, directory, log))
            stack.pop_all()
        return cls(directory, config, log, ledger)

    @property
    def ledger(self) -> Ledger:
        """The ledger with its views, to append to and resolve from."""
        if self._ledger is None:
            raise ReadOnlyStore(f"the installation in {self.directory} was opened for reading only")
        return self._ledger

    @property
    def administration(self) -> Settings:
        """What the settings say about administrators."""
        return self.config.administration

    def close(self) -> None:
        """Finish what was begun and give everything back."""
        if self._ledger is None:
            self.log.store.close()
        else:
            self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create(
    directory: Path,
    *,
    origin: str | None = None,
    settings: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Make an installation in a directory that is not there yet, or empty.

    `origin` is the name under which the ledger signs checkpoints, for ever and in public; without one it gets a number
    that says nothing about people or machines. `settings` are written into the file: `{"root": "global"}`. Should
    anything fail, nothing is left of it.
    """
    text = config_template(settings)
    config = Config.parse(text, _environ(environ))
    signer = Signer.generate(_check_origin(origin), secrets.token_bytes(_SEED_BYTES))
    directory = directory.resolve()
    passphrase, _ = load_passphrase(directory, config)
    with staging_directory(directory, FILE_NAME) as work:
        write_file(work / FILE_NAME, text.encode())
        (work / KEYS_NAME).mkdir(DIRECTORY_MODE)
        write_file(work / KEYS_NAME / CHECKPOINT_KEY, signer.to_bytes())
        write_server_files(work, config, passphrase)
        sync_directory(work / KEYS_NAME)
        with closing(open_store(work, config, new=True)) as store, translate_errors(store, config):
            if store.version() is not None:
                raise InstallationError(
                    f"there is a ledger in {mask_password(config.ledger_database)} already; name an empty database, "
                    "or give "
                    f"this node copies of {FILE_NAME}, {SITE_JSON} and {KEYS_NAME}/ of the installation that made it"
                )
            store.upgrade()
            if store.dialect == "sqlite":
                new_log(store).create(signer)
                store.close()  # nothing is left beside the file then
                place(work, directory, KEYS_NAME, FILE_NAME)
            else:
                # The database last: with its ledger goes the key, which must be in its place by then.
                placed = place(work, directory, KEYS_NAME, FILE_NAME)
                try:
                    new_log(store).create(signer)
                except BaseException:
                    remove_files(placed)
                    raise


def upgrade(directory: Path, *, environ: Mapping[str, str] | None = None) -> bool:
    """Bring the tables of an installation to the version of this program; whether there was something to do."""
    directory = directory.resolve()
    _check_directory(directory, writable=True)
    config = _load_config(directory, environ)
    with closing(open_store(directory, config)) as store, translate_errors(store, config):
        before = store.version()
        if before is None:
            raise _missing_ledger(directory, config)
        was_whole = store.is_whole
        store.upgrade()
        rebuild_outdated(new_log(store))  # also what an upgrade left that was broken off
    return before != TABLES_VERSION or not was_whole


# Looking at a directory


def load_settings(directory: Path, *, environ: Mapping[str, str] | None = None) -> Config:
    """The settings of the installation in a directory, which is this user's to write to; the ledger is not opened."""
    directory = directory.resolve()
    _check_directory(directory, writable=True)
    return _load_config(directory, environ)


def _check_directory(directory: Path, *, writable: bool) -> None:
    """Refuse what is no installation, and one that cannot be used safely."""
    path = directory / FILE_NAME
    try:
        is_there = path.is_file()
    except PermissionError:
        is_there = True  # `prepare` looks at the directory only, and says whose it is
    if not is_there:
        raise NoInstallation(directory)
    try:
        prepare(directory)
    except ReadOnlyStore:
        if writable or os.geteuid() != 0:
            raise
    except PermissionError as error:
        raise InstallationError(f"{directory} cannot be looked into: {error.strerror}") from error


def _load_config(directory: Path, environ: Mapping[str, str] | None) -> Config:
    path = directory / FILE_NAME
    try:
        config = Config.load(directory, _environ(environ))
    except OSError as error:
        raise InstallationError(f"{path} cannot be read: {error.strerror}") from error
    # Whoever may write the settings may make themselves an administrator.
    check_mode(path, OTHERS_READ if config.has_secret_in_file else OTHERS_WRITE)
    return config


def _load_signer(directory: Path, log: Log) -> Signer:
    """The key that signs checkpoints: the next one, if a rotation was broken off after it had taken over."""
    keys = directory / KEYS_NAME
    following = keys / NEXT_CHECKPOINT_KEY
    with suppress(InstallationError):  # one that is half-written has not taken over
        if following.exists():
            signer = _read_signer(following)
            with log.reading() as reading:
                if reading.signer == str(signer.public):
                    return signer
    return _read_signer(keys / CHECKPOINT_KEY)


def _read_signer(path: Path) -> Signer:
    try:
        check_mode(path, OTHERS_READ)
        return Signer.from_bytes(path.read_bytes())
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is damaged"
        message = f"{path} cannot be read: {problem}; put it back from where you keep a copy of the keys"
        raise InstallationError(message) from None


def _environ(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ


# The store


def open_store(directory: Path, config: Config, *, new: bool = False) -> Store:
    """The store that the settings name; a file that is not there is made only if it is to be new."""
    text = config.ledger_database
    if not text:
        path = directory / LEDGER_NAME
        if not new and not path.exists():
            raise _missing_ledger(directory, config)
        return Store.sqlite(path)
    try:
        return Store.postgres(text)
    except ValueError as problem:
        raise InvalidConfig(f"{config.sources['ledger.database']}: ledger.database", str(problem)) from None
    except ImportError as error:
        message = "a ledger in PostgreSQL needs a driver that is not installed; run: pip install 'perseid[postgres]'"
        raise DriverMissing(message) from error


def new_log(store: Store, *, accept_clock: bool = False) -> Log:
    """A log with the clock and the randomness of this machine."""
    clock = CheckedClock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000, accepted=accept_clock)
    return Log(store, clock, secrets.token_bytes)


def _check_version(directory: Path, store: Store, config: Config) -> None:
    with translate_errors(store, config):
        found = store.version()
        is_whole = found != TABLES_VERSION or store.is_whole
    if found is None:
        raise _missing_ledger(directory, config)
    if not is_whole:
        raise OlderFormat(f"an upgrade of the ledger was broken off; finish it: perseid upgrade -d {directory}")
    if found > TABLES_VERSION:
        raise NewerFormat(
            f"the ledger was written by a newer version of the program (tables {found}); upgrade this one"
        )
    if found < TABLES_VERSION:
        raise OlderFormat(
            f"the ledger was written by an older version of the program (tables {found}, not {TABLES_VERSION}); "
            f"make a backup with that one and run: perseid upgrade -d {directory}"
        )


@contextmanager
def translate_errors(store: Store, config: Config) -> Iterator[None]:
    """Make sentences of what a database objects to."""
    try:
        with store.translate_errors():
            yield
    except StoreUnavailable as error:
        if store.dialect == "sqlite":
            raise InstallationError(f"{store.engine.url.database} cannot be used: {error}") from error
        raise DatabaseUnreachable(
            f"the database {mask_password(config.ledger_database)} cannot be used: {error}; "
            "see that it runs and lets this "
            f"program in, or correct the setting ledger.database ({config.sources['ledger.database']})"
        ) from error


def _missing_ledger(directory: Path, config: Config) -> InstallationError:
    where = mask_password(config.ledger_database) or str(directory / LEDGER_NAME)
    return InstallationError(
        f"there is no ledger in {where}, though there is an installation in {directory}; "
        "restore a backup, or name the right database in the setting ledger.database"
    )


# Making one


def _check_origin(given: str | None) -> str:
    if given is None:
        return f"ledger-{secrets.token_hex(_ORIGIN_BYTES)}"
    if not given or len(given) > MAX_ORIGIN or "+" in given or " " in given or not given.isprintable():
        message = (
            f"an origin has up to {MAX_ORIGIN} printable characters without blanks and +, unlike {quote_text(given)}"
        )
        raise InstallationError(f"{message}; such as example.org/names")
    return given

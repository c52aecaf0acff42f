"""An installation: a directory with settings, ledger, answers view and keys.

    perseid.toml          the settings; a directory with this file is an installation
    ledger.db             the ledger, unless the settings name a database
    answers/              the answers view, rebuilt if missing
    keys/checkpoint.key   the key that signs checkpoints
    keys/privkey.bin      the key that signs responses of the server
    keys/https.pem        the self-signed certificate for HTTPS: see `certificates`
    siteinfo.json, .bin   the site information: see `site`
    spool/                the files of imports until they end: see `spool`
    migrations/           what was read last from servers that are migrated as mirrors
    statistics.db         requests and changes by day, see `perseid.ledger.statistics`; created again if missing
    known-clients         where identities were proved, as keyed hashes, for rate limits; rebuilt if missing

`create` creates one, `Installation.open` opens it and `upgrade` upgrades its tables. Opening never upgrades: an
administrator decides when, with a backup at hand. It only compares two short texts and checks that the last upgrade was
completed, because every command pays for it.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from msgspec import structs

from perseid.ledger.errors import ReadOnlyStore, StorageFull, StoreUnavailable
from perseid.ledger.ledger import Ledger, UnopenedLedger
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.log.log import Log
from perseid.ledger.merkle import Signer
from perseid.ledger.statistics import StatisticsStore
from perseid.ledger.store import TABLES_VERSION as TABLES_VERSION  # noqa: PLC0414 - re-exported
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.ledger.store.store import Store, newer_tables
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.rebuild import rebuild_outdated
from perseid.names.errors import quote_text
from perseid.records.keys import PublicKey
from perseid.records.private_keys import write_key_file
from perseid.registry.access.authorization import Settings
from perseid.registry.registry import Registry

from .certificates import create_certificate
from .files import OTHERS_READ, check_mode, place, remove_files, staging_directory, write_file
from .files import InstallationError as InstallationError  # noqa: PLC0414 - re-exported
from .public_view import ANSWERS_NAME as ANSWERS_NAME  # noqa: PLC0414
from .public_view import LEDGER_NAME as LEDGER_NAME  # noqa: PLC0414
from .public_view import NoInstallation as NoInstallation  # noqa: PLC0414
from .public_view import load_settings as load_settings  # noqa: PLC0414
from .public_view import rules_of
from .sections import mask_password
from .settings import FILE_NAME, Config, InvalidConfig, config_template
from .site import CHECKPOINT_KEY as CHECKPOINT_KEY  # noqa: PLC0414
from .site import KEYS_NAME as KEYS_NAME  # noqa: PLC0414
from .site import NEXT_CHECKPOINT_KEY as NEXT_CHECKPOINT_KEY  # noqa: PLC0414
from .site import PUBLIC_KEY, SERVER_KEY, build_site, encode_site, generate_key, load_passphrase

KNOWN_CLIENTS: Final = "known-clients"
SPOOL_NAME: Final = "spool"

MAX_ORIGIN: Final = 200
"""Maximum length of the origin of a log: it is part of every checkpoint, and a restore extends it."""

_UNAUTHENTICATED = "no password supplied"  # by libpq
_POSTGRES_PORT = 5432
_SEED_BYTES = 32
_ORIGIN_BYTES = 8


class OlderFormat(InstallationError):
    """An older version of Perseid wrote the ledger; it must be upgraded first."""


class DatabaseUnreachable(InstallationError):
    """The database does not respond, or refuses access."""

    @property
    def write_problem(self) -> StoreUnavailable:
        """The same as a problem of the ledger."""
        return StoreUnavailable(str(self))


class DriverMissing(InstallationError):
    """The PostgreSQL driver is not installed."""


class Installation:
    """An open installation. Close it, or use it as a context manager.

    A process opens a directory for writing once and its threads share it: LMDB allows no more.
    """

    def __init__(self, directory: Path, config: Config, log: Log, ledger: Ledger | None) -> None:
        self.directory = directory
        self.config = config
        self.log = log
        """For reading; available in both modes."""
        self._ledger = ledger

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        writable: bool = True,
        accept_clock: bool = False,
        environ: Mapping[str, str] | None = None,
        open_ledger: Callable[[Log, Path], Ledger] | None = None,
    ) -> Self:
        """Open the installation in a directory.

        `open_ledger` opens the ledger of a process that does not write it itself, from the log and the folder of the
        answers view. The database is then opened read-only.

        With `writable=False` there is a `log` and no `ledger`: no view is touched and nothing is signed, and root can
        read the directory of another user. `accept_clock` accepts the clock as it is.
        """
        directory = directory.resolve()
        config = load_settings(directory, writable=writable, environ=environ)
        with ExitStack() as stack:
            store = stack.enter_context(closing(open_store(directory, config, read_only=open_ledger is not None)))
            check_version(directory, store, config)
            log = new_log(store, accept_clock=accept_clock)
            ledger = None
            if open_ledger is not None:
                ledger = open_ledger(log, directory / ANSWERS_NAME)
            elif writable:
                signer = _load_signer(directory, log)
                check_origin(directory, log, config, signer)
                answers = stack.enter_context(Answers(directory / ANSWERS_NAME))
                ledger = Ledger(log, answers, signer, partial(_load_signer, directory, log))
            stack.pop_all()
        return cls(directory, config, log, ledger)

    @classmethod
    def open_without_ledger(cls, directory: Path, problem: StorageFull | DatabaseUnreachable) -> Self:
        """Open an installation whose database cannot be opened at the moment; see `UnopenedLedger`."""
        directory = directory.resolve()
        config = load_settings(directory)
        write_problem = problem if isinstance(problem, StorageFull) else problem.write_problem
        with ExitStack() as stack:
            log = new_log(stack.enter_context(closing(open_store(directory, config))))
            try:
                answers = Answers(directory / ANSWERS_NAME)
            except OSError:  # the view does not exist and cannot be created
                raise problem from None
            stack.pop_all()
        return cls(directory, config, log, UnopenedLedger(log, answers, write_problem))

    @property
    def ledger(self) -> Ledger:
        """The ledger with its views, for writing and resolution."""
        if self._ledger is None:
            raise ReadOnlyStore(f"The installation in {self.directory} is open for reading only")
        return self._ledger

    @property
    def administration(self) -> Settings:
        """The administrators of the settings."""
        return self.config.administration

    def registry(self, config: Config | None = None) -> Registry:
        """Return a registry on the ledger, with the rules of these settings; by default those it was opened with."""
        config = config or self.config
        rules = rules_of(config, self.directory)
        return Registry(self.ledger, rules, self.directory / SPOOL_NAME, StatisticsStore(self.directory))

    def close(self) -> None:
        """Complete pending work and release all resources."""
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
    """Create an installation in a new or empty directory.

    `origin` is the permanent public name under which the ledger signs checkpoints; by default a random number that
    reveals nothing about people or machines. `settings` are written to the file: `{"root": "global"}`. If anything
    fails, nothing is left behind.
    """
    text = config_template(settings)
    config = Config.parse(text, os.environ if environ is None else environ)
    if settings is not None and config.sources["ledger.database"].startswith(FILE_NAME):  # which does not exist yet
        config = structs.replace(config, sources={**config.sources, "ledger.database": "--database"})
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
                    f"{mask_password(config.ledger.database)} already contains a ledger; use an empty database. "
                    "To add a node: perseid node export at its installation, and perseid node join here"
                )
            store.upgrade()
            if store.dialect == "sqlite":
                new_log(store).create(signer)
                store.close()  # removes the journal files
                place(work, directory, KEYS_NAME, FILE_NAME)
            else:
                # The database last: the key of its ledger must be in place by then.
                placed = place(work, directory, KEYS_NAME, FILE_NAME)
                try:
                    new_log(store).create(signer)
                except BaseException:
                    remove_files(placed)
                    raise


def write_server_files(work: Path, config: Config, passphrase: bytes | None = None) -> PublicKey:
    """Write a key, site information and a certificate for a new installation.

    With a passphrase the key is protected by it.
    """
    key = generate_key()
    write_file(work / KEYS_NAME / SERVER_KEY, write_key_file(key, passphrase, secrets.token_bytes))
    write_file(work / KEYS_NAME / PUBLIC_KEY, key.public.to_bytes())
    for name, data in encode_site(build_site(config, key.public)):
        write_file(work / name, data)
    if config.http.enabled and not config.http.certificate_file:
        create_certificate(work, config, key)
    return key.public


def upgrade(directory: Path, *, environ: Mapping[str, str] | None = None) -> bool:
    """Upgrade the tables of an installation; return whether anything had to be done."""
    directory = directory.resolve()
    config = load_settings(directory, environ=environ)
    with closing(open_store(directory, config)) as store, translate_errors(store, config):
        before = store.version()
        if before is None:
            raise _missing_ledger(directory, config)
        was_complete = store.is_whole
        store.upgrade()
        rebuild_outdated(new_log(store))  # also after an interrupted upgrade
    return before < TABLES_VERSION or not was_complete


def _load_signer(directory: Path, log: Log) -> Signer:
    """Load the checkpoint key: the next one, if a rotation was interrupted after it took effect."""
    keys = directory / KEYS_NAME
    next_key = keys / NEXT_CHECKPOINT_KEY
    with suppress(InstallationError):  # an incomplete key never took effect
        if next_key.exists():
            signer = _read_signer(next_key)
            with log.open_reader() as reader:
                if reader.signer == str(signer.public):
                    return signer
    return _read_signer(keys / CHECKPOINT_KEY)


def _read_signer(path: Path) -> Signer:
    try:
        check_mode(path, OTHERS_READ)
        return Signer.from_bytes(path.read_bytes())
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "the file is damaged"
        message = f"Cannot read {path}: {problem}; restore it from your copy of the keys"
        raise InstallationError(message) from None


# The store


def open_store(directory: Path, config: Config, *, new: bool = False, read_only: bool = False) -> Store:
    """Open the store of the settings; a missing file is created only if `new`."""
    text = config.ledger.database
    if not text:
        path = directory / LEDGER_NAME
        if not new and not path.exists():
            raise _missing_ledger(directory, config)
        return Store.sqlite(path, read_only=read_only)
    try:
        return Store.postgres(text, read_only=read_only)
    except ValueError as problem:
        raise InvalidConfig(f"{config.sources['ledger.database']}: ledger.database", str(problem)) from None
    except ImportError as error:
        message = "The PostgreSQL driver is not installed; run: pip install 'perseid[postgres]'"
        raise DriverMissing(message) from error


def new_log(store: Store, *, accept_clock: bool = False) -> Log:
    """Return a log with this machine's clock and randomness."""
    clock = CheckedClock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000, accepted=accept_clock)
    return Log(store, clock, secrets.token_bytes)


def check_version(directory: Path, store: Store, config: Config) -> None:
    """Refuse a store without a ledger, or with tables of another version."""
    with translate_errors(store, config):
        version = store.version()
        is_newer = version is not None and version > TABLES_VERSION
        is_usable = not is_newer or store.accepts_program()
        is_whole = version is None or version < TABLES_VERSION or not is_usable or store.is_whole
    if version is None:
        raise _missing_ledger(directory, config)
    if not is_whole:
        raise OlderFormat(f"An upgrade of the ledger was interrupted; complete it with: perseid upgrade -d {directory}")
    if not is_usable:
        raise newer_tables(version)
    if version < TABLES_VERSION:
        raise OlderFormat(
            f"An older version of Perseid wrote the ledger (tables {version}, not {TABLES_VERSION}); "
            f"create a backup with that version, then run: perseid upgrade -d {directory}"
        )


def check_origin(directory: Path, log: Log, config: Config, signer: Signer) -> None:
    """Refuse a database with another ledger than that of the keys; it would replace the answers view."""
    if not log.store.is_remote:
        return
    with translate_errors(log.store, config), log.open_reader() as reader:
        origin = reader.origin
    if origin != signer.name:
        raise InstallationError(
            f"{mask_password(config.ledger.database)} has the ledger {origin}, and the keys in {directory} belong to "
            f"{signer.name}; correct the setting ledger.database ({config.sources['ledger.database']}). If the ledger "
            "was restored at another node: perseid node export there, and perseid node join here into a new directory"
        )


@contextmanager
def translate_errors(store: Store, config: Config) -> Iterator[None]:
    """Turn database errors into messages for administrators."""
    try:
        with store.translate_errors():
            yield
    except StoreUnavailable as error:
        if store.dialect == "sqlite":
            raise InstallationError(f"Cannot use {store.engine.url.database}: {error}") from error
        advice = _password_advice(store.parameters) if _UNAUTHENTICATED in str(error) else ""
        raise DatabaseUnreachable(
            f"Cannot use the database {mask_password(config.ledger.database)}: {error}; "
            + (
                advice
                or "check that it runs and allows access, or correct the setting ledger.database "
                f"({config.sources['ledger.database']})"
            )
        ) from error


def _password_advice(parameters: Mapping[str, Any]) -> str:
    """Why libpq found no password: it ignores password files that it cannot use."""
    file = parameters.get("passfile") or os.environ.get("PGPASSFILE", "")
    if not file:
        return (
            "write it to a password file that only the user of the server can read, and name it at the end of the URL: "
            "?passfile=FILE"
        )
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - a path as libpq has it
            mode = os.fstat(opened.fileno()).st_mode
    except FileNotFoundError:
        return f"the password file {file} does not exist"
    except OSError as error:
        return f"the password file {file} cannot be read: {error.strerror}"
    if mode & OTHERS_READ:
        return f"{file} is ignored, because other users have access to it; run: chmod 600 {file}"
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    end = f"{parameters.get('dbname', '')}:{parameters.get('user', '')}"
    lines = [f"{host or 'localhost'}:{port or _POSTGRES_PORT}:{end}" for host, port in zip(hosts, ports, strict=True)]
    return f"{file} has no line for {' or '.join(lines)}"


def _missing_ledger(directory: Path, config: Config) -> InstallationError:
    where = mask_password(config.ledger.database) or str(directory / LEDGER_NAME)
    return InstallationError(
        f"No ledger in {where} for the installation in {directory}; "
        "restore a backup, or correct the setting ledger.database"
    )


# Creation


def _check_origin(origin: str | None) -> str:
    if origin is None:
        return f"ledger-{secrets.token_hex(_ORIGIN_BYTES)}"
    if not origin or len(origin) > MAX_ORIGIN or "+" in origin or " " in origin or not origin.isprintable():
        raise InstallationError(
            f"Invalid origin {quote_text(origin)}: use at most {MAX_ORIGIN} printable characters without spaces and +, "
            "such as example.org/names"
        )
    return origin

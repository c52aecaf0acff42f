"""The public records of an installation, read from its answers view: no SQL, and nothing is opened for writing.

Loading what SQL needs takes longer than everything else that resolving a handle on the command line does. The view is
used only if it has the last entry of the ledger; otherwise only the ledger can tell.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perseid.ledger.errors import AnswersUnavailable, CorruptData, ReadOnlyStore
from perseid.ledger.store.directory import prepare
from perseid.ledger.store.sqlite import find_end
from perseid.ledger.views.answers_generation import Position
from perseid.ledger.views.answers_reader import AnswersReader, AnswersSnapshot
from perseid.registry.policy.policy import PROFILES
from perseid.registry.snapshot import LedgerNeeded, PublicSnapshot, Rules

from .files import OTHERS_READ, OTHERS_WRITE, InstallationError, check_mode, has_several_servers
from .settings import FILE_NAME, Config

if TYPE_CHECKING:
    from perseid.registry.partition import Partition

LEDGER_NAME: Final = "ledger.db"
ANSWERS_NAME: Final = "answers"


class NoInstallation(InstallationError):
    """The directory has no installation."""

    def __init__(self, directory: Path) -> None:
        other = "name another directory with -d DIR or PERSEID_DIR"
        super().__init__(f"No installation in {directory}; {other}, or create one with: perseid init {directory}")


@contextmanager
def open_public_view(directory: Path, *, accept_old: bool = False) -> Iterator[PublicSnapshot]:
    """Open the public part of the current state; raises `LedgerNeeded` if the view cannot tell.

    With `accept_old` the last changes may be missing, as in the answers of a server without its database.
    """
    directory = directory.resolve()
    config = load_settings(directory)
    try:
        with AnswersReader(directory / ANSWERS_NAME) as answers, answers.snapshot() as view:
            if not accept_old and not is_current(directory, config, view):
                raise LedgerNeeded
            yield PublicSnapshot(view, rules_of(config, directory), short_only=False)
    except (AnswersUnavailable, CorruptData) as problem:
        raise LedgerNeeded from problem


def is_current(directory: Path, config: Config, view: AnswersSnapshot) -> bool:
    """Whether a view has the last entry of the ledger; False if only the ledger can tell."""
    if config.ledger.database:
        return False  # other nodes may have written to it
    end = find_end(directory / LEDGER_NAME)
    return end is not None and view.position == Position(*end)


def rules_of(config: Config, directory: Path) -> Rules:
    """The rules of these settings, and of the site if it has several servers."""
    default, http = PROFILES[config.default_profile], config.http
    listing, delimiter = config.server.listing_allowed, config.templates.delimiter
    partition = _load_partition(config, directory)
    return Rules(config.administration, default, listing, delimiter, http.resolvers, http.schemes, partition)


def _load_partition(config: Config, directory: Path) -> "Partition | None":
    """The share of this server; None if it is the only one of its site."""
    if config.site.position == 1 and not has_several_servers(directory):
        return None
    from .partition import load_partition  # noqa: PLC0415 - it loads keys, which few commands need

    return load_partition(directory, config)


def load_settings(directory: Path, *, writable: bool = True, environ: Mapping[str, str] | None = None) -> Config:
    """Load the settings of a directory that this user can write to, or read, without opening the ledger."""
    directory = directory.resolve()
    _check_directory(directory, writable=writable)
    path = directory / FILE_NAME
    try:
        config = Config.load(directory, os.environ if environ is None else environ)
    except OSError as error:
        raise InstallationError(f"Cannot read {path}: {error.strerror}") from error
    # Users who can write the settings can make themselves administrators.
    check_mode(path, OTHERS_READ if config.has_secret_in_file else OTHERS_WRITE)
    return config


def _check_directory(directory: Path, *, writable: bool) -> None:
    """Refuse a directory that is not an installation, or is not safe to use."""
    path = directory / FILE_NAME
    try:
        exists = path.is_file()
    except PermissionError:
        exists = True  # `prepare` checks the directory and names its owner
    if not exists:
        raise NoInstallation(directory)
    try:
        prepare(directory)
    except ReadOnlyStore:
        if writable or os.geteuid() != 0:
            raise
    except PermissionError as error:
        raise InstallationError(f"Cannot read {directory}: {error.strerror}") from error

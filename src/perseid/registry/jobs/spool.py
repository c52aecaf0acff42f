"""The spool: the files of imports, from the upload to the end of the job, in a private folder of the installation.

    spool/0123456789abcdef/import.json   what is known about the import
                           source        the uploaded file; the command line reads the user's own
                           rows          the valid rows, one JSON object per line
                           problems      what is wrong with the others, likewise
                           changes       what will change in existing records, likewise
                           lock          locked by the process that works on the import

An import that no job was started for is deleted after a day. The files of a job are deleted when it ends; those of an
unfinished one stay while it can be resumed. If it is canceled, the rows stay for a day, because it can be resumed.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Final

import msgspec

from perseid.ledger.store.directory import DIRECTORY_MODE, FILE_MODE, open_new, sync_directory
from perseid.registry.advice import AdviceKind
from perseid.registry.results import StateConflict
from perseid.schema.imports import ImportResponse, ImportState, RowOptions, RowOutcome
from perseid.schema.records import WarningInfo, upgrade_warnings

EXPIRES: Final = 24 * 3_600
"""Seconds after which an import is deleted that no job was started for, or whose job was canceled: a working day and
the night after it."""

JOB_EXPIRES: Final = 30 * 24 * 3_600
"""Seconds after which the files of a job are deleted that nobody resumes: a month."""

MIN_FREE: Final = 64 << 20
"""Bytes of the disk that uploads leave free: the ledger needs them."""

_ID_BYTES = 8
_ID = re.compile(r"[0-9a-f]{16}")
_RECORD = "import.json"
_LOCK = "lock"


class ImportBusy(StateConflict):
    """Another request or process works on an import."""


class ImportRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about an import."""

    id: str
    actor: str
    """Who imports; nobody else sees it."""
    name: str
    """The name of the file."""
    created_at: int
    """Seconds since 1970."""
    state: ImportState = ImportState.UPLOADING
    sha256: str = ""
    size: int = 0
    options: RowOptions = RowOptions()
    skip_invalid: bool = False
    mint_again: bool = False
    reading: dict[str, Any] = {}
    """How to read the file."""
    query: dict[str, Any] = {}
    """The options of the user, for the response; without those that have their default."""
    detected: dict[str, Any] = {}
    """What was found out about the file."""
    mint: bool = False
    """Whether rows are minted."""
    checked: int = 0
    """Rows checked so far."""
    valid: int = 0
    invalid: int = 0
    outcomes: dict[RowOutcome, int] = {}
    """How many rows have which outcome."""
    warnings: tuple[WarningInfo, ...] = ()
    sample: tuple[str, ...] = ()
    """The first handles."""
    changes: int = 0
    """Existing records that will change."""
    basis: dict[str, str] = {}
    """What the decisions that the rows have depend on: see `import_decisions`."""
    problem: str = ""
    """Why the file as a whole cannot be imported."""
    problem_type: str = ""
    fix: str = ""
    """How to fix that, as in `RowProblem`."""
    advice_kind: str = ""
    advice_parameters: dict[str, Any] = {}
    job: str = ""
    canceled: bool = False
    """Whether the job was canceled."""
    checks: int = 0
    """How often it was checked again."""

    @property
    def prefix(self) -> str:
        """The prefix in which to mint."""
        return str(self.reading.get("prefix", ""))

    def to_response(self) -> ImportResponse:
        """Convert it for its user."""
        return ImportResponse(
            self.id,
            self.state,
            self.name,
            self.sha256,
            self.size,
            self.detected,
            self.checked,
            self.valid,
            self.invalid,
            {outcome.value: count for outcome, count in self.outcomes.items()},
            self.changes,
            self.sample,
            self.warnings,
            self.problem or None,
            self.job or None,
            self.fix or None,
            self.advice_kind,
            self.advice_parameters,
            self.problem_type or None,
            self.query,
            self.checks,
        )


@dataclass(slots=True)
class SpooledImport:
    """An import in the spool. One process works on it at a time."""

    path: Path
    record: ImportRecord

    @property
    def source(self) -> Path:
        """The uploaded file."""
        return self.path / "source"

    @property
    def rows(self) -> Path:
        """The valid rows."""
        return self.path / "rows"

    @property
    def problems(self) -> Path:
        """What is wrong with the others."""
        return self.path / "problems"

    @property
    def changes(self) -> Path:
        """What will change in existing records."""
        return self.path / "changes"

    def get_derived(self, name: str) -> Path:
        """A file that is written from others when it is first read: another one after each check."""
        return self.path / f"{name}.{self.record.checks}"

    def create(self, path: Path) -> BinaryIO:
        """Open one of the files for writing, empty."""
        path.unlink(missing_ok=True)
        return open_new(path)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Work on it alone, with what is known about it now. Raises `StateConflict`.

        The lock ends with the process that has it, so an import is never locked for longer.
        """
        gone = StateConflict(f"Import {self.record.id} was deleted", AdviceKind.IMPORT_AGAIN())
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except FileNotFoundError:
            raise gone from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reason = f"Import {self.record.id} is being checked or started by another request"
                raise ImportBusy(reason, AdviceKind.WAIT_FOR_IMPORT()) from None
            found = Spool(self.path.parent).find(self.path.name)
            if found is None:
                raise gone
            self.record = found.record
            yield
        finally:
            os.close(lock)

    def is_claimed(self) -> bool:
        """Whether some request or process works on it."""
        try:
            with self.claim():
                return False
        except ImportBusy:
            return True

    def update(self, **fields: object) -> ImportRecord:
        """Change what is known about it, durably."""
        self.record = msgspec.structs.replace(self.record, **fields)
        temporary = self.path / f"{_RECORD}.{os.getpid()}.{secrets.token_hex(2)}"
        with open_new(temporary) as file:
            file.write(msgspec.json.encode(self.record))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / _RECORD)
        sync_directory(self.path)
        return self.record

    def restart(self, **fields: Any) -> None:
        """Forget the result of the check, for another one with other options. The caller has claimed it."""
        for path in (self.rows, self.problems, self.changes, self.get_derived("report")):
            path.unlink(missing_ok=True)
        old = self.record
        fields |= {"state": ImportState.CHECKING, "size": old.size, "checks": old.checks + 1}
        self.record = ImportRecord(old.id, old.actor, old.name, old.created_at, **fields)
        self.update()

    def end(self) -> None:
        """Remove what a finished job no longer needs: everything, unless the file was uploaded.

        Its user can read the result and the problems until the import expires; a minted file has its handles then.
        """
        if not self.source.exists():
            self.discard()
            return
        self._remove_files(self.rows)

    def cancel(self) -> None:
        """Remove what a canceled job does not need if it is resumed, and the rest after a day."""
        self.update(canceled=True)
        self._remove_files()

    def _remove_files(self, *paths: Path) -> None:
        for path in (*paths, self.changes, *(() if self.record.mint else (self.source,))):
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything."""
        with suppress(FileNotFoundError):
            (self.path / _RECORD).unlink()
        shutil.rmtree(self.path, ignore_errors=True)


class Spool:
    """The imports of an installation."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, actor: str, name: str, **fields: Any) -> SpooledImport:
        """Create an import."""
        self.directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        self.remove_expired()
        record = ImportRecord(secrets.token_hex(_ID_BYTES), actor, name, int(time.time()), **fields)
        path = self.directory / record.id
        path.mkdir(DIRECTORY_MODE)
        spooled = SpooledImport(path, record)
        spooled.update()
        sync_directory(self.directory)
        return spooled

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let no other import of the installation start meanwhile."""
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def find(self, import_id: str) -> SpooledImport | None:
        """Find an import by its id; None if it is gone."""
        if not _ID.fullmatch(import_id):
            return None
        path = self.directory / import_id
        try:
            stored = msgspec.json.decode((path / _RECORD).read_bytes())
            return SpooledImport(path, msgspec.convert(upgrade_warnings(stored), ImportRecord))
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None

    def all(self) -> Iterator[SpooledImport]:
        """Yield all imports."""
        with suppress(FileNotFoundError):
            for path in sorted(self.directory.iterdir()):
                if (found := self.find(path.name)) is not None:
                    yield found

    def open_temporary(self, memory: int) -> "SpooledTemporaryFile[bytes]":
        """Open a file without a name, which is in memory up to a size, and deleted when it is closed."""
        self.directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        return SpooledTemporaryFile(memory, dir=str(self.directory))

    def has_space(self, more: int) -> bool:
        """Whether the disk has space for more bytes, and for what the ledger needs."""
        status = os.statvfs(self.directory if self.directory.exists() else self.directory.parent)
        return status.f_bavail * status.f_frsize >= more + MIN_FREE

    def used(self) -> int:
        """Return the bytes of all files."""
        total = 0
        for folder, _, names in os.walk(self.directory):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - as `os.walk` returns it
        return total

    def remove_expired(self) -> None:
        """Remove imports that nobody continued."""
        now = time.time()
        with suppress(FileNotFoundError):
            for path in self.directory.iterdir():
                with suppress(OSError):
                    found = self.find(path.name)
                    record = None if found is None else found.record
                    is_started = record is not None and record.state is ImportState.STARTED and not record.canceled
                    newest = max([path.stat().st_mtime, *[each.stat().st_mtime for each in path.iterdir()]])
                    if now - newest > (JOB_EXPIRES if is_started else EXPIRES):
                        SpooledImport(path, ImportRecord("", "", "", 0)).discard()

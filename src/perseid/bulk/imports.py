"""Imports of files: the check of a file's rows, and the file with its minted handles; see `report` for problems."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from perseid.ledger.store.jobs import Job
from perseid.records.types import URL
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.context import MAX_WARNINGS
from perseid.registry.identity import Identity
from perseid.registry.jobs.import_check import CheckSettings, ImportCheck
from perseid.registry.jobs.import_job import advise_repeated, check_not_minted, check_not_unfinished, minted_rows
from perseid.registry.jobs.spool import SpooledImport
from perseid.registry.policy.types import is_known_type
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, StateConflict, WarningKind
from perseid.schema.imports import ImportQuery, ImportState, OnExisting, RowProblem
from perseid.schema.records import WarningInfo

from . import rows
from .batch import Credential, CredentialInFile
from .columns import CREATED, OWNER, UPDATED, parse_known_column
from .formats import (
    Detected,
    FileReader,
    Format,
    InvalidFile,
    Profile,
    ReadOptions,
    TypeCheck,
    UnknownColumns,
    invalid_file,
)
from .report import HANDLE_COLUMN, write_handles
from .rows import open_rows, read_credential

E = TypeVar("E", Format, Profile)
_BLOCK: Final = 1 << 20
_LENIENT: Final = frozenset({Format.BATCH, Format.EXCHANGE, Format.DUMP, Format.JDB})
"""Formats of Handle servers, whose records have what those servers accepted."""


def to_read_options(query: ImportQuery) -> ReadOptions:
    """Return how a request wants a file to be read. Raises `InvalidFile`."""
    columns = {}
    for text in query.map:
        column, equals, meaning = text.rpartition("=")  # a type with an equals sign: see `columns.map_columns`
        if not equals:
            raise invalid_file("invalid-mapping", f"{text!r} is not a mapping.", "Use COLUMN=TYPE, as in Link=URL.")
        columns[column.strip()] = meaning.strip()
    return ReadOptions(
        _choose(Format, query.format, "format"),
        query.delimiter,
        query.encoding,
        query.sheet,
        query.mint,
        query.prefix,
        columns,
        _choose(Profile, query.profile, "profile"),
        query.raw,
    )


def find_options(query: ImportQuery) -> dict[str, Any]:
    """Return the parameters of a request that differ from their defaults, as JSON."""
    default = ImportQuery(name=query.name)
    named = {field: getattr(query, field) for field in ImportQuery.__struct_fields__}
    changed = {field: value for field, value in named.items() if value != getattr(default, field)}
    found: dict[str, Any] = msgspec.to_builtins(changed)
    return found


def _choose(kind: type[E], text: str, what: str) -> E | None:
    if not text:
        return None
    try:
        return kind(text.lower())
    except ValueError:
        fix = f"Use {', '.join(each.value for each in kind)}."
        raise invalid_file(f"unknown-{what}", f"Unknown {what} {text!r}.", fix) from None


def _share(file: BinaryIO) -> BinaryIO:
    """Return the same file from its beginning, for a reader that closes it."""
    file.seek(0)
    return os.fdopen(os.dup(file.fileno()), "rb")


def hash_file(file: BinaryIO) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file, from its beginning."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return digest.hexdigest(), size


def find_credential(file: BinaryIO, query: ImportQuery) -> Credential | None:
    """Return the identity that a file signs in with, which an interface can verify. Raises `InvalidFile`."""
    with _share(file) as shared:
        return read_credential(shared, query.name, to_read_options(query))


def find_secret(file: BinaryIO, query: ImportQuery) -> int:
    """Return the line of the first secret in a file, which is not for a server; 0 if none. Raises `InvalidFile`."""
    with _share(file) as shared:
        return rows.find_secret(shared, query.name, to_read_options(query))


@dataclass(slots=True)
class FileCheck:
    """The check of a file that is being read, in pieces."""

    check: ImportCheck
    _spooled: SpooledImport
    _resources: ExitStack
    """The claim of the import, and the file."""
    _caller: tuple[Registry, Identity]

    @classmethod
    def open(
        cls,
        registry: Registry,
        spooled: SpooledImport,
        file: BinaryIO,
        identity: Identity,
        interface: str,
        read_file: FileReader | None = None,
    ) -> "FileCheck":
        """Open a file that can be read twice. Raises `InvalidFile` and `Refused`.

        A file in the spool must not have a credential: it is deleted then.
        """
        if spooled.record.options.preserve_dates:
            with registry.snapshot() as snapshot:  # not to each row
                registry.context(snapshot, identity, interface).for_import()
        with ExitStack() as resources:
            resources.enter_context(spooled.claim())
            if spooled.record.state not in (ImportState.UPLOADING, ImportState.CHECKING):  # one that was interrupted
                raise StateConflict(f"Import {spooled.record.id} was checked already")
            sha256, size = hash_file(file)
            options = msgspec.convert(spooled.record.reading, ReadOptions)
            if options.mint and not spooled.record.mint_again:
                check_not_minted(registry, identity, sha256, options.prefix)
            elif not options.mint and spooled.record.options.on_existing is OnExisting.FAIL:
                check_not_unfinished(registry, identity, sha256)
            is_type = find_types(registry, options.prefix)
            shared = resources.enter_context(_share(file))
            try:
                reader = open_rows(
                    shared,
                    spooled.record.name,
                    options,
                    read_file=read_file,
                    is_type=is_type,
                    refuses_credentials=spooled.source.exists(),
                )
            except InvalidFile as invalid:
                _delete_credential(spooled, invalid)
                spooled.update(sha256=sha256, size=size, state=ImportState.INVALID, **_describe(invalid))
                raise
            detected = reader.detected
            spooled.update(sha256=sha256, size=size, state=ImportState.CHECKING, detected=msgspec.to_builtins(detected))
            has_urls = any(parse_known_column(column.meaning).type == URL for column in detected.columns)
            settings = CheckSettings(
                find_column(detected, HANDLE_COLUMN) or HANDLE_COLUMN,
                find_column(detected, CREATED) or CREATED,
                find_column(detected, UPDATED),
                detected.format not in _LENIENT,
                has_urls,
            )
            check = ImportCheck(registry, spooled, iter(reader), identity, interface, settings)
            if not spooled.record.options.preserve_dates:
                check.warnings += _find_unused(detected)
            if not options.sheet and detected.skipped_sheets:
                others = tuple(detected.skipped_sheets[:MAX_WARNINGS])
                check.warnings.append(
                    WarningKind.OTHER_SHEETS(AdviceKind.CHOOSE_SHEET(), sheet=detected.sheet, others=others)
                )
            return cls(check, spooled, resources.pop_all(), (registry, identity))

    def advance(self) -> bool:
        """Check some rows; return whether there may be more. Raises `InvalidFile`."""
        try:
            return self.check.advance()
        except InvalidFile as invalid:
            _delete_credential(self._spooled, invalid)
            self.check.save(state=ImportState.INVALID, **_describe(invalid))
            self.close()
            raise

    def finish(self) -> None:
        """Make the result durable."""
        record = self._spooled.record
        registry, identity = self._caller
        advice = advise_repeated(registry, identity, record.sha256) if self.check.is_repeated else None
        self.check.finish(advice)
        self.close()

    def close(self) -> None:
        """Close all files."""
        self.check.close()
        self._resources.close()


def _find_unused(detected: Detected) -> list[WarningInfo]:
    """Return a warning about columns with dates and owners, which only an import that preserves dates uses."""
    unused = [column.header for column in detected.columns if column.meaning in (CREATED, UPDATED, OWNER)]
    return [WarningKind.DATES_AND_OWNERS(AdviceKind.PRESERVE_DATES(), columns=tuple(unused))] if unused else []


def _describe(invalid: InvalidFile) -> dict[str, Any]:
    """Return what the record of an import says about a file that cannot be read."""
    found = invalid.problem
    advice = {"advice_kind": found.advice_kind, "advice_parameters": found.advice_parameters}
    columns = {"detected": {"unknown_columns": invalid.columns}} if isinstance(invalid, UnknownColumns) else {}
    described = {"problem": str(invalid), "problem_type": invalid.problem_type, "fix": found.fix}
    return {**described, **advice, **columns}


def _delete_credential(spooled: SpooledImport, invalid: InvalidFile) -> None:
    if isinstance(invalid, CredentialInFile):
        spooled.source.unlink(missing_ok=True)


def find_types(registry: Registry, prefix: str) -> TypeCheck:
    """Return which types a column can be named after: those of the namespace, or of any without a prefix."""
    with registry.snapshot() as snapshot:
        prefixes = [prefix.partition("/")[0]] if prefix else [*namespaces(snapshot.reader)]

    def is_type(type_: str) -> bool:
        with registry.snapshot() as snapshot:
            for name in prefixes:
                try:
                    if is_known_type(snapshot, snapshot.policy(name), type_):
                        return True
                except Refused:
                    continue  # its policy cannot be read
            return is_known_type(snapshot, snapshot.rules.default_policy, type_)

    return is_type


def find_column(detected: Detected, meaning: str) -> str:
    """Return the name of the column with a meaning, such as `handle`; empty if there is none."""
    return next((column.header for column in detected.columns if column.meaning == meaning), "")


def read_problems(path: Path, after: int = 0) -> Iterator[RowProblem]:
    """Yield the problems of an import, in the order of the lines, after one of them."""
    with path.open("rb") as file:
        for line in file:
            problem = msgspec.json.decode(line, type=RowProblem)
            if problem.line > after:
                yield problem


def write_minted(registry: Registry, job: Job, file: BinaryIO, name: str, options: ReadOptions, to: BinaryIO) -> int:
    """Write the file again with the handle of each row that a job has minted; return how many.

    A table gets a column, and is CSV then. The ledger has the handles, so this can be repeated.
    """
    return write_handles(minted_rows(registry, job), file, name, options, to)

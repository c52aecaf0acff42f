"""Imports into an installation, with the methods of `perseid.client.Client`."""

import hmac
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from perseid.bulk.batch import Credential
from perseid.bulk.formats import ReadOptions
from perseid.bulk.imports import FileCheck, find_options, hash_file, read_problems, to_read_options, write_minted
from perseid.bulk.report import write_report
from perseid.records.binary import MAX_BYTES
from perseid.records.errors import InvalidData
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind, phrase_row
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.jobs import import_job, runner
from perseid.registry.jobs.spool import Spool, SpooledImport
from perseid.registry.results import Refused
from perseid.schema.imports import ImportQuery, ImportResponse, ImportState, RowOptions, RowProblemResponse
from perseid.schema.jobs import JobResponse, PlannedRecord
from perseid.wire.codes import ResponseCode

from ._advice import render_advice
from ._arguments import INTERFACE, OpenInstallation, parse_value_ref
from ._output import CommandFailed
from ._target import LocalTarget


@dataclass
class LocalImports:
    """The imports of an open installation. The file stays where it is, and is read again for reports."""

    target: LocalTarget
    _files: dict[str, BinaryIO] = field(default_factory=dict)

    @property
    def session(self) -> OpenInstallation:
        """The open installation."""
        return self.target.session

    def check_import(
        self,
        file: BinaryIO,
        query: ImportQuery,
        progress: Callable[[int], None] | None = None,
        *,
        preserve_dates: bool = False,
    ) -> ImportResponse:
        """Check a file; nothing is changed. Raises `InvalidFile` if it cannot be read."""
        registry, identity = self.session.registry, self.session.identity
        spooled = self._spool.create(
            str(identity),
            query.name,
            options=RowOptions(query.on_existing, preserve_dates),
            skip_invalid=query.skip_invalid,
            mint_again=query.mint_again,
            reading=msgspec.to_builtins(to_read_options(query)),
            query=find_options(query),
        )
        try:
            check = FileCheck.open(registry, spooled, file, identity, INTERFACE, _read_file)
            with closing(check):
                while check.advance():
                    if progress is not None:
                        progress(check.check.checked)
                check.finish()
        except BaseException:
            spooled.discard()
            raise
        self._files[spooled.record.id] = file
        return spooled.record.to_response()

    def import_problems(self, import_id: str) -> Iterator[RowProblemResponse]:
        """Yield the problems of an import."""
        for problem in read_problems(self._get(import_id).problems):
            yield phrase_row(problem, render_advice)

    def import_changes(self, import_id: str) -> Iterator[PlannedRecord]:
        """Yield what an import will change in existing records."""
        with self._get(import_id).changes.open("rb") as file:
            for line in file:
                yield msgspec.json.decode(line, type=PlannedRecord)

    def write_import_report(self, import_id: str, to: BinaryIO) -> None:
        """Write the invalid rows with their problems."""
        spooled = self._get(import_id)
        options = msgspec.convert(spooled.record.reading, ReadOptions)
        write_report(read_problems(spooled.problems), self._files[import_id], spooled.record.name, options, to)

    def apply_import(self, import_id: str, *, note: str = "", check: int | None = None) -> JobResponse:
        """Start the import of the valid rows."""
        spooled = self._get(import_id)
        return self.target.start(
            import_job.start(self.session.registry, spooled, self.session.identity, INTERFACE, note, check)
        )

    def write_minted(self, job: str, file: BinaryIO, query: ImportQuery, to: BinaryIO) -> int:
        """Write a file again, with the handles that a job has minted for its rows; return how many."""
        found = runner.find_job(self.session.registry, self.session.identity, job)
        if hash_file(file)[0] != runner.load_parameters(found).get("sha256"):
            raise CommandFailed(f"Job {found.id} has not imported this file, or the file has changed since")
        return write_minted(self.session.registry, found, file, query.name, to_read_options(query), to)

    def discard_import(self, import_id: str) -> None:
        """Delete an import for which no job was started."""
        found = self._spool.find(import_id)
        if found is not None and found.record.state is not ImportState.STARTED:
            found.discard()

    @property
    def _spool(self) -> Spool:
        spool = self.session.registry.spool
        assert spool is not None  # noqa: S101 - an installation has one
        return Spool(spool)

    def _get(self, import_id: str) -> SpooledImport:
        found = self._spool.find(import_id)
        assert found is not None  # noqa: S101 - it was created here
        return found


def _read_file(path: str) -> bytes:
    """Read a file that a batch file names, up to one byte more than a value can have."""
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def authenticate(session: OpenInstallation, credential: Credential) -> OpenInstallation:
    """Act as the identity of a batch file, as with `--as`, if its secret or key verifies. Raises `Refused`."""
    from perseid.records.private_keys import read_private_key  # noqa: PLC0415 - loads cryptography
    from perseid.server.native import authentication  # noqa: PLC0415 - only for these files

    reference = parse_value_ref(credential.reference, "AUTHENTICATE")
    proof = Proof.SECRET_KEY if credential.kind == "SECKEY" else Proof.PUBLIC_KEY
    with session.registry.snapshot() as snapshot:
        stored = snapshot.group(reference.handle) or ()
    keys = authentication.candidate_keys(stored, proof, reference.index)
    if proof is Proof.SECRET_KEY:
        secret = credential.content.encode()
        found = authentication.find_proving_secret(
            keys, lambda data: hmac.compare_digest(data, secret), reference.index
        )
    else:
        path, bar, passphrase = credential.content.partition("|")
        try:
            public = read_private_key(_read_file(path), passphrase.encode() if bar else None).public
        except (InvalidData, OSError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            reason = f"Line {credential.line}: the key file {display_name(path)} cannot be read: {why}"
            raise Refused(ResponseCode.AUTHENTICATION_FAILED, reason, AdviceKind.CHECK_KEY()) from None
        found = authentication.find_proving_public_key(keys, lambda key: key == public)
    if found is None:
        reason = f"Line {credential.line}: the secret or key is not that of {display_name(str(reference))}"
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, reason, AdviceKind.CHECK_KEY())
    return replace(session, identity=KeyIdentity(reference, proof, verified_index=found.index))

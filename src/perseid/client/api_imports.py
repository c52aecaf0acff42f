"""Operations on imports (`api_operations`), and the steps of an import in both clients.

A file is sent in one request while it is read. Nothing is changed by it, so an interrupted upload is repeated.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from msgspec.structs import replace

from perseid.schema.common import MAX_PAGE, Paging
from perseid.schema.imports import (
    FileQuery,
    ImportChanges,
    ImportQuery,
    ImportResponse,
    ImportState,
    NewImportJob,
    PendingImports,
    ProblemPage,
    RowProblemResponse,
)
from perseid.schema.jobs import JobResponse, PlannedRecord

from .advice import render_kind
from .api_exchange import Repeat, Upload
from .api_operations import Input, make_input, operation, pages
from .errors import ClientError, NotFound, Refused

if TYPE_CHECKING:
    from .api import Client

POLL_SECONDS: Final = 0.5
"""Seconds between two looks at a check."""

IMPORT_PATH: Final = "/imports/{id}"

Source: TypeAlias = str | Path | BinaryIO
"""A path, or an open binary file."""

Progress: TypeAlias = Callable[[int], None]
"""Is called with the rows checked so far."""


class ImportOperations:
    """Files with many records."""

    @operation("POST", "/imports", ImportResponse, Repeat.ALWAYS)
    def create_import(self, file: BinaryIO, query: ImportQuery) -> Input:
        """Upload a file, and let the server check it; nothing is changed."""
        return make_input(query=query, body=Upload.of(file))

    @operation("GET", "/imports", PendingImports)
    def pending_imports(self) -> Input:
        """List your imports that were not applied, the oldest first."""
        return make_input()

    @operation("GET", IMPORT_PATH, ImportResponse)
    def show_import(self, import_id: str) -> Input:
        """Return what is known about an import."""
        return make_input(id=import_id)

    @operation("POST", f"{IMPORT_PATH}/check", ImportResponse, Repeat.ALWAYS)
    def recheck_import(self, import_id: str, query: ImportQuery) -> Input:
        """Check an uploaded file again, with other options; nothing is changed."""
        return make_input(query=query, id=import_id)

    @operation("DELETE", IMPORT_PATH, ImportResponse)
    def discard_import(self, import_id: str) -> Input:
        """Delete an import for which no job was started."""
        return make_input(id=import_id)

    @pages(f"{IMPORT_PATH}/problems", ProblemPage, "problems", RowProblemResponse)
    def import_problems(self, import_id: str, *, page_size: int = MAX_PAGE) -> Input:
        """List what is wrong with invalid rows."""
        return make_input(query=Paging(limit=page_size), id=import_id)

    @pages(f"{IMPORT_PATH}/changes", ImportChanges, "handles", PlannedRecord)
    def import_changes(self, import_id: str, *, page_size: int = MAX_PAGE) -> Input:
        """List what an import will change in existing records."""
        return make_input(query=Paging(limit=page_size), id=import_id)

    @operation("GET", f"{IMPORT_PATH}/report", bytes)
    def read_import_report(self, import_id: str, offset: int = 0) -> Input:
        """Return a part of the report about invalid rows; it is empty at the end."""
        return make_input(query=FileQuery(offset=offset), id=import_id)

    @operation("GET", f"{IMPORT_PATH}/handles", bytes)
    def read_minted_handles(self, import_id: str, offset: int = 0) -> Input:
        """Return a part of the file with minted handles; it is empty at the end."""
        return make_input(query=FileQuery(offset=offset), id=import_id)

    @operation("POST", f"{IMPORT_PATH}/apply", JobResponse, Repeat.WITH_KEY)
    def apply_import(self, import_id: str, *, note: str = "", sha256: str = "", check: int | None = None) -> Input:
        """Import the valid rows of a file that was checked, as a job; with `check` only after that check."""
        return make_input(body=NewImportJob(note, sha256, check), id=import_id)


def check(client: "Client", file: BinaryIO, query: ImportQuery, progress: Progress | None) -> ImportResponse:
    """Upload a file and wait until it is checked; if that is interrupted, delete it: nobody knows its id."""
    found = client.create_import(file, query)
    try:
        while found.state is ImportState.CHECKING:
            if progress is not None:
                progress(found.checked)
            time.sleep(POLL_SECONDS)
            found = client.show_import(found.id)
    except BaseException:
        with suppress(ClientError):
            client.discard_import(found.id)
        raise
    return found


def get_import_id(job: JobResponse) -> str:
    """Return the import of a job. Raises `NotFound`."""
    found = job.parameters.get("import")
    if not isinstance(found, str):
        raise NotFound(f"Job {job.job} did not import a file")
    return found


@contextmanager
def open_source(source: Source, query: ImportQuery | None) -> Iterator[tuple[BinaryIO, ImportQuery]]:
    """Open a file, and add its name to the options."""
    options = query or ImportQuery()
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            yield file, replace(options, name=options.name or Path(source).name)
    else:
        yield source, options


def require_valid(checked: ImportResponse) -> None:
    """Raise `Refused` if rows are invalid."""
    if checked.state is ImportState.READY:
        return
    invalid = f"{checked.invalid:,} of {checked.checked:,} rows are invalid; nothing was changed"
    detail = checked.problem or (invalid if checked.checked else "The file has no rows")
    advice = render_kind(checked.advice_kind, checked.advice_parameters, checked.advice or "")
    if checked.problem is None and checked.checked:
        see = f"See the problems: client.import_problems({checked.id!r}), or use ImportQuery(skip_invalid=True)"
        advice = f"{advice}. {see}" if advice else see
    raise Refused(detail, advice=advice, problem_type="invalid-value")

"""Routes of imports: upload a file, see what it would change, and apply it as a job.

The file is the body of one request, and is written to the spool (`registry.jobs.spool`) while it arrives, as fast as
the disk takes it. One that does not arrive completely is deleted. Its rows are checked in slices in a pool, so that
nothing waits for them, and the request returns after a moment. Opening a file is not work for that pool: the whole file
is hashed, and a spreadsheet is loaded by a process of its own, for which the thread waits. An import belongs to the
identity that uploaded it.
"""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from perseid.bulk.formats import InvalidFile, ReadOptions
from perseid.bulk.imports import FileCheck, find_options, read_problems, to_read_options, write_minted
from perseid.bulk.report import write_report
from perseid.ledger.store.jobs import Job
from perseid.registry.advice import AdviceKind, phrase_row, to_data, to_sentence
from perseid.registry.commands.composition import mint_requirement
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.jobs import import_job
from perseid.registry.jobs.runner import find_job, is_own_change
from perseid.registry.jobs.spool import ImportBusy, Spool, SpooledImport
from perseid.registry.responses import to_advice
from perseid.registry.results import OutOfSpace, Refused, StateConflict
from perseid.schema.common import Paging
from perseid.schema.imports import (
    FileQuery,
    ImportChanges,
    ImportQuery,
    ImportResponse,
    ImportState,
    NewImportJob,
    PendingImports,
    ProblemPage,
    RowOptions,
    RowProblemResponse,
)
from perseid.schema.jobs import JobResponse, PlannedRecord
from perseid.schema.namespaces import Scope
from perseid.schema.problems import slug_of_code
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.job_requests import (
    ACCEPTED,
    RETRY_LATER,
    authorize_registry,
    reserve_slot,
    retry_when_busy,
    run_job,
)
from perseid.server.http.v1.problems import ApiError, render_advice
from perseid.server.http.v1.routing import FileBody, Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.decisions import AuthorizedRegistry, to_refusal
from perseid.server.native.work import WorkKind
from perseid.server.state.jobs import MAX_RUNNING
from perseid.wire.codes import ResponseCode

IMPORTS: Final = Routes("Imports", "Create the records of a file: upload and check it, then apply it as a job.")

MAX_PENDING: Final = 10
"""Imports of one identity that wait to be applied. Each takes space until it is a day old."""

MAX_NAMESPACES: Final = 1_000
"""Namespaces in which a caller without a prefix is looked for: some tenths of a second."""

FIRST_SECONDS: Final = 2.0
"""Seconds that a request waits for the check: a file of some thousand rows is complete then."""

SAVE_SECONDS: Final = 1.0
"""Seconds between two updates of the progress."""

STALE_SECONDS: Final = 60
"""Seconds after which a check that no process works on has been interrupted; before that, it may wait for its turn."""

PART_SIZE: Final = 1 << 20
"""Bytes of an upload that are in memory before they are written, and of one part of a report or a result."""

T = TypeVar("T")
_openers = ThreadPoolExecutor(MAX_RUNNING, "perseid-open")  # each check has a slot, so none waits without a claim
_checks: set[asyncio.Task[None]] = set()  # the event loop keeps no reference to its tasks


@IMPORTS.add("POST", "/imports", "Upload a file", status=ACCEPTED, scope="create", problems=(401, 403, 413, 422))
async def create_import(call: ApiCall, query: ImportQuery, file: FileBody) -> Reply[ImportResponse]:
    """Upload a file and check its rows. Nothing is changed until `applyImport`.

    The body is the file: CSV or TSV, `.xlsx`, `.ods`, JSON lines, or a Handle batch file. It can be larger than other
    bodies, up to a limit of the server. Send `Expect: 100-continue` to learn of a refusal before you send a large file.
    If an upload is interrupted, repeat it.

    The check is complete when `state` is `ready` or `invalid`; for large files, poll `showImport`. You must be allowed
    to create handles. Files that are not applied are deleted after a day.
    """
    registry, spool = authorize_registry(call), _get_spool(call)
    call.call.check_can_change()
    reading = _to_read_options(query)
    length = int(call.request.header("content-length") or 0)
    _require_slot(call)  # before the file is sent

    def create() -> SpooledImport:
        _require_creator(call, registry, query.prefix)
        if len(_find_pending(call, spool)) >= MAX_PENDING:
            advice = "Apply or delete one of them, or wait until they are a day old"
            detail = f"Limit of {MAX_PENDING} pending imports reached"
            raise ApiError("too-many-requests", detail, advice, headers=RETRY_LATER)
        _check_space(call, spool, length, length)
        return spool.create(str(call.identity), query.name, **_to_fields(query, reading))

    spooled = await call.do(WorkKind.WRITE, create)
    try:
        await _receive(call, spooled, file)
        await _start_check(call, registry, partial(_begin_check, spooled))
    except BaseException:
        await asyncio.to_thread(spooled.discard)
        raise
    return Reply(_to_response(spooled), ACCEPTED)


@IMPORTS.add("GET", "/imports", "List pending imports", problems=(401,))
async def list_imports(call: ApiCall) -> Reply[PendingImports]:
    """List the files that you have uploaded and not applied, the oldest first. Their number is limited."""
    authorize_registry(call)
    spool = _get_spool(call)

    def read() -> PendingImports:
        return PendingImports([_to_response(each) for each in _find_pending(call, spool)])

    return Reply(await call.do(WorkKind.READ, read))


@IMPORTS.add("GET", "/imports/{id}", "Show an import", problems=(401, 404))
async def show_import(call: ApiCall) -> Reply[ImportResponse]:
    """Show how far the check has come, and what it has found."""
    return Reply(await call.do(WorkKind.READ, lambda: _to_response(_find(call))))


@IMPORTS.add(
    "POST",
    "/imports/{id}/check",
    "Check a file again",
    status=ACCEPTED,
    scope="create",
    problems=(401, 403, 404, 409, 422),
)
async def recheck_import(call: ApiCall, query: ImportQuery) -> Reply[ImportResponse]:
    """Check an uploaded file again with other options, such as the meaning of a column, without sending it again.

    The earlier result is forgotten. What is omitted has its default, as in `createImport`; only the name stays. If the
    file is being checked with the same options, as after a repeated request, that check continues.
    """
    registry = authorize_registry(call)
    call.call.check_can_change()
    fields = _to_fields(query, _to_read_options(query))

    def find_running() -> SpooledImport | None:
        spooled = _find(call)
        known = {name: getattr(spooled.record, name) for name in fields}
        is_same = msgspec.json.encode(known) == msgspec.json.encode(fields)
        if spooled.record.state is not ImportState.CHECKING or not is_same:
            return None
        try:
            with spooled.claim():
                return None  # the check was interrupted
        except ImportBusy:
            return spooled

    if (running := await call.do(WorkKind.READ, find_running)) is not None:
        return Reply(_to_response(running), ACCEPTED)

    def restart() -> SpooledImport:
        spooled = _find(call)
        _require_creator(call, registry, query.prefix)
        with spooled.claim():
            if spooled.record.state is ImportState.STARTED:
                reason = f"Job {spooled.record.job} imports this file"
                raise StateConflict(reason, AdviceKind.UNDO_JOB(job=spooled.record.job))
            if spooled.record.state is ImportState.UPLOADING:  # or it was interrupted: the file may be a part
                reason = f"The file of import {spooled.record.id} has not arrived completely"
                raise StateConflict(reason, AdviceKind.IMPORT_AGAIN())
            if not spooled.source.exists():
                raise _file_deleted()
            spooled.restart(**fields)
        return spooled

    return Reply(_to_response(await _start_check(call, registry, restart)), ACCEPTED)


@IMPORTS.add("DELETE", "/imports/{id}", "Delete an import", scope="create", problems=(401, 404, 409))
async def delete_import(call: ApiCall) -> Reply[ImportResponse]:
    """Delete an uploaded file that is not wanted. A job that was started is not affected: see `cancelJob`."""

    def delete() -> ImportResponse:
        spooled = _find(call)
        if spooled.record.state is ImportState.STARTED and spooled.rows.exists():
            reason = f"Job {spooled.record.job} imports this file"
            raise StateConflict(reason, AdviceKind.UNDO_JOB(job=spooled.record.job))
        spooled.discard()
        return _to_response(spooled)

    return Reply(await call.do(WorkKind.WRITE, delete))


@IMPORTS.add("GET", "/imports/{id}/problems", "List invalid rows", problems=(401, 404))
async def list_import_problems(call: ApiCall, query: Paging) -> Reply[ProblemPage]:
    """List what is wrong with invalid rows, in the order of the lines."""

    def read() -> Reply[ProblemPage]:
        spooled = _find(call)
        after = call.after(tuple[int]) or (0,)
        items: list[RowProblemResponse] = []
        if spooled.problems.exists():
            for problem in read_problems(spooled.problems, after[0]):
                items.append(phrase_row(problem, render_advice))
                if len(items) > query.limit:
                    break
        following = (items[query.limit - 1].line,) if len(items) > query.limit else None
        return call.page(ProblemPage(items[: query.limit], call.seal(following)))

    return await call.do(WorkKind.READ, read)


@IMPORTS.add("GET", "/imports/{id}/changes", "List changes of existing records", problems=(401, 404))
async def list_import_changes(call: ApiCall, query: Paging) -> Reply[ImportChanges]:
    """List what will change in existing records; at most the first 1,000 records are listed."""

    def read() -> Reply[ImportChanges]:
        spooled = _find(call)
        (after,) = call.after(tuple[int]) or (0,)
        page: list[PlannedRecord] = []
        if spooled.changes.exists():
            with spooled.changes.open("rb") as lines:
                selected = islice(lines, after, after + query.limit + 1)
                page = [msgspec.json.decode(line, type=PlannedRecord) for line in selected]
        following = (after + query.limit,) if len(page) > query.limit else None
        page = page[: query.limit]
        return call.page(ImportChanges(page, call.seal(following)))

    return await call.do(WorkKind.READ, read)


@IMPORTS.add(
    "GET",
    "/imports/{id}/report",
    "Download the invalid rows",
    media_types=("application/octet-stream",),
    problems=(401, 404, 409),
)
async def download_import_report(call: ApiCall, query: FileQuery) -> Reply[bytes]:
    """Return a part of the report: the invalid rows with their problems, in the form of the file.

    Correct the rows and import the report itself. Repeat the request with a larger `offset` until a part is empty.
    """

    def write(spooled: SpooledImport, to: BinaryIO) -> None:
        with spooled.source.open("rb") as file:
            options = msgspec.convert(spooled.record.reading, ReadOptions)
            write_report(read_problems(spooled.problems), file, spooled.record.name, options, to)

    def read() -> Reply[bytes]:
        spooled = _find(call)
        is_unchecked = spooled.record.state in (ImportState.UPLOADING, ImportState.CHECKING)
        if is_unchecked and not _is_stale(spooled):  # a report is kept, so it must be complete
            raise StateConflict(f"Import {spooled.record.id} is being checked", AdviceKind.WAIT_FOR_IMPORT())
        return _read_part(spooled, "report", query.offset, write)

    return await call.do(WorkKind.READ, read)


@IMPORTS.add(
    "GET",
    "/imports/{id}/handles",
    "Download the minted handles",
    media_types=("application/octet-stream",),
    problems=(401, 404, 409),
)
async def download_minted_handles(call: ApiCall, query: FileQuery) -> Reply[bytes]:
    """Return a part of the file with the handle of each row, when the job that minted them has ended.

    Repeat the request with a larger `offset` until a part is empty.
    """
    registry = authorize_registry(call)

    def read() -> Reply[bytes]:
        spooled = _find(call)
        job = find_job(registry, call.identity, spooled.record.job)
        if not job.ended_at:
            raise StateConflict(f"Job {job.id} has not ended", AdviceKind.RESUME_JOB(job=job.id))

        def write(spooled: SpooledImport, to: BinaryIO) -> None:
            with spooled.source.open("rb") as file:
                options = msgspec.convert(spooled.record.reading, ReadOptions)
                write_minted(registry, job, file, spooled.record.name, options, to)

        return _read_part(spooled, f"handles.{job.done}", query.offset, write)  # a canceled job can be resumed

    return await call.do(WorkKind.READ, read)


@IMPORTS.add(
    "POST",
    "/imports/{id}/apply",
    "Apply an import",
    status=ACCEPTED,
    scope="create",
    creates=True,
    problems=(401, 403, 404, 409, 422),
)
async def apply_import(call: ApiCall, new: NewImportJob) -> Reply[JobResponse]:
    """Import the valid rows as one job, in the order of the file.

    Each row requires your permissions as they are now. A row that is refused now stops the job; completed changes
    remain, and the job can be resumed or undone. `Location` is the URL of the job, and `/events` under it streams its
    progress.
    """
    registry = authorize_registry(call)

    async def start() -> Job:
        def begin() -> Job:
            spooled = _find(call)
            if new.sha256 and new.sha256.lower() != spooled.record.sha256:
                raise StateConflict(f"The file of import {spooled.record.id} has the SHA-256 {spooled.record.sha256}")
            return import_job.start(registry, spooled, call.identity, INTERFACE, new.note, new.check)

        return await call.do(WorkKind.WRITE, begin)

    return await call.once(lambda: run_job(call, registry, start))


# The spool


def _get_spool(call: ApiCall) -> Spool:
    spool = call.registry.spool
    if spool is None:
        raise ApiError("not-found", "This server has no spool for imports")
    return Spool(spool)


def _find(call: ApiCall) -> SpooledImport:
    """Find the import of the path; one of another user does not exist. Raises `Refused`."""
    authorize_registry(call)
    found = _get_spool(call).find(call.names["id"])
    if found is None or not _is_own(call, found):
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, "There is no such import", AdviceKind.IMPORT_AGAIN())
    return found


def _find_pending(call: ApiCall, spool: Spool) -> list[SpooledImport]:
    """Find the imports of the caller that no job was started for, the oldest first; expired ones are removed."""
    spool.remove_expired()
    own = [each for each in spool.all() if _is_own(call, each) and each.record.state is not ImportState.STARTED]
    return sorted(own, key=lambda each: each.record.created_at)


def _is_own(call: ApiCall, spooled: SpooledImport) -> bool:
    return is_own_change(spooled.record.actor, call.identity)


def _require_creator(call: ApiCall, registry: AuthorizedRegistry, prefix: str) -> None:
    """Refuse callers who cannot create any handle: their files would only take space."""
    with registry.snapshot() as snapshot:
        context = registry.context(snapshot, call.identity, INTERFACE)
        names = [prefix.partition("/")[0]] if prefix else namespaces(snapshot.reader)
        for name, _ in zip(names, range(MAX_NAMESPACES), strict=False):
            with suppress(Refused):  # a policy that cannot be read
                policy = snapshot.policy(name)
                scopes = Scope.CREATE, Scope.MINT  # a token needs one of them, as the rows do
                if any(context.is_allowed(mint_requirement(policy, name, scope)) for scope in scopes):
                    return
            snapshot.usage.lookups = snapshot.usage.members = 0
    reason = "You cannot create handles" + (f" under {prefix}" if prefix else " in any namespace")
    raise Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, reason, AdviceKind.ASK_ADMINISTRATOR())


def _check_space(call: ApiCall, spool: Spool, more: int, size: int) -> None:
    """Refuse a file that is too large, or for which there is no space."""
    settings = call.settings
    if size > settings.import_size:
        detail = f"The file is larger than {settings.import_size >> 20:,} MiB"
        raise ApiError("body-too-large", detail, "Split the file, or ask the administrator for a larger limit")
    if not spool.has_space(more):
        raise OutOfSpace
    if spool.used() + more > settings.import_spool:
        detail = "The uploaded files of all users take all the space for them"
        raise ApiError("storage-full", detail, "Retry later", headers=RETRY_LATER)


async def _receive(call: ApiCall, spooled: SpooledImport, file: FileBody) -> None:
    """Write a file to the spool while it arrives."""
    spool, jobs, pending, size = _get_spool(call), call.request_context.server.api.jobs, bytearray(), 0

    def write(part: bytes) -> None:
        _check_space(call, spool, len(part), size)
        try:
            with spooled.source.open("ab") as to:
                to.write(part)
        except OSError as error:
            raise OutOfSpace from error

    async def flush() -> None:
        part = bytes(pending)
        pending.clear()
        await retry_when_busy(lambda: call.do(WorkKind.WRITE, lambda: write(part)), jobs)

    await call.do(WorkKind.WRITE, lambda: spooled.create(spooled.source).close())
    async for part in file:
        pending += part
        size += len(part)
        if len(pending) >= PART_SIZE:
            await flush()
    await flush()
    await call.do(WorkKind.WRITE, lambda: spooled.update(size=size))


def _read_part(
    spooled: SpooledImport, name: str, offset: int, write: Callable[[SpooledImport, BinaryIO], None]
) -> Reply[bytes]:
    """Return a part of a file that is derived from the import, and written when it is first read."""
    path = spooled.get_derived(name)
    if not path.exists():
        if not spooled.source.exists() or (name == "report" and not spooled.problems.exists()):
            raise _file_deleted()
        temporary = spooled.path / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
        with spooled.create(temporary) as file:
            write(spooled, file)
        temporary.replace(path)
    with path.open("rb") as file:
        file.seek(offset)
        return Reply(file.read(PART_SIZE), media_type="application/octet-stream")


def _is_stale(spooled: SpooledImport) -> bool:
    """Whether a check was interrupted."""
    if spooled.record.state is not ImportState.CHECKING:
        return False
    try:
        is_old = time.time() - (spooled.path / "import.json").stat().st_mtime > STALE_SECONDS
        return is_old and not spooled.is_claimed()
    except (FileNotFoundError, StateConflict):  # it was deleted
        return False


def _to_response(spooled: SpooledImport) -> ImportResponse:
    response = spooled.record.to_response()
    if (advice := to_advice(response)) is not None:
        response = msgspec.structs.replace(response, advice=render_advice(advice))
    if _is_stale(spooled):
        problem = "The check was interrupted. Check the file again."
        return msgspec.structs.replace(response, state=ImportState.INVALID, problem=problem)
    return response


def _to_read_options(query: ImportQuery) -> ReadOptions:
    try:
        return to_read_options(query)
    except InvalidFile as invalid:
        raise InvalidParameter(invalid.problem.message, "map", invalid.problem.fix) from invalid


def _to_fields(query: ImportQuery, reading: ReadOptions) -> dict[str, Any]:
    """What the record of an import keeps of the options."""
    return {
        "options": RowOptions(query.on_existing),
        "skip_invalid": query.skip_invalid,
        "mint_again": query.mint_again,
        "reading": msgspec.to_builtins(reading),
        "query": find_options(query),
    }


def _file_deleted() -> Refused:
    return Refused(ResponseCode.HANDLE_NOT_FOUND, "The file of this import was deleted", AdviceKind.IMPORT_AGAIN())


# The check


def _require_slot(call: ApiCall) -> None:
    """Raise `ApiError` if too much is going on: the caller should know at once."""
    with reserve_slot(call):
        pass


def _begin_check(spooled: SpooledImport) -> SpooledImport:
    with spooled.claim():
        if spooled.record.state not in (ImportState.UPLOADING, ImportState.CHECKING):
            raise StateConflict(f"Import {spooled.record.id} was checked already")
        spooled.update(state=ImportState.CHECKING)  # clients wait until it has another state
    return spooled


async def _start_check(
    call: ApiCall, registry: AuthorizedRegistry, begin: Callable[[], SpooledImport]
) -> SpooledImport:
    """Start the check of what `begin` returns, and wait for it for a moment.

    Raises `ApiError` if too much is going on; then `begin` was not called, so an earlier result is still there.
    """
    with ExitStack() as stack:
        stack.enter_context(reserve_slot(call))
        spooled = await call.do(WorkKind.WRITE, begin)
        task = asyncio.get_running_loop().create_task(_check(call, registry, spooled))
        release = stack.pop_all()
    _checks.add(task)
    task.add_done_callback(_checks.discard)
    task.add_done_callback(lambda _: release.close())
    await asyncio.wait((task,), timeout=FIRST_SECONDS)
    return spooled


async def _open(start: Callable[[], FileCheck]) -> FileCheck:
    """Open a file in a thread for that; if nobody waits any more, it is closed again."""
    opening = _openers.submit(start)
    try:
        return await asyncio.wrap_future(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: "Future[FileCheck]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _unless_deleted(spooled: SpooledImport, work: Callable[[], T]) -> T:
    """Do some work on the files of an import. Raises `StateConflict` if its user has deleted them."""
    try:
        return work()
    except FileNotFoundError as error:
        if spooled.path.exists():
            raise
        raise StateConflict(f"Import {spooled.record.id} was deleted", AdviceKind.IMPORT_AGAIN()) from error


async def _check(call: ApiCall, registry: AuthorizedRegistry, spooled: SpooledImport) -> None:
    """Check all rows, in slices."""
    jobs = call.request_context.server.api.jobs

    async def do(work: Callable[[], T]) -> T:
        return await retry_when_busy(lambda: call.do(WorkKind.READ, partial(_unless_deleted, spooled, work)), jobs)

    def save(check: FileCheck) -> None:
        check.check.save()
        _check_space(call, _get_spool(call), 0, 0)  # its rows are files, too

    def start() -> FileCheck:
        with spooled.source.open("rb") as file:
            return FileCheck.open(registry, spooled, file, call.identity, INTERFACE)

    try:
        check = await _open(start)
        try:
            saved = monotonic()
            while True:
                started = monotonic()
                if not await do(check.advance):
                    break
                if monotonic() - saved > SAVE_SECONDS:
                    await do(partial(save, check))
                    saved = monotonic()
                await asyncio.sleep(min(monotonic() - started, SAVE_SECONDS))  # as long as the work took
            await do(check.finish)
        finally:
            check.close()
    except (InvalidFile, ImportBusy):
        pass  # noted in the import, or another request checks it
    except Exception as error:  # noqa: BLE001 - reported with the import
        with suppress(OSError):
            spooled.rows.unlink(missing_ok=True)
            spooled.update(state=ImportState.INVALID, **_describe(error))


def _describe(error: Exception) -> dict[str, Any]:
    """Return what the record of an import says about a check that failed."""
    if isinstance(error, ApiError):
        return {"problem": to_sentence(error.detail), "problem_type": error.slug, "fix": error.advice}
    refused = to_refusal(error)
    described = {
        "problem": to_sentence(refused.reason),
        "problem_type": refused.problem_type or slug_of_code(refused.code),
    }
    if refused.advice is None:
        return described
    kind, parameters = to_data(refused.advice)
    return {**described, "fix": str(refused.advice), "advice_kind": kind, "advice_parameters": parameters}

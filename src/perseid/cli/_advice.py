"""Advice about refusals and warnings, as commands and options."""

from collections.abc import Sequence
from shlex import quote
from typing import Final

import msgspec

from perseid.registry.advice import Advice, AdviceKind, AdviceTexts, render, to_sentence
from perseid.registry.responses import to_advice
from perseid.schema.imports import ImportResponse, RowProblemResponse
from perseid.schema.jobs import JobResponse
from perseid.schema.problems import Problem
from perseid.schema.records import Explanation, WarningInfo

TEXTS: Final[AdviceTexts] = {
    AdviceKind.ADD_USER: (
        "Name an existing key or group as INDEX:HANDLE, or add the user: perseid user add {prefix} {name}"
    ),
    AdviceKind.ASK_WHO_HAS_ACCESS: (
        "Ask an administrator for the permission, or authenticate as an identity that has it. "
        "To see who has it: perseid access {on}"
    ),
    AdviceKind.RESET_USER: "Choose another name, or give the user a new key: perseid user reset {handle}",
    AdviceKind.AUTHENTICATE: "Name an identity with --as",
    AdviceKind.CHANGE_CASE: "Leave it unchanged. If no two handles collide, confirm with --change-case",
    AdviceKind.CHANGE_POLICY: "Change its policy instead: perseid namespace policy {prefix} --edit",
    AdviceKind.CHANGE_SCHEME: "Change the scheme in the policy: perseid namespace policy {prefix} --edit",
    AdviceKind.CHOOSE_ENCODING: "Save the file as UTF-8, or choose its encoding: --encoding cp1252, for example",
    AdviceKind.CHOOSE_ON_EXISTING: "Remove the row, or use --on-existing skip or --on-existing update",
    AdviceKind.CHOOSE_SHEET: "To read another one: --sheet NAME",
    AdviceKind.CONFIRM_MINT: "To mint others: --mint-again",
    AdviceKind.CREATE_RECORD: "Create its record first: perseid create {handle} --url URL",
    AdviceKind.CREATE_TOKEN: "Use another token, or create one: perseid token create",
    AdviceKind.DEFINE_TYPE: "Define it first (perseid type add {type} --definition TEXT), or use a registered type",
    AdviceKind.ENABLE_LISTING: "Set server.listing_allowed = true in perseid.toml",
    AdviceKind.FIND_OWNED: (
        "Ask an administrator for the permission. To find what an identity owns: "
        "perseid find --prefix {prefix} --owner HANDLE"
    ),
    AdviceKind.FIX_ALIAS: "Correct the alias, or create {handle}: perseid create {handle} --url URL",
    AdviceKind.FIX_AND_RESUME_JOB: (
        "Fix the cause and resume it: perseid jobs resume {job}, or undo its changes: perseid undo {job}"
    ),
    AdviceKind.FOLLOW_SCHEME: "Mint a handle (perseid mint {prefix}), or use a suffix that follows the scheme",
    AdviceKind.FREE_SPACE: "Free disk space, then retry. To see what is affected: perseid check",
    AdviceKind.GIVE_REASON: "Give a reason with --reason TEXT",
    AdviceKind.HOST_PREFIX: "Ask the service that hosts it, or host it here: perseid namespace add {prefix}",
    AdviceKind.IGNORE_COLUMN: "Use --map {column}=- to ignore one",
    AdviceKind.IMPORT_WITH_ON_EXISTING: "Import the file again with --on-existing skip or --on-existing update",
    AdviceKind.LIST_JOBS: "List the jobs: perseid jobs list",
    AdviceKind.LIST_NAMESPACES: "List the namespaces: perseid namespace list",
    AdviceKind.LIST_TOKENS: "List the tokens: perseid token list",
    AdviceKind.LIST_TYPES: "Only handles can be registered as types. Use a registered type (perseid type list)",
    AdviceKind.LIST_USERS: "List the users: perseid user list",
    AdviceKind.MAKE_PUBLIC: "Make it public: write its type without !private, or with !public",
    AdviceKind.MAP_COLUMN: (
        "Give each unknown column a meaning, as in --map {column}={meaning}: a type, handle, state, or - to ignore it"
    ),
    AdviceKind.MAP_EACH_COLUMN: "Repeat --map for each column, as in --map {column}={meaning} --map COLUMN=TYPE",
    AdviceKind.MINT_AGAIN: (
        "To write its handles again: perseid import FILE --handles-of {job}. To mint others: --mint-again"
    ),
    AdviceKind.MINT_OR_ENTER_HANDLE: "Enter the handle. To mint handles, use --mint",
    AdviceKind.NAME_HANDLE_COLUMN: "Name the column with the handles: --map COLUMN=handle. To mint handles, use --mint",
    AdviceKind.NAME_MINT_PREFIX: "Use --prefix PREFIX",
    AdviceKind.NAME_ROW_PREFIX: "Write PREFIX/SUFFIX, or use --prefix PREFIX",
    AdviceKind.OMIT_MINT: "Leave out --mint",
    AdviceKind.NAME_RESOLVER: "Name a resolver with --resolver URL, or set http.public_url in perseid.toml",
    AdviceKind.OMIT_DATE: "Omit it. Server administrators can keep the dates of a new record with --preserve-dates",
    AdviceKind.OVERWRITE: "Choose another handle. To replace the record, add --overwrite to perseid create",
    AdviceKind.PRESERVE_DATES: "Server administrators can keep them with --preserve-dates",
    AdviceKind.REDO_IMPORT: "These records were undone by job {job}. To bring all back: perseid undo {job}",
    AdviceKind.REDO_JOB: "To redo it, undo that job: perseid undo {job}",
    AdviceKind.REOPEN_COUNTER: (
        "Find out the last identifier that was minted there, then: perseid restore --reopen {prefix} --last HANDLE"
    ),
    AdviceKind.REOPEN_NAMESPACE: (
        "Use another namespace, or set retired = false: perseid namespace policy {prefix} --edit"
    ),
    AdviceKind.REPEAT_OR_UNDO_JOB: "Run the same command again, or undo the job: perseid undo {job}",
    AdviceKind.RESTORE: "To restore the record: perseid tombstone {handle} --undo",
    AdviceKind.RESUME_JOB: "Resume that job: perseid jobs resume {job}",
    AdviceKind.RETIRE_NAMESPACE: "Keep them and register no new ones: perseid namespace remove {prefix} --retire",
    AdviceKind.RETRY_STATISTICS: (
        "Retry in some seconds; if that fails, delete statistics.db in the directory of the installation: "
        "a running server creates it again"
    ),
    AdviceKind.REUSE_DELETED: "Choose another handle. To reuse it, add --reuse-deleted to perseid create",
    AdviceKind.SEARCH_URLS: (
        "A --url that ends in * matches all URLs that begin like it. To search with the same options: perseid find"
    ),
    AdviceKind.SEE_HIDDEN: "To see it: perseid resolve {handle} --private",
    AdviceKind.SEE_HISTORY: "See which entries have the value: perseid history {handle}",
    AdviceKind.SEE_FIRST_VERSION: "To see its first version: perseid resolve {handle} --at {seq}",
    AdviceKind.SEE_LAST_VERSION: "To see its last version: perseid resolve {handle} --at {seq}",
    AdviceKind.SEE_TYPE: "See the definition of the type: perseid type show {type}",
    AdviceKind.SEE_TYPE_COPY: "See the copy of the definition: perseid type show {type}",
    AdviceKind.SEE_TYPE_FORMAT: "See docs/reference/types.md for the format of definitions",
    AdviceKind.SELECT_URLS: "Use either --url GLOB or --host HOST",
    AdviceKind.SET_AUTHORITY: (
        "To keep them, set authority = true, and default_creator unless each record has a creator: "
        "perseid namespace policy {prefix} --edit"
    ),
    AdviceKind.SET_BACK: (
        "Undo the later jobs first, or set these records back to what the job wrote. "
        "To see the changes: perseid history {handle}"
    ),
    AdviceKind.SET_CLOCK: "Set the clock, or start the server with: perseid serve --accept-clock",
    AdviceKind.TOMBSTONE_INSTEAD: "Create a tombstone instead: perseid tombstone {handle} --reason TEXT",
    AdviceKind.UNDO_EARLIER_JOB: (
        "To take back a single change: perseid history HANDLE shows the earlier values, perseid set sets them. "
        "To undo the job before it: perseid undo {job}"
    ),
    AdviceKind.UNDO_JOB: "Undo the job: perseid undo {job}",
    AdviceKind.UPDATE_IMPORTED: "Job {job} imported this file already; to update its records: --on-existing update",
    AdviceKind.UPGRADE_NODE: "Upgrade Perseid on this machine, and restart the server",
    AdviceKind.WAIT_FOR_MAINTENANCE: "To accept changes again: perseid read-only off",
}
"""The kinds for which the command line has its own text."""

_LOCAL_KINDS: Final = (
    *(AdviceKind.ENABLE_LISTING, AdviceKind.FREE_SPACE, AdviceKind.REOPEN_COUNTER, AdviceKind.RETRY_STATISTICS),
    *(AdviceKind.SET_CLOCK, AdviceKind.UPGRADE_NODE, AdviceKind.WAIT_FOR_MAINTENANCE),
)

REMOTE_TEXTS: Final[AdviceTexts] = {
    **{kind: text for kind, text in TEXTS.items() if kind not in _LOCAL_KINDS},
    AdviceKind.AUTHENTICATE: (
        "Use --token-file FILE, or --as INDEX:HANDLE with --secret-file FILE or --key-file FILE. "
        "To save them: perseid login SERVER"
    ),
    AdviceKind.CREATE_TOKEN: (
        "Use another token; to save it: perseid login SERVER. With a key you can create one: perseid token create"
    ),
    AdviceKind.NAME_RESOLVER: "Name a resolver with --resolver URL",
}
"""The texts about a server, whose directory only its administrators have."""


def render_problem(problem: Problem | Explanation | ImportResponse | WarningInfo) -> str:
    """Return the advice in a response of a server, in the words of the command line if this version knows its kind."""
    if not problem.advice_kind:
        return problem.advice or ""
    try:
        advice = to_advice(problem)
        if advice is not None:
            return render(advice, REMOTE_TEXTS, quote)
    except (LookupError, TypeError, ValueError):  # other parameters than this version knows
        pass
    return f"The server advises: {problem.advice}" if problem.advice else ""


def phrase_warnings(warnings: Sequence[WarningInfo]) -> tuple[WarningInfo, ...]:
    """Return warnings with their advice in the words of the command line."""
    return tuple([msgspec.structs.replace(each, advice=render_problem(each)) for each in warnings])


def phrase_problem(problem: RowProblemResponse) -> RowProblemResponse:
    """Return the problem of a row in a response of a server, with its fix in the words of the command line."""
    try:
        advice = to_advice(problem)
        if advice is not None:
            return msgspec.structs.replace(problem, fix=to_sentence(render(advice, REMOTE_TEXTS, quote)))
    except (LookupError, TypeError, ValueError):  # other parameters than this version knows
        pass
    return problem


def phrase_job(job: JobResponse) -> JobResponse:
    """Return a job of a server, with the advice about its problem in the words of the command line."""
    if job.problem is None:
        return job
    problem = msgspec.structs.replace(job.problem, advice=render_problem(job.problem))
    return msgspec.structs.replace(job, problem=problem)


def render_advice(advice: Advice | None) -> str:
    """Return the text of advice; empty if there is none."""
    return render(advice, TEXTS, quote)

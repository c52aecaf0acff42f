"""Advice about refusals and warnings, as Python: servers phrase it as requests, and also send its kind and parameters.

The client does not load the registry, so kinds are names here. A kind that is missing has a text without requests.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from perseid.schema.imports import ProblemPage
from perseid.schema.problems import Problem
from perseid.schema.records import WarningInfo

TEXTS: Final = {
    "AUTHENTICATE": "Connect with a token, or with identity and either secret or key",
    "ADD_USER": "Name an existing key or group as INDEX:HANDLE, or add the user: client.add_user({prefix}, {name})",
    "ASK_WHO_HAS_ACCESS": (
        "Ask an administrator for the permission, or authenticate as an identity that has it. "
        "To see who has it: client.access({on})"
    ),
    "RESET_USER": "Choose another name, or give the user a new key: client.reset_user({handle})",
    "CHANGE_CASE": "Leave it unchanged. If no two handles collide, confirm with change_case=True",
    "CHANGE_POLICY": "Change its policy instead: client.change_policy({prefix}, policy)",
    "CHANGE_SCHEME": "Change the scheme in the policy: client.change_policy({prefix}, policy)",
    "CHOOSE_ENCODING": 'Save the file as UTF-8, or choose its encoding, as in ImportQuery(encoding="cp1252")',
    "CHOOSE_ON_EXISTING": 'Remove the row, or use ImportQuery(on_existing="skip") or ImportQuery(on_existing="update")',
    "CHOOSE_SHEET": "To read another one: ImportQuery(sheet=name)",
    "CONFIRM_MINT": "To mint other handles: ImportQuery(mint_again=True)",
    "CREATE_RECORD": "Create its record first: client.create({handle}, values)",
    "CREATE_TOKEN": "Use another token, or create one: client.create_token(scopes)",
    "DEFINE_TYPE": "Define it first (client.add_type({type}, description)), or use a registered type",
    "ENABLE_LISTING": "Ask a server administrator to allow it",
    "FIND_OWNED": (
        "Ask an administrator for the permission. To find what you own: client.find(prefix={prefix}, owner=HANDLE)"
    ),
    "FIX_ALIAS": "Correct the alias, or create the record: client.create({handle}, values)",
    "FIX_AND_RESUME_JOB": "Fix the cause and resume it: client.resume({job}), or undo it: client.undo({job})",
    "FOLLOW_SCHEME": "Mint a handle (client.mint({prefix})), or use a suffix that follows the scheme",
    "FREE_SPACE": "Ask a server administrator to free disk space, then retry",
    "GIVE_REASON": "Give a reason with the argument reason",
    "HOST_PREFIX": "Ask the service that hosts it, or host it here: client.add_namespace({prefix})",
    "IGNORE_COLUMN": 'Ignore one of them: ImportQuery(map=("{column!s}=-",))',
    "IMPORT_WITH_ON_EXISTING": (
        'Import the file again with ImportQuery(on_existing="skip") or ImportQuery(on_existing="update")'
    ),
    "LIST_JOBS": "List the jobs: client.jobs()",
    "LIST_NAMESPACES": "List the namespaces: client.namespaces()",
    "LIST_TOKENS": "List the tokens: client.tokens()",
    "LIST_TYPES": "Only handles can be registered as types. Use a registered type: client.types()",
    "LIST_USERS": "List the users: client.users()",
    "MAKE_PUBLIC": 'Make it public: ValueInput(type, data, permissions="1110")',
    "MAP_COLUMN": (
        'Give each unknown column a meaning, as in ImportQuery(map=("{column!s}={meaning!s}",)): a type, handle, '
        "state, or - to ignore it"
    ),
    "MAP_EACH_COLUMN": 'Map each column by itself: ImportQuery(map=("{column!s}={meaning!s}", "COLUMN=TYPE"))',
    "MINT_AGAIN": "Undo it first: client.undo({job}), or mint other handles: ImportQuery(mint_again=True)",
    "MINT_OR_ENTER_HANDLE": "Enter the handle, or mint handles: ImportQuery(mint=True, prefix=PREFIX)",
    "NAME_HANDLE_COLUMN": "Name the column with the handles: ImportQuery(map=('COLUMN=handle',)), or mint handles",
    "NAME_MINT_PREFIX": "Name the prefix: ImportQuery(mint=True, prefix=PREFIX)",
    "NAME_ROW_PREFIX": "Write PREFIX/SUFFIX, or name the prefix: ImportQuery(prefix=PREFIX)",
    "OMIT_MINT": "Import the file without mint=True",
    "NAME_RESOLVER": 'Name a resolver, as in resolver="https://hdl.handle.net"',
    "OMIT_DATE": "Omit it. Server administrators can keep the dates of a new record with preserve_dates=True",
    "OVERWRITE": "Choose another handle, or replace the record: client.create({handle}, values, overwrite=True)",
    "PRESERVE_DATES": "Server administrators can import the file with its dates and owners",
    "REDO_IMPORT": "These records were undone by job {job}. To bring all back: client.undo({job})",
    "REDO_JOB": "To redo it, undo that job: client.undo({job})",
    "REOPEN_COUNTER": "Ask a server administrator to set the last handle that was minted under {prefix}",
    "REOPEN_NAMESPACE": "Use another namespace, or set retired = false: client.change_policy({prefix}, policy)",
    "REPEAT_OR_UNDO_JOB": "Repeat the same call, or undo the job: client.undo({job})",
    "RESTORE": "To restore the record: client.revive({handle})",
    "RESUME_JOB": "Resume that job: client.resume({job})",
    "RETIRE_NAMESPACE": "Keep them and register no new ones: client.remove_namespace({prefix}, retire=True)",
    "REUSE_DELETED": "Choose another handle, or reuse it: client.create({handle}, values, reuse_deleted=True)",
    "SEARCH_URLS": (
        "Search with the same url or host: client.find(url=url). A url that ends in * matches all that begin like it"
    ),
    "SEE_HIDDEN": "To see it: client.resolve({handle}, private=True)",
    "SEE_HISTORY": "See which entries have the value: client.history({handle})",
    "SEE_FIRST_VERSION": "To see its first version: client.resolve({handle}, at={seq})",
    "SEE_LAST_VERSION": "To see its last version: client.resolve({handle}, at={seq})",
    "SEE_TYPE": "See the definition of the type: client.type({type})",
    "SEE_TYPE_COPY": "See the copy of the definition: client.type({type})",
    "SEE_TYPE_FORMAT": "See /docs/types of the server for the format of definitions",
    "SELECT_URLS": "Give either url or host",
    "SET_AUTHORITY": (
        "To keep them, set authority = true, and default_creator unless each record has a creator: "
        "client.change_policy({prefix}, policy)"
    ),
    "SET_BACK": (
        "Undo the later jobs first, or set these records back to what the job wrote. "
        "To see the changes: client.history({handle})"
    ),
    "RETRY_STATISTICS": "Retry in some seconds; if that fails, ask a server administrator to delete statistics.db",
    "SET_CLOCK": "Ask a server administrator to set the clock, then retry",
    "TOMBSTONE_INSTEAD": "Create a tombstone instead: client.tombstone({handle}, reason)",
    "UNDO_EARLIER_JOB": "To undo the job before it: client.undo({job})",
    "UNDO_JOB": "Undo the job: client.undo({job})",
    "UPDATE_IMPORTED": (
        'Job {job} imported this file already. To update its records: ImportQuery(on_existing="update")'
    ),
    "UPGRADE_NODE": "Ask a server administrator to upgrade Perseid on this node, or retry at another node",
    "WAIT_FOR_MAINTENANCE": "Ask a server administrator when the maintenance ends, then retry",
}
"""Advice by the name of its kind; `client` is the client that was refused."""


class _Literal:
    """A parameter as a Python literal; `{name!s}` is its text inside one with double quotes."""

    def __init__(self, value: object) -> None:
        self._literal = repr(value)

    def __format__(self, _: str) -> str:
        return self._literal

    def __str__(self) -> str:
        text = self._literal[1:-1]
        return text.replace('"', '\\"') if self._literal[0] == "'" else text


def render_kind(kind: str, parameters: Mapping[str, Any], text: str) -> str:
    """Return advice as Python if this version knows its kind; otherwise the text of the server."""
    if kind not in TEXTS:
        return text
    try:
        return TEXTS[kind].format_map({name: _Literal(value) for name, value in parameters.items()})
    except LookupError:  # a newer server has other parameters
        return text


def phrase_rows(page: ProblemPage) -> ProblemPage:
    """Return problems of rows with their fixes as Python."""
    fixes = [render_kind(each.advice_kind, each.advice_parameters, each.fix) for each in page.problems]
    rows = [replace(each, fix=fix) for each, fix in zip(page.problems, fixes, strict=True)]
    return replace(page, problems=rows)


def phrase_warnings(warnings: Iterable[WarningInfo]) -> tuple[WarningInfo, ...]:
    """Return warnings with their advice as Python."""
    advice = ((each, render_kind(each.advice_kind, each.advice_parameters, each.advice)) for each in warnings)
    return tuple([replace(each, advice=text) for each, text in advice])


def render_advice(problem: Problem) -> str:
    """Return the advice in a problem of a server, as Python if this version knows its kind."""
    if problem.advice_kind in TEXTS:
        return render_kind(problem.advice_kind, problem.advice_parameters, problem.advice)
    if problem.rule:
        return problem.advice.replace(f"GET /api/v1/names/rules/{problem.rule}", f"client.rule({problem.rule!r})")
    return problem.advice

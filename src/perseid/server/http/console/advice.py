"""Texts of the console: advice about refusals in its terms, and the notices after a change."""

from contextlib import suppress
from functools import cache
from typing import Final

from perseid.ledger.log import record_keys
from perseid.registry.advice import Advice, AdviceKind, AdviceTexts, render
from perseid.registry.responses import to_advice
from perseid.registry.results import WarningKind, find_refusal, format_warning
from perseid.schema.imports import ImportResponse, RowProblemResponse
from perseid.schema.names import rules
from perseid.schema.problems import Problem
from perseid.schema.records import Explanation, WarningInfo
from perseid.server.http.context import ServerContext
from perseid.server.http.pages.links import to_sentence
from perseid.server.http.pages.texts import _, mark, on_change

from .routing import link

API_LANGUAGE: Final = "en"
"""The language of what the API says; it is not translated."""

ADVICE_TEXTS: Final[AdviceTexts] = {
    AdviceKind.AUTHENTICATE: mark("Sign in as an identity that has the permission"),
    AdviceKind.ADD_USER: mark("Enter an existing key or group as INDEX:HANDLE, or add the user {name} first"),
    AdviceKind.ASK_WHO_HAS_ACCESS: mark(
        "Ask an administrator for the permission. The page Access of {on} shows who has it"
    ),
    AdviceKind.RESET_USER: mark("Choose another name, or reset the user {handle}"),
    AdviceKind.CHANGE_CASE: mark("Leave it unchanged. If no two handles collide, confirm the change of case"),
    AdviceKind.CHANGE_POLICY: mark("Change the policy on the page of the namespace"),
    AdviceKind.CHANGE_SCHEME: mark("Change the scheme in the policy, on the page of the namespace"),
    AdviceKind.CHOOSE_ENCODING: mark(
        "Save the file as UTF-8, or enter its encoding, such as cp1252, under Options and check it again"
    ),
    AdviceKind.CHOOSE_ON_EXISTING: mark("Remove the row, or choose under Options what happens to existing records"),
    AdviceKind.CHOOSE_SHEET: mark("To read another one, enter its name under Options"),
    AdviceKind.CONFIRM_MINT: mark("To mint other identifiers, choose it under Options"),
    AdviceKind.CREATE_RECORD: mark("Create the identifier {handle} first, with its values"),
    AdviceKind.CREATE_TOKEN: mark("Create another token on the page Tokens"),
    AdviceKind.DEFINE_TYPE: mark("Use a registered type, or ask an administrator to define this one"),
    AdviceKind.ENABLE_LISTING: mark("Ask a server administrator to allow it"),
    AdviceKind.FIND_OWNED: mark("Ask an administrator of the namespace for the permission"),
    AdviceKind.FIX_ALIAS: mark("Correct the alias, or create the identifier {handle}"),
    AdviceKind.FIX_AND_RESUME_JOB: mark("Fix the cause and resume job {job}, or undo it, on its page"),
    AdviceKind.FOLLOW_SCHEME: mark("Mint an identifier, or use a suffix that follows the scheme of the namespace"),
    AdviceKind.FREE_SPACE: mark("Ask a server administrator to free disk space, then retry"),
    AdviceKind.GIVE_REASON: mark("Give a reason"),
    AdviceKind.HOST_PREFIX: mark("Ask the service that hosts it, or create the namespace here"),
    AdviceKind.IGNORE_COLUMN: mark("Enter {column}=- under Options, and check the file again"),
    AdviceKind.IMPORT_WITH_ON_EXISTING: mark(
        "Import the file again, and choose under Options what happens to existing records"
    ),
    AdviceKind.LIST_JOBS: mark("See the page Jobs"),
    AdviceKind.LIST_NAMESPACES: mark("See the page Namespaces"),
    AdviceKind.LIST_TOKENS: mark("See the page Tokens"),
    AdviceKind.LIST_TYPES: mark("Only handles can be registered as types. Use a registered type"),
    AdviceKind.LIST_USERS: mark("See the page Access"),
    AdviceKind.MAKE_PUBLIC: mark("Choose that everybody can read the value"),
    AdviceKind.MAP_COLUMN: mark(
        "Give each unknown column a meaning under Options, as in {column}={meaning}: a type, handle, state, "
        "or - to ignore it; then check the file again"
    ),
    AdviceKind.MAP_EACH_COLUMN: mark("Enter each column on a line of its own under Options, as in {column}={meaning}"),
    AdviceKind.MINT_AGAIN: mark("Undo job {job} first, or mint other identifiers"),
    AdviceKind.MINT_OR_ENTER_HANDLE: mark("Enter the handle, or choose under Options that identifiers are minted"),
    AdviceKind.NAME_HANDLE_COLUMN: mark(
        "Enter COLUMN=handle under Options, or choose there that identifiers are minted"
    ),
    AdviceKind.NAME_MINT_PREFIX: mark("Choose a namespace under Options"),
    AdviceKind.NAME_ROW_PREFIX: mark("Write PREFIX/SUFFIX, or choose a namespace under Options"),
    AdviceKind.OMIT_MINT: mark("Choose under Options that no identifiers are minted"),
    AdviceKind.NAME_RESOLVER: mark("Write the handle alone, without the address of a resolver"),
    AdviceKind.OMIT_DATE: mark("Remove the value. Only server administrators can import records with their dates"),
    AdviceKind.OVERWRITE: mark("Choose another handle, or open {handle} and edit it"),
    AdviceKind.REDO_JOB: mark("To redo it, undo job {job}"),
    AdviceKind.REPEAT_OR_UNDO_JOB: mark("Send the form again, or undo job {job}"),
    AdviceKind.REDO_IMPORT: mark("These records were undone by job {job}. To bring all back, undo that job"),
    AdviceKind.UPDATE_IMPORTED: mark(
        "Job {job} imported this file already. To update its records, choose that under Options"
    ),
    AdviceKind.PRESERVE_DATES: mark("Server administrators can import the file with its dates and owners"),
    AdviceKind.RESTORE: mark("Open {handle} and restore its record"),
    AdviceKind.RESUME_JOB: mark("Resume job {job}"),
    AdviceKind.RETIRE_NAMESPACE: mark("Retire the namespace instead: it keeps its identifiers and gets no new ones"),
    AdviceKind.REOPEN_NAMESPACE: mark("Use another namespace, or change its policy: set retired = false"),
    AdviceKind.REOPEN_COUNTER: mark("Ask a server administrator to set the last handle that was minted under {prefix}"),
    AdviceKind.RETRY_STATISTICS: mark(
        "Retry in some seconds; if that fails, ask a server administrator to delete statistics.db"
    ),
    AdviceKind.REUSE_DELETED: mark("Choose another handle, or confirm that the deleted one is used again"),
    AdviceKind.SEARCH_URLS: mark("Search for the URL first. A URL that ends in * matches all that begin like it"),
    AdviceKind.SEE_HIDDEN: mark("Open {handle} in the console"),
    AdviceKind.SEE_HISTORY: mark("See the history of {handle}"),
    AdviceKind.SEE_FIRST_VERSION: mark("See its first version, entry {seq}, in the history"),
    AdviceKind.SEE_LAST_VERSION: mark("See its last version, entry {seq}, in the history"),
    AdviceKind.SEE_TYPE: mark("Write data that matches the definition of type {type}"),
    AdviceKind.SEE_TYPE_COPY: mark("See the definition of type {type} at the service that hosts it"),
    AdviceKind.SEE_TYPE_FORMAT: mark("Correct the definition; /docs describes its format"),
    AdviceKind.SELECT_URLS: mark("Give either the URL or the host"),
    AdviceKind.SET_AUTHORITY: mark(
        "To keep them, set authority = true in the policy of {prefix}, and default_creator unless each record has a "
        "creator"
    ),
    AdviceKind.SET_BACK: mark("Undo the later jobs first, or set these records back to what the job wrote"),
    AdviceKind.SET_CLOCK: mark("Ask a server administrator to set the clock, then retry"),
    AdviceKind.TOMBSTONE_INSTEAD: mark("Create a tombstone instead"),
    AdviceKind.UNDO_EARLIER_JOB: mark("To undo the job before it, open job {job}"),
    AdviceKind.UNDO_JOB: mark("Undo job {job}"),
    AdviceKind.UPGRADE_NODE: mark(
        "Ask a server administrator to upgrade Perseid on this node, or retry at another node"
    ),
    AdviceKind.WAIT_FOR_MAINTENANCE: mark("Ask a server administrator when the maintenance ends, then retry"),
}
"""Advice as pages and fields of the console; other advice reads the same at every interface, in English."""


def describe_advice(
    source: Problem | Explanation | ImportResponse | RowProblemResponse, fallback: str
) -> tuple[str, str]:
    """Return the text of advice from the API, and its language if that is not the one of the page."""
    return render_advice(to_advice(source), fallback)


def describe_warning(warning: WarningInfo) -> tuple[str, str, str, str]:
    """Return the text of a warning and its advice, each with its language if that is not the one of the page."""
    kind = WarningKind.__members__.get(warning.code.upper())
    message, language = warning.message, API_LANGUAGE
    with suppress(LookupError):  # a stored warning can lack a parameter of a later text
        if kind is not None and (text := _(kind.value)) != kind.value:
            message, language = format_warning(text, warning.parameters), ""
    if warning.line:
        message = _("Line {line}: {text}").format(line=warning.line, text=message)
    return message, language, *render_advice(to_advice(warning), warning.advice)


def render_advice(advice: Advice | None, fallback: str = "") -> tuple[str, str]:
    """The same of advice itself."""
    if advice is None:
        return fallback, API_LANGUAGE
    own = ADVICE_TEXTS.get(advice.kind)
    return (render(advice), API_LANGUAGE) if own is None else (render(advice, {advice.kind: _(own)}), "")


def describe_rule(problem: Problem) -> str:
    """The text of the rule that a name breaks, instead of the request that returns it; empty without one."""
    rule = None if problem.advice_kind else rules().get(problem.rule or "")
    return "" if rule is None else f"{rule['title']}: {rule['text']}"


def describe_server_problem(server: ServerContext) -> str:
    """Return why the server is not ready or refuses changes, like the public health check; empty if it does not."""
    if reason := server.ready():
        return to_sentence(_("This server is not ready: {reason}").format(reason=reason))
    problem = server.registry.ledger.write_problem
    if problem is None:
        return ""
    refused = find_refusal(problem)
    reason = _("the database cannot be reached") if refused is None else refused.reason
    return to_sentence(_("Changes are refused now: {reason}").format(reason=reason))


@cache
def get_words() -> dict[str, str]:
    """Words of the API that pages show to people: actions, roles, states, outcomes, kinds of jobs."""
    return {
        "active": _("active"),
        "admin": _("admin"),
        "branch": _("branch"),
        "conflict": _("conflict"),
        "create": _("create"),
        "created": _("created"),
        "delete": _("delete"),
        "deleted": _("deleted"),
        "editor": _("editor"),
        "expired": _("expired"),
        "home": _("host a prefix"),
        "import": _("import"),
        "key_changed": _("key changed"),
        "mint": _("mint"),
        "minted": _("minted"),
        "minter": _("minter"),
        "owner": _("owner"),
        "publish": _("publish"),
        "published": _("public"),
        "reader": _("reader"),
        "redact": _("redact"),
        "rejected": _("rejected"),
        "reserve": _("reserve"),
        "reserved": _("reserved"),
        "restore": _("restore"),
        "revoked": _("revoked"),
        "rewrite": _("change links"),
        "rotate_key": _("rotate the key"),
        "skipped": _("skipped"),
        "tombstone": _("tombstone"),
        "transfer": _("transfer"),
        "unchanged": _("unchanged"),
        "undo": _("undo"),
        "unhome": _("stop hosting a prefix"),
        "unpublish": _("unpublish"),
        "unpublished": _("unpublished"),
        "update": _("update"),
        "updated": _("updated"),
    }


on_change(get_words.cache_clear)


def describe_own_record(handle: str) -> tuple[str, str]:
    """What a record of the installation itself is, and the path of the page that shows it; empty for other handles.

    The log has them, and no interface serves them as handles.
    """
    for start, text, path in (
        (f"{record_keys.HOMED}0.NA/", _("namespace {name}"), ("namespaces",)),
        (record_keys.POLICY, _("policy of {name}"), ("namespaces",)),
        (record_keys.TOKENS, _("token {name}"), ("tokens",)),
    ):
        if handle.startswith(start):
            name = handle.removeprefix(start)
            return text.format(name=name), link(*path, *([name] if path[0] == "namespaces" else []))
    if handle == record_keys.LEDGER:
        return _("the ledger"), "/ledger"
    return (handle, "") if handle.startswith(record_keys.LOCAL) else ("", "")


def get_notices() -> dict[str, str]:
    """What a page says after a change, by the parameter `done`."""
    return {
        "created": _("The identifier was created."),
        "deleted": _("The record was deleted."),
        "ended": _("Your session has ended. Sign in again."),
        "granted": _("Access was given."),
        "import-discarded": _("The uploaded file was deleted."),
        "job-cancel": _("The job stops after its current step."),
        "job-done": _("The job is done."),
        "job-resume": _("The job continues."),
        "job-started": _("The job was started."),
        "job-undo": _("The undo was started."),
        "namespace-created": _("The namespace was created."),
        "namespace-removed": _("The namespace was removed."),
        "namespace-retired": _("The namespace is retired. It keeps its identifiers and gets no new ones."),
        "policy-saved": _("The policy was saved."),
        "publish": _("The identifier is public now."),
        "reserved": _("The identifier is reserved. It does not resolve yet."),
        "restore": _("The record was restored."),
        "revoked": _("Access was revoked."),
        "saved": _("The change was saved."),
        "signed-out": _("You have signed out."),
        "signed-out-everywhere": _("You have signed out on all devices."),
        "tombstone": _("The identifier is a tombstone now."),
        "token-revoked": _("The token was revoked."),
        "transfer": _("The identifier was transferred."),
        "type-created": _("The type was registered."),
        "unchanged": _("Nothing changed."),
        "unpublish": _("The identifier is hidden now."),
        "user-disabled": _("The user was disabled."),
    }

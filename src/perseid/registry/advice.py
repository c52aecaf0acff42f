"""Advice about refusals and warnings, as data: each interface renders it in its own terms.

The value of a kind is its text where no interface has a better one; it names no command, flag or route. An interface
that can name the exact command, request or parameter has a table of texts for these kinds.
"""
# ruff: noqa: S105 - texts about tokens are not secrets

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Final, TypeAlias

import msgspec

from perseid.names.errors import capitalize
from perseid.registry.access.permissions import display_name
from perseid.schema.imports import RowProblem, RowProblemResponse


@unique
class AdviceKind(Enum):
    """What can be advised. The names in braces are parameters."""

    # Identity and permission
    ASK_ADMINISTRATOR = "Ask an administrator for the permission, or authenticate as an identity that has it"
    ASK_WHO_HAS_ACCESS = (
        "Ask somebody with access to {on} for the permission, or authenticate as an identity that has it"
    )
    RESET_USER = "Choose another name, or replace the key of the user {handle}"
    AUTHENTICATE = "Authenticate with a key that an HS_ADMIN value names"
    AUTHENTICATE_TO_SEARCH = "Authenticate to search what you can list"
    AUTHENTICATE_WITH_INDEX = "Index 0 is not enough here: authenticate with the index of your key"
    AUTHENTICATE_WITH_KEY = "Authenticate with a key"
    CHECK_KEY = "Check the identity, as INDEX:HANDLE, and its key or secret"
    ENABLE_LISTING = "Ask a server administrator to allow it"
    READ_OTHER_VALUES = "Request other values, or public values only"
    REPLACE_VALUE = "Remove value {index} and add another one"
    USE_KEY_STORED_HERE = "Use a key in a handle that this server hosts"

    # Users and roles
    CHANGE_AT_HOST = "Change {handle} at the service that hosts it"
    DISABLE_AS_OTHER = "Authenticate as another administrator"
    GRANT_OWNER = "First grant the role owner on {prefix} to another user"
    GRANT_ROLE = "Grant a role on the prefix, such as editor, or grant the permission on single records"
    LIST_USERS = "List the users"
    MOVE_VALUE = "Move value {index} of {handle} to another index"
    NAME_KEY = "Name one of its keys as INDEX:HANDLE: {keys}"
    NAME_USUAL_KEY = "Name its key as INDEX:HANDLE, such as {key}"
    ADD_USER = "Name an existing key or group as INDEX:HANDLE, or add the user {name} under {prefix}"
    NAME_KEY_OR_GROUP = "Name an existing key or group as INDEX:HANDLE"
    NAME_PREFIX = "Name a prefix"
    NAME_ROLES = "Name other roles: {roles}"
    NAME_RIGHTS = "Use a role ({roles}) or a permission ({permissions})"
    NAME_RIGHTS_ONCE = "Name each role and each permission once"
    ONE_LINE_NAME = "Use one printable line"

    # Tokens and idempotency keys
    CHANGE_LABEL = "Change the label"
    CREATE_TOKEN = "Use another token, or create one"
    CREATE_TOKEN_WITH_KEY = "Create the token as an identity whose key is stored here"
    LIST_TOKENS = "List the tokens"
    NEW_SECRET = "Generate another secret"
    OMIT_LIFETIME = "Omit it for {days} days"
    SEND_WHOLE_TOKEN = "Send the whole token, as it was shown when it was created"
    USE_NAMESPACE_TOKEN = "Use a token for namespace {prefix}, or authenticate with a key"
    USE_SERVER_TOKEN = "Use a token for all namespaces, or authenticate with a key"
    USE_SCOPED_TOKEN = "Use a token with this scope, or authenticate with a key"
    AUTHENTICATE_OR_OMIT_KEY = "Authenticate, or send the request without a key"
    SEND_FEWER_KEYS = "Send fewer and larger requests, send them without a key, or wait"
    USE_RANDOM_KEY = "Use a random key, such as a UUID"

    # Prefixes and namespaces
    ASK_HOST = "Ask the service that hosts {prefix}"
    CHANGE_CASE = "Leave it unchanged, or confirm the change if no two handles collide"
    CHANGE_POLICY = "Change its policy instead"
    CHANGE_SCHEME = "Change the scheme in the policy"
    CHECK_PREFIX = "Check the prefix, or use the service that hosts it"
    CHOOSE_HOSTED_PREFIX = "Check the prefix, or use the service that hosts it; hosted here: {prefixes}"
    CORDRA_PREFIX_EXAMPLE = "Use a prefix such as 2000.01, or another profile"
    CREATE_NAMESPACE = "Create the namespace"
    CREATE_OTHER_NAMESPACE = "Create another namespace with the other rule"
    FOLLOW_SCHEME = "Mint a handle, or use a suffix that follows the scheme"
    HOST_PREFIX = "Ask the service that hosts it, or host it here"
    INSTALL_SCHEME = "Install the package that provides the scheme, or change the policy"
    KEEP_CASE = "Keep the case rule, or create another namespace: a handle is never given up, even if it was deleted"
    KEEP_CASE_AND_SCHEME = "Leave case and scheme unchanged"
    LIST_NAMESPACES = "List the namespaces"
    NAME_CREATOR = "Name an existing creator, or act as an identity that can mint in this namespace"
    OMIT_ADMINISTRATORS = "Omit the administrators, and change that record afterwards"
    PREFIX_EXAMPLE = "Use a prefix such as 12345"
    PREFIX_HANDLE_EXAMPLE = "Write the prefix as 12345 or 0.NA/12345"
    REOPEN_NAMESPACE = "Use another namespace, or ask its administrator to set retired = false in the policy"
    RETIRE_NAMESPACE = "Retire the namespace instead: it keeps its handles and registers no new ones"
    SET_AUTHORITY = (
        "To keep them, set authority = true in the policy, and default_creator unless each record has a creator"
    )
    SET_POLICY = "Set the policy of the namespace again"
    TRANSFER_PREFIX = "Transfer the whole prefix: {prefix}"
    STOP_HOSTING_OR_KEEP_PUBLIC = "Keep it public, or stop hosting the prefix"
    STOP_HOSTING_OR_TRANSFER = "Transfer the prefix, or stop hosting it"
    USE_BARE_PREFIX = "Write the prefix alone: {prefix}"
    USE_OTHER_SERVER = "Use that server: {address}"
    USE_OTHER_INSTALLATION = "Use another installation"

    # Handles
    CHECK_COPIED_HANDLE = "Check that you copied only the handle"
    CHOOSE_CHARACTERS = "Choose other characters"
    CHOOSE_HANDLE = "Choose another handle"
    MINT_UNDER_PREFIX = "Mint under {prefix}: the service creates the whole suffix"
    OVERWRITE = "Choose another handle, or replace the record"
    REGISTER_COMPOSED = "Register {handle}, which is {escaped}"
    REGISTER_WITHOUT_QUERY = "Register {handle}"
    REUSE_DELETED = "Choose another handle, or confirm that it is reused"
    SEE_HIDDEN = "Ask for private values too"
    SEE_FIRST_VERSION = "Ask for its first version, entry {seq}"
    SEE_LAST_VERSION = "Ask for its last version, entry {seq}"
    USE_BARE_HANDLE = "Write the handle alone: {handle}"
    USE_ONE_SCRIPT = "Write the suffix in one script; digits and punctuation belong to every script"

    # Minting
    MINT_INSTEAD = "Mint it, or set the values when you create the record"
    MINT_WITHOUT_RESERVING = "Mint without reserving, or add the values later"
    NAME_OWNER_OR_DEFAULT = "Name an owner as INDEX:HANDLE, or set default_administrators in the policy"
    RESERVE_INSTEAD = "Reserve it instead"
    RETRY_AFTER = "Retry in {seconds} s; if that is long, check the clock of the server"
    REOPEN_COUNTER = "Ask a server administrator to set the last handle that was minted under {prefix}"
    USE_SEVERAL_REQUESTS = "Use several requests"

    # The server
    FREE_SPACE = "Ask a server administrator to free disk space, then retry"
    RETRY_STATISTICS = "Retry in some seconds; if that fails, ask a server administrator to delete statistics.db"
    SET_CLOCK = "Ask a server administrator to set the clock, then retry"
    UPGRADE_NODE = "Ask a server administrator to upgrade Perseid on this node, or retry at another node"
    WAIT_FOR_MAINTENANCE = "Ask a server administrator when the maintenance ends, then retry"

    # Records and values
    ADD_CREATOR = "Add a value of type {type} with the creator's handle, or set default_creator in the policy"
    ADD_REASON = "Add the reason as a value of type {type}: a column of that name, or a member of values"
    ADD_VALUE = "Add such a value"
    CORRECT_DATE = "Correct the date, or the clock of the server"
    CREATE_PARTY = "Create and publish that record first, or name a handle that resolves"
    CREATE_RECORD = "Create its record first, with its values"
    ENCODE_BLANK = "Remove it, or write a blank that belongs to the URL as %20"
    FIX_VALUE = "Fix the value; nothing was changed"
    KEEP_ADMINISTRATOR = "Keep at least one HS_ADMIN value"
    KEEP_ONE_VALUE = "Keep one of them"
    KEEP_UNCHANGED = "Leave it unchanged. If you replace the whole record, you can also omit it"
    MAKE_PUBLIC = "Make it readable by the public, as in rwr-"
    NAME_EXISTING_OWNER = "Name an existing key or group"
    NAME_INDEX = "Name the index of the value"
    NAME_OWNER = "Name an owner as INDEX:HANDLE"
    NAME_PARTY = "Name the {role} by a handle, bare or as hdl:PREFIX/SUFFIX"
    OMIT_DATE = "Omit it. Only server administrators can keep the dates of a record"
    OMIT_FORBIDDEN_TYPE = "Omit it, or use a type that is not forbidden"
    OMIT_OTHER_TYPE = "Omit it, or use one of these types"
    OMIT_OWNER = "Omit it: the creator is the owner unless another owner is named"
    READ_AGAIN = "Read it again, and retry with the current version"
    OMIT_CHARACTER = "If it is there by mistake, write it without this character"
    REMOVE_EXISTS_CONDITION = "Remove the condition that it must exist"
    REMOVE_LINK = "Remove that value first"
    REMOVE_NEW_CONDITION = "Remove the condition that it must not exist, or choose another handle"
    REMOVE_VALUES = "Remove some values"
    USE_ABSOLUTE_URL = "Use an absolute URL, such as https://example.org/1"
    USE_OTHER_SCHEME = "Use a URL with one of these schemes"
    USE_TTL = "Use a number of seconds from 0, or a time in ISO 8601"
    USE_URL = "Use {url} instead"
    WRITE_CREATED = "Write a date as in 2003-02-01, or date, time and zone as in 2003-02-01T12:00:00Z"
    WRITE_DATE = "Write date, time and zone as in {example}"

    # Types
    DEFINE_TYPE = "Define it first, or use a registered type"
    LIST_TYPES = "Only handles can be registered as types. Use a registered type"
    SEE_TYPE = "Write data that matches the definition of the type"
    SEE_TYPE_COPY = "Ask the service that hosts it"
    SEE_TYPE_FORMAT = "Correct the definition"
    USE_MEANT_TYPE = "Use {type}, if you mean that"
    SEPARATE_TYPES = "Create a record for each type"
    WRITE_IN_STEPS = "Write them in several changes: existing values are not checked again"

    # Aliases, links and templates
    FIX_ALIAS = "Correct the alias, or create {handle}"
    FIX_TEMPLATE = "Ask the administrator of the prefix to fix the template"
    LINK_REPLACEMENT = "Link its replacement"
    NAME_OTHER_TARGET = "Name another handle as target"
    NAME_TWO_HANDLES = "Name two handles"
    RESOLVE_WITHOUT_ALIASES = "Resolve the records on the way without following aliases"

    # Tombstones and redactions
    CHANGE_REASON = "Change the reason"
    CHANGE_VALUES = "Change its values directly"
    CREATE_REPLACEMENT = "Create and publish the replacement first"
    GIVE_REASON = "Give a reason"
    NAME_HANDLE = "Name a handle"
    NAME_OTHER_REPLACEMENT = "Name another handle, or none"
    REPLACE_RECORD = "Replace the record as a whole"
    RESTORE = "Restore the record first"
    SEE_HISTORY = "The history of the handle shows which entries have the value"
    TOMBSTONE_INSTEAD = "Create a tombstone instead"

    # Jobs
    ASK_JOB_OWNER = "Ask that user or a server administrator to resume it"
    FIX_AND_RESUME_JOB = "Fix the cause and resume job {job}, or undo its changes"
    LIST_JOBS = "List the jobs"
    REDO_JOB = "To redo it, undo job {job}"
    REPEAT_OR_UNDO_JOB = "Repeat the request, or undo job {job}"
    RESUME_JOB = "Resume job {job}"
    SEARCH_URLS = "Search for the URLs first. A pattern that ends in * matches all URLs that begin like it"
    SELECT_URLS = "Give either the URL or the host that will change"
    SET_BACK = "Undo the later jobs first, or set these records back to what the job wrote"
    UNDO_EARLIER_JOB = "To undo the job before it, name job {job}"
    UNDO_JOB = "Undo job {job}"
    URL_PATTERN_EXAMPLE = "For example: https://old.example/*"
    URL_REPLACEMENT_EXAMPLE = "For example: https://new.example/*"

    # Imports
    ADD_URLS = "Add the URLs to these rows, unless they should have none"
    CHOOSE_ENCODING = "Save the file as UTF-8, or choose its encoding, such as cp1252"
    CHOOSE_SHEET = "To read another one, name it"
    IGNORE_COLUMN = "Remove one of the columns, or ignore {column}"
    MAP_COLUMN = "Give each unknown column a meaning, such as a type ({column} may be {meaning}), or ignore it"
    MAP_EACH_COLUMN = "Give each column its own meaning, such as {meaning} for {column}"
    MINT_OR_ENTER_HANDLE = "Enter the handle, or choose that handles are minted"
    NAME_HANDLE_COLUMN = "Name the column with the handles, or choose that handles are minted"
    NAME_MINT_PREFIX = "Name the prefix in which to mint"
    NAME_ROW_PREFIX = "Write PREFIX/SUFFIX, or name the prefix of handles that have none"
    OMIT_MINT = "Import the file without minting"
    CHANGE_STATE = "Publish or unpublish {handle} by itself, or leave the state out of the file"
    CHOOSE_ON_EXISTING = "Remove the row, or choose that existing records are skipped or updated"
    IMPORT_AGAIN = "Import the file again"
    IMPORT_WITH_ON_EXISTING = "Import the file again, and choose that existing records are skipped or updated"
    SHOW_IMPORT = "Look at the result of the last check, then import the file"
    WAIT_FOR_IMPORT = "Wait until it has finished"
    MINT_AGAIN = "Undo job {job} first, or confirm that each row shall get another handle"
    CONFIRM_MINT = "Confirm that each row shall get another handle"
    NAME_STATE = "Use published, unpublished, reserved or tombstone; a minted handle is no tombstone"
    PRESERVE_DATES = "Server administrators can import the file with its dates and owners"
    REDO_IMPORT = "Job {job} has undone the import of this file. To bring its records back, undo that job"
    REMOVE_DUPLICATE = "Remove this row, or give it another handle"
    UPDATE_IMPORTED = "Job {job} imported this file already. To update its records, choose that they are updated"

    # Queries
    ACTOR_EXAMPLE = "For example: 300:12345/ann, 12345/ann, local:ann or token:k7qpx2ma"
    FIND_OWNED = "Ask an administrator for the permission, or search for the handles that you own"
    GIVE_CRITERION = "Give a URL, host, path, type, value, words, owner, prefix or entry"
    GIVE_ENTRY = "Give an existing entry, or a time"
    GIVE_PAST_TIME = "Give a time in the past"
    GIVE_SMALLER_SIZE_FIRST = "Give the smaller size first"
    KEEP_CHECKPOINT = (
        "Use a size of at most {size}. If you have a signed checkpoint of that size, the ledger was restored to an "
        "earlier state or replaced: keep the checkpoint and contact the server administrator"
    )
    NAME_RESOLVER = "Name a resolver, or use the `hdl:` form"
    OWNER_EXAMPLE = "For example: 12345/ann"
    PROVE_EARLIER_VERSION = "Prove an earlier version with fewer or shorter values"
    START_AGAIN = "Start again without a cursor"
    START_AT_ENTRY = "Start at 0, or after the last entry of a page"
    SWAP_VERSIONS = "Swap both times"
    USE_ACCEPT_DATETIME = "For example: Accept-Datetime: Sun, 15 Nov 2026 10:00:00 GMT"
    USE_CURRENT_VERSION = "Ask for the current version"
    USE_DATE = "Use a date or time such as 2026-11-15 or 2026-11-15T10:00:00Z"
    USE_ISO_TIME = "Use an ISO 8601 time such as 2026-11-15T10:00:00Z, or an entry number"
    USE_JSON_LINES = "Export it as JSON lines"
    EXPORT_CSV = "Export it as CSV"
    USE_LIMIT = "Use a limit of at least 1"
    USE_PAGE_URL = "Use the URL of a page"
    USE_URL_PATTERN = "For example: https://example.org/*"
    WORDS_EXAMPLE = "For example: map of venice"

    def __call__(self, **parameters: object) -> "Advice":
        """Advice of this kind."""
        return Advice(self, tuple(parameters.items()))


@dataclass(frozen=True, slots=True)
class Advice:
    """How to fix what was refused, or what a result warns about."""

    kind: AdviceKind
    parameters: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        return render(self)


def to_data(advice: Advice) -> tuple[str, dict[str, Any]]:
    """Return advice as the name of its kind and its parameters, which another interface can phrase (`from_data`)."""
    parameters = {name: value if isinstance(value, tuple) else str(value) for name, value in advice.parameters}
    return advice.kind.name, parameters


def describe_advice(advice: Advice | None) -> dict[str, Any]:
    """Return what the record of an import keeps of advice."""
    if advice is None:
        return {}
    kind, parameters = to_data(advice)
    return {"fix": to_sentence(str(advice)), "advice_kind": kind, "advice_parameters": parameters}


def from_data(kind: str, parameters: Mapping[str, Any]) -> Advice | None:
    """Return advice from its data; None if there is none, or one of a newer version."""
    found = AdviceKind.__members__.get(kind)
    if found is None:
        return None
    return found(**{name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()})


AdviceTexts: TypeAlias = Mapping[AdviceKind, str | None]
"""The texts of an interface; None where it can do nothing about it."""

NO_TEXTS: Final[AdviceTexts] = {}


def render(advice: Advice | None, texts: AdviceTexts = NO_TEXTS, quote: Callable[[str], str] = display_name) -> str:
    """Return the text of advice at an interface; empty if there is none. `quote` is for parameters in `texts`."""
    if advice is None:
        return ""
    has_own = advice.kind in texts
    text = texts[advice.kind] or "" if has_own else advice.kind.value
    to_text = quote if has_own else display_name
    return text.format(**{name: _format(value, to_text) for name, value in advice.parameters})


def to_sentence(text: str) -> str:
    """Return a text as a sentence; empty if it is empty."""
    return f"{capitalize(text).rstrip('.')}." if text else ""


def advise_row(problem: RowProblem, advice: Advice | None) -> RowProblem:
    """Return the problem of a row with its fix: as data, and as text in the terms of no interface."""
    if advice is None:
        return problem
    kind, parameters = to_data(advice)
    return msgspec.structs.replace(
        problem, fix=to_sentence(str(advice)), advice_kind=kind, advice_parameters=parameters
    )


def phrase_row(problem: RowProblem, to_text: Callable[[Advice], str]) -> RowProblemResponse:
    """Return the problem of a row with its fix in the terms of an interface."""
    found = RowProblemResponse(*msgspec.structs.astuple(problem))
    advice = from_data(found.advice_kind, found.advice_parameters)
    return found if advice is None else msgspec.structs.replace(found, fix=to_sentence(to_text(advice)))


def _format(value: object, to_text: Callable[[str], str]) -> str:
    return ", ".join(map(to_text, value)) if isinstance(value, tuple) else to_text(str(value))

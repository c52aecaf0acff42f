"""Texts of the console: advice about refusals in its terms, and the notices after a change."""

from functools import cache
from typing import Final

from perseid.registry.advice import AdviceKind, AdviceTexts
from perseid.server.http.pages.texts import _, on_change

ADVICE_TEXTS: Final[AdviceTexts] = {
    AdviceKind.AUTHENTICATE: "Sign in as an identity that has the permission",
    AdviceKind.CHANGE_CASE: "Leave it unchanged. If no two handles collide, confirm the change of case",
    AdviceKind.CHANGE_POLICY: "Change the policy on the page of the namespace",
    AdviceKind.CHANGE_SCHEME: "Change the scheme in the policy, on the page of the namespace",
    AdviceKind.CHOOSE_ENCODING: "Save the file as UTF-8, or upload it again and enter its encoding, such as cp1252",
    AdviceKind.CHOOSE_ON_EXISTING: "Remove the row, or choose above what happens to existing records",
    AdviceKind.CREATE_RECORD: "Create its record first",
    AdviceKind.CREATE_TOKEN: "Create another token on the page Tokens",
    AdviceKind.DEFINE_TYPE: "Use a registered type, or ask an administrator to define this one",
    AdviceKind.FIND_OWNED: "Ask an administrator of the namespace for the permission",
    AdviceKind.FIX_AND_RESUME_JOB: "Fix the cause and resume job {job}, or undo it, on its page",
    AdviceKind.FOLLOW_SCHEME: "Mint an identifier, or use a suffix that follows the scheme of the namespace",
    AdviceKind.GIVE_REASON: "Give a reason",
    AdviceKind.HOST_PREFIX: "Ask the service that hosts it, or create the namespace here",
    AdviceKind.IGNORE_COLUMN: "Upload the file again, and enter {column}=- under the columns",
    AdviceKind.LIST_JOBS: "See the page Jobs",
    AdviceKind.LIST_NAMESPACES: "See the page Namespaces",
    AdviceKind.LIST_TOKENS: "See the page Tokens",
    AdviceKind.LIST_TYPES: "Only handles can be registered as types. Use a registered type",
    AdviceKind.LIST_USERS: "See the page Access",
    AdviceKind.MAKE_PUBLIC: "Choose that everybody can read the value",
    AdviceKind.MAP_COLUMN: (
        "Upload the file again, and enter {column}=TYPE under the columns to store it as a type, "
        "or {column}=- to ignore it"
    ),
    AdviceKind.MINT_AGAIN: "Undo job {job} first, or confirm that each row gets another handle",
    AdviceKind.MINT_OR_ENTER_HANDLE: "Enter the handle, or upload the file again and choose that handles are minted",
    AdviceKind.NAME_HANDLE_COLUMN: (
        "Upload the file again, and enter COLUMN=handle under the columns, or choose that handles are minted"
    ),
    AdviceKind.NAME_MINT_PREFIX: "Upload the file again, and choose a namespace",
    AdviceKind.NAME_ROW_PREFIX: "Write PREFIX/SUFFIX, or upload the file again and choose a namespace",
    AdviceKind.OMIT_MINT: "Upload the file again, without minting",
    AdviceKind.NAME_RESOLVER: "Write the handle alone, without the address of a resolver",
    AdviceKind.OMIT_DATE: "Remove the value. Only server administrators can import records with their dates",
    AdviceKind.OVERWRITE: "Choose another handle, or open {handle} and edit it",
    AdviceKind.REDO_JOB: "To redo it, undo job {job}",
    AdviceKind.REPEAT_OR_UNDO_JOB: "Send the form again, or undo job {job}",
    AdviceKind.RESTORE: "Open {handle} and restore its record",
    AdviceKind.RESUME_JOB: "Resume job {job}",
    AdviceKind.RETIRE_NAMESPACE: "Retire the namespace instead: it keeps its identifiers and gets no new ones",
    AdviceKind.REOPEN_NAMESPACE: "Use another namespace, or change its policy: set retired = false",
    AdviceKind.REUSE_DELETED: "Choose another handle, or confirm that the deleted one is used again",
    AdviceKind.SEARCH_URLS: "Search for the URL first. A URL that ends in * matches all that begin like it",
    AdviceKind.SEE_HIDDEN: "Open {handle} in the console",
    AdviceKind.SEE_HISTORY: "See the history of {handle}",
    AdviceKind.SEE_LAST_VERSION: "See its last version, entry {seq}, in the history",
    AdviceKind.SEE_TYPE: "Write data that matches the definition of type {type}",
    AdviceKind.SEE_TYPE_COPY: "See the definition of type {type} at the service that hosts it",
    AdviceKind.SEE_TYPE_FORMAT: "Correct the definition; /docs describes its format",
    AdviceKind.SELECT_URLS: "Give either the URL or the host",
    AdviceKind.SET_BACK: "Undo the later jobs first, or set these records back to what the job wrote",
    AdviceKind.TOMBSTONE_INSTEAD: "Create a tombstone instead",
    AdviceKind.UNDO_EARLIER_JOB: "To undo the job before it, open job {job}",
    AdviceKind.UNDO_JOB: "Undo job {job}",
    **{
        kind: kind.value
        for kind in (
            AdviceKind.ENABLE_LISTING,
            AdviceKind.FREE_SPACE,
            AdviceKind.REOPEN_COUNTER,
            AdviceKind.SET_CLOCK,
        )
    },
}
"""Advice as pages and fields of the console."""


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


def get_notices() -> dict[str, str]:
    """What a page says after a change, by the parameter `done`."""
    return {
        "created": _("The identifier was created."),
        "deleted": _("The record was deleted."),
        "ended": _("Your session has ended. Sign in again."),
        "granted": _("Access was given."),
        "import-discarded": _("The uploaded file was deleted."),
        "job-cancel": _("The job stops after its current step."),
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
        "tombstone": _("The tombstone was created."),
        "token-revoked": _("The token was revoked."),
        "transfer": _("The identifier was transferred."),
        "type-created": _("The type was registered."),
        "unchanged": _("Nothing changed."),
        "unpublish": _("The identifier is hidden now."),
        "user-disabled": _("The user was disabled."),
    }

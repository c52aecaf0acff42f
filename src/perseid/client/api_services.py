"""Operations on jobs, namespaces, types and tokens, and the syntax of names (`api_operations`)."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perseid.names.handle import CaseRule
from perseid.schema.common import MAX_PAGE, ChangeNote, Overview, Paging
from perseid.schema.jobs import (
    JobPage,
    JobResponse,
    NewRewrite,
    NewTransfer,
    NewUndo,
    PlannedRecord,
    PlannedTransfer,
    RewritePlan,
    RewriteQuery,
    TransferPlan,
    TransferQuery,
    UndoPlan,
)
from perseid.schema.names import (
    ANY_PREFIX,
    ConversionQuery,
    ConversionScheme,
    ConvertedName,
    CordraQuery,
    CordraSuffix,
    Form,
    NameForms,
    ParsedName,
    PilinQuery,
    PilinSuffix,
    Rule,
    Rules,
    Scheme,
    SchemeQuery,
    SuffixCheck,
    TextQuery,
)
from perseid.schema.namespaces import (
    DEFAULT_LIFETIME,
    CreatedNamespace,
    CreatedToken,
    Namespace,
    NamespacePage,
    NamespaceRemoval,
    NamespacesQuery,
    NewNamespace,
    NewPolicy,
    NewToken,
    NewType,
    PolicyChanged,
    PolicyResponse,
    RemovedNamespace,
    Scope,
    TokenPage,
    TokenResponse,
    TokensQuery,
    TypePage,
    TypeResponse,
    TypesQuery,
)
from perseid.schema.queries import Selectors
from perseid.schema.records import CreatedRecord

from .api_exchange import Repeat
from .api_operations import Input, make_input, operation, pages
from .options import as_members, as_names

JOB_PATH: Final = "/jobs/{job}"


class JobOperations:
    """Changes to many records."""

    @pages("/rewrites/preview", RewritePlan, "handles", PlannedRecord)
    def preview_rewrite(self, selectors: Selectors, to: str, *, page_size: int = MAX_PAGE) -> Input:
        """List what a rewrite of URLs would change."""
        query = RewriteQuery(**_fields(selectors), limit=page_size, to=to)
        return make_input(query=query)

    @operation("POST", "/rewrites", JobResponse, Repeat.WITH_KEY)
    def rewrite(self, selectors: Selectors, to: str, *, note: str = "") -> Input:
        """Change the URLs of many records, as a job."""
        return make_input(body=NewRewrite(**_fields(selectors), to=to, note=note))

    @pages("/transfers/preview", TransferPlan, "handles", PlannedTransfer)
    def preview_transfer(self, where: str, to: str, *, derived: bool = False, page_size: int = MAX_PAGE) -> Input:
        """List the handles that a transfer would change."""
        return make_input(query=TransferQuery(page_size, where=where, to=to, derived=derived))

    @operation("POST", "/transfers", JobResponse, Repeat.WITH_KEY)
    def transfer_all(self, where: str, to: str, *, derived: bool = False, note: str = "") -> Input:
        """Transfer all handles of a prefix, or all with the same beginning (`12345/maps-*`), as a job."""
        return make_input(body=NewTransfer(where, to, derived, note))

    @pages("/jobs", JobPage, "jobs", JobResponse)
    def jobs(self, *, page_size: int = MAX_PAGE) -> Input:
        """List the jobs, latest first."""
        return make_input(query=Paging(page_size))

    @operation("GET", JOB_PATH, JobResponse)
    def job(self, job: str = "last") -> Input:
        """Return a job and its progress."""
        return make_input(job=job)

    @operation("POST", f"{JOB_PATH}/resume", JobResponse, Repeat.ALWAYS)
    def resume(self, job: str = "last") -> Input:
        """Resume an unfinished or canceled job."""
        return make_input(job=job)

    @operation("POST", f"{JOB_PATH}/cancel", JobResponse)
    def cancel(self, job: str) -> Input:
        """Cancel an unfinished job: it stops before its next step."""
        return make_input(job=job)

    @operation("GET", f"{JOB_PATH}/undo", UndoPlan)
    def preview_undo(self, job: str) -> Input:
        """Count the records of an undo, with a sample of the changes, and list its conflicts."""
        return make_input(job=job)

    @operation("POST", f"{JOB_PATH}/undo", JobResponse, Repeat.WITH_KEY)
    def undo(self, job: str, *, note: str = "") -> Input:
        """Undo a job, as another job."""
        return make_input(job=job, body=NewUndo(note))


class NamespaceOperations:
    """Namespaces, types, tokens, and the syntax of names."""

    @operation("GET", "/", Overview)
    def overview(self) -> Input:
        """Return links to the documentation of the server."""
        return make_input()

    @pages("/namespaces", NamespacePage, "namespaces", Namespace)
    def namespaces(self, *, mine: bool = False, page_size: int = MAX_PAGE) -> Input:
        """List the namespaces of the server; with `mine` those in which you can create or list handles."""
        return make_input(query=NamespacesQuery(page_size, mine=mine))

    @operation("GET", "/namespaces/{prefix}", Namespace)
    def namespace(self, prefix: str) -> Input:
        """Return a summary of a namespace."""
        return make_input(prefix=prefix)

    @operation("POST", "/namespaces", CreatedNamespace, Repeat.WITH_KEY)
    def add_namespace(  # noqa: PLR0913 - one argument per field
        self,
        prefix: str,
        *,
        profile: str = "",
        case: CaseRule | None = None,
        creator: str = "",
        purpose: str = "",
        policy: str = "",
        administrators: Iterable[str] = (),
        note: str = "",
    ) -> Input:
        """Create a namespace: host a prefix, with a policy."""
        new = NewNamespace(prefix, profile, case, creator, purpose, policy, as_names(administrators), note)
        return make_input(body=new)

    @operation("DELETE", "/namespaces/{prefix}", RemovedNamespace)
    def remove_namespace(self, prefix: str, *, retire: bool = False, note: str = "") -> Input:
        """Remove an empty namespace, or retire one."""
        return make_input(prefix=prefix, query=NamespaceRemoval(note, retire))

    @operation("GET", "/namespaces/{prefix}/policy", PolicyResponse)
    def policy(self, prefix: str) -> Input:
        """Return the policy of a namespace."""
        return make_input(prefix=prefix)

    @operation("PUT", "/namespaces/{prefix}/policy", PolicyChanged, Repeat.ALWAYS)
    def change_policy(self, prefix: str, policy: str, *, change_case: bool = False, note: str = "") -> Input:
        """Change the policy of a namespace, in TOML."""
        return make_input(prefix=prefix, body=NewPolicy(policy, change_case, note))

    @pages("/types", TypePage, "types", TypeResponse)
    def types(self, *, prefix: str = "", page_size: int = MAX_PAGE) -> Input:
        """List the registered types."""
        return make_input(query=TypesQuery(page_size, prefix=prefix))

    @operation("GET", "/types/{handle}", TypeResponse)
    def type(self, handle: str) -> Input:
        """Return the definition of a type."""
        return make_input(handle=handle)

    @operation("POST", "/types", CreatedRecord, Repeat.WITH_KEY)
    def add_type(
        self,
        handle: str,
        description: str,
        *,
        name: str = "",
        pattern: str | None = None,
        schema: dict[str, Any] | bool | None = None,
        example: str | None = None,
        note: str = "",
    ) -> Input:
        """Register a type."""
        return make_input(body=NewType(handle, description, name, pattern, schema, example, note))

    @operation("POST", "/tokens", CreatedToken, Repeat.WITH_KEY)
    def create_token(
        self,
        scopes: Iterable[Scope | str],
        *,
        namespaces: Iterable[str] = (),
        all_namespaces: bool = False,
        expires_in: str = DEFAULT_LIFETIME,
        label: str = "",
        note: str = "",
    ) -> Input:
        """Create a token, with which a program acts as you within its scopes. It is returned only once."""
        new = NewToken(as_members(Scope, scopes), as_names(namespaces), all_namespaces, expires_in, label, note)
        return make_input(body=new)

    @pages("/tokens", TokenPage, "tokens", TokenResponse)
    def tokens(self, *, all: bool = False, page_size: int = MAX_PAGE) -> Input:  # noqa: A002 - the name in the API
        """List the tokens that you can see, without their secrets; `all` includes revoked ones."""
        return make_input(query=TokensQuery(page_size, all=all))

    @operation("GET", "/tokens/{token}", TokenResponse)
    def token(self, token: str) -> Input:
        """Return a token by its id, without its secret."""
        return make_input(token=token)

    @operation("DELETE", "/tokens/{token}", TokenResponse, Repeat.ALWAYS)
    def revoke_token(self, token: str, *, note: str = "") -> Input:
        """Revoke a token by its id, immediately and permanently."""
        return make_input(token=token, query=ChangeNote(note))

    @operation("GET", "/names/parse", ParsedName)
    def parse_name(self, text: str, *, resolvers: Iterable[str] = (), strict: bool = False) -> Input:
        """Parse a handle in any form."""
        return make_input(query=TextQuery(text, as_names(resolvers), strict))

    @operation("GET", "/names/convert", ConvertedName)
    def convert_name(
        self,
        text: str,
        to: Form,
        *,
        resolver: str = "",
        scheme: ConversionScheme | None = None,
        strict: bool = False,
    ) -> Input:
        """Convert a handle to another form."""
        return make_input(query=ConversionQuery(text, to, resolver, scheme, strict))

    @operation("GET", "/names/forms", NameForms)
    def name_forms(self, text: str, *, resolvers: Iterable[str] = (), strict: bool = False) -> Input:
        """Return all forms of a handle."""
        return make_input(query=TextQuery(text, as_names(resolvers), strict))

    @operation("GET", "/names/rules", Rules)
    def rules(self) -> Input:
        """List the rules that errors refer to."""
        return make_input()

    @operation("GET", "/names/rules/{rule}", Rule)
    def rule(self, rule: str) -> Input:
        """Return a rule that errors refer to."""
        return make_input(rule=rule)

    @operation("GET", "/suffixes/pilin", PilinSuffix)
    def pilin_suffix(self, *, at: str = "") -> Input:
        """Return the PILIN suffix of a time."""
        return make_input(query=PilinQuery(at))

    @operation("GET", "/suffixes/pilin/{suffix}", PilinSuffix)
    def decode_pilin(self, suffix: str) -> Input:
        """Return the time that a PILIN suffix encodes."""
        return make_input(suffix=suffix)

    @operation("GET", "/suffixes/cordra", CordraSuffix)
    def cordra_suffix(self, *, version: int = 4) -> Input:
        """Generate a CORDRA suffix."""
        return make_input(query=msgspec.convert({"version": version}, CordraQuery))

    @operation("GET", "/suffixes/check", SuffixCheck)
    def check_suffix(self, suffix: str, *, scheme: Scheme | None = None, prefix: str = ANY_PREFIX) -> Input:
        """Check whether a suffix is valid in a scheme."""
        return make_input(query=SchemeQuery(suffix, scheme, prefix))


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}

"""Namespaces and types of an installation, with the methods of `perseid.client.Client`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from perseid.names.handle import CaseRule, Handle, fold
from perseid.records.data_types import Definition
from perseid.records.record import ValueRef, ref_from_text
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace, namespaces
from perseid.registry.commands.records import Create
from perseid.registry.installation.setup import add_namespace, administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.types import RegisteredType, definition_values
from perseid.registry.queries.listing import list_handles
from perseid.registry.queries.namespaces import RETIRED, ChangePolicy, get_policy, get_type, list_prefixes, list_types
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.responses import to_created_namespace, to_namespace, to_policy, to_type
from perseid.registry.results import Refused
from perseid.schema.namespaces import (
    CreatedNamespace,
    Namespace,
    PolicyChanged,
    PolicyResponse,
    RemovedNamespace,
    TypeResponse,
)
from perseid.schema.records import CreatedRecord

from ._arguments import INTERFACE, OpenInstallation, printable
from ._output import print_message


class LocalNamespaces:
    """The namespaces and types of an open installation."""

    session: OpenInstallation

    def add_namespace(
        self,
        prefix: str,
        *,
        profile: str = "",
        case: CaseRule | None = None,
        creator: str = "",
        purpose: str = "",
        policy: str = "",
        administrators: Iterable[str] = (),
    ) -> CreatedNamespace:
        """Create a namespace."""
        rules = with_group_administrators(Policy.from_toml(policy) if policy else PROFILES[profile or "free"])
        rules = replace(
            rules,
            case=case or rules.case,
            default_creator=creator or rules.default_creator,
            purpose=purpose or rules.purpose,
        )
        members = [ref_from_text(text) for text in administrators]
        return self.create_namespace(prefix, rules, members, require_administrators=bool(members))

    def create_namespace(
        self, prefix: str, rules: Policy, members: list[ValueRef], *, require_administrators: bool = False
    ) -> CreatedNamespace:
        """Create a namespace with a policy; without members the server administrators administer it."""
        members = members or list(self.session.installation.config.administration.server_admins)
        values = administrator_values(prefix, members) if members else ()
        order = AddNamespace(prefix, rules, values, require_administrators)
        return to_created_namespace(add_namespace(self.session.registry, order, self.session.identity, INTERFACE))

    def remove_namespace(self, prefix: str, *, retire: bool = False, note: str = "") -> RemovedNamespace:
        """Remove or retire a namespace."""
        if retire:
            seq = self.session.do(ChangePolicy(prefix, RETIRED), note).made.seq
        else:
            seq = self.session.do(RemoveNamespace(prefix), note)
        return RemovedNamespace(prefix, seq, retire)

    def namespaces(self) -> Iterator[Namespace]:
        """Yield the namespaces, sorted by prefix."""
        with self.session.registry.snapshot() as snapshot:
            for prefix in list_prefixes(snapshot, self.session.identity):
                yield to_namespace(snapshot, prefix)

    def namespace(self, prefix: str) -> Namespace:
        """Return a summary of a namespace."""
        with self.session.registry.snapshot() as snapshot:
            get_policy(snapshot, prefix)
            return to_namespace(snapshot, prefix)

    def policy(self, prefix: str) -> PolicyResponse:
        """Return the policy of a namespace."""
        with self.session.registry.snapshot() as snapshot:
            return to_policy(prefix, get_policy(snapshot, prefix))

    def change_policy(self, prefix: str, policy: str, *, change_case: bool = False, note: str = "") -> PolicyChanged:
        """Change the policy of a namespace."""
        done = self.session.do(ChangePolicy(prefix, policy, change_case), note)
        return PolicyChanged(done.made.prefix, done.made.seq, done.changed)

    def add_type(
        self,
        handle: str,
        description: str,
        *,
        name: str = "",
        pattern: str | None = None,
        schema: dict[str, Any] | bool | None = None,
        example: str | None = None,
    ) -> CreatedRecord:
        """Register a type."""
        new = Handle.parse(handle)
        definition = Definition.make(name or new.suffix, description, pattern=pattern, schema=schema, example=example)
        created = self.session.do(Create(new, definition_values(definition)))
        return CreatedRecord(str(created.handle), created.seq, created.warnings)

    def types(self, *, prefix: str = "") -> Iterator[TypeResponse]:
        """Yield the types of a namespace, or of all that the caller can list, sorted."""
        yield from map(to_type, self._find_types(prefix))

    def type(self, handle: str) -> TypeResponse:
        """Return the definition of a type."""
        with self.session.registry.snapshot() as snapshot:
            return to_type(get_type(snapshot, Handle.parse_lenient(handle)), check=True)

    def _find_types(self, prefix: str) -> list[RegisteredType]:
        session = self.session
        with session.registry.snapshot() as snapshot:
            for each in () if prefix else namespaces(snapshot.reader):
                try:
                    list_handles(snapshot, session.identity, each, limit=1)
                except Refused as refused:
                    print_message(f"Not listed: {printable(each)}: {refused.reason}")
            found: list[RegisteredType] = []
            after: str | None = None
            while True:
                page, after = list_types(snapshot, session.identity, prefix, after, MAX_PAGE)
                found += page
                if after is None:
                    return sorted(found, key=lambda each: fold(str(each.handle)))

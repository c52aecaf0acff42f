"""What a command works on: a server, through the client of its HTTP API, or an installation, through the same methods.

    with open_target(directory, acting_as) as target:
        print_changed(target.publish(handle, note=note), json)

`LocalTarget` has those methods of `perseid.client.Client` that commands use, with the same arguments and results, so a
command has one code for both, and prints the same.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perseid.names.handle import Handle
from perseid.records.encoding import to_iso
from perseid.records.record import ref_from_text
from perseid.registry.access import tokens
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken, RevokeToken, TokenStatus, parse_lifetime
from perseid.registry.commands.lifecycle import Publish, Revive, Tombstone, Unpublish
from perseid.registry.commands.transfer import LinkMetadata, LinkVersion, Transfer
from perseid.registry.responses import to_changed, to_linked, to_token
from perseid.schema.namespaces import DEFAULT_LIFETIME, CreatedToken, Scope, TokenResponse
from perseid.schema.records import LinkedHandles, RecordChanged

from ._arguments import OpenInstallation, open_installation
from ._common_options import REMOTE
from ._local_history import LocalHistory
from ._local_namespaces import LocalNamespaces

if TYPE_CHECKING:
    from perseid.client import Client


@dataclass
class LocalTarget(LocalHistory, LocalNamespaces):
    """An installation with the methods of `Client`. Handles are those that the command has parsed."""

    # Identifiers

    def publish(self, handle: str, *, note: str = "") -> RecordChanged:
        return to_changed(self.session.do(Publish(Handle.parse_lenient(handle)), note))

    def unpublish(self, handle: str, *, keep_history: bool = False, note: str = "") -> RecordChanged:
        command = Unpublish(Handle.parse_lenient(handle))
        return to_changed(self.session.do(command, note, keep_history=keep_history))

    def tombstone(self, handle: str, reason: str, *, replaced_by: str | None = None, note: str = "") -> RecordChanged:
        replacement = Handle.parse_lenient(replaced_by) if replaced_by else replaced_by
        return to_changed(self.session.do(Tombstone(Handle.parse_lenient(handle), reason, replacement), note))

    def revive(self, handle: str, *, note: str = "") -> RecordChanged:
        return to_changed(self.session.do(Revive(Handle.parse_lenient(handle)), note))

    def transfer(self, handle: str, to: str, *, note: str = "") -> RecordChanged:
        return to_changed(self.session.do(Transfer(Handle.parse_lenient(handle), ref_from_text(to)), note))

    def link_version(self, work: str, version: str, *, note: str = "") -> LinkedHandles:
        command = LinkVersion(Handle.parse_lenient(work), Handle.parse_lenient(version))
        return to_linked(self.session.do(command, note))

    def link_metadata(self, resource: str, metadata: str, *, note: str = "") -> LinkedHandles:
        command = LinkMetadata(Handle.parse_lenient(resource), Handle.parse_lenient(metadata))
        return to_linked(self.session.do(command, note))

    # Tokens

    def create_token(
        self,
        scopes: Iterable[Scope | str],
        *,
        namespaces: Iterable[str] = (),
        all_namespaces: bool = False,
        expires_in: str = DEFAULT_LIFETIME,
        label: str = "",
        note: str = "",
    ) -> CreatedToken:
        secret = Secret.new(secrets.token_bytes)
        names = [Scope(scope).value for scope in scopes]
        scope_set = ScopeSet.of(names, None if all_namespaces else tuple(namespaces))
        token = self.session.do(CreateToken(secret, scope_set, label, parse_lifetime(expires_in)), note)
        return CreatedToken(token.id, to_iso(token.expires), secret.text())

    def tokens(self, *, all: bool = False) -> Iterator[TokenResponse]:  # noqa: A002 - as in `Client`
        now = self.session.registry.now()
        return (to_token(item, now) for item in list_all_tokens(self.session) if all or item.revoked is None)

    def token(self, token: str) -> TokenResponse:
        registry = self.session.registry
        return to_token(tokens.get_token(registry, self.session.identity, token), registry.now())

    def revoke_token(self, token: str, *, note: str = "") -> TokenResponse:
        self.session.do(RevokeToken(token), note)
        return self.token(token)


def list_all_tokens(session: OpenInstallation) -> Iterator[TokenStatus]:
    """Yield all tokens that the caller can see, by id."""
    after: str | None = ""
    while after is not None:
        page, after = tokens.list_tokens(session.registry, session.identity, after)
        yield from page


Target: TypeAlias = "Client | LocalTarget"


@contextmanager
def open_target(directory: Path | None, acting_as: str | None = None) -> Iterator[Target]:
    """Open what a command works on."""
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            yield client
        return
    with open_installation(directory, acting_as) as session:
        yield LocalTarget(session)

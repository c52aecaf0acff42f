"""Access tokens: create, list and revoke, as `perseid token` does."""

import secrets
from typing import Final

import msgspec

from perseid.records.encoding import to_iso
from perseid.registry.access import tokens
from perseid.registry.access.permissions import InvalidScope, ScopeSet
from perseid.registry.access.token_records import PREFIX, Secret, Token
from perseid.registry.access.tokens import CreateToken, InvalidLifetime, RevokeToken, parse_lifetime
from perseid.registry.commands.records import require_identity
from perseid.registry.responses import to_token
from perseid.registry.snapshot import Snapshot
from perseid.schema.common import ChangeNote
from perseid.schema.namespaces import (
    CreatedToken,
    NewToken,
    TokenPage,
    TokenResponse,
    TokensQuery,
)
from perseid.server.http.v1.api_call import CREATED, REPLAYED_HEADER, ApiCall
from perseid.server.http.v1.routing import BASE, NO_TOKEN, OWN_TOKEN, Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.work import WorkKind

TOKENS: Final = Routes("Tokens", "Create, list and revoke access tokens for programs.")

_TOKEN_NOT_KEPT: Final = "The token is shown only once. If you lost it, revoke it and create another"  # noqa: S105 - not a secret
_PARAMETERS: Final = {
    "token": f"The id of the token: the eight characters after `{PREFIX}`. Never send the token itself here."
}


@TOKENS.add(
    "POST",
    "/tokens",
    "Create a token",
    status=CREATED,
    scope=NO_TOKEN,
    creates=True,
    problems=(401, 403, 404, 409, 422),
)
async def create_token(call: ApiCall, new: NewToken) -> Reply[CreatedToken]:
    """Create a token, with which a program acts as you: within its scopes, and never beyond your current permissions.

    The token is shown only once, because only its hash is stored. A repeated request with the same `Idempotency-Key`
    creates no second token and returns `id`, `expires` and `Location` without the token; if you lost it, revoke it and
    create another. A token ends when it expires, when it is revoked, or when your key is replaced.

    Scopes: `read` private values and unpublished handles; `find` handles across a namespace; `mint` or reserve handles;
    `create` records under chosen handles; `update` values; `publish` and unpublish; create `tombstone`s; `delete`
    records; `transfer`: change administrators, groups and keys; `namespaces`: create them, and change their policies
    and prefix handles; `admin`: tasks of a server administrator, with `all_namespaces`.
    """
    if new.all_namespaces == bool(new.namespaces):
        message = "Give either `namespaces` or `all_namespaces`"
        raise InvalidParameter(message, "$.namespaces")
    try:
        scopes = ScopeSet.of(new.scopes, None if new.all_namespaces else new.namespaces)
    except InvalidScope as problem:
        raise InvalidParameter(str(problem), "$.namespaces") from problem
    try:
        seconds = parse_lifetime(new.expires_in)
    except InvalidLifetime as problem:
        raise InvalidParameter(str(problem), "$.expires_in") from problem
    secret = Secret.new(secrets.token_bytes)
    order = CreateToken(secret, scopes, new.label, seconds)
    reply = await call.create(lambda _: order, _created_reply, note=new.note, replay=_replay)
    if REPLAYED_HEADER in reply.fields:
        return reply
    # The stored response has no secret: the token replaces the advice after it was stored.
    created = msgspec.json.decode(reply.body, type=CreatedToken)
    return Reply(msgspec.structs.replace(created, token=secret.text(), advice=""), CREATED, reply.fields)


@TOKENS.add("GET", "/tokens", "List tokens", scope=OWN_TOKEN, problems=(401,))
async def list_tokens(call: ApiCall, query: TokensQuery) -> Reply[TokenPage]:
    """List the tokens that you can see, sorted by id, without the tokens themselves.

    Server administrators see all, prefix administrators those that are valid within their prefixes, other users their
    own. A page can be short without being the last.
    """
    registry, identity = call.registry, call.identity
    await call.read(lambda context: require_identity(context, "see tokens"))

    def read() -> Reply[TokenPage]:
        page, last = tokens.list_tokens(registry, identity, call.after(str) or "", query.limit)
        now, cursor = registry.now(), call.seal(last)
        visible = [to_token(item, now) for item in page if query.all or item.revoked is None]
        return call.page(TokenPage(visible, cursor))

    return await call.do(WorkKind.READ, read)


@TOKENS.add("GET", "/tokens/{token}", "Get a token", scope=OWN_TOKEN, problems=(401, 404))
async def show_token(call: ApiCall) -> Reply[TokenResponse]:
    """Return the scopes of a token, its issuer, and its last use."""
    return Reply(await _load_token(call, await _token_id(call, "see a token")))


@TOKENS.add("DELETE", "/tokens/{token}", "Revoke a token", scope=OWN_TOKEN, problems=(401, 403, 404))
async def revoke_token(call: ApiCall, query: ChangeNote) -> Reply[TokenResponse]:
    """Revoke a token, immediately and permanently. Changes made with it stay; the ledger shows which they are.

    The issuer, users who could issue it, and anyone who presents the token itself can revoke it. Other users get 404.
    """
    token = await _token_id(call, "revoke a token")
    await call.change(RevokeToken(token), note=query.note)
    return Reply(await _load_token(call, token))


async def _token_id(call: ApiCall, action: str) -> str:
    """Return the token id of the path, only for an authenticated caller."""
    token = call.names["token"]
    if token.startswith(PREFIX):
        message = "This is a token, not its id. URLs appear in logs, so others may know it now: revoke it"
        raise InvalidParameter(message, "token")
    await call.read(lambda context: require_identity(context, action))
    return token


async def _load_token(call: ApiCall, token: str) -> TokenResponse:
    registry, identity = call.registry, call.identity
    return to_token(await call.do(WorkKind.READ, lambda: tokens.get_token(registry, identity, token)), registry.now())


def _created_reply(token: Token) -> Reply[CreatedToken]:
    """The response as stored, without the token."""
    result = CreatedToken(token.id, to_iso(token.expires), advice=_TOKEN_NOT_KEPT)
    return Reply(result, CREATED, (("Location", f"{BASE}/tokens/{token.id}"),))


def _replay(snapshot: Snapshot, seq: int, _: int) -> Reply[CreatedToken] | None:
    """Build the reply to a repeated request whose stored response was dropped: its entry has the token."""
    token = Token.from_entry(snapshot.reader.entry(seq))
    return None if token is None else _created_reply(token)

"""Tokens: what programs show to act for somebody, made, listed and revoked, as `perseid token` does."""

import secrets
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from perseid.records.encoding import to_iso
from perseid.registry.access import tokens
from perseid.registry.access.scopes import MAX_NAMESPACES, SCOPES, InvalidScope, Scope, ScopeSet
from perseid.registry.access.token_records import PREFIX, Secret, Token
from perseid.registry.access.tokens import DAY, DEFAULT_DAYS, MAX_DAYS, MAX_LABEL, CreateToken, RevokeToken, TokenStatus
from perseid.registry.commands.records import require_identity
from perseid.server.http.v1.calls import REPLAYED_HEADER, ApiCall, encode_body, encode_reply
from perseid.server.http.v1.changes import CREATED, ChangeNote
from perseid.server.http.v1.routing import BASE, NO_TOKEN, OWN_TOKEN, Reply, Routes
from perseid.server.http.v1.structures import AlreadyDone, Doc, NextCursor, Note, Paging, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes("Tokens", "What programs show to act for somebody, within limits: made, listed and revoked.")

_TOKEN_NOT_KEPT: Final = (
    "the token was told when it was made, and is not kept; if that answer was lost, revoke this one and make another"  # noqa: S105 - not a secret
)
_PARAMETERS: Final = {"token": f"The id of the token: the eight characters behind `{PREFIX}`. Never the token itself."}


class NewToken(RequestBody, frozen=True):
    """A token that is to be made."""

    may: Annotated[
        tuple[Scope, ...],
        Doc("What it is good for.", min_length=1, max_length=len(SCOPES), examples=[["mint", "update"]]),
    ]
    namespaces: Annotated[
        tuple[str, ...],
        Doc(
            "Where it is good: prefixes; `PREFIX.*` for those derived from one.",
            max_length=MAX_NAMESPACES,
            examples=[["12345"]],
        ),
    ] = ()
    everywhere: Annotated[bool, Doc("It is good in all namespaces; in place of `namespaces`.")] = False
    days: Annotated[int, Doc("How long it counts.", ge=1, le=MAX_DAYS)] = DEFAULT_DAYS
    label: Annotated[str, Doc("What it is for, for people.", max_length=MAX_LABEL, examples=["the catalogue"])] = ""
    note: Note = ""


class TokensQuery(Paging, frozen=True):
    """Which tokens are wanted."""

    all: Annotated[bool, Doc("Those that were revoked, too.")] = False


class TokenResponse(ResponseBody, frozen=True):
    """A token, as those see it who may."""

    id: Annotated[str, Doc("By which lists and the ledger name it.", examples=["k7qpx2ma"])]
    label: Annotated[str, Doc("What it is for.")]
    maker: Annotated[str, Doc("Whom it acts for.", examples=["300:0.NA/12345"])]
    may: Annotated[tuple[str, ...], Doc("What it is good for.")]
    namespaces: Annotated[tuple[str, ...] | None, Doc("Where it is good; null: everywhere.")]
    created: Annotated[str, Doc("When it was made, in ISO 8601.")]
    expires: Annotated[str, Doc("Until when it counts, in ISO 8601.")]
    state: Annotated[
        str, Doc("`counts`, `expired`, `revoked`, or `without its key`: whoever made it has another key now.")
    ]
    seq: Seq
    revoked: Annotated[str | None, Doc("When it was revoked, in ISO 8601.")] = None
    last_used: Annotated[str | None, Doc("The last day on which it was used.", examples=["2026-11-15"])] = None


class TokenPage(ResponseBody, frozen=True):
    """Tokens that somebody may see, in the order of their ids."""

    tokens: Annotated[list[TokenResponse], Doc("The tokens of the page.")]
    next: NextCursor = None


class CreatedToken(ResponseBody, frozen=True):
    """A token that was made. Only its hash is kept, so this is the one time that it is told."""

    id: Annotated[str, Doc("By which lists and the ledger name it.", examples=["k7qpx2ma"])]
    expires: Annotated[str, Doc("Until when it counts, in ISO 8601.")]
    token: Annotated[
        str,
        Doc(
            "The token itself, in the first answer only. Who repeats a request with its `Idempotency-Key` is told "
            "which token was made, and not the token."
        ),
    ] = ""
    advice: Annotated[str, Doc("Where the token is not told: why, and what to do.")] = ""


@SECTION.add(
    "POST",
    "/tokens",
    "createToken",
    "Make a token",
    body=NewToken,
    response=CreatedToken,
    status=CREATED,
    scope=NO_TOKEN,
    creates=True,
    problems=(401, 403, 404, 409, 422),
)
async def create(call: ApiCall) -> Reply:
    """Make a token, with which a program acts as you: within its scope, and never beyond what you may at that moment.

    It is told this once, for only its hash is kept. Who repeats the request with its `Idempotency-Key` makes no second
    one, and gets `id`, `expires` and `Location` of the first without the token: if that was lost, revoke it and make
    another. It ends when its time is over, when it is revoked, and when your key is replaced.

    The words: `read` private values and names that are not published; `find` names across a namespace; `mint` new
    names, or reserve them; `create` records under chosen names; `update` values; `publish` and unpublish; put
    `tombstone`s; `delete` records; `transfer`: change administrators, groups and keys; `namespaces`: make them, and
    change their policies and prefix handles; `admin`: what takes a server administrator, with `everywhere`.
    """
    new = call.payload(NewToken)
    if new.everywhere == bool(new.namespaces):
        message = "say where the token is good: name namespaces, or say everywhere, and not both"
        raise InvalidParameter(message, "$.namespaces")
    try:
        scope = ScopeSet.of(new.may, None if new.everywhere else new.namespaces)
    except InvalidScope as problem:
        raise InvalidParameter(str(problem), "$.namespaces") from problem
    secret = Secret.new(secrets.token_bytes)
    order = CreateToken(secret, scope, new.label, new.days * DAY)
    reply = await _replay(call, await call.create(lambda _: order, _created_reply, note=new.note))
    if REPLAYED_HEADER in reply.headers:
        return reply
    # What is kept with a key has no secret in it; whoever made the token is told it in place of the advice.
    made = msgspec.json.decode(encode_body(reply), type=CreatedToken)
    return replace(reply, body=msgspec.structs.replace(made, token=secret.text(), advice=""))


@SECTION.add(
    "GET",
    "/tokens",
    "listTokens",
    "The tokens",
    response=TokenPage,
    query=TokensQuery,
    scope=OWN_TOKEN,
    problems=(401,),
)
async def list_tokens(call: ApiCall) -> Reply:
    """The tokens that you may see, in the order of their ids; never the tokens themselves.

    Server administrators see all, administrators of prefixes those that are good within their prefixes, and everybody
    those that they made. A page may have fewer than were asked for and not be the last.
    """
    asked, after = call.asked(TokensQuery), await call.after(str)
    registry, identity = call.registry, call.identity
    await call.read(lambda context: require_identity(context, "see tokens"))

    def read() -> Reply:
        page, last = tokens.list_tokens(registry, identity, after or "", asked.limit)
        now, following = registry.now(), call.seal(last)
        found = [_to_response(item, now) for item in page if asked.all or item.revoked is None]
        return encode_reply(Reply(TokenPage(found, following), next=following))

    return await call.do(WorkKind.READ, read)


@SECTION.add(
    "GET",
    "/tokens/{token}",
    "showToken",
    "A token",
    response=TokenResponse,
    scope=OWN_TOKEN,
    problems=(401, 404),
    parameters=_PARAMETERS,
)
async def show(call: ApiCall) -> Reply:
    """What a token is good for, who made it, and when it was last used."""
    return Reply(await _load_token(call, await _token_id(call, "see a token")))


@SECTION.add(
    "DELETE",
    "/tokens/{token}",
    "revokeToken",
    "Revoke a token",
    query=ChangeNote,
    response=TokenResponse,
    scope=OWN_TOKEN,
    problems=(401, 403, 404),
    parameters=_PARAMETERS,
)
async def revoke(call: ApiCall) -> Reply:
    """End a token, at once and for good. What was done with it stays, and the ledger tells which changes that were.

    Those may who might have made it, whoever did, and whoever shows it: so whoever finds a token can end it. To all
    others there is no such token.
    """
    token = await _token_id(call, "revoke a token")
    await call.change(RevokeToken(token), note=call.asked(ChangeNote).note)
    return Reply(await _load_token(call, token))


async def _token_id(call: ApiCall, action: str) -> str:
    """The id of a token, for somebody who is known: nobody in particular learns which there are."""
    token = call.names["token"]
    if token.startswith(PREFIX):
        message = "that is a token and not its id; addresses stand in logs, so others may know it now: revoke it"
        raise InvalidParameter(message, "token")
    await call.read(lambda context: require_identity(context, action))
    return token


async def _load_token(call: ApiCall, token: str) -> TokenResponse:
    registry, identity = call.registry, call.identity
    return _to_response(
        await call.do(WorkKind.READ, lambda: tokens.get_token(registry, identity, token)), registry.now()
    )


def _created_reply(token: Token) -> Reply:
    """The answer as it is kept, and given to who asks again."""
    result = CreatedToken(token.id, to_iso(token.expires), advice=_TOKEN_NOT_KEPT)
    return Reply(result, CREATED, (("Location", f"{BASE}/tokens/{token.id}"),))


async def _replay(call: ApiCall, reply: Reply) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: its entry has the token."""
    before = reply.body
    if not isinstance(before, AlreadyDone):
        return reply
    registry, seq = call.registry, before.seq

    def read() -> Token | None:
        with registry.snapshot() as snapshot:
            return Token.from_entry(snapshot.reading.entry(seq))

    token = await call.do(WorkKind.READ, read)
    if token is None:
        return reply
    again = _created_reply(token)
    return replace(again, headers=(*again.headers, REPLAYED_HEADER))


def _to_response(item: TokenStatus, now: int) -> TokenResponse:
    token = item.token
    return TokenResponse(
        id=token.id,
        label=token.label,
        maker=token.maker,
        may=tuple(token.scope.may),
        namespaces=token.scope.namespaces,
        created=to_iso(token.created),
        expires=to_iso(token.expires),
        state=item.state(now),
        seq=item.seq,
        revoked=None if item.revoked is None else to_iso(item.revoked),
        last_used=None if item.used is None else to_iso(item.used)[:10],
    )

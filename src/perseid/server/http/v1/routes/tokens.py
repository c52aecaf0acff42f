"""Tokens: what programs show to act for somebody, made, listed and revoked, as `perseid token` does."""

import secrets
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from perseid.records.encoding import to_iso
from perseid.registry.access import tokens
from perseid.registry.access.scopes import MAX_NAMESPACES, WORDS, InvalidScope, Scope, Word
from perseid.registry.access.token_records import PREFIX, Secret, Token
from perseid.registry.access.tokens import DAY, DEFAULT_DAYS, MAX_DAYS, MAX_LABEL, CreateToken, Listed, RevokeToken
from perseid.registry.commands.records import require_identity
from perseid.server.http.v1.calls import REPLAYED, ApiCall, octets_of, written
from perseid.server.http.v1.changes import CREATED, Why
from perseid.server.http.v1.routing import BASE, ITSELF, NO_TOKEN, Reply, Routes
from perseid.server.http.v1.structures import About, DoneBefore, Given, NextCursor, Note, Paging, Seq, Told
from perseid.server.http.v1.validation import Unfitting
from perseid.server.native.steps import Kind

CHAPTER: Final = Routes("Tokens", "What programs show to act for somebody, within limits: made, listed and revoked.")

_TOLD_BEFORE: Final = (
    "the token was told when it was made, and is not kept; if that answer was lost, revoke this one and make another"
)
_PLACE: Final = {"token": f"The id of the token: the eight characters behind `{PREFIX}`. Never the token itself."}


class NewToken(Given, frozen=True):
    """A token that is to be made."""

    may: Annotated[
        tuple[Word, ...],
        About("What it is good for.", min_length=1, max_length=len(WORDS), examples=[["mint", "update"]]),
    ]
    namespaces: Annotated[
        tuple[str, ...],
        About(
            "Where it is good: prefixes; `PREFIX.*` for those derived from one.",
            max_length=MAX_NAMESPACES,
            examples=[["12345"]],
        ),
    ] = ()
    everywhere: Annotated[bool, About("It is good in all namespaces; in place of `namespaces`.")] = False
    days: Annotated[int, About("How long it counts.", ge=1, le=MAX_DAYS)] = DEFAULT_DAYS
    label: Annotated[str, About("What it is for, for people.", max_length=MAX_LABEL, examples=["the catalogue"])] = ""
    note: Note = ""


class TokensQuery(Paging, frozen=True):
    """Which tokens are wanted."""

    all: Annotated[bool, About("Those that were revoked, too.")] = False


class TokenTold(Told, frozen=True):
    """A token, as those see it who may."""

    id: Annotated[str, About("By which lists and the ledger name it.", examples=["k7qpx2ma"])]
    label: Annotated[str, About("What it is for.")]
    maker: Annotated[str, About("Whom it acts for.", examples=["300:0.NA/12345"])]
    may: Annotated[tuple[str, ...], About("What it is good for.")]
    namespaces: Annotated[tuple[str, ...] | None, About("Where it is good; null: everywhere.")]
    created: Annotated[str, About("When it was made, in ISO 8601.")]
    expires: Annotated[str, About("Until when it counts, in ISO 8601.")]
    state: Annotated[
        str, About("`counts`, `expired`, `revoked`, or `without its key`: whoever made it has another key now.")
    ]
    seq: Seq
    revoked: Annotated[str | None, About("When it was revoked, in ISO 8601.")] = None
    last_used: Annotated[str | None, About("The last day on which it was used.", examples=["2026-11-15"])] = None


class TokenPage(Told, frozen=True):
    """Tokens that somebody may see, in the order of their ids."""

    tokens: Annotated[list[TokenTold], About("The tokens of the page.")]
    next: NextCursor = None


class TokenMade(Told, frozen=True):
    """A token that was made. Only its hash is kept, so this is the one time that it is told."""

    id: Annotated[str, About("By which lists and the ledger name it.", examples=["k7qpx2ma"])]
    expires: Annotated[str, About("Until when it counts, in ISO 8601.")]
    token: Annotated[
        str,
        About(
            "The token itself, in the first answer only. Who repeats a request with its `Idempotency-Key` is told "
            "which token was made, and not the token."
        ),
    ] = ""
    advice: Annotated[str, About("Where the token is not told: why, and what to do.")] = ""


@CHAPTER.add(
    "POST",
    "/tokens",
    "createToken",
    "Make a token",
    body=NewToken,
    answer=TokenMade,
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
    new = call.given(NewToken)
    if new.everywhere == bool(new.namespaces):
        message = "say where the token is good: name namespaces, or say everywhere, and not both"
        raise Unfitting(message, "$.namespaces")
    try:
        scope = Scope.of(new.may, None if new.everywhere else new.namespaces)
    except InvalidScope as problem:
        raise Unfitting(str(problem), "$.namespaces") from problem
    secret = Secret.new(secrets.token_bytes)
    order = CreateToken(secret, scope, new.label, new.days * DAY)
    reply = await _recalled(call, await call.create(lambda _: order, _made, note=new.note))
    if REPLAYED in reply.headers:
        return reply
    # What is kept with a key has no secret in it; whoever made the token is told it in place of the advice.
    made = msgspec.json.decode(octets_of(reply), type=TokenMade)
    return replace(reply, body=msgspec.structs.replace(made, token=secret.text(), advice=""))


@CHAPTER.add(
    "GET",
    "/tokens",
    "listTokens",
    "The tokens",
    answer=TokenPage,
    query=TokensQuery,
    scope=ITSELF,
    problems=(401,),
)
async def list_tokens(call: ApiCall) -> Reply:
    """The tokens that you may see, in the order of their ids; never the tokens themselves.

    Server administrators see all, administrators of prefixes those that are good within their prefixes, and everybody
    those that they made. A page may have fewer than were asked for and not be the last.
    """
    asked, after = call.asked(TokensQuery), await call.after(str)
    registry, who = call.registry, call.who
    await call.read(lambda context: require_identity(context, "see tokens"))

    def read() -> Reply:
        page, last = tokens.listed(registry, who, after or "", asked.limit)
        now, following = registry.now(), call.sealed(last)
        found = [_told(item, now) for item in page if asked.all or item.revoked is None]
        return written(Reply(TokenPage(found, following), next=following))

    return await call.do(Kind.READ, read)


@CHAPTER.add(
    "GET",
    "/tokens/{token}",
    "showToken",
    "A token",
    answer=TokenTold,
    scope=ITSELF,
    problems=(401, 404),
    parameters=_PLACE,
)
async def show(call: ApiCall) -> Reply:
    """What a token is good for, who made it, and when it was last used."""
    return Reply(await _found(call, await _id(call, "see a token")))


@CHAPTER.add(
    "DELETE",
    "/tokens/{token}",
    "revokeToken",
    "Revoke a token",
    query=Why,
    answer=TokenTold,
    scope=ITSELF,
    problems=(401, 403, 404),
    parameters=_PLACE,
)
async def revoke(call: ApiCall) -> Reply:
    """End a token, at once and for good. What was done with it stays, and the ledger tells which changes that were.

    Those may who might have made it, whoever did, and whoever shows it: so whoever finds a token can end it. To all
    others there is no such token.
    """
    token = await _id(call, "revoke a token")
    await call.change(RevokeToken(token), note=call.asked(Why).note)
    return Reply(await _found(call, token))


async def _id(call: ApiCall, action: str) -> str:
    """The id of a token, for somebody who is known: nobody in particular learns which there are."""
    token = call.names["token"]
    if token.startswith(PREFIX):
        message = "that is a token and not its id; addresses stand in logs, so others may know it now: revoke it"
        raise Unfitting(message, "token")
    await call.read(lambda context: require_identity(context, action))
    return token


async def _found(call: ApiCall, token: str) -> TokenTold:
    registry, who = call.registry, call.who
    return _told(await call.do(Kind.READ, lambda: tokens.found(registry, who, token)), registry.now())


def _made(token: Token) -> Reply:
    """The answer as it is kept, and given to who asks again."""
    told = TokenMade(token.id, to_iso(token.expires), advice=_TOLD_BEFORE)
    return Reply(told, CREATED, (("Location", f"{BASE}/tokens/{token.id}"),))


async def _recalled(call: ApiCall, reply: Reply) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: its entry has the token."""
    before = reply.body
    if not isinstance(before, DoneBefore):
        return reply
    registry, seq = call.registry, before.seq

    def read() -> Token | None:
        with registry.facts() as facts:
            return Token.of_entry(facts.reading.entry(seq))

    token = await call.do(Kind.READ, read)
    if token is None:
        return reply
    again = _made(token)
    return replace(again, headers=(*again.headers, REPLAYED))


def _told(item: Listed, now: int) -> TokenTold:
    token = item.token
    return TokenTold(
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

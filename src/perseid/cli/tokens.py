"""`perseid token`: what programs show to act for somebody, made, listed and revoked."""

import secrets
from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias

import typer

from perseid.records.json_parsing import JsonObject
from perseid.registry.access import tokens
from perseid.registry.access.scopes import SCOPES, InvalidScope, ScopeSet
from perseid.registry.access.token_records import InvalidToken, Secret, Token
from perseid.registry.access.tokens import DAY, DEFAULT_DAYS, MAX_DAYS, CreateToken, RevokeToken, TokenStatus
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from ._loading import Group, register_command
from ._output import AsJson, print_fields, print_json, print_message
from ._place import ActingAs, Directory, Note, OpenInstallation, open_installation
from ._values import printable
from .verify import iso_time, short_time

LAST: Final = "last"
"""Means the token that was made last, of those that somebody sees."""

_MICROSECONDS: Final = 1_000_000

app = typer.Typer(
    cls=Group,
    help="Make tokens with which programs act for you, see which there are, and revoke them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Name: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TOKEN", help="Its id, as `perseid token list` shows it; the token itself; or `last`."),
]


@register_command(app, "create")
def create(  # noqa: PLR0913 - options
    *,
    may: Annotated[
        list[str] | None,
        typer.Option(
            "--may", metavar="WORD[,WORD…]", help=f"What it is good for: {', '.join(SCOPES)}. May be repeated."
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="PREFIX",
            help="Where it is good; `PREFIX.*` for the prefixes derived from one. May be repeated.",
        ),
    ] = None,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="It is good in all namespaces.")] = False,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=MAX_DAYS, help=f"How long it counts; {MAX_DAYS} at most.")
    ] = DEFAULT_DAYS,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for, for people.")] = "",
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Make a token, and print it: this once, for only its hash is kept.

    Whoever shows the token acts as you, or as whom you name with `--as`, within what you say here and never beyond what
    you may yourself at that moment. It ends when its time is over, when it is revoked, and when the key of whoever made
    it is replaced. The ledger records each change with the token's id and yours.

    The words: **read** private values and names that are not published; **find** names across a namespace; **mint** new
    names, or reserve them; **create** records under chosen names; **update** values; **publish** and unpublish; put
    **tombstone**s; **delete** records; **transfer**: change administrators, groups and keys; **namespaces**: make them,
    and change their policies and prefix handles; **admin**: what takes a server administrator, with `--everywhere`.

    For example:
        perseid token create --may mint,update --namespace 102.100.272 --label "the catalogue"
        perseid token create --may read,find --everywhere --days 30 --json
    """
    order = CreateToken(Secret.new(secrets.token_bytes), _parse_scope(may, namespace, everywhere), label, days * DAY)
    with open_installation(directory, acting_as) as session:
        made = session.do(order, note)
    if json:
        print_json({"token": order.secret.text(), **_token_to_json(made)})
        return
    typer.echo(order.secret.text())
    print_message(
        f"This is the token {made.id}. It is shown this once; put it where only the program that needs it can read it."
    )
    print_message(
        f"It counts until {short_time(made.expires * _MICROSECONDS)}. To end it before: perseid token revoke {made.id}"
    )


@register_command(app, "list")
def list_(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Those that were revoked, too.")] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the tokens that you may see, one a line: id, state, end, last day of use, maker, words, namespaces, label.

    Server administrators see all, administrators of prefixes those that are good within their prefixes, and everybody
    those that they made.

    For example:
        perseid token create --may read --everywhere
        perseid token list
        perseid token list --all --json
    """
    with open_installation(directory, acting_as) as session:
        now = session.registry.now()
        for item in list_all(session):
            if item.revoked is not None and not everything:
                continue
            if json:
                print_json(_listed_to_json(item, now))
            else:
                typer.echo(_format_line(item, now))


@register_command(app, "show")
def show(token: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show what a token is good for, who made it, and when it was last used.

    For example:
        perseid token create --may read --everywhere
        perseid token show last
    """
    with open_installation(directory, acting_as) as session:
        now = session.registry.now()
        item = tokens.get_token(session.registry, session.identity, _token_id(session, token))
    if json:
        print_json(_listed_to_json(item, now))
        return
    made = item.token
    print_fields(
        {
            "token": made.id,
            "label": printable(made.label) or None,
            "state": item.state(now),
            "made by": printable(made.maker),
            "may": ", ".join(made.scope.may),
            "in": made.scope.places,
            "made": short_time(made.created * _MICROSECONDS),
            "counts until": short_time(made.expires * _MICROSECONDS),
            "revoked": None if item.revoked is None else short_time(item.revoked * _MICROSECONDS),
            "last used": _format_day(item.used) or "never",
            "entry": item.seq,
        }
    )


@register_command(app, "revoke")
def revoke(
    token: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOKEN]…", help="Ids, as `perseid token list` shows them; whole tokens; or `last`."),
    ] = None,
    *,
    made_by: Annotated[
        str | None,
        typer.Option("--made-by", metavar="INDEX:HANDLE|local:USER", help="All that somebody made and that count."),
    ] = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """End tokens, at once and for good. What was done with them stays, and the ledger tells which changes that were.

    For example:
        perseid token create --may read --everywhere
        perseid token revoke last --note "it was found in a public repository"
    """
    if not token and made_by is None:
        raise typer.BadParameter("name tokens, or with --made-by whoever made them", param_hint="TOKEN")
    with open_installation(directory, acting_as) as session:
        wanted = [_token_id(session, each) for each in token or ()]
        if made_by is not None:
            now = session.registry.now()
            wanted += [
                item.token.id for item in list_all(session) if item.token.maker == made_by and item.is_active(now)
            ]
        for each in dict.fromkeys(wanted):
            revoked = session.do(RevokeToken(each), note)
            if json:
                print_json({"id": revoked.id, "label": revoked.label, "state": "revoked"})
            else:
                typer.echo(revoked.id)
        if not wanted:
            print_message(f"perseid: no token that counts was made by {printable(made_by or '')}")


def _parse_scope(may: list[str] | None, namespaces: list[str] | None, everywhere: bool) -> ScopeSet:
    words = [word.strip() for text in may or () for word in text.split(",") if word.strip()]
    if not words:
        message = f"say what the token is good for: one or more of {', '.join(SCOPES)}"
        raise typer.BadParameter(message, param_hint="--may")
    if everywhere == bool(namespaces):
        message = "say where the token is good: name namespaces, or say --everywhere, and not both"
        raise typer.BadParameter(message, param_hint="--namespace")
    try:
        return ScopeSet.of(words, None if everywhere else namespaces)
    except InvalidScope as problem:
        raise typer.BadParameter(str(problem)) from problem


def _token_id(session: OpenInstallation, given: str) -> str:
    """The id that somebody means."""
    if given == LAST:
        found = max(list_all(session), key=lambda item: item.seq, default=None)
        if found is None:
            raise Refused(ResponseCode.HANDLE_NOT_FOUND, "there is no token yet", "look at: perseid token create")
        return found.token.id
    try:
        return Secret.parse(given).id
    except InvalidToken:
        return given


def list_all(session: OpenInstallation) -> Iterator[TokenStatus]:
    """All tokens that somebody may see, by their ids."""
    after: str | None = ""
    while after is not None:
        page, after = tokens.list_tokens(session.registry, session.identity, after)
        yield from page


def _format_line(item: TokenStatus, now: int) -> str:
    made = item.token
    used = f"used {_format_day(item.used)}" if item.used is not None else "never used"
    until = short_time(made.expires * _MICROSECONDS)[:10]
    parts = [made.id, item.state(now), f"until {until}", used, made.maker, ",".join(made.scope.may), made.scope.places]
    return printable("  ".join([*parts, *([made.label] if made.label else [])]))


def _token_to_json(made: Token) -> JsonObject:
    return {
        "id": made.id,
        "label": made.label,
        "maker": made.maker,
        "may": made.scope.may,
        "namespaces": None if made.scope.namespaces is None else list(made.scope.namespaces),
        "created": iso_time(made.created * _MICROSECONDS),
        "expires": iso_time(made.expires * _MICROSECONDS),
    }


def _listed_to_json(item: TokenStatus, now: int) -> JsonObject:
    revoked = None if item.revoked is None else iso_time(item.revoked * _MICROSECONDS)
    last = {"state": item.state(now), "revoked": revoked, "lastUsed": _format_day(item.used), "seq": item.seq}
    return {**_token_to_json(item.token), **last}


def _format_day(seconds: int | None) -> str | None:
    return None if seconds is None else short_time(seconds * _MICROSECONDS)[:10]


commands = {"token": app}

"""`perseid token`: create, list and revoke access tokens."""

from typing import Annotated, Final, TypeAlias

import typer

from perseid.registry.access.permissions import InvalidScope, ScopeSet
from perseid.registry.access.token_records import InvalidToken, Secret
from perseid.registry.access.tokens import InvalidLifetime, parse_lifetime
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.schema.namespaces import DEFAULT_LIFETIME, MAX_DAYS, SCOPES, TokenResponse
from perseid.wire.codes import ResponseCode

from ._arguments import ActingAs, Directory, Note, SecretOutput, printable
from ._commands import Group, register_command
from ._output import AsJson, new_secret_file, print_fields, print_json, print_message, print_text
from ._target import Target, open_target

LAST: Final = "last"
"""Stands for the newest token that the caller can see."""


app = typer.Typer(
    cls=Group,
    help="Create, list and revoke access tokens, with which programs act for you.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

TokenArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TOKEN", help="The id, as `perseid token list` shows it, the token itself, or `last`."),
]


@register_command(app, "create")
def create(  # noqa: PLR0913 - options
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE[,SCOPE…]", help=f"The scopes: {', '.join(SCOPES)}. Repeatable."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="PREFIX",
            help="A namespace it is valid for; `PREFIX.*` for prefixes derived from one. Repeatable.",
        ),
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", help="It is valid for all namespaces.")] = False,
    expires_in: Annotated[
        str, typer.Option("--expires-in", metavar="DAYS", help=f"The lifetime, as in 90d; at most {MAX_DAYS}d.")
    ] = DEFAULT_LIFETIME,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for.")] = "",
    output: SecretOutput = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Create a token and print it, or write it to a file. It is shown only once: only its hash is stored.

    A program with the token acts as you, or as the identity of `--as`, limited to its scopes and namespaces and to your
    permissions at that time. It ends when it expires, when it is revoked, and when your key is replaced. The ledger
    records each change with the id of the token and your identity.

    The scopes: **read** private values and unpublished identifiers; **find** identifiers in a namespace; **mint** or
    reserve identifiers; **create** records under chosen handles; **update** values; **publish** and unpublish; set a
    **tombstone**; **delete** records; **transfer**: change administrators, groups and keys; **namespaces**: add them,
    and change their policies and prefix handles; **admin**: act as server administrator, with `--all-namespaces`.

    For example:
        perseid token create --scope mint,update --namespace 102.100.272 --label "the catalog"
        perseid token create --scope read,find --all-namespaces --expires-in 30d -o token.txt
    """
    names = _parse_scopes(scope, namespace, all_namespaces)
    try:
        parse_lifetime(expires_in)
    except InvalidLifetime as problem:
        raise typer.BadParameter(str(problem), param_hint="--expires-in") from problem
    with new_secret_file(output, "--output", json=json) as write, open_target(directory, acting_as) as target:
        created = target.create_token(
            names,
            namespaces=namespace or (),
            all_namespaces=all_namespaces,
            expires_in=expires_in,
            label=label,
            note=note,
        )
        if write is not None:
            write(created.token)
    if json:
        print_json(created)
        return
    if output is None:
        print_text(created.token)
        where = "It is shown only once: store it where only your program can read it."
    else:
        print_fields({"token": created.id, "file": printable(str(output))})
        where = "Only you can read the file."
    print_message(f"This is token {created.id}. {where}")
    print_message(f"It expires at {created.expires}. To revoke it: perseid token revoke {created.id}")


@register_command(app, "list")
def list_(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Include revoked tokens.")] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List tokens: id, state, expiry, last day of use, issuer, scopes, namespaces and label.

    Server administrators see all tokens, administrators of prefixes those that are valid for their prefixes only, and
    all users those that they issued.

    For example:
        perseid token create --scope read --all-namespaces
        perseid token list
        perseid token list --all --json
    """
    with open_target(directory, acting_as) as target:
        for token in target.tokens(all=everything):
            if json:
                print_json(token)
            else:
                print_text(_format_line(token))


@register_command(app, "show")
def show(token: TokenArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show a token: its scopes, issuer and last use.

    For example:
        perseid token create --scope read --all-namespaces
        perseid token show last
    """
    with open_target(directory, acting_as) as target:
        found = target.token(_token_id(target, token))
    if json:
        print_json(found)
        return
    print_fields(
        {
            "token": found.id,
            "label": printable(found.label) or None,
            "state": found.state,
            "issuer": printable(found.issuer),
            "scopes": ", ".join(found.scopes),
            "namespaces": _format_namespaces(found),
            "created": found.created,
            "expires": found.expires,
            "revoked": found.revoked,
            "last used": found.last_used or "never",
            "entry": found.seq,
        }
    )


@register_command(app, "revoke")
def revoke(
    token: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOKEN]...", help="Ids, as `perseid token list` shows them, whole tokens, or `last`."),
    ] = None,
    *,
    issuer: Annotated[
        str | None,
        typer.Option("--issuer", metavar="INDEX:HANDLE|local:USER", help="All active tokens of this issuer."),
    ] = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Revoke tokens permanently, with immediate effect. Earlier changes stay; the ledger shows which token made them.

    For example:
        perseid token create --scope read --all-namespaces
        perseid token revoke last --note "found in a public repository"
    """
    if not token and issuer is None:
        raise typer.BadParameter("use one or more tokens, or --issuer", param_hint="TOKEN")
    with open_target(directory, acting_as) as target:
        ids = [_token_id(target, each) for each in token or ()]
        if issuer is not None:
            ids += [each.id for each in target.tokens() if each.issuer == issuer and each.state == "active"]
        for each in dict.fromkeys(ids):
            revoked = target.revoke_token(each, note=note)
            if json:
                print_json(revoked)
            else:
                print_text(revoked.id)
        if not ids:
            print_message(f"perseid: {printable(issuer or '')} has no active tokens")


def _parse_scopes(scopes: list[str] | None, namespaces: list[str] | None, all_namespaces: bool) -> list[str]:
    names = [name.strip() for text in scopes or () for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter(f"Name at least one scope with --scope: {', '.join(SCOPES)}")
    if all_namespaces == bool(namespaces):
        raise typer.BadParameter("use either --namespace or --all-namespaces", param_hint="--namespace")
    try:
        ScopeSet.of(names, None if all_namespaces else namespaces)
    except InvalidScope as problem:
        raise typer.BadParameter(str(problem)) from problem
    return names


def _token_id(target: Target, text: str) -> str:
    """Return the id of a token that is given as id, as token or as `last`."""
    if text == LAST:
        newest = max(target.tokens(all=True), key=lambda each: each.seq, default=None)
        if newest is None:
            reason = "there are no tokens"
            raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.CREATE_TOKEN())
        return newest.id
    try:
        return Secret.parse(text).id
    except InvalidToken:
        return text


def _format_line(token: TokenResponse) -> str:
    used = f"used {token.last_used}" if token.last_used is not None else "never used"
    until = f"until {token.expires[:10]}"
    parts = [token.id, token.state, until, used, token.issuer, ",".join(token.scopes), _format_namespaces(token)]
    return printable("  ".join([*parts, *([token.label] if token.label else [])]))


def _format_namespaces(token: TokenResponse) -> str:
    return "all namespaces" if token.namespaces is None else ", ".join(token.namespaces)


commands = {"token": app}

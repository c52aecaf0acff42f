"""`perseid user`, `grant`, `revoke` and `access`: users, their rights, and who can do what."""

from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, TypeAlias, TypeVar

import typer

from perseid.records.binary import MAX_BYTES
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.record import ValueRef
from perseid.registry.access.roles import PERMISSION_NAMES, ROLES
from perseid.registry.commands.access import Grant, Revoke
from perseid.registry.commands.minting import DEFAULT_TIMEOUT, retry_until_ready
from perseid.registry.commands.users import AddUser, DisableUser, NewUserKey, ResetUser, UserResult, new_secret
from perseid.registry.context import Context, Stage
from perseid.registry.jobs import grant as grant_job
from perseid.registry.jobs.grant import GrantAll
from perseid.registry.queries.access import UserCursor, list_access, list_users
from perseid.registry.registry import decide_command
from perseid.registry.responses import to_access, to_access_changed, to_user, to_user_disabled, to_user_key
from perseid.schema.access import AccessChanged, AccessEntry, RecordsWithoutGroup, User

from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    Note,
    OpenInstallation,
    Prefix,
    open_installation,
    parse_handle,
    print_warnings,
    printable,
)
from ._commands import Group, register_command
from ._output import AsJson, confirm, print_fields, print_json, print_message
from ._target import LocalTarget
from .lifecycle import Yes, run_job

T = TypeVar("T")

IdentityArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="[INDEX:]HANDLE", help="The identity or group; the handle alone if it has only one key."),
]
On: TypeAlias = Annotated[
    str,
    typer.Option(
        "--on", metavar="PREFIX|HANDLE", help="A prefix, for everything under it; or a handle, for its record."
    ),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only check and show what would change.")]
KeyFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--key", metavar="FILE", help="A public key: PEM, also a certificate; JWK; or a Handle key."),
]

_RIGHTS_HELP: Final = f"Roles ({', '.join(ROLES)}) or permissions ({', '.join(PERMISSION_NAMES)})."

user_app = typer.Typer(
    cls=Group,
    help="Add, list, disable and reset users: handles with a key, which can have rights.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


# Users


@register_command(user_app, "add")
def add(  # noqa: PLR0913 - options
    prefix: Prefix,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The suffix of the handle, or a description if handles are minted.")
    ],
    *,
    key: KeyFile = None,
    secret: Annotated[bool, typer.Option("--secret", help="Generate a secret. This is the default.")] = False,
    email: Annotated[str, typer.Option("--email", metavar="TEXT", help="An email address; public.")] = "",
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add a user: a handle with a key, and so an identity. It has no rights until you grant them.

    The handle is PREFIX/NAME, or minted if the namespace has a suffix scheme. A generated secret is shown only once.
    The user can change their own key. Use `perseid grant` to give them rights.

    For example:
        perseid user add 102.100.272 "Ann Example" --email ann@example.org
        perseid namespace add 12345
        perseid user add 12345 bob --json
    """
    new_key = _read_key(key, secret=secret)
    with open_installation(directory, acting_as) as session:
        result = retry_until_ready(
            lambda since: session.do(AddUser(prefix, name, new_key, email, since), note), None, DEFAULT_TIMEOUT
        )
    _print_key(result, new_key, json)


@register_command(user_app, "list")
def list_(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only users of this prefix.")] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List users: handles with a key. For a prefix, also members of its groups that have no key any more.

    For example:
        perseid user add 102.100.272 "Ann Example"
        perseid user list
        perseid user list 102.100.272 --json
    """
    with open_installation(directory, acting_as) as session:
        after: UserCursor | None = None
        while True:
            page, after = _read(session, lambda context, after=after: list_users(context, prefix, after))  # type: ignore[misc]
            for user in map(to_user, page):
                if json:
                    print_json(user)
                else:
                    typer.echo(_format_user(user))
            if after is None:
                return


@register_command(user_app, "disable")
def disable(
    handle: HandleArgument,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Disable a user: remove all keys, end all sessions, revoke all tokens.

    The rights stay in the records; `perseid access` shows them, and `perseid revoke` removes them. `perseid user reset`
    enables the user again.

    For example:
        perseid namespace add 12345
        perseid user add 12345 bob
        perseid user disable 12345/bob --note "left in spring"
        perseid user reset 12345/bob
    """
    with open_installation(directory, acting_as) as session:
        disabled = to_user_disabled(session.do(DisableUser(parse_handle(handle)), note))
    if json:
        print_json(disabled)
        return
    typer.echo(disabled.handle)
    if not disabled.changed:
        print_message("Nothing changed: this user has no key and no token.")
    else:
        print_message(f"Removed keys: {', '.join(disabled.keys) or 'none'}. Revoked tokens: {disabled.tokens:,}.")


@register_command(user_app, "reset")
def reset(
    handle: HandleArgument,
    *,
    key: KeyFile = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Give a user a new secret, shown only once, or a new key. All earlier keys, sessions and tokens end.

    For example:
        perseid namespace add 12345
        perseid user add 12345 eve
        perseid user reset 12345/eve
    """
    new_key = _read_key(key)
    with open_installation(directory, acting_as) as session:
        result = session.do(ResetUser(parse_handle(handle), new_key), note)
    _print_key(result, new_key, json)


def _read_key(path: str | None, *, secret: bool = False) -> NewUserKey:
    """Read a public key from a file; without one, generate a secret."""
    if path is None:
        return NewUserKey(secret=new_secret())
    if secret:
        raise typer.BadParameter("use either --key or --secret", param_hint="--key")
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES)
    try:
        return NewUserKey(public=PublicKey.from_file(data).to_bytes())
    except InvalidData as problem:
        raise typer.BadParameter(f"{printable(path)}: {problem}", param_hint="--key") from problem


def _print_key(result: UserResult, key: NewUserKey, json: bool) -> None:
    response = to_user_key(result, secret=key.secret)
    if json:
        print_json(response)
        return
    print_fields({"identity": response.identity, "secret": response.secret or None})
    print_warnings(response.warnings)
    if response.secret:
        print_message("The secret is shown only once: give it to the user over a secure channel.")


def _format_user(user: User) -> str:
    identities = ", ".join(user.identities) or user.handle
    return printable("  ".join(filter(None, (identities, user.state, user.name, user.email))))


# Rights


def grant(  # noqa: PLR0913 - options
    identity: IdentityArgument,
    rights: Annotated[list[str], typer.Argument(metavar="ROLE|PERMISSION...", help=_RIGHTS_HELP)],
    *,
    on: On,
    existing: Annotated[
        bool, typer.Option("--existing", help="With a prefix: make existing records name the groups too, as a job.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Give an identity or group rights on a prefix, or in a record. You can only grant what you have.

    **owner**: all permissions. **editor**: add, change and remove values, read private ones, and mint. **minter**: mint
    and list identifiers. **reader**: read private values, and list. On a prefix a role is a group in the prefix handle,
    which new records name. Existing records that do not name it are counted; `--existing` adds the group to those that
    you can change, except for records with keys or groups. `perseid undo` undoes that.

    For example:
        perseid namespace add 12345
        perseid user add 12345 ann
        perseid grant 12345/ann editor --on 12345
        perseid grant 12345/ann reader --on 102.100.272/D7J1G0DQH
        perseid grant 12345/ann editor --on 12345 --existing --yes
    """
    command = Grant(_parse_identity(identity), tuple(rights), _parse_on(on))
    if existing and "/" in command.on:
        raise typer.BadParameter("requires a prefix, not a handle", param_hint="--existing")
    with open_installation(directory, acting_as) as session:
        changed = _change(session, command, note, dry_run=dry_run)
        if not (existing and changed.records) or dry_run:
            _print_changed(changed, json, dry_run=dry_run)
            return
        if json:
            print_json(changed)
        else:
            typer.echo(printable(changed.identity))
        _grant_in_records(session, changed, note, yes=yes, json=json)


def _grant_in_records(session: OpenInstallation, changed: AccessChanged, note: str, *, yes: bool, json: bool) -> None:
    if not yes:
        confirm(f"Existing records under {printable(changed.on)} will name the groups")
    order = GrantAll(changed.on, tuple([each.role for each in changed.records]))
    target = LocalTarget(session)
    job = grant_job.start(session.registry, order, session.identity, INTERFACE, note)
    ended = run_job(target, target.start(job))
    if json:
        print_json(ended)
    else:
        print_fields({"job": ended.job, "changed": f"{ended.done:,}"})


def revoke(  # noqa: PLR0913 - options
    identity: IdentityArgument,
    rights: Annotated[
        list[str] | None, typer.Argument(metavar="[ROLE|PERMISSION]...", help=f"{_RIGHTS_HELP} Default: all.")
    ] = None,
    *,
    on: On,
    dry_run: DryRun = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Take rights from an identity or group. A handle without an index means all its keys.

    An administrator must remain. What the identity can still do, for example through another group, is shown.

    For example:
        perseid namespace add 12345
        perseid user add 12345 ann
        perseid grant 12345/ann editor --on 12345
        perseid revoke 12345/ann editor --on 12345
    """
    command = Revoke(_parse_identity(identity), tuple(rights or ()), _parse_on(on))
    with open_installation(directory, acting_as) as session:
        changed = _change(session, command, note, dry_run=dry_run)
    _print_changed(changed, json, dry_run=dry_run)


def access(
    on: Annotated[str, typer.Argument(metavar="PREFIX|HANDLE", help="A prefix or a handle.")],
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show who can do what with a prefix or an identifier, and through which value and group.

    For a prefix, the records that a role has no permissions on are counted: each record names its own administrators.

    For example:
        perseid access 102.100.272
        perseid access 102.100.272/D7J1G0DQH --json
    """
    with open_installation(directory, acting_as) as session:
        found = _read(session, lambda context: to_access(list_access(context, _parse_on(on))))
    if json:
        print_json(found)
        return
    for entry in found.entries:
        typer.echo(_format_entry(entry))
    if found.truncated:
        print_message("There are more identities, which are not shown.")
    _print_without(found.records)


def _parse_identity(text: str) -> ValueRef:
    """Parse `INDEX:HANDLE`, or a handle in any form."""
    try:
        reference = ValueRef.parse(text)
    except InvalidData as problem:
        raise typer.BadParameter(f"{problem}; for example: 300:12345/ann", param_hint="[INDEX:]HANDLE") from problem
    return reference if reference.index else ValueRef(0, str(parse_handle(reference.handle)))


def _parse_on(text: str) -> str:
    return str(parse_handle(text)) if "/" in text else text


def _read(session: OpenInstallation, read: Callable[[Context], T]) -> T:
    with session.registry.snapshot() as snapshot:
        return read(session.registry.context(snapshot, session.identity, INTERFACE))


def _change(session: OpenInstallation, command: Grant | Revoke, note: str, *, dry_run: bool) -> AccessChanged:
    if dry_run:
        with session.registry.snapshot() as snapshot:
            context = session.registry.context(snapshot, session.identity, INTERFACE, stage=Stage.COMMIT)
            change = decide_command(command, context).result(0)
    else:
        change = session.do(command, note)
    revokes = isinstance(command, Revoke)
    return _read(session, lambda context: to_access_changed(context, change, revokes=revokes, dry_run=dry_run))


def _print_changed(changed: AccessChanged, json: bool, *, dry_run: bool) -> None:
    if json:
        print_json(changed)
        return
    typer.echo(printable(changed.identity))
    if not changed.changed:
        print_message("Nothing changed." if not dry_run else "Nothing would change.")
    elif dry_run:
        records = ", ".join([*changed.handles, *(["the policy"] if changed.policy else [])])
        print_message(f"Would change: {printable(records)}")
    for entry in changed.remaining:
        print_message(f"Still has: {_format_entry(entry)}")
    _print_without(changed.records)
    if changed.records:
        roles = " ".join([each.role for each in changed.records])
        print_message(f"To add it: perseid grant {quote(changed.identity)} {roles} --on {changed.on} --existing")


def _print_without(records: Iterable[RecordsWithoutGroup]) -> None:
    for each in (each for each in records if each.count):
        number = f"{each.count:,}" if each.complete else f"At least {each.count:,}"
        what = "existing record does" if each.count == 1 and each.complete else "existing records do"
        print_message(f"{number} {what} not name the group {each.group}, which has the role {each.role}.")


def _format_entry(entry: AccessEntry) -> str:
    through = f"setting {entry.setting}" if entry.setting else f"value {entry.value}"
    groups = [f"group {group}" for group in entry.groups]
    role = entry.role or ",".join(entry.permissions)
    return printable("  ".join([role, entry.identity, entry.state, ", ".join([through, *groups])]))


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "user": user_app,
    "grant": grant,
    "revoke": revoke,
    "access": access,
}
